//! `xy connect --direct`: one server without a daemon, and nothing of it left afterwards.

#[cfg(target_os = "linux")]
use rustix::process::{Pid, Signal, kill_process};
use xy_testkit::Home;
#[cfg(target_os = "linux")]
use xy_testkit::{Proc, marked_processes};

use crate::stage::{Client, INITIALIZE, home};

/// A server that outlives the one who asks it to end, but not by much.
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

/// What is of the server; the command itself is two processes, each of which may be killed.
#[cfg(target_os = "linux")]
fn others(home: &Home) -> Vec<Proc> {
    let mut all = marked_processes(home.mark());
    all.retain(|process| !process.cmdline.contains("connect"));
    all
}

/// The process that looks after the server, below the one that the client has started.
#[cfg(target_os = "linux")]
fn owner(home: &Home) -> u32 {
    let all = marked_processes(home.mark());
    all.iter().find(|process| process.cmdline.contains("--above")).unwrap().pid
}

#[track_caller]
fn no_daemon_was_there(home: &Home) {
    assert!(!home.socket().exists(), "no daemon is started");
    assert!(!home.root().join("state/xy").exists(), "nothing is kept");
}

#[test]
fn a_client_speaks_with_the_server_itself() {
    let home = home();
    home.server("mcp", &home.kdl_command("xy-test-mcp", &[]));
    let mut client = Client::start(&home, &["--direct", "mcp"]);
    client.say(INITIALIZE);
    let answer = client.hear_json();
    assert_eq!(answer["id"], 0);
    assert!(answer["result"]["serverInfo"].is_object(), "{answer}");
    drop(client.take_stdin());
    let (status, rest, _) = client.ended();
    assert_eq!((status.code(), rest.as_slice()), (Some(0), &b""[..]));
    no_daemon_was_there(&home);
    home.finish();
}

#[test]
fn the_exit_code_is_the_servers() {
    let home = home();
    home.server("seven", &home.kdl_command("xy-test-exit", &["--code", "7"]));
    home.server("slain", &home.kdl_command("xy-test-exit", &["--signal", "11"]));
    let exit = |name: &str| Client::start(&home, &["--direct", name]).ended().0.code();
    assert_eq!(exit("seven"), Some(7));
    assert_eq!(exit("slain"), Some(128 + 11));
    home.finish();
}

#[test]
fn what_it_gets_is_what_its_file_says() {
    let home = home();
    let script =
        r#"args "-c" "echo $GREETING $PWD ${XY_RESTART_DELAY_MS-unset} $XY_SERVER; ulimit -n""#;
    let more = "env { GREETING \"hello\" }\nworking-dir \"/\"\nlimits { nofile 123 }\n";
    home.server("shell", &format!("command \"sh\"\n{script}\n{more}"));
    let home = home.with_env("XY_RESTART_DELAY_MS", "5");
    let client = Client::start(&home, &["--direct", "shell"]);
    assert_eq!(client.hear(), "hello / unset shell");
    assert_eq!(client.hear(), "123");
    assert_eq!(client.ended().0.code(), Some(0));
    home.finish();
}

