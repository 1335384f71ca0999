//! Calls of a server that hangs: which go to its successor, and how long the others wait.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_call_that_a_hung_server_has_begun_is_never_sent_again() {
    here(async {
        let mut play = Play::known().await;
        let (a, b) = (play.client(&json!({})), play.client(&json!({})));
        a.call_tool("read", "begun");
        b.call_tool("x", "unread");
        b.call_tool("read", "unread too");
        assert_eq!(play.calls().len(), 3);
        play.sent.unread_from.set(Some(1));
        play.upstream.mark_hung();
        play.die();
        let words = a.error();
        assert!(words.contains("outcome unknown") && words.contains("hung with it"), "{words}");
        play.come_back().await;
        assert_eq!(play.names(), ["unread", "unread too"]);
        assert_eq!(play.counts(), (2, 1));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_while_a_hung_server_is_ended_repeats_no_call() {
    here(async {
        let mut play = Play::known().await;
        let client = play.client(&json!({}));
        client.call_tool("read", "begun");
        let (ours, _) = play.calls()[0].clone();
        play.upstream.mark_hung();
        play.upstream.lose(ours, Stage::Written, "the connection broke", false);
        let words = client.error();
        assert!(words.contains("hung with it"), "{words}");
        play.come_back().await;
        assert_eq!(play.names(), [""; 0]);
    })
    .await;
}
