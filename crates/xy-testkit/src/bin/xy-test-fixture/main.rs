//! An MCP server that does everything the revisions with `initialize` have, and does it right:
//! what the official conformance suite asks for, and what makes it hard to pass on.
//!
//! - `--stdio` speaks in lines on stdin and stdout
//! - `--http PORT` speaks Streamable HTTP at `/mcp`: sessions, JSON and streams, resumption
//! - `--sse PORT` speaks HTTP+SSE of 2024-11-05: `GET /sse`, and the place it names
//!
//! Port 0 is a free one. The place is said on stderr once it listens: `listening on
//! 127.0.0.1:PORT`. It ends with its stdin, or on TERM.
//!
//! Nothing that it says depends on the time, on chance, or on who else is there, so that two
//! conversations can be compared text by text; and much of it is odd on purpose: fields that
//! nobody knows, numbers spelled `1.0`, keys in an unusual order.

mod catalog;
mod older;
mod reply;
mod request;
mod session;
mod stdio;
mod stream;
mod streamable;
mod tasks;
mod tools;
mod web;

use std::process::ExitCode;

use xy_testkit::standin::{self, Flags};

fn main() -> ExitCode {
    standin::live_at_most(standin::SAFETY_LIMIT);
    let mut flags = Flags::of_this_process();
    let flag = flags.next_flag();
    let port = |flags: &mut Flags| u16::try_from(flags.number()).expect("a port");
    match flag.as_deref() {
        Some("--stdio") => stdio::serve(),
        Some("--http") => web::serve(port(&mut flags), streamable::Door::default()),
        Some("--sse") => web::serve(port(&mut flags), older::Door::default()),
        other => panic!("`--stdio`, `--http PORT` or `--sse PORT`, not {other:?}"),
    }
}
