//! The fleet on paused time, with temporary folders and without processes.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use xy_config::settings::Isolation;
use xy_config::stored_file::StoredFile;

use super::*;
use crate::fake::{FakeLauncher, SECOND, Script, process_of, settings};
use crate::lifecycle::{Exit, Reason, State};
use crate::logs;

mod added;
mod adopted;
mod clients;
mod eras;
mod sharing;
mod sleeping;

/// Longer than any test here takes.
const AGES: Duration = Duration::from_hours(1);

/// A fleet and the folder of its files.
struct TestFleet {
    folder: TempDir,
    launcher: FakeLauncher,
    fleet: Fleet,
}

impl TestFleet {
    fn new(launcher: FakeLauncher) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fleet = fleet_in(folder.path(), &launcher);
        Self { folder, launcher, fleet }
    }

    /// A fleet with these servers, all of them settled.
    async fn with(launcher: FakeLauncher, servers: &[ServerSettings]) -> Self {
        let fixture = Self::new(launcher);
        fixture.apply(servers).await;
        fixture.settle().await;
        fixture
    }

    /// Restarts the daemon with the same folder.
    async fn restart_daemon(self, servers: &[ServerSettings]) -> Self {
        self.shut_down().await;
        let launcher = FakeLauncher::each_lives_on();
        let fleet = fleet_in(self.folder.path(), &launcher);
        let fixture = Self { folder: self.folder, launcher, fleet };
        fixture.apply(servers).await;
        fixture.settle().await;
        fixture
    }

    async fn apply(&self, servers: &[ServerSettings]) -> ReloadOutcome {
        let servers = servers.iter().map(|one| (one.name.clone(), Arc::new(one.clone())));
        self.fleet
            .apply(servers.collect(), BrokenServers::default())
            .await
            .expect("the fleet is open")
    }

    async fn operate(&self, operation: Operation, names: &[&str]) -> OperationOutcome {
        let names = names.iter().map(ToString::to_string).collect();
        self.fleet.operate(operation, Some(names)).await.expect("the fleet is open")
    }

    fn server(&self, name: &str) -> InstanceHandle {
        self.fleet.roster()[name].instances[&Holder::Shared].clone()
    }

    async fn shut_down(&self) {
        timeout(AGES, self.fleet.shutdown()).await.expect("it ends");
    }

    async fn settle(&self) {
        for member in self.fleet.roster().values() {
            for instance in member.instances.values() {
                settled(instance).await;
            }
        }
    }

    /// Returns all servers and their states, as text.
    fn states(&self) -> String {
        let roster = self.fleet.roster();
        let states = roster
            .keys()
            .map(|name| format!("{name} {}", self.server(name.as_str()).now().state()));
        states.collect::<Vec<_>>().join(", ")
    }

    fn stored_stops(&self) -> Vec<String> {
        let (desired, problem) = DesiredState::read(&self.desired_state_file()).unwrap();
        assert_eq!(problem, None);
        desired.stopped.iter().map(ToString::to_string).collect()
    }

    fn desired_state_file(&self) -> PathBuf {
        self.folder.path().join("wishes.json")
    }

    /// Returns the temporary file of the desired state; a folder there makes writes fail.
    fn obstacle(&self) -> PathBuf {
        self.folder.path().join("wishes.json.new")
    }
}

fn fleet_in(folder: &Path, launcher: &FakeLauncher) -> Fleet {
    fleet_with(folder, launcher, InstanceSettings::default())
}

fn fleet_with(folder: &Path, launcher: &FakeLauncher, limits: InstanceSettings) -> Fleet {
    Fleet::spawn(
        FleetParts {
            limits,
            launcher: Arc::new(launcher.clone()),
            desired: DesiredState::read(&folder.join("wishes.json")).unwrap().0,
            desired_state_file: folder.join("wishes.json"),
            runtime_servers: RuntimeServers::read(&folder.join("added.json")).unwrap().0,
            runtime_servers_file: folder.join("added.json"),
            logs_dir: folder.join("logs"),
            locks_dir: folder.join("shims"),
        },
        Vec::new(),
    )
}

