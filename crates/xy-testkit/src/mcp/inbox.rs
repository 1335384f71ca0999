//! The messages that a client has received and the test has not taken yet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;

/// Maximum number of received messages. Beyond it, the inbox is closed.
const MAX_RECEIVED: usize = 1_000_000;

/// All received messages, by kind, with their original text.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    received: Mutex<ReceivedMessages>,
    news: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct ReceivedMessages {
    /// Responses by the text of their id.
    pub(crate) answers: BTreeMap<String, VecDeque<String>>,
    pub(crate) notifications: VecDeque<Value>,
    /// Server requests that the client has not answered.
    pub(crate) questions: VecDeque<Value>,
    /// Received data that was not a message.
    pub(crate) strays: Vec<String>,
    /// Requests without a response, by the text of their id.
    pub(crate) open: BTreeSet<String>,
    /// The reasons why requests will never be answered, by the text of the request id.
    pub(crate) lost: BTreeMap<String, String>,
    pub(crate) is_closed: bool,
    /// The original texts of all messages in order, if recording is on.
    pub(crate) record: Option<Vec<String>>,
    count: usize,
}

/// The kind of a received message.
#[derive(Debug)]
pub(crate) enum MessageKind {
    Answer,
    Notification,
    Question(Value),
    Stray,
}

impl Inbox {
    /// Stores a message. A server request is returned instead.
    pub(crate) fn put(&self, text: &str) -> MessageKind {
        let members: BTreeMap<String, Box<RawValue>> =
            serde_json::from_str(text).unwrap_or_default();
        let mut received = self.received();
        received.count += 1;
        if received.count > MAX_RECEIVED {
            // Further messages are dropped; waiting threads are notified.
            received.is_closed = true;
            return MessageKind::Stray;
        }
        if let Some(record) = &mut received.record {
            record.push(text.to_owned());
        }
        let id = members.get("id").map(|id| id.get().to_owned());
        let value = || serde_json::from_str::<Value>(text);
        let sort = match (id, members.contains_key("method")) {
            (Some(id), false) => {
                received.open.remove(&id);
                received.answers.entry(id).or_default().push_back(text.to_owned());
                MessageKind::Answer
            }
            (id, true) => match (id, value()) {
                (Some(_), Ok(question)) => MessageKind::Question(question),
                (None, Ok(notification)) => {
                    received.notifications.push_back(notification);
                    MessageKind::Notification
                }
                (_, Err(cause)) => {
                    received.strays.push(format!("{cause}: {text}"));
                    MessageKind::Stray
                }
            },
            (None, false) => {
                received.strays.push(text.to_owned());
                MessageKind::Stray
            }
        };
        drop(received);
        self.news.notify_all();
        sort
    }

    /// Changes the received messages and notifies waiting threads.
    pub(crate) fn change(&self, change: impl FnOnce(&mut ReceivedMessages)) {
        change(&mut self.received());
        self.news.notify_all();
    }

    /// Records that the request `id` will not be answered, unless it already was.
    pub(crate) fn lose(&self, id: &str, why: String) {
        self.change(|received| {
            if received.open.remove(id) {
                received.lost.insert(id.to_owned(), why);
            }
        });
    }

    /// Waits until `look` returns `Some`. Returns `None` if the limit passes first.
    pub(crate) fn wait<T>(
        &self,
        limit: Duration,
        mut look: impl FnMut(&mut ReceivedMessages) -> Option<T>,
    ) -> Option<T> {
        let mut found = None;
        let missing = |received: &mut ReceivedMessages| {
            found = look(received);
            found.is_none()
        };
        drop(self.news.wait_timeout_while(self.received(), limit, missing));
        found
    }

    pub(crate) fn received(&self) -> MutexGuard<'_, ReceivedMessages> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReceivedMessages {
    /// Takes the first response to the request `id`.
    pub(crate) fn take_answer(&mut self, id: &str) -> Option<String> {
        let waiting = self.answers.get_mut(id)?;
        let first = waiting.pop_front();
        if waiting.is_empty() {
            self.answers.remove(id);
        }
        first
    }

    /// Describes the received messages, for the panic message of a failed test.
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
