//! Starting this very program as a daemon, and waiting until it answers.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use xy_ipc::Client;
use xy_protocol::control::{Info, Request};

use crate::clock::Deadline;

/// How long a daemon may take to answer; it may have shims to adopt.
pub(crate) const ANSWERS_WITHIN: Duration = Duration::from_secs(15);

/// How long is waited between two looks.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// What became of a daemon that was started.
#[derive(Debug)]
pub(crate) enum Came {
    /// It is there.
    Answers(Box<Info>),
    /// It has ended.
    Ended(ExitStatus),
    /// It lives and says nothing.
    TooLate,
    /// Whoever waited does not want to any more.
    GivenUp,
}

/// A command that runs this very program, even if its file has been replaced since.
pub(crate) fn this_program() -> io::Result<Command> {
    let mut command = if cfg!(target_os = "linux") {
        Command::new("/proc/self/exe")
    } else {
        Command::new(std::env::current_exe()?)
    };
    command.arg0("xy");
    Ok(command)
}

/// Waits until the daemon `child` answers at one of `places`, or ends, or the time is over.
///
/// `pause` waits a moment, and says whether to go on.
pub(crate) fn until_it_answers(
    child: &mut Child,
    places: &[PathBuf],
    mut pause: impl FnMut(Duration) -> bool,
) -> io::Result<Came> {
    let deadline = Deadline::after(ANSWERS_WITHIN);
    while !deadline.has_passed() {
        if let Some(status) = child.try_wait()? {
            return Ok(Came::Ended(status));
        }
        if let Some(info) = ask_who_it_is(places, deadline)
            && info.pid == child.id()
        {
            return Ok(Came::Answers(Box::new(info)));
        }
        if !pause(deadline.left_at_most(LOOK_AGAIN_AFTER)) {
            return Ok(Came::GivenUp);
        }
    }
    Ok(Came::TooLate)
}

/// Asks the daemon at one of `places` who it is; `None` if none answers.
pub(crate) fn ask_who_it_is(places: &[PathBuf], deadline: Deadline) -> Option<Info> {
    let mut client = Client::find(places).ok()?;
    let within = deadline.left_at_most(ANSWERS_WITHIN).max(Duration::from_millis(1));
    client.answer_within(Some(within)).ok()?;
    client.call_as(&Request::Info).ok()
}
