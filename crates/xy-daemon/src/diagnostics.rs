//! The diagnostics report: everything that helps to find a fault, with or without a daemon.
//!
//! Users show it to strangers, so it contains no values of environment variables and headers, and
//! known secrets are removed everywhere. Its size is limited.

use std::collections::BTreeMap;

use serde_json::value::{RawValue, to_raw_value};
use xy_config::stored_file::StoredFile;
use xy_config::{LoadedConfig, Paths};
use xy_protocol::PROTOCOL_VERSION;
use xy_protocol::control::{
    BriefProblem, ConfigurationState, DaemonState, Diagnostics, ServerReport, System,
};
use xy_protocol::error::{CallError, ErrorKind};
use xy_supervisor::RuntimeServers;
use xy_supervisor::fleet::Member;
use xy_supervisor::instance::add_inherited_secrets;
use xy_supervisor::reload::ServerMap;

use self::mask::Secrets;
use crate::daemon::Daemon;
use crate::self_test::history;
use crate::{check, daemon_info, limits, machine, server_status};

mod files;
mod mask;
mod metrics;
mod settings;
mod size_limit;

/// Number of stderr lines per server.
const LAST_STDERR: usize = 20;

/// Maximum length of a line, in characters.
const MAX_LINE_CHARS: usize = 500;

/// Maximum number of restarts in the report.
const MAX_RESTARTS: usize = 200;

/// Maximum number of configuration problems in the report.
const MAX_PROBLEMS: usize = 100;

/// Returns the report of a running daemon.
pub(crate) async fn of_daemon(daemon: &Daemon) -> Result<Box<RawValue>, CallError> {
    let (loaded, config_lock) = daemon.load().await?;
    drop(config_lock);
    let roster = daemon.fleet.roster();
    let metrics_text = match daemon.admin() {
        Ok(admin) => admin.metrics().await.unwrap_or_default(),
        Err(_) => String::new(), // The gateway is still starting.
    };
    let state = DaemonState { info: daemon_info::of(daemon), rss: machine::resident() };
    let statuses: BTreeMap<_, _> = roster
        .keys()
        .filter_map(|name| {
            Some((name.clone(), server_status::of_named(daemon, name.as_str()).ok()?))
        })
        .collect();
    let restart_history = history::of(&daemon.journal, MAX_RESTARTS).await;
    let paths = daemon.paths.clone();
    let writing = tokio::task::spawn_blocking(move || {
        let mut secrets = known_secrets(&paths);
        learn_secrets(&loaded.settings.servers, &mut secrets);
        let servers = roster.values().map(|member| {
            let mut report = server_report(&paths, &member.settings, &mut secrets);
            if let Some(mut status) = statuses.get(&member.settings.name).cloned() {
                status.command = settings::command(&member.settings, &mut secrets);
                report.status = serde_json::to_value(status).ok();
            }
            report.stderr = stderr_of(member);
            report
        });
        let servers = servers.collect();
        let report = Diagnostics {
            daemon: Some(state),
            servers,
            restart_history,
            metrics: metrics::read(&metrics_text),
            ..base_report(&paths, &loaded)
        };
        finish(report, &secrets)
    });
    writing.await.map_err(|cause| not_written().cause(cause))?
}

/// Returns the report when no daemon can be reached, for this reason.
pub fn without_daemon(paths: &Paths, problem: &str) -> Result<Box<RawValue>, CallError> {
    let loaded = xy_config::load(paths, &limits::supported());
    let mut secrets = known_secrets(paths);
    let servers = servers_on_disk(paths, &loaded);
    learn_secrets(&servers, &mut secrets);
    let report = Diagnostics {
        problem: Some(problem.to_owned()),
        servers: servers.values().map(|it| server_report(paths, it, &mut secrets)).collect(),
        restart_history: history::on_disk(&paths.events_file, MAX_RESTARTS),
        ..base_report(paths, &loaded)
    };
    finish(report, &secrets)
}

/// Returns the secrets of xy itself, of this environment, and of all servers on disk.
pub fn secrets_on_disk(paths: &Paths) -> Secrets {
    let mut secrets = known_secrets(paths);
    let loaded = xy_config::load(paths, &limits::supported());
    learn_secrets(&servers_on_disk(paths, &loaded), &mut secrets);
    secrets
}

