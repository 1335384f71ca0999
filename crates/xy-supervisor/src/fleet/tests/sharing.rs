//! Servers that are one process under several names.

use super::*;

fn sharing(name: &str) -> ServerSettings {
    let mut changed = settings(name);
    changed.share_key = Some("k".to_owned());
    changed
}

fn alone(name: &str) -> ServerSettings {
    ServerSettings { isolation: Isolation::Client, ..sharing(name) }
}

fn name(text: &str) -> ServerName {
    ServerName::new(text).unwrap()
}

async fn fixture() -> TestFleet {
    TestFleet::with(FakeLauncher::each_lives_on(), &[sharing("a"), sharing("b"), settings("c")])
        .await
}

impl TestFleet {
    fn owner(&self, server: &str) -> Option<ServerName> {
        self.fleet.roster()[server].owner.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn two_names_share_one_process() {
    let fixture = fixture().await;
    assert_eq!(fixture.launcher.launched(), ["a", "c"]);
    assert_eq!((fixture.owner("a"), fixture.owner("b")), (None, Some(name("a"))));
    assert_eq!(fixture.server("b").now().pid, fixture.server("a").now().pid);
    let outcome = fixture.operate(Operation::Restart, &["b"]).await;
    fixture.settle().await;
    assert_eq!(names(&outcome.applied.iter().map(|it| it.name.clone()).collect::<Vec<_>>()), "b");
    assert_eq!(fixture.launcher.launched(), ["a", "c", "a"]);
    fixture.shut_down().await;
    assert_eq!(fixture.launcher.living(), 0);
}

#[tokio::test(start_paused = true)]
async fn shared_process_runs_while_one_name_is_wanted_up() {
    for (first, second) in [("a", "b"), ("b", "a")] {
        let fixture = fixture().await;
        let outcome = fixture.operate(Operation::Stop, &[first]).await;
        assert_eq!((outcome.applied.len(), outcome.without_instance.len()), (0, 1), "{first}");
        assert_eq!(fixture.server("a").now().state(), ServerState::Running);
        let roster = fixture.fleet.roster();
        assert!(roster[first].is_hidden() && !roster[second].is_hidden());
        fixture.operate(Operation::Stop, &[second]).await;
        fixture.settle().await;
        assert_eq!(fixture.server("a").now().state(), ServerState::Stopped, "{first}");
        fixture.operate(Operation::Start, &[first]).await;
        fixture.settle().await;
        assert_eq!(fixture.server("b").now().state(), ServerState::Running, "{first}");
        // The state survives a restart of the daemon.
        let fixture = fixture.restart_daemon(&[sharing("a"), sharing("b"), settings("c")]).await;
        assert_eq!(fixture.server("a").now().state(), ServerState::Running, "{first}");
        assert!(fixture.fleet.roster()[second].is_hidden(), "{first}");
        fixture.shut_down().await;
    }
}

#[tokio::test(start_paused = true)]
async fn operation_on_both_names_applies_once() {
    let fixture = fixture().await;
    let outcome = fixture.fleet.operate(Operation::Restart, None).await.unwrap();
    fixture.settle().await;
    assert_eq!((outcome.applied.len(), outcome.without_instance.len()), (2, 1));
    assert_eq!(fixture.launcher.launches(), 4);
    let outcome = fixture.fleet.operate(Operation::Stop, None).await.unwrap();
    fixture.settle().await;
    assert_eq!((outcome.applied.len(), fixture.launcher.living()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn next_name_takes_over_when_owner_leaves() {
    let fixture = fixture().await;
    fixture.apply(&[sharing("b"), settings("c")]).await;
    fixture.settle().await;
    sleep(AGES).await; // The leaving instance has ended by then.
    assert_eq!((fixture.owner("b"), fixture.launcher.living()), (None, 2));
    assert_eq!(fixture.launcher.launched(), ["a", "c", "b"]);
    fixture.apply(&[sharing("a"), sharing("b"), settings("c")]).await;
    fixture.settle().await;
    sleep(AGES).await; // The leaving instance has ended by then.
    assert_eq!((fixture.owner("a"), fixture.launcher.launches()), (Some(name("b")), 3));
    fixture.apply(&[sharing("b"), settings("c")]).await;
    fixture.settle().await;
    sleep(AGES).await; // The leaving instance has ended by then.
    assert_eq!(fixture.launcher.living(), 2, "a follower takes no process along");
    fixture.apply(&[settings("b"), sharing("a"), settings("c")]).await;
    fixture.settle().await;
    sleep(AGES).await; // The leaving instance has ended by then.
    assert_eq!(
        (fixture.owner("a"), fixture.owner("b"), fixture.launcher.living()),
        (None, None, 3)
    );
}

#[tokio::test(start_paused = true)]
async fn next_process_waits_for_end_of_old_one() {
    let launcher = FakeLauncher::each_stops_in(SECOND);
    let fixture = TestFleet::with(launcher, &[sharing("a"), sharing("b")]).await;
    for servers in [vec![sharing("b")], vec![sharing("c")]] {
        fixture.apply(&[sharing("b"), sharing("c")]).await; // Both follow, and then one.
        fixture.apply(&servers).await;
        for _ in 0..40 {
            assert!(fixture.launcher.living() <= 1, "two of one process at once");
            sleep(SECOND / 10).await;
        }
        assert_eq!(fixture.launcher.living(), 1);
    }
    assert_eq!(fixture.launcher.launched(), ["a", "b", "c"]);
    fixture.shut_down().await;
    assert_eq!(fixture.launcher.living(), 0);
}

#[tokio::test(start_paused = true)]
async fn key_change_keeps_process_of_owner_only() {
    let keyed = |name: &str, key: Option<&str>| ServerSettings {
        share_key: key.map(str::to_owned),
        ..settings(name)
    };
    let fixture = fixture().await;
    // A renamed key of the same group.
    let applied = fixture.apply(&[keyed("a", Some("l")), keyed("b", Some("l"))]).await;
    sleep(AGES).await;
    assert_eq!((fixture.owner("b"), fixture.launcher.launches()), (Some(name("a")), 2));
    assert_eq!(names(&applied.plan.updated), "a");
    assert_eq!(names(&applied.plan.restarted), "b");
    // A new server follows the owner of the key.
    fixture.apply(&[keyed("a", Some("m")), keyed("b", Some("m")), keyed("0", Some("m"))]).await;
    sleep(AGES).await;
    assert_eq!((fixture.owner("0"), fixture.launcher.launches()), (Some(name("a")), 2));
    // The owner leaves with its process; the next one starts another.
    fixture.apply(&[keyed("a", None), keyed("b", Some("m")), keyed("0", Some("m"))]).await;
    sleep(AGES).await;
    assert_eq!((fixture.owner("a"), fixture.owner("b")), (None, Some(name("0"))));
    assert_eq!(fixture.launcher.launched(), ["a", "c", "0"]);
    // A server that joins another group leaves its own process.
    fixture.apply(&[keyed("a", Some("m")), keyed("b", Some("m")), keyed("0", Some("m"))]).await;
    sleep(AGES).await;
    assert_eq!((fixture.owner("a"), fixture.launcher.living()), (Some(name("0")), 1));
    assert_eq!(fixture.launcher.launches(), 3);
    fixture.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn changed_shared_process_restarts_once() {
    let fixture = fixture().await;
    let changed = |name| {
        let mut changed = sharing(name);
        process_of(&mut changed).args = vec!["--other".into()];
        changed
    };
    fixture.apply(&[changed("a"), changed("b"), settings("c")]).await;
    fixture.settle().await;
    assert_eq!(fixture.launcher.launched(), ["a", "c", "a"]);
    assert_eq!(fixture.launcher.last_settings().name, name("a"));
}

#[tokio::test(start_paused = true)]
async fn client_has_one_instance_under_both_names() {
    let launcher = FakeLauncher::each_stops_in(SECOND);
    let fixture = TestFleet::with(launcher, &[alone("a"), alone("b")]).await;
    for server in ["b", "a", "b"] {
        settled(&fixture.fleet.hold(&name(server), Holder::Client(7)).await.unwrap()).await;
    }
    assert_eq!(fixture.launcher.launched(), ["a@7"]);
    fixture.fleet.release(&name("b"), 7).await;
    sleep(AGES).await;
    assert_eq!(fixture.launcher.living(), 1, "the other name is released too");
    fixture.fleet.release(&name("a"), 7).await;
    sleep(AGES).await;
    assert_eq!(fixture.launcher.living(), 0);
    assert!(fixture.fleet.roster()["b"].instances.is_empty());
}
