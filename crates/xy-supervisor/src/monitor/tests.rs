//! When an instance is probed and what follows, on paused time.

use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio::time::advance;
use xy_config::settings::{Probe, ServerSettings};
use xy_protocol::server::{ServerState, Transport, Wanted};
use xy_shim::wire::{Record, put_record};

use super::*;
use crate::fake::{FakeLauncher, ProbeBehavior, SECOND, Script, process_of, remote, settings};
use crate::instance::{InstanceHandle, InstanceKey};
use crate::lifecycle::{Event, Reason};
use crate::task::{Origin, Parts, Task};

/// Longer than any test here takes.
const AGES: Duration = Duration::from_hours(1);

const SILENT: ProbeBehavior =
    ProbeBehavior { probe_support: ProbeSupport::Unknown, calls: 0, speaks: false, writes: false };
const IGNORES: ProbeBehavior = ProbeBehavior { probe_support: ProbeSupport::Unsupported, ..SILENT };
const ANSWERS: ProbeBehavior = ProbeBehavior { probe_support: ProbeSupport::Supported, ..SILENT };

fn start(launcher: &FakeLauncher, settings: ServerSettings) -> InstanceHandle {
    start_with(launcher, settings, Arc::new(LogBook::default()))
}

fn start_with(
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
        origin: Origin::New,
    });
    tokio::spawn(task.run());
    handle
}

/// Starts a server that answers its first probe and shows `bearing` from then on.
async fn healthy_then(bearing: ProbeBehavior) -> (FakeLauncher, InstanceHandle) {
    let launcher = FakeLauncher::each_lives_on();
    launcher.set_behavior(ANSWERS);
    let server = start(&launcher, settings("a"));
    reaches(&server, |now| now.health == Health::Healthy).await;
    launcher.set_behavior(bearing);
    (launcher, server)
}

async fn reaches(server: &InstanceHandle, is_so: impl Fn(&Snapshot) -> bool) {
    let waited = timeout(AGES, server.wait_until(is_so)).await;
    assert!(waited.is_ok(), "the state was never reached: {:?}", server.now());
}

#[tokio::test(start_paused = true)]
async fn health_is_unknown_until_the_first_probe_is_answered() {
    let launcher = FakeLauncher::each_lives_on();
    launcher.set_behavior(ANSWERS);
    let server = start(&launcher, settings("a"));
    reaches(&server, |now| now.state() == ServerState::Running).await;
    assert_eq!(server.now().health, Health::Unknown);
    sleep(SECOND / 2).await;
    assert_eq!((server.now().health, launcher.probes()), (Health::Unknown, 0));
    sleep(SECOND).await;
    assert_eq!((server.now().health, launcher.probes()), (Health::Healthy, 1));
    sleep(29 * SECOND).await;
    assert_eq!(launcher.probes(), 1, "the regular interval applies from now on");
    sleep(AGES).await;
    assert_eq!(launcher.launches(), 1);
    assert!(launcher.probes() >= 119, "one each 30 s: {}", launcher.probes());
}

#[tokio::test(start_paused = true)]
async fn last_health_check_is_known_after_first_probe() {
    let launcher = FakeLauncher::each_lives_on();
    launcher.set_behavior(ANSWERS);
    let server = start(&launcher, settings("a"));
    reaches(&server, |now| now.state() == ServerState::Running).await;
    assert_eq!(server.now().last_health_check, None);
    reaches(&server, |now| now.last_health_check.is_some()).await;
    launcher.set_behavior(SILENT);
    let first = server.now().last_health_check;
    reaches(&server, |now| now.last_health_check > first).await;
    assert_eq!(server.now().health, Health::Healthy, "a failed probe counts as a check");
    server.request(Event::RestartRequested).await.unwrap();
    reaches(&server, |now| now.state() == ServerState::Running).await;
    assert_eq!(server.now().last_health_check, None, "this life has not been checked");
}

#[tokio::test(start_paused = true)]
async fn unsent_probe_is_no_health_check() {
    let launcher = FakeLauncher::each_lives_on();
    launcher.set_behavior(ANSWERS);
    let server = start(&launcher, settings("a"));
    reaches(&server, |now| now.state() == ServerState::Running).await;
    launcher.disconnect_driver();
    sleep(AGES).await;
    server.request(Event::StartRequested).await.unwrap(); // Publishes what the task knows.
    assert_eq!(server.now().last_health_check, None);
}

