//! Streams over HTTP that break, and are taken up again: nothing is lost, nothing is done
//! twice.

use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Home, McpHttp};

use crate::stage::{
    capabilities, echoes, heard_of, home, home_of_two, metrics, ready, serve_noting, web,
};

/// Longer than anything here takes.
const SOON: Duration = Duration::from_secs(30);

/// Begins a call that tells of so many steps, and waits for the first.
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

/// Breaks everything, and goes on after the last event.
#[track_caller]
fn come_back(client: &McpHttp) -> u16 {
    client.break_connections();
    client.open_stream_after(client.last_event_id().as_deref())
}

/// One number of the metrics.
#[track_caller]
fn number(home: &Home, name: &str) -> u64 {
    let metrics = metrics(home);
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|it| it.parse().ok()).unwrap_or_else(|| panic!("no {name}: {metrics}"))
}

#[test]
fn a_call_survives_any_number_of_broken_connections() {
    let home = home_of_two();
    let client = web(&home);
    let id = begin_steps(&client, 60, 20);
    let mut heard = 1;
    let answer = loop {
        match come_back(&client) {
            200 => {}
            204 => break client.answer_within(id, Duration::ZERO), // There is nothing more.
            status => panic!("it was not taken up: {status}"),
        }
        if let Some(answer) = client.answer_within(id, Duration::from_millis(70)) {
            break Some(answer);
        }
    };
    assert_eq!(answer.unwrap()["result"]["content"][0]["text"], "60 steps");
    for told in client.notifications() {
        heard += 1;
        assert_eq!(told["params"]["progress"], heard, "each once, and in order");
    }
    assert_eq!(heard, 60);
    assert!(client.unclaimed_answers().is_empty(), "it is answered once");
    assert_eq!(heard_of(&home, "a", "tools/call").len(), 1, "and done once");
    client.close();
    home.finish();
}

#[test]
fn a_call_that_says_nothing_can_be_taken_up_too() {
    let home = home_of_two();
    let client = web(&home);
    let id = client.start_call("a__slow_echo", json!({ "message": "late", "ms": 3000 }));
    home.wait_until("it becomes a stream", || client.last_event_id());
    assert_eq!(come_back(&client), 200);
    let answer = client.answer_within(id, SOON).unwrap();
    assert_eq!(answer["result"]["content"][0]["text"], "late");
    assert_eq!(heard_of(&home, "a", "tools/call").len(), 1);
    client.close();
    home.finish();
}

#[test]
fn an_answer_that_nobody_was_there_for_waits_to_be_fetched() {
    let home = home_of_two();
    let client = web(&home);
    let id = begin_steps(&client, 5, 400);
    client.break_connections();
    home.wait_until("it is answered", || {
        (number(&home, "xy_http_stored_events") >= 5).then_some(())
    });
    let after = client.last_event_id();
    assert_eq!(client.open_stream_after(after.as_deref()), 200);
    let answer = client.answer_within(id, SOON).unwrap();
    assert_eq!(answer["result"]["content"][0]["text"], "5 steps");
    client.close();
    assert_eq!(number(&home, "xy_http_stored_events"), 0);
    assert_eq!(number(&home, "xy_http_stored_bytes"), 0);
    home.finish();
}

#[test]
fn a_question_of_a_server_reaches_a_client_that_was_away() {
    let home = home();
    serve_noting(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    let client = home.mcp_http("/mcp");
    client.initialize_with(&capabilities());
    let id = client.start_call("a__ask_elicitation", json!({ "message": "who?" }));
    let first = client.wait_question();
    // It was heard, but the answer cannot be sent, and the place is not noted.
    client.break_connections();
    let after = client.last_event_id().unwrap();
    let (stem, _) = after.rsplit_once('-').unwrap();
    assert_eq!(client.open_stream_after(Some(&format!("{stem}-0"))), 200);
    let again = client.wait_question();
    assert_eq!(first, again);
    client.answer(&again, Ok(json!({ "action": "decline" })));
    let answer = client.answer_within(id, SOON).unwrap();
    assert!(answer.get("result").is_some(), "{answer}");
    client.close();
    home.finish();
}

#[test]
fn a_stream_is_for_its_session_only_and_ends_with_it() {
    let home = home_of_two();
    let (client, other) = (web(&home), web(&home));
    begin_steps(&client, 1000, 20);
    let after = client.last_event_id().unwrap();
    assert_eq!(other.open_stream_after(Some(&after)), 400);
    client.break_connections();
    home.wait_until("it waits", || (number(&home, "xy_http_streams_apart") == 1).then_some(()));
    assert_eq!(client.delete(), 204);
    assert_eq!(client.open_stream_after(Some(&after)), 404);
    assert_eq!(number(&home, "xy_http_streams_apart"), 0);
    home.wait_until("the call is given up", || {
        heard_of(&home, "a", "notifications/cancelled").pop()
    });
    echoes(&other, "a");
    other.close();
    home.finish();
}

#[test]
fn a_daemon_that_ends_does_not_wait_for_streams_that_nobody_reads() {
    let home = home_of_two();
    let client = web(&home);
    begin_steps(&client, 10_000, 20);
    client.break_connections();
    home.wait_until("it waits", || (number(&home, "xy_http_streams_apart") == 1).then_some(()));
    home.finish(); // Which shuts it down, and looks for what is left.
}

#[test]
fn many_clients_that_come_and_go_all_hear_everything() {
    let home = home_of_two();
    let clients: Vec<McpHttp> = (0..8).map(|_| web(&home)).collect();
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                let id = begin_steps(client, 30, 10);
                let mut answer: Option<Value> = None;
                while answer.is_none() {
                    let status = come_back(client);
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
    assert_eq!(heard_of(&home, "a", "tools/call").len(), 8);
    for client in clients {
        client.close();
    }
    assert_eq!(number(&home, "xy_http_stored_events"), 0);
    home.finish();
}
