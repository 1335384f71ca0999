//! The handle of one instance, through which others send requests and read its state and logs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use xy_config::settings::ServerSettings;
use xy_protocol::server::{Health, ServerState};

pub use crate::instance_key::{Holder, InstanceKey};
use crate::launch::{Confinement, ContainerInfo, ExitFlag, Progress};
use crate::lifecycle::{Event, Exit, LastAttempt, Life, Reason, State};
use crate::logs::LogBook;
use crate::probe::{NotReady, Target};
use crate::protocol::{Checkup, IdleStop};

mod secrets;

pub use self::secrets::add_inherited_secrets;
pub(crate) use self::secrets::{masked_event, masked_lines};

/// Maximum number of remembered changes of state.
pub const MAX_TRANSITIONS: usize = 32;

/// Maximum number of stderr lines that are shown with a failure.
pub const MAX_STDERR_LINES: usize = 10;

/// Maximum bytes of each of them that go into an error message.
const MAX_STDERR_LINE_BYTES: usize = 400;

/// How long the protocol driver may take to reply.
const DRIVER_REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the second process of a server that speaks both eras may stay idle.
pub const SECOND_IDLE_STOP: Duration = Duration::from_mins(10);

/// The state of an instance at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Its lifecycle state.
    pub life: Life,
    /// Its settings.
    pub settings: Arc<ServerSettings>,
    /// The leader of its processes, while there is one.
    pub pid: Option<u32>,
    /// How its last life ended.
    pub last_exit: Option<ExitRecord>,
    /// Its latest changes of state, oldest first.
    pub transitions: Arc<VecDeque<Transition>>,
    /// Why its log cannot be written, if that is so.
    pub log_problem: Option<String>,
    /// Whether it ends with this daemon, because a later daemon could not find it.
    pub ends_with_daemon: bool,
    /// Processes of its last life that could not be killed.
    pub survivors: Vec<u32>,
    /// How its processes are grouped and limited, while it lives.
    pub confined: Option<Confinement>,
    /// Its container, while it runs in one.
    pub container: Option<Arc<ContainerInfo>>,
    /// The progress of the preparation of a launch, such as an image pull, while it goes on.
    pub progress: Option<Progress>,
    /// Its health as the probes tell it.
    pub health: Health,
    /// Set once the processes of its latest life have ended.
    pub end: ExitFlag,
    /// When a probe of this life last told its health.
    pub last_health_check: Option<SystemTime>,
}

impl Snapshot {
    /// Returns the leader of its processes, if it runs on this machine and can be inspected.
    pub fn process(&self) -> Option<u32> {
        self.pid.filter(|_| self.container.as_ref().is_none_or(|it| it.is_here))
    }

    /// Returns its state as shown to clients. A life whose processes have ended counts as stopping
    /// until the lifecycle has processed its end.
    pub fn state(&self) -> ServerState {
        if self.has_just_ended() { ServerState::Stopping } else { self.life.state.on_wire() }
    }

    /// Returns true if its processes have ended, but the lifecycle has not processed that yet.
    pub fn has_just_ended(&self) -> bool {
        matches!(self.life.state, State::Starting { .. } | State::Running { .. })
            && self.end.is_set()
    }

    /// Removes the pid of a dead process.
    fn without_dead_pid(mut self) -> Self {
        self.pid = self.pid.filter(|_| !self.end.is_set());
        self
    }

    /// Returns true if the server has failed, or is restarted because it does not come up.
    pub fn is_failing(&self) -> bool {
        match self.state() {
            ServerState::Failed | ServerState::Restarting => true,
            ServerState::Stopping if self.life.reason.is_failure() => true,
            ServerState::Starting | ServerState::Stopping => {
                self.last_exit.is_some_and(|exit| !exit.expected)
            }
            ServerState::Running | ServerState::Asleep | ServerState::Stopped => false,
        }
    }

    /// Probes its readiness once more. Returns `None` if the settings require no such probe.
    pub async fn probe_ready(&self) -> Option<Result<(), NotReady>> {
        let target = Target::readiness(&self.settings)?;
        Some(target.check(self.settings.rules.ready.timeout).await)
    }
}

/// The exit of a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitRecord {
    /// How the life ended.
    pub exit: Exit,
    /// Whether a stop was requested.
    pub expected: bool,
    /// Whether xy ended the life, on request or because the server did not work.
    pub by_xy: bool,
    /// When the exit was observed.
    pub at: SystemTime,
}

