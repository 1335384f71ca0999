//! Records every exit that a daemon reports: in its events, and in the status of its servers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{Client, Received};
use crate::pause;

/// A server, and an exit code.
pub(crate) type Exit = (String, i32);

/// Records exits until it is dropped.
pub(crate) struct ExitRecorder {
    exits: Arc<Mutex<BTreeSet<Exit>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ExitRecorder {
    /// Starts a thread that follows the current daemon, and records the exits of these servers.
    pub(crate) fn new(socket: PathBuf, names: Vec<String>) -> Self {
        let exits: Arc<Mutex<BTreeSet<Exit>>> = Arc::default();
        let is_over: Arc<AtomicBool> = Arc::default();
        let (shared, enough) = (exits.clone(), is_over.clone());
        let thread = std::thread::spawn(move || {
            while !enough.load(Ordering::Relaxed) {
                listen(&socket, &names, &shared, &enough);
                pause(Duration::from_millis(1));
            }
        });
        Self { exits, is_over, thread: Some(thread) }
    }

    /// Returns the exits so far.
    pub(crate) fn exits(&self) -> BTreeSet<Exit> {
        self.exits.lock().unwrap().clone()
    }
}

impl Drop for ExitRecorder {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // The check reports missing exits.
        }
    }
}

/// Follows one daemon until it is gone.
fn listen(socket: &Path, names: &[String], exits: &Mutex<BTreeSet<Exit>>, enough: &AtomicBool) {
    let Some(mut client) = Client::open(socket) else { return };
    let Some(Ok(_)) = client.ask("events", Value::Null) else { return };
    // Exits from before the subscription. A second connection keeps answers and events apart.
    let Some(mut sender) = Client::open(socket) else { return };
    for name in names {
        let Some(status) = sender.ask("status", json!({ "name": name })) else { break };
        exits.lock().unwrap().extend(exits_in(&status.unwrap_or_default()));
    }
    while !enough.load(Ordering::Relaxed) {
        match client.receive() {
            Received::Message(event) => {
                let (name, reason) = (&event["params"]["name"], &event["params"]["reason"]);
                let code = reason.as_str().and_then(code_in);
                exits.lock().unwrap().extend(name.as_str().map(ToOwned::to_owned).zip(code));
            }
            Received::Silence => {}
            Received::Gone => return,
        }
    }
}

/// Returns the exits in the status of a server.
pub(crate) fn exits_in(status: &Value) -> Vec<Exit> {
    let Some(name) = status["name"].as_str() else { return Vec::new() };
    let last = status["last_exit"]["code"].as_i64().and_then(|code| i32::try_from(code).ok());
    let changes = status["transitions"].as_array().into_iter().flatten();
    let codes = changes.filter_map(|change| code_in(change["reason"].as_str()?));
    codes.chain(last).map(|code| (name.to_owned(), code)).collect()
}

/// Returns the exits in a daemon's own log.
pub(crate) fn exits_in_log(log: &str) -> Vec<Exit> {
    let exit = |line: &str| {
        let (_, rest) = line.split_once("server=")?;
        let name = rest.split_whitespace().next()?;
        Some((name.to_owned(), code_in(line)?))
    };
    log.lines().filter_map(exit).collect()
}

fn code_in(reason: &str) -> Option<i32> {
    let (_, rest) = reason.split_once("exited with code ")?;
    let digits = rest.split(|character: char| !character.is_ascii_digit()).next()?;
    digits.parse().ok()
}
