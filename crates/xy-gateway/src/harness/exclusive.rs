//! Clients of a server that asks questions, who take turns.

use super::*;
use crate::exclusive;

/// A server that has asked something.
async fn asker() -> Harness {
    let play = Harness::begin().await;
    play.ask("first", "roots/list");
    assert!(play.server.asks());
    play.sent();
    play
}

fn names(calls: &[(u64, String)]) -> Vec<&str> {
    calls.iter().map(|(_, name)| name.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn one_goes_and_the_others_wait_in_order() {
    here(async {
        let play = asker().await;
        let [a, b, c] = [(); 3].map(|()| play.client(&json!({})));
        a.call("a1");
        b.call("b1");
        a.call("a2");
        c.call("c1");
        b.call("b2");
        let first = play.calls();
        assert_eq!(names(&first), ["a1"]);
        play.answer(first[0].0);
        let second = play.calls();
        assert_eq!(names(&second), ["b1", "b2"], "all that waits of the one who waited longest");
        b.call("b3");
        play.answer(second[0].0);
        assert_eq!(names(&play.calls()), [""; 0]);
        b.cancel("b2");
        let third = play.calls();
        assert_eq!(names(&third), ["a2"]);
        play.answer(third[0].0);
        let fourth = play.calls();
        assert_eq!(names(&fourth), ["c1"]);
        c.client_session.close();
        assert_eq!(names(&play.calls()), ["b3"]);
        assert_eq!((a.heard().len(), b.heard().len(), c.heard().len()), (2, 1, 0));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_too_long_is_told_why_and_what_helps() {
    here(async {
        let play = asker().await;
        let (busy, other) = (play.client(&json!({})), play.client(&json!({})));
        busy.call("busy");
        other.call("other");
        later(29 * SECOND).await;
        assert!(other.heard().is_empty());
        // The turn of whoever was waited for goes on.
        busy.call("more");
        later(2 * SECOND).await;
        let words = other.error();
        for part in ["busy with another client for 30s", "not sent", "isolation \"client\""] {
            assert!(words.contains(part), "{words}");
        }
        assert_eq!(names(&play.calls()), ["busy", "more"]);
        assert_eq!(play.server.waiting(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn those_in_flight_when_it_first_asks_are_waited_for() {
    here(async {
        let play = Harness::begin().await;
        let (a, b) = (play.client(&json!({})), play.client(&json!({})));
        a.call("a1");
        b.call("b1");
        let both = play.calls();
        assert_eq!(names(&both), ["a1", "b1"]);
        play.ask("q", "sampling/createMessage");
        assert_eq!(play.sent()[0]["error"]["code"], -32603);
        a.call("a2");
        assert_eq!(play.server.waiting(), 1);
        play.answer(both[1].0);
        assert_eq!(names(&play.calls()), ["a2"], "everything is one client's again");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_next_life_lets_them_go_one_after_another_too() {
    here(async {
        let mut play = asker().await;
        let (a, b) = (play.client(&json!({})), play.client(&json!({})));
        a.call("a1");
        b.call("b1");
        a.call("a2");
        assert_eq!(names(&play.calls()), ["a1"]);
        play.live_again().await;
        assert!(a.error().contains("outcome unknown"));
        let first = play.calls();
        assert_eq!(names(&first), ["b1"]);
        play.answer(first[0].0);
        assert_eq!(names(&play.calls()), ["a2"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_takes_what_waits_of_it_along() {
    here(async {
        let play = asker().await;
        let (a, b) = (play.client(&json!({})), play.client(&json!({})));
        a.call("a1");
        b.call("b1");
        a.call("a2");
        assert_eq!(play.server.waiting(), 2);
        play.sent();
        a.client_session.close();
        assert_eq!(names(&play.calls()), ["b1"]);
        assert_eq!((play.server.waiting(), play.upstream.open_calls()), (0, 1));
        assert!(a.heard().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_may_call_to_answer_a_question_though_others_wait() {
    here(async {
        let play = asker().await;
        let (a, b) = (play.client(&json!({ "sampling": {} })), play.client(&json!({})));
        a.call("a1");
        b.call("b1");
        a.call("a2");
        let (outer, _) = play.calls()[0];
        play.ask("q", "sampling/createMessage");
        let question = a.heard().remove(0);
        assert_eq!(names(&play.calls()), ["a2"], "it may be what the answer needs");
        for number in 0..20 {
            a.call(&format!("nested {number}"));
        }
        let nested = play.calls();
        assert_eq!(nested.len(), exclusive::MOST_URGENT - 1, "not for ever");
        a.say(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": {} }));
        play.answer(outer);
        assert_eq!(names(&play.calls()), [""; 0]);
        a.cancel("a2");
        for (ours, _) in nested {
            play.answer(ours);
        }
        assert_eq!(names(&play.calls()), ["b1"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn more_than_may_wait_are_refused() {
    here(async {
        let play = asker().await;
        let (busy, other, third) =
            (play.client(&json!({})), play.client(&json!({})), play.client(&json!({})));
        busy.call("busy");
        for number in 0..1000 {
            other.call(&number.to_string());
        }
        assert!(other.heard().is_empty());
        third.call("third");
        assert!(third.error().contains("too many calls wait"));
        play.answer(play.calls()[0].0);
        assert_eq!(play.calls().len(), 1000);
    })
    .await;
}
