//! A raw connection to the control socket, which carries lines of JSON.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::clock;

/// How long a daemon may take to read what is sent.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit of a call, including the start of a container by an engine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The result of waiting for a message.
#[derive(Debug, Clone, PartialEq)]
pub enum WireEvent {
    /// A message.
    Message(Value),
    /// The daemon closed the connection, and all its messages have been received.
    Closed,
    /// No message arrived within the limit.
    TimedOut,
}

/// A connection to the control socket.
#[derive(Debug)]
pub struct Wire {
    stream: UnixStream,
    unread: Vec<u8>,
    /// Messages that arrived while a call waited for its response.
    earlier: VecDeque<Value>,
    last_id: u64,
}

impl Wire {
    /// Connects to the socket at `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        Ok(Self { stream, unread: Vec::new(), earlier: VecDeque::new(), last_id: 0 })
    }

    /// Sends a message and a newline.
    #[track_caller]
    pub fn send(&mut self, message: &Value) {
        self.send_raw(format!("{message}\n").as_bytes());
    }

    /// Sends raw bytes.
    #[track_caller]
    pub fn send_raw(&mut self, bytes: &[u8]) {
        let sent = self.try_send_raw(bytes);
        sent.unwrap_or_else(|cause| {
            panic!("the daemon did not take {} bytes: {cause}", bytes.len())
        });
    }

    /// Sends raw bytes, or returns the error.
    pub fn try_send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Closes the connection for writing. Messages can still be received.
    pub fn close_sending(&self) {
        let _ = self.stream.shutdown(Shutdown::Write); // The daemon may have left.
    }

    /// Waits for the next message.
    #[track_caller]
    pub fn next(&mut self, limit: Duration) -> Value {
        match self.receive(limit) {
            WireEvent::Message(message) => message,
            WireEvent::Closed => panic!("the daemon closed the connection instead of sending"),
            WireEvent::TimedOut => panic!("the daemon sent nothing within {limit:?}"),
        }
    }

    /// Waits for the next message, the end of the connection, or the limit.
    #[track_caller]
    pub fn receive(&mut self, limit: Duration) -> WireEvent {
        if let Some(message) = self.earlier.pop_front() {
            return WireEvent::Message(message);
        }
        self.receive_until(clock::now() + limit)
    }

    /// Sends a request and waits for the result or the error object. Other messages that arrive
    /// meanwhile are kept for [`Wire::next`].
    #[track_caller]
    pub fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let answer = self.try_call(method, params, ANSWER_TIMEOUT);
        answer.unwrap_or_else(|cause| panic!("`{method}` was not answered: {cause}"))
    }

    /// Sends a request like [`Wire::call`]. Returns an error if the daemon does not answer.
    pub(crate) fn try_call(
        &mut self,
        method: &str,
        params: Value,
        limit: Duration,
    ) -> io::Result<Result<Value, Value>> {
        self.last_id += 1;
        let id = json!(self.last_id);
        let mut request = json!({ "jsonrpc": "2.0", "id": id, "method": method });
        if !params.is_null() {
            request["params"] = params;
        }
        self.try_send_raw(format!("{request}\n").as_bytes())?;
        let until = clock::now() + limit;
        loop {
            match self.receive_until(until) {
                WireEvent::Message(message) if is_answer(&message, &id) => {
                    return Ok(outcome(message));
                }
                WireEvent::Message(message) => self.earlier.push_back(message),
                WireEvent::Closed => return Err(io::ErrorKind::UnexpectedEof.into()),
                WireEvent::TimedOut => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }

    #[track_caller]
    fn receive_until(&mut self, until: Instant) -> WireEvent {
        loop {
            if let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return WireEvent::Message(read_message(&line));
            }
            let over = clock::now() >= until;
            match self.read_more(until) {
                Ok(0) if self.unread.is_empty() => return WireEvent::Closed,
                Ok(0) => panic!("cut off: {:?}", String::from_utf8_lossy(&self.unread)),
                Err(cause) if cause.kind() == io::ErrorKind::ConnectionReset => {
                    return WireEvent::Closed;
                }
                // An incomplete line, or no data in time.
                Ok(_) | Err(_) if over => return WireEvent::TimedOut,
                Ok(_) | Err(_) => {}
            }
        }
    }

    fn read_more(&mut self, until: Instant) -> io::Result<usize> {
        let left = until.saturating_duration_since(clock::now());
        // Zero would mean no limit. The call fails only if the other end has closed the
        // connection, and then a read does not block.
        let _ = self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))));
        let mut buffer = [0; 8 * 1024];
        let count = self.stream.read(&mut buffer)?;
        self.unread.extend_from_slice(&buffer[..count]);
        Ok(count)
    }
}

#[track_caller]
fn read_message(line: &[u8]) -> Value {
    serde_json::from_slice(line).unwrap_or_else(|cause| {
        panic!("the daemon sent what is no JSON ({cause}): {:?}", String::from_utf8_lossy(line))
    })
}

fn is_answer(message: &Value, id: &Value) -> bool {
    message.get("method").is_none() && message.get("id") == Some(id)
}

#[track_caller]
fn outcome(mut answer: Value) -> Result<Value, Value> {
    assert_eq!(answer["jsonrpc"], "2.0", "no JSON-RPC: {answer}");
    let both = answer.get("result").is_some() == answer.get("error").is_some();
    assert!(!both, "an answer has either a result or an error: {answer}");
    match answer.get("error") {
        Some(_) => Err(answer["error"].take()),
        None => Ok(answer["result"].take()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn pair() -> (Wire, UnixStream) {
        let (stream, daemon) = UnixStream::pair().unwrap();
        (Wire { stream, unread: Vec::new(), earlier: VecDeque::new(), last_id: 0 }, daemon)
    }

    #[test]
    fn messages_do_not_depend_on_read_sizes() {
        let (mut wire, mut daemon) = pair();
        daemon.write_all(b"{\"a\":1}\n{\"b\"").unwrap();
        assert_eq!(wire.next(SOON), json!({ "a": 1 }));
        assert_eq!(wire.receive(Duration::from_millis(10)), WireEvent::TimedOut);
        daemon.write_all(b":2}\n").unwrap();
        assert_eq!(wire.next(SOON), json!({ "b": 2 }));
        drop(daemon);
        assert_eq!(wire.receive(SOON), WireEvent::Closed);
    }

    #[test]
    fn call_keeps_earlier_messages() {
        let (mut wire, mut daemon) = pair();
        let told = "{\"method\":\"log\"}\n{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":7}\n";
        daemon.write_all(told.as_bytes()).unwrap();
        assert_eq!(wire.call("list", Value::Null), Ok(json!(7)));
        assert_eq!(wire.next(SOON), json!({ "method": "log" }));
    }

    #[test]
    fn call_returns_errors() {
        let (mut wire, mut daemon) = pair();
        let told = "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32001}}\n";
        daemon.write_all(told.as_bytes()).unwrap();
        assert_eq!(wire.call("status", json!({ "name": "x" })), Err(json!({ "code": -32001 })));
    }

    #[test]
    #[should_panic(expected = "no JSON")]
    fn invalid_json_panics() {
        let (mut wire, mut daemon) = pair();
        daemon.write_all(b"hello\n").unwrap();
        wire.next(SOON);
    }

    #[test]
    #[should_panic(expected = "cut off")]
    fn truncated_message_panics() {
        let (mut wire, mut daemon) = pair();
        daemon.write_all(b"{\"a\":").unwrap();
        drop(daemon);
        wire.receive(SOON);
    }
}
