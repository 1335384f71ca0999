//! A client that is used to daemons which vanish in the middle of a word.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

/// So long a client waits for one thing before it looks whether it is still needed.
const LISTEN: Duration = Duration::from_millis(50);

/// A daemon that lives answers within this time.
const PATIENCE: u32 = 600;

/// A connection to whichever daemon serves.
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
    partial: Vec<u8>,
}

/// What listening brought.
pub(crate) enum Heard {
    Message(Value),
    Silence,
    /// The daemon is gone, perhaps in the middle of a message.
    Gone,
}

impl Client {
    /// `None` while no daemon serves.
    pub(crate) fn open(socket: &Path) -> Option<Self> {
        let stream = UnixStream::connect(socket).ok()?;
        stream.set_read_timeout(Some(LISTEN)).ok()?;
        Some(Self { stream: BufReader::new(stream), partial: Vec::new() })
    }

    /// The answer, or the error object; `None` if the daemon has gone before it answered.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Option<Result<Value, Value>> {
        let mut request = json!({ "jsonrpc": "2.0", "id": 1, "method": method });
        if !params.is_null() {
            request["params"] = params;
        }
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes()).ok()?;
        for _ in 0..PATIENCE {
            match self.hear() {
                Heard::Message(mut answer) if answer.get("id").is_some() => {
                    let error = answer["error"].take();
                    return Some(if error.is_null() {
                        Ok(answer["result"].take())
                    } else {
                        Err(error)
                    });
                }
                Heard::Message(_) | Heard::Silence => {}
                Heard::Gone => return None,
            }
        }
        panic!("`{method}` was not answered, and the daemon did not hang up");
    }

    /// The next message, if one comes soon.
    pub(crate) fn hear(&mut self) -> Heard {
        match self.stream.read_until(b'\n', &mut self.partial) {
            Ok(_) if self.partial.ends_with(b"\n") => {
                let line = std::mem::take(&mut self.partial);
                Heard::Message(serde_json::from_slice(&line).expect("the daemon sends JSON"))
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Heard::Silence
            }
            Ok(_) | Err(_) => Heard::Gone,
        }
    }
}
