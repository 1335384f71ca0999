//! For tests: settings, and a launcher that plays its lives from a script.

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
use xy_shim::wire::{Confined, PROTOCOL, StatusReport};

use crate::health::{Habit, Outcome};
use crate::instance::InstanceKey;
use crate::launch::{Ask, Instance, InstanceEnds, Launch, LaunchOrder, News};
use crate::lifecycle::{Exit, LaunchFault};
use crate::speak::{Checkup, Seen};
use crate::wait::until;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Rules without jitter, so that times are exact.
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

/// What its process is, to be changed.
pub(crate) fn process_of(settings: &mut ServerSettings) -> &mut ProcessSettings {
    match &mut settings.kind {
        ServerKind::Process(process) => process,
        ServerKind::Remote(_) | ServerKind::Container(_) => panic!("it has no process"),
    }
}

/// A server that lives somewhere else.
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

/// A server that is a container.
pub(crate) fn container_settings(name: &str) -> ServerSettings {
    let container = ContainerSettings::of_image("example.com/x:1".into());
    ServerSettings { kind: ServerKind::Container(Box::new(container)), ..settings(name) }
}

/// What a shim says of a server that has run for 50 s, and of which a note is 10 s old.
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
        confined: Confined::default(),
        logged: None,
    }
}

/// A program that is not there.
pub(crate) fn permanent_fault() -> LaunchFault {
    LaunchFault {
        permanent: true,
        message: "program `x` is not on PATH".into(),
        hint: Some("install it".into()),
    }
}

/// A machine that has no room just now.
/// What would run it is away.
pub(crate) fn absence() -> LaunchFault {
    let hint = Some("start the engine".into());
    LaunchFault { permanent: false, message: "no engine listens".into(), hint }
}

pub(crate) fn transient_fault() -> LaunchFault {
    LaunchFault { permanent: false, message: "out of memory".into(), hint: None }
}

/// How one life goes.
#[derive(Debug, Clone)]
pub(crate) enum Script {
    /// Lives until stopped, which takes `stops_in`.
    Lives { stops_in: Duration },
    /// Dies by itself.
    Dies { after: Duration, exit: Exit },
    /// Cannot be started, which shows after a while.
    Fails { after: Duration, fault: LaunchFault },
    /// Never gets as far as running, until stopped.
    Hangs,
    /// Ignores a stop; only force ends it.
    Stubborn,
    /// Its launcher disappears without a last word.
    Vanishes { after: Duration },
    /// Lives, but its log cannot be written until `after`.
    Complains { after: Duration },
}

/// How a living server bears being probed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bearing {
    /// Whether it answers, or would answer something else; nothing, if that is unknown.
    pub(crate) habit: Habit,
    /// Calls that somebody waits for.
    pub(crate) calls: u32,
    /// Whether it says something else all the time.
    pub(crate) speaks: bool,
    /// Whether it writes something all the time.
    pub(crate) writes: bool,
}

/// Plays one script per life, the last one again and again.
#[derive(Debug, Clone)]
pub(crate) struct FakeLauncher {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug)]
struct Shared {
    scripts: VecDeque<Script>,
    /// For servers that have their own.
    own_scripts: HashMap<String, VecDeque<Script>>,
    launches: Vec<(Instant, LaunchOrder)>,
    asks: Vec<Ask>,
    living: HashMap<InstanceKey, usize>,
    most_living: usize,
    /// `None` while nobody speaks with any of them.
    bearing: Option<Bearing>,
    /// How often they were asked something, and how often looked at.
    probes: u64,
    looks: u64,
}

impl FakeLauncher {
    pub(crate) fn plays(scripts: impl IntoIterator<Item = Script>) -> Self {
        let shared = Shared {
            scripts: scripts.into_iter().collect(),
            own_scripts: HashMap::new(),
            launches: Vec::new(),
            asks: Vec::new(),
            living: HashMap::new(),
            most_living: 0,
            bearing: None,
            probes: 0,
            looks: 0,
        };
        Self { shared: Arc::new(Mutex::new(shared)) }
    }

