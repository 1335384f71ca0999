//! The transition table: the effect of every event in every state, as a reviewed snapshot.

use xy_config::settings::{REMOTE_BACKOFF_MAX, Start};

use super::*;

/// The time of all events. Instants are shown in seconds since the origin.
const NOW: Duration = Duration::from_secs(100);

struct Row {
    name: &'static str,
    life: Life,
}

/// Returns a tally with a few restarts, far from all limits.
fn some_tally(origin: Instant) -> Tally {
    let recent_exits = [origin + Duration::from_secs(90)].into();
    Tally { restart_count: 3, restarts_total: 7, in_a_row: 2, recent_exits, ..Tally::default() }
}

/// Returns the states in which one more failure may exceed a limit.
fn exhausted_rows(origin: Instant) -> Vec<Row> {
    let at = |seconds| origin + Duration::from_secs(seconds);
    let starting = State::Starting { launched_at: at(95), ready_by: at(105) };
    let running = State::Running { launched_at: at(95), ready_at: at(96) };
    let stable = State::Running { launched_at: at(5), ready_at: at(40) };
    let never_ready = State::Stopping { overdue_at: Some(at(110)), then: AfterStop::CountFailure };
    let last_attempt = Tally { in_a_row: 5, ..some_tally(origin) };
    let no_exit_left = Tally { recent_exits: [at(90); 5].into(), ..some_tally(origin) };
    let one_attempt_left = Tally { in_a_row: 4, ..some_tally(origin) };
    let one_exit_left = Tally { recent_exits: [at(90); 4].into(), ..some_tally(origin) };
    let slid_out = Tally { recent_exits: [at(40); 5].into(), ..some_tally(origin) };
    let forgiven = Tally { probe_forgiven: true, ..some_tally(origin) };
    let row = |name, state, tally: &Tally| {
        let (wanted, reason) = (Wanted::Up, Reason::NotStarted);
        Row { name, life: Life { state, wanted, tally: tally.clone(), reason } }
    };
    vec![
        row("starting, last attempt", starting, &last_attempt),
        row("running, last attempt", running, &last_attempt),
        row("stable, last attempt", stable, &last_attempt),
        row("never ready, last attempt", never_ready, &last_attempt),
        row("starting, no exit left", starting, &no_exit_left),
        row("running, no exit left", running, &no_exit_left),
        row("stable, no exit left", stable, &no_exit_left),
        row("never ready, no exit left", never_ready, &no_exit_left),
        row("running, one attempt left", running, &one_attempt_left),
        row("running, one exit left", running, &one_exit_left),
        row("running, exits slid out", running, &slid_out),
        row("starting, forgiven", starting, &forgiven),
        row("running, forgiven", running, &forgiven),
    ]
}

/// Returns all states, with the variants that matter.
fn rows(origin: Instant) -> Vec<Row> {
    let at = |seconds| origin + Duration::from_secs(seconds);
    let row = |name, state, wanted| {
        let tally = some_tally(origin);
        let life = Life { state, wanted, tally, reason: Reason::NotStarted };
        Row { name, life }
    };
    let running = |ready| State::Running { launched_at: at(5), ready_at: at(ready) };
    let stopping = |then| State::Stopping { overdue_at: Some(at(110)), then };
    let overdue = |then| State::Stopping { overdue_at: None, then };
    let starting = State::Starting { launched_at: at(95), ready_by: at(105) };
    let because = |row: Row, reason| Row { life: Life { reason, ..row.life }, ..row };
    let waits = row("backoff, engine away", State::Backoff { retry_at: at(104) }, Wanted::Up);
    let never = row("stopping, never ready", stopping(AfterStop::CountFailure), Wanted::Up);
    let within = Duration::from_secs(10);
    vec![
        because(waits, Reason::EngineUnavailable(engine_unavailable())),
        because(never, Reason::NeverReady { within, unparsed_output: None }),
        row("stopped (up)", State::Stopped, Wanted::Up),
        row("stopped (down)", State::Stopped, Wanted::Down),
        row("starting", starting, Wanted::Up),
        row("running", running(99), Wanted::Up),
        row("running, stable", running(40), Wanted::Up),
        row("backoff", State::Backoff { retry_at: at(104) }, Wanted::Up),
        row("stopping, stay down", stopping(AfterStop::StayDown), Wanted::Down),
        row("stopping, start again", stopping(AfterStop::StartAgain), Wanted::Up),
        row("stopping, count failure", stopping(AfterStop::CountFailure), Wanted::Up),
        row("stopping, give up", stopping(AfterStop::GiveUp), Wanted::Up),
        row("stopping, retire", stopping(AfterStop::Retire), Wanted::Up),
        row("overdue, stay down", overdue(AfterStop::StayDown), Wanted::Down),
        row("overdue, start again", overdue(AfterStop::StartAgain), Wanted::Up),
        row("overdue, count failure", overdue(AfterStop::CountFailure), Wanted::Up),
        row("overdue, retire", overdue(AfterStop::Retire), Wanted::Up),
        row("failed (up)", State::Failed, Wanted::Up),
        row("failed (down)", State::Failed, Wanted::Down),
        row("retired", State::Retired, Wanted::Up),
    ]
}

