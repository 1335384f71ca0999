//! Waits, asks `lifecycle`, acts: one task per instance, which owns its state.
//!
//! The loop has no opinions. Each arm of [`Task::next_event`] only names what
//! happened, and every arm is cancel-safe.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::Instant;
use xy_config::settings::{HealthProbe, Probe, ServerSettings, Start};
use xy_protocol::mask;
use xy_protocol::server::{Health, Transport, Wanted};

use crate::health::{Habit, Observation, Outcome, Verdict};
use crate::instance::{
    Command, Holder, InstanceHandle, InstanceKey, SeenExit, Snapshot, StateChange,
};
use crate::launch::{Ask, EndMark, Instance, Launch, LaunchOrder, News};
use crate::lifecycle::note::Note;
use crate::lifecycle::{AfterStop, Effect, Event, Exit, Life, Moment, Reason, State, on_event};
use crate::locks::until_free;
use crate::logs::LogBook;
use crate::vigil::{Sighting, Vigil};
use crate::wait::{time_of_day, until};

mod telling;

/// Requests wait here while one is being applied; askers beyond it wait their turn.
const COMMANDS: usize = 16;

/// What a task is made of.
pub(crate) struct Parts {
    pub(crate) key: InstanceKey,
    pub(crate) settings: Arc<ServerSettings>,
    pub(crate) wanted: Wanted,
    pub(crate) launcher: Arc<dyn Launch>,
    pub(crate) logs: Arc<LogBook>,
    pub(crate) changes: broadcast::Sender<StateChange>,
    pub(crate) before: Before,
}

/// What there is of a server before its task begins.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, for a moment")]
pub(crate) enum Before {
    /// Nothing.
    Nothing,
    /// An instance that is still ending: nothing starts before it is gone.
    Ending(Predecessor),
    /// A living instance.
    Living {
        /// Its life so far.
        life: Life,
        instance: Instance,
        /// The leader of its processes, unless it has ended.
        pid: Option<u32>,
        /// When it ended, if it has.
        ended_at: Option<SystemTime>,
        /// What has happened to it and was not heard.
        unheard: Option<Event>,
        /// How it takes to being probed.
        habit: Habit,
    },
}

/// An instance of the same key that is still ending.
pub(crate) enum Predecessor {
    /// Its file was removed, and is back.
    Removed(InstanceHandle),
    /// It is of a daemon that was killed; its shim holds this lock until it is gone.
    Orphan(PathBuf),
}

pub(crate) struct Task {
    key: InstanceKey,
    launcher: Arc<dyn Launch>,
    logs: Arc<LogBook>,
    changes: broadcast::Sender<StateChange>,
    predecessor: Option<Predecessor>,
    commands: mpsc::Receiver<Command>,
    published: watch::Sender<Snapshot>,
    /// Exists exactly while the state is live.
    instance: Option<Instance>,
    /// When that ended, if nobody was there to see it.
    ended_at: Option<SystemTime>,
    now: Snapshot,
    /// Sees when it is ready, and whether it still works.
    vigil: Vigil,
    /// Whoever speaks with it has said that it is ready.
    is_greeted: bool,
    /// The number of the first line that this life can have logged.
    first_line: u64,
}

impl Task {
    /// A task, and the handle to it. If it is wanted up, its first life begins here.
    pub(crate) fn new(parts: Parts) -> (Self, InstanceHandle) {
        // One for a single client only begins when that uses it.
        let is_shared = parts.key.holder == Holder::Shared;
        let sleeps = is_shared && parts.settings.rules.start == Start::Lazy;
        let mut now = Snapshot {
            life: Life::new(parts.wanted),
            settings: parts.settings,
            pid: None,
            last_exit: None,
            transitions: Arc::new(VecDeque::new()),
            log_problem: None,
            ends_with_daemon: false,
            survivors: Vec::new(),
            confined: None,
            container: None,
            progress: None,
            health: Health::Unknown,
            end: EndMark::default(),
            last_health_check: None,
        };
        let mut vigil = Vigil::new(Habit::Unknown);
        let (mut predecessor, mut instance, mut ended_at) = (None, None, None);
        let first = match parts.before {
            Before::Nothing if sleeps => {
                now.life = Life::sleeping(parts.wanted);
                None
            }
            Before::Nothing => (parts.wanted == Wanted::Up).then_some(Event::StartRequested),
            Before::Ending(ending) => {
                now.life = Life::after_predecessor(parts.wanted, sleeps);
                predecessor = Some(ending);
                None
            }
            Before::Living { life, instance: living, pid, ended_at: ended, unheard, habit } => {
                vigil = Vigil::new(habit);
                (now.life, now.pid, ended_at) = (life, pid, ended);
                now.end = living.end.clone();
                instance = Some(living);
                unheard
            }
        };
        let (command_sender, commands) = mpsc::channel(COMMANDS);
        let (published, watched) = watch::channel(now.clone());
        let handle =
            InstanceHandle::new(parts.key.clone(), command_sender, watched, parts.logs.clone());
        let mut task = Self {
            key: parts.key,
            launcher: parts.launcher,
            logs: parts.logs,
            changes: parts.changes,
            predecessor,
            commands,
            published,
            instance,
            ended_at,
            now,
            vigil,
            is_greeted: false,
            first_line: 0,
        };
        if task.instance.is_some() {
            task.tell_takeover();
        }
        match first {
            Some(first) => task.handle(first),
            None => task.leave_note(), // A life that goes on hears that it is ours now.
        }
        (task, handle)
    }

