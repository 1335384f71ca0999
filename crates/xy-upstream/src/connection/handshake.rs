//! The handshake with a server, and the note for a later daemon, which resumes without a handshake.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};
use xy_mcp::era::{self, Era, Introduction, Introductions, SpokenEras};
use xy_mcp::modern::DISCOVER;
use xy_mcp::revision;
use xy_mcp::via::Daemons;
use xy_protocol::error::CallError;
use xy_supervisor::protocol::DriverEvent;

use super::http_client::SessionError;
use super::probe::{Hello, INITIALIZE_TIMEOUT, Next, ProbeAnswer, ProbeState};
use super::{Connection, InternalRequest, State, self_meta};

/// How to begin the handshake of a new life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandshakePlan {
    /// The first question.
    pub first: Hello,
    /// The other question is asked too, to learn whether the server speaks that era.
    pub learns: bool,
    /// Time without an answer to the first question after which the other one is sent too; `None`
    /// for never.
    pub fallback_delay: Option<Duration>,
}

/// The decision about a life after its handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeOutcome {
    /// Use it.
    Use,
    /// Restart it, and ask for this era first.
    StartOver(Era),
}

/// An id that no daemon has reached by counting.
const UNUSED_ID: u64 = 1 << 40;

/// The fallback delay of an unknown server.
pub const FALLBACK_DELAY: Duration = Duration::from_secs(2);

/// The fallback delay of a server that is known to speak the modern era.
pub const FALLBACK_DELAY_IF_MODERN: Duration = Duration::from_secs(5);

/// The notification that completes a legacy handshake.
pub const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// The note with which a later daemon resumes. Stored by the supervisor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeNote {
    /// No id below this may be used.
    pub first_id: u64,
    /// The server's introduction, after the handshake.
    pub introduction: Option<Introduction>,
    /// The log level was sent to the server.
    #[serde(default)]
    pub is_tuned: bool,
    /// The server's id of the session, over HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The id of the event subscription.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listening: Option<u64>,
}

/// The parameters of a handshake.
pub struct Handshake<'m> {
    /// The client capabilities to declare to a legacy server.
    pub capabilities: &'m str,
    /// This daemon, which must not be behind the server.
    pub daemon: &'m Daemons,
    /// The questions to ask, and their order.
    pub plan: HandshakePlan,
    /// One process gets both questions, so that `initialize` can pin it to an era.
    pub is_one_process: bool,
    /// The open question that the server need not know and may not survive.
    pub probing: Option<&'m Cell<Option<Hello>>>,
    /// The eras that the server has shown to speak, or not to speak.
    pub shown: &'m Cell<SpokenEras>,
}

impl ResumeNote {
    pub(crate) fn to_text(&self) -> String {
        serde_json::to_string(self).expect("a plain struct always serialises")
    }

    /// Reads the note of an earlier daemon. An unreadable one counts as empty, except that no id
    /// may be used twice.
    pub fn read(text: &str) -> Self {
        #[derive(Deserialize)]
        struct Ids {
            first_id: u64,
        }
        serde_json::from_str(text).unwrap_or_else(|_| {
            let ids: Option<Ids> = serde_json::from_str(text).ok();
            let first_id = ids.map_or(UNUSED_ID, |ids| ids.first_id);
            Self { first_id, ..Self::default() }
        })
    }
}

impl Connection {
    /// Negotiates the protocol. `read_answer` interprets the answer to each question. Returns the
    /// introduction in the era that is used, and the introductions in all eras that were asked.
    pub async fn negotiate(
        self: &Rc<Self>,
        handshake: Handshake<'_>,
        mut read_answer: impl FnMut(Hello, Result<Box<str>, CallError>) -> ProbeAnswer,
    ) -> Result<(Introduction, Introductions), SessionError> {
        self.save_note_reliably().await;
        let HandshakePlan { first, learns, fallback_delay } = handshake.plan;
        let mut probe = ProbeState::new(handshake.is_one_process, learns);
        let (mut discover, mut initialize) = (None, None);
        let mut late_at = None;
        let mut next = Next::Ask(first);
        let result = loop {
            match next {
                Next::Ask(hello) => {
                    probe.record_asked(hello);
                    let question_slot = match hello {
                        Hello::Discover => &mut discover,
                        Hello::Initialize => &mut initialize,
                    };
                    if hello == Hello::Initialize && probe.is_discovered() {
                        late_at = Some(Instant::now() + INITIALIZE_TIMEOUT);
                        // The server has survived the first question.
                        handshake.probing.iter().for_each(|probing| probing.set(Some(hello)));
                    } else if hello == Hello::Discover || (learns && hello == first) {
                        late_at = fallback_delay.map(|delay| Instant::now() + delay);
                        self.begin_probing(handshake.probing, hello).await;
                    }
                    match self.send_hello(hello, handshake.capabilities) {
                        Ok(question) => *question_slot = Some(question),
                        Err(fault) => break Err(SessionError::Hopeless(fault.to_string())),
                    }
                }
                Next::AskIn(revision) => {
                    probe.record_asked_in(revision);
                    match self.initialize(revision, handshake.capabilities) {
                        Ok(question) => initialize = Some(question),
                        Err(fault) => break Err(SessionError::Hopeless(fault.to_string())),
                    }
                }
                Next::Wait => {}
                Next::WaitAtMost(time) => late_at = Some(Instant::now() + time),
                Next::Open(introduction) if introduction.behind.is_loop_with(handshake.daemon) => {
                    break Err(SessionError::Loop);
                }
                Next::Open(introduction) => break Ok(introduction),
                Next::GiveUp(error) => break Err(error),
            }
            next = tokio::select! {
                biased; // An answer that has arrived is not late.
                answer = answer_to(&mut discover) => {
                    probe.on_answer(Hello::Discover, read_answer(Hello::Discover, answer))
                }
                answer = answer_to(&mut initialize) => {
                    probe.on_answer(Hello::Initialize, read_answer(Hello::Initialize, answer))
                }
                () = until(late_at) => {
                    late_at = None;
                    probe.on_timeout()
                }
            };
            handshake.shown.set(probe.eras());
            if probe.is_discovered() && !learns {
                self.end_probing(handshake.probing).await; // The server has survived the question.
            }
        };
        for left in [discover, initialize].into_iter().flatten() {
            left.forget(); // A late answer is ignored.
        }
        self.end_probing(handshake.probing).await;
        result.map(|introduction| (introduction, probe.introductions()))
    }

