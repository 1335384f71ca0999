//! Bodies of HTTP, piece by piece.

use std::future::poll_fn;
use std::pin::Pin;

use hyper::body::{Body as _, Bytes, Incoming};

/// The next piece of a body; `None` at its end. Trailers are none.
pub(crate) async fn next_piece(body: &mut Incoming) -> Result<Option<Bytes>, hyper::Error> {
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
