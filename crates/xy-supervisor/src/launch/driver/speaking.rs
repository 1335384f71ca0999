//! What the driver has to do with whoever speaks with the server.
//!
//! A speaker is never waited for without a limit, and what it says is only taken while the
//! shim keeps up: beyond that it waits, and so does its server.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use xy_shim::wire::Order;

use super::{Driver, Due};
use crate::launch::News;
use crate::launch::shim_link::Heard;
use crate::lifecycle::Exit;
use crate::lifecycle::note::with_speaker;
use crate::speak::{
    Before, Checkup, Line, Rest, SAID, Said, TOLD, Told, Way, let_rest, look_after, plain_why,
};

/// A server that has closed its stdout has this long to end by itself.
const MUTE_FOR: Duration = Duration::from_secs(2);

/// The same of one that was asked what it need not know: it is started again anyway.
const MUTE_ON_PROBE_FOR: Duration = Duration::from_millis(200);

/// How long a speaker may take to let go.
const LET_GO_WITHIN: Duration = Duration::from_secs(2);

/// How long it may take to say what a server said at its end.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(2);

const NO_DESCRIPTORS: &str = "the daemon has too many files open";
const CLOSED_STDOUT: &str = "it closed its stdout";
const UNSPEAKABLE: &str = "an older xy started it, so its stdout cannot be read";

/// Our end of a line.
#[derive(Debug)]
pub(super) struct Speech {
    said: mpsc::Receiver<Said>,
    told: mpsc::Sender<Told>,
    /// What is waited for, and until when.
    pub(super) patience: Option<(Instant, Due)>,
}

impl Speech {
    /// Tells something, unless nobody listens.
    fn tell(&self, told: Told) {
        let _ = self.told.try_send(told); // There is room for everything there is to tell.
    }
}

/// What is said next; `None` once there is nobody who could. Cancel-safe.
pub(super) async fn said_in(speech: &mut Option<Speech>) -> Option<Said> {
    match speech {
        None => std::future::pending().await,
        Some(speech) => speech.said.recv().await,
    }
}

/// The ends of a server's pipes, as far as they came.
#[derive(Debug, Default)]
pub(super) struct Pipes {
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: Option<OwnedFd>,
}

impl Driver {
    /// Has somebody speak with it: at its pipes, or where it listens.
    pub(super) async fn open_line(&mut self, pid: u32, pipes: Pipes, mut before: Option<Before>) {
        if self.is_stdio() {
            match Self::pipes_way(pipes) {
                Ok(way) => self.speak(pid, way, before),
                Err(why) => {
                    self.log_unread(before.as_mut());
                    if !self.is_ending {
                        self.unfit(why.to_owned()).await;
                    }
                }
            }
        } else {
            // What it writes to its stdout is for its log.
            self.log_unread(before.as_mut());
            self.speak(pid, Way::Endpoint, before);
        }
    }

