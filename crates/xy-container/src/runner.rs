//! Runs one container, from its start to its last event.
//!
//! The engine supervises the container and answers at its own pace. So every request to it is a
//! task of its own, and the runner only receives the results. The protocol driver gets a pair of
//! pipes, as with a process.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bollard::container::AttachContainerResults;
use bytes::Bytes;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout};
use xy_protocol::server::Transport;
use xy_shim::end_watch::EndWatch;
use xy_supervisor::launch::protocol_link::{
    CLOSED_STDOUT, NO_DESCRIPTORS, ProtocolLink, next_driver_event,
};
use xy_supervisor::launch::{ContainerInfo, LaunchOrder, LifeChannels, LifeCommand, LifeEvent};
use xy_supervisor::logs::instance_log;
use xy_supervisor::protocol::{Checkup, DriverCommand, DriverEvent, Handover, IdleStop, ServerIo};
use xy_supervisor::wait::until;

use crate::engine::Engine;
use crate::exit_watch::{ContainerStatus, ExitWatch, Termination};
use crate::log::LogSink;
use crate::log_gap::{self, MissedOutput, OutputCounter, OutputPosition};
use crate::oom_watch::OomWatch;
use crate::overlap::with_fresh;
use crate::owned_names::NameLease;
use crate::relay::{self, Disconnect, PipeEnds, Relay};
use crate::shared::SharedState;
use crate::start::StartedContainer;
use crate::state_file::StateFile;
use crate::stream_holder::StreamHolder;
use crate::{create, faults};

mod begin;
mod ending;
mod protocol;
mod stream_holding;

pub(crate) use begin::run;
use stream_holding::wait_until_gone;

/// How long an absent engine is waited for when a container has to end.
const ENGINE_RETURN_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for the log to be written at the end.
const LOG_WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for an engine to attach again and to return missed output.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between two checks whether another program has changed the container.
const STATUS_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Minimum duration of a stream that counts as one.
const MIN_STREAM_TIME: Duration = Duration::from_secs(1);

/// Number of shorter streams in a row that mean that the container has closed its output.
const MAX_SHORT_STREAMS: u32 = 3;

const DAEMON_FAULT: &str = "internal error of the daemon";
const PAUSED: &str = "another program has paused its container";
const INPUT_LOST: &str = "its engine was restarted or closed the stream, and its stdin is closed";
const INPUT_UNCERTAIN: &str = "the connection to its engine broke while messages were in flight";

/// An event in the run of a container.
enum Event {
    Command(LifeCommand),
    Dropped,
    NoteChanged,
    Driver(DriverEvent),
    Checkup(Checkup),
    IdleStop(IdleStop),
    DriverGone,
    LogTrouble,
    Disconnected(Box<Relay>, Disconnect),
    Reattached(Result<Box<Reattachment>, String>),
    /// The rest of its output has been forwarded, or cannot be.
    OutputDrained,
    Terminated(Termination),
    /// The holder of its stream is gone.
    StreamHolderGone,
    StatusChecked(Result<ContainerStatus, String>),
    TimerFired(Timer),
    /// A request to the engine is done or has failed.
    RequestDone {
        is_engine_gone: bool,
    },
}

/// A timer of the runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timer {
    /// The exit of a server that has closed its stdout.
    StdoutClosed,
    /// The end of the protocol driver, which reads the last output of the server.
    DriverExit,
    /// The last of its output.
    OutputDrained,
    /// The end of its stop grace.
    Kill,
    /// The end of the engine's time to kill it.
    GiveUp,
    StatusCheck,
}

