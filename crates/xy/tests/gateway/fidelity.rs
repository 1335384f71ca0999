//! Messages pass through unchanged: numbers, member order, ids, tokens and names.

use serde_json::{Value, json};

use crate::fixtures::{
    assert_echo, home, home_of_two, http_client, linger, local_client, notification_count, ready,
    received_lines, serve, serve_recorded,
};

/// Results that a lossy parser would change.
const DELICATE: [&str; 7] = [
    r#"{"content":[],"n":1.50,"big":123456789012345678901234567890,"e":1e400,"z":-0.0}"#,
    r#"{"z":1,"a":2,"content":[{"type":"text","text":"x","unknown":{"b":1,"a":2}}],"m":null}"#,
    r#"{"content":[],"structuredContent":{"a":1,"a":2,"A":3,"\u0061":4}}"#,
    r#"{"content" : [ ] ,  "spaces" :  { "kept" : [ 1 , 2 ] } }"#,
    r#"{"content":[],"id":7,"result":{"id":8},"error":null,"method":"x","jsonrpc":"1.0"}"#,
    r#"{"content":[],"text":"é 日本 \u00e9 \ud83e\udd80 \/ \" \\ \n"}"#,
    r#"{"content":[],"_meta":{"progressToken":5},"isError":true,"deep":[[[[[[[[1.0]]]]]]]]}"#,
];

#[test]
fn results_arrive_byte_for_byte() {
    let home = home_of_two();
    let (socket, http) = (local_client(&home), http_client(&home));
    for result in DELICATE {
        for client in [&*socket, &*http] {
            let id = client.start_call("a__raw", json!({ "result": result }));
            let text = client.wait_answer_text(id);
            assert_eq!(text, format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#));
        }
    }
    home.finish();
}

#[test]
fn ids_of_every_kind_come_back_as_written() {
    let home = home_of_two();
    let (socket, http) = (local_client(&home), http_client(&home));
    for id in [
        "0",
        "-1",
        "7",
        "9007199254740993",
        "18446744073709551616",
        "1.5",
        "1e3",
        "\"\"",
        "\"1\"",
        "\"a b\"",
        r#""\u00e9\"\\""#,
        r#""日本""#,
    ] {
        for (method, name, expected) in [
            ("tools/call", "a__who", "result"),
            ("tools/list", "", "result"),
            ("ping", "", "result"),
            ("tools/call", "none", "error"),
        ] {
            let expected = format!(r#""id":{id},"{expected}""#);
            socket.start_request_as(id, method, json!({ "name": name }));
            let text = socket.wait_answer_text(id);
            assert!(text.contains(&expected), "{id}: {text}");
            let posted = http.post(&format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"name":"{name}"}}}}"#
            ));
            assert!(posted.body.contains(&expected), "{id}: {posted:?}");
        }
    }
    assert_eq!(socket.unclaimed_answers(), [""; 0]);
    home.finish();
}

#[test]
fn progress_comes_back_under_the_callers_token_only() {
    let home = home_of_two();
    let (socket, http, other) = (local_client(&home), http_client(&home), local_client(&home));
    other.start_call("a__never", json!({}));
    for token in ["0", "-5", "7", "18446744073709551616", "\"\"", "\"t\"", r#""\u00e9""#] {
        for client in [&*socket, &*http] {
            let id = format!("\"for {}\"", token.trim_matches('"').replace('\\', "/"));
            let params = format!(
                r#"{{"name":"a__progress","arguments":{{"steps":2}},"_meta":{{"progressToken":{token}}}}}"#
            );
            let value: Value = serde_json::from_str(&params).unwrap();
            client.start_request_as(&id, "tools/call", value.clone());
            client.wait_answer(&id);
            for step in 1..=2 {
                let notification = client.wait_notification("notifications/progress");
                assert_eq!(
                    notification["params"]["progressToken"],
                    value["_meta"]["progressToken"]
                );
                assert_eq!(notification["params"]["progress"], step);
            }
        }
    }
    linger();
    assert_eq!(notification_count(&other, "notifications/progress"), 0);
    assert_eq!(notification_count(&socket, "notifications/progress"), 0);
    home.finish();
}

