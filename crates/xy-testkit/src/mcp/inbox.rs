//! What a client has heard and nobody has taken yet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;

/// A test that hears more than this has lost control.
const MOST_HEARD: usize = 1_000_000;

/// Everything heard, sorted. Messages stay the text they came as.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    heard: Mutex<Heard>,
    news: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// Answers by the text of their id.
    pub(crate) answers: BTreeMap<String, VecDeque<String>>,
    pub(crate) notifications: VecDeque<Value>,
    /// What the server asked and nobody has answered.
    pub(crate) questions: VecDeque<Value>,
    /// What was no message.
    pub(crate) strays: Vec<String>,
    /// Requests without an answer, by the text of their id.
    pub(crate) open: BTreeSet<String>,
    /// Why some request will never be answered, by the text of its id.
    pub(crate) lost: BTreeMap<String, String>,
    pub(crate) is_closed: bool,
    /// Everything as it came, in its order, if somebody wants it.
    pub(crate) record: Option<Vec<String>>,
    count: usize,
}

/// What came in.
#[derive(Debug)]
pub(crate) enum Sort {
    Answer,
    Notification,
    Question(Value),
    Stray,
}

impl Inbox {
    /// Puts a message where it belongs; a question is given back instead.
    pub(crate) fn put(&self, text: &str) -> Sort {
        let members: BTreeMap<String, Box<RawValue>> =
            serde_json::from_str(text).unwrap_or_default();
        let mut heard = self.heard();
        heard.count += 1;
        if heard.count > MOST_HEARD {
            // Nothing is kept from here on; whoever waits is told.
            heard.is_closed = true;
            return Sort::Stray;
        }
        if let Some(record) = &mut heard.record {
            record.push(text.to_owned());
        }
        let id = members.get("id").map(|id| id.get().to_owned());
        let value = || serde_json::from_str::<Value>(text);
        let sort = match (id, members.contains_key("method")) {
            (Some(id), false) => {
                heard.open.remove(&id);
                heard.answers.entry(id).or_default().push_back(text.to_owned());
                Sort::Answer
            }
            (id, true) => match (id, value()) {
                (Some(_), Ok(question)) => Sort::Question(question),
                (None, Ok(notification)) => {
                    heard.notifications.push_back(notification);
                    Sort::Notification
                }
                (_, Err(cause)) => {
                    heard.strays.push(format!("{cause}: {text}"));
                    Sort::Stray
                }
            },
            (None, false) => {
                heard.strays.push(text.to_owned());
                Sort::Stray
            }
        };
        drop(heard);
        self.news.notify_all();
        sort
    }

    /// Changes what has been heard, and tells those who wait.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Heard)) {
        change(&mut self.heard());
        self.news.notify_all();
    }

    /// The request `id` will not be answered any more, unless it has been.
    pub(crate) fn lose(&self, id: &str, why: String) {
        self.change(|heard| {
            if heard.open.remove(id) {
                heard.lost.insert(id.to_owned(), why);
            }
        });
    }

    /// Waits until `look` finds what it wants; `None` at the limit.
    pub(crate) fn wait<T>(
        &self,
        limit: Duration,
        mut look: impl FnMut(&mut Heard) -> Option<T>,
    ) -> Option<T> {
        let mut found = None;
        let missing = |heard: &mut Heard| {
            found = look(heard);
            found.is_none()
        };
        drop(self.news.wait_timeout_while(self.heard(), limit, missing));
        found
    }

    pub(crate) fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Heard {
    /// Takes the first answer to the request `id`.
    pub(crate) fn take_answer(&mut self, id: &str) -> Option<String> {
        let waiting = self.answers.get_mut(id)?;
        let first = waiting.pop_front();
        if waiting.is_empty() {
            self.answers.remove(id);
        }
        first
    }

    /// For the reader of a failed test.
    pub(crate) fn describe(&self) -> String {
        let Self { notifications, questions, strays, lost, is_closed, .. } = self;
        let answered: Vec<&String> = self.answers.keys().collect();
        let last = notifications.iter().rev().take(5).collect::<Vec<_>>();
        format!(
            "{} messages; closed: {is_closed}; answers to {answered:?}; lost {lost:?}; questions \
             {questions:?}; no messages {strays:?}; the last of {} notifications: {last:?}",
            self.count,
            notifications.len()
        )
    }
}
