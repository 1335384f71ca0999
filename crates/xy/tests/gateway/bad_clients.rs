//! Clients that say what they should not, or do not listen. None of it disturbs anybody else.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient};

use crate::stage::{
    code, echoes, heard_of, home, home_of_two, local, local_of, metrics, nothing_is_open, ready,
    serve, stranger, told, web, words,
};

/// Says a line, and waits for the error that has no id.
#[track_caller]
fn refused_without_id(client: &McpClient, line: &str) -> Value {
    client.send_raw(line);
    client.wait_answer("null")
}

#[test]
fn what_is_no_message_is_refused_in_the_codes_of_json_rpc() {
    let home = home_of_two();
    let client = local(&home);
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
        assert_eq!(code(&refused_without_id(&client, line)), expected, "{line}");
    }
    for (line, id) in [
        (r#"{"jsonrpc":"2.0","id":"x","method":7}"#, "\"x\""),
        (r#"{"jsonrpc":"1.0","id":"y","method":"ping"}"#, "\"y\""),
        (r#"{"jsonrpc":"2.0","id":"z","method":"ping","params":7}"#, "\"z\""),
    ] {
        client.send_raw(line);
        assert_eq!(code(&client.wait_answer(id)), -32600, "{line}");
    }
    echoes(&client, "a");
    assert_eq!(client.unclaimed_answers(), [""; 0]);
    home.finish();
}

#[test]
fn params_of_the_wrong_kind_are_refused() {
    let home = home_of_two();
    let client = local(&home);
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
        assert_eq!(code(&answer), expected, "{method} {params}: {answer}");
    }
    echoes(&client, "a");
    home.finish();
}

#[test]
fn first_words_of_the_wrong_kind_are_refused_and_may_be_said_again() {
    let home = home_of_two();
    let (client, web) = (stranger(&home), home.mcp_http("/mcp"));
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
        assert_eq!(code(&answer), -32602, "{params}: {answer}");
        let greet = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
        let posted = web.post(&greet.to_string());
        assert!(posted.header("mcp-session-id").is_none(), "{params}: {posted:?}");
    }
    client.initialize_as(json!({ "protocolVersion": "2025-11-25" }));
    echoes(&client, "a");
    web.initialize_as(json!({ "protocolVersion": "2025-11-25" }));
    echoes(&web, "b");
    home.finish();
}

