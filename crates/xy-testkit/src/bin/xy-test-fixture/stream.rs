//! Destinations of messages: stdout, or a stream that stores its events for replay.
//!
//! A stream accepts messages even without a reader. A reader names the event after which it
//! continues, so a disconnected reader loses nothing.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use xy_testkit::standin::Output;

/// Maximum number of events in one stream. Later events are dropped.
const MAX_EVENTS: usize = 10_000;

/// A destination of messages.
#[derive(Debug, Clone)]
pub(crate) enum MessageSink {
    Stdout,
    /// The stream of one request. It ends with the response.
    Stream(Arc<Stream>),
    /// A stream that outlives requests.
    Persistent(Arc<Stream>),
}

impl MessageSink {
    /// Sends a message.
    pub(crate) fn send(&self, message: &str) {
        self.send_all(vec![message.to_owned()]);
    }

    /// Sends messages with no other message in between.
    pub(crate) fn send_all(&self, messages: Vec<String>) {
        match self {
            Self::Stdout => Output::Stdout.say(&messages.join("\n")),
            Self::Stream(stream) | Self::Persistent(stream) => stream.update(|log| {
                log.events.extend(messages);
                log.events.truncate(MAX_EVENTS);
            }),
        }
    }

    /// Disconnects the reader of a request's stream. It may reconnect for the remaining events.
    pub(crate) fn disconnect_reader(&self) {
        if let Self::Stream(stream) = self {
            stream.update(|log| log.reader += 1);
        }
    }

    /// Ends the stream of a request. Other destinations stay open.
    pub(crate) fn finish(&self) {
        if let Self::Stream(stream) = self {
            stream.update(|log| log.is_over = true);
        }
    }
}

/// An ordered log of messages, with at most one reader at a time.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    log: Mutex<Log>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Log {
    events: Vec<String>,
    /// Number of events that have been delivered to a reader.
    delivered: usize,
    /// The number of the current reader. A new reader replaces the previous one.
    reader: u64,
    is_over: bool,
}

/// The outcome of waiting for an event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// An event and its number. The first event has number 1.
    Event(usize, String),
    /// No event arrived within the limit.
    Timeout,
    /// The stream has ended, or another reader has replaced this one.
    End,
}

/// A reader of a stream.
#[derive(Debug)]
pub(crate) struct Reader {
    stream: Arc<Stream>,
    number: u64,
    next: usize,
}

impl Stream {
    /// Returns a reader that starts after event `last`, or at the first undelivered event.
    pub(crate) fn read(self: &Arc<Self>, last: Option<usize>) -> Reader {
        let mut reader = Reader { stream: Arc::clone(self), number: 0, next: 0 };
        self.update(|log| {
            log.reader += 1;
            reader.number = log.reader;
            reader.next = last.unwrap_or(log.delivered);
        });
        reader
    }

    /// Waits for the end of the stream. Returns its message if it has exactly one.
    pub(crate) fn only_message(&self) -> Option<String> {
        let log = self.changed.wait_while(self.log(), |log| !log.is_over);
        let log = log.unwrap_or_else(PoisonError::into_inner);
        match log.events.as_slice() {
            [message] => Some(message.clone()),
            _ => None,
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut Log)) {
        change(&mut self.log());
        self.changed.notify_all();
    }
}

impl Reader {
    /// Returns the number of the event after which the reader continues.
    pub(crate) fn position(&self) -> usize {
        self.next
    }

    /// Waits up to `limit` for the next event.
    pub(crate) fn next(&mut self, limit: Duration) -> Next {
        let (number, next) = (self.number, self.next);
        let is_idle =
            |log: &mut Log| log.reader == number && log.events.len() <= next && !log.is_over;
        let waited = self.stream.changed.wait_timeout_while(self.stream.log(), limit, is_idle);
        let (mut log, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let event = log.events.get(next).cloned();
        match event {
            _ if log.reader != number => Next::End,
            Some(event) => {
                self.next += 1;
                log.delivered = log.delivered.max(self.next);
                Next::Event(self.next, event)
            }
            None if log.is_over => Next::End,
            None => Next::Timeout,
        }
    }
}
