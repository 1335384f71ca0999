//! The reasons why a server does not answer a request.
//!
//! They do not name the server: a process can have several names, and each caller reads the one
//! that it used. [`ServerFault::named`] is the only place where such a reason becomes text.

use std::borrow::Cow;
use std::time::Duration;

use xy_mcp::reply::format_duration;
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;
use xy_protocol::size::Size;
use xy_supervisor::instance::Holder;
use xy_transport::message_text::MAX_MESSAGE;

/// Advice for clients that wait for each other.
pub const ISOLATION_ADVICE: &str = "write `isolation \"client\"`";

/// Why a server does not answer a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerFault {
    /// The server gets no more requests.
    Closed,
    /// The server has ended.
    Gone,
    /// The server has ended the request.
    Cancelled,
    /// This many requests are open.
    TooManyOpen(usize),
    /// The server does not read its input.
    NotReading,
    /// The caller's token has this many of at most `most` open calls.
    CallShare {
        /// The calls of the token.
        own: usize,
        /// The limit.
        most: usize,
    },
    /// The server has not read this many bytes of the caller's token, of at most `most`.
    UnreadShare {
        /// The bytes of the token.
        own: usize,
        /// The limit.
        most: usize,
    },
    /// The response is malformed, for this reason.
    Malformed(String),
    /// The response is too long.
    TooLong,
    /// Too many large responses are incomplete.
    TooManyPartial,
    /// The server refused the request, for this reason.
    Refused(RefusalKind, String),
    /// The server has not read the call.
    Unread {
        /// What the server does meanwhile.
        busy: String,
        /// How long the call waited.
        wait: Duration,
        /// The process serves several clients.
        is_shared: bool,
    },
    /// The server or the connection ended before the response.
    Lost {
        /// The server may have read the request.
        is_written: bool,
        /// Why there is no response.
        cause: Cause,
    },
    /// Too many requests wait to subscribe to events.
    TooManySubscribing,
    /// There is no event subscription; it was tried for this long, if at all.
    NotSubscribed(Option<Duration>),
    /// The event subscription failed with this error.
    SubscriptionFailed(ErrorKind, String),
    /// The server is not running, for this reason.
    Down {
        /// Why it is not running.
        why: String,
        /// The server was removed.
        is_removed: bool,
    },
    /// The instance failed, for this reason.
    InstanceFailed(String),
    /// No instance could be started for this holder, for this reason.
    NoInstance(Holder, String),
    /// A limit on instances is reached.
    NoRoom {
        /// The limit.
        cause: String,
        /// The advice for the user.
        hint: String,
    },
    /// The caller's token has this many of at most `most` instances.
    InstanceShare {
        /// The instances of the token.
        own: usize,
        /// The limit.
        most: usize,
    },
    /// The server is still starting.
    Starting,
    /// A limit on queued calls is reached.
    QueueFull {
        /// The limit is on all servers together.
        is_total: bool,
        /// The setting within `park`.
        setting: &'static str,
        /// The limit.
        most: String,
    },
    /// The caller's token has its share of the queued calls or of their bytes.
    QueueShare {
        /// The limit is on all servers together.
        is_total: bool,
        /// The setting within `park`.
        setting: &'static str,
        /// The amount that the token holds.
        own: String,
        /// The limit.
        most: String,
    },
    /// The call waited too long in the queue.
    WaitTimeout(WaitTimeout),
}

/// How a server refused a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusalKind {
    /// 401.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 429, and when to try again.
    TooMany(Option<String>),
    /// Another status.
    Other,
}

/// A call that waited too long in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitTimeout {
    /// `QueueFull` for the queue timeout, and `TimedOut` for the total timeout of the call.
    pub kind: ErrorKind,
    /// How long it waited.
    pub waited: Duration,
    /// The queue timeout, if that ended the wait.
    pub queue: Option<Duration>,
    /// The call was sent to an earlier life.
    pub was_written: bool,
    /// What it waited for.
    pub awaited: WaitReason,
}

