//! Random histories, judged by a second account of the rules.
//!
//! [`Book`] is that account. It counts nothing and remembers everything: each answer
//! is worked out anew from the complete list of what happened, so it shares neither
//! the states nor the counters of the machine. [`World`] is what surrounds a machine:
//! it holds the one life there may be and lets time pass from deadline to deadline.

use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use xy_config::settings::{RestartPolicy, Rules};
use xy_protocol::server::{ServerState, Wanted};

use super::reason::{Exit, Reason};
use super::{
    AfterStop, Effect, Event, Life, Moment, Retirement, STOP_MARGIN, State, WINDOW, on_event,
};
use crate::fake::{absence, permanent_fault, transient_fault};

/// How many histories are compared with the book, which knows all rules.
const CASES: u32 = 2000;

/// How many each single rule is tried on.
const CASES_PER_RULE: u32 = 300;

/// One thing that happened, when, and by which rules the server lived then.
#[derive(Debug, Clone)]
struct Entry {
    at: Instant,
    rules: Rules,
    fact: Fact,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fact {
    StartAsked,
    StopAsked,
    RestartAsked,
    RepairAsked,
    RetireAsked,
    NewProcess,
    NewRules,
    /// A life began because somebody wanted it.
    LaunchedAsAsked,
    /// A life began because the one before had failed.
    LaunchedAgain,
    /// A life began because somebody found the one before broken.
    LaunchedInRepair,
    /// A life began because one that lives somewhere else could not be reached, or because what
    /// would run it was away.
    TriedAgain,
    BecameReady,
    /// It took too long to become ready.
    NeverReady,
    /// It lives somewhere else and took too long to answer.
    NoAnswer,
    /// It cannot be spoken with.
    Unfit,
    /// It was ready and does not answer any more.
    Hung,
    Forced,
    Ended(Ending),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Clean,
    Dirty,
    NotLaunched,
    NeverLaunchable,
    Away,
    Unreached,
    Hopeless,
}

/// What must be true after everything that is in the book.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Must {
    BeDown,
    BeStarting {
        ready_by: Instant,
    },
    BeReady,
    /// Wait for the next life, until some time between the two.
    Wait {
        least: Instant,
        most: Instant,
    },
    BeEnding {
        forced_at: Option<Instant>,
    },
    HaveFailed,
    BeGone,
}

/// Everything that happened, in order.
#[derive(Debug, Clone)]
struct Book {
    /// Whether it lives somewhere else.
    is_remote: bool,
    wanted_first: Wanted,
    entries: Vec<Entry>,
}

impl Book {
    fn facts(&self) -> impl DoubleEndedIterator<Item = Fact> {
        self.entries.iter().map(|entry| entry.fact)
    }

    /// What the operator asked last.
    fn wanted(&self) -> Wanted {
        let asked = self.facts().rev().find_map(|fact| match fact {
            Fact::StartAsked | Fact::RestartAsked => Some(Wanted::Up),
            Fact::StopAsked => Some(Wanted::Down),
            _ => None,
        });
        asked.unwrap_or(self.wanted_first)
    }

    fn is_retired(&self) -> bool {
        self.facts().any(|fact| fact == Fact::RetireAsked)
    }

    /// The entries of the life that goes on, from its launch.
    fn living(&self) -> Option<&[Entry]> {
        let launched = self.entries.iter().rposition(|entry| entry.fact.is_launch())?;
        let life = &self.entries[launched..];
        (!life.iter().any(|entry| entry.fact.is_end())).then_some(life)
    }

    /// What must be true now.
    fn must(&self) -> Must {
        if let Some(life) = self.living() {
            if let Some(end_begun) = life.iter().find(|entry| entry.fact.begins_the_end()) {
                let forced = life.iter().any(|entry| entry.fact == Fact::Forced);
                let limit = end_begun.rules.stop.grace + STOP_MARGIN;
                return Must::BeEnding { forced_at: (!forced).then(|| end_begun.at + limit) };
            }
            if life.iter().any(|entry| entry.fact == Fact::BecameReady) {
                return Must::BeReady;
            }
            return Must::BeStarting { ready_by: life[0].at + life[0].rules.ready.within };
        }
        if self.is_retired() {
            return Must::BeGone;
        }
        let last_end = self.entries.iter().rposition(|entry| entry.fact.is_end());
        match (self.wanted(), last_end) {
            (Wanted::Up, Some(end)) => self.verdict(end),
            _ => Must::BeDown,
        }
    }

    /// Whether the life that ended at `end` was ended so that another one can begin.
    fn is_followed_as_asked(&self, end: usize) -> bool {
        if self.is_retired() || self.wanted() == Wanted::Down {
            return false;
        }
        let life = &self.entries[self.launch_of(end)..end];
        let Some(begun) = life.iter().position(|entry| entry.fact.begins_the_end()) else {
            return false; // It ended by itself.
        };
        let is_wish = |entry: &Entry| entry.fact.is_wish();
        !life[begun].fact.is_a_fault() || life[begun..].iter().any(is_wish)
    }

