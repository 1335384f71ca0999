//! Drives the life of one container, from its first order to the last news.
//!
//! Its engine minds the container, and answers when it likes: everything asked of it is a task
//! of its own, and this one only hears of what came of it. Whoever speaks with the server gets
//! a pair of pipes, as with a process.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bollard::container::AttachContainerResults;
use bytes::Bytes;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout};
use xy_protocol::server::Transport;
use xy_shim::sequence::Sequence;

use super::Shared;
use super::attach::{self, Carrier, Cut, PipeEnds};
use super::engine::Engine;
use super::fate::{Fate, Now, Watched};
use super::grip::Grip;
use super::kept::Keeper;
use super::log::LogSink;
use super::missed::{self, Counter, Missed, Place};
use super::overlap::with_fresh;
use super::reconcile::Hold;
use super::start::Begun;
use super::witness::Witness;
use super::{create, faults};
use crate::launch::speech::{CLOSED_STDOUT, NO_DESCRIPTORS, Speech, said_in};
use crate::launch::{Ask, Contained, InstanceEnds, LaunchOrder, News};
use crate::logs::instance_log;
use crate::speak::{Before, Checkup, Rest, Said, Told, Way};
use crate::wait::until;

mod begin;
mod ending;
mod gripping;
mod speaking;

pub(super) use begin::run;
use gripping::gone;

/// How long an engine that is not there is waited for, when something is to be ended.
const ENGINE_BACK_WITHIN: Duration = Duration::from_secs(5);

/// How long a log may take to be written at the end.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);

/// How long an engine may take to attach again, and to say what was missed.
const ATTACH_WITHIN: Duration = Duration::from_secs(10);

/// How often it is looked whether somebody else has done something to it.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A stream that is cut sooner than this has not been one.
const LEAST_STREAM: Duration = Duration::from_secs(1);

/// So many of these in a row mean that it has closed its output.
const MOST_SHORT: u32 = 3;

const PAUSED: &str = "somebody else has paused its container";
const DEAF: &str = "its engine was restarted, or cut it off, and it hears nobody any more";
const DOUBTFUL: &str = "the connection with its engine was cut in the middle of a conversation";

/// One thing that happens while a life goes on.
enum Turn {
    Asked(Ask),
    Dropped,
    Noted,
    Said(Said),
    Checkup(Checkup),
    Rest(Rest),
    SpeakerGone,
    LogTrouble,
    Cut(Box<Carrier>, Cut),
    Rejoined(Result<Box<Rejoined>, String>),
    /// The rest of what it said has been passed on, or cannot be.
    RestHeard,
    Over(Fate),
    /// Who held its stream is gone.
    GripGone,
    Looked(Result<Now, String>),
    Due(Due),
    /// Something asked of the engine is done, or came to nothing.
    ErrandDone {
        is_engine_gone: bool,
    },
}

/// What is waited for until a certain time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// The end of a server that has closed its stdout.
    Mute,
    /// What a server said at its end, from whoever spoke with it.
    LastWords,
    /// The last of its output.
    LastOutput,
    /// The end of its grace.
    Kill,
    /// The end of the engine's time to kill it.
    GiveUp,
    Look,
}

/// Drives one container that runs.
#[expect(clippy::struct_excessive_bools, reason = "these are independent of each other")]
pub(super) struct Driver {
    shared: Arc<Shared>,
    order: LaunchOrder,
    ends: InstanceEnds,
    engine: Engine,
    id: String,
    pid: u32,
    watched: Watched,
    keeper: Keeper,
    /// That it is ours; until its end, or for ever if it is left to another daemon.
    hold: Option<Hold>,
    log: LogSink,
    /// The number of the first line in its log that is of this life.
    first_line: u64,
    troubles: watch::Receiver<Option<String>>,
    attached: Option<AttachContainerResults>,
    grip: Option<Grip>,
    gripped_at: Instant,
    /// While nothing is carried.
    carrier: Option<Box<Carrier>>,
    carrying: Option<JoinHandle<(Carrier, Cut)>>,
    /// A stream that was cut is being attached again.
    rejoining: Option<JoinHandle<Result<Rejoined, String>>>,
    /// The rest of what it said is being passed on, after its end.
    resting: Option<JoinHandle<()>>,
    carried_since: Instant,
    short_streams: u32,
    was_doubtful: bool,
    /// The stream was cut while it ran, and no other has lasted since.
    was_cut: bool,
    /// Which of them ended first, also while the stream is still being read.
    sequence: Option<Arc<Sequence>>,
    is_in_done: watch::Receiver<bool>,
    /// Has what carries its bytes note how far it is, and end.
    leave: Arc<Notify>,
    is_ending_shared: Arc<AtomicBool>,
    pipe_ends: Option<PipeEnds>,
    waiting: Option<JoinHandle<Fate>>,
    looking: Option<JoinHandle<Result<Now, String>>>,
    /// What is asked of the engine: whether that is not there.
    errands: JoinSet<bool>,
    speech: Option<Speech>,
    /// What its speaker has to say to that of a later daemon.
    speaker_note: String,
    noted: Option<(Vec<u8>, Instant)>,
    is_held: bool,
    /// Whether a task has gone on with it: not at once, if an earlier daemon began it.
    has_task: bool,
    is_ending: bool,
    is_probed: bool,
    was_ready: bool,
    dues: Vec<(Instant, Due)>,
    fate: Option<Fate>,
}

