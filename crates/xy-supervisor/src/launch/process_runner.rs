//! Runs one life of an instance under its shim, from the start order to its last event.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use xy_protocol::server::Transport;
use xy_shim::wire::{ExitReport, Order, OrphanPolicy, Report, StatusReport};

use self::protocol::Pipes;
use super::fault::explain;
use super::home::is_of_home;
use super::limits;
use super::orphans::{LifeFilter, Shims};
use super::protocol_link::{ProtocolLink, next_driver_event};
use super::shim_link::{LinkEvent, ShimLink};
use super::shim_process::ShimProcess;
use super::{LaunchOrder, LifeChannels, LifeCommand, LifeEvent};
use crate::lifecycle::{Exit, LaunchFault};
use crate::logs::LogBook;
use crate::protocol::{Checkup, DriverEvent, Handover, IdleStop, ProtocolDriver};
use crate::wait::millis;
use crate::wait::until;

mod protocol;

/// Time for a shim to bring its log to disk after an exit; longer than the shim's own limits.
const FINISH_TIMEOUT: Duration = Duration::from_secs(20);

/// Time for a shim to acknowledge a handover.
const HANDOVER_ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// The data needed to kill the processes of one life if its shim dies.
pub(super) struct OrphanCleanup {
    pub(super) shims: Shims,
    /// The mark in the environment of each process.
    pub(super) life: String,
    /// Socket of the shim; a killed shim leaves its file.
    pub(super) socket: PathBuf,
}

/// The one life that is over; its id begins with that of its home.
struct SingleLife(String);

impl LifeFilter for SingleLife {
    fn owns(&self, life: &str) -> bool {
        is_of_home(life, self.0.rsplit_once('-').map_or("", |(home, _)| home))
    }

    fn is_over(&self, life: &str) -> bool {
        life == self.0
    }
}

/// Runs one life of an instance, from the start order to its last event.
#[expect(clippy::struct_excessive_bools, reason = "these are independent of each other")]
pub(super) struct ProcessRunner {
    order: LaunchOrder,
    shim: ShimProcess,
    link: ShimLink,
    driver: Arc<dyn ProtocolDriver>,
    /// The link to the protocol driver, while there is one.
    protocol: Option<ProtocolLink>,
    /// The wait of the runner for the server or its protocol driver, and its deadline.
    driver_timer: Option<(Instant, Timer)>,
    /// The protocol driver's note for its successor in a later daemon.
    driver_note: String,
    /// The latest note of the task, and when it was left. `None` before the first note in this
    /// daemon.
    noted: Option<(Vec<u8>, Instant)>,
    channels: LifeChannels,
    /// True until the task drops the instance.
    is_held: bool,
    /// True once a task has taken the instance over; not at once, if an earlier daemon started it.
    has_task: bool,
    /// True once it has been told to stop. A connection that is opened later is then closed at
    /// once.
    is_ending: bool,
    cleanup: OrphanCleanup,
    /// True during a probe that the server need not support.
    is_probing: bool,
    /// The calls that the server has left unanswered at its exit.
    unanswered: usize,
    /// Why it is stopped although it has started.
    refused: Option<LaunchFault>,
    /// The last event, and when the shim must have exited too.
    end: Option<(LifeEvent, Instant)>,
}

/// An event during a life.
enum Event {
    Report(Report),
    /// The link has room again, so driver events are received again.
    Writable,
    ShimGone,
    LinkBroken(io::Error),
    Command(LifeCommand),
    NoteChanged,
    Dropped,
    Driver(DriverEvent),
    Checkup(Checkup),
    IdleStop(IdleStop),
    DriverGone,
    TimerFired(Timer),
}

/// A timer of the runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timer {
    /// The exit of a shim whose server has exited.
    ShimExit,
    /// The exit of a server that has closed its stdout.
    StdoutClosed,
    /// The end of the protocol driver, which reads the last output of the server.
    DriverExit,
}

