//! Answers without the parts that differ between runs.

use serde_json::Value;
use xy_testkit::Home;

/// Formats the answer, with indentation and replaced values.
pub(crate) fn redacted(home: &Home, answer: &Value) -> String {
    let mut answer = answer.clone();
    redact("", &mut answer);
    let root = home.root().display().to_string();
    serde_json::to_string_pretty(&answer).unwrap().replace(&root, "[home]")
}

fn redact(key: &str, value: &mut Value) {
    let word = match key {
        "pid" | "previousPid" | "newPid" | "pids" => "[pid]",
        "uptime" => "[seconds]",
        "rss" | "totalMemory" | "freeMemory" => "[bytes]",
        "roundTripMs" => "[ms]",
        "timestamp" => "[time]",
        "port" => "[port]",
        "client" => "[client]",
        "nodeVersion" => "[version]",
        _ => "",
    };
    match value {
        Value::Object(fields) => {
            // A healthy server gets its first probe a moment after its start.
            let is_there = fields.get("pid").is_some_and(Value::is_number);
            let is_well = |it: &&mut Value| **it == "unknown" || **it == "healthy";
            if let Some(health) = fields.get_mut("health").filter(is_well).filter(|_| is_there) {
                *health = "[unknown or healthy]".into();
            }
            if let Some(checked) = fields.get_mut("lastHealthCheck") {
                *checked = "[time or null]".into(); // As above.
            }
            fields.iter_mut().for_each(|(key, value)| redact(key, value));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redact(key, item)),
        Value::Number(_) | Value::String(_) if !word.is_empty() => *value = word.into(),
        _ => {}
    }
}
