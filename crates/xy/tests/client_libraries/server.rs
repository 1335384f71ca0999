//! The server that all libraries use: by itself, and behind a daemon.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Stdio};

use xy_testkit::Home;

use crate::driver::{self, Target};
use crate::feature::Outcomes;
use crate::library::Library;

/// The transport between a library and its server, or xy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Stdio,
    Http,
    /// HTTP+SSE of 2024-11-05.
    Sse,
}

impl Transport {
    pub(crate) const ALL: [Self; 3] = [Self::Stdio, Self::Http, Self::Sse];

    /// Returns the name that drivers and the table use.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::Http => "http",
            Self::Sse => "sse",
        }
    }
}

/// The way in which clients share a server behind xy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Each client has an instance, with `isolation "client"`.
    PerClient,
    /// All clients share one process, as by default.
    Shared,
}

impl Sharing {
    pub(crate) const ALL: [Self; 2] = [Self::PerClient, Self::Shared];
}

/// How a library reaches the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) transport: Transport,
    pub(crate) sharing: Sharing,
}

impl Way {
    /// Returns the name in the table.
    pub(crate) fn name(self) -> String {
        let transport = self.transport.name();
        match self.sharing {
            Sharing::PerClient => transport.to_owned(),
            Sharing::Shared => format!("{transport}, shared"),
        }
    }
}

/// The eras that the server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    Legacy,
    Both,
}

impl Era {
    pub(crate) const ALL: [Self; 2] = [Self::Legacy, Self::Both];

    /// Returns the word of the server's flag, which is also its name behind xy.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Both => "both",
        }
    }
}

/// A home with a daemon and a server of each era behind it.
pub(crate) struct Stage {
    pub(crate) home: Home,
}

impl Stage {
    /// Starts the daemon.
    #[track_caller]
    pub(crate) fn new(sharing: Sharing) -> Self {
        let home = Home::new(Path::new(env!("CARGO_BIN_EXE_xy")));
        home.expect_left("home/"); // Some libraries write there.
        home.expect_left("tmp/"); // Node caches compiled code there.
        for era in Era::ALL {
            let command = home.kdl_command("xy-test-fixture", &["--stdio", "--era", era.name()]);
            // Only a server of its own may ask a client for its roots.
            let isolation = match sharing {
                Sharing::PerClient => "isolation \"client\"\n",
                Sharing::Shared => "",
            };
            home.server(era.name(), &format!("{command}{isolation}"));
        }
        home.daemon();
        Self { home }
    }

    /// Runs a library at a server without xy.
    #[track_caller]
    pub(crate) fn run_direct(&self, library: &Library, transport: Transport, era: Era) -> Outcomes {
        let prefixes = [String::new(), String::new()];
        let words = |words: &[&str]| words.iter().copied().map(str::to_owned).collect();
        if transport == Transport::Stdio {
            let program = self.home.program("xy-test-fixture");
            let arguments = ["stdio", program.to_str().unwrap(), "--stdio", "--era", era.name()];
            let target = Target { arguments: words(&arguments), prefixes };
            return driver::run(&self.home, library, &target);
        }
        let server = Server::start(&self.home, transport, era);
        let arguments = words(&[transport.name(), &server.url, "no token"]);
        let outcomes = driver::run(&self.home, library, &Target { arguments, prefixes });
        server.end(&self.home);
        outcomes
    }

    /// Runs a library at a server behind xy.
    #[track_caller]
    pub(crate) fn run_through(
        &self,
        library: &Library,
        transport: Transport,
        era: Era,
    ) -> Outcomes {
        let remote = |path: &str| {
            let address = self.home.gateway_address();
            [format!("http://{address}{path}"), self.home.gateway_token()]
        };
        let place = match transport {
            Transport::Stdio => [env!("CARGO_BIN_EXE_xy"), "connect"].map(str::to_owned),
            Transport::Http => remote("/mcp"),
            Transport::Sse => remote("/sse"),
        };
        let arguments = [vec![transport.name().to_owned()], place.to_vec()].concat();
        let name = era.name();
        let prefixes = [format!("{name}__"), format!("xy://{name}/")];
        driver::run(&self.home, library, &Target { arguments, prefixes })
    }
}

/// The server by itself, over HTTP. Dropping it ends it.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    #[track_caller]
    fn start(home: &Home, transport: Transport, era: Era) -> Self {
        // The older HTTP has the legacy era only.
        let (flag, path, era) = match transport {
            Transport::Sse => ("--sse", "/sse", Era::Legacy),
            _ => ("--http", "/mcp", era),
        };
        let stderr = home.root().join("harness/fixture.stderr");
        let mut command = home.command_of(&home.program("xy-test-fixture"), &[flag, "0"]);
        command.args(["--era", era.name()]).stdin(Stdio::piped()).stdout(Stdio::null());
        command.stderr(File::create(&stderr).unwrap());
        let mut server = Self { child: command.spawn().unwrap(), url: String::new() };
        let address = home.wait_until("the fixture listens", || {
            let said = fs::read_to_string(&stderr).ok()?;
            Some(said.strip_prefix("listening on ")?.lines().next()?.to_owned())
        });
        server.url = format!("http://{address}{path}");
        server
    }

    /// Ends the server, which must end well.
    #[track_caller]
    fn end(mut self, home: &Home) {
        drop(self.child.stdin.take());
        let ended = home.wait_until("the fixture ends", || self.child.try_wait().unwrap());
        assert!(ended.success(), "the fixture ended badly: {ended}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // It has ended, or the test has failed.
        let _ = self.child.wait();
    }
}
