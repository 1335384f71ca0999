//! Parses what a server sends. Responses to xy's own requests go to their tasks, output that is no
//! message to the server's log, and everything else is passed on as an [`Inbound`].

use std::fmt::Display;

use bytes::Bytes;
use tokio::sync::oneshot;
use xy_mcp::batch;
use xy_mcp::envelope::{self, Malformed, Message, Outcome};
use xy_mcp::head::Head;
use xy_mcp::params::Params;
use xy_supervisor::logs::OWN_PREFIX;
use xy_supervisor::protocol::DriverEvent;
use xy_transport::large::{LARGE_THRESHOLD, LargeMessage};

use super::response::ErrorObject;
use super::{Connection, Origin, ResponseResult, UNFRAMED, ids};

/// Something that a server has sent, for the router.
pub enum Inbound<'t> {
    /// The response to a forwarded request.
    Response(ServerResponse<'t>),
    /// Progress of a request.
    Progress {
        /// The upstream id of the request.
        token: u64,
        /// The token as the server wrote it.
        written: &'t str,
        /// The whole message.
        line: &'t [u8],
    },
    /// A notification.
    Notification(ServerMessage<'t>),
    /// A request.
    Request {
        /// The server's own id of the request.
        id: &'t str,
        /// The request.
        message: ServerMessage<'t>,
    },
}

/// A server's response to a forwarded request.
#[derive(Clone, Copy)]
pub struct ServerResponse<'t> {
    /// The request's id at this server.
    pub upstream_id: u64,
    /// The id as the server wrote it.
    pub id: &'t str,
    /// The result or error.
    pub outcome: Outcome<'t>,
    /// The whole message.
    pub line: &'t [u8],
}

/// A notification or request of a server.
#[derive(Clone, Copy)]
pub struct ServerMessage<'t> {
    /// The method.
    pub method: &'t str,
    /// The params, as JSON text.
    pub params: Option<&'t str>,
    /// The whole message.
    pub line: &'t [u8],
    /// The upstream id of the call that the message belongs to, if the transport tells.
    pub related_call: Option<u64>,
}

impl Connection {
    /// Handles a message or a batch. `related_call` is the call that it belongs to, if the
    /// transport tells.
    pub fn handle(&self, line: &[u8], related_call: Option<u64>) {
        self.handle_unless(line, related_call, |_| false);
    }

