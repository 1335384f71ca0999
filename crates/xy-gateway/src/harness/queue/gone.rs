//! Calls that wait for an instance that does not come back.

use xy_upstream::fault::LossReason;

use super::*;

#[tokio::test(start_paused = true)]
async fn giving_up_a_server_fails_all_waiting_calls() {
    run_local(async {
        let harness = Harness::known().await;
        let client = harness.client(&json!({}));
        client.call_tool("set", "seen");
        harness.sent();
        client.call_tool("x", "unseen");
        harness.die();
        client.call_tool("x", "new");
        assert!(client.received().is_empty());
        harness.give_up("5 starts failed in a row");
        let received = client.received();
        let codes: Vec<(String, i64)> = received
            .iter()
            .map(|it| (text(&it["id"]), it["error"]["code"].as_i64().unwrap()))
            .collect();
        let expected = [("seen", -32010), ("unseen", -32005), ("new", -32005)];
        assert_eq!(codes, expected.map(|(id, code)| (id.to_owned(), code)), "{received:?}");
        for it in &received {
            let words = it["error"]["message"].as_str().unwrap();
            assert!(words.contains("5 starts failed in a row"), "{words}");
        }
        client.call_tool("x", "late");
        assert!(client.error().contains("5 starts failed in a row"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn no_call_waits_for_a_stopped_server() {
    run_local(async {
        let harness = Harness::known().await;
        let client = harness.client(&json!({}));
        client.call_tool("read", "seen");
        harness.sent();
        client.call_tool("x", "unseen");
        harness.give_up("it was stopped");
        harness.die();
        let received = client.received();
        assert_eq!(received[0]["error"]["code"], -32010, "{received:?}");
        let words = received[1]["error"]["message"].as_str().unwrap();
        assert!(words.contains("`s` is not running: it was stopped"), "{words}");
        assert_eq!((received.len(), harness.server.waiting()), (2, 0));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn giving_up_one_instance_fails_only_its_client() {
    run_local(async {
        let harness = Harness::known().await;
        let own = ServerSettings { isolation: Isolation::Client, ..settings(NO_RULES) };
        harness.server.configure(Arc::new(own));
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        let numbers: Vec<u64> = {
            let mut all: Vec<u64> = harness.router.clients().iter().map(|it| it.number()).collect();
            all.sort_unstable();
            all
        };
        a.call_tool("x", "a");
        b.call_tool("x", "b");
        assert_eq!(harness.server.waiting(), 2);
        let down = HashMap::from([(Holder::Client(numbers[0]), "it crashes".to_owned())]);
        harness.server.set_down(down);
        assert!(a.error().contains("it crashes"));
        assert!(b.received().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn waiting_call_moves_to_the_right_instance() {
    run_local(async {
        let mut harness = Harness::known().await;
        let client = harness.client(&json!({}));
        client.call_tool("read", "1");
        harness.sent();
        harness.die();
        let own = ServerSettings { isolation: Isolation::Client, ..settings(NO_RULES) };
        harness.server.configure(Arc::new(own));
        harness.server.reroute_waiting();
        harness.come_back().await;
        assert_eq!(harness.names(), [""; 0], "no call waits for that instance");
        harness.server.configure(Arc::new(settings(NO_RULES)));
        harness.server.reroute_waiting();
        assert_eq!(harness.names(), ["1"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn lost_call_moves_to_the_right_instance() {
    run_local(async {
        let harness = Harness::known().await;
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        let mut numbers: Vec<u64> = harness.router.clients().iter().map(|it| it.number()).collect();
        numbers.sort_unstable();
        let [of_a, of_b] = [numbers[0], numbers[1]].map(Holder::Client);
        a.call_tool("read", "a1");
        b.call_tool("read", "b1");
        harness.sent();
        a.call_tool("x", "a2");
        // From now on each client has its own instance. The shared one ends after that.
        let own = ServerSettings { isolation: Isolation::Client, ..settings(NO_RULES) };
        harness.server.configure(Arc::new(own));
        harness.server.reroute_waiting();
        harness.server.set_down(HashMap::from([(of_b, "it crashes".to_owned())]));
        harness.die();
        assert_eq!(b.outcomes(), [unknown("b1")], "this instance has no successor");
        assert!(a.received().is_empty());
        assert_eq!(harness.server.take_all_waiting(Some(Holder::Shared)).len(), 0);
        let waits = harness.server.take_all_waiting(Some(of_a));
        let ids: Vec<&str> = waits.iter().map(|it| &*it.id).collect();
        assert_eq!(ids, [r#""a1""#, r#""a2""#], "in their order");
        assert!(waits[0].retry_state.was_written && !waits[1].retry_state.was_written);
    })
    .await;
}

/// The connection breaks first, and the death of the server is reported a moment later. Calls held
/// back until then go to the successor without further delay.
#[tokio::test(start_paused = true)]
async fn held_back_call_goes_to_the_successor_at_once() {
    run_local(async {
        let mut harness = Harness::known().await;
        let client = harness.client(&json!({}));
        client.call_tool("read", "1");
        let (upstream_id, _) = harness.calls()[0];
        harness.upstream.lose(
            upstream_id,
            Delivery::Written,
            LossReason::Report("it broke".to_owned()),
            false,
        );
        assert_eq!(harness.names(), Vec::<String>::new(), "it may be dying");
        harness.die();
        let began_at = tokio::time::Instant::now();
        harness.come_back().await;
        assert_eq!(harness.names(), ["1"]);
        assert_eq!(began_at.elapsed(), Duration::ZERO);
    })
    .await;
}
