//! How long a call of a legacy client may take of which a modern server wants to know more.

use super::*;

const WITHIN: CallRules = CallRules { idle: None, within: Some(Duration::from_secs(10)) };
const IDLE: CallRules = CallRules { idle: Some(Duration::from_secs(10)), within: None };

async fn modern(rules: CallRules) -> (Harness, Visitor) {
    let introduction = Introduction::discovered(MODERN).unwrap();
    let play = Harness::of(rules, false, &introduction).await;
    let client = play.client(&json!({ "roots": {} }));
    (play, client)
}

/// The only call that was sent since.
#[track_caller]
fn only(play: &Harness) -> u64 {
    let [(ours, _)] = play.calls().try_into().unwrap();
    ours
}

/// The server wants to know something before it does its only call; what the client is asked
/// under.
#[track_caller]
fn asked(play: &Harness, client: &Visitor) -> Value {
    let wanted = json!({ "q": { "method": "roots/list" } });
    play.say(&want(only(play), &wanted, &json!("s")));
    let heard = client.heard();
    assert_eq!((heard.len(), &heard[0]["method"]), (1, &json!("roots/list")));
    heard[0]["id"].clone()
}

fn tell(client: &Visitor, id: &Value) {
    client.say(&json!({ "jsonrpc": "2.0", "id": id, "result": { "roots": [] } }));
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_call_goes_on_while_its_client_is_asked() {
    here(async {
        let (play, client) = modern(WITHIN).await;
        client.call("a");
        later(4 * SECOND).await;
        let question = asked(&play, &client);
        later(5 * SECOND).await;
        assert!(client.heard().is_empty());
        later(2 * SECOND).await;
        let heard = client.heard();
        assert_eq!(heard.len(), 2, "{heard:?}");
        assert_eq!(heard[0]["params"]["requestId"], question, "it is taken back");
        assert_eq!(heard[1]["id"], "a");
        let words = text(&heard[1]["error"]["message"]);
        for part in ["`tools/call s__x` of `s` timed out", "10s", "within"] {
            assert!(words.contains(part), "{words}");
        }
        tell(&client, &question); // Too late.
        assert!(play.sent().is_empty(), "the server was not at work, and is not told");
        client.call("a");
        play.answer(only(&play));
        assert_eq!(client.heard().len(), 1);
        later(60 * SECOND).await;
        assert!(client.heard().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn no_round_begins_the_time_of_a_call_anew() {
    here(async {
        let (play, client) = modern(WITHIN).await;
        client.call("a");
        later(4 * SECOND).await;
        let question = asked(&play, &client);
        later(4 * SECOND).await;
        // Whatever else there is to look after, which may take longer.
        client.call("other");
        let sent = play.calls();
        tell(&client, &question);
        let again = only(&play);
        later(SECOND).await;
        assert!(client.heard().is_empty());
        later(2 * SECOND).await;
        let heard = client.heard();
        assert_eq!((heard.len(), &heard[0]["id"]), (1, &json!("a")));
        assert!(text(&heard[0]["error"]["message"]).contains("longer than 10s"));
        let told = play.sent();
        assert_eq!((told.len(), &told[0]["params"]["requestId"]), (1, &json!(again)));
        play.answer(sent[0].0);
        assert_eq!(client.heard()[0]["id"], "other");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn sixteen_rounds_take_no_longer_than_one() {
    here(async {
        let (play, client) = modern(WITHIN).await;
        client.call("a");
        let mut rounds = 0;
        let words = loop {
            later(SECOND).await;
            let heard = client.heard();
            if let [answer] = heard.as_slice() {
                break text(&answer["error"]["message"]);
            }
            play.say(&want(only(&play), &json!({}), &json!("again")));
            rounds += 1;
        };
        assert!(words.contains("longer than 10s"), "{words}");
        assert!(rounds < 11, "{rounds}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_is_not_idle_while_its_client_is_asked_and_each_round_is_a_word() {
    here(async {
        let (play, client) = modern(IDLE).await;
        client.call("a");
        for _ in 0..3 {
            later(9 * SECOND).await;
            let question = asked(&play, &client);
            later(600 * SECOND).await;
            assert!(client.heard().is_empty());
            tell(&client, &question);
        }
        later(9 * SECOND).await;
        assert!(client.heard().is_empty());
        later(2 * SECOND).await;
        assert!(client.error().contains("nothing was heard of it for 10s"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_round_that_is_over_in_time_leaves_nothing_that_ends_a_later_one() {
    here(async {
        let (play, client) = modern(WITHIN).await;
        for _ in 0..3 {
            client.call("a");
            let question = asked(&play, &client);
            later(6 * SECOND).await;
            tell(&client, &question);
            play.answer(only(&play));
            assert_eq!(client.heard().len(), 1);
        }
        client.call("b");
        asked(&play, &client);
        client.cancel("b");
        assert_eq!(client.heard().len(), 1, "its question is taken back");
        client.call("c");
        asked(&play, &client);
        client.client_session.close();
        later(20 * SECOND).await;
        assert!(client.heard().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_a_round_has_behind_it_is_not_forgotten_while_it_waits_for_the_next_life() {
    here(async {
        let (mut play, client) = modern(WITHIN).await;
        client.call("a");
        later(4 * SECOND).await;
        let question = asked(&play, &client);
        play.upstream.close(crate::upstream::Cause::end("`s` has ended"));
        play.router.over(&play.server, &play.upstream, "`s` has ended");
        tell(&client, &question);
        assert_eq!(play.server.waiting(), 1);
        later(4 * SECOND).await;
        // Its successor asks otherwise: it is to do the call as it was at first.
        play.live_again().await;
        let sent = play.sent();
        let call = sent.iter().find(|it| it["method"] == "tools/call").unwrap();
        assert!(call["params"]["inputResponses"].is_null(), "{call}");
        assert!(call["params"]["requestState"].is_null(), "{call}");
        later(SECOND).await;
        assert!(client.heard().is_empty());
        later(2 * SECOND).await;
        assert!(client.error().contains("longer than 10s"), "since it was first sent");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_call_that_waits_for_a_modern_client_goes_on_too() {
    here(async {
        let play = Harness::with(WITHIN, false).await;
        let first = play.called(1, &json!({}));
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.ask("a", "elicitation/create");
        now().await;
        let (_, state) = first.wanted();
        later(8 * SECOND).await;
        // Whatever else there is to look after, which may take longer.
        let other = play.called_by(1, 7, "other", &json!({}));
        let [_] = play.calls().try_into().unwrap();
        let second = play.called(2, &answers(&state, &json!({ "q1": {} })));
        later(SECOND).await;
        assert!(second.heard().is_empty());
        later(2 * SECOND).await;
        assert!(second.error().contains("longer than 10s"));
        assert!(other.heard().is_empty());
        let told = play.sent();
        assert_eq!(told.last().unwrap()["params"]["requestId"], ours);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_modern_client_comes_back_too_late_is_over_by_then() {
    here(async {
        let play = Harness::with(WITHIN, false).await;
        let first = play.called(1, &json!({}));
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.ask("a", "elicitation/create");
        now().await;
        let (_, state) = first.wanted();
        later(9 * SECOND).await;
        assert!(play.sent().is_empty());
        later(2 * SECOND).await;
        let told = play.sent();
        assert_eq!((told.len(), &told[0]["id"]), (2, &json!("a")));
        assert_eq!(told[0]["error"]["code"], -32603, "what it asked is refused");
        assert_eq!(told[1]["params"]["requestId"], ours);
        let second = play.called(2, &answers(&state, &json!({ "q1": {} })));
        assert!(second.error().contains("longer than 10s"));
        assert!(play.sent().is_empty());
        assert_eq!(play.router.parked.len(), 0);
        // One that is late before its client has heard anything tells it so at once.
        let third = play.called(3, &json!({}));
        later(Duration::from_millis(9_990)).await;
        play.ask("b", "elicitation/create");
        now().await;
        assert!(third.error().contains("longer than 10s"));
        assert_eq!(play.router.parked.len(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_idle_while_a_modern_client_is_asked() {
    here(async {
        let play = Harness::with(IDLE, false).await;
        let first = play.called(1, &json!({}));
        play.sent();
        play.ask("a", "elicitation/create");
        now().await;
        let (_, state) = first.wanted();
        for _ in 0..50 {
            later(9 * SECOND).await;
        }
        assert!(play.sent().is_empty());
        let second = play.called(2, &answers(&state, &json!({ "q1": {} })));
        later(9 * SECOND).await;
        assert!(second.heard().is_empty());
        later(2 * SECOND).await;
        assert!(second.error().contains("nothing was heard of it for 10s"));
    })
    .await;
}
