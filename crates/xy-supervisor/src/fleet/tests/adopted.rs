//! Servers that an earlier daemon started.

use xy_protocol::server::Era;
use xy_shim::wire::{ExitReport, PastExit, StatusReport};

use super::*;
use crate::fake::shim_status as status;
use crate::launch::{LifeChannels, LifeCommand, LifeEvent, LifeHandle};
use crate::lifecycle::note::Note;
use crate::lifecycle::{Exit, Life, Reason};
use crate::logs::LogBook;

/// Returns a server that has run for a while, and the channels of its driver.
fn old_instance(name: &str, status: StatusReport) -> (AdoptedLife, LifeChannels) {
    let (handle, ends) = LifeHandle::pair();
    let now = tokio::time::Instant::now().into_std();
    let state = State::Running { launched_at: now, ready_at: now };
    let life = Life { state, reason: Reason::Ready, ..Life::new(Wanted::Up) };
    let note = Note::of(&life, &Arc::new(settings(name)), now);
    let key = InstanceKey::shared(ServerName::new(name).unwrap());
    let logs = Arc::new(LogBook::default());
    let status_at = tokio::time::Instant::now();
    (AdoptedLife { key, note, status, status_at, handle, logs }, ends)
}

fn fleet(folder: &Path, launcher: &FakeLauncher, adopted: Vec<AdoptedLife>) -> Fleet {
    let parts = FleetParts {
        limits: xy_config::settings::InstanceSettings::default(),
        launcher: Arc::new(launcher.clone()),
        desired: DesiredState::read(&folder.join("desired.json")).unwrap().0,
        desired_state_file: folder.join("desired.json"),
        runtime_servers: RuntimeServers::read(&folder.join("added.json")).unwrap().0,
        runtime_servers_file: folder.join("added.json"),
        logs_dir: folder.join("logs"),
        locks_dir: folder.join("shims"),
    };
    Fleet::spawn(parts, adopted)
}

fn instance(fleet: &Fleet, name: &str) -> InstanceHandle {
    fleet.roster()[name].instances[&Holder::Shared].clone()
}

#[tokio::test(start_paused = true)]
async fn adopted_server_continues_and_reports_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let launcher = FakeLauncher::each_lives_on();
    let (one, ends) = old_instance("one", status());
    let fleet = fleet(folder.path(), &launcher, vec![one]);
    let server = instance(&fleet, "one");
    assert_eq!((server.now().state(), server.now().pid), (ServerState::Running, Some(4711)));
    fleet
        .apply(
            [(server.key().server.clone(), server.now().settings)].into(),
            BrokenServers::default(),
        )
        .await
        .unwrap();
    assert_eq!(launcher.launches(), 0);
    ends.events.send(LifeEvent::Exited(Exit::code(1))).await.unwrap();
    server.wait_until(|it| it.state() == ServerState::Restarting).await;
    assert_eq!(server.now().last_exit.unwrap().exit, Exit::code(1));
    server.wait_until(|it| it.state() == ServerState::Running).await;
    assert_eq!(launcher.launches(), 1);
}

/// Returns the second process of a server, for clients of the modern era.
fn old_second_process(name: &str) -> (AdoptedLife, LifeChannels) {
    let (mut instance, ends) = old_instance(name, status());
    instance.key.holder = Holder::Era(Era::Modern);
    instance.note.settings = settings_for(instance.key.holder, &instance.note.settings);
    (instance, ends)
}

#[tokio::test(start_paused = true)]
async fn second_process_continues_beside_the_shared_one() {
    let folder = tempfile::tempdir().unwrap();
    let launcher = FakeLauncher::each_lives_on();
    let (second, _second_ends) = old_second_process("one");
    let (shared, _shared_ends) = old_instance("one", status());
    let fleet = fleet(folder.path(), &launcher, vec![second, shared]);
    let settings = instance(&fleet, "one").now().settings;
    let name = instance(&fleet, "one").key().server.clone();
    fleet.apply([(name, settings)].into(), BrokenServers::default()).await.unwrap();
    let roster = fleet.roster();
    assert_eq!(roster["one"].settings.rules.idle_stop, None, "that is a rule of the second one");
    let states = roster["one"].instances.values().map(|it| it.now().state());
    assert_eq!(states.collect::<Vec<_>>(), [ServerState::Running; 2]);
    assert_eq!(launcher.launches(), 0);
}

