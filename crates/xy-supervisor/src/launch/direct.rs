//! One server without a daemon, for a client that has it to itself.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::process::Command;

use xy_config::settings::{ProcessSettings, ServerSettings};
use xy_shim::direct::DirectOrder;
use xy_shim::marked::MARK;
use xy_shim::wire::{self, StartFault};

pub use xy_shim::direct::Ended;

use super::fault::explain;
use crate::lifecycle::LaunchFault;

/// What a shell says of a program that is not there.
const NOT_FOUND: u8 = 127;

/// What a shell says of a program that cannot be executed.
const NOT_EXECUTABLE: u8 = 126;

/// Why a server could not be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectFault {
    /// In words for whoever wrote the file.
    pub fault: LaunchFault,
    /// What a shell would exit with.
    pub exit: u8,
}

/// Runs a server with our own stdin, stdout and stderr, until nothing is left of it.
///
/// To be called where there is no other thread, and nothing open that is still needed.
/// `above` is the process that looks after this one, if there is one.
pub fn run(
    settings: &ServerSettings,
    process: &ProcessSettings,
    above: Option<u32>,
) -> Result<Ended, Box<DirectFault>> {
    let order = DirectOrder { above, ..order(settings, process) };
    xy_shim::direct::run(&order).map_err(|fault| {
        let exit = exit_of(&fault);
        Box::new(DirectFault { fault: explain(fault, settings), exit })
    })
}

/// Has another of us run the server, by this command, and ends what that leaves should it be
/// killed. The same must hold here: no other thread.
pub fn look_after(command: &mut Command) -> Result<Ended, String> {
    xy_shim::direct::look_after(command).map_err(|fault| match fault.problem {
        wire::Problem::System { what } => what,
        other => format!("{other:?}"),
    })
}

fn order(settings: &ServerSettings, process: &ProcessSettings) -> DirectOrder {
    // The mark of no home: no daemon takes these processes for what it has lost.
    let life = format!("direct-{:016x}", RandomState::new().build_hasher().finish());
    let mut env: Vec<_> =
        process.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    env.push(("XY_SERVER".into(), settings.name.to_string()));
    env.push((MARK.into(), life.clone()));
    DirectOrder {
        program: process.command.clone(),
        args: process.args.clone(),
        env,
        working_dir: process.working_dir.as_ref().map(|dir| dir.to_string_lossy().into_owned()),
        nofile: process.limits.nofile,
        memory: process.limits.memory.filter(|_| cfg!(target_os = "linux")),
        grace: settings.rules.stop.grace,
        life,
        above: None,
    }
}

fn exit_of(fault: &StartFault) -> u8 {
    match fault.problem {
        wire::Problem::ProgramNotFound => NOT_FOUND,
        wire::Problem::NotExecutable => NOT_EXECUTABLE,
        _ => 1,
    }
}
