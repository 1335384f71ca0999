//! A client of the control socket that expects daemons to vanish.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

/// Timeout of one read, after which a client checks whether it should stop.
const READ_TIMEOUT: Duration = Duration::from_millis(50);

/// Number of reads within which a living daemon answers.
const MAX_READS: u32 = 600;

/// A connection to the daemon that serves at the moment.
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
    partial: Vec<u8>,
}

/// The result of one read.
pub(crate) enum Received {
    Message(Value),
    Silence,
    /// The daemon is gone, perhaps in the middle of a message.
    Gone,
}

impl Client {
    /// Connects to the daemon; `None` while no daemon serves.
    pub(crate) fn open(socket: &Path) -> Option<Self> {
        let stream = UnixStream::connect(socket).ok()?;
        stream.set_read_timeout(Some(READ_TIMEOUT)).ok()?;
        Some(Self { stream: BufReader::new(stream), partial: Vec::new() })
    }

    /// Returns the answer or the error object; `None` if the daemon has gone before it answered.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Option<Result<Value, Value>> {
        let mut request = json!({ "jsonrpc": "2.0", "id": 1, "method": method });
        if !params.is_null() {
            request["params"] = params;
        }
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes()).ok()?;
        for _ in 0..MAX_READS {
            match self.receive() {
                Received::Message(mut answer) if answer.get("id").is_some() => {
                    let error = answer["error"].take();
                    return Some(if error.is_null() {
                        Ok(answer["result"].take())
                    } else {
                        Err(error)
                    });
                }
                Received::Message(_) | Received::Silence => {}
                Received::Gone => return None,
            }
        }
        panic!("`{method}` was not answered, and the daemon did not hang up");
    }

    /// Returns the next message, if one arrives soon.
    pub(crate) fn receive(&mut self) -> Received {
        match self.stream.read_until(b'\n', &mut self.partial) {
            Ok(_) if self.partial.ends_with(b"\n") => {
                let line = std::mem::take(&mut self.partial);
                Received::Message(serde_json::from_slice(&line).expect("the daemon sends JSON"))
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Received::Silence
            }
            Ok(_) | Err(_) => Received::Gone,
        }
    }
}
