//! Shared servers that start lazily and sleep when idle, with real processes.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

#[path = "sharing/names.rs"]
mod names;
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{ask, changes_in, home, parent_of, refused, running, signal, status};
use xy_testkit::remote::Remote;
use xy_testkit::{Home, McpSocket, is_alive, marked_processes};

const CLIENTS: usize = 50;
const SERVERS: usize = 20;

const HELLO: &str = r#"{"xy":"hello","protocol":1,"view":{"profile":"default"}}"#;

/// Restart rules without delays and limits.
const UNLIMITED_RESTARTS: &str = "restart { backoff-initial \"0s\"; max-attempts 0; max-retries-per-minute 0 }\n\
     stop { grace \"2s\" }\n";

const LAZY: &str = "start \"lazy\"\n";

/// Long enough to notice an event that must not happen.
const A_WHILE: Duration = Duration::from_millis(400);

#[track_caller]
fn serve(home: &Home, name: &str, flags: &[&str], more: &str) {
    let kdl = format!("{}{UNLIMITED_RESTARTS}{more}", home.kdl_mcp(flags));
    home.write_config(&format!("servers/{name}.kdl"), &kdl);
}

#[track_caller]
fn client(home: &Home) -> McpSocket {
    let client = McpSocket::connect(&home.mcp_socket(), HELLO);
    client.initialize();
    client
}

/// Returns the process that answers a client.
#[track_caller]
fn who(client: &McpSocket, server: &str) -> u32 {
    let text = client.call_text(&format!("{server}__who"), json!({}));
    let text: Value = serde_json::from_str(&text).unwrap();
    text["pid"].as_u64().unwrap().try_into().unwrap()
}

/// Returns the server processes that are alive.
fn servers_alive(home: &Home) -> Vec<u32> {
    let all = marked_processes(home.mark()).into_iter();
    let program = home.program("xy-test-mcp").display().to_string();
    all.filter(|it| it.state != 'Z' && it.cmdline.starts_with(&program)).map(|it| it.pid).collect()
}

/// Returns how many processes a server has had, by the first line that each of them logs.
fn process_count(home: &Home, name: &str) -> usize {
    let log = fs::read_to_string(home.log_file(name)).unwrap_or_default();
    log.lines().filter(|line| line.contains("started ")).count()
}

#[expect(clippy::disallowed_methods, reason = "what must not happen cannot be waited for")]
fn linger(time: Duration) {
    thread::sleep(time);
}

/// Starts this many clients at the same instant, and returns them with the result of their first
/// action.
fn start_clients<T: Send + 'static>(
    home: &Home,
    count: usize,
    begin: impl Fn(usize, &McpSocket) -> T + Clone + Send + 'static,
) -> Vec<(McpSocket, T)> {
    let together = Arc::new(Barrier::new(count));
    let each = (0..count).map(|number| {
        let (together, begin, socket) = (together.clone(), begin.clone(), home.mcp_socket());
        thread::spawn(move || {
            together.wait();
            let client = McpSocket::connect(&socket, HELLO);
            client.initialize();
            let first = begin(number, &client);
            (client, first)
        })
    });
    let each: Vec<_> = each.collect();
    each.into_iter().map(|it| it.join().unwrap()).collect()
}

#[test]
fn lazy_servers_are_shared_and_sleep_afterwards() {
    let home = home();
    let serve_all = |idle: &str| {
        for number in 0..SERVERS {
            let more = format!("{LAZY}idle-stop \"{idle}\"\n");
            serve(&home, &format!("s{number}"), &[], &more);
        }
    };
    serve_all("1m"); // The duration of the startup is unknown.
    home.daemon();
    assert_eq!(servers_alive(&home), [] as [u32; 0], "no client uses them");
    let pids_of = |first: usize, client: &McpSocket| -> Vec<(usize, u32)> {
        assert!(client.tool_names().iter().filter(|it| it.ends_with("__who")).count() <= SERVERS);
        // Each client starts with another server, so that all are needed at once.
        let order = (0..SERVERS).map(|it| (it + first) % SERVERS);
        order.map(|number| (number, who(client, &format!("s{number}")))).collect()
    };
    let clients = start_clients(&home, CLIENTS, pids_of);
    let pids: BTreeSet<(usize, u32)> = clients.iter().flat_map(|it| it.1.clone()).collect();
    assert_eq!(pids.len(), SERVERS, "each server answered all clients with one process");
    let alive: BTreeSet<u32> = servers_alive(&home).into_iter().collect();
    assert_eq!(alive, pids.iter().map(|it| it.1).collect(), "those, and no others");
    let shims: BTreeSet<u32> = alive.iter().map(|pid| parent_of(*pid)).collect();
    assert_eq!(shims.len(), SERVERS, "each has its own shim");
    for number in 0..SERVERS {
        let name = format!("s{number}");
        home.wait_until("its process is in its log", || process_count(&home, &name) > 0);
        assert_eq!(process_count(&home, &name), 1, "{name} was started once");
    }
    serve_all("1s");
    ask(&home, "reload", json!({}));
    drop(clients);
    home.wait_until("all sleep", || {
        ask(&home, "list", json!({})).as_array().unwrap().iter().all(|it| it["state"] == "asleep")
    });
    assert_eq!(servers_alive(&home), [] as [u32; 0]);
    home.wait_until("no shim is left", || !shims.iter().any(|pid| is_alive(*pid)));
    home.finish();
}

