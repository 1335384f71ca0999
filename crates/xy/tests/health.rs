//! Readiness and health of real servers: which are restarted, and which are left alone.

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
use support::{ask, home, pid_in, running, running_after, signal, status, wait_for_line};
use xy_testkit::remote::{Behaviour, Remote, To};
use xy_testkit::{Home, McpSocket, free_port, is_alive};

/// Restart rules without delays and limits.
const UNLIMITED_RESTARTS: &str = "restart { backoff-initial \"0s\"; max-attempts 0; max-retries-per-minute 0 }\n\
     stop { grace \"1s\" }\n";

/// Frequent probes with a short timeout.
const FAST_PROBES: &str = "health { interval \"50ms\"; timeout \"200ms\"; failures 3 }\n";

/// Milliseconds; many times longer than such probes need to find a dead server.
const LONG_TIME_MS: u64 = 4000;

#[expect(clippy::disallowed_methods, reason = "no event marks that something did not happen")]
fn linger(time: Duration) {
    std::thread::sleep(time);
}

/// Writes the file of a server with these flags.
fn serve(home: &Home, name: &str, flags: &[&str], more: &str) {
    home.server(name, &format!("{}{UNLIMITED_RESTARTS}{more}", home.kdl_mcp(flags)));
}

/// Waits until a server has this health.
#[track_caller]
fn wait_for_health(home: &Home, name: &str, health: &str) -> Value {
    home.wait_until(&format!("`{name}` is {health}"), || {
        let status = status(home, name);
        (status["health"] == health).then_some(status)
    })
}

/// Returns a client of one server.
#[track_caller]
fn client(home: &Home, server: &str) -> McpSocket {
    let hello = json!({ "xy": "hello", "protocol": 1, "view": { "server": server } });
    let client = McpSocket::connect(&home.mcp_socket(), &hello.to_string());
    client.initialize();
    client
}

#[test]
fn status_shows_when_a_server_was_last_probed() {
    let home = home();
    serve(&home, "one", &[], FAST_PROBES);
    serve(&home, "unprobed", &[], "health { probe \"off\" }\n");
    home.daemon();
    let probed_at = |name| status(&home, name)["last_health_check"].as_str().map(str::to_owned);
    wait_for_health(&home, "one", "healthy");
    let first = probed_at("one");
    assert!(first.is_some(), "{:#}", status(&home, "one"));
    // Moments as text have one length, so they compare like the moments.
    home.wait_until("it is probed again", || probed_at("one") > first);
    let shown = home.xy(&["status", "one"]).stdout;
    assert!(shown.contains("checked"), "{shown}");
    running(&home, "unprobed");
    assert_eq!(probed_at("unprobed"), None);
    home.finish();
}

#[test]
fn hanging_server_is_restarted() {
    let home = home();
    serve(&home, "one", &[], FAST_PROBES);
    home.daemon();
    let first = running(&home, "one");
    wait_for_health(&home, "one", "healthy");

    signal(first, Signal::STOP);
    let now = running_after(&home, "one", 1);
    assert_ne!(pid_in(&now), first);
    let reported = now["transitions"].to_string();
    assert!(reported.contains("unhealthy: 3 probes in a row failed"), "{reported}");
    assert!(reported.contains("`ping` was not answered within 200ms"), "{reported}");
    assert_eq!(now["last_exit"]["expected"], false, "it counts: {now:#}");
    wait_for_health(&home, "one", "healthy");
    let answer = client(&home, "one").call_text("echo", json!({ "message": "hi" }));
    assert_eq!(answer, "hi");
    home.finish();
}

#[test]
fn server_that_hangs_during_calls_is_restarted() {
    let home = home();
    serve(&home, "one", &[], FAST_PROBES);
    home.daemon();
    let first = running(&home, "one");
    wait_for_health(&home, "one", "healthy");
    let client = client(&home, "one");
    // Other tests cover the outcome of the call: the successor gets it if this process has not read
    // it.
    client.start_call("never", json!({}));
    signal(first, Signal::STOP);
    let now = running_after(&home, "one", 1);
    assert!(now["transitions"].to_string().contains("in flight and is idle"), "{now:#}");
    home.finish();
}

