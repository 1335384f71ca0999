//! One report of everything that helps to find out what is wrong, with or without a daemon.
//!
//! It is meant to be shown to strangers: values of environments and headers are not in it, and
//! whatever is known to be secret is taken out wherever it stands. It has a bound.

use std::collections::BTreeMap;

use serde_json::value::{RawValue, to_raw_value};
use xy_config::{Loaded, Paths};
use xy_protocol::PROTOCOL_VERSION;
use xy_protocol::control::{
    BriefProblem, ByName, ConfigurationState, DaemonState, Diagnostics, ServerReport, System,
};
use xy_protocol::error::{CallError, ErrorKind};
use xy_supervisor::AddedServers;
use xy_supervisor::fleet::Member;
use xy_supervisor::reload::ServerMap;

use self::mask::Secrets;
use crate::daemon::Daemon;
use crate::handlers::{info, status};
use crate::self_test::history;
use crate::{check, limits, machine, view};

mod files;
mod fit;
mod mask;
mod numbers;
mod settings;

/// Lines of stderr that are shown of each server.
const LAST_STDERR: usize = 20;

/// Longer lines are cut.
const MOST_LINE: usize = 500;

/// Restarts that are told of.
const MOST_RESTARTS: usize = 200;

/// Problems of the files that are told of.
const MOST_PROBLEMS: usize = 100;

/// The report of a daemon that runs.
pub(crate) async fn of_daemon(daemon: &Daemon) -> Result<Box<RawValue>, CallError> {
    let (loaded, turn) = daemon.load().await?;
    drop(turn);
    let roster = daemon.fleet.roster();
    let numbers = match daemon.admin() {
        Ok(admin) => admin.numbers().await.unwrap_or_default(),
        Err(_) => String::new(), // The gateway is not there yet.
    };
    let state = DaemonState { info: info::handle(daemon), rss: machine::resident() };
    let statuses: BTreeMap<_, _> = roster
        .keys()
        .filter_map(|name| {
            let ask = ByName { name: name.to_string() };
            Some((name.clone(), status::handle(daemon, &ask).ok()?))
        })
        .collect();
    let restart_history = history::of(&daemon.journal, MOST_RESTARTS).await;
    let paths = daemon.paths.clone();
    let writing = tokio::task::spawn_blocking(move || {
        let mut secrets = known_secrets(&paths);
        learn(&loaded.settings.servers, &mut secrets);
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
            metrics: numbers::read(&numbers),
            ..bare(&paths, &loaded)
        };
        finished(report, &secrets)
    });
    writing.await.map_err(|cause| not_written().cause(cause))?
}

/// The report where no daemon can be asked, for this reason.
pub fn without_daemon(paths: &Paths, problem: &str) -> Result<Box<RawValue>, CallError> {
    let loaded = xy_config::load(paths, &limits::kept());
    let mut secrets = known_secrets(paths);
    let servers = servers_on_disk(paths, &loaded);
    learn(&servers, &mut secrets);
    let report = Diagnostics {
        problem: Some(problem.to_owned()),
        servers: servers.values().map(|it| server_report(paths, it, &mut secrets)).collect(),
        restart_history: history::on_disk(&paths.events_file, MOST_RESTARTS),
        ..bare(paths, &loaded)
    };
    finished(report, &secrets)
}

/// Returns the secrets of xy itself, of this environment, and of all servers on disk.
pub fn secrets_on_disk(paths: &Paths) -> Secrets {
    let mut secrets = known_secrets(paths);
    let loaded = xy_config::load(paths, &limits::kept());
    learn(&servers_on_disk(paths, &loaded), &mut secrets);
    secrets
}

/// Returns the servers of the files, and those that were added without one.
fn servers_on_disk(paths: &Paths, loaded: &Loaded) -> ServerMap {
    let mut servers = loaded.settings.servers.clone();
    if let Some(added) = AddedServers::look(&paths.added_file) {
        for (name, settings) in added.servers {
            servers.entry(name).or_insert(settings);
        }
    }
    servers
}

/// What can be said of any machine.
fn bare(paths: &Paths, loaded: &Loaded) -> Diagnostics {
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

/// What is wrong with the files, without their text.
fn configuration(loaded: &Loaded) -> ConfigurationState {
    let report = check::report_of(loaded);
    let problems = report.problems.into_iter().take(MOST_PROBLEMS).map(|it| BriefProblem {
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
        configuration: settings::shown(settings, secrets),
        status: None,
        stderr: Vec::new(),
        log_files: files::logs_of(paths, &settings.name),
    }
}

fn stderr_of(member: &Member) -> Vec<String> {
    let Some(instance) = view::logged_one(member) else { return Vec::new() };
    let lines = instance.logs().last_stderr(LAST_STDERR);
    lines.iter().map(|line| String::from_utf8_lossy(&line.bytes).into_owned()).collect()
}

/// The secrets of xy itself, and those of the environment that servers inherit.
fn known_secrets(paths: &Paths) -> Secrets {
    let mut secrets = Secrets::default();
    for file in [&paths.token_file, &paths.manage_token_file, &paths.state_key_file] {
        if let Ok(text) = std::fs::read_to_string(file) {
            secrets.know(text.trim());
        }
    }
    for (name, value) in std::env::vars_os() {
        if let (Some(name), Some(value)) = (name.to_str(), value.to_str())
            && mask::is_secret_name(name)
        {
            secrets.know(value);
        }
    }
    secrets
}

/// Takes secrets out of what a server has said.
pub(crate) struct Scrubber {
    secrets: Secrets,
}

impl Scrubber {
    /// Knows the secrets of xy itself and of one server.
    pub(crate) fn of_server(paths: &Paths, settings: &xy_config::settings::ServerSettings) -> Self {
        let mut secrets = known_secrets(paths);
        drop(settings::shown(settings, &mut secrets));
        Self { secrets }
    }

    /// Returns a line without secrets.
    pub(crate) fn line(&self, line: &str) -> String {
        mask::text(&self.secrets.scrub(line))
    }
}

/// Everything that the files keep secret, before anything is written.
fn learn(servers: &ServerMap, secrets: &mut Secrets) {
    for settings in servers.values() {
        drop(settings::shown(settings, secrets));
    }
}

/// Takes out what must not be seen, and what would be too much.
fn finished(mut report: Diagnostics, secrets: &Secrets) -> Result<Box<RawValue>, CallError> {
    for server in &mut report.servers {
        for line in &mut server.stderr {
            *line = shortened(&mask::text(&secrets.scrub(line)));
        }
        if let Some(status) = &mut server.status {
            mask::each_text(status, &mut |text| *text = mask::text(text));
        }
    }
    for restart in &mut report.restart_history {
        restart.reason = mask::text(&restart.reason);
    }
    let mut value = fit::fitted(report).map_err(|cause| not_written().cause(cause))?;
    secrets.scrub_all(&mut value);
    to_raw_value(&value).map_err(|cause| not_written().cause(cause))
}

fn shortened(line: &str) -> String {
    match line.char_indices().nth(MOST_LINE) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

fn not_written() -> CallError {
    CallError::new(ErrorKind::Internal, "the report could not be written")
}
