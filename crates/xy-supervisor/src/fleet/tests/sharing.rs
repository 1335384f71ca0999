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
        settled(&harbour.fleet.hold(&name(server), 7).await.unwrap()).await;
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
