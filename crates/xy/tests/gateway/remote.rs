//! Servers somewhere else that are slow, break off, forget, refuse and talk nonsense: each a
//! clear state and a clear error, and never anybody else's trouble.

use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::remote::{Mood, Remote, Tls, To};
use xy_testkit::{Home, McpClient, free_port};

use crate::stage::{
    capable, code, diary_file, echoes, heard_of, home, linger, local, ready, serve, serve_with,
    web, words,
};

const REMOTE: &str = "far";

/// A home with a remote server and one that is here.
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

fn say(message: &str) -> Value {
    json!({ "message": message })
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_default()
}

/// What `status` says of the remote server.
fn status(home: &Home) -> Value {
    home.call("status", json!({ "name": REMOTE })).unwrap()
}

#[test]
fn a_remote_server_is_served_like_any_other() {
    let remote = Remote::start();
    let home = running(&remote);
    for client in [&local(&home) as &McpClient, &web(&home)] {
        assert!(client.tool_names().contains(&"far__echo".to_owned()));
        assert_eq!(text(&client.call("far__echo", say("a"))), "a");
        assert_eq!(text(&client.call("far__stream", say("b"))), "b");
        let log = client.wait_notification("notifications/message");
        assert_eq!(log["params"]["data"], "b");
        let large = client.call("far__large", json!({ "bytes": 1 << 20 }));
        assert_eq!(text(&large).len(), 1 << 20);
    }
    assert_eq!(remote.begun(), 1, "one session for all");
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
fn a_question_asked_during_a_call_goes_to_whoever_called_though_others_call_too() {
    let remote = Remote::start();
    let home = running(&remote);
    let (one, other) = (capable(&home), capable(&home));
    let waiting = other.start_call("far__wait", say("other"));
    let asking = one.start_call("far__ask", say("one"));
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
fn a_forgotten_session_is_begun_again_and_nothing_is_done_twice() {
    let remote = Remote::start();
    let home = running(&remote);
    let client = local(&home);
    assert_eq!(text(&client.call("far__echo", say("1"))), "1");
    remote.forget();
    assert_eq!(text(&client.call("far__echo", say("2"))), "2");
    assert_eq!(remote.begun(), 2);
    remote.forget();
    // More than may be under way at a time: they must not keep the greeting out.
    let calls: Vec<u64> =
        (3..403).map(|number| client.start_call("far__echo", say(&number.to_string()))).collect();
    for (number, id) in (3..403).zip(calls) {
        assert_eq!(text(&client.wait_answer(id)), number.to_string());
    }
    let done: Vec<u32> = remote.done().iter().map(|done| done.parse().unwrap()).collect();
    assert_eq!(done, (1..403).collect::<Vec<_>>(), "each was done once, in order");
    assert_eq!(remote.begun(), 3);
    home.finish();
}

#[test]
fn calls_that_are_lined_up_are_not_stranded_by_a_second_greeting() {
    let remote = Remote::start();
    let home = running(&remote);
    let client = local(&home);
    assert_eq!(text(&client.call("far__echo", say("0"))), "0");
    // Of those who find the session forgotten, everybody waits for the next.
    remote.mood(To::Greetings, Mood::Waits);
    remote.forget();
    let first = client.start_call("far__echo", say("1"));
    let greetings = || remote.heads().iter().filter(|it| it.message == "initialize").count();
    home.wait_until("it is greeted again", || greetings() == 2);
    let calls: Vec<u64> =
        (2..52).map(|number| client.start_call("far__echo", say(&number.to_string()))).collect();
    home.wait_until("they wait", || status(&home)["parked"] == 50);
    // They go in a row, in the middle of which it forgets twice more.
    remote.forget_after(&[10, 15]);
    remote.let_go();
    for (number, id) in (1..52).zip([&[first][..], &calls].concat()) {
        let answer = client.wait_answer(id);
        assert_eq!(text(&answer), number.to_string(), "{answer}");
    }
    let done: Vec<u32> = remote.done().iter().map(|done| done.parse().unwrap()).collect();
    assert_eq!(done, (0..52).collect::<Vec<_>>(), "each was done once, in order");
    assert_eq!(remote.begun(), 4, "one session at first, and one for each that was forgotten");
    home.finish();
}

#[test]
fn a_stream_that_breaks_is_taken_up_again_or_its_outcome_is_unknown() {
    let remote = Remote::start();
    let home = running(&remote);
    let client = local(&home);
    assert_eq!(text(&client.call("far__cut", say("1"))), "1");
    let resumed =
        remote.heads().into_iter().find(|head| head.headers.contains_key("last-event-id"));
    assert_eq!(resumed.unwrap().headers["last-event-id"], "event-1");
    let lost = client.call("far__lost", say("2"));
    assert_eq!(code(&lost), -32010, "{lost}");
    assert!(words(&lost).contains("outcome unknown"), "{lost}");
    assert_eq!(remote.done(), ["1", "2"], "each was done once");
    echoes(&client, "near");
    home.finish();
}

#[test]
fn what_hangs_up_in_the_middle_leaves_an_unknown_outcome_and_is_still_there() {
    let remote = Remote::start();
    let home = running(&remote);
    let client = local(&home);
    remote.mood(To::Calls, Mood::HangsUp);
    let lost = client.call("far__echo", say("1"));
    assert_eq!(code(&lost), -32010, "{lost}");
    remote.mood(To::Calls, Mood::Well);
    assert_eq!(text(&client.call("far__echo", say("2"))), "2");
    assert_eq!(status(&home)["state"], "running");
    home.finish();
}

#[test]
fn each_refusal_of_a_call_is_told_as_what_it_is() {
    let remote = Remote::start();
    let home = running(&remote);
    let client = local(&home);
    let status_of = |status, headers: &[(&str, &str)]| {
        let own = |text: &str| text.to_owned();
        Mood::Status(status, headers.iter().map(|(name, value)| (own(name), own(value))).collect())
    };
    for (mood, expected, says) in [
        (status_of(403, &[]), -32009, "403"),
        (status_of(429, &[("retry-after", "7")]), -32008, "try again in 7 s"),
        (status_of(400, &[]), -32603, "400"),
        (status_of(500, &[]), -32010, "500"),
        (status_of(503, &[]), -32010, "503"),
        (status_of(202, &[]), -32010, "202"),
        (Mood::BreaksOff, -32010, "broke"),
        (Mood::Says("{".to_owned()), -32603, "something else"),
        (Mood::Says(format!("[{}1]", "1,".repeat(100_000))), -32603, "something else"),
        (
            Mood::Says(r#"{"jsonrpc":"2.0","id":99999,"result":{}}"#.to_owned()),
            -32603,
            "something else",
        ),
    ] {
        remote.mood(To::Calls, mood.clone());
        let refused = client.call("far__echo", say("1"));
        assert_eq!(code(&refused), expected, "{mood:?}: {refused}");
        assert!(words(&refused).contains(says), "{mood:?}: {refused}");
        assert!(words(&refused).contains("far"), "{refused}");
        echoes(&client, "near");
    }
    let log = home.xy(&["logs", REMOTE]).stdout;
    assert!(log.lines().any(|line| line == "[err] {"), "nonsense is in its log: {log}");
    remote.mood(To::Calls, Mood::Well);
    assert_eq!(text(&client.call("far__echo", say("2"))), "2");
    assert_eq!(remote.done(), ["2"]);
    assert_eq!(status(&home)["state"], "running");
    home.finish();
}

#[test]
fn whoever_is_not_let_in_any_more_is_told_and_so_is_everybody() {
    let remote = Remote::start();
    let home = running(&remote);
    let client = local(&home);
    remote.mood(To::Everything, Mood::Status(401, Vec::new()));
    let refused = client.call("far__echo", say("1"));
    assert_eq!(code(&refused), -32009, "{refused}");
    assert!(words(&refused).contains("check `headers`"), "{refused}");
    let failed = home.wait_for_state(REMOTE, "failed");
    assert!(failed["reason"].as_str().unwrap().contains("401"), "{failed}");
    home.wait_until("its tools are gone", || {
        !client.tool_names().contains(&"far__echo".to_owned())
    });
    echoes(&client, "near");
    remote.mood(To::Everything, Mood::Well);
    assert_eq!(home.xy(&["start", REMOTE]).code, 0);
    assert_eq!(text(&client.call("far__echo", say("2"))), "2");
    home.finish();
}

#[test]
fn a_call_under_way_at_one_that_refuses_everybody_hears_its_own_answer() {
    // Whether the server is given up by that.
    for (status_code, is_given_up) in [(401, true), (403, false)] {
        let remote = Remote::start();
        let home = running(&remote);
        let (one, other) = (local(&home), local(&home));
        let under_way = one.start_call("far__wait", say("1"));
        home.wait_until("it is under way", || remote.done() == ["1"]);
        remote.mood(To::Everything, Mood::Status(status_code, Vec::new()));
        let refused = other.call("far__echo", say("2"));
        assert_eq!(code(&refused), -32009, "{refused}");
        linger(); // By then a server that nobody is waited for at has failed.
        remote.let_go();
        let answer = one.wait_answer(under_way);
        assert_eq!(text(&answer), "1", "{status_code}: {answer}");
        let state = if is_given_up { "failed" } else { "running" };
        home.wait_for_state(REMOTE, state);
        home.finish();
    }
}

#[test]
fn a_call_under_way_at_one_that_refuses_everybody_is_not_waited_for_for_ever() {
    let remote = Remote::start();
    let home = running(&remote);
    let (one, other) = (local(&home), local(&home));
    let under_way = one.start_call("far__wait", say("1"));
    home.wait_until("it is under way", || remote.done() == ["1"]);
    remote.mood(To::Everything, Mood::Status(401, Vec::new()));
    let refused = other.call("far__echo", say("2"));
    assert_eq!(code(&refused), -32009, "{refused}");
    // Nobody ever lets it go.
    let lost = one.wait_answer(under_way);
    assert_eq!(code(&lost), -32010, "{lost}");
    assert!(words(&lost).contains("outcome unknown"), "{lost}");
    home.wait_for_state(REMOTE, "failed");
    home.finish();
}

#[test]
fn what_is_no_mcp_server_fails_at_once_and_says_why() {
    for (mood, says) in [
        (Mood::Page, "text/html"),
        (Mood::Status(401, Vec::new()), "401"),
        (Mood::Status(404, Vec::new()), "404"),
        (Mood::Status(405, Vec::new()), "405"),
        (
            Mood::Status(307, vec![("location".into(), "http://127.0.0.2:1/mcp".into())]),
            "127.0.0.2",
        ),
        (Mood::Status(307, vec![("location".into(), "/mcp".into())]), "on and on"),
        (Mood::Says("[]".to_owned()), "answer"),
        (Mood::Says("nonsense".to_owned()), "answer"),
    ] {
        let remote = Remote::start();
        remote.mood(To::Everything, mood.clone());
        let home = home_with(&remote);
        let failed = home.wait_for_state(REMOTE, "failed");
        assert!(failed["reason"].as_str().unwrap().contains(says), "{mood:?}: {failed}");
        echoes(&local(&home), "near");
        home.finish();
    }
}

#[test]
fn what_is_not_there_is_unreachable_until_it_is() {
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
    let client = local(&home);
    // Nobody waits for it.
    assert!(client.tool_names().contains(&"near__echo".to_owned()));
    echoes(&client, "near");
    let remote = Remote::start_at(port);
    ready(&home, &[REMOTE]);
    assert_eq!(text(&client.call("far__echo", say("1"))), "1");
    drop(remote);
    let waits = client.start_call("far__look", say("2"));
    let gone = home.wait_until("it is unreachable", || {
        let status = status(&home);
        (status["health"] == "unreachable").then_some(status)
    });
    assert_eq!(gone["state"], "restarting", "{gone}");
    echoes(&client, "near");
    let remote = Remote::start_at(port);
    assert_eq!(text(&client.wait_answer(waits)), "2");
    assert_eq!(remote.done(), ["2"]);
    home.finish();
}

#[test]
fn failing_for_once_is_not_failed() {
    for mood in [
        Mood::Status(500, Vec::new()),
        Mood::Status(429, Vec::new()),
        Mood::HangsUp,
        Mood::BreaksOff,
    ] {
        let remote = Remote::start();
        remote.mood(To::Everything, mood.clone());
        let home = home_with(&remote);
        let tried = home.wait_for_state(REMOTE, "restarting");
        assert_eq!(tried["health"], "unreachable", "{mood:?}: {tried}");
        remote.mood(To::Everything, Mood::Well);
        ready(&home, &[REMOTE]);
        assert_eq!(text(&local(&home).call("far__echo", say("1"))), "1");
        home.finish();
    }
}

#[test]
fn a_silent_server_keeps_nobody_waiting_but_those_who_call_it() {
    let remote = Remote::start();
    let home = running(&remote);
    let client = local(&home);
    let is_listed = || client.tool_names().contains(&"far__echo".to_owned()).then_some(());
    home.wait_until("its tools are known", is_listed);
    remote.mood(To::Everything, Mood::Silent);
    let waiting: Vec<u64> = (0..50).map(|_| client.start_call("far__echo", say("1"))).collect();
    for _ in 0..20 {
        echoes(&client, "near");
        assert!(client.tool_names().contains(&"far__echo".to_owned()));
    }
    for id in &waiting {
        client.cancel(&json!(id));
    }
    echoes(&client, "near");
    assert_eq!(home.xy(&["stop", REMOTE]).code, 0);
    home.finish();
}

#[test]
fn what_is_said_to_nobody_in_particular_is_heard_also_after_the_stream_broke() {
    let remote = Remote::start();
    let home = running(&remote);
    let client = local(&home);
    home.wait_until("somebody listens", || remote.listeners() == 1);
    let lists = || remote.heads().iter().filter(|head| head.message == "tools/list").count();
    home.wait_until("its tools are asked for", || lists() == 1);
    remote.hang_up();
    home.wait_until("somebody listens again", || remote.listeners() == 1);
    remote.tell(&json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" }));
    home.wait_until("its tools are asked for again", || lists() >= 2);
    assert_eq!(text(&client.call("far__echo", say("1"))), "1");
    home.finish();
}

#[test]
fn with_isolation_each_client_has_a_session_of_its_own_which_ends_with_it() {
    let remote = Remote::start();
    let home = home();
    home.write_config("servers/far.kdl", &format!("{}isolation \"client\"\n", remote.kdl()));
    home.daemon();
    let clients = [local(&home), local(&home), local(&home)];
    for client in &clients {
        assert_eq!(text(&client.call("far__echo", say("1"))), "1");
    }
    assert_eq!(remote.sessions(), 3);
    drop(clients);
    home.wait_until("all sessions are ended", || remote.sessions() == 0);
    home.finish();
}

#[test]
fn headers_are_sent_with_everything_and_shown_nowhere() {
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
    let client = local(&home);
    assert_eq!(text(&client.call("far__stream", say("1"))), "1");
    remote.forget();
    assert_eq!(text(&client.call("far__echo", say("2"))), "2");
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
fn a_daemon_that_is_replaced_begins_a_session_of_its_own() {
    let remote = Remote::start();
    let home = running(&remote);
    home.daemon_with(&["--replace"]);
    ready(&home, &[REMOTE, "near"]);
    assert_eq!(text(&local(&home).call("far__echo", say("1"))), "1");
    home.wait_until("only the new one is left", || remote.sessions() == 1);
    home.finish();
}

#[test]
fn whom_the_machine_trusts_is_spoken_with_over_tls_and_nobody_else() {
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
    let client = local(&home);
    assert_eq!(text(&client.call("far__echo", say("1"))), "1");
    let large = client.call("far__large", json!({ "bytes": 1 << 20 }));
    assert_eq!(text(&large).len(), 1 << 20);
    assert_eq!(text(&client.call("far__stream", say("2"))), "2");
    // Its certificate is for another name.
    let other = home.wait_until("it is not trusted", || {
        let status = home.call("status", json!({ "name": "other" })).unwrap();
        (status["health"] == "unreachable").then_some(status)
    });
    assert!(other["reason"].as_str().unwrap().contains("certificate"), "{other}");
    home.finish();
}

#[test]
fn a_self_signed_authority_is_refused_with_the_way_out() {
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
fn a_server_of_the_older_transport_is_refused_with_the_setting_for_it() {
    let home = home();
    let port = free_port().to_string();
    let kdl = home.kdl_command("xy-test-fixture", &["--sse", &port]);
    let kdl = format!("{kdl}transport \"sse\"\nport {port}\n");
    home.write_config("servers/older.kdl", &kdl);
    home.daemon();
    ready(&home, &["older"]);
    // Another file says that it speaks the newer transport.
    home.write_config("servers/far.kdl", &format!("url \"http://127.0.0.1:{port}/sse\"\n"));
    home.xy(&["reload"]);
    let failed = home.wait_for_state(REMOTE, "failed");
    let reason = failed["reason"].as_str().unwrap();
    assert!(reason.contains("transport \"sse\""), "{reason}");
    assert!(reason.contains("refused `initialize`"), "{reason}");
    home.finish();
}

#[test]
fn a_server_that_wants_a_token_is_quoted_and_the_token_is_not() {
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
        remote.mood(To::Everything, Mood::Status(401, headers.clone()));
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
fn a_question_of_a_forgotten_session_is_taken_back_and_its_answer_goes_nowhere() {
    let remote = Remote::start();
    let home = running(&remote);
    let (asked, other) = (capable(&home), local(&home));
    asked.start_call("far__ask", say("1"));
    let question = asked.wait_question();
    remote.forget();
    assert_eq!(text(&other.call("far__echo", say("2"))), "2");
    let taken_back = asked.wait_notification("notifications/cancelled");
    assert_eq!(taken_back["params"]["requestId"], question["id"]);
    asked.answer(&question, Ok(json!({ "action": "accept", "content": {} })));
    echoes(&asked, "near");
    assert_eq!(text(&asked.call("far__echo", say("3"))), "3");
    assert_eq!(remote.answers(), Vec::<Value>::new());
    home.finish();
}

#[test]
fn whoever_forgets_and_then_says_nothing_is_unreachable_and_nobody_waits_for_ever() {
    let remote = Remote::start();
    let home = home();
    home.write_config("servers/far.kdl", &format!("{}ready {{ within \"1s\" }}\n", remote.kdl()));
    home.daemon();
    ready(&home, &[REMOTE]);
    let client = local(&home);
    assert_eq!(text(&client.call("far__echo", say("1"))), "1");
    remote.mood(To::Calls, Mood::Status(404, Vec::new()));
    remote.mood(To::Greetings, Mood::Silent);
    let waits = client.start_call("far__echo", say("2"));
    let gone = home.wait_until("it is unreachable", || {
        let status = status(&home);
        (status["health"] == "unreachable").then_some(status)
    });
    assert!(gone["reason"].as_str().unwrap().contains("initialize"), "{gone}");
    remote.mood(To::Calls, Mood::Well);
    remote.mood(To::Greetings, Mood::Well);
    ready(&home, &[REMOTE]);
    assert_eq!(text(&client.wait_answer(waits)), "2", "nobody had taken it");
    assert_eq!(text(&client.call("far__echo", say("3"))), "3");
    assert_eq!(remote.done(), ["1", "2", "3"]);
    home.finish();
}

#[test]
fn whoever_has_moved_within_its_own_house_is_found() {
    let remote = Remote::start();
    let home = home();
    home.write_config("servers/far.kdl", &remote.kdl().replace("/mcp", "/moved"));
    home.daemon();
    ready(&home, &[REMOTE]);
    let client = local(&home);
    assert_eq!(text(&client.call("far__echo", say("1"))), "1");
    assert_eq!(text(&client.call("far__cut", say("2"))), "2");
    assert_eq!(remote.done(), ["1", "2"]);
    home.finish();
}

#[test]
fn a_call_that_takes_longer_than_its_server_may_is_ended_in_words() {
    let remote = Remote::start();
    let home = home();
    let limits = "calls { idle \"2s\"; within \"1h\" }\n";
    home.write_config("servers/far.kdl", &format!("{}{limits}", remote.kdl()));
    let diary = diary_file(&home, "near");
    serve_with(&home, "near", &["--diary", diary.to_str().unwrap()], "calls { within \"2s\" }\n");
    home.daemon();
    ready(&home, &[REMOTE, "near"]);
    let client = local(&home);
    let told = |head: &xy_testkit::remote::Head| head.message == "notifications/cancelled";
    for (tool, rule) in [("far__wait", "idle"), ("near__never", "within")] {
        let late = client.call(tool, say("1"));
        assert_eq!(code(&late), -32007, "{late}");
        assert!(words(&late).contains(rule) && words(&late).contains("2s"), "{late}");
    }
    home.wait_until("both were told", || {
        heard_of(&home, "near", "notifications/cancelled").len() == 1
            && remote.heads().iter().any(told)
    });
    echoes(&client, "near");
    assert_eq!(text(&client.call("far__echo", say("2"))), "2");
    home.finish();
}

#[test]
fn whoever_offers_no_stream_has_not_forgotten_the_session() {
    let remote = Remote::start();
    remote.offer_no_stream();
    let home = running(&remote);
    let client = local(&home);
    let listened = || remote.heads().iter().any(|head| head.method == "GET");
    home.wait_until("somebody wanted to listen", listened);
    for number in 0..5 {
        assert_eq!(text(&client.call("far__echo", say(&number.to_string()))), number.to_string());
    }
    assert_eq!((remote.begun(), status(&home)["state"].as_str()), (1, Some("running")));
    home.finish();
}

#[test]
fn a_tool_that_answers_404_in_its_own_words_has_answered() {
    let remote = Remote::start();
    let home = running(&remote);
    let client = local(&home);
    remote.mood(To::Calls, Mood::Status(404, vec![("x-echo-id".into(), "yes".into())]));
    for _ in 0..8 {
        let answer = client.call("far__echo", say("1"));
        assert_eq!(words(&answer), "no such thing", "{answer}");
    }
    assert_eq!((remote.begun(), status(&home)["state"].as_str()), (1, Some("running")));
    let calls = remote.heads().iter().filter(|head| head.message == "tools/call").count();
    assert_eq!(calls, 8, "each was sent once");
    home.finish();
}

#[test]
fn what_is_cancelled_while_a_session_is_begun_again_is_never_done() {
    let remote = Remote::start();
    let home = running(&remote);
    let client = local(&home);
    remote.forget();
    remote.mood(To::Greetings, Mood::Waits);
    let id = client.start_call("far__echo", say("cancelled"));
    home.wait_until("it is greeted again", || {
        remote.heads().iter().filter(|head| head.message == "initialize").count() == 2
    });
    client.cancel(&json!(id));
    echoes(&client, "near");
    remote.let_go();
    let wanted = client.call("far__echo", say("wanted"));
    assert_eq!(text(&wanted), "wanted", "{wanted}");
    assert_eq!(remote.done(), ["wanted"]);
    home.finish();
}

#[test]
fn no_answer_of_a_client_waits_behind_another_clients() {
    let remote = Remote::start();
    let home = running(&remote);
    let (slow, quick) = (capable(&home), capable(&home));
    remote.mood(To::Answers, Mood::Silent);
    slow.start_call("far__ask", say("slow"));
    let question = slow.wait_question();
    slow.answer(&question, Ok(json!({ "action": "accept", "content": {} })));
    home.wait_until("it is not taken", || {
        remote.heads().iter().any(|head| head.method == "POST" && head.message.is_empty())
    });
    remote.mood(To::Answers, Mood::Well);
    let call = quick.start_call("far__ask", say("quick"));
    let question = quick.wait_question();
    quick.answer(&question, Ok(json!({ "action": "accept", "content": {} })));
    assert_eq!(text(&quick.wait_answer(call)), "quick");
    let log = home.xy(&["logs", REMOTE]).stdout;
    assert!(!log.contains("a message was lost"), "the other is still on its way: {log}");
    home.finish();
}

#[test]
fn however_many_call_a_server_has_a_bounded_number_of_connections() {
    let remote = Remote::start();
    let home = running(&remote);
    let clients = [local(&home), local(&home)];
    let calls: Vec<_> = (0..400)
        .map(|number| clients[number % 2].start_call("far__wait", say(&number.to_string())))
        .collect();
    home.wait_until("as many as may be are there", || remote.done().len() == 256);
    echoes(&clients[0], "near");
    // Those, the stream that belongs to no call, and what wants no answer.
    assert!(remote.connections() <= 256 + 2, "{}", remote.connections());
    remote.let_go();
    for (number, id) in calls.into_iter().enumerate() {
        assert_eq!(text(&clients[number % 2].wait_answer(id)), number.to_string());
    }
    assert_eq!(remote.done().len(), 400);
    home.finish();
}

#[test]
fn unfinished_answers_have_a_bound_over_all() {
    const EACH: usize = 30 << 20;
    let remote = Remote::start();
    let home = running(&remote);
    let client = local(&home);
    remote.mood(To::Calls, Mood::HoldsBack(EACH));
    // Four fit into 128 MiB.
    let calls: Vec<u64> = (0..5).map(|_| client.start_call("far__echo", say("1"))).collect();
    let told = home.wait_until("one is told", || {
        let heard = |id: &u64| client.answer_within(*id, Duration::from_millis(10));
        calls.iter().find_map(heard)
    });
    assert_eq!(code(&told), -32010, "{told}");
    assert!(words(&told).contains("large and unfinished"), "{told}");
    echoes(&client, "near");
    home.finish();
}
