//! Servers that are killed at random moments while many clients call them.

use std::time::Duration;

use rustix::process::Signal;

use crate::clients::Client;
use crate::fault_plan::{FaultPlan, Spacing, inject};
use crate::fixture::{CallPattern, Fixture, http_flags};
use crate::ledger::Rules;
use crate::rng::Rng;
use crate::{print_figure, seconds};

const SERVERS: usize = 10;
const CLIENTS: usize = 50;

/// The servers called over HTTP: one remote server, and two local ones.
const REMOTE: usize = 7;
const WEB: [usize; 2] = [8, 9];

/// Adds ten servers: of both eras, with and without read-ahead, over pipes, over HTTP and by a URL.
#[track_caller]
fn servers(fixture: &mut Fixture) {
    for number in 0..SERVERS {
        if number == REMOTE {
            fixture.serve_remote(&format!("server{number}"));
            continue;
        }
        let own: &[&str] = match number {
            3 => &["--unbuffered"],
            4 => &["--era", "both"],
            5 => &["--era", "modern"],
            6 => &["--era", "modern", "--unbuffered"],
            // Over HTTP this server has no streams, and so no subscriptions.
            9 => &["--era", "modern", "--no-listen"],
            _ => &[],
        };
        let (http, more) =
            if WEB.contains(&number) { http_flags() } else { (Vec::new(), String::new()) };
        let flags: Vec<&str> = http.iter().map(String::as_str).chain(own.iter().copied()).collect();
        fixture.serve(&format!("server{number}"), &flags, &more);
    }
}

/// Runs a whole storm of kills, and checks it.
fn storm(spacing: Spacing, time: Duration) {
    let mut rng = Rng::new();
    let mut fixture = Fixture::new();
    servers(&mut fixture);
    let all: Vec<usize> = (0..SERVERS).collect();
    fixture.home.daemon();
    fixture.ready(&all);
    let pattern = CallPattern { servers: all.clone(), call_ms: 30, at_once: 4 };
    let clients: Vec<(Client, CallPattern)> =
        (0..CLIENTS).map(|it| (Client::number(&fixture.home, it), pattern.clone())).collect();
    let plan = FaultPlan { servers: all.clone(), signal: Signal::KILL, spacing, time };
    let (mut calls, faults) = fixture.storm(&clients, &mut rng, |rng| inject(&fixture, rng, &plan));
    calls.extend(fixture.call_each(&clients[0].0, &all));
    print_figure(&format!("{SERVERS} servers, {CLIENTS} clients, {time:?}, spacing: {spacing:?}"));
    let is_struck = |server: &usize| faults.iter().any(|fault| fault.is_at(*server));
    let unstruck: Vec<usize> = all.iter().copied().filter(|it| !is_struck(it)).collect();
    let [waited, resumed] = ["xy_server_calls_parked_total", "xy_server_calls_again_total"]
        .map(|name| fixture.metric(name));
    let unordered = [REMOTE].into_iter().chain(WEB).collect();
    let tally = fixture.check(calls, faults, &Rules { unordered, ..Rules::default() });
    assert_eq!(unstruck, [0; 0], "not all were killed");
    assert!(tally.unknown > 0, "nothing was interrupted: {tally:?}");
    assert!(waited > 0 && resumed > 0, "{waited} calls waited, {resumed} were sent again");
    assert!(spacing == Spacing::None || tally.hit_twice == 0, "{tally:?}");
    fixture.finish(clients);
}

#[test]
fn killed_servers_answer_each_call_once_and_repeat_nothing() {
    storm(Spacing::Some, seconds(120, 10));
}

#[test]
fn repeatedly_killed_servers_lose_and_repeat_nothing() {
    storm(Spacing::None, seconds(60, 5));
}
