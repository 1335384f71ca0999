//! Lists of all servers: when they are complete, in which pieces, and who is told of changes.

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{Home, McpClient};

use crate::stage::{
    code, echoes, heard_of, home, home_of_two, linger, local, ready, serve, serve_with, told,
    tools_of_servers, web, words,
};
use crate::support::{ask, pid_in, running, running_after, signal, status};

const CHANGED: &str = "notifications/tools/list_changed";

fn servers_in(names: &[String]) -> Vec<&str> {
    let mut servers: Vec<&str> =
        names.iter().filter_map(|name| name.split_once("__")).map(|it| it.0).collect();
    servers.dedup();
    servers
}

#[test]
fn the_first_list_waits_for_servers_that_start_and_is_complete() {
    let home = home();
    serve(&home, "quick", &[]);
    serve(&home, "slow", &["--slow-init", "1500"]);
    home.daemon();
    let (socket, http) = (local(&home), web(&home));
    assert_eq!(servers_in(&socket.tool_names()), ["quick", "slow"]);
    assert_eq!(servers_in(&http.tool_names()), ["quick", "slow"]);
    linger();
    assert_eq!(told(&socket, CHANGED), 0, "nothing has changed since");
    home.finish();
}

#[test]
fn a_server_that_takes_too_long_comes_later() {
    let home = home();
    serve(&home, "quick", &[]);
    serve_with(&home, "slow", &["--slow-init", "9000"], "ready { within \"60s\" }\n");
    home.daemon();
    let client = local(&home);
    assert_eq!(servers_in(&client.tool_names()), ["quick"], "it is not waited for to the end");
    client.wait_notification(CHANGED);
    assert_eq!(servers_in(&client.tool_names()), ["quick", "slow"]);
    home.finish();
}

#[test]
fn a_server_is_asked_for_its_list_once_however_often_clients_ask() {
    let home = home_of_two();
    let (socket, http) = (local(&home), web(&home));
    for _ in 0..10 {
        assert_eq!(servers_in(&socket.tool_names()), ["a", "b"]);
        assert_eq!(servers_in(&http.tool_names()), ["a", "b"]);
    }
    // What was said before this has been heard before it.
    echoes(&socket, "a");
    let asked = heard_of(&home, "a", "tools/list");
    assert_eq!(asked.len(), 1, "{asked:?}");
    home.finish();
}

/// A home whose slow server is known from an earlier daemon.
fn home_that_remembers() -> Home {
    let home = home();
    serve(&home, "slow", &["--slow-init", "4000"]);
    let daemon = home.daemon();
    ready(&home, &["slow"]);
    let file = home.root().join("state/xy/manifests/slow.json");
    home.wait_until("it is remembered", || file.exists());
    daemon.terminate();
    home
}

#[test]
fn what_is_remembered_is_listed_at_once_and_nothing_is_told_if_it_is_still_so() {
    let home = home_that_remembers();
    home.daemon();
    let client = local(&home);
    assert_eq!(servers_in(&client.tool_names()), ["slow"]);
    assert_eq!(status(&home, "slow")["state"], "starting", "nobody has waited for it");
    echoes(&client, "slow"); // It waits.
    linger();
    assert_eq!(told(&client, CHANGED), 0);
    home.finish();
}

#[test]
fn what_is_remembered_and_not_so_any_more_is_corrected() {
    let home = home_that_remembers();
    // Another process may be another server: of that one nothing is remembered, so the same
    // command has to offer something else.
    let file = home.root().join("state/xy/manifests/slow.json");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("\"name\":\"echo\""), "{text}");
    std::fs::write(&file, text.replace("\"name\":\"echo\"", "\"name\":\"echoed\"")).unwrap();
    home.daemon();
    let client = local(&home);
    assert!(client.tool_names().contains(&"slow__echoed".to_owned()));
    client.wait_notification(CHANGED);
    let names = client.tool_names();
    assert!(
        names.contains(&"slow__echo".to_owned()) && !names.contains(&"slow__echoed".to_owned())
    );
    home.finish();
}

#[test]
fn a_server_that_is_started_otherwise_is_another() {
    let home = home_that_remembers();
    serve(&home, "slow", &["--slow-init", "1000", "--v2"]);
    home.daemon();
    let client = local(&home);
    let names = client.tool_names();
    assert!(names.contains(&"slow__reverse".to_owned()), "it was waited for: {names:?}");
    home.finish();
}