#[test]
fn deadlocked_server_is_restarted() {
    for has_calls in [false, true] {
        let home = home();
        serve(&home, "one", &["--dull"], FAST_PROBES);
        home.daemon();
        let first = running(&home, "one");
        wait_for_health(&home, "one", "healthy");
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
fn slow_busy_server_is_left_alone() {
    // Neither server reads pings meanwhile: one uses the processor, the other writes to its log.
    for tool in ["spin", "mutter"] {
        let home = home();
        serve(&home, "one", &["--dull"], FAST_PROBES);
        home.daemon();
        let first = running(&home, "one");
        wait_for_health(&home, "one", "healthy");
        let client = client(&home, "one");
        let slow = client.call_text(tool, json!({ "ms": LONG_TIME_MS }));
        assert_eq!(slow, "done", "{tool}");
        let now = status(&home, "one");
        assert_eq!((pid_in(&now), &now["restart_count"]), (first, &json!(0)), "{tool}: {now:#}");
        wait_for_health(&home, "one", "healthy");
        home.finish();
    }
}

#[test]
fn server_idle_in_a_call_without_reading_is_restarted() {
    let home = home();
    serve(&home, "one", &["--dull"], FAST_PROBES);
    home.daemon();
    wait_for_health(&home, "one", "healthy");
    let client = client(&home, "one");
    let call = client.start_call("stall", json!({ "ms": 60_000 }));
    wait_for_line(&home, "one", "begins to stall");
    running_after(&home, "one", 1);
    assert!(client.wait_answer(call)["error"].is_object());
    home.finish();
}

#[test]
fn call_that_hangs_its_server_is_not_repeated() {
    let home = home();
    serve(&home, "one", &["--dull"], FAST_PROBES);
    home.daemon();
    wait_for_health(&home, "one", "healthy");
    let (poison, other) = (client(&home, "one"), client(&home, "one"));
    // The tool is read-only, so after any other end of its server xy would send it again.
    let hangs = poison.start_call("stall", json!({ "ms": 600_000 }));
    wait_for_line(&home, "one", "begins to stall");
    let answer = other.call_text("echo", json!({ "message": "hi" }));
    assert_eq!(answer, "hi", "no server had read it before");
    let words = poison.wait_answer(hangs)["error"]["message"].to_string();
    assert!(words.contains("outcome unknown: `one` hung"), "{words}");
    assert!(words.contains("the server hung while it was open"), "{words}");
    assert_eq!(status(&home, "one")["restart_count"], 1);
    home.finish();
}

#[test]
fn unread_call_of_a_busy_server_fails_in_time() {
    let home = home();
    home.write_config("xy.kdl", "park { queue \"2s\" }\n");
    serve(&home, "one", &["--dull"], FAST_PROBES);
    home.daemon();
    wait_for_health(&home, "one", "healthy");
    let (slow, other) = (client(&home, "one"), client(&home, "one"));
    let spins = slow.start_call("spin", json!({ "ms": 2 * LONG_TIME_MS }));
    wait_for_line(&home, "one", "begins to spin");
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
fn engine_cli_server_is_not_probed_during_a_call() {
    let home = home();
    // xy sees only the CLI of such a server, which is idle itself.
    let cli = home.root().join("harness/docker");
    let server = home.program("xy-test-mcp");
    let script = format!(
        "#!/bin/sh\ncase $1 in run) exec '{}' --dull;; *) exit 1;; esac\n",
        server.display()
    );
    std::fs::write(&cli, script).unwrap();
    std::fs::set_permissions(&cli, Permissions::from_mode(0o755)).unwrap();
    let process = format!("command \"{}\"\nargs \"run\" \"-i\" \"image\"\n", cli.display());
    home.server("one", &format!("{process}{UNLIMITED_RESTARTS}{FAST_PROBES}"));
    home.daemon();
    let first = running(&home, "one");
    wait_for_health(&home, "one", "healthy");
    let client = client(&home, "one");
    assert_eq!(client.call_text("stall", json!({ "ms": LONG_TIME_MS })), "done");
    let now = status(&home, "one");
    assert_eq!((pid_in(&now), &now["restart_count"]), (first, &json!(0)), "{now:#}");
    wait_for_health(&home, "one", "healthy");
    // Without a pending call, silence means the same as with any other server.
    signal(first, Signal::STOP);
    let now = running_after(&home, "one", 1);
    assert!(now["transitions"].to_string().contains("unhealthy: 3 probes"), "{now:#}");
    home.finish();
}

#[test]
fn server_that_ignores_pings_is_not_restarted() {
    let home = home();
    let input_log = home.root().join("harness/one.input");
    let flags = ["--ignore-ping", "--dull", "--input-log", input_log.to_str().unwrap()];
    serve(&home, "one", &flags, FAST_PROBES);
    home.daemon();
    let first = running(&home, "one");
    // The file may not exist yet.
    let input_log_now = || std::fs::read_to_string(&input_log).unwrap_or_default();
    let pings = || input_log_now().matches("\"ping\"").count();
    home.wait_until("it was probed often enough", || pings() >= 3);
    // Not even while it is idle in a call.
    let client = client(&home, "one");
    let stalled = client.call_text("stall", json!({ "ms": LONG_TIME_MS / 2 }));
    assert_eq!(stalled, "done");
    let now = status(&home, "one");
    assert_eq!((pid_in(&now), &now["restart_count"]), (first, &json!(0)), "{now:#}");
    wait_for_health(&home, "one", "unknown");
    // A few more probes ran while the log was read, and none since.
    home.wait_until("probes have stopped", || {
        let so_far = pings();
        linger(Duration::from_millis(LONG_TIME_MS / 2));
        pings() == so_far
    });
    assert!(pings() < 30, "there were only a few: {}", pings());
    home.finish();
}

#[test]
fn unused_server_that_hangs_is_restarted() {
    // The server is suspended right after its answer to the handshake.
    for era in ["legacy", "modern"] {
        let home = home();
        let frozen = home.root().join("harness/frozen");
        let flags = ["--era", era, "--unbuffered", "--freeze-once", frozen.to_str().unwrap()];
        // With a fixed era the handshake is one request.
        serve(&home, "one", &flags, &format!("{FAST_PROBES}era \"{era}\"\n"));
        home.daemon();
        let client = client(&home, "one");
        let call = client.start_call("echo", json!({ "message": "hi" }));
        let now = running_after(&home, "one", 1);
        let reported = now["transitions"].to_string();
        assert!(reported.contains("unhealthy: 3 probes in a row failed"), "{era}: {reported}");
        let answer = client.wait_answer(call);
        assert_eq!(answer["result"]["content"][0]["text"], "hi", "{era}: no process had read it");
        wait_for_health(&home, "one", "healthy");
        home.finish();
    }
}

#[test]
fn unused_http_server_that_hangs_is_restarted() {
    // The server is suspended right after its handshake. In its second life xy expects the same
    // era.
    let (discover, initialize) = ("server/discover", "initialize");
    let table = [
        ("legacy", &[discover, initialize, "notifications/initialized"][..], initialize),
        ("modern", &[discover], discover),
    ];
    for (era, handshake, next) in table {
        let home = home();
        let frozen = home.root().join("harness/frozen");
        let input_log = home.root().join("harness/one.input");
        let port = free_port().to_string();
        let flags = ["--era", era, "--http", &port, "--freeze-once", frozen.to_str().unwrap()];
        let flags = [&flags[..], &["--input-log", input_log.to_str().unwrap()]].concat();
        serve(&home, "one", &flags, &format!("port {port}\ntransport \"http\"\n{FAST_PROBES}"));
        home.daemon();
        home.wait_until("it is stopped", || frozen.exists());
        let now = running_after(&home, "one", 1);
        let reported = now["transitions"].to_string();
        assert!(reported.contains("unhealthy: 3 probes in a row failed"), "{era}: {reported}");
        wait_for_health(&home, "one", "healthy");
        // The first life has received the handshake, and nothing else.
        let input_log = std::fs::read_to_string(&input_log).unwrap();
        let method = |line: &str| serde_json::from_str::<Value>(line).unwrap()["method"].clone();
        let methods: Vec<Value> = input_log.lines().map(method).collect();
        assert_eq!(methods[..=handshake.len()], [handshake, &[next]].concat(), "{era}");
        let answer = client(&home, "one").call_text("echo", json!({ "message": "hi" }));
        assert_eq!(answer, "hi", "{era}");
        home.finish();
    }
}

#[test]
fn modern_server_is_probed_with_discover() {
    let home = home();
    let input_log = home.root().join("harness/one.input");
    let flags = ["--era", "modern", "--input-log", input_log.to_str().unwrap()];
    serve(&home, "one", &flags, FAST_PROBES);
    home.daemon();
    let now = wait_for_health(&home, "one", "healthy");
    assert!(!std::fs::read_to_string(&input_log).unwrap().contains("\"ping\""));
    signal(pid_in(&now), Signal::STOP);
    let now = running_after(&home, "one", 1);
    assert!(now["transitions"].to_string().contains("`server/discover` was not answered"));
    home.finish();
}

#[test]
fn new_probe_rules_apply_to_a_running_server() {
    let home = home();
    serve(&home, "one", &[], "health { probe \"off\" }\n");
    home.daemon();
    let first = running(&home, "one");
    assert_eq!(status(&home, "one")["health"], "unknown");
    serve(&home, "one", &[], FAST_PROBES);
    let reloaded = ask(&home, "reload", json!({}));
    assert_eq!(reloaded["updated"], json!(["one"]), "{reloaded:#}");
    let now = wait_for_health(&home, "one", "healthy");
    assert_eq!(pid_in(&now), first);
    home.finish();
}

#[test]
fn probe_support_survives_a_new_daemon() {
    let home = home();
    serve(&home, "one", &[], FAST_PROBES);
    let daemon = home.daemon();
    let first = running(&home, "one");
    wait_for_health(&home, "one", "healthy");
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
fn server_is_ready_once_its_page_is_200() {
    let home = home();
    let port = free_port();
    let flags = ["--http", &port.to_string(), "--well-after", "3"];
    let more = format!("port {port}\nready {{ probe \"http\"; within \"20s\" }}\n");
    serve(&home, "one", &flags, &more);
    home.daemon();
    running(&home, "one");
    let answer = client(&home, "one").call_text("echo", json!({ "message": "hi" }));
    assert_eq!(answer, "hi");
    home.finish();
}

#[test]
fn server_with_a_failing_page_is_never_ready() {
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

/// Serves each path with its status, and returns the port and the requested paths.
fn pages(answers: &'static [(&'static str, &'static str)]) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let port = listener.local_addr().expect("it listens").port();
    let requested: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = requested.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut head = [0; 4096];
            let count = (&stream).read(&mut head).unwrap_or_default();
            let head = String::from_utf8_lossy(&head[..count]);
            let path = head.split(' ').nth(1).unwrap_or_default();
            log.lock().expect("no thread panics").push(path.to_owned());
            let known = answers.iter().find(|(it, _)| *it == path);
            let status = known.map_or("404 Not Found", |(_, status)| *status);
            let head = format!("HTTP/1.1 {status}\r\nLocation: /fine\r\nContent-Length: 0\r\n\r\n");
            let _ = (&stream).write_all(head.as_bytes()); // The client may not wait for the answer.
        }
    });
    (port, requested)
}

#[test]
fn readiness_is_probed_at_the_configured_path() {
    let home = home();
    // The `ready` block, the resulting path, and whether its status means success.
    let table = [
        ("seed", "", "/mcp/health", true),
        ("deep", "path \"/any/path/at-all.txt\";", "/any/path/at-all.txt", true),
        ("moved", "path \"/moved\";", "/moved", false),
        ("broken", "path \"/broken\";", "/broken", false),
    ];
    let mut requested = Vec::new();
    for (name, path, ..) in table {
        let (port, paths) = pages(&[
            ("/mcp/health", "204 No Content"),
            ("/any/path/at-all.txt", "200 OK"),
            ("/fine", "200 OK"),
            ("/moved", "302 Found"),
            ("/broken", "500 Internal Server Error"),
        ]);
        requested.push(paths);
        let process = home.kdl_command("xy-test-sleep-server", &[]);
        let within = if name == "seed" || name == "deep" { "1m" } else { "300ms" };
        let ready = format!("ready {{ probe \"http\"; {path} within \"{within}\" }}\n");
        let rest = format!("port {port}\n{ready}health {{ probe \"off\" }}\n{UNLIMITED_RESTARTS}");
        home.write_config(&format!("servers/{name}.kdl"), &format!("{process}{rest}"));
    }
    home.daemon();
    for ((name, _, path, is_good), requested) in table.into_iter().zip(requested) {
        if is_good {
            running(&home, name);
        } else {
            home.wait_until("it was not ready in time", || {
                status(&home, name)["transitions"].to_string().contains("not ready within 300ms")
            });
            let reported = status(&home, name)["transitions"].to_string();
            assert!(!reported.contains("\"running\""), "{name}: {reported}");
        }
        let requested = requested.lock().unwrap().clone();
        assert!(requested.iter().any(|it| it == path), "{name}: {requested:?}");
        // Clients that speak MCP with the server use its own path.
        assert!(requested.iter().all(|it| it == path || it == "/mcp"), "{name}: {requested:?}");
    }
    ask(&home, "stop", json!({ "all": true }));
    home.finish();
}

#[test]
fn listening_server_is_ready_before_its_handshake() {
    let home = home();
    let port = free_port();
    let flags = ["--http", &port.to_string(), "--slow-init", "1500"];
    let more = format!("port {port}\nready {{ probe \"tcp\"; within \"20s\" }}\n{FAST_PROBES}");
    serve(&home, "one", &flags, &more);
    home.daemon();
    running(&home, "one");
    // A call made now waits for the handshake.
    let answer = client(&home, "one").call_text("echo", json!({ "message": "hi" }));
    assert_eq!(answer, "hi");
    wait_for_health(&home, "one", "healthy");
    home.finish();
}

#[test]
fn server_with_a_silent_page_is_restarted() {
    let home = home();
    let port = free_port();
    let flags = ["--http", &port.to_string()];
    let health = "health { probe \"http\"; interval \"50ms\"; timeout \"500ms\" }\n";
    serve(&home, "one", &flags, &format!("port {port}\n{health}"));
    home.daemon();
    let first = running(&home, "one");
    wait_for_health(&home, "one", "healthy");
    signal(first, Signal::STOP);
    let now = running_after(&home, "one", 1);
    let reported = now["transitions"].to_string();
    assert!(reported.contains("/mcp/health gave no answer within 500ms"), "{reported}");
    home.finish();
}

/// Serves these statuses in turn, then 200, but 503 while the process with the given id lives.
/// Returns the port and the statuses that were sent.
fn scripted_page(
    script: &'static [&'static str],
    failing: &Arc<AtomicU32>,
) -> (u16, Arc<Mutex<Vec<&'static str>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let port = listener.local_addr().expect("it listens").port();
    let reported: Arc<Mutex<Vec<&str>>> = Arc::default();
    let (failing, log) = (failing.clone(), reported.clone());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut head = [0; 4096];
            let count = (&stream).read(&mut head).unwrap_or_default();
            let status = if head[..count].starts_with(b"GET /mcp/health ") {
                let mut log = log.lock().expect("no thread panics");
                let failing = failing.load(Ordering::SeqCst);
                let is_failing = failing != 0 && is_alive(failing);
                let now = if is_failing { "503 Service Unavailable" } else { "200 OK" };
                let status = script.get(log.len()).copied().unwrap_or(now);
                log.push(status);
                status
            } else {
                "404 Not Found" // For MCP clients.
            };
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
            let _ = (&stream).write_all(head.as_bytes()); // The client may not wait for the answer.
        }
    });
    (port, reported)
}

