//! The reasons of server states, and their texts.

use std::fmt;
use std::time::Duration;

use xy_protocol::control::quoted_within;
use xy_protocol::size::Size;

/// Maximum characters of an unparsed line that are shown.
const MAX_UNPARSED_CHARS: usize = 80;

/// The hint for a server that writes other text than MCP to stdout.
const LOG_TO_STDERR: &str =
    "have it print its logs to stderr: the stdout of a stdio server is for MCP messages only";

/// How a life ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// The exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The cause, if the OOM killer ended any of its processes.
    pub oom: Option<Oom>,
    /// The number of clients' calls that it left unanswered, if it exited by itself.
    pub unanswered: usize,
}

/// Why the OOM killer ended a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Oom {
    /// The server used more than its limit.
    Limit {
        /// The limit.
        bytes: u64,
    },
    /// The machine, or a cgroup above that of the server, was out of memory.
    Machine,
}

impl Exit {
    /// An exit that xy did not observe.
    pub const UNKNOWN: Self = Self { code: None, signal: None, oom: None, unanswered: 0 };

    /// Returns an exit with this code.
    pub fn code(code: i32) -> Self {
        Self { code: Some(code), ..Self::UNKNOWN }
    }

    /// Returns true if a user or the kernel killed the process. Programs do not raise these signals
    /// themselves.
    pub fn is_external_kill(self) -> bool {
        use rustix::process::Signal;
        let signals = [Signal::HUP, Signal::INT, Signal::KILL, Signal::TERM];
        self.signal.is_some_and(|signal| signals.iter().any(|it| it.as_raw() == signal))
    }

    /// Returns true for exit code 0 without an unanswered call. An unrequested death by a signal is
    /// not clean.
    pub fn is_clean(self) -> bool {
        self.code == Some(0) && self.unanswered == 0
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(0), _) if self.unanswered == 1 => {
                write!(f, "exited with code 0 without answering a call")
            }
            (Some(0), _) if self.unanswered > 1 => {
                write!(f, "exited with code 0 without answering {} calls", self.unanswered)
            }
            (Some(code), _) => write!(f, "exited with code {code}"),
            (None, Some(signal)) => write!(f, "killed by signal {}", SignalName(signal)),
            (None, None) => write!(f, "ended with unknown exit status"),
        }?;
        // A leader that survives the kill of a child may exit in any way.
        let is_killed = self.signal == Some(rustix::process::Signal::KILL.as_raw());
        match self.oom {
            None => Ok(()),
            Some(Oom::Limit { bytes }) if is_killed => {
                write!(f, ": it used more than its memory limit ({})", Size(bytes))
            }
            Some(Oom::Machine) if is_killed => {
                write!(f, " by the kernel, which was out of memory")
            }
            Some(Oom::Limit { bytes }) => write!(
                f,
                ", after one of its processes was killed for using more than its memory limit ({})",
                Size(bytes)
            ),
            Some(Oom::Machine) => {
                write!(f, ", after the kernel, out of memory, killed one of its processes")
            }
        }
    }
}

/// The display of a signal with its name.
struct SignalName(i32);

impl fmt::Display for SignalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use rustix::process::Signal;
        let known = [
            (Signal::HUP, "SIGHUP"),
            (Signal::INT, "SIGINT"),
            (Signal::QUIT, "SIGQUIT"),
            (Signal::ILL, "SIGILL"),
            (Signal::TRAP, "SIGTRAP"),
            (Signal::ABORT, "SIGABRT"),
            (Signal::BUS, "SIGBUS"),
            (Signal::FPE, "SIGFPE"),
            (Signal::KILL, "SIGKILL"),
            (Signal::SEGV, "SIGSEGV"),
            (Signal::PIPE, "SIGPIPE"),
            (Signal::ALARM, "SIGALRM"),
            (Signal::TERM, "SIGTERM"),
            (Signal::SYS, "SIGSYS"),
        ];
        let name = known.into_iter().find(|(signal, _)| signal.as_raw() == self.0);
        match name {
            Some((_, name)) => write!(f, "{} ({name})", self.0),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Why a launch failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchFault {
    /// Whether a retry cannot help, because the configuration is wrong.
    pub permanent: bool,
    /// The error message.
    pub message: String,
    /// A hint for the user, if there is one.
    pub hint: Option<String>,
}

/// The beginning of the reason for which an idle server is stopped. Readers of the journal rely on
/// it.
pub const GOES_TO_SLEEP: &str = "goes to sleep";

/// Why an instance is retired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retirement {
    /// A user removed the server.
    Removed,
    /// No file configures the server any more.
    Unconfigured,
    /// The settings of the server require other instances.
    Replaced,
    /// The instance served one client, which has left.
    ClientLeft,
    /// The daemon ends, and all servers with it.
    DaemonEnds,
}

