//! Detection of a container's exit, whatever caused it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bollard::errors::Error;
use bollard::models::{ContainerState, ContainerStateStatusEnum as Status};
use tokio::time::{Instant, sleep};
use xy_supervisor::lifecycle::Exit;

use crate::engine::Engine;
use crate::faults;
use crate::oom_watch::OomWatch;

/// Time for a restarting engine to be back.
const ENGINE_RETURN_TIMEOUT: Duration = Duration::from_secs(60);

/// Time between two queries.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum wait for the exit status of a container that is exiting.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(15);

/// Time for Podman to remove a container that it has killed for removal, and how often it is asked.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(1);
const REMOVAL_POLL_INTERVAL: Duration = Duration::from_millis(100);

const SIGKILL: i32 = 9;

/// The current status of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContainerStatus {
    Running {
        pid: u32,
    },
    Paused {
        pid: u32,
    },
    Exited(ExitInfo),
    /// No container has that id, or it is being removed.
    Removed,
}

/// How it exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExitInfo {
    pub(crate) exit: Exit,
    pub(crate) at: Option<SystemTime>,
    /// True if its engine could not be reached for a while before.
    pub(crate) was_away: bool,
}

/// The end of a container, as far as it can be known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Termination {
    Exited(ExitInfo),
    /// Another program has removed it.
    Removed,
    /// Its engine is gone, or does not answer.
    EngineLost(String),
}

/// Queries the status once.
pub(crate) async fn query(
    engine: &Engine,
    id: &str,
    memory: Option<u64>,
) -> Result<ContainerStatus, Error> {
    Ok(engine.state(id).await?.map_or(ContainerStatus::Removed, |state| status_of(&state, memory)))
}

