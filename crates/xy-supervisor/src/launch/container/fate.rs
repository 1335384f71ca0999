//! What has become of a container, whoever did it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bollard::errors::Error;
use bollard::models::{ContainerState, ContainerStateStatusEnum as Status};
use tokio::time::{Instant, sleep};

use super::engine::Engine;
use super::faults;
use super::witness::Witness;
use crate::lifecycle::Exit;

/// An engine that is restarted has this long to be back.
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// How often it is asked meanwhile.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// How long one that is just ending may take to have ended.
const SETTLED_WITHIN: Duration = Duration::from_secs(15);

/// How long Podman may take to remove what it has killed for that, and how often it is asked.
const REMOVED_WITHIN: Duration = Duration::from_secs(1);
const REMOVED_YET: Duration = Duration::from_millis(100);

const SIGKILL: i32 = 9;

/// What a container is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Now {
    Runs {
        pid: u32,
    },
    Paused {
        pid: u32,
    },
    Ended(End),
    /// There is none of that id any more, or it is just being removed.
    Removed,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub(super) exit: Exit,
    pub(super) at: Option<SystemTime>,
    /// Its engine could not be asked for a while before.
    pub(super) was_away: bool,
}

/// The end of a container, as far as it can be known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    Ended(End),
    /// Somebody else has removed it.
    Removed,
    /// Its engine is gone, or hides it.
    Lost(String),
}

/// Looks once.
pub(super) async fn look(engine: &Engine, id: &str, memory: Option<u64>) -> Result<Now, Error> {
    Ok(engine.state(id).await?.map_or(Now::Removed, |state| judge(&state, memory)))
}

/// The same once it is known how it ended, if it has. Of one that it is just ending, Podman says
/// that it does not run before it can say when and how it ended.
pub(super) async fn look_settled(
    engine: &Engine,
    id: &str,
    memory: Option<u64>,
) -> Result<Now, Error> {
    let give_up_at = Instant::now() + SETTLED_WITHIN;
    loop {
        let now = look(engine, id, memory).await?;
        let is_ending = engine.closes_stdin && matches!(now, Now::Ended(End { at: None, .. }));
        if !is_ending || Instant::now() >= give_up_at {
            return Ok(now);
        }
        sleep(ASK_AGAIN).await;
    }
}

/// What a state means. Pure.
fn judge(state: &ContainerState, memory: Option<u64>) -> Now {
    let is = |flag: Option<bool>| flag.unwrap_or(false);
    let pid = u32::try_from(state.pid.unwrap_or_default()).unwrap_or_default();
    if is(state.paused) {
        return Now::Paused { pid };
    }
    // Podman says of one that it has asked to end, and that takes its time, that it does not run.
    let is_stopping = state.status == Some(Status::STOPPING) && pid > 0;
    if is(state.running) || is(state.restarting) || is_stopping {
        return Now::Runs { pid };
    }
    if state.status == Some(Status::REMOVING) {
        return Now::Removed;
    }
    let exit = faults::exit(state.exit_code, is(state.oom_killed), memory);
    let at = state.finished_at.as_deref().and_then(|at| humantime::parse_rfc3339(at).ok());
    let at = at.filter(|at| *at > SystemTime::UNIX_EPOCH);
    Now::Ended(End { exit, at, was_away: false })
}

/// One whose end is waited for.
#[derive(Debug, Clone)]
pub(super) struct Watched {
    pub(super) engine: Engine,
    pub(super) id: String,
    pub(super) memory: Option<u64>,
    /// Who knows more of a kill than its engine.
    pub(super) witness: Option<Witness>,
    /// Whether its end has been asked for.
    pub(super) is_ending: Arc<AtomicBool>,
}

impl Watched {
    /// Looks until the engine answers, or has been gone for too long.
    pub(super) async fn look_patiently(&self) -> Result<Now, String> {
        let give_up_at = Instant::now() + BACK_WITHIN;
        let mut was_away = false;
        loop {
            match look(&self.engine, &self.id, self.memory).await {
                Ok(Now::Ended(end)) => return Ok(self.explain(End { was_away, ..end }).await),
                Ok(now) => return Ok(now),
                Err(why) if Instant::now() >= give_up_at => {
                    return Err(format!("its engine cannot be asked: {}", faults::words(&why)));
                }
                Err(_) => {
                    was_away = true;
                    sleep(ASK_AGAIN).await;
                }
            }
        }
    }

    /// Resolves when it does not run any more.
    pub(super) async fn until_over(&self) -> Fate {
        loop {
            self.engine.until_ended(&self.id).await;
            match self.look_patiently().await {
                Ok(Now::Runs { .. } | Now::Paused { .. }) => sleep(ASK_AGAIN).await,
                Ok(Now::Ended(end)) => return Fate::Ended(end),
                Ok(Now::Removed) => return Fate::Removed,
                Err(why) => return Fate::Lost(why),
            }
        }
    }

