//! Event subscriptions at servers of the modern era: one request that stays open while the server
//! reports changes of its lists, of resources and of tasks.
//!
//! The task that runs the session keeps one such request open. When the filter changes, it opens a
//! new one before it ends the old one, so that no event is missed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use xy_mcp::modern::{self, LISTEN, SUBSCRIPTION};
use xy_mcp::params::Params;
use xy_protocol::control::quoted;
use xy_protocol::error::{CallError, ErrorKind};
use xy_transport::retained::Retained;

use super::{Connection, InternalRequest, Origin, code_of, ids};
use crate::fault::ServerFault;

const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
const CANCELLED: &str = "notifications/cancelled";

/// Maximum time until a server acknowledges a subscription.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time until a caller's filter is active, including the wait for filters before it.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(20);

/// Delays between attempts to subscribe.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(500);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);

/// A subscription this old resets the back-off.
const STABLE_AFTER: Duration = Duration::from_secs(30);

/// Maximum number of callers that wait for a subscription, more than there are clients.
const MAX_WAITERS: usize = 10_000;

const METHOD_NOT_FOUND: i64 = -32601;

/// The events to subscribe to besides list changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// The URIs of resources.
    pub uris: BTreeSet<String>,
    /// The ids of tasks.
    pub tasks: BTreeSet<String>,
}

/// The state of the event subscription at one server.
#[derive(Default)]
pub(super) struct EventSubscription {
    filter: RefCell<EventFilter>,
    /// The callers that wait until the filter is active.
    waiters: RefCell<Vec<oneshot::Sender<SubscribeResult>>>,
    /// Signals that the filter was set.
    filter_changed: Notify,
    /// The request that is not acknowledged yet.
    opening: RefCell<Option<(u64, oneshot::Sender<EventFilter>)>>,
    /// The number of open requests.
    count: Cell<usize>,
    /// The active request.
    current: Cell<Option<u64>>,
    /// A request that an earlier daemon has left open.
    earlier: Cell<Option<u64>>,
    /// Lists were requested while no subscription was active.
    is_behind: Cell<bool>,
    /// It is known whether the server supports subscriptions.
    is_settled: Cell<bool>,
    settled: Notify,
}

/// The active filter, or why there is none.
type SubscribeResult = Result<Rc<EventFilter>, CallError>;

/// An open request. Dropping it cancels it.
struct OpenSubscription {
    request: InternalRequest,
    accepted: EventFilter,
    since: Instant,
}

impl Drop for OpenSubscription {
    fn drop(&mut self) {
        let subscription = &self.request.connection.subscription;
        subscription.count.set(subscription.count.get().saturating_sub(1));
    }
}

/// The result of an attempt to subscribe.
enum OpenResult {
    Open(OpenSubscription),
    /// There is nothing to subscribe to.
    NothingToWatch,
    /// The server does not support subscriptions.
    Unsupported,
}

impl EventSubscription {
    pub(super) fn count(&self) -> usize {
        self.count.get()
    }

    /// Adds the retained entries to `counts`.
    pub(super) fn add_retained(&self, counts: &mut Retained) {
        let filter = self.filter.borrow();
        counts.add("event_subscriptions", self.count());
        counts.add("event_subscription_targets", filter.uris.len() + filter.tasks.len());
        counts.add("event_subscription_waiters", self.waiters.borrow().len());
    }

    /// Returns the id of the active request.
    pub(super) fn listening(&self) -> Option<u64> {
        self.current.get()
    }

    /// Fails the callers that wait.
    pub(super) fn fail_waiters(&self) {
        self.waiters.take();
    }

    fn settle(&self) {
        self.is_settled.set(true);
        self.settled.notify_waiters();
    }
}

impl Connection {
    /// Sets the filter, which replaces the one before. Returns the part of it that the server has
    /// accepted. The filter stays set also if the returned future is dropped.
    pub fn listen_to(&self, filter: EventFilter) -> impl Future<Output = SubscribeResult> + use<> {
        let server = self.key.server.clone();
        let (waiter, result) = oneshot::channel();
        let has_room = self.subscription.waiters.borrow().len() < MAX_WAITERS;
        if has_room {
            self.subscription.filter.replace(filter);
            self.subscription.waiters.borrow_mut().push(waiter);
            self.subscription.filter_changed.notify_one();
        }
        async move {
            if !has_room {
                return Err(ServerFault::TooManySubscribing.named(&server));
            }
            let gone = |tried| ServerFault::NotSubscribed(tried).named(&server);
            match timeout(SUBSCRIBE_TIMEOUT, result).await {
                Ok(result) => result.unwrap_or_else(|_| Err(gone(None))),
                Err(_) => Err(gone(Some(SUBSCRIBE_TIMEOUT))),
            }
        }
    }