impl ProcessRunner {
    pub(super) fn new(
        order: LaunchOrder,
        shim: ShimProcess,
        link: ShimLink,
        cleanup: OrphanCleanup,
        driver: Arc<dyn ProtocolDriver>,
        channels: LifeChannels,
    ) -> Self {
        Self {
            shim,
            link,
            driver,
            protocol: None,
            driver_timer: None,
            driver_note: String::new(),
            noted: (!order.note.is_empty()).then(|| (order.note.clone(), Instant::now())),
            order,
            channels,
            is_held: true,
            has_task: true,
            is_ending: false,
            cleanup,
            is_probing: false,
            unanswered: 0,
            refused: None,
            end: None,
        }
    }

    /// Runs a life that an earlier daemon started. `driver_note` is the note of its protocol
    /// driver.
    pub(super) async fn run_adopted(mut self, status: StatusReport, driver_note: String) {
        self.has_task = false;
        let pipes = self.take_pipes(status.passed);
        let unread = self.link.take_unread();
        self.is_ending = status.stopping;
        self.driver_note.clone_from(&driver_note);
        self.report(LifeEvent::Confinement(status.confined)).await;
        if let Some(exited) = status.exited {
            if !self.wait_for_task().await {
                return self.hand_over().await;
            }
            self.has_task = true;
            self.link.queue_unparsed(&unread);
            self.on_exit(exited.report).await;
        } else {
            let handover = Handover { note: driver_note, unread };
            self.on_started(status.pid, pipes, Some(handover)).await;
        }
        self.run().await;
    }

    /// Runs the life to its end.
    pub(super) async fn run(mut self) {
        loop {
            match self.next_event().await {
                Event::Report(report) => self.on_report(report).await,
                Event::Writable => {}
                Event::Driver(event) => self.on_driver_event(event).await,
                Event::Checkup(checkup) => self.pass_checkup(checkup),
                Event::IdleStop(request) => self.pass_idle_stop(request),
                Event::DriverGone => self.on_driver_gone(),
                Event::NoteChanged => {
                    self.attach_task();
                    self.leave_note();
                }
                Event::Command(command) => {
                    self.attach_task();
                    if self.channels.notes.has_changed().unwrap_or(false) {
                        self.leave_note(); // It was left before this command.
                    }
                    match command {
                        LifeCommand::Stop { grace, for_good, is_hung } => {
                            self.close_protocol(is_hung);
                            self.stop(grace, for_good);
                        }
                        LifeCommand::Kill => self.shim.kill(),
                        LifeCommand::SetOrphanRules { orphan_timeout, grace } => {
                            let (orphan_ms, grace_ms) = (millis(orphan_timeout), millis(grace));
                            self.link.queue(&Order::Rules(OrphanPolicy { orphan_ms, grace_ms }));
                        }
                        LifeCommand::HandOver => return self.hand_over().await,
                    }
                }
                // The instance was adopted, but dropped before a task took it over.
                Event::Dropped if !self.has_task => return self.hand_over().await,
                Event::Dropped => {
                    self.is_held = false;
                    self.close_protocol(false);
                    self.stop(self.order.settings.rules.stop.grace, true);
                }
                Event::ShimGone => break,
                Event::LinkBroken(error) => {
                    tracing::warn!(server = %self.order.key, %error, "connection to the shim lost");
                    self.shim.kill();
                    break;
                }
                Event::TimerFired(Timer::ShimExit) => {
                    self.shim.kill();
                    break;
                }
                Event::TimerFired(Timer::StdoutClosed) => self.on_stdout_closed().await,
                Event::TimerFired(Timer::DriverExit) => self.finish(),
            }
        }
        self.drop_protocol();
        let child_pid = self.shim.child_pid();
        while timeout(FINISH_TIMEOUT, self.shim.wait()).await.is_err() {
            self.shim.kill();
        }
        self.cleanup.shims.forget(child_pid);
        let _ = std::fs::remove_file(&self.cleanup.socket); // Most shims remove it themselves.
        if self.end.is_none() {
            xy_shim::cgroup::kill_stale(); // All at once, where the server had a group.
            let life = SingleLife(self.cleanup.life.clone());
            let left = self.cleanup.shims.end_orphans(Arc::new(life)).await;
            xy_shim::cgroup::remove_stale();
            if !left.is_empty() {
                self.report(LifeEvent::Survivors(left)).await;
            }
        }
        let last = match self.end {
            // Only now have all events of the protocol driver been handled.
            Some((LifeEvent::Exited(exit), _)) if self.is_probing => LifeEvent::ExitedOnProbe(exit),
            Some((LifeEvent::Exited(exit), _)) => {
                LifeEvent::Exited(Exit { unanswered: self.unanswered, ..exit })
            }
            Some((event, _)) => event,
            None => LifeEvent::Exited(Exit::UNKNOWN),
        };
        let _ = self.channels.events.send(last).await; // The task may have dropped the instance.
    }

