//! A home for one test, the program in it, and a scripted daemon.

use std::collections::HashMap;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use xy_ipc::server::{Answer, Feed, Outbox, Service, serve};
use xy_protocol::control::Request;
use xy_protocol::error::{CallError, ErrorKind};

/// A home with its own folder for every variable that xy reads.
pub(crate) struct Home {
    pub(crate) folder: TempDir,
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Formats the result, with the home's path replaced.
    pub(crate) fn shown(&self, home: &Home) -> String {
        let text = format!(
            "exit {}\n--- stdout\n{}--- stderr\n{}",
            self.code.unwrap_or(-1),
            self.stdout,
            self.stderr
        );
        text.replace(home.path().to_str().unwrap(), "HOME")
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Home {
    pub(crate) fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("xy-verbs").tempdir_in("/tmp").unwrap();
        for name in ["config/xy/servers", "state", "run", "tmp"] {
            std::fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes the file of a server.
    pub(crate) fn server(&self, name: &str, text: &str) {
        let file = self.path().join(format!("config/xy/servers/{name}.kdl"));
        std::fs::write(file, text).unwrap();
    }

    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xy"));
        command
            .args(line.split_whitespace())
            .env_clear()
            .env("HOME", self.path())
            .env("XDG_CONFIG_HOME", self.path().join("config"))
            .env("XDG_STATE_HOME", self.path().join("state"))
            .env("XDG_RUNTIME_DIR", self.path().join("run"))
            .env("TMPDIR", self.path().join("tmp"))
            .stdin(Stdio::null());
        command
    }

    /// Runs `xy` with the arguments in `line`.
    pub(crate) fn xy(&self, line: &str) -> Ran {
        self.command(line).output().unwrap().into()
    }
}

/// The scripted daemon's answer to a method.
pub(crate) enum ScriptedAnswer {
    /// This JSON, unchanged.
    Result(String),
    Error(CallError),
    /// These notifications (method and params) after the answer.
    Stream(Vec<(&'static str, String)>),
    /// One notification, repeated without end.
    Flood(&'static str, String),
    /// These notifications; then the daemon vanishes.
    Dies(Vec<(&'static str, String)>),
}

/// A scripted daemon that listens in a [`Home`] until it is dropped.
pub(crate) struct Scripted {
    _runtime: Runtime,
}

struct Script(HashMap<&'static str, ScriptedAnswer>);

impl Scripted {
    pub(crate) fn new(
        home: &Home,
        answers: impl IntoIterator<Item = (&'static str, ScriptedAnswer)>,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let script = Arc::new(Script(answers.into_iter().collect()));
        let path = home.path().join("run/xy.sock");
        let bound = runtime.block_on(async { xy_ipc::bind(&path) }).unwrap();
        runtime.spawn(async move {
            let _file = bound.file;
            serve(bound.listener, script, std::future::pending()).await;
        });
        Self { _runtime: runtime }
    }
}

impl Service for Script {
    async fn call(&self, request: Request) -> Result<Answer, CallError> {
        let feed = |lines: &[(&'static str, String)], then| {
            Ok(Answer::Stream(Box::new(Lines { lines: lines.to_vec(), then }) as Box<dyn Feed>))
        };
        match self.0.get(request.method()) {
            None => Err(CallError::new(ErrorKind::Internal, "the script has no such line")),
            Some(ScriptedAnswer::Result(text)) => {
                Ok(Answer::Result(RawValue::from_string(text.clone()).unwrap()))
            }
            Some(ScriptedAnswer::Error(error)) => Err(error.clone()),
            Some(ScriptedAnswer::Stream(lines)) => feed(lines, Then::End),
            Some(ScriptedAnswer::Flood(method, params)) => {
                feed(&[(method, params.clone())], Then::Repeat)
            }
            Some(ScriptedAnswer::Dies(lines)) => feed(lines, Then::Die),
        }
    }
}

#[derive(Clone, Copy)]
enum Then {
    End,
    Repeat,
    Die,
}

struct Lines {
    lines: Vec<(&'static str, String)>,
    then: Then,
}

impl Feed for Lines {
    fn id(&self) -> u64 {
        1
    }

    fn end_method(&self) -> &'static str {
        match (self.then, self.lines.first()) {
            (Then::Die, _) => "not_the_end",
            (_, Some((method, _))) if method.starts_with("event") => "event_end",
            _ => "log_end",
        }
    }

    fn run(self: Box<Self>, outbox: Outbox) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            loop {
                for (method, params) in &self.lines {
                    let params = RawValue::from_string(params.clone()).unwrap();
                    if outbox.notify(method, params).await.is_err() {
                        return;
                    }
                }
                if !matches!(self.then, Then::Repeat) {
                    return;
                }
            }
        })
    }
}

/// Waits until `done` returns true, with a timeout.
pub(crate) fn wait_until(what: &str, done: impl Fn() -> bool) {
    for _ in 0..1000 {
        if done() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    panic!("waited too long: {what}");
}
