//! Calls of a killed server: unseen and idempotent calls are executed by its successor, and all
//! others have an unknown outcome.

#[cfg(target_os = "linux")]
use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::remote::Remote;
use xy_testkit::{Home, McpClient, free_port};

use crate::fixtures::{
    assert_echo, bridge_client, error_code, error_message, home, http_client, local_client,
    metrics, ready, received_of, serve_recorded, serve_with, wait_until_idle,
};
use crate::support::{running, running_after, signal, status};

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_default()
}

/// Returns the messages in the calls that a server has received, in order.
fn messages_in_calls(home: &Home, name: &str) -> Vec<String> {
    let calls = received_of(home, name, "tools/call");
    let messages = calls.iter().map(|it| it["params"]["arguments"]["message"].as_str());
    messages.map(|messages| messages.unwrap_or_default().to_owned()).collect()
}

#[cfg(target_os = "linux")]
/// Waits until the gateway counts this many open calls at the server.
#[track_caller]
fn wait_until_open(home: &Home, name: &str, count: usize) {
    let line = format!("xy_server_calls_open{{server=\"{name}\"}} {count}\n");
    home.wait_until("the server has the calls", || metrics(home).contains(&line));
}

fn counted(home: &Home, number: &str, name: &str) -> u64 {
    let start = format!("xy_server_calls_{number}{{server=\"{name}\"}} ");
    let metrics = metrics(home);
    let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("no {start}")).parse().unwrap()
}

#[cfg(target_os = "linux")]
/// Stops a server's process, so that it reads nothing.
#[track_caller]
fn freeze(home: &Home, pid: u32) {
    signal(pid, Signal::STOP);
    home.wait_until("all of it stands still", || {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        threads.flatten().all(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        })
    });
}

/// Returns the path of a missing file. The server dies when it creates this file.
fn fuse(home: &Home, name: &str) -> PathBuf {
    home.root().join(format!("harness/{name}.fuse"))
}

