//! State that outlives a message, and ways to wait for its changes.
//!
//! In the legacy era each session has its own state. In the modern era the whole process shares
//! one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::jobs::Jobs;
use crate::stream::MessageSink;
use crate::subscriptions::Listeners;
use crate::tasks::Tasks;
use xy_testkit::json::Members;

/// Maximum time to wait for a client's response.
const RESPONSE_TIMEOUT: Duration = Duration::from_mins(1);

/// A legacy session with one client, or the state that all modern clients share.
#[derive(Debug)]
pub(crate) struct Session {
    /// The destination of messages that belong to no request, in the legacy era.
    pub(crate) general: MessageSink,
    state: Mutex<State>,
    changed: Condvar,
}

/// The state of a session.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) version: String,
    pub(crate) capabilities: Members,
    /// The unchanged text of the params of `initialize`.
    pub(crate) client: String,
    pub(crate) level: usize,
    pub(crate) watched: BTreeSet<String>,
    pub(crate) has_more_tools: bool,
    pub(crate) has_more_prompts: bool,
    /// Tasks of the legacy era.
    pub(crate) tasks: Tasks,
    /// Tasks of the modern era.
    pub(crate) jobs: Jobs,
    /// Subscriptions to changes in the modern era.
    pub(crate) listeners: Listeners,
    /// The params of the last `notifications/fixture/poke`.
    pub(crate) last_poke: Option<String>,
    /// The reason of the last cancelled tool call, as JSON.
    pub(crate) last_cancel_reason: Option<String>,
    /// Requests in progress. A cancelled one has the params of its cancellation.
    open: BTreeMap<String, Option<Members>>,
    /// Requests to the client, with the response once it has arrived.
    pending: BTreeMap<String, Option<Members>>,
    requests_sent: u64,
}

impl Session {
    pub(crate) fn new(general: MessageSink) -> Arc<Self> {
        Arc::new(Self { general, state: Mutex::default(), changed: Condvar::new() })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes all waiting threads.
    pub(crate) fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Marks a request as in progress.
    pub(crate) fn open(&self, key: &str) {
        self.state().open.insert(key.to_owned(), None);
    }

    /// Removes a request that is no longer in progress.
    pub(crate) fn close(&self, key: &str) {
        self.state().open.remove(key);
    }

    /// Cancels a request, and ends its subscription. `params` are those of the cancellation.
    pub(crate) fn cancel(&self, key: &str, params: &Members) {
        self.update(|state| {
            if let Some(cancelled) = state.open.get_mut(key) {
                *cancelled = Some(params.clone());
            }
            state.listeners.remove(key);
        });
    }

    pub(crate) fn is_cancelled(&self, key: &str) -> bool {
        self.state().is_cancelled(key)
    }

    /// Handles a notification from the client.
    pub(crate) fn handle_notification(&self, method: &str, params: &Members, params_text: String) {
        match (method, params.raw("requestId")) {
            ("notifications/cancelled", Some(id)) => self.cancel(id, params),
            ("notifications/fixture/poke", _) => self.state().last_poke = Some(params_text),
            _ => {} // The server ignores unknown notifications.
        }
    }

    /// Handles a response from the client.
    pub(crate) fn handle_response(&self, id: &str, message: Members) {
        // Responses with an unknown id are ignored.
        if let Some(answer) = self.state().pending.get_mut(id) {
            *answer = Some(message);
        }
        self.changed.notify_all();
    }

    /// Waits up to `time` until a request is cancelled. Returns the params of the cancellation.
    pub(crate) fn wait_for_cancel(&self, key: &str, time: Duration) -> Option<Members> {
        let is_open = |state: &mut State| !state.is_cancelled(key);
        let waited = self.changed.wait_timeout_while(self.state(), time, is_open);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.open.get(key).cloned().flatten()
    }

    /// Waits up to `time` until any tool call has been cancelled. Returns its reason as JSON.
    pub(crate) fn wait_for_any_cancel(&self, time: Duration) -> Option<String> {
        let is_missing = |state: &mut State| state.last_cancel_reason.is_none();
        let waited = self.changed.wait_timeout_while(self.state(), time, is_missing);
        waited.unwrap_or_else(PoisonError::into_inner).0.last_cancel_reason.clone()
    }

    /// Sends several requests to the client at once, each a method and its params. Returns the
    /// responses that arrive in time. Stops waiting if the request `during` is cancelled.
    pub(crate) fn ask(
        &self,
        out: &MessageSink,
        during: &str,
        requests: &[(&str, &str)],
    ) -> Vec<Option<Members>> {
        let mut state = self.state();
        let ids: Vec<String> = requests.iter().map(|_| state.register_request()).collect();
        drop(state);
        let message = |(id, (method, params)): (&String, &(&str, &str))| {
            format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params},"id":{id}}}"#)
        };
        out.send_all(ids.iter().zip(requests).map(message).collect());
        let is_unanswered = |state: &mut State| {
            let is_open = |id| state.pending.get(id).is_some_and(Option::is_none);
            ids.iter().any(is_open) && !state.is_cancelled(during)
        };
        let waited = self.changed.wait_timeout_while(self.state(), RESPONSE_TIMEOUT, is_unanswered);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        ids.iter().map(|id| state.pending.remove(id).flatten()).collect()
    }
}

impl State {
    /// Registers a request to the client and returns its id.
    fn register_request(&mut self) -> String {
        self.requests_sent += 1;
        // Both numbers and strings are valid ids. These do not collide with ids of the client.
        let id = match self.requests_sent {
            odd if odd % 2 == 1 => (1000 + odd).to_string(),
            even => format!("\"ask-{even}\""),
        };
        self.pending.insert(id.clone(), None);
        id
    }

    fn is_cancelled(&self, key: &str) -> bool {
        self.open.get(key).is_some_and(Option::is_some)
    }
}
