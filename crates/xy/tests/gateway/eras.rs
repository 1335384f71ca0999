//! Protocol detection: xy finds out which era a server speaks without side effects, and remembers
//! it.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::remote::Remote;
use xy_testkit::{Home, free_port};

use crate::fixtures::{
    assert_echo, home, http_client, input_log_file, linger, local_client, ready, received,
    received_of, serve_recorded, serve_with,
};
use crate::support::{running, running_after, signal, status};

const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";

/// Returns a home with one server that records its messages, which is ready, and its daemon.
#[track_caller]
fn home_with(flags: &[&str]) -> Home {
    let home = home();
    serve_recorded(&home, "s", flags);
    home.daemon();
    ready(&home, &["s"]);
    home
}

/// Writes a server that records its messages, without health probes.
fn serve_unprobed(home: &Home, flags: &[&str]) {
    let file = input_log_file(home, "s");
    let flags = [flags, &["--input-log", file.to_str().unwrap()]].concat();
    serve_with(home, "s", &flags, "health { probe \"off\" }\n");
}

/// A response over 32 MiB takes time on a busy machine.
const LONG_READY_TIMEOUT: &str = "ready { within \"60s\" }\n";

/// Returns the revision that the server uses.
#[track_caller]
fn protocol(home: &Home) -> String {
    status(home, "s")["protocol"].as_str().unwrap_or_default().to_owned()
}

