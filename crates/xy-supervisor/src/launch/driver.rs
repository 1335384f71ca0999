//! Drives one life under its shim, from the first order to the last news.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use xy_protocol::server::Transport;
use xy_shim::wire::{ExitReport, GoneRules, Order, Report, StatusReport};

use self::speaking::Pipes;
use super::adopt::is_of_home;
use super::fault::explain;
use super::limits;
use super::orphans::{Lives, Shims};
use super::shim_link::{Heard, ShimLink};
use super::shim_process::ShimProcess;
use super::speech::{Speech, said_in};
use super::{Ask, InstanceEnds, LaunchOrder, News, millis};
use crate::lifecycle::{Exit, LaunchFault};
use crate::logs::LogBook;
use crate::speak::{Before, Checkup, Rest, Said, Speak};
use crate::wait::until;

mod speaking;

/// After an exit, the shim has this long to bring its log to disk: more than its own limits.
const FINISH_WITHIN: Duration = Duration::from_secs(20);

/// How long a shim may take to hear our goodbye.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// What knows the processes of one life, should its shim die.
pub(super) struct Below {
    pub(super) shims: Shims,
    /// The mark in the environment of each.
    pub(super) life: String,
    /// Where the shim listens; a killed one leaves it.
    pub(super) socket: PathBuf,
}

/// The life that is over; it is named after its home.
struct OneLife(String);

impl Lives for OneLife {
    fn is_ours(&self, life: &str) -> bool {
        is_of_home(life, self.0.rsplit_once('-').map_or("", |(home, _)| home))
    }

    fn is_over(&self, life: &str) -> bool {
        life == self.0
    }
}

/// Drives one life from the first order to the last news.
#[expect(clippy::struct_excessive_bools, reason = "these are independent of each other")]
pub(super) struct Driver {
    order: LaunchOrder,
    shim: ShimProcess,
    link: ShimLink,
    speaker: Arc<dyn Speak>,
    /// While somebody speaks with it.
    speech: Option<Speech>,
    /// What is waited for of whoever speaks with it, and until when.
    patience: Option<(Instant, Due)>,
    /// What its speaker has to say to that of a later daemon.
    speaker_note: String,
    /// The latest note of its task, and when that was left; none before the first of ours.
    noted: Option<(Vec<u8>, Instant)>,
    ends: InstanceEnds,
    /// Whether anybody still holds this life.
    is_held: bool,
    /// Whether a task has gone on with it: not at once, if an earlier daemon began it.
    has_task: bool,
    /// Whether it has been told to end: then a line that is only now opened is closed too.
    is_ending: bool,
    below: Below,
    /// Whether it is asked something that it need not know.
    is_probed: bool,
    /// Why it is ended although it has been started.
    refused: Option<LaunchFault>,
    /// How it ended, and when the shim must have ended too.
    end: Option<(News, Instant)>,
}

/// One thing that happens while a life goes on.
enum Turn {
    Heard(Report),
    /// Its speaker is listened to again.
    Room,
    ShimGone,
    LinkBroken(io::Error),
    Asked(Ask),
    Noted,
    Dropped,
    Said(Said),
    Checkup(Checkup),
    Rest(Rest),
    SpeakerGone,
    Overdue(Due),
}

/// What is waited for until a certain time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// The end of a shim whose server has ended.
    ShimGone,
    /// The end of a server that has closed its stdout.
    Mute,
    /// What a server said at its end, from whoever spoke with it.
    LastWords,
}

impl Driver {
    pub(super) fn new(
        order: LaunchOrder,
        shim: ShimProcess,
        link: ShimLink,
        below: Below,
        speaker: Arc<dyn Speak>,
        ends: InstanceEnds,
    ) -> Self {
        Self {
            shim,
            link,
            speaker,
            speech: None,
            patience: None,
            speaker_note: String::new(),
            noted: (!order.note.is_empty()).then(|| (order.note.clone(), Instant::now())),
            order,
            ends,
            is_held: true,
            has_task: true,
            is_ending: false,
            below,
            is_probed: false,
            refused: None,
            end: None,
        }
    }

    /// Goes on with a life that an earlier daemon began, whose speaker left this note.
    pub(super) async fn run_adopted(mut self, status: StatusReport, speaker_note: String) {
        self.has_task = false;
        let pipes = self.passed_pipes(status.passed);
        let unread = self.link.take_unread();
        self.is_ending = status.stopping;
        self.speaker_note.clone_from(&speaker_note);
        self.tell(News::Confined(status.confined)).await;
        if let Some(exited) = status.exited {
            if !self.is_listened_to().await {
                return self.let_go().await;
            }
            self.has_task = true;
            self.link.put_stray(&unread);
            self.over(exited.report).await;
        } else {
            let before = Before { note: speaker_note, unread };
            self.begin(status.pid, pipes, Some(before)).await;
        }
        self.run().await;
    }

