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

async fn fixture() -> TestFleet {
    TestFleet::with(FakeLauncher::each_stops_in(SECOND), &[isolated("a")]).await
}

impl TestFleet {
    async fn hold(&self, client: u64) -> Result<InstanceHandle, HoldError> {
        self.fleet.hold(&name("a"), Holder::Client(client)).await
    }

    fn holders(&self) -> Vec<Holder> {
        self.fleet.roster()["a"].instances.keys().copied().collect()
    }
}

async fn retired(instance: &InstanceHandle) {
    let is_gone = instance.wait_until(|it| it.life.state == State::Retired);
    timeout(AGES, is_gone).await.expect("it goes");
}

#[tokio::test(start_paused = true)]
async fn nothing_runs_without_client() {
    let fixture = fixture().await;
    sleep(AGES).await;
    assert_eq!((fixture.launcher.launches(), fixture.holders().len()), (0, 0));
    let instance = fixture.hold(7).await.unwrap();
    settled(&instance).await;
    assert_eq!(instance.now().state(), ServerState::Running);
    assert_eq!(fixture.launcher.launched(), ["a@7"]);
}

#[tokio::test(start_paused = true)]
async fn each_client_gets_exactly_one_instance() {
    let fixture = fixture().await;
    let (one, again, other) = tokio::join!(fixture.hold(1), fixture.hold(1), fixture.hold(2));
    settled(&one.unwrap()).await;
    settled(&again.unwrap()).await;
    settled(&other.unwrap()).await;
    assert_eq!(fixture.launcher.launched(), ["a@1", "a@2"]);
    assert_eq!(fixture.holders(), [Holder::Client(1), Holder::Client(2)]);
}

#[tokio::test(start_paused = true)]
async fn leaving_client_ends_its_own_instance_only() {
    let fixture = fixture().await;
    let (one, two) = (fixture.hold(1).await.unwrap(), fixture.hold(2).await.unwrap());
    fixture.fleet.release(&name("a"), 1).await;
    let leaving = one.wait_until(|it| it.state() == ServerState::Stopping).await;
    assert_eq!(leaving.life.reason.to_string(), "its client has left");
    fixture.fleet.release(&name("a"), 99).await;
    fixture.fleet.release(&name("nobody"), 1).await;
    retired(&one).await;
    assert_eq!(fixture.holders(), [Holder::Client(2)]);
    assert_eq!(two.now().state(), ServerState::Running);
}

