//! Containers that are reached by a port.

use serde_json::json;

use crate::stage::{Engine, client, echoes};
use crate::support::{ask, home, running, status};

crate::with_each_engine!(one_is_reached_by_a_port_on_loopback_alone, one_by_http_is_adopted_too);

/// A port that was free a moment ago.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn one_is_reached_by_a_port_on_loopback_alone(engine: &Engine) {
    let home = home();
    let port = free_port();
    let kdl = engine.kdl(
        &home,
        &["xy-test-mcp", "--http", "8000"],
        "port 8000; env { LISTEN_ANYWHERE 1; }",
    );
    home.write_config("servers/one.kdl", &format!("{kdl}port {port}\n"));
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    echoes(&client, "one");
    let all = engine.containers(&home);
    let published = &all[0]["Ports"][0];
    assert_eq!(
        (&published["IP"], &published["PublicPort"]),
        (&json!("127.0.0.1"), &json!(port)),
        "{all:#?}"
    );
    assert_eq!(status(&home, "one")["port"], port);
    ask(&home, "stop", json!({ "name": "one" }));
    assert!(engine.containers(&home).is_empty());
    drop(client);
    engine.finish(home);
}

fn one_by_http_is_adopted_too(engine: &Engine) {
    let home = home();
    let port = free_port();
    let kdl = engine.kdl(
        &home,
        &["xy-test-mcp", "--http", "8000"],
        "port 8000; env { LISTEN_ANYWHERE 1; }",
    );
    home.write_config("servers/one.kdl", &format!("{kdl}port {port}\n"));
    let daemon = home.daemon();
    let before = running(&home, "one");
    let client = client(&home);
    echoes(&client, "one");
    daemon.kill9();
    home.daemon();
    assert_eq!(running(&home, "one"), before);
    echoes(&client, "one");
    drop(client);
    engine.finish(home);
}
