//! The seam between the supervisor and the driver that speaks a protocol with servers.
//!
//! The supervisor knows no protocol. It hands the driver a [`Connection`] for each life of a
//! server: the ends of its pipes, or the information that it listens on an endpoint. The driver
//! reports [`DriverEvent`]s, such as that the server is ready, and receives [`DriverCommand`]s.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use xy_config::settings::ServerSettings;

use crate::health::Outcome;
use crate::instance_key::InstanceKey;
use crate::lifecycle::Exit;

mod log_only;

pub use log_only::LogOnlyDriver;

/// Maximum number of events that wait for the supervisor; beyond it the driver waits.
pub(crate) const EVENT_QUEUE_CAPACITY: usize = 16;

/// Queue slots reserved for `Close`, `HandOver` and `Exited`, each sent at most once.
const RESERVED_COMMANDS: usize = 4;

/// Maximum number of commands that wait for the driver. Commands that may be repeated are sent
/// only while more than [`RESERVED_COMMANDS`] slots are free.
pub(crate) const COMMAND_QUEUE_CAPACITY: usize = RESERVED_COMMANDS + 4;

/// Sends a checkup to the driver. Drops it, and so its reply channel, if the queue is busy.
pub(crate) fn request_checkup(commands: &mpsc::Sender<DriverCommand>, checkup: Checkup) {
    send_if_room(commands, DriverCommand::Checkup(checkup));
}

/// Asks the driver to stop its server if it is idle. Drops the request if the queue is busy.
pub(crate) fn request_idle_stop(commands: &mpsc::Sender<DriverCommand>, idle_stop: IdleStop) {
    send_if_room(commands, DriverCommand::StopIfIdle(idle_stop));
}

fn send_if_room(commands: &mpsc::Sender<DriverCommand>, command: DriverCommand) {
    if commands.capacity() > RESERVED_COMMANDS {
        let _ = commands.try_send(command); // The driver may have hung up.
    }
}

/// Maximum characters of a reason.
const MAX_REASON_CHARS: usize = 500;

/// Returns the first line of a reason, cut to `MAX_REASON_CHARS`.
pub fn truncate_reason(reason: &str) -> String {
    reason.lines().next().unwrap_or_default().chars().take(MAX_REASON_CHARS).collect()
}

/// Speaks a protocol with servers.
pub trait ProtocolDriver: Send + Sync + 'static {
    /// Takes over the connection of a life that has begun. Must not block. Dropping the connection
    /// hangs up: then nothing reads the output of the server.
    fn drive(&self, connection: Connection);
}

/// The connection to one server, for one life of it.
#[derive(Debug)]
pub struct Connection {
    /// The instance.
    pub key: InstanceKey,
    /// The settings of the server.
    pub settings: Arc<ServerSettings>,
    /// The leader of the server's processes, if it has any on this machine.
    pub pid: Option<u32>,
    /// How the server is reached.
    pub io: ServerIo,
    /// The state that the driver of an earlier daemon left, if that daemon began this life.
    pub handover: Option<Handover>,
    /// Events for the supervisor.
    pub events: mpsc::Sender<DriverEvent>,
    /// Commands from the supervisor. Closed without a command if the supervisor lost the server.
    pub commands: mpsc::Receiver<DriverCommand>,
}

/// How a server is reached.
#[derive(Debug)]
pub enum ServerIo {
    /// Through its pipes.
    Pipes {
        /// The stdin of the server. Non-blocking.
        stdin: OwnedFd,
        /// The stdout of the server. Non-blocking.
        stdout: OwnedFd,
    },
    /// At the endpoint that its settings name.
    Endpoint,
}

/// The state that an earlier daemon's driver left.
#[derive(Debug, Default)]
pub struct Handover {
    /// The last [`DriverEvent::Note`]; empty if there was none.
    pub note: String,
    /// Output of the server that no daemon has processed. Comes before its stdout.
    pub unread: Vec<u8>,
}

