use tokio::time::sleep;

use super::*;
use crate::owned_names::OwnedNames;
use crate::tests::Fixture;
use crate::tests::fake::Fake;

/// The id of another home.
const OTHERS: &str = "0123456789abcdef";

fn key(text: &str) -> InstanceKey {
    InstanceKey::parse(text).unwrap()
}

#[tokio::test]
async fn only_own_containers_without_owner_are_removed() {
    let (engine, _streams) = Fake::start(None, |_| ());
    let launcher = Fixture::new().launcher();
    let shared = &launcher.shared;
    let home = shared.home.as_str();
    engine.add_container("own", &[(LABEL_HOME, home), (LABEL_INSTANCE, "git")]);
    engine.add_container("left", &[(LABEL_HOME, home), (LABEL_INSTANCE, "left")]);
    engine.add_container("client", &[(LABEL_HOME, home), (LABEL_INSTANCE, "git@7")]);
    engine.add_container("odd", &[(LABEL_HOME, home), (LABEL_INSTANCE, "__")]);
    engine.add_container("foreign", &[(LABEL_HOME, OTHERS), (LABEL_INSTANCE, "left")]);
    engine.add_container("namesake", &[(LABEL_INSTANCE, "left")]);
    engine.add_container("plain", &[("team", "tools")]);
    shared.engines.record_use(&engine.socket);
    let _hold = shared.owned.lease(&create::name(home, &key("git"))).await;

    let seen = launcher.tidy_up(false).await;
    let unowned = ["left", "client", "odd"].map(str::to_owned).to_vec();
    assert_eq!(seen, UnownedContainers { removed: Vec::new(), left: unowned.clone() });
    assert_eq!(engine.container_ids().len(), 7, "it was only looked");
    assert_eq!(
        launcher.tidy_up(true).await,
        UnownedContainers { removed: unowned, left: Vec::new() }
    );
    assert_eq!(engine.container_ids(), ["own", "foreign", "namesake", "plain"]);
}

#[tokio::test(start_paused = true)]
async fn cli_containers_are_kept_until_adoption_timeout() {
    let (engine, _streams) = Fake::start(None, |_| ());
    let launcher = Fixture::new().launcher();
    let shared = &launcher.shared;
    let run = |home: &str, server: &str| format!("{home}/{server}");
    engine.add_container("own", &[(LABEL_RUN, &run(&shared.home, "git"))]);
    engine.add_container("left", &[(LABEL_RUN, &run(&shared.home, "left"))]);
    engine.add_container("foreign", &[(LABEL_RUN, &run(OTHERS, "left"))]);
    engine.add_container("odd", &[(LABEL_RUN, &shared.home)]);
    shared.engines.record_use(&engine.socket);
    assert!(shared.owned.take(&format!("{LABEL_RUN}={}", run(&shared.home, "git"))));

    assert_eq!(launcher.tidy_up(true).await, UnownedContainers::default());
    sleep(ADOPTION_TIMEOUT + Duration::from_secs(1)).await;
    assert_eq!(launcher.tidy_up(true).await.removed, ["left"]);
    assert_eq!(engine.container_ids(), ["own", "foreign", "odd"]);
}

#[tokio::test(start_paused = true)]
async fn leftovers_at_absent_engine_are_removed_later() {
    let fixture = Fixture::new();
    let (engine, _streams) = Fake::start(None, |_| ());
    fixture.launcher().shared.engines.record_use(&engine.socket);
    let later = fixture.launcher();
    engine.add_container("left", &[(LABEL_HOME, &later.shared.home), (LABEL_INSTANCE, "left")]);
    engine.set_silent(true);
    let reconciling = tokio::spawn(later.reconcile());
    sleep(RECONCILE_INTERVAL * 3).await;
    assert_eq!(engine.container_ids(), ["left"]);
    engine.set_silent(false);
    engine.wait_for_request("DELETE /containers/left", 1).await;
    assert!(engine.container_ids().is_empty());
    reconciling.abort();
}

#[tokio::test]
async fn name_has_one_owner_and_is_released_on_abort() {
    let owned = OwnedNames::default();
    let first = owned.lease("a").await;
    let second = tokio::spawn({
        let owned = owned.clone();
        async move {
            let _hold = owned.lease("a").await;
            std::future::pending::<()>().await;
        }
    });
    tokio::task::yield_now().await;
    assert!(owned.has("a"));
    drop(first);
    while !owned.has("a") {
        tokio::task::yield_now().await; // The second owns it now.
    }
    second.abort();
    let _ = second.await;
    assert!(!owned.has("a"), "no owner can release the name");
    owned.lease("a").await.keep();
    assert!(owned.has("a"), "it is left to another daemon");
}
