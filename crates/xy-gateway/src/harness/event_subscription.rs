//! Listening to a server without sessions: what is asked for, what becomes of it, and what
//! happens when it ends.

use tokio::task::JoinHandle;

use super::*;
use crate::modern::SUBSCRIPTION;
use crate::upstream::Wanted;

/// A play whose server speaks the revision without sessions, and somebody who keeps listening
/// to it.
async fn modern(capabilities: &str) -> (Harness, JoinHandle<()>) {
    let play = Harness::begin().await;
    let result = format!(r#"{{"supportedVersions":["2026-07-28"],"capabilities":{capabilities}}}"#);
    play.upstream.resume(Introduction::discovered(&result).unwrap(), false).await;
    play.router.opened(&play.upstream);
    let upstream = play.upstream.clone();
    let keeping = tokio::task::spawn_local(async move { upstream.keep_listening().await });
    later(Duration::ZERO).await;
    (play, keeping)
}

const CHANGING: &str = r#"{"tools":{"listChanged":true},"prompts":{},"resources":{}}"#;

impl Harness {
    /// Where the server is listened to: the ids, and what is asked for.
    fn ears(&self) -> Vec<(u64, Value)> {
        let asked = self.sent().into_iter().filter(|it| it["method"] == "subscriptions/listen");
        asked
            .map(|it| (it["id"].as_u64().unwrap(), it["params"]["notifications"].clone()))
            .collect()
    }

    /// The server says that it tells of these resources.
    fn acknowledge(&self, ours: u64, uris: &[&str]) {
        let params = json!({
            "_meta": { SUBSCRIPTION: ours },
            "notifications": { "resourceSubscriptions": uris },
        });
        let method = "notifications/subscriptions/acknowledged";
        self.say(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    fn refuse(&self, ours: u64, code: i64) {
        let error = json!({ "code": code, "message": "no" });
        self.say(&json!({ "jsonrpc": "2.0", "id": ours, "error": error }));
    }

    /// Wishes to hear of these.
    fn wish(&self, uris: &[&str]) -> JoinHandle<Result<Vec<String>, String>> {
        let uris = uris.iter().map(|&uri| uri.to_owned()).collect();
        let heard = self.upstream.listen_to(Wanted { uris, ..Wanted::default() });
        tokio::task::spawn_local(async move {
            let heard = heard.await;
            heard.map(|it| it.uris.iter().cloned().collect()).map_err(|fault| fault.to_string())
        })
    }
}

fn cancelled(sent: &[Value]) -> Vec<&Value> {
    let cancelled = sent.iter().filter(|it| it["method"] == "notifications/cancelled");
    cancelled.map(|it| &it["params"]["requestId"]).collect()
}

#[tokio::test(start_paused = true)]
async fn all_that_it_tells_of_is_listened_to_and_what_is_wished_besides() {
    here(async {
        let (play, _keeping) = modern(CHANGING).await;
        let ears = play.ears();
        assert_eq!(ears.len(), 1);
        assert_eq!(ears[0].1, json!({ "toolsListChanged": true }));
        play.acknowledge(ears[0].0, &[]);
        later(SECOND).await;
        assert_eq!(play.upstream.open_calls(), 0, "nobody waits for that");

        let heard = play.wish(&["a:1", "a:2"]);
        later(Duration::ZERO).await;
        let sent = play.sent();
        assert_eq!(sent.len(), 1, "the older one is kept until the new one is there: {sent:?}");
        let filter = &sent[0]["params"]["notifications"];
        assert_eq!(
            filter,
            &json!({ "toolsListChanged": true, "resourceSubscriptions": ["a:1", "a:2"] })
        );
        play.acknowledge(sent[0]["id"].as_u64().unwrap(), &["a:1"]);
        assert_eq!(heard.await.unwrap(), Ok(vec!["a:1".to_owned()]));
        assert_eq!(cancelled(&play.sent()), [&json!(ears[0].0)]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn where_there_is_nothing_to_hear_nobody_listens() {
    here(async {
        let (play, _keeping) = modern(r#"{"tools":{}}"#).await;
        assert_eq!(play.ears(), []);
        let heard = play.wish(&["a:1"]);
        later(Duration::ZERO).await;
        let ears = play.ears();
        play.acknowledge(ears[0].0, &["a:1"]);
        assert_eq!(heard.await.unwrap(), Ok(vec!["a:1".to_owned()]));
        assert_eq!(play.wish(&[]).await.unwrap(), Ok(Vec::new()));
        assert_eq!(cancelled(&play.sent()), [&json!(ears[0].0)]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn many_wishes_at_once_are_one_and_the_last_counts() {
    here(async {
        let (play, _keeping) = modern("{}").await;
        let all: Vec<_> = [&["a:1"][..], &["a:1", "a:2"], &["a:2"]].map(|it| play.wish(it)).into();
        later(Duration::ZERO).await;
        let ears = play.ears();
        assert_eq!(ears.len(), 1);
        assert_eq!(ears[0].1["resourceSubscriptions"], json!(["a:2"]));
        play.acknowledge(ears[0].0, &["a:2"]);
        for heard in all {
            assert_eq!(heard.await.unwrap(), Ok(vec!["a:2".to_owned()]));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_wish_that_comes_while_another_is_looked_into_has_an_answer_of_its_own() {
    here(async {
        let (play, _keeping) = modern(CHANGING).await;
        let first = play.ears()[0].0;
        let heard = play.wish(&["a:1"]);
        later(Duration::ZERO).await;
        assert_eq!(play.ears(), [], "one after another");
        play.acknowledge(first, &[]);
        later(Duration::ZERO).await;
        play.acknowledge(play.ears()[0].0, &["a:1"]);
        assert_eq!(heard.await.unwrap(), Ok(vec!["a:1".to_owned()]));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_that_has_no_such_thing_is_not_asked_again_and_again() {
    here(async {
        let (play, _keeping) = modern(CHANGING).await;
        play.refuse(play.ears()[0].0, -32601);
        later(600 * SECOND).await;
        assert_eq!(play.ears(), []);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_ends_or_breaks_is_begun_again_ever_later_and_lists_are_asked_for_again() {
    here(async {
        let (play, _keeping) = modern(CHANGING).await;
        let mut waited = Vec::new();
        for how in 0..9 {
            let mut ears = play.ears();
            let mut half_seconds = 0;
            while ears.is_empty() {
                later(SECOND / 2).await;
                half_seconds += 1;
                ears = play.ears();
            }
            waited.push(half_seconds);
            let ours = ears[0].0;
            match how % 3 {
                0 => play.refuse(ours, -32603),
                1 => {
                    play.acknowledge(ours, &[]);
                    later(Duration::ZERO).await;
                    play.say(&json!({ "jsonrpc": "2.0", "id": ours, "result": {} }));
                }
                _ => {
                    play.acknowledge(ours, &[]);
                    later(Duration::ZERO).await;
                    let params = json!({ "requestId": ours });
                    let method = "notifications/cancelled";
                    play.say(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
                }
            }
            later(Duration::ZERO).await;
        }
        assert_eq!(waited, [0, 1, 2, 4, 8, 16, 32, 64, 120]);
        later(60 * SECOND).await;
        let ours = play.ears()[0].0;
        play.acknowledge(ours, &[]);
        tokio::time::timeout(SECOND, play.upstream.until_lists_change()).await.unwrap();
        // What was good for a while is begun again soon.
        later(60 * SECOND).await;
        play.say(&json!({ "jsonrpc": "2.0", "id": ours, "result": {} }));
        later(Duration::ZERO).await;
        later(SECOND / 2).await;
        assert_eq!(play.ears().len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_that_says_nothing_is_given_up_and_what_was_there_stays() {
    here(async {
        let (play, _keeping) = modern(CHANGING).await;
        let first = play.ears()[0].0;
        play.acknowledge(first, &[]);
        later(Duration::ZERO).await;
        let heard = play.wish(&["a:1"]);
        later(Duration::ZERO).await;
        let second = play.ears()[0].0;
        later(10 * SECOND).await;
        let why = heard.await.unwrap().unwrap_err();
        assert!(why.contains("within 10s"), "{why}");
        assert_eq!(cancelled(&play.sent()), [&json!(second)], "the first is still heard");
        play.acknowledge(second, &["a:1"]); // Too late.
        play.acknowledge(99, &["a:1"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_to_hear_of_a_server_that_ends_is_told() {
    here(async {
        let (play, keeping) = modern("{}").await;
        let heard = play.wish(&["a:1"]);
        later(Duration::ZERO).await;
        play.upstream.close(crate::upstream::Cause::end("`s` has ended"));
        later(Duration::ZERO).await;
        assert!(heard.await.unwrap().is_err());
        keeping.abort();
        let unheard = play.wish(&["a:1"]);
        later(30 * SECOND).await;
        assert!(unheard.await.unwrap().is_err(), "nobody waits for ever");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_said_to_whoever_listens_is_no_client_s() {
    here(async {
        let (play, _keeping) = modern(CHANGING).await;
        let ours = play.ears()[0].0;
        play.acknowledge(ours, &[]);
        later(Duration::ZERO).await;
        let client = play.client(&json!({}));
        client.call("c");
        let calls = play.calls();
        assert_eq!(calls.len(), 1);
        let params = json!({ "_meta": { SUBSCRIPTION: ours } });
        let method = "notifications/tools/list_changed";
        let line = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        play.upstream.handle(line.to_string().as_bytes(), Some(ours));
        tokio::time::timeout(SECOND, play.upstream.until_lists_change()).await.unwrap();
        assert_eq!(client.heard(), [] as [Value; 0]);
        play.answer(calls[0].0);
        assert_eq!(client.heard().len(), 1);
    })
    .await;
}
