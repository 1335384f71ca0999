//! Tests of how servers are started, and of the reasons why one is not.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use rustix::io::Errno;
use xy_shim::wire::{self, Order, Problem, StartFault, Stdout, flags};

use crate::daemon::{Daemon, exit_report};

#[test]
fn daemon_talks_to_the_server_directly() {
    let mut daemon = Daemon::start_script("exec cat", Stdout::Passed);
    let mut ends = daemon.take_ends();
    ends.stdin.write_all(b"hello\n").unwrap();
    assert_eq!(ends.read(6), b"hello\n");

    drop(ends.stdin);
    daemon.stop(std::time::Duration::from_secs(60));
    assert_eq!(daemon.wait_exited(), exit_report(Some(0), None, true));
    daemon.finish();
    assert!(daemon.records.is_empty());
}

#[test]
fn pipe_ends_of_the_daemon_are_non_blocking() {
    let mut daemon = Daemon::start_script("exec cat", Stdout::Passed);
    let ends = daemon.take_ends();
    for end in [&ends.stdin, &ends.stdout] {
        assert!(rustix::fs::fcntl_getfl(end).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
    }
    daemon.hang_up();
    daemon.wait_shim();
}

#[test]
fn exit_of_a_server_is_reported() {
    for (script, code, signal) in [
        ("exit 0", Some(0), None),
        ("exit 7", Some(7), None),
        ("kill -9 $$", None, Some(9)),
        ("kill -TERM $$", None, Some(15)),
    ] {
        let mut daemon = Daemon::start_script(script, Stdout::Logged);
        assert_eq!(daemon.wait_exited(), exit_report(code, signal, false));
        daemon.finish();
    }
}

#[test]
fn start_failures_have_distinct_reasons() {
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
        assert_eq!(daemon.wait_start_failed(), expected, "{program}");
        daemon.read_to_end();
        assert!(!daemon.path("x.log").exists());
    }
}

#[test]
fn missing_working_dir_is_reported() {
    for folder in ["/nowhere", "/dev/null"] {
        let mut daemon = Daemon::new();
        let mut order = daemon.script("", Stdout::Logged);
        order.working_dir = Some(folder.to_owned());
        daemon.start(&order);
        assert_eq!(daemon.wait_start_failed().problem, Problem::NoWorkingDir);
        daemon.read_to_end();
    }
}

#[test]
fn system_error_is_reported() {
    let mut daemon = Daemon::new();
    let mut order = daemon.script("", Stdout::Logged);
    order.args.push("nul\0".to_owned());
    daemon.start(&order);
    let fault = daemon.wait_start_failed();
    assert!(matches!(fault.problem, Problem::System { .. }), "{fault:?}");
    daemon.read_to_end();
}

#[test]
fn other_protocol_version_is_refused() {
    let mut daemon = Daemon::new();
    let mut order = daemon.script("", Stdout::Logged);
    order.protocol = 99;
    daemon.start(&order);
    assert_eq!(daemon.wait_start_failed().problem, Problem::Protocol { expected: wire::PROTOCOL });
    daemon.read_to_end();
}

#[test]
fn program_is_looked_up_on_the_servers_path() {
    let mut daemon = Daemon::new();
    fs::write(daemon.path("my-server"), "#!/bin/sh\necho $0 $1\n").unwrap();
    fs::set_permissions(daemon.path("my-server"), fs::Permissions::from_mode(0o700)).unwrap();
    let mut order = daemon.script("", Stdout::Logged);
    order.program = "my-server".to_owned();
    order.args = vec!["argument".to_owned()];
    order.env = vec![("PATH".to_owned(), format!("/nowhere:{}", daemon.folder.path().display()))];
    daemon.start(&order);
    daemon.wait_line(&format!("{} argument", daemon.path("my-server").display()));
    assert_eq!(daemon.wait_exited().code, Some(0));
    daemon.finish();
}

#[test]
fn server_gets_no_xy_variables_of_the_shim() {
    let mut daemon = Daemon::new();
    let mut order = daemon.script("env; pwd", Stdout::Logged);
    order.env = vec![
        ("XY_GIVEN".to_owned(), "yes".to_owned()),
        ("GREETING".to_owned(), "hello world".to_owned()),
    ];
    daemon.start(&order);
    assert_eq!(daemon.wait_exited().code, Some(0));
    daemon.finish();

    let lines: Vec<_> =
        daemon.records.iter().map(|it| String::from_utf8_lossy(&it.bytes).into_owned()).collect();
    let leaked: Vec<_> = lines.iter().filter(|line| line.starts_with("XY_")).collect();
    assert_eq!(leaked, ["XY_GIVEN=yes"]);
    assert!(lines.contains(&"GREETING=hello world".to_owned()));
    assert!(lines.iter().any(|line| line.starts_with("PATH=")));
    let folder = daemon.folder.path().canonicalize().unwrap();
    assert!(lines.contains(&folder.to_str().unwrap().to_owned()));
    assert!(daemon.records.iter().all(|record| record.flags & flags::STDERR == 0));
}

#[test]
fn logged_server_has_an_empty_stdin() {
    let mut daemon = Daemon::start_script("cat; echo done", Stdout::Logged);
    daemon.wait_line("done");
    daemon.wait_exited();
    daemon.finish();
}

/// The shim is started with signals ignored and blocked, and with open descriptors.
#[cfg(target_os = "linux")]
#[test]
fn server_starts_with_clean_signals_and_descriptors() {
    use std::process::Command;

    use crate::daemon::SHIM;

    let dirty_start = "trap '' HUP INT PIPE USR1; exec 8</dev/null 9>/dev/null; \
                exec env --block-signal=TERM,CHLD,USR2 \"$0\"";
    let mut daemon = Daemon::launch(Command::new("sh").args(["-c", dirty_start, SHIM]));
    daemon.start(&daemon.script("exec cat", Stdout::Passed));
    let pid = daemon.wait_started();
    let mut ends = daemon.take_ends();
    ends.stdin.write_all(b"x").unwrap();
    assert_eq!(ends.read(1), b"x"); // Its libraries are loaded by now, and their files closed.

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
    assert!(daemon.wait_shim().success());
}

#[test]
fn shim_without_a_start_order_ends() {
    let mut daemon = Daemon::new();
    daemon.hang_up();
    assert!(daemon.wait_shim().success());

    let mut daemon = Daemon::new();
    daemon.order(&Order::Stop { grace_ms: 1000, for_good: false });
    daemon.read_to_end();

    let mut daemon = Daemon::new();
    daemon.send(b"GET / HTTP/1.1\r\n\r\n");
    assert!(daemon.wait_shim().success());
}
