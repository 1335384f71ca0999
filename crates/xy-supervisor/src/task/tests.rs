//! Waiting, order and cancellation, on paused time and without a process.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::time::{Instant, advance, sleep, timeout};
use xy_config::settings::{RestartPolicy, ServerSettings};
use xy_protocol::server::{ServerState, Wanted};

use super::{Parts, Task};
use crate::fake::{
    FakeLauncher, SECOND, Script, container_settings, permanent_fault, process_of, settings,
    steady, transient_fault,
};
use crate::instance::{
    ChangeKind, Gone, InstanceHandle, InstanceKey, Snapshot, StateChange, TRANSITIONS_KEPT,
};
use crate::launch::{Ask, Instance, Launch, LaunchOrder, News};
use crate::lifecycle::{Event, Exit, LaunchFault, Reason, Retirement, STOP_MARGIN, State};
use crate::logs::LogBook;

const LIVES: Script = Script::Lives { stops_in: Duration::from_secs(1) };

/// More than any play here takes.
const AGES: Duration = Duration::from_hours(1);

fn some_settings(change: impl FnOnce(&mut ServerSettings)) -> ServerSettings {
    let mut settings = settings("github");
    change(&mut settings);
    settings
}

fn parts(launcher: &FakeLauncher, settings: ServerSettings, wanted: Wanted) -> Parts {
    Parts {
        key: InstanceKey::shared(settings.name.clone()),
        settings: Arc::new(settings),
        wanted,
        launcher: Arc::new(launcher.clone()),
        logs: Arc::new(LogBook::default()),
        changes: broadcast::Sender::new(1024),
        before: super::Before::Nothing,
    }
}

fn spawn(parts: Parts) -> InstanceHandle {
    let (task, handle) = Task::new(parts);
    tokio::spawn(task.run());
    handle
}

/// A server that is wanted up, with default rules.
fn up(launcher: &FakeLauncher) -> InstanceHandle {
    spawn(parts(launcher, settings("github"), Wanted::Up))
}

/// A server that nobody has started yet, with default rules.
fn down(launcher: &FakeLauncher) -> InstanceHandle {
    spawn(parts(launcher, settings("github"), Wanted::Down))
}

async fn reaches(server: &InstanceHandle, state: ServerState) {
    waits_until(server, |snapshot| snapshot.state() == state).await;
}

async fn settles(server: &InstanceHandle) -> Snapshot {
    timeout(AGES, server.settled()).await.expect("it settles")
}

async fn waits_until(server: &InstanceHandle, is_so: impl Fn(&Snapshot) -> bool) {
    let waited = timeout(AGES, server.wait_until(is_so)).await;
    assert!(waited.is_ok(), "it never came about: {:?}", server.now().life);
}

async fn ask(server: &InstanceHandle, event: Event) {
    server.request(event).await.expect("the server is still there");
}

/// Has one life, of which the test says what becomes.
struct OneLife(Mutex<Option<Instance>>);

impl Launch for OneLife {
    fn launch(&self, _: LaunchOrder) -> Instance {
        self.0.lock().unwrap().take().expect("there is one life")
    }
}

#[tokio::test(start_paused = true)]
async fn ended_process_is_not_shown_before_its_last_news() {
    let (instance, ends) = Instance::pair();
    let launcher = Arc::new(OneLife(Mutex::new(Some(instance))));
    let settings = some_settings(|it| it.rules.restart.policy = RestartPolicy::Never);
    let server =
        spawn(Parts { launcher, ..parts(&FakeLauncher::each_lives_on(), settings, Wanted::Up) });
    ends.news.send(News::Launched { pid: 7 }).await.unwrap();
    ends.news.send(News::Ready).await.unwrap();
    reaches(&server, ServerState::Running).await;
    assert_eq!(server.now().pid, Some(7));
    ends.end.set();
    assert_eq!((server.now().state(), server.now().pid), (ServerState::Stopping, None));
    let exit = Exit { code: Some(1), ..Exit::UNSEEN };
    ends.news.send(News::Exited(exit)).await.unwrap();
    assert_eq!(settles(&server).await.state(), ServerState::Failed);
}

