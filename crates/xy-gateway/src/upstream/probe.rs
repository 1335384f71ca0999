//! Finding out which era a server speaks: what to ask it next, from what it has said. Pure.
//!
//! A server is asked for `backend/discover`, which those with `initialize` do not know. Some of
//! these refuse it in one way or another, some say nothing at all; then they are greeted with
//! `initialize`. What was asked first is not forgotten meanwhile, since a server that starts
//! slowly finds both.
//!
//! `initialize` can pin a process to the older revisions, and some SDKs then answer modern
//! requests wrongly without an error. So once a process has been sent `initialize`, only a
//! refusal of it makes the answer to `backend/discover` count.
//!
//! A server of which nothing is known is asked both questions, to learn which eras it speaks.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use xy_mcp::envelope::{self, Message, Outcome};

use super::http_client::Trouble;
use super::response::SaidError;
use crate::backend::{Introductions, SpokenEras};
use crate::era::{Era, Introduction, LATEST, MODERN, VERSIONS};
use crate::modern::{HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION};
use crate::via;

/// How long a server may leave `initialize` unanswered after it has answered `backend/discover`.
pub(crate) const SETTLES_WITHIN: Duration = Duration::from_secs(5);

const INVALID_PARAMS: i64 = -32602;

/// The two ways to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hello {
    /// As the revision without sessions has it.
    Discover,
    /// As all before it do.
    Initialize,
}

