//! The state of servers in the form that clients receive.

use std::time::Instant;

use xy_config::references;
use xy_config::settings::{RestartPolicy, ServerKind, ServerSettings};
use xy_protocol::mask;
use xy_protocol::server::{
    FailedEntry, Health, InstanceEntry, LastExit, NextStep, Progress, ReasonKind, RestartLimits,
    ServerEntry, ServerName, ServerState, ServerStatus, Step, Transition, Transport, Wanted,
};
use xy_protocol::time::Timestamp;
use xy_supervisor::fleet::{FailedInstance, Member};
use xy_supervisor::instance::{ExitRecord, InstanceHandle, InstanceKey, Snapshot};
use xy_supervisor::lifecycle::{Reason, STOP_MARGIN, State};

use crate::bad_files::BadFile;
use crate::containment;
use crate::temporary_instance::is_daemon_client;

mod named;

pub(crate) use self::named::of_named;

/// Returns the entry of one server in `list`, which combines its instances.
pub(crate) fn entry(member: &Member) -> ServerEntry {
    let now = tokio::time::Instant::now().into_std();
    match representative(member) {
        _ if member.is_hidden() => without_instance(member),
        Some(instance) => entry_of(member, &instance.now(), now),
        None => failed_entry(member, now).unwrap_or_else(|| without_instance(member)),
    }
}

/// Returns the entry of a server without instances, if the last one was failing.
fn failed_entry(member: &Member, now: Instant) -> Option<ServerEntry> {
    let failed = member.last_failed.as_ref().filter(|_| is_failing(member))?;
    let reason = &failed.last.life.reason;
    Some(ServerEntry {
        state: ServerState::Failed,
        pid: None,
        wanted: member.wanted,
        health: Health::Unknown,
        reason: Some(format!("{reason}; no client uses it now, and the next one starts it again")),
        next: None,
        ..entry_of(member, &failed.last, now)
    })
}

/// Returns true if a server has no instance, and the last one was failing.
fn is_failing(member: &Member) -> bool {
    member.is_failing && member.wanted == Wanted::Up && member.instances.is_empty()
}

/// Returns the instance whose log is shown: the representative one, or the last one that failed.
pub(crate) fn instance_to_log(member: &Member) -> Option<&InstanceHandle> {
    let failed = member.last_failed.as_ref().map(|failed| &failed.instance);
    representative(member).or(failed)
}

/// Returns the visible instances of a server: none while the server is stopped, although others
/// that share them may be up.
pub(crate) fn instances(member: &Member) -> impl Iterator<Item = &InstanceHandle> {
    member.instances.values().filter(|_| !member.is_hidden())
}

/// Returns the instance that represents a server with several: the one with the most serious state.
pub(crate) fn representative(member: &Member) -> Option<&InstanceHandle> {
    // The second process of a server is shown beside the first.
    let first = member.instances.iter().filter(|(holder, _)| holder.era().is_none());
    first.map(|(_, it)| it).max_by_key(|instance| display_priority(instance.now().state()))
}

/// Returns the display priority of a state; failures come first.
fn display_priority(state: ServerState) -> u8 {
    match state {
        ServerState::Failed => 5,
        ServerState::Restarting => 4,
        ServerState::Stopping => 3,
        ServerState::Starting => 2,
        ServerState::Running => 1,
        ServerState::Asleep | ServerState::Stopped => 0,
    }
}

/// Returns the entry of a server from the snapshot of one instance.
fn entry_of(member: &Member, snapshot: &Snapshot, now: Instant) -> ServerEntry {
    let life = &snapshot.life;
    let uptime_secs = match life.state {
        State::Running { ready_at, .. } if !snapshot.has_just_ended() => {
            Some(now.saturating_duration_since(ready_at).as_secs())
        }
        _ => None,
    };
    ServerEntry {
        state: snapshot.state(),
        pid: snapshot.pid,
        uptime_secs,
        restart_count: life.tally.restart_count,
        last_exit: snapshot.last_exit.map(last_exit),
        wanted: if member.settings.share_key.is_some() { member.wanted } else { life.wanted },
        health: snapshot.health,
        restarts_total: life.tally.restarts_total,
        reason: Some(match &snapshot.progress {
            _ if snapshot.has_just_ended() => "its process has ended".to_owned(),
            Some(progress) => progress.to_string(),
            None => life.reason.to_string(),
        }),
        progress: snapshot
            .progress
            .as_ref()
            .map(|it| Progress { what: it.what.clone(), percent: it.percent }),
        next: next_step(&life.state, now),
        warnings: warnings(member, snapshot),
        ..without_instance(member)
    }
}

