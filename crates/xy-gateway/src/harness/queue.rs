//! Calls of servers that die: which are sent again, which are not, and what their clients receive.

use std::collections::HashMap;

use xy_catalog::catalog::{Lists, Page, ServerCatalog};
use xy_mcp::kind::Kind;
use xy_supervisor::instance::Holder;
use xy_upstream::connection::Delivery;
use xy_upstream::fault::{Cause, LossReason};

use super::*;
use crate::backend::Availability;

mod bounds;
mod gone;
mod hung;

/// The server's tools: two that may be called twice, and one that may not.
const TOOLS: &str = r#"{"tools":[
    {"name":"read","inputSchema":{},"annotations":{"readOnlyHint":true}},
    {"name":"set","inputSchema":{},"annotations":{"readOnlyHint":false,"idempotentHint":true}},
    {"name":"x","inputSchema":{}}
]}"#;

pub(super) const NO_RULES: CallRules = CallRules { idle: None, within: None };
const WITHIN: CallRules = CallRules { idle: None, within: Some(Duration::from_secs(10)) };

/// The introduction of a modern server.
pub(super) const MODERN: &str =
    r#"{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}"#;

fn known() -> ServerCatalog {
    known_of("s", legacy())
}

fn known_of(name: &str, introduction: Introduction) -> ServerCatalog {
    let mut lists = Lists::default();
    lists.set(Kind::Tools, Page::read(Kind::Tools, TOOLS).unwrap().items);
    ServerCatalog::new(name, introduction, lists)
}

impl Harness {
    /// Creates a harness whose server has reported its tools.
    async fn known() -> Self {
        Self::known_with_queue(ParkSettings::default(), NO_RULES).await
    }

    pub(super) async fn known_with_queue(park: ParkSettings, calls: CallRules) -> Self {
        let harness = Self::with_queue(park, calls, false, &legacy()).await;
        harness.router.learn(&harness.server, &harness.upstream, known());
        harness
    }

    /// Kills the server.
    pub(super) fn die(&self) {
        self.upstream.close(&Cause::end(LossReason::server("was killed")));
        self.router.on_instance_end(
            &self.server,
            &self.upstream,
            &LossReason::server("was killed"),
        );
    }

    /// Starts the next process, which has not reported its tools yet.
    async fn come_back(&mut self) {
        self.come_back_as(&legacy()).await;
    }

    async fn come_back_as(&mut self, introduction: &Introduction) {
        let (events, received) = mpsc::channel(64);
        (self.events, self.sent) = (received, Rc::default());
        let sent = self.sent.clone();
        self.upstream =
            start_upstream(&self.router, &self.server, events, sent, false, introduction).await;
    }

    /// Marks the server as down for good.
    fn give_up(&self, why: &str) {
        self.router.set_availability(&self.server, Availability::Down(why.to_owned()));
    }

    /// Returns the arguments of the calls sent to the server since the last call.
    fn names(&self) -> Vec<String> {
        self.calls().into_iter().map(|(_, name)| name).collect()
    }

    fn counts(&self) -> (u64, u64) {
        (self.server.counts().again.get(), self.server.counts().unknown.get())
    }
}

impl TestClient {
    /// Calls one of the server's tools, with the id as its argument.
    pub(super) fn call_tool(&self, tool: &str, id: &str) {
        let meta = json!({ "progressToken": format!("token of {id}") });
        let name = format!("s__{tool}");
        let params = json!({ "name": name, "arguments": id, "_meta": meta });
        self.ask(&json!(id), "tools/call", &params);
    }

    /// Returns the outcomes of calls since the last one: ids, and results or the start of errors.
    fn outcomes(&self) -> Vec<(String, String)> {
        let outcome = |it: &Value| match it["error"]["message"].as_str() {
            Some(words) => words.split([':', ' ']).take(2).collect::<Vec<_>>().join(" "),
            None => it["result"].to_string(),
        };
        self.received().iter().map(|it| (text(&it["id"]), outcome(it))).collect()
    }
}

fn unknown(id: &str) -> (String, String) {
    (id.to_owned(), "outcome unknown".to_owned())
}