#[test]
fn a_long_list_comes_in_pieces() {
    let home = home();
    for name in ["a", "b"] {
        serve(&home, name, &["--tools", "4000"]);
    }
    home.daemon();
    ready(&home, &["a", "b"]);
    let client = local(&home);
    // A busy machine may need longer for such lists than a client is kept waiting.
    home.wait_until("all is listed", || tools_of_servers(&client).len() == 2 * (4000 + 28));
    let first = client.request("tools/list", Value::Null);
    let cursor = first["result"]["nextCursor"].clone();
    assert!(cursor.is_string(), "it is one piece");
    assert!(first.to_string().len() < 5 << 20);
    let names = tools_of_servers(&client);
    let mut once = names.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), names.len());
    let again = client.request("tools/list", json!({ "cursor": cursor }));
    assert!(again["result"]["tools"].as_array().is_some_and(|tools| !tools.is_empty()));
    // The place where the next piece begins may go.
    ask(&home, "stop", json!({ "name": "a" }));
    ask(&home, "stop", json!({ "name": "b" }));
    let stale = client.request("tools/list", json!({ "cursor": cursor }));
    assert_eq!(code(&stale), -32602);
    assert!(words(&stale).contains("begin again"), "{stale}");
    home.finish();
}

#[test]
fn tools_leave_with_a_server_that_is_stopped_and_come_back() {
    let home = home_of_two();
    let (socket, http) = (local(&home), web(&home));
    assert_eq!(http.open_stream(), 200);
    assert_eq!(servers_in(&socket.tool_names()), ["a", "b"]);
    http.tool_names();
    ask(&home, "stop", json!({ "name": "a" }));
    for client in [&*socket, &*http] {
        client.wait_notification(CHANGED);
        assert_eq!(servers_in(&client.tool_names()), ["b"]);
    }
    let refused = socket.call("a__echo", json!({ "message": "x" }));
    assert_eq!(code(&refused), -32005, "{refused}");
    assert!(words(&refused).contains("xy start a"), "{refused}");
    linger();
    assert_eq!((told(&socket, CHANGED), told(&http, CHANGED)), (0, 0), "told once");
    ask(&home, "start", json!({ "name": "a" }));
    for client in [&*socket, &*http] {
        client.wait_notification(CHANGED);
        assert_eq!(servers_in(&client.tool_names()), ["a", "b"]);
    }
    linger();
    assert_eq!((told(&socket, CHANGED), told(&http, CHANGED)), (0, 0), "told once");
    assert_eq!(told(&socket, "notifications/prompts/list_changed"), 0, "never asked for them");
    home.finish();
}

#[test]
fn prompts_and_resources_that_change_are_told_to_those_who_have_seen_them() {
    let home = home_of_two();
    let (socket, http) = (local(&home), web(&home));
    assert_eq!(http.open_stream(), 200);
    let listed = |client: &McpClient, kind: &str| {
        let answer = client.request(&format!("{kind}/list"), Value::Null);
        answer["result"][kind].to_string()
    };
    for kind in ["prompts", "resources"] {
        for client in [&*socket, &*http] {
            assert!(!listed(client, kind).contains("fresh"));
        }
        // The server says so itself.
        let add = json!({ "name": "fresh", "kind": kind });
        assert_eq!(socket.call_text("a__add_tool", add), "changed");
        for client in [&*socket, &*http] {
            client.wait_notification(&format!("notifications/{kind}/list_changed"));
            assert!(listed(client, kind).contains("fresh"), "{kind}");
        }
    }
    // Or they leave with it, and come back.
    for request in ["stop", "start"] {
        ask(&home, request, json!({ "name": "a" }));
        for client in [&*socket, &*http] {
            for kind in ["prompts", "resources"] {
                client.wait_notification(&format!("notifications/{kind}/list_changed"));
                listed(client, kind);
            }
        }
    }
    // What was remembered of it may have been told before what its next life offers.
    for client in [&*socket, &*http] {
        for kind in ["prompts", "resources"] {
            home.wait_until("the next life is seen", || !listed(client, kind).contains("fresh"));
        }
    }
    linger();
    for (kind, most) in [("prompts", 1), ("resources", 1), ("tools", 0)] {
        let method = format!("notifications/{kind}/list_changed");
        for client in [&*socket, &*http] {
            assert!(told(client, &method) <= most, "{kind}: told again and again");
        }
    }
    home.finish();
}

