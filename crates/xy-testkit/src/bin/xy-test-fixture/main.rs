//! An MCP server that does everything the protocol has, in both of its eras, and does it right:
//! what the official conformance suite asks for, and what makes it hard to pass on.
//!
//! - `--stdio` speaks in lines on stdin and stdout
//! - `--http PORT` speaks Streamable HTTP at `/mcp`; in the legacy era with sessions, JSON and
//!   streams, resumption
//! - `--sse PORT` speaks HTTP+SSE of 2024-11-05: `GET /sse`, and the place it names
//!
//! then, unless it is legacy, which is all that `--sse` has:
//!
//! - `--era legacy` has the revisions with `initialize`, up to 2025-11-25
//! - `--era modern` has 2026-07-28
//! - `--era both` has whatever comes: over HTTP each request is of its own era; over stdio the
//!   first that is used stays
//!
//! Port 0 is a free one. The place is said on stderr once it listens: `listening on
//! 127.0.0.1:PORT`. It ends with its stdin, or on TERM.
//!
//! Nothing that it says depends on the time, on chance, or on who else is there, so that two
//! conversations can be compared text by text; and much of it is odd on purpose: fields that
//! nobody knows, numbers spelled `1.0`, keys in an unusual order. The tools and the lists are
//! the same in both eras (`tools.rs`, `catalog.rs`); what a tool asks or tells goes through
//! `request.rs`, `ask.rs` and `subscriptions.rs`, which know the difference.

mod additions;
mod answer;
mod ask;
mod catalog;
mod dress;
mod era;
mod headers;
mod inputs;
mod job_tools;
mod jobs;
mod legacy;
mod meta;
mod modern;
mod older;
mod reply;
mod request;
mod rounds;
mod session;
mod stateless;
mod stdio;
mod stream;
mod streamable;
mod subscriptions;
mod tasks;
mod tools;
mod web;

use std::process::ExitCode;

use xy_testkit::standin::{self, Flags};

use crate::era::Offer;

fn main() -> ExitCode {
    standin::live_at_most(standin::SAFETY_LIMIT);
    let mut flags = Flags::of_this_process();
    let flag = flags.next_flag();
    let port = |flags: &mut Flags| u16::try_from(flags.number()).expect("a port");
    match flag.as_deref() {
        Some("--stdio") => stdio::serve(offer(&mut flags)),
        Some("--http") => {
            let port = port(&mut flags);
            match offer(&mut flags) {
                Offer::Legacy => web::serve(port, streamable::Door::default()),
                Offer::Modern => web::serve(port, stateless::Door::default()),
                Offer::Both => web::serve(port, stateless::Both::default()),
            }
        }
        Some("--sse") => {
            let port = port(&mut flags);
            assert_eq!(offer(&mut flags), Offer::Legacy, "`--sse` is legacy");
            web::serve(port, older::Door::default())
        }
        other => panic!("`--stdio`, `--http PORT` or `--sse PORT`, not {other:?}"),
    }
}

fn offer(flags: &mut Flags) -> Offer {
    match flags.next_flag().as_deref() {
        None => Offer::Legacy,
        Some("--era") => Offer::of(&flags.value()),
        Some(other) => panic!("`--era`, not {other:?}"),
    }
}