    /// Reports that a question is open that the server may not survive. If the server dies while
    /// two are open, the first is to blame.
    async fn begin_probing(&self, probing: Option<&Cell<Option<Hello>>>, hello: Hello) {
        if let Some(probing) = probing.filter(|it| it.get().is_none()) {
            probing.set(Some(hello));
            self.report(DriverEvent::Probing(true)).await;
        }
    }

    async fn end_probing(&self, probing: Option<&Cell<Option<Hello>>>) {
        if probing.is_some_and(|probing| probing.take().is_some()) {
            self.report(DriverEvent::Probing(false)).await;
        }
    }

    fn send_hello(
        self: &Rc<Self>,
        hello: Hello,
        capabilities: &str,
    ) -> Result<InternalRequest, CallError> {
        match hello {
            Hello::Discover => {
                let daemons = self.daemons_before();
                self.ask(DISCOVER, Some(&self_meta::params(None, &daemons)))
            }
            Hello::Initialize => self.initialize(revision::LATEST, capabilities),
        }
    }

    /// Sends `initialize` with this revision.
    fn initialize(
        self: &Rc<Self>,
        revision: &str,
        capabilities: &str,
    ) -> Result<InternalRequest, CallError> {
        let daemons = self.daemons_before();
        let params = era::initialize_params(revision, capabilities, Some(&daemons));
        self.ask("initialize", Some(&params))
    }

    /// Resumes with a server after an earlier daemon's handshake.
    pub async fn resume(&self, introduction: Introduction, is_tuned: bool) -> Rc<Introduction> {
        self.is_tuned.set(is_tuned);
        self.open(introduction).await
    }

    /// Completes the handshake: requests can be sent from now on.
    pub async fn open(&self, introduction: Introduction) -> Rc<Introduction> {
        let introduction = Rc::new(introduction);
        self.state.replace(State::Open(introduction.clone()));
        self.save_note_reliably().await;
        introduction
    }

    /// Sends an event to the supervisor.
    pub async fn report(&self, event: DriverEvent) {
        let _ = self.driver_events.send(event).await; // The receiver may be gone.
    }
}

impl Connection {
    /// Returns an id that was never used towards this server.
    pub fn new_id(&self) -> u64 {
        let (id, is_recorded) = self.ids.borrow_mut().next();
        if !is_recorded {
            self.save_note();
        }
        id
    }

    /// Saves the note for a later daemon. Without room in the channel, the next id tries again.
    pub(super) fn save_note(&self) {
        let (note, recorded) = self.note();
        if self.driver_events.try_send(note).is_ok() {
            self.ids.borrow_mut().recorded(recorded);
        }
    }

    /// Saves the note for a later daemon, and waits for room in the channel.
    pub(super) async fn save_note_reliably(&self) {
        let (note, recorded) = self.note();
        self.report(note).await;
        self.ids.borrow_mut().recorded(recorded);
    }

    pub(super) fn note(&self) -> (DriverEvent, u64) {
        let first_id = self.ids.borrow().to_record();
        let introduction = self.introduction().map(|it| (*it).clone());
        let (is_tuned, session) = (self.is_tuned.get(), self.wire.session());
        let listening = self.subscription.listening();
        let note = ResumeNote { first_id, introduction, is_tuned, session, listening };
        (DriverEvent::Note(note.to_text()), first_id)
    }
}

/// Waits for the answer to a question, and removes the question. Never resolves if there is none.
async fn answer_to(question: &mut Option<InternalRequest>) -> Result<Box<str>, CallError> {
    let Some(pending) = question else { return std::future::pending().await };
    let answer = pending.answered().await;
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
    fn resume_note_reads_back_also_from_older_versions() {
        let result = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}"#;
        let introduction = Introduction::read(result).ok();
        let session = Some("s".to_owned());
        let listening = Some(9);
        let note = ResumeNote { first_id: 7, introduction, is_tuned: true, session, listening };
        assert_eq!(ResumeNote::read(&note.to_text()), note);
        let newer = r#","is_tuned":true,"session":"s","listening":9"#;
        let older = note.to_text().replace(newer, "");
        let expected = ResumeNote { is_tuned: false, session: None, listening: None, ..note };
        assert_eq!(ResumeNote::read(&older), expected);
    }

    #[test]
    fn malformed_resume_note_keeps_ids_unique() {
        for (text, first_id) in [
            ("", UNUSED_ID),
            ("{", UNUSED_ID),
            (r#"{"first_id":-1}"#, UNUSED_ID),
            (r#"{"first_id":9,"introduction":7}"#, 9),
        ] {
            assert_eq!(
                ResumeNote::read(text),
                ResumeNote { first_id, ..ResumeNote::default() },
                "{text}"
            );
        }
    }
}
