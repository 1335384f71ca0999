use std::path::PathBuf;

use proptest::prelude::*;
use xy_protocol::server::Transport;

use super::*;
use crate::check::{BrokenServers, LoadedConfig, Machine, Texts, check_all, check_text};
use crate::settings::{ProcessSettings, RemoteSettings};

struct UnknownMachine;

impl Machine for UnknownMachine {}

fn file(name: &str, text: &str) -> FileText {
    FileText { path: PathBuf::from(name), shown: name.to_owned(), text: text.to_owned() }
}

fn read(text: &str) -> LoadedConfig {
    check_text("mcp.json", text)
}

fn report(loaded: &LoadedConfig) -> String {
    loaded.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn names(loaded: &LoadedConfig) -> Vec<&str> {
    loaded.settings.servers.keys().map(ServerName::as_str).collect()
}

fn process(loaded: &LoadedConfig, name: &str) -> ProcessSettings {
    assert_eq!(report(loaded), "");
    loaded.settings.servers[name].process().unwrap().clone()
}

fn remote(loaded: &LoadedConfig, name: &str) -> RemoteSettings {
    assert_eq!(report(loaded), "");
    loaded.settings.servers[name].remote().unwrap().clone()
}

#[test]
fn program_is_read_with_all_its_fields() {
    let loaded = read(
        r#"{"mcpServers": {"files": {
            "type": "stdio", "command": "npx", "args": ["-y", "a b"], "cwd": "/srv/x",
            "env": {"A": "text", "B": true, "C": 42, "D": 1.50, "E": -1e3},
            "alwaysAllow": ["read"], "timeout": 60
        }}}"#,
    );
    let found = process(&loaded, "files");
    assert_eq!(found.command, "npx");
    assert_eq!(found.args, ["-y", "a b"]);
    assert_eq!(found.working_dir, Some(PathBuf::from("/srv/x")));
    let env: Vec<(&str, &str)> = found.env.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    assert_eq!(env, [("A", "text"), ("B", "true"), ("C", "42"), ("D", "1.50"), ("E", "-1e3")]);
    assert_eq!(loaded.settings.servers["files"].source.command_line, 2);
    assert_eq!(loaded.server_files, 1);
}

