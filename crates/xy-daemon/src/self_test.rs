//! The self-test: looks at everything, repairs what it may, looks again, and says how it is.
//!
//! Folders and sockets come first, since a server that is started again needs them. What a
//! look means is decided in `judge.rs`; nothing that answers is ever restarted.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use xy_protocol::control::{SelfTested, TestDiagnostics, TestedHealth, TestedSystem};
use xy_protocol::error::{CallError, ErrorKind};

use crate::daemon::Daemon;
use crate::machine;

pub(crate) mod door;
mod folders;
pub(crate) mod history;
mod judge;
mod orphans;
mod places;
mod servers;
mod summary;
mod supervisor;

/// All of it takes no longer, but for what was begun and has a short limit of its own.
const ALL_WITHIN: Duration = Duration::from_secs(30);

/// Restarts that are told of.
const MOST_RESTARTS: usize = 100;

/// The test that is under way: two at the same time would restart what the other restarts.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    under_way: Mutex<Option<UnderWay>>,
}

#[derive(Debug)]
struct UnderWay {
    repair: bool,
    answer: watch::Receiver<Option<Arc<SelfTested>>>,
}

impl UnderWay {
    /// Whether it has been answered, or never will be.
    fn is_over(&self) -> bool {
        self.answer.borrow().is_some() || self.answer.has_changed().is_err()
    }
}

impl Flight {
    /// Tests, or waits for whoever tests in the same way just now. Once begun it is finished,
    /// also if nobody waits for it.
    async fn join<F>(
        &self,
        repair: bool,
        test: impl Fn() -> F,
    ) -> Result<Arc<SelfTested>, CallError>
    where
        F: Future<Output = SelfTested> + Send + 'static,
    {
        loop {
            let (is_same, mut answer) = self.board(repair, &test);
            let answered = answer.wait_for(Option::is_some).await;
            if !is_same {
                continue; // It was another: now it is our turn.
            }
            let lost = || CallError::new(ErrorKind::Internal, "the self-test has failed");
            return answered.ok().and_then(|it| it.clone()).ok_or_else(lost);
        }
    }

    fn board<F>(
        &self,
        repair: bool,
        test: impl Fn() -> F,
    ) -> (bool, watch::Receiver<Option<Arc<SelfTested>>>)
    where
        F: Future<Output = SelfTested> + Send + 'static,
    {
        let mut under_way = self.under_way();
        if let Some(it) = under_way.as_ref().filter(|it| !it.is_over()) {
            return (it.repair == repair, it.answer.clone());
        }
        let (reply, answer) = watch::channel(None);
        let testing = test();
        tokio::spawn(async move { reply.send_replace(Some(Arc::new(testing.await))) });
        *under_way = Some(UnderWay { repair, answer: answer.clone() });
        (true, answer)
    }

    fn under_way(&self) -> MutexGuard<'_, Option<UnderWay>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tests everything.
pub(crate) async fn run(daemon: &Arc<Daemon>, repair: bool) -> Result<Arc<SelfTested>, CallError> {
    daemon.self_test.join(repair, || test(daemon.clone(), repair)).await
}

async fn test(daemon: Arc<Daemon>, repair: bool) -> SelfTested {
    let timestamp = machine::wall_clock();
    let give_up_at = Instant::now() + ALL_WITHIN;
    let mut repairs = Vec::new();
    let (database, logs) = folders::test(&daemon, repair, &mut repairs).await;
    let sockets = places::test(&daemon.sockets, repair, &mut repairs).await;
    let (worker, web_server, parts) = tokio::join!(
        servers::test(&daemon, repair, give_up_at),
        door::test(&daemon),
        supervisor::ask(&daemon)
    );
    let (worker, restarts) = worker;
    repairs.extend(restarts);
    let orphans = orphans::test(&daemon, repair, &mut repairs).await;
    let health = TestedHealth {
        supervisor: supervisor::health(&daemon, parts),
        worker,
        web_server,
        database,
        logs,
        sockets,
        orphans,
    };
    let success = summary::is_well(&health);
    let summary = summary::of(&health, &repairs);
    let restart_history = if parts.journal {
        history::of(&daemon.journal, MOST_RESTARTS).await
    } else {
        Vec::new() // Whoever knows them does not answer.
    };
    let diagnostics = TestDiagnostics { system: system(), restart_history };
    SelfTested { success, timestamp, health, auto_repair: repairs, diagnostics, summary }
}

fn system() -> TestedSystem {
    TestedSystem {
        platform: machine::platform().to_owned(),
        node_version: env!("CARGO_PKG_VERSION").to_owned(),
        total_memory: machine::total_memory(),
        free_memory: machine::free_memory(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::sleep;

    use super::*;
    use crate::self_test::summary::tests::well;

    const SECOND: Duration = Duration::from_secs(1);

    async fn slowly(runs: Arc<AtomicUsize>) -> SelfTested {
        let run = runs.fetch_add(1, Ordering::SeqCst);
        sleep(SECOND).await;
        SelfTested { summary: run.to_string(), ..well() }
    }

    #[tokio::test(start_paused = true)]
    async fn two_who_test_at_the_same_time_get_one_answer() {
        let (flight, runs) = (Flight::default(), Arc::new(AtomicUsize::new(0)));
        let test = || slowly(runs.clone());
        let (one, two) = tokio::join!(flight.join(true, test), flight.join(true, test));
        assert!(Arc::ptr_eq(&one.unwrap(), &two.unwrap()));
        assert_eq!(flight.join(true, test).await.unwrap().summary, "1", "a later one is new");
    }

    #[tokio::test(start_paused = true)]
    async fn who_tests_otherwise_waits_for_its_turn() {
        let (flight, runs) = (Flight::default(), Arc::new(AtomicUsize::new(0)));
        let test = || slowly(runs.clone());
        let began = Instant::now();
        let (one, two) = tokio::join!(flight.join(true, test), flight.join(false, test));
        assert_eq!((&*one.unwrap().summary, &*two.unwrap().summary), ("0", "1"));
        assert_eq!(began.elapsed(), 2 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_test_whose_asker_leaves_is_finished() {
        let (flight, runs) = (Flight::default(), Arc::new(AtomicUsize::new(0)));
        let test = || slowly(runs.clone());
        let left = tokio::time::timeout(SECOND / 2, flight.join(true, test)).await;
        assert!(left.is_err());
        assert_eq!(flight.join(true, test).await.unwrap().summary, "0");
    }

    #[tokio::test(start_paused = true)]
    async fn a_test_that_fails_is_told_and_keeps_nobody_from_the_next() {
        let flight = Flight::default();
        let broken = || async { panic!("on purpose") };
        assert!(flight.join(true, broken).await.is_err());
        assert!(flight.join(true, || async { well() }).await.is_ok());
    }
}
