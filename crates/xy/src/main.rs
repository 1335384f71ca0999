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
    if std::env::args_os().nth(1).is_some_and(|verb| verb == "shim") {
        return xy_shim::run();
    }
    cli::run(std::env::args_os())
}
