//! `xy daemon`: run the daemon, here or in the background.

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::value::to_raw_value;
use xy_config::{KeptLimits, Paths};
use xy_daemon::{LogTo, Options, Strictness};
use xy_ipc::Client;
use xy_protocol::control::{CheckReport, Info, Request, Severity};
use xy_protocol::error::{CallError, ErrorKind};

use crate::cli::{Json, McpJson};
use crate::clock::Deadline;
use crate::failure::{Exit, Failure};
use crate::interrupts::readable;
use crate::launch::{ANSWERS_WITHIN, Came, ask_who_it_is, this_program, until_it_answers};
use crate::output::Output;
use crate::render::{error, safe_text};

/// What is kept of a failed daemon's last words.
const MAX_LAST_WORDS: usize = 64 * 1024;

/// Run the daemon that keeps the servers alive
///
/// Runs in the foreground and logs to stderr, or with --detach in the background, where
/// it logs to the state folder and outlives the terminal. Starts every configured server.
///
/// In the foreground, a bad file is fatal: the daemon reports it and exits with 3. In the
/// background, the other servers start, and the server of a bad file has failed. `strict` in
/// `xy.kdl`, --strict and --lenient decide otherwise.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  xy daemon\n  xy daemon --detach\n  xy daemon --detach --replace\n  \
        xy daemon --mcp-json ~/.cursor/mcp.json"
)]
pub(crate) struct Args {
    /// Run in the background; return once the daemon answers
    #[arg(long)]
    detach: bool,
    /// Take over from the daemon that runs, without stopping its servers
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    bad_files: BadFiles,
    #[command(flatten)]
    mcp_json: McpJson,
    /// This is the process in the background.
    #[arg(long, hide = true, conflicts_with = "detach")]
    detached: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

/// Whether to start with bad files.
#[derive(Debug, Clone, Copy, clap::Args)]
struct BadFiles {
    /// Do not start with a bad file
    #[arg(long, conflicts_with = "lenient")]
    strict: bool,
    /// Start all servers but those of bad files
    #[arg(long)]
    lenient: bool,
}

impl BadFiles {
    /// Returns true for strict, false for lenient, if either was given.
    fn flag(self) -> Option<bool> {
        (self.strict || self.lenient).then_some(self.strict)
    }
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let paths = Paths::from_env()?.with_mcp_json(args.mcp_json.files());
    if args.replace && !args.detached {
        tell_what_is_not_inherited(&paths, output);
    }
    if args.detach {
        return detach(&paths, args, output);
    }
    let log = if args.detached {
        leave_the_terminal();
        LogTo::File(paths.daemon_log.clone())
    } else {
        LogTo::Stderr
    };
    let strictness = Strictness { flag: args.bad_files.flag(), is_watched: !args.detached };
    Ok(xy_daemon::run(Options { paths, log, replace: args.replace, strictness })?)
}

/// `--mcp-json` holds for one daemon. Whoever replaces one that has it loses servers, and has
/// to be told before.
fn tell_what_is_not_inherited(paths: &Paths, output: &mut Output) {
    let Some(other) = ask_who_it_is(&paths.control_places(), Deadline::after(ANSWERS_WITHIN))
    else {
        return; // There is nobody to replace, which the daemon itself finds out.
    };
    if other.mcp_json.is_empty() {
        return;
    }
    let read = xy_config::load(paths, &KeptLimits::any()).settings.mcp_json;
    if let Some(note) = not_inherited(&other.mcp_json, &read) {
        output.tell(&note);
    }
}

/// What to say of the files that the other daemon was told of, if this one reads `read`.
fn not_inherited(told: &[String], read: &[PathBuf]) -> Option<String> {
    let is_read = |file: &String| read.iter().any(|it| it.display().to_string() == *file);
    let lost: Vec<_> =
        told.iter().filter(|file| !is_read(file)).map(|file| safe_text(file)).collect();
    if lost.is_empty() {
        return None;
    }
    let listed = lost.join("\n  ");
    Some(format!(
        "note: only the daemon that is replaced was given `--mcp-json`; this one does not read\n\
         \x20 {listed}\n  and stops their servers\n  \
         hint: to keep them, give `--mcp-json FILE` again, or name the file in `xy.kdl` as \
         `mcp-json`\n"
    ))
}

/// A session of its own, and a folder that nobody unmounts.
fn leave_the_terminal() {
    // Only fails for a leader of a group, which `detach` does not start.
    let _ = rustix::process::setsid();
    let home = std::env::home_dir().unwrap_or_else(|| "/".into());
    let _ = std::env::set_current_dir(home).or_else(|_| std::env::set_current_dir("/"));
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"xy"); // Or `ps` would call it `exe`.
}

