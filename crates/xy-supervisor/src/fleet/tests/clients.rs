//! Servers that have an instance for each client.

use xy_config::settings::RestartPolicy;

use super::*;

fn isolated(name: &str) -> ServerSettings {
    let mut changed = settings(name);
    changed.isolation = Isolation::Client;
    changed
}

fn name(text: &str) -> ServerName {
    ServerName::new(text).unwrap()
}

async fn harbour() -> Harbour {
    Harbour::with(FakeLauncher::each_stops_in(SECOND), &[isolated("a")]).await
}

impl Harbour {
    async fn hold(&self, client: u64) -> Result<InstanceHandle, HoldError> {
        self.fleet.hold(&name("a"), Holder::Client(client)).await
    }

    fn holders(&self) -> Vec<Holder> {
        self.fleet.roster()["a"].instances.keys().copied().collect()
    }
}

async fn gone(instance: &InstanceHandle) {
    let is_gone = instance.wait_until(|it| it.life.state == State::Retired);
    timeout(AGES, is_gone).await.expect("it goes");
}

#[tokio::test(start_paused = true)]
async fn nothing_runs_until_a_client_comes() {
    let harbour = harbour().await;
    sleep(AGES).await;
    assert_eq!((harbour.launcher.launches(), harbour.holders().len()), (0, 0));
    let instance = harbour.hold(7).await.unwrap();
    settled(&instance).await;
    assert_eq!(instance.now().state(), ServerState::Running);
    assert_eq!(harbour.launcher.launched(), ["a@7"]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_asks_twice_at_once_gets_one_and_two_clients_get_two() {
    let harbour = harbour().await;
    let (one, again, other) = tokio::join!(harbour.hold(1), harbour.hold(1), harbour.hold(2));
    settled(&one.unwrap()).await;
    settled(&again.unwrap()).await;
    settled(&other.unwrap()).await;
    assert_eq!(harbour.launcher.launched(), ["a@1", "a@2"]);
    assert_eq!(harbour.holders(), [Holder::Client(1), Holder::Client(2)]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_ends_its_own_only() {
    let harbour = harbour().await;
    let (one, two) = (harbour.hold(1).await.unwrap(), harbour.hold(2).await.unwrap());
    harbour.fleet.release(&name("a"), 1).await;
    let leaving = one.wait_until(|it| it.state() == ServerState::Stopping).await;
    assert_eq!(leaving.life.reason.to_string(), "its client has left");
    harbour.fleet.release(&name("a"), 99).await;
    harbour.fleet.release(&name("nobody"), 1).await;
    gone(&one).await;
    assert_eq!(harbour.holders(), [Holder::Client(2)]);
    assert_eq!(two.now().state(), ServerState::Running);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_comes_back_waits_until_its_last_one_is_gone() {
    let harbour = harbour().await;
    settled(&harbour.hold(1).await.unwrap()).await;
    harbour.fleet.release(&name("a"), 1).await;
    let began = Instant::now();
    settled(&harbour.hold(1).await.unwrap()).await;
    assert_eq!(began.elapsed(), SECOND);
    assert_eq!((harbour.launcher.launches(), harbour.launcher.most_living()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn what_was_for_a_client_goes_with_it() {
    let harbour = harbour().await;
    let logs = harbour.folder.path().join("logs");
    std::fs::create_dir(&logs).unwrap();
    for file in ["a.log", "a@1.log", "a@1.log.1", "a@2.log", "a@3.log"] {
        std::fs::write(logs.join(file), "x").unwrap();
    }
    let one = harbour.hold(1).await.unwrap();
    harbour.fleet.release(&name("a"), 1).await;
    gone(&one).await;
    let left = |file: &str| logs.join(file).exists();
    let forgotten = async {
        while left("a@1.log") || left("a@1.log.1") {
            tokio::time::sleep(SECOND).await;
        }
    };
    timeout(60 * SECOND, forgotten).await.expect("nobody has to ask for anything first");
    assert!(left("a@2.log") && left("a@3.log") && left("a.log"));
    harbour.hold(2).await.unwrap();
    harbour.fleet.shutdown().await;
    assert!(!left("a@2.log") && left("a@3.log") && left("a.log"));
    logs::forget_clients(&logs);
    assert!(!left("a@3.log") && left("a.log"));
}

#[tokio::test(start_paused = true)]
async fn a_shared_server_is_the_same_for_everybody() {
    let harbour = Harbour::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
    let (one, two) = (harbour.hold(1).await.unwrap(), harbour.hold(2).await.unwrap());
    assert_eq!((one.key(), two.key().holder), (two.key(), Holder::Shared));
    harbour.fleet.release(&name("a"), 1).await;
    assert_eq!((harbour.states().as_str(), harbour.launcher.launches()), ("a running", 1));
}

#[tokio::test(start_paused = true)]
async fn what_an_operator_stopped_nobody_gets() {
    let harbour = harbour().await;
    let (one, two) = (harbour.hold(1).await.unwrap(), harbour.hold(2).await.unwrap());
    let outcome = harbour.ask(Ask::Stop, &["a"]).await;
    assert_eq!((outcome.asked.len(), outcome.unheld.len()), (2, 0));
    settled(&one).await;
    settled(&two).await;
    assert_eq!(harbour.hold(1).await.unwrap_err(), HoldError::Stopped);
    assert_eq!(harbour.hold(3).await.unwrap_err(), HoldError::Stopped);
    assert_eq!(harbour.fleet.roster()["a"].wanted, Wanted::Down);

    harbour.ask(Ask::Start, &["a"]).await;
    settled(&one).await;
    assert_eq!(one.now().state(), ServerState::Running);
    settled(&harbour.hold(3).await.unwrap()).await;
    assert_eq!(harbour.launcher.launched(), ["a@1", "a@2", "a@1", "a@2", "a@3"]);
}

#[tokio::test(start_paused = true)]
async fn a_request_to_a_server_without_instances_is_a_wish_only() {
    let harbour = harbour().await;
    let unheld = |wanted_before| [Unheld { name: name("a"), wanted_before, is_nowhere: true }];
    assert_eq!(harbour.ask(Ask::Stop, &["a"]).await.unheld, unheld(Wanted::Up));
    assert_eq!(harbour.ask(Ask::Stop, &["a"]).await.unheld, unheld(Wanted::Down));
    assert_eq!(harbour.wishes(), ["a"]);
    let harbour = harbour.next_day(&[isolated("a")]).await;
    assert_eq!(harbour.hold(1).await.unwrap_err(), HoldError::Stopped);
    assert_eq!(harbour.ask(Ask::Restart, &["a"]).await.unheld, unheld(Wanted::Down));
    harbour.hold(1).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn there_is_a_bound_and_those_who_are_ending_count() {
    let harbour = harbour().await;
    let most = u64::try_from(MAX_CLIENT_INSTANCES).unwrap();
    for client in 0..most {
        settled(&harbour.hold(client).await.unwrap()).await;
    }
    assert_eq!(harbour.hold(most).await.unwrap_err(), HoldError::Full);
    harbour.hold(0).await.expect("who has one keeps it");
    let leaving = harbour.hold(0).await.unwrap();
    harbour.fleet.release(&name("a"), 0).await;
    assert_eq!(harbour.hold(most).await.unwrap_err(), HoldError::Full);
    gone(&leaving).await;
    harbour.hold(most).await.expect("there is room");
}

#[tokio::test(start_paused = true)]
async fn who_is_not_there_cannot_be_held() {
    let harbour = harbour().await;
    let nobody = harbour.fleet.hold(&name("nobody"), Holder::Client(1)).await;
    assert_eq!(nobody.unwrap_err(), HoldError::Unknown);
    harbour.shut_down().await;
    assert_eq!(harbour.hold(1).await.unwrap_err(), HoldError::Closed);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_daemon_and_of_a_file_ends_them_all() {
    let harbour = harbour().await;
    let (one, two) = (harbour.hold(1).await.unwrap(), harbour.hold(2).await.unwrap());
    let applied = harbour.apply(&[isolated("b")]).await;
    assert_eq!(names_of(&applied.leaving), "a@1 a@2");
    gone(&one).await;
    gone(&two).await;
    let three = harbour.fleet.hold(&name("b"), Holder::Client(3)).await.unwrap();
    harbour.shut_down().await;
    assert_eq!((three.now().life.state, harbour.launcher.living()), (State::Retired, 0));
}

#[tokio::test(start_paused = true)]
async fn a_changed_isolation_ends_the_old_and_begins_anew() {
    let harbour = Harbour::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
    let shared = harbour.server("a");
    let applied = harbour.apply(&[isolated("a")]).await;
    assert_eq!(names(&applied.plan.restarted), "a");
    assert_eq!((names_of(&applied.leaving), applied.coming.len()), ("a".to_owned(), 0));
    gone(&shared).await;
    let one = harbour.hold(1).await.unwrap();
    settled(&one).await;
    let applied = harbour.apply(&[settings("a")]).await;
    assert_eq!((names_of(&applied.leaving), names_of(&applied.coming)), ("a@1".into(), "a".into()));
    gone(&one).await;
    harbour.settle().await;
    assert_eq!(harbour.launcher.launched(), ["a", "a@1", "a"]);
}

#[tokio::test(start_paused = true)]
async fn a_changed_file_reaches_every_instance() {
    let harbour = harbour().await;
    settled(&harbour.hold(1).await.unwrap()).await;
    settled(&harbour.hold(2).await.unwrap()).await;
    let mut changed = isolated("a");
    process_of(&mut changed).args = vec!["--other".into()];
    let applied = harbour.apply(&[changed]).await;
    assert_eq!(names_of(&applied.coming), "a@1 a@2");
    harbour.settle().await;
    assert_eq!(harbour.launcher.launched(), ["a@1", "a@2", "a@1", "a@2"]);
}

#[tokio::test(start_paused = true)]
async fn whoever_watches_sees_them_come_and_go() {
    let harbour = harbour().await;
    let mut watched = harbour.fleet.watch_roster();
    watched.mark_unchanged();
    harbour.hold(1).await.unwrap();
    watched.changed().await.unwrap();
    assert_eq!(watched.borrow_and_update()["a"].instances.len(), 1);
    harbour.hold(1).await.unwrap();
    assert!(!watched.has_changed().unwrap(), "nothing new");
    harbour.fleet.release(&name("a"), 1).await;
    watched.changed().await.unwrap();
    assert_eq!(watched.borrow_and_update()["a"].instances.len(), 0);
}

/// Holds an instance for a client until it is in this state, and lets the client leave.
async fn visit(harbour: &Harbour, client: u64, until: ServerState) {
    let logs = harbour.folder.path().join("logs");
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join(format!("a@{client}.log")), "[err] boom\n").unwrap();
    let instance = harbour.hold(client).await.unwrap();
    instance.wait_until(|now| now.state() == until).await;
    harbour.fleet.release(&name("a"), client).await;
    gone(&instance).await;
    sleep(SECOND).await; // The fleet hears of it.
}

fn crashing() -> Script {
    Script::Dies { after: Duration::ZERO, exit: Exit::code(3) }
}

impl Harbour {
    /// The client of the last failed instance, and whether none has worked since.
    fn last_failed(&self) -> (Option<Holder>, bool) {
        let member = self.fleet.roster()["a"].clone();
        (member.last_failed.map(|it| it.instance.key().holder), member.is_failing)
    }

    fn has_log(&self, client: u64) -> bool {
        self.folder.path().join(format!("logs/a@{client}.log")).exists()
    }
}

#[tokio::test(start_paused = true)]
async fn last_failed_instance_is_kept() {
    let harbour = Harbour::with(FakeLauncher::plays([crashing()]), &[isolated("a")]).await;
    visit(&harbour, 1, ServerState::Restarting).await;
    visit(&harbour, 2, ServerState::Failed).await;
    assert_eq!(harbour.last_failed(), (Some(Holder::Client(2)), true));
    assert!(!harbour.has_log(1) && harbour.has_log(2), "one log is kept");
    let failed = harbour.fleet.roster()["a"].last_failed.clone().unwrap();
    assert_eq!(failed.last.last_exit.unwrap().exit, Exit::code(3));
    assert_eq!(failed.last.state(), ServerState::Failed);
    harbour.ask(Ask::Restart, &["a"]).await;
    assert_eq!(harbour.last_failed(), (Some(Holder::Client(2)), false), "it may work by now");
    harbour.fleet.remove(&name("a")).await.unwrap();
    assert!(!harbour.has_log(2), "it goes with its server");
}

#[tokio::test(start_paused = true)]
async fn working_instance_ends_failing_state() {
    let lives = Script::Lives { stops_in: Duration::ZERO };
    let mut settings = isolated("a");
    settings.rules.restart.policy = RestartPolicy::Never;
    let harbour = Harbour::with(FakeLauncher::plays([crashing(), lives]), &[settings]).await;
    visit(&harbour, 1, ServerState::Failed).await;
    assert_eq!(harbour.last_failed(), (Some(Holder::Client(1)), true));
    visit(&harbour, 2, ServerState::Running).await;
    assert_eq!(harbour.last_failed(), (Some(Holder::Client(1)), false));
    assert!(harbour.has_log(1) && !harbour.has_log(2));
}
