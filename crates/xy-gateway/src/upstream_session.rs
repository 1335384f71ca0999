//! The session with one server process or endpoint, from start to end: shakes hands, learns what
//! the server offers, and reports to the supervisor.

use std::cell::Cell;
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use xy_config::settings::ServerSettings;
use xy_mcp::era::{Era, Introduction, SpokenEras};
use xy_mcp::via;
use xy_protocol::error::{CallError, ErrorKind};
use xy_supervisor::instance::Holder;
use xy_supervisor::lifecycle::Exit;
use xy_supervisor::protocol::{Connection, DriverCommand, DriverEvent, Handover, ServerIo};
use xy_upstream::connection::handshake::{
    Handshake, HandshakeOutcome, HandshakePlan, INITIALIZED, ResumeNote,
};

use crate::backend::Backend;
pub(crate) use xy_upstream::connection::http_client::SessionError;
use xy_upstream::connection::pipes::Pipes;
pub(crate) use xy_upstream::connection::probe::{Hello, ProbeAnswer};
use xy_upstream::fault::{Cause, LossReason};

use crate::router::Router;
use crate::upstream::Upstream;

mod checkup;
mod http;
pub(crate) mod idle_stop;
mod legacy_session;
mod lists;

pub(crate) use lists::{LearnError, learn_lists};

/// Maximum time between the closing of a pipe and the exit of the server.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum time for writing the rest of a begun message when another daemon takes over.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(1500);

/// Interval of checks for that.
const FLUSH_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Maximum time for reading the last output of an exited server.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// Interval of checks whether a server has read a question that it need not know.
const PROBE_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Number of checks after which a server that has read the question counts as having survived it.
const POLLS_TO_SURVIVE: u32 = 8;

/// Maximum number of checks.
const MAX_POLLS: u32 = 240;

/// Runs the session with a server until it ends.
pub(crate) async fn run(router: Rc<Router>, connection: Connection) {
    match connection.io {
        ServerIo::Pipes { .. } => run_on_pipes(router, connection).await,
        ServerIo::Endpoint => http::run(router, connection).await,
    }
}

async fn run_on_pipes(router: Rc<Router>, connection: Connection) {
    let Connection { key, settings, io, handover, events, mut commands, .. } = connection;
    let ServerIo::Pipes { stdin, stdout } = io else { return };
    let server = router.server_of_instance(&settings).await;
    let is_adopted = handover.is_some();
    let (note, unread) = match handover {
        Some(Handover { note, unread }) => (ResumeNote::read(&note), unread),
        None => (ResumeNote::default(), Vec::new()),
    };
    let Some((stdin, stdout)) = open_or_report(stdin, stdout, &events).await else { return };
    let stdin = Rc::new(stdin);
    let pipes = Pipes::new(&stdin, events.clone());
    let upstream =
        Upstream::new(key, events, note.first_id, is_adopted, pipes.clone(), router.clone());
    server.add(&upstream);
    upstream.set_earlier_subscription(note.listening);
    let session = Rc::new(PipeSession {
        router: router.clone(),
        server: server.clone(),
        settings,
        upstream: upstream.clone(),
        pipes: pipes.clone(),
        probing: Cell::new(None),
        is_stdout_closed: Cell::new(false),
        shown: Cell::default(),
        is_open: Cell::new(false),
    });
    let (ended, at_end) = oneshot::channel();
    let idle = idle_stop::stop_when_idle(router.clone(), server.clone(), upstream.clone());
    let tasks = [
        tokio::task::spawn_local(read(session.clone(), stdout, ended)),
        tokio::task::spawn_local(learn(session.clone(), note, is_adopted)),
        tokio::task::spawn_local(idle),
    ];
    let writer = tokio::task::spawn_local(write(upstream.clone(), pipes.clone(), stdin));
    pipes.take(&upstream, &unread);
    upstream.log_unparsed().await;
    let mut checkups = checkup::CheckupTask::default();
    let mut by_xy = false;
    let (why, reply) = loop {
        match commands.recv().await {
            Some(DriverCommand::Checkup(checkup)) => {
                checkups.take((&router, &server, &upstream), checkup);
            }
            Some(DriverCommand::StopIfIdle(rest)) => {
                idle_stop::stop_if_idle(&router, &server, &upstream, rest).await;
            }
            Some(DriverCommand::Close { is_hung }) => {
                by_xy = true;
                if is_hung {
                    upstream.mark_hung();
                }
                session.on_close();
                upstream.stop_accepting();
                writer.abort();
                if session.is_stdout_closed.get() {
                    // It is ended for closing its stdout: it did not die by itself.
                    session.cut_off();
                }
            }
            Some(DriverCommand::HandOver(reply)) => break (LossReason::taken_over(), Some(reply)),
            Some(DriverCommand::Exited(exit)) => {
                // Its last output is still in the pipe.
                if timeout(DRAIN_TIMEOUT, at_end).await.is_err() {
                    tasks[0].abort(); // The reading task.
                    pipes.handle_rest(&upstream);
                }
                session.on_exit(exit).await;
                report_unanswered_calls(&upstream, exit, by_xy).await;
                if exit != Exit::UNKNOWN {
                    pipes.mark_dead(); // The shim has killed the remaining processes.
                }
                break (describe_end(&upstream, exit, by_xy), None);
            }
            None => break (LossReason::server("has ended"), None),
        }
    };
    for task in tasks {
        task.abort();
    }
    let Some(reply) = reply else {
        if !session.is_open.get() && upstream.key().holder.era().is_none() {
            session.record_unused_life(by_xy);
        }
        writer.abort();
        upstream.close(&Cause::end(why.clone()));
        return router.on_instance_end(&server, &upstream, &why);
    };
    upstream.stop_accepting();
    // After the timeout, the message is torn.
    let _ = timeout(FLUSH_TIMEOUT, whole_messages(&pipes)).await;
    writer.abort();
    let _ = writer.await; // The pipe is closed before the reply is sent.
    upstream.log_unparsed().await;
    let _ = reply.send(pipes.take_partial()); // The receiver may be gone.
    upstream.hand_over();
    router.on_instance_end(&server, &upstream, &why);
}

