//! The HTTP service as a whole: health checks, metrics, and configured limits.

use std::collections::BTreeSet;
use std::fs::File;

use serde_json::{Value, json};
use xy_testkit::{Home, McpHttp};

use crate::fixtures::{assert_echo, home, http_client, metrics, ready, serve};
use crate::support::status;

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// Returns the status and body at this path without a token.
#[track_caller]
fn get_without_token(home: &Home, path: &str) -> (u16, String) {
    let seen = McpHttp::new(&home.gateway_address(), path, "").exchange("GET", &[], "");
    (seen.status, seen.body)
}

/// Returns a home with these gateway settings, and the server `a`, which runs.
#[track_caller]
fn home_bounded(bounds: &str) -> Home {
    let home = home();
    home.write_config("xy.kdl", &format!("gateway {{ listen \"127.0.0.1:0\"; {bounds} }}\n"));
    serve(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    home
}

#[test]
fn daemon_is_healthy_at_once_and_ready_with_its_servers() {
    let home = home();
    serve(&home, "quick", &[]);
    let gate = home.root().join("harness/gate");
    let script = format!(
        "until [ -e '{}' ]; do sleep 0.02; done; exec '{}'",
        gate.display(),
        home.program("xy-test-mcp").display()
    );
    let late = format!("command \"sh\"\nargs \"-c\" {script:?}\nready {{ within \"5m\" }}\n");
    home.write_config("servers/late.kdl", &late);
    home.daemon();

    let not_ready = (503, "not ready\n".to_owned());
    assert_eq!(get_without_token(&home, "/readyz"), not_ready);
    ready(&home, &["quick"]);
    assert_eq!(get_without_token(&home, "/readyz"), not_ready, "one of two servers is ready");
    assert_eq!(get_without_token(&home, "/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(status(&home, "late")["state"], "starting");

    File::create(&gate).unwrap();
    home.wait_until("it is ready", || {
        get_without_token(&home, "/readyz") == (200, "ready\n".to_owned())
    });
    assert_echo(&http_client(&home), "late");
    assert_eq!(get_without_token(&home, "/healthz").0, 200);
    home.finish();
}

#[test]
fn public_listener_accepts_addresses_and_configured_host_names() {
    let home = home();
    // The test can only connect from this machine.
    let gateway = "gateway { listen \"0.0.0.0:0\"; hosts \"xy.lan\" }\n";
    home.write_config("xy.kdl", gateway);
    serve(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    let port = home.gateway_address().rsplit_once(':').unwrap().1.to_owned();
    let client = McpHttp::new(&format!("127.0.0.1:{port}"), "/mcp", &home.gateway_token());
    client.initialize();
    assert_echo(&client, "a");
    let asked_as = |host: &str| {
        let head = format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        client.raw(head.as_bytes()).status
    };
    for (host, status) in [
        (format!("192.0.2.7:{port}"), 200),
        (format!("[2001:db8::7]:{port}"), 200),
        ("xy.lan".to_owned(), 200),
        ("other.lan".to_owned(), 403),
        ("192.0.2.7.evil.example".to_owned(), 403),
    ] {
        assert_eq!(asked_as(&host), status, "{host}");
    }
    // An address alone grants no access.
    let stranger = McpHttp::new(&format!("127.0.0.1:{port}"), "/mcp", "");
    assert_eq!(stranger.post(PING).status, 401);
    let tested = home.xy(&["self-test", "--no-repair", "--json"]);
    let tested: Value = serde_json::from_str(&tested.stdout).unwrap();
    assert_eq!(tested["health"]["webServer"]["status"], "ok", "{tested:#}");
    home.finish();
}

#[test]
fn sessions_are_limited_by_the_config() {
    let home = home_bounded("sessions 2");
    let (first, second) = (http_client(&home), http_client(&home));
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
    let begin = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    let third = home.mcp_http("/mcp");
    let refused = third.post(&begin.to_string());
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.body.contains("2 sessions are open"), "{refused:?}");
    assert_echo(&first, "a");
    assert_echo(&second, "a");
    first.close();
    third.initialize();
    assert_echo(&third, "a");
    home.finish();
}

#[test]
fn streams_per_session_are_limited_by_the_config() {
    let home = home_bounded("streams 1");
    let (client, other) = (http_client(&home), http_client(&home));
    assert_eq!(client.open_stream(), 200);
    assert_eq!(client.open_stream(), 429);
    let refused = client.post(PING);
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.body.contains("1 calls and streams of this session"), "{refused:?}");
    assert_eq!(other.open_stream(), 200, "another session has its own");
    client.break_connections();
    home.wait_until("there is room again", || client.post(PING).status == 200);
    assert_echo(&client, "a");
    home.finish();
}

#[test]
fn body_size_is_limited_by_the_config() {
    let home = home_bounded("body \"1KiB\"");
    let client = http_client(&home);
    let of_length = |length: usize| format!("{PING:length$}");
    let fits = client.post(&of_length(1024));
    assert_eq!(fits.status, 200, "{fits:?}");
    let refused = client.post(&of_length(1025));
    assert_eq!(refused.status, 413, "{refused:?}");
    assert!(refused.body.contains("larger than 1024 bytes"), "{refused:?}");
    assert_eq!(client.request("ping", Value::Null)["result"], json!({}));
    home.finish();
}

#[test]
fn without_authentication_clients_may_call_but_not_manage() {
    let home = home_bounded("auth \"none\"");
    let client = McpHttp::new(&home.gateway_address(), "/mcp", "");
    client.initialize();
    assert_echo(&client, "a");
    let names = client.tool_names();
    assert!(names.iter().all(|name| name.starts_with("a__")), "{names:?}");
    let refused = client.call("remove_server", json!({ "name": "a" }));
    assert!(refused["error"].is_object(), "{refused}");
    assert_eq!(status(&home, "a")["state"], "running");
    home.finish();
}

/// Each family is described once, before its first sample, and no sample occurs twice.
#[test]
fn metrics_are_valid_prometheus_text() {
    let home = home_bounded("");
    assert_echo(&http_client(&home), "a");
    let page = metrics(&home);
    let (mut families, mut figures) = (BTreeSet::new(), BTreeSet::new());
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (family, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(families.insert(family.to_owned()), "twice: {line}");
        } else if !line.starts_with('#') {
            let (figure, number) = line.rsplit_once(' ').unwrap();
            assert!(number.parse::<f64>().is_ok(), "{line}");
            assert!(figures.insert(figure), "twice: {line}");
            let name = figure.split('{').next().unwrap();
            let ends = ["", "_bucket", "_sum", "_count"].map(|end| name.strip_suffix(end));
            assert!(ends.into_iter().flatten().any(|it| families.contains(it)), "{line}");
        }
    }
    assert!(families.len() > 10 && figures.len() > 30, "{page}");
    home.finish();
}

#[test]
fn wrong_tokens_are_logged_once_without_the_token() {
    let home = home();
    let daemon = home.daemon();
    let stranger = McpHttp::new(&home.gateway_address(), "/mcp", "a-wrong-s3cret");
    for _ in 0..3 {
        assert_eq!(stranger.post(PING).status, 401);
    }
    let log = home.wait_until("it is logged", || {
        let log = daemon.stderr();
        log.contains("wrong token").then_some(log)
    });
    assert_eq!(log.matches("wrong token").count(), 1, "{log}");
    assert!(log.contains("127.0.0.1") && log.contains("/mcp"), "{log}");
    assert!(!log.contains("s3cret"), "{log}");
    home.finish();
}
