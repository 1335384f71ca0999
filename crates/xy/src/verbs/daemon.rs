//! `xy daemon`: runs the daemon in the foreground or in the background.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::value::to_raw_value;
use xy_config::{LimitSupport, Paths};
use xy_daemon::{LogTo, Options, Strictness};
use xy_ipc::Client;
use xy_protocol::control::{CheckReport, Info, Request, Severity};
use xy_protocol::error::{CallError, ErrorKind};

use crate::args::{Json, McpJson};
use crate::clock::Deadline;
use crate::failure::{Exit, Failure};
use crate::interrupts::readable;
use crate::launch::{START_TIMEOUT, StartOutcome, query_info, this_program, wait_until_ready};
use crate::output::Output;
use crate::render::{error, safe_text};

/// Maximum number of bytes to keep of a failed daemon's stderr.
const MAX_STDERR: usize = 64 * 1024;

/// Run the daemon that keeps the servers alive
///
/// Starts all configured servers. Runs in the foreground and logs to stderr; with --detach, runs
/// in the background, logs to the state folder, and keeps running when the terminal is closed.
///
/// In the foreground, an invalid file is fatal: the daemon reports it and exits with 3. In the
/// background, or as a service of systemd or launchd, the other servers start, and the server of
/// the invalid file is shown as failed. `strict` in `xy.kdl`, --strict and --lenient override this.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  xy daemon\n  xy daemon --detach\n  xy daemon --detach --replace\n  \
        xy daemon --mcp-json ~/.cursor/mcp.json"
)]
pub(crate) struct Args {
    /// Run in the background; return when the daemon is ready
    #[arg(long)]
    detach: bool,
    /// Take over from the running daemon without stopping its servers
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    bad_files: BadFiles,
    #[command(flatten)]
    mcp_json: McpJson,
    /// Set by `--detach` in the background process.
    #[arg(long, hide = true, conflicts_with = "detach")]
    detached: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

/// The flags for invalid files.
#[derive(Debug, Clone, Copy, clap::Args)]
struct BadFiles {
    /// Do not start if a file is invalid
    #[arg(long, conflicts_with = "lenient")]
    strict: bool,
    /// Start all servers except those of invalid files
    #[arg(long)]
    lenient: bool,
}

impl BadFiles {
    /// Returns true for strict and false for lenient; `None` if neither was given.
    fn flag(self) -> Option<bool> {
        (self.strict || self.lenient).then_some(self.strict)
    }
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let paths = Paths::from_env()?.with_mcp_json(args.mcp_json.files());
    if args.replace && !args.detached {
        warn_of_files_not_inherited(&paths, output);
    }
    if args.detach {
        return detach(&paths, args, output);
    }
    let log = if args.detached {
        detach_from_terminal();
        LogTo::File(paths.daemon_log.clone())
    } else {
        LogTo::Stderr
    };
    let has_terminal = io::stdin().is_terminal() || io::stderr().is_terminal();
    let is_service = is_login_service(|name| std::env::var_os(name), has_terminal);
    let is_foreground = !args.detached && !is_service;
    let strictness = Strictness { flag: args.bad_files.flag(), is_foreground };
    Ok(xy_daemon::run(Options { paths, log, replace: args.replace, strictness })?)
}

/// Returns true if systemd or launchd has started this process, so that no user reads its stderr.
/// The variables alone do not prove it: a shell in a terminal of the desktop inherits them.
fn is_login_service(variable: impl Fn(&str) -> Option<OsString>, has_terminal: bool) -> bool {
    let is_set = |name| variable(name).is_some_and(|value| !value.is_empty() && value != "0");
    !has_terminal && (is_set("INVOCATION_ID") || is_set("XPC_SERVICE_NAME"))
}

/// Warns about files that the replaced daemon reads and the new one does not, as their servers
/// are stopped. `--mcp-json` is not passed on to the next daemon.
fn warn_of_files_not_inherited(paths: &Paths, output: &mut Output) {
    let Some(other) =
        query_info(&paths.control_socket_candidates(), Deadline::after(START_TIMEOUT))
    else {
        return; // No daemon to replace; the new daemon handles that itself.
    };
    if other.mcp_json.is_empty() {
        return;
    }
    let read = xy_config::load(paths, &LimitSupport::any()).settings.mcp_json;
    if let Some(note) = format_lost_files(&other.mcp_json, &read) {
        output.print_stderr(&note);
    }
}

/// Formats a note about the files of the replaced daemon that are not in `read`.
fn format_lost_files(told: &[String], read: &[PathBuf]) -> Option<String> {
    let is_read = |file: &String| read.iter().any(|it| it.display().to_string() == *file);
    let lost: Vec<_> =
        told.iter().filter(|file| !is_read(file)).map(|file| safe_text(file)).collect();
    if lost.is_empty() {
        return None;
    }
    let listed = lost.join("\n  ");
    Some(format!(
        "note: the replaced daemon was started with `--mcp-json`; the new daemon does not read\n\
         \x20 {listed}\n  and stops their servers\n  \
         hint: to keep them, pass `--mcp-json FILE` again, or add the file to `xy.kdl` as \
         `mcp-json`\n"
    ))
}

/// Starts a new session and leaves the current folder, which may be unmounted later.
fn detach_from_terminal() {
    // Fails only for a group leader, and `detach` does not start one.
    let _ = rustix::process::setsid();
    let home = std::env::home_dir().unwrap_or_else(|| "/".into());
    let _ = std::env::set_current_dir(home).or_else(|_| std::env::set_current_dir("/"));
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"xy"); // Otherwise `ps` shows `exe`.
}