/// Runs one container that has been started.
#[expect(clippy::struct_excessive_bools, reason = "these are independent of each other")]
pub(crate) struct ContainerRunner {
    shared: Arc<SharedState>,
    order: LaunchOrder,
    channels: LifeChannels,
    engine: Engine,
    id: String,
    pid: u32,
    exit_watch: ExitWatch,
    state_file: StateFile,
    /// Ownership of its name; kept until its end, or for good if it is left to another daemon.
    lease: Option<NameLease>,
    log: LogSink,
    /// Number of the first line of this life in the log of its instance.
    first_line: u64,
    troubles: watch::Receiver<Option<String>>,
    attached: Option<AttachContainerResults>,
    stream_holder: Option<StreamHolder>,
    held_since: Instant,
    /// The relay, while it does not run.
    relay: Option<Box<Relay>>,
    relaying: Option<JoinHandle<(Relay, Disconnect)>>,
    /// Attaching again after the stream was cut.
    reattaching: Option<JoinHandle<Result<Reattachment, String>>>,
    /// Forwarding the rest of its output, after its exit.
    draining: Option<JoinHandle<()>>,
    relayed_since: Instant,
    short_streams: u32,
    was_doubtful: bool,
    /// The stream was cut while the container ran, and no other has lasted since.
    was_cut: bool,
    /// Tells whether the stream or the first process ended first, even while the stream is still
    /// read.
    end_watch: Option<Arc<EndWatch>>,
    stdin_drained: watch::Receiver<bool>,
    /// Asks the relay to note its position and end.
    handover: Arc<Notify>,
    is_ending_shared: Arc<AtomicBool>,
    pipe_ends: Option<PipeEnds>,
    exit_wait: Option<JoinHandle<Termination>>,
    status_check: Option<JoinHandle<Result<ContainerStatus, String>>>,
    /// Requests to the engine. Each returns true if the engine is gone.
    requests: JoinSet<bool>,
    protocol: Option<ProtocolLink>,
    /// The protocol driver's note for that of a later daemon.
    driver_note: String,
    noted: Option<(Vec<u8>, Instant)>,
    is_held: bool,
    /// True once a task has taken the instance over; not at once, if an earlier daemon started it.
    has_task: bool,
    is_ending: bool,
    is_probing: bool,
    /// The calls that the server has left unanswered at its exit.
    unanswered: usize,
    was_ready: bool,
    timers: Vec<(Instant, Timer)>,
    termination: Option<Termination>,
}

impl ContainerRunner {
    pub(crate) fn new(
        shared: Arc<SharedState>,
        order: LaunchOrder,
        channels: LifeChannels,
        started: StartedContainer,
    ) -> Self {
        let StartedContainer {
            engine,
            id,
            pid,
            attached,
            stream_holder,
            state_file,
            position,
            ledger,
            lease,
        } = started;
        let exit_watch = ExitWatch {
            engine: engine.clone(),
            id: id.clone(),
            memory: order.settings.container().and_then(|it| it.memory),
            oom_watch: engine.closes_stdin.then(|| OomWatch::of(pid, &id)).flatten(),
            is_ending: Arc::default(),
        };
        let file = instance_log(&shared.logs_dir, &order.key);
        let (log, troubles) = LogSink::open(&file, order.logs.clone(), ledger);
        let is_ending_shared = Arc::new(AtomicBool::new(false));
        let (stdin_drained_sender, stdin_drained) = watch::channel(false);
        let handover = Arc::<Notify>::default();
        let is_stdio = order.settings.transport() == Transport::Stdio;
        let pipes = is_stdio.then(relay::pipes).and_then(Result::ok);
        let (stdin, stdout, pipe_ends) = match pipes {
            Some((stdin, stdout, channels)) => (Some(stdin), Some(stdout), Some(channels)),
            None => (None, None, None),
        };
        let stream = stream_holder.as_ref().map(StreamHolder::stream);
        let end_watch = engine.closes_stdin.then(|| EndWatch::watch(pid, &id, stream)).flatten();
        let end_watch = end_watch.map(Arc::new);
        let relay = Relay {
            stdout,
            has_undelivered: false,
            stdin,
            log: log.clone(),
            counter: OutputCounter::after(position.noted()),
            position,
            torn: state_file.torn_mark(),
            is_ending: is_ending_shared.clone(),
            stdin_drained: stdin_drained_sender,
            handover: handover.clone(),
            end_watch: end_watch.clone(),
        };
        Self {
            exit_watch,
            end_watch,
            first_line: order.logs.next_seq(),
            noted: (!order.note.is_empty()).then(|| (order.note.clone(), Instant::now())),
            shared,
            order,
            channels,
            engine,
            id,
            pid,
            state_file,
            lease: Some(lease),
            log,
            troubles,
            attached,
            stream_holder,
            held_since: Instant::now(),
            relay: Some(Box::new(relay)),
            relaying: None,
            reattaching: None,
            draining: None,
            relayed_since: Instant::now(),
            short_streams: 0,
            was_doubtful: false,
            was_cut: false,
            stdin_drained,
            handover,
            is_ending_shared,
            pipe_ends,
            exit_wait: None,
            status_check: None,
            requests: JoinSet::new(),
            protocol: None,
            driver_note: String::new(),
            is_held: true,
            has_task: true,
            is_ending: false,
            is_probing: false,
            unanswered: 0,
            was_ready: false,
            timers: Vec::new(),
            termination: None,
        }
    }

