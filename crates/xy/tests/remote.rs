//! Tests of remote servers that cannot be reached.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

mod support;

use std::net::TcpListener;

use serde_json::json;
use support::{ask, home, refused, running, sleeper, status};
use xy_testkit::Home;

/// Returns a URL at which no server listens. Its query holds a secret key.
fn unreachable_url() -> String {
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    format!("http://127.0.0.1:{port}/mcp?key=s3cret")
}

/// Returns the settings of a remote server with a secret header.
fn remote_settings(url: &str) -> String {
    format!("url \"{url}\"\nheaders {{ Authorization \"Bearer s3cret\" }}\n")
}

/// Returns the output of all commands and requests that describe a server.
fn all_output(home: &Home, name: &str) -> String {
    let told = [&["status", name][..], &["status", name, "--json"], &["list"], &["list", "--json"]]
        .map(|verb| home.xy(verb))
        .map(|ran| ran.stdout + &ran.stderr);
    told.concat() + &ask(home, "list", json!(null)).to_string()
}

#[test]
fn silent_remote_is_unreachable_and_retried() {
    let home = home();
    let url = unreachable_url();
    home.server("far", &remote_settings(&url));
    home.server("near", &sleeper(&home));
    let daemon = home.daemon();
    running(&home, "near");
    let now = home.wait_for_state("far", "restarting");
    assert_eq!(now["health"], "unreachable", "{now:#}");
    assert_eq!(now["url"], url.strip_suffix("?key=s3cret").unwrap());
    assert_eq!((&now["pid"], &now["port"]), (&json!(null), &json!(null)));
    assert_eq!((&now["command"], &now["log_file"]), (&json!([]), &json!(null)));
    assert_eq!((&now["next"]["what"], &now["transport"]), (&json!("restart"), &json!("http")));
    assert_eq!((&now["restart_count"], &now["restarts_total"]), (&json!(0), &json!(0)));
    assert!(now["last_exit"].is_null(), "nothing has ended: {now:#}");
    let shown = home.xy(&["list"]).stdout;
    assert!(shown.contains("unreachable") && shown.contains("127.0.0.1"), "{shown}");
    let said = all_output(&home, "far");
    assert!(!said.contains("s3cret") && !said.contains("key="), "{said}");

    let stopped = home.xy(&["stop", "far"]);
    assert_eq!(stopped.code, 0, "{stopped:?}");
    assert_eq!(status(&home, "far")["state"], "stopped");
    let started = home.xy(&["start", "far"]);
    assert_eq!(started.code, 1, "{started:?}");
    assert!(started.stderr.contains("server `far` could not be reached"), "{started:?}");
    assert!(!started.stderr.contains("s3cret"), "{started:?}");
    let restarted = home.xy(&["restart", "far"]);
    assert_eq!(restarted.code, 1, "{restarted:?}");

    daemon.terminate();
    home.daemon();
    home.wait_for_state("far", "restarting");
    home.finish();
}

#[test]
fn remote_is_reconnected_by_next_daemon() {
    let home = home();
    home.server("far", &remote_settings(&unreachable_url()));
    let daemon = home.daemon();
    home.wait_for_state("far", "restarting");
    daemon.kill9();
    let daemon = home.daemon();
    home.wait_for_state("far", "restarting");
    assert_eq!(home.xy(&["stop", "far"]).code, 0);
    daemon.kill9();
    home.daemon();
    assert_eq!(status(&home, "far")["state"], "stopped", "an operator's wish is kept");
    home.finish();
}

#[test]
fn reload_applies_changed_url_headers_and_kind() {
    let home = home();
    let url = unreachable_url();
    home.server("one", &remote_settings(&url));
    home.daemon();
    home.wait_for_state("one", "restarting");
    let changed = |file: &str| {
        home.server("one", file);
        let answer = ask(&home, "reload", json!(null));
        (answer["restarted"] == json!(["one"]), answer["updated"] == json!(["one"]))
    };
    assert_eq!(changed(&remote_settings(&url).replace("Bearer", "Basic")), (true, false));
    assert_eq!(
        changed(&remote_settings(&unreachable_url()).replace("Bearer", "Basic")),
        (true, false)
    );
    let last = remote_settings(&url);
    assert_eq!(changed(&last), (true, false));
    assert_eq!(changed(&format!("{last}calls {{ idle \"5m\" }}\n")), (false, true));
    assert_eq!(changed(&sleeper(&home)), (true, false));
    running(&home, "one");
    assert_eq!(changed(&last), (true, false));
    home.wait_for_state("one", "restarting");
    home.finish();
}

#[test]
fn unreachable_remote_is_not_added() {
    let home = home();
    home.daemon();
    let url = unreachable_url();
    let words = ["add", "far", "--url", &url, "--header", "Authorization: Bearer s3cret"];
    let added = home.xy(&words);
    assert_eq!(added.code, 1, "{added:?}");
    assert!(added.stderr.contains("server `far` was not added"), "{added:?}");
    assert!(!added.stderr.contains("s3cret"), "{added:?}");
    assert_eq!(ask(&home, "list", json!(null)), json!([]));

    for (flags, why) in [
        (["--url", "ftp://a/s3cret?s3cret"], "starts with `https://` or `http://`"),
        (["--url", "http://me:s3cret@a/"], "contains a user name or a password"),
    ] {
        let refused = home.xy(&[&["add", "far"], &flags[..]].concat());
        assert_eq!(refused.code, 3, "{refused:?}");
        assert!(refused.stderr.contains(why), "{refused:?}");
        assert!(!refused.stderr.contains("me:s3cret"), "{refused:?}");
    }
    let both = json!({ "name": "far", "command": "sh", "url": url });
    assert_eq!(refused(&home, "add", both)["code"], -32602);
    home.finish();
}