    /// Lives until retired, or until nobody holds a handle.
    pub(crate) async fn run(mut self) {
        while self.now.life.state != State::Retired {
            let Some((event, applied)) = self.next_event().await else {
                break;
            };
            self.handle(event);
            if matches!(self.now.life.state, State::Starting { .. }) && self.is_ready_by_itself() {
                self.handle(Event::Ready); // Its rules have changed: its answer is not waited for.
            }
            let _ = applied.map(|applied| applied.send(())); // The asker may have left.
        }
    }

    /// Waits for the next thing to happen; `None` once nobody holds a handle.
    async fn next_event(&mut self) -> Option<(Event, Option<oneshot::Sender<()>>)> {
        loop {
            self.vigil.follow(&self.now, self.instance.as_ref(), &self.logs);
            let heard = tokio::select! {
                // What has happened comes before a deadline that it may have met.
                biased;
                news = news_of(&mut self.instance) => news,
                command = self.commands.recv() => match command? {
                    Command::Apply { event, settings, applied } => {
                        if let Some(settings) = settings {
                            self.reconfigure(settings);
                        }
                        return Some((event, Some(applied)));
                    }
                    Command::Rest(rest) => {
                        // Without a life, or with a busy one, nobody answers.
                        let _ = self.instance.as_ref().map(|it| it.rests.try_send(rest));
                        continue;
                    }
                    Command::Look(checkup) => {
                        let _ = self.instance.as_ref().map(|it| it.checkups.try_send(checkup));
                        continue;
                    }
                    Command::LetGo { done } => {
                        self.let_go().await;
                        let _ = done.send(()); // The asker may have left.
                        return None;
                    }
                },
                () = end_of(&mut self.predecessor) => {
                    return Some((Event::Exited(Exit::UNSEEN), None));
                }
                sighting = self.vigil.next() => match self.see(sighting) {
                    Some(event) => return Some((event, None)),
                    None => continue,
                },
                () = until(self.now.life.state.deadline().map(Instant::from_std)) => {
                    return Some((Event::DeadlineReached, None));
                }
            };
            if let Some(event) = self.hear(heard) {
                return Some((event, None));
            }
        }
    }

    fn reconfigure(&mut self, settings: Arc<ServerSettings>) {
        let (rules, before) = (&settings.rules, &self.now.settings);
        if settings.kind != before.kind || rules.health.probe != before.rules.health.probe {
            self.vigil.forget();
        }
        self.ask(Ask::Rules { orphan_timeout: rules.orphan_timeout, grace: rules.stop.grace });
        self.now.settings = settings;
    }

    /// Leaves the instance to itself; resolves when nothing more is heard of it here.
    async fn let_go(&mut self) {
        let Some(mut instance) = self.instance.take() else { return };
        if instance.asks.send(Ask::LetGo).await.is_ok() {
            while instance.news.recv().await.is_some() {}
        }
    }

