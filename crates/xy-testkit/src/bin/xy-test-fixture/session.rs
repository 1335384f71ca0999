//! What is remembered between messages: in the legacy era by each conversation, in the modern
//! one by the whole process; and how to wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::jobs::Jobs;
use crate::stream::Out;
use crate::subscriptions::Listeners;
use crate::tasks::Tasks;
use xy_testkit::json::Members;

/// How long a client may take to answer.
const ASKED_WITHIN: Duration = Duration::from_mins(1);

/// A conversation with one client, or everything that modern clients share.
#[derive(Debug)]
pub(crate) struct Session {
    /// Where goes what belongs to no request, in the legacy era.
    pub(crate) general: Out,
    state: Mutex<State>,
    changed: Condvar,
}

/// What it remembers.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) version: String,
    pub(crate) capabilities: Members,
    /// The params of `initialize`, as they came.
    pub(crate) client: String,
    pub(crate) level: usize,
    pub(crate) watched: BTreeSet<String>,
    pub(crate) has_more_tools: bool,
    pub(crate) has_more_prompts: bool,
    /// Tasks of the legacy era.
    pub(crate) tasks: Tasks,
    /// Tasks of the modern one.
    pub(crate) jobs: Jobs,
    /// Who hears of changes in the modern era.
    pub(crate) listeners: Listeners,
    /// The params of the last notification that nobody knows.
    pub(crate) poked: Option<String>,
    /// What was said of the last call that was cancelled.
    pub(crate) cancelled: Option<String>,
    /// Requests that are worked on, each with the params of its cancellation.
    open: BTreeMap<String, Option<Members>>,
    /// What the client was asked, and its answers.
    questions: BTreeMap<String, Option<Members>>,
    asked: u64,
}

impl Session {
    pub(crate) fn new(general: Out) -> Arc<Self> {
        Arc::new(Self { general, state: Mutex::default(), changed: Condvar::new() })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is remembered, and tells those who wait.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// A request is worked on from now on.
    pub(crate) fn open(&self, key: &str) {
        self.state().open.insert(key.to_owned(), None);
    }

    /// It is not any more.
    pub(crate) fn close(&self, key: &str) {
        self.state().open.remove(key);
    }

    /// Nobody wants to hear of a request any more, for these reasons.
    pub(crate) fn cancel(&self, key: &str, params: &Members) {
        self.change(|state| {
            if let Some(cancelled) = state.open.get_mut(key) {
                *cancelled = Some(params.clone());
            }
            state.listeners.remove(key);
        });
    }

    pub(crate) fn is_cancelled(&self, key: &str) -> bool {
        self.state().is_cancelled(key)
    }

    /// A notification came.
    pub(crate) fn notified(&self, method: &str, params: &Members, params_text: String) {
        match (method, params.raw("requestId")) {
            ("notifications/cancelled", Some(id)) => self.cancel(id, params),
            ("notifications/fixture/poke", _) => self.state().poked = Some(params_text),
            _ => {} // It means nothing to us, as it should be.
        }
    }

    /// An answer came.
    pub(crate) fn answered(&self, id: &str, message: Members) {
        // Only what was asked is kept.
        if let Some(answer) = self.state().questions.get_mut(id) {
            *answer = Some(message);
        }
        self.changed.notify_all();
    }

    /// Waits until a request is cancelled, at most so long: the params of the cancellation.
    pub(crate) fn wait_for_cancel(&self, key: &str, time: Duration) -> Option<Members> {
        let is_open = |state: &mut State| !state.is_cancelled(key);
        let waited = self.changed.wait_timeout_while(self.state(), time, is_open);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.open.get(key).cloned().flatten()
    }

    /// Waits until some call has been cancelled, at most so long: what was said of it.
    pub(crate) fn wait_for_cancelled(&self, time: Duration) -> Option<String> {
        let is_missing = |state: &mut State| state.cancelled.is_none();
        let waited = self.changed.wait_timeout_while(self.state(), time, is_missing);
        waited.unwrap_or_else(PoisonError::into_inner).0.cancelled.clone()
    }

    /// Asks the client some things at once in the middle of the request `during`, each a
    /// method and its params: the answers that came in time.
    pub(crate) fn ask(
        &self,
        out: &Out,
        during: &str,
        questions: &[(&str, &str)],
    ) -> Vec<Option<Members>> {
        let mut state = self.state();
        let ids: Vec<String> = questions.iter().map(|_| state.new_question()).collect();
        drop(state);
        let message = |(id, (method, params)): (&String, &(&str, &str))| {
            format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params},"id":{id}}}"#)
        };
        out.say_all(ids.iter().zip(questions).map(message).collect());
        let is_unanswered = |state: &mut State| {
            let is_open = |id| state.questions.get(id).is_some_and(Option::is_none);
            ids.iter().any(is_open) && !state.is_cancelled(during)
        };
        let waited = self.changed.wait_timeout_while(self.state(), ASKED_WITHIN, is_unanswered);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        ids.iter().map(|id| state.questions.remove(id).flatten()).collect()
    }
}

impl State {
    /// Something is asked, under the id that this answers.
    fn new_question(&mut self) -> String {
        self.asked += 1;
        // An id may be either; neither is one that somebody else would think of.
        let id = match self.asked {
            odd if odd % 2 == 1 => (1000 + odd).to_string(),
            even => format!("\"ask-{even}\""),
        };
        self.questions.insert(id.clone(), None);
        id
    }

    fn is_cancelled(&self, key: &str) -> bool {
        self.open.get(key).is_some_and(Option::is_some)
    }
}
