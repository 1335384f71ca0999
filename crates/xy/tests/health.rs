//! Readiness and health of real servers: who is waited for, who is restarted, and who is not.

mod support;

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{ask, home, pid_in, running, running_after, says, signal, status};
use xy_testkit::remote::{Mood, Remote, To};
use xy_testkit::{Home, McpSocket, free_port, is_alive};

/// Servers of these tests come back at once.
const TIRELESS: &str = "restart { backoff-initial \"0s\"; max-attempts 0; max-retries-per-minute 0 }\n\
     stop { grace \"1s\" }\n";

/// Probes that come often and are not patient.
const HASTY: &str = "health { interval \"50ms\"; timeout \"200ms\"; failures 3 }\n";

/// Many times what it takes such probes to find a server dead.
const A_LONG_TIME: u64 = 4000;

#[expect(clippy::disallowed_methods, reason = "what must not happen cannot be waited for")]
fn linger(time: Duration) {
    std::thread::sleep(time);
}

/// Writes the file of a server with these flags.
fn serve(home: &Home, name: &str, flags: &[&str], more: &str) {
    home.server(name, &format!("{}{TIRELESS}{more}", home.kdl_mcp(flags)));
}

/// Waits until probes say this of a server.
#[track_caller]
fn has_health(home: &Home, name: &str, health: &str) -> Value {
    home.wait_until(&format!("`{name}` is {health}"), || {
        let status = status(home, name);
        (status["health"] == health).then_some(status)
    })
}

/// A client that sees one server only.
#[track_caller]
fn client(home: &Home, server: &str) -> McpSocket {
    let hello = json!({ "xy": "hello", "protocol": 1, "view": { "server": server } });
    let client = McpSocket::connect(&home.mcp_socket(), &hello.to_string());
    client.initialize();
    client
}

#[test]
fn one_that_hangs_is_restarted_and_answers_again() {
    let home = home();
    serve(&home, "one", &[], HASTY);
    home.daemon();
    let first = running(&home, "one");
    has_health(&home, "one", "healthy");

    signal(first, Signal::STOP);
    let now = running_after(&home, "one", 1);
    assert_ne!(pid_in(&now), first);
    let told = now["transitions"].to_string();
    assert!(told.contains("unhealthy: 3 probes in a row failed"), "{told}");
    assert!(told.contains("`ping` was not answered within 200ms"), "{told}");
    assert_eq!(now["last_exit"]["expected"], false, "it counts: {now:#}");
    has_health(&home, "one", "healthy");
    let said = client(&home, "one").call_text("echo", json!({ "message": "hi" }));
    assert_eq!(said, "hi");
    home.finish();
}

#[test]
fn one_that_hangs_in_the_middle_of_calls_is_restarted_too() {
    let home = home();
    serve(&home, "one", &[], HASTY);
    home.daemon();
    let first = running(&home, "one");
    has_health(&home, "one", "healthy");
    let client = client(&home, "one");
    // What becomes of the call is shown elsewhere: its successor gets it if this one has not
    // read it.
    client.start_call("never", json!({}));
    signal(first, Signal::STOP);
    let now = running_after(&home, "one", 1);
    assert!(now["transitions"].to_string().contains("in flight and does nothing"), "{now:#}");
    home.finish();
}

#[test]
fn one_that_is_deadlocked_is_restarted_whether_or_not_it_has_calls() {
    for has_calls in [false, true] {
        let home = home();
        serve(&home, "one", &["--dull"], HASTY);
        home.daemon();
        let first = running(&home, "one");
        has_health(&home, "one", "healthy");
        let client = client(&home, "one");
        if has_calls {
            client.start_call("never", json!({}));
        }
        assert_eq!(client.call_text("deadlock", json!({})), "done");
        let now = running_after(&home, "one", 1);
        assert_ne!(pid_in(&now), first);
        assert!(now["transitions"].to_string().contains("unhealthy: 3 probes"), "{now:#}");
        assert_eq!(client.call_text("echo", json!({ "message": "hi" })), "hi");
        home.finish();
    }
}

