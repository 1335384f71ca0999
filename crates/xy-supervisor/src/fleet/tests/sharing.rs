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

async fn harbour() -> Harbour {
    Harbour::with(FakeLauncher::each_lives_on(), &[sharing("a"), sharing("b"), settings("c")]).await
}

impl Harbour {
    fn owner(&self, server: &str) -> Option<ServerName> {
        self.fleet.roster()[server].owner.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn two_names_have_one_process() {
    let harbour = harbour().await;
    assert_eq!(harbour.launcher.launched(), ["a", "c"]);
    assert_eq!((harbour.owner("a"), harbour.owner("b")), (None, Some(name("a"))));
    assert_eq!(harbour.server("b").now().pid, harbour.server("a").now().pid);
    let outcome = harbour.ask(Ask::Restart, &["b"]).await;
    harbour.settle().await;
    assert_eq!(names(&outcome.asked.iter().map(|it| it.name.clone()).collect::<Vec<_>>()), "b");
    assert_eq!(harbour.launcher.launched(), ["a", "c", "a"]);
    harbour.shut_down().await;
    assert_eq!(harbour.launcher.living(), 0);
}

#[tokio::test(start_paused = true)]
async fn it_lives_as_long_as_one_of_its_names_is_to_be_up() {
    for (first, second) in [("a", "b"), ("b", "a")] {
        let harbour = harbour().await;
        let outcome = harbour.ask(Ask::Stop, &[first]).await;
        assert_eq!((outcome.asked.len(), outcome.unheld.len()), (0, 1), "{first}");
        assert_eq!(harbour.server("a").now().state(), ServerState::Running);
        let roster = harbour.fleet.roster();
        assert!(roster[first].is_hidden() && !roster[second].is_hidden());
        harbour.ask(Ask::Stop, &[second]).await;
        harbour.settle().await;
        assert_eq!(harbour.server("a").now().state(), ServerState::Stopped, "{first}");
        harbour.ask(Ask::Start, &[first]).await;
        harbour.settle().await;
        assert_eq!(harbour.server("b").now().state(), ServerState::Running, "{first}");
        // It is as it was after a restart of the daemon.
        let harbour = harbour.next_day(&[sharing("a"), sharing("b"), settings("c")]).await;
        assert_eq!(harbour.server("a").now().state(), ServerState::Running, "{first}");
        assert!(harbour.fleet.roster()[second].is_hidden(), "{first}");
        harbour.shut_down().await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_asked_together_is_asked_once() {
    let harbour = harbour().await;
    let outcome = harbour.fleet.ask(Ask::Restart, None).await.unwrap();
    harbour.settle().await;
    assert_eq!((outcome.asked.len(), outcome.unheld.len()), (2, 1));
    assert_eq!(harbour.launcher.launches(), 4);
    let outcome = harbour.fleet.ask(Ask::Stop, None).await.unwrap();
    harbour.settle().await;
    assert_eq!((outcome.asked.len(), harbour.launcher.living()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn if_the_owner_leaves_the_next_begins_one_of_its_own() {
    let harbour = harbour().await;
    harbour.apply(&[sharing("b"), settings("c")]).await;
    harbour.settle().await;
    sleep(AGES).await; // Who leaves is gone by then.
    assert_eq!((harbour.owner("b"), harbour.launcher.living()), (None, 2));
    assert_eq!(harbour.launcher.launched(), ["a", "c", "b"]);
    harbour.apply(&[sharing("a"), sharing("b"), settings("c")]).await;
    harbour.settle().await;
    sleep(AGES).await; // Who leaves is gone by then.
    assert_eq!((harbour.owner("a"), harbour.launcher.launches()), (Some(name("b")), 3));
    harbour.apply(&[sharing("b"), settings("c")]).await;
    harbour.settle().await;
    sleep(AGES).await; // Who leaves is gone by then.
    assert_eq!(harbour.launcher.living(), 2, "who follows takes nobody with it");
    harbour.apply(&[settings("b"), sharing("a"), settings("c")]).await;
    harbour.settle().await;
    sleep(AGES).await; // Who leaves is gone by then.
    assert_eq!(
        (harbour.owner("a"), harbour.owner("b"), harbour.launcher.living()),
        (None, None, 3)
    );
}

#[tokio::test(start_paused = true)]
async fn the_next_process_waits_for_the_end_of_the_one_whose_owner_has_left() {
    let launcher = FakeLauncher::each_stops_in(SECOND);
    let harbour = Harbour::with(launcher, &[sharing("a"), sharing("b")]).await;
    for servers in [vec![sharing("b")], vec![sharing("c")]] {
        harbour.apply(&[sharing("b"), sharing("c")]).await; // Both follow, and then one.
        harbour.apply(&servers).await;
        for _ in 0..40 {
            assert!(harbour.launcher.living() <= 1, "two of one process at once");
            sleep(SECOND / 10).await;
        }
        assert_eq!(harbour.launcher.living(), 1);
    }
    assert_eq!(harbour.launcher.launched(), ["a", "b", "c"]);
    harbour.shut_down().await;
    assert_eq!(harbour.launcher.living(), 0);
}

#[tokio::test(start_paused = true)]
async fn another_key_takes_nobody_its_process_but_who_follows_another() {
    let keyed = |name: &str, key: Option<&str>| ServerSettings {
        share_key: key.map(str::to_owned),
        ..settings(name)
    };
    let harbour = harbour().await;
    // Another word for the same.
    let applied = harbour.apply(&[keyed("a", Some("l")), keyed("b", Some("l"))]).await;
    sleep(AGES).await;
    assert_eq!((harbour.owner("b"), harbour.launcher.launches()), (Some(name("a")), 2));
    assert_eq!(names(&applied.plan.updated), "a");
    assert_eq!(names(&applied.plan.restarted), "b");
    // One that comes follows who has the key.
    harbour.apply(&[keyed("a", Some("m")), keyed("b", Some("m")), keyed("0", Some("m"))]).await;
    sleep(AGES).await;
    assert_eq!((harbour.owner("0"), harbour.launcher.launches()), (Some(name("a")), 2));
    // The owner goes its own way, with its process; the next of the others begins one.
    harbour.apply(&[keyed("a", None), keyed("b", Some("m")), keyed("0", Some("m"))]).await;
    sleep(AGES).await;
    assert_eq!((harbour.owner("a"), harbour.owner("b")), (None, Some(name("0"))));
    assert_eq!(harbour.launcher.launched(), ["a", "c", "0"]);
    // Who follows another leaves its own.
    harbour.apply(&[keyed("a", Some("m")), keyed("b", Some("m")), keyed("0", Some("m"))]).await;
    sleep(AGES).await;
    assert_eq!((harbour.owner("a"), harbour.launcher.living()), (Some(name("0")), 1));
    assert_eq!(harbour.launcher.launches(), 3);
    harbour.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn a_changed_process_is_restarted_once() {
    let harbour = harbour().await;
    let changed = |name| {
        let mut changed = sharing(name);
        process_of(&mut changed).args = vec!["--other".into()];
        changed
    };
    harbour.apply(&[changed("a"), changed("b"), settings("c")]).await;
    harbour.settle().await;
    assert_eq!(harbour.launcher.launched(), ["a", "c", "a"]);
    assert_eq!(harbour.launcher.last_settings().name, name("a"));
}

#[tokio::test(start_paused = true)]
async fn a_client_has_one_of_its_own_under_both_names() {
    let launcher = FakeLauncher::each_stops_in(SECOND);
    let harbour = Harbour::with(launcher, &[alone("a"), alone("b")]).await;
    for server in ["b", "a", "b"] {
        settled(&harbour.fleet.hold(&name(server), Holder::Client(7)).await.unwrap()).await;
    }
    assert_eq!(harbour.launcher.launched(), ["a@7"]);
    harbour.fleet.release(&name("b"), 7).await;
    sleep(AGES).await;
    assert_eq!(harbour.launcher.living(), 1, "the other name is released too");
    harbour.fleet.release(&name("a"), 7).await;
    sleep(AGES).await;
    assert_eq!(harbour.launcher.living(), 0);
    assert!(harbour.fleet.roster()["b"].instances.is_empty());
}
