//! The open requests and the session state of client and daemon, as a pure state machine.
//!
//! The ledger does no I/O. It processes each line in either direction and decides what to do with
//! it. When the connection is lost, it returns error responses for the client. For a new daemon,
//! it returns the handshake and the replay that restore the session. The client notices only
//! changed lists, and errors for calls with an unknown outcome.
//!
//! A client of the revision without a handshake has no session state but its open requests. It
//! receives list changes only through its listens.
//!
//! ```text
//!  client ── request ──► open ── response ──► session state: handshake, level, subscriptions
//!  daemon ── request ──► pending ── client's response ──► removed
//!
//!  connection lost: open, not repeatable   ──► error response to the client
//!                   open, harmless         ──► kept and sent again
//!                   open, repeatable tool  ──► kept and sent again once, see `tools.rs`
//!                   open, unknown tool     ──► kept until the next daemon has listed its tools
//!                   open listen            ──► kept and sent again, see `listen.rs`
//!                   pending daemon request ──► stale: the client's response is dropped
//!  new connection:  handshake ──► list, if a tool is unknown ──► replay ──► the client's messages
//! ```

mod listen;
mod open;
mod text;
mod tools;

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Deserialize;
use serde_json::value::RawValue;
use xy_mcp::edit::Edits;
use xy_mcp::envelope::{Message, Outcome, parse};
use xy_mcp::handshake::with_revision;
use xy_protocol::error::{CallError, ErrorKind};

use open::{InsertError, Open, OpenRequests, RequestKind};
pub(super) use text::error_response;
use text::{cancelled, with_id};
use tools::RepeatableTools;

/// Maximum number of remembered subscriptions; more are lost with the connection.
const MAX_SUBSCRIPTIONS: usize = 1000;

/// Maximum number of remembered daemon requests, for pending and for stale ones each.
const MAX_DAEMON_REQUESTS: usize = 4096;

/// Prefix of ids that the bridge creates; no client uses such ids.
const OWN_PREFIX: &str = "\"xy-connect-";

/// The notifications for the client after a reconnect, as lists may have changed.
const LISTS_CHANGED: &str = "\
    {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\
    {\"jsonrpc\":\"2.0\",\"method\":\"notifications/prompts/list_changed\"}\n\
    {\"jsonrpc\":\"2.0\",\"method\":\"notifications/resources/list_changed\"}\n";

const INITIALIZED: &str = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n";

/// The number of a line among all lines of the client.
pub(super) type LineNo = u64;

/// The action to take for a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LineAction {
    /// Forward it unchanged.
    Forward,
    /// Do not forward it.
    Drop,
    /// Forward these lines instead.
    Replace(Vec<u8>),
    /// Do not forward it to the daemon, and send the client this response.
    Reject(Vec<u8>),
    /// Do not forward it to the client: it answers the request that the replay waits for.
    Resumed(Result<(), String>),
}

/// The state that is needed to survive the loss of a daemon.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    open: OpenRequests,
    handshake: Option<Handshake>,
    /// The line of the client's `notifications/initialized`.
    initialized_at: Option<LineNo>,
    /// The last successful `logging/setLevel`.
    level: Option<Vec<u8>>,
    /// The successful `resources/subscribe` requests, by URI.
    subscriptions: BTreeMap<String, Vec<u8>>,
    /// The tools that may be called twice.
    tools: RepeatableTools,
    /// The ids, as the client knows them, of daemon requests that the client has not answered.
    daemon_requests: HashSet<String>,
    /// The ids of such requests from earlier connections.
    stale: HashSet<String>,
    /// Ids that were renamed because they equal a stale one: from the client's to the daemon's.
    renamed: HashMap<String, String>,
    /// The bridge's own requests that are not answered.
    own: HashMap<String, OwnRequest>,
    own_count: u64,
    /// True if this daemon has got the client's `notifications/initialized` from the bridge.
    is_introduced: bool,
    /// Why the last connection was lost.
    lost_by: Option<String>,
    next_line: LineNo,
}

