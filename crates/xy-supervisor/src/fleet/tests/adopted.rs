//! Servers that an earlier daemon started.

use xy_shim::wire::{ExitReport, PastExit, StatusReport};

use super::*;
use crate::fake::shim_status as status;
use crate::launch::{Ask as InstanceAsk, Instance, InstanceEnds, News};
use crate::lifecycle::note::Note;
use crate::lifecycle::{Exit, Life, Reason};
use crate::logs::LogBook;

/// A server that has run for a while, and the ends that its driver would have.
fn left(name: &str, status: StatusReport) -> (Adopted, InstanceEnds) {
    let (instance, ends) = Instance::pair();
    let now = tokio::time::Instant::now().into_std();
    let state = State::Running { launched_at: now, ready_at: now };
    let life = Life { state, reason: Reason::Ready, ..Life::new(Wanted::Up) };
    let note = Note::of(&life, &Arc::new(settings(name)), now);
    let key = InstanceKey::shared(ServerName::new(name).unwrap());
    let logs = Arc::new(LogBook::default());
    let greeted_at = tokio::time::Instant::now();
    (Adopted { key, note, status, greeted_at, instance, logs }, ends)
}

fn fleet(folder: &Path, launcher: &FakeLauncher, adopted: Vec<Adopted>) -> Fleet {
    let parts = FleetParts {
        limits: xy_config::settings::InstanceSettings::default(),
        launcher: Arc::new(launcher.clone()),
        wishes: Wishes::read(&folder.join("wishes.json")).unwrap().0,
        wishes_file: folder.join("wishes.json"),
        added: AddedServers::read(&folder.join("added.json")).unwrap().0,
        added_file: folder.join("added.json"),
        logs_dir: folder.join("logs"),
        locks_dir: folder.join("shims"),
    };
    Fleet::spawn(parts, adopted)
}

fn instance(fleet: &Fleet, name: &str) -> InstanceHandle {
    fleet.roster()[name].instances[&Holder::Shared].clone()
}