impl Retirement {
    /// All variants.
    pub const ALL: [Self; 5] =
        [Self::Removed, Self::Unconfigured, Self::Replaced, Self::ClientLeft, Self::DaemonEnds];

    /// The text of each variant in journals of older versions.
    pub const ANY: &str = "removed, or the daemon is ending";
}

impl fmt::Display for Retirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Removed => "removed",
            Self::Unconfigured => "no file configures it any more",
            Self::Replaced => "its file has changed, and a new instance replaces it",
            Self::ClientLeft => "its client has left",
            Self::DaemonEnds => "the daemon is ending",
        })
    }
}

/// The beginning of the reason for a restart that xy itself needed. Readers of the journal rely on
/// it.
pub const RESTARTED_BY_XY: &str = "started again by xy: ";

/// Why a server is in the state it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Nothing has happened yet.
    NotStarted,
    /// An instance with the same key is still ending.
    WaitingForPredecessor,
    /// An earlier daemon started the server.
    Adopted,
    /// An earlier daemon was killed while it was writing a message to the server.
    WriteInterrupted,
    /// The server failed on the protocol probe, and the driver tries another protocol.
    ProtocolProbeFailed,
    /// The driver needs a new life to use another protocol.
    RestartRequired(
        /// The explanation of the driver.
        String,
    ),
    /// A user requested a start.
    StartRequested,
    /// The server starts on its first use.
    NotUsedYet,
    /// A client uses the server.
    WakeRequested,
    /// The server was idle.
    Idle(
        /// The explanation of the driver.
        String,
    ),
    /// A user requested a stop.
    StopRequested,
    /// A user requested a restart.
    RestartRequested,
    /// The server was found broken and is restarted.
    Repaired(
        /// The finding.
        String,
    ),
    /// The instance is retired.
    RetireRequested(Retirement),
    /// The settings have changed.
    SettingsChanged,
    /// The readiness probe has succeeded.
    Ready,
    /// A stop has finished.
    StopDone,
    /// A stop took too long and is forced.
    StopOverdue,
    /// The launch failed.
    LaunchFailed(LaunchFault),
    /// The container engine is not running, or does not answer.
    EngineUnavailable(LaunchFault),
    /// The server was not ready in time.
    NeverReady {
        /// The time limit.
        within: Duration,
        /// The first line on its stdout that is not MCP, if there was one.
        unparsed_output: Option<String>,
    },
    /// The server violates the protocol.
    ProtocolError(
        /// The explanation of the driver.
        String,
    ),
    /// The server hangs.
    Unhealthy(
        /// The finding.
        String,
    ),
    /// The remote server does not answer.
    Unreachable(
        /// The explanation of the driver.
        String,
    ),
    /// xy tries again to reach a remote server or its engine.
    ReconnectAttempt {
        /// The number of this attempt in a row.
        attempt: u32,
    },
    /// The server exited by itself.
    Exited(Exit),
    /// The server is restarted by policy.
    Retry {
        /// The number of this restart in a row.
        attempt: u32,
        /// Maximum number of restarts in a row; 0 for no limit.
        of: u32,
    },
    /// The server exited too often within a minute.
    TooManyExits {
        /// The number of exits.
        exits: u32,
        /// Maximum number of exits.
        limit: u32,
        /// The reason of the last exit.
        last: Box<Reason>,
    },
    /// The server was restarted too often in a row.
    TooManyAttempts {
        /// The number of restarts.
        attempts: u32,
        /// The reason of the last failure.
        last: Box<Reason>,
    },
}

