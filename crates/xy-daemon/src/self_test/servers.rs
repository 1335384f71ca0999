//! Every server: whether its process is there, whether it answers, and a new life for who does
//! neither and should.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, timeout, timeout_at};
use xy_config::settings::{Isolation, Probe};
use xy_gateway::RoundTrip;
use xy_protocol::control::{Repair, WorkerHealth, WorkerVerdict};
use xy_protocol::server::{Health, ServerName, ServerState, Wanted};
use xy_protocol::time::Timestamp;
use xy_shim::{cpu, wires};
use xy_supervisor::fleet::Member;
use xy_supervisor::health::is_work;
use xy_supervisor::instance::{InstanceHandle, Snapshot};
use xy_supervisor::launch::Containment;
use xy_supervisor::launch::container::is_run_by_cli;
use xy_supervisor::lifecycle::{Event, State};

use super::judge::{
    Doing, Facts, Glance, Judged, Living, Readiness, glance, has_spoken, is_enough, judge,
    needs_longer,
};
use crate::bad_files::BadFile;
use crate::daemon::Daemon;
use crate::machine;
use crate::own_instance::OwnInstance;
use crate::view;

/// How long a server may take to answer one question.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// So many are looked at at the same time.
const AT_ONCE: usize = 64;

/// A conversation that has just been lost may be taken up again in this time.
const TAKEN_UP_WITHIN: Duration = Duration::from_secs(1);

/// How long it may take until a death is known that a question has found out.
const KNOWN_WITHIN: Duration = Duration::from_secs(2);

/// How long the end of an instance that was started for the test is waited for.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

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
        if has_own_instance(member) {
            let (daemon, member, turns) = (daemon.clone(), member.clone(), turns.clone());
            tests.spawn(async move {
                let _turn = timeout_at(give_up_at, turns.acquire()).await;
                (test_isolated(&daemon, &member, give_up_at).await, None)
            });
        } else if member.instances.is_empty() {
            all.push((unborn(member), None));
        }
        for instance in member.own_instances() {
            let one = One { daemon: daemon.clone(), instance: instance.clone() };
            let turns = turns.clone();
            tests.spawn(async move {
                match timeout_at(give_up_at, turns.acquire()).await {
                    Ok(_turn) => one.test(repair, give_up_at).await,
                    Err(_) => (one.health(Outcome::failed(one.why_late())), None),
                }
            });
        }
    }
    all.extend(daemon.bad_files().iter().map(|(name, bad)| (without_file(name, bad), None)));
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
        era: None,
        status: WorkerVerdict::Ok,
        state: ServerState::Stopped,
        health: Health::Unknown,
        pid: None,
        uptime: None,
        restart_count: 0,
        round_trip_ms: None,
        last_health_check: None,
        note: Some(note.to_owned()),
    }
}

/// A server that has failed for its file: there is nothing to ask, nor to repair.
fn without_file(name: &ServerName, bad: &BadFile) -> WorkerHealth {
    WorkerHealth {
        name: name.clone(),
        client: None,
        era: None,
        status: WorkerVerdict::Failed,
        state: ServerState::Failed,
        health: Health::Unknown,
        pid: None,
        uptime: None,
        restart_count: 0,
        round_trip_ms: None,
        last_health_check: None,
        note: Some(format!("{}; {}", bad.reason, bad.hint())),
    }
}

/// Returns true if a server is tested by an instance of our own: clients have one each, and none
/// is there.
fn has_own_instance(member: &Member) -> bool {
    member.settings.isolation == Isolation::Client
        && member.wanted == Wanted::Up
        && member.owner.is_none()
        && member.instances.is_empty()
}

