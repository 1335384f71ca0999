//! What came of every call, held against what servers wrote down. Pure: no process, no clock.
//!
//! A call has a number that no other has. It must be answered once. What must not be done twice
//! is never written down twice, and once if it has a result; what may be done twice has a
//! result, unless it was struck twice, and is never done a third time. Of unknown outcome is only
//! what a blow can have interrupted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::blows::{Blow, Spell};

/// A call may be sent to one that was struck before, as long as nobody has noticed that.
const KNOWN_WITHIN: Duration = Duration::from_millis(250);

/// What a tool promises about being called twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It must not be.
    Record,
    /// It may be, and is written down each time.
    Idempotent,
    /// It changes nothing; that it was asked is written down elsewhere.
    Look,
}

impl Kind {
    /// How often it may be done at most: it is sent again once, if that does no harm.
    fn most(self) -> usize {
        match self {
            Self::Record => 1,
            Self::Idempotent | Self::Look => 2,
        }
    }
}

/// What a client was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was done, by this process.
    Done { pid: u32 },
    /// Nobody can say whether it was done, and why.
    Unknown(String),
    /// It was not done, and why.
    Refused(String),
    /// Something that is none of these.
    Strange(String),
}

impl Outcome {
    fn is_done(&self) -> bool {
        matches!(self, Self::Done { .. })
    }
}

/// One call and its answers. Moments are counted from the beginning of the test.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    pub(crate) server: usize,
    /// What one client says on one connection is in order; `None` where each call has its own.
    pub(crate) line: Option<usize>,
    pub(crate) sent_at: Duration,
    pub(crate) answers: Vec<(Duration, Outcome)>,
}

/// What is right in one test and wrong in another.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    /// Servers that do not come back: what was not done is refused, and what may be done twice
    /// may be of unknown outcome.
    pub(crate) doomed: BTreeSet<usize>,
    /// Servers that hang: a call that such a server has begun is never sent again.
    pub(crate) hanging: BTreeSet<usize>,
    /// Servers to which calls go on connections of their own, so that those which are under way
    /// at the same time are in no order.
    pub(crate) unordered: BTreeSet<usize>,
    /// What may be done twice may be of unknown outcome: whoever has it cannot tell that it may.
    pub(crate) may_be_unknown: bool,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    pub(crate) calls: usize,
    pub(crate) done: usize,
    pub(crate) unknown: usize,
    pub(crate) refused: usize,
    /// Never answered.
    pub(crate) lost: usize,
    /// Done or answered more often than is right.
    pub(crate) doubled: usize,
    /// Of unknown outcome though they may be done twice, since they were struck twice.
    pub(crate) struck_twice: usize,
}

/// What is known of a whole storm.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) calls: Vec<Call>,
    pub(crate) blows: Vec<Blow>,
    /// What each server wrote down, in its order.
    pub(crate) records: Vec<Vec<u64>>,
    /// The same of those who only looked.
    pub(crate) looks: Vec<Vec<u64>>,
}

/// Counts, and says what is wrong, a sentence each.
pub(crate) fn check(ledger: &Ledger, rules: &Rules) -> (Tally, Vec<String>) {
    let mut tally = Tally { calls: ledger.calls.len(), ..Tally::default() };
    let mut faults = Vec::new();
    let (mut records, mut looks) = (executions(&ledger.records), executions(&ledger.looks));
    let spells: Vec<Spell<'_>> =
        ledger.blows.iter().map(|blow| Spell::of(blow, &ledger.calls)).collect();
    for call in &ledger.calls {
        let theirs = if call.kind == Kind::Look { &mut looks } else { &mut records };
        let done = theirs.remove(&call.number).unwrap_or_default();
        judge(call, &done, (&ledger.blows, &spells), rules, &mut tally, &mut faults);
    }
    for (number, servers) in records.into_iter().chain(looks) {
        faults.push(format!("{number} was done by {servers:?}, and never asked for"));
    }
    faults.extend(disorder(ledger, rules));
    faults.extend(lateness(ledger));
    (tally, faults)
}

