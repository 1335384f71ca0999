//! Calls that wait for their server: until it is there, until it is their turn, or until its
//! successor comes.
//!
//! All of them are in one queue, in the order in which they were first taken: a call that was
//! sent and comes back stands before all that came later. `upstream/fate.rs` decides which do.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};
use xy_config::settings::Isolation;
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;
use xy_supervisor::instance::Holder;

use super::lot::{Load, Place};
use super::{ADVICE, Availability, Backend, STOPPED};
use crate::bridge::rounds::Rounds;
use crate::client::{Client, Open};
use crate::era::Era;
use crate::frontend::StreamNo;
use crate::message_text::StoredText;
use crate::reply;

/// What has happened to a call before.
#[derive(Clone, Default)]
pub(crate) struct RetryState {
    /// How many times it was sent again with what its server wanted to know, and its time, where
    /// somebody counts that.
    pub(crate) rounds: Rounds,
    /// Its place among the calls of its server, once it has one.
    pub(crate) ticket: Option<u64>,
    /// Since when it waits, if it does.
    pub(crate) waits_since: Option<Instant>,
    /// It was sent before.
    pub(crate) was_sent: bool,
    /// And its server can have seen it.
    pub(crate) was_written: bool,
}

impl RetryState {
    /// Whether it has waited for its server, or is sent again.
    pub(crate) fn has_waited(&self) -> bool {
        self.waits_since.is_some() || self.was_sent
    }
}

/// A call that waits for its server.
pub(crate) struct Waiting {
    pub(super) ticket: u64,
    pub(crate) client: Rc<Client>,
    /// The server, by the name that its client used.
    pub(crate) asked: Rc<Backend>,
    pub(super) holder: Holder,
    pub(crate) id: Box<str>,
    pub(crate) text: StoredText,
    pub(crate) stream: StreamNo,
    /// It says everything of its client by itself.
    pub(super) is_modern: bool,
    pub(crate) past: RetryState,
    /// Its room among the calls of all servers, while it waits.
    place: Option<(Place, Counted)>,
    /// Ends the wait after a while.
    timer: Option<AbortHandle>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(timer) = &self.timer {
            timer.abort();
        }
    }
}

/// One more that waits under a name, for as long as this is there.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn at(waiting: &Arc<AtomicUsize>) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call that is to wait.
pub(crate) struct ToWait {
    pub(crate) client: Rc<Client>,
    /// The server, by the name that its client used.
    pub(crate) asked: Rc<Backend>,
    pub(crate) holder: Holder,
    pub(crate) id: Box<str>,
    pub(crate) text: StoredText,
    pub(crate) stream: StreamNo,
    pub(crate) is_modern: bool,
    pub(crate) past: RetryState,
}

impl Backend {
    /// The place of a call among all of this server.
    pub(super) fn ticket(&self, past: &RetryState) -> u64 {
        past.ticket.unwrap_or_else(|| self.lot.next_ticket())
    }

    /// Whether there is room for one more call of this length.
    pub(crate) fn check_room(&self, length: usize) -> Result<(), CallError> {
        let here = Load { calls: self.waiting(), bytes: self.waiting_bytes.get() };
        self.lot.full(here, length).map_or(Ok(()), |bound| Err(bound.fault(&self.name)))
    }

    /// Checks that the token of a client leaves room for calls of others.
    pub(crate) fn check_share(&self, client: &Client) -> Result<(), CallError> {
        let (token, all, most) = (client.token(), self.waiting(), self.lot.park.calls);
        if token.may_take(all, all, most) {
            return Ok(()); // Even if all of them are its own.
        }
        let is_own = |it: &&Waiting| it.client.token().id == token.id;
        let own = self.waiting.borrow().iter().filter(is_own).count();
        if token.may_take(own, all, most) {
            return Ok(());
        }
        let message = format!("too many calls of this token wait for `{}`", self.name);
        Err(CallError::new(ErrorKind::QueueFull, message)
            .cause(format!("{own} of them wait, and the rest of {most} is for others"))
            .hint(
                "try again later, or raise `park { calls … }` in `xy.kdl` and restart the daemon",
            ))
    }

