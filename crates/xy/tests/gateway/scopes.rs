//! Profiles and tokens with real servers that record their messages: items outside of a profile are
//! never listed, found, described or called through it.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient, McpHttp, McpModern};

use crate::fixtures::{
    A_WHILE, error_code, error_message, home, home_of_two, local_client, ready, received_of,
    serve_recorded, tools_of_servers, uninitialized_client_at,
};
use crate::rng::Rng;
use crate::support::ask;

/// The first profile: parts of `a`, and nothing of `b`. Two of its tools have misleading names.
const ONE: &str = r#"
servers "a"
manage #false
server "a" {
    tools { allow "echo" "sum" "who" "bump" }
    prompts { allow "greet" }
    resources { allow "test://static" "test://item/1*" "test://item/{id}" }
}
tool "a__who" { name "b__echo" }
tool "a__sum" { name "who" }
"#;

/// The second profile: parts of `b`, and nothing of `a`, with `tools "search"`.
const TWO: &str = r#"
deny-servers "a"
manage #false
tools "search"
pin "b__sum"
server "b" {
    tools { deny "who" "env" "*crash*" "never" "garbage" "half_line" "flood" "big" "say" "raw" "remove_tool" "ask_*" }
    prompts { deny "plain" }
    resources { deny "test://static" }
}
"#;

/// The third profile: parts of `a` with `tools "search"`, and one renamed tool.
const THREE: &str = r#"
servers "a"
manage #false
tools "search"
server "a" {
    tools { allow "echo" "bump" }
    prompts { deny "*" }
    resources { allow "test://item/1*" }
}
tool "a__echo" { name "b__sum" }
"#;

/// The tools, prompts and URIs that each server may receive, whatever clients guess.
struct ServerLimits {
    is_tool: fn(&str) -> bool,
    prompts: BTreeSet<&'static str>,
    is_uri: fn(&str) -> bool,
}

fn of_a() -> ServerLimits {
    ServerLimits {
        is_tool: |name| ["echo", "sum", "who", "bump"].contains(&name),
        prompts: ["greet"].into(),
        is_uri: |uri| {
            uri == "test://static" || uri.starts_with("test://item/1") || uri == "test://item/{id}"
        },
    }
}

fn of_b() -> ServerLimits {
    ServerLimits {
        is_tool: |name| {
            let hidden =
                ["who", "env", "never", "garbage", "half_line", "flood", "big", "say", "raw"];
            !hidden.contains(&name)
                && !name.contains("crash")
                && !name.starts_with("ask_")
                && name != "remove_tool"
        },
        prompts: ["greet"].into(),
        is_uri: |uri| uri != "test://static" && !uri.contains("..") && !uri.contains("/./"),
    }
}

fn profiles(home: &Home) {
    home.write_config("profiles/one.kdl", ONE);
    home.write_config("profiles/two.kdl", TWO);
    home.write_config("profiles/three.kdl", THREE);
}

/// The names that a client may see, apart from those it sent itself.
struct Visible {
    server: &'static str,
    /// True for profiles with `tools "search"`.
    finds: bool,
    /// Names of tools and prompts that contain a server prefix, or look so.
    names: BTreeSet<String>,
    is_uri: fn(&str) -> bool,
}

impl Visible {
    fn of(server: &'static str, names: &[&str], is_uri: fn(&str) -> bool) -> Self {
        let names = names.iter().map(|&it| it.to_owned()).collect();
        Self { server, finds: false, names, is_uri }
    }

    fn of_finder(server: &'static str, names: &[&str], is_uri: fn(&str) -> bool) -> Self {
        Self { finds: true, ..Self::of(server, names, is_uri) }
    }

    fn has(&self, word: &str) -> bool {
        match word.strip_prefix("xy://").map(|rest| rest.split_once('/')) {
            Some(Some((server, uri))) => server == self.server && (self.is_uri)(uri),
            Some(None) => false,
            None if word.contains("://") => (self.is_uri)(word),
            None => word == "__" || self.names.contains(word),
        }
    }

    /// Asserts that a response reveals nothing else.
    #[track_caller]
    fn assert_reveals_nothing(&self, reply: &Value, requested: &Value) {
        let request_words = revealing_words(requested);
        for word in revealing_words(reply) {
            let is_allowed = self.has(&word) || request_words.contains(&word);
            assert!(is_allowed, "`{word}` is revealed to the client of {requested}: {reply}");
        }
    }
}

