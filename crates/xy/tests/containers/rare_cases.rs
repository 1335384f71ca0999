//! Rare cases: engines without an init, hanging credential helpers, missing images, deaths without
//! a daemon, and leftovers of a CLI.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{Daemon, Home};

use crate::stage::{Engine, assert_echoes, client, container_processes, reason};
use crate::support::{ask, home, parent_of, running, signal, status, wait_for_line};

crate::with_each_engine!(
    image_missing_in_registry_fails_at_once,
    hanging_credential_helper_ends_with_pull,
    hanging_credential_helper_is_ended_by_next_daemon,
    missing_credential_helper_is_named,
    call_during_pull_is_told_so,
    leftover_of_cli_is_removed_at_restart,
    two_leftovers_of_cli_are_removed_by_stop,
);

/// Returns the settings of a server whose image has to be pulled.
fn pulled_settings(engine: &Engine, home: &Home, image: &str) -> String {
    let kdl = engine.kdl(home, &["xy-test-mcp"], "network \"none\"");
    kdl.replace("localhost/xy-test", image).replace("pull \"never\"", "pull \"missing\"")
}

/// Starts a registry that answers 404 with this body.
fn empty_registry(body: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for visitor in listener.incoming().flatten() {
            std::thread::spawn(move || answer_not_found(visitor, body));
        }
    });
    port
}

fn answer_not_found(mut visitor: TcpStream, body: &str) -> std::io::Result<()> {
    let mut lines = BufReader::new(visitor.try_clone()?).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    while lines.next().is_some_and(|it| it.is_ok_and(|it| !it.is_empty())) {}
    let (status, body) =
        if first.contains(" /v2/ ") { ("200 OK", "{}") } else { ("404 Not Found", body) };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    visitor.write_all(head.as_bytes())?;
    if first.starts_with("HEAD ") { Ok(()) } else { visitor.write_all(body.as_bytes()) }
}

fn image_missing_in_registry_fails_at_once(engine: &Engine) {
    let known = r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#;
    for body in [known, ""] {
        let home = home();
        let image = format!("127.0.0.1:{}/nope:1", empty_registry(body));
        home.write_config("servers/one.kdl", &pulled_settings(engine, &home, &image));
        home.daemon();
        let failed = home.wait_for_state("one", "failed");
        let why = failed["reason"].as_str().unwrap();
        assert!(why.starts_with(&format!("the image `{image}` could not be fetched")), "{why}");
        assert_eq!(failed["restarts_total"], 0, "{failed:#}");
        assert!(engine.containers(&home).is_empty());
        engine.finish(home);
    }
}

