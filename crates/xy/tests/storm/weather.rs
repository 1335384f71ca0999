//! What happens to servers while they are called.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;

use crate::blows::Blow;
use crate::chance::Chance;
use crate::pause;
use crate::scene::Scene;
use crate::support::{pid_in, signal_if_alive};

/// Whether a server may be struck while what its last death interrupted is still open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mercy {
    /// No call is struck twice.
    Some,
    /// Any instant will do, also while it starts.
    None,
}

/// What was done to a server last.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Condition {
    Well,
    /// This process of it was struck.
    Struck(u32),
    /// It is back, and these calls may have been interrupted.
    Recovering(BTreeSet<u64>),
}

/// What is done to servers.
#[derive(Debug, Clone)]
pub(crate) struct Weather {
    /// Which ones.
    pub(crate) servers: Vec<usize>,
    /// How they are struck.
    pub(crate) signal: Signal,
    pub(crate) mercy: Mercy,
    pub(crate) time: Duration,
}

/// Strikes one server after the other, at random instants, for so long.
pub(crate) fn strike(scene: &Scene, chance: &mut Chance, weather: &Weather) -> Vec<Blow> {
    let until = scene.now() + weather.time;
    let mut conditions = vec![Condition::Well; scene.names.len()];
    // The process of each that was struck last.
    let mut last = vec![0_u64; scene.names.len()];
    let mut blows = Vec::new();
    while scene.now() < until {
        pause(chance.millis_below(60));
        let listed = scene.listed();
        for (server, condition) in conditions.iter_mut().enumerate() {
            let next = match &*condition {
                Condition::Struck(pid)
                    if listed[server]["state"] == "running" && listed[server]["pid"] != *pid =>
                {
                    Condition::Recovering(scene.open_at(server))
                }
                Condition::Recovering(open) if !scene.is_any_open(open) => Condition::Well,
                _ => continue,
            };
            *condition = next;
        }
        let may_be_struck = |server: &usize| {
            // xy replaces a process of the wrong era by itself: there may be none just now.
            let Some(pid) = listed[*server]["pid"].as_u64() else { return false };
            match weather.mercy {
                Mercy::Some => conditions[*server] == Condition::Well,
                Mercy::None => last[*server] != pid,
            }
        };
        let some: Vec<usize> = weather.servers.iter().copied().filter(may_be_struck).collect();
        if !some.is_empty() {
            let server = *chance.pick(&some);
            let (pid, at) = (pid_in(&listed[server]), scene.now());
            if let Some(far) = scene.far(server) {
                // Whoever keeps that one starts it again, soon or after a while.
                let most = if chance.one_in(2) { 100 } else { 1 };
                far.kill(chance.millis_below(most));
            } else if !signal_if_alive(pid, weather.signal) {
                continue;
            }
            conditions[server] = Condition::Struck(pid);
            last[server] = pid.into();
            blows.push(Blow::at_server(server, pid, at));
        }
    }
    blows
}
