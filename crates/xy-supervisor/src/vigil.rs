//! Watches over one instance: until it is ready, where a port has to say so, and then whether
//! it still works. Makes the probes and gathers the evidence; `health.rs` judges.
//!
//! At most one probe is under way, and only while there is a life that it is of: one that
//! sleeps is never woken. Dropping a vigil ends what it is doing.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant};

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use xy_config::settings::{HealthProbe, HealthRules};
use xy_protocol::server::Health;

use crate::health::{Evidence, Habit, Observation, Outcome, Pulse, Verdict};
use crate::instance::Snapshot;
use crate::launch::container::is_run_by_cli;
use crate::launch::{Containment, Instance};
use crate::lifecycle::State;
use crate::logs::LogBook;
use crate::probe::Target;
use crate::speak::{Checkup, Seen};
use crate::wait::Stopwatch;

/// How long whoever speaks with a server may take to say what it knows.
const SAID_WITHIN: Duration = Duration::from_secs(1);

/// Probes are not made more often, whatever was stored.
const LEAST_INTERVAL: Duration = Duration::from_millis(10);

const NOBODY_SPEAKS: &str = "nobody speaks with it";
const SPEAKER_BUSY: &str = "whoever speaks with it has no time to say how it is";

/// What was seen of an instance.
#[derive(Debug)]
pub(crate) enum Sighting {
    /// It is ready.
    Ready,
    /// It was probed.
    Checked(Observation),
}

/// Watches over one instance, life after life.
pub(crate) struct Vigil {
    duty: Duty,
    /// What is under way, or waits for its time.
    work: Option<Pin<Box<dyn Future<Output = Sighting> + Send>>>,
    subject: Option<Subject>,
    pulse: Pulse,
    /// What was last seen of this life.
    word: Health,
}

/// What is to be watched for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Duty {
    Nothing,
    /// That this answers, for this life.
    Ready {
        launched_at: StdInstant,
        target: Target,
        timeout: Duration,
    },
    /// That this life still works.
    Health {
        launched_at: StdInstant,
        rules: HealthRules,
        port: Option<u16>,
    },
}

impl Duty {
    fn of(now: &Snapshot) -> Self {
        let rules = &now.settings.rules;
        let port = now.settings.port();
        match now.life.state {
            State::Starting { launched_at, .. } if now.pid.is_some() => {
                match Target::of_ready(&now.settings) {
                    Some(target) => {
                        Self::Ready { launched_at, target, timeout: rules.ready.timeout }
                    }
                    None => Self::Nothing,
                }
            }
            State::Running { launched_at, .. } => match rules.health.probe {
                HealthProbe::Off | HealthProbe::Process => Self::Nothing,
                HealthProbe::Tcp | HealthProbe::Http | HealthProbe::Mcp => {
                    Self::Health { launched_at, rules: rules.health.clone(), port }
                }
            },
            _ => Self::Nothing,
        }
    }
}

impl Vigil {
    /// Nothing is watched for yet, of one of which this is known.
    pub(crate) fn new(habit: Habit) -> Self {
        let pulse = Pulse::new(habit);
        Self { duty: Duty::Nothing, work: None, subject: None, pulse, word: Health::Unknown }
    }

    /// Watches for what is to be watched for now.
    pub(crate) fn follow(
        &mut self,
        now: &Snapshot,
        instance: Option<&Instance>,
        logs: &Arc<LogBook>,
    ) {
        let duty = instance.map_or(Duty::Nothing, |_| Duty::of(now));
        if duty == self.duty {
            return;
        }
        self.duty = duty;
        self.work = None;
        self.pulse = self.pulse.afresh();
        self.word = Health::Unknown;
        let has_group = |now: &Snapshot| {
            now.confined.as_ref().is_some_and(|it| it.containment == Containment::Cgroup)
        };
        self.subject = instance.map(|instance| Subject {
            checkups: instance.checkups.clone(),
            logs: logs.clone(),
            pid: now.process(),
            has_group: has_group(now),
        });
    }