#[test]
fn one_that_is_slow_but_busy_is_left_alone() {
    // Both hear no ping meanwhile: one uses the processor, the other says what it does.
    for tool in ["spin", "mutter"] {
        let home = home();
        serve(&home, "one", &["--dull"], HASTY);
        home.daemon();
        let first = running(&home, "one");
        has_health(&home, "one", "healthy");
        let client = client(&home, "one");
        let slow = client.call_text(tool, json!({ "ms": A_LONG_TIME }));
        assert_eq!(slow, "done", "{tool}");
        let now = status(&home, "one");
        assert_eq!((pid_in(&now), &now["restart_count"]), (first, &json!(0)), "{tool}: {now:#}");
        has_health(&home, "one", "healthy");
        home.finish();
    }
}

#[test]
fn one_that_does_nothing_in_a_call_and_hears_nothing_is_restarted() {
    let home = home();
    serve(&home, "one", &["--dull"], HASTY);
    home.daemon();
    has_health(&home, "one", "healthy");
    let client = client(&home, "one");
    let call = client.start_call("stall", json!({ "ms": 60_000 }));
    says(&home, "one", "begins to stall");
    running_after(&home, "one", 1);
    assert!(client.wait_answer(call)["error"].is_object());
    home.finish();
}

#[test]
fn a_call_that_hangs_its_server_does_not_hang_the_next_life() {
    let home = home();
    serve(&home, "one", &["--dull"], HASTY);
    home.daemon();
    has_health(&home, "one", "healthy");
    let (poison, other) = (client(&home, "one"), client(&home, "one"));
    // The tool is read-only, so any other end of its server would have it sent again.
    let hangs = poison.start_call("stall", json!({ "ms": 600_000 }));
    says(&home, "one", "begins to stall");
    let said = other.call_text("echo", json!({ "message": "hi" }));
    assert_eq!(said, "hi", "no server had read it before");
    let words = poison.wait_answer(hangs)["error"]["message"].to_string();
    assert!(words.contains("outcome unknown: `one` hung"), "{words}");
    assert!(words.contains("the server hung while it was open"), "{words}");
    assert_eq!(status(&home, "one")["restart_count"], 1);
    home.finish();
}

#[test]
fn a_call_that_a_busy_server_does_not_read_gets_an_error_in_time() {
    let home = home();
    home.write_config("xy.kdl", "park { queue \"2s\" }\n");
    serve(&home, "one", &["--dull"], HASTY);
    home.daemon();
    has_health(&home, "one", "healthy");
    let (slow, other) = (client(&home, "one"), client(&home, "one"));
    let spins = slow.start_call("spin", json!({ "ms": 2 * A_LONG_TIME }));
    says(&home, "one", "begins to spin");
    let waits = other.start_call("echo", json!({ "message": "hi" }));
    let words = other.wait_answer(waits)["error"]["message"].to_string();
    assert!(words.contains("`one` did not read the call within 2s"), "{words}");
    assert!(words.contains("it is busy with `tools/call`"), "{words}");
    assert_eq!(slow.wait_answer(spins)["result"]["content"][0]["text"], "done");
    assert_eq!(other.call_text("echo", json!({ "message": "hi" })), "hi");
    assert_eq!(status(&home, "one")["restart_count"], 0);
    home.finish();
}

#[test]
fn one_behind_the_cli_of_an_engine_that_does_nothing_in_a_call_is_left_alone() {
    let home = home();
    // All that can be seen of such a server is its CLI, which does nothing itself.
    let cli = home.root().join("harness/docker");
    let server = home.program("xy-test-mcp");
    let script = format!(
        "#!/bin/sh\ncase $1 in run) exec '{}' --dull;; *) exit 1;; esac\n",
        server.display()
    );
    std::fs::write(&cli, script).unwrap();
    std::fs::set_permissions(&cli, Permissions::from_mode(0o755)).unwrap();
    let process = format!("command \"{}\"\nargs \"run\" \"-i\" \"image\"\n", cli.display());
    home.server("one", &format!("{process}{TIRELESS}{HASTY}"));
    home.daemon();
    let first = running(&home, "one");
    has_health(&home, "one", "healthy");
    let client = client(&home, "one");
    assert_eq!(client.call_text("stall", json!({ "ms": A_LONG_TIME })), "done");
    let now = status(&home, "one");
    assert_eq!((pid_in(&now), &now["restart_count"]), (first, &json!(0)), "{now:#}");
    has_health(&home, "one", "healthy");
    // Where nobody waits for it, silence is what it is with any other.
    signal(first, Signal::STOP);
    let now = running_after(&home, "one", 1);
    assert!(now["transitions"].to_string().contains("unhealthy: 3 probes"), "{now:#}");
    home.finish();
}

