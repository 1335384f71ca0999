//! Every configured limit of the queue: calls over a limit are refused and name it, and calls
//! within it are not affected.

use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient};

use crate::fixtures::{
    error_code, error_message, home, local_client, metrics, ready, serve, wait_until_idle,
};
use crate::support::ask;

/// Returns a home with two servers that never become ready, so that their calls wait.
#[track_caller]
fn home_with_queue(park: &str) -> Home {
    let home = home();
    home.write_config("xy.kdl", &format!("park {{ {park} }}\n"));
    for name in ["a", "b"] {
        let kdl = home.kdl_mcp(&["--never-init"]);
        home.write_config(
            &format!("servers/{name}.kdl"),
            &format!("{kdl}ready {{ within \"10m\" }}\n"),
        );
    }
    home.daemon();
    home
}

/// A server to call, and the message size of the call.
type SizedCall = (&'static str, usize);

/// Returns how many calls wait for a server.
fn waiting(home: &Home, name: &str) -> usize {
    let start = format!("xy_server_calls_waiting{{server=\"{name}\"}} ");
    let metrics = metrics(home);
    let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("no {start}")).parse().unwrap()
}

/// Calls a server with a message of this size, without waiting.
fn begin(client: &McpClient, server: &str, bytes: usize) -> u64 {
    client.start_call(&format!("{server}__echo"), json!({ "message": "x".repeat(bytes) }))
}

#[test]
fn calls_over_a_limit_are_refused_and_others_wait() {
    // The `park` block, the waiting calls, the refused call, the limit, and its value in the error.
    let table: [(&str, &[SizedCall], SizedCall, &str, &str); 6] = [
        ("calls 2", &[("a", 1), ("a", 1), ("b", 1)], ("a", 1), "`park { calls }`", "2"),
        ("calls 0", &[], ("a", 1), "`park { calls }`", "0"),
        ("bytes \"1KiB\"", &[("a", 600), ("b", 600)], ("a", 600), "`park { bytes }`", "1 KiB"),
        ("total-calls 3", &[("a", 1), ("b", 1), ("b", 1)], ("a", 1), "`park { total-calls }`", "3"),
        ("total-bytes \"1KiB\"", &[("a", 600)], ("b", 600), "`park { total-bytes }`", "1 KiB"),
        (
            "calls 9; bytes \"9KiB\"; total-calls 2; total-bytes \"9KiB\"",
            &[("a", 1), ("b", 1)],
            ("b", 1),
            "`park { total-calls }`",
            "2",
        ),
    ];
    for (park, wait, (server, bytes), bound, most) in table {
        let home = home_with_queue(park);
        let client = local_client(&home);
        let ids: Vec<u64> = wait.iter().map(|(name, bytes)| begin(&client, name, *bytes)).collect();
        let refused = client.wait_answer(begin(&client, server, bytes));
        assert_eq!(error_code(&refused), -32008, "{park}: {refused}");
        for part in [bound, most, "xy.kdl"] {
            assert!(error_message(&refused).contains(part), "{park}: {refused}");
        }
        for name in ["a", "b"] {
            let meant = wait.iter().filter(|(it, _)| *it == name).count();
            assert_eq!(waiting(&home, name), meant, "{park}: of `{name}`");
        }
        // A cancelled call makes room for the next.
        if let Some(first) = ids.first() {
            client.cancel(&json!(first));
            let freed = begin(&client, wait[0].0, wait[0].1);
            client.request("ping", Value::Null);
            assert_eq!(client.answer_within(freed, Duration::ZERO), None, "{park}");
        }
        ask(&home, "stop", json!({ "all": true }));
        for id in ids.iter().skip(1) {
            assert_eq!(
                error_code(&client.wait_answer(*id)),
                -32005,
                "{park}: the server has no successor"
            );
        }
        wait_until_idle(&home);
        home.finish();
    }
}

#[test]
fn waiting_time_is_set_by_the_config() {
    let home = home_with_queue("queue \"200ms\"");
    let client = local_client(&home);
    let late = client.wait_answer(begin(&client, "a", 1));
    assert_eq!(error_code(&late), -32008, "{late}");
    assert!(error_message(&late).contains("within 200ms"), "{late}");
    ask(&home, "stop", json!({ "all": true }));
    home.finish();
}

#[test]
fn retained_bytes_for_modern_servers_are_limited_by_the_config() {
    let home = home();
    home.write_config("xy.kdl", "park { held-bytes \"4KiB\" }\n");
    serve(&home, "a", &["--era", "modern"]);
    home.daemon();
    ready(&home, &["a"]);
    let client = local_client(&home);
    let small = client.wait_answer(begin(&client, "a", 1000));
    assert!(small["result"].is_object(), "{small}");
    let large = client.wait_answer(begin(&client, "a", 5000));
    assert_eq!(error_code(&large), -32008, "{large}");
    assert!(error_message(&large).contains("held-bytes"), "{large}");
    wait_until_idle(&home);
    home.finish();
}
