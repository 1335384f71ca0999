//! `xy connect --direct`: runs one server without the daemon, on the client's stdio.

use std::process::Command;

use xy_config::Paths;
use xy_config::load::supervision;
use xy_config::supervision::{DisabledBy, Supervision};
use xy_daemon::direct::{Direct, DirectOutcome, NotRun};
use xy_protocol::error::{CallError, ErrorKind};

use super::Args;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::render;

/// Returns the server to run without a daemon: because of `--direct`, or because supervision is
/// switched off.
pub(super) fn direct_server(args: &Args) -> Result<Option<&str>, Failure> {
    if let Some(server) = &args.direct {
        return Ok(Some(server));
    }
    match (switched_off()?, &args.server) {
        (Some(_), Some(server)) => Ok(Some(server)),
        (Some(by), None) => Err(server_required(&by)),
        (None, _) => Ok(None),
    }
}

/// Returns the setting that switches supervision off, if there is one.
fn switched_off() -> Result<Option<DisabledBy>, Failure> {
    let supervision = supervision(&Paths::from_env()?).map_err(|problem| {
        let message = "the client was not connected: the environment has an error";
        CallError::new(ErrorKind::ConfigInvalid, message).problems(vec![(&problem).into()])
    })?;
    Ok(match supervision {
        Supervision::On => None,
        Supervision::Off(by) => Some(by),
    })
}

fn server_required(by: &DisabledBy) -> Failure {
    let error = CallError::new(ErrorKind::NotAllowed, "there is no daemon to connect to")
        .cause(format!("{}, so each server is run by its client", by.cause()))
        .hint(format!("name one with `xy connect --server NAME`, or {}", by.remedy()));
    Failure::Failed(error)
}

/// Runs the server, and exits with its exit code.
///
/// On Linux, this process supervises a second one that runs the server. If either is killed, no
/// process is left behind.
pub(super) fn run(args: &Args, name: &str, output: &mut Output) -> Result<(), Failure> {
    let found = Direct::find(&Paths::from_env()?, name);
    let off = if args.direct.is_none() { switched_off()? } else { None };
    let direct = found.map_err(|error| match (error.kind, &off) {
        // The server needs a daemon, which is switched off.
        (ErrorKind::NotAllowed, Some(by)) => {
            error.hint(format!("{}, so that a daemon runs it", by.remedy()))
        }
        _ => error,
    })?;
    if args.above.is_none() && cfg!(target_os = "linux") {
        return exit_with(xy_daemon::direct::supervise(&mut supervised_command(name)?, name)?);
    }
    if let Some(note) = direct.note() {
        output.print_stderr(&format!("note: {note}\n"));
    }
    match direct.run(args.above) {
        Ok(ended) => exit_with(ended),
        Err(NotRun { error, exit: None }) => Err(Failure::Failed(error)),
        Err(NotRun { error, exit: Some(exit) }) => {
            output.print_stderr(&render::error::render(&error));
            Err(Failure::Reported(Exit::Other(exit)))
        }
    }
}

/// Returns the same command, to be supervised by this process.
fn supervised_command(name: &str) -> Result<Command, Failure> {
    let program = std::env::current_exe()
        .map_err(|cause| Failure::internal("xy does not know where it is", cause))?;
    let mut command = Command::new(program);
    let above = std::process::id().to_string();
    command.args(["connect", "--direct", name, "--above", &above]);
    Ok(command)
}

fn exit_with(ended: DirectOutcome) -> Result<(), Failure> {
    match ended.exit {
        0 => Ok(()),
        code => Err(Failure::Reported(Exit::Other(code))),
    }
}
