//! `xy connect`: the command that an MCP client starts to talk to the daemon over stdio.
//!
//! Two blocking threads copy lines, one in each direction, and the main thread waits for the end.
//! stdout carries only the protocol. The bridge owns no server, so several may run at once, and a
//! bridge may be killed or may outlive the daemon. See `docs/design/connect.md`.

mod batch;
mod bridge;
mod connector;
mod direct;
mod downward;
mod environment;
mod ledger;
mod lines;
mod recording;
mod upward;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use xy_config::Paths;
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::handshake::{HANDSHAKE_VERSION, Hello, View};

use crate::clock::Deadline;
use crate::failure::Failure;
use crate::output::Output;
use bridge::Bridge;
use connector::{Connector, Limits};
use downward::Downward;
use recording::Recorder;
use upward::Upward;

/// How long to wait for pending responses after the client has closed stdin.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait for a client's first request, to answer it with the reason of a failure.
const INFORM_TIMEOUT: Duration = Duration::from_millis(500);

/// Capacity of the event channel; more than the threads ever send.
const MAX_EVENTS: usize = 16;

/// Connect an MCP client to the daemon, over stdin and stdout
///
/// This is the command to put in an MCP client's settings. Starts the daemon if none runs, and
/// reconnects if the daemon is restarted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy connect\n  xy connect --profile work\n  \
    xy connect --server github\n  xy connect --direct github\n  \
    xy connect --record /tmp/session.jsonl")]
pub(crate) struct Args {
    /// Profile to show to the client
    #[arg(long, value_name = "NAME", default_value = "default", conflicts_with = "server")]
    profile: String,
    /// Show only this server, with its own tool names
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Run this server without the daemon, for this client only
    ///
    /// The server uses the stdin, stdout and stderr of this command, and its exit code becomes
    /// that of this command. The server is not restarted, shared or logged, and all its processes
    /// end with this command.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["profile", "server", "no_start"])]
    direct: Option<String>,
    /// Process id of the parent that supervises this process.
    #[arg(long, hide = true, value_name = "PID", requires = "direct")]
    above: Option<u32>,
    /// Fail instead of starting a daemon if none runs
    #[arg(long)]
    no_start: bool,
    /// Record all messages with their times in a new file, for a bug report
    ///
    /// Secrets are masked. An existing file is never overwritten. If FILE is a folder, each start
    /// creates a new file in it.
    #[arg(long, value_name = "FILE", conflicts_with = "direct")]
    record: Option<PathBuf>,
    /// How long to wait for a daemon.
    #[arg(long, hide = true, value_name = "DURATION", value_parser = humantime::parse_duration)]
    within: Option<Duration>,
}

/// An event that a thread reports to the main thread.
#[derive(Debug)]
enum SessionEvent {
    /// The client has closed stdin; its last messages may still be queued.
    StdinClosed,
    /// All messages of the client are handled; responses may still arrive.
    ClientDone,
    /// The client was told why it gets no responses.
    ClientInformed,
    /// The session has ended.
    Ended {
        result: Result<(), Failure>,
        /// True if the client need not be told the reason any more.
        is_informed: bool,
    },
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    if let Some(server) = direct::direct_server(args)? {
        if args.record.is_some() {
            return Err(recording_impossible().into());
        }
        return direct::run(args, server, output);
    }
    let paths = Paths::from_env()?;
    let record = |path: &PathBuf| Recorder::start(path, paths.clone());
    let recorder = args.record.as_ref().map(record).transpose()?;
    let not_begun = |cause| Failure::internal("the bridge could not be started", cause);
    let bridge = Arc::new(Bridge::new(recorder).map_err(not_begun)?);
    let limits = Limits { may_start: !args.no_start, within: args.within };
    let (event_sender, events) = sync_channel(MAX_EVENTS);
    let downward = Downward::new(Arc::clone(&bridge), Connector::new(paths, limits), hello(args));
    let upward = Upward::new(Arc::clone(&bridge), event_sender.clone());
    spawn("downward", move || downward.run(&event_sender)).map_err(not_begun)?;
    spawn("upward", move || upward.run()).map_err(not_begun)?;
    let result = wait_for_end(&events, &bridge);
    if let Some(recorder) = bridge.recorder() {
        recorder.finish(output);
    }
    result
}

