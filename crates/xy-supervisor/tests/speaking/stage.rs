//! Daemons that come and go in one home, and a speaker whose lines are the test's.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use xy_config::Broken;
pub(crate) use xy_config::settings::Probe;
use xy_config::settings::{
    Isolation, Limits, ProcessSettings, ReadyRules, RemoteSettings, RestartRules, Rules,
    ServerKind, ServerSettings, Source, StopRules,
};
use xy_protocol::server::{ServerName, ServerState, Transport};
use xy_supervisor::AddedServers;
use xy_supervisor::fleet::{Ask, Fleet, FleetParts};
use xy_supervisor::instance::{Holder, InstanceHandle, Snapshot};
use xy_supervisor::launch::EveryLauncher;
use xy_supervisor::launch::container::ContainerLauncher;
use xy_supervisor::launch::process::{ProcessLauncher, ShimProgram};
use xy_supervisor::launch::remote::RemoteLauncher;
use xy_supervisor::speak::{Before, Line, Said, Speak, Told, Way};
use xy_supervisor::wishes::Wishes;

/// How long anything is waited for.
const WITHIN: Duration = Duration::from_secs(20);

const NAME: &str = "one";

/// Where the daemons of one test live.
pub(crate) struct Home {
    folder: TempDir,
}

/// The settings of a server that is a script.
pub(crate) fn script(script: &str) -> ServerSettings {
    let restart = RestartRules {
        backoff_initial: Duration::from_millis(50),
        jitter: false,
        ..RestartRules::default()
    };
    ServerSettings {
        isolation: Isolation::Shared,
        share_key: None,
        era: None,
        name: ServerName::new(NAME).unwrap(),
        source: Source {
            file: PathBuf::from("one.kdl"),
            command_line: 1,
            is_outdated: false,
            added: false,
        },
        kind: ServerKind::Process(ProcessSettings {
            command: "sh".into(),
            args: vec!["-c".into(), script.into()],
            env: [].into(),
            working_dir: None,
            transport: Transport::Stdio,
            port: None,
            path: None,
            limits: Limits::default(),
        }),
        rules: Rules {
            restart,
            stop: StopRules { grace: Duration::from_secs(5) },
            ..Rules::default()
        },
    }
}

/// The settings of a server that is a script, and says that it listens on a port.
pub(crate) fn listening(transport: Transport, text: &str) -> ServerSettings {
    let mut settings = script(text);
    if let ServerKind::Process(process) = &mut settings.kind {
        (process.transport, process.port) = (transport, Some(1));
    }
    settings
}

/// The settings of a server that lives somewhere else.
pub(crate) fn elsewhere() -> ServerSettings {
    let kind = ServerKind::Remote(RemoteSettings {
        url: "https://example.com/mcp".into(),
        headers: [].into(),
        is_older: false,
    });
    ServerSettings { kind, ..script("") }
}

/// The same, ready by other rules.
pub(crate) fn ready_by(probe: Probe, within: Duration, settings: ServerSettings) -> ServerSettings {
    let ready = ReadyRules { probe, within, ..ReadyRules::default() };
    ServerSettings { rules: Rules { ready, ..settings.rules }, ..settings }
}

/// Hands every line to the test.
struct Switchboard(mpsc::Sender<Line>);

impl Speak for Switchboard {
    fn speak(&self, line: Line) {
        self.0.try_send(line).expect("no test has so many lives");
    }
}

/// One daemon, as far as servers see it.
pub(crate) struct Daemon {
    runtime: Runtime,
    fleet: Fleet,
    lines: mpsc::Receiver<Line>,
}

