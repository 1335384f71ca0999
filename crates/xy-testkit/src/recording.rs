//! Recordings of `xy connect --record`: reading them, and replaying their client.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::json::Members;
use crate::mcp::McpClient;

/// A recorded session.
#[derive(Debug)]
pub struct Recording {
    /// The first line: format, version, start and arguments.
    pub header: Value,
    /// The messages and events after the header, in order.
    pub entries: Vec<Recorded>,
}

/// A message or an event of a recorded session.
#[derive(Debug)]
pub struct Recorded {
    /// Milliseconds since the start.
    pub at_ms: u64,
    /// The sender, `client` or `server`; `None` for an event of the bridge.
    pub from: Option<String>,
    /// The name of the bridge event.
    pub event: Option<String>,
    /// The cause of the bridge event.
    pub cause: Option<String>,
    /// The text of the message, without its secrets.
    pub message: Option<String>,
}

impl Recording {
    /// Reads a recording. Skips an incomplete last line, which a killed writer leaves behind.
    ///
    /// # Panics
    ///
    /// Panics if the file cannot be read or is not a recording.
    #[track_caller]
    pub fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path)
            .unwrap_or_else(|cause| panic!("no recording at {}: {cause}", path.display()));
        let mut lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        let header = parse(lines.next().expect("a recording has a header"));
        assert_eq!(header["xy_recording"], 1, "an unknown format: {header}");
        Self { header, entries: lines.map(entry).collect() }
    }

    /// Returns the texts of the client's messages, in order.
    pub fn client_messages(&self) -> impl Iterator<Item = &str> {
        self.messages("client")
    }

    /// Returns the texts of the server's messages, in order.
    pub fn server_messages(&self) -> impl Iterator<Item = &str> {
        self.messages("server")
    }

    /// Returns the responses of the server, in order.
    pub fn responses(&self) -> Vec<Value> {
        let messages = self.server_messages().map(parse);
        messages.filter(|it| it.get("id").is_some() && it.get("method").is_none()).collect()
    }

    /// Returns the events of the bridge, in order.
    pub fn events(&self) -> Vec<&str> {
        self.entries.iter().filter_map(|it| it.event.as_deref()).collect()
    }

    /// Sends the recorded client messages again, and returns the responses to the requests.
    ///
    /// Waits for the response to each request before it sends the next message.
    #[track_caller]
    pub fn replay(&self, client: &McpClient) -> Vec<Value> {
        let mut responses = Vec::new();
        for message in self.client_messages() {
            let members = Members::of(message).unwrap_or_default();
            match members.raw("id").filter(|_| members.has("method")) {
                Some(id) => {
                    client.start_raw(id, message);
                    responses.push(client.wait_answer(id));
                }
                None => client.send_raw(message),
            }
        }
        responses
    }

    fn messages(&self, from: &str) -> impl Iterator<Item = &str> {
        let all = self.entries.iter().filter(move |it| it.from.as_deref() == Some(from));
        all.filter_map(|it| it.message.as_deref())
    }
}

#[track_caller]
fn entry(line: &str) -> Recorded {
    let members = Members::of(line).unwrap_or_else(|| panic!("not an entry: {line}"));
    let message = members.raw("message").map(str::to_owned);
    Recorded {
        at_ms: members.number("at_ms").unwrap_or_else(|| panic!("no time: {line}")),
        from: members.string("from"),
        event: members.string("event"),
        cause: members.string("cause"),
        message: message.or_else(|| members.string("text")),
    }
}

#[track_caller]
fn parse(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|cause| panic!("{cause}: {line}"))
}