    /// Waits for the next event; every arm is cancel-safe.
    async fn next_event(&mut self) -> Event {
        let shim_deadline = self.end.as_ref().map(|(_, finish_by)| (*finish_by, Timer::ShimExit));
        let driver_deadline = self.driver_timer.filter(|_| self.protocol.is_some());
        let next_timer = shim_deadline.into_iter().chain(driver_deadline).min_by_key(|(at, _)| *at);
        let timer = next_timer.map_or(Timer::ShimExit, |(_, timer)| timer);
        tokio::select! {
            report = self.link.next(&self.order.logs) => match report {
                Ok(LinkEvent::Report(report)) => Event::Report(report),
                Ok(LinkEvent::Writable) => Event::Writable,
                Ok(LinkEvent::Closed) => Event::ShimGone,
                Err(error) => Event::LinkBroken(error),
            },
            command = self.channels.commands.recv(), if self.is_held => {
                command.map_or(Event::Dropped, Event::Command)
            }
            Ok(()) = self.channels.notes.changed(), if self.is_held => Event::NoteChanged,
            Some(checkup) = self.channels.checkups.recv() => Event::Checkup(checkup),
            Some(request) = self.channels.idle_stops.recv() => Event::IdleStop(request),
            event = next_driver_event(&mut self.protocol), if self.link.has_room() => {
                event.map_or(Event::DriverGone, Event::Driver)
            }
            () = until(next_timer.map(|(at, _)| at)) => Event::TimerFired(timer),
        }
    }

    async fn on_report(&mut self, report: Report) {
        match report {
            Report::Started { pid, lasting, confined } => {
                let pipes = self.take_pipes([self.is_stdio(); 2]);
                if self.is_stdio() && (pipes.stdin.is_none() || pipes.stdout.is_none()) {
                    self.refuse_without_pipes();
                    return;
                }
                if !lasting {
                    self.report(LifeEvent::NotAdoptable).await;
                }
                self.report(LifeEvent::Confinement(confined)).await;
                self.on_started(pid, pipes, None).await;
            }
            Report::Status(_) | Report::Refused { .. } => {} // Nothing was asked.
            Report::LogTrouble { problem } => self.report(LifeEvent::LogTrouble(problem)).await,
            Report::StartFailed(fault) => {
                self.set_last_event(LifeEvent::LaunchFailed(explain(fault, &self.order.settings)));
            }
            Report::Confined(confined) => self.report(LifeEvent::Confinement(confined)).await,
            Report::Exited(exit) => self.on_exit(exit).await,
        }
    }

    /// Takes the descriptors of stdin and stdout that were received, in this order.
    fn take_pipes(&mut self, passed: [bool; 2]) -> Pipes {
        let [stdin, stdout] = passed.map(|is_passed| is_passed.then(|| self.link.take_fd()));
        Pipes { stdin: stdin.flatten(), stdout: stdout.flatten() }
    }

