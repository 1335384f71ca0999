//! Lists of all servers: when they are complete, how they are paged, and which changes are
//! announced.

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{Home, McpClient};

use crate::fixtures::{
    assert_echo, error_code, error_message, home, home_of_two, http_client, linger, local_client,
    notification_count, ready, received_of, serve, serve_with, tools_of_servers,
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
fn first_list_waits_for_starting_servers() {
    let home = home();
    serve(&home, "quick", &[]);
    serve(&home, "slow", &["--slow-init", "1500"]);
    home.daemon();
    let (socket, http) = (local_client(&home), http_client(&home));
    assert_eq!(servers_in(&socket.tool_names()), ["quick", "slow"]);
    assert_eq!(servers_in(&http.tool_names()), ["quick", "slow"]);
    linger();
    assert_eq!(notification_count(&socket, CHANGED), 0, "nothing has changed since");
    home.finish();
}

#[test]
fn slow_server_is_added_to_the_list_later() {
    let home = home();
    serve(&home, "quick", &[]);
    serve_with(&home, "slow", &["--slow-init", "9000"], "ready { within \"60s\" }\n");
    home.daemon();
    let client = local_client(&home);
    assert_eq!(
        servers_in(&client.tool_names()),
        ["quick"],
        "the list does not wait until the server is ready"
    );
    client.wait_notification(CHANGED);
    assert_eq!(servers_in(&client.tool_names()), ["quick", "slow"]);
    home.finish();
}

#[test]
fn server_is_listed_once_for_all_clients() {
    let home = home_of_two();
    let (socket, http) = (local_client(&home), http_client(&home));
    for _ in 0..10 {
        assert_eq!(servers_in(&socket.tool_names()), ["a", "b"]);
        assert_eq!(servers_in(&http.tool_names()), ["a", "b"]);
    }
    // The server handles messages in order, so the earlier ones are recorded by now.
    assert_echo(&socket, "a");
    let requests = received_of(&home, "a", "tools/list");
    assert_eq!(requests.len(), 1, "{requests:?}");
    home.finish();
}

/// Returns a home whose slow server is remembered from an earlier daemon.
fn home_that_remembers() -> Home {
    let home = home();
    serve(&home, "slow", &["--slow-init", "4000"]);
    let daemon = home.daemon();
    ready(&home, &["slow"]);
    let file = home.root().join("state/xy/manifests/slow.json");
    home.wait_until("the manifest is saved", || file.exists());
    daemon.terminate();
    home
}

#[test]
fn remembered_list_is_shown_at_once_without_an_announcement() {
    let home = home_that_remembers();
    home.daemon();
    let client = local_client(&home);
    assert_eq!(servers_in(&client.tool_names()), ["slow"]);
    assert_eq!(
        status(&home, "slow")["state"],
        "starting",
        "the list has not waited for the server"
    );
    assert_echo(&client, "slow"); // The call waits.
    linger();
    assert_eq!(notification_count(&client, CHANGED), 0);
    home.finish();
}

#[test]
fn outdated_remembered_list_is_corrected() {
    let home = home_that_remembers();
    // A changed process would count as another server, of which nothing is remembered. So the same
    // command must offer something else.
    let file = home.root().join("state/xy/manifests/slow.json");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("\"name\":\"echo\""), "{text}");
    std::fs::write(&file, text.replace("\"name\":\"echo\"", "\"name\":\"echoed\"")).unwrap();
    home.daemon();
    let client = local_client(&home);
    assert!(client.tool_names().contains(&"slow__echoed".to_owned()));
    client.wait_notification(CHANGED);
    let names = client.tool_names();
    assert!(
        names.contains(&"slow__echo".to_owned()) && !names.contains(&"slow__echoed".to_owned())
    );
    home.finish();
}

#[test]
fn long_list_is_paged() {
    let home = home();
    for name in ["a", "b"] {
        serve(&home, name, &["--tools", "4000"]);
    }
    home.daemon();
    ready(&home, &["a", "b"]);
    let client = local_client(&home);
    // On a busy machine such lists may take longer than a client waits.
    home.wait_until("all is listed", || tools_of_servers(&client).len() == 2 * (4000 + 28));
    let first = client.request("tools/list", Value::Null);
    let cursor = first["result"]["nextCursor"].clone();
    assert!(cursor.is_string(), "the list has one page");
    assert!(first.to_string().len() < 5 << 20);
    let names = tools_of_servers(&client);
    let mut once = names.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), names.len());
    let again = client.request("tools/list", json!({ "cursor": cursor }));
    assert!(again["result"]["tools"].as_array().is_some_and(|tools| !tools.is_empty()));
    // The item at which the next page starts may disappear.
    ask(&home, "stop", json!({ "name": "a" }));
    ask(&home, "stop", json!({ "name": "b" }));
    let stale = client.request("tools/list", json!({ "cursor": cursor }));
    assert_eq!(error_code(&stale), -32602);
    assert!(error_message(&stale).contains("list again"), "{stale}");
    home.finish();
}