fn detach(paths: &Paths, args: &Args, output: &mut Output) -> Result<(), Failure> {
    let json = args.json;
    paths.check_socket()?;
    if !args.replace
        && let Some(other) =
            query_info(&paths.control_socket_candidates(), Deadline::after(START_TIMEOUT))
    {
        return Err(already_running(&other).into());
    }
    let not_started = |cause| Failure::internal("the daemon did not start", cause);
    let mut child = spawn(args, &paths.mcp_json).map_err(not_started)?;
    let mut stderr = StderrCapture::of(&mut child);
    let spinner = output.spinner("starting the daemon");
    let came = wait_until_ready(&mut child, &paths.control_socket_candidates(), |moment| {
        stderr.read_for(moment);
        true
    })
    .map_err(not_started)?;
    drop(spinner);
    if let StartOutcome::Ready(_) = came {
        report_bad_files(&paths.control_socket, output);
    }
    match came {
        StartOutcome::Ready(info) if json.json => print_json(&info, output),
        StartOutcome::Ready(info) => {
            let log = paths.daemon_log.display();
            output.print(&format!("xy daemon started, pid {}\nits log is {log}\n", info.pid))
        }
        StartOutcome::Exited(status) => Err(exit_failure(status, stderr, json, output)),
        StartOutcome::TimedOut | StartOutcome::Interrupted => {
            Err(start_timed_out(child.id(), paths).into())
        }
    }
}

/// Reports invalid files that the daemon runs without. A failed query is ignored, as the daemon
/// has just answered.
fn report_bad_files(socket: &Path, output: &mut Output) {
    let Ok(mut client) = Client::connect(socket) else { return };
    let _ = client.set_timeout(Some(START_TIMEOUT)); // Without a limit, it still answers soon.
    let Ok(report) = client.call_as::<CheckReport>(&Request::Check) else { return };
    if report.valid {
        return;
    }
    let errors = report.problems.iter().filter(|it| it.severity == Severity::Error);
    let errors: String = errors.map(error::problem).collect();
    output.print_stderr(&errors);
    output.print_stderr(&error::warning(
        "the daemon runs without these files: correct them, then run `xy reload`",
    ));
}

fn spawn(args: &Args, mcp_json: &[PathBuf]) -> io::Result<Child> {
    let files = mcp_json.iter().flat_map(|file| [OsStr::new("--mcp-json"), file.as_os_str()]);
    this_program()?
        .args(["daemon", "--detached"])
        .args(args.replace.then_some("--replace"))
        .args(args.bad_files.flag().map(|strict| if strict { "--strict" } else { "--lenient" }))
        .args(files)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
}

fn print_json(info: &Info, output: &mut Output) -> Result<(), Failure> {
    let json = to_raw_value(info)
        .map_err(|cause| Failure::internal("the answer could not be written", cause))?;
    output.json(&json)
}

fn already_running(other: &Info) -> CallError {
    CallError::new(ErrorKind::AlreadyRunning, "a daemon is already running")
        .cause(format!("process {} listens at {}", other.pid, other.control_socket))
        .hint("see `xy info`; end it with `xy shutdown`, or take over with `--replace`")
}

