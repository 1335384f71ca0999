//! Attribution of a server's messages to clients, by the calls in flight.

use tokio::time::{Instant, sleep, sleep_until};
use xy_mcp::tasks::{self, CANCELLED_RETENTION};
use xy_transport::retained::Retained;

use super::{CallOwner, Caller, PendingCall, ResponseKind, Upstream};
use crate::call::CallClient;
use crate::exclusive::Flight;

impl Upstream {
    /// Returns the owner of everything in flight: its client and the latest call. Returns `None` if
    /// nothing is in flight, or calls of several clients are.
    ///
    /// A cancelled call counts for its client group for a while, as the server may still work on
    /// it. A call that waits for client input is chosen only if there is no other, since the server
    /// waits too.
    pub(crate) fn only_client(&self) -> Option<CallOwner> {
        if self.may_hold_foreign_calls() {
            return None;
        }
        self.prune_cancelled();
        let calls = self.calls.borrow();
        let (mut groups, mut live, mut waited_for) = (Flight::Empty, Flight::Empty, Vec::new());
        for call in calls.values() {
            match &call.caller {
                caller @ (Caller::Client { .. } | Caller::PendingInput(_)) => {
                    if caller.is_waited_for() {
                        waited_for.push(caller);
                        continue;
                    }
                    groups = groups.and(caller.group_id().unwrap_or_default());
                    live = live.and(caller.number().unwrap_or_default());
                }
                Caller::Cancelled { group_id: Some(group_id), .. } => {
                    groups = groups.and(*group_id);
                }
                Caller::Cancelled { group_id: None, .. } | Caller::Admin(_) => return None,
                Caller::Detached => {}
            }
        }
        let principal = calls.values().find_map(|call| call.caller.principal());
        let is_clear = match (groups, live, waited_for.as_slice()) {
            // Others may be in flight only if they wait for input and belong to the same principal.
            (Flight::One(_), Flight::One(_), waited_for) => {
                let is_same_principal = |call: &PendingCall| {
                    call.caller.principal().is_none_or(|it| Some(it) == principal)
                };
                waited_for.is_empty() || calls.values().all(is_same_principal)
            }
            (Flight::Empty, Flight::Empty, [_]) => true,
            (Flight::One(group_id), Flight::Empty, [it]) => it.group_id() == Some(group_id),
            _ => false,
        };
        let candidates =
            calls.iter().filter(|(_, call)| is_clear && call.caller.group_id().is_some());
        // Prefers calls during which the client can be sent a request.
        let key = |(upstream_id, call): &(&u64, &PendingCall)| {
            let caller = &call.caller;
            (!caller.is_waited_for(), caller.can_be_asked(), **upstream_id)
        };
        let (upstream_id, call) = candidates.max_by_key(key)?;
        call.caller.owner(*upstream_id)
    }

    /// Returns the latest pending call of this client. The client may wait for it, or be about to
    /// come back for it.
    pub(crate) fn latest_of(&self, client: u64) -> Option<CallOwner> {
        let calls = self.calls.borrow();
        let candidates = calls.iter().filter(|(_, call)| call.caller.group_id() == Some(client));
        // A call for whose client input the server waits is the last choice.
        let key = |(upstream_id, call): &(&u64, &PendingCall)| {
            (!call.caller.is_waited_for(), **upstream_id)
        };
        let (upstream_id, call) = candidates.max_by_key(key)?;
        call.caller.owner(*upstream_id)
    }

    /// Returns true if a server request in this call can be meant for no other call of the same
    /// client.
    ///
    /// A legacy client is asked outside of calls, a modern one only within the call. A call whose
    /// client input the server waits for counts only if this call waits too.
    pub(crate) fn is_clear(&self, upstream_id: u64) -> bool {
        let calls = self.calls.borrow();
        let Some(subject) = calls.get(&upstream_id).map(|it| &it.caller) else { return true };
        let (number, slot) = (subject.number(), subject.slot(upstream_id));
        calls.iter().all(|(upstream_id, PendingCall { caller, .. })| {
            let is_other = caller.number() == number && caller.slot(*upstream_id) != slot;
            !is_other || caller.is_waited_for() && !subject.is_waited_for()
        })
    }

    /// Returns true if a call of this client is pending that creates a task.
    pub(crate) fn begins_task(&self, client: &dyn CallClient) -> bool {
        self.calls.borrow().values().any(|call| {
            matches!(&call.caller, Caller::Client { client: it, response_kind: ResponseKind::NewTask, .. }
                if it.number() == client.number())
        })
    }

    /// Returns which slots are in flight, for a queued call of this client.
    ///
    /// Calls that wait for the user of the same principal hold up none of its other calls, once one
    /// of them has waited long enough.
    pub(crate) fn flight(&self, client: &dyn CallClient) -> Flight {
        let is_same_principal = |caller: &Caller| caller.principal() == Some(client.principal());
        let is_left = |it: &PendingCall| it.caller.is_left() && is_same_principal(&it.caller);
        let is_slow = self.calls.borrow().values().any(is_left);
        self.flight_but(|caller| is_slow && caller.awaits_client() && is_same_principal(caller))
    }

    /// Returns which slots are in flight, for a new call of this client. One-shot requests may come
    /// from other programs, which need not wait for a user.
    pub(crate) fn flight_now(&self, client: &dyn CallClient) -> Flight {
        if client.has_session() {
            return self.flight(client);
        }
        self.flight_but(|it| it.is_waited_for() && it.principal() == Some(client.principal()))
    }