impl Driver {
    pub(super) fn new(
        shared: Arc<Shared>,
        order: LaunchOrder,
        ends: InstanceEnds,
        begun: Begun,
    ) -> Self {
        let Begun { engine, id, pid, attached, grip, keeper, place, ledger, hold } = begun;
        let watched = Watched {
            engine: engine.clone(),
            id: id.clone(),
            memory: order.settings.container().and_then(|it| it.memory),
            witness: engine.closes_stdin.then(|| Witness::of(pid, &id)).flatten(),
            is_ending: Arc::default(),
        };
        let file = instance_log(&shared.logs_dir, &order.key);
        let (log, troubles) = LogSink::open(&file, order.logs.clone(), ledger);
        let is_ending_shared = Arc::new(AtomicBool::new(false));
        let (is_in_done_sender, is_in_done) = watch::channel(false);
        let leave = Arc::<Notify>::default();
        let is_stdio = order.settings.transport() == Transport::Stdio;
        let pipes = is_stdio.then(attach::pipes).and_then(Result::ok);
        let (stdin, stdout, pipe_ends) = match pipes {
            Some((stdin, stdout, ends)) => (Some(stdin), Some(stdout), Some(ends)),
            None => (None, None, None),
        };
        let stream = grip.as_ref().map(Grip::stream);
        let sequence = engine.closes_stdin.then(|| Sequence::watch(pid, &id, stream)).flatten();
        let sequence = sequence.map(Arc::new);
        let carrier = Carrier {
            stdout,
            is_unheard: false,
            stdin,
            log: log.clone(),
            counter: Counter::after(place.noted()),
            place,
            torn: keeper.torn_mark(),
            is_ending: is_ending_shared.clone(),
            is_in_done: is_in_done_sender,
            leave: leave.clone(),
            sequence: sequence.clone(),
        };
        Self {
            watched,
            sequence,
            first_line: order.logs.next_seq(),
            noted: (!order.note.is_empty()).then(|| (order.note.clone(), Instant::now())),
            shared,
            order,
            ends,
            engine,
            id,
            pid,
            keeper,
            hold: Some(hold),
            log,
            troubles,
            attached,
            grip,
            gripped_at: Instant::now(),
            carrier: Some(Box::new(carrier)),
            carrying: None,
            rejoining: None,
            resting: None,
            carried_since: Instant::now(),
            short_streams: 0,
            was_doubtful: false,
            was_cut: false,
            is_in_done,
            leave,
            is_ending_shared,
            pipe_ends,
            waiting: None,
            looking: None,
            errands: JoinSet::new(),
            speech: None,
            speaker_note: String::new(),
            is_held: true,
            has_task: true,
            is_ending: false,
            is_probed: false,
            was_ready: false,
            dues: Vec::new(),
            fate: None,
        }
    }

    /// Goes on with a container that an earlier daemon began, of which this was missed, or
    /// which has ended meanwhile.
    pub(super) async fn run_adopted(
        mut self,
        missed: Missed,
        speaker_note: String,
        fate: Option<Fate>,
        is_stopping: bool,
    ) {
        self.has_task = false;
        self.was_ready = true; // It has begun, so it could be run.
        self.is_ending = is_stopping;
        self.speaker_note.clone_from(&speaker_note);
        let heard = self.carrier.as_mut().map_or_else(Place::default, |carrier| {
            carrier.count(&missed);
            carrier.counter.heard()
        });
        let Missed { out: mut unread, err, err_lost, gaps } = missed;
        if gaps[1] {
            self.log.miss(true, None);
        }
        self.log.put(true, Bytes::from(err), Some(heard.err.saturating_sub(err_lost)));
        if err_lost > 0 {
            self.log.miss(true, Some(heard.err));
        }
        // What nobody can answer any more, or nobody has to, is only logged.
        if fate.is_some() || !self.is_stdio() {
            if gaps[0] {
                self.log.miss(false, None);
            }
            self.log.put(false, Bytes::from(std::mem::take(&mut unread)), Some(heard.out));
        }
        if let Some(fate) = fate {
            // How it ended is kept until there is a task that can be told.
            if self.ends.notes.changed().await.is_err() {
                return self.keep_hold();
            }
            self.has_task = true;
            self.attached = None;
            self.over(fate).await;
            return self.go_on_to_the_end().await;
        }
        let before = Before { note: speaker_note, unread };
        self.begin(Some(before)).await;
        self.go_on_to_the_end().await;
    }