async fn settled(instance: &InstanceHandle) {
    timeout(AGES, instance.settled()).await.expect("it settles");
}

fn names(servers: &[ServerName]) -> String {
    servers.iter().map(ServerName::as_str).collect::<Vec<_>>().join(" ")
}

fn names_of(instances: &[InstanceHandle]) -> String {
    instances.iter().map(|it| it.key().to_string()).collect::<Vec<_>>().join(" ")
}

fn applied(outcome: &OperationOutcome) -> Vec<String> {
    let shown =
        |applied: &AppliedOperation| format!("{} was {}", applied.instance.key(), applied.before);
    outcome.applied.iter().map(shown).collect()
}

fn with_args(name: &str, args: &str) -> ServerSettings {
    let mut changed = settings(name);
    process_of(&mut changed).args = vec![args.into()];
    changed
}

fn with_grace(name: &str, grace: Duration) -> ServerSettings {
    let mut changed = settings(name);
    changed.rules.stop.grace = grace;
    changed
}

mod requests {
    //! Operations of operators.

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn first_settings_start_all_servers() {
        let servers = [settings("a"), settings("b")];
        let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &servers).await;
        assert_eq!(fixture.states(), "a running, b running");
        assert_eq!(fixture.launcher.launched(), ["a", "b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn operation_applies_to_named_servers_only() {
        let servers = [settings("a"), settings("b"), settings("c")];
        let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &servers).await;
        let outcome = fixture.operate(Operation::Stop, &["c", "a"]).await;
        assert_eq!(applied(&outcome), ["a was running", "c was running"]);
        fixture.settle().await;
        assert_eq!(fixture.states(), "a stopped, b running, c stopped");
    }

