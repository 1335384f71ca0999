//! Calls that a server does not read. One client's call must not keep the others waiting without a
//! bound.
//!
//! A call whose first byte was not read fails once it has waited for `park { queue }` and the
//! server has read nothing at all for that long. One task per server watches such calls, and only
//! while there are any. Where the system does not tell what was read (over HTTP and on macOS), no
//! call fails here.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use xy_mcp::envelope::{self, Message};
use xy_protocol::control::quoted;
use xy_upstream::fault::ServerFault;

use super::{Caller, PendingCall, Upstream};

/// Number of checks within the time that a call may wait.
const CHECKS: u32 = 10;

/// Minimum wait. A shorter `park { queue }` bounds the wait for a server that is down, not for one
/// that reads.
const MIN_WAIT: Duration = Duration::from_secs(1);

/// How far a server has read, and since when it has read no further.
#[derive(Debug, Clone, Copy)]
struct Reading {
    up_to: u64,
    since: Instant,
}

impl Upstream {
    /// Starts the task that watches unread calls, unless it runs already or the system does not
    /// tell what was read.
    pub(crate) fn watch_reading(self: &Rc<Self>) {
        if self.tasks.reading.get() || self.wire().read_up_to().is_none() {
            return;
        }
        self.tasks.reading.set(true);
        let watched = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            let mut reading = None;
            while let Some(upstream) = watched.upgrade() {
                let Some(next) = upstream.end_unread_calls(&mut reading) else {
                    return upstream.tasks.reading.set(false);
                };
                drop(upstream);
                sleep_until(next).await;
            }
        });
    }

    /// Fails the calls that were not read for too long. Returns when to check again, if that is
    /// necessary.
    fn end_unread_calls(self: &Rc<Self>, reading: &mut Option<Reading>) -> Option<Instant> {
        let (now, up_to) = (Instant::now(), self.wire().read_up_to()?);
        let since = match *reading {
            Some(it) if it.up_to == up_to => it.since,
            before => {
                if before.is_some() {
                    self.is_hung.set(false); // The server reads again.
                }
                now
            }
        };
        *reading = Some(Reading { up_to, since });
        let wait = self.queue_timeout().max(MIN_WAIT);
        let (mut late, mut next) = (Vec::new(), None::<Instant>);
        for (upstream_id, call) in self.calls.borrow().iter() {
            if call.offset < up_to || !is_waited_for(call) {
                continue;
            }
            let at = call.sent_at.max(since) + wait;
            if at <= now {
                late.push(*upstream_id);
            } else {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        if !late.is_empty() {
            self.is_hung.set(true);
            late.sort_unstable();
            let fault = self.unread_fault(up_to, wait);
            for upstream_id in late {
                self.withdraw(upstream_id, &fault);
            }
        }
        // A hung server is watched until it reads again.
        let is_needed = next.is_some() || self.is_hung.get();
        let soon = now + wait / CHECKS;
        is_needed.then(|| next.map_or(soon, |next| next.min(soon)))
    }

    /// Fails a call, and tells the server to drop it, should it ever read it.
    fn withdraw(self: &Rc<Self>, upstream_id: u64, fault: &ServerFault) {
        let Some(caller) = self.give_up(upstream_id) else { return };
        self.prune_cancelled_later();
        self.notify_given_up(upstream_id, "it was not read in time");
        caller.fail(fault);
        self.call_is_over();
    }

    /// Returns the error of a call that the server has not read for `wait`.
    fn unread_fault(&self, read_up_to: u64, wait: Duration) -> ServerFault {
        let calls = self.calls.borrow();
        let begun = calls.values().filter(|call| call.offset < read_up_to && is_waited_for(call));
        let busy = match begun.max_by_key(|call| call.offset) {
            Some(call) => {
                let method =
                    call.method().map_or_else(|| "a call".to_owned(), |it| format!("`{it}`"));
                let age = Duration::from_secs(call.sent_at.elapsed().as_secs());
                format!("it is busy with {method}, sent {age:?} ago")
            }
            None => "it reads nothing that it is sent".to_owned(),
        };
        let is_shared = !self.key().holder.is_client();
        ServerFault::Unread { busy, wait, is_shared }
    }
}

/// Returns true if a client or an admin user waits for the call.
fn is_waited_for(call: &PendingCall) -> bool {
    matches!(call.caller, Caller::Client { .. } | Caller::Admin(_))
}

impl PendingCall {
    /// Returns the method of a client's call, if its text was kept.
    fn method(&self) -> Option<String> {
        let retry_copy = self.retry_copy.as_ref()?;
        if let Some((method, _)) = retry_copy.about() {
            return Some(quoted(method));
        }
        match envelope::parse(retry_copy.text()) {
            Ok(Message::Request { method, .. }) => Some(quoted(&method)),
            _ => None,
        }
    }
}