/// A successful handshake.
#[derive(Debug)]
struct Handshake {
    /// The client's `initialize`, with the negotiated revision.
    line: Vec<u8>,
    /// The negotiated revision.
    version: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnRequest {
    Handshake,
    /// A list of tools, which tells the calls that may be repeated.
    ListTools,
    /// A replayed request, whose response is ignored.
    Replayed,
}

impl Ledger {
    /// Returns the number of the client's next line.
    pub(super) fn next_line(&self) -> LineNo {
        self.next_line
    }

    /// Processes a line from the client before it is written to the daemon.
    ///
    /// `is_resent` is true if the line was processed before, but the connection was lost before it
    /// was written.
    pub(super) fn on_client_line(
        &mut self,
        message: Option<&Message<'_>>,
        line: &[u8],
        is_resent: bool,
    ) -> LineAction {
        let no = self.next_line;
        self.next_line += 1;
        match message {
            Some(Message::Request { id, method, params }) => {
                let kind = match RequestKind::of(method, *params) {
                    RequestKind::Once if method == "tools/call" => self.tools.kind_of_call(*params),
                    kind => kind,
                };
                match self.open.insert(no, id, kind, line) {
                    Ok(()) => LineAction::Forward,
                    Err(refused) => LineAction::Reject(rejection(id, &refused)),
                }
            }
            Some(Message::Notification { method, params }) => {
                match &**method {
                    "notifications/initialized" => self.initialized_at = Some(no),
                    // A cancelled request needs no response.
                    "notifications/cancelled" => {
                        if let Some(id) = request_id(*params) {
                            self.open.remove(id);
                        }
                    }
                    _ => {}
                }
                LineAction::Forward
            }
            Some(Message::Response { id: Some(id), .. }) => {
                // The daemon that sent the request is gone if the response was not written then.
                if is_resent { LineAction::Drop } else { self.on_client_response(id, line) }
            }
            // The daemon reports invalid messages.
            Some(Message::Response { id: None, .. }) | None => LineAction::Forward,
        }
    }

    fn on_client_response(&mut self, id: &str, line: &[u8]) -> LineAction {
        let was_asked = self.daemon_requests.remove(id);
        if let Some(daemon_id) = self.renamed.remove(id) {
            return LineAction::Replace(with_id(line, id, &daemon_id));
        }
        // Stale ids are kept, as a line that could not be written is processed again.
        if !was_asked && self.stale.contains(id) { LineAction::Drop } else { LineAction::Forward }
    }

    /// Undoes this line and all later ones, which were not written and will be processed again.
    pub(super) fn mark_unwritten(&mut self, first: LineNo) {
        self.open.remove_from(first);
        self.initialized_at = self.initialized_at.filter(|&line| line < first);
    }

    /// Processes a line from the daemon.
    pub(super) fn on_daemon_line(
        &mut self,
        message: Option<&Message<'_>>,
        line: &[u8],
    ) -> LineAction {
        match message {
            Some(Message::Response { id: Some(id), outcome }) => {
                self.on_daemon_response(id, *outcome)
            }
            Some(Message::Request { id, .. }) => self.on_daemon_request(id, line),
            Some(Message::Notification { method, params }) => match &**method {
                "notifications/cancelled" => self.on_daemon_cancel(*params, line),
                "notifications/subscriptions/acknowledged" => self.on_acknowledged(*params, line),
                "notifications/tools/list_changed" => {
                    self.tools.forget();
                    LineAction::Forward
                }
                _ => LineAction::Forward,
            },
            Some(Message::Response { id: None, .. }) | None => LineAction::Forward,
        }
    }

    fn on_daemon_response(&mut self, id: &str, outcome: Outcome<'_>) -> LineAction {
        if id.starts_with(OWN_PREFIX)
            && let Some(own) = self.own.remove(id)
        {
            return match own {
                OwnRequest::Handshake => LineAction::Resumed(self.check_handshake(outcome)),
                OwnRequest::ListTools => {
                    // A daemon that cannot list has no tools that may be called twice.
                    let result = if let Outcome::Result(result) = outcome { result } else { "" };
                    self.tools.learn(result, true);
                    self.check_calls();
                    LineAction::Resumed(Ok(()))
                }
                OwnRequest::Replayed => LineAction::Drop,
            };
        }
        if let Some(open) = self.open.remove(id)
            && let Outcome::Result(result) = outcome
        {
            self.record_granted(open, result);
        }
        LineAction::Forward
    }