    /// Records a request that an earlier daemon has left open.
    pub fn set_earlier_subscription(&self, earlier: Option<u64>) {
        self.subscription.earlier.set(earlier);
    }

    /// Waits until a subscription is active, or the server is known not to support one. Lists that
    /// are requested then miss no change.
    pub async fn subscription_settled(&self) {
        let settled = self.subscription.settled.notified();
        if !self.subscription.is_settled.get() {
            settled.await;
        }
    }

    /// Records that lists are requested now. If no subscription is active, they are requested again
    /// once one is.
    pub fn record_list_request(&self) {
        self.list_versions.requested.set(self.list_versions.current.get());
        self.subscription.is_behind.set(self.subscription.current.get().is_none());
    }

    /// Keeps the subscription open, for as long as the server accepts requests.
    pub async fn keep_listening(self: &Rc<Self>) {
        if !self.is_modern() {
            return std::future::pending().await;
        }
        // A subscription of the previous session has ended.
        self.subscription.current.set(None);
        self.subscription.is_settled.set(false);
        let mut keeper = SubscriptionKeeper {
            connection: self,
            open: None,
            retry_at: None,
            delay: MIN_RETRY_DELAY,
        };
        loop {
            tokio::select! {
                () = self.subscription.filter_changed.notified() => keeper.open().await,
                why = end_of(&mut keeper.open) => keeper.lost(&why),
                () = until(keeper.retry_at) => keeper.open().await,
            }
        }
    }

    /// Returns true if this call is a subscription.
    pub(super) fn is_subscription(&self, upstream_id: u64) -> bool {
        self.subscription.count() > 0
            && self
                .requests
                .borrow()
                .get(&upstream_id)
                .is_some_and(|call| matches!(call.origin, Origin::Subscription(_)))
    }

    /// Handles a notification about a subscription itself. Returns true if it was one.
    pub(super) fn handle_subscription_notification(
        &self,
        method: &str,
        params: Option<&str>,
    ) -> bool {
        match method {
            ACKNOWLEDGED => {
                let Some((upstream_id, accepted)) = acknowledged(params) else { return true };
                let opening = self
                    .subscription
                    .opening
                    .borrow_mut()
                    .take_if(|(waiting, _)| *waiting == upstream_id);
                if let Some((_, opening)) = opening {
                    let _ = opening.send(accepted); // The acknowledgement may have come too late.
                }
                true
            }
            CANCELLED if self.is_modern() => {
                let ended = Params::read(params).request_id().and_then(ids::parse);
                if let Some(upstream_id) =
                    ended.filter(|upstream_id| self.is_subscription(*upstream_id))
                {
                    self.fail(upstream_id, &ServerFault::Cancelled);
                }
                true
            }
            _ => false,
        }
    }

    /// Subscribes to this filter and to all list changes that the server reports.
    async fn try_open(self: &Rc<Self>, filter: &EventFilter) -> Result<OpenResult, CallError> {
        let Some(params) = self.listen_params(filter) else {
            return Ok(OpenResult::NothingToWatch);
        };
        let request = self.ask_with(LISTEN, Some(&params), Origin::Subscription)?;
        self.subscription.count.set(self.subscription.count.get() + 1);
        let upstream_id = request.upstream_id;
        let mut open =
            OpenSubscription { request, accepted: EventFilter::default(), since: Instant::now() };
        let (opening, mut opened) = oneshot::channel();
        self.subscription.opening.replace(Some((upstream_id, opening)));
        let server = &self.key.server;
        let fault = |kind, why: String| ServerFault::SubscriptionFailed(kind, why).named(server);
        let answer = tokio::select! {
            biased;
            Ok(accepted) = &mut opened => {
                open.accepted = accepted;
                return Ok(OpenResult::Open(open));
            }
            answer = open.request.answered() => answer?,
            () = sleep(ACKNOWLEDGE_TIMEOUT) => {
                let why = format!("it did not acknowledge the subscription within {ACKNOWLEDGE_TIMEOUT:?}");
                return Err(fault(ErrorKind::TimedOut, why));
            }
        };
        if code_of(answer.as_bytes()) == Some(METHOD_NOT_FOUND) {
            return Ok(OpenResult::Unsupported);
        }
        let why = super::result_of(&answer).map_or_else(|why| why, |_| "it ended it".to_owned());
        Err(fault(ErrorKind::Internal, why))
    }

