//! The interface between the listeners (the local socket and HTTP) and the gateway behind them.
//!
//! All of this runs on the gateway's thread: nothing is `Send`, nothing is locked, and no message
//! passes through a channel. A listener opens a [`ClientSession`] for each client and passes it the
//! client's messages one by one. The gateway sends messages to the client through the listener's
//! [`Responder`].

use std::rc::Rc;
use std::sync::Arc;

use xy_mcp::param_headers::ParamHeader;
use xy_protocol::error::CallError;
use xy_transport::large::{LargeMessage, LargeReader};

/// Maximum number of messages in a batch.
pub const MAX_BATCH: usize = 100;

/// Opens client sessions.
pub trait Frontend {
    /// Opens a session for a client that connected as `entry` says.
    fn open(
        &self,
        entry: Entry,
        responder: Rc<dyn Responder>,
    ) -> Result<Rc<dyn ClientSession>, Refusal>;

    /// Returns the names of all profiles, in order. Only for clients that may see all of them.
    fn profiles(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the reader of large messages, which all listeners share.
    fn large_reader(&self) -> LargeReader {
        LargeReader::default()
    }
}

/// How a client connected, and its rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The client's view of the servers.
    pub view: View,
    /// Whether the client may manage servers. Every local client may; over HTTP it depends on the
    /// token.
    pub may_manage: bool,
    /// How long the client's session lives.
    pub lifetime: Lifetime,
    /// A number that tells this client's token from others that the listener knows; 0 for all local
    /// clients.
    pub principal: u64,
    /// The only profile that the client's token is valid for. Anything that this profile hides is
    /// never shown.
    pub bound: Option<String>,
}

/// How long a client session lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// A connection or an HTTP session.
    Session,
    /// A session of the legacy HTTP+SSE transport, which knows only the legacy era.
    LegacyOnly,
    /// A single request, in a protocol revision without sessions. The gateway cannot tell which
    /// requests come from the same client.
    Request,
}

/// A client's view of the servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    /// Everything of all servers, each name prefixed with its server's. For the operator alone.
    All,
    /// The part of all servers that a profile shows, with the same prefixes.
    Profile(String),
    /// A single server, without prefixes, as if the client were connected to it directly.
    Server(String),
}

/// Why a session was not opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No server has this name.
    #[error("there is no server named `{0}`")]
    NoServer(String),
    /// No profile has this name.
    #[error("there is no profile named `{0}`")]
    NoProfile(String),
    /// The profile of the client's token shows a part of this server only.
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
    /// The maximum number of clients is connected.
    #[error("{0} clients are connected, which is the maximum")]
    TooMany(usize),
}

/// The session of one client.
///
/// Dropping the last handle does not end the session: [`close`](ClientSession::close) does.
pub trait ClientSession {
    /// Handles one message of the client: JSON, with or without line breaks.
    ///
    /// `stream` is the listener's own number of the stream that the message arrived on: one per
    /// POST over HTTP, otherwise always 0. The gateway passes it back with each message that
    /// concerns this one. A response may reach the responder before this returns.
    fn handle(&self, message: &[u8], stream: StreamNo) -> Disposition;

    /// Handles a large message, which was parsed on another thread.
    fn handle_large(&self, message: &Arc<LargeMessage>, stream: StreamNo) -> Disposition {
        self.handle(message.text(), stream)
    }

    /// Returns the negotiated protocol revision; `None` before the handshake.
    fn version(&self) -> Option<&'static str>;

    /// Returns true if a request of the client is not answered yet.
    fn is_busy(&self) -> bool;

    /// Returns the client's name for the log of failed requests.
    fn logged_name(&self) -> String {
        String::new()
    }

    /// Returns the arguments that a tool mirrors into HTTP headers. `tool` is the name that the
    /// client uses.
    fn param_headers(&self, _tool: &str) -> Vec<ParamHeader> {
        Vec::new()
    }

    /// Ends the session. Nothing is sent to the responder afterwards.
    fn close(&self);
}

/// The listener's number of the stream that a message arrived on.
pub type StreamNo = u64;

/// The gateway's handling of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disposition {
    /// The message was a notification or a response: no response follows.
    NoResponse,
    /// The message was a request: its response follows or was already sent, unless the request is
    /// cancelled.
    ResponsePending,
    /// The message was invalid or unexpected. This JSON-RPC error says why; over HTTP it is a 400.
    Rejected(Vec<u8>),
}

/// Sends messages to one client. The listener decides on the form: a line, a body or an event.
pub trait Responder {
    /// Sends a message: one line of JSON without its line end.
    ///
    /// Must not block, and must not call back into the session. The listener limits the unread
    /// messages, and disconnects a client that reads too slowly.
    fn put(&self, message: &[u8], to: Route);

    /// Announces that the next message on this stream is the response, with this error. For
    /// listeners that report more of an error than its message holds.
    fn report_error(&self, _fault: &CallError, _stream: StreamNo) {}
}

/// The relation of a message to requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// The message answers the request of this stream. It is the last message there.
    Response(StreamNo),
    /// The message belongs to the request of this stream, which is not answered yet.
    Related(StreamNo),
    /// The message belongs to no request.
    Broadcast,
    /// The request was cancelled: there is no message, and no response follows.
    Cancelled(StreamNo),
}
