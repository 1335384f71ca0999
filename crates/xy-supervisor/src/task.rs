//! The task of one instance, which owns its state: it waits for events, lets `lifecycle` decide,
//! and carries out the effects.
//!
//! The loop decides nothing itself. Each arm of [`Task::next_event`] only names an event, and
//! every arm is cancel-safe.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::Span;
use xy_config::settings::{HealthProbe, Probe, ServerSettings, Start};
use xy_protocol::server::{Health, Transport, Wanted};

use crate::health::{Observation, Outcome, ProbeSupport, Verdict};
use crate::instance::{
    Command, ExitRecord, Holder, InstanceHandle, InstanceKey, Snapshot, StateChange, masked_event,
    masked_lines,
};
use crate::launch::{ExitFlag, Launch, LaunchOrder, LifeCommand, LifeEvent, LifeHandle};
use crate::lifecycle::note::Note;
use crate::lifecycle::{AfterStop, Context, Effect, Event, Exit, Life, Reason, State, on_event};
use crate::locks::until_free;
use crate::logs::LogBook;
use crate::monitor::{Monitor, MonitorEvent};
use crate::wait::{time_of_day, until};

mod announce;

/// Maximum number of queued commands; further senders wait.
const COMMAND_QUEUE_CAPACITY: usize = 16;

/// The parts of a task.
pub(crate) struct Parts {
    pub(crate) key: InstanceKey,
    pub(crate) settings: Arc<ServerSettings>,
    pub(crate) wanted: Wanted,
    pub(crate) launcher: Arc<dyn Launch>,
    pub(crate) logs: Arc<LogBook>,
    pub(crate) changes: broadcast::Sender<StateChange>,
    pub(crate) origin: Origin,
}

/// How an instance comes to exist.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, for a moment")]
pub(crate) enum Origin {
    /// It is new.
    New,
    /// It replaces an instance that is still ending, and starts only once that is gone.
    Replacement(Predecessor),
    /// An earlier daemon started it, and it still lives.
    Adopted {
        /// Its life so far.
        life: Life,
        life_handle: LifeHandle,
        /// The leader of its processes, unless it has ended.
        pid: Option<u32>,
        /// When it ended, if it has.
        ended_at: Option<SystemTime>,
        /// An event that no daemon has processed.
        missed_event: Option<Event>,
        /// Its program's support for probes.
        probe_support: ProbeSupport,
    },
}

/// An instance of the same key that is still ending.
pub(crate) enum Predecessor {
    /// An instance of this daemon, whose file was removed and is back.
    Removed(InstanceHandle),
    /// An instance of a killed daemon. Its shim holds this lock until it is gone.
    Orphan(PathBuf),
}

pub(crate) struct Task {
    key: InstanceKey,
    launcher: Arc<dyn Launch>,
    logs: Arc<LogBook>,
    changes: broadcast::Sender<StateChange>,
    predecessor: Option<Predecessor>,
    commands: mpsc::Receiver<Command>,
    published: watch::Sender<Snapshot>,
    /// Present exactly while the state is live.
    life_handle: Option<LifeHandle>,
    /// When the instance ended, if it did so while no daemon ran.
    ended_at: Option<SystemTime>,
    now: Snapshot,
    /// Probes readiness and health.
    monitor: Monitor,
    /// Whether the protocol driver has reported readiness.
    is_driver_ready: bool,
    /// The number of the first log line of this life.
    first_line: u64,
    /// The span of this life, for log lines at level `debug`.
    span: Span,
}