/// Returns the methods that the server has received since `skip`, in order.
fn methods(home: &Home, skip: usize) -> Vec<String> {
    let messages = received(home, "s").into_iter().skip(skip);
    messages.map(|it| it["method"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Waits until the server has read so many messages after the first `skip`, and returns their
/// methods: it may be ready before it has read all that it was sent.
#[track_caller]
fn first_methods(home: &Home, skip: usize, count: usize) -> Vec<String> {
    home.wait_until("the server has read its messages", || {
        let methods = methods(home, skip);
        methods.get(..count).map(<[String]>::to_vec)
    })
}

/// Waits until the server's manifest is saved.
#[track_caller]
fn wait_until_remembered(home: &Home, version: &str) {
    let file = home.root().join("state/xy/manifests/s.json");
    let is_there = || fs::read_to_string(&file).is_ok_and(|text| text.contains(version));
    home.wait_until("the manifest is saved", is_there);
}

#[track_caller]
fn restart(home: &Home) {
    let ran = home.xy(&["restart", "s"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    ready(home, &["s"]);
}

/// Returns the response to a raw request.
#[track_caller]
fn request(home: &Home, method: &str, params: &Value) -> Value {
    home.call("request", json!({ "server": "s", "method": method, "params": params })).unwrap()
}

#[test]
fn legacy_server_is_probed_once() {
    for code in ["-32601", "-32602"] {
        let home = home();
        serve_unprobed(&home, &["--discover", code]);
        home.daemon();
        ready(&home, &["s"]);
        assert_eq!(protocol(&home), LEGACY);
        wait_until_remembered(&home, LEGACY);
        let first = methods(&home, 0);
        assert_eq!(first[..3], ["server/discover", "initialize", "notifications/initialized"]);
        let before = received(&home, "s").len();
        restart(&home);
        assert_eq!(methods(&home, before)[0], "initialize");
        home.finish();
    }
}

#[test]
fn older_server_is_spoken_with_in_its_revision() {
    for version in ["2024-11-05", "2025-03-26", "2025-06-18"] {
        let home = home_with(&["--protocol", version]);
        let offered = received_of(&home, "s", "initialize");
        assert_eq!(offered[0]["params"]["protocolVersion"], LEGACY, "the newest is offered");
        assert_eq!(protocol(&home), version);
        let shown = home.xy(&["status", "s"]).stdout;
        let is_shown = |line: &str| line.contains("protocol") && line.contains(version);
        assert!(shown.lines().any(is_shown), "{version}: {shown}");
        for client in [&*local_client(&home), &*http_client(&home)] {
            assert!(client.tool_names().contains(&"s__echo".to_owned()), "{version}");
            assert_echo(client, "s");
        }
        home.finish();
    }
}

#[test]
fn detected_era_outlives_the_daemon() {
    let home = home_with(&[]);
    wait_until_remembered(&home, LEGACY);
    assert_eq!(home.xy(&["shutdown"]).code, 0);
    let before = received(&home, "s").len();
    home.daemon();
    ready(&home, &["s"]);
    assert_eq!(methods(&home, before)[0], "initialize");
    home.finish();
}

#[test]
fn modern_server_is_detected_listed_and_subscribed_to() {
    let home = home_with(&["--era", "modern"]);
    assert_eq!(protocol(&home), MODERN);
    let client = local_client(&home);
    assert!(client.tool_names().contains(&"s__echo".to_owned()));
    let answer = request(&home, "tools/list", &json!({ "_meta": { "x": 1 } }));
    assert!(answer["result"]["tools"].is_array(), "{answer}");
    let mine = received_of(&home, "s", "tools/list");
    assert_eq!(mine.last().unwrap()["params"]["_meta"]["x"], 1, "{mine:?}");
    let never = ["ping", "logging/setLevel", "notifications/initialized"];
    assert!(!methods(&home, 0).iter().any(|it| never.contains(&it.as_str())));
    // The first process was asked after `server/discover`, and a fresh one before it.
    let learned = ["server/discover", "initialize", "initialize", "server/discover"];
    assert_eq!(first_methods(&home, 0, 4), learned);
    assert_eq!(status(&home, "s")["restarts_total"], 0);
    let key = "io.modelcontextprotocol/protocolVersion";
    for request in received(&home, "s").iter().skip(3).filter(|it| it.get("id").is_some()) {
        assert_eq!(request["params"]["_meta"][key], MODERN, "{request}");
    }
    assert_eq!(received_of(&home, "s", "subscriptions/listen").len(), 1);
    wait_until_remembered(&home, MODERN);
    let before = received(&home, "s").len();
    restart(&home);
    assert_eq!(methods(&home, before)[0], "server/discover");
    assert_eq!(received_of(&home, "s", "initialize").len(), 2, "that was learned once");
    home.finish();
}

#[test]
fn list_changes_of_a_modern_server_are_announced() {
    let home = home_with(&["--era", "modern"]);
    let client = local_client(&home);
    assert!(!client.tool_names().contains(&"s__new".to_owned()));
    let call = json!({ "name": "add_tool", "arguments": { "name": "new" } });
    let answer = request(&home, "tools/call", &call);
    assert!(answer.get("result").is_some(), "{answer}");
    client.wait_notification("notifications/tools/list_changed");
    assert!(client.tool_names().contains(&"s__new".to_owned()));
    home.finish();
}

#[test]
fn modern_server_serves_legacy_clients() {
    let home = home_with(&["--era", "modern"]);
    assert_echo(&local_client(&home), "s");
    assert_echo(&http_client(&home), "s");
    let ran = home.xy(&["call", "s__echo", "message=from a verb"]);
    assert!(ran.stdout.contains("from a verb"), "{} {}", ran.stdout, ran.stderr);
    let key = "io.modelcontextprotocol/protocolVersion";
    for call in received_of(&home, "s", "tools/call") {
        assert_eq!(call["params"]["_meta"][key], MODERN, "{call}");
    }
    home.finish();
}

#[test]
fn subscription_at_a_modern_server_survives_its_death() {
    let home = home_with(&["--era", "modern"]);
    let client = local_client(&home);
    let uri = json!({ "uri": "xy://s/test://counter" });
    let updated = "notifications/resources/updated";
    let answer = client.request("resources/subscribe", uri.clone());
    assert!(answer.get("result").is_some(), "{answer}");
    client.call_text("s__bump", json!({}));
    assert_eq!(client.wait_notification(updated)["params"], uri);
    signal(running(&home, "s"), Signal::KILL);
    running_after(&home, "s", 1);
    home.wait_until("the subscription is renewed", || {
        let listens = received_of(&home, "s", "subscriptions/listen");
        listens.last().unwrap()["params"]["notifications"]["resourceSubscriptions"][0]
            == "test://counter"
            && listens.len() == 3
    });
    client.call_text("s__bump", json!({}));
    assert_eq!(client.wait_notification(updated)["params"], uri);
    home.finish();
}

#[test]
fn modern_server_without_subscriptions_is_not_asked_again() {
    let home = home_with(&["--era", "modern", "--no-listen"]);
    let client = local_client(&home);
    assert!(client.tool_names().contains(&"s__echo".to_owned()));
    linger();
    assert_eq!(received_of(&home, "s", "subscriptions/listen").len(), 1, "it is not retried");
    home.finish();
}

#[test]
fn server_of_both_eras_is_learned_once_in_one_process() {
    let home = home();
    serve_unprobed(&home, &["--era", "both"]);
    home.daemon();
    ready(&home, &["s"]);
    assert_eq!(protocol(&home), LEGACY);
    let learned = ["server/discover", "initialize", "notifications/initialized"];
    assert_eq!(first_methods(&home, 0, 3), learned);
    wait_until_remembered(&home, LEGACY);
    let before = received(&home, "s").len();
    restart(&home);
    assert_eq!(first_methods(&home, before, 2), ["initialize", "notifications/initialized"]);
    home.finish();
}

#[test]
fn era_of_dual_server_depends_on_the_transport() {
    let home = home();
    let port = free_port().to_string();
    for (name, way, more) in [
        ("pipes", vec!["--stdio"], String::new()),
        ("http", vec!["--http", &port], format!("port {port}\n")),
    ] {
        let args = [&way[..], &["--era", "both"]].concat();
        let kdl = format!("{}{more}", home.kdl_command("xy-test-fixture", &args));
        home.write_config(&format!("servers/{name}.kdl"), &kdl);
    }
    home.daemon();
    ready(&home, &["pipes", "http"]);
    let client = local_client(&home);
    for (name, protocol) in [("pipes", LEGACY), ("http", MODERN)] {
        assert_eq!(status(&home, name)["protocol"], protocol, "{name}");
        let tool = format!("{name}__test_simple_text");
        home.wait_until("its tools are there", || client.tool_names().contains(&tool));
        let answer = client.call(&tool, json!({}));
        assert!(answer["result"]["content"][0]["text"].is_string(), "{answer}");
    }
    home.finish();
}

#[test]
fn hanging_modern_http_server_is_restarted() {
    let home = home();
    let port = free_port().to_string();
    let kdl = home.kdl_command("xy-test-fixture", &["--http", &port, "--era", "modern"]);
    let rules = "restart { backoff-initial \"0s\"; max-attempts 0; max-retries-per-minute 0 }\n\
         stop { grace \"1s\" }\n\
         health { interval \"50ms\"; timeout \"2s\"; failures 3 }\n";
    home.write_config("servers/s.kdl", &format!("{kdl}port {port}\n{rules}"));
    home.daemon();
    let first = running(&home, "s");
    home.wait_until("it is healthy", || status(&home, "s")["health"] == "healthy");
    assert_eq!(protocol(&home), MODERN);
    signal(first, Signal::STOP);
    let now = running_after(&home, "s", 1);
    let transitions = now["transitions"].to_string();
    assert!(transitions.contains("`server/discover` was not answered within 2s"), "{transitions}");
    home.wait_until("it is healthy again", || status(&home, "s")["health"] == "healthy");
    home.finish();
}

#[test]
fn silent_server_is_greeted_in_the_legacy_era() {
    let home = home_with(&["--discover", "silent"]);
    assert_eq!(protocol(&home), LEGACY);
    assert_eq!(first_methods(&home, 0, 2), ["server/discover", "initialize"]);
    assert!(received_of(&home, "s", "notifications/cancelled").is_empty());
    home.finish();
}

#[test]
fn late_discover_response_counts() {
    let home = home_with(&["--era", "modern", "--discover", "late"]);
    assert_eq!(protocol(&home), MODERN);
    assert_eq!(received_of(&home, "s", "initialize").len(), 1, "it was asked both ways");
    let client = local_client(&home);
    assert!(client.tool_names().contains(&"s__echo".to_owned()));
    home.finish();
}

#[test]
fn crash_on_discover_falls_back_to_legacy_uncounted() {
    for how in ["dies", "mute"] {
        let home = home_with(&["--discover", how]);
        let now = status(&home, "s");
        assert_eq!(
            (&now["protocol"], &now["restarts_total"]),
            (&json!(LEGACY), &json!(0)),
            "{now}"
        );
        assert_eq!(now["last_exit"]["expected"], true, "{now}");
        let first = methods(&home, 0);
        assert_eq!(first[..2], ["server/discover", "initialize"], "{how}");
        restart(&home);
        assert_eq!(
            received_of(&home, "s", "server/discover").len(),
            1,
            "{how}: it is not probed again"
        );
        home.finish();
    }
}

#[test]
fn crash_on_every_request_counts_from_the_second() {
    let home = home();
    let flags = ["--discover", "dies", "--die-on", "initialize"];
    let once = "restart { max-attempts 1; backoff-initial \"0s\" }\n";
    home.write_config("servers/s.kdl", &format!("{}{once}", home.kdl_mcp(&flags)));
    home.daemon();
    let now = home.wait_for_state("s", "failed");
    assert_eq!(now["restarts_total"], 1, "{now}");
    home.finish();
}

#[test]
fn unreadable_discover_response_falls_back_to_the_legacy_era_once() {
    for how in ["huge", "odd", "garbage"] {
        let home = home();
        let input_log = input_log_file(&home, "s");
        let flags = ["--discover", how, "--input-log", input_log.to_str().unwrap()];
        serve_with(&home, "s", &flags, LONG_READY_TIMEOUT);
        home.daemon();
        ready(&home, &["s"]);
        let now = status(&home, "s");
        assert_eq!(
            (&now["protocol"], &now["restarts_total"]),
            (&json!(LEGACY), &json!(0)),
            "{how}: {now}"
        );
        assert_eq!(first_methods(&home, 0, 2), ["server/discover", "initialize"], "{how}");
        wait_until_remembered(&home, LEGACY); // Otherwise the next process would be probed again.
        restart(&home);
        assert_eq!(
            received_of(&home, "s", "server/discover").len(),
            1,
            "{how}: it is not probed again"
        );
        home.finish();
    }
}

#[test]
fn unreadable_modern_only_server_fails_with_a_reason() {
    for how in ["huge", "odd"] {
        let home = home();
        let flags = ["--era", "modern", "--discover", how];
        let once = "restart { max-attempts 1; backoff-initial \"0s\" }\n";
        home.write_config(
            "servers/s.kdl",
            &format!("{}{once}{LONG_READY_TIMEOUT}", home.kdl_mcp(&flags)),
        );
        home.daemon();
        let now = home.wait_for_state("s", "failed");
        let reason = now["reason"].as_str().unwrap();
        assert!(reason.contains("response to `server/discover` cannot be parsed"), "{reason}");
        assert!(reason.contains("it refused `initialize`"), "{reason}");
        home.finish();
    }
}

#[test]
fn server_that_refuses_its_own_revision_fails_with_a_reason() {
    for code in ["-32600", "-32601", "-32022"] {
        let home = home();
        let flags = ["--era", "modern", "--lies", code];
        let once = "restart { max-attempts 1; backoff-initial \"0s\" }\n";
        home.write_config("servers/s.kdl", &format!("{}{once}", home.kdl_mcp(&flags)));
        home.daemon();
        let now = home.wait_for_state("s", "failed");
        let reason = now["reason"].as_str().unwrap();
        assert!(reason.contains("2026-07-28, and refuses `tools/list`"), "{reason}");
        home.finish();
    }
}

#[test]
fn server_without_a_common_revision_fails_with_a_reason() {
    let home = home();
    let flags = ["--discover", "-32022", "--refuse-init"];
    let once = "restart { max-attempts 1; backoff-initial \"0s\" }\n";
    home.write_config("servers/s.kdl", &format!("{}{once}", home.kdl_mcp(&flags)));
    home.daemon();
    let now = home.wait_for_state("s", "failed");
    let reason = now["reason"].as_str().unwrap();
    assert!(reason.contains("it refused `server/discover`"), "{reason}");
    home.finish();
}

/// Writes a script that starts the server, so that an upgrade keeps the config file.
fn upgradable(home: &Home, flags: &str) {
    let script = home.root().join("harness/upgradable");
    let (program, input_log) = (home.program("xy-test-mcp"), home.root().join("harness/s.input"));
    let line = format!(
        "#!/bin/sh\nexec {} --input-log {} {flags}\n",
        program.display(),
        input_log.display()
    );
    fs::write(&script, line).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&script, mode).unwrap();
    home.write_config("servers/s.kdl", &home.kdl_command(script.to_str().unwrap(), &[]));
}

#[test]
fn outdated_era_is_corrected_after_an_upgrade() {
    let home = home();
    upgradable(&home, "--era legacy");
    home.daemon();
    ready(&home, &["s"]);
    wait_until_remembered(&home, LEGACY);
    upgradable(&home, "--era modern");
    restart(&home);
    assert_eq!(protocol(&home), MODERN);
    wait_until_remembered(&home, MODERN);
    upgradable(&home, "--era legacy");
    restart(&home);
    assert_eq!(protocol(&home), LEGACY);
    wait_until_remembered(&home, LEGACY);
    let now = status(&home, "s");
    assert_eq!(now["restarts_total"], 0, "{now}");
    home.finish();
}

/// A server that spoke only the modern era is asked nothing else, in case it starts slowly.
#[test]
fn outdated_era_is_corrected_if_the_upgrade_ignores_the_question() {
    let home = home();
    upgradable(&home, "--era modern");
    let script = home.root().join("harness/upgradable");
    let kdl = home.kdl_command(script.to_str().unwrap(), &[]);
    home.write_config("servers/s.kdl", &format!("{kdl}ready {{ within \"4s\" }}\n"));
    home.daemon();
    ready(&home, &["s"]);
    wait_until_remembered(&home, MODERN);
    upgradable(&home, "--era legacy --discover silent");
    assert_eq!(home.xy(&["restart", "--no-wait", "s"]).code, 0);
    home.wait_until("it speaks the legacy era", || {
        let now = status(&home, "s");
        now["state"] == "running" && now["protocol"] == LEGACY
    });
    home.finish();
}

#[test]
fn adopted_modern_server_is_not_probed_again() {
    let home = home();
    serve_unprobed(&home, &["--era", "modern"]);
    let daemon = home.daemon();
    ready(&home, &["s"]);
    wait_until_remembered(&home, MODERN);
    let pid = status(&home, "s")["pid"].clone();
    let discovered = received_of(&home, "s", "server/discover").len();
    daemon.kill9();
    home.daemon();
    ready(&home, &["s"]);
    home.wait_until("the adopted server is connected", || protocol(&home) == MODERN);
    assert_eq!(status(&home, "s")["pid"], pid);
    assert_eq!(received_of(&home, "s", "server/discover").len(), discovered);
    home.wait_until("the subscription of the earlier daemon is cancelled", || {
        received_of(&home, "s", "notifications/cancelled").len() == 1
    });
    let listens = received_of(&home, "s", "subscriptions/listen");
    let ended = &received_of(&home, "s", "notifications/cancelled")[0]["params"]["requestId"];
    assert_eq!((listens.len(), &listens[0]["id"]), (2, ended));
    home.finish();
}

// Over HTTP.

#[track_caller]
fn home_of_remote(remote: &Remote) -> Home {
    let home = home();
    home.write_config("servers/s.kdl", &remote.kdl());
    home.daemon();
    ready(&home, &["s"]);
    home
}

fn modern() -> Remote {
    let remote = Remote::start();
    remote.set_modern(true);
    remote
}

#[track_caller]
fn call(home: &Home, tool: &str, message: &str) -> Value {
    request(home, "tools/call", &json!({ "name": tool, "arguments": { "message": message } }))
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_default()
}

#[test]
fn modern_http_server_gets_header_metadata() {
    let remote = modern();
    let home = home_of_remote(&remote);
    assert_eq!(protocol(&home), MODERN);
    let client = local_client(&home);
    home.wait_until("its tools are there", || {
        client.tool_names().contains(&"s__marked".to_owned())
    });
    assert!(!client.tool_names().contains(&"s__ill_marked".to_owned()));
    let log = home.xy(&["logs", "s"]).stdout;
    assert!(log.contains("tool `ill_marked` is not shown"), "{log}");
    assert_eq!(text(&call(&home, "echo", "a")), "a");
    assert_eq!(text(&call(&home, "stream", "b")), "b");
    assert_eq!(text(&call(&home, "marked", "c d")), "c d");
    let odd = call(&home, "refused", "d");
    assert_eq!(odd["error"]["code"], -32602, "{odd}");
    let heads = remote.heads();
    assert!(heads.iter().all(|head| head.method == "POST"), "no GET and no DELETE");
    let initialize_count = heads.iter().filter(|head| head.message == "initialize").count();
    assert_eq!(initialize_count, 1, "whether it speaks the legacy era too is learned once");
    home.wait_until("the server has a subscription", || remote.listeners() == 1);
    home.finish();
}

#[test]
fn changed_header_marks_are_learned_and_the_call_runs_once() {
    let remote = modern();
    let home = home_of_remote(&remote);
    assert_eq!(text(&call(&home, "marked", "a")), "a");
    remote.mark("Place");
    assert_eq!(text(&call(&home, "marked", "b")), "b");
    assert_eq!(remote.done(), ["a", "b"]);
    let last = remote.heads().into_iter().rfind(|head| head.message == "tools/call").unwrap();
    assert_eq!(last.headers["mcp-param-place"], "b");
    assert!(!last.headers.contains_key("mcp-param-region"));
    home.finish();
}

#[test]
fn modern_stream_without_an_answer_is_lost_and_not_resumed() {
    let remote = modern();
    let home = home_of_remote(&remote);
    for tool in ["lost", "cut"] {
        let params = json!({ "name": tool, "arguments": { "message": "x" } });
        let params = json!({ "server": "s", "method": "tools/call", "params": params });
        let error = home.call("request", params).unwrap_err();
        assert_eq!(error["code"], -32011, "{error}");
    }
    assert!(remote.heads().iter().all(|head| head.method == "POST"));
    home.finish();
}

#[test]
fn timed_out_call_closes_its_stream_without_a_notification() {
    let remote = modern();
    let home = home_of_remote(&remote);
    home.wait_until("the server has a subscription", || remote.listeners() == 1);
    let params = json!({ "name": "wait", "arguments": { "message": "x" } });
    let ask = json!({ "server": "s", "method": "tools/call", "params": params, "timeout_ms": 300 });
    let error = home.call("request", ask).unwrap_err();
    assert_eq!(error["code"], -32007, "{error}");
    remote.let_go();
    assert!(!remote.heads().iter().any(|head| head.message.starts_with("notifications/")));
    assert_eq!(text(&call(&home, "echo", "on")), "on");
    home.finish();
}

#[test]
fn cancellation_of_a_legacy_client_closes_the_modern_stream() {
    let remote = modern();
    let home = home_of_remote(&remote);
    home.wait_until("the server has a subscription", || remote.listeners() == 1);
    let client = local_client(&home);
    assert_eq!(text(&client.call("s__marked", json!({ "message": "é" }))), "é");
    let idle = remote.connections();
    let id = client.start_call("s__wait", json!({ "message": "x" }));
    home.wait_until("the server has the call", || remote.done().len() == 2);
    client.cancel(&json!(id));
    remote.let_go();
    home.wait_until("its stream is closed", || remote.connections() <= idle);
    assert_eq!(text(&client.call("s__echo", json!({ "message": "on" }))), "on");
    assert!(!remote.heads().iter().any(|head| head.message.starts_with("notifications/")));
    home.finish();
}

#[test]
fn broken_subscription_is_renewed() {
    let remote = modern();
    let home = home_of_remote(&remote);
    home.wait_until("the server has a subscription", || remote.listeners() == 1);
    let lists = || remote.heads().iter().filter(|head| head.message == "tools/list").count();
    let before = lists();
    remote.hang_up();
    home.wait_until("the subscription is renewed", || remote.listened() == 2);
    home.wait_until("its lists are asked for again", || lists() > before);
    home.finish();
}

#[test]
fn http_server_that_names_its_revision_is_greeted_in_it() {
    let remote = Remote::start();
    remote.speak_only("2025-03-26");
    let home = home_of_remote(&remote);
    assert_eq!(protocol(&home), "2025-03-26");
    assert_eq!(text(&call(&home, "echo", "a")), "a");
    assert_eq!(remote.begun(), 1, "one session is enough");
    home.finish();
}

#[test]
fn http_server_may_return_in_the_other_era() {
    let remote = Remote::start();
    let home = home_of_remote(&remote);
    assert_eq!(protocol(&home), LEGACY);
    wait_until_remembered(&home, LEGACY);
    remote.set_modern(true);
    restart(&home);
    assert_eq!(protocol(&home), MODERN);
    remote.set_modern(false);
    restart(&home);
    assert_eq!(protocol(&home), LEGACY);
    home.finish();
}

#[test]
fn http_server_that_changes_its_era_is_greeted_again() {
    let remote = modern();
    let home = home_of_remote(&remote);
    home.wait_until("the server has a subscription", || remote.listeners() == 1);
    remote.set_modern(false);
    let params = json!({ "name": "echo", "arguments": { "message": "x" } });
    let ask = json!({ "server": "s", "method": "tools/call", "params": params });
    let _ = home.call("request", ask); // The server does not understand this call.
    home.wait_until("the server is greeted in the other era", || protocol(&home) == LEGACY);
    assert_eq!(text(&call(&home, "echo", "a")), "a");
    home.finish();
}
