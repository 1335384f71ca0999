//! Every bound of what may wait, as the file sets it: what is over it is refused in words that name
//! it, and what is within it is not touched by that.

use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient};

use crate::stage::{code, home, local, metrics, nothing_is_open, ready, serve, words};
use crate::support::ask;

/// Two servers that never come up: what is called waits.
#[track_caller]
fn home_where(park: &str) -> Home {
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

/// A call of a server, and how many bytes it has besides.
type Long = (&'static str, usize);

/// How many calls wait for a server.
fn waiting(home: &Home, name: &str) -> usize {
    let start = format!("xy_server_calls_waiting{{server=\"{name}\"}} ");
    let metrics = metrics(home);
    let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("no {start}")).parse().unwrap()
}

/// Calls a server, and does not wait: a call of so many bytes, and some more.
fn begin(client: &McpClient, server: &str, bytes: usize) -> u64 {
    client.start_call(&format!("{server}__echo"), json!({ "message": "x".repeat(bytes) }))
}

#[test]
fn what_is_over_a_bound_is_refused_and_the_rest_waits() {
    // The block, the calls that wait, the one too many, the bound it meets, and how that is told.
    let table: [(&str, &[Long], Long, &str, &str); 6] = [
        ("calls 2", &[("a", 1), ("a", 1), ("b", 1)], ("a", 1), "`calls`", "2"),
        ("calls 0", &[], ("a", 1), "`calls`", "0"),
        ("bytes \"1KiB\"", &[("a", 600), ("b", 600)], ("a", 600), "`bytes`", "1 KiB"),
        ("total-calls 3", &[("a", 1), ("b", 1), ("b", 1)], ("a", 1), "`total-calls`", "3"),
        ("total-bytes \"1KiB\"", &[("a", 600)], ("b", 600), "`total-bytes`", "1 KiB"),
        (
            "calls 9; bytes \"9KiB\"; total-calls 2; total-bytes \"9KiB\"",
            &[("a", 1), ("b", 1)],
            ("b", 1),
            "`total-calls`",
            "2",
        ),
    ];
    for (park, wait, (server, bytes), bound, most) in table {
        let home = home_where(park);
        let client = local(&home);
        let ids: Vec<u64> = wait.iter().map(|(name, bytes)| begin(&client, name, *bytes)).collect();
        let refused = client.wait_answer(begin(&client, server, bytes));
        assert_eq!(code(&refused), -32008, "{park}: {refused}");
        for part in [bound, most, "xy.kdl"] {
            assert!(words(&refused).contains(part), "{park}: {refused}");
        }
        for name in ["a", "b"] {
            let meant = wait.iter().filter(|(it, _)| *it == name).count();
            assert_eq!(waiting(&home, name), meant, "{park}: of `{name}`");
        }
        // Who leaves makes room for the next.
        if let Some(first) = ids.first() {
            client.cancel(&json!(first));
            let freed = begin(&client, wait[0].0, wait[0].1);
            client.request("ping", Value::Null);
            assert_eq!(client.answer_within(freed, Duration::ZERO), None, "{park}");
        }
        ask(&home, "stop", json!({ "all": true }));
        for id in ids.iter().skip(1) {
            assert_eq!(code(&client.wait_answer(*id)), -32005, "{park}: nobody comes any more");
        }
        nothing_is_open(&home);
        home.finish();
    }
}

#[test]
fn a_call_waits_as_long_as_the_file_says() {
    let home = home_where("queue \"200ms\"");
    let client = local(&home);
    let late = client.wait_answer(begin(&client, "a", 1));
    assert_eq!(code(&late), -32008, "{late}");
    assert!(words(&late).contains("within 200ms"), "{late}");
    ask(&home, "stop", json!({ "all": true }));
    home.finish();
}

#[test]
fn what_is_kept_of_calls_that_servers_may_ask_more_about_is_what_the_file_says() {
    let home = home();
    home.write_config("xy.kdl", "park { held-bytes \"4KiB\" }\n");
    serve(&home, "a", &["--era", "modern"]);
    home.daemon();
    ready(&home, &["a"]);
    let client = local(&home);
    let small = client.wait_answer(begin(&client, "a", 1000));
    assert!(small["result"].is_object(), "{small}");
    let large = client.wait_answer(begin(&client, "a", 5000));
    assert_eq!(code(&large), -32008, "{large}");
    assert!(words(&large).contains("`held-bytes`"), "{large}");
    nothing_is_open(&home);
    home.finish();
}