#[tokio::test(start_paused = true)]
async fn unseen_calls_go_to_the_successor_before_later_calls() {
    run_local(async {
        let mut harness = Harness::known().await;
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        a.call_tool("x", "a1");
        b.call_tool("x", "b1");
        a.call_tool("read", "a2");
        harness.die();
        b.call_tool("x", "b2");
        a.call_tool("x", "a3");
        assert_eq!(harness.server.waiting(), 5);
        assert!(a.received().is_empty() && b.received().is_empty());
        harness.come_back().await;
        let calls = harness.calls();
        let names: Vec<&str> = calls.iter().map(|it| it.1.as_str()).collect();
        assert_eq!(names, ["a1", "b1", "a2", "b2", "a3"]);
        for (upstream_id, _) in calls {
            harness.answer(upstream_id);
        }
        assert_eq!((a.received().len(), b.received().len()), (3, 2));
        assert_eq!((harness.counts(), harness.server.waiting()), ((3, 0), 0));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn only_idempotent_calls_are_sent_again() {
    run_local(async {
        let mut harness = Harness::known().await;
        let client = harness.client(&json!({}));
        for (tool, id) in [("x", "1"), ("read", "2"), ("x", "3"), ("set", "4")] {
            client.call_tool(tool, id);
        }
        client.ask(&json!("5"), "resources/read", &json!({ "uri": "xy://s/a://b" }));
        harness.sent();
        harness.die();
        let received = client.received();
        let words = received[0]["error"]["message"].as_str().unwrap();
        for part in ["outcome unknown", "`s` was killed", "it is not known to be safe to repeat"] {
            assert!(words.contains(part), "{words}");
        }
        assert_eq!(received[0]["error"]["code"], -32010);
        let ids: Vec<String> = received.iter().map(|it| text(&it["id"])).collect();
        assert_eq!(ids[..2], ["1", "3"]);
        assert_eq!(ids.len(), 2, "{received:?}");
        client.call_tool("x", "7");
        harness.come_back().await;
        let sent = harness.sent();
        let what = sent.iter().map(|it| {
            let params = &it["params"];
            text(if params["uri"].is_null() { &params["arguments"] } else { &params["uri"] })
        });
        assert_eq!(what.collect::<Vec<_>>(), ["2", "4", "a://b", "7"]);
        assert_eq!(harness.counts(), (3, 2));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn seen_call_is_retried_once_and_unread_call_without_limit() {
    run_local(async {
        let mut harness = Harness::known().await;
        let client = harness.client(&json!({}));
        client.call_tool("read", "seen");
        client.call_tool("x", "unread");
        client.call_tool("read", "first unread, then seen");
        for round in 0..3 {
            assert_eq!(harness.calls().len(), 3, "{round}");
            harness.sent.unread_from.set(Some(u64::from(round == 0)));
            harness.die();
            assert!(client.received().is_empty(), "{round}");
            harness.come_back().await;
            harness.router.learn(&harness.server, &harness.upstream, known());
        }
        assert_eq!(harness.calls().len(), 3);
        harness.sent.unread_from.set(Some(1));
        harness.die();
        let words = client.error();
        assert!(words.contains("it had been sent again once already"), "{words}");
        harness.come_back().await;
        let calls = harness.calls();
        assert_eq!(calls.len(), 2);
        harness.answer(calls[0].0);
        assert_eq!(client.received()[0]["id"], "unread");
        harness.die();
        assert!(client.received().is_empty(), "it was seen for the first time");
        harness.come_back().await;
        harness.answer(harness.calls()[0].0);
        assert_eq!(client.received()[0]["id"], "first unread, then seen");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn partly_read_call_counts_as_seen() {
    run_local(async {
        let harness = Harness::known().await;
        let client = harness.client(&json!({}));
        client.call_tool("x", "1");
        client.call_tool("x", "2");
        harness.sent();
        harness.sent.unread_from.set(Some(1)); // From within the first call.
        harness.die();
        assert_eq!(client.outcomes(), [unknown("1")]);
        assert_eq!(harness.server.waiting(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_calls_in_the_queue_are_not_sent() {
    run_local(async {
        let mut harness = Harness::known().await;
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        for (client, id) in [(&a, "a1"), (&a, "a2"), (&b, "b1")] {
            client.call_tool("read", id);
        }
        harness.sent();
        harness.die();
        a.cancel("a1");
        b.client_session.close();
        assert_eq!(harness.server.waiting(), 1);
        harness.come_back().await;
        let calls = harness.calls();
        assert_eq!(calls.iter().map(|it| it.1.as_str()).collect::<Vec<_>>(), ["a2"]);
        // A call that was sent again is cancelled like any other.
        a.cancel("a2");
        let sent = harness.sent();
        assert_eq!(sent[0]["params"]["requestId"], calls[0].0);
        harness.die();
        advance_time(60 * SECOND).await;
        assert!(a.received().is_empty() && b.received().is_empty());
        assert_eq!(harness.counts(), (1, 0));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn calls_cancelled_before_the_death_are_not_retried() {
    run_local(async {
        let mut harness = Harness::known().await;
        let client = harness.client(&json!({}));
        client.call_tool("read", "1");
        client.call_tool("x", "2");
        harness.sent();
        client.cancel("1");
        client.cancel("2");
        harness.die();
        harness.come_back().await;
        assert_eq!(harness.names(), [""; 0]);
        assert!(client.received().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn retry_history_survives_input_rounds() {
    run_local(async {
        let introduction = Introduction::discovered(MODERN).unwrap();
        let park = ParkSettings::default();
        let mut harness = Harness::with_queue(park, NO_RULES, false, &introduction).await;
        harness.router.learn(
            &harness.server,
            &harness.upstream,
            known_of("s", introduction.clone()),
        );
        let client = harness.client(&json!({ "roots": {} }));
        client.call_tool("read", "1");
        harness.sent();
        harness.die();
        harness.come_back_as(&introduction).await;
        let (upstream_id, _) = harness.calls()[0];
        let input_requests = json!({ "q": { "method": "roots/list" } });
        let result = json!({ "resultType": "input_required", "inputRequests": input_requests });
        harness.send(&json!({ "jsonrpc": "2.0", "id": upstream_id, "result": result }));
        let question = client.received()[0]["id"].clone();
        client.send(&json!({ "jsonrpc": "2.0", "id": question, "result": { "roots": [] } }));
        // This process ends before it has seen the next round, and has no successor.
        harness.die();
        assert_eq!(harness.server.waiting(), 1);
        harness.give_up("it crashes");
        assert_eq!(client.outcomes(), [unknown("1")], "the first may have done it");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn progress_reaches_the_client_after_a_retry() {
    run_local(async {
        let mut harness = Harness::known().await;
        let client = harness.client(&json!({}));
        client.call_tool("x", "before");
        let (before, _) = harness.calls()[0];
        harness.answer(before);
        client.call_tool("read", "mine");
        harness.sent();
        client.received();
        harness.die();
        harness.come_back().await;
        let (upstream_id, _) = harness.calls()[0];
        let params = json!({ "progressToken": upstream_id, "progress": 1 });
        harness.send(
            &json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }),
        );
        harness.answer(upstream_id);
        let received = client.received();
        assert_eq!(received[0]["params"]["progressToken"], "token of mine");
        assert_eq!((&received[1]["id"], received.len()), (&json!("mine"), 2));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_that_requested_input_is_not_retried() {
    run_local(async {
        let mut harness = Harness::known().await;
        let (a, b) = (harness.client(&json!({ "roots": {} })), harness.client(&json!({})));
        a.call_tool("read", "asked");
        harness.ask("q", "roots/list");
        let question = a.received().remove(0);
        assert_eq!(question["method"], "roots/list");
        a.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "roots": [] } }));
        b.call_tool("read", "b"); // Waits for its turn.
        harness.sent();
        harness.die();
        let received = a.received();
        let words = received[0]["error"]["message"].as_str().unwrap();
        assert!(
            words.contains("the server had sent its client a request during the call"),
            "{words}"
        );
        assert_eq!((text(&received[0]["id"]).as_str(), received.len()), ("asked", 1));
        harness.come_back().await;
        assert_eq!(harness.names(), ["b"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn outcome_is_unknown_if_the_tool_is_gone() {
    run_local(async {
        let mut harness = Harness::known().await;
        let client = harness.client(&json!({}));
        client.call_tool("set", "1");
        harness.sent();
        harness.die();
        assert!(client.received().is_empty());
        let without = ServerCatalog::new("s", legacy(), Lists::default());
        harness.router.learn(&harness.server, &harness.upstream, without);
        harness.come_back().await;
        assert_eq!(client.outcomes(), [unknown("1")]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn clients_with_exclusive_access_keep_their_order() {
    run_local(async {
        let mut harness = Harness::known().await;
        harness.ask("first", "roots/list");
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        a.call_tool("read", "a1");
        b.call_tool("x", "b1");
        a.call_tool("read", "a2");
        assert_eq!(harness.names(), ["a1"]);
        harness.die();
        b.call_tool("x", "b2");
        harness.come_back().await;
        let calls = harness.calls();
        let names: Vec<&str> = calls.iter().map(|it| it.1.as_str()).collect();
        assert_eq!(names, ["a1", "a2"], "its turn was not over");
        for (upstream_id, _) in &calls {
            harness.answer(*upstream_id);
        }
        assert_eq!(harness.names(), ["b1", "b2"]);
        assert_eq!(a.received().len(), 2);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn started_tasks_are_not_retried() {
    run_local(async {
        let mut harness = Harness::known().await;
        let client = harness.client(&json!({}));
        let begin = |id: &str| {
            let params = json!({ "name": "s__read", "arguments": id, "task": { "ttl": 1000 } });
            client.ask(&json!(id), "tools/call", &params);
        };
        begin("seen");
        harness.sent();
        begin("unseen");
        harness.die();
        let words = client.error();
        assert!(words.contains("tasks are not begun again"), "{words}");
        harness.come_back().await;
        assert_eq!(harness.names(), ["unseen"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn timeout_counts_from_the_first_attempt() {
    run_local(async {
        let mut harness = Harness::known_with_queue(ParkSettings::default(), WITHIN).await;
        let client = harness.client(&json!({}));
        client.call_tool("read", "1");
        harness.sent();
        advance_time(6 * SECOND).await;
        harness.die();
        advance_time(2 * SECOND).await;
        harness.come_back().await;
        assert_eq!(harness.names(), ["1"]);
        advance_time(SECOND).await;
        assert!(client.received().is_empty());
        advance_time(2 * SECOND).await;
        assert!(client.error().contains("longer than 10s"));
        // The timeout also runs while the call waits.
        client.call_tool("read", "2");
        harness.sent();
        advance_time(6 * SECOND).await;
        harness.die();
        advance_time(3 * SECOND).await;
        assert!(client.received().is_empty());
        advance_time(2 * SECOND).await;
        assert_eq!(client.outcomes(), [unknown("2")]);
        assert_eq!(harness.server.waiting(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn idempotency_counts_only_if_a_running_server_reported_it() {
    run_local(async {
        let mut harness = Harness::begin().await;
        // Remembered from an earlier daemon.
        *harness.server.known.borrow_mut() = Some(Rc::new(known()));
        let client = harness.client(&json!({}));
        client.call_tool("read", "1");
        harness.sent();
        harness.die();
        assert_eq!(client.outcomes(), [unknown("1")]);
        harness.come_back().await;
        harness.router.learn(&harness.server, &harness.upstream, known());
        harness.die();
        harness.come_back().await;
        // This process has not reported its tools yet; its predecessor of the same program did.
        client.call_tool("read", "2");
        harness.sent();
        harness.die();
        assert!(client.received().is_empty());
        harness.come_back().await;
        harness.answer(harness.calls()[0].0);
        assert_eq!(client.received()[0]["id"], "2");
        let mut other = settings(NO_RULES);
        if let ServerKind::Process(process) = &mut other.kind {
            process.command = "another".to_owned();
        }
        harness.server.configure(Arc::new(other));
        harness.die();
        harness.come_back().await;
        client.call_tool("read", "3");
        harness.sent();
        harness.die();
        assert_eq!(client.outcomes(), [unknown("3")], "another program has reported nothing");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_lost_by_a_running_server_is_retried_later() {
    run_local(async {
        let harness = Harness::known().await;
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        a.call_tool("read", "1");
        a.call_tool("x", "2");
        let calls = harness.calls();
        harness.upstream.lose(
            calls[0].0,
            Delivery::Written,
            LossReason::Report("it broke".to_owned()),
            false,
        );
        harness.upstream.lose(
            calls[1].0,
            Delivery::Written,
            LossReason::Report("it broke".to_owned()),
            false,
        );
        assert_eq!(a.outcomes(), [unknown("2")]);
        a.call_tool("x", "3");
        b.call_tool("x", "4");
        assert_eq!(harness.names(), ["4"], "calls of one client keep their order");
        advance_time(SECOND).await;
        let calls = harness.calls();
        assert_eq!(calls.iter().map(|it| it.1.as_str()).collect::<Vec<_>>(), ["1", "3"]);
        harness.upstream.lose(
            calls[0].0,
            Delivery::Written,
            LossReason::Report("it broke".to_owned()),
            false,
        );
        assert_eq!(a.outcomes(), [unknown("1")]);
        // A call that would fail in the same way is not sent again.
        a.call_tool("read", "5");
        let (upstream_id, _) = harness.calls()[0];
        harness.upstream.lose(
            upstream_id,
            Delivery::Written,
            LossReason::Report("it answered 500".to_owned()),
            true,
        );
        assert_eq!(a.outcomes(), [unknown("5")]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn unwritten_calls_keep_their_order() {
    run_local(async {
        let mut harness = Harness::known().await;
        let client = harness.client(&json!({}));
        for id in ["1", "2", "3"] {
            client.call_tool("x", id);
        }
        let calls = harness.calls();
        harness.upstream.reset();
        client.call_tool("x", "4");
        for at in [1, 2, 0] {
            harness.upstream.lose(
                calls[at].0,
                Delivery::Unwritten,
                LossReason::Report("refused".to_owned()),
                false,
            );
        }
        harness.die();
        harness.come_back().await;
        assert_eq!(harness.names(), ["1", "2", "3", "4"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_of_a_modern_client_is_retried() {
    run_local(async {
        let mut harness = Harness::known().await;
        let entry = Entry {
            view: View::Profile("default".to_owned()),
            may_manage: false,
            lifetime: Lifetime::Request,
            principal: 1,
            bound: None,
        };
        let received = Rc::new(RecordedMessages::default());
        let client_session = harness.router.open(entry, received.clone()).unwrap();
        let client = TestClient { client_session, received };
        let meta = json!({
            xy_mcp::modern::VERSION: "2026-07-28",
            xy_mcp::modern::CAPABILITIES: {},
            "progressToken": "p"
        });
        let params = json!({ "name": "s__read", "arguments": "1", "_meta": meta });
        client.ask(&json!(1), "tools/call", &params);
        harness.sent();
        harness.die();
        harness.come_back().await;
        let calls = harness.sent();
        assert_eq!(calls[0]["params"]["_meta"], json!({ "progressToken": calls[0]["id"] }));
        harness.answer(calls[0]["id"].as_u64().unwrap());
        let received = client.received();
        assert_eq!(received[0]["id"], 1);
        assert_eq!(received[0]["result"]["resultType"], "complete", "{received:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn list_at_a_single_server_endpoint_is_retried() {
    run_local(async {
        let mut harness = Harness::known().await;
        let entry = Entry {
            view: View::Server("s".to_owned()),
            may_manage: false,
            lifetime: Lifetime::Session,
            principal: 0,
            bound: None,
        };
        let received = Rc::new(RecordedMessages::default());
        let client_session = harness.router.open(entry, received.clone()).unwrap();
        let client = TestClient { client_session, received };
        let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
        client.ask(&json!("hello"), "initialize", &hello);
        client.received();
        client.ask(&json!(1), "tools/list", &json!({}));
        client.ask(&json!(2), "tools/call", &json!({ "name": "read", "arguments": "2" }));
        client.ask(&json!(3), "vendor/thing", &json!({}));
        harness.sent();
        harness.die();
        // The known list answers `tools/list`. The outcome of the unknown method is unknown.
        let received = client.received();
        assert_eq!((&received[0]["id"], received.len()), (&json!(3), 1), "{received:?}");
        harness.come_back().await;
        let sent = harness.sent();
        let methods: Vec<String> = sent.iter().map(|it| text(&it["method"])).collect();
        assert_eq!(methods, ["tools/list", "tools/call"]);
    })
    .await;
}
