//! Drives one script at a server in one way, and records all messages of each step.

use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::McpClient;
use xy_testkit::text::Text;

/// Timeout of an answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout, after the answer, of the other messages that came directly. A message that does not
/// arrive is a difference.
const REST_TIMEOUT: Duration = Duration::from_secs(5);

/// One action of a client. `params` may have these placeholders:
///
/// - `<name:x>`: the name of a tool or prompt
/// - `<uri:x>`: the URI of a resource
/// - `<id>`: the id of this step's request
/// - `<task>`: the id of the last task
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Sends a request, and waits for the answer.
    Request { label: &'static str, method: &'static str, params: &'static str },
    /// Sends a request, and cancels it with these params when this notification arrives.
    Cancel {
        label: &'static str,
        method: &'static str,
        params: &'static str,
        once: &'static str,
        cancel: &'static str,
    },
    /// Sends a notification.
    Notify { method: &'static str, params: &'static str },
    /// Repeats a request until its answer contains this text and this notification has arrived. The
    /// messages in between are not recorded, because a server may start at its own pace.
    Settle { method: &'static str, holds: &'static str, notification: &'static str },
}

/// The messages of one step, in order: answers, notifications and server requests.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) label: &'static str,
    pub(crate) messages: Vec<Text>,
}

/// The parameters of one way that affect the messages.
pub(crate) struct Target<'a> {
    pub(crate) client: &'a McpClient,
    /// The name of the server in the combined lists; names are prefixed with it.
    pub(crate) among_others: Option<&'a str>,
    /// True if messages get odd members beside `params`. Some SDKs refuse them, or rewrite ids.
    pub(crate) is_odd: bool,
    /// Answers a server request: maps its method to the text of `"result":…` or `"error":…`.
    pub(crate) answers: &'a dyn Fn(&str) -> String,
    /// The number of messages of each step, if it is known.
    pub(crate) expected: Option<&'a [usize]>,
}

/// Returns the capabilities of the driven client.
pub(crate) fn capabilities() -> Value {
    json!({
        "roots": { "listChanged": true },
        "sampling": { "tools": {} },
        "elicitation": { "form": {}, "url": {} },
    })
}

struct Driver<'a> {
    target: &'a Target<'a>,
    /// The number of messages that were read.
    seen: usize,
    last_id: u64,
    /// The id of the last task.
    task: String,
    records: Vec<Record>,
}

/// Drives the script, and returns its records. The first is that of `initialize`.
#[track_caller]
pub(crate) fn drive(
    target: &Target<'_>,
    open_stream: impl FnOnce(),
    script: &[Step],
) -> Vec<Record> {
    let mut driver =
        Driver { target, seen: 0, last_id: 0, task: String::new(), records: Vec::new() };
    target.client.record();
    let client = json!({ "name": "xy-testkit", "version": "1" });
    let params = json!({
        "protocolVersion": "2025-11-25", "capabilities": capabilities(), "clientInfo": client,
    });
    target.client.initialize_as(params);
    open_stream();
    driver.records.push(Record { label: "initialize", messages: Vec::new() });
    driver.listen("1", None, "");
    driver.last_id = 1;
    for step in script {
        driver.step(step);
    }
    // All messages on their way arrive before the answer to this request.
    driver.ask("ping", "ping", "{}");
    driver.records
}

