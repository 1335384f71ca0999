//! What client and daemon owe each other, as a pure state machine.
//!
//! Nothing here reads, writes or waits. The ledger is told each line in either direction and
//! says what to do with it; when the connection is lost it says what the client must hear;
//! when there is a new one it says what the new daemon must hear first, so that the client
//! notices nothing but changed lists and the few calls whose outcome nobody knows. A client of
//! the revision without a handshake is simply one that never shakes hands: it has nothing that
//! stands but its open requests, and hears of changed lists only where it listens to them.
//!
//! ```text
//!  client says  ── request ──────► open ── answer ──► (standing: handshake, level, subscriptions)
//!  daemon says  ── request ──────► asked ── client's answer ──► forgotten
//!  connection lost: open, may not happen twice ──► error to the client
//!                   open, harmless             ──► kept, sent again
//!                   open, repeatable tool      ──► kept, sent again once
//!                   open, listening            ──► kept, sent again, and see `listen.rs`
//!                   asked                      ──► stale: the client's answer is swallowed
//!  new connection:  greeting ── its answer ──► replay ──► the client's own words go on
//! ```

mod listen;
mod open;
mod text;
mod tools;

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Deserialize;
use serde_json::value::RawValue;
use xy_mcp::edit::Edits;
use xy_mcp::envelope::{Message, Outcome};
use xy_mcp::handshake::ask_for_revision;
use xy_protocol::error::{CallError, ErrorKind};

use open::{Ask, Open, OpenRequests, Refused};
pub(super) use text::error_answer;
use text::{cancelled, same_with_id};
use tools::RepeatableTools;

/// How many subscriptions are remembered; a client with more has to ask again itself.
const MAX_SUBSCRIPTIONS: usize = 1000;

/// How many requests of the daemon's are remembered, open ones and old ones each.
const MAX_ASKED: usize = 4096;

/// What ids of our own begin with; no client numbers its requests like this.
const OWN_PREFIX: &str = "\"xy-connect-";

/// What the client is told after a new daemon has taken over: the lists may differ.
const LISTS_CHANGED: &str = "\
    {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\
    {\"jsonrpc\":\"2.0\",\"method\":\"notifications/prompts/list_changed\"}\n\
    {\"jsonrpc\":\"2.0\",\"method\":\"notifications/resources/list_changed\"}\n";

const INITIALIZED: &str = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n";

/// The place of a line among all that the client has said.
pub(super) type LineNo = u64;

/// What to do with a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Pass it on as it is.
    Pass,
    /// Keep it from the other side.
    Swallow,
    /// Pass on these lines instead.
    Replace(Vec<u8>),
    /// Keep it from the daemon, and give the client this answer.
    Refuse(Vec<u8>),
    /// Keep it from the client: it answers our greeting, well or not.
    Greeted(Result<(), String>),
}

/// Everything that has to be known to survive the loss of a daemon.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    open: OpenRequests,
    handshake: Option<Handshake>,
    /// The line in which the client said that it is initialized.
    initialized_at: Option<LineNo>,
    /// The last `logging/setLevel` that was granted.
    level: Option<Vec<u8>>,
    /// The granted `resources/subscribe` by their URIs.
    subscriptions: BTreeMap<String, Vec<u8>>,
    /// The tools that may be called twice.
    tools: RepeatableTools,
    /// The daemon's requests that the client has not answered, by the ids that the client
    /// knows them by.
    asked: HashSet<String>,
    /// Such requests of earlier connections.
    stale: HashSet<String>,
    /// Ids that had to be renamed because an old one is the same: the client's to the daemon's.
    renamed: HashMap<String, String>,
    /// Our own requests that are not answered.
    own: HashMap<String, Own>,
    own_count: u64,
    next_line: LineNo,
}

/// A handshake that a daemon has granted.
#[derive(Debug)]
struct Handshake {
    /// The client's `initialize`, with the revision that was agreed on.
    line: Vec<u8>,
    /// The revision that was agreed on.
    version: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Own {
    Greeting,
    /// Its answer says nothing that we want to know.
    Repeated,
}

impl Ledger {
    /// The place that the client's next line will have.
    pub(super) fn next_line(&self) -> LineNo {
        self.next_line
    }

