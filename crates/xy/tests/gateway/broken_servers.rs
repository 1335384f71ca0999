//! Servers that stop in the middle of a response, close a pipe, or send unasked messages, and the
//! calls open at that time.

use serde_json::{Value, json};
use xy_testkit::{Home, read_log_lines};

use crate::fixtures::{
    assert_echo, error_code, error_message, home, http_client, local_client, metrics, ready,
    received_of, serve, serve_recorded, serve_with, wait_until_idle, who, who_once_up,
};
use crate::support::status;

/// Returns a home with the servers `good` and `bad`, which are ready, and its daemon.
#[track_caller]
fn home_with_bad(more: &str) -> Home {
    let home = home();
    serve(&home, "good", &[]);
    serve_with(&home, "bad", &[], more);
    home.daemon();
    ready(&home, &["good", "bad"]);
    home
}

/// Sends a request to `bad`, and returns the kind of its error, or `None` if it is answered.
#[track_caller]
fn request_error(home: &Home, method: &str, params: &Value, timeout: u64) -> Option<String> {
    let ask = json!({ "server": "bad", "method": method, "params": params, "timeout_ms": timeout });
    let failed = home.call("request", ask).err()?;
    Some(failed["data"]["kind"].as_str().unwrap_or_else(|| panic!("{failed}")).to_owned())
}

/// Waits until a call is open at `bad`.
#[track_caller]
fn wait_until_one_open(home: &Home) {
    let open = "xy_server_calls_open{server=\"bad\"} 1\n";
    home.wait_until("a call is with it", || metrics(home).contains(open));
}

#[test]
fn half_response_of_a_dying_server_is_dropped() {
    let home = home_with_bad("");
    let (client, other) = (local_client(&home), local_client(&home));
    let before = who(&client, "bad__who")["pid"].clone();
    let beside = other.start_call("bad__never", json!({}));
    wait_until_one_open(&home);
    let torn = client.call("bad__half_line", json!({ "then": "die", "code": 3 }));
    for lost in [torn, other.wait_answer(beside)] {
        assert_eq!(error_code(&lost), -32010, "{lost}");
        assert!(error_message(&lost).contains("`bad`"), "{lost}");
    }
    let after = who_once_up(&home, &client, "bad__who");
    assert_ne!(after["pid"], before);
    assert_echo(&client, "bad");
    assert_echo(&other, "good");
    for client in [&client, &other] {
        assert_eq!(client.unclaimed_answers(), [""; 0], "each was answered once");
    }
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn endless_half_response_costs_only_its_own_call() {
    let home = home_with_bad("");
    let client = local_client(&home);
    let half = json!({ "name": "half_line", "arguments": { "then": "never" } });
    let ended = request_error(&home, "tools/call", &half, 300).unwrap();
    // Any other output ends the broken line, and then the call fails early.
    assert!(["TimedOut", "Internal"].contains(&ended.as_str()), "{ended}");
    assert_echo(&client, "good");
    // The next output ends the broken line, which is no message then. Its caller times out, and
    // afterwards the server works again.
    home.wait_until("the server works again", || {
        match request_error(&home, "ping", &json!({}), 300) {
            None => true,
            Some(kind) => {
                assert_eq!(kind, "TimedOut");
                false
            }
        }
    });
    assert_echo(&client, "bad");
    home.wait_until("the torn line is in its log", || {
        read_log_lines(&home, "bad").iter().any(|line| line.contains("{\"jsonrpc\""))
    });
    // A client can cancel such a call.
    let id = client.start_call("bad__half_line", json!({ "then": "never" }));
    client.cancel(&json!(id));
    wait_until_idle(&home);
    assert_eq!(status(&home, "bad")["restart_count"], 0, "{}", status(&home, "bad"));
    home.finish();
}

#[test]
fn server_that_closes_stdin_during_calls_is_replaced() {
    let home = home_with_bad("");
    let (client, other) = (local_client(&home), http_client(&home));
    let before = who(&client, "bad__who")["pid"].clone();
    let beside = other.start_call("bad__never", json!({}));
    wait_until_one_open(&home);
    let closing = client.start_call("bad__never", json!({ "close": "stdin" }));
    for lost in [client.wait_answer(closing), other.wait_answer(beside)] {
        assert_eq!(error_code(&lost), -32010, "{lost}");
        assert!(error_message(&lost).contains("`bad` closed its stdin"), "{lost}");
    }
    assert_echo(&other, "good");
    assert_ne!(who_once_up(&home, &client, "bad__who")["pid"], before);
    assert!(status(&home, "bad")["transitions"].to_string().contains("stdin"));
    for client in [&*client, &*other] {
        assert_eq!(client.unclaimed_answers(), [""; 0], "each was answered once");
    }
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn unrelated_flood_reaches_no_client_and_delays_none() {
    const COUNT: usize = 100_000;
    let home = home_with_bad("");
    let (client, other) = (local_client(&home), local_client(&home));
    let flood = json!({ "count": COUNT, "answer_first": "yes" });
    assert_eq!(client.call_text("bad__flood", flood), "flooding");
    for _ in 0..20 {
        assert_echo(&other, "good");
    }
    let last = format!("flood {}", COUNT - 1);
    home.wait_until("the last line is in the log", || {
        read_log_lines(&home, "bad").iter().any(|line| line.contains(&last))
    });
    for client in [&client, &other] {
        assert_eq!(client.notifications(), [Value::Null; 0]);
    }
    assert_echo(&client, "bad");
    home.wait_until("nothing of the flood is retained", || {
        let kept = metrics(&home);
        kept.contains("xy_retained_objects{what=\"log_bytes\"} 0\n")
            && kept.contains("{what=\"calls\"} 0\n")
    });
    home.finish();
}

#[test]
fn call_over_its_time_limit_is_cancelled_at_the_server() {
    let home = home();
    let input_log = crate::fixtures::input_log_file(&home, "bad");
    serve_with(
        &home,
        "bad",
        &["--input-log", input_log.to_str().unwrap()],
        "calls { within \"2s\" }\n",
    );
    serve_recorded(&home, "good", &[]);
    home.daemon();
    ready(&home, &["good", "bad"]);
    let (socket, http) = (local_client(&home), http_client(&home));
    let patient = socket.start_call("good__never", json!({}));
    for (count, client) in [&*socket, &*http].into_iter().enumerate() {
        let late = client.call("bad__never", json!({}));
        assert_eq!(error_code(&late), -32007, "{late}");
        for part in ["`bad`", "timed out", "2s", "calls { within }"] {
            assert!(error_message(&late).contains(part), "{part}: {late}");
        }
        let cancelled = home.wait_until("the server gets the cancellation", || {
            let cancelled_calls = received_of(&home, "bad", "notifications/cancelled");
            (cancelled_calls.len() == count + 1).then_some(cancelled_calls)
        });
        let request_error = received_of(&home, "bad", "tools/call");
        assert_eq!(cancelled[count]["params"]["requestId"], request_error[count]["id"]);
    }
    // A merely slow server, and the server itself, are not affected.
    assert_echo(&socket, "bad");
    assert_eq!(status(&home, "bad")["restart_count"], 0);
    assert_eq!(received_of(&home, "good", "notifications/cancelled"), [Value::Null; 0]);
    socket.cancel(&json!(patient));
    wait_until_idle(&home);
    home.finish();
}
