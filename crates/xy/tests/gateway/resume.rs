//! HTTP streams that break and are resumed: no event is lost, and no call runs twice.

use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Home, McpHttp};

use crate::fixtures::{
    assert_echo, capabilities, home, home_of_two, http_client, metrics, ready, received_of,
    serve_recorded,
};

/// Longer than anything in these tests takes.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts a call with this many progress steps, and waits for the first.
#[track_caller]
fn begin_steps(client: &McpHttp, steps: u64, pause_ms: u64) -> u64 {
    let id = client.start_request(
        "tools/call",
        json!({
            "name": "a__progress",
            "arguments": { "steps": steps, "ms": pause_ms },
            "_meta": { "progressToken": "steps" },
        }),
    );
    let first = client.wait_notification("notifications/progress");
    assert_eq!(first["params"]["progress"], 1);
    id
}

/// Breaks all connections, and resumes after the last event.
#[track_caller]
fn reconnect(client: &McpHttp) -> u16 {
    client.break_connections();
    client.open_stream_after(client.last_event_id().as_deref())
}

/// Returns a value of the metrics.
#[track_caller]
fn metric(home: &Home, name: &str) -> u64 {
    let metrics = metrics(home);
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|it| it.parse().ok()).unwrap_or_else(|| panic!("no {name}: {metrics}"))
}

#[test]
fn call_survives_any_number_of_broken_connections() {
    let home = home_of_two();
    let client = http_client(&home);
    let id = begin_steps(&client, 60, 20);
    let mut received = 1;
    let answer = loop {
        match reconnect(&client) {
            200 => {}
            204 => break client.answer_within(id, Duration::ZERO), // No event is left.
            status => panic!("it was not taken up: {status}"),
        }
        if let Some(answer) = client.answer_within(id, Duration::from_millis(70)) {
            break Some(answer);
        }
    };
    assert_eq!(answer.unwrap()["result"]["content"][0]["text"], "60 steps");
    for notification in client.notifications() {
        received += 1;
        assert_eq!(notification["params"]["progress"], received, "each once, and in order");
    }
    assert_eq!(received, 60);
    assert!(client.unclaimed_answers().is_empty(), "the call is answered once");
    assert_eq!(received_of(&home, "a", "tools/call").len(), 1, "and done once");
    client.close();
    home.finish();
}

#[test]
fn silent_call_can_be_resumed() {
    let home = home_of_two();
    let client = http_client(&home);
    let id = client.start_call("a__slow_echo", json!({ "message": "late", "ms": 3000 }));
    home.wait_until("it becomes a stream", || client.last_event_id());
    assert_eq!(reconnect(&client), 200);
    let answer = client.answer_within(id, TEST_TIMEOUT).unwrap();
    assert_eq!(answer["result"]["content"][0]["text"], "late");
    assert_eq!(received_of(&home, "a", "tools/call").len(), 1);
    client.close();
    home.finish();
}

#[test]
fn answer_to_a_disconnected_client_is_kept() {
    let home = home_of_two();
    let client = http_client(&home);
    let id = begin_steps(&client, 5, 400);
    client.break_connections();
    home.wait_until("it is answered", || {
        (metric(&home, "xy_http_stored_events") >= 5).then_some(())
    });
    let after = client.last_event_id();
    assert_eq!(client.open_stream_after(after.as_deref()), 200);
    let answer = client.answer_within(id, TEST_TIMEOUT).unwrap();
    assert_eq!(answer["result"]["content"][0]["text"], "5 steps");
    client.close();
    assert_eq!(metric(&home, "xy_http_stored_events"), 0);
    assert_eq!(metric(&home, "xy_http_stored_bytes"), 0);
    home.finish();
}

#[test]
fn server_request_is_replayed_to_a_reconnecting_client() {
    let home = home();
    serve_recorded(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    let client = home.mcp_http("/mcp");
    client.initialize_with(&capabilities());
    let id = client.start_call("a__ask_elicitation", json!({ "message": "who?" }));
    let first = client.wait_question();
    // The request was received, but the answer cannot be sent, and the event id is not kept.
    client.break_connections();
    let after = client.last_event_id().unwrap();
    let (stem, _) = after.rsplit_once('-').unwrap();
    assert_eq!(client.open_stream_after(Some(&format!("{stem}-0"))), 200);
    let again = client.wait_question();
    assert_eq!(first, again);
    client.answer(&again, Ok(json!({ "action": "decline" })));
    let answer = client.answer_within(id, TEST_TIMEOUT).unwrap();
    assert!(answer.get("result").is_some(), "{answer}");
    client.close();
    home.finish();
}

#[test]
fn stream_belongs_to_its_session_and_ends_with_it() {
    let home = home_of_two();
    let (client, other) = (http_client(&home), http_client(&home));
    begin_steps(&client, 1000, 20);
    let after = client.last_event_id().unwrap();
    assert_eq!(other.open_stream_after(Some(&after)), 400);
    client.break_connections();
    home.wait_until("it waits", || {
        (metric(&home, "xy_http_streams_disconnected") == 1).then_some(())
    });
    assert_eq!(client.delete(), 204);
    assert_eq!(client.open_stream_after(Some(&after)), 404);
    assert_eq!(metric(&home, "xy_http_streams_disconnected"), 0);
    home.wait_until("the call is given up", || {
        received_of(&home, "a", "notifications/cancelled").pop()
    });
    assert_echo(&other, "a");
    other.close();
    home.finish();
}

#[test]
fn shutdown_does_not_wait_for_disconnected_streams() {
    let home = home_of_two();
    let client = http_client(&home);
    begin_steps(&client, 10_000, 20);
    client.break_connections();
    home.wait_until("it waits", || {
        (metric(&home, "xy_http_streams_disconnected") == 1).then_some(())
    });
    home.finish(); // Checks that the shutdown leaves nothing behind.
}

#[test]
fn many_reconnecting_clients_get_all_events() {
    let home = home_of_two();
    let clients: Vec<McpHttp> = (0..8).map(|_| http_client(&home)).collect();
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                let id = begin_steps(client, 30, 10);
                let mut answer: Option<Value> = None;
                while answer.is_none() {
                    let status = reconnect(client);
                    assert!([200, 204].contains(&status), "{status}");
                    answer = client.answer_within(id, Duration::from_millis(40));
                    assert!(status == 200 || answer.is_some());
                }
                let steps: Vec<_> = client
                    .notifications()
                    .iter()
                    .map(|it| it["params"]["progress"].clone())
                    .collect();
                assert_eq!(steps, (2..=30).map(Value::from).collect::<Vec<_>>());
            });
        }
    });
    assert_eq!(received_of(&home, "a", "tools/call").len(), 8);
    for client in clients {
        client.close();
    }
    assert_eq!(metric(&home, "xy_http_stored_events"), 0);
    home.finish();
}
