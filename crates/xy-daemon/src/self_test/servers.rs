//! Every server: whether its process is there, whether it answers, and a new life for who does
//! neither and should.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, timeout, timeout_at};
use xy_config::settings::Probe;
use xy_gateway::RoundTrip;
use xy_protocol::control::{Repair, WorkerHealth, WorkerVerdict};
use xy_protocol::server::{Health, ServerState, Wanted};
use xy_shim::cpu;
use xy_supervisor::fleet::Member;
use xy_supervisor::health::is_work;
use xy_supervisor::instance::{InstanceHandle, Snapshot};
use xy_supervisor::launch::Containment;
use xy_supervisor::lifecycle::{Event, State};

use super::judge::{Facts, Glance, Judged, Living, glance, is_enough, judge};
use crate::daemon::Daemon;
use crate::machine;
use crate::view;

/// How long a server may take to answer one question.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// So many are looked at at the same time.
const AT_ONCE: usize = 64;

/// A conversation that has just been lost may be taken up again in this time.
const TAKEN_UP_WITHIN: Duration = Duration::from_secs(1);

/// How long it may take until a death is known that a question has found out.
const KNOWN_WITHIN: Duration = Duration::from_secs(2);

/// Who cannot be asked must live so long to count as living.
const LIVES_FOR: Duration = Duration::from_secs(1);

/// One that was looked at, and what was done about it.
type Tested = (WorkerHealth, Option<Repair>);

/// Looks at all of them, in the order of their names.
pub(super) async fn test(
    daemon: &Arc<Daemon>,
    repair: bool,
    give_up_at: Instant,
) -> (Vec<WorkerHealth>, Vec<Repair>) {
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut tests = JoinSet::new();
    let mut all: Vec<Tested> = Vec::new();
    for member in daemon.fleet.roster().values() {
        if member.instances.is_empty() {
            all.push((unborn(member), None));
        }
        for instance in member.own_instances() {
            let one = One { daemon: daemon.clone(), instance: instance.clone() };
            let turns = turns.clone();
            tests.spawn(async move {
                let testing = async {
                    let _turn = turns.acquire().await;
                    one.test(repair).await
                };
                match timeout_at(give_up_at, testing).await {
                    Ok(tested) => tested,
                    Err(_) => (one.health(Outcome::failed(one.why_late())), None),
                }
            });
        }
    }
    while let Some(tested) = tests.join_next().await {
        all.extend(tested.ok());
    }
    all.sort_by(|(a, _), (b, _)| (&a.name, a.client).cmp(&(&b.name, b.client)));
    let (health, repairs): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    (health, repairs.into_iter().flatten().collect())
}

/// A server without any instance: there is nothing to ask.
fn unborn(member: &Member) -> WorkerHealth {
    let note = match member.wanted {
        Wanted::Up => "no client uses it now",
        Wanted::Down => "it was stopped on purpose",
    };
    WorkerHealth {
        name: member.settings.name.clone(),
        client: None,
        status: WorkerVerdict::Ok,
        state: ServerState::Stopped,
        health: Health::Unknown,
        pid: None,
        uptime: None,
        restart_count: 0,
        round_trip_ms: None,
        note: Some(note.to_owned()),
    }
}

/// What there is to tell of a look.
struct Outcome {
    status: WorkerVerdict,
    took: Option<Duration>,
    note: Option<String>,
}

impl Outcome {
    fn failed(note: impl Into<String>) -> Self {
        Self { status: WorkerVerdict::Failed, took: None, note: Some(note.into()) }
    }

    fn ok(took: Option<Duration>, note: Option<String>) -> Self {
        Self { status: WorkerVerdict::Ok, took, note }
    }
}

/// What a look has found.
enum Found {
    /// It is well.
    Well(Outcome),
    /// It is not, for this reason, and this helps.
    Broken(Event, String),
    /// It is not, and nothing helps.
    Lost(String),
}

/// One instance under test.
struct One {
    daemon: Arc<Daemon>,
    instance: InstanceHandle,
}

impl One {
    async fn test(&self, repair: bool) -> Tested {
        let (remedy, why) = match self.look().await {
            Found::Well(outcome) => return (self.health(outcome), None),
            Found::Lost(why) => return (self.health(Outcome::failed(why)), None),
            Found::Broken(_, why) if !repair => return (self.health(Outcome::failed(why)), None),
            Found::Broken(remedy, why) => (remedy, why),
        };
        let previous_pid = self.instance.now().pid;
        tracing::warn!(server = %self.instance.key(), %why, "the self-test starts it again");
        if self.instance.request(remedy).await.is_err() {
            return (self.health(Outcome::failed("it is being removed")), None);
        }
        match self.proof().await {
            Err(still) => {
                let note = format!("{why}; it was started again, but {still}");
                (self.health(Outcome::failed(note)), None)
            }
            Ok(took) => {
                let status = WorkerVerdict::Restarted;
                let health = self.health(Outcome { status, took, note: Some(why.clone()) });
                let repair = Repair::WorkerRestarted {
                    server: health.name.clone(),
                    client: health.client,
                    previous_pid,
                    new_pid: health.pid,
                    reason: why,
                };
                (health, Some(repair))
            }
        }
    }