    /// Whether this is so of the last end, if there was one.
    fn ended_last(&self, is_so: impl Fn(usize) -> bool) -> bool {
        self.entries.iter().rposition(|entry| entry.fact.is_end()).is_some_and(is_so)
    }

    fn launch_of(&self, end: usize) -> usize {
        self.entries[..end].iter().rposition(|entry| entry.fact.is_launch()).unwrap()
    }

    /// Whether the life that ended at `end` was ended to repair it, and nobody has wanted
    /// anything else since.
    fn is_repaired(&self, end: usize) -> bool {
        let life = &self.entries[self.launch_of(end)..end];
        let begun = life.iter().position(|entry| entry.fact.begins_the_end());
        let is_wish = |entry: &Entry| entry.fact.is_wish();
        begun.is_some_and(|begun| {
            life[begun].fact == Fact::RepairAsked && !life[begun..].iter().any(is_wish)
        })
    }

    /// Whether an end counts: it is a failure, and its rules want another life after it.
    fn counts(&self, end: usize) -> bool {
        let Entry { rules, fact, .. } = &self.entries[end];
        let life = &self.entries[self.launch_of(end)..end];
        let was_fit = !life.iter().any(|entry| entry.fact.is_a_fault());
        let is_final =
            *fact == Fact::Ended(Ending::Hopeless) && was_fit || self.was_never_launchable(end);
        let is_clean = *fact == Fact::Ended(Ending::Clean) && was_fit;
        let is_wanted = self.is_remote
            || match rules.restart.policy {
                RestartPolicy::Always => true,
                RestartPolicy::OnFailure => !is_clean,
                RestartPolicy::Never => false,
            };
        !is_final && is_wanted && !self.is_repaired(end) && !self.was_away(end)
    }

    /// Whether a life had been ready for long enough when it ended, or began to.
    fn is_proof(&self, index: usize) -> bool {
        let life = &self.entries[self.launch_of(index)..index];
        let ready = life.iter().find(|entry| entry.fact == Fact::BecameReady);
        let was_up = |at: &Entry| {
            let uptime = ready.map(|ready| at.at - ready.at);
            uptime.is_some_and(|uptime| uptime >= at.rules.restart.reset_after)
        };
        let end = &self.entries[index];
        let needs_none = end.rules.restart.reset_after.is_zero();
        let ends_it = |entry: &&Entry| match entry.fact {
            Fact::Hung | Fact::RepairAsked => true,
            Fact::Unfit => !self.is_remote,
            _ => false,
        };
        match life.iter().find(ends_it) {
            // From then on it was not up any more, if it ever was.
            Some(begun) => was_up(begun) || self.counts(index) && needs_none,
            None => self.counts(index) && (was_up(end) || needs_none),
        }
    }

    /// What an end means that nobody asked for.
    fn verdict(&self, end: usize) -> Must {
        let Entry { at, rules, fact } = &self.entries[end];
        let restart = &rules.restart;
        let life = &self.entries[self.launch_of(end)..end];
        let was_fit = !life.iter().any(|entry| entry.fact.is_a_fault());
        if *fact == Fact::Ended(Ending::Hopeless) && was_fit {
            return Must::HaveFailed;
        }
        let is_clean = *fact == Fact::Ended(Ending::Clean) && was_fit;
        if self.was_never_launchable(end) {
            return Must::HaveFailed;
        }
        if self.was_away(end) && restart.policy != RestartPolicy::Never {
            return self.delayed(end, self.absences(end) - 1);
        }
        if self.is_remote {
            return self.next_try(end);
        }
        match restart.policy {
            RestartPolicy::Never | RestartPolicy::OnFailure if is_clean => return Must::BeDown,
            RestartPolicy::Never => return Must::HaveFailed,
            RestartPolicy::OnFailure | RestartPolicy::Always => {}
        }
        let exits = self.exits_within_the_window(end);
        let row = self.restarts_in_a_row(end);
        let is_over = |count: usize, limit: u32| limit != 0 && count > limit as usize;
        if is_over(exits, restart.max_retries_per_minute) || is_over(row + 1, restart.max_attempts)
        {
            return Must::HaveFailed;
        }
        let lived_long = was_fit
            && *fact != Fact::Ended(Ending::NotLaunched)
            && *at - life[0].at >= Duration::from_secs(1);
        let (least, most) = match restart.backoff_initial.as_nanos() {
            0 if lived_long => (0, 0),
            0 => (100_000_000, 100_000_000),
            initial => {
                let max = restart.backoff_max.as_nanos();
                let least = (0..row).fold(initial, |delay, _| (delay * 2).min(max)).min(max);
                let most = if restart.jitter { (least + least / 4).min(max) } else { least };
                (least, most)
            }
        };
        let after = |nanos| *at + Duration::from_nanos(u64::try_from(nanos).unwrap());
        Must::Wait { least: after(least), most: after(most) }
    }

