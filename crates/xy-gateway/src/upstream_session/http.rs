//! The session with an HTTP server: shakes hands, again whenever the server has forgotten the
//! session, and reports to the supervisor.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use xy_config::settings::{Probe, ServerSettings};
use xy_mcp::era::{Era, Introduction, SpokenEras};
use xy_protocol::error::CallError;
use xy_supervisor::protocol::{Connection, DriverCommand, DriverEvent};
use xy_upstream::connection::handshake::{
    FALLBACK_DELAY, Handshake, HandshakePlan, INITIALIZED, ResumeNote,
};

use super::checkup::CheckupTask;
use super::legacy_session::LegacySession;
use super::{LearnError, capabilities, describe_end, end_loop, idle_stop, learn_lists};
use crate::backend::Backend;

mod second_session;
pub(super) use xy_upstream::connection::http_client::{
    ACCEPT_TIMEOUT, HttpClient, STABLE_AFTER, SessionError,
};
pub(super) use xy_upstream::connection::probe::{Hello, ProbeAnswer};
use xy_upstream::fault::{Cause, LossReason};

use crate::router::Router;
use crate::upstream::Upstream;

/// Delays between attempts to reach a server that was started here.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(25);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(800);

/// Number of attempts after which a server that need not speak MCP is tried only at the slow
/// interval.
const FAST_TRIES: u32 = 30;
const SLOW_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Log the cause from this failed attempt on.
const LOG_AFTER_TRIES: u32 = 8;

/// Time after which a server here that refuses connections counts as gone.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time for calls in flight when their server is given up.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval of connection attempts meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum number of consecutive sessions that were forgotten at once.
const MAX_FORGOTTEN_SESSIONS: u32 = 5;

/// Runs the session with a server until it ends.
pub(super) async fn run(router: Rc<Router>, connection: Connection) {
    let Connection { key, settings, handover, events, mut commands, .. } = connection;
    let server = router.server_of_instance(&settings).await;
    let is_adopted = handover.is_some();
    let note =
        handover.map_or_else(ResumeNote::default, |handover| ResumeNote::read(&handover.note));
    let endpoint = settings.endpoint().ok_or_else(|| "it has no address".to_owned());
    let transport = match endpoint {
        Ok(endpoint) => HttpClient::new(&endpoint).await,
        Err(why) => Err(why),
    };
    let (transport, errors) = match transport {
        Ok(transport) => transport,
        Err(why) => {
            let _ = events.send(DriverEvent::Unrecoverable(why)).await; // The receiver may be gone.
            return;
        }
    };
    let upstream =
        Upstream::new(key, events, note.first_id, is_adopted, transport.clone(), router.clone());
    transport.set_connection(&upstream);
    server.add(&upstream);
    let legacy = Rc::new(LegacySession::default());
    let session_task = HttpSession {
        router: router.clone(),
        server: server.clone(),
        settings,
        upstream: upstream.clone(),
        transport: transport.clone(),
        shown: Cell::default(),
        legacy: legacy.clone(),
        session: None,
    };
    let mut tasks = JoinSet::new();
    tasks.spawn_local(transport.clone().send_notifications());
    tasks.spawn_local(idle_stop::stop_when_idle(router.clone(), server.clone(), upstream.clone()));
    let leading = tasks.spawn_local(session_task.run(errors, note));
    let mut checkups = CheckupTask::default();
    let mut by_xy = false;
    let (why, reply) = loop {
        match commands.recv().await {
            Some(DriverCommand::Checkup(checkup)) => {
                checkups.take((&router, &server, &upstream), checkup);
            }
            Some(DriverCommand::StopIfIdle(rest)) => {
                idle_stop::stop_if_idle(&router, &server, &upstream, rest).await;
            }
            // On a single stream, calls in flight may still be answered.
            Some(DriverCommand::Close { is_hung }) => {
                by_xy = true;
                if is_hung {
                    upstream.mark_hung();
                }
                upstream.stop_accepting();
                legacy.stop_accepting(is_hung);
                if !transport.is_legacy_sse() {
                    leading.abort();
                }
            }
            Some(DriverCommand::HandOver(reply)) => {
                break (LossReason::taken_over(), Some(reply));
            }
            Some(DriverCommand::Exited(exit)) => {
                break (describe_end(&upstream, exit, by_xy), None);
            }
            None => break (LossReason::server("has ended"), None),
        }
    };
    let session = legacy.end(&router, &server, &why);
    match reply {
        None => upstream.close(&Cause::end(why.clone())),
        Some(reply) => {
            upstream.log_unparsed().await;
            upstream.hand_over();
            let _ = reply.send(Vec::new()); // The receiver may be gone.
        }
    }
    tasks.shutdown().await;
    router.on_instance_end(&server, &upstream, &why);
    if transport.is_remote() {
        transport.end_session().await; // No other daemon resumes it.
    }
    if let Some(session) = session {
        session.end_session().await; // The next daemon opens its own.
    }
}

