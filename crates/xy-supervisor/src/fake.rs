//! Test helpers: settings, and a launcher whose lives follow a script.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use xy_config::settings::{
    ContainerSettings, Isolation, Limits, ProcessSettings, RemoteSettings, Rules, ServerKind,
    ServerSettings, Source,
};
use xy_protocol::server::{ServerName, Transport};
use xy_shim::wire::{Confinement, PROTOCOL, StatusReport};

use crate::health::{Outcome, ProbeSupport};
use crate::instance::InstanceKey;
use crate::launch::{Launch, LaunchOrder, LifeChannels, LifeCommand, LifeEvent, LifeHandle};
use crate::lifecycle::{Exit, LaunchFault};
use crate::protocol::{Checkup, CheckupReport};
use crate::wait::until;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Returns default rules without jitter, so that times are exact.
pub(crate) fn steady() -> Rules {
    let mut rules = Rules::default();
    rules.restart.jitter = false;
    rules
}

pub(crate) fn settings(name: &str) -> ServerSettings {
    ServerSettings {
        name: ServerName::new(name).unwrap(),
        source: Source {
            file: PathBuf::from(format!("servers/{name}.kdl")),
            command_line: 1,
            is_outdated: false,
            added: false,
        },
        kind: ServerKind::Process(ProcessSettings {
            command: "/bin/true".into(),
            args: Vec::new(),
            env: [].into(),
            working_dir: None,
            transport: Transport::Stdio,
            port: None,
            path: None,
            limits: Limits::default(),
        }),
        rules: steady(),
        isolation: Isolation::Shared,
        share_key: None,
        era: None,
    }
}

/// Returns the process settings, for changes.
pub(crate) fn process_of(settings: &mut ServerSettings) -> &mut ProcessSettings {
    match &mut settings.kind {
        ServerKind::Process(process) => process,
        ServerKind::Remote(_) | ServerKind::Container(_) => panic!("it has no process"),
    }
}

/// Returns the settings of a remote server.
pub(crate) fn remote(name: &str) -> ServerSettings {
    let kind = ServerKind::Remote(RemoteSettings {
        url: "https://example.com/mcp?key=s3cret".into(),
        headers: [("Authorization".into(), "Bearer s3cret".into())].into(),
        is_older: false,
    });
    let mut settings = ServerSettings { kind, ..settings(name) };
    settings.rules.restart.backoff_max = xy_config::settings::REMOTE_BACKOFF_MAX;
    settings
}

/// Returns the settings of a container.
pub(crate) fn container_settings(name: &str) -> ServerSettings {
    let container = ContainerSettings::of_image("example.com/x:1".into());
    ServerSettings { kind: ServerKind::Container(Box::new(container)), ..settings(name) }
}

/// Returns the status report of a shim whose server has run for 50 s, with a note 10 s old.
pub(crate) fn shim_status() -> StatusReport {
    StatusReport {
        protocol: PROTOCOL,
        pid: 4711,
        age_ms: 50_000,
        note_age_ms: 10_000,
        passed: [true; 2],
        torn: false,
        stopping: false,
        exited: None,
        confined: Confinement::default(),
        logged: None,
    }
}

/// Returns the fault of a missing program.
pub(crate) fn permanent_fault() -> LaunchFault {
    LaunchFault {
        permanent: true,
        message: "program `x` is not on PATH".into(),
        hint: Some("install it".into()),
    }
}

/// Returns the fault of a container engine that is not running.
pub(crate) fn engine_unavailable() -> LaunchFault {
    let hint = Some("start the engine".into());
    LaunchFault { permanent: false, message: "no engine listens".into(), hint }
}

/// Returns the fault of a machine that is short of memory.
pub(crate) fn transient_fault() -> LaunchFault {
    LaunchFault { permanent: false, message: "out of memory".into(), hint: None }
}

/// The course of one life.
#[derive(Debug, Clone)]
pub(crate) enum Script {
    /// Lives until stopped, which takes `stops_in`.
    Lives { stops_in: Duration },
    /// Exits by itself.
    Dies { after: Duration, exit: Exit },
    /// Fails to start, after a while.
    Fails { after: Duration, fault: LaunchFault },
    /// Never launches, until stopped.
    Hangs,
    /// Ignores a stop; only a kill ends it.
    Stubborn,
    /// Its launcher disappears without a last event.
    Vanishes { after: Duration },
    /// Lives, but its log cannot be written until `after`.
    LogFails { after: Duration },
}

/// How a living server reacts to probes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ProbeBehavior {
    /// The server's support for probes: `Unsupported` answers only other requests, `Unknown`
    /// answers nothing.
    pub(crate) probe_support: ProbeSupport,
    /// Number of calls that a client waits for.
    pub(crate) calls: u32,
    /// Whether it keeps sending messages.
    pub(crate) speaks: bool,
    /// Whether it keeps writing other output.
    pub(crate) writes: bool,
}