    fn pipes_way(pipes: Pipes) -> Result<Way, &'static str> {
        let stdout = pipes.stdout.ok_or(UNSPEAKABLE)?;
        // One that is being ended has no stdin any more: then nothing can be written.
        let stdin = pipes.stdin.or_else(nowhere).ok_or(NO_DESCRIPTORS)?;
        for pipe in [&stdin, &stdout] {
            // Their shim has made them so already; it can only fail for what is not open.
            let _ = rustix::io::ioctl_fionbio(pipe, true);
        }
        Ok(Way::Pipes { stdin, stdout })
    }

    fn log_unread(&mut self, before: Option<&mut Before>) {
        let unread = before.map(|before| std::mem::take(&mut before.unread));
        self.link.put_stray(&unread.unwrap_or_default());
    }

    fn speak(&mut self, pid: u32, way: Way, before: Option<Before>) {
        let (said_to_us, said) = mpsc::channel(SAID);
        let (told, told_by_us) = mpsc::channel(TOLD);
        let speech = Speech { said, told, patience: None };
        if self.is_ending {
            speech.tell(Told::Close);
        }
        self.speech = Some(speech);
        self.speaker.speak(Line {
            key: self.order.key.clone(),
            settings: self.order.settings.clone(),
            pid: Some(pid),
            way,
            before,
            said: said_to_us,
            told: told_by_us,
        });
    }

    /// Does what one thing said means.
    pub(super) async fn hear_said(&mut self, said: Said) {
        match said {
            Said::Ready => self.tell(News::Ready).await,
            // What is wrong with a process here is ended with it.
            Said::Unfit(why) | Said::Unreachable(why) | Said::Hopeless(why) => {
                self.unfit(why).await;
            }
            Said::Idle(why) => self.tell(News::Idle(plain_why(&why))).await,
            Said::Probing(is_probed) => self.is_probed = is_probed,
            Said::Mute if self.is_probed => self.wait_for(MUTE_ON_PROBE_FOR, Due::Mute),
            Said::Mute => self.wait_for(MUTE_FOR, Due::Mute),
            said => self.pass_on(said),
        }
    }

    /// Passes on what is for the shim; the rest is for a task.
    fn pass_on(&mut self, said: Said) {
        match said {
            Said::Stray(mut lines) => {
                lines.push(b'\n');
                self.link.put_stray(&lines);
            }
            Said::Note(note) => {
                self.speaker_note = note;
                self.leave_joined_note();
            }
            Said::WriteBegins(known) => self.link.queue_then(&Order::WriteBegins, known),
            Said::WriteEnds => self.link.queue(&Order::WriteEnds),
            Said::Ready
            | Said::Unfit(_)
            | Said::Unreachable(_)
            | Said::Hopeless(_)
            | Said::Idle(_)
            | Said::Probing(_)
            | Said::Mute => {}
        }
    }

    /// It has closed its stdout and is still there.
    pub(super) async fn on_mute(&mut self) {
        if let Some(speech) = &mut self.speech {
            speech.patience = None;
        }
        self.unfit(CLOSED_STDOUT.to_owned()).await;
    }

    async fn unfit(&mut self, why: String) {
        if !self.is_ending && self.end.is_none() {
            let why = plain_why(&why);
            let is_probed = self.is_probed;
            self.tell(if is_probed { News::UnfitOnProbe(why) } else { News::Unfit(why) }).await;
        }
    }

    /// Has its speaker look after it, if there is one.
    pub(super) fn pass_checkup(&self, checkup: Checkup) {
        if let Some(speech) = &self.speech {
            look_after(&speech.told, checkup);
        }
    }

    /// Has its speaker let it go if nobody uses it, unless it is being ended.
    pub(super) fn pass_rest(&self, rest: Rest) {
        if let Some(speech) = self.speech.as_ref().filter(|_| !self.is_ending) {
            let_rest(&speech.told, rest);
        }
    }

    /// The server is being ended.
    pub(super) fn close_line(&self) {
        if let Some(speech) = &self.speech {
            speech.tell(Told::Close);
        }
    }

    /// It has ended. What is left in its stdout is still to be said.
    pub(super) fn end_line(&mut self, exit: Exit) {
        match &self.speech {
            None => self.finish(),
            Some(speech) => {
                speech.tell(Told::Over(exit));
                self.wait_for(LAST_WORDS_WITHIN, Due::LastWords);
            }
        }
    }

    /// Nobody saw how it ended, and nothing more can be kept of it.
    pub(super) fn drop_line(&mut self) {
        if let Some(speech) = self.speech.take() {
            speech.tell(Told::Over(Exit::UNSEEN));
        }
    }

    fn wait_for(&mut self, time: Duration, what: Due) {
        let is_over = self.end.is_some();
        if let Some(speech) = &mut self.speech
            && (what == Due::LastWords || !is_over)
        {
            speech.patience = Some((Instant::now() + time, what));
        }
    }

    /// Nobody speaks with it any more.
    pub(super) fn on_speaker_gone(&mut self) {
        self.speech = None;
        if self.end.is_some() {
            self.finish();
        }
    }

    /// Nothing more will come: the shim may end.
    pub(super) fn finish(&mut self) {
        self.speech = None;
        self.link.queue(&Order::Finish);
    }

    /// Leaves the latest note of the task, joined with that of the speaker.
    pub(super) fn leave_joined_note(&mut self) {
        let Some((note, noted_at)) = &self.noted else { return };
        let joined = with_speaker(note, &self.speaker_note, noted_at.elapsed());
        if joined.len() == note.len() && !self.speaker_note.is_empty() {
            tracing::warn!(server = %self.order.key, "what a later daemon should know is too long");
        }
        self.link.leave_note(&joined);
    }

    /// Takes the line back; what its speaker could not use yet goes to the shim.
    pub(super) async fn take_back_line(&mut self) {
        let Some(speech) = &self.speech else { return };
        let (answer, mut answered) = oneshot::channel();
        speech.tell(Told::LetGo(answer));
        let give_up_at = Instant::now() + LET_GO_WITHIN;
        let rest = loop {
            tokio::select! {
                rest = &mut answered => break rest.ok(),
                said = said_in(&mut self.speech), if self.link.has_room() => match said {
                    Some(said) => self.pass_on(said),
                    None => self.speech = None,
                },
                heard = self.link.next(&self.order.logs) => {
                    if !matches!(heard, Ok(Heard::Report(_) | Heard::Room)) {
                        return; // There is no shim any more that could take it.
                    }
                }
                () = sleep_until(give_up_at) => break None,
            }
        };
        // What was said before the answer comes before it.
        while let Some(said) = self.speech.as_mut().and_then(|speech| speech.said.try_recv().ok()) {
            self.pass_on(said);
        }
        match rest {
            Some(rest) => self.link.give_back(&rest),
            None => {
                tracing::warn!(server = %self.order.key, "whoever speaks with it did not let go");
            }
        }
    }
}

/// A pipe that nobody reads.
fn nowhere() -> Option<OwnedFd> {
    io::pipe().ok().map(|(_, writer)| writer.into())
}