#[test]
fn tools_disappear_and_return_with_their_server() {
    let home = home_of_two();
    let (socket, http) = (local_client(&home), http_client(&home));
    assert_eq!(http.open_stream(), 200);
    assert_eq!(servers_in(&socket.tool_names()), ["a", "b"]);
    http.tool_names();
    ask(&home, "stop", json!({ "name": "a" }));
    for client in [&*socket, &*http] {
        client.wait_notification(CHANGED);
        assert_eq!(servers_in(&client.tool_names()), ["b"]);
    }
    let refused = socket.call("a__echo", json!({ "message": "x" }));
    assert_eq!(error_code(&refused), -32005, "{refused}");
    assert!(error_message(&refused).contains("xy start a"), "{refused}");
    linger();
    assert_eq!(
        (notification_count(&socket, CHANGED), notification_count(&http, CHANGED)),
        (0, 0),
        "announced once"
    );
    ask(&home, "start", json!({ "name": "a" }));
    for client in [&*socket, &*http] {
        client.wait_notification(CHANGED);
        assert_eq!(servers_in(&client.tool_names()), ["a", "b"]);
    }
    linger();
    assert_eq!(
        (notification_count(&socket, CHANGED), notification_count(&http, CHANGED)),
        (0, 0),
        "announced once"
    );
    assert_eq!(
        notification_count(&socket, "notifications/prompts/list_changed"),
        0,
        "never asked for them"
    );
    home.finish();
}

#[test]
fn list_changes_reach_clients_that_read_the_list() {
    let home = home_of_two();
    let (socket, http) = (local_client(&home), http_client(&home));
    assert_eq!(http.open_stream(), 200);
    let listed = |client: &McpClient, kind: &str| {
        let answer = client.request(&format!("{kind}/list"), Value::Null);
        answer["result"][kind].to_string()
    };
    for kind in ["prompts", "resources"] {
        for client in [&*socket, &*http] {
            assert!(!listed(client, kind).contains("fresh"));
        }
        // The server announces the change itself.
        let add = json!({ "name": "fresh", "kind": kind });
        assert_eq!(socket.call_text("a__add_tool", add), "changed");
        for client in [&*socket, &*http] {
            client.wait_notification(&format!("notifications/{kind}/list_changed"));
            assert!(listed(client, kind).contains("fresh"), "{kind}");
        }
    }
    // The items disappear with their server, and come back.
    for request in ["stop", "start"] {
        ask(&home, request, json!({ "name": "a" }));
        for client in [&*socket, &*http] {
            for kind in ["prompts", "resources"] {
                client.wait_notification(&format!("notifications/{kind}/list_changed"));
                listed(client, kind);
            }
        }
    }
    // The remembered items may be announced before those of the next process.
    for client in [&*socket, &*http] {
        for kind in ["prompts", "resources"] {
            home.wait_until("the next process is listed", || {
                !listed(client, kind).contains("fresh")
            });
        }
    }
    linger();
    for (kind, most) in [("prompts", 1), ("resources", 1), ("tools", 0)] {
        let method = format!("notifications/{kind}/list_changed");
        for client in [&*socket, &*http] {
            assert!(notification_count(client, &method) <= most, "{kind}: announced repeatedly");
        }
    }
    home.finish();
}

#[test]
fn tools_stay_while_a_server_waits_for_its_restart() {
    let home = home();
    serve(&home, "good", &[]);
    let patient = "restart { backoff-initial \"1h\"; backoff-max \"1h\" }\n";
    home.write_config("servers/bad.kdl", &format!("{}{patient}", home.kdl_mcp(&[])));
    home.daemon();
    ready(&home, &["bad", "good"]);
    let client = local_client(&home);
    let before = client.tool_names();
    assert_eq!(servers_in(&before), ["bad", "good"]);
    signal(running(&home, "bad"), Signal::KILL);
    home.wait_for_state("bad", "restarting");
    linger();
    assert_eq!((client.tool_names(), notification_count(&client, CHANGED)), (before, 0));
    home.finish();
}

#[test]
fn tools_disappear_with_a_failed_server() {
    let home = home();
    serve(&home, "a", &[]);
    let hopeless = "restart { max-attempts 1; backoff-initial \"0s\" }\n";
    home.write_config("servers/b.kdl", &format!("{}{hopeless}", home.kdl_mcp(&[])));
    home.daemon();
    ready(&home, &["a", "b"]);
    let client = local_client(&home);
    assert_eq!(servers_in(&client.tool_names()), ["a", "b"]);
    signal(running(&home, "b"), Signal::KILL);
    signal(pid_in(&running_after(&home, "b", 1)), Signal::KILL);
    home.wait_for_state("b", "failed");
    client.wait_notification(CHANGED);
    assert_eq!(servers_in(&client.tool_names()), ["a"]);
    linger();
    assert_eq!(notification_count(&client, CHANGED), 0, "announced once");
    home.finish();
}

#[test]
fn tools_follow_removed_and_added_servers() {
    let home = home_of_two();
    let client = local_client(&home);
    client.tool_names();
    home.remove_server("a");
    ask(&home, "reload", Value::Null);
    client.wait_notification(CHANGED);
    assert_eq!(servers_in(&client.tool_names()), ["b"]);
    assert_eq!(error_code(&client.call("a__echo", json!({}))), -32602);
    serve(&home, "c", &[]);
    ask(&home, "reload", Value::Null);
    client.wait_notification(CHANGED);
    assert_eq!(servers_in(&client.tool_names()), ["b", "c"]);
    assert_echo(&client, "c");
    linger();
    assert_eq!(notification_count(&client, CHANGED), 0, "announced once each");
    home.finish();
}

#[test]
fn starting_fleet_is_announced_in_batches() {
    let home = home();
    serve(&home, "first", &[]);
    home.daemon();
    ready(&home, &["first"]);
    let client = local_client(&home);
    client.tool_names();
    for number in 0..8 {
        serve(&home, &format!("more{number}"), &[]);
    }
    ask(&home, "reload", Value::Null);
    home.wait_until("all are listed", || servers_in(&client.tool_names()).len() == 9);
    linger();
    assert!(notification_count(&client, CHANGED) <= 8, "{}", notification_count(&client, CHANGED));
    home.finish();
}
