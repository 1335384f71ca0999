//! Plays on paused time: what is probed when, and what comes of it.

use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio::time::advance;
use xy_config::settings::{Probe, ServerSettings};
use xy_protocol::server::{ServerState, Transport, Wanted};
use xy_shim::wire::{Record, put_record};

use super::*;
use crate::fake::{Bearing, FakeLauncher, SECOND, Script, process_of, remote, settings};
use crate::instance::{InstanceHandle, InstanceKey};
use crate::lifecycle::{Event, Reason};
use crate::task::{Before, Parts, Task};

/// More than any play here takes.
const AGES: Duration = Duration::from_hours(1);

const SILENT: Bearing = Bearing { habit: Habit::Unknown, calls: 0, speaks: false, writes: false };
const IGNORES: Bearing = Bearing { habit: Habit::Ignores, ..SILENT };
const ANSWERS: Bearing = Bearing { habit: Habit::Answers, ..SILENT };

fn begin(launcher: &FakeLauncher, settings: ServerSettings) -> InstanceHandle {
    begin_with(launcher, settings, Arc::new(LogBook::default()))
}

fn begin_with(
    launcher: &FakeLauncher,
    settings: ServerSettings,
    logs: Arc<LogBook>,
) -> InstanceHandle {
    let (task, handle) = Task::new(Parts {
        key: InstanceKey::shared(settings.name.clone()),
        settings: Arc::new(settings),
        wanted: Wanted::Up,
        launcher: Arc::new(launcher.clone()),
        logs,
        changes: broadcast::Sender::new(64),
        before: Before::Nothing,
    });
    tokio::spawn(task.run());
    handle
}

/// A server that answered its first probe, and bears the others like this.
async fn healthy_then(bearing: Bearing) -> (FakeLauncher, InstanceHandle) {
    let launcher = FakeLauncher::each_lives_on();
    launcher.bears(ANSWERS);
    let server = begin(&launcher, settings("a"));
    reaches(&server, |now| now.health == Health::Healthy).await;
    launcher.bears(bearing);
    (launcher, server)
}

async fn reaches(server: &InstanceHandle, is_so: impl Fn(&Snapshot) -> bool) {
    let waited = timeout(AGES, server.wait_until(is_so)).await;
    assert!(waited.is_ok(), "it never came about: {:?}", server.now());
}

#[tokio::test(start_paused = true)]
async fn health_is_unknown_until_the_first_probe_is_answered() {
    let launcher = FakeLauncher::each_lives_on();
    launcher.bears(ANSWERS);
    let server = begin(&launcher, settings("a"));
    reaches(&server, |now| now.state() == ServerState::Running).await;
    assert_eq!(server.now().health, Health::Unknown);
    sleep(SECOND / 2).await;
    assert_eq!((server.now().health, launcher.probes()), (Health::Unknown, 0));
    sleep(SECOND).await;
    assert_eq!((server.now().health, launcher.probes()), (Health::Healthy, 1));
    sleep(29 * SECOND).await;
    assert_eq!(launcher.probes(), 1, "from now on the interval counts");
    sleep(AGES).await;
    assert_eq!(launcher.launches(), 1);
    assert!(launcher.probes() >= 119, "one each 30 s: {}", launcher.probes());
}

#[tokio::test(start_paused = true)]
async fn last_health_check_is_known_after_first_probe() {
    let launcher = FakeLauncher::each_lives_on();
    launcher.bears(ANSWERS);
    let server = begin(&launcher, settings("a"));
    reaches(&server, |now| now.state() == ServerState::Running).await;
    assert_eq!(server.now().last_health_check, None);
    reaches(&server, |now| now.last_health_check.is_some()).await;
    launcher.bears(SILENT);
    let first = server.now().last_health_check;
    reaches(&server, |now| now.last_health_check > first).await;
    assert_eq!(server.now().health, Health::Healthy, "a failed probe counts as a check");
    server.request(Event::RestartRequested).await.unwrap();
    reaches(&server, |now| now.state() == ServerState::Running).await;
    assert_eq!(server.now().last_health_check, None, "nobody has checked this life");
}