    /// Returns the params of the request, or `None` if there is nothing to subscribe to.
    fn listen_params(&self, filter: &EventFilter) -> Option<String> {
        let introduction = self.introduction()?;
        let result: Value = serde_json::from_str(&introduction.result).unwrap_or_default();
        let mut notifications = serde_json::Map::new();
        for (what, key) in [
            ("tools", "toolsListChanged"),
            ("prompts", "promptsListChanged"),
            ("resources", "resourcesListChanged"),
        ] {
            if result["capabilities"][what]["listChanged"] == true {
                notifications.insert(key.to_owned(), json!(true));
            }
        }
        if !filter.uris.is_empty() {
            notifications.insert("resourceSubscriptions".to_owned(), json!(filter.uris));
        }
        if filter.tasks.is_empty() || !modern::offers_tasks(&introduction.result) {
            return (!notifications.is_empty())
                .then(|| json!({ "notifications": notifications }).to_string());
        }
        notifications.insert("taskIds".to_owned(), json!(filter.tasks));
        // Only clients that declare the tasks extension may subscribe to tasks.
        let can: Value = serde_json::from_str(modern::TASKS_CAPABILITIES).unwrap_or_default();
        let meta = json!({ modern::CAPABILITIES: can });
        Some(json!({ "notifications": notifications, "_meta": meta }).to_string())
    }
}

/// The task that keeps the subscription open.
struct SubscriptionKeeper<'k> {
    connection: &'k Rc<Connection>,
    open: Option<OpenSubscription>,
    /// The time of the next attempt.
    retry_at: Option<Instant>,
    delay: Duration,
}

impl SubscriptionKeeper<'_> {
    /// Opens a subscription with the current filter, and ends the old one.
    async fn open(&mut self) {
        let subscription = &self.connection.subscription;
        self.retry_at = None;
        // Later callers may set another filter.
        let (filter, waiters) = (subscription.filter.borrow().clone(), subscription.waiters.take());
        let mut opened = self.connection.try_open(&filter).await;
        if opened.is_err() && !filter.tasks.is_empty() {
            // A server that refuses tasks must not keep others from their resources.
            let rest = EventFilter { tasks: BTreeSet::new(), ..filter };
            opened = self.connection.try_open(&rest).await;
        }
        let result = match opened {
            Ok(OpenResult::Open(open)) => {
                let accepted = Rc::new(open.accepted.clone());
                self.replace(Some(open));
                Ok(accepted)
            }
            Ok(OpenResult::NothingToWatch | OpenResult::Unsupported) => {
                self.replace(None);
                Ok(Rc::default())
            }
            Err(fault) => {
                self.fails(&fault.to_string());
                Err(fault)
            }
        };
        subscription.settle();
        for waiter in waiters {
            let _ = waiter.send(result.clone()); // The caller may be gone.
        }
    }

    fn replace(&mut self, open: Option<OpenSubscription>) {
        let subscription = &self.connection.subscription;
        subscription.current.set(open.as_ref().map(|open| open.request.upstream_id));
        if open.is_some() && subscription.is_behind.replace(false) {
            self.connection.lists_changed();
        }
        self.open = open;
        if let Some(earlier) = subscription.earlier.take() {
            let message = format!(
                r#"{{"jsonrpc":"2.0","method":"{CANCELLED}","params":{{"requestId":{earlier}}}}}"#
            );
            self.connection.send(message.as_bytes());
        }
        self.connection.save_note();
    }

    /// Handles the end of the subscription.
    fn lost(&mut self, why: &str) {
        let subscription = &self.connection.subscription;
        subscription.current.set(None);
        subscription.is_behind.set(true);
        if self.open.take().is_some_and(|open| open.since.elapsed() >= STABLE_AFTER) {
            self.delay = MIN_RETRY_DELAY;
        }
        self.fails(why);
    }

    fn fails(&mut self, why: &str) {
        tracing::debug!(server = %self.connection.key, why, "not listened to");
        if self.open.is_none() {
            self.retry_at = Some(Instant::now() + self.delay);
            self.delay = (self.delay * 2).min(MAX_RETRY_DELAY);
        }
    }
}

/// Returns why the subscription ended. Never resolves if there is none.
async fn end_of(open: &mut Option<OpenSubscription>) -> String {
    let Some(open) = open else { return std::future::pending().await };
    match open.request.answered().await {
        Ok(answer) => quoted(&answer),
        Err(fault) => fault.to_string(),
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Returns the id of the acknowledged request, and the accepted filter.
fn acknowledged(params: Option<&str>) -> Option<(u64, EventFilter)> {
    let params: Value = serde_json::from_str(params?).ok()?;
    let id = &params["_meta"][SUBSCRIPTION];
    let upstream_id = id.as_u64().or_else(|| id.as_str()?.parse().ok())?;
    let accepted = |key: &str| {
        let all = params["notifications"][key].as_array().into_iter().flatten();
        all.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let (uris, tasks) = (accepted("resourceSubscriptions"), accepted("taskIds"));
    Some((upstream_id, EventFilter { uris, tasks }))
}
