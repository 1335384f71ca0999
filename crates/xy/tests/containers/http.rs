//! Containers that are reached by a port.

use serde_json::json;
use xy_testkit::free_port;

use crate::stage::{Engine, assert_echoes, client};
use crate::support::{ask, home, running, running_after, status};

crate::with_each_engine!(
    http_container_is_published_on_loopback_only,
    http_container_is_adopted,
    http_readiness_probe_decides_readiness,
    sse_container_is_reconnected_after_death,
);

/// Writes the file of `one`, which listens in its container; returns the published port.
fn serve_by_port(engine: &Engine, home: &xy_testkit::Home) -> u16 {
    let port = free_port();
    let kdl = engine.kdl(
        home,
        &["xy-test-mcp", "--http", "8000"],
        "port 8000; env { LISTEN_ANYWHERE 1; }",
    );
    home.write_config("servers/one.kdl", &format!("{kdl}port {port}\n"));
    port
}

fn http_container_is_published_on_loopback_only(engine: &Engine) {
    let home = home();
    let port = serve_by_port(engine, &home);
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    assert_echoes(&client, "one");
    let published = engine.inspect(&engine.container(&home))["NetworkSettings"]["Ports"].clone();
    let loopback = json!([{ "HostIp": "127.0.0.1", "HostPort": port.to_string() }]);
    assert_eq!(published, json!({ "8000/tcp": loopback }), "there, and nowhere else");
    assert_eq!(status(&home, "one")["port"], port);
    ask(&home, "stop", json!({ "name": "one" }));
    assert!(engine.containers(&home).is_empty());
    drop(client);
    engine.finish(home);
}

fn http_container_is_adopted(engine: &Engine) {
    let home = home();
    serve_by_port(engine, &home);
    let daemon = home.daemon();
    let before = running(&home, "one");
    let client = client(&home);
    assert_echoes(&client, "one");
    daemon.kill9();
    home.daemon();
    assert_eq!(running(&home, "one"), before);
    assert_echoes(&client, "one");
    drop(client);
    engine.finish(home);
}

fn http_readiness_probe_decides_readiness(engine: &Engine) {
    let home = home();
    let serve = |well_after: &str, within: &str| {
        let port = free_port();
        let command = ["xy-test-mcp", "--http", "8000", "--well-after", well_after];
        let kdl = engine.kdl(&home, &command, "port 8000; env { LISTEN_ANYWHERE 1; }");
        let ready =
            format!("ready {{ probe \"http\"; path \"/mcp/health\"; within \"{within}\" }}\n");
        home.write_config("servers/one.kdl", &format!("{kdl}port {port}\n{ready}"));
    };
    serve("1000000", "2s");
    home.daemon();
    home.wait_until("it was not ready in time", || {
        let told = status(&home, "one")["transitions"].to_string();
        assert!(!told.contains("\"running\""), "{told}");
        told.contains("not ready within 2s")
    });
    serve("3", "60s");
    let _ = home.call("reload", json!({}));
    running(&home, "one");
    let client = client(&home);
    assert_echoes(&client, "one");
    drop(client);
    engine.finish(home);
}

fn sse_container_is_reconnected_after_death(engine: &Engine) {
    let home = home();
    let port = free_port();
    let command = ["xy-test-fixture", "--sse", "8000"];
    let kdl = engine.kdl(&home, &command, "port 8000; env { LISTEN_ANYWHERE 1; }");
    let more = "transport \"sse\"\nrestart { backoff-initial \"10ms\"; }\n";
    home.write_config("servers/one.kdl", &format!("{kdl}port {port}\n{more}"));
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    let says = |client: &xy_testkit::McpStdio| {
        let said = client.call_text("one__test_simple_text", json!({}));
        assert!(!said.is_empty());
    };
    says(&client);
    engine.must("POST", &format!("/containers/{}/kill", engine.container(&home)));
    running_after(&home, "one", 1);
    says(&client);
    drop(client);
    engine.finish(home);
}
