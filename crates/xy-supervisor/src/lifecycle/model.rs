//! Random histories, compared with a second implementation of the rules.
//!
//! [`Model`] is that implementation. It counts nothing and remembers everything: it derives each
//! answer from the complete history. So it shares neither the states nor the counters of the
//! state machine. [`World`] is the environment of a state machine: it holds the current life, and
//! lets time pass from deadline to deadline.

use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use xy_config::settings::{RestartPolicy, Rules};
use xy_protocol::server::{ServerState, Wanted};

use super::reason::{Exit, Reason};
use super::{
    AfterStop, Context, Effect, Event, Life, Retirement, STOP_MARGIN, State, WINDOW, on_event,
};
use crate::fake::{engine_unavailable, permanent_fault, transient_fault};

/// Number of histories that are compared with the model.
const CASES: u32 = 2000;

/// Number of histories on which each single property is checked.
const CASES_PER_RULE: u32 = 300;

/// A fact of the history, with its time and the rules at that time.
#[derive(Debug, Clone)]
struct Entry {
    at: Instant,
    rules: Rules,
    fact: Fact,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fact {
    StartRequested,
    StopRequested,
    RestartRequested,
    RepairRequested,
    RetireRequested,
    ProcessChanged,
    RulesChanged,
    /// A life started on request.
    LaunchedOnRequest,
    /// A life started because the last one had failed.
    Restarted,
    /// A life started because the last one was found broken.
    LaunchedForRepair,
    /// A life started because the remote server or the engine could not be reached.
    ReconnectAttempt,
    BecameReady,
    /// The server took too long to become ready.
    NeverReady,
    /// The remote server took too long to answer.
    NoAnswer,
    /// The server violated the protocol.
    ProtocolError,
    /// The server was ready and does not answer any more.
    Hung,
    Killed,
    Ended(Ending),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Clean,
    Dirty,
    NotLaunched,
    NeverLaunchable,
    EngineUnavailable,
    Unreachable,
    Unrecoverable,
}

/// The state that the history requires.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Expected {
    Down,
    Starting {
        ready_by: Instant,
    },
    Ready,
    /// Waiting for the next life, until some time between the two.
    Wait {
        least: Instant,
        most: Instant,
    },
    Stopping {
        forced_at: Option<Instant>,
    },
    Failed,
    Retired,
}

/// The complete history, in order.
#[derive(Debug, Clone)]
struct Model {
    /// Whether the server is remote.
    is_remote: bool,
    wanted_first: Wanted,
    entries: Vec<Entry>,
}

impl Model {
    fn facts(&self) -> impl DoubleEndedIterator<Item = Fact> {
        self.entries.iter().map(|entry| entry.fact)
    }

    /// Returns the last wish of the operator.
    fn wanted(&self) -> Wanted {
        let asked = self.facts().rev().find_map(|fact| match fact {
            Fact::StartRequested | Fact::RestartRequested => Some(Wanted::Up),
            Fact::StopRequested => Some(Wanted::Down),
            _ => None,
        });
        asked.unwrap_or(self.wanted_first)
    }

    fn is_retired(&self) -> bool {
        self.facts().any(|fact| fact == Fact::RetireRequested)
    }

    /// Returns the entries of the current life, from its launch.
    fn living(&self) -> Option<&[Entry]> {
        let launched = self.entries.iter().rposition(|entry| entry.fact.is_launch())?;
        let life = &self.entries[launched..];
        (!life.iter().any(|entry| entry.fact.is_end())).then_some(life)
    }

    /// Returns the state that the history requires now.
    fn expected(&self) -> Expected {
        if let Some(life) = self.living() {
            if let Some(end_begun) = life.iter().find(|entry| entry.fact.begins_end()) {
                let forced = life.iter().any(|entry| entry.fact == Fact::Killed);
                let limit = end_begun.rules.stop.grace + STOP_MARGIN;
                return Expected::Stopping { forced_at: (!forced).then(|| end_begun.at + limit) };
            }
            if life.iter().any(|entry| entry.fact == Fact::BecameReady) {
                return Expected::Ready;
            }
            return Expected::Starting { ready_by: life[0].at + life[0].rules.ready.within };
        }
        if self.is_retired() {
            return Expected::Retired;
        }
        let last_end = self.entries.iter().rposition(|entry| entry.fact.is_end());
        match (self.wanted(), last_end) {
            (Wanted::Up, Some(end)) => self.verdict(end),
            _ => Expected::Down,
        }
    }