impl Task {
    /// Creates a task and its handle. Starts the first life unless the server is wanted down.
    pub(crate) fn new(parts: Parts) -> (Self, InstanceHandle) {
        // An instance for one client is only created when that client uses it.
        let is_shared = parts.key.holder == Holder::Shared;
        let sleeps = is_shared && parts.settings.rules.start == Start::Lazy;
        let mut now = Snapshot {
            life: Life::new(parts.wanted),
            settings: parts.settings,
            pid: None,
            last_exit: None,
            transitions: Arc::new(VecDeque::new()),
            log_problem: None,
            ends_with_daemon: false,
            survivors: Vec::new(),
            confined: None,
            container: None,
            progress: None,
            health: Health::Unknown,
            end: ExitFlag::default(),
            last_health_check: None,
        };
        let mut monitor = Monitor::new(ProbeSupport::Unknown);
        let (mut predecessor, mut life_handle, mut ended_at) = (None, None, None);
        let first = match parts.origin {
            Origin::New if sleeps => {
                now.life = Life::sleeping(parts.wanted);
                None
            }
            Origin::New => (parts.wanted == Wanted::Up).then_some(Event::StartRequested),
            Origin::Replacement(ending) => {
                now.life = Life::after_predecessor(parts.wanted, sleeps);
                predecessor = Some(ending);
                None
            }
            Origin::Adopted {
                life,
                life_handle: adopted,
                pid,
                ended_at: ended,
                missed_event,
                probe_support,
            } => {
                monitor = Monitor::new(probe_support);
                (now.life, now.pid, ended_at) = (life, pid, ended);
                now.end = adopted.end.clone();
                life_handle = Some(adopted);
                missed_event
            }
        };
        let (command_sender, commands) = mpsc::channel(COMMAND_QUEUE_CAPACITY);
        let (published, watched) = watch::channel(now.clone());
        let handle =
            InstanceHandle::new(parts.key.clone(), command_sender, watched, parts.logs.clone());
        let mut task = Self {
            key: parts.key,
            launcher: parts.launcher,
            logs: parts.logs,
            changes: parts.changes,
            predecessor,
            commands,
            published,
            life_handle,
            ended_at,
            now,
            monitor,
            is_driver_ready: false,
            first_line: 0,
            span: Span::none(),
        };
        if task.life_handle.is_some() {
            task.span = task.new_span();
            task.announce_adoption();
        }
        match first {
            Some(first) => task.handle(first),
            None => task.leave_note(), // Tells an adopted instance that this task owns it.
        }
        (task, handle)
    }

    /// Runs until the instance is retired, or until the last handle is dropped.
    pub(crate) async fn run(mut self) {
        while self.now.life.state != State::Retired {
            let Some((event, applied)) = self.next_event().await else {
                break;
            };
            self.handle(event);
            if matches!(self.now.life.state, State::Starting { .. }) && self.needs_no_probe() {
                self.handle(Event::Ready); // The rules have changed and require no answer.
            }
            let _ = applied.map(|applied| applied.send(())); // The requester may have left.
        }
    }

    /// Waits for the next event; `None` once the last handle is dropped.
    async fn next_event(&mut self) -> Option<(Event, Option<oneshot::Sender<()>>)> {
        loop {
            self.monitor.update(&self.now, self.life_handle.as_ref(), &self.logs);
            let event = tokio::select! {
                // An event of the instance comes before a deadline that it may have met.
                biased;
                event = next_life_event(&mut self.life_handle) => event,
                command = self.commands.recv() => match command? {
                    Command::Apply { event, settings, applied } => {
                        if let Some(settings) = settings {
                            self.reconfigure(settings);
                        }
                        return Some((event, Some(applied)));
                    }
                    Command::IdleStop(idle_stop) => {
                        // Dropped without an instance, or if the driver is busy.
                        let _ = self.life_handle.as_ref().map(|it| it.idle_stops.try_send(idle_stop));
                        continue;
                    }
                    Command::Checkup(checkup) => {
                        let _ = self.life_handle.as_ref().map(|it| it.checkups.try_send(checkup));
                        continue;
                    }
                    Command::HandOver { done } => {
                        self.hand_over().await;
                        let _ = done.send(()); // The requester may have left.
                        return None;
                    }
                },
                () = predecessor_end(&mut self.predecessor) => {
                    return Some((Event::Exited(Exit::UNKNOWN), None));
                }
                event = self.monitor.next() => match self.on_monitor_event(event) {
                    Some(event) => return Some((event, None)),
                    None => continue,
                },
                () = until(self.now.life.state.deadline().map(Instant::from_std)) => {
                    return Some((Event::DeadlineReached, None));
                }
            };
            if let Some(event) = self.on_life_event(event) {
                return Some((event, None));
            }
        }
    }