fn detach(paths: &Paths, args: &Args, output: &mut Output) -> Result<(), Failure> {
    let json = args.json;
    paths.check_socket()?;
    if !args.replace
        && let Some(other) = ask_who_it_is(&paths.control_places(), Deadline::after(ANSWERS_WITHIN))
    {
        return Err(already_there(&other).into());
    }
    let not_started = |cause| Failure::internal("the daemon did not start", cause);
    let mut child = spawn(args, &paths.mcp_json).map_err(not_started)?;
    let mut last_words = LastWords::of(&mut child);
    let spinner = output.spinner("starting the daemon");
    let came = until_it_answers(&mut child, &paths.control_places(), |moment| {
        last_words.listen(moment);
        true
    })
    .map_err(not_started)?;
    drop(spinner);
    if let Came::Answers(_) = came {
        tell_bad_files(&paths.control_socket, output);
    }
    match came {
        Came::Answers(info) if json.json => print_json(&info, output),
        Came::Answers(info) => {
            let log = paths.daemon_log.display();
            output.print(&format!("xy daemon started, pid {}\nits log is {log}\n", info.pid))
        }
        Came::Ended(status) => Err(ended(status, last_words, json, output)),
        Came::TooLate | Came::GivenUp => Err(too_late(child.id(), paths).into()),
    }
}

/// Reports the files that the daemon does without. Nothing is wrong if it cannot be asked: it
/// has just answered.
fn tell_bad_files(socket: &Path, output: &mut Output) {
    let Ok(mut client) = Client::connect(socket) else { return };
    let _ = client.answer_within(Some(ANSWERS_WITHIN)); // It answers soon in any case.
    let Ok(report) = client.call_as::<CheckReport>(&Request::Check) else { return };
    if report.valid {
        return;
    }
    let errors = report.problems.iter().filter(|it| it.severity == Severity::Error);
    let errors: String = errors.map(error::problem).collect();
    output.tell(&errors);
    output.tell(&error::warning(
        "the daemon runs without these files: correct them, then run `xy reload`",
    ));
}

fn spawn(args: &Args, mcp_json: &[PathBuf]) -> std::io::Result<Child> {
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

fn already_there(other: &Info) -> CallError {
    CallError::new(ErrorKind::AlreadyRunning, "a daemon is already running")
        .cause(format!("process {} listens at {}", other.pid, other.control_socket))
        .hint("see `xy info`; end it with `xy shutdown`, or take over with `--replace`")
}

fn too_late(pid: u32, paths: &Paths) -> CallError {
    let waited = ANSWERS_WITHIN.as_secs();
    CallError::new(ErrorKind::TimedOut, "the daemon has started but does not answer")
        .cause(format!("process {pid} said nothing at its socket within {waited} s"))
        .hint(format!("it still runs: see {}", paths.daemon_log.display()))
}

/// Hands on what the daemon said about itself, and its exit code.
fn ended(status: ExitStatus, mut words: LastWords, json: Json, output: &mut Output) -> Failure {
    words.drain();
    let exit = match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(code) if code > 0 => Exit::Other(code),
        _ => Exit::Failed,
    };
    if json.json || words.text.is_empty() {
        let said = String::from_utf8_lossy(&words.text);
        let cause = if said.is_empty() { status.to_string() } else { said.trim().to_owned() };
        let error = CallError::new(ErrorKind::SpawnFailed, "the daemon did not start").cause(cause);
        if json.json {
            let _ = output.json_error(&error); // The exit code says it all.
        } else {
            output.tell(&crate::render::error::render(&error));
        }
    } else {
        output.pass_on(&String::from_utf8_lossy(&words.text));
    }
    Failure::Told(exit)
}

/// What the daemon writes to stderr before it has a log.
#[derive(Debug)]
pub(super) struct LastWords {
    source: Option<ChildStderr>,
    pub(super) text: Vec<u8>,
}

impl LastWords {
    pub(super) fn of(child: &mut Child) -> Self {
        Self { source: child.stderr.take(), text: Vec::new() }
    }

    /// Waits a moment, and takes what is said in it.
    pub(super) fn listen(&mut self, moment: Duration) {
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
                let room = MAX_LAST_WORDS.saturating_sub(self.text.len());
                self.text.extend_from_slice(&chunk[..count.min(room)]);
            }
        }
    }

    /// Takes what is left; a child that outlives the daemon may hold the other end.
    pub(super) fn drain(&mut self) {
        while let Some(source) = &self.source
            && readable(&[source.as_fd()], Duration::ZERO)[0]
        {
            self.listen(Duration::ZERO);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_the_new_daemon_does_not_read_are_told_of() {
        let told = ["/a/mcp.json", "/b c/mcp.json", "/d/mcp.json"].map(str::to_owned);
        let read = [PathBuf::from("/d/mcp.json"), PathBuf::from("/e/mcp.json")];
        insta::assert_snapshot!(not_inherited(&told, &read).unwrap(), @"
        note: only the daemon that is replaced was given `--mcp-json`; this one does not read
          /a/mcp.json
          /b c/mcp.json
          and stops their servers
          hint: to keep them, give `--mcp-json FILE` again, or name the file in `xy.kdl` as `mcp-json`
        ");
        assert_eq!(not_inherited(&told[2..], &read), None);
        assert_eq!(not_inherited(&[], &read), None);
    }
}
