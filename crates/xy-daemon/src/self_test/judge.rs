//! What a look at a server means: pure.
//!
//! Only who is dead though it should live, or who hangs, is started again. That a question is
//! not answered is no proof: who has calls to do, or is seen to do something, may have no time
//! for it.

use xy_gateway::RoundTrip;
use xy_protocol::server::{Health, ServerState, Wanted};

use crate::machine::Process;

/// What is known of an instance before it is asked anything.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts<'f> {
    pub(super) state: ServerState,
    pub(super) wanted: Wanted,
    pub(super) health: Health,
    /// It lives somewhere else, so nobody here can start it.
    pub(super) is_remote: bool,
    /// It lived, and has ended.
    pub(super) has_ended: bool,
    /// Why it is in its state.
    pub(super) reason: &'f str,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Glance {
    /// Nothing: it is as it should be, and why that is not plain.
    Fine(Option<String>),
    /// Its state is about to change.
    Wait,
    /// See whether it answers.
    Ask,
    /// It is dead, for this reason, and should not be.
    Dead(String),
    /// The same, and nobody here can do anything about it.
    Lost(String),
}

/// The first look.
pub(super) fn glance(facts: &Facts<'_>) -> Glance {
    use Glance::{Ask, Dead, Fine, Lost, Wait};
    use ServerState::{Asleep, Failed, Restarting, Running, Starting, Stopped, Stopping};

    let fine = |note: &str| Fine(Some(note.to_owned()));
    if facts.wanted == Wanted::Down {
        return fine("it was stopped on purpose");
    }
    if facts.health == Health::Unreachable {
        return Lost(facts.reason.to_owned());
    }
    match facts.state {
        Running => Ask,
        Starting | Stopping => Wait,
        Restarting | Failed if facts.is_remote => Lost(facts.reason.to_owned()),
        Restarting | Failed => Dead(facts.reason.to_owned()),
        Asleep => fine("it sleeps until somebody uses it"),
        Stopped if facts.has_ended => fine("it ended by itself, and its policy leaves it so"),
        Stopped => fine("it has not been started"),
    }
}

/// What became of two questions to one that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Judged {
    /// It answers, or need not.
    Fine(Option<String>),
    /// It hangs, for all that can be seen.
    Hangs(String),
    /// It cannot be reached, and nobody here can start it.
    Lost(String),
}

/// Whether it has answered, or was not meant to, so that there is nothing more to ask.
pub(super) fn is_enough(seen: &RoundTrip, speaks_mcp: bool) -> bool {
    match seen {
        RoundTrip::Answered { .. } => true,
        RoundTrip::Nobody => !speaks_mcp,
        RoundTrip::Silent { .. } | RoundTrip::Broken(_) => false,
    }
}

/// What is known of one that runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Living {
    pub(super) process: Option<Process>,
    pub(super) health: Health,
    pub(super) is_remote: bool,
    /// It is ready only once it has spoken MCP.
    pub(super) speaks_mcp: bool,
    /// It used the processor or wrote something while it was asked.
    pub(super) does_something: bool,
}

/// Judges one that runs by what became of the last question.
pub(super) fn judge(living: Living, first: &RoundTrip, second: &RoundTrip) -> Judged {
    let calls = [first, second].into_iter().map(calls_in).max().unwrap_or_default();
    let silence = match second {
        RoundTrip::Answered { .. } => None,
        RoundTrip::Nobody if !living.speaks_mcp => None,
        RoundTrip::Nobody => Some("nobody can speak with it".to_owned()),
        RoundTrip::Silent { .. } => Some("it did not answer two questions in a row".to_owned()),
        RoundTrip::Broken(why) => Some(why.clone()),
    };
    let gone = living.process == Some(Process::Gone);
    match silence {
        _ if gone => Judged::Hangs("its process is gone".to_owned()),
        Some(why) if living.is_remote && calls == 0 => Judged::Lost(why),
        Some(_) if living.process == Some(Process::Stopped) => {
            Judged::Hangs("it did not answer: a signal has stopped its process".to_owned())
        }
        Some(why) if living.health == Health::Unhealthy && !living.is_remote => Judged::Hangs(why),
        Some(why) if calls > 0 => {
            Judged::Fine(Some(format!("{why}, but has {calls} calls to do: it is busy")))
        }
        Some(why) if living.does_something && matches!(second, RoundTrip::Silent { .. }) => {
            Judged::Fine(Some(format!("{why}, but did something meanwhile: it is busy")))
        }
        Some(why) => Judged::Hangs(why),
        None if *second == RoundTrip::Nobody => {
            let note = "it speaks no MCP, so only its process was looked at";
            Judged::Fine(Some(note.to_owned()))
        }
        None if living.health == Health::Unhealthy => {
            Judged::Fine(Some("its probes fail, but it answered".to_owned()))
        }
        None => Judged::Fine(None),
    }
}

