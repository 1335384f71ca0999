//! A client, a bridge, and a daemon that says what the test wants.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use serde_json::Value;
use xy_testkit::Home;

/// Nothing that works takes so long.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
pub(crate) const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
pub(crate) const GOODBYE: &str = r#"{"xy":"goodbye"}"#;
pub(crate) const WELCOME: &str = r#"{"xy":"welcome","protocol":1}"#;

pub(crate) fn home() -> Home {
    Home::new(Path::new(env!("CARGO_BIN_EXE_xy")))
}

pub(crate) fn request(id: u64, method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{}}}}"#)
}

/// The answer to `initialize` with this id, as it is written.
pub(crate) fn granted(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-06-18"}}}}"#)
}

pub(crate) fn result(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
}

pub(crate) fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|cause| panic!("{cause}: {line}"))
}

/// Where bridges come in; gone when dropped.
pub(crate) struct Door {
    listener: UnixListener,
    path: PathBuf,
}

impl Door {
    pub(crate) fn open(home: &Home) -> Self {
        let path = home.root().join("run/xy-mcp.sock");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener, path }
    }

    /// The next bridge.
    #[track_caller]
    pub(crate) fn accept(&self) -> Caller {
        for _ in 0..4000 {
            if let Ok((stream, _)) = self.listener.accept() {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(SOON)).unwrap();
                stream.set_write_timeout(Some(SOON)).unwrap();
                return Caller { lines: BufReader::new(stream) };
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
        panic!("no bridge came");
    }

    /// The next bridge, let in.
    #[track_caller]
    pub(crate) fn welcome(&self) -> Caller {
        let mut caller = self.accept();
        assert_eq!(json(&caller.hear())["xy"], "hello");
        caller.say(WELCOME);
        caller
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A bridge, as the daemon has it.
pub(crate) struct Caller {
    lines: BufReader<UnixStream>,
}

impl Caller {
    /// The next line; empty at the end.
    #[track_caller]
    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line, or the end");
        line.strip_suffix('\n').map(str::to_owned).unwrap_or(line)
    }

    #[track_caller]
    pub(crate) fn say(&mut self, line: &str) {
        self.lines.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    #[track_caller]
    pub(crate) fn say_raw(&mut self, bytes: &[u8]) {
        self.lines.get_mut().write_all(bytes).unwrap();
    }

    /// Another handle, for a thread.
    pub(crate) fn stream(&self) -> UnixStream {
        self.lines.get_ref().try_clone().unwrap()
    }

    /// Everything until the bridge hangs up.
    #[track_caller]
    pub(crate) fn hear_all(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        self.lines.read_to_end(&mut all).unwrap();
        all
    }
}

/// An MCP client and the bridge that it has started.
pub(crate) struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    heard: Receiver<Vec<u8>>,
    told: Receiver<Vec<u8>>,
}

impl Client {
    #[track_caller]
    pub(crate) fn start(home: &Home, args: &[&str]) -> Self {
        Self::start_command(&mut home.command(&[&["connect"], args].concat()))
    }

    /// Starts a bridge by a command of the test's own.
    #[track_caller]
    pub(crate) fn start_command(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let heard = lines_of(child.stdout.take().unwrap());
        let told = lines_of(child.stderr.take().unwrap());
        Self { stdin: child.stdin.take(), child, heard, told }
    }

    #[track_caller]
    pub(crate) fn say(&mut self, line: &str) {
        self.say_raw(format!("{line}\n").as_bytes());
    }

    #[track_caller]
    pub(crate) fn say_raw(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// Says its last word, or takes its voice elsewhere.
    pub(crate) fn take_stdin(&mut self) -> ChildStdin {
        self.stdin.take().unwrap()
    }

    /// Gives its voice back.
    pub(crate) fn put_stdin(&mut self, stdin: ChildStdin) {
        self.stdin = Some(stdin);
    }

    /// The next line, without its end.
    #[track_caller]
    pub(crate) fn hear(&self) -> String {
        String::from_utf8(self.hear_raw()).unwrap().trim_end_matches('\n').to_owned()
    }

    #[track_caller]
    pub(crate) fn hear_raw(&self) -> Vec<u8> {
        match self.heard.recv_timeout(SOON) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("nothing to hear; {}", self.stderr_so_far()),
            Err(RecvTimeoutError::Disconnected) => panic!("it ended; {}", self.stderr_so_far()),
        }
    }

    #[track_caller]
    pub(crate) fn hear_json(&self) -> Value {
        json(&self.hear())
    }

    /// Waits until a line of stderr has `text` in it.
    #[track_caller]
    pub(crate) fn tells(&self, text: &str) {
        loop {
            let line = self.told.recv_timeout(SOON);
            let line = line.unwrap_or_else(|_| panic!("nobody tells of `{text}`"));
            if String::from_utf8_lossy(&line).contains(text) {
                return;
            }
        }
    }

    fn stderr_so_far(&self) -> String {
        self.told.try_iter().map(|line| String::from_utf8_lossy(&line).into_owned()).collect()
    }

    /// Waits for the end: its code, what was left to hear, what it told people.
    #[track_caller]
    pub(crate) fn ended(mut self) -> (ExitStatus, Vec<u8>, String) {
        let rest: Vec<u8> = std::iter::from_fn(|| match self.heard.recv_timeout(SOON) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("it does not end"),
        })
        .flatten()
        .collect();
        let told: Vec<u8> = self.told.iter().flatten().collect();
        (self.child.wait().unwrap(), rest, String::from_utf8(told).unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Does not listen any more.
    pub(crate) fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines_of(source: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (lines, heard) = sync_channel(100_000);
    std::thread::spawn(move || {
        let mut source = BufReader::new(source);
        loop {
            let mut line = Vec::new();
            match source.read_until(b'\n', &mut line) {
                Ok(count) if count > 0 => {}
                _ => return,
            }
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    heard
}

/// A client that has shaken hands, and the daemon's end of it.
#[track_caller]
pub(crate) fn talking(home: &Home, door: &Door) -> (Client, Caller) {
    let mut client = Client::start(home, &["--no-start"]);
    let mut caller = door.welcome();
    client.say(INITIALIZE);
    assert_eq!(caller.hear(), INITIALIZE);
    caller.say(&granted("0"));
    assert_eq!(client.hear(), granted("0"));
    client.say(INITIALIZED);
    assert_eq!(caller.hear(), INITIALIZED);
    (client, caller)
}

/// Lets a bridge that comes again shake hands as it does by itself.
#[track_caller]
pub(crate) fn welcome_again(door: &Door) -> Caller {
    let mut caller = door.welcome();
    let greeting = json(&caller.hear());
    assert_eq!(greeting["method"], "initialize");
    let id = greeting["id"].to_string();
    assert!(id.starts_with("\"xy-connect-"), "{id}");
    caller.say(&granted(&id));
    assert_eq!(caller.hear(), INITIALIZED);
    caller
}

/// The client hears that all lists may have changed.
#[track_caller]
pub(crate) fn hears_of_lists(client: &Client) {
    for list in ["tools", "prompts", "resources"] {
        assert_eq!(client.hear_json()["method"], format!("notifications/{list}/list_changed"));
    }
}