/// Returns the error for `--record` without supervision: messages then bypass this process.
fn recording_impossible() -> CallError {
    CallError::new(ErrorKind::NotAllowed, "the session cannot be recorded")
        .cause("supervision is switched off, so the client talks to the server directly")
        .hint("leave out `--record`, or switch supervision on")
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    // The threads are not joined: one may be blocked by a client that has stopped reading.
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

fn hello(args: &Args) -> Hello {
    let view = match &args.server {
        Some(server) => View::Server(server.clone()),
        None => View::Profile(args.profile.clone()),
    };
    let client = rustix::process::getppid();
    let client_pid = client.and_then(|pid| pid.as_raw_nonzero().get().try_into().ok());
    Hello { protocol: HANDSHAKE_VERSION, view, client_pid }
}

fn wait_for_end(events: &Receiver<SessionEvent>, bridge: &Arc<Bridge>) -> Result<(), Failure> {
    let mut deadline = Deadline::never();
    loop {
        match next(events, deadline) {
            Some(SessionEvent::StdinClosed | SessionEvent::ClientDone)
                if deadline.remaining().is_none() =>
            {
                deadline = Deadline::after(DRAIN_TIMEOUT);
            }
            Some(
                SessionEvent::StdinClosed | SessionEvent::ClientDone | SessionEvent::ClientInformed,
            ) => {}
            Some(SessionEvent::Ended { result, is_informed }) => {
                if !is_informed {
                    wait_until_informed(events);
                }
                return result;
            }
            // The remaining responses are late.
            None => return give_up(events, bridge),
        }
    }
}

/// Ends a session whose last responses are late. Each open request gets an error response.
fn give_up(events: &Receiver<SessionEvent>, bridge: &Arc<Bridge>) -> Result<(), Failure> {
    let (why, result) = if bridge.is_connected() {
        (drain_timed_out(), Ok(()))
    } else {
        (daemon_missing(), Err(Failure::Unreachable(daemon_missing())))
    };
    bridge.note("bridge gave up", Some(&why.to_string()));
    // On a separate thread, as writing blocks if the client does not read any more.
    let farewell_bridge = Arc::clone(bridge);
    let (done, is_done) = sync_channel(1);
    let farewell = spawn("farewell", move || {
        let (to_client, _) = farewell_bridge.close(why);
        let _ = farewell_bridge.send_to_client(&to_client); // The client may have closed stdout.
        let _ = done.send(()); // The receiver is gone if this took too long.
    });
    if farewell.is_ok() {
        let _ = is_done.recv_timeout(INFORM_TIMEOUT); // A client that reads has read it by then.
    }
    // The upward thread still holds messages that no daemon has taken, and rejects them now.
    let deadline = Deadline::after(INFORM_TIMEOUT);
    while !bridge.has_left() && next(events, deadline).is_some() {}
    result
}

/// Returns the error for requests that the daemon did not answer in time.
fn drain_timed_out() -> CallError {
    let waited = DRAIN_TIMEOUT.as_secs();
    let what = format!("outcome unknown: no answer came within {waited} s of the end of stdin");
    CallError::new(ErrorKind::OutcomeUnknown, what)
        .hint("it may have been executed: check before repeating it, and keep stdin open longer")
}

/// Returns the error for a lost daemon that was not replaced in time.
fn daemon_missing() -> CallError {
    let waited = DRAIN_TIMEOUT.as_secs();
    CallError::new(ErrorKind::NotRunning, "no daemon is running")
        .cause(format!("none was started within {waited} s of the end of stdin"))
        .hint("start one with `xy daemon --detach`")
}

/// Waits until the client has received the reason of a failure. A client that has not sent a
/// request yet will soon, and shows the error response to the user.
fn wait_until_informed(events: &Receiver<SessionEvent>) {
    let deadline = Deadline::after(INFORM_TIMEOUT);
    while let Some(event) = next(events, deadline) {
        if matches!(event, SessionEvent::ClientInformed | SessionEvent::ClientDone) {
            return;
        }
    }
}

fn next(events: &Receiver<SessionEvent>, deadline: Deadline) -> Option<SessionEvent> {
    match deadline.remaining() {
        None => events.recv().ok(),
        Some(left) => events.recv_timeout(left).ok(),
    }
}
