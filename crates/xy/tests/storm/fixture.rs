//! A home with servers that record their executions, and the clients that call them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use xy_testkit::{Home, free_port};

use crate::clients::Client;
use crate::faults::Fault;
use crate::ledger::{Call, Kind, Ledger, Outcome, Rules, Table, Tally};
use crate::ledger::{check, recoveries};
use crate::remote::RemoteServer;
use crate::rng::Rng;
use crate::support::{ask, home, pid_in};
use crate::{now, print_figure};

/// Restart rules without delays and limits.
const UNLIMITED_RESTARTS: &str =
    "restart { backoff-initial \"0s\"; max-attempts 0; max-retries-per-minute 0 }\n";

/// Short retry delays for a remote server, which is never given up anyway.
const SOON_AGAIN: &str = "restart { backoff-initial \"20ms\"; backoff-max \"100ms\" }\n";

/// More numbers than any client uses.
const NUMBERS_EACH: u64 = 10_000_000;

/// The client that checks the recovery at the end.
const LAST_CLIENT: usize = 999;

/// Maximum number of reported violations. A broken rule usually fails for many calls.
const MAX_REPORTED_VIOLATIONS: usize = 10;

/// The behaviour of a client.
#[derive(Debug, Clone)]
pub(crate) struct CallPattern {
    /// The servers that it calls.
    pub(crate) servers: Vec<usize>,
    /// Exclusive maximum duration of a call.
    pub(crate) call_ms: u64,
    /// Maximum number of calls sent before the first answer is awaited.
    pub(crate) at_once: u64,
}

/// Servers, and the state of their calls.
pub(crate) struct Fixture {
    pub(crate) home: Home,
    pub(crate) names: Vec<String>,
    began: Instant,
    is_over: AtomicBool,
    /// Calls without an answer, and their servers.
    open: Mutex<BTreeMap<u64, usize>>,
    /// Remote servers, whose processes the test owns.
    remote: BTreeMap<usize, RemoteServer>,
}

impl Fixture {
    /// Creates a home without servers and without a daemon.
    #[track_caller]
    pub(crate) fn new() -> Self {
        Self {
            home: home(),
            names: Vec::new(),
            began: now(),
            is_over: AtomicBool::new(false),
            open: Mutex::default(),
            remote: BTreeMap::new(),
        }
    }

    /// Adds a server with these flags, and these settings after its command.
    #[track_caller]
    pub(crate) fn serve_as(&mut self, name: &str, flags: &[&str], more: &str) -> usize {
        let file = |kind: &str| self.home.root().join(format!("harness/{name}.{kind}"));
        let (record, input_log) = (file("record"), file("input"));
        let noting =
            ["--record", record.to_str().unwrap(), "--input-log", input_log.to_str().unwrap()];
        let kdl = format!("{}{more}", self.home.kdl_mcp(&[flags, &noting].concat()));
        self.home.write_config(&format!("servers/{name}.kdl"), &kdl);
        self.names.push(name.to_owned());
        self.names.len() - 1
    }

    /// Starts a remote server, and adds its URL.
    #[track_caller]
    pub(crate) fn serve_remote(&mut self, name: &str) -> usize {
        let port = free_port();
        let record = self.home.root().join(format!("harness/{name}.record"));
        let args = ["--http", &port.to_string(), "--record", record.to_str().unwrap()];
        let args = args.map(str::to_owned).to_vec();
        let remote = RemoteServer::start(self.home.program("xy-test-mcp"), args, port);
        let kdl = format!("url \"http://127.0.0.1:{port}/mcp\"\n{SOON_AGAIN}");
        self.home.write_config(&format!("servers/{name}.kdl"), &kdl);
        self.names.push(name.to_owned());
        self.remote.insert(self.names.len() - 1, remote);
        self.names.len() - 1
    }

    /// Returns the remote server with this number.
    pub(crate) fn remote(&self, server: usize) -> Option<&RemoteServer> {
        self.remote.get(&server)
    }

    /// Adds a server that is never given up.
    #[track_caller]
    pub(crate) fn serve(&mut self, name: &str, flags: &[&str], more: &str) -> usize {
        self.serve_as(name, flags, &format!("{UNLIMITED_RESTARTS}{more}"))
    }

    /// Returns the time since the start.
    pub(crate) fn now(&self) -> Duration {
        now() - self.began
    }

