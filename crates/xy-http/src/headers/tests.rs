use hyper::header::HeaderValue;
use serde_json::{Value, json};

use super::*;

const LEGACY: &str = "2025-11-25";

fn headers(all: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in all {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        map.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    map
}

fn small(body: &str) -> RequestBody {
    RequestBody::Small(body.to_owned().into())
}

fn meta() -> Value {
    json!({ modern::VERSION: MODERN, modern::CAPABILITIES: {} })
}

fn body(method: &str, mut params: Value) -> String {
    if params.get("_meta").is_none() {
        params["_meta"] = meta();
    }
    json!({ "jsonrpc": "2.0", "id": "seven", "method": method, "params": params }).to_string()
}

/// Returns the error code and message for a POST, or `None` if it is accepted.
fn refusal(all: &[(&str, &str)], body: &str) -> Option<(i64, String)> {
    let unfit = validate(&headers(all), &small(body)).err()?;
    let answer: Value = serde_json::from_slice(&unfit.response).unwrap();
    assert!(answer["id"] == "seven" || answer["id"].is_null(), "{answer}");
    let message = answer["error"]["message"].as_str().unwrap().to_owned();
    Some((answer["error"]["code"].as_i64().unwrap(), message))
}

#[test]
fn headers_show_the_era() {
    for (all, expected) in [
        (&[][..], false),
        (&[("mcp-protocol-version", LEGACY)], false),
        (&[("mcp-protocol-version", "2024-11-05")], false),
        // An unknown revision of the past counts as legacy.
        (&[("mcp-protocol-version", "2025-12-31")], false),
        (&[("mcp-protocol-version", MODERN)], true),
        (&[("mcp-protocol-version", "2026-07-29")], true),
        (&[("mcp-protocol-version", "2026-07")], true),
        (&[("mcp-protocol-version", "0000/00/00")], true),
        (&[("mcp-protocol-version", "")], true),
        (&[("mcp-protocol-version", "\u{e9}")], true),
        (&[("mcp-protocol-version", LEGACY), ("Mcp-Method", "x")], false),
        (&[("mcp-protocol-version", MODERN), ("Mcp-Method", "x")], true),
        (&[("Mcp-Method", "x")], true),
        (&[("mcp-name", "x")], false),
    ] {
        assert_eq!(is_modern(&headers(all)), expected, "{all:?}");
    }
}

#[test]
fn body_shows_the_era_if_headers_do_not() {
    for (body, expected) in [
        (body("tools/list", json!({})), true),
        (body("tools/list", json!({ "_meta": { modern::VERSION: 7 } })), true),
        (body("tools/list", json!({ "_meta": { "progressToken": modern::VERSION } })), false),
        (body("tools/call", json!({ "_meta": {}, modern::VERSION: MODERN })), false),
        (body("initialize", json!({})), false),
        (body("initialize", json!({ "_meta": {}, "protocolVersion": LEGACY })), false),
        (r#"{"jsonrpc":"2.0","id":1,"method":"server/discover"}"#.to_owned(), true),
        (r#"{"jsonrpc":"2.0","id":1,"method":"server\/discover"}"#.to_owned(), true),
        (r#"{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen"}"#.to_owned(), true),
        (r#"{"jsonrpc":"2.0","id":1,"method":"x","params":"server/discover"}"#.to_owned(), false),
        (format!("[{}]", body("tools/list", json!({}))), false),
        (r#"{"jsonrpc":"2.0","id":1,"result":"server/discover"}"#.to_owned(), false),
        ("listen".to_owned(), false),
        (String::new(), false),
    ] {
        assert_eq!(is_modern_body(&small(&body)), expected, "{body}");
    }
    let text = json!({ "jsonrpc": "2.0", "method": "x", "params": { "_meta": meta() } });
    assert!(is_modern_body(&small(&text.to_string())));
}

#[test]
fn errors_are_reported_in_the_order_of_the_conformance_suite() {
    let version = ("mcp-protocol-version", MODERN);
    let method = ("mcp-method", "tools/list");
    let list = |meta: Value| body("tools/list", json!({ "_meta": meta }));
    let odd = ("mcp-protocol-version", "v999.0.0");
    let with = |version: &str| json!({ modern::VERSION: version, modern::CAPABILITIES: {} });
    let only = |key: &str, value: Value| json!({ key: value });
    for (all, body, expected) in [
        (&[version, method][..], list(meta()), None),
        (&[version, ("MCP-METHOD", "tools/list")], list(meta()), None),
        // First, what the body lacks.
        (&[], list(json!({})), Some(-32602)),
        (&[version, method], list(json!(7)), Some(-32602)),
        (&[version, method], list(only(modern::CAPABILITIES, json!({}))), Some(-32602)),
        (&[version, method], list(only(modern::VERSION, json!(MODERN))), Some(-32602)),
        // Then the version, in both places.
        (&[method], list(meta()), Some(-32020)),
        (&[version, method], list(with("v999.0.0")), Some(-32020)),
        (&[odd, method], list(meta()), Some(-32020)),
        (&[version, version, method], list(meta()), Some(-32020)),
        (&[("mcp-protocol-version", "\u{e9}")], list(meta()), Some(-32020)),
        // Then if this version is supported.
        (&[odd], list(with("v999.0.0")), Some(-32022)),
        (&[("mcp-protocol-version", LEGACY), method], list(with(LEGACY)), Some(-32022)),
        // Then the other headers.
        (&[version], list(meta()), Some(-32020)),
        (&[version, ("mcp-method", "prompts/list")], list(meta()), Some(-32020)),
        (&[version, ("mcp-method", "TOOLS/LIST")], list(meta()), Some(-32020)),
        (&[version, method, method], list(meta()), Some(-32020)),
        (&[version, ("mcp-method", "")], list(meta()), Some(-32020)),
    ] {
        let code = refusal(all, &body).map(|(code, _)| code);
        assert_eq!(code, expected, "{all:?} {body}");
    }
    let (_, message) = refusal(&[version, ("mcp-method", "a/b")], &list(meta())).unwrap();
    assert_eq!(message, "the header `mcp-method` is `a/b`, but the body says `tools/list`");
    let (_, message) = refusal(&[version], &list(meta())).unwrap();
    assert_eq!(message, "the header `mcp-method` is missing, but the body says `tools/list`");
    let long = ("mcp-method", &*"x".repeat(10_000));
    let (_, message) = refusal(&[version, long], &list(meta())).unwrap();
    assert!(message.len() < 200, "{message}");
}

#[test]
fn name_header_must_match_the_params() {
    let name = |method: &str, params: Value, name: Option<&str>| {
        let mut all = vec![("mcp-protocol-version", MODERN), ("mcp-method", method)];
        all.extend(name.map(|name| ("mcp-name", name)));
        refusal(&all, &body(method, params)).map(|(code, _)| code)
    };
    for (method, params, header, expected) in [
        ("tools/call", json!({ "name": "a" }), Some("a"), None),
        ("prompts/get", json!({ "name": "a" }), Some("a"), None),
        ("resources/read", json!({ "uri": "a:b", "name": "c" }), Some("a:b"), None),
        ("tools/call", json!({ "name": "é" }), Some("=?base64?w6k=?="), None),
        ("tools/call", json!({ "name": "é" }), Some("é"), Some(-32020)),
        ("tools/call", json!({ "name": "é" }), Some("=?base64?w6k?="), Some(-32020)),
        ("tools/call", json!({ "name": "a" }), Some("b"), Some(-32020)),
        ("tools/call", json!({ "name": "a" }), None, Some(-32020)),
        ("tools/call", json!({}), Some("a"), Some(-32020)),
        ("tools/call", json!({ "name": 7 }), Some("7"), Some(-32020)),
        ("tools/call", json!({}), None, None), // The server that has the tool refuses this itself.
        ("resources/read", json!({ "uri": "a:b" }), Some("a:c"), Some(-32020)),
        ("tasks/get", json!({ "taskId": "a" }), Some("a"), None),
        ("tasks/get", json!({ "taskId": "a" }), Some("b"), Some(-32020)),
        ("tasks/cancel", json!({ "taskId": "a" }), None, Some(-32020)),
        ("tasks/update", json!({ "taskId": "a" }), None, Some(-32020)),
        ("tasks/list", json!({ "taskId": "a" }), None, None),
        ("tools/list", json!({ "name": "a" }), None, None),
        ("tools/list", json!({ "name": "a" }), Some("b"), None),
    ] {
        let shown = format!("{method} {params} {header:?}");
        assert_eq!(name(method, params, header), expected, "{shown}");
    }
}

#[test]
fn only_one_request_or_notification_is_accepted() {
    let version = ("mcp-protocol-version", MODERN);
    for (body, expected) in [
        (r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#, None),
        (r#"{"jsonrpc":"2.0","id":"seven","result":{}}"#, Some(-32600)),
        (r#"[{"jsonrpc":"2.0","method":"x"}]"#, Some(-32600)),
        (r#"{"jsonrpc":"1.0","id":"seven","method":"x"}"#, Some(-32600)),
        ("nonsense", Some(-32700)),
        ("", Some(-32700)),
    ] {
        assert_eq!(refusal(&[version], body).map(|(code, _)| code), expected, "{body}");
    }
    let notification = r#"{"jsonrpc":"2.0","method":"x"}"#;
    assert!(matches!(
        validate(&headers(&[]), &small(notification)),
        Ok(ModernMessage::Notification)
    ));
}

#[test]
fn mirrored_arguments_must_match_their_headers() {
    let schema = json!({ "properties": {
        "region": { "type": "string", "x-mcp-header": "Region" },
        "place": { "properties": { "shelf": { "type": "integer", "x-mcp-header": "Shelf" } } },
        "quick": { "type": "boolean", "x-mcp-header": "Quick" },
    } });
    let mirrors = param_headers::of_schema(&schema.to_string()).unwrap();
    let check = |arguments: Value, more: &[(&str, &str)]| {
        let body = body("tools/call", json!({ "name": "a", "arguments": arguments }));
        let name =
            [("mcp-protocol-version", MODERN), ("mcp-method", "tools/call"), ("mcp-name", "a")];
        let headers = headers(&[&name[..], more].concat());
        let message = small(&body);
        let Ok(ModernMessage::Request(call)) = validate(&headers, &message) else {
            panic!("{body}")
        };
        assert_eq!(call.tool(), Some("a"));
        let unfit = call.check_param_headers(&headers, &mirrors).err()?;
        let answer: Value = serde_json::from_slice(&unfit.response).unwrap();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!("seven"), &json!(-32020)));
        Some(answer["error"]["message"].as_str().unwrap().to_owned())
    };
    let region = |value| ("Mcp-Param-Region", value);
    for (arguments, more) in [
        (json!({}), &[][..]),
        (json!(null), &[]),
        (json!({ "region": null, "place": null }), &[]),
        (json!({ "region": "a b" }), &[region("a b")]),
        (json!({ "region": "Hello" }), &[region("=?base64?SGVsbG8=?=")]),
        (json!({ "region": "SGVsbG8=" }), &[region("SGVsbG8=")]),
        (json!({ "region": "=?base64?SGVsbG8=" }), &[region("=?base64?SGVsbG8=")]),
        (json!({ "place": { "shelf": 42 } }), &[("mcp-param-shelf", "42.0")]),
        (
            json!({ "quick": false }),
            &[("mcp-param-quick", "false"), ("mcp-param-other", "\u{1f980}")],
        ),
    ] {
        assert_eq!(check(arguments.clone(), more), None, "{arguments} {more:?}");
    }
    for (arguments, more, words) in [
        (json!({ "region": "a" }), &[][..], "the header `mcp-param-region` is missing"),
        (json!({ "region": "a" }), &[region("b")], "is `b`, but the body says `a`"),
        (json!({ "region": "a" }), &[region("A")], "is `A`, but the body says `a`"),
        (json!({ "region": "a" }), &[region("a"), region("a")], "more than once"),
        (json!({ "region": "é" }), &[region("é")], "not ASCII text"),
        (json!({ "region": "Hello" }), &[region("=?base64?SGVsbG8?=")], "not valid encoded text"),
        (
            json!({ "region": "Hello" }),
            &[region("=?base64?SGVs!!!bG8=?=")],
            "not valid encoded text",
        ),
        (json!({}), &[region("a")], "the body has no such value"),
        (json!({ "place": { "shelf": 42 } }), &[("mcp-param-shelf", "43")], "the body says `42`"),
        (json!({ "quick": true }), &[("mcp-param-quick", "1")], "the body says `true`"),
    ] {
        let message = check(arguments.clone(), more).unwrap();
        assert!(message.contains(words), "{arguments} {more:?}: {message}");
    }
}

#[test]
fn few_errors_have_a_status_of_their_own() {
    let error = |code: &str| {
        format!(r#"{{"error" : {{ "message":"x", "code": {code} }},"id":1,"jsonrpc":"2.0"}}"#)
    };
    for (answer, status) in [
        (error("-32601"), 404),
        (error("-32020"), 400),
        (error("-32021"), 400),
        (error("-32022"), 400),
        (error("-32602"), 200),
        (error("-32023"), 200),
        (error("-326010"), 200),
        (error("-32601.5"), 200),
        (error("\"-32601\""), 200),
        (error("1"), 200),
        (r#"{"jsonrpc":"2.0","id":1,"result":{"error":{"code":-32601}}}"#.to_owned(), 200),
        (r#"{"jsonrpc":"2.0","id":-32601,"result":{}}"#.to_owned(), 200),
        ("no JSON -32601".to_owned(), 200),
        (String::new(), 200),
    ] {
        assert_eq!(status_of(answer.as_bytes()).as_u16(), status, "{answer}");
    }
}