    fn flight_but(&self, is_nothing: impl Fn(&Caller) -> bool) -> Flight {
        let calls = self.calls.borrow();
        calls.iter().fold(Flight::Empty, |flight, (upstream_id, call)| match &call.caller {
            Caller::Client { response_kind, .. } if response_kind.is_of_task() => flight,
            caller if is_nothing(caller) => flight,
            caller => caller.slot(*upstream_id).map_or(flight, |slot| flight.and(slot)),
        })
    }

    /// Returns true if a call waits for input of a client of this group that is to come back.
    pub(crate) fn waits_for(&self, group_id: u64) -> bool {
        let calls = self.calls.borrow();
        calls.values().any(|it| it.caller.awaits_client() && it.caller.group_id() == Some(group_id))
    }

    /// Reports the end of each client call to `events` from now on.
    pub(crate) fn report_finished_calls(&self) {
        self.reports_finished_calls.set(true);
    }

    /// Records the end of a call, and reports it if requested.
    pub(crate) fn call_is_over(&self) {
        self.record_call();
        if self.reports_finished_calls.get() {
            self.events.on_call_end(self);
        }
    }

    /// Marks a call as cancelled. Returns its caller, if that was still waiting.
    pub(super) fn give_up(&self, upstream_id: u64) -> Option<Caller> {
        let mut calls = self.calls.borrow_mut();
        let call = calls.get_mut(&upstream_id)?;
        let (group_id, response_kind) = match &call.caller {
            Caller::Cancelled { .. } | Caller::Detached => return None,
            Caller::Client { client, response_kind, .. } => {
                (Some(client.group_id()), response_kind.clone())
            }
            Caller::PendingInput(pending) => (Some(pending.group_id), ResponseKind::Other),
            Caller::Admin(_) => (None, ResponseKind::Other),
        };
        (call.timer, call.retry_copy) = (None, None);
        if let Some(log) = call.log.take() {
            log.ended("given up");
        }
        self.cancel_forwarded(upstream_id);
        let cancelled = Caller::Cancelled { since: Instant::now(), group_id, response_kind };
        Some(std::mem::replace(&mut call.caller, cancelled))
    }

    /// Handles the response to a cancelled call. If that created a task, no client can ever ask for
    /// it: the task is cancelled, and the server may report on it for a while.
    pub(crate) fn handle_late_response(
        &self,
        upstream_id: u64,
        (group_id, response_kind): (Option<u64>, &ResponseKind),
        result: &str,
    ) {
        if *response_kind != ResponseKind::NewTask {
            return;
        }
        let is_modern = self.is_modern();
        let begun =
            if is_modern { tasks::created_modern(result) } else { tasks::created_legacy(result) };
        let Some((id, _)) = begun else { return };
        let (since, response_kind) = (Instant::now(), ResponseKind::Other);
        let caller = Caller::Cancelled { since, group_id, response_kind };
        self.calls.borrow_mut().insert(upstream_id, PendingCall::new(caller, 0));
        self.prune_cancelled_later();
        let params = if is_modern {
            tasks::params_for_modern(&id)
        } else {
            format!(r#"{{"taskId":{}}}"#, xy_mcp::edit::quoted(&id))
        };
        if let Ok(request) = self.ask("tasks/cancel", Some(&params)) {
            request.detach();
        }
    }

    /// Returns true if messages may still be meant for clients of an earlier daemon.
    fn may_hold_foreign_calls(&self) -> bool {
        self.foreign_until.is_some_and(|until| Instant::now() < until)
    }

    /// Starts a task that removes cancelled calls once no message can refer to them, unless it runs
    /// already.
    pub(super) fn prune_cancelled_later(&self) {
        if self.tasks.pruning.replace(true) {
            return;
        }
        let forgetting = self.me.clone();
        tokio::task::spawn_local(async move {
            sleep(CANCELLED_RETENTION).await;
            while let Some(upstream) = forgetting.upgrade() {
                upstream.prune_cancelled();
                let Some(since) = upstream.first_cancelled() else {
                    return upstream.tasks.pruning.set(false);
                };
                drop(upstream);
                sleep_until(since + CANCELLED_RETENTION).await;
            }
        });
    }

    /// Returns when the earliest call that is still stored was cancelled.
    fn first_cancelled(&self) -> Option<Instant> {
        let calls = self.calls.borrow();
        let since = |call: &PendingCall| match &call.caller {
            Caller::Cancelled { since, .. } => Some(*since),
            _ => None,
        };
        calls.values().filter_map(since).min()
    }

    /// Adds the retained entries of this upstream to `counts`.
    pub(crate) fn count(&self, counts: &mut Retained) {
        let is_cancelled = |call: &&PendingCall| matches!(call.caller, Caller::Cancelled { .. });
        counts.add("calls_given_up", self.calls.borrow().values().filter(is_cancelled).count());
        counts.add("call_copies_bytes", self.retry_copy_bytes.get());
        counts.add("instance_users", self.usage.users.borrow().len());
        self.connection.count(counts);
    }

    /// Removes calls that were cancelled so long ago that no message can refer to them.
    fn prune_cancelled(&self) {
        self.forget_calls(|call| match &call.caller {
            Caller::Cancelled { since, .. } => since.elapsed() >= CANCELLED_RETENTION,
            _ => false,
        });
    }

    /// Removes calls whose responses are ignored.
    pub(super) fn forget_calls(&self, is_meant: impl Fn(&PendingCall) -> bool) {
        self.calls.borrow_mut().retain(|upstream_id, call| {
            let is_over = is_meant(call);
            if is_over {
                self.forget_request(*upstream_id);
            }
            !is_over
        });
    }
}