#[test]
fn nothing_is_done_before_the_greeting() {
    let home = home_of_two();
    let client = stranger(&home);
    let early = client.request("tools/list", Value::Null);
    assert_eq!(code(&early), -32600);
    assert!(words(&early).contains("initialize"), "{early}");
    assert_eq!(client.request("ping", Value::Null)["result"], json!({}));
    client.initialize();
    echoes(&client, "a");

    let web = home.mcp_http("/mcp");
    let early = web.post(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#);
    assert_eq!(early.status, 400, "{early:?}");
    web.initialize();
    echoes(&web, "a");
    home.finish();
}

#[test]
fn an_id_that_is_still_open_is_not_taken_again() {
    let home = home_of_two();
    let client = local(&home);
    client.start_request_as("\"same\"", "tools/call", json!({ "name": "a__never" }));
    home.wait_until("it is with its server", || heard_of(&home, "a", "tools/call").len() == 1);
    client.start_request_as("\"same\"", "tools/call", json!({ "name": "a__who" }));
    let answer = client.wait_answer("\"same\"");
    assert_eq!(code(&answer), -32600);
    assert!(words(&answer).contains("still open"), "{answer}");
    // A number and a text are different ids.
    client.start_request_as("7", "tools/call", json!({ "name": "a__never" }));
    client.start_request_as("\"7\"", "tools/call", json!({ "name": "a__who" }));
    assert!(client.wait_answer("\"7\"").get("result").is_some());
    client.cancel(&json!("same"));
    client.cancel(&json!(7));
    nothing_is_open(&home);
    // Once it is free, it can be used again.
    client.start_request_as("\"same\"", "tools/call", json!({ "name": "a__who" }));
    assert!(client.wait_answer("\"same\"").get("result").is_some());
    home.finish();
}

#[test]
fn what_is_not_there_is_named_with_what_is_nearest() {
    let home = home_of_two();
    let client = local(&home);
    client.tool_names(); // From here on all of them are known.
    let near = client.call("a__ehco", json!({}));
    assert_eq!(code(&near), -32602);
    assert!(words(&near).contains("a__ehco") && words(&near).contains("`a__echo`"), "{near}");
    for name in ["nothing", "zzz__echo", "a__", "__echo", "a__echo ", &"x".repeat(5000)] {
        let answer = client.call(name, json!({}));
        assert_eq!(code(&answer), -32602, "{answer}");
    }
    let bare = client.call("echo", json!({}));
    assert!(words(&bare).contains("did you mean `a__echo` or `b__echo`?"), "{bare}");
    let prompt = client.request("prompts/get", json!({ "name": "a__gret" }));
    assert_eq!(code(&prompt), -32602);
    assert!(words(&prompt).contains("`a__greet`"), "{prompt}");
    for uri in ["nowhere://x", "xy://zzz/test://static", "xy://a"] {
        let answer = client.request("resources/read", json!({ "uri": uri }));
        assert_eq!(code(&answer), -32602, "{answer}");
    }
    home.finish();
}

#[test]
fn an_unknown_session_is_not_found_and_the_client_begins_again() {
    let home = home_of_two();
    let client = web(&home);
    client.set_session(Some("0123456789abcdef0123456789abcdef"));
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    assert_eq!(client.post(list).status, 404);
    assert_eq!(client.delete(), 404);
    client.set_session(None);
    client.initialize();
    echoes(&client, "b");
    home.finish();
}

#[test]
fn a_hundred_megabytes_are_refused_and_the_connection_lives_on() {
    let home = home_of_two();
    let client = local(&home);
    let head = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"x":""#;
    assert!(client.send_bytes(head));
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..100 {
        assert!(client.send_bytes(&piece));
    }
    assert!(client.send_bytes(b"\"}}\n"));
    let answer = client.wait_answer("null");
    assert_eq!(code(&answer), -32600);
    assert!(words(&answer).contains("32 MiB"), "{answer}");
    echoes(&client, "a");

    let web = web(&home);
    let refused = web.exchange("POST", &[("Content-Length", "104857600")], "");
    assert_eq!(refused.status, 413, "{refused:?}");
    echoes(&web, "a");
    home.finish();
}

/// The most memory that the daemon has had at one time, in kB.
#[cfg(target_os = "linux")]
fn peak(home: &Home) -> u64 {
    let pid = home.call("info", Value::Null).unwrap()["pid"].as_u64().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Nothing tells.
#[cfg(not(target_os = "linux"))]
fn peak(_home: &Home) -> u64 {
    0
}

/// A call of a hundred megabytes and a little.
fn huge() -> String {
    let filler = "x".repeat(100 << 20);
    format!(r#"{{"jsonrpc":"2.0","id":"huge","method":"tools/call","params":{{"x":"{filler}"}}}}"#)
}

#[test]
fn a_hundred_megabytes_over_http_are_refused_in_words_and_kept_nowhere() {
    let home = home_of_two();
    let client = web(&home);
    echoes(&client, "a");
    let (before, huge) = (peak(&home), huge());
    // All of it is sent before the answer is read, as most clients do.
    let refused = client.post(&huge);
    assert_eq!(refused.status, 413, "{}", refused.body);
    assert!(refused.body.contains("which is the most there may be"), "{}", refused.body);
    // The same of somebody who does not say how much will come.
    let headers = [("Content-Length", ""), ("Transfer-Encoding", "chunked")];
    let chunked = format!("{:x}\r\n{huge}\r\n0\r\n\r\n", huge.len());
    let refused = client.exchange("POST", &headers, &chunked);
    assert_eq!(refused.status, 413, "{}", refused.body);
    echoes(&client, "a");
    let grown = peak(&home).saturating_sub(before);
    assert!(grown < 80 << 10, "the daemon had {grown} kB more");
    home.finish();
}

#[test]
fn a_hundred_megabytes_over_a_bridge_are_refused_in_words_and_kept_nowhere() {
    let home = home_of_two();
    let client = crate::stage::bridged(&home);
    echoes(&client, "a");
    let before = peak(&home);
    assert!(client.send_bytes(huge().as_bytes()) && client.send_bytes(b"\n"));
    let answer = client.wait_answer("\"huge\"");
    assert_eq!(code(&answer), -32600, "{answer}");
    assert!(words(&answer).contains("32 MiB"), "{answer}");
    echoes(&client, "a");
    assert_eq!(client.unclaimed_answers(), [""; 0]);
    let grown = peak(&home).saturating_sub(before);
    assert!(grown < 80 << 10, "the daemon had {grown} kB more");
    drop(client);
    home.finish();
}

#[test]
fn a_batch_is_answered_message_by_message_where_there_are_batches() {
    let home = home_of_two();
    let batch = r#"[{"jsonrpc":"2.0","id":"1","method":"ping"},
        {"jsonrpc":"2.0","method":"notifications/whatever"},
        {"jsonrpc":"2.0","id":"2","method":"tools/call","params":{"name":"a__who"}},
        [{"jsonrpc":"2.0","id":"x","method":"ping"}],
        {"jsonrpc":"2.0","id":"3","method":"no/such"}]"#;
    let on_one_line = batch.replace('\n', " ");
    let old = json!({ "protocolVersion": "2025-03-26", "capabilities": {} });

    let client = stranger(&home);
    client.initialize_as(old.clone());
    client.send_raw(&on_one_line);
    assert_eq!(client.wait_answer("\"1\"")["result"], json!({}));
    assert!(client.wait_answer("\"2\"")["result"]["content"].is_array());
    assert_eq!(code(&client.wait_answer("\"3\"")), -32601);
    assert_eq!(code(&client.wait_answer("null")), -32600);

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
    let told = web.post(r#"[{"jsonrpc":"2.0","method":"notifications/whatever"}]"#);
    assert_eq!(told.status, 202, "{told:?}");
    echoes(&web, "a");
    home.finish();
}

#[test]
fn a_batch_is_refused_whole_where_there_are_none() {
    let home = home_of_two();
    let batch = r#"[{"jsonrpc":"2.0","id":"1","method":"ping"},
        {"jsonrpc":"2.0","id":"2","method":"tools/call","params":{"name":"a__who"}}]"#;
    for version in ["2025-06-18", "2025-11-25"] {
        let client = home.mcp_http("/mcp");
        client.initialize_as(json!({ "protocolVersion": version, "capabilities": {} }));
        let refused = client.post(batch);
        assert_eq!(refused.status, 400, "{version}: {refused:?}");
        let error = refused.json();
        assert_eq!((code(&error), &error["id"]), (-32600, &Value::Null), "{version}");
        assert!(words(&error).contains("batch"), "{version}: {error}");
        echoes(&client, "b");
    }
    assert_eq!(heard_of(&home, "a", "tools/call"), [Value::Null; 0], "nothing of it was done");
    home.finish();
}

#[test]
fn a_client_that_vanishes_leaves_nothing_open() {
    let home = home_of_two();
    for round in 1..=2 {
        let (socket, http) = (local(&home), web(&home));
        socket.start_call("a__never", json!({}));
        http.start_call("b__never", json!({}));
        home.wait_until("both are with their servers", || {
            heard_of(&home, "a", "tools/call").len() == round
                && heard_of(&home, "b", "tools/call").len() == round
        });
        drop(socket);
        http.close();
        home.wait_until("both servers hear that nobody waits", || {
            heard_of(&home, "a", "notifications/cancelled").len() == round
                && heard_of(&home, "b", "notifications/cancelled").len() == round
        });
    }
    for name in ["a", "b"] {
        let asked = heard_of(&home, name, "tools/call");
        let cancelled = heard_of(&home, name, "notifications/cancelled");
        for (asked, cancelled) in asked.iter().zip(&cancelled) {
            assert_eq!(asked["id"], cancelled["params"]["requestId"]);
        }
    }
    nothing_is_open(&home);
    home.wait_until("no client is left", || metrics(&home).contains("\nxy_clients 0\n"));
    home.finish();
}

#[test]
fn an_exchange_that_breaks_leaves_the_session_as_it_is() {
    let home = home_of_two();
    let client = web(&home);
    client.start_call("a__slow_echo", json!({ "message": "x", "ms": 100 }));
    home.wait_until("it is with its server", || heard_of(&home, "a", "tools/call").len() == 1);
    client.break_connections();
    echoes(&client, "a");
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn a_client_that_never_reads_is_ended_and_others_go_on() {
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
    let other = local(&home);
    echoes(&other, "a");
    home.wait_until("it is ended", || metrics(&home).contains("\nxy_clients 1\n"));
    echoes(&other, "a");
    // What it was sent before can still be read, and then the end.
    deaf.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut rest = Vec::new();
    let _ = deaf.read_to_end(&mut rest); // Or it is reset.
    assert!(rest.len() < 100 << 20);
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn a_client_that_only_stops_speaking_hears_all_of_the_answer() {
    let home = home_of_two();
    let mut client = UnixStream::connect(home.mcp_socket()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let hello = json!({ "xy": "hello", "protocol": 1, "view": { "server": "a" } });
    let greet = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25" } });
    let params = json!({ "name": "big", "arguments": { "bytes": 8 << 20 } });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    client.write_all(format!("{hello}\n{greet}\n{call}\n").as_bytes()).unwrap();
    // The answer has begun, and waits for us.
    let mut heard = vec![0; 4096];
    let mut all = Vec::new();
    while all.len() < 10_000 {
        let count = client.read(&mut heard).unwrap();
        all.extend_from_slice(&heard[..count]);
    }
    client.shutdown(std::net::Shutdown::Write).unwrap();
    client.read_to_end(&mut all).unwrap();
    let last = all.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty()).unwrap();
    let answer: Value = serde_json::from_slice(last).unwrap();
    assert_eq!(answer["result"]["content"][0]["text"].as_str().unwrap().len(), 8 << 20);
    home.finish();
}

#[test]
fn what_is_no_hello_is_refused_at_the_local_door() {
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
fn notifications_that_nobody_knows_are_taken_in_silence() {
    let home = home_of_two();
    let client = local_of(&home, "a");
    client.notify("notifications/unheard_of", json!({ "x": 1 }));
    client.cancel(&json!("never asked"));
    client.send_raw(r#"{"jsonrpc":"2.0","id":99,"result":{}}"#);
    assert_eq!(client.request("ping", Value::Null)["result"], json!({}));
    assert_eq!(told(&client, "notifications/unheard_of"), 0);
    assert_eq!(client.unclaimed_answers(), [""; 0]);
    home.finish();
}