#[tokio::test(start_paused = true)]
async fn a_server_goes_on_without_a_launch_and_its_end_is_heard() {
    let folder = tempfile::tempdir().unwrap();
    let launcher = FakeLauncher::each_lives_on();
    let (one, ends) = left("one", status());
    let fleet = fleet(folder.path(), &launcher, vec![one]);
    let server = instance(&fleet, "one");
    assert_eq!((server.now().state(), server.now().pid), (ServerState::Running, Some(4711)));
    fleet
        .apply([(server.key().server.clone(), server.now().settings)].into(), Broken::default())
        .await
        .unwrap();
    assert_eq!(launcher.launches(), 0);
    ends.news.send(News::Exited(Exit::code(1))).await.unwrap();
    server.wait_until(|it| it.state() == ServerState::Restarting).await;
    assert_eq!(server.now().last_exit.unwrap().exit, Exit::code(1));
    server.wait_until(|it| it.state() == ServerState::Running).await;
    assert_eq!(launcher.launches(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_torn_is_asked_to_stop_and_started_anew() {
    let folder = tempfile::tempdir().unwrap();
    let launcher = FakeLauncher::each_lives_on();
    let (one, mut ends) = left("one", StatusReport { torn: true, ..status() });
    let fleet = fleet(folder.path(), &launcher, vec![one]);
    assert!(matches!(ends.asks.recv().await, Some(InstanceAsk::Stop { .. })));
    ends.news.send(News::Exited(Exit::code(0))).await.unwrap();
    let server = instance(&fleet, "one");
    server.wait_until(|it| it.state() == ServerState::Running).await;
    assert_eq!((launcher.launches(), server.now().life.tally.restarts_total), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn one_that_an_operator_had_stopped_is_stopped_now() {
    let folder = tempfile::tempdir().unwrap();
    let stopped = [ServerName::new("one").unwrap()].into();
    Wishes { stopped }.write(&folder.path().join("wishes.json")).unwrap();
    let (one, mut ends) = left("one", status());
    let fleet = fleet(folder.path(), &FakeLauncher::each_lives_on(), vec![one]);
    assert!(matches!(ends.asks.recv().await, Some(InstanceAsk::Stop { .. })));
    ends.news.send(News::Exited(Exit::code(0))).await.unwrap();
    let server = instance(&fleet, "one");
    server.wait_until(|it| it.state() == ServerState::Stopped).await;
    assert_eq!(server.now().life.wanted, Wanted::Down);
}

#[tokio::test(start_paused = true)]
async fn one_whose_file_is_gone_is_stopped_for_good() {
    let folder = tempfile::tempdir().unwrap();
    let (one, mut ends) = left("one", status());
    let fleet = fleet(folder.path(), &FakeLauncher::each_lives_on(), vec![one]);
    let applied = fleet.apply(ServerMap::new(), Broken::default()).await.unwrap();
    assert_eq!(names(&applied.plan.removed), "one");
    assert!(matches!(ends.asks.recv().await, Some(InstanceAsk::Stop { for_good: true, .. })));
}

#[tokio::test(start_paused = true)]
async fn one_that_has_ended_is_not_there_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let report =
        ExitReport { code: Some(0), signal: None, asked: false, survivors: vec![], oom: None };
    let exited = Some(PastExit { report, ms_ago: 100 });
    let (one, ends) = left("one", StatusReport { exited, ..status() });
    let fleet = fleet(folder.path(), &FakeLauncher::each_lives_on(), vec![one]);
    let server = instance(&fleet, "one");
    assert_eq!(server.now().pid, None);
    ends.news.send(News::Exited(Exit::code(0))).await.unwrap();
    server.wait_until(|it| it.state() == ServerState::Stopped).await;
}

#[tokio::test(start_paused = true)]
async fn whoever_is_let_go_is_neither_stopped_nor_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let (one, mut ends) = left("one", status());
    let fleet = fleet(folder.path(), &FakeLauncher::each_lives_on(), vec![one]);
    let driver = async {
        assert_eq!(ends.asks.recv().await, Some(InstanceAsk::LetGo));
        drop(ends); // It has said goodbye.
    };
    tokio::join!(fleet.let_go(), driver);
    assert!(fleet.ask(Ask::Start, None).await.is_err(), "nothing more is taken");
}

#[tokio::test(start_paused = true)]
async fn the_note_says_what_a_later_daemon_has_to_know() {
    let folder = tempfile::tempdir().unwrap();
    let (one, mut ends) = left("one", status());
    let fleet = fleet(folder.path(), &FakeLauncher::each_lives_on(), vec![one]);
    fleet.ask(Ask::Restart, None).await.unwrap();
    assert!(matches!(ends.asks.recv().await, Some(InstanceAsk::Stop { .. })));
    // It was left before the stop was asked for.
    let note = Note::parse(&ends.notes.borrow_and_update()).unwrap();
    assert_eq!(note.unheard(&status()), Some(crate::lifecycle::Event::RestartRequested));
}

/// Whether it is told to end for good.
async fn is_ended(ends: &mut InstanceEnds) -> bool {
    matches!(ends.asks.recv().await, Some(InstanceAsk::Stop { for_good: true, .. }))
}

#[tokio::test(start_paused = true)]
async fn what_was_for_a_client_of_an_earlier_daemon_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let (mut one, mut ends) = left("one", status());
    one.key.holder = Holder::Client(1);
    let fleet = fleet(folder.path(), &FakeLauncher::each_lives_on(), vec![one]);
    assert!(fleet.roster().is_empty());
    assert!(is_ended(&mut ends).await);
    let (mut late, mut late_ends) = left("one", status());
    late.key.holder = Holder::Client(2);
    fleet.adopt(late, false).await;
    assert!(is_ended(&mut late_ends).await);
}

#[tokio::test(start_paused = true)]
async fn an_added_server_goes_on_unless_its_adding_was_not_finished() {
    let added = |name: &str| {
        let (mut adopted, ends) = left(name, status());
        Arc::make_mut(&mut adopted.note.settings).source.added = true;
        (adopted, ends)
    };
    let folder = tempfile::tempdir().unwrap();
    let ((known, _ends), (unknown, mut unknown_ends)) = (added("known"), added("unknown"));
    let (name, kept) = (known.server().clone(), known.settings().clone());
    let file = AddedServers { servers: [(name, kept.clone())].into() };
    file.write(&folder.path().join("added.json")).unwrap();
    let launcher = FakeLauncher::each_lives_on();
    let fleet = fleet(folder.path(), &launcher, vec![known, unknown]);
    assert!(is_ended(&mut unknown_ends).await);
    fleet.apply([(kept.name.clone(), kept)].into(), Broken::default()).await.unwrap();
    fleet.apply(ServerMap::new(), Broken::default()).await.unwrap();
    assert_eq!(fleet.roster().keys().map(ServerName::as_str).collect::<Vec<_>>(), ["known"]);
    assert_eq!((instance(&fleet, "known").now().pid, launcher.launches()), (Some(4711), 0));
}

#[tokio::test(start_paused = true)]
async fn a_process_goes_on_under_the_name_that_is_wanted_though_its_owners_is_stopped() {
    let name = |text| ServerName::new(text).unwrap();
    for (stopped, is_up) in [(vec!["a"], true), (vec!["b"], true), (vec!["a", "b"], false)] {
        let folder = tempfile::tempdir().unwrap();
        let wishes = Wishes { stopped: stopped.iter().map(|it| name(it)).collect() };
        wishes.write(&folder.path().join("wishes.json")).unwrap();
        let launcher = FakeLauncher::each_lives_on();
        let keyed = |name| ServerSettings { share_key: Some("k".to_owned()), ..settings(name) };
        let (mut one, mut ends) = left("a", status());
        one.note.settings = Arc::new(keyed("a"));
        let fleet = fleet(folder.path(), &launcher, vec![one]);
        let servers = ["a", "b"].map(|it| (name(it), Arc::new(keyed(it))));
        fleet.apply(servers.into(), Broken::default()).await.unwrap();
        sleep(SECOND).await;
        let is_asked = matches!(ends.asks.try_recv(), Ok(InstanceAsk::Stop { .. }));
        assert_eq!((is_asked, launcher.launches()), (!is_up, 0), "{stopped:?}");
        let state = instance(&fleet, "a").now().state();
        assert_eq!(state == ServerState::Running, is_up, "{stopped:?}");
        for server in ["a", "b"] {
            assert_eq!(fleet.roster()[server].is_hidden(), stopped.contains(&server));
        }
    }
}
