//! Servers that answer oddly, too much, or not at all. None of this disturbs other servers.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use xy_testkit::{Home, read_log_lines};

use crate::fixtures::{
    assert_echo, error_code, error_message, home, linger, local_client, ready, received_of, serve,
    serve_recorded, serve_with, single_server_client, wait_until_idle,
};
use crate::support::status;

/// Returns a home with the servers `good`, which is ready, and `bad`, and its daemon.
#[track_caller]
fn home_with_bad(flags: &[&str], more: &str) -> Home {
    let home = home();
    serve(&home, "good", &[]);
    serve_with(&home, "bad", flags, more);
    home.daemon();
    ready(&home, &["good"]);
    home
}

/// Waits until a server has failed, and returns the reason.
#[track_caller]
fn failure(home: &Home, name: &str) -> String {
    home.wait_for_state(name, "failed")["reason"].to_string()
}

/// Allows one attempt at most.
const SINGLE_ATTEMPT: &str = "restart { max-attempts 1; backoff-initial \"0s\" }\n";

#[track_caller]
fn home_with_hopeless(flags: &[&str], more: &str) -> Home {
    let home = home();
    serve(&home, "good", &[]);
    home.write_config("servers/bad.kdl", &format!("{}{SINGLE_ATTEMPT}{more}", home.kdl_mcp(flags)));
    home.daemon();
    ready(&home, &["good"]);
    home
}

#[test]
fn multi_line_messages_are_parsed_and_warned_about() {
    let home = home_with_bad(&["--pretty", "--garbage-first"], "");
    ready(&home, &["bad"]);
    let client = local_client(&home);
    assert_echo(&client, "bad");
    let echoed =
        single_server_client(&home, "bad").call_text("echo", json!({ "message": "hello" }));
    assert_eq!(echoed, "hello");
    let status = status(&home, "bad");
    assert!(status["warnings"].to_string().contains("over several lines"), "{status:#}");
    let lines = read_log_lines(&home, "bad");
    let count = lines.iter().filter(|line| line.contains("over several lines")).count();
    assert_eq!(count, 1, "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("\"result\"")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("DEBUG about to say")), "{lines:?}");
    home.finish();
}

#[test]
fn garbage_is_logged_in_order_and_calls_are_answered() {
    let home = home_with_bad(&["--garbage-first"], "");
    let client = local_client(&home);
    assert_echo(&client, "bad");
    let answer = client.call("bad__garbage", json!({ "lines": 500 }));
    assert!(answer["result"]["content"].is_array(), "{answer}");
    home.wait_until("the last line is in the log", || {
        read_log_lines(&home, "bad").iter().any(|line| line.contains("garbage 499"))
    });
    let lines = read_log_lines(&home, "bad");
    let numbers: Vec<usize> = lines
        .iter()
        .filter_map(|line| {
            line.rsplit_once(" garbage ").or_else(|| line.rsplit_once("]garbage "))?.1.parse().ok()
        })
        .collect();
    assert_eq!(numbers, (0..500).collect::<Vec<_>>());
    let has = |text: &str| lines.iter().any(|line| line.contains(text));
    for text in ["Starting up...", "\"msg\":\"ready\"", "42", "\"a string\"", "no text", "about to"]
    {
        assert!(has(text), "{text} is not in the log");
    }
    let at = |text: &str| lines.iter().position(|line| line.contains(text)).unwrap();
    assert!(at("Starting up...") < at("\"a string\"") && at("\"a string\"") < at("garbage 0"));
    assert_echo(&client, "good");
    assert_eq!(client.strays().len(), 1, "only the welcome: {:?}", client.strays());
    home.finish();
}

#[test]
fn response_in_two_writes_is_one_response() {
    let home = home_with_bad(&[], "");
    let client = local_client(&home);
    ready(&home, &["bad"]);
    let half = client.start_call("bad__half_line", json!({ "ms": 100 }));
    assert_echo(&client, "good");
    assert_eq!(client.wait_answer(half)["result"]["content"][0]["text"], "both halves");
    home.finish();
}

