//! Our end of the line to whoever speaks with a server, the same for processes and containers:
//! how it is opened, what is said on it, and what that means.
//!
//! A speaker is never waited for without a limit.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::{LaunchOrder, News};
use crate::lifecycle::note::with_speaker;
use crate::speak::{
    Before, Checkup, Line, Rest, SAID, Said, Speak, TOLD, Told, Way, let_rest, look_after,
    plain_why,
};

/// A server that has closed its stdout has this long to end by itself.
const MUTE_FOR: Duration = Duration::from_secs(2);

/// The same of one that was asked what it need not know: it is started again anyway.
const MUTE_ON_PROBE_FOR: Duration = Duration::from_millis(200);

/// How long a speaker may take to let go.
pub(super) const LET_GO_WITHIN: Duration = Duration::from_secs(2);

/// How long it may take to say what a server said at its end.
pub(super) const LAST_WORDS_WITHIN: Duration = Duration::from_secs(2);

pub(super) const NO_DESCRIPTORS: &str = "the daemon has too many files open";
pub(super) const CLOSED_STDOUT: &str = "it closed its stdout";
pub(super) const DID_NOT_LET_GO: &str = "whoever speaks with it did not let go";

/// Our end of a line.
#[derive(Debug)]
pub(super) struct Speech {
    said: mpsc::Receiver<Said>,
    told: mpsc::Sender<Told>,
}

impl Speech {
    /// Has somebody speak with a server whose leader is this.
    pub(super) fn open(
        speaker: &dyn Speak,
        order: &LaunchOrder,
        pid: u32,
        way: Way,
        before: Option<Before>,
    ) -> Self {
        let (said_to_us, said) = mpsc::channel(SAID);
        let (told, told_by_us) = mpsc::channel(TOLD);
        speaker.speak(Line {
            key: order.key.clone(),
            settings: order.settings.clone(),
            pid: Some(pid),
            way,
            before,
            said: said_to_us,
            told: told_by_us,
        });
        Self { said, told }
    }

    /// Tells something, unless nobody listens.
    pub(super) fn tell(&self, told: Told) {
        let _ = self.told.try_send(told); // There is room for everything there is to tell.
    }

    /// Has its speaker look after the server.
    pub(super) fn look_after(&self, checkup: Checkup) {
        look_after(&self.told, checkup);
    }

    /// Has its speaker let the server go, if nobody uses it.
    pub(super) fn let_rest(&self, rest: Rest) {
        let_rest(&self.told, rest);
    }

    /// What has been said already.
    pub(super) fn said_so_far(&mut self) -> Option<Said> {
        self.said.try_recv().ok()
    }
}

/// What is said next; `None` once there is nobody who could. Cancel-safe.
pub(super) async fn said_in(speech: &mut Option<Speech>) -> Option<Said> {
    match speech {
        None => std::future::pending().await,
        Some(speech) => speech.said.recv().await,
    }
}

/// What something said means to whoever drives a life.
#[derive(Debug)]
pub(super) enum Meaning {
    /// This is told.
    Tell(News),
    /// It is to be ended, for this reason.
    Unfit(String),
    /// It is to be ended and not started again, for this reason.
    Unusable(String),
    /// It is to be ended and started again at once, for this reason.
    StartOver(String),
    /// Whether it is asked what it need not know.
    Probed(bool),
    /// It has so long to end by itself.
    Mute(Duration),
    /// This is for its log, or for a later daemon.
    Pass(Passed),
}

/// What is for a log, or for a later daemon.
#[derive(Debug)]
pub(super) enum Passed {
    /// Whole lines for its log.
    Stray(Vec<u8>),
    Note(String),
    WriteBegins(oneshot::Sender<()>),
    WriteEnds,
}

/// What something said means, of a server that is being asked what it need not know, or not.
/// Pure.
pub(super) fn meaning(said: Said, is_probed: bool) -> Meaning {
    match said {
        Said::Ready => Meaning::Tell(News::Ready),
        Said::Idle(why) => Meaning::Tell(News::Idle(plain_why(&why))),
        // What is wrong with a server here is ended with it.
        Said::Unfit(why) | Said::Unreachable(why) | Said::Hopeless(why) => Meaning::Unfit(why),
        Said::Unusable(why) => Meaning::Unusable(why),
        Said::StartOver(why) => Meaning::StartOver(why),
        Said::Probing(is_probed) => Meaning::Probed(is_probed),
        Said::Mute if is_probed => Meaning::Mute(MUTE_ON_PROBE_FOR),
        Said::Mute => Meaning::Mute(MUTE_FOR),
        Said::Stray(mut lines) => {
            lines.push(b'\n');
            Meaning::Pass(Passed::Stray(lines))
        }
        Said::Note(note) => Meaning::Pass(Passed::Note(note)),
        Said::WriteBegins(known) => Meaning::Pass(Passed::WriteBegins(known)),
        Said::WriteEnds => Meaning::Pass(Passed::WriteEnds),
    }
}

/// The same of one that is being let go: all else was for a task.
pub(super) fn passed(said: Said) -> Option<Passed> {
    match meaning(said, false) {
        Meaning::Pass(passed) => Some(passed),
        Meaning::Tell(_)
        | Meaning::Unfit(_)
        | Meaning::Unusable(_)
        | Meaning::StartOver(_)
        | Meaning::Probed(_)
        | Meaning::Mute(_) => None,
    }
}

/// How it is told that a server cannot be spoken with.
pub(super) fn unfit(why: &str, is_probed: bool) -> News {
    let why = plain_why(why);
    if is_probed { News::UnfitOnProbe(why) } else { News::Unfit(why) }
}

/// The latest note of a task, joined with that of its speaker, for a later daemon.
pub(super) fn joined_note(
    order: &LaunchOrder,
    noted: Option<&(Vec<u8>, Instant)>,
    speaker_note: &str,
) -> Option<Vec<u8>> {
    let (note, noted_at) = noted?;
    let joined = with_speaker(note, speaker_note, noted_at.elapsed());
    if joined.len() == note.len() && !speaker_note.is_empty() {
        tracing::warn!(server = %order.key, "what a later daemon should know is too long");
    }
    Some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_means_the_same_for_processes_and_containers() {
        let shown = |said, is_probed| format!("{:?}", meaning(said, is_probed));
        assert_eq!(shown(Said::Ready, false), "Tell(Ready)");
        assert_eq!(shown(Said::Idle("a\nb".into()), false), "Tell(Idle(\"a\"))");
        for said in [Said::Unfit("x".into()), Said::Unreachable("x".into())] {
            assert_eq!(shown(said, false), "Unfit(\"x\")");
        }
        assert_eq!(shown(Said::Mute, false), "Mute(2s)");
        assert_eq!(shown(Said::Mute, true), "Mute(200ms)");
        assert_eq!(shown(Said::Probing(true), false), "Probed(true)");
        assert_eq!(shown(Said::StartOver("a".into()), true), "StartOver(\"a\")");
        assert_eq!(shown(Said::Stray(b"a".to_vec()), false), "Pass(Stray([97, 10]))");
        assert!(passed(Said::Ready).is_none() && passed(Said::WriteEnds).is_some());
        assert_eq!(unfit("a\nb", true), News::UnfitOnProbe("a".into()));
        assert_eq!(unfit("a", false), News::Unfit("a".into()));
    }
}
