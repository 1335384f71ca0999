//! Servers that answer oddly, too much, or not at all. None of it disturbs another server.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use xy_testkit::{Home, read_log_lines};

use crate::stage::{
    code, echoes, heard_of, home, linger, local, local_of, nothing_is_open, ready, serve,
    serve_noting, serve_with, words,
};
use crate::support::status;

/// A home where `good` is good and `bad` is not, and its daemon; `good` is ready.
#[track_caller]
fn home_with_bad(flags: &[&str], more: &str) -> Home {
    let home = home();
    serve(&home, "good", &[]);
    serve_with(&home, "bad", flags, more);
    home.daemon();
    ready(&home, &["good"]);
    home
}

/// Waits until a server is failed, and answers why.
#[track_caller]
fn failure(home: &Home, name: &str) -> String {
    home.wait_for_state(name, "failed")["reason"].to_string()
}

/// At most one try.
const ONCE: &str = "restart { max-attempts 1; backoff-initial \"0s\" }\n";

#[track_caller]
fn home_with_hopeless(flags: &[&str], more: &str) -> Home {
    let home = home();
    serve(&home, "good", &[]);
    home.write_config("servers/bad.kdl", &format!("{}{ONCE}{more}", home.kdl_mcp(flags)));
    home.daemon();
    ready(&home, &["good"]);
    home
}

#[test]
fn messages_over_several_lines_are_understood_and_told() {
    let home = home_with_bad(&["--pretty", "--garbage-first"], "");
    ready(&home, &["bad"]);
    let client = local(&home);
    echoes(&client, "bad");
    let said = local_of(&home, "bad").call_text("echo", json!({ "message": "hello" }));
    assert_eq!(said, "hello");
    let status = status(&home, "bad");
    assert!(status["warnings"].to_string().contains("over several lines"), "{status:#}");
    let lines = read_log_lines(&home, "bad");
    let told = lines.iter().filter(|line| line.contains("over several lines")).count();
    assert_eq!(told, 1, "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("\"result\"")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("DEBUG about to say")), "{lines:?}");
    home.finish();
}