    /// Runs a container that an earlier daemon started. `missed` is its output since then;
    /// `termination` is set if it has ended.
    pub(crate) async fn run_adopted(
        mut self,
        missed: MissedOutput,
        driver_note: String,
        termination: Option<Termination>,
        is_stopping: bool,
    ) {
        self.has_task = false;
        self.was_ready = true; // It was started, so it can be run.
        self.is_ending = is_stopping;
        self.driver_note.clone_from(&driver_note);
        let received = self.relay.as_mut().map_or_else(OutputPosition::default, |relay| {
            relay.count(&missed);
            relay.counter.exact_position()
        });
        let MissedOutput { out: mut unread, err, err_lost, gaps } = missed;
        if gaps[1] {
            self.log.mark_gap(true, None);
        }
        self.log.put(true, Bytes::from(err), Some(received.err.saturating_sub(err_lost)));
        if err_lost > 0 {
            self.log.mark_gap(true, Some(received.err));
        }
        // No client waits for this output any more, so it is only logged.
        if termination.is_some() || !self.is_stdio() {
            if gaps[0] {
                self.log.mark_gap(false, None);
            }
            self.log.put(false, Bytes::from(std::mem::take(&mut unread)), Some(received.out));
        }
        if let Some(termination) = termination {
            // The end is kept until a task can be told of it.
            if self.channels.notes.changed().await.is_err() {
                return self.keep_lease();
            }
            self.has_task = true;
            self.attached = None;
            self.on_terminated(termination).await;
            return self.run_to_end().await;
        }
        let handover = Handover { note: driver_note, unread };
        self.on_started(Some(handover)).await;
        self.run_to_end().await;
    }

    /// Runs the container to its end.
    pub(crate) async fn run(mut self) {
        self.on_started(None).await;
        self.run_to_end().await;
    }

    async fn on_started(&mut self, handover: Option<Handover>) {
        let container = self.contained();
        self.report(LifeEvent::Container(Arc::new(container))).await;
        self.report(LifeEvent::Launched { pid: self.pid }).await;
        let way = match (self.is_stdio(), self.pipe_ends.take()) {
            (false, _) => ServerIo::Endpoint,
            (true, Some(PipeEnds { stdin, stdout })) => ServerIo::Pipes { stdin, stdout },
            (true, None) => {
                self.report_protocol_error(NO_DESCRIPTORS.to_owned()).await;
                self.start_relay(MissedOutput::default());
                return self.start_exit_watch();
            }
        };
        let driver = self.shared.driver.as_ref();
        let protocol = ProtocolLink::open(driver, &self.order, self.pid, way, handover);
        if self.is_ending {
            protocol.send(DriverCommand::Close { is_hung: false });
        }
        self.protocol = Some(protocol);
        self.start_relay(MissedOutput::default());
        self.start_exit_watch();
    }

    fn contained(&self) -> ContainerInfo {
        ContainerInfo {
            engine: self.engine.kind(),
            version: self.engine.version.clone(),
            socket: self.engine.socket.clone(),
            name: create::name(&self.shared.home, &self.order.key),
            id: self.id.clone(),
            is_here: xy_shim::cpu::parent_has_argument(self.pid, &self.id),
            ends_with_daemon: self.engine.closes_stdin
                && self.is_stdio()
                && self.stream_holder.is_none(),
        }
    }

    /// Starts the relay on the attached stream, after the output that was missed before.
    fn start_relay(&mut self, missed: MissedOutput) {
        if let (Some(relay), Some(attached)) = (self.relay.take(), self.attached.take()) {
            self.relayed_since = Instant::now();
            self.relaying = Some(tokio::spawn(relay.run(attached, missed)));
        }
    }

