//! The seam behind which lives of servers are started, observed and stopped.
//!
//! A launcher returns at once and reports through [`LifeEvent`]s, so it never blocks the task
//! that holds the life. A [`LifeHandle`] is the task's handle of one life of an instance: after its
//! last event, its launcher holds no state of it. The launcher of containers is the crate
//! `xy-container`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use orphans::{Helper, Shims, new_life};
pub use reap::ReapReport;
pub use shim_link::{receive_flags, set_cloexec};
pub use shim_process::until_reaped;
use tokio::sync::{mpsc, watch};
use xy_config::settings::{EngineKind, ServerKind, ServerSettings};
pub use xy_shim::wire::{Confinement, Containment, EnforcedBy, Limit, LimitName};

use crate::instance_key::InstanceKey;
use crate::lifecycle::{Exit, LaunchFault};
use crate::logs::LogBook;
use crate::protocol::{Checkup, IdleStop};

pub mod adopt;
pub mod container_cli;
pub mod direct;
mod fault;
pub mod home;
mod limits;
mod orphans;
pub mod process;
mod process_runner;
pub mod protocol_link;
mod reap;
pub mod remote;
mod shim_link;
mod shim_process;

/// Capacity of the event channel. A life reports few events, so it does not fill up while its
/// task runs.
const EVENT_CAPACITY: usize = 16;

/// Capacity of the command channel. A stop, a final stop and a kill are sent once each, and rules
/// change rarely.
const COMMAND_CAPACITY: usize = 16;

/// Capacity of the checkup channel: the monitor has one checkup in flight.
const CHECKUP_CAPACITY: usize = 1;

/// Starts lives of instances.
pub trait Launch: Send + Sync + 'static {
    /// Starts a life. Its events report the outcome.
    fn launch(&self, order: LaunchOrder) -> LifeHandle;
}

/// The launchers of all server kinds.
pub struct Launchers {
    /// Launcher for processes of this machine.
    pub processes: Arc<dyn Launch>,
    /// Launcher for servers that run elsewhere.
    pub remotes: remote::RemoteLauncher,
    /// Launcher for containers.
    pub containers: Arc<dyn Launch>,
}

impl Launch for Launchers {
    fn launch(&self, order: LaunchOrder) -> LifeHandle {
        match order.settings.kind {
            ServerKind::Process(_) => self.processes.launch(order),
            ServerKind::Remote(_) => self.remotes.launch(order),
            ServerKind::Container(_) => self.containers.launch(order),
        }
    }
}

/// An order to start a life of an instance.
#[derive(Debug, Clone)]
pub struct LaunchOrder {
    /// Key of the instance.
    pub key: InstanceKey,
    /// Settings of its server.
    pub settings: Arc<ServerSettings>,
    /// Log that receives its output.
    pub logs: Arc<LogBook>,
    /// The first note of this life: see [`LifeHandle::notes`].
    pub note: Vec<u8>,
}

/// An event in one life of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LifeEvent {
    /// Its program runs.
    Launched {
        /// Process id of the leader of its processes.
        pid: u32,
    },
    /// Something it needs is being fetched, which may take long.
    Preparing(Progress),
    /// The protocol driver reports that the server is ready.
    Ready,
    /// The protocol driver cannot communicate with the server, for this reason.
    ProtocolError(String),
    /// As [`Self::ProtocolError`], during a probe that the server need not support.
    ProtocolErrorOnProbe(String),
    /// The gateway rejects the server, for this reason: it is stopped for good.
    Unusable(String),
    /// The gateway needs a new life, for this reason. This does not count as a failure.
    RestartRequired(String),
    /// No client uses it, so it may stop, for this reason. The gateway sends it no more requests.
    Idle(String),
    /// The remote server does not answer, for this reason. The last event.
    Unreachable(String),
    /// The remote server refuses the connection, for this reason, and xy cannot restart the server.
    /// The last event.
    Unrecoverable(String),
    /// The connection was closed as requested; a remote server may live on. The last event.
    Closed,
    /// It could not be started. The last event.
    LaunchFailed(LaunchFault),
    /// The container engine is absent or does not answer. The last event.
    EngineUnavailable(LaunchFault),
    /// It has exited, and all its output is in the log. The last event.
    Exited(Exit),
    /// As [`Self::Exited`], during a probe that the server need not support. The last event.
    ExitedOnProbe(Exit),
    /// Its exit is about to be reported, but these processes of it survived every signal.
    Survivors(Vec<u32>),
    /// No later daemon can adopt it: its lock or its socket could not be created.
    NotAdoptable,
    /// Its log cannot be written, for this reason; `None` once it can be written again.
    LogTrouble(Option<String>),
    /// How it is contained and limited. Precedes [`Self::Launched`].
    Confinement(Confinement),
    /// Its container. Precedes [`Self::Launched`].
    Container(Arc<ContainerInfo>),
}