/// What came of one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Came {
    /// That is how it is spoken with.
    Good(Introduction),
    /// It is not, for this reason.
    No(Trouble),
    /// A refusal of `initialize` in any revision: the process may be pinned to the modern era.
    Pinned(Trouble),
    /// A refusal of the revision that was asked in, which names another one of ours that begins
    /// with `initialize`.
    Other { revision: &'static str, is_modern_named: bool, trouble: Trouble },
    /// An answer that cannot be read, for this reason.
    Unreadable(Trouble),
    /// It is not, and not in the other way either.
    Never(Trouble),
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    /// Ask this too.
    Ask(Hello),
    /// Ask `initialize` in this revision.
    AskIn(&'static str),
    /// What was asked may still be answered.
    Wait,
    /// Wait for the answer at most this long.
    WaitAtMost(Duration),
    /// That is how it is spoken with.
    Open(Introduction),
    /// It is not spoken with, for this reason.
    GiveUp(Trouble),
}

/// What was asked, and what came of it.
#[derive(Debug)]
pub(crate) struct Asked {
    discover: ProbeFate,
    initialize: ProbeFate,
    /// Whether one process hears both, so that `initialize` can pin it to an era.
    is_one_process: bool,
    /// The revisions in which `initialize` was asked; each is asked once.
    tried: Vec<&'static str>,
    /// A revision that the server has named, and whether it has named the newer era too.
    named: Option<(&'static str, bool)>,
    /// Both questions are asked, to learn which eras the server speaks.
    learns: bool,
    /// The question that was asked first.
    first: Option<Hello>,
    /// The eras that the server has shown to speak, or not to.
    eras: SpokenEras,
    /// What it said of itself in each.
    introductions: Introductions,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum ProbeFate {
    #[default]
    Unasked,
    Open,
    /// `backend/discover` was answered, and `initialize` is still to be.
    Held(Introduction),
    Vain(Trouble),
    /// It has an answer that cannot be read.
    Unreadable(Trouble),
}

impl Hello {
    /// Returns how to begin in an era.
    pub(crate) fn of(era: Era) -> Self {
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

    /// What an answer to it means.
    pub(crate) fn read(self, answer: &str) -> Came {
        if via::is_refusal(code_of(answer.as_bytes()), answer) {
            return Came::Never(Trouble::Loop);
        }
        match self {
            Self::Discover => discovered(answer),
            Self::Initialize => initialized(answer),
        }
    }
}

impl Asked {
    /// Nothing has been asked. `is_one_process` says whether one process hears all questions,
    /// `learns` whether it is asked in both eras.
    pub(crate) fn nothing(is_one_process: bool, learns: bool) -> Self {
        Self {
            discover: ProbeFate::Unasked,
            initialize: ProbeFate::Unasked,
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

    /// Returns the eras that the server has shown to speak, or not to.
    pub(crate) fn eras(&self) -> SpokenEras {
        self.eras
    }

    /// Records what an answer shows. A process that was asked something else before may refuse
    /// a question only for that.
    fn note(&mut self, of: Hello, came: &Came) {
        if let Came::Good(introduction) = came {
            self.introductions.set(introduction.clone());
        }
        let shown = match came {
            Came::Good(_) => Some(true),
            Came::Never(_) | Came::No(Trouble::Failing(_)) => None,
            Came::Pinned(_) | Came::Other { .. } if matches!(self.discover, ProbeFate::Held(_)) => {
                None
            }
            Came::No(_) | Came::Pinned(_) | Came::Other { .. } | Came::Unreadable(_) => {
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

    /// It is asked now.
    pub(crate) fn ask(&mut self, hello: Hello) {
        self.first.get_or_insert(hello);
        match hello {
            Hello::Discover => self.discover = ProbeFate::Open,
            Hello::Initialize => self.ask_in(LATEST),
        }
    }

    /// Notes that `initialize` is asked in this revision now.
    pub(crate) fn ask_in(&mut self, revision: &'static str) {
        self.initialize = ProbeFate::Open;
        self.tried.push(revision);
    }

    /// Decides what one answer means.
    pub(crate) fn came(&mut self, of: Hello, came: Came) -> Next {
        self.note(of, &came);
        match (of, came) {
            (Hello::Discover, Came::Good(introduction)) => self.discovered(introduction),
            (Hello::Initialize, Came::Good(introduction)) => Next::Open(introduction),
            (_, Came::Never(Trouble::Loop)) => Next::GiveUp(Trouble::Loop),
            (Hello::Initialize, came) if matches!(self.discover, ProbeFate::Held(_)) => {
                self.not_initialized(came)
            }
            (of, Came::Never(trouble)) if *self.fate(of.other()) != ProbeFate::Open => {
                Next::GiveUp(trouble)
            }
            (of, Came::Never(trouble) | Came::No(trouble) | Came::Pinned(trouble)) => {
                *self.fate(of) = ProbeFate::Vain(trouble);
                self.next()
            }
            (of, Came::Unreadable(trouble)) => {
                *self.fate(of) = ProbeFate::Unreadable(trouble);
                self.next()
            }
            (of, Came::Other { revision, is_modern_named, trouble }) => {
                *self.fate(of) = ProbeFate::Vain(trouble);
                self.named = Some((revision, is_modern_named));
                self.next()
            }
        }
    }

    /// Decides what a good answer to `backend/discover` means.
    fn discovered(&mut self, introduction: Introduction) -> Next {
        match &self.initialize {
            ProbeFate::Open if self.is_one_process => {
                self.discover = ProbeFate::Held(introduction);
                Next::WaitAtMost(SETTLES_WITHIN)
            }
            ProbeFate::Unreadable(trouble) if self.is_one_process => unsettled(trouble.clone()),
            ProbeFate::Unasked if self.is_one_process && self.learns => {
                self.discover = ProbeFate::Held(introduction);
                Next::Ask(Hello::Initialize)
            }
            _ => Next::Open(introduction),
        }
    }

    /// Decides what it means that `initialize` failed after `backend/discover` was answered.
    fn not_initialized(&mut self, came: Came) -> Next {
        match (came, std::mem::take(&mut self.discover)) {
            // The process is not pinned to the older revisions.
            (Came::No(_) | Came::Pinned(_) | Came::Other { .. }, ProbeFate::Held(introduction)) => {
                Next::Open(introduction)
            }
            (Came::Never(trouble) | Came::Unreadable(trouble), _) => unsettled(trouble),
            _ => Next::Wait,
        }
    }

    /// Returns the revision that the server has named, if `initialize` is worth another try.
    fn other_revision(&self) -> Option<&'static str> {
        let (revision, is_modern_named) = self.named?;
        let is_modern_refused =
            matches!(self.discover, ProbeFate::Vain(_) | ProbeFate::Unreadable(_));
        let is_wanted = is_modern_refused || !is_modern_named;
        let is_new = self.initialize != ProbeFate::Open && !self.tried.contains(&revision);
        (is_wanted && is_new).then_some(revision)
    }

    fn next(&self) -> Next {
        use ProbeFate::{Unasked, Unreadable, Vain};
        if let Some(revision) = self.other_revision() {
            return Next::AskIn(revision);
        }
        match (&self.discover, &self.initialize) {
            (Vain(_) | Unreadable(_), Unasked) => Next::Ask(Hello::Initialize),
            (Unasked, Unreadable(trouble)) if self.is_one_process => unsettled(trouble.clone()),
            (Unasked, Vain(_) | Unreadable(_)) => Next::Ask(Hello::Discover),
            // One whose answer could not be read may know no other.
            (
                Vain(Trouble::Hopeless(one)) | Unreadable(Trouble::Hopeless(one)),
                Vain(Trouble::Hopeless(other)) | Unreadable(Trouble::Hopeless(other)),
            ) => Next::GiveUp(Trouble::Hopeless(format!("{one}; {other}"))),
            // What may be otherwise the next time is the better reason.
            (Vain(it @ Trouble::Failing(_)), Vain(_) | Unreadable(_))
            | (Vain(_) | Unreadable(_), Vain(it) | Unreadable(it)) => Next::GiveUp(it.clone()),
            _ => Next::Wait, // One of them is still open.
        }
    }

    /// Decides what to do when nothing has come for a while.
    pub(crate) fn is_late(&self) -> Next {
        match (&self.discover, &self.initialize) {
            (ProbeFate::Open, ProbeFate::Unasked) => Next::Ask(Hello::Initialize),
            (ProbeFate::Unasked, ProbeFate::Open) if self.learns => Next::Ask(Hello::Discover),
            (ProbeFate::Held(_), ProbeFate::Open) => {
                let why = format!("it has not answered `initialize` within {SETTLES_WITHIN:?}");
                unsettled(Trouble::Hopeless(why))
            }
            _ => Next::Wait,
        }
    }

    /// Returns true if `backend/discover` was answered well, and `initialize` decides.
    pub(crate) fn is_discovered(&self) -> bool {
        matches!(self.discover, ProbeFate::Held(_))
    }

    fn fate(&mut self, hello: Hello) -> &mut ProbeFate {
        match hello {
            Hello::Discover => &mut self.discover,
            Hello::Initialize => &mut self.initialize,
        }
    }
}

/// Gives up a process whose era is unknown.
fn unsettled(trouble: Trouble) -> Next {
    let why = trouble.words();
    Next::GiveUp(Trouble::Hopeless(format!(
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

/// The code of the error in a whole answer.
pub(crate) fn code_of(answer: &[u8]) -> Option<i64> {
    let Ok(Message::Answer { outcome: Outcome::Error(error), .. }) = envelope::parse(answer) else {
        return None;
    };
    serde_json::from_str::<Error>(error).ok()?.code.as_i64()
}

fn discovered(answer: &str) -> Came {
    match envelope::parse(answer.as_bytes()) {
        Ok(Message::Answer { outcome: Outcome::Result(result), .. }) => of_result(result),
        Ok(Message::Answer { outcome: Outcome::Error(error), .. }) => of_error(error),
        _ => Came::No(Trouble::Refused("it is no answer".to_owned())),
    }
}

fn of_result(result: &str) -> Came {
    match Introduction::discovered(result) {
        Ok(introduction) => Came::Good(introduction),
        Err(why) => {
            let result: Value = serde_json::from_str(result).unwrap_or_default();
            match result.get("supportedVersions").and_then(versions) {
                // It has an older one too.
                Some(theirs) => named(&theirs, Trouble::Refused(why.clone()))
                    .unwrap_or(Came::Never(Trouble::Hopeless(why))),
                // It answers whatever it is asked.
                None => Came::No(Trouble::Refused(why)),
            }
        }
    }
}

fn of_error(text: &str) -> Came {
    let refused = format!("it refused `server/discover`: {}", SaidError::words(text));
    let Ok(error) = serde_json::from_str::<Error>(text) else {
        return Came::No(Trouble::Refused(refused));
    };
    match error.code.as_i64() {
        Some(UNSUPPORTED_VERSION) => {
            let theirs = error.data.get("supported").and_then(versions).unwrap_or_default();
            if let Some(came) = named(&theirs, Trouble::Refused(refused.clone())) {
                return came;
            }
            let is_unknown = !theirs.is_empty() && !theirs.iter().any(|it| it == MODERN);
            let unknown = || crate::era::unknown(&theirs.join(", "));
            Came::Never(Trouble::Hopeless(if is_unknown { unknown() } else { refused }))
        }
        Some(HEADER_MISMATCH | MISSING_CAPABILITY) => Came::Never(Trouble::Hopeless(refused)),
        _ => Came::No(Trouble::Refused(refused)),
    }
}

fn versions(list: &Value) -> Option<Vec<String>> {
    let list = list.as_array()?;
    Some(list.iter().filter_map(|it| it.as_str().map(str::to_owned)).collect())
}

/// Reads a refusal that names revisions: the latest of ours that begins with `initialize`.
fn named(theirs: &[String], trouble: Trouble) -> Option<Came> {
    let is_named = |ours: &str| theirs.iter().any(|it| it == ours);
    let revision = VERSIONS.into_iter().rfind(|ours| is_named(ours))?;
    Some(Came::Other { revision, is_modern_named: is_named(MODERN), trouble })
}

fn initialized(answer: &str) -> Came {
    let result = match super::result_of(answer) {
        Ok(result) => result,
        Err(error) => {
            let trouble = Trouble::Hopeless(format!("it refused `initialize`: {error}"));
            let is_pinned = code_of(answer.as_bytes()) == Some(UNSUPPORTED_VERSION);
            let refused = if is_pinned { Came::Pinned } else { Came::No };
            return other_revision(answer, &trouble).unwrap_or_else(|| refused(trouble));
        }
    };
    match Introduction::read(result) {
        Ok(introduction) => Came::Good(introduction),
        Err(why) => Came::Unreadable(Trouble::Hopeless(why)),
    }
}

/// Reads an error that says which revisions `initialize` can be asked in.
fn other_revision(answer: &str, trouble: &Trouble) -> Option<Came> {
    let Ok(Message::Answer { outcome: Outcome::Error(error), .. }) =
        envelope::parse(answer.as_bytes())
    else {
        return None;
    };
    let error = serde_json::from_str::<Error>(error).ok()?;
    // The older revisions have no code of their own for it.
    let is_it = matches!(error.code.as_i64(), Some(UNSUPPORTED_VERSION | INVALID_PARAMS));
    let theirs = error.data.get("supported").and_then(versions).filter(|_| is_it)?;
    named(&theirs, trouble.clone())
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

    fn word(came: &Came) -> &'static str {
        match came {
            Came::Good(_) => "good",
            Came::No(_) => "no",
            Came::Pinned(_) => "pinned",
            Came::Other { revision, .. } => revision,
            Came::Unreadable(_) => "unreadable",
            Came::Never(_) => "never",
        }
    }

    #[test]
    fn what_an_answer_to_the_probe_means() {
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
    fn one_that_speaks_none_of_ours_is_told_so_in_words() {
        let answer = error(-32022, r#"{"supported":["2027-01-01"]}"#);
        let Came::Never(Trouble::Hopeless(why)) = Hello::Discover.read(&answer) else { panic!() };
        assert!(why.contains("`2027-01-01`") && why.contains(MODERN), "{why}");
    }

    fn vain(why: &str) -> Came {
        Came::No(Trouble::Refused(why.to_owned()))
    }

    fn refused(why: &str) -> Trouble {
        Trouble::Refused(why.to_owned())
    }

    /// What is asked first, and then each thing that comes and what is to be done then.
    fn play(first: Hello, story: &[(Option<(Hello, Came)>, Next)]) {
        play_with(Asked::nothing(true, false), first, story);
    }

    fn play_with(mut asked: Asked, first: Hello, story: &[(Option<(Hello, Came)>, Next)]) {
        asked.ask(first);
        for (event, expected) in story {
            let next = match event.clone() {
                Some((of, came)) => asked.came(of, came),
                None => asked.is_late(),
            };
            assert_eq!(next, *expected, "{event:?} of {story:?}");
            if let Next::Ask(hello) = next {
                asked.ask(hello);
            }
        }
    }

    #[test]
    fn what_is_asked_and_when() {
        use Hello::{Discover, Initialize};
        let discovered = || Some((Discover, Came::Good(modern())));
        let initialized = || Some((Initialize, Came::Good(legacy())));
        let no_discover = || Some((Discover, vain("d")));
        let no_initialize = || Some((Initialize, vain("i")));
        let never = || Some((Discover, Came::Never(refused("never"))));
        let late = || None;
        let ask = Next::Ask;
        let (open, give_up) = (Next::Open, |why| Next::GiveUp(refused(why)));

        play(Discover, &[(discovered(), open(modern()))]);
        play(Discover, &[(no_discover(), ask(Initialize)), (initialized(), open(legacy()))]);
        play(Discover, &[(no_discover(), ask(Initialize)), (no_initialize(), give_up("i"))]);
        play(Discover, &[(never(), give_up("never"))]);
        // Silent, or slow.
        play(Discover, &[(late(), ask(Initialize)), (initialized(), open(legacy()))]);
        let settles = || Next::WaitAtMost(SETTLES_WITHIN);
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
        // Over HTTP each request is for itself.
        play_with(
            Asked::nothing(false, false),
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
        // What was remembered is right, or not any more.
        play(Initialize, &[(late(), Next::Wait), (initialized(), open(legacy()))]);
        play(Initialize, &[(no_initialize(), ask(Discover)), (discovered(), open(modern()))]);
        play(Initialize, &[(no_initialize(), ask(Discover)), (no_discover(), give_up("i"))]);
        play(Initialize, &[(no_initialize(), ask(Discover)), (never(), give_up("never"))]);
    }

    #[test]
    fn a_process_that_may_be_pinned_to_either_era_is_given_up() {
        use Hello::{Discover, Initialize};
        let garbled = || Came::Unreadable(refused("garbled"));
        let gone = || Came::Never(refused("gone"));
        let good = || Came::Good(modern());
        for story in [
            vec![Some((Discover, good())), Some((Initialize, garbled()))],
            vec![Some((Discover, good())), Some((Initialize, gone()))],
            vec![Some((Discover, good())), None],
            vec![Some((Initialize, garbled())), Some((Discover, good()))],
        ] {
            let mut asked = Asked::nothing(true, false);
            asked.ask(Discover);
            asked.ask(Initialize);
            let (last, first) = story.split_last().unwrap();
            let mut play = |event: &Option<(Hello, Came)>| match event.clone() {
                Some((of, came)) => asked.came(of, came),
                None => asked.is_late(),
            };
            for event in first {
                assert!(matches!(play(event), Next::Wait | Next::WaitAtMost(_)), "{story:?}");
            }
            let Next::GiveUp(Trouble::Hopeless(why)) = play(last) else { panic!("{story:?}") };
            assert!(why.contains("either era"), "{why}");
        }
        let unknown = result(r#"{"protocolVersion":"2099-01-01"}"#);
        assert_eq!(word(&Initialize.read(&unknown)), "unreadable");
        assert_eq!(word(&Initialize.read(&error(-32022, "null"))), "pinned");
    }

    #[test]
    fn what_may_be_otherwise_the_next_time_is_tried_again() {
        let mut asked = Asked::nothing(true, false);
        asked.ask(Hello::Discover);
        let failing = Trouble::Failing("503".to_owned());
        let next = asked.came(Hello::Discover, Came::No(failing.clone()));
        assert_eq!(next, Next::Ask(Hello::Initialize));
        asked.ask(Hello::Initialize);
        assert_eq!(asked.came(Hello::Initialize, vain("400")), Next::GiveUp(failing));
    }

    #[test]
    fn the_code_of_an_error_is_found() {
        assert_eq!(code_of(error(-32020, "null").as_bytes()), Some(-32020));
        assert_eq!(code_of(result("{}").as_bytes()), None);
    }
}
