//! Faults of engines and images, and their explanations.

use std::net::TcpListener;

use serde_json::json;

use crate::stage::{Engine, assert_echoes, client, reason};
use crate::support::{ask, home, pid_in, running, running_after, status};

crate::with_each_engine!(
    missing_image_is_reported_at_once,
    engine_exit_code_is_explained_and_permanent,
    forbidden_engine_is_reported_with_hint,
    taken_name_is_reported,
    taken_port_is_reported,
    missing_volume_folder_is_reported_at_once,
    externally_removed_container_is_restarted,
    externally_paused_container_is_restarted,
    failed_pull_is_reported,
    image_missing_at_restart_is_reported,
);

#[test]
fn missing_engine_is_reported() {
    let home = home();
    let kdl = "container { image \"x\"; host \"unix:///nowhere/engine.sock\"; }\n";
    let often = "restart { backoff-initial \"100ms\"; backoff-max \"100ms\"; }\n";
    home.write_config("servers/one.kdl", &format!("{kdl}{often}"));
    home.daemon();
    home.wait_until("it is told", || {
        reason(&home, "one").contains("no container engine listens at `/nowhere/engine.sock`")
    });
    let started = home.xy(&["start", "one"]);
    assert!(started.stderr.contains("start Docker or Podman"), "{started:?}");
    // It is never given up.
    let now = home.wait_until("it was tried more often than a server may fail", || {
        let now = status(&home, "one");
        now["transitions"].to_string().contains("attempt 8 to reach it").then_some(now)
    });
    assert_eq!((&now["restarts_total"], &now["health"]), (&json!(0), &json!("unreachable")));
    home.write_config("servers/one.kdl", &format!("{kdl}restart {{ policy \"never\"; }}\n"));
    ask(&home, "reload", json!({}));
    ask(&home, "stop", json!({ "name": "one" }));
    let _ = home.call("start", json!({ "name": "one" }));
    home.wait_for_state("one", "failed");
    home.finish();
}

#[test]
fn silent_engine_is_reported() {
    let home = home();
    let socket = home.root().join("tmp/deaf.sock");
    let _deaf = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let kdl = format!("container {{ image \"x\"; host \"unix://{}\"; }}\n", socket.display());
    let patient = "ready { within \"60s\"; }\n";
    home.write_config("servers/one.kdl", &format!("{kdl}{patient}"));
    home.daemon();
    home.wait_until("it is told", || reason(&home, "one").contains("does not answer"));
    std::fs::remove_file(socket).unwrap();
    home.finish();
}

fn missing_image_is_reported_at_once(engine: &Engine) {
    let home = home();
    let kdl = engine.kdl(&home, &["x"], "").replace("localhost/xy-test", "localhost/nope:1");
    home.write_config("servers/one.kdl", &kdl);
    home.daemon();
    let failed = home.wait_for_state("one", "failed");
    let why = "there is no image `localhost/nope:1`, and `pull \"never\"` forbids fetching it";
    assert_eq!(failed["reason"], why);
    assert_eq!(failed["restarts_total"], 0);
    engine.finish(home);
}

fn image_missing_at_restart_is_reported(engine: &Engine) {
    let home = home();
    let image = engine.image_with(&home, &["CMD [\"x\"]"]);
    let kdl = engine.kdl(&home, &["xy-test-mcp"], "network \"none\"");
    let kdl = kdl.replace("localhost/xy-test", &image);
    let often = "restart { backoff-initial \"10ms\"; max-attempts 0; max-retries-per-minute 0; }\n";
    home.write_config("servers/one.kdl", &format!("{kdl}{often}"));
    home.daemon();
    running(&home, "one");
    // The running container keeps the image, under another name.
    engine.must("POST", &format!("/images/{image}/tag?repo={image}-kept&tag=latest"));
    engine.must("DELETE", &format!("/images/{image}:latest"));
    engine.must("POST", &format!("/containers/{}/kill", engine.container(&home)));
    let failed = home.wait_for_state("one", "failed");
    let why = failed["reason"].as_str().unwrap();
    assert!(why.starts_with(&format!("there is no image `{image}`")), "{why}");
    assert_eq!(failed["restarts_total"], 1, "{failed:#}");
    engine.finish(home);
    engine.must("DELETE", &format!("/images/{image}-kept:latest"));
}

