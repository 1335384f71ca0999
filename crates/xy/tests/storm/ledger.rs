//! Checks the outcome of every call against what servers recorded. Pure: no process, no clock.
//!
//! The rules:
//!
//! - Each call has a unique number, and is answered exactly once.
//! - A call that must not run twice is recorded at most once, and exactly once if it has a result.
//! - A call that may run twice has a result unless two faults hit it, and never runs a third time.
//! - Only a call that a fault can have interrupted has an unknown outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::faults::{Fault, FaultWindow};

/// A call may be sent to a target that was hit this long before, until xy notices the fault.
const KNOWN_WITHIN: Duration = Duration::from_millis(250);

/// The idempotency of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Must not be repeated.
    Record,
    /// May be repeated, and is recorded each time.
    Idempotent,
    /// Changes nothing, and is recorded separately.
    Look,
}

impl Kind {
    /// Returns how often such a call may run: idempotent calls are retried once.
    fn max_executions(self) -> usize {
        match self {
            Self::Record => 1,
            Self::Idempotent | Self::Look => 2,
        }
    }
}

/// The answer that a client received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The call was executed by this process.
    Done { pid: u32 },
    /// The outcome is unknown, for this reason.
    Unknown(String),
    /// The call was not executed, for this reason.
    Refused(String),
    /// Any other answer.
    Unexpected(String),
}

impl Outcome {
    fn is_done(&self) -> bool {
        matches!(self, Self::Done { .. })
    }
}

/// One call and its answers. Times count from the start of the test.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    pub(crate) server: usize,
    /// The connection whose messages keep their order. `None` if each call has its own connection.
    pub(crate) line: Option<usize>,
    pub(crate) sent_at: Duration,
    pub(crate) answers: Vec<(Duration, Outcome)>,
}

/// Rules that differ between tests.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    /// Servers that never recover: unexecuted calls are refused, and idempotent calls may have an
    /// unknown outcome.
    pub(crate) doomed: BTreeSet<usize>,
    /// Servers that hang: a call that such a server has started is never retried.
    pub(crate) hanging: BTreeSet<usize>,
    /// Servers whose calls use separate connections, so that concurrent calls have no order.
    pub(crate) unordered: BTreeSet<usize>,
    /// True if idempotent calls may have an unknown outcome, as the bridge cannot always know their
    /// tools.
    pub(crate) may_be_unknown: bool,
}

/// Counts of a storm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    pub(crate) calls: usize,
    pub(crate) done: usize,
    pub(crate) unknown: usize,
    pub(crate) refused: usize,
    /// Calls without an answer.
    pub(crate) lost: usize,
    /// Calls that were executed or answered too often.
    pub(crate) doubled: usize,
    /// Idempotent calls with an unknown outcome that two faults hit.
    pub(crate) hit_twice: usize,
}

/// All data of a storm.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) calls: Vec<Call>,
    pub(crate) faults: Vec<Fault>,
    /// The recorded executions of each server, in order.
    pub(crate) records: Vec<Vec<u64>>,
    /// The recorded executions of read-only calls.
    pub(crate) looks: Vec<Vec<u64>>,
}

/// Counts the outcomes, and returns one sentence per violated rule.
pub(crate) fn check(ledger: &Ledger, rules: &Rules) -> (Tally, Vec<String>) {
    let mut tally = Tally { calls: ledger.calls.len(), ..Tally::default() };
    let mut violations = Vec::new();
    let (mut records, mut looks) = (executions(&ledger.records), executions(&ledger.looks));
    let windows: Vec<FaultWindow<'_>> =
        ledger.faults.iter().map(|fault| FaultWindow::of(fault, &ledger.calls)).collect();
    for call in &ledger.calls {
        let executed = if call.kind == Kind::Look { &mut looks } else { &mut records };
        let done = executed.remove(&call.number).unwrap_or_default();
        check_call(call, &done, (&ledger.faults, &windows), rules, &mut tally, &mut violations);
    }
    for (number, servers) in records.into_iter().chain(looks) {
        violations.push(format!("{number} was done by {servers:?}, and never asked for"));
    }
    violations.extend(out_of_order(ledger, rules));
    violations.extend(executed_after_answer(ledger));
    (tally, violations)
}