/// Returns a home with an image at a registry that does not listen, whose login this helper keeps.
fn home_with_helper(engine: &Engine, does: Option<&str>) -> (Home, String) {
    let home = home();
    let tools = home.root().join("harness/bin");
    fs::create_dir_all(&tools).unwrap();
    let path = std::env::var("PATH").unwrap();
    let home = home.with_env("PATH", &format!("{}:{path}", tools.display()));
    if let Some(does) = does {
        let program = tools.join("docker-credential-xytest");
        fs::write(&program, format!("#!/bin/sh\n{does}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let logins = json!({ "credHelpers": { "127.0.0.1:9": "xytest" } });
    fs::create_dir_all(home.root().join("home/.docker")).unwrap();
    fs::write(home.root().join("home/.docker/config.json"), logins.to_string()).unwrap();
    home.expect_left("home/.docker");
    let kdl = pulled_settings(engine, &home, "127.0.0.1:9/x:1");
    (home, kdl)
}

/// Returns the file with which a helper of the test reports that it has started.
fn helper_started_file(home: &Home) -> PathBuf {
    home.root().join("harness/bin/docker-credential-xytest.began")
}

const HANGS: &str = r#"echo >>"$0.began"; exec tail -f "$0""#;

fn hanging_credential_helper_ends_with_pull(engine: &Engine) {
    let (home, kdl) = home_with_helper(engine, Some(HANGS));
    home.write_config("servers/one.kdl", &kdl);
    home.daemon();
    home.wait_until("it is asked", || helper_started_file(&home).exists());
    let now = home.wait_until("that is shown", || {
        let now = status(&home, "one");
        (now["progress"] == json!({ "what": "pulling 127.0.0.1:9/x:1" })).then_some(now)
    });
    assert_eq!(now["state"], "starting");
    ask(&home, "stop", json!({ "name": "one" }));
    let stopped = status(&home, "one");
    assert_eq!((&stopped["state"], &stopped["progress"]), (&json!("stopped"), &Value::Null));
    engine.finish(home); // Nothing is left of it.
}

fn hanging_credential_helper_is_ended_by_next_daemon(engine: &Engine) {
    let (home, kdl) = home_with_helper(engine, Some(r#"echo $$ >>"$0.began"; exec sleep 600"#));
    home.write_config("servers/one.kdl", &format!("{kdl}start \"lazy\"\n"));
    let daemon = home.daemon();
    let _ = home.call("start", json!({ "name": "one", "wait": false }));
    let hangs = home.wait_until("it is asked", || {
        fs::read_to_string(helper_started_file(&home))
            .ok()
            .and_then(|it| it.trim().parse::<u32>().ok())
    });
    let report = home.xy(&["self-test"]);
    assert!(xy_testkit::is_alive(hangs), "it is no orphan: {report:?}");
    daemon.kill9();
    assert!(xy_testkit::is_alive(hangs), "nobody has ended it");
    home.daemon();
    home.wait_until("it is ended", || !xy_testkit::is_alive(hangs));
    engine.finish(home);
}

fn missing_credential_helper_is_named(engine: &Engine) {
    let (home, kdl) = home_with_helper(engine, None);
    home.write_config("servers/one.kdl", &kdl);
    home.daemon();
    let named = "`docker-credential-xytest`, which stores the login for `127.0.0.1:9`, is not on the \
                 `PATH` of the daemon";
    home.wait_until("it is named", || reason(&home, "one").ends_with(named));
    engine.finish(home);
}

fn call_during_pull_is_told_so(engine: &Engine) {
    let (home, kdl) = home_with_helper(engine, Some(HANGS));
    home.write_config("servers/one.kdl", &format!("{kdl}start \"lazy\"\n"));
    home.write_config("xy.kdl", "park { queue \"1s\" }\ngateway { listen \"127.0.0.1:0\" }\n");
    home.daemon();
    let client = client(&home);
    let _ = client.start_call("one__echo", json!({ "message": "wake up" }));
    home.wait_until("it is asked", || helper_started_file(&home).exists());
    let answer = client.call("one__echo", json!({ "message": "hello" }));
    let error = answer["error"].to_string();
    assert!(error.contains("as it is still pulling 127.0.0.1:9/x:1"), "{answer:#}");
    assert!(error.contains("try again later"), "{answer:#}");
    drop(client);
    ask(&home, "stop", json!({ "name": "one" }));
    engine.finish(home);
}

/// Returns the variable that tells a CLI where its engine listens.
fn host_variable(engine: &Engine) -> &'static str {
    if engine.kind == "podman" { "CONTAINER_HOST" } else { "DOCKER_HOST" }
}

/// Starts a server that a CLI runs and that only ends by force, with its engine at `host`.
fn start_stubborn_cli(engine: &Engine, host: &str) -> (Home, Daemon, u32) {
    let env = format!("env {{ {} \"{host}\"; }}", host_variable(engine));
    start_stubborn_cli_in(engine, home(), &env)
}

/// Starts such a server in this home, with these variables.
fn start_stubborn_cli_in(engine: &Engine, home: Home, env: &str) -> (Home, Daemon, u32) {
    home.expect_left("home/"); // Files of the CLI.
    home.expect_left("run/");
    let kdl = format!(
        "command \"{}\"\nargs \"run\" \"--rm\" \"-i\" \"--network\" \"none\" \"--label\" \"test={}\" \
         \"--entrypoint\" \"/bin/xy-test-ignore-term\" \"localhost/xy-test\"\n\
         {env}\nstop {{ grace \"500ms\"; }}\n",
        engine.kind,
        home.mark(),
    );
    home.server("one", &kdl);
    let daemon = home.daemon();
    let cli = running(&home, "one");
    home.wait_until("its container is there", || {
        engine.containers(&home).first().is_some_and(|it| it["State"] == "running")
    });
    wait_for_line(&home, "one", "ready"); // Earlier a signal would have its default effect.
    (home, daemon, cli)
}

fn leftover_of_cli_is_removed_at_restart(engine: &Engine) {
    let host = format!("unix://{}", engine.socket.display());
    let (home, daemon, cli) = start_stubborn_cli(engine, &host);
    let left = engine.container(&home);
    // The CLI ends with its parent.
    for pid in [daemon.pid, parent_of(cli)] {
        signal(pid, Signal::KILL);
    }
    daemon.wait();
    home.wait_until("the CLI is gone, too", || !xy_testkit::is_alive(cli));
    home.daemon();
    home.wait_until("there is another, and that alone", || {
        let all = engine.containers(&home);
        all.len() == 1 && all[0]["Id"] != left.as_str() && all[0]["State"] == "running"
    });
    ask(&home, "stop", json!({ "name": "one" }));
    assert!(engine.containers(&home).is_empty());
    engine.finish(home);
}

fn two_leftovers_of_cli_are_removed_by_stop(engine: &Engine) {
    let host = format!("unix://{}", engine.socket.display());
    let (home, _, _) = start_stubborn_cli(engine, &host);
    let mut labels = engine.containers(&home)[0]["Labels"].clone();
    labels["xy.life"] = json!("an earlier one");
    let body = json!({
        "Image": "localhost/xy-test", "Entrypoint": ["/bin/xy-test-ignore-term"],
        "Labels": labels, "HostConfig": { "NetworkMode": "none" },
    });
    let (made, said) = engine.ask("POST", "/containers/create", Some(&body));
    assert_eq!(made, 201, "{said}");
    let id = serde_json::from_str::<Value>(&said).unwrap()["Id"].as_str().unwrap().to_owned();
    engine.must("POST", &format!("/containers/{id}/start"));
    assert_eq!(engine.containers(&home).len(), 2);
    ask(&home, "stop", json!({ "name": "one" }));
    let left = engine.containers(&home);
    assert!(left.is_empty(), "{left:#?}");
    engine.finish(home);
}

/// Forwards a TCP port to the socket of an engine.
fn port_of(engine: &Engine) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let socket = engine.socket.clone();
    std::thread::spawn(move || {
        for visitor in listener.incoming().flatten() {
            let there = UnixStream::connect(&socket).unwrap();
            let (mut here, mut back) = (visitor.try_clone().unwrap(), there.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut &visitor, &mut &there);
                there.shutdown(std::net::Shutdown::Write)
            });
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut back, &mut here);
                here.shutdown(std::net::Shutdown::Write)
            });
        }
    });
    port
}