impl Home {
    pub(crate) fn new() -> Self {
        // The path of a socket has at most about 100 bytes, so the folder is near the root.
        let folder = tempfile::Builder::new().prefix("xys").tempdir_in("/tmp").unwrap();
        for name in ["logs", "shims"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    /// A daemon that takes over what is there, with a speaker of the test's.
    pub(crate) fn daemon(&self) -> Daemon {
        let (sender, lines) = mpsc::channel(16);
        let (runtime, fleet) = self.begin(Arc::new(Switchboard(sender)));
        Daemon { runtime, fleet, lines }
    }

    /// One with a speaker of its own.
    pub(crate) fn daemon_with(&self, speaker: Arc<dyn Speak>) -> Daemon {
        let (_, lines) = mpsc::channel(1);
        let (runtime, fleet) = self.begin(speaker);
        Daemon { runtime, fleet, lines }
    }

    fn begin(&self, speaker: Arc<dyn Speak>) -> (Runtime, Fleet) {
        // One thread: nothing goes on once it is killed, not even for a moment.
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let shim = ShimProgram {
            path: env!("CARGO_BIN_EXE_xy-supervisor-shim-for-tests").into(),
            args: Vec::new(),
        };
        let (logs_dir, locks_dir) =
            (self.folder.path().join("logs"), self.folder.path().join("shims"));
        let fleet = runtime.block_on(async {
            let (logs, locks) = (logs_dir.clone(), locks_dir.clone());
            let processes = ProcessLauncher::new(shim, logs, locks, None, speaker.clone());
            let processes = Arc::new(processes);
            let (adopted, _) = processes.adopt_all().await;
            let kept_dir = self.folder.path().join("containers");
            let (logs, said_by) = (logs_dir.clone(), speaker.clone());
            let containers = ContainerLauncher::new(kept_dir, logs, said_by, &processes);
            let remotes = RemoteLauncher::new(speaker);
            let launcher = Arc::new(EveryLauncher { processes, remotes, containers });
            let parts = FleetParts {
                limits: xy_config::settings::InstanceSettings::default(),
                added: AddedServers::default(),
                added_file: locks_dir.join("added.json"),
                launcher,
                wishes: Wishes::default(),
                wishes_file: self.folder.path().join("wishes"),
                logs_dir,
                locks_dir,
            };
            Fleet::spawn(parts, adopted)
        });
        (runtime, fleet)
    }
}

impl Daemon {
    /// Applies what the file of the one server says.
    pub(crate) fn apply(&self, settings: ServerSettings) {
        let servers = [(settings.name.clone(), Arc::new(settings))].into();
        self.within(self.fleet.apply(servers, Broken::default())).unwrap();
    }

    pub(crate) fn within<T>(&self, what: impl Future<Output = T>) -> T {
        let limited = async { timeout(WITHIN, what).await };
        self.runtime.block_on(limited).expect("it takes too long")
    }

    /// The line to the next life.
    pub(crate) fn line(&mut self) -> Line {
        let limited = async { timeout(WITHIN, self.lines.recv()).await };
        self.runtime.block_on(limited).expect("no life begins").unwrap()
    }

    pub(crate) fn instance(&self) -> InstanceHandle {
        let name = ServerName::new(NAME).unwrap();
        self.fleet.roster()[&name].instances[&Holder::Shared].clone()
    }

    /// A client takes an instance of its own.
    pub(crate) fn hold(&self, client: u64) -> InstanceHandle {
        self.within(self.fleet.hold(&ServerName::new(NAME).unwrap(), Holder::Client(client)))
            .unwrap()
    }

    /// That client leaves.
    pub(crate) fn release(&self, client: u64) {
        self.within(self.fleet.release(&ServerName::new(NAME).unwrap(), client));
    }

    pub(crate) fn wait_until(&self, is_so: impl Fn(&Snapshot) -> bool) -> Snapshot {
        self.within(self.instance().wait_until(is_so))
    }

    pub(crate) fn wait_for(&self, state: ServerState) -> Snapshot {
        self.wait_until(|now| now.state() == state)
    }

    pub(crate) fn ask(&self, ask: Ask) {
        self.within(self.fleet.ask(ask, None)).unwrap();
    }

    /// Says something to the supervisor.
    pub(crate) fn say(&self, line: &Line, said: Said) {
        self.within(line.said.send(said)).unwrap();
    }

    /// What the supervisor tells next.
    pub(crate) fn told(&self, line: &mut Line) -> Option<Told> {
        loop {
            match self.within(line.told.recv()) {
                Some(Told::Checkup(_)) => {} // Whoever is looked after is asked at any time.
                told => return told,
            }
        }
    }

    /// Announces a message, and waits until that is known.
    pub(crate) fn begin_to_write(&self, line: &Line) {
        let (known, is_known) = oneshot::channel();
        self.say(line, Said::WriteBegins(known));
        self.within(is_known).unwrap();
    }

    /// Reads so many bytes of what the server says.
    pub(crate) fn read(&self, line: &Line, count: usize) -> String {
        let stdout = pipes(line).1.try_clone().unwrap();
        self.within(async {
            let mut bytes = vec![0; count];
            let mut stdout = pipe::Receiver::from_owned_fd(stdout).unwrap();
            stdout.read_exact(&mut bytes).await.unwrap();
            String::from_utf8(bytes).unwrap()
        })
    }

    /// Everything in its log so far.
    pub(crate) fn log(&self) -> Vec<String> {
        let (lines, _) = self.instance().logs().tail(1000);
        lines.into_iter().map(|line| String::from_utf8(line.bytes).unwrap()).collect()
    }

    /// Waits until its log is this.
    pub(crate) fn wait_for_log(&self, expected: &[&str]) {
        self.within(async {
            while self.log() != expected {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }

    /// Waits until this line is in its log.
    pub(crate) fn wait_until_logged(&self, line: &str) {
        self.within(async {
            while !self.log().iter().any(|logged| logged == line) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }

    /// Lets another daemon go on; `line` is what its speaker holds.
    pub(crate) fn hand_over(self, line: Line, rest: &[u8]) {
        let mut line = line;
        let fleet = self.fleet.clone();
        let letting_go = self.runtime.spawn(async move { fleet.let_go().await });
        match self.told(&mut line) {
            Some(Told::LetGo(answer)) => {
                let Line { way, said: _said, told: _told, .. } = line;
                drop(way);
                answer.send(rest.to_vec()).unwrap();
            }
            other => panic!("{other:?}"),
        }
        self.within(letting_go).unwrap();
    }

    /// Lets another daemon go on, whoever speaks.
    pub(crate) fn let_go(self) {
        self.within(self.fleet.let_go());
    }

    /// Is gone without a word, in the middle of everything.
    pub(crate) fn killed(self) {
        self.runtime.shutdown_timeout(WITHIN);
    }

    /// Ends its server and itself.
    pub(crate) fn shutdown(self) {
        self.within(self.fleet.shutdown());
    }
}

/// What an earlier daemon left.
pub(crate) fn before(line: &Line) -> (&str, &str) {
    let Before { note, unread } = line.before.as_ref().expect("it was adopted");
    (note, std::str::from_utf8(unread).unwrap())
}

/// Where a stdio server hears, and where it answers.
pub(crate) fn pipes(line: &Line) -> (&OwnedFd, &OwnedFd) {
    match &line.way {
        Way::Pipes { stdin, stdout } => (stdin, stdout),
        Way::Endpoint => panic!("it has no pipes"),
    }
}
