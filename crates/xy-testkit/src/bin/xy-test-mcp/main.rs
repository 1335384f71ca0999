//! An MCP server for tests: it does what its tools are asked and what its flags say, however
//! wrong that is.
//!
//! It speaks the revisions with `initialize` (up to 2025-11-25) over stdin and stdout, one
//! write for each message. It ends with its stdin, or on TERM, and says so on stderr.
//!
//! What it is:
//!
//! - `--name NAME`, `--protocol VERSION` it answers (else the client's, if it is known),
//!   `--instructions TEXT`
//! - `--no-tools`, `--no-prompts`, `--no-resources`, `--only-tools`: what it declares; `--v2` adds a tool `reverse`
//! - `--tools N` more tools, `--odd-names` adds tools with such, `--page N` entries per list
//! - `--tool-file FILE`: it has the tools that stand there, and no others
//! - `--tasks` does the tool `job` as a task of the era it is called in, `--talks` adds `ask`, `refuse` and `chatter`
//! - `--megabytes N`: it takes so much memory at its start, and keeps it
//! - `--pass-unknown` answers unknown methods with their params
//! - `--skim` answers a request of over 1 MiB by its id, which must be a number, and reads nothing else of it
//! - `--http PORT` listens there instead (0: a free one, said on stderr): POST, JSON, no more
//!
//! Of the revision without `initialize` (2026-07-28):
//!
//! - `--era modern|both`: it speaks that, or that too; `--no-listen` without listeners
//! - `--discover silent|dies|mute|late|huge|odd|garbage|CODE`: what it does when it is asked for
//!   that; `huge` is longer than anybody reads, `odd` is no answer, `garbage` no message
//! - `--lies CODE`: it says that it speaks it, and refuses all else of it like this
//!
//! What it does wrong:
//!
//! - `--ignore-ping`, `--dull` and `--well-after N`: see `dull.rs`
//! - `--slow-init MS`, `--never-init`, `--refuse-init`, `--die-on METHOD`
//! - `--die-if FILE` ends it at its start if there is such a file
//! - `--freeze-once FILE` stops it as SIGSTOP does, right after its answer to `initialize` (over
//!   HTTP, to what ends that greeting) or its first `server/discover`, if there is no such file;
//!   then there is
//! - `--list-never`, `--bad-list` (no list), `--bad-tools` (broken entries among good ones), `--odd-lists` (entries that
//!   some clients cannot read),
//!   `--huge-list MB`, `--endless-list` (there is always one more page)
//! - `--garbage-first` says what is no message, at the beginning and before each message
//! - `--pretty` writes each message over several lines
//! - `--mute-after N` and `--close-stdout-after N` messages, `--close-stdin` after the
//!   answer to `initialize`
//!
//! For the witness: `--diary FILE` gets each line as it came, `--unbuffered` leaves in the
//! pipe what has not been heard, `--record FILE` adds the tools of `record.rs`.
//!
//! The tools are in `tools.rs`.

mod answer;
mod catalog;
mod chatter;
mod dull;
mod eras;
mod errands;
mod http;
mod jobs;
mod lists;
mod outlet;
mod plan;
mod record;
mod server;
mod stdin;
mod tools;

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use xy_testkit::standin::{self, Output, Wait};

use crate::outlet::Outlet;
use crate::plan::Plan;
use crate::server::Server;

fn main() -> ExitCode {
    standin::live_at_most(standin::SAFETY_LIMIT);
    let plan = Plan::of_this_process();
    if plan.die_if.as_ref().is_some_and(|file| file.exists()) {
        Output::Stderr.say("not today");
        return ExitCode::FAILURE;
    }
    // Written, or nobody would count it.
    let _kept = std::hint::black_box(vec![1_u8; plan.megabytes << 20]);
    let port = plan.http;
    let server = Arc::new(Server::new(plan));
    if let Some(port) = port {
        return http::serve(&server, port);
    }
    end_on_term();
    Output::Stderr.say(&format!("started {}", std::process::id()));
    let outlet = Arc::new(Outlet::to_stdout(&server.plan));
    stdin::each_line(&server.plan, |line| {
        server.hear(line, &outlet);
    });
    if server.state().has_closed_stdin {
        // It was no end: only TERM is one now.
        standin::linger(standin::SAFETY_LIMIT);
    }
    Output::Stderr.say("stopping: stdin closed");
    ExitCode::SUCCESS
}

fn end_on_term() {
    let mut wait = Wait::for_term_only();
    thread::spawn(move || {
        wait.next(None);
        dull::wait_for_locks();
        Output::Stderr.say("stopping: TERM");
        die(0)
    });
}

/// Ends now, whatever the other threads do.
#[expect(clippy::disallowed_methods, reason = "a crash lets nothing be finished")]
pub(crate) fn die(code: i32) -> ! {
    std::process::exit(code)
}
