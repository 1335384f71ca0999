//! Tools that count executions, with `--record FILE`.
//!
//! Each execution appends a line to `FILE` before it answers, so the file outlives the server. A
//! test that numbers its calls can tell afterwards how often each was executed. Calls of the
//! read-only tool `look` go to `FILE.looks` instead.
//!
//! A line is one appending write by the thread that reads messages. Lines are therefore in the
//! order in which calls arrived. The answer holds the number and the pid.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::standin;

use crate::request::{BAD_PARAMS, Call};
use crate::server::Server;

/// Returns the definitions of the tools.
pub(crate) fn tools() -> [Value; 3] {
    let read_only = json!({ "readOnlyHint": true });
    let idempotent = json!({ "readOnlyHint": false, "idempotentHint": true });
    let neither = json!({ "readOnlyHint": false, "idempotentHint": false });
    [
        described("look", "Writes nothing down", &read_only),
        described("record", "Writes the number down; must not be called twice", &neither),
        described("record_idempotent", "Writes it down; may be called twice", &idempotent),
    ]
}

fn described(name: &str, description: &str, annotations: &Value) -> Value {
    let number = json!({ "type": "integer" });
    json!({
        "name": name,
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": { "number": number, "ms": number },
            "required": ["number"],
        },
        "annotations": annotations,
    })
}

/// Returns the file that records calls of `look`.
fn looks_file(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".looks");
    name.into()
}

/// Records the number, works for `--work-us`, waits `ms` milliseconds, and answers.
pub(crate) fn call(server: &Arc<Server>, call: Call) {
    let number = call.arguments.number("number");
    let (Some(file), Some(number)) = (&server.options.record, number) else {
        return call.request.refuse(BAD_PARAMS, "there is nothing to write down, or nowhere");
    };
    let file = if call.tool == "look" { looks_file(file) } else { file.clone() };
    let file = File::options().append(true).create(true).open(file);
    let written = file.and_then(|mut it| it.write_all(format!("{number}\n").as_bytes()));
    written.expect("the record can be written");
    standin::keep_busy(server.options.work);
    let wait = Duration::from_millis(call.number("ms", 0));
    let answer = format!("{number} {}", std::process::id());
    if wait.is_zero() {
        return call.text(&answer);
    }
    server.spawn_worker(call.request.clone(), move |server, request| {
        if server.wait(&request, wait) {
            call.text(&answer);
        }
    });
}