    /// Records the change of session state by a successful request.
    fn record_granted(&mut self, open: Open, result: &str) {
        match (open.kind, open.text) {
            (RequestKind::Initialize, Some(line)) => {
                let version = version_in(result);
                // The next daemon is asked for the negotiated revision. The server that determined
                // it may be down by then.
                let agreed = version.as_deref().and_then(|it| with_revision(&line, it));
                self.handshake = Some(Handshake { line: agreed.unwrap_or(line), version });
            }
            (RequestKind::SetLevel, Some(line)) => self.level = Some(line),
            (RequestKind::Subscribe(uri), Some(line)) => {
                let has_room = self.subscriptions.len() < MAX_SUBSCRIPTIONS;
                if has_room || self.subscriptions.contains_key(&uri) {
                    self.subscriptions.insert(uri, line);
                }
            }
            (RequestKind::Unsubscribe(uri), _) => {
                self.subscriptions.remove(&uri);
            }
            (RequestKind::ListTools { is_first_page }, _) => {
                self.tools.learn(result, is_first_page);
                self.check_calls();
            }
            _ => {}
        }
    }

    /// Classifies the calls of unknown tools by the list that is known now.
    fn check_calls(&mut self) {
        self.open.check_calls(|line| match parse(line) {
            Ok(Message::Request { params, .. }) => self.tools.kind_of_call(params),
            _ => RequestKind::Once,
        });
    }

    /// Checks that a new daemon agrees to the same revision as the old one.
    fn check_handshake(&self, outcome: Outcome<'_>) -> Result<(), String> {
        let result = match outcome {
            Outcome::Result(result) => result,
            Outcome::Error(error) => return Err(message_in(error)),
        };
        let agreed = self.handshake.as_ref().and_then(|it| it.version.as_deref());
        let now = version_in(result);
        if agreed == now.as_deref() {
            return Ok(());
        }
        let shown = |version: Option<&str>| version.unwrap_or("none").to_owned();
        Err(format!(
            "it chose MCP {}, but {} was negotiated before",
            shown(now.as_deref()),
            shown(agreed)
        ))
    }

    fn on_daemon_request(&mut self, id: &str, line: &[u8]) -> LineAction {
        // The request may belong to any open call. Repeating that call would repeat the request.
        self.open.forbid_repeats();
        if self.daemon_requests.len() >= MAX_DAEMON_REQUESTS {
            return LineAction::Forward;
        }
        if !self.stale.contains(id) {
            self.daemon_requests.insert(id.to_owned());
            return LineAction::Forward;
        }
        // The client may still answer the stale request; equal ids could not be told apart.
        let client_id = self.new_id();
        let renamed = with_id(line, id, &client_id);
        self.daemon_requests.insert(client_id.clone());
        self.renamed.insert(client_id, id.to_owned());
        LineAction::Replace(renamed)
    }

    fn on_daemon_cancel(&mut self, params: Option<&str>, line: &[u8]) -> LineAction {
        let Some(id) = request_id(params) else {
            return LineAction::Forward;
        };
        let renamed = self.renamed.iter().find(|(_, daemon_id)| *daemon_id == id);
        let Some(client_id) = renamed.map(|(client_id, _)| client_id.clone()) else {
            // If it does not cancel its own request, it ends a listen of the client.
            if !self.daemon_requests.remove(id) && self.open.listening(id).is_some() {
                self.open.remove(id);
            }
            return LineAction::Forward;
        };
        self.daemon_requests.remove(&client_id);
        self.renamed.remove(&client_id);
        LineAction::Replace(with_id(line, id, &client_id))
    }

