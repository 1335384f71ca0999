//! HTTP servers, and xy's own gateway.

use std::net::TcpListener;

use rustix::process::Signal;
use serde_json::json;
use xy_testkit::remote::Remote;
use xy_testkit::{Home, McpHttp, free_port};

use crate::support::{home, pid_in, running, running_after, signal, status};
use crate::{home_without_gateway, run_self_test, worker};

/// Writes the file of a server that listens on a port.
fn serve_by_port(home: &Home, name: &str) {
    let port = free_port().to_string();
    let kdl = home.kdl_mcp(&["--http", &port]);
    let kdl = format!("{kdl}port {port}\nstop {{ grace \"1s\" }}\n");
    // The server is ready after its handshake.
    home.write_config(&format!("servers/{name}.kdl"), &kdl);
}

#[test]
fn http_servers_are_probed() {
    let home = home_without_gateway();
    let remote = Remote::start();
    home.write_config("servers/far.kdl", &remote.kdl());
    serve_by_port(&home, "near");
    home.daemon();
    running(&home, "near");
    home.wait_for_state("far", "running");

    let tested = run_self_test(&home);

    assert_eq!(tested["success"], true, "{tested:#}");
    for name in ["near", "far"] {
        let worker = worker(&tested, name);
        assert_eq!(worker["status"], "ok", "{worker:#}");
        assert!(worker["roundTripMs"].is_number(), "{worker:#}");
    }
    home.finish();
}

#[test]
fn last_probe_of_a_server_is_reported() {
    let home = home_without_gateway();
    let kdl = home.kdl_mcp(&[]);
    home.write_config("servers/one.kdl", &format!("{kdl}health {{ interval \"50ms\" }}\n"));
    home.daemon();
    let before = home.wait_until("it was probed", || {
        status(&home, "one")["last_health_check"].as_str().map(str::to_owned)
    });

    let tested = run_self_test(&home);

    let one = worker(&tested, "one");
    assert_eq!(one["status"], "ok", "{one:#}");
    let reported = one["lastHealthCheck"].as_str().expect("it was probed");
    assert!(reported >= before.as_str(), "{reported} is before {before}");
    let shown = home.xy(&["self-test"]).stdout;
    assert!(shown.contains(", checked "), "{shown}");
    home.finish();
}

#[test]
fn hanging_http_server_is_restarted() {
    let home = home_without_gateway();
    serve_by_port(&home, "near");
    home.daemon();
    let first = running(&home, "near");
    signal(first, Signal::STOP);

    let tested = run_self_test(&home);

    assert_eq!(tested["autoRepair"][0]["server"], "near", "{tested:#}");
    assert_eq!(worker(&tested, "near")["status"], "restarted", "{tested:#}");
    assert_ne!(pid_in(&status(&home, "near")), first);
    home.finish();
}

#[test]
fn taken_gateway_port_is_reported() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let home = home();
    home.write_config("xy.kdl", &format!("gateway {{ listen \"{address}\" }}\n"));
    home.daemon();
    let tested = home.wait_until("the port is known to be taken", || {
        let tested = run_self_test(&home);
        (tested["health"]["webServer"]["status"] == "error").then_some(tested)
    });
    assert_eq!(tested["success"], false, "{tested:#}");
    let summary = tested["summary"].as_str().unwrap();
    assert!(summary.contains(&address.to_string()), "{summary}");
    assert_eq!(summary.matches("HTTP gateway is not listening").count(), 1, "{summary}");
    let info = home.xy(&["info"]).stdout;
    assert!(info.contains(&format!("HTTP gateway is not listening: {address}")), "{info}");
    home.finish();
}

#[test]
fn gateway_clients_are_counted() {
    let home = home();
    home.daemon();
    let client = McpHttp::new(&home.gateway_address(), "/mcp", &home.gateway_token());
    client.initialize();
    let tested = home.wait_until("the session is counted", || {
        let tested = run_self_test(&home);
        let open = tested["health"]["webServer"]["activeConnections"].as_u64();
        open.is_some_and(|open| open > 0).then_some(tested)
    });
    assert_eq!(tested["health"]["webServer"]["status"], "ok", "{tested:#}");
    drop(client);
    home.finish();
}

#[test]
fn server_in_backoff_is_started_immediately() {
    let home = home_without_gateway();
    let dies = home.kdl_command("xy-test-exit", &["--code", "3"]);
    let patient = "restart { backoff-initial \"10m\"; backoff-max \"10m\"; max-attempts 9 }\n";
    home.server("one", &format!("{dies}{patient}"));
    home.daemon();
    home.wait_for_state("one", "restarting");

    let checked = crate::support::ask(&home, "self_test", json!({ "repair": false }));
    assert_eq!(worker(&checked, "one")["status"], "failed", "{checked:#}");
    let tested = run_self_test(&home);

    assert_eq!(tested["success"], false, "it dies again: {tested:#}");
    assert_eq!(tested["autoRepair"][0]["proven"], false, "{tested:#}");
    home.finish();
}

