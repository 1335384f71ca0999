//! Monitors one instance: probes its port until it is ready, then its health while it runs. Sends
//! the probes and gathers the evidence; `health.rs` judges.
//!
//! At most one probe is in flight, and only while the instance lives: a sleeping instance is never
//! woken. Dropping a monitor cancels its probe.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant};

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use xy_config::settings::{HealthProbe, HealthRules};
use xy_protocol::server::Health;

use crate::health::{Evidence, HealthTracker, Observation, Outcome, ProbeSupport, Verdict};
use crate::instance::Snapshot;
use crate::launch::container_cli::is_run_by_cli;
use crate::launch::{Containment, LifeHandle};
use crate::lifecycle::State;
use crate::logs::LogBook;
use crate::probe::Target;
use crate::protocol::{Checkup, CheckupReport};
use crate::wait::Stopwatch;

/// How long the protocol driver may take to reply, beyond the time of its probe.
const DRIVER_REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// Minimum interval between probes, whatever interval was stored.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

const NO_DRIVER: &str = "the gateway is not connected to it";
const DRIVER_BUSY: &str = "the gateway did not report its state in time";

/// An event that a monitor reports.
#[derive(Debug)]
pub(crate) enum MonitorEvent {
    /// The instance is ready.
    Ready,
    /// The instance was probed.
    Probed(Observation),
}

/// The monitor of one instance, over all its lives.
pub(crate) struct Monitor {
    goal: Goal,
    /// The probe that is in flight, or waits for its time.
    work: Option<Pin<Box<dyn Future<Output = MonitorEvent> + Send>>>,
    subject: Option<Subject>,
    tracker: HealthTracker,
    /// The health of the current life.
    health: Health,
}

/// The condition that a monitor waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Goal {
    None,
    /// Readiness of this life: the target answers.
    Ready {
        launched_at: StdInstant,
        target: Target,
        timeout: Duration,
    },
    /// Health of this life.
    Health {
        launched_at: StdInstant,
        rules: HealthRules,
        port: Option<u16>,
    },
}

impl Goal {
    fn of(now: &Snapshot) -> Self {
        let rules = &now.settings.rules;
        let port = now.settings.port();
        match now.life.state {
            State::Starting { launched_at, .. } if now.pid.is_some() => {
                match Target::readiness(&now.settings) {
                    Some(target) => {
                        Self::Ready { launched_at, target, timeout: rules.ready.timeout }
                    }
                    None => Self::None,
                }
            }
            State::Running { launched_at, .. } => match rules.health.probe {
                HealthProbe::Off | HealthProbe::Process => Self::None,
                HealthProbe::Tcp | HealthProbe::Http | HealthProbe::Mcp => {
                    Self::Health { launched_at, rules: rules.health.clone(), port }
                }
            },
            _ => Self::None,
        }
    }
}

impl Monitor {
    /// Creates an idle monitor for an instance with this probe support.
    pub(crate) fn new(probe_support: ProbeSupport) -> Self {
        let tracker = HealthTracker::new(probe_support);
        Self { goal: Goal::None, work: None, subject: None, tracker, health: Health::Unknown }
    }

    /// Adapts the monitor to the state of the instance. A change of life or rules starts anew.
    pub(crate) fn update(
        &mut self,
        now: &Snapshot,
        life: Option<&LifeHandle>,
        logs: &Arc<LogBook>,
    ) {
        let goal = life.map_or(Goal::None, |_| Goal::of(now));
        if goal == self.goal {
            return;
        }
        self.goal = goal;
        self.work = None;
        self.tracker = self.tracker.for_new_life();
        self.health = Health::Unknown;
        let has_group = |now: &Snapshot| {
            now.confined.as_ref().is_some_and(|it| it.containment == Containment::Cgroup)
        };
        self.subject = life.map(|handle| Subject {
            checkups: handle.checkups.clone(),
            logs: logs.clone(),
            pid: now.process(),
            has_group: has_group(now),
        });
    }

    /// Returns the next event. Never resolves while there is nothing to monitor. Cancel-safe.
    pub(crate) async fn next(&mut self) -> MonitorEvent {
        if self.work.is_none() {
            self.work = self.begin();
        }
        let Some(work) = &mut self.work else { return std::future::pending().await };
        let event = work.await;
        self.work = None;
        event
    }