    /// The same launcher, with other scripts for one server.
    pub(crate) fn and_for(self, server: &str, scripts: impl IntoIterator<Item = Script>) -> Self {
        let scripts = scripts.into_iter().collect();
        self.with(|shared| shared.own_scripts.insert(server.to_owned(), scripts));
        self
    }

    pub(crate) fn each_lives_for(after: Duration) -> Self {
        Self::plays([Script::Dies { after, exit: Exit::code(1) }])
    }

    pub(crate) fn each_lives_on() -> Self {
        Self::each_stops_in(Duration::from_millis(10))
    }

    pub(crate) fn each_stops_in(stops_in: Duration) -> Self {
        Self::plays([Script::Lives { stops_in }])
    }

    fn with<T>(&self, look: impl FnOnce(&mut Shared) -> T) -> T {
        look(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn launches(&self) -> usize {
        self.with(|shared| shared.launches.len())
    }

    pub(crate) fn launched_at(&self) -> Vec<Instant> {
        self.with(|shared| shared.launches.iter().map(|(at, _)| *at).collect())
    }

    /// The servers, in the order of their launches.
    pub(crate) fn launched(&self) -> Vec<String> {
        self.with(|shared| shared.launches.iter().map(|(_, order)| order.key.to_string()).collect())
    }

    pub(crate) fn last_settings(&self) -> Arc<ServerSettings> {
        self.with(|shared| shared.launches.last().unwrap().1.settings.clone())
    }

    /// Everything that lives were asked, in order.
    pub(crate) fn asks(&self) -> Vec<Ask> {
        self.with(|shared| shared.asks.clone())
    }

    /// From now on they bear it like this.
    pub(crate) fn bears(&self, bearing: Bearing) {
        self.with(|shared| shared.bearing = Some(bearing));
    }

    /// Stops all talk with them: no probe can be made from now on.
    pub(crate) fn stop_speaking(&self) {
        self.with(|shared| shared.bearing = None);
    }

    /// How often they were asked something.
    pub(crate) fn probes(&self) -> u64 {
        self.with(|shared| shared.probes)
    }

    /// How many live now, of all servers.
    pub(crate) fn living(&self) -> usize {
        self.with(|shared| shared.living.values().sum())
    }

    /// How many of any one server ever lived at the same time.
    pub(crate) fn most_living(&self) -> usize {
        self.with(|shared| shared.most_living)
    }
}

impl Shared {
    fn begin(&mut self, order: LaunchOrder) -> (Script, u32) {
        let living = self.living.entry(order.key.clone()).or_default();
        *living += 1;
        self.most_living = self.most_living.max(*living);
        let scripts =
            self.own_scripts.get_mut(order.key.server.as_str()).unwrap_or(&mut self.scripts);
        let script = match scripts.len() {
            1 => scripts[0].clone(),
            _ => scripts.pop_front().unwrap(),
        };
        self.launches.push((Instant::now(), order));
        (script, u32::try_from(self.launches.len()).unwrap())
    }

    /// What is seen of one that is looked at, or asked; and how it bears that.
    fn check(&mut self, is_asked: bool) -> Option<(Seen, Bearing)> {
        let bearing = self.bearing?;
        self.looks += 1;
        self.probes += u64::from(is_asked);
        let grows = |is_so: bool| if is_so { self.looks } else { 0 };
        let outcome = Outcome::NotMade("it was not asked".to_owned());
        let (messages, reads) = (grows(bearing.speaks), grows(bearing.writes));
        let seen = Seen { outcome, calls: bearing.calls, messages, reads, idle_for: None };
        Some((seen, bearing))
    }

    fn end(&mut self, key: &InstanceKey) {
        *self.living.get_mut(key).unwrap() -= 1;
    }
}

impl Launch for FakeLauncher {
    /// The pid of a life is its number among all launches, from 1.
    fn launch(&self, order: LaunchOrder) -> Instance {
        let (instance, ends) = Instance::pair();
        let InstanceEnds { news, asks, notes: _notes, checkups, rests: _rests, end: _end } = ends;
        let key = order.key.clone();
        let (script, pid) = self.with(|shared| shared.begin(order));
        let mut stage = Stage { launcher: self.clone(), pid, news, asks, checkups: Some(checkups) };
        tokio::spawn(async move {
            let last = stage.play(script).await;
            stage.launcher.with(|shared| shared.end(&key));
            if let Some(last) = last {
                let _ = stage.news.send(last).await; // Nobody may hold this life any more.
            }
        });
        instance
    }
}

/// Where one life is played.
struct Stage {
    launcher: FakeLauncher,
    pid: u32,
    news: mpsc::Sender<News>,
    asks: mpsc::Receiver<Ask>,
    checkups: Option<mpsc::Receiver<Checkup>>,
}

const KILLED: Exit = Exit { signal: Some(9), ..Exit::UNSEEN };

impl Stage {
    /// Plays it to its end; answers with the last news, unless there is none.
    async fn play(&mut self, script: Script) -> Option<News> {
        let exit = match script {
            Script::Fails { after, fault } => {
                sleep(after).await;
                return Some(News::LaunchFailed(fault));
            }
            Script::Hangs => {
                self.hear().await;
                KILLED
            }
            Script::Lives { stops_in } => self.live(None, Exit::code(0), Some(stops_in)).await,
            Script::Dies { after, exit } => {
                self.live(Some(after), exit, Some(Duration::ZERO)).await
            }
            Script::Stubborn => self.live(None, Exit::code(0), None).await,
            Script::Vanishes { after } => {
                self.live(Some(after), Exit::UNSEEN, Some(Duration::ZERO)).await;
                return None;
            }
            Script::Complains { after } => {
                self.tell(News::LogTrouble(Some("disk full".into()))).await;
                sleep(after).await;
                self.tell(News::LogTrouble(None)).await;
                self.live(None, Exit::code(0), Some(Duration::ZERO)).await
            }
        };
        Some(News::Exited(exit))
    }

    /// Runs until it dies, obeys a stop if it ever does, or is killed.
    async fn live(&mut self, dies: Option<Duration>, exit: Exit, stops: Option<Duration>) -> Exit {
        let dies_at = dies.map(|after| Instant::now() + after);
        let mut checkups = self.checkups.take().unwrap();
        self.tell(News::Launched { pid: self.pid }).await;
        self.tell(News::Ready).await;
        loop {
            let ask = tokio::select! {
                () = until(dies_at) => return exit,
                Some(checkup) = checkups.recv() => {
                    tokio::spawn(bear(self.launcher.clone(), checkup));
                    continue;
                }
                ask = self.hear() => ask,
            };
            match (ask, stops) {
                (Some(Ask::Kill | Ask::LetGo) | None, _) => return KILLED,
                (Some(Ask::Stop { .. }), Some(takes)) => {
                    sleep(takes).await;
                    return Exit::code(0);
                }
                (Some(Ask::Stop { .. }), None) | (Some(Ask::Rules { .. }), _) => {}
            }
        }
    }

    async fn hear(&mut self) -> Option<Ask> {
        let ask = self.asks.recv().await;
        self.launcher.with(|shared| shared.asks.extend(ask));
        ask
    }

    async fn tell(&self, news: News) {
        let _ = self.news.send(news).await; // Nobody may hold this life any more.
    }
}

/// Says how a server is, as whoever speaks with it would.
async fn bear(launcher: FakeLauncher, Checkup { within, is_in_doubt, reply }: Checkup) {
    let Some((mut seen, bearing)) = launcher.with(|it| it.check(within.is_some())) else { return };
    if let Some(within) = within {
        seen.outcome = Outcome::Answered;
        if bearing.habit == Habit::Ignores && is_in_doubt {
            sleep(within / 2).await;
            seen.outcome = Outcome::Ignored;
        } else if bearing.habit != Habit::Answers {
            sleep(within).await;
            seen.outcome = Outcome::Failed(format!("no answer within {within:?}"));
        }
    }
    let _ = reply.send(seen); // Nobody may want to know any more.
}