#[test]
fn isolated_clients_have_a_process_each_that_ends_with_them() {
    let home = home();
    serve(&home, "own", &[], &format!("{LAZY}isolation \"client\"\nidle-stop \"2s\"\n"));
    serve(&home, "shared", &[], LAZY);
    home.daemon();
    let clients =
        start_clients(&home, CLIENTS, |_, client| (who(client, "own"), who(client, "shared")));
    let own: BTreeSet<u32> = clients.iter().map(|it| it.1.0).collect();
    let shared: BTreeSet<u32> = clients.iter().map(|it| it.1.1).collect();
    assert_eq!((own.len(), shared.len()), (CLIENTS, 1));
    assert_eq!(servers_alive(&home).len(), CLIENTS + 1);
    assert_eq!(status(&home, "own")["instances"].as_array().unwrap().len(), CLIENTS);
    // A connected client keeps its own instance.
    linger(Duration::from_secs(3));
    assert_eq!(who(&clients[0].0, "own"), clients[0].1.0);
    assert_eq!(servers_alive(&home).len(), CLIENTS + 1);
    drop(clients);
    home.wait_until("all isolated instances are gone", || servers_alive(&home).len() == 1);
    assert!(is_alive(*shared.first().unwrap()), "nothing ends it");
    home.finish();
}

#[test]
fn lazy_server_is_listed_from_memory_and_starts_when_called() {
    let home = home();
    serve(&home, "lazy", &[], LAZY);
    let daemon = home.daemon();
    let asleep = home.wait_for_state("lazy", "asleep");
    assert_eq!((&asleep["pid"], &asleep["wanted"]), (&Value::Null, &json!("up")));
    let first = client(&home);
    // Nothing is known of the server yet, so it is started once for its lists.
    assert!(first.tool_names().contains(&"lazy__echo".to_owned()));
    running(&home, "lazy");
    home.wait_until("its process is in its log", || process_count(&home, "lazy") == 1);
    drop(first);
    daemon.terminate();
    home.daemon();
    let later = client(&home);
    assert!(later.tool_names().contains(&"lazy__echo".to_owned()));
    linger(A_WHILE);
    assert_eq!(status(&home, "lazy")["state"], "asleep", "a list does not wake the server");
    assert_eq!(home.xy(&["self-test"]).code, 0);
    linger(A_WHILE);
    assert_eq!(
        (process_count(&home, "lazy"), servers_alive(&home).len()),
        (1, 0),
        "nor does a self-test"
    );
    who(&later, "lazy");
    home.wait_until("its second process is in its log", || process_count(&home, "lazy") == 2);
    home.finish();
}

#[test]
fn lazy_server_can_be_started_and_stopped() {
    let home = home();
    serve(&home, "lazy", &[], LAZY);
    home.daemon();
    ask(&home, "start", json!({ "name": "lazy" }));
    let pid = running(&home, "lazy");
    let one = client(&home);
    assert_eq!(who(&one, "lazy"), pid);
    ask(&home, "stop", json!({ "name": "lazy" }));
    let answer = one.call("lazy__who", json!({}));
    assert_eq!(answer["error"]["code"], -32005, "{answer}");
    linger(A_WHILE);
    assert_eq!(status(&home, "lazy")["state"], "stopped");
    ask(&home, "restart", json!({ "name": "lazy" }));
    assert_ne!(who(&one, "lazy"), pid);
    home.finish();
}

