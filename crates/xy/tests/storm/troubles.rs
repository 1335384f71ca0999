//! Servers with problems other than being killed: some hang, one is slow, one ignores pings, and
//! one dies at every start.

use std::collections::BTreeSet;
use std::fs;

use rustix::process::Signal;
use serde_json::Value;

use crate::clients::Client;
use crate::fault_plan::{FaultPlan, Spacing, inject};
use crate::faults::{Fault, Target};
use crate::fixture::{CallPattern, Fixture, http_flags};
use crate::ledger::{Kind, Outcome, Rules};
use crate::rng::Rng;
use crate::support::{running, signal, status};
use crate::{print_figure, seconds};

/// Fast health probes for hanging servers, which do not react to SIGTERM.
const WATCHED: &str = "health { interval \"200ms\"; timeout \"500ms\"; failures 3 }\n\
    stop { grace \"300ms\" }\n";

/// Timeouts so short that a slow or unresponsive server could be taken for a hanging one.
const SUSPECTED: &str = "health { interval \"100ms\"; timeout \"200ms\"; failures 3 }\n";

/// Restart rules that give up after three attempts.
const MORTAL: &str =
    "restart { backoff-initial \"50ms\"; backoff-max \"100ms\"; max-attempts 3 }\n";

/// The number of these attempts.
const ATTEMPTS: u64 = 3;

const CLIENTS: usize = 50;

/// Clients of the slow server: each of its calls uses a whole processor for a second.
const PATIENT: usize = 2;

/// The ten servers of this test, by number.
struct Servers {
    /// Servers that are stopped at random moments, over pipes and HTTP.
    hanging: Vec<usize>,
    /// A server that works a second on each call, and reads nothing meanwhile.
    slow: usize,
    ignores_pings: usize,
    /// A server that dies at every start once the storm has begun.
    doomed: usize,
    /// Servers without problems.
    steady: [usize; 2],
    /// All servers that are called over HTTP.
    web: BTreeSet<usize>,
}

impl Servers {
    #[track_caller]
    fn enter(fixture: &mut Fixture) -> Self {
        let doom = fixture.home.root().join("harness/doom");
        let mut hanging = vec![
            fixture.serve("hanging", &[], WATCHED),
            fixture.serve("hanging-unread", &["--unbuffered"], WATCHED),
            fixture.serve("hanging-modern", &["--era", "modern"], WATCHED),
        ];
        let far_off = [
            serve_web(fixture, "hanging-web", &[], WATCHED),
            serve_web(fixture, "hanging-web-modern", &["--era", "modern", "--no-listen"], WATCHED),
        ];
        hanging.extend(far_off);
        let steady =
            [fixture.serve("steady", &[], SUSPECTED), serve_web(fixture, "steady-web", &[], "")];
        Self {
            hanging,
            slow: fixture.serve("slow", &["--work-us", "1000000"], SUSPECTED),
            ignores_pings: fixture.serve("deaf", &["--ignore-ping"], SUSPECTED),
            doomed: fixture.serve_as("doomed", &["--die-if", doom.to_str().unwrap()], MORTAL),
            steady,
            web: far_off.into_iter().chain([steady[1]]).collect(),
        }
    }

    /// Returns the servers without a fault, which must not be restarted.
    fn healthy(&self) -> [usize; 4] {
        [self.slow, self.ignores_pings, self.steady[0], self.steady[1]]
    }

    /// Creates the clients: some call only the slow server, all others the rest.
    fn clients(&self, fixture: &Fixture) -> Vec<(Client, CallPattern)> {
        let rest = [&self.hanging[..], &self.steady, &[self.ignores_pings, self.doomed]].concat();
        let hasty = CallPattern { servers: rest, call_ms: 30, at_once: 4 };
        let patient = CallPattern { servers: vec![self.slow], call_ms: 1, at_once: 1 };
        let pattern = |number| if number < PATIENT { patient.clone() } else { hasty.clone() };
        (0..CLIENTS).map(|it| (Client::number(&fixture.home, it), pattern(it))).collect()
    }
}

/// Adds a server that is called over HTTP.
#[track_caller]
fn serve_web(fixture: &mut Fixture, name: &str, flags: &[&str], more: &str) -> usize {
    let (http, place) = http_flags();
    let flags: Vec<&str> = http.iter().map(String::as_str).chain(flags.iter().copied()).collect();
    fixture.serve(name, &flags, &format!("{more}{place}"))
}

/// Returns the daemon's journal of one server from its first death on.
#[track_caller]
fn journal_since_first_death(fixture: &Fixture, name: &str) -> Vec<Value> {
    let file = fixture.home.root().join("state/xy/events.jsonl");
    let read = || {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let of_it: Vec<Value> = lines.filter(|it| it["server"] == name).collect();
        of_it.last().is_some_and(|it| it["to"] == "failed").then_some(of_it)
    };
    let all = fixture.home.wait_until("its end is written down", read);
    all.into_iter().skip_while(|it| it["from"] != "running").collect()
}