#[test]
fn repeated_503_restarts_the_server() {
    const GOOD: &str = "200 OK";
    const BAD: &str = "503 Service Unavailable";
    // Ready; then rows of two failures, each ended by a success.
    const SCRIPT: [&str; 7] = [GOOD, BAD, BAD, GOOD, BAD, BAD, GOOD];
    let home = home();
    let failing = Arc::default();
    let (port, reported) = scripted_page(&SCRIPT, &failing);
    let sleeper = home.kdl_command("xy-test-sleep-server", &["--every", "600000"]);
    let probes = "ready { probe \"http\"; within \"1m\" }\n\
                  health { probe \"http\"; interval \"50ms\"; timeout \"10s\"; failures 3 }\n";
    home.server("one", &format!("{sleeper}{UNLIMITED_RESTARTS}port {port}\n{probes}"));
    home.daemon();
    let first = running(&home, "one");
    home.wait_until("it was probed in rows", || reported.lock().unwrap().len() > SCRIPT.len());
    let now = wait_for_health(&home, "one", "healthy");
    assert_eq!((pid_in(&now), &now["restart_count"]), (first, &json!(0)), "{now:#}");

    failing.store(first, Ordering::SeqCst);
    let now = running_after(&home, "one", 1);
    assert_ne!(pid_in(&now), first);
    let why = format!(
        "unhealthy: 3 probes in a row failed, the last: \
         GET http://127.0.0.1:{port}/mcp/health was answered with status 503"
    );
    assert!(now["transitions"].to_string().contains(&why), "{now:#}");
    let now = wait_for_health(&home, "one", "healthy");
    assert_eq!(now["restart_count"], 1, "its successor is well: {now:#}");
    let reported = reported.lock().unwrap().clone();
    let rows: Vec<&[&str]> = reported.chunk_by(|one, other| one == other).collect();
    let [before @ .., last, after] = &rows[..] else { panic!("{reported:?}") };
    assert_eq!((before.len(), last[0], after[0]), (5, BAD, GOOD), "{reported:?}");
    assert!(last.len() >= 3, "{reported:?}");
    home.finish();
}

