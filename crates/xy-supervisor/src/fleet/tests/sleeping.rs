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
async fn nothing_starts_until_somebody_uses_it_and_all_who_do_share_one_start() {
    let harbour = Harbour::with(FakeLauncher::each_lives_on(), &[lazy("a"), settings("b")]).await;
    sleep(AGES).await;
    assert_eq!(harbour.launcher.launched(), ["b"]);
    assert_eq!(harbour.server("a").now().state(), ServerState::Asleep);
    let a = name("a");
    let mut holds = JoinSet::new();
    for client in 0..50 {
        let (fleet, a) = (harbour.fleet.clone(), a.clone());
        holds.spawn(async move { fleet.hold(&a, Holder::Client(client)).await });
    }
    let held: Vec<_> = holds.join_all().await.into_iter().map(Result::unwrap).collect();
    assert_eq!(held.len(), 50);
    for instance in &held {
        settled(instance).await;
        assert_eq!(instance.now().state(), ServerState::Running);
    }
    assert_eq!(harbour.launcher.launched(), ["b", "a"]);
}

#[tokio::test(start_paused = true)]
async fn what_an_operator_stopped_is_not_held_and_sleeps_no_more_once_it_is_started() {
    let harbour = Harbour::with(FakeLauncher::each_lives_on(), &[lazy("a")]).await;
    harbour.ask(Ask::Stop, &["a"]).await;
    assert_eq!(harbour.server("a").now().state(), ServerState::Stopped);
    let refused = harbour.fleet.hold(&name("a"), Holder::Client(1)).await.unwrap_err();
    assert_eq!(refused, HoldError::Stopped);
    let harbour = harbour.next_day(&[lazy("a")]).await;
    assert_eq!(harbour.server("a").now().state(), ServerState::Stopped, "it stays so");
    harbour.ask(Ask::Start, &["a"]).await;
    harbour.settle().await;
    assert_eq!(harbour.server("a").now().state(), ServerState::Running);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_says_otherwise_starts_it_and_a_changed_process_does_not() {
    let harbour = Harbour::with(FakeLauncher::each_lives_on(), &[lazy("a")]).await;
    let mut other = lazy("a");
    process_of(&mut other).args = vec!["--other".into()];
    harbour.apply(std::slice::from_ref(&other)).await;
    assert_eq!(harbour.server("a").now().state(), ServerState::Asleep);
    other.rules.start = Start::Eager;
    harbour.apply(&[other]).await;
    harbour.settle().await;
    assert_eq!(harbour.launcher.launched(), ["a"]);
    harbour.apply(&[lazy("a")]).await;
    harbour.settle().await;
    assert_eq!(harbour.server("a").now().state(), ServerState::Running, "it is there");
}

#[tokio::test(start_paused = true)]
async fn there_is_room_for_so_many_and_no_more() {
    let launcher = FakeLauncher::each_lives_on();
    let folder = tempfile::tempdir().unwrap();
    let fleet = fleet_with(folder.path(), &launcher, InstanceSettings { most: 2, memory: None });
    let harbour = Harbour { folder, launcher, fleet };
    harbour.apply(&[settings("a"), lazy("b"), lazy("c")]).await;
    harbour.settle().await;
    settled(&harbour.fleet.hold(&name("b"), Holder::Client(1)).await.unwrap()).await;
    // Nobody here says that it is idle.
    let HoldError::NoRoom(full) =
        harbour.fleet.hold(&name("c"), Holder::Client(1)).await.unwrap_err()
    else {
        panic!("there is room");
    };
    assert_eq!(full.by, [(name("a"), 1), (name("b"), 1)]);
    settled(&harbour.fleet.hold(&name("b"), Holder::Client(2)).await.unwrap()).await;
    harbour.ask(Ask::Start, &["c"]).await;
    harbour.settle().await;
    assert_eq!(harbour.launcher.living(), 3, "an operator may");
}
