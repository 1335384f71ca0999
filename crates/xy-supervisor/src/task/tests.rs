//! Waiting, ordering and cancellation, on paused time and without processes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::{Instant, advance, sleep, timeout};
use xy_config::settings::{RestartPolicy, ServerSettings};
use xy_protocol::server::{ServerState, Wanted};

use super::{Parts, Task};
use crate::fake::{
    FakeLauncher, SECOND, Script, container_settings, permanent_fault, process_of, settings,
    steady, transient_fault,
};
use crate::instance::{
    ChangeKind, InstanceHandle, InstanceKey, MAX_TRANSITIONS, RetiredError, Snapshot, StateChange,
};
use crate::launch::{Launch, LaunchOrder, LifeCommand, LifeEvent, LifeHandle};
use crate::lifecycle::{Event, Exit, LaunchFault, Reason, Retirement, STOP_MARGIN, State};
use crate::logs::LogBook;

const LIVES: Script = Script::Lives { stops_in: Duration::from_secs(1) };

/// Longer than any test here takes.
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
        origin: super::Origin::New,
    }
}

fn spawn(parts: Parts) -> InstanceHandle {
    let (task, handle) = Task::new(parts);
    tokio::spawn(task.run());
    handle
}

/// Starts a server that is wanted up, with default rules.
fn up(launcher: &FakeLauncher) -> InstanceHandle {
    spawn(parts(launcher, settings("github"), Wanted::Up))
}

/// Starts the task of a server that is wanted down, with default rules.
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
    assert!(waited.is_ok(), "the state was never reached: {:?}", server.now().life);
}

async fn request(server: &InstanceHandle, event: Event) {
    server.request(event).await.expect("the server is still there");
}

/// A launcher with one life, which the test controls.
struct OneLife(Mutex<Option<LifeHandle>>);

impl Launch for OneLife {
    fn launch(&self, _: LaunchOrder) -> LifeHandle {
        self.0.lock().unwrap().take().expect("there is one life")
    }
}

#[tokio::test(start_paused = true)]
async fn exited_process_has_no_pid_before_its_last_event() {
    let (instance, ends) = LifeHandle::pair();
    let launcher = Arc::new(OneLife(Mutex::new(Some(instance))));
    let settings = some_settings(|it| it.rules.restart.policy = RestartPolicy::Never);
    let server =
        spawn(Parts { launcher, ..parts(&FakeLauncher::each_lives_on(), settings, Wanted::Up) });
    ends.events.send(LifeEvent::Launched { pid: 7 }).await.unwrap();
    ends.events.send(LifeEvent::Ready).await.unwrap();
    reaches(&server, ServerState::Running).await;
    assert_eq!(server.now().pid, Some(7));
    ends.end.set();
    assert_eq!((server.now().state(), server.now().pid), (ServerState::Stopping, None));
    let exit = Exit { code: Some(1), ..Exit::UNKNOWN };
    ends.events.send(LifeEvent::Exited(exit)).await.unwrap();
    assert_eq!(settles(&server).await.state(), ServerState::Failed);
}

/// A waiter that read the state inside its condition once blocked the task that publishes.
#[tokio::test(start_paused = true)]
async fn state_is_not_locked_while_a_condition_is_checked() {
    let settings = some_settings(|_| {});
    let server = spawn(parts(&FakeLauncher::each_lives_on(), settings, Wanted::Up));
    let (published, state) = watch::channel(server.now());
    let (commands, _received) = mpsc::channel(1);
    let handle = InstanceHandle::new(server.key().clone(), commands, state, server.logs().clone());
    let is_so = |_: &Snapshot| {
        published.send_modify(|_| {}); // Would wait for ever if the state was locked.
        handle.now().settings.name.as_str() == server.key().server.as_str()
    };
    handle.wait_until(is_so).await;
}

