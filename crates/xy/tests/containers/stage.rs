//! The setup of these tests: an engine, a home whose servers are its containers, and a check for
//! leftovers.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Home, McpStdio};

use crate::support;

/// An engine that `real/engines` has started.
#[derive(Debug, Clone)]
pub(crate) struct Engine {
    pub(crate) kind: &'static str,
    pub(crate) socket: PathBuf,
}

impl Engine {
    #[track_caller]
    pub(crate) fn docker() -> Self {
        Self::of("docker")
    }

    #[track_caller]
    pub(crate) fn podman() -> Self {
        Self::of("podman")
    }

    #[track_caller]
    fn of(kind: &'static str) -> Self {
        let folder =
            std::env::var("XY_ENGINES").expect("`XY_ENGINES` is the folder of the engines");
        let socket = Path::new(&folder).join(format!("{kind}.sock"));
        assert!(socket.exists(), "NOT RUN: there is no {kind} here, see `real/engines`");
        Self { kind, socket }
    }

    /// Starts a separate engine in a new folder, for tests that stop and start it.
    #[track_caller]
    pub(crate) fn of_its_own(kind: &'static str) -> (Self, OwnEngine) {
        Self::with_options(kind, "")
    }

    /// Starts a separate engine with options: on Docker's command line, or in the section `engine`
    /// of Podman's file.
    #[track_caller]
    pub(crate) fn with_options(kind: &'static str, options: &'static str) -> (Self, OwnEngine) {
        let folder = tempfile::Builder::new().prefix("xye").tempdir_in("/tmp").unwrap();
        let own = OwnEngine { folder, options };
        let socket = own.path().join(format!("{kind}.sock"));
        own.up(kind);
        (Self { kind, socket }, own)
    }

    /// Sends a request; returns the status and the body.
    pub(crate) fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, String) {
        let text = body.map(Value::to_string).unwrap_or_default();
        let head = format!(
            "{method} /v1.40{path} HTTP/1.0\r\nHost: engine\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{text}",
            text.len()
        );
        let mut stream = UnixStream::connect(&self.socket).expect("the engine listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|it| it.parse().ok()).unwrap_or(0);
        (status, answer.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned()))
    }

    /// Sends a request that must succeed; returns the body.
    #[track_caller]
    pub(crate) fn must(&self, method: &str, path: &str) -> String {
        let (status, body) = self.ask(method, path, None);
        assert!((200..400).contains(&status), "{method} {path}: {status} {body}");
        body
    }

    /// Returns all containers of a home, running or not.
    pub(crate) fn containers(&self, home: &Home) -> Vec<Value> {
        let found = self.must("GET", &listing(home.mark()));
        serde_json::from_str(&found).unwrap_or_else(|why| panic!("{why}: {found}"))
    }

    /// Returns the whole output of a container from the engine's log.
    pub(crate) fn said(&self, id: &str) -> String {
        self.must("GET", &format!("/containers/{id}/logs?stdout=1&stderr=1"))
    }

    /// Returns the id of the only container of a home.
    #[track_caller]
    pub(crate) fn container(&self, home: &Home) -> String {
        let all = self.containers(home);
        assert_eq!(all.len(), 1, "{all:#?}");
        all[0]["Id"].as_str().unwrap().to_owned()
    }

    /// Returns the engine's description of a container.
    #[track_caller]
    pub(crate) fn inspect(&self, id: &str) -> Value {
        let found = self.must("GET", &format!("/containers/{id}/json"));
        serde_json::from_str(&found).unwrap_or_else(|why| panic!("{why}: {found}"))
    }

    /// Builds an image of the test servers with further build instructions; the caller removes it.
    #[track_caller]
    pub(crate) fn image_with(&self, home: &Home, recipe: &[&str]) -> String {
        let body = json!({ "Image": "localhost/xy-test", "Cmd": ["/bin/xy-test-mcp"] });
        let (made, said) = self.ask("POST", "/containers/create", Some(&body));
        assert_eq!(made, 201, "{said}");
        let id = serde_json::from_str::<Value>(&said).unwrap()["Id"].as_str().unwrap().to_owned();
        let changes: Vec<String> = recipe.iter().map(|line| escaped(line)).collect();
        let changes = changes.join("&changes=");
        let name = format!("localhost/own-{}", &home.mark()[..12]);
        let commit = format!("/commit?container={id}&repo={name}&tag=latest&changes={changes}");
        let (made, said) = self.ask("POST", &commit, Some(&json!({})));
        assert_eq!(made, 201, "{said}");
        self.must("DELETE", &format!("/containers/{id}?force=1"));
        name
    }

    /// Returns server settings for a container of the test image that runs this command.
    pub(crate) fn kdl(&self, home: &Home, command: &[&str], more: &str) -> String {
        let (program, args) = command.split_first().unwrap();
        let args: Vec<String> = args.iter().map(|it| format!("{it:?}")).collect();
        let args = if args.is_empty() { String::new() } else { format!("args {}", args.join(" ")) };
        format!(
            "container {{\n  image \"localhost/xy-test\"\n  host \"unix://{}\"\n  pull \"never\"\n  \
             labels {{ test \"{}\"; }}\n  command \"/bin/{program}\"\n  {args}\n  {more}\n}}\n",
            self.socket.display(),
            home.mark()
        )
    }

    /// Writes the file of a server that speaks MCP.
    pub(crate) fn mcp_server(&self, home: &Home, name: &str, args: &[&str], more: &str) {
        let command = [&["xy-test-mcp"], args].concat();
        let kdl = self.kdl(home, &command, "network \"none\"");
        home.write_config(&format!("servers/{name}.kdl"), &format!("{kdl}{more}"));
    }

    /// Ends a home, and asserts that nothing of it is left at the engine.
    #[track_caller]
    pub(crate) fn finish(&self, home: Home) {
        let mark = home.mark().to_owned();
        home.finish();
        let left = self.must("GET", &listing(&mark));
        assert_eq!(left.trim(), "[]", "containers are left");
    }
}