#[test]
fn open_calls_and_subscriptions_prevent_sleep() {
    let home = home();
    serve(&home, "lazy", &[], &format!("{LAZY}idle-stop \"2s\"\n"));
    home.daemon();
    assert_use_prevents_sleep(&home);
    home.finish();
}

#[test]
fn lazy_http_server_starts_on_use_and_sleeps() {
    let home = home();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let more = format!("{LAZY}idle-stop \"2s\"\ntransport \"http\"\nport {port}\n");
    serve(&home, "lazy", &["--http", &port.to_string()], &more);
    home.daemon();
    home.wait_for_state("lazy", "asleep");
    assert_eq!(servers_alive(&home), [] as [u32; 0], "no client uses it");
    assert_use_prevents_sleep(&home);
    // Each next process uses the same port.
    for _ in 0..3 {
        let pid = who(&client(&home), "lazy");
        home.wait_for_state("lazy", "asleep");
        assert!(!is_alive(pid));
    }
    home.finish();
}

#[test]
fn lazy_remote_server_has_a_session_only_while_used() {
    let home = home();
    let remote = Remote::start();
    let more = format!("{}{LAZY}idle-stop \"300ms\"\n", remote.kdl());
    home.write_config("servers/far.kdl", &more);
    let daemon = home.daemon();
    home.wait_for_state("far", "asleep");
    linger(A_WHILE);
    assert_eq!((remote.begun(), remote.connections()), (0, 0), "no client has called it");
    let echo = |client: &McpSocket, message: &str| {
        assert_eq!(client.call_text("far__echo", json!({ "message": message })), message);
    };
    let one = client(&home);
    echo(&one, "first");
    assert_eq!(remote.begun(), 1);
    home.wait_for_state("far", "asleep");
    home.wait_until("its session is ended", || remote.sessions() == 0);
    assert!(one.tool_names().contains(&"far__echo".to_owned()), "its tools are remembered");
    assert_eq!(remote.begun(), 1, "a list does not wake the server");
    echo(&one, "second");
    assert_eq!((remote.begun(), remote.done()), (2, vec!["first".to_owned(), "second".to_owned()]));
    home.wait_for_state("far", "asleep");
    daemon.terminate();
    home.daemon();
    let two = client(&home);
    assert!(two.tool_names().contains(&"far__echo".to_owned()));
    assert_eq!(remote.begun(), 2, "nor does the next daemon");
    echo(&two, "third");
    home.finish();
}

/// Checks that a server with an idle stop of 2 s stays while it is used, and then sleeps.
#[track_caller]
fn assert_use_prevents_sleep(home: &Home) {
    let one = client(home);
    let pid = who(&one, "lazy");
    let call = one.start_call("lazy__slow_echo", json!({ "message": "x", "ms": 4000 }));
    one.wait_answer(call);
    assert_eq!(who(&one, "lazy"), pid, "a call kept it");
    let resources = one.list("resources/list", "resources");
    let uri = resources.iter().find_map(|it| it["uri"].as_str()).unwrap().to_owned();
    let answer = one.request("resources/subscribe", json!({ "uri": uri }));
    assert!(answer.get("result").is_some(), "{answer}");
    linger(Duration::from_secs(4));
    assert!(is_alive(pid), "a subscription kept it");
    assert_eq!(status(home, "lazy")["state"], "running");
    one.request("resources/unsubscribe", json!({ "uri": uri }));
    home.wait_for_state("lazy", "asleep");
    assert!(!is_alive(pid));
}

#[test]
fn calls_at_the_moment_of_idle_stop_run_once() {
    let home = home();
    let record = home.root().join("harness/record");
    let idle = "idle-stop \"60ms\"\n";
    let flags = ["--record", record.to_str().unwrap()];
    serve(&home, "lazy", &flags, &format!("{LAZY}{idle}"));
    home.daemon();
    let one = client(&home);
    one.tool_names();
    let mut pids = BTreeSet::new();
    for number in 0..60_u64 {
        let text = one.call_text("lazy__record", json!({ "number": number }));
        pids.insert(text.split(' ').nth(1).unwrap().to_owned());
        // From well before the idle stop to well after it, at a different moment each time.
        linger(Duration::from_millis(40 + (number * 7) % 45));
    }
    assert!(pids.len() > 1, "it slept at times: {pids:?}");
    assert_eq!(recorded(&record), (0..60).collect::<Vec<u64>>(), "each once, in order");
    let ends = changes_in(&status(&home, "lazy"));
    let is_bad = |it: &&support::Change| ["failed", "restarting"].contains(&it.to.as_str());
    assert!(!ends.iter().any(|it| is_bad(&it)), "{ends:?}");
    home.finish();
}

