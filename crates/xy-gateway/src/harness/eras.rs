//! Clients and servers of different eras.

use xy_mcp::{capabilities, modern};
use xy_supervisor::instance::Holder;
use xy_upstream::fault::{Cause, LossReason};

use super::*;
use crate::bridge::pending_input::MAX_SLOT_HOLD;

mod concurrent_calls;
mod input_requests;
mod modern_servers;
mod pending_input;
mod rounds;
mod tasks;
mod waiting;

const MODERN: &str = r#"{"supportedVersions":["2026-07-28"],"capabilities":{"logging":{},"tools":{}},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"new"}}}"#;

/// Returns the `_meta` of a modern client's request.
fn meta(capabilities: &Value, more: &Value) -> Value {
    let mut meta = json!({ modern::VERSION: "2026-07-28", modern::CAPABILITIES: capabilities });
    meta.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    meta
}

impl Harness {
    async fn modern() -> Self {
        let introduction = Introduction::discovered(MODERN).unwrap();
        Self::with_introduction(CallRules::default(), false, &introduction).await
    }

    /// Sends a one-shot request of a modern client with this token. Each request counts as another
    /// client.
    fn modern_request(&self, who: u64, id: u64, method: &str, params: &Value) -> TestClient {
        let view = View::Profile("default".to_owned());
        let entry = Entry {
            view,
            may_manage: false,
            lifetime: Lifetime::Request,
            principal: who,
            bound: None,
        };
        let received = Rc::new(RecordedMessages::default());
        let client_session = self.router.open(entry, received.clone()).unwrap();
        let client = TestClient { client_session, received };
        client.ask(&json!(id), method, params);
        client
    }

    /// Returns a modern client with a session, and a harness whose server instance serves this
    /// client alone.
    pub(super) async fn with_isolated_client() -> (Self, TestClient) {
        let mut harness = Self::begin().await;
        let own = ServerSettings { isolation: Isolation::Client, ..settings(CallRules::default()) };
        harness.server.configure(Arc::new(own));
        let view = View::Profile("default".to_owned());
        let entry = Entry {
            view,
            may_manage: false,
            lifetime: Lifetime::Session,
            principal: 0,
            bound: None,
        };
        let messages = Rc::new(RecordedMessages::default());
        let client_session = harness.router.open(entry, messages.clone()).unwrap();
        let holder = Holder::Client(harness.router.clients()[0].number());
        let key = InstanceKey { server: harness.server.name.clone(), holder };
        let (events, received) = mpsc::channel(64);
        (harness.events, harness.sent) = (received, Rc::default());
        let (sent, router) = (harness.sent.clone(), harness.router.clone());
        harness.upstream = Upstream::new(key, events, 1, false, sent, router);
        harness.server.add(&harness.upstream);
        harness.upstream.resume(legacy(), false).await;
        harness.router.on_instance_ready(&harness.upstream);
        harness.upstream.stop_awaiting_lists();
        (harness, TestClient { client_session, received: messages })
    }

    /// Sends a call of a modern client that has all capabilities, with additional params.
    fn modern_call(&self, id: u64, more: &Value) -> TestClient {
        self.modern_call_by(1, id, "call", more)
    }

    fn modern_call_by(&self, who: u64, id: u64, arguments: &str, more: &Value) -> TestClient {
        let all = json!({ "elicitation": { "form": {}, "url": {} }, "sampling": {}, "roots": {} });
        let meta = meta(&all, &json!({ "progressToken": format!("p{id}") }));
        let mut params = json!({ "name": "s__x", "arguments": arguments, "_meta": meta });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.modern_request(who, id, "tools/call", &params)
    }

    /// Returns the responses sent to the server since the last call, by the ids of its requests.
    fn client_answers(&self) -> Vec<(String, Value)> {
        let answers = self.sent().into_iter().filter(|it| it["method"].is_null());
        answers.map(|it| (text(&it["id"]), it)).collect()
    }
}

impl TestClient {
    /// Returns the names and methods of the requested inputs, and the request state.
    #[track_caller]
    fn input_required(&self) -> (Vec<(String, String)>, Value) {
        let received = self.received();
        let [answer] = received.as_slice() else { panic!("{received:?}") };
        let result = &answer["result"];
        assert_eq!(result["resultType"], "input_required", "{answer}");
        let inputs = result["inputRequests"].as_object().unwrap().iter();
        let inputs = inputs.map(|(key, it)| (key.clone(), text(&it["method"]))).collect();
        (inputs, result["requestState"].clone())
    }