    async fn on_started(&mut self, pid: u32, pipes: Pipes, handover: Option<Handover>) {
        self.report(LifeEvent::Launched { pid }).await;
        self.open_protocol(pid, pipes, handover).await;
    }

    /// Notes that a task has taken the instance over. The shim may then discard the output from the
    /// time without a daemon.
    fn attach_task(&mut self) {
        if !std::mem::replace(&mut self.has_task, true) {
            self.link.return_unread(&[]);
        }
    }

    /// Waits until a task can be told of the exit, or until the shim is gone. Returns false if
    /// there will be no task.
    ///
    /// The shim forgets the exit status once it is acknowledged, and a starting daemon may be
    /// killed before it has a task.
    async fn wait_for_task(&mut self) -> bool {
        tokio::select! {
            first_note = self.channels.notes.changed() => first_note.is_ok(),
            () = until_gone(&mut self.link, &self.order.logs) => true,
        }
    }

    async fn on_exit(&mut self, exit: ExitReport) {
        if !exit.survivors.is_empty() {
            self.report(LifeEvent::Survivors(exit.survivors.clone())).await;
        }
        let limits = self.order.settings.process().map(|it| it.limits).unwrap_or_default();
        let oom = limits::oom(exit.oom, limits);
        let exit = Exit { code: exit.code, signal: exit.signal, oom, unanswered: 0 };
        // From here on only this daemon knows the exit, and it may be killed before it reports it.
        tracing::info!(server = %self.order.key, "{exit}");
        let last = self.refused.take().map_or(LifeEvent::Exited(exit), LifeEvent::LaunchFailed);
        self.set_last_event(last);
        self.notify_exit(exit);
    }

    fn leave_note(&mut self) {
        let note = self.channels.notes.borrow_and_update().clone();
        if !note.is_empty() {
            // A note that is too long is not sent; the shim keeps the previous one.
            self.noted = Some((note, Instant::now()));
            self.leave_joined_note();
        }
    }

    /// Leaves the server to its shim. Later output is for another daemon.
    async fn hand_over(mut self) {
        self.reclaim_protocol().await;
        let leaving = self.link.detach(&self.order.logs);
        if !matches!(timeout(HANDOVER_ACK_TIMEOUT, leaving).await, Ok(Ok(()))) {
            tracing::warn!(server = %self.order.key, "its shim did not acknowledge the handover");
        }
        // The shim stays registered: it remains a child until this daemon exits.
    }

    fn is_stdio(&self) -> bool {
        self.order.settings.transport() == Transport::Stdio
    }

    /// Stops a server whose pipes did not arrive because the daemon was out of descriptors.
    fn refuse_without_pipes(&mut self) {
        let message = "the daemon has too many files open".to_owned();
        let hint =
            Some("raise the limit of open files (`ulimit -n`) and restart the daemon".to_owned());
        let fault = LaunchFault { permanent: false, message, hint };
        self.close_protocol(false);
        self.stop(Duration::ZERO, false);
        self.refused = Some(fault);
    }

    async fn report(&self, event: LifeEvent) {
        let _ = self.channels.events.send(event).await; // The task may have dropped the instance.
    }

    fn set_last_event(&mut self, event: LifeEvent) {
        self.end = Some((event, Instant::now() + FINISH_TIMEOUT));
    }

    fn stop(&mut self, grace: Duration, for_good: bool) {
        self.is_ending = true;
        self.link.queue(&Order::Stop { grace_ms: millis(grace), for_good });
    }
}

/// Exchanges frames until the shim is gone.
async fn until_gone(link: &mut ShimLink, logs: &LogBook) {
    while let Ok(LinkEvent::Report(_) | LinkEvent::Writable) = link.next(logs).await {}
}