/// What a queued call waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitReason {
    /// An instance that failed, for this reason.
    Failed(String),
    /// An instance that starts, with its progress if that is known.
    Start(Option<String>),
    /// An instance that was busy; false if it serves one client only.
    Busy {
        /// The process serves several clients.
        is_shared: bool,
    },
}

/// How a server or the connection to it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Only the connection broke; the server may still run.
    is_breach: bool,
    reason: LossReason,
}

/// Why a server or the connection to it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LossReason {
    /// What the server did, such as "closed its stdout".
    Server(Cow<'static, str>),
    /// A report about the server, such as "it answered 500".
    Report(String),
    /// Something that does not concern the server, such as "another daemon took over".
    Other(Cow<'static, str>),
}

impl LossReason {
    /// Creates the reason from what the server did.
    pub fn server(predicate: impl Into<Cow<'static, str>>) -> Self {
        Self::Server(predicate.into())
    }

    /// Another daemon took over.
    pub fn taken_over() -> Self {
        Self::Other("another daemon took over".into())
    }

    /// Returns the text for a caller that uses this name.
    pub fn named(&self, server: &ServerName) -> String {
        match self {
            Self::Server(predicate) => format!("`{server}` {predicate}"),
            Self::Report(report) => format!("`{server}`: {report}"),
            Self::Other(words) => words.to_string(),
        }
    }
}

impl Cause {
    /// The server has ended, or gets no more requests.
    pub fn end(reason: LossReason) -> Self {
        Self { is_breach: false, reason }
    }

    /// The connection to the server broke.
    pub fn breach(reason: LossReason) -> Self {
        Self { is_breach: true, reason }
    }
}

impl ServerFault {
    /// Returns the error kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Closed
            | Self::Gone
            | Self::Cancelled
            | Self::NotSubscribed(_)
            | Self::Down { .. }
            | Self::InstanceFailed(_)
            | Self::NoInstance(..)
            | Self::Starting
            | Self::Lost { is_written: false, .. } => ErrorKind::NotRunning,
            Self::TooManyOpen(_)
            | Self::NotReading
            | Self::CallShare { .. }
            | Self::UnreadShare { .. }
            | Self::TooManySubscribing
            | Self::NoRoom { .. }
            | Self::InstanceShare { .. }
            | Self::QueueFull { .. }
            | Self::QueueShare { .. }
            | Self::Refused(RefusalKind::TooMany(_), _) => ErrorKind::QueueFull,
            Self::Malformed(_) | Self::TooLong | Self::Refused(RefusalKind::Other, _) => {
                ErrorKind::Internal
            }
            Self::Refused(RefusalKind::Unauthorized | RefusalKind::Forbidden, _) => {
                ErrorKind::NotAllowed
            }
            Self::Unread { .. } => ErrorKind::TimedOut,
            Self::Lost { is_written: true, cause } if cause.is_breach => ErrorKind::TransportFailed,
            Self::TooManyPartial | Self::Lost { is_written: true, .. } => ErrorKind::OutcomeUnknown,
            Self::SubscriptionFailed(kind, _) => *kind,
            Self::WaitTimeout(wait) => wait.kind,
        }
    }

    /// Returns the error for a caller that uses this name for the server.
    #[expect(clippy::too_many_lines, reason = "a table: one arm for each fault")]
    pub fn named(&self, server: &ServerName) -> CallError {
        let fault = |message: String| CallError::new(self.kind(), message);
        match self {
            Self::Closed => fault(format!("`{server}` is not running")),
            Self::Gone => fault("the server has ended".to_owned()),
            Self::Cancelled => fault("the server has ended it".to_owned()),
            Self::TooManyOpen(most) => fault(format!("`{server}` cannot take more calls"))
                .cause(format!("{most} are open")),
            Self::NotReading => fault(format!("`{server}` cannot take more calls"))
                .cause("it does not read its input"),
            Self::CallShare { own, most } => {
                fault(format!("`{server}` takes no more calls of this token"))
                    .cause(format!(
                        "{own} of its calls are open there; the others of {most} are reserved for other tokens"
                    ))
                    .hint("wait for some of them, or try again later")
            }
            Self::UnreadShare { own, most } => {
                let [own, most] = [own, most].map(|bytes| Size(*bytes as u64));
                fault(format!("`{server}` takes no more calls of this token"))
                    .cause(format!(
                        "it has not read {own} of its calls, of at most {most}; the rest is reserved for other tokens"
                    ))
                    .hint("try again later")
            }
            Self::Malformed(why) => {
                fault(format!("`{server}` sent a malformed response")).cause(why)
            }
            Self::TooLong => {
                let limit = MAX_MESSAGE >> 20;
                fault(format!("the answer of `{server}` is longer than {limit} MiB"))
                    .cause("xy does not pass on such answers")
            }
            Self::TooManyPartial => fault(format!("the answer of `{server}` was not read"))
                .cause("too many of its answers are large and unfinished")
                .hint("find out whether it was executed before you repeat it"),
            Self::Refused(refusal, why) => {
                let fault = fault(format!("not done: `{server}` refused it")).cause(why);
                match refusal {
                    RefusalKind::Unauthorized => {
                        fault.hint(format!("check `headers` in the settings of `{server}`"))
                    }
                    RefusalKind::Forbidden => fault,
                    RefusalKind::TooMany(Some(after)) => {
                        fault.hint(format!("try again in {after}"))
                    }
                    RefusalKind::TooMany(None) => fault.hint("try again later"),
                    RefusalKind::Other => fault.hint(format!("check the address of `{server}`")),
                }
            }
            Self::Unread { busy, wait, is_shared } => {
                let apart = if *is_shared { "write `isolation \"client\"`, " } else { "" };
                fault(format!("`{server}` did not read the call within {wait:?}"))
                    .cause(format!(
                        "{busy}; the call was cancelled, but the server may still execute it when it reads on"
                    ))
                    .hint(format!(
                        "find out whether it was executed before you repeat it; run `xy restart \
                         {server}`, {apart}or raise `park {{ queue }}`"
                    ))
            }
            Self::Lost { is_written, cause } => cause.fault(server, self.kind(), *is_written),
            Self::TooManySubscribing => {
                fault(format!("too many requests wait to subscribe to events of `{server}`"))
                    .hint("try again later")
            }
            Self::NotSubscribed(tried) => {
                let fault = fault(format!("there is no event subscription at `{server}`"));
                match tried {
                    Some(tried) => fault.cause(format!("it took longer than {tried:?}")),
                    None => fault,
                }
            }
            Self::SubscriptionFailed(_, why) => {
                fault(format!("could not subscribe to events of `{server}`")).cause(why)
            }
            Self::Down { why, is_removed } => {
                let hint = if *is_removed {
                    "`xy list` shows all servers".to_owned()
                } else {
                    format!(
                        "`xy logs {server}` shows its last output, and `xy start {server}` starts it"
                    )
                };
                fault(format!("`{server}` is not running")).cause(why).hint(hint)
            }
            Self::InstanceFailed(why) => {
                fault(format!("`{server}` is not running")).cause(why).hint(format!(
                    "fix the problem above, then run `xy restart {server}` or connect again; \
                     `xy status {server}` shows more"
                ))
            }
            Self::NoInstance(holder, why) => {
                let whose = match holder {
                    Holder::Shared => "",
                    Holder::Client(_) => " for this client",
                    Holder::Era(_) => " for clients of this MCP era",
                };
                fault(format!("no instance of `{server}`{whose}")).cause(why)
            }
            Self::NoRoom { cause, hint } => {
                fault(format!("there is no room for an instance of `{server}`"))
                    .cause(cause)
                    .hint(hint.clone())
            }
            Self::InstanceShare { own, most } => {
                fault(format!("there is no room for another instance of `{server}`"))
                    .cause(format!(
                        "clients with this token have {own} of at most {most} instances; the others \
                         are reserved for other tokens"
                    ))
                    .hint(
                        "end some of these clients, or raise `most` in `instances { … }` of xy.kdl",
                    )
            }
            Self::Starting => fault(format!("`{server}` is still starting"))
                .cause("it is not ready yet")
                .hint(format!("try again later; `xy status {server}` shows its state")),
            Self::QueueFull { is_total, setting, most } => {
                fault(format!("too many calls wait for {}", awaited_by(*is_total, server)))
                    .cause(format!("at most {most} may wait (`park {{ {setting} }}`)"))
                    .hint(format!(
                        "try again later, or raise `park {{ {setting} … }}` in `xy.kdl` and \
                         restart the daemon"
                    ))
            }
            Self::QueueShare { is_total, setting, own, most } => {
                let whom = awaited_by(*is_total, server);
                fault(format!("too many calls of this token wait for {whom}"))
                    .cause(format!(
                        "it holds {own} of at most {most} (`park {{ {setting} }}`); the rest is \
                         reserved for other tokens"
                    ))
                    .hint(format!(
                        "try again later, or raise `park {{ {setting} … }}` in `xy.kdl` and \
                         restart the daemon"
                    ))
            }
            Self::WaitTimeout(wait) => wait.fault(server),
        }
    }
}