    /// Returns the code of the only error received since the last call.
    #[track_caller]
    fn code(&self) -> i64 {
        let received = self.received();
        assert_eq!(received.len(), 1, "{received:?}");
        received[0]["error"]["code"].as_i64().unwrap_or_else(|| panic!("{received:?}"))
    }
}

fn answers(state: &Value, answers: &Value) -> Value {
    json!({ "requestState": state, "inputResponses": answers })
}

/// Returns a modern server's response that requests this input before the call can complete.
fn input_required_response(upstream_id: u64, inputs: &Value, state: &Value) -> Value {
    let result =
        json!({ "resultType": "input_required", "inputRequests": inputs, "requestState": state });
    json!({ "jsonrpc": "2.0", "id": upstream_id, "result": result })
}

/// Advances time until clients have been asked for input.
async fn settle() {
    advance_time(crate::bridge::pending_input::QUESTION_BATCH_DELAY).await;
}

#[tokio::test(start_paused = true)]
async fn modern_meta_is_removed_and_result_completed() {
    run_local(async {
        let harness = Harness::begin().await;
        let client = harness.modern_call(1, &json!({}));
        let sent = harness.sent();
        assert_eq!(sent[0]["params"]["_meta"], json!({ "progressToken": sent[0]["id"] }));
        let upstream_id = sent[0]["id"].as_u64().unwrap();
        let progress = json!({ "progressToken": upstream_id, "progress": 1 });
        harness.send(
            &json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": progress }),
        );
        harness.answer(upstream_id);
        let received = client.received();
        assert_eq!(received[0]["params"]["progressToken"], "p1");
        let result = &received[1]["result"];
        assert_eq!(
            (&result["resultType"], &result["ok"]),
            (&json!("complete"), &json!(upstream_id))
        );
        assert_eq!(result["_meta"][modern::SERVER_INFO]["name"], "old");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn retried_request_answers_server_requests() {
    run_local(async {
        let harness = Harness::begin().await;
        let first = harness.modern_call(1, &json!({}));
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.ask("e", "elicitation/create");
        harness.ask("r", "roots/list");
        settle().await;
        let (inputs, state) = first.input_required();
        let of = |key: &str, method: &str| (key.to_owned(), method.to_owned());
        assert_eq!(inputs, [of("q1", "elicitation/create"), of("q2", "roots/list")]);
        first.client_session.close();
        assert!(harness.sent().is_empty(), "the call goes on");

        let input_responses =
            json!({ "q1": { "action": "accept" }, "q2": { "roots": [1.50] }, "other": {} });
        let second = harness.modern_call(2, &answers(&state, &input_responses));
        let client_answers = harness.client_answers();
        assert_eq!(client_answers[0].1["result"], json!({ "action": "accept" }));
        assert_eq!(client_answers[1].1["result"], json!({ "roots": [1.50] }));
        let progress = json!({ "progressToken": upstream_id, "progress": 1 });
        harness.send(
            &json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": progress }),
        );
        harness.answer(upstream_id);
        let received = second.received();
        assert_eq!(received[0]["params"]["progressToken"], "p2", "its token replaces the old one");
        assert_eq!(
            (&received[1]["id"], &received[1]["result"]["ok"]),
            (&json!(2), &json!(upstream_id))
        );
        assert_eq!(harness.router.pending_inputs.len(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn later_and_unanswered_requests_go_into_next_round() {
    run_local(async {
        let harness = Harness::begin().await;
        let first = harness.modern_call(1, &json!({}));
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.ask("a", "elicitation/create");
        harness.ask("b", "elicitation/create");
        settle().await;
        let (inputs, state) = first.input_required();
        assert_eq!(inputs.len(), 2);
        harness.ask("c", "sampling/createMessage");
        let second =
            harness.modern_call(2, &answers(&state, &json!({ "q1": { "action": "decline" } })));
        settle().await;
        assert_eq!(harness.client_answers().len(), 1);
        let (inputs, state) = second.input_required();
        let keys: Vec<&str> = inputs.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["q2", "q3"]);
        let third = harness.modern_call(3, &answers(&state, &json!({ "q2": {}, "q3": {} })));
        assert_eq!(harness.client_answers().len(), 2);
        harness.answer(upstream_id);
        assert_eq!(third.received()[0]["result"]["ok"], upstream_id);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn isolated_instance_may_request_input_repeatedly() {
    run_local(async {
        let (harness, client) = Harness::with_isolated_client().await;
        let capabilities = json!({ "elicitation": {}, "roots": {} });
        let params = |more: &Value| {
            let mut params = json!({ "name": "s__x", "_meta": meta(&capabilities, &json!({})) });
            params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            params
        };
        client.ask(&json!(1), "tools/call", &params(&json!({})));
        assert_eq!(
            harness.router.clients()[0].declared_capabilities(),
            Some(capabilities.to_string().into())
        );
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.ask("a", "elicitation/create");
        harness.ask("b", "roots/list"); // Its only call is already detached.
        settle().await;
        let (inputs, state) = client.input_required();
        assert_eq!(inputs.len(), 2, "{inputs:?}");
        // No request of the client is open that could carry this, until the client comes back.
        harness.ask("c", "elicitation/create");
        let retry = answers(&state, &json!({ "q1": {}, "q2": {} }));
        client.ask(&json!(2), "tools/call", &params(&retry));
        settle().await;
        let (inputs, state) = client.input_required();
        assert_eq!(inputs, [("q3".to_owned(), "elicitation/create".to_owned())]);
        client.ask(&json!(3), "tools/call", &params(&answers(&state, &json!({ "q3": {} }))));
        assert_eq!(harness.client_answers().len(), 3);
        harness.answer(upstream_id);
        assert_eq!(client.received()[0]["result"]["ok"], upstream_id);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn result_between_two_rounds_is_held() {
    run_local(async {
        let harness = Harness::begin().await;
        let first = harness.modern_call(1, &json!({}));
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.ask("a", "elicitation/create");
        settle().await;
        let (_, state) = first.input_required();
        harness.answer(upstream_id);
        let second = harness.modern_call(2, &answers(&state, &json!({})));
        assert_eq!(second.received()[0]["result"]["ok"], upstream_id);
        // A response that arrives at the same time needs no round at all.
        let third = harness.modern_call(3, &json!({}));
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.ask("a", "elicitation/create");
        harness.answer(upstream_id);
        settle().await;
        assert_eq!(third.received()[0]["result"]["ok"], upstream_id);
        assert_eq!(harness.router.pending_inputs.len(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_is_cancelled_if_client_does_not_return() {
    run_local(async {
        let harness = Harness::begin().await;
        let first = harness.modern_call(1, &json!({}));
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.ask("a", "elicitation/create");
        settle().await;
        let (_, state) = first.input_required();
        advance_time(599 * SECOND).await;
        assert!(harness.sent().is_empty());
        advance_time(2 * SECOND).await;
        let sent = harness.sent();
        assert_eq!((&sent[0]["id"], &sent[0]["error"]["code"]), (&json!("a"), &json!(-32603)));
        assert_eq!(sent[1]["method"], "notifications/cancelled");
        assert_eq!(sent[1]["params"]["requestId"], upstream_id);
        let second = harness.modern_call(2, &answers(&state, &json!({ "q1": {} })));
        assert_eq!(second.code(), -32602, "it has expired");
        assert!(harness.sent().is_empty(), "it is never sent as a new call");
        assert_eq!(harness.router.pending_inputs.len(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn request_state_is_valid_once_for_its_client_and_request() {
    run_local(async {
        let harness = Harness::begin().await;
        let first = harness.modern_call(1, &json!({}));
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.ask("a", "elicitation/create");
        settle().await;
        let (_, state) = first.input_required();
        let more = answers(&state, &json!({ "q1": {} }));
        let mut altered = state.as_str().unwrap().to_owned();
        altered.replace_range(20..21, if &altered[20..21] == "0" { "1" } else { "0" });
        let altered = answers(&json!(altered), &json!({ "q1": {} }));
        for (refused, why) in [
            (harness.modern_call_by(2, 2, "call", &more), "another client"),
            (harness.modern_call_by(1, 2, "other", &more), "another request"),
            (harness.modern_call(2, &altered), "altered"),
            (harness.modern_call(2, &answers(&json!(7), &json!({}))), "not issued"),
            (harness.modern_call(2, &answers(&json!("theirs"), &json!({}))), "not issued"),
        ] {
            let text = refused.error();
            assert!(text.contains("requestState") && text.contains(why), "{text}");
        }
        assert!(harness.sent().is_empty(), "nothing of that reaches the server");
        let second = harness.modern_call(3, &more);
        assert!(second.received().is_empty());
        assert_eq!(harness.client_answers().len(), 1);
        let again = harness.modern_call(4, &more).error();
        assert!(again.contains("valid only once"), "{again}");
        harness.answer(upstream_id);
        assert_eq!(second.received().len(), 1);
        assert!(harness.modern_call(5, &more).error().contains("valid only once"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn server_exit_between_rounds_leaves_outcome_unknown() {
    run_local(async {
        let mut harness = Harness::begin().await;
        let first = harness.modern_call(1, &json!({}));
        harness.sent();
        harness.ask("a", "elicitation/create");
        settle().await;
        let (_, state) = first.input_required();
        harness.restart().await;
        let second = harness.modern_call(2, &answers(&state, &json!({ "q1": {} })));
        assert_eq!(second.code(), -32010);
        assert!(harness.calls().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn client_is_asked_only_for_declared_capabilities() {
    run_local(async {
        let harness = Harness::begin().await;
        let meta = meta(&json!({ "sampling": {} }), &json!({}));
        let params = json!({ "name": "s__x", "_meta": meta });
        let client = harness.modern_request(1, 1, "tools/call", &params);
        harness.sent();
        harness.ask("e", "elicitation/create");
        harness.ask("x", "tasks/list");
        let client_answers = harness.client_answers();
        assert_eq!(client_answers[0].1["error"]["code"], -32601);
        assert!(client_answers[1].1["error"].is_object());
        harness.ask("s", "sampling/createMessage");
        settle().await;
        assert_eq!(client.input_required().0.len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_ends_when_client_cancels_or_leaves() {
    run_local(async {
        let harness = Harness::begin().await;
        let client = harness.modern_call(1, &json!({}));
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.ask("a", "elicitation/create");
        client.client_session.close(); // Before the client has received the question.
        settle().await;
        let sent = harness.sent();
        assert!(sent.iter().any(|it| it["params"]["requestId"] == upstream_id), "{sent:?}");
        assert_eq!(harness.router.pending_inputs.len(), 0);

        advance_time(61 * SECOND).await; // From now on no message is attributed to that call.
        let lasting = harness.client(&json!({}));
        let meta = meta(&json!({ "roots": {} }), &json!({}));
        lasting.ask(&json!(1), "tools/call", &json!({ "name": "s__x", "_meta": meta }));
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.ask("b", "roots/list");
        settle().await;
        lasting.input_required();
        lasting.client_session.close();
        let sent = harness.sent();
        assert!(sent.iter().any(|it| it["params"]["requestId"] == upstream_id), "{sent:?}");
        assert_eq!(harness.router.pending_inputs.len(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn logs_reach_only_requests_that_ask_for_them() {
    run_local(async {
        let harness = Harness::begin().await;
        let log = |level: &str| {
            let params = json!({ "level": level, "data": level });
            json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params })
        };
        let ask = |id, more: &Value| {
            let params = json!({ "name": "s__x", "_meta": meta(&json!({}), more) });
            harness.modern_request(1, id, "tools/call", &params)
        };
        let silent = ask(1, &json!({}));
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.send(&log("error"));
        harness.answer(upstream_id);
        assert_eq!(silent.received().len(), 1, "its answer");
        let curious = ask(2, &json!({ modern::LOG_LEVEL: "warning" }));
        let sent = harness.sent();
        let level = &sent.iter().find(|it| it["method"] == "logging/setLevel").unwrap()["params"];
        assert_eq!(level["level"], "warning");
        harness.send(&log("info"));
        harness.send(&log("error"));
        let received = curious.received();
        assert_eq!((received.len(), &received[0]["params"]["data"]), (1, &json!("error")));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn server_request_in_a_finished_call_is_refused() {
    run_local(async {
        let harness = Harness::begin().await;
        let first = harness.modern_call(1, &json!({}));
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.ask("a", "elicitation/create");
        harness.answer(upstream_id);
        settle().await;
        assert_eq!(first.received()[0]["result"]["ok"], upstream_id);
        let refused = harness.client_answers();
        assert_eq!((&*refused[0].0, &refused[0].1["error"]["code"]), ("a", &json!(-32603)));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn failure_for_lack_of_a_capability_names_the_capability() {
    run_local(async {
        let harness = Harness::begin().await;
        let params = json!({ "name": "s__x", "_meta": meta(&json!({ "roots": {} }), &json!({})) });
        let ask = |method: &str| {
            let client = harness.modern_request(1, 1, "tools/call", &params);
            let [(upstream_id, _)] = harness.calls().try_into().unwrap();
            harness.ask("a", method);
            assert_eq!(harness.client_answers()[0].1["error"]["code"], -32601);
            (client, upstream_id)
        };
        let (client, upstream_id) = ask("sampling/createMessage");
        let failed = json!({ "isError": true, "content": [{ "type": "text", "text": "no" }] });
        harness.send(&json!({ "jsonrpc": "2.0", "id": upstream_id, "result": failed }));
        let error = &client.received()[0]["error"];
        assert_eq!(error["code"], modern::MISSING_CAPABILITY);
        assert_eq!(error["data"]["requiredCapabilities"], json!({ "sampling": {} }));
        assert_eq!(error["data"]["result"], failed, "its own words go with it");

        let (client, upstream_id) = ask("elicitation/create");
        harness.send(
            &json!({ "jsonrpc": "2.0", "id": upstream_id, "error": { "code": 7, "message": "" } }),
        );
        let error = &client.received()[0]["error"];
        assert_eq!(error["data"]["requiredCapabilities"], json!({ "elicitation": { "form": {} } }));
        assert_eq!(error["data"]["error"]["code"], 7);

        let (client, upstream_id) = ask("elicitation/create");
        harness.answer(upstream_id);
        assert_eq!(client.received()[0]["result"]["ok"], upstream_id, "it does without");

        // A call that has waited for its client gets the same error.
        let (client, upstream_id) = ask("elicitation/create");
        harness.ask("r", "roots/list");
        settle().await;
        let (_, state) = client.input_required();
        harness.send(&json!({ "jsonrpc": "2.0", "id": upstream_id, "result": failed }));
        let mut again = params.clone();
        let more = answers(&state, &json!({}));
        again.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let client = harness.modern_request(1, 2, "tools/call", &again);
        assert_eq!(client.code(), modern::MISSING_CAPABILITY);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn url_elicitation_error_becomes_input_request_and_call_is_retried() {
    run_local(async {
        let harness = Harness::begin().await;
        let refuse = |upstream_id: u64| {
            let elsewhere =
                json!({ "mode": "url", "elicitationId": "1", "url": "https://x", "message": "go" });
            let data = json!({ "elicitations": [elsewhere] });
            let error = json!({ "code": -32042, "message": "go", "data": data });
            harness.send(&json!({ "jsonrpc": "2.0", "id": upstream_id, "error": error }));
        };
        let first = harness.modern_call(1, &json!({}));
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        refuse(upstream_id);
        let (inputs, state) = first.input_required();
        assert_eq!(inputs.len(), 1);
        let second =
            harness.modern_call(2, &answers(&state, &json!({ "q1": { "action": "accept" } })));
        let sent = harness.sent();
        assert_eq!(sent[0]["method"], "tools/call");
        assert!(sent[0]["params"]["requestState"].is_null(), "{}", sent[0]);
        harness.answer(sent[0]["id"].as_u64().unwrap());
        assert_eq!(second.received().len(), 1);
        assert!(
            harness
                .modern_call(3, &answers(&state, &json!({})))
                .error()
                .contains("valid only once")
        );

        let params = json!({ "name": "s__x", "_meta": meta(&json!({}), &json!({})) });
        let unable = harness.modern_request(1, 4, "tools/call", &params);
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        refuse(upstream_id);
        assert_eq!(unable.code(), modern::MISSING_CAPABILITY);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn legacy_methods_do_not_exist_in_the_modern_era() {
    run_local(async {
        let harness = Harness::begin().await;
        let params = json!({ "_meta": meta(&json!({}), &json!({})) });
        for method in
            ["initialize", "ping", "logging/setLevel", "resources/subscribe", "tasks/list"]
        {
            assert_eq!(harness.modern_request(1, 1, method, &params).code(), -32601, "{method}");
        }
        let discovered = harness.modern_request(1, 1, "server/discover", &params).received();
        let result = &discovered[0]["result"];
        assert_eq!(result["supportedVersions"][0], "2026-07-28");
        assert_eq!(result["_meta"][modern::SERVER_INFO]["name"], "xy");
        assert_eq!(result["cacheScope"], "private");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn server_for_modern_clients_is_offered_all_capabilities() {
    run_local(async {
        let harness = Harness::begin().await;
        let message_of = |holder| {
            let key = InstanceKey { server: harness.server.name.clone(), holder };
            let (events, _) = mpsc::channel(1);
            let upstream =
                Upstream::new(key, events, 1, false, harness.sent.clone(), harness.router.clone());
            crate::upstream_session::capabilities(&harness.router, &upstream)
        };
        let youngest =
            || harness.router.clients().iter().map(|client| client.group_id()).max().unwrap();
        let modern_request = harness.modern_call(1, &json!({}));
        let group_id = youngest();
        assert!(harness.router.is_group(group_id));
        assert_eq!(message_of(Holder::Client(group_id)), capabilities::STATELESS);
        modern_request.client_session.close();
        assert_eq!(
            message_of(Holder::Client(group_id)),
            capabilities::STATELESS,
            "the next may be able"
        );
        harness.client(&json!({ "roots": { "listChanged": true } }));
        assert_eq!(message_of(Holder::Client(youngest())), r#"{"roots":{"listChanged":true}}"#);
        assert_eq!(message_of(Holder::Shared), capabilities::SHARED, "never of roots");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn subscription_waits_for_a_starting_server() {
    run_local(async {
        let mut harness = Harness::begin().await;
        let end = |harness: &Harness| {
            harness.upstream.close(&Cause::end(LossReason::server("has ended")));
            harness.router.on_instance_end(&harness.server, &harness.upstream, &LossReason::server("has ended"));
        };
        let filter = json!({ "resourceSubscriptions": ["xy://s/test://a", "xy://s/test://b"] });
        let params = json!({ "notifications": filter, "_meta": meta(&json!({}), &json!({})) });
        end(&harness);
        let patient = harness.modern_request(1, 1, "subscriptions/listen", &params);
        advance_time(9 * SECOND).await;
        assert!(patient.received().is_empty());
        let result = r#"{"protocolVersion":"2025-11-25","capabilities":{"resources":{"subscribe":true}},"serverInfo":{"name":"old"}}"#;
        let introduction = Introduction::read(result).unwrap();
        let (events, _received) = mpsc::channel(64);
        harness.sent = Rc::default();
        let sent = harness.sent.clone();
        harness.upstream = start_upstream(&harness.router, &harness.server, events, sent, false, &introduction).await;
        for _ in 0..4 {
            settle().await;
            for request in harness.sent() {
                assert_eq!(request["method"], "resources/subscribe");
                harness.answer(request["id"].as_u64().unwrap());
            }
        }
        assert_eq!(patient.received()[0]["params"]["notifications"], filter);

        end(&harness);
        let vain = harness.modern_request(2, 1, "subscriptions/listen", &params);
        advance_time(11 * SECOND).await;
        assert_eq!(vain.received()[0]["params"]["notifications"], json!({}), "for both of them");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn invalid_input_response_is_requested_again() {
    run_local(async {
        let harness = Harness::begin().await;
        let first = harness.modern_call(1, &json!({}));
        harness.calls();
        harness.ask("a", "elicitation/create");
        settle().await;
        let (_, state) = first.input_required();
        let second = harness.modern_call(2, &answers(&state, &json!({ "q1": 7 })));
        settle().await;
        assert!(harness.client_answers().is_empty());
        assert_eq!(second.input_required().0.len(), 1);
    })
    .await;
}
