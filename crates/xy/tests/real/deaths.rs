//! Clients continue after a server, or the daemon, is killed.

use rustix::process::{Pid, Signal};
use xy_testkit::{Home, marked_processes};

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
    let pid = home.wait_until("the server runs", || everything(home));
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

/// Checks that every client can call every server.
#[track_caller]
fn assert_all_calls_work(stage: &Stage, peers: &mut [Peer]) {
    for peer in &mut *peers {
        peer.begin(stage, "calls");
    }
    for peer in &*peers {
        assert_saw_calls(&peer.name, &peer.receive());
    }
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
    for peer in &peers {
        assert_eq!(peer.receive()["begun"], true, "{}", peer.name);
    }
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
    for peer in &peers {
        let error = peer.receive()["error"].take();
        assert_eq!(error["code"], -32010, "{}: {error}", peer.name); // The outcome is unknown.
    }
    assert_all_calls_work(&stage, &mut peers);
    for peer in &mut peers {
        let seen = peer.ask(&stage, "changes");
        assert_ne!(seen["changed"], 0, "{} got no `list_changed` notification", peer.name);
    }
    assert_eq!(everything(&stage.home), before, "the server has lived on");

    for peer in peers {
        peer.leave(&stage);
    }
    stage.home.finish();
}
