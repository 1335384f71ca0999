//! `xy connect --direct`: one server without a daemon, of which nothing is left afterwards.

#[cfg(target_os = "linux")]
use rustix::process::{Pid, Signal, kill_process};
use xy_testkit::Home;
#[cfg(target_os = "linux")]
use xy_testkit::{Proc, marked_processes};

use crate::fixtures::{Client, INITIALIZE, home};

/// A short stop timeout for servers that ignore the request to stop.
#[cfg(target_os = "linux")]
const GRACE: &str = "stop { grace \"200ms\" }\n";

#[cfg(target_os = "linux")]
fn with_tree(args: &[&str]) -> Home {
    let home = home();
    let args = [args, &["--tag", home.mark()]].concat();
    home.server("tree", &format!("{}{GRACE}", home.kdl_command("xy-test-tree", &args)));
    home
}

#[cfg(target_os = "linux")]
fn send(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

/// Returns the server's processes. The command itself is two processes.
#[cfg(target_os = "linux")]
fn server_processes(home: &Home) -> Vec<Proc> {
    let mut all = marked_processes(home.mark());
    all.retain(|process| !process.cmdline.contains("connect"));
    all
}

/// Returns the process that supervises the server, below the one that the client started.
#[cfg(target_os = "linux")]
fn supervisor(home: &Home) -> u32 {
    let all = marked_processes(home.mark());
    all.iter().find(|process| process.cmdline.contains("--above")).unwrap().pid
}

#[track_caller]
fn assert_no_daemon_started(home: &Home) {
    assert!(!home.socket().exists(), "no daemon is started");
    assert!(!home.root().join("state/xy").exists(), "nothing is kept");
}

#[test]
fn direct_client_talks_to_the_server_itself() {
    let home = home();
    home.server("mcp", &home.kdl_command("xy-test-mcp", &[]));
    let mut client = Client::start(&home, &["--direct", "mcp"]);
    client.send(INITIALIZE);
    let answer = client.receive_json();
    assert_eq!(answer["id"], 0);
    assert!(answer["result"]["serverInfo"].is_object(), "{answer}");
    drop(client.take_stdin());
    let (status, rest, _) = client.wait_exit();
    assert_eq!((status.code(), rest.as_slice()), (Some(0), &b""[..]));
    assert_no_daemon_started(&home);
    home.finish();
}

#[test]
fn exit_code_is_the_servers() {
    let home = home();
    home.server("seven", &home.kdl_command("xy-test-exit", &["--code", "7"]));
    home.server("slain", &home.kdl_command("xy-test-exit", &["--signal", "11"]));
    let exit = |name: &str| Client::start(&home, &["--direct", name]).wait_exit().0.code();
    assert_eq!(exit("seven"), Some(7));
    assert_eq!(exit("slain"), Some(128 + 11));
    home.finish();
}

#[test]
fn direct_server_gets_its_configured_settings() {
    let home = home();
    let script =
        r#"args "-c" "echo $GREETING $PWD ${XY_RESTART_DELAY_MS-unset} $XY_SERVER; ulimit -n""#;
    let more = "env { GREETING \"hello\" }\nworking-dir \"/\"\nlimits { nofile 123 }\n";
    home.server("shell", &format!("command \"sh\"\n{script}\n{more}"));
    let home = home.with_env("XY_RESTART_DELAY_MS", "5");
    let client = Client::start(&home, &["--direct", "shell"]);
    assert_eq!(client.receive(), "hello / unset shell");
    assert_eq!(client.receive(), "123");
    assert_eq!(client.wait_exit().0.code(), Some(0));
    home.finish();
}

#[test]
#[cfg(target_os = "linux")]
fn all_child_processes_end_with_the_server() {
    for (kind, count) in [("session", 1), ("daemon", 1), ("same-group", 1), ("storm", 64)] {
        let args = ["--child", kind, "--deaf", "--without-environment"];
        // The server ends by itself at the end of stdin, and its child processes do not.
        let home = with_tree(&args);
        let mut client = Client::start(&home, &["--direct", "tree"]);
        client.wait_stderr("ready");
        assert_eq!(server_processes(&home).len(), 1 + count, "{kind}");
        drop(client.take_stdin());
        assert_eq!(client.wait_exit().0.code(), Some(0), "{kind}");
        assert!(marked_processes(home.mark()).is_empty(), "{kind}");
        home.finish();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn signal_ends_all_processes_within_the_grace_period() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let args = ["--child", "daemon", "--child", "session", "--deaf", "--deaf-leader"];
        let home = with_tree(&args);
        let client = Client::start(&home, &["--direct", "tree"]);
        client.wait_stderr("ready");
        send(client.pid(), signal);
        let (status, ..) = client.wait_exit();
        assert_eq!(status.code(), Some(128 + Signal::KILL.as_raw()), "it did not listen");
        assert!(marked_processes(home.mark()).is_empty());
        home.finish();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn server_that_ignores_its_clients_end_is_killed() {
    let home = with_tree(&["--child", "daemon", "--deaf", "--deaf-leader"]);
    let mut client = Client::start(&home, &["--direct", "tree"]);
    client.wait_stderr("ready");
    drop(client.take_stdin()); // As if the client had been killed.
    let (status, ..) = client.wait_exit();
    assert_eq!(status.code(), Some(128 + Signal::KILL.as_raw()));
    assert!(marked_processes(home.mark()).is_empty());
    home.finish();
}

#[test]
#[cfg(target_os = "linux")]
fn stopped_process_is_killed() {
    let home = with_tree(&["--stop-self"]);
    let client = Client::start(&home, &["--direct", "tree"]);
    client.wait_stderr("ready");
    send(client.pid(), Signal::TERM);
    let (status, ..) = client.wait_exit();
    assert!(status.code().is_some());
    assert!(marked_processes(home.mark()).is_empty());
    home.finish();
}

#[test]
#[cfg(target_os = "linux")]
fn killing_either_process_of_the_command_leaves_nothing() {
    let whom: [fn(&Home, &Client) -> u32; 2] =
        [|_, client| client.pid(), |home, _| supervisor(home)];
    for victim in whom {
        let args = ["--child", "daemon", "--child", "session", "--deaf", "--deaf-leader"];
        let home = with_tree(&args);
        let client = Client::start(&home, &["--direct", "tree"]);
        client.wait_stderr("ready");
        assert_eq!(server_processes(&home).len(), 3);
        send(victim(&home, &client), Signal::KILL);
        let (status, ..) = client.wait_exit();
        assert!(!status.success());
        home.wait_until("nothing is left", || marked_processes(home.mark()).is_empty());
        home.finish();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn unsupervised_command_starts_nothing() {
    let home = with_tree(&[]);
    // This process exists, but it did not start the command.
    let stranger = std::os::unix::process::parent_id().to_string();
    let client = Client::start(&home, &["--direct", "tree", "--above", &stranger]);
    let (status, _, stderr) = client.wait_exit();
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(!stderr.contains("ready"), "{stderr}");
    home.finish();
}

#[test]
fn daemon_and_direct_client_have_separate_processes() {
    let home = home();
    home.server("mcp", &home.kdl_command("xy-test-mcp", &[]));
    let daemon = home.daemon();
    let before = home.wait_for_state("mcp", "running")["pid"].clone();
    let mut client = Client::start(&home, &["--direct", "mcp"]);
    client.send(INITIALIZE);
    assert_eq!(client.receive_json()["id"], 0);
    drop(client.take_stdin());
    assert_eq!(client.wait_exit().0.code(), Some(0));
    assert_eq!(home.wait_for_state("mcp", "running")["pid"], before);
    daemon.terminate();
    home.finish();
}

/// Runs the command to its end, and returns its exit code and stderr.
fn run_failing(home: &Home, args: &[&str]) -> (Option<i32>, String) {
    let (status, rest, stderr) = Client::start(home, args).wait_exit();
    assert_eq!(rest, b"", "stdout is the server's alone");
    (status.code(), stderr.replace(&home.root().display().to_string(), "[home]"))
}

#[test]
fn unusable_server_is_reported_with_the_reason() {
    let home = home();
    home.server("github", &home.kdl_command("xy-test-exit", &[]));
    home.server("web", &format!("{}port 8421\n", home.kdl_command("xy-test-exit", &[])));
    home.server("far", "url \"https://example.com/mcp\"\n");
    home.server("lost", "command \"/no/such/program\"\n");
    home.server("astray", "command \"no-such-program\"\n");
    home.server("broken", "comand \"x\"\n");
    let names = ["gihtub", "zzz", "web", "far", "lost", "astray", "broken", "a/b"];
    let stderr = names.map(|name| {
        let (code, stderr) = run_failing(&home, &["--direct", name]);
        format!("-- {name}: exit {}\n{stderr}", code.unwrap())
    });
    insta::assert_snapshot!(stderr.join("\n"));
    assert_no_daemon_started(&home);
    home.finish();
}

#[test]
fn invalid_common_config_fails_each_direct_server() {
    let home = home();
    home.server("one", &home.kdl_command("xy-test-exit", &["--code", "7"]));
    home.write_config("xy.kdl", "orphan-timeout 5\n");
    let (code, stderr) = run_failing(&home, &["--direct", "one"]);
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("xy.kdl:1:16"), "{stderr}");
    home.finish();
}

#[test]
fn disabled_supervisor_runs_a_named_server_directly() {
    let home = home().with_env("XY_SUPERVISOR_ENABLED", "false");
    home.server("seven", &home.kdl_command("xy-test-exit", &["--code", "7"]));
    let exit = Client::start(&home, &["--server", "seven"]).wait_exit().0.code();
    assert_eq!(exit, Some(7));
    assert_no_daemon_started(&home);
    home.server("far", "url \"https://example.com/mcp\"\n");
    let (far_code, far) = run_failing(&home, &["--server", "far"]);
    assert_eq!(far_code, Some(1));
    assert!(far.contains("unset XY_SUPERVISOR_ENABLED"), "{far}");
    let (code, stderr) = run_failing(&home, &[]);
    let daemon = home.daemon_fails();
    let daemon_stderr = String::from_utf8(daemon.stderr).unwrap();
    let daemon_code = daemon.status.code().unwrap();
    insta::assert_snapshot!(format!(
        "-- connect: exit {}\n{stderr}\n-- daemon: exit {daemon_code}\n{daemon_stderr}",
        code.unwrap()
    ));
    home.finish();
}

#[test]
fn supervisor_setting_in_the_file_overrides_the_environment() {
    let home = home().with_env("XY_SUPERVISOR_ENABLED", "true");
    home.server("seven", &home.kdl_command("xy-test-exit", &["--code", "7"]));
    home.write_config("xy.kdl", "supervisor #false\n");
    let exit = Client::start(&home, &["--server", "seven"]).wait_exit().0.code();
    assert_eq!(exit, Some(7), "it was run directly");
    assert_no_daemon_started(&home);
    let (code, stderr) = run_failing(&home, &[]);
    assert_eq!(code, Some(1), "{stderr}");
    let daemon = home.daemon_fails();
    let daemon_stderr = String::from_utf8(daemon.stderr).unwrap();
    for stderr in [stderr, daemon_stderr] {
        assert!(stderr.contains("`supervisor` is false in"), "{stderr}");
        assert!(stderr.contains("remove `supervisor #false` from"), "{stderr}");
    }
    home.finish();

    let home = crate::fixtures::home().with_env("XY_SUPERVISOR_ENABLED", "false");
    home.write_config("xy.kdl", "supervisor #true\n");
    home.daemon();
    assert_eq!(home.xy(&["list"]).code, 0);
    home.finish();
}

#[test]
fn invalid_environment_variable_is_a_configuration_error() {
    let home =
        home().with_env("XY_SUPERVISOR_ENABLED", "maybe").with_env("XY_RESTART_DELAY_MS", "1s");
    home.server("seven", &home.kdl_command("xy-test-exit", &["--code", "7"]));
    let (code, stderr) = run_failing(&home, &["--server", "seven"]);
    let checked = home.xy(&["check"]);
    let daemon = home.daemon_fails();
    assert_eq!((checked.code, daemon.status.code()), (3, Some(3)));
    insta::assert_snapshot!(format!(
        "-- connect: exit {}\n{stderr}\n-- check\n{}",
        code.unwrap(),
        checked.stdout
    ));
    home.finish();
}