impl Visible {
    /// Asserts that a tool outside of the profile is answered like an unknown one. Its name in the
    /// response reveals nothing, as the request has it too.
    #[track_caller]
    fn assert_unknown(&self, response: &Value, request: &Value) {
        let tool = request["name"].as_str().unwrap_or_default();
        let is_by_name = ["describe_tool", "call_tool"].contains(&tool);
        let Some(name) = request["arguments"]["name"].as_str().filter(|_| is_by_name) else {
            return;
        };
        if self.names.contains(name) {
            return;
        }
        if !self.finds {
            let words = response["error"]["message"].as_str().unwrap_or_default();
            return assert_eq!(words, format!("Unknown tool: {tool}"), "{request}: {response}");
        }
        assert_eq!(response["result"]["isError"], true, "{request}: {response}");
        let text = response["result"]["content"][0]["text"].as_str().unwrap_or_default();
        let (message, hint) = text.split_once('\n').unwrap_or((text, ""));
        assert_eq!(message, format!("Unknown tool: {name}"), "{request}: {response}");
        // The hint has only visible names, which are similar.
        let hinted = words_of(hint).all(|word| self.has(&word));
        assert!(
            hint.is_empty() || hint.starts_with("hint: did you mean `"),
            "{request}: {response}"
        );
        assert!(
            hinted && response["result"].get("structuredContent").is_none(),
            "{request}: {response}"
        );
    }
}

/// Returns the words in a value that reveal items: prefixed names and URIs.
fn revealing_words(value: &Value) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    collect_words(value, &mut words);
    words
}

fn collect_words(value: &Value, words: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(inside @ (Value::Array(_) | Value::Object(_))) => collect_words(&inside, words),
            _ => words.extend(words_of(text)),
        },
        Value::Array(all) => all.iter().for_each(|it| collect_words(it, words)),
        Value::Object(all) => {
            for (key, value) in all {
                words.extend(words_of(key));
                collect_words(value, words);
            }
        }
        _ => {}
    }
}

fn words_of(text: &str) -> impl Iterator<Item = String> {
    let tells = |word: &&str| {
        let small = word.to_ascii_lowercase();
        word.contains("__") || small.starts_with("xy://") || small.starts_with("test://")
    };
    let words = text.split(|it: char| it.is_whitespace() || "\"`,()<>".contains(it));
    words.map(|it| it.trim_end_matches(['.', ':', ';', '?'])).filter(tells).map(str::to_owned)
}

#[test]
fn revealing_words_are_recognized() {
    let value = json!({ "a__b": "no `b__x`: did you mean c__y?", "c": ["{\"n\":\"xy://a/test://1\"}", "plain"] });
    let words: Vec<String> = revealing_words(&value).into_iter().collect();
    assert_eq!(words, ["a__b", "b__x", "c__y", "xy://a/test://1"]);
    let visible = Visible::of("a", &["b__x"], |uri| uri == "test://1");
    assert!(visible.has("b__x") && visible.has("xy://a/test://1") && visible.has("test://1"));
    assert!(!visible.has("c__y") && !visible.has("xy://b/test://1") && !visible.has("xy://a"));
}

#[track_caller]
fn token(home: &Home, params: Value) -> String {
    ask(home, "token_add", params)["token"].as_str().unwrap().to_owned()
}

fn at(home: &Home, path: &str, token: &str) -> McpHttp {
    McpHttp::new(&home.gateway_address(), path, token)
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}"#;

/// Returns the names of the tools that a client finds with this query.
pub(crate) fn found(client: &McpClient, query: &str) -> Vec<String> {
    let result = client.call("search_tools", json!({ "query": query, "limit": 100 }));
    let tools = result["result"]["structuredContent"]["tools"].as_array().cloned();
    let tools = tools.unwrap_or_else(|| panic!("{result}"));
    tools.iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect()
}

