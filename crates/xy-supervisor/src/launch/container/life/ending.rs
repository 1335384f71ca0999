//! The end of a container: asked for, seen, and what is left to do then.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::timeout;

use super::super::engine::is_gone;
use super::super::fate::Fate;
use super::super::{create, faults, missed};
use super::{Driver, Due, WRITTEN_WITHIN};
use crate::launch::News;
use crate::lifecycle::Exit;
use crate::speak::Told;

/// How long the rest of what a container said may take to come, after its end.
const REST_WITHIN: Duration = Duration::from_secs(10);

/// How long an engine may take to kill.
const KILL_WITHIN: Duration = Duration::from_secs(20);

/// How long it may take to remove what has ended.
const REMOVE_WITHIN: Duration = Duration::from_secs(30);

const AWAY: &str = "its engine was restarted, or cut it off, and it has ended meanwhile";
const REMOVED: &str = "somebody else has removed its container";

impl Driver {
    /// It has ended, or nothing can be known of it any more.
    pub(super) async fn over(&mut self, fate: Fate) {
        if self.fate.is_some() {
            return;
        }
        for task in [self.waiting.take()].into_iter().flatten() {
            task.abort();
        }
        if let Some(looking) = self.looking.take() {
            looking.abort();
        }
        self.dues.clear();
        match &fate {
            Fate::Ended(end) => {
                tracing::info!(server = %self.order.key, "{}", end.exit);
                // It need not have been its own doing, so a clean end is not taken for one.
                if end.was_away || self.was_cut {
                    self.unfit(AWAY.to_owned()).await;
                }
            }
            // What is not seen as an exit is told as the reason why it is ended.
            Fate::Removed => self.unfit(REMOVED.to_owned()).await,
            Fate::Lost(why) => self.unfit(why.clone()).await,
        }
        self.fate = Some(fate);
        if self.carrying.is_some() {
            self.wait_for(REST_WITHIN, Due::Rest); // The rest of its output is on its way.
            return;
        }
        self.hear_the_rest().await;
        if self.end_line() {
            self.wait_for(Duration::ZERO, Due::LastWords);
        }
    }

    /// Its stream is over, and so is it. Podman may hang up before all that was said has come;
    /// what it has kept is whole.
    pub(super) async fn hear_the_rest(&mut self) {
        let Some(mut carrier) = self.carrier.take() else { return };
        if !self.engine.closes_stdin || !matches!(self.fate, Some(Fate::Ended(_))) {
            return;
        }
        let (engine, id, place) = (self.engine.clone(), self.id.clone(), carrier.counter.heard());
        let rest = async {
            let missed = missed::read(&engine, &id, place).await.map_err(|why| why.to_string())?;
            carrier.make_good(missed).await;
            Ok::<_, String>(())
        };
        match timeout(REST_WITHIN, rest).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => {
                tracing::warn!(server = %self.order.key, why, "its last words may be missing");
            }
            Err(_) => tracing::warn!(server = %self.order.key, "its last words may be missing"),
        }
    }

    pub(super) fn exit(&self) -> Exit {
        match &self.fate {
            Some(Fate::Ended(end)) => end.exit,
            _ => Exit::UNSEEN,
        }
    }

    /// Nothing is left of it here, and its last news are told.
    pub(super) async fn finish(mut self) {
        if let Some(speech) = self.speech.take() {
            speech.tell(Told::Over(self.exit()));
        }
        self.errands.abort_all();
        let _ = timeout(WRITTEN_WITHIN, self.log.finish()).await; // Its disk may hang.
        let removed = timeout(REMOVE_WITHIN, self.engine.remove(&self.id)).await;
        match removed {
            Ok(Ok(())) => {}
            Ok(Err(why)) => {
                let why = faults::words(&why);
                tracing::warn!(server = %self.order.key, container = self.id, why, "not removed yet");
            }
            Err(_) => {
                tracing::warn!(server = %self.order.key, container = self.id, "not removed yet");
            }
        }
        self.keeper.forget();
        self.shared.owned.release(&create::name(&self.shared.home, &self.order.key));
        let exit = self.exit();
        let never_began = (!self.was_ready && !self.is_ending)
            .then(|| faults::never_began(&self.order.settings, exit))
            .flatten();
        let last = match never_began {
            Some(fault) => News::LaunchFailed(fault),
            None if self.is_probed => News::ExitedOnProbe(exit),
            None => News::Exited(exit),
        };
        let _ = self.ends.news.send(last).await; // Nobody may hold this life any more.
    }

    /// Asks its engine to end it, gently at first.
    pub(super) fn stop(&mut self, grace: Duration) {
        self.is_ending = true;
        // Docker would not close its stdin, but hang up: its last words would be lost.
        self.is_ending_shared.store(self.engine.closes_stdin, Ordering::Relaxed);
        if self.fate.is_some() {
            return;
        }
        if let Some(speech) = &self.speech {
            speech.tell(Told::Close);
        }
        self.keeper.change(|kept| kept.stopping = true);
        let (engine, id) = (self.engine.clone(), self.id.clone());
        self.errands.spawn(async move {
            let _ = engine.unpause(&id).await; // One that is not paused stays as it is.
            // Its end is seen by whoever waits for it.
            engine.stop(&id, grace).await.is_err_and(|why| is_gone(&why))
        });
        self.wait_for(grace, Due::Kill);
    }

    /// Has it killed.
    pub(super) fn kill(&mut self) {
        if self.fate.is_some() {
            return;
        }
        let (engine, id) = (self.engine.clone(), self.id.clone());
        self.errands.spawn(async move {
            let Err(why) = engine.kill(&id).await else { return false };
            if is_gone(&why) {
                return true;
            }
            let _ = engine.unpause(&id).await; // Some engines kill none that is paused.
            engine.kill(&id).await.is_err_and(|why| is_gone(&why))
        });
        self.wait_for(KILL_WITHIN, Due::GiveUp);
    }
}
