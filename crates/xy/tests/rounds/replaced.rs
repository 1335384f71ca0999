//! `xy daemon --replace`, many times, under load.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::Home;

use crate::client::{Client, Received};
use crate::fleet::{Kind, Server, check_logs, immortals, write_files};
use crate::processes::{assert_runs_once, leaders, list_by_name};
use crate::run_log;
use crate::support::home;
use crate::{pause, print_figure, rounds};

/// Clients that send requests all the time, and reconnect when their daemon has gone.
struct LoadClients {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    answers: Arc<AtomicU64>,
    lines: Arc<AtomicU64>,
}

#[test]
fn servers_survive_repeated_daemon_replacement() {
    let home = home();
    let fleet = immortals();
    write_files(&home, &fleet);
    let builds = [PathBuf::from(env!("CARGO_BIN_EXE_xy")), home.root().join("tmp/xy-copy")];
    std::fs::copy(&builds[0], &builds[1]).unwrap();
    home.expect_left("tmp/xy-copy");
    let mut daemon = home.daemon();
    home.wait_until("all run", || list_by_name(&home).values().all(|it| it["state"] == "running"));
    let before = pids(&home, &fleet);
    let crowd = LoadClients::start(&home, &fleet, before.clone());
    for round in 0..rounds(50, 8) {
        pause(Duration::from_millis(100));
        let build = &builds[usize::try_from((round + 1) % 2).unwrap()];
        let next = home.daemon_of(build, &["--replace"]);
        let ended = daemon.wait();
        assert_eq!(ended.code(), Some(0), "round {round}: {}", daemon.stderr());
        assert_eq!(pids(&home, &fleet), before, "round {round}");
        daemon = next;
    }
    let (answers, lines) = crowd.stop();
    assert!(daemon.terminate().success(), "{}", daemon.stderr());
    run_log::assert_no_overlap(&home);
    let tally = check_logs(&home, &fleet);
    assert_eq!(tally.lives, 20, "a server began again");
    print_figure(&format!("{answers} lists, {lines} lines followed; {tally:?}"));
    assert!(tally.rotated > 0, "no log was rotated: {tally:?}");
    home.finish();
}

fn pids(home: &Home, fleet: &[Server]) -> BTreeMap<String, u32> {
    let (leaders, list) = (leaders(home), list_by_name(home));
    let pid = |name: &String| assert_runs_once(home, name, &leaders[name], &list[name]).pid;
    fleet.iter().map(|server| (server.name.clone(), pid(&server.name))).collect()
}

impl LoadClients {
    fn start(home: &Home, fleet: &[Server], pids: BTreeMap<String, u32>) -> Self {
        let is_over: Arc<AtomicBool> = Arc::default();
        let (answers, lines): (Arc<AtomicU64>, Arc<AtomicU64>) = Default::default();
        let mut threads = Vec::new();
        let (socket, enough, count) = (home.socket(), is_over.clone(), answers.clone());
        threads.push(std::thread::spawn(move || {
            while !enough.load(Ordering::Relaxed) {
                if let Some(list) = query(&socket) {
                    assert_all_running(&list, &pids);
                    count.fetch_add(1, Ordering::Relaxed);
                }
                pause(Duration::from_millis(2));
            }
        }));
        for server in fleet.iter().filter(|server| server.kind == Kind::Loud) {
            let (socket, enough, count) = (home.socket(), is_over.clone(), lines.clone());
            let name = server.name.clone();
            threads.push(std::thread::spawn(move || {
                while !enough.load(Ordering::Relaxed) {
                    if let Some(client) = Client::open(&socket) {
                        follow(client, &name, &enough, &count);
                    }
                    pause(Duration::from_millis(2));
                }
            }));
        }
        Self { is_over, threads, answers, lines }
    }

    /// Stops all clients, and returns the number of lists and lines. Fails the test if a client saw
    /// an error.
    fn stop(mut self) -> (u64, u64) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        let counts = (self.answers.load(Ordering::Relaxed), self.lines.load(Ordering::Relaxed));
        assert!(counts.0 > 0 && counts.1 > 0, "{counts:?}");
        counts
    }
}

impl Drop for LoadClients {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // The test has failed already.
        }
    }
}

fn query(socket: &std::path::Path) -> Option<Value> {
    // A daemon that is about to exit may refuse.
    Client::open(socket)?.ask("list", Value::Null)?.ok()
}

/// Checks that a list shows all servers running with their original processes.
fn assert_all_running(list: &Value, pids: &BTreeMap<String, u32>) {
    let entries = list.as_array().unwrap();
    assert_eq!(entries.len(), pids.len());
    for entry in entries {
        let pid = pids[entry["name"].as_str().unwrap()];
        assert!(entry["state"] == "running" && entry["pid"] == pid, "{entry:#}");
    }
}

/// Follows a log until its daemon goes. The line numbers must increase by one, or the daemon must
/// report the number of skipped lines.
fn follow(mut client: Client, name: &str, enough: &AtomicBool, count: &AtomicU64) {
    let Some(answer) = client.ask("logs", json!({ "name": name, "tail": 5, "follow": true }))
    else {
        return;
    };
    if answer.is_err() {
        return; // The daemon is about to exit.
    }
    let mut next = None;
    while !enough.load(Ordering::Relaxed) {
        let message = match client.receive() {
            Received::Message(message) => message,
            Received::Silence => continue,
            Received::Gone => return,
        };
        match message["method"].as_str() {
            Some("log") => {
                let seq = message["params"]["seq"].as_u64();
                if let (Some(next), Some(seq)) = (next, seq) {
                    assert_eq!(seq, next, "`{name}`: {message}");
                }
                next = seq.map(|seq| seq + 1);
                count.fetch_add(1, Ordering::Relaxed);
            }
            Some("log_skipped") => {
                next = next.map(|next: u64| next + message["params"]["count"].as_u64().unwrap());
            }
            Some("log_end") => return,
            _ => panic!("neither a line nor the end: {message}"),
        }
    }
}
