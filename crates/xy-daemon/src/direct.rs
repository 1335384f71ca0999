//! One server of the files, run without a daemon: what `xy connect --direct` does.
//!
//! No daemon is asked, started or needed; one that runs the same server has its own copy.

use std::process::Command;
use std::sync::Arc;

use xy_config::settings::{Limits, ProcessSettings, ServerKind, ServerSettings};
use xy_config::{Broken, Loaded, Paths};
use xy_protocol::control::quoted;
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{ServerName, Transport};
use xy_supervisor::launch::direct;

use crate::check;
use crate::daemon::nearest;
use crate::limits;

/// A server that can be run: found, and of the right kind.
#[derive(Debug)]
pub struct Direct {
    settings: Arc<ServerSettings>,
}

/// How it ended, as a shell would say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code, or 128 and the signal that ended it.
    pub exit: u8,
}

/// Why it was not run, and what to exit with, where that is not what the error says.
#[derive(Debug)]
pub struct NotRun {
    /// The error.
    pub error: CallError,
    /// The exit code of a program that could not be started.
    pub exit: Option<u8>,
}

impl From<CallError> for NotRun {
    fn from(error: CallError) -> Self {
        Self { error, exit: None }
    }
}

impl Direct {
    /// Reads the files and finds the server. Mistakes in the files of others do not matter.
    pub fn find(paths: &Paths, name: &str) -> Result<Self, CallError> {
        let loaded = xy_config::load(paths, &limits::kept());
        let found = loaded.settings.servers.get(name).filter(|_| loaded.broken != Broken::Every);
        match found {
            Some(settings) => {
                process_of(settings)?;
                Ok(Self { settings: settings.clone() })
            }
            None => Err(why_not(paths, &loaded, name)),
        }
    }

    /// What of its file does not hold without a daemon, for whoever reads stderr.
    pub fn note(&self) -> Option<String> {
        let Limits { memory, pids, .. } = self.settings.process()?.limits;
        let memory = memory.map(|_| {
            if cfg!(target_os = "linux") {
                "`memory` holds for each of its processes alone"
            } else {
                "`memory` is not limited"
            }
        });
        let pids = pids.map(|_| "`pids` is not limited");
        let all: Vec<&str> = memory.into_iter().chain(pids).collect();
        (!all.is_empty()).then(|| format!("without a daemon, {}", all.join(" and ")))
    }

    /// Runs it until nothing is left of it. There must be no other thread. `above` is the
    /// process that looks after this one, if there is one.
    pub fn run(&self, above: Option<u32>) -> Result<Ended, NotRun> {
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
        judge(&ended, self.settings.name.as_str()).map_err(NotRun::from)
    }
}

/// Has another of us run the server `name`, by this command, and ends what that leaves should
/// it be killed. There must be no other thread.
pub fn look_after(command: &mut Command, name: &str) -> Result<Ended, CallError> {
    let ended = direct::look_after(command).map_err(|cause| {
        let message = format!("server `{}` did not start", quoted(name));
        CallError::new(ErrorKind::SpawnFailed, message).cause(cause)
    })?;
    judge(&ended, name)
}

fn judge(ended: &direct::Ended, name: &str) -> Result<Ended, CallError> {
    if ended.survivors.is_empty() {
        return Ok(Ended { exit: exit_of(ended) });
    }
    let pids: Vec<String> = ended.survivors.iter().map(ToString::to_string).collect();
    let message = format!("server `{}` has ended, but not all of it", quoted(name));
    let cause = format!("these processes would not die: {}", pids.join(", "));
    Err(CallError::new(ErrorKind::Internal, message).cause(cause))
}

fn exit_of(ended: &direct::Ended) -> u8 {
    let code = ended.code.or_else(|| Some(128 + ended.signal?)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

/// The process of a server that speaks over its stdin and stdout.
fn process_of(settings: &ServerSettings) -> Result<&ProcessSettings, CallError> {
    let name = &settings.name;
    let refused = |cause: &str, how: &str| {
        let message = format!("server `{name}` cannot be run without a daemon");
        CallError::new(ErrorKind::NotAllowed, message)
            .cause(cause)
            .hint(format!("use `xy connect --server {name}`, {how}"))
    };
    let by_http = "which speaks with it over HTTP";
    let process = match &settings.kind {
        ServerKind::Process(process) => process,
        ServerKind::Remote(_) => {
            return Err(refused("it has a `url`, so there is nothing to run", by_http));
        }
        ServerKind::Container(_) => {
            let cause = "it is a container, and only a daemon can clear up after its engine";
            return Err(refused(cause, "for which the daemon runs it"));
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

fn why_not(paths: &Paths, loaded: &Loaded, name: &str) -> CallError {
    let asked = format!("server `{}` was not run", quoted(name));
    let file = paths.shown(&paths.servers_dir.join(format!("{name}.kdl")));
    if let Some(refused) = check::refusal_of(loaded, &asked, &file) {
        return refused;
    }
    let hint = match nearest(name, loaded.settings.servers.keys().map(ServerName::as_str)) {
        Some(known) => format!("did you mean `{known}`?"),
        None => format!("--direct runs what a file in {} describes", paths.servers_dir.display()),
    };
    let message = format!("no server named `{}`", quoted(name));
    CallError::new(ErrorKind::ServerNotFound, message).hint(hint)
}
