//! `xy daemon --replace`, again and again, under load.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::Home;

use crate::census::{is_there_once, leaders, listed};
use crate::client::{Client, Heard};
use crate::crew::{Kind, Server, check_logs, enlist, immortals};
use crate::diary;
use crate::support::home;
use crate::{pause, rounds, tell};

/// Clients that ask all the time, and connect again when their daemon has gone.
struct Crowd {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    answers: Arc<AtomicU64>,
    lines: Arc<AtomicU64>,
}

#[test]
fn replaced_again_and_again_under_load_the_servers_do_not_notice() {
    let home = home();
    let crew = immortals();
    enlist(&home, &crew);
    let builds = [PathBuf::from(env!("CARGO_BIN_EXE_xy")), home.root().join("tmp/xy-copy")];
    std::fs::copy(&builds[0], &builds[1]).unwrap();
    home.expect_left("tmp/xy-copy");
    let mut daemon = home.daemon();
    home.wait_until("all run", || listed(&home).values().all(|it| it["state"] == "running"));
    let before = pids(&home, &crew);
    let crowd = Crowd::gather(&home, &crew, before.clone());
    for round in 0..rounds(50, 8) {
        pause(Duration::from_millis(100));
        let build = &builds[usize::try_from((round + 1) % 2).unwrap()];
        let next = home.daemon_of(build, &["--replace"]);
        let ended = daemon.wait();
        assert_eq!(ended.code(), Some(0), "round {round}: {}", daemon.stderr());
        assert_eq!(pids(&home, &crew), before, "round {round}");
        daemon = next;
    }
    let (answers, lines) = crowd.disperse();
    assert!(daemon.terminate().success(), "{}", daemon.stderr());
    diary::nobody_was_there_twice(&home);
    let tally = check_logs(&home, &crew);
    assert_eq!(tally.lives, 20, "a server began again");
    tell(&format!("{answers} lists, {lines} lines followed; {tally:?}"));
    assert!(tally.rotated > 0, "no log was rotated: {tally:?}");
    home.finish();
}

fn pids(home: &Home, crew: &[Server]) -> BTreeMap<String, u32> {
    let (leaders, list) = (leaders(home), listed(home));
    let pid = |name: &String| is_there_once(home, name, &leaders[name], &list[name]).pid;
    crew.iter().map(|server| (server.name.clone(), pid(&server.name))).collect()
}

impl Crowd {
    fn gather(home: &Home, crew: &[Server], pids: BTreeMap<String, u32>) -> Self {
        let is_over: Arc<AtomicBool> = Arc::default();
        let (answers, lines): (Arc<AtomicU64>, Arc<AtomicU64>) = Default::default();
        let mut threads = Vec::new();
        let (socket, enough, count) = (home.socket(), is_over.clone(), answers.clone());
        threads.push(std::thread::spawn(move || {
            while !enough.load(Ordering::Relaxed) {
                if let Some(list) = asked(&socket) {
                    all_run(&list, &pids);
                    count.fetch_add(1, Ordering::Relaxed);
                }
                pause(Duration::from_millis(2));
            }
        }));
        for server in crew.iter().filter(|server| server.kind == Kind::Loud) {
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

    /// Sends all home; answers how many lists and lines there were. What one of them saw
    /// that must not be fails the test.
    fn disperse(mut self) -> (u64, u64) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        let counts = (self.answers.load(Ordering::Relaxed), self.lines.load(Ordering::Relaxed));
        assert!(counts.0 > 0 && counts.1 > 0, "{counts:?}");
        counts
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // The test has failed already.
        }
    }
}

fn asked(socket: &std::path::Path) -> Option<Value> {
    // A daemon that is about to leave may refuse.
    Client::open(socket)?.ask("list", Value::Null)?.ok()
}

/// Whoever asks at whatever moment hears that all run, as they always did.
fn all_run(list: &Value, pids: &BTreeMap<String, u32>) {
    let entries = list.as_array().unwrap();
    assert_eq!(entries.len(), pids.len());
    for entry in entries {
        let pid = pids[entry["name"].as_str().unwrap()];
        assert!(entry["state"] == "running" && entry["pid"] == pid, "{entry:#}");
    }
}

/// Follows one log until its daemon goes. Numbers go up by one, or it is told how many
/// lines were skipped.
fn follow(mut client: Client, name: &str, enough: &AtomicBool, count: &AtomicU64) {
    let Some(answer) = client.ask("logs", json!({ "name": name, "tail": 5, "follow": true }))
    else {
        return;
    };
    if answer.is_err() {
        return; // It is about to leave.
    }
    let mut next = None;
    while !enough.load(Ordering::Relaxed) {
        let message = match client.hear() {
            Heard::Message(message) => message,
            Heard::Silence => continue,
            Heard::Gone => return,
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
