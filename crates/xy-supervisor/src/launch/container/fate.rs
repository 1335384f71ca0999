//! What has become of a container, whoever did it.

use std::time::{Duration, SystemTime};

use bollard::errors::Error;
use bollard::models::ContainerState;
use tokio::time::{Instant, sleep};

use super::engine::Engine;
use super::faults;
use crate::lifecycle::Exit;

/// An engine that is restarted has this long to be back.
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// How often it is asked meanwhile.
const ASK_AGAIN: Duration = Duration::from_millis(250);

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
    /// There is none of that id any more.
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

/// What a state means. Pure.
fn judge(state: &ContainerState, memory: Option<u64>) -> Now {
    let is = |flag: Option<bool>| flag.unwrap_or(false);
    let pid = u32::try_from(state.pid.unwrap_or_default()).unwrap_or_default();
    if is(state.paused) {
        return Now::Paused { pid };
    }
    if is(state.running) || is(state.restarting) {
        return Now::Runs { pid };
    }
    let exit = faults::exit(state.exit_code, is(state.oom_killed), memory);
    let at = state.finished_at.as_deref().and_then(|at| humantime::parse_rfc3339(at).ok());
    let at = at.filter(|at| *at > SystemTime::UNIX_EPOCH);
    Now::Ended(End { exit, at, was_away: false })
}

/// Looks until the engine answers, or has been gone for too long.
pub(super) async fn look_patiently(
    engine: &Engine,
    id: &str,
    memory: Option<u64>,
) -> Result<Now, String> {
    let give_up_at = Instant::now() + BACK_WITHIN;
    let mut was_away = false;
    loop {
        match look(engine, id, memory).await {
            Ok(Now::Ended(end)) => return Ok(Now::Ended(End { was_away, ..end })),
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
pub(super) async fn until_over(engine: Engine, id: String, memory: Option<u64>) -> Fate {
    loop {
        engine.until_ended(&id).await;
        match look_patiently(&engine, &id, memory).await {
            Ok(Now::Runs { .. } | Now::Paused { .. }) => sleep(ASK_AGAIN).await,
            Ok(Now::Ended(end)) => return Fate::Ended(end),
            Ok(Now::Removed) => return Fate::Removed,
            Err(why) => return Fate::Lost(why),
        }
    }
}

#[cfg(test)]
mod tests {
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
    }
}