/// Opens the pipes of a server. Reports a failure as a protocol error.
async fn open_or_report(
    stdin: OwnedFd,
    stdout: OwnedFd,
    events: &mpsc::Sender<DriverEvent>,
) -> Option<(pipe::Sender, pipe::Receiver)> {
    match open(stdin, stdout) {
        Ok(pipes) => Some(pipes),
        Err(problem) => {
            let problem = format!("its pipes cannot be used: {problem}");
            let _ = events.send(DriverEvent::ProtocolError(problem)).await; // It may be gone.
            None
        }
    }
}

/// Waits until no message is partly written.
async fn whole_messages(pipes: &Pipes) {
    while pipes.is_amid_writing() {
        sleep(FLUSH_POLL_INTERVAL).await;
    }
}

fn open(stdin: OwnedFd, stdout: OwnedFd) -> std::io::Result<(pipe::Sender, pipe::Receiver)> {
    Ok((pipe::Sender::from_owned_fd(stdin)?, pipe::Receiver::from_owned_fd(stdout)?))
}

/// The session with a server over its pipes.
struct PipeSession {
    router: Rc<Router>,
    server: Rc<Backend>,
    settings: Arc<ServerSettings>,
    upstream: Rc<Upstream>,
    pipes: Rc<Pipes>,
    /// The open question that the server need not know.
    probing: Cell<Option<Hello>>,
    /// The server has closed its stdout.
    is_stdout_closed: Cell<bool>,
    /// The eras that this instance has shown to speak, or not to speak.
    shown: Cell<SpokenEras>,
    /// The handshake is complete, here or by an earlier daemon.
    is_open: Cell<bool>,
}

impl PipeSession {
    /// Returns the era in which clients want this instance.
    fn wanted_era(&self) -> Era {
        let holder = self.upstream.key().holder;
        let client = holder.client().and_then(|number| self.router.era_of(number));
        self.server.wanted_era(holder, client)
    }

    /// Records that the server did not survive a question, or fell silent on it.
    fn record_death_on(&self, question: Hello) {
        let mut hint = self.server.hint.borrow_mut();
        match question {
            Hello::Discover => hint.died_on_discover(&self.settings),
            Hello::Initialize => {
                let shown = SpokenEras { legacy: Some(false), ..self.shown.get() };
                self.shown.set(shown);
                hint.ended(&self.settings, shown);
            }
        }
    }

    /// Clears the probing flag once the server has survived it. Never resolves.
    async fn outlast_probe(&self) -> Infallible {
        let mut polls = 0;
        for _ in 0..MAX_POLLS {
            sleep(PROBE_POLL_INTERVAL).await;
            polls += u32::from(self.probing.get().is_some() && self.pipes.is_all_read());
            if polls >= POLLS_TO_SURVIVE {
                break;
            }
        }
        if self.probing.take().is_some() {
            self.upstream.report(DriverEvent::Probing(false)).await;
        }
        std::future::pending().await
    }

    /// Lets the next life be asked differently after one that was never used. `by_xy` says that xy
    /// ended it, for example as its start took too long.
    fn record_unused_life(&self, by_xy: bool) {
        let wanted = self.wanted_era();
        let mut hint = self.server.hint.borrow_mut();
        if !by_xy {
            hint.ended(&self.settings, self.shown.get());
        } else if hint.handshake_plan(&self.settings, wanted).fallback_delay.is_none() {
            hint.forget(&self.settings); // A newer version of the server may ignore the question.
        }
    }

