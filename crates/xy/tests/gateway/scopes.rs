//! Profiles and tokens, with real servers that write down what they hear: nothing outside of a
//! profile is ever listed, found, described or called through it.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient, McpHttp, McpModern};

use crate::chance::Chance;
use crate::stage::{
    A_WHILE, code, heard_of, home, home_of_two, local, ready, serve_noting, stranger_at,
    tools_of_servers, words,
};
use crate::support::ask;

/// What the first client may use of `a`, and nothing of `b`. Two of its tools have names that
/// look like others.
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

/// What the second may use of `b`, and nothing of `a`; its tools are found.
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

/// What the third may use of `a`, by finding it; one tool has another name.
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

/// What each server may hear, whoever guesses what.
struct May {
    is_tool: fn(&str) -> bool,
    prompts: BTreeSet<&'static str>,
    is_uri: fn(&str) -> bool,
}

fn of_a() -> May {
    May {
        is_tool: |name| ["echo", "sum", "who", "bump"].contains(&name),
        prompts: ["greet"].into(),
        is_uri: |uri| {
            uri == "test://static" || uri.starts_with("test://item/1") || uri == "test://item/{id}"
        },
    }
}

fn of_b() -> May {
    May {
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

/// All that a client may ever be told of, but for what it has said itself.
struct Sight {
    server: &'static str,
    /// Whether it finds tools instead of listing them.
    finds: bool,
    /// Names of tools and prompts that have a server's name before them, or look so.
    names: BTreeSet<String>,
    is_uri: fn(&str) -> bool,
}

impl Sight {
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

    /// A client is told nothing else, whatever it is told.
    #[track_caller]
    fn holds(&self, told: &Value, asked: &Value) {
        let asked_words = telling_words(asked);
        for word in telling_words(told) {
            let is_told = self.has(&word) || asked_words.contains(&word);
            assert!(is_told, "`{word}` is told to who asked {asked}: {told}");
        }
    }
}

impl Sight {
    /// What is asked about a tool by name, outside of what is shown, is answered as if there were
    /// no such tool. That a name is in an answer tells nothing: it is in the question.
    #[track_caller]
    fn hides(&self, told: &Value, asked: &Value) {
        let tool = asked["name"].as_str().unwrap_or_default();
        let is_by_name = ["describe_tool", "call_tool"].contains(&tool);
        let Some(name) = asked["arguments"]["name"].as_str().filter(|_| is_by_name) else { return };
        if self.names.contains(name) {
            return;
        }
        if !self.finds {
            let words = told["error"]["message"].as_str().unwrap_or_default();
            return assert_eq!(words, format!("Unknown tool: {tool}"), "{asked}: {told}");
        }
        assert_eq!(told["result"]["isError"], true, "{asked}: {told}");
        let text = told["result"]["content"][0]["text"].as_str().unwrap_or_default();
        let (message, hint) = text.split_once('\n').unwrap_or((text, ""));
        assert_eq!(message, format!("Unknown tool: {name}"), "{asked}: {told}");
        // And nothing else but names that are shown, which are near to some.
        let hinted = words_of(hint).all(|word| self.has(&word));
        assert!(hint.is_empty() || hint.starts_with("hint: did you mean `"), "{asked}: {told}");
        assert!(hinted && told["result"].get("structuredContent").is_none(), "{asked}: {told}");
    }
}

/// The words in a value that tell what there is: names with a server before them, and URIs.
fn telling_words(value: &Value) -> BTreeSet<String> {
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
fn the_words_that_tell_what_there_is_are_seen() {
    let told = json!({ "a__b": "no `b__x`: did you mean c__y?", "c": ["{\"n\":\"xy://a/test://1\"}", "plain"] });
    let words: Vec<String> = telling_words(&told).into_iter().collect();
    assert_eq!(words, ["a__b", "b__x", "c__y", "xy://a/test://1"]);
    let sight = Sight::of("a", &["b__x"], |uri| uri == "test://1");
    assert!(sight.has("b__x") && sight.has("xy://a/test://1") && sight.has("test://1"));
    assert!(!sight.has("c__y") && !sight.has("xy://b/test://1") && !sight.has("xy://a"));
}

#[track_caller]
fn token(home: &Home, params: Value) -> String {
    ask(home, "token_add", params)["token"].as_str().unwrap().to_owned()
}

fn at(home: &Home, path: &str, token: &str) -> McpHttp {
    McpHttp::new(&home.gateway_address(), path, token)
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}"#;

/// The names that a client finds by this query.
pub(crate) fn found(client: &McpClient, query: &str) -> Vec<String> {
    let result = client.call("search_tools", json!({ "query": query, "limit": 100 }));
    let tools = result["result"]["structuredContent"]["tools"].as_array().cloned();
    let tools = tools.unwrap_or_else(|| panic!("{result}"));
    tools.iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect()
}

/// One guess of a client, at random.
fn guess(chance: &mut Chance) -> (&'static str, Value) {
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
        |all: &[&'static str]| all[usize::try_from(chance.below(all.len() as u64)).unwrap()];
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

/// Nothing that a server has heard is outside of what it may hear.
#[track_caller]
fn heard_only(home: &Home, server: &str, may: &May) {
    let calls = heard_of(home, server, "tools/call");
    for call in &calls {
        let name = call["params"]["name"].as_str().unwrap_or_default();
        assert!((may.is_tool)(name), "{server} was called: {call}");
    }
    let texts = |method: &str, key: &str| -> Vec<String> {
        let all = heard_of(home, server, method);
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
    for it in heard_of(home, server, "completion/complete") {
        let of = &it["params"]["ref"];
        let is_prompt = of["name"].as_str().is_some_and(|name| may.prompts.contains(name));
        let is_uri = of["uri"].as_str().is_some_and(may.is_uri);
        assert!(is_prompt || is_uri, "{server} was asked to complete: {it}");
    }
    assert!(!calls.is_empty(), "some guesses are right");
}

/// What each of the three may be told of.
fn sights(home: &Home) -> [Sight; 3] {
    let everybody = local(home);
    let mut of_two: Vec<String> = tools_of_servers(&everybody);
    of_two.retain(|name| name.strip_prefix("b__").is_some_and(of_b().is_tool));
    of_two.extend(["b__greet", "b__all"].map(str::to_owned)); // A prompt, and in instructions.
    let of_two: Vec<&str> = of_two.iter().map(String::as_str).collect();
    [
        Sight::of("a", &["a__bump", "a__echo", "b__echo", "a__greet", "a__all"], of_a().is_uri),
        Sight::of_finder("b", &of_two, of_b().is_uri),
        Sight::of_finder("a", &["a__bump", "b__sum", "a__all"], |uri| {
            uri.starts_with("test://item/1")
        }),
    ]
}

#[test]
fn whatever_clients_guess_they_reach_and_are_told_only_what_their_profiles_show() {
    let home = home();
    for name in ["a", "b"] {
        serve_noting(&home, name, &["--instructions", &format!("How to use {name}__all")]);
    }
    profiles(&home);
    home.daemon();
    ready(&home, &["a", "b"]);
    let sights = sights(&home);
    let one = stranger_at(&home, &json!({ "profile": "one" }));
    let three = stranger_at(&home, &json!({ "profile": "three" }));
    let bound =
        ["one", "two", "three"].map(|it| token(&home, json!({ "name": it, "profile": it })));
    let two = at(&home, "/mcp", &bound[1]);
    let old: [&McpClient; 3] = [&one, &two, &three];
    let modern = bound.map(|it| McpModern::http(&home.gateway_address(), "/mcp", &it));
    for ((client, modern), sight) in old.iter().zip(&modern).zip(&sights) {
        let hello = client.initialize();
        sight.holds(&hello, &Value::Null);
        let discovered = modern.request("server/discover", json!({}));
        sight.holds(&discovered, &Value::Null);
        for said in [&hello, &discovered["result"]] {
            let all = format!("{}__all", sight.server);
            assert!(said["instructions"].as_str().is_some_and(|it| it.contains(&all)), "{said}");
        }
    }
    assert_eq!(two.open_stream(), 200);
    let mut chance = Chance::new();
    for _ in 0..400 {
        let (method, params) = guess(&mut chance);
        for (client, sight) in old.iter().zip(&sights) {
            let told = client.request(method, params.clone());
            sight.holds(&told, &params);
            sight.hides(&told, &params);
        }
        // These have other words for what they watch.
        let (method, params) = match method {
            "resources/subscribe" | "resources/unsubscribe" => {
                let wanted = json!({ "resourceSubscriptions": [params["uri"]] });
                ("subscriptions/listen", json!({ "notifications": wanted }))
            }
            _ => (method, params),
        };
        for (client, sight) in modern.iter().zip(&sights) {
            if method == "subscriptions/listen" {
                let told = client.start(method, params.clone(), &[]).next_message().unwrap();
                // Nothing else may be accepted, although it was asked for.
                sight.holds(&told, &Value::Null);
            } else {
                let told = client.request(method, params.clone());
                sight.holds(&told, &params);
                sight.hides(&told, &params);
            }
        }
    }
    assert_eq!(one.tool_names(), ["a__bump", "a__echo", "who", "b__echo"]);
    let pinned: Vec<String> = two.tool_names();
    assert_eq!(pinned, ["search_tools", "describe_tool", "call_tool", "b__sum"]);
    for query in ["echo", "process", "environment", "crash", "who", "numbers", "a__echo"] {
        for (client, sight) in [(old[1], &sights[1]), (old[2], &sights[2])] {
            for name in found(client, query) {
                assert!(sight.names.contains(&name), "{query}: {name}");
            }
        }
    }
    assert!(found(&two, "add numbers").contains(&"b__sum".to_owned()));
    heard_only(&home, "a", &of_a());
    heard_only(&home, "b", &of_b());
    updates_reach_whom_they_are_shown(&home, &old, &modern, &sights);
}

/// Both counters change: those who may see one and watch it are told, and nobody else is.
#[track_caller]
fn updates_reach_whom_they_are_shown(
    home: &Home,
    old: &[&McpClient; 3],
    modern: &[McpModern; 3],
    sights: &[Sight; 3],
) {
    let uris = ["xy://a/test://counter", "xy://b/test://counter"];
    let everybody = local(home);
    for uri in uris {
        everybody.request("resources/subscribe", json!({ "uri": uri }));
        for client in old {
            client.request("resources/subscribe", json!({ "uri": uri }));
        }
    }
    let mut listening = modern.each_ref().map(|client| {
        let wanted = json!({ "resourceSubscriptions": uris });
        client.start("subscriptions/listen", json!({ "notifications": wanted }), &[])
    });
    for (stream, sight) in listening.iter_mut().zip(sights) {
        sight.holds(&stream.next_message().unwrap(), &Value::Null);
    }
    let is_of = |uri: &'static str| move |it: &Value| it["params"]["uri"] == uri;
    for (tool, uri) in ["a__bump", "b__bump"].into_iter().zip(uris) {
        everybody.call(tool, json!({}));
        everybody.wait_notification_that(uri, is_of(uri));
    }
    old[1].wait_notification_that("the counter of b", is_of(uris[1]));
    let told = listening[1].next_message().unwrap();
    assert_eq!(told["params"]["uri"], uris[1], "{told}");
    for (client, sight) in old.iter().zip(sights) {
        client.request("ping", json!({})); // What was told before has come by now.
        for told in client.notifications() {
            sight.holds(&told, &Value::Null);
        }
    }
    for other in [0, 2] {
        assert!(listening[other].is_silent_for(A_WHILE), "it watches nothing that it may see");
    }
}

#[test]
fn a_reload_changes_what_living_clients_are_shown() {
    let home = home();
    serve_noting(&home, "a", &[]);
    serve_noting(&home, "b", &[]);
    profiles(&home);
    home.daemon();
    ready(&home, &["a", "b"]);
    let one = stranger_at(&home, &json!({ "profile": "one" }));
    one.initialize();
    assert_eq!(one.tool_names(), ["a__bump", "a__echo", "who", "b__echo"]);
    home.write_config("profiles/one.kdl", "servers \"b\"\nmanage #false\nallow \"b__echo\"");
    let reloaded = ask(&home, "reload", Value::Null);
    assert_eq!(reloaded["profiles"], json!(["one"]));
    one.wait_notification("notifications/tools/list_changed");
    assert_eq!(one.tool_names(), ["b__echo"]);
    assert_eq!(code(&one.call("a__echo", json!({ "message": "m" }))), -32602);
    home.write_config("profiles/one.kdl", "servers 7");
    assert!(home.call("reload", Value::Null).is_err(), "nothing changes by a file with a mistake");
    assert_eq!(one.tool_names(), ["b__echo"]);
    std::fs::remove_file(home.root().join("config/xy/profiles/one.kdl")).unwrap();
    ask(&home, "reload", Value::Null);
    one.wait_notification("notifications/tools/list_changed");
    assert!(one.tool_names().is_empty());
    let refused = one.call("b__echo", json!({ "message": "m" }));
    assert!(words(&refused).contains("no profile named `one`"), "{refused}");
    let gone = at(&home, "/mcp/p/one", &home.gateway_token()).post(INITIALIZE);
    assert_eq!(gone.status, 404, "{gone:?}");
}

#[test]
fn a_token_opens_its_profile_and_nothing_else_until_it_is_removed() {
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
        // Nothing tells what is hidden from what does not exist.
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
    // Numbers are of all servers.
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
    let lines: Vec<&str> = listed.lines().map(|it| it.split(", made ").next().unwrap()).collect();
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
fn a_person_is_told_which_line_decided() {
    let home = home_of_two();
    profiles(&home);
    ask(&home, "reload", Value::Null);
    let explain = |rest: &[&str]| {
        let ran = home.xy(&[&["explain", "one"], rest].concat());
        ran.stdout
    };
    home.wait_until("what servers offer is known", || {
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
    assert!(found.contains("found instead of listed by: profiles/three.kdl:4\n"), "{found}");
    let finding = home.xy(&["explain", "three", "search_tools"]).stdout;
    assert!(finding.contains("at: profiles/three.kdl:4\n"), "{finding}");
    let found = home.xy_json(&["search", "--profile", "one", "add", "numbers"]);
    assert_eq!(found["tools"][0]["name"], "who", "{found}");
}

#[test]
fn a_person_finds_tools_of_one_server_and_as_many_as_are_wanted() {
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
fn a_line_that_is_about_nothing_is_told_where_people_look() {
    let home = home_of_two();
    home.write_config(
        "profiles/odd.kdl",
        "servers \"a\"\ndeny \"a__ecko\"\nserver \"zzz\" { tools { deny \"x\" } }",
    );
    let checked = ask(&home, "check", Value::Null);
    assert!(checked.to_string().contains("no server is named `zzz`"), "{checked}");
    ask(&home, "reload", Value::Null);
    home.wait_until("it is told", || {
        let info = ask(&home, "info", Value::Null);
        let told = info["warnings"].to_string();
        (told.contains("profiles/odd.kdl:2") && told.contains("profiles/odd.kdl:3")).then_some(())
    });
    // Lines that are each about something, and show nothing together; whatever is not known of
    // a server that never comes up.
    home.write_config("servers/dead.kdl", "command \"sleep\"\nargs \"1000\"");
    home.write_config("profiles/odd.kdl", "servers \"a\"\nallow \"b__echo\"");
    ask(&home, "reload", Value::Null);
    home.wait_until("it is told", || {
        let told = ask(&home, "info", Value::Null)["warnings"].to_string();
        told.contains("profiles/odd.kdl shows no tool").then_some(())
    });
    assert!(home.xy(&["list"]).stderr.contains("profiles/odd.kdl shows no tool"));
    home.write_config("profiles/odd.kdl", "servers \"a\"");
    ask(&home, "reload", Value::Null);
    home.wait_until("it is told no more", || {
        ask(&home, "info", Value::Null).get("warnings").is_none().then_some(())
    });
    // And a client that is shown more than it can take.
    let client = stranger_at(&home, &json!({ "profile": "default" }));
    client.initialize_as(json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "cursor-vscode", "version": "1" } }));
    assert!(client.tool_names().len() > 40);
    let told = ask(&home, "info", Value::Null)["warnings"].to_string();
    assert!(told.contains("cursor-vscode") && told.contains("search"), "{told}");
}
