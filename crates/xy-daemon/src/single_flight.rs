//! One self-test at a time: concurrent requests join the running test.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use xy_protocol::control::SelfTestResult;
use xy_protocol::error::{CallError, ErrorKind};

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
    pub(crate) async fn join<F>(
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::time::{Instant, sleep};

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
