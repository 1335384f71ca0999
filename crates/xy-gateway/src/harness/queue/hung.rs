//! Calls of a server that hangs: which go to its successor, and how long the others wait.

use xy_upstream::fault::LossReason;

use super::*;

#[tokio::test(start_paused = true)]
async fn call_started_by_a_hung_server_is_never_retried() {
    run_local(async {
        let mut harness = Harness::known().await;
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        a.call_tool("read", "begun");
        b.call_tool("x", "unread");
        b.call_tool("read", "unread too");
        assert_eq!(harness.calls().len(), 3);
        harness.sent.unread_from.set(Some(1));
        harness.upstream.mark_hung();
        harness.die();
        let words = a.error();
        assert!(
            words.contains("outcome unknown") && words.contains("hung while it was open"),
            "{words}"
        );
        harness.come_back().await;
        assert_eq!(harness.names(), ["unread", "unread too"]);
        assert_eq!(harness.counts(), (2, 1));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn broken_connection_of_a_hung_server_retries_no_call() {
    run_local(async {
        let mut harness = Harness::known().await;
        let client = harness.client(&json!({}));
        client.call_tool("read", "begun");
        let (upstream_id, _) = harness.calls()[0].clone();
        harness.upstream.mark_hung();
        harness.upstream.lose(
            upstream_id,
            Delivery::Written,
            LossReason::Other("the connection broke".into()),
            false,
        );
        let words = client.error();
        assert!(words.contains("hung while it was open"), "{words}");
        harness.come_back().await;
        assert_eq!(harness.names(), [""; 0]);
    })
    .await;
}

/// The default queue timeout.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(30);

impl Harness {
    /// Marks all but the last `unread` messages to the server as read.
    fn read_all_but(&self, unread: u64) {
        self.sent();
        self.sent.read_up_to.set(Some(self.sent.written.get() as u64 - unread));
    }
}

#[tokio::test(start_paused = true)]
async fn unread_call_of_busy_server_has_the_queue_timeout() {
    run_local(async {
        let mut harness = Harness::known().await;
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        a.call_tool("read", "begun");
        harness.read_all_but(0);
        advance_time(10 * SECOND).await;
        b.call_tool("x", "unread");
        let (upstream_id, _) = harness.calls()[0].clone();
        advance_time(29 * SECOND).await;
        assert!(b.received().is_empty());
        advance_time(2 * SECOND).await;
        let received = b.received();
        let words = received[0]["error"]["message"].as_str().unwrap();
        for part in ["did not read", "30s", "`tools/call`", "41s", "`xy restart s`", "isolation"] {
            assert!(words.contains(part), "{part}: {words}");
        }
        assert_eq!((received.len(), &received[0]["error"]["code"]), (1, &json!(-32007)));
        let sent = harness.sent();
        assert_eq!(sent[0]["method"], "notifications/cancelled");
        assert_eq!(sent[0]["params"]["requestId"], upstream_id);
        // The call that the server is busy with is never retried, however the process ends.
        harness.sent.unread_from.set(Some(harness.sent.read_up_to.get().unwrap()));
        harness.die();
        let words = a.error();
        assert!(words.contains("hung while it was open"), "{words}");
        harness.come_back().await;
        assert_eq!(harness.names(), [""; 0]);
        assert!(b.received().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn calls_wait_while_their_server_reads_on() {
    run_local(async {
        let harness = Harness::known().await;
        let client = harness.client(&json!({}));
        for id in ["1", "2", "3", "4", "5"] {
            client.call_tool("x", id);
        }
        for unread in (0..5).rev() {
            harness.read_all_but(unread);
            for _ in 0..4 {
                advance_time(QUEUE_TIMEOUT / 6).await;
            }
        }
        for _ in 0..10 {
            advance_time(QUEUE_TIMEOUT).await;
        }
        assert!(client.received().is_empty(), "the server has read all of them");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn server_that_reads_on_is_no_longer_hung() {
    run_local(async {
        let mut harness = Harness::known().await;
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        a.call_tool("read", "slow");
        harness.read_all_but(0);
        b.call_tool("x", "unread");
        harness.sent();
        advance_time(QUEUE_TIMEOUT + SECOND).await;
        assert_eq!(b.received().len(), 1);
        harness.read_all_but(0);
        advance_time(QUEUE_TIMEOUT).await;
        b.call_tool("read", "next");
        harness.read_all_but(0);
        harness.die();
        assert!(a.received().is_empty() && b.received().is_empty());
        harness.come_back().await;
        assert_eq!(harness.names(), ["slow", "next"]);
    })
    .await;
}
