//! The handle others hold of one instance: requests, state, logs.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use xy_config::settings::ServerSettings;
use xy_protocol::mask;
use xy_protocol::server::{Era, Health, ServerName, ServerState};

use crate::launch::{Confined, Contained, EndMark, Progress};
use crate::lifecycle::{Event, Exit, LastAttempt, Life, Reason, State};
use crate::logs::{Line, LogBook};
use crate::probe::{Target, Unready};
use crate::speak::{Checkup, Rest};

/// How many changes of state are remembered.
pub const TRANSITIONS_KEPT: usize = 32;

/// Maximum number of stderr lines that are told with a failure.
pub const LAST_LINES: usize = 10;

/// Maximum bytes of each of them that go into an error message.
const LAST_LINE_BYTES: usize = 400;

/// How long whoever speaks with an instance may take to say what it knows.
const SAID_WITHIN: Duration = Duration::from_secs(1);

/// How long the second process of a server that speaks both eras may stay unused.
pub const SECOND_IDLE_STOP: Duration = Duration::from_mins(10);

/// Which instance: of which server, for whom.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceKey {
    /// The server.
    pub server: ServerName,
    /// For whom it lives.
    pub holder: Holder,
}

impl InstanceKey {
    /// The instance that all clients share.
    pub fn shared(server: ServerName) -> Self {
        Self { server, holder: Holder::Shared }
    }
}

impl InstanceKey {
    /// Reads what `Display` writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (server, holder) = match text.split_once('@') {
            None => (text, Holder::Shared),
            Some((server, "legacy")) => (server, Holder::Era(Era::Legacy)),
            Some((server, "modern")) => (server, Holder::Era(Era::Modern)),
            Some((server, client)) => (server, Holder::Client(client.parse().ok()?)),
        };
        Some(Self { server: ServerName::new(server).ok()?, holder })
    }
}

impl fmt::Display for InstanceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.holder {
            Holder::Shared => write!(f, "{}", self.server),
            Holder::Client(client) => write!(f, "{}@{client}", self.server),
            Holder::Era(era) => write!(f, "{}@{era}", self.server),
        }
    }
}

/// For whom an instance lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holder {
    /// All clients.
    Shared,
    /// One client alone.
    Client(u64),
    /// All clients of one era, beside the shared instance, which speaks the other era.
    Era(Era),
}

impl Holder {
    /// Returns true if the instance lives for one client alone.
    pub fn is_client(self) -> bool {
        matches!(self, Self::Client(_))
    }

    /// Returns the client that the instance lives for, if it lives for one alone.
    pub fn client(self) -> Option<u64> {
        match self {
            Self::Client(client) => Some(client),
            Self::Shared | Self::Era(_) => None,
        }
    }

    /// Returns the era that the instance is bound to, if it is.
    pub fn era(self) -> Option<Era> {
        match self {
            Self::Era(era) => Some(era),
            Self::Shared | Self::Client(_) => None,
        }
    }
}

/// What is true of an instance now.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// What it is doing.
    pub life: Life,
    /// What its file says.
    pub settings: Arc<ServerSettings>,
    /// The leader of its processes, while there is one.
    pub pid: Option<u32>,
    /// How its last life ended.
    pub last_exit: Option<SeenExit>,
    /// Its latest changes of state, oldest first.
    pub transitions: Arc<VecDeque<Transition>>,
    /// Why its log cannot be written, if so.
    pub log_problem: Option<String>,
    /// No later daemon could find it, so it ends with this one.
    pub ends_with_daemon: bool,
    /// Processes of its last life that would not die.
    pub survivors: Vec<u32>,
    /// How it is held together and limited, while it lives.
    pub confined: Option<Confined>,
    /// Which container it is, while it is one that lives.
    pub container: Option<Arc<Contained>>,
    /// How far what it needs has been fetched, while that goes on.
    pub progress: Option<Progress>,
    /// What probes say of it.
    pub health: Health,
    /// Whether the processes of its latest life have ended.
    pub end: EndMark,
    /// When a probe of this life last told something about its health.
    pub last_health_check: Option<SystemTime>,
}

impl Snapshot {
    /// The leader of its processes, if that is one of this machine which can be looked at.
    pub fn process(&self) -> Option<u32> {
        self.pid.filter(|_| self.container.as_ref().is_none_or(|it| it.is_here))
    }