/// How far the preparation of a life is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The activity, such as `pulling x:1`.
    pub what: String,
    /// Progress in percent, if it is known.
    pub percent: Option<u8>,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.percent {
            Some(percent) => write!(f, "{} {percent} %", self.what),
            None => f.write_str(&self.what),
        }
    }
}

/// The container of a life, as its engine knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerInfo {
    /// Kind of the engine.
    pub engine: EngineKind,
    /// Version of the engine, as it reports it.
    pub version: String,
    /// Socket of the engine.
    pub socket: PathBuf,
    /// Name of the container, for people.
    pub name: String,
    /// Id of the container at its engine.
    pub id: String,
    /// Whether its leader is a process of this machine rather than of a virtual machine of the
    /// engine. Only then can the process be inspected.
    pub is_here: bool,
    /// Whether it ends with this daemon, because its engine then closes its stdin.
    pub ends_with_daemon: bool,
}

/// A command to a life of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LifeCommand {
    /// Stop, gracefully at first.
    Stop {
        /// Time until the stop is forced.
        grace: Duration,
        /// No daemon will ask how it exited.
        for_good: bool,
        /// The server was found hung.
        is_hung: bool,
    },
    /// Replace the rules that apply while no daemon is attached.
    SetOrphanRules {
        /// How long to wait for another daemon.
        orphan_timeout: Duration,
        /// Time to stop in if no daemon attaches.
        grace: Duration,
    },
    /// Continue without this daemon: another one will adopt this life. The last command; this
    /// daemon receives no further events.
    HandOver,
    /// Stop by force.
    Kill,
}

/// The handle of one life of an instance, for its task. Dropping it stops the server.
#[derive(Debug)]
pub struct LifeHandle {
    /// Receives its events.
    pub events: mpsc::Receiver<LifeEvent>,
    /// Sends it commands.
    pub commands: mpsc::Sender<LifeCommand>,
    /// Note for a later daemon, should this one be killed. A command takes effect only after the
    /// notes that were sent before it.
    pub notes: watch::Sender<Vec<u8>>,
    /// Sends checkups to its protocol driver, if it has one.
    pub checkups: mpsc::Sender<Checkup>,
    /// Asks its protocol driver, if it has one, to stop it when it is idle.
    pub idle_stops: mpsc::Sender<IdleStop>,
    /// Set once its processes have ended. The last event may arrive later.
    pub end: ExitFlag,
}

/// A flag that the processes of a life have ended. It is set before the exit is reported, so
/// that a client that was told of the exit finds no living process.
#[derive(Debug, Clone, Default)]
pub struct ExitFlag(Arc<AtomicBool>);

impl ExitFlag {
    /// Sets the flag, for good.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns true once the flag is set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The launcher's ends of the channels of a [`LifeHandle`].
#[derive(Debug)]
pub struct LifeChannels {
    /// Sends events to the task.
    pub events: mpsc::Sender<LifeEvent>,
    /// Receives commands from the task.
    pub commands: mpsc::Receiver<LifeCommand>,
    /// The latest note.
    pub notes: watch::Receiver<Vec<u8>>,
    /// Receives checkups for the protocol driver. Closed once the handle is dropped.
    pub checkups: mpsc::Receiver<Checkup>,
    /// Receives requests to stop it if it is idle. Closed once the handle is dropped.
    pub idle_stops: mpsc::Receiver<IdleStop>,
    /// To be set when its processes have ended, before the exit is reported.
    pub end: ExitFlag,
}

impl LifeHandle {
    /// Creates the handle of a life, and the channel ends for its launcher.
    pub fn pair() -> (Self, LifeChannels) {
        let (event_sender, events) = mpsc::channel(EVENT_CAPACITY);
        let (commands, command_receiver) = mpsc::channel(COMMAND_CAPACITY);
        let (notes, note_receiver) = watch::channel(Vec::new());
        let (checkups, checkup_receiver) = mpsc::channel(CHECKUP_CAPACITY);
        let (idle_stops, idle_stop_receiver) = mpsc::channel(CHECKUP_CAPACITY);
        let channels = LifeChannels {
            events: event_sender,
            commands: command_receiver,
            notes: note_receiver,
            checkups: checkup_receiver,
            idle_stops: idle_stop_receiver,
            end: ExitFlag::default(),
        };
        let end = channels.end.clone();
        (Self { events, commands, notes, checkups, idle_stops, end }, channels)
    }
}