    /// Handles lines that are a message together, or ordinary output.
    pub(super) fn handle_lines(&self, mut text: Vec<u8>) {
        if envelope::parse(&text).is_ok() || batch::split(&text).is_some() {
            // A JSON string contains no bare line break.
            text.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b' ');
            self.breaks_framing();
        }
        self.handle(&text, None);
    }

    fn breaks_framing(&self) {
        if !self.is_unframed.replace(true) {
            tracing::warn!(server = %self.key, "{UNFRAMED}");
            self.log_own(UNFRAMED);
            self.emit(|events| events.on_broken_framing());
        }
    }

    /// Handles a line, unless it is no message and `is_held` keeps it, as more lines may follow.
    pub(super) fn handle_unless(
        &self,
        line: &[u8],
        related_call: Option<u64>,
        is_held: impl FnOnce(&[u8]) -> bool,
    ) {
        let message = envelope::parse(line);
        // Only one revision defines batches, but they mean the same in any other.
        if let (Err(Malformed::Batch), Some(parts)) = (&message, batch::split(line)) {
            for part in parts.into_iter().map(|part| part.get().as_bytes()) {
                if part.starts_with(b"{") {
                    self.handle(part, related_call);
                } else {
                    self.unparsed(part);
                }
            }
            return;
        }
        if message.is_err() && is_held(line) {
            return;
        }
        self.dispatch(message, line, related_call);
    }

    /// Handles a large message, which was parsed on another thread.
    fn handle_large(&self, message: &LargeMessage, related_call: Option<u64>) {
        match message.parts() {
            Some(parts) => parts.iter().for_each(|part| self.handle_large(part, related_call)),
            None => self.dispatch(message.message(), message.text(), related_call),
        }
    }

    /// Handles a message of any length. A large one is parsed on another thread.
    pub(super) async fn handle_whole(&self, text: Bytes, related_call: Option<u64>) {
        if text.len() <= LARGE_THRESHOLD {
            return self.handle(&text, related_call);
        }
        self.handle_large_unless(text, related_call, |_| false).await;
    }

    /// Parses a large text on another thread and handles it, unless it is no message and `is_held`
    /// keeps it. Cancel-safe: nothing is handled before it is parsed.
    pub(super) async fn handle_large_unless(
        &self,
        text: Bytes,
        related_call: Option<u64>,
        is_held: impl FnOnce(&[u8]) -> bool,
    ) {
        let Some(message) = self.large.read(text.clone()).await else { return };
        let is_message = message.parts().is_some() || message.message().is_ok();
        if is_message {
            return self.handle_large(&message, related_call);
        }
        // The original is held or logged: it need not be UTF-8.
        if !is_held(&text) {
            self.dispatch(message.message(), &text, related_call);
        }
    }

    fn dispatch(
        &self,
        message: Result<Message<'_>, Malformed>,
        line: &[u8],
        related_call: Option<u64>,
    ) {
        let related_call = related_call.filter(|upstream_id| !self.is_subscription(*upstream_id));
        self.activity.record_message(message.is_ok());
        match message {
            Ok(Message::Response { id: Some(id), outcome: Outcome::Error(error) })
                if self.is_forwarded(id) && ErrorObject::read(error).is_none() =>
            {
                self.unparsed(line);
                self.fail_malformed(id, "its `error` is no object with a `code` and a `message`");
            }
            Ok(Message::Response { id: Some(id), outcome }) => {
                self.handle_response(id, outcome, line);
            }
            Ok(Message::Notification { method, params }) if method == "notifications/progress" => {
                self.handle_progress(params, line);
            }
            Ok(Message::Notification { method, params }) => {
                let method = &*method;
                if self.handle_subscription_notification(method, params) {
                    return;
                }
                let message = ServerMessage { method, params, line, related_call };
                self.emit(|events| events.on_inbound(Inbound::Notification(message)));
            }
            Ok(Message::Request { id, method, .. }) if method == "ping" => {
                self.send(&xy_mcp::reply::result(id, "{}"));
            }
            Ok(Message::Request { id, method, params }) => {
                let message = ServerMessage { method: &method, params, line, related_call };
                self.emit(|events| events.on_inbound(Inbound::Request { id, message }));
            }
            Err(malformed) => {
                self.unparsed(line);
                if let Some(id) = id_in(line) {
                    self.fail_malformed(id, &malformed.to_string());
                }
            }
            // A response without an id goes to the log, for people.
            Ok(Message::Response { id: None, .. }) => self.unparsed(line),
        }
    }

    /// Returns true if the response is passed to its caller unchanged.
    fn is_forwarded(&self, id: &str) -> bool {
        let requests = self.requests.borrow();
        let request = ids::parse(id).and_then(|upstream_id| requests.get(&upstream_id));
        request.is_some_and(|it| matches!(it.origin, Origin::Forwarded { .. }))
    }

    fn handle_response(&self, id: &str, outcome: Outcome<'_>, line: &[u8]) {
        let upstream_id = ids::parse(id);
        let request = upstream_id.and_then(|it| self.requests.borrow_mut().remove(&it));
        match request.map(|request| request.origin) {
            Some(Origin::Forwarded { .. } | Origin::Cancelled) => {
                let upstream_id = upstream_id.unwrap_or_default();
                let response = ServerResponse { upstream_id, id, outcome, line };
                self.emit(|events| events.on_inbound(Inbound::Response(response)));
            }
            // Such requests, for example health checks, do not count as use of the server.
            Some(Origin::Internal(answer) | Origin::Subscription(answer)) => {
                complete_request(answer, line);
            }
            Some(Origin::Detached) => {}
            // A request of an earlier daemon, or one that was already answered.
            None => tracing::debug!(server = %self.key, id, "response for unknown request id"),
        }
    }

    fn handle_progress(&self, params: Option<&str>, line: &[u8]) {
        let Some(written) = Params::read(params).token() else { return self.unparsed(line) };
        let Some(token) = ids::parse(written) else { return };
        self.emit(|events| events.on_inbound(Inbound::Progress { token, written, line }));
    }

    /// Adds a line that is no message to the server's log; [`Connection::log_unparsed`] writes it.
    pub fn unparsed(&self, line: &[u8]) {
        let mut unparsed_lines = self.unparsed_lines.borrow_mut();
        if !line.is_empty() {
            if !unparsed_lines.is_empty() {
                unparsed_lines.push(b'\n');
            }
            unparsed_lines.extend_from_slice(line);
        }
    }

    /// Adds a line of xy itself to the server's log.
    pub fn log_own(&self, words: impl Display) {
        self.unparsed(format!("{OWN_PREFIX}{words}").as_bytes());
    }

    /// Writes the collected lines to the server's log. Cancel-safe. Reading from the server stops
    /// until there is room in the log.
    pub async fn log_unparsed(&self) {
        if self.unparsed_lines.borrow().is_empty() {
            return;
        }
        let Ok(room) = self.driver_events.reserve().await else { return };
        let unparsed_lines = std::mem::take(&mut *self.unparsed_lines.borrow_mut());
        if !unparsed_lines.is_empty() {
            // A concurrent call may have sent them already.
            room.send(DriverEvent::UnparsedOutput(unparsed_lines));
        }
    }
}

/// Returns the id in a malformed response. Other output may contain ids too, and so may malformed
/// requests, which are the server's own.
fn id_in(line: &[u8]) -> Option<&str> {
    let head = Head::of(line);
    let is_object = line.trim_ascii_start().starts_with(b"{");
    let is_to_be_one = is_object && !head.has_method && (head.is_response || head.is_rpc);
    head.id.filter(|_| is_to_be_one)
}

/// Completes a request with its whole response.
pub fn complete_request(answer: oneshot::Sender<ResponseResult>, line: &[u8]) {
    // All of it was parsed as JSON, so it is UTF-8.
    let _ = answer.send(Ok(String::from_utf8_lossy(line).into()));
}
