//! The hold of a connection on a stream of its session.

use std::rc::Rc;

use super::Session;
use crate::frontend::StreamNo;
use crate::response_stream::ResponseStream;

/// A connected stream. Dropping it disconnects the stream.
#[derive(Debug)]
pub(crate) struct Lease {
    session: Rc<Session>,
    response_stream: Rc<ResponseStream>,
    connection: u32,
}

impl Lease {
    pub(crate) fn new(
        session: Rc<Session>,
        response_stream: Rc<ResponseStream>,
        connection: u32,
    ) -> Self {
        Self { session, response_stream, connection }
    }

    pub(crate) fn stream(&self) -> StreamNo {
        self.response_stream.stream()
    }

    pub(crate) fn response_stream(&self) -> &Rc<ResponseStream> {
        &self.response_stream
    }

    /// Returns the number of the stream's connection; 0 is the first.
    pub(crate) fn connection(&self) -> u32 {
        self.connection
    }

    /// Returns true if there are so many connections that idle streams should close.
    pub(crate) fn is_crowded(&self) -> bool {
        self.session.session_streams().counters().is_crowded()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.response_stream.detach(self.connection) {
            self.session.session_streams().close(&self.response_stream);
        }
        self.session.handle_lost_stream();
    }
}
