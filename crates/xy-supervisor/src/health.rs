//! Decides from evidence whether a server that was ready still works. Pure.
//!
//! [`HealthTracker::observe`] takes the outcome of one probe and the evidence gathered meanwhile,
//! and returns a [`Verdict`]. `monitor.rs` sends the probes and gathers the evidence.
//!
//! ```text
//! answered ─────────────────────────────────────► alive, resets the count of failures
//! not probed, or probed while xy was suspended ─► inconclusive
//! failed ─┬─ server sent another message ───────► alive
//!         ├─ calls in flight ─┬─ uses CPU ──────► alive
//!         │                   ├─ writes output ─► alive
//!         │                   └─ unobservable ──► inconclusive
//!         ├─ probes known to be unsupported ────► inconclusive
//!         └─ else ──────────────────────────────► suspect, or hung after enough failures
//! ignored, but another request was answered ────► alive, probes are unsupported
//! ```

use std::fmt::Write;
use std::time::Duration;

use xy_config::settings::{HealthProbe, HealthRules};

/// A server is busy if it uses at least 1/500 of the CPU. Idle programs may wake now and then to
/// poll, and stay below it.
const BUSY_FRACTION: u32 = 500;

/// A probe may overrun its timeout by this, plus half of the timeout. A larger delay means that xy
/// did not run, and says nothing about the server.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// Delay after readiness of the first probe of a server that may not support `ping`. A server
/// that hung before its first regular probe could not be told from one without `ping`.
const EARLY_PROBE_DELAY: Duration = Duration::from_secs(1);

/// Maximum characters of a reason.
const MAX_REASON_CHARS: usize = 300;

/// The outcome of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The server has answered; an error is an answer too.
    Answered,
    /// The server has not answered in time, but has answered another request, or there was no
    /// other request to send.
    Ignored,
    /// The server has not answered in time, or its answer is malformed. Holds the reason.
    Failed(String),
    /// No probe was sent, for this reason.
    NotProbed(String),
}

/// Evidence gathered during a probe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Number of calls that a client waits for.
    pub calls: u32,
    /// Whether the server has sent a protocol message.
    pub has_sent_message: bool,
    /// Whether the server has written other output, to its log or to stdout.
    pub has_written_output: bool,
    /// CPU time that the server used, and the time span; `None` where that is unknown.
    pub cpu: Option<(Duration, Duration)>,
}

impl Evidence {
    fn uses_cpu(self) -> bool {
        self.cpu.is_some_and(|(used, within)| is_busy(used, within))
    }
}

/// Returns true if CPU time `used` within the time span `within` counts as activity.
pub fn is_busy(used: Duration, within: Duration) -> bool {
    !used.is_zero() && used >= within / BUSY_FRACTION
}

/// A probe and the evidence gathered meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// The outcome of the probe.
    pub outcome: Outcome,
    /// The evidence.
    pub evidence: Evidence,
    /// How long xy could not have seen an answer: the machine was suspended or overloaded.
    pub unobserved: Duration,
}

/// The conclusion from an observation of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The server works.
    Alive,
    /// The observation says nothing.
    Inconclusive,
    /// The server may hang. Holds the number of failed probes in a row.
    Suspect(u32),
    /// The server hangs, for this reason.
    Hung(String),
}

/// A program's support for probes, as observed so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProbeSupport {
    /// The program has not answered anything yet.
    #[default]
    Unknown,
    /// The program has answered a probe.
    Supported,
    /// The program has answered other requests, but no probe.
    Unsupported,
}

/// The health of a server, as its probes so far tell it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HealthTracker {
    /// Failures in a row.
    failures: u32,
    /// The program's support for probes, over all its lives.
    probe_support: ProbeSupport,
    /// Number of probes that a program without probe support has ignored.
    ignored: u32,
    /// How often the early probe could not be sent.
    postponed: u32,
    /// Whether the early probe was sent; once for all lives of a program.
    early_probe_done: bool,
}

impl HealthTracker {
    /// Creates a tracker for a server with this probe support.
    pub fn new(probe_support: ProbeSupport) -> Self {
        Self { probe_support, ..Self::default() }
    }

    /// Returns a tracker for a new life or for new rules. It forgets the failures so far.
    #[must_use]
    pub fn for_new_life(self) -> Self {
        Self { early_probe_done: self.early_probe_done, ..Self::new(self.probe_support) }
    }