fn failed_pull_is_reported(engine: &Engine) {
    let home = home();
    // No registry listens there.
    let kdl = engine.kdl(&home, &["x"], "").replace("localhost/xy-test", "127.0.0.1:9/nope:1");
    home.write_config("servers/one.kdl", &kdl.replace("pull \"never\"", "pull \"missing\""));
    home.daemon();
    home.wait_until("it is told", || {
        reason(&home, "one").contains("the image `127.0.0.1:9/nope:1` could not be fetched")
    });
    engine.finish(home);
}

/// An init fails to run the command: Docker's reports it by exit code, Podman's by a line on
/// stderr.
fn engine_exit_code_is_explained_and_permanent(engine: &Engine) {
    let home = home();
    let odd = "the engine itself could not run it";
    let table = [
        ("absent-bare", "/bin/nope", "init #false", "127", "there is no `/bin/nope` in the image"),
        ("odd", "/bin/xy-test-exit", "args \"--code\" \"125\"", "125", odd),
        ("odd-bare", "/bin/xy-test-exit", "args \"--code\" \"125\"; init #false", "125", odd),
        ("absent", "/bin/nope", "", "127", "`/bin/nope` was not found in the image"),
        (
            "plain",
            "/etc/passwd",
            "",
            "126",
            "`/etc/passwd` is in the image, but cannot be executed",
        ),
        ("plain-bare", "/etc/passwd", "init #false", "126", "`/etc/passwd` cannot be executed"),
        ("eager", "/bin/nope", "", "127", "`/bin/nope` was not found in the image"),
    ];
    for (name, command, more, _, _) in &table {
        let kdl = engine.kdl(&home, &["x"], &format!("network \"none\"; {more}"));
        let kdl = kdl.replace("command \"/bin/x\"", &format!("command {command:?}"));
        // An eager server is ready as soon as it runs, so before the failure is known.
        let probe = if *name == "eager" { "process" } else { "mcp" };
        let ready = format!("ready {{ probe {probe:?}; within \"60s\"; }}\n");
        home.write_config(&format!("servers/{name}.kdl"), &format!("{kdl}{ready}"));
    }
    home.daemon();
    for (name, _, _, code, words) in &table {
        let failed = home.wait_for_state(name, "failed");
        let why = failed["reason"].as_str().unwrap();
        assert!(why.contains(code) && why.contains(words), "{name}: {why}");
        assert_eq!(failed["restarts_total"], 0, "{name}: {failed:#}");
        if *name != "eager" {
            let refused = home.xy(&["start", name]);
            assert!(refused.stderr.contains("correct `command`"), "{name}: {refused:?}");
        }
    }
    home.wait_until("nothing is left", || engine.containers(&home).is_empty());
    engine.finish(home);
}

fn taken_name_is_reported(engine: &Engine) {
    let home = home();
    engine.mcp_server(
        &home,
        "one",
        &[],
        "restart { backoff-initial \"200ms\"; max-attempts 0; max-retries-per-minute 0; }\n",
    );
    home.daemon();
    running(&home, "one");
    let name = engine.containers(&home)[0]["Names"][0]
        .as_str()
        .unwrap()
        .trim_start_matches('/')
        .to_owned();
    ask(&home, "stop", json!({ "name": "one" }));
    let body = json!({ "Image": "localhost/xy-test", "Entrypoint": ["/bin/xy-test-mcp"] });
    let (made, said) = engine.ask("POST", &format!("/containers/create?name={name}"), Some(&body));
    assert_eq!(made, 201, "{said}");
    let _ = home.call("start", json!({ "name": "one" }));
    home.wait_until("it is told", || {
        reason(&home, "one")
            == format!("the name `{name}` is used by a container that xy does not own")
    });
    engine.must("DELETE", &format!("/containers/{name}?force=1"));
    running(&home, "one");
    engine.finish(home);
}