/// Returns the entry of a server without instances.
fn without_instance(member: &Member) -> ServerEntry {
    let settings = &member.settings;
    ServerEntry {
        name: settings.name.clone(),
        state: ServerState::Stopped,
        pid: None,
        port: settings.port(),
        url: settings.remote().map(|remote| remote.shown_url().to_owned()),
        uptime_secs: None,
        restart_count: 0,
        last_exit: None,
        wanted: member.wanted,
        health: Health::Unknown,
        transport: settings.transport(),
        restarts_total: 0,
        shares: member.owner.clone(),
        reason: Some(match member.wanted {
            Wanted::Up => "no client uses it now".to_owned(),
            Wanted::Down => Reason::StopDone.to_string(),
        }),
        reason_kind: None,
        progress: None,
        next: None,
        not_restarted: not_restarted(settings),
        warnings: references::warnings(settings),
    }
}

/// Returns the entry of a server that has failed for its file. The transport is unknown, so it
/// shows the default, stdio.
pub(crate) fn entry_of_bad(name: &ServerName, bad: &BadFile) -> ServerEntry {
    ServerEntry {
        name: name.clone(),
        state: ServerState::Failed,
        pid: None,
        port: None,
        url: None,
        uptime_secs: None,
        restart_count: 0,
        last_exit: None,
        wanted: Wanted::Up,
        health: Health::Unknown,
        transport: Transport::Stdio,
        restarts_total: 0,
        shares: None,
        reason: Some(bad.reason.clone()),
        reason_kind: Some(ReasonKind::BadFile),
        progress: None,
        next: None,
        not_restarted: None,
        warnings: Vec::new(),
    }
}

/// Returns the full status of a server that has failed for its file.
pub(crate) fn status_of_bad(name: &ServerName, bad: &BadFile) -> ServerStatus {
    ServerStatus {
        entry: entry_of_bad(name, bad),
        protocol: None,
        parked: 0,
        alive: false,
        ready: false,
        limits_used: RestartLimits::default(),
        transitions: Vec::new(),
        last_stderr: Vec::new(),
        last_failed: None,
        last_health_check: None,
        problems: bad.problems.clone(),
        command: Vec::new(),
        config_file: bad.file.display().to_string(),
        log_file: None,
        log_path: None,
        containment: None,
        limits: Vec::new(),
        container: None,
        instances: Vec::new(),
    }
}

/// Returns a note about a server whose restart policy is `never`.
fn not_restarted(settings: &ServerSettings) -> Option<String> {
    let is_never = settings.rules.restart.policy == RestartPolicy::Never;
    let note = if settings.source.added {
        "not restarted when it exits (policy `never`): the client that added it restarts it"
    } else {
        "not restarted when it exits (policy `never`)"
    };
    (is_never && settings.remote().is_none()).then(|| note.to_owned())
}

fn warnings(member: &Member, snapshot: &Snapshot) -> Vec<String> {
    let outdated = member.settings.source.is_outdated.then(|| {
        "its file cannot be used now, so it keeps its last good settings: see `xy check`".to_owned()
    });
    let ends_with_daemon = snapshot.ends_with_daemon.then(|| {
        "it ends with the daemon, as its lock or socket could not be created: free disk space, \
         then restart it"
            .to_owned()
    });
    let log = snapshot.log_problem.iter().map(|problem| format!("log: {problem}"));
    let alive = snapshot.survivors.iter().map(|pid| format!("process {pid} survives SIGKILL"));
    let references = references::warnings(&member.settings);
    outdated.into_iter().chain(ends_with_daemon).chain(log).chain(alive).chain(references).collect()
}

fn last_exit(seen: ExitRecord) -> LastExit {
    LastExit {
        code: seen.exit.code,
        signal: seen.exit.signal,
        expected: seen.expected,
        by_xy: seen.by_xy,
        at: Timestamp::from(seen.at),
        oom: seen.exit.oom.map(containment::oom),
    }
}

fn next_step(state: &State, now: Instant) -> Option<NextStep> {
    let what = match state {
        State::Starting { .. } => Step::GiveUpWaiting,
        State::Backoff { .. } => Step::Restart,
        State::Stopping { .. } => Step::Kill,
        State::Stopped
        | State::Running { .. }
        | State::Asleep { .. }
        | State::Failed
        | State::Retired => return None,
    };
    let left = state.deadline()?.saturating_duration_since(now);
    let left = match what {
        Step::Kill => left.saturating_sub(STOP_MARGIN), // The shim kills at the end of the grace.
        Step::Restart | Step::GiveUpWaiting => left,
    };
    let in_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    Some(NextStep { what, in_ms })
}

