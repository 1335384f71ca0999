//! What the driver has to do with whoever speaks with the server, and what a later one has to
//! know.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Driver, Due, WRITTEN_WITHIN};
use crate::launch::speech::{
    self, DID_NOT_LET_GO, LAST_WORDS_WITHIN, LET_GO_WITHIN, Meaning, Passed, Speech, said_in,
};
use crate::launch::{News, millis};
use crate::speak::{Checkup, Rest, Said, Told, plain_why};
use crate::wait::time_of_day;

/// How long what carries the bytes of a container may take to leave it.
const LEAVES_WITHIN: Duration = Duration::from_millis(200);

impl Driver {
    /// Nothing more comes of it: whoever speaks with it is told so. `true` if there is nobody.
    pub(super) fn end_line(&mut self) -> bool {
        self.ends.end.set();
        let exit = self.exit();
        match &self.speech {
            None => true,
            Some(speech) => {
                speech.tell(Told::Over(exit));
                self.wait_for(LAST_WORDS_WITHIN, Due::LastWords);
                false
            }
        }
    }

    /// Does what one thing said means.
    pub(super) async fn hear_said(&mut self, said: Said) {
        match speech::meaning(said, self.is_probed) {
            Meaning::Tell(news) => {
                self.was_ready |= news == News::Ready;
                self.tell(news).await;
            }
            Meaning::Unfit(why) => self.unfit(why).await,
            Meaning::Unusable(why) if !self.is_ending && self.fate.is_none() => {
                self.tell(News::Unusable(plain_why(&why))).await;
            }
            Meaning::StartOver(why) if !self.is_ending && self.fate.is_none() => {
                self.tell(News::StartOver(plain_why(&why))).await;
            }
            Meaning::Unusable(_) | Meaning::StartOver(_) => {}
            Meaning::Probed(is_probed) => self.is_probed = is_probed,
            Meaning::Mute(_) if self.fate.is_some() => {}
            Meaning::Mute(time) => self.wait_for(time, Due::Mute),
            Meaning::Pass(passed) => self.pass_on(passed),
        }
    }

    /// What is for the log, or for a later daemon.
    fn pass_on(&mut self, passed: Passed) {
        match passed {
            // How far its stdout has been used is noted by whoever carries it.
            Passed::Stray(lines) => self.log.put(false, Bytes::from(lines), None),
            Passed::Note(note) => {
                self.speaker_note = note;
                self.keep_note();
            }
            // What is torn is marked where it is carried.
            Passed::WriteBegins(known) => _ = known.send(()),
            Passed::WriteEnds => {}
        }
    }

    /// Has its speaker look after it, if there is one.
    pub(super) fn pass_checkup(&self, checkup: Checkup) {
        if let Some(speech) = &self.speech {
            speech.look_after(checkup);
        }
    }

    /// Has its speaker let it go, if nobody uses it.
    pub(super) fn pass_rest(&self, rest: Rest) {
        if let Some(speech) = self.speech.as_ref().filter(|_| !self.is_ending) {
            speech.let_rest(rest);
        }
    }

    pub(super) async fn unfit(&mut self, why: String) {
        if !self.is_ending && self.fate.is_none() {
            self.tell(speech::unfit(&why, self.is_probed)).await;
        }
    }

    pub(super) fn leave_note(&mut self) {
        let note = self.ends.notes.borrow_and_update().clone();
        if !note.is_empty() {
            self.noted = Some((note, Instant::now()));
            self.keep_note();
        }
    }

    /// Keeps the latest note of the task, joined with that of the speaker.
    pub(super) fn keep_note(&mut self) {
        if self.fate.is_some() {
            return; // There is nothing to be known of it any more.
        }
        let noted = self.noted.as_ref();
        let joined = speech::joined_note(&self.order, noted, &self.speaker_note);
        let Some(joined) = joined else { return };
        let joined = String::from_utf8_lossy(&joined).into_owned();
        let now = millis(time_of_day().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
        self.keeper.change(|kept| (kept.note, kept.noted_ms) = (joined, now));
    }

    /// Leaves the container to its engine: another daemon will come.
    pub(super) async fn let_go(mut self) {
        if let Some(speech) = &self.speech {
            let (answer, mut answered) = oneshot::channel();
            speech.tell(Told::LetGo(answer));
            let give_up_at = Instant::now() + LET_GO_WITHIN;
            loop {
                tokio::select! {
                    // What it has read and could not use is said again: it was not noted.
                    _ = &mut answered => break,
                    said = said_in(&mut self.speech) => match said {
                        Some(said) => _ = speech::passed(said).map(|it| self.pass_on(it)),
                        None => self.speech = None,
                    },
                    () = sleep_until(give_up_at) => {
                        tracing::warn!(server = %self.order.key, "{DID_NOT_LET_GO}");
                        break;
                    }
                }
            }
            while let Some(said) = self.speech.as_mut().and_then(Speech::said_so_far) {
                if let Some(passed) = speech::passed(said) {
                    self.pass_on(passed);
                }
            }
            let _ = timeout(LET_GO_WITHIN, self.is_in_done.wait_for(|is_done| *is_done)).await;
        }
        let mut left = None;
        if let Some(mut carrying) = self.carrying.take() {
            self.leave.notify_one();
            if let Ok(carried) = timeout(LEAVES_WITHIN, &mut carrying).await {
                left = carried.ok().map(|(carrier, _)| carrier);
            } else {
                // It waits for somebody to read what it has, and that was not noted.
                carrying.abort();
                let _ = carrying.await;
            }
        }
        let _ = timeout(WRITTEN_WITHIN, self.log.leave()).await; // Its disk may hang.
        if let Some(mut carrier) = left {
            carrier.note();
        }
        self.keep_hold();
    }
}
