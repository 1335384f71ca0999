//! Remote servers that are slow, break off, lose sessions, refuse or send garbage: each has a clear
//! state and error, and affects no other server.

use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::remote::{Behaviour, Remote, Tls, To};
use xy_testkit::{Home, McpClient, free_port};

use crate::fixtures::{
    assert_echo, capable_client, error_code, error_message, home, http_client, input_log_file,
    linger, local_client, ready, received_of, serve, serve_with,
};

const REMOTE: &str = "far";

/// Returns a home with a remote server and a local one.
fn home_with(remote: &Remote) -> Home {
    let home = home();
    home.write_config("servers/far.kdl", &remote.kdl());
    serve(&home, "near", &[]);
    home.daemon();
    ready(&home, &["near"]);
    home
}

fn running(remote: &Remote) -> Home {
    let home = home_with(remote);
    ready(&home, &[REMOTE]);
    home
}

fn message(message: &str) -> Value {
    json!({ "message": message })
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_default()
}

/// Returns the status of the remote server.
fn status(home: &Home) -> Value {
    home.call("status", json!({ "name": REMOTE })).unwrap()
}

#[test]
fn remote_server_is_served_like_any_other() {
    let remote = Remote::start();
    let home = running(&remote);
    for client in [&local_client(&home) as &McpClient, &http_client(&home)] {
        assert!(client.tool_names().contains(&"far__echo".to_owned()));
        assert_eq!(text(&client.call("far__echo", message("a"))), "a");
        assert_eq!(text(&client.call("far__stream", message("b"))), "b");
        let log = client.wait_notification("notifications/message");
        assert_eq!(log["params"]["data"], "b");
        let large = client.call("far__large", json!({ "bytes": 1 << 20 }));
        assert_eq!(text(&large).len(), 1 << 20);
    }
    assert_eq!(remote.begun(), 1, "all clients share one session");
    let of_calls = remote.heads().into_iter().filter(|head| head.message == "tools/call");
    for head in of_calls {
        assert_eq!(head.headers["mcp-protocol-version"], "2025-11-25");
        assert_eq!(head.headers["mcp-session-id"], "session-1");
        assert_eq!(head.headers["accept"], "application/json, text/event-stream");
    }
    let status = status(&home);
    assert_eq!((&status["pid"], &status["state"]), (&Value::Null, &json!("running")));
    assert_eq!(home.xy(&["stop", REMOTE]).code, 0);
    home.wait_until("its session is ended", || remote.sessions() == 0);
    home.finish();
}

#[test]
fn request_on_a_call_stream_goes_to_its_caller() {
    let remote = Remote::start();
    let home = running(&remote);
    let (one, other) = (capable_client(&home), capable_client(&home));
    let waiting = other.start_call("far__wait", message("other"));
    let asking = one.start_call("far__ask", message("one"));
    let question = one.wait_question();
    assert_eq!(question["params"]["message"], "one");
    one.answer(&question, Ok(json!({ "action": "accept", "content": {} })));
    assert_eq!(text(&one.wait_answer(asking)), "one");
    remote.let_go();
    assert_eq!(text(&other.wait_answer(waiting)), "other");
    assert_eq!(remote.answers().len(), 1);
    home.finish();
}

#[test]
fn lost_session_is_renewed_and_no_call_runs_twice() {
    let remote = Remote::start();
    let home = running(&remote);
    let client = local_client(&home);
    assert_eq!(text(&client.call("far__echo", message("1"))), "1");
    remote.forget();
    assert_eq!(text(&client.call("far__echo", message("2"))), "2");
    assert_eq!(remote.begun(), 2);
    remote.forget();
    // More calls than may be open at once: they must not block the handshake.
    let calls: Vec<u64> = (3..403)
        .map(|number| client.start_call("far__echo", message(&number.to_string())))
        .collect();
    for (number, id) in (3..403).zip(calls) {
        assert_eq!(text(&client.wait_answer(id)), number.to_string());
    }
    let done: Vec<u32> = remote.done().iter().map(|done| done.parse().unwrap()).collect();
    assert_eq!(done, (1..403).collect::<Vec<_>>(), "each was done once, in order");
    assert_eq!(remote.begun(), 3);
    home.finish();
}

