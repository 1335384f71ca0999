//! Tools for counting, with `--record FILE`: each execution is a line there, which is written
//! before the answer and outlives the server. Whoever numbers its calls can tell afterwards how
//! often each of them was done. Those that only look are in `FILE.looks` instead: they change
//! nothing that anybody else sees.
//!
//! A line is one write to the end of the file, made by the thread that hears, so that lines are
//! in the order in which calls were heard. The answer is the number and this process.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::standin;

use crate::answer::{BAD_PARAMS, Call};
use crate::server::Server;

/// The tools as clients are told of them.
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

/// Where looks are written down, beside the rest.
fn with_looks(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".looks");
    name.into()
}

/// Writes the number down, works if the plan says so, waits so many milliseconds, and answers.
pub(crate) fn call(server: &Arc<Server>, call: Call) {
    let number = call.arguments.number("number");
    let (Some(file), Some(number)) = (&server.plan.record, number) else {
        return call.asked.refuse(BAD_PARAMS, "there is nothing to write down, or nowhere");
    };
    let file = if call.tool == "look" { with_looks(file) } else { file.clone() };
    let file = File::options().append(true).create(true).open(file);
    let written = file.and_then(|mut it| it.write_all(format!("{number}\n").as_bytes()));
    written.expect("the record can be written");
    standin::keep_busy(server.plan.work);
    let wait = Duration::from_millis(call.number("ms", 0));
    let answer = format!("{number} {}", std::process::id());
    if wait.is_zero() {
        return call.text(&answer);
    }
    server.work(call.asked.clone(), move |server, asked| {
        if server.wait(&asked, wait) {
            call.text(&answer);
        }
    });
}
