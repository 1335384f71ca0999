//! The seam to whoever speaks with servers. The supervisor knows no protocol: it hands over
//! the ends of a server's pipes, or says that it listens somewhere, and is told when that
//! server is ready.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use xy_config::settings::ServerSettings;

use crate::health::Outcome;
use crate::instance::InstanceKey;
use crate::lifecycle::Exit;

mod listener;

pub use listener::Listener;

/// So much said is kept until it is heard; then the speaker waits.
pub(crate) const SAID: usize = 16;

/// A speaker is told to close, to let go and that it is over, once each at most.
const TOLD_ONCE: usize = 4;

/// So much is told before it is heard; what is not of those is only told while there is more
/// room than they need.
pub(crate) const TOLD: usize = TOLD_ONCE + 4;

/// Has a speaker look after its server, if it listens: without an answer, nobody does.
pub(crate) fn look_after(told: &mpsc::Sender<Told>, checkup: Checkup) {
    tell_if_room(told, Told::Checkup(checkup));
}

/// Has a speaker let its server go if nobody uses that; the same.
pub(crate) fn let_rest(told: &mpsc::Sender<Told>, rest: Rest) {
    tell_if_room(told, Told::Rest(rest));
}

fn tell_if_room(told: &mpsc::Sender<Told>, what: Told) {
    if told.capacity() > TOLD_ONCE {
        let _ = told.try_send(what); // Nobody may be there any more.
    }
}

/// The longest reason, in characters.
const LONGEST_WHY: usize = 500;

/// A reason as it is kept: one line, and not for ever.
pub(crate) fn plain_why(why: &str) -> String {
    why.lines().next().unwrap_or_default().chars().take(LONGEST_WHY).collect()
}

/// Speaks with servers.
pub trait Speak: Send + Sync + 'static {
    /// A life that has begun. Must not block. Dropping the line hangs up: then nobody reads
    /// what the server says.
    fn speak(&self, line: Line);
}

/// The way to one server, for one life of it.
#[derive(Debug)]
pub struct Line {
    /// Whose life it is.
    pub key: InstanceKey,
    /// What its file says.
    pub settings: Arc<ServerSettings>,
    /// The leader of its processes, if it has any here.
    pub pid: Option<u32>,
    /// Where it is spoken to.
    pub way: Way,
    /// Of a life that an earlier daemon began: what that daemon's speaker had to say of it,
    /// and what the server said while nobody listened, to be read before its stdout.
    pub before: Option<Before>,
    /// What the speaker says to the supervisor.
    pub said: mpsc::Sender<Said>,
    /// What the supervisor tells the speaker. Closed without a word if nothing more is known.
    pub told: mpsc::Receiver<Told>,
}

/// Where a server is spoken to.
#[derive(Debug)]
pub enum Way {
    /// At its pipes.
    Pipes {
        /// Where it hears. Non-blocking.
        stdin: OwnedFd,
        /// Where it answers. Non-blocking.
        stdout: OwnedFd,
    },
    /// Where its settings say that it listens.
    Endpoint,
}

/// What there was before this daemon.
#[derive(Debug, Default)]
pub struct Before {
    /// The last [`Said::Note`]; empty if there was none.
    pub note: String,
    /// What the server said meanwhile.
    pub unread: Vec<u8>,
}

/// What a speaker says of a server.
#[derive(Debug)]
pub enum Said {
    /// It has answered as it should: it is ready.
    Ready,
    /// It cannot be spoken with, for this reason: it is ended, which counts as a failure.
    Unfit(String),
    /// It does not answer at all, for this reason, and lives somewhere else: there is nothing
    /// to end and nobody to blame. It is tried again after a while.
    Unreachable(String),
    /// It refuses to be spoken with, for this reason, and will until somebody changes
    /// something. It is given up.
    Hopeless(String),
    /// It must not be used, for this reason, and the next life would be no better: it is ended
    /// and given up at once.
    Unusable(String),
    /// It is asked something that it need not know, to find out how to speak with it, or
    /// (`false`) that is over. If it ends or falls silent meanwhile, that was our doing: it is
    /// started again at once, and nothing is counted, once.
    Probing(bool),
    /// It has to begin a new life, for this reason, which is our doing: it is ended and started
    /// again at once, and nothing is counted.
    StartOver(String),
    /// Nobody uses it, so it may go, for this reason. From here on nothing is asked of it.
    Idle(String),
    /// It has closed its stdout. If it does not end by itself soon, it is unfit.
    Mute,
    /// It said something that is no message of the protocol: this is for its log. Whole
    /// lines, one or several, without the end of the last.
    Stray(Vec<u8>),
    /// What the speaker of a later daemon has to know; replaces the last one. One that does
    /// not fit beside the supervisor's own note (2 MiB in all) is not kept.
    Note(String),
    /// A message is to be written that may be torn if the daemon is killed meanwhile.
    /// Answered once that is known to the shim; only then its first byte may be written.
    /// Without an answer the shim is gone, and so is the server.
    WriteBegins(oneshot::Sender<()>),
    /// That message has been written whole.
    WriteEnds,
}

/// What the supervisor tells a speaker.
#[derive(Debug)]
pub enum Told {
    /// The server is being ended: write nothing more and close stdin, but read on. One that
    /// is adopted while it is being ended is told so at once.
    Close {
        /// The server was found hung. Calls that it has begun may hang its successor too.
        is_hung: bool,
    },
    /// Another daemon will go on with it: finish what has been begun to be written, close
    /// both pipes, and answer with what was read and is no whole message yet. Everything said
    /// before the answer is heard; nothing after it, nor after two seconds.
    LetGo(oneshot::Sender<Vec<u8>>),
    /// It has ended like this. The last word: what is still in stdout is to be read, without
    /// waiting for more, and the line to be dropped, within two seconds.
    Over(Exit),
    /// If nobody uses it, let it go: say [`Said::Idle`] then. Not the last word.
    Rest(Rest),
    /// Say how it is. Not the last word, and it need not be answered.
    Checkup(Checkup),
}

/// A server is to go if nobody uses it.
#[derive(Debug)]
pub struct Rest {
    /// The reason, as the end of `it sleeps: `.
    pub why: String,
    /// Whether it goes.
    pub reply: oneshot::Sender<bool>,
}

/// What a speaker is to say of its server now.
#[derive(Debug)]
pub struct Checkup {
    /// Ask it something that it has to answer within this time; without, only say what is
    /// known.
    pub within: Option<Duration>,
    /// It may not know what it is asked, so ask it something else too if it does not answer that
    /// in half of the time.
    pub is_in_doubt: bool,
    /// Where that is said.
    pub reply: oneshot::Sender<Seen>,
}

/// What a speaker knows of its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// What came of asking.
    pub outcome: Outcome,
    /// Calls that somebody waits for.
    pub calls: u32,
    /// How many messages it has said; of two numbers only it matters whether they are equal.
    pub messages: u64,
    /// How often anything at all was read from it; the same.
    pub reads: u64,
    /// For how long nobody has used it; `None` if somebody does.
    pub idle_for: Option<Duration>,
}
