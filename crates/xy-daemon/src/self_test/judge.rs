//! What a look at a server means: pure.
//!
//! Only who is dead though it should live, or who hangs, is started again. That a question is
//! not answered is no proof: who is seen to do something, or has calls to do and may wait for
//! somebody else, may have no time for it. That it has calls to do is no excuse by itself: so
//! has one that hangs in them.

use xy_gateway::RoundTrip;
use xy_protocol::server::{Health, ServerState, Wanted};
use xy_supervisor::Unready;

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
    pub(super) doing: Doing,
}

/// What one was seen to do while it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// It used the processor, or wrote or said something.
    Something,
    /// Nothing, but it is connected with somebody for whom it may wait; or nobody can tell.
    MayWait,
    /// Nothing.
    Nothing,
}

/// Whether it is asked once more: who has calls to do is given more time to show that it does.
pub(super) fn needs_longer(first: &RoundTrip, second: &RoundTrip) -> bool {
    matches!(second, RoundTrip::Silent { has_spoken: false, .. })
        && [first, second].into_iter().any(|seen| calls_in(seen) > 0)
}

/// Whether it has said something else than an answer.
pub(super) fn has_spoken(seen: &RoundTrip) -> bool {
    matches!(seen, RoundTrip::Silent { has_spoken: true, .. })
}

/// What came of asking its port once more whether it is ready; `None` where no port says so.
pub(super) type Readiness = Option<Result<(), Unready>>;

/// Judges one that runs by what became of the last question, and by what its port says.
pub(super) fn judge(
    living: Living,
    first: &RoundTrip,
    second: &RoundTrip,
    ready: &Readiness,
) -> Judged {
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
        Some(why)
            if living.doing == Doing::Something && matches!(second, RoundTrip::Silent { .. }) =>
        {
            Judged::Fine(Some(format!("{why}, but did something meanwhile: it is busy")))
        }
        // Of what one does somewhere else nobody knows.
        Some(why) if calls > 0 && (living.doing != Doing::Nothing || living.is_remote) => {
            Judged::Fine(Some(format!("{why}, but has {} to do: it is busy", words(calls))))
        }
        Some(why) if calls > 0 => {
            Judged::Hangs(format!("{why}, has {} to do and does nothing", words(calls)))
        }
        Some(why) => Judged::Hangs(why),
        None => match ready {
            Some(Err(unready)) if *second == RoundTrip::Nobody => judge_unready(living, unready),
            Some(Err(unready)) => Judged::Fine(Some(format!("{}, but it answered", unready.why))),
            None | Some(Ok(())) => Judged::Fine(note_of(living, second, ready.is_some())),
        },
    }
}

/// Judges one of which nothing but its port can be asked.
fn judge_unready(living: Living, unready: &Unready) -> Judged {
    let Unready { why, is_late } = unready;
    if *is_late && living.doing == Doing::Something && living.health != Health::Unhealthy {
        return Judged::Fine(Some(format!("{why}, but it did something meanwhile: it is busy")));
    }
    Judged::Hangs(format!("it is not ready any more: {why}"))
}

/// What there is to say of one that is well.
fn note_of(living: Living, second: &RoundTrip, is_ready: bool) -> Option<String> {
    let note = match second {
        RoundTrip::Nobody if is_ready => "it speaks no MCP, but its port answers",
        RoundTrip::Nobody => "it speaks no MCP, so only its process was looked at",
        _ if living.health == Health::Unhealthy => "its probes fail, but it answered",
        _ => return None,
    };
    Some(note.to_owned())
}

fn words(calls: usize) -> String {
    if calls == 1 { "a call".to_owned() } else { format!("{calls} calls") }
}

