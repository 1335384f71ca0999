//! Daemons that follow each other in one folder, with a driver that hands each connection to the
//! test.

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
use xy_config::BrokenServers;
pub(crate) use xy_config::settings::Probe;
use xy_config::settings::{
    Isolation, Limits, ProcessSettings, ReadyRules, RemoteSettings, RestartRules, Rules,
    ServerKind, ServerSettings, Source, StopRules,
};
use xy_protocol::server::{ServerName, ServerState, Transport};
use xy_supervisor::RuntimeServers;
use xy_supervisor::desired::DesiredState;
use xy_supervisor::fleet::{Fleet, FleetParts, Operation};
use xy_supervisor::instance::{Holder, InstanceHandle, Snapshot};
use xy_supervisor::launch::Launchers;
use xy_supervisor::launch::process::{ProcessLauncher, ShimProgram};
use xy_supervisor::launch::remote::RemoteLauncher;
use xy_supervisor::protocol::{
    Connection, DriverCommand, DriverEvent, Handover, ProtocolDriver, ServerIo,
};

/// Limit of every wait.
const TIMEOUT: Duration = Duration::from_secs(20);

const NAME: &str = "one";

/// The folder of the daemons of one test.
pub(crate) struct Home {
    folder: TempDir,
}

/// Returns the settings of a server that runs a script.
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

/// Returns the settings of a server that runs a script and listens on a port.
pub(crate) fn listening(transport: Transport, text: &str) -> ServerSettings {
    let mut settings = script(text);
    if let ServerKind::Process(process) = &mut settings.kind {
        (process.transport, process.port) = (transport, Some(1));
    }
    settings
}

/// Returns the settings of a remote server.
pub(crate) fn remote() -> ServerSettings {
    let kind = ServerKind::Remote(RemoteSettings {
        url: "https://example.com/mcp".into(),
        headers: [].into(),
        is_older: false,
    });
    ServerSettings { kind, ..script("") }
}

/// Returns the settings with another readiness rule.
pub(crate) fn ready_by(probe: Probe, within: Duration, settings: ServerSettings) -> ServerSettings {
    let ready = ReadyRules { probe, within, ..ReadyRules::default() };
    ServerSettings { rules: Rules { ready, ..settings.rules }, ..settings }
}

/// A driver that hands every connection to the test.
struct ConnectionCollector(mpsc::Sender<Connection>);

impl ProtocolDriver for ConnectionCollector {
    fn drive(&self, connection: Connection) {
        self.0.try_send(connection).expect("no test has so many lives");
    }
}

/// The part of a daemon that supervises servers.
pub(crate) struct Daemon {
    runtime: Runtime,
    fleet: Fleet,
    connections: mpsc::Receiver<Connection>,
}