    /// Drives it to its end.
    pub(super) async fn run(mut self) {
        loop {
            match self.next_turn().await {
                Turn::Heard(report) => self.hear(report).await,
                Turn::Room => {}
                Turn::Said(said) => self.hear_said(said).await,
                Turn::Checkup(checkup) => self.pass_checkup(checkup),
                Turn::Rest(rest) => self.pass_rest(rest),
                Turn::SpeakerGone => self.on_speaker_gone(),
                Turn::Noted => {
                    self.go_on();
                    self.leave_note();
                }
                Turn::Asked(ask) => {
                    self.go_on();
                    if self.ends.notes.has_changed().unwrap_or(false) {
                        self.leave_note(); // It was left before this was asked.
                    }
                    match ask {
                        Ask::Stop { grace, for_good, is_hung } => {
                            self.close_line(is_hung);
                            self.stop(grace, for_good);
                        }
                        Ask::Kill => self.shim.kill(),
                        Ask::Rules { orphan_timeout, grace } => {
                            let (orphan_ms, grace_ms) = (millis(orphan_timeout), millis(grace));
                            self.link.queue(&Order::Rules(GoneRules { orphan_ms, grace_ms }));
                        }
                        Ask::LetGo => return self.let_go().await,
                    }
                }
                // Whoever took it over has gone before anybody could go on with it.
                Turn::Dropped if !self.has_task => return self.let_go().await,
                Turn::Dropped => {
                    self.is_held = false;
                    self.close_line(false);
                    self.stop(self.order.settings.rules.stop.grace, true);
                }
                Turn::ShimGone => break,
                Turn::LinkBroken(error) => {
                    tracing::warn!(server = %self.order.key, %error, "lost the shim");
                    self.shim.kill();
                    break;
                }
                Turn::Overdue(Due::ShimGone) => {
                    self.shim.kill();
                    break;
                }
                Turn::Overdue(Due::Mute) => self.on_mute().await,
                Turn::Overdue(Due::LastWords) => self.finish(),
            }
        }
        self.drop_line();
        let child_pid = self.shim.child_pid();
        while timeout(FINISH_WITHIN, self.shim.wait()).await.is_err() {
            self.shim.kill();
        }
        self.below.shims.forget(child_pid);
        let _ = std::fs::remove_file(&self.below.socket); // Most take it with them.
        if self.end.is_none() {
            xy_shim::cgroup::end_stale(); // All at once, where the server had a group.
            let life = OneLife(self.below.life.clone());
            let left = self.below.shims.end_orphans(Arc::new(life)).await;
            xy_shim::cgroup::remove_stale();
            if !left.is_empty() {
                self.tell(News::Survivors(left)).await;
            }
        }
        let last = match self.end {
            // Only now everything has been heard of whoever spoke with it.
            Some((News::Exited(exit), _)) if self.is_probed => News::ExitedOnProbe(exit),
            Some((news, _)) => news,
            None => News::Exited(Exit::UNSEEN),
        };
        let _ = self.ends.news.send(last).await; // Nobody may hold this life any more.
    }

    /// Waits for one thing; every arm is cancel-safe.
    async fn next_turn(&mut self) -> Turn {
        let shim_ends = self.end.as_ref().map(|(_, finish_by)| (*finish_by, Due::ShimGone));
        let speech_waits = self.patience.filter(|_| self.speech.is_some());
        let next_due = shim_ends.into_iter().chain(speech_waits).min_by_key(|(at, _)| *at);
        let due = next_due.map_or(Due::ShimGone, |(_, due)| due);
        tokio::select! {
            report = self.link.next(&self.order.logs) => match report {
                Ok(Heard::Report(report)) => Turn::Heard(report),
                Ok(Heard::Room) => Turn::Room,
                Ok(Heard::End) => Turn::ShimGone,
                Err(error) => Turn::LinkBroken(error),
            },
            ask = self.ends.asks.recv(), if self.is_held => ask.map_or(Turn::Dropped, Turn::Asked),
            Ok(()) = self.ends.notes.changed(), if self.is_held => Turn::Noted,
            Some(checkup) = self.ends.checkups.recv() => Turn::Checkup(checkup),
            Some(rest) = self.ends.rests.recv() => Turn::Rest(rest),
            said = said_in(&mut self.speech), if self.link.has_room() => {
                said.map_or(Turn::SpeakerGone, Turn::Said)
            }
            () = until(next_due.map(|(at, _)| at)) => Turn::Overdue(due),
        }
    }