#[test]
fn one_that_ignores_pings_is_never_restarted_for_that() {
    let home = home();
    let diary = home.root().join("harness/one.diary");
    let flags = ["--ignore-ping", "--dull", "--diary", diary.to_str().unwrap()];
    serve(&home, "one", &flags, HASTY);
    home.daemon();
    let first = running(&home, "one");
    let diary_now = || std::fs::read_to_string(&diary).unwrap_or_default(); // It may not be there.
    let pings = || diary_now().matches("\"ping\"").count();
    home.wait_until("it was asked often enough", || pings() >= 3);
    // Not even while it does nothing in a call.
    let client = client(&home, "one");
    let stalled = client.call_text("stall", json!({ "ms": A_LONG_TIME / 2 }));
    assert_eq!(stalled, "done");
    let now = status(&home, "one");
    assert_eq!((pid_in(&now), &now["restart_count"]), (first, &json!(0)), "{now:#}");
    has_health(&home, "one", "unknown");
    // A few more were made while it said something else, and none since.
    home.wait_until("it is left in peace", || {
        let so_far = pings();
        linger(Duration::from_millis(A_LONG_TIME / 2));
        pings() == so_far
    });
    assert!(pings() < 30, "there were only a few: {}", pings());
    home.finish();
}

#[test]
fn one_that_hangs_before_it_was_asked_anything_is_restarted() {
    // It is stopped between its answer to the greeting and all that comes after that.
    for era in ["legacy", "modern"] {
        let home = home();
        let frozen = home.root().join("harness/frozen");
        let flags = ["--era", era, "--unbuffered", "--freeze-once", frozen.to_str().unwrap()];
        // So that its greeting is one question.
        serve(&home, "one", &flags, &format!("{HASTY}era \"{era}\"\n"));
        home.daemon();
        let client = client(&home, "one");
        let call = client.start_call("echo", json!({ "message": "hi" }));
        let now = running_after(&home, "one", 1);
        let told = now["transitions"].to_string();
        assert!(told.contains("unhealthy: 3 probes in a row failed"), "{era}: {told}");
        let said = client.wait_answer(call);
        assert_eq!(said["result"]["content"][0]["text"], "hi", "{era}: nobody had read it");
        has_health(&home, "one", "healthy");
        home.finish();
    }
}

#[test]
fn one_over_http_that_hangs_before_it_was_asked_anything_is_restarted() {
    // It is stopped between the end of its greeting and all that comes after that. Its second life
    // is known to be of the same era.
    let (discover, initialize) = ("server/discover", "initialize");
    let table = [
        ("legacy", &[discover, initialize, "notifications/initialized"][..], initialize),
        ("modern", &[discover], discover),
    ];
    for (era, greeting, next) in table {
        let home = home();
        let frozen = home.root().join("harness/frozen");
        let diary = home.root().join("harness/one.diary");
        let port = free_port().to_string();
        let flags = ["--era", era, "--http", &port, "--freeze-once", frozen.to_str().unwrap()];
        let flags = [&flags[..], &["--diary", diary.to_str().unwrap()]].concat();
        serve(&home, "one", &flags, &format!("port {port}\ntransport \"http\"\n{HASTY}"));
        home.daemon();
        home.wait_until("it is stopped", || frozen.exists());
        let now = running_after(&home, "one", 1);
        let told = now["transitions"].to_string();
        assert!(told.contains("unhealthy: 3 probes in a row failed"), "{era}: {told}");
        has_health(&home, "one", "healthy");
        // What its first life has heard is the greeting, and nothing else.
        let diary = std::fs::read_to_string(&diary).unwrap();
        let method = |line: &str| serde_json::from_str::<Value>(line).unwrap()["method"].clone();
        let heard: Vec<Value> = diary.lines().map(method).collect();
        assert_eq!(heard[..=greeting.len()], [greeting, &[next]].concat(), "{era}");
        let said = client(&home, "one").call_text("echo", json!({ "message": "hi" }));
        assert_eq!(said, "hi", "{era}");
        home.finish();
    }
}

#[test]
fn one_of_the_newer_era_is_asked_what_it_knows() {
    let home = home();
    let diary = home.root().join("harness/one.diary");
    let flags = ["--era", "modern", "--diary", diary.to_str().unwrap()];
    serve(&home, "one", &flags, HASTY);
    home.daemon();
    let now = has_health(&home, "one", "healthy");
    assert!(!std::fs::read_to_string(&diary).unwrap().contains("\"ping\""));
    signal(pid_in(&now), Signal::STOP);
    let now = running_after(&home, "one", 1);
    assert!(now["transitions"].to_string().contains("`server/discover` was not answered"));
    home.finish();
}

