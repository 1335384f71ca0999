//! How long calls may take, where a server's settings say so.
//!
//! One task looks after all such calls of a server, and only while there are any.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use xy_config::settings::CallRules;
use xy_protocol::error::{CallError, ErrorKind};

use super::{Caller, Upstream};

/// How long one call may take.
pub(crate) struct Watch {
    /// What was asked, and of whom, for people.
    what: Box<str>,
    rules: CallRules,
    began: Instant,
    /// When something was last heard of it.
    heard: Cell<Instant>,
}

/// Which limit was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reached {
    Idle(Duration),
    Within(Duration),
}

impl Watch {
    /// `None` if the call may take for ever.
    pub(crate) fn begin(rules: CallRules, what: impl FnOnce() -> String) -> Option<Rc<Self>> {
        if rules == CallRules::default() {
            return None;
        }
        let now = Instant::now();
        Some(Rc::new(Self { what: what().into(), rules, began: now, heard: Cell::new(now) }))
    }

    /// Something was heard of it.
    pub(crate) fn touch(&self) {
        self.heard.set(Instant::now());
    }

    /// When it has taken as long as it may in all, whatever is heard.
    pub(crate) fn end(&self) -> Option<Instant> {
        self.rules.within.map(|within| self.began + within)
    }

    /// It has taken as long as it may while its client was asked something, which the server
    /// wanted to know before it went on.
    pub(crate) fn late_answer(&self) -> CallError {
        let within = self.rules.within.unwrap_or_default();
        let cause = format!(
            "it took longer than {within:?}; the server waited for an answer of the client, and was not asked again"
        );
        self.timed_out().cause(cause).hint("answer sooner, or allow more with `calls { within }`")
    }

    fn timed_out(&self) -> CallError {
        CallError::new(ErrorKind::TimedOut, format!("{} timed out", self.what))
    }

    /// When it is to be looked at, and the limit that it has reached then.
    fn limit(&self) -> Option<(Instant, Reached)> {
        let idle = self.rules.idle.map(|idle| (self.heard.get() + idle, Reached::Idle(idle)));
        let within = self.rules.within.zip(self.end()).map(|(it, end)| (end, Reached::Within(it)));
        match (idle, within) {
            (Some(idle), Some(within)) if idle.0 < within.0 => Some(idle),
            (idle, within) => within.or(idle),
        }
    }

    fn fault(&self, reached: Reached) -> CallError {
        let (why, rule) = match reached {
            Reached::Idle(idle) => (format!("nothing was heard of it for {idle:?}"), "idle"),
            Reached::Within(within) => (format!("it took longer than {within:?}"), "within"),
        };
        self.timed_out()
            .cause(format!("{why}; the server was told to stop, and may have done it or not"))
            .hint(format!("find out before you repeat it, or allow more with `calls {{ {rule} }}`"))
    }
}

impl Upstream {
    /// Looks after calls that may not take for ever.
    pub(crate) fn keep_watch(self: &Rc<Self>) {
        if self.is_watched.replace(true) {
            return;
        }
        let watched = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            while let Some(upstream) = watched.upgrade() {
                let Some(next) = upstream.end_late_calls() else {
                    return upstream.is_watched.set(false);
                };
                let sooner = upstream.sooner.clone();
                drop(upstream);
                tokio::select! {
                    () = sleep_until(next) => {}
                    () = sooner.notified() => {}
                }
            }
        });
    }

    /// The same, where one of them began long ago, and may be late before all others.
    pub(crate) fn watch_anew(self: &Rc<Self>) {
        self.keep_watch();
        self.sooner.notify_one();
    }

    /// Something was heard that belongs to this client's calls.
    pub(crate) fn touch(&self, client: u64) {
        if !self.is_watched.get() {
            return;
        }
        for call in self.calls.borrow().values() {
            if let (Caller::Client { client: it, .. }, Some(watch)) = (&call.caller, &call.watch)
                && it.number() == client
            {
                watch.touch();
            }
        }
    }

    /// Ends the calls that take too long; when to look again, if there are any others.
    fn end_late_calls(self: &Rc<Self>) -> Option<Instant> {
        let now = Instant::now();
        let (mut late, mut next) = (Vec::new(), None::<Instant>);
        for (ours, call) in self.calls.borrow().iter() {
            let Some(watch) = &call.watch else { continue };
            let waits_for_client = match &call.caller {
                Caller::Client { client, .. } => client.is_asked_by(self),
                Caller::Parked(_) => true,
                _ => continue,
            };
            if waits_for_client {
                watch.touch();
            }
            let Some((at, reached)) = watch.limit() else { continue };
            if at <= now {
                late.push((*ours, watch.fault(reached)));
            } else {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        if late.is_empty() {
            return next;
        }
        late.sort_unstable_by_key(|(ours, _)| *ours);
        for (ours, fault) in late {
            self.time_out(ours, &fault);
        }
        self.end_late_calls() // Others may have been let go instead.
    }

    fn time_out(self: &Rc<Self>, ours: u64, fault: &CallError) {
        let Some(caller) = self.give_up(ours) else { return };
        self.forget_in_time();
        if let Caller::Parked(hold) = &caller {
            hold.is_late(fault.clone());
        }
        let message = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{ours},"reason":"it took too long"}}}}"#
        );
        self.tell_given_up(ours, message.as_bytes());
        if let Caller::Client { client, id, stream, .. } = caller {
            client.failed(&id, stream, fault); // It has the name that was asked.
        }
        self.call_is_over();
    }
}
