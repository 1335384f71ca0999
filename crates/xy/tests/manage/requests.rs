//! `xy request`, and what `info` and `list` say of the gateway.

use std::net::TcpListener;

use serde_json::{Value, json};

use crate::home_with_mcp;
use crate::support::{ask, home, refused};

#[test]
fn any_request_is_answered_with_the_whole_response() {
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
fn a_response_that_is_an_error_is_printed_and_ends_with_1() {
    let home = home_with_mcp(&["--only-tools"]);
    let refused = home.xy(&["request", "one", "no/such/method"]);
    assert_eq!((refused.code, refused.stderr.as_str()), (1, ""), "{refused:?}");
    let response: Value = serde_json::from_str(&refused.stdout).unwrap();
    assert_eq!((&response["id"], &response["error"]["code"]), (&json!(1), &json!(-32601)));
    home.finish();
}

#[test]
fn each_reason_why_there_is_no_response_has_its_kind() {
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

#[test]
fn a_server_for_each_client_is_asked_as_by_a_client() {
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
fn the_tokens_are_shown_to_whoever_may_read_their_files() {
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
    assert!(!info.contains(token.stdout.trim_end()), "no secret is told by the way");
    home.finish();
}

#[test]
fn a_list_warns_that_nobody_can_come_in() {
    let home = home_with_taken_port();
    let warned = home.0.wait_until("the port is known to be taken", || {
        let list = home.0.xy(&["list"]);
        assert_eq!(list.code, 0, "{list:?}");
        (!list.stderr.is_empty()).then_some(list)
    });
    assert!(warned.stderr.starts_with("warning: nobody can come in over HTTP"), "{warned:?}");
    assert!(warned.stdout.contains("one"), "{warned:?}");
    let json = home.0.xy(&["list", "--json"]);
    assert_eq!(json.stderr, "");
    home.0.finish();
}

/// A home whose gateway finds somebody else at its address.
fn home_with_taken_port() -> (xy_testkit::Home, TcpListener) {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let home = home();
    home.write_config("xy.kdl", &format!("gateway {{ listen \"{address}\" }}\n"));
    home.mcp_server("one", &[]);
    home.daemon();
    (home, taken)
}
