//! What a door (the local socket, HTTP) and the gateway behind it know of each other.
//!
//! Everything here lives on the gateway's own thread: nothing is `Send`, nothing is locked,
//! and no message waits for a channel. A door opens a [`ClientSession`] for each client,
//! gives it the client's messages one by one, and is given what the client shall hear by
//! its [`Responder`].

use std::rc::Rc;
use std::sync::Arc;

use xy_protocol::error::CallError;

use crate::large::{LargeMessage, LargeReader};
use crate::param_headers::Mirror;

/// Opens conversations.
pub trait Frontend {
    /// Begins a conversation with a client that came in through `entry`.
    fn open(
        &self,
        entry: Entry,
        responder: Rc<dyn Responder>,
    ) -> Result<Rc<dyn ClientSession>, Refusal>;

    /// The names of all profiles, in order, for those who may know them all.
    fn profiles(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the reader of large messages, which all listeners share.
    fn large_reader(&self) -> LargeReader {
        LargeReader::default()
    }
}

/// Where a client came in, and what it may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it is shown.
    pub view: View,
    /// Whether it may manage servers: everyone on the local door, over HTTP a token with
    /// that right.
    pub may_manage: bool,
    /// How long it stays.
    pub lifetime: Lifetime,
    /// What tells it from others that the door knows apart, such as the holder of another
    /// token; 0 for everyone on the local door.
    pub who: u64,
    /// The only profile that its token is for: what that hides it is shown nowhere.
    pub bound: Option<String>,
}

/// How long a client stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// For a connection or a session.
    Session,
    /// For a session of HTTP with SSE, which has only the legacy era.
    LegacyOnly,
    /// For one request, of a revision that has no sessions. Every request is another client,
    /// as far as anybody can tell.
    Request,
}

/// What a client is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    /// All of all servers, each name with its server's before it, for the operator alone.
    All,
    /// What a profile shows of the same.
    Profile(String),
    /// One server, as if there were nothing between.
    Server(String),
}

/// Why a conversation is not begun.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such server.
    #[error("there is no server named `{0}`")]
    NoServer(String),
    /// There is no such profile.
    #[error("there is no profile named `{0}`")]
    NoProfile(String),
    /// Its token's profile shows something of this server, but not all.
    #[error(
        "this token is for the profile `{profile}`, which does not show all of the server \
         `{server}`: use `/mcp`"
    )]
    Outside {
        /// The server.
        server: String,
        /// The profile.
        profile: String,
    },
    /// There are too many already.
    #[error("{0} clients are connected, which is the most there may be")]
    TooMany(usize),
}

/// One client's conversation. Dropping the last handle does not end it: [`close`] does.
///
/// [`close`]: Conversation::close
pub trait ClientSession {
    /// One message of the client's: JSON, with or without line breaks in it. `stream` is the
    /// door's own number for where it came in (over HTTP one per POST, else always 0); it
    /// comes back with whatever is said about this message.
    ///
    /// What is to be said at once may be put to the outlet before this returns.
    fn handle(&self, message: &[u8], stream: StreamNo) -> Accepted;

    /// Handles a large message, which was parsed on another thread.
    fn handle_large(&self, message: &Arc<LargeMessage>, stream: StreamNo) -> Accepted {
        self.handle(message.text(), stream)
    }

    /// The revision of the protocol that was agreed on, once that is so.
    fn version(&self) -> Option<&'static str>;

    /// Whether any of its requests is still to be answered.
    fn is_busy(&self) -> bool;

    /// Returns the client as the log of failed requests names it.
    fn logged_name(&self) -> String {
        String::new()
    }

    /// Which arguments of a tool, by its name for this client, are said in the head of a
    /// request too.
    fn mirrors(&self, _tool: &str) -> Vec<Mirror> {
        Vec::new()
    }

    /// The client has gone, or its session is ended. Nothing is put to the outlet any more.
    fn close(&self);
}

/// The door's number for where a message came in.
pub type StreamNo = u64;

/// What became of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepted {
    /// It was a notification or an answer: nothing will be said about it.
    Taken,
    /// It was a request: its answer will be put, or has been, unless it is cancelled.
    Asked,
    /// It was no message, or came out of turn; this JSON-RPC error says why. Over HTTP a 400.
    Refused(Vec<u8>),
}

/// Where messages to one client go. The door decides how: a line, a body, an event.
pub trait Responder {
    /// A message for the client: one line of JSON without its end. Must not block, and must
    /// not call back into the conversation. What a client does not read is the door's to
    /// bound: it ends the client that reads too slowly.
    fn put(&self, message: &[u8], to: Route);

    /// The next message for this stream says of this error that it is the answer. For doors that
    /// can tell more of it than the message can.
    fn fails(&self, _fault: &CallError, _stream: StreamNo) {}
}

/// What a message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// It answers the request of this stream: the last that is said there.
    Answer(StreamNo),
    /// It belongs to the request of this stream, which is still to be answered.
    Related(StreamNo),
    /// It belongs to no request.
    Broadcast,
    /// There is no message and there will be no answer: the request was cancelled.
    Cancelled(StreamNo),
}
