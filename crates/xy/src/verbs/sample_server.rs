//! `xy sample-server`: a sample server for `xy demo`. Hidden.
//!
//! It speaks no protocol: it prints the time to stderr until its stdin is closed.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::Duration;

use crate::clock::{self, Deadline};
use crate::failure::{Exit, Failure};
use crate::interrupts::readable;
use crate::output::Output;
use crate::render;

/// Print the time to stderr once a second
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct Args {
    /// Exit with code 1 after this time
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    crash_after: Option<Duration>,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let crash = args.crash_after.map_or(Deadline::never(), Deadline::after);
    let mut stdin = io::stdin().lock();
    loop {
        output.print_stderr(&format!("it is {}\n", render::clock(clock::now())));
        let tick = Deadline::after(crash.remaining_at_most(Duration::from_secs(1)));
        while let Some(left) = tick.remaining().filter(|left| !left.is_zero()) {
            let has_input = readable(&[stdin.as_fd()], left)[0];
            if has_input && matches!(stdin.read(&mut [0; 4096]), Ok(0) | Err(_)) {
                return Ok(()); // The daemon closed stdin to stop this server.
            }
        }
        if crash.has_passed() {
            output.print_stderr("crashing as configured\n");
            return Err(Failure::Reported(Exit::Failed));
        }
    }
}