#[tokio::test(start_paused = true)]
async fn hang_before_first_regular_probe_is_found() {
    let launcher = FakeLauncher::each_lives_on();
    launcher.set_behavior(ANSWERS);
    let server = start(&launcher, settings("a"));
    sleep(2 * SECOND).await;
    launcher.set_behavior(SILENT);
    reaches(&server, |now| now.state() == ServerState::Stopping).await;
    assert!(matches!(server.now().life.reason, Reason::Unhealthy(_)));
}

#[tokio::test(start_paused = true)]
async fn server_that_hangs_from_the_start_is_found() {
    for bearing in [SILENT, ProbeBehavior { calls: 2, ..SILENT }] {
        let launcher = FakeLauncher::each_lives_on();
        launcher.set_behavior(bearing);
        let server = start(&launcher, settings("a"));
        reaches(&server, |now| now.state() == ServerState::Stopping).await;
        assert!(matches!(server.now().life.reason, Reason::Unhealthy(_)), "{bearing:?}");
        assert_eq!(launcher.probes(), 4, "the early probe does not count, three others do");
        launcher.set_behavior(ANSWERS);
        reaches(&server, |now| now.health == Health::Healthy).await;
        assert_eq!(server.now().life.tally.restart_count, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn early_probe_is_sent_once_for_all_lives() {
    for bearing in [ANSWERS, SILENT, IGNORES] {
        let launcher = FakeLauncher::each_lives_on();
        launcher.set_behavior(bearing);
        let server = start(&launcher, settings("a"));
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
async fn hung_server_is_restarted_and_counted() {
    let (launcher, server) = healthy_then(SILENT).await;
    let began = Instant::now();
    reaches(&server, |now| now.state() == ServerState::Stopping).await;
    assert_eq!(launcher.probes(), 4, "one was answered, three were not");
    assert!((105..=106).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert_eq!(server.now().health, Health::Unhealthy);

    launcher.set_behavior(ANSWERS);
    reaches(&server, |now| now.state() == ServerState::Restarting).await;
    let reason = server.now().life.reason;
    let expected = "unhealthy: 3 probes in a row failed, the last: no answer within 5s";
    assert_eq!(reason, Reason::Unhealthy(expected.to_owned()));
    assert!(!server.now().last_exit.unwrap().expected, "it counts");
    reaches(&server, |now| now.state() == ServerState::Running).await;
    assert_eq!(server.now().health, Health::Unknown, "the new life has not been probed");
    assert_eq!(server.now().life.tally.restart_count, 1);
    reaches(&server, |now| now.health == Health::Healthy).await;
}

#[tokio::test(start_paused = true)]
async fn server_that_hangs_in_each_life_is_given_up() {
    let (launcher, server) = healthy_then(SILENT).await;
    let mut hasty = settings("a");
    hasty.rules.restart.max_attempts = 2;
    hasty.rules.restart.reset_after = AGES;
    server.reconfigure(Event::RulesChanged, Arc::new(hasty)).await.unwrap();
    reaches(&server, |now| now.state() == ServerState::Failed).await;
    assert_eq!(launcher.launches(), 3, "probe support is remembered over lives");
    assert!(server.now().life.reason.to_string().contains("unhealthy"));
}

#[tokio::test(start_paused = true)]
async fn evidence_of_life_outweighs_failed_probes() {
    let speaks = ProbeBehavior { speaks: true, ..SILENT };
    let writes_in_calls = ProbeBehavior { calls: 1, writes: true, ..SILENT };
    for bearing in [speaks, writes_in_calls] {
        let (launcher, server) = healthy_then(bearing).await;
        sleep(AGES).await;
        assert_eq!(launcher.launches(), 1, "{bearing:?}");
        assert_eq!(server.now().health, Health::Healthy);
        assert!(launcher.probes() > 90, "it is still probed: {}", launcher.probes());
    }
    // Output without a call is no evidence: a hung server may write forever.
    let (launcher, server) = healthy_then(ProbeBehavior { writes: true, ..SILENT }).await;
    reaches(&server, |now| now.state() == ServerState::Stopping).await;
    assert_eq!(launcher.launches(), 1);
}

/// Starts a server that is healthy, then answers nothing while it has a call. Returns its log.
async fn healthy_then_stuck() -> (FakeLauncher, InstanceHandle, Arc<LogBook>) {
    let launcher = FakeLauncher::each_lives_on();
    launcher.set_behavior(ANSWERS);
    let logs = Arc::new(LogBook::default());
    let server = start_with(&launcher, settings("a"), logs.clone());
    reaches(&server, |now| now.health == Health::Healthy).await;
    launcher.set_behavior(ProbeBehavior { calls: 1, ..SILENT });
    (launcher, server, logs)
}

#[tokio::test(start_paused = true)]
async fn output_between_probes_is_evidence() {
    let (launcher, server, logs) = healthy_then_stuck().await;
    // Writes a line each time after a probe has timed out, while the next one is awaited.
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
    // Once it stops writing too, there is no evidence of life.
    reaches(&server, |now| now.state() == ServerState::Stopping).await;
}

#[tokio::test(start_paused = true)]
async fn log_lines_of_xy_are_no_evidence() {
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
async fn program_without_probe_support_is_not_probed_again() {
    // The server answers other requests always, or only at first.
    for later in [IGNORES, SILENT] {
        let launcher = FakeLauncher::each_lives_on();
        launcher.set_behavior(ProbeBehavior { calls: 1, ..IGNORES });
        let server = start(&launcher, settings("a"));
        sleep(10 * SECOND).await;
        launcher.set_behavior(ProbeBehavior { calls: 1, ..later });
        sleep(24 * AGES).await;
        assert_eq!(launcher.launches(), 1);
        assert_eq!(launcher.probes(), 4, "it is not probed any more");
        assert_eq!(server.now().health, Health::Unknown);
    }
}

#[tokio::test(start_paused = true)]
async fn server_without_driver_is_not_probed() {
    let launcher = FakeLauncher::each_lives_on();
    let server = start(&launcher, settings("a"));
    sleep(AGES).await;
    assert_eq!((launcher.launches(), launcher.probes()), (1, 0));
    assert_eq!(server.now().health, Health::Unknown);
}

#[tokio::test(start_paused = true)]
async fn suspended_machine_is_no_failure() {
    let (launcher, server) = healthy_then(SILENT).await;
    // Each suspension is one leap: no timer fires meanwhile.
    for _ in 0..20 {
        advance(AGES).await;
        sleep(Duration::from_millis(1)).await;
        advance(AGES).await;
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(server.now().state(), ServerState::Running);
    assert_eq!(launcher.launches(), 1);
    // Once the machine is awake, the server is probed as before.
    reaches(&server, |now| now.state() == ServerState::Stopping).await;
}

#[tokio::test(start_paused = true)]
async fn stopped_server_and_disabled_probe_are_left_alone() {
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
        launcher.set_behavior(SILENT);
        let mut settings = settings("a");
        settings.rules.health.probe = probe;
        let server = start(&launcher, settings);
        sleep(AGES).await;
        assert_eq!((launcher.probes(), launcher.launches()), (0, 1));
        assert_eq!(server.now().health, health);
    }
}

#[tokio::test(start_paused = true)]
async fn probe_never_wakes_sleeping_server() {
    let launcher = FakeLauncher::each_lives_on();
    launcher.set_behavior(ANSWERS);
    let mut settings = settings("a");
    settings.rules.idle_stop = Some(10 * SECOND);
    let server = start(&launcher, settings);
    reaches(&server, |now| now.health == Health::Healthy).await;
    server.request(Event::Idle("not used".into())).await.unwrap();
    reaches(&server, |now| now.state() == ServerState::Asleep).await;
    let probes = launcher.probes();
    launcher.set_behavior(SILENT);
    sleep(AGES).await;
    assert_eq!((launcher.launches(), launcher.probes()), (1, probes));
    assert_eq!(server.now().state(), ServerState::Asleep);
}

#[tokio::test(start_paused = true)]
async fn new_rules_apply_to_running_server() {
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
async fn silent_remote_server_is_unreachable() {
    let launcher = FakeLauncher::each_lives_on();
    launcher.set_behavior(ANSWERS);
    let server = start(&launcher, remote("far"));
    reaches(&server, |now| now.health == Health::Healthy).await;
    launcher.set_behavior(ProbeBehavior { calls: 1, ..SILENT });
    sleep(AGES).await;
    assert_eq!(server.now().state(), ServerState::Running, "a client waits for it");

    launcher.set_behavior(SILENT);
    reaches(&server, |now| now.state() == ServerState::Restarting).await;
    let now = server.now();
    assert_eq!(now.health, Health::Unreachable);
    assert_eq!(now.life.tally.restart_count, 0, "nothing is counted");
    launcher.set_behavior(ANSWERS);
    reaches(&server, |now| now.health == Health::Healthy).await;
}

#[tokio::test(start_paused = true)]
async fn server_behind_docker_cli_with_calls_is_not_judged() {
    let mut by_cli = settings("a");
    let process = process_of(&mut by_cli);
    process.command = "/usr/bin/docker".into();
    process.args = ["run", "-i", "image"].map(str::to_owned).into();
    let launcher = FakeLauncher::each_lives_on();
    launcher.set_behavior(ANSWERS);
    let server = start(&launcher, by_cli);
    reaches(&server, |now| now.health == Health::Healthy).await;
    launcher.set_behavior(ProbeBehavior { calls: 1, ..SILENT });
    sleep(AGES).await;
    assert_eq!(launcher.launches(), 1, "it may be busy in its container");
    assert_eq!(server.now().state(), ServerState::Running);

    launcher.set_behavior(SILENT);
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
async fn open_port_makes_server_ready() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let launcher = FakeLauncher::each_lives_on();
    let server = start(&launcher, behind(port, Probe::Tcp));
    reaches(&server, |now| now.state() == ServerState::Running).await;
    drop(listener);
}

#[tokio::test]
async fn server_without_open_port_is_never_ready() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let launcher = FakeLauncher::with_scripts([Script::Lives { stops_in: Duration::ZERO }]);
    let mut settings = behind(port, Probe::Http);
    settings.rules.ready.within = Duration::from_millis(200);
    let server = start(&launcher, settings);
    reaches(&server, |now| matches!(now.life.reason, Reason::NeverReady { .. })).await;
    // The driver reported readiness long ago, so a change to that probe makes it ready.
    let mut settings = behind(port, Probe::Http);
    settings.rules.restart.backoff_initial = Duration::ZERO;
    server.reconfigure(Event::RulesChanged, Arc::new(settings)).await.unwrap();
    reaches(&server, |now| now.state() == ServerState::Starting).await;
    let by_mcp = Arc::new(behind(port, Probe::Mcp));
    server.reconfigure(Event::RulesChanged, by_mcp).await.unwrap();
    reaches(&server, |now| now.state() == ServerState::Running).await;
}

#[tokio::test]
async fn closed_port_is_a_failure() {
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
    let server = start(&launcher, settings);
    reaches(&server, |now| now.health == Health::Healthy).await;
    drop(listener);
    reaches(&server, |now| matches!(now.life.reason, Reason::Unhealthy(_))).await;
}

#[tokio::test]
async fn hanging_attempt_is_cancelled_and_repeated() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let mut settings = behind(listener.local_addr().unwrap().port(), Probe::Http);
    let ready = &mut settings.rules.ready;
    assert_eq!(ready.timeout, 2 * SECOND, "the default");
    (ready.timeout, ready.within) = (Duration::from_millis(50), AGES);
    let launcher = FakeLauncher::each_lives_on();
    let server = start(&launcher, settings);
    // Three connections get no response. Without a timeout the first would wait forever.
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(timeout(AGES, listener.accept()).await.unwrap().unwrap().0);
    }
    assert_eq!(server.now().state(), ServerState::Starting);
    // From now on each connection is answered.
    let answering = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
        }
    });
    reaches(&server, |now| now.state() == ServerState::Running).await;
    answering.abort();
    // Each silent connection was closed at its timeout: it holds the request and then the end.
    for mut stream in silent {
        let mut request = Vec::new();
        stream.read_to_end(&mut request).await.unwrap();
        assert!(request.starts_with(b"GET /mcp/health "), "{request:?}");
    }
}
