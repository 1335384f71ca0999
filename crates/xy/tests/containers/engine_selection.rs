//! Selection of the engine: by variable, by the usual sockets, or by kind.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use serde_json::{Value, json};
use xy_testkit::Home;

use crate::stage::{Engine, assert_echoes, client};
use crate::support::{ask, home, running, status};

crate::with_each_engine!(
    engine_is_found_by_variable,
    engine_is_found_in_user_folder,
    engine_is_found_at_system_socket,
);

/// Writes a server whose file selects its engine like this.
fn serve(engine: &Engine, home: &Home, name: &str, which: &str) {
    let host = format!("host \"unix://{}\"", engine.socket.display());
    let kdl = engine.kdl(home, &["xy-test-mcp"], "network \"none\"");
    assert!(kdl.contains(&host), "{kdl}");
    home.write_config(&format!("servers/{name}.kdl"), &kdl.replace(&host, which));
}

#[track_caller]
fn container(home: &Home, name: &str) -> Value {
    running(home, name);
    status(home, name)["container"].clone()
}

fn engine_is_found_by_variable(engine: &Engine) {
    let socket = engine.socket.to_str().unwrap();
    let host_variable = if engine.kind == "podman" { "CONTAINER_HOST" } else { "DOCKER_HOST" };
    let home = home().with_env(host_variable, &format!("unix://{socket}"));
    serve(engine, &home, "one", &format!("engine \"{}\"", engine.kind));
    home.daemon();
    let found = container(&home, "one");
    assert_eq!((&found["socket"], &found["engine"]), (&json!(socket), &json!(engine.kind)));
    assert_echoes(&client(&home), "one");
    assert_eq!(engine.containers(&home).len(), 1);
    engine.finish(home);

    // Without a kind, `DOCKER_HOST` may select either engine.
    let home = crate::support::home().with_env("DOCKER_HOST", &format!("unix://{socket}"));
    serve(engine, &home, "one", "");
    home.daemon();
    assert_eq!(container(&home, "one")["socket"], socket);
    engine.finish(home);
}

/// Returns the socket of a user's engine, in a home whose folder is `XDG_RUNTIME_DIR`.
fn of_user(home: &Home, kind: &str) -> PathBuf {
    home.root().join(if kind == "podman" { "run/podman/podman.sock" } else { "run/docker.sock" })
}

fn engine_is_found_in_user_folder(engine: &Engine) {
    let home = home();
    let place = of_user(&home, engine.kind);
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    symlink(&engine.socket, &place).unwrap();
    serve(engine, &home, "one", &format!("engine \"{}\"", engine.kind));
    home.daemon();
    let found = container(&home, "one");
    assert_eq!((&found["socket"], &found["engine"]), (&json!(place), &json!(engine.kind)));
    assert_eq!(engine.containers(&home).len(), 1);
    ask(&home, "stop", json!({ "name": "one" }));
    assert!(engine.containers(&home).is_empty());
    fs::remove_file(place).unwrap();
    let _ = fs::remove_dir(home.root().join("run/podman")); // Only one of the kinds has it.
    engine.finish(home);
}

/// Returns xy in another `/run`, in which this place leads to the engine.
fn with_run(home: &Home, engine: &Engine, place: &str) -> PathBuf {
    let script = home.root().join("harness/with-run");
    let text = format!(
        "#!/bin/sh\nexec unshare --mount sh -c 'mount -t tmpfs none /run && mkdir -p /run/podman && \
         ln -s {} {place} && exec {} \"$@\"' xy \"$@\"\n",
        engine.socket.display(),
        env!("CARGO_BIN_EXE_xy")
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    script
}

/// In a mount namespace with the engine at its usual place, and no other.
fn engine_is_found_at_system_socket(engine: &Engine) {
    let (inside, seen) = if engine.kind == "podman" {
        ("/run/podman/podman.sock", "/run/podman/podman.sock")
    } else {
        ("/run/docker.sock", "/var/run/docker.sock")
    };
    let home = home();
    serve(engine, &home, "one", "");
    serve(engine, &home, "two", &format!("engine \"{}\"", engine.kind));
    let other = if engine.kind == "podman" { "docker" } else { "podman" };
    serve(engine, &home, "three", &format!("engine \"{other}\""));
    let xy = with_run(&home, engine, inside);
    home.daemon_of(&xy, &[]);
    for name in ["one", "two"] {
        let found = container(&home, name);
        assert_eq!((&found["socket"], &found["engine"]), (&json!(seen), &json!(engine.kind)));
    }
    // An engine of the other kind is not used.
    home.wait_until("there is none of the other kind", || {
        let why = status(&home, "three")["reason"].as_str().unwrap_or_default().to_owned();
        why.starts_with("no container engine listens at ") && why.contains(&format!("/{other}"))
    });
    engine.finish(home);
}