#[test]
fn queued_calls_survive_repeatedly_lost_sessions() {
    let remote = Remote::start();
    let home = running(&remote);
    let client = local_client(&home);
    assert_eq!(text(&client.call("far__echo", message("0"))), "0");
    // All calls that find the session lost wait for the next one.
    remote.set_behaviour(To::Greetings, Behaviour::Waits);
    remote.forget();
    let first = client.start_call("far__echo", message("1"));
    let greetings = || remote.heads().iter().filter(|it| it.message == "initialize").count();
    home.wait_until("the session is being renewed", || greetings() == 2);
    let calls: Vec<u64> = (2..52)
        .map(|number| client.start_call("far__echo", message(&number.to_string())))
        .collect();
    home.wait_until("the calls wait", || status(&home)["parked"] == 50);
    // The calls are sent in order, and the session is lost twice more among them.
    remote.forget_after(&[10, 15]);
    remote.let_go();
    for (number, id) in (1..52).zip([&[first][..], &calls].concat()) {
        let answer = client.wait_answer(id);
        assert_eq!(text(&answer), number.to_string(), "{answer}");
    }
    let done: Vec<u32> = remote.done().iter().map(|done| done.parse().unwrap()).collect();
    assert_eq!(done, (0..52).collect::<Vec<_>>(), "each was done once, in order");
    assert_eq!(remote.begun(), 4, "one session at first, and one per lost session");
    home.finish();
}

#[test]
fn broken_stream_is_resumed_or_has_an_unknown_outcome() {
    let remote = Remote::start();
    let home = running(&remote);
    let client = local_client(&home);
    assert_eq!(text(&client.call("far__cut", message("1"))), "1");
    let resumed =
        remote.heads().into_iter().find(|head| head.headers.contains_key("last-event-id"));
    assert_eq!(resumed.unwrap().headers["last-event-id"], "event-1");
    let lost = client.call("far__lost", message("2"));
    assert_eq!(error_code(&lost), -32010, "{lost}");
    assert!(error_message(&lost).contains("outcome unknown"), "{lost}");
    assert_eq!(remote.done(), ["1", "2"], "each was done once");
    assert_echo(&client, "near");
    home.finish();
}

#[test]
fn broken_call_has_an_unknown_outcome_and_the_server_stays() {
    let remote = Remote::start();
    let home = running(&remote);
    let client = local_client(&home);
    remote.set_behaviour(To::Calls, Behaviour::Disconnects);
    let lost = client.call("far__echo", message("1"));
    assert_eq!(error_code(&lost), -32010, "{lost}");
    remote.set_behaviour(To::Calls, Behaviour::Normal);
    assert_eq!(text(&client.call("far__echo", message("2"))), "2");
    assert_eq!(status(&home)["state"], "running");
    home.finish();
}

