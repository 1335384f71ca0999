//! A look at the files, with or without a daemon: the answer to `check`.

use xy_config::environment::ENVIRONMENT;
use xy_config::{Earlier, Kind, Loaded, Paths};
use xy_protocol::control::{CheckReport, Problem};
use xy_protocol::error::{CallError, ErrorKind};

use crate::{last_good, limits};

/// Everything that is wrong or odd in the files.
pub fn report(paths: &Paths) -> CheckReport {
    let last_good = last_good::look(&paths.last_good_file);
    let earlier = Earlier { last_good, ..Earlier::default() };
    report_of(&xy_config::load_after(paths, &limits::kept(), &earlier))
}

pub(crate) fn report_of(loaded: &Loaded) -> CheckReport {
    CheckReport {
        valid: loaded.is_valid(),
        files: loaded.server_files,
        all_files: loaded.files,
        servers: loaded.settings.servers.len(),
        server_names: loaded.settings.servers.keys().cloned().collect(),
        problems: problems_of(loaded),
    }
}

/// Problems as they stand on the wire.
pub(crate) fn problems_of(loaded: &Loaded) -> Vec<Problem> {
    loaded.problems.iter().map(Problem::from).collect()
}

/// Why one file cannot be used; `None` if that is not for an error in it, or in the daemon's.
pub(crate) fn refusal_of(loaded: &Loaded, asked: &str, file: &str) -> Option<CallError> {
    let is_for_all = |shown: &str| {
        ["xy.kdl", "servers", ENVIRONMENT].contains(&shown)
            || loaded.bad.folders.contains_key(shown)
    };
    let about = |problem: &&xy_config::Problem| problem.file == file || is_for_all(&problem.file);
    let problems: Vec<_> = loaded.problems.iter().filter(about).cloned().collect();
    let part = Loaded { problems, ..Loaded::default() };
    (!part.is_valid()).then(|| refusal(&part, asked))
}

/// Why the files cannot be used; an error only in what differs between files is a conflict.
pub(crate) fn refusal(loaded: &Loaded, asked: &str) -> CallError {
    let errors: Vec<_> = loaded.problems.iter().filter(|problem| problem.is_error()).collect();
    let only_ports = errors.iter().all(|problem| problem.kind == Kind::PortConflict);
    let (kind, what) = match (only_ports, errors.len()) {
        (true, _) => (ErrorKind::PortConflict, "two servers have the same port".to_owned()),
        (false, 1) => (ErrorKind::ConfigInvalid, "the configuration has an error".to_owned()),
        (false, n) => (ErrorKind::ConfigInvalid, format!("the configuration has {n} errors")),
    };
    CallError::new(kind, format!("{asked}: {what}"))
        .hint("`xy check` shows all problems again, also without a daemon")
        .problems(problems_of(loaded))
}
