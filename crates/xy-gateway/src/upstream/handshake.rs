//! The first words with a server, and the word left for a later daemon, which does not
//! greet it again.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};
use xy_protocol::error::CallError;
use xy_supervisor::speak::Said;

use super::http_client::Trouble;
use super::probe::{Asked, Came, Hello, Next, SETTLES_WITHIN};
use super::{Question, Stage, Upstream, self_meta};
use crate::backend::{Greeting, Introductions, SpokenEras};
use crate::era::{self, Introduction};
use crate::modern::DISCOVER;
use crate::via::Daemons;

/// No daemon has come so far by counting.
const FAR_AWAY: u64 = 1 << 40;

/// How long a server may say nothing to the first question before it is asked the older way
/// too.
const LATE_AFTER: Duration = Duration::from_secs(2);

/// Delay before `initialize` for a server that is known to be modern.
const LATE_AFTER_IF_MODERN: Duration = Duration::from_secs(5);

/// The second half of a greeting.
pub(crate) const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// What the speaker of a later daemon has to know of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    /// No id below this is free.
    pub(crate) first_id: u64,
    /// What it said of itself, if it was greeted.
    pub(crate) introduction: Option<Introduction>,
    /// Whether it was told what to log.
    #[serde(default)]
    pub(crate) is_tuned: bool,
    /// What the server calls the session, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) session: Option<String>,
    /// The request by which it is listened to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) listening: Option<u64>,
}

/// How a server is met for the first time.
pub(crate) struct Meeting<'m> {
    /// What an older one is told that its clients can do.
    pub(crate) capabilities: &'m str,
    /// This daemon, which must not be behind it.
    pub(crate) daemon: &'m Daemons,
    /// What is asked, and in which order.
    pub(crate) greeting: Greeting,
    /// Whether one process hears both questions, so that `initialize` can pin it to an era.
    pub(crate) is_one_process: bool,
    /// The question that the server need not know, while it is open: it may not survive that.
    pub(crate) probing: Option<&'m Cell<Option<Hello>>>,
    /// The eras that the server has shown to speak, or not to.
    pub(crate) shown: &'m Cell<SpokenEras>,
}

impl Note {
    pub(crate) fn to_text(&self) -> String {
        serde_json::to_string(self).expect("a plain struct always serialises")
    }

    /// The note that an earlier daemon left. What cannot be read of it is as good as nothing,
    /// but ids must not be used twice.
    pub(crate) fn read(text: &str) -> Self {
        #[derive(Deserialize)]
        struct Ids {
            first_id: u64,
        }
        serde_json::from_str(text).unwrap_or_else(|_| {
            let ids: Option<Ids> = serde_json::from_str(text).ok();
            let first_id = ids.map_or(FAR_AWAY, |ids| ids.first_id);
            Self { first_id, ..Self::default() }
        })
    }
}

impl Upstream {
    /// Finds out how to speak with a server, and begins to. `judge` says what came of each
    /// question. Returns the era that is spoken, and all that the server said of itself.
    pub(crate) async fn meet(
        self: &Rc<Self>,
        meeting: Meeting<'_>,
        mut judge: impl FnMut(Hello, Result<Box<str>, CallError>) -> Came,
    ) -> Result<(Introduction, Introductions), Trouble> {
        self.leave_note_surely().await;
        let Greeting { first, learns, is_known_modern } = meeting.greeting;
        let late_after = if is_known_modern { LATE_AFTER_IF_MODERN } else { LATE_AFTER };
        let mut asked = Asked::nothing(meeting.is_one_process, learns);
        let (mut discover, mut initialize) = (None, None);
        let mut late_at = None;
        let mut next = Next::Ask(first);
        let met = loop {
            match next {
                Next::Ask(hello) => {
                    asked.ask(hello);
                    let place = match hello {
                        Hello::Discover => &mut discover,
                        Hello::Initialize => &mut initialize,
                    };
                    if hello == Hello::Initialize && asked.is_discovered() {
                        late_at = Some(Instant::now() + SETTLES_WITHIN);
                        // The server has survived the first question.
                        meeting.probing.iter().for_each(|probing| probing.set(Some(hello)));
                    } else if hello == Hello::Discover || (learns && hello == first) {
                        late_at = Some(Instant::now() + late_after);
                        self.begin_probing(meeting.probing, hello).await;
                    }
                    match self.say_hello(hello, meeting.capabilities) {
                        Ok(question) => *place = Some(question),
                        Err(fault) => break Err(Trouble::Hopeless(fault.to_string())),
                    }
                }
                Next::AskIn(revision) => {
                    asked.ask_in(revision);
                    match self.initialize(revision, meeting.capabilities) {
                        Ok(question) => initialize = Some(question),
                        Err(fault) => break Err(Trouble::Hopeless(fault.to_string())),
                    }
                }
                Next::Wait => {}
                Next::WaitAtMost(time) => late_at = Some(Instant::now() + time),
                Next::Open(introduction) if introduction.behind.is_loop_with(meeting.daemon) => {
                    break Err(Trouble::Loop);
                }
                Next::Open(introduction) => break Ok(introduction),
                Next::GiveUp(trouble) => break Err(trouble),
            }
            next = tokio::select! {
                biased; // An answer that has come is not late.
                answer = answer_to(&mut discover) => {
                    asked.came(Hello::Discover, judge(Hello::Discover, answer))
                }
                answer = answer_to(&mut initialize) => {
                    asked.came(Hello::Initialize, judge(Hello::Initialize, answer))
                }
                () = until(late_at) => {
                    late_at = None;
                    asked.is_late()
                }
            };
            meeting.shown.set(asked.eras());
            if asked.is_discovered() && !learns {
                self.end_probing(meeting.probing).await; // The server bears the question.
            }
        };
        for left in [discover, initialize].into_iter().flatten() {
            left.forget(); // Whatever it still says to that.
        }
        self.end_probing(meeting.probing).await;
        met.map(|introduction| (introduction, asked.introductions()))
    }