    fn reconfigure(&mut self, settings: Arc<ServerSettings>) {
        let (rules, before) = (&settings.rules, &self.now.settings);
        if settings.kind != before.kind || rules.health.probe != before.rules.health.probe {
            self.monitor.reset();
        }
        self.command(LifeCommand::SetOrphanRules {
            orphan_timeout: rules.orphan_timeout,
            grace: rules.stop.grace,
        });
        self.now.settings = settings;
    }

    /// Leaves the instance to a later daemon. Resolves after its last event.
    async fn hand_over(&mut self) {
        let Some(mut handle) = self.life_handle.take() else { return };
        if handle.commands.send(LifeCommand::HandOver).await.is_ok() {
            while handle.events.recv().await.is_some() {}
        }
    }

    /// Records an event of the life. Returns what it means to the lifecycle, if anything.
    fn on_life_event(&mut self, event: LifeEvent) -> Option<Event> {
        match event {
            LifeEvent::Preparing(progress) => {
                self.now.progress = Some(progress);
                self.publish();
                Some(Event::Preparing)
            }
            LifeEvent::Launched { pid } => {
                self.now.pid = Some(pid);
                self.now.progress = None;
                self.publish();
                self.needs_no_probe().then_some(Event::Ready)
            }
            LifeEvent::Ready => {
                self.is_driver_ready = true;
                (self.probe() == Probe::Mcp || self.is_remote()).then_some(Event::Ready)
            }
            LifeEvent::ProtocolError(why) => Some(Event::ProtocolError(why)),
            LifeEvent::Idle(why) => Some(Event::Idle(why)),
            LifeEvent::ProtocolErrorOnProbe(why) => Some(Event::ProtocolErrorOnProbe(why)),
            LifeEvent::Unusable(why) => Some(Event::Unrecoverable(why)),
            LifeEvent::RestartRequired(why) => Some(Event::RestartRequired(why)),
            LifeEvent::LaunchFailed(fault) => {
                self.clear_failed_launch();
                Some(Event::LaunchFailed(fault))
            }
            LifeEvent::EngineUnavailable(fault) => {
                self.clear_failed_launch();
                Some(Event::EngineUnavailable(fault))
            }
            LifeEvent::Unreachable(why) => {
                self.life_handle = None;
                Some(Event::Unreachable(why))
            }
            LifeEvent::Unrecoverable(why) => {
                self.life_handle = None;
                Some(Event::Unrecoverable(why))
            }
            LifeEvent::Closed => {
                self.life_handle = None;
                Some(Event::Exited(Exit::UNKNOWN))
            }
            LifeEvent::Exited(exit) => {
                self.record_exit(exit, false);
                Some(Event::Exited(exit))
            }
            LifeEvent::ExitedOnProbe(exit) => {
                self.record_exit(exit, self.now.life.forgives_probe(Some(exit)));
                Some(Event::ExitedOnProbe(exit))
            }
            LifeEvent::Survivors(pids) => {
                tracing::error!(server = %self.key, ?pids, "these processes could not be killed");
                self.now.survivors = pids;
                self.publish();
                None
            }
            LifeEvent::Confinement(confined) => {
                self.now.confined = Some(confined);
                None
            }
            LifeEvent::Container(container) => {
                self.now.container = Some(container);
                None
            }
            LifeEvent::NotAdoptable => {
                tracing::warn!(
                    server = %self.key,
                    "the shim has no lock or no socket, so the server ends with this daemon"
                );
                self.now.ends_with_daemon = true;
                self.publish();
                None
            }
            LifeEvent::LogTrouble(problem) => {
                if let Some(problem) = &problem {
                    tracing::warn!(server = %self.key, problem, "could not write the log");
                }
                self.now.log_problem = problem;
                self.publish();
                None
            }
        }
    }