#[test]
fn each_refusal_of_a_call_has_its_own_error() {
    let remote = Remote::start();
    let home = running(&remote);
    let client = local_client(&home);
    let status_of = |status, headers: &[(&str, &str)]| {
        let own = |text: &str| text.to_owned();
        Behaviour::Status(
            status,
            headers.iter().map(|(name, value)| (own(name), own(value))).collect(),
        )
    };
    for (behaviour, expected, says) in [
        (status_of(403, &[]), -32009, "403"),
        (status_of(429, &[("retry-after", "7")]), -32008, "try again in 7 s"),
        (status_of(400, &[]), -32603, "400"),
        (status_of(500, &[]), -32010, "500"),
        (status_of(503, &[]), -32010, "503"),
        (status_of(202, &[]), -32010, "202"),
        (Behaviour::BreaksOff, -32010, "broke"),
        (Behaviour::Responds("{".to_owned()), -32603, "no response to this request"),
        (
            Behaviour::Responds(format!("[{}1]", "1,".repeat(100_000))),
            -32603,
            "no response to this request",
        ),
        (
            Behaviour::Responds(r#"{"jsonrpc":"2.0","id":99999,"result":{}}"#.to_owned()),
            -32603,
            "no response to this request",
        ),
    ] {
        remote.set_behaviour(To::Calls, behaviour.clone());
        let refused = client.call("far__echo", message("1"));
        assert_eq!(error_code(&refused), expected, "{behaviour:?}: {refused}");
        assert!(error_message(&refused).contains(says), "{behaviour:?}: {refused}");
        assert!(error_message(&refused).contains("far"), "{refused}");
        assert_echo(&client, "near");
    }
    let log = home.xy(&["logs", REMOTE]).stdout;
    assert!(log.lines().any(|line| line == "[err] {"), "nonsense is in its log: {log}");
    remote.set_behaviour(To::Calls, Behaviour::Normal);
    assert_eq!(text(&client.call("far__echo", message("2"))), "2");
    assert_eq!(remote.done(), ["2"]);
    assert_eq!(status(&home)["state"], "running");
    home.finish();
}

#[test]
fn revoked_access_fails_the_call_and_the_server() {
    let remote = Remote::start();
    let home = running(&remote);
    let client = local_client(&home);
    remote.set_behaviour(To::Everything, Behaviour::Status(401, Vec::new()));
    let refused = client.call("far__echo", message("1"));
    assert_eq!(error_code(&refused), -32009, "{refused}");
    assert!(error_message(&refused).contains("check `headers`"), "{refused}");
    let failed = home.wait_for_state(REMOTE, "failed");
    assert!(failed["reason"].as_str().unwrap().contains("401"), "{failed}");
    home.wait_until("its tools are gone", || {
        !client.tool_names().contains(&"far__echo".to_owned())
    });
    assert_echo(&client, "near");
    remote.set_behaviour(To::Everything, Behaviour::Normal);
    assert_eq!(home.xy(&["start", REMOTE]).code, 0);
    assert_eq!(text(&client.call("far__echo", message("2"))), "2");
    home.finish();
}

#[test]
fn open_call_finishes_at_a_server_that_refuses_new_ones() {
    // True if the refusal makes xy give the server up.
    for (status_code, is_given_up) in [(401, true), (403, false)] {
        let remote = Remote::start();
        let home = running(&remote);
        let (one, other) = (local_client(&home), local_client(&home));
        let under_way = one.start_call("far__wait", message("1"));
        home.wait_until("the call is open", || remote.done() == ["1"]);
        remote.set_behaviour(To::Everything, Behaviour::Status(status_code, Vec::new()));
        let refused = other.call("far__echo", message("2"));
        assert_eq!(error_code(&refused), -32009, "{refused}");
        linger(); // By then a server without open calls would have failed.
        remote.let_go();
        let answer = one.wait_answer(under_way);
        assert_eq!(text(&answer), "1", "{status_code}: {answer}");
        let state = if is_given_up { "failed" } else { "running" };
        home.wait_for_state(REMOTE, state);
        home.finish();
    }
}

#[test]
fn open_call_at_a_refusing_server_times_out() {
    let remote = Remote::start();
    let home = running(&remote);
    let (one, other) = (local_client(&home), local_client(&home));
    let under_way = one.start_call("far__wait", message("1"));
    home.wait_until("the call is open", || remote.done() == ["1"]);
    remote.set_behaviour(To::Everything, Behaviour::Status(401, Vec::new()));
    let refused = other.call("far__echo", message("2"));
    assert_eq!(error_code(&refused), -32009, "{refused}");
    // The call is never released.
    let lost = one.wait_answer(under_way);
    assert_eq!(error_code(&lost), -32010, "{lost}");
    assert!(error_message(&lost).contains("outcome unknown"), "{lost}");
    home.wait_for_state(REMOTE, "failed");
    home.finish();
}

#[test]
fn non_mcp_server_fails_at_once_with_a_reason() {
    for (behaviour, says) in [
        (Behaviour::Page, "text/html"),
        (Behaviour::Status(401, Vec::new()), "401"),
        (Behaviour::Status(404, Vec::new()), "404"),
        (Behaviour::Status(405, Vec::new()), "405"),
        (
            Behaviour::Status(307, vec![("location".into(), "http://127.0.0.2:1/mcp".into())]),
            "127.0.0.2",
        ),
        (
            Behaviour::Status(307, vec![("location".into(), "/mcp".into())]),
            "redirects more than 5 times",
        ),
        (Behaviour::Responds("[]".to_owned()), "no response"),
        (Behaviour::Responds("nonsense".to_owned()), "no response"),
    ] {
        let remote = Remote::start();
        remote.set_behaviour(To::Everything, behaviour.clone());
        let home = home_with(&remote);
        let failed = home.wait_for_state(REMOTE, "failed");
        assert!(failed["reason"].as_str().unwrap().contains(says), "{behaviour:?}: {failed}");
        assert_echo(&local_client(&home), "near");
        home.finish();
    }
}

#[test]
fn missing_server_is_unreachable_until_it_exists() {
    let remote = Remote::start();
    let port = remote.port();
    let kdl = remote.kdl();
    drop(remote);
    let home = home();
    home.write_config("servers/far.kdl", &kdl);
    serve(&home, "near", &[]);
    home.daemon();
    ready(&home, &["near"]);
    let tried = home.wait_for_state(REMOTE, "restarting");
    assert_eq!(tried["health"], "unreachable", "{tried}");
    let client = local_client(&home);
    // No client waits for this server.
    assert!(client.tool_names().contains(&"near__echo".to_owned()));
    assert_echo(&client, "near");
    let remote = Remote::start_at(port);
    ready(&home, &[REMOTE]);
    assert_eq!(text(&client.call("far__echo", message("1"))), "1");
    drop(remote);
    let waits = client.start_call("far__look", message("2"));
    let gone = home.wait_until("it is unreachable", || {
        let status = status(&home);
        (status["health"] == "unreachable").then_some(status)
    });
    assert_eq!(gone["state"], "restarting", "{gone}");
    assert_echo(&client, "near");
    let remote = Remote::start_at(port);
    assert_eq!(text(&client.wait_answer(waits)), "2");
    assert_eq!(remote.done(), ["2"]);
    home.finish();
}

#[test]
fn temporary_failure_is_retried() {
    for behaviour in [
        Behaviour::Status(500, Vec::new()),
        Behaviour::Status(429, Vec::new()),
        Behaviour::Disconnects,
        Behaviour::BreaksOff,
    ] {
        let remote = Remote::start();
        remote.set_behaviour(To::Everything, behaviour.clone());
        let home = home_with(&remote);
        let tried = home.wait_for_state(REMOTE, "restarting");
        assert_eq!(tried["health"], "unreachable", "{behaviour:?}: {tried}");
        remote.set_behaviour(To::Everything, Behaviour::Normal);
        ready(&home, &[REMOTE]);
        assert_eq!(text(&local_client(&home).call("far__echo", message("1"))), "1");
        home.finish();
    }
}

#[test]
fn silent_server_delays_only_its_own_callers() {
    let remote = Remote::start();
    let home = running(&remote);
    let client = local_client(&home);
    let is_listed = || client.tool_names().contains(&"far__echo".to_owned()).then_some(());
    home.wait_until("its tools are known", is_listed);
    remote.set_behaviour(To::Everything, Behaviour::Silent);
    let waiting: Vec<u64> = (0..50).map(|_| client.start_call("far__echo", message("1"))).collect();
    for _ in 0..20 {
        assert_echo(&client, "near");
        assert!(client.tool_names().contains(&"far__echo".to_owned()));
    }
    for id in &waiting {
        client.cancel(&json!(id));
    }
    assert_echo(&client, "near");
    assert_eq!(home.xy(&["stop", REMOTE]).code, 0);
    home.finish();
}

#[test]
fn unrelated_stream_is_reopened_after_a_break() {
    let remote = Remote::start();
    let home = running(&remote);
    let client = local_client(&home);
    home.wait_until("the stream is open", || remote.listeners() == 1);
    let lists = || remote.heads().iter().filter(|head| head.message == "tools/list").count();
    home.wait_until("its tools are asked for", || lists() == 1);
    remote.hang_up();
    home.wait_until("the stream is open again", || remote.listeners() == 1);
    remote.tell(&json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" }));
    home.wait_until("its tools are asked for again", || lists() >= 2);
    assert_eq!(text(&client.call("far__echo", message("1"))), "1");
    home.finish();
}

#[test]
fn isolated_clients_have_their_own_sessions() {
    let remote = Remote::start();
    let home = home();
    home.write_config("servers/far.kdl", &format!("{}isolation \"client\"\n", remote.kdl()));
    home.daemon();
    let clients = [local_client(&home), local_client(&home), local_client(&home)];
    for client in &clients {
        assert_eq!(text(&client.call("far__echo", message("1"))), "1");
    }
    assert_eq!(remote.sessions(), 3);
    drop(clients);
    home.wait_until("all sessions are ended", || remote.sessions() == 0);
    home.finish();
}

#[test]
fn configured_headers_are_always_sent_and_never_shown() {
    let remote = Remote::start();
    let home = home();
    let secret = "s3cr3t-value";
    let kdl = format!(
        "{}headers {{ Authorization \"Bearer {secret}\"; X-Team \"{secret}\" }}\n",
        remote.kdl()
    );
    home.write_config("servers/far.kdl", &kdl);
    home.daemon();
    ready(&home, &[REMOTE]);
    let client = local_client(&home);
    assert_eq!(text(&client.call("far__stream", message("1"))), "1");
    remote.forget();
    assert_eq!(text(&client.call("far__echo", message("2"))), "2");
    for head in remote.heads() {
        assert_eq!(head.headers["authorization"], format!("Bearer {secret}"), "{head:?}");
        assert_eq!(head.headers["x-team"], secret, "{head:?}");
    }
    for shown in [
        &["status", REMOTE][..],
        &["list"],
        &["list", "--json"],
        &["status", REMOTE, "--json"],
        &["logs", REMOTE],
        &["info"],
        &["check"],
    ] {
        let ran = home.xy(shown);
        assert!(!ran.stdout.contains(secret) && !ran.stderr.contains(secret), "{shown:?}");
    }
    home.finish();
}

#[test]
fn replaced_daemon_starts_its_own_session() {
    let remote = Remote::start();
    let home = running(&remote);
    home.daemon_with(&["--replace"]);
    ready(&home, &[REMOTE, "near"]);
    assert_eq!(text(&local_client(&home).call("far__echo", message("1"))), "1");
    home.wait_until("only the new session is left", || remote.sessions() == 1);
    home.finish();
}

#[test]
fn tls_server_must_be_trusted_by_the_machine() {
    let remote = Remote::start();
    let tls = Tls::before(remote.port(), "localhost");
    let bare = home();
    let certificate = bare.root().join("harness/trusted.pem");
    tls.write_certificate(&certificate);
    let kdl = |host: &str| format!("url \"https://{host}:{}/mcp\"\n", tls.port());
    let home = bare.with_env("SSL_CERT_FILE", certificate.to_str().unwrap());
    home.write_config("servers/far.kdl", &kdl("localhost"));
    home.write_config("servers/other.kdl", &kdl("127.0.0.1"));
    home.daemon();
    ready(&home, &[REMOTE]);
    let client = local_client(&home);
    assert_eq!(text(&client.call("far__echo", message("1"))), "1");
    let large = client.call("far__large", json!({ "bytes": 1 << 20 }));
    assert_eq!(text(&large).len(), 1 << 20);
    assert_eq!(text(&client.call("far__stream", message("2"))), "2");
    // The certificate is for another name.
    let other = home.wait_until("it is not trusted", || {
        let status = home.call("status", json!({ "name": "other" })).unwrap();
        (status["health"] == "unreachable").then_some(status)
    });
    assert!(other["reason"].as_str().unwrap().contains("certificate"), "{other}");
    home.finish();
}

#[test]
fn self_signed_ca_certificate_is_refused_with_a_hint() {
    let remote = Remote::start();
    let tls = Tls::of_authority_before(remote.port(), "localhost");
    let bare = home();
    let certificate = bare.root().join("harness/trusted.pem");
    tls.write_certificate(&certificate);
    let home = bare.with_env("SSL_CERT_FILE", certificate.to_str().unwrap());
    let kdl = format!("url \"https://localhost:{}/mcp\"\n", tls.port());
    home.write_config("servers/far.kdl", &kdl);
    home.daemon();
    let status = home.wait_until("it is not trusted", || {
        let status = home.call("status", json!({ "name": REMOTE })).unwrap();
        (status["health"] == "unreachable").then_some(status)
    });
    let reason = status["reason"].as_str().unwrap();
    assert!(reason.contains("basicConstraints=critical,CA:FALSE"), "{reason}");
    home.finish();
}

#[test]
fn sse_server_at_an_http_setting_fails_with_a_hint() {
    let home = home();
    let port = free_port().to_string();
    let kdl = home.kdl_command("xy-test-fixture", &["--sse", &port]);
    let kdl = format!("{kdl}transport \"sse\"\nport {port}\n");
    home.write_config("servers/older.kdl", &kdl);
    home.daemon();
    ready(&home, &["older"]);
    // A second file declares the newer transport for this server.
    home.write_config("servers/far.kdl", &format!("url \"http://127.0.0.1:{port}/sse\"\n"));
    home.xy(&["reload"]);
    let failed = home.wait_for_state(REMOTE, "failed");
    let reason = failed["reason"].as_str().unwrap();
    assert!(reason.contains("transport \"sse\""), "{reason}");
    assert!(reason.contains("refused `initialize`"), "{reason}");
    home.finish();
}

#[test]
fn authentication_challenge_is_shown_without_the_token() {
    let challenge = r#"Bearer realm="far", error="invalid_token", error_description="s3cret is over", scope="a b""#;
    let headers = vec![("www-authenticate".to_owned(), challenge.to_owned())];
    for (more, missing) in [
        ("", "no `Authorization` is in its `headers`"),
        (
            "headers { Authorization \"Bearer s3cret\" }\n",
            "the `Authorization` in its `headers` was refused",
        ),
    ] {
        let remote = Remote::start();
        remote.set_behaviour(To::Everything, Behaviour::Status(401, headers.clone()));
        let home = home();
        home.write_config("servers/far.kdl", &format!("{}{more}", remote.kdl()));
        home.daemon();
        let failed = home.wait_for_state(REMOTE, "failed");
        let reason = failed["reason"].as_str().unwrap();
        for says in ["401", "invalid_token", "scope=\"a b\"", missing] {
            assert!(reason.contains(says), "{says}: {reason}");
        }
        assert_eq!(reason.contains("s3cret"), more.is_empty(), "{reason}");
        home.finish();
    }
}

#[test]
fn request_of_a_lost_session_is_cancelled() {
    let remote = Remote::start();
    let home = running(&remote);
    let (client, other) = (capable_client(&home), local_client(&home));
    client.start_call("far__ask", message("1"));
    let question = client.wait_question();
    remote.forget();
    assert_eq!(text(&other.call("far__echo", message("2"))), "2");
    let taken_back = client.wait_notification("notifications/cancelled");
    assert_eq!(taken_back["params"]["requestId"], question["id"]);
    client.answer(&question, Ok(json!({ "action": "accept", "content": {} })));
    assert_echo(&client, "near");
    assert_eq!(text(&client.call("far__echo", message("3"))), "3");
    assert_eq!(remote.answers(), Vec::<Value>::new());
    home.finish();
}

#[test]
fn lost_session_at_a_silent_server_makes_it_unreachable() {
    let remote = Remote::start();
    let home = home();
    home.write_config("servers/far.kdl", &format!("{}ready {{ within \"1s\" }}\n", remote.kdl()));
    home.daemon();
    ready(&home, &[REMOTE]);
    let client = local_client(&home);
    assert_eq!(text(&client.call("far__echo", message("1"))), "1");
    remote.set_behaviour(To::Calls, Behaviour::Status(404, Vec::new()));
    remote.set_behaviour(To::Greetings, Behaviour::Silent);
    let waits = client.start_call("far__echo", message("2"));
    let gone = home.wait_until("it is unreachable", || {
        let status = status(&home);
        (status["health"] == "unreachable").then_some(status)
    });
    assert!(gone["reason"].as_str().unwrap().contains("initialize"), "{gone}");
    remote.set_behaviour(To::Calls, Behaviour::Normal);
    remote.set_behaviour(To::Greetings, Behaviour::Normal);
    ready(&home, &[REMOTE]);
    assert_eq!(text(&client.wait_answer(waits)), "2", "no earlier attempt was executed");
    assert_eq!(text(&client.call("far__echo", message("3"))), "3");
    assert_eq!(remote.done(), ["1", "2", "3"]);
    home.finish();
}

#[test]
fn redirect_within_the_origin_is_followed() {
    let remote = Remote::start();
    let home = home();
    home.write_config("servers/far.kdl", &remote.kdl().replace("/mcp", "/moved"));
    home.daemon();
    ready(&home, &[REMOTE]);
    let client = local_client(&home);
    assert_eq!(text(&client.call("far__echo", message("1"))), "1");
    assert_eq!(text(&client.call("far__cut", message("2"))), "2");
    assert_eq!(remote.done(), ["1", "2"]);
    home.finish();
}

#[test]
fn call_over_its_time_limit_is_cancelled_with_a_reason() {
    let remote = Remote::start();
    let home = home();
    let limits = "calls { idle \"2s\"; within \"1h\" }\n";
    home.write_config("servers/far.kdl", &format!("{}{limits}", remote.kdl()));
    let input_log = input_log_file(&home, "near");
    serve_with(
        &home,
        "near",
        &["--input-log", input_log.to_str().unwrap()],
        "calls { within \"2s\" }\n",
    );
    home.daemon();
    ready(&home, &[REMOTE, "near"]);
    let client = local_client(&home);
    let message_of = |head: &xy_testkit::remote::Head| head.message == "notifications/cancelled";
    for (tool, rule) in [("far__wait", "idle"), ("near__never", "within")] {
        let late = client.call(tool, message("1"));
        assert_eq!(error_code(&late), -32007, "{late}");
        assert!(
            error_message(&late).contains(rule) && error_message(&late).contains("2s"),
            "{late}"
        );
    }
    home.wait_until("both servers get the cancellation", || {
        received_of(&home, "near", "notifications/cancelled").len() == 1
            && remote.heads().iter().any(message_of)
    });
    assert_echo(&client, "near");
    assert_eq!(text(&client.call("far__echo", message("2"))), "2");
    home.finish();
}

#[test]
fn server_without_a_stream_keeps_its_session() {
    let remote = Remote::start();
    remote.offer_no_stream();
    let home = running(&remote);
    let client = local_client(&home);
    let listened = || remote.heads().iter().any(|head| head.method == "GET");
    home.wait_until("xy has tried to open the stream", listened);
    for number in 0..5 {
        assert_eq!(
            text(&client.call("far__echo", message(&number.to_string()))),
            number.to_string()
        );
    }
    assert_eq!((remote.begun(), status(&home)["state"].as_str()), (1, Some("running")));
    home.finish();
}

#[test]
fn json_rpc_body_with_status_404_is_a_response() {
    let remote = Remote::start();
    let home = running(&remote);
    let client = local_client(&home);
    remote
        .set_behaviour(To::Calls, Behaviour::Status(404, vec![("x-echo-id".into(), "yes".into())]));
    for _ in 0..8 {
        let answer = client.call("far__echo", message("1"));
        assert_eq!(error_message(&answer), "no such thing", "{answer}");
    }
    assert_eq!((remote.begun(), status(&home)["state"].as_str()), (1, Some("running")));
    let calls = remote.heads().iter().filter(|head| head.message == "tools/call").count();
    assert_eq!(calls, 8, "each was sent once");
    home.finish();
}

#[test]
fn call_cancelled_during_session_renewal_is_never_sent() {
    let remote = Remote::start();
    let home = running(&remote);
    let client = local_client(&home);
    remote.forget();
    remote.set_behaviour(To::Greetings, Behaviour::Waits);
    let id = client.start_call("far__echo", message("cancelled"));
    home.wait_until("the session is being renewed", || {
        remote.heads().iter().filter(|head| head.message == "initialize").count() == 2
    });
    client.cancel(&json!(id));
    assert_echo(&client, "near");
    remote.let_go();
    let answer = client.call("far__echo", message("wanted"));
    assert_eq!(text(&answer), "wanted", "{answer}");
    assert_eq!(remote.done(), ["wanted"]);
    home.finish();
}

#[test]
fn answers_of_one_client_do_not_wait_for_another() {
    let remote = Remote::start();
    let home = running(&remote);
    let (slow, quick) = (capable_client(&home), capable_client(&home));
    remote.set_behaviour(To::Answers, Behaviour::Silent);
    slow.start_call("far__ask", message("slow"));
    let question = slow.wait_question();
    slow.answer(&question, Ok(json!({ "action": "accept", "content": {} })));
    home.wait_until("the answer is not accepted", || {
        remote.heads().iter().any(|head| head.method == "POST" && head.message.is_empty())
    });
    remote.set_behaviour(To::Answers, Behaviour::Normal);
    let call = quick.start_call("far__ask", message("quick"));
    let question = quick.wait_question();
    quick.answer(&question, Ok(json!({ "action": "accept", "content": {} })));
    assert_eq!(text(&quick.wait_answer(call)), "quick");
    let log = home.xy(&["logs", REMOTE]).stdout;
    assert!(!log.contains("a message was lost"), "the other is still on its way: {log}");
    home.finish();
}

#[test]
fn connections_to_one_server_are_limited() {
    let remote = Remote::start();
    let home = running(&remote);
    let clients = [local_client(&home), local_client(&home)];
    let calls: Vec<_> = (0..400)
        .map(|number| clients[number % 2].start_call("far__wait", message(&number.to_string())))
        .collect();
    home.wait_until("as many as may be are there", || remote.done().len() == 256);
    assert_echo(&clients[0], "near");
    // The calls, the unrelated stream, and one notification.
    assert!(remote.connections() <= 256 + 2, "{}", remote.connections());
    remote.let_go();
    for (number, id) in calls.into_iter().enumerate() {
        assert_eq!(text(&clients[number % 2].wait_answer(id)), number.to_string());
    }
    assert_eq!(remote.done().len(), 400);
    home.finish();
}

#[test]
fn unfinished_responses_share_a_size_limit() {
    const EACH: usize = 30 << 20;
    let remote = Remote::start();
    let home = running(&remote);
    let client = local_client(&home);
    remote.set_behaviour(To::Calls, Behaviour::Stalls(EACH));
    // Four responses fit into 128 MiB.
    let calls: Vec<u64> = (0..5).map(|_| client.start_call("far__echo", message("1"))).collect();
    let refused = home.wait_until("a call is refused", || {
        let has_received = |id: &u64| client.answer_within(*id, Duration::from_millis(10));
        calls.iter().find_map(has_received)
    });
    assert_eq!(error_code(&refused), -32010, "{refused}");
    assert!(error_message(&refused).contains("large and unfinished"), "{refused}");
    assert_echo(&client, "near");
    home.finish();
}