#[tokio::test(start_paused = true)]
async fn reason_does_not_quote_a_known_secret() {
    let (instance, ends) = LifeHandle::pair();
    let launcher = Arc::new(OneLife(Mutex::new(Some(instance))));
    let settings = some_settings(|it| {
        process_of(it).env = [("API_KEY".to_owned(), "s3cret-value".to_owned())].into();
    });
    let server =
        spawn(Parts { launcher, ..parts(&FakeLauncher::each_lives_on(), settings, Wanted::Up) });
    let why = "it refused s3cret-value".to_owned();
    ends.events.send(LifeEvent::ProtocolError(why)).await.unwrap();
    waits_until(&server, |snapshot| snapshot.life.reason.is_failure()).await;
    assert_eq!(server.now().life.reason, Reason::ProtocolError("it refused ***".to_owned()));
}

/// Returns every change so far, as text.
fn received(changes: &mut broadcast::Receiver<StateChange>) -> Vec<String> {
    let mut texts = Vec::new();
    while let Ok(change) = changes.try_recv() {
        let StateChange { transition, pid, restart_count, .. } = change;
        let pid = pid.map_or("-".into(), |pid| pid.to_string());
        texts.push(format!(
            "{} -> {} ({}), pid {pid}, restarts {restart_count}",
            transition.from, transition.to, transition.reason
        ));
    }
    texts
}

#[tokio::test(start_paused = true)]
async fn crashing_server_fails_after_max_attempts() {
    let launcher = FakeLauncher::each_lives_for(2 * SECOND);
    let patient = some_settings(|it| it.rules.restart.max_attempts = 3);
    let began = Instant::now();
    let server = spawn(parts(&launcher, patient, Wanted::Up));
    reaches(&server, ServerState::Failed).await;

    let at: Vec<_> = launcher.launched_at().iter().map(|at| (*at - began).as_secs()).collect();
    assert_eq!(at, [0, 3, 7, 13]); // Lives of 2 s; waits of 1 s, 2 s and 4 s.
    assert_eq!(began.elapsed(), 15 * SECOND);
    assert_eq!(server.now().life.tally.restart_count, 3);
    assert_eq!((launcher.living(), launcher.max_living()), (0, 1));

    sleep(AGES).await;
    assert_eq!(launcher.launches(), 4, "a failed server is not restarted");
}

#[tokio::test(start_paused = true)]
async fn container_backs_off_and_restart_resets_attempts() {
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
        request(&server, Event::RestartRequested).await;
    }
}

