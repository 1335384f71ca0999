//! Where messages go: to stdout, or into a stream that remembers them.
//!
//! A stream is written to whether somebody reads it or not. Whoever reads names the event
//! after which to go on, so a reader that was cut off loses nothing.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use xy_testkit::standin::Output;

/// More than any test says in one stream; what comes after is not remembered.
const MOST_EVENTS: usize = 10_000;

/// A way out.
#[derive(Debug, Clone)]
pub(crate) enum Out {
    Stdout,
    /// The stream of one request, which is over once that is answered.
    Stream(Arc<Stream>),
    /// A stream that outlives every request.
    Lasting(Arc<Stream>),
}

impl Out {
    /// Says a message.
    pub(crate) fn say(&self, message: &str) {
        self.say_all(vec![message.to_owned()]);
    }

    /// Says messages with nothing in between.
    pub(crate) fn say_all(&self, messages: Vec<String>) {
        match self {
            Self::Stdout => Output::Stdout.say(&messages.join("\n")),
            Self::Stream(stream) | Self::Lasting(stream) => stream.change(|log| {
                log.events.extend(messages);
                log.events.truncate(MOST_EVENTS);
            }),
        }
    }

    /// Lets go of whoever reads, in the middle; they may come back for the rest.
    pub(crate) fn cut(&self) {
        if let Self::Stream(stream) = self {
            stream.change(|log| log.reader += 1);
        }
    }

    /// There will be nothing more.
    pub(crate) fn finish(&self) {
        if let Self::Stream(stream) = self {
            stream.change(|log| log.is_over = true);
        }
    }
}

/// Messages in their order.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    log: Mutex<Log>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Log {
    events: Vec<String>,
    /// How many have been given to a reader.
    given: usize,
    /// The number of the reader that may read: there is one at a time, the last that came.
    reader: u64,
    is_over: bool,
}

/// What a reader is given.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// An event and its number, from 1.
    Event(usize, String),
    /// Nothing for a while.
    Silence,
    /// There is nothing more, for this reader at least.
    End,
}

/// Whoever reads a stream.
#[derive(Debug)]
pub(crate) struct Reader {
    stream: Arc<Stream>,
    number: u64,
    next: usize,
}

impl Stream {
    /// A reader of what came after the event `last`, or of what nobody was given yet.
    pub(crate) fn read(self: &Arc<Self>, last: Option<usize>) -> Reader {
        let mut reader = Reader { stream: Arc::clone(self), number: 0, next: 0 };
        self.change(|log| {
            log.reader += 1;
            reader.number = log.reader;
            reader.next = last.unwrap_or(log.given);
        });
        reader
    }

    /// The only message, once the stream is over; `None` if there were others too.
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

    fn change(&self, change: impl FnOnce(&mut Log)) {
        change(&mut self.log());
        self.changed.notify_all();
    }
}

impl Reader {
    /// The number of the event after which it goes on.
    pub(crate) fn at(&self) -> usize {
        self.next
    }

    /// Waits for the next event, a while.
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
                log.given = log.given.max(self.next);
                Next::Event(self.next, event)
            }
            None if log.is_over => Next::End,
            None => Next::Silence,
        }
    }
}
