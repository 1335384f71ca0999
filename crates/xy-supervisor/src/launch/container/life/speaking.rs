//! What the driver has to do with whoever speaks with the server, and what a later one has to
//! know.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::{Driver, Due, WRITTEN_WITHIN};
use crate::launch::{News, millis};
use crate::lifecycle::note::with_speaker;
use crate::speak::{Checkup, Rest, Said, Told, let_rest, look_after, plain_why};
use crate::wait::time_of_day;

/// A server that has closed its stdout has this long to end by itself.
const MUTE_FOR: Duration = Duration::from_secs(2);

/// The same of one that was asked what it need not know: it is started again anyway.
const MUTE_ON_PROBE_FOR: Duration = Duration::from_millis(200);

/// How long a speaker may take to let go, and to say what a server said at its end.
const LET_GO_WITHIN: Duration = Duration::from_secs(2);
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(2);

/// Our end of a line.
pub(super) struct Speech {
    pub(super) said: mpsc::Receiver<Said>,
    pub(super) told: mpsc::Sender<Told>,
}

impl Speech {
    pub(super) fn tell(&self, told: Told) {
        let _ = self.told.try_send(told); // There is room for everything there is to tell.
    }
}

impl Driver {
    /// Nothing more comes of it: whoever speaks with it is told so. `true` if there is nobody.
    pub(super) fn end_line(&mut self) -> bool {
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
        match said {
            Said::Ready => {
                self.was_ready = true;
                self.tell(News::Ready).await;
            }
            Said::Unfit(why) | Said::Unreachable(why) | Said::Hopeless(why) => {
                self.unfit(why).await;
            }
            Said::Idle(why) if self.fate.is_none() => self.tell(News::Idle(plain_why(&why))).await,
            Said::Probing(is_probed) => self.is_probed = is_probed,
            Said::Mute if self.fate.is_some() => {}
            Said::Mute if self.is_probed => self.wait_for(MUTE_ON_PROBE_FOR, Due::Mute),
            Said::Mute => self.wait_for(MUTE_FOR, Due::Mute),
            said => self.pass_on(said),
        }
    }

    /// What is for the log, or for a later daemon.
    pub(super) fn pass_on(&mut self, said: Said) {
        match said {
            Said::Stray(mut lines) => {
                lines.push(b'\n');
                self.log.put(false, Bytes::from(lines));
            }
            Said::Note(note) => {
                self.speaker_note = note;
                self.keep_note();
            }
            // What is torn is marked where it is carried.
            Said::WriteBegins(known) => _ = known.send(()),
            Said::WriteEnds
            | Said::Ready
            | Said::Unfit(_)
            | Said::Unreachable(_)
            | Said::Hopeless(_)
            | Said::Idle(_)
            | Said::Probing(_)
            | Said::Mute => {}
        }
    }

    /// Has its speaker look after it, if there is one.
    pub(super) fn pass_checkup(&self, checkup: Checkup) {
        if let Some(speech) = &self.speech {
            look_after(&speech.told, checkup);
        }
    }

    /// Has its speaker let it go, if nobody uses it.
    pub(super) fn pass_rest(&self, rest: Rest) {
        if let Some(speech) = self.speech.as_ref().filter(|_| !self.is_ending) {
            let_rest(&speech.told, rest);
        }
    }

    pub(super) async fn unfit(&mut self, why: String) {
        if !self.is_ending && self.fate.is_none() {
            let why = plain_why(&why);
            let is_probed = self.is_probed;
            self.tell(if is_probed { News::UnfitOnProbe(why) } else { News::Unfit(why) }).await;
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
        let Some((note, noted_at)) = &self.noted else { return };
        let joined = with_speaker(note, &self.speaker_note, noted_at.elapsed());
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
                        Some(said) => self.pass_on(said),
                        None => self.speech = None,
                    },
                    () = sleep_until(give_up_at) => {
                        tracing::warn!(server = %self.order.key, "whoever speaks with it did not let go");
                        break;
                    }
                }
            }
            while let Some(said) =
                self.speech.as_mut().and_then(|speech| speech.said.try_recv().ok())
            {
                self.pass_on(said);
            }
            let _ = timeout(LET_GO_WITHIN, self.is_in_done.wait_for(|is_done| *is_done)).await;
        }
        if let Some(carrying) = self.carrying.take() {
            carrying.abort();
            let _ = carrying.await;
        }
        let _ = timeout(WRITTEN_WITHIN, self.log.finish()).await; // Its disk may hang.
        // It stays ours: nobody here must take it for one that has been left.
    }
}

/// What is said next; `None` once there is nobody who could. Cancel-safe.
pub(super) async fn said_in(speech: &mut Option<Speech>) -> Option<Said> {
    match speech {
        None => std::future::pending().await,
        Some(speech) => speech.said.recv().await,
    }
}