    /// The word for its state on the wire. A life whose processes have ended is stopping until
    /// the rest of it is known.
    pub fn state(&self) -> ServerState {
        if self.has_just_ended() { ServerState::Stopping } else { self.life.state.on_wire() }
    }

    /// Returns true if its processes have ended, and what follows is not decided yet.
    pub fn has_just_ended(&self) -> bool {
        matches!(self.life.state, State::Starting { .. } | State::Running { .. })
            && self.end.is_set()
    }

    /// The snapshot without the number of a dead process.
    fn seen(mut self) -> Self {
        self.pid = self.pid.filter(|_| !self.end.is_set());
        self
    }

    /// Returns true if the server has failed, or is tried again because it does not come up.
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

    /// Asks it once more whether it is ready; `None` if no port of it has to say so.
    pub async fn ask_ready(&self) -> Option<Result<(), Unready>> {
        let target = Target::of_ready(&self.settings)?;
        Some(target.is_good(self.settings.rules.ready.timeout).await)
    }
}

/// An exit, and when it was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenExit {
    /// How.
    pub exit: Exit,
    /// Whether somebody had asked for it.
    pub expected: bool,
    /// xy ended it: somebody asked for that, or it did not work.
    pub by_xy: bool,
    /// When.
    pub at: SystemTime,
}

/// One change of state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// The state before.
    pub from: ServerState,
    /// The state after.
    pub to: ServerState,
    /// Why.
    pub reason: Reason,
    /// When.
    pub at: SystemTime,
    /// Why the life that it begins is the last to be tried, if it is.
    pub last_attempt: Option<LastAttempt>,
}

/// What about a change is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// The change itself.
    State,
    /// That it begins the last attempt; the change itself has been told before.
    LastAttempt(LastAttempt),
}

/// A change of state, as it is told to everyone who listens.
#[derive(Debug, Clone)]
pub struct StateChange {
    /// What about it is told.
    pub kind: ChangeKind,
    /// Of which instance.
    pub key: InstanceKey,
    /// What changed.
    pub transition: Transition,
    /// The leader of its processes, while there is one.
    pub pid: Option<u32>,
    /// Restarts since an operator last started it.
    pub restart_count: u32,
}

/// The instance has ended for good and takes no more requests.
#[derive(Debug, thiserror::Error)]
#[error("the server has been removed, or the daemon is ending")]
pub struct Gone;

/// What is asked of an instance's task.
#[derive(Debug)]
pub(crate) enum Command {
    /// Apply this.
    Apply {
        event: Event,
        /// What its file says from now on.
        settings: Option<Arc<ServerSettings>>,
        applied: oneshot::Sender<()>,
    },
    /// Sleep if nobody uses it. Answered by whoever speaks with it.
    Rest(Rest),
    /// Say how it is. Answered by the same.
    Look(Checkup),
    /// Leave the instance to itself, and end.
    LetGo { done: oneshot::Sender<()> },
}

