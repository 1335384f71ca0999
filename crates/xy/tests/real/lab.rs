//! A home with `xy-test-fixture`, behind a daemon and by itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use xy_testkit::{Daemon, Home, McpHttp, free_port};

use crate::stage::install_folder;

/// Polls per second, and seconds, for the end of a process. A suite takes a few seconds on an idle
/// machine.
const POLLS_PER_SECOND: u32 = 20;
const END_TIMEOUT_SECONDS: u32 = 100;

/// The transport between the daemon and the fixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Upstream {
    Stdio,
    Http,
    Sse,
    /// A container of this engine, over stdio or over HTTP.
    Container {
        engine: &'static str,
        is_http: bool,
    },
}

/// The era that the fixture speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    /// The revisions with `initialize`.
    Legacy,
    /// The revision after them.
    Modern,
    Both,
}

impl Era {
    fn flags(self) -> [&'static str; 2] {
        let word = match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
            Self::Both => "both",
        };
        ["--era", word]
    }
}

/// A home, and the folder of installed programs.
pub(crate) struct Lab {
    pub(crate) home: Home,
    installed: PathBuf,
}

impl Lab {
    #[track_caller]
    pub(crate) fn new() -> Self {
        let home = Home::new(Path::new(env!("CARGO_BIN_EXE_xy")));
        home.write_config("xy.kdl", "gateway { listen \"127.0.0.1:0\"; auth \"none\"; }\n");
        home.expect_left("home/"); // Node's programs may write there.
        home.expect_left("tmp/"); // Node's cache of compiled code.
        Self { home, installed: install_folder() }
    }

    /// Starts a daemon with a fixture of this era; `more` is appended to its file.
    #[track_caller]
    pub(crate) fn daemon(&self, upstream: Upstream, era: Era, more: &str) -> Daemon {
        let kdl = self.kdl_in(upstream, era) + more;
        self.home.write_config("servers/fixture.kdl", &kdl);
        self.home.daemon()
    }

    /// Returns the file of a legacy fixture.
    pub(crate) fn kdl(&self, upstream: Upstream) -> String {
        self.kdl_in(upstream, Era::Legacy)
    }

    /// Returns the file of a fixture of this era. The legacy SSE transport has only the legacy era.
    pub(crate) fn kdl_in(&self, upstream: Upstream, era: Era) -> String {
        let command = |args: &[&str]| {
            let args = [args, &era.flags()].concat();
            self.home.kdl_command("xy-test-fixture", &args)
        };
        let port = free_port().to_string();
        match upstream {
            Upstream::Stdio => command(&["--stdio"]),
            Upstream::Http => {
                let command = command(&["--http", &port]);
                format!("{command}transport \"http\"\nport {port}\npath \"/mcp\"\n")
            }
            Upstream::Container { engine, is_http } => {
                container(engine, is_http.then_some(port.as_str()), era)
            }
            Upstream::Sse => {
                let command = command(&["--sse", &port]);
                format!("{command}transport \"sse\"\nport {port}\n")
            }
        }
    }

    /// Returns the file of a server with this program and these arguments.
    pub(crate) fn kdl_of(words: &[String]) -> String {
        let words: Vec<String> = words.iter().map(|it| format!("{it:?}")).collect();
        format!("command {}\nargs {}\n", words[0], words[1..].join(" "))
    }

    /// Returns an HTTP client for this path, before its first message.
    #[track_caller]
    pub(crate) fn http(&self, path: &str) -> McpHttp {
        McpHttp::new(&self.home.gateway_address(), path, "")
    }

    /// Returns Node, and the path of an installed script.
    pub(crate) fn node_words(&self, script: &str) -> Vec<String> {
        vec![self.installed_path("npm/node_modules/node/bin/node"), self.installed_path(script)]
    }

    /// Returns the path of something that is installed.
    pub(crate) fn installed_path(&self, path: &str) -> String {
        self.installed.join(path).to_str().unwrap().to_owned()
    }

    /// Returns a command that runs an installed script with Node.
    pub(crate) fn node(&self, script: &str) -> Command {
        let [node, script] = self.node_words(script).try_into().unwrap();
        self.home.command_of(node.as_ref(), &[&script])
    }

    /// Waits until a child has ended, with any exit status.
    #[track_caller]
    pub(crate) fn wait_for(child: &mut Child, what: &str) {
        for _ in 0..POLLS_PER_SECOND * END_TIMEOUT_SECONDS {
            if child.try_wait().unwrap().is_some() {
                return;
            }
            std::thread::park_timeout(Duration::from_secs(1) / POLLS_PER_SECOND);
        }
        let _ = child.kill(); // The child may have ended by now.
        let _ = child.wait();
        panic!("{what} has not ended in {END_TIMEOUT_SECONDS} s");
    }
}

/// Returns the file of a fixture in a container; `real/engines` has started the engine.
#[track_caller]
fn container(engine: &str, port: Option<&str>, era: Era) -> String {
    let folder = std::env::var("XY_ENGINES").expect("`XY_ENGINES` is the folder of the engines");
    let args = match port {
        Some(_) => "\"--http\" \"8000\"",
        None => "\"--stdio\"",
    };
    let [flag, era] = era.flags();
    let ports = port.map_or(String::new(), |port| format!("port {port}\n"));
    format!(
        "{ports}container {{\n  image \"localhost/xy-test\"\n  host \"unix://{folder}/{engine}.sock\"\n  \
         command \"/bin/xy-test-fixture\"\n  args {args} \"{flag}\" \"{era}\"\n  {}\n  \
         env {{ LISTEN_ANYWHERE 1; FIXTURE_AWAY_MS 12000; }}\n}}\n",
        if port.is_some() { "port 8000" } else { "network \"none\"" }
    )
}

/// A server without xy, over Streamable HTTP. Dropping it kills it.
pub(crate) struct Fixture {
    child: Child,
    address: String,
}

impl Fixture {
    /// Starts `xy-test-fixture` with this era.
    #[track_caller]
    pub(crate) fn start(lab: &Lab, era: Era) -> Self {
        let mut command = lab.home.command_of(&lab.home.program("xy-test-fixture"), &[]);
        command.args(["--http", "0"]).args(era.flags());
        Self::listen(&lab.home, command)
    }

    /// Starts a program that prints its address on stderr and ends with its stdin.
    #[track_caller]
    pub(crate) fn listen(home: &Home, mut command: Command) -> Self {
        let (file, stderr) =
            tempfile::NamedTempFile::new_in(home.root().join("harness")).unwrap().into_parts();
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(file);
        let child = command.spawn().unwrap_or_else(|cause| panic!("no {command:?}: {cause}"));
        let address = home.wait_until("the fixture listens", || {
            let text = fs::read_to_string(&stderr).ok()?;
            text.lines().find_map(|line| line.strip_prefix("listening on ").map(str::to_owned))
        });
        Self { child, address }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Closes the server's stdin, and waits for a clean exit.
    #[track_caller]
    pub(crate) fn end(mut self, home: &Home) {
        drop(self.child.stdin.take());
        let ended = home.wait_until("the fixture ends", || self.child.try_wait().unwrap());
        assert!(ended.success(), "the fixture ended badly: {ended}");
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = self.child.kill(); // The server has ended, or the test has failed.
        let _ = self.child.wait();
    }
}