    /// Processes the acknowledgement of a listen. The client receives only the first one. After a
    /// reconnect, it receives notifications for changes that it may have missed.
    fn on_acknowledged(&mut self, params: Option<&str>, line: &[u8]) -> LineAction {
        let Some((id, filter)) = listen::parse_acknowledged(params) else {
            return LineAction::Forward;
        };
        let Some(listening) = self.open.listening(id) else {
            return LineAction::Forward;
        };
        let update = listening.acknowledged(filter);
        let mut lines = Vec::new();
        if update.is_changed {
            lines.extend_from_slice(line);
        }
        for list in &update.missed {
            listen::push_list_changed(list, id, &mut lines);
        }
        match (update.is_changed, update.missed.is_empty()) {
            (true, true) => LineAction::Forward,
            (false, true) => LineAction::Drop,
            (_, false) => LineAction::Replace(lines),
        }
    }

    /// Handles the loss of the connection. Returns the messages for the client: errors for requests
    /// with an unknown outcome, and cancellations of the daemon's requests.
    pub(super) fn on_connection_lost(&mut self, cause: &str) -> Vec<u8> {
        if self.own.values().any(|own| *own == OwnRequest::ListTools) {
            self.open.forbid_repeats(); // Another daemon may be lost in the same list.
        }
        self.own.clear();
        self.renamed.clear();
        self.is_introduced = false;
        self.lost_by = Some(cause.to_owned());
        let mut to_client = self.fail_unrepeatable();
        for listening in self.open.all_listening() {
            listening.lost();
        }
        for id in self.daemon_requests.drain() {
            cancelled(&id, "the connection to the daemon was lost", &mut to_client);
            if self.stale.len() < MAX_DAEMON_REQUESTS {
                self.stale.insert(id);
            }
        }
        to_client
    }

    /// Removes the requests that cannot be sent again. Returns their error responses.
    fn fail_unrepeatable(&mut self) -> Vec<u8> {
        let mut to_client = Vec::new();
        for open in self.open.take_unrepeatable() {
            let error = match open.kind {
                RequestKind::Listen(_) => listen_lost(),
                _ => outcome_unknown(),
            };
            let cause = self.lost_by.as_deref().unwrap_or_default();
            error_response(&open.id, &error.cause(cause), &mut to_client);
        }
        to_client
    }

    /// Returns the handshake that a new daemon must answer first; `None` if there was none.
    pub(super) fn handshake_request(&mut self) -> Option<Vec<u8>> {
        self.own.clear();
        let line = self.handshake.as_ref()?.line.clone();
        Some(self.replay_request(&line, OwnRequest::Handshake))
    }

    /// Returns the request for the tools that a new daemon must answer before the replay; `None`
    /// if no open call depends on them.
    pub(super) fn list_request(&mut self) -> Option<Vec<u8>> {
        let line = self.open.first_unchecked()?;
        let Ok(Message::Request { params, .. }) = parse(line) else { return None };
        let params = params.map(str::to_owned);
        let id = self.new_id();
        let mut to_daemon = self.introduce().as_bytes().to_vec();
        to_daemon.extend_from_slice(tools::list_request(&id, params.as_deref()).as_bytes());
        self.own.insert(id, OwnRequest::ListTools);
        Some(to_daemon)
    }

    /// Returns the client's `notifications/initialized`, if the new daemon needs it.
    fn introduce(&mut self) -> &'static str {
        let is_due = self.handshake.is_some() && self.initialized_at.is_some();
        if is_due && !std::mem::replace(&mut self.is_introduced, true) { INITIALIZED } else { "" }
    }

    /// Returns the messages that a new daemon must get before the client's next ones, and those
    /// for the client afterwards.
    pub(super) fn replay(&mut self) -> (Vec<u8>, Vec<u8>) {
        let mut to_client = self.fail_unrepeatable();
        let mut to_daemon = self.introduce().as_bytes().to_vec();
        if self.handshake.is_some() {
            let standing: Vec<Vec<u8>> =
                self.level.iter().chain(self.subscriptions.values()).cloned().collect();
            for line in standing {
                to_daemon.extend_from_slice(&self.replay_request(&line, OwnRequest::Replayed));
            }
        }
        for line in self.open.texts() {
            to_daemon.extend_from_slice(line);
            to_daemon.push(b'\n');
        }
        self.open.forbid_repeats(); // A call is sent again only once.
        self.tools.forget(); // The client is notified that lists may have changed.
        // Without a handshake, list changes are sent only to listens.
        if self.handshake.is_some() && self.initialized_at.is_some() {
            to_client.extend_from_slice(LISTS_CHANGED.as_bytes());
        }
        (to_daemon, to_client)
    }

