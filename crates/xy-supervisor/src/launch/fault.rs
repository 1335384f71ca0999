//! Explanations of failed starts, for the user. Pure.

use std::path::Path;

use xy_config::settings::ServerSettings;
use xy_shim::wire::{self, StartFault};

use crate::lifecycle::LaunchFault;

/// Returns true if the same attempt may succeed a little later.
pub(super) fn is_transient(errno: Option<i32>) -> bool {
    use rustix::io::Errno;
    let transient = [
        Errno::AGAIN,
        Errno::NOMEM,
        Errno::MFILE,
        Errno::NFILE,
        Errno::INTR,
        Errno::TXTBSY,
        Errno::IO,
        Errno::NOSPC,
        Errno::BUSY,
    ];
    errno.is_some_and(|errno| transient.iter().any(|known| known.raw_os_error() == errno))
}

/// Explains a fault to the user.
pub(super) fn explain(fault: StartFault, settings: &ServerSettings) -> LaunchFault {
    let process = settings.process();
    let program = process.map_or("", |process| &process.command);
    let working_dir = process.and_then(|process| process.working_dir.as_deref());
    let source = &settings.source;
    let place = format!("{}:{}", source.file.display(), source.command_line);
    let is_path = program.contains('/');
    let (message, hint) = match fault.problem {
        wire::Problem::ProgramNotFound if is_path => {
            (format!("`{program}` does not exist"), Some(format!("correct `command` at {place}")))
        }
        wire::Problem::ProgramNotFound => (
            format!("program `{program}` is not on PATH"),
            Some(format!("install it, or give its full path as `command` at {place}")),
        ),
        wire::Problem::NotExecutable => (
            format!("`{program}` cannot be executed"),
            Some(format!("make it executable, or correct `command` at {place}")),
        ),
        wire::Problem::NoWorkingDir => (
            format!(
                "its working-dir `{}` is not a folder",
                working_dir.unwrap_or(Path::new("")).display()
            ),
            Some(format!("create it, or correct `working-dir` in {}", source.file.display())),
        ),
        wire::Problem::LimitNotKept { limit, why } => (
            format!("its limit `{limit}` cannot be enforced: {why}"),
            Some(format!("correct `limits` in {}", source.file.display())),
        ),
        wire::Problem::Protocol { expected } => (
            format!("its shim speaks version {expected}, the daemon {}", wire::PROTOCOL),
            Some("restart the daemon".into()),
        ),
        wire::Problem::System { what } => (what, None),
    };
    LaunchFault { permanent: !is_transient(fault.errno), message, hint }
}
