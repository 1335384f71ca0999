//! Whose calls are with a server: what its words and its clients' turns depend on.

use std::rc::Rc;

use tokio::time::{Instant, sleep, sleep_until};

use super::{Call, Caller, ECHO, Follow, Upstream, Whose};
use crate::client::Client;
use crate::exclusive::Flight;
use crate::retained::Retained;
use crate::tasks;

impl Upstream {
    /// The client that everything in flight belongs to, and where it asked last; `None` if
    /// nothing is in flight, or something of somebody else too. What a client has given up
    /// counts as its own for a while, or that of those whom a door cannot tell from it: the
    /// server may still work on it. A call that waits for its client's answer is spoken of only
    /// if there is no other: there the server waits too.
    pub(crate) fn only_client(&self) -> Option<Whose> {
        if self.is_strange() {
            return None;
        }
        self.forget_given_up();
        let calls = self.calls.borrow();
        let (mut groups, mut live, mut waited_for) = (Flight::Nobody, Flight::Nobody, Vec::new());
        for call in calls.values() {
            match &call.caller {
                caller @ (Caller::Client { .. } | Caller::Parked(_)) => {
                    if caller.is_waited_for() {
                        waited_for.push(caller);
                        continue;
                    }
                    groups = groups.and(caller.group_id().unwrap_or_default());
                    live = live.and(caller.number().unwrap_or_default());
                }
                Caller::Nobody { group_id: Some(group_id), .. } => groups = groups.and(*group_id),
                Caller::Nobody { group_id: None, .. } | Caller::Visitor(_) => return None,
                Caller::Own(_) | Caller::Ears(_) | Caller::Unheard => {}
            }
        }
        let principal = calls.values().find_map(|call| call.caller.principal());
        let is_clear = match (groups, live, waited_for.as_slice()) {
            // Nobody else's, but for one of the same person's that the server waits for.
            (Flight::One(_), Flight::One(_), waited_for) => {
                let is_theirs =
                    |call: &Call| call.caller.principal().is_none_or(|it| Some(it) == principal);
                waited_for.is_empty() || calls.values().all(is_theirs)
            }
            (Flight::Nobody, Flight::Nobody, [_]) => true,
            (Flight::One(group_id), Flight::Nobody, [it]) => it.group_id() == Some(group_id),
            _ => false,
        };
        let theirs = calls.iter().filter(|(_, call)| is_clear && call.caller.group_id().is_some());
        // One that can be asked something, if any can.
        let key = |(ours, call): &(&u64, &Call)| {
            let caller = &call.caller;
            (!caller.is_waited_for(), caller.can_be_asked(), **ours)
        };
        let (ours, call) = theirs.max_by_key(key)?;
        call.caller.whose(*ours)
    }

    /// What this client has asked last, of what is not answered: it may wait for that, or be
    /// about to come back for it.
    pub(crate) fn latest_of(&self, client: u64) -> Option<Whose> {
        let calls = self.calls.borrow();
        let theirs = calls.iter().filter(|(_, call)| call.caller.group_id() == Some(client));
        // Where the server waits for the client, it says nothing.
        let key = |(ours, call): &(&u64, &Call)| (!call.caller.is_waited_for(), **ours);
        let (ours, call) = theirs.max_by_key(key)?;
        call.caller.whose(*ours)
    }

    /// Whether what is asked in a call of a client, of which this is our id, can be asked in no
    /// other of that client: a legacy client is not asked in a call, and a modern one in that
    /// call alone. Where the server waits for its answer it asks nothing, unless that is all.
    pub(crate) fn is_clear(&self, ours: u64) -> bool {
        let calls = self.calls.borrow();
        let Some(asked) = calls.get(&ours).map(|it| &it.caller) else { return true };
        let (number, unit) = (asked.number(), asked.unit(ours));
        calls.iter().all(|(ours, Call { caller, .. })| {
            let is_other = caller.number() == number && caller.unit(*ours) != unit;
            !is_other || caller.is_waited_for() && !asked.is_waited_for()
        })
    }

    /// Whether a call of this client is under way that begins a task.
    pub(crate) fn begins_task(&self, client: &Client) -> bool {
        self.calls.borrow().values().any(|call| {
            matches!(&call.caller, Caller::Client { client: it, follow: Follow::NewTask, .. }
                if it.number() == client.number())
        })
    }

    /// Whose calls are in flight, of those that turns are taken for, as far as it matters to a
    /// call of this client that waits: calls that it is to come back to hold up no other of its
    /// own, nor of the same token, once one of them has waited for long enough.
    pub(crate) fn flight(&self, client: &Client) -> Flight {
        let is_kin = |caller: &Caller| caller.principal() == Some(client.principal());
        let is_left = |it: &Call| it.caller.is_left() && is_kin(&it.caller);
        let is_slow = self.calls.borrow().values().any(is_left);
        self.flight_but(|caller| is_slow && caller.is_away() && is_kin(caller))
    }

    /// The same, as far as it matters to one that comes just now. Requests that come alone may be
    /// of other programs, which need not wait for a person.
    pub(crate) fn flight_now(&self, client: &Client) -> Flight {
        if client.stays() {
            return self.flight(client);
        }
        self.flight_but(|it| it.is_waited_for() && it.principal() == Some(client.principal()))
    }