impl Home {
    pub(crate) fn new() -> Self {
        // A socket path has at most about 100 bytes, so the folder is near the root.
        let folder = tempfile::Builder::new().prefix("xys").tempdir_in("/tmp").unwrap();
        for name in ["logs", "shims"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    /// Starts a daemon that adopts the running servers and hands connections to the test.
    pub(crate) fn daemon(&self) -> Daemon {
        let (sender, connections) = mpsc::channel(16);
        let (runtime, fleet) = self.start(Arc::new(ConnectionCollector(sender)));
        Daemon { runtime, fleet, connections }
    }

    /// Starts a daemon with another driver.
    pub(crate) fn daemon_with(&self, driver: Arc<dyn ProtocolDriver>) -> Daemon {
        let (_, connections) = mpsc::channel(1);
        let (runtime, fleet) = self.start(driver);
        Daemon { runtime, fleet, connections }
    }

    fn start(&self, driver: Arc<dyn ProtocolDriver>) -> (Runtime, Fleet) {
        // On one thread nothing runs after a kill.
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let shim = ShimProgram {
            path: env!("CARGO_BIN_EXE_xy-supervisor-shim-for-tests").into(),
            args: Vec::new(),
        };
        let (logs_dir, locks_dir) =
            (self.folder.path().join("logs"), self.folder.path().join("shims"));
        let fleet = runtime.block_on(async {
            let (logs, locks) = (logs_dir.clone(), locks_dir.clone());
            let processes = ProcessLauncher::new(shim, logs, locks, None, driver.clone());
            let processes = Arc::new(processes);
            let (adopted, _) = processes.adopt_all().await;
            let remotes = RemoteLauncher::new(driver);
            let containers = processes.clone(); // No test has any.
            let launcher = Arc::new(Launchers { processes, remotes, containers });
            let parts = FleetParts {
                limits: xy_config::settings::InstanceSettings::default(),
                runtime_servers: RuntimeServers::default(),
                runtime_servers_file: locks_dir.join("added.json"),
                launcher,
                desired: DesiredState::default(),
                desired_state_file: self.folder.path().join("wishes"),
                logs_dir,
                locks_dir,
            };
            Fleet::spawn(parts, adopted)
        });
        (runtime, fleet)
    }
}

impl Daemon {
    /// Applies the settings of the one server.
    pub(crate) fn apply(&self, settings: ServerSettings) {
        let servers = [(settings.name.clone(), Arc::new(settings))].into();
        self.within(self.fleet.apply(servers, BrokenServers::default())).unwrap();
    }

    pub(crate) fn within<T>(&self, what: impl Future<Output = T>) -> T {
        let limited = async { timeout(TIMEOUT, what).await };
        self.runtime.block_on(limited).expect("the operation takes too long")
    }

    /// Returns the connection of the next life.
    pub(crate) fn connection(&mut self) -> Connection {
        let limited = async { timeout(TIMEOUT, self.connections.recv()).await };
        self.runtime.block_on(limited).expect("no life starts").unwrap()
    }

    pub(crate) fn instance(&self) -> InstanceHandle {
        let name = ServerName::new(NAME).unwrap();
        self.fleet.roster()[&name].instances[&Holder::Shared].clone()
    }

    /// Holds an instance for a client.
    pub(crate) fn hold(&self, client: u64) -> InstanceHandle {
        self.within(self.fleet.hold(&ServerName::new(NAME).unwrap(), Holder::Client(client)))
            .unwrap()
    }

    /// Releases the instance of a client.
    pub(crate) fn release(&self, client: u64) {
        self.within(self.fleet.release(&ServerName::new(NAME).unwrap(), client));
    }

    pub(crate) fn wait_until(&self, is_so: impl Fn(&Snapshot) -> bool) -> Snapshot {
        self.within(self.instance().wait_until(is_so))
    }

    pub(crate) fn wait_for(&self, state: ServerState) -> Snapshot {
        self.wait_until(|now| now.state() == state)
    }

    pub(crate) fn operate(&self, operate: Operation) {
        self.within(self.fleet.operate(operate, None)).unwrap();
    }

    /// Reports an event to the supervisor.
    pub(crate) fn report(&self, connection: &Connection, said: DriverEvent) {
        self.within(connection.events.send(said)).unwrap();
    }

    /// Returns the next command of the supervisor, except checkups.
    pub(crate) fn next_command(&self, connection: &mut Connection) -> Option<DriverCommand> {
        loop {
            match self.within(connection.commands.recv()) {
                Some(DriverCommand::Checkup(_)) => {} // May come at any time.
                command => return command,
            }
        }
    }

    /// Announces a write, and waits for the acknowledgement.
    pub(crate) fn begin_write(&self, connection: &Connection) {
        let (known, is_known) = oneshot::channel();
        self.report(connection, DriverEvent::WriteBegins(known));
        self.within(is_known).unwrap();
    }

    /// Reads this number of bytes from the stdout of the server.
    pub(crate) fn read(&self, connection: &Connection, count: usize) -> String {
        let stdout = pipes(connection).1.try_clone().unwrap();
        self.within(async {
            let mut bytes = vec![0; count];
            let mut stdout = pipe::Receiver::from_owned_fd(stdout).unwrap();
            stdout.read_exact(&mut bytes).await.unwrap();
            String::from_utf8(bytes).unwrap()
        })
    }

    /// Returns all lines of the log.
    pub(crate) fn log(&self) -> Vec<String> {
        let (connections, _) = self.instance().logs().tail(1000);
        connections
            .into_iter()
            .map(|connection| String::from_utf8(connection.bytes).unwrap())
            .collect()
    }

    /// Waits until the log has exactly these lines.
    pub(crate) fn wait_for_log(&self, expected: &[&str]) {
        self.within(async {
            while self.log() != expected {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }

    /// Waits until this line is in the log.
    pub(crate) fn wait_until_logged(&self, connection: &str) {
        self.within(async {
            while !self.log().iter().any(|logged| logged == connection) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }

    /// Hands over to another daemon; `connection` is that of the driver.
    pub(crate) fn hand_over(self, connection: Connection, rest: &[u8]) {
        let mut connection = connection;
        let fleet = self.fleet.clone();
        let handing_over = self.runtime.spawn(async move { fleet.hand_over().await });
        match self.next_command(&mut connection) {
            Some(DriverCommand::HandOver(answer)) => {
                let Connection { io: way, events: _said, commands: _told, .. } = connection;
                drop(way);
                answer.send(rest.to_vec()).unwrap();
            }
            other => panic!("{other:?}"),
        }
        self.within(handing_over).unwrap();
    }

    /// Hands over to another daemon without a cooperating driver.
    pub(crate) fn hand_over_without_driver(self) {
        self.within(self.fleet.hand_over());
    }

    /// Kills the daemon at any point.
    pub(crate) fn kill(self) {
        self.runtime.shutdown_timeout(TIMEOUT);
    }

    /// Stops the server and the daemon.
    pub(crate) fn shutdown(self) {
        self.within(self.fleet.shutdown());
    }
}

/// Returns the note and the unread output that an earlier daemon left.
pub(crate) fn handover(connection: &Connection) -> (&str, &str) {
    let Handover { note, unread } = connection.handover.as_ref().expect("the instance was adopted");
    (note, std::str::from_utf8(unread).unwrap())
}

/// Returns the stdin and the stdout of a stdio server.
pub(crate) fn pipes(connection: &Connection) -> (&OwnedFd, &OwnedFd) {
    match &connection.io {
        ServerIo::Pipes { stdin, stdout } => (stdin, stdout),
        ServerIo::Endpoint => panic!("it has no pipes"),
    }
}
