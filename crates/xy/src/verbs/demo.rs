//! `xy demo`: a daemon with two sample servers in a folder of its own, and nothing left after.

use std::os::fd::AsFd;
use std::time::Duration;

use xy_protocol::control::{Events, Listed, Request};

use super::events::Printer;
use crate::clock::Deadline;
use crate::failure::Failure;
use crate::interrupts::{Interrupts, Woken};
use crate::link::{Link, read};
use crate::output::Output;
use crate::render;

mod home;
mod stage;

use stage::Stage;

/// How long the sample servers may take to start.
const SETTLED_WITHIN: Duration = Duration::from_secs(3);

/// How long is waited between two looks.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Long enough to be for ever, short enough for every system.
const A_DAY: Duration = Duration::from_secs(86_400);

/// Watch xy at work, with nothing to prepare
///
/// Starts a daemon of its own in a temporary folder with two servers, a steady one and
/// one that keeps falling over, and shows what happens to them until Ctrl-C. Your own
/// configuration is not touched, and nothing is left behind.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy demo\n  xy demo --for 20s")]
pub(crate) struct Args {
    /// End by itself after this long
    #[arg(long = "for", value_name = "DURATION", value_parser = humantime::parse_duration)]
    lasts: Option<Duration>,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let interrupts = Interrupts::listen()
        .map_err(|cause| Failure::internal("the demo could not listen for signals", cause))?;
    let end = args.lasts.map_or(Deadline::never(), Deadline::after);
    let mut stage = Stage::set_up()?;
    let shown = stage.open(&interrupts).and_then(|link| match link {
        Some(link) => show(&stage, link, &interrupts, end, output),
        None => Ok(()), // Interrupted before it began.
    });
    let spinner = output.spinner("stopping the servers and the daemon");
    let torn_down = stage.tear_down();
    drop(spinner);
    shown?;
    torn_down?;
    output.print("the demo is over, and nothing of it is left\n")
}

fn show(
    stage: &Stage,
    mut link: Link,
    interrupts: &Interrupts,
    end: Deadline,
    output: &mut Output,
) -> Result<(), Failure> {
    link.ask_promptly(&Request::Events(Events::default()))?;
    if !until_settled(&mut link, interrupts)? {
        return Ok(());
    }
    let servers: Listed = read(&link.ask_promptly(&Request::List)?)?;
    let width = output.width();
    output.print(&render::list::render(&servers, width))?;
    output.print(&format!(
        "\nTo talk to this daemon from another terminal:\n{}  xy list\n\n\
         This is what happens now; Ctrl-C ends it.\n",
        stage.exports()
    ))?;
    follow(&mut link, interrupts, end, output)
}

/// Waits until the servers have started; false if somebody wants us to end.
fn until_settled(link: &mut Link, interrupts: &Interrupts) -> Result<bool, Failure> {
    let deadline = Deadline::after(SETTLED_WITHIN);
    while !deadline.has_passed() {
        let servers: Listed = read(&link.ask_promptly(&Request::List)?)?;
        if servers.iter().all(|server| server.state.is_settled()) {
            return Ok(true);
        }
        if interrupts.wait(None, LOOK_AGAIN_AFTER) == Woken::Interrupted {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Prints events until somebody wants us to end, or `end` has come.
fn follow(
    link: &mut Link,
    interrupts: &Interrupts,
    end: Deadline,
    output: &mut Output,
) -> Result<(), Failure> {
    let mut printer = Printer::new(false);
    while !end.has_passed() {
        if !link.client.has_more() {
            output.flush()?;
        }
        let within = if link.client.has_more() { Duration::ZERO } else { end.left_at_most(A_DAY) };
        match interrupts.wait(Some(link.client.as_fd()), within) {
            Woken::Interrupted => return Ok(()),
            Woken::TimeIsUp if !link.client.has_more() => {}
            Woken::Ready | Woken::TimeIsUp => {
                if !printer.print_next(link, output)? {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}
