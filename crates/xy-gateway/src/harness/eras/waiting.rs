//! Calls that wait for people, and those that come meanwhile.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_its_client_keeps_the_turn() {
    here(async {
        let play = Harness::begin().await;
        let first = play.called(1, &json!({}));
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.ask("a", "elicitation/create");
        now().await;
        let (_, state) = first.wanted();
        let other = play.called_by(2, 9, "other", &json!({}));
        assert!(play.calls().is_empty());
        play.called(2, &answers(&state, &json!({ "q1": {} })));
        play.answer(ours);
        assert_eq!(play.calls().len(), 1, "now the other's");
        assert!(other.heard().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_its_user_holds_up_nobody_of_the_same_token() {
    here(async {
        let play = Harness::begin().await;
        let never = play.called_by(1, 1, "never", &json!({}));
        play.ask("a", "elicitation/create");
        play.calls();
        now().await;
        never.wanted(); // Its client will not come back for it.
        later(HOLDS_UP).await;
        let slow = play.called_by(1, 2, "slow", &json!({}));
        let asks = play.called_by(1, 3, "asks", &json!({}));
        let [(slow_call, _)] = play.calls().try_into().unwrap(); // One after another.
        play.answer(slow_call);
        assert_eq!(slow.heard()[0]["result"]["ok"], slow_call);
        let [(asks_call, _)] = play.calls().try_into().unwrap();
        // What is asked is of the call that the server works on, and all of it at once.
        play.ask("b", "elicitation/create");
        play.ask("c", "sampling/createMessage");
        now().await;
        let (wanted, state) = asks.wanted();
        assert_eq!(wanted.len(), 2);
        play.ask("x", "elicitation/create");
        let refused = play.answered();
        assert_eq!(refused.len(), 1, "two calls wait: it is not clear whose this is");
        let said = json!({ "q1": {}, "q2": {} });
        let asks = play.called_by(1, 4, "asks", &answers(&state, &said));
        assert_eq!(play.answered().len(), 2);
        play.answer(asks_call);
        assert_eq!(asks.heard()[0]["result"]["ok"], asks_call);
        // Others do wait, and then they are not passed by for ever.
        play.called_by(2, 9, "other", &json!({}));
        assert!(play.calls().is_empty());
        let mut passed = 0;
        for id in 10..30 {
            play.called_by(1, id, "more", &json!({}));
            for (ours, _) in play.calls() {
                passed += 1;
                play.answer(ours);
            }
        }
        assert_eq!(passed, crate::exclusive::MOST_URGENT);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_left_holds_up_no_other_program_of_the_same_token() {
    here(async {
        let play = Harness::begin().await;
        let by = |who: u64, id: u64, program: &str| {
            let about = json!({ modern::CLIENT_INFO: { "name": program, "version": "1" } });
            let meta = meta(&json!({ "elicitation": {} }), &about);
            play.once(who, id, "tools/call", &json!({ "name": "s__x", "_meta": meta }))
        };
        let left = by(1, 1, "one");
        play.sent();
        play.ask("a", "elicitation/create");
        now().await;
        left.wanted(); // Nobody comes back for it.
        later(HOLDS_UP).await;
        let other = by(1, 2, "two");
        assert_eq!(play.calls().len(), 1, "it need not wait");
        play.ask("b", "elicitation/create");
        now().await;
        assert_eq!(other.wanted().0.len(), 1, "and is asked what is its own");
        by(2, 3, "one");
        assert!(play.calls().is_empty(), "another's token tells nothing of the first");
    })
    .await;
}
