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

impl Harbour {
    async fn add(&self, server: &str) {
        settled(&self.fleet.add(added(server)).await.unwrap().unwrap()).await;
        self.fleet.establish(added(server)).await.unwrap();
    }

    /// The names in the file.
    fn kept(&self) -> Vec<String> {
        let (kept, problem) = AddedServers::read(&self.folder.path().join("added.json")).unwrap();
        assert_eq!(problem, None);
        kept.servers.keys().map(ToString::to_string).collect()
    }

    /// What a daemon begins with: the files, and what was added.
    async fn next_day_with_added(self, files: &[ServerSettings]) -> Self {
        let (kept, _) = AddedServers::read(&self.folder.path().join("added.json")).unwrap();
        let more = kept.servers.values().filter(|it| files.iter().all(|file| file.name != it.name));
        let all: Vec<_> = files.iter().cloned().chain(more.map(|it| (**it).clone())).collect();
        self.next_day(&all).await
    }
}

#[tokio::test(start_paused = true)]
async fn an_added_server_runs_and_is_there_after_a_restart_of_the_daemon() {
    let harbour = Harbour::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
    harbour.add("b").await;
    assert_eq!(harbour.states(), "a running, b running");
    assert_eq!(harbour.kept(), ["b"]);
    let harbour = harbour.next_day_with_added(&[settings("a")]).await;
    assert_eq!(harbour.states(), "a running, b running");
    assert!(harbour.fleet.settings()["b"].source.added);
}

#[tokio::test(start_paused = true)]
async fn one_that_was_not_established_is_not() {
    let harbour = Harbour::new(FakeLauncher::each_lives_on());
    harbour.fleet.add(added("b")).await.unwrap();
    let harbour = harbour.next_day_with_added(&[]).await;
    assert_eq!(harbour.states(), "");
}

