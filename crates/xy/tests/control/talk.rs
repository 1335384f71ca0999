//! A transcript of a conversation on the control socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use serde_json::Value;
use xy_testkit::Home;

use crate::TIMEOUT;
use crate::redact::redact;

/// One connection and its transcript. `>` marks sent and `<` received lines, byte by byte except
/// for the parts that [`redact`] replaces.
pub(crate) struct Talk<'a> {
    home: &'a Home,
    daemon: BufReader<UnixStream>,
    text: String,
}

impl<'a> Talk<'a> {
    pub(crate) fn with(home: &'a Home) -> Self {
        let stream = UnixStream::connect(home.socket()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        Self { home, daemon: BufReader::new(stream), text: String::new() }
    }

    /// Adds a remark to the transcript, and sends nothing.
    pub(crate) fn remark(&mut self, words: &str) {
        self.text.extend(["# ", words, "\n"]);
    }

    /// Sends one line.
    pub(crate) fn send(&mut self, line: &str) {
        self.note(">", line);
        self.send_unlogged(format!("{line}\n").as_bytes());
    }

    /// Sends bytes without adding them to the transcript.
    pub(crate) fn send_unlogged(&mut self, bytes: &[u8]) {
        self.daemon.get_mut().write_all(bytes).unwrap();
    }

    /// Receives one line.
    #[track_caller]
    pub(crate) fn receive(&mut self) -> Value {
        let message = self.receive_unlogged();
        self.note("<", &message.0);
        message.1
    }

    /// Receives one line without adding it to the transcript.
    #[track_caller]
    pub(crate) fn receive_unlogged(&mut self) -> (String, Value) {
        let mut line = String::new();
        self.daemon.read_line(&mut line).expect("the daemon says something soon");
        assert!(line.ends_with('\n'), "the daemon hung up after {line:?}");
        let value = serde_json::from_str(&line).unwrap();
        (line.trim_end().to_owned(), value)
    }

    /// Sends one line, and receives one.
    #[track_caller]
    pub(crate) fn ask(&mut self, line: &str) -> Value {
        self.send(line);
        self.receive()
    }

    /// Checks that the daemon has closed the connection.
    #[track_caller]
    pub(crate) fn expect_close(&mut self) {
        let mut line = String::new();
        let length = self.daemon.read_line(&mut line).expect("the daemon hangs up soon");
        assert_eq!(length, 0, "the daemon went on: {line}");
        self.remark("the daemon hung up");
    }

    /// Returns the transcript.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    fn note(&mut self, mark: &str, line: &str) {
        let line = redact(self.home, line);
        self.text.extend([mark, " ", &line, "\n"]);
    }
}

/// Returns a request as scripts write it.
pub(crate) fn request(id: u32, method: &str, params: &str) -> String {
    if params.is_empty() {
        return format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#);
    }
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}
