//! Every rule, as a table; then that no order of things breaks a promise.

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

const NONE: Evidence = Evidence { calls: 0, has_spoken: false, has_written: false, cpu: None };
const BUSY: Option<(Duration, Duration)> = Some((Duration::from_millis(10), SECOND));
const IDLE: Option<(Duration, Duration)> = Some((Duration::from_millis(1), SECOND));

fn rules() -> HealthRules {
    HealthRules::default()
}

fn failed(evidence: Evidence) -> Observation {
    let outcome = Outcome::Failed("no answer within 5s".to_owned());
    Observation { outcome, evidence, absent: Duration::ZERO }
}

fn answered() -> Observation {
    Observation { outcome: Outcome::Answered, ..failed(NONE) }
}

fn ignored() -> Observation {
    Observation { outcome: Outcome::Ignored, ..failed(NONE) }
}

fn not_made() -> Observation {
    Observation { outcome: Outcome::NotMade("it is not greeted yet".to_owned()), ..failed(NONE) }
}

/// What the first failure of one that answers says.
fn says(seen: Observation) -> Verdict {
    Pulse::new(Habit::Answers).observe(seen, &rules(), false)
}

#[test]
fn a_failed_probe_says_what_the_evidence_says() {
    let with_calls = Evidence { calls: 1, ..NONE };
    let table = [
        ("nothing else is known", NONE, Verdict::Suspect(1)),
        ("it spoke", Evidence { has_spoken: true, ..NONE }, Verdict::Alive),
        ("it wrote, but nobody waits", Evidence { has_written: true, ..NONE }, Verdict::Suspect(1)),
        ("it is busy, but nobody waits", Evidence { cpu: BUSY, ..NONE }, Verdict::Suspect(1)),
        ("it does nothing in a call", with_calls, Verdict::Suspect(1)),
        ("it wakes in a call", Evidence { cpu: IDLE, ..with_calls }, Verdict::Suspect(1)),
        ("it is busy in a call", Evidence { cpu: BUSY, ..with_calls }, Verdict::Alive),
        ("it writes in a call", Evidence { has_written: true, ..with_calls }, Verdict::Alive),
    ];
    for (what, evidence, verdict) in table {
        assert_eq!(says(failed(evidence)), verdict, "{what}");
    }
}

#[test]
fn no_time_at_all_is_no_use_of_it() {
    let never = Evidence { calls: 1, cpu: Some((Duration::ZERO, Duration::ZERO)), ..NONE };
    assert_eq!(says(failed(never)), Verdict::Suspect(1));
}

#[test]
fn only_a_whole_row_of_failures_is_enough() {
    let mut pulse = Pulse::new(Habit::Answers);
    let mut see = |seen| pulse.observe(seen, &rules(), false);
    assert_eq!(see(failed(NONE)), Verdict::Suspect(1));
    assert_eq!(see(failed(NONE)), Verdict::Suspect(2));
    assert_eq!(see(not_made()), Verdict::Nothing, "it neither counts nor ends the row");
    assert_eq!(see(answered()), Verdict::Alive);
    assert_eq!(see(failed(NONE)), Verdict::Suspect(1));
    assert_eq!(see(failed(Evidence { has_spoken: true, ..NONE })), Verdict::Alive);
    assert_eq!(see(failed(NONE)), Verdict::Suspect(1));
    assert_eq!(see(failed(NONE)), Verdict::Suspect(2));
    assert!(matches!(see(failed(NONE)), Verdict::Hung(_)));
}

#[test]
fn a_sleep_of_the_machine_is_no_failure() {
    let absent = |absent| Observation { absent, ..failed(NONE) };
    assert_eq!(says(absent(3 * SECOND)), Verdict::Suspect(1), "a little late");
    assert_eq!(says(absent(4 * SECOND)), Verdict::Nothing);
    assert_eq!(says(absent(Duration::from_hours(8))), Verdict::Nothing);
}

