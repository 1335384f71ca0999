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
//!         │                          └─ lives elsewhere ► nothing
//!         ├─ it never answered such a probe ────────────► nothing
//!         └─ else ──────────────────────────────────────► suspect, or hung after enough of it
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

/// What is remembered of earlier probes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pulse {
    /// Failures in a row.
    failures: u32,
    /// Whether it has ever answered such a probe.
    answers: bool,
    /// Probes of one that never answered any.
    ignored: u32,
    /// How often the early question whether it answers could not be asked.
    postponed: u32,
    /// That was asked, once for all lives of one program.
    is_tried: bool,
}

impl Pulse {
    /// Of a server that is known to answer, or is not.
    pub fn new(answers: bool) -> Self {
        Self { answers, ..Self::default() }
    }

    /// Of a new life, or of new rules: what it did before is not held against it.
    #[must_use]
    pub fn afresh(self) -> Self {
        Self { is_tried: self.is_tried, ..Self::new(self.answers) }
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
        rules.probe == HealthProbe::Mcp && !self.answers && !self.is_tried
    }

    /// Whether it has ever answered.
    pub fn answers(&self) -> bool {
        self.answers
    }

    /// Whether there is any use in asking it: one that never answers is left in peace.
    pub fn is_worth_asking(&self, rules: &HealthRules) -> bool {
        self.answers || rules.probe != HealthProbe::Mcp || self.ignored < rules.failures
    }

    /// Decides what an observation says.
    pub fn observe(&mut self, seen: Observation, rules: &HealthRules, is_remote: bool) -> Verdict {
        let Observation { outcome, evidence, absent } = seen;
        let is_early = self.is_early(rules);
        if is_early && !matches!(outcome, Outcome::NotMade(_)) {
            self.is_tried = true;
        }
        let why = match outcome {
            Outcome::Answered => {
                *self = Self::new(true);
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
        // Of what it does elsewhere nobody knows, and to try anew would lose its calls.
        if is_remote && evidence.calls > 0 {
            return Verdict::Nothing;
        }
        if rules.probe == HealthProbe::Mcp && !self.answers {
            // So soon after its start it may have no time yet.
            self.ignored = self.ignored.saturating_add(u32::from(!is_early));
            return Verdict::Nothing;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures < rules.failures {
            return Verdict::Suspect(self.failures);
        }
        Verdict::Hung(words(self.failures, &why, evidence))
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
