//! Decides which question to send next to find out which era a server speaks. Pure.
//!
//! A server is asked `server/discover`, which legacy servers do not know. Some of them refuse it,
//! in one way or another, and some do not answer at all. Then `initialize` is sent too. A late
//! answer to the first question still counts, since a slowly starting server gets both.
//!
//! `initialize` can pin a process to the legacy era, and some SDKs then answer modern requests
//! wrongly without an error. Once a process was sent `initialize`, only a refusal of it makes the
//! answer to `server/discover` count.
//!
//! An unknown server is asked both questions, to learn which eras it speaks.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use xy_mcp::envelope::{self, Message, Outcome};
use xy_mcp::era::{Era, Introduction, Introductions, SpokenEras};
use xy_mcp::modern::{HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION};
use xy_mcp::revision::{LATEST, MODERN, VERSIONS};
use xy_mcp::via;

use super::http_client::SessionError;
use super::response::{ErrorObject, code_of};

/// Maximum time between the answers to `server/discover` and to `initialize`.
pub(crate) const INITIALIZE_TIMEOUT: Duration = Duration::from_secs(5);

const INVALID_PARAMS: i64 = -32602;

/// The two questions that begin a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hello {
    /// `server/discover`, in the modern era.
    Discover,
    /// `initialize`, in the legacy era.
    Initialize,
}

/// The interpretation of an answer to one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeAnswer {
    /// The server speaks this era.
    Accepted(Introduction),
    /// The server refused the question, or does not speak this era.
    Refused(SessionError),
    /// A refusal of `initialize` in any revision: the process may be pinned to the modern era.
    Pinned(SessionError),
    /// A refusal of the requested revision that names another legacy revision that xy knows.
    OtherRevision {
        /// The legacy revision.
        revision: &'static str,
        /// True if the refusal also names a modern revision.
        is_modern_named: bool,
        /// The refusal.
        error: SessionError,
    },
    /// An answer that cannot be parsed.
    Unreadable(SessionError),
    /// The server can be used in neither era.
    Fatal(SessionError),
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    /// Ask this question too.
    Ask(Hello),
    /// Send `initialize` with this revision.
    AskIn(&'static str),
    /// Wait for an open question.
    Wait,
    /// Wait for an open question, at most this long.
    WaitAtMost(Duration),
    /// Use the server in the era of this introduction.
    Open(Introduction),
    /// Give up the server.
    GiveUp(SessionError),
}

