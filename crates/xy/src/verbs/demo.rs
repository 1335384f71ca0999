//! `xy demo`: runs a daemon with two sample servers in a temporary folder, and removes it.

use std::os::fd::AsFd;
use std::time::Duration;

use xy_protocol::control::{Events, ListResult, Request};

use super::events::Printer;
use crate::clock::Deadline;
use crate::failure::Failure;
use crate::interrupts::{Interrupts, WaitResult};
use crate::link::{Link, read};
use crate::output::Output;
use crate::render;

mod demo_home;
mod home;

use demo_home::DemoHome;

/// How long to wait until the sample servers have started.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);

/// Interval between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum time of one wait; longer times overflow on some systems.
const MAX_WAIT: Duration = Duration::from_secs(86_400);

/// Show xy supervising two sample servers
///
/// Starts a separate daemon in a temporary folder with two servers: one that keeps running and
/// one that keeps crashing. Shows their changes of state until Ctrl-C. Your own configuration is
/// not used, and everything is removed at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy demo\n  xy demo --for 20s")]
pub(crate) struct Args {
    /// End after this time
    #[arg(long = "for", value_name = "DURATION", value_parser = humantime::parse_duration)]
    lasts: Option<Duration>,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let interrupts = Interrupts::listen()
        .map_err(|cause| Failure::internal("the demo could not listen for signals", cause))?;
    let end = args.lasts.map_or(Deadline::never(), Deadline::after);
    let mut demo = DemoHome::set_up()?;
    let shown = demo.open(&interrupts).and_then(|link| match link {
        Some(link) => show(&demo, link, &interrupts, end, output),
        None => Ok(()), // Interrupted before the daemon was ready.
    });
    let spinner = output.spinner("stopping the servers and the daemon");
    let torn_down = demo.tear_down();
    drop(spinner);
    shown?;
    torn_down?;
    output.print("the demo is over; all its files and processes are removed\n")
}

fn show(
    demo: &DemoHome,
    mut link: Link,
    interrupts: &Interrupts,
    end: Deadline,
    output: &mut Output,
) -> Result<(), Failure> {
    link.query(&Request::Events(Events::default()))?;
    if !wait_until_settled(&mut link, interrupts)? {
        return Ok(());
    }
    let servers: ListResult = read(&link.query(&Request::List)?)?;
    let width = output.width();
    output.print(&render::list::render(&servers, width))?;
    output.print(&format!(
        "\nTo talk to this daemon from another terminal:\n{}  xy list\n\n\
         State changes follow; press Ctrl-C to end the demo.\n",
        demo.exports()
    ))?;
    follow(&mut link, interrupts, end, output)
}

/// Waits until the servers have started. Returns false if interrupted.
fn wait_until_settled(link: &mut Link, interrupts: &Interrupts) -> Result<bool, Failure> {
    let deadline = Deadline::after(SETTLE_TIMEOUT);
    while !deadline.has_passed() {
        let servers: ListResult = read(&link.query(&Request::List)?)?;
        if servers.iter().all(|server| server.state.is_settled()) {
            return Ok(true);
        }
        if interrupts.wait(None, POLL_INTERVAL) == WaitResult::Interrupted {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Prints events until interrupted or until `end`.
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
        let within =
            if link.client.has_more() { Duration::ZERO } else { end.remaining_at_most(MAX_WAIT) };
        match interrupts.wait(Some(link.client.as_fd()), within) {
            WaitResult::Interrupted => return Ok(()),
            WaitResult::TimedOut if !link.client.has_more() => {}
            WaitResult::Ready | WaitResult::TimedOut => {
                if !printer.print_next(link, output)? {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}
