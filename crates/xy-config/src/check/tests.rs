//! Tests of whole files, and of every problem in them.

use proptest::prelude::*;
use xy_protocol::control;
use xy_protocol::server::Transport;

use super::*;
use crate::settings::{
    Auth, DEFAULT_PROBE_PATH, GatewaySettings, HealthProbe, HealthRules, Isolation, Limits,
    ParkSettings, Probe, ReadyRules, RemoteSettings, RestartPolicy, RestartRules, Rules,
};

mod containers;
mod newcomers;

/// A machine with a few programs in `/bin` and one folder.
struct FakeMachine;

impl Machine for FakeMachine {
    fn home(&self) -> Option<PathBuf> {
        Some(PathBuf::from("/home/ann"))
    }

    fn search_path(&self) -> Option<OsString> {
        Some(OsString::from("/bin:/nowhere"))
    }

    fn inspect(&self, path: &Path) -> PathKind {
        match path.to_string_lossy().as_ref() {
            "/bin/npx" | "/bin/node" | "/srv/x/run" | "/opt/bin/tool" => PathKind::Program,
            "/bin/data" => PathKind::File,
            "/bin" | "/srv/x" => PathKind::Folder,
            _ => PathKind::Missing,
        }
    }

    fn limits(&self) -> LimitSupport {
        LimitSupport { max_open_files: Some(5000), ..LimitSupport::any() }
    }
}

/// A machine that enforces memory limits per process, and no process limits.
struct OldMachine;

impl Machine for OldMachine {
    fn limits(&self) -> LimitSupport {
        let why = "there are no cgroups here".to_owned();
        LimitSupport {
            max_open_files: None,
            memory: Enforcement::PerProcess,
            pids: Enforcement::Unavailable { why },
        }
    }
}

fn file(name: &str, text: &str) -> FileText {
    let path = Path::new("/home/ann/.config/xy").join(name);
    FileText { path, shown: name.to_owned(), text: text.to_owned() }
}

/// Checks files given as name and text; `xy.kdl` is the daemon's.
fn check_files(files: &[(&str, &str)]) -> LoadedConfig {
    let daemon = files.iter().find(|(name, _)| *name == "xy.kdl");
    let servers: Vec<FileText> = files
        .iter()
        .filter(|(name, _)| *name != "xy.kdl")
        .map(|(name, text)| file(&format!("servers/{name}"), text))
        .collect();
    check(daemon.map(|(name, text)| file(name, text)).as_ref(), &servers, &FakeMachine)
}