    /// Has a call wait, for which there is room; where it is meanwhile, and whether it is the
    /// first of its holder.
    pub(crate) fn wait(self: &Rc<Self>, call: ToWait) -> (Open, bool) {
        let ToWait { client, asked, holder, id, text, stream, is_modern, mut past } = call;
        let (ticket, since) = (self.ticket(&past), past.waits_since.unwrap_or_else(Instant::now));
        (past.ticket, past.waits_since) = (Some(ticket), Some(since));
        let timer = Some(self.set_timer(ticket, self.gives_up_at(&past, since)));
        asked.counts.parked.set(asked.counts.parked.get() + 1);
        let place = Some((self.lot.take(text.len()), Counted::at(&asked.counts.waiting)));
        let waits = Waiting {
            ticket,
            client,
            asked,
            holder,
            id,
            text,
            stream,
            is_modern,
            past,
            place,
            timer,
        };
        self.waiting_bytes.set(self.waiting_bytes.get() + waits.text.len() as u64);
        let mut waiting = self.waiting.borrow_mut();
        let is_first = !waiting.iter().any(|it| it.holder == holder);
        let position = waiting.partition_point(|it| it.ticket < ticket);
        waiting.insert(position, waits);
        drop(waiting);
        (Open::Waiting { server: self.clone(), ticket }, is_first)
    }

    /// How long a call waits: for its server, and as long as it may take in all.
    fn gives_up_at(&self, past: &RetryState, since: Instant) -> Instant {
        let all = past.rounds.watch.as_ref().and_then(|watch| watch.end());
        end_of_wait(since + self.lot.park.queue, all).0
    }

    /// What it means that a call has waited as long as it may.
    fn kind_of_end(&self, past: &RetryState, since: Instant) -> ErrorKind {
        let all = past.rounds.watch.as_ref().and_then(|watch| watch.end());
        end_of_wait(since + self.lot.park.queue, all).1
    }

    fn set_timer(self: &Rc<Self>, ticket: u64, at: Instant) -> AbortHandle {
        let server = Rc::downgrade(self);
        let timer = tokio::task::spawn_local(async move {
            sleep_until(at).await;
            if let Some(server) = server.upgrade() {
                server.waited_enough(ticket);
            }
        });
        timer.abort_handle()
    }

    /// A call has waited as long as it may.
    fn waited_enough(self: &Rc<Self>, ticket: u64) {
        let Some(waited) = self.take_waiting(ticket) else { return };
        let queue = self.lot.park.queue;
        let since = waited.past.waits_since.unwrap_or_else(Instant::now);
        let kind = self.kind_of_end(&waited.past, since);
        let fault = self.too_late(&waited, kind, since.elapsed().min(queue));
        self.give_up(&waited, &fault);
        self.release(); // Somebody may have waited behind it.
    }

    /// A call that waited is not sent, for this reason.
    pub(crate) fn give_up(&self, waited: &Waiting, fault: &CallError) {
        let fault = reply::under(&waited.asked.name, &self.name, fault);
        let call = (&*waited.id, waited.stream);
        waited.asked.fail(&waited.client, call, &waited.past, &fault);
    }

    /// The same of any call that was asked under this name. Of one that had been written to an
    /// earlier life nobody knows whether it was done.
    pub(crate) fn fail(
        &self,
        client: &Client,
        (id, stream): (&str, StreamNo),
        past: &RetryState,
        fault: &CallError,
    ) {
        let is_unknown = fault.kind.is_outcome_unknown();
        if !is_unknown && !past.was_written {
            return client.failed(id, stream, fault);
        }
        self.counts.unknown.set(self.counts.unknown.get() + 1);
        if is_unknown {
            return client.failed(id, stream, fault);
        }
        client.failed(id, stream, &outcome_unknown(fault, Some(&self.name)));
    }

    /// Takes a call out that waits; `None` if it does not wait any more.
    pub(crate) fn take_waiting(&self, ticket: u64) -> Option<Waiting> {
        let mut waiting = self.waiting.borrow_mut();
        let place = waiting.binary_search_by_key(&ticket, |it| it.ticket).ok()?;
        let mut taken = waiting.remove(place)?;
        drop(waiting);
        taken.place = None;
        self.waiting_bytes.set(self.waiting_bytes.get() - taken.text.len() as u64);
        Some(taken)
    }

    /// Takes all out that wait for an instance, in order.
    pub(crate) fn take_all_waiting(&self, holder: Option<Holder>) -> Vec<Waiting> {
        self.take_those(|it| holder.is_none_or(|holder| holder == it.holder))
    }

    pub(super) fn take_those(&self, is_meant: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let all = std::mem::take(&mut *self.waiting.borrow_mut());
        let (mut taken, mut left) = (Vec::new(), VecDeque::new());
        for mut one in all {
            if is_meant(&one) {
                one.place = None; // It may have to wait again, and needs no room twice.
                taken.push(one);
            } else {
                left.push_back(one);
            }
        }
        *self.waiting.borrow_mut() = left;
        let bytes: u64 = taken.iter().map(|it| it.text.len() as u64).sum();
        self.waiting_bytes.set(self.waiting_bytes.get() - bytes);
        taken
    }

