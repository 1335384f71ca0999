//! One token gets its share of each limit, and leaves the rest to other tokens.

use xy_upstream::fault::{Cause, LossReason};

use super::queue::{MODERN, NO_RULES};
use super::*;

/// Calls tool `x` of a server, with an argument of so many bytes.
fn call_with(client: &TestClient, id: u64, server: &str, bytes: usize) {
    let arguments = json!({ "text": "x".repeat(bytes) });
    let params = json!({ "name": format!("{server}__x"), "arguments": arguments });
    client.ask(&json!(id), "tools/call", &params);
}

/// Connects a client with this token.
pub(super) fn client(router: &Rc<Router>, who: u64) -> TestClient {
    let view = View::Profile("default".to_owned());
    let entry =
        Entry { view, may_manage: false, lifetime: Lifetime::Session, principal: who, bound: None };
    let received = Rc::new(RecordedMessages::default());
    let client_session = router.open(entry, received.clone()).unwrap();
    let client = TestClient { client_session, received };
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
    client.ask(&json!("hello"), "initialize", &params);
    client.received();
    client
}

/// Returns the limits that were hit, and by which token.
pub(super) fn limits_hit(router: &Router) -> Vec<(&'static str, Option<u64>)> {
    let hits = router.limit_hits(tokio::time::Instant::now());
    hits.into_iter().map(|hit| (hit.limit, hit.token)).collect()
}

