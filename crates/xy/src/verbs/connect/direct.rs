//! `xy connect --direct`: one server without the daemon, its stdio that of the client.

use std::process::Command;

use xy_config::Paths;
use xy_config::load::supervision;
use xy_config::supervision::{Supervision, SwitchedOff};
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
    match (switched_off()?, &args.server) {
        (Some(_), Some(server)) => Ok(Some(server)),
        (Some(by), None) => Err(not_one(&by)),
        (None, _) => Ok(None),
    }
}

/// Who has switched supervision off, if anybody has.
fn switched_off() -> Result<Option<SwitchedOff>, Failure> {
    let supervision = supervision(&Paths::from_env()?).map_err(|problem| {
        let message = "the client was not connected: the environment has an error";
        CallError::new(ErrorKind::ConfigInvalid, message).problems(vec![(&problem).into()])
    })?;
    Ok(match supervision {
        Supervision::On => None,
        Supervision::Off(by) => Some(by),
    })
}

fn not_one(by: &SwitchedOff) -> Failure {
    let error = CallError::new(ErrorKind::NotAllowed, "there is no daemon to connect to")
        .cause(format!("{}, so each server is run by its client", by.cause()))
        .hint(format!("name one with `xy connect --server NAME`, or {}", by.remedy()));
    Failure::Failed(error)
}

/// Runs the server; the exit code is its own.
///
/// Where its death can be seen, this process only looks after another that does: then either
/// of them may be killed, and nothing is left.
pub(super) fn run(args: &Args, name: &str, output: &mut Output) -> Result<(), Failure> {
    let found = Direct::find(&Paths::from_env()?, name);
    let off = if args.direct.is_none() { switched_off()? } else { None };
    let direct = found.map_err(|error| match (error.kind, &off) {
        // What it would take is what was switched off.
        (ErrorKind::NotAllowed, Some(by)) => {
            error.hint(format!("{}, so that a daemon speaks with it", by.remedy()))
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
