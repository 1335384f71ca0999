//! Why a server is in the state it is in, in words for people.

use std::fmt;
use std::time::Duration;

use xy_protocol::control::quoted_within;
use xy_protocol::size::Size;

/// Maximum characters of a stray line that are told.
const STRAY_CHARS: usize = 80;

/// What helps a server that writes other text than MCP to its stdout.
const LOG_TO_STDERR: &str =
    "have it print its logs to stderr: the stdout of a stdio server is for MCP messages only";

/// How a life ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// The exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether the kernel had killed any of it for want of memory.
    pub oom: Option<Oom>,
}

/// Why the kernel killed for want of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Oom {
    /// The server used more than its limit.
    Limit {
        /// The limit.
        bytes: u64,
    },
    /// The machine, or a group above the server's, had no more.
    Machine,
}

impl Exit {
    /// Nobody saw how it ended.
    pub const UNSEEN: Self = Self { code: None, signal: None, oom: None };

    /// It ended with this code.
    pub fn code(code: i32) -> Self {
        Self { code: Some(code), ..Self::UNSEEN }
    }

    /// Whether somebody has killed it, or the kernel: no program does that to itself.
    pub fn is_by_somebody(self) -> bool {
        use rustix::process::Signal;
        let signals = [Signal::HUP, Signal::INT, Signal::KILL, Signal::TERM];
        self.signal.is_some_and(|signal| signals.iter().any(|it| it.as_raw() == signal))
    }

    /// Only an exit code of 0 is clean: an unasked death by a signal is not.
    pub fn is_clean(self) -> bool {
        self.code == Some(0)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exited with code {code}"),
            (None, Some(signal)) => write!(f, "killed by signal {}", SignalName(signal)),
            (None, None) => write!(f, "ended, nobody saw how"),
        }?;
        // A leader that lives on when one of its children is killed may end in any way.
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
                ", after a process of it was killed for using more than its memory limit ({})",
                Size(bytes)
            ),
            Some(Oom::Machine) => {
                write!(f, ", after a process of it was killed by the kernel, out of memory")
            }
        }
    }
}

/// A signal as people know it.
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

/// Why a life could not begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchFault {
    /// Whether trying again cannot help: the configuration is wrong, not the moment.
    pub permanent: bool,
    /// What went wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// What the reason begins with, in words, for which a server is let go that nobody uses.
pub const GOES_TO_SLEEP: &str = "goes to sleep";

/// Why an instance ends for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retirement {
    /// Somebody removed its server.
    Removed,
    /// The files do not have its server any more.
    Unconfigured,
    /// Its server has changed so much that it has other instances now.
    Replaced,
    /// It was for one client.
    ClientLeft,
    /// The daemon ends, and all servers with it.
    DaemonEnds,
}

impl Retirement {
    /// All there are.
    pub const ALL: [Self; 5] =
        [Self::Removed, Self::Unconfigured, Self::Replaced, Self::ClientLeft, Self::DaemonEnds];

    /// What journals of older versions say of each of them.
    pub const ANY: &str = "removed, or the daemon is ending";
}

impl fmt::Display for Retirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Removed => "removed",
            Self::Unconfigured => "no file configures it any more",
            Self::Replaced => "its file has changed, and another takes its place",
            Self::ClientLeft => "its client has left",
            Self::DaemonEnds => "the daemon is ending",
        })
    }
}

/// How the reason of a new life begins that xy itself needed.
pub const STARTED_OVER: &str = "started again by xy: ";

/// Why a server is in the state it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Nothing has happened yet.
    NotStarted,
    /// One of the same name has been removed and is still ending.
    Predecessor,
    /// An earlier daemon started it.
    Adopted,
    /// A daemon was killed while it was speaking with it, in the middle of a message.
    Torn,
    /// It did not bear the question how it is to be spoken with, and is asked otherwise.
    Probed,
    /// The gateway needs a new life of it, to speak with it otherwise.
    StartedOver(
        /// Why.
        String,
    ),
    /// A start was asked for.
    StartRequested,
    /// It starts when it is first used.
    NotUsed,
    /// Somebody uses it.
    Woken,
    /// Nobody used it.
    Idle(
        /// What whoever spoke with it says of that.
        String,
    ),
    /// A stop was asked for.
    StopRequested,
    /// A restart was asked for.
    RestartRequested,
    /// It was found broken and is started again.
    Repaired(
        /// Who found it, and what.
        String,
    ),
    /// It ends for good.
    RetireRequested(Retirement),
    /// Its file says something else now.
    SettingsChanged,
    /// The probe says that it is ready.
    Ready,
    /// A stop has been carried out.
    StopDone,
    /// A stop took too long and is being forced.
    StopOverdue,
    /// It could not be started.
    LaunchFailed(LaunchFault),
    /// What would run it is not there now, or does not answer.
    Away(LaunchFault),
    /// It was not ready in time.
    NeverReady {
        /// The time it had.
        within: Duration,
        /// The first line on its stdout that is not MCP, if there was one.
        stray: Option<String>,
    },
    /// It cannot be spoken with.
    Unfit(
        /// What whoever spoke with it says of that.
        String,
    ),
    /// It does not answer any more, against all evidence that it works.
    Unhealthy(
        /// What was found.
        String,
    ),
    /// It lives somewhere else and does not answer.
    Unreachable(
        /// What whoever tried says of that.
        String,
    ),
    /// It lives somewhere else and did not answer, or what would run it was away; it is tried
    /// again.
    TriedAgain {
        /// Which try in a row this is.
        attempt: u32,
    },
    /// It ended by itself.
    Exited(Exit),
    /// It is tried again by policy.
    Retry {
        /// Which try in a row this is.
        attempt: u32,
        /// How many there may be; 0 for any number.
        of: u32,
    },
    /// It ended too often within a minute.
    TooManyExits {
        /// How often.
        exits: u32,
        /// How often it may.
        limit: u32,
        /// What happened last.
        last: Box<Reason>,
    },
    /// It was tried too often in a row.
    TooManyAttempts {
        /// How often.
        attempts: u32,
        /// What happened last.
        last: Box<Reason>,
    },
}