    /// The client says a line, which is about to be written to the daemon.
    ///
    /// `is_carried` if it was said before, and the connection was lost before it was written.
    pub(super) fn client_says(
        &mut self,
        message: Option<&Message<'_>>,
        line: &[u8],
        is_carried: bool,
    ) -> Verdict {
        let no = self.next_line;
        self.next_line += 1;
        match message {
            Some(Message::Request { id, method, params }) => {
                let ask = match Ask::of(method, *params) {
                    Ask::Once if method == "tools/call" && self.tools.may_repeat(*params) => {
                        Ask::RepeatableCall
                    }
                    ask => ask,
                };
                match self.open.insert(no, id, ask, line) {
                    Ok(()) => Verdict::Pass,
                    Err(refused) => Verdict::Refuse(refusal(id, &refused)),
                }
            }
            Some(Message::Notification { method, params }) => {
                match &**method {
                    "notifications/initialized" => self.initialized_at = Some(no),
                    // A cancelled request need not be answered.
                    "notifications/cancelled" => {
                        if let Some(id) = request_id(*params) {
                            self.open.remove(id);
                        }
                    }
                    _ => {}
                }
                Verdict::Pass
            }
            Some(Message::Answer { id: Some(id), .. }) => {
                // What asked for it is gone if it could not be written then.
                if is_carried { Verdict::Swallow } else { self.client_answers(id, line) }
            }
            // What is no message is the daemon's to complain about.
            Some(Message::Answer { id: None, .. }) | None => Verdict::Pass,
        }
    }

    fn client_answers(&mut self, id: &str, line: &[u8]) -> Verdict {
        let was_asked = self.asked.remove(id);
        if let Some(theirs) = self.renamed.remove(id) {
            return Verdict::Replace(same_with_id(line, id, &theirs));
        }
        // Stale ones stay so: a line that could not be written is said again.
        if !was_asked && self.stale.contains(id) { Verdict::Swallow } else { Verdict::Pass }
    }

    /// This line and all after it were not written: they will be said again.
    pub(super) fn unwritten_from(&mut self, first: LineNo) {
        self.open.remove_from(first);
        self.initialized_at = self.initialized_at.filter(|&line| line < first);
    }

    /// The daemon says a line.
    pub(super) fn daemon_says(&mut self, message: Option<&Message<'_>>, line: &[u8]) -> Verdict {
        match message {
            Some(Message::Answer { id: Some(id), outcome }) => self.daemon_answers(id, *outcome),
            Some(Message::Request { id, .. }) => self.daemon_asks(id, line),
            Some(Message::Notification { method, params }) => match &**method {
                "notifications/cancelled" => self.daemon_cancels(*params, line),
                "notifications/subscriptions/acknowledged" => self.daemon_promises(*params, line),
                "notifications/tools/list_changed" => {
                    self.tools.forget();
                    Verdict::Pass
                }
                _ => Verdict::Pass,
            },
            Some(Message::Answer { id: None, .. }) | None => Verdict::Pass,
        }
    }

    fn daemon_answers(&mut self, id: &str, outcome: Outcome<'_>) -> Verdict {
        if id.starts_with(OWN_PREFIX)
            && let Some(own) = self.own.remove(id)
        {
            return match own {
                Own::Greeting => Verdict::Greeted(self.judge_greeting(outcome)),
                Own::Repeated => Verdict::Swallow,
            };
        }
        if let Some(open) = self.open.remove(id)
            && let Outcome::Result(result) = outcome
        {
            self.grant(open, result);
        }
        Verdict::Pass
    }

