//! Concurrent requests of one modern client at a legacy server that sends requests. Each request
//! has exclusive access in turn, and receives only its own server requests.

use super::*;

/// A modern client on one connection, with all capabilities.
struct LocalClient(TestClient);

impl LocalClient {
    fn at(harness: &Harness) -> Self {
        let view = View::Profile("default".to_owned());
        let entry = Entry {
            view,
            may_manage: false,
            lifetime: Lifetime::Session,
            principal: 0,
            bound: None,
        };
        let received = Rc::new(RecordedMessages::default());
        let client_session = harness.router.open(entry, received.clone()).unwrap();
        Self(TestClient { client_session, received })
    }

    /// Calls the server's only tool with this argument and additional params.
    fn call(&self, id: u64, argument: &str, more: &Value) {
        let all = json!({ "elicitation": { "form": {} }, "sampling": {}, "roots": {} });
        let meta = meta(&all, &json!({}));
        let mut params = json!({ "name": "s__x", "arguments": argument, "_meta": meta });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.0.ask(&json!(id), "tools/call", &params);
    }

    fn calls(&self, all: &[(u64, &str)]) {
        for (id, argument) in all {
            self.call(*id, argument, &json!({}));
        }
    }

    /// Returns what the requests were answered with since the last call, by id: `Err` with the
    /// request state if input is required, otherwise `Ok` with the result.
    fn answers(&self) -> BTreeMap<u64, Result<Value, Value>> {
        let received = self.0.received().into_iter().map(|it| {
            let result = &it["result"];
            let needs_input = result["resultType"] == "input_required";
            let state = result["requestState"].clone();
            let answer = if needs_input { Err(state) } else { Ok(result["ok"].clone()) };
            (it["id"].as_u64().unwrap(), answer)
        });
        received.collect()
    }

    /// Returns the request state of the only request answered since the last call, which must be
    /// `id`.
    #[track_caller]
    fn state_of(&self, id: u64) -> Value {
        let mut answers = self.answers();
        let answer = answers.remove(&id).unwrap_or_else(|| panic!("{answers:?}"));
        assert!(answers.is_empty(), "{answers:?}");
        answer.unwrap_err()
    }
}

/// Advances time until clients were asked, and then until an unanswered question no longer blocks
/// others.
async fn settle() {
    super::settle().await;
    advance_time(MAX_SLOT_HOLD).await;
}

fn names(calls: &[(u64, String)]) -> Vec<&str> {
    calls.iter().map(|(_, name)| name.as_str()).collect()
}

/// Returns the upstream id of the only call sent since the last call, which must have this name.
#[track_caller]
fn only(harness: &Harness, name: &str) -> u64 {
    let calls = harness.calls();
    assert_eq!(names(&calls), [name]);
    calls[0].0
}

/// Returns a shared server that has sent a request, and a client.
async fn shared() -> (Harness, LocalClient) {
    let harness = Harness::begin().await;
    harness.ask("first", "roots/list");
    harness.sent();
    let client = LocalClient::at(&harness);
    (harness, client)
}

/// Returns a server instance of one client that has sent a request, and this client.
async fn private() -> (Harness, LocalClient) {
    let (harness, client) = Harness::with_isolated_client().await;
    harness.ask("first", "roots/list");
    harness.sent();
    (harness, LocalClient(client))
}