#[test]
fn new_rules_for_probes_apply_to_a_living_server() {
    let home = home();
    serve(&home, "one", &[], "health { probe \"off\" }\n");
    home.daemon();
    let first = running(&home, "one");
    assert_eq!(status(&home, "one")["health"], "unknown");
    serve(&home, "one", &[], HASTY);
    let reloaded = ask(&home, "reload", json!({}));
    assert_eq!(reloaded["updated"], json!(["one"]), "{reloaded:#}");
    let now = has_health(&home, "one", "healthy");
    assert_eq!(pid_in(&now), first);
    home.finish();
}

#[test]
fn one_that_an_earlier_daemon_knew_to_answer_is_known_to() {
    let home = home();
    serve(&home, "one", &[], HASTY);
    let daemon = home.daemon();
    let first = running(&home, "one");
    has_health(&home, "one", "healthy");
    daemon.kill9();
    signal(first, Signal::STOP);
    home.daemon();
    let now = home.wait_until("another life has begun", || {
        let now = status(&home, "one");
        (now["state"] == "running" && pid_in(&now) != first).then_some(now)
    });
    assert!(now["transitions"].to_string().contains("unhealthy"), "{now:#}");
    home.finish();
}

#[test]
fn a_server_is_ready_once_its_page_says_so() {
    let home = home();
    let port = free_port();
    let flags = ["--http", &port.to_string(), "--well-after", "3"];
    let more = format!("port {port}\nready {{ probe \"http\"; within \"20s\" }}\n");
    serve(&home, "one", &flags, &more);
    home.daemon();
    running(&home, "one");
    let said = client(&home, "one").call_text("echo", json!({ "message": "hi" }));
    assert_eq!(said, "hi");
    home.finish();
}

#[test]
fn a_server_whose_page_never_says_so_is_never_ready() {
    let home = home();
    let port = free_port();
    let flags = ["--http", &port.to_string(), "--well-after", "1000000"];
    let ready = "ready { probe \"http\"; path \"/up\"; within \"300ms\" }\n";
    serve(&home, "one", &flags, &format!("port {port}\n{ready}"));
    home.daemon();
    home.wait_until("it was not ready in time", || {
        status(&home, "one")["transitions"].to_string().contains("not ready within 300ms")
    });
    ask(&home, "stop", json!({ "name": "one" }));
    home.finish();
}

/// Answers each GET of a path with its status, and says which were asked for.
fn pages(answers: &'static [(&'static str, &'static str)]) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let port = listener.local_addr().expect("it listens").port();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut head = [0; 4096];
            let count = (&stream).read(&mut head).unwrap_or_default();
            let head = String::from_utf8_lossy(&head[..count]);
            let path = head.split(' ').nth(1).unwrap_or_default();
            noted.lock().expect("nobody panics").push(path.to_owned());
            let known = answers.iter().find(|(it, _)| *it == path);
            let status = known.map_or("404 Not Found", |(_, status)| *status);
            let head = format!("HTTP/1.1 {status}\r\nLocation: /fine\r\nContent-Length: 0\r\n\r\n");
            let _ = (&stream).write_all(head.as_bytes()); // It need not be waited for.
        }
    });
    (port, asked)
}

