//! Whether a server that was ready still works, by evidence. Pure.
//!
//! [`Pulse::observe`] is told what came of one probe and what else was seen meanwhile; it
//! answers what that says of the server. `vigil.rs` makes the probes and does the looking.
//!
//! ```text
//! answered ─────────────────────────────────────────────► alive, a row of failures ends
//! not made, or made while nobody was there to wait ─────► nothing
//! failed ─┬─ it said something else meanwhile ──────────► alive
//!         ├─ it has calls in flight ─┬─ uses CPU ───────► alive
//!         │                          ├─ writes output ──► alive
//!         │                          └─ out of sight ───► nothing
//!         ├─ it is known to ignore such probes ─────────► nothing
//!         └─ else ──────────────────────────────────────► suspect, or hung after enough of it
//! ignored, but something else was answered ─────────────► alive; it ignores such probes
//! ```

use std::fmt::Write;
use std::time::Duration;

use xy_config::settings::{HealthProbe, HealthRules};

/// One that uses less of a processor's time than one part in so many does nothing: there are
/// programs that wake now and then to see that there is nothing to do.
const IDLE_PARTS: u32 = 500;

/// Whoever waits for an answer may be late by this much, and half of the time it waits for.
const LATE: Duration = Duration::from_secs(1);

/// Of one that may not know `ping` this is found out so long after it is ready: it could hang
/// before its first regular probe, and then nobody would know whether to blame it.
const FIRST_AFTER: Duration = Duration::from_secs(1);

/// The longest reason, in characters.
const LONGEST_WHY: usize = 300;

/// What came of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It has answered; whether it could do what was asked does not matter.
    Answered,
    /// It has not, in its time, but it has answered something else, or there is nothing else
    /// that it could be asked.
    Ignored,
    /// It has not, in its time, or what came is not what was asked for.
    Failed(String),
    /// It was not asked, for this reason.
    NotMade(String),
}

/// What was seen of a server while it was probed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Calls that somebody waits for.
    pub calls: u32,
    /// It has said something that is a message.
    pub has_spoken: bool,
    /// It has written something, to its log or beside messages.
    pub has_written: bool,
    /// The processor's time that it used, and in which time; `None` where nobody can tell.
    pub cpu: Option<(Duration, Duration)>,
}

impl Evidence {
    fn uses_cpu(self) -> bool {
        self.cpu.is_some_and(|(used, within)| is_work(used, within))
    }
}

/// Whether one that uses so much of the processor's time within this time does something.
pub fn is_work(used: Duration, within: Duration) -> bool {
    !used.is_zero() && used >= within / IDLE_PARTS
}

/// One probe, and what was seen meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// What came of it.
    pub outcome: Outcome,
    /// What was seen.
    pub evidence: Evidence,
    /// For how long nobody was there who could have seen an answer: the machine slept, or had
    /// no time for us.
    pub absent: Duration,
}

/// What an observation says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It works.
    Alive,
    /// Nothing.
    Nothing,
    /// It may not work; this is the last of so many signs of that in a row.
    Suspect(u32),
    /// It does not work any more, for this reason.
    Hung(String),
}

/// How a program takes to being probed, as far as anybody knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Habit {
    /// It has answered nothing yet that would tell.
    #[default]
    Unknown,
    /// It has answered a probe.
    Answers,
    /// It has answered something else, and no probe.
    Ignores,
}

/// What is remembered of earlier probes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pulse {
    /// Failures in a row.
    failures: u32,
    /// What it has ever done when it was probed.
    habit: Habit,
    /// Probes that one has ignored which ignores them.
    ignored: u32,
    /// How often the early question whether it answers could not be asked.
    postponed: u32,
    /// That was asked, once for all lives of one program.
    is_tried: bool,
}

impl Pulse {
    /// Of a server of which this is known.
    pub fn new(habit: Habit) -> Self {
        Self { habit, ..Self::default() }
    }

    /// Of a new life, or of new rules: what it did before is not held against it.
    #[must_use]
    pub fn afresh(self) -> Self {
        Self { is_tried: self.is_tried, ..Self::new(self.habit) }
    }

