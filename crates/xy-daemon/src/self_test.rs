//! The self-test: checks the whole system, repairs what it may, checks again, and reports.
//!
//! Folders and sockets come first, since a restarted server needs them. `diagnosis.rs` decides what
//! an observation means. A server that answers is never restarted.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use xy_protocol::control::{SelfTestHealth, SelfTestResult, SelfTestSystem, TestDiagnostics};
use xy_protocol::error::{CallError, ErrorKind};

use crate::daemon::Daemon;
use crate::machine;

mod diagnosis;
mod folders;
pub(crate) mod history;
pub(crate) mod http_listener;
mod orphans;
mod servers;
mod sockets;
mod summary;
mod supervisor;

/// Maximum time of the whole test. Steps that have begun may exceed it within their own short
/// limits.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of restarts in the report.
const MAX_RESTARTS: usize = 100;

/// The self-test that is running, if any. Tests never run concurrently: each would restart what the
/// other restarts.
#[derive(Debug, Default)]
pub(crate) struct SingleFlight {
    ongoing: Mutex<Option<OngoingTest>>,
}

#[derive(Debug)]
struct OngoingTest {
    repair: bool,
    answer: watch::Receiver<Option<Arc<SelfTestResult>>>,
}

impl OngoingTest {
    /// Returns true if the test has finished, or has panicked.
    fn is_over(&self) -> bool {
        self.answer.borrow().is_some() || self.answer.has_changed().is_err()
    }
}

impl SingleFlight {
    /// Runs a test, or waits for a running one with the same `repair` flag. A test that has begun
    /// completes, even if no client waits for it.
    async fn join<F>(
        &self,
        repair: bool,
        test: impl Fn() -> F,
    ) -> Result<Arc<SelfTestResult>, CallError>
    where
        F: Future<Output = SelfTestResult> + Send + 'static,
    {
        loop {
            let (is_same, mut answer) = self.join_or_start(repair, &test);
            let answered = answer.wait_for(Option::is_some).await;
            if !is_same {
                continue; // That test had the other flag, so another is needed.
            }
            let lost = || CallError::new(ErrorKind::Internal, "the self-test failed");
            return answered.ok().and_then(|it| it.clone()).ok_or_else(lost);
        }
    }

    /// Returns the receiver of the running test, or of a new one. The flag is true if the test has
    /// the wanted `repair` flag.
    fn join_or_start<F>(
        &self,
        repair: bool,
        test: impl Fn() -> F,
    ) -> (bool, watch::Receiver<Option<Arc<SelfTestResult>>>)
    where
        F: Future<Output = SelfTestResult> + Send + 'static,
    {
        let mut ongoing = self.lock();
        if let Some(it) = ongoing.as_ref().filter(|it| !it.is_over()) {
            return (it.repair == repair, it.answer.clone());
        }
        let (reply, answer) = watch::channel(None);
        let testing = test();
        tokio::spawn(async move { reply.send_replace(Some(Arc::new(testing.await))) });
        *ongoing = Some(OngoingTest { repair, answer: answer.clone() });
        (true, answer)
    }

    fn lock(&self) -> MutexGuard<'_, Option<OngoingTest>> {
        self.ongoing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tests the whole system, or joins a test that is running.
pub(crate) async fn run(
    daemon: &Arc<Daemon>,
    repair: bool,
) -> Result<Arc<SelfTestResult>, CallError> {
    daemon.self_test.join(repair, || test(daemon.clone(), repair)).await
}

async fn test(daemon: Arc<Daemon>, repair: bool) -> SelfTestResult {
    let timestamp = machine::wall_clock();
    let give_up_at = Instant::now() + TEST_TIMEOUT;
    let mut repairs = Vec::new();
    let (database, logs) = folders::test(&daemon, repair, &mut repairs).await;
    let sockets = sockets::test(&daemon.sockets, repair, &mut repairs).await;
    let (worker, web_server, parts) = tokio::join!(
        servers::test(&daemon, repair, give_up_at),
        http_listener::test(&daemon),
        supervisor::query(&daemon)
    );
    let (worker, restarts) = worker;
    repairs.extend(restarts);
    let orphans = orphans::test(&daemon, repair, &mut repairs).await;
    let health = SelfTestHealth {
        supervisor: supervisor::health(&daemon, parts),
        worker,
        web_server,
        database,
        logs,
        sockets,
        orphans,
    };
    let success = summary::is_healthy(&health);
    let summary = summary::summarize(&health, &repairs);
    let restart_history = if parts.journal {
        history::of(&daemon.journal, MAX_RESTARTS).await
    } else {
        Vec::new() // The journal does not answer.
    };
    let diagnostics = TestDiagnostics { system: system(), restart_history };
    SelfTestResult { success, timestamp, health, auto_repair: repairs, diagnostics, summary }
}

fn system() -> SelfTestSystem {
    SelfTestSystem {
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
    use crate::self_test::summary::tests::healthy;

    const SECOND: Duration = Duration::from_secs(1);

    async fn slowly(runs: Arc<AtomicUsize>) -> SelfTestResult {
        let run = runs.fetch_add(1, Ordering::SeqCst);
        sleep(SECOND).await;
        SelfTestResult { summary: run.to_string(), ..healthy() }
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_tests_share_one_answer() {
        let (flight, runs) = (SingleFlight::default(), Arc::new(AtomicUsize::new(0)));
        let test = || slowly(runs.clone());
        let (one, two) = tokio::join!(flight.join(true, test), flight.join(true, test));
        assert!(Arc::ptr_eq(&one.unwrap(), &two.unwrap()));
        assert_eq!(flight.join(true, test).await.unwrap().summary, "1", "a later one is new");
    }

    #[tokio::test(start_paused = true)]
    async fn test_with_another_flag_runs_afterwards() {
        let (flight, runs) = (SingleFlight::default(), Arc::new(AtomicUsize::new(0)));
        let test = || slowly(runs.clone());
        let began = Instant::now();
        let (one, two) = tokio::join!(flight.join(true, test), flight.join(false, test));
        assert_eq!((&*one.unwrap().summary, &*two.unwrap().summary), ("0", "1"));
        assert_eq!(began.elapsed(), 2 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn abandoned_test_is_completed() {
        let (flight, runs) = (SingleFlight::default(), Arc::new(AtomicUsize::new(0)));
        let test = || slowly(runs.clone());
        let left = tokio::time::timeout(SECOND / 2, flight.join(true, test)).await;
        assert!(left.is_err());
        assert_eq!(flight.join(true, test).await.unwrap().summary, "0");
    }

    #[tokio::test(start_paused = true)]
    async fn failed_test_is_reported_and_the_next_one_runs() {
        let flight = SingleFlight::default();
        let broken = || async { panic!("on purpose") };
        assert!(flight.join(true, broken).await.is_err());
        assert!(flight.join(true, || async { healthy() }).await.is_ok());
    }
}
