//! Starts a server: pipes, environment, and a clean process state.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::process::Pid;

use crate::cgroup::Groups;
use crate::leader::Leader;
use crate::program;
use crate::sys;
use crate::wire::{Problem, StartFault, StartOrder, Stdout};

/// A server that has just been started.
#[derive(Debug)]
pub(crate) struct StartedServer {
    pub(crate) leader: Leader,
    /// The shim's ends of stdin and stdout, if the daemon talks to the server.
    pub(crate) passed: Option<PassedPipes>,
    /// The shim's ends of stdout and stderr, as far as they are logged.
    pub(crate) logged: [Option<OwnedFd>; 2],
}

/// The shim's end of stdin, and of stdout if the daemon reads it, with copies for the daemon in
/// that order.
#[derive(Debug)]
pub(crate) struct PassedPipes {
    pub(crate) to_stdin: OwnedFd,
    pub(crate) from_stdout: Option<OwnedFd>,
    pub(crate) for_daemon: Vec<OwnedFd>,
}

/// Starts the server.
pub(crate) fn start(order: &StartOrder) -> Result<StartedServer, StartFault> {
    let mut command = command(order)?;
    let mut pipes = Pipes::create(order).map_err(|cause| failed("create its pipes", &cause))?;
    command.stdin(pipes.stdin.take().map_or_else(Stdio::null, Stdio::from));
    command.stdout(pipes.stdout).stderr(pipes.stderr);
    let leader = spawn(command, order)?;
    Ok(StartedServer { leader, passed: pipes.passed, logged: pipes.logged })
}

/// Starts the server with this process's stdin, stdout and stderr.
pub(crate) fn start_with_own_stdio(order: &StartOrder) -> Result<Leader, StartFault> {
    spawn(command(order)?, order)
}

/// Spawns a command whose stdio is set.
///
/// Dropping the command closes the server's ends of the pipes and the open cgroup files here.
fn spawn(mut command: Command, order: &StartOrder) -> Result<Leader, StartFault> {
    let groups = Groups::create(&order.limits)?;
    let entries = groups.open_required().map_err(|cause| limit_fault(&cause))?;
    sys::prepare_child(&mut command, sys::ChildSetup::new(order, entries));
    let child = command.spawn().map_err(|cause| match sys::limit_error(&cause) {
        Some(cause) => limit_fault(&cause),
        None => exec_fault(&cause),
    })?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    Ok(Leader::new(pid.expect("a child has a pid"), &order.life, groups))
}

/// The server's ends of its pipes, and the shim's.
struct Pipes {
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: OwnedFd,
    passed: Option<PassedPipes>,
    logged: [Option<OwnedFd>; 2],
}

impl Pipes {
    fn create(order: &StartOrder) -> io::Result<Self> {
        let (from_stdout, stdout) = io::pipe()?;
        let (from_stderr, stderr) = io::pipe()?;
        rustix::io::ioctl_fionbio(&from_stdout, true)?;
        rustix::io::ioctl_fionbio(&from_stderr, true)?;
        let (stdout, stderr) = (stdout.into(), stderr.into());
        let is_logged = order.stdout == Stdout::Logged;
        if is_logged && !order.has_stdin {
            let logged = [Some(from_stdout.into()), Some(from_stderr.into())];
            return Ok(Self { stdin: None, stdout, stderr, passed: None, logged });
        }
        let (stdin, to_stdin) = io::pipe()?;
        // The daemon shares this open file description, so the pipe is non-blocking there too.
        rustix::io::ioctl_fionbio(&to_stdin, true)?;
        let mut for_daemon = vec![to_stdin.try_clone()?.into()];
        let (from_stdout, logged) = if is_logged {
            (None, Some(from_stdout.into()))
        } else {
            for_daemon.push(from_stdout.try_clone()?.into());
            (Some(from_stdout.into()), None)
        };
        let passed = Some(PassedPipes { to_stdin: to_stdin.into(), from_stdout, for_daemon });
        let logged = [logged, Some(from_stderr.into())];
        Ok(Self { stdin: Some(stdin.into()), stdout, stderr, passed, logged })
    }
}

fn command(order: &StartOrder) -> Result<Command, StartFault> {
    let dir = Path::new(order.working_dir.as_deref().unwrap_or("."));
    check_dir(dir)?;
    let program = program::find(&order.program, search_path(order), dir)?;
    let mut command = Command::new(program);
    command.arg0(&order.program).args(&order.args);
    if order.working_dir.is_some() {
        command.current_dir(dir);
    }
    for (name, _) in std::env::vars_os() {
        if name.as_bytes().starts_with(b"XY_") {
            command.env_remove(name);
        }
    }
    command.envs(order.env.iter().map(|(name, value)| (name, value)));
    Ok(command)
}

/// Returns the PATH that the server will have.
fn search_path(order: &StartOrder) -> Option<OsString> {
    let for_daemon = order.env.iter().rfind(|(name, _)| name == "PATH");
    for_daemon.map(|(_, value)| value.into()).or_else(|| std::env::var_os("PATH"))
}

fn check_dir(dir: &Path) -> Result<(), StartFault> {
    let errno = match std::fs::metadata(dir) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => Some(Errno::NOTDIR.raw_os_error()),
        Err(cause) => cause.raw_os_error(),
    };
    Err(StartFault { problem: Problem::NoWorkingDir, errno })
}

/// Returns the fault for a failed exec of a program that was found before.
fn exec_fault(cause: &io::Error) -> StartFault {
    match Errno::from_io_error(cause) {
        // The file exists, so its interpreter is missing.
        Some(
            Errno::NOENT
            | Errno::ACCESS
            | Errno::PERM
            | Errno::NOEXEC
            | Errno::ISDIR
            | Errno::NOTDIR
            | Errno::LOOP
            | Errno::INVAL,
        ) => StartFault { problem: Problem::NotExecutable, errno: cause.raw_os_error() },
        _ => failed("start its program", cause),
    }
}

/// Returns the fault for limits that could not be applied: a server never runs without them.
fn limit_fault(cause: &io::Error) -> StartFault {
    failed("apply its limits", cause)
}

pub(crate) fn failed(step: &str, cause: &io::Error) -> StartFault {
    let what = format!("could not {step}: {cause}");
    StartFault { problem: Problem::System { what }, errno: cause.raw_os_error() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exec_errors_blame_the_program_or_the_system() {
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::NOEXEC] {
            let fault = exec_fault(&errno.into());
            assert_eq!(fault.problem, Problem::NotExecutable);
            assert_eq!(fault.errno, Some(errno.raw_os_error()));
        }
        for errno in [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::TOOBIG] {
            let fault = exec_fault(&errno.into());
            assert!(matches!(fault.problem, Problem::System { .. }));
            assert_eq!(fault.errno, Some(errno.raw_os_error()));
        }
    }
}
