//! Calls whose server is killed: what it never saw and what does no harm is done after all, and
//! of the rest its client is told that nobody knows.

#[cfg(target_os = "linux")]
use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::remote::Remote;
use xy_testkit::{Home, McpClient, free_port};

use crate::stage::{
    bridged, code, echoes, heard_of, home, local, metrics, nothing_is_open, ready, serve_noting,
    serve_with, web, words,
};
use crate::support::{running, running_after, signal, status};

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_default()
}

/// What was said in calls that a server has heard, in order.
fn said_in_calls(home: &Home, name: &str) -> Vec<String> {
    let calls = heard_of(home, name, "tools/call");
    let said = calls.iter().map(|it| it["params"]["arguments"]["message"].as_str());
    said.map(|said| said.unwrap_or_default().to_owned()).collect()
}

#[cfg(target_os = "linux")]
/// Waits until so many calls are with the server, as far as xy knows.
#[track_caller]
fn are_open(home: &Home, name: &str, count: usize) {
    let line = format!("xy_server_calls_open{{server=\"{name}\"}} {count}\n");
    home.wait_until("they are with the server", || metrics(home).contains(&line));
}

fn counted(home: &Home, number: &str, name: &str) -> u64 {
    let start = format!("xy_server_calls_{number}{{server=\"{name}\"}} ");
    let metrics = metrics(home);
    let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("no {start}")).parse().unwrap()
}

#[cfg(target_os = "linux")]
/// Stops a server where it is: from now on it reads nothing.
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

/// A file that is not there: whoever makes it dies.
fn fuse(home: &Home, name: &str) -> PathBuf {
    home.root().join(format!("harness/{name}.fuse"))
}

