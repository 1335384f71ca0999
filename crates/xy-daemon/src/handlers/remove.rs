//! Handler of `remove`: stops a server and forgets it. Answers once no list shows it any more.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::timeout;
use xy_protocol::control::{Remove, RemoveResult};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{Era, ServerName};
use xy_supervisor::instance::{Holder, InstanceKey};
use xy_supervisor::lifecycle::State;
use xy_supervisor::logs::{FILE_GENERATIONS, instance_log, log_file};

use crate::daemon::{Daemon, shutting_down_error};

/// Maximum time for a server to stop; after it, its logs are not deleted.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) async fn handle(daemon: &Daemon, params: &Remove) -> Result<RemoveResult, CallError> {
    // A concurrent reload would start the server again.
    let config_lock = daemon.lock_configuration().await?;
    if let Some((name, bad)) = daemon.bad_file(&params.name) {
        remove_file(daemon, &name, &bad.file, params.persist)?;
        daemon.forget_bad_file(&name, &bad.shown);
        let mut answer =
            RemoveResult { name, warnings: Vec::new(), log_file: None, purged: Vec::new() };
        if params.purge {
            purge(all_logs(&daemon.paths.logs_dir, &answer.name), &mut answer);
        }
        return Ok(with_log_file(daemon, answer));
    }
    let member = daemon.find(&params.name)?;
    let name = member.settings.name.clone();
    if !member.settings.source.added {
        remove_file(daemon, &name, &member.settings.source.file, params.persist)?;
    }
    let removed = daemon.fleet.remove(&name).await.map_err(shutting_down_error)?;
    let removed = removed.ok_or_else(|| daemon.not_found(&params.name))?;
    drop(config_lock);
    let mut answer =
        RemoveResult { name, warnings: removed.warnings, log_file: None, purged: Vec::new() };
    let logs_dir = &daemon.paths.logs_dir;
    if params.purge && member.settings.share_key.is_some() {
        let warning =
            "its logs were not deleted: servers with the same `share-key` may write to them";
        answer.warnings.push(warning.to_owned());
    } else if params.purge {
        let ended = async {
            for instance in &removed.leaving {
                instance.wait_until(|it| it.life.state == State::Retired).await;
            }
        };
        let has_ended = timeout(STOP_TIMEOUT, ended).await.is_ok();
        let _config_lock = daemon.lock_configuration().await?;
        if !has_ended {
            answer.warnings.push("its logs were not deleted: it is still stopping".to_owned());
        } else if daemon.find(answer.name.as_str()).is_ok() {
            answer.warnings.push("its logs were not deleted: a new server has its name".to_owned());
        } else {
            purge(all_logs(logs_dir, &answer.name), &mut answer);
        }
    }
    Ok(with_log_file(daemon, answer))
}

/// Adds the path of the log to the answer, unless it was deleted.
fn with_log_file(daemon: &Daemon, answer: RemoveResult) -> RemoveResult {
    let log = log_file(&daemon.paths.logs_dir, &answer.name);
    RemoveResult { log_file: log.exists().then(|| log.display().to_string()), ..answer }
}

/// Returns the existing logs of a server, with their older generations.
fn all_logs(logs_dir: &Path, name: &ServerName) -> Vec<PathBuf> {
    let of_eras = [Era::Legacy, Era::Modern].map(|era| {
        instance_log(logs_dir, &InstanceKey { server: name.clone(), holder: Holder::Era(era) })
    });
    let with_older = |latest: PathBuf| {
        let older = (1..=FILE_GENERATIONS).map(|it| latest.with_extension(format!("log.{it}")));
        older.collect::<Vec<_>>().into_iter().chain([latest])
    };
    let all = [log_file(logs_dir, name)].into_iter().chain(of_eras).flat_map(with_older);
    all.filter(|it| it.exists()).collect()
}

fn purge(logs: Vec<PathBuf>, answer: &mut RemoveResult) {
    for log in logs {
        let shown = log.display().to_string();
        match std::fs::remove_file(&log) {
            Ok(()) => answer.purged.push(shown),
            Err(cause) => answer.warnings.push(format!("`{shown}` was not deleted: {cause}")),
        }
    }
}

fn remove_file(
    daemon: &Daemon,
    name: &ServerName,
    file: &Path,
    persist: bool,
) -> Result<(), CallError> {
    let message = format!("server `{name}` was not removed");
    if is_gone(file) {
        return Ok(()); // A reload would not configure it again.
    }
    if !daemon.paths.is_server_file(file) {
        let cause = format!("it is configured in `{}`, which xy does not change", file.display());
        let hint = "remove it there, or set its `disabled` to true, then run `xy reload`";
        return Err(CallError::new(ErrorKind::NotAllowed, message).cause(cause).hint(hint));
    }
    if !persist {
        let cause = format!(
            "its file `{}` would configure it again at the next reload",
            daemon.paths.shown(file)
        );
        let hint = "delete the file and run `xy reload`, or use `xy remove --persist`";
        return Err(CallError::new(ErrorKind::NotAllowed, message).cause(cause).hint(hint));
    }
    match std::fs::remove_file(file) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
            let cause = format!("its file `{}` was not deleted: {cause}", file.display());
            Err(CallError::new(ErrorKind::Internal, message).cause(cause))
        }
        _ => Ok(()),
    }
}

/// Returns true if a file does not exist. A file that cannot be inspected may exist.
fn is_gone(file: &Path) -> bool {
    file.symlink_metadata().is_err_and(|cause| cause.kind() == io::ErrorKind::NotFound)
}