/// A launcher that follows one script per life, and repeats the last one.
#[derive(Debug, Clone)]
pub(crate) struct FakeLauncher {
    shared: Arc<Mutex<SharedState>>,
}

#[derive(Debug)]
struct SharedState {
    scripts: VecDeque<Script>,
    /// Scripts of single servers.
    own_scripts: HashMap<String, VecDeque<Script>>,
    launches: Vec<(Instant, LaunchOrder)>,
    commands: Vec<LifeCommand>,
    living: HashMap<InstanceKey, usize>,
    max_living: usize,
    /// `None` while no protocol driver is attached.
    behavior: Option<ProbeBehavior>,
    /// Number of probes sent, and number of checkups in all.
    probes: u64,
    checkups: u64,
}

impl FakeLauncher {
    pub(crate) fn with_scripts(scripts: impl IntoIterator<Item = Script>) -> Self {
        let shared = SharedState {
            scripts: scripts.into_iter().collect(),
            own_scripts: HashMap::new(),
            launches: Vec::new(),
            commands: Vec::new(),
            living: HashMap::new(),
            max_living: 0,
            behavior: None,
            probes: 0,
            checkups: 0,
        };
        Self { shared: Arc::new(Mutex::new(shared)) }
    }

    /// Sets other scripts for one server.
    pub(crate) fn and_for(self, server: &str, scripts: impl IntoIterator<Item = Script>) -> Self {
        let scripts = scripts.into_iter().collect();
        self.with(|shared| shared.own_scripts.insert(server.to_owned(), scripts));
        self
    }

    pub(crate) fn each_lives_for(after: Duration) -> Self {
        Self::with_scripts([Script::Dies { after, exit: Exit::code(1) }])
    }

    pub(crate) fn each_lives_on() -> Self {
        Self::each_stops_in(Duration::from_millis(10))
    }

    pub(crate) fn each_stops_in(stops_in: Duration) -> Self {
        Self::with_scripts([Script::Lives { stops_in }])
    }

