//! The answer to `check`: the problems of the configuration files, with or without a daemon.

use xy_config::environment::ENVIRONMENT;
use xy_config::{LoadedConfig, Paths, PriorState, ProblemKind};
use xy_protocol::control::{CheckReport, Problem};
use xy_protocol::error::{CallError, ErrorKind};

use crate::{last_good, limits};

/// Reads the files, and reports every error and warning in them.
pub fn report(paths: &Paths) -> CheckReport {
    let last_good = last_good::read_only(&paths.last_good_file);
    let earlier = PriorState { last_good, ..PriorState::default() };
    report_of(&xy_config::load_with(paths, &limits::supported(), &earlier))
}

/// Converts the result of a load to the report that clients receive.
pub(crate) fn report_of(loaded: &LoadedConfig) -> CheckReport {
    CheckReport {
        valid: loaded.is_valid(),
        files: loaded.server_files,
        all_files: loaded.files,
        servers: loaded.settings.servers.len(),
        server_names: loaded.settings.servers.keys().cloned().collect(),
        problems: problems_of(loaded),
    }
}

/// Converts problems to the form that clients receive.
pub(crate) fn problems_of(loaded: &LoadedConfig) -> Vec<Problem> {
    loaded.problems.iter().map(Problem::from).collect()
}

/// Returns the error for a file that cannot be used. Returns `None` if neither the file nor a file
/// for all servers has an error.
pub(crate) fn refusal_of(loaded: &LoadedConfig, message: &str, file: &str) -> Option<CallError> {
    let is_for_all = |shown: &str| {
        ["xy.kdl", "servers", ENVIRONMENT].contains(&shown)
            || loaded.bad.folders.contains_key(shown)
    };
    let about = |problem: &&xy_config::Problem| problem.file == file || is_for_all(&problem.file);
    let problems: Vec<_> = loaded.problems.iter().filter(about).cloned().collect();
    let part = LoadedConfig { problems, ..LoadedConfig::default() };
    (!part.is_valid()).then(|| refusal(&part, message))
}

/// Returns the error for files that cannot be used. If all errors are port conflicts, the error is
/// one, too.
pub(crate) fn refusal(loaded: &LoadedConfig, message: &str) -> CallError {
    let errors: Vec<_> = loaded.problems.iter().filter(|problem| problem.is_error()).collect();
    let only_ports = errors.iter().all(|problem| problem.kind == ProblemKind::PortConflict);
    let (kind, summary) = match (only_ports, errors.len()) {
        (true, _) => (ErrorKind::PortConflict, "two servers have the same port".to_owned()),
        (false, 1) => (ErrorKind::ConfigInvalid, "the configuration has an error".to_owned()),
        (false, n) => (ErrorKind::ConfigInvalid, format!("the configuration has {n} errors")),
    };
    CallError::new(kind, format!("{message}: {summary}"))
        .hint("`xy check` shows all problems again, also without a daemon")
        .problems(problems_of(loaded))
}