#[test]
fn readiness_is_asked_for_at_the_path_that_the_file_names() {
    let home = home();
    // The block, the path it means, and whether what is there is success.
    let table = [
        ("seed", "", "/mcp/health", true),
        ("deep", "path \"/any/path/at-all.txt\";", "/any/path/at-all.txt", true),
        ("moved", "path \"/moved\";", "/moved", false),
        ("broken", "path \"/broken\";", "/broken", false),
    ];
    let mut asked = Vec::new();
    for (name, path, ..) in table {
        let (port, paths) = pages(&[
            ("/mcp/health", "204 No Content"),
            ("/any/path/at-all.txt", "200 OK"),
            ("/fine", "200 OK"),
            ("/moved", "302 Found"),
            ("/broken", "500 Internal Server Error"),
        ]);
        asked.push(paths);
        let process = home.kdl_command("xy-test-sleep-server", &[]);
        let within = if name == "seed" || name == "deep" { "1m" } else { "300ms" };
        let ready = format!("ready {{ probe \"http\"; {path} within \"{within}\" }}\n");
        let rest = format!("port {port}\n{ready}health {{ probe \"off\" }}\n{TIRELESS}");
        home.write_config(&format!("servers/{name}.kdl"), &format!("{process}{rest}"));
    }
    home.daemon();
    for ((name, _, path, is_good), asked) in table.into_iter().zip(asked) {
        if is_good {
            running(&home, name);
        } else {
            home.wait_until("it was not ready in time", || {
                status(&home, name)["transitions"].to_string().contains("not ready within 300ms")
            });
            let told = status(&home, name)["transitions"].to_string();
            assert!(!told.contains("\"running\""), "{name}: {told}");
        }
        let asked = asked.lock().unwrap().clone();
        assert!(asked.iter().any(|it| it == path), "{name}: {asked:?}");
        // Whoever speaks MCP with it asks at the path for that.
        assert!(asked.iter().all(|it| it == path || it == "/mcp"), "{name}: {asked:?}");
    }
    ask(&home, "stop", json!({ "all": true }));
    home.finish();
}

#[test]
fn a_server_that_listens_is_ready_though_it_is_not_greeted_yet() {
    let home = home();
    let port = free_port();
    let flags = ["--http", &port.to_string(), "--slow-init", "1500"];
    let more = format!("port {port}\nready {{ probe \"tcp\"; within \"20s\" }}\n{HASTY}");
    serve(&home, "one", &flags, &more);
    home.daemon();
    running(&home, "one");
    // What is called now waits until it has been greeted.
    let said = client(&home, "one").call_text("echo", json!({ "message": "hi" }));
    assert_eq!(said, "hi");
    has_health(&home, "one", "healthy");
    home.finish();
}

#[test]
fn a_page_that_says_nothing_has_its_server_restarted() {
    let home = home();
    let port = free_port();
    let flags = ["--http", &port.to_string()];
    let health = "health { probe \"http\"; interval \"50ms\"; timeout \"500ms\" }\n";
    serve(&home, "one", &flags, &format!("port {port}\n{health}"));
    home.daemon();
    let first = running(&home, "one");
    has_health(&home, "one", "healthy");
    signal(first, Signal::STOP);
    let now = running_after(&home, "one", 1);
    let told = now["transitions"].to_string();
    assert!(told.contains("/mcp/health gave no answer within 500ms"), "{told}");
    home.finish();
}

/// A page that answers with these in turn and then with 200, but with 503 for as long as the
/// process lives whose id it is told; and what it answered.
fn moody(
    script: &'static [&'static str],
    ill: &Arc<AtomicU32>,
) -> (u16, Arc<Mutex<Vec<&'static str>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let port = listener.local_addr().expect("it listens").port();
    let told: Arc<Mutex<Vec<&str>>> = Arc::default();
    let (ill, noted) = (ill.clone(), told.clone());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut head = [0; 4096];
            let count = (&stream).read(&mut head).unwrap_or_default();
            let status = if head[..count].starts_with(b"GET /mcp/health ") {
                let mut noted = noted.lock().expect("nobody panics");
                let ill = ill.load(Ordering::SeqCst);
                let is_ill = ill != 0 && is_alive(ill);
                let now = if is_ill { "503 Service Unavailable" } else { "200 OK" };
                let status = script.get(noted.len()).copied().unwrap_or(now);
                noted.push(status);
                status
            } else {
                "404 Not Found" // Whoever speaks MCP.
            };
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
            let _ = (&stream).write_all(head.as_bytes()); // It need not be waited for.
        }
    });
    (port, told)
}