/// Returns the servers of the files, and those that were added without one.
fn servers_on_disk(paths: &Paths, loaded: &LoadedConfig) -> ServerMap {
    let mut servers = loaded.settings.servers.clone();
    if let Some(added) = RuntimeServers::peek(&paths.runtime_servers_file) {
        for (name, settings) in added.servers {
            servers.entry(name).or_insert(settings);
        }
    }
    servers
}

/// Returns the parts of the report that need no daemon.
fn base_report(paths: &Paths, loaded: &LoadedConfig) -> Diagnostics {
    Diagnostics {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: PROTOCOL_VERSION,
        timestamp: machine::wall_clock(),
        system: System {
            platform: machine::platform().to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
            total_memory: machine::total_memory(),
            free_memory: machine::free_memory(),
        },
        daemon: None,
        problem: None,
        paths: files::named(paths),
        files: files::of_home(paths, &loaded.settings.mcp_json),
        configuration: configuration(loaded),
        servers: Vec::new(),
        restart_history: Vec::new(),
        metrics: BTreeMap::new(),
        left_out: Vec::new(),
    }
}

/// Returns the problems of the configuration files, without their text.
fn configuration(loaded: &LoadedConfig) -> ConfigurationState {
    let report = check::report_of(loaded);
    let problems = report.problems.into_iter().take(MAX_PROBLEMS).map(|it| BriefProblem {
        severity: it.severity,
        message: mask::text(&it.message),
        file: it.file,
        line: it.line,
    });
    ConfigurationState {
        valid: report.valid,
        files: report.files,
        servers: report.servers,
        problems: problems.collect(),
    }
}

fn server_report(
    paths: &Paths,
    settings: &xy_config::settings::ServerSettings,
    secrets: &mut Secrets,
) -> ServerReport {
    ServerReport {
        name: settings.name.clone(),
        configuration: settings::masked_settings(settings, secrets),
        status: None,
        stderr: Vec::new(),
        log_files: files::logs_of(paths, &settings.name),
    }
}

fn stderr_of(member: &Member) -> Vec<String> {
    let Some(instance) = server_status::instance_to_log(member) else { return Vec::new() };
    let lines = instance.logs().last_stderr(LAST_STDERR);
    lines.iter().map(|line| String::from_utf8_lossy(&line.bytes).into_owned()).collect()
}

/// Returns the secrets of xy itself, and those of the environment that servers inherit.
fn known_secrets(paths: &Paths) -> Secrets {
    let mut secrets = Secrets::default();
    for file in [&paths.token_file, &paths.manage_token_file, &paths.state_key_file] {
        if let Ok(text) = std::fs::read_to_string(file) {
            secrets.add(text.trim());
        }
    }
    add_inherited_secrets(&mut secrets);
    secrets
}

/// Removes secrets from the output of a server.
pub(crate) struct Scrubber {
    secrets: Secrets,
}

impl Scrubber {
    /// Creates a scrubber for the secrets of xy itself and of one server.
    pub(crate) fn of_server(paths: &Paths, settings: &xy_config::settings::ServerSettings) -> Self {
        let mut secrets = known_secrets(paths);
        drop(settings::masked_settings(settings, &mut secrets));
        Self { secrets }
    }

    /// Returns a line with its secrets masked.
    pub(crate) fn line(&self, line: &str) -> String {
        mask::text(&self.secrets.scrub(line))
    }
}

/// Collects the secrets of all settings, before any report is written.
fn learn_secrets(servers: &ServerMap, secrets: &mut Secrets) {
    for settings in servers.values() {
        drop(settings::masked_settings(settings, secrets));
    }
}

/// Masks secrets in a report, and reduces it to the size limit.
fn finish(mut report: Diagnostics, secrets: &Secrets) -> Result<Box<RawValue>, CallError> {
    for server in &mut report.servers {
        for line in &mut server.stderr {
            *line = truncate_line(&mask::text(&secrets.scrub(line)));
        }
        if let Some(status) = &mut server.status {
            mask::for_each_text(status, &mut |text| *text = mask::text(text));
        }
    }
    for restart in &mut report.restart_history {
        restart.reason = mask::text(&restart.reason);
    }
    let mut value = size_limit::fit_to_limit(report).map_err(|cause| not_written().cause(cause))?;
    secrets.scrub_all(&mut value);
    to_raw_value(&value).map_err(|cause| not_written().cause(cause))
}

fn truncate_line(line: &str) -> String {
    match line.char_indices().nth(MAX_LINE_CHARS) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

fn not_written() -> CallError {
    CallError::new(ErrorKind::Internal, "the report could not be written")
}
