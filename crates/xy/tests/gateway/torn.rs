//! Servers that stop amid something, close a pipe or talk without being asked, and what becomes
//! of the calls that are open meanwhile.

use serde_json::{Value, json};
use xy_testkit::{Home, read_log_lines};

use crate::stage::{
    code, echoes, heard_of, home, local, metrics, nothing_is_open, ready, serve, serve_noting,
    serve_with, web, who, who_at_last, words,
};
use crate::support::status;

/// A home where `good` is good and `bad` does as it is told, and its daemon; both are ready.
#[track_caller]
fn home_with_bad(more: &str) -> Home {
    let home = home();
    serve(&home, "good", &[]);
    serve_with(&home, "bad", &[], more);
    home.daemon();
    ready(&home, &["good", "bad"]);
    home
}

/// The kind of error that a `request` to `bad` ends with; none if it is answered.
#[track_caller]
fn asked(home: &Home, method: &str, params: &Value, timeout: u64) -> Option<String> {
    let ask = json!({ "server": "bad", "method": method, "params": params, "timeout_ms": timeout });
    let failed = home.call("request", ask).err()?;
    Some(failed["data"]["kind"].as_str().unwrap_or_else(|| panic!("{failed}")).to_owned())
}

/// Waits until a call is with `bad`.
#[track_caller]
fn one_is_open(home: &Home) {
    let open = "xy_server_calls_open{server=\"bad\"} 1\n";
    home.wait_until("a call is with it", || metrics(home).contains(open));
}

#[test]
fn half_an_answer_of_a_server_that_dies_is_none_and_its_successor_begins_anew() {
    let home = home_with_bad("");
    let (client, other) = (local(&home), local(&home));
    let before = who(&client, "bad__who")["pid"].clone();
    let beside = other.start_call("bad__never", json!({}));
    one_is_open(&home);
    let torn = client.call("bad__half_line", json!({ "then": "die", "code": 3 }));
    for lost in [torn, other.wait_answer(beside)] {
        assert_eq!(code(&lost), -32010, "{lost}");
        assert!(words(&lost).contains("`bad`"), "{lost}");
    }
    let after = who_at_last(&home, &client, "bad__who");
    assert_ne!(after["pid"], before);
    echoes(&client, "bad");
    echoes(&other, "good");
    for client in [&client, &other] {
        assert_eq!(client.unclaimed_answers(), [""; 0], "each was answered once");
    }
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn half_an_answer_that_never_ends_costs_its_caller_no_more_than_its_own_time() {
    let home = home_with_bad("");
    let client = local(&home);
    let half = json!({ "name": "half_line", "arguments": { "then": "never" } });
    let ended = asked(&home, "tools/call", &half, 300).unwrap();
    // Whatever else it says meanwhile ends the line: then the caller is told before its time.
    assert!(["TimedOut", "Internal"].contains(&ended.as_str()), "{ended}");
    echoes(&client, "good");
    // What it says next ends the line, which is no message then. Who waits for that has a limit
    // too, and after it all is well again.
    home.wait_until("it is understood again", || match asked(&home, "ping", &json!({}), 300) {
        None => true,
        Some(kind) => {
            assert_eq!(kind, "TimedOut");
            false
        }
    });
    echoes(&client, "bad");
    home.wait_until("the torn line is in its log", || {
        read_log_lines(&home, "bad").iter().any(|line| line.contains("{\"jsonrpc\""))
    });
    // A client that waits for such an answer can take its call back.
    let id = client.start_call("bad__half_line", json!({ "then": "never" }));
    client.cancel(&json!(id));
    nothing_is_open(&home);
    assert_eq!(status(&home, "bad")["restart_count"], 0, "{}", status(&home, "bad"));
    home.finish();
}

#[test]
fn a_server_that_closes_its_stdin_amid_calls_answers_none_and_is_replaced() {
    let home = home_with_bad("");
    let (client, other) = (local(&home), web(&home));
    let before = who(&client, "bad__who")["pid"].clone();
    let beside = other.start_call("bad__never", json!({}));
    one_is_open(&home);
    let closing = client.start_call("bad__never", json!({ "close": "stdin" }));
    for lost in [client.wait_answer(closing), other.wait_answer(beside)] {
        assert_eq!(code(&lost), -32010, "{lost}");
        assert!(words(&lost).contains("`bad` closed its stdin"), "{lost}");
    }
    echoes(&other, "good");
    assert_ne!(who_at_last(&home, &client, "bad__who")["pid"], before);
    assert!(status(&home, "bad")["transitions"].to_string().contains("stdin"));
    for client in [&*client, &*other] {
        assert_eq!(client.unclaimed_answers(), [""; 0], "each was answered once");
    }
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn a_flood_that_belongs_to_no_call_reaches_nobody_and_holds_up_nobody() {
    const COUNT: usize = 100_000;
    let home = home_with_bad("");
    let (client, other) = (local(&home), local(&home));
    let flood = json!({ "count": COUNT, "answer_first": "yes" });
    assert_eq!(client.call_text("bad__flood", flood), "flooding");
    for _ in 0..20 {
        echoes(&other, "good");
    }
    let last = format!("flood {}", COUNT - 1);
    home.wait_until("the last of it is in the log", || {
        read_log_lines(&home, "bad").iter().any(|line| line.contains(&last))
    });
    for client in [&client, &other] {
        assert_eq!(client.notifications(), [Value::Null; 0]);
    }
    echoes(&client, "bad");
    home.wait_until("nothing of it is kept", || {
        let kept = metrics(&home);
        kept.contains("xy_kept{what=\"log_bytes\"} 0\n") && kept.contains("{what=\"calls\"} 0\n")
    });
    home.finish();
}

#[test]
fn a_call_that_takes_longer_than_it_may_is_ended_and_its_server_hears_of_it() {
    let home = home();
    let diary = crate::stage::diary_file(&home, "bad");
    serve_with(&home, "bad", &["--diary", diary.to_str().unwrap()], "calls { within \"2s\" }\n");
    serve_noting(&home, "good", &[]);
    home.daemon();
    ready(&home, &["good", "bad"]);
    let (socket, http) = (local(&home), web(&home));
    let patient = socket.start_call("good__never", json!({}));
    for (count, client) in [&*socket, &*http].into_iter().enumerate() {
        let late = client.call("bad__never", json!({}));
        assert_eq!(code(&late), -32007, "{late}");
        for part in ["`bad`", "timed out", "2s", "calls { within }"] {
            assert!(words(&late).contains(part), "{part}: {late}");
        }
        let cancelled = home.wait_until("it is told", || {
            let told = heard_of(&home, "bad", "notifications/cancelled");
            (told.len() == count + 1).then_some(told)
        });
        let asked = heard_of(&home, "bad", "tools/call");
        assert_eq!(cancelled[count]["params"]["requestId"], asked[count]["id"]);
    }
    // One that only takes its time, and the server itself, are well.
    echoes(&socket, "bad");
    assert_eq!(status(&home, "bad")["restart_count"], 0);
    assert_eq!(heard_of(&home, "good", "notifications/cancelled"), [Value::Null; 0]);
    socket.cancel(&json!(patient));
    nothing_is_open(&home);
    home.finish();
}