#[test]
fn requests_arrive_unchanged_except_id_name_and_token() {
    let home = home_of_two();
    let (socket, http) = (local_client(&home), http_client(&home));
    let arguments = r#"{"z":1.50,"a":123456789012345678901234567890,"e":1e400,"message":"\u00e9","n":{"name":"a__echo","id":5,"b":1,"a":2}}"#;
    let meta =
        r#"{"other":{"progressToken":3},"progressToken":"tok","traceparent":"00-x","x":1.0}"#;
    let request = |id: &str, name: &str, token: &str| {
        let meta = meta.replace("\"tok\"", token);
        format!(
            r#"{{"jsonrpc":"2.0","extra":[1.0],"id":{id},"method":"tools/call","params":{{"unknown":1.0,"_meta":{meta},"arguments":{arguments},"name":"{name}"}}}}"#
        )
    };
    socket.send_raw(&request("\"mine\"", "a__echo", "\"tok\""));
    socket.wait_answer("\"mine\"");
    let posted = http.post(&request("\"mine\"", "a__echo", "\"tok\""));
    assert_eq!(posted.status, 200, "{posted:?}");
    let calls: Vec<String> =
        received_lines(&home, "a").into_iter().filter(|it| it.contains("tools/call")).collect();
    assert_eq!(calls.len(), 2);
    for call in calls {
        let (_, after) = call.split_once(r#""id":"#).unwrap();
        let upstream_id = after.split(',').next().unwrap().to_owned();
        assert!(upstream_id.parse::<u64>().is_ok(), "{call}");
        assert_eq!(call, request(&upstream_id, "echo", &upstream_id));
    }
    // Without a client's token xy adds none.
    socket.call_text("a__echo", json!({ "message": "x" }));
    assert!(!received_lines(&home, "a").last().unwrap().contains("progressToken"));
    home.finish();
}

#[test]
fn body_with_line_breaks_is_one_message() {
    let home = home_of_two();
    let client = http_client(&home);
    let body = "{\r\n  \"jsonrpc\": \"2.0\",\n\t\"id\": 5,\n  \"method\": \"tools/call\",\n  \
                \"params\": {\n    \"name\": \"a__echo\",\n    \"arguments\": {\n      \
                \"message\": \"two\\nlines\"\n    }\n  }\n}\n";
    let answer = client.post(body);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["result"]["content"][0]["text"], "two\nlines");
    home.finish();
}

#[test]
fn odd_tool_names_are_replaced_and_callable() {
    let home = home();
    serve(&home, "a", &["--odd-names"]);
    serve(&home, "a-server-with-quite-a-long-name", &["--odd-names"]);
    home.daemon();
    ready(&home, &["a", "a-server-with-quite-a-long-name"]);
    let client = local_client(&home);
    let names = client.tool_names();
    let is_plain = |name: &String| {
        name.len() <= 50
            && name.chars().all(|it| it.is_ascii_alphanumeric() || matches!(it, '_' | '-'))
    };
    let odd: Vec<&String> = names.iter().filter(|name| !is_plain(name)).collect();
    assert_eq!(odd, Vec::<&String>::new());
    let mut once = names.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), names.len(), "each name occurs once");
    let mut called = 0;
    for name in names.iter().filter(|name| {
        ["with_", "xxxx", "_berlang", "two__"].iter().any(|part| name.contains(part))
    }) {
        let answer = client.call(name, json!({}));
        assert!(answer.get("result").is_some(), "{name}: {answer}");
        called += 1;
    }
    assert_eq!(called, 10);
    assert!(names.contains(&"a__two__underscores".to_owned()));
    // The server's own name of the tool is not a public name.
    assert!(client.call("a__with.dot", json!({})).get("error").is_some());
    home.finish();
}

#[test]
fn tools_are_shown_as_written_except_their_names() {
    let home = home();
    serve_recorded(&home, "a", &["--tools", "3"]);
    home.daemon();
    ready(&home, &["a"]);
    let all = local_client(&home);
    let plain = crate::fixtures::single_server_client(&home, "a");
    let mut shown = all.list("tools/list", "tools");
    shown.retain(|tool| tool["name"].as_str().unwrap().contains("__")); // Without xy's own tools.
    let mut own = plain.list("tools/list", "tools");
    assert_eq!(shown.len(), own.len());
    for tool in &mut own {
        tool["name"] = json!(format!("a__{}", tool["name"].as_str().unwrap()));
    }
    assert_eq!(shown, own);
    let templates = all.list("resources/templates/list", "resourceTemplates");
    assert_eq!(templates[0]["uriTemplate"], "xy://a/test://item/{id}");
    let resources = all.list("resources/list", "resources");
    assert_eq!(resources[0]["uri"], "xy://a/test://static");
    assert_echo(&all, "a");
    home.finish();
}

#[test]
fn errors_of_a_server_pass_through() {
    let home = home_of_two();
    let client = local_client(&home);
    let missing = client.request("resources/read", json!({ "uri": "xy://a/test://none" }));
    assert_eq!(missing["error"]["message"], "no resource `test://none`");
    let prompt = client.request("prompts/get", json!({ "name": "a__greet" }));
    assert_eq!(prompt["error"]["message"], "`greet` needs a `name`");
    let failed = client.call("a__env", json!({ "name": "NO_SUCH" }));
    assert_eq!(failed["result"]["isError"], true);
    home.finish();
}
