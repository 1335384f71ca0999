//! The measuring client, with minimal overhead and identical for every route.
//!
//! It uses one thread, one `poll(2)` and one write per call. Of an answer it parses only the end
//! and the id, and checks the echoed text: a wrong answer panics.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use xy_testkit::standin;

use crate::now;

/// The time without an answer after which a route counts as broken.
const ANSWER_TIMEOUT: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// The number of concurrent calls in flight.
pub(crate) const IN_FLIGHT: usize = 16;

/// The read size, as large as a pipe.
const READ_SIZE: usize = 64 * 1024;

/// How a message ends on the wire.
#[derive(Debug)]
pub(crate) enum Framing {
    /// By a newline.
    Lines,
    /// By its HTTP framing; the text is the start of each request's head.
    Http(String),
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Channel {
    to: File,
    from: File,
    pub(crate) framing: Framing,
    unread: Vec<u8>,
    out: Vec<u8>,
}

/// A client that makes calls on one or more channels.
#[derive(Debug)]
pub(crate) struct Driver {
    channels: Vec<Channel>,
    tool: String,
    /// True if each call carries the metadata of its client.
    is_modern: bool,
    last_id: u64,
}

/// The `_meta` of each call of a client without sessions.
const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"xy-bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}},"#;

impl Channel {
    pub(crate) fn new(to: impl Into<OwnedFd>, from: impl Into<OwnedFd>, framing: Framing) -> Self {
        let (to, from) = (File::from(to.into()), File::from(from.into()));
        Self { to, from, framing, unread: Vec::new(), out: Vec::new() }
    }

    /// Sends one message.
    pub(crate) fn send(&mut self, message: &str) {
        self.send_with("", message);
    }

    /// Sends one message, with `more` headers over HTTP.
    fn send_with(&mut self, more: &str, message: &str) {
        self.out.clear();
        let length = message.len();
        let written = match &self.framing {
            Framing::Lines => writeln!(self.out, "{message}"),
            Framing::Http(head) => {
                write!(self.out, "{head}{more}Content-Length: {length}\r\n\r\n{message}")
            }
        };
        written.and_then(|()| self.to.write_all(&self.out)).expect("the other side reads");
    }

    /// Sends a request and returns the raw answer, including its head.
    pub(crate) fn ask(&mut self, message: &str) -> String {
        self.send(message);
        let mut answer = None;
        while answer.is_none() {
            wait(std::slice::from_ref(self));
            self.receive(|it| {
                if it.contains("\"id\":0") || it.starts_with("HTTP/1.1 ") {
                    answer = Some(it.to_owned());
                }
            });
        }
        answer.unwrap_or_default()
    }

    /// Sends a notification, and over HTTP waits until the server accepts it.
    pub(crate) fn notify(&mut self, message: &str) {
        match self.framing {
            Framing::Lines => self.send(message),
            Framing::Http(_) => drop(self.ask(message)),
        }
    }

    /// Reads once, and passes each complete message to `handle`.
    fn receive(&mut self, mut handle: impl FnMut(&str)) {
        let begun = self.unread.len();
        self.unread.resize(begun + READ_SIZE, 0);
        let count = self.from.read(&mut self.unread[begun..]).expect("the other side speaks");
        assert!(count > 0, "the other side closed");
        self.unread.truncate(begun + count);
        let mut handled = 0;
        while let Some(length) = self.complete_length(handled) {
            let message = &self.unread[handled..handled + length];
            handle(std::str::from_utf8(message).expect("an answer is text"));
            handled += length;
        }
        self.unread.drain(..handled);
    }