#[test]
fn docker_cli_with_tcp_engine_leaves_no_container() {
    let engine = Engine::docker();
    let (home, _, _) =
        start_stubborn_cli(&engine, &format!("tcp://127.0.0.1:{}", port_of(&engine)));
    ask(&home, "stop", json!({ "name": "one" }));
    assert!(engine.containers(&home).is_empty());
    engine.finish(home);
}

/// The CLI knows its engine by a selected context; another engine is at the usual place.
#[test]
fn docker_cli_with_context_leaves_no_container_beside_podman() {
    let (engine, elsewhere) = (Engine::docker(), Engine::podman());
    let home = home();
    let config = home.root().join("home/.docker");
    let host = format!("host=unix://{}", engine.socket.display());
    for args in [["create", "there", "--docker", &host].as_slice(), &["use", "there"]] {
        let made = std::process::Command::new("docker")
            .arg("--config")
            .arg(&config)
            .arg("context")
            .args(args)
            .env_remove("DOCKER_HOST")
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
    }
    std::os::unix::fs::symlink(&elsewhere.socket, home.root().join("run/docker.sock")).unwrap();
    let (home, _, _) = start_stubborn_cli_in(&engine, home, "");
    ask(&home, "stop", json!({ "name": "one" }));
    assert!(engine.containers(&home).is_empty(), "{:#?}", engine.containers(&home));
    engine.finish(home);
}

#[test]
fn docker_without_init_warns_once() {
    assert_init_warning_once("docker", "--init-path=/nowhere/init");
}

#[test]
fn podman_without_init_warns_once() {
    assert_init_warning_once("podman", "init_path = \"/nowhere/init\"");
}

#[track_caller]
fn assert_init_warning_once(kind: &'static str, options: &'static str) {
    let (engine, _own) = Engine::with_options(kind, options);
    let home = home();
    engine.mcp_server(&home, "one", &[], "");
    engine.mcp_server(&home, "two", &[], "");
    let daemon = home.daemon();
    running(&home, "one");
    running(&home, "two");
    let client = client(&home);
    assert_echoes(&client, "one");
    assert_echoes(&client, "two");
    assert_eq!(engine.containers(&home).len(), 2, "those with an init are not left");
    let said = daemon.stderr().matches("this engine has no init").count();
    assert_eq!(said, 1, "{}", daemon.stderr());
    drop(client);
    engine.finish(home);
}

#[test]
fn docker_out_of_memory_without_daemon_is_reported() {
    let engine = Engine::docker();
    let home = home();
    let kdl = engine.kdl(&home, &["xy-test-mcp"], "network \"none\"; memory \"64MiB\"");
    home.write_config("servers/one.kdl", &format!("{kdl}restart {{ policy \"never\"; }}\n"));
    let daemon = home.daemon();
    let first = running(&home, "one");
    let client = home.mcp_connect(&["--no-start"]); // The next daemon is started below.
    client.initialize();
    client.tool_names();
    let server = *container_processes(first).last().unwrap();
    signal(server, Signal::STOP);
    // Larger than any request of xy's own meanwhile, but still written at once.
    let padding = "x".repeat(3000);
    let call = json!({ "bytes": 200_000_000, "padding": padding });
    let _ = client.start_call("one__big", call);
    let stdin = std::fs::File::open(format!("/proc/{server}/fd/0")).unwrap();
    home.wait_until("it has been asked", || {
        rustix::io::ioctl_fionread(&stdin).unwrap() > padding.len() as u64
    });
    drop(stdin);
    daemon.kill9();
    signal(server, Signal::CONT);
    home.wait_until("it has been killed", || {
        engine.containers(&home).first().is_some_and(|it| it["State"] == "exited")
    });
    home.daemon();
    home.wait_until("that is told", || {
        reason(&home, "one").contains("it used more than its memory limit (64 MiB)")
    });
    assert_eq!(status(&home, "one")["last_exit"]["oom"], "limit");
    drop(client);
    engine.finish(home);
}
