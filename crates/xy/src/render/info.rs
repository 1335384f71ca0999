//! Rendering of `info`, `version` and the summary of `check`.

use std::time::Duration;

use xy_protocol::control::{CheckReport, Info, LimitHit, Severity, Version};
use xy_protocol::server::ServerName;

use super::{DIM, count, paint, safe_text, span};

/// Renders the daemon's process, sockets and folders.
pub(crate) fn info(info: &Info) -> String {
    let or_none = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    let facts = [
        ("version", info.version.clone()),
        ("pid", info.pid.to_string()),
        ("uptime", span(Duration::from_secs(info.uptime_secs))),
        ("servers", format!("{}, {} running", info.servers, info.running)),
        ("control", info.control_socket.clone()),
        ("mcp socket", or_none(&info.mcp_socket)),
        ("gateway", info.gateway_problem.clone().unwrap_or_else(|| or_none(&info.gateway_url))),
        ("config", info.config_dir.clone()),
        ("state", info.state_dir.clone()),
    ];
    let limits = info.limit_hits.iter().map(limit_hit);
    let problems = info.journal_problem.iter().chain(&info.warnings).cloned().chain(limits);
    let problems: Vec<_> = problems.map(|problem| ("warning", problem)).collect();
    let line = |(label, value): &(&str, String)| {
        format!("{}  {}\n", paint(DIM, format_args!("{label:<10}")), safe_text(value))
    };
    facts.iter().chain(&problems).map(line).collect()
}

/// Formats a line about a limit that was exceeded.
pub(crate) fn limit_hit(hit: &LimitHit) -> String {
    let LimitHit { limit, by, times } = hit;
    let times = count(usize::try_from(*times).unwrap_or(usize::MAX), "time");
    format!("a limit was hit {times} in the last minute: {limit}, by {by}")
}

/// Renders the versions of this program and of the daemon.
pub(crate) fn version(own_version: &str, daemon: Option<&Version>) -> String {
    let daemon = match daemon {
        Some(it) => format!("{} (protocol {})", safe_text(&it.version), it.protocol),
        None => "not running".to_owned(),
    };
    format!("xy      {own_version}\ndaemon  {daemon}\n")
}

/// Renders the summary of `check`: `3 files, 1 error, 2 warnings`.
pub(crate) fn summary(report: &CheckReport) -> String {
    let of = |severity| report.problems.iter().filter(|it| it.severity == severity).count();
    let files = count(report.all_files, "file");
    let (errors, warnings) = (of(Severity::Error), of(Severity::Warning));
    let names: Vec<&str> = report.server_names.iter().map(ServerName::as_str).collect();
    let servers = match names.as_slice() {
        [] => String::new(),
        names => format!("{}: {}\n", count(names.len(), "server"), names.join(", ")),
    };
    format!("{servers}{files}, {}, {}\n", count(errors, "error"), count(warnings, "warning"))
}

#[cfg(test)]
mod tests {
    use super::super::samples::name;
    use super::super::uncoloured;
    use super::*;

    #[test]
    fn info_lists_daemon_facts() {
        let it = Info {
            version: "0.1.0".into(),
            pid: 4711,
            control_socket: "/run/user/1000/xy.sock".into(),
            mcp_socket: None,
            gateway_url: Some("http://127.0.0.1:7979/mcp".into()),
            gateway_problem: None,
            config_dir: "/home/a/.config/xy".into(),
            state_dir: "/home/a/.local/state/xy".into(),
            journal_problem: None,
            warnings: Vec::new(),
            limit_hits: Vec::new(),
            uptime_secs: 725,
            mcp_json: Vec::new(),
            servers: 3,
            running: 2,
        };
        insta::assert_snapshot!(uncoloured(&info(&it)));
    }

    #[test]
    fn limit_hit_names_limit_and_token() {
        let hit =
            |by: &str, times| LimitHit { limit: "HTTP sessions".into(), by: by.into(), times };
        assert_eq!(
            limit_hit(&hit("token `laptop`", 12)),
            "a limit was hit 12 times in the last minute: HTTP sessions, by token `laptop`"
        );
        assert_eq!(
            limit_hit(&hit("unauthenticated", 1)),
            "a limit was hit 1 time in the last minute: HTTP sessions, by unauthenticated"
        );
    }

    #[test]
    fn version_works_without_daemon() {
        let daemon = Version { version: "0.2.0".into(), protocol: 1 };
        let both = version("0.1.0", Some(&daemon)) + &version("0.1.0", None);
        insta::assert_snapshot!(both);
    }

    #[test]
    fn summary_counts_files_and_problems() {
        let (server_names, problems) = (Vec::new(), Vec::new());
        let report =
            CheckReport { valid: true, files: 0, all_files: 1, servers: 0, server_names, problems };
        assert_eq!(summary(&report), "1 file, 0 errors, 0 warnings\n");
        let server_names = ["b", "a"].map(name).to_vec();
        let report = CheckReport { servers: 2, server_names, ..report };
        assert_eq!(summary(&report), "2 servers: b, a\n1 file, 0 errors, 0 warnings\n");
    }
}
