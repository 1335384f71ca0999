//! Nothing of a server is left once xy says that it has ended: looked at in that instant.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "everything here is a test")]

mod support;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{ask, pid_in, refused, running_after, signal, status};
use xy_testkit::{Home, marked_processes};

/// Ways to start a process that does not go with the server's leader.
const ESCAPES: [(&str, &str); 3] = [
    ("child", "escapee &"),
    ("session", "setsid bash $0 escapee &"),
    ("daemon", "(setsid bash $0 escapee &);"),
];

/// A shell script as a server: its leader obeys, what it starts does not.
fn wrapper(home: &Home, how: &str, then: &str) -> String {
    let script = home.root().join("tmp/wrapper.sh");
    let text = format!(
        "#!/bin/bash\n\
         escapee() {{ trap '' TERM HUP; exec >/dev/null 2>&1; echo out >>$OUT; \
         while :; do sleep 1; done; }}\n\
         if [ \"$1\" = escapee ]; then escapee; fi\n\
         trap 'exit 0' TERM\n{how}\n\
         until [ -s $OUT ]; do sleep 0.01; done\necho ready >&2\n{then}\n"
    );
    let new = script.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, &script).unwrap();
    let out = home.root().join("tmp/out");
    format!(
        "command \"bash\"\nargs \"{}\"\nenv {{ OUT \"{}\" }}\ntransport \"http\"\nport 8421\n\
         stop {{ grace \"300ms\" }}\nrestart {{ backoff-initial \"10ms\" }}\n",
        script.display(),
        out.display()
    )
}

/// A home in whose folder for scratch files the servers may leave theirs.
fn home() -> Home {
    let home = support::home();
    home.expect_left("tmp/");
    home
}

const WAITS: &str = "while :; do sleep 60 & wait $!; done";

/// Processes of the server `one`, found by their environment and not by xy's records.
fn left(home: &Home) -> Vec<String> {
    marked_processes(home.mark())
        .into_iter()
        .filter(|process| {
            let environ = std::fs::read(format!("/proc/{}/environ", process.pid));
            environ.is_ok_and(|it| it.split(|byte| *byte == 0).any(|one| one == b"XY_SERVER=one"))
        })
        .map(|process| format!("{} {}", process.pid, process.cmdline))
        .collect()
}

fn ready(home: &Home) {
    let log = home.log_file("one");
    home.wait_until("all have started", || {
        std::fs::read_to_string(&log).is_ok_and(|text| text.contains("ready"))
    });
}

#[test]
fn after_a_stop_no_process_is_left_however_it_was_started() {
    for (name, how) in ESCAPES {
        let home = home();
        home.server("one", &wrapper(&home, how, WAITS));
        home.daemon();
        ready(&home);
        assert!(left(&home).len() > 1, "{name}");
        ask(&home, "stop", json!({ "name": "one" }));
        assert_eq!(left(&home), Vec::<String>::new(), "{name}");
        home.finish();
    }
}

#[test]
fn after_a_crash_a_removal_and_a_shutdown_no_process_is_left() {
    for (name, how) in ESCAPES {
        let home = home();
        home.server("one", &wrapper(&home, how, "exit 3"));
        home.server(
            "one",
            &format!("{}restart {{ policy \"never\" }}\n", {
                wrapper(&home, how, "exit 3").replace("restart { backoff-initial \"10ms\" }\n", "")
            }),
        );
        let daemon = home.daemon();
        home.wait_for_state("one", "failed");
        assert_eq!(left(&home), Vec::<String>::new(), "{name}: after a crash");

        std::fs::remove_file(home.root().join("tmp/out")).unwrap();
        home.server("one", &wrapper(&home, how, WAITS));
        ask(&home, "reload", Value::Null);
        home.wait_until("it is out", || left(&home).len() > 1);
        home.remove_server("one");
        ask(&home, "reload", Value::Null);
        assert_eq!(left(&home), Vec::<String>::new(), "{name}: after its removal");

        std::fs::remove_file(home.root().join("tmp/out")).ok();
        home.server("one", &wrapper(&home, how, WAITS));
        ask(&home, "reload", Value::Null);
        home.wait_until("it is out", || left(&home).len() > 1);
        assert!(daemon.terminate().success());
        assert_eq!(left(&home), Vec::<String>::new(), "{name}: after the daemon");
        home.finish();
    }
}

#[test]
fn what_is_below_a_leader_that_obeys_has_the_whole_grace() {
    let home = home();
    let clean = home.root().join("tmp/clean");
    let script = format!(
        "bash -c 'trap \\\"sleep 0.3; echo clean >{}; exit 0\\\" TERM; echo ready >&2; \
         while :; do sleep 0.05; done' & trap 'exit 0' TERM; wait; wait",
        clean.display()
    );
    home.server(
        "one",
        &format!(
            "command \"bash\"\nargs \"-c\" \"{script}\"\nport 8421\nstop {{ grace \"20s\" }}\n"
        ),
    );
    home.daemon();
    ready(&home);
    ask(&home, "stop", json!({ "name": "one" }));
    assert_eq!(std::fs::read_to_string(clean).unwrap(), "clean\n");
    assert_eq!(left(&home), Vec::<String>::new());
    home.finish();
}

#[test]
fn a_killed_shim_leaves_nothing_and_its_server_comes_back_once() {
    for (name, how) in ESCAPES {
        let home = home();
        home.server("one", &wrapper(&home, how, WAITS));
        home.daemon();
        ready(&home);
        let before = left(&home);
        let leader = pid_in(&status(&home, "one"));
        signal(parent_of(leader), Signal::KILL);
        running_after(&home, "one", 1);
        let after = left(&home);
        let twice: Vec<_> = before.iter().filter(|one| after.contains(one)).collect();
        assert!(twice.is_empty(), "{name}: {twice:?} outlived their shim");
        ask(&home, "stop", json!({ "name": "one" }));
        assert_eq!(left(&home), Vec::<String>::new(), "{name}");
        home.finish();
    }
}

#[test]
fn a_stop_whose_shim_hangs_is_forced_and_leaves_nothing() {
    let home = home();
    home.server("one", &wrapper(&home, "escapee &", WAITS));
    home.daemon();
    ready(&home);
    let shim = parent_of(pid_in(&status(&home, "one")));
    signal(shim, Signal::STOP);
    ask(&home, "stop", json!({ "name": "one" }));
    assert_eq!(left(&home), Vec::<String>::new());
    home.finish();
}

/// As many quotes between `begin` and `end` as a file may hold; each doubles on the wire.
fn full_of_quotes(begin: &str, end: &str) -> String {
    const LARGEST_FILE: usize = 1024 * 1024;
    let quotes = "\"".repeat(LARGEST_FILE - begin.len() - end.len());
    [begin, &quotes, end].concat()
}

#[test]
fn a_server_too_large_to_start_fails_alone() {
    let home = home();
    home.server("huge", &full_of_quotes("command \"/bin/true\"\nargs #\"\\", "\"#"));
    home.write_config("xy.kdl", &full_of_quotes("defaults { env { A #\"\\", "\"# } }"));
    home.daemon();
    let failed = home.wait_for_state("huge", "failed");
    assert_eq!(failed["reason"], "its arguments and environment are too large");
    let error = refused(&home, "start", json!({ "name": "huge" }));
    assert_eq!(error["code"], -32006, "{error}");
    home.finish();
}

fn parent_of(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
}
