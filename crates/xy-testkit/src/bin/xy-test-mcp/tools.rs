//! The implementation of the tools; `catalog.rs` holds their definitions.
//!
//! - `echo`, `sum`, `reverse` (with `--v2`), `big`, `env`, `who`, and generated tools: answer
//! - `slow_echo`, `progress`, `log`, `flood`, `never`: take time and can be cancelled; `never`
//!   may `close` its `stdin` or `stdout`
//! - `ask_sampling`, `ask_elicitation`, `ask_roots`: send a request to the client during the call
//! - `add_tool`, `remove_tool`, `touch_list`, `bump`: change lists and resources
//! - `read_only`, `idempotent`, `mutating`: exit once, if the call has `die_once`
//! - `raw`, `say`, `answer_twice`, `answer_unknown_id`, `half_line`, `garbage`: answer unusually
//! - `ask`, `refuse`, `chatter` (`chatter.rs`): converse with the client, with `--talks`
//! - `job` (`legacy_tasks.rs`, `modern_tasks.rs`): runs as a task on request, with `--tasks`
//! - `record`, `record_idempotent`, `look` (`record.rs`): are counted, with `--record`
//! - `crash`, `crash_after_ms`: exit without an answer

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::standin;

use crate::chatter;
use crate::die;
use crate::eras;
use crate::legacy_tasks;
use crate::lists;
use crate::record;
use crate::request::{BAD_PARAMS, Call, structured_result, text_result};
use crate::server::{Server, level_of};
use crate::stdin;
use xy_testkit::json::quoted;

/// Executes a tool call.
pub(crate) fn call(server: &Arc<Server>, call: Call) {
    if server.state().removed.contains(&call.tool) {
        return call.request.refuse(BAD_PARAMS, &format!("no tool `{}` any more", call.tool));
    }
    if crate::blocking::call(server, &call) {
        return;
    }
    match call.tool.as_str() {
        // First, because benchmarks call it.
        "echo" => {
            standin::keep_busy(server.options.work);
            echo(&call);
        }
        "crash" => die(exit_code(&call)),
        "never" if !call.string("close").is_empty() => close(server, &call),
        "slow_echo" | "crash_after_ms" | "progress" | "flood" | "never" | "half_line" | "big"
        | "ask_sampling" | "ask_elicitation" | "ask_roots" | "read_only" | "idempotent"
        | "mutating" | "ask" | "chatter" => call_on_thread(server, call),
        "job" => legacy_tasks::job(server, call),
        "record" | "record_idempotent" | "look" => record::call(server, call),
        "refuse" => call.request.refuse_with(&call.string("error")),
        "sum" => sum(&call),
        "reverse" if server.options.has("--v2") => {
            call.text(&call.string("message").chars().rev().collect::<String>());
        }
        "env" => env(&call),
        "who" => who(server, &call),
        "log" => log(server, &call),
        "bump" => bump(server, &call),
        "add_tool" | "remove_tool" | "touch_list" => change_list(server, &call),
        "raw" | "say" | "answer_twice" | "answer_unknown_id" | "garbage" => answer_unusually(&call),
        name if lists::has_tool(server, name) => answer_generated(&call),
        name => call.request.refuse(BAD_PARAMS, &format!("no tool `{name}`")),
    }
}

/// Executes a tool that needs its own thread, because it waits or may block on a full pipe.
fn call_on_thread(server: &Arc<Server>, call: Call) {
    let request = call.request.clone();
    server.spawn_worker(request, move |server, request| {
        let wait = |time: Duration| server.wait(&request, time);
        match call.tool.as_str() {
            "slow_echo" if wait(millis(&call, 100)) => echo(&call),
            "crash_after_ms" => {
                wait(millis(&call, 100));
                die(exit_code(&call))
            }
            "never" => {
                wait(standin::SAFETY_LIMIT);
            }
            "progress" => progress(server, &call),
            "flood" => flood(server, &call),
            "half_line" => half_line(&call),
            "big" => call.text(&"x".repeat(call.size("bytes", 1000))),
            "read_only" | "idempotent" | "mutating" => die_once(server, &call),
            "ask_sampling" | "ask_elicitation" | "ask_roots" | "ask" => ask(server, &call),
            "chatter" => chatter::chatter(server, &call),
            _ => {} // The client has cancelled `slow_echo`.
        }
    });
}

