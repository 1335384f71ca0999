//! The rules that decide what an observation of a server means. Pure.
//!
//! Only a server that is dead or hangs is restarted. A request without an answer proves nothing: a
//! server that is seen to work may have no time, and one with calls in progress may wait for a
//! peer. Calls in progress alone are no excuse, since a hung server has them, too.

use xy_protocol::server::{Health, ServerState, Wanted};
use xy_supervisor::NotReady;
use xy_upstream::connection::RoundTrip;

use crate::machine::ProcessState;

/// The facts about an instance before it is probed.
#[derive(Debug, Clone, Copy)]
pub(super) struct InstanceFacts<'f> {
    pub(super) state: ServerState,
    pub(super) wanted: Wanted,
    pub(super) health: Health,
    /// True if the server is remote, so that the daemon cannot restart it.
    pub(super) is_remote: bool,
    /// True if its process has run and ended.
    pub(super) has_ended: bool,
    /// The reason of its state.
    pub(super) reason: &'f str,
}

/// The result of the first check: what to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Precheck {
    /// The state is as intended, with a note if that is not obvious. There is nothing to do.
    Healthy(Option<String>),
    /// The state is about to change: wait.
    Wait,
    /// The instance is running: probe it.
    Probe,
    /// The instance is dead for this reason, although it should run.
    Dead(String),
    /// The instance is dead or unreachable for this reason, and the daemon cannot repair it.
    Unreachable(String),
}

/// Decides what to do with an instance from its state alone.
pub(super) fn precheck(facts: &InstanceFacts<'_>) -> Precheck {
    use Precheck::{Dead, Healthy, Probe, Unreachable, Wait};
    use ServerState::{Asleep, Failed, Restarting, Running, Starting, Stopped, Stopping};

    let healthy = |note: &str| Healthy(Some(note.to_owned()));
    if facts.wanted == Wanted::Down {
        return healthy("it was stopped on purpose");
    }
    if facts.health == Health::Unreachable {
        return Unreachable(facts.reason.to_owned());
    }
    match facts.state {
        Running => Probe,
        Starting | Stopping => Wait,
        Restarting | Failed if facts.is_remote => Unreachable(facts.reason.to_owned()),
        Restarting | Failed => Dead(facts.reason.to_owned()),
        Asleep => healthy("it sleeps until a client uses it"),
        Stopped if facts.has_ended => {
            healthy("it ended by itself, and its restart policy does not start it again")
        }
        Stopped => healthy("it has not been started"),
    }
}

/// The diagnosis of a running instance after two probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Diagnosis {
    /// The server responds, or is not expected to.
    Healthy(Option<String>),
    /// The server appears to hang.
    Hung(String),
    /// It cannot be reached, and the daemon cannot restart it.
    Unreachable(String),
}

/// Returns true if no further probe is needed: the server has answered, or was not expected to.
pub(super) fn is_conclusive(probe: &RoundTrip, speaks_mcp: bool) -> bool {
    match probe {
        RoundTrip::Answered { .. } => true,
        RoundTrip::NotConnected => !speaks_mcp,
        RoundTrip::Silent { .. } | RoundTrip::Broken(_) => false,
    }
}

/// The facts about a running instance.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunningFacts {
    pub(super) process: Option<ProcessState>,
    pub(super) health: Health,
    pub(super) is_remote: bool,
    /// True if it counts as ready only after an MCP handshake.
    pub(super) speaks_mcp: bool,
    pub(super) activity: Activity,
}

/// The activity of an instance during the probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activity {
    /// It used the processor, or wrote output.
    Active,
    /// It did nothing, but has a connection to a peer for which it may wait; or the activity is
    /// unknown.
    MaybeWaiting,
    /// It did nothing.
    Idle,
}

/// Returns true if a third probe is needed: a server with calls in progress gets more time to show
/// activity.
pub(super) fn needs_third_probe(first: &RoundTrip, second: &RoundTrip) -> bool {
    matches!(second, RoundTrip::Silent { has_spoken: false, .. })
        && [first, second].into_iter().any(|probe| calls_in(probe) > 0)
}

/// Returns true if the server sent a message other than the answer.
pub(super) fn has_spoken(probe: &RoundTrip) -> bool {
    matches!(probe, RoundTrip::Silent { has_spoken: true, .. })
}

/// The result of another readiness probe of the server's port; `None` if it has no such probe.
pub(super) type Readiness = Option<Result<(), NotReady>>;