    /// Whether a life ended as one that cannot be launched, however long that took to be known.
    fn was_never_launchable(&self, end: usize) -> bool {
        let life = &self.entries[self.launch_of(end)..end];
        let is_other = |fact: Fact| fact.is_a_fault() && fact != Fact::NeverReady;
        self.entries[end].fact == Fact::Ended(Ending::NeverLaunchable)
            && !life.iter().any(|entry| is_other(entry.fact))
    }

    /// When one that lives somewhere else is tried again: after delays that grow with each
    /// silence since somebody wanted it, or since it had been there for a while.
    fn next_try(&self, end: usize) -> Must {
        let since = self.last_proof(end);
        let silences = self.failures(end).into_iter().filter(|&index| index >= since).count();
        self.delayed(end, silences - 1)
    }

    /// Whether a life ended because what would run it was away.
    fn was_away(&self, end: usize) -> bool {
        let life = &self.entries[self.launch_of(end)..end];
        self.entries[end].fact == Fact::Ended(Ending::Away)
            && !life.iter().any(|entry| entry.fact.is_a_fault())
    }

    /// How often in a row that was so, since it was there or somebody wanted it.
    fn absences(&self, end: usize) -> usize {
        let is_there = |entry: &Entry| entry.fact == Fact::BecameReady;
        let was_there = self.entries[..end].iter().rposition(is_there).unwrap_or(0);
        let since = was_there.max(self.last_wish(end));
        let restart = |index: usize| &self.entries[index].rules.restart;
        let waits = |index: usize| restart(index).policy != RestartPolicy::Never;
        let ends = self.ends(end).into_iter().filter(|&index| index > since);
        // A row that needs no proof to end does not grow.
        ends.filter(|&index| self.was_away(index) && waits(index))
            .fold(0, |row, index| if restart(index).reset_after.is_zero() { 1 } else { row + 1 })
    }

    /// The wait after an end that does not count and is the last of `row` more.
    fn delayed(&self, end: usize, row: usize) -> Must {
        let restart = &self.entries[end].rules.restart;
        let least_ever = Duration::from_millis(100);
        let first = restart.backoff_initial.max(least_ever);
        let most = restart.backoff_max;
        let delay = (0..row).fold(first, |delay, _| (delay * 2).min(most)).min(most);
        let longest = if restart.jitter { (delay + delay / 4).min(most) } else { delay };
        let at = self.entries[end].at;
        Must::Wait { least: at + delay.max(least_ever), most: at + longest.max(least_ever) }
    }

    /// All ends up to `end` since somebody last wanted a life that count.
    fn failures(&self, end: usize) -> Vec<usize> {
        self.ends(end).into_iter().filter(|&index| self.counts(index)).collect()
    }

    fn ends(&self, end: usize) -> Vec<usize> {
        let since = self.last_wish(end);
        (since..=end).filter(|&index| self.entries[index].fact.is_end()).collect()
    }

    /// Since when rows count: the last life that was ready for long enough, or the last wish.
    fn last_proof(&self, end: usize) -> usize {
        let proof = self.ends(end).into_iter().rfind(|&index| self.is_proof(index));
        proof.unwrap_or_else(|| self.last_wish(end))
    }

    /// Where the last life began that somebody wanted.
    fn last_wish(&self, end: usize) -> usize {
        let is_wish = |entry: &Entry| entry.fact == Fact::LaunchedAsAsked;
        self.entries[..end].iter().rposition(is_wish).unwrap()
    }

    /// Exits in the 60 s before `end`, it included. Of those before, no more is known
    /// than the limit of the day made worth knowing.
    fn exits_within_the_window(&self, end: usize) -> usize {
        let failures = self.failures(end);
        let is_known = |nth: usize| {
            failures[nth..].iter().enumerate().all(|(later, &index)| {
                later <= self.entries[index].rules.restart.max_retries_per_minute as usize
            })
        };
        let is_recent = |index: usize| self.entries[end].at - self.entries[index].at < WINDOW;
        failures
            .iter()
            .enumerate()
            .filter(|&(nth, &index)| is_known(nth) && is_recent(index))
            .count()
    }

    /// Automatic restarts up to `end` since a life was ready for long enough.
    fn restarts_in_a_row(&self, end: usize) -> usize {
        let since = self.last_proof(end);
        self.entries[since..end].iter().filter(|entry| entry.fact.is_restart()).count()
    }

    fn restart_count(&self) -> usize {
        let since = self.facts().collect::<Vec<_>>();
        let wish = since.iter().rposition(|fact| *fact == Fact::LaunchedAsAsked).unwrap_or(0);
        since[wish..].iter().filter(|fact| fact.is_restart()).count()
    }

    fn restarts_total(&self) -> usize {
        self.facts().filter(|fact| fact.is_restart()).count()
    }

