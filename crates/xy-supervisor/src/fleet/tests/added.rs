//! Servers that no file configures.

use super::*;

fn added(name: &str) -> Arc<ServerSettings> {
    let mut changed = settings(name);
    changed.source.added = true;
    Arc::new(changed)
}

fn name(text: &str) -> ServerName {
    ServerName::new(text).unwrap()
}

impl TestFleet {
    async fn add(&self, server: &str) {
        settled(&self.fleet.add(added(server)).await.unwrap().unwrap()).await;
        self.fleet.establish(added(server)).await.unwrap();
    }

    /// Returns the names in the file.
    fn stored(&self) -> Vec<String> {
        let (stored, problem) =
            RuntimeServers::read(&self.folder.path().join("added.json")).unwrap();
        assert_eq!(problem, None);
        stored.servers.keys().map(ToString::to_string).collect()
    }

    /// Restarts the daemon with files and the stored added servers.
    async fn restart_daemon_with_added(self, files: &[ServerSettings]) -> Self {
        let (stored, _) = RuntimeServers::read(&self.folder.path().join("added.json")).unwrap();
        let more =
            stored.servers.values().filter(|it| files.iter().all(|file| file.name != it.name));
        let all: Vec<_> = files.iter().cloned().chain(more.map(|it| (**it).clone())).collect();
        self.restart_daemon(&all).await
    }
}

#[tokio::test(start_paused = true)]
async fn established_server_survives_daemon_restart() {
    let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
    fixture.add("b").await;
    assert_eq!(fixture.states(), "a running, b running");
    assert_eq!(fixture.stored(), ["b"]);
    let fixture = fixture.restart_daemon_with_added(&[settings("a")]).await;
    assert_eq!(fixture.states(), "a running, b running");
    assert!(fixture.fleet.settings()["b"].source.added);
}

#[tokio::test(start_paused = true)]
async fn unestablished_server_does_not_survive_daemon_restart() {
    let fixture = TestFleet::new(FakeLauncher::each_lives_on());
    fixture.fleet.add(added("b")).await.unwrap();
    let fixture = fixture.restart_daemon_with_added(&[]).await;
    assert_eq!(fixture.states(), "");
}

