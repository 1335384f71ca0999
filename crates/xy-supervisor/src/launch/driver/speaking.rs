//! What the driver has to do with whoever speaks with the server.
//!
//! A speaker is never waited for without a limit, and what it says is only taken while the
//! shim keeps up: beyond that it waits, and so does its server.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use xy_shim::wire::Order;

use super::{Driver, Due};
use crate::launch::News;
use crate::launch::shim_link::Heard;
use crate::launch::speech::{
    self, CLOSED_STDOUT, DID_NOT_LET_GO, LAST_WORDS_WITHIN, LET_GO_WITHIN, Meaning, NO_DESCRIPTORS,
    Passed, Speech, said_in,
};
use crate::lifecycle::Exit;
use crate::speak::{Before, Checkup, Rest, Said, Told, Way, plain_why};

const UNSPEAKABLE: &str = "an older xy started it, so its stdout cannot be read";

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
        let speech = Speech::open(self.speaker.as_ref(), &self.order, pid, way, before);
        if self.is_ending {
            speech.tell(Told::Close { is_hung: false });
        }
        (self.speech, self.patience) = (Some(speech), None);
    }

    /// Does what one thing said means.
    pub(super) async fn hear_said(&mut self, said: Said) {
        match speech::meaning(said, self.is_probed) {
            Meaning::Tell(news) => self.tell(news).await,
            Meaning::Unfit(why) => self.unfit(why).await,
            Meaning::Unusable(why) if !self.is_ending && self.end.is_none() => {
                self.tell(News::Unusable(plain_why(&why))).await;
            }
            Meaning::StartOver(why) if !self.is_ending && self.end.is_none() => {
                self.tell(News::StartOver(plain_why(&why))).await;
            }
            Meaning::Unusable(_) | Meaning::StartOver(_) => {}
            Meaning::Probed(is_probed) => self.is_probed = is_probed,
            Meaning::Mute(time) => self.wait_for(time, Due::Mute),
            Meaning::Pass(passed) => self.pass_on(passed),
        }
    }

    /// Passes on what is for the shim.
    fn pass_on(&mut self, passed: Passed) {
        match passed {
            Passed::Stray(lines) => self.link.put_stray(&lines),
            Passed::Note(note) => {
                self.speaker_note = note;
                self.leave_joined_note();
            }
            Passed::WriteBegins(known) => self.link.queue_then(&Order::WriteBegins, known),
            Passed::WriteEnds => self.link.queue(&Order::WriteEnds),
        }
    }

    /// It has closed its stdout and is still there.
    pub(super) async fn on_mute(&mut self) {
        self.patience = None;
        self.unfit(CLOSED_STDOUT.to_owned()).await;
    }

    async fn unfit(&mut self, why: String) {
        if !self.is_ending && self.end.is_none() {
            self.tell(speech::unfit(&why, self.is_probed)).await;
        }
    }

    /// Has its speaker look after it, if there is one.
    pub(super) fn pass_checkup(&self, checkup: Checkup) {
        if let Some(speech) = &self.speech {
            speech.look_after(checkup);
        }
    }

    /// Has its speaker let it go if nobody uses it, unless it is being ended.
    pub(super) fn pass_rest(&self, rest: Rest) {
        if let Some(speech) = self.speech.as_ref().filter(|_| !self.is_ending) {
            speech.let_rest(rest);
        }
    }

    /// The server is being ended.
    pub(super) fn close_line(&self, is_hung: bool) {
        if let Some(speech) = &self.speech {
            speech.tell(Told::Close { is_hung });
        }
    }

    /// It has ended. What is left in its stdout is still to be said.
    pub(super) fn end_line(&mut self, exit: Exit) {
        self.ends.end.set();
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
        self.ends.end.set();
        if let Some(speech) = self.speech.take() {
            speech.tell(Told::Over(Exit::UNSEEN));
        }
    }

    fn wait_for(&mut self, time: Duration, what: Due) {
        if self.speech.is_some() && (what == Due::LastWords || self.end.is_none()) {
            self.patience = Some((Instant::now() + time, what));
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
        let noted = self.noted.as_ref();
        if let Some(joined) = speech::joined_note(&self.order, noted, &self.speaker_note) {
            self.link.leave_note(&joined);
        }
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
                    Some(said) => _ = speech::passed(said).map(|it| self.pass_on(it)),
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
        while let Some(said) = self.speech.as_mut().and_then(Speech::said_so_far) {
            if let Some(passed) = speech::passed(said) {
                self.pass_on(passed);
            }
        }
        if let Some(rest) = rest {
            self.link.give_back(&rest);
        } else {
            tracing::warn!(server = %self.order.key, "{DID_NOT_LET_GO}");
        }
    }
}

/// A pipe that nobody reads.
fn nowhere() -> Option<OwnedFd> {
    io::pipe().ok().map(|(_, writer)| writer.into())
}
