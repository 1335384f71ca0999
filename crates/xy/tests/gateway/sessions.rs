//! HTTP sessions that outlive their daemon.

use std::fs;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Daemon, Home, McpHttp, free_port};

use crate::fixtures::{
    assert_echo, capabilities, error_code, home, http_client, ready, received_of, serve,
    serve_recorded, tools_of_servers, who,
};
use crate::support::ask;

const COUNTER: &str = "xy://a/test://counter";
const UPDATED: &str = "notifications/resources/updated";
const LISTS: [&str; 3] = ["tools", "prompts", "resources"];
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns a home whose daemons all listen on one port, with the servers `a` and `b`.
#[track_caller]
fn home_with_port(more: &str) -> (Home, Daemon) {
    let home = home();
    let listen = format!("gateway {{ listen \"127.0.0.1:{}\"; {more} }}\n", free_port());
    home.write_config("xy.kdl", &listen);
    serve_recorded(&home, "a", &[]);
    serve(&home, "b", &[]);
    let daemon = home.daemon();
    ready(&home, &["a", "b"]);
    (home, daemon)
}

/// Kills a daemon and starts the next one.
#[track_caller]
fn next_daemon(home: &Home, daemon: &Daemon) -> Daemon {
    daemon.kill9();
    let next = home.daemon();
    home.gateway_address();
    next
}

/// Opens a session with a log level and a subscription.
#[track_caller]
fn begin(home: &Home) -> McpHttp {
    let client = http_client(home);
    for (method, params) in [
        ("logging/setLevel", json!({ "level": "error" })),
        ("resources/subscribe", json!({ "uri": COUNTER })),
    ] {
        assert_eq!(client.request(method, params)["result"], json!({}), "{method}");
    }
    client
}

/// Checks that a session continues in another daemon without a visible difference.
#[track_caller]
fn assert_continues(home: &Home, client: &McpHttp, session: Option<&str>) {
    client.break_connections();
    assert_eq!(client.open_stream(), 200);
    for list in LISTS {
        client.wait_notification(&format!("notifications/{list}/list_changed"));
    }
    assert_eq!(client.session().as_deref(), session);
    assert_echo(client, "a");
    assert!(tools_of_servers(client).contains(&"a__echo".to_owned()));
    home.wait_until("the subscription is renewed", || {
        who(client, "a__who")["subscribed"] == json!(["test://counter"])
    });
    client.call_text("a__bump", json!({}));
    assert_eq!(client.wait_notification(UPDATED)["params"]["uri"], COUNTER);
}

/// Returns the status of a request in a session.
#[track_caller]
fn ping(client: &McpHttp) -> u16 {
    client.post(r#"{"jsonrpc":"2.0","id":"ping","method":"ping"}"#).status
}

#[test]
fn session_survives_a_replaced_daemon_without_refused_connections() {
    let home = home();
    serve_recorded(&home, "a", &[]);
    let first = home.daemon();
    ready(&home, &["a"]);
    let client = begin(&home);
    assert_eq!(client.open_stream(), 200);
    let (session, address) = (client.session(), home.gateway_address());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let knocking = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                TcpStream::connect(&address).expect("the stream is open");
            }
        });
        home.daemon_with(&["--replace"]);
        assert!(first.wait().success(), "{}", first.stderr());
        // The port was chosen by the system, and stays the same.
        assert_eq!(home.gateway_address(), address);
        is_over.store(true, Ordering::Relaxed);
        knocking.join().unwrap();
    });
    assert_continues(&home, &client, session.as_deref());
    client.close();
    home.finish();
}

#[test]
fn session_survives_killed_daemons() {
    let (home, mut daemon) = home_with_port("");
    let client = begin(&home);
    let session = client.session();
    for _ in 0..2 {
        daemon = next_daemon(&home, &daemon);
        assert_continues(&home, &client, session.as_deref());
    }
    client.close();
    daemon = next_daemon(&home, &daemon);
    assert_session_gone(&home, session.as_deref());
    drop(daemon);
    home.finish();
}

#[track_caller]
fn assert_session_gone(home: &Home, session: Option<&str>) {
    let client = home.mcp_http("/mcp");
    client.set_session(session);
    assert_eq!(ping(&client), 404);
}

#[test]
fn late_answer_to_a_dead_daemon_is_ignored() {
    let (home, daemon) = home_with_port("");
    let client = home.mcp_http("/mcp");
    client.initialize_with(&capabilities());
    client.start_call("a__ask_elicitation", json!({}));
    let old = client.wait_question();
    let _daemon = next_daemon(&home, &daemon);
    client.break_connections();
    // An adopted server may still have calls of the other daemon's clients.
    ask(&home, "restart", json!({ "name": "b" }));
    let call = client.start_call("b__ask_elicitation", json!({}));
    let new = client.wait_question();
    assert_ne!(old["id"], new["id"]);
    let answer = |question: &Value, name: &str| {
        let result = json!({ "action": "accept", "content": { "name": name } });
        json!({ "jsonrpc": "2.0", "id": question["id"], "result": result }).to_string()
    };
    assert_eq!(client.post(&answer(&old, "Old")).status, 202);
    assert_eq!(client.post(&answer(&new, "New")).status, 202);
    let text = client.wait_answer(call).to_string();
    assert!(text.contains("New") && !text.contains("Old"), "{text}");
    home.finish();
}

