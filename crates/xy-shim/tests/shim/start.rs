//! How servers are started, or why they are not.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use rustix::io::Errno;
use xy_shim::wire::{self, Order, Problem, StartFault, Stdout, flags};

use crate::daemon::{Daemon, ended};

#[test]
fn the_daemon_speaks_with_a_server_directly() {
    let mut daemon = Daemon::running("exec cat", Stdout::Passed);
    let mut ends = daemon.ends();
    ends.stdin.write_all(b"hello\n").unwrap();
    assert_eq!(ends.read(6), b"hello\n");

    drop(ends.stdin);
    daemon.stop(std::time::Duration::from_secs(60));
    assert_eq!(daemon.exited(), ended(Some(0), None, true));
    daemon.finish();
    assert!(daemon.records.is_empty());
}

#[test]
fn both_ends_of_the_daemon_are_non_blocking() {
    let mut daemon = Daemon::running("exec cat", Stdout::Passed);
    let ends = daemon.ends();
    for end in [&ends.stdin, &ends.stdout] {
        assert!(rustix::fs::fcntl_getfl(end).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
    }
    daemon.hang_up();
    daemon.shim_ends();
}

#[test]
fn the_end_of_a_server_is_told_as_it_was() {
    for (script, code, signal) in [
        ("exit 0", Some(0), None),
        ("exit 7", Some(7), None),
        ("kill -9 $$", None, Some(9)),
        ("kill -TERM $$", None, Some(15)),
    ] {
        let mut daemon = Daemon::running(script, Stdout::Logged);
        assert_eq!(daemon.exited(), ended(code, signal, false));
        daemon.finish();
    }
}

#[test]
fn every_reason_for_not_starting_is_told_apart() {
    let problem = |problem, errno: Option<Errno>| StartFault {
        problem,
        errno: errno.map(Errno::raw_os_error),
    };
    let missing = problem(Problem::ProgramNotFound, Some(Errno::NOENT));
    let not_on_path = problem(Problem::ProgramNotFound, None);
    let unusable = problem(Problem::NotExecutable, Some(Errno::ACCESS));
    let no_interpreter = problem(Problem::NotExecutable, Some(Errno::NOENT));
    for (program, expected) in [
        ("/nowhere/server", missing),
        ("no-such-program", not_on_path),
        ("./plain", unusable.clone()),
        ("/", unusable),
        ("./orphan", no_interpreter),
    ] {
        let mut daemon = Daemon::new();
        fs::write(daemon.path("plain"), "").unwrap();
        fs::write(daemon.path("orphan"), "#!/nowhere/interpreter\n").unwrap();
        fs::set_permissions(daemon.path("orphan"), fs::Permissions::from_mode(0o700)).unwrap();
        let mut order = daemon.script("", Stdout::Passed);
        order.program = program.to_owned();
        daemon.start(&order);
        assert_eq!(daemon.start_failed(), expected, "{program}");
        daemon.hear_the_end();
        assert!(!daemon.path("x.log").exists());
    }
}

#[test]
fn a_missing_working_folder_is_told() {
    for folder in ["/nowhere", "/dev/null"] {
        let mut daemon = Daemon::new();
        let mut order = daemon.script("", Stdout::Logged);
        order.working_dir = Some(folder.to_owned());
        daemon.start(&order);
        assert_eq!(daemon.start_failed().problem, Problem::NoWorkingDir);
        daemon.hear_the_end();
    }
}

#[test]
fn an_order_that_the_system_refuses_is_told_in_its_words() {
    let mut daemon = Daemon::new();
    let mut order = daemon.script("", Stdout::Logged);
    order.args.push("nul\0".to_owned());
    daemon.start(&order);
    let fault = daemon.start_failed();
    assert!(matches!(fault.problem, Problem::System { .. }), "{fault:?}");
    daemon.hear_the_end();
}

#[test]
fn another_protocol_is_refused() {
    let mut daemon = Daemon::new();
    let mut order = daemon.script("", Stdout::Logged);
    order.protocol = 99;
    daemon.start(&order);
    assert_eq!(daemon.start_failed().problem, Problem::Protocol { expected: wire::PROTOCOL });
    daemon.hear_the_end();
}

#[test]
fn a_name_is_looked_up_on_the_path_of_the_server() {
    let mut daemon = Daemon::new();
    fs::write(daemon.path("my-server"), "#!/bin/sh\necho $0 $1\n").unwrap();
    fs::set_permissions(daemon.path("my-server"), fs::Permissions::from_mode(0o700)).unwrap();
    let mut order = daemon.script("", Stdout::Logged);
    order.program = "my-server".to_owned();
    order.args = vec!["argument".to_owned()];
    order.env = vec![("PATH".to_owned(), format!("/nowhere:{}", daemon.folder.path().display()))];
    daemon.start(&order);
    daemon.line(&format!("{} argument", daemon.path("my-server").display()));
    assert_eq!(daemon.exited().code, Some(0));
    daemon.finish();
}

#[test]
fn a_server_gets_its_own_environment_and_nothing_of_ours() {
    let mut daemon = Daemon::new();
    let mut order = daemon.script("env; pwd", Stdout::Logged);
    order.env = vec![
        ("XY_GIVEN".to_owned(), "yes".to_owned()),
        ("GREETING".to_owned(), "hello world".to_owned()),
    ];
    daemon.start(&order);
    assert_eq!(daemon.exited().code, Some(0));
    daemon.finish();

    let lines: Vec<_> =
        daemon.records.iter().map(|it| String::from_utf8_lossy(&it.bytes).into_owned()).collect();
    let ours: Vec<_> = lines.iter().filter(|line| line.starts_with("XY_")).collect();
    assert_eq!(ours, ["XY_GIVEN=yes"]);
    assert!(lines.contains(&"GREETING=hello world".to_owned()));
    assert!(lines.iter().any(|line| line.starts_with("PATH=")));
    let folder = daemon.folder.path().canonicalize().unwrap();
    assert!(lines.contains(&folder.to_str().unwrap().to_owned()));
    assert!(daemon.records.iter().all(|record| record.flags & flags::STDERR == 0));
}

#[test]
fn a_logged_server_has_an_empty_stdin() {
    let mut daemon = Daemon::running("cat; echo done", Stdout::Logged);
    daemon.line("done");
    daemon.exited();
    daemon.finish();
}

/// What the kernel says of a server whose shim was started in a mess: signals ignored
/// and blocked, descriptors left open.
#[cfg(target_os = "linux")]
#[test]
fn a_server_starts_with_a_clean_slate() {
    use std::process::Command;

    use crate::daemon::SHIM;

    let mess = "trap '' HUP INT PIPE USR1; exec 8</dev/null 9>/dev/null; \
                exec env --block-signal=TERM,CHLD,USR2 \"$0\"";
    let mut daemon = Daemon::launching(Command::new("sh").args(["-c", mess, SHIM]));
    daemon.start(&daemon.script("exec cat", Stdout::Passed));
    let pid = daemon.started();
    let mut ends = daemon.ends();
    ends.stdin.write_all(b"x").unwrap();
    assert_eq!(ends.read(1), b"x"); // Its libraries are loaded and closed again.

    let mut descriptors: Vec<_> = fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    descriptors.sort();
    assert_eq!(descriptors, ["0", "1", "2"]);

    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    for set in ["SigIgn", "SigBlk"] {
        let line = status.lines().find(|line| line.starts_with(set)).unwrap();
        assert!(line.ends_with("0000000000000000"), "{line}");
    }
    let process = rustix::process::Pid::from_raw(pid);
    assert_eq!(rustix::process::getsid(process).unwrap(), process.unwrap());
    assert_eq!(rustix::process::getpgid(process).unwrap(), process.unwrap());
    let shim = rustix::process::Pid::from_raw(daemon.shim_pid());
    assert_eq!(rustix::process::getsid(shim).unwrap(), shim.unwrap());

    daemon.hang_up();
    assert!(daemon.shim_ends().success());
}

#[test]
fn a_shim_that_is_never_told_to_start_ends() {
    let mut daemon = Daemon::new();
    daemon.hang_up();
    assert!(daemon.shim_ends().success());

    let mut daemon = Daemon::new();
    daemon.order(&Order::Stop { grace_ms: 1000, for_good: false });
    daemon.hear_the_end();

    let mut daemon = Daemon::new();
    daemon.send(b"GET / HTTP/1.1\r\n\r\n");
    assert!(daemon.shim_ends().success());
}