/// Returns the servers that executed each number, once per execution.
fn executions(records: &[Vec<u64>]) -> BTreeMap<u64, Vec<usize>> {
    let mut all: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (server, numbers) in records.iter().enumerate() {
        for number in numbers {
            all.entry(*number).or_default().push(server);
        }
    }
    all
}

fn check_call(
    call: &Call,
    done: &[usize],
    (faults, windows): (&[Fault], &[FaultWindow<'_>]),
    rules: &Rules,
    tally: &mut Tally,
    violations: &mut Vec<String>,
) {
    let mut violation = |what: &str| violations.push(format!("{what}: {call:?}, done by {done:?}"));
    if done.iter().any(|server| *server != call.server) {
        violation("another server did it");
    }
    if done.len() > call.kind.max_executions() {
        tally.doubled += 1;
        violation(&format!("it was done {} times", done.len()));
    }
    let (answered_at, outcome) = match &call.answers[..] {
        [] => {
            tally.lost += 1;
            return violation("it has no answer");
        }
        [(at, outcome)] => (*at, outcome),
        [_, ..] => {
            tally.doubled += 1;
            return violation("it has more than one answer");
        }
    };
    match outcome {
        Outcome::Done { .. } => {
            tally.done += 1;
            if done.is_empty() {
                violation("it has a result and was not done");
            }
        }
        Outcome::Unknown(_) => {
            tally.unknown += 1;
            let since = call.sent_at.saturating_sub(KNOWN_WITHIN);
            let is_hit = |fault: &&Fault| {
                fault.is_at(call.server) && (since..answered_at).contains(&fault.at)
            };
            let may_be = rules.may_be_unknown
                || rules.doomed.contains(&call.server)
                || rules.hanging.contains(&call.server);
            if !windows.iter().any(|window| window.may_have_hit(call, answered_at)) {
                violation("nothing can have interrupted it");
            } else if call.kind == Kind::Record || may_be {
                // As it must be.
            } else if faults.iter().filter(is_hit).count() > 1 {
                tally.hit_twice += 1;
            } else {
                violation("it could have been done again");
            }
        }
        Outcome::Refused(_) => {
            tally.refused += 1;
            if !rules.doomed.contains(&call.server) {
                violation("it was refused");
            } else if !done.is_empty() {
                violation("it was refused and done");
            }
        }
        Outcome::Unexpected(_) => violation("it has a strange answer"),
    }
}

/// Returns calls of one connection to one server that were first executed out of order.
fn out_of_order(ledger: &Ledger, rules: &Rules) -> Vec<String> {
    let lines: BTreeMap<u64, usize> =
        ledger.calls.iter().filter_map(|call| Some((call.number, call.line?))).collect();
    let mut violations = Vec::new();
    let records = ledger.records.iter().enumerate();
    for (server, numbers) in records.filter(|(server, _)| !rules.unordered.contains(server)) {
        let mut seen = BTreeSet::new();
        let mut last: BTreeMap<usize, u64> = BTreeMap::new();
        for number in numbers.iter().filter(|it| seen.insert(**it)) {
            let Some(line) = lines.get(number) else { continue };
            if let Some(before) = last.insert(*line, *number)
                && before > *number
            {
                violations.push(format!("server {server} did {before} before {number}"));
            }
        }
    }
    violations
}

/// Returns calls that were executed after a call that was sent after their answer. This holds for
/// every server, transport and client.
fn executed_after_answer(ledger: &Ledger) -> Vec<String> {
    let calls: BTreeMap<u64, &Call> = ledger.calls.iter().map(|it| (it.number, it)).collect();
    let mut violations = Vec::new();
    for (server, numbers) in ledger.records.iter().enumerate() {
        let mut latest: Option<&Call> = None;
        for call in numbers.iter().filter_map(|number| calls.get(number).copied()) {
            if let (Some(latest), [(answered_at, _)]) = (latest, &call.answers[..])
                && *answered_at < latest.sent_at
            {
                let (late, early) = (call.number, latest.number);
                violations
                    .push(format!("server {server} did {late}, which was over, after {early}"));
            }
            latest = latest.filter(|it| it.sent_at >= call.sent_at).or(Some(call));
        }
    }
    violations
}

/// Returns the sorted times from each fault to the next result, and the faults without one.
pub(crate) fn recoveries(ledger: &Ledger) -> (Vec<Duration>, Vec<Fault>) {
    let (mut all, mut never) = (Vec::new(), Vec::new());
    for fault in &ledger.faults {
        match ledger.calls.iter().filter_map(|call| fault.recovery_time(call)).min() {
            Some(time) => all.push(time),
            None => never.push(*fault),
        }
    }
    all.sort();
    (all, never)
}

/// Returns the given percentile of sorted times, or zero without any.
pub(crate) fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// The figures of a storm, for people.
pub(crate) struct Table<'t> {
    pub(crate) tally: Tally,
    pub(crate) faults: usize,
    pub(crate) parked: u64,
    pub(crate) resumed: u64,
    pub(crate) recoveries: &'t [Duration],
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { calls, done, unknown, refused, lost, doubled, hit_twice } = self.tally;
        let millis = |percent| percentile(self.recoveries, percent).as_millis();
        writeln!(out, "blows         {:>8}", self.faults)?;
        writeln!(out, "calls         {calls:>8}")?;
        writeln!(out, "  done        {done:>8}")?;
        writeln!(out, "  unknown     {unknown:>8}  ({hit_twice} struck twice)")?;
        writeln!(out, "  refused     {refused:>8}")?;
        writeln!(out, "  lost        {lost:>8}")?;
        writeln!(out, "  doubled     {doubled:>8}")?;
        writeln!(out, "parked        {:>8}", self.parked)?;
        writeln!(out, "resumed       {:>8}", self.resumed)?;
        writeln!(out, "recovery p50  {:>8} ms", millis(50))?;
        write!(out, "recovery p99  {:>8} ms", millis(99))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Target;

    const fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    /// Returns a call to server 0, sent at its number and answered 10 ms later.
    fn call(number: u64, kind: Kind, answers: &[Outcome]) -> Call {
        let answers = answers.iter().map(|it| (ms(number + 10), it.clone())).collect();
        Call { number, kind, server: 0, line: Some(0), sent_at: ms(number), answers }
    }

    fn done() -> Outcome {
        Outcome::Done { pid: 7 }
    }

    fn unknown() -> Outcome {
        Outcome::Unknown("it died".to_owned())
    }

    /// Returns a fault of server 0.
    fn fault(at: u64) -> Fault {
        Fault::at_server(0, 1, ms(at))
    }

    /// Returns a ledger in which every read-only call with a result was recorded.
    fn ledger(calls: Vec<Call>, record: &[u64]) -> Ledger {
        let is_seen = |it: &&Call| {
            it.kind == Kind::Look && it.answers.iter().any(|(_, message_of)| message_of.is_done())
        };
        let looks = calls.iter().filter(is_seen).map(|it| it.number).collect();
        let (records, looks) = (vec![record.to_vec(), Vec::new()], vec![looks, Vec::new()]);
        Ledger { calls, faults: Vec::new(), records, looks }
    }

    /// Returns the only violation, and the counts.
    #[track_caller]
    fn only_violation(ledger: &Ledger) -> (Tally, String) {
        let (tally, mut violations) = check(ledger, &Rules::default());
        assert_eq!(violations.len(), 1, "{violations:#?}");
        (tally, violations.remove(0))
    }

    #[test]
    fn storm_without_violations_is_counted() {
        let refused = Outcome::Refused("gone".to_owned());
        let all = ledger(
            vec![
                call(1, Kind::Record, &[done()]),
                call(2, Kind::Record, &[unknown()]),
                call(3, Kind::Record, &[unknown()]),
                call(4, Kind::Idempotent, &[done()]),
                call(5, Kind::Look, &[done()]),
                call(6, Kind::Record, &[refused]),
            ],
            &[1, 2, 4, 4], // The second call with an unknown outcome was not executed.
        );
        let all = Ledger { faults: vec![fault(5)], ..all };
        let rules = Rules { doomed: [0].into(), ..Rules::default() };
        let (tally, violations) = check(&all, &rules);
        assert_eq!(violations, [""; 0]);
        let expected = Tally { calls: 6, done: 3, unknown: 2, refused: 1, ..Tally::default() };
        assert_eq!(tally, expected);
    }

    #[test]
    fn double_execution_is_detected_for_any_outcome() {
        for outcome in [done(), unknown()] {
            let mut all = ledger(vec![call(1, Kind::Record, &[outcome])], &[1, 1]);
            all.faults.push(fault(5));
            let (tally, violation) = only_violation(&all);
            assert_eq!(tally.doubled, 1);
            assert!(violation.starts_with("it was done 2 times"), "{violation}");
        }
    }

    #[test]
    fn idempotent_call_must_not_run_a_third_time() {
        let of = |kind, times| {
            let mut all = ledger(vec![call(1, kind, &[done()])], &[]);
            let executed = if kind == Kind::Look { &mut all.looks } else { &mut all.records };
            executed[0] = vec![1; times];
            all
        };
        for kind in [Kind::Idempotent, Kind::Look] {
            for times in [1, 2] {
                assert_eq!(check(&of(kind, times), &Rules::default()).1, [""; 0], "{kind:?}");
            }
            let (tally, violation) = only_violation(&of(kind, 3));
            assert_eq!(tally.doubled, 1);
            assert!(violation.starts_with("it was done 3 times"), "{violation}");
        }
    }

    #[test]
    fn wrongly_recorded_read_only_call_is_detected() {
        let mut all = ledger(vec![call(1, Kind::Look, &[done()])], &[1]);
        let (_, violation) = only_violation(&all);
        assert_eq!(violation, "1 was done by [0], and never asked for");
        all.records[0].clear();
        all.looks[0].push(2);
        let (_, violation) = only_violation(&all);
        assert_eq!(violation, "2 was done by [0], and never asked for");
    }

    #[test]
    fn missing_and_duplicate_answers_are_detected() {
        let (tally, violation) = only_violation(&ledger(vec![call(1, Kind::Look, &[])], &[]));
        assert_eq!(tally.lost, 1);
        assert!(violation.starts_with("it has no answer"), "{violation}");
        let twice = [done(), unknown()];
        let (tally, violation) = only_violation(&ledger(vec![call(1, Kind::Look, &twice)], &[]));
        assert_eq!(tally.doubled, 1);
        assert!(violation.starts_with("it has more than one answer"), "{violation}");
    }

    #[test]
    fn result_without_an_execution_is_detected() {
        for kind in [Kind::Record, Kind::Idempotent, Kind::Look] {
            let mut all = ledger(vec![call(1, kind, &[done()])], &[]);
            all.looks[0].clear();
            let (_, violation) = only_violation(&all);
            assert!(violation.starts_with("it has a result and was not done"), "{violation}");
        }
    }

    #[test]
    fn unknown_or_misdirected_execution_is_detected() {
        let (_, violation) = only_violation(&ledger(Vec::new(), &[9]));
        assert!(violation.starts_with("9 was done by [0]"), "{violation}");
        let mut all = ledger(vec![call(1, Kind::Record, &[done()])], &[]);
        all.records[1].push(1);
        let (_, violation) = only_violation(&all);
        assert!(violation.starts_with("another server did it"), "{violation}");
    }

    #[test]
    fn idempotent_call_needs_a_result_unless_hit_twice() {
        for kind in [Kind::Idempotent, Kind::Look] {
            let mut all = ledger(vec![call(1000, kind, &[unknown()])], &[]);
            let fault = |server, at| Fault::at_server(server, 1, ms(at));
            // Long before the call, at another server, after the call, and one that hit it.
            all.faults = vec![fault(0, 749), fault(1, 1001), fault(0, 1011), fault(0, 1003)];
            let (_, violation) = only_violation(&all);
            assert!(violation.starts_with("it could have been done again"), "{violation}");
            let rules = Rules { may_be_unknown: true, ..Rules::default() };
            assert_eq!(check(&all, &rules).1, [""; 0]);
            all.faults.push(fault(0, 999)); // Not noticed yet.
            let (tally, violations) = check(&all, &Rules::default());
            assert_eq!((tally.hit_twice, violations), (1, Vec::new()));
        }
    }

    #[test]
    fn unknown_outcome_needs_a_fault() {
        let every = [
            Rules::default(),
            Rules { doomed: [0].into(), ..Rules::default() },
            Rules { may_be_unknown: true, ..Rules::default() },
        ];
        for kind in [Kind::Record, Kind::Idempotent, Kind::Look] {
            for rules in &every {
                let mut all = ledger(vec![call(1000, kind, &[unknown()])], &[]);
                all.faults = vec![Fault::at_server(1, 1, ms(1001)), fault(1011)];
                let (tally, violations) = check(&all, rules);
                assert_eq!((tally.unknown, violations.len()), (1, 1), "{violations:?}");
                assert!(
                    violations[0].starts_with("nothing can have interrupted it"),
                    "{violations:?}"
                );
            }
        }
        let mut all = ledger(vec![call(1000, Kind::Record, &[unknown()])], &[]);
        all.faults = vec![fault(1010)];
        assert_eq!(check(&all, &Rules::default()).1, [""; 0]);
        // This result shows that the server had recovered before the call was sent.
        all.calls.push(call(980, Kind::Idempotent, &[done()]));
        all.records[0].push(980);
        all.faults = vec![fault(970)];
        assert!(only_violation(&all).1.starts_with("nothing can have interrupted it"));
    }

    #[test]
    fn refusal_and_unexpected_answer_are_detected() {
        let refused = Outcome::Refused("why".to_owned());
        let all = ledger(vec![call(1, Kind::Record, &[refused])], &[]);
        assert!(only_violation(&all).1.starts_with("it was refused"));
        let done_too = Ledger { records: vec![vec![1]], ..all };
        let rules = Rules { doomed: [0].into(), ..Rules::default() };
        assert!(check(&done_too, &rules).1[0].starts_with("it was refused and done"));
        let strange = Outcome::Unexpected("?".to_owned());
        let all = ledger(vec![call(1, Kind::Look, &[strange])], &[]);
        assert!(only_violation(&all).1.starts_with("it has a strange answer"));
    }

    #[test]
    fn wrong_order_is_detected() {
        let calls = |line| {
            let all = [1, 2, 3].map(|number| call(number, Kind::Idempotent, &[done()]));
            all.map(|call| Call { line, ..call }).to_vec()
        };
        // A retried call comes later, which is right.
        let (_, violations) = check(&ledger(calls(Some(4)), &[1, 2, 1, 2, 3]), &Rules::default());
        assert_eq!(violations, [""; 0]);
        let (_, violation) = only_violation(&ledger(calls(Some(4)), &[1, 3, 2]));
        assert_eq!(violation, "server 0 did 3 before 2");
        let (_, violations) = check(&ledger(calls(None), &[1, 3, 2]), &Rules::default());
        assert_eq!(violations, [""; 0]);
        let rules = Rules { unordered: [0].into(), ..Rules::default() };
        assert_eq!(check(&ledger(calls(Some(4)), &[1, 3, 2]), &rules).1, [""; 0]);
    }

    #[test]
    fn execution_after_its_answer_is_detected() {
        let calls = || [1, 5, 30].map(|number| call(number, Kind::Idempotent, &[done()])).to_vec();
        let rules = Rules { unordered: [0].into(), ..Rules::default() };
        let violations = |record: &[u64]| check(&ledger(calls(), record), &rules).1;
        assert_eq!(violations(&[5, 1, 30]), [""; 0], "these were under way at the same time");
        assert_eq!(violations(&[1, 30, 5]), ["server 0 did 5, which was over, after 30"]);
        assert_eq!(violations(&[1, 5, 30, 1]), ["server 0 did 1, which was over, after 30"]);
        let lines = calls().into_iter().map(|call| Call { line: None, ..call }).collect();
        assert_eq!(check(&ledger(lines, &[1, 30, 5]), &rules).1.len(), 1, "for any client");
    }

    #[test]
    fn recovery_ends_with_the_first_result_of_a_successor() {
        let mut all = ledger(
            vec![
                call(100, Kind::Look, &[done()]),
                call(120, Kind::Look, &[unknown()]),
                call(150, Kind::Look, &[Outcome::Done { pid: 8 }]),
                call(130, Kind::Look, &[Outcome::Done { pid: 8 }]),
            ],
            &[],
        );
        let fault = |pid, at| Fault::at_server(0, pid, ms(at));
        let last = fault(8, 170);
        all.faults = vec![fault(7, 105), last];
        assert_eq!(recoveries(&all), (vec![ms(35)], vec![last]));
        // For a daemon, the first call that was sent after its death counts.
        all.faults = vec![Fault { target: Target::Daemon, begun_at: ms(125), at: ms(125) }];
        assert_eq!(recoveries(&all), (vec![ms(15)], Vec::new()));
    }

    #[test]
    fn percentiles_use_existing_values() {
        let all: Vec<Duration> = (1..=200).map(ms).collect();
        assert_eq!((percentile(&all, 50), percentile(&all, 99)), (ms(100), ms(198)));
        assert_eq!(percentile(&all[..1], 99), ms(1));
        assert_eq!(percentile(&[], 99), ms(0));
    }
}