    /// Returns true if the life that ended at `end` was stopped for a requested successor.
    fn has_requested_successor(&self, end: usize) -> bool {
        if self.is_retired() || self.wanted() == Wanted::Down {
            return false;
        }
        let life = &self.entries[self.launch_of(end)..end];
        let Some(begun) = life.iter().position(|entry| entry.fact.begins_end()) else {
            return false; // It exited by itself.
        };
        let is_request = |entry: &Entry| entry.fact.is_request();
        !life[begun].fact.is_fault() || life[begun..].iter().any(is_request)
    }

    /// Returns true if the last end, if there was one, satisfies `is_so`.
    fn ended_last(&self, is_so: impl Fn(usize) -> bool) -> bool {
        self.entries.iter().rposition(|entry| entry.fact.is_end()).is_some_and(is_so)
    }

    fn launch_of(&self, end: usize) -> usize {
        self.entries[..end].iter().rposition(|entry| entry.fact.is_launch()).unwrap()
    }

    /// Returns true if the life that ended at `end` was stopped for a repair, with no other request
    /// since.
    fn is_repaired(&self, end: usize) -> bool {
        let life = &self.entries[self.launch_of(end)..end];
        let begun = life.iter().position(|entry| entry.fact.begins_end());
        let is_request = |entry: &Entry| entry.fact.is_request();
        begun.is_some_and(|begun| {
            life[begun].fact == Fact::RepairRequested && !life[begun..].iter().any(is_request)
        })
    }

    /// Returns true if an end counts: it is a failure, and its rules want another life after it.
    fn counts(&self, end: usize) -> bool {
        let Entry { rules, fact, .. } = &self.entries[end];
        let life = &self.entries[self.launch_of(end)..end];
        let was_fit = !life.iter().any(|entry| entry.fact.is_fault());
        let is_final = *fact == Fact::Ended(Ending::Unrecoverable) && was_fit
            || self.was_never_launchable(end);
        let is_clean = *fact == Fact::Ended(Ending::Clean) && was_fit;
        let is_wanted = self.is_remote
            || match rules.restart.policy {
                RestartPolicy::Always => true,
                RestartPolicy::OnFailure => !is_clean,
                RestartPolicy::Never => false,
            };
        !is_final && is_wanted && !self.is_repaired(end) && !self.was_engine_unavailable(end)
    }

    /// Returns true if a life had been ready for `reset-after` when it ended, or began to end.
    fn was_stable(&self, index: usize) -> bool {
        let life = &self.entries[self.launch_of(index)..index];
        let ready = life.iter().find(|entry| entry.fact == Fact::BecameReady);
        let was_up = |at: &Entry| {
            let uptime = ready.map(|ready| at.at - ready.at);
            uptime.is_some_and(|uptime| uptime >= at.rules.restart.reset_after)
        };
        let end = &self.entries[index];
        let needs_none = end.rules.restart.reset_after.is_zero();
        let ends_it = |entry: &&Entry| match entry.fact {
            Fact::Hung | Fact::RepairRequested => true,
            Fact::ProtocolError => !self.is_remote,
            _ => false,
        };
        match life.iter().find(ends_it) {
            // The uptime ends there.
            Some(begun) => was_up(begun) || self.counts(index) && needs_none,
            None => self.counts(index) && (was_up(end) || needs_none),
        }
    }