    /// Lets these clients call until `plan` returns. Returns the calls and its result.
    pub(crate) fn storm<T>(
        &self,
        clients: &[(Client, CallPattern)],
        rng: &mut Rng,
        plan: impl FnOnce(&mut Rng) -> T,
    ) -> (Vec<Call>, T) {
        self.is_over.store(false, Ordering::Relaxed);
        thread::scope(|scope| {
            let callers: Vec<_> = clients
                .iter()
                .enumerate()
                .map(|(who, (client, pattern))| {
                    let mut rng = rng.part();
                    scope.spawn(move || self.run_client(client, who, &mut rng, pattern))
                })
                .collect();
            // Even if this panics, the other threads end, and so does the test.
            let over = EndOnDrop(&self.is_over);
            let seen = plan(rng);
            drop(over);
            let calls = callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect();
            (calls, seen)
        })
    }

    /// Runs one client until the storm is over.
    fn run_client(
        &self,
        client: &Client,
        who: usize,
        rng: &mut Rng,
        pattern: &CallPattern,
    ) -> Vec<Call> {
        let mut calls = Vec::new();
        let mut number = NUMBERS_EACH * (who as u64 + 1);
        let mut is_lost = false;
        // After a lost call the test has failed, so the others need not be awaited.
        while !is_lost && !self.is_over.load(Ordering::Relaxed) {
            // One server for the whole batch: an answer is timed when it is taken, and waiting for
            // another server would delay this.
            let server = *rng.pick(&pattern.servers);
            let mut pending = Vec::new();
            for _ in 0..=rng.below(pattern.at_once) {
                number += 1;
                let kind = *rng.pick(&[Kind::Record, Kind::Idempotent, Kind::Look]);
                let call = self.begin(client, who, number, kind, server);
                let ms = rng.millis_below(pattern.call_ms).as_millis();
                let ms = u64::try_from(ms).unwrap();
                pending.push((call, client.call(&self.names[server], kind, number, ms)));
            }
            for (mut call, request) in pending {
                let outcome = if is_lost {
                    client.answer_now(request, call.number)
                } else {
                    client.answer(request, call.number)
                };
                is_lost |= outcome.is_none();
                call.answers.extend(outcome.map(|outcome| (self.now(), outcome)));
                self.open().remove(&call.number);
                calls.push(call);
            }
        }
        calls
    }

    fn begin(&self, client: &Client, who: usize, number: u64, kind: Kind, server: usize) -> Call {
        self.open().insert(number, server);
        let line = client.is_in_order().then_some(who);
        Call { number, kind, server, line, sent_at: self.now(), answers: Vec::new() }
    }

    /// Calls each of these servers once, with a read-only tool. All must answer.
    pub(crate) fn call_each(&self, client: &Client, servers: &[usize]) -> Vec<Call> {
        let mut calls = Vec::new();
        for server in servers {
            let number = NUMBERS_EACH * (LAST_CLIENT as u64 + 1) + *server as u64;
            let mut call = self.begin(client, LAST_CLIENT, number, Kind::Look, *server);
            let request = client.call(&self.names[*server], Kind::Look, number, 0);
            let outcome = client.answer(request, number).expect("an answer");
            assert!(matches!(outcome, Outcome::Done { .. }), "{outcome:?}");
            call.answers.push((self.now(), outcome));
            self.open().remove(&number);
            calls.push(call);
        }
        calls
    }

    /// Returns the calls to a server that have no answer yet.
    pub(crate) fn open_at(&self, server: usize) -> BTreeSet<u64> {
        self.open().iter().filter(|(_, at)| **at == server).map(|(number, _)| *number).collect()
    }

    /// Returns true if any of these calls has no answer yet.
    pub(crate) fn is_any_open(&self, numbers: &BTreeSet<u64>) -> bool {
        let open = self.open();
        numbers.iter().any(|number| open.contains_key(number))
    }

