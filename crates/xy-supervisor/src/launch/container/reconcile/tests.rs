use tokio::time::sleep;

use super::super::tests::Stage;
use super::super::tests::fake::Fake;
use super::*;

/// A home that is not ours.
const OTHERS: &str = "0123456789abcdef";

fn key(text: &str) -> InstanceKey {
    InstanceKey::parse(text).unwrap()
}

#[tokio::test]
async fn only_what_is_ours_and_nobody_owns_is_removed() {
    let (engine, _streams) = Fake::begin(None, |_| ());
    let launcher = Stage::new().launcher();
    let shared = &launcher.shared;
    let home = shared.home.as_str();
    engine.leaves("own", &[(LABEL_HOME, home), (LABEL_INSTANCE, "git")]);
    engine.leaves("left", &[(LABEL_HOME, home), (LABEL_INSTANCE, "left")]);
    engine.leaves("client", &[(LABEL_HOME, home), (LABEL_INSTANCE, "git@7")]);
    engine.leaves("odd", &[(LABEL_HOME, home), (LABEL_INSTANCE, "__")]);
    engine.leaves("foreign", &[(LABEL_HOME, OTHERS), (LABEL_INSTANCE, "left")]);
    engine.leaves("namesake", &[(LABEL_INSTANCE, "left")]);
    engine.leaves("plain", &[("team", "tools")]);
    shared.engines.saw(&engine.socket);
    let _hold = shared.owned.hold(&create::name(home, &key("git"))).await;

    let seen = launcher.tidy_up(false).await;
    let unowned = ["left", "client", "odd"].map(str::to_owned).to_vec();
    assert_eq!(seen, Unowned { removed: Vec::new(), left: unowned.clone() });
    assert_eq!(engine.left().len(), 7, "it was only looked");
    assert_eq!(launcher.tidy_up(true).await, Unowned { removed: unowned, left: Vec::new() });
    assert_eq!(engine.left(), ["own", "foreign", "namesake", "plain"]);
}

#[tokio::test(start_paused = true)]
async fn what_a_cli_made_is_nobodys_only_once_its_process_must_have_been_taken_over() {
    let (engine, _streams) = Fake::begin(None, |_| ());
    let launcher = Stage::new().launcher();
    let shared = &launcher.shared;
    let run = |home: &str, server: &str| format!("{home}/{server}");
    engine.leaves("own", &[(LABEL_RUN, &run(&shared.home, "git"))]);
    engine.leaves("left", &[(LABEL_RUN, &run(&shared.home, "left"))]);
    engine.leaves("foreign", &[(LABEL_RUN, &run(OTHERS, "left"))]);
    engine.leaves("odd", &[(LABEL_RUN, &shared.home)]);
    shared.engines.saw(&engine.socket);
    assert!(shared.owned.take(&format!("{LABEL_RUN}={}", run(&shared.home, "git"))));

    assert_eq!(launcher.tidy_up(true).await, Unowned::default());
    sleep(TAKEN_OVER_WITHIN + Duration::from_secs(1)).await;
    assert_eq!(launcher.tidy_up(true).await.removed, ["left"]);
    assert_eq!(engine.left(), ["own", "foreign", "odd"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_left_at_an_engine_that_was_away_is_removed_by_a_later_daemon() {
    let stage = Stage::new();
    let (engine, _streams) = Fake::begin(None, |_| ());
    stage.launcher().shared.engines.saw(&engine.socket);
    let later = stage.launcher();
    engine.leaves("left", &[(LABEL_HOME, &later.shared.home), (LABEL_INSTANCE, "left")]);
    engine.is_silent(true);
    let reconciling = tokio::spawn(later.reconcile());
    sleep(LOOK_EVERY * 3).await;
    assert_eq!(engine.left(), ["left"]);
    engine.is_silent(false);
    engine.is_asked("DELETE /containers/left", 1).await;
    assert!(engine.left().is_empty());
    reconciling.abort();
}

#[tokio::test]
async fn a_name_is_owned_by_one_at_a_time_and_free_when_its_owner_is_ended() {
    let owned = Owned::default();
    let first = owned.hold("a").await;
    let second = tokio::spawn({
        let owned = owned.clone();
        async move {
            let _hold = owned.hold("a").await;
            std::future::pending::<()>().await;
        }
    });
    tokio::task::yield_now().await;
    assert!(owned.has("a"));
    drop(first);
    while !owned.has("a") {
        tokio::task::yield_now().await; // It is the second's now.
    }
    second.abort();
    let _ = second.await;
    assert!(!owned.has("a"), "nobody is left who could release it");
    owned.hold("a").await.keep();
    assert!(owned.has("a"), "it is left to another daemon");
}