    /// What a piece of news means to the lifecycle, if anything.
    fn hear(&mut self, news: News) -> Option<Event> {
        match news {
            News::Preparing(what) => {
                self.now.progress = Some(what);
                self.publish();
                Some(Event::Preparing)
            }
            News::Launched { pid } => {
                self.now.pid = Some(pid);
                self.now.progress = None;
                self.publish();
                self.is_ready_by_itself().then_some(Event::Ready)
            }
            News::Ready => {
                self.is_greeted = true;
                (self.probe() == Probe::Mcp || self.is_remote()).then_some(Event::Ready)
            }
            News::Unfit(why) => Some(Event::Unfit(why)),
            News::Idle(why) => Some(Event::Idle(why)),
            News::UnfitOnProbe(why) => Some(Event::UnfitOnProbe(why)),
            News::Unusable(why) => Some(Event::Hopeless(why)),
            News::StartOver(why) => Some(Event::StartOver(why)),
            News::LaunchFailed(fault) => {
                self.has_nothing();
                Some(Event::LaunchFailed(fault))
            }
            News::Away(fault) => {
                self.has_nothing();
                Some(Event::Away(fault))
            }
            News::Unreachable(why) => {
                self.instance = None;
                Some(Event::Unreachable(why))
            }
            News::Hopeless(why) => {
                self.instance = None;
                Some(Event::Hopeless(why))
            }
            News::Closed => {
                self.instance = None;
                Some(Event::Exited(Exit::UNSEEN))
            }
            News::Exited(exit) => {
                self.is_gone(exit, false);
                Some(Event::Exited(exit))
            }
            News::ExitedOnProbe(exit) => {
                self.is_gone(exit, self.now.life.forgives_probe(Some(exit)));
                Some(Event::ExitedOnProbe(exit))
            }
            News::Survivors(pids) => {
                tracing::error!(server = %self.key, ?pids, "these processes would not die");
                self.now.survivors = pids;
                self.publish();
                None
            }
            News::Confined(confined) => {
                self.now.confined = Some(confined);
                None
            }
            News::Contained(container) => {
                self.now.container = Some(container);
                None
            }
            News::NotLasting => {
                tracing::warn!(server = %self.key, "no lock or no socket: it ends with this daemon");
                self.now.ends_with_daemon = true;
                self.publish();
                None
            }
            News::LogTrouble(problem) => {
                if let Some(problem) = &problem {
                    tracing::warn!(server = %self.key, problem, "the log cannot be written");
                }
                self.now.log_problem = problem;
                self.publish();
                None
            }
        }
    }

    /// What is seen of it, as far as it means something to the lifecycle.
    fn see(&mut self, sighting: Sighting) -> Option<Event> {
        match sighting {
            Sighting::Ready => Some(Event::Ready),
            Sighting::Checked(seen) => self.judge(seen),
        }
    }

    fn judge(&mut self, seen: Observation) -> Option<Event> {
        let habit = self.vigil.habit();
        tracing::debug!(server = %self.key, ?seen, "probed");
        let is_made = !matches!(seen.outcome, Outcome::NotMade(_));
        if is_made {
            self.now.last_health_check = Some(time_of_day());
        }
        let verdict = self.vigil.judge(seen, &self.now);
        if self.vigil.habit() != habit {
            self.leave_note();
        }
        match verdict {
            Verdict::Hung(why) => return Some(Event::Unhealthy(why)),
            Verdict::Suspect(row) => {
                tracing::warn!(server = %self.key, row, "it did not answer a probe");
            }
            Verdict::Alive | Verdict::Nothing => {}
        }
        if is_made || self.now.health != self.health() {
            self.publish();
        }
        None
    }

    /// What is known of its health.
    fn health(&self) -> Health {
        let life = &self.now.life;
        match life.state {
            _ if life.is_unreachable() => Health::Unreachable,
            State::Running { .. } => match self.now.settings.rules.health.probe {
                HealthProbe::Off => Health::Unknown,
                HealthProbe::Process => Health::Healthy,
                HealthProbe::Tcp | HealthProbe::Http | HealthProbe::Mcp => self.vigil.word(),
            },
            State::Stopping { .. } if matches!(life.reason, Reason::Unhealthy(_)) => {
                Health::Unhealthy
            }
            _ => Health::Unknown,
        }
    }

    /// No life has begun.
    fn has_nothing(&mut self) {
        self.instance = None;
        self.now.progress = None;
        self.now.container = None;
        self.now.pid = None;
    }

    /// Its life is over; `is_our_doing` even if nobody has asked for its end.
    fn is_gone(&mut self, exit: Exit, is_our_doing: bool) {
        self.instance = None;
        self.now.pid = None;
        self.now.progress = None;
        self.now.container = None;
        self.now.confined = None;
        let is_asked_for = matches!(
            self.now.life.state,
            State::Stopping {
                then: AfterStop::StayDown
                    | AfterStop::StartAgain
                    | AfterStop::Sleep
                    | AfterStop::GiveUp
                    | AfterStop::Retire,
                ..
            }
        );
        let at = self.ended_at.take().unwrap_or_else(time_of_day);
        let by_xy = matches!(self.now.life.state, State::Stopping { .. });
        let expected = is_asked_for || is_our_doing;
        self.now.last_exit = Some(SeenExit { exit, expected, by_xy, at });
    }