/// The state of both questions.
#[derive(Debug)]
pub(crate) struct ProbeState {
    discover: QuestionState,
    initialize: QuestionState,
    /// One process gets both questions, so that `initialize` can pin it to an era.
    is_one_process: bool,
    /// The revisions that `initialize` was sent with; each is tried once.
    tried: Vec<&'static str>,
    /// A revision that the server has named, and whether it has named the modern one too.
    named: Option<(&'static str, bool)>,
    /// Both questions are asked, to learn which eras the server speaks.
    learns: bool,
    /// The question that was asked first.
    first: Option<Hello>,
    /// The eras that the server has shown to speak, or not to speak.
    eras: SpokenEras,
    /// The server's introduction in each era.
    introductions: Introductions,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum QuestionState {
    #[default]
    Unasked,
    Open,
    /// `server/discover` was answered, and the answer to `initialize` decides.
    Held(Introduction),
    Failed(SessionError),
    /// The answer cannot be parsed.
    Unreadable(SessionError),
}

impl Hello {
    /// Returns the question of an era.
    pub fn of(era: Era) -> Self {
        match era {
            Era::Legacy => Self::Initialize,
            Era::Modern => Self::Discover,
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Discover => Self::Initialize,
            Self::Initialize => Self::Discover,
        }
    }

    /// Interprets an answer to this question.
    pub fn read(self, answer: &str) -> ProbeAnswer {
        if via::is_refusal(code_of(answer.as_bytes()), answer) {
            return ProbeAnswer::Fatal(SessionError::Loop);
        }
        match self {
            Self::Discover => discovered(answer),
            Self::Initialize => initialized(answer),
        }
    }
}

impl ProbeState {
    /// Creates the state before any question. `is_one_process` tells whether one process gets all
    /// questions, and `learns` whether it is asked in both eras.
    pub(crate) fn new(is_one_process: bool, learns: bool) -> Self {
        Self {
            discover: QuestionState::Unasked,
            initialize: QuestionState::Unasked,
            is_one_process,
            tried: Vec::new(),
            named: None,
            learns,
            first: None,
            eras: SpokenEras::default(),
            introductions: Introductions::default(),
        }
    }

    /// Returns what the server said of itself in each era.
    pub(crate) fn introductions(&self) -> Introductions {
        self.introductions.clone()
    }

    /// Returns the eras that the server has shown to speak, or not to speak.
    pub(crate) fn eras(&self) -> SpokenEras {
        self.eras
    }

    /// Records which eras an answer shows. A process that was asked the other question before may
    /// refuse this one only for that reason.
    fn record(&mut self, of: Hello, answer_kind: &ProbeAnswer) {
        if let ProbeAnswer::Accepted(introduction) = answer_kind {
            self.introductions.set(introduction.clone());
        }
        let shown = match answer_kind {
            ProbeAnswer::Accepted(_) => Some(true),
            ProbeAnswer::Fatal(_) | ProbeAnswer::Refused(SessionError::Failing(_)) => None,
            ProbeAnswer::Pinned(_) | ProbeAnswer::OtherRevision { .. }
                if self.first == Some(Hello::Discover)
                    && matches!(self.discover, QuestionState::Held(_)) =>
            {
                None
            }
            ProbeAnswer::Refused(_)
            | ProbeAnswer::Pinned(_)
            | ProbeAnswer::OtherRevision { .. }
            | ProbeAnswer::Unreadable(_) => {
                let is_pinned = of == Hello::Discover
                    && self.is_one_process
                    && self.first == Some(Hello::Initialize);
                (!is_pinned).then_some(false)
            }
        };
        match of {
            Hello::Discover => self.eras.modern = shown.or(self.eras.modern),
            Hello::Initialize => self.eras.legacy = shown.or(self.eras.legacy),
        }
    }

    /// Records that a question is sent now.
    pub(crate) fn record_asked(&mut self, hello: Hello) {
        self.first.get_or_insert(hello);
        match hello {
            Hello::Discover => self.discover = QuestionState::Open,
            Hello::Initialize => self.record_asked_in(LATEST),
        }
    }

    /// Records that `initialize` is sent with this revision now.
    pub(crate) fn record_asked_in(&mut self, revision: &'static str) {
        self.initialize = QuestionState::Open;
        self.tried.push(revision);
    }

    /// Decides what follows from an answer.
    pub(crate) fn on_answer(&mut self, of: Hello, answer_kind: ProbeAnswer) -> Next {
        self.record(of, &answer_kind);
        match (of, answer_kind) {
            (Hello::Discover, ProbeAnswer::Accepted(introduction)) => self.discovered(introduction),
            (Hello::Initialize, ProbeAnswer::Accepted(introduction)) => Next::Open(introduction),
            (_, ProbeAnswer::Fatal(SessionError::Loop)) => Next::GiveUp(SessionError::Loop),
            (Hello::Initialize, answer_kind) if matches!(self.discover, QuestionState::Held(_)) => {
                self.not_initialized(answer_kind)
            }
            (of, ProbeAnswer::Fatal(error)) if *self.state(of.other()) != QuestionState::Open => {
                Next::GiveUp(error)
            }
            (
                of,
                ProbeAnswer::Fatal(error)
                | ProbeAnswer::Refused(error)
                | ProbeAnswer::Pinned(error),
            ) => {
                *self.state(of) = QuestionState::Failed(error);
                self.next()
            }
            (of, ProbeAnswer::Unreadable(error)) => {
                *self.state(of) = QuestionState::Unreadable(error);
                self.next()
            }
            (of, ProbeAnswer::OtherRevision { revision, is_modern_named, error }) => {
                *self.state(of) = QuestionState::Failed(error);
                self.named = Some((revision, is_modern_named));
                self.next()
            }
        }
    }

    /// Decides what follows from a successful `server/discover`.
    fn discovered(&mut self, introduction: Introduction) -> Next {
        match &self.initialize {
            QuestionState::Open if self.is_one_process => {
                self.discover = QuestionState::Held(introduction);
                Next::WaitAtMost(INITIALIZE_TIMEOUT)
            }
            QuestionState::Unreadable(error) if self.is_one_process => unsettled(error.clone()),
            QuestionState::Unasked if self.is_one_process && self.learns => {
                self.discover = QuestionState::Held(introduction);
                Next::Ask(Hello::Initialize)
            }
            _ => Next::Open(introduction),
        }
    }

    /// Decides what follows from a failed `initialize` after a successful `server/discover`.
    fn not_initialized(&mut self, answer_kind: ProbeAnswer) -> Next {
        match (answer_kind, std::mem::take(&mut self.discover)) {
            // The process is not pinned to the legacy era.
            (
                ProbeAnswer::Refused(_)
                | ProbeAnswer::Pinned(_)
                | ProbeAnswer::OtherRevision { .. },
                QuestionState::Held(introduction),
            ) => Next::Open(introduction),
            (ProbeAnswer::Fatal(error) | ProbeAnswer::Unreadable(error), _) => unsettled(error),
            _ => Next::Wait,
        }
    }

    /// Returns the revision that the server has named, if `initialize` is worth another try.
    fn other_revision(&self) -> Option<&'static str> {
        let (revision, is_modern_named) = self.named?;
        let is_modern_refused =
            matches!(self.discover, QuestionState::Failed(_) | QuestionState::Unreadable(_));
        let is_wanted = is_modern_refused || !is_modern_named;
        let is_new = self.initialize != QuestionState::Open && !self.tried.contains(&revision);
        (is_wanted && is_new).then_some(revision)
    }

    fn next(&self) -> Next {
        use QuestionState::{Failed, Unasked, Unreadable};
        if let Some(revision) = self.other_revision() {
            return Next::AskIn(revision);
        }
        match (&self.discover, &self.initialize) {
            (Failed(_) | Unreadable(_), Unasked) => Next::Ask(Hello::Initialize),
            (Unasked, Unreadable(error)) if self.is_one_process => unsettled(error.clone()),
            (Unasked, Failed(_) | Unreadable(_)) => Next::Ask(Hello::Discover),
            // A server whose answer cannot be parsed may know no other.
            (
                Failed(SessionError::Hopeless(one)) | Unreadable(SessionError::Hopeless(one)),
                Failed(SessionError::Hopeless(other)) | Unreadable(SessionError::Hopeless(other)),
            ) => Next::GiveUp(SessionError::Hopeless(format!("{one}; {other}"))),
            // A temporary failure is the better reason.
            (Failed(it @ SessionError::Failing(_)), Failed(_) | Unreadable(_))
            | (Failed(_) | Unreadable(_), Failed(it) | Unreadable(it)) => Next::GiveUp(it.clone()),
            _ => Next::Wait, // A question is still open.
        }
    }

    /// Decides what to do if no answer has come for a while.
    pub(crate) fn on_timeout(&self) -> Next {
        match (&self.discover, &self.initialize) {
            (QuestionState::Open, QuestionState::Unasked) => Next::Ask(Hello::Initialize),
            (QuestionState::Unasked, QuestionState::Open) if self.learns => {
                Next::Ask(Hello::Discover)
            }
            (QuestionState::Held(_), QuestionState::Open) => {
                let why = format!("it has not answered `initialize` within {INITIALIZE_TIMEOUT:?}");
                unsettled(SessionError::Hopeless(why))
            }
            _ => Next::Wait,
        }
    }

    /// Returns true if `server/discover` succeeded and `initialize` decides.
    pub(crate) fn is_discovered(&self) -> bool {
        matches!(self.discover, QuestionState::Held(_))
    }

    fn state(&mut self, hello: Hello) -> &mut QuestionState {
        match hello {
            Hello::Discover => &mut self.discover,
            Hello::Initialize => &mut self.initialize,
        }
    }
}

/// Gives up a process whose era is unknown.
fn unsettled(error: SessionError) -> Next {
    let why = error.words();
    Next::GiveUp(SessionError::Hopeless(format!(
        "{why}; it may now speak either era of MCP, and only another process can be asked again"
    )))
}

#[derive(Deserialize)]
struct Error {
    #[serde(default)]
    code: Value,
    #[serde(default)]
    data: Value,
}

fn discovered(answer: &str) -> ProbeAnswer {
    match envelope::parse(answer.as_bytes()) {
        Ok(Message::Response { outcome: Outcome::Result(result), .. }) => of_result(result),
        Ok(Message::Response { outcome: Outcome::Error(error), .. }) => of_error(error),
        _ => ProbeAnswer::Refused(SessionError::Refused("it is not a valid response".to_owned())),
    }
}

fn of_result(result: &str) -> ProbeAnswer {
    match Introduction::discovered(result) {
        Ok(introduction) => ProbeAnswer::Accepted(introduction),
        Err(why) => {
            let result: Value = serde_json::from_str(result).unwrap_or_default();
            match result.get("supportedVersions").and_then(versions) {
                // The server speaks an older revision too.
                Some(supported) => named(&supported, SessionError::Refused(why.clone()))
                    .unwrap_or(ProbeAnswer::Fatal(SessionError::Hopeless(why))),
                // A server that answers anything with something.
                None => ProbeAnswer::Refused(SessionError::Refused(why)),
            }
        }
    }
}

fn of_error(text: &str) -> ProbeAnswer {
    let refused = format!("it refused `server/discover`: {}", ErrorObject::words(text));
    let Ok(error) = serde_json::from_str::<Error>(text) else {
        return ProbeAnswer::Refused(SessionError::Refused(refused));
    };
    match error.code.as_i64() {
        Some(UNSUPPORTED_VERSION) => {
            let supported = error.data.get("supported").and_then(versions).unwrap_or_default();
            if let Some(answer_kind) = named(&supported, SessionError::Refused(refused.clone())) {
                return answer_kind;
            }
            let is_unknown = !supported.is_empty() && !supported.iter().any(|it| it == MODERN);
            let unknown = || xy_mcp::era::unknown(&supported.join(", "));
            ProbeAnswer::Fatal(SessionError::Hopeless(if is_unknown { unknown() } else { refused }))
        }
        Some(HEADER_MISMATCH | MISSING_CAPABILITY) => {
            ProbeAnswer::Fatal(SessionError::Hopeless(refused))
        }
        _ => ProbeAnswer::Refused(SessionError::Refused(refused)),
    }
}

fn versions(list: &Value) -> Option<Vec<String>> {
    let list = list.as_array()?;
    Some(list.iter().filter_map(|it| it.as_str().map(str::to_owned)).collect())
}

/// Interprets a refusal that names revisions: finds the latest legacy one that xy knows.
fn named(supported: &[String], error: SessionError) -> Option<ProbeAnswer> {
    let is_named = |known: &str| supported.iter().any(|it| it == known);
    let revision = VERSIONS.into_iter().rfind(|known| is_named(known))?;
    Some(ProbeAnswer::OtherRevision { revision, is_modern_named: is_named(MODERN), error })
}

fn initialized(answer: &str) -> ProbeAnswer {
    let result = match super::result_of(answer) {
        Ok(result) => result,
        Err(error) => {
            let error = SessionError::Hopeless(format!("it refused `initialize`: {error}"));
            let is_pinned = code_of(answer.as_bytes()) == Some(UNSUPPORTED_VERSION);
            let refused = if is_pinned { ProbeAnswer::Pinned } else { ProbeAnswer::Refused };
            return other_revision(answer, &error).unwrap_or_else(|| refused(error));
        }
    };
    match Introduction::read(result) {
        Ok(introduction) => ProbeAnswer::Accepted(introduction),
        Err(why) => ProbeAnswer::Unreadable(SessionError::Hopeless(why)),
    }
}

/// Interprets an error of `initialize` that names the supported revisions.
fn other_revision(answer: &str, cause: &SessionError) -> Option<ProbeAnswer> {
    let Ok(Message::Response { outcome: Outcome::Error(error), .. }) =
        envelope::parse(answer.as_bytes())
    else {
        return None;
    };
    let error = serde_json::from_str::<Error>(error).ok()?;
    // The legacy revisions have no code of their own for it.
    let is_it = matches!(error.code.as_i64(), Some(UNSUPPORTED_VERSION | INVALID_PARAMS));
    let supported = error.data.get("supported").and_then(versions).filter(|_| is_it)?;
    named(&supported, cause.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(result: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#)
    }

    fn error(code: i64, data: &str) -> String {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"no","data":{data}}}}}"#
        )
    }

    fn modern() -> Introduction {
        Introduction::discovered(r#"{"supportedVersions":["2026-07-28"]}"#).unwrap()
    }

    fn legacy() -> Introduction {
        Introduction::read(r#"{"protocolVersion":"2025-06-18"}"#).unwrap()
    }

    fn word(answer_kind: &ProbeAnswer) -> &'static str {
        match answer_kind {
            ProbeAnswer::Accepted(_) => "good",
            ProbeAnswer::Refused(_) => "no",
            ProbeAnswer::Pinned(_) => "pinned",
            ProbeAnswer::OtherRevision { revision, .. } => revision,
            ProbeAnswer::Unreadable(_) => "unreadable",
            ProbeAnswer::Fatal(_) => "never",
        }
    }

    #[test]
    fn probe_answers_are_classified() {
        for (answer, expected) in [
            (result(r#"{"supportedVersions":["2026-07-28"],"capabilities":{}}"#), "good"),
            (result(r#"{"supportedVersions":["2025-11-25","2026-07-28"]}"#), "good"),
            (result(r#"{"supportedVersions":["2027-01-01","2025-11-25"]}"#), "2025-11-25"),
            (result(r#"{"supportedVersions":["2025-03-26","2024-11-05"]}"#), "2025-03-26"),
            (result(r#"{"supportedVersions":[]}"#), "never"),
            (result(r#"{"supportedVersions":["2027-01-01"]}"#), "never"),
            (result(r#"{"supportedVersions":7}"#), "no"),
            (result("{}"), "no"),
            (result("[]"), "no"),
            (error(-32601, "null"), "no"),
            (error(-32602, "null"), "no"),
            (error(-32600, "null"), "no"),
            (error(-32603, "null"), "no"),
            (error(-32000, "null"), "no"),
            (error(0, "null"), "no"),
            (error(-32020, "null"), "never"),
            (error(-32021, r#"{"requiredCapabilities":{"roots":{}}}"#), "never"),
            (error(-32022, r#"{"supported":["2027-01-01"]}"#), "never"),
            (error(-32022, r#"{"supported":["2027-01-01","2025-11-25"]}"#), "2025-11-25"),
            (error(-32022, r#"{"supported":["2026-07-28","2025-03-26"]}"#), "2025-03-26"),
            (error(-32022, r#"{"supported":["2026-07-28"]}"#), "never"),
            (error(-32022, "null"), "never"),
            (error(-32025, r#"{"xy.daemon/loop":true}"#), "never"),
            (error(-32025, "null"), "no"),
            (r#"{"jsonrpc":"2.0","id":1,"error":"no"}"#.to_owned(), "no"),
            (r#"{"jsonrpc":"2.0","id":1,"error":{"code":"x"}}"#.to_owned(), "no"),
            ("nothing".to_owned(), "no"),
        ] {
            assert_eq!(word(&Hello::Discover.read(&answer)), expected, "{answer}");
        }
    }

    #[test]
    fn unsupported_revisions_are_named() {
        let answer = error(-32022, r#"{"supported":["2027-01-01"]}"#);
        let ProbeAnswer::Fatal(SessionError::Hopeless(why)) = Hello::Discover.read(&answer) else {
            panic!()
        };
        assert!(why.contains("`2027-01-01`") && why.contains(MODERN), "{why}");
    }

    fn refused_with(why: &str) -> ProbeAnswer {
        ProbeAnswer::Refused(SessionError::Refused(why.to_owned()))
    }

    fn refused(why: &str) -> SessionError {
        SessionError::Refused(why.to_owned())
    }

    /// Plays a story: the first question, then each event and the expected next step.
    fn play(first: Hello, story: &[(Option<(Hello, ProbeAnswer)>, Next)]) {
        play_with(ProbeState::new(true, false), first, story);
    }

    fn play_with(
        mut probe: ProbeState,
        first: Hello,
        story: &[(Option<(Hello, ProbeAnswer)>, Next)],
    ) {
        probe.record_asked(first);
        for (event, expected) in story {
            let next = match event.clone() {
                Some((of, answer_kind)) => probe.on_answer(of, answer_kind),
                None => probe.on_timeout(),
            };
            assert_eq!(next, *expected, "{event:?} of {story:?}");
            if let Next::Ask(hello) = next {
                probe.record_asked(hello);
            }
        }
    }

    #[test]
    fn probe_sequence() {
        use Hello::{Discover, Initialize};
        let discovered = || Some((Discover, ProbeAnswer::Accepted(modern())));
        let initialized = || Some((Initialize, ProbeAnswer::Accepted(legacy())));
        let no_discover = || Some((Discover, refused_with("d")));
        let no_initialize = || Some((Initialize, refused_with("i")));
        let never = || Some((Discover, ProbeAnswer::Fatal(refused("never"))));
        let late = || None;
        let ask = Next::Ask;
        let (open, give_up) = (Next::Open, |why| Next::GiveUp(refused(why)));

        play(Discover, &[(discovered(), open(modern()))]);
        play(Discover, &[(no_discover(), ask(Initialize)), (initialized(), open(legacy()))]);
        play(Discover, &[(no_discover(), ask(Initialize)), (no_initialize(), give_up("i"))]);
        play(Discover, &[(never(), give_up("never"))]);
        // A silent or a slow server.
        play(Discover, &[(late(), ask(Initialize)), (initialized(), open(legacy()))]);
        let settles = || Next::WaitAtMost(INITIALIZE_TIMEOUT);
        play(
            Discover,
            &[
                (late(), ask(Initialize)),
                (discovered(), settles()),
                (initialized(), open(legacy())),
            ],
        );
        play(
            Discover,
            &[
                (late(), ask(Initialize)),
                (discovered(), settles()),
                (no_initialize(), open(modern())),
            ],
        );
        // Over HTTP each request stands for itself.
        play_with(
            ProbeState::new(false, false),
            Discover,
            &[(late(), ask(Initialize)), (discovered(), open(modern()))],
        );
        play(
            Discover,
            &[
                (late(), ask(Initialize)),
                (no_initialize(), Next::Wait),
                (discovered(), open(modern())),
            ],
        );
        play(
            Discover,
            &[
                (late(), ask(Initialize)),
                (no_discover(), Next::Wait),
                (initialized(), open(legacy())),
            ],
        );
        play(
            Discover,
            &[(late(), ask(Initialize)), (never(), Next::Wait), (no_initialize(), give_up("i"))],
        );
        play(Discover, &[(late(), ask(Initialize)), (late(), Next::Wait)]);
        // The remembered era is right, or not any more.
        play(Initialize, &[(late(), Next::Wait), (initialized(), open(legacy()))]);
        play(Initialize, &[(no_initialize(), ask(Discover)), (discovered(), open(modern()))]);
        play(Initialize, &[(no_initialize(), ask(Discover)), (no_discover(), give_up("i"))]);
        play(Initialize, &[(no_initialize(), ask(Discover)), (never(), give_up("never"))]);
    }

    #[test]
    fn process_with_unclear_pinned_era_is_given_up() {
        use Hello::{Discover, Initialize};
        let garbled = || ProbeAnswer::Unreadable(refused("garbled"));
        let gone = || ProbeAnswer::Fatal(refused("gone"));
        let good = || ProbeAnswer::Accepted(modern());
        for story in [
            vec![Some((Discover, good())), Some((Initialize, garbled()))],
            vec![Some((Discover, good())), Some((Initialize, gone()))],
            vec![Some((Discover, good())), None],
            vec![Some((Initialize, garbled())), Some((Discover, good()))],
        ] {
            let mut probe = ProbeState::new(true, false);
            probe.record_asked(Discover);
            probe.record_asked(Initialize);
            let (last, first) = story.split_last().unwrap();
            let mut play = |event: &Option<(Hello, ProbeAnswer)>| match event.clone() {
                Some((of, answer_kind)) => probe.on_answer(of, answer_kind),
                None => probe.on_timeout(),
            };
            for event in first {
                assert!(matches!(play(event), Next::Wait | Next::WaitAtMost(_)), "{story:?}");
            }
            let Next::GiveUp(SessionError::Hopeless(why)) = play(last) else { panic!("{story:?}") };
            assert!(why.contains("either era"), "{why}");
        }
        let unknown = result(r#"{"protocolVersion":"2099-01-01"}"#);
        assert_eq!(word(&Initialize.read(&unknown)), "unreadable");
        assert_eq!(word(&Initialize.read(&error(-32022, "null"))), "pinned");
    }

    #[test]
    fn temporary_failure_is_reported_as_retryable() {
        let mut probe = ProbeState::new(true, false);
        probe.record_asked(Hello::Discover);
        let failing = SessionError::Failing("503".to_owned());
        let next = probe.on_answer(Hello::Discover, ProbeAnswer::Refused(failing.clone()));
        assert_eq!(next, Next::Ask(Hello::Initialize));
        probe.record_asked(Hello::Initialize);
        assert_eq!(probe.on_answer(Hello::Initialize, refused_with("400")), Next::GiveUp(failing));
    }

    #[test]
    fn error_code_is_read() {
        assert_eq!(code_of(error(-32020, "null").as_bytes()), Some(-32020));
        assert_eq!(code_of(result("{}").as_bytes()), None);
    }
}