    /// What is seen next; never, if there is nothing to watch for. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Sighting {
        if self.work.is_none() {
            self.work = self.begin();
        }
        let Some(work) = &mut self.work else { return std::future::pending().await };
        let sighting = work.await;
        self.work = None;
        sighting
    }

    fn begin(&self) -> Option<Pin<Box<dyn Future<Output = Sighting> + Send>>> {
        match self.duty.clone() {
            Duty::Nothing => None,
            Duty::Ready { target, timeout, .. } => Some(Box::pin(async move {
                target.until_good(timeout).await;
                Sighting::Ready
            })),
            Duty::Health { rules, port, .. } => {
                let subject = self.subject.clone()?;
                let is_asked = self.pulse.is_worth_asking(&rules);
                let wait = self.pulse.wait(&rules).max(LEAST_INTERVAL);
                let is_in_doubt = self.pulse.is_in_doubt(&rules);
                let asking = Asking { rules, port, is_in_doubt };
                is_asked.then(|| Box::pin(next_checkup(subject, asking, wait)) as _)
            }
        }
    }

    /// Judges what was seen of one that runs.
    pub(crate) fn judge(&mut self, seen: Observation, now: &Snapshot) -> Verdict {
        let settings = &now.settings;
        let is_out_of_sight =
            settings.remote().is_some() || settings.process().is_some_and(is_run_by_cli);
        let rules = &settings.rules.health;
        let verdict = self.pulse.observe(seen, rules, is_out_of_sight);
        match &verdict {
            // From now on nothing is known of it.
            _ if !self.pulse.is_worth_asking(rules) => self.word = Health::Unknown,
            Verdict::Alive => self.word = Health::Healthy,
            Verdict::Hung(_) => self.word = Health::Unhealthy,
            Verdict::Nothing | Verdict::Suspect(_) => {}
        }
        verdict
    }

    /// What was last seen of the life that is watched over.
    pub(crate) fn word(&self) -> Health {
        self.word
    }

    /// How it takes to being probed.
    pub(crate) fn habit(&self) -> Habit {
        self.pulse.habit()
    }

    /// It is another program from now on, or is asked otherwise.
    pub(crate) fn forget(&mut self) {
        self.pulse = Pulse::default();
    }
}

/// Waits for the time of the next probe, and makes it.
async fn next_checkup(subject: Subject, asking: Asking, wait: Duration) -> Sighting {
    // What it does until then is evidence too.
    let before = subject.remember().await;
    let waited = Stopwatch::start();
    sleep(wait).await;
    let overslept = waited.elapsed().saturating_sub(wait);
    let mut seen = subject.checkup(&asking, before).await;
    seen.absent = seen.absent.max(overslept);
    Sighting::Checked(seen)
}

/// How it is probed.
#[derive(Debug, Clone)]
struct Asking {
    rules: HealthRules,
    port: Option<u16>,
    /// Nobody knows yet whether it answers.
    is_in_doubt: bool,
}

/// Whoever is probed, and all that is known of it.
#[derive(Debug, Clone)]
struct Subject {
    checkups: mpsc::Sender<Checkup>,
    logs: Arc<LogBook>,
    pid: Option<u32>,
    has_group: bool,
}

/// What whoever speaks with a server says of it.
enum Looked {
    Seen(Seen),
    /// There is nobody.
    Nobody,
    /// It does not say.
    Late,
}

/// What was known of a server some time ago, to be compared with what is known later.
struct Before {
    looked: Looked,
    /// The number of the next line of its log.
    logged: u64,
}

/// The processor's time used by then.
#[derive(Debug, Clone, Copy)]
struct Used {
    total: Option<Duration>,
    at: Instant,
}

impl Used {
    /// How much was used from the one to the other, and how long that is.
    fn until(self, later: Self) -> Option<(Duration, Duration)> {
        let within = later.at - self.at;
        // It is only less if a process has ended, and then something has happened.
        let used = later.total?.checked_sub(self.total?).unwrap_or(within);
        Some((used, within))
    }
}

impl Subject {
    async fn remember(&self) -> Before {
        let logged = self.logs.next_seq();
        Before { looked: self.look().await, logged }
    }

