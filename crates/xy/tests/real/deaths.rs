//! Clients continue after a server, or the daemon, is killed.

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use xy_testkit::{Daemon, Home, free_port, marked_processes};

use crate::peer::Peer;
use crate::stage::Stage;
use crate::tour::{assert_saw_calls, check_memory};

/// Returns the process of the everything server, which is below its shim.
fn everything(home: &Home) -> Option<u32> {
    let is_it = |cmdline: &str| cmdline.contains("server-everything/dist/index.js");
    marked_processes(home.mark()).into_iter().find(|it| is_it(&it.cmdline)).map(|it| it.pid)
}

#[track_caller]
fn kill_everything_server(home: &Home) {
    kill(home, home.wait_until("the server runs", || everything(home)));
}

/// Kills the daemon that a client has started.
#[track_caller]
fn kill_started_daemon(home: &Home) {
    let info: Value = serde_json::from_str(&home.xy(&["info", "--json"]).stdout).unwrap();
    kill(home, info["pid"].as_u64().unwrap().try_into().unwrap());
}

#[track_caller]
fn kill(home: &Home, pid: u32) {
    let known = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(known, Signal::KILL).unwrap();
    home.wait_until("it is gone", || !xy_testkit::is_alive(pid));
}

/// Has every client begin a long call, and waits until the server has begun to answer.
#[track_caller]
fn begin_long_calls(stage: &Stage, peers: &mut [Peer]) {
    for peer in &mut *peers {
        peer.begin(stage, "slow");
    }
    for peer in peers {
        assert_eq!(peer.receive()["begun"], true, "{}", peer.name);
    }
}

/// Checks that a new process works on the calls of all clients.
#[track_caller]
fn assert_calls_begin_again(peers: &[Peer]) {
    for peer in peers {
        assert_eq!(peer.receive()["begun"], true, "{}", peer.name);
    }
}

/// Checks that the outcome of every client's call is unknown.
#[track_caller]
fn assert_outcomes_unknown(peers: &[Peer]) {
    for peer in peers {
        let error = peer.receive()["error"].take();
        assert_eq!(error["code"], -32010, "{}: {error}", peer.name);
    }
}

/// Waits until every client knows that the list of tools may have changed.
#[track_caller]
fn wait_for_list_changes(stage: &Stage, peers: &mut [Peer]) {
    for peer in peers {
        let what = format!("{} gets a `list_changed` notification", peer.name);
        stage.home.wait_until(&what, || peer.ask(stage, "changes")["changed"] != 0);
    }
}

/// Checks that every client can call the servers. It may be called several times.
#[track_caller]
fn assert_calls_work(stage: &Stage, peers: &mut [Peer]) {
    for peer in &mut *peers {
        peer.begin(stage, "calls");
    }
    for peer in &*peers {
        assert_saw_calls(&peer.name, &peer.receive());
    }
}

/// Checks that every client can call every server. A client can store its note only once.
#[track_caller]
fn assert_all_calls_work(stage: &Stage, peers: &mut [Peer]) {
    assert_calls_work(stage, peers);
    for peer in peers {
        check_memory(stage, peer);
    }
}

#[test]
fn next_call_works_after_server_is_killed() {
    let (stage, _daemon) = Stage::with_daemon();
    let mut peers = Peer::all(&stage);
    begin_long_calls(&stage, &mut peers);
    kill_everything_server(&stage.home);
    // The server's tool list says that this call is safe to repeat, so xy sends it again.
    assert_calls_begin_again(&peers);
    kill_everything_server(&stage.home);
    for peer in &peers {
        let error = peer.receive()["error"].take();
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.contains("`everything`"), "{}: {error}", peer.name);
    }
    assert_all_calls_work(&stage, &mut peers);

    for peer in peers {
        peer.leave(&stage);
    }
    stage.home.finish();
}