#[test]
fn silent_remote_server_is_unreachable_until_it_answers() {
    let home = home();
    let remote = Remote::start();
    let delays = "restart { backoff-initial \"100ms\"; backoff-max \"100ms\" }\n";
    home.server(
        "far",
        &format!("{}{delays}ready {{ within \"1s\" }}\n{FAST_PROBES}", remote.kdl()),
    );
    home.daemon();
    wait_for_health(&home, "far", "healthy");
    remote.set_behaviour(To::Everything, Behaviour::Silent);
    let now = wait_for_health(&home, "far", "unreachable");
    assert_eq!(now["restart_count"], 0, "nothing is counted: {now:#}");
    assert!(now["last_exit"].is_null(), "nothing has ended: {now:#}");
    remote.set_behaviour(To::Everything, Behaviour::Normal);
    wait_for_health(&home, "far", "healthy");
    home.finish();
}

/// Returns whether a server is alive, and whether it is ready.
fn alive_and_ready(now: &Value) -> (bool, bool) {
    let is = |word: &str| now[word].as_bool().expect("a field of `status`");
    (is("alive"), is("ready"))
}

#[test]
fn starting_server_is_alive_before_ready() {
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
fn answering_remote_server_is_alive_and_ready() {
    let home = home();
    let remote = Remote::start();
    let delays = "restart { backoff-initial \"100ms\"; backoff-max \"100ms\" }\n";
    home.server(
        "far",
        &format!("{}{delays}ready {{ within \"1s\" }}\n{FAST_PROBES}", remote.kdl()),
    );
    home.daemon();
    let now = wait_for_health(&home, "far", "healthy");
    assert_eq!(alive_and_ready(&now), (true, true), "{now:#}");
    remote.set_behaviour(To::Everything, Behaviour::Silent);
    let now = wait_for_health(&home, "far", "unreachable");
    assert_eq!(alive_and_ready(&now), (false, false), "{now:#}");
    remote.set_behaviour(To::Everything, Behaviour::Normal);
    let now = wait_for_health(&home, "far", "healthy");
    assert_eq!(alive_and_ready(&now), (true, true), "{now:#}");
    home.finish();
}