fn calls_in(seen: &RoundTrip) -> usize {
    match seen {
        RoundTrip::Silent { calls } => *calls,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_first_look_at_each_state() {
        use ServerState::{Failed, Restarting, Running, Starting, Stopped, Stopping};
        let mut table = String::new();
        for state in [Stopped, Starting, Running, Restarting, Failed, Stopping] {
            for (wanted, is_remote) in
                [(Wanted::Up, false), (Wanted::Up, true), (Wanted::Down, false)]
            {
                let facts = Facts {
                    state,
                    wanted,
                    health: Health::Unknown,
                    is_remote,
                    has_ended: true,
                    reason: "r",
                };
                let place = if is_remote { "remote" } else { "here" };
                let glance = glance(&facts);
                let _ = writeln!(table, "{state:10} {wanted:?} {place}: {glance:?}");
            }
        }
        insta::assert_snapshot!(table, @r#"
        stopped    Up here: Fine(Some("it ended by itself, and its policy leaves it so"))
        stopped    Up remote: Fine(Some("it ended by itself, and its policy leaves it so"))
        stopped    Down here: Fine(Some("it was stopped on purpose"))
        starting   Up here: Wait
        starting   Up remote: Wait
        starting   Down here: Fine(Some("it was stopped on purpose"))
        running    Up here: Ask
        running    Up remote: Ask
        running    Down here: Fine(Some("it was stopped on purpose"))
        restarting Up here: Dead("r")
        restarting Up remote: Lost("r")
        restarting Down here: Fine(Some("it was stopped on purpose"))
        failed     Up here: Dead("r")
        failed     Up remote: Lost("r")
        failed     Down here: Fine(Some("it was stopped on purpose"))
        stopping   Up here: Wait
        stopping   Up remote: Wait
        stopping   Down here: Fine(Some("it was stopped on purpose"))
        "#);
        let unreachable = Facts {
            state: Starting,
            wanted: Wanted::Up,
            health: Health::Unreachable,
            is_remote: true,
            has_ended: false,
            reason: "r",
        };
        assert_eq!(glance(&unreachable), Glance::Lost("r".into()));
        let unborn = Facts { state: Stopped, health: Health::Unknown, ..unreachable };
        assert_eq!(glance(&unborn), Glance::Fine(Some("it has not been started".into())));
    }

    #[test]
    fn who_answers_is_never_restarted_and_who_is_busy_neither() {
        let answered = RoundTrip::Answered { took: Duration::ZERO };
        let silent = RoundTrip::Silent { calls: 0 };
        let busy = RoundTrip::Silent { calls: 2 };
        let broken = RoundTrip::Broken("refused".into());
        let here = Living {
            process: Some(Process::There),
            health: Health::Unknown,
            is_remote: false,
            speaks_mcp: true,
            does_something: false,
        };
        let works = Living { does_something: true, ..here };
        let stopped = Living { process: Some(Process::Stopped), ..here };
        let ill = Living { health: Health::Unhealthy, ..here };
        let remote = Living { process: None, is_remote: true, ..here };
        let plain = Living { speaks_mcp: false, ..here };
        let gone = Living { process: Some(Process::Gone), ..here };
        let mut table = String::new();
        for (name, living, first, second) in [
            ("answers", here, &answered, &answered),
            ("answers the second", here, &silent, &answered),
            ("silent", here, &silent, &silent),
            ("busy", here, &busy, &silent),
            ("busy later", here, &silent, &busy),
            ("works", works, &silent, &silent),
            ("works but broken", works, &silent, &broken),
            ("works but unhealthy", Living { does_something: true, ..ill }, &silent, &silent),
            ("busy but stopped", stopped, &busy, &busy),
            ("busy but unhealthy", ill, &busy, &busy),
            ("unhealthy but answers", ill, &answered, &answered),
            ("broken", here, &broken, &broken),
            ("remote silent", remote, &silent, &silent),
            ("remote busy", remote, &busy, &busy),
            ("remote broken", remote, &broken, &broken),
            ("no conversation", here, &RoundTrip::Nobody, &RoundTrip::Nobody),
            ("no MCP", plain, &RoundTrip::Nobody, &RoundTrip::Nobody),
            (
                "no MCP and gone",
                Living { speaks_mcp: false, ..gone },
                &RoundTrip::Nobody,
                &RoundTrip::Nobody,
            ),
        ] {
            let _ = writeln!(table, "{name}: {:?}", judge(living, first, second));
        }
        insta::assert_snapshot!(table, @r#"
        answers: Fine(None)
        answers the second: Fine(None)
        silent: Hangs("it did not answer two questions in a row")
        busy: Fine(Some("it did not answer two questions in a row, but has 2 calls to do: it is busy"))
        busy later: Fine(Some("it did not answer two questions in a row, but has 2 calls to do: it is busy"))
        works: Fine(Some("it did not answer two questions in a row, but did something meanwhile: it is busy"))
        works but broken: Hangs("refused")
        works but unhealthy: Hangs("it did not answer two questions in a row")
        busy but stopped: Hangs("it did not answer: a signal has stopped its process")
        busy but unhealthy: Hangs("it did not answer two questions in a row")
        unhealthy but answers: Fine(Some("its probes fail, but it answered"))
        broken: Hangs("refused")
        remote silent: Lost("it did not answer two questions in a row")
        remote busy: Fine(Some("it did not answer two questions in a row, but has 2 calls to do: it is busy"))
        remote broken: Lost("refused")
        no conversation: Hangs("nobody can speak with it")
        no MCP: Fine(Some("it speaks no MCP, so only its process was looked at"))
        no MCP and gone: Hangs("its process is gone")
        "#);
        assert!(is_enough(&answered, true) && is_enough(&RoundTrip::Nobody, false));
        assert!(!is_enough(&RoundTrip::Nobody, true) && !is_enough(&busy, false));
    }
}