impl Reason {
    /// Returns true if xy ends the server because the server does not work.
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::NeverReady { .. } | Self::ProtocolError(_) | Self::Unhealthy(_))
    }

    /// Returns true if xy ends the server because a probe or the self-test found it hung.
    pub fn is_hang(&self) -> bool {
        matches!(self, Self::Unhealthy(_) | Self::Repaired(_))
    }

    /// Returns what the user can do about it, if that is known.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::LaunchFailed(fault) | Self::EngineUnavailable(fault) => fault.hint.as_deref(),
            Self::NeverReady { unparsed_output: Some(_), .. } => Some(LOG_TO_STDERR),
            Self::TooManyExits { last, .. } | Self::TooManyAttempts { last, .. } => last.hint(),
            _ => None,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted => write!(f, "not started yet"),
            Self::WaitingForPredecessor => write!(f, "waiting for the previous instance to exit"),
            Self::Adopted => write!(f, "taken over from an earlier daemon"),
            Self::WriteInterrupted => {
                write!(f, "the daemon was killed while writing a message to it")
            }
            Self::ProtocolProbeFailed => {
                write!(f, "it failed on the protocol probe, and another protocol is tried")
            }
            Self::RestartRequired(why) => write!(f, "{RESTARTED_BY_XY}{why}"),
            Self::StartRequested => write!(f, "start requested"),
            Self::NotUsedYet => write!(f, "it starts when it is first used"),
            Self::WakeRequested => write!(f, "woken by a client"),
            Self::StopRequested => write!(f, "stop requested"),
            Self::RestartRequested => write!(f, "restart requested"),
            Self::RetireRequested(why) => write!(f, "{why}"),
            Self::SettingsChanged => write!(f, "its file has changed"),
            Self::Ready => write!(f, "ready"),
            Self::StopDone => write!(f, "stopped as requested"),
            Self::StopOverdue => write!(f, "the stop took too long and is being forced"),
            Self::LaunchFailed(fault) | Self::EngineUnavailable(fault) => {
                write!(f, "{}", fault.message)
            }
            Self::NeverReady { within, unparsed_output: None } => {
                write!(f, "not ready within {within:?}")
            }
            Self::NeverReady { within, unparsed_output: Some(line) } => write!(
                f,
                "not ready within {within:?}, and it wrote text to stdout that is not MCP: `{}`",
                quoted_within(line, MAX_UNPARSED_CHARS)
            ),
            Self::Idle(why) => write!(f, "{GOES_TO_SLEEP}: {why}"),
            Self::Repaired(why)
            | Self::ProtocolError(why)
            | Self::Unhealthy(why)
            | Self::Unreachable(why) => write!(f, "{why}"),
            Self::ReconnectAttempt { attempt } => write!(f, "attempt {attempt} to reach it"),
            Self::Exited(exit) => write!(f, "{exit}"),
            Self::Retry { attempt, of: 0 } => write!(f, "attempt {attempt}"),
            Self::Retry { attempt, of } if attempt == of => {
                write!(f, "final restart attempt ({attempt} of {of})")
            }
            Self::Retry { attempt, of } => write!(f, "attempt {attempt} of {of}"),
            Self::TooManyExits { exits, limit, last } => write!(
                f,
                "{last}; {exits} unexpected exits within 60 s (max-retries-per-minute is {limit})"
            ),
            Self::TooManyAttempts { attempts, last } => {
                let restarts = if *attempts == 1 { "restart" } else { "restarts in a row" };
                write!(f, "{last}; gave up after {attempts} {restarts} (max-attempts)")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stray_text_is_truncated_and_escaped() {
        let never = |unparsed_output: Option<String>| {
            let reason = Reason::NeverReady { within: Duration::from_secs(10), unparsed_output };
            (reason.to_string(), reason.hint().map(str::to_owned))
        };
        assert_eq!(never(None), ("not ready within 10s".to_owned(), None));
        let (text, hint) = never(Some(format!("\u{1b}[1m{}", "x".repeat(99))));
        let line = format!("\\u{{1b}}[1m{}…", "x".repeat(MAX_UNPARSED_CHARS - 4));
        let expected =
            format!("not ready within 10s, and it wrote text to stdout that is not MCP: `{line}`");
        assert_eq!((text, hint.as_deref()), (expected, Some(LOG_TO_STDERR)));
    }

    #[test]
    fn clean_exit_leaves_no_call_unanswered() {
        let exits = [0, 1, 2].map(|unanswered| Exit { unanswered, ..Exit::code(0) });
        assert_eq!(exits.map(Exit::is_clean), [true, false, false]);
        insta::assert_snapshot!(exits.map(|exit| exit.to_string()).join("\n"), @"
        exited with code 0
        exited with code 0 without answering a call
        exited with code 0 without answering 2 calls
        ");
    }

    #[test]
    fn out_of_memory_kill_is_named() {
        let limit = Some(Oom::Limit { bytes: 64 << 20 });
        let exits = [
            Exit { signal: Some(9), oom: limit, ..Exit::UNKNOWN },
            Exit { signal: Some(9), oom: Some(Oom::Machine), ..Exit::UNKNOWN },
            Exit { oom: limit, ..Exit::code(1) },
            Exit { oom: Some(Oom::Machine), ..Exit::code(1) },
        ];
        insta::assert_snapshot!(exits.map(|exit| exit.to_string()).join("\n"), @"
        killed by signal 9 (SIGKILL): it used more than its memory limit (64 MiB)
        killed by signal 9 (SIGKILL) by the kernel, which was out of memory
        exited with code 1, after one of its processes was killed for using more than its memory limit (64 MiB)
        exited with code 1, after the kernel, out of memory, killed one of its processes
        ");
    }
}
