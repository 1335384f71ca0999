//! A server that writes its start environment to stderr, as one line of JSON.
//!
//! Rust's runtime changes that environment before `main`: it ignores SIGPIPE, handles SIGSEGV
//! and opens closed descriptors. This program therefore has a C `main`, which must read the
//! environment before it does anything else.
#![no_main]

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::os::fd::BorrowedFd;

use rustix::fs::FileType;
use rustix::process::Pid;
use serde_json::{Value, json};
use xy_testkit::group_and_session;
use xy_testkit::standin::{self, Output};

/// The C entry point.
// SAFETY: `main` is C's entry point, and nothing else defines it here.
#[expect(unsafe_code, reason = "the only way to look before Rust's start-up does")]
#[unsafe(no_mangle)]
extern "C" fn main(_argc: c_int, _argv: *const *const c_char) -> c_int {
    let seen = read_environment();
    standin::live_at_most(standin::SAFETY_LIMIT);
    let mut wait = standin::Wait::new();
    Output::Stderr.say(&seen.to_string());
    wait.next(None);
    0
}

fn read_environment() -> Value {
    let (group, session) = group_and_session(std::process::id()).unwrap_or_default();
    let argv: Vec<String> = std::env::args_os().map(|it| it.to_string_lossy().into()).collect();
    let env: BTreeMap<String, String> = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into(), value.to_string_lossy().into()))
        .collect();
    json!({
        "pid": std::process::id(),
        "ppid": rustix::process::getppid().map_or(0, Pid::as_raw_pid),
        "sid": session,
        "pgid": group,
        "cwd": std::env::current_dir().ok().map(|it| it.to_string_lossy().into_owned()),
        "argv": argv,
        "env": env,
        "fds": descriptors(),
        "signals": signals(),
        "stdin": descriptor_kind(rustix::stdio::stdin()),
        "stdout": descriptor_kind(rustix::stdio::stdout()),
        "stderr": descriptor_kind(rustix::stdio::stderr()),
    })
}

/// Returns the kind of a descriptor. `null` is `/dev/null`; `closed` is not open.
fn descriptor_kind(descriptor: BorrowedFd<'_>) -> &'static str {
    let Ok(stat) = rustix::fs::fstat(descriptor) else {
        return "closed";
    };
    let null = rustix::fs::stat("/dev/null").map(|null| null.st_rdev);
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        FileType::RegularFile => "file",
        FileType::CharacterDevice if null == Ok(stat.st_rdev) => "null",
        FileType::CharacterDevice => "device",
        _ => "other",
    }
}

/// Returns the numbers and targets of open descriptors, except the one that lists them.
#[cfg(target_os = "linux")]
fn descriptors() -> Value {
    let listing = format!("/proc/{}/fd", std::process::id());
    let entries = std::fs::read_dir(&listing).into_iter().flatten().flatten();
    let open: serde_json::Map<String, Value> = entries
        .filter_map(|entry| {
            let target = std::fs::read_link(entry.path()).ok()?;
            let number = entry.file_name().to_string_lossy().into_owned();
            Some((number, target.to_string_lossy().into_owned()))
        })
        .filter(|(_, target)| *target != listing)
        .map(|(number, target)| (number, target.into()))
        .collect();
    open.into()
}

/// Returns null, because only Linux provides this information.
#[cfg(not(target_os = "linux"))]
fn descriptors() -> Value {
    Value::Null
}

/// Returns the numbers of ignored, blocked and caught signals.
#[cfg(target_os = "linux")]
fn signals() -> Value {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = |field: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let mask = u64::from_str_radix(line.unwrap_or_default().trim(), 16).unwrap_or(u64::MAX);
        (1..=64).filter(|signal| mask >> (signal - 1) & 1 == 1).collect()
    };
    json!({ "ignored": set("SigIgn:"), "blocked": set("SigBlk:"), "caught": set("SigCgt:") })
}

/// Returns null, because only Linux provides this information.
#[cfg(not(target_os = "linux"))]
fn signals() -> Value {
    Value::Null
}