#[test]
fn environment_sets_default_attempts_and_probes() {
    let home = home_without_gateway()
        .with_env("XY_MAX_RESTART_ATTEMPTS", "1")
        .with_env("XY_RESTART_DELAY_MS", "10")
        .with_env("XY_HEALTH_CHECK_INTERVAL_MS", "50")
        .with_env("XY_HEALTH_CHECK_TIMEOUT_MS", "200");
    let dies = home.kdl_command("xy-test-exit", &["--code", "3"]);
    home.server("dies", &dies);
    home.server("dies-by-file", &format!("{dies}restart {{ max-attempts 2 }}\n"));
    home.mcp_server("hangs", &[]);
    let hangs = home.kdl_mcp(&[]);
    home.server("hangs-by-file", &format!("{hangs}health {{ timeout \"300ms\" }}\n"));
    home.daemon();
    for (name, attempts) in [("dies", 1), ("dies-by-file", 2)] {
        let failed = home.wait_for_state(name, "failed");
        assert_eq!(failed["limits_used"]["max_attempts"], attempts, "{failed:#}");
        assert_eq!(failed["restart_count"], attempts, "{failed:#}");
    }
    for (name, within) in [("hangs", "200ms"), ("hangs-by-file", "300ms")] {
        let first = running(&home, name);
        home.wait_until("it is healthy", || status(&home, name)["health"] == "healthy");
        signal(first, Signal::STOP);
        let now = running_after(&home, name, 1);
        let text = format!("not answered within {within}");
        assert!(now["transitions"].to_string().contains(&text), "{now:#}");
    }
    home.finish();
}

#[test]
fn environment_sets_default_timeouts() {
    // So long that the delays from the environment never end here; those in files are immediate.
    let home = home_without_gateway()
        .with_env("XY_RESTART_DELAY_MS", "3600000")
        .with_env("XY_HEALTH_CHECK_INTERVAL_MS", "3600000");
    let dies = home.kdl_command("xy-test-exit", &["--code", "3"]);
    home.server("dies", &dies);
    let soon = "restart { backoff-initial \"10ms\"; max-attempts 1 }\n";
    home.server("dies-by-file", &format!("{dies}{soon}"));
    home.mcp_server("hangs", &[]);
    let often = "health { interval \"50ms\"; timeout \"200ms\" }\n";
    home.server("hangs-by-file", &format!("{}{soon}{often}", home.kdl_mcp(&[])));
    home.daemon();
    let both = ["hangs", "hangs-by-file"].map(|name| {
        let pid = running(&home, name);
        home.wait_until("it is healthy", || status(&home, name)["health"] == "healthy");
        signal(pid, Signal::STOP);
        pid
    });
    running_after(&home, "hangs-by-file", 1);
    home.wait_for_state("dies-by-file", "failed");

    let waits = status(&home, "dies");
    assert_eq!((&waits["state"], &waits["restart_count"]), (&json!("restarting"), &json!(0)));
    let left = status(&home, "hangs");
    assert_eq!((pid_in(&left), &left["restarts_total"]), (both[0], &json!(0)), "{left:#}");
    signal(both[0], Signal::CONT);
    home.finish();
}

#[test]
fn invalid_variable_is_reported_by_name() {
    for name in [
        "XY_SUPERVISOR_ENABLED",
        "XY_MAX_RESTART_ATTEMPTS",
        "XY_RESTART_DELAY_MS",
        "XY_HEALTH_CHECK_INTERVAL_MS",
        "XY_HEALTH_CHECK_TIMEOUT_MS",
    ] {
        for value in ["abc", "-1", "1.5", "99999999999999999999"] {
            let home = home_without_gateway().with_env(name, value);
            let checked = home.xy(&["check"]);
            assert_eq!(checked.code, 3, "{name}={value}: {checked:#?}");
            let text = format!("the variable `{name}` cannot be `{value}`");
            assert!(checked.stdout.contains(&text), "{checked:#?}");
            assert!(checked.stdout.contains("hint: give it "), "{checked:#?}");
            if value == "abc" {
                let daemon = home.daemon_fails();
                assert_eq!(daemon.status.code(), Some(3), "{daemon:?}");
                assert!(String::from_utf8_lossy(&daemon.stderr).contains(&text), "{daemon:?}");
            }
            home.finish();
        }
    }
}
