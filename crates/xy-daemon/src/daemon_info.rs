//! Information about the running daemon: its paths, sockets and URL, and its problems.

use xy_protocol::control::Info;
use xy_protocol::server::ServerState;

use crate::daemon::Daemon;
use crate::server_status;

/// Returns the paths, sockets and URL of the running daemon, and its problems.
pub(crate) fn of(daemon: &Daemon) -> Info {
    let roster = daemon.fleet.roster();
    let is_running = |state| state == ServerState::Running;
    let (gateway_url, gateway_problem) = daemon.gateway_url();
    let mut warnings = daemon.faults().warnings.clone();
    warnings.extend(daemon.admin().map(xy_gateway::Admin::warnings).unwrap_or_default());
    Info {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        control_socket: daemon.sockets.control.path().display().to_string(),
        mcp_socket: Some(daemon.sockets.mcp.path().display().to_string()),
        gateway_url,
        gateway_problem,
        config_dir: daemon.paths.config_dir.display().to_string(),
        state_dir: daemon.paths.state_dir.display().to_string(),
        journal_problem: daemon.journal.problem(),
        warnings,
        limit_hits: daemon.limit_hits(),
        uptime_secs: daemon.started_at.elapsed().as_secs(),
        mcp_json: daemon.paths.mcp_json.iter().map(|file| file.display().to_string()).collect(),
        servers: roster.len() + daemon.bad_files().len(),
        running: roster
            .values()
            .filter(|member| is_running(server_status::entry(member).state))
            .count(),
    }
}