    #[tokio::test(start_paused = true)]
    async fn operation_without_names_applies_to_all() {
        let servers = [settings("a"), settings("b")];
        let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &servers).await;
        let outcome = fixture.fleet.operate(Operation::Stop, None).await.unwrap();
        assert_eq!(applied(&outcome), ["a was running", "b was running"]);
        fixture.settle().await;
        assert_eq!(fixture.states(), "a stopped, b stopped");
    }

    #[tokio::test(start_paused = true)]
    async fn unknown_names_are_reported_and_known_ones_are_stopped() {
        let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        let outcome = fixture.operate(Operation::Stop, &["nobody", "a", "", "no one"]).await;
        assert_eq!(outcome.unknown, ["", "no one", "nobody"]);
        assert_eq!(applied(&outcome), ["a was running"]);
    }

    #[tokio::test(start_paused = true)]
    async fn server_named_twice_is_operated_on_once() {
        let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        let outcome = fixture.operate(Operation::Restart, &["a", "a"]).await;
        assert_eq!(applied(&outcome), ["a was running"]);
    }

    #[tokio::test(start_paused = true)]
    async fn operation_returns_before_it_is_done() {
        let launcher = FakeLauncher::each_stops_in(5 * SECOND);
        let fixture = TestFleet::with(launcher, &[settings("a")]).await;
        let began = Instant::now();
        let outcome = fixture.operate(Operation::Stop, &["a"]).await;
        assert_eq!(fixture.states(), "a stopping");
        assert_eq!(began.elapsed(), Duration::ZERO);
        settled(&outcome.applied[0].instance).await;
        assert_eq!((fixture.states().as_str(), began.elapsed()), ("a stopped", 5 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn stop_survives_daemon_restart() {
        let servers = [settings("a"), settings("b")];
        let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &servers).await;
        fixture.operate(Operation::Stop, &["a"]).await;
        assert_eq!(fixture.stored_stops(), ["a"]);
        let fixture = fixture.restart_daemon(&servers).await;
        assert_eq!(fixture.states(), "a stopped, b running");
        assert_eq!(fixture.launcher.launched(), ["b"]);
        assert_eq!(fixture.server("a").now().life.wanted, Wanted::Down);
    }

    #[tokio::test(start_paused = true)]
    async fn start_or_restart_reverts_stop() {
        let servers = [settings("a"), settings("b")];
        let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &servers).await;
        fixture.fleet.operate(Operation::Stop, None).await.unwrap();
        assert_eq!(fixture.stored_stops(), ["a", "b"]);
        fixture.operate(Operation::Start, &["a"]).await;
        assert_eq!(fixture.stored_stops(), ["b"]);
        fixture.operate(Operation::Restart, &["b"]).await;
        assert_eq!(fixture.stored_stops(), [""; 0]);
        let fixture = fixture.restart_daemon(&servers).await;
        assert_eq!(fixture.states(), "a running, b running");
    }

    #[tokio::test(start_paused = true)]
    async fn daemon_shutdown_does_not_change_desired_state() {
        let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        let fixture = fixture.restart_daemon(&[settings("a")]).await;
        assert_eq!(fixture.states(), "a running");
    }

    #[tokio::test(start_paused = true)]
    async fn unwritable_desired_state_is_a_warning() {
        let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        std::fs::create_dir(fixture.obstacle()).unwrap();
        let outcome = fixture.operate(Operation::Stop, &["a"]).await;
        assert_eq!(applied(&outcome), ["a was running"]);
        let [warning] = &outcome.warnings[..] else { panic!("{:?}", outcome.warnings) };
        assert!(warning.starts_with("not stored, so it is lost when the daemon restarts: "));
        assert!(warning.contains("wishes.json could not be written"), "{warning}");
        fixture.settle().await;
        assert_eq!(fixture.states(), "a stopped");
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_operation_stores_desired_state() {
        let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        std::fs::create_dir(fixture.obstacle()).unwrap();
        assert_eq!(fixture.operate(Operation::Stop, &["a"]).await.warnings.len(), 1);
        assert_eq!(
            fixture.operate(Operation::Stop, &["a"]).await.warnings.len(),
            1,
            "still not kept"
        );
        std::fs::remove_dir(fixture.obstacle()).unwrap();
        assert_eq!(fixture.operate(Operation::Stop, &["a"]).await.warnings.len(), 0);
        assert_eq!(fixture.stored_stops(), ["a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn unchanged_desired_state_is_not_written() {
        let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        fixture.operate(Operation::Start, &["a"]).await;
        fixture.operate(Operation::Stop, &["nobody"]).await;
        assert!(!fixture.desired_state_file().exists());
    }

    #[tokio::test(start_paused = true)]
    async fn damaged_desired_state_stops_no_server() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("wishes.json"), "{").unwrap();
        let launcher = FakeLauncher::each_lives_on();
        let fleet = fleet_in(folder.path(), &launcher);
        let fixture = TestFleet { folder, launcher, fleet };
        fixture.apply(&[settings("a")]).await;
        fixture.settle().await;
        assert_eq!(fixture.states(), "a running");
    }

    #[tokio::test(start_paused = true)]
    async fn changes_of_all_servers_share_one_channel() {
        let fixture = TestFleet::new(FakeLauncher::each_lives_on());
        let mut changes = fixture.fleet.changes();
        fixture.apply(&[settings("a"), settings("b")]).await;
        fixture.settle().await;
        let mut told = Vec::new();
        while let Ok(change) = changes.try_recv() {
            told.push(format!("{} {}", change.key, change.transition.to));
        }
        told.sort();
        assert_eq!(told, ["a running", "a starting", "b running", "b starting"]);
    }
}

mod reloads {
    //! Reloads.

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn reload_applies_each_file() {
        let fixture = TestFleet::with(
            FakeLauncher::each_lives_on(),
            &[settings("args"), settings("gone"), settings("rules"), settings("same")],
        )
        .await;
        let gone = fixture.server("gone");
        let applied = fixture
            .apply(&[
                with_args("args", "--other"),
                settings("new"),
                with_grace("rules", SECOND),
                settings("same"),
            ])
            .await;
        assert_eq!(names(&applied.plan.added), "new");
        assert_eq!(names(&applied.plan.removed), "gone");
        assert_eq!(names(&applied.plan.restarted), "args");
        assert_eq!(names(&applied.plan.updated), "rules");
        assert_eq!(names(&applied.plan.unchanged), "same");
        assert_eq!(names_of(&applied.leaving), "gone");
        assert!(names_of(&applied.coming).contains("new args"));
        fixture.settle().await;
        settled(&gone).await;

        assert_eq!(fixture.states(), "args running, new running, rules running, same running");
        assert_eq!(gone.now().life.state, State::Retired);
        let launched = fixture.launcher.launched();
        assert_eq!(launched, ["args", "gone", "rules", "same", "new", "args"]);
        assert_eq!(fixture.server("rules").now().pid, Some(3), "it lives on");
        assert_eq!(fixture.server("rules").now().settings.rules.stop.grace, SECOND);
        assert_eq!(fixture.server("args").now().settings.process().unwrap().args, ["--other"]);
        assert_eq!(fixture.launcher.max_living(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn settings_are_those_applied_last() {
        let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        fixture.apply(&[with_args("a", "--other"), settings("b")]).await;
        let settings = fixture.fleet.settings();
        assert_eq!(settings["a"].process().unwrap().args, ["--other"]);
        assert_eq!(settings.len(), 2);
        let plan = fixture.apply(&[with_args("a", "--other")]).await.plan;
        assert_eq!((names(&plan.removed), names(&plan.unchanged)), ("b".into(), "a".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn stopped_server_stays_stopped() {
        let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        fixture.operate(Operation::Stop, &["a"]).await;
        fixture.settle().await;
        let applied = fixture.apply(&[with_args("a", "--other")]).await;
        assert_eq!(names(&applied.plan.restarted), "a");
        assert_eq!(names_of(&applied.coming), "", "it is not starting");
        sleep(AGES).await;
        assert_eq!((fixture.states().as_str(), fixture.launcher.launches()), ("a stopped", 1));
    }

    #[tokio::test(start_paused = true)]
    async fn changed_file_restarts_failed_server() {
        let launcher = FakeLauncher::with_scripts([
            Script::Fails { after: Duration::ZERO, fault: crate::fake::permanent_fault() },
            Script::Lives { stops_in: SECOND },
        ]);
        let fixture = TestFleet::with(launcher, &[settings("a")]).await;
        assert_eq!(fixture.states(), "a failed");
        fixture.apply(&[settings("a")]).await;
        assert_eq!(fixture.states(), "a failed", "the same file changes nothing");
        fixture.apply(&[with_grace("a", SECOND)]).await;
        fixture.settle().await;
        assert_eq!(fixture.states(), "a running");
    }

    #[tokio::test(start_paused = true)]
    async fn removed_server_loses_its_desired_state() {
        let servers = [settings("a"), settings("b")];
        let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &servers).await;
        fixture.fleet.operate(Operation::Stop, None).await.unwrap();
        fixture.apply(&[settings("b")]).await;
        assert_eq!(fixture.stored_stops(), ["b"]);
        fixture.apply(&servers).await;
        fixture.settle().await;
        assert_eq!(fixture.states(), "a running, b stopped");
    }

    #[tokio::test(start_paused = true)]
    async fn removed_server_leaves_roster_at_once() {
        let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        let applied = fixture.apply(&[]).await;
        assert!(fixture.fleet.roster().is_empty());
        assert_eq!(fixture.operate(Operation::Start, &["a"]).await.unknown, ["a"]);
        settled(&applied.leaving[0]).await;
        assert_eq!(fixture.launcher.living(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_end_delays_no_other_server() {
        let launcher = FakeLauncher::each_lives_on().and_for("slow", [Script::Stubborn]);
        let fixture = TestFleet::with(launcher, &[settings("quick"), settings("slow")]).await;
        let began = Instant::now();
        let applied = fixture.apply(&[settings("quick"), settings("new")]).await;
        fixture.operate(Operation::Restart, &["quick"]).await;
        fixture.settle().await;
        assert_eq!(fixture.states(), "new running, quick running");
        assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
        assert_eq!(names_of(&applied.leaving), "slow");
        settled(&applied.leaving[0]).await;
        assert_eq!(began.elapsed(), 20 * SECOND, "the grace and the margin");
    }

    #[tokio::test(start_paused = true)]
    async fn readded_server_never_runs_twice() {
        let launcher = FakeLauncher::each_stops_in(5 * SECOND);
        let fixture = TestFleet::with(launcher, &[settings("a")]).await;
        let began = Instant::now();
        fixture.apply(&[]).await;
        let applied = fixture.apply(&[with_args("a", "--new")]).await;
        assert_eq!(names_of(&applied.coming), "a");
        assert_eq!(fixture.server("a").now().life.reason, Reason::WaitingForPredecessor);
        assert_eq!(
            began.elapsed(),
            Duration::ZERO,
            "the reload does not wait for the old instance"
        );
        fixture.settle().await;
        assert_eq!((fixture.states().as_str(), began.elapsed()), ("a running", 5 * SECOND));
        assert_eq!(fixture.launcher.last_settings().process().unwrap().args, ["--new"]);
        assert_eq!((fixture.launcher.launches(), fixture.launcher.max_living()), (2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn repeatedly_readded_server_never_runs_twice() {
        let launcher = FakeLauncher::each_stops_in(5 * SECOND);
        let fixture = TestFleet::with(launcher, &[settings("a")]).await;
        for _ in 0..10 {
            fixture.apply(&[]).await;
            fixture.apply(&[settings("a")]).await;
            sleep(SECOND).await;
        }
        fixture.settle().await;
        assert_eq!(fixture.states(), "a running");
        assert_eq!((fixture.launcher.living(), fixture.launcher.max_living()), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn server_readded_later_starts_at_once() {
        let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        fixture.apply(&[]).await;
        sleep(AGES).await;
        let began = Instant::now();
        fixture.apply(&[settings("a")]).await;
        fixture.settle().await;
        assert_eq!((fixture.states().as_str(), began.elapsed()), ("a running", Duration::ZERO));
    }
}

mod shutdowns {
    //! Shutdown.

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn servers_end_in_parallel() {
        let stops = |seconds: u32| [Script::Lives { stops_in: seconds * SECOND }];
        let launcher = FakeLauncher::each_lives_on()
            .and_for("a", stops(3))
            .and_for("b", stops(7))
            .and_for("c", stops(5));
        let servers = [settings("a"), settings("b"), settings("c")];
        let fixture = TestFleet::with(launcher, &servers).await;
        let began = Instant::now();
        fixture.shut_down().await;
        assert_eq!(began.elapsed(), 7 * SECOND, "the time of the slowest, not the sum");
        assert_eq!(fixture.launcher.living(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_waits_for_leaving_servers() {
        let launcher = FakeLauncher::each_stops_in(5 * SECOND);
        let fixture = TestFleet::with(launcher, &[settings("a")]).await;
        fixture.apply(&[]).await;
        fixture.apply(&[settings("a")]).await;
        let began = Instant::now();
        fixture.shut_down().await;
        assert_eq!((fixture.launcher.living(), began.elapsed()), (0, 5 * SECOND));
        assert_eq!(fixture.launcher.launches(), 1, "the successor was never needed");
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_ends_servers_in_every_state() {
        let launcher = FakeLauncher::each_lives_on()
            .and_for("crashes", [Script::Dies { after: SECOND, exit: Exit::code(1) }])
            .and_for("hangs", [Script::Hangs])
            .and_for(
                "fails",
                [Script::Fails { after: Duration::ZERO, fault: crate::fake::permanent_fault() }],
            );
        let servers = ["crashes", "fails", "hangs", "runs", "stopped"].map(settings);
        let fixture = TestFleet::new(launcher);
        fixture.apply(&servers).await;
        fixture.operate(Operation::Stop, &["stopped"]).await;
        sleep(Duration::from_millis(1500)).await;
        let before = fixture.states();
        assert_eq!(
            before,
            "crashes restarting, fails failed, hangs starting, runs running, stopped stopped"
        );
        fixture.shut_down().await;
        assert_eq!(fixture.launcher.living(), 0);
        for name in ["crashes", "fails", "hangs", "runs", "stopped"] {
            assert_eq!(fixture.server(name).now().life.state, State::Retired, "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_after_shutdown_are_refused() {
        let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        fixture.shut_down().await;
        assert!(matches!(fixture.fleet.operate(Operation::Start, None).await, Err(FleetClosed)));
        assert!(matches!(
            fixture.fleet.apply(ServerMap::new(), BrokenServers::default()).await,
            Err(FleetClosed)
        ));
        fixture.shut_down().await;
        assert_eq!(fixture.launcher.launches(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_during_shutdown_are_refused() {
        let launcher = FakeLauncher::each_stops_in(5 * SECOND);
        let fixture = TestFleet::with(launcher, &[settings("a")]).await;
        let fleet = fixture.fleet.clone();
        let ending = tokio::spawn(async move { fleet.shutdown().await });
        let stopping = fixture.server("a");
        let stopping = stopping.wait_until(|it| it.state() == ServerState::Stopping);
        timeout(AGES, stopping).await.expect("the shutdown begins");
        let refused = fixture.fleet.operate(Operation::Restart, None).await;
        assert!(matches!(refused, Err(FleetClosed)));
        ending.await.unwrap();
        assert_eq!((fixture.launcher.launches(), fixture.launcher.living()), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn every_shutdown_caller_waits_for_the_end() {
        let launcher = FakeLauncher::each_stops_in(5 * SECOND);
        let fixture = TestFleet::with(launcher, &[settings("a")]).await;
        let began = Instant::now();
        let second = async {
            sleep(SECOND).await;
            fixture.shut_down().await;
            assert_eq!((fixture.launcher.living(), began.elapsed()), (0, 5 * SECOND));
        };
        tokio::join!(fixture.shut_down(), second);
    }

    #[tokio::test(start_paused = true)]
    async fn dropping_last_fleet_handle_ends_servers() {
        let TestFleet { launcher, fleet, .. } =
            TestFleet::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        assert_eq!(launcher.living(), 1);
        drop(fleet);
        sleep(SECOND).await;
        assert_eq!(launcher.living(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn hundred_servers_restart_in_parallel() {
    let servers: Vec<_> = (0..100).map(|n| settings(&format!("s{n:02}"))).collect();
    let launcher = FakeLauncher::each_stops_in(SECOND);
    let fixture = TestFleet::with(launcher, &servers).await;
    assert_eq!(fixture.launcher.living(), 100);

    let began = Instant::now();
    let outcome = fixture.fleet.operate(Operation::Restart, None).await.unwrap();
    assert_eq!(outcome.applied.len(), 100);
    fixture.settle().await;
    assert_eq!(began.elapsed(), SECOND, "all restart in parallel");
    assert_eq!((fixture.launcher.launches(), fixture.launcher.max_living()), (200, 1));

    let changed: Vec<_> = servers.iter().map(|it| with_args(it.name.as_str(), "--new")).collect();
    let plan = fixture.apply(&changed[..50]).await.plan;
    assert_eq!((plan.removed.len(), plan.restarted.len()), (50, 50));
    fixture.settle().await;
    assert_eq!(fixture.launcher.living(), 50);

    fixture.shut_down().await;
    assert_eq!((fixture.launcher.living(), fixture.launcher.max_living()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn concurrent_operations_all_complete() {
    let servers: Vec<_> = (0..10).map(|n| settings(&format!("s{n}"))).collect();
    let fixture = TestFleet::with(FakeLauncher::each_lives_on(), &servers).await;
    let mut callers = JoinSet::new();
    for n in 0..200 {
        let fleet = fixture.fleet.clone();
        let operation = [Operation::Start, Operation::Stop, Operation::Restart][n % 3];
        callers.spawn(
            async move { fleet.operate(operation, Some(vec![format!("s{}", n % 10)])).await },
        );
    }
    let outcomes = timeout(AGES, callers.join_all()).await.expect("all complete");
    assert!(outcomes.iter().all(|outcome| outcome.as_ref().is_ok_and(|it| it.applied.len() == 1)));
    fixture.settle().await;
    assert_eq!(fixture.launcher.max_living(), 1);
}