    fn begin(&self) -> Option<Pin<Box<dyn Future<Output = MonitorEvent> + Send>>> {
        match self.goal.clone() {
            Goal::None => None,
            Goal::Ready { target, timeout, .. } => Some(Box::pin(async move {
                target.until_ready(timeout).await;
                MonitorEvent::Ready
            })),
            Goal::Health { rules, port, .. } => {
                let subject = self.subject.clone()?;
                let should_probe = self.tracker.should_probe(&rules);
                let delay = self.tracker.next_delay(&rules).max(MIN_INTERVAL);
                let use_fallback = self.tracker.is_support_unknown(&rules);
                let probe = ProbeSpec { rules, port, use_fallback };
                should_probe.then(|| Box::pin(next_probe(subject, probe, delay)) as _)
            }
        }
    }

    /// Judges an observation of a running instance and updates its health.
    pub(crate) fn judge(&mut self, observation: Observation, now: &Snapshot) -> Verdict {
        let settings = &now.settings;
        let is_unobservable =
            settings.remote().is_some() || settings.process().is_some_and(is_run_by_cli);
        let rules = &settings.rules.health;
        let verdict = self.tracker.observe(observation, rules, is_unobservable);
        match &verdict {
            // The server is not probed any more.
            _ if !self.tracker.should_probe(rules) => self.health = Health::Unknown,
            Verdict::Alive => self.health = Health::Healthy,
            Verdict::Hung(_) => self.health = Health::Unhealthy,
            Verdict::Inconclusive | Verdict::Suspect(_) => {}
        }
        verdict
    }

    /// Returns the health of the current life.
    pub(crate) fn health(&self) -> Health {
        self.health
    }

    /// Returns whether the program answers probes.
    pub(crate) fn probe_support(&self) -> ProbeSupport {
        self.tracker.probe_support()
    }

    /// Forgets all probes so far: the program or its protocol has changed.
    pub(crate) fn reset(&mut self) {
        self.tracker = HealthTracker::default();
    }
}

/// Probes the instance after `delay`.
async fn next_probe(subject: Subject, probe: ProbeSpec, delay: Duration) -> MonitorEvent {
    // Activity during the delay is evidence too.
    let baseline = subject.baseline().await;
    let waited = Stopwatch::start();
    sleep(delay).await;
    let overslept = waited.elapsed().saturating_sub(delay);
    let mut observation = subject.observe(&probe, baseline).await;
    observation.unobserved = observation.unobserved.max(overslept);
    MonitorEvent::Probed(observation)
}

/// How an instance is probed.
#[derive(Debug, Clone)]
struct ProbeSpec {
    rules: HealthRules,
    port: Option<u16>,
    /// Whether to send a fallback probe, as the server may not support the first.
    use_fallback: bool,
}

/// The instance that is probed.
#[derive(Debug, Clone)]
struct Subject {
    checkups: mpsc::Sender<Checkup>,
    logs: Arc<LogBook>,
    pid: Option<u32>,
    has_group: bool,
}

/// The answer of the protocol driver to a checkup.
enum DriverAnswer {
    Report(CheckupReport),
    /// No driver is attached to the server.
    NoDriver,
    /// The driver did not reply in time.
    Late,
}

/// The state of a server before a probe, to compare with its state after it.
struct Baseline {
    answer: DriverAnswer,
    /// The number of the next line of its log.
    next_line: u64,
}

/// The CPU time that a server has used so far.
#[derive(Debug, Clone, Copy)]
struct CpuReading {
    total: Option<Duration>,
    at: Instant,
}

impl CpuReading {
    /// Returns the CPU time used between two readings, and the time between them.
    fn until(self, later: Self) -> Option<(Duration, Duration)> {
        let within = later.at - self.at;
        // The total only falls when a process has ended, which is activity.
        let used = later.total?.checked_sub(self.total?).unwrap_or(within);
        Some((used, within))
    }
}

impl Subject {
    async fn baseline(&self) -> Baseline {
        let next_line = self.logs.next_seq();
        Baseline { answer: self.driver_report().await, next_line }
    }

