//! The start of servers, and their environment.

#[cfg(target_os = "linux")]
use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{Home, is_alive};

#[cfg(target_os = "linux")]
use crate::support::signal;
use crate::support::{ask, home, running, sleeper, status, tail};

#[test]
fn configured_servers_start_with_the_daemon() {
    let home = home();
    home.server("b-http", &format!("{}port 8421\n", sleeper(&home)));
    home.server("a-stdio", &sleeper(&home));
    home.server("c-sse", &format!("{}transport \"sse\"\nport 8422\n", sleeper(&home)));
    home.daemon();

    let pids = ["a-stdio", "b-http", "c-sse"].map(|name| running(&home, name));
    assert!(pids.iter().all(|&pid| is_alive(pid)), "{pids:?}");
    let list = ask(&home, "list", Value::Null);
    let values: Vec<_> =
        list.as_array().unwrap().iter().map(|it| (&it["name"], &it["pid"])).collect();
    assert_eq!(values.len(), 3);
    for (at, (name, pid)) in values.into_iter().enumerate() {
        assert_eq!((name, pid), (&json!(["a-stdio", "b-http", "c-sse"][at]), &json!(pids[at])));
    }
    let values = |key: &str| list.as_array().unwrap().iter().map(|it| it[key].clone()).collect();
    assert_eq!(Value::Array(values("port")), json!([null, 8421, 8422]));
    assert_eq!(Value::Array(values("transport")), json!(["stdio", "http", "sse"]));
    assert_eq!(Value::Array(values("wanted")), json!(["up", "up", "up"]));
    assert_eq!(Value::Array(values("restart_count")), json!([0, 0, 0]));
}

/// Returns the environment that `xy-test-mirror` recorded at its start.
pub(super) fn mirror_record(home: &Home, name: &str) -> Value {
    running(home, name);
    home.wait_until("the mirror has written its record", || {
        let lines = tail(home, name, 1);
        lines.first().map(|line| serde_json::from_str(line["line"].as_str().unwrap()).unwrap())
    })
}

#[track_caller]
fn assert_clean(seen: &Value) {
    if cfg!(target_os = "linux") {
        let open: Vec<_> = seen["fds"].as_object().unwrap().keys().collect();
        assert_eq!(open, ["0", "1", "2"], "{seen:#}");
        let none = json!({ "ignored": [], "blocked": [], "caught": [] });
        assert_eq!(seen["signals"], none);
    }
    assert_eq!(seen["sid"], seen["pid"], "it leads a session of its own");
}

#[test]
fn server_gets_a_clean_process() {
    let home = home();
    home.server("one", &home.kdl_command("xy-test-mirror", &["a b", "", "*"]));
    home.server("two", &format!("{}port 8421\n", home.kdl_command("xy-test-mirror", &[])));
    home.daemon();

    let one = mirror_record(&home, "one");
    assert_clean(&one);
    assert_eq!(one["pid"], status(&home, "one")["pid"]);
    assert_eq!(one["argv"].as_array().unwrap()[1..], [json!("a b"), json!(""), json!("*")]);
    assert_eq!([&one["stdin"], &one["stdout"], &one["stderr"]], ["pipe"; 3]);

    let two = mirror_record(&home, "two");
    assert_clean(&two);
    assert_eq!([&two["stdin"], &two["stdout"], &two["stderr"]], ["null", "pipe", "pipe"]);
    assert_ne!(one["sid"], two["sid"]);
}

#[test]
#[cfg(target_os = "linux")]
fn unclean_daemon_gives_servers_a_clean_process() {
    let home = home();
    home.server("one", &home.kdl_command("xy-test-mirror", &[]));
    let xy = home.command(&["daemon"]);
    let script = r#"trap "" INT HUP PIPE CHLD; exec 7</dev/null 9</dev/null; exec "$0" daemon"#;
    let mut daemon = std::process::Command::new("env");
    daemon.args(["--block-signal=USR1", "sh", "-c", script]).arg(xy.get_program());
    daemon.env_clear().envs(xy.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let null = std::process::Stdio::null;
    daemon.stdin(null()).stdout(null()).stderr(null());
    let mut daemon = daemon.spawn().unwrap();

    assert_clean(&mirror_record(&home, "one"));

    signal(daemon.id(), Signal::TERM);
    let ended = home.wait_until("the daemon has ended", || daemon.try_wait().unwrap());
    assert!(ended.success(), "{ended}");
}

#[test]
fn server_file_overrides_daemon_environment() {
    let home = home()
        .with_env("FROM_DAEMON", "kept")
        .with_env("IN_BOTH", "of the daemon")
        .with_env("XY_SECRET", "for xy alone");
    let env = "env { IN_BOTH \"of the file\"; DEBUG #true; RETRIES 3; EMPTY \"\" }\n";
    home.server("one", &format!("{}{env}", home.kdl_command("xy-test-mirror", &[])));
    home.daemon();

    let env = mirror_record(&home, "one")["env"].take();
    let values = ["FROM_DAEMON", "IN_BOTH", "DEBUG", "RETRIES", "EMPTY"].map(|name| &env[name]);
    assert_eq!(values, ["kept", "of the file", "true", "3", ""]);
    let ours: Vec<_> =
        env.as_object().unwrap().keys().filter(|name| name.starts_with("XY_")).collect();
    assert_eq!(ours, ["XY_INSTANCE", "XY_SERVER"]);
    assert_eq!(env["XY_SERVER"], "one");
}

#[test]
fn server_runs_in_its_working_dir() {
    let home = home();
    let folder = home.root().join("tmp");
    let working_dir = format!("working-dir \"{}\"\n", folder.display());
    home.server("own", &format!("{}{working_dir}", home.kdl_command("xy-test-mirror", &[])));
    home.server("none", &home.kdl_command("xy-test-mirror", &[]));
    home.daemon();

    assert_eq!(mirror_record(&home, "own")["cwd"], folder.to_str().unwrap());
    // The harness starts a daemon there.
    let of_the_daemon = home.root().join("home");
    assert_eq!(mirror_record(&home, "none")["cwd"], of_the_daemon.to_str().unwrap());
}
