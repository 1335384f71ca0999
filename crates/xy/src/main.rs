//! The `xy` binary: dispatches to the shim, the stream holder, or the command line.

use std::process::ExitCode;

mod args;
mod cli;
mod clock;
mod failure;
mod interrupts;
mod launch;
mod link;
mod output;
mod render;
mod verbs;

fn main() -> ExitCode {
    // A shim must stay small and single-threaded, so it starts before any other setup.
    let verb = std::env::args_os().nth(1).unwrap_or_default();
    if verb == "shim" {
        return xy_shim::run();
    }
    if verb == xy_shim::stream_holder::VERB {
        return xy_shim::stream_holder::run();
    }
    cli::run(std::env::args_os())
}