/// Checks that each of three calls requests input, and receives only its own answers.
async fn three_in_turn(harness: Harness, client: LocalClient) {
    client.calls(&[(1, "a"), (2, "b"), (3, "c")]);
    let a = only(&harness, "a");
    harness.ask("of a", "elicitation/create");
    assert!(harness.calls().is_empty(), "the client has not received the question yet");
    super::settle().await;
    let state_a = client.state_of(1);
    advance_time(MAX_SLOT_HOLD / 2).await;
    assert!(harness.calls().is_empty(), "it may answer at once");
    advance_time(MAX_SLOT_HOLD / 2).await;
    let b = only(&harness, "b"); // Only the elapsed time lets the next call go.
    harness.ask("of b", "elicitation/create");
    settle().await;
    let state_b = client.state_of(2);
    let c = only(&harness, "c");
    harness.answer(c);
    assert_eq!(client.answers()[&3], Ok(json!(c)), "it was not asked anything");

    let text_of = |text: &str| json!({ "q1": { "action": "accept", "content": { "x": text } } });
    client.call(4, "b", &answers(&state_b, &text_of("b")));
    let client_answers = harness.client_answers();
    assert_eq!(
        (&*client_answers[0].0, &client_answers[0].1["result"]["content"]["x"]),
        ("of b", &json!("b"))
    );
    harness.answer(b);
    assert_eq!(client.answers()[&4], Ok(json!(b)));
    client.call(5, "a", &answers(&state_a, &text_of("a")));
    let client_answers = harness.client_answers();
    assert_eq!(
        (&*client_answers[0].0, &client_answers[0].1["result"]["content"]["x"]),
        ("of a", &json!("a"))
    );
    // A second round in the same call.
    harness.ask("of a again", "sampling/createMessage");
    settle().await;
    let state_a = client.state_of(5);
    client.call(6, "a", &answers(&state_a, &json!({ "q1": {} })));
    assert_eq!(harness.client_answers().len(), 1);
    harness.answer(a);
    assert_eq!(client.answers()[&6], Ok(json!(a)));
    let left = (
        harness.router.pending_inputs.len(),
        harness.server.waiting(),
        harness.upstream.open_calls(),
    );
    assert_eq!(left, (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn calls_of_one_client_take_turns_at_a_shared_server() {
    run_local(async {
        let (harness, client) = shared().await;
        three_in_turn(harness, client).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn calls_of_one_client_take_turns_at_its_own_instance() {
    run_local(async {
        let (harness, client) = private().await;
        three_in_turn(harness, client).await;
    })
    .await;
}

/// Checks the server's first request while two calls of one client are open.
async fn unclear_at_first(harness: Harness, client: LocalClient) {
    client.calls(&[(1, "a"), (2, "b")]);
    let both = harness.calls();
    assert_eq!(names(&both), ["a", "b"], "the server is not known to send requests yet");
    harness.ask("whose", "elicitation/create");
    let refused = harness.client_answers();
    assert_eq!((&*refused[0].0, &refused[0].1["error"]["code"]), ("whose", &json!(-32603)));
    let why = text(&refused[0].1["error"]["message"]);
    assert!(why.contains("in which call"), "{why}");
    settle().await;
    assert!(client.answers().is_empty(), "both go on, and neither is asked");
    client.calls(&[(3, "c")]);
    assert!(harness.calls().is_empty(), "from now on the calls take turns");
    harness.answer(both[0].0);
    // Only one call is left, so the request belongs to it.
    harness.ask("of b", "elicitation/create");
    settle().await;
    assert_eq!(client.answers().into_keys().collect::<Vec<_>>(), [1, 2]);
    let c = only(&harness, "c");
    harness.answer(c);
    assert_eq!(client.answers()[&3], Ok(json!(c)));
}

#[tokio::test(start_paused = true)]
async fn first_server_request_during_two_calls_is_refused() {
    run_local(async {
        let harness = Harness::begin().await;
        let client = LocalClient::at(&harness);
        unclear_at_first(harness, client).await;
        let (harness, client) = Harness::with_isolated_client().await;
        unclear_at_first(harness, LocalClient(client)).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn ambiguous_server_request_is_refused() {
    run_local(async {
        for (harness, client) in [shared().await, private().await] {
            client.calls(&[(1, "a"), (2, "b")]);
            let a = only(&harness, "a");
            harness.ask("of a", "elicitation/create");
            settle().await;
            let state = client.state_of(1);
            let b = only(&harness, "b");
            client.call(3, "a", &answers(&state, &json!({ "q1": {} })));
            assert_eq!(harness.client_answers().len(), 1, "an answer never waits");
            // The server works on both calls again.
            harness.ask("of one", "elicitation/create");
            assert_eq!(harness.client_answers()[0].1["error"]["code"], -32603);
            client.calls(&[(4, "c")]);
            assert!(harness.calls().is_empty(), "a third waits for both");
            harness.answer(b);
            harness.ask("of a again", "elicitation/create");
            settle().await;
            let answers = client.answers();
            assert_eq!(answers[&2], Ok(json!(b)));
            assert!(answers[&3].is_err(), "now the request is attributed");
            let c = only(&harness, "c");
            harness.answer(a);
            harness.answer(c);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn server_request_while_two_calls_wait_for_input_is_refused() {
    run_local(async {
        for (harness, client) in [shared().await, private().await] {
            client.calls(&[(1, "a"), (2, "b")]);
            for id in [1, 2] {
                assert_eq!(harness.calls().len(), 1);
                harness.ask(&id.to_string(), "elicitation/create");
                settle().await;
                client.state_of(id);
            }
            harness.ask("x", "elicitation/create");
            assert_eq!(harness.client_answers()[0].1["error"]["code"], -32603);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn abandoned_calls_do_not_block_their_client() {
    run_local(async {
        for (harness, client) in [shared().await, private().await] {
            for id in 1..=20 {
                client.call(id, "left", &json!({}));
            }
            for id in 1..=19 {
                only(&harness, "left");
                harness.ask(&id.to_string(), "elicitation/create");
                super::settle().await;
                if id == 1 {
                    assert!(harness.calls().is_empty(), "it may answer at once");
                    advance_time(MAX_SLOT_HOLD).await;
                }
                client.state_of(id); // The client never comes back for this call.
            }
            let last = only(&harness, "left");
            client.calls(&[(21, "waits")]);
            harness.answer(last);
            assert_eq!(client.answers()[&20], Ok(json!(last)));
            only(&harness, "waits");
            client.calls(&[(22, "waits too")]);
            client.0.client_session.close();
            let sent = harness.sent();
            let message_of = |method: &str| sent.iter().filter(|it| it["method"] == method).count();
            assert_eq!(message_of("notifications/cancelled"), 20);
            assert_eq!(message_of("tools/call"), 0);
            let refused = sent.iter().filter(|it| it["error"]["code"] == -32603).count();
            assert_eq!(refused, 19);
            assert_eq!((harness.router.pending_inputs.len(), harness.server.waiting()), (0, 0));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_or_refused_call_gives_up_its_turn() {
    run_local(async {
        for (harness, client) in [shared().await, private().await] {
            client.calls(&[(1, "a"), (2, "b"), (3, "c"), (4, "d")]);
            let cancel = |id: u64| {
                let params = json!({ "requestId": id });
                let method = "notifications/cancelled";
                client.0.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
            };
            only(&harness, "a");
            cancel(2); // This call waits.
            assert!(harness.calls().is_empty());
            cancel(1);
            let c = only(&harness, "c");
            harness.ask("q", "elicitation/create");
            cancel(3); // Before the client has received the question.
            only(&harness, "d");
            harness.answer(c);
            settle().await;
            assert!(client.answers().is_empty());
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn legacy_client_calls_its_own_instance_concurrently() {
    run_local(async {
        let (harness, client) = Harness::with_isolated_client().await;
        let params =
            json!({ "protocolVersion": "2025-11-25", "capabilities": { "elicitation": {} } });
        client.ask(&json!("hello"), "initialize", &params);
        client.received();
        harness.ask("first", "elicitation/create");
        client.call("a");
        client.call("b");
        assert_eq!(names(&harness.calls()), ["a", "b"]);
        harness.ask("q", "elicitation/create");
        let requests = client.received();
        assert_eq!((requests.len(), &requests[1]["method"]), (2, &json!("elicitation/create")));
        // A call of the other era arrives, and waits.
        let client = LocalClient(client);
        client.calls(&[(1, "modern")]);
        assert!(harness.calls().is_empty());
        client.0.cancel("a");
        client.0.cancel("b");
        only(&harness, "modern");
        client.0.call("c");
        assert!(harness.calls().is_empty(), "requests are now attributed to the other call");
        harness.ask("m", "elicitation/create");
        settle().await;
        client.state_of(1);
        only(&harness, "c");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_that_waits_too_long_for_its_own_client_fails() {
    run_local(async {
        let (harness, client) = private().await;
        client.calls(&[(1, "busy"), (2, "other")]);
        advance_time(31 * SECOND).await;
        let words = client.0.error();
        for part in ["busy with another call for 30s", "not sent", "fewer calls"] {
            assert!(words.contains(part), "{words}");
        }
        assert!(!words.contains("isolation"), "{words}");
        assert_eq!(names(&harness.calls()), ["busy"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn waiting_calls_go_one_by_one_to_the_next_process() {
    run_local(async {
        let (mut harness, client) = shared().await;
        client.calls(&[(1, "a"), (2, "b"), (3, "c"), (4, "d")]);
        only(&harness, "a");
        harness.ask("of a", "elicitation/create");
        settle().await;
        let state = client.state_of(1);
        only(&harness, "b");
        harness.restart().await;
        let c = only(&harness, "c");
        harness.answer(c);
        only(&harness, "d");
        client.0.received();
        client.call(5, "a", &answers(&state, &json!({ "q1": {} })));
        assert_eq!(client.0.code(), -32010, "outcome unknown");
        assert!(harness.sent().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn log_message_during_several_calls_reaches_their_client() {
    run_local(async {
        let harness = Harness::begin().await;
        let client = LocalClient::at(&harness);
        for id in [1, 2] {
            let meta = meta(&json!({}), &json!({ modern::LOG_LEVEL: "info" }));
            client.0.ask(&json!(id), "tools/call", &json!({ "name": "s__x", "_meta": meta }));
        }
        assert_eq!(harness.calls().len(), 2);
        let params = json!({ "level": "error", "data": "x" });
        harness.send(
            &json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params }),
        );
        assert_eq!(client.0.received()[0]["params"]["data"], "x");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_with_no_open_server_request_may_ask_again() {
    run_local(async {
        for (harness, client) in [shared().await, private().await] {
            client.calls(&[(1, "a"), (2, "b")]);
            only(&harness, "a");
            harness.ask("of a", "elicitation/create");
            settle().await;
            client.state_of(1);
            only(&harness, "b");
            let taken_back = json!({ "requestId": "of a" });
            let method = "notifications/cancelled";
            harness.send(&json!({ "jsonrpc": "2.0", "method": method, "params": taken_back }));
            harness.ask("of a or b", "elicitation/create");
            assert_eq!(harness.client_answers()[0].1["error"]["code"], -32603);
            client.calls(&[(3, "c")]);
            assert!(harness.calls().is_empty(), "b has its turn");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn client_that_answers_at_once_keeps_exclusive_access() {
    run_local(async {
        for (harness, client) in [shared().await, private().await] {
            client.calls(&[(1, "a"), (2, "b")]);
            let a = only(&harness, "a");
            let mut id = 1;
            for question in ["one", "two", "three"] {
                harness.ask(question, "elicitation/create");
                super::settle().await;
                let state = client.state_of(id);
                id += 10;
                client.call(id, "a", &answers(&state, &json!({ "q1": {} })));
                assert_eq!(harness.client_answers()[0].0, question);
                advance_time(MAX_SLOT_HOLD).await; // The server works, and no answer is pending.
                assert!(harness.calls().is_empty());
            }
            harness.answer(a);
            assert_eq!(client.answers()[&id], Ok(json!(a)));
            only(&harness, "b");
        }
    })
    .await;
}
