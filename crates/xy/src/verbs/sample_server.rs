//! `xy sample-server`: a server to supervise, for `xy demo`. Hidden.
//!
//! It speaks no protocol: it says the time on stderr until its stdin ends.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::Duration;

use crate::clock::{self, Deadline};
use crate::failure::{Exit, Failure};
use crate::interrupts::readable;
use crate::output::Output;
use crate::render;

/// Say the time on stderr, once a second
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct Args {
    /// End with code 1 after this long
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    crash_after: Option<Duration>,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let crash = args.crash_after.map_or(Deadline::never(), Deadline::after);
    let mut stdin = io::stdin().lock();
    loop {
        output.tell(&format!("it is {}\n", render::clock(clock::now())));
        let tick = Deadline::after(crash.left_at_most(Duration::from_secs(1)));
        while let Some(left) = tick.left().filter(|left| !left.is_zero()) {
            let has_input = readable(&[stdin.as_fd()], left)[0];
            if has_input && matches!(stdin.read(&mut [0; 4096]), Ok(0) | Err(_)) {
                return Ok(()); // Whoever started us is done with us.
            }
        }
        if crash.has_passed() {
            output.tell("this is where I fall over\n");
            return Err(Failure::Told(Exit::Failed));
        }
    }
}
