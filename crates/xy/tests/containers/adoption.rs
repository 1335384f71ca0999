//! Daemons that are killed, and containers that live on.

use serde_json::{Value, json};

use crate::stage::{Engine, client, echoes};
use crate::support::{ask, home, pid_in, running, running_after, status};

crate::with_each_engine!(
    a_container_outlives_a_killed_daemon_and_the_next_one_goes_on_with_it,
    what_it_says_meanwhile_is_heard_once,
    one_that_ended_meanwhile_is_judged_by_its_end,
    one_that_nobody_owns_is_removed_and_no_other,
    a_daemon_can_be_replaced,
);

fn a_container_outlives_a_killed_daemon_and_the_next_one_goes_on_with_it(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "restart { backoff-initial \"10ms\"; }\n");
    let daemon = home.daemon();
    running(&home, "one");
    let client = client(&home);
    echoes(&client, "one");
    engine.must("POST", &format!("/containers/{}/kill", engine.container(&home)));
    let before = running_after(&home, "one", 1);
    echoes(&client, "one");
    let container = engine.container(&home);

    daemon.kill9();
    home.daemon();
    if engine.kind == "podman" {
        // It closes the stdin of one that nobody is attached to, which ends with it.
        running(&home, "one");
        assert_eq!(status(&home, "one")["restarts_total"], 1, "that is not counted");
    } else {
        let now = status(&home, "one");
        assert_eq!((&now["state"], &now["pid"]), (&json!("running"), &before["pid"]), "{now:#}");
        assert_eq!(now["restart_count"], 1);
        assert_eq!(engine.container(&home), container);
        assert_eq!(now["container"]["id"], container, "{now:#}");
    }
    for _ in 0..3 {
        echoes(&client, "one");
    }
    ask(&home, "stop", json!({ "name": "one" }));
    assert!(engine.containers(&home).is_empty());
    drop(client);
    engine.finish(home);
}

/// The ticks in a log, in the order they are in.
fn ticks(home: &xy_testkit::Home) -> Vec<u64> {
    let log = std::fs::read_to_string(home.log_file("one")).unwrap_or_default();
    log.lines().filter_map(|line| line.rsplit_once("tick ")?.1.parse().ok()).collect()
}

fn what_it_says_meanwhile_is_heard_once(engine: &Engine) {
    let home = home();
    // By HTTP, as far as xy knows, so that no engine closes its stdin.
    let kdl = engine.kdl(&home, &["xy-test-sleep-server", "--every", "100"], "");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    home.server("one", &format!("{kdl}port {port}\n"));
    for _ in 0..3 {
        let daemon = home.daemon();
        let so_far = ticks(&home).len();
        home.wait_until("it ticks", || ticks(&home).len() > so_far + 5);
        daemon.kill9();
        // It ticks on, and only its engine hears it.
        let heard = || engine.said(&engine.container(&home)).matches("tick ").count();
        let so_far = heard();
        home.wait_until("it ticks on", || heard() > so_far + 5);
    }
    home.daemon();
    let so_far = ticks(&home).len();
    home.wait_until("it ticks", || ticks(&home).len() > so_far + 5);
    let all = ticks(&home);
    let expected: Vec<u64> = (1..=all.len() as u64).collect();
    assert_eq!(all, expected, "none is missing, and none is there twice");
    engine.finish(home);
}

fn one_that_ended_meanwhile_is_judged_by_its_end(engine: &Engine) {
    let home = home();
    let kdl = engine.kdl(&home, &["xy-test-sleep-server"], "");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    home.server("one", &format!("{kdl}port {port}\nrestart {{ policy \"never\"; }}\n"));
    let daemon = home.daemon();
    running(&home, "one");
    daemon.kill9();
    engine.must("POST", &format!("/containers/{}/kill", engine.container(&home)));
    home.daemon();
    let failed = home.wait_for_state("one", "failed");
    assert_eq!(failed["last_exit"]["signal"], 9, "{failed:#}");
    assert!(engine.containers(&home).is_empty());
    engine.finish(home);
}

fn one_that_nobody_owns_is_removed_and_no_other(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "");
    let daemon = home.daemon();
    running(&home, "one");
    let id = engine.container(&home);
    let found: Value =
        serde_json::from_str(&engine.must("GET", &format!("/containers/{id}/json"))).unwrap();
    let ours = &found["Config"]["Labels"]["xy.home"];
    daemon.kill9();
    // As if it had been killed before it could write anything down; and one of somebody else.
    let make = |name: &str, home_label: &str| {
        let body = json!({
            "Image": "localhost/xy-test",
            "Entrypoint": ["/bin/xy-test-mcp"],
            "Labels": { "test": home.mark(), "xy.home": home_label, "xy.instance": name },
        });
        let name = format!("{name}-{}", home.mark());
        let (status, said) =
            engine.ask("POST", &format!("/containers/create?name={name}"), Some(&body));
        assert_eq!(status, 201, "{said}");
    };
    make("left", ours.as_str().unwrap());
    make("foreign", "another");
    home.daemon();
    running(&home, "one");
    home.wait_until("what nobody owns is gone", || engine.containers(&home).len() == 2);
    let left = engine.containers(&home);
    let instances: Vec<&Value> = left.iter().map(|it| &it["Labels"]["xy.instance"]).collect();
    assert!(
        instances.contains(&&json!("one")) && instances.contains(&&json!("foreign")),
        "{left:#?}"
    );
    assert_eq!(pid_in(&status(&home, "one")), running(&home, "one"));
    engine.must("DELETE", &format!("/containers/foreign-{}?force=1", home.mark()));
    engine.finish(home);
}

fn a_daemon_can_be_replaced(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "");
    let daemon = home.daemon();
    let before = running(&home, "one");
    let client = client(&home);
    echoes(&client, "one");
    home.daemon_with(&["--replace"]);
    home.wait_until("the first is gone", || !daemon.is_running());
    let now = running(&home, "one");
    assert!(now == before || engine.kind == "podman", "it is the same container");
    echoes(&client, "one");
    drop(client);
    engine.finish(home);
}
