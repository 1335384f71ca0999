//! A server is killed, then the daemon: clients that know nothing of that go on.

use rustix::process::{Pid, Signal};
use xy_testkit::{Home, marked_processes};

use crate::peer::Peer;
use crate::stage::Stage;
use crate::tour::{remembers, saw_the_calls};

/// The process of the everything server: below its shim, whatever runs it.
fn everything(home: &Home) -> Option<u32> {
    let is_it = |cmdline: &str| cmdline.contains("server-everything/dist/index.js");
    marked_processes(home.mark()).into_iter().find(|it| is_it(&it.cmdline)).map(|it| it.pid)
}

#[track_caller]
fn kill_everything(home: &Home) {
    let pid = home.wait_until("the server runs", || everything(home));
    let known = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(known, Signal::KILL).unwrap();
    home.wait_until("it is gone", || !xy_testkit::is_alive(pid));
}

/// Every client has begun a call that takes long, and the server has begun to answer it.
#[track_caller]
fn are_in_a_long_call(stage: &Stage, peers: &mut [Peer]) {
    for peer in &mut *peers {
        peer.begin(stage, "slow");
    }
    for peer in peers {
        assert_eq!(peer.hear()["begun"], true, "{}", peer.name);
    }
}

/// Every client calls every server.
#[track_caller]
fn all_calls_work(stage: &Stage, peers: &mut [Peer]) {
    for peer in &mut *peers {
        peer.begin(stage, "calls");
    }
    for peer in &*peers {
        saw_the_calls(&peer.name, &peer.hear());
    }
    for peer in peers {
        remembers(stage, peer);
    }
}

#[test]
fn the_next_call_of_every_client_works_after_a_server_was_killed() {
    let (stage, _daemon) = Stage::with_daemon();
    let mut peers = Peer::all(&stage);
    are_in_a_long_call(&stage, &mut peers);
    kill_everything(&stage.home);
    // The server's own list says that this may be done twice: its successor begins it again.
    for peer in &peers {
        assert_eq!(peer.hear()["begun"], true, "{}", peer.name);
    }
    kill_everything(&stage.home);
    for peer in &peers {
        let error = peer.hear()["error"].take();
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.contains("`everything`"), "{}: {error}", peer.name);
    }
    all_calls_work(&stage, &mut peers);

    for peer in peers {
        peer.leave(&stage);
    }
    stage.home.finish();
}

#[test]
fn clients_over_stdio_go_on_after_the_daemon_was_killed() {
    let (stage, daemon) = Stage::with_daemon();
    let mut peers = Peer::all(&stage);
    peers.retain(Peer::is_stdio);
    let before = everything(&stage.home);

    are_in_a_long_call(&stage, &mut peers);
    daemon.kill9();
    for peer in &peers {
        let error = peer.hear()["error"].take();
        assert_eq!(error["code"], -32010, "{}: {error}", peer.name); // Its outcome is unknown.
    }
    all_calls_work(&stage, &mut peers);
    for peer in &mut peers {
        let heard = peer.ask(&stage, "changes");
        assert_ne!(heard["changed"], 0, "{} was not told to look at the lists again", peer.name);
    }
    assert_eq!(everything(&stage.home), before, "the server has lived on");

    for peer in peers {
        peer.leave(&stage);
    }
    stage.home.finish();
}