fn taken_port_is_reported(engine: &Engine) {
    let home = home();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let kdl = engine.kdl(
        &home,
        &["xy-test-mcp", "--http", "8000"],
        "port 8000; env { LISTEN_ANYWHERE 1; }",
    );
    let restart =
        "restart { backoff-initial \"200ms\"; max-attempts 0; max-retries-per-minute 0; }\n";
    home.write_config("servers/one.kdl", &format!("{kdl}port {port}\n{restart}"));
    home.daemon();
    home.wait_until("it is told", || {
        reason(&home, "one") == format!("port {port} of this machine is taken by another program")
    });
    drop(taken);
    running(&home, "one");
    engine.finish(home);
}

fn missing_volume_folder_is_reported_at_once(engine: &Engine) {
    let home = home();
    let kdl = engine.kdl(&home, &["xy-test-mcp"], "volumes \"/nowhere/at/all:/x\"");
    home.write_config("servers/one.kdl", &kdl);
    home.daemon();
    let failed = home.wait_for_state("one", "failed");
    let why = failed["reason"].as_str().unwrap();
    assert!(why.starts_with("a folder of its `volumes` does not exist"), "{why}");
    assert!(!std::path::Path::new("/nowhere").exists());
    engine.finish(home);
}

fn externally_removed_container_is_restarted(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "restart { backoff-initial \"10ms\"; }\n");
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    let id = engine.container(&home);
    engine.must("DELETE", &format!("/containers/{id}?force=1"));
    let again = running_after(&home, "one", 1);
    assert_echoes(&client, "one");
    assert_ne!(engine.container(&home), id);
    let told = again["transitions"].to_string();
    assert!(told.contains("another program has removed its container"), "{told}");
    drop(client);
    engine.finish(home);
}

fn externally_paused_container_is_restarted(engine: &Engine) {
    let home = home();
    engine.mcp_server(
        &home,
        "one",
        &[],
        "restart { backoff-initial \"10ms\"; }\nstop { grace \"2s\"; }\n",
    );
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    engine.must("POST", &format!("/containers/{}/pause", engine.container(&home)));
    let again = running_after(&home, "one", 1);
    let told = again["transitions"].to_string();
    assert!(told.contains("another program has paused its container"), "{told}");
    assert_echoes(&client, "one");
    // A paused container can be stopped.
    engine.must("POST", &format!("/containers/{}/pause", engine.container(&home)));
    ask(&home, "stop", json!({ "name": "one" }));
    assert!(engine.containers(&home).is_empty());
    drop(client);
    engine.finish(home);
}

/// Restarts an engine while xy runs, and asserts that its server comes back.
#[track_caller]
fn assert_returns_after_engine_restart(kind: &'static str, is_gentle: bool) {
    let (engine, own) = Engine::of_its_own(kind);
    let home = home();
    // The usual limits apply: the absence of the engine does not count against the server.
    engine.mcp_server(&home, "one", &[], "restart { backoff-initial \"50ms\"; }\n");
    home.daemon();
    let first = running(&home, "one");
    let client = client(&home);
    assert_echoes(&client, "one");
    own.end(kind, is_gentle);
    own.up(kind);
    let again = home.wait_until("there is another", || {
        let now = status(&home, "one");
        (now["state"] == "running" && pid_in(&now) != first).then_some(now)
    });
    let told = again["transitions"].to_string();
    assert!(told.contains("its engine was restarted or closed the stream"), "{told}");
    assert_echoes(&client, "one");
    assert_eq!(engine.containers(&home).len(), 1);
    drop(client);
    engine.finish(home);
}

#[test]
fn docker_restart_ends_containers_and_they_restart() {
    assert_returns_after_engine_restart("docker", true);
    assert_returns_after_engine_restart("docker", false);
}

#[test]
fn podman_restart_cuts_containers_off_and_they_restart() {
    assert_returns_after_engine_restart("podman", false);
}

