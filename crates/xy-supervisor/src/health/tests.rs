//! Each rule of the health verdict, then properties over random histories.

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

const NONE: Evidence =
    Evidence { calls: 0, has_sent_message: false, has_written_output: false, cpu: None };
const BUSY: Option<(Duration, Duration)> = Some((Duration::from_millis(10), SECOND));
const IDLE: Option<(Duration, Duration)> = Some((Duration::from_millis(1), SECOND));

fn rules() -> HealthRules {
    HealthRules::default()
}

fn failed(evidence: Evidence) -> Observation {
    let outcome = Outcome::Failed("no answer within 5s".to_owned());
    Observation { outcome, evidence, unobserved: Duration::ZERO }
}

fn answered() -> Observation {
    Observation { outcome: Outcome::Answered, ..failed(NONE) }
}

fn ignored() -> Observation {
    Observation { outcome: Outcome::Ignored, ..failed(NONE) }
}

fn not_probed() -> Observation {
    Observation { outcome: Outcome::NotProbed("it is not greeted yet".to_owned()), ..failed(NONE) }
}

/// Returns the verdict of the first observation of a server that supports probes.
fn first_verdict(observation: Observation) -> Verdict {
    HealthTracker::new(ProbeSupport::Supported).observe(observation, &rules(), false)
}

