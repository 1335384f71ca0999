//! The endpoint of one server: clients receive what the server itself would send.

use xy_mcp::era::Era;

use super::*;
use crate::manifest::{Lists, ServerCatalog, Traits};
use crate::upstream_session::learn_lists;

const CHANGED: &str = "notifications/tools/list_changed";

/// Returns the introduction of a server with an older revision and without logging.
fn old() -> Introduction {
    let introduction_json = r#"{"protocolVersion":"2025-03-26","capabilities":{"tools":{}}}"#;
    Introduction::read(introduction_json).unwrap()
}

fn modern() -> Introduction {
    let discover_json = r#"{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}"#;
    Introduction::discovered(discover_json).unwrap()
}

async fn play_with(introduction: &Introduction) -> Harness {
    Harness::with_introduction(CallRules::default(), false, introduction).await
}

/// Opens a client at the endpoint of `s`, and returns it with the response to its `initialize`.
fn connect(harness: &Harness, version: &str) -> (TestClient, Value) {
    let client = begin(&harness.router, version);
    let answer = client.received().remove(0);
    (client, answer)
}

/// Opens a client at the endpoint of `s`, which sends `initialize`.
fn begin(router: &Rc<Router>, version: &str) -> TestClient {
    let view = View::Server("s".to_owned());
    let entry =
        Entry { view, may_manage: false, lifetime: Lifetime::Session, principal: 0, bound: None };
    let received = Rc::new(RecordedMessages::default());
    let client_session = router.open(entry, received.clone()).unwrap();
    let client = TestClient { client_session, received };
    let params = json!({ "protocolVersion": version, "capabilities": {} });
    client.ask(&json!("hello"), "initialize", &params);
    client
}