/// Closes a pipe, keeps running and does not answer. Runs on the thread that reads stdin, so that
/// no read is in progress when stdin is closed.
fn close(server: &Server, call: &Call) {
    match call.string("close").as_str() {
        "stdin" => {
            server.state().has_closed_stdin = true;
            stdin::close();
        }
        _ => call.request.responder.lock().close(),
    }
}

fn millis(call: &Call, otherwise: u64) -> Duration {
    Duration::from_millis(call.number("ms", otherwise))
}

fn exit_code(call: &Call) -> i32 {
    i32::try_from(call.number("code", 1)).unwrap_or(1)
}

/// Answers with the argument unchanged, of any JSON type.
fn echo(call: &Call) {
    let message = call.arguments.raw("message").unwrap_or("\"\"");
    let text = if message.starts_with('"') { message.to_owned() } else { quoted(message) };
    let content = format!(r#"[{{"type":"text","text":{text}}}]"#);
    let structured = format!(r#"{{"message":{message}}}"#);
    call.request.result(&format!(r#"{{"content":{content},"structuredContent":{structured}}}"#));
}

fn sum(call: &Call) {
    let term = |name| call.arguments.raw(name).and_then(|raw| raw.parse::<f64>().ok());
    match term("a").zip(term("b")) {
        Some((a, b)) => call.request.result(&structured_result(&json!({ "sum": a + b }))),
        None => call.failed("`a` and `b` are numbers"),
    }
}

fn env(call: &Call) {
    let name = call.string("name");
    match std::env::var(&name) {
        Ok(value) => call.text(&value),
        Err(_) => call.failed(&format!("there is no `{name}`")),
    }
}

/// Answers with the pid and with what the client said about itself.
fn who(server: &Server, call: &Call) {
    let state = server.state();
    let who = json!({
        "pid": std::process::id(),
        "client": state.client,
        "level": state.level,
        "subscribed": state.subscribed,
    });
    drop(state);
    call.request.result(&structured_result(&who));
}

fn log(server: &Server, call: &Call) {
    let level = call.arguments.string("level").unwrap_or_else(|| "info".to_owned());
    let Some(number) = level_of(&level) else {
        return call.failed("no such level");
    };
    if number >= server.state().level {
        call.notify("notifications/message", &log_params(&level, &call.string("message")));
    }
    call.text("logged");
}

pub(crate) fn log_params(level: &str, message: &str) -> String {
    format!(r#"{{"level":"{level}","logger":"test","data":{}}}"#, quoted(message))
}

/// Sends many notifications and then the answer, or the answer first with `answer_first`.
fn flood(server: &Server, call: &Call) {
    let answers_first = !call.string("answer_first").is_empty();
    if answers_first {
        call.text("flooding");
    }
    for number in 0..call.number("count", 1000) {
        if server.state().is_cancelled(&call.request.id) {
            return;
        }
        call.notify("notifications/message", &log_params("info", &format!("flood {number}")));
    }
    if !answers_first {
        call.text("flooded");
    }
}

fn progress(server: &Server, call: &Call) {
    let steps = call.number("steps", 3);
    for step in 1..=steps {
        if !server.wait(&call.request, millis(call, 0)) {
            return;
        }
        if let Some(token) = &call.progress_token {
            let params =
                format!(r#"{{"progressToken":{token},"progress":{step},"total":{steps}}}"#);
            call.notify("notifications/progress", &params);
        }
    }
    call.text(&format!("{steps} steps"));
}

fn bump(server: &Server, call: &Call) {
    let mut state = server.state();
    state.counter += 1;
    let (count, is_watched) = (state.counter, state.subscribed.contains(lists::COUNTER));
    drop(state);
    let updated = "notifications/resources/updated";
    eras::notify_listeners(server, &call.request, updated, Some(lists::COUNTER));
    if is_watched {
        let uri = quoted(lists::COUNTER);
        call.notify(updated, &format!(r#"{{"uri":{uri}}}"#));
    }
    call.text(&count.to_string());
}

fn change_list(server: &Server, call: &Call) {
    let name = call.string("name");
    let kind = call.arguments.string("kind").unwrap_or_else(|| "tools".to_owned());
    let mut state = server.state();
    match call.tool.as_str() {
        "add_tool" if kind != "tools" => {
            state.added_entries.insert((kind.clone(), name));
        }
        "add_tool" => {
            state.removed.remove(&name);
            state.added.insert(name);
        }
        "remove_tool" => {
            state.added.remove(&name);
            state.removed.insert(name);
        }
        _ => {}
    }
    drop(state);
    server.notify_list_changed(&call.request, &kind);
    call.text("changed");
}

/// Creates the file `die_once` and exits; if the file exists already, waits and answers.
fn die_once(server: &Server, call: &Call) {
    if let Some(file) = call.arguments.string("die_once")
        && File::create_new(file).is_ok()
    {
        server.wait(&call.request, millis(call, 0));
        die(1);
    }
    if server.wait(&call.request, millis(call, 0)) {
        echo(call);
    }
}

fn ask(server: &Server, call: &Call) {
    let text = match call.string("message") {
        empty if empty.is_empty() => "what do you say?".to_owned(),
        message => message,
    };
    let (method, params) = match call.tool.as_str() {
        "ask_sampling" => ("sampling/createMessage", sampling(&text)),
        "ask_elicitation" => ("elicitation/create", elicitation(&text)),
        "ask_roots" => ("roots/list", json!({})),
        _ => {
            let params = call.string("params").parse().unwrap_or_else(|_| json!({}));
            (&*call.string("method"), params)
        }
    };
    let Some(answer) = server.ask(&call.request, method, &params.to_string()) else {
        if !server.state().is_cancelled(&call.request.id) {
            call.failed("the client did not answer");
        }
        return;
    };
    match (answer.raw("result"), answer.raw("error")) {
        (Some(result), _) => call.text(result),
        (None, error) => call.failed(error.unwrap_or("neither a result nor an error")),
    }
}

pub(crate) fn sampling(text: &str) -> Value {
    let message = json!({ "role": "user", "content": { "type": "text", "text": text } });
    json!({ "messages": [message], "maxTokens": 100 })
}

pub(crate) fn elicitation(text: &str) -> Value {
    let name = json!({ "type": "string", "description": "A name" });
    let schema = json!({ "type": "object", "properties": { "name": name }, "required": ["name"] });
    json!({ "message": text, "requestedSchema": schema })
}

/// Writes half of an answer, pauses, and writes the rest. Other messages wait meanwhile.
/// `then` replaces the rest: `never` writes nothing, `die` exits.
fn half_line(call: &Call) {
    let mut answer = call.request.as_result(&text_result("both halves")).into_bytes();
    answer.push(b'\n');
    let (first, second) = answer.split_at(answer.len() / 2);
    let mut writer = call.request.responder.lock();
    writer.write_bytes(first);
    match call.string("then").as_str() {
        "never" => return,
        "die" => die(exit_code(call)),
        _ => standin::linger(millis(call, 100)),
    }
    writer.write_bytes(second);
    writer.count_message();
}

fn answer_unusually(call: &Call) {
    let mut writer = call.request.responder.lock();
    let mut answer = call.request.as_result(&text_result(&call.tool));
    match call.tool.as_str() {
        "raw" => answer = call.request.as_result(&call.string("result")),
        "say" => {
            let filler = "x".repeat(call.size("bytes", 0));
            let message = call.string("line").replace("OWN_ID", &call.request.id);
            writer.write_message(message.replace("FILLER", &filler), false);
        }
        "answer_twice" => writer.write_message(answer.clone(), true),
        "answer_unknown_id" => {
            let unknown = r#"{"jsonrpc":"2.0","id":"nobody asked","result":{}}"#;
            writer.write_message(unknown.to_owned(), false);
        }
        _ => {
            for number in 0..call.number("lines", 3) {
                writer.write_bytes(format!("garbage {number}\n").as_bytes());
                writer.write_bytes(b"\xc3\x28 no text \xff\n");
            }
            writer.write_bytes(&vec![b'g'; call.size("bytes", 0)]);
            if call.number("bytes", 0) > 0 {
                writer.write_bytes(b"\n");
            }
        }
    }
    writer.write_message(answer, true);
}

/// Answers a call of a generated tool.
fn answer_generated(call: &Call) {
    let query = call.arguments.raw("query").unwrap_or_default();
    call.text(format!("{} {query}", call.tool).trim_end());
}
