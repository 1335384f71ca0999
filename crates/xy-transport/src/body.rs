//! Reading of HTTP bodies.

use std::future::poll_fn;
use std::pin::Pin;

use hyper::body::{Body as _, Bytes, Incoming};

use crate::pace::Pace;

/// The size of the chunks in which a body is collected.
pub const CHUNK: usize = 64 * 1024;

/// A body that is being received, in chunks. Moving a single growing buffer of 30 MB would keep the
/// gateway's thread busy.
#[derive(Debug, Default)]
pub struct BodyChunks {
    /// Each but the last is full.
    chunks: Vec<Vec<u8>>,
    len: usize,
}

impl BodyChunks {
    /// Appends a piece. Gives way after each chunk: the next piece of a fast peer is always ready,
    /// so a long body would otherwise be read without a pause.
    pub async fn append(&mut self, mut piece: &[u8], pace: &Pace) {
        let before = self.chunks.len();
        while !piece.is_empty() {
            let last = match self.chunks.last_mut() {
                Some(last) if last.len() < CHUNK => last,
                _ => {
                    self.chunks.push_mut(Vec::with_capacity(CHUNK.min(piece.len().max(MIN_CHUNK))))
                }
            };
            let (fits, rest) = piece.split_at(piece.len().min(CHUNK - last.len()));
            last.extend_from_slice(fits);
            self.len += fits.len();
            piece = rest;
        }
        if self.chunks.len() != before {
            pace.give_way(CHUNK).await;
        }
    }

    /// Returns the number of bytes.
    pub fn byte_count(&self) -> usize {
        self.len
    }

    /// Joins the chunks. Copies them, so large bodies are joined on a blocking thread.
    pub fn join(self) -> Vec<u8> {
        match <[Vec<u8>; 1]>::try_from(self.chunks) {
            Ok([only]) => only,
            Err(chunks) => chunks.concat(),
        }
    }
}

impl From<Bytes> for BodyChunks {
    fn from(bytes: Bytes) -> Self {
        Self { len: bytes.len(), chunks: vec![bytes.into()] }
    }
}

/// The minimum capacity of a chunk.
const MIN_CHUNK: usize = 4 * 1024;

/// Returns the next piece of a body; `None` at its end. Skips trailers.
pub async fn next_piece(body: &mut Incoming) -> Result<Option<Bytes>, hyper::Error> {
    loop {
        match poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
            None => return Ok(None),
            Some(Err(problem)) => return Err(problem),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}
