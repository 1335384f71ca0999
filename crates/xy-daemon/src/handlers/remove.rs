//! `remove`: end a server and forget it, answer once it is in no list any more.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::timeout;
use xy_protocol::control::{Remove, Removed};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{Era, ServerName};
use xy_supervisor::instance::{Holder, InstanceKey};
use xy_supervisor::lifecycle::State;
use xy_supervisor::logs::{FILE_GENERATIONS, instance_log, log_file};

use crate::daemon::{Daemon, closed};

/// How long a server may take to end before its logs are left alone.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

pub(super) async fn handle(daemon: &Daemon, ask: &Remove) -> Result<Removed, CallError> {
    // Whoever reads the files meanwhile would begin it again.
    let turn = daemon.turn().await?;
    if let Some((name, bad)) = daemon.bad_file(&ask.name) {
        remove_file(daemon, &name, &bad.file, ask.persist)?;
        daemon.forget_bad_file(&name, &bad.shown);
        let mut answer = Removed { name, warnings: Vec::new(), log_file: None, purged: Vec::new() };
        if ask.purge {
            purge(all_logs(&daemon.paths.logs_dir, &answer.name), &mut answer);
        }
        return Ok(with_log_file(daemon, answer));
    }
    let member = daemon.find(&ask.name)?;
    let name = member.settings.name.clone();
    if !member.settings.source.added {
        remove_file(daemon, &name, &member.settings.source.file, ask.persist)?;
    }
    let removed = daemon.fleet.remove(&name).await.map_err(closed)?;
    let removed = removed.ok_or_else(|| daemon.not_found(&ask.name))?;
    drop(turn);
    let mut answer =
        Removed { name, warnings: removed.warnings, log_file: None, purged: Vec::new() };
    let logs_dir = &daemon.paths.logs_dir;
    if ask.purge && member.settings.share_key.is_some() {
        let warning = "its logs stay: servers with its `share-key` may write them too";
        answer.warnings.push(warning.to_owned());
    } else if ask.purge {
        let ended = async {
            for instance in &removed.leaving {
                instance.wait_until(|it| it.life.state == State::Retired).await;
            }
        };
        let has_ended = timeout(ENDS_WITHIN, ended).await.is_ok();
        let _turn = daemon.turn().await?;
        if !has_ended {
            answer.warnings.push("its logs stay: it has not ended yet".to_owned());
        } else if daemon.find(answer.name.as_str()).is_ok() {
            answer.warnings.push("its logs stay: a new server has its name".to_owned());
        } else {
            purge(all_logs(logs_dir, &answer.name), &mut answer);
        }
    }
    Ok(with_log_file(daemon, answer))
}

/// Says where the log is, if it stays.
fn with_log_file(daemon: &Daemon, answer: Removed) -> Removed {
    let log = log_file(&daemon.paths.logs_dir, &answer.name);
    Removed { log_file: log.exists().then(|| log.display().to_string()), ..answer }
}

/// The log of a server and the older ones that there are.
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

fn purge(logs: Vec<PathBuf>, answer: &mut Removed) {
    for log in logs {
        let shown = log.display().to_string();
        match std::fs::remove_file(&log) {
            Ok(()) => answer.purged.push(shown),
            Err(cause) => answer.warnings.push(format!("`{shown}` stays: {cause}")),
        }
    }
}

fn remove_file(
    daemon: &Daemon,
    name: &ServerName,
    file: &Path,
    may: bool,
) -> Result<(), CallError> {
    let message = format!("server `{name}` was not removed");
    if is_gone(file) {
        return Ok(()); // Nothing would bring it back.
    }
    if !daemon.paths.is_server_file(file) {
        let cause = format!("it stands in `{}`, which xy does not change", file.display());
        let hint = "remove it there, or set its `disabled` to true, and `xy reload`";
        return Err(CallError::new(ErrorKind::NotAllowed, message).cause(cause).hint(hint));
    }
    if !may {
        let cause = format!("its file `{}` would bring it back", daemon.paths.shown(file));
        let hint = "delete the file and `xy reload`, or let `xy remove --persist` do both";
        return Err(CallError::new(ErrorKind::NotAllowed, message).cause(cause).hint(hint));
    }
    match std::fs::remove_file(file) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
            let cause = format!("its file `{}` stays: {cause}", file.display());
            Err(CallError::new(ErrorKind::Internal, message).cause(cause))
        }
        _ => Ok(()),
    }
}

/// Whether somebody has deleted a file; one that cannot be looked at may be there.
fn is_gone(file: &Path) -> bool {
    file.symlink_metadata().is_err_and(|cause| cause.kind() == io::ErrorKind::NotFound)
}