#[tokio::test(start_paused = true)]
async fn a_reload_leaves_it_alone_and_its_wish_too() {
    let harbour = Harbour::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
    harbour.add("b").await;
    harbour.ask(Ask::Stop, &["b"]).await;
    harbour.settle().await;
    let plan = harbour.apply(&[settings("c")]).await.plan;
    assert_eq!((names(&plan.removed), names(&plan.added)), ("a".into(), "c".into()));
    assert_eq!(names(&plan.unchanged), "");
    harbour.settle().await;
    assert_eq!(harbour.states(), "b stopped, c running");
    assert_eq!(harbour.wishes(), ["b"]);
    assert_eq!(harbour.kept(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn a_file_of_its_name_takes_over() {
    let harbour = Harbour::new(FakeLauncher::each_lives_on());
    harbour.add("same").await;
    harbour.add("other").await;
    let plan = harbour.apply(&[settings("same"), with_args("other", "x")]).await.plan;
    assert_eq!((names(&plan.updated), names(&plan.restarted)), ("same".into(), "other".into()));
    harbour.settle().await;
    assert_eq!(harbour.launcher.launched(), ["same", "other", "other"]);
    assert_eq!(harbour.kept(), [""; 0]);
    assert!(harbour.fleet.settings().values().all(|it| !it.source.added));
    let plan = harbour.apply(&[]).await.plan;
    assert_eq!(names(&plan.removed), "other same", "from now on its file decides");
}

#[tokio::test(start_paused = true)]
async fn one_name_and_one_port_are_for_one_server() {
    let with_port = |name: &str| {
        let mut changed = settings(name);
        process_of(&mut changed).port = Some(80);
        changed
    };
    let harbour = Harbour::with(FakeLauncher::each_lives_on(), &[with_port("a")]).await;
    assert_eq!(harbour.fleet.add(added("a")).await.unwrap_err(), AddError::Exists);
    let taken = AddError::PortTaken { port: 80, by: name("a") };
    assert_eq!(harbour.fleet.add(Arc::new(with_port("b"))).await.unwrap_err(), taken);
    assert_eq!(harbour.launcher.launched(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_removed_server_leaves_the_roster_at_once_and_ends_in_its_own_time() {
    let harbour = Harbour::new(FakeLauncher::each_stops_in(5 * SECOND));
    harbour.add("a").await;
    harbour.ask(Ask::Stop, &["a"]).await;
    let began = Instant::now();
    let removed = harbour.fleet.remove(&name("a")).await.unwrap().unwrap();
    assert_eq!((harbour.states().as_str(), began.elapsed()), ("", Duration::ZERO));
    assert_eq!((removed.warnings.len(), harbour.kept().len(), harbour.wishes().len()), (0, 0, 0));
    assert!(harbour.fleet.remove(&name("a")).await.unwrap().is_none());
    assert_eq!(removed.leaving[0].now().life.reason.to_string(), "removed");
    removed.leaving[0].wait_until(|it| it.life.state == State::Retired).await;
    assert_eq!(began.elapsed(), 5 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn what_is_added_under_the_name_of_a_removed_one_waits_for_its_end() {
    let harbour = Harbour::new(FakeLauncher::each_stops_in(5 * SECOND));
    harbour.add("a").await;
    harbour.fleet.remove(&name("a")).await.unwrap();
    harbour.add("a").await;
    assert_eq!((harbour.states().as_str(), harbour.launcher.most_living()), ("a running", 1));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_kept_is_told() {
    let harbour = Harbour::new(FakeLauncher::each_lives_on());
    let obstacle = harbour.folder.path().join("added.json.new");
    std::fs::create_dir(&obstacle).unwrap();
    harbour.fleet.add(added("a")).await.unwrap();
    let refused = harbour.fleet.establish(added("a")).await;
    assert!(matches!(refused, Err(EstablishError::NotKept(_))), "{refused:?}");
    std::fs::remove_dir(&obstacle).unwrap();
    harbour.fleet.establish(added("a")).await.unwrap();
    std::fs::create_dir(&obstacle).unwrap();
    let removed = harbour.fleet.remove(&name("a")).await.unwrap().unwrap();
    let [warning] = &removed.warnings[..] else { panic!("{:?}", removed.warnings) };
    assert!(warning.starts_with("it will be back when the daemon restarts: "), "{warning}");
    assert_eq!((harbour.states().as_str(), harbour.kept().len()), ("", 1));
}

#[tokio::test(start_paused = true)]
async fn one_that_was_removed_meanwhile_is_not_established() {
    let harbour = Harbour::new(FakeLauncher::each_lives_on());
    harbour.fleet.add(added("a")).await.unwrap();
    harbour.fleet.remove(&name("a")).await.unwrap();
    let refused = harbour.fleet.establish(added("a")).await;
    assert_eq!(refused, Err(EstablishError::Removed));
}

#[tokio::test(start_paused = true)]
async fn one_that_got_a_file_is_left_to_it() {
    let harbour = Harbour::new(FakeLauncher::each_lives_on());
    settled(&harbour.fleet.add(added("a")).await.unwrap().unwrap()).await;
    harbour.fleet.establish(Arc::new(settings("a"))).await.unwrap();
    assert_eq!((harbour.kept().len(), harbour.launcher.launches()), (0, 1));
    assert_eq!(names(&harbour.apply(&[settings("a")]).await.plan.unchanged), "a");
    assert_eq!(names(&harbour.apply(&[]).await.plan.removed), "a");
}

#[tokio::test(start_paused = true)]
async fn one_server_can_be_changed_alone() {
    let servers = [settings("a"), settings("b")];
    let harbour = Harbour::with(FakeLauncher::each_lives_on(), &servers).await;
    let changed = harbour.fleet.update(Arc::new(with_args("a", "x"))).await.unwrap();
    assert_eq!(names(&changed.plan.restarted), "a");
    let nobody = harbour.fleet.update(Arc::new(settings("c"))).await.unwrap();
    assert_eq!(names(&nobody.plan.unchanged), "a b");
    harbour.settle().await;
    assert_eq!(harbour.states(), "a running, b running");
}