#[test]
fn killed_daemon_makes_outcome_unknown_without_retry() {
    let (home, daemon) = home_with_port("");
    let client = http_client(&home);
    let call = client.start_call("a__slow_echo", json!({ "message": "late", "ms": 600_000 }));
    let last = home.wait_until("it becomes a stream", || client.last_event_id());
    let _daemon = next_daemon(&home, &daemon);
    client.break_connections();
    assert_eq!(client.open_stream_after(Some(&last)), 200);
    let answer = client.answer_within(call, TEST_TIMEOUT).unwrap();
    assert_eq!(error_code(&answer), -32010, "{answer}");
    assert_eq!(received_of(&home, "a", "tools/call").len(), 1);
    home.finish();
}

#[test]
fn session_ends_when_its_token_changes() {
    let (home, daemon) = home_with_port("");
    let session = http_client(&home).session();
    daemon.kill9();
    let file = home.root().join("state/xy/token");
    fs::write(&file, "another-token-of-its-owner\n").unwrap();
    let daemon = home.daemon();
    assert_session_gone(&home, session.as_deref());
    let anew = http_client(&home).session();
    let _daemon = next_daemon(&home, &daemon);
    let client = home.mcp_http("/mcp");
    client.set_session(anew.as_deref());
    assert_eq!(ping(&client), 200);
    home.finish();
}

#[test]
fn sessions_of_rotated_or_removed_tokens_stay_ended() {
    let (home, daemon) = home_with_port("");
    let add = |name: &str| {
        ask(&home, "token_add", json!({ "name": name }))["token"].as_str().unwrap().to_owned()
    };
    let (removed, stays) = (add("removed"), add("stays"));
    let with = |token: &str, session: Option<&str>| {
        let client = McpHttp::new(&home.gateway_address(), "/mcp", token);
        match session {
            None => drop(client.initialize()),
            Some(_) => client.set_session(session),
        }
        client
    };
    let sessions = [home.gateway_token(), removed.clone(), stays.clone()]
        .map(|token| with(&token, None).session());
    assert_eq!(home.xy(&["token", "rotate"]).code, 0);
    ask(&home, "token_remove", json!({ "name": "removed" }));
    let check = || {
        for session in &sessions {
            let by_new_secret = with(&home.gateway_token(), session.as_deref());
            assert_eq!(ping(&by_new_secret), 404);
        }
        assert_eq!(ping(&with(&removed, sessions[1].as_deref())), 401);
        assert_eq!(ping(&with(&stays, sessions[2].as_deref())), 200);
    };
    check();
    let file = home.root().join("state/xy/http-sessions");
    home.wait_until("their records go", || {
        fs::read_to_string(&file).unwrap().matches(r#""end""#).count() == 2
    });
    let _daemon = next_daemon(&home, &daemon);
    check();
    home.finish();
}

#[test]
fn unauthenticated_session_does_not_become_a_tokens() {
    let (home, daemon) = home_with_port("auth \"none\"");
    let port = home.gateway_address();
    let anybody = McpHttp::new(&port, "/mcp", "");
    anybody.initialize();
    let kdl = format!("gateway {{ listen \"{port}\" }}\n");
    home.write_config("xy.kdl", &kdl);
    let _daemon = next_daemon(&home, &daemon);
    assert_session_gone(&home, anybody.session().as_deref());
    home.finish();
}

#[test]
fn damaged_journal_is_moved_away_and_sessions_start_anew() {
    let (home, daemon) = home_with_port("");
    let session = http_client(&home).session();
    daemon.kill9();
    let file = home.root().join("state/xy/http-sessions");
    let mut text = fs::read(&file).unwrap();
    let middle = text.len() / 2;
    text[middle] ^= 1;
    fs::write(&file, text).unwrap();
    let daemon = home.daemon();
    assert_session_gone(&home, session.as_deref());
    assert!(daemon.stderr().contains("stored HTTP sessions are discarded"), "{}", daemon.stderr());
    assert!(home.root().join("state/xy/http-sessions.damaged").exists());
    let client = http_client(&home);
    let _daemon = next_daemon(&home, &daemon);
    client.break_connections();
    assert_echo(&client, "a");
    home.expect_left("state/xy/http-sessions.damaged");
    home.finish();
}