    /// Handles the end that the supervisor requests. A server that has closed its stdout on a
    /// question is ended for that.
    fn on_close(&self) {
        if let Some(question) = self.probing.take().filter(|_| self.is_stdout_closed.get()) {
            self.record_death_on(question);
        }
    }

    /// Closes the connection of a server that has closed its stdout and runs on.
    fn cut_off(&self) {
        self.upstream.close(&Cause::breach(LossReason::server("closed its stdout")));
    }

    /// Handles the exit of the server. If a question was open that it need not know, that may be
    /// the reason.
    async fn on_exit(&self, exit: Exit) {
        if let Some(question) = self.read_probe().await.filter(|_| !exit.is_external_kill()) {
            self.record_death_on(question);
        }
    }

    /// Returns the open question that the server need not know, if it has read it. An unread
    /// question is no reason for its silence and is cleared.
    async fn read_probe(&self) -> Option<Hello> {
        if self.probing.get().is_some() && !self.pipes.is_all_read() {
            self.probing.set(None);
            self.upstream.report(DriverEvent::Probing(false)).await;
        }
        self.probing.get()
    }
}

/// Reads from a server until it closes its stdout. A server that runs on without it cannot answer.
async fn read(session: Rc<PipeSession>, stdout: pipe::Receiver, ended: oneshot::Sender<()>) {
    let upstream = &session.upstream;
    if let Err(problem) = session.pipes.read_all(upstream, stdout).await {
        tracing::warn!(server = %upstream.key(), %problem, "its stdout cannot be read");
    }
    tokio::task::yield_now().await; // Callers that have just got a response may act on it first.
    session.is_stdout_closed.set(true);
    session.read_probe().await;
    let _ = ended.send(()); // The receiver may be gone.
    upstream.report(DriverEvent::StdoutClosed).await;
    sleep(EXIT_TIMEOUT).await;
    session.cut_off();
}

/// Writes to a server until it closes its stdin. A server that runs on without it cannot be sent
/// requests.
async fn write(upstream: Rc<Upstream>, pipes: Rc<Pipes>, stdin: Rc<pipe::Sender>) {
    tokio::select! {
        // It only returns with an error.
        _ = pipes.write_all(&stdin, upstream.pace(), |offset| upstream.drop_retry_copy(offset)) => {}
        // Also without output: earlier output may never have been read.
        _ = stdin.ready(Interest::ERROR) => {}
    }
    sleep(EXIT_TIMEOUT).await;
    upstream.close(&Cause::breach(LossReason::server("closed its stdin")));
    upstream.report(DriverEvent::ProtocolError("it closed its stdin".to_owned())).await;
}

/// Shakes hands with a server, unless an earlier daemon has, and keeps its lists up to date.
async fn learn(session: Rc<PipeSession>, note: ResumeNote, is_adopted: bool) {
    let PipeSession { router, server, settings, upstream, .. } = &*session;
    let opened = match note.introduction {
        Some(introduction) => {
            session.is_open.set(true);
            Ok(Some(upstream.resume(introduction, note.is_tuned).await))
        }
        None => shake_hands(&session, is_adopted).await,
    };
    let introduction = match opened {
        Ok(Some(introduction)) => introduction,
        Ok(None) => return, // The process is ended.
        Err(SessionError::Loop) => return end_loop(router, server, settings, upstream).await,
        Err(error) => return upstream.report(DriverEvent::ProtocolError(error.words())).await,
    };
    router.publish_protocol_versions();
    upstream.report(DriverEvent::Ready).await;
    router.on_instance_ready(upstream);
    tokio::select! {
        refused = learn_lists(router, server, settings, upstream, &introduction) => {
            match refused {
                None => {}
                Some(LearnError::Refused { why, .. }) => {
                    // The next life is asked as if nothing were remembered.
                    server.hint.borrow_mut().forget(settings);
                    upstream.report(DriverEvent::ProtocolError(why)).await;
                }
                Some(LearnError::Loop) => end_loop(router, server, settings, upstream).await,
            }
        }
        () = upstream.keep_listening() => {}
    }
}

/// Ends a server for good that leads back to this daemon. Its lists are hidden from all clients.
async fn end_loop(
    router: &Rc<Router>,
    server: &Rc<Backend>,
    settings: &Arc<ServerSettings>,
    upstream: &Rc<Upstream>,
) {
    tracing::warn!(server = %server.name, "{}", via::REASON);
    router.hide_loop(server);
    upstream.report(DriverEvent::Unusable(via::REASON.to_owned())).await;
    router.manifests.erase(&settings.name).await;
}

