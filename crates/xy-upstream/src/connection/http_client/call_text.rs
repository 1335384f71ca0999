//! The text of a call on its way to the server.

use std::rc::Rc;

use hyper::body::Bytes;

use super::HttpClient;

/// The text of a call, kept until the server has accepted it, as it may have to be sent again.
pub(super) struct CallText {
    pub(super) transport: Rc<HttpClient>,
    pub(super) text: Bytes,
    /// The era that was negotiated when the call was queued, as its text depends on it. `None` for
    /// calls before the handshake.
    pub(super) is_modern: Option<bool>,
    /// Turns before this one come before the call.
    pub(super) after: u64,
}

impl CallText {
    pub(super) fn of(transport: Rc<HttpClient>, text: Bytes) -> Self {
        transport.call_bytes.set(transport.call_bytes.get() + text.len());
        let after = transport.next_turn.get();
        let is_modern = transport.is_in_session().then(|| transport.is_modern());
        Self { transport, text, is_modern, after }
    }
}

impl Drop for CallText {
    fn drop(&mut self) {
        self.transport.call_bytes.set(self.transport.call_bytes.get() - self.text.len());
    }
}
