//! The binary: one file per verb in `verbs/`, and the shim's entry before anything else.

use std::process::ExitCode;

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
    // A shim is tiny and has one thread: nothing else may have been set up before it.
    let verb = std::env::args_os().nth(1).unwrap_or_default();
    if verb == "shim" {
        return xy_shim::run();
    }
    if verb == xy_shim::grip::VERB {
        return xy_shim::grip::run();
    }
    cli::run(std::env::args_os())
}