    /// Finds out how it is, without changing anything.
    async fn look(&self) -> Found {
        loop {
            let now = self.instance.now();
            let reason = now.life.reason.to_string();
            let facts = Facts {
                state: now.state(),
                wanted: now.life.wanted,
                health: now.health,
                is_remote: now.settings.remote().is_some(),
                has_ended: now.last_exit.is_some(),
                reason: &reason,
            };
            match glance(&facts) {
                Glance::Fine(note) => return Found::Well(Outcome::ok(None, note)),
                Glance::Dead(why) => return Found::Broken(Event::StartRequested, why),
                Glance::Lost(why) => return Found::Lost(why),
                Glance::Wait => drop(self.instance.settled().await),
                Glance::Ask => {
                    if let Some(found) = self.ask(&now).await {
                        return found;
                    }
                }
            }
        }
    }

    /// Asks one that runs; `None` if it does not run any more.
    async fn ask(&self, now: &Snapshot) -> Option<Found> {
        let logged = self.instance.logs().next_seq();
        let first = self.round_trip(false).await;
        let mut uses_cpu = false;
        let second = match &first {
            seen if is_enough(seen, speaks_mcp(now)) => first.clone(),
            RoundTrip::Broken(_) | RoundTrip::Nobody => {
                let has_ended = self.has_ended_within(match first {
                    RoundTrip::Nobody => TAKEN_UP_WITHIN,
                    _ => KNOWN_WITHIN,
                });
                if has_ended.await {
                    return None;
                }
                self.round_trip(true).await
            }
            RoundTrip::Answered { .. } | RoundTrip::Silent { .. } => {
                let (before, began) = (used(now).await, Instant::now());
                let second = self.round_trip(true).await;
                uses_cpu = is_used(before, used(now).await, began.elapsed());
                second
            }
        };
        let is_same_life = |later: &Snapshot| later.pid == now.pid;
        let later = self.instance.now();
        if later.state() != ServerState::Running || !is_same_life(&later) {
            return None;
        }
        let living = Living {
            process: now.pid.map(machine::process),
            health: later.health,
            is_remote: now.settings.remote().is_some(),
            speaks_mcp: speaks_mcp(now),
            does_something: uses_cpu || self.instance.logs().next_seq() != logged,
        };
        Some(match judge(living, &first, &second) {
            Judged::Fine(note) => Found::Well(Outcome::ok(took(&second), note)),
            Judged::Hangs(why) => Found::Broken(Event::RestartRequested, why),
            Judged::Lost(why) => Found::Lost(why),
        })
    }

    /// Whether it runs now and answers, after it was told to start; how long that took.
    async fn proof(&self) -> Result<Option<Duration>, String> {
        let now = self.instance.settled().await;
        if now.state() != ServerState::Running {
            return Err(format!("it is {}: {}", now.state(), now.life.reason));
        }
        let first = self.round_trip(false).await;
        if let Some(took) = took(&first) {
            return Ok(Some(took));
        }
        if !speaks_mcp(&now) && first == RoundTrip::Nobody {
            if self.has_ended_within(LIVES_FOR).await {
                return Err(format!("it ended: {}", self.instance.now().life.reason));
            }
            return Ok(None);
        }
        match self.round_trip(true).await {
            RoundTrip::Answered { took } => Ok(Some(took)),
            RoundTrip::Silent { .. } => Err("it does not answer either".to_owned()),
            RoundTrip::Nobody => Err("nobody can speak with it".to_owned()),
            RoundTrip::Broken(why) => Err(why),
        }
    }

    async fn round_trip(&self, is_other: bool) -> RoundTrip {
        let key = self.instance.key().clone();
        let Ok(desk) = self.daemon.desk() else { return RoundTrip::Nobody };
        match desk.round_trip(key, is_other, ANSWERS_WITHIN).await {
            Ok(seen) => seen,
            Err(fault) => RoundTrip::Broken(fault.to_string()),
        }
    }

    async fn has_ended_within(&self, limit: Duration) -> bool {
        let ended = self.instance.wait_until(|now| now.state() != ServerState::Running);
        timeout(limit, ended).await.is_ok()
    }

    fn why_late(&self) -> String {
        let now = self.instance.now();
        format!("there was no time left; it is {}: {}", now.state(), now.life.reason)
    }

    fn health(&self, outcome: Outcome) -> WorkerHealth {
        let now = self.instance.now();
        let uptime = match now.life.state {
            State::Running { ready_at, .. } => {
                Some(Instant::now().into_std().saturating_duration_since(ready_at).as_secs())
            }
            _ => None,
        };
        WorkerHealth {
            name: self.instance.key().server.clone(),
            client: view::client_of(self.instance.key()),
            status: outcome.status,
            state: now.state(),
            health: now.health,
            pid: now.pid,
            uptime,
            restart_count: now.life.tally.restart_count,
            round_trip_ms: outcome.took.map(millis),
            note: outcome.note,
        }
    }
}

/// Whether it counts as ready only once it has spoken MCP.
fn speaks_mcp(now: &Snapshot) -> bool {
    now.settings.remote().is_some() || now.settings.rules.ready.probe == Probe::Mcp
}

/// The processor's time it has used so far, where that can be told.
async fn used(now: &Snapshot) -> Option<Duration> {
    let pid = now.pid?;
    let confined = now.confined.as_ref();
    let has_group = confined.is_some_and(|it| it.containment == Containment::Cgroup);
    spawn_blocking(move || cpu::used(pid, has_group)).await.ok().flatten()
}

/// Whether that is more than one uses that does nothing. It is only less than before if a
/// process has ended, and then something has happened.
fn is_used(before: Option<Duration>, after: Option<Duration>, within: Duration) -> bool {
    let (Some(before), Some(after)) = (before, after) else { return false };
    after.checked_sub(before).is_none_or(|used| is_work(used, within))
}

fn took(seen: &RoundTrip) -> Option<Duration> {
    match seen {
        RoundTrip::Answered { took } => Some(*took),
        _ => None,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
