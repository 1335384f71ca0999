//! The test of every server: its process must exist and the server must answer. A dead or hung
//! server is restarted.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, timeout, timeout_at};
use xy_config::settings::{Isolation, Probe};
use xy_protocol::control::{Repair, WorkerHealth, WorkerStatus};
use xy_protocol::server::{Health, ServerName, ServerState, Wanted};
use xy_protocol::time::Timestamp;
use xy_shim::{cpu, sockets};
use xy_supervisor::fleet::Member;
use xy_supervisor::health::is_busy;
use xy_supervisor::instance::{InstanceHandle, Snapshot};
use xy_supervisor::launch::Containment;
use xy_supervisor::launch::container_cli::is_run_by_cli;
use xy_supervisor::lifecycle::{Event, State};
use xy_upstream::connection::RoundTrip;

use super::diagnosis::{
    Activity, Diagnosis, InstanceFacts, Precheck, Readiness, RunningFacts, diagnose, has_spoken,
    is_conclusive, needs_third_probe, precheck,
};
use crate::bad_files::BadFile;
use crate::daemon::Daemon;
use crate::temporary_instance::TemporaryInstance;
use crate::{machine, server_status};

/// Maximum time for a server to answer one probe.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of instances that are tested at the same time.
const MAX_CONCURRENT: usize = 64;

/// Maximum time to reconnect a session that has just been lost.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum time until the exit of a process is known after a probe has failed because of it.
const EXIT_NOTICE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum time for an instance that was started for the test to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The uptime after which an instance that cannot be probed counts as healthy.
const MIN_UPTIME: Duration = Duration::from_secs(1);

/// The result of one instance's test, and the repair that was made.
type TestedInstance = (WorkerHealth, Option<Repair>);

/// Tests all servers, ordered by name.
pub(super) async fn test(
    daemon: &Arc<Daemon>,
    repair: bool,
    give_up_at: Instant,
) -> (Vec<WorkerHealth>, Vec<Repair>) {
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT));
    let mut tests = JoinSet::new();
    let mut all: Vec<TestedInstance> = Vec::new();
    for member in daemon.fleet.roster().values() {
        if needs_temporary_instance(member) {
            let (daemon, member, permits) = (daemon.clone(), member.clone(), permits.clone());
            tests.spawn(async move {
                let _permit = timeout_at(give_up_at, permits.acquire()).await;
                (test_isolated(&daemon, &member, give_up_at).await, None)
            });
        } else if member.instances.is_empty() {
            all.push((without_instance(member), None));
        }
        for instance in member.own_instances() {
            let one = InstanceTest { daemon: daemon.clone(), instance: instance.clone() };
            let permits = permits.clone();
            tests.spawn(async move {
                match timeout_at(give_up_at, permits.acquire()).await {
                    Ok(_permit) => one.test(repair, give_up_at).await,
                    Err(_) => (one.health(TestOutcome::failed(one.timeout_reason())), None),
                }
            });
        }
    }
    all.extend(daemon.bad_files().iter().map(|(name, bad)| (bad_file_health(name, bad), None)));
    while let Some(tested) = tests.join_next().await {
        all.extend(tested.ok());
    }
    all.sort_by(|(a, _), (b, _)| (&a.name, a.client).cmp(&(&b.name, b.client)));
    let (health, repairs): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    (health, repairs.into_iter().flatten().collect())
}

