//! One script, driven at a server in one way: everything that was heard at each step.

use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::McpClient;
use xy_testkit::text::Text;

/// How long an answer is waited for.
const WITHIN: Duration = Duration::from_secs(30);

/// How long, once the answer is there, everything else is waited for that came directly. If
/// it does not come, that is a difference.
const REST_WITHIN: Duration = Duration::from_secs(5);

/// One thing that a client does. In `params` `<name:x>` stands for the name of a tool or a
/// prompt, `<uri:x>` for the place of a resource, `<id>` for the id of this step's request, and
/// `<task>` for the id of the task that was begun last.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Asks, and waits for the answer.
    Ask { label: &'static str, method: &'static str, params: &'static str },
    /// Asks, and cancels the request with these params as soon as it hears this notification.
    Cancel {
        label: &'static str,
        method: &'static str,
        params: &'static str,
        once: &'static str,
        cancel: &'static str,
    },
    /// Says something that nobody answers.
    Say { method: &'static str, params: &'static str },
    /// Asks again and again until the answer holds this text and this notification has come.
    /// No record tells what is heard meanwhile: when a server does what it does at its start
    /// is its own affair.
    Settle { method: &'static str, holds: &'static str, heard: &'static str },
}

/// What was heard at one step, in order: answers, notifications, questions.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) label: &'static str,
    pub(crate) heard: Vec<Text>,
}

/// How a server is reached, as far as that changes what is said.
pub(crate) struct Reach<'a> {
    pub(crate) client: &'a McpClient,
    /// The name that the server has among others; names are prefixed with it.
    pub(crate) among_others: Option<&'a str>,
    /// Whether the outsides of messages are odd too. Some SDKs refuse such, or respell ids.
    pub(crate) is_odd: bool,
    /// Answers a question: its method to the text of `"result":…` or `"error":…`.
    pub(crate) answers: &'a dyn Fn(&str) -> String,
    /// How many messages come at each step, if that is known.
    pub(crate) expected: Option<&'a [usize]>,
}

/// What a client can do that is driven here.
pub(crate) fn capabilities() -> Value {
    json!({
        "roots": { "listChanged": true },
        "sampling": { "tools": {} },
        "elicitation": { "form": {}, "url": {} },
    })
}

struct Driver<'a> {
    reach: &'a Reach<'a>,
    /// How much of all that came has been looked at.
    seen: usize,
    last_id: u64,
    /// The id of the task that was begun last.
    task: String,
    records: Vec<Record>,
}

/// Drives the script; the first record is that of `initialize`.
#[track_caller]
pub(crate) fn drive(reach: &Reach<'_>, open_stream: impl FnOnce(), script: &[Step]) -> Vec<Record> {
    let mut driver =
        Driver { reach, seen: 0, last_id: 0, task: String::new(), records: Vec::new() };
    reach.client.record();
    let client = json!({ "name": "xy-testkit", "version": "1" });
    let params = json!({
        "protocolVersion": "2025-11-25", "capabilities": capabilities(), "clientInfo": client,
    });
    reach.client.initialize_as(params);
    open_stream();
    driver.records.push(Record { label: "initialize", heard: Vec::new() });
    driver.listen("1", None, "");
    driver.last_id = 1;
    for step in script {
        driver.step(step);
    }
    // Whatever is still on its way comes before the answer to this.
    driver.ask("ping", "ping", "{}");
    driver.records
}