    /// Returns what a monitor event means to the lifecycle, if anything.
    fn on_monitor_event(&mut self, event: MonitorEvent) -> Option<Event> {
        match event {
            MonitorEvent::Ready => Some(Event::Ready),
            MonitorEvent::Probed(observation) => self.judge(observation),
        }
    }

    fn judge(&mut self, observation: Observation) -> Option<Event> {
        let probe_support = self.monitor.probe_support();
        tracing::debug!(server = %self.key, ?observation, "probed");
        let was_probed = !matches!(observation.outcome, Outcome::NotProbed(_));
        if was_probed {
            self.now.last_health_check = Some(time_of_day());
        }
        let verdict = self.monitor.judge(observation, &self.now);
        if self.monitor.probe_support() != probe_support {
            self.leave_note();
        }
        match verdict {
            Verdict::Hung(why) => return Some(Event::Unhealthy(why)),
            Verdict::Suspect(failures) => {
                tracing::warn!(server = %self.key, failures, "the server did not answer a probe");
            }
            Verdict::Alive | Verdict::Inconclusive => {}
        }
        if was_probed || self.now.health != self.health() {
            self.publish();
        }
        None
    }

    /// Returns the health that is shown to others.
    fn health(&self) -> Health {
        let life = &self.now.life;
        match life.state {
            _ if life.is_unreachable() => Health::Unreachable,
            State::Running { .. } => match self.now.settings.rules.health.probe {
                HealthProbe::Off => Health::Unknown,
                HealthProbe::Process => Health::Healthy,
                HealthProbe::Tcp | HealthProbe::Http | HealthProbe::Mcp => self.monitor.health(),
            },
            State::Stopping { .. } if matches!(life.reason, Reason::Unhealthy(_)) => {
                Health::Unhealthy
            }
            _ => Health::Unknown,
        }
    }

    /// Clears the life after a launch that failed.
    fn clear_failed_launch(&mut self) {
        self.life_handle = None;
        self.now.progress = None;
        self.now.container = None;
        self.now.pid = None;
    }

    /// Records the end of a life. It counts as expected if `is_probe_fault`, though no stop was
    /// requested.
    fn record_exit(&mut self, exit: Exit, is_probe_fault: bool) {
        self.life_handle = None;
        self.now.pid = None;
        self.now.progress = None;
        self.now.container = None;
        self.now.confined = None;
        let was_requested = matches!(
            self.now.life.state,
            State::Stopping {
                then: AfterStop::StayDown
                    | AfterStop::StartAgain
                    | AfterStop::Sleep
                    | AfterStop::GiveUp
                    | AfterStop::Retire,
                ..
            }
        );
        let at = self.ended_at.take().unwrap_or_else(time_of_day);
        let by_xy = matches!(self.now.life.state, State::Stopping { .. });
        let expected = was_requested || is_probe_fault;
        self.now.last_exit = Some(ExitRecord { exit, expected, by_xy, at });
    }

    fn probe(&self) -> Probe {
        self.now.settings.rules.ready.probe
    }

    fn is_remote(&self) -> bool {
        self.now.settings.remote().is_some()
    }

    /// Returns true if the instance runs and its readiness depends on no further answer.
    fn needs_no_probe(&self) -> bool {
        let is_ready = match self.probe() {
            Probe::Process => true,
            Probe::Mcp => self.is_driver_ready,
            Probe::Tcp | Probe::Http => false,
        };
        is_ready && self.now.pid.is_some()
    }