    fn flight_but(&self, is_nothing: impl Fn(&Caller) -> bool) -> Flight {
        let calls = self.calls.borrow();
        calls.iter().fold(Flight::Nobody, |flight, (ours, call)| match &call.caller {
            Caller::Client { follow, .. } if follow.is_of_task() => flight,
            caller if is_nothing(caller) => flight,
            caller => caller.unit(*ours).map_or(flight, |unit| flight.and(unit)),
        })
    }

    /// Whether it waits for an answer of a client of this house, which is to come back.
    pub(crate) fn waits_for(&self, group_id: u64) -> bool {
        let calls = self.calls.borrow();
        calls.values().any(|it| it.caller.is_away() && it.caller.group_id() == Some(group_id))
    }

    /// From now on somebody wants to hear when a call is over.
    pub(crate) fn take_turns(&self) {
        self.takes_turns.set(true);
    }

    /// A call is over.
    pub(super) fn call_is_over(self: &Rc<Self>) {
        self.is_called();
        if self.takes_turns.get() {
            self.company.is_over(self);
        }
    }

    /// Nobody waits for a call any more: who did, if anybody.
    pub(super) fn give_up(&self, ours: u64) -> Option<Caller> {
        let mut calls = self.calls.borrow_mut();
        let call = calls.get_mut(&ours)?;
        let since = Instant::now();
        let next = match &call.caller {
            Caller::Nobody { .. } | Caller::Unheard => return None,
            Caller::Client { client, follow, .. } => {
                let (group_id, follow) = (Some(client.group_id()), follow.clone());
                Caller::Nobody { since, group_id, follow }
            }
            Caller::Parked(hold) => {
                Caller::Nobody { since, group_id: Some(hold.group_id), follow: Follow::Nothing }
            }
            Caller::Visitor(_) => Caller::Nobody { since, group_id: None, follow: Follow::Nothing },
            // It was no client's: what is answered to nobody is let be.
            Caller::Own(_) | Caller::Ears(_) => return calls.remove(&ours).map(|it| it.caller),
        };
        (call.watch, call.kept) = (None, None);
        if let Some(log) = call.log.take() {
            log.ended("given up");
        }
        Some(std::mem::replace(&mut call.caller, next))
    }

    /// It has answered what was given up. If that began a task, nobody can ever ask for it:
    /// it is cancelled, and may be spoken of for a while.
    pub(super) fn answered_nobody(self: &Rc<Self>, ours: u64, nobody: &Caller, result: &str) {
        let Caller::Nobody { group_id, follow: Follow::NewTask, .. } = nobody else { return };
        let group_id = *group_id;
        let is_modern = self.is_modern();
        let begun = if is_modern { tasks::created(result) } else { tasks::begun(result) };
        let Some((id, _)) = begun else { return };
        let caller = Caller::Nobody { since: Instant::now(), group_id, follow: Follow::Nothing };
        self.calls.borrow_mut().insert(ours, Call::of(caller, 0));
        self.forget_in_time();
        let params = if is_modern {
            tasks::params_for_modern(&id)
        } else {
            format!(r#"{{"taskId":{}}}"#, crate::names::quoted(&id))
        };
        if let Ok(question) = self.ask("tasks/cancel", Some(&params)) {
            question.detach();
        }
    }

    /// Whether it may still speak to clients of another daemon.
    fn is_strange(&self) -> bool {
        self.strange_until.is_some_and(|until| Instant::now() < until)
    }

    /// Has what was given up just now forgotten once nothing said can be about it, also if
    /// nobody says anything any more.
    pub(super) fn forget_in_time(self: &Rc<Self>) {
        if self.is_forgetting.replace(true) {
            return;
        }
        let forgetting = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            sleep(ECHO).await;
            while let Some(upstream) = forgetting.upgrade() {
                upstream.forget_given_up();
                let Some(since) = upstream.first_given_up() else {
                    return upstream.is_forgetting.set(false);
                };
                drop(upstream);
                sleep_until(since + ECHO).await;
            }
        });
    }

    /// When the first was given up of what is not forgotten.
    fn first_given_up(&self) -> Option<Instant> {
        let calls = self.calls.borrow();
        let since = |call: &Call| match &call.caller {
            Caller::Nobody { since, .. } => Some(*since),
            _ => None,
        };
        calls.values().filter_map(since).min()
    }

    /// How much is kept for it.
    pub(crate) fn count(&self, census: &mut Retained) {
        let calls = self.calls.borrow();
        let given_up = |call: &&Call| matches!(call.caller, Caller::Nobody { .. });
        let given_up = calls.values().filter(given_up).count();
        census.add("calls", calls.len() - given_up);
        census.add("calls_given_up", given_up);
        census.add("call_copies_bytes", self.kept.get());
        census.add("instance_users", self.users.borrow().len());
        census.add("log_bytes", self.strays.borrow().len());
        census.add("wire", self.wire.kept());
        self.ears.count_all(census);
    }

    /// Forgets calls that were given up so long ago that nothing said now can be about them.
    fn forget_given_up(&self) {
        self.calls.borrow_mut().retain(|_, call| match &call.caller {
            Caller::Nobody { since, .. } => since.elapsed() < ECHO,
            _ => true,
        });
    }
}
