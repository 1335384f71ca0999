//! `xy connect --direct`: one server without the daemon, its stdio that of the client.

use std::process::Command;
use xy_config::Paths;

use xy_config::environment::{SUPERVISOR_ENABLED, supervisor_enabled};
use xy_daemon::direct::{Direct, Ended, NotRun};
use xy_protocol::error::{CallError, ErrorKind};

use super::Args;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::render;

/// The server that is to be run without a daemon: by its flag, or because supervision is
/// switched off.
pub(super) fn wanted(args: &Args) -> Result<Option<&str>, Failure> {
    if let Some(server) = &args.direct {
        return Ok(Some(server));
    }
    let is_enabled = supervisor_enabled(|name| std::env::var_os(name)).map_err(|problem| {
        let message = "the client was not connected: the environment has an error";
        CallError::new(ErrorKind::ConfigInvalid, message).problems(vec![(&problem).into()])
    })?;
    match (is_enabled, &args.server) {
        (Some(false), Some(server)) => Ok(Some(server)),
        (Some(false), None) => Err(not_one()),
        (Some(true) | None, _) => Ok(None),
    }
}

fn not_one() -> Failure {
    let error = CallError::new(ErrorKind::NotAllowed, "there is no daemon to connect to")
        .cause(format!("{SUPERVISOR_ENABLED} is false, so each server is run by its client"))
        .hint(format!("name one with `xy connect --server NAME`, or unset {SUPERVISOR_ENABLED}"));
    Failure::Failed(error)
}

/// Runs the server; the exit code is its own.
///
/// Where its death can be seen, this process only looks after another that does: then either
/// of them may be killed, and nothing is left.
pub(super) fn run(args: &Args, name: &str, output: &mut Output) -> Result<(), Failure> {
    let found = Direct::find(&Paths::from_env()?, name);
    let direct = found.map_err(|error| match error.kind {
        // What it would take is what the variable forbids.
        ErrorKind::NotAllowed if args.direct.is_none() => {
            error.hint(format!("unset {SUPERVISOR_ENABLED}, so that a daemon speaks with it"))
        }
        _ => error,
    })?;
    if args.above.is_none() && cfg!(target_os = "linux") {
        return exit_with(xy_daemon::direct::look_after(&mut another(name)?, name)?);
    }
    if let Some(note) = direct.note() {
        output.tell(&format!("note: {note}\n"));
    }
    match direct.run(args.above) {
        Ok(ended) => exit_with(ended),
        Err(NotRun { error, exit: None }) => Err(Failure::Failed(error)),
        Err(NotRun { error, exit: Some(exit) }) => {
            output.tell(&render::error::render(&error));
            Err(Failure::Told(Exit::Other(exit)))
        }
    }
}

/// The same command, as one that is looked after by this process.
fn another(name: &str) -> Result<Command, Failure> {
    let us = std::env::current_exe()
        .map_err(|cause| Failure::internal("xy does not know where it is", cause))?;
    let mut command = Command::new(us);
    let above = std::process::id().to_string();
    command.args(["connect", "--direct", name, "--above", &above]);
    Ok(command)
}

fn exit_with(ended: Ended) -> Result<(), Failure> {
    match ended.exit {
        0 => Ok(()),
        code => Err(Failure::Told(Exit::Other(code))),
    }
}
