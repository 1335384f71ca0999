//! Modern clients, which send no handshake, and clients that probe for the era.

use serde_json::{Value, json};

use crate::fixtures::{BridgeConnection, Client, FakeDaemon, home, json, result};

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// Returns a request with the modern `_meta`.
fn modern_request(id: &Value, method: &str, mut params: Value) -> String {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

fn listen(id: &Value, filter: &Value) -> String {
    modern_request(id, "subscriptions/listen", json!({ "notifications": filter }))
}

/// Returns a notification of the subscription with this id.
fn notification(id: &Value, method: &str, mut params: Value) -> Value {
    params["_meta"] = json!({ SUBSCRIPTION: id });
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

fn acknowledged(id: &Value, filter: &Value) -> Value {
    notification(id, "notifications/subscriptions/acknowledged", json!({ "notifications": filter }))
}

/// Sends a line from the client, and asserts that the daemon receives it.
#[track_caller]
fn assert_forwarded(client: &mut Client, bridge: &mut BridgeConnection, line: &str) {
    client.send(line);
    assert_eq!(bridge.receive(), line);
}

#[test]
fn subscription_moves_to_the_next_daemon_with_its_filter() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let mut client = Client::start(&home, &["--no-start"]);
    let mut bridge = daemon.welcome();
    let (id, filter) =
        (json!("l"), json!({ "toolsListChanged": true, "promptsListChanged": true }));
    assert_forwarded(&mut client, &mut bridge, &listen(&id, &filter));
    bridge.send(&acknowledged(&id, &filter).to_string());
    assert_eq!(client.receive_json(), acknowledged(&id, &filter));
    let messages = [
        modern_request(&json!(1), "tools/call", json!({ "name": "x" })),
        modern_request(&json!(2), "server/discover", json!({})),
        modern_request(&json!(3), "resources/read", json!({ "uri": "a:b" })),
        modern_request(&json!(4), "resources/read", json!({ "uri": "a:b", "requestState": "s" })),
    ];
    for line in &messages {
        assert_forwarded(&mut client, &mut bridge, line);
    }
    drop(bridge);
    let assert_unknown = |client: &mut Client, id: u64| {
        let error = client.receive_json();
        assert_eq!((&error["id"], &error["error"]["code"]), (&id.into(), &(-32010).into()));
    };
    assert_unknown(&mut client, 4);

    // The client has not listed its tools: whether `x` may be called twice is asked first.
    let mut bridge = daemon.welcome();
    let list: Value = serde_json::from_str(&bridge.receive()).unwrap();
    assert_eq!(list["method"], "tools/list");
    bridge.send(
        &json!({ "jsonrpc": "2.0", "id": list["id"], "result": { "tools": [] } }).to_string(),
    );
    assert_unknown(&mut client, 1);
    for line in [&listen(&id, &filter), &messages[1], &messages[2]] {
        assert_eq!(&bridge.receive(), line);
    }
    bridge.send(&acknowledged(&id, &filter).to_string());
    bridge.send(&result("2"));
    for list in ["tools", "prompts"] {
        let method = format!("notifications/{list}/list_changed");
        assert_eq!(client.receive_json(), notification(&id, &method, json!({})));
    }
    assert_eq!(client.receive(), result("2"), "and nothing between");
    client.kill();
    drop(daemon);
    home.finish();
}

#[test]
fn leaving_client_cancels_its_subscriptions() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let mut client = Client::start(&home, &["--no-start"]);
    let mut bridge = daemon.welcome();
    assert_forwarded(&mut client, &mut bridge, &listen(&json!(1), &json!({})));
    client.send_raw(listen(&json!("two"), &json!({})).as_bytes()); // Without a line end.
    drop(client.take_stdin());
    assert_eq!(bridge.receive(), listen(&json!("two"), &json!({})));
    for id in [json!(1), json!("two")] {
        let cancelled = json(&bridge.receive());
        assert_eq!(cancelled["method"], "notifications/cancelled");
        assert_eq!(cancelled["params"]["requestId"], id);
    }
    assert_eq!(bridge.receive(), "", "the daemon knows that the client has left");
    drop(bridge);
    let (status, rest, stderr) = client.wait_exit();
    assert_eq!((status.code(), &rest[..], stderr.as_str()), (Some(0), &b""[..], ""));
    drop(daemon);
    home.finish();
}

#[test]
fn subscription_fails_if_no_successor_comes() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let mut client = Client::start(&home, &["--no-start", "--within", "700ms"]);
    let mut bridge = daemon.welcome();
    assert_forwarded(
        &mut client,
        &mut bridge,
        &listen(&json!(1), &json!({ "toolsListChanged": true })),
    );
    drop((daemon, bridge));
    let answer = client.receive_json();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&1.into(), &(-32005).into()));
    let (status, rest, _) = client.wait_exit();
    assert_eq!((status.code(), &rest[..]), (Some(2), &b""[..]));
    home.finish();
}

#[test]
fn probing_client_finds_its_era_and_subscribes_across_daemons() {
    let home = home();
    home.server("s", &home.kdl_mcp(&[]));
    let daemon = home.daemon();
    home.wait_for_state("s", "running");
    let discover = modern_request(&json!(0), "server/discover", json!({}));
    let mut probe = Client::start(&home, &[]);
    probe.send(&discover);
    let versions = probe.receive_json()["result"]["supportedVersions"].clone();
    assert!(versions.as_array().unwrap().contains(&json!("2026-07-28")), "{versions}");
    drop(probe.take_stdin());
    assert_eq!(probe.wait_exit().0.code(), Some(0));

    let mut client = Client::start(&home, &["--no-start"]);
    let (id, filter) = (json!(7), json!({ "toolsListChanged": true }));
    client.send(&listen(&id, &filter));
    assert_eq!(client.receive_json(), acknowledged(&id, &filter));
    assert_eq!(home.xy(&["shutdown"]).code, 0);
    assert!(daemon.wait().success());
    home.daemon();
    home.wait_for_state("s", "running");
    let changed = notification(&id, "notifications/tools/list_changed", json!({}));
    assert_eq!(client.receive_json(), changed, "it may have missed something");
    let call = json!({ "name": "s__add_tool", "arguments": { "name": "new" } });
    client.send(&modern_request(&json!(8), "tools/call", call));
    let (mut is_notified, mut is_answered) = (false, false);
    while !(is_notified && is_answered) {
        let received = client.receive_json();
        is_notified |= received == changed;
        is_answered |= received["id"] == 8 && received["result"].is_object();
        assert!(received == changed || received["id"] == 8, "{received}");
    }
    drop(client.take_stdin());
    assert_eq!(client.wait_exit().0.code(), Some(0));
    home.finish();
}
