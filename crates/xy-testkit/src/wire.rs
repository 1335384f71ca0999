//! A raw connection to the control socket: lines of JSON, as they are.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::clock;

/// A daemon that reads nothing for so long is broken.
const WRITE_WITHIN: Duration = Duration::from_secs(30);

/// A call is answered within this time, also if an engine has to start a container for it.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// What a moment of listening brought.
#[derive(Debug, Clone, PartialEq)]
pub enum Heard {
    /// A message.
    Message(Value),
    /// The daemon closed the connection, and everything it sent has been heard.
    Closed,
    /// Nothing within the limit.
    Silence,
}

/// A connection to the control socket.
#[derive(Debug)]
pub struct Wire {
    stream: UnixStream,
    unread: Vec<u8>,
    /// Messages that came while a call waited for its answer.
    earlier: VecDeque<Value>,
    last_id: u64,
}

impl Wire {
    /// Connects to the socket at `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_write_timeout(Some(WRITE_WITHIN))?;
        Ok(Self { stream, unread: Vec::new(), earlier: VecDeque::new(), last_id: 0 })
    }

    /// Sends one message, and its line end.
    #[track_caller]
    pub fn send(&mut self, message: &Value) {
        self.send_raw(format!("{message}\n").as_bytes());
    }

    /// Sends bytes as they are.
    #[track_caller]
    pub fn send_raw(&mut self, bytes: &[u8]) {
        let sent = self.try_send_raw(bytes);
        sent.unwrap_or_else(|cause| {
            panic!("the daemon did not take {} bytes: {cause}", bytes.len())
        });
    }

    /// Sends bytes as they are, or says why they could not be sent.
    pub fn try_send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Says that nothing more will be sent; answers can still be heard.
    pub fn close_sending(&self) {
        let _ = self.stream.shutdown(Shutdown::Write); // The daemon may have left.
    }

    /// The next message.
    #[track_caller]
    pub fn next(&mut self, limit: Duration) -> Value {
        match self.hear(limit) {
            Heard::Message(message) => message,
            Heard::Closed => panic!("the daemon closed the connection instead of sending"),
            Heard::Silence => panic!("the daemon sent nothing within {limit:?}"),
        }
    }

    /// The next message, the end, or silence.
    #[track_caller]
    pub fn hear(&mut self, limit: Duration) -> Heard {
        if let Some(message) = self.earlier.pop_front() {
            return Heard::Message(message);
        }
        self.hear_until(clock::now() + limit)
    }

    /// Asks and waits for the answer: the result, or the error object. Other
    /// messages that come meanwhile are kept for [`Wire::next`].
    #[track_caller]
    pub fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let answer = self.try_call(method, params, ANSWER_WITHIN);
        answer.unwrap_or_else(|cause| panic!("`{method}` was not answered: {cause}"))
    }

    /// Like [`Wire::call`]; a daemon that does not answer is no panic.
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
            match self.hear_until(until) {
                Heard::Message(message) if is_answer(&message, &id) => return Ok(outcome(message)),
                Heard::Message(message) => self.earlier.push_back(message),
                Heard::Closed => return Err(io::ErrorKind::UnexpectedEof.into()),
                Heard::Silence => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }

    #[track_caller]
    fn hear_until(&mut self, until: Instant) -> Heard {
        loop {
            if let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return Heard::Message(read_message(&line));
            }
            let over = clock::now() >= until;
            match self.read_more(until) {
                Ok(0) if self.unread.is_empty() => return Heard::Closed,
                Ok(0) => panic!("cut off: {:?}", String::from_utf8_lossy(&self.unread)),
                Err(cause) if cause.kind() == io::ErrorKind::ConnectionReset => {
                    return Heard::Closed;
                }
                // Bytes that are no line yet, or none in time.
                Ok(_) | Err(_) if over => return Heard::Silence,
                Ok(_) | Err(_) => {}
            }
        }
    }

    fn read_more(&mut self, until: Instant) -> io::Result<usize> {
        let left = until.saturating_duration_since(clock::now());
        // Zero would mean for ever. It fails only where the other end has closed,
        // and then a read does not wait.
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
    fn messages_are_told_apart_however_they_arrive() {
        let (mut wire, mut daemon) = pair();
        daemon.write_all(b"{\"a\":1}\n{\"b\"").unwrap();
        assert_eq!(wire.next(SOON), json!({ "a": 1 }));
        assert_eq!(wire.hear(Duration::from_millis(10)), Heard::Silence);
        daemon.write_all(b":2}\n").unwrap();
        assert_eq!(wire.next(SOON), json!({ "b": 2 }));
        drop(daemon);
        assert_eq!(wire.hear(SOON), Heard::Closed);
    }

    #[test]
    fn a_call_keeps_what_came_before_its_answer() {
        let (mut wire, mut daemon) = pair();
        let told = "{\"method\":\"log\"}\n{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":7}\n";
        daemon.write_all(told.as_bytes()).unwrap();
        assert_eq!(wire.call("list", Value::Null), Ok(json!(7)));
        assert_eq!(wire.next(SOON), json!({ "method": "log" }));
    }

    #[test]
    fn an_error_is_an_answer_too() {
        let (mut wire, mut daemon) = pair();
        let told = "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32001}}\n";
        daemon.write_all(told.as_bytes()).unwrap();
        assert_eq!(wire.call("status", json!({ "name": "x" })), Err(json!({ "code": -32001 })));
    }

    #[test]
    #[should_panic(expected = "no JSON")]
    fn what_is_no_json_is_a_fault_of_the_daemon() {
        let (mut wire, mut daemon) = pair();
        daemon.write_all(b"hello\n").unwrap();
        wire.next(SOON);
    }

    #[test]
    #[should_panic(expected = "cut off")]
    fn a_message_that_is_cut_off_is_a_fault_of_the_daemon() {
        let (mut wire, mut daemon) = pair();
        daemon.write_all(b"{\"a\":").unwrap();
        drop(daemon);
        wire.hear(SOON);
    }
}