fn recorded(file: &PathBuf) -> Vec<u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn killed_daemon_leaves_awake_and_sleeping_servers_as_they_were() {
    let home = home();
    serve(&home, "awake", &[], &format!("{LAZY}idle-stop \"1m\"\n"));
    serve(&home, "asleep", &[], LAZY);
    let daemon = home.daemon();
    let one = client(&home);
    let pid = who(&one, "awake");
    daemon.kill9();
    one.wait_closed();
    home.daemon();
    assert_eq!(running(&home, "awake"), pid, "it goes on");
    home.wait_for_state("asleep", "asleep");
    let two = client(&home);
    assert_eq!(who(&two, "awake"), pid);
    who(&two, "asleep");
    // Its rules still apply.
    let kdl = format!("{}{UNLIMITED_RESTARTS}{LAZY}idle-stop \"200ms\"\n", home.kdl_mcp(&[]));
    home.write_config("servers/awake.kdl", &kdl);
    ask(&home, "reload", json!({}));
    home.wait_for_state("awake", "asleep");
    assert!(!is_alive(pid));
    home.finish();
}

#[test]
fn killed_lazy_server_restarts_only_for_waiting_calls() {
    let home = home();
    let input_log = home.root().join("harness/lazy.input");
    serve(&home, "lazy", &["--input-log", input_log.to_str().unwrap()], LAZY);
    home.daemon();
    let one = client(&home);
    let pid = who(&one, "lazy");
    let call = one.start_call("lazy__never", json!({}));
    home.wait_until("it has the call", || {
        fs::read_to_string(&input_log).is_ok_and(|it| it.contains("\"never\""))
    });
    signal(pid, Signal::KILL);
    let answer = one.wait_answer(call);
    assert_eq!(answer["error"]["code"], -32010, "the outcome is unknown: {answer}");
    home.wait_for_state("lazy", "asleep");
    linger(A_WHILE);
    assert_eq!(
        (process_count(&home, "lazy"), status(&home, "lazy")["state"].clone()),
        (1, json!("asleep"))
    );
    let next = who(&one, "lazy");
    assert_ne!(next, pid);
    // A server that dies unused is left alone too.
    signal(next, Signal::KILL);
    home.wait_for_state("lazy", "asleep");
    linger(A_WHILE);
    assert_eq!(process_count(&home, "lazy"), 2);
    home.finish();
}

#[test]
fn lazy_server_that_cannot_start_is_given_up_with_a_reason() {
    let home = home();
    let kdl = format!(
        "{}restart {{ backoff-initial \"10ms\"; max-attempts 2 }}\n{LAZY}",
        home.kdl_command("xy-test-exit", &["--code", "7"])
    );
    home.write_config("servers/broken.kdl", &kdl);
    home.daemon();
    let one = client(&home);
    let answer = one.call("broken__x", json!({}));
    assert_eq!(answer["error"]["code"], -32005, "{answer}");
    home.wait_for_state("broken", "failed");
    refused(&home, "start", json!({ "name": "broken" }));
    home.finish();
}

#[test]
fn instance_limit_stops_the_least_recently_used_server() {
    let home = home();
    home.write_config("xy.kdl", "gateway { listen \"127.0.0.1:0\" }\ninstances { most 2 }\n");
    for name in ["a", "b", "c"] {
        serve(&home, name, &[], LAZY);
    }
    home.daemon();
    let one = client(&home);
    for (name, asleep) in [("a", ""), ("b", ""), ("c", "a"), ("a", "b"), ("b", "c")] {
        who(&one, name);
        if !asleep.is_empty() {
            home.wait_for_state(asleep, "asleep");
        }
        home.wait_until("no more than two are there", || servers_alive(&home).len() <= 2);
    }
    // Now all places are in use.
    let calls = ["a", "b"].map(|name| one.start_call(&format!("{name}__never"), json!({})));
    linger(A_WHILE);
    let answer = one.call("c__who", json!({}));
    assert_eq!(answer["error"]["code"], -32008, "{answer}");
    let words = answer["error"].to_string();
    for word in ["c", "2 instances", "a 1, b 1", "instances { … }"] {
        assert!(words.contains(word), "{word}: {words}");
    }
    one.cancel(&json!(calls[0]));
    who(&one, "c");
    home.finish();
}