fn events() -> Vec<(&'static str, Event)> {
    vec![
        ("StartRequested", Event::StartRequested),
        ("StopRequested", Event::StopRequested),
        ("RestartRequested", Event::RestartRequested),
        ("RepairRequested", Event::RepairRequested("it hangs".into())),
        ("RetireRequested", Event::RetireRequested(Retirement::Removed)),
        ("WakeRequested", Event::WakeRequested),
        ("Idle", Event::Idle("not used for 10m".into())),
        ("ProcessChanged", Event::ProcessChanged),
        ("RulesChanged", Event::RulesChanged),
        ("LaunchFailed for good", Event::LaunchFailed(permanent_fault())),
        ("LaunchFailed for now", Event::LaunchFailed(transient_fault())),
        ("EngineUnavailable", Event::EngineUnavailable(engine_unavailable())),
        ("Ready", Event::Ready),
        ("ProtocolError", Event::ProtocolError("it speaks gibberish".into())),
        ("Unhealthy", Event::Unhealthy("unhealthy: no answer".into())),
        ("Unreachable", Event::Unreachable("connection refused".into())),
        ("Unrecoverable", Event::Unrecoverable("401 Unauthorized".into())),
        ("Exited 0", clean_exit()),
        ("Exited 1", crash()),
        ("Exited SIGKILL", Event::Exited(KILLED)),
        ("ExitedOnProbe 1", Event::ExitedOnProbe(Exit::code(1))),
        ("ExitedOnProbe SIGKILL", Event::ExitedOnProbe(KILLED)),
        ("ProtocolErrorOnProbe", Event::ProtocolErrorOnProbe("it closed its stdout".into())),
        ("WriteInterrupted", Event::WriteInterrupted),
        ("RestartRequired", Event::RestartRequired("to speak legacy MCP".into())),
        ("DeadlineReached", Event::DeadlineReached),
    ]
}

fn shown(state: State, origin: Instant) -> String {
    let at = |instant: Instant| format!("@{}", (instant - origin).as_secs_f64());
    match state {
        State::Stopped => "stopped".into(),
        State::Starting { ready_by, .. } => format!("starting, ready by {}", at(ready_by)),
        State::Running { ready_at, .. } => format!("running since {}", at(ready_at)),
        State::Backoff { retry_at } => format!("backoff until {}", at(retry_at)),
        State::Stopping { overdue_at: Some(overdue_at), then } => {
            format!("stopping until {}, {then:?}", at(overdue_at))
        }
        State::Stopping { overdue_at: None, then } => format!("overdue, {then:?}"),
        State::Asleep { not_before: None } => "asleep".into(),
        State::Asleep { not_before: Some(not_before) } => {
            format!("asleep, not before {}", at(not_before))
        }
        State::Failed => "failed".into(),
        State::Retired => "retired".into(),
    }
}