    /// Returns the state that an unexpected end leads to.
    fn verdict(&self, end: usize) -> Expected {
        let Entry { at, rules, fact } = &self.entries[end];
        let restart = &rules.restart;
        let life = &self.entries[self.launch_of(end)..end];
        let was_fit = !life.iter().any(|entry| entry.fact.is_fault());
        if *fact == Fact::Ended(Ending::Unrecoverable) && was_fit {
            return Expected::Failed;
        }
        let is_clean = *fact == Fact::Ended(Ending::Clean) && was_fit;
        if self.was_never_launchable(end) {
            return Expected::Failed;
        }
        if self.was_engine_unavailable(end) && restart.policy != RestartPolicy::Never {
            return self.after_delay(end, self.engine_failures_in_a_row(end) - 1);
        }
        if self.is_remote {
            return self.next_reconnect(end);
        }
        match restart.policy {
            RestartPolicy::Never | RestartPolicy::OnFailure if is_clean => return Expected::Down,
            RestartPolicy::Never => return Expected::Failed,
            RestartPolicy::OnFailure | RestartPolicy::Always => {}
        }
        let exits = self.exits_within_window(end);
        let row = self.restarts_in_a_row(end);
        let is_over = |count: usize, limit: u32| limit != 0 && count > limit as usize;
        if is_over(exits, restart.max_retries_per_minute) || is_over(row + 1, restart.max_attempts)
        {
            return Expected::Failed;
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
        Expected::Wait { least: after(least), most: after(most) }
    }

    /// Returns true if a life ended because its program cannot be launched, however late that was
    /// known.
    fn was_never_launchable(&self, end: usize) -> bool {
        let life = &self.entries[self.launch_of(end)..end];
        let is_other = |fact: Fact| fact.is_fault() && fact != Fact::NeverReady;
        self.entries[end].fact == Fact::Ended(Ending::NeverLaunchable)
            && !life.iter().any(|entry| is_other(entry.fact))
    }

    /// Returns when xy tries again to reach a remote server. Delays grow with each failure since
    /// the last request, or since the last stable connection.
    fn next_reconnect(&self, end: usize) -> Expected {
        let since = self.last_stable_end(end);
        let silences = self.failures(end).into_iter().filter(|&index| index >= since).count();
        self.after_delay(end, silences - 1)
    }

    /// Returns true if a life ended because the engine was unavailable.
    fn was_engine_unavailable(&self, end: usize) -> bool {
        let life = &self.entries[self.launch_of(end)..end];
        self.entries[end].fact == Fact::Ended(Ending::EngineUnavailable)
            && !life.iter().any(|entry| entry.fact.is_fault())
    }

    /// Returns the number of such ends in a row, since the engine was available or the last
    /// request.
    fn engine_failures_in_a_row(&self, end: usize) -> usize {
        let is_there = |entry: &Entry| entry.fact == Fact::BecameReady;
        let was_there = self.entries[..end].iter().rposition(is_there).unwrap_or(0);
        let since = was_there.max(self.last_requested_launch(end));
        let restart = |index: usize| &self.entries[index].rules.restart;
        let waits = |index: usize| restart(index).policy != RestartPolicy::Never;
        let ends = self.ends(end).into_iter().filter(|&index| index > since);
        // Without `reset-after`, the delays never grow.
        ends.filter(|&index| self.was_engine_unavailable(index) && waits(index))
            .fold(0, |row, index| if restart(index).reset_after.is_zero() { 1 } else { row + 1 })
    }

    /// Returns the wait after an uncounted end that follows `row` others.
    fn after_delay(&self, end: usize, row: usize) -> Expected {
        let restart = &self.entries[end].rules.restart;
        let least_ever = Duration::from_millis(100);
        let first = restart.backoff_initial.max(least_ever);
        let most = restart.backoff_max;
        let delay = (0..row).fold(first, |delay, _| (delay * 2).min(most)).min(most);
        let longest = if restart.jitter { (delay + delay / 4).min(most) } else { delay };
        let at = self.entries[end].at;
        Expected::Wait { least: at + delay.max(least_ever), most: at + longest.max(least_ever) }
    }

    /// Returns all counted ends up to `end` since the last requested launch.
    fn failures(&self, end: usize) -> Vec<usize> {
        self.ends(end).into_iter().filter(|&index| self.counts(index)).collect()
    }

    fn ends(&self, end: usize) -> Vec<usize> {
        let since = self.last_requested_launch(end);
        (since..=end).filter(|&index| self.entries[index].fact.is_end()).collect()
    }

    /// Returns the start of the current row: the last stable life, or the last requested launch.
    fn last_stable_end(&self, end: usize) -> usize {
        let proof = self.ends(end).into_iter().rfind(|&index| self.was_stable(index));
        proof.unwrap_or_else(|| self.last_requested_launch(end))
    }

    /// Returns the last launch that was requested.
    fn last_requested_launch(&self, end: usize) -> usize {
        let is_request = |entry: &Entry| entry.fact == Fact::LaunchedOnRequest;
        self.entries[..end].iter().rposition(is_request).unwrap()
    }

    /// Returns the number of exits in the 60 s up to and including `end`. Older exits are known
    /// only as far as the limit at that time required.
    fn exits_within_window(&self, end: usize) -> usize {
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

    /// Returns the number of automatic restarts up to `end` since the last stable life.
    fn restarts_in_a_row(&self, end: usize) -> usize {
        let since = self.last_stable_end(end);
        self.entries[since..end].iter().filter(|entry| entry.fact.is_restart()).count()
    }

    fn restart_count(&self) -> usize {
        let since = self.facts().collect::<Vec<_>>();
        let wish = since.iter().rposition(|fact| *fact == Fact::LaunchedOnRequest).unwrap_or(0);
        since[wish..].iter().filter(|fact| fact.is_restart()).count()
    }

    fn restarts_total(&self) -> usize {
        self.facts().filter(|fact| fact.is_restart()).count()
    }

    /// Records an event and its consequences. Returns the effect that is required.
    fn record(&mut self, event: &Event, at: Instant, rules: &Rules) -> Option<Effect> {
        let before = self.expected();
        let entry = |fact| Entry { at, rules: rules.clone(), fact };
        let fact = match (event, &before) {
            (Event::StartRequested, _) => Fact::StartRequested,
            (Event::StopRequested, _) => Fact::StopRequested,
            (Event::RestartRequested, _) => Fact::RestartRequested,
            (
                Event::RepairRequested(_),
                Expected::Ready | Expected::Wait { .. } | Expected::Failed,
            ) => Fact::RepairRequested,
            (Event::RetireRequested(_), _) => Fact::RetireRequested,
            (Event::ProcessChanged, _) => Fact::ProcessChanged,
            (Event::RulesChanged, _) => Fact::RulesChanged,
            (Event::Ready, Expected::Starting { .. }) => Fact::BecameReady,
            (Event::Exited(exit), _) if *exit == Exit::code(0) => Fact::Ended(Ending::Clean),
            (Event::Exited(_), _) => Fact::Ended(Ending::Dirty),
            (Event::LaunchFailed(fault), _) if fault.permanent => {
                Fact::Ended(Ending::NeverLaunchable)
            }
            (Event::LaunchFailed(_), _) => Fact::Ended(Ending::NotLaunched),
            (Event::EngineUnavailable(_), _) => Fact::Ended(Ending::EngineUnavailable),
            (Event::Unreachable(_), _) => Fact::Ended(Ending::Unreachable),
            (Event::Unrecoverable(_), _) => Fact::Ended(Ending::Unrecoverable),
            (Event::DeadlineReached, Expected::Starting { .. }) if self.is_remote => Fact::NoAnswer,
            (Event::DeadlineReached, Expected::Wait { .. })
                if self.is_remote || self.ended_last(|end| self.was_engine_unavailable(end)) =>
            {
                Fact::ReconnectAttempt
            }
            (Event::DeadlineReached, Expected::Starting { .. }) => Fact::NeverReady,
            (Event::DeadlineReached, Expected::Stopping { .. }) => Fact::Killed,
            (Event::DeadlineReached, Expected::Wait { .. }) => Fact::Restarted,
            (Event::ProtocolError(_), Expected::Starting { .. } | Expected::Ready) => {
                Fact::ProtocolError
            }
            (Event::Unhealthy(_), Expected::Ready) => Fact::Hung,
            // The event came too late.
            (
                Event::Ready
                | Event::ProtocolError(_)
                | Event::Unhealthy(_)
                | Event::RepairRequested(_)
                | Event::DeadlineReached,
                _,
            ) => return None,
            (
                Event::WriteInterrupted
                | Event::RestartRequired(_)
                | Event::Preparing
                | Event::ExitedOnProbe(_)
                | Event::ProtocolErrorOnProbe(_)
                | Event::WakeRequested
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
                fact => fact == Fact::RepairRequested,
            };
            let launched =
                if is_repair { Fact::LaunchedForRepair } else { Fact::LaunchedOnRequest };
            self.entries.push(entry(launched));
        }
        let was_ending = matches!(before, Expected::Stopping { .. });
        match self.entries.last().unwrap().fact {
            last if last.is_launch() => Some(Effect::Launch),
            Fact::Killed => Some(Effect::Kill),
            _ if !was_ending && matches!(self.expected(), Expected::Stopping { .. }) => {
                Some(Effect::Stop)
            }
            _ => None,
        }
    }

    /// Returns true if a requested launch is due now.
    fn is_launch_due(&self, fact: Fact, before: &Expected) -> bool {
        let nobody_lives = self.living().is_none();
        let is_wanted = self.wanted() == Wanted::Up && !self.is_retired();
        nobody_lives
            && is_wanted
            && match fact {
                Fact::StartRequested
                | Fact::RestartRequested
                | Fact::RepairRequested
                | Fact::ProcessChanged => true,
                Fact::RulesChanged => *before == Expected::Failed,
                Fact::Ended(_) => self.has_requested_successor(self.entries.len() - 1),
                _ => false,
            }
    }
}

impl Fact {
    fn is_launch(self) -> bool {
        self.is_restart() || matches!(self, Self::LaunchedOnRequest | Self::ReconnectAttempt)
    }

    /// Returns true if a life started without a request.
    fn is_restart(self) -> bool {
        matches!(self, Self::Restarted | Self::LaunchedForRepair)
    }

    /// Returns true if a new life was requested.
    fn is_request(self) -> bool {
        matches!(self, Self::StartRequested | Self::RestartRequested | Self::ProcessChanged)
    }

    fn is_end(self) -> bool {
        matches!(self, Self::Ended(_))
    }

    fn begins_end(self) -> bool {
        matches!(
            self,
            Self::StopRequested
                | Self::RestartRequested
                | Self::RepairRequested
                | Self::RetireRequested
                | Self::ProcessChanged
                | Self::NeverReady
                | Self::NoAnswer
                | Self::ProtocolError
                | Self::Hung
        )
    }

    /// Returns true if the server is stopped for a fault that counts.
    fn is_fault(self) -> bool {
        matches!(self, Self::NeverReady | Self::NoAnswer | Self::ProtocolError | Self::Hung)
    }
}

/// An action of the environment. An action that is impossible at the moment does nothing.
#[derive(Debug, Clone)]
enum Action {
    Request(Event),
    ChangeProcess(Rules),
    ChangeRules(Rules),
    BecomeReady,
    FailProtocol,
    Hang,
    BeUnreachable,
    Refuse,
    Exit(Exit),
    FailToLaunch { permanently: bool },
    LoseEngine,
    Wait(Duration),
    WaitForDeadline,
}

/// A state machine and its environment.
struct World {
    life: Life,
    rules: Rules,
    now: Instant,
    random: u8,
    model: Model,
    /// Whether a life exists according to the effects.
    lives: bool,
    /// Whether the life has been told to end.
    is_told_to_end: bool,
}

impl World {
    fn new(rules: Rules, wanted: Wanted, random: u8) -> Self {
        Self {
            life: Life::new(wanted),
            rules,
            now: tokio::time::Instant::now().into_std(),
            random,
            model: Model { is_remote: false, wanted_first: wanted, entries: Vec::new() },
            lives: false,
            is_told_to_end: false,
        }
    }

    /// Creates the world of a remote server.
    fn remote(rules: Rules, wanted: Wanted, random: u8) -> Self {
        let mut world = Self::new(rules, wanted, random);
        world.model.is_remote = true;
        world
    }

    fn act(&mut self, action: &Action) {
        let is_launching = self.lives && !self.has_launched();
        let is_remote = self.model.is_remote;
        match action {
            Action::Request(event) => self.apply(event),
            Action::ChangeProcess(rules) => {
                self.rules = rules.clone();
                self.apply(&Event::ProcessChanged);
            }
            Action::ChangeRules(rules) => {
                self.rules = rules.clone();
                self.apply(&Event::RulesChanged);
            }
            Action::BecomeReady if self.lives => self.apply(&Event::Ready),
            Action::FailProtocol if self.lives && !is_remote => {
                self.apply(&Event::ProtocolError("it speaks gibberish".into()));
            }
            Action::Hang if self.lives => {
                self.apply(&Event::Unhealthy("no answer".into()));
            }
            Action::BeUnreachable if self.lives && is_remote => {
                self.apply(&Event::Unreachable("connection refused".into()));
            }
            Action::Refuse if self.lives && is_remote => {
                self.apply(&Event::Unrecoverable("401 Unauthorized".into()));
            }
            Action::Exit(exit) if self.lives => self.apply(&Event::Exited(*exit)),
            Action::LoseEngine if is_launching && !is_remote => {
                self.apply(&Event::EngineUnavailable(engine_unavailable()));
            }
            // With `ready "process"`, a server is ready before its launch can fail for good.
            Action::FailToLaunch { permanently } if is_launching || self.lives && *permanently => {
                let fault = if *permanently { permanent_fault() } else { transient_fault() };
                self.apply(&Event::LaunchFailed(fault));
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

    /// Returns true if the life was ready once. Its launch can then only fail permanently.
    fn has_launched(&self) -> bool {
        let life = self.model.living().unwrap_or_default();
        life.iter().any(|entry| entry.fact == Fact::BecameReady)
    }

    /// Lets time pass from deadline to deadline.
    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(deadline) = self.life.state.deadline().filter(|&at| at <= until) {
            assert!(deadline >= self.now, "no deadline is in the past");
            self.now = deadline;
            self.apply(&Event::DeadlineReached);
        }
        self.now = until;
    }

    /// Applies an event to the machine, and checks the result.
    fn apply(&mut self, event: &Event) {
        let before = self.life.clone();
        let is_remote = self.model.is_remote;
        let context = Context { now: self.now, random: self.random, is_remote };
        let (life, effect) = on_event(before.clone(), event.clone(), &self.rules, context);
        self.life = life;
        let is_end = matches!(
            event,
            Event::Exited(_)
                | Event::LaunchFailed(_)
                | Event::EngineUnavailable(_)
                | Event::Unreachable(_)
                | Event::Unrecoverable(_)
        );
        if is_end {
            self.lives = false;
        }
        self.check_invariants(&before, effect);
        match effect {
            Some(Effect::Launch) => (self.lives, self.is_told_to_end) = (true, false),
            Some(Effect::Stop | Effect::Kill) => self.is_told_to_end = true,
            None => {}
        }
        assert_eq!(self.life.state.is_live(), self.lives, "the state knows whether one lives");

        let must_do = self.model.record(event, self.now, &self.rules);
        assert_eq!(effect, must_do, "after {event:?} in {before:?}");
        self.check_against_model();
    }

    /// Checks the invariants that hold under all rules.
    fn check_invariants(&self, before: &Life, effect: Option<Effect>) {
        let after = &self.life;
        match effect {
            Some(Effect::Launch) => {
                assert!(!self.lives, "only one life at a time");
                assert_eq!(after.wanted, Wanted::Up, "no launch while wanted down");
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
            assert_eq!(after.state, State::Retired, "retirement is final");
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
            assert!(!is_up, "a server wanted down is down or stopping");
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
        let has_grown = after.tally.recent_exits.len() > before.tally.recent_exits.len();
        assert!(!has_grown || after.tally.recent_exits.len() <= limit + 1, "memory is bounded");
    }

    /// Checks the state against the model.
    fn check_against_model(&self) {
        let expected = self.model.expected();
        let is_so = match (self.life.state, &expected) {
            (State::Stopped, Expected::Down)
            | (State::Running { .. }, Expected::Ready)
            | (State::Failed, Expected::Failed)
            | (State::Retired, Expected::Retired) => true,
            (State::Starting { ready_by, .. }, Expected::Starting { ready_by: expected }) => {
                ready_by == *expected
            }
            (State::Backoff { retry_at }, Expected::Wait { least, most }) => {
                (*least..=*most).contains(&retry_at)
            }
            (State::Stopping { overdue_at, .. }, Expected::Stopping { forced_at }) => {
                overdue_at == *forced_at
            }
            _ => false,
        };
        let story = || self.model.facts().collect::<Vec<_>>();
        assert!(is_so, "{:?} but {expected:?} after {:?}", self.life, story());
        assert_eq!(self.life.wanted, self.model.wanted());
        let tally = &self.life.tally;
        assert_eq!(tally.restart_count as usize, self.model.restart_count(), "{:?}", story());
        assert_eq!(tally.restarts_total, self.model.restarts_total() as u64, "{:?}", story());
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
    let killed = Exit { signal: Some(9), ..Exit::UNKNOWN };
    select(vec![Exit::code(1), Exit::code(0), Exit::UNKNOWN, killed])
}

fn any_wait() -> impl Strategy<Value = Action> {
    let millis: &[u64] = &[1, 0, 99, 100, 500, 999, 1000, 2000, 9999, 20_000, 59_999, 60_000];
    select(millis).prop_map(|millis| Action::Wait(Duration::from_millis(millis)))
}

/// Actions of a server without requests.
fn by_itself() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => Just(Action::WaitForDeadline),
        4 => any_wait(),
        4 => any_exit().prop_map(Action::Exit),
        4 => Just(Action::BecomeReady),
        1 => Just(Action::FailProtocol),
        2 => Just(Action::Hang),
        2 => Just(Action::BeUnreachable),
        1 => Just(Action::Refuse),
        1 => any::<bool>().prop_map(|permanently| Action::FailToLaunch { permanently }),
        2 => Just(Action::LoseEngine),
    ]
}

/// All actions.
fn any_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        12 => by_itself(),
        2 => Just(Action::Request(Event::StartRequested)),
        1 => Just(Action::Request(Event::StopRequested)),
        1 => Just(Action::Request(Event::RestartRequested)),
        1 => Just(Action::Request(Event::RepairRequested("it hangs".into()))),
        1 => any_rules().prop_map(Action::ChangeProcess),
        1 => any_rules().prop_map(Action::ChangeRules),
    ]
}

/// Histories in which retirement, if there is one, comes near the end, followed by a few actions.
fn any_history() -> impl Strategy<Value = Vec<Action>> {
    let retire = Just(Action::Request(Event::RetireRequested(Retirement::Removed)));
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
    fn every_history_matches_the_model(
        rules in any_rules(),
        wanted in any_wanted(),
        history in any_history(),
        random: u8,
    ) {
        let mut world = World::new(rules, wanted, random);
        for action in &history {
            world.act(action);
        }
    }

    #[test]
    fn every_remote_history_matches_the_model(
        rules in any_rules(),
        wanted in any_wanted(),
        history in any_history(),
        random: u8,
    ) {
        let mut world = World::remote(rules, wanted, random);
        for action in &history {
            world.act(action);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES_PER_RULE))]

    #[test]
    fn limits_are_never_exceeded(
        rules in any_rules(),
        history in vec(by_itself(), 0..60),
        random: u8,
    ) {
        let mut world = World::new(rules.clone(), Wanted::Down, random);
        world.apply(&Event::StartRequested);
        for action in &history {
            world.act(action);
        }
        let (attempts, per_minute) =
            (rules.restart.max_attempts as usize, rules.restart.max_retries_per_minute as usize);
        let entries = &world.model.entries;
        let mut in_a_row = 0;
        let mut ready_at = None;
        let mut exits: Vec<Instant> = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            match entry.fact {
                Fact::Ended(Ending::EngineUnavailable) if world.model.was_engine_unavailable(index) => {}
                Fact::BecameReady => ready_at = Some(entry.at),
                Fact::ProtocolError | Fact::Hung => {
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
                Fact::Restarted => {
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
    fn start_settles_in_bounded_time(
        rules in any_rules(),
        history in vec(any_action(), 0..30),
        random: u8,
        obeys: bool,
        becomes_ready: bool,
    ) {
        let mut world = World::new(rules, Wanted::Down, random);
        for action in &history {
            world.act(action);
        }
        world.apply(&Event::StartRequested);
        let began = world.now;
        let mut steps = 0;
        while !world.life.state.on_wire().is_settled() {
            steps += 1;
            prop_assert!(steps < 20, "it goes round in circles");
            let is_forced = matches!(world.life.state, State::Stopping { overdue_at: None, .. });
            let has_ended = if obeys { world.is_told_to_end } else { is_forced };
            if has_ended {
                world.act(&Action::Exit(Exit { signal: Some(9), ..Exit::UNKNOWN }));
            } else if becomes_ready && !world.is_told_to_end {
                world.act(&Action::BecomeReady);
            } else {
                world.act(&Action::WaitForDeadline);
            }
        }
        // At worst the old life is killed, and the new one is never ready and killed too.
        let longest = 2 * (Duration::from_secs(10) + STOP_MARGIN) + Duration::from_secs(10);
        prop_assert!(world.now - began <= longest);
        prop_assert!(world.life.wanted == Wanted::Up);
    }

    #[test]
    fn crashing_server_is_given_up_with_a_limit(
        rules in any_rules(),
        limit in 1..4_u32,
        life in select(&[0, 1, 999, 1000, 1999][..]),
        random: u8,
    ) {
        let mut rules = rules;
        rules.restart.max_attempts = limit;
        rules.restart.reset_after = Duration::from_secs(2);
        rules.ready.within = Duration::from_secs(10);
        let mut world = World::new(rules, Wanted::Down, random);
        world.apply(&Event::StartRequested);
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
    fn silence_never_ends_reconnects_to_remote_server(
        rules in any_rules(),
        silences in vec(select(&[true, false][..]), 0..60),
        random: u8,
    ) {
        let mut world = World::remote(rules, Wanted::Down, random);
        world.apply(&Event::StartRequested);
        for is_reported in silences {
            if is_reported {
                world.act(&Action::BeUnreachable);
            } else {
                world.act(&Action::WaitForDeadline);
                world.act(&Action::Exit(Exit::UNKNOWN));
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
    fn stopped_server_stays_stopped_until_requested(
        rules in any_rules(),
        before in vec(any_action(), 0..30),
        after in vec(prop_oneof![
            4 => by_itself(),
            1 => any_rules().prop_map(Action::ChangeProcess),
            1 => any_rules().prop_map(Action::ChangeRules),
        ], 0..20),
        random: u8,
    ) {
        let mut world = World::new(rules, Wanted::Down, random);
        for action in &before {
            world.act(action);
        }
        world.apply(&Event::StopRequested);
        let launches = world.model.facts().filter(|fact| fact.is_launch()).count();
        for action in &after {
            world.act(action);
        }
        world.act(&Action::Exit(Exit::code(0)));
        prop_assert_eq!(world.life.state, State::Stopped);
        prop_assert_eq!(world.life.state.on_wire(), ServerState::Stopped);
        prop_assert_eq!(world.model.facts().filter(|fact| fact.is_launch()).count(), launches);
    }

    #[test]
    fn every_state_has_a_readable_reason(
        rules in any_rules(),
        history in any_history(),
        random: u8,
        is_remote: bool,
    ) {
        let mut world = World::new(rules, Wanted::Down, random);
        world.model.is_remote = is_remote;
        for action in &history {
            world.act(action);
            let Life { state, reason, .. } = &world.life;
            prop_assert!(!reason.to_string().is_empty());
            let tells_a_failure = matches!(
                reason,
                Reason::LaunchFailed(_)
                    | Reason::EngineUnavailable(_)
                    | Reason::Exited(_)
                    | Reason::NeverReady { .. }
                    | Reason::ProtocolError(_)
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