/// The session with an HTTP server: repeats the handshake, and serves it.
pub(super) struct HttpSession {
    pub(super) router: Rc<Router>,
    pub(super) server: Rc<Backend>,
    pub(super) settings: Arc<ServerSettings>,
    pub(super) upstream: Rc<Upstream>,
    transport: Rc<HttpClient>,
    /// The eras that the server has shown to speak, or not to speak.
    shown: Cell<SpokenEras>,
    /// The legacy session beside it, if the server speaks both eras.
    pub(super) legacy: Rc<LegacySession>,
    /// If this is the legacy session itself: set once the server refuses the legacy era.
    session: Option<Rc<Cell<bool>>>,
}

/// The step after a failed handshake or session.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    /// Try again after this delay.
    Again(Duration),
    /// A remote server cannot be reached.
    Unreachable(String),
    /// A retry does not help.
    Hopeless(String),
}

/// The attempts so far.
#[derive(Debug, Clone, Copy)]
struct Attempts {
    is_remote: bool,
    /// A handshake has succeeded.
    is_ready: bool,
    /// The server counts as ready without MCP, and no handshake has succeeded.
    speaks_no_mcp: bool,
    /// Number of handshakes that failed, or whose session ended at once.
    tries: u32,
}

/// Decides what to do after an error. How long a server here may take to start is not limited here.
fn next_step(error: SessionError, attempts: Attempts) -> Next {
    let Attempts { is_remote, is_ready, speaks_no_mcp, tries } = attempts;
    match error {
        SessionError::Unreachable(why) | SessionError::Failing(why) if is_remote => {
            Next::Unreachable(why)
        }
        SessionError::Failing(why) if is_ready && tries >= MAX_FORGOTTEN_SESSIONS => {
            Next::Hopeless(why)
        }
        SessionError::Unreachable(_) | SessionError::Failing(_) => {
            let wait = MIN_RETRY_DELAY.saturating_mul(2_u32.saturating_pow(tries.min(20)));
            let is_late = speaks_no_mcp && tries >= FAST_TRIES;
            Next::Again(wait.min(if is_late { SLOW_RETRY_DELAY } else { MAX_RETRY_DELAY }))
        }
        SessionError::Forgotten if tries < MAX_FORGOTTEN_SESSIONS => Next::Again(MIN_RETRY_DELAY),
        SessionError::Forgotten => Next::Hopeless("it forgets each session at once".to_owned()),
        SessionError::Refused(why) | SessionError::Forbidden(why) | SessionError::Hopeless(why) => {
            Next::Hopeless(why)
        }
        SessionError::Loop => Next::Hopeless(error.words()),
    }
}

/// Interprets an answer together with transport errors. If the server cannot be reached or denies
/// access, the other question has no use.
fn read_answer(
    of: Hello,
    answer: Result<Box<str>, CallError>,
    error: Option<SessionError>,
) -> ProbeAnswer {
    let read = answer.map(|answer| of.read(&answer));
    match (read, error) {
        (Ok(ProbeAnswer::Accepted(introduction)), _) => ProbeAnswer::Accepted(introduction),
        (Ok(ProbeAnswer::Fatal(SessionError::Loop)), _) => ProbeAnswer::Fatal(SessionError::Loop),
        (_, Some(error @ (SessionError::Unreachable(_) | SessionError::Forbidden(_)))) => {
            ProbeAnswer::Fatal(error)
        }
        (_, Some(error @ SessionError::Hopeless(_))) => ProbeAnswer::Fatal(error),
        (Err(_), Some(error)) | (_, Some(error @ SessionError::Failing(_))) => {
            ProbeAnswer::Refused(error)
        }
        (Ok(answer), _) => answer,
        (Err(fault), None) => ProbeAnswer::Refused(SessionError::Hopeless(fault.to_string())),
    }
}

