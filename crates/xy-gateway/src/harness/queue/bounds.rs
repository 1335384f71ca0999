//! How many calls may wait, and for how long.

use super::*;

#[tokio::test(start_paused = true)]
async fn queue_timeout_reports_what_is_known() {
    run_local(async {
        let park = ParkSettings { queue: 5 * SECOND, ..ParkSettings::default() };
        let harness = Harness::known_with_queue(park, NO_RULES).await;
        let client = harness.client(&json!({}));
        client.call_tool("read", "seen");
        harness.sent();
        client.call_tool("x", "unseen");
        advance_time(10 * SECOND).await;
        harness.die();
        advance_time(4 * SECOND).await;
        client.call_tool("x", "later");
        assert!(client.received().is_empty());
        advance_time(2 * SECOND).await;
        let received = client.received();
        let message_of =
            |at: usize| (text(&received[at]["id"]), received[at]["error"]["code"].as_i64());
        assert_eq!(message_of(0), ("seen".to_owned(), Some(-32010)));
        let words = received[0]["error"]["message"].as_str().unwrap();
        assert!(words.contains("did not come up within 5s"), "{words}");
        assert!(words.contains("sent to `s` once"), "{words}");
        assert_eq!(message_of(1), ("unseen".to_owned(), Some(-32008)));
        let words = received[1]["error"]["message"].as_str().unwrap();
        assert!(words.contains("the call was not sent"), "{words}");
        for words in [&received[0], &received[1]].map(|it| it["error"]["message"].as_str().unwrap())
        {
            assert!(words.contains("calls wait at most 5s (`park { queue }`)"), "{words}");
        }
        assert!(words.contains("raise `park { queue }` and restart the daemon"), "{words}");
        assert_eq!(received.len(), 2);
        advance_time(4 * SECOND).await;
        assert_eq!(client.received().len(), 1);
        assert_eq!((harness.server.waiting(), harness.counts()), (0, (0, 1)));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn total_timeout_in_the_queue_is_a_timeout_error() {
    run_local(async {
        let rules = CallRules { idle: None, within: Some(10 * SECOND) };
        for (queue, code) in [(30, -32007), (5, -32008)] {
            let park = ParkSettings { queue: queue * SECOND, ..ParkSettings::default() };
            let harness = Harness::known_with_queue(park, rules).await;
            let client = harness.client(&json!({}));
            client.call_tool("x", "unseen");
            harness.die();
            advance_time(11 * SECOND).await;
            let received = client.received();
            assert_eq!(received[0]["error"]["code"], code, "{received:?}");
            let names_the_bound =
                received[0]["error"]["message"].to_string().contains("`park { queue }`");
            assert_eq!(names_the_bound, code == -32008, "{received:?}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn queue_timeout_during_a_pull_reports_progress() {
    run_local(async {
        let harness = Harness::known().await;
        let client = harness.client(&json!({}));
        harness.die();
        let what = "pulling x:1".to_owned();
        let progress = xy_supervisor::launch::Progress { what, percent: Some(45) };
        let says: crate::backend::ProgressReporter = Box::new(move || Some(progress.clone()));
        harness.server.set_progress_reporters(HashMap::from([(Holder::Shared, says)]));
        client.call_tool("x", "early");
        advance_time(31 * SECOND).await;
        let error = client.received()[0]["error"].to_string();
        for part in [
            "`s` did not come up within 30s, as it is still pulling x:1 45 %",
            "the call was not sent",
            "try again later",
        ] {
            assert!(error.contains(part), "{error}");
        }
        harness
            .server
            .set_progress_reporters(HashMap::from([(Holder::Shared, Box::new(|| None) as _)]));
        client.call_tool("x", "late");
        advance_time(31 * SECOND).await;
        let error = client.received()[0]["error"].to_string();
        assert!(
            error.contains("did not come up within 30s") && !error.contains("still"),
            "{error}"
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn failing_server_is_explained_instead_of_larger_queue() {
    run_local(async {
        let harness = Harness::known().await;
        let client = harness.client(&json!({}));
        harness.die();
        let trouble = "exited with code 3\nlast lines of stderr:\nboom";
        let says: crate::backend::FailureReporter = Box::new(move || Some(trouble.to_owned()));
        harness.server.set_failure_reporters(HashMap::from([(Holder::Shared, says)]));
        client.call_tool("x", "early");
        advance_time(31 * SECOND).await;
        let received = client.received();
        assert_eq!(received[0]["error"]["code"], -32008, "{received:?}");
        assert_eq!(
            received[0]["error"]["message"],
            "`s` did not come up: the call was not sent; exited with code 3; fix the \
             problem above; `xy status s` shows more",
            "its stderr may be about other clients"
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_fails_if_the_next_retry_comes_too_late() {
    run_local(async {
        let harness = Harness::known().await;
        let client = harness.client(&json!({}));
        harness.die();
        client.call_tool("x", "early");
        advance_time(20 * SECOND).await;
        client.call_tool("x", "late");
        let retry_at =
            |seconds| HashMap::from([(Holder::Shared, tokio::time::Instant::now() + seconds)]);
        harness.server.fail_hopeless(&retry_at(9 * SECOND));
        assert!(client.received().is_empty(), "the next retry comes in time");
        harness.server.fail_hopeless(&retry_at(11 * SECOND));
        let received = client.received();
        assert_eq!((received.len(), &received[0]["id"]), (1, &json!("early")), "{received:?}");
        assert_eq!(harness.server.waiting(), 1, "the later call waits on");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn queue_length_is_limited() {
    run_local(async {
        let park = ParkSettings { calls: 2, ..ParkSettings::default() };
        let harness = Harness::known_with_queue(park, NO_RULES).await;
        let client = harness.client(&json!({}));
        for id in ["1", "2", "3"] {
            client.call_tool("read", id);
        }
        harness.sent();
        client.call_tool("x", "4");
        harness.die();
        // The oldest calls wait. The outcome of the sent one is unknown.
        let received = client.received();
        let codes: Vec<(String, i64)> = received
            .iter()
            .map(|it| (text(&it["id"]), it["error"]["code"].as_i64().unwrap()))
            .collect();
        assert_eq!(codes, [("3".to_owned(), -32010), ("4".to_owned(), -32008)], "{received:?}");
        client.call_tool("read", "5");
        assert!(client.error().contains("too many calls wait"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn total_queue_length_is_limited() {
    run_local(async {
        let park = ParkSettings { total_calls: 2, ..ParkSettings::default() };
        let mut harness = Harness::known_with_queue(park, NO_RULES).await;
        let name = ServerName::new("t").unwrap();
        let other =
            harness.router.ensure_server(&Arc::new(ServerSettings { name, ..settings(NO_RULES) }));
        *other.known.borrow_mut() = Some(Rc::new(known_of("t", legacy())));
        let client = harness.client(&json!({}));
        let call_other = |id: &str| {
            client.ask(&json!(id), "tools/call", &json!({ "name": "t__x", "arguments": id }));
        };
        client.call_tool("read", "1");
        harness.sent();
        harness.die();
        call_other("2");
        assert_eq!((harness.server.waiting(), other.waiting()), (1, 1));
        for again in ["3", "4"] {
            if again == "3" {
                client.call_tool("x", again);
            } else {
                call_other(again);
            }
            let words = client.error();
            for part in ["for all servers together", "at most 2", "total-calls", "xy.kdl"] {
                assert!(words.contains(part), "{words}");
            }
        }
        // Calls that were sent make room. A call that is lost afterwards finds none.
        harness.come_back().await;
        assert_eq!(harness.names(), ["1"]);
        call_other("5");
        assert_eq!(harness.router.queue_budget.waiting().0, 2);
        harness.die();
        assert_eq!(client.outcomes(), [unknown("1")]);
        client.client_session.close();
        assert_eq!(
            harness.router.queue_budget.waiting(),
            (0, 0),
            "a leaving client frees its calls"
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn queued_and_retained_bytes_are_limited() {
    run_local(async {
        let park = ParkSettings { bytes: 300, ..ParkSettings::default() };
        let harness = Harness::known_with_queue(park, NO_RULES).await;
        let client = harness.client(&json!({}));
        for id in ["1", "2", "3", "4"] {
            client.call_tool("read", id); // About 130 bytes each.
        }
        harness.sent();
        client.call_tool("x", "5");
        harness.die();
        let received = client.received();
        let codes: Vec<i64> =
            received.iter().map(|it| it["error"]["code"].as_i64().unwrap()).collect();
        assert_eq!(codes, [-32010, -32010, -32005], "{received:?}");
        let words = received[0]["error"]["message"].as_str().unwrap();
        assert!(words.contains("no copy of it could be kept"), "{words}");
        assert_eq!(harness.server.waiting(), 2);
        client.call_tool("read", "6");
        assert!(client.error().contains("too many calls wait"));
    })
    .await;
}

/// Larger than any pipe buffer.
const LONG: usize = 1024 * 1024;

/// Calls tools with long arguments, each under its own name.
fn call_long(client: &TestClient, tools: &[&str]) {
    for tool in tools {
        let arguments = format!("{tool} {}", "l".repeat(LONG));
        let params = json!({ "name": format!("s__{tool}"), "arguments": arguments });
        client.ask(&json!(tool), "tools/call", &params);
    }
}

#[tokio::test(start_paused = true)]
async fn long_unread_call_is_always_retried() {
    run_local(async {
        let mut harness = Harness::known().await;
        let client = harness.client(&json!({}));
        call_long(&client, &["x", "read"]);
        harness.sent();
        harness.sent.unread_from.set(Some(0));
        harness.die();
        assert_eq!(client.outcomes(), []);
        harness.come_back().await;
        let again: Vec<usize> = harness.names().iter().map(String::len).collect();
        assert_eq!(again, ["x ".len() + LONG, "read ".len() + LONG]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_that_cannot_be_retried_frees_its_copy() {
    run_local(async {
        let bytes = 3 * LONG as u64;
        let park = ParkSettings { bytes, ..ParkSettings::default() };
        let mut harness = Harness::known_with_queue(park, NO_RULES).await;
        let client = harness.client(&json!({}));
        call_long(&client, &["x", "read"]);
        harness.sent();
        for place in 0..harness.sent.written.get() as u64 {
            harness.upstream.drop_retry_copy(place);
        }
        call_long(&client, &["set"]); // There is room for two of three.
        harness.sent();
        harness.die();
        let words = client.error();
        assert!(words.starts_with("outcome unknown"), "{words}");
        assert!(words.contains("it is not known to be safe to repeat"), "{words}");
        harness.come_back().await;
        let again = harness.names();
        let names: Vec<&str> = again.iter().filter_map(|it| it.split(' ').next()).collect();
        assert_eq!(names, ["read", "set"]);
    })
    .await;
}

/// The predecessor has reported that the tool only reads, and this decides.
#[tokio::test(start_paused = true)]
async fn long_call_keeps_its_copy_until_idempotency_is_known() {
    run_local(async {
        let mut harness = Harness::known_with_queue(ParkSettings::default(), NO_RULES).await;
        let client = harness.client(&json!({}));
        harness.die();
        harness.come_back().await;
        call_long(&client, &["read"]);
        assert_eq!(harness.names().len(), 1);
        for place in 0..harness.sent.written.get() as u64 {
            harness.upstream.drop_retry_copy(place);
        }
        harness.die();
        assert_eq!(client.outcomes(), []);
        harness.come_back().await;
        assert_eq!(harness.names().len(), 1);
    })
    .await;
}