/// Returns the difference after an event; empty if there is none.
fn outcome(before: &Life, after: &Life, effect: Option<Effect>, origin: Instant) -> String {
    let mut text = String::new();
    if after.state != before.state || after.reason != before.reason {
        let _ = write!(text, "{:<34}", shown(after.state, origin));
        let effect = effect.map_or(String::new(), |effect| format!("then {effect:?}"));
        let _ = write!(text, " {effect:<11} | {}", after.reason);
    } else {
        assert_eq!(effect, None, "no effect without a change");
        if after != before {
            text.push_str("same");
        }
    }
    if after.wanted != before.wanted {
        let _ = write!(text, " | wanted {:?}", after.wanted);
    }
    if after.tally != before.tally {
        let Tally {
            restart_count, restarts_total, in_a_row, recent_exits, unreachable_count, ..
        } = &after.tally;
        let exits = recent_exits.len();
        let _ = write!(
            text,
            " | count {restart_count}, total {restarts_total}, row {in_a_row}, exits {exits}"
        );
        if *unreachable_count != before.tally.unreachable_count {
            let _ = write!(text, ", unreached {unreachable_count}");
        }
        if after.tally.probe_forgiven != before.tally.probe_forgiven {
            let is = if after.tally.probe_forgiven { "" } else { "not " };
            let _ = write!(text, ", {is}forgiven");
        }
    }
    text
}

/// Returns the states in which remote servers differ.
fn remote_rows(origin: Instant) -> Vec<Row> {
    let at = |seconds| origin + Duration::from_secs(seconds);
    let row = |name, state, unreachable_count| {
        let tally = Tally { unreachable_count, ..some_tally(origin) };
        let reason = Reason::Unreachable("no route to it".into());
        Row { name, life: Life { state, wanted: Wanted::Up, tally, reason } }
    };
    let starting = State::Starting { launched_at: at(95), ready_by: at(105) };
    let running = |ready| State::Running { launched_at: at(5), ready_at: at(ready) };
    let stopping = |overdue_at, then| State::Stopping { overdue_at, then };
    vec![
        row("starting", starting, 0),
        row("starting, 3 unreached", starting, 3),
        row("starting, 9 unreached", starting, 9),
        row("running", running(99), 3),
        row("running, stable", running(40), 3),
        row("backoff", State::Backoff { retry_at: at(104) }, 3),
        row("stopping, try again", stopping(Some(at(110)), AfterStop::TryAgain), 3),
        row("overdue, try again", stopping(None, AfterStop::TryAgain), 3),
        row("stopping, stay down", stopping(Some(at(110)), AfterStop::StayDown), 3),
    ]
}

/// Returns the states in which sleeping servers differ.
fn sleepy_rows(origin: Instant) -> Vec<Row> {
    let at = |seconds| origin + Duration::from_secs(seconds);
    let row = |name, state, reason: &Reason| {
        let (tally, reason) = (some_tally(origin), reason.clone());
        Row { name, life: Life { state, wanted: Wanted::Up, tally, reason } }
    };
    let starting = State::Starting { launched_at: at(95), ready_by: at(105) };
    let running = |ready| State::Running { launched_at: at(5), ready_at: at(ready) };
    let asleep = |not_before| State::Asleep { not_before };
    let stopping = |overdue_at, then| State::Stopping { overdue_at, then };
    let (idle, crashed) = (Reason::Idle("not used".into()), Reason::Exited(KILLED));
    vec![
        row("asleep", asleep(None), &idle),
        row("asleep after a death", asleep(Some(at(104))), &crashed),
        row("asleep, delay over", asleep(Some(at(100))), &crashed),
        row("starting", starting, &Reason::WakeRequested),
        row("running", running(99), &Reason::Ready),
        row("running, stable", running(40), &Reason::Ready),
        row("backoff", State::Backoff { retry_at: at(104) }, &crashed),
        row("stopping, sleep", stopping(Some(at(110)), AfterStop::Sleep), &idle),
        row("overdue, sleep", stopping(None, AfterStop::Sleep), &idle),
        row(
            "stopping, woken",
            stopping(Some(at(110)), AfterStop::StartAgain),
            &Reason::WakeRequested,
        ),
        row("never ready", stopping(Some(at(110)), AfterStop::CountFailure), &idle),
    ]
}

fn table(
    rows: fn(Instant) -> Vec<Row>,
    policy: RestartPolicy,
    is_shown: impl Fn(&Row, &Event) -> bool,
) -> String {
    let rules = rules(|it| it.restart.policy = policy);
    // A process is never unreachable.
    let is_possible = |event: &Event| !matches!(event, Event::Unreachable(_));
    table_of(rows, &rules, false, |row, event| is_possible(event) && is_shown(row, event))
}