#[test]
fn remote_server_is_read_with_any_transport_name() {
    let table = [
        (r#""url": "https://a/mcp""#, Transport::Http),
        (r#""serverUrl": "https://a/mcp""#, Transport::Http),
        (r#""url": "https://a/mcp", "type": "http""#, Transport::Http),
        (r#""url": "https://a/mcp", "type": "streamable-http""#, Transport::Http),
        (r#""url": "https://a/mcp", "transport": "streamableHttp""#, Transport::Http),
        (r#""url": "https://a/mcp", "transport": "sse", "type": "sse""#, Transport::Sse),
    ];
    for (fields, transport) in table {
        let fields = format!(r#"{fields}, "headers": {{"Authorization": "Bearer s3cret"}}"#);
        let loaded = read(&format!(r#"{{"servers": {{"a": {{{fields}}}}}, "inputs": []}}"#));
        let found = remote(&loaded, "a");
        assert_eq!(found.url, "https://a/mcp");
        assert_eq!(found.headers["Authorization"], "Bearer s3cret");
        assert_eq!(loaded.settings.servers["a"].transport(), transport, "{fields}");
    }
}

#[test]
fn comments_and_trailing_commas_are_ignored() {
    let loaded = read(
        "{ // mine\n \"mcpServers\": {\"a\": {\"command\": \"x\",},},\n\
         \"servers\": {\"b\": {\"command\": \"y\"} /* z */}\n}",
    );
    assert_eq!((report(&loaded).as_str(), names(&loaded)), ("", vec!["a", "b"]));
}

#[test]
fn disabled_server_is_left_out() {
    let loaded = read(
        r#"{"mcpServers": {"a": {"disabled": true}, "b": {"command": "x", "disabled": false},
            "c": {"command": "x", "enabled": false}}}"#,
    );
    assert_eq!((report(&loaded).as_str(), names(&loaded)), ("", vec!["b"]));
}

#[test]
fn each_mistake_affects_only_its_own_server() {
    let loaded = read(
        r#"{
  "mcpServers": {
    "good": { "command": "npx" },
    "types": {
      "command": 5,
      "args": "-y --token=s3cret",
      "env": ["API_KEY=s3cret"],
      "cwd": "relative",
      "disabled": "no"
    },
    "values": {
      "command": "npx",
      "args": ["fine", 7],
      "env": { "KEY": ["s3cret"], "GONE": null, "XY_A": "b", "A_TOKEN": "s3cret" },
      "type": "grpc"
    },
    "nothing": { "args": [] },
    "mistyped": { "comand": "npx" },
    "both": { "command": "npx", "url": "https://a/b" },
    "remote": { "url": "nowhere?key=s3cret", "headers": { "Host": "a", "X": 1 } },
    "text": "npx",
    "good": { "command": "again" },
    "files": { "command": "npx", "envFile": ".env", "args": ["${workspaceFolder}/x"] }
  }
}"#,
    );
    assert_eq!(names(&loaded), ["files", "good"]);
    assert!(!report(&loaded).contains("s3cret"), "{}", report(&loaded));
    let broken = ["both", "mistyped", "nothing", "remote", "text", "types", "values"];
    let broken = broken.map(|it| ServerName::new(it).unwrap());
    assert_eq!(loaded.broken, BrokenServers::Only(broken.into()));
    insta::assert_snapshot!(report(&loaded));
}

#[test]
fn invalid_json_is_reported_with_its_line() {
    let loaded = read(
        "{\n  \"mcpServers\": {\n    \"a\": { \"env\": { \"A_KEY\": \"s3cret\" \"L\": 1 } }\n  }\n}",
    );
    assert_eq!(loaded.broken, BrokenServers::All);
    insta::assert_snapshot!(report(&loaded));
    for (text, expected) in [
        ("", "this is not JSON: the text ends too early"),
        ("[]", "the file must be an object, not a list"),
        ("{\"mcpServers\": []}", "`mcpServers` must be an object, not a list"),
        ("{\"mcpServers\": {\"a\": {\"command\": \"", "this text is never closed"),
    ] {
        let loaded = read(text);
        assert!(report(&loaded).contains(expected) && !loaded.is_valid(), "{}", report(&loaded));
    }
    let empty = read("{}");
    assert!(empty.is_valid() && report(&empty).contains("the file lists no servers"));
}

#[test]
fn invalid_name_is_replaced_by_a_valid_one() {
    let table = [
        ("@scope/server.x", "scope-server-x"),
        ("My Server", "My-Server"),
        ("_a__b_", "a_b"),
        ("a//b", "a-b"),
        ("github.com/example/a-server-with-a-long-name", "github-com-example-a-se-67ec65ee"),
    ];
    for (written, expected) in table {
        assert_eq!(plain_name(written), expected, "{written}");
        assert!(ServerName::new(expected).is_ok());
    }
    let loaded =
        read(r#"{"mcpServers": {"My Server": {"command": "x"}, "天気": {"command": "x"}}}"#);
    assert_eq!(names(&loaded), ["My-Server"]);
    let report = report(&loaded);
    assert!(report.contains("server `My Server` is called `My-Server` here"), "{report}");
    assert!(report.contains("rename it: xy cannot derive a name from this"), "{report}");
}

#[test]
fn server_file_wins_over_a_client_file_with_the_same_name() {
    let kdl = [file("servers/a.kdl", "command \"kdl\""), file("servers/broken.kdl", "command")];
    let json = |command: &str, names: &[&str]| {
        let one = |name: &&str| format!(r#""{name}": {{"command": "{command}"}}"#);
        format!(r#"{{"mcpServers": {{{}}}}}"#, names.iter().map(one).collect::<Vec<_>>().join(","))
    };
    let clients = [
        file("one.json", &json("one", &["a", "broken", "b", "x.y"])),
        file("two.json", &json("two", &["b", "c", "x y"])),
    ];
    let loaded = check_all(
        None,
        Texts { servers: &kdl, clients: &clients, ..Texts::default() },
        &UnknownMachine,
    );
    let command = |name: &str| loaded.settings.servers[name].process().unwrap().command.clone();
    assert_eq!(names(&loaded), ["a", "b", "c", "x-y"]);
    assert_eq!(["a", "b", "c", "x-y"].map(command), ["kdl", "one", "two", "one"]);
    let report = report(&loaded);
    assert!(report.contains("server `a` is already configured by `servers/a.kdl`"), "{report}");
    assert!(report.contains("server `broken` is already configured by `servers/broken.kdl`"));
    assert!(report.contains("server `b` is already configured by `one.json`"));
    assert!(report.contains("server `x-y` is already configured by `one.json`"));
}

#[test]
fn defaults_apply_to_servers_of_clients() {
    let daemon = file("xy.kdl", "defaults { stop { grace \"3s\" }; env { A \"1\" } }");
    let client = file("mcp.json", r#"{"mcpServers": {"a": {"command": "x"}}}"#);
    let loaded =
        check_all(Some(&daemon), Texts { clients: &[client], ..Texts::default() }, &UnknownMachine);
    assert_eq!(loaded.settings.servers["a"].rules.stop.grace.as_secs(), 3);
    assert_eq!(process(&loaded, "a").env["A"], "1");
}

#[test]
fn number_of_servers_and_problems_is_limited() {
    let many: Vec<String> =
        (0..MAX_SERVER_FILES + 5).map(|it| format!(r#""s{it}": {{"command": "x"}}"#)).collect();
    let loaded = read(&format!(r#"{{"mcpServers": {{{}}}}}"#, many.join(",")));
    assert_eq!(loaded.settings.servers.len(), MAX_SERVER_FILES);
    assert!(report(&loaded).contains("there are too many servers"));
    let wrong: Vec<String> = (0..500).map(|it| format!(r#""s{it}": 5"#)).collect();
    let loaded = read(&format!(r#"{{"mcpServers": {{{}}}}}"#, wrong.join(",")));
    assert!(loaded.problems.len() < 110, "{}", loaded.problems.len());
}

proptest! {
    #[test]
    fn every_name_becomes_valid_or_none(name in "\\PC{0,50}") {
        let plain = plain_name(&name);
        prop_assert!(plain.is_empty() || ServerName::new(&plain).is_ok(), "{}", plain);
        prop_assert_eq!(plain_name(&name), plain);
    }

    #[test]
    fn any_text_is_accepted(text in "(mcpServers|servers|command|args|env|url|[\"{}:,\\[\\] a1é-]){0,60}") {
        let loaded = read(&text);
        let _ = report(&loaded);
        prop_assert!(loaded.settings.servers.is_empty() || loaded.problems.len() < 200);
    }
}
