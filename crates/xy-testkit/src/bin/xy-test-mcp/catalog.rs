//! The definitions of the tools.

use std::fs;

use serde_json::{Value, json};

use crate::record;
use crate::server::Server;

/// The tools of every server: name, description and arguments. A `!` marks a required argument, a
/// `#` a number.
#[rustfmt::skip] // A table.
const TOOLS: [(&str, &str, &str); 32] = [
    ("add_tool", "Adds a tool to the list and says so", "name!"),
    ("answer_twice", "Answers twice", ""),
    ("answer_unknown_id", "Answers what nobody asked, and then the call", ""),
    ("ask_elicitation", "Asks the client's user for a name", "message"),
    ("ask_roots", "Asks the client for its roots", ""),
    ("ask_sampling", "Asks the client's model", "message"),
    ("big", "Answers with a text of that many bytes", "bytes#"),
    ("bump", "Counts up, and tells those who subscribed", ""),
    ("crash", "Ends the server", "code#"),
    ("crash_after_ms", "Ends the server, later", "ms# code#"),
    ("echo", "Says back what it is told", "message!"),
    ("env", "Shows a variable of the environment", "name!"),
    ("flood", "Sends many notifications", "count#"),
    ("garbage", "Says what is no message, and then answers", "lines# bytes#"),
    ("half_line", "Answers in two halves", "ms#"),
    ("idempotent", "Can be called twice; may die the first time", "message die_once ms#"),
    ("log", "Sends a log message", "level message"),
    ("mutating", "Must not be called twice; may die the first time", "message die_once ms#"),
    ("never", "Never answers", ""),
    ("progress", "Tells how far it is", "steps# ms#"),
    ("raw", "Answers with this JSON text as its result", "result!"),
    ("read_only", "Changes nothing; may die the first time", "message die_once ms#"),
    ("remove_tool", "Takes a tool from the list and says so", "name!"),
    ("say", "Says this line, with so many bytes for FILLER, and then answers", "line! bytes#"),
    ("slow_echo", "Says back what it is told, later", "message ms#"),
    ("sum", "Adds two numbers", "a# b#"),
    ("touch_list", "Says that the list has changed, which it has not", ""),
    ("who", "Shows this process and what it knows of its client", ""),
    // The last `FLAG_TOOL_COUNT` need a flag.
    ("reverse", "Says it backwards", "message!"),
    ("with.dot", "Has a dot in its name", ""),
    ("with space", "Has a space in its name", ""),
    ("two__underscores", "Has what others put between two names", ""),
];

/// The tools that `--talks` adds.
#[rustfmt::skip] // A table.
const TALK_TOOLS: [(&str, &str, &str); 3] = [
    ("ask", "Asks the client this, and answers with what it says", "method! params"),
    ("chatter", "Says and asks all kinds of things about this call", "tag! seed# steps# uri quiet"),
    ("refuse", "Answers with this JSON text as its error", "error!"),
];

/// How many tools at the end of [`TOOLS`] need a flag.
const FLAG_TOOL_COUNT: usize = 4;

/// A name that is not ASCII and exceeds the limits of clients.
const LONG_NAME: &str = "überlanger-name-den-kein-mensch-je-in-voller-länge-tippen-würde";

/// The length of the longest name.
const MAX_NAME_LENGTH: usize = 120;

/// Returns the current tools, in a fixed order.
pub(crate) fn tools(server: &Server) -> Vec<Value> {
    let options = &server.options;
    if let Some(file) = &options.tool_file {
        let text = fs::read_to_string(file).expect("a file with tools");
        return serde_json::from_str(&text).expect("a list of tools");
    }
    let (always, with_flag) = TOOLS.split_at(TOOLS.len() - FLAG_TOOL_COUNT);
    let mut tools: Vec<Value> = always.iter().map(tool_of_row).collect();
    if options.has("--v2") {
        tools.push(tool_of_row(&with_flag[0]));
    }
    if options.has("--odd-names") {
        tools.extend(with_flag[1..].iter().map(tool_of_row));
        let longest = "x".repeat(MAX_NAME_LENGTH);
        let long = [LONG_NAME, &longest].map(|name| tool(name, "Has a long name", ""));
        tools.extend(long);
    }
    if options.has("--talks") {
        tools.extend(TALK_TOOLS.iter().map(tool_of_row));
    }
    if options.has("--tasks") {
        let mut job = tool("job", "Takes its time", "message ms# ask complain");
        job["execution"] = json!({ "taskSupport": "optional" });
        tools.push(job);
    }
    if options.record.is_some() {
        tools.extend(record::tools());
    }
    tools.extend(crate::blocking::tools(server));
    tools.extend((0..options.extra_tools).map(generated));
    let state = server.state();
    tools.extend(state.added.iter().map(|name| tool(name, "Was added", "query")));
    tools.retain(|tool| !tool["name"].as_str().is_some_and(|name| state.removed.contains(name)));
    drop(state);
    if options.huge_list_megabytes > 0 {
        tools.push(tool("huge", &"x".repeat(options.huge_list_megabytes << 20), ""));
    }
    tools
}

fn tool_of_row(row: &(&str, &str, &str)) -> Value {
    let (name, description, arguments) = row;
    tool(name, description, arguments)
}

fn tool(name: &str, description: &str, arguments: &str) -> Value {
    let name_of = |word: &str| word.trim_end_matches(['!', '#']).to_owned();
    let properties = arguments.split_whitespace().map(|word| {
        let kind = if word.ends_with('#') { "number" } else { "string" };
        (name_of(word), json!({ "type": kind }))
    });
    let required = arguments.split_whitespace().filter(|word| word.ends_with('!')).map(name_of);
    let mut tool = json!({
        "name": name,
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": Value::Object(properties.collect()),
            "required": required.collect::<Vec<_>>(),
        },
    });
    match name {
        "read_only" => tool["annotations"] = json!({ "readOnlyHint": true }),
        "idempotent" => {
            tool["annotations"] = json!({ "readOnlyHint": false, "idempotentHint": true });
        }
        "mutating" => {
            tool["annotations"] = json!({ "readOnlyHint": false, "destructiveHint": true });
        }
        _ => {}
    }
    tool
}

/// Returns a generated tool, as verbose as those of real servers.
fn generated(number: usize) -> Value {
    const NOUNS: [&str; 8] =
        ["issue", "file", "branch", "message", "calendar event", "table", "user", "invoice"];
    const VERBS: [&str; 6] = ["Lists", "Creates", "Updates", "Deletes", "Searches", "Shows"];
    let (verb, noun) = (VERBS[number % VERBS.len()], NOUNS[number / 6 % NOUNS.len()]);
    let description = format!(
        "{verb} one {noun} or several. Use this when the user asks for a {noun} by name or by \
         a description; prefer a narrow query. Answers at most `limit` of them, newest first."
    );
    json!({
        "name": format!("tool_{number:04}"),
        "title": format!("{verb} {noun} {number}"),
        "description": description,
        "inputSchema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "query": { "type": "string", "description": format!("What the {noun} is about") },
                "limit": { "type": "integer", "minimum": 1, "maximum": 100, "default": 20 },
                "order": { "type": "string", "enum": ["asc", "desc"] },
                "filter": {
                    "type": "object",
                    "properties": {
                        "labels": { "type": "array", "items": { "type": "string" } },
                        "since": { "type": "string", "format": "date-time" },
                    },
                    "additionalProperties": false,
                },
            },
            "required": ["query"],
        },
        "annotations": { "readOnlyHint": number.is_multiple_of(2), "openWorldHint": true },
    })
}
