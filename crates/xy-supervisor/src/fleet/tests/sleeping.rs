//! Servers that start when they are first used.

use xy_config::settings::Start;

use super::*;

fn lazy(name: &str) -> ServerSettings {
    let mut changed = settings(name);
    changed.rules.start = Start::Lazy;
    changed
}

fn name(text: &str) -> ServerName {
    ServerName::new(text).unwrap()
}

#[tokio::test(start_paused = true)]
async fn lazy_server_starts_once_on_first_use() {
    let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &[lazy("a"), settings("b")]).await;
    sleep(AGES).await;
    assert_eq!(fixture.launcher.launched(), ["b"]);
    assert_eq!(fixture.server("a").now().state(), ServerState::Asleep);
    let a = name("a");
    let mut holds = JoinSet::new();
    for client in 0..50 {
        let (fleet, a) = (fixture.fleet.clone(), a.clone());
        holds.spawn(async move { fleet.hold(&a, Holder::Client(client)).await });
    }
    let held: Vec<_> = holds.join_all().await.into_iter().map(Result::unwrap).collect();
    assert_eq!(held.len(), 50);
    for instance in &held {
        settled(instance).await;
        assert_eq!(instance.now().state(), ServerState::Running);
    }
    assert_eq!(fixture.launcher.launched(), ["b", "a"]);
}

#[tokio::test(start_paused = true)]
async fn stopped_lazy_server_is_refused_until_started() {
    let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &[lazy("a")]).await;
    fixture.operate(Operation::Stop, &["a"]).await;
    assert_eq!(fixture.server("a").now().state(), ServerState::Stopped);
    let refused = fixture.fleet.hold(&name("a"), Holder::Client(1)).await.unwrap_err();
    assert_eq!(refused, HoldError::Stopped);
    let fixture = fixture.restart_daemon(&[lazy("a")]).await;
    assert_eq!(fixture.server("a").now().state(), ServerState::Stopped, "it stays so");
    fixture.operate(Operation::Start, &["a"]).await;
    fixture.settle().await;
    assert_eq!(fixture.server("a").now().state(), ServerState::Running);
}

#[tokio::test(start_paused = true)]
async fn eager_file_starts_sleeping_server() {
    let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &[lazy("a")]).await;
    let mut other = lazy("a");
    process_of(&mut other).args = vec!["--other".into()];
    fixture.apply(std::slice::from_ref(&other)).await;
    assert_eq!(fixture.server("a").now().state(), ServerState::Asleep);
    other.rules.start = Start::Eager;
    fixture.apply(&[other]).await;
    fixture.settle().await;
    assert_eq!(fixture.launcher.launched(), ["a"]);
    fixture.apply(&[lazy("a")]).await;
    fixture.settle().await;
    assert_eq!(fixture.server("a").now().state(), ServerState::Running, "it is there");
}

#[tokio::test(start_paused = true)]
async fn instance_limit_refuses_further_instances() {
    let launcher = FakeLauncher::each_lives_on();
    let folder = tempfile::tempdir().unwrap();
    let fleet = fleet_with(folder.path(), &launcher, InstanceSettings { most: 2, memory: None });
    let fixture = TestFleet { folder, launcher, fleet };
    fixture.apply(&[settings("a"), lazy("b"), lazy("c")]).await;
    fixture.settle().await;
    settled(&fixture.fleet.hold(&name("b"), Holder::Client(1)).await.unwrap()).await;
    // No driver reports that it is idle.
    let HoldError::NoRoom(full) =
        fixture.fleet.hold(&name("c"), Holder::Client(1)).await.unwrap_err()
    else {
        panic!("there is room");
    };
    assert_eq!(full.by, [(name("a"), 1), (name("b"), 1)]);
    settled(&fixture.fleet.hold(&name("b"), Holder::Client(2)).await.unwrap()).await;
    fixture.operate(Operation::Start, &["c"]).await;
    fixture.settle().await;
    assert_eq!(fixture.launcher.living(), 3, "an operator may");
}
