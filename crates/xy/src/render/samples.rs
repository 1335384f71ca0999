//! Sample servers for snapshots.

use xy_protocol::server::{
    Health, LastExit, NextStep, RestartLimits, ServerEntry, ServerName, ServerState, ServerStatus,
    Step, Transition, Transport, Wanted,
};
use xy_protocol::time::Timestamp;

pub(crate) const NOW: u64 = 1_700_000_000_000;

pub(crate) fn at(seconds_ago: u64) -> Timestamp {
    Timestamp::from_unix_millis(NOW - seconds_ago * 1000)
}

pub(crate) fn name(name: &str) -> ServerName {
    ServerName::new(name).unwrap()
}

pub(crate) fn entry(called: &str, state: ServerState) -> ServerEntry {
    ServerEntry {
        shares: None,
        name: name(called),
        state,
        pid: None,
        port: None,
        url: None,
        uptime_secs: None,
        restart_count: 0,
        last_exit: None,
        wanted: Wanted::Up,
        health: Health::Unknown,
        transport: Transport::Stdio,
        restarts_total: 0,
        reason: None,
        reason_kind: None,
        progress: None,
        next: None,
        not_restarted: None,
        warnings: Vec::new(),
    }
}

/// Returns servers in all states.
pub(crate) fn entries() -> Vec<ServerEntry> {
    vec![
        ServerEntry {
            pid: Some(4711),
            port: Some(8421),
            uptime_secs: Some(273_600),
            transport: Transport::Http,
            ..entry("github", ServerState::Running)
        },
        ServerEntry {
            pid: Some(12),
            uptime_secs: Some(725),
            restart_count: 2,
            warnings: vec!["its log is not written: disk full".into()],
            ..entry("files", ServerState::Running)
        },
        ServerEntry {
            restart_count: 3,
            reason: Some("exited with code 1".into()),
            next: Some(NextStep { what: Step::Restart, in_ms: 3600 }),
            ..entry("flaky", ServerState::Restarting)
        },
        ServerEntry {
            restart_count: 5,
            reason: Some("crashed 5 times in a minute, last with \x1b[31mcode 1".into()),
            ..entry("a-rather-long-name", ServerState::Failed)
        },
        ServerEntry { wanted: Wanted::Down, ..entry("off", ServerState::Stopped) },
        ServerEntry {
            pid: Some(99),
            next: Some(NextStep { what: Step::GiveUpWaiting, in_ms: 9000 }),
            ..entry("cold", ServerState::Starting)
        },
        ServerEntry {
            pid: Some(98),
            next: Some(NextStep { what: Step::Kill, in_ms: 900 }),
            wanted: Wanted::Down,
            ..entry("stubborn", ServerState::Stopping)
        },
        unreachable(),
        ServerEntry {
            url: Some("https://example.com/sse".into()),
            transport: Transport::Sse,
            uptime_secs: Some(5),
            ..entry("near", ServerState::Running)
        },
    ]
}

/// Returns a remote server that cannot be reached.
pub(crate) fn unreachable() -> ServerEntry {
    ServerEntry {
        url: Some("https://example.com/mcp".into()),
        transport: Transport::Http,
        health: Health::Unreachable,
        reason: Some("connection refused".into()),
        next: Some(NextStep { what: Step::Restart, in_ms: 31_500 }),
        ..entry("far", ServerState::Restarting)
    }
}

pub(crate) fn failed_status() -> ServerStatus {
    let transition = |from, to, reason: &str, seconds_ago| Transition {
        from,
        to,
        reason: reason.into(),
        at: at(seconds_ago),
        last_attempt: (seconds_ago == 80).then(|| "final restart attempt (5 of 5)".into()),
    };
    ServerStatus {
        entry: ServerEntry {
            restart_count: 5,
            restarts_total: 17,
            reason: Some("crashed 5 times in a minute".into()),
            last_exit: Some(LastExit {
                code: None,
                signal: Some(11),
                expected: false,
                by_xy: false,
                at: at(65),
                oom: None,
            }),
            ..entry("flaky", ServerState::Failed)
        },
        protocol: None,
        parked: 0,
        transitions: vec![
            transition(ServerState::Stopped, ServerState::Starting, "the daemon started", 4000),
            transition(ServerState::Starting, ServerState::Running, "ready", 3999),
            transition(ServerState::Running, ServerState::Restarting, "ended by\nsignal 11", 90),
            transition(
                ServerState::Restarting,
                ServerState::Starting,
                "final restart attempt (5 of 5)",
                80,
            ),
            transition(ServerState::Starting, ServerState::Running, "ready", 79),
            transition(ServerState::Running, ServerState::Failed, "ended by\nsignal 11", 65),
        ],
        last_stderr: vec!["panic: \x1b[1moh no".into(), "  at main".into()],
        problems: Vec::new(),
        command: vec!["npx".into(), "-y".into(), "two words".into(), String::new()],
        config_file: "/home/a/.config/xy/servers/flaky.kdl".into(),
        log_file: Some("/home/a/.local/state/xy/logs/flaky.log".into()),
        log_path: Some("/home/a/.local/state/xy/logs/flaky.log".into()),
        alive: false,
        ready: false,
        limits_used: RestartLimits {
            in_a_row: 5,
            max_attempts: 5,
            exits_last_minute: 4,
            max_retries_per_minute: 5,
        },
        containment: None,
        container: None,
        limits: Vec::new(),
        instances: Vec::new(),
        last_health_check: None,
        last_failed: None,
    }
}
