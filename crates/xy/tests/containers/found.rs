//! Which engine is taken: by a variable, at the usual places, by the name of its kind.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use serde_json::{Value, json};
use xy_testkit::Home;

use crate::stage::{Engine, client, echoes};
use crate::support::{ask, home, running, status};

crate::with_each_engine!(
    an_engine_is_found_by_its_variable,
    an_engine_is_found_in_the_folder_of_its_user,
    an_engine_is_found_where_the_machine_has_it,
);

/// A server whose file says of its engine only this.
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

fn an_engine_is_found_by_its_variable(engine: &Engine) {
    let socket = engine.socket.to_str().unwrap();
    let variable = if engine.kind == "podman" { "CONTAINER_HOST" } else { "DOCKER_HOST" };
    let home = home().with_env(variable, &format!("unix://{socket}"));
    serve(engine, &home, "one", &format!("engine \"{}\"", engine.kind));
    home.daemon();
    let found = container(&home, "one");
    assert_eq!((&found["socket"], &found["engine"]), (&json!(socket), &json!(engine.kind)));
    echoes(&client(&home), "one");
    assert_eq!(engine.containers(&home).len(), 1);
    engine.finish(home);

    // Without a word of which, `DOCKER_HOST` may name either.
    let home = crate::support::home().with_env("DOCKER_HOST", &format!("unix://{socket}"));
    serve(engine, &home, "one", "");
    home.daemon();
    assert_eq!(container(&home, "one")["socket"], socket);
    engine.finish(home);
}

/// Where an engine that a user runs is found, in the folder of a home that is `XDG_RUNTIME_DIR`.
fn of_user(home: &Home, kind: &str) -> PathBuf {
    home.root().join(if kind == "podman" { "run/podman/podman.sock" } else { "run/docker.sock" })
}

fn an_engine_is_found_in_the_folder_of_its_user(engine: &Engine) {
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
    let _ = fs::remove_dir(home.root().join("run/podman")); // Only one of them has it.
    engine.finish(home);
}

/// xy with another `/run`, in which only this is at this place.
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

/// In a view of this machine in which the engine is at its usual place, and no other is.
fn an_engine_is_found_where_the_machine_has_it(engine: &Engine) {
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
    // It is not taken for what it is not.
    home.wait_until("there is none of the other kind", || {
        let why = status(&home, "three")["reason"].as_str().unwrap_or_default().to_owned();
        why.starts_with("no container engine listens at ") && why.contains(&format!("/{other}"))
    });
    engine.finish(home);
}
