//! Clients of the revision without a handshake, and those that try which one is spoken.

use serde_json::{Value, json};

use crate::stage::{Caller, Client, Door, home, json, result};

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// A request that says of its client what each one has to.
fn asking(id: &Value, method: &str, mut params: Value) -> String {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

fn listen(id: &Value, filter: &Value) -> String {
    asking(id, "subscriptions/listen", json!({ "notifications": filter }))
}

/// What is told to who listens under this id.
fn told(id: &Value, method: &str, mut params: Value) -> Value {
    params["_meta"] = json!({ SUBSCRIPTION: id });
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

fn acknowledged(id: &Value, filter: &Value) -> Value {
    told(id, "notifications/subscriptions/acknowledged", json!({ "notifications": filter }))
}

/// Says a line, which the daemon hears.
#[track_caller]
fn says(client: &mut Client, caller: &mut Caller, line: &str) {
    client.say(line);
    assert_eq!(caller.hear(), line);
}

#[test]
fn a_client_that_listens_hears_of_the_next_daemon_only_what_it_asked_for() {
    let home = home();
    let door = Door::open(&home);
    let mut client = Client::start(&home, &["--no-start"]);
    let mut caller = door.welcome();
    let (id, filter) =
        (json!("l"), json!({ "toolsListChanged": true, "promptsListChanged": true }));
    says(&mut client, &mut caller, &listen(&id, &filter));
    caller.say(&acknowledged(&id, &filter).to_string());
    assert_eq!(client.hear_json(), acknowledged(&id, &filter));
    let sayings = [
        asking(&json!(1), "tools/call", json!({ "name": "x" })),
        asking(&json!(2), "server/discover", json!({})),
        asking(&json!(3), "resources/read", json!({ "uri": "a:b" })),
        asking(&json!(4), "resources/read", json!({ "uri": "a:b", "requestState": "s" })),
    ];
    for line in &sayings {
        says(&mut client, &mut caller, line);
    }
    drop(caller);
    for id in [1, 4] {
        let error = client.hear_json();
        assert_eq!((&error["id"], &error["error"]["code"]), (&id.into(), &(-32010).into()));
    }

    let mut caller = door.welcome();
    for line in [&listen(&id, &filter), &sayings[1], &sayings[2]] {
        assert_eq!(&caller.hear(), line);
    }
    caller.say(&acknowledged(&id, &filter).to_string());
    caller.say(&result("2"));
    for list in ["tools", "prompts"] {
        let method = format!("notifications/{list}/list_changed");
        assert_eq!(client.hear_json(), told(&id, &method, json!({})));
    }
    assert_eq!(client.hear(), result("2"), "and nothing between");
    client.kill();
    drop(door);
    home.finish();
}

#[test]
fn a_client_that_leaves_ends_what_it_listens_to() {
    let home = home();
    let door = Door::open(&home);
    let mut client = Client::start(&home, &["--no-start"]);
    let mut caller = door.welcome();
    says(&mut client, &mut caller, &listen(&json!(1), &json!({})));
    client.say_raw(listen(&json!("two"), &json!({})).as_bytes()); // Without its end.
    drop(client.take_stdin());
    assert_eq!(caller.hear(), listen(&json!("two"), &json!({})));
    for id in [json!(1), json!("two")] {
        let cancelled = json(&caller.hear());
        assert_eq!(cancelled["method"], "notifications/cancelled");
        assert_eq!(cancelled["params"]["requestId"], id);
    }
    assert_eq!(caller.hear(), "", "the daemon knows that the client has left");
    drop(caller);
    let (status, rest, said) = client.ended();
    assert_eq!((status.code(), &rest[..], said.as_str()), (Some(0), &b""[..], ""));
    drop(door);
    home.finish();
}

#[test]
fn a_successor_that_never_comes_ends_what_is_listened_to() {
    let home = home();
    let door = Door::open(&home);
    let mut client = Client::start(&home, &["--no-start", "--within", "700ms"]);
    let mut caller = door.welcome();
    says(&mut client, &mut caller, &listen(&json!(1), &json!({ "toolsListChanged": true })));
    drop((door, caller));
    let answer = client.hear_json();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&1.into(), &(-32005).into()));
    let (status, rest, _) = client.ended();
    assert_eq!((status.code(), &rest[..]), (Some(2), &b""[..]));
    home.finish();
}

#[test]
fn a_client_that_tries_first_finds_its_era_and_listens_across_daemons() {
    let home = home();
    home.server("s", &home.kdl_mcp(&[]));
    let daemon = home.daemon();
    home.wait_for_state("s", "running");
    let discover = asking(&json!(0), "server/discover", json!({}));
    let mut probe = Client::start(&home, &[]);
    probe.say(&discover);
    let versions = probe.hear_json()["result"]["supportedVersions"].clone();
    assert!(versions.as_array().unwrap().contains(&json!("2026-07-28")), "{versions}");
    drop(probe.take_stdin());
    assert_eq!(probe.ended().0.code(), Some(0));

    let mut client = Client::start(&home, &["--no-start"]);
    let (id, filter) = (json!(7), json!({ "toolsListChanged": true }));
    client.say(&listen(&id, &filter));
    assert_eq!(client.hear_json(), acknowledged(&id, &filter));
    assert_eq!(home.xy(&["shutdown"]).code, 0);
    assert!(daemon.wait().success());
    home.daemon();
    home.wait_for_state("s", "running");
    let changed = told(&id, "notifications/tools/list_changed", json!({}));
    assert_eq!(client.hear_json(), changed, "it may have missed something");
    let call = json!({ "name": "s__add_tool", "arguments": { "name": "new" } });
    client.say(&asking(&json!(8), "tools/call", call));
    let (mut is_told, mut is_answered) = (false, false);
    while !(is_told && is_answered) {
        let heard = client.hear_json();
        is_told |= heard == changed;
        is_answered |= heard["id"] == 8 && heard["result"].is_object();
        assert!(heard == changed || heard["id"] == 8, "{heard}");
    }
    drop(client.take_stdin());
    assert_eq!(client.ended().0.code(), Some(0));
    home.finish();
}