/// Returns the full status of one server.
pub(crate) fn status(member: &Member, log_file: Option<String>) -> ServerStatus {
    let entry = entry(member);
    let representative_instance = representative(member);
    let failed = member.last_failed.as_ref().filter(|_| is_failing(member));
    let snapshot =
        representative_instance.map(InstanceHandle::now).or_else(|| Some(failed?.last.clone()));
    let transitions = snapshot.map(|snapshot| snapshot.transitions).unwrap_or_default();
    let last_stderr =
        match (entry.state, representative_instance.or(failed.map(|failed| &failed.instance))) {
            (ServerState::Failed | ServerState::Restarting, Some(instance)) => {
                instance.last_stderr()
            }
            _ => Vec::new(),
        };
    let now = representative_instance.map(InstanceHandle::now);
    let (containment, limits) = containment::of(&member.settings, now.as_ref());
    let last_health_check = now.as_ref().and_then(|now| now.last_health_check);
    let container = now.and_then(|now| now.container).map(|it| containment::container(&it));
    ServerStatus {
        alive: is_alive(member, &entry),
        ready: entry.state == ServerState::Running,
        limits_used: representative_instance.map(limits_used).unwrap_or_default(),
        entry,
        protocol: None, // The gateway knows.
        parked: 0,      // The gateway knows.
        transitions: transitions
            .iter()
            .map(|it| Transition {
                from: it.from,
                to: it.to,
                reason: it.reason.to_string(),
                at: Timestamp::from(it.at),
                last_attempt: it.last_attempt.map(|why| why.to_string()),
            })
            .collect(),
        last_stderr,
        problems: Vec::new(),
        command: command(&member.settings),
        config_file: member.settings.source.file.display().to_string(),
        log_path: log_file.clone(),
        log_file,
        containment,
        limits,
        container,
        instances: instances(member).map(instance_entry).collect(),
        last_health_check: last_health_check.map(Timestamp::from),
        last_failed: member.last_failed.as_deref().map(failed_instance),
    }
}

fn failed_instance(failed: &FailedInstance) -> FailedEntry {
    FailedEntry {
        holder: client_of(failed.instance.key()).filter(|client| !is_daemon_client(*client)),
        reason: failed.last.life.reason.to_string(),
        at: Timestamp::from(failed.at),
        last_exit: failed.last.last_exit.map(last_exit),
        last_stderr: failed.instance.last_stderr(),
        log_file: None, // The caller adds it.
    }
}

/// Returns the program or image of a server and its arguments, with secrets masked.
fn command(settings: &ServerSettings) -> Vec<String> {
    let words: Vec<&str> = match &settings.kind {
        ServerKind::Process(process) => {
            [&process.command].into_iter().chain(&process.args).map(String::as_str).collect()
        }
        ServerKind::Container(container) => {
            let args = container.args.iter().flatten();
            let words = [&container.image].into_iter().chain(&container.command);
            words.chain(args).map(String::as_str).collect()
        }
        ServerKind::Remote(_) => Vec::new(),
    };
    mask::args(words).args
}

/// Returns true if a server is alive. A remote server has no process here.
fn is_alive(member: &Member, entry: &ServerEntry) -> bool {
    match member.settings.remote() {
        Some(_) => entry.state == ServerState::Running,
        None => entry.pid.is_some(),
    }
}

fn limits_used(instance: &InstanceHandle) -> RestartLimits {
    let snapshot = instance.now();
    if snapshot.settings.remote().is_some() {
        return RestartLimits::default(); // Remote servers have no limits.
    }
    let now = tokio::time::Instant::now().into_std();
    let used = snapshot.life.limits_used(&snapshot.settings.rules, now);
    RestartLimits {
        in_a_row: used.in_a_row,
        max_attempts: used.max_attempts,
        exits_last_minute: used.exits_last_minute,
        max_retries_per_minute: used.max_retries_per_minute,
    }
}

fn instance_entry(instance: &InstanceHandle) -> InstanceEntry {
    let now = instance.now();
    InstanceEntry {
        holder: client_of(instance.key()),
        era: instance.key().holder.era(),
        protocol: None, // The gateway knows.
        pid: now.pid,
        state: now.state(),
        clients: Vec::new(), // The gateway knows.
        memory_bytes: None,  // The kernel knows.
        cpu_ms: None,
        log_file: None, // The caller adds it.
    }
}

/// Returns the client that owns an instance, or `None` if it is shared.
pub(crate) fn client_of(key: &InstanceKey) -> Option<u64> {
    key.holder.client()
}
