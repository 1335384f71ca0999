//! Exclusive access: clients of a server that sends requests take turns.

use super::*;
use crate::exclusive;

/// Returns a harness whose server has sent a request.
async fn with_server_request() -> Harness {
    let harness = Harness::begin().await;
    harness.ask("first", "roots/list");
    assert!(harness.server.asks());
    harness.sent();
    harness
}

fn names(calls: &[(u64, String)]) -> Vec<&str> {
    calls.iter().map(|(_, name)| name.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn one_client_runs_and_others_wait_in_order() {
    run_local(async {
        let harness = with_server_request().await;
        let [a, b, c] = [(); 3].map(|()| harness.client(&json!({})));
        a.call("a1");
        b.call("b1");
        a.call("a2");
        c.call("c1");
        b.call("b2");
        let first = harness.calls();
        assert_eq!(names(&first), ["a1"]);
        harness.answer(first[0].0);
        let second = harness.calls();
        assert_eq!(names(&second), ["b1", "b2"], "all waiting calls of the longest waiting client");
        b.call("b3");
        harness.answer(second[0].0);
        assert_eq!(names(&harness.calls()), [""; 0]);
        b.cancel("b2");
        let third = harness.calls();
        assert_eq!(names(&third), ["a2"]);
        harness.answer(third[0].0);
        let fourth = harness.calls();
        assert_eq!(names(&fourth), ["c1"]);
        c.client_session.close();
        assert_eq!(names(&harness.calls()), ["b3"]);
        assert_eq!((a.received().len(), b.received().len(), c.received().len()), (2, 1, 0));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn queue_timeout_names_reason_and_remedy() {
    run_local(async {
        let harness = with_server_request().await;
        let (busy, other) = (harness.client(&json!({})), harness.client(&json!({})));
        busy.call("busy");
        other.call("other");
        advance_time(29 * SECOND).await;
        assert!(other.received().is_empty());
        // The turn of the busy client goes on.
        busy.call("more");
        advance_time(2 * SECOND).await;
        let words = other.error();
        for part in ["busy with another client for 30s", "not sent", "isolation \"client\""] {
            assert!(words.contains(part), "{words}");
        }
        assert_eq!(names(&harness.calls()), ["busy", "more"]);
        assert_eq!(harness.server.waiting(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn calls_open_at_the_first_server_request_finish_first() {
    run_local(async {
        let harness = Harness::begin().await;
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        a.call("a1");
        b.call("b1");
        let both = harness.calls();
        assert_eq!(names(&both), ["a1", "b1"]);
        harness.ask("q", "sampling/createMessage");
        assert_eq!(harness.sent()[0]["error"]["code"], -32603);
        a.call("a2");
        assert_eq!(harness.server.waiting(), 1);
        harness.answer(both[1].0);
        assert_eq!(names(&harness.calls()), ["a2"], "only calls of one client are open again");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn next_process_takes_waiting_calls_one_by_one() {
    run_local(async {
        let mut harness = with_server_request().await;
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        a.call("a1");
        b.call("b1");
        a.call("a2");
        assert_eq!(names(&harness.calls()), ["a1"]);
        harness.restart().await;
        assert!(a.error().contains("outcome unknown"));
        let first = harness.calls();
        assert_eq!(names(&first), ["b1"]);
        harness.answer(first[0].0);
        assert_eq!(names(&harness.calls()), ["a2"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn leaving_client_removes_its_waiting_calls() {
    run_local(async {
        let harness = with_server_request().await;
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        a.call("a1");
        b.call("b1");
        a.call("a2");
        assert_eq!(harness.server.waiting(), 2);
        harness.sent();
        a.client_session.close();
        assert_eq!(names(&harness.calls()), ["b1"]);
        assert_eq!((harness.server.waiting(), harness.upstream.open_calls()), (0, 1));
        assert!(a.received().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn client_may_call_while_it_answers_a_server_request() {
    run_local(async {
        let harness = with_server_request().await;
        let (a, b) = (harness.client(&json!({ "sampling": {} })), harness.client(&json!({})));
        a.call("a1");
        b.call("b1");
        a.call("a2");
        let (outer, _) = harness.calls()[0];
        harness.ask("q", "sampling/createMessage");
        let question = a.received().remove(0);
        assert_eq!(names(&harness.calls()), ["a2"], "the client may need it for its answer");
        for number in 0..20 {
            a.call(&format!("nested {number}"));
        }
        let nested = harness.calls();
        assert_eq!(nested.len(), exclusive::MAX_URGENT - 1, "not for ever");
        a.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": {} }));
        harness.answer(outer);
        assert_eq!(names(&harness.calls()), [""; 0]);
        a.cancel("a2");
        for (upstream_id, _) in nested {
            harness.answer(upstream_id);
        }
        assert_eq!(names(&harness.calls()), ["b1"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_queue_limit_are_refused() {
    run_local(async {
        let harness = with_server_request().await;
        let (busy, other, third) =
            (harness.client(&json!({})), harness.client(&json!({})), harness.client(&json!({})));
        busy.call("busy");
        for number in 0..1000 {
            other.call(&number.to_string());
        }
        assert!(other.received().is_empty());
        third.call("third");
        assert!(third.error().contains("too many calls wait"));
        harness.answer(harness.calls()[0].0);
        assert_eq!(harness.calls().len(), 1000);
    })
    .await;
}