    /// Notes what a granted request has changed for as long as the conversation lasts.
    fn grant(&mut self, open: Open, result: &str) {
        match (open.ask, open.text) {
            (Ask::Initialize, Some(line)) => {
                let version = version_in(result);
                // The next daemon is asked for what was agreed on: the server that chose it may
                // be down by then.
                let agreed = version.as_deref().and_then(|it| ask_for_revision(&line, it));
                self.handshake = Some(Handshake { line: agreed.unwrap_or(line), version });
            }
            (Ask::SetLevel, Some(line)) => self.level = Some(line),
            (Ask::Subscribe(uri), Some(line)) => {
                let has_room = self.subscriptions.len() < MAX_SUBSCRIPTIONS;
                if has_room || self.subscriptions.contains_key(&uri) {
                    self.subscriptions.insert(uri, line);
                }
            }
            (Ask::Unsubscribe(uri), _) => {
                self.subscriptions.remove(&uri);
            }
            (Ask::ListTools { is_first_page }, _) => self.tools.learn(result, is_first_page),
            _ => {}
        }
    }

    /// A new daemon must grant what the old one did, or the client would be misled.
    fn judge_greeting(&self, outcome: Outcome<'_>) -> Result<(), String> {
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
            "it speaks MCP {} with this client, and {} was agreed on before",
            shown(now.as_deref()),
            shown(agreed)
        ))
    }

    fn daemon_asks(&mut self, id: &str, line: &[u8]) -> Verdict {
        // It may be asked for any of the open calls: to ask again is to do something twice.
        self.open.forbid_repeats();
        if self.asked.len() >= MAX_ASKED {
            return Verdict::Pass;
        }
        if !self.stale.contains(id) {
            self.asked.insert(id.to_owned());
            return Verdict::Pass;
        }
        // The client may still answer the old one, and nobody could tell which it means.
        let ours = self.new_id();
        let renamed = same_with_id(line, id, &ours);
        self.asked.insert(ours.clone());
        self.renamed.insert(ours, id.to_owned());
        Verdict::Replace(renamed)
    }

    fn daemon_cancels(&mut self, params: Option<&str>, line: &[u8]) -> Verdict {
        let Some(id) = request_id(params) else {
            return Verdict::Pass;
        };
        let renamed = self.renamed.iter().find(|(_, theirs)| *theirs == id);
        let Some(ours) = renamed.map(|(ours, _)| ours.clone()) else {
            // If it has not asked this itself, it ends what the client listens to.
            if !self.asked.remove(id) && self.open.listening(id).is_some() {
                self.open.remove(id);
            }
            return Verdict::Pass;
        };
        self.asked.remove(&ours);
        self.renamed.remove(&ours);
        Verdict::Replace(same_with_id(line, id, &ours))
    }

    /// A daemon says what it will tell whoever listens. The client hears that once; after
    /// another daemon's word it hears instead what it may have missed between the two.
    fn daemon_promises(&mut self, params: Option<&str>, line: &[u8]) -> Verdict {
        let Some((id, promise)) = listen::promise_in(params) else {
            return Verdict::Pass;
        };
        let Some(listening) = self.open.listening(id) else {
            return Verdict::Pass;
        };
        let told = listening.acknowledged(promise);
        let mut lines = Vec::new();
        if told.promise {
            lines.extend_from_slice(line);
        }
        for list in &told.missed {
            listen::changed(list, id, &mut lines);
        }
        match (told.promise, told.missed.is_empty()) {
            (true, true) => Verdict::Pass,
            (false, true) => Verdict::Swallow,
            (_, false) => Verdict::Replace(lines),
        }
    }

    /// The connection is gone. Answers what the client must hear: the requests whose outcome
    /// nobody knows, and that the daemon's own are void.
    pub(super) fn lost(&mut self, cause: &str) -> Vec<u8> {
        self.own.clear();
        self.renamed.clear();
        let mut told = Vec::new();
        for open in self.open.take_unrepeatable() {
            let error = match open.ask {
                Ask::Listen(_) => listens_no_more(),
                _ => outcome_unknown(),
            };
            error_answer(&open.id, &error.cause(cause), &mut told);
        }
        for listening in self.open.all_listening() {
            listening.lost();
        }
        for id in self.asked.drain() {
            cancelled(&id, "the daemon that asked has gone", &mut told);
            if self.stale.len() < MAX_ASKED {
                self.stale.insert(id);
            }
        }
        told
    }

    /// What a new daemon must hear first and answer before anything else is said; `None` if
    /// no handshake stands.
    pub(super) fn greeting(&mut self) -> Option<Vec<u8>> {
        self.own.clear();
        let line = self.handshake.as_ref()?.line.clone();
        Some(self.repeated(&line, Own::Greeting))
    }

    /// What a new daemon must hear before the client's next words.
    pub(super) fn replay(&mut self) -> Vec<u8> {
        let mut said = Vec::new();
        if self.handshake.is_some() {
            if self.initialized_at.is_some() {
                said.extend_from_slice(INITIALIZED.as_bytes());
            }
            let standing: Vec<Vec<u8>> =
                self.level.iter().chain(self.subscriptions.values()).cloned().collect();
            for line in standing {
                said.extend_from_slice(&self.repeated(&line, Own::Repeated));
            }
        }
        for line in self.open.texts() {
            said.extend_from_slice(line);
            said.push(b'\n');
        }
        self.open.forbid_repeats(); // A call is sent again once.
        self.tools.forget(); // The client is told that the lists may have changed.
        said
    }

    /// What the client is told once the new daemon has heard it all.
    pub(super) fn news_of_a_new_daemon(&self) -> &'static str {
        // Without a handshake, news come only to who has asked for them.
        if self.handshake.is_some() && self.initialized_at.is_some() { LISTS_CHANGED } else { "" }
    }

    /// Whether the client waits for an answer.
    pub(super) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Gives up: an answer to everything that is open.
    pub(super) fn abandon(&mut self, why: &CallError) -> Vec<u8> {
        let mut told = Vec::new();
        for open in self.open.take_all() {
            error_answer(&open.id, why, &mut told);
        }
        told
    }

    /// The client leaves. Answers what the daemon must hear: what listens is never answered,
    /// and would be waited for.
    pub(super) fn leave(&mut self) -> Vec<u8> {
        let mut said = Vec::new();
        for open in self.open.take_listens() {
            cancelled(&open.id, "the client has left", &mut said);
        }
        said
    }

    /// A request of the client's with an id of ours, and its line's end.
    fn repeated(&mut self, line: &[u8], own: Own) -> Vec<u8> {
        let id = self.new_id();
        let mut said = match xy_mcp::envelope::parse(line) {
            Ok(Message::Request { id: theirs, .. }) => {
                let mut edits = Edits::of(line);
                edits.replace(theirs, id.as_str());
                edits.to_vec()
            }
            _ => unreachable!("only requests are remembered"),
        };
        said.push(b'\n');
        self.own.insert(id, own);
        said
    }

    fn new_id(&mut self) -> String {
        self.own_count += 1;
        format!("{OWN_PREFIX}{}\"", self.own_count)
    }
}

fn outcome_unknown() -> CallError {
    let what = "outcome unknown: the daemon went away before it answered";
    CallError::new(ErrorKind::OutcomeUnknown, what)
        .hint("it may have been done: look before you repeat it")
}

/// For a listen that could not be kept.
fn listens_no_more() -> CallError {
    let what = "nothing more is told: the daemon went away, and this was too much to ask the next";
    CallError::new(ErrorKind::NotRunning, what).hint("listen again")
}

fn refusal(id: &str, refused: &Refused) -> Vec<u8> {
    let error = match refused {
        Refused::TooMany(most) => CallError::new(
            ErrorKind::QueueFull,
            format!("{most} requests are open, which is the most there may be"),
        ),
        Refused::IdTooLong(most) => CallError::new(
            ErrorKind::InvalidRequest,
            format!("the id has more than {most} bytes, which is the most it may have"),
        ),
    };
    let mut line = Vec::new();
    error_answer(id, &error, &mut line);
    line
}

/// Which request a `notifications/cancelled` is about, as it is written.
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
    struct Initialized {
        #[serde(rename = "protocolVersion")]
        protocol_version: String,
    }
    let result: Initialized = serde_json::from_str(result).ok()?;
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