#[tokio::test(start_paused = true)]
async fn second_process_that_is_found_late_gets_the_current_settings() {
    let folder = tempfile::tempdir().unwrap();
    let (shared, _shared_ends) = old_instance("one", status());
    let fleet = fleet(folder.path(), &FakeLauncher::each_lives_on(), vec![shared]);
    let mut settings = instance(&fleet, "one").now().settings;
    Arc::make_mut(&mut settings).rules.restart.max_attempts = 77;
    let name = instance(&fleet, "one").key().server.clone();
    fleet.apply([(name, settings.clone())].into(), BrokenServers::default()).await.unwrap();

    let (second, _second_ends) = old_second_process("one");
    fleet.adopt(second, false).await;
    let mut rosters = fleet.watch_roster();
    let roster =
        rosters.wait_for(|roster| roster["one"].instances.len() == 2).await.unwrap().clone();
    assert_eq!(roster["one"].settings, settings);
    let second = &roster["one"].instances[&Holder::Era(Era::Modern)];
    second.wait_until(|it| it.settings.rules.restart.max_attempts == 77).await;
    assert_eq!(second.now().state(), ServerState::Running);
    assert_eq!(second.now().settings.rules.idle_stop, Some(SECOND_IDLE_STOP));
}

#[tokio::test(start_paused = true)]
async fn second_process_without_the_shared_one_is_retired() {
    let folder = tempfile::tempdir().unwrap();
    let (second, mut ends) = old_second_process("one");
    let fleet = fleet(folder.path(), &FakeLauncher::each_lives_on(), vec![second]);
    assert!(matches!(ends.commands.recv().await, Some(LifeCommand::Stop { for_good: true, .. })));
    assert!(fleet.roster().is_empty());
}

#[tokio::test(start_paused = true)]
async fn server_with_interrupted_write_is_restarted() {
    let folder = tempfile::tempdir().unwrap();
    let launcher = FakeLauncher::each_lives_on();
    let (one, mut ends) = old_instance("one", StatusReport { torn: true, ..status() });
    let fleet = fleet(folder.path(), &launcher, vec![one]);
    assert!(matches!(ends.commands.recv().await, Some(LifeCommand::Stop { .. })));
    ends.events.send(LifeEvent::Exited(Exit::code(0))).await.unwrap();
    let server = instance(&fleet, "one");
    server.wait_until(|it| it.state() == ServerState::Running).await;
    assert_eq!((launcher.launches(), server.now().life.tally.restarts_total), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn server_wanted_down_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let stopped = [ServerName::new("one").unwrap()].into();
    DesiredState { stopped }.write(&folder.path().join("desired.json")).unwrap();
    let (one, mut ends) = old_instance("one", status());
    let fleet = fleet(folder.path(), &FakeLauncher::each_lives_on(), vec![one]);
    assert!(matches!(ends.commands.recv().await, Some(LifeCommand::Stop { .. })));
    ends.events.send(LifeEvent::Exited(Exit::code(0))).await.unwrap();
    let server = instance(&fleet, "one");
    server.wait_until(|it| it.state() == ServerState::Stopped).await;
    assert_eq!(server.now().life.wanted, Wanted::Down);
}

#[tokio::test(start_paused = true)]
async fn server_without_file_is_retired() {
    let folder = tempfile::tempdir().unwrap();
    let (one, mut ends) = old_instance("one", status());
    let fleet = fleet(folder.path(), &FakeLauncher::each_lives_on(), vec![one]);
    let applied = fleet.apply(ServerMap::new(), BrokenServers::default()).await.unwrap();
    assert_eq!(names(&applied.plan.removed), "one");
    assert!(matches!(ends.commands.recv().await, Some(LifeCommand::Stop { for_good: true, .. })));
}

#[tokio::test(start_paused = true)]
async fn ended_server_is_not_running() {
    let folder = tempfile::tempdir().unwrap();
    let report =
        ExitReport { code: Some(0), signal: None, asked: false, survivors: vec![], oom: None };
    let exited = Some(PastExit { report, ms_ago: 100 });
    let (one, ends) = old_instance("one", StatusReport { exited, ..status() });
    let fleet = fleet(folder.path(), &FakeLauncher::each_lives_on(), vec![one]);
    let server = instance(&fleet, "one");
    assert_eq!(server.now().pid, None);
    ends.events.send(LifeEvent::Exited(Exit::code(0))).await.unwrap();
    server.wait_until(|it| it.state() == ServerState::Stopped).await;
}

#[tokio::test(start_paused = true)]
async fn handed_over_server_is_not_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let (one, mut ends) = old_instance("one", status());
    let fleet = fleet(folder.path(), &FakeLauncher::each_lives_on(), vec![one]);
    let driver = async {
        assert_eq!(ends.commands.recv().await, Some(LifeCommand::HandOver));
        drop(ends); // The driver has ended.
    };
    tokio::join!(fleet.hand_over(), driver);
    assert!(fleet.operate(Operation::Start, None).await.is_err(), "operations are refused");
}

