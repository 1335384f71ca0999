//! A conforming MCP server that uses every feature of both protocol eras.
//!
//! It serves what the official conformance suite asks for, and messages that are hard for a
//! gateway to forward unchanged.
//!
//! - `--stdio`: one message per line on stdin and stdout
//! - `--http PORT`: Streamable HTTP at `/mcp`; in the legacy era with sessions, JSON responses,
//!   SSE streams and resumption
//! - `--sse PORT`: HTTP+SSE of 2024-11-05 (`GET /sse`, and the endpoint that it names)
//!
//! An era may follow. The default is `legacy`, the only era of `--sse`:
//!
//! - `--era legacy`: the revisions with `initialize`, up to 2025-11-25
//! - `--era modern`: 2026-07-28
//! - `--era both`: over HTTP, each request selects its era; over stdio, the first era used stays
//!
//! With `--no-sessions` after `--era both`, the legacy era has no sessions over HTTP: the server can
//! ask its clients nothing.
//!
//! Port 0 selects a free port. Once the server listens, it writes `listening on
//! 127.0.0.1:PORT` to stderr. It exits at the end of stdin, or on TERM.
//!
//! No message depends on time, randomness or other clients, so tests can compare two sessions
//! byte by byte. Many messages are odd on purpose: unknown fields, numbers spelled `1.0`, keys
//! in an unusual order.
//!
//! Both eras share the tools and lists (`tools.rs`, `catalog.rs`). Only `request.rs`,
//! `client_request.rs` and `subscriptions.rs` handle how the eras differ in requests to the
//! client and in notifications.

mod catalog;
mod client_request;
mod era;
mod extra_entries;
mod headers;
mod http_server;
mod inputs;
mod job_tools;
mod jobs;
mod legacy;
mod legacy_sse;
mod meta;
mod modern;
mod modern_fields;
mod modern_response;
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

use std::process::ExitCode;

use xy_testkit::standin::{self, Flags};

use crate::era::SupportedEras;

fn main() -> ExitCode {
    standin::live_at_most(standin::SAFETY_LIMIT);
    let mut flags = Flags::of_this_process();
    let flag = flags.next_flag();
    let port = |flags: &mut Flags| u16::try_from(flags.number()).expect("a port");
    match flag.as_deref() {
        Some("--stdio") => stdio::serve(supported_eras(&mut flags)),
        Some("--http") => {
            let port = port(&mut flags);
            match supported_eras(&mut flags) {
                SupportedEras::Legacy => http_server::serve(port, streamable::Handler::default()),
                SupportedEras::Modern => http_server::serve(port, stateless::Handler::default()),
                SupportedEras::Both => {
                    let handler = match flags.next_flag().as_deref() {
                        None => stateless::BothErasHandler::default(),
                        Some("--no-sessions") => stateless::BothErasHandler::without_sessions(),
                        Some(other) => panic!("`--no-sessions`, not {other:?}"),
                    };
                    http_server::serve(port, handler)
                }
            }
        }
        Some("--sse") => {
            let port = port(&mut flags);
            assert_eq!(supported_eras(&mut flags), SupportedEras::Legacy, "`--sse` is legacy");
            http_server::serve(port, legacy_sse::Handler::default())
        }
        other => panic!("`--stdio`, `--http PORT` or `--sse PORT`, not {other:?}"),
    }
}

fn supported_eras(flags: &mut Flags) -> SupportedEras {
    match flags.next_flag().as_deref() {
        None => SupportedEras::Legacy,
        Some("--era") => SupportedEras::from_flag(&flags.value()),
        Some(other) => panic!("`--era`, not {other:?}"),
    }
}