impl Driver<'_> {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Ask { label, method, params } => self.ask(label, method, params),
            Step::Cancel { label, method, params, once, cancel } => {
                let id = self.begin(label, method, params);
                self.listen(&id, Some(once), &self.written(cancel, &id));
            }
            Step::Say { method, params } => {
                let params = self.written(params, "");
                let text = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
                self.reach.client.send_raw(&text);
            }
            Step::Settle { method, holds, heard } => self.settle(method, holds, heard),
        }
    }

    fn ask(&mut self, label: &'static str, method: &str, params: &str) {
        let id = self.begin(label, method, params);
        self.listen(&id, None, "");
    }

    /// Sends a request: its id.
    fn begin(&mut self, label: &'static str, method: &str, params: &str) -> String {
        self.records.push(Record { label, heard: Vec::new() });
        self.send(method, params)
    }

    fn send(&mut self, method: &str, params: &str) -> String {
        self.last_id += 1;
        let id = match self.last_id {
            odd if odd % 2 == 1 && self.reach.is_odd => format!("\"\\u0061-{odd}\""),
            number => number.to_string(),
        };
        self.send_as(&id, method, params);
        id
    }

    fn send_as(&self, id: &str, method: &str, params: &str) {
        let params = self.written(params, id);
        let more = self.outside();
        let text =
            format!(r#"{{{more}"params":{params},"id":{id},"method":"{method}","jsonrpc":"2.0"}}"#);
        self.reach.client.start_raw(id, &text);
    }

    /// Hears until the answer has come and everything else that came directly. With `once` it
    /// sends `cancel` when it hears that, and no answer comes.
    fn listen(&mut self, id: &str, once: Option<&str>, cancel: &str) {
        let at = self.records.len() - 1;
        let expected = self.reach.expected.and_then(|all| all.get(at)).copied().unwrap_or(1);
        let mut is_answered = false;
        let mut is_cancelled = false;
        loop {
            let heard = self.records[at].heard.len();
            let is_done = if once.is_some() { is_cancelled } else { is_answered };
            if is_done && heard >= expected {
                return;
            }
            let Some(text) =
                self.next(if is_answered || is_cancelled { REST_WITHIN } else { WITHIN })
            else {
                return; // It is told as a difference, by what is missing.
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
                self.reach.client.send_raw(&text);
            }
            self.records[at].heard.push(text);
        }
    }

    fn settle(&mut self, method: &str, holds: &str, wanted: &str) {
        let server = self.reach.among_others.map(|server| format!("{server}__"));
        let name = format!("{}echo", server.unwrap_or_default());
        let call = format!(r#"{{"name":"{name}","arguments":{{"message":"here?"}}}}"#);
        let mut is_heard = false;
        // The ids of what is compared do not depend on how often that is.
        for time in 0..300 {
            // A server that lives for one client comes when it is called, not when it is listed.
            let id = format!("\"settle-call-{time}\"");
            self.send_as(&id, "tools/call", &call);
            self.pass_by(&id, wanted, &mut is_heard);
            let id = format!("\"settle-{time}\"");
            self.send_as(&id, method, "{}");
            let answer = self.pass_by(&id, wanted, &mut is_heard);
            if is_heard && answer.to_string().contains(holds) {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(100));
        }
        panic!("`{method}` never holds `{holds}`, or `{wanted}` has not come: {is_heard}");
    }

    /// Waits for an answer, whatever else comes.
    fn pass_by(&mut self, id: &str, wanted: &str, is_heard: &mut bool) -> Text {
        loop {
            let text = self.next(WITHIN).unwrap_or_else(|| panic!("{id} is not answered"));
            *is_heard |= text.word("method") == wanted;
            if is_question(&text) {
                self.reply(&text);
            } else if is_id(&text, id) {
                return text;
            }
        }
    }

    fn next(&mut self, limit: Duration) -> Option<Text> {
        let text = self.reach.client.recorded(self.seen, limit)?;
        self.seen += 1;
        Some(Text::of(&text))
    }

    fn reply(&self, question: &Text) {
        let id = question.get("id").map(Text::to_string).unwrap_or_default();
        let outcome = (self.reach.answers)(question.word("method"));
        let text = format!(r#"{{{}{outcome},"jsonrpc":"2.0","id":{id}}}"#, self.outside());
        self.reach.client.send_raw(&text);
    }

    /// What nobody knows, beside the id.
    fn outside(&self) -> &'static str {
        if self.reach.is_odd { r#""x-outside":1.0,"# } else { "" }
    }

    /// Params with the names that the server has in this way.
    fn written(&self, params: &str, id: &str) -> String {
        let params = params.replace("<id>", id).replace("<task>", &self.task);
        let (name, uri) = match self.reach.among_others {
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

/// Puts `prefix` before what stands in marks that begin with `mark`.
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
