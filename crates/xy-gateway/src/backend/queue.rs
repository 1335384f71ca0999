//! The queue of calls that wait for their server: until it is up, until it is their turn, or until
//! it was restarted.
//!
//! One queue per server holds them in the order in which they were first accepted. A call that was
//! sent and comes back stands before all later ones. `upstream/retry.rs` decides which calls come
//! back.

pub(super) use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};
use xy_config::settings::Isolation;
use xy_http::frontend::StreamNo;
use xy_mcp::era::Era;
use xy_protocol::error::ErrorKind;
use xy_supervisor::instance::Holder;
use xy_transport::message_text::StoredText;
use xy_transport::share::TokenUse;
use xy_upstream::fault::{ServerFault, WaitReason, WaitTimeout};

use super::queue_budget::{Load, Reservation, TokenLoad};
use super::{Availability, Backend, STOPPED};
use crate::call::{CallClient, RetryState};

/// A call that waits for its server.
pub(crate) struct QueuedCall {
    pub(super) ticket: u64,
    pub(crate) client: Rc<dyn CallClient>,
    /// The server, under the name that the client used.
    pub(crate) alias: Rc<Backend>,
    pub(super) holder: Holder,
    pub(crate) id: Box<str>,
    pub(crate) text: StoredText,
    pub(crate) stream: StreamNo,
    /// The client is modern: the request says everything about it.
    pub(super) is_modern: bool,
    pub(crate) retry_state: RetryState,
    /// The share of the queue budget, while the call waits.
    reservation: Option<(Reservation, WaitingCount)>,
    /// The timer that ends the wait.
    timer: Option<AbortHandle>,
}

impl QueuedCall {
    /// Completes the call with an error.
    pub(crate) fn fail(&self, fault: &ServerFault) {
        let fault = fault.named(&self.alias.name);
        let fault = self.alias.alias.failure(&self.retry_state, &fault);
        self.client.respond_error(&self.id, self.stream, &fault);
    }
}

impl Drop for QueuedCall {
    fn drop(&mut self) {
        if let Some(timer) = &self.timer {
            timer.abort();
        }
    }
}

/// A count of one waiting call, until it is dropped.
struct WaitingCount(Arc<AtomicUsize>);

impl WaitingCount {
    fn at(waiting: &Arc<AtomicUsize>) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting.clone())
    }
}

impl Drop for WaitingCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call that is to be queued.
pub(crate) struct CallToQueue {
    pub(crate) client: Rc<dyn CallClient>,
    /// The server, under the name that the client used.
    pub(crate) alias: Rc<Backend>,
    pub(crate) holder: Holder,
    pub(crate) id: Box<str>,
    pub(crate) text: StoredText,
    pub(crate) stream: StreamNo,
    pub(crate) is_modern: bool,
    pub(crate) retry_state: RetryState,
}

impl Backend {
    /// Returns the ticket of a call, which orders it among all calls of this server.
    pub(super) fn ticket(&self, retry_state: &RetryState) -> u64 {
        retry_state.ticket.unwrap_or_else(|| self.queue_budget.next_ticket())
    }

    /// Checks that there is room for one more call of this length, and that the client's token
    /// leaves room for calls of others.
    pub(crate) fn check_room(
        &self,
        client: &dyn CallClient,
        length: usize,
    ) -> Result<(), ServerFault> {
        let here = Load { calls: self.waiting(), bytes: self.waiting_bytes.get() };
        if let Some(limit) = self.queue_budget.exceeded(here, length) {
            return Err(limit.fault());
        }
        self.check_share(client.token(), here, length)
    }

    /// Checks that a token leaves room for calls of others. `here` waits for this server.
    fn check_share(&self, token: TokenUse, here: Load, length: usize) -> Result<(), ServerFault> {
        let over_share =
            |own: Load| self.queue_budget.over_share(token, TokenLoad { own, all: here }, length);
        if over_share(here).is_none() {
            return Ok(()); // Holds even if all calls are its own: no need to count.
        }
        let waiting = self.waiting.borrow();
        let own = waiting.iter().filter(|it| it.client.token() == token);
        let own = own.fold(Load::default(), |own, call| own.with(call.text.len()));
        over_share(own).map_or(Ok(()), Err)
    }