/// Returns a random request.
fn guess(rng: &mut Rng) -> (&'static str, Value) {
    const SERVERS: [&str; 3] = ["a", "b", "c"];
    const TOOLS: [&str; 12] = [
        "echo",
        "sum",
        "who",
        "bump",
        "env",
        "idempotent",
        "log",
        "reverse",
        "b__echo",
        "list_servers",
        "ask_roots",
        "",
    ];
    const PROMPTS: [&str; 4] = ["greet", "plain", "echo", ""];
    const URIS: [&str; 10] = [
        "test://static",
        "test://counter",
        "test://item/1",
        "test://item/2",
        "test://item/{id}",
        "test://item/1/../2",
        "test://item/%31",
        "TEST://counter",
        "test://./static",
        "other:x",
    ];
    let mut pick =
        |all: &[&'static str]| all[usize::try_from(rng.below(all.len() as u64)).unwrap()];
    let server = pick(&SERVERS);
    let (tool, prompt, plain) = (pick(&TOOLS), pick(&PROMPTS), pick(&URIS));
    let name = match pick(&["whole", "whole", "bare"]) {
        "whole" => format!("{server}__{tool}"),
        _ => tool.to_owned(),
    };
    let whole_prompt = format!("{server}__{prompt}");
    let uri = match pick(&["outside", "plain"]) {
        "outside" => format!("xy://{server}/{plain}"),
        _ => plain.to_owned(),
    };
    let arguments = json!({ "message": "m", "a": 1, "b": 2, "name": "n" });
    match pick(&[
        "call",
        "call",
        "call",
        "found",
        "describe",
        "search",
        "prompt",
        "read",
        "subscribe",
        "unsubscribe",
        "of_prompt",
        "of_uri",
        "list",
    ]) {
        "call" => ("tools/call", json!({ "name": name, "arguments": arguments })),
        "found" => (
            "tools/call",
            json!({ "name": "call_tool", "arguments": { "name": name, "arguments": arguments } }),
        ),
        "describe" => {
            ("tools/call", json!({ "name": "describe_tool", "arguments": { "name": name } }))
        }
        "search" => (
            "tools/call",
            json!({ "name": "search_tools", "arguments": { "query": tool, "server": server, "limit": 50 } }),
        ),
        "prompt" => ("prompts/get", json!({ "name": whole_prompt, "arguments": { "name": "n" } })),
        "read" => ("resources/read", json!({ "uri": uri })),
        "subscribe" => ("resources/subscribe", json!({ "uri": uri })),
        "unsubscribe" => ("resources/unsubscribe", json!({ "uri": uri })),
        "of_prompt" => (
            "completion/complete",
            json!({ "ref": { "type": "ref/prompt", "name": whole_prompt }, "argument": { "name": "name", "value": "" } }),
        ),
        "of_uri" => (
            "completion/complete",
            json!({ "ref": { "type": "ref/resource", "uri": uri }, "argument": { "name": "id", "value": "" } }),
        ),
        _ => (
            pick(&["tools/list", "prompts/list", "resources/list", "resources/templates/list"]),
            json!({}),
        ),
    }
}

/// Asserts that a server has received nothing that it may not receive.
#[track_caller]
fn assert_received_only(home: &Home, server: &str, may: &ServerLimits) {
    let calls = received_of(home, server, "tools/call");
    for call in &calls {
        let name = call["params"]["name"].as_str().unwrap_or_default();
        assert!((may.is_tool)(name), "{server} was called: {call}");
    }
    let texts = |method: &str, key: &str| -> Vec<String> {
        let all = received_of(home, server, method);
        all.iter().map(|it| it["params"][key].as_str().unwrap_or_default().to_owned()).collect()
    };
    for name in texts("prompts/get", "name") {
        assert!(may.prompts.contains(name.as_str()), "{server} was asked for prompt {name}");
    }
    for method in ["resources/read", "resources/subscribe", "resources/unsubscribe"] {
        for uri in texts(method, "uri") {
            assert!((may.is_uri)(&uri), "{server} was asked to {method} {uri}");
        }
    }
    for it in received_of(home, server, "completion/complete") {
        let of = &it["params"]["ref"];
        let is_prompt = of["name"].as_str().is_some_and(|name| may.prompts.contains(name));
        let is_uri = of["uri"].as_str().is_some_and(may.is_uri);
        assert!(is_prompt || is_uri, "{server} was asked to complete: {it}");
    }
    assert!(!calls.is_empty(), "some guesses are right");
}

/// Returns what each of the three profiles may reveal.
fn all_visible(home: &Home) -> [Visible; 3] {
    let everybody = local_client(home);
    let mut of_two: Vec<String> = tools_of_servers(&everybody);
    of_two.retain(|name| name.strip_prefix("b__").is_some_and(of_b().is_tool));
    // A prompt, and a name in the instructions.
    of_two.extend(["b__greet", "b__all"].map(str::to_owned));
    let of_two: Vec<&str> = of_two.iter().map(String::as_str).collect();
    [
        Visible::of("a", &["a__bump", "a__echo", "b__echo", "a__greet", "a__all"], of_a().is_uri),
        Visible::of_finder("b", &of_two, of_b().is_uri),
        Visible::of_finder("a", &["a__bump", "b__sum", "a__all"], |uri| {
            uri.starts_with("test://item/1")
        }),
    ]
}

#[test]
fn random_requests_reveal_only_what_the_profile_shows() {
    let home = home();
    for name in ["a", "b"] {
        serve_recorded(&home, name, &["--instructions", &format!("How to use {name}__all")]);
    }
    profiles(&home);
    home.daemon();
    ready(&home, &["a", "b"]);
    let all_visible = all_visible(&home);
    let one = uninitialized_client_at(&home, &json!({ "profile": "one" }));
    let three = uninitialized_client_at(&home, &json!({ "profile": "three" }));
    let bound =
        ["one", "two", "three"].map(|it| token(&home, json!({ "name": it, "profile": it })));
    let two = at(&home, "/mcp", &bound[1]);
    let old: [&McpClient; 3] = [&one, &two, &three];
    let modern = bound.map(|it| McpModern::http(&home.gateway_address(), "/mcp", &it));
    for ((client, modern), visible) in old.iter().zip(&modern).zip(&all_visible) {
        let hello = client.initialize();
        visible.assert_reveals_nothing(&hello, &Value::Null);
        let discovered = modern.request("server/discover", json!({}));
        visible.assert_reveals_nothing(&discovered, &Value::Null);
        for input_responses in [&hello, &discovered["result"]] {
            let all = format!("{}__all", visible.server);
            assert!(
                input_responses["instructions"].as_str().is_some_and(|it| it.contains(&all)),
                "{input_responses}"
            );
        }
    }
    assert_eq!(two.open_stream(), 200);
    let mut rng = Rng::new();
    for _ in 0..400 {
        let (method, params) = guess(&mut rng);
        for (client, visible) in old.iter().zip(&all_visible) {
            let response = client.request(method, params.clone());
            visible.assert_reveals_nothing(&response, &params);
            visible.assert_unknown(&response, &params);
        }
        // Modern clients subscribe with another method.
        let (method, params) = match method {
            "resources/subscribe" | "resources/unsubscribe" => {
                let filter = json!({ "resourceSubscriptions": [params["uri"]] });
                ("subscriptions/listen", json!({ "notifications": filter }))
            }
            _ => (method, params),
        };
        for (client, visible) in modern.iter().zip(&all_visible) {
            if method == "subscriptions/listen" {
                let response = client.start(method, params.clone(), &[]).next_message().unwrap();
                // The acknowledgement must not accept anything else, although it was requested.
                visible.assert_reveals_nothing(&response, &Value::Null);
            } else {
                let response = client.request(method, params.clone());
                visible.assert_reveals_nothing(&response, &params);
                visible.assert_unknown(&response, &params);
            }
        }
    }
    assert_eq!(one.tool_names(), ["a__bump", "a__echo", "who", "b__echo"]);
    let pinned: Vec<String> = two.tool_names();
    assert_eq!(pinned, ["search_tools", "describe_tool", "call_tool", "b__sum"]);
    for query in ["echo", "process", "environment", "crash", "who", "numbers", "a__echo"] {
        for (client, visible) in [(old[1], &all_visible[1]), (old[2], &all_visible[2])] {
            for name in found(client, query) {
                assert!(visible.names.contains(&name), "{query}: {name}");
            }
        }
    }
    assert!(found(&two, "add numbers").contains(&"b__sum".to_owned()));
    assert_received_only(&home, "a", &of_a());
    assert_received_only(&home, "b", &of_b());
    updates_reach_whom_they_are_shown(&home, &old, &modern, &all_visible);
}

/// Changes both counters: only clients that subscribed and may see a counter are notified.
#[track_caller]
fn updates_reach_whom_they_are_shown(
    home: &Home,
    old: &[&McpClient; 3],
    modern: &[McpModern; 3],
    all_visible: &[Visible; 3],
) {
    let uris = ["xy://a/test://counter", "xy://b/test://counter"];
    let everybody = local_client(home);
    for uri in uris {
        everybody.request("resources/subscribe", json!({ "uri": uri }));
        for client in old {
            client.request("resources/subscribe", json!({ "uri": uri }));
        }
    }
    let mut listening = modern.each_ref().map(|client| {
        let filter = json!({ "resourceSubscriptions": uris });
        client.start("subscriptions/listen", json!({ "notifications": filter }), &[])
    });
    for (stream, visible) in listening.iter_mut().zip(all_visible) {
        visible.assert_reveals_nothing(&stream.next_message().unwrap(), &Value::Null);
    }
    let is_of = |uri: &'static str| move |it: &Value| it["params"]["uri"] == uri;
    for (tool, uri) in ["a__bump", "b__bump"].into_iter().zip(uris) {
        everybody.call(tool, json!({}));
        everybody.wait_notification_that(uri, is_of(uri));
    }
    old[1].wait_notification_that("the counter of b", is_of(uris[1]));
    let notification = listening[1].next_message().unwrap();
    assert_eq!(notification["params"]["uri"], uris[1], "{notification}");
    for (client, visible) in old.iter().zip(all_visible) {
        // The response shows that all earlier notifications have arrived.
        client.request("ping", json!({}));
        for notification in client.notifications() {
            visible.assert_reveals_nothing(&notification, &Value::Null);
        }
    }
    for other in [0, 2] {
        assert!(listening[other].is_silent_for(A_WHILE), "it watches nothing that it may see");
    }
}

#[test]
fn reload_changes_what_connected_clients_see() {
    let home = home();
    serve_recorded(&home, "a", &[]);
    serve_recorded(&home, "b", &[]);
    profiles(&home);
    home.daemon();
    ready(&home, &["a", "b"]);
    let one = uninitialized_client_at(&home, &json!({ "profile": "one" }));
    one.initialize();
    assert_eq!(one.tool_names(), ["a__bump", "a__echo", "who", "b__echo"]);
    home.write_config("profiles/one.kdl", "servers \"b\"\nmanage #false\nallow \"b__echo\"");
    let reloaded = ask(&home, "reload", Value::Null);
    assert_eq!(reloaded["profiles"], json!(["one"]));
    one.wait_notification("notifications/tools/list_changed");
    assert_eq!(one.tool_names(), ["b__echo"]);
    assert_eq!(error_code(&one.call("a__echo", json!({ "message": "m" }))), -32602);
    home.write_config("profiles/one.kdl", "servers 7");
    assert!(home.call("reload", Value::Null).is_err(), "nothing changes by a file with a mistake");
    assert_eq!(one.tool_names(), ["b__echo"]);
    std::fs::remove_file(home.root().join("config/xy/profiles/one.kdl")).unwrap();
    ask(&home, "reload", Value::Null);
    one.wait_notification("notifications/tools/list_changed");
    assert!(one.tool_names().is_empty());
    let refused = one.call("b__echo", json!({ "message": "m" }));
    assert!(error_message(&refused).contains("no profile named `one`"), "{refused}");
    let gone = at(&home, "/mcp/p/one", &home.gateway_token()).post(INITIALIZE);
    assert_eq!(gone.status, 404, "{gone:?}");
}

#[test]
fn token_opens_only_its_profile_until_it_is_removed() {
    let home = home_of_two();
    profiles(&home);
    home.write_config("profiles/whole.kdl", "servers \"b\"\nmanage #false");
    ask(&home, "reload", Value::Null);
    let added = home.xy_json(&["token", "add", "laptop", "--profile", "one"]);
    let laptop = added["token"].as_str().unwrap().to_owned();
    let whole = token(&home, json!({ "name": "whole", "profile": "whole" }));
    let made = home.xy(&["token", "add", "manager", "--manage"]);
    let manager = made.stdout.trim_end().to_owned();
    assert!(made.code == 0 && made.stderr.contains("not shown again"), "{made:?}");
    let status = |path: &str, token: &str| {
        let answer = at(&home, path, token).post(INITIALIZE);
        (answer.status, answer.body)
    };
    assert_eq!(status("/mcp", &laptop).0, 200);
    assert_eq!(status("/mcp/p/one", &laptop).0, 200);
    for (path, token, expected, why) in [
        ("/mcp/p/two", &laptop, 403, "the profile `one` only"),
        ("/mcp/p/default", &laptop, 403, "the profile `one` only"),
        ("/mcp/s/a", &laptop, 403, "does not show all of the server `a`"),
        // A hidden server is answered like a missing one.
        ("/mcp/s/b", &laptop, 404, "there is no server named `b`"),
        ("/mcp/s/a", &whole, 404, "there is no server named `a`"),
        ("/mcp/s/c", &whole, 404, "there is no server named `c`"),
    ] {
        let (code, body) = status(path, token);
        assert_eq!(code, expected, "{path}: {body}");
        assert!(body.contains(why), "{path}: {body}");
    }
    assert_eq!(status("/mcp/s/b", &whole).0, 200);
    for path in ["/mcp", "/mcp/p/two", "/mcp/s/a"] {
        assert_eq!(status(path, &home.gateway_token()).0, 200, "{path}");
        assert_eq!(status(path, &manager).0, 200, "{path}");
    }
    // Metrics cover all servers.
    let numbers = |token: &str| {
        let value = format!("Bearer {token}");
        at(&home, "/metrics", "").exchange("GET", &[("Authorization", &value)], "")
    };
    assert_eq!(numbers(&manager).status, 200);
    for token in [&laptop, &whole] {
        let refused = numbers(token);
        assert_eq!(refused.status, 403, "{refused:?}");
        assert!(!refused.body.contains("xy_server"), "{refused:?}");
    }
    let free = at(&home, "/mcp", &manager);
    free.initialize();
    assert!(free.tool_names().contains(&"add_server".to_owned()));
    let client = at(&home, "/mcp", &laptop);
    client.initialize();
    assert_eq!(client.tool_names(), ["a__bump", "a__echo", "who", "b__echo"]);
    let waiting = client.start_call("a__echo", json!({ "message": "m" }));
    client.wait_answer(waiting);

    let file = home.root().join("state/xy/tokens.json");
    assert!(!std::fs::read_to_string(&file).unwrap().contains(&laptop));
    let listed = ask(&home, "token_list", Value::Null);
    let names: Vec<&Value> =
        listed["tokens"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["laptop", "manager", "whole"]);
    assert!(!listed.to_string().contains(&laptop));
    let listed = home.xy(&["token", "list"]).stdout;
    let lines: Vec<&str> =
        listed.lines().map(|it| it.split(", created ").next().unwrap()).collect();
    let expected = [
        "laptop   profile one",
        "manager  every profile, manages servers",
        "whole    profile whole",
    ];
    assert_eq!(lines, expected, "{listed}");
    assert!(!listed.contains(&laptop) && !listed.contains(&manager));
    let twice = home.call("token_add", json!({ "name": "laptop" })).unwrap_err();
    assert_eq!(twice["code"], -32602);
    let nowhere = home.call("token_add", json!({ "name": "x", "profile": "on" })).unwrap_err();
    assert!(nowhere.to_string().contains("did you mean `one`?"), "{nowhere}");

    let session = client.session().unwrap();
    assert_eq!(home.xy(&["token", "remove", "laptop"]).code, 0);
    let after = at(&home, "/mcp", &laptop);
    after.set_session(Some(&session));
    assert_eq!(after.post(INITIALIZE).status, 401);
    assert!(free.tool_names().contains(&"a__echo".to_owned()), "others go on");
}

#[test]
fn explain_names_the_deciding_line() {
    let home = home_of_two();
    profiles(&home);
    ask(&home, "reload", Value::Null);
    let explain = |rest: &[&str]| {
        let ran = home.xy(&[&["explain", "one"], rest].concat());
        ran.stdout
    };
    home.wait_until("the servers are known", || {
        explain(&["a__echo"]).contains("because: `allow` names it").then_some(())
    });
    assert!(
        explain(&["a__echo"]).contains("shown\n")
            && explain(&["a__echo"]).contains("at: profiles/one.kdl:5")
    );
    let hidden = explain(&["a__env"]);
    assert!(hidden.contains("hidden") && hidden.contains("`allow` names only others"), "{hidden}");
    let renamed = explain(&["a__who"]);
    assert!(renamed.contains("called: b__echo"), "{renamed}");
    assert!(explain(&["b__sum"]).contains("`servers` names only others"));
    assert!(explain(&["a__plain", "--prompt"]).contains("hidden"));
    assert!(explain(&["xy://a/test://counter", "--resource"]).contains("hidden"));
    assert!(explain(&["test://static", "--resource"]).is_empty(), "two servers have it");
    let own = explain(&["add_server"]);
    assert!(own.contains("hidden\n") && own.contains("at: profiles/one.kdl:3\n"), "{own}");
    let found = home.xy(&["explain", "three", "a__bump"]).stdout;
    assert!(found.contains("found by search because of: profiles/three.kdl:4\n"), "{found}");
    let finding = home.xy(&["explain", "three", "search_tools"]).stdout;
    assert!(finding.contains("at: profiles/three.kdl:4\n"), "{finding}");
    let found = home.xy_json(&["search", "--profile", "one", "add", "numbers"]);
    assert_eq!(found["tools"][0]["name"], "who", "{found}");
}

#[test]
fn search_command_filters_by_server_and_limit() {
    let home = home_of_two();
    let found = |more: &[&str]| {
        let ran = home.xy(&[&["search"], more, &["add", "numbers"]].concat());
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stdout
    };
    home.wait_until("both are known", || {
        let all = found(&[]);
        (all.contains("a__sum  ") && all.contains("b__sum  ")).then_some(())
    });
    let tools = |table: String| table.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    let of_b = tools(found(&["--server", "b"]));
    assert!(of_b[0].starts_with("b__sum  "), "{of_b:?}");
    assert!(of_b.iter().all(|it| it.starts_with("b__")), "{of_b:?}");
    assert_eq!(tools(found(&["--limit", "1"])).len(), 1);
    assert_eq!(tools(found(&["--limit", "1", "--server", "b"])).len(), 1);
    let none = home.xy(&["search", "--server", "nobody", "add", "numbers"]);
    assert!(none.stdout.is_empty() && !none.stderr.is_empty(), "{none:?}");
}

#[test]
fn profile_line_without_effect_is_reported() {
    let home = home_of_two();
    home.write_config(
        "profiles/odd.kdl",
        "servers \"a\"\ndeny \"a__ecko\"\nserver \"zzz\" { tools { deny \"x\" } }",
    );
    let checked = ask(&home, "check", Value::Null);
    assert!(checked.to_string().contains("no server is named `zzz`"), "{checked}");
    ask(&home, "reload", Value::Null);
    home.wait_until("the server gets the cancellation", || {
        let info = ask(&home, "info", Value::Null);
        let text = info["warnings"].to_string();
        (text.contains("profiles/odd.kdl:2") && text.contains("profiles/odd.kdl:3")).then_some(())
    });
    // Each line has an effect, but together they show no tool. A server that never starts must not
    // hide this.
    home.write_config("servers/dead.kdl", "command \"sleep\"\nargs \"1000\"");
    home.write_config("profiles/odd.kdl", "servers \"a\"\nallow \"b__echo\"");
    ask(&home, "reload", Value::Null);
    home.wait_until("the server gets the cancellation", || {
        let text = ask(&home, "info", Value::Null)["warnings"].to_string();
        text.contains("profiles/odd.kdl shows no tool").then_some(())
    });
    assert!(home.xy(&["list"]).stderr.contains("profiles/odd.kdl shows no tool"));
    home.write_config("profiles/odd.kdl", "servers \"a\"");
    ask(&home, "reload", Value::Null);
    home.wait_until("the warning is gone", || {
        ask(&home, "info", Value::Null).get("warnings").is_none().then_some(())
    });
    // A client that sees more tools than it supports.
    let client = uninitialized_client_at(&home, &json!({ "profile": "default" }));
    client.initialize_as(json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "cursor-vscode", "version": "1" } }));
    assert!(client.tool_names().len() > 40);
    let text = ask(&home, "info", Value::Null)["warnings"].to_string();
    assert!(text.contains("cursor-vscode") && text.contains("search"), "{text}");
}
