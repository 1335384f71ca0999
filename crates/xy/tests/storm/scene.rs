//! A home with servers that write down what they do, and the crowd that calls them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use xy_testkit::{Home, free_port};

use crate::blows::Blow;
use crate::chance::Chance;
use crate::clients::Client;
use crate::far::Far;
use crate::ledger::{Call, Kind, Ledger, Outcome, Rules, Table, Tally};
use crate::ledger::{check, recoveries};
use crate::support::{ask, home, pid_in};
use crate::{now, tell};

/// Servers of storms come back soon, as often as it takes.
const TIRELESS: &str =
    "restart { backoff-initial \"0s\"; max-attempts 0; max-retries-per-minute 0 }\n";

/// One that runs somewhere else is tried again soon; it is never given up anyway.
const SOON_AGAIN: &str = "restart { backoff-initial \"20ms\"; backoff-max \"100ms\" }\n";

/// More numbers than any client uses.
const NUMBERS_EACH: u64 = 10_000_000;

/// The client that looks whether all is well again.
const LAST_CLIENT: usize = 999;

/// Faults that are told; a broken rule breaks everywhere.
const MOST_FAULTS_TOLD: usize = 10;

/// How a client behaves.
#[derive(Debug, Clone)]
pub(crate) struct Habits {
    /// The servers it calls.
    pub(crate) servers: Vec<usize>,
    /// A call takes less than so long.
    pub(crate) call_ms: u64,
    /// So many at most are sent before the first answer is waited for.
    pub(crate) at_once: u64,
}

/// Servers, and what is known of the calls to them.
pub(crate) struct Scene {
    pub(crate) home: Home,
    pub(crate) names: Vec<String>,
    began: Instant,
    is_over: AtomicBool,
    /// Calls without an answer, and their servers.
    open: Mutex<BTreeMap<u64, usize>>,
    /// Servers that are reached by a URL: the test has their processes.
    far: BTreeMap<usize, Far>,
}

impl Scene {
    /// A home without servers; its daemon is not there yet.
    #[track_caller]
    pub(crate) fn new() -> Self {
        Self {
            home: home(),
            names: Vec::new(),
            began: now(),
            is_over: AtomicBool::new(false),
            open: Mutex::default(),
            far: BTreeMap::new(),
        }
    }

    /// Adds a server with these flags, and this in its file after the command.
    #[track_caller]
    pub(crate) fn serve_as(&mut self, name: &str, flags: &[&str], more: &str) -> usize {
        let file = |kind: &str| self.home.root().join(format!("harness/{name}.{kind}"));
        let (record, diary) = (file("record"), file("diary"));
        let noting = ["--record", record.to_str().unwrap(), "--diary", diary.to_str().unwrap()];
        let kdl = format!("{}{more}", self.home.kdl_mcp(&[flags, &noting].concat()));
        self.home.write_config(&format!("servers/{name}.kdl"), &kdl);
        self.names.push(name.to_owned());
        self.names.len() - 1
    }

    /// Starts a server that runs somewhere else, and adds its URL.
    #[track_caller]
    pub(crate) fn serve_far(&mut self, name: &str) -> usize {
        let port = free_port();
        let record = self.home.root().join(format!("harness/{name}.record"));
        let args = ["--http", &port.to_string(), "--record", record.to_str().unwrap()];
        let args = args.map(str::to_owned).to_vec();
        let far = Far::start(self.home.program("xy-test-mcp"), args, port);
        let kdl = format!("url \"http://127.0.0.1:{port}/mcp\"\n{SOON_AGAIN}");
        self.home.write_config(&format!("servers/{name}.kdl"), &kdl);
        self.names.push(name.to_owned());
        self.far.insert(self.names.len() - 1, far);
        self.names.len() - 1
    }

    /// One that runs somewhere else, if this is one.
    pub(crate) fn far(&self, server: usize) -> Option<&Far> {
        self.far.get(&server)
    }