/// Every change so far, as text.
fn told(changes: &mut broadcast::Receiver<StateChange>) -> Vec<String> {
    let mut told = Vec::new();
    while let Ok(change) = changes.try_recv() {
        let StateChange { transition, pid, restart_count, .. } = change;
        let pid = pid.map_or("-".into(), |pid| pid.to_string());
        told.push(format!(
            "{} -> {} ({}), pid {pid}, restarts {restart_count}",
            transition.from, transition.to, transition.reason
        ));
    }
    told
}

#[tokio::test(start_paused = true)]
async fn a_server_that_keeps_crashing_fails_after_its_attempts() {
    let launcher = FakeLauncher::each_lives_for(2 * SECOND);
    let patient = some_settings(|it| it.rules.restart.max_attempts = 3);
    let began = Instant::now();
    let server = spawn(parts(&launcher, patient, Wanted::Up));
    reaches(&server, ServerState::Failed).await;

    let at: Vec<_> = launcher.launched_at().iter().map(|at| (*at - began).as_secs()).collect();
    assert_eq!(at, [0, 3, 7, 13]); // Lives of 2 s; waits of 1 s, 2 s and 4 s.
    assert_eq!(began.elapsed(), 15 * SECOND);
    assert_eq!(server.now().life.tally.restart_count, 3);
    assert_eq!((launcher.living(), launcher.most_living()), (0, 1));

    sleep(AGES).await;
    assert_eq!(launcher.launches(), 4, "what has failed is left alone");
}