#[test]
fn isolated_instances_count_towards_the_limit() {
    let home = home();
    home.write_config("xy.kdl", "gateway { listen \"127.0.0.1:0\" }\ninstances { most 1 }\n");
    serve(&home, "own", &[], "isolation \"client\"\n");
    home.daemon();
    let (one, two) = (client(&home), client(&home));
    let pid = who(&one, "own");
    let full = two.call("own__who", json!({}));
    assert_eq!(full["error"]["code"], -32008, "{full}");
    assert!(full["error"].to_string().contains("instances { … }"), "{full}");
    assert_eq!((who(&one, "own"), servers_alive(&home)), (pid, vec![pid]));
    drop(one);
    home.wait_until("its place is free", || {
        two.call("own__who", json!({})).get("result").is_some()
    });
    assert_eq!(servers_alive(&home).len(), 1);
    home.finish();
}

/// Memory of a server with a known size, in MiB: much more than the rest of its process.
const HEAVY: &str = "64";

#[test]
fn memory_limit_stops_the_least_recently_used_server() {
    let home = home();
    let small = "gateway { listen \"127.0.0.1:0\" }\ninstances { memory \"32MiB\" }\n";
    home.write_config("xy.kdl", small);
    for name in ["a", "b"] {
        serve(&home, name, &["--megabytes", HEAVY], LAZY);
    }
    home.daemon();
    let one = client(&home);
    // At first nothing has been measured.
    who(&one, "a");
    who(&one, "b");
    home.wait_for_state("a", "asleep");
    home.wait_for_state("b", "asleep");
    who(&one, "a");
    home.finish();
}

#[test]
fn memory_limit_stops_only_as_many_servers_as_needed() {
    let home = home();
    // Two servers use slightly more than 128 MiB, and three slightly more than 192 MiB.
    let budget = "gateway { listen \"127.0.0.1:0\" }\ninstances { memory \"160MiB\" }\n";
    home.write_config("xy.kdl", budget);
    for name in ["a", "b", "c"] {
        serve(&home, name, &["--megabytes", HEAVY], LAZY);
    }
    home.daemon();
    let one = client(&home);
    // Before all are measured there is room for all. The oldest is the last to be used.
    let pids = ["a", "b", "c", "a"].map(|name| who(&one, name));
    home.wait_for_state("b", "asleep");
    // From now on the measured memory fits.
    linger(Duration::from_secs(11));
    assert_eq!((who(&one, "a"), who(&one, "c")), (pids[0], pids[2]), "neither had to go");
    assert_eq!((process_count(&home, "a"), process_count(&home, "c")), (1, 1));
    assert!(!is_alive(pids[1]));
    home.finish();
}

#[test]
fn call_fails_if_a_busy_server_uses_all_memory() {
    let home = home();
    let budget = "gateway { listen \"127.0.0.1:0\" }\ninstances { memory \"32MiB\" }\n";
    home.write_config("xy.kdl", budget);
    serve(&home, "heavy", &["--megabytes", HEAVY], "");
    serve(&home, "lazy", &[], LAZY);
    home.daemon();
    let pid = running(&home, "heavy");
    let one = client(&home);
    let answer = home.wait_until("it has been measured", || {
        let answer = one.call("lazy__who", json!({}));
        answer.get("error").is_some().then_some(answer)
    });
    assert_eq!(answer["error"]["code"], -32008, "{answer}");
    let words = answer["error"].to_string();
    for word in ["`lazy`", "of 32 MiB of memory", "heavy 1", "raise `memory` in `instances { … }`"]
    {
        assert!(words.contains(word), "{word}: {words}");
    }
    assert_eq!(who(&one, "heavy"), pid, "the running server goes on");
    home.finish();
}

