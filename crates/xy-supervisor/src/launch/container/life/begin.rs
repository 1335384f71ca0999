//! The beginning of a life, while which it can be taken back.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::interval;

use super::super::Shared;
use super::super::start::{self, NotBegun};
use super::Driver;
use crate::launch::{Ask, InstanceEnds, LaunchOrder, News, Progress};
use crate::lifecycle::{Exit, LaunchFault};

/// How often it is told that a beginning still goes on: more often than anybody gives up.
const STILL_EVERY: Duration = Duration::from_millis(500);

/// Begins a life and drives it to its end.
pub(in super::super) async fn run(shared: Arc<Shared>, order: LaunchOrder, mut ends: InstanceEnds) {
    let (progress, mut told) = watch::channel(None);
    let (cancel, cancelled) = watch::channel(false);
    let mut beginning =
        tokio::spawn(start::begin(shared.clone(), order.clone(), progress, cancelled));
    let mut is_held = true;
    let mut is_let_go = false;
    let mut still = interval(STILL_EVERY);
    let begun = loop {
        tokio::select! {
            begun = &mut beginning => break begun,
            ask = ends.asks.recv(), if is_held => match ask {
                None => {
                    is_held = false;
                    cancel.send_replace(true);
                }
                Some(Ask::Rules { .. }) => {}
                Some(ask) => {
                    is_let_go |= ask == Ask::LetGo;
                    cancel.send_replace(true);
                }
            },
            // A busy engine takes its time, which is not that of the server.
            _ = still.tick() => prepare(&ends, told.borrow().clone()),
            Ok(()) = told.changed() => prepare(&ends, told.borrow_and_update().clone()),
        }
    };
    let last = match begun {
        Ok(Ok(begun)) if !*cancel.borrow() => {
            return Driver::new(shared, order, ends, begun).run().await;
        }
        // It was too late to turn back; it is ended as any other.
        Ok(Ok(begun)) => {
            let mut driver = Driver::new(shared, order, ends, begun);
            driver.is_held = is_held;
            driver.stop(driver.order.settings.rules.stop.grace, false);
            return driver.run().await;
        }
        Ok(Err(NotBegun::Cancelled)) => News::Exited(Exit::UNSEEN),
        Ok(Err(NotBegun::Fault(fault))) => News::LaunchFailed(fault),
        Ok(Err(NotBegun::Away(fault))) => News::Away(fault),
        Err(_) => News::LaunchFailed(LaunchFault {
            permanent: false,
            message: "the daemon is ending, or has a fault".to_owned(),
            hint: None,
        }),
    };
    if !is_let_go {
        let _ = ends.news.send(last).await; // Nobody may hold this life any more.
    }
}

/// Tells how far the beginning is.
fn prepare(ends: &InstanceEnds, progress: Option<Progress>) {
    let what = "making its container".to_owned();
    let progress = progress.unwrap_or(Progress { what, percent: None });
    let _ = ends.news.try_send(News::Preparing(progress)); // The next one tells more.
}