#[tokio::test(start_paused = true)]
async fn a_container_is_tried_after_2_4_8_16_and_32_seconds_and_a_restart_counts_anew() {
    let launcher = FakeLauncher::each_lives_for(SECOND);
    let mut settings = container_settings("github");
    let restart = &mut settings.rules.restart;
    (restart.backoff_initial, restart.backoff_max) = (2 * SECOND, 32 * SECOND);
    (restart.max_attempts, restart.max_retries_per_minute) = (5, 0);
    let mut began = Instant::now();
    let server = spawn(parts(&launcher, settings, Wanted::Up));
    for round in 1..=2 {
        waits_until(&server, |now| {
            now.state() == ServerState::Failed && now.life.tally.restarts_total == 5 * round
        })
        .await;
        let lives = launcher.launched_at();
        let at: Vec<_> =
            lives[lives.len() - 6..].iter().map(|at| (*at - began).as_secs()).collect();
        assert_eq!(at, [0, 3, 8, 17, 34, 67], "lives of 1 s each, and the delays in between");
        assert_eq!(server.now().life.tally.restart_count, 5);
        began = Instant::now();
        ask(&server, Event::RestartRequested).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_crashes_too_often_within_a_minute_fails() {
    let launcher = FakeLauncher::each_lives_for(SECOND);
    let hasty = some_settings(|it| it.rules.restart.backoff_initial = Duration::ZERO);
    let began = Instant::now();
    let server = spawn(parts(&launcher, hasty, Wanted::Up));
    reaches(&server, ServerState::Failed).await;
    assert_eq!(launcher.launches(), 6);
    assert_eq!(began.elapsed(), 6 * SECOND, "no time is lost between long lives");
}

#[tokio::test(start_paused = true)]
async fn jitter_is_drawn_anew_and_stays_within_a_quarter() {
    let launcher = FakeLauncher::each_lives_for(SECOND);
    let jittery = some_settings(|it| {
        it.rules.restart.jitter = true;
        it.rules.restart.max_attempts = 0;
        it.rules.restart.max_retries_per_minute = 0;
        it.rules.restart.backoff_initial = 20 * SECOND;
    });
    let server = spawn(parts(&launcher, jittery, Wanted::Up));
    waits_until(&server, |snapshot| snapshot.life.tally.restart_count == 1).await;
    let at = launcher.launched_at();
    let apart = at[1] - at[0]; // A life of 1 s and a wait of 20 s.
    assert!((21 * SECOND..=26 * SECOND).contains(&apart), "{apart:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_to_be_down_is_not_started() {
    let launcher = FakeLauncher::each_lives_on();
    let server = down(&launcher);
    sleep(AGES).await;
    assert_eq!((server.now().state(), launcher.launches()), (ServerState::Stopped, 0));
    assert_eq!(server.now().life.reason, Reason::StopDone);
}

#[tokio::test(start_paused = true)]
async fn a_stop_during_the_back_off_cancels_the_next_life() {
    let launcher = FakeLauncher::each_lives_for(SECOND);
    let server = up(&launcher);
    reaches(&server, ServerState::Restarting).await;
    let asked = Instant::now();
    ask(&server, Event::StopRequested).await;
    assert_eq!(server.now().state(), ServerState::Stopped);
    assert_eq!(asked.elapsed(), Duration::ZERO, "a stop does not wait for the timer");
    sleep(AGES).await;
    assert_eq!(launcher.launches(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_start_during_the_back_off_does_not_wait_for_it() {
    let launcher =
        FakeLauncher::plays([Script::Dies { after: SECOND, exit: Exit::code(1) }, LIVES]);
    let server = up(&launcher);
    reaches(&server, ServerState::Restarting).await;
    let asked = Instant::now();
    ask(&server, Event::StartRequested).await;
    reaches(&server, ServerState::Running).await;
    assert_eq!(asked.elapsed(), Duration::ZERO);
    sleep(AGES).await;
    assert_eq!(launcher.launches(), 2, "the old timer starts nothing");
}

#[tokio::test(start_paused = true)]
async fn a_stop_during_the_start_ends_it() {
    let launcher = FakeLauncher::plays([Script::Hangs]);
    let server = up(&launcher);
    assert_eq!(server.now().state(), ServerState::Starting);
    ask(&server, Event::StopRequested).await;
    reaches(&server, ServerState::Stopped).await;
    sleep(AGES).await;
    assert_eq!((launcher.launches(), launcher.living()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn requests_keep_their_order() {
    let launcher = FakeLauncher::each_lives_on();
    let server = up(&launcher);
    reaches(&server, ServerState::Running).await;
    // All are queued before the task sees the first.
    let stop = server.request(Event::StopRequested);
    let start = server.request(Event::StartRequested);
    let stop_again = server.request(Event::StopRequested);
    let (first, second, third) = tokio::join!(stop, start, stop_again);
    assert!(first.is_ok() && second.is_ok() && third.is_ok());
    reaches(&server, ServerState::Stopped).await;
    assert_eq!(server.now().life.wanted, Wanted::Down, "the last word counts");
    assert_eq!(launcher.launches(), 1);
    assert_eq!(launcher.asks().len(), 1, "one life is asked to end once");
}

#[tokio::test(start_paused = true)]
async fn more_requests_than_the_queue_holds_wait_their_turn() {
    let launcher = FakeLauncher::each_lives_on();
    let server = down(&launcher);
    let mut askers = tokio::task::JoinSet::new();
    for n in 0..100 {
        let server = server.clone();
        let event = if n % 2 == 0 { Event::StartRequested } else { Event::StopRequested };
        askers.spawn(async move { server.request(event).await });
    }
    assert!(askers.join_all().await.iter().all(Result::is_ok));
    reaches(&server, ServerState::Stopped).await;
    assert_eq!(launcher.most_living(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_restart_is_one_request() {
    let launcher = FakeLauncher::plays([LIVES]);
    let server = up(&launcher);
    reaches(&server, ServerState::Running).await;
    let asked = Instant::now();
    ask(&server, Event::RestartRequested).await;
    assert_eq!(server.now().state(), ServerState::Stopping, "applied is not done");
    let settled = settles(&server).await;
    assert_eq!((settled.state(), settled.pid), (ServerState::Running, Some(2)));
    assert_eq!(asked.elapsed(), SECOND);
    assert_eq!(launcher.most_living(), 1);
    let exit = settled.last_exit.unwrap();
    assert!(exit.expected);
    assert_eq!(settled.life.tally.restart_count, 0, "what was asked for is not counted");
}

#[tokio::test(start_paused = true)]
async fn many_restarts_at_once_are_one() {
    let launcher = FakeLauncher::plays([LIVES]);
    let server = up(&launcher);
    reaches(&server, ServerState::Running).await;
    for _ in 0..5 {
        ask(&server, Event::RestartRequested).await;
    }
    settles(&server).await;
    assert_eq!((launcher.launches(), launcher.most_living()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_stubborn_server_is_killed_when_its_time_is_up() {
    let launcher = FakeLauncher::plays([Script::Stubborn]);
    let server = up(&launcher);
    reaches(&server, ServerState::Running).await;
    let asked = Instant::now();
    ask(&server, Event::StopRequested).await;
    reaches(&server, ServerState::Stopped).await;
    let grace = steady().stop.grace;
    assert_eq!(asked.elapsed(), grace + STOP_MARGIN);
    assert_eq!(launcher.asks(), [Ask::Stop { grace, for_good: false, is_hung: false }, Ask::Kill]);
    let exit = server.now().last_exit.unwrap();
    assert_eq!((exit.exit.signal, exit.expected), (Some(9), true));
}

#[tokio::test(start_paused = true)]
async fn a_stop_brings_the_grace_of_the_rules_of_the_day() {
    let launcher = FakeLauncher::each_lives_on();
    let server = up(&launcher);
    reaches(&server, ServerState::Running).await;
    let slower = some_settings(|it| it.rules.stop.grace = 42 * SECOND);
    server.reconfigure(Event::RulesChanged, Arc::new(slower)).await.unwrap();
    ask(&server, Event::StopRequested).await;
    reaches(&server, ServerState::Stopped).await;
    let grace = 42 * SECOND;
    let rules = Ask::Rules { orphan_timeout: steady().orphan_timeout, grace };
    assert_eq!(launcher.asks(), [rules, Ask::Stop { grace, for_good: false, is_hung: false }]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_says_whether_the_server_was_found_hung() {
    let why = || "it does not answer".to_owned();
    for (event, is_hung) in [
        (Event::Unhealthy(why()), true),
        (Event::RepairRequested(why()), true),
        (Event::RestartRequested, false),
        (Event::Unfit(why()), false),
    ] {
        let launcher = FakeLauncher::each_lives_on();
        let server = up(&launcher);
        reaches(&server, ServerState::Running).await;
        ask(&server, event.clone()).await;
        settles(&server).await;
        let grace = steady().stop.grace;
        let first = launcher.asks().into_iter().next();
        assert_eq!(first, Some(Ask::Stop { grace, for_good: false, is_hung }), "{event:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_life_whose_launcher_vanishes_is_over() {
    let launcher = FakeLauncher::plays([Script::Vanishes { after: SECOND }, LIVES]);
    let server = up(&launcher);
    reaches(&server, ServerState::Restarting).await;
    let exit = server.now().last_exit.unwrap();
    assert_eq!((exit.exit, exit.expected), (Exit::UNSEEN, false));
    assert_eq!(server.now().pid, None);
    reaches(&server, ServerState::Running).await;
    assert_eq!((launcher.launches(), launcher.most_living()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_never_ready_is_stopped_and_tried_again() {
    let launcher = FakeLauncher::plays([Script::Hangs, LIVES]);
    let began = Instant::now();
    let server = up(&launcher);
    reaches(&server, ServerState::Restarting).await;
    assert_eq!(began.elapsed(), 10 * SECOND);
    assert_eq!(server.now().life.reason.to_string(), "not ready within 10s");
    assert!(!server.now().last_exit.unwrap().expected, "nobody asked for it");
    reaches(&server, ServerState::Running).await;
    assert_eq!(began.elapsed(), 11 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_program_that_cannot_be_started_fails_at_once() {
    let script = Script::Fails { after: Duration::ZERO, fault: permanent_fault() };
    let launcher = FakeLauncher::plays([script]);
    let began = Instant::now();
    let server = up(&launcher);
    let settled = settles(&server).await;
    assert_eq!((settled.state(), began.elapsed()), (ServerState::Failed, Duration::ZERO));
    let LaunchFault { message, hint, .. } = permanent_fault();
    assert_eq!(settled.life.reason.to_string(), message);
    assert_eq!(settled.life.reason.hint(), hint.as_deref());
    assert!(settled.last_exit.is_none(), "what never lived has not ended");
}

#[tokio::test(start_paused = true)]
async fn a_moment_without_memory_is_waited_out() {
    let script = Script::Fails { after: Duration::ZERO, fault: transient_fault() };
    let launcher = FakeLauncher::plays([script.clone(), script, LIVES]);
    let began = Instant::now();
    let server = up(&launcher);
    reaches(&server, ServerState::Running).await;
    assert_eq!(began.elapsed(), 3 * SECOND);
    assert_eq!(server.now().life.tally.restart_count, 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_is_applied_before_the_outcome_is_known() {
    let slow = Script::Fails { after: 5 * SECOND, fault: permanent_fault() };
    let launcher = FakeLauncher::plays([slow]);
    let server = down(&launcher);
    let asked = Instant::now();
    ask(&server, Event::StartRequested).await;
    assert_eq!((server.now().state(), asked.elapsed()), (ServerState::Starting, Duration::ZERO));
    let settled = settles(&server).await;
    assert_eq!((settled.state(), asked.elapsed()), (ServerState::Failed, 5 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn waiting_for_the_back_off_is_settled() {
    let launcher = FakeLauncher::each_lives_for(Duration::ZERO);
    let server = up(&launcher);
    reaches(&server, ServerState::Restarting).await;
    let began = Instant::now();
    assert_eq!(settles(&server).await.state(), ServerState::Restarting);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn settled_is_answered_at_once_where_nothing_goes_on() {
    let launcher = FakeLauncher::each_lives_on();
    assert_eq!(down(&launcher).settled().await.state(), ServerState::Stopped);
    let server = up(&launcher);
    assert_eq!(settles(&server).await.state(), ServerState::Running);
}

#[tokio::test(start_paused = true)]
async fn the_pid_is_shown_while_there_is_one() {
    let launcher =
        FakeLauncher::plays([Script::Dies { after: SECOND, exit: Exit::code(1) }, LIVES]);
    let server = up(&launcher);
    assert_eq!(server.now().pid, None, "it does not run yet");
    reaches(&server, ServerState::Running).await;
    assert_eq!(server.now().pid, Some(1));
    reaches(&server, ServerState::Restarting).await;
    assert_eq!(server.now().pid, None);
    reaches(&server, ServerState::Running).await;
    assert_eq!(server.now().pid, Some(2));
    ask(&server, Event::StopRequested).await;
    assert_eq!(server.now().pid, Some(2), "it is still there");
    reaches(&server, ServerState::Stopped).await;
    assert_eq!(server.now().pid, None);
}

#[tokio::test(start_paused = true)]
async fn every_change_is_told_to_those_who_listen() {
    let launcher =
        FakeLauncher::plays([Script::Dies { after: SECOND, exit: Exit::code(3) }, LIVES]);
    let parts = parts(&launcher, settings("github"), Wanted::Down);
    let mut changes = parts.changes.subscribe();
    let server = spawn(parts);
    ask(&server, Event::StartRequested).await;
    reaches(&server, ServerState::Restarting).await;
    reaches(&server, ServerState::Running).await;
    ask(&server, Event::RestartRequested).await;
    reaches(&server, ServerState::Running).await;
    ask(&server, Event::StopRequested).await;
    reaches(&server, ServerState::Stopped).await;
    insta::assert_snapshot!(told(&mut changes).join("\n"), @"
    stopped -> starting (start requested), pid -, restarts 0
    starting -> running (ready), pid 1, restarts 0
    running -> restarting (exited with code 3), pid -, restarts 0
    restarting -> starting (attempt 1 of 5), pid -, restarts 1
    starting -> running (ready), pid 2, restarts 1
    running -> stopping (restart requested), pid 2, restarts 1
    stopping -> starting (restart requested), pid -, restarts 0
    starting -> running (ready), pid 3, restarts 0
    running -> stopping (stop requested), pid 3, restarts 0
    stopping -> stopped (stopped as requested), pid -, restarts 0
    ");
    let remembered: Vec<_> = server.now().transitions.iter().map(|it| it.to).collect();
    assert_eq!(remembered.len(), 10);
    assert_eq!(remembered.last(), Some(&ServerState::Stopped));
}

#[tokio::test(start_paused = true)]
async fn the_first_start_is_told_too() {
    let launcher = FakeLauncher::each_lives_on();
    let parts = parts(&launcher, settings("github"), Wanted::Up);
    let mut changes = parts.changes.subscribe();
    let server = spawn(parts);
    reaches(&server, ServerState::Running).await;
    assert_eq!(told(&mut changes).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn only_the_latest_changes_are_remembered() {
    let launcher = FakeLauncher::each_lives_for(SECOND);
    let tireless = some_settings(|it| {
        it.rules.restart.max_attempts = 0;
        it.rules.restart.max_retries_per_minute = 0;
    });
    let server = spawn(parts(&launcher, tireless, Wanted::Up));
    waits_until(&server, |snapshot| snapshot.life.tally.restart_count == 50).await;
    let transitions = server.now().transitions;
    assert_eq!(transitions.len(), TRANSITIONS_KEPT);
    assert_eq!(transitions.back().unwrap().reason, server.now().life.reason);
    for (earlier, later) in transitions.iter().zip(transitions.iter().skip(1)) {
        assert_eq!(earlier.to, later.from, "none is missing in between");
    }
}

#[tokio::test(start_paused = true)]
async fn trouble_with_the_log_is_shown_and_stops_nothing() {
    let launcher = FakeLauncher::plays([Script::Complains { after: SECOND }]);
    let server = up(&launcher);
    waits_until(&server, |snapshot| snapshot.log_problem.is_some()).await;
    assert_eq!(server.now().log_problem.as_deref(), Some("disk full"));
    reaches(&server, ServerState::Running).await;
    assert_eq!(server.now().log_problem, None, "it is well again");
}

#[tokio::test(start_paused = true)]
async fn the_next_launch_uses_the_new_settings() {
    let launcher = FakeLauncher::each_lives_on();
    let server = up(&launcher);
    reaches(&server, ServerState::Running).await;
    let changed = some_settings(|it| process_of(it).args = vec!["--new".into()]);
    server.reconfigure(Event::ProcessChanged, Arc::new(changed.clone())).await.unwrap();
    assert_eq!(settles(&server).await.state(), ServerState::Running);
    assert_eq!(*launcher.last_settings(), changed);
    assert_eq!(*server.now().settings, changed);
    assert_eq!((launcher.launches(), launcher.most_living()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn other_rules_apply_to_the_living_one() {
    let launcher = FakeLauncher::each_lives_for(5 * SECOND);
    let server = up(&launcher);
    reaches(&server, ServerState::Running).await;
    let never = some_settings(|it| it.rules.restart.policy = RestartPolicy::Never);
    server.reconfigure(Event::RulesChanged, Arc::new(never)).await.unwrap();
    assert_eq!(server.now().state(), ServerState::Running);
    reaches(&server, ServerState::Failed).await;
    assert_eq!(launcher.launches(), 1);
}

#[tokio::test(start_paused = true)]
async fn settings_for_a_stopped_server_wait_for_its_start() {
    let launcher = FakeLauncher::each_lives_on();
    let server = down(&launcher);
    let changed = some_settings(|it| process_of(it).args = vec!["--new".into()]);
    server.reconfigure(Event::ProcessChanged, Arc::new(changed.clone())).await.unwrap();
    assert_eq!((server.now().state(), launcher.launches()), (ServerState::Stopped, 0));
    ask(&server, Event::StartRequested).await;
    assert_eq!(*launcher.last_settings(), changed);
}

#[tokio::test(start_paused = true)]
async fn a_retired_server_ends_and_takes_no_more_requests() {
    let launcher = FakeLauncher::plays([LIVES]);
    let (task, server) = Task::new(parts(&launcher, settings("github"), Wanted::Up));
    let task = tokio::spawn(task.run());
    reaches(&server, ServerState::Running).await;
    ask(&server, Event::RetireRequested(Retirement::Removed)).await;
    assert_eq!(server.now().state(), ServerState::Stopping);
    ask(&server, Event::StartRequested).await;
    timeout(AGES, task).await.expect("it ends").unwrap();
    assert_eq!(server.now().life.state, State::Retired);
    assert_eq!(launcher.living(), 0);
    assert!(matches!(server.request(Event::StartRequested).await, Err(Gone)));
    assert_eq!(settles(&server).await.state(), ServerState::Stopped);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_retired_server_is_not_left_waiting() {
    let launcher = FakeLauncher::each_lives_on();
    let server = up(&launcher);
    let waiting = tokio::spawn({
        let server = server.clone();
        async move { server.wait_until(|snapshot| snapshot.state() == ServerState::Failed).await }
    });
    reaches(&server, ServerState::Running).await;
    ask(&server, Event::RetireRequested(Retirement::Removed)).await;
    let last = timeout(AGES, waiting).await.expect("it is answered").unwrap();
    assert_eq!(last.life.state, State::Retired);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_nobody_holds_is_ended() {
    let launcher = FakeLauncher::each_lives_on();
    let (task, server) = Task::new(parts(&launcher, settings("github"), Wanted::Up));
    let task = tokio::spawn(task.run());
    reaches(&server, ServerState::Running).await;
    drop(server);
    timeout(AGES, task).await.expect("it ends").unwrap();
    advance(SECOND).await;
    assert_eq!(launcher.living(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_asker_who_leaves_is_served_all_the_same() {
    let launcher = FakeLauncher::each_lives_on();
    let server = down(&launcher);
    let impatient = timeout(Duration::ZERO, server.request(Event::StartRequested)).await;
    assert!(impatient.is_err(), "it left before the answer");
    reaches(&server, ServerState::Running).await;
}

mod successors {
    //! A server that was removed and added again.

    use super::*;

    /// An instance that takes 5 s to end, and the successor that waits for it.
    async fn one_after_the_other(
        launcher: &FakeLauncher,
        wanted: Wanted,
    ) -> (InstanceHandle, InstanceHandle) {
        let old = up(launcher);
        reaches(&old, ServerState::Running).await;
        ask(&old, Event::RetireRequested(Retirement::Removed)).await;
        let mut parts = parts(launcher, settings("github"), wanted);
        parts.before =
            super::super::Before::Ending(super::super::Predecessor::Removed(old.clone()));
        (old, spawn(parts))
    }

    fn slow_to_end() -> FakeLauncher {
        FakeLauncher::each_stops_in(5 * SECOND)
    }

    #[tokio::test(start_paused = true)]
    async fn a_successor_starts_when_the_old_one_is_gone() {
        let launcher = slow_to_end();
        let (old, new) = one_after_the_other(&launcher, Wanted::Up).await;
        let began = Instant::now();
        assert_eq!(new.now().state(), ServerState::Stopping);
        assert_eq!(new.now().life.reason, Reason::Predecessor);
        reaches(&new, ServerState::Running).await;
        assert_eq!(began.elapsed(), 5 * SECOND);
        assert_eq!(old.now().life.state, State::Retired);
        assert_eq!((launcher.launches(), launcher.most_living()), (2, 1));
        assert!(new.now().last_exit.is_none(), "the end of another is not its own");
    }

    #[tokio::test(start_paused = true)]
    async fn a_successor_can_be_stopped_while_it_waits() {
        let launcher = slow_to_end();
        let (_old, new) = one_after_the_other(&launcher, Wanted::Up).await;
        ask(&new, Event::StopRequested).await;
        sleep(AGES).await;
        assert_eq!((new.now().state(), launcher.launches()), (ServerState::Stopped, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_successor_can_be_retired_while_it_waits() {
        let launcher = slow_to_end();
        let (_old, new) = one_after_the_other(&launcher, Wanted::Up).await;
        ask(&new, Event::RetireRequested(Retirement::Removed)).await;
        sleep(AGES).await;
        assert_eq!((new.now().life.state, launcher.launches()), (State::Retired, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_successor_that_is_to_be_down_waits_and_stays_down_until_asked() {
        let launcher = slow_to_end();
        let (_old, new) = one_after_the_other(&launcher, Wanted::Down).await;
        reaches(&new, ServerState::Stopped).await;
        sleep(AGES).await;
        assert_eq!(launcher.launches(), 1);
        ask(&new, Event::StartRequested).await;
        reaches(&new, ServerState::Running).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_of_a_waiting_successor_does_not_hurry_it() {
        let launcher = slow_to_end();
        let (_old, new) = one_after_the_other(&launcher, Wanted::Down).await;
        ask(&new, Event::StartRequested).await;
        ask(&new, Event::RestartRequested).await;
        let began = Instant::now();
        reaches(&new, ServerState::Running).await;
        assert_eq!(began.elapsed(), 5 * SECOND);
        assert_eq!(launcher.most_living(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_successor_uses_the_settings_that_came_while_it_waited() {
        let launcher = slow_to_end();
        let (_old, new) = one_after_the_other(&launcher, Wanted::Up).await;
        let changed = some_settings(|it| process_of(it).args = vec!["--newer".into()]);
        new.reconfigure(Event::ProcessChanged, Arc::new(changed.clone())).await.unwrap();
        reaches(&new, ServerState::Running).await;
        assert_eq!(*launcher.last_settings(), changed);
        assert_eq!((launcher.launches(), launcher.most_living()), (2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_whole_line_of_successors_lives_one_after_the_other() {
        let launcher = slow_to_end();
        let (_first, second) = one_after_the_other(&launcher, Wanted::Up).await;
        ask(&second, Event::RetireRequested(Retirement::Removed)).await;
        let mut parts = parts(&launcher, settings("github"), Wanted::Up);
        parts.before = super::super::Before::Ending(super::super::Predecessor::Removed(second));
        let third = spawn(parts);
        reaches(&third, ServerState::Running).await;
        assert_eq!((launcher.launches(), launcher.most_living()), (2, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_attempt_is_told_beside_the_change() {
    let launcher = FakeLauncher::each_lives_for(SECOND);
    let patient = some_settings(|it| it.rules.restart.max_attempts = 2);
    let parts = parts(&launcher, patient, Wanted::Up);
    let mut changes = parts.changes.subscribe();
    let server = spawn(parts);
    reaches(&server, ServerState::Failed).await;
    let mut said = Vec::new();
    while let Ok(change) = changes.try_recv() {
        if let ChangeKind::LastAttempt(why) = change.kind {
            let StateChange { transition, restart_count, .. } = change;
            said.push(format!("{} ({restart_count}): {why}", transition.to));
        }
    }
    let expected = "starting (2): final restart attempt (2 of 2)";
    assert_eq!(said, [expected]);
}