#[test]
fn status_shows_clients_and_usage_of_an_instance() {
    let home = home();
    serve(&home, "one", &[], "");
    serve(&home, "own", &[], "isolation \"client\"\n");
    home.daemon();
    running(&home, "one");
    let clients = [client(&home), client(&home)];
    for client in &clients {
        who(client, "one");
    }
    who(&clients[0], "own");
    let shared = &status(&home, "one")["instances"][0];
    assert_eq!(shared["clients"][0]["count"], 2, "{shared}");
    assert!(!shared["clients"][0]["name"].as_str().unwrap().is_empty(), "{shared}");
    assert!(shared["memory_bytes"].as_u64().unwrap() > 100_000, "{shared}");
    assert!(shared["cpu_ms"].is_u64(), "{shared}");
    let own = &status(&home, "own")["instances"];
    assert_eq!((own.as_array().unwrap().len(), &own[0]["clients"][0]["count"]), (1, &json!(1)));
    let log = own[0]["log_file"].as_str().unwrap();
    home.wait_until("its log is written", || {
        fs::read_to_string(log).is_ok_and(|text| text.contains("started "))
    });
    assert!(status(&home, "own")["log_file"].is_null(), "nothing is written for all of them");
    assert!(home.xy(&["status", "own"]).stdout.contains(log));
    let text = home.xy(&["status", "one"]).stdout;
    assert!(text.contains("of memory") && text.contains("clients"), "{text}");
    drop(clients);
    home.wait_until("no client uses it", || {
        status(&home, "one")["instances"][0]["clients"].is_null()
    });
    home.finish();
}

#[test]
fn two_names_share_one_process_until_both_are_stopped() {
    let home = home();
    for name in ["a", "b"] {
        serve(&home, name, &[], "share-key \"k\"\n");
    }
    let daemon = home.daemon();
    let pid = running(&home, "a");
    assert_eq!(running(&home, "b"), pid);
    assert_eq!((servers_alive(&home).len(), &status(&home, "b")["shares"]), (1, &json!("a")));
    let one = client(&home);
    home.wait_until("both are known", || {
        let names = one.tool_names();
        ["a__who", "b__who"].iter().all(|name| names.iter().any(|it| it == name))
    });
    assert_eq!((who(&one, "a"), who(&one, "b")), (pid, pid));
    assert_eq!(one.call_text("b__echo", json!({ "message": "x" })), "x");
    support::wait_for_line(&home, "b", &format!("started {pid}"));
    ask(&home, "stop", json!({ "name": "a" }));
    home.wait_until("only one name is listed", || {
        let names = one.tool_names();
        !names.contains(&"a__who".to_owned()) && names.contains(&"b__who".to_owned())
    });
    let answer = one.call("a__who", json!({}));
    assert!(answer.get("error").is_some(), "{answer}");
    assert_eq!((who(&one, "b"), status(&home, "a")["state"].clone()), (pid, json!("stopped")));
    let again = |_| ask(&home, "start", json!({ "name": "a" }));
    let started = json!({ "started": ["a"], "already_running": [] });
    let was_up = json!({ "started": [], "already_running": ["a"] });
    assert_eq!(
        [0, 1].map(again),
        [started, was_up],
        "its process ran all the time, but not as `a`"
    );
    ask(&home, "stop", json!({ "name": "a" }));
    // A stopped name stays stopped, also in the next daemon, and the process goes on.
    daemon.kill9();
    one.wait_closed();
    home.daemon();
    home.wait_for_state("a", "stopped");
    let one = client(&home);
    who(&one, "b");
    ask(&home, "stop", json!({ "name": "b" }));
    home.wait_until("nothing is left", || servers_alive(&home).is_empty());
    ask(&home, "start", json!({ "name": "b" }));
    who(&one, "b");
    assert_eq!(
        (servers_alive(&home).len(), status(&home, "a")["state"].clone()),
        (1, json!("stopped"))
    );
    assert_eq!(home.xy(&["self-test"]).code, 0);
    home.finish();
}

#[test]
fn lazy_servers_with_one_key_start_once() {
    let home = home();
    let sleeps_after = |idle: &str| {
        for name in ["a", "b"] {
            let more = format!("{LAZY}idle-stop \"{idle}\"\nshare-key \"k\"\n");
            serve(&home, name, &[], &more);
        }
    };
    sleeps_after("1m");
    home.daemon();
    let clients = start_clients(&home, 10, |number, client| {
        who(client, if number % 2 == 0 { "a" } else { "b" })
    });
    let pids: BTreeSet<u32> = clients.iter().map(|it| it.1).collect();
    assert_eq!(pids.len(), 1, "{pids:?}");
    sleeps_after("500ms");
    ask(&home, "reload", json!({}));
    for name in ["b", "a"] {
        home.wait_for_state(name, "asleep");
        who(&clients[0].0, name);
    }
    home.finish();
}
