//! One conversation, in lines.

use std::io::BufRead;
use std::process::ExitCode;
use std::thread;

use xy_testkit::standin::{Output, Wait};

use crate::session::Session;
use crate::stream::Out;

/// Speaks until stdin ends, or TERM comes.
pub(crate) fn serve() -> ExitCode {
    end_on_term();
    let session = Session::new(Out::Stdout);
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        if !line.trim().is_empty() {
            session.hear(&line, &Out::Stdout);
        }
    }
    Output::Stderr.say("stopping: stdin closed");
    ExitCode::SUCCESS
}

#[expect(clippy::disallowed_methods, reason = "the thread that reads stdin cannot be woken")]
fn end_on_term() {
    let mut wait = Wait::for_term_only();
    thread::spawn(move || {
        wait.next(None);
        Output::Stderr.say("stopping: TERM");
        std::process::exit(0)
    });
}