impl HttpSession {
    /// Returns the legacy session beside this one.
    pub(super) fn for_legacy_session(
        &self,
        upstream: Rc<Upstream>,
        transport: Rc<HttpClient>,
        is_refused: Rc<Cell<bool>>,
    ) -> Self {
        Self {
            router: self.router.clone(),
            server: self.server.clone(),
            settings: self.settings.clone(),
            upstream,
            transport,
            shown: Cell::default(),
            legacy: Rc::default(),
            session: Some(is_refused),
        }
    }

    /// Runs the session, from handshake to handshake.
    pub(super) async fn run(self, mut errors: mpsc::Receiver<SessionError>, note: ResumeNote) {
        // A legacy server can only be resumed within its session; a modern one has none.
        let has_session = note.session.is_some();
        let goes_on = |it: &Introduction| it.era() == Era::Modern || has_session;
        let introduction = note.introduction.filter(goes_on);
        let mut earlier =
            introduction.filter(|_| !self.transport.is_remote()).map(|it| (it, note.session));
        let (mut tries, mut is_ready) = (0, false);
        let is_remote = self.transport.is_remote();
        loop {
            let began = Instant::now();
            let mut streams = JoinSet::new();
            let opened = match earlier.take() {
                Some(earlier) => Ok(self.resume(earlier, note.is_tuned).await),
                None => self.shake_hands_in_time(&mut streams, &mut errors).await,
            };
            let lost = match opened {
                Ok(introduction) => {
                    self.router.publish_protocol_versions();
                    if !std::mem::replace(&mut is_ready, true) {
                        tries = 0;
                        self.upstream.report(DriverEvent::Ready).await;
                    }
                    let lost = self.serve(&introduction, &mut streams, &mut errors).await;
                    let why = LossReason::Other(lost.clone().words().into());
                    drop(self.legacy.end(&self.router, &self.server, &why));
                    lost
                }
                Err(error) => error,
            };
            if self.session.is_some() && lost != SessionError::Forgotten {
                return self.upstream.report(DriverEvent::Unreachable(lost.words())).await;
            }
            if lost == SessionError::Loop {
                let Self { router, server, settings, upstream, .. } = &self;
                return end_loop(router, server, settings, upstream).await;
            }
            if began.elapsed() >= STABLE_AFTER {
                tries = 0;
            }
            let speaks_no_mcp = !is_ready && self.settings.rules.ready.probe != Probe::Mcp;
            if !speaks_no_mcp && (is_ready || tries == LOG_AFTER_TRIES) {
                self.log(&lost).await;
            }
            let next = match lost {
                SessionError::Unreachable(_) if is_ready && !is_remote => {
                    self.wait_for_listener().await
                }
                error => next_step(error, Attempts { is_remote, is_ready, speaks_no_mcp, tries }),
            };
            tries += 1;
            match next {
                Next::Again(wait) => sleep(wait).await,
                // Its settings say that it need not speak MCP.
                Next::Hopeless(_) if speaks_no_mcp => return,
                Next::Hopeless(why) if is_ready => {
                    // Each call in flight is about to fail with an error of its own. A refused call
                    // then gets no unknown outcome.
                    self.upstream.reset();
                    let _ = timeout(DRAIN_TIMEOUT, self.transport.all_answered()).await;
                    return self.upstream.report(DriverEvent::Unrecoverable(why)).await;
                }
                Next::Unreachable(why) => {
                    return self.upstream.report(DriverEvent::Unreachable(why)).await;
                }
                Next::Hopeless(why) => {
                    return self.upstream.report(DriverEvent::Unrecoverable(why)).await;
                }
            }
        }
    }

    /// Resumes the session that an earlier daemon began.
    async fn resume(
        &self,
        earlier: (Introduction, Option<String>),
        is_tuned: bool,
    ) -> Rc<Introduction> {
        let (introduction, session) = earlier;
        if let Some(session) = session {
            self.transport.resume(&session);
        }
        self.transport.set_version(&introduction.version);
        let introduction = self.upstream.resume(introduction, is_tuned).await;
        self.transport.open_session();
        introduction
    }

    async fn shake_hands_in_time(
        &self,
        streams: &mut JoinSet<String>,
        errors: &mut mpsc::Receiver<SessionError>,
    ) -> Result<Rc<Introduction>, SessionError> {
        let within = self.settings.rules.ready.within;
        let late = || {
            SessionError::Failing(format!(
                "it has answered neither `server/discover` nor `initialize` within {within:?}"
            ))
        };
        timeout(within, self.shake_hands(streams, errors)).await.unwrap_or_else(|_| Err(late()))
    }