/// A change of state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// The state before.
    pub from: ServerState,
    /// The state after.
    pub to: ServerState,
    /// The reason of the change.
    pub reason: Reason,
    /// The time of the change.
    pub at: SystemTime,
    /// Why the life that it begins is the last attempt, if it is.
    pub last_attempt: Option<LastAttempt>,
}

/// The kind of a broadcast change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// The change itself.
    State,
    /// The change begins the last attempt. Follows the change itself.
    LastAttempt(LastAttempt),
}

/// A change of state as it is broadcast.
#[derive(Debug, Clone)]
pub struct StateChange {
    /// The kind of the broadcast.
    pub kind: ChangeKind,
    /// The instance.
    pub key: InstanceKey,
    /// The change.
    pub transition: Transition,
    /// The leader of its processes, while there is one.
    pub pid: Option<u32>,
    /// Restarts since an operator last started it.
    pub restart_count: u32,
}

/// The instance is retired and takes no more requests.
#[derive(Debug, thiserror::Error)]
#[error("the server has been removed, or the daemon is ending")]
pub struct RetiredError;

/// A command to the task of an instance.
#[derive(Debug)]
pub(crate) enum Command {
    /// Applies an event.
    Apply {
        event: Event,
        /// New settings, which apply first.
        settings: Option<Arc<ServerSettings>>,
        applied: oneshot::Sender<()>,
    },
    /// Stops the instance if it is idle. The protocol driver replies.
    IdleStop(IdleStop),
    /// Reports the health of the instance. The protocol driver replies.
    Checkup(Checkup),
    /// Leaves the instance to a later daemon, and ends the task.
    HandOver { done: oneshot::Sender<()> },
}

/// A handle of one instance.
#[derive(Debug, Clone)]
pub struct InstanceHandle {
    key: InstanceKey,
    commands: mpsc::Sender<Command>,
    published: watch::Receiver<Snapshot>,
    logs: Arc<LogBook>,
}

impl InstanceHandle {
    pub(crate) fn new(
        key: InstanceKey,
        commands: mpsc::Sender<Command>,
        published: watch::Receiver<Snapshot>,
        logs: Arc<LogBook>,
    ) -> Self {
        Self { key, commands, published, logs }
    }

    /// Returns the key of the instance.
    pub fn key(&self) -> &InstanceKey {
        &self.key
    }

    /// Returns the recent output of the instance.
    pub fn logs(&self) -> &Arc<LogBook> {
        &self.logs
    }

    /// Returns the current state of the instance.
    pub fn now(&self) -> Snapshot {
        self.published.borrow().clone().without_dead_pid()
    }

    /// Returns a function that returns the progress of a launch. Unlike a handle, the function does
    /// not keep the instance alive.
    pub fn progress(&self) -> impl Fn() -> Option<Progress> + Send + use<> {
        let published = self.published.clone();
        move || published.borrow().progress.clone()
    }

    /// Returns the last lines of its stderr that are still in memory, oldest first, with secrets
    /// masked.
    pub fn last_stderr(&self) -> Vec<String> {
        let settings = self.published.borrow().settings.clone();
        last_stderr(&settings, &self.logs)
    }

    /// Returns why the instance is in its state, with the last lines of its stderr.
    pub fn explain(&self) -> String {
        explain(&self.now(), &self.logs)
    }

    /// Returns a function that explains why the instance is failing, if it is. Like that of
    /// [`Self::progress`], it does not keep the instance alive.
    pub fn failure(&self) -> impl Fn() -> Option<String> + Send + use<> {
        let (published, logs) = (self.published.clone(), self.logs.clone());
        move || {
            let now = published.borrow().clone();
            now.is_failing().then(|| explain(&now, &logs))
        }
    }

    /// Sends an event to the instance. Resolves when it is applied, not when its effects are done.
    pub async fn request(&self, event: Event) -> Result<(), RetiredError> {
        self.send(event, None).await
    }

    /// Replaces the settings; `event` tells the kind of change.
    pub(crate) async fn reconfigure(
        &self,
        event: Event,
        settings: Arc<ServerSettings>,
    ) -> Result<(), RetiredError> {
        self.send(event, Some(settings)).await
    }