    /// Writes down an event and what follows from it; answers what must be done.
    fn note(&mut self, event: &Event, at: Instant, rules: &Rules) -> Option<Effect> {
        let before = self.must();
        let entry = |fact| Entry { at, rules: rules.clone(), fact };
        let fact = match (event, &before) {
            (Event::StartRequested, _) => Fact::StartAsked,
            (Event::StopRequested, _) => Fact::StopAsked,
            (Event::RestartRequested, _) => Fact::RestartAsked,
            (Event::RepairRequested(_), Must::BeReady | Must::Wait { .. } | Must::HaveFailed) => {
                Fact::RepairAsked
            }
            (Event::RetireRequested(_), _) => Fact::RetireAsked,
            (Event::ProcessChanged, _) => Fact::NewProcess,
            (Event::RulesChanged, _) => Fact::NewRules,
            (Event::Ready, Must::BeStarting { .. }) => Fact::BecameReady,
            (Event::Exited(exit), _) if *exit == Exit::code(0) => Fact::Ended(Ending::Clean),
            (Event::Exited(_), _) => Fact::Ended(Ending::Dirty),
            (Event::LaunchFailed(fault), _) if fault.permanent => {
                Fact::Ended(Ending::NeverLaunchable)
            }
            (Event::LaunchFailed(_), _) => Fact::Ended(Ending::NotLaunched),
            (Event::Away(_), _) => Fact::Ended(Ending::Away),
            (Event::Unreachable(_), _) => Fact::Ended(Ending::Unreached),
            (Event::Hopeless(_), _) => Fact::Ended(Ending::Hopeless),
            (Event::DeadlineReached, Must::BeStarting { .. }) if self.is_remote => Fact::NoAnswer,
            (Event::DeadlineReached, Must::Wait { .. })
                if self.is_remote || self.ended_last(|end| self.was_away(end)) =>
            {
                Fact::TriedAgain
            }
            (Event::DeadlineReached, Must::BeStarting { .. }) => Fact::NeverReady,
            (Event::DeadlineReached, Must::BeEnding { .. }) => Fact::Forced,
            (Event::DeadlineReached, Must::Wait { .. }) => Fact::LaunchedAgain,
            (Event::Unfit(_), Must::BeStarting { .. } | Must::BeReady) => Fact::Unfit,
            (Event::Unhealthy(_), Must::BeReady) => Fact::Hung,
            // Too late.
            (
                Event::Ready
                | Event::Unfit(_)
                | Event::Unhealthy(_)
                | Event::RepairRequested(_)
                | Event::DeadlineReached,
                _,
            ) => return None,
            (
                Event::Torn
                | Event::StartOver(_)
                | Event::Preparing
                | Event::ExitedOnProbe(_)
                | Event::UnfitOnProbe(_)
                | Event::Woken
                | Event::Idle(_),
                _,
            ) => {
                unreachable!("no history holds it: it has plays of its own")
            }
        };
        self.entries.push(entry(fact));
        if self.is_launch_due(fact, &before) {
            let is_repair = match fact {
                Fact::Ended(_) => self.is_repaired(self.entries.len() - 1),
                fact => fact == Fact::RepairAsked,
            };
            let launched = if is_repair { Fact::LaunchedInRepair } else { Fact::LaunchedAsAsked };
            self.entries.push(entry(launched));
        }
        let was_ending = matches!(before, Must::BeEnding { .. });
        match self.entries.last().unwrap().fact {
            last if last.is_launch() => Some(Effect::Launch),
            Fact::Forced => Some(Effect::Kill),
            _ if !was_ending && matches!(self.must(), Must::BeEnding { .. }) => Some(Effect::Stop),
            _ => None,
        }
    }

    /// Whether somebody now gets the life they want.
    fn is_launch_due(&self, fact: Fact, before: &Must) -> bool {
        let nobody_lives = self.living().is_none();
        let is_wanted = self.wanted() == Wanted::Up && !self.is_retired();
        nobody_lives
            && is_wanted
            && match fact {
                Fact::StartAsked | Fact::RestartAsked | Fact::RepairAsked | Fact::NewProcess => {
                    true
                }
                Fact::NewRules => *before == Must::HaveFailed,
                Fact::Ended(_) => self.is_followed_as_asked(self.entries.len() - 1),
                _ => false,
            }
    }
}

impl Fact {
    fn is_launch(self) -> bool {
        self.is_restart() || matches!(self, Self::LaunchedAsAsked | Self::TriedAgain)
    }

    /// Whether a life began that nobody wished for.
    fn is_restart(self) -> bool {
        matches!(self, Self::LaunchedAgain | Self::LaunchedInRepair)
    }

    /// Whether somebody wants another life.
    fn is_wish(self) -> bool {
        matches!(self, Self::StartAsked | Self::RestartAsked | Self::NewProcess)
    }

    fn is_end(self) -> bool {
        matches!(self, Self::Ended(_))
    }

