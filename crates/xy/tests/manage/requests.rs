//! `xy request`, and what `info` and `list` report of the gateway.

use std::net::TcpListener;

use serde_json::{Value, json};

use xy_testkit::remote::{Behaviour, Remote, To};
use xy_testkit::{Daemon, Home, free_port};

use crate::home_with_mcp;
use crate::support::{ask, home, refused};

#[test]
fn request_prints_the_whole_response() {
    let home = home_with_mcp(&["--only-tools", "--pass-unknown"]);
    let ping = home.xy(&["request", "one", "ping"]);
    assert_eq!((ping.code, ping.stderr.as_str()), (0, ""), "{ping:?}");
    assert_eq!(ping.stdout, "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n");
    let odd = home.xy(&["request", "one", "x/\"odd\"", "--params", r#"{ "n": 1.50 }"#]);
    assert!(odd.stdout.contains(r#""n": 1.50"#), "{odd:?}");
    let named = json!({ "server": "one", "method": "ping", "id": "mine" });
    let answer = ask(&home, "request", named);
    assert_eq!(answer, json!({ "jsonrpc": "2.0", "id": "mine", "result": {} }));
    home.finish();
}

#[test]
fn error_response_is_printed_and_exits_with_1() {
    let home = home_with_mcp(&["--only-tools"]);
    let refused = home.xy(&["request", "one", "no/such/method"]);
    assert_eq!((refused.code, refused.stderr.as_str()), (1, ""), "{refused:?}");
    let response: Value = serde_json::from_str(&refused.stdout).unwrap();
    assert_eq!((&response["id"], &response["error"]["code"]), (&json!(1), &json!(-32601)));
    home.finish();
}

#[test]
fn each_cause_of_a_missing_response_has_its_kind() {
    let home = home_with_mcp(&["--only-tools", "--die-on", "please/die"]);
    let kind = |words: &[&str]| {
        let ran = home.xy(&[&["request"], words, &["--json"]].concat());
        assert_eq!(ran.code, 1, "{ran:?}");
        let error: Value = serde_json::from_str(&ran.stdout).unwrap();
        error["error"]["data"]["kind"].as_str().unwrap().to_owned()
    };
    let never = ["one", "tools/call", "--params", r#"{"name":"never"}"#, "--timeout", "100ms"];
    assert_eq!(kind(&never), "TimedOut");
    assert_eq!(kind(&["oen", "ping"]), "ServerNotFound");
    assert_eq!(kind(&["one", "please/die"]), "OutcomeUnknown");
    home.xy(&["stop", "one"]);
    assert_eq!(kind(&["one", "ping"]), "NotRunning");
    let late = refused(&home, "request", json!({ "server": "one", "method": "ping", "id": null }));
    assert_eq!(late["code"], -32005, "an id that is null is none: {late:#}");
    home.finish();
}

/// Returns the error kind and message of a failing `xy request`.
#[track_caller]
fn failure(home: &Home, words: &[&str]) -> (String, String) {
    let ran = home.xy(&[&["request"], words, &["--json"]].concat());
    assert_eq!(ran.code, 1, "{ran:?}");
    let error: Value = serde_json::from_str(&ran.stdout).unwrap();
    let (kind, message) = (&error["error"]["data"]["kind"], &error["error"]["message"]);
    (kind.as_str().unwrap().to_owned(), message.as_str().unwrap().to_owned())
}

/// Returns the params of a tool call that is never answered.
fn never(arguments: &Value) -> String {
    json!({ "name": "never", "arguments": arguments }).to_string()
}

#[test]
fn timeout_death_and_broken_pipe_have_different_errors() {
    let home = home();
    let tireless = "restart { backoff-initial \"0s\"; max-attempts 0; max-retries-per-minute 0 }";
    let kdl = format!("{}{tireless}\n", home.kdl_mcp(&["--die-on", "please/die"]));
    home.write_config("servers/one.kdl", &kdl);
    home.write_config("servers/each.kdl", &format!("{kdl}isolation \"client\"\n"));
    home.daemon();
    for server in ["one", "each"] {
        let answers = || home.xy(&["request", server, "ping"]).code == 0;
        home.wait_until("it answers", answers);
        let late = never(&json!({}));
        let late = failure(&home, &[server, "tools/call", "--params", &late, "--timeout", "100ms"]);
        assert_eq!(late.0, "TimedOut", "{late:?}");
        let dead = failure(&home, &[server, "please/die"]);
        assert_eq!(dead.0, "OutcomeUnknown", "{dead:?}");
        for pipe in ["stdout", "stdin"] {
            home.wait_until("it answers", answers);
            let broken = never(&json!({ "close": pipe }));
            let broken = failure(&home, &[server, "tools/call", "--params", &broken]);
            assert_eq!(broken.0, "TransportFailed", "{server}: {broken:?}");
            assert!(broken.1.contains(&format!("closed its {pipe}")), "{broken:?}");
            assert!(![&late.1, &dead.1].contains(&&broken.1));
        }
        home.wait_until("it answers", answers);
        let person = never(&json!({ "close": "stdout" }));
        let person = home.xy(&["request", server, "tools/call", "--params", &person]);
        assert_eq!((person.code, person.stdout.as_str()), (1, ""), "{person:?}");
        for words in ["closed its stdout", "the connection broke before it answered"] {
            assert!(person.stderr.contains(words), "{words}: {person:?}");
        }
    }
    home.finish();
}

#[test]
fn lost_connection_and_server_exit_differ() {
    let remote = Remote::start();
    let port = free_port().to_string();
    let home = home();
    home.write_config("servers/far.kdl", &remote.kdl());
    let kdl = home.kdl_mcp(&["--http", &port, "--die-on", "please/die"]);
    home.write_config("servers/near.kdl", &format!("{kdl}transport \"http\"\nport {port}\n"));
    home.daemon();
    home.wait_for_state("far", "running");
    home.wait_for_state("near", "running");
    let echo = json!({ "name": "echo", "arguments": { "message": "x" } }).to_string();
    let echo = ["far", "tools/call", "--params", &echo];
    for behaviour in
        [Behaviour::Disconnects, Behaviour::BreaksOff, Behaviour::Status(500, Vec::new())]
    {
        remote.set_behaviour(To::Calls, behaviour.clone());
        let broken = failure(&home, &echo);
        assert_eq!(broken.0, "TransportFailed", "{behaviour:?}: {broken:?}");
    }
    remote.set_behaviour(To::Calls, Behaviour::Silent);
    let late = failure(&home, &[&echo[..], &["--timeout", "100ms"]].concat());
    assert_eq!(late.0, "TimedOut", "{late:?}");
    let dead = failure(&home, &["near", "please/die"]);
    assert_eq!(dead.0, "OutcomeUnknown", "{dead:?}");
    home.finish();
}

#[test]
fn request_to_an_isolated_server_starts_an_instance() {
    let home = home();
    let kdl = home.kdl_mcp(&["--only-tools", "--die-on", "please/die"]);
    home.write_config("servers/each.kdl", &format!("{kdl}isolation \"client\"\n"));
    home.daemon();
    let list = home.xy(&["request", "each", "tools/list"]);
    assert_eq!(list.code, 0, "{list:?}");
    assert!(list.stdout.contains("\"echo\""), "{list:?}");
    let died = home.xy(&["request", "each", "please/die"]);
    assert_eq!(died.code, 1, "{died:?}");
    assert!(died.stderr.contains("outcome unknown"), "{died:?}");
    home.finish();
}

#[test]
fn info_shows_the_tokens_on_request() {
    let home = home();
    let none = home.xy(&["info", "--token"]);
    assert_eq!(none.code, 1, "{none:?}");
    assert!(none.stderr.contains("there is no file"), "{none:?}");
    home.daemon();
    let token = home.xy(&["info", "--token"]);
    assert_eq!((token.code, token.stdout.trim_end()), (0, &*home.gateway_token()));
    let managing = home.xy(&["info", "--token", "--manage"]);
    assert_eq!((managing.code, managing.stdout.len()), (0, token.stdout.len()));
    assert_ne!(managing.stdout, token.stdout);
    assert_eq!(home.xy(&["info", "--manage"]), managing);
    let info = home.xy(&["info"]).stdout;
    assert!(info.contains("gateway     http://127.0.0.1:"), "{info}");
    assert!(info.contains("run/xy-mcp.sock"), "{info}");
    assert!(!info.contains(token.stdout.trim_end()), "no secret is shown unasked");
    home.finish();
}

#[test]
fn list_reports_recent_limit_hits() {
    let home = home();
    home.write_config("xy.kdl", "gateway { listen \"127.0.0.1:0\"; sessions 4; }\n");
    home.daemon();
    let clients: Vec<_> = (0..3).map(|_| home.mcp_http("/mcp")).collect();
    for client in &clients {
        client.initialize();
    }
    assert_eq!(home.xy(&["list"]).stderr.matches("limit").count(), 0);
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {} });
    let refused = home.mcp_http("/mcp").post(&initialize.to_string());
    assert_eq!(refused.status, 429, "{refused:?}");
    let text = "a limit was hit 1 time in the last minute: HTTP sessions, by the daemon's token";
    for shown in [home.xy(&["list"]).stderr, home.xy(&["info"]).stdout] {
        assert!(shown.contains(text), "{shown}");
    }
    let hits = &ask(&home, "info", Value::Null)["limit_hits"];
    let hit = json!([{ "limit": "HTTP sessions", "by": "the daemon's token", "times": 1 }]);
    assert_eq!(*hits, hit);
    home.finish();
}

#[test]
fn list_warns_that_the_gateway_is_not_listening() {
    let home = home_with_taken_port();
    let warned = home.0.wait_until("the port is known to be taken", || {
        let list = home.0.xy(&["list"]);
        assert_eq!(list.code, 0, "{list:?}");
        (!list.stderr.is_empty()).then_some(list)
    });
    assert!(warned.stderr.starts_with("warning: HTTP gateway is not listening"), "{warned:?}");
    assert!(warned.stdout.contains("one"), "{warned:?}");
    let json = home.0.xy(&["list", "--json"]);
    assert_eq!(json.stderr, "");
    home.0.finish();
}

#[test]
fn taken_port_is_reported_and_used_once_it_is_free() {
    let (home, taken, daemon) = home_at_taken_port();
    let address = taken.local_addr().unwrap().to_string();
    let info = home.wait_until("it is known", || {
        let info = ask(&home, "info", Value::Null);
        (!info["gateway_problem"].is_null()).then_some(info)
    });
    let problem = info["gateway_problem"].as_str().unwrap();
    assert!(problem.contains(&address) && problem.contains("in use"), "{info:#}");
    assert_eq!(info["gateway_url"], Value::Null, "{info:#}");
    let outputs = [
        home.xy(&["info"]).stdout,
        home.xy(&["list"]).stderr,
        ask(&home, "self_test", json!({ "repair": false })).to_string(),
        daemon.stderr(),
    ];
    for output in &outputs {
        assert!(output.contains(&address) && output.contains("in use"), "{output}");
    }
    for output in &outputs[..3] {
        assert!(output.contains("and may steal tokens that clients send to it"), "{output}");
        assert!(output.contains("then run `xy token rotate`"), "{output}");
    }
    assert!(outputs[3].contains("could not listen for HTTP, and will try again"), "{}", outputs[3]);
    // The control socket and the socket for clients both work.
    let client = crate::connect(&home);
    assert_eq!(client.call_text("one__echo", json!({ "message": "x" })), "x");
    let called = home.xy(&["call", "one__echo", "message=y"]);
    assert_eq!((called.code, called.stdout.trim_end()), (0, "y"), "{called:?}");

    drop(taken);
    assert_eq!(home.gateway_address(), address, "it was tried again");
    let web = home.mcp_http("/mcp");
    web.initialize();
    assert_eq!(web.call_text("one__echo", json!({ "message": "z" })), "z");
    assert_eq!(client.call_text("one__echo", json!({ "message": "x" })), "x");
    let list = home.xy(&["list"]);
    assert_eq!((list.code, list.stderr.as_str()), (0, ""), "{list:?}");
    assert_eq!(ask(&home, "info", Value::Null)["gateway_problem"], Value::Null);
    client.close();
    home.finish();
}

/// Returns a home whose gateway address is taken by another program.
fn home_with_taken_port() -> (Home, TcpListener) {
    let (home, taken, _) = home_at_taken_port();
    (home, taken)
}

fn home_at_taken_port() -> (Home, TcpListener, Daemon) {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let home = home();
    home.write_config("xy.kdl", &format!("gateway {{ listen \"{address}\" }}\n"));
    home.mcp_server("one", &[]);
    let daemon = home.daemon();
    (home, taken, daemon)
}

#[test]
fn request_to_a_starting_server_is_refused_at_once() {
    let home = home();
    let kdl = home.kdl_mcp(&["--never-init"]);
    home.write_config("servers/one.kdl", &format!("{kdl}ready {{ within \"1h\" }}\n"));
    home.daemon();
    home.wait_for_state("one", "starting");
    let (kind, why) = failure(&home, &["one", "ping"]);
    assert_eq!(kind, "NotRunning", "{why}");
    let text = home.xy(&["request", "one", "ping"]).stderr;
    assert!(text.contains("`one` is still starting"), "{text}");
    assert!(text.contains("it is not ready yet"), "{text}");
    assert!(text.contains("`xy status one`") && !text.contains("xy start"), "{text}");
    home.finish();
}