    /// Probes the server once. Activity since `baseline` counts as evidence.
    async fn observe(&self, probe: &ProbeSpec, baseline: Baseline) -> Observation {
        let Baseline { answer, next_line } = baseline;
        let rules = &probe.rules;
        let answer = match answer {
            DriverAnswer::Report(report) => DriverAnswer::Report(report),
            // The driver may have connected during the delay.
            DriverAnswer::NoDriver | DriverAnswer::Late => self.driver_report().await,
        };
        let before = match (answer, rules.probe) {
            (DriverAnswer::Report(report), _) => Some(report),
            (DriverAnswer::NoDriver, HealthProbe::Mcp) => return not_probed(NO_DRIVER),
            (DriverAnswer::NoDriver, _) => None,
            (DriverAnswer::Late, _) => return not_probed(DRIVER_BUSY),
        };
        let took = Stopwatch::start();
        let (outcome, reading) = self.probe_and_read_cpu(probe).await;
        let unobserved = took.elapsed().saturating_sub(rules.timeout);
        if !matches!(outcome, Outcome::Failed(_)) {
            return Observation { outcome, evidence: Evidence::default(), unobserved };
        }
        let cpu = self.cpu_since(reading, rules.timeout / 4).await;
        let mut evidence = Evidence { cpu, ..Evidence::default() };
        evidence.has_written_output = self.logs.has_written_since(next_line);
        match (before, self.driver_report().await) {
            (Some(before), DriverAnswer::Report(after)) => {
                evidence.calls = after.calls;
                evidence.has_sent_message = after.messages != before.messages;
                evidence.has_written_output |= after.reads != before.reads;
            }
            (None, DriverAnswer::NoDriver) => {}
            _ => return not_probed(DRIVER_BUSY), // The activity meanwhile is unknown.
        }
        Observation { outcome, evidence, unobserved }
    }

    /// Sends the probe. Reads the CPU time if the answer takes longer than a quarter of the
    /// timeout; a server that works answers before that.
    async fn probe_and_read_cpu(&self, probe: &ProbeSpec) -> (Outcome, Option<CpuReading>) {
        let mut probing = Box::pin(self.probe(probe));
        if let Ok(outcome) = timeout(probe.rules.timeout / 4, &mut probing).await {
            return (outcome, None);
        }
        let reading = self.read_cpu().await;
        (probing.await, Some(reading))
    }

    /// Returns the CPU time used since `reading`. Without a reading, measures for `duration` from
    /// now on.
    async fn cpu_since(
        &self,
        reading: Option<CpuReading>,
        duration: Duration,
    ) -> Option<(Duration, Duration)> {
        let since = if let Some(reading) = reading {
            reading
        } else {
            let reading = self.read_cpu().await;
            sleep(duration).await;
            reading
        };
        since.until(self.read_cpu().await)
    }

    async fn probe(&self, probe: &ProbeSpec) -> Outcome {
        let rules = &probe.rules;
        let target = match (rules.probe, probe.port) {
            (HealthProbe::Tcp, Some(port)) => Target::tcp(port),
            (HealthProbe::Http, Some(port)) => Target::http(port, rules.path.as_deref()),
            (HealthProbe::Mcp, _) => {
                return match self.checkup(Some(rules.timeout), probe.use_fallback).await {
                    DriverAnswer::Report(report) => report.outcome,
                    DriverAnswer::NoDriver => Outcome::NotProbed(NO_DRIVER.to_owned()),
                    DriverAnswer::Late => Outcome::NotProbed(DRIVER_BUSY.to_owned()),
                };
            }
            _ => return Outcome::NotProbed("it has no port".to_owned()),
        };
        match target.attempt(rules.timeout).await {
            Ok(()) => Outcome::Answered,
            Err(why) => Outcome::Failed(why),
        }
    }

    /// Returns what the protocol driver knows of the server, without a probe.
    async fn driver_report(&self) -> DriverAnswer {
        self.checkup(None, false).await
    }

    /// Sends a checkup to the protocol driver. With `within`, the driver probes the server first.
    async fn checkup(&self, within: Option<Duration>, use_fallback: bool) -> DriverAnswer {
        let (reply, report) = oneshot::channel();
        let exchange = async {
            self.checkups.send(Checkup { within, use_fallback, reply }).await.ok()?;
            report.await.ok()
        };
        match timeout(within.unwrap_or_default() + DRIVER_REPLY_TIMEOUT, exchange).await {
            Ok(Some(report)) => DriverAnswer::Report(report),
            Ok(None) => DriverAnswer::NoDriver,
            Err(_) => DriverAnswer::Late,
        }
    }

    async fn read_cpu(&self) -> CpuReading {
        let at = Instant::now();
        let Some(pid) = self.pid else { return CpuReading { total: None, at } };
        let has_group = self.has_group;
        let reading = tokio::task::spawn_blocking(move || xy_shim::cpu::used(pid, has_group));
        CpuReading { total: reading.await.ok().flatten(), at }
    }
}

fn not_probed(why: &str) -> Observation {
    let outcome = Outcome::NotProbed(why.to_owned());
    Observation { outcome, evidence: Evidence::default(), unobserved: Duration::ZERO }
}

#[cfg(test)]
mod tests;