    /// How long to wait before it is asked next. Whether it answers at all is found out early,
    /// again and again while it cannot be asked, but no later than by the interval.
    pub fn wait(&self, rules: &HealthRules) -> Duration {
        if !self.is_early(rules) {
            return rules.interval;
        }
        let doubled = 1_u32.checked_shl(self.postponed).unwrap_or(u32::MAX);
        FIRST_AFTER.saturating_mul(doubled).min(rules.interval)
    }

    /// Whether it has yet to be found out whether it answers. What a file asks for by name counts
    /// from the first, so there is nothing to find out.
    fn is_early(&self, rules: &HealthRules) -> bool {
        self.is_in_doubt(rules) && !self.is_tried
    }

    /// Whether nobody knows yet if it answers: then it is asked something else too, since one
    /// that hangs answers neither.
    pub fn is_in_doubt(&self, rules: &HealthRules) -> bool {
        rules.probe == HealthProbe::Mcp && self.habit == Habit::Unknown
    }

    /// How it takes to being probed.
    pub fn habit(&self) -> Habit {
        self.habit
    }

    /// Whether there is any use in asking it: one that ignores it is left in peace.
    pub fn is_worth_asking(&self, rules: &HealthRules) -> bool {
        let answers = self.habit == Habit::Answers;
        answers || rules.probe != HealthProbe::Mcp || self.ignored < rules.failures
    }

    /// Decides what an observation says. What one does that is out of sight cannot be seen from
    /// here: it lives somewhere else, or in a container that its process only speaks for.
    pub fn observe(
        &mut self,
        seen: Observation,
        rules: &HealthRules,
        is_out_of_sight: bool,
    ) -> Verdict {
        let Observation { outcome, evidence, absent } = seen;
        let is_early = self.is_early(rules);
        if is_early && !matches!(outcome, Outcome::NotMade(_)) {
            self.is_tried = true;
        }
        let why = match outcome {
            Outcome::Answered => {
                *self = Self::new(Habit::Answers);
                return Verdict::Alive;
            }
            Outcome::Ignored => {
                self.failures = 0;
                self.ignore(is_early);
                return Verdict::Alive;
            }
            Outcome::NotMade(_) => {
                self.postponed = self.postponed.saturating_add(u32::from(is_early));
                return Verdict::Nothing;
            }
            Outcome::Failed(why) => why,
        };
        if absent > LATE + rules.timeout / 2 {
            return Verdict::Nothing;
        }
        let works = evidence.uses_cpu() || evidence.has_written;
        if evidence.has_spoken || (evidence.calls > 0 && works) {
            self.failures = 0;
            return Verdict::Alive;
        }
        // Of what it does there nobody knows, and to try anew would lose its calls.
        if is_out_of_sight && evidence.calls > 0 {
            return Verdict::Nothing;
        }
        if rules.probe == HealthProbe::Mcp && self.habit == Habit::Ignores {
            self.ignore(is_early);
            return Verdict::Nothing;
        }
        // So soon after its start it may have no time yet.
        if is_early {
            return Verdict::Nothing;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures < rules.failures {
            return Verdict::Suspect(self.failures);
        }
        Verdict::Hung(words(self.failures, &why, evidence))
    }

    /// It was asked in vain, and that says nothing of whether it works.
    fn ignore(&mut self, is_early: bool) {
        if self.habit == Habit::Unknown {
            self.habit = Habit::Ignores;
        }
        self.ignored = self.ignored.saturating_add(u32::from(!is_early));
    }
}

/// Why a server is ended, for people.
fn words(failures: u32, why: &str, evidence: Evidence) -> String {
    let why: String = why.chars().take(LONGEST_WHY).collect();
    let mut words = if failures == 1 {
        format!("unhealthy: {why}")
    } else {
        format!("unhealthy: {failures} probes in a row failed, the last: {why}")
    };
    if evidence.calls > 0 {
        let calls = if evidence.calls == 1 { "call" } else { "calls" };
        // A text takes all that is written to it.
        let _ = write!(words, "; it has {} {calls} in flight and does nothing", evidence.calls);
    }
    words
}

#[cfg(test)]
mod tests;
