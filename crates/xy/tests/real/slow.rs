//! Servers on published SDKs that read nothing for a while after their start. Each is served in the
//! era to which its process is pinned, after every start.

use std::fs;
use std::path::Path;

use serde_json::json;
use xy_testkit::{Home, McpModern};

use crate::lab::Lab;

const LEGACY: &str = "2025-11-25";
const MODERN: &str = "2026-07-28";

/// The servers, each with its revision until a modern client calls it. A name is the SDK, the era,
/// and `noisy` if the server writes lines to stdout that are no JSON, as many servers do.
const SERVERS: [(&str, &str); 10] = [
    ("ts1-legacy", LEGACY),
    // In this SDK `server/discover` pins nothing, and `initialize` pins the legacy era.
    ("ts-both", LEGACY),
    ("ts-modern", MODERN),
    ("ts-legacy", LEGACY),
    ("ts-both-noisy", LEGACY),
    // In these SDKs `server/discover` pins the modern era, so a new process gets `initialize`.
    ("py-both", LEGACY),
    ("py-modern", MODERN),
    ("py-legacy", LEGACY),
    ("py-both-noisy", LEGACY),
    ("fastmcp-both", LEGACY),
];

/// The faults of `relay.py`.
const FAULTS: [&str; 5] = [
    "reverse",
    "drop server/discover",
    "drop initialize",
    "garble server/discover",
    "garble initialize",
];

/// Returns the path of a script of `real/servers`.
fn script(name: &str) -> String {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../real/servers");
    scripts.join(name).to_str().unwrap().to_owned()
}

/// Returns a lab whose calls wait for slow servers.
#[track_caller]
fn new_lab() -> Lab {
    let lab = Lab::new();
    let kdl = "gateway { listen \"127.0.0.1:0\"; auth \"none\"; }\npark { queue \"3m\"; }\n";
    lab.home.write_config("xy.kdl", kdl);
    lab
}

/// Returns the command of a slow server. It starts to read after the delay of [`read_after`].
fn command(lab: &Lab, name: &str) -> Vec<String> {
    let delay = lab.home.root().join("harness/delay").to_str().unwrap().to_owned();
    let words: Vec<&str> = name.split('-').collect();
    let (program, script) = match words[..2] {
        ["ts1", _] => ("npm/node_modules/node/bin/node", script("slow1.mjs")),
        ["ts", _] => ("npm/node_modules/node/bin/node", script("slow.mjs")),
        ["py", "legacy"] => ("clients/bin/python", script("slow.py")),
        ["py", _] => ("clients2/bin/python", script("slow.py")),
        _ => ("fastmcp/bin/python", script("slow.py")),
    };
    let mut command = vec![lab.installed_path(program), script, words[1].to_owned(), delay];
    command.extend(words[2..].iter().map(|word| (*word).to_owned()));
    command
}

/// Writes the file of a server with this command and start timeout.
fn write_server(lab: &Lab, name: &str, command: &[String], start_timeout: &str) {
    let env = format!("env {{ SDK_FOLDER {:?}; }}\n", lab.installed_path("npm"));
    let kdl = format!("{}{env}ready {{ within {start_timeout:?}; }}\n", Lab::kdl_of(command));
    lab.home.write_config(&format!("servers/{name}.kdl"), &kdl);
}

/// Writes the file of a slow server.
fn serve(lab: &Lab, name: &str) {
    // The start timeout is long: the machine may be busy.
    write_server(lab, name, &command(lab, name), "2m");
}

/// Sets the delay of all servers of a home, from their next start on.
fn read_after(lab: &Lab, seconds: u32) {
    fs::write(lab.home.root().join("harness/delay"), seconds.to_string()).unwrap();
}

/// Calls the tool of a server as a legacy client.
#[track_caller]
fn call_as_legacy(home: &Home, name: &str) {
    let client = home.mcp_connect(&["--server", name]);
    client.initialize();
    assert_eq!(client.call_text("say", json!({ "text": name })), format!("said: {name}"));
    assert!(client.close().success());
}

/// Calls the tool of each server as a modern client, at the same time.
#[track_caller]
fn call_as_modern<'a>(home: &Home, names: impl Iterator<Item = &'a str>) {
    let calls: Vec<_> = names
        .map(|name| {
            let client = McpModern::http(&home.gateway_address(), &format!("/mcp/s/{name}"), "");
            let params = json!({ "name": "say", "arguments": { "text": name } });
            (name, client.start("tools/call", params, &[]))
        })
        .collect();
    for (name, call) in calls {
        let answer = call.answer();
        assert_eq!(answer["result"]["content"][0]["text"], format!("said: {name}"), "{answer}");
    }
}

/// Checks the revision of a server, and calls its tool.
#[track_caller]
fn assert_speaks(lab: &Lab, name: &str, version: &str) {
    lab.home.wait_for_state(name, "running");
    let spoken = || lab.home.xy_json(&["status", name])["protocol"].clone();
    lab.home.wait_until("a revision is negotiated", || spoken().is_string());
    assert_eq!(spoken(), version, "{name}");
    call_as_legacy(&lab.home, name);
}

