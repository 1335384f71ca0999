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
async fn second_process_lives_beside_the_shared_one_and_stops_with_it() {
    let harbour = Harbour::with(FakeLauncher::each_stops_in(SECOND), &[settings("a")]).await;
    let a = name("a");
    let (one, again) =
        tokio::join!(harbour.fleet.hold(&a, SECOND_ONE), harbour.fleet.hold(&a, SECOND_ONE));
    settled(&one.unwrap()).await;
    settled(&again.unwrap()).await;
    assert_eq!(harbour.launcher.launched(), ["a", "a@modern"]);
    let asked = harbour.fleet.ask(Ask::Stop, None).await.unwrap();
    assert_eq!(asked.asked.len(), 2);
    for it in &asked.asked {
        settled(&it.instance).await;
        assert_eq!(it.instance.now().state(), ServerState::Stopped);
    }
    let refused = harbour.fleet.hold(&name("a"), SECOND_ONE).await;
    assert!(matches!(refused, Err(HoldError::Stopped)), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn second_process_sleeps_when_it_is_not_used_and_wakes_when_it_is() {
    let harbour = Harbour::with(FakeLauncher::each_stops_in(SECOND), &[settings("a")]).await;
    let second = harbour.fleet.hold(&name("a"), SECOND_ONE).await.unwrap();
    settled(&second).await;
    assert_eq!(second.now().settings.rules.idle_stop, Some(SECOND_IDLE_STOP));
    second.request(Event::Idle("not used".to_owned())).await.unwrap();
    settled(&second).await;
    assert_eq!(second.now().state(), ServerState::Asleep);
    let mut changed = settings("a");
    changed.rules.stop.grace += SECOND;
    harbour.fleet.update(Arc::new(changed)).await.unwrap();
    assert_eq!(second.now().state(), ServerState::Asleep, "a reload does not wake it");
    harbour.fleet.hold(&name("a"), SECOND_ONE).await.unwrap();
    settled(&second).await;
    assert_eq!(second.now().state(), ServerState::Running);
}

#[tokio::test(start_paused = true)]
async fn server_that_is_bound_to_one_era_has_no_second_process() {
    let bound = ServerSettings { era: Some(Era::Legacy), ..settings("a") };
    let keyed = ServerSettings { share_key: Some("k".to_owned()), ..settings("b") };
    let harbour = Harbour::with(FakeLauncher::each_stops_in(SECOND), &[bound, keyed]).await;
    for server in ["a", "b"] {
        let held = harbour.fleet.hold(&name(server), SECOND_ONE).await.unwrap();
        assert_eq!(held.key().holder, Holder::Shared, "{server}");
    }
}

#[tokio::test(start_paused = true)]
async fn second_process_ends_when_its_file_describes_another_one() {
    let change = |change: fn(&mut ServerSettings)| {
        let mut changed = settings("a");
        change(&mut changed);
        Arc::new(changed)
    };
    for changed in [
        change(|it| it.era = Some(Era::Legacy)),
        change(|it| process_of(it).args.push("x".to_owned())),
    ] {
        let harbour = Harbour::with(FakeLauncher::each_stops_in(SECOND), &[settings("a")]).await;
        let second = harbour.fleet.hold(&name("a"), SECOND_ONE).await.unwrap();
        settled(&second).await;
        let applied = harbour.fleet.update(changed).await.unwrap();
        assert_eq!(applied.leaving.len(), 1);
        let is_gone = second.wait_until(|it| it.life.state == State::Retired);
        timeout(AGES, is_gone).await.expect("it goes");
        let left: Vec<Holder> = harbour.fleet.roster()["a"].instances.keys().copied().collect();
        assert_eq!(left, [Holder::Shared]);
    }
}
