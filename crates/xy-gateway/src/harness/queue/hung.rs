//! Calls of a server that hangs: which go to its successor, and how long the others wait.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_call_that_a_hung_server_has_begun_is_never_sent_again() {
    here(async {
        let mut play = Harness::known().await;
        let (a, b) = (play.client(&json!({})), play.client(&json!({})));
        a.call_tool("read", "begun");
        b.call_tool("x", "unread");
        b.call_tool("read", "unread too");
        assert_eq!(play.calls().len(), 3);
        play.sent.unread_from.set(Some(1));
        play.upstream.mark_hung();
        play.die();
        let words = a.error();
        assert!(
            words.contains("outcome unknown") && words.contains("hung while it was open"),
            "{words}"
        );
        play.come_back().await;
        assert_eq!(play.names(), ["unread", "unread too"]);
        assert_eq!(play.counts(), (2, 1));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_while_a_hung_server_is_ended_repeats_no_call() {
    here(async {
        let mut play = Harness::known().await;
        let client = play.client(&json!({}));
        client.call_tool("read", "begun");
        let (ours, _) = play.calls()[0].clone();
        play.upstream.mark_hung();
        play.upstream.lose(ours, Stage::Written, "the connection broke", false);
        let words = client.error();
        assert!(words.contains("hung while it was open"), "{words}");
        play.come_back().await;
        assert_eq!(play.names(), [""; 0]);
    })
    .await;
}

/// As long as calls wait by default.
const QUEUE: Duration = Duration::from_secs(30);

impl Harness {
    /// Has the server read all but this many of the messages that it was sent.
    fn read_all_but(&self, unread: u64) {
        self.sent();
        self.sent.read_up_to.set(Some(self.sent.written.get() as u64 - unread));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_a_busy_server_does_not_read_waits_no_longer_than_the_queue() {
    here(async {
        let mut play = Harness::known().await;
        let (a, b) = (play.client(&json!({})), play.client(&json!({})));
        a.call_tool("read", "begun");
        play.read_all_but(0);
        later(10 * SECOND).await;
        b.call_tool("x", "unread");
        let (ours, _) = play.calls()[0].clone();
        later(29 * SECOND).await;
        assert!(b.heard().is_empty());
        later(2 * SECOND).await;
        let heard = b.heard();
        let words = heard[0]["error"]["message"].as_str().unwrap();
        for part in ["did not read", "30s", "`tools/call`", "41s", "`xy restart s`", "isolation"] {
            assert!(words.contains(part), "{part}: {words}");
        }
        assert_eq!((heard.len(), &heard[0]["error"]["code"]), (1, &json!(-32007)));
        let sent = play.sent();
        assert_eq!(sent[0]["method"], "notifications/cancelled");
        assert_eq!(sent[0]["params"]["requestId"], ours);
        // The call that it is busy with is not sent to the next instance, however this one ends.
        play.sent.unread_from.set(Some(play.sent.read_up_to.get().unwrap()));
        play.die();
        let words = a.error();
        assert!(words.contains("hung while it was open"), "{words}");
        play.come_back().await;
        assert_eq!(play.names(), [""; 0]);
        assert!(b.heard().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn calls_wait_for_as_long_as_their_server_reads_on() {
    here(async {
        let play = Harness::known().await;
        let client = play.client(&json!({}));
        for id in ["1", "2", "3", "4", "5"] {
            client.call_tool("x", id);
        }
        for unread in (0..5).rev() {
            play.read_all_but(unread);
            for _ in 0..4 {
                later(QUEUE / 6).await;
            }
        }
        for _ in 0..10 {
            later(QUEUE).await;
        }
        assert!(client.heard().is_empty(), "it has read them all");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_reads_on_is_not_hung_any_more() {
    here(async {
        let mut play = Harness::known().await;
        let (a, b) = (play.client(&json!({})), play.client(&json!({})));
        a.call_tool("read", "slow");
        play.read_all_but(0);
        b.call_tool("x", "unread");
        play.sent();
        later(QUEUE + SECOND).await;
        assert_eq!(b.heard().len(), 1);
        play.read_all_but(0);
        later(QUEUE).await;
        b.call_tool("read", "next");
        play.read_all_but(0);
        play.die();
        assert!(a.heard().is_empty() && b.heard().is_empty());
        play.come_back().await;
        assert_eq!(play.names(), ["slow", "next"]);
    })
    .await;
}
