//! Calls that wait for users, and calls that arrive meanwhile.

use super::*;

#[tokio::test(start_paused = true)]
async fn call_that_waits_for_its_client_keeps_exclusive_access() {
    run_local(async {
        let harness = Harness::begin().await;
        let first = harness.modern_call(1, &json!({}));
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.ask("a", "elicitation/create");
        settle().await;
        let (_, state) = first.input_required();
        let other = harness.modern_call_by(2, 9, "other", &json!({}));
        assert!(harness.calls().is_empty());
        harness.modern_call(2, &answers(&state, &json!({ "q1": {} })));
        harness.answer(upstream_id);
        assert_eq!(harness.calls().len(), 1, "now the other's");
        assert!(other.received().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn waiting_user_does_not_block_calls_of_the_same_token() {
    run_local(async {
        let harness = Harness::begin().await;
        let never = harness.modern_call_by(1, 1, "never", &json!({}));
        harness.ask("a", "elicitation/create");
        harness.calls();
        settle().await;
        never.input_required(); // The client never comes back for this call.
        advance_time(MAX_SLOT_HOLD).await;
        let slow = harness.modern_call_by(1, 2, "slow", &json!({}));
        let asking = harness.modern_call_by(1, 3, "asks", &json!({}));
        // The calls go one after another.
        let [(slow_call, _)] = harness.calls().try_into().unwrap();
        harness.answer(slow_call);
        assert_eq!(slow.received()[0]["result"]["ok"], slow_call);
        let [(asks_call, _)] = harness.calls().try_into().unwrap();
        // Requests belong to the call that the server works on. The client gets all of them at
        // once.
        harness.ask("b", "elicitation/create");
        harness.ask("c", "sampling/createMessage");
        settle().await;
        let (inputs, state) = asking.input_required();
        assert_eq!(inputs.len(), 2);
        harness.ask("x", "elicitation/create");
        let refused = harness.client_answers();
        assert_eq!(refused.len(), 1, "two calls wait, so the request is ambiguous");
        let input_responses = json!({ "q1": {}, "q2": {} });
        let asking = harness.modern_call_by(1, 4, "asks", &answers(&state, &input_responses));
        assert_eq!(harness.client_answers().len(), 2);
        harness.answer(asks_call);
        assert_eq!(asking.received()[0]["result"]["ok"], asks_call);
        // Clients of other tokens do wait, and they are not passed by forever.
        harness.modern_call_by(2, 9, "other", &json!({}));
        assert!(harness.calls().is_empty());
        let mut passed = 0;
        for id in 10..30 {
            harness.modern_call_by(1, id, "more", &json!({}));
            for (upstream_id, _) in harness.calls() {
                passed += 1;
                harness.answer(upstream_id);
            }
        }
        assert_eq!(passed, crate::exclusive::MAX_URGENT);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn abandoned_call_does_not_block_other_programs_of_its_token() {
    run_local(async {
        let harness = Harness::begin().await;
        let by = |who: u64, id: u64, program: &str| {
            let about = json!({ modern::CLIENT_INFO: { "name": program, "version": "1" } });
            let meta = meta(&json!({ "elicitation": {} }), &about);
            harness.modern_request(who, id, "tools/call", &json!({ "name": "s__x", "_meta": meta }))
        };
        let left = by(1, 1, "one");
        harness.sent();
        harness.ask("a", "elicitation/create");
        settle().await;
        left.input_required(); // The client never comes back for this call.
        advance_time(MAX_SLOT_HOLD).await;
        let other = by(1, 2, "two");
        assert_eq!(harness.calls().len(), 1, "it need not wait");
        harness.ask("b", "elicitation/create");
        settle().await;
        assert_eq!(other.input_required().0.len(), 1, "and it gets its own input request");
        by(2, 3, "one");
        assert!(harness.calls().is_empty(), "another's token tells nothing of the first");
    })
    .await;
}
