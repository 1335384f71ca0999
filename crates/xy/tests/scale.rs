//! Many servers, many daemons and many crashes at once.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

mod support;

use std::fs::{self, File};
use std::process::{Child, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{SOON, ask, home, pid_in, running, signal, sleeper, status};
use xy_testkit::{Home, is_alive, marked_processes};

/// Returns the states of all servers, in the order of their names.
fn states(home: &Home) -> Vec<String> {
    let list = ask(home, "list", Value::Null);
    let state = |it: &Value| it["state"].as_str().unwrap().to_owned();
    list.as_array().unwrap().iter().map(state).collect()
}

#[test]
fn hundred_servers_start_and_stop() {
    let home = home();
    let names: Vec<String> = (0..100).map(|number| format!("server-{number:02}")).collect();
    for (number, name) in names.iter().enumerate() {
        let port =
            if number % 2 == 0 { String::new() } else { format!("port {}\n", 8000 + number) };
        home.server(name, &format!("{}{port}", sleeper(&home)));
    }
    let daemon = home.daemon();
    home.wait_until("all run", || states(&home) == ["running"; 100]);

    let list = ask(&home, "list", Value::Null);
    let entries = list.as_array().unwrap();
    let listed: Vec<&str> = entries.iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(listed, names);
    let mut pids: Vec<u32> = entries.iter().map(pid_in).collect();
    assert!(pids.iter().all(|&pid| is_alive(pid)));
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 100);

    let stopped = ask(&home, "stop", json!({ "all": true }));
    assert_eq!(stopped, json!({ "stopped": names, "not_running": [] }));
    assert_eq!(states(&home), ["stopped"; 100]);
    let left = marked_processes(home.mark());
    assert!(left.iter().all(|it| it.pid == daemon.pid), "{left:#?}");

    let started = ask(&home, "start", json!({ "all": true }));
    assert_eq!(started, json!({ "started": names, "already_running": [] }));
    assert_eq!(states(&home), ["running"; 100]);
}

#[test]
fn only_one_of_fifty_daemons_serves() {
    let home = home();
    home.server("one", &sleeper(&home));
    // A file of a daemon that was killed earlier.
    fs::create_dir_all(home.root().join("state/xy")).unwrap();
    fs::write(home.root().join("state/xy/xy.pid"), "999999\n").unwrap();
    let stderr = |number: usize| home.root().join(format!("harness/{number}.stderr"));
    let spawn = |number: usize| -> Child {
        let mut daemon = home.command(&["daemon"]);
        daemon.stdin(Stdio::null()).stdout(Stdio::null());
        daemon.stderr(File::create(stderr(number)).unwrap()).spawn().unwrap()
    };
    let mut daemons: Vec<(usize, Child)> = (0..50).map(|number| (number, spawn(number))).collect();

    let mut refused = Vec::new();
    home.wait_until("all but one have ended", || {
        daemons.retain_mut(|(number, daemon)| match daemon.try_wait().unwrap() {
            None => true,
            Some(status) => {
                refused.push((*number, status));
                false
            }
        });
        daemons.len() <= 1
    });

    assert_eq!(daemons.len(), 1, "{refused:?}");
    let mut winner = daemons.remove(0).1;
    running(&home, "one");
    assert_eq!(ask(&home, "info", Value::Null)["pid"], winner.id());
    for (number, status) in refused {
        let text = fs::read_to_string(stderr(number)).unwrap();
        assert_eq!(status.code(), Some(1), "{text}");
        let who = format!("another daemon is already running, pid {}", winner.id());
        assert!(text.contains(&who), "pid {} serves, but: {text}", winner.id());
    }
    assert_eq!(status(&home, "one")["restarts_total"], 0);

    signal(winner.id(), Signal::TERM);
    let ended = home.wait_until("the last has ended", || winner.try_wait().unwrap());
    assert!(ended.success(), "{ended}");
}

#[test]
fn twenty_crashing_servers_disturb_no_other() {
    let home = home();
    home.server("calm", &sleeper(&home));
    home.server("other", &sleeper(&home));
    let rules = "restart { policy \"always\"; backoff-initial \"0s\"; max-attempts 0; \
                 max-retries-per-minute 0 }\n";
    for number in 0..20 {
        let dying = home.kdl_command("xy-test-exit", &["--say", "I die"]);
        home.server(&format!("dying-{number:02}"), &format!("{dying}{rules}"));
    }
    let daemon = home.daemon();
    let calm = running(&home, "calm");
    let mut follower = home.connect();
    follower.call("logs", json!({ "name": "calm", "tail": 9, "follow": true })).unwrap();

    let has_died = |times: u64| {
        let list = ask(&home, "list", Value::Null);
        let dying = |it: &&Value| it["name"].as_str().unwrap().starts_with("dying");
        let count = |it: &Value| it["restarts_total"].as_u64().unwrap() >= times;
        list.as_array().unwrap().iter().filter(dying).all(count)
    };
    home.wait_until("each has died three times", || has_died(3));
    ask(&home, "restart", json!({ "name": "other" }));
    ask(&home, "stop", json!({ "name": "other" }));
    ask(&home, "start", json!({ "name": "other" }));
    ask(&home, "reload", Value::Null);
    assert!(follower.next(SOON)["params"]["line"].as_str().unwrap().starts_with("started "));
    assert_eq!(follower.next(SOON)["params"]["line"], "tick 1");
    home.wait_until("each has died twice more", || has_died(5));

    let after = status(&home, "calm");
    assert_eq!((pid_in(&after), &after["restarts_total"]), (calm, &json!(0)));
    let stopped = ask(&home, "stop", json!({ "all": true }));
    assert_eq!(stopped["stopped"].as_array().unwrap().len(), 22, "{stopped:#}");
    assert_eq!(states(&home), ["stopped"; 22]);
    let left = marked_processes(home.mark());
    assert!(left.iter().all(|it| it.pid == daemon.pid), "{left:#?}");
}
