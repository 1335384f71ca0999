//! What carries messages to a server, whatever it is.

use crate::chunks::Chunks;

/// Maximum message size.
pub(crate) const MAX_MESSAGE: usize = 32 * 1024 * 1024;

/// The way to a server.
pub(crate) trait Wire {
    /// Takes a message: what `write` appends, on one line, without its end. `call` is the id
    /// of a request. Answers its place, by which one can tell later whether it was written.
    fn put(&self, call: Option<u64>, write: &mut dyn FnMut(&mut Chunks)) -> u64;

    /// Has what was taken sent, if that is not done yet. `is_alone`: nothing else is open with
    /// this server, so that there is nothing to wait for.
    fn flush(&self, is_alone: bool);

    /// Whether the server can have seen anything of what was put there.
    fn is_written(&self, place: u64) -> bool;

    /// From this place on nobody has read what was written, nor ever will, if that is known.
    fn unread_from(&self) -> Option<u64> {
        None
    }

    /// Returns the place up to which the server has read, if the system tells.
    fn read_up_to(&self) -> Option<u64> {
        None
    }

    /// How many bytes wait to be sent.
    fn waiting(&self) -> usize;

    /// Nobody waits for the answer to this call any more; whether the server knows it by that.
    fn given_up(&self, _call: u64) -> bool {
        false
    }

    /// Whether the server reads some of what it is told outside of messages too, and a tool
    /// that cannot be called like that is none.
    fn has_heads(&self) -> bool {
        false
    }

    /// Whether the server is a process here, whose death is seen otherwise than by its silence.
    fn has_process(&self) -> bool {
        false
    }

    /// What is put from now on is sent after the answer to this call, where it would not be by
    /// itself.
    fn barrier(&self, _call: u64) {}

    /// This call of a client, which was put just now, is sent after those of the same client
    /// that have waited, as it may have itself, where it would not be by itself.
    fn order_after(&self, _call: u64, _client: u64, _has_waited: bool) {}

    /// This call, which was put just now, is sent however many others are under way.
    fn bypass_limit(&self, _call: u64) {}

    /// How many things it keeps: messages, and what belongs to calls.
    fn kept(&self) -> usize {
        0
    }

    /// What the session is called, if the server has given it a name.
    fn session(&self) -> Option<String> {
        None
    }

    /// Nothing more is begun to be sent.
    fn close(&self);

    /// No answer is waited for any more.
    fn hang_up(&self) {}
}