/// Starts an engine whose containers survive its restart, with a server.
fn start_live_restore(home: &xy_testkit::Home) -> (Engine, crate::stage::OwnEngine) {
    let (engine, own) = Engine::with_options("docker", "--live-restore");
    let restart =
        "restart { backoff-initial \"200ms\"; max-attempts 0; max-retries-per-minute 0; }\n";
    engine.mcp_server(home, "one", &[], restart);
    (engine, own)
}

#[test]
fn docker_live_restore_is_reattached() {
    let home = home();
    let (engine, own) = start_live_restore(&home);
    home.daemon();
    let first = running(&home, "one");
    let client = client(&home);
    assert_echoes(&client, "one");
    // By then every write has certainly arrived.
    let uptime = || status(&home, "one")["uptime_secs"].as_u64().unwrap_or_default();
    let so_far = uptime();
    home.wait_until("it has been quiet for a while", || uptime() >= so_far + 4);
    own.end("docker", true);
    own.up("docker");
    home.wait_until("it answers again", || {
        let call = client.start_call("one__echo", json!({ "message": "hello" }));
        client.answer_within(call, std::time::Duration::from_secs(5)).is_some()
    });
    assert_eq!(running(&home, "one"), first, "it is the same container");
    assert_eq!(status(&home, "one")["restarts_total"], 0);
    drop(client);
    engine.finish(home);
}

#[test]
fn docker_live_restore_during_call_restarts_server() {
    let home = home();
    let (engine, own) = start_live_restore(&home);
    home.daemon();
    let first = running(&home, "one");
    let client = client(&home);
    assert_echoes(&client, "one");
    let lost = client.start_call("one__never", json!({}));
    assert_echoes(&client, "one"); // So the call before has arrived, and is not merely sent later.
    own.end("docker", false);
    own.up("docker");
    home.wait_until("there is another", || {
        let now = status(&home, "one");
        now["state"] == "running" && pid_in(&now) != first
    });
    let answer = client.wait_answer(lost);
    assert!(answer["error"].is_object(), "{answer}");
    assert_echoes(&client, "one");
    assert_eq!(engine.containers(&home).len(), 1);
    drop(client);
    engine.finish(home);
}

/// Runs xy as the user `nobody`. The socket of an engine is for its group alone.
fn forbidden_engine_is_reported_with_hint(engine: &Engine) {
    use std::os::unix::fs::PermissionsExt;

    let home = home();
    home.write_config("servers/one.kdl", &engine.kdl(&home, &["xy-test-mcp"], ""));
    let as_nobody = home.root().join("harness/as-nobody");
    let script = format!(
        "#!/bin/sh\nexec setpriv --reuid 65534 --regid 65534 --clear-groups -- {} \"$@\"\n",
        env!("CARGO_BIN_EXE_xy")
    );
    std::fs::write(&as_nobody, script).unwrap();
    std::fs::set_permissions(&as_nobody, std::fs::Permissions::from_mode(0o755)).unwrap();
    let chowned = std::process::Command::new("chown")
        .args(["-R", "65534:65534"])
        .arg(home.root())
        .status()
        .unwrap();
    assert!(chowned.success());
    let daemon = home.spawn_daemon(&as_nobody, &[]);
    let told = "to=failed reason=no permission to use the container engine at";
    home.wait_until("it is told", || daemon.stderr().contains(told));
    // The start is refused with a hint.
    let started = home.command_of(&as_nobody, &["start", "one"]).output().unwrap();
    let said = String::from_utf8_lossy(&started.stderr).into_owned();
    let socket = engine.socket.display();
    let why = format!("no permission to use the container engine at `{socket}`");
    assert!(said.contains(&why) && said.contains("join the group that owns the socket"), "{said}");
    let status = home.command_of(&as_nobody, &["status", "one", "--json"]).output().unwrap();
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!((&status["state"], &status["restarts_total"]), (&json!("failed"), &json!(0)));
    assert_eq!(status["reason"], why, "{status:#}");
    engine.finish(home);
}