fn calls_in(seen: &RoundTrip) -> usize {
    match seen {
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
        let silent = RoundTrip::Silent { calls: 0, has_spoken: false };
        let busy = RoundTrip::Silent { calls: 2, has_spoken: false };
        let one = RoundTrip::Silent { calls: 1, has_spoken: false };
        let broken = RoundTrip::Broken("refused".into());
        let here = Living {
            process: Some(Process::There),
            health: Health::Unknown,
            is_remote: false,
            speaks_mcp: true,
            doing: Doing::Nothing,
        };
        let works = Living { doing: Doing::Something, ..here };
        let waits = Living { doing: Doing::MayWait, ..here };
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
            ("in a call and does nothing", here, &busy, &silent),
            ("in a later call and does nothing", here, &silent, &busy),
            ("in a call and works", works, &busy, &busy),
            ("in a call and may wait", waits, &busy, &silent),
            ("in one call and may wait", waits, &one, &silent),
            ("in no call and may wait", waits, &silent, &silent),
            ("in a call and stopped", Living { doing: Doing::MayWait, ..stopped }, &busy, &busy),
            ("in a call and broken", waits, &busy, &broken),
            ("works", works, &silent, &silent),
            ("works but broken", works, &silent, &broken),
            ("works but unhealthy", Living { doing: Doing::Something, ..ill }, &silent, &silent),
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
            let _ = writeln!(table, "{name}: {:?}", judge(living, first, second, &None));
        }
        insta::assert_snapshot!(table, @r#"
        answers: Fine(None)
        answers the second: Fine(None)
        silent: Hangs("it did not answer two questions in a row")
        in a call and does nothing: Hangs("it did not answer two questions in a row, has 2 calls to do and does nothing")
        in a later call and does nothing: Hangs("it did not answer two questions in a row, has 2 calls to do and does nothing")
        in a call and works: Fine(Some("it did not answer two questions in a row, but did something meanwhile: it is busy"))
        in a call and may wait: Fine(Some("it did not answer two questions in a row, but has 2 calls to do: it is busy"))
        in one call and may wait: Fine(Some("it did not answer two questions in a row, but has a call to do: it is busy"))
        in no call and may wait: Hangs("it did not answer two questions in a row")
        in a call and stopped: Hangs("it did not answer: a signal has stopped its process")
        in a call and broken: Fine(Some("refused, but has 2 calls to do: it is busy"))
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
        assert!(needs_longer(&one, &silent) && needs_longer(&silent, &busy));
        let speaks = RoundTrip::Silent { calls: 1, has_spoken: true };
        assert!(!needs_longer(&silent, &silent) && !needs_longer(&busy, &answered));
        assert!(!needs_longer(&busy, &speaks) && has_spoken(&speaks) && !has_spoken(&busy));
        assert!(is_enough(&answered, true) && is_enough(&RoundTrip::Nobody, false));
        assert!(!is_enough(&RoundTrip::Nobody, true) && !is_enough(&busy, false));
    }
    #[test]
    fn a_port_that_does_not_answer_any_more_counts_where_nothing_else_can_be_asked() {
        let (nobody, silent) =
            (RoundTrip::Nobody, RoundTrip::Silent { calls: 1, has_spoken: false });
        let answered = RoundTrip::Answered { took: Duration::ZERO };
        let unready = |is_late| Some(Err(Unready { why: "page".into(), is_late }));
        let (good, refused, late) = (Some(Ok(())), unready(false), unready(true));
        let plain = Living {
            process: Some(Process::There),
            health: Health::Unknown,
            is_remote: false,
            speaks_mcp: false,
            doing: Doing::Nothing,
        };
        let works = Living { doing: Doing::Something, ..plain };
        let ill = Living { health: Health::Unhealthy, ..works };
        let gone = Living { process: Some(Process::Gone), ..plain };
        let mut table = String::new();
        for (name, living, seen, ready) in [
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
            let _ = writeln!(table, "{name}: {:?}", judge(living, seen, seen, ready));
        }
        insta::assert_snapshot!(table, @r#"
        ready: Fine(Some("it speaks no MCP, but its port answers"))
        refused: Hangs("it is not ready any more: page")
        late: Hangs("it is not ready any more: page")
        works but refused: Hangs("it is not ready any more: page")
        works and is late: Fine(Some("page, but it did something meanwhile: it is busy"))
        works and is late but unhealthy: Hangs("it is not ready any more: page")
        gone: Hangs("its process is gone")
        answers and is ready: Fine(None)
        answers but refused: Fine(Some("page, but it answered"))
        answers but late: Fine(Some("page, but it answered"))
        in a call and does nothing: Hangs("it did not answer two questions in a row, has a call to do and does nothing")
        in a call and works: Fine(Some("it did not answer two questions in a row, but did something meanwhile: it is busy"))
        "#);
    }
}