fn start_timed_out(pid: u32, paths: &Paths) -> CallError {
    let waited = START_TIMEOUT.as_secs();
    CallError::new(ErrorKind::TimedOut, "the daemon has started but does not answer")
        .cause(format!("process {pid} did not answer at its socket within {waited} s"))
        .hint(format!("it is still running: see {}", paths.daemon_log.display()))
}

/// Reports the daemon's stderr, and returns its exit code.
fn exit_failure(
    status: ExitStatus,
    mut stderr: StderrCapture,
    json: Json,
    output: &mut Output,
) -> Failure {
    stderr.drain();
    let exit = match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(code) if code > 0 => Exit::Other(code),
        _ => Exit::Failed,
    };
    if json.json || stderr.text.is_empty() {
        let said = String::from_utf8_lossy(&stderr.text);
        let cause = if said.is_empty() { status.to_string() } else { said.trim().to_owned() };
        let error = CallError::new(ErrorKind::SpawnFailed, "the daemon did not start").cause(cause);
        if json.json {
            let _ = output.json_error(&error); // If it cannot be written, the exit code remains.
        } else {
            output.print_stderr(&crate::render::error::render(&error));
        }
    } else {
        output.write_stderr(&String::from_utf8_lossy(&stderr.text));
    }
    Failure::Reported(exit)
}

/// The captured stderr of a daemon, which it uses until it has opened its log.
#[derive(Debug)]
pub(super) struct StderrCapture {
    source: Option<ChildStderr>,
    pub(super) text: Vec<u8>,
}

impl StderrCapture {
    pub(super) fn of(child: &mut Child) -> Self {
        Self { source: child.stderr.take(), text: Vec::new() }
    }

    /// Reads for at most `moment`.
    pub(super) fn read_for(&mut self, moment: Duration) {
        let Some(source) = &mut self.source else {
            readable(&[], moment);
            return;
        };
        if !readable(&[source.as_fd()], moment)[0] {
            return;
        }
        let mut chunk = [0; 4096];
        match source.read(&mut chunk) {
            Ok(0) | Err(_) => self.source = None,
            Ok(count) => {
                let room = MAX_STDERR.saturating_sub(self.text.len());
                self.text.extend_from_slice(&chunk[..count.min(room)]);
            }
        }
    }

    /// Reads what is available. Does not wait for the end, as a child of the daemon may hold the
    /// other end of the pipe.
    pub(super) fn drain(&mut self) {
        while let Some(source) = &self.source
            && readable(&[source.as_fd()], Duration::ZERO)[0]
        {
            self.read_for(Duration::ZERO);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_service_is_recognised_by_its_variables_without_a_terminal() {
        type Variables = &'static [(&'static str, &'static str)];
        const ID: (&str, &str) = ("INVOCATION_ID", "0123456789abcdef0123456789abcdef");
        let table: [(Variables, bool, bool); 9] = [
            (&[], false, false),
            (&[ID], false, true),
            (&[ID], true, false),
            (&[("INVOCATION_ID", "")], false, false),
            (&[("XPC_SERVICE_NAME", "com.example.xy")], false, true),
            (&[("XPC_SERVICE_NAME", "com.example.xy")], true, false),
            (&[("XPC_SERVICE_NAME", "0")], false, false),
            (&[("XPC_SERVICE_NAME", "0"), ID], false, true),
            (&[("HOME", "/home/user")], false, false),
        ];
        for (variables, has_terminal, expected) in table {
            let variable = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            };
            let found = is_login_service(variable, has_terminal);
            assert_eq!(found, expected, "{variables:?}, terminal: {has_terminal}");
        }
    }

    #[test]
    fn only_lost_files_are_reported() {
        let told = ["/a/mcp.json", "/b c/mcp.json", "/d/mcp.json"].map(str::to_owned);
        let read = [PathBuf::from("/d/mcp.json"), PathBuf::from("/e/mcp.json")];
        insta::assert_snapshot!(format_lost_files(&told, &read).unwrap(), @"
        note: the replaced daemon was started with `--mcp-json`; the new daemon does not read
          /a/mcp.json
          /b c/mcp.json
          and stops their servers
          hint: to keep them, pass `--mcp-json FILE` again, or add the file to `xy.kdl` as `mcp-json`
        ");
        assert_eq!(format_lost_files(&told[2..], &read), None);
        assert_eq!(format_lost_files(&[], &read), None);
    }
}