#[test]
fn one_that_ignores_it_is_not_asked_for_long_and_never_blamed() {
    // It answers something else each time, or only when it was asked so early that it does not
    // count; then it may be silent for as long as it likes.
    for later in [ignored(), failed(NONE), failed(Evidence { calls: 1, ..NONE })] {
        let mut pulse = Pulse::default();
        assert_eq!(pulse.observe(ignored(), &rules(), false), Verdict::Alive);
        for _ in 0..3 {
            assert!(pulse.is_worth_asking(&rules()) && !pulse.is_in_doubt(&rules()));
            let verdict = pulse.observe(later.clone(), &rules(), false);
            assert!(matches!(verdict, Verdict::Alive | Verdict::Nothing), "{verdict:?}");
        }
        assert!(!pulse.is_worth_asking(&rules()));
        assert_eq!(pulse.afresh().habit(), Habit::Ignores, "in its next life too");
        // What a file asks for in so many words is what it is judged by.
        let tcp = HealthRules { probe: HealthProbe::Tcp, ..rules() };
        assert!(pulse.is_worth_asking(&tcp));
        assert_eq!(pulse.observe(failed(NONE), &tcp, false), Verdict::Suspect(1));
    }
    // One that has answered once is known to, whatever it ignores later.
    let mut pulse = Pulse::new(Habit::Ignores);
    assert_eq!(pulse.observe(answered(), &rules(), false), Verdict::Alive);
    assert_eq!((pulse.habit(), pulse.is_worth_asking(&rules())), (Habit::Answers, true));
}

#[test]
fn one_that_answers_nothing_at_all_hangs_though_it_never_answered_before() {
    let mut pulse = Pulse::default();
    let mut see = |seen| pulse.observe(seen, &rules(), false);
    assert_eq!(see(failed(NONE)), Verdict::Nothing, "so early it may have no time");
    assert_eq!(see(failed(NONE)), Verdict::Suspect(1));
    assert_eq!(see(failed(Evidence { has_spoken: true, ..NONE })), Verdict::Alive);
    assert_eq!(see(failed(Evidence { calls: 1, cpu: BUSY, ..NONE })), Verdict::Alive);
    assert_eq!(see(failed(NONE)), Verdict::Suspect(1));
    assert_eq!(see(failed(Evidence { calls: 1, ..NONE })), Verdict::Suspect(2));
    assert!(matches!(see(failed(NONE)), Verdict::Hung(_)));
    assert_eq!(pulse.afresh().habit(), Habit::Unknown);
    assert!(pulse.is_worth_asking(&rules()), "the next life is asked as often as it takes");
}

#[test]
fn whether_it_answers_is_found_out_early_and_once() {
    let interval = rules().interval;
    let mut pulse = Pulse::default();
    let mut waits = Vec::new();
    for _ in 0..70 {
        waits.push(pulse.wait(&rules()));
        assert_eq!(pulse.observe(not_made(), &rules(), false), Verdict::Nothing);
    }
    let early = [1, 2, 4, 8, 16, 30, 30].map(Duration::from_secs);
    assert_eq!(waits[..7], early, "while it cannot be asked");
    assert!(waits[7..].iter().all(|wait| *wait == interval));
    assert_eq!(pulse.afresh().wait(&rules()), SECOND, "it was never asked");

    for silence in [failed(NONE), ignored()] {
        let mut ignores = Pulse::default();
        let _ = ignores.observe(silence, &rules(), false);
        assert_eq!((ignores.wait(&rules()), ignores.afresh().wait(&rules())), (interval, interval));
    }
    let mut answers = Pulse::default();
    let _ = answers.observe(answered(), &rules(), false);
    assert_eq!((answers.wait(&rules()), answers.afresh().wait(&rules())), (interval, interval));

    // Who asks more often anyway, or by name, is not asked otherwise.
    let hasty = HealthRules { interval: SECOND / 10, ..rules() };
    assert_eq!(Pulse::default().wait(&hasty), SECOND / 10);
    let tcp = HealthRules { probe: HealthProbe::Tcp, ..rules() };
    assert_eq!(Pulse::default().wait(&tcp), interval);
    // One chance more than the early one is left, whatever `failures` says.
    let strict = HealthRules { failures: 1, ..rules() };
    let mut slow = Pulse::default();
    let _ = slow.observe(ignored(), &strict, false);
    assert!(slow.is_worth_asking(&strict));
}

#[test]
fn one_out_of_sight_is_only_judged_while_nobody_waits_for_it() {
    let with_calls = Evidence { calls: 2, ..NONE };
    let table = [
        ("nobody waits", NONE, Verdict::Suspect(1)),
        (
            "its process is busy, but nobody waits",
            Evidence { cpu: BUSY, ..NONE },
            Verdict::Suspect(1),
        ),
        ("nothing is seen of it in a call", with_calls, Verdict::Nothing),
        (
            "its process does nothing in a call",
            Evidence { cpu: IDLE, ..with_calls },
            Verdict::Nothing,
        ),
        ("it spoke in a call", Evidence { has_spoken: true, ..with_calls }, Verdict::Alive),
        ("it writes in a call", Evidence { has_written: true, ..with_calls }, Verdict::Alive),
    ];
    for (what, evidence, verdict) in table {
        let says = Pulse::new(Habit::Answers).observe(failed(evidence), &rules(), true);
        assert_eq!(says, verdict, "{what}");
    }
    // What is not judged neither counts nor ends the row.
    let mut pulse = Pulse::new(Habit::Answers);
    let mut see = |evidence| pulse.observe(failed(evidence), &rules(), true);
    assert_eq!(see(NONE), Verdict::Suspect(1));
    assert_eq!(see(with_calls), Verdict::Nothing);
    assert_eq!(see(NONE), Verdict::Suspect(2));
    assert!(matches!(see(NONE), Verdict::Hung(_)));
}