/// Returns what queued calls wait for.
fn awaited_by(is_total: bool, server: &ServerName) -> String {
    if is_total { "all servers together".to_owned() } else { format!("`{server}`") }
}

impl Cause {
    fn fault(&self, server: &ServerName, kind: ErrorKind, is_written: bool) -> CallError {
        let words = self.reason.named(server);
        if !is_written {
            return CallError::new(kind, format!("not done: {words}"))
                .cause(format!("the call was not sent to `{server}` yet"))
                .hint("try again");
        }
        let (how, look) = if self.is_breach {
            (
                "the connection broke before it answered",
                format!("`xy status {server}` shows how it is"),
            )
        } else {
            ("not answered", format!("`xy logs {server}` shows its last output"))
        };
        CallError::new(kind, format!("outcome unknown: {words}"))
            .cause(format!("the call was sent to `{server}`, and {how}"))
            .hint(format!("find out whether it was executed before you repeat it; {look}"))
    }
}

impl WaitTimeout {
    fn fault(&self, server: &ServerName) -> CallError {
        let waited = format_duration(self.waited);
        let not_sent = (!self.was_written).then_some("the call was not sent");
        let fault = |message: String, cause: Option<String>| CallError {
            cause,
            ..CallError::new(self.kind, message)
        };
        match &self.awaited {
            WaitReason::Failed(why) => {
                let cause = not_sent.map_or(why.clone(), |it| format!("{it}; {why}"));
                fault(format!("`{server}` did not come up"), Some(cause))
                    .hint(format!("fix the problem above; `xy status {server}` shows more"))
            }
            WaitReason::Start(Some(progress)) => {
                let message = format!(
                    "`{server}` did not come up within {waited}, as it is still {progress}"
                );
                fault(message, self.cause(not_sent)).hint(self.advice(format!(
                    "that goes on: try again later; `xy status {server}` says how far it is"
                )))
            }
            WaitReason::Start(None) => {
                let message = format!("`{server}` did not come up within {waited}");
                fault(message, self.cause(not_sent))
                    .hint(self.advice(format!("`xy status {server}` shows its state")))
            }
            WaitReason::Busy { is_shared } => {
                let (with, one, hint) = if *is_shared {
                    let hint =
                        format!("{ISOLATION_ADVICE} in the file of `{server}`, or try again later");
                    ("another client", "client", hint)
                } else {
                    let hint = "make fewer calls of it at once, or try again later";
                    ("another call", "call", hint.to_owned())
                };
                let message = format!("`{server}` was busy with {with} for {waited}");
                let why = format!("it asks questions, so it serves one {one} at a time");
                fault(message, self.cause(Some(&format!("{why}; the call was not sent"))))
                    .hint(self.advice(hint))
            }
        }
    }