/// Shakes hands with a server. Returns `None` if this process is of no use: it is ended, and
/// replaced if that may help.
async fn shake_hands(
    session: &PipeSession,
    is_adopted: bool,
) -> Result<Option<Rc<Introduction>>, SessionError> {
    let PipeSession { router, server, settings, upstream, .. } = session;
    let capabilities = capabilities(router, upstream);
    let mut plan = server.hint.borrow().handshake_plan(settings, session.wanted_era());
    if is_adopted {
        // An earlier daemon may have sent `initialize` already: then only its answer counts.
        plan = HandshakePlan { first: Hello::Initialize, learns: false, ..plan };
    }
    if upstream.key().holder == Holder::Era(Era::Modern) {
        // `initialize` can bind the process to the era of the other process.
        plan = HandshakePlan { first: Hello::Discover, fallback_delay: None, ..plan };
    }
    let handshake = Handshake {
        capabilities: &capabilities,
        daemon: router.this_daemon(),
        plan,
        is_one_process: true,
        probing: Some(&session.probing),
        shown: &session.shown,
    };
    let negotiated = tokio::select! {
        negotiated = upstream.negotiate(handshake, read_answer) => negotiated,
        never = session.outlast_probe() => match never {},
    };
    let (introduction, introductions) = match negotiated {
        // The process answered one question, and may be pinned to either era by the other.
        Err(SessionError::Hopeless(why))
            if plan.learns && session.shown.get().modern == Some(true) =>
        {
            let shown = SpokenEras { legacy: Some(false), ..session.shown.get() };
            server.hint.borrow_mut().ended(settings, shown);
            upstream.report(DriverEvent::RestartRequired(why)).await;
            return Ok(None);
        }
        negotiated => negotiated?,
    };
    session.is_open.set(true);
    let (spoken, wanted) = (introduction.era(), session.wanted_era());
    server.hint.borrow_mut().keep_introductions(settings, introductions);
    let (shown, eras) = (session.shown.get(), (spoken, wanted));
    match server.record_handshake(settings, shown, eras, plan.learns) {
        HandshakeOutcome::StartOver(era) if !is_adopted => {
            upstream
                .report(DriverEvent::RestartRequired(format!("to speak {era} MCP with it")))
                .await;
            return Ok(None);
        }
        HandshakeOutcome::StartOver(_) | HandshakeOutcome::Use => {}
    }
    if spoken != wanted && upstream.key().holder.era().is_some() {
        let why = format!("its second process does not speak {wanted} MCP");
        upstream.report(DriverEvent::Unusable(why)).await;
        return Ok(None);
    }
    if spoken != wanted {
        upstream.mark_used(); // It is not restarted for the next call either.
    }
    if introduction.era() == Era::Legacy {
        upstream.send(INITIALIZED);
    }
    Ok(Some(upstream.open(introduction).await))
}

/// Interprets the result of a question. Without an answer the server is gone. A malformed or
/// oversized answer counts as unreadable.
fn read_answer(of: Hello, answer: Result<Box<str>, CallError>) -> ProbeAnswer {
    match answer {
        Ok(answer) => of.read(&answer),
        Err(fault) if fault.kind == ErrorKind::Internal => {
            let what = match of {
                Hello::Discover => xy_mcp::modern::DISCOVER,
                Hello::Initialize => "initialize",
            };
            let why = format!("its response to `{what}` cannot be parsed: {fault}");
            ProbeAnswer::Unreadable(SessionError::Hopeless(why))
        }
        Err(fault) => ProbeAnswer::Fatal(SessionError::Hopeless(fault.to_string())),
    }
}

/// Reports the calls that a server has left unanswered by a clean exit of its own. Such an exit is a
/// failure: many servers end with code 0 when their transport breaks.
async fn report_unanswered_calls(upstream: &Upstream, exit: Exit, by_xy: bool) {
    let unanswered = upstream.external_calls();
    if !by_xy && exit.is_clean() && unanswered > 0 {
        upstream.report(DriverEvent::UnansweredCalls(unanswered)).await;
    }
}

/// Describes how a server ended: by itself, or by xy, which then sent any signal.
fn describe_end(upstream: &Upstream, exit: Exit, by_xy: bool) -> LossReason {
    match by_xy {
        true if upstream.is_hung() => LossReason::server("hung and was ended by xy"),
        true => LossReason::server("was ended by xy"),
        false => LossReason::server(exit.to_string()),
    }
}

/// Returns the client capabilities to declare to a server.
pub(crate) fn capabilities(router: &Router, upstream: &Upstream) -> String {
    let Holder::Client(number) = upstream.key().holder else {
        return xy_mcp::capabilities::SHARED.to_owned();
    };
    let declared = router.client(number).and_then(|client| client.declared_capabilities());
    declared.map_or_else(|| xy_mcp::capabilities::STATELESS.to_owned(), Into::into)
}