#[test]
fn unknown_and_duplicate_responses_are_dropped() {
    let home = home_with_bad(&[], "");
    let client = local_client(&home);
    ready(&home, &["bad"]);
    for tool in ["bad__answer_twice", "bad__answer_unknown_id"] {
        let answer = client.call(tool, json!({}));
        assert!(answer.get("result").is_some(), "{answer}");
    }
    for id in ["1", "0", "999999", "-1", "1.5", "1e3", "\"1\"", "null", "{}"] {
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        assert_eq!(client.call_text("bad__say", json!({ "line": line })), "say");
    }
    assert_echo(&client, "bad");
    assert_eq!(client.unclaimed_answers(), [""; 0]);
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn lookalikes_of_messages_end_no_call() {
    let home = home_with_bad(&[], "");
    let client = local_client(&home);
    ready(&home, &["bad"]);
    for line in [
        "[]",
        "{}",
        r#"[{"jsonrpc":"2.0","id":1,"result":{}}]"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":{}}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":[]}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":7}}"#,
        r#"{"jsonrpc":"2.0","id":{},"method":"sampling/createMessage"}"#,
        r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#,
        "\\u0000",
        &"[".repeat(10_000),
    ] {
        assert_eq!(client.call_text("bad__say", json!({ "line": line })), "say", "{line}");
    }
    assert_echo(&client, "bad");
    assert_echo(&client, "good");
    home.finish();
}

#[test]
fn null_result_is_a_response() {
    let home = home_with_bad(&[], "");
    let client = local_client(&home);
    ready(&home, &["bad"]);
    let id = client.start_call("bad__raw", json!({ "result": "null" }));
    assert!(client.wait_answer_text(id).ends_with(r#""result":null}"#));
    home.finish();
}

#[test]
fn flood_of_one_server_does_not_delay_another() {
    let home = home_with_bad(&[], "");
    let (flooded, other) = (local_client(&home), local_client(&home));
    ready(&home, &["bad"]);
    let flood = flooded.start_call("bad__flood", json!({ "count": 100_000 }));
    for _ in 0..20 {
        assert_echo(&other, "good");
    }
    assert_eq!(flooded.wait_answer(flood)["result"]["content"][0]["text"], "flooded");
    let received = flooded.notifications().len();
    assert_eq!(received, 100_000, "all of them are the caller's");
    assert_eq!(other.notifications(), [Value::Null; 0]);
    home.finish();
}

#[test]
fn server_that_closes_stdout_is_restarted_and_counted() {
    // `server/discover`, `initialize` and four lists: the next response is the last one.
    let unprobed = "health { probe \"off\" }\n";
    let home = home_with_bad(&["--close-stdout-after", "7"], unprobed);
    let client = local_client(&home);
    ready(&home, &["bad"]);
    home.wait_until("it is listed", || client.tool_names().iter().any(|name| name == "bad__echo"));
    assert_echo(&client, "bad");
    let lost = client.call("bad__echo", json!({ "message": "x" }));
    assert_eq!(error_code(&lost), -32010, "{lost}");
    assert!(
        error_message(&lost).contains("stdout") || error_message(&lost).contains("`bad`"),
        "{lost}"
    );
    home.wait_until("the server has restarted", || {
        let status = status(&home, "bad");
        status["restart_count"] == 1 && status["state"] == "running"
    });
    assert_echo(&client, "bad");
    assert_echo(&client, "good");
    home.finish();
}

#[test]
fn server_that_closes_stdin_is_restarted_and_counted() {
    let home = home_with_bad(&["--close-stdin"], "");
    home.wait_until("the server has restarted", || {
        status(&home, "bad")["restarts_total"].as_u64().is_some_and(|count| count >= 1)
    });
    let client = local_client(&home);
    assert_echo(&client, "good");
    let reasons = status(&home, "bad")["transitions"].to_string();
    assert!(reasons.contains("stdin"), "{reasons}");
    home.finish();
}

#[test]
fn unanswered_call_can_be_cancelled() {
    let home = home();
    serve_recorded(&home, "bad", &[]);
    home.daemon();
    ready(&home, &["bad"]);
    let client = local_client(&home);
    let id = client.start_call("bad__never", json!({}));
    let other = client.start_request("tools/call", json!({ "name": "bad__never" }));
    home.wait_until("both are there", || received_of(&home, "bad", "tools/call").len() == 2);
    client.cancel(&json!(id));
    let cancelled = home.wait_until("the server gets the cancellation", || {
        received_of(&home, "bad", "notifications/cancelled").pop()
    });
    let requests = received_of(&home, "bad", "tools/call");
    assert_eq!(cancelled["params"]["requestId"], requests[0]["id"]);
    linger();
    assert_eq!(client.answer_within(id, Duration::ZERO), None);
    assert_eq!(received_of(&home, "bad", "notifications/cancelled").len(), 1);
    assert_echo(&client, "bad");
    client.cancel(&json!(other));
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn server_that_dies_during_the_handshake_fails() {
    let home = home_with_hopeless(&["--die-on", "initialize"], "");
    let client = local_client(&home);
    let names = client.tool_names();
    assert!(!names.iter().any(|name| name.starts_with("bad__")), "{names:?}");
    failure(&home, "bad");
    assert_echo(&client, "good");
    let call = client.call("bad__echo", json!({}));
    assert!([-32005, -32602].contains(&error_code(&call)), "{call}");
    home.finish();
}

#[test]
fn server_that_refuses_initialize_fails_with_its_message() {
    let home = home_with_hopeless(&["--refuse-init"], "");
    let why = failure(&home, "bad");
    assert!(why.contains("talks to nobody"), "{why}");
    assert_echo(&local_client(&home), "good");
    home.finish();
}

#[test]
fn server_with_an_unknown_revision_fails_with_a_reason() {
    let home = home_with_hopeless(&["--protocol", "2099-01-01"], "");
    let why = failure(&home, "bad");
    assert!(why.contains("2099-01-01") && why.contains("2025-11-25"), "{why}");
    assert_echo(&local_client(&home), "good");
    home.finish();
}

#[test]
fn server_that_never_answers_initialize_fails_in_time() {
    let home = home_with_hopeless(&["--never-init"], "ready { within \"500ms\" }\n");
    let client = local_client(&home);
    let waiting = client.start_call("bad__echo", json!({ "message": "x" }));
    failure(&home, "bad");
    let answer = client.wait_answer(waiting);
    assert_eq!(error_code(&answer), -32005, "{answer}");
    assert_echo(&client, "good");
    home.finish();
}

#[test]
fn malformed_list_affects_only_its_server() {
    let home = home_with_bad(&["--bad-list"], "");
    ready(&home, &["bad"]);
    let client = local_client(&home);
    let names = client.tool_names();
    assert!(names.iter().any(|name| name == "good__echo"), "{names:?}");
    assert!(!names.iter().any(|name| name.starts_with("bad__")), "{names:?}");
    let prompts = client.list("prompts/list", "prompts");
    assert!(prompts.iter().any(|it| it["name"] == "bad__greet"), "{prompts:?}");
    home.wait_until("the log names the list", || {
        read_log_lines(&home, "bad").iter().any(|line| line.contains("tools/list"))
    });
    home.finish();
}

#[test]
fn malformed_tools_are_left_out() {
    let home = home_with_bad(&["--bad-tools"], "");
    ready(&home, &["bad"]);
    let client = local_client(&home);
    let tools = client.list("tools/list", "tools");
    let bad: Vec<&str> = tools
        .iter()
        .filter_map(|tool| tool["name"].as_str())
        .filter(|name| name.starts_with("bad__"))
        .collect();
    assert!(bad.contains(&"bad__add_tool") && !bad.contains(&"bad__no_schema"), "{bad:?}");
    assert!(bad.iter().all(|name| name.len() <= 50), "{bad:?}");
    home.finish();
}

#[test]
fn unreadable_items_are_repaired_or_hidden_and_logged() {
    let home = home_with_bad(&["--odd-lists"], "");
    ready(&home, &["bad"]);
    let client = local_client(&home);
    let odd = |method, list, field: &str, begin: &str| -> Vec<Value> {
        let mut all = client.list(method, list);
        all.retain(|it| it[field].as_str().is_some_and(|name| name.starts_with(begin)));
        all
    };
    let tools = odd("tools/list", "tools", "name", "bad__odd_");
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    let numbers = [0, 2, 3, 5, 6, 7, 8, 9, 10].map(|number| format!("bad__odd_{number}"));
    assert_eq!(names, numbers, "unfit tools are left out");
    for (tool, schema) in tools.iter().zip([json!({}), json!({}), json!({ "a": {} })]) {
        let properties = tool["inputSchema"].get("properties").cloned();
        assert_eq!(properties.unwrap_or(json!({})), schema, "{tool}");
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
    }
    for tool in &tools[3..] {
        let mut expected = json!({ "name": tool["name"], "inputSchema": { "type": "object" } });
        if tool["name"] == "bad__odd_8" {
            expected["annotations"] = json!({});
        }
        assert_eq!(*tool, expected);
    }
    let prompts = odd("prompts/list", "prompts", "name", "bad__odd_");
    assert_eq!(prompts[1]["arguments"], json!([{ "name": "a" }]));
    let resources = odd("resources/list", "resources", "uri", "xy://bad/test://odd/");
    assert_eq!(resources[0]["name"], "test://odd/0");
    let templates =
        odd("resources/templates/list", "resourceTemplates", "uriTemplate", "xy://bad/test://odd/");
    assert_eq!((prompts.len(), resources.len(), templates.len()), (3, 3, 2));
    home.wait_until("people can read about it", || {
        let log = read_log_lines(&home, "bad");
        let is_logged = |of: &str| log.iter().any(|line| line.contains(of));
        is_logged("11 items of tools/list are malformed: `odd_0` is shown with its")
            && is_logged("`odd_1` is hidden for its inputSchema")
            && is_logged("2 items of resources/templates/list")
    });
    // The endpoint of a single server shows the items unchanged.
    let alone = single_server_client(&home, "bad");
    let prompts = alone.list("prompts/list", "prompts");
    assert!(prompts.contains(&json!({ "name": "odd_0", "arguments": 7 })), "{prompts:?}");
    home.finish();
}

#[test]
fn huge_list_is_not_shown() {
    let home = home_with_bad(&["--huge-list", "20"], "");
    ready(&home, &["bad"]);
    let client = local_client(&home);
    let names = home.wait_until("the readable tools are listed", || {
        let names = client.tool_names();
        assert!(names.iter().any(|name| name == "good__echo"), "{names:?}");
        names.iter().any(|name| name == "bad__echo").then_some(names)
    });
    assert!(!names.iter().any(|name| name == "bad__huge"), "{names:?}");
    assert_echo(&client, "bad");
    home.finish();
}

#[test]
fn endless_list_is_cut() {
    let home = home_with_bad(&["--endless-list"], "");
    ready(&home, &["bad"]);
    let client = local_client(&home);
    let count = home.wait_until("it is listed", || {
        let names = client.tool_names();
        let count = names.iter().filter(|name| name.starts_with("bad__")).count();
        (count > 0).then_some(count)
    });
    assert_eq!(count, 1000);
    assert_echo(&client, "good");
    home.finish();
}

#[test]
fn missing_list_is_waited_for_once() {
    let home = home_with_bad(&["--list-never"], "");
    ready(&home, &["bad"]);
    let client = local_client(&home);
    let timed = || {
        #[expect(clippy::disallowed_methods, reason = "a test may look at the clock")]
        let began = Instant::now();
        let names = client.tool_names();
        assert!(names.iter().any(|name| name == "good__echo"), "{names:?}");
        began.elapsed()
    };
    let (first, second) = (timed(), timed());
    assert!(first < Duration::from_secs(8), "{first:?}");
    assert!(second < Duration::from_secs(2), "{second:?}");
    // The server can still be called.
    assert_echo(&client, "bad");
    home.finish();
}

#[test]
fn response_over_32_mib_fails_only_its_call() {
    let home = home_with_bad(&[], "");
    let (client, other) = (local_client(&home), local_client(&home));
    ready(&home, &["bad"]);
    let never = other.start_call("bad__never", json!({}));
    let answer = client.call("bad__big", json!({ "bytes": 33 << 20 }));
    assert_eq!(error_code(&answer), -32603, "{answer}");
    assert!(error_message(&answer).contains("32 MiB"), "{answer}");
    assert_eq!(other.answer_within(never, Duration::ZERO), None);
    // A slightly smaller result arrives whole.
    let text = client.call_text("bad__big", json!({ "bytes": 31 << 20 }));
    assert_eq!(text.len(), 31 << 20);
    assert_echo(&client, "bad");
    other.cancel(&json!(never));
    home.finish();
}

#[test]
fn long_line_without_a_response_fails_no_call() {
    let home = home_with_bad(&[], "");
    let (client, other) = (local_client(&home), local_client(&home));
    ready(&home, &["bad"]);
    let bytes = 33 << 20;
    let slow = other.start_call("bad__never", json!({}));
    for line in [
        "FILLER",
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"FILLER"}}"#,
        // Servers number their requests as xy does.
        r#"{"jsonrpc":"2.0","id":OWN_ID,"method":"ping","params":{"x":"FILLER"}}"#,
    ] {
        let say = json!({ "line": line, "bytes": bytes });
        assert_eq!(client.call_text("bad__say", say), "say", "{line}");
        assert_eq!(other.answer_within(slow, Duration::ZERO), None, "{line}");
    }
    other.cancel(&json!(slow));
    // Again, with only this call open, whose response the line could be taken for.
    let say = json!({ "line": "FILLER", "bytes": bytes });
    assert_eq!(client.call_text("bad__say", say), "say");
    home.finish();
}

#[test]
fn damaged_manifest_is_forgotten() {
    // Truncated, not text, empty, another value, and a directory.
    for (damage, says) in [
        (Some(&b"{ not json"[..]), "key must be a string"),
        (Some(b"\xff\xfe\0\x80"), "UTF-8"),
        (Some(b""), "EOF"),
        (Some(b"[7]"), "at line 1"),
        (None, "it is not a regular file"),
    ] {
        let home = home_with_bad(&[], "");
        ready(&home, &["bad"]);
        let file = home.root().join("state/xy/manifests/bad.json");
        home.wait_until("the manifest is saved", || file.exists());
        assert_eq!(home.xy(&["shutdown"]).code, 0);
        match damage {
            Some(bytes) => std::fs::write(&file, bytes).unwrap(),
            None => std::fs::remove_file(&file).and_then(|()| std::fs::create_dir(&file)).unwrap(),
        }
        let daemon = home.daemon();
        let client = local_client(&home);
        assert!(client.tool_names().iter().any(|name| name == "bad__echo"));
        assert_echo(&client, "bad");
        let stderr = daemon.stderr();
        let line =
            stderr.lines().find(|line| line.contains("a manifest cannot be read: forgotten"));
        let line = line.unwrap_or_else(|| panic!("the damage is not logged: {stderr}"));
        assert!(line.contains("manifests/bad.json") && line.contains(says), "{line}");
        if damage.is_some() {
            let is_whole = || std::fs::read_to_string(&file).is_ok_and(|it| it.contains("echo"));
            home.wait_until("the manifest is saved again", is_whole);
        } else {
            std::fs::remove_dir(&file).unwrap(); // A foreign directory is left alone.
        }
        home.finish();
    }
}