    /// An instance can be asked: sends what has waited for it, in order.
    pub(crate) fn release_for(self: &Rc<Self>, holder: Holder) {
        if self.asks() && !self.upstream(holder).is_some_and(|it| it.is_modern()) {
            return self.release();
        }
        self.release_all_for(holder);
    }

    /// Sends all that has waited for an instance, in order, if that can be asked.
    pub(super) fn release_all_for(&self, holder: Holder) {
        let is_too_soon = self.upstream(holder).is_none_or(|it| it.is_held_back());
        if is_too_soon || self.is_releasing.replace(true) {
            return;
        }
        for waited in self.take_all_waiting(Some(holder)) {
            Self::send_again(&waited);
        }
        self.is_releasing.set(false);
    }

    pub(super) fn send_again(waited: &Waiting) {
        let (text, past) = (waited.text.borrow(), waited.past.clone());
        waited.client.again_after(&waited.id, text, waited.stream, past);
    }

    /// Dispatches all calls anew that wait for an instance.
    pub(crate) fn send_again_all(&self, holder: Holder) {
        for waited in self.take_all_waiting(Some(holder)) {
            Self::send_again(&waited);
        }
    }

    /// Its settings have changed: who waits for an instance that is not its own any more waits
    /// for another, or goes to it. So does who asked under a name that is another's by now.
    pub(crate) fn find_others(&self) {
        let is_other = |it: &Waiting| !self.is_holder_of(it) || !self.is_home_of(&it.asked);
        for waited in self.take_those(is_other) {
            Self::send_again(&waited);
        }
    }

    /// Returns true if a call waits for an instance that may serve it.
    fn is_holder_of(&self, it: &Waiting) -> bool {
        match (self.settings.borrow().isolation, it.holder) {
            (Isolation::Client, holder) => holder == Holder::Client(it.client.group_id()),
            (Isolation::Shared, Holder::Shared) => true,
            (Isolation::Shared, Holder::Era(_)) => self.may_split(),
            (Isolation::Shared, Holder::Client(_)) => false,
        }
    }

    /// Nobody is to be asked under this name: who waits under it is told why.
    pub(crate) fn give_up_all_as(&self, asked: &Self, why: &str) {
        let fault = asked.down(why);
        for waited in self.take_those(|it| std::ptr::eq(Rc::as_ptr(&it.asked), asked)) {
            waited.asked.fail(&waited.client, (&waited.id, waited.stream), &waited.past, &fault);
        }
    }

    /// Whether a call would overtake an earlier one of its client.
    pub(super) fn would_overtake(&self, client: &Client, holder: Holder) -> bool {
        let waiting = self.waiting.borrow();
        !self.is_releasing.get()
            && waiting.iter().any(|it| it.holder == holder && it.client.number() == client.number())
    }

    /// Which of its instances for one client each are not there, and why; those who wait for
    /// one are told.
    pub(crate) fn set_down(&self, down: HashMap<Holder, String>) {
        for (holder, why) in &down {
            let waiting = self.take_all_waiting(Some(*holder));
            if waiting.is_empty() {
                continue; // Explaining costs a look at its log.
            }
            let fault = self.down_for(*holder, why);
            for waited in waiting {
                self.give_up(&waited, &fault);
            }
        }
        *self.down.borrow_mut() = down;
    }

    /// Gives up calls whose wait ends before their instance is tried again. `retries` holds when
    /// that is, for each instance that waits for its back-off.
    pub(crate) fn give_up_hopeless(&self, retries: &HashMap<Holder, Instant>) {
        let is_hopeless = |it: &Waiting| {
            let since = it.past.waits_since;
            let retry_at = retries.get(&it.holder);
            since.zip(retry_at).is_some_and(|(since, at)| self.gives_up_at(&it.past, since) < *at)
        };
        for waited in self.take_those(is_hopeless) {
            let since = waited.past.waits_since.unwrap_or_else(Instant::now);
            let kind = self.kind_of_end(&waited.past, since);
            let fault = self.too_late(&waited, kind, since.elapsed());
            self.give_up(&waited, &fault);
        }
    }

    /// Why nobody comes after an instance, if nobody does.
    pub(crate) fn no_successor(&self, holder: Holder) -> Option<String> {
        if let Availability::Down(why) = &*self.standing.borrow() {
            return Some(why.clone());
        }
        if self.is_hidden() {
            return Some(STOPPED.to_owned());
        }
        self.down.borrow().get(&holder).cloned()
    }

