//! Each limit that refuses a client is recorded, with the client's token.

use xy_mcp::modern;

use super::shares::{client, limits_hit};
use super::*;

/// Returns the params of a modern client's listen request.
pub(super) fn listen_params(notifications: &Value) -> Value {
    let meta = json!({ modern::VERSION: "2026-07-28", modern::CAPABILITIES: {} });
    json!({ "notifications": notifications, "_meta": meta })
}

#[tokio::test(start_paused = true)]
async fn too_many_open_requests_are_recorded() {
    run_local(async {
        let harness = Harness::begin().await;
        let client = client(&harness.router, 70);
        let params = json!({ "name": "s__x", "arguments": {} });
        for call in 0..1000 {
            client.ask(&json!(call), "tools/call", &params);
        }
        assert_eq!((harness.sent().len(), limits_hit(&harness.router)), (1000, Vec::new()));
        client.ask(&json!("more"), "tools/call", &params);
        assert_eq!(limits_hit(&harness.router), [("open requests of one client", Some(70))]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_to_a_server_that_does_not_read_is_recorded() {
    run_local(async {
        let harness = Harness::begin().await;
        let client = client(&harness.router, 70);
        harness.sent.waiting.set(65 << 20);
        client.call("a");
        assert!(client.error().contains("cannot take more calls"));
        assert_eq!(limits_hit(&harness.router), [("bytes that one server has not read", Some(70))]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn unanswered_call_without_room_in_the_queue_is_recorded() {
    run_local(async {
        let park = ParkSettings { calls: 1, ..ParkSettings::default() };
        let harness = Harness::with_queue(park, CallRules::default(), false, &legacy()).await;
        let client = client(&harness.router, 70);
        client.call("a");
        client.call("b");
        let why = LossReason::server("has ended");
        harness.upstream.close(&Cause::end(why.clone()));
        harness.router.on_instance_end(&harness.server, &harness.upstream, &why);
        assert!(client.error().contains("too many calls wait"));
        assert_eq!(limits_hit(&harness.router), [("calls that wait for a server", Some(70))]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn too_many_subscriptions_are_recorded() {
    run_local(async {
        let harness = Harness::begin().await;
        let client = client(&harness.router, 70);
        let params = listen_params(&json!({ "toolsListChanged": true }));
        for listen in 0..100 {
            client.ask(&json!(listen), "subscriptions/listen", &params);
        }
        assert_eq!(client.received().len(), 100);
        client.ask(&json!("more"), "subscriptions/listen", &params);
        assert!(client.error().starts_with("too many subscriptions"));
        assert_eq!(limits_hit(&harness.router), [("subscriptions of one client", Some(70))]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn too_many_subscribed_resources_are_recorded() {
    run_local(async {
        let harness = Harness::begin().await;
        let client = client(&harness.router, 0); // One without a share.
        let listen = |id: u64, uris: &[String]| {
            let params = listen_params(&json!({ "resourceSubscriptions": uris }));
            client.ask(&json!(id), "subscriptions/listen", &params);
        };
        for part in 0..10 {
            let uris: Vec<String> =
                (0..1000).map(|number| format!("xy://s/test://{part}/{number}")).collect();
            listen(part, &uris);
        }
        assert_eq!(limits_hit(&harness.router), []);
        listen(10, &["xy://s/test://more".to_owned()]);
        assert_eq!(limits_hit(&harness.router), [("subscribed resources", Some(0))]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn too_many_server_requests_are_recorded() {
    run_local(async {
        let harness = Harness::begin().await;
        let client = harness.client(&json!({ "roots": {} }));
        client.call("a");
        for number in 0..100 {
            harness.ask(&format!("q{number}"), "roots/list");
        }
        assert_eq!((client.received().len(), limits_hit(&harness.router)), (100, Vec::new()));
        harness.ask("more", "roots/list");
        let limit = ("open server requests of one client", Some(0));
        assert_eq!(limits_hit(&harness.router), [limit]);
    })
    .await;
}