/// One instance, as others hold it.
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

    /// Which instance it is.
    pub fn key(&self) -> &InstanceKey {
        &self.key
    }

    /// Its recent output.
    pub fn logs(&self) -> &Arc<LogBook> {
        &self.logs
    }

    /// What is true of it now.
    pub fn now(&self) -> Snapshot {
        self.published.borrow().clone().seen()
    }

    /// How far what it needs has been fetched, whenever that is asked: for whoever must not keep
    /// the instance itself.
    pub fn progress(&self) -> impl Fn() -> Option<Progress> + Send + use<> {
        let published = self.published.clone();
        move || published.borrow().progress.clone()
    }

    /// Returns the last lines of its stderr that are still in memory, oldest first, without what
    /// looks like a secret.
    pub fn last_stderr(&self) -> Vec<String> {
        last_stderr(&self.logs)
    }

    /// Returns why the instance is in its state, with the last lines of its stderr.
    pub fn explain(&self) -> String {
        explain(&self.now(), &self.logs)
    }

    /// Returns a function that explains why the instance is failing, if it is. Like
    /// [`Self::progress`], it does not keep the instance.
    pub fn trouble(&self) -> impl Fn() -> Option<String> + Send + use<> {
        let (published, logs) = (self.published.clone(), self.logs.clone());
        move || {
            let now = published.borrow().clone();
            now.is_failing().then(|| explain(&now, &logs))
        }
    }

    /// Asks for something; resolves when it has been applied, not when it is done.
    pub async fn request(&self, event: Event) -> Result<(), Gone> {
        self.send(event, None).await
    }

    /// Gives it other settings; `event` says what kind of change that is.
    pub(crate) async fn reconfigure(
        &self,
        event: Event,
        settings: Arc<ServerSettings>,
    ) -> Result<(), Gone> {
        self.send(event, Some(settings)).await
    }

    async fn send(&self, event: Event, settings: Option<Arc<ServerSettings>>) -> Result<(), Gone> {
        let (applied, done) = oneshot::channel();
        let command = Command::Apply { event, settings, applied };
        self.commands.send(command).await.map_err(|_| Gone)?;
        done.await.map_err(|_| Gone)
    }

    /// Lets it sleep if nobody uses it: whether it goes. `why` is told of it.
    pub async fn rest(&self, why: &str) -> bool {
        let (reply, rests) = oneshot::channel();
        let rest = Rest { why: why.to_owned(), reply };
        let asking = async {
            self.commands.send(Command::Rest(rest)).await.ok()?;
            rests.await.ok()
        };
        timeout(SAID_WITHIN, asking).await.ok().flatten().unwrap_or(false)
    }

    /// For how long nobody has used it; `None` if somebody does, or nobody can say.
    pub async fn idle_for(&self) -> Option<Duration> {
        let (reply, seen) = oneshot::channel();
        let asking = async {
            self.commands
                .send(Command::Look(Checkup { within: None, is_in_doubt: false, reply }))
                .await
                .ok()?;
            seen.await.ok()
        };
        timeout(SAID_WITHIN, asking).await.ok().flatten()?.idle_for
    }

    /// Leaves it to itself: another daemon will take it over. Resolves when it is on its own.
    pub(crate) async fn let_go(&self) {
        let (done, is_done) = oneshot::channel();
        if self.commands.send(Command::LetGo { done }).await.is_ok() {
            let _ = is_done.await; // A task that is gone has let go.
        }
    }

    /// Waits until nothing more will happen at once.
    pub async fn settled(&self) -> Snapshot {
        self.wait_until(|snapshot| snapshot.state().is_settled()).await
    }

    /// Waits until `is_so`; a retired instance is whatever it was last.
    pub async fn wait_until(&self, is_so: impl Fn(&Snapshot) -> bool) -> Snapshot {
        let mut published = self.published.clone();
        // An error means that the task is gone: what it last said stays true.
        let _ = published.wait_for(|snapshot| is_so(snapshot)).await;
        published.borrow().clone().seen()
    }
}

fn last_stderr(logs: &LogBook) -> Vec<String> {
    let text = |line: &Line| mask::text(&String::from_utf8_lossy(&line.bytes));
    logs.last_stderr(LAST_LINES).iter().map(text).collect()
}

fn explain(now: &Snapshot, logs: &LogBook) -> String {
    with_last_lines(&now.life.reason.to_string(), &last_stderr(logs))
}

/// Adds the last lines of stderr to the reason of a failure. Long lines are cut.
pub fn with_last_lines(reason: &str, lines: &[String]) -> String {
    let mut text = reason.to_owned();
    if !lines.is_empty() {
        text += "\nlast lines of stderr:";
    }
    for line in lines {
        let end = line.floor_char_boundary(LAST_LINE_BYTES);
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
    fn long_stderr_lines_are_cut() {
        assert_eq!(with_last_lines("exited with code 3", &[]), "exited with code 3");
        let lines = ["boom".to_owned(), "é".repeat(LAST_LINE_BYTES)];
        let told = with_last_lines("exited with code 3", &lines);
        let cut = "é".repeat(LAST_LINE_BYTES / 2);
        assert_eq!(told, format!("exited with code 3\nlast lines of stderr:\nboom\n{cut}…"));
    }

    #[test]
    fn a_key_can_be_read_again() {
        for text in ["a", "a-b@1", "a@18446744073709551615", "a@legacy", "a@modern"] {
            assert_eq!(InstanceKey::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "@1", "a@", "a@b", "a@1@2", "a@Modern", "a@modern@1", "a@-1", "a.b"] {
            assert_eq!(InstanceKey::parse(text), None, "{text}");
        }
    }
}