    /// Starts to wait for its end and to check its status.
    fn start_exit_watch(&mut self) {
        let exit_watch = self.exit_watch.clone();
        self.exit_wait = Some(tokio::spawn(async move { exit_watch.wait_for_end().await }));
        self.start_timer(STATUS_CHECK_INTERVAL, Timer::StatusCheck);
    }

    async fn run_to_end(mut self) {
        loop {
            match self.next_event().await {
                Event::Command(LifeCommand::HandOver) => return self.hand_over().await,
                Event::Command(command) => {
                    self.has_task = true;
                    if self.channels.notes.has_changed().unwrap_or(false) {
                        self.leave_note(); // It was left before this command.
                    }
                    match command {
                        LifeCommand::Stop { grace, is_hung, .. } => self.stop(grace, is_hung),
                        LifeCommand::Kill => self.kill(),
                        // No engine could apply them.
                        LifeCommand::SetOrphanRules { .. } | LifeCommand::HandOver => {}
                    }
                }
                // The instance was adopted, but dropped before a task took it over.
                Event::Dropped if !self.has_task => return self.hand_over().await,
                Event::Dropped => {
                    self.is_held = false;
                    self.stop(self.order.settings.rules.stop.grace, false);
                }
                Event::NoteChanged => {
                    self.has_task = true;
                    self.leave_note();
                }
                Event::Driver(event) => self.on_driver_event(event).await,
                Event::Checkup(checkup) => self.pass_checkup(checkup),
                Event::IdleStop(request) => self.pass_idle_stop(request),
                Event::DriverGone => {
                    self.protocol = None;
                    if self.termination.is_some()
                        && self.relaying.is_none()
                        && self.draining.is_none()
                    {
                        break;
                    }
                }
                Event::LogTrouble => {
                    let problem = self.troubles.borrow_and_update().clone();
                    self.report(LifeEvent::LogTrouble(problem)).await;
                }
                Event::Disconnected(relay, disconnect) => {
                    if self.on_disconnect(relay, &disconnect) {
                        break;
                    }
                }
                Event::Reattached(reattachment) => self.on_reattached(reattachment).await,
                Event::OutputDrained => {
                    self.timers.retain(|(_, it)| *it != Timer::OutputDrained);
                    if self.notify_exit() {
                        break;
                    }
                }
                Event::Terminated(termination) => self.on_terminated(termination).await,
                Event::StreamHolderGone => self.replace_stream_holder().await,
                Event::StatusChecked(now) => self.on_status(now).await,
                // Nothing can be done; the container is found again when the engine is back.
                Event::RequestDone { is_engine_gone }
                    if is_engine_gone && self.termination.is_none() =>
                {
                    self.start_timer(ENGINE_RETURN_TIMEOUT, Timer::GiveUp);
                }
                Event::RequestDone { .. } => {}
                Event::TimerFired(timer) => {
                    if self.on_timer(timer).await {
                        break;
                    }
                }
            }
        }
        self.finish().await;
    }

