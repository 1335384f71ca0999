//! Profiles and tokens, with real servers that write down what they hear: nothing outside of a
//! profile is ever listed, found, described or called through it.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient, McpHttp, McpModern};

use crate::chance::Chance;
use crate::stage::{code, heard_of, home, home_of_two, ready, serve_noting, stranger_at, words};
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
    resources { deny "test://counter" }
}
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
        is_uri: |uri| uri != "test://counter" && !uri.contains(".."),
    }
}

fn profiles(home: &Home) {
    home.write_config("profiles/one.kdl", ONE);
    home.write_config("profiles/two.kdl", TWO);
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
fn found(client: &McpClient, query: &str) -> Vec<String> {
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
        "test://./counter",
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

#[test]
fn whatever_two_clients_guess_they_reach_only_what_their_profiles_show() {
    let home = home_of_two();
    profiles(&home);
    ask(&home, "reload", Value::Null);
    let one = stranger_at(&home, &json!({ "profile": "one" }));
    one.initialize();
    let bound = token(&home, json!({ "name": "two", "profile": "two" }));
    let two = at(&home, "/mcp", &bound);
    two.initialize();
    let modern = McpModern::http(&home.gateway_address(), "/mcp", &bound);
    let mut chance = Chance::new();
    for round in 0..400 {
        let (method, params) = guess(&mut chance);
        let answers = [one.request(method, params.clone()), two.request(method, params.clone())];
        // What they are told names nothing of the other's, but for what they have said.
        for (answer, hidden) in answers.iter().zip(["\"b__", "\"a__"]) {
            let is_renamed = answer.to_string().contains("\"b__echo\"");
            let is_told = answer["result"].to_string().contains(hidden) && !is_renamed;
            assert!(!is_told, "{round}: {method} {params}: {answer}");
        }
        if method == "tools/call" || method == "resources/read" {
            modern.request(method, params);
        }
    }
    assert_eq!(one.tool_names(), ["a__bump", "a__echo", "who", "b__echo"]);
    let pinned: Vec<String> = two.tool_names();
    assert_eq!(pinned, ["search_tools", "describe_tool", "call_tool", "b__sum"]);
    for query in ["echo", "process", "environment", "crash", "who", "numbers", "a__echo"] {
        for name in found(&two, query) {
            let inside = name.strip_prefix("b__").unwrap_or_else(|| panic!("{name}"));
            assert!((of_b().is_tool)(inside), "{query}: {name}");
        }
    }
    assert!(found(&two, "add numbers").contains(&"b__sum".to_owned()));
    heard_only(&home, "a", &of_a());
    heard_only(&home, "b", &of_b());
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
    let manager = token(&home, json!({ "name": "manager", "manage": true }));
    let status = |path: &str, token: &str| {
        let answer = at(&home, path, token).post(INITIALIZE);
        (answer.status, answer.body)
    };
    assert_eq!(status("/mcp", &laptop).0, 200);
    assert_eq!(status("/mcp/p/one", &laptop).0, 200);
    for (path, token, why) in [
        ("/mcp/p/two", &laptop, "the profile `one` only"),
        ("/mcp/p/default", &laptop, "the profile `one` only"),
        ("/mcp/s/a", &laptop, "does not show all of the server `a`"),
        ("/mcp/s/b", &laptop, "does not show all of the server `b`"),
        ("/mcp/s/a", &whole, "does not show all of the server `a`"),
    ] {
        let (code, body) = status(path, token);
        assert_eq!(code, 403, "{path}: {body}");
        assert!(body.contains(why), "{path}: {body}");
    }
    assert_eq!(status("/mcp/s/b", &whole).0, 200);
    for path in ["/mcp", "/mcp/p/two", "/mcp/s/a"] {
        assert_eq!(status(path, &home.gateway_token()).0, 200, "{path}");
        assert_eq!(status(path, &manager).0, 200, "{path}");
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
    let twice = home.call("token_add", json!({ "name": "laptop" })).unwrap_err();
    assert_eq!(twice["code"], -32004);
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
    let found = home.xy_json(&["search", "--profile", "one", "add", "numbers"]);
    assert_eq!(found["tools"][0]["name"], "who", "{found}");
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
