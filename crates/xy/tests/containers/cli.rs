//! Command lines that people have already: `docker run …` and `podman run …` stay processes, and
//! leave no container behind, whoever is killed.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;
use serde_json::json;
use xy_testkit::{Home, free_port};

use crate::stage::{Engine, client, echoes};
use crate::support::{ask, home, parent_of, pid_in, running, running_after, says, signal, status};

crate::with_each_engine!(
    a_container_by_a_cli_is_a_server_as_any_other,
    a_container_by_a_cli_is_reached_by_its_port,
    a_cli_that_has_to_be_killed_leaves_no_container,
    a_cli_that_is_told_where_its_engine_is_leaves_no_container,
    a_cli_that_is_killed_leaves_no_container,
    a_cli_that_is_killed_with_its_daemon_leaves_no_container,
);

/// What others start servers with: to xy these are processes, and nothing is said of containers.
#[test]
fn what_npx_and_uvx_run_is_a_process_and_nothing_is_said_of_containers() {
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
        echoes(&client, tool);
        let now = status(&home, tool);
        assert_eq!(now["container"], json!(null));
        assert_eq!(now["command"], json!([tool, "-y", "run"]), "{now:#}");
    }
    let checked = home.xy(&["check"]);
    assert!(checked.code == 0 && !checked.stdout.contains("container"), "{checked:?}");
    drop(client);
    home.finish();
}

/// A home whose daemon finds the engine as its CLI does.
fn home_of(engine: &Engine) -> Home {
    let socket = format!("unix://{}", engine.socket.display());
    let home = home();
    home.expect_left("home/"); // What the CLI keeps for itself.
    home.expect_left("run/");
    home.with_env(variable(engine), &socket)
}

fn variable(engine: &Engine) -> &'static str {
    if engine.kind == "podman" { "CONTAINER_HOST" } else { "DOCKER_HOST" }
}

/// The file of a server that a CLI runs.
fn by_cli(engine: &Engine, home: &Home, program: &str) -> String {
    format!(
        "command \"{}\"\nargs \"run\" \"--rm\" \"-i\" \"--network\" \"none\" \"--label\" \"test={}\" \
         \"--entrypoint\" \"/bin/{program}\" \"localhost/xy-test\"\n\
         env {{ {} \"unix://{}\"; }}\nstop {{ grace \"1s\"; }}\n\
         restart {{ backoff-initial \"10ms\"; max-attempts 0; max-retries-per-minute 0; }}\n",
        engine.kind,
        home.mark(),
        variable(engine),
        engine.socket.display()
    )
}

/// A server that ends by force alone, once its container is there.
fn stubborn(engine: &Engine, home: &Home) -> (xy_testkit::Daemon, u32, String) {
    home.server("one", &by_cli(engine, home, "xy-test-ignore-term"));
    let daemon = home.daemon();
    let cli = running(home, "one");
    home.wait_until("its container is there", || {
        engine.containers(home).first().is_some_and(|it| it["State"] == "running")
    });
    says(home, "one", "ready"); // Before that it would end as anybody does.
    (daemon, cli, engine.container(home))
}

#[track_caller]
fn stops(engine: &Engine, home: &Home) {
    ask(home, "stop", json!({ "name": "one" }));
    assert_eq!(status(home, "one")["state"], "stopped");
    assert!(engine.containers(home).is_empty(), "{:#?}", engine.containers(home));
}

fn a_container_by_a_cli_is_a_server_as_any_other(engine: &Engine) {
    let home = home_of(engine);
    home.write_config("servers/one.kdl", &by_cli(engine, &home, "xy-test-mcp"));
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    echoes(&client, "one");
    assert_eq!(status(&home, "one")["container"], json!(null), "to xy it is a process");
    assert_eq!(engine.containers(&home).len(), 1);
    let checked = home.xy(&["check"]);
    let hint = format!("a container that xy knows only as the process `{}`", engine.kind);
    assert!(checked.stdout.contains(&hint), "{checked:?}");
    assert!(checked.stdout.contains("with `container { image \"…\"; }` instead"), "{checked:?}");
    stops(engine, &home);
    drop(client);
    engine.finish(home);
}

fn a_container_by_a_cli_is_reached_by_its_port(engine: &Engine) {
    let home = home_of(engine);
    let port = free_port();
    let kdl = format!(
        "command \"{}\"\nargs \"run\" \"--rm\" \"-p\" \"127.0.0.1:{port}:8000\" \"-e\" \
         \"LISTEN_ANYWHERE=1\" \"--label\" \"test={}\" \"--entrypoint\" \"/bin/xy-test-mcp\" \
         \"localhost/xy-test\" \"--http\" \"8000\"\nenv {{ {} \"unix://{}\"; }}\n\
         transport \"http\"\nport {port}\nready {{ within \"60s\"; }}\n",
        engine.kind,
        home.mark(),
        variable(engine),
        engine.socket.display()
    );
    home.write_config("servers/one.kdl", &kdl);
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    echoes(&client, "one");
    assert_eq!(engine.containers(&home).len(), 1);
    stops(engine, &home);
    drop(client);
    engine.finish(home);
}

fn a_cli_that_has_to_be_killed_leaves_no_container(engine: &Engine) {
    let home = home_of(engine);
    stubborn(engine, &home);
    stops(engine, &home);
    assert_eq!(status(&home, "one")["last_exit"]["signal"], 9);
    engine.finish(home);
}

fn a_cli_that_is_told_where_its_engine_is_leaves_no_container(engine: &Engine) {
    // No variable says it here, so nobody but the CLI could find it.
    let home = home();
    home.expect_left("home/");
    home.expect_left("run/");
    let socket = format!("unix://{}", engine.socket.display());
    let options = match engine.kind {
        "docker" => format!("\"--host\" \"{socket}\""),
        _ => format!("\"--remote\" \"--url\" \"{socket}\""),
    };
    let kdl = by_cli(engine, &home, "xy-test-ignore-term");
    let kdl = kdl.replace("args \"run\"", &format!("args {options} \"run\""));
    let without: Vec<&str> = kdl.lines().filter(|line| !line.starts_with("env ")).collect();
    home.server("one", &format!("{}\n", without.join("\n")));
    home.daemon();
    running(&home, "one");
    says(&home, "one", "ready");
    assert_eq!(engine.containers(&home).len(), 1);
    stops(engine, &home);
    assert_eq!(status(&home, "one")["last_exit"]["signal"], 9);
    engine.finish(home);
}

fn a_cli_that_is_killed_leaves_no_container(engine: &Engine) {
    let home = home_of(engine);
    let (_, cli, container) = stubborn(engine, &home);
    signal(cli, Signal::KILL);
    let again = running_after(&home, "one", 1);
    assert_ne!(pid_in(&again), cli);
    home.wait_until("there is another container", || {
        let all = engine.containers(&home);
        all.len() == 1 && all[0]["Id"] != container.as_str()
    });
    stops(engine, &home);
    engine.finish(home);
}

fn a_cli_that_is_killed_with_its_daemon_leaves_no_container(engine: &Engine) {
    let home = home_of(engine);
    let (daemon, cli, container) = stubborn(engine, &home);
    // Only the daemon: the next one goes on with both.
    daemon.kill9();
    let daemon = home.daemon();
    assert_eq!((running(&home, "one"), engine.container(&home)), (cli, container.clone()));
    // Both; with Docker by way of whoever minds the CLI, which goes with it.
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
    stops(engine, &home);
    engine.finish(home);
}