    /// Returns the delay before the next probe. The early probe is retried with growing delays
    /// while it cannot be sent, up to the regular interval.
    pub fn next_delay(&self, rules: &HealthRules) -> Duration {
        if !self.is_early(rules) {
            return rules.interval;
        }
        let doubled = 1_u32.checked_shl(self.postponed).unwrap_or(u32::MAX);
        EARLY_PROBE_DELAY.saturating_mul(doubled).min(rules.interval)
    }

    /// Returns true if the next probe is the early probe. Probes that a file asks for by name
    /// count from the first, so they have none.
    fn is_early(&self, rules: &HealthRules) -> bool {
        self.is_support_unknown(rules) && !self.early_probe_done
    }

    /// Returns true if it is unknown whether the server answers probes. Then another request is
    /// sent too: a server that hangs answers neither.
    pub fn is_support_unknown(&self, rules: &HealthRules) -> bool {
        rules.probe == HealthProbe::Mcp && self.probe_support == ProbeSupport::Unknown
    }

    /// Returns whether the program answers probes.
    pub fn probe_support(&self) -> ProbeSupport {
        self.probe_support
    }

    /// Returns true if the server should be probed. A program that ignores probes is not.
    pub fn should_probe(&self, rules: &HealthRules) -> bool {
        let answers = self.probe_support == ProbeSupport::Supported;
        answers || rules.probe != HealthProbe::Mcp || self.ignored < rules.failures
    }

    /// Decides what an observation says about the server. The activity of a server with
    /// `is_unobservable` cannot be measured: it is remote, or runs in a container behind a CLI.
    pub fn observe(
        &mut self,
        observation: Observation,
        rules: &HealthRules,
        is_unobservable: bool,
    ) -> Verdict {
        let Observation { outcome, evidence, unobserved } = observation;
        let is_early = self.is_early(rules);
        if is_early && !matches!(outcome, Outcome::NotProbed(_)) {
            self.early_probe_done = true;
        }
        let why = match outcome {
            Outcome::Answered => {
                *self = Self::new(ProbeSupport::Supported);
                return Verdict::Alive;
            }
            Outcome::Ignored => {
                self.failures = 0;
                self.record_ignored(is_early);
                return Verdict::Alive;
            }
            Outcome::NotProbed(_) => {
                self.postponed = self.postponed.saturating_add(u32::from(is_early));
                return Verdict::Inconclusive;
            }
            Outcome::Failed(why) => why,
        };
        if unobserved > MAX_DELAY + rules.timeout / 2 {
            return Verdict::Inconclusive;
        }
        let works = evidence.uses_cpu() || evidence.has_written_output;
        if evidence.has_sent_message || (evidence.calls > 0 && works) {
            self.failures = 0;
            return Verdict::Alive;
        }
        // It may be working on its calls, and a reconnect would lose them.
        if is_unobservable && evidence.calls > 0 {
            return Verdict::Inconclusive;
        }
        if rules.probe == HealthProbe::Mcp && self.probe_support == ProbeSupport::Unsupported {
            self.record_ignored(is_early);
            return Verdict::Inconclusive;
        }
        // A server may be busy so soon after its start.
        if is_early {
            return Verdict::Inconclusive;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures < rules.failures {
            return Verdict::Suspect(self.failures);
        }
        Verdict::Hung(hung_reason(self.failures, &why, evidence))
    }

    /// Records an unanswered probe that is no evidence against the server.
    fn record_ignored(&mut self, is_early: bool) {
        if self.probe_support == ProbeSupport::Unknown {
            self.probe_support = ProbeSupport::Unsupported;
        }
        self.ignored = self.ignored.saturating_add(u32::from(!is_early));
    }
}

/// Returns the reason for ending a hung server.
fn hung_reason(failures: u32, why: &str, evidence: Evidence) -> String {
    let why: String = why.chars().take(MAX_REASON_CHARS).collect();
    let mut reason = if failures == 1 {
        format!("unhealthy: {why}")
    } else {
        format!("unhealthy: {failures} probes in a row failed, the last: {why}")
    };
    if evidence.calls > 0 {
        let calls = if evidence.calls == 1 { "call" } else { "calls" };
        // Writing to a `String` cannot fail.
        let _ = write!(reason, "; it has {} {calls} in flight and is idle", evidence.calls);
    }
    reason
}

#[cfg(test)]
mod tests;