    /// Drives it to its end.
    pub(super) async fn run(mut self) {
        self.begin(None).await;
        self.go_on_to_the_end().await;
    }

    async fn begin(&mut self, before: Option<Before>) {
        let container = self.contained();
        self.tell(News::Contained(Arc::new(container))).await;
        self.tell(News::Launched { pid: self.pid }).await;
        let way = match (self.is_stdio(), self.pipe_ends.take()) {
            (false, _) => Way::Endpoint,
            (true, Some(PipeEnds { stdin, stdout })) => Way::Pipes { stdin, stdout },
            (true, None) => {
                self.unfit(NO_DESCRIPTORS.to_owned()).await;
                self.carry(Missed::default());
                return self.watch();
            }
        };
        let speaker = self.shared.speaker.as_ref();
        let speech = Speech::open(speaker, &self.order, self.pid, way, before);
        if self.is_ending {
            speech.tell(Told::Close { is_hung: false });
        }
        self.speech = Some(speech);
        self.carry(Missed::default());
        self.watch();
    }

    fn contained(&self) -> Contained {
        Contained {
            engine: self.engine.kind(),
            version: self.engine.version.clone(),
            socket: self.engine.socket.clone(),
            name: create::name(&self.shared.home, &self.order.key),
            id: self.id.clone(),
            is_here: xy_shim::cpu::is_minded_for(self.pid, &self.id),
            ends_with_daemon: self.engine.closes_stdin && self.is_stdio() && self.grip.is_none(),
        }
    }

    /// Has its bytes carried by the stream that is there, after what was missed before.
    fn carry(&mut self, missed: Missed) {
        if let (Some(carrier), Some(attached)) = (self.carrier.take(), self.attached.take()) {
            self.carried_since = Instant::now();
            self.carrying = Some(tokio::spawn(carrier.carry(attached, missed)));
        }
    }

    /// Has it watched.
    fn watch(&mut self) {
        let watched = self.watched.clone();
        self.waiting = Some(tokio::spawn(async move { watched.until_over().await }));
        self.wait_for(LOOK_EVERY, Due::Look);
    }

    async fn go_on_to_the_end(mut self) {
        loop {
            match self.next_turn().await {
                Turn::Asked(Ask::LetGo) => return self.let_go().await,
                Turn::Asked(ask) => {
                    self.has_task = true;
                    if self.ends.notes.has_changed().unwrap_or(false) {
                        self.leave_note(); // It was left before this was asked.
                    }
                    match ask {
                        Ask::Stop { grace, is_hung, .. } => self.stop(grace, is_hung),
                        Ask::Kill => self.kill(),
                        Ask::Rules { .. } | Ask::LetGo => {} // No engine could keep them.
                    }
                }
                // Whoever took it over has gone before anybody could go on with it.
                Turn::Dropped if !self.has_task => return self.let_go().await,
                Turn::Dropped => {
                    self.is_held = false;
                    self.stop(self.order.settings.rules.stop.grace, false);
                }
                Turn::Noted => {
                    self.has_task = true;
                    self.leave_note();
                }
                Turn::Said(said) => self.hear_said(said).await,
                Turn::Checkup(checkup) => self.pass_checkup(checkup),
                Turn::Rest(rest) => self.pass_rest(rest),
                Turn::SpeakerGone => {
                    self.speech = None;
                    if self.fate.is_some() && self.carrying.is_none() && self.resting.is_none() {
                        break;
                    }
                }
                Turn::LogTrouble => {
                    let problem = self.troubles.borrow_and_update().clone();
                    self.tell(News::LogTrouble(problem)).await;
                }
                Turn::Cut(carrier, cut) => {
                    if self.on_cut(carrier, &cut) {
                        break;
                    }
                }
                Turn::Rejoined(again) => self.rejoined(again).await,
                Turn::RestHeard => {
                    self.dues.retain(|(_, it)| *it != Due::LastOutput);
                    if self.end_line() {
                        break;
                    }
                }
                Turn::Over(fate) => self.over(fate).await,
                Turn::GripGone => self.grip_again().await,
                Turn::Looked(now) => self.looked(now).await,
                // Nothing can be done; it is found when the engine is back.
                Turn::ErrandDone { is_engine_gone } if is_engine_gone && self.fate.is_none() => {
                    self.wait_for(ENGINE_BACK_WITHIN, Due::GiveUp);
                }
                Turn::ErrandDone { .. } => {}
                Turn::Due(due) => {
                    if self.on_due(due).await {
                        break;
                    }
                }
            }
        }
        self.finish().await;
    }