fn table_of(
    rows: fn(Instant) -> Vec<Row>,
    rules: &Rules,
    is_remote: bool,
    is_shown: impl Fn(&Row, &Event) -> bool,
) -> String {
    let origin = any_instant();
    let context = Context { now: origin + NOW, random: 255, is_remote };
    let mut text = String::new();
    for row in rows(origin) {
        let mut same = Vec::new();
        for (event_name, event) in events() {
            if !is_shown(&row, &event) {
                continue;
            }
            let (after, effect) = on_event(row.life.clone(), event, rules, context);
            match outcome(&row.life, &after, effect, origin) {
                outcome if outcome.is_empty() => same.push(event_name),
                outcome => {
                    let _ = writeln!(text, "{:<26} + {event_name:<21} -> {outcome}", row.name);
                }
            }
        }
        if !same.is_empty() {
            let _ = writeln!(text, "{:<26} + {} -> same", row.name, same.join(", "));
        }
    }
    text
}

/// Returns true if the restart policy matters, which is so for unexpected ends only.
fn policy_matters(row: &Row, event: &Event) -> bool {
    let can_end = match row.life.state {
        State::Starting { .. } | State::Running { .. } => true,
        State::Stopping { then, .. } => then == AfterStop::CountFailure,
        _ => false,
    };
    can_end
        && matches!(
            event,
            Event::Exited(_)
                | Event::ExitedOnProbe(_)
                | Event::LaunchFailed(_)
                | Event::EngineUnavailable(_)
        )
}

#[test]
fn transition_table_matches_its_snapshot() {
    insta::assert_snapshot!(table(rows, RestartPolicy::OnFailure, |_, _| true));
}

#[test]
fn rows_specific_to_always() {
    insta::assert_snapshot!(table(rows, RestartPolicy::Always, policy_matters));
}

#[test]
fn rows_specific_to_never() {
    insta::assert_snapshot!(table(rows, RestartPolicy::Never, policy_matters));
}

#[test]
fn rows_near_a_limit_match_their_snapshot() {
    insta::assert_snapshot!(table(exhausted_rows, RestartPolicy::OnFailure, policy_matters));
}

#[test]
fn rows_of_remote_servers() {
    let rules = rules(|it| {
        it.restart.backoff_max = REMOTE_BACKOFF_MAX;
        it.restart.policy = RestartPolicy::Never; // No policy and no limit applies.
        it.restart.max_attempts = 1;
        it.restart.max_retries_per_minute = 1;
    });
    let is_shown = |_: &Row, event: &Event| {
        !matches!(
            event,
            Event::ProtocolError(_)
                | Event::WriteInterrupted
                | Event::RestartRequired(_)
                | Event::ExitedOnProbe(_)
                | Event::ProtocolErrorOnProbe(_)
        )
    };
    insta::assert_snapshot!(table_of(remote_rows, &rules, true, is_shown));
}

#[test]
fn rows_of_lazy_servers() {
    let rules = rules(|it| it.start = Start::Lazy);
    let is_shown =
        |_: &Row, event: &Event| !matches!(event, Event::Unreachable(_) | Event::Unrecoverable(_));
    insta::assert_snapshot!(table_of(sleepy_rows, &rules, false, is_shown));
}

/// A server that starts with the daemon and sleeps when idle differs after an exit. A server
/// without `idle-stop` does not stay asleep.
#[test]
fn rows_of_sleeping_servers_that_are_not_lazy() {
    let is_shown = |_: &Row, event: &Event| {
        use Event::{Exited, Idle, ProcessChanged, RulesChanged, WakeRequested};
        matches!(event, Exited(_) | Idle(_) | ProcessChanged | RulesChanged | WakeRequested)
    };
    let sleeps = rules(|it| it.idle_stop = Some(Duration::from_mins(10)));
    let never = rules(|_| {});
    let both = [sleeps, never].map(|rules| table_of(sleepy_rows, &rules, false, is_shown));
    insta::assert_snapshot!(both.join("\nand without idle-stop:\n"));
}

#[test]
fn other_rows_are_equal_under_every_policy() {
    let rest = |policy| table(rows, policy, |row, event| !policy_matters(row, event));
    assert_eq!(rest(RestartPolicy::OnFailure), rest(RestartPolicy::Always));
    assert_eq!(rest(RestartPolicy::OnFailure), rest(RestartPolicy::Never));
}