#[test]
fn only_idempotent_tools_are_retried() {
    let home = home();
    serve_recorded(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    let client = local_client(&home);
    client.tool_names();
    for (round, tool) in (1..).zip(["read_only", "idempotent", "mutating"]) {
        let die_once = fuse(&home, tool);
        let arguments = json!({ "message": tool, "die_once": die_once });
        let answer = client.call(&format!("a__{tool}"), arguments);
        let received =
            messages_in_calls(&home, "a").iter().filter(|text_of| *text_of == tool).count();
        if tool == "mutating" {
            assert_eq!(error_code(&answer), -32010, "{answer}");
            assert!(
                error_message(&answer).contains("it is not known to be safe to repeat"),
                "{answer}"
            );
            assert_eq!(received, 1, "it was done once at most");
        } else {
            assert_eq!(text(&answer), tool, "{answer}");
            assert_eq!(received, 2);
        }
        running_after(&home, "a", round);
    }
    assert_eq!((counted(&home, "again_total", "a"), counted(&home, "unknown_total", "a")), (2, 1));
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn killed_server_loses_no_idempotent_call_and_repeats_no_other() {
    let home = home();
    serve_recorded(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    let (one, other) = (bridge_client(&home), http_client(&home));
    one.tool_names();
    let clients: [&McpClient; 2] = [&one, &other];
    let mut calls = Vec::new();
    for number in 0..10 {
        let tool = ["read_only", "mutating"][number % 2];
        for (who, client) in clients.iter().enumerate() {
            let message = format!("{tool} {who} {number}");
            let arguments = json!({ "message": message, "ms": 5000 });
            calls.push((*client, client.start_call(&format!("a__{tool}"), arguments), message));
        }
    }
    home.wait_until("the server has them", || messages_in_calls(&home, "a").len() == calls.len());
    signal(running(&home, "a"), Signal::KILL);
    for (client, id, message) in &calls {
        let answer = client.wait_answer(*id);
        if message.starts_with("read_only") {
            assert_eq!(text(&answer), message, "{answer}");
        } else {
            assert_eq!(error_code(&answer), -32010, "{message}: {answer}");
        }
    }
    let received = messages_in_calls(&home, "a");
    for (.., message) in &calls {
        let times = received.iter().filter(|it| *it == message).count();
        assert_eq!(times, if message.starts_with("mutating") { 1 } else { 2 }, "{message}");
    }
    wait_until_idle(&home);
    drop((one, other));
    home.finish();
}

/// Kills a server that reads nothing, during calls that must not run twice.
#[cfg(target_os = "linux")]
fn kill_unread_server(home: &Home) {
    let (one, other) = (local_client(home), local_client(home));
    one.tool_names();
    let pid = running(home, "a");
    freeze(home, pid);
    let mut calls = Vec::new();
    for number in 0..20 {
        for (client, who) in [(&one, "one"), (&other, "other")] {
            let message = format!("{who} {number}");
            let id = client.start_call("a__mutating", json!({ "message": message }));
            calls.push((client, id, message));
        }
    }
    wait_until_open(home, "a", calls.len());
    signal(pid, Signal::KILL);
    let later = one.start_call("a__mutating", json!({ "message": "one later" }));
    for (client, id, message) in &calls {
        let answer = client.wait_answer(*id);
        assert_eq!(text(&answer), message, "{answer}");
    }
    assert_eq!(text(&one.wait_answer(later)), "one later");
    let received = messages_in_calls(home, "a");
    assert_eq!(received.len(), calls.len() + 1, "each was done once: {received:?}");
    for who in ["one", "other"] {
        let own_messages = received.iter().filter(|it| it.starts_with(&format!("{who} ")));
        let sent = calls.iter().map(|(.., message)| message).filter(|it| it.starts_with(who));
        let later = "one later".to_owned();
        let sent = sent.chain((who == "one").then_some(&later));
        let sent: Vec<&String> = sent.filter(|it| it.starts_with(&format!("{who} "))).collect();
        assert_eq!(own_messages.collect::<Vec<_>>(), sent, "in their order");
    }
    assert_eq!(counted(home, "unknown_total", "a"), 0);
    wait_until_idle(home);
}

#[cfg(target_os = "linux")]
#[test]
fn unread_calls_run_once_in_order_at_the_successor() {
    let home = home();
    serve_recorded(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    kill_unread_server(&home);
    home.finish();
}

#[cfg(target_os = "linux")]
#[test]
fn adopted_unread_calls_run_once_at_the_successor() {
    let home = home();
    serve_recorded(&home, "a", &[]);
    let daemon = home.daemon();
    ready(&home, &["a"]);
    let pid = running(&home, "a");
    daemon.kill9();
    home.daemon();
    ready(&home, &["a"]);
    assert_eq!(running(&home, "a"), pid);
    kill_unread_server(&home);
    home.finish();
}

/// Returns how many bytes of its stdin a server has not read.
#[cfg(target_os = "linux")]
fn unread_by(pid: u32) -> u64 {
    let stdin = fs::File::open(format!("/proc/{pid}/fd/0")).unwrap();
    rustix::io::ioctl_fionread(&stdin).unwrap()
}

/// The call is longer than a pipe buffer, so only a part of it is written.
#[cfg(target_os = "linux")]
#[test]
fn unread_long_call_runs_once_at_the_successor() {
    let home = home();
    serve_recorded(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    let client = local_client(&home);
    client.tool_names();
    let pid = running(&home, "a");
    freeze(&home, pid);
    let long = "l".repeat(1024 * 1024);
    let first = client.start_call("a__mutating", json!({ "message": long }));
    home.wait_until("a part is written", || unread_by(pid) > 0);
    let next = client.start_call("a__mutating", json!({ "message": "next" }));
    wait_until_open(&home, "a", 2);
    signal(pid, Signal::KILL);
    let answer = client.wait_answer(first);
    assert!(text(&answer) == long, "{}", error_message(&answer));
    assert_eq!(text(&client.wait_answer(next)), "next");
    assert!(
        messages_in_calls(&home, "a") == [&*long, "next"],
        "each was done once, in their order"
    );
    assert_eq!((counted(&home, "again_total", "a"), counted(&home, "unknown_total", "a")), (2, 0));
    wait_until_idle(&home);
    home.finish();
}

/// The unread call is not executed, and its error names the limit.
#[cfg(target_os = "linux")]
#[test]
fn call_over_the_retention_limit_fails_and_names_the_limit() {
    let home = home();
    home.write_config("xy.kdl", "park { bytes \"512KiB\" }\n");
    serve_recorded(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    let client = local_client(&home);
    client.tool_names();
    let pid = running(&home, "a");
    freeze(&home, pid);
    let long = client.start_call("a__mutating", json!({ "message": "l".repeat(1024 * 1024) }));
    home.wait_until("a part is written", || unread_by(pid) > 0);
    let short = client.start_call("a__mutating", json!({ "message": "short" }));
    wait_until_open(&home, "a", 2);
    signal(pid, Signal::KILL);
    let refused = client.wait_answer(long);
    assert_eq!(error_code(&refused), -32005, "{refused}");
    for part in ["not done", "`park { bytes }`", "xy.kdl"] {
        assert!(error_message(&refused).contains(part), "{part}: {refused}");
    }
    assert_eq!(text(&client.wait_answer(short)), "short");
    assert_eq!(messages_in_calls(&home, "a"), ["short"]);
    wait_until_idle(&home);
    home.finish();
}

/// A restart closes stdin first, and the server may read on until it ends.
#[cfg(target_os = "linux")]
#[test]
fn unread_calls_run_once_after_a_restart() {
    let home = home();
    serve_recorded(&home, "a", &["--unbuffered"]);
    home.daemon();
    ready(&home, &["a"]);
    let client = local_client(&home);
    client.tool_names();
    freeze(&home, running(&home, "a"));
    let calls: Vec<(u64, String)> = (0..400)
        .map(|number| number.to_string())
        .map(|text_of| (client.start_call("a__mutating", json!({ "message": text_of })), text_of))
        .collect();
    wait_until_open(&home, "a", calls.len());
    assert_eq!(home.xy(&["restart", "a"]).code, 0);
    let (mut done, mut unknown) = (Vec::new(), Vec::new());
    for (id, text_of) in &calls {
        let answer = client.wait_answer(*id);
        if text(&answer) == text_of {
            done.push(text_of);
        } else {
            assert_eq!(error_code(&answer), -32010, "{answer}");
            unknown.push(text_of);
        }
    }
    let received = messages_in_calls(&home, "a");
    for (_, text_of) in &calls {
        let times = received.iter().filter(|it| *it == text_of).count();
        // A partly read call was not executed, but xy cannot know.
        let is_right = times == 1 || (times == 0 && unknown.contains(&text_of));
        assert!(is_right, "{text_of} was received {times} times");
    }
    crate::print_figure(&format!(
        "{} done, {} by the next life, {} unknown",
        done.len(),
        counted(&home, "again_total", "a"),
        unknown.len()
    ));
    home.finish();
}

#[test]
fn calls_wait_for_a_remote_server_to_return() {
    let remote = Remote::start();
    let (port, kdl) = (remote.port(), remote.kdl());
    let home = home();
    home.write_config("servers/far.kdl", &format!("{kdl}restart {{ backoff-max \"1s\" }}\n"));
    home.daemon();
    ready(&home, &["far"]);
    let client = local_client(&home);
    client.tool_names();
    assert_eq!(text(&client.call("far__look", json!({ "message": "1" }))), "1");
    drop(remote);
    // The call is idempotent, so it is safe if the connection breaks.
    let seen = client.start_call("far__look", json!({ "message": "2" }));
    home.wait_until("it is unreachable", || status(&home, "far")["health"] == "unreachable");
    let unseen = client.start_call("far__echo", json!({ "message": "3" }));
    home.wait_until("both wait", || status(&home, "far")["parked"] == 2);
    let remote = Remote::start_at(port);
    assert_eq!(text(&client.wait_answer(seen)), "2");
    assert_eq!(text(&client.wait_answer(unseen)), "3");
    assert_eq!(remote.done(), ["2", "3"], "in their order");
    home.finish();
}

/// xy has not noticed yet that the server is away: this call discovers it.
#[test]
fn call_with_a_refused_connection_waits() {
    let remote = Remote::start();
    remote.offer_no_stream();
    let (port, kdl) = (remote.port(), remote.kdl());
    let home = home();
    let rules = "health { probe \"off\" }\nrestart { backoff-max \"1s\" }\n";
    home.write_config("servers/far.kdl", &format!("{kdl}{rules}"));
    home.daemon();
    ready(&home, &["far"]);
    let client = local_client(&home);
    client.tool_names();
    assert_eq!(text(&client.call("far__echo", json!({ "message": "1" }))), "1");
    drop(remote);
    home.wait_until("its connections are closed", || connections_to(port) == 0);
    assert_eq!(status(&home, "far")["state"], "running", "xy has not noticed yet");
    let call = client.start_call("far__echo", json!({ "message": "2" }));
    home.wait_until("it waits", || status(&home, "far")["parked"] == 1);
    let remote = Remote::start_at(port);
    assert_eq!(text(&client.wait_answer(call)), "2");
    assert_eq!(remote.done(), ["2"]);
    home.finish();
}

/// Returns the number of connections to a local port that are not closed at both ends.
fn connections_to(port: u16) -> usize {
    let all = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let to = format!("0100007F:{port:04X}");
    // Established, or closed by the peer only.
    let is_open = |line: &&str| {
        let mut words = line.split_whitespace().skip(2);
        words.next() == Some(&*to) && matches!(words.next(), Some("01" | "08"))
    };
    all.lines().filter(is_open).count()
}

#[test]
fn waiting_calls_reach_a_restarted_http_server_in_order() {
    let home = home();
    let port = free_port().to_string();
    let input_log = crate::fixtures::input_log_file(&home, "a");
    let flags = ["--http", &port, "--input-log", input_log.to_str().unwrap()];
    let kdl = format!("{}port {port}\n", home.kdl_mcp(&flags));
    let slow = "restart { backoff-initial \"5s\"; jitter #false }\n";
    home.write_config("servers/a.kdl", &format!("{kdl}{slow}"));
    home.daemon();
    ready(&home, &["a"]);
    let client = local_client(&home);
    client.tool_names();
    signal(running(&home, "a"), Signal::KILL);
    home.wait_for_state("a", "restarting");
    let numbers: Vec<String> = (0..20).map(|it| it.to_string()).collect();
    let calls: Vec<_> = numbers
        .iter()
        .map(|it| client.start_call("a__mutating", json!({ "message": it })))
        .collect();
    for (call, number) in calls.into_iter().zip(&numbers) {
        assert_eq!(text(&client.wait_answer(call)), number);
    }
    assert_eq!(messages_in_calls(&home, "a"), numbers);
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn broken_remote_call_is_retried_once_if_idempotent() {
    use xy_testkit::remote::{Behaviour, To};

    let remote = Remote::start();
    let home = home();
    home.write_config("servers/far.kdl", &remote.kdl());
    home.daemon();
    ready(&home, &["far"]);
    let client = local_client(&home);
    client.tool_names();
    remote.set_behaviour(To::Calls, Behaviour::Disconnects);
    let lost = client.call("far__look", json!({ "message": "1" }));
    assert_eq!(error_code(&lost), -32010, "{lost}");
    assert!(error_message(&lost).contains("sent again once"), "{lost}");
    let posted =
        |remote: &Remote| remote.heads().iter().filter(|head| head.message == "tools/call").count();
    assert_eq!(posted(&remote), 2);
    let lost = client.call("far__echo", json!({ "message": "2" }));
    assert_eq!(error_code(&lost), -32010, "{lost}");
    assert_eq!(posted(&remote), 3);
    remote.set_behaviour(To::Calls, Behaviour::Normal);
    assert_eq!(text(&client.call("far__look", json!({ "message": "3" }))), "3");
    home.finish();
}

#[test]
fn killed_http_server_is_waited_for() {
    let home = home();
    let port = free_port().to_string();
    let input_log = crate::fixtures::input_log_file(&home, "a");
    let flags = ["--http", &port, "--input-log", input_log.to_str().unwrap()];
    serve_with(&home, "a", &flags, &format!("port {port}\n"));
    home.daemon();
    ready(&home, &["a"]);
    let client = local_client(&home);
    client.tool_names();
    let die_once = fuse(&home, "a");
    let arguments = json!({ "message": "again", "die_once": die_once });
    assert_eq!(text(&client.call("a__read_only", arguments)), "again");
    let die_once = fuse(&home, "b");
    let arguments = json!({ "message": "unknown", "die_once": die_once });
    let lost = client.call("a__mutating", arguments);
    assert_eq!(error_code(&lost), -32010, "{lost}");
    // The call is refused or queued, so it runs later whatever its tool.
    let pid = running_after(&home, "a", 2)["pid"].as_u64().unwrap();
    signal(u32::try_from(pid).unwrap(), Signal::KILL);
    home.wait_until("its death is known", || status(&home, "a")["pid"] != pid);
    assert_eq!(text(&client.call("a__mutating", json!({ "message": "new" }))), "new");
    assert_echo(&client, "a");
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn giving_up_a_server_fails_its_waiting_calls_at_once() {
    let home = home();
    let rules = "restart { backoff-initial \"0s\"; max-attempts 3; jitter #false }\n";
    let kdl = format!("{}{rules}", home.kdl_mcp(&["--die-on", "initialize"]));
    home.write_config("xy.kdl", "park { queue \"10m\" }\ngateway { listen \"127.0.0.1:0\" }\n");
    home.write_config("servers/bad.kdl", &kdl);
    home.daemon();
    let client = local_client(&home);
    let refused = client.call("bad__x", json!({}));
    assert_eq!(error_code(&refused), -32005, "{refused}");
    assert!(error_message(&refused).contains("`bad` is not running"), "{refused}");
    assert!(error_message(&refused).contains("xy logs bad"), "{refused}");
    assert_eq!(status(&home, "bad")["state"], "failed");
    home.finish();
}

#[test]
fn waiting_time_is_limited_and_status_shows_waiting_calls() {
    let home = home();
    home.write_config(
        "xy.kdl",
        "park { queue \"6s\"; calls 2 }\ngateway { listen \"127.0.0.1:0\" }\n",
    );
    home.write_config("servers/mute.kdl", &home.kdl_mcp(&["--never-init"]));
    home.daemon();
    let client = local_client(&home);
    let calls = [(); 2].map(|()| client.start_call("mute__x", json!({})));
    home.wait_until("both wait", || status(&home, "mute")["parked"] == 2);
    let shown = home.xy(&["status", "mute"]).stdout;
    assert!(shown.contains("queued     2 calls"), "{shown}");
    let full = client.call("mute__x", json!({}));
    assert_eq!(error_code(&full), -32008, "{full}");
    for id in calls {
        let late = client.wait_answer(id);
        assert_eq!(error_code(&late), -32008, "{late}");
        assert!(error_message(&late).contains("6s"), "{late}");
    }
    home.wait_until("no call waits", || status(&home, "mute")["parked"] == 0);
    home.finish();
}