/// Returns the health of a server without instances, which cannot be probed.
fn without_instance(member: &Member) -> WorkerHealth {
    let note = match member.wanted {
        Wanted::Up => "no client uses it now",
        Wanted::Down => "it was stopped on purpose",
    };
    WorkerHealth {
        name: member.settings.name.clone(),
        client: None,
        era: None,
        status: WorkerStatus::Ok,
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

/// Returns the health of a server that has failed for its file. It can be neither probed nor
/// repaired.
fn bad_file_health(name: &ServerName, bad: &BadFile) -> WorkerHealth {
    WorkerHealth {
        name: name.clone(),
        client: None,
        era: None,
        status: WorkerStatus::Failed,
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

/// Returns true if a server is tested with a temporary instance: each client gets its own, and none
/// exists.
fn needs_temporary_instance(member: &Member) -> bool {
    member.settings.isolation == Isolation::Client
        && member.wanted == Wanted::Up
        && member.owner.is_none()
        && member.instances.is_empty()
}

/// Starts an instance for the test, checks that it answers, and stops it.
async fn test_isolated(daemon: &Arc<Daemon>, member: &Member, give_up_at: Instant) -> WorkerHealth {
    let unused = without_instance(member);
    let own = match TemporaryInstance::start(daemon, &member.settings.name).await {
        Ok(own) => own,
        Err(why) => {
            let note = Some(format!("no instance could be started for the test: {why}"));
            return WorkerHealth { note, ..unused };
        }
    };
    let one = InstanceTest { daemon: daemon.clone(), instance: own.handle().clone() };
    let prove_restart = timeout_at(give_up_at, one.prove_restart()).await;
    let health = match prove_restart {
        Ok(Ok(answer_time)) => {
            let note = "no client uses it now; an instance that was started for the test works";
            WorkerHealth {
                round_trip_ms: answer_time.map(millis),
                note: Some(note.to_owned()),
                ..unused
            }
        }
        failed => {
            let now = own.handle().now();
            let why = match failed {
                _ if now.is_failing() => now.life.reason.to_string(),
                Ok(prove_restart) => prove_restart.err().unwrap_or_default(),
                Err(_) => one.timeout_reason(),
            };
            let last = own.handle().last_stderr().pop();
            let last = last.map(|line| format!("; last line of stderr: {line}"));
            let note = format!(
                "an instance that was started for the test failed: {why}{}",
                last.unwrap_or_default()
            );
            let (status, state) = (WorkerStatus::Failed, ServerState::Failed);
            WorkerHealth { status, state, note: Some(note), ..unused }
        }
    };
    let _ = timeout(STOP_TIMEOUT, own.end()).await; // After a timeout, it still ends by itself.
    health
}

/// The outcome of one instance's test.
struct TestOutcome {
    status: WorkerStatus,
    answer_time: Option<Duration>,
    note: Option<String>,
}

impl TestOutcome {
    fn failed(note: impl Into<String>) -> Self {
        Self { status: WorkerStatus::Failed, answer_time: None, note: Some(note.into()) }
    }

    fn ok(answer_time: Option<Duration>, note: Option<String>) -> Self {
        Self { status: WorkerStatus::Ok, answer_time, note }
    }
}

/// The state of an instance after its restart.
enum RestartProof {
    /// It runs, and answered in this time if it can be probed.
    Answered(Option<Duration>),
    /// It has failed again, for this reason.
    Failed(String),
    /// The restart outlasts the test; the instance is in this state.
    Pending(ServerState),
}

/// Returns the outcome of an instance that was restarted because of `why`.
fn after_repair(why: &str, prove_restart: RestartProof) -> TestOutcome {
    match prove_restart {
        RestartProof::Answered(answer_time) => {
            TestOutcome { status: WorkerStatus::Restarted, answer_time, note: Some(why.to_owned()) }
        }
        RestartProof::Failed(still) => {
            TestOutcome::failed(format!("{why}; it was restarted, but {still}"))
        }
        RestartProof::Pending(state) => TestOutcome::failed(format!(
            "{why}; it was restarted and is {state}, but has not answered yet: test again later"
        )),
    }
}

/// The finding about an instance.
enum Finding {
    /// It is healthy, or needs no repair.
    Healthy(TestOutcome),
    /// It is broken for this reason, and a restart helps.
    Broken(String),
    /// It is broken for this reason, and the daemon cannot repair it.
    Unreachable(String),
}

/// One instance under test.
struct InstanceTest {
    daemon: Arc<Daemon>,
    instance: InstanceHandle,
}

impl InstanceTest {
    /// Checks the instance, and restarts it if that helps, within the time limit. A restart that
    /// has begun continues after it.
    async fn test(&self, repair: bool, give_up_at: Instant) -> TestedInstance {
        let why = match timeout_at(give_up_at, self.examine()).await {
            Err(_) => return (self.health(TestOutcome::failed(self.timeout_reason())), None),
            Ok(Finding::Healthy(outcome)) => return (self.health(outcome), None),
            Ok(Finding::Broken(why)) if repair => why,
            Ok(Finding::Broken(why) | Finding::Unreachable(why)) => {
                return (self.health(TestOutcome::failed(why)), None);
            }
        };
        let previous_pid = self.instance.now().pid;
        tracing::warn!(server = %self.instance.key(), %why, "self-test restarts the server");
        let remedy = Event::RepairRequested(format!("self-test: {why}"));
        if self.instance.request(remedy).await.is_err() {
            return (self.health(TestOutcome::failed("it is being removed")), None);
        }
        if self.instance.now().life.wanted == Wanted::Down {
            let note = "it was stopped on purpose during the test".to_owned();
            return (self.health(TestOutcome::ok(None, Some(note))), None);
        }
        let prove_restart = match timeout_at(give_up_at, self.prove_restart()).await {
            Ok(Ok(answer_time)) => RestartProof::Answered(answer_time),
            Ok(Err(still)) => RestartProof::Failed(still),
            Err(_) => RestartProof::Pending(self.instance.now().state()),
        };
        let proven = matches!(prove_restart, RestartProof::Answered(_));
        let health = self.health(after_repair(&why, prove_restart));
        let repair = Repair::WorkerRestarted {
            server: health.name.clone(),
            client: health.client,
            previous_pid,
            // The old process may still be stopping.
            new_pid: health.pid.filter(|pid| proven || Some(*pid) != previous_pid),
            reason: why,
            proven,
        };
        (health, Some(repair))
    }

    /// Examines the instance without changing anything.
    async fn examine(&self) -> Finding {
        loop {
            let now = self.instance.now();
            if now.life.state == State::Retired {
                let note = "it was removed during the test".to_owned();
                return Finding::Healthy(TestOutcome::ok(None, Some(note)));
            }
            let reason = now.life.reason.to_string();
            let facts = InstanceFacts {
                state: now.state(),
                wanted: now.life.wanted,
                health: now.health,
                is_remote: now.settings.remote().is_some(),
                has_ended: now.last_exit.is_some(),
                reason: &reason,
            };
            if let (ServerState::Starting, Some(progress)) = (now.state(), &now.progress) {
                return Finding::Healthy(TestOutcome::ok(None, Some(progress.to_string())));
            }
            match precheck(&facts) {
                Precheck::Healthy(note) => return Finding::Healthy(TestOutcome::ok(None, note)),
                Precheck::Dead(why) => return Finding::Broken(why),
                Precheck::Unreachable(why) => return Finding::Unreachable(why),
                Precheck::Wait => drop(self.instance.settled().await),
                Precheck::Probe => {
                    if let Some(finding) = self.probe(&now).await {
                        return finding;
                    }
                }
            }
        }
    }

    /// Probes a running instance. Returns `None` if it no longer runs.
    async fn probe(&self, now: &Snapshot) -> Option<Finding> {
        let logged = self.instance.logs().next_seq();
        let first = self.round_trip(false).await;
        let (mut uses_cpu, mut speaks) = (false, false);
        let second = match &first {
            seen if is_conclusive(seen, speaks_mcp(now)) => first.clone(),
            RoundTrip::Broken(_) | RoundTrip::NotConnected => {
                let has_ended = self.has_ended_within(match first {
                    RoundTrip::NotConnected => RECONNECT_TIMEOUT,
                    _ => EXIT_NOTICE_TIMEOUT,
                });
                if has_ended.await {
                    return None;
                }
                self.round_trip(true).await
            }
            RoundTrip::Answered { .. } | RoundTrip::Silent { .. } => {
                let (before, began) = (cpu_used(now).await, Instant::now());
                let mut second = self.round_trip(true).await;
                speaks = has_spoken(&first) || has_spoken(&second);
                uses_cpu = was_active(before, cpu_used(now).await, began.elapsed());
                if needs_third_probe(&first, &second) && !uses_cpu && !speaks {
                    second = self.round_trip(false).await;
                    speaks = has_spoken(&second);
                    uses_cpu = was_active(before, cpu_used(now).await, began.elapsed());
                }
                second
            }
        };
        let ready = match &second {
            RoundTrip::Answered { .. } => now.probe_ready().await,
            seen if is_conclusive(seen, speaks_mcp(now)) => {
                let (before, began) = (cpu_used(now).await, Instant::now());
                let ready = self.ask_ready_twice(now).await;
                uses_cpu |= was_active(before, cpu_used(now).await, began.elapsed());
                ready
            }
            _ => None,
        };
        let is_same_process = |later: &Snapshot| later.pid == now.pid;
        let later = self.instance.now();
        if later.state() != ServerState::Running || !is_same_process(&later) {
            return None;
        }
        let activity = if uses_cpu || speaks || self.instance.logs().has_written_since(logged) {
            Activity::Active
        } else if cpu_used(now).await.is_none() || may_be_waiting(now).await {
            Activity::MaybeWaiting
        } else {
            Activity::Idle
        };
        let living = RunningFacts {
            process: now.process().map(machine::process_state),
            health: later.health,
            is_remote: now.settings.remote().is_some(),
            speaks_mcp: speaks_mcp(now),
            activity,
        };
        Some(match diagnose(living, &first, &second, &ready) {
            Diagnosis::Healthy(note) => {
                Finding::Healthy(TestOutcome::ok(answer_time(&second), note))
            }
            Diagnosis::Hung(why) => Finding::Broken(why),
            Diagnosis::Unreachable(why) => Finding::Unreachable(why),
        })
    }

    /// Probes the readiness of the port, and once more after a while if it fails: the server may
    /// have just ended, or be busy.
    async fn ask_ready_twice(&self, now: &Snapshot) -> Readiness {
        let first = now.probe_ready().await?;
        if first.is_ok() || self.has_ended_within(RECONNECT_TIMEOUT).await {
            return Some(first);
        }
        now.probe_ready().await
    }

    /// Waits for an instance that was told to start, and probes it. Returns the time of its answer.
    async fn prove_restart(&self) -> Result<Option<Duration>, String> {
        let now = self.instance.settled().await;
        if now.state() != ServerState::Running {
            return Err(format!("it is {}: {}", now.state(), now.life.reason));
        }
        let first = self.round_trip(false).await;
        if let Some(answer_time) = answer_time(&first) {
            return Ok(Some(answer_time));
        }
        if !speaks_mcp(&now) && first == RoundTrip::NotConnected {
            if self.has_ended_within(MIN_UPTIME).await {
                return Err(format!("it ended: {}", self.instance.now().life.reason));
            }
            return Ok(None);
        }
        match self.round_trip(true).await {
            RoundTrip::Answered { took } => Ok(Some(took)),
            RoundTrip::Silent { .. } => Err("it still does not answer".to_owned()),
            RoundTrip::NotConnected => Err("it has no MCP session".to_owned()),
            RoundTrip::Broken(why) => Err(why),
        }
    }

    async fn round_trip(&self, is_other: bool) -> RoundTrip {
        let key = self.instance.key().clone();
        let Ok(admin) = self.daemon.admin() else { return RoundTrip::NotConnected };
        match admin.round_trip(key, is_other, RESPONSE_TIMEOUT).await {
            Ok(seen) => seen,
            Err(fault) => RoundTrip::Broken(fault.to_string()),
        }
    }

    async fn has_ended_within(&self, limit: Duration) -> bool {
        let ended = self.instance.wait_until(|now| now.state() != ServerState::Running);
        timeout(limit, ended).await.is_ok()
    }

    fn timeout_reason(&self) -> String {
        let now = self.instance.now();
        format!("the test ran out of time; it is {}: {}", now.state(), now.life.reason)
    }

    fn health(&self, outcome: TestOutcome) -> WorkerHealth {
        let now = self.instance.now();
        let uptime = match now.life.state {
            State::Running { ready_at, .. } => {
                Some(Instant::now().into_std().saturating_duration_since(ready_at).as_secs())
            }
            _ => None,
        };
        WorkerHealth {
            name: self.instance.key().server.clone(),
            client: server_status::client_of(self.instance.key()),
            era: self.instance.key().holder.era(),
            status: outcome.status,
            state: now.state(),
            health: now.health,
            pid: now.pid,
            uptime,
            restart_count: now.life.tally.restart_count,
            round_trip_ms: outcome.answer_time.map(millis),
            last_health_check: now.last_health_check.map(Timestamp::from),
            note: outcome.note,
        }
    }
}

/// Returns true if an instance counts as ready only after an MCP handshake.
fn speaks_mcp(now: &Snapshot) -> bool {
    now.settings.remote().is_some() || now.settings.rules.ready.probe == Probe::Mcp
}

/// Returns the processor time that the instance has used so far, if it is known.
async fn cpu_used(now: &Snapshot) -> Option<Duration> {
    let pid = now.process()?;
    let confined = now.confined.as_ref();
    let has_group = confined.is_some_and(|it| it.containment == Containment::Cgroup);
    spawn_blocking(move || cpu::used(pid, has_group)).await.ok().flatten()
}

/// Returns true if the instance has a connection to any peer but the daemon, or if that is unknown.
async fn may_be_waiting(now: &Snapshot) -> bool {
    // The CLI of an engine does nothing itself, whatever its container does.
    if now.settings.process().is_some_and(is_run_by_cli) {
        return true;
    }
    let Some(pid) = now.process() else { return true };
    let port = now.settings.port();
    spawn_blocking(move || sockets::may_have_connections(pid, port)).await.unwrap_or(true)
}

/// Returns true if the instance used more processor time than an idle one. The total decreases only
/// if a process has ended, which is activity, too.
fn was_active(before: Option<Duration>, after: Option<Duration>, within: Duration) -> bool {
    let (Some(before), Some(after)) = (before, after) else { return false };
    after.checked_sub(before).is_none_or(|cpu_used| is_busy(cpu_used, within))
}

fn answer_time(seen: &RoundTrip) -> Option<Duration> {
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
    fn only_a_proven_repair_counts() {
        let describe = |prove_restart| {
            let TestOutcome { status, note, .. } = after_repair("it did not answer", prove_restart);
            format!("{status:?}: {}", note.unwrap())
        };
        let all = [
            describe(RestartProof::Answered(None)),
            describe(RestartProof::Failed("it is failed: exited with code 3".into())),
            describe(RestartProof::Pending(ServerState::Starting)),
        ];
        insta::assert_snapshot!(all.join("\n"), @"
        Restarted: it did not answer
        Failed: it did not answer; it was restarted, but it is failed: exited with code 3
        Failed: it did not answer; it was restarted and is starting, but has not answered yet: test again later
        ");
    }
}
