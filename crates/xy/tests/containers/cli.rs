//! Command lines that users have already: `docker run …` and `podman run …` stay processes, and
//! leave no container behind whatever is killed.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;
use serde_json::json;
use xy_testkit::{Home, free_port};

use crate::stage::{Engine, assert_echoes, client};
use crate::support::{
    ask, home, parent_of, pid_in, running, running_after, signal, status, wait_for_line,
};

crate::with_each_engine!(
    cli_container_is_an_ordinary_server,
    cli_container_is_reached_by_port,
    forced_stop_of_cli_leaves_no_container,
    cli_with_host_option_leaves_no_container,
    killed_cli_leaves_no_container,
    cli_killed_with_daemon_leaves_no_container,
);

/// Other launchers start processes too, for which no container is shown.
#[test]
fn npx_and_uvx_servers_show_no_container() {
    let home = home();
    let tools = home.root().join("harness/bin");
    fs::create_dir_all(&tools).unwrap();
    for tool in ["npx", "uvx"] {
        let server = home.program("xy-test-mcp");
        let script = format!("#!/bin/sh\nexec {} --name \"$2\"\n", server.display());
        fs::write(tools.join(tool), script).unwrap();
        fs::set_permissions(tools.join(tool), fs::Permissions::from_mode(0o755)).unwrap();
        let kdl = format!("command \"{tool}\"\nargs \"-y\" \"run\"\n");
        home.write_config(&format!("servers/{tool}.kdl"), &kdl);
    }
    let path = std::env::var("PATH").unwrap();
    let home = home.with_env("PATH", &format!("{}:{path}", tools.display()));
    home.daemon();
    let client = client(&home);
    for tool in ["npx", "uvx"] {
        running(&home, tool);
        assert_echoes(&client, tool);
        let now = status(&home, tool);
        assert_eq!(now["container"], json!(null));
        assert_eq!(now["command"], json!([tool, "-y", "run"]), "{now:#}");
    }
    let checked = home.xy(&["check"]);
    assert!(checked.code == 0 && !checked.stdout.contains("container"), "{checked:?}");
    drop(client);
    home.finish();
}

/// Returns a home whose daemon finds the engine as its CLI does.
fn cli_home(engine: &Engine) -> Home {
    let socket = format!("unix://{}", engine.socket.display());
    let home = home();
    home.expect_left("home/"); // Files of the CLI.
    home.expect_left("run/");
    home.with_env(host_variable(engine), &socket)
}

fn host_variable(engine: &Engine) -> &'static str {
    if engine.kind == "podman" { "CONTAINER_HOST" } else { "DOCKER_HOST" }
}

/// Returns the settings of a server that a CLI runs.
fn cli_settings(engine: &Engine, home: &Home, program: &str) -> String {
    format!(
        "command \"{}\"\nargs \"run\" \"--rm\" \"-i\" \"--network\" \"none\" \"--label\" \"test={}\" \
         \"--entrypoint\" \"/bin/{program}\" \"localhost/xy-test\"\n\
         env {{ {} \"unix://{}\"; }}\nstop {{ grace \"1s\"; }}\n\
         restart {{ backoff-initial \"10ms\"; max-attempts 0; max-retries-per-minute 0; }}\n",
        engine.kind,
        home.mark(),
        host_variable(engine),
        engine.socket.display()
    )
}

/// Starts a server that only ends by force, and waits for its container.
fn start_stubborn(engine: &Engine, home: &Home) -> (xy_testkit::Daemon, u32, String) {
    home.server("one", &cli_settings(engine, home, "xy-test-ignore-term"));
    let daemon = home.daemon();
    let cli = running(home, "one");
    home.wait_until("its container is there", || {
        engine.containers(home).first().is_some_and(|it| it["State"] == "running")
    });
    wait_for_line(home, "one", "ready"); // Earlier a signal would have its default effect.
    (daemon, cli, engine.container(home))
}

#[track_caller]
fn assert_stops(engine: &Engine, home: &Home) {
    ask(home, "stop", json!({ "name": "one" }));
    assert_eq!(status(home, "one")["state"], "stopped");
    assert!(engine.containers(home).is_empty(), "{:#?}", engine.containers(home));
}

