//! An MCP server for tests, whose flags and tools make it behave well or badly on request.
//!
//! The server speaks the revisions with `initialize` (up to 2025-11-25) over stdin and stdout,
//! with one write per message. It exits at the end of stdin or on SIGTERM, and prints the reason
//! to stderr.
//!
//! Identity and capabilities:
//!
//! - `--name NAME`, `--instructions TEXT`
//! - `--protocol VERSION`: the revision to answer with (default: the client's, if known)
//! - `--no-tools`, `--no-prompts`, `--no-resources`, `--only-tools`: limit the declared
//!   capabilities
//! - `--v2`: adds the tool `reverse`
//! - `--tools N`: adds `N` generated tools
//! - `--odd-names`: adds tools with unusual names
//! - `--page N`: the number of entries per page of a list
//! - `--tool-file FILE`: serves exactly the tool definitions in `FILE`
//! - `--tasks`: runs the tool `job` as a task of the era it is called in
//! - `--talks`: adds `ask`, `refuse` and `chatter`
//! - `--megabytes N`: allocates that much memory at startup and keeps it
//! - `--pass-unknown`: answers an unknown method with its params
//! - `--skim`: answers a request of over 1 MiB by its id alone, which must be a number
//! - `--http PORT`: listens on `PORT` instead (0: a free port, printed to stderr); supports only
//!   POST with JSON
//!
//! The revision without `initialize` (2026-07-28):
//!
//! - `--era modern|both`: speaks only this revision, or both eras
//! - `--no-listen`: refuses `subscriptions/listen`
//! - `--discover silent|dies|mute|late|huge|odd|garbage|CODE`: how `server/discover` fails;
//!   `huge` exceeds the maximum message size, `odd` is no response, `garbage` is no message
//! - `--lies CODE`: announces this revision, then refuses every other request with `CODE`
//!
//! Faults:
//!
//! - `--ignore-ping`, `--dull` and `--well-after N`: see `blocking.rs`
//! - `--slow-init MS`, `--never-init`, `--refuse-init`, `--die-on METHOD`
//! - `--die-if FILE`: exits at startup if `FILE` exists
//! - `--freeze-once FILE`: stops itself with SIGSTOP once the handshake is done, unless `FILE`
//!   exists; creates `FILE`. The handshake ends with the answer to `initialize` (over HTTP, to
//!   `notifications/initialized`) or to the first `server/discover`
//! - `--list-never`: never answers `tools/list`
//! - `--bad-list`: the list is not an array
//! - `--bad-tools`: broken entries among good ones
//! - `--odd-lists`: entries that some clients cannot parse
//! - `--huge-list MB`, `--endless-list` (every page has a successor)
//! - `--garbage-first`: writes non-messages at startup and before each message
//! - `--pretty`: writes each message over several lines
//! - `--mute-after N` and `--close-stdout-after N` messages
//! - `--close-stdin`: closes stdin after the answer to `initialize`
//!
//! Evidence for tests:
//!
//! - `--input-log FILE`: appends each received line to `FILE`
//! - `--unbuffered`: leaves unread input in the pipe
//! - `--record FILE`: adds the tools of `record.rs`
//!
//! `tools.rs` lists the tools.

mod blocking;
mod catalog;
mod chatter;
mod eras;
mod http;
mod legacy_tasks;
mod lists;
mod modern_tasks;
mod options;
mod record;
mod request;
mod responder;
mod server;
mod stdin;
mod tools;

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use xy_testkit::standin::{self, Output, Wait};

use crate::options::Options;
use crate::responder::Responder;
use crate::server::Server;

fn main() -> ExitCode {
    standin::live_at_most(standin::SAFETY_LIMIT);
    let options = Options::from_args();
    if options.die_if.as_ref().is_some_and(|file| file.exists()) {
        Output::Stderr.say("not today");
        return ExitCode::FAILURE;
    }
    // Written to, because untouched pages are not resident.
    let _kept = std::hint::black_box(vec![1_u8; options.megabytes << 20]);
    let port = options.http;
    let server = Arc::new(Server::new(options));
    if let Some(port) = port {
        return http::serve(&server, port);
    }
    end_on_term();
    Output::Stderr.say(&format!("started {}", std::process::id()));
    let responder = Arc::new(Responder::to_stdout(&server.options));
    stdin::each_line(&server.options, |line| {
        server.handle(line, &responder);
    });
    if server.state().has_closed_stdin {
        // The server closed stdin itself, so only SIGTERM ends it now.
        standin::linger(standin::SAFETY_LIMIT);
    }
    Output::Stderr.say("stopping: stdin closed");
    ExitCode::SUCCESS
}

fn end_on_term() {
    let mut wait = Wait::for_term_only();
    thread::spawn(move || {
        wait.next(None);
        blocking::take_locks();
        Output::Stderr.say("stopping: TERM");
        die(0)
    });
}

/// Exits immediately, without waiting for other threads.
#[expect(clippy::disallowed_methods, reason = "a crash lets nothing be finished")]
pub(crate) fn die(code: i32) -> ! {
    std::process::exit(code)
}
