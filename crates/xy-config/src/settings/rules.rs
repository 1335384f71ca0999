//! The lifecycle rules of servers.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{DEFAULT_ORPHAN_TIMEOUT, MAX_DURATION};

/// The lifecycle rules of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// The restart rules.
    pub restart: RestartRules,
    /// The stop rules.
    pub stop: StopRules,
    /// The readiness rules.
    pub ready: ReadyRules,
    /// How long the server waits for a new daemon after its own was killed.
    pub orphan_timeout: Duration,
    /// The time limits of calls. Settings that were stored without this field have none.
    #[serde(default)]
    pub calls: CallRules,
    /// The health rules. Settings that were stored without this field use the defaults.
    #[serde(default)]
    pub health: HealthRules,
    /// When the server is started. Settings that were stored without this field start with the
    /// daemon.
    #[serde(default, skip_serializing_if = "Start::is_eager")]
    pub start: Start,
    /// The idle time after which the server sleeps; never, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_stop: Option<Duration>,
}

/// When a server is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Start {
    /// When the daemon starts.
    #[default]
    Eager,
    /// When a client first uses the server.
    Lazy,
}

impl Start {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
    fn is_eager(&self) -> bool {
        *self == Self::Eager
    }
}

/// The time limits of calls to a server; absent limits do not apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CallRules {
    /// Maximum time without any message about the call.
    pub idle: Option<Duration>,
    /// Maximum total time.
    pub within: Option<Duration>,
}

impl Rules {
    /// Returns true if the server may sleep while no client uses it. A call starts it.
    pub fn may_sleep(&self) -> bool {
        self.start == Start::Lazy || self.idle_stop.is_some()
    }

    /// Returns true if no duration exceeds the maximum of a file. Stored settings may be damaged,
    /// and longer durations would overflow a clock.
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
        all.into_iter().all(|duration| *duration <= MAX_DURATION)
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            restart: RestartRules::default(),
            stop: StopRules::default(),
            ready: ReadyRules::default(),
            orphan_timeout: DEFAULT_ORPHAN_TIMEOUT,
            calls: CallRules::default(),
            health: HealthRules::default(),
            start: Start::default(),
            idle_stop: None,
        }
    }
}

/// The rules for restarting a server after an unexpected exit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartRules {
    /// Decides whether the server is restarted.
    pub policy: RestartPolicy,
    /// The first delay, which doubles with each restart.
    pub backoff_initial: Duration,
    /// Maximum delay.
    pub backoff_max: Duration,
    /// Maximum number of unexpected exits within 60 s; 0 disables the limit.
    pub max_retries_per_minute: u32,
    /// Maximum number of restarts in a row; 0 disables the limit.
    pub max_attempts: u32,
    /// The ready uptime after which the count of restarts in a row is reset.
    pub reset_after: Duration,
    /// Whether delays vary randomly by up to a quarter.
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

/// Decides whether a server that exited unexpectedly is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RestartPolicy {
    /// Restart after any exit.
    Always,
    /// Restart unless the exit code was 0.
    OnFailure,
    /// Never restart.
    Never,
}

/// How a server is stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRules {
    /// The time from the stop request to SIGKILL.
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
    /// The readiness probe.
    pub probe: Probe,
    /// Maximum time until the server is ready.
    pub within: Duration,
    /// The path that an `http` probe requests; [`DEFAULT_PROBE_PATH`] if absent.
    #[serde(default)]
    pub path: Option<String>,
    /// The timeout of one attempt of a `tcp` or `http` probe.
    #[serde(default = "default_probe_timeout")]
    pub timeout: Duration,
}

fn default_probe_timeout() -> Duration {
    Duration::from_secs(2)
}

impl Default for ReadyRules {
    fn default() -> Self {
        let within = Duration::from_secs(10);
        Self { probe: Probe::Mcp, within, path: None, timeout: default_probe_timeout() }
    }
}

/// The default path that an `http` probe requests.
pub const DEFAULT_PROBE_PATH: &str = "/mcp/health";

/// How the health of a ready server is probed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthRules {
    /// The health probe.
    pub probe: HealthProbe,
    /// The interval between probes.
    pub interval: Duration,
    /// The timeout of a probe.
    pub timeout: Duration,
    /// The number of failed probes in a row that end the server, unless it shows activity. Never 0.
    pub failures: u32,
    /// The path that an `http` probe requests; [`DEFAULT_PROBE_PATH`] if absent.
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

/// How the health of a server is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HealthProbe {
    /// No probe, and health is not reported.
    Off,
    /// No probe: the server is healthy while its process runs.
    Process,
    /// The server accepts a connection on its port.
    Tcp,
    /// The server answers a GET request with success.
    Http,
    /// The server answers an MCP request.
    Mcp,
}

/// The maximum delay between attempts to reach a remote server. They are not counted, so the delay
/// may be longer than that of a process.
pub const REMOTE_BACKOFF_MAX: Duration = Duration::from_mins(1);

/// How the readiness of a server is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Probe {
    /// Ready once its program runs.
    Process,
    /// Ready once it accepts a connection on its port.
    Tcp,
    /// Ready once it answers a GET request with success.
    Http,
    /// Ready once it has answered an MCP handshake.
    Mcp,
}