#[test]
fn a_tool_that_may_be_repeated_is_and_one_that_may_not_is_not() {
    let home = home();
    serve_noting(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    let client = local(&home);
    client.tool_names();
    for (round, tool) in (1..).zip(["read_only", "idempotent", "mutating"]) {
        let die_once = fuse(&home, tool);
        let arguments = json!({ "message": tool, "die_once": die_once });
        let answer = client.call(&format!("a__{tool}"), arguments);
        let heard = said_in_calls(&home, "a").iter().filter(|said| *said == tool).count();
        if tool == "mutating" {
            assert_eq!(code(&answer), -32010, "{answer}");
            assert!(words(&answer).contains("nothing says that it may be repeated"), "{answer}");
            assert_eq!(heard, 1, "it was done once at most");
        } else {
            assert_eq!(text(&answer), tool, "{answer}");
            assert_eq!(heard, 2);
        }
        running_after(&home, "a", round);
    }
    assert_eq!((counted(&home, "again_total", "a"), counted(&home, "unknown_total", "a")), (2, 1));
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn a_killed_server_loses_nothing_that_may_be_repeated_and_nothing_is_done_twice() {
    let home = home();
    serve_noting(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    let (one, other) = (bridged(&home), web(&home));
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
    home.wait_until("the server has them", || said_in_calls(&home, "a").len() == calls.len());
    signal(running(&home, "a"), Signal::KILL);
    for (client, id, message) in &calls {
        let answer = client.wait_answer(*id);
        if message.starts_with("read_only") {
            assert_eq!(text(&answer), message, "{answer}");
        } else {
            assert_eq!(code(&answer), -32010, "{message}: {answer}");
        }
    }
    let heard = said_in_calls(&home, "a");
    for (.., message) in &calls {
        let times = heard.iter().filter(|it| *it == message).count();
        assert_eq!(times, if message.starts_with("mutating") { 1 } else { 2 }, "{message}");
    }
    nothing_is_open(&home);
    drop((one, other));
    home.finish();
}

/// Kills a server that reads nothing, under calls that must not be done twice.
#[cfg(target_os = "linux")]
fn kills_one_that_does_not_read(home: &Home) {
    let (one, other) = (local(home), local(home));
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
    are_open(home, "a", calls.len());
    signal(pid, Signal::KILL);
    let later = one.start_call("a__mutating", json!({ "message": "one later" }));
    for (client, id, message) in &calls {
        let answer = client.wait_answer(*id);
        assert_eq!(text(&answer), message, "{answer}");
    }
    assert_eq!(text(&one.wait_answer(later)), "one later");
    let heard = said_in_calls(home, "a");
    assert_eq!(heard.len(), calls.len() + 1, "each was done once: {heard:?}");
    for who in ["one", "other"] {
        let theirs = heard.iter().filter(|it| it.starts_with(&format!("{who} ")));
        let sent = calls.iter().map(|(.., message)| message).filter(|it| it.starts_with(who));
        let later = "one later".to_owned();
        let sent = sent.chain((who == "one").then_some(&later));
        let sent: Vec<&String> = sent.filter(|it| it.starts_with(&format!("{who} "))).collect();
        assert_eq!(theirs.collect::<Vec<_>>(), sent, "in their order");
    }
    assert_eq!(counted(home, "unknown_total", "a"), 0);
    nothing_is_open(home);
}

#[cfg(target_os = "linux")]
#[test]
fn what_a_server_never_read_is_done_by_its_successor_once_and_in_order() {
    let home = home();
    serve_noting(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    kills_one_that_does_not_read(&home);
    home.finish();
}

#[cfg(target_os = "linux")]
#[test]
fn the_same_of_a_server_that_an_earlier_daemon_began() {
    let home = home();
    serve_noting(&home, "a", &[]);
    let daemon = home.daemon();
    ready(&home, &["a"]);
    let pid = running(&home, "a");
    daemon.kill9();
    home.daemon();
    ready(&home, &["a"]);
    assert_eq!(running(&home, "a"), pid);
    kills_one_that_does_not_read(&home);
    home.finish();
}

/// How many bytes are in a server's stdin that it has not read.
#[cfg(target_os = "linux")]
fn unread_by(pid: u32) -> u64 {
    let stdin = fs::File::open(format!("/proc/{pid}/fd/0")).unwrap();
    rustix::io::ioctl_fionread(&stdin).unwrap()
}

/// It is longer than what a pipe holds, so a part of it is written and the rest is not.
#[cfg(target_os = "linux")]
#[test]
fn a_long_call_of_which_a_server_never_read_a_byte_is_done_by_its_successor_once() {
    let home = home();
    serve_noting(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    let client = local(&home);
    client.tool_names();
    let pid = running(&home, "a");
    freeze(&home, pid);
    let long = "l".repeat(1024 * 1024);
    let first = client.start_call("a__mutating", json!({ "message": long }));
    home.wait_until("some of it is written", || unread_by(pid) > 0);
    let next = client.start_call("a__mutating", json!({ "message": "next" }));
    are_open(&home, "a", 2);
    signal(pid, Signal::KILL);
    let answer = client.wait_answer(first);
    assert!(text(&answer) == long, "{}", words(&answer));
    assert_eq!(text(&client.wait_answer(next)), "next");
    assert!(said_in_calls(&home, "a") == [&*long, "next"], "each was done once, in their order");
    assert_eq!((counted(&home, "again_total", "a"), counted(&home, "unknown_total", "a")), (2, 0));
    nothing_is_open(&home);
    home.finish();
}

/// What was never read is not done, and its client is told which bound it was.
#[cfg(target_os = "linux")]
#[test]
fn a_call_that_is_longer_than_what_may_be_kept_is_not_done_and_names_the_bound() {
    let home = home();
    home.write_config("xy.kdl", "park { bytes \"512KiB\" }\n");
    serve_noting(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    let client = local(&home);
    client.tool_names();
    let pid = running(&home, "a");
    freeze(&home, pid);
    let long = client.start_call("a__mutating", json!({ "message": "l".repeat(1024 * 1024) }));
    home.wait_until("some of it is written", || unread_by(pid) > 0);
    let short = client.start_call("a__mutating", json!({ "message": "short" }));
    are_open(&home, "a", 2);
    signal(pid, Signal::KILL);
    let refused = client.wait_answer(long);
    assert_eq!(code(&refused), -32005, "{refused}");
    for part in ["not done", "`bytes`", "`park`", "xy.kdl"] {
        assert!(words(&refused).contains(part), "{part}: {refused}");
    }
    assert_eq!(text(&client.wait_answer(short)), "short");
    assert_eq!(said_in_calls(&home, "a"), ["short"]);
    nothing_is_open(&home);
    home.finish();
}

/// Here its stdin is closed first, and it may read on until it ends.
#[cfg(target_os = "linux")]
#[test]
fn what_a_server_did_not_read_before_its_restart_is_done_after_it_and_nothing_twice() {
    let home = home();
    serve_noting(&home, "a", &["--unbuffered"]);
    home.daemon();
    ready(&home, &["a"]);
    let client = local(&home);
    client.tool_names();
    freeze(&home, running(&home, "a"));
    let calls: Vec<(u64, String)> = (0..400)
        .map(|number| number.to_string())
        .map(|said| (client.start_call("a__mutating", json!({ "message": said })), said))
        .collect();
    are_open(&home, "a", calls.len());
    assert_eq!(home.xy(&["restart", "a"]).code, 0);
    let (mut done, mut unknown) = (Vec::new(), Vec::new());
    for (id, said) in &calls {
        let answer = client.wait_answer(*id);
        if text(&answer) == said {
            done.push(said);
        } else {
            assert_eq!(code(&answer), -32010, "{answer}");
            unknown.push(said);
        }
    }
    let heard = said_in_calls(&home, "a");
    for (_, said) in &calls {
        let times = heard.iter().filter(|it| *it == said).count();
        // What it had read in part when it ended was not done, but nobody else can know.
        let is_right = times == 1 || (times == 0 && unknown.contains(&said));
        assert!(is_right, "{said} was heard {times} times");
    }
    crate::tell(&format!(
        "{} done, {} by the next life, {} unknown",
        done.len(),
        counted(&home, "again_total", "a"),
        unknown.len()
    ));
    home.finish();
}

#[test]
fn a_call_for_a_remote_server_that_is_away_waits_until_it_is_back() {
    let remote = Remote::start();
    let (port, kdl) = (remote.port(), remote.kdl());
    let home = home();
    home.write_config("servers/far.kdl", &format!("{kdl}restart {{ backoff-max \"1s\" }}\n"));
    home.daemon();
    ready(&home, &["far"]);
    let client = local(&home);
    client.tool_names();
    assert_eq!(text(&client.call("far__look", json!({ "message": "1" }))), "1");
    drop(remote);
    // Whether the connection breaks or there is none: it does no harm.
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

/// Nobody has noticed yet that it is away: it is this call that finds nobody there.
#[test]
fn a_call_that_meets_a_refused_connection_was_not_written_and_waits_whatever_it_does() {
    let remote = Remote::start();
    remote.offer_no_stream();
    let (port, kdl) = (remote.port(), remote.kdl());
    let home = home();
    let rules = "health { probe \"off\" }\nrestart { backoff-max \"1s\" }\n";
    home.write_config("servers/far.kdl", &format!("{kdl}{rules}"));
    home.daemon();
    ready(&home, &["far"]);
    let client = local(&home);
    client.tool_names();
    assert_eq!(text(&client.call("far__echo", json!({ "message": "1" }))), "1");
    drop(remote);
    home.wait_until("its connections are closed", || connections_to(port) == 0);
    assert_eq!(status(&home, "far")["state"], "running", "nobody knows");
    let call = client.start_call("far__echo", json!({ "message": "2" }));
    home.wait_until("it waits", || status(&home, "far")["parked"] == 1);
    let remote = Remote::start_at(port);
    assert_eq!(text(&client.wait_answer(call)), "2");
    assert_eq!(remote.done(), ["2"]);
    home.finish();
}

/// How many connections there are to a port of this machine that are not closed at both ends.
fn connections_to(port: u16) -> usize {
    let all = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let to = format!("0100007F:{port:04X}");
    // Established, or closed by the other end alone.
    let is_open = |line: &&str| {
        let mut words = line.split_whitespace().skip(2);
        words.next() == Some(&*to) && matches!(words.next(), Some("01" | "08"))
    };
    all.lines().filter(is_open).count()
}

#[test]
fn calls_that_waited_for_a_killed_server_at_a_port_come_in_the_order_of_their_client() {
    let home = home();
    let port = free_port().to_string();
    let diary = crate::stage::diary_file(&home, "a");
    let flags = ["--http", &port, "--diary", diary.to_str().unwrap()];
    let kdl = format!("{}port {port}\n", home.kdl_mcp(&flags));
    let slow = "restart { backoff-initial \"5s\"; jitter #false }\n";
    home.write_config("servers/a.kdl", &format!("{kdl}{slow}"));
    home.daemon();
    ready(&home, &["a"]);
    let client = local(&home);
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
    assert_eq!(said_in_calls(&home, "a"), numbers);
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn what_breaks_off_is_asked_again_once_if_it_does_no_harm() {
    use xy_testkit::remote::{Mood, To};

    let remote = Remote::start();
    let home = home();
    home.write_config("servers/far.kdl", &remote.kdl());
    home.daemon();
    ready(&home, &["far"]);
    let client = local(&home);
    client.tool_names();
    remote.mood(To::Calls, Mood::HangsUp);
    let lost = client.call("far__look", json!({ "message": "1" }));
    assert_eq!(code(&lost), -32010, "{lost}");
    assert!(words(&lost).contains("sent again once"), "{lost}");
    let posted =
        |remote: &Remote| remote.heads().iter().filter(|head| head.message == "tools/call").count();
    assert_eq!(posted(&remote), 2);
    let lost = client.call("far__echo", json!({ "message": "2" }));
    assert_eq!(code(&lost), -32010, "{lost}");
    assert_eq!(posted(&remote), 3);
    remote.mood(To::Calls, Mood::Well);
    assert_eq!(text(&client.call("far__look", json!({ "message": "3" }))), "3");
    home.finish();
}

#[test]
fn a_server_at_a_port_that_is_killed_is_waited_for_too() {
    let home = home();
    let port = free_port().to_string();
    let diary = crate::stage::diary_file(&home, "a");
    let flags = ["--http", &port, "--diary", diary.to_str().unwrap()];
    serve_with(&home, "a", &flags, &format!("port {port}\n"));
    home.daemon();
    ready(&home, &["a"]);
    let client = local(&home);
    client.tool_names();
    let die_once = fuse(&home, "a");
    let arguments = json!({ "message": "again", "die_once": die_once });
    assert_eq!(text(&client.call("a__read_only", arguments)), "again");
    let die_once = fuse(&home, "b");
    let arguments = json!({ "message": "unknown", "die_once": die_once });
    let lost = client.call("a__mutating", arguments);
    assert_eq!(code(&lost), -32010, "{lost}");
    // Nobody has taken it, or it waited: whatever its tool is, it is done.
    let pid = running_after(&home, "a", 2)["pid"].as_u64().unwrap();
    signal(u32::try_from(pid).unwrap(), Signal::KILL);
    home.wait_until("its death is known", || status(&home, "a")["pid"] != pid);
    assert_eq!(text(&client.call("a__mutating", json!({ "message": "new" }))), "new");
    echoes(&client, "a");
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn when_a_server_is_given_up_whoever_waits_for_it_is_told_at_once() {
    let home = home();
    let rules = "restart { backoff-initial \"0s\"; max-attempts 3; jitter #false }\n";
    let kdl = format!("{}{rules}", home.kdl_mcp(&["--die-on", "initialize"]));
    home.write_config("xy.kdl", "park { queue \"10m\" }\ngateway { listen \"127.0.0.1:0\" }\n");
    home.write_config("servers/bad.kdl", &kdl);
    home.daemon();
    let client = local(&home);
    let refused = client.call("bad__x", json!({}));
    assert_eq!(code(&refused), -32005, "{refused}");
    assert!(words(&refused).contains("`bad` is not running"), "{refused}");
    assert!(words(&refused).contains("xy logs bad"), "{refused}");
    assert_eq!(status(&home, "bad")["state"], "failed");
    home.finish();
}

#[test]
fn no_call_waits_for_longer_than_its_file_says_and_the_status_shows_who_waits() {
    let home = home();
    home.write_config(
        "xy.kdl",
        "park { queue \"6s\"; calls 2 }\ngateway { listen \"127.0.0.1:0\" }\n",
    );
    home.write_config("servers/mute.kdl", &home.kdl_mcp(&["--never-init"]));
    home.daemon();
    let client = local(&home);
    let calls = [(); 2].map(|()| client.start_call("mute__x", json!({})));
    home.wait_until("both wait", || status(&home, "mute")["parked"] == 2);
    let shown = home.xy(&["status", "mute"]).stdout;
    assert!(shown.contains("2 calls wait for it"), "{shown}");
    let full = client.call("mute__x", json!({}));
    assert_eq!(code(&full), -32008, "{full}");
    for id in calls {
        let late = client.wait_answer(id);
        assert_eq!(code(&late), -32008, "{late}");
        assert!(words(&late).contains("6s"), "{late}");
    }
    home.wait_until("nobody waits", || status(&home, "mute")["parked"] == 0);
    home.finish();
}