    fn begins_the_end(self) -> bool {
        matches!(
            self,
            Self::StopAsked
                | Self::RestartAsked
                | Self::RepairAsked
                | Self::RetireAsked
                | Self::NewProcess
                | Self::NeverReady
                | Self::NoAnswer
                | Self::Unfit
                | Self::Hung
        )
    }

    /// Whether it is ended for what it did, and that counts.
    fn is_a_fault(self) -> bool {
        matches!(self, Self::NeverReady | Self::NoAnswer | Self::Unfit | Self::Hung)
    }
}

/// One thing that may happen; what cannot happen just then does not.
#[derive(Debug, Clone)]
enum Action {
    Ask(Event),
    ChangeProcess(Rules),
    ChangeRules(Rules),
    BecomeReady,
    BeUnfit,
    Hang,
    BeUnreachable,
    BeHopeless,
    Exit(Exit),
    FailToLaunch { permanently: bool },
    BeAway,
    Wait(Duration),
    WaitForDeadline,
}

/// A machine and what surrounds it.
struct World {
    life: Life,
    rules: Rules,
    now: Instant,
    chance: u8,
    book: Book,
    /// Whether a life exists, as the effects say.
    lives: bool,
    /// Whether it has been told to end.
    is_told_to_end: bool,
}

impl World {
    fn new(rules: Rules, wanted: Wanted, chance: u8) -> Self {
        Self {
            life: Life::new(wanted),
            rules,
            now: tokio::time::Instant::now().into_std(),
            chance,
            book: Book { is_remote: false, wanted_first: wanted, entries: Vec::new() },
            lives: false,
            is_told_to_end: false,
        }
    }

    /// The same somewhere else.
    fn elsewhere(rules: Rules, wanted: Wanted, chance: u8) -> Self {
        let mut world = Self::new(rules, wanted, chance);
        world.book.is_remote = true;
        world
    }

    fn act(&mut self, action: &Action) {
        let is_launching = self.lives && !self.has_launched();
        let is_remote = self.book.is_remote;
        match action {
            Action::Ask(event) => self.sees(event),
            Action::ChangeProcess(rules) => {
                self.rules = rules.clone();
                self.sees(&Event::ProcessChanged);
            }
            Action::ChangeRules(rules) => {
                self.rules = rules.clone();
                self.sees(&Event::RulesChanged);
            }
            Action::BecomeReady if self.lives => self.sees(&Event::Ready),
            Action::BeUnfit if self.lives && !is_remote => {
                self.sees(&Event::Unfit("it speaks gibberish".into()));
            }
            Action::Hang if self.lives => {
                self.sees(&Event::Unhealthy("no answer".into()));
            }
            Action::BeUnreachable if self.lives && is_remote => {
                self.sees(&Event::Unreachable("connection refused".into()));
            }
            Action::BeHopeless if self.lives && is_remote => {
                self.sees(&Event::Hopeless("401 Unauthorized".into()));
            }
            Action::Exit(exit) if self.lives => self.sees(&Event::Exited(*exit)),
            Action::BeAway if is_launching && !is_remote => self.sees(&Event::Away(absence())),
            // Where its program is enough, one is ready before it is known that it cannot be run.
            Action::FailToLaunch { permanently } if is_launching || self.lives && *permanently => {
                let fault = if *permanently { permanent_fault() } else { transient_fault() };
                self.sees(&Event::LaunchFailed(fault));
            }
            Action::Wait(time) => self.wait(*time),
            Action::WaitForDeadline => {
                if let Some(deadline) = self.life.state.deadline() {
                    self.wait(deadline - self.now);
                }
            }
            _ => {}
        }
    }

    /// A life that was ready once can fail to launch only for good.
    fn has_launched(&self) -> bool {
        let life = self.book.living().unwrap_or_default();
        life.iter().any(|entry| entry.fact == Fact::BecameReady)
    }

