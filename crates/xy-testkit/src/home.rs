//! A temporary home for xy: folders, configuration, a daemon, and their removal.

mod closing;
mod mcp;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::daemon::Daemon;
use crate::kdl;
use crate::process::{MARK, random_mark};
use crate::run::{Ran, to_the_end};
use crate::wait::{Sign, poll};
use crate::wire::Wire;

/// How long to wait for a state, or for a daemon to become ready.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a verb may take.
const VERB_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a daemon may take to answer an immediate request.
const PROMPTLY: Duration = Duration::from_secs(5);

/// The variables that children inherit: paths of programs and libraries, and the settings of
/// coverage and sanitizers. The test sets all others.
const INHERITED: [&str; 8] = [
    "PATH",
    "LD_LIBRARY_PATH",
    "DYLD_FALLBACK_LIBRARY_PATH",
    "RUST_BACKTRACE",
    "LLVM_PROFILE_FILE",
    "ASAN_OPTIONS",
    "LSAN_OPTIONS",
    "TSAN_OPTIONS",
];

/// The home of one test. Dropping it stops all its processes, and fails the test if anything is
/// left behind.
#[derive(Debug)]
pub struct Home {
    /// The temporary folder, removed when dropped.
    _folder: TempDir,
    root: PathBuf,
    xy: PathBuf,
    mark: String,
    env: Vec<(String, String)>,
    daemons: Mutex<Vec<Daemon>>,
    expected: Mutex<Vec<String>>,
    is_closed: bool,
}

impl Home {
    /// Creates an empty home for the program `xy`: `env!("CARGO_BIN_EXE_xy")`.
    #[track_caller]
    pub fn new(xy: &Path) -> Self {
        assert!(xy.is_file(), "there is no program {}", xy.display());
        // Socket paths are limited to about 100 bytes, so the folder is near the root.
        let folder = tempfile::Builder::new().prefix("xy").tempdir_in("/tmp").expect("a folder");
        let root = folder.path().canonicalize().expect("the folder is there");
        for name in ["config/xy/servers", "state", "run", "home", "tmp", "harness"] {
            fs::create_dir_all(root.join(name)).expect("a folder of our own is writable");
        }
        let home = Self {
            _folder: folder,
            root,
            xy: xy.to_owned(),
            mark: random_mark(),
            env: Vec::new(),
            daemons: Mutex::default(),
            expected: Mutex::default(),
            is_closed: false,
        };
        home.write_config("xy.kdl", "");
        home
    }

    /// Sets an environment variable for all processes of this home.
    #[must_use]
    pub fn with_env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the folder that holds `config`, `state`, `run`, `home` and `tmp`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the mark that all processes of this home have in their environment.
    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// Returns the path of the control socket.
    pub fn socket(&self) -> PathBuf {
        self.root.join("run/xy.sock")
    }

    /// Returns the current log file of the server `name`.
    pub fn log_file(&self, name: &str) -> PathBuf {
        self.root.join(format!("state/xy/logs/{name}.log"))
    }

    /// Writes the file of the server `name`, replacing an older one. Most test servers do not speak
    /// MCP, so a file without `ready` gets one that is satisfied once the process runs.
    /// [`Home::write_config`] writes a file unchanged.
    pub fn server(&self, name: &str, kdl: &str) {
        self.write_config(&format!("servers/{name}.kdl"), &kdl::ready_once_it_runs(kdl));
    }

    /// Removes the file of the server `name`.
    #[track_caller]
    pub fn remove_server(&self, name: &str) {
        let file = self.root.join(format!("config/xy/servers/{name}.kdl"));
        fs::remove_file(file).unwrap_or_else(|cause| panic!("no file of `{name}`: {cause}"));
    }

    /// Writes a file in the configuration folder, such as `xy.kdl`. If `xy.kdl` has no gateway, it
    /// gets one with a port that no other test uses.
    pub fn write_config(&self, path: &str, kdl: &str) {
        let file = self.root.join("config/xy").join(path);
        fs::create_dir_all(file.parent().expect("it is in a folder")).expect("a folder of ours");
        let is_silent = path == "xy.kdl" && !kdl.contains("gateway");
        let gateway = if is_silent { "\ngateway { listen \"127.0.0.1:0\"; }\n" } else { "" };
        fs::write(file, format!("{kdl}{gateway}")).expect("a file of ours is writable");
    }

    /// Returns `command` and `args` of a server file that runs a test server.
    #[track_caller]
    pub fn kdl_command(&self, program: &str, args: &[&str]) -> String {
        kdl::command(&self.program(program), args)
    }

    /// Returns the path of a test server, which is built beside xy.
    #[track_caller]
    pub fn program(&self, name: &str) -> PathBuf {
        let path = self.xy.with_file_name(name);
        assert!(
            path.is_file(),
            "no {} — build the whole workspace first: cargo build --workspace --all-targets",
            path.display()
        );
        path
    }

    /// Returns a command that runs xy with `args` in this home.
    pub fn command(&self, args: &[&str]) -> Command {
        self.command_of(&self.xy, args)
    }

    /// Returns a command that runs another build of xy in this home.
    pub fn command_of(&self, xy: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(xy);
        let inherited = INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        command.args(args).env_clear().envs(inherited).current_dir(self.root.join("home"));
        let folders = [
            ("XDG_CONFIG_HOME", "config"),
            ("XDG_STATE_HOME", "state"),
            ("XDG_RUNTIME_DIR", "run"),
            ("HOME", "home"),
            ("TMPDIR", "tmp"),
        ];
        command.envs(folders.map(|(name, folder)| (name, self.root.join(folder))));
        command.env(MARK, &self.mark).envs(self.env.iter().cloned());
        command
    }