    async fn send(
        &self,
        event: Event,
        settings: Option<Arc<ServerSettings>>,
    ) -> Result<(), RetiredError> {
        let (applied, done) = oneshot::channel();
        let command = Command::Apply { event, settings, applied };
        self.commands.send(command).await.map_err(|_| RetiredError)?;
        done.await.map_err(|_| RetiredError)
    }

    /// Stops the instance for reason `why` if it is idle. Returns true if it stops.
    pub async fn stop_if_idle(&self, why: &str) -> bool {
        let (reply, stops) = oneshot::channel();
        let idle_stop = IdleStop { why: why.to_owned(), reply };
        let exchange = async {
            self.commands.send(Command::IdleStop(idle_stop)).await.ok()?;
            stops.await.ok()
        };
        timeout(DRIVER_REPLY_TIMEOUT, exchange).await.ok().flatten().unwrap_or(false)
    }

    /// Returns how long the instance has been idle; `None` if it is in use, or if that is unknown.
    pub async fn idle_for(&self) -> Option<Duration> {
        let (reply, report) = oneshot::channel();
        let exchange = async {
            self.commands
                .send(Command::Checkup(Checkup { within: None, use_fallback: false, reply }))
                .await
                .ok()?;
            report.await.ok()
        };
        timeout(DRIVER_REPLY_TIMEOUT, exchange).await.ok().flatten()?.idle_for
    }

    /// Leaves the instance to a later daemon. Resolves when its task has released it.
    pub(crate) async fn hand_over(&self) {
        let (done, is_done) = oneshot::channel();
        if self.commands.send(Command::HandOver { done }).await.is_ok() {
            let _ = is_done.await; // A task that has ended holds nothing.
        }
    }

    /// Waits until the instance has settled: no start or stop is in progress.
    pub async fn settled(&self) -> Snapshot {
        self.wait_until(|snapshot| snapshot.state().is_settled()).await
    }

    /// Waits until the state satisfies `is_so`. Returns the last state once the instance is
    /// retired.
    pub async fn wait_until(&self, is_so: impl Fn(&Snapshot) -> bool) -> Snapshot {
        let mut published = self.published.clone();
        loop {
            // `is_so` may read the state through a handle, so the state must not be locked here: a
            // second read would wait for the task that publishes, and that for the first read.
            let now = published.borrow_and_update().clone();
            // An error means that the task has ended: the last published state stays true.
            if is_so(&now) || published.changed().await.is_err() {
                return published.borrow().clone().without_dead_pid();
            }
        }
    }
}

fn last_stderr(settings: &ServerSettings, logs: &LogBook) -> Vec<String> {
    masked_lines(&logs.last_stderr(MAX_STDERR_LINES), settings)
}

fn explain(now: &Snapshot, logs: &LogBook) -> String {
    with_last_lines(&now.life.reason.to_string(), &last_stderr(&now.settings, logs))
}

/// Appends the last lines of stderr to the reason of a failure. Long lines are truncated.
pub fn with_last_lines(reason: &str, lines: &[String]) -> String {
    let mut text = reason.to_owned();
    if !lines.is_empty() {
        text += "\nlast lines of stderr:";
    }
    for line in lines {
        let end = line.floor_char_boundary(MAX_STDERR_LINE_BYTES);
        text.push('\n');
        text += &line[..end];
        text += if end < line.len() { "…" } else { "" };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_stderr_lines_are_truncated() {
        assert_eq!(with_last_lines("exited with code 3", &[]), "exited with code 3");
        let lines = ["boom".to_owned(), "é".repeat(MAX_STDERR_LINE_BYTES)];
        let told = with_last_lines("exited with code 3", &lines);
        let cut = "é".repeat(MAX_STDERR_LINE_BYTES / 2);
        assert_eq!(told, format!("exited with code 3\nlast lines of stderr:\nboom\n{cut}…"));
    }

    #[test]
    fn key_survives_display_and_parse() {
        for text in ["a", "a-b@1", "a@18446744073709551615", "a@legacy", "a@modern"] {
            assert_eq!(InstanceKey::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "@1", "a@", "a@b", "a@1@2", "a@Modern", "a@modern@1", "a@-1", "a.b"] {
            assert_eq!(InstanceKey::parse(text), None, "{text}");
        }
    }
}