fn rendered(loaded: &LoadedConfig) -> String {
    loaded.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn report(files: &[(&str, &str)]) -> String {
    rendered(&check_files(files))
}

/// Returns the settings of one server without problems.
fn only(text: &str) -> ServerSettings {
    let loaded = check_files(&[("a.kdl", text)]);
    assert_eq!(rendered(&loaded), "");
    ServerSettings::clone(&loaded.settings.servers["a"])
}

const FULL: &str = r#"
// A server with every field.
command "npx"
args "-y" "some-server" "" "--x=1"
transport "http"
port 8421
path "/mcp"
env { RUST_LOG "info"; DEBUG #true; RETRIES 1_000; MASK 0x10; "odd name" -1 }
working-dir "/srv/x"
restart {
    policy "always"
    backoff-initial "0s"
    backoff-max "1m 30s"
    max-retries-per-minute 10
    max-attempts 0
    reset-after "2m"
    jitter #false
}
stop { grace "500ms" }
ready { probe "process"; within "20s" }
calls { idle "5m"; within "1h" }
health { probe "off"; interval "30s"; timeout "5s"; failures 3 }
isolation "client"
share-key "x"
start "lazy"
idle-stop "10m"
limits { nofile 4096; memory "1GiB"; pids 200 }
"#;

/// A server file with as many errors as possible.
const AWFUL: &str = r#"comand "npx"
command "npx" "extra"
command x=1
args 1 #true "ok" (str)"typed" "\u{0}"
transport "htpp"
port "8421"
port 99999
path "mcp"
env {
    XY_SECRET "x"
    "A=B" 1
    RATIO 1.5
    NOTHING #null
    TWICE 1
    TWICE 2
    EMPTY
}
working-dir "~/x"
restart policy="always" {
    policy "allways"
    backoff-initial 10
    backoff-max "10 parsecs"
    max-retries-per-minute -1
    max-attempts 1.5
    reset-after "0s"
    jitter "yes"
    tries 3
}
stop { grace "0s"; grace "400d" }
ready "mcp"
health { probe "sometimes"; failures 0 }
isolation "clients"
share-key ""
start lazy
idle-stop 10
limits { nofile 0; memory "lots"; pids 200 }
container { volumes 1; cpus -1 }
calls { idle "0s"; whithin 5 }
url "example.com"
headers
(u8)stop
frobnicate { a; b }
"#;

#[test]
fn command_alone_is_enough() {
    let server = only("command \"npx\"");
    assert_eq!(server.process().unwrap().command, "npx");
    assert_eq!(server.process().unwrap().transport, Transport::Stdio);
    assert_eq!(server.rules, Rules::default());
    assert_eq!(server.source.command_line, 1);
    assert_eq!(server.source.file, Path::new("/home/ann/.config/xy/servers/a.kdl"));
}

#[test]
fn readiness_probe_defaults_by_transport() {
    let probe = |more: &str| only(&format!("command \"npx\"\n{more}")).rules.ready.probe;
    let http = only("command \"npx\"\nport 8421\nready { probe \"http\" }\n").rules.ready;
    assert_eq!((http.timeout, http.path), (Duration::from_secs(2), None), "{DEFAULT_PROBE_PATH}");
    assert_eq!(DEFAULT_PROBE_PATH, "/mcp/health");
    assert_eq!(probe(""), Probe::Mcp);
    assert_eq!(probe("ready { within \"20s\" }"), Probe::Mcp);
    assert_eq!(probe("ready { probe \"mcp\" }"), Probe::Mcp);
    assert_eq!(probe("ready { probe \"process\" }"), Probe::Process);
    assert_eq!(probe("port 8421"), Probe::Mcp);
    assert_eq!(probe("transport \"sse\"; port 8421"), Probe::Mcp);
    assert_eq!(probe("port 8421; ready { probe \"process\" }"), Probe::Process);
}

#[test]
fn default_probe_applies_to_servers_that_support_it() {
    let ready = |defaults: &str, server: &str| {
        let files = [("xy.kdl", defaults), ("a.kdl", server)];
        let server = check_files(&files).settings.servers.into_values().next().unwrap();
        server.rules.ready.clone()
    };
    let mcp = "defaults { ready { probe \"mcp\"; within \"3s\" } }";
    let process = "defaults { ready { probe \"process\" } }";
    let http = ready(mcp, "command \"npx\"\nport 8421");
    let within = Duration::from_secs(3);
    assert_eq!(http, ReadyRules { within, ..ReadyRules::default() });
    assert_eq!(ready(process, "url \"https://a/\"").probe, Probe::Mcp, "it has no process");
    assert_eq!(ready(process, "command \"npx\"").probe, Probe::Process);
    assert_eq!(ready(process, "command \"npx\"\nready { probe \"mcp\" }").probe, Probe::Mcp);
    let tcp = "defaults { ready { probe \"tcp\"; path \"/x\" } }";
    assert_eq!(ready(tcp, "command \"npx\"\nport 8421").probe, Probe::Tcp);
    assert_eq!(ready(tcp, "command \"npx\"").probe, Probe::Mcp, "it has no port");
    assert_eq!(ready(tcp, "url \"https://a/\"").probe, Probe::Mcp, "it has none here");
}

#[test]
fn health_block_overrides_single_defaults() {
    let health = |defaults: &str, server: &str| {
        let server = format!("command \"npx\"\nport 8421\n{server}");
        let loaded = check_files(&[("xy.kdl", defaults), ("a.kdl", &server)]);
        assert_eq!(rendered(&loaded), "");
        loaded.settings.servers.into_values().next().unwrap().rules.health.clone()
    };
    let defaults = HealthRules::default();
    assert_eq!(health("", ""), defaults);
    assert_eq!(defaults.probe, HealthProbe::Mcp);
    let off = HealthRules { probe: HealthProbe::Off, ..defaults.clone() };
    assert_eq!(health("", "health { probe \"off\" }"), off);
    let defaults =
        "defaults { health { probe \"http\"; path \"/up\"; interval \"7s\"; failures 9 } }";
    let read = health(defaults, "health { timeout \"1s\"; interval \"8s\" }");
    let wanted = HealthRules {
        probe: HealthProbe::Http,
        interval: Duration::from_secs(8),
        timeout: Duration::from_secs(1),
        failures: 9,
        path: Some("/up".to_owned()),
    };
    assert_eq!(read, wanted);
    // A path in `defaults` applies only to `http` probes.
    let tcp = HealthRules { probe: HealthProbe::Tcp, path: None, ..health(defaults, "") };
    assert_eq!(health(defaults, "health { probe \"tcp\" }"), tcp);
}

#[test]
fn probe_must_fit_its_server() {
    let servers = [
        (
            "a.kdl",
            "command \"npx\"\nready { probe \"tcp\" }\nhealth { probe \"http\"; path \"/up\" }",
        ),
        (
            "b.kdl",
            "command \"npx\"\ntransport \"stdio\"\nready { probe \"http\"; path \"health\" }\nhealth { probe \"tcp\" }",
        ),
        (
            "c.kdl",
            "command \"npx\"\nport 1\nready { probe \"tcp\"; path \"/up\" }\nhealth { path \"/up\" }",
        ),
        (
            "d.kdl",
            "url \"https://a/\"\nready { probe \"http\" }\nhealth { probe \"process\"; failures 0 }",
        ),
        ("e.kdl", "url \"https://a/\"\nready { probe \"tcp\" }\nhealth { probe \"http\" }"),
    ];
    insta::assert_snapshot!(report(&servers));
}

#[test]
fn complete_file_is_read() {
    insta::assert_debug_snapshot!(only(FULL));
}

#[test]
fn all_problems_of_a_file_are_reported() {
    insta::assert_snapshot!(report(&[("awful.kdl", AWFUL)]));
}

#[test]
fn daemon_file_is_checked() {
    insta::assert_snapshot!(report(&[(
        "xy.kdl",
        r#"gatway { }
gateway { listen "localhost"; auth "tokn"; port 1 }
orphan-timeout 60
park { queue "x"; calls -1; bytes 64 }
defaults {
    command "npx"
    port 1
    restart { policy "allways"; backoff-initial "2m" }
    health { interval "1s" }
    polcy "x"
}
"#
    )]));
}

#[test]
fn gateway_block_overrides_single_defaults() {
    let gateway = |text: &str| {
        let loaded = check_files(&[("xy.kdl", text)]);
        assert!(loaded.is_valid(), "{}", rendered(&loaded));
        loaded.settings.gateway
    };
    let defaults = GatewaySettings::default();
    assert_eq!(gateway(""), defaults);
    assert_eq!(defaults.listen, Some("127.0.0.1:7979".parse().unwrap()));
    let full = r#"gateway { listen "[::1]:0"; hosts "xy.lan" "2001:db8::1"; auth "none"; sessions 5; streams 2; body "1GiB"; idle "5m" }"#;
    let expected = GatewaySettings {
        listen: Some("[::1]:0".parse().unwrap()),
        hosts: vec!["xy.lan".to_owned(), "2001:db8::1".to_owned()],
        auth: Auth::None,
        sessions: 5,
        streams: 2,
        body: 1 << 30,
        idle: Duration::from_mins(5),
    };
    assert_eq!(gateway(full), expected);
    let off = gateway(r#"gateway { listen "off"; auth "none" }"#);
    assert_eq!((off.listen, off.auth), (None, Auth::None));
    let by_name = gateway(r#"gateway { listen "localhost:80" }"#);
    assert_eq!(
        by_name,
        GatewaySettings { listen: Some("127.0.0.1:80".parse().unwrap()), ..defaults }
    );
    let wide = gateway(r#"gateway { listen "0.0.0.0:80" }"#);
    assert_eq!(wide.auth, Auth::Token);
}

#[test]
fn park_block_overrides_single_defaults() {
    let park = |text: &str| {
        let loaded = check_files(&[("xy.kdl", text)]);
        assert_eq!(rendered(&loaded), "");
        loaded.settings.park
    };
    let defaults = ParkSettings {
        queue: Duration::from_secs(30),
        calls: 1000,
        bytes: 64 << 20,
        total_calls: 10_000,
        total_bytes: 512 << 20,
        held_calls: 1000,
        held_bytes: 64 << 20,
    };
    assert_eq!(park(""), defaults);
    assert_eq!(park("park {}"), defaults);
    let some = ParkSettings { queue: Duration::from_mins(2), calls: 7, bytes: 1 << 20, ..defaults };
    assert_eq!(park(r#"park { queue "2m"; calls 7; bytes "1MiB" }"#), some);
    let total = ParkSettings { total_calls: 9, total_bytes: 2 << 20, ..defaults };
    assert_eq!(park(r#"park { total-calls 9; total-bytes "2MiB" }"#), total);
    let held = ParkSettings { held_calls: 3, held_bytes: 4 << 10, ..defaults };
    assert_eq!(park(r#"park { held-calls 3; held-bytes "4KiB" }"#), held);
    let none = park(r#"park { queue "0s"; calls 0 }"#);
    assert_eq!(none, ParkSettings { queue: Duration::ZERO, calls: 0, ..defaults });
}

#[test]
fn unprotected_or_unlimited_gateway_is_an_error() {
    let report = [
        r#"gateway { listen "0.0.0.0:7979"; auth "none" }"#,
        r#"gateway { auth "none"; listen "[2001:db8::1]:7979" }"#,
        r#"gateway { listen "example.com:7979"; idle "0s" }"#,
        r#"gateway { listen "127.0.0.1"; sessions 0; streams 9999999; body "2GiB" }"#,
        r#"gateway { hosts "https://xy.lan" "xy.lan:80" "*" "" 7 }"#,
    ]
    .map(|text| report(&[("xy.kdl", text)]));
    insta::assert_snapshot!(report.join("\n"));
}

#[test]
fn isolation_may_be_a_default() {
    let files = [
        ("xy.kdl", r#"defaults { isolation "client" }"#),
        ("a.kdl", "command \"npx\""),
        ("b.kdl", "command \"npx\"\nisolation \"shared\""),
    ];
    let servers = check_files(&files).settings.servers;
    assert_eq!(servers["a"].isolation, Isolation::Client);
    assert_eq!(servers["b"].isolation, Isolation::Shared);
}

#[test]
fn port_conflict_is_reported_for_each_later_file() {
    let loaded = check_files(&[
        ("a.kdl", "command \"npx\"\nport 8421"),
        ("b.kdl", "port 8421; command \"npx\""),
        ("c.kdl", "command \"npx\"\n\n\n\n\n\n\n\n\nport 0x20e5"),
        ("d.kdl", "command \"npx\"\nport 8422"),
    ]);
    insta::assert_snapshot!(rendered(&loaded));
    assert!(loaded.problems.iter().all(|problem| problem.kind == ProblemKind::PortConflict));
    let kept: Vec<&str> = loaded.settings.servers.keys().map(ServerName::as_str).collect();
    assert_eq!(kept, ["a", "d"]);
}

#[test]
fn problems_of_several_files_are_in_order() {
    let loaded = check_files(&[
        ("xy.kdl", "defaults { stop { grace 5 } }"),
        ("b__d.kdl", "command \"npx\"\nprot 1"),
        ("broken.kdl", "command \"npx\nport true"),
        ("empty.kdl", "// nothing"),
        ("good.kdl", "command \"npx\""),
        ("two.kdl", "command \"npx\"\nurl \"https://x\""),
    ]);
    insta::assert_snapshot!(rendered(&loaded));
    assert_eq!(loaded.settings.servers.len(), 1);
    assert_eq!(loaded.server_files, 5);
}

#[test]
fn transport_port_and_path_must_fit() {
    let table = [
        ("port 1", Some(Transport::Http)),
        ("port 1; path \"/mcp\"", Some(Transport::Http)),
        ("transport \"sse\"; port 1", Some(Transport::Sse)),
        ("transport \"stdio\"", Some(Transport::Stdio)),
        ("transport \"http\"", None),
        ("transport \"sse\"", None),
        ("transport \"stdio\"; port 1", None),
        ("path \"/mcp\"", None),
        ("transport \"sse\"; port 1; path \"/mcp\"", Some(Transport::Sse)),
        ("port 1; path \"/a?b\"", None),
    ];
    let mut reports = Vec::new();
    for (fields, transport) in table {
        let loaded = check_files(&[("a.kdl", &format!("command \"npx\"; {fields}"))]);
        let server = loaded.settings.servers.get("a");
        assert_eq!(server.map(|server| server.process().unwrap().transport), transport, "{fields}");
        reports.extend(loaded.problems.iter().map(ToString::to_string));
    }
    insta::assert_snapshot!(reports.join("\n"));
}

#[test]
fn missing_program_is_a_warning() {
    let commands = [
        ("command \"nope\"", "nope"),
        ("command \"/nowhere/x\"", "/nowhere/x"),
        ("command \"/bin/data\"", "/bin/data"),
        ("command \"/bin\"", "/bin"),
        ("command \"tool\"; env { PATH \"/opt/bin\" }", "tool"),
        ("command \"npx\"; env { PATH \"/opt/bin\" }", "npx"),
        ("command \"./run\"; working-dir \"/srv/x\"", "/srv/x/run"),
        ("command \"./gone\"; working-dir \"/srv/x\"", "/srv/x/gone"),
        ("command \"npx\"; working-dir \"/gone\"", "npx"),
        ("command \"npx\"; working-dir \"/bin/data\"", "npx"),
    ];
    let mut reports = Vec::new();
    for (text, command) in commands {
        let loaded = check_files(&[("a.kdl", text)]);
        assert!(loaded.is_valid(), "{text}");
        assert_eq!(loaded.settings.servers["a"].process().unwrap().command, command);
        reports.push(rendered(&loaded));
    }
    insta::assert_snapshot!(reports.join("\n"));
}

#[test]
fn shell_and_relative_paths_are_errors() {
    insta::assert_snapshot!(report(&[
        ("a.kdl", "command \"~/bin/x\""),
        ("b.kdl", "command \"./x\""),
        ("c.kdl", "command \"npx\"; working-dir \"~\""),
        ("d.kdl", "command \"./x\"; working-dir \"srv/x\""),
        ("e.kdl", "command \"\""),
    ]));
}

#[test]
fn crossed_delays_are_reported_with_both_locations() {
    let restart = |fields: &str| format!("command \"npx\"\nrestart {{ {fields} }}");
    insta::assert_snapshot!(report(&[
        ("both.kdl", &restart("backoff-initial \"1m\"; backoff-max \"5s\"")),
        ("initial.kdl", &restart("backoff-initial \"1m\"")),
        ("max.kdl", &restart("backoff-max \"500ms\"")),
        ("never.kdl", &restart("max-attempts 0; max-retries-per-minute 20")),
    ]));
}

#[test]
fn defaults_fill_single_absent_fields() {
    let loaded = check_files(&[
        (
            "xy.kdl",
            r#"defaults {
                restart { policy "always"; max-attempts 9 }
                stop { grace "3s" }
                env { A "default"; B "default" }
                path "/mcp"
                working-dir "/srv/x"
                health { probe "off" }
            }"#,
        ),
        ("a.kdl", "command \"npx\"\nrestart { policy \"never\" }\nenv { A \"own\" }"),
        ("b.kdl", "command \"npx\"\nport 1\nstop { grace \"4s\" }\nhealth { interval \"5s\" }"),
    ]);
    assert_eq!(rendered(&loaded), "");
    let a = &loaded.settings.servers["a"];
    assert_eq!(
        a.rules.restart,
        RestartRules { policy: RestartPolicy::Never, max_attempts: 9, ..RestartRules::default() }
    );
    assert_eq!(a.rules.stop.grace.as_secs(), 3);
    assert_eq!(a.process().unwrap().env["A"], "own");
    assert_eq!(a.process().unwrap().env["B"], "default");
    assert_eq!(a.process().unwrap().path, None, "a stdio server has none");
    let b = &loaded.settings.servers["b"];
    assert_eq!(b.rules.restart.policy, RestartPolicy::Always);
    assert_eq!(b.rules.stop.grace.as_secs(), 4);
    assert_eq!(b.process().unwrap().path.as_deref(), Some("/mcp"));
}

#[test]
fn single_limits_override_the_defaults() {
    let loaded = check_files(&[
        ("xy.kdl", "defaults { limits { nofile 1000; memory \"1GiB\" } }"),
        ("a.kdl", "command \"npx\"\nlimits { memory \"64MiB\"; pids 20 }"),
        ("b.kdl", "command \"npx\""),
    ]);
    assert_eq!(rendered(&loaded), "");
    let limits = |name| loaded.settings.servers[name].process().unwrap().limits;
    let own = Limits { nofile: Some(1000), memory: Some(64 << 20), pids: Some(20) };
    assert_eq!(limits("a"), own);
    assert_eq!(limits("b"), Limits { nofile: Some(1000), memory: Some(1 << 30), pids: None });
}

#[test]
fn unenforceable_limit_is_an_error() {
    let limits = "command \"npx\"\nlimits { nofile 5001; memory \"1MB\"; pids 0 }";
    let beyond = report(&[("a.kdl", limits)]);
    let limits = "command \"npx\"\nlimits { nofile 5001; memory \"1GiB\"; pids 200 }";
    let daemon = file("xy.kdl", "defaults { limits { pids 7 } }");
    let old = check(Some(&daemon), &[file("servers/a.kdl", limits)], &OldMachine);
    assert!(old.settings.servers.is_empty());
    insta::assert_snapshot!(format!("{beyond}\n{}", rendered(&old)));
}

#[test]
fn orphan_timeout_defaults_to_one_minute() {
    let wait = |daemon_file| {
        let loaded = check_files(&[("xy.kdl", daemon_file), ("a.kdl", "command \"npx\"")]);
        assert_eq!(rendered(&loaded), "");
        loaded.settings.servers.values().next().unwrap().rules.orphan_timeout.as_secs()
    };
    assert_eq!((wait(""), wait("orphan-timeout \"90s\"")), (60, 90));
    insta::assert_snapshot!(report(&[("xy.kdl", "orphan-timeout \"0s\"")]));
}

#[test]
fn daemon_file_may_disable_supervision() {
    let said = |daemon_file| {
        let loaded = check_files(&[("xy.kdl", daemon_file)]);
        assert_eq!(rendered(&loaded), "");
        loaded.settings.supervisor
    };
    assert_eq!(
        (said(""), said("supervisor #true"), said("supervisor #false")),
        (None, Some(true), Some(false))
    );
    insta::assert_snapshot!(report(&[("xy.kdl", "supervisor \"off\"")]), @r#"
    error: `supervisor` must be `#true` or `#false`, not text
     --> xy.kdl:1:12
      |
    1 | supervisor "off"
      |            ^^^^^ did you mean `#false`?
    "#);
}

#[test]
fn stored_settings_of_older_versions_can_be_read() {
    let server = only(FULL);
    let stored = serde_json::to_value(&server).unwrap();
    assert_eq!(serde_json::from_value::<ServerSettings>(stored.clone()).unwrap(), server);
    let mut older = stored;
    older["process"].as_object_mut().unwrap().remove("limits");
    older["source"].as_object_mut().unwrap().remove("added");
    older.as_object_mut().unwrap().remove("isolation");
    let read = serde_json::from_value::<ServerSettings>(older).unwrap();
    assert_eq!(read.process().unwrap().limits, Limits::default());
    assert_eq!((read.isolation, read.source.added), (Isolation::Shared, false));
}

#[test]
fn unsuitable_default_is_reported_with_its_location() {
    insta::assert_snapshot!(report(&[
        ("xy.kdl", "defaults {\n transport \"http\"\n restart { backoff-max \"2s\" }\n}"),
        ("a.kdl", "command \"npx\"\nport 1\nrestart { backoff-initial \"5s\" }"),
        ("b.kdl", "command \"npx\""),
        ("c.kdl", "command \"npx\""),
    ]));
}

#[test]
fn number_of_reported_problems_is_limited() {
    let variables: Vec<String> = (0..200).map(|it| format!("XY_{it} 1")).collect();
    let text = format!("command \"npx\"\nenv {{\n{}\n}}", variables.join("\n"));
    let loaded = check_files(&[("a.kdl", &text)]);
    assert_eq!(loaded.problems.len(), problems::MAX_PROBLEMS + 1);
    let last = loaded.problems.last().unwrap();
    assert!(last.message.contains("more problems"), "{}", last.message);
}

#[test]
fn problem_is_converted_for_clients() {
    let loaded = check_files(&[("a.kdl", "command \"npx\"\nprot 1")]);
    let report = control::Problem::from(&loaded.problems[0]);
    assert_eq!(report.file, "servers/a.kdl");
    assert_eq!((report.line, report.column), (Some(2), Some(1)));
    assert_eq!(report.suggestion.as_deref(), Some("did you mean `port`?"));
    assert_eq!(report.rendered, loaded.problems[0].to_string());
}

#[test]
fn text_alone_is_checked_without_the_machine() {
    let server = check_text("a.kdl", "command \"nope\"\nworking-dir \"/gone\"");
    assert_eq!(rendered(&server), "");
    assert_eq!(server.settings.servers.len(), 1);
    assert!(check_text("xy.kdl", "defaults { }").is_valid());
    assert!(!check_text("xy.kdl", "command \"x\"").is_valid());
}

/// Checks that every example in the guide is valid.
#[test]
fn guide_examples_are_valid() {
    let guide = include_str!("../../../../docs/guide/configuration.md");
    let mut examples = 0;
    for block in guide.split("```kdl\n").skip(1) {
        let example = block.split("```").next().unwrap();
        let file = if example.contains("// ~/.config/xy/xy.kdl") { "xy.kdl" } else { "a.kdl" };
        let whole = match file {
            _ if example.starts_with("headers") => format!("url \"https://a\"\n{example}"),
            "a.kdl" if !example.contains("command") && !example.starts_with("url") => {
                format!("command \"npx\"\n{example}")
            }
            _ => example.to_owned(),
        };
        let needs_port = example.starts_with("path");
        let whole = if needs_port { format!("{whole}\nport 8421") } else { whole };
        assert_eq!(rendered(&check_text(file, &whole)), "", "{example}");
        examples += 1;
    }
    assert!(examples >= 8, "{examples}");
}

#[test]
fn mistake_in_a_block_is_reported_once() {
    let text = "command \"npx\"\nrestart { backoff-initial \"1x\"; backoff-max \"500ms\" }";
    let loaded = check_files(&[("a.kdl", text)]);
    assert_eq!(loaded.problems.len(), 1, "{}", rendered(&loaded));
}

/// Asserts that accepted settings hold the invariants of `settings.rs`.
fn assert_invariants(loaded: &LoadedConfig) {
    for problem in &loaded.problems {
        let text = problem.to_string();
        let hidden = text.chars().find(|&c| c.is_control() && c != '\n');
        assert_eq!(hidden, None, "{text:?}");
    }
    for (name, server) in &loaded.settings.servers {
        assert_eq!(name, &server.name);
        let process = server.process().unwrap();
        assert!(!process.command.is_empty());
        assert!(!process.command.contains('/') || process.command.starts_with('/'));
        assert_eq!(process.port.is_some(), process.transport != Transport::Stdio);
        assert!(process.path.is_none() || process.transport == Transport::Http);
        assert!(process.port != Some(0));
        assert!(process.working_dir.as_ref().is_none_or(|folder| folder.is_absolute()));
        let words = process.args.iter().chain(process.env.values()).chain(process.env.keys());
        assert!(words.chain([&process.command]).all(|word| !word.contains('\0')));
        assert!(process.env.keys().all(|key| !key.is_empty() && !key.contains('=')));
        assert!(process.env.keys().all(|key| !key.starts_with("XY_")));
        let restart = &server.rules.restart;
        assert!(restart.backoff_initial <= restart.backoff_max);
        assert!(restart.backoff_max <= crate::settings::MAX_DURATION);
        assert!(!restart.reset_after.is_zero());
        assert!(!server.rules.stop.grace.is_zero());
        assert!(!server.rules.ready.within.is_zero());
        let limits = process.limits;
        assert!(limits.nofile != Some(0) && limits.pids != Some(0));
        assert!(limits.memory.is_none_or(|memory| memory >= 1 << 20));
    }
}

/// Generates the complete example with some bytes removed, inserted or replaced.
fn mutated() -> impl Strategy<Value = String> {
    let bits = prop::sample::select(vec![
        "", "\"", "{", "}", "\n", ";", "#", "=", "(", ")", "\\", "0", "-1", "é", "\t", "#true",
        "#null", "1.5", "\"0s\"", "x=1", "/-", "/*", "//", "\u{1b}", "\u{0}", "~", "XY_",
    ]);
    let edits = prop::collection::vec((0..FULL.len(), 0usize..12, bits), 1..6);
    edits.prop_map(|edits| {
        let mut text = FULL.to_owned();
        for (at, length, bit) in edits {
            let at = at.min(text.len());
            let end = (at + length).min(text.len());
            if text.is_char_boundary(at) && text.is_char_boundary(end) {
                text.replace_range(at..end, bit);
            }
        }
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_text_causes_a_panic(text in any::<String>()) {
        assert_invariants(&check_text("a.kdl", &text));
        assert_invariants(&check_text("xy.kdl", &text));
    }

    #[test]
    fn accepted_mutations_hold_the_invariants(text in mutated()) {
        assert_invariants(&check_text("a.kdl", &text));
        assert_invariants(&check_text("xy.kdl", &format!("defaults {{\n{text}\n}}")));
        assert_invariants(&check_files(&[("xy.kdl", "defaults { port 1 }"), ("a.kdl", &text), ("b.kdl", FULL)]));
    }

    #[test]
    fn accepted_fields_hold_the_invariants(
        fields in prop::collection::vec(prop::sample::select(FULL.lines().collect::<Vec<_>>()), 0..12)
    ) {
        assert_invariants(&check_text("a.kdl", &fields.join("\n")));
    }
}

// Remote servers.

#[test]
fn url_alone_is_enough() {
    let server = only("// hello\nurl \"https://example.com\"");
    assert_eq!(
        server.remote().unwrap(),
        &RemoteSettings { url: "https://example.com/".into(), headers: [].into(), is_older: false }
    );
    assert_eq!((server.transport(), server.port()), (Transport::Http, None));
    assert_eq!(server.source.command_line, 2);
    assert_eq!(server.rules.restart.backoff_max, Duration::from_mins(1));
    assert_eq!(server.rules.ready, ReadyRules::default());
}

#[test]
fn all_fields_of_a_remote_server_are_read() {
    let server = only(
        r#"
url "https://example.com:8443/mcp?key=1"
headers { Authorization "Bearer s3cret"; x-y "z" }
transport "sse"
restart { backoff-initial "2s"; backoff-max "10s"; jitter #false }
ready { probe "mcp"; within "20s" }
calls { idle "5m" }
isolation "client"
"#,
    );
    let endpoint = server.endpoint().unwrap();
    assert_eq!(endpoint.url, "https://example.com:8443/mcp?key=1");
    assert_eq!(endpoint.headers["Authorization"], "Bearer s3cret");
    assert_eq!((endpoint.is_older, endpoint.is_remote), (true, true));
    assert_eq!(server.rules.restart.backoff_initial, Duration::from_secs(2));
    assert_eq!(server.rules.restart.backoff_max, Duration::from_secs(10));
    assert_eq!(server.rules.calls.idle, Some(Duration::from_mins(5)));
    assert_eq!(server.isolation, Isolation::Client);
    for said in [format!("{server:?}"), format!("{endpoint:?}")] {
        assert!(!said.contains("s3cret") && !said.contains("key=1"), "{said}");
        assert!(said.contains("Authorization") && said.contains("8443/mcp"), "{said}");
    }
}

#[test]
fn invalid_fields_of_a_remote_server_are_reported() {
    let server = r#"url "https://example.com/mcp"
args "-y"
transport "stdio"
port 8421
path "/mcp"
env { A "b" }
working-dir "/srv/x"
restart { policy "always"; max-retries-per-minute 1; max-attempts 2; reset-after "1s"; jitter #true }
stop { grace "1s" }
ready { probe "process" }
limits { nofile 10 }
"#;
    insta::assert_snapshot!(report(&[("a.kdl", server)]));
}

#[test]
fn url_and_header_problems_hide_secrets() {
    let servers = [
        ("a.kdl", r#"url "https://me:s3cret@example.com/mcp""#),
        ("b.kdl", r#"url "https://example.com/?key=s3cret#here"; port 1"#),
        ("c.kdl", r#"url "wss://example.com/?key=s3cret""#),
        (
            "d.kdl",
            r#"url "http://a"
headers {
    Authorization "s3cret\n"
    X-A "s3cret "
    x-a "s3cret"
    "Bearer s3cret"
    "X Y" "s3cret"
    X-C "s3cret" "s3cret"
    X-D ""
    Content-Length "s3cret"
    Mcp-Session-Id "s3cret"
    X-E 53
    X-F x="s3cret"
}
"#,
        ),
        ("e.kdl", "url \"http://a\"\nheaders Authorization=\"s3cret\""),
        ("f.kdl", "url \"http://a\"\nheaders { A \"s3cret }"),
        ("g.kdl", "command \"npx\"\nheaders { A \"s3cret\" }"),
        ("h.kdl", "command \"npx\"\nurl \"http://a/?s3cret\""),
    ];
    let report = report(&servers);
    assert!(!report.contains("s3cret"), "{report}");
    insta::assert_snapshot!(report);
}

#[test]
fn defaults_apply_to_servers_that_support_them() {
    let defaults = r#"defaults {
    transport "stdio"
    path "/x"
    env { A "b" }
    working-dir "/srv/x"
    restart { policy "never"; backoff-max "5s"; max-attempts 1 }
    stop { grace "1s" }
    limits { nofile 10 }
    calls { within "1h" }
}"#;
    let loaded = check_files(&[("xy.kdl", defaults), ("a.kdl", "url \"http://a/b\"")]);
    assert_eq!(rendered(&loaded), "");
    let server = &loaded.settings.servers["a"];
    assert_eq!(server.transport(), Transport::Http);
    assert_eq!(server.rules.calls.within, Some(Duration::from_hours(1)));
    let expected = RestartRules { backoff_max: Duration::from_mins(1), ..RestartRules::default() };
    assert_eq!(server.rules.restart, expected);
}

#[test]
fn endpoint_has_the_default_path() {
    let url = |more: &str| only(&format!("command \"npx\"\n{more}")).endpoint().map(|it| it.url);
    assert_eq!(url(""), None);
    assert_eq!(url("port 1").unwrap(), "http://127.0.0.1:1/mcp");
    assert_eq!(url("transport \"sse\"; port 1").unwrap(), "http://127.0.0.1:1/sse");
    assert_eq!(url("transport \"sse\"; port 1; path \"/x\"").unwrap(), "http://127.0.0.1:1/x");
}

#[test]
fn unreachable_idle_limit_is_a_warning() {
    let server = "command \"npx\"\ncalls { idle \"2h\"; within \"1h\" }";
    insta::assert_snapshot!(report(&[("a.kdl", server)]));
}

#[test]
fn settings_survive_being_stored() {
    for text in [FULL, "url \"https://a/b?c\"\nheaders { A \"b\" }", "command \"npx\""] {
        let server = only(text);
        let stored = serde_json::to_string(&server).unwrap();
        assert_eq!(serde_json::from_str::<ServerSettings>(&stored).unwrap(), server);
    }
}

/// A machine with these variables that is otherwise unknown.
struct With(&'static [(&'static str, &'static str)]);

impl Machine for With {
    fn variable(&self, name: &str) -> Option<OsString> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
    }
}

#[test]
fn files_override_the_environment() {
    let file = |name: &str, text: &str| FileText {
        path: PathBuf::from(name),
        shown: name.to_owned(),
        text: text.to_owned(),
    };
    let with = With(&[("XY_MAX_RESTART_ATTEMPTS", "9"), ("XY_RESTART_DELAY_MS", "40000")]);
    let restart = |daemon: &str, server: &str| {
        let server = file("a.kdl", &format!("command \"x\"\n{server}"));
        let loaded = check(Some(&file("xy.kdl", daemon)), &[server], &with);
        assert_eq!(loaded.problems, [], "{daemon} {server:?}", server = loaded.settings);
        let rules = &loaded.settings.servers["a"].rules.restart;
        let seconds = (rules.backoff_initial.as_secs(), rules.backoff_max.as_secs());
        (rules.max_attempts, seconds)
    };
    assert_eq!(restart("", ""), (9, (40, 40)));
    assert_eq!(restart("defaults { restart { max-attempts 2 } }", ""), (2, (40, 40)));
    let both = restart("defaults { restart { max-attempts 2 } }", "restart { max-attempts 3 }");
    assert_eq!(both, (3, (40, 40)));
    assert_eq!(restart("", r#"restart { backoff-initial "2s" }"#), (9, (2, 40)));
    assert_eq!(
        restart("", r#"restart { backoff-max "5s" }"#),
        (9, (5, 5)),
        "no file is made wrong"
    );
}

#[test]
fn health_settings_have_an_order_of_precedence() {
    let millis = |machine: &dyn Machine, server: &str| {
        let server = file("a.kdl", &format!("command \"x\"\n{server}"));
        let loaded = check(None, &[server], machine);
        let health = loaded.settings.servers["a"].rules.health.clone();
        (health.interval.as_millis(), health.timeout.as_millis())
    };
    assert_eq!(millis(&With(&[]), ""), (30_000, 5_000));
    let with =
        With(&[("XY_HEALTH_CHECK_INTERVAL_MS", "7000"), ("XY_HEALTH_CHECK_TIMEOUT_MS", "1500")]);
    assert_eq!(millis(&with, ""), (7_000, 1_500));
    let said = "health { interval \"9s\"; timeout \"2s\" }";
    assert_eq!(millis(&with, said), (9_000, 2_000));
}

#[test]
fn invalid_variable_is_reported_with_other_problems() {
    let server = FileText {
        path: PathBuf::from("a.kdl"),
        shown: "a.kdl".to_owned(),
        text: "comand \"x\"".to_owned(),
    };
    let with = With(&[("XY_RESTART_DELAY_MS", "soon"), ("XY_SUPERVISOR_ENABLED", "si")]);
    let loaded = check(None, &[server], &with);
    let files: Vec<&str> = loaded.problems.iter().map(|problem| problem.file.as_str()).collect();
    assert_eq!(files[..2], ["environment", "environment"]);
    assert!(files.contains(&"a.kdl") && !loaded.is_valid());
}

#[test]
fn servers_with_one_share_key_have_equal_settings() {
    let first = "command \"npx\"\nargs \"x\" \"y\"\nenv { A \"1\"; B \"2\" }\nworking-dir \"/srv/x\"\nshare-key \"k\"\n";
    let table = [
        ("\"1\"; B \"2\"", "\"1\"; B \"2\"", true),
        ("A \"1\"; B \"2\"", "B \"2\"; A \"1\"", true),
        ("\"x\" \"y\"", "\"y\" \"x\"", false),
        ("\"x\" \"y\"", "\"x y\"", false),
        ("A \"1\"", "A \"2\"", false),
        ("; B \"2\"", "", false),
        ("/srv/x", "/srv", false),
        ("working-dir \"/srv/x\"\n", "", false),
    ];
    for (written, instead, is_same) in table {
        let second = first.replace(written, instead);
        let loaded = check_files(&[("a.kdl", first), ("b.kdl", &second)]);
        let has_warning = rendered(&loaded).contains("they are not the same process");
        assert_eq!(has_warning, !is_same, "{second}");
        assert_eq!(loaded.settings.servers.contains_key("b"), is_same, "{second}");
    }
}

#[test]
fn share_key_conflicts_are_reported() {
    let same = "command \"npx\"\nargs \"x\"\nshare-key \"k\"\n";
    let loaded = check_files(&[("a.kdl", same), ("b.kdl", same)]);
    assert_eq!(loaded.settings.servers.len(), 2);
    let other = "command \"npx\"\nargs \"y\"\nshare-key \"k\"\n";
    let alone = "command \"npx\"\nargs \"x\"\nshare-key \"k\"\nisolation \"client\"\n";
    let elsewhere = "url \"https://example.com/mcp\"\nshare-key \"e\"\n";
    insta::assert_snapshot!(report(&[
        ("a.kdl", same),
        ("b.kdl", other),
        ("c.kdl", alone),
        ("d.kdl", elsewhere),
        ("xy.kdl", "defaults { share-key \"x\" }\n"),
    ]));
}

#[test]
fn command_line_as_command_is_an_error() {
    let table = [
        ("command \"npx -y x\"", Some("write `command \"npx\"` and `args \"-y\" \"x\"`")),
        ("command \"/bin/npx x\"", Some("write `command \"/bin/npx\"` and `args \"x\"`")),
        ("command \"./run x\"; working-dir \"/srv/x\"", Some("`command \"./run\"`")),
        ("command \"/nowhere/my app\"", None),
        ("command \"my app/x\"; working-dir \"/srv\"", Some("`command \"my\"`")),
        ("command \"npx\"", None),
    ];
    for (text, advice) in table {
        let loaded = check_files(&[("a.kdl", text)]);
        assert_eq!(loaded.is_valid(), advice.is_none(), "{text}: {}", rendered(&loaded));
        assert!(rendered(&loaded).contains(advice.unwrap_or_default()), "{}", rendered(&loaded));
    }
    let text = r#"{"mcpServers": {"a": {"command": "npx -y x"}}}"#;
    let report = check_text("mcp.json", text).problems[0].to_string();
    assert!(report.contains(r#"write `"command": "npx", "args": ["-y", "x"]`"#), "{report}");
}

#[test]
fn references_cause_warnings() {
    let kdl = "command \"npx\"\nargs \"--x=${A}\" \"$B\" \"--y=$C\"\nenv {\n  API_KEY \"${API_KEY}\"\n  B \"$C\"\n  D \"pa$$word\"\n}\n";
    let shell = "command \"sh\"\nargs \"-c\" \"echo ${HOME} $HOME\"\n";
    let container = "container { image \"a:1\"; env { API_KEY \"${API_KEY}\" } }\n";
    let remote = "url \"https://a/b\"\nheaders { Authorization \"Bearer ${TOKEN}\" }\n";
    let url = "url \"https://a/${TOKEN}\"\n";
    let json = r#"{"mcpServers": {"a": {"command": "npx", "env": {"K": "${input:key}"}}}}"#;
    let texts = [
        ("a.kdl", kdl),
        ("b.kdl", shell),
        ("c.kdl", remote),
        ("d.kdl", url),
        ("e.json", json),
        ("f.kdl", container),
    ];
    let report = texts.map(|(name, text)| rendered(&check_text(name, text)));
    insta::assert_snapshot!(report.join("\n"));
}

#[test]
fn exposed_secrets_cause_warnings() {
    struct Open;
    impl Machine for Open {
        fn others_can_read(&self, _: &Path) -> Option<bool> {
            Some(true)
        }
    }
    let file = |name: &str, text: &str| FileText {
        path: PathBuf::from("/c").join(name),
        shown: name.to_owned(),
        text: text.to_owned(),
    };
    let servers = [
        file("a.kdl", "command \"npx\"\nenv { API_KEY \"x\" }"),
        file("b.kdl", "command \"npx\"\nargs \"--token\" \"x\""),
        file("c.kdl", "command \"npx\"\nenv { API_KEY \"${API_KEY}\" }"),
        file("d.kdl", "command \"npx\"\nenv { LEVEL \"info\" }"),
        file("e.kdl", "url \"http://example.com/mcp\"\nheaders { X-Api-Key \"x\" }"),
    ];
    let own = file("xy.kdl", "gateway { listen \"0.0.0.0:7979\" }");
    insta::assert_snapshot!(rendered(&check(Some(&own), &servers, &Open)));
}
