//! A real client, driven by lines: a line with a task, and a line with its result.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use serde_json::Value;

use crate::stage::Stage;

/// Timeout of a task; nothing that works takes this long, even on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(90);

/// A connected client. Dropping it kills it.
pub(crate) struct Peer {
    pub(crate) name: String,
    child: Child,
    answers: Receiver<String>,
    stderr: PathBuf,
}

impl Peer {
    /// Starts every client over every transport, and waits until all are connected.
    #[track_caller]
    pub(crate) fn all(stage: &Stage) -> Vec<Self> {
        let (stdio, http) = (Stage::by_stdio(), stage.by_http());
        let peers = vec![
            Self::start(stage, "python-stdio", stage.python(&stdio)),
            Self::start(stage, "python-http", stage.python(&http)),
            Self::start(stage, "typescript-stdio", stage.typescript(&stdio)),
            Self::start(stage, "typescript-http", stage.typescript(&http)),
        ];
        Self::all_ready(peers)
    }

    /// Starts the clients of both eras, in each mode over each transport, and waits until all are
    /// connected.
    #[track_caller]
    pub(crate) fn all_of_both_eras(stage: &Stage) -> Vec<Self> {
        let mut peers = Vec::new();
        for (way, where_to) in [("stdio", Stage::by_stdio()), ("http", stage.by_http())] {
            for mode in ["auto", "legacy", "2026-07-28"] {
                let command = stage.python_of(mode, &where_to);
                peers.push(Self::start(stage, &format!("python-{mode}-{way}"), command));
            }
            for mode in ["default", "auto"] {
                let command = stage.typescript_of(mode, &where_to);
                peers.push(Self::start(stage, &format!("typescript-{mode}-{way}"), command));
            }
        }
        Self::all_ready(peers)
    }

    #[track_caller]
    fn all_ready(peers: Vec<Self>) -> Vec<Self> {
        for peer in &peers {
            assert_eq!(peer.receive()["ready"], true, "{}", peer.name);
        }
        peers
    }

    /// Starts a program that reads and writes one JSON value per line.
    pub(crate) fn start(stage: &Stage, name: &str, mut command: Command) -> Self {
        let stderr = stage.home.root().join(format!("harness/{name}.stderr"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(File::create(&stderr).unwrap());
        let mut child = command.spawn().unwrap_or_else(|cause| panic!("no {command:?}: {cause}"));
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (lines, answers) = sync_channel(100);
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| lines.send(line).ok())
        });
        Self { name: name.to_owned(), child, answers, stderr }
    }

    /// Returns true if the client uses `xy connect`.
    pub(crate) fn is_stdio(&self) -> bool {
        self.name.ends_with("-stdio")
    }

    /// Starts a task without waiting.
    #[track_caller]
    pub(crate) fn begin(&mut self, stage: &Stage, what: &str) {
        self.send(&stage.task(what, &self.name));
    }

    /// Writes one JSON value to the program.
    #[track_caller]
    pub(crate) fn send(&mut self, value: &Value) {
        let line = format!("{value}\n");
        self.child.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    }

    /// Waits for the next result.
    #[track_caller]
    pub(crate) fn receive(&self) -> Value {
        let line = self.answers.recv_timeout(TIMEOUT).unwrap_or_else(|cause| {
            let stderr = fs::read_to_string(&self.stderr).unwrap_or_default();
            panic!("{} says nothing ({cause}); stderr:\n{stderr}", self.name)
        });
        serde_json::from_str(&line).unwrap_or_else(|cause| panic!("{}: {cause}: {line}", self.name))
    }

    /// Runs a task, and returns its result.
    #[track_caller]
    pub(crate) fn ask(&mut self, stage: &Stage, what: &str) -> Value {
        self.begin(stage, what);
        self.receive()
    }

    /// Closes the client's stdin, and waits for a clean exit.
    #[track_caller]
    pub(crate) fn leave(mut self, stage: &Stage) {
        drop(self.child.stdin.take());
        let ended = stage.home.wait_until("a client has left", || self.child.try_wait().unwrap());
        let stderr = fs::read_to_string(&self.stderr).unwrap_or_default();
        assert!(ended.success(), "{} ended badly ({ended}); stderr:\n{stderr}", self.name);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill(); // The client has left, or the test has failed.
        let _ = self.child.wait();
    }
}
