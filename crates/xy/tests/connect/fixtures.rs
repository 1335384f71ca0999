//! A client, a bridge, and a scripted daemon.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use serde_json::Value;
use xy_testkit::Home;

/// A generous limit for anything that should happen at once.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

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

/// Returns the response to `initialize` with this id.
pub(crate) fn initialize_result(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-06-18"}}}}"#)
}

pub(crate) fn result(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
}

pub(crate) fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|cause| panic!("{cause}: {line}"))
}

/// A fake daemon's socket, which is removed on drop.
pub(crate) struct FakeDaemon {
    listener: UnixListener,
    path: PathBuf,
}

impl FakeDaemon {
    pub(crate) fn open(home: &Home) -> Self {
        let path = home.root().join("run/xy-mcp.sock");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener, path }
    }

    /// Accepts the next bridge.
    #[track_caller]
    pub(crate) fn accept(&self) -> BridgeConnection {
        for _ in 0..4000 {
            if let Ok((stream, _)) = self.listener.accept() {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
                stream.set_write_timeout(Some(TEST_TIMEOUT)).unwrap();
                return BridgeConnection { lines: BufReader::new(stream) };
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
        panic!("no bridge came");
    }

    /// Accepts the next bridge, and welcomes it.
    #[track_caller]
    pub(crate) fn welcome(&self) -> BridgeConnection {
        let mut bridge = self.accept();
        assert_eq!(json(&bridge.receive())["xy"], "hello");
        bridge.send(WELCOME);
        bridge
    }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The daemon's end of a connection with a bridge.
pub(crate) struct BridgeConnection {
    lines: BufReader<UnixStream>,
}

impl BridgeConnection {
    /// Returns the next line, or an empty one at the end.
    #[track_caller]
    pub(crate) fn receive(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line, or the end");
        line.strip_suffix('\n').map(str::to_owned).unwrap_or(line)
    }

    #[track_caller]
    pub(crate) fn send(&mut self, line: &str) {
        self.lines.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    #[track_caller]
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.lines.get_mut().write_all(bytes).unwrap();
    }

    /// Returns another handle, for a thread.
    pub(crate) fn stream(&self) -> UnixStream {
        self.lines.get_ref().try_clone().unwrap()
    }

    /// Returns everything until the bridge hangs up.
    #[track_caller]
    pub(crate) fn receive_all(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        self.lines.read_to_end(&mut all).unwrap();
        all
    }
}

/// An MCP client, and the bridge that it has started.
pub(crate) struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    received: Receiver<Vec<u8>>,
    stderr: Receiver<Vec<u8>>,
}

impl Client {
    #[track_caller]
    pub(crate) fn start(home: &Home, args: &[&str]) -> Self {
        Self::start_command(&mut home.command(&[&["connect"], args].concat()))
    }

    /// Starts a bridge with this command.
    #[track_caller]
    pub(crate) fn start_command(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let received = lines_of(child.stdout.take().unwrap());
        let stderr = lines_of(child.stderr.take().unwrap());
        Self { stdin: child.stdin.take(), child, received, stderr }
    }

    #[track_caller]
    pub(crate) fn send(&mut self, line: &str) {
        self.send_raw(format!("{line}\n").as_bytes());
    }

    #[track_caller]
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// Takes the bridge's stdin, to close it or to write from a thread.
    pub(crate) fn take_stdin(&mut self) -> ChildStdin {
        self.stdin.take().unwrap()
    }

    /// Returns the stdin.
    pub(crate) fn put_stdin(&mut self, stdin: ChildStdin) {
        self.stdin = Some(stdin);
    }

    /// Returns the next line, without its end.
    #[track_caller]
    pub(crate) fn receive(&self) -> String {
        String::from_utf8(self.receive_raw()).unwrap().trim_end_matches('\n').to_owned()
    }

    #[track_caller]
    pub(crate) fn receive_raw(&self) -> Vec<u8> {
        match self.received.recv_timeout(TEST_TIMEOUT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                panic!("nothing was received; {}", self.stderr_so_far())
            }
            Err(RecvTimeoutError::Disconnected) => panic!("it ended; {}", self.stderr_so_far()),
        }
    }

    #[track_caller]
    pub(crate) fn receive_json(&self) -> Value {
        json(&self.receive())
    }

    /// Waits until a line of stderr contains `text`.
    #[track_caller]
    pub(crate) fn wait_stderr(&self, text: &str) {
        loop {
            let line = self.stderr.recv_timeout(TEST_TIMEOUT);
            let line = line.unwrap_or_else(|_| panic!("no line of stderr has `{text}`"));
            if String::from_utf8_lossy(&line).contains(text) {
                return;
            }
        }
    }

    fn stderr_so_far(&self) -> String {
        self.stderr.try_iter().map(|line| String::from_utf8_lossy(&line).into_owned()).collect()
    }

    /// Waits for the exit, and returns the status, the remaining stdout, and the stderr.
    #[track_caller]
    pub(crate) fn wait_exit(mut self) -> (ExitStatus, Vec<u8>, String) {
        let rest: Vec<u8> = std::iter::from_fn(|| match self.received.recv_timeout(TEST_TIMEOUT) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("it does not end"),
        })
        .flatten()
        .collect();
        let stderr: Vec<u8> = self.stderr.iter().flatten().collect();
        (self.child.wait().unwrap(), rest, String::from_utf8(stderr).unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the bridge.
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
    let (lines, received) = sync_channel(100_000);
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
    received
}

/// Returns an initialized client, and the daemon's end of its connection.
#[track_caller]
pub(crate) fn connected(home: &Home, daemon: &FakeDaemon) -> (Client, BridgeConnection) {
    let mut client = Client::start(home, &["--no-start"]);
    let mut bridge = daemon.welcome();
    client.send(INITIALIZE);
    assert_eq!(bridge.receive(), INITIALIZE);
    bridge.send(&initialize_result("0"));
    assert_eq!(client.receive(), initialize_result("0"));
    client.send(INITIALIZED);
    assert_eq!(bridge.receive(), INITIALIZED);
    (client, bridge)
}

/// Accepts a bridge that reconnects, and answers its own handshake.
#[track_caller]
pub(crate) fn welcome_reconnected(daemon: &FakeDaemon) -> BridgeConnection {
    let mut bridge = daemon.welcome();
    let greeting = json(&bridge.receive());
    assert_eq!(greeting["method"], "initialize");
    let id = greeting["id"].to_string();
    assert!(id.starts_with("\"xy-connect-"), "{id}");
    bridge.send(&initialize_result(&id));
    assert_eq!(bridge.receive(), INITIALIZED);
    bridge
}

/// Asserts that the client is notified of changes of all lists.
#[track_caller]
pub(crate) fn expect_list_changes(client: &Client) {
    for list in ["tools", "prompts", "resources"] {
        assert_eq!(client.receive_json()["method"], format!("notifications/{list}/list_changed"));
    }
}