#[test]
fn tools_stay_while_a_server_waits_to_be_started_again() {
    let home = home();
    serve(&home, "good", &[]);
    let patient = "restart { backoff-initial \"1h\"; backoff-max \"1h\" }\n";
    home.write_config("servers/bad.kdl", &format!("{}{patient}", home.kdl_mcp(&[])));
    home.daemon();
    ready(&home, &["bad", "good"]);
    let client = local(&home);
    let before = client.tool_names();
    assert_eq!(servers_in(&before), ["bad", "good"]);
    signal(running(&home, "bad"), Signal::KILL);
    home.wait_for_state("bad", "restarting");
    linger();
    assert_eq!((client.tool_names(), told(&client, CHANGED)), (before, 0));
    home.finish();
}

#[test]
fn tools_leave_with_a_server_that_fails() {
    let home = home();
    serve(&home, "a", &[]);
    let hopeless = "restart { max-attempts 1; backoff-initial \"0s\" }\n";
    home.write_config("servers/b.kdl", &format!("{}{hopeless}", home.kdl_mcp(&[])));
    home.daemon();
    ready(&home, &["a", "b"]);
    let client = local(&home);
    assert_eq!(servers_in(&client.tool_names()), ["a", "b"]);
    signal(running(&home, "b"), Signal::KILL);
    signal(pid_in(&running_after(&home, "b", 1)), Signal::KILL);
    home.wait_for_state("b", "failed");
    client.wait_notification(CHANGED);
    assert_eq!(servers_in(&client.tool_names()), ["a"]);
    linger();
    assert_eq!(told(&client, CHANGED), 0, "told once");
    home.finish();
}

#[test]
fn tools_leave_with_a_server_that_is_removed_and_come_with_one_that_is_added() {
    let home = home_of_two();
    let client = local(&home);
    client.tool_names();
    home.remove_server("a");
    ask(&home, "reload", Value::Null);
    client.wait_notification(CHANGED);
    assert_eq!(servers_in(&client.tool_names()), ["b"]);
    assert_eq!(code(&client.call("a__echo", json!({}))), -32602);
    serve(&home, "c", &[]);
    ask(&home, "reload", Value::Null);
    client.wait_notification(CHANGED);
    assert_eq!(servers_in(&client.tool_names()), ["b", "c"]);
    echoes(&client, "c");
    linger();
    assert_eq!(told(&client, CHANGED), 0, "told once each");
    home.finish();
}

#[test]
fn only_real_changes_are_told_and_each_once() {
    let home = home_of_two();
    let (client, fresh) = (local(&home), local(&home));
    client.tool_names();
    for _ in 0..20 {
        client.call_text("a__touch_list", json!({}));
    }
    linger();
    assert_eq!(told(&client, CHANGED), 0, "nothing has changed");
    for number in 0..10 {
        client.call_text("a__add_tool", json!({ "name": format!("new_{number}") }));
    }
    client.wait_notification(CHANGED);
    home.wait_until("all are listed", || {
        let names = client.tool_names();
        (0..10).all(|number| names.contains(&format!("a__new_{number}")))
    });
    linger();
    assert!(told(&client, CHANGED) < 5, "they are gathered");
    assert_eq!(told(&fresh, CHANGED), 0, "it has never asked");
    assert_eq!(client.call_text("a__new_3", json!({ "query": 1 })), "new_3 1");
    // A tool that goes is not callable any more.
    let _ = client.notifications();
    client.call_text("a__remove_tool", json!({ "name": "new_3" }));
    home.wait_until("it is gone", || !client.tool_names().contains(&"a__new_3".to_owned()));
    assert_eq!(code(&client.call("a__new_3", json!({}))), -32602);
    home.finish();
}

#[test]
fn a_fleet_that_comes_up_is_told_of_in_few_words() {
    let home = home();
    serve(&home, "first", &[]);
    home.daemon();
    ready(&home, &["first"]);
    let client = local(&home);
    client.tool_names();
    for number in 0..8 {
        serve(&home, &format!("more{number}"), &[]);
    }
    ask(&home, "reload", Value::Null);
    home.wait_until("all are listed", || servers_in(&client.tool_names()).len() == 9);
    linger();
    assert!(told(&client, CHANGED) <= 8, "{}", told(&client, CHANGED));
    home.finish();
}