fn cli_container_is_an_ordinary_server(engine: &Engine) {
    let home = cli_home(engine);
    home.write_config("servers/one.kdl", &cli_settings(engine, &home, "xy-test-mcp"));
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    assert_echoes(&client, "one");
    assert_eq!(status(&home, "one")["container"], json!(null), "to xy it is a process");
    assert_eq!(engine.containers(&home).len(), 1);
    let checked = home.xy(&["check"]);
    let hint = format!("xy sees this container only as the process `{}`", engine.kind);
    assert!(checked.stdout.contains(&hint), "{checked:?}");
    assert!(
        checked.stdout.contains("with `container { image \"…\"; }` it survives the daemon"),
        "{checked:?}"
    );
    assert_stops(engine, &home);
    drop(client);
    engine.finish(home);
}

fn cli_container_is_reached_by_port(engine: &Engine) {
    let home = cli_home(engine);
    let port = free_port();
    let kdl = format!(
        "command \"{}\"\nargs \"run\" \"--rm\" \"-p\" \"127.0.0.1:{port}:8000\" \"-e\" \
         \"LISTEN_ANYWHERE=1\" \"--label\" \"test={}\" \"--entrypoint\" \"/bin/xy-test-mcp\" \
         \"localhost/xy-test\" \"--http\" \"8000\"\nenv {{ {} \"unix://{}\"; }}\n\
         transport \"http\"\nport {port}\nready {{ within \"60s\"; }}\n",
        engine.kind,
        home.mark(),
        host_variable(engine),
        engine.socket.display()
    );
    home.write_config("servers/one.kdl", &kdl);
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    assert_echoes(&client, "one");
    assert_eq!(engine.containers(&home).len(), 1);
    assert_stops(engine, &home);
    drop(client);
    engine.finish(home);
}

fn forced_stop_of_cli_leaves_no_container(engine: &Engine) {
    let home = cli_home(engine);
    start_stubborn(engine, &home);
    assert_stops(engine, &home);
    assert_eq!(status(&home, "one")["last_exit"]["signal"], 9);
    engine.finish(home);
}

fn cli_with_host_option_leaves_no_container(engine: &Engine) {
    // No variable is set, so only the CLI can find its engine.
    let home = home();
    home.expect_left("home/");
    home.expect_left("run/");
    let socket = format!("unix://{}", engine.socket.display());
    let options = match engine.kind {
        "docker" => format!("\"--host\" \"{socket}\""),
        _ => format!("\"--remote\" \"--url\" \"{socket}\""),
    };
    let kdl = cli_settings(engine, &home, "xy-test-ignore-term");
    let kdl = kdl.replace("args \"run\"", &format!("args {options} \"run\""));
    let without: Vec<&str> = kdl.lines().filter(|line| !line.starts_with("env ")).collect();
    home.server("one", &format!("{}\n", without.join("\n")));
    home.daemon();
    running(&home, "one");
    wait_for_line(&home, "one", "ready");
    assert_eq!(engine.containers(&home).len(), 1);
    assert_stops(engine, &home);
    assert_eq!(status(&home, "one")["last_exit"]["signal"], 9);
    engine.finish(home);
}

fn killed_cli_leaves_no_container(engine: &Engine) {
    let home = cli_home(engine);
    let (_, cli, container) = start_stubborn(engine, &home);
    signal(cli, Signal::KILL);
    let again = running_after(&home, "one", 1);
    assert_ne!(pid_in(&again), cli);
    home.wait_until("there is another container", || {
        let all = engine.containers(&home);
        all.len() == 1 && all[0]["Id"] != container.as_str()
    });
    assert_stops(engine, &home);
    engine.finish(home);
}

fn cli_killed_with_daemon_leaves_no_container(engine: &Engine) {
    let home = cli_home(engine);
    let (daemon, cli, container) = start_stubborn(engine, &home);
    // Only the daemon is killed: the next one adopts the CLI with its container.
    daemon.kill9();
    let daemon = home.daemon();
    assert_eq!((running(&home, "one"), engine.container(&home)), (cli, container.clone()));
    // Both are killed. Docker's CLI has a parent of its own, and ends with it.
    let is_minded = engine.kind == "docker";
    for pid in [daemon.pid, if is_minded { parent_of(cli) } else { cli }] {
        signal(pid, Signal::KILL);
    }
    daemon.wait();
    home.wait_until("the CLI is gone, too", || !xy_testkit::is_alive(cli));
    home.daemon();
    home.wait_until("there is another container", || {
        let all = engine.containers(&home);
        all.iter().any(|it| it["Id"] != container.as_str() && it["State"] == "running")
    });
    assert_stops(engine, &home);
    engine.finish(home);
}