    async fn hear(&mut self, report: Report) {
        match report {
            Report::Started { pid, lasting, confined } => {
                let pipes = self.passed_pipes([self.is_stdio(); 2]);
                if self.is_stdio() && (pipes.stdin.is_none() || pipes.stdout.is_none()) {
                    self.refuse_half();
                    return;
                }
                if !lasting {
                    self.tell(News::NotLasting).await;
                }
                self.tell(News::Confined(confined)).await;
                self.begin(pid, pipes, None).await;
            }
            Report::Status(_) | Report::Refused { .. } => {} // Nobody asked.
            Report::LogTrouble { problem } => self.tell(News::LogTrouble(problem)).await,
            Report::StartFailed(fault) => {
                self.ends_with(News::LaunchFailed(explain(fault, &self.order.settings)));
            }
            Report::Confined(confined) => self.tell(News::Confined(confined)).await,
            Report::Exited(exit) => self.over(exit).await,
        }
    }

    /// The descriptors that came, of stdin and stdout in this order.
    fn passed_pipes(&mut self, passed: [bool; 2]) -> Pipes {
        let [stdin, stdout] = passed.map(|is_passed| is_passed.then(|| self.link.take_fd()));
        Pipes { stdin: stdin.flatten(), stdout: stdout.flatten() }
    }

    async fn begin(&mut self, pid: u32, pipes: Pipes, before: Option<Before>) {
        self.tell(News::Launched { pid }).await;
        self.open_line(pid, pipes, before).await;
    }

    /// A task has gone on with it: what was said while nobody was there is ours from here on,
    /// and its shim need not keep it for another daemon.
    fn go_on(&mut self) {
        if !std::mem::replace(&mut self.has_task, true) {
            self.link.give_back(&[]);
        }
    }

    /// Waits until there is a task to be told; `false` if there will be none. How a server
    /// ended is forgotten by its shim once we have taken note, so we do not before that: a
    /// daemon that starts may be killed in between.
    async fn is_listened_to(&mut self) -> bool {
        tokio::select! {
            first_note = self.ends.notes.changed() => first_note.is_ok(),
            () = until_gone(&mut self.link, &self.order.logs) => true,
        }
    }

    async fn over(&mut self, exit: ExitReport) {
        if !exit.survivors.is_empty() {
            self.tell(News::Survivors(exit.survivors.clone())).await;
        }
        let limits = self.order.settings.process().map(|it| it.limits).unwrap_or_default();
        let oom = limits::oom(exit.oom, limits);
        let exit = Exit { code: exit.code, signal: exit.signal, oom };
        // From here on only we know it, and may be killed before anybody is told.
        tracing::info!(server = %self.order.key, "{exit}");
        let last = self.refused.take().map_or(News::Exited(exit), News::LaunchFailed);
        self.ends_with(last);
        self.end_line(exit);
    }

    fn leave_note(&mut self) {
        let note = self.ends.notes.borrow_and_update().clone();
        if !note.is_empty() {
            // One that is too long is none: the last one stays.
            self.noted = Some((note, Instant::now()));
            self.leave_joined_note();
        }
    }

    /// Leaves the server to its shim. What it says from now on is for another daemon.
    async fn let_go(mut self) {
        self.take_back_line().await;
        let leaving = self.link.leave(&self.order.logs);
        if !matches!(timeout(LEAVE_WITHIN, leaving).await, Ok(Ok(()))) {
            tracing::warn!(server = %self.order.key, "its shim did not hear our goodbye");
        }
        // The shim stays known as one: until we are gone it is still our child.
    }

    fn is_stdio(&self) -> bool {
        self.order.settings.transport() == Transport::Stdio
    }

    /// Its pipes did not come with it: the daemon had no descriptor left for them.
    fn refuse_half(&mut self) {
        let message = "the daemon has too many files open".to_owned();
        let hint = Some("raise the limit of open files (`ulimit -n`) and restart it".to_owned());
        let fault = LaunchFault { permanent: false, message, hint };
        self.close_line(false);
        self.stop(Duration::ZERO, false);
        self.refused = Some(fault);
    }

    async fn tell(&self, news: News) {
        let _ = self.ends.news.send(news).await; // Nobody may hold this life any more.
    }

    fn ends_with(&mut self, news: News) {
        self.end = Some((news, Instant::now() + FINISH_WITHIN));
    }

    fn stop(&mut self, grace: Duration, for_good: bool) {
        self.is_ending = true;
        self.link.queue(&Order::Stop { grace_ms: millis(grace), for_good });
    }
}

/// Says and hears what there is until the shim is gone.
async fn until_gone(link: &mut ShimLink, logs: &LogBook) {
    while let Ok(Heard::Report(_) | Heard::Room) = link.next(logs).await {}
}