    fn probe(&self) -> Probe {
        self.now.settings.rules.ready.probe
    }

    fn is_remote(&self) -> bool {
        self.now.settings.remote().is_some()
    }

    /// Whether it runs, and nothing else is waited for.
    fn is_ready_by_itself(&self) -> bool {
        let is_so = match self.probe() {
            Probe::Process => true,
            Probe::Mcp => self.is_greeted,
            Probe::Tcp | Probe::Http => false,
        };
        is_so && self.now.pid.is_some()
    }

    fn handle(&mut self, event: Event) {
        let (now, is_remote) = (Instant::now().into_std(), self.is_remote());
        let moment = Moment { now, chance: draw(), is_remote };
        let before = self.now.life.clone();
        let (life, effect) = on_event(before.clone(), event, &self.now.settings.rules, moment);
        self.now.life = life;
        self.name_stray();
        match effect {
            Some(Effect::Launch) => self.launch(),
            Some(Effect::Stop) => self.stop(),
            Some(Effect::Kill) => self.ask(Ask::Kill),
            // It is being ended already; from now on for good, which its shim has to know.
            None if self.now.life.state.is_retiring() && !before.state.is_retiring() => self.stop(),
            None => self.leave_note(),
        }
        self.tell(&before);
    }

    /// Adds what a server that was not ready in time wrote to stdout instead of MCP.
    fn name_stray(&mut self) {
        let is_stdio = self.now.settings.transport() == Transport::Stdio;
        if let Reason::NeverReady { stray: stray @ None, .. } = &mut self.now.life.reason
            && is_stdio
        {
            let line = self.logs.first_stdout(self.first_line);
            *stray = line.map(|line| mask::text(&String::from_utf8_lossy(&line.bytes)));
        }
    }

    fn stop(&mut self) {
        self.leave_note();
        let grace = self.now.settings.rules.stop.grace;
        let is_hung = self.now.life.reason.is_hang();
        self.ask(Ask::Stop { grace, for_good: self.now.life.state.is_retiring(), is_hung });
    }

    fn launch(&mut self) {
        // A new life brings its own troubles, or none.
        self.now.log_problem = None;
        self.now.ends_with_daemon = false;
        self.is_greeted = false;
        self.first_line = self.logs.next_seq();
        self.now.last_health_check = None;
        self.now.survivors = Vec::new();
        let instance = self.launcher.launch(LaunchOrder {
            key: self.key.clone(),
            settings: self.now.settings.clone(),
            logs: self.logs.clone(),
            note: self.note(),
        });
        self.now.end = instance.end.clone();
        self.instance = Some(instance);
    }

    /// What a later daemon has to know, should this one be killed now.
    fn note(&self) -> Vec<u8> {
        let now = Instant::now().into_std();
        let note = Note::of(&self.now.life, &self.now.settings, now);
        note.of_one_with(self.vigil.habit()).to_bytes()
    }

    fn leave_note(&self) {
        if let Some(instance) = &self.instance {
            instance.notes.send_replace(self.note());
        }
    }

    /// Effects are quick: the queue has room for everything a life can be asked.
    fn ask(&mut self, ask: Ask) {
        if let Some(instance) = &self.instance {
            let _ = instance.asks.try_send(ask); // A life that is over needs no asking.
        }
    }
}

/// The next news; never, while there is no life. A life whose launcher vanished is over.
async fn news_of(instance: &mut Option<Instance>) -> News {
    match instance {
        None => std::future::pending().await,
        Some(instance) => instance.news.recv().await.unwrap_or(News::Exited(Exit::UNSEEN)),
    }
}

/// Resolves once, when the predecessor is gone; never, if there is none.
async fn end_of(predecessor: &mut Option<Predecessor>) {
    match predecessor {
        None => std::future::pending().await,
        Some(Predecessor::Removed(handle)) => {
            handle.wait_until(|snapshot| snapshot.life.state == State::Retired).await;
        }
        Some(Predecessor::Orphan(lock)) => until_free(lock).await,
    }
    *predecessor = None;
}

/// A number at random: the hasher of the standard library is seeded anew each time.
fn draw() -> u8 {
    let [first, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
    first
}

#[cfg(test)]
mod tests;
