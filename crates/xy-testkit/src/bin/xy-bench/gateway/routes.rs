//! The routes to the same server, each connected and initialized.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use xy_testkit::{Home, free_port, standin};

use super::driver::{Channel, Driver, Framing, IN_FLIGHT};
use crate::{beside, now};

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"xy-bench","version":"1"}}}"#;

const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// How long a gateway may take to listen.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(20);

/// The time that the server works for each call.
pub(crate) type Work = Duration;

/// The purpose of a route in the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The minimum cost of a call.
    Direct,
    /// A route through xy, which has budgets.
    Xy,
    /// Another gateway, to compare with.
    Peer,
    /// As many processes as the longest route of xy, which only copy.
    Copying,
}

/// A route to the server; dropping it ends its processes.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) name: &'static str,
    pub(crate) is_http: bool,
    /// True if the gateway reaches the server over HTTP.
    pub(crate) is_to_http: bool,
    pub(crate) role: Role,
    pub(crate) driver: Driver,
    /// The child processes, starting at the client.
    processes: Vec<Running>,
}

/// A child process, which ends on drop.
#[derive(Debug)]
struct Running {
    child: Child,
    _folder: Option<TempDir>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill(); // It may have ended.
        let _ = self.child.wait();
    }
}

impl Route {
    /// Returns the pids of the child processes, starting at the client.
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.processes.iter().map(|it| it.child.id())
    }

    /// Starts the server itself, over stdio.
    pub(crate) fn direct_stdio(xy: &Path, work: Work) -> Self {
        let mut route = Self::stdio(vec![server(xy, work)], "direct stdio", "echo");
        route.role = Role::Direct;
        route
    }

    /// Starts the server with two `cat` before it and two behind. A call wakes as many processes
    /// as one through the bridge and the daemon.
    pub(crate) fn copied(xy: &Path, work: Work) -> Self {
        let cat = || Command::new("cat");
        let chain = vec![cat(), cat(), server(xy, work), cat(), cat()];
        let mut route = Self::stdio(chain, "four cats and stdio", "echo");
        route.role = Role::Copying;
        route
    }

    /// Starts the server itself, over HTTP.
    pub(crate) fn direct_http(xy: &Path, work: Work) -> Self {
        let mut command = server(xy, work);
        command.args(["--http", "0"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = spawn(&mut command);
        let mut line = String::new();
        let stderr = child.stderr.as_mut().expect("it is piped");
        BufReader::new(stderr).read_line(&mut line).expect("it says where it listens");
        let address = line.trim_end().strip_prefix("listening on ").expect("an address").to_owned();
        Self {
            name: "direct HTTP",
            is_http: true,
            is_to_http: false,
            role: Role::Direct,
            driver: driver(&address, "/mcp", "", "echo"),
            processes: vec![Running { child, _folder: None }],
        }
    }

    /// Connects to the gateway over HTTP.
    pub(crate) fn http(home: &Home, name: &'static str, path: &str, tool: &str) -> Self {
        let token = format!("Authorization: Bearer {}\r\n", home.gateway_token());
        Self {
            name,
            is_http: true,
            is_to_http: false,
            role: Role::Xy,
            driver: driver(&home.gateway_address(), path, &token, tool),
            processes: Vec::new(),
        }
    }

    /// Connects to the gateway over HTTP, as a client without sessions.
    pub(crate) fn modern_http(home: &Home, name: &'static str, path: &str, tool: &str) -> Self {
        let (address, token) = (home.gateway_address(), home.gateway_token());
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nAuthorization: Bearer {token}\r\n\
             MCP-Protocol-Version: 2026-07-28\r\n"
        );
        let channels = (0..IN_FLIGHT).map(|_| http_channel(&address, &head)).collect();
        Self {
            name,
            is_http: true,
            is_to_http: false,
            role: Role::Xy,
            driver: Driver::modern(channels, tool),
            processes: Vec::new(),
        }
    }

    /// Connects to the gateway over HTTP, to a server that it reaches over HTTP too.
    pub(crate) fn http_to_http(home: &Home, name: &'static str, path: &str, tool: &str) -> Self {
        Self { is_to_http: true, ..Self::http(home, name, path, tool) }
    }

    /// Starts the gateway's bridge for stdio clients.
    pub(crate) fn connect(home: &Home, name: &'static str) -> Self {
        Self::stdio(vec![home.command(&["connect"])], name, "one__echo")
    }

    /// Starts another gateway, the `mcp-proxy` at `program`.
    pub(crate) fn peer(program: &Path, xy: &Path, work: Work) -> Self {
        let folder = tempfile::tempdir_in("/tmp").expect("a folder");
        let config = folder.path().join("proxy.toml");
        let port = free_port();
        let server = beside(xy, "xy-test-mcp");
        let text = format!(
            "[proxy]\nname = \"peer\"\nseparator = \"__\"\n\
             [proxy.listen]\nhost = \"127.0.0.1\"\nport = {port}\n\
             [observability]\nlog_level = \"error\"\naudit = false\n\
             [[backends]]\nname = \"one\"\ntransport = \"stdio\"\ncommand = '{}'\n\
             args = [\"--work-us\", \"{}\"]\n",
            server.display(),
            work.as_micros()
        );
        std::fs::write(&config, text).expect("a file of ours");
        let mut command = Command::new(program);
        command.arg("--config").arg(&config).stdin(Stdio::null());
        let child = spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
        let process = Running { child, _folder: Some(folder) };
        let address = format!("127.0.0.1:{port}");
        let began = now();
        while TcpStream::connect(&address).is_err() {
            assert!(began.elapsed() < LISTEN_TIMEOUT, "mcp-proxy does not listen");
            standin::linger(Duration::from_millis(20));
        }
        Self {
            name: "mcp-proxy: HTTP -> stdio",
            is_http: true,
            is_to_http: false,
            role: Role::Peer,
            driver: driver(&address, "/", "", "one__echo"),
            processes: vec![process],
        }
    }

    /// Starts a chain of processes, each reading the output of the previous one.
    fn stdio(chain: Vec<Command>, name: &'static str, tool: &str) -> Self {
        let (mut processes, mut to, mut from) = (Vec::new(), None, None);
        for mut command in chain {
            command.stdin(from.take().map_or_else(Stdio::piped, Stdio::from));
            command.stdout(Stdio::piped()).stderr(Stdio::null());
            let mut child = spawn(&mut command);
            to = to.or(child.stdin.take());
            from = child.stdout.take();
            processes.push(Running { child, _folder: None });
        }
        let (to, from) = to.zip(from).expect("both are piped");
        let mut channel = Channel::new(to, from, Framing::Lines);
        initialize(&mut channel);
        Self {
            name,
            is_http: false,
            is_to_http: false,
            role: Role::Xy,
            driver: Driver::new(vec![channel], tool),
            processes,
        }
    }
}