    /// Lets time pass, from deadline to deadline.
    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(deadline) = self.life.state.deadline().filter(|&at| at <= until) {
            assert!(deadline >= self.now, "no deadline is in the past");
            self.now = deadline;
            self.sees(&Event::DeadlineReached);
        }
        self.now = until;
    }

    /// Tells the machine, and checks everything that can be checked at every step.
    fn sees(&mut self, event: &Event) {
        let before = self.life.clone();
        let is_remote = self.book.is_remote;
        let moment = Moment { now: self.now, chance: self.chance, is_remote };
        let (life, effect) = on_event(before.clone(), event.clone(), &self.rules, moment);
        self.life = life;
        let is_end = matches!(
            event,
            Event::Exited(_)
                | Event::LaunchFailed(_)
                | Event::Away(_)
                | Event::Unreachable(_)
                | Event::Hopeless(_)
        );
        if is_end {
            self.lives = false;
        }
        self.check_alone(&before, effect);
        match effect {
            Some(Effect::Launch) => (self.lives, self.is_told_to_end) = (true, false),
            Some(Effect::Stop | Effect::Kill) => self.is_told_to_end = true,
            None => {}
        }
        assert_eq!(self.life.state.is_live(), self.lives, "the state knows whether one lives");

        let must_do = self.book.note(event, self.now, &self.rules);
        assert_eq!(effect, must_do, "after {event:?} in {before:?}");
        self.check_by_the_book();
    }

    /// What must hold whatever the rules are.
    fn check_alone(&self, before: &Life, effect: Option<Effect>) {
        let after = &self.life;
        match effect {
            Some(Effect::Launch) => {
                assert!(!self.lives, "nothing is launched beside a living one");
                assert_eq!(after.wanted, Wanted::Up, "nothing is launched that is to be down");
                let was_final = matches!(
                    before.state,
                    State::Retired | State::Stopping { then: AfterStop::Retire, .. }
                );
                assert!(!was_final, "nothing is launched after retirement");
                assert!(matches!(after.state, State::Starting { .. }));
            }
            Some(Effect::Stop) => assert!(self.lives && !self.is_told_to_end),
            Some(Effect::Kill) => assert!(self.lives && self.is_told_to_end),
            None => {}
        }
        if before.state == State::Retired {
            assert_eq!(after.state, State::Retired, "retired is for ever");
        }
        if after.wanted == Wanted::Down {
            let is_up = matches!(
                after.state,
                State::Starting { .. }
                    | State::Running { .. }
                    | State::Backoff { .. }
                    | State::Stopping {
                        then: AfterStop::StartAgain | AfterStop::CountFailure | AfterStop::TryAgain,
                        ..
                    }
            );
            assert!(!is_up, "what is to be down is down or on its way");
        }
        let waits = match after.state {
            State::Starting { .. } | State::Backoff { .. } => true,
            State::Stopping { overdue_at, .. } => overdue_at.is_some(),
            State::Stopped
            | State::Running { .. }
            | State::Asleep { .. }
            | State::Failed
            | State::Retired => false,
        };
        assert_eq!(after.state.deadline().is_some(), waits);
        assert!(after.tally.restarts_total >= before.tally.restarts_total);
        assert!(after.tally.restarts_total >= u64::from(after.tally.restart_count));
        let limit = self.rules.restart.max_retries_per_minute as usize;
        let grown = after.tally.recent_exits.len() > before.tally.recent_exits.len();
        assert!(!grown || after.tally.recent_exits.len() <= limit + 1, "memory is bounded");
    }

    /// What the book says.
    fn check_by_the_book(&self) {
        let must = self.book.must();
        let is_so = match (self.life.state, &must) {
            (State::Stopped, Must::BeDown)
            | (State::Running { .. }, Must::BeReady)
            | (State::Failed, Must::HaveFailed)
            | (State::Retired, Must::BeGone) => true,
            (State::Starting { ready_by, .. }, Must::BeStarting { ready_by: must }) => {
                ready_by == *must
            }
            (State::Backoff { retry_at }, Must::Wait { least, most }) => {
                (*least..=*most).contains(&retry_at)
            }
            (State::Stopping { overdue_at, .. }, Must::BeEnding { forced_at }) => {
                overdue_at == *forced_at
            }
            _ => false,
        };
        let story = || self.book.facts().collect::<Vec<_>>();
        assert!(is_so, "{:?} but {must:?} after {:?}", self.life, story());
        assert_eq!(self.life.wanted, self.book.wanted());
        let tally = &self.life.tally;
        assert_eq!(tally.restart_count as usize, self.book.restart_count(), "{:?}", story());
        assert_eq!(tally.restarts_total, self.book.restarts_total() as u64, "{:?}", story());
    }
}

fn any_rules() -> impl Strategy<Value = Rules> {
    let times = |times: &'static [u64]| select(times).prop_map(Duration::from_millis);
    (
        select(&[RestartPolicy::OnFailure, RestartPolicy::Always, RestartPolicy::Never][..]),
        times(&[1000, 0, 300]),
        times(&[30_000, 4000, 500]),
        select(&[0, 2, 1, 3][..]),
        select(&[0, 2, 1, 3][..]),
        times(&[60_000, 2000, 0]),
        any::<bool>(),
        times(&[10_000, 500]),
        times(&[10_000, 0]),
    )
        .prop_map(
            |(policy, initial, max, per_minute, attempts, reset, jitter, within, grace)| {
                let mut rules = Rules::default();
                rules.restart.policy = policy;
                rules.restart.backoff_initial = initial;
                rules.restart.backoff_max = max;
                rules.restart.max_retries_per_minute = per_minute;
                rules.restart.max_attempts = attempts;
                rules.restart.reset_after = reset;
                rules.restart.jitter = jitter;
                rules.ready.within = within;
                rules.stop.grace = grace;
                rules
            },
        )
}

fn any_exit() -> impl Strategy<Value = Exit> {
    let killed = Exit { signal: Some(9), ..Exit::UNSEEN };
    select(vec![Exit::code(1), Exit::code(0), Exit::UNSEEN, killed])
}

