//! Clients that send malformed messages or do not read. None of this disturbs other clients.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient};

use crate::fixtures::{
    assert_echo, error_code, error_message, home, home_of_two, http_client, local_client, metrics,
    notification_count, ready, received_of, serve, single_server_client, uninitialized_client,
    wait_until_idle,
};

/// Sends a line, and returns the error without an id.
#[track_caller]
fn refused_without_id(client: &McpClient, line: &str) -> Value {
    client.send_raw(line);
    client.wait_answer("null")
}

#[test]
fn malformed_messages_get_json_rpc_errors() {
    let home = home_of_two();
    let client = local_client(&home);
    for (line, expected) in [
        ("{", -32700),
        ("nonsense", -32700),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"} x", -32700),
        ("7", -32600),
        ("\"text\"", -32600),
        ("{}", -32600),
        ("[]", -32600),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":[1],"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#, -32600),
    ] {
        assert_eq!(error_code(&refused_without_id(&client, line)), expected, "{line}");
    }
    for (line, id) in [
        (r#"{"jsonrpc":"2.0","id":"x","method":7}"#, "\"x\""),
        (r#"{"jsonrpc":"1.0","id":"y","method":"ping"}"#, "\"y\""),
        (r#"{"jsonrpc":"2.0","id":"z","method":"ping","params":7}"#, "\"z\""),
    ] {
        client.send_raw(line);
        assert_eq!(error_code(&client.wait_answer(id)), -32600, "{line}");
    }
    assert_echo(&client, "a");
    assert_eq!(client.unclaimed_answers(), [""; 0]);
    home.finish();
}

#[test]
fn malformed_params_are_refused() {
    let home = home_of_two();
    let client = local_client(&home);
    for (method, params, expected) in [
        ("tools/call", json!([1]), -32602),
        ("tools/call", json!({}), -32602),
        ("tools/call", json!({ "name": 7 }), -32602),
        ("tools/call", json!({ "name": null }), -32602),
        ("tools/call", json!({ "name": "" }), -32602),
        ("prompts/get", json!({ "name": ["a__greet"] }), -32602),
        ("resources/read", json!({ "uri": 7 }), -32602),
        ("resources/read", json!({ "uri": "" }), -32602),
        ("tools/list", json!({ "cursor": 7 }), -32602),
        ("tools/list", json!({ "cursor": "gone" }), -32602),
        ("completion/complete", json!({ "ref": 7 }), -32602),
        ("logging/setLevel", json!({ "level": "loud" }), -32602),
        ("logging/setLevel", json!({ "level": 7 }), -32602),
        ("tools/call", json!({ "name": "a__who", "_meta": { "progressToken": {} } }), -32602),
        ("tools/call", json!({ "name": "a__who", "_meta": { "progressToken": true } }), -32602),
        ("tools/list", json!({ "_meta": { "progressToken": [1] } }), -32602),
        ("no/such/method", json!({}), -32601),
    ] {
        let answer = client.request(method, params.clone());
        assert_eq!(error_code(&answer), expected, "{method} {params}: {answer}");
    }
    assert_echo(&client, "a");
    home.finish();
}

#[test]
fn malformed_initialize_is_refused_and_may_be_repeated() {
    let home = home_of_two();
    let (client, web) = (uninitialized_client(&home), home.mcp_http("/mcp"));
    for params in [
        Value::Null,
        json!([]),
        json!([1]),
        json!({}),
        json!({ "protocolVersion": 7 }),
        json!({ "protocolVersion": "2025-11-25", "capabilities": 7 }),
        json!({ "protocolVersion": "2025-11-25", "clientInfo": [] }),
    ] {
        let answer = client.request("initialize", params.clone());
        assert_eq!(error_code(&answer), -32602, "{params}: {answer}");
        let greet = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
        let posted = web.post(&greet.to_string());
        assert!(posted.header("mcp-session-id").is_none(), "{params}: {posted:?}");
    }
    client.initialize_as(json!({ "protocolVersion": "2025-11-25" }));
    assert_echo(&client, "a");
    web.initialize_as(json!({ "protocolVersion": "2025-11-25" }));
    assert_echo(&web, "b");
    home.finish();
}

#[test]
fn requests_before_initialize_are_refused() {
    let home = home_of_two();
    let client = uninitialized_client(&home);
    let early = client.request("tools/list", Value::Null);
    assert_eq!(error_code(&early), -32600);
    assert!(error_message(&early).contains("initialize"), "{early}");
    assert_eq!(client.request("ping", Value::Null)["result"], json!({}));
    client.initialize();
    assert_echo(&client, "a");

    let web = home.mcp_http("/mcp");
    let early = web.post(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#);
    assert_eq!(early.status, 400, "{early:?}");
    web.initialize();
    assert_echo(&web, "a");
    home.finish();
}

#[test]
fn open_request_id_is_refused() {
    let home = home_of_two();
    let client = local_client(&home);
    client.start_request_as("\"same\"", "tools/call", json!({ "name": "a__never" }));
    home.wait_until("the server has the call", || received_of(&home, "a", "tools/call").len() == 1);
    client.start_request_as("\"same\"", "tools/call", json!({ "name": "a__who" }));
    let answer = client.wait_answer("\"same\"");
    assert_eq!(error_code(&answer), -32600);
    assert!(error_message(&answer).contains("still open"), "{answer}");
    // A number and a string are different ids.
    client.start_request_as("7", "tools/call", json!({ "name": "a__never" }));
    client.start_request_as("\"7\"", "tools/call", json!({ "name": "a__who" }));
    assert!(client.wait_answer("\"7\"").get("result").is_some());
    client.cancel(&json!("same"));
    client.cancel(&json!(7));
    wait_until_idle(&home);
    // A free id can be used again.
    client.start_request_as("\"same\"", "tools/call", json!({ "name": "a__who" }));
    assert!(client.wait_answer("\"same\"").get("result").is_some());
    home.finish();
}

#[test]
fn unknown_names_get_suggestions() {
    let home = home_of_two();
    let client = local_client(&home);
    client.tool_names(); // From here on all tools are known.
    let near = client.call("a__ehco", json!({}));
    assert_eq!(error_code(&near), -32602);
    assert!(
        error_message(&near).contains("a__ehco") && error_message(&near).contains("`a__echo`"),
        "{near}"
    );
    for name in ["nothing", "zzz__echo", "a__", "__echo", "a__echo ", &"x".repeat(5000)] {
        let answer = client.call(name, json!({}));
        assert_eq!(error_code(&answer), -32602, "{answer}");
    }
    let bare = client.call("echo", json!({}));
    assert!(error_message(&bare).contains("did you mean `a__echo` or `b__echo`?"), "{bare}");
    let prompt = client.request("prompts/get", json!({ "name": "a__gret" }));
    assert_eq!(error_code(&prompt), -32602);
    assert!(error_message(&prompt).contains("`a__greet`"), "{prompt}");
    for uri in ["nowhere://x", "xy://zzz/test://static", "xy://a"] {
        let answer = client.request("resources/read", json!({ "uri": uri }));
        assert_eq!(error_code(&answer), -32602, "{answer}");
    }
    home.finish();
}

#[test]
fn unknown_session_is_not_found_and_a_new_one_begins() {
    let home = home_of_two();
    let client = http_client(&home);
    client.set_session(Some("0123456789abcdef0123456789abcdef"));
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    assert_eq!(client.post(list).status, 404);
    assert_eq!(client.delete(), 404);
    client.set_session(None);
    client.initialize();
    assert_echo(&client, "b");
    home.finish();
}

#[test]
fn line_of_100_mib_is_refused_and_the_connection_stays() {
    let home = home_of_two();
    let client = local_client(&home);
    let head = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"x":""#;
    assert!(client.send_bytes(head));
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..100 {
        assert!(client.send_bytes(&piece));
    }
    assert!(client.send_bytes(b"\"}}\n"));
    let answer = client.wait_answer("null");
    assert_eq!(error_code(&answer), -32600);
    assert!(error_message(&answer).contains("32 MiB"), "{answer}");
    assert_echo(&client, "a");

    let web = http_client(&home);
    let refused = web.exchange("POST", &[("Content-Length", "104857600")], "");
    assert_eq!(refused.status, 413, "{refused:?}");
    assert_echo(&web, "a");
    home.finish();
}

/// Returns the peak memory of the daemon, in kB.
#[cfg(target_os = "linux")]
fn peak_memory(home: &Home) -> u64 {
    let pid = home.call("info", Value::Null).unwrap()["pid"].as_u64().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Returns 0, as other systems do not report the peak memory.
#[cfg(not(target_os = "linux"))]
fn peak_memory(_home: &Home) -> u64 {
    0
}

/// Returns a call that is slightly larger than 100 MiB.
fn huge() -> String {
    let filler = "x".repeat(100 << 20);
    format!(r#"{{"jsonrpc":"2.0","id":"huge","method":"tools/call","params":{{"x":"{filler}"}}}}"#)
}

#[test]
fn http_body_of_100_mib_is_refused_and_not_stored() {
    let home = home_of_two();
    let client = http_client(&home);
    assert_echo(&client, "a");
    let (before, huge) = (peak_memory(&home), huge());
    // The whole body is sent before the response is read, as most clients do.
    let refused = client.post(&huge);
    assert_eq!(refused.status, 413, "{}", refused.body);
    assert!(refused.body.contains("which is the maximum"), "{}", refused.body);
    // Again, without a content length.
    let headers = [("Content-Length", ""), ("Transfer-Encoding", "chunked")];
    let chunked = format!("{:x}\r\n{huge}\r\n0\r\n\r\n", huge.len());
    let refused = client.exchange("POST", &headers, &chunked);
    assert_eq!(refused.status, 413, "{}", refused.body);
    assert_echo(&client, "a");
    let grown = peak_memory(&home).saturating_sub(before);
    assert!(grown < 80 << 10, "the daemon had {grown} kB more");
    home.finish();
}

#[test]
fn bridged_line_of_100_mib_is_refused_and_not_stored() {
    let home = home_of_two();
    let client = crate::fixtures::bridge_client(&home);
    assert_echo(&client, "a");
    let before = peak_memory(&home);
    assert!(client.send_bytes(huge().as_bytes()) && client.send_bytes(b"\n"));
    let answer = client.wait_answer("\"huge\"");
    assert_eq!(error_code(&answer), -32600, "{answer}");
    assert!(error_message(&answer).contains("32 MiB"), "{answer}");
    assert_echo(&client, "a");
    assert_eq!(client.unclaimed_answers(), [""; 0]);
    let grown = peak_memory(&home).saturating_sub(before);
    assert!(grown < 80 << 10, "the daemon had {grown} kB more");
    drop(client);
    home.finish();
}

#[test]
fn batch_is_answered_message_by_message() {
    let home = home_of_two();
    let batch = r#"[{"jsonrpc":"2.0","id":"1","method":"ping"},
        {"jsonrpc":"2.0","method":"notifications/whatever"},
        {"jsonrpc":"2.0","id":"2","method":"tools/call","params":{"name":"a__who"}},
        [{"jsonrpc":"2.0","id":"x","method":"ping"}],
        {"jsonrpc":"2.0","id":"3","method":"no/such"}]"#;
    let on_one_line = batch.replace('\n', " ");
    let old = json!({ "protocolVersion": "2025-03-26", "capabilities": {} });

    let client = uninitialized_client(&home);
    client.initialize_as(old.clone());
    client.send_raw(&on_one_line);
    assert_eq!(client.wait_answer("\"1\"")["result"], json!({}));
    assert!(client.wait_answer("\"2\"")["result"]["content"].is_array());
    assert_eq!(error_code(&client.wait_answer("\"3\"")), -32601);
    assert_eq!(error_code(&client.wait_answer("null")), -32600);

    let web = home.mcp_http("/mcp");
    web.initialize_as(old);
    let posted = web.post(batch);
    assert_eq!(posted.status, 200, "{posted:?}");
    let mut ids: Vec<String> = posted
        .events()
        .iter()
        .map(|it| serde_json::from_str::<Value>(it).unwrap()["id"].to_string())
        .collect();
    ids.sort();
    assert_eq!(ids, ["\"1\"", "\"2\"", "\"3\"", "null"], "{posted:?}");
    let empty = web.post("[]");
    assert_eq!(empty.status, 400, "{empty:?}");
    let response = web.post(r#"[{"jsonrpc":"2.0","method":"notifications/whatever"}]"#);
    assert_eq!(response.status, 202, "{response:?}");
    assert_echo(&web, "a");
    home.finish();
}

#[test]
fn batch_is_refused_in_revisions_without_batches() {
    let home = home_of_two();
    let batch = r#"[{"jsonrpc":"2.0","id":"1","method":"ping"},
        {"jsonrpc":"2.0","id":"2","method":"tools/call","params":{"name":"a__who"}}]"#;
    for version in ["2025-06-18", "2025-11-25"] {
        let client = home.mcp_http("/mcp");
        client.initialize_as(json!({ "protocolVersion": version, "capabilities": {} }));
        let refused = client.post(batch);
        assert_eq!(refused.status, 400, "{version}: {refused:?}");
        let error = refused.json();
        assert_eq!((error_code(&error), &error["id"]), (-32600, &Value::Null), "{version}");
        assert!(error_message(&error).contains("batch"), "{version}: {error}");
        assert_echo(&client, "b");
    }
    assert_eq!(received_of(&home, "a", "tools/call"), [Value::Null; 0], "nothing of it was done");
    home.finish();
}

#[test]
fn client_that_vanishes_leaves_nothing_open() {
    let home = home_of_two();
    for round in 1..=2 {
        let (socket, http) = (local_client(&home), http_client(&home));
        socket.start_call("a__never", json!({}));
        http.start_call("b__never", json!({}));
        home.wait_until("both are with their servers", || {
            received_of(&home, "a", "tools/call").len() == round
                && received_of(&home, "b", "tools/call").len() == round
        });
        drop(socket);
        http.close();
        home.wait_until("both servers get the cancellation", || {
            received_of(&home, "a", "notifications/cancelled").len() == round
                && received_of(&home, "b", "notifications/cancelled").len() == round
        });
    }
    for name in ["a", "b"] {
        let requests = received_of(&home, name, "tools/call");
        let cancelled = received_of(&home, name, "notifications/cancelled");
        for (request, cancelled) in requests.iter().zip(&cancelled) {
            assert_eq!(request["id"], cancelled["params"]["requestId"]);
        }
    }
    wait_until_idle(&home);
    home.wait_until("no client is left", || metrics(&home).contains("\nxy_clients 0\n"));
    home.finish();
}

#[test]
fn broken_http_exchange_keeps_the_session() {
    let home = home_of_two();
    let client = http_client(&home);
    client.start_call("a__slow_echo", json!({ "message": "x", "ms": 100 }));
    home.wait_until("the server has the call", || received_of(&home, "a", "tools/call").len() == 1);
    client.break_connections();
    assert_echo(&client, "a");
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn client_that_never_reads_is_disconnected() {
    let home = home();
    serve(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    let mut deaf = UnixStream::connect(home.mcp_socket()).unwrap();
    deaf.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    let hello = json!({ "xy": "hello", "protocol": 1, "view": { "profile": "default" } });
    let greet = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {} } });
    let mut text = format!("{hello}\n{greet}\n");
    for id in 1..=12 {
        let params = json!({ "name": "a__big", "arguments": { "bytes": 12 << 20 } });
        let call = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
        text.push_str(&call.to_string());
        text.push('\n');
    }
    deaf.write_all(text.as_bytes()).unwrap();
    let other = local_client(&home);
    assert_echo(&other, "a");
    home.wait_until("the client is disconnected", || metrics(&home).contains("\nxy_clients 1\n"));
    assert_echo(&other, "a");
    // Data that was already sent can still be read, and then the stream ends.
    deaf.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut rest = Vec::new();
    let _ = deaf.read_to_end(&mut rest); // A connection reset is possible too.
    assert!(rest.len() < 100 << 20);
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn half_closed_client_gets_its_whole_answer() {
    let home = home_of_two();
    let mut client = UnixStream::connect(home.mcp_socket()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let hello = json!({ "xy": "hello", "protocol": 1, "view": { "server": "a" } });
    let greet = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25" } });
    let params = json!({ "name": "big", "arguments": { "bytes": 8 << 20 } });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    client.write_all(format!("{hello}\n{greet}\n{call}\n").as_bytes()).unwrap();
    // The response has started, and waits for this client.
    let mut received = vec![0; 4096];
    let mut all = Vec::new();
    while all.len() < 10_000 {
        let count = client.read(&mut received).unwrap();
        all.extend_from_slice(&received[..count]);
    }
    client.shutdown(std::net::Shutdown::Write).unwrap();
    client.read_to_end(&mut all).unwrap();
    let last = all.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty()).unwrap();
    let answer: Value = serde_json::from_slice(last).unwrap();
    assert_eq!(answer["result"]["content"][0]["text"].as_str().unwrap().len(), 8 << 20);
    home.finish();
}

#[test]
fn malformed_hello_is_refused_at_the_local_socket() {
    let home = home_of_two();
    for (hello, says) in [
        ("{}", "not a hello"),
        (r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#, "not a hello"),
        (r#"{"xy":"hello","protocol":99,"view":{"profile":"default"}}"#, "revision"),
        (r#"{"xy":"hello","protocol":1,"view":{"profile":"none"}}"#, "no profile"),
        (r#"{"xy":"hello","protocol":1,"view":{"server":"none"}}"#, "no server"),
    ] {
        let client = xy_testkit::McpSocket::connect(&home.mcp_socket(), hello);
        client.wait_closed();
        assert!(client.strays().concat().contains(says), "{hello}: {:?}", client.strays());
    }
    let greet = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
    assert_eq!(home.mcp_http("/mcp/s/none").post(greet).status, 404);
    home.finish();
}

#[test]
fn unknown_notifications_are_ignored() {
    let home = home_of_two();
    let client = single_server_client(&home, "a");
    client.notify("notifications/unheard_of", json!({ "x": 1 }));
    client.cancel(&json!("never asked"));
    client.send_raw(r#"{"jsonrpc":"2.0","id":99,"result":{}}"#);
    assert_eq!(client.request("ping", Value::Null)["result"], json!({}));
    assert_eq!(notification_count(&client, "notifications/unheard_of"), 0);
    assert_eq!(client.unclaimed_answers(), [""; 0]);
    home.finish();
}