    /// What a kill really was, where its engine did not say: for want of memory, or the beginning
    /// of a removal.
    async fn explain(&self, end: End) -> Now {
        if self.is_ending.load(Ordering::Relaxed) {
            // It was asked for. That something in it was killed for want of memory is not why.
            return Now::Ended(End { exit: Exit { oom: None, ..end.exit }, ..end });
        }
        if end.exit.signal != Some(SIGKILL) || end.exit.oom.is_some() {
            return Now::Ended(end);
        }
        if let Some(witness) = &self.witness
            && witness.saw_kill().await
        {
            let exit = faults::killed_for_memory(self.memory);
            return Now::Ended(End { exit, ..end });
        }
        if self.is_removed_soon().await { Now::Removed } else { Now::Ended(end) }
    }

    /// Whether somebody else goes on to remove it. Docker says so from the beginning.
    async fn is_removed_soon(&self) -> bool {
        if !self.engine.closes_stdin {
            return false;
        }
        let give_up_at = Instant::now() + REMOVED_WITHIN;
        while Instant::now() < give_up_at && !self.is_ending.load(Ordering::Relaxed) {
            sleep(REMOVED_YET).await;
            if matches!(look(&self.engine, &self.id, self.memory).await, Ok(Now::Removed)) {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fake::Fake;
    use super::*;

    #[test]
    fn a_state_is_judged_by_what_runs() {
        let state = |running, paused, code| ContainerState {
            running: Some(running),
            paused: Some(paused),
            exit_code: Some(code),
            pid: Some(7),
            finished_at: Some("2026-11-16T10:59:55.527886318Z".into()),
            ..ContainerState::default()
        };
        assert_eq!(judge(&state(true, false, 0), None), Now::Runs { pid: 7 });
        assert_eq!(judge(&state(true, true, 0), None), Now::Paused { pid: 7 });
        let Now::Ended(end) = judge(&state(false, false, 3), None) else { panic!("it ended") };
        assert_eq!(end.exit, Exit::code(3));
        assert!(end.at.is_some());
        assert!(matches!(judge(&ContainerState::default(), None), Now::Ended(_)));
        let going = ContainerState { status: Some(Status::REMOVING), ..state(false, false, 137) };
        assert_eq!(judge(&going, None), Now::Removed);
        let asked = ContainerState { status: Some(Status::STOPPING), ..state(false, false, 0) };
        assert_eq!(judge(&asked, None), Now::Runs { pid: 7 }, "it may take its time");
        let gone = ContainerState { pid: Some(0), ..asked };
        assert!(matches!(judge(&gone, None), Now::Ended(_)));
        let runs = ContainerState { status: Some(Status::REMOVING), ..state(true, false, 0) };
        assert_eq!(judge(&runs, None), Now::Runs { pid: 7 }, "its end is still to come");
    }

    async fn watched(engine: &Fake) -> Watched {
        let engine = Engine::at(&engine.socket).await.unwrap();
        let is_ending = Arc::default();
        Watched { engine, id: "abc".into(), memory: None, witness: None, is_ending }
    }

    fn is_killed(fate: &Fate) -> bool {
        matches!(fate, Fate::Ended(end) if end.exit.signal == Some(SIGKILL))
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_podman_kills_and_then_removes_was_removed() {
        let (engine, _streams) = Fake::begin(None, |it| it.is_podman = true);
        engine.ends(137, false);
        engine.is_gone_after(3);
        assert_eq!(watched(&engine).await.until_over().await, Fate::Removed);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_was_only_killed_is_waited_for_no_longer_than_it_takes() {
        for (is_podman, is_asked) in [(true, false), (true, true), (false, false)] {
            let (engine, _streams) = Fake::begin(None, |it| it.is_podman = is_podman);
            engine.ends(137, false);
            let watched = watched(&engine).await;
            watched.is_ending.store(is_asked, Ordering::Relaxed);
            let began_at = Instant::now();
            assert!(is_killed(&watched.until_over().await));
            let waited = began_at.elapsed();
            let is_looked_at_again = is_podman && !is_asked;
            assert_eq!(waited >= REMOVED_WITHIN, is_looked_at_again, "{waited:?}");
            assert!(waited < REMOVED_WITHIN * 2, "{waited:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kill_is_one_for_want_of_memory_only_if_nobody_asked_for_it() {
        // Whether we have asked for its end, what the kernel has counted, what its engine says,
        // and whether it is named.
        let table = [
            (false, false, false, false),
            (false, true, false, true),
            (false, false, true, true),
            (true, true, false, false),
            (true, false, true, false),
            (true, true, true, false),
        ];
        for (is_asked, is_counted, is_said, is_named) in table {
            let (engine, _streams) = Fake::begin(None, |it| it.is_podman = true);
            engine.ends(137, is_said);
            let witness = Some(Witness::that_saw(is_counted));
            let watched = Watched { witness, ..watched(&engine).await };
            watched.is_ending.store(is_asked, Ordering::Relaxed);
            let Fate::Ended(end) = watched.until_over().await else { panic!("it has ended") };
            let case = (is_asked, is_counted, is_said);
            assert_eq!(
                (end.exit.signal, end.exit.oom.is_some()),
                (Some(SIGKILL), is_named),
                "{case:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_of_its_own_is_told_at_once() {
        let (engine, _streams) = Fake::begin(None, |it| it.is_podman = true);
        engine.ends(3, false);
        let began_at = Instant::now();
        assert!(matches!(watched(&engine).await.until_over().await, Fate::Ended(_)));
        assert!(began_at.elapsed() < REMOVED_YET);
    }
}