    /// Runs a verb and waits until it exits.
    #[track_caller]
    pub fn xy(&self, args: &[&str]) -> Ran {
        self.run(&mut self.command(args))
    }

    /// Runs a command of [`Home::command`] and waits until it exits.
    #[track_caller]
    pub fn run(&self, command: &mut Command) -> Ran {
        to_the_end(command, VERB_TIMEOUT).into()
    }

    /// Runs a verb with `--json`, which must succeed, and returns its output.
    #[track_caller]
    pub fn xy_json(&self, args: &[&str]) -> Value {
        let ran = self.xy(&[args, &["--json"]].concat());
        assert_eq!(ran.code, 0, "`xy {}` failed: {ran:#?}", args.join(" "));
        serde_json::from_str(&ran.stdout)
            .unwrap_or_else(|cause| panic!("`xy {}`: {cause}: {ran:#?}", args.join(" ")))
    }

    /// Starts a daemon and waits until it is ready.
    #[track_caller]
    pub fn daemon(&self) -> Daemon {
        self.daemon_with(&[])
    }

    /// Starts a daemon with more arguments, and waits until this daemon answers.
    #[track_caller]
    pub fn daemon_with(&self, args: &[&str]) -> Daemon {
        self.daemon_of(&self.xy, args)
    }

    /// The same with another build of xy.
    #[track_caller]
    pub fn daemon_of(&self, xy: &Path, args: &[&str]) -> Daemon {
        let daemon = self.spawn_daemon(xy, args);
        let settled = poll(WAIT_TIMEOUT, || !daemon.is_running() || self.is_served_by(daemon.pid));
        let stderr = || daemon.stderr();
        match (settled, daemon.status()) {
            (_, Some(status)) => panic!("the daemon ended ({status}); stderr:\n{}", stderr()),
            (None, None) => {
                panic!("the daemon did not serve within {WAIT_TIMEOUT:?}; stderr:\n{}", stderr())
            }
            (Some(()), None) => daemon,
        }
    }

    /// Runs a daemon that must exit by itself.
    #[track_caller]
    pub fn daemon_fails(&self) -> Output {
        to_the_end(&mut self.command(&["daemon"]), VERB_TIMEOUT)
    }

    /// Sends a request on a new connection. Returns the result or the error object.
    #[track_caller]
    pub fn call(&self, method: &str, params: Value) -> Result<Value, Value> {
        self.connect().call(method, params)
    }

    /// Opens a raw connection to the daemon.
    #[track_caller]
    pub fn connect(&self) -> Wire {
        let socket = self.socket();
        Wire::open(&socket)
            .unwrap_or_else(|cause| panic!("no daemon at {}: {cause}", socket.display()))
    }

    /// Waits until `look` returns true or `Some`.
    #[track_caller]
    pub fn wait_until<S: Sign>(&self, what: &str, look: impl FnMut() -> S) -> S::Output {
        poll(WAIT_TIMEOUT, look)
            .unwrap_or_else(|| panic!("not within {WAIT_TIMEOUT:?}: {what}; {}", self.last_words()))
    }

    /// Waits until the server `name` is in `state`, and returns its status.
    #[track_caller]
    pub fn wait_for_state(&self, name: &str, state: &str) -> Value {
        let mut last = Ok(Value::Null);
        let seen = poll(WAIT_TIMEOUT, || {
            last = self.ask("status", json!({ "name": name }));
            last.clone().ok().filter(|status| status["state"] == state)
        });
        seen.unwrap_or_else(|| {
            panic!(
                "`{name}` is not {state} within {WAIT_TIMEOUT:?}: {last:#?}; {}",
                self.last_words()
            )
        })
    }

    /// Allows the test to leave files behind: a path below [`Home::root`], or a prefix of paths.
    pub fn expect_left(&self, path: &str) {
        locked(&self.expected).push(path.to_owned());
    }

    /// Starts a daemon of any build of xy, without waiting until it is ready.
    #[track_caller]
    pub fn spawn_daemon(&self, xy: &Path, args: &[&str]) -> Daemon {
        let mut daemons = self.daemons_mut();
        let stderr = self.root.join(format!("harness/daemon-{}.stderr", daemons.len()));
        let file = File::create(&stderr).expect("a file of ours is writable");
        let mut command = self.command_of(xy, &[&["daemon"], args].concat());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let child = command.spawn().unwrap_or_else(|cause| panic!("no {command:?}: {cause}"));
        let daemon = Daemon::new(child, stderr);
        daemons.push(daemon.clone());
        daemon
    }

    /// Returns true if the daemon at the socket answers and is the process `pid`.
    fn is_served_by(&self, pid: u32) -> bool {
        self.ask("version", Value::Null).is_ok()
            && self.ask("info", Value::Null).is_ok_and(|info| info["pid"] == pid)
    }

    /// Sends a request like [`Home::call`]. Returns an error if the daemon does not answer.
    fn ask(&self, method: &str, params: Value) -> Result<Value, Value> {
        let answer =
            Wire::open(&self.socket()).and_then(|mut wire| wire.try_call(method, params, PROMPTLY));
        answer.unwrap_or_else(|cause| Err(json!(format!("no answer: {cause}"))))
    }

    /// Returns the stderr of the last daemon, for the message of a failed test.
    fn last_words(&self) -> String {
        match self.daemons().last() {
            Some(daemon) => format!("stderr of daemon {}:\n{}", daemon.pid, daemon.stderr()),
            None => "no daemon was started".to_owned(),
        }
    }

    fn daemons(&self) -> Vec<Daemon> {
        self.daemons_mut().clone()
    }

    fn daemons_mut(&self) -> MutexGuard<'_, Vec<Daemon>> {
        locked(&self.daemons)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
