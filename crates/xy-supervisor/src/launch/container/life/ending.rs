//! The end of a container: asked for, seen, and what is left to do then.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::timeout;

use super::super::engine::is_gone;
use super::super::fate::Fate;
use super::super::{faults, missed};
use super::{Driver, Due, LEAST_STREAM, WRITTEN_WITHIN, end};
use crate::launch::News;
use crate::lifecycle::Exit;
use crate::speak::Told;

/// How long the rest of what a container said may take to come, after its end.
const REST_WITHIN: Duration = Duration::from_secs(10);

/// How long an engine may take to kill.
const KILL_WITHIN: Duration = Duration::from_secs(20);

/// How long it may take to remove what has ended.
const REMOVE_WITHIN: Duration = Duration::from_secs(30);

/// What an init says is among so many lines.
const LAST_LINES: usize = 4;

const AWAY: &str = "its engine was restarted, or cut it off, and it has ended meanwhile";
const REMOVED: &str = "somebody else has removed its container";

impl Driver {
    /// It has ended, or nothing can be known of it any more.
    pub(super) async fn over(&mut self, fate: Fate) {
        if self.fate.is_some() {
            return;
        }
        end(&mut self.waiting);
        end(&mut self.looking);
        end(&mut self.rejoining);
        self.dues.clear();
        match &fate {
            Fate::Ended(end) => {
                tracing::info!(server = %self.order.key, "{}", end.exit);
                // It need not have been its own doing, so a clean end is not taken for one.
                let lasts = self.carrying.is_some() && self.carried_since.elapsed() >= LEAST_STREAM;
                let is_cut =
                    !self.is_ending && self.sequence.as_ref().is_some_and(|it| it.is_cut_off());
                if end.was_away || is_cut || (self.was_cut && !lasts) {
                    self.unfit(AWAY.to_owned()).await;
                }
            }
            // What is not seen as an exit is told as the reason why it is ended.
            Fate::Removed => self.unfit(REMOVED.to_owned()).await,
            Fate::Lost(why) => self.unfit(why.clone()).await,
        }
        self.fate = Some(fate);
        if self.carrying.is_some() {
            self.wait_for(REST_WITHIN, Due::LastOutput); // The rest of its output is on its way.
            return;
        }
        if !self.hears_the_rest() && self.end_line() {
            self.wait_for(Duration::ZERO, Due::LastWords);
        }
    }

    /// Its stream is over, and so is it. Podman may hang up before all that was said has come;
    /// what it has kept is whole. Whether that is being passed on.
    pub(super) fn hears_the_rest(&mut self) -> bool {
        let Some(mut carrier) = self.carrier.take() else { return false };
        if !self.engine.closes_stdin || !matches!(self.fate, Some(Fate::Ended(_))) {
            return false;
        }
        let (engine, id) = (self.engine.clone(), self.id.clone());
        let server = self.order.key.clone();
        self.resting = Some(tokio::spawn(async move {
            match missed::read(&engine, &id, carrier.counter.heard()).await {
                Ok(mut missed) => {
                    if missed.gaps != [false; 2] {
                        tracing::warn!(%server, "its last words may be missing");
                    }
                    missed.gaps = [false; 2]; // Mostly nothing is, so its log does not say so.
                    // Whoever speaks with it sees that there is no more once the carrier is gone.
                    carrier.make_good(missed).await;
                }
                Err(why) => tracing::warn!(%server, %why, "its last words may be missing"),
            }
        }));
        self.wait_for(REST_WITHIN, Due::LastOutput);
        true
    }

    pub(super) fn exit(&self) -> Exit {
        match &self.fate {
            Some(Fate::Ended(end)) => end.exit,
            _ => Exit::UNSEEN,
        }
    }

    /// Nothing is left of it here, and its last news are told.
    pub(super) async fn finish(mut self) {
        self.ends.end.set();
        if let Some(speech) = self.speech.take() {
            speech.tell(Told::Over(self.exit()));
        }
        self.errands.abort_all();
        let _ = timeout(WRITTEN_WITHIN, self.log.finish()).await; // Its disk may hang.
        // Its engine may wait until somebody hears its last words, or nobody can.
        self.attached = None;
        if let Some(grip) = self.grip.take() {
            grip.end(&self.shared).await;
        }
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
        // What could not be removed is found by its labels, once its engine is back: which engine
        // that is outlives this daemon (`engines.rs`).
        self.keeper.forget();
        self.hold = None; // Before its end is told: the next life waits for the name.
        let exit = self.exit();
        let never_began = (!self.was_ready && !self.is_ending)
            .then(|| faults::never_began(&self.order.settings, exit, self.init_said().as_deref()))
            .flatten();
        let last = match never_began {
            Some(fault) => News::LaunchFailed(fault),
            None if self.is_probed => News::ExitedOnProbe(exit),
            None => News::Exited(exit),
        };
        let _ = self.ends.news.send(last).await; // Nobody may hold this life any more.
    }

    /// Why its init could not run it, if it has said so in this life.
    fn init_said(&self) -> Option<String> {
        let last = self.order.logs.last_stderr(LAST_LINES);
        let own = last.iter().filter(|line| line.seq.is_some_and(|it| it >= self.first_line));
        own.filter_map(|line| faults::words_of_init(&line.bytes)).next_back()
    }

    /// Asks its engine to end it, gently at first.
    pub(super) fn stop(&mut self, grace: Duration, is_hung: bool) {
        if self.fate.is_some() {
            return; // It has ended by itself, which is how it is told.
        }
        self.is_ending = true;
        self.watched.is_ending.store(true, Ordering::Relaxed);
        // Docker would not close its stdin, but hang up: its last words would be lost.
        self.is_ending_shared.store(self.engine.closes_stdin, Ordering::Relaxed);
        if let Some(speech) = &self.speech {
            speech.tell(Told::Close { is_hung });
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
        self.watched.is_ending.store(true, Ordering::Relaxed);
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