/// Which servers did each number, as often as they did.
fn executions(records: &[Vec<u64>]) -> BTreeMap<u64, Vec<usize>> {
    let mut all: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (server, numbers) in records.iter().enumerate() {
        for number in numbers {
            all.entry(*number).or_default().push(server);
        }
    }
    all
}

fn judge(
    call: &Call,
    done: &[usize],
    (blows, spells): (&[Blow], &[Spell<'_>]),
    rules: &Rules,
    tally: &mut Tally,
    faults: &mut Vec<String>,
) {
    let mut fault = |what: &str| faults.push(format!("{what}: {call:?}, done by {done:?}"));
    if done.iter().any(|server| *server != call.server) {
        fault("another server did it");
    }
    if done.len() > call.kind.most() {
        tally.doubled += 1;
        fault(&format!("it was done {} times", done.len()));
    }
    let (answered_at, outcome) = match &call.answers[..] {
        [] => {
            tally.lost += 1;
            return fault("it has no answer");
        }
        [(at, outcome)] => (*at, outcome),
        [_, ..] => {
            tally.doubled += 1;
            return fault("it has more than one answer");
        }
    };
    match outcome {
        Outcome::Done { .. } => {
            tally.done += 1;
            if done.is_empty() {
                fault("it has a result and was not done");
            }
        }
        Outcome::Unknown(_) => {
            tally.unknown += 1;
            let since = call.sent_at.saturating_sub(KNOWN_WITHIN);
            let is_hit =
                |blow: &&Blow| blow.is_at(call.server) && (since..answered_at).contains(&blow.at);
            let may_be = rules.may_be_unknown
                || rules.doomed.contains(&call.server)
                || rules.hanging.contains(&call.server);
            if !spells.iter().any(|spell| spell.can_have_hit(call, answered_at)) {
                fault("nothing can have interrupted it");
            } else if call.kind == Kind::Record || may_be {
                // As it has to be.
            } else if blows.iter().filter(is_hit).count() > 1 {
                tally.struck_twice += 1;
            } else {
                fault("it could have been done again");
            }
        }
        Outcome::Refused(_) => {
            tally.refused += 1;
            if !rules.doomed.contains(&call.server) {
                fault("it was refused");
            } else if !done.is_empty() {
                fault("it was refused and done");
            }
        }
        Outcome::Strange(_) => fault("it has a strange answer"),
    }
}

/// What one client said to one server on one connection, and was first done in another order.
fn disorder(ledger: &Ledger, rules: &Rules) -> Vec<String> {
    let lines: BTreeMap<u64, usize> =
        ledger.calls.iter().filter_map(|call| Some((call.number, call.line?))).collect();
    let mut faults = Vec::new();
    let records = ledger.records.iter().enumerate();
    for (server, numbers) in records.filter(|(server, _)| !rules.unordered.contains(server)) {
        let mut seen = BTreeSet::new();
        let mut last: BTreeMap<usize, u64> = BTreeMap::new();
        for number in numbers.iter().filter(|it| seen.insert(**it)) {
            let Some(line) = lines.get(number) else { continue };
            if let Some(before) = last.insert(*line, *number)
                && before > *number
            {
                faults.push(format!("server {server} did {before} before {number}"));
            }
        }
    }
    faults
}

/// What was done after something that was only sent once it had its answer. This holds at every
/// server, however it is reached, and whoever the clients are.
fn lateness(ledger: &Ledger) -> Vec<String> {
    let calls: BTreeMap<u64, &Call> = ledger.calls.iter().map(|it| (it.number, it)).collect();
    let mut faults = Vec::new();
    for (server, numbers) in ledger.records.iter().enumerate() {
        let mut latest: Option<&Call> = None;
        for call in numbers.iter().filter_map(|number| calls.get(number).copied()) {
            if let (Some(latest), [(answered_at, _)]) = (latest, &call.answers[..])
                && *answered_at < latest.sent_at
            {
                let (late, early) = (call.number, latest.number);
                faults.push(format!("server {server} did {late}, which was over, after {early}"));
            }
            latest = latest.filter(|it| it.sent_at >= call.sent_at).or(Some(call));
        }
    }
    faults
}

/// How long after each blow there was a result again, shortest first; and the blows after which
/// there never was one.
pub(crate) fn recoveries(ledger: &Ledger) -> (Vec<Duration>, Vec<Blow>) {
    let (mut all, mut never) = (Vec::new(), Vec::new());
    for blow in &ledger.blows {
        match ledger.calls.iter().filter_map(|call| blow.is_survived_by(call)).min() {
            Some(time) => all.push(time),
            None => never.push(*blow),
        }
    }
    all.sort();
    (all, never)
}

/// So many percent of these are no longer; zero without any.
pub(crate) fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// The figures of a storm, for a person.
pub(crate) struct Table<'t> {
    pub(crate) tally: Tally,
    pub(crate) blows: usize,
    pub(crate) parked: u64,
    pub(crate) resumed: u64,
    pub(crate) recoveries: &'t [Duration],
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { calls, done, unknown, refused, lost, doubled, struck_twice } = self.tally;
        let millis = |percent| percentile(self.recoveries, percent).as_millis();
        writeln!(out, "blows         {:>8}", self.blows)?;
        writeln!(out, "calls         {calls:>8}")?;
        writeln!(out, "  done        {done:>8}")?;
        writeln!(out, "  unknown     {unknown:>8}  ({struck_twice} struck twice)")?;
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
    use crate::blows::Victim;

    const fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    /// A call to server 0, sent at its number and answered ten milliseconds later.
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

    /// A blow at server 0.
    fn blow(at: u64) -> Blow {
        Blow::at_server(0, 1, ms(at))
    }

    /// Every look that has a result was one.
    fn ledger(calls: Vec<Call>, record: &[u64]) -> Ledger {
        let is_seen =
            |it: &&Call| it.kind == Kind::Look && it.answers.iter().any(|(_, told)| told.is_done());
        let looks = calls.iter().filter(is_seen).map(|it| it.number).collect();
        let (records, looks) = (vec![record.to_vec(), Vec::new()], vec![looks, Vec::new()]);
        Ledger { calls, blows: Vec::new(), records, looks }
    }

    /// The only fault of this, and what is counted.
    #[track_caller]
    fn only_fault(ledger: &Ledger) -> (Tally, String) {
        let (tally, mut faults) = check(ledger, &Rules::default());
        assert_eq!(faults.len(), 1, "{faults:#?}");
        (tally, faults.remove(0))
    }

    #[test]
    fn a_storm_without_faults_is_counted() {
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
            &[1, 2, 4, 4], // The second of unknown outcome was not done.
        );
        let all = Ledger { blows: vec![blow(5)], ..all };
        let rules = Rules { doomed: [0].into(), ..Rules::default() };
        let (tally, faults) = check(&all, &rules);
        assert_eq!(faults, [""; 0]);
        let expected = Tally { calls: 6, done: 3, unknown: 2, refused: 1, ..Tally::default() };
        assert_eq!(tally, expected);
    }

    #[test]
    fn what_was_done_twice_is_seen_whatever_its_caller_was_told() {
        for told in [done(), unknown()] {
            let mut all = ledger(vec![call(1, Kind::Record, &[told])], &[1, 1]);
            all.blows.push(blow(5));
            let (tally, fault) = only_fault(&all);
            assert_eq!(tally.doubled, 1);
            assert!(fault.starts_with("it was done 2 times"), "{fault}");
        }
    }

    #[test]
    fn what_may_be_done_twice_is_not_done_a_third_time() {
        let of = |kind, times| {
            let mut all = ledger(vec![call(1, kind, &[done()])], &[]);
            let theirs = if kind == Kind::Look { &mut all.looks } else { &mut all.records };
            theirs[0] = vec![1; times];
            all
        };
        for kind in [Kind::Idempotent, Kind::Look] {
            for times in [1, 2] {
                assert_eq!(check(&of(kind, times), &Rules::default()).1, [""; 0], "{kind:?}");
            }
            let (tally, fault) = only_fault(&of(kind, 3));
            assert_eq!(tally.doubled, 1);
            assert!(fault.starts_with("it was done 3 times"), "{fault}");
        }
    }

    #[test]
    fn a_look_that_is_written_down_as_a_change_is_seen() {
        let mut all = ledger(vec![call(1, Kind::Look, &[done()])], &[1]);
        let (_, fault) = only_fault(&all);
        assert_eq!(fault, "1 was done by [0], and never asked for");
        all.records[0].clear();
        all.looks[0].push(2);
        let (_, fault) = only_fault(&all);
        assert_eq!(fault, "2 was done by [0], and never asked for");
    }

    #[test]
    fn what_has_no_answer_or_two_is_seen() {
        let (tally, fault) = only_fault(&ledger(vec![call(1, Kind::Look, &[])], &[]));
        assert_eq!(tally.lost, 1);
        assert!(fault.starts_with("it has no answer"), "{fault}");
        let twice = [done(), unknown()];
        let (tally, fault) = only_fault(&ledger(vec![call(1, Kind::Look, &twice)], &[]));
        assert_eq!(tally.doubled, 1);
        assert!(fault.starts_with("it has more than one answer"), "{fault}");
    }

    #[test]
    fn a_result_of_what_was_not_done_is_seen() {
        for kind in [Kind::Record, Kind::Idempotent, Kind::Look] {
            let mut all = ledger(vec![call(1, kind, &[done()])], &[]);
            all.looks[0].clear();
            let (_, fault) = only_fault(&all);
            assert!(fault.starts_with("it has a result and was not done"), "{fault}");
        }
    }

    #[test]
    fn what_nobody_asked_or_another_server_did_is_seen() {
        let (_, fault) = only_fault(&ledger(Vec::new(), &[9]));
        assert!(fault.starts_with("9 was done by [0]"), "{fault}");
        let mut all = ledger(vec![call(1, Kind::Record, &[done()])], &[]);
        all.records[1].push(1);
        let (_, fault) = only_fault(&all);
        assert!(fault.starts_with("another server did it"), "{fault}");
    }

    #[test]
    fn what_may_be_done_twice_has_a_result_unless_it_was_struck_twice() {
        for kind in [Kind::Idempotent, Kind::Look] {
            let mut all = ledger(vec![call(1000, kind, &[unknown()])], &[]);
            let blow = |server, at| Blow::at_server(server, 1, ms(at));
            // Long before it, elsewhere, after it; and one that hit it.
            all.blows = vec![blow(0, 749), blow(1, 1001), blow(0, 1011), blow(0, 1003)];
            let (_, fault) = only_fault(&all);
            assert!(fault.starts_with("it could have been done again"), "{fault}");
            let rules = Rules { may_be_unknown: true, ..Rules::default() };
            assert_eq!(check(&all, &rules).1, [""; 0]);
            all.blows.push(blow(0, 999)); // Nobody had noticed.
            let (tally, faults) = check(&all, &Rules::default());
            assert_eq!((tally.struck_twice, faults), (1, Vec::new()));
        }
    }

    #[test]
    fn nothing_is_of_unknown_outcome_unless_somebody_was_struck() {
        let every = [
            Rules::default(),
            Rules { doomed: [0].into(), ..Rules::default() },
            Rules { may_be_unknown: true, ..Rules::default() },
        ];
        for kind in [Kind::Record, Kind::Idempotent, Kind::Look] {
            for rules in &every {
                let mut all = ledger(vec![call(1000, kind, &[unknown()])], &[]);
                all.blows = vec![Blow::at_server(1, 1, ms(1001)), blow(1011)];
                let (tally, faults) = check(&all, rules);
                assert_eq!((tally.unknown, faults.len()), (1, 1), "{faults:?}");
                assert!(faults[0].starts_with("nothing can have interrupted it"), "{faults:?}");
            }
        }
        let mut all = ledger(vec![call(1000, Kind::Record, &[unknown()])], &[]);
        all.blows = vec![blow(1010)];
        assert_eq!(check(&all, &Rules::default()).1, [""; 0]);
        // It was back, as this shows, before the call was sent.
        all.calls.push(call(980, Kind::Idempotent, &[done()]));
        all.records[0].push(980);
        all.blows = vec![blow(970)];
        assert!(only_fault(&all).1.starts_with("nothing can have interrupted it"));
    }

    #[test]
    fn a_refusal_and_a_strange_answer_are_seen() {
        let refused = Outcome::Refused("why".to_owned());
        let all = ledger(vec![call(1, Kind::Record, &[refused])], &[]);
        assert!(only_fault(&all).1.starts_with("it was refused"));
        let done_too = Ledger { records: vec![vec![1]], ..all };
        let rules = Rules { doomed: [0].into(), ..Rules::default() };
        assert!(check(&done_too, &rules).1[0].starts_with("it was refused and done"));
        let strange = Outcome::Strange("?".to_owned());
        let all = ledger(vec![call(1, Kind::Look, &[strange])], &[]);
        assert!(only_fault(&all).1.starts_with("it has a strange answer"));
    }

    #[test]
    fn another_order_than_was_asked_for_is_seen() {
        let calls = |line| {
            let all = [1, 2, 3].map(|number| call(number, Kind::Idempotent, &[done()]));
            all.map(|call| Call { line, ..call }).to_vec()
        };
        // What is done again comes later, and that is right.
        let (_, faults) = check(&ledger(calls(Some(4)), &[1, 2, 1, 2, 3]), &Rules::default());
        assert_eq!(faults, [""; 0]);
        let (_, fault) = only_fault(&ledger(calls(Some(4)), &[1, 3, 2]));
        assert_eq!(fault, "server 0 did 3 before 2");
        let (_, faults) = check(&ledger(calls(None), &[1, 3, 2]), &Rules::default());
        assert_eq!(faults, [""; 0]);
        let rules = Rules { unordered: [0].into(), ..Rules::default() };
        assert_eq!(check(&ledger(calls(Some(4)), &[1, 3, 2]), &rules).1, [""; 0]);
    }

    #[test]
    fn what_is_done_after_it_was_answered_is_seen_at_every_server() {
        let calls = || [1, 5, 30].map(|number| call(number, Kind::Idempotent, &[done()])).to_vec();
        let rules = Rules { unordered: [0].into(), ..Rules::default() };
        let faults = |record: &[u64]| check(&ledger(calls(), record), &rules).1;
        assert_eq!(faults(&[5, 1, 30]), [""; 0], "these were under way at the same time");
        assert_eq!(faults(&[1, 30, 5]), ["server 0 did 5, which was over, after 30"]);
        assert_eq!(faults(&[1, 5, 30, 1]), ["server 0 did 1, which was over, after 30"]);
        let lines = calls().into_iter().map(|call| Call { line: None, ..call }).collect();
        assert_eq!(check(&ledger(lines, &[1, 30, 5]), &rules).1.len(), 1, "whoever the client is");
    }

    #[test]
    fn a_recovery_ends_with_the_first_result_of_another_process() {
        let mut all = ledger(
            vec![
                call(100, Kind::Look, &[done()]),
                call(120, Kind::Look, &[unknown()]),
                call(150, Kind::Look, &[Outcome::Done { pid: 8 }]),
                call(130, Kind::Look, &[Outcome::Done { pid: 8 }]),
            ],
            &[],
        );
        let blow = |pid, at| Blow::at_server(0, pid, ms(at));
        let last = blow(8, 170);
        all.blows = vec![blow(7, 105), last];
        assert_eq!(recoveries(&all), (vec![ms(35)], vec![last]));
        // Of a daemon it is the first call that was sent after its end.
        all.blows = vec![Blow { victim: Victim::Daemon, begun_at: ms(125), at: ms(125) }];
        assert_eq!(recoveries(&all), (vec![ms(15)], Vec::new()));
    }

    #[test]
    fn percentiles_are_of_those_that_are_there() {
        let all: Vec<Duration> = (1..=200).map(ms).collect();
        assert_eq!((percentile(&all, 50), percentile(&all, 99)), (ms(100), ms(198)));
        assert_eq!(percentile(&all[..1], 99), ms(1));
        assert_eq!(percentile(&[], 99), ms(0));
    }
}