#[tokio::test(start_paused = true)]
async fn one_token_leaves_open_calls_for_others() {
    run_local(async {
        let harness = Harness::begin().await;
        let clients: Vec<TestClient> = (0..9).map(|_| client(&harness.router, 70)).collect();
        // 7,500 of 10,000, at most 1,000 of one client.
        for call in 0..7_500 {
            let params = json!({ "name": "s__x", "arguments": {} });
            clients[call / 900].ask(&json!(call), "tools/call", &params);
        }
        assert_eq!(harness.sent().len(), 7_500);
        assert_eq!(limits_hit(&harness.router), []);
        let params = json!({ "name": "s__x", "arguments": {} });
        clients[0].ask(&json!("more"), "tools/call", &params);
        assert!(clients[0].error().contains("takes no more calls of this token"));
        assert_eq!(limits_hit(&harness.router), [("open calls with one server", Some(70))]);
        for who in [71, 0] {
            let other = client(&harness.router, who);
            other.ask(&json!(1), "tools/call", &params);
            assert_eq!(harness.sent().len(), 1, "{who}");
        }
        // A finished call makes room.
        harness.answer(1);
        clients[0].received();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn shares_are_counted_per_server() {
    run_local(async {
        let harness = Harness::begin().await;
        let name = ServerName::new("t").unwrap();
        let settings = ServerSettings { name, ..settings(CallRules::default()) };
        let (other, sent) =
            (harness.router.ensure_server(&Arc::new(settings)), Rc::new(RecordedWire::default()));
        let (events, _received) = mpsc::channel(64);
        let _upstream =
            start_upstream(&harness.router, &other, events, sent.clone(), false, &legacy()).await;
        sent.messages.take();
        let clients: Vec<TestClient> = (0..9).map(|_| client(&harness.router, 70)).collect();
        for call in 0..7_500 {
            let params = json!({ "name": "s__x", "arguments": {} });
            clients[call / 900].ask(&json!(call), "tools/call", &params);
        }
        // The token has its whole share at `s`, and calls of others fill a part of `t`.
        let others: Vec<TestClient> = (0..9).map(|_| client(&harness.router, 0)).collect();
        for call in 0..8_000 {
            let params = json!({ "name": "t__x", "arguments": {} });
            others[call / 900].ask(&json!(call), "tools/call", &params);
        }
        assert_eq!(sent.messages.take().len(), 8_000);
        clients[0].ask(&json!("more"), "tools/call", &json!({ "name": "t__x" }));
        assert_eq!(clients[0].received(), Vec::<Value>::new());
        assert_eq!(sent.messages.take().len(), 1);
        assert_eq!(limits_hit(&harness.router), []);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_token_leaves_queue_places_for_others() {
    run_local(async {
        let park = ParkSettings { calls: 8, ..ParkSettings::default() };
        let mut harness = Harness::with_queue(park, CallRules::default(), false, &legacy()).await;
        let (greedy, other) = (client(&harness.router, 70), client(&harness.router, 71));
        harness.upstream.close(&Cause::end(LossReason::server("has ended")));
        harness.router.on_instance_end(
            &harness.server,
            &harness.upstream,
            &LossReason::server("has ended"),
        );
        let params = json!({ "name": "s__x", "arguments": {} });
        for call in 0..6 {
            greedy.ask(&json!(call), "tools/call", &params);
        }
        assert_eq!(greedy.received(), Vec::<Value>::new());
        greedy.ask(&json!("more"), "tools/call", &params);
        assert!(greedy.error().contains("too many calls of this token wait"));
        assert_eq!(limits_hit(&harness.router), [("calls that wait for a server", Some(70))]);
        other.ask(&json!(1), "tools/call", &params);
        assert_eq!(other.received(), Vec::<Value>::new(), "it waits");
        harness.restart().await;
        assert_eq!(harness.sent().len(), 7);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_token_leaves_instances_for_others() {
    run_local(async {
        let router = empty(Arc::new(NoDaemon), ParkSettings::default());
        router.set_instances_max(4);
        let settings = settings(CallRules::default());
        router
            .ensure_server(&Arc::new(ServerSettings { isolation: Isolation::Client, ..settings }));
        let params = json!({ "name": "s__x", "arguments": {} });
        let call = |client: &TestClient| client.ask(&json!(1), "tools/call", &params);
        let clients: Vec<TestClient> = (0..4).map(|_| client(&router, 70)).collect();
        clients.iter().for_each(call);
        advance(SECOND).await;
        assert!(
            clients[..3].iter().all(|it| it.received().is_empty()),
            "they wait for their own instances"
        );
        assert!(clients[3].error().contains("no room for another instance of `s`"));
        assert_eq!(limits_hit(&router), [("instances", Some(70))]);
        let other = client(&router, 71);
        call(&other);
        advance(SECOND).await;
        assert!(other.received().is_empty(), "it waits for its own");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_token_leaves_queued_bytes_and_places_for_others() {
    let default = ParkSettings::default();
    for (park, limit) in [
        (ParkSettings { bytes: 4000, ..default }, "bytes"),
        (ParkSettings { total_bytes: 4000, ..default }, "total-bytes"),
        (ParkSettings { total_calls: 8, ..default }, "total-calls"),
    ] {
        run_local(async {
            let harness = Harness::known_with_queue(park, NO_RULES).await;
            harness.die();
            let name = ServerName::new("t").unwrap();
            let settings = ServerSettings { name, ..settings(NO_RULES) };
            harness.router.ensure_server(&Arc::new(settings));
            let (greedy, other) = (client(&harness.router, 70), client(&harness.router, 71));
            let server_of =
                |call: u64| if limit == "bytes" || call.is_multiple_of(2) { "s" } else { "t" };
            for call in 0..6 {
                call_with(&greedy, call, server_of(call), 380);
            }
            assert_eq!(greedy.received(), Vec::<Value>::new(), "{limit}");
            call_with(&greedy, 7, "s", 380);
            let error = greedy.error();
            assert!(error.contains("too many calls of this token wait"), "{error}");
            assert!(error.contains(&format!("(`park {{ {limit} }}`)")), "{error}");
            let hits = limits_hit(&harness.router);
            assert_eq!(hits, [("calls that wait for a server", Some(70))]);
            for server in ["s", "t"] {
                call_with(&other, 1, server, 200);
                assert_eq!(other.received(), Vec::<Value>::new(), "{limit}: it waits");
            }
            greedy.client_session.close();
            let again = client(&harness.router, 70);
            call_with(&again, 1, "s", 380);
            assert_eq!(again.received(), Vec::<Value>::new(), "{limit}: there is room again");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn lost_calls_of_one_token_leave_queue_places_for_others() {
    run_local(async {
        let park = ParkSettings { calls: 8, ..ParkSettings::default() };
        let harness = Harness::known_with_queue(park, NO_RULES).await;
        let (greedy, other) = (client(&harness.router, 70), client(&harness.router, 71));
        for call in 0..8 {
            greedy.call_tool("read", &call.to_string());
        }
        harness.die();
        assert_eq!((harness.server.waiting(), greedy.received().len()), (6, 2));
        assert_eq!(limits_hit(&harness.router), [("calls that wait for a server", Some(70))]);
        other.call_tool("read", "1");
        assert_eq!(other.received(), Vec::<Value>::new(), "it waits");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_token_leaves_bytes_of_request_copies_for_others() {
    run_local(async {
        let park = ParkSettings { held_bytes: 4000, ..ParkSettings::default() };
        let introduction = Introduction::discovered(MODERN).unwrap();
        let harness = Harness::with_queue(park, NO_RULES, false, &introduction).await;
        let (greedy, other) = (client(&harness.router, 70), client(&harness.router, 71));
        for call in 0..4 {
            call_with(&greedy, call, "s", 600);
        }
        assert_eq!(limits_hit(&harness.router), []);
        call_with(&greedy, 5, "s", 600);
        let error = greedy.error();
        assert!(error.starts_with("too many requests are open at servers"), "{error}");
        assert!(error.contains("of this token"), "{error}");
        let limit = "bytes of calls that wait for input of their clients";
        assert_eq!(limits_hit(&harness.router), [(limit, Some(70))]);
        call_with(&other, 1, "s", 600);
        assert_eq!((other.received(), harness.sent().len()), (Vec::new(), 5));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_token_leaves_subscribed_resources_for_others() {
    run_local(async {
        let harness = Harness::begin().await;
        let (greedy, other) = (client(&harness.router, 70), client(&harness.router, 71));
        let hits = |client: &TestClient, id: u64, numbers: std::ops::Range<u64>| {
            let uris: Vec<String> =
                numbers.map(|number| format!("xy://s/test://{id}/{number}")).collect();
            let params = limits::listen_params(&json!({ "resourceSubscriptions": uris }));
            client.ask(&json!(id), "subscriptions/listen", &params);
            limits_hit(&harness.router)
        };
        for part in 0..7 {
            hits(&greedy, part, 0..1000);
        }
        assert_eq!(hits(&greedy, 7, 0..500), []);
        let limit = [("subscribed resources", Some(70))];
        assert_eq!(hits(&greedy, 8, 0..1), limit);
        assert_eq!(hits(&other, 9, 0..1000), limit, "no other limit is hit");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_token_leaves_unread_bytes_for_others() {
    run_local(async {
        let harness = Harness::begin().await;
        let (greedy, other) = (client(&harness.router, 70), client(&harness.router, 71));
        call_with(&greedy, 1, "s", 900);
        // All others have sent nearly as much as the server may leave unread.
        harness.sent.waiting.set((64 << 20) - 500);
        call_with(&greedy, 2, "s", 100);
        let error = greedy.error();
        assert!(error.contains("`s` takes no more calls of this token"), "{error}");
        let limit = [("bytes that one server has not read", Some(70))];
        assert_eq!(limits_hit(&harness.router), limit);
        for who in [&other, &client(&harness.router, 0)] {
            call_with(who, 1, "s", 100);
        }
        assert_eq!(harness.sent().len(), 3);
        // The server has read the first call.
        call_with(&greedy, 3, "s", 100);
        assert_eq!((greedy.received(), harness.sent().len()), (Vec::new(), 1));
        // Cancelled calls count until they are written.
        call_with(&greedy, 4, "s", 900);
        greedy.send(&json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 4 }
        }));
        call_with(&greedy, 5, "s", 100);
        assert!(greedy.error().contains("takes no more calls of this token"));
    })
    .await;
}