#[test]
#[cfg(target_os = "linux")]
fn whatever_it_has_started_ends_with_it() {
    for (kind, count) in [("session", 1), ("daemon", 1), ("same-group", 1), ("storm", 64)] {
        let args = ["--child", kind, "--deaf", "--without-environment"];
        // It ends by itself at the end of stdin; what it leaves behind does not.
        let home = with_tree(&args);
        let mut client = Client::start(&home, &["--direct", "tree"]);
        client.tells("ready");
        assert_eq!(others(&home).len(), 1 + count, "{kind}");
        drop(client.take_stdin());
        assert_eq!(client.ended().0.code(), Some(0), "{kind}");
        assert!(marked_processes(home.mark()).is_empty(), "{kind}");
        home.finish();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_signal_ends_all_of_it_within_its_grace() {
    for told in [Signal::TERM, Signal::INT, Signal::HUP] {
        let args = ["--child", "daemon", "--child", "session", "--deaf", "--deaf-leader"];
        let home = with_tree(&args);
        let client = Client::start(&home, &["--direct", "tree"]);
        client.tells("ready");
        send(client.pid(), told);
        let (status, ..) = client.ended();
        assert_eq!(status.code(), Some(128 + Signal::KILL.as_raw()), "it did not listen");
        assert!(marked_processes(home.mark()).is_empty());
        home.finish();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_server_that_does_not_mind_the_end_of_its_client_is_ended() {
    let home = with_tree(&["--child", "daemon", "--deaf", "--deaf-leader"]);
    let mut client = Client::start(&home, &["--direct", "tree"]);
    client.tells("ready");
    drop(client.take_stdin()); // As if the client had been killed.
    let (status, ..) = client.ended();
    assert_eq!(status.code(), Some(128 + Signal::KILL.as_raw()));
    assert!(marked_processes(home.mark()).is_empty());
    home.finish();
}

#[test]
#[cfg(target_os = "linux")]
fn a_stopped_server_is_ended_too() {
    let home = with_tree(&["--stop-self"]);
    let client = Client::start(&home, &["--direct", "tree"]);
    client.tells("ready");
    send(client.pid(), Signal::TERM);
    let (status, ..) = client.ended();
    assert!(status.code().is_some());
    assert!(marked_processes(home.mark()).is_empty());
    home.finish();
}

#[test]
#[cfg(target_os = "linux")]
fn nothing_is_left_if_either_process_of_the_command_is_killed() {
    let whom: [fn(&Home, &Client) -> u32; 2] = [|_, client| client.pid(), |home, _| owner(home)];
    for victim in whom {
        let args = ["--child", "daemon", "--child", "session", "--deaf", "--deaf-leader"];
        let home = with_tree(&args);
        let client = Client::start(&home, &["--direct", "tree"]);
        client.tells("ready");
        assert_eq!(others(&home).len(), 3);
        send(victim(&home, &client), Signal::KILL);
        let (status, ..) = client.ended();
        assert!(!status.success());
        home.wait_until("nothing is left", || marked_processes(home.mark()).is_empty());
        home.finish();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_command_that_nobody_looks_after_starts_nothing() {
    let home = with_tree(&[]);
    // Somebody is there under this number, but is not the one who started it.
    let stranger = std::os::unix::process::parent_id().to_string();
    let client = Client::start(&home, &["--direct", "tree", "--above", &stranger]);
    let (status, _, told) = client.ended();
    assert_eq!(status.code(), Some(1), "{told}");
    assert!(!told.contains("ready"), "{told}");
    home.finish();
}

#[test]
fn a_daemon_and_a_client_each_have_their_own() {
    let home = home();
    home.server("mcp", &home.kdl_command("xy-test-mcp", &[]));
    let daemon = home.daemon();
    let before = home.wait_for_state("mcp", "running")["pid"].clone();
    let mut client = Client::start(&home, &["--direct", "mcp"]);
    client.say(INITIALIZE);
    assert_eq!(client.hear_json()["id"], 0);
    drop(client.take_stdin());
    assert_eq!(client.ended().0.code(), Some(0));
    assert_eq!(home.wait_for_state("mcp", "running")["pid"], before);
    daemon.terminate();
    home.finish();
}

/// Runs it to its end: the code, and what it told people.
fn refused(home: &Home, args: &[&str]) -> (Option<i32>, String) {
    let (status, rest, told) = Client::start(home, args).ended();
    assert_eq!(rest, b"", "stdout is the server's alone");
    (status.code(), told.replace(&home.root().display().to_string(), "[home]"))
}

#[test]
fn what_cannot_be_run_is_told_with_the_reason() {
    let home = home();
    home.server("github", &home.kdl_command("xy-test-exit", &[]));
    home.server("web", &format!("{}port 8421\n", home.kdl_command("xy-test-exit", &[])));
    home.server("far", "url \"https://example.com/mcp\"\n");
    home.server("lost", "command \"/no/such/program\"\n");
    home.server("astray", "command \"no-such-program\"\n");
    home.server("broken", "comand \"x\"\n");
    let asked = ["gihtub", "zzz", "web", "far", "lost", "astray", "broken", "a/b"];
    let told = asked.map(|name| {
        let (code, told) = refused(&home, &["--direct", name]);
        format!("-- {name}: exit {}\n{told}", code.unwrap())
    });
    insta::assert_snapshot!(told.join("\n"));
    no_daemon_was_there(&home);
    home.finish();
}

#[test]
fn a_file_for_all_servers_that_is_wrong_matters_to_each() {
    let home = home();
    home.server("one", &home.kdl_command("xy-test-exit", &["--code", "7"]));
    home.write_config("xy.kdl", "orphan-timeout 5\n");
    let (code, told) = refused(&home, &["--direct", "one"]);
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("xy.kdl:1:16"), "{told}");
    home.finish();
}

#[test]
fn without_supervision_a_named_server_is_run_directly_and_nothing_else() {
    let home = home().with_env("XY_SUPERVISOR_ENABLED", "false");
    home.server("seven", &home.kdl_command("xy-test-exit", &["--code", "7"]));
    let exit = Client::start(&home, &["--server", "seven"]).ended().0.code();
    assert_eq!(exit, Some(7));
    no_daemon_was_there(&home);
    home.server("far", "url \"https://example.com/mcp\"\n");
    let (far_code, far) = refused(&home, &["--server", "far"]);
    assert_eq!(far_code, Some(1));
    assert!(far.contains("unset XY_SUPERVISOR_ENABLED"), "{far}");
    let (code, told) = refused(&home, &[]);
    let daemon = home.daemon_fails();
    let daemon_told = String::from_utf8(daemon.stderr).unwrap();
    let daemon_code = daemon.status.code().unwrap();
    insta::assert_snapshot!(format!(
        "-- connect: exit {}\n{told}\n-- daemon: exit {daemon_code}\n{daemon_told}",
        code.unwrap()
    ));
    home.finish();
}

#[test]
fn the_file_says_whether_there_is_a_daemon_whatever_the_environment_says() {
    let home = home().with_env("XY_SUPERVISOR_ENABLED", "true");
    home.server("seven", &home.kdl_command("xy-test-exit", &["--code", "7"]));
    home.write_config("xy.kdl", "supervisor #false\n");
    let exit = Client::start(&home, &["--server", "seven"]).ended().0.code();
    assert_eq!(exit, Some(7), "it was run directly");
    no_daemon_was_there(&home);
    let (code, told) = refused(&home, &[]);
    assert_eq!(code, Some(1), "{told}");
    let daemon = home.daemon_fails();
    let daemon_told = String::from_utf8(daemon.stderr).unwrap();
    for told in [told, daemon_told] {
        assert!(told.contains("`supervisor` is false in"), "{told}");
        assert!(told.contains("remove `supervisor #false` from"), "{told}");
    }
    home.finish();

    let home = crate::stage::home().with_env("XY_SUPERVISOR_ENABLED", "false");
    home.write_config("xy.kdl", "supervisor #true\n");
    home.daemon();
    assert_eq!(home.xy(&["list"]).code, 0);
    home.finish();
}

#[test]
fn a_variable_that_cannot_be_understood_is_an_error_of_the_configuration() {
    let home =
        home().with_env("XY_SUPERVISOR_ENABLED", "maybe").with_env("XY_RESTART_DELAY_MS", "1s");
    home.server("seven", &home.kdl_command("xy-test-exit", &["--code", "7"]));
    let (code, told) = refused(&home, &["--server", "seven"]);
    let checked = home.xy(&["check"]);
    let daemon = home.daemon_fails();
    assert_eq!((checked.code, daemon.status.code()), (3, Some(3)));
    insta::assert_snapshot!(format!(
        "-- connect: exit {}\n{told}\n-- check\n{}",
        code.unwrap(),
        checked.stdout
    ));
    home.finish();
}