#[tokio::test(start_paused = true)]
async fn note_informs_later_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let (one, mut ends) = old_instance("one", status());
    let fleet = fleet(folder.path(), &FakeLauncher::each_lives_on(), vec![one]);
    fleet.operate(Operation::Restart, None).await.unwrap();
    assert!(matches!(ends.commands.recv().await, Some(LifeCommand::Stop { .. })));
    // The note was left before the stop was requested.
    let note = Note::parse(&ends.notes.borrow_and_update()).unwrap();
    assert_eq!(note.missed_event(&status()), Some(crate::lifecycle::Event::RestartRequested));
}

/// Returns true if the instance is told to end for good.
async fn is_stopped_for_good(ends: &mut LifeChannels) -> bool {
    matches!(ends.commands.recv().await, Some(LifeCommand::Stop { for_good: true, .. }))
}

#[tokio::test(start_paused = true)]
async fn client_instance_of_earlier_daemon_is_retired() {
    let folder = tempfile::tempdir().unwrap();
    let (mut one, mut ends) = old_instance("one", status());
    one.key.holder = Holder::Client(1);
    let fleet = fleet(folder.path(), &FakeLauncher::each_lives_on(), vec![one]);
    assert!(fleet.roster().is_empty());
    assert!(is_stopped_for_good(&mut ends).await);
    let (mut late, mut late_ends) = old_instance("one", status());
    late.key.holder = Holder::Client(2);
    fleet.adopt(late, false).await;
    assert!(is_stopped_for_good(&mut late_ends).await);
}

#[tokio::test(start_paused = true)]
async fn added_server_continues_only_if_established() {
    let added = |name: &str| {
        let (mut adopted, ends) = old_instance(name, status());
        Arc::make_mut(&mut adopted.note.settings).source.added = true;
        (adopted, ends)
    };
    let folder = tempfile::tempdir().unwrap();
    let ((known, _ends), (unknown, mut unknown_ends)) = (added("known"), added("unknown"));
    let (name, kept) = (known.server().clone(), known.settings().clone());
    let file = RuntimeServers { servers: [(name, kept.clone())].into() };
    file.write(&folder.path().join("added.json")).unwrap();
    let launcher = FakeLauncher::each_lives_on();
    let fleet = fleet(folder.path(), &launcher, vec![known, unknown]);
    assert!(is_stopped_for_good(&mut unknown_ends).await);
    fleet.apply([(kept.name.clone(), kept)].into(), BrokenServers::default()).await.unwrap();
    fleet.apply(ServerMap::new(), BrokenServers::default()).await.unwrap();
    assert_eq!(fleet.roster().keys().map(ServerName::as_str).collect::<Vec<_>>(), ["known"]);
    assert_eq!((instance(&fleet, "known").now().pid, launcher.launches()), (Some(4711), 0));
}

#[tokio::test(start_paused = true)]
async fn shared_process_continues_for_wanted_name() {
    let name = |text| ServerName::new(text).unwrap();
    for (stopped, is_up) in [(vec!["a"], true), (vec!["b"], true), (vec!["a", "b"], false)] {
        let folder = tempfile::tempdir().unwrap();
        let desired = DesiredState { stopped: stopped.iter().map(|it| name(it)).collect() };
        desired.write(&folder.path().join("desired.json")).unwrap();
        let launcher = FakeLauncher::each_lives_on();
        let keyed = |name| ServerSettings { share_key: Some("k".to_owned()), ..settings(name) };
        let (mut one, mut ends) = old_instance("a", status());
        one.note.settings = Arc::new(keyed("a"));
        let fleet = fleet(folder.path(), &launcher, vec![one]);
        let servers = ["a", "b"].map(|it| (name(it), Arc::new(keyed(it))));
        fleet.apply(servers.into(), BrokenServers::default()).await.unwrap();
        sleep(SECOND).await;
        let is_stopped = matches!(ends.commands.try_recv(), Ok(LifeCommand::Stop { .. }));
        assert_eq!((is_stopped, launcher.launches()), (!is_up, 0), "{stopped:?}");
        let state = instance(&fleet, "a").now().state();
        assert_eq!(state == ServerState::Running, is_up, "{stopped:?}");
        for server in ["a", "b"] {
            assert_eq!(fleet.roster()[server].is_hidden(), stopped.contains(&server));
        }
    }
}
