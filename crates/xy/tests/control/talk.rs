//! A conversation on the control socket, written down as it goes.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use serde_json::Value;
use xy_testkit::Home;

use crate::SOON;
use crate::redact::redact;

/// One connection. `>` is what was said on it, `<` what was heard, byte by byte
/// but for what [`redact`] takes out.
pub(crate) struct Talk<'a> {
    home: &'a Home,
    daemon: BufReader<UnixStream>,
    text: String,
}

impl<'a> Talk<'a> {
    pub(crate) fn with(home: &'a Home) -> Self {
        let stream = UnixStream::connect(home.socket()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.set_write_timeout(Some(SOON)).unwrap();
        Self { home, daemon: BufReader::new(stream), text: String::new() }
    }

    /// Writes a remark down; nothing is sent.
    pub(crate) fn remark(&mut self, words: &str) {
        self.text.extend(["# ", words, "\n"]);
    }

    /// Says one line.
    pub(crate) fn say(&mut self, line: &str) {
        self.note(">", line);
        self.say_unseen(format!("{line}\n").as_bytes());
    }

    /// Says bytes that are not worth writing down.
    pub(crate) fn say_unseen(&mut self, bytes: &[u8]) {
        self.daemon.get_mut().write_all(bytes).unwrap();
    }

    /// Hears one line.
    #[track_caller]
    pub(crate) fn hear(&mut self) -> Value {
        let message = self.hear_unseen();
        self.note("<", &message.0);
        message.1
    }

    /// Hears one line that is not worth writing down.
    #[track_caller]
    pub(crate) fn hear_unseen(&mut self) -> (String, Value) {
        let mut line = String::new();
        self.daemon.read_line(&mut line).expect("the daemon says something soon");
        assert!(line.ends_with('\n'), "the daemon hung up after {line:?}");
        let value = serde_json::from_str(&line).unwrap();
        (line.trim_end().to_owned(), value)
    }

    /// Says one line and hears one.
    #[track_caller]
    pub(crate) fn ask(&mut self, line: &str) -> Value {
        self.say(line);
        self.hear()
    }

    /// The end of the conversation, by the daemon.
    #[track_caller]
    pub(crate) fn hear_end(&mut self) {
        let mut line = String::new();
        let length = self.daemon.read_line(&mut line).expect("the daemon hangs up soon");
        assert_eq!(length, 0, "the daemon went on: {line}");
        self.remark("the daemon hung up");
    }

    /// All that was said and heard.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    fn note(&mut self, mark: &str, line: &str) {
        let line = redact(self.home, line);
        self.text.extend([mark, " ", &line, "\n"]);
    }
}

/// A request as scripts write it.
pub(crate) fn request(id: u32, method: &str, params: &str) -> String {
    if params.is_empty() {
        return format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#);
    }
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}