    /// Waits for the next event; every arm is cancel-safe.
    async fn next_event(&mut self) -> Event {
        let next_timer = self.timers.iter().min_by_key(|(at, _)| *at).copied();
        tokio::select! {
            biased;
            command = self.channels.commands.recv(), if self.is_held => {
                command.map_or(Event::Dropped, Event::Command)
            }
            Ok(()) = self.channels.notes.changed(), if self.is_held => Event::NoteChanged,
            Some(checkup) = self.channels.checkups.recv() => Event::Checkup(checkup),
            Some(request) = self.channels.idle_stops.recv() => Event::IdleStop(request),
            event = next_driver_event(&mut self.protocol) => {
                event.map_or(Event::DriverGone, Event::Driver)
            }
            relayed = task_result(&mut self.relaying) => {
                self.relaying = None;
                match relayed {
                    Some((relay, disconnect)) => Event::Disconnected(Box::new(relay), disconnect),
                    None => Event::Terminated(Termination::EngineLost(DAEMON_FAULT.to_owned())),
                }
            }
            reattachment = task_result(&mut self.reattaching) => {
                self.reattaching = None;
                let reattachment = reattachment.unwrap_or_else(|| Err(DAEMON_FAULT.to_owned()));
                Event::Reattached(reattachment.map(Box::new))
            }
            _ = task_result(&mut self.draining) => {
                self.draining = None;
                Event::OutputDrained
            }
            termination = task_result(&mut self.exit_wait) => {
                self.exit_wait = None;
                let lost = || Termination::EngineLost(DAEMON_FAULT.to_owned());
                Event::Terminated(termination.unwrap_or_else(lost))
            }
            now = task_result(&mut self.status_check) => {
                self.status_check = None;
                Event::StatusChecked(now.unwrap_or_else(|| Err(DAEMON_FAULT.to_owned())))
            }
            () = wait_until_gone(self.stream_holder.as_ref()) => Event::StreamHolderGone,
            Ok(()) = self.troubles.changed() => Event::LogTrouble,
            Some(done) = self.requests.join_next() => {
                Event::RequestDone { is_engine_gone: done.unwrap_or(false) }
            }
            () = until(next_timer.map(|(at, _)| at)) => {
                let timer = next_timer.map_or(Timer::StatusCheck, |(_, timer)| timer);
                self.timers.retain(|(_, it)| *it != timer);
                Event::TimerFired(timer)
            }
        }
    }

    fn start_timer(&mut self, time: Duration, what: Timer) {
        self.timers.retain(|(_, it)| *it != what);
        self.timers.push((Instant::now() + time, what));
    }

    /// Handles a timer; returns true once nothing is left to wait for.
    async fn on_timer(&mut self, timer: Timer) -> bool {
        match timer {
            Timer::StdoutClosed => self.report_protocol_error(CLOSED_STDOUT.to_owned()).await,
            Timer::DriverExit => {
                self.protocol = None;
                return true;
            }
            Timer::OutputDrained => {
                if let Some(draining) = self.draining.take() {
                    tracing::warn!(server = %self.order.key, "the end of its output may be missing");
                    draining.abort();
                    let _ = draining.await;
                }
                if let Some(relaying) = self.relaying.take() {
                    relaying.abort();
                    // An aborted relay may still read output until it has ended, and that output
                    // counts as unread.
                    let _ = relaying.await;
                }
                return self.notify_exit();
            }
            Timer::Kill => self.kill(),
            Timer::GiveUp => {
                let why = "its engine did not end it".to_owned();
                tracing::error!(server = %self.order.key, container = self.id, why);
                self.on_terminated(Termination::EngineLost(why)).await;
            }
            Timer::StatusCheck => {
                if self.termination.is_none() && self.status_check.is_none() {
                    self.check_status();
                }
                self.start_timer(STATUS_CHECK_INTERVAL, Timer::StatusCheck);
            }
        }
        false
    }

    fn check_status(&mut self) {
        let exit_watch = self.exit_watch.clone();
        self.status_check = Some(tokio::spawn(async move { exit_watch.query_with_retry().await }));
    }

    /// Handles its current status, which another program may have changed.
    async fn on_status(&mut self, now: Result<ContainerStatus, String>) {
        if self.termination.is_some() {
            return;
        }
        match now {
            Ok(ContainerStatus::Running { .. })
                if self.relaying.is_none() && self.reattaching.is_none() =>
            {
                self.was_cut = true;
                self.start_reattach().await;
            }
            Ok(ContainerStatus::Running { .. }) => {}
            Ok(ContainerStatus::Paused { .. }) => {
                self.report_protocol_error(PAUSED.to_owned()).await;
            }
            Ok(ContainerStatus::Exited(end)) => self.on_terminated(Termination::Exited(end)).await,
            Ok(ContainerStatus::Removed) => self.on_terminated(Termination::Removed).await,
            Err(why) => self.on_terminated(Termination::EngineLost(why)).await,
        }
    }