    /// Queues a call, for which there must be room. Returns its ticket, and whether it is the first
    /// of its holder.
    pub(crate) fn enqueue(self: &Rc<Self>, call: CallToQueue) -> (u64, bool) {
        let CallToQueue { client, alias, holder, id, text, stream, is_modern, mut retry_state } =
            call;
        let (ticket, since) =
            (self.ticket(&retry_state), retry_state.waits_since.unwrap_or_else(Instant::now));
        (retry_state.ticket, retry_state.waits_since) = (Some(ticket), Some(since));
        let timer = Some(self.set_timer(ticket, self.wait_ends_at(&retry_state, since)));
        alias.counts().parked.set(alias.counts().parked.get() + 1);
        let reservation = Some((
            self.queue_budget.take(client.token(), text.len()),
            WaitingCount::at(&alias.counts().waiting),
        ));
        let waits = QueuedCall {
            ticket,
            client,
            alias,
            holder,
            id,
            text,
            stream,
            is_modern,
            retry_state,
            reservation,
            timer,
        };
        self.waiting_bytes.set(self.waiting_bytes.get() + waits.text.len() as u64);
        let mut waiting = self.waiting.borrow_mut();
        let is_first = !waiting.iter().any(|it| it.holder == holder);
        let position = waiting.partition_point(|it| it.ticket < ticket);
        waiting.insert(position, waits);
        drop(waiting);
        (ticket, is_first)
    }

    /// Returns when the wait of a call ends: by the queue timeout, or by its total timeout.
    fn wait_ends_at(&self, retry_state: &RetryState, since: Instant) -> Instant {
        let all = retry_state.rounds.timer.as_ref().and_then(|timer| timer.end());
        wait_end(since + self.queue_budget.park.queue, all).0
    }

    /// Returns the error kind of a call whose wait has ended.
    fn wait_end_kind(&self, retry_state: &RetryState, since: Instant) -> ErrorKind {
        let all = retry_state.rounds.timer.as_ref().and_then(|timer| timer.end());
        wait_end(since + self.queue_budget.park.queue, all).1
    }

    fn set_timer(self: &Rc<Self>, ticket: u64, at: Instant) -> AbortHandle {
        let server = Rc::downgrade(self);
        let timer = tokio::task::spawn_local(async move {
            sleep_until(at).await;
            if let Some(server) = server.upgrade() {
                server.on_wait_timeout(ticket);
            }
        });
        timer.abort_handle()
    }

    /// Fails a call whose wait has ended.
    fn on_wait_timeout(self: &Rc<Self>, ticket: u64) {
        let Some(waited) = self.take_waiting(ticket) else { return };
        let queue = self.queue_budget.park.queue;
        let since = waited.retry_state.waits_since.unwrap_or_else(Instant::now);
        let kind = self.wait_end_kind(&waited.retry_state, since);
        let fault = self.wait_timeout(&waited, kind, since.elapsed().min(queue));
        waited.fail(&fault);
        self.release(); // Other calls may have waited behind it.
    }

    /// Removes a call from the queue; `None` if it does not wait any more.
    pub(crate) fn take_waiting(&self, ticket: u64) -> Option<QueuedCall> {
        let mut waiting = self.waiting.borrow_mut();
        let position = waiting.binary_search_by_key(&ticket, |it| it.ticket).ok()?;
        let mut taken = waiting.remove(position)?;
        drop(waiting);
        taken.reservation = None;
        self.waiting_bytes.set(self.waiting_bytes.get() - taken.text.len() as u64);
        Some(taken)
    }

    /// Removes all calls that wait for an instance, in order.
    pub(crate) fn take_all_waiting(&self, holder: Option<Holder>) -> Vec<QueuedCall> {
        self.take_matching(|it| holder.is_none_or(|holder| holder == it.holder))
    }