#[test]
fn the_reason_can_be_read() {
    let hung = |failures, evidence| {
        let rules = HealthRules { failures, ..rules() };
        let mut pulse = Pulse::new(Habit::Answers);
        loop {
            if let Verdict::Hung(why) = pulse.observe(failed(evidence), &rules, false) {
                return why;
            }
        }
    };
    let all = [
        hung(1, NONE),
        hung(3, Evidence { calls: 1, ..NONE }),
        hung(2, Evidence { calls: 7, ..NONE }),
    ];
    insta::assert_snapshot!(all.join("\n"), @"
    unhealthy: no answer within 5s
    unhealthy: 3 probes in a row failed, the last: no answer within 5s; it has 1 call in flight and does nothing
    unhealthy: 2 probes in a row failed, the last: no answer within 5s; it has 7 calls in flight and does nothing
    ");
    let endless = Outcome::Failed("x".repeat(1 << 20));
    let rules = HealthRules { failures: 1, ..rules() };
    let seen = Observation { outcome: endless, ..failed(NONE) };
    let Verdict::Hung(why) = Pulse::new(Habit::Answers).observe(seen, &rules, false) else {
        panic!()
    };
    assert!(why.len() < 400);
}

fn any_evidence() -> impl Strategy<Value = Evidence> {
    let cpu = prop_oneof![Just(None), Just(BUSY), Just(IDLE)];
    (0..2_u32, any::<bool>(), any::<bool>(), cpu).prop_map(
        |(calls, has_spoken, has_written, cpu)| Evidence { calls, has_spoken, has_written, cpu },
    )
}

fn any_observation() -> impl Strategy<Value = Observation> {
    let outcome = prop_oneof![
        1 => Just(Outcome::Answered),
        1 => Just(Outcome::Ignored),
        4 => Just(Outcome::Failed("no answer".to_owned())),
        1 => Just(Outcome::NotMade("no way".to_owned())),
    ];
    let absent = prop_oneof![5 => Just(Duration::ZERO), 1 => Just(Duration::from_hours(1))];
    (outcome, any_evidence(), absent).prop_map(|(outcome, evidence, absent)| Observation {
        outcome,
        evidence,
        absent,
    })
}

/// Whether it counts against a server here, by the words of the design.
fn counts(seen: &Observation) -> bool {
    let Evidence { calls, has_spoken, has_written, cpu } = seen.evidence;
    let is_alive = has_spoken || calls > 0 && (has_written || cpu == BUSY);
    matches!(seen.outcome, Outcome::Failed(_)) && seen.absent.is_zero() && !is_alive
}

proptest! {
    /// Whatever comes, a server is only ended after `failures` probes that count, with none in
    /// between that was answered, never for the early one, and never if it has answered other
    /// things and no probe.
    #[test]
    fn nothing_is_ended_without_a_row_of_failures(
        history in proptest::collection::vec(any_observation(), 0..40),
        failures in 1..5_u32,
        before in prop_oneof![Just(Habit::Unknown), Just(Habit::Answers), Just(Habit::Ignores)],
    ) {
        let rules = HealthRules { failures, ..HealthRules::default() };
        let mut pulse = Pulse::new(before);
        let (mut row, mut habit, mut is_tried) = (0, before, false);
        for seen in history {
            let is_early = habit == Habit::Unknown && !is_tried;
            let against = counts(&seen) && habit != Habit::Ignores && !is_early;
            let verdict = pulse.observe(seen.clone(), &rules, false);
            is_tried |= !matches!(seen.outcome, Outcome::NotMade(_));
            habit = match (&seen.outcome, habit) {
                (Outcome::Answered, _) => Habit::Answers,
                (Outcome::Ignored, Habit::Unknown) => Habit::Ignores,
                (_, habit) => habit,
            };
            row = match &verdict {
                Verdict::Alive => 0,
                _ if against => row + 1,
                _ => row,
            };
            prop_assert_eq!(matches!(verdict, Verdict::Hung(_)), against && row >= failures);
            prop_assert_eq!(pulse.habit(), habit);
            if matches!(seen.outcome, Outcome::Answered | Outcome::Ignored) {
                prop_assert_eq!(verdict, Verdict::Alive);
            }
        }
    }
}