    /// Handles the end of the stream; returns true once nothing is left to wait for.
    fn on_disconnect(&mut self, relay: Box<Relay>, disconnect: &Disconnect) -> bool {
        self.relay = Some(relay);
        if self.termination.is_some() {
            self.timers.retain(|(_, it)| *it != Timer::OutputDrained);
            return !self.drain_output() && self.notify_exit();
        }
        self.was_doubtful |= disconnect.is_doubtful;
        let is_short = self.relayed_since.elapsed() < MIN_STREAM_TIME;
        self.short_streams = if is_short { self.short_streams + 1 } else { 0 };
        self.was_cut = disconnect.container_was_running || (self.was_cut && is_short);
        // A query in flight may have seen it run just before it ended.
        end(&mut self.status_check);
        self.check_status();
        false
    }

    /// Attaches again to a running container whose stream was cut, if the position is certain.
    async fn start_reattach(&mut self) {
        let Some(relay) = &self.relay else { return };
        let position = relay.counter.exact_position();
        if self.is_stdio() && self.engine.closes_stdin {
            return self.report_protocol_error(INPUT_LOST.to_owned()).await;
        }
        if self.is_stdio() && self.was_doubtful {
            return self.report_protocol_error(INPUT_UNCERTAIN.to_owned()).await;
        }
        if self.short_streams >= MAX_SHORT_STREAMS {
            return self.report_protocol_error(CLOSED_STDOUT.to_owned()).await;
        }
        let reattaching = reattach(self.engine.clone(), self.id.clone(), position, self.is_stdio());
        self.reattaching = Some(tokio::spawn(reattaching));
    }

    /// Handles the result of attaching again.
    async fn on_reattached(&mut self, reattachment: Result<Box<Reattachment>, String>) {
        match (reattachment, &mut self.relay) {
            (Ok(reattachment), Some(relay)) => {
                tracing::info!(server = %self.order.key, "attached again");
                if let Some(stream_holder) = self.stream_holder.take() {
                    stream_holder.end(&self.shared).await; // The held stream has been cut.
                }
                self.state_file.change(|state| state.held = false);
                relay.counter = OutputCounter::after(reattachment.position);
                self.attached = Some(reattachment.attached);
                self.start_relay(reattachment.missed);
            }
            (Err(why), _) => {
                self.report_protocol_error(format!(
                    "the connection with its engine was cut: {why}"
                ))
                .await;
            }
            (Ok(_), None) => {} // The relay runs already.
        }
    }

    /// Keeps the ownership of the name, so that this daemon does not remove the container.
    fn keep_lease(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.keep();
        }
    }

    fn is_stdio(&self) -> bool {
        self.order.settings.transport() == Transport::Stdio
    }

    // Not `&self`: the stream in this struct is not `Sync`.
    async fn report(&mut self, event: LifeEvent) {
        let _ = self.channels.events.send(event).await; // The task may have dropped the instance.
    }
}

impl Drop for ContainerRunner {
    fn drop(&mut self) {
        end(&mut self.exit_wait);
        end(&mut self.status_check);
        end(&mut self.relaying);
        end(&mut self.reattaching);
        end(&mut self.draining);
    }
}

fn end<T>(task: &mut Option<JoinHandle<T>>) {
    if let Some(task) = task.take() {
        task.abort();
    }
}

/// A stream that was attached again.
struct Reattachment {
    attached: AttachContainerResults,
    /// The position up to which output had been received.
    position: OutputPosition,
    /// The output since then.
    missed: MissedOutput,
}

/// Attaches again to a container whose output was received up to `position`.
async fn reattach(
    engine: Engine,
    id: String,
    position: OutputPosition,
    is_stdio: bool,
) -> Result<Reattachment, String> {
    let reattachment = async {
        let mut attached = engine.attach(&id).await.map_err(|why| faults::words(&why))?;
        let read = log_gap::read(&engine, &id, position).await;
        let missed = log_gap::tolerate_gaps(read, is_stdio, &id).map_err(|why| why.to_string())?;
        let missed = with_fresh(missed, &mut attached.output).await;
        Ok(Reattachment { attached, position, missed })
    };
    let reattachment = timeout(ATTACH_TIMEOUT, reattachment).await;
    reattachment.unwrap_or_else(|_| Err("its engine takes too long".to_owned()))
}

/// Returns the result of a task. Never resolves while there is none. Cancel-safe.
async fn task_result<T>(task: &mut Option<JoinHandle<T>>) -> Option<T> {
    match task {
        None => std::future::pending().await,
        Some(task) => task.await.ok(),
    }
}