    /// How many calls wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Returns the era of the oldest call that waits for the shared process.
    pub(super) fn era_of_first_waiting(&self) -> Option<Era> {
        let waiting = self.waiting.borrow();
        let first = waiting.iter().find(|it| it.holder == Holder::Shared)?;
        Some(if first.is_modern { Era::Modern } else { Era::Legacy })
    }

    /// How many wait for one instance.
    pub(crate) fn waiting_for(&self, holder: Holder) -> usize {
        self.waiting.borrow().iter().filter(|it| it.holder == holder).count()
    }

    /// One more call was sent again.
    pub(super) fn count_again(&self) {
        self.counts.again.set(self.counts.again.get() + 1);
    }

    /// A call has waited as long as it may: why it was not sent.
    fn too_late(&self, waited: &Waiting, kind: ErrorKind, limit: Duration) -> CallError {
        let name = &self.name;
        // Whoever waited as long as a call may take in all was not ended by the park.
        let bound = (kind == ErrorKind::QueueFull).then_some(self.lot.park.queue);
        if self.upstream(waited.holder).is_none() {
            let message = format!("`{name}` did not come up within {}", reply::time(limit));
            let not_sent = (!waited.past.was_written).then_some("the call was not sent");
            if let Some(trouble) = self.trouble(waited.holder) {
                let cause = not_sent.map_or(trouble.clone(), |it| format!("{it}; {trouble}"));
                return CallError::new(kind, format!("`{name}` did not come up"))
                    .cause(cause)
                    .hint(format!("fix the problem above; `xy status {name}` shows more"));
            }
            let fault = |message| CallError {
                cause: because(not_sent, bound),
                ..CallError::new(kind, message)
            };
            return match self.progress(waited.holder) {
                Some(progress) => {
                    fault(format!("{message}, as it is still {progress}")).hint(or_wait_longer(
                        format!(
                            "that goes on: try again later; `xy status {name}` says how far it is"
                        ),
                        bound,
                    ))
                }
                None => fault(message)
                    .hint(or_wait_longer(format!("`xy status {name}` shows its state"), bound)),
            };
        }
        let is_shared = !waited.holder.is_client();
        let (with, one, hint) = if is_shared {
            let hint = format!("{ADVICE} in the file of `{name}`, or try again later");
            ("another client", "client", hint)
        } else {
            let hint = "make fewer calls of it at once, or try again later";
            ("another call", "call", hint.to_owned())
        };
        let message = format!("`{name}` was busy with {with} for {}", reply::time(limit));
        let why = format!("it asks questions, so it serves one {one} at a time");
        let cause = because(Some(&format!("{why}; the call was not sent")), bound);
        CallError { cause, ..CallError::new(kind, message) }.hint(or_wait_longer(hint, bound))
    }
}

/// Why a wait ended: `reason`, and the bound of the park if it was that.
fn because(reason: Option<&str>, bound: Option<Duration>) -> Option<String> {
    let bound = bound.map(|most| format!("calls wait at most {most:?} (`park {{ queue }}`)"));
    match (reason, bound) {
        (Some(reason), Some(bound)) => Some(format!("{reason}; {bound}")),
        (reason, bound) => reason.map(str::to_owned).or(bound),
    }
}

/// The advice, and how to have calls wait for longer if the park's bound ended this one.
fn or_wait_longer(advice: String, bound: Option<Duration>) -> String {
    if bound.is_none() {
        return advice;
    }
    advice + "; or raise `park { queue }` and restart the daemon"
}

/// When a wait ends, and what that means: that the park keeps nothing for longer than until
/// `queue`, or that the call has taken as long as it may `in_all`.
fn end_of_wait(queue: Instant, in_all: Option<Instant>) -> (Instant, ErrorKind) {
    match in_all.filter(|in_all| *in_all < queue) {
        Some(in_all) => (in_all, ErrorKind::TimedOut),
        None => (queue, ErrorKind::QueueFull),
    }
}

/// What is said of a call that was written once and is not made again, for this reason.
pub(crate) fn outcome_unknown(fault: &CallError, server: Option<&ServerName>) -> CallError {
    let (whom, look) = match server {
        Some(name) => (format!("`{name}`"), format!("; `xy logs {name}` shows what it said last")),
        None => ("its server".to_owned(), String::new()),
    };
    let once = format!("the call was sent to {whom} once, and not answered");
    let why = fault.cause.as_ref().map_or(once.clone(), |cause| format!("{cause}; {once}"));
    CallError::new(ErrorKind::OutcomeUnknown, format!("outcome unknown: {}", fault.message))
        .cause(why)
        .hint(format!("find out whether it was done before you repeat it{look}"))
}