impl Driver<'_> {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Request { label, method, params } => self.ask(label, method, params),
            Step::Cancel { label, method, params, once, cancel } => {
                let id = self.begin(label, method, params);
                self.listen(&id, Some(once), &self.expand(cancel, &id));
            }
            Step::Notify { method, params } => {
                let params = self.expand(params, "");
                let text = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
                self.target.client.send_raw(&text);
            }
            Step::Settle { method, holds, notification } => {
                self.settle(method, holds, notification);
            }
        }
    }

    fn ask(&mut self, label: &'static str, method: &str, params: &str) {
        let id = self.begin(label, method, params);
        self.listen(&id, None, "");
    }

    /// Sends a request, and returns its id.
    fn begin(&mut self, label: &'static str, method: &str, params: &str) -> String {
        self.records.push(Record { label, messages: Vec::new() });
        self.send(method, params)
    }

    fn send(&mut self, method: &str, params: &str) -> String {
        self.last_id += 1;
        let id = match self.last_id {
            odd if odd % 2 == 1 && self.target.is_odd => format!("\"\\u0061-{odd}\""),
            number => number.to_string(),
        };
        self.send_as(&id, method, params);
        id
    }

    fn send_as(&self, id: &str, method: &str, params: &str) {
        let params = self.expand(params, id);
        let more = self.unknown_members();
        let text =
            format!(r#"{{{more}"params":{params},"id":{id},"method":"{method}","jsonrpc":"2.0"}}"#);
        self.target.client.start_raw(id, &text);
    }

    /// Reads until the answer and all messages that came directly have arrived. With `once`, sends
    /// `cancel` when that notification arrives, and expects no answer.
    fn listen(&mut self, id: &str, once: Option<&str>, cancel: &str) {
        let at = self.records.len() - 1;
        let expected = self.target.expected.and_then(|all| all.get(at)).copied().unwrap_or(1);
        let mut is_answered = false;
        let mut is_cancelled = false;
        loop {
            let messages = self.records[at].messages.len();
            let is_done = if once.is_some() { is_cancelled } else { is_answered };
            if is_done && messages >= expected {
                return;
            }
            let Some(text) =
                self.next(if is_answered || is_cancelled { REST_TIMEOUT } else { TIMEOUT })
            else {
                return; // The comparison reports the missing messages.
            };
            if is_question(&text) {
                self.reply(&text);
            }
            if let Some(task) = text.get("result").and_then(|it| it.get("task")) {
                task.word("taskId").clone_into(&mut self.task);
            }
            is_answered |= text.get("method").is_none() && is_id(&text, id);
            if once.is_some_and(|once| text.word("method") == once) {
                is_cancelled = true;
                let text = format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{cancel}}}"#
                );
                self.target.client.send_raw(&text);
            }
            self.records[at].messages.push(text);
        }
    }

    fn settle(&mut self, method: &str, holds: &str, wanted: &str) {
        let server = self.target.among_others.map(|server| format!("{server}__"));
        let name = format!("{}echo", server.unwrap_or_default());
        let call = format!(r#"{{"name":"{name}","arguments":{{"message":"here?"}}}}"#);
        let mut is_notified = false;
        // The recorded ids do not depend on the number of attempts.
        for time in 0..300 {
            // An isolated server starts when it is called, not when it is listed.
            let id = format!("\"settle-call-{time}\"");
            self.send_as(&id, "tools/call", &call);
            self.await_answer(&id, wanted, &mut is_notified);
            let id = format!("\"settle-{time}\"");
            self.send_as(&id, method, "{}");
            let answer = self.await_answer(&id, wanted, &mut is_notified);
            if is_notified && answer.to_string().contains(holds) {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(100));
        }
        panic!("`{method}` never holds `{holds}`, or `{wanted}` has not come: {is_notified}");
    }

    /// Waits for an answer, and discards other messages.
    fn await_answer(&mut self, id: &str, wanted: &str, is_notified: &mut bool) -> Text {
        loop {
            let text = self.next(TIMEOUT).unwrap_or_else(|| panic!("{id} is not answered"));
            *is_notified |= text.word("method") == wanted;
            if is_question(&text) {
                self.reply(&text);
            } else if is_id(&text, id) {
                return text;
            }
        }
    }

    fn next(&mut self, limit: Duration) -> Option<Text> {
        let text = self.target.client.recorded(self.seen, limit)?;
        self.seen += 1;
        Some(Text::of(&text))
    }

    fn reply(&self, question: &Text) {
        let id = question.get("id").map(Text::to_string).unwrap_or_default();
        let outcome = (self.target.answers)(question.word("method"));
        let text = format!(r#"{{{}{outcome},"jsonrpc":"2.0","id":{id}}}"#, self.unknown_members());
        self.target.client.send_raw(&text);
    }

    /// Returns unknown members to send beside the id.
    fn unknown_members(&self) -> &'static str {
        if self.target.is_odd { r#""x-outside":1.0,"# } else { "" }
    }

    /// Returns the params with the server's names in this way.
    fn expand(&self, params: &str, id: &str) -> String {
        let params = params.replace("<id>", id).replace("<task>", &self.task);
        let (name, uri) = match self.target.among_others {
            Some(server) => (format!("{server}__"), format!("xy://{server}/")),
            None => (String::new(), String::new()),
        };
        let params = replace_marked(&params, "<name:", &name);
        replace_marked(&params, "<uri:", &uri)
    }
}

fn is_question(message: &Text) -> bool {
    message.get("id").is_some() && message.get("method").is_some()
}

fn is_id(message: &Text, id: &str) -> bool {
    message.get("id").is_some_and(|it| it.to_string() == id)
}

/// Puts `prefix` before each value in a placeholder that begins with `mark`.
fn replace_marked(text: &str, mark: &str, prefix: &str) -> String {
    let mut parts = text.split(mark);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (marked, rest) = part.split_once('>').expect("a mark has an end");
        out.push_str(prefix);
        out.push_str(marked);
        out.push_str(rest);
    }
    out
}