    /// Waits for one thing; every arm is cancel-safe.
    async fn next_turn(&mut self) -> Turn {
        let next_due = self.dues.iter().min_by_key(|(at, _)| *at).copied();
        tokio::select! {
            biased;
            ask = self.ends.asks.recv(), if self.is_held => ask.map_or(Turn::Dropped, Turn::Asked),
            Ok(()) = self.ends.notes.changed(), if self.is_held => Turn::Noted,
            Some(checkup) = self.ends.checkups.recv() => Turn::Checkup(checkup),
            Some(rest) = self.ends.rests.recv() => Turn::Rest(rest),
            said = said_in(&mut self.speech) => said.map_or(Turn::SpeakerGone, Turn::Said),
            cut = ended(&mut self.carrying) => {
                self.carrying = None;
                match cut {
                    Some((carrier, cut)) => Turn::Cut(Box::new(carrier), cut),
                    None => Turn::Over(Fate::Lost("the daemon has a fault".to_owned())),
                }
            }
            again = ended(&mut self.rejoining) => {
                self.rejoining = None;
                let again = again.unwrap_or_else(|| Err("the daemon has a fault".to_owned()));
                Turn::Rejoined(again.map(Box::new))
            }
            _ = ended(&mut self.resting) => {
                self.resting = None;
                Turn::RestHeard
            }
            fate = ended(&mut self.waiting) => {
                self.waiting = None;
                Turn::Over(fate.unwrap_or_else(|| Fate::Lost("the daemon has a fault".to_owned())))
            }
            now = ended(&mut self.looking) => {
                self.looking = None;
                Turn::Looked(now.unwrap_or_else(|| Err("the daemon has a fault".to_owned())))
            }
            () = gone(self.grip.as_ref()) => Turn::GripGone,
            Ok(()) = self.troubles.changed() => Turn::LogTrouble,
            Some(done) = self.errands.join_next() => {
                Turn::ErrandDone { is_engine_gone: done.unwrap_or(false) }
            }
            () = until(next_due.map(|(at, _)| at)) => {
                let due = next_due.map_or(Due::Look, |(_, due)| due);
                self.dues.retain(|(_, it)| *it != due);
                Turn::Due(due)
            }
        }
    }

    fn wait_for(&mut self, time: Duration, what: Due) {
        self.dues.retain(|(_, it)| *it != what);
        self.dues.push((Instant::now() + time, what));
    }

    /// `true` once there is nothing more to wait for.
    async fn on_due(&mut self, due: Due) -> bool {
        match due {
            Due::Mute => self.unfit(CLOSED_STDOUT.to_owned()).await,
            Due::LastWords => {
                self.speech = None;
                return true;
            }
            Due::LastOutput => {
                if let Some(resting) = self.resting.take() {
                    tracing::warn!(server = %self.order.key, "its last words may be missing");
                    resting.abort();
                    let _ = resting.await;
                }
                if let Some(carrying) = self.carrying.take() {
                    carrying.abort();
                    // Until it is gone it may still read what somebody takes for unread.
                    let _ = carrying.await;
                }
                return self.end_line();
            }
            Due::Kill => self.kill(),
            Due::GiveUp => {
                let why = "its engine did not end it".to_owned();
                tracing::error!(server = %self.order.key, container = self.id, why);
                self.over(Fate::Lost(why)).await;
            }
            Due::Look => {
                if self.fate.is_none() && self.looking.is_none() {
                    self.look();
                }
                self.wait_for(LOOK_EVERY, Due::Look);
            }
        }
        false
    }

    fn look(&mut self) {
        let watched = self.watched.clone();
        self.looking = Some(tokio::spawn(async move { watched.look_patiently().await }));
    }

