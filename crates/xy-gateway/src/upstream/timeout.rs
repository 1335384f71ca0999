//! Timeouts of calls, as set in the server's settings.
//!
//! One task per server watches all such calls, and only while there are any.

use std::rc::Rc;

use tokio::time::{Instant, sleep_until};
use xy_protocol::error::CallError;

use super::{Caller, Upstream};

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
                Caller::Client { client, .. } => client.has_question_from(self.connection()),
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