#[tokio::test(start_paused = true)]
async fn server_without_logging_has_no_log_level() {
    run_local(async {
        let params = json!({ "level": "error" });
        for introduction in [old(), modern(), legacy()] {
            let harness = play_with(&introduction).await;
            let (one, _) = connect(&harness, "2025-11-25");
            let all = harness.client(&json!({}));
            one.ask(&json!(1), "logging/setLevel", &params);
            let sent = harness.sent();
            let sent = sent.iter().find(|it| it["method"] == "logging/setLevel");
            match (introduction.era(), introduction.abilities.logging) {
                (Era::Legacy, false) => {
                    // A living server refuses it in its own words.
                    let error = json!({ "code": -32601, "message": "not this", "data": [1] });
                    let id = &sent.expect("the server gets it")["id"];
                    harness.send(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
                    assert_eq!(one.received()[0]["error"], error);
                }
                (Era::Modern, _) => {
                    assert_eq!(sent, None);
                    assert_eq!(one.received()[0]["error"]["code"], -32601);
                }
                (Era::Legacy, true) => assert!(one.received()[0]["error"].is_null()),
            }
            all.ask(&json!(1), "logging/setLevel", &params);
            assert!(all.received()[0]["error"].is_null(), "xy itself has a level");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn single_server_endpoint_negotiates_the_servers_revision() {
    run_local(async {
        for (introduction, requested, version) in [
            (old(), "2025-11-25", "2025-03-26"),
            (old(), "2025-03-26", "2025-03-26"),
            (old(), "2024-11-05", "2024-11-05"),
            (old(), "2099-01-01", "2025-03-26"),
            (legacy(), "2025-06-18", "2025-06-18"),
            (legacy(), "2099-01-01", "2025-11-25"),
            (modern(), "2025-06-18", "2025-06-18"),
        ] {
            let harness = play_with(&introduction).await;
            let (client, answer) = connect(&harness, requested);
            let case = format!("{requested} {}", introduction.result);
            assert_eq!(answer["result"]["protocolVersion"], version, "{case}");
            assert_eq!(client.client_session.version(), Some(version), "{case}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn manifest_names_the_revision_of_a_cold_server() {
    run_local(async {
        let folder = tempfile::tempdir().unwrap();
        let manifests = Manifests::in_folder(folder.path().to_owned());
        let own = Arc::new(settings(CallRules::default()));
        let known = ServerCatalog::new("s", old(), Lists::default());
        manifests.remember(&own, &known, Traits::default()).await;
        let router = empty_with(Arc::new(NoDaemon), ParkSettings::default(), manifests);
        router.restore_servers(std::iter::once(&own)).await;
        let client = begin(&router, "2025-11-25");
        let answer = client.received().remove(0); // At once.
        assert_eq!(answer["result"]["protocolVersion"], "2025-03-26");
        assert_eq!(client.client_session.version(), Some("2025-03-26"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn initialize_waits_4_s_for_a_cold_server_without_manifest() {
    run_local(async {
        let router = empty(Arc::new(NoDaemon), ParkSettings::default());
        let server = router.ensure_server(&Arc::new(settings(CallRules::default())));
        let client = begin(&router, "2025-06-18");
        advance_time(SECOND * 39 / 10).await;
        assert!(client.received().is_empty());
        advance_time(SECOND / 10).await;
        let answer = client.received().remove(0);
        assert_eq!(answer["result"]["protocolVersion"], "2025-06-18");
        assert_eq!(answer["result"]["serverInfo"], json!({ "name": "s", "version": "unknown" }));

        let client = begin(&router, "2025-11-25");
        advance_time(3 * SECOND).await;
        assert!(client.received().is_empty());
        let (events, _received) = mpsc::channel(64);
        let sent = Rc::new(RecordedWire::default());
        start_upstream(&router, &server, events, sent, false, &old()).await;
        advance_time(SECOND / 100).await;
        let answer = client.received().remove(0);
        assert_eq!(answer["result"]["protocolVersion"], "2025-03-26", "it waits no longer");
    })
    .await;
}

/// Answers `tools/list` requests to the server with one tool of this name.
fn answer_lists(harness: &Harness, tool: &str) {
    for request in harness.sent() {
        if request["method"] == "tools/list" {
            let result = json!({ "tools": [{ "name": tool, "inputSchema": {} }] });
            harness.send(&json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }));
        }
    }
}

/// Waits until a change has been handled, while the server has one tool of this name.
async fn settle(harness: &Harness, tool: &str) {
    for _ in 0..50 {
        tokio::time::sleep(SECOND / 100).await;
        answer_lists(harness, tool);
    }
}

fn changes(client: &TestClient) -> Vec<Value> {
    client.received().into_iter().filter(|it| it["method"] == CHANGED).collect()
}

#[tokio::test(start_paused = true)]
async fn list_change_notifications_are_forwarded_unchanged() {
    run_local(async {
        let harness = play_with(&legacy()).await;
        let introduction = harness.upstream.introduction().unwrap();
        let (router, server) = (harness.router.clone(), harness.server.clone());
        let (settings, upstream) = (server.settings.borrow().clone(), harness.upstream.clone());
        tokio::task::spawn_local(async move {
            learn_lists(&router, &server, &settings, &upstream, &introduction).await;
        });
        settle(&harness, "a").await;
        let (one, _) = connect(&harness, "2025-11-25");
        let (quiet, _) = connect(&harness, "2025-11-25");
        let all = harness.client(&json!({}));
        for client in [&one, &all] {
            client.ask(&json!(1), "tools/list", &json!({}));
        }
        settle(&harness, "a").await;
        changes(&one);
        changes(&all);
        // The server announces a change three times, and its list differs.
        let message_of = |number: u64| {
            let params = json!({ "_meta": { "number": number } });
            json!({ "jsonrpc": "2.0", "method": CHANGED, "params": params })
        };
        (0..3).for_each(|number| harness.send(&message_of(number)));
        // One client asks again before xy does.
        one.ask(&json!(2), "tools/list", &json!({}));
        settle(&harness, "b").await;
        let each = [message_of(0), message_of(1), message_of(2)];
        assert_eq!(changes(&one), each);
        assert_eq!(changes(&quiet), each, "it has never listed the tools");
        let own = json!({ "jsonrpc": "2.0", "method": CHANGED });
        assert_eq!(changes(&all), [own], "changes of all servers are announced once");
        // The server announces a change, and nothing has changed.
        harness.send(&message_of(4));
        settle(&harness, "b").await;
        assert_eq!((changes(&one), changes(&all)), (vec![message_of(4)], vec![]));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn list_that_differs_after_a_restart_is_announced() {
    run_local(async {
        let mut harness = play_with(&legacy()).await;
        let learn = |harness: &Harness| {
            let introduction = harness.upstream.introduction().unwrap();
            let (router, server) = (harness.router.clone(), harness.server.clone());
            let (settings, upstream) = (server.settings.borrow().clone(), harness.upstream.clone());
            tokio::task::spawn_local(async move {
                learn_lists(&router, &server, &settings, &upstream, &introduction).await;
            });
        };
        learn(&harness);
        settle(&harness, "a").await;
        let (one, _) = connect(&harness, "2025-11-25");
        one.ask(&json!(1), "tools/list", &json!({}));
        settle(&harness, "a").await;
        changes(&one);
        harness.restart().await;
        learn(&harness);
        settle(&harness, "b").await;
        assert_eq!(changes(&one).len(), 1);
    })
    .await;
}
