//! Calls whose container is killed: harmless calls are completed after all, and for the others the
//! client is told that the outcome is unknown.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{Home, McpHttp, free_port};

use crate::stage::{Engine, client, container_processes};
use crate::support::{home, running, running_after, signal, status};

crate::with_each_engine!(
    repeatable_calls_complete_and_others_are_unknown,
    repeatable_http_calls_complete,
    possibly_unread_call_is_not_done_twice,
    call_waits_for_restarting_container,
);

/// Returns the folder in which the container of a test records its calls.
fn folder(home: &Home) -> PathBuf {
    let folder = home.root().join("harness/record");
    fs::create_dir_all(&folder).unwrap();
    folder
}

const RESTART: &str = "restart { backoff-initial \"10ms\"; max-attempts 0; \
                       max-retries-per-minute 0; }\nstop { grace \"1s\"; }\n";

/// Writes a server that records its calls in a folder of this machine.
fn serve(engine: &Engine, home: &Home) {
    let volume = format!("network \"none\"; volumes \"{}:/record\"", folder(home).display());
    let kdl = engine.kdl(home, &["xy-test-mcp", "--record", "/record/done"], &volume);
    home.write_config("servers/one.kdl", &format!("{kdl}{RESTART}"));
}

/// Writes such a server that is reached by a port.
fn serve_by_port(engine: &Engine, home: &Home) {
    let more = format!(
        "port 8000; env {{ LISTEN_ANYWHERE 1; }}; volumes \"{}:/record\"",
        folder(home).display()
    );
    let command = ["xy-test-mcp", "--record", "/record/done", "--http", "8000"];
    let kdl = engine.kdl(home, &command, &more);
    home.write_config("servers/one.kdl", &format!("{kdl}port {}\n{RESTART}", free_port()));
}

fn done(home: &Home) -> Vec<String> {
    let done = fs::read_to_string(folder(home).join("done")).unwrap_or_default();
    done.lines().map(str::to_owned).collect()
}

#[track_caller]
fn assert_unknown(answer: &Value) {
    assert_eq!(answer["error"]["code"], -32010, "{answer}");
}

fn metrics(home: &Home) -> String {
    let token = format!("Bearer {}", home.gateway_token());
    let web = McpHttp::new(&home.gateway_address(), "/metrics", "");
    web.exchange("GET", &[("Authorization", &token)], "").body
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_default()
}

fn repeatable_calls_complete_and_others_are_unknown(engine: &Engine) {
    assert_repeatable_calls_complete(engine, serve);
}

fn repeatable_http_calls_complete(engine: &Engine) {
    assert_repeatable_calls_complete(engine, serve_by_port);
}

#[track_caller]
fn assert_repeatable_calls_complete(engine: &Engine, serve: fn(&Engine, &Home)) {
    let home = home();
    serve(engine, &home);
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    client.tool_names();
    for (round, tool) in (1..).zip(["read_only", "idempotent", "mutating"]) {
        let arguments = json!({ "message": tool, "die_once": format!("/record/{tool}") });
        let answer = client.call(&format!("one__{tool}"), arguments);
        if tool == "mutating" {
            assert_unknown(&answer);
        } else {
            assert_eq!(text(&answer), tool, "{answer}");
        }
        running_after(&home, "one", round);
    }
    drop(client);
    engine.finish(home);
}

fn possibly_unread_call_is_not_done_twice(engine: &Engine) {
    let home = home();
    serve(engine, &home);
    home.daemon();
    let first = running(&home, "one");
    let client = client(&home);
    client.tool_names();
    let begun = client.start_call("one__record", json!({ "number": 7, "ms": 600_000 }));
    home.wait_until("it has begun", || done(&home) == ["7"]);
    // The server never reads this call, but xy cannot know that: the engine has it.
    signal(*container_processes(first).last().unwrap(), Signal::STOP);
    let unread = client.start_call("one__record", json!({ "number": 8 }));
    let harmless = client.start_call("one__look", json!({ "number": 9 }));
    let torn = "x".repeat(2_000_000);
    let large = client.start_call("one__record", json!({ "number": 10, "padding": torn }));
    let open = "xy_server_calls_open{server=\"one\"} 4\n";
    home.wait_until("all are with it, as far as xy knows", || metrics(&home).contains(open));
    engine.must("POST", &format!("/containers/{}/kill", engine.container(&home)));
    assert_unknown(&client.wait_answer(begun));
    assert!(text(&client.wait_answer(harmless)).starts_with("9 "));
    for (number, id) in [("8", unread), ("10", large)] {
        let answer = client.wait_answer(id);
        // A call that was still in this machine's pipe is sent to the next instance.
        let is_done = text(&answer).starts_with(number);
        assert!(is_done || answer["error"]["code"] == -32010, "{answer}");
        let times = done(&home).iter().filter(|it| *it == number).count();
        assert_eq!(times, usize::from(is_done), "{answer}");
    }
    running_after(&home, "one", 1);
    assert_eq!(done(&home)[0], "7");
    assert_eq!(done(&home).iter().filter(|it| *it == "7").count(), 1);
    drop(client);
    engine.finish(home);
}

fn call_waits_for_restarting_container(engine: &Engine) {
    let home = home();
    serve(engine, &home);
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    client.tool_names();
    engine.must("POST", &format!("/containers/{}/kill", engine.container(&home)));
    home.wait_until("it is gone", || {
        let now = status(&home, "one");
        now["state"] != "running" || now["restart_count"] != 0
    });
    let answer = client.call("one__record", json!({ "number": 1 }));
    assert!(text(&answer).starts_with("1 "), "{answer}");
    assert_eq!(done(&home), ["1"]);
    drop(client);
    engine.finish(home);
}
