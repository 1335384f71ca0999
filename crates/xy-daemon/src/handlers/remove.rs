//! `remove`: end a server and forget it, answer once it is in no list any more.

use std::io;
use std::path::Path;

use xy_protocol::control::{Remove, Removed};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;

use crate::daemon::{Daemon, closed};

pub(super) async fn handle(daemon: &Daemon, ask: &Remove) -> Result<Removed, CallError> {
    // Whoever reads the files meanwhile would begin it again.
    let _turn = daemon.turn().await?;
    if let Some((name, bad)) = daemon.bad_file(&ask.name) {
        remove_file(daemon, &name, &bad.file, ask.persist)?;
        daemon.forget_bad_file(&name, &bad.shown);
        return Ok(Removed { name, warnings: Vec::new() });
    }
    let member = daemon.find(&ask.name)?;
    let name = member.settings.name.clone();
    if !member.settings.source.added {
        remove_file(daemon, &name, &member.settings.source.file, ask.persist)?;
    }
    let removed = daemon.fleet.remove(&name).await.map_err(closed)?;
    let removed = removed.ok_or_else(|| daemon.not_found(&ask.name))?;
    Ok(Removed { name, warnings: removed.warnings })
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