fn any_wait() -> impl Strategy<Value = Action> {
    let millis: &[u64] = &[1, 0, 99, 100, 500, 999, 1000, 2000, 9999, 20_000, 59_999, 60_000];
    select(millis).prop_map(|millis| Action::Wait(Duration::from_millis(millis)))
}

/// What happens to a server while nobody touches it.
fn by_itself() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => Just(Action::WaitForDeadline),
        4 => any_wait(),
        4 => any_exit().prop_map(Action::Exit),
        4 => Just(Action::BecomeReady),
        1 => Just(Action::BeUnfit),
        2 => Just(Action::Hang),
        2 => Just(Action::BeUnreachable),
        1 => Just(Action::BeHopeless),
        1 => any::<bool>().prop_map(|permanently| Action::FailToLaunch { permanently }),
        2 => Just(Action::BeAway),
    ]
}

/// What may happen to it altogether.
fn any_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        12 => by_itself(),
        2 => Just(Action::Ask(Event::StartRequested)),
        1 => Just(Action::Ask(Event::StopRequested)),
        1 => Just(Action::Ask(Event::RestartRequested)),
        1 => Just(Action::Ask(Event::RepairRequested("it hangs".into()))),
        1 => any_rules().prop_map(Action::ChangeProcess),
        1 => any_rules().prop_map(Action::ChangeRules),
    ]
}

/// Retirement comes last, if at all; what happens after it is worth some steps.
fn any_history() -> impl Strategy<Value = Vec<Action>> {
    let retire = Just(Action::Ask(Event::RetireRequested(Retirement::Removed)));
    let ending = prop_oneof![
        2 => Just(Vec::new()),
        1 => (retire, vec(any_action(), 0..8)).prop_map(|(retire, mut after)| {
            after.insert(0, retire);
            after
        }),
    ];
    (vec(any_action(), 0..40), ending).prop_map(|(mut history, ending)| {
        history.extend(ending);
        history
    })
}