    /// The same for one that is never given up.
    #[track_caller]
    pub(crate) fn serve(&mut self, name: &str, flags: &[&str], more: &str) -> usize {
        self.serve_as(name, flags, &format!("{TIRELESS}{more}"))
    }

    /// The time since the beginning.
    pub(crate) fn now(&self) -> Duration {
        now() - self.began
    }

    /// Lets these clients call until `weather` is over: what came of it.
    pub(crate) fn storm<T>(
        &self,
        clients: &[(Client, Habits)],
        chance: &mut Chance,
        weather: impl FnOnce(&mut Chance) -> T,
    ) -> (Vec<Call>, T) {
        self.is_over.store(false, Ordering::Relaxed);
        thread::scope(|scope| {
            let callers: Vec<_> = clients
                .iter()
                .enumerate()
                .map(|(who, (client, habits))| {
                    let mut chance = chance.part();
                    scope.spawn(move || self.live(client, who, &mut chance, habits))
                })
                .collect();
            // Even if this panics, the others end, and so does the test.
            let over = Over(&self.is_over);
            let seen = weather(chance);
            drop(over);
            let calls = callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect();
            (calls, seen)
        })
    }

    /// What one client does until it is over.
    fn live(&self, client: &Client, who: usize, chance: &mut Chance, habits: &Habits) -> Vec<Call> {
        let mut calls = Vec::new();
        let mut number = NUMBERS_EACH * (who as u64 + 1);
        let mut is_lost = false;
        // After one that is lost the others need not be waited for: the test has failed.
        while !is_lost && !self.is_over.load(Ordering::Relaxed) {
            // One for all of them: an answer is noted when it is taken, and the wait for another
            // server would make it late.
            let server = *chance.pick(&habits.servers);
            let mut asked = Vec::new();
            for _ in 0..=chance.below(habits.at_once) {
                number += 1;
                let kind = *chance.pick(&[Kind::Record, Kind::Idempotent, Kind::Look]);
                let call = self.begin(client, who, number, kind, server);
                let ms = chance.millis_below(habits.call_ms).as_millis();
                let ms = u64::try_from(ms).unwrap();
                asked.push((call, client.call(&self.names[server], kind, number, ms)));
            }
            for (mut call, asked) in asked {
                let outcome = if is_lost {
                    client.answer_now(asked, call.number)
                } else {
                    client.answer(asked, call.number)
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

    /// Looks once at each of these servers, which must answer.
    pub(crate) fn looks(&self, client: &Client, servers: &[usize]) -> Vec<Call> {
        let mut calls = Vec::new();
        for server in servers {
            let number = NUMBERS_EACH * (LAST_CLIENT as u64 + 1) + *server as u64;
            let mut call = self.begin(client, LAST_CLIENT, number, Kind::Look, *server);
            let asked = client.call(&self.names[*server], Kind::Look, number, 0);
            let outcome = client.answer(asked, number).expect("an answer");
            assert!(matches!(outcome, Outcome::Done { .. }), "{outcome:?}");
            call.answers.push((self.now(), outcome));
            self.open().remove(&number);
            calls.push(call);
        }
        calls
    }

    /// Calls to a server that have no answer yet.
    pub(crate) fn open_at(&self, server: usize) -> BTreeSet<u64> {
        self.open().iter().filter(|(_, at)| **at == server).map(|(number, _)| *number).collect()
    }

    /// Whether any of these has no answer yet.
    pub(crate) fn is_any_open(&self, numbers: &BTreeSet<u64>) -> bool {
        let open = self.open();
        numbers.iter().any(|number| open.contains_key(number))
    }

    fn open(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All servers as the daemon lists them, in the order of their numbers, with the processes of
    /// those that it does not know the processes of.
    #[track_caller]
    pub(crate) fn listed(&self) -> Vec<Value> {
        let list = ask(&self.home, "list", Value::Null);
        let entries = list.as_array().unwrap();
        let entry = |name: &String| entries.iter().find(|it| it["name"] == **name).unwrap().clone();
        let mut all: Vec<Value> = self.names.iter().map(entry).collect();
        for (server, far) in &self.far {
            all[*server]["pid"] = far.pid().into();
        }
        all
    }

    /// Waits until all of these run, and have said what may be done twice: their processes.
    #[track_caller]
    pub(crate) fn ready(&self, servers: &[usize]) -> Vec<u32> {
        let running = |server: &usize| {
            let status = self.home.wait_for_state(&self.names[*server], "running");
            self.far(*server).map_or_else(|| pid_in(&status), Far::pid)
        };
        let pids = servers.iter().map(running).collect();
        for server in servers {
            let tools = format!("xy_server_tools{{server=\"{}\"}}", self.names[*server]);
            self.home.wait_until("its tools are known", || self.counted(&tools) > 0);
        }
        pids
    }

    /// What a server has heard of one method.
    pub(crate) fn heard_of(&self, server: usize, method: &str) -> usize {
        let file = self.home.root().join(format!("harness/{}.diary", self.names[server]));
        let text = fs::read_to_string(file).unwrap_or_default();
        let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        messages.filter(|it| it["method"] == method).count()
    }

    /// Holds all calls against what was written down, tells the figures, and fails the test if
    /// any rule was broken.
    #[track_caller]
    pub(crate) fn settle(&self, calls: Vec<Call>, blows: Vec<Blow>, rules: &Rules) -> Tally {
        let records = self.names.iter().map(|name| self.record_of(name)).collect();
        let looks = self.names.iter().map(|name| self.looks_of(name)).collect();
        let ledger = Ledger { calls, blows, records, looks };
        let (tally, faults) = check(&ledger, rules);
        let (recoveries, never) = recoveries(&ledger);
        // Some do not come back, and must not.
        let is_doomed = |blow: &Blow| rules.doomed.iter().any(|it| blow.is_at(*it));
        let never: Vec<Blow> = never.into_iter().filter(|it| !is_doomed(it)).collect();
        let table = Table {
            tally,
            blows: ledger.blows.len(),
            parked: self.counted("xy_server_calls_parked_total"),
            resumed: self.counted("xy_server_calls_again_total"),
            recoveries: &recoveries,
        };
        tell(&table.to_string());
        let told = &faults[..faults.len().min(MOST_FAULTS_TOLD)];
        assert!(faults.is_empty(), "{} faults, of which {told:#?}", faults.len());
        assert!(never.is_empty(), "no result after {never:?}");
        tally
    }

    /// The numbers that a server wrote down.
    #[track_caller]
    pub(crate) fn record_of(&self, name: &str) -> Vec<u64> {
        self.numbers_in(&format!("{name}.record"))
    }

    /// Those of the calls that only looked.
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

    /// The sum of what the gateway counts under this name.
    #[track_caller]
    pub(crate) fn counted(&self, name: &str) -> u64 {
        let answer = self.home.mcp_http("/metrics").exchange("GET", &[], "");
        assert_eq!(answer.status, 200, "{answer:?}");
        let is_of =
            |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        let lines = answer.body.lines().filter(is_of);
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    /// Waits until the gateway has nothing open or waiting, and ends everything.
    #[track_caller]
    pub(crate) fn finish(self, clients: Vec<(Client, Habits)>) {
        for (client, _) in &clients {
            assert_eq!(client.unclaimed(), [""; 0], "nothing is answered twice");
        }
        drop(clients);
        self.home.wait_until("nothing is open or waits", || {
            let names = ["xy_server_calls_open", "xy_server_calls_waiting"];
            names.iter().all(|name| self.counted(name) == 0)
        });
        self.home.finish();
    }
}

/// The flags, and the rest of the file, of a server over HTTP.
#[track_caller]
pub(crate) fn http_flags() -> (Vec<String>, String) {
    let port = free_port();
    let more = format!("transport \"http\"\nport {port}\npath \"/mcp\"\n");
    (vec!["--http".to_owned(), port.to_string()], more)
}

/// Ends the calls of a storm when it goes.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