impl Reason {
    /// Returns true if xy ends the server because the server does not work.
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::NeverReady { .. } | Self::Unfit(_) | Self::Unhealthy(_))
    }

    /// Returns true if xy ends the server because a probe or the self-test found it hung.
    pub fn is_hang(&self) -> bool {
        matches!(self, Self::Unhealthy(_) | Self::Repaired(_))
    }

    /// What to do about it, where somebody knows.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::LaunchFailed(fault) | Self::Away(fault) => fault.hint.as_deref(),
            Self::NeverReady { stray: Some(_), .. } => Some(LOG_TO_STDERR),
            Self::TooManyExits { last, .. } | Self::TooManyAttempts { last, .. } => last.hint(),
            _ => None,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted => write!(f, "not started yet"),
            Self::Predecessor => write!(f, "waiting for the end of its predecessor"),
            Self::Adopted => write!(f, "taken over from an earlier daemon"),
            Self::Torn => write!(f, "its daemon was killed in the middle of a message to it"),
            Self::Probed => write!(f, "it did not bear its first question, and is asked another"),
            Self::StartedOver(why) => write!(f, "{STARTED_OVER}{why}"),
            Self::StartRequested => write!(f, "start requested"),
            Self::NotUsed => write!(f, "it starts when it is first used"),
            Self::Woken => write!(f, "somebody uses it"),
            Self::StopRequested => write!(f, "stop requested"),
            Self::RestartRequested => write!(f, "restart requested"),
            Self::RetireRequested(why) => write!(f, "{why}"),
            Self::SettingsChanged => write!(f, "its file has changed"),
            Self::Ready => write!(f, "ready"),
            Self::StopDone => write!(f, "stopped as requested"),
            Self::StopOverdue => write!(f, "the stop took too long and is being forced"),
            Self::LaunchFailed(fault) | Self::Away(fault) => write!(f, "{}", fault.message),
            Self::NeverReady { within, stray: None } => write!(f, "not ready within {within:?}"),
            Self::NeverReady { within, stray: Some(line) } => write!(
                f,
                "not ready within {within:?}, and it wrote text to stdout that is not MCP: `{}`",
                quoted_within(line, STRAY_CHARS)
            ),
            Self::Idle(why) => write!(f, "{GOES_TO_SLEEP}: {why}"),
            Self::Repaired(why)
            | Self::Unfit(why)
            | Self::Unhealthy(why)
            | Self::Unreachable(why) => write!(f, "{why}"),
            Self::TriedAgain { attempt } => write!(f, "attempt {attempt} to reach it"),
            Self::Exited(exit) => write!(f, "{exit}"),
            Self::Retry { attempt, of: 0 } => write!(f, "attempt {attempt}"),
            Self::Retry { attempt, of } if attempt == of => {
                write!(f, "last attempt ({attempt} of {of})")
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
    fn stray_text_is_named_cut_and_escaped() {
        let never = |stray: Option<String>| {
            let reason = Reason::NeverReady { within: Duration::from_secs(10), stray };
            (reason.to_string(), reason.hint().map(str::to_owned))
        };
        assert_eq!(never(None), ("not ready within 10s".to_owned(), None));
        let (told, hint) = never(Some(format!("\u{1b}[1m{}", "x".repeat(99))));
        let line = format!("\\u{{1b}}[1m{}…", "x".repeat(STRAY_CHARS - 4));
        let expected =
            format!("not ready within 10s, and it wrote text to stdout that is not MCP: `{line}`");
        assert_eq!((told, hint.as_deref()), (expected, Some(LOG_TO_STDERR)));
    }

    #[test]
    fn a_kill_for_want_of_memory_is_named_as_such() {
        let limit = Some(Oom::Limit { bytes: 64 << 20 });
        let exits = [
            Exit { signal: Some(9), oom: limit, ..Exit::UNSEEN },
            Exit { signal: Some(9), oom: Some(Oom::Machine), ..Exit::UNSEEN },
            Exit { oom: limit, ..Exit::code(1) },
            Exit { oom: Some(Oom::Machine), ..Exit::code(1) },
        ];
        insta::assert_snapshot!(exits.map(|exit| exit.to_string()).join("\n"), @"
        killed by signal 9 (SIGKILL): it used more than its memory limit (64 MiB)
        killed by signal 9 (SIGKILL) by the kernel, which was out of memory
        exited with code 1, after a process of it was killed for using more than its memory limit (64 MiB)
        exited with code 1, after a process of it was killed by the kernel, out of memory
        ");
    }
}