/// Diagnoses a running instance from its last probe and its readiness probe.
pub(super) fn diagnose(
    living: RunningFacts,
    first: &RoundTrip,
    second: &RoundTrip,
    ready: &Readiness,
) -> Diagnosis {
    let calls = [first, second].into_iter().map(calls_in).max().unwrap_or_default();
    let silence = match second {
        RoundTrip::Answered { .. } => None,
        RoundTrip::NotConnected if !living.speaks_mcp => None,
        RoundTrip::NotConnected => Some("it has no MCP session".to_owned()),
        RoundTrip::Silent { .. } => Some("it did not answer two requests in a row".to_owned()),
        RoundTrip::Broken(why) => Some(why.clone()),
    };
    let gone = living.process == Some(ProcessState::Gone);
    match silence {
        _ if gone => Diagnosis::Hung("its process has exited".to_owned()),
        Some(why) if living.is_remote && calls == 0 => Diagnosis::Unreachable(why),
        Some(_) if living.process == Some(ProcessState::Stopped) => {
            Diagnosis::Hung("it did not answer: a signal stopped its process".to_owned())
        }
        Some(why) if living.health == Health::Unhealthy && !living.is_remote => {
            Diagnosis::Hung(why)
        }
        Some(why)
            if living.activity == Activity::Active
                && matches!(second, RoundTrip::Silent { .. }) =>
        {
            Diagnosis::Healthy(Some(format!("{why}, but was active meanwhile: it is busy")))
        }
        // The activity of a remote server is unknown.
        Some(why) if calls > 0 && (living.activity != Activity::Idle || living.is_remote) => {
            Diagnosis::Healthy(Some(format!(
                "{why}, but has {} in progress: it is busy",
                count_calls(calls)
            )))
        }
        Some(why) if calls > 0 => {
            Diagnosis::Hung(format!("{why}, has {} in progress and is idle", count_calls(calls)))
        }
        Some(why) => Diagnosis::Hung(why),
        None => match ready {
            Some(Err(unready)) if *second == RoundTrip::NotConnected => {
                diagnose_unready(living, unready)
            }
            Some(Err(unready)) => {
                Diagnosis::Healthy(Some(format!("{}, but it answered", unready.why)))
            }
            None | Some(Ok(())) => Diagnosis::Healthy(note_of(living, second, ready.is_some())),
        },
    }
}

/// Diagnoses an instance of which only the port can be probed.
fn diagnose_unready(living: RunningFacts, unready: &NotReady) -> Diagnosis {
    let NotReady { why, is_timeout } = unready;
    if *is_timeout && living.activity == Activity::Active && living.health != Health::Unhealthy {
        return Diagnosis::Healthy(Some(format!("{why}, but it was active meanwhile: it is busy")));
    }
    Diagnosis::Hung(format!("it is no longer ready: {why}"))
}

/// Returns a note about a healthy instance, if it needs one.
fn note_of(living: RunningFacts, second: &RoundTrip, is_ready: bool) -> Option<String> {
    let note = match second {
        RoundTrip::NotConnected if is_ready => "it does not speak MCP, but its port answers",
        RoundTrip::NotConnected => "it does not speak MCP, so only its process was checked",
        _ if living.health == Health::Unhealthy => "its probes fail, but it answered",
        _ => return None,
    };
    Some(note.to_owned())
}

fn count_calls(calls: usize) -> String {
    if calls == 1 { "a call".to_owned() } else { format!("{calls} calls") }
}

