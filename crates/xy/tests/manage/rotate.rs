//! `xy token rotate`: a new secret while clients of the old one are connected.

use serde_json::{Value, json};
use xy_testkit::{Home, McpHttp};

use crate::home_with_mcp;
use crate::support::{ask, home};

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;

fn client(home: &Home, token: &str) -> McpHttp {
    McpHttp::new(&home.gateway_address(), "/mcp", token)
}

fn status(home: &Home, token: &str) -> u16 {
    client(home, token).post(INITIALIZE).status
}

fn metrics(home: &Home, token: &str) -> String {
    McpHttp::new(&home.gateway_address(), "/metrics", token).exchange("GET", &[], "").body
}

#[test]
fn rotation_ends_only_sessions_of_the_old_secret() {
    let home = home_with_mcp(&["--only-tools"]);
    let (laptop, other) = (
        ask(&home, "token_add", json!({ "name": "laptop" }))["token"].as_str().unwrap().to_owned(),
        ask(&home, "token_add", json!({ "name": "other" }))["token"].as_str().unwrap().to_owned(),
    );
    let (old, by_name, stays) =
        (home.mcp_http("/mcp"), client(&home, &laptop), client(&home, &other));
    for one in [&old, &by_name, &stays] {
        one.initialize();
    }
    assert_eq!(old.open_stream(), 200);
    let (token, session) = (home.gateway_token(), old.session().unwrap());

    let rotated = home.xy(&["token", "rotate"]);
    assert_eq!(rotated.code, 0, "{rotated:?}");
    let lines: Vec<Vec<&str>> =
        rotated.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((lines[0][0], lines[1][0]), ("token", "manage-token"), "{rotated:?}");
    assert_eq!(lines[0][1], home.gateway_token());
    assert_eq!(home.xy(&["info", "--manage"]).stdout.trim_end(), lines[1][1]);
    assert_eq!(status(&home, &token), 401);
    let sessions = || {
        let answer = metrics(&home, &other);
        let line = answer.lines().find(|it| it.starts_with("xy_http_sessions ")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{answer}"))
    };
    assert_eq!(sessions(), "xy_http_sessions 2", "the session of the old secret has ended");
    let after = client(&home, lines[0][1]);
    after.set_session(Some(&session));
    assert_eq!(after.post(r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#).status, 404);
    assert_eq!(status(&home, lines[0][1]), 200);
    assert_eq!(by_name.call_text("one__echo", json!({ "message": "m" })), "m");

    let named = home.xy(&["token", "rotate", "laptop"]);
    assert!(named.code == 0 && named.stderr.contains("not shown again"), "{named:?}");
    assert_eq!(status(&home, &laptop), 401);
    assert_eq!(status(&home, named.stdout.trim_end()), 200);
    assert_eq!(stays.call_text("one__echo", json!({ "message": "m" })), "m");
    let unknown = home.xy(&["token", "rotate", "nobody"]);
    assert!(unknown.code != 0 && unknown.stderr.contains("no token named `nobody`"), "{unknown:?}");
    home.finish();
}

#[test]
fn concurrent_rotations_leave_one_valid_secret() {
    let home = home_with_mcp(&["--only-tools"]);
    let secrets: Vec<Value> = std::thread::scope(|scope| {
        let rotate = || ask(&home, "token_rotate", json!({}))["tokens"][0]["token"].clone();
        let both = [scope.spawn(rotate), scope.spawn(rotate)];
        both.into_iter().map(|it| it.join().unwrap()).collect()
    });
    let mut statuses: Vec<u16> =
        secrets.iter().map(|secret| status(&home, secret.as_str().unwrap())).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 401]);
    assert_eq!(status(&home, &home.gateway_token()), 200);
    home.finish();
}

#[test]
fn daemon_killed_during_rotation_leaves_the_old_or_the_new_secret() {
    let home = home();
    let daemon = home.daemon();
    let old = home.gateway_token();
    let rotated = std::thread::scope(|scope| {
        let rotating = scope.spawn(|| home.call("token_rotate", json!({})));
        daemon.kill9();
        rotating.join().ok()
    });
    let _next = home.daemon();
    let now = home.gateway_token();
    assert_eq!(status(&home, &now), 200);
    match rotated {
        Some(Ok(answer)) => assert_eq!(answer["tokens"][0]["token"], json!(now)),
        _ if now == old => {}
        _ => assert_eq!(status(&home, &old), 401),
    }
    home.finish();
}