#[tokio::test(start_paused = true)]
async fn probe_that_could_not_be_made_is_no_health_check() {
    let launcher = FakeLauncher::each_lives_on();
    launcher.bears(ANSWERS);
    let server = begin(&launcher, settings("a"));
    reaches(&server, |now| now.state() == ServerState::Running).await;
    launcher.stop_speaking();
    sleep(AGES).await;
    server.request(Event::StartRequested).await.unwrap(); // Publishes what the task knows.
    assert_eq!(server.now().last_health_check, None);
}

#[tokio::test(start_paused = true)]
async fn one_that_hangs_before_its_first_regular_probe_is_found_too() {
    let launcher = FakeLauncher::each_lives_on();
    launcher.bears(ANSWERS);
    let server = begin(&launcher, settings("a"));
    sleep(2 * SECOND).await;
    launcher.bears(SILENT);
    reaches(&server, |now| now.state() == ServerState::Stopping).await;
    assert!(matches!(server.now().life.reason, Reason::Unhealthy(_)));
}

#[tokio::test(start_paused = true)]
async fn one_that_hangs_from_the_first_moment_of_its_first_life_is_found_too() {
    for bearing in [SILENT, Bearing { calls: 2, ..SILENT }] {
        let launcher = FakeLauncher::each_lives_on();
        launcher.bears(bearing);
        let server = begin(&launcher, settings("a"));
        reaches(&server, |now| now.state() == ServerState::Stopping).await;
        assert!(matches!(server.now().life.reason, Reason::Unhealthy(_)), "{bearing:?}");
        assert_eq!(launcher.probes(), 4, "an early one that does not count, and three that do");
        launcher.bears(ANSWERS);
        reaches(&server, |now| now.health == Health::Healthy).await;
        assert_eq!(server.now().life.tally.restart_count, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn whether_it_answers_is_asked_once_for_all_lives() {
    for bearing in [ANSWERS, SILENT, IGNORES] {
        let launcher = FakeLauncher::each_lives_on();
        launcher.bears(bearing);
        let server = begin(&launcher, settings("a"));
        sleep(10 * SECOND).await;
        assert_eq!(launcher.probes(), 1);
        for lives in 2..5 {
            server.request(Event::RestartRequested).await.unwrap();
            sleep(29 * SECOND).await;
            assert_eq!((launcher.launches(), launcher.probes()), (lives, 1), "{bearing:?}");
        }
        // Another program is another server.
        let mut other = settings("a");
        process_of(&mut other).command = "another".into();
        server.reconfigure(Event::ProcessChanged, Arc::new(other)).await.unwrap();
        sleep(10 * SECOND).await;
        assert_eq!(launcher.probes(), 2, "{bearing:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_stops_answering_is_started_again_the_normal_way() {
    let (launcher, server) = healthy_then(SILENT).await;
    let began = Instant::now();
    reaches(&server, |now| now.state() == ServerState::Stopping).await;
    assert_eq!(launcher.probes(), 4, "one that was answered, and three that were not");
    assert!((105..=106).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert_eq!(server.now().health, Health::Unhealthy);

    launcher.bears(ANSWERS);
    reaches(&server, |now| now.state() == ServerState::Restarting).await;
    let reason = server.now().life.reason;
    let wanted = "unhealthy: 3 probes in a row failed, the last: no answer within 5s";
    assert_eq!(reason, Reason::Unhealthy(wanted.to_owned()));
    assert!(!server.now().last_exit.unwrap().expected, "it counts");
    reaches(&server, |now| now.state() == ServerState::Running).await;
    assert_eq!(server.now().health, Health::Unknown, "nothing is known of its new life");
    assert_eq!(server.now().life.tally.restart_count, 1);
    reaches(&server, |now| now.health == Health::Healthy).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_hangs_in_each_life_is_given_up() {
    let (launcher, server) = healthy_then(SILENT).await;
    let mut hasty = settings("a");
    hasty.rules.restart.max_attempts = 2;
    hasty.rules.restart.reset_after = AGES;
    server.reconfigure(Event::RulesChanged, Arc::new(hasty)).await.unwrap();
    reaches(&server, |now| now.state() == ServerState::Failed).await;
    assert_eq!(launcher.launches(), 3, "that it answers is known from life to life");
    assert!(server.now().life.reason.to_string().contains("unhealthy"));
}

#[tokio::test(start_paused = true)]
async fn evidence_of_life_outweighs_any_number_of_probes() {
    let speaks = Bearing { speaks: true, ..SILENT };
    let writes_in_calls = Bearing { calls: 1, writes: true, ..SILENT };
    for bearing in [speaks, writes_in_calls] {
        let (launcher, server) = healthy_then(bearing).await;
        sleep(AGES).await;
        assert_eq!(launcher.launches(), 1, "{bearing:?}");
        assert_eq!(server.now().health, Health::Healthy);
        assert!(launcher.probes() > 90, "it is asked all the time: {}", launcher.probes());
    }
    // What writes without being asked anything may do so for ever.
    let (launcher, server) = healthy_then(Bearing { writes: true, ..SILENT }).await;
    reaches(&server, |now| now.state() == ServerState::Stopping).await;
    assert_eq!(launcher.launches(), 1);
}

/// Begins a server that is healthy, and then answers nothing while it has a call. Returns its log.
async fn healthy_then_stuck() -> (FakeLauncher, InstanceHandle, Arc<LogBook>) {
    let launcher = FakeLauncher::each_lives_on();
    launcher.bears(ANSWERS);
    let logs = Arc::new(LogBook::default());
    let server = begin_with(&launcher, settings("a"), logs.clone());
    reaches(&server, |now| now.health == Health::Healthy).await;
    launcher.bears(Bearing { calls: 1, ..SILENT });
    (launcher, server, logs)
}

#[tokio::test(start_paused = true)]
async fn what_is_written_between_two_probes_counts() {
    let (launcher, server, logs) = healthy_then_stuck().await;
    // Each time a probe has been given up and the wait for the next has begun.
    for line in 1..=50 {
        let probes = launcher.probes();
        while launcher.probes() == probes {
            sleep(SECOND).await;
        }
        sleep(10 * SECOND).await;
        logs.push(line, &[]);
    }
    assert_eq!((launcher.launches(), server.now().state()), (1, ServerState::Running));
    assert_eq!(server.now().health, Health::Healthy);
    // Once it has stopped writing too, nothing speaks for it.
    reaches(&server, |now| now.state() == ServerState::Stopping).await;
}

#[tokio::test(start_paused = true)]
async fn lines_that_xy_writes_to_the_log_are_no_sign_of_life() {
    let (_launcher, server, logs) = healthy_then_stuck().await;
    let writing = tokio::spawn(async move {
        for seq in 1.. {
            sleep(10 * SECOND).await;
            let line = b"xy: tools/list: it took longer than 30s";
            let mut batch = Vec::new();
            put_record(&mut batch, Record { seq, unix_millis: 0, flags: 0, line });
            logs.push(seq + 1, &batch);
        }
    });
    reaches(&server, |now| now.state() == ServerState::Stopping).await;
    assert!(matches!(server.now().life.reason, Reason::Unhealthy(_)));
    writing.abort();
}

#[tokio::test(start_paused = true)]
async fn one_that_ignores_it_is_left_in_peace() {
    // It answers other things always, or only at first.
    for later in [IGNORES, SILENT] {
        let launcher = FakeLauncher::each_lives_on();
        launcher.bears(Bearing { calls: 1, ..IGNORES });
        let server = begin(&launcher, settings("a"));
        sleep(10 * SECOND).await;
        launcher.bears(Bearing { calls: 1, ..later });
        sleep(24 * AGES).await;
        assert_eq!(launcher.launches(), 1);
        assert_eq!(launcher.probes(), 4, "it is not asked any more");
        assert_eq!(server.now().health, Health::Unknown);
    }
}

#[tokio::test(start_paused = true)]
async fn where_nobody_speaks_with_it_nothing_is_said() {
    let launcher = FakeLauncher::each_lives_on();
    let server = begin(&launcher, settings("a"));
    sleep(AGES).await;
    assert_eq!((launcher.launches(), launcher.probes()), (1, 0));
    assert_eq!(server.now().health, Health::Unknown);
}

#[tokio::test(start_paused = true)]
async fn a_sleep_of_the_machine_looks_like_no_failure() {
    let (launcher, server) = healthy_then(SILENT).await;
    // All of it in one leap: no clock ticked meanwhile.
    for _ in 0..20 {
        advance(AGES).await;
        sleep(Duration::from_millis(1)).await;
        advance(AGES).await;
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(server.now().state(), ServerState::Running);
    assert_eq!(launcher.launches(), 1);
    // But one that has woken is looked after as before.
    reaches(&server, |now| now.state() == ServerState::Stopping).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_down_is_never_woken_and_what_is_switched_off_is_not_asked() {
    let (launcher, server) = healthy_then(ANSWERS).await;
    server.request(Event::StopRequested).await.unwrap();
    reaches(&server, |now| now.state() == ServerState::Stopped).await;
    let probes = launcher.probes();
    sleep(AGES).await;
    assert_eq!((launcher.probes(), launcher.launches()), (probes, 1));
    assert_eq!(server.now().health, Health::Unknown);

    for (probe, health) in
        [(HealthProbe::Off, Health::Unknown), (HealthProbe::Process, Health::Healthy)]
    {
        let launcher = FakeLauncher::each_lives_on();
        launcher.bears(SILENT);
        let mut settings = settings("a");
        settings.rules.health.probe = probe;
        let server = begin(&launcher, settings);
        sleep(AGES).await;
        assert_eq!((launcher.probes(), launcher.launches()), (0, 1));
        assert_eq!(server.now().health, health);
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_sleeps_is_never_woken_by_a_probe() {
    let launcher = FakeLauncher::each_lives_on();
    launcher.bears(ANSWERS);
    let mut settings = settings("a");
    settings.rules.idle_stop = Some(10 * SECOND);
    let server = begin(&launcher, settings);
    reaches(&server, |now| now.health == Health::Healthy).await;
    server.request(Event::Idle("not used".into())).await.unwrap();
    reaches(&server, |now| now.state() == ServerState::Asleep).await;
    let probes = launcher.probes();
    launcher.bears(SILENT);
    sleep(AGES).await;
    assert_eq!((launcher.launches(), launcher.probes()), (1, probes));
    assert_eq!(server.now().state(), ServerState::Asleep);
}

#[tokio::test(start_paused = true)]
async fn new_rules_apply_to_a_living_server() {
    let (launcher, server) = healthy_then(SILENT).await;
    let mut strict = settings("a");
    strict.rules.health.interval = SECOND;
    strict.rules.health.timeout = SECOND;
    strict.rules.health.failures = 1;
    server.reconfigure(Event::RulesChanged, Arc::new(strict)).await.unwrap();
    let began = Instant::now();
    reaches(&server, |now| now.state() == ServerState::Stopping).await;
    assert_eq!(began.elapsed().as_secs(), 2);
    assert_eq!(launcher.launches(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_elsewhere_that_does_not_answer_is_unreachable_and_not_crashed() {
    let launcher = FakeLauncher::each_lives_on();
    launcher.bears(ANSWERS);
    let server = begin(&launcher, remote("far"));
    reaches(&server, |now| now.health == Health::Healthy).await;
    launcher.bears(Bearing { calls: 1, ..SILENT });
    sleep(AGES).await;
    assert_eq!(server.now().state(), ServerState::Running, "somebody waits for it");

    launcher.bears(SILENT);
    reaches(&server, |now| now.state() == ServerState::Restarting).await;
    let now = server.now();
    assert_eq!(now.health, Health::Unreachable);
    assert_eq!(now.life.tally.restart_count, 0, "nothing is counted");
    launcher.bears(ANSWERS);
    reaches(&server, |now| now.health == Health::Healthy).await;
}

#[tokio::test(start_paused = true)]
async fn one_behind_the_cli_of_an_engine_is_only_judged_while_nobody_waits_for_it() {
    let mut by_cli = settings("a");
    let process = process_of(&mut by_cli);
    process.command = "/usr/bin/docker".into();
    process.args = ["run", "-i", "image"].map(str::to_owned).into();
    let launcher = FakeLauncher::each_lives_on();
    launcher.bears(ANSWERS);
    let server = begin(&launcher, by_cli);
    reaches(&server, |now| now.health == Health::Healthy).await;
    launcher.bears(Bearing { calls: 1, ..SILENT });
    sleep(AGES).await;
    assert_eq!(launcher.launches(), 1, "it may compute in its container");
    assert_eq!(server.now().state(), ServerState::Running);

    launcher.bears(SILENT);
    reaches(&server, |now| now.state() == ServerState::Stopping).await;
    assert!(matches!(server.now().life.reason, Reason::Unhealthy(_)));
}

fn behind(port: u16, probe: Probe) -> ServerSettings {
    let mut settings = settings("a");
    let process = process_of(&mut settings);
    (process.transport, process.port) = (Transport::Http, Some(port));
    settings.rules.ready.probe = probe;
    settings.rules.ready.within = Duration::from_secs(60);
    settings
}

#[tokio::test]
async fn one_that_listens_is_ready_whether_or_not_anybody_speaks_with_it() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let launcher = FakeLauncher::each_lives_on();
    let server = begin(&launcher, behind(port, Probe::Tcp));
    reaches(&server, |now| now.state() == ServerState::Running).await;
    drop(listener);
}

#[tokio::test]
async fn one_that_does_not_listen_is_never_ready() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let launcher = FakeLauncher::plays([Script::Lives { stops_in: Duration::ZERO }]);
    let mut settings = behind(port, Probe::Http);
    settings.rules.ready.within = Duration::from_millis(200);
    let server = begin(&launcher, settings);
    reaches(&server, |now| matches!(now.life.reason, Reason::NeverReady { .. })).await;
    // What it is asked now, it has answered long ago.
    let mut settings = behind(port, Probe::Http);
    settings.rules.restart.backoff_initial = Duration::ZERO;
    server.reconfigure(Event::RulesChanged, Arc::new(settings)).await.unwrap();
    reaches(&server, |now| now.state() == ServerState::Starting).await;
    let by_mcp = Arc::new(behind(port, Probe::Mcp));
    server.reconfigure(Event::RulesChanged, by_mcp).await.unwrap();
    reaches(&server, |now| now.state() == ServerState::Running).await;
}

#[tokio::test]
async fn a_port_that_nobody_listens_at_any_more_is_a_failure() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut settings = behind(port, Probe::Tcp);
    settings.rules.health = HealthRules {
        probe: HealthProbe::Tcp,
        interval: Duration::from_millis(20),
        timeout: Duration::from_millis(200),
        failures: 2,
        path: None,
    };
    let launcher = FakeLauncher::each_lives_on();
    let server = begin(&launcher, settings);
    reaches(&server, |now| now.health == Health::Healthy).await;
    drop(listener);
    reaches(&server, |now| matches!(now.life.reason, Reason::Unhealthy(_))).await;
}

#[tokio::test]
async fn a_try_that_hangs_is_cut_after_its_time_and_made_again() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let mut settings = behind(listener.local_addr().unwrap().port(), Probe::Http);
    let ready = &mut settings.rules.ready;
    assert_eq!(ready.timeout, 2 * SECOND, "so long, if no file says otherwise");
    (ready.timeout, ready.within) = (Duration::from_millis(50), AGES);
    let launcher = FakeLauncher::each_lives_on();
    let server = begin(&launcher, settings);
    // Three are taken and told nothing; without a limit the first would be waited for for ever.
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(timeout(AGES, listener.accept()).await.unwrap().unwrap().0);
    }
    assert_eq!(server.now().state(), ServerState::Starting);
    // From now on each is answered, however late one comes to be.
    let answering = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
        }
    });
    reaches(&server, |now| now.state() == ServerState::Running).await;
    answering.abort();
    // Each was hung up on when its time was over: what it had asked is there, and then the end.
    for mut stream in taken {
        let mut asked = Vec::new();
        stream.read_to_end(&mut asked).await.unwrap();
        assert!(asked.starts_with(b"GET /mcp/health "), "{asked:?}");
    }
}