fn calls_in(probe: &RoundTrip) -> usize {
    match probe {
        RoundTrip::Silent { calls, .. } => *calls,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::time::Duration;

    use super::*;

    #[test]
    fn precheck_of_each_state() {
        use ServerState::{Failed, Restarting, Running, Starting, Stopped, Stopping};
        let mut table = String::new();
        for state in [Stopped, Starting, Running, Restarting, Failed, Stopping] {
            for (wanted, is_remote) in
                [(Wanted::Up, false), (Wanted::Up, true), (Wanted::Down, false)]
            {
                let facts = InstanceFacts {
                    state,
                    wanted,
                    health: Health::Unknown,
                    is_remote,
                    has_ended: true,
                    reason: "r",
                };
                let place = if is_remote { "remote" } else { "here" };
                let precheck = precheck(&facts);
                let _ = writeln!(table, "{state:10} {wanted:?} {place}: {precheck:?}");
            }
        }
        insta::assert_snapshot!(table, @r#"
        stopped    Up here: Healthy(Some("it ended by itself, and its restart policy does not start it again"))
        stopped    Up remote: Healthy(Some("it ended by itself, and its restart policy does not start it again"))
        stopped    Down here: Healthy(Some("it was stopped on purpose"))
        starting   Up here: Wait
        starting   Up remote: Wait
        starting   Down here: Healthy(Some("it was stopped on purpose"))
        running    Up here: Probe
        running    Up remote: Probe
        running    Down here: Healthy(Some("it was stopped on purpose"))
        restarting Up here: Dead("r")
        restarting Up remote: Unreachable("r")
        restarting Down here: Healthy(Some("it was stopped on purpose"))
        failed     Up here: Dead("r")
        failed     Up remote: Unreachable("r")
        failed     Down here: Healthy(Some("it was stopped on purpose"))
        stopping   Up here: Wait
        stopping   Up remote: Wait
        stopping   Down here: Healthy(Some("it was stopped on purpose"))
        "#);
        let unreachable = InstanceFacts {
            state: Starting,
            wanted: Wanted::Up,
            health: Health::Unreachable,
            is_remote: true,
            has_ended: false,
            reason: "r",
        };
        assert_eq!(precheck(&unreachable), Precheck::Unreachable("r".into()));
        let without_instance =
            InstanceFacts { state: Stopped, health: Health::Unknown, ..unreachable };
        assert_eq!(
            precheck(&without_instance),
            Precheck::Healthy(Some("it has not been started".into()))
        );
    }

    #[test]
    fn answering_and_busy_servers_are_never_restarted() {
        let answered = RoundTrip::Answered { took: Duration::ZERO };
        let silent = RoundTrip::Silent { calls: 0, has_spoken: false };
        let busy = RoundTrip::Silent { calls: 2, has_spoken: false };
        let one = RoundTrip::Silent { calls: 1, has_spoken: false };
        let broken = RoundTrip::Broken("refused".into());
        let here = RunningFacts {
            process: Some(ProcessState::Alive),
            health: Health::Unknown,
            is_remote: false,
            speaks_mcp: true,
            activity: Activity::Idle,
        };
        let works = RunningFacts { activity: Activity::Active, ..here };
        let waits = RunningFacts { activity: Activity::MaybeWaiting, ..here };
        let stopped = RunningFacts { process: Some(ProcessState::Stopped), ..here };
        let ill = RunningFacts { health: Health::Unhealthy, ..here };
        let remote = RunningFacts { process: None, is_remote: true, ..here };
        let plain = RunningFacts { speaks_mcp: false, ..here };
        let gone = RunningFacts { process: Some(ProcessState::Gone), ..here };
        let mut table = String::new();
        for (name, living, first, second) in [
            ("answers", here, &answered, &answered),
            ("answers the second", here, &silent, &answered),
            ("silent", here, &silent, &silent),
            ("in a call and does nothing", here, &busy, &silent),
            ("in a later call and does nothing", here, &silent, &busy),
            ("in a call and works", works, &busy, &busy),
            ("in a call and may wait", waits, &busy, &silent),
            ("in one call and may wait", waits, &one, &silent),
            ("in no call and may wait", waits, &silent, &silent),
            (
                "in a call and stopped",
                RunningFacts { activity: Activity::MaybeWaiting, ..stopped },
                &busy,
                &busy,
            ),
            ("in a call and broken", waits, &busy, &broken),
            ("works", works, &silent, &silent),
            ("works but broken", works, &silent, &broken),
            (
                "works but unhealthy",
                RunningFacts { activity: Activity::Active, ..ill },
                &silent,
                &silent,
            ),
            ("busy but stopped", stopped, &busy, &busy),
            ("busy but unhealthy", ill, &busy, &busy),
            ("unhealthy but answers", ill, &answered, &answered),
            ("broken", here, &broken, &broken),
            ("remote silent", remote, &silent, &silent),
            ("remote busy", remote, &busy, &busy),
            ("remote broken", remote, &broken, &broken),
            ("no conversation", here, &RoundTrip::NotConnected, &RoundTrip::NotConnected),
            ("no MCP", plain, &RoundTrip::NotConnected, &RoundTrip::NotConnected),
            (
                "no MCP and gone",
                RunningFacts { speaks_mcp: false, ..gone },
                &RoundTrip::NotConnected,
                &RoundTrip::NotConnected,
            ),
        ] {
            let _ = writeln!(table, "{name}: {:?}", diagnose(living, first, second, &None));
        }
        insta::assert_snapshot!(table, @r#"
        answers: Healthy(None)
        answers the second: Healthy(None)
        silent: Hung("it did not answer two requests in a row")
        in a call and does nothing: Hung("it did not answer two requests in a row, has 2 calls in progress and is idle")
        in a later call and does nothing: Hung("it did not answer two requests in a row, has 2 calls in progress and is idle")
        in a call and works: Healthy(Some("it did not answer two requests in a row, but was active meanwhile: it is busy"))
        in a call and may wait: Healthy(Some("it did not answer two requests in a row, but has 2 calls in progress: it is busy"))
        in one call and may wait: Healthy(Some("it did not answer two requests in a row, but has a call in progress: it is busy"))
        in no call and may wait: Hung("it did not answer two requests in a row")
        in a call and stopped: Hung("it did not answer: a signal stopped its process")
        in a call and broken: Healthy(Some("refused, but has 2 calls in progress: it is busy"))
        works: Healthy(Some("it did not answer two requests in a row, but was active meanwhile: it is busy"))
        works but broken: Hung("refused")
        works but unhealthy: Hung("it did not answer two requests in a row")
        busy but stopped: Hung("it did not answer: a signal stopped its process")
        busy but unhealthy: Hung("it did not answer two requests in a row")
        unhealthy but answers: Healthy(Some("its probes fail, but it answered"))
        broken: Hung("refused")
        remote silent: Unreachable("it did not answer two requests in a row")
        remote busy: Healthy(Some("it did not answer two requests in a row, but has 2 calls in progress: it is busy"))
        remote broken: Unreachable("refused")
        no conversation: Hung("it has no MCP session")
        no MCP: Healthy(Some("it does not speak MCP, so only its process was checked"))
        no MCP and gone: Hung("its process has exited")
        "#);
        assert!(needs_third_probe(&one, &silent) && needs_third_probe(&silent, &busy));
        let speaks = RoundTrip::Silent { calls: 1, has_spoken: true };
        assert!(!needs_third_probe(&silent, &silent) && !needs_third_probe(&busy, &answered));
        assert!(!needs_third_probe(&busy, &speaks) && has_spoken(&speaks) && !has_spoken(&busy));
        assert!(is_conclusive(&answered, true) && is_conclusive(&RoundTrip::NotConnected, false));
        assert!(!is_conclusive(&RoundTrip::NotConnected, true) && !is_conclusive(&busy, false));
    }
    #[test]
    fn readiness_decides_only_when_nothing_else_can_be_probed() {
        let (nobody, silent) =
            (RoundTrip::NotConnected, RoundTrip::Silent { calls: 1, has_spoken: false });
        let answered = RoundTrip::Answered { took: Duration::ZERO };
        let unready = |is_timeout| Some(Err(NotReady { why: "page".into(), is_timeout }));
        let (good, refused, late) = (Some(Ok(())), unready(false), unready(true));
        let plain = RunningFacts {
            process: Some(ProcessState::Alive),
            health: Health::Unknown,
            is_remote: false,
            speaks_mcp: false,
            activity: Activity::Idle,
        };
        let works = RunningFacts { activity: Activity::Active, ..plain };
        let ill = RunningFacts { health: Health::Unhealthy, ..works };
        let gone = RunningFacts { process: Some(ProcessState::Gone), ..plain };
        let mut table = String::new();
        for (name, living, probe, ready) in [
            ("ready", plain, &nobody, &good),
            ("refused", plain, &nobody, &refused),
            ("late", plain, &nobody, &late),
            ("works but refused", works, &nobody, &refused),
            ("works and is late", works, &nobody, &late),
            ("works and is late but unhealthy", ill, &nobody, &late),
            ("gone", gone, &nobody, &refused),
            ("answers and is ready", plain, &answered, &good),
            ("answers but refused", plain, &answered, &refused),
            ("answers but late", plain, &answered, &late),
            ("in a call and does nothing", plain, &silent, &refused),
            ("in a call and works", works, &silent, &refused),
        ] {
            let _ = writeln!(table, "{name}: {:?}", diagnose(living, probe, probe, ready));
        }
        insta::assert_snapshot!(table, @r#"
        ready: Healthy(Some("it does not speak MCP, but its port answers"))
        refused: Hung("it is no longer ready: page")
        late: Hung("it is no longer ready: page")
        works but refused: Hung("it is no longer ready: page")
        works and is late: Healthy(Some("page, but it was active meanwhile: it is busy"))
        works and is late but unhealthy: Hung("it is no longer ready: page")
        gone: Hung("its process has exited")
        answers and is ready: Healthy(None)
        answers but refused: Healthy(Some("page, but it answered"))
        answers but late: Healthy(Some("page, but it answered"))
        in a call and does nothing: Hung("it did not answer two requests in a row, has a call in progress and is idle")
        in a call and works: Healthy(Some("it did not answer two requests in a row, but was active meanwhile: it is busy"))
        "#);
    }
}