    /// What is true of it now, maybe because somebody else has done something.
    async fn looked(&mut self, now: Result<Now, String>) {
        if self.fate.is_some() {
            return;
        }
        match now {
            Ok(Now::Runs { .. }) if self.carrying.is_none() && self.rejoining.is_none() => {
                self.was_cut = true;
                self.attach_again().await;
            }
            Ok(Now::Runs { .. }) => {}
            Ok(Now::Paused { .. }) => self.unfit(PAUSED.to_owned()).await,
            Ok(Now::Ended(end)) => self.over(Fate::Ended(end)).await,
            Ok(Now::Removed) => self.over(Fate::Removed).await,
            Err(why) => self.over(Fate::Lost(why)).await,
        }
    }

    /// The stream is cut, or the container has ended. `true` once nothing more is waited for.
    fn on_cut(&mut self, carrier: Box<Carrier>, cut: &Cut) -> bool {
        self.carrier = Some(carrier);
        if self.fate.is_some() {
            self.dues.retain(|(_, it)| *it != Due::LastOutput);
            return !self.hears_the_rest() && self.end_line();
        }
        self.was_doubtful |= cut.is_doubtful;
        let is_short = self.carried_since.elapsed() < LEAST_STREAM;
        self.short_streams = if is_short { self.short_streams + 1 } else { 0 };
        self.was_cut = cut.is_outlived || (self.was_cut && is_short);
        // One that is under way may have seen it run just before it ended.
        end(&mut self.looking);
        self.look();
        false
    }

    /// The stream was cut and the container runs: goes on where it was, if that can be told.
    async fn attach_again(&mut self) {
        let Some(carrier) = &self.carrier else { return };
        let place = carrier.counter.heard();
        if self.is_stdio() && self.engine.closes_stdin {
            return self.unfit(DEAF.to_owned()).await;
        }
        if self.is_stdio() && self.was_doubtful {
            return self.unfit(DOUBTFUL.to_owned()).await;
        }
        if self.short_streams >= MOST_SHORT {
            return self.unfit(CLOSED_STDOUT.to_owned()).await;
        }
        let rejoining = rejoin(self.engine.clone(), self.id.clone(), place, self.is_stdio());
        self.rejoining = Some(tokio::spawn(rejoining));
    }

    /// What came of attaching again.
    async fn rejoined(&mut self, again: Result<Box<Rejoined>, String>) {
        match (again, &mut self.carrier) {
            (Ok(again), Some(carrier)) => {
                tracing::info!(server = %self.order.key, "attached again");
                if let Some(grip) = self.grip.take() {
                    grip.end(&self.shared).await; // What it held is no stream any more.
                }
                self.keeper.change(|kept| kept.held = false);
                carrier.counter = Counter::after(again.place);
                self.attached = Some(again.attached);
                self.carry(again.missed);
            }
            (Err(why), _) => {
                self.unfit(format!("the connection with its engine was cut: {why}")).await;
            }
            (Ok(_), None) => {} // It is carried already.
        }
    }

    /// It stays ours: nobody here must take it for one that has been left.
    fn keep_hold(&mut self) {
        if let Some(hold) = self.hold.take() {
            hold.keep();
        }
    }

    fn is_stdio(&self) -> bool {
        self.order.settings.transport() == Transport::Stdio
    }

    // Not `&self`: a stream cannot be looked at from two threads, and is in here.
    async fn tell(&mut self, news: News) {
        let _ = self.ends.news.send(news).await; // Nobody may hold this life any more.
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        end(&mut self.waiting);
        end(&mut self.looking);
        end(&mut self.carrying);
        end(&mut self.rejoining);
        end(&mut self.resting);
    }
}

fn end<T>(task: &mut Option<JoinHandle<T>>) {
    if let Some(task) = task.take() {
        task.abort();
    }
}

/// A stream that was attached again.
struct Rejoined {
    attached: AttachContainerResults,
    /// What had been heard before.
    place: Place,
    /// What was said since then.
    missed: Missed,
}

/// Attaches again to a container of which so much has been heard.
async fn rejoin(
    engine: Engine,
    id: String,
    place: Place,
    is_stdio: bool,
) -> Result<Rejoined, String> {
    let again = async {
        let mut attached = engine.attach(&id).await.map_err(|why| faults::words(&why))?;
        let read = missed::read(&engine, &id, place).await;
        let missed = missed::or_gaps(read, is_stdio, &id).map_err(|why| why.to_string())?;
        let missed = with_fresh(missed, &mut attached.output).await;
        Ok(Rejoined { attached, place, missed })
    };
    let again = timeout(ATTACH_WITHIN, again).await;
    again.unwrap_or_else(|_| Err("its engine takes too long".to_owned()))
}

/// What came of a task; never, while there is none. Cancel-safe.
async fn ended<T>(task: &mut Option<JoinHandle<T>>) -> Option<T> {
    match task {
        None => std::future::pending().await,
        Some(task) => task.await.ok(),
    }
}