    /// Returns the length of the message that begins at `at`, if it is complete.
    fn complete_length(&self, at: usize) -> Option<usize> {
        let unread = &self.unread[at..];
        match self.framing {
            Framing::Lines => Some(unread.iter().position(|&byte| byte == b'\n')? + 1),
            Framing::Http(_) => {
                let head = find(unread, b"\r\n\r\n")? + 4;
                let text = std::str::from_utf8(&unread[..head]).expect("a head is text");
                let length = match length_of(text) {
                    Some(length) => head + length,
                    // Chunked: one answer at a time, so the last chunk ends it.
                    None => head + find(&unread[head - 2..], b"\r\n0\r\n\r\n")? + 5,
                };
                (unread.len() >= length).then_some(length)
            }
        }
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// Returns the `Content-Length` of a head, if present.
fn length_of(head: &str) -> Option<usize> {
    let mut headers = head.split("\r\n").filter_map(|line| line.split_once(':'));
    let length = headers.find(|(name, _)| name.eq_ignore_ascii_case("content-length"))?;
    length.1.trim().parse().ok()
}

/// Waits until a channel is readable. Returns the indices of all readable channels.
fn wait(channels: &[Channel]) -> Vec<usize> {
    let mut polled: Vec<PollFd<'_>> =
        channels.iter().map(|it| PollFd::new(&it.from, PollFlags::IN)).collect();
    let ready = rustix::event::poll(&mut polled, Some(&ANSWER_TIMEOUT)).expect("poll works");
    assert!(ready > 0, "no answer within {ANSWER_TIMEOUT:?}");
    let ready = polled.iter().enumerate().filter(|(_, it)| !it.revents().is_empty());
    ready.map(|(at, _)| at).collect()
}

impl Driver {
    /// Creates a driver with one channel for all calls, or one for each call in flight.
    pub(crate) fn new(channels: Vec<Channel>, tool: &str) -> Self {
        assert!(matches!(channels.len(), 1 | IN_FLIGHT));
        Self { channels, tool: tool.to_owned(), is_modern: false, last_id: 0 }
    }

    /// Creates a driver of a client without sessions.
    pub(crate) fn modern(channels: Vec<Channel>, tool: &str) -> Self {
        Self { is_modern: true, ..Self::new(channels, tool) }
    }

    /// Makes sequential calls. Returns the median time.
    pub(crate) fn sequential_p50(&mut self, calls: u64) -> Duration {
        let mut times = Vec::with_capacity(usize::try_from(calls).expect("it fits"));
        for _ in 0..calls {
            let began = now();
            self.call(0);
            while self.wait_for_answers(1).is_empty() {}
            times.push(began.elapsed());
        }
        crate::median(times)
    }

    /// Makes a call at every interval. Returns the 99th percentile of the time. Time counts from
    /// when a call was due, so that a slow call also counts for those it delays.
    pub(crate) fn paced_p99(&mut self, calls: u32, every: Duration) -> Duration {
        let began = now();
        let mut times: Vec<Duration> = (0..calls)
            .map(|number| {
                let due = began + every * number;
                standin::linger(due.saturating_duration_since(now()));
                self.call(0);
                while self.wait_for_answers(1).is_empty() {}
                now().saturating_duration_since(due)
            })
            .collect();
        times.sort();
        times[times.len() * 99 / 100]
    }

    /// Makes concurrent calls, always as many in flight. Returns the answers per second.
    pub(crate) fn concurrent_rate(&mut self, calls: u64) -> f64 {
        let began = now();
        for flight in 0..IN_FLIGHT {
            self.call(flight % self.channels.len());
        }
        let (mut sent, mut answered) = (IN_FLIGHT as u64, 0);
        while answered < calls {
            for channel in self.wait_for_answers(self.channels.len()) {
                answered += 1;
                if sent < calls {
                    sent += 1;
                    self.call(channel);
                }
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no more")]
        let calls = calls as f64;
        calls / began.elapsed().as_secs_f64()
    }

    /// Makes sequential calls with results of `bytes` bytes. Returns the median time.
    pub(crate) fn large_p50(&mut self, calls: usize, bytes: usize) -> Duration {
        let tool = self.tool.replace("echo", "big");
        let mut times = Vec::with_capacity(calls);
        for _ in 0..calls {
            let began = now();
            self.send(0, &tool, &format!(r#"{{"bytes":{bytes}}}"#));
            let mut length = 0;
            while length == 0 {
                wait(&self.channels[..1]);
                self.channels[0].receive(|message| length = message.len());
            }
            assert!(length > bytes, "the result has {length} bytes only");
            times.push(began.elapsed());
        }
        crate::median(times)
    }

    fn call(&mut self, channel: usize) {
        let arguments = format!(r#"{{"message":"hello {}"}}"#, self.last_id + 1);
        self.send(channel, &self.tool.clone(), &arguments);
    }

    fn send(&mut self, channel: usize, tool: &str, arguments: &str) {
        self.last_id += 1;
        let id = self.last_id;
        let (meta, more) = if self.is_modern {
            (META, format!("Mcp-Method: tools/call\r\nMcp-Name: {tool}\r\n"))
        } else {
            ("", String::new())
        };
        let params = format!(r#"{{{meta}"name":"{tool}","arguments":{arguments}}}"#);
        let message =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#);
        self.channels[channel].send_with(&more, &message);
    }

    /// Waits for answers on the first `first` channels. Returns the channel of each answer.
    fn wait_for_answers(&mut self, first: usize) -> Vec<usize> {
        let mut answered = Vec::new();
        for at in wait(&self.channels[..first]) {
            self.channels[at].receive(|message| {
                if let Some(id) = id_of(message) {
                    let is_echo = message.contains(&format!("\"hello {id}\""));
                    assert!(is_echo, "no echo: {message}");
                    answered.push(at);
                }
            });
        }
        answered
    }
}

/// Returns the id of an answer, or `None` for a notification.
fn id_of(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("\"id\":")?;
    let end = rest.find(|it: char| !it.is_ascii_digit())?;
    (end > 0).then(|| &rest[..end])
}