#[test]
fn stdio_clients_survive_daemon_kill() {
    let (stage, daemon) = Stage::with_daemon();
    let mut peers = Peer::all(&stage);
    peers.retain(Peer::is_stdio);
    let before = everything(&stage.home);

    begin_long_calls(&stage, &mut peers);
    daemon.kill9();
    // No client has listed the tools; the bridges have, and know that the call is safe to repeat.
    assert_calls_begin_again(&peers);
    kill_started_daemon(&stage.home);
    assert_outcomes_unknown(&peers); // A call is sent again only once.
    assert_all_calls_work(&stage, &mut peers);
    wait_for_list_changes(&stage, &mut peers);
    assert_eq!(everything(&stage.home), before, "the server has lived on");

    for peer in peers {
        peer.leave(&stage);
    }
    stage.home.finish();
}

/// Waits until a daemon serves HTTP and all servers.
#[track_caller]
fn wait_for_http(stage: &Stage) {
    stage.home.gateway_address();
    stage.wait_for_servers();
}

#[test]
fn http_clients_survive_replaced_and_killed_daemons() {
    let stage = Stage::new();
    stage
        .home
        .write_config("xy.kdl", &format!("gateway {{ listen \"127.0.0.1:{}\"; }}\n", free_port()));
    let (stage, first) = stage.start();
    let mut peers = Peer::all(&stage);
    peers.retain(|peer| !peer.is_stdio());
    assert_calls_work(&stage, &mut peers);

    let second = stage.home.daemon_with(&["--replace"]);
    assert!(first.wait().success(), "{}", first.stderr());
    wait_for_http(&stage);
    assert_calls_work(&stage, &mut peers);
    wait_for_list_changes(&stage, &mut peers);

    begin_long_calls(&stage, &mut peers);
    second.kill9();
    let _third: Daemon = stage.home.daemon();
    wait_for_http(&stage);
    assert_outcomes_unknown(&peers);
    assert_all_calls_work(&stage, &mut peers);

    for peer in peers {
        peer.leave(&stage);
    }
    stage.home.finish();
}

/// Returns a task that calls the tool `echo`.
fn echo(stage: &Stage, peer: &Peer, message: &str) -> Value {
    let mut task = stage.task("use", &peer.name);
    task["calls"] = json!([["everything__echo", { "message": message }]]);
    task
}

fn restarts(home: &Home) -> u64 {
    let status = home.call("status", json!({ "name": "everything" })).unwrap();
    status["restart_count"].as_u64().unwrap()
}

#[test]
fn oversized_call_takes_the_server_from_nobody() {
    let stage = Stage::of(&["everything"]);
    // The server's transport closes at 10 MiB without an answer. The process then ends with code 0,
    // or lives on.
    stage.append_config("everything", "health { interval \"1s\"; timeout \"1s\"; failures 3; }\n");
    let (stage, _daemon) = stage.start();
    let oversized = "x".repeat(11 << 20);
    let mut peers = Peer::all(&stage);
    for _ in 0..2 {
        let before = restarts(&stage.home);
        let (sender, others) = peers.split_first_mut().unwrap();
        sender.send(&echo(&stage, sender, &oversized));
        stage.home.wait_until("the server is restarted", || {
            for peer in &mut *others {
                assert_echo(&stage, peer);
            }
            restarts(&stage.home) > before
        });
        // If the process has ended, the call was sent to its successor, and ended that too.
        assert_eq!(sender.receive()["answers"], json!(["refused: -32010"]), "{}", sender.name);
        for peer in &mut peers {
            assert_echo(&stage, peer);
        }
        assert!(restarts(&stage.home) <= before + 2, "it was sent twice at most");
        peers.rotate_left(1);
    }
    for peer in peers {
        peer.leave(&stage);
    }
    stage.home.finish();
}

#[track_caller]
fn assert_echo(stage: &Stage, peer: &mut Peer) {
    peer.send(&echo(stage, peer, "hello"));
    assert_eq!(peer.receive()["answers"], json!(["Echo: hello"]), "{}", peer.name);
}