    fn with<T>(&self, look: impl FnOnce(&mut SharedState) -> T) -> T {
        look(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn launches(&self) -> usize {
        self.with(|shared| shared.launches.len())
    }

    pub(crate) fn launched_at(&self) -> Vec<Instant> {
        self.with(|shared| shared.launches.iter().map(|(at, _)| *at).collect())
    }

    /// Returns the servers in the order of their launches.
    pub(crate) fn launched(&self) -> Vec<String> {
        self.with(|shared| shared.launches.iter().map(|(_, order)| order.key.to_string()).collect())
    }

    pub(crate) fn last_settings(&self) -> Arc<ServerSettings> {
        self.with(|shared| shared.launches.last().unwrap().1.settings.clone())
    }

    /// Returns all commands that lives received, in order.
    pub(crate) fn commands(&self) -> Vec<LifeCommand> {
        self.with(|shared| shared.commands.clone())
    }

    /// Sets how all servers react to probes from now on.
    pub(crate) fn set_behavior(&self, behavior: ProbeBehavior) {
        self.with(|shared| shared.behavior = Some(behavior));
    }

    /// Detaches the protocol driver: no probe can be sent from now on.
    pub(crate) fn disconnect_driver(&self) {
        self.with(|shared| shared.behavior = None);
    }

    /// Returns the number of probes sent.
    pub(crate) fn probes(&self) -> u64 {
        self.with(|shared| shared.probes)
    }

    /// Returns the number of current lives, of all servers.
    pub(crate) fn living(&self) -> usize {
        self.with(|shared| shared.living.values().sum())
    }

    /// Returns the maximum number of simultaneous lives of one key.
    pub(crate) fn max_living(&self) -> usize {
        self.with(|shared| shared.max_living)
    }
}

impl SharedState {
    fn begin(&mut self, order: LaunchOrder) -> (Script, u32) {
        let living = self.living.entry(order.key.clone()).or_default();
        *living += 1;
        self.max_living = self.max_living.max(*living);
        let scripts =
            self.own_scripts.get_mut(order.key.server.as_str()).unwrap_or(&mut self.scripts);
        let script = match scripts.len() {
            1 => scripts[0].clone(),
            _ => scripts.pop_front().unwrap(),
        };
        self.launches.push((Instant::now(), order));
        (script, u32::try_from(self.launches.len()).unwrap())
    }

    /// Counts a checkup. Returns its report without a probe, and how the server reacts to one.
    fn check(&mut self, is_probe: bool) -> Option<(CheckupReport, ProbeBehavior)> {
        let behavior = self.behavior?;
        self.checkups += 1;
        self.probes += u64::from(is_probe);
        let count = |is_active: bool| if is_active { self.checkups } else { 0 };
        let outcome = Outcome::NotProbed("no probe was requested".to_owned());
        let (messages, reads) = (count(behavior.speaks), count(behavior.writes));
        let report =
            CheckupReport { outcome, calls: behavior.calls, messages, reads, idle_for: None };
        Some((report, behavior))
    }

    fn end(&mut self, key: &InstanceKey) {
        *self.living.get_mut(key).unwrap() -= 1;
    }
}

impl Launch for FakeLauncher {
    /// Starts a life. Its pid is its number among all launches, from 1.
    fn launch(&self, order: LaunchOrder) -> LifeHandle {
        let (handle, ends) = LifeHandle::pair();
        let LifeChannels { events, commands, checkups, .. } = ends;
        let key = order.key.clone();
        let (script, pid) = self.with(|shared| shared.begin(order));
        let checkups = Some(checkups);
        let mut fake = FakeInstance { launcher: self.clone(), pid, events, commands, checkups };
        tokio::spawn(async move {
            let last = fake.run(script).await;
            fake.launcher.with(|shared| shared.end(&key));
            if let Some(last) = last {
                let _ = fake.events.send(last).await; // The task may have ended.
            }
        });
        handle
    }
}

/// One life that follows a script.
struct FakeInstance {
    launcher: FakeLauncher,
    pid: u32,
    events: mpsc::Sender<LifeEvent>,
    commands: mpsc::Receiver<LifeCommand>,
    checkups: Option<mpsc::Receiver<Checkup>>,
}

const KILLED: Exit = Exit { signal: Some(9), ..Exit::UNKNOWN };

impl FakeInstance {
    /// Runs the script to its end. Returns the last event, unless there is none.
    async fn run(&mut self, script: Script) -> Option<LifeEvent> {
        let exit = match script {
            Script::Fails { after, fault } => {
                sleep(after).await;
                return Some(LifeEvent::LaunchFailed(fault));
            }
            Script::Hangs => {
                self.receive().await;
                KILLED
            }
            Script::Lives { stops_in } => self.live(None, Exit::code(0), Some(stops_in)).await,
            Script::Dies { after, exit } => {
                self.live(Some(after), exit, Some(Duration::ZERO)).await
            }
            Script::Stubborn => self.live(None, Exit::code(0), None).await,
            Script::Vanishes { after } => {
                self.live(Some(after), Exit::UNKNOWN, Some(Duration::ZERO)).await;
                return None;
            }
            Script::LogFails { after } => {
                self.report(LifeEvent::LogTrouble(Some("disk full".into()))).await;
                sleep(after).await;
                self.report(LifeEvent::LogTrouble(None)).await;
                self.live(None, Exit::code(0), Some(Duration::ZERO)).await
            }
        };
        Some(LifeEvent::Exited(exit))
    }

    /// Lives until it dies, obeys a stop if it ever does, or is killed.
    async fn live(&mut self, dies: Option<Duration>, exit: Exit, stops: Option<Duration>) -> Exit {
        let dies_at = dies.map(|after| Instant::now() + after);
        let mut checkups = self.checkups.take().unwrap();
        self.report(LifeEvent::Launched { pid: self.pid }).await;
        self.report(LifeEvent::Ready).await;
        loop {
            let command = tokio::select! {
                () = until(dies_at) => return exit,
                Some(checkup) = checkups.recv() => {
                    tokio::spawn(answer_checkup(self.launcher.clone(), checkup));
                    continue;
                }
                command = self.receive() => command,
            };
            match (command, stops) {
                (Some(LifeCommand::Kill | LifeCommand::HandOver) | None, _) => {
                    return KILLED;
                }
                (Some(LifeCommand::Stop { .. }), Some(takes)) => {
                    sleep(takes).await;
                    return Exit::code(0);
                }
                (Some(LifeCommand::Stop { .. }), None)
                | (Some(LifeCommand::SetOrphanRules { .. }), _) => {}
            }
        }
    }

    async fn receive(&mut self) -> Option<LifeCommand> {
        let command = self.commands.recv().await;
        self.launcher.with(|shared| shared.commands.extend(command));
        command
    }

    async fn report(&self, event: LifeEvent) {
        let _ = self.events.send(event).await; // The task may have ended.
    }
}

/// Answers a checkup as a protocol driver would.
async fn answer_checkup(launcher: FakeLauncher, checkup: Checkup) {
    let Checkup { within, use_fallback, reply } = checkup;
    let Some((mut report, behavior)) = launcher.with(|it| it.check(within.is_some())) else {
        return;
    };
    if let Some(within) = within {
        report.outcome = Outcome::Answered;
        if behavior.probe_support == ProbeSupport::Unsupported && use_fallback {
            sleep(within / 2).await;
            report.outcome = Outcome::Ignored;
        } else if behavior.probe_support != ProbeSupport::Supported {
            sleep(within).await;
            report.outcome = Outcome::Failed(format!("no answer within {within:?}"));
        }
    }
    let _ = reply.send(report); // The monitor may have given up.
}
