//! Runs one configured server without a daemon, for `xy connect --direct`.
//!
//! No daemon is contacted, started or needed. A daemon that runs the same server has its own
//! process.

use std::process::Command;
use std::sync::Arc;

use xy_config::settings::{Limits, ProcessSettings, ServerKind, ServerSettings};
use xy_config::{BrokenServers, LoadedConfig, Paths};
use xy_protocol::control::quoted;
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{ServerName, Transport};
use xy_supervisor::launch::direct;

use crate::check;
use crate::daemon::nearest;
use crate::limits;

/// A configured server that can be run directly.
#[derive(Debug)]
pub struct Direct {
    settings: Arc<ServerSettings>,
}

/// The exit of the server, as a shell reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectOutcome {
    /// The exit code, or 128 plus the signal that ended the server.
    pub exit: u8,
}

/// The reason why a server was not run.
#[derive(Debug)]
pub struct NotRun {
    /// The error.
    pub error: CallError,
    /// The exit code to use instead of the error's own, if the program could not be started.
    pub exit: Option<u8>,
}

impl From<CallError> for NotRun {
    fn from(error: CallError) -> Self {
        Self { error, exit: None }
    }
}

impl Direct {
    /// Reads the files and finds the server. Errors in the files of other servers are ignored.
    pub fn find(paths: &Paths, name: &str) -> Result<Self, CallError> {
        let loaded = xy_config::load(paths, &limits::supported());
        let found =
            loaded.settings.servers.get(name).filter(|_| loaded.broken != BrokenServers::All);
        match found {
            Some(settings) => {
                process_of(settings)?;
                Ok(Self { settings: settings.clone() })
            }
            None => Err(not_run(paths, &loaded, name)),
        }
    }

    /// Returns a note about limits in the server's file that are not enforced without a daemon.
    pub fn note(&self) -> Option<String> {
        let Limits { memory, pids, .. } = self.settings.process()?.limits;
        let memory = memory.map(|_| {
            if cfg!(target_os = "linux") {
                "`memory` limits each of its processes separately"
            } else {
                "`memory` is not limited"
            }
        });
        let pids = pids.map(|_| "`pids` is not limited");
        let all: Vec<&str> = memory.into_iter().chain(pids).collect();
        (!all.is_empty()).then(|| format!("without a daemon, {}", all.join(" and ")))
    }

    /// Runs the server until all its processes have ended. The caller must have no other thread.
    /// `above` is the pid of the process that supervises this one, if any.
    pub fn run(&self, above: Option<u32>) -> Result<DirectOutcome, NotRun> {
        let process = process_of(&self.settings)?;
        let ended = direct::run(&self.settings, process, above).map_err(|it| {
            let message = format!("server `{}` did not start", self.settings.name);
            let error = CallError::new(ErrorKind::SpawnFailed, message).cause(it.fault.message);
            let error = match it.fault.hint {
                Some(hint) => error.hint(hint),
                None => error,
            };
            NotRun { error, exit: Some(it.exit) }
        })?;
        report_exit(&ended, self.settings.name.as_str()).map_err(NotRun::from)
    }
}

/// Runs `command`, another xy process that runs the server `name`, and ends its processes should it
/// be killed. The caller must have no other thread.
pub fn supervise(command: &mut Command, name: &str) -> Result<DirectOutcome, CallError> {
    let ended = direct::supervise_child(command).map_err(|cause| {
        let message = format!("server `{}` did not start", quoted(name));
        CallError::new(ErrorKind::SpawnFailed, message).cause(cause)
    })?;
    report_exit(&ended, name)
}

fn report_exit(ended: &direct::DirectExit, name: &str) -> Result<DirectOutcome, CallError> {
    if ended.survivors.is_empty() {
        return Ok(DirectOutcome { exit: exit_of(ended) });
    }
    let pids: Vec<String> = ended.survivors.iter().map(ToString::to_string).collect();
    let message = format!("server `{}` has ended, but some of its processes survive", quoted(name));
    let cause = format!("these processes survive SIGKILL: {}", pids.join(", "));
    Err(CallError::new(ErrorKind::Internal, message).cause(cause))
}

fn exit_of(ended: &direct::DirectExit) -> u8 {
    let code = ended.code.or_else(|| Some(128 + ended.signal?)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

/// Returns the process settings of a server that speaks over stdin and stdout.
fn process_of(settings: &ServerSettings) -> Result<&ProcessSettings, CallError> {
    let name = &settings.name;
    let refused = |cause: &str, alternative: &str| {
        let message = format!("server `{name}` cannot be run without a daemon");
        CallError::new(ErrorKind::NotAllowed, message)
            .cause(cause)
            .hint(format!("use `xy connect --server {name}`, {alternative}"))
    };
    let by_http = "which connects to it over HTTP";
    let process = match &settings.kind {
        ServerKind::Process(process) => process,
        ServerKind::Remote(_) => {
            return Err(refused("it has a `url`, so there is nothing to run", by_http));
        }
        ServerKind::Container(_) => {
            let cause = "it is a container, and only a daemon can clean up after its engine";
            return Err(refused(cause, "which lets the daemon run it"));
        }
    };
    match process.transport {
        Transport::Stdio => Ok(process),
        Transport::Http | Transport::Sse => {
            let cause = "it listens on a port, and --direct is for servers that speak over stdio";
            Err(refused(cause, by_http))
        }
    }
}

fn not_run(paths: &Paths, loaded: &LoadedConfig, name: &str) -> CallError {
    let message = format!("server `{}` was not run", quoted(name));
    let file = paths.shown(&paths.servers_dir.join(format!("{name}.kdl")));
    if let Some(refused) = check::refusal_of(loaded, &message, &file) {
        return refused;
    }
    let hint = match nearest(name, loaded.settings.servers.keys().map(ServerName::as_str)) {
        Some(known) => format!("did you mean `{known}`?"),
        None => format!("--direct runs what a file in {} describes", paths.servers_dir.display()),
    };
    let message = format!("no server named `{}`", quoted(name));
    CallError::new(ErrorKind::ServerNotFound, message).hint(hint)
}
