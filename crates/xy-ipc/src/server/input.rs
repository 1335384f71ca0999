//! What a client sends: filled from its socket, taken out line by line.

use std::io;

use tokio::io::AsyncReadExt;
use tokio::net::unix::OwnedReadHalf;
use tokio::time::Instant;

use super::LINE_WITHIN;
use crate::framing::{Line, LineSplitter, MAX_REQUEST_LINE};
use crate::socket;

/// What is read at once; requests are small, and every idle connection keeps this much.
const CHUNK: usize = 8 * 1024;

pub(super) struct Input {
    half: OwnedReadHalf,
    chunk: Box<[u8]>,
    /// The part of `chunk` that has not been taken yet.
    from: usize,
    to: usize,
    splitter: LineSplitter,
    /// When the line that is not finished was first seen.
    line_since: Option<Instant>,
    ended: bool,
}

impl Input {
    pub(super) fn new(half: OwnedReadHalf) -> Self {
        Self {
            half,
            chunk: vec![0; CHUNK].into_boxed_slice(),
            from: 0,
            to: 0,
            splitter: LineSplitter::new(MAX_REQUEST_LINE),
            line_since: None,
            ended: false,
        }
    }

    /// The next line of what has been read.
    pub(super) fn next_line(&mut self) -> Option<Line<'_>> {
        let mut rest = &self.chunk[self.from..self.to];
        let line = self.splitter.next_line(&mut rest);
        self.from = self.to - rest.len();
        line
    }

    /// Reads more. Cancel-safe: what was read is kept.
    pub(super) async fn fill(&mut self) -> io::Result<()> {
        let count = self.half.read(&mut self.chunk).await?;
        self.ended = count == 0;
        (self.from, self.to) = (0, count);
        Ok(())
    }

    /// Whether the client will send no more.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether the client has gone, and does not merely send no more.
    pub(super) fn is_hung_up(&self) -> bool {
        socket::is_hung_up(self.half.as_ref())
    }

    /// When the unfinished line has taken too long. Time in which we do not read
    /// (`reading` is false) is ours, not the client's.
    pub(super) fn line_due_at(&mut self, reading: bool) -> Option<Instant> {
        if !self.splitter.is_inside_a_line() {
            self.line_since = None;
        } else if self.line_since.is_none() || !reading {
            self.line_since = Some(Instant::now());
        }
        self.line_since.map(|since| since + LINE_WITHIN)
    }
}