/// Returns the path that lists all containers with the mark of a test.
fn listing(mark: &str) -> String {
    let filter = json!({ "label": [format!("test={mark}")] }).to_string();
    format!("/containers/json?all=1&filters={}", escaped(&filter))
}

/// Encodes a text as a part of a URL.
fn escaped(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'/' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02x}"),
    };
    text.bytes().map(one).collect()
}

/// An engine that ends with the test.
#[derive(Debug)]
pub(crate) struct OwnEngine {
    folder: tempfile::TempDir,
    options: &'static str,
}

impl OwnEngine {
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    fn script() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../real/engines")
    }

    /// Starts the engine, or starts it again.
    #[track_caller]
    pub(crate) fn up(&self, kind: &str) {
        let rootfs = Path::new(&std::env::var("XY_ENGINES").unwrap()).join("rootfs");
        if !self.path().join("rootfs").exists() {
            let copied =
                Command::new("cp").arg("-a").arg(rootfs).arg(self.path()).status().unwrap();
            assert!(copied.success());
        }
        let ran = Command::new(Self::script())
            .arg(format!("up-{kind}"))
            .arg(self.path())
            // Beside another engine it must not use shared resources.
            .env("XY_ENGINE_ALONE", "1")
            .env(if kind == "podman" { "XY_PODMAN_OPTIONS" } else { "XY_DOCKERD_OPTIONS" }, self.options)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(said.contains(kind), "NOT RUN: {}", String::from_utf8_lossy(&ran.stderr));
    }

    /// Ends the engine, by force or not, and waits until it is gone.
    pub(crate) fn end(&self, kind: &str, is_gentle: bool) {
        let pid = std::fs::read_to_string(self.path().join(kind).join("started")).unwrap();
        let pid: u32 = pid.trim().parse().unwrap();
        let signal =
            if is_gentle { rustix::process::Signal::TERM } else { rustix::process::Signal::KILL };
        support::signal(pid, signal);
        while xy_testkit::is_alive(pid) {
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
}

impl Drop for OwnEngine {
    fn drop(&mut self) {
        let _ = Command::new(Self::script()).arg("down").arg(self.path()).status();
    }
}

/// Connects an initialised client that sees all servers.
#[track_caller]
pub(crate) fn client(home: &Home) -> McpStdio {
    let client = home.mcp_connect(&[]);
    client.initialize();
    client
}

/// Asserts that a server answers a call.
#[track_caller]
pub(crate) fn assert_echoes(client: &McpStdio, server: &str) {
    let said = client.call_text(&format!("{server}__echo"), json!({ "message": "hello" }));
    assert!(said.contains("hello"), "{said}");
}

/// Returns the processes of the container with this first process; the server itself comes last.
#[track_caller]
pub(crate) fn container_processes(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let children = children.split_whitespace().filter_map(|it| it.parse().ok());
    [pid].into_iter().chain(children.flat_map(container_processes)).collect()
}

/// Returns the reason of a server's state.
pub(crate) fn reason(home: &Home, name: &str) -> String {
    support::status(home, name)["reason"].as_str().unwrap_or_default().to_owned()
}