/// An event that a driver reports to the supervisor.
#[derive(Debug)]
pub enum DriverEvent {
    /// The server has answered correctly: it is ready.
    Ready,
    /// The server violates the protocol, for this reason. It is stopped, which counts as a
    /// failure.
    ProtocolError(String),
    /// The remote server does not answer, for this reason. There is no process to end and no
    /// failure to count; it is tried again later.
    Unreachable(String),
    /// The server refuses every client, for this reason, until its configuration changes. It is
    /// given up.
    Unrecoverable(String),
    /// The server must not be used, for this reason, and a restart would not help. It is stopped
    /// and given up at once.
    Unusable(String),
    /// The driver has sent a request that the server need not support, to detect its protocol;
    /// `false` once that is over. If the server ends or falls silent meanwhile, it is restarted at
    /// once. The first such restart is not counted.
    Probing(bool),
    /// The driver needs a new life of the server, for this reason. The server is restarted at
    /// once, and nothing is counted.
    RestartRequired(String),
    /// The server is idle and may stop, for this reason. The driver sends it no more requests.
    Idle(String),
    /// The server has exited by itself, and has not answered this many calls of clients.
    UnansweredCalls(usize),
    /// The server has closed its stdout. Unless it ends soon, that is a protocol error.
    StdoutClosed,
    /// Output of the server that is not part of the protocol, for its log. One or several whole
    /// lines, without the last newline.
    UnparsedOutput(Vec<u8>),
    /// State for the driver of a later daemon; replaces the last one. A note that does not fit
    /// beside the supervisor's own (2 MiB in all) is dropped.
    Note(String),
    /// The driver is about to write a message, which is torn if the daemon is killed meanwhile.
    /// The shim's acknowledgement is sent back; only then may the driver write the first byte.
    /// If the sender is dropped, the shim is gone, and so is the server.
    WriteBegins(oneshot::Sender<()>),
    /// The message has been written completely.
    WriteEnds,
}

/// A command of the supervisor to a driver.
#[derive(Debug)]
pub enum DriverCommand {
    /// The server is being stopped: write nothing more and close stdin, but keep reading. A
    /// server that is adopted while it is being stopped receives this at once.
    Close {
        /// Whether the server was found hung. Its pending calls may hang its successor too.
        is_hung: bool,
    },
    /// Another daemon takes over the server: finish the message being written, close both pipes,
    /// and reply with the partial message read so far. Events sent before the reply are
    /// processed. Events sent after it, or after two seconds, are not.
    HandOver(oneshot::Sender<Vec<u8>>),
    /// The server has ended. This is the last command: read what is still in stdout, without
    /// waiting for more, and drop the connection, within two seconds.
    Exited(Exit),
    /// Report [`DriverEvent::Idle`] if the server is idle. Not the last command.
    StopIfIdle(IdleStop),
    /// Report the health of the server. Not the last command; a reply is optional.
    Checkup(Checkup),
}

/// A request to stop a server if it is idle.
#[derive(Debug)]
pub struct IdleStop {
    /// The reason, as the end of `it sleeps: `.
    pub why: String,
    /// Receives true if the server stops.
    pub reply: oneshot::Sender<bool>,
}

/// A request for the health of a server.
#[derive(Debug)]
pub struct Checkup {
    /// Time within which the server has to answer a probe; `None` sends no probe and only reports
    /// what is known.
    pub within: Option<Duration>,
    /// Whether to send a second kind of probe after half of the time, as the server may not
    /// support the first.
    pub use_fallback: bool,
    /// Receives the report.
    pub reply: oneshot::Sender<CheckupReport>,
}

/// A driver's report on the health of its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckupReport {
    /// The outcome of the probe.
    pub outcome: Outcome,
    /// Number of calls that a client waits for.
    pub calls: u32,
    /// Number of messages that the server has sent. Only meaningful compared with another report.
    pub messages: u64,
    /// Number of reads that returned output. Only meaningful compared with another report.
    pub reads: u64,
    /// How long the server has been idle; `None` while it is in use.
    pub idle_for: Option<Duration>,
}
