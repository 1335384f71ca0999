//! Hears every exit that any daemon tells: in its events, and in the state of its servers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{Client, Heard};
use crate::pause;

/// A server, and a code with which it ended.
pub(crate) type Exit = (String, i32);

/// Listens until it is dropped.
pub(crate) struct Ear {
    heard: Arc<Mutex<BTreeSet<Exit>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ear {
    /// Listens to whichever daemon serves there, for the exits of these servers.
    pub(crate) fn new(socket: PathBuf, names: Vec<String>) -> Self {
        let heard: Arc<Mutex<BTreeSet<Exit>>> = Arc::default();
        let is_over: Arc<AtomicBool> = Arc::default();
        let (told, enough) = (heard.clone(), is_over.clone());
        let thread = std::thread::spawn(move || {
            while !enough.load(Ordering::Relaxed) {
                listen(&socket, &names, &told, &enough);
                pause(Duration::from_millis(1));
            }
        });
        Self { heard, is_over, thread: Some(thread) }
    }

    /// What has been heard so far.
    pub(crate) fn heard(&self) -> BTreeSet<Exit> {
        self.heard.lock().unwrap().clone()
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // What it could not hear is told by the check.
        }
    }
}

/// Listens to one daemon until it is gone.
fn listen(socket: &Path, names: &[String], heard: &Mutex<BTreeSet<Exit>>, enough: &AtomicBool) {
    let Some(mut client) = Client::open(socket) else { return };
    let Some(Ok(_)) = client.ask("events", Value::Null) else { return };
    // What was told before we listened. Another connection: answers and events mix.
    let Some(mut asker) = Client::open(socket) else { return };
    for name in names {
        let Some(status) = asker.ask("status", json!({ "name": name })) else { break };
        heard.lock().unwrap().extend(exits_in(&status.unwrap_or_default()));
    }
    while !enough.load(Ordering::Relaxed) {
        match client.hear() {
            Heard::Message(event) => {
                let (name, reason) = (&event["params"]["name"], &event["params"]["reason"]);
                let code = reason.as_str().and_then(code_in);
                heard.lock().unwrap().extend(name.as_str().map(ToOwned::to_owned).zip(code));
            }
            Heard::Silence => {}
            Heard::Gone => return,
        }
    }
}

/// The exits that the status of a server tells of.
pub(crate) fn exits_in(status: &Value) -> Vec<Exit> {
    let Some(name) = status["name"].as_str() else { return Vec::new() };
    let last = status["last_exit"]["code"].as_i64().and_then(|code| i32::try_from(code).ok());
    let changes = status["transitions"].as_array().into_iter().flatten();
    let told = changes.filter_map(|change| code_in(change["reason"].as_str()?));
    told.chain(last).map(|code| (name.to_owned(), code)).collect()
}

/// The exits that a daemon has written to its own log.
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