    async fn shake_hands(
        &self,
        streams: &mut JoinSet<String>,
        errors: &mut mpsc::Receiver<SessionError>,
    ) -> Result<Rc<Introduction>, SessionError> {
        self.upstream.reset();
        self.transport.reset();
        self.router.on_session_reset(&self.upstream);
        while errors.try_recv().is_ok() {} // Errors of the last session do not matter any more.
        if self.transport.is_legacy_sse() {
            streams.spawn_local(self.transport.open_legacy_stream().await?);
        }
        let introduction = tokio::select! {
            negotiated = self.negotiate(errors) => negotiated?,
            Some(ended) = streams.join_next() => {
                return Err(SessionError::Failing(ended.unwrap_or_default()));
            }
        };
        self.transport.set_version(&introduction.version);
        let eras = (introduction.era(), introduction.era());
        self.server.record_handshake(&self.settings, self.shown.get(), eras, false);
        if self.session.is_some() {
            self.router.remember(&self.server);
        }
        if introduction.era() == Era::Legacy {
            self.upstream.send(INITIALIZED);
        }
        let late = || {
            SessionError::Failing(format!(
                "the handshake did not complete within {ACCEPT_TIMEOUT:?}"
            ))
        };
        timeout(ACCEPT_TIMEOUT, self.transport.all_sent()).await.map_err(|_| late())?;
        self.transport.order_delayed_calls(); // Later calls go behind those that have waited.
        let introduction = self.upstream.open(introduction).await;
        self.transport.open_session();
        Ok(introduction)
    }

    /// Returns the question to ask first.
    fn first_question(&self) -> Hello {
        let eras = self.server.hint.borrow().eras(&self.settings);
        match self.settings.only_era() {
            _ if self.transport.is_legacy_sse() || self.session.is_some() => Hello::Initialize,
            Some(era) => Hello::of(era),
            None if eras.modern == Some(true) => Hello::Discover,
            None if eras.legacy == Some(true) => Hello::Initialize,
            None => Hello::Discover,
        }
    }

    /// Negotiates the protocol.
    async fn negotiate(
        &self,
        errors: &mut mpsc::Receiver<SessionError>,
    ) -> Result<Introduction, SessionError> {
        let capabilities = capabilities(&self.router, &self.upstream);
        // Each request stands for itself, so both eras may be asked at once.
        let (first, fallback_delay) = (self.first_question(), Some(FALLBACK_DELAY));
        let plan = HandshakePlan { first, learns: false, fallback_delay };
        let is_older = self.transport.is_legacy_sse() || self.session.is_some();
        let handshake = Handshake {
            capabilities: &capabilities,
            daemon: self.router.this_daemon(),
            plan,
            is_one_process: false,
            probing: None,
            shown: &self.shown,
        };
        let interpret = |of, answer| match read_answer(of, answer, errors.try_recv().ok()) {
            ProbeAnswer::Refused(SessionError::Failing(why)) if self.session.is_some() => {
                ProbeAnswer::Fatal(SessionError::Unreachable(why))
            }
            ProbeAnswer::Refused(error) | ProbeAnswer::Pinned(error) if self.session.is_some() => {
                self.session.iter().for_each(|is_refused| is_refused.set(true));
                ProbeAnswer::Fatal(error)
            }
            // There is no other question.
            ProbeAnswer::Refused(error) | ProbeAnswer::Unreadable(error) if is_older => {
                ProbeAnswer::Fatal(error)
            }
            answer => answer,
        };
        match self.upstream.negotiate(handshake, interpret).await {
            Err(SessionError::Refused(why) | SessionError::Hopeless(why))
                if !is_older && self.transport.speaks_legacy_sse().await =>
            {
                Err(SessionError::Hopeless(format!(
                    "{why}; it speaks the older HTTP with SSE: write `transport \"sse\"` in its file"
                )))
            }
            Ok((introduction, introductions)) => {
                let mut hint = self.server.hint.borrow_mut();
                hint.keep_introductions(&self.settings, introductions);
                Ok(introduction)
            }
            Err(error) => Err(error),
        }
    }