#[tokio::test(start_paused = true)]
async fn server_fails_after_too_many_crashes_within_a_minute() {
    let launcher = FakeLauncher::each_lives_for(SECOND);
    let hasty = some_settings(|it| it.rules.restart.backoff_initial = Duration::ZERO);
    let began = Instant::now();
    let server = spawn(parts(&launcher, hasty, Wanted::Up));
    reaches(&server, ServerState::Failed).await;
    assert_eq!(launcher.launches(), 6);
    assert_eq!(began.elapsed(), 6 * SECOND, "there is no delay between long lives");
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
async fn server_wanted_down_is_not_started() {
    let launcher = FakeLauncher::each_lives_on();
    let server = down(&launcher);
    sleep(AGES).await;
    assert_eq!((server.now().state(), launcher.launches()), (ServerState::Stopped, 0));
    assert_eq!(server.now().life.reason, Reason::StopDone);
}

#[tokio::test(start_paused = true)]
async fn stop_during_back_off_cancels_next_life() {
    let launcher = FakeLauncher::each_lives_for(SECOND);
    let server = up(&launcher);
    reaches(&server, ServerState::Restarting).await;
    let requested_at = Instant::now();
    request(&server, Event::StopRequested).await;
    assert_eq!(server.now().state(), ServerState::Stopped);
    assert_eq!(requested_at.elapsed(), Duration::ZERO, "a stop does not wait for the timer");
    sleep(AGES).await;
    assert_eq!(launcher.launches(), 1);
}

#[tokio::test(start_paused = true)]
async fn start_during_back_off_is_immediate() {
    let launcher =
        FakeLauncher::with_scripts([Script::Dies { after: SECOND, exit: Exit::code(1) }, LIVES]);
    let server = up(&launcher);
    reaches(&server, ServerState::Restarting).await;
    let requested_at = Instant::now();
    request(&server, Event::StartRequested).await;
    reaches(&server, ServerState::Running).await;
    assert_eq!(requested_at.elapsed(), Duration::ZERO);
    sleep(AGES).await;
    assert_eq!(launcher.launches(), 2, "the old timer starts nothing");
}

#[tokio::test(start_paused = true)]
async fn stop_during_start_ends_it() {
    let launcher = FakeLauncher::with_scripts([Script::Hangs]);
    let server = up(&launcher);
    assert_eq!(server.now().state(), ServerState::Starting);
    request(&server, Event::StopRequested).await;
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
    assert_eq!(server.now().life.wanted, Wanted::Down, "the last request counts");
    assert_eq!(launcher.launches(), 1);
    assert_eq!(launcher.commands().len(), 1, "the stop is sent once");
}

#[tokio::test(start_paused = true)]
async fn requests_beyond_queue_capacity_wait() {
    let launcher = FakeLauncher::each_lives_on();
    let server = down(&launcher);
    let mut requesters = tokio::task::JoinSet::new();
    for n in 0..100 {
        let server = server.clone();
        let event = if n % 2 == 0 { Event::StartRequested } else { Event::StopRequested };
        requesters.spawn(async move { server.request(event).await });
    }
    assert!(requesters.join_all().await.iter().all(Result::is_ok));
    reaches(&server, ServerState::Stopped).await;
    assert_eq!(launcher.max_living(), 1);
}

#[tokio::test(start_paused = true)]
async fn restart_is_one_request() {
    let launcher = FakeLauncher::with_scripts([LIVES]);
    let server = up(&launcher);
    reaches(&server, ServerState::Running).await;
    let requested_at = Instant::now();
    request(&server, Event::RestartRequested).await;
    assert_eq!(server.now().state(), ServerState::Stopping, "applied, but not finished");
    let settled = settles(&server).await;
    assert_eq!((settled.state(), settled.pid), (ServerState::Running, Some(2)));
    assert_eq!(requested_at.elapsed(), SECOND);
    assert_eq!(launcher.max_living(), 1);
    let exit = settled.last_exit.unwrap();
    assert!(exit.expected);
    assert_eq!(settled.life.tally.restart_count, 0, "a requested restart is not counted");
}

#[tokio::test(start_paused = true)]
async fn simultaneous_restarts_are_one() {
    let launcher = FakeLauncher::with_scripts([LIVES]);
    let server = up(&launcher);
    reaches(&server, ServerState::Running).await;
    for _ in 0..5 {
        request(&server, Event::RestartRequested).await;
    }
    settles(&server).await;
    assert_eq!((launcher.launches(), launcher.max_living()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn stubborn_server_is_killed_after_grace() {
    let launcher = FakeLauncher::with_scripts([Script::Stubborn]);
    let server = up(&launcher);
    reaches(&server, ServerState::Running).await;
    let requested_at = Instant::now();
    request(&server, Event::StopRequested).await;
    reaches(&server, ServerState::Stopped).await;
    let grace = steady().stop.grace;
    assert_eq!(requested_at.elapsed(), grace + STOP_MARGIN);
    let stop = LifeCommand::Stop { grace, for_good: false, is_hung: false };
    assert_eq!(launcher.commands(), [stop, LifeCommand::Kill]);
    let exit = server.now().last_exit.unwrap();
    assert_eq!((exit.exit.signal, exit.expected), (Some(9), true));
}

#[tokio::test(start_paused = true)]
async fn stop_uses_grace_of_current_rules() {
    let launcher = FakeLauncher::each_lives_on();
    let server = up(&launcher);
    reaches(&server, ServerState::Running).await;
    let slower = some_settings(|it| it.rules.stop.grace = 42 * SECOND);
    server.reconfigure(Event::RulesChanged, Arc::new(slower)).await.unwrap();
    request(&server, Event::StopRequested).await;
    reaches(&server, ServerState::Stopped).await;
    let grace = 42 * SECOND;
    let rules = LifeCommand::SetOrphanRules { orphan_timeout: steady().orphan_timeout, grace };
    let stop = LifeCommand::Stop { grace, for_good: false, is_hung: false };
    assert_eq!(launcher.commands(), [rules, stop]);
}

#[tokio::test(start_paused = true)]
async fn stop_tells_whether_server_is_hung() {
    let why = || "it does not answer".to_owned();
    for (event, is_hung) in [
        (Event::Unhealthy(why()), true),
        (Event::RepairRequested(why()), true),
        (Event::RestartRequested, false),
        (Event::ProtocolError(why()), false),
    ] {
        let launcher = FakeLauncher::each_lives_on();
        let server = up(&launcher);
        reaches(&server, ServerState::Running).await;
        request(&server, event.clone()).await;
        settles(&server).await;
        let grace = steady().stop.grace;
        let first = launcher.commands().into_iter().next();
        let stop = LifeCommand::Stop { grace, for_good: false, is_hung };
        assert_eq!(first, Some(stop), "{event:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn life_whose_launcher_vanishes_is_over() {
    let launcher = FakeLauncher::with_scripts([Script::Vanishes { after: SECOND }, LIVES]);
    let server = up(&launcher);
    reaches(&server, ServerState::Restarting).await;
    let exit = server.now().last_exit.unwrap();
    assert_eq!((exit.exit, exit.expected), (Exit::UNKNOWN, false));
    assert_eq!(server.now().pid, None);
    reaches(&server, ServerState::Running).await;
    assert_eq!((launcher.launches(), launcher.max_living()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn server_that_is_never_ready_is_restarted() {
    let launcher = FakeLauncher::with_scripts([Script::Hangs, LIVES]);
    let began = Instant::now();
    let server = up(&launcher);
    reaches(&server, ServerState::Restarting).await;
    assert_eq!(began.elapsed(), 10 * SECOND);
    assert_eq!(server.now().life.reason.to_string(), "not ready within 10s");
    assert!(!server.now().last_exit.unwrap().expected, "no stop was requested");
    reaches(&server, ServerState::Running).await;
    assert_eq!(began.elapsed(), 11 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn program_that_cannot_start_fails_at_once() {
    let script = Script::Fails { after: Duration::ZERO, fault: permanent_fault() };
    let launcher = FakeLauncher::with_scripts([script]);
    let began = Instant::now();
    let server = up(&launcher);
    let settled = settles(&server).await;
    assert_eq!((settled.state(), began.elapsed()), (ServerState::Failed, Duration::ZERO));
    let LaunchFault { message, hint, .. } = permanent_fault();
    assert_eq!(settled.life.reason.to_string(), message);
    assert_eq!(settled.life.reason.hint(), hint.as_deref());
    assert!(settled.last_exit.is_none(), "a life that never began has no exit");
}

#[tokio::test(start_paused = true)]
async fn transient_launch_failure_is_retried() {
    let script = Script::Fails { after: Duration::ZERO, fault: transient_fault() };
    let launcher = FakeLauncher::with_scripts([script.clone(), script, LIVES]);
    let began = Instant::now();
    let server = up(&launcher);
    reaches(&server, ServerState::Running).await;
    assert_eq!(began.elapsed(), 3 * SECOND);
    assert_eq!(server.now().life.tally.restart_count, 2);
}

#[tokio::test(start_paused = true)]
async fn request_is_applied_before_outcome_is_known() {
    let slow = Script::Fails { after: 5 * SECOND, fault: permanent_fault() };
    let launcher = FakeLauncher::with_scripts([slow]);
    let server = down(&launcher);
    let requested_at = Instant::now();
    request(&server, Event::StartRequested).await;
    assert_eq!(
        (server.now().state(), requested_at.elapsed()),
        (ServerState::Starting, Duration::ZERO)
    );
    let settled = settles(&server).await;
    assert_eq!((settled.state(), requested_at.elapsed()), (ServerState::Failed, 5 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn backoff_counts_as_settled() {
    let launcher = FakeLauncher::each_lives_for(Duration::ZERO);
    let server = up(&launcher);
    reaches(&server, ServerState::Restarting).await;
    let began = Instant::now();
    assert_eq!(settles(&server).await.state(), ServerState::Restarting);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn idle_server_is_settled_at_once() {
    let launcher = FakeLauncher::each_lives_on();
    assert_eq!(down(&launcher).settled().await.state(), ServerState::Stopped);
    let server = up(&launcher);
    assert_eq!(settles(&server).await.state(), ServerState::Running);
}

#[tokio::test(start_paused = true)]
async fn pid_is_shown_while_process_lives() {
    let launcher =
        FakeLauncher::with_scripts([Script::Dies { after: SECOND, exit: Exit::code(1) }, LIVES]);
    let server = up(&launcher);
    assert_eq!(server.now().pid, None, "it does not run yet");
    reaches(&server, ServerState::Running).await;
    assert_eq!(server.now().pid, Some(1));
    reaches(&server, ServerState::Restarting).await;
    assert_eq!(server.now().pid, None);
    reaches(&server, ServerState::Running).await;
    assert_eq!(server.now().pid, Some(2));
    request(&server, Event::StopRequested).await;
    assert_eq!(server.now().pid, Some(2), "it is still there");
    reaches(&server, ServerState::Stopped).await;
    assert_eq!(server.now().pid, None);
}

#[tokio::test(start_paused = true)]
async fn changes_are_broadcast() {
    let launcher =
        FakeLauncher::with_scripts([Script::Dies { after: SECOND, exit: Exit::code(3) }, LIVES]);
    let parts = parts(&launcher, settings("github"), Wanted::Down);
    let mut changes = parts.changes.subscribe();
    let server = spawn(parts);
    request(&server, Event::StartRequested).await;
    reaches(&server, ServerState::Restarting).await;
    reaches(&server, ServerState::Running).await;
    request(&server, Event::RestartRequested).await;
    reaches(&server, ServerState::Running).await;
    request(&server, Event::StopRequested).await;
    reaches(&server, ServerState::Stopped).await;
    insta::assert_snapshot!(received(&mut changes).join("\n"), @"
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
async fn first_start_is_broadcast() {
    let launcher = FakeLauncher::each_lives_on();
    let parts = parts(&launcher, settings("github"), Wanted::Up);
    let mut changes = parts.changes.subscribe();
    let server = spawn(parts);
    reaches(&server, ServerState::Running).await;
    assert_eq!(received(&mut changes).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn only_latest_transitions_are_kept() {
    let launcher = FakeLauncher::each_lives_for(SECOND);
    let tireless = some_settings(|it| {
        it.rules.restart.max_attempts = 0;
        it.rules.restart.max_retries_per_minute = 0;
    });
    let server = spawn(parts(&launcher, tireless, Wanted::Up));
    waits_until(&server, |snapshot| snapshot.life.tally.restart_count == 50).await;
    let transitions = server.now().transitions;
    assert_eq!(transitions.len(), MAX_TRANSITIONS);
    assert_eq!(transitions.back().unwrap().reason, server.now().life.reason);
    for (earlier, later) in transitions.iter().zip(transitions.iter().skip(1)) {
        assert_eq!(earlier.to, later.from, "no transition is missing");
    }
}

#[tokio::test(start_paused = true)]
async fn log_problem_is_shown_and_harmless() {
    let launcher = FakeLauncher::with_scripts([Script::LogFails { after: SECOND }]);
    let server = up(&launcher);
    waits_until(&server, |snapshot| snapshot.log_problem.is_some()).await;
    assert_eq!(server.now().log_problem.as_deref(), Some("disk full"));
    reaches(&server, ServerState::Running).await;
    assert_eq!(server.now().log_problem, None, "the log works again");
}

#[tokio::test(start_paused = true)]
async fn next_launch_uses_new_settings() {
    let launcher = FakeLauncher::each_lives_on();
    let server = up(&launcher);
    reaches(&server, ServerState::Running).await;
    let changed = some_settings(|it| process_of(it).args = vec!["--new".into()]);
    server.reconfigure(Event::ProcessChanged, Arc::new(changed.clone())).await.unwrap();
    assert_eq!(settles(&server).await.state(), ServerState::Running);
    assert_eq!(*launcher.last_settings(), changed);
    assert_eq!(*server.now().settings, changed);
    assert_eq!((launcher.launches(), launcher.max_living()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn new_rules_apply_to_running_instance() {
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
async fn settings_of_stopped_server_wait_for_its_start() {
    let launcher = FakeLauncher::each_lives_on();
    let server = down(&launcher);
    let changed = some_settings(|it| process_of(it).args = vec!["--new".into()]);
    server.reconfigure(Event::ProcessChanged, Arc::new(changed.clone())).await.unwrap();
    assert_eq!((server.now().state(), launcher.launches()), (ServerState::Stopped, 0));
    request(&server, Event::StartRequested).await;
    assert_eq!(*launcher.last_settings(), changed);
}

#[tokio::test(start_paused = true)]
async fn retired_server_ends_and_refuses_requests() {
    let launcher = FakeLauncher::with_scripts([LIVES]);
    let (task, server) = Task::new(parts(&launcher, settings("github"), Wanted::Up));
    let task = tokio::spawn(task.run());
    reaches(&server, ServerState::Running).await;
    request(&server, Event::RetireRequested(Retirement::Removed)).await;
    assert_eq!(server.now().state(), ServerState::Stopping);
    request(&server, Event::StartRequested).await;
    timeout(AGES, task).await.expect("it ends").unwrap();
    assert_eq!(server.now().life.state, State::Retired);
    assert_eq!(launcher.living(), 0);
    assert!(matches!(server.request(Event::StartRequested).await, Err(RetiredError)));
    assert_eq!(settles(&server).await.state(), ServerState::Stopped);
}

#[tokio::test(start_paused = true)]
async fn retirement_ends_waiting() {
    let launcher = FakeLauncher::each_lives_on();
    let server = up(&launcher);
    let waiting = tokio::spawn({
        let server = server.clone();
        async move { server.wait_until(|snapshot| snapshot.state() == ServerState::Failed).await }
    });
    reaches(&server, ServerState::Running).await;
    request(&server, Event::RetireRequested(Retirement::Removed)).await;
    let last = timeout(AGES, waiting).await.expect("it is answered").unwrap();
    assert_eq!(last.life.state, State::Retired);
}

#[tokio::test(start_paused = true)]
async fn dropping_last_handle_ends_server() {
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
async fn abandoned_request_is_still_applied() {
    let launcher = FakeLauncher::each_lives_on();
    let server = down(&launcher);
    let impatient = timeout(Duration::ZERO, server.request(Event::StartRequested)).await;
    assert!(impatient.is_err(), "the requester leaves before the reply");
    reaches(&server, ServerState::Running).await;
}

mod successors {
    //! A server that was removed and added again.

    use super::*;

    /// Returns an instance that is ending and the successor that waits for it.
    async fn with_successor(
        launcher: &FakeLauncher,
        wanted: Wanted,
    ) -> (InstanceHandle, InstanceHandle) {
        let old = up(launcher);
        reaches(&old, ServerState::Running).await;
        request(&old, Event::RetireRequested(Retirement::Removed)).await;
        let mut parts = parts(launcher, settings("github"), wanted);
        parts.origin =
            super::super::Origin::Replacement(super::super::Predecessor::Removed(old.clone()));
        (old, spawn(parts))
    }

    fn slow_to_end() -> FakeLauncher {
        FakeLauncher::each_stops_in(5 * SECOND)
    }

    #[tokio::test(start_paused = true)]
    async fn successor_starts_after_predecessor_ends() {
        let launcher = slow_to_end();
        let (old, new) = with_successor(&launcher, Wanted::Up).await;
        let began = Instant::now();
        assert_eq!(new.now().state(), ServerState::Stopping);
        assert_eq!(new.now().life.reason, Reason::WaitingForPredecessor);
        reaches(&new, ServerState::Running).await;
        assert_eq!(began.elapsed(), 5 * SECOND);
        assert_eq!(old.now().life.state, State::Retired);
        assert_eq!((launcher.launches(), launcher.max_living()), (2, 1));
        assert!(new.now().last_exit.is_none(), "the exit of the predecessor is not its own");
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_successor_can_be_stopped() {
        let launcher = slow_to_end();
        let (_old, new) = with_successor(&launcher, Wanted::Up).await;
        request(&new, Event::StopRequested).await;
        sleep(AGES).await;
        assert_eq!((new.now().state(), launcher.launches()), (ServerState::Stopped, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_successor_can_be_retired() {
        let launcher = slow_to_end();
        let (_old, new) = with_successor(&launcher, Wanted::Up).await;
        request(&new, Event::RetireRequested(Retirement::Removed)).await;
        sleep(AGES).await;
        assert_eq!((new.now().life.state, launcher.launches()), (State::Retired, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn successor_wanted_down_stays_down() {
        let launcher = slow_to_end();
        let (_old, new) = with_successor(&launcher, Wanted::Down).await;
        reaches(&new, ServerState::Stopped).await;
        sleep(AGES).await;
        assert_eq!(launcher.launches(), 1);
        request(&new, Event::StartRequested).await;
        reaches(&new, ServerState::Running).await;
    }

    #[tokio::test(start_paused = true)]
    async fn start_does_not_hurry_waiting_successor() {
        let launcher = slow_to_end();
        let (_old, new) = with_successor(&launcher, Wanted::Down).await;
        request(&new, Event::StartRequested).await;
        request(&new, Event::RestartRequested).await;
        let began = Instant::now();
        reaches(&new, ServerState::Running).await;
        assert_eq!(began.elapsed(), 5 * SECOND);
        assert_eq!(launcher.max_living(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn successor_uses_settings_received_while_waiting() {
        let launcher = slow_to_end();
        let (_old, new) = with_successor(&launcher, Wanted::Up).await;
        let changed = some_settings(|it| process_of(it).args = vec!["--newer".into()]);
        new.reconfigure(Event::ProcessChanged, Arc::new(changed.clone())).await.unwrap();
        reaches(&new, ServerState::Running).await;
        assert_eq!(*launcher.last_settings(), changed);
        assert_eq!((launcher.launches(), launcher.max_living()), (2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn chain_of_successors_never_overlaps() {
        let launcher = slow_to_end();
        let (_first, second) = with_successor(&launcher, Wanted::Up).await;
        request(&second, Event::RetireRequested(Retirement::Removed)).await;
        let mut parts = parts(&launcher, settings("github"), Wanted::Up);
        parts.origin =
            super::super::Origin::Replacement(super::super::Predecessor::Removed(second));
        let third = spawn(parts);
        reaches(&third, ServerState::Running).await;
        assert_eq!((launcher.launches(), launcher.max_living()), (2, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn last_attempt_is_broadcast_beside_the_change() {
    let launcher = FakeLauncher::each_lives_for(SECOND);
    let patient = some_settings(|it| it.rules.restart.max_attempts = 2);
    let parts = parts(&launcher, patient, Wanted::Up);
    let mut changes = parts.changes.subscribe();
    let server = spawn(parts);
    reaches(&server, ServerState::Failed).await;
    let mut announced = Vec::new();
    while let Ok(change) = changes.try_recv() {
        if let ChangeKind::LastAttempt(why) = change.kind {
            let StateChange { transition, restart_count, .. } = change;
            announced.push(format!("{} ({restart_count}): {why}", transition.to));
        }
    }
    let expected = "starting (2): final restart attempt (2 of 2)";
    assert_eq!(announced, [expected]);
}