    /// Returns true if the client waits for a response.
    pub(super) fn has_open_requests(&self) -> bool {
        !self.open.is_empty()
    }

    /// Returns an error response for each open request.
    pub(super) fn fail_all(&mut self, why: &CallError) -> Vec<u8> {
        let mut to_client = Vec::new();
        for open in self.open.take_all() {
            if let (RequestKind::UncheckedCall, Some(cause)) = (&open.kind, &self.lost_by) {
                error_response(&open.id, &outcome_unknown().cause(cause), &mut to_client);
            } else {
                error_response(&open.id, why, &mut to_client);
            }
        }
        to_client
    }

    /// Ends the listens of a client that leaves, as they are never answered. Returns the messages
    /// for the daemon.
    pub(super) fn cancel_listens(&mut self) -> Vec<u8> {
        let mut to_daemon = Vec::new();
        for open in self.open.take_listens() {
            cancelled(&open.id, "the client has disconnected", &mut to_daemon);
        }
        to_daemon
    }

    /// Returns a request of the client with an id of the bridge, as a line.
    fn replay_request(&mut self, line: &[u8], own: OwnRequest) -> Vec<u8> {
        let id = self.new_id();
        let mut to_daemon = match parse(line) {
            Ok(Message::Request { id: client_id, .. }) => {
                let mut edits = Edits::of(line);
                edits.replace(client_id, id.as_str());
                edits.to_vec()
            }
            _ => unreachable!("only requests are remembered"),
        };
        to_daemon.push(b'\n');
        self.own.insert(id, own);
        to_daemon
    }

    fn new_id(&mut self) -> String {
        self.own_count += 1;
        format!("{OWN_PREFIX}{}\"", self.own_count)
    }
}

fn outcome_unknown() -> CallError {
    let what = "outcome unknown: the connection to the daemon was lost before it answered";
    CallError::new(ErrorKind::OutcomeUnknown, what)
        .hint("it may have been executed: check before repeating it")
}

/// Returns the error for a listen that cannot be sent again.
fn listen_lost() -> CallError {
    let what = "the listen has ended: the connection to the daemon was lost, and the request \
        exceeds the limits for sending it again";
    CallError::new(ErrorKind::NotRunning, what).hint("listen again")
}

fn rejection(id: &str, refused: &InsertError) -> Vec<u8> {
    let error = match refused {
        InsertError::TooMany(most) => CallError::new(
            ErrorKind::QueueFull,
            format!("too many open requests: the maximum is {most}"),
        ),
        InsertError::IdTooLong(most) => CallError::new(
            ErrorKind::InvalidRequest,
            format!("the id exceeds the maximum length of {most} bytes"),
        ),
    };
    let mut line = Vec::new();
    error_response(id, &error, &mut line);
    line
}

/// Returns the request id in a `notifications/cancelled`, as raw JSON.
fn request_id(params: Option<&str>) -> Option<&str> {
    #[derive(Deserialize)]
    struct Params<'t> {
        #[serde(borrow, rename = "requestId")]
        request_id: &'t RawValue,
    }
    let params: Params<'_> = serde_json::from_str(params?).ok()?;
    Some(params.request_id.get())
}

fn version_in(result: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct InitializeResult {
        #[serde(rename = "protocolVersion")]
        protocol_version: String,
    }
    let result: InitializeResult = serde_json::from_str(result).ok()?;
    Some(result.protocol_version)
}

fn message_in(error: &str) -> String {
    #[derive(Deserialize)]
    struct Error {
        message: String,
    }
    serde_json::from_str(error).map_or_else(|_| error.to_owned(), |error: Error| error.message)
}

#[cfg(test)]
mod tests;