fn any_wanted() -> impl Strategy<Value = Wanted> {
    select(&[Wanted::Up, Wanted::Down][..])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn every_history_goes_by_the_book(
        rules in any_rules(),
        wanted in any_wanted(),
        history in any_history(),
        chance: u8,
    ) {
        let mut world = World::new(rules, wanted, chance);
        for action in &history {
            world.act(action);
        }
    }

    #[test]
    fn every_history_of_one_elsewhere_goes_by_the_book(
        rules in any_rules(),
        wanted in any_wanted(),
        history in any_history(),
        chance: u8,
    ) {
        let mut world = World::elsewhere(rules, wanted, chance);
        for action in &history {
            world.act(action);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES_PER_RULE))]

    #[test]
    fn no_limit_is_ever_exceeded(
        rules in any_rules(),
        history in vec(by_itself(), 0..60),
        chance: u8,
    ) {
        let mut world = World::new(rules.clone(), Wanted::Down, chance);
        world.sees(&Event::StartRequested);
        for action in &history {
            world.act(action);
        }
        let (attempts, per_minute) =
            (rules.restart.max_attempts as usize, rules.restart.max_retries_per_minute as usize);
        let entries = &world.book.entries;
        let mut in_a_row = 0;
        let mut ready_at = None;
        let mut exits: Vec<Instant> = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            match entry.fact {
                Fact::Ended(Ending::Away) if world.book.was_away(index) => {}
                Fact::BecameReady => ready_at = Some(entry.at),
                Fact::Unfit | Fact::Hung => {
                    let uptime = ready_at.take().map(|ready| entry.at - ready);
                    if uptime.is_some_and(|uptime| uptime >= rules.restart.reset_after) {
                        in_a_row = 0;
                    }
                }
                Fact::Ended(_) => {
                    let ready = ready_at.take().map_or(Duration::ZERO, |ready| entry.at - ready);
                    if ready >= rules.restart.reset_after {
                        in_a_row = 0;
                    }
                    exits.push(entry.at);
                }
                Fact::LaunchedAgain => {
                    in_a_row += 1;
                    prop_assert!(attempts == 0 || in_a_row <= attempts);
                    let last = *exits.last().unwrap();
                    let recent = exits.iter().filter(|&&exit| last - exit < WINDOW).count();
                    prop_assert!(per_minute == 0 || recent <= per_minute);
                }
                _ => {}
            }
        }
    }

    #[test]
    fn a_start_leads_somewhere_in_bounded_time_if_the_world_answers(
        rules in any_rules(),
        history in vec(any_action(), 0..30),
        chance: u8,
        obeys: bool,
        becomes_ready: bool,
    ) {
        let mut world = World::new(rules, Wanted::Down, chance);
        for action in &history {
            world.act(action);
        }
        world.sees(&Event::StartRequested);
        let began = world.now;
        let mut steps = 0;
        while !world.life.state.on_wire().is_settled() {
            steps += 1;
            prop_assert!(steps < 20, "it goes round in circles");
            let is_forced = matches!(world.life.state, State::Stopping { overdue_at: None, .. });
            let has_ended = if obeys { world.is_told_to_end } else { is_forced };
            if has_ended {
                world.act(&Action::Exit(Exit { signal: Some(9), ..Exit::UNSEEN }));
            } else if becomes_ready && !world.is_told_to_end {
                world.act(&Action::BecomeReady);
            } else {
                world.act(&Action::WaitForDeadline);
            }
        }
        // At worst an old life is forced to end, and a new one is then not ready and forced too.
        let longest = 2 * (Duration::from_secs(10) + STOP_MARGIN) + Duration::from_secs(10);
        prop_assert!(world.now - began <= longest);
        prop_assert!(world.life.wanted == Wanted::Up);
    }

    #[test]
    fn a_server_that_only_crashes_is_given_up_if_there_is_a_limit(
        rules in any_rules(),
        limit in 1..4_u32,
        life in select(&[0, 1, 999, 1000, 1999][..]),
        chance: u8,
    ) {
        let mut rules = rules;
        rules.restart.max_attempts = limit;
        rules.restart.reset_after = Duration::from_secs(2);
        rules.ready.within = Duration::from_secs(10);
        let mut world = World::new(rules, Wanted::Down, chance);
        world.sees(&Event::StartRequested);
        for _ in 0..=limit {
            world.act(&Action::BecomeReady);
            world.act(&Action::Wait(Duration::from_millis(life)));
            world.act(&Action::Exit(Exit::code(1)));
            world.act(&Action::WaitForDeadline);
        }
        prop_assert_eq!(world.life.state, State::Failed);
        prop_assert!(world.life.tally.restarts_total <= u64::from(limit));
    }

    #[test]
    fn silence_alone_never_ends_the_tries_to_reach_one_elsewhere(
        rules in any_rules(),
        silences in vec(select(&[true, false][..]), 0..60),
        chance: u8,
    ) {
        let mut world = World::elsewhere(rules, Wanted::Down, chance);
        world.sees(&Event::StartRequested);
        for is_told in silences {
            if is_told {
                world.act(&Action::BeUnreachable);
            } else {
                world.act(&Action::WaitForDeadline);
                world.act(&Action::Exit(Exit::UNSEEN));
            }
            prop_assert_eq!(world.life.state.on_wire(), ServerState::Restarting);
            prop_assert!(world.life.is_unreachable());
            world.act(&Action::WaitForDeadline);
            prop_assert!(world.life.is_unreachable(), "until it answers");
        }
        world.act(&Action::BecomeReady);
        prop_assert!(!world.life.is_unreachable());
        prop_assert_eq!(world.life.tally.restarts_total, 0);
    }

    #[test]
    fn what_is_stopped_stays_stopped_until_somebody_asks(
        rules in any_rules(),
        before in vec(any_action(), 0..30),
        after in vec(prop_oneof![
            4 => by_itself(),
            1 => any_rules().prop_map(Action::ChangeProcess),
            1 => any_rules().prop_map(Action::ChangeRules),
        ], 0..20),
        chance: u8,
    ) {
        let mut world = World::new(rules, Wanted::Down, chance);
        for action in &before {
            world.act(action);
        }
        world.sees(&Event::StopRequested);
        let launches = world.book.facts().filter(|fact| fact.is_launch()).count();
        for action in &after {
            world.act(action);
        }
        world.act(&Action::Exit(Exit::code(0)));
        prop_assert_eq!(world.life.state, State::Stopped);
        prop_assert_eq!(world.life.state.on_wire(), ServerState::Stopped);
        prop_assert_eq!(world.book.facts().filter(|fact| fact.is_launch()).count(), launches);
    }

    #[test]
    fn every_state_has_a_reason_that_can_be_read(
        rules in any_rules(),
        history in any_history(),
        chance: u8,
        is_remote: bool,
    ) {
        let mut world = World::new(rules, Wanted::Down, chance);
        world.book.is_remote = is_remote;
        for action in &history {
            world.act(action);
            let Life { state, reason, .. } = &world.life;
            prop_assert!(!reason.to_string().is_empty());
            let tells_a_failure = matches!(
                reason,
                Reason::LaunchFailed(_)
                    | Reason::Away(_)
                    | Reason::Exited(_)
                    | Reason::NeverReady { .. }
                    | Reason::Unfit(_)
                    | Reason::Unhealthy(_)
                    | Reason::Unreachable(_)
                    | Reason::TooManyExits { .. }
                    | Reason::TooManyAttempts { .. }
            );
            match state {
                State::Failed | State::Backoff { .. } => prop_assert!(tells_a_failure),
                State::Running { .. } => prop_assert_eq!(reason, &Reason::Ready),
                State::Starting { .. } => prop_assert!(!tells_a_failure),
                _ => {}
            }
        }
    }
}