#[test]
fn garbage_goes_to_the_log_in_order_and_calls_are_answered() {
    let home = home_with_bad(&["--garbage-first"], "");
    let client = local(&home);
    echoes(&client, "bad");
    let answer = client.call("bad__garbage", json!({ "lines": 500 }));
    assert!(answer["result"]["content"].is_array(), "{answer}");
    home.wait_until("the last of it is in the log", || {
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
    echoes(&client, "good");
    assert_eq!(client.strays().len(), 1, "only the welcome: {:?}", client.strays());
    home.finish();
}

#[test]
fn an_answer_in_two_halves_is_one_answer() {
    let home = home_with_bad(&[], "");
    let client = local(&home);
    ready(&home, &["bad"]);
    let half = client.start_call("bad__half_line", json!({ "ms": 100 }));
    echoes(&client, "good");
    assert_eq!(client.wait_answer(half)["result"]["content"][0]["text"], "both halves");
    home.finish();
}

#[test]
fn an_answer_that_nobody_asked_for_or_that_comes_twice_goes_to_nobody() {
    let home = home_with_bad(&[], "");
    let client = local(&home);
    ready(&home, &["bad"]);
    for tool in ["bad__answer_twice", "bad__answer_unknown_id"] {
        let answer = client.call(tool, json!({}));
        assert!(answer.get("result").is_some(), "{answer}");
    }
    for id in ["1", "0", "999999", "-1", "1.5", "1e3", "\"1\"", "null", "{}"] {
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        assert_eq!(client.call_text("bad__say", json!({ "line": line })), "say");
    }
    echoes(&client, "bad");
    assert_eq!(client.unclaimed_answers(), [""; 0]);
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn what_looks_like_a_message_and_is_none_ends_nothing() {
    let home = home_with_bad(&[], "");
    let client = local(&home);
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
    echoes(&client, "bad");
    echoes(&client, "good");
    home.finish();
}

#[test]
fn a_result_that_is_nothing_is_still_an_answer() {
    let home = home_with_bad(&[], "");
    let client = local(&home);
    ready(&home, &["bad"]);
    let id = client.start_call("bad__raw", json!({ "result": "null" }));
    assert!(client.wait_answer_text(id).ends_with(r#""result":null}"#));
    home.finish();
}

#[test]
fn a_flood_of_one_server_does_not_hold_up_another() {
    let home = home_with_bad(&[], "");
    let (flooded, other) = (local(&home), local(&home));
    ready(&home, &["bad"]);
    let flood = flooded.start_call("bad__flood", json!({ "count": 100_000 }));
    for _ in 0..20 {
        echoes(&other, "good");
    }
    assert_eq!(flooded.wait_answer(flood)["result"]["content"][0]["text"], "flooded");
    let heard = flooded.notifications().len();
    assert_eq!(heard, 100_000, "all of them are the caller's");
    assert_eq!(other.notifications(), [Value::Null; 0]);
    home.finish();
}

#[test]
fn a_server_that_closes_its_stdout_and_lives_is_restarted_and_counted() {
    // `server/discover`, `initialize`, four lists, and the next answer is the last.
    let unprobed = "health { probe \"off\" }\n";
    let home = home_with_bad(&["--close-stdout-after", "7"], unprobed);
    let client = local(&home);
    ready(&home, &["bad"]);
    home.wait_until("it is listed", || client.tool_names().iter().any(|name| name == "bad__echo"));
    echoes(&client, "bad");
    let lost = client.call("bad__echo", json!({ "message": "x" }));
    assert_eq!(code(&lost), -32010, "{lost}");
    assert!(words(&lost).contains("stdout") || words(&lost).contains("`bad`"), "{lost}");
    home.wait_until("it has been restarted", || {
        let status = status(&home, "bad");
        status["restart_count"] == 1 && status["state"] == "running"
    });
    echoes(&client, "bad");
    echoes(&client, "good");
    home.finish();
}

#[test]
fn a_server_that_closes_its_stdin_and_lives_is_restarted_and_counted() {
    let home = home_with_bad(&["--close-stdin"], "");
    home.wait_until("it has been restarted", || {
        status(&home, "bad")["restarts_total"].as_u64().is_some_and(|count| count >= 1)
    });
    let client = local(&home);
    echoes(&client, "good");
    let reasons = status(&home, "bad")["transitions"].to_string();
    assert!(reasons.contains("stdin"), "{reasons}");
    home.finish();
}

#[test]
fn a_call_that_is_never_answered_can_be_cancelled() {
    let home = home();
    serve_noting(&home, "bad", &[]);
    home.daemon();
    ready(&home, &["bad"]);
    let client = local(&home);
    let id = client.start_call("bad__never", json!({}));
    let other = client.start_request("tools/call", json!({ "name": "bad__never" }));
    home.wait_until("both are there", || heard_of(&home, "bad", "tools/call").len() == 2);
    client.cancel(&json!(id));
    let cancelled =
        home.wait_until("it is told", || heard_of(&home, "bad", "notifications/cancelled").pop());
    let asked = heard_of(&home, "bad", "tools/call");
    assert_eq!(cancelled["params"]["requestId"], asked[0]["id"]);
    linger();
    assert_eq!(client.answer_within(id, Duration::ZERO), None);
    assert_eq!(heard_of(&home, "bad", "notifications/cancelled").len(), 1);
    echoes(&client, "bad");
    client.cancel(&json!(other));
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn a_server_that_dies_at_the_greeting_fails() {
    let home = home_with_hopeless(&["--die-on", "initialize"], "");
    let client = local(&home);
    let names = client.tool_names();
    assert!(!names.iter().any(|name| name.starts_with("bad__")), "{names:?}");
    failure(&home, "bad");
    echoes(&client, "good");
    let call = client.call("bad__echo", json!({}));
    assert!([-32005, -32602].contains(&code(&call)), "{call}");
    home.finish();
}

#[test]
fn a_server_that_refuses_the_greeting_fails_with_its_words() {
    let home = home_with_hopeless(&["--refuse-init"], "");
    let why = failure(&home, "bad");
    assert!(why.contains("talks to nobody"), "{why}");
    echoes(&local(&home), "good");
    home.finish();
}

#[test]
fn a_server_of_an_unknown_revision_fails_and_it_is_named() {
    let home = home_with_hopeless(&["--protocol", "2099-01-01"], "");
    let why = failure(&home, "bad");
    assert!(why.contains("2099-01-01") && why.contains("2025-11-25"), "{why}");
    echoes(&local(&home), "good");
    home.finish();
}

#[test]
fn a_server_that_never_answers_the_greeting_fails_in_time() {
    let home = home_with_hopeless(&["--never-init"], "ready { within \"500ms\" }\n");
    let client = local(&home);
    let waiting = client.start_call("bad__echo", json!({ "message": "x" }));
    failure(&home, "bad");
    let answer = client.wait_answer(waiting);
    assert_eq!(code(&answer), -32005, "{answer}");
    echoes(&client, "good");
    home.finish();
}

#[test]
fn a_list_that_is_none_costs_only_its_own_server() {
    let home = home_with_bad(&["--bad-list"], "");
    ready(&home, &["bad"]);
    let client = local(&home);
    let names = client.tool_names();
    assert!(names.iter().any(|name| name == "good__echo"), "{names:?}");
    assert!(!names.iter().any(|name| name.starts_with("bad__")), "{names:?}");
    let prompts = client.list("prompts/list", "prompts");
    assert!(prompts.iter().any(|it| it["name"] == "bad__greet"), "{prompts:?}");
    home.wait_until("its log says so", || {
        read_log_lines(&home, "bad").iter().any(|line| line.contains("tools/list"))
    });
    home.finish();
}

#[test]
fn tools_that_are_none_are_left_out_and_the_others_are_there() {
    let home = home_with_bad(&["--bad-tools"], "");
    ready(&home, &["bad"]);
    let client = local(&home);
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
fn what_some_clients_cannot_read_is_mended_or_left_out_beside_others_and_told_in_the_log() {
    let home = home_with_bad(&["--odd-lists"], "");
    ready(&home, &["bad"]);
    let client = local(&home);
    let odd = |method, list, field: &str, begin: &str| -> Vec<Value> {
        let mut all = client.list(method, list);
        all.retain(|it| it[field].as_str().is_some_and(|name| name.starts_with(begin)));
        all
    };
    let tools = odd("tools/list", "tools", "name", "bad__odd_");
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    let numbers = [0, 2, 3, 5, 6, 7, 8, 9, 10].map(|number| format!("bad__odd_{number}"));
    assert_eq!(names, numbers, "what cannot be mended is left out");
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
        let is_told = |of: &str| log.iter().any(|line| line.contains(of));
        is_told("11 of tools/list are not as all clients can read them: `odd_0` is shown with its")
            && is_told("`odd_1` is not shown for its inputSchema")
            && is_told("2 of resources/templates/list")
    });
    // Alone it is as it was written.
    let alone = local_of(&home, "bad");
    let prompts = alone.list("prompts/list", "prompts");
    assert!(prompts.contains(&json!({ "name": "odd_0", "arguments": 7 })), "{prompts:?}");
    home.finish();
}

#[test]
fn a_huge_list_is_not_shown_and_another_server_is() {
    let home = home_with_bad(&["--huge-list", "20"], "");
    ready(&home, &["bad"]);
    let client = local(&home);
    let names = home.wait_until("what fits is there", || {
        let names = client.tool_names();
        assert!(names.iter().any(|name| name == "good__echo"), "{names:?}");
        names.iter().any(|name| name == "bad__echo").then_some(names)
    });
    assert!(!names.iter().any(|name| name == "bad__huge"), "{names:?}");
    echoes(&client, "bad");
    home.finish();
}

#[test]
fn a_list_without_end_ends() {
    let home = home_with_bad(&["--endless-list"], "");
    ready(&home, &["bad"]);
    let client = local(&home);
    let count = home.wait_until("it is listed", || {
        let names = client.tool_names();
        let count = names.iter().filter(|name| name.starts_with("bad__")).count();
        (count > 0).then_some(count)
    });
    assert_eq!(count, 1000);
    echoes(&client, "good");
    home.finish();
}

#[test]
fn a_list_that_never_comes_is_waited_for_once() {
    let home = home_with_bad(&["--list-never"], "");
    ready(&home, &["bad"]);
    let client = local(&home);
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
    // It can be called all the same.
    echoes(&client, "bad");
    home.finish();
}

#[test]
fn an_answer_of_more_than_32_mib_is_an_error_to_its_caller_alone() {
    let home = home_with_bad(&[], "");
    let (client, other) = (local(&home), local(&home));
    ready(&home, &["bad"]);
    let never = other.start_call("bad__never", json!({}));
    let answer = client.call("bad__big", json!({ "bytes": 33 << 20 }));
    assert_eq!(code(&answer), -32603, "{answer}");
    assert!(words(&answer).contains("32 MiB"), "{answer}");
    assert_eq!(other.answer_within(never, Duration::ZERO), None);
    // One that is just short enough arrives whole.
    let text = client.call_text("bad__big", json!({ "bytes": 31 << 20 }));
    assert_eq!(text.len(), 31 << 20);
    echoes(&client, "bad");
    other.cancel(&json!(never));
    home.finish();
}

#[test]
fn what_is_too_long_and_no_answer_costs_nobody_an_answer() {
    let home = home_with_bad(&[], "");
    let (client, other) = (local(&home), local(&home));
    ready(&home, &["bad"]);
    let bytes = 33 << 20;
    let slow = other.start_call("bad__never", json!({}));
    for line in [
        "FILLER",
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"FILLER"}}"#,
        // Servers number what they ask as we do.
        r#"{"jsonrpc":"2.0","id":OWN_ID,"method":"ping","params":{"x":"FILLER"}}"#,
    ] {
        let say = json!({ "line": line, "bytes": bytes });
        assert_eq!(client.call_text("bad__say", say), "say", "{line}");
        assert_eq!(other.answer_within(slow, Duration::ZERO), None, "{line}");
    }
    other.cancel(&json!(slow));
    // The same with nothing open but the call itself, whose answer it might be taken for.
    let say = json!({ "line": "FILLER", "bytes": bytes });
    assert_eq!(client.call_text("bad__say", say), "say");
    home.finish();
}

#[test]
fn a_garbled_manifest_is_forgotten() {
    // Half of it, no text at all, nothing, something else, and a folder.
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
        home.wait_until("it is remembered", || file.exists());
        assert_eq!(home.xy(&["shutdown"]).code, 0);
        match damage {
            Some(bytes) => std::fs::write(&file, bytes).unwrap(),
            None => std::fs::remove_file(&file).and_then(|()| std::fs::create_dir(&file)).unwrap(),
        }
        let daemon = home.daemon();
        let client = local(&home);
        assert!(client.tool_names().iter().any(|name| name == "bad__echo"));
        echoes(&client, "bad");
        let told = daemon.stderr();
        let line = told.lines().find(|line| line.contains("a manifest cannot be read: forgotten"));
        let line = line.unwrap_or_else(|| panic!("it is not told: {told}"));
        assert!(line.contains("manifests/bad.json") && line.contains(says), "{line}");
        if damage.is_some() {
            let is_whole = || std::fs::read_to_string(&file).is_ok_and(|it| it.contains("echo"));
            home.wait_until("it is remembered again", is_whole);
        } else {
            std::fs::remove_dir(&file).unwrap(); // What is not ours is left alone.
        }
        home.finish();
    }
}