    /// Serves a server after the handshake, until the session fails.
    async fn serve(
        &self,
        introduction: &Rc<Introduction>,
        streams: &mut JoinSet<String>,
        errors: &mut mpsc::Receiver<SessionError>,
    ) -> SessionError {
        self.router.on_instance_ready(&self.upstream);
        let mut listening = JoinSet::new();
        if !self.transport.is_legacy_sse() && !self.transport.is_modern() {
            listening.spawn_local(self.transport.clone().listen());
        }
        let learning =
            learn_lists(&self.router, &self.server, &self.settings, &self.upstream, introduction);
        tokio::select! {
            refused = learning => match refused {
                None => {} // The connection is closed, and only read from now on.
                Some(LearnError::Loop) => return SessionError::Loop,
                // Another server runs there by now.
                Some(LearnError::Refused { was_good: true, .. }) => return SessionError::Forgotten,
                Some(LearnError::Refused { why, .. }) => return SessionError::Hopeless(why),
            },
            () = self.upstream.keep_listening() => {}
            never = self.speak_legacy_too() => match never {},
            error = lost_session(errors) => return error,
            () = self.transport.session_forgotten() => return SessionError::Forgotten,
            Some(ended) = streams.join_next() => {
                let why = ended.unwrap_or_default();
                self.upstream.reset();
                self.upstream.fail_all(&Cause::breach(LossReason::Report(why)));
                return SessionError::Forgotten;
            }
        }
        while streams.join_next().await.is_some() {}
        std::future::pending().await
    }

    /// Waits for a local server to accept connections again.
    async fn wait_for_listener(&self) -> Next {
        let give_up_at = Instant::now() + LISTEN_TIMEOUT;
        while Instant::now() < give_up_at {
            if self.transport.accepts_connections().await {
                return Next::Again(Duration::ZERO);
            }
            sleep(POLL_INTERVAL).await;
        }
        Next::Hopeless("it no longer accepts connections".to_owned())
    }

    /// Writes the error to the server's log.
    async fn log(&self, error: &SessionError) {
        let why = error.clone().words();
        self.upstream.log_own(format_args!("{}: {why}", self.transport.display_url()));
        self.upstream.log_unparsed().await;
    }
}

/// Waits for an error that ends the session.
async fn lost_session(errors: &mut mpsc::Receiver<SessionError>) -> SessionError {
    loop {
        match errors.recv().await {
            // The caller got the error already.
            Some(
                SessionError::Failing(_) | SessionError::Refused(_) | SessionError::Forbidden(_),
            ) => {}
            Some(error) => return error,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts(is_remote: bool, is_ready: bool, tries: u32) -> Attempts {
        Attempts { is_remote, is_ready, speaks_no_mcp: false, tries }
    }

    #[test]
    fn unreachable_is_reported_for_remote_and_retried_for_local() {
        let why = || "why".to_owned();
        for error in [SessionError::Unreachable(why()), SessionError::Failing(why())] {
            let next =
                |is_remote, tries| next_step(error.clone(), attempts(is_remote, false, tries));
            assert_eq!(next(true, 0), Next::Unreachable(why()));
            assert_eq!(next(false, 0), Next::Again(MIN_RETRY_DELAY));
            assert_eq!(next(false, 99), Next::Again(MAX_RETRY_DELAY), "however long it takes");
            let no_mcp = Attempts { speaks_no_mcp: true, ..attempts(false, false, 99) };
            assert_eq!(next_step(error.clone(), no_mcp), Next::Again(SLOW_RETRY_DELAY));
        }
    }

    #[test]
    fn local_server_that_never_recovers_is_given_up() {
        let failing = || SessionError::Failing("why".to_owned());
        assert!(matches!(next_step(failing(), attempts(false, true, 0)), Next::Again(_)));
        let given_up = next_step(failing(), attempts(false, true, MAX_FORGOTTEN_SESSIONS));
        assert_eq!(given_up, Next::Hopeless("why".to_owned()));
    }

    #[test]
    fn refusing_server_is_not_asked_again() {
        for is_remote in [false, true] {
            let hopeless = SessionError::Hopeless("no".to_owned());
            let first = attempts(is_remote, true, 0);
            assert_eq!(next_step(hopeless, first), Next::Hopeless("no".to_owned()));
            assert_eq!(next_step(SessionError::Forgotten, first), Next::Again(MIN_RETRY_DELAY));
            let fifth = attempts(is_remote, true, MAX_FORGOTTEN_SESSIONS);
            assert!(matches!(next_step(SessionError::Forgotten, fifth), Next::Hopeless(_)));
        }
    }
}
