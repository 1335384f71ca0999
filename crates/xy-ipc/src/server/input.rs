//! The input of a connection: filled from the socket, consumed line by line.

use std::io;

use tokio::io::AsyncReadExt;
use tokio::net::unix::OwnedReadHalf;
use tokio::time::Instant;

use super::LINE_TIMEOUT;
use crate::socket;
use xy_protocol::framing::{Line, LineSplitter, MAX_REQUEST_LINE};

/// Size of one read. Requests are small, and every idle connection keeps this buffer.
const CHUNK: usize = 8 * 1024;

pub(super) struct Input {
    half: OwnedReadHalf,
    chunk: Box<[u8]>,
    /// The part of `chunk` that has not been consumed is `start..end`.
    start: usize,
    end: usize,
    splitter: LineSplitter,
    /// When the unfinished line was first seen.
    line_since: Option<Instant>,
    has_ended: bool,
}

impl Input {
    pub(super) fn new(half: OwnedReadHalf) -> Self {
        Self {
            half,
            chunk: vec![0; CHUNK].into_boxed_slice(),
            start: 0,
            end: 0,
            splitter: LineSplitter::new(MAX_REQUEST_LINE),
            line_since: None,
            has_ended: false,
        }
    }

    /// Returns the next line of the bytes read so far.
    pub(super) fn next_line(&mut self) -> Option<Line<'_>> {
        let mut rest = &self.chunk[self.start..self.end];
        let line = self.splitter.next_line(&mut rest);
        self.start = self.end - rest.len();
        line
    }

    /// Reads more. Cancel-safe: no bytes are lost.
    pub(super) async fn fill(&mut self) -> io::Result<()> {
        let count = self.half.read(&mut self.chunk).await?;
        self.has_ended = count == 0;
        (self.start, self.end) = (0, count);
        Ok(())
    }

    /// Returns true if the client will send no more.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns true if the client is gone, and has not merely stopped sending.
    pub(super) fn is_hung_up(&self) -> bool {
        socket::is_hung_up(self.half.as_ref())
    }

    /// Returns when the unfinished line times out. Time in which the connection is not read
    /// (`reading` is false) does not count.
    pub(super) fn line_deadline(&mut self, reading: bool) -> Option<Instant> {
        if !self.splitter.is_inside_line() {
            self.line_since = None;
        } else if self.line_since.is_none() || !reading {
            self.line_since = Some(Instant::now());
        }
        self.line_since.map(|since| since + LINE_TIMEOUT)
    }
}
