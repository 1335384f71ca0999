//! The rules that servers live by.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{LONGEST, ORPHAN_TIMEOUT};

/// The rules a server lives by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// What happens when it dies.
    pub restart: RestartRules,
    /// How it is ended.
    pub stop: StopRules,
    /// When it counts as ready.
    pub ready: ReadyRules,
    /// How long it waits for a new daemon after its own was killed.
    pub orphan_timeout: Duration,
    /// How long its calls may take. What was stored by a version that knew no such rules has
    /// none.
    #[serde(default)]
    pub calls: CallRules,
    /// How it is found out whether it still works. What was stored by a version that knew no
    /// such rules is judged by the usual ones.
    #[serde(default)]
    pub health: HealthRules,
    /// When it is started. What was stored by a version that knew no other is started with
    /// the daemon.
    #[serde(default, skip_serializing_if = "Start::is_eager")]
    pub start: Start,
    /// It sleeps after it was not used for so long; never, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_stop: Option<Duration>,
}

/// When a server is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Start {
    /// With the daemon.
    #[default]
    Eager,
    /// When it is first used.
    Lazy,
}

impl Start {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks like this")]
    fn is_eager(&self) -> bool {
        *self == Self::Eager
    }
}

/// How long calls to a server may take; for ever, where nothing is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CallRules {
    /// Without a word about it.
    pub idle: Option<Duration>,
    /// In all.
    pub within: Option<Duration>,
}

impl Rules {
    /// Whether it may be away while nobody uses it: a call starts it.
    pub fn may_sleep(&self) -> bool {
        self.start == Start::Lazy || self.idle_stop.is_some()
    }

    /// Whether no duration is longer than a file may say: what was stored may be damaged, and
    /// others would not fit a clock.
    pub fn are_sane(&self) -> bool {
        let Self { restart, stop, ready, orphan_timeout, calls, health, start: _, idle_stop } =
            self;
        let all = [
            restart.backoff_initial,
            restart.backoff_max,
            restart.reset_after,
            stop.grace,
            ready.within,
            ready.timeout,
            *orphan_timeout,
            health.interval,
            health.timeout,
        ];
        let all = all.iter().chain(&calls.idle).chain(&calls.within).chain(idle_stop);
        all.into_iter().all(|duration| *duration <= LONGEST)
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            restart: RestartRules::default(),
            stop: StopRules::default(),
            ready: ReadyRules::default(),
            orphan_timeout: ORPHAN_TIMEOUT,
            calls: CallRules::default(),
            health: HealthRules::default(),
            start: Start::default(),
            idle_stop: None,
        }
    }
}

/// What happens when a server dies unasked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartRules {
    /// Whether it is started again.
    pub policy: RestartPolicy,
    /// The first delay; it doubles from there.
    pub backoff_initial: Duration,
    /// No delay is longer.
    pub backoff_max: Duration,
    /// More unexpected exits than this within 60 s are too many; 0 turns the limit off.
    pub max_retries_per_minute: u32,
    /// More restarts in a row than this are too many; 0 turns the limit off.
    pub max_attempts: u32,
    /// This much ready uptime ends a row.
    pub reset_after: Duration,
    /// Whether delays vary by up to a quarter.
    pub jitter: bool,
}

impl Default for RestartRules {
    fn default() -> Self {
        Self {
            policy: RestartPolicy::OnFailure,
            backoff_initial: Duration::from_secs(1),
            backoff_max: Duration::from_secs(30),
            max_retries_per_minute: 5,
            max_attempts: 5,
            reset_after: Duration::from_secs(60),
            jitter: true,
        }
    }
}

/// Whether a server that died unasked is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RestartPolicy {
    /// Whatever its exit.
    Always,
    /// Unless it exited with code 0.
    OnFailure,
    /// No.
    Never,
}

/// How a server is ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRules {
    /// From the request to the KILL.
    pub grace: Duration,
}

impl Default for StopRules {
    fn default() -> Self {
        Self { grace: Duration::from_secs(10) }
    }
}

/// When a server counts as ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyRules {
    /// How that is found out.
    pub probe: Probe,
    /// It must be so within this time.
    pub within: Duration,
    /// What an `http` probe asks for; [`PROBED_PATH`] if absent.
    #[serde(default)]
    pub path: Option<String>,
    /// How long one try of a `tcp` or `http` probe may take.
    #[serde(default = "one_try")]
    pub timeout: Duration,
}

fn one_try() -> Duration {
    Duration::from_secs(2)
}

impl Default for ReadyRules {
    fn default() -> Self {
        let within = Duration::from_secs(10);
        Self { probe: Probe::Mcp, within, path: None, timeout: one_try() }
    }
}

/// What an `http` probe asks for, unless a file says otherwise.
pub const PROBED_PATH: &str = "/mcp/health";

/// How it is found out whether a server that was ready still works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthRules {
    /// What is asked.
    pub probe: HealthProbe,
    /// From one probe to the next.
    pub interval: Duration,
    /// A probe that is not answered by then has failed.
    pub timeout: Duration,
    /// So many that fail in a row, against all evidence that it lives, end it. Never 0.
    pub failures: u32,
    /// What an `http` probe asks for; [`PROBED_PATH`] if absent.
    pub path: Option<String>,
}

impl Default for HealthRules {
    fn default() -> Self {
        Self {
            probe: HealthProbe::Mcp,
            interval: Duration::from_secs(30),
            timeout: Duration::from_secs(5),
            failures: 3,
            path: None,
        }
    }
}

/// What is asked of a server to see whether it still works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HealthProbe {
    /// Nothing, and nothing is said of it.
    Off,
    /// Nothing: it works as long as it lives.
    Process,
    /// Whether it takes a connection at its port.
    Tcp,
    /// Whether it answers a GET with success.
    Http,
    /// Whether it answers as an MCP server does.
    Mcp,
}

/// How a server that lives somewhere else is tried again: nothing of it is counted, so its
/// delays may grow longer than those of a process.
pub const REMOTE_BACKOFF_MAX: Duration = Duration::from_mins(1);

/// How readiness is found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Probe {
    /// It is ready once its program runs.
    Process,
    /// It is ready once it takes a connection at its port.
    Tcp,
    /// It is ready once it answers a GET with success.
    Http,
    /// It is ready once it has answered as an MCP server does.
    Mcp,
}
