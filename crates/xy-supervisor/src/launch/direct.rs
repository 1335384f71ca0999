//! Running one server without a daemon, for the exclusive use of one client.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::process::Command;

use xy_config::settings::{ProcessSettings, ServerSettings};
use xy_shim::direct::DirectOrder;
use xy_shim::env_mark::MARK;
use xy_shim::wire::{self, StartFault};

pub use xy_shim::direct::DirectExit;

use super::fault::explain;
use crate::lifecycle::LaunchFault;

/// Exit code of a shell for a program that does not exist.
const NOT_FOUND: u8 = 127;

/// Exit code of a shell for a program that cannot be executed.
const NOT_EXECUTABLE: u8 = 126;

/// Why a server could not be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectFault {
    /// The explanation for the user.
    pub fault: LaunchFault,
    /// The code that a shell would exit with.
    pub exit: u8,
}

/// Runs a server with this process's stdin, stdout and stderr, until none of its processes is left.
///
/// Must be called while there is no other thread, and no open descriptor that is still needed.
/// `above` is the process that supervises this one, if there is one.
pub fn run(
    settings: &ServerSettings,
    process: &ProcessSettings,
    above: Option<u32>,
) -> Result<DirectExit, Box<DirectFault>> {
    let order = DirectOrder { watcher: above, ..order(settings, process) };
    xy_shim::direct::run(&order).map_err(|fault| {
        let exit = exit_of(&fault);
        Box::new(DirectFault { fault: explain(fault, settings), exit })
    })
}

/// Runs the server in another process of this program, started by `command`, and cleans up after it
/// should it be killed. Must be called while there is no other thread.
pub fn supervise_child(command: &mut Command) -> Result<DirectExit, String> {
    xy_shim::direct::supervise(command).map_err(|fault| match fault.problem {
        wire::Problem::System { what } => what,
        other => format!("{other:?}"),
    })
}

fn order(settings: &ServerSettings, process: &ProcessSettings) -> DirectOrder {
    // This mark belongs to no home, so no daemon takes these processes for orphans of its own.
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
        watcher: None,
    }
}

fn exit_of(fault: &StartFault) -> u8 {
    match fault.problem {
        wire::Problem::ProgramNotFound => NOT_FOUND,
        wire::Problem::NotExecutable => NOT_EXECUTABLE,
        _ => 1,
    }
}