#[test]
fn a_page_that_says_503_as_often_in_a_row_as_the_file_says_has_its_server_restarted() {
    const WELL: &str = "200 OK";
    const ILL: &str = "503 Service Unavailable";
    // It is ready; then rows of two, each ended by a good answer.
    const SCRIPT: [&str; 7] = [WELL, ILL, ILL, WELL, ILL, ILL, WELL];
    let home = home();
    let ill = Arc::default();
    let (port, told) = moody(&SCRIPT, &ill);
    let sleeper = home.kdl_command("xy-test-sleep-server", &["--every", "600000"]);
    let probes = "ready { probe \"http\"; within \"1m\" }\n\
                  health { probe \"http\"; interval \"50ms\"; timeout \"10s\"; failures 3 }\n";
    home.server("one", &format!("{sleeper}{TIRELESS}port {port}\n{probes}"));
    home.daemon();
    let first = running(&home, "one");
    home.wait_until("it was probed in rows", || told.lock().unwrap().len() > SCRIPT.len());
    let now = has_health(&home, "one", "healthy");
    assert_eq!((pid_in(&now), &now["restart_count"]), (first, &json!(0)), "{now:#}");

    ill.store(first, Ordering::SeqCst);
    let now = running_after(&home, "one", 1);
    assert_ne!(pid_in(&now), first);
    let why = format!(
        "unhealthy: 3 probes in a row failed, the last: \
         GET http://127.0.0.1:{port}/mcp/health was answered with status 503"
    );
    assert!(now["transitions"].to_string().contains(&why), "{now:#}");
    let now = has_health(&home, "one", "healthy");
    assert_eq!(now["restart_count"], 1, "its successor is well: {now:#}");
    let told = told.lock().unwrap().clone();
    let rows: Vec<&[&str]> = told.chunk_by(|one, other| one == other).collect();
    let [before @ .., last, after] = &rows[..] else { panic!("{told:?}") };
    assert_eq!((before.len(), last[0], after[0]), (5, ILL, WELL), "{told:?}");
    assert!(last.len() >= 3, "{told:?}");
    home.finish();
}

#[test]
fn one_elsewhere_that_falls_silent_is_unreachable_and_found_again() {
    let home = home();
    let remote = Remote::start();
    let delays = "restart { backoff-initial \"100ms\"; backoff-max \"100ms\" }\n";
    home.server("far", &format!("{}{delays}ready {{ within \"1s\" }}\n{HASTY}", remote.kdl()));
    home.daemon();
    has_health(&home, "far", "healthy");
    remote.mood(To::Everything, Mood::Silent);
    let now = has_health(&home, "far", "unreachable");
    assert_eq!(now["restart_count"], 0, "nothing is counted: {now:#}");
    assert!(now["last_exit"].is_null(), "nothing has ended: {now:#}");
    remote.mood(To::Everything, Mood::Well);
    has_health(&home, "far", "healthy");
    home.finish();
}

/// Whether it is alive, and whether it is ready.
fn alive_and_ready(now: &Value) -> (bool, bool) {
    let is = |word: &str| now[word].as_bool().expect("it is told");
    (is("alive"), is("ready"))
}

#[test]
fn one_that_starts_is_alive_before_it_is_ready() {
    let home = home();
    let port = free_port();
    let process = home.kdl_command("xy-test-sleep-server", &[]);
    let ready = "ready { probe \"tcp\"; within \"10m\" }\nhealth { probe \"off\" }\n";
    home.write_config("servers/one.kdl", &format!("{process}port {port}\n{ready}"));
    home.daemon();
    let now = home.wait_until("its process is there", || {
        let now = status(&home, "one");
        now["pid"].is_u64().then_some(now)
    });
    assert_eq!(now["state"], "starting", "{now:#}");
    assert_eq!(alive_and_ready(&now), (true, false), "{now:#}");

    let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    let later = home.wait_for_state("one", "running");
    assert_eq!(later["pid"], now["pid"]);
    assert_eq!(alive_and_ready(&status(&home, "one")), (true, true));
    drop(listener);
    ask(&home, "stop", json!({ "name": "one" }));
    assert_eq!(alive_and_ready(&status(&home, "one")), (false, false));
    home.finish();
}

#[test]
fn one_elsewhere_is_alive_and_ready_while_it_answers() {
    let home = home();
    let remote = Remote::start();
    let delays = "restart { backoff-initial \"100ms\"; backoff-max \"100ms\" }\n";
    home.server("far", &format!("{}{delays}ready {{ within \"1s\" }}\n{HASTY}", remote.kdl()));
    home.daemon();
    let now = has_health(&home, "far", "healthy");
    assert_eq!(alive_and_ready(&now), (true, true), "{now:#}");
    remote.mood(To::Everything, Mood::Silent);
    let now = has_health(&home, "far", "unreachable");
    assert_eq!(alive_and_ready(&now), (false, false), "{now:#}");
    remote.mood(To::Everything, Mood::Well);
    let now = has_health(&home, "far", "healthy");
    assert_eq!(alive_and_ready(&now), (true, true), "{now:#}");
    home.finish();
}