    fn open(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the listed entries of all servers in numeric order, with the process ids of remote
    /// servers.
    #[track_caller]
    pub(crate) fn listed(&self) -> Vec<Value> {
        let list = ask(&self.home, "list", Value::Null);
        let entries = list.as_array().unwrap();
        let entry = |name: &String| entries.iter().find(|it| it["name"] == **name).unwrap().clone();
        let mut all: Vec<Value> = self.names.iter().map(entry).collect();
        for (server, remote) in &self.remote {
            all[*server]["pid"] = remote.pid().into();
        }
        all
    }

    /// Waits until these servers run and their tools are known. Returns their processes.
    #[track_caller]
    pub(crate) fn ready(&self, servers: &[usize]) -> Vec<u32> {
        let running = |server: &usize| {
            let status = self.home.wait_for_state(&self.names[*server], "running");
            self.remote(*server).map_or_else(|| pid_in(&status), RemoteServer::pid)
        };
        let pids = servers.iter().map(running).collect();
        for server in servers {
            let tools = format!("xy_server_tools{{server=\"{}\"}}", self.names[*server]);
            self.home.wait_until("its tools are known", || self.metric(&tools) > 0);
        }
        pids
    }

    /// Returns how many messages of one method a server has received.
    pub(crate) fn received_count(&self, server: usize, method: &str) -> usize {
        let file = self.home.root().join(format!("harness/{}.input", self.names[server]));
        let text = fs::read_to_string(file).unwrap_or_default();
        let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        messages.filter(|it| it["method"] == method).count()
    }

    /// Checks all calls against the records, prints the figures, and fails the test if a rule was
    /// violated.
    #[track_caller]
    pub(crate) fn check(&self, calls: Vec<Call>, faults: Vec<Fault>, rules: &Rules) -> Tally {
        let records = self.names.iter().map(|name| self.record_of(name)).collect();
        let looks = self.names.iter().map(|name| self.looks_of(name)).collect();
        let ledger = Ledger { calls, faults, records, looks };
        let (tally, violations) = check(&ledger, rules);
        let (recoveries, never) = recoveries(&ledger);
        // Doomed servers must not recover.
        let is_doomed = |fault: &Fault| rules.doomed.iter().any(|it| fault.is_at(*it));
        let never: Vec<Fault> = never.into_iter().filter(|it| !is_doomed(it)).collect();
        let table = Table {
            tally,
            faults: ledger.faults.len(),
            parked: self.metric("xy_server_calls_parked_total"),
            resumed: self.metric("xy_server_calls_again_total"),
            recoveries: &recoveries,
        };
        print_figure(&table.to_string());
        let reported = &violations[..violations.len().min(MAX_REPORTED_VIOLATIONS)];
        assert!(violations.is_empty(), "{} faults, of which {reported:#?}", violations.len());
        assert!(never.is_empty(), "no result after {never:?}");
        tally
    }

    /// Returns the numbers that a server recorded.
    #[track_caller]
    pub(crate) fn record_of(&self, name: &str) -> Vec<u64> {
        self.numbers_in(&format!("{name}.record"))
    }

    /// Returns the numbers of recorded read-only calls.
    #[track_caller]
    fn looks_of(&self, name: &str) -> Vec<u64> {
        self.numbers_in(&format!("{name}.record.looks"))
    }

    #[track_caller]
    fn numbers_in(&self, name: &str) -> Vec<u64> {
        let file = self.home.root().join("harness").join(name);
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// Returns the sum of a metric.
    #[track_caller]
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let answer = self.home.mcp_http("/metrics").exchange("GET", &[], "");
        assert_eq!(answer.status, 200, "{answer:?}");
        let is_of =
            |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        let lines = answer.body.lines().filter(is_of);
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    /// Waits until no call is open or queued, and ends everything.
    #[track_caller]
    pub(crate) fn finish(self, clients: Vec<(Client, CallPattern)>) {
        for (client, _) in &clients {
            assert_eq!(client.unclaimed(), [""; 0], "nothing is answered twice");
        }
        drop(clients);
        self.home.wait_until("nothing is open or waits", || {
            let names = ["xy_server_calls_open", "xy_server_calls_waiting"];
            names.iter().all(|name| self.metric(name) == 0)
        });
        self.home.finish();
    }
}

/// Returns the flags and settings of an HTTP server.
#[track_caller]
pub(crate) fn http_flags() -> (Vec<String>, String) {
    let port = free_port();
    let more = format!("transport \"http\"\nport {port}\npath \"/mcp\"\n");
    (vec!["--http".to_owned(), port.to_string()], more)
}

/// Ends the calls of a storm when dropped.
struct EndOnDrop<'o>(&'o AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