/// Asserts that only attempts and bounded delays lie between the first death and giving up.
#[track_caller]
fn assert_given_up_in_bounded_time(journal: &[Value]) {
    let is = |it: &&Value, from: &str, to: &str| {
        it["kind"] == "changed" && it["from"] == from && it["to"] == to
    };
    let count = |from, to| journal.iter().filter(|it| is(it, from, to)).count() as u64;
    let starts: Vec<u64> = journal
        .iter()
        .filter(|it| is(it, "restarting", "starting"))
        .map(|it| it["restart_count"].as_u64().unwrap())
        .collect();
    assert_eq!(starts, (1..=ATTEMPTS).collect::<Vec<_>>(), "{journal:#?}");
    assert_eq!(count("running", "restarting"), 1, "{journal:#?}");
    assert_eq!(count("starting", "restarting"), ATTEMPTS - 1, "{journal:#?}");
    assert_eq!(count("starting", "failed"), 1, "{journal:#?}");
    let last: Vec<&Value> = journal.iter().filter(|it| it["kind"] == "last_attempt").collect();
    assert_eq!((last.len(), &last[0]["restart_count"]), (1, &ATTEMPTS.into()), "{journal:#?}");
    assert_eq!(journal.len() as u64, 2 * ATTEMPTS + 2, "and nothing else: {journal:#?}");
}

#[test]
fn hung_servers_restart_and_slow_ones_do_not() {
    let mut rng = Rng::new();
    let mut fixture = Fixture::new();
    // Calls that wait for the doomed server must not end by their own timeout.
    fixture.home.write_config("xy.kdl", "park { queue \"10m\" }\n");
    let servers = Servers::enter(&mut fixture);
    fixture.home.daemon();
    let all: Vec<usize> = (0..fixture.names.len()).collect();
    fixture.ready(&all);
    let before = fixture.ready(&servers.healthy());
    let clients = servers.clients(&fixture);
    let plan = FaultPlan {
        servers: servers.hanging.clone(),
        signal: Signal::STOP,
        spacing: Spacing::Some,
        time: seconds(60, 10),
    };
    let (mut calls, faults) = fixture.storm(&clients, &mut rng, |rng| {
        fs::write(fixture.home.root().join("harness/doom"), "").unwrap();
        let pid = running(&fixture.home, "doomed");
        let doom = Fault::at_server(servers.doomed, pid, fixture.now());
        signal(pid, Signal::KILL);
        let mut faults = inject(&fixture, rng, &plan);
        fixture.home.wait_for_state("doomed", "failed");
        faults.push(doom);
        faults
    });
    // A hanging process is continued for its shutdown, and may then answer a last call.
    for fault in &faults {
        let Target::Server { server, pid } = fault.target else { continue };
        if server == servers.doomed {
            continue; // This server has no successor.
        }
        fixture.home.wait_until("a successor runs", || fixture.ready(&[server]) != [pid]);
    }
    let up = [&servers.hanging[..], &servers.healthy()].concat();
    calls.extend(fixture.call_each(&clients[0].0, &up));
    let count = all.len();
    print_figure(&format!(
        "{count} servers that hang, are slow, ignore pings, are doomed or well; {CLIENTS} clients"
    ));
    for server in &servers.hanging {
        assert!(faults.iter().any(|fault| fault.is_at(*server)), "{server}: {faults:?}");
    }
    let rules = Rules {
        doomed: [servers.doomed].into(),
        hanging: servers.hanging.iter().copied().collect(),
        unordered: servers.web.clone(),
        ..Rules::default()
    };
    let [waited, resumed] = ["xy_server_calls_parked_total", "xy_server_calls_again_total"]
        .map(|name| fixture.metric(name));
    let tally = fixture.check(calls, faults, &rules);
    // Servers stand still until the health check notices, with read-only calls open.
    assert!(waited > 0 && resumed > 0, "{waited} calls waited, {resumed} were sent again");
    assert!(tally.refused > 0, "no call was refused for `doomed`: {tally:?}");
    assert_given_up_in_bounded_time(&journal_since_first_death(&fixture, "doomed"));
    assert_eq!(fixture.ready(&servers.healthy()), before, "they are healthy");
    for server in servers.healthy() {
        let status = status(&fixture.home, &fixture.names[server]);
        assert_eq!(status["restarts_total"], 0, "{status:#}");
    }
    let last = clients[0].0.call("doomed", Kind::Record, 1, 0);
    let last = clients[0].0.answer(last, 1);
    let Some(Outcome::Refused(why)) = last else { panic!("{last:?}") };
    assert!(why.contains("gave up after 3 restarts in a row"), "{why}");
    fixture.finish(clients);
}