#[track_caller]
fn restart(lab: &Lab, which: &str) {
    let ran = lab.home.xy(&["restart", "--no-wait", which]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}

/// Waits until the first process of a server has been asked. A server that its first request pins
/// needs a second process, so its start takes twice as long.
#[track_caller]
fn wait_for_first_process(lab: &Lab, name: &str) {
    lab.home.wait_until("the first process has answered", || {
        let status = lab.home.xy_json(&["status", name]);
        status["transitions"].as_array().is_some_and(|all| all.len() >= 2)
    });
}

/// Starts all servers with this delay, and restarts them. Clients of both eras use each server in
/// both lives.
fn start_and_restart_all(seconds: u32) {
    let lab = new_lab();
    read_after(&lab, seconds);
    for (name, _) in SERVERS {
        serve(&lab, name);
    }
    let _daemon = lab.home.daemon();
    for (name, version) in SERVERS {
        wait_for_first_process(&lab, name);
        assert_speaks(&lab, name, version);
    }
    let names = || SERVERS.into_iter().map(|(name, _)| name);
    call_as_modern(&lab.home, names());
    for name in names() {
        assert_processes(&lab.home, name);
        call_as_legacy(&lab.home, name); // The era of the last call is that of the next life.
    }
    restart(&lab, "--all");
    for (name, version) in SERVERS {
        assert_speaks(&lab, name, version);
    }
    call_as_modern(&lab.home, names());
    for name in names() {
        assert_processes(&lab.home, name);
    }
    lab.home.finish();
}

/// Checks that a server of both eras has a process for each, and every other server has one.
#[track_caller]
fn assert_processes(home: &Home, name: &str) {
    let status = home.xy_json(&["status", name]);
    let expected = if name.contains("both") { 2 } else { 1 };
    let running = status["instances"].as_array().unwrap().iter();
    let running = running.filter(|it| it["state"] == "running").count();
    assert_eq!(running, expected, "the processes of {name}: {status:#}");
}

#[test]
fn server_delayed_by_3_seconds_is_served_in_its_era() {
    start_and_restart_all(3);
}

#[test]
fn server_delayed_by_10_seconds_is_served_in_its_era() {
    start_and_restart_all(10);
}

#[test]
fn server_delayed_by_30_seconds_is_served_in_its_era() {
    start_and_restart_all(30);
}

#[test]
fn slower_dual_era_server_answers_modern_call() {
    let lab = new_lab();
    read_after(&lab, 0);
    serve(&lab, "ts-both");
    let _daemon = lab.home.daemon();
    let call = || call_as_modern(&lab.home, std::iter::once("ts-both"));
    lab.home.wait_for_state("ts-both", "running");
    call();
    let spoken = || lab.home.xy_json(&["status", "ts-both"])["protocol"].clone();
    assert_eq!(spoken(), MODERN);
    // The server now gets `initialize` too, which pins it to the legacy era.
    read_after(&lab, 8);
    restart(&lab, "ts-both");
    lab.home.wait_for_state("ts-both", "running");
    lab.home.wait_until("xy uses the legacy era", || spoken() == LEGACY);
    call();
    assert_eq!(lab.home.xy_json(&["status", "ts-both"])["restarts_total"], 0);
    lab.home.finish();
}

/// The outcome of a server behind a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Clients of both eras can use it.
    Usable,
    /// Its status has these words, and no client can use it.
    Fails(&'static [&'static str]),
}

/// Runs a slow server behind a relay for each fault, and checks the outcome. The fault is in the
/// first process or in every process.
fn use_through_relays(sdk: &str, is_in_every_process: bool, outcome: fn(&str) -> Outcome) {
    let lab = new_lab();
    read_after(&lab, 3);
    let name_of = |fault: &str| fault.replace([' ', '/'], "-");
    for fault in FAULTS {
        let name = name_of(fault);
        let marker = lab.home.root().join("harness").join(&name);
        let marker = if is_in_every_process { "-" } else { marker.to_str().unwrap() };
        let python = lab.installed_path("clients2/bin/python");
        let relay = [python, script("relay.py"), fault.to_owned(), marker.to_owned()];
        // Some faults end only with the start timeout.
        write_server(&lab, &name, &[&relay[..], &command(&lab, sdk)].concat(), "20s");
    }
    let _daemon = lab.home.daemon();
    let usable = FAULTS.into_iter().filter(|fault| outcome(fault) == Outcome::Usable);
    let usable: Vec<String> = usable.map(name_of).collect();
    for name in &usable {
        lab.home.wait_for_state(name, "running");
        call_as_legacy(&lab.home, name);
    }
    call_as_modern(&lab.home, usable.iter().map(String::as_str));
    for name in &usable {
        call_as_legacy(&lab.home, name);
    }
    for fault in FAULTS {
        if let Outcome::Fails(words) = outcome(fault) {
            let status = || lab.home.xy_json(&["status", &name_of(fault)]).to_string();
            let is_told = || words.iter().all(|it| status().contains(it));
            lab.home.wait_until(&format!("{fault}: {words:?} in {}", status()), is_told);
        }
    }
    lab.home.finish();
}

#[test]
fn typescript_server_is_usable_after_one_faulty_handshake() {
    use_through_relays("ts-both", false, |_| Outcome::Usable);
}

#[test]
fn python_server_is_usable_after_one_faulty_handshake() {
    use_through_relays("py-both", false, |_| Outcome::Usable);
}

#[test]
fn typescript_server_is_usable_with_faulty_handshakes() {
    use_through_relays("ts-both", true, |_| Outcome::Usable);
}

/// In this SDK `server/discover` pins the modern era. Without a readable answer to it, xy cannot
/// speak with the process in any era.
#[test]
fn python_server_is_usable_with_faulty_handshakes_if_it_discovers() {
    use_through_relays("py-both", true, |fault| match fault {
        "drop server/discover" => Outcome::Fails(&["not ready within 20s"]),
        "garble server/discover" => {
            Outcome::Fails(&["`server/discover`", "it refused `initialize`"])
        }
        _ => Outcome::Usable,
    });
}