    /// Joins `reason` and the queue timeout that ended the wait.
    fn cause(&self, reason: Option<&str>) -> Option<String> {
        let queue =
            self.queue.map(|most| format!("calls wait at most {most:?} (`park {{ queue }}`)"));
        match (reason, queue) {
            (Some(reason), Some(queue)) => Some(format!("{reason}; {queue}")),
            (reason, queue) => reason.map(str::to_owned).or(queue),
        }
    }

    /// Adds advice to raise the queue timeout, if that ended the wait.
    fn advice(&self, advice: String) -> String {
        match self.queue {
            None => advice,
            Some(_) => advice + "; or raise `park { queue }` and restart the daemon",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn killed(is_breach: bool) -> Cause {
        Cause { is_breach, reason: LossReason::server("was killed") }
    }

    fn late(kind: ErrorKind, awaited: WaitReason) -> ServerFault {
        let queue = (kind == ErrorKind::QueueFull).then_some(Duration::from_secs(30));
        let waited = Duration::from_secs(5);
        ServerFault::WaitTimeout(WaitTimeout { kind, waited, queue, was_written: false, awaited })
    }

    /// Returns kind, message, cause and hint for a caller that uses this name.
    fn text(fault: &ServerFault, name: &str) -> String {
        let error = fault.named(&ServerName::new(name).unwrap());
        assert_eq!(error.kind, fault.kind());
        let part = |part: Option<String>| part.map(|it| format!(" | {it}")).unwrap_or_default();
        format!("{:?}: {}{}{}", error.kind, error.message, part(error.cause), part(error.hint))
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table: one row for each fault")]
    fn faults_use_the_name_of_the_caller() {
        use RefusalKind::{Forbidden, Other, TooMany, Unauthorized};
        let refused = |kind| ServerFault::Refused(kind, "it answered 4xx".to_owned());
        let lost =
            |is_written, is_breach| ServerFault::Lost { is_written, cause: killed(is_breach) };
        let why = || "it crashed".to_owned();
        let rows: [(ServerFault, &str); 33] = [
            (ServerFault::Closed, "NotRunning: `a` is not running"),
            (ServerFault::Gone, "NotRunning: the server has ended"),
            (ServerFault::Cancelled, "NotRunning: the server has ended it"),
            (ServerFault::TooManyOpen(9), "QueueFull: `a` cannot take more calls | 9 are open"),
            (
                ServerFault::NotReading,
                "QueueFull: `a` cannot take more calls | it does not read its input",
            ),
            (
                ServerFault::CallShare { own: 3, most: 9 },
                "QueueFull: `a` takes no more calls of this token | 3 of its calls are open there; the others of 9 are reserved for other tokens | wait for some of them, or try again later",
            ),
            (
                ServerFault::UnreadShare { own: 3 << 10, most: 64 << 20 },
                "QueueFull: `a` takes no more calls of this token | it has not read 3 KiB of its calls, of at most 64 MiB; the rest is reserved for other tokens | try again later",
            ),
            (ServerFault::Malformed(why()), "Internal: `a` sent a malformed response | it crashed"),
            (
                ServerFault::TooLong,
                "Internal: the answer of `a` is longer than 32 MiB | xy does not pass on such answers",
            ),
            (
                ServerFault::TooManyPartial,
                "OutcomeUnknown: the answer of `a` was not read | too many of its answers are large and unfinished | find out whether it was executed before you repeat it",
            ),
            (
                refused(Unauthorized),
                "NotAllowed: not done: `a` refused it | it answered 4xx | check `headers` in the settings of `a`",
            ),
            (refused(Forbidden), "NotAllowed: not done: `a` refused it | it answered 4xx"),
            (
                refused(TooMany(None)),
                "QueueFull: not done: `a` refused it | it answered 4xx | try again later",
            ),
            (
                refused(TooMany(Some("7 s".to_owned()))),
                "QueueFull: not done: `a` refused it | it answered 4xx | try again in 7 s",
            ),
            (
                refused(Other),
                "Internal: not done: `a` refused it | it answered 4xx | check the address of `a`",
            ),
            (
                ServerFault::Unread {
                    busy: "it is busy".to_owned(),
                    wait: Duration::from_secs(1),
                    is_shared: true,
                },
                "TimedOut: `a` did not read the call within 1s | it is busy; the call was cancelled, but the server may still execute it when it reads on | find out whether it was executed before you repeat it; run `xy restart a`, write `isolation \"client\"`, or raise `park { queue }`",
            ),
            (
                lost(false, true),
                "NotRunning: not done: `a` was killed | the call was not sent to `a` yet | try again",
            ),
            (
                lost(true, true),
                "TransportFailed: outcome unknown: `a` was killed | the call was sent to `a`, and the connection broke before it answered | find out whether it was executed before you repeat it; `xy status a` shows how it is",
            ),
            (
                lost(true, false),
                "OutcomeUnknown: outcome unknown: `a` was killed | the call was sent to `a`, and not answered | find out whether it was executed before you repeat it; `xy logs a` shows its last output",
            ),
            (
                ServerFault::TooManySubscribing,
                "QueueFull: too many requests wait to subscribe to events of `a` | try again later",
            ),
            (ServerFault::NotSubscribed(None), "NotRunning: there is no event subscription at `a`"),
            (
                ServerFault::NotSubscribed(Some(Duration::from_secs(5))),
                "NotRunning: there is no event subscription at `a` | it took longer than 5s",
            ),
            (
                ServerFault::SubscriptionFailed(ErrorKind::Internal, why()),
                "Internal: could not subscribe to events of `a` | it crashed",
            ),
            (
                ServerFault::Down { why: why(), is_removed: false },
                "NotRunning: `a` is not running | it crashed | `xy logs a` shows its last output, and `xy start a` starts it",
            ),
            (
                ServerFault::Down { why: why(), is_removed: true },
                "NotRunning: `a` is not running | it crashed | `xy list` shows all servers",
            ),
            (
                ServerFault::InstanceFailed(why()),
                "NotRunning: `a` is not running | it crashed | fix the problem above, then run `xy restart a` or connect again; `xy status a` shows more",
            ),
            (
                ServerFault::NoInstance(Holder::Client(7), why()),
                "NotRunning: no instance of `a` for this client | it crashed",
            ),
            (
                ServerFault::NoRoom { cause: "64 run".to_owned(), hint: "end some".to_owned() },
                "QueueFull: there is no room for an instance of `a` | 64 run | end some",
            ),
            (
                ServerFault::Starting,
                "NotRunning: `a` is still starting | it is not ready yet | try again later; `xy status a` shows its state",
            ),
            (
                late(ErrorKind::QueueFull, WaitReason::Failed(why())),
                "QueueFull: `a` did not come up | the call was not sent; it crashed | fix the problem above; `xy status a` shows more",
            ),
            (
                late(ErrorKind::QueueFull, WaitReason::Start(Some("starting".to_owned()))),
                "QueueFull: `a` did not come up within 5s, as it is still starting | the call was not sent; calls wait at most 30s (`park { queue }`) | that goes on: try again later; `xy status a` says how far it is; or raise `park { queue }` and restart the daemon",
            ),
            (
                late(ErrorKind::TimedOut, WaitReason::Start(None)),
                "TimedOut: `a` did not come up within 5s | the call was not sent | `xy status a` shows its state",
            ),
            (
                late(ErrorKind::TimedOut, WaitReason::Busy { is_shared: true }),
                "TimedOut: `a` was busy with another client for 5s | it asks questions, so it serves one client at a time; the call was not sent | write `isolation \"client\"` in the file of `a`, or try again later",
            ),
        ];
        for (fault, expected) in rows {
            assert_eq!(text(&fault, "a"), expected);
            let renamed = expected.replace("`a`", "`b-2`").replace(" a`", " b-2`");
            assert_eq!(text(&fault, "b-2"), renamed);
        }
    }

    #[test]
    fn loss_reason_names_the_server_only_where_it_matters() {
        let name = ServerName::new("a").unwrap();
        assert_eq!(LossReason::server("was killed").named(&name), "`a` was killed");
        assert_eq!(LossReason::Report("it broke".to_owned()).named(&name), "`a`: it broke");
        assert_eq!(LossReason::taken_over().named(&name), "another daemon took over");
    }
}