/// Starts an instance for the test, sees whether it answers, and ends it.
async fn test_isolated(daemon: &Arc<Daemon>, member: &Member, give_up_at: Instant) -> WorkerHealth {
    let unused = unborn(member);
    let own = match OwnInstance::start(daemon, &member.settings.name).await {
        Ok(own) => own,
        Err(why) => {
            let note = Some(format!("no instance could be started for the test: {why}"));
            return WorkerHealth { note, ..unused };
        }
    };
    let one = One { daemon: daemon.clone(), instance: own.handle().clone() };
    let proof = timeout_at(give_up_at, one.proof()).await;
    let health = match proof {
        Ok(Ok(took)) => {
            let note = "no client uses it now; an instance that was started for the test works";
            WorkerHealth { round_trip_ms: took.map(millis), note: Some(note.to_owned()), ..unused }
        }
        failed => {
            let now = own.handle().now();
            let why = match failed {
                _ if now.is_failing() => now.life.reason.to_string(),
                Ok(proof) => proof.err().unwrap_or_default(),
                Err(_) => one.why_late(),
            };
            let last = own.handle().last_stderr().pop();
            let last = last.map(|line| format!("; last line of stderr: {line}"));
            let note = format!(
                "an instance that was started for the test failed: {why}{}",
                last.unwrap_or_default()
            );
            let (status, state) = (WorkerVerdict::Failed, ServerState::Failed);
            WorkerHealth { status, state, note: Some(note), ..unused }
        }
    };
    let _ = timeout(ENDS_WITHIN, own.end()).await; // It ends by itself.
    health
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

/// What became of one that was started again.
enum Proof {
    /// It answered, if it can, in this time.
    Answers(Option<Duration>),
    /// It is no better, for this reason.
    Fails(String),
    /// That takes longer than anybody waits; it is in this state by now.
    UnderWay(ServerState),
}

/// What there is to tell of one that was started again because of `why`.
fn after_repair(why: &str, proof: Proof) -> Outcome {
    match proof {
        Proof::Answers(took) => {
            Outcome { status: WorkerVerdict::Restarted, took, note: Some(why.to_owned()) }
        }
        Proof::Fails(still) => Outcome::failed(format!("{why}; it was started again, but {still}")),
        Proof::UnderWay(state) => Outcome::failed(format!(
            "{why}; it is being started again, which is still under way (it is {state}) and not \
             proven: test again later"
        )),
    }
}

/// What a look has found.
enum Found {
    /// It is well.
    Well(Outcome),
    /// It is not, for this reason, and a new life helps.
    Broken(String),
    /// It is not, and nothing helps.
    Lost(String),
}

/// One instance under test.
struct One {
    daemon: Arc<Daemon>,
    instance: InstanceHandle,
}

impl One {
    /// Looks, and starts it again if that helps, until the time is over. What has begun by then
    /// goes on without us.
    async fn test(&self, repair: bool, give_up_at: Instant) -> Tested {
        let why = match timeout_at(give_up_at, self.look()).await {
            Err(_) => return (self.health(Outcome::failed(self.why_late())), None),
            Ok(Found::Well(outcome)) => return (self.health(outcome), None),
            Ok(Found::Broken(why)) if repair => why,
            Ok(Found::Broken(why) | Found::Lost(why)) => {
                return (self.health(Outcome::failed(why)), None);
            }
        };
        let previous_pid = self.instance.now().pid;
        tracing::warn!(server = %self.instance.key(), %why, "the self-test starts it again");
        let remedy = Event::RepairRequested(format!("self-test: {why}"));
        if self.instance.request(remedy).await.is_err() {
            return (self.health(Outcome::failed("it is being removed")), None);
        }
        if self.instance.now().life.wanted == Wanted::Down {
            let note = "it was stopped on purpose while it was looked at".to_owned();
            return (self.health(Outcome::ok(None, Some(note))), None);
        }
        let proof = match timeout_at(give_up_at, self.proof()).await {
            Ok(Ok(took)) => Proof::Answers(took),
            Ok(Err(still)) => Proof::Fails(still),
            Err(_) => Proof::UnderWay(self.instance.now().state()),
        };
        let proven = matches!(proof, Proof::Answers(_));
        let health = self.health(after_repair(&why, proof));
        let repair = Repair::WorkerRestarted {
            server: health.name.clone(),
            client: health.client,
            previous_pid,
            // The old one may still be ending.
            new_pid: health.pid.filter(|pid| proven || Some(*pid) != previous_pid),
            reason: why,
            proven,
        };
        (health, Some(repair))
    }

    /// Finds out how it is, without changing anything.
    async fn look(&self) -> Found {
        loop {
            let now = self.instance.now();
            if now.life.state == State::Retired {
                let note = "it was removed while it was looked at".to_owned();
                return Found::Well(Outcome::ok(None, Some(note)));
            }
            let reason = now.life.reason.to_string();
            let facts = Facts {
                state: now.state(),
                wanted: now.life.wanted,
                health: now.health,
                is_remote: now.settings.remote().is_some(),
                has_ended: now.last_exit.is_some(),
                reason: &reason,
            };
            if let (ServerState::Starting, Some(progress)) = (now.state(), &now.progress) {
                return Found::Well(Outcome::ok(None, Some(progress.to_string())));
            }
            match glance(&facts) {
                Glance::Fine(note) => return Found::Well(Outcome::ok(None, note)),
                Glance::Dead(why) => return Found::Broken(why),
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
        let (mut uses_cpu, mut speaks) = (false, false);
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
                let mut second = self.round_trip(true).await;
                speaks = has_spoken(&first) || has_spoken(&second);
                uses_cpu = is_used(before, used(now).await, began.elapsed());
                if needs_longer(&first, &second) && !uses_cpu && !speaks {
                    second = self.round_trip(false).await;
                    speaks = has_spoken(&second);
                    uses_cpu = is_used(before, used(now).await, began.elapsed());
                }
                second
            }
        };
        let ready = match &second {
            RoundTrip::Answered { .. } => now.ask_ready().await,
            seen if is_enough(seen, speaks_mcp(now)) => {
                let (before, began) = (used(now).await, Instant::now());
                let ready = self.ask_ready_twice(now).await;
                uses_cpu |= is_used(before, used(now).await, began.elapsed());
                ready
            }
            _ => None,
        };
        let is_same_life = |later: &Snapshot| later.pid == now.pid;
        let later = self.instance.now();
        if later.state() != ServerState::Running || !is_same_life(&later) {
            return None;
        }
        let doing = if uses_cpu || speaks || self.instance.logs().has_written_since(logged) {
            Doing::Something
        } else if used(now).await.is_none() || may_wait(now).await {
            Doing::MayWait
        } else {
            Doing::Nothing
        };
        let living = Living {
            process: now.process().map(machine::process),
            health: later.health,
            is_remote: now.settings.remote().is_some(),
            speaks_mcp: speaks_mcp(now),
            doing,
        };
        Some(match judge(living, &first, &second, &ready) {
            Judged::Fine(note) => Found::Well(Outcome::ok(took(&second), note)),
            Judged::Hangs(why) => Found::Broken(why),
            Judged::Lost(why) => Found::Lost(why),
        })
    }

    /// Asks its port whether it is still ready, and once more after a while if it is not: it may
    /// just have ended, or have had no time.
    async fn ask_ready_twice(&self, now: &Snapshot) -> Readiness {
        let first = now.ask_ready().await?;
        if first.is_ok() || self.has_ended_within(TAKEN_UP_WITHIN).await {
            return Some(first);
        }
        now.ask_ready().await
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
        let Ok(admin) = self.daemon.admin() else { return RoundTrip::Nobody };
        match admin.round_trip(key, is_other, ANSWERS_WITHIN).await {
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
            era: self.instance.key().holder.era(),
            status: outcome.status,
            state: now.state(),
            health: now.health,
            pid: now.pid,
            uptime,
            restart_count: now.life.tally.restart_count,
            round_trip_ms: outcome.took.map(millis),
            last_health_check: now.last_health_check.map(Timestamp::from),
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
    let pid = now.process()?;
    let confined = now.confined.as_ref();
    let has_group = confined.is_some_and(|it| it.containment == Containment::Cgroup);
    spawn_blocking(move || cpu::used(pid, has_group)).await.ok().flatten()
}

/// Whether it is connected with anybody but us, or nobody can tell.
async fn may_wait(now: &Snapshot) -> bool {
    // The CLI of an engine does nothing itself, whatever its container does.
    if now.settings.process().is_some_and(is_run_by_cli) {
        return true;
    }
    let Some(pid) = now.process() else { return true };
    let port = now.settings.port();
    spawn_blocking(move || wires::may_wait(pid, port)).await.unwrap_or(true)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_repair_that_is_proven_is_one() {
        let told = |proof| {
            let Outcome { status, note, .. } = after_repair("it did not answer", proof);
            format!("{status:?}: {}", note.unwrap())
        };
        let all = [
            told(Proof::Answers(None)),
            told(Proof::Fails("it is failed: exited with code 3".into())),
            told(Proof::UnderWay(ServerState::Starting)),
        ];
        insta::assert_snapshot!(all.join("\n"), @"
        Restarted: it did not answer
        Failed: it did not answer; it was started again, but it is failed: exited with code 3
        Failed: it did not answer; it is being started again, which is still under way (it is starting) and not proven: test again later
        ");
    }
}
