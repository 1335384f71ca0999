//! The interface of the transports to a server.

use xy_transport::chunks::Chunks;

/// The transport to a server.
pub trait Wire {
    /// Queues a message: the text that `write` appends, on one line and without a line end. `call`
    /// is the id of a request. Returns its offset, which later tells whether it was written.
    fn put(&self, call: Option<u64>, write: &mut dyn FnMut(&mut Chunks)) -> u64;

    /// Sends the queued messages. `is_alone` tells that no other call is pending, so that there is
    /// nothing to gather.
    fn flush(&self, is_alone: bool);

    /// Returns true if the server may have seen some of the message at this offset.
    fn is_written(&self, offset: u64) -> bool;

    /// Returns the offset from which nothing was or will be read, if that is known.
    fn unread_from(&self) -> Option<u64> {
        None
    }

    /// Returns the offset up to which the server has read, if the system tells.
    fn read_up_to(&self) -> Option<u64> {
        None
    }

    /// Returns the number of bytes that wait to be sent.
    fn waiting(&self) -> usize;

    /// Stops waiting for the response to this call. Returns true if that already tells the server.
    fn abandon(&self, _call: u64) -> bool {
        false
    }

    /// Returns true if arguments are mirrored into HTTP headers; tools that cannot be mirrored are
    /// hidden.
    fn mirrors_params(&self) -> bool {
        false
    }

    /// Returns true if the server is a process of this daemon, whose death is noticed otherwise
    /// than by its silence.
    fn has_process(&self) -> bool {
        false
    }

    /// Holds back later messages until this call is answered. A no-op on ordered transports.
    fn barrier(&self, _call: u64) {}

    /// Orders `call`, which was just queued, behind the client's delayed calls. A no-op on ordered
    /// transports.
    fn order_after(&self, _call: u64, _client: u64, _has_waited: bool) {}

    /// Sends this call, which was just queued, regardless of the limit on concurrent calls.
    fn bypass_limit(&self, _call: u64) {}

    /// Returns the number of retained entries: messages, and state of calls.
    fn retained(&self) -> usize {
        0
    }

    /// Returns the session id, if the server has assigned one.
    fn session(&self) -> Option<String> {
        None
    }

    /// Begins no more messages.
    fn close(&self);

    /// Stops waiting for responses.
    fn hang_up(&self) {}
}