fn server(xy: &Path, work: Work) -> Command {
    let mut command = Command::new(beside(xy, "xy-test-mcp"));
    command.args(["--work-us", &work.as_micros().to_string()]);
    command
}

fn spawn(command: &mut Command) -> Child {
    command.spawn().unwrap_or_else(|cause| panic!("no {command:?}: {cause}"))
}

/// Opens a connection for each call in flight, all in one session.
fn driver(address: &str, path: &str, headers: &str, tool: &str) -> Driver {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\n{headers}"
    );
    let mut channels: Vec<Channel> = (0..IN_FLIGHT).map(|_| http_channel(address, &head)).collect();
    let answer = channels[0].ask(INITIALIZE);
    assert!(answer.starts_with("HTTP/1.1 200"), "`initialize` was refused: {answer}");
    let session = answer.lines().find(|it| it.to_ascii_lowercase().starts_with("mcp-session-id:"));
    let session = session.map(|line| format!("{}\r\n", line.trim_end())).unwrap_or_default();
    let head = format!("{head}{session}MCP-Protocol-Version: 2025-11-25\r\n");
    for channel in &mut channels {
        channel.framing = Framing::Http(head.clone());
    }
    channels[0].notify(INITIALIZED);
    Driver::new(channels, tool)
}

fn http_channel(address: &str, head: &str) -> Channel {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_nodelay(true).expect("a socket has this option");
    let from = stream.try_clone().expect("a descriptor is free");
    Channel::new(stream, from, Framing::Http(head.to_owned()))
}

fn initialize(channel: &mut Channel) {
    let answer = channel.ask(INITIALIZE);
    assert!(answer.contains("\"protocolVersion\""), "`initialize` was refused: {answer}");
    channel.notify(INITIALIZED);
}