    fn handle(&mut self, event: Event) {
        let (now, is_remote) = (Instant::now().into_std(), self.is_remote());
        let context = Context { now, random: random_byte(), is_remote };
        let event = masked_event(event, &self.now.settings);
        let before = self.now.life.clone();
        let (life, effect) = on_event(before.clone(), event, &self.now.settings.rules, context);
        self.now.life = life;
        self.add_unparsed_line();
        match effect {
            Some(Effect::Launch) => self.launch(),
            Some(Effect::Stop) => self.stop(),
            Some(Effect::Kill) => self.command(LifeCommand::Kill),
            // A stop in progress became final, which the shim has to know.
            None if self.now.life.state.is_retiring() && !before.state.is_retiring() => self.stop(),
            None => self.leave_note(),
        }
        self.span.clone().in_scope(|| self.announce_change(&before));
    }

    /// Adds to the reason the first line that a server wrote to stdout instead of MCP, if the
    /// server was not ready in time.
    fn add_unparsed_line(&mut self) {
        let is_stdio = self.now.settings.transport() == Transport::Stdio;
        if let Reason::NeverReady { unparsed_output: unparsed_output @ None, .. } =
            &mut self.now.life.reason
            && is_stdio
        {
            let line = self.logs.first_stdout(self.first_line);
            *unparsed_output = masked_lines(&line, &self.now.settings).pop();
        }
    }

    fn stop(&mut self) {
        self.leave_note();
        let grace = self.now.settings.rules.stop.grace;
        let is_hung = self.now.life.reason.is_hang();
        let for_good = self.now.life.state.is_retiring();
        self.command(LifeCommand::Stop { grace, for_good, is_hung });
    }

    fn launch(&mut self) {
        // Problems of the last life do not apply to the next.
        self.now.log_problem = None;
        self.now.ends_with_daemon = false;
        self.is_driver_ready = false;
        self.first_line = self.logs.next_seq();
        self.now.last_health_check = None;
        self.now.survivors = Vec::new();
        self.span = self.new_span();
        let order = LaunchOrder {
            key: self.key.clone(),
            settings: self.now.settings.clone(),
            logs: self.logs.clone(),
            note: self.note(),
        };
        let handle = self.span.in_scope(|| self.launcher.launch(order));
        self.now.end = handle.end.clone();
        self.life_handle = Some(handle);
    }

    fn new_span(&self) -> Span {
        tracing::debug_span!("life", server = %self.key, restarts = self.now.life.tally.restarts_total)
    }

    /// Returns the note for a later daemon, in case this one is killed.
    fn note(&self) -> Vec<u8> {
        let now = Instant::now().into_std();
        let note = Note::of(&self.now.life, &self.now.settings, now);
        note.with_probe_support(self.monitor.probe_support()).to_bytes()
    }

    fn leave_note(&self) {
        if let Some(handle) = &self.life_handle {
            handle.notes.send_replace(self.note());
        }
    }

    /// Sends a command to the life without waiting. The queue holds all commands of a life.
    fn command(&mut self, command: LifeCommand) {
        if let Some(handle) = &self.life_handle {
            let _ = handle.commands.try_send(command); // The life may have ended.
        }
    }
}

/// Waits for the next event of the life. Never resolves without one. A life whose launcher
/// vanished counts as exited.
async fn next_life_event(handle: &mut Option<LifeHandle>) -> LifeEvent {
    let Some(handle) = handle else { return std::future::pending().await };
    handle.events.recv().await.unwrap_or(LifeEvent::Exited(Exit::UNKNOWN))
}

/// Resolves once, when the predecessor is gone. Never resolves without one.
async fn predecessor_end(predecessor: &mut Option<Predecessor>) {
    match predecessor {
        None => std::future::pending().await,
        Some(Predecessor::Removed(handle)) => {
            handle.wait_until(|snapshot| snapshot.life.state == State::Retired).await;
        }
        Some(Predecessor::Orphan(lock)) => until_free(lock).await,
    }
    *predecessor = None;
}

/// Returns a random number, from the seed that the standard library draws for each hasher.
fn random_byte() -> u8 {
    let [first, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
    first
}

#[cfg(test)]
mod tests;
