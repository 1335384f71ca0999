//! Servers with a second process, for the clients of one era.

use xy_protocol::server::Era;

use super::*;
use crate::instance::SECOND_IDLE_STOP;
use crate::lifecycle::Event;

const SECOND_ONE: Holder = Holder::Era(Era::Modern);

fn name(text: &str) -> ServerName {
    ServerName::new(text).unwrap()
}

#[tokio::test(start_paused = true)]
async fn second_process_stops_with_shared_instance() {
    let fixture = TestFleet::with(FakeLauncher::each_stops_in(SECOND), &[settings("a")]).await;
    let a = name("a");
    let (one, again) =
        tokio::join!(fixture.fleet.hold(&a, SECOND_ONE), fixture.fleet.hold(&a, SECOND_ONE));
    settled(&one.unwrap()).await;
    settled(&again.unwrap()).await;
    assert_eq!(fixture.launcher.launched(), ["a", "a@modern"]);
    let outcome = fixture.fleet.operate(Operation::Stop, None).await.unwrap();
    assert_eq!(outcome.applied.len(), 2);
    for it in &outcome.applied {
        settled(&it.instance).await;
        assert_eq!(it.instance.now().state(), ServerState::Stopped);
    }
    let refused = fixture.fleet.hold(&name("a"), SECOND_ONE).await;
    assert!(matches!(refused, Err(HoldError::Stopped)), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn restart_replaces_both_processes() {
    let fixture = TestFleet::with(FakeLauncher::each_stops_in(SECOND), &[settings("a")]).await;
    let second = fixture.fleet.hold(&name("a"), SECOND_ONE).await.unwrap();
    settled(&second).await;
    let outcome = fixture.operate(Operation::Restart, &["a"]).await;
    assert_eq!(applied(&outcome), ["a was running", "a@modern was running"]);
    fixture.settle().await;
    let mut launched = fixture.launcher.launched();
    launched[2..].sort();
    assert_eq!(launched, ["a", "a@modern", "a", "a@modern"]);
    for instance in [&fixture.server("a"), &second] {
        assert_eq!(instance.now().state(), ServerState::Running);
    }
}

#[tokio::test(start_paused = true)]
async fn second_process_counts_towards_the_limit() {
    let (launcher, folder) = (FakeLauncher::each_stops_in(SECOND), tempfile::tempdir().unwrap());
    let fleet = fleet_with(folder.path(), &launcher, InstanceSettings { most: 2, memory: None });
    let fixture = TestFleet { folder, launcher, fleet };
    fixture.apply(&[settings("a"), settings("b")]).await;
    fixture.settle().await;
    let refused = |outcome| {
        let Err(HoldError::NoRoom(full)) = outcome else { panic!("there is room") };
        full.by
    };
    // The server has one process already, and the limit has no room for its second one.
    let by = refused(fixture.fleet.hold(&name("a"), SECOND_ONE).await);
    assert_eq!(by, [(name("a"), 1), (name("b"), 1)]);
    fixture.operate(Operation::Stop, &["b"]).await;
    fixture.settle().await;
    settled(&fixture.fleet.hold(&name("a"), SECOND_ONE).await.unwrap()).await;
    let mut isolated = settings("c");
    isolated.isolation = Isolation::Client;
    fixture.apply(&[settings("a"), isolated]).await;
    let by = refused(fixture.fleet.hold(&name("c"), Holder::Client(1)).await);
    assert_eq!(by, [(name("a"), 2)], "both processes of the server count");
}

#[tokio::test(start_paused = true)]
async fn idle_second_process_sleeps_and_wakes_on_use() {
    let fixture = TestFleet::with(FakeLauncher::each_stops_in(SECOND), &[settings("a")]).await;
    let second = fixture.fleet.hold(&name("a"), SECOND_ONE).await.unwrap();
    settled(&second).await;
    assert_eq!(second.now().settings.rules.idle_stop, Some(SECOND_IDLE_STOP));
    second.request(Event::Idle("not used".to_owned())).await.unwrap();
    settled(&second).await;
    assert_eq!(second.now().state(), ServerState::Asleep);
    let mut changed = settings("a");
    changed.rules.stop.grace += SECOND;
    fixture.fleet.update(Arc::new(changed)).await.unwrap();
    assert_eq!(second.now().state(), ServerState::Asleep, "a reload does not wake it");
    fixture.fleet.hold(&name("a"), SECOND_ONE).await.unwrap();
    settled(&second).await;
    assert_eq!(second.now().state(), ServerState::Running);
}

#[tokio::test(start_paused = true)]
async fn server_of_one_era_has_no_second_process() {
    let bound = ServerSettings { era: Some(Era::Legacy), ..settings("a") };
    let keyed = ServerSettings { share_key: Some("k".to_owned()), ..settings("b") };
    let fixture = TestFleet::with(FakeLauncher::each_stops_in(SECOND), &[bound, keyed]).await;
    for server in ["a", "b"] {
        let held = fixture.fleet.hold(&name(server), SECOND_ONE).await.unwrap();
        assert_eq!(held.key().holder, Holder::Shared, "{server}");
    }
}

#[tokio::test(start_paused = true)]
async fn process_change_ends_second_process() {
    let change = |change: fn(&mut ServerSettings)| {
        let mut changed = settings("a");
        change(&mut changed);
        Arc::new(changed)
    };
    for changed in [
        change(|it| it.era = Some(Era::Legacy)),
        change(|it| process_of(it).args.push("x".to_owned())),
    ] {
        let fixture = TestFleet::with(FakeLauncher::each_stops_in(SECOND), &[settings("a")]).await;
        let second = fixture.fleet.hold(&name("a"), SECOND_ONE).await.unwrap();
        settled(&second).await;
        let applied = fixture.fleet.update(changed).await.unwrap();
        assert_eq!(applied.leaving.len(), 1);
        let is_gone = second.wait_until(|it| it.life.state == State::Retired);
        timeout(AGES, is_gone).await.expect("it goes");
        let left: Vec<Holder> = fixture.fleet.roster()["a"].instances.keys().copied().collect();
        assert_eq!(left, [Holder::Shared]);
    }
}