/// Queries the status; if it has exited, waits until its exit status is known. Podman reports an
/// exiting container as not running before it can say when and how it exited.
pub(crate) async fn query_settled(
    engine: &Engine,
    id: &str,
    memory: Option<u64>,
) -> Result<ContainerStatus, Error> {
    let give_up_at = Instant::now() + SETTLE_TIMEOUT;
    loop {
        let now = query(engine, id, memory).await?;
        let is_incomplete = engine.closes_stdin
            && matches!(now, ContainerStatus::Exited(ExitInfo { at: None, .. }));
        if !is_incomplete || Instant::now() >= give_up_at {
            return Ok(now);
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Converts a state. Pure.
fn status_of(state: &ContainerState, memory: Option<u64>) -> ContainerStatus {
    let is = |flag: Option<bool>| flag.unwrap_or(false);
    let pid = u32::try_from(state.pid.unwrap_or_default()).unwrap_or_default();
    if is(state.paused) {
        return ContainerStatus::Paused { pid };
    }
    // Podman reports a container that takes its time to stop as not running.
    let is_stopping = state.status == Some(Status::STOPPING) && pid > 0;
    if is(state.running) || is(state.restarting) || is_stopping {
        return ContainerStatus::Running { pid };
    }
    if state.status == Some(Status::REMOVING) {
        return ContainerStatus::Removed;
    }
    let exit = faults::exit(state.exit_code, is(state.oom_killed), memory);
    let at = state.finished_at.as_deref().and_then(|at| humantime::parse_rfc3339(at).ok());
    let at = at.filter(|at| *at > SystemTime::UNIX_EPOCH);
    ContainerStatus::Exited(ExitInfo { exit, at, was_away: false })
}

/// A container whose exit is awaited.
#[derive(Debug, Clone)]
pub(crate) struct ExitWatch {
    pub(crate) engine: Engine,
    pub(crate) id: String,
    pub(crate) memory: Option<u64>,
    /// Knows more about a kill than the engine.
    pub(crate) oom_watch: Option<OomWatch>,
    /// Whether its end has been requested.
    pub(crate) is_ending: Arc<AtomicBool>,
}

impl ExitWatch {
    /// Queries the status until the engine answers, or has been gone for too long.
    pub(crate) async fn query_with_retry(&self) -> Result<ContainerStatus, String> {
        let give_up_at = Instant::now() + ENGINE_RETURN_TIMEOUT;
        let mut was_away = false;
        loop {
            match query(&self.engine, &self.id, self.memory).await {
                Ok(ContainerStatus::Exited(end)) => {
                    return Ok(self.refine(ExitInfo { was_away, ..end }).await);
                }
                Ok(now) => return Ok(now),
                Err(why) if Instant::now() >= give_up_at => {
                    return Err(format!(
                        "the request to its engine failed: {}",
                        faults::words(&why)
                    ));
                }
                Err(_) => {
                    was_away = true;
                    sleep(POLL_INTERVAL).await;
                }
            }
        }
    }

    /// Waits until it does not run any more.
    pub(crate) async fn wait_for_end(&self) -> Termination {
        loop {
            self.engine.until_ended(&self.id).await;
            match self.query_with_retry().await {
                Ok(ContainerStatus::Running { .. } | ContainerStatus::Paused { .. }) => {
                    sleep(POLL_INTERVAL).await;
                }
                Ok(ContainerStatus::Exited(end)) => return Termination::Exited(end),
                Ok(ContainerStatus::Removed) => return Termination::Removed,
                Err(why) => return Termination::EngineLost(why),
            }
        }
    }

    /// Determines the reason of a kill that its engine did not explain: lack of memory, or a
    /// removal that has begun.
    async fn refine(&self, end: ExitInfo) -> ContainerStatus {
        if self.is_ending.load(Ordering::Relaxed) {
            // The end was requested. That some process in it was killed for lack of memory is not
            // the reason.
            return ContainerStatus::Exited(ExitInfo {
                exit: Exit { oom: None, ..end.exit },
                ..end
            });
        }
        if end.exit.signal != Some(SIGKILL) || end.exit.oom.is_some() {
            return ContainerStatus::Exited(end);
        }
        if let Some(oom_watch) = &self.oom_watch
            && oom_watch.saw_kill().await
        {
            let exit = faults::killed_for_memory(self.memory);
            return ContainerStatus::Exited(ExitInfo { exit, ..end });
        }
        if self.waits_for_removal().await {
            ContainerStatus::Removed
        } else {
            ContainerStatus::Exited(end)
        }
    }

    /// Waits for another program to remove it; returns true if that happens. Docker reports a
    /// removal from its beginning.
    async fn waits_for_removal(&self) -> bool {
        if !self.engine.closes_stdin {
            return false;
        }
        let give_up_at = Instant::now() + REMOVAL_TIMEOUT;
        while Instant::now() < give_up_at && !self.is_ending.load(Ordering::Relaxed) {
            sleep(REMOVAL_POLL_INTERVAL).await;
            if matches!(
                query(&self.engine, &self.id, self.memory).await,
                Ok(ContainerStatus::Removed)
            ) {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fake::Fake;

    #[test]
    fn status_follows_running_state() {
        let state = |running, paused, code| ContainerState {
            running: Some(running),
            paused: Some(paused),
            exit_code: Some(code),
            pid: Some(7),
            finished_at: Some("2026-11-16T10:59:55.527886318Z".into()),
            ..ContainerState::default()
        };
        assert_eq!(status_of(&state(true, false, 0), None), ContainerStatus::Running { pid: 7 });
        assert_eq!(status_of(&state(true, true, 0), None), ContainerStatus::Paused { pid: 7 });
        let ContainerStatus::Exited(end) = status_of(&state(false, false, 3), None) else {
            panic!("it ended")
        };
        assert_eq!(end.exit, Exit::code(3));
        assert!(end.at.is_some());
        assert!(matches!(status_of(&ContainerState::default(), None), ContainerStatus::Exited(_)));
        let going = ContainerState { status: Some(Status::REMOVING), ..state(false, false, 137) };
        assert_eq!(status_of(&going, None), ContainerStatus::Removed);
        let asked = ContainerState { status: Some(Status::STOPPING), ..state(false, false, 0) };
        assert_eq!(
            status_of(&asked, None),
            ContainerStatus::Running { pid: 7 },
            "it may take its time"
        );
        let gone = ContainerState { pid: Some(0), ..asked };
        assert!(matches!(status_of(&gone, None), ContainerStatus::Exited(_)));
        let runs = ContainerState { status: Some(Status::REMOVING), ..state(true, false, 0) };
        assert_eq!(
            status_of(&runs, None),
            ContainerStatus::Running { pid: 7 },
            "its end is still to come"
        );
    }

    async fn watched(engine: &Fake) -> ExitWatch {
        let engine = Engine::at(&engine.socket).await.unwrap();
        let is_ending = Arc::default();
        ExitWatch { engine, id: "abc".into(), memory: None, oom_watch: None, is_ending }
    }

    fn is_killed(termination: &Termination) -> bool {
        matches!(termination, Termination::Exited(end) if end.exit.signal == Some(SIGKILL))
    }

    #[tokio::test(start_paused = true)]
    async fn podman_kills_then_removes_counts_as_removed() {
        let (engine, _streams) = Fake::start(None, |it| it.is_podman = true);
        engine.exit(137, false);
        engine.remove_after(3);
        assert_eq!(watched(&engine).await.wait_for_end().await, Termination::Removed);
    }

    #[tokio::test(start_paused = true)]
    async fn removal_wait_is_bounded() {
        for (is_podman, is_stopping) in [(true, false), (true, true), (false, false)] {
            let (engine, _streams) = Fake::start(None, |it| it.is_podman = is_podman);
            engine.exit(137, false);
            let watched = watched(&engine).await;
            watched.is_ending.store(is_stopping, Ordering::Relaxed);
            let began_at = Instant::now();
            assert!(is_killed(&watched.wait_for_end().await));
            let waited = began_at.elapsed();
            let is_looked_at_again = is_podman && !is_stopping;
            assert_eq!(waited >= REMOVAL_TIMEOUT, is_looked_at_again, "{waited:?}");
            assert!(waited < REMOVAL_TIMEOUT * 2, "{waited:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn out_of_memory_is_reported_only_for_unrequested_kill() {
        // Whether we requested its end, what the kernel has counted, what its engine says, and
        // whether lack of memory is reported.
        let table = [
            (false, false, false, false),
            (false, true, false, true),
            (false, false, true, true),
            (true, true, false, false),
            (true, false, true, false),
            (true, true, true, false),
        ];
        for (is_stopping, is_counted, is_said, is_named) in table {
            let (engine, _streams) = Fake::start(None, |it| it.is_podman = true);
            engine.exit(137, is_said);
            let oom_watch = Some(OomWatch::that_saw(is_counted));
            let watched = ExitWatch { oom_watch, ..watched(&engine).await };
            watched.is_ending.store(is_stopping, Ordering::Relaxed);
            let Termination::Exited(end) = watched.wait_for_end().await else {
                panic!("it has ended")
            };
            let case = (is_stopping, is_counted, is_said);
            assert_eq!(
                (end.exit.signal, end.exit.oom.is_some()),
                (Some(SIGKILL), is_named),
                "{case:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn own_exit_is_reported_at_once() {
        let (engine, _streams) = Fake::start(None, |it| it.is_podman = true);
        engine.exit(3, false);
        let began_at = Instant::now();
        assert!(matches!(watched(&engine).await.wait_for_end().await, Termination::Exited(_)));
        assert!(began_at.elapsed() < REMOVAL_POLL_INTERVAL);
    }
}
