//! Timeouts of calls, as set in the server's settings.
//!
//! One task per server watches all such calls, and only while there are any.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use xy_config::settings::CallRules;
use xy_protocol::error::{CallError, ErrorKind};

use super::{Caller, Upstream};

/// The timeouts of one call.
pub(crate) struct CallTimer {
    /// The method and its target, for error messages.
    what: Box<str>,
    rules: CallRules,
    began: Instant,
    /// The time of the last progress.
    last_progress: Cell<Instant>,
}

/// The limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reached {
    Idle(Duration),
    Within(Duration),
}

impl CallTimer {
    /// Starts the timeouts of a call. Returns `None` if it has none.
    pub(crate) fn begin(rules: CallRules, what: impl FnOnce() -> String) -> Option<Rc<Self>> {
        if rules == CallRules::default() {
            return None;
        }
        let now = Instant::now();
        Some(Rc::new(Self {
            what: what().into(),
            rules,
            began: now,
            last_progress: Cell::new(now),
        }))
    }

    /// Records progress, which resets the idle timeout.
    pub(crate) fn touch(&self) {
        self.last_progress.set(Instant::now());
    }

    /// Returns when the total timeout ends the call, whatever progress is reported.
    pub(crate) fn end(&self) -> Option<Instant> {
        self.rules.within.map(|within| self.began + within)
    }

    /// Returns the error of a call that timed out while the server waited for its client's input.
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

    /// Returns when the next limit is reached, and which it is.
    fn limit(&self) -> Option<(Instant, Reached)> {
        let idle =
            self.rules.idle.map(|idle| (self.last_progress.get() + idle, Reached::Idle(idle)));
        let within = self.rules.within.zip(self.end()).map(|(it, end)| (end, Reached::Within(it)));
        match (idle, within) {
            (Some(idle), Some(within)) if idle.0 < within.0 => Some(idle),
            (idle, within) => within.or(idle),
        }
    }

    fn fault(&self, reached: Reached) -> CallError {
        let (why, rule) = match reached {
            Reached::Idle(idle) => (format!("no progress was reported for {idle:?}"), "idle"),
            Reached::Within(within) => (format!("it took longer than {within:?}"), "within"),
        };
        self.timed_out()
            .cause(format!("{why}; the server was told to stop, but may have completed the call"))
            .hint(format!("find out whether it was done before you repeat it, or allow more with `calls {{ {rule} }}`"))
    }
}

impl Upstream {
    /// Starts the task that watches timeouts, unless it runs already.
    pub(crate) fn watch_timeouts(self: &Rc<Self>) {
        if self.tasks.timeouts.replace(true) {
            return;
        }
        let watched = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            while let Some(upstream) = watched.upgrade() {
                let Some(next) = upstream.end_late_calls() else {
                    return upstream.tasks.timeouts.set(false);
                };
                let earlier_timeout = upstream.earlier_timeout.clone();
                drop(upstream);
                tokio::select! {
                    () = sleep_until(next) => {}
                    () = earlier_timeout.notified() => {}
                }
            }
        });
    }

    /// Watches timeouts after the timer of an older call was added, which may expire before all
    /// others.
    pub(crate) fn rewatch_timeouts(self: &Rc<Self>) {
        self.watch_timeouts();
        self.earlier_timeout.notify_one();
    }

    /// Records progress of this client's calls.
    pub(crate) fn touch(&self, client: u64) {
        if !self.tasks.timeouts.get() {
            return;
        }
        for call in self.calls.borrow().values() {
            if let (Caller::Client { client: it, .. }, Some(timer)) = (&call.caller, &call.timer)
                && it.number() == client
            {
                timer.touch();
            }
        }
    }

    /// Ends the calls that have timed out. Returns when to check again, if any calls are left.
    fn end_late_calls(self: &Rc<Self>) -> Option<Instant> {
        let now = Instant::now();
        let (mut late, mut next) = (Vec::new(), None::<Instant>);
        for (upstream_id, call) in self.calls.borrow().iter() {
            let Some(timer) = &call.timer else { continue };
            let waits_for_client = match &call.caller {
                Caller::Client { client, .. } => client.has_question_from(self),
                Caller::PendingInput(_) => true,
                _ => continue,
            };
            if waits_for_client {
                timer.touch();
            }
            let Some((at, reached)) = timer.limit() else { continue };
            if at <= now {
                late.push((*upstream_id, timer.fault(reached)));
            } else {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        if late.is_empty() {
            return next;
        }
        late.sort_unstable_by_key(|(upstream_id, _)| *upstream_id);
        for (upstream_id, fault) in late {
            self.time_out(upstream_id, &fault);
        }
        self.end_late_calls() // Ending these may have released others.
    }

    fn time_out(self: &Rc<Self>, upstream_id: u64, fault: &CallError) {
        let Some(caller) = self.give_up(upstream_id) else { return };
        self.prune_cancelled_later();
        if let Caller::PendingInput(pending) = &caller {
            pending.time_out(fault.clone());
        }
        self.notify_given_up(upstream_id, "it took too long");
        if let Caller::Client { client, id, stream, .. } = caller {
            // The error already names the server as the client does.
            client.respond_error(&id, stream, fault);
        }
        self.call_is_over();
    }
}
