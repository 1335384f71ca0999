//! Starts a server: its pipes, its environment, its clean slate.

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
pub(crate) struct Started {
    pub(crate) leader: Leader,
    /// Our ends of its stdin and stdout, when the daemon speaks with it.
    pub(crate) passed: Option<Passed>,
    /// Our ends of its stdout and stderr, where the log gets them.
    pub(crate) logged: [Option<OwnedFd>; 2],
}

/// Our end of stdin, and of stdout if the daemon reads that; copies for the daemon in the
/// same order.
#[derive(Debug)]
pub(crate) struct Passed {
    pub(crate) to_stdin: OwnedFd,
    pub(crate) from_stdout: Option<OwnedFd>,
    pub(crate) given: Vec<OwnedFd>,
}

/// Starts the server, or says why it cannot be.
pub(crate) fn start(order: &StartOrder) -> Result<Started, StartFault> {
    let mut command = command(order)?;
    let mut pipes = Pipes::make(order).map_err(|cause| failed("make its pipes", &cause))?;
    command.stdin(pipes.stdin.take().map_or_else(Stdio::null, Stdio::from));
    command.stdout(pipes.stdout).stderr(pipes.stderr);
    let leader = spawn(command, order)?;
    Ok(Started { leader, passed: pipes.passed, logged: pipes.logged })
}

/// Starts the server with our own stdin, stdout and stderr.
pub(crate) fn start_with_our_stdio(order: &StartOrder) -> Result<Leader, StartFault> {
    spawn(command(order)?, order)
}

/// Starts a command that knows its stdio. With the command, the server's ends of its pipes
/// are gone here, and so are the doors of its groups.
fn spawn(mut command: Command, order: &StartOrder) -> Result<Leader, StartFault> {
    let groups = Groups::make(&order.limits)?;
    let doors = groups.doors().map_err(|cause| limit_fault(&cause))?;
    sys::start_clean(&mut command, sys::Confine::new(order, doors));
    let child = command.spawn().map_err(|cause| match sys::confine_error(&cause) {
        Some(cause) => limit_fault(&cause),
        None => exec_fault(&cause),
    })?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    Ok(Leader::new(pid.expect("a child has a pid"), &order.life, groups))
}

/// The server's ends, and ours.
struct Pipes {
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: OwnedFd,
    passed: Option<Passed>,
    logged: [Option<OwnedFd>; 2],
}

impl Pipes {
    fn make(order: &StartOrder) -> io::Result<Self> {
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
        // The daemon gets this same description, so this is non-blocking there too.
        rustix::io::ioctl_fionbio(&to_stdin, true)?;
        let mut given = vec![to_stdin.try_clone()?.into()];
        let (from_stdout, logged) = if is_logged {
            (None, Some(from_stdout.into()))
        } else {
            given.push(from_stdout.try_clone()?.into());
            (Some(from_stdout.into()), None)
        };
        let passed = Some(Passed { to_stdin: to_stdin.into(), from_stdout, given });
        let logged = [logged, Some(from_stderr.into())];
        Ok(Self { stdin: Some(stdin.into()), stdout, stderr, passed, logged })
    }
}

fn command(order: &StartOrder) -> Result<Command, StartFault> {
    let folder = Path::new(order.working_dir.as_deref().unwrap_or("."));
    check_folder(folder)?;
    let program = program::find(&order.program, search_path(order), folder)?;
    let mut command = Command::new(program);
    command.arg0(&order.program).args(&order.args);
    if order.working_dir.is_some() {
        command.current_dir(folder);
    }
    for (name, _) in std::env::vars_os() {
        if name.as_bytes().starts_with(b"XY_") {
            command.env_remove(name);
        }
    }
    command.envs(order.env.iter().map(|(name, value)| (name, value)));
    Ok(command)
}

/// The PATH that the server itself will have.
fn search_path(order: &StartOrder) -> Option<OsString> {
    let given = order.env.iter().rfind(|(name, _)| name == "PATH");
    given.map(|(_, value)| value.into()).or_else(|| std::env::var_os("PATH"))
}

fn check_folder(folder: &Path) -> Result<(), StartFault> {
    let errno = match std::fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => Some(Errno::NOTDIR.raw_os_error()),
        Err(cause) => cause.raw_os_error(),
    };
    Err(StartFault { problem: Problem::NoWorkingDir, errno })
}

/// What an exec that failed means for a program that was found before.
fn exec_fault(cause: &io::Error) -> StartFault {
    match Errno::from_io_error(cause) {
        // It was there, so what is missing is its interpreter.
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

/// It must not run without its limits.
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
    fn an_error_of_exec_says_whether_the_program_or_the_system_is_at_fault() {
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