    /// Records that a question is open that the server may not survive. If it dies while two are
    /// open, the first is to blame.
    async fn begin_probing(&self, probing: Option<&Cell<Option<Hello>>>, hello: Hello) {
        if let Some(probing) = probing.filter(|it| it.get().is_none()) {
            probing.set(Some(hello));
            self.say(Said::Probing(true)).await;
        }
    }

    async fn end_probing(&self, probing: Option<&Cell<Option<Hello>>>) {
        if probing.is_some_and(|probing| probing.take().is_some()) {
            self.say(Said::Probing(false)).await;
        }
    }

    fn say_hello(self: &Rc<Self>, hello: Hello, capabilities: &str) -> Result<Question, CallError> {
        match hello {
            Hello::Discover => {
                let daemons = self.company.daemons_before(self);
                self.ask(DISCOVER, Some(&self_meta::params(None, &daemons)))
            }
            Hello::Initialize => self.initialize(era::LATEST, capabilities),
        }
    }

    /// Asks `initialize` in this revision.
    fn initialize(
        self: &Rc<Self>,
        revision: &str,
        capabilities: &str,
    ) -> Result<Question, CallError> {
        let daemons = self.company.daemons_before(self);
        let params = era::greeting(revision, capabilities, Some(&daemons));
        self.ask("initialize", Some(&params))
    }

    /// Goes on with a server that an earlier daemon has greeted.
    pub(crate) async fn resume(
        &self,
        introduction: Introduction,
        is_tuned: bool,
    ) -> Rc<Introduction> {
        self.is_tuned.set(is_tuned);
        self.open(introduction).await
    }

    /// The server can be asked from now on.
    pub(crate) async fn open(&self, introduction: Introduction) -> Rc<Introduction> {
        let introduction = Rc::new(introduction);
        self.stage.replace(Stage::Open(introduction.clone()));
        self.leave_note_surely().await;
        introduction
    }

    /// Tells the supervisor.
    pub(crate) async fn say(&self, said: Said) {
        let _ = self.said.send(said).await; // Whoever drove it may be gone.
    }
}

impl Upstream {
    /// An id that has never been used towards this server.
    pub(super) fn new_id(&self) -> u64 {
        let (id, is_recorded) = self.ids.borrow_mut().next();
        if !is_recorded {
            self.leave_note();
        }
        id
    }

    /// Leaves word for the speaker of a later daemon; if there is no room for it, with the
    /// next id.
    pub(super) fn leave_note(&self) {
        let (note, recorded) = self.note();
        if self.said.try_send(note).is_ok() {
            self.ids.borrow_mut().recorded(recorded);
        }
    }

    /// The same, when there is time to wait for room.
    pub(super) async fn leave_note_surely(&self) {
        let (note, recorded) = self.note();
        self.say(note).await;
        self.ids.borrow_mut().recorded(recorded);
    }

    pub(super) fn note(&self) -> (Said, u64) {
        let first_id = self.ids.borrow().to_record();
        let introduction = self.introduction().map(|it| (*it).clone());
        let (is_tuned, session) = (self.is_tuned.get(), self.wire.session());
        let listening = self.ears.listening();
        let note = Note { first_id, introduction, is_tuned, session, listening };
        (Said::Note(note.to_text()), first_id)
    }
}

/// The answer to a question, once; never, if there is none.
async fn answer_to(question: &mut Option<Question>) -> Result<Box<str>, CallError> {
    let Some(asked) = question else { return std::future::pending().await };
    let answer = asked.answered().await;
    *question = None;
    answer
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_comes_back_as_it_was_and_an_older_one_is_read() {
        let result = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}"#;
        let introduction = Introduction::read(result).ok();
        let session = Some("s".to_owned());
        let listening = Some(9);
        let note = Note { first_id: 7, introduction, is_tuned: true, session, listening };
        assert_eq!(Note::read(&note.to_text()), note);
        let newer = r#","is_tuned":true,"session":"s","listening":9"#;
        let older = note.to_text().replace(newer, "");
        let expected = Note { is_tuned: false, session: None, listening: None, ..note };
        assert_eq!(Note::read(&older), expected);
    }

    #[test]
    fn what_is_no_note_leaves_its_ids_alone() {
        for (text, first_id) in [
            ("", FAR_AWAY),
            ("{", FAR_AWAY),
            (r#"{"first_id":-1}"#, FAR_AWAY),
            (r#"{"first_id":9,"introduction":7}"#, 9),
        ] {
            assert_eq!(Note::read(text), Note { first_id, ..Note::default() }, "{text}");
        }
    }
}