    /// Probes it once. What it has done since `before` counts as done meanwhile.
    async fn checkup(&self, asking: &Asking, Before { looked, logged }: Before) -> Observation {
        let rules = &asking.rules;
        let looked = match looked {
            Looked::Seen(seen) => Looked::Seen(seen),
            // It may be possible by now.
            Looked::Nobody | Looked::Late => self.look().await,
        };
        let before = match (looked, rules.probe) {
            (Looked::Seen(seen), _) => Some(seen),
            (Looked::Nobody, HealthProbe::Mcp) => return not_made(NOBODY_SPEAKS),
            (Looked::Nobody, _) => None,
            (Looked::Late, _) => return not_made(SPEAKER_BUSY),
        };
        let took = Stopwatch::start();
        let (outcome, used) = self.probe_watching(asking).await;
        let absent = took.elapsed().saturating_sub(rules.timeout);
        if !matches!(outcome, Outcome::Failed(_)) {
            return Observation { outcome, evidence: Evidence::default(), absent };
        }
        let cpu = self.use_since(used, rules.timeout / 4).await;
        let mut evidence = Evidence { cpu, ..Evidence::default() };
        evidence.has_written = self.logs.has_written_since(logged);
        match (before, self.look().await) {
            (Some(before), Looked::Seen(after)) => {
                evidence.calls = after.calls;
                evidence.has_spoken = after.messages != before.messages;
                evidence.has_written |= after.reads != before.reads;
            }
            (None, Looked::Nobody) => {}
            _ => return not_made(SPEAKER_BUSY), // What it did meanwhile is not known.
        }
        Observation { outcome, evidence, absent }
    }

    /// Makes the probe, and reads the processor's time on the way if that takes long: one that
    /// works answers before that.
    async fn probe_watching(&self, asking: &Asking) -> (Outcome, Option<Used>) {
        let mut probing = Box::pin(self.probe(asking));
        if let Ok(outcome) = timeout(asking.rules.timeout / 4, &mut probing).await {
            return (outcome, None);
        }
        let used = self.used().await;
        (probing.await, Some(used))
    }

    /// How much of the processor's time it has used since then; without, it is looked at for a
    /// while from now on.
    async fn use_since(
        &self,
        used: Option<Used>,
        a_while: Duration,
    ) -> Option<(Duration, Duration)> {
        let since = if let Some(used) = used {
            used
        } else {
            let used = self.used().await;
            sleep(a_while).await;
            used
        };
        since.until(self.used().await)
    }

    async fn probe(&self, asking: &Asking) -> Outcome {
        let rules = &asking.rules;
        let target = match (rules.probe, asking.port) {
            (HealthProbe::Tcp, Some(port)) => Target::tcp(port),
            (HealthProbe::Http, Some(port)) => Target::http(port, rules.path.as_deref()),
            (HealthProbe::Mcp, _) => {
                return match self.ask(Some(rules.timeout), asking.is_in_doubt).await {
                    Looked::Seen(seen) => seen.outcome,
                    Looked::Nobody => Outcome::NotMade(NOBODY_SPEAKS.to_owned()),
                    Looked::Late => Outcome::NotMade(SPEAKER_BUSY.to_owned()),
                };
            }
            _ => return Outcome::NotMade("it has no port".to_owned()),
        };
        match target.attempt(rules.timeout).await {
            Ok(()) => Outcome::Answered,
            Err(why) => Outcome::Failed(why),
        }
    }

    /// What whoever speaks with it knows.
    async fn look(&self) -> Looked {
        self.ask(None, false).await
    }

    /// The same, after having asked it if that is wanted.
    async fn ask(&self, within: Option<Duration>, is_in_doubt: bool) -> Looked {
        let (reply, seen) = oneshot::channel();
        let asking = async {
            self.checkups.send(Checkup { within, is_in_doubt, reply }).await.ok()?;
            seen.await.ok()
        };
        match timeout(within.unwrap_or_default() + SAID_WITHIN, asking).await {
            Ok(Some(seen)) => Looked::Seen(seen),
            Ok(None) => Looked::Nobody,
            Err(_) => Looked::Late,
        }
    }

    async fn used(&self) -> Used {
        let at = Instant::now();
        let Some(pid) = self.pid else { return Used { total: None, at } };
        let has_group = self.has_group;
        let reading = tokio::task::spawn_blocking(move || xy_shim::cpu::used(pid, has_group));
        Used { total: reading.await.ok().flatten(), at }
    }
}

fn not_made(why: &str) -> Observation {
    let outcome = Outcome::NotMade(why.to_owned());
    Observation { outcome, evidence: Evidence::default(), absent: Duration::ZERO }
}

#[cfg(test)]
mod tests;