#[tokio::test(start_paused = true)]
async fn reload_leaves_added_server_and_its_desired_state_alone() {
    let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
    fixture.add("b").await;
    fixture.operate(Operation::Stop, &["b"]).await;
    fixture.settle().await;
    let plan = fixture.apply(&[settings("c")]).await.plan;
    assert_eq!((names(&plan.removed), names(&plan.added)), ("a".into(), "c".into()));
    assert_eq!(names(&plan.unchanged), "");
    fixture.settle().await;
    assert_eq!(fixture.states(), "b stopped, c running");
    assert_eq!(fixture.stored_stops(), ["b"]);
    assert_eq!(fixture.stored(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn file_replaces_added_server() {
    let fixture = TestFleet::new(FakeLauncher::each_lives_on());
    fixture.add("same").await;
    fixture.add("other").await;
    let plan = fixture.apply(&[settings("same"), with_args("other", "x")]).await.plan;
    assert_eq!((names(&plan.updated), names(&plan.restarted)), ("same".into(), "other".into()));
    fixture.settle().await;
    assert_eq!(fixture.launcher.launched(), ["same", "other", "other"]);
    assert_eq!(fixture.stored(), [""; 0]);
    assert!(fixture.fleet.settings().values().all(|it| !it.source.added));
    let plan = fixture.apply(&[]).await.plan;
    assert_eq!(names(&plan.removed), "other same", "the file configures it from now on");
}

#[tokio::test(start_paused = true)]
async fn name_and_port_are_unique() {
    let with_port = |name: &str| {
        let mut changed = settings(name);
        process_of(&mut changed).port = Some(80);
        changed
    };
    let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &[with_port("a")]).await;
    assert_eq!(fixture.fleet.add(added("a")).await.unwrap_err(), AddError::Exists);
    let taken = AddError::PortTaken { port: 80, by: name("a") };
    assert_eq!(fixture.fleet.add(Arc::new(with_port("b"))).await.unwrap_err(), taken);
    assert_eq!(fixture.launcher.launched(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn removed_server_leaves_roster_before_it_ends() {
    let fixture = TestFleet::new(FakeLauncher::each_stops_in(5 * SECOND));
    fixture.add("a").await;
    fixture.operate(Operation::Stop, &["a"]).await;
    let began = Instant::now();
    let removed = fixture.fleet.remove(&name("a")).await.unwrap().unwrap();
    assert_eq!((fixture.states().as_str(), began.elapsed()), ("", Duration::ZERO));
    assert_eq!(
        (removed.warnings.len(), fixture.stored().len(), fixture.stored_stops().len()),
        (0, 0, 0)
    );
    assert!(fixture.fleet.remove(&name("a")).await.unwrap().is_none());
    assert_eq!(removed.leaving[0].now().life.reason.to_string(), "removed");
    removed.leaving[0].wait_until(|it| it.life.state == State::Retired).await;
    assert_eq!(began.elapsed(), 5 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn added_server_waits_for_end_of_removed_one() {
    let fixture = TestFleet::new(FakeLauncher::each_stops_in(5 * SECOND));
    fixture.add("a").await;
    fixture.fleet.remove(&name("a")).await.unwrap();
    fixture.add("a").await;
    assert_eq!((fixture.states().as_str(), fixture.launcher.max_living()), ("a running", 1));
}

#[tokio::test(start_paused = true)]
async fn unwritable_file_is_reported() {
    let fixture = TestFleet::new(FakeLauncher::each_lives_on());
    let obstacle = fixture.folder.path().join("added.json.new");
    std::fs::create_dir(&obstacle).unwrap();
    fixture.fleet.add(added("a")).await.unwrap();
    let refused = fixture.fleet.establish(added("a")).await;
    assert!(matches!(refused, Err(EstablishError::NotStored(_))), "{refused:?}");
    std::fs::remove_dir(&obstacle).unwrap();
    fixture.fleet.establish(added("a")).await.unwrap();
    std::fs::create_dir(&obstacle).unwrap();
    let removed = fixture.fleet.remove(&name("a")).await.unwrap().unwrap();
    let [warning] = &removed.warnings[..] else { panic!("{:?}", removed.warnings) };
    assert!(warning.starts_with("it will start again when the daemon restarts: "), "{warning}");
    assert_eq!((fixture.states().as_str(), fixture.stored().len()), ("", 1));
}

#[tokio::test(start_paused = true)]
async fn removed_server_is_not_established() {
    let fixture = TestFleet::new(FakeLauncher::each_lives_on());
    fixture.fleet.add(added("a")).await.unwrap();
    fixture.fleet.remove(&name("a")).await.unwrap();
    let refused = fixture.fleet.establish(added("a")).await;
    assert_eq!(refused, Err(EstablishError::Removed));
}

#[tokio::test(start_paused = true)]
async fn established_server_with_file_is_left_to_it() {
    let fixture = TestFleet::new(FakeLauncher::each_lives_on());
    settled(&fixture.fleet.add(added("a")).await.unwrap().unwrap()).await;
    fixture.fleet.establish(Arc::new(settings("a"))).await.unwrap();
    assert_eq!((fixture.stored().len(), fixture.launcher.launches()), (0, 1));
    assert_eq!(names(&fixture.apply(&[settings("a")]).await.plan.unchanged), "a");
    assert_eq!(names(&fixture.apply(&[]).await.plan.removed), "a");
}

#[tokio::test(start_paused = true)]
async fn single_server_can_be_updated() {
    let servers = [settings("a"), settings("b")];
    let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &servers).await;
    let changed = fixture.fleet.update(Arc::new(with_args("a", "x"))).await.unwrap();
    assert_eq!(names(&changed.plan.restarted), "a");
    let unknown = fixture.fleet.update(Arc::new(settings("c"))).await.unwrap();
    assert_eq!(names(&unknown.plan.unchanged), "a b");
    fixture.settle().await;
    assert_eq!(fixture.states(), "a running, b running");
}
