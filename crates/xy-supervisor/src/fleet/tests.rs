//! All servers together, on paused time, with temporary folders and no process.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use xy_config::settings::Isolation;

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

/// More than any play here takes.
const AGES: Duration = Duration::from_hours(1);

/// A fleet, and the folder in which it keeps what it must remember.
struct Harbour {
    folder: TempDir,
    launcher: FakeLauncher,
    fleet: Fleet,
}

impl Harbour {
    fn new(launcher: FakeLauncher) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fleet = fleet_in(folder.path(), &launcher);
        Self { folder, launcher, fleet }
    }

    /// With these servers, all of them settled.
    async fn with(launcher: FakeLauncher, servers: &[ServerSettings]) -> Self {
        let harbour = Self::new(launcher);
        harbour.apply(servers).await;
        harbour.settle().await;
        harbour
    }

    /// The daemon ends, and another one begins in the same home.
    async fn next_day(self, servers: &[ServerSettings]) -> Self {
        self.shut_down().await;
        let launcher = FakeLauncher::each_lives_on();
        let fleet = fleet_in(self.folder.path(), &launcher);
        let harbour = Self { folder: self.folder, launcher, fleet };
        harbour.apply(servers).await;
        harbour.settle().await;
        harbour
    }

    async fn apply(&self, servers: &[ServerSettings]) -> Applied {
        let servers = servers.iter().map(|one| (one.name.clone(), Arc::new(one.clone())));
        self.fleet.apply(servers.collect(), Broken::default()).await.expect("the fleet is open")
    }

    async fn ask(&self, ask: Ask, names: &[&str]) -> AskOutcome {
        let names = names.iter().map(ToString::to_string).collect();
        self.fleet.ask(ask, Some(names)).await.expect("the fleet is open")
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

    /// All servers and their states, as text.
    fn states(&self) -> String {
        let roster = self.fleet.roster();
        let states = roster
            .keys()
            .map(|name| format!("{name} {}", self.server(name.as_str()).now().state()));
        states.collect::<Vec<_>>().join(", ")
    }

    fn wishes(&self) -> Vec<String> {
        let (wishes, problem) = Wishes::read(&self.wishes_file()).unwrap();
        assert_eq!(problem, None);
        wishes.stopped.iter().map(ToString::to_string).collect()
    }

    fn wishes_file(&self) -> PathBuf {
        self.folder.path().join("wishes.json")
    }

    /// What stands in the way of writing the wishes.
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
            wishes: Wishes::read(&folder.join("wishes.json")).unwrap().0,
            wishes_file: folder.join("wishes.json"),
            added: AddedServers::read(&folder.join("added.json")).unwrap().0,
            added_file: folder.join("added.json"),
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

fn asked(outcome: &AskOutcome) -> Vec<String> {
    let shown = |asked: &Asked| format!("{} was {}", asked.instance.key(), asked.before);
    outcome.asked.iter().map(shown).collect()
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
    //! What operators ask.

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_settings_start_everything() {
        let servers = [settings("a"), settings("b")];
        let harbour = Harbour::with(FakeLauncher::each_lives_on(), &servers).await;
        assert_eq!(harbour.states(), "a running, b running");
        assert_eq!(harbour.launcher.launched(), ["a", "b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn only_those_who_are_named_are_asked() {
        let servers = [settings("a"), settings("b"), settings("c")];
        let harbour = Harbour::with(FakeLauncher::each_lives_on(), &servers).await;
        let outcome = harbour.ask(Ask::Stop, &["c", "a"]).await;
        assert_eq!(asked(&outcome), ["a was running", "c was running"]);
        harbour.settle().await;
        assert_eq!(harbour.states(), "a stopped, b running, c stopped");
    }

    #[tokio::test(start_paused = true)]
    async fn without_names_all_are_asked() {
        let servers = [settings("a"), settings("b")];
        let harbour = Harbour::with(FakeLauncher::each_lives_on(), &servers).await;
        let outcome = harbour.fleet.ask(Ask::Stop, None).await.unwrap();
        assert_eq!(asked(&outcome), ["a was running", "b was running"]);
        harbour.settle().await;
        assert_eq!(harbour.states(), "a stopped, b stopped");
    }

    #[tokio::test(start_paused = true)]
    async fn names_that_nobody_bears_are_told_and_the_others_are_served() {
        let harbour = Harbour::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        let outcome = harbour.ask(Ask::Stop, &["nobody", "a", "", "no one"]).await;
        assert_eq!(outcome.unknown, ["", "no one", "nobody"]);
        assert_eq!(asked(&outcome), ["a was running"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_named_twice_is_asked_once() {
        let harbour = Harbour::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        let outcome = harbour.ask(Ask::Restart, &["a", "a"]).await;
        assert_eq!(asked(&outcome), ["a was running"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_answered_before_it_is_done() {
        let launcher = FakeLauncher::each_stops_in(5 * SECOND);
        let harbour = Harbour::with(launcher, &[settings("a")]).await;
        let began = Instant::now();
        let outcome = harbour.ask(Ask::Stop, &["a"]).await;
        assert_eq!(harbour.states(), "a stopping");
        assert_eq!(began.elapsed(), Duration::ZERO);
        settled(&outcome.asked[0].instance).await;
        assert_eq!((harbour.states().as_str(), began.elapsed()), ("a stopped", 5 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_outlives_the_daemon() {
        let servers = [settings("a"), settings("b")];
        let harbour = Harbour::with(FakeLauncher::each_lives_on(), &servers).await;
        harbour.ask(Ask::Stop, &["a"]).await;
        assert_eq!(harbour.wishes(), ["a"]);
        let harbour = harbour.next_day(&servers).await;
        assert_eq!(harbour.states(), "a stopped, b running");
        assert_eq!(harbour.launcher.launched(), ["b"]);
        assert_eq!(harbour.server("a").now().life.wanted, Wanted::Down);
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_or_a_restart_ends_what_a_stop_began() {
        let servers = [settings("a"), settings("b")];
        let harbour = Harbour::with(FakeLauncher::each_lives_on(), &servers).await;
        harbour.fleet.ask(Ask::Stop, None).await.unwrap();
        assert_eq!(harbour.wishes(), ["a", "b"]);
        harbour.ask(Ask::Start, &["a"]).await;
        assert_eq!(harbour.wishes(), ["b"]);
        harbour.ask(Ask::Restart, &["b"]).await;
        assert_eq!(harbour.wishes(), [""; 0]);
        let harbour = harbour.next_day(&servers).await;
        assert_eq!(harbour.states(), "a running, b running");
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_the_daemon_is_no_wish() {
        let harbour = Harbour::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        let harbour = harbour.next_day(&[settings("a")]).await;
        assert_eq!(harbour.states(), "a running");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wish_that_cannot_be_kept_is_a_warning_and_done_all_the_same() {
        let harbour = Harbour::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        std::fs::create_dir(harbour.obstacle()).unwrap();
        let outcome = harbour.ask(Ask::Stop, &["a"]).await;
        assert_eq!(asked(&outcome), ["a was running"]);
        let [warning] = &outcome.warnings[..] else { panic!("{:?}", outcome.warnings) };
        assert!(warning.starts_with("this will be forgotten when the daemon restarts: "));
        assert!(warning.contains("wishes.json could not be written"), "{warning}");
        harbour.settle().await;
        assert_eq!(harbour.states(), "a stopped");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wish_that_could_not_be_kept_is_kept_when_it_is_made_again() {
        let harbour = Harbour::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        std::fs::create_dir(harbour.obstacle()).unwrap();
        assert_eq!(harbour.ask(Ask::Stop, &["a"]).await.warnings.len(), 1);
        assert_eq!(harbour.ask(Ask::Stop, &["a"]).await.warnings.len(), 1, "still not kept");
        std::fs::remove_dir(harbour.obstacle()).unwrap();
        assert_eq!(harbour.ask(Ask::Stop, &["a"]).await.warnings.len(), 0);
        assert_eq!(harbour.wishes(), ["a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_changes_no_wish_writes_nothing() {
        let harbour = Harbour::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        harbour.ask(Ask::Start, &["a"]).await;
        harbour.ask(Ask::Stop, &["nobody"]).await;
        assert!(!harbour.wishes_file().exists());
    }

    #[tokio::test(start_paused = true)]
    async fn a_damaged_file_of_wishes_keeps_nobody_down() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("wishes.json"), "{").unwrap();
        let launcher = FakeLauncher::each_lives_on();
        let fleet = fleet_in(folder.path(), &launcher);
        let harbour = Harbour { folder, launcher, fleet };
        harbour.apply(&[settings("a")]).await;
        harbour.settle().await;
        assert_eq!(harbour.states(), "a running");
    }

    #[tokio::test(start_paused = true)]
    async fn changes_of_all_servers_are_told_in_one_place() {
        let harbour = Harbour::new(FakeLauncher::each_lives_on());
        let mut changes = harbour.fleet.changes();
        harbour.apply(&[settings("a"), settings("b")]).await;
        harbour.settle().await;
        let mut told = Vec::new();
        while let Ok(change) = changes.try_recv() {
            told.push(format!("{} {}", change.key, change.transition.to));
        }
        told.sort();
        assert_eq!(told, ["a running", "a starting", "b running", "b starting"]);
    }
}

mod reloads {
    //! What changed files mean.

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reload_does_to_each_server_what_its_file_says() {
        let harbour = Harbour::with(
            FakeLauncher::each_lives_on(),
            &[settings("args"), settings("gone"), settings("rules"), settings("same")],
        )
        .await;
        let gone = harbour.server("gone");
        let applied = harbour
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
        harbour.settle().await;
        settled(&gone).await;

        assert_eq!(harbour.states(), "args running, new running, rules running, same running");
        assert_eq!(gone.now().life.state, State::Retired);
        let launched = harbour.launcher.launched();
        assert_eq!(launched, ["args", "gone", "rules", "same", "new", "args"]);
        assert_eq!(harbour.server("rules").now().pid, Some(3), "it lives on");
        assert_eq!(harbour.server("rules").now().settings.rules.stop.grace, SECOND);
        assert_eq!(harbour.server("args").now().settings.process().unwrap().args, ["--other"]);
        assert_eq!(harbour.launcher.most_living(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_settings_are_those_that_were_applied_last() {
        let harbour = Harbour::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        harbour.apply(&[with_args("a", "--other"), settings("b")]).await;
        let settings = harbour.fleet.settings();
        assert_eq!(settings["a"].process().unwrap().args, ["--other"]);
        assert_eq!(settings.len(), 2);
        let plan = harbour.apply(&[with_args("a", "--other")]).await.plan;
        assert_eq!((names(&plan.removed), names(&plan.unchanged)), ("b".into(), "a".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn what_an_operator_stopped_stays_stopped() {
        let harbour = Harbour::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        harbour.ask(Ask::Stop, &["a"]).await;
        harbour.settle().await;
        let applied = harbour.apply(&[with_args("a", "--other")]).await;
        assert_eq!(names(&applied.plan.restarted), "a");
        assert_eq!(names_of(&applied.coming), "", "it does not come");
        sleep(AGES).await;
        assert_eq!((harbour.states().as_str(), harbour.launcher.launches()), ("a stopped", 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_file_gives_a_failed_server_another_chance() {
        let launcher = FakeLauncher::plays([
            Script::Fails { after: Duration::ZERO, fault: crate::fake::permanent_fault() },
            Script::Lives { stops_in: SECOND },
        ]);
        let harbour = Harbour::with(launcher, &[settings("a")]).await;
        assert_eq!(harbour.states(), "a failed");
        harbour.apply(&[settings("a")]).await;
        assert_eq!(harbour.states(), "a failed", "the same file changes nothing");
        harbour.apply(&[with_grace("a", SECOND)]).await;
        harbour.settle().await;
        assert_eq!(harbour.states(), "a running");
    }

    #[tokio::test(start_paused = true)]
    async fn a_removed_server_takes_its_wish_with_it() {
        let servers = [settings("a"), settings("b")];
        let harbour = Harbour::with(FakeLauncher::each_lives_on(), &servers).await;
        harbour.fleet.ask(Ask::Stop, None).await.unwrap();
        harbour.apply(&[settings("b")]).await;
        assert_eq!(harbour.wishes(), ["b"]);
        harbour.apply(&servers).await;
        harbour.settle().await;
        assert_eq!(harbour.states(), "a running, b stopped");
    }

    #[tokio::test(start_paused = true)]
    async fn a_removed_server_is_gone_from_the_roster_at_once() {
        let harbour = Harbour::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        let applied = harbour.apply(&[]).await;
        assert!(harbour.fleet.roster().is_empty());
        assert_eq!(harbour.ask(Ask::Start, &["a"]).await.unknown, ["a"]);
        settled(&applied.leaving[0]).await;
        assert_eq!(harbour.launcher.living(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_end_delays_nobody_else() {
        let launcher = FakeLauncher::each_lives_on().and_for("slow", [Script::Stubborn]);
        let harbour = Harbour::with(launcher, &[settings("quick"), settings("slow")]).await;
        let began = Instant::now();
        let applied = harbour.apply(&[settings("quick"), settings("new")]).await;
        harbour.ask(Ask::Restart, &["quick"]).await;
        harbour.settle().await;
        assert_eq!(harbour.states(), "new running, quick running");
        assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
        assert_eq!(names_of(&applied.leaving), "slow");
        settled(&applied.leaving[0]).await;
        assert_eq!(began.elapsed(), 20 * SECOND, "it had its grace and the margin");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_removed_and_added_again_never_lives_twice() {
        let launcher = FakeLauncher::each_stops_in(5 * SECOND);
        let harbour = Harbour::with(launcher, &[settings("a")]).await;
        let began = Instant::now();
        harbour.apply(&[]).await;
        let applied = harbour.apply(&[with_args("a", "--new")]).await;
        assert_eq!(names_of(&applied.coming), "a");
        assert_eq!(harbour.server("a").now().life.reason, Reason::Predecessor);
        assert_eq!(began.elapsed(), Duration::ZERO, "nobody waited for the old one");
        harbour.settle().await;
        assert_eq!((harbour.states().as_str(), began.elapsed()), ("a running", 5 * SECOND));
        assert_eq!(harbour.launcher.last_settings().process().unwrap().args, ["--new"]);
        assert_eq!((harbour.launcher.launches(), harbour.launcher.most_living()), (2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_comes_and_goes_all_the_time_never_lives_twice() {
        let launcher = FakeLauncher::each_stops_in(5 * SECOND);
        let harbour = Harbour::with(launcher, &[settings("a")]).await;
        for _ in 0..10 {
            harbour.apply(&[]).await;
            harbour.apply(&[settings("a")]).await;
            sleep(SECOND).await;
        }
        harbour.settle().await;
        assert_eq!(harbour.states(), "a running");
        assert_eq!((harbour.launcher.living(), harbour.launcher.most_living()), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_added_again_long_after_starts_at_once() {
        let harbour = Harbour::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        harbour.apply(&[]).await;
        sleep(AGES).await;
        let began = Instant::now();
        harbour.apply(&[settings("a")]).await;
        harbour.settle().await;
        assert_eq!((harbour.states().as_str(), began.elapsed()), ("a running", Duration::ZERO));
    }
}

mod shutdowns {
    //! How it all ends.

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_servers_end_at_the_same_time() {
        let stops = |seconds: u32| [Script::Lives { stops_in: seconds * SECOND }];
        let launcher = FakeLauncher::each_lives_on()
            .and_for("a", stops(3))
            .and_for("b", stops(7))
            .and_for("c", stops(5));
        let servers = [settings("a"), settings("b"), settings("c")];
        let harbour = Harbour::with(launcher, &servers).await;
        let began = Instant::now();
        harbour.shut_down().await;
        assert_eq!(began.elapsed(), 7 * SECOND, "as long as the slowest, not the sum");
        assert_eq!(harbour.launcher.living(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_were_already_leaving_are_waited_for() {
        let launcher = FakeLauncher::each_stops_in(5 * SECOND);
        let harbour = Harbour::with(launcher, &[settings("a")]).await;
        harbour.apply(&[]).await;
        harbour.apply(&[settings("a")]).await;
        let began = Instant::now();
        harbour.shut_down().await;
        assert_eq!((harbour.launcher.living(), began.elapsed()), (0, 5 * SECOND));
        assert_eq!(harbour.launcher.launches(), 1, "the successor was never needed");
    }

    #[tokio::test(start_paused = true)]
    async fn servers_in_every_state_end() {
        let launcher = FakeLauncher::each_lives_on()
            .and_for("crashes", [Script::Dies { after: SECOND, exit: Exit::code(1) }])
            .and_for("hangs", [Script::Hangs])
            .and_for(
                "fails",
                [Script::Fails { after: Duration::ZERO, fault: crate::fake::permanent_fault() }],
            );
        let servers = ["crashes", "fails", "hangs", "runs", "stopped"].map(settings);
        let harbour = Harbour::new(launcher);
        harbour.apply(&servers).await;
        harbour.ask(Ask::Stop, &["stopped"]).await;
        sleep(Duration::from_millis(1500)).await;
        let before = harbour.states();
        assert_eq!(
            before,
            "crashes restarting, fails failed, hangs starting, runs running, stopped stopped"
        );
        harbour.shut_down().await;
        assert_eq!(harbour.launcher.living(), 0);
        for name in ["crashes", "fails", "hangs", "runs", "stopped"] {
            assert_eq!(harbour.server(name).now().life.state, State::Retired, "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_end_nothing_is_taken_any_more() {
        let harbour = Harbour::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        harbour.shut_down().await;
        assert!(matches!(harbour.fleet.ask(Ask::Start, None).await, Err(Closed)));
        assert!(matches!(
            harbour.fleet.apply(ServerMap::new(), Broken::default()).await,
            Err(Closed)
        ));
        harbour.shut_down().await;
        assert_eq!(harbour.launcher.launches(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_asked_during_the_end_is_refused() {
        let launcher = FakeLauncher::each_stops_in(5 * SECOND);
        let harbour = Harbour::with(launcher, &[settings("a")]).await;
        let fleet = harbour.fleet.clone();
        let ending = tokio::spawn(async move { fleet.shutdown().await });
        let stopping = harbour.server("a");
        let stopping = stopping.wait_until(|it| it.state() == ServerState::Stopping);
        timeout(AGES, stopping).await.expect("the end begins");
        let refused = harbour.fleet.ask(Ask::Restart, None).await;
        assert!(matches!(refused, Err(Closed)));
        ending.await.unwrap();
        assert_eq!((harbour.launcher.launches(), harbour.launcher.living()), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_asks_for_the_end_waits_for_all_of_it() {
        let launcher = FakeLauncher::each_stops_in(5 * SECOND);
        let harbour = Harbour::with(launcher, &[settings("a")]).await;
        let began = Instant::now();
        let second = async {
            sleep(SECOND).await;
            harbour.shut_down().await;
            assert_eq!((harbour.launcher.living(), began.elapsed()), (0, 5 * SECOND));
        };
        tokio::join!(harbour.shut_down(), second);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fleet_that_nobody_holds_ends_its_servers() {
        let Harbour { launcher, fleet, .. } =
            Harbour::with(FakeLauncher::each_lives_on(), &[settings("a")]).await;
        assert_eq!(launcher.living(), 1);
        drop(fleet);
        sleep(SECOND).await;
        assert_eq!(launcher.living(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hundred_servers_are_no_trouble() {
    let servers: Vec<_> = (0..100).map(|n| settings(&format!("s{n:02}"))).collect();
    let launcher = FakeLauncher::each_stops_in(SECOND);
    let harbour = Harbour::with(launcher, &servers).await;
    assert_eq!(harbour.launcher.living(), 100);

    let began = Instant::now();
    let outcome = harbour.fleet.ask(Ask::Restart, None).await.unwrap();
    assert_eq!(outcome.asked.len(), 100);
    harbour.settle().await;
    assert_eq!(began.elapsed(), SECOND, "all restart side by side");
    assert_eq!((harbour.launcher.launches(), harbour.launcher.most_living()), (200, 1));

    let changed: Vec<_> = servers.iter().map(|it| with_args(it.name.as_str(), "--new")).collect();
    let plan = harbour.apply(&changed[..50]).await.plan;
    assert_eq!((plan.removed.len(), plan.restarted.len()), (50, 50));
    harbour.settle().await;
    assert_eq!(harbour.launcher.living(), 50);

    harbour.shut_down().await;
    assert_eq!((harbour.launcher.living(), harbour.launcher.most_living()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn many_askers_at_once_are_all_answered() {
    let servers: Vec<_> = (0..10).map(|n| settings(&format!("s{n}"))).collect();
    let harbour = Harbour::with(FakeLauncher::each_lives_on(), &servers).await;
    let mut askers = JoinSet::new();
    for n in 0..200 {
        let fleet = harbour.fleet.clone();
        let ask = [Ask::Start, Ask::Stop, Ask::Restart][n % 3];
        askers.spawn(async move { fleet.ask(ask, Some(vec![format!("s{}", n % 10)])).await });
    }
    let answered = timeout(AGES, askers.join_all()).await.expect("all are answered");
    assert!(answered.iter().all(|outcome| outcome.as_ref().is_ok_and(|it| it.asked.len() == 1)));
    harbour.settle().await;
    assert_eq!(harbour.launcher.most_living(), 1);
}