    pub(super) fn take_matching(&self, is_meant: impl Fn(&QueuedCall) -> bool) -> Vec<QueuedCall> {
        let all = std::mem::take(&mut *self.waiting.borrow_mut());
        let (mut taken, mut left) = (Vec::new(), VecDeque::new());
        for mut one in all {
            if is_meant(&one) {
                // It may have to wait again, and needs no second reservation.
                one.reservation = None;
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

    /// Sends the calls that wait for an instance, which accepts requests now, in order.
    pub(crate) fn release_for(self: &Rc<Self>, holder: Holder) {
        if self.asks() && !self.upstream(holder).is_some_and(|it| it.is_modern()) {
            return self.release();
        }
        self.release_all_for(holder);
    }

    /// Sends all calls that wait for an instance, in order, if it accepts requests.
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

    pub(super) fn send_again(waited: &QueuedCall) {
        let (text, retry_state) = (waited.text.borrow(), waited.retry_state.clone());
        waited.client.redispatch_with(&waited.id, text, waited.stream, retry_state);
    }

    /// Dispatches all calls again that wait for an instance.
    pub(crate) fn send_again_all(&self, holder: Holder) {
        for waited in self.take_all_waiting(Some(holder)) {
            Self::send_again(&waited);
        }
    }

    /// Dispatches the calls again that wait for the wrong instance after a change of settings or of
    /// aliases.
    pub(crate) fn reroute_waiting(&self) {
        let is_other = |it: &QueuedCall| !self.is_holder_of(it) || !self.is_primary_of(&it.alias);
        for waited in self.take_matching(is_other) {
            Self::send_again(&waited);
        }
    }

    /// Returns true if a call waits for an instance that may serve it.
    fn is_holder_of(&self, it: &QueuedCall) -> bool {
        match (self.settings.borrow().isolation, it.holder) {
            (Isolation::Client, holder) => holder == Holder::Client(it.client.group_id()),
            (Isolation::Shared, Holder::Shared) => true,
            (Isolation::Shared, Holder::Era(_)) => self.may_split(),
            (Isolation::Shared, Holder::Client(_)) => false,
        }
    }

    /// Fails all calls that wait under this name, which was stopped.
    pub(crate) fn fail_all_under(&self, alias: &Self, why: &str) {
        let fault = alias.down_fault(why);
        for waited in self.take_matching(|it| std::ptr::eq(Rc::as_ptr(&it.alias), alias)) {
            waited.fail(&fault);
        }
    }

    /// Returns true if a call would overtake an earlier one of its client.
    pub(super) fn would_overtake(&self, client: &dyn CallClient, holder: Holder) -> bool {
        let waiting = self.waiting.borrow();
        !self.is_releasing.get()
            && waiting.iter().any(|it| it.holder == holder && it.client.number() == client.number())
    }

    /// Sets which instances for single clients are down, and why. Fails the calls that wait for
    /// them.
    pub(crate) fn set_down(&self, down: HashMap<Holder, String>) {
        for (holder, why) in &down {
            let waiting = self.take_all_waiting(Some(*holder));
            if waiting.is_empty() {
                continue; // The explanation is costly: it reads the log.
            }
            let fault = self.down_for(*holder, why);
            for waited in waiting {
                waited.fail(&fault);
            }
        }
        *self.down.borrow_mut() = down;
    }

    /// Fails calls whose wait ends before their instance is started again. `retries` holds the end
    /// of the back-off of each instance.
    pub(crate) fn fail_hopeless(&self, retries: &HashMap<Holder, Instant>) {
        let is_hopeless = |it: &QueuedCall| {
            let since = it.retry_state.waits_since;
            let retry_at = retries.get(&it.holder);
            since
                .zip(retry_at)
                .is_some_and(|(since, at)| self.wait_ends_at(&it.retry_state, since) < *at)
        };
        for waited in self.take_matching(is_hopeless) {
            let since = waited.retry_state.waits_since.unwrap_or_else(Instant::now);
            let kind = self.wait_end_kind(&waited.retry_state, since);
            let fault = self.wait_timeout(&waited, kind, since.elapsed());
            waited.fail(&fault);
        }
    }

    /// Returns why an instance is not restarted, if it is not.
    pub(crate) fn no_successor(&self, holder: Holder) -> Option<String> {
        if let Availability::Down(why) = &*self.availability.borrow() {
            return Some(why.clone());
        }
        if self.is_hidden() {
            return Some(STOPPED.to_owned());
        }
        self.down.borrow().get(&holder).cloned()
    }

    /// Returns the number of waiting calls.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Returns the era of the oldest call that waits for the shared process.
    pub(super) fn era_of_first_waiting(&self) -> Option<Era> {
        let waiting = self.waiting.borrow();
        let first = waiting.iter().find(|it| it.holder == Holder::Shared)?;
        Some(if first.is_modern { Era::Modern } else { Era::Legacy })
    }

    /// Returns the number of calls that wait for one instance.
    pub(crate) fn waiting_for(&self, holder: Holder) -> usize {
        self.waiting.borrow().iter().filter(|it| it.holder == holder).count()
    }

    /// Returns the error of a call whose wait has ended.
    fn wait_timeout(&self, call: &QueuedCall, kind: ErrorKind, waited: Duration) -> ServerFault {
        let awaited = if self.upstream(call.holder).is_some() {
            WaitReason::Busy { is_shared: !call.holder.is_client() }
        } else if let Some(failure) = self.failure(call.holder) {
            WaitReason::Failed(failure)
        } else {
            WaitReason::Start(self.progress(call.holder).map(|progress| progress.to_string()))
        };
        // A call that reached its total timeout was not ended by the queue timeout.
        let queue = (kind == ErrorKind::QueueFull).then_some(self.queue_budget.park.queue);
        let was_written = call.retry_state.was_written;
        ServerFault::WaitTimeout(WaitTimeout { kind, waited, queue, was_written, awaited })
    }
}

/// Returns when a wait ends and with which error kind: by the queue timeout, or earlier by the
/// total timeout `in_all`.
fn wait_end(queue: Instant, in_all: Option<Instant>) -> (Instant, ErrorKind) {
    match in_all.filter(|in_all| *in_all < queue) {
        Some(in_all) => (in_all, ErrorKind::TimedOut),
        None => (queue, ErrorKind::QueueFull),
    }
}
