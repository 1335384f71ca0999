//! A home with real servers, and the commands of the real clients.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use xy_testkit::{Daemon, Home};

/// The names of the servers behind the daemon.
pub(crate) const SERVERS: [&str; 5] = ["everything", "files", "git", "memory", "time"];

/// Returns the folder in which `real/install` has installed programs.
#[track_caller]
pub(crate) fn install_folder() -> PathBuf {
    let installed = std::env::var_os("XY_REAL").map(PathBuf::from);
    installed.expect("`XY_REAL` names the folder that `real/install` prints")
}

/// A home, the folder in which its servers work, and the folder of their programs.
pub(crate) struct Stage {
    pub(crate) home: Home,
    servers: &'static [&'static str],
    installed: PathBuf,
    work: PathBuf,
}

impl Stage {
    /// Creates a home with the files of all servers, without a daemon.
    #[track_caller]
    pub(crate) fn new() -> Self {
        Self::of(&SERVERS)
    }

    /// Creates a home with the files of these servers, without a daemon.
    #[track_caller]
    pub(crate) fn of(servers: &'static [&'static str]) -> Self {
        let installed = install_folder();
        let home = Home::new(Path::new(env!("CARGO_BIN_EXE_xy")));
        let work = home.root().join("work");
        fs::create_dir_all(work.join("files")).unwrap();
        home.expect_left("work/");
        home.expect_left("home/"); // The inspector records its connections there.
        home.expect_left("tmp/"); // Node's cache of compiled code.
        let stage = Self { home, servers, installed, work };
        stage.make_repository();
        for name in servers {
            stage.home.write_config(&format!("servers/{name}.kdl"), &stage.kdl(name));
        }
        stage
    }

    /// Creates a home with all servers, and waits until a daemon runs them.
    #[track_caller]
    pub(crate) fn with_daemon() -> (Self, Daemon) {
        Self::new().start()
    }

    /// Starts a daemon, and waits until the servers run.
    #[track_caller]
    pub(crate) fn start(self) -> (Self, Daemon) {
        let daemon = self.home.daemon();
        self.wait_for_servers();
        (self, daemon)
    }

    #[track_caller]
    pub(crate) fn wait_for_servers(&self) {
        for name in self.servers {
            self.home.wait_for_state(name, "running");
        }
    }

    /// Returns the program of a server and its arguments.
    fn words(&self, server: &str) -> Vec<String> {
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let npm = |name: &str| {
            let script = format!("npm/node_modules/@modelcontextprotocol/{name}/dist/index.js");
            vec![path(&self.node()), path(&self.installed.join(script))]
        };
        let python = |program: &str| vec![path(&self.installed.join("servers/bin").join(program))];
        let (mut words, args) = match server {
            "everything" => (npm("server-everything"), vec![]),
            "files" => (npm("server-filesystem"), vec![self.folder()]),
            "memory" => (npm("server-memory"), vec![]),
            "time" => (python("mcp-server-time"), vec!["--local-timezone".into(), "UTC".into()]),
            "git" => (python("mcp-server-git"), vec!["--repository".into(), self.repository()]),
            other => panic!("no server `{other}`"),
        };
        words.extend(args);
        words
    }

    /// Returns the file of a server. Its start timeout is long: the machine may be busy.
    fn kdl(&self, server: &str) -> String {
        let words: Vec<String> = self.words(server).iter().map(|it| format!("{it:?}")).collect();
        let (command, args) = (&words[0], words[1..].join(" "));
        let memory = format!("{}/memory.jsonl", self.work.display());
        format!(
            "command {command}\nargs {args}\n\
             env {{ MEMORY_FILE_PATH {memory:?}; }}\n\
             ready {{ within \"20s\"; }}\n"
        )
    }

    /// Adds lines to the file of a server.
    pub(crate) fn append_config(&self, server: &str, more: &str) {
        let kdl = format!("{}{more}", self.kdl(server));
        self.home.write_config(&format!("servers/{server}.kdl"), &kdl);
    }

    /// Returns the command that a client without xy would start.
    pub(crate) fn direct(&self, server: &str) -> Command {
        let words = self.words(server);
        let args: Vec<&str> = words[1..].iter().map(String::as_str).collect();
        let mut command = self.home.command_of(Path::new(&words[0]), &args);
        command.env("MEMORY_FILE_PATH", self.work.join("memory-direct.jsonl"));
        command
    }

    /// Returns the folder in which the file server may write.
    pub(crate) fn folder(&self) -> String {
        self.work.join("files").to_str().unwrap().to_owned()
    }

    /// Returns the path of a repository with one uncommitted file, `new.txt`.
    pub(crate) fn repository(&self) -> String {
        self.work.join("repository").to_str().unwrap().to_owned()
    }

    fn make_repository(&self) {
        let repository = self.repository();
        let mut git = self.home.command_of(Path::new("git"), &["init", "--quiet", &repository]);
        assert!(git.status().unwrap().success());
        fs::write(format!("{repository}/new.txt"), "new\n").unwrap();
    }

    fn node(&self) -> PathBuf {
        self.installed.join("npm/node_modules/node/bin/node")
    }

    /// Returns the Python client, with the arguments for its connection.
    pub(crate) fn python(&self, way: &[String]) -> Command {
        self.client(&self.installed.join("clients/bin/python"), "client.py", way)
    }

    /// Returns the TypeScript client, with the arguments for its connection.
    pub(crate) fn typescript(&self, way: &[String]) -> Command {
        let mut command = self.client(&self.node(), "client.mjs", way);
        command.env("SDK_FOLDER", self.installed.join("npm"));
        command
    }

    /// Returns the Python client for both eras, in one of its modes.
    pub(crate) fn python_of(&self, mode: &str, way: &[String]) -> Command {
        let way = [&[mode.to_owned()], way].concat();
        self.client(&self.installed.join("clients2/bin/python"), "eras.py", &way)
    }

    /// Returns the TypeScript client for both eras, in one of its modes.
    pub(crate) fn typescript_of(&self, mode: &str, way: &[String]) -> Command {
        let way = [&[mode.to_owned()], way].concat();
        let mut command = self.client(&self.node(), "eras.mjs", &way);
        command.env("SDK_FOLDER", self.installed.join("npm"));
        command
    }

    fn client(&self, program: &Path, script: &str, way: &[String]) -> Command {
        let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../real/clients");
        let mut command = self.home.command_of(program, &[]);
        command.arg(clients.join(script)).args(way);
        command
    }

    /// Returns the inspector's arguments for `xy connect`. The inspector passes on only the
    /// variables that it is given.
    pub(crate) fn inspected_stdio(&self) -> Vec<String> {
        let command = self.home.command(&[]);
        let to_args = |(name, value): (&OsStr, Option<&OsStr>)| {
            let is_wanted = name.to_str()?.starts_with("XDG_");
            let pair = format!("{}={}", name.to_str()?, value?.to_str()?);
            is_wanted.then(|| ["-e".to_owned(), pair])
        };
        let mut way: Vec<String> = command.get_envs().filter_map(to_args).flatten().collect();
        way.extend([env!("CARGO_BIN_EXE_xy").to_owned(), "connect".to_owned()]);
        way
    }

    /// Returns the inspector's command line mode, with these arguments.
    pub(crate) fn inspector(&self, args: &[&str]) -> Command {
        let mut command = self.home.command_of(&self.node(), &[]);
        command.arg(self.installed.join("npm/node_modules/.bin/mcp-inspector"));
        command.arg("--cli").args(args);
        command
    }

    /// Returns the client arguments for stdio, by `xy connect`.
    pub(crate) fn by_stdio() -> Vec<String> {
        ["stdio", env!("CARGO_BIN_EXE_xy"), "connect"].map(str::to_owned).to_vec()
    }

    /// Returns the client arguments for HTTP, with the token.
    pub(crate) fn by_http(&self) -> Vec<String> {
        vec!["http".to_owned(), self.url(), self.home.gateway_token()]
    }

    /// Returns the URL of all servers.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.home.gateway_address())
    }

    /// Returns a task for a client, with everything that it needs.
    pub(crate) fn task(&self, what: &str, name: &str) -> Value {
        json!({
            "do": what, "name": name, "folder": self.folder(), "repository": self.repository(),
        })
    }
}