#[tokio::test(start_paused = true)]
async fn returning_client_waits_for_its_last_instance() {
    let fixture = fixture().await;
    settled(&fixture.hold(1).await.unwrap()).await;
    fixture.fleet.release(&name("a"), 1).await;
    let began = Instant::now();
    settled(&fixture.hold(1).await.unwrap()).await;
    assert_eq!(began.elapsed(), SECOND);
    assert_eq!((fixture.launcher.launches(), fixture.launcher.max_living()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn files_of_client_instance_are_removed() {
    let fixture = fixture().await;
    let logs = fixture.folder.path().join("logs");
    std::fs::create_dir(&logs).unwrap();
    for file in ["a.log", "a@1.log", "a@1.log.1", "a@2.log", "a@3.log"] {
        std::fs::write(logs.join(file), "x").unwrap();
    }
    let one = fixture.hold(1).await.unwrap();
    fixture.fleet.release(&name("a"), 1).await;
    retired(&one).await;
    let left = |file: &str| logs.join(file).exists();
    let removed = async {
        while left("a@1.log") || left("a@1.log.1") {
            tokio::time::sleep(SECOND).await;
        }
    };
    timeout(60 * SECOND, removed).await.expect("removal needs no further request");
    assert!(left("a@2.log") && left("a@3.log") && left("a.log"));
    fixture.hold(2).await.unwrap();
    fixture.fleet.shutdown().await;
    assert!(!left("a@2.log") && left("a@3.log") && left("a.log"));
    logs::remove_client_logs(&logs);
    assert!(!left("a@3.log") && left("a.log"));
}

#[tokio::test(start_paused = true)]
async fn shared_server_is_the_same_for_all_clients() {
    let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
    let (one, two) = (fixture.hold(1).await.unwrap(), fixture.hold(2).await.unwrap());
    assert_eq!((one.key(), two.key().holder), (two.key(), Holder::Shared));
    fixture.fleet.release(&name("a"), 1).await;
    assert_eq!((fixture.states().as_str(), fixture.launcher.launches()), ("a running", 1));
}

#[tokio::test(start_paused = true)]
async fn stopped_server_is_refused_to_clients() {
    let fixture = fixture().await;
    let (one, two) = (fixture.hold(1).await.unwrap(), fixture.hold(2).await.unwrap());
    let outcome = fixture.operate(Operation::Stop, &["a"]).await;
    assert_eq!((outcome.applied.len(), outcome.without_instance.len()), (2, 0));
    settled(&one).await;
    settled(&two).await;
    assert_eq!(fixture.hold(1).await.unwrap_err(), HoldError::Stopped);
    assert_eq!(fixture.hold(3).await.unwrap_err(), HoldError::Stopped);
    assert_eq!(fixture.fleet.roster()["a"].wanted, Wanted::Down);

    fixture.operate(Operation::Start, &["a"]).await;
    settled(&one).await;
    assert_eq!(one.now().state(), ServerState::Running);
    settled(&fixture.hold(3).await.unwrap()).await;
    assert_eq!(fixture.launcher.launched(), ["a@1", "a@2", "a@1", "a@2", "a@3"]);
}

#[tokio::test(start_paused = true)]
async fn operation_without_instance_changes_desired_state_only() {
    let fixture = fixture().await;
    let unheld = |wanted_before| {
        [ServerWithoutInstance { name: name("a"), wanted_before, is_nowhere: true }]
    };
    assert_eq!(fixture.operate(Operation::Stop, &["a"]).await.without_instance, unheld(Wanted::Up));
    assert_eq!(
        fixture.operate(Operation::Stop, &["a"]).await.without_instance,
        unheld(Wanted::Down)
    );
    assert_eq!(fixture.stored_stops(), ["a"]);
    let fixture = fixture.restart_daemon(&[isolated("a")]).await;
    assert_eq!(fixture.hold(1).await.unwrap_err(), HoldError::Stopped);
    assert_eq!(
        fixture.operate(Operation::Restart, &["a"]).await.without_instance,
        unheld(Wanted::Down)
    );
    fixture.hold(1).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn client_instances_are_limited_including_ending_ones() {
    let fixture = fixture().await;
    let most = u64::try_from(MAX_CLIENT_INSTANCES).unwrap();
    for client in 0..most {
        settled(&fixture.hold(client).await.unwrap()).await;
    }
    assert_eq!(fixture.hold(most).await.unwrap_err(), HoldError::Full);
    fixture.hold(0).await.expect("who has one keeps it");
    let leaving = fixture.hold(0).await.unwrap();
    fixture.fleet.release(&name("a"), 0).await;
    assert_eq!(fixture.hold(most).await.unwrap_err(), HoldError::Full);
    retired(&leaving).await;
    fixture.hold(most).await.expect("there is room");
}

#[tokio::test(start_paused = true)]
async fn unknown_server_cannot_be_held() {
    let fixture = fixture().await;
    let nobody = fixture.fleet.hold(&name("nobody"), Holder::Client(1)).await;
    assert_eq!(nobody.unwrap_err(), HoldError::Unknown);
    fixture.shut_down().await;
    assert_eq!(fixture.hold(1).await.unwrap_err(), HoldError::Closed);
}

#[tokio::test(start_paused = true)]
async fn shutdown_and_removal_end_client_instances() {
    let fixture = fixture().await;
    let (one, two) = (fixture.hold(1).await.unwrap(), fixture.hold(2).await.unwrap());
    let applied = fixture.apply(&[isolated("b")]).await;
    assert_eq!(names_of(&applied.leaving), "a@1 a@2");
    retired(&one).await;
    retired(&two).await;
    let three = fixture.fleet.hold(&name("b"), Holder::Client(3)).await.unwrap();
    fixture.shut_down().await;
    assert_eq!((three.now().life.state, fixture.launcher.living()), (State::Retired, 0));
}

#[tokio::test(start_paused = true)]
async fn isolation_change_replaces_instances() {
    let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
    let shared = fixture.server("a");
    let applied = fixture.apply(&[isolated("a")]).await;
    assert_eq!(names(&applied.plan.restarted), "a");
    assert_eq!((names_of(&applied.leaving), applied.coming.len()), ("a".to_owned(), 0));
    retired(&shared).await;
    let one = fixture.hold(1).await.unwrap();
    settled(&one).await;
    let applied = fixture.apply(&[settings("a")]).await;
    assert_eq!((names_of(&applied.leaving), names_of(&applied.coming)), ("a@1".into(), "a".into()));
    retired(&one).await;
    fixture.settle().await;
    assert_eq!(fixture.launcher.launched(), ["a", "a@1", "a"]);
}

#[tokio::test(start_paused = true)]
async fn changed_file_reaches_every_instance() {
    let fixture = fixture().await;
    settled(&fixture.hold(1).await.unwrap()).await;
    settled(&fixture.hold(2).await.unwrap()).await;
    let mut changed = isolated("a");
    process_of(&mut changed).args = vec!["--other".into()];
    let applied = fixture.apply(&[changed]).await;
    assert_eq!(names_of(&applied.coming), "a@1 a@2");
    fixture.settle().await;
    assert_eq!(fixture.launcher.launched(), ["a@1", "a@2", "a@1", "a@2"]);
}

#[tokio::test(start_paused = true)]
async fn roster_receiver_sees_instances_come_and_go() {
    let fixture = fixture().await;
    let mut watched = fixture.fleet.watch_roster();
    watched.mark_unchanged();
    fixture.hold(1).await.unwrap();
    watched.changed().await.unwrap();
    assert_eq!(watched.borrow_and_update()["a"].instances.len(), 1);
    fixture.hold(1).await.unwrap();
    assert!(!watched.has_changed().unwrap(), "nothing new");
    fixture.fleet.release(&name("a"), 1).await;
    watched.changed().await.unwrap();
    assert_eq!(watched.borrow_and_update()["a"].instances.len(), 0);
}

/// Holds an instance for a client until it reaches this state, then releases it.
async fn connect_until(fixture: &TestFleet, client: u64, until: ServerState) {
    let logs = fixture.folder.path().join("logs");
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join(format!("a@{client}.log")), "[err] boom\n").unwrap();
    let instance = fixture.hold(client).await.unwrap();
    instance.wait_until(|now| now.state() == until).await;
    fixture.fleet.release(&name("a"), client).await;
    retired(&instance).await;
    sleep(SECOND).await; // The fleet processes the end.
}

fn crashing() -> Script {
    Script::Dies { after: Duration::ZERO, exit: Exit::code(3) }
}

impl TestFleet {
    /// Returns the client of the last failed instance, and whether none has worked since.
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
    let fixture = TestFleet::with(FakeLauncher::with_scripts([crashing()]), &[isolated("a")]).await;
    connect_until(&fixture, 1, ServerState::Restarting).await;
    connect_until(&fixture, 2, ServerState::Failed).await;
    assert_eq!(fixture.last_failed(), (Some(Holder::Client(2)), true));
    assert!(!fixture.has_log(1) && fixture.has_log(2), "one log is kept");
    let failed = fixture.fleet.roster()["a"].last_failed.clone().unwrap();
    assert_eq!(failed.last.last_exit.unwrap().exit, Exit::code(3));
    assert_eq!(failed.last.state(), ServerState::Failed);
    fixture.operate(Operation::Restart, &["a"]).await;
    assert_eq!(fixture.last_failed(), (Some(Holder::Client(2)), false), "it may work by now");
    fixture.fleet.remove(&name("a")).await.unwrap();
    assert!(!fixture.has_log(2), "it goes with its server");
}

#[tokio::test(start_paused = true)]
async fn working_instance_ends_failing_state() {
    let lives = Script::Lives { stops_in: Duration::ZERO };
    let mut settings = isolated("a");
    settings.rules.restart.policy = RestartPolicy::Never;
    let fixture =
        TestFleet::with(FakeLauncher::with_scripts([crashing(), lives]), &[settings]).await;
    connect_until(&fixture, 1, ServerState::Failed).await;
    assert_eq!(fixture.last_failed(), (Some(Holder::Client(1)), true));
    connect_until(&fixture, 2, ServerState::Running).await;
    assert_eq!(fixture.last_failed(), (Some(Holder::Client(1)), false));
    assert!(fixture.has_log(1) && !fixture.has_log(2));
}