/// Returns the reason if the first failure of a server is enough.
fn first_reason(observation: Observation) -> String {
    let rules = HealthRules { failures: 1, ..rules() };
    match HealthTracker::new(ProbeSupport::Supported).observe(observation, &rules, false) {
        Verdict::Hung(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn failed_probe_is_judged_by_evidence() {
    let with_calls = Evidence { calls: 1, ..NONE };
    let table = [
        ("no evidence", NONE, Verdict::Suspect(1)),
        ("sent a message", Evidence { has_sent_message: true, ..NONE }, Verdict::Alive),
        (
            "wrote output without a call",
            Evidence { has_written_output: true, ..NONE },
            Verdict::Suspect(1),
        ),
        ("busy without a call", Evidence { cpu: BUSY, ..NONE }, Verdict::Suspect(1)),
        ("inactive in a call", with_calls, Verdict::Suspect(1)),
        ("almost idle in a call", Evidence { cpu: IDLE, ..with_calls }, Verdict::Suspect(1)),
        ("busy in a call", Evidence { cpu: BUSY, ..with_calls }, Verdict::Alive),
        (
            "wrote output in a call",
            Evidence { has_written_output: true, ..with_calls },
            Verdict::Alive,
        ),
    ];
    for (case, evidence, verdict) in table {
        assert_eq!(first_verdict(failed(evidence)), verdict, "{case}");
    }
}

#[test]
fn empty_time_span_is_not_busy() {
    let never = Evidence { calls: 1, cpu: Some((Duration::ZERO, Duration::ZERO)), ..NONE };
    assert_eq!(first_verdict(failed(never)), Verdict::Suspect(1));
}

#[test]
fn server_hangs_after_enough_failures_in_a_row() {
    let mut tracker = HealthTracker::new(ProbeSupport::Supported);
    let mut observe = |observation| tracker.observe(observation, &rules(), false);
    assert_eq!(observe(failed(NONE)), Verdict::Suspect(1));
    assert_eq!(observe(failed(NONE)), Verdict::Suspect(2));
    assert_eq!(observe(not_probed()), Verdict::Inconclusive, "it neither counts nor resets");
    assert_eq!(observe(answered()), Verdict::Alive);
    assert_eq!(observe(failed(NONE)), Verdict::Suspect(1));
    assert_eq!(observe(failed(Evidence { has_sent_message: true, ..NONE })), Verdict::Alive);
    assert_eq!(observe(failed(NONE)), Verdict::Suspect(1));
    assert_eq!(observe(failed(NONE)), Verdict::Suspect(2));
    assert!(matches!(observe(failed(NONE)), Verdict::Hung(_)));
}

#[test]
fn suspended_machine_is_no_failure() {
    let unobserved = |unobserved| Observation { unobserved, ..failed(NONE) };
    assert_eq!(first_verdict(unobserved(3 * SECOND)), Verdict::Suspect(1), "slightly late");
    assert_eq!(first_verdict(unobserved(4 * SECOND)), Verdict::Inconclusive);
    assert_eq!(first_verdict(unobserved(Duration::from_hours(8))), Verdict::Inconclusive);
}

#[test]
fn program_without_probe_support_is_never_blamed() {
    // The server answers another request each time, or only during the early probe. After that
    // its silence does not count.
    for later in [ignored(), failed(NONE), failed(Evidence { calls: 1, ..NONE })] {
        let mut tracker = HealthTracker::default();
        assert_eq!(tracker.observe(ignored(), &rules(), false), Verdict::Alive);
        for _ in 0..3 {
            assert!(tracker.should_probe(&rules()) && !tracker.is_support_unknown(&rules()));
            let verdict = tracker.observe(later.clone(), &rules(), false);
            assert!(matches!(verdict, Verdict::Alive | Verdict::Inconclusive), "{verdict:?}");
        }
        assert!(!tracker.should_probe(&rules()));
        let next = tracker.for_new_life();
        assert_eq!(next.probe_support(), ProbeSupport::Unsupported, "in its next life too");
        // A probe that a file configures always counts.
        let tcp = HealthRules { probe: HealthProbe::Tcp, ..rules() };
        assert!(tracker.should_probe(&tcp));
        assert_eq!(tracker.observe(failed(NONE), &tcp, false), Verdict::Suspect(1));
    }
    // One answer proves support, whatever the server ignores later.
    let mut tracker = HealthTracker::new(ProbeSupport::Unsupported);
    assert_eq!(tracker.observe(answered(), &rules(), false), Verdict::Alive);
    assert_eq!(tracker.probe_support(), ProbeSupport::Supported);
    assert!(tracker.should_probe(&rules()));
}

#[test]
fn server_that_never_answered_can_hang() {
    let mut tracker = HealthTracker::default();
    let mut observe = |observation| tracker.observe(observation, &rules(), false);
    assert_eq!(observe(failed(NONE)), Verdict::Inconclusive, "the early probe");
    assert_eq!(observe(failed(NONE)), Verdict::Suspect(1));
    assert_eq!(observe(failed(Evidence { has_sent_message: true, ..NONE })), Verdict::Alive);
    assert_eq!(observe(failed(Evidence { calls: 1, cpu: BUSY, ..NONE })), Verdict::Alive);
    assert_eq!(observe(failed(NONE)), Verdict::Suspect(1));
    assert_eq!(observe(failed(Evidence { calls: 1, ..NONE })), Verdict::Suspect(2));
    assert!(matches!(observe(failed(NONE)), Verdict::Hung(_)));
    assert_eq!(tracker.for_new_life().probe_support(), ProbeSupport::Unknown);
    assert!(tracker.should_probe(&rules()), "the next life is probed as long as needed");
}

#[test]
fn early_probe_is_sent_once() {
    let interval = rules().interval;
    let mut tracker = HealthTracker::default();
    let mut delays = Vec::new();
    for _ in 0..70 {
        delays.push(tracker.next_delay(&rules()));
        assert_eq!(tracker.observe(not_probed(), &rules(), false), Verdict::Inconclusive);
    }
    let early = [1, 2, 4, 8, 16, 30, 30].map(Duration::from_secs);
    assert_eq!(delays[..7], early, "while no probe can be sent");
    assert!(delays[7..].iter().all(|delay| *delay == interval));
    assert_eq!(tracker.for_new_life().next_delay(&rules()), SECOND, "no probe was sent");

    for silence in [failed(NONE), ignored()] {
        let mut ignores = HealthTracker::default();
        let _ = ignores.observe(silence, &rules(), false);
        assert_eq!(
            (ignores.next_delay(&rules()), ignores.for_new_life().next_delay(&rules())),
            (interval, interval)
        );
    }
    let mut answers = HealthTracker::default();
    let _ = answers.observe(answered(), &rules(), false);
    assert_eq!(
        (answers.next_delay(&rules()), answers.for_new_life().next_delay(&rules())),
        (interval, interval)
    );

    // A shorter interval, or a probe that a file configures, needs no early probe.
    let hasty = HealthRules { interval: SECOND / 10, ..rules() };
    assert_eq!(HealthTracker::default().next_delay(&hasty), SECOND / 10);
    let tcp = HealthRules { probe: HealthProbe::Tcp, ..rules() };
    assert_eq!(HealthTracker::default().next_delay(&tcp), interval);
    // A server is probed at least once after the early probe, whatever `failures` is.
    let strict = HealthRules { failures: 1, ..rules() };
    let mut slow = HealthTracker::default();
    let _ = slow.observe(ignored(), &strict, false);
    assert!(slow.should_probe(&strict));
}

#[test]
fn unobservable_server_with_calls_is_not_judged() {
    let with_calls = Evidence { calls: 2, ..NONE };
    let table = [
        ("no call", NONE, Verdict::Suspect(1)),
        ("local process busy without a call", Evidence { cpu: BUSY, ..NONE }, Verdict::Suspect(1)),
        ("no evidence in a call", with_calls, Verdict::Inconclusive),
        (
            "local process idle in a call",
            Evidence { cpu: IDLE, ..with_calls },
            Verdict::Inconclusive,
        ),
        (
            "sent a message in a call",
            Evidence { has_sent_message: true, ..with_calls },
            Verdict::Alive,
        ),
        (
            "wrote output in a call",
            Evidence { has_written_output: true, ..with_calls },
            Verdict::Alive,
        ),
    ];
    for (case, evidence, verdict) in table {
        let mut tracker = HealthTracker::new(ProbeSupport::Supported);
        assert_eq!(tracker.observe(failed(evidence), &rules(), true), verdict, "{case}");
    }
    // An inconclusive probe neither counts nor resets.
    let mut tracker = HealthTracker::new(ProbeSupport::Supported);
    let mut observe = |evidence| tracker.observe(failed(evidence), &rules(), true);
    assert_eq!(observe(NONE), Verdict::Suspect(1));
    assert_eq!(observe(with_calls), Verdict::Inconclusive);
    assert_eq!(observe(NONE), Verdict::Suspect(2));
    assert!(matches!(observe(NONE), Verdict::Hung(_)));
}

#[test]
fn reason_names_failures_and_calls() {
    let hung = |failures, evidence| {
        let rules = HealthRules { failures, ..rules() };
        let mut tracker = HealthTracker::new(ProbeSupport::Supported);
        loop {
            if let Verdict::Hung(why) = tracker.observe(failed(evidence), &rules, false) {
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
    unhealthy: 3 probes in a row failed, the last: no answer within 5s; it has 1 call in flight and is idle
    unhealthy: 2 probes in a row failed, the last: no answer within 5s; it has 7 calls in flight and is idle
    ");
    let endless = Outcome::Failed("x".repeat(1 << 20));
    assert!(first_reason(Observation { outcome: endless, ..failed(NONE) }).len() < 400);
}

fn any_evidence() -> impl Strategy<Value = Evidence> {
    let cpu = prop_oneof![Just(None), Just(BUSY), Just(IDLE)];
    (0..2_u32, any::<bool>(), any::<bool>(), cpu).prop_map(
        |(calls, has_sent_message, has_written_output, cpu)| Evidence {
            calls,
            has_sent_message,
            has_written_output,
            cpu,
        },
    )
}

fn any_observation() -> impl Strategy<Value = Observation> {
    let outcome = prop_oneof![
        1 => Just(Outcome::Answered),
        1 => Just(Outcome::Ignored),
        4 => Just(Outcome::Failed("no answer".to_owned())),
        1 => Just(Outcome::NotProbed("no way".to_owned())),
    ];
    let unobserved = prop_oneof![5 => Just(Duration::ZERO), 1 => Just(Duration::from_hours(1))];
    (outcome, any_evidence(), unobserved).prop_map(|(outcome, evidence, unobserved)| Observation {
        outcome,
        evidence,
        unobserved,
    })
}

/// Returns true if the observation counts as a failure, as the design describes it.
fn counts(observation: &Observation) -> bool {
    let Evidence { calls, has_sent_message, has_written_output, cpu } = observation.evidence;
    let is_alive = has_sent_message || calls > 0 && (has_written_output || cpu == BUSY);
    let has_failed = matches!(observation.outcome, Outcome::Failed(_));
    has_failed && observation.unobserved.is_zero() && !is_alive
}

proptest! {
    /// A server is only ended after `failures` probes that count, with no answered probe in
    /// between. The early probe never counts, nor does any probe of a server without support.
    #[test]
    fn server_hangs_only_after_enough_failures(
        history in proptest::collection::vec(any_observation(), 0..40),
        failures in 1..5_u32,
        before in prop_oneof![Just(ProbeSupport::Unknown), Just(ProbeSupport::Supported), Just(ProbeSupport::Unsupported)],
    ) {
        let rules = HealthRules { failures, ..HealthRules::default() };
        let mut tracker = HealthTracker::new(before);
        let (mut row, mut probe_support, mut early_probe_done) = (0, before, false);
        for observation in history {
            let is_early = probe_support == ProbeSupport::Unknown && !early_probe_done;
            let is_failure =
                counts(&observation) && probe_support != ProbeSupport::Unsupported && !is_early;
            let verdict = tracker.observe(observation.clone(), &rules, false);
            early_probe_done |= !matches!(observation.outcome, Outcome::NotProbed(_));
            probe_support = match (&observation.outcome, probe_support) {
                (Outcome::Answered, _) => ProbeSupport::Supported,
                (Outcome::Ignored, ProbeSupport::Unknown) => ProbeSupport::Unsupported,
                (_, probe_support) => probe_support,
            };
            row = match &verdict {
                Verdict::Alive => 0,
                _ if is_failure => row + 1,
                _ => row,
            };
            prop_assert_eq!(matches!(verdict, Verdict::Hung(_)), is_failure && row >= failures);
            prop_assert_eq!(tracker.probe_support(), probe_support);
            if matches!(observation.outcome, Outcome::Answered | Outcome::Ignored) {
                prop_assert_eq!(verdict, Verdict::Alive);
            }
        }
    }
}
