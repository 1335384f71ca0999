//! Handler of `reload`: reads the files again, and changes only servers whose settings changed.
//! With a name, restarts that server even if nothing has changed.

use std::sync::Arc;

use xy_config::settings::ServerSettings;
use xy_config::{BrokenServers, LoadedConfig};
use xy_protocol::control::{Failure, Reload, ReloadResult, Select};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{ServerName, ServerState, Wanted};
use xy_supervisor::fleet::Operation;
use xy_supervisor::instance::{InstanceHandle, Snapshot};
use xy_supervisor::lifecycle::State;
use xy_supervisor::reload::{Plan, ServerMap, diff};

use super::settle::{self, SettledServer, check_started, did_not_start};
use crate::bad_files::{self, BadFile, may_reload, port_conflict};
use crate::check::{problems_of, refusal, refusal_of};
use crate::daemon::{ChangedProfiles, Daemon};

pub(crate) async fn handle(daemon: &Daemon, params: &Reload) -> Result<ReloadResult, CallError> {
    if let Some(name) = &params.name {
        return reload_one(daemon, name).await;
    }
    let (loaded, config_lock) = daemon.load().await?;
    let before = daemon.faults();
    if !may_reload(&loaded, &before) {
        return Err(refusal(&loaded, "nothing was reloaded"));
    }
    let problems = problems_of(&loaded);
    let kept = servers_with_bad_files(daemon, &loaded);
    let (servers, faults) = bad_files::sort(&loaded, &kept, &daemon.paths);
    let running = daemon.fleet.settings();
    let is_configured = |name: &ServerName| running.get(name).is_some_and(|it| !it.source.added);
    if let Some((name, bad)) = faults.servers.iter().find(|(name, _)| is_configured(name)) {
        // Its file is good, but it claims the port of a server that keeps its old settings.
        let message = format!("nothing was reloaded: server `{name}` would fail");
        return Err(CallError { message, ..bad.refusal(name) });
    }
    let is_forgotten =
        |name: &&ServerName| !servers.contains_key(*name) && !faults.servers.contains_key(*name);
    let forgotten: Vec<_> = before.servers.keys().filter(is_forgotten).cloned().collect();
    let profiles = loaded.settings.profiles;
    if params.dry_run {
        let plan = with_removed(diff(&running, &servers), forgotten);
        let profiles = ChangedProfiles::between(&daemon.profiles.borrow(), &profiles);
        return Ok(ReloadResult { dry_run: true, problems, ..answer(plan, profiles) });
    }
    let applied = daemon.apply(servers, loaded.broken).await?;
    daemon.faults.send_replace(Arc::new(faults));
    let profiles = daemon.set_profiles(profiles).await?;
    daemon.save_last_good(loaded.bad.texts).await;
    drop(config_lock); // Other requests may read the files while servers settle.
    let failed = settle(applied.leaving, applied.coming).await;
    daemon.check_not_handed_over()?;
    let plan = with_removed(applied.plan, forgotten);
    Ok(ReloadResult { problems, failed, ..answer(plan, profiles) })
}

/// Returns the servers that keep their last good settings because their files have errors.
fn servers_with_bad_files(daemon: &Daemon, loaded: &LoadedConfig) -> ServerMap {
    let has_bad_file = |settings: &ServerSettings| {
        let shown = daemon.paths.shown(&settings.source.file);
        loaded.broken.contains(&settings.name)
            && loaded
                .problems
                .iter()
                .any(|it| it.is_error() && loaded.bad.is_about(it, &settings.source.file, &shown))
    };
    let all = daemon.fleet.settings().into_iter();
    all.filter(|(_, it)| !it.source.added && has_bad_file(it)).collect()
}

/// Adds servers to the plan's removed ones: they had failed for their files, which are gone.
fn with_removed(mut plan: Plan, forgotten: Vec<ServerName>) -> Plan {
    plan.removed.extend(forgotten);
    plan.removed.sort();
    plan.removed.dedup();
    plan
}

/// Reads the file of one server again, if it has one, and restarts the server even if nothing has
/// changed. Returns when the server has settled.
pub(crate) async fn reload_one(daemon: &Daemon, name: &str) -> Result<ReloadResult, CallError> {
    if let Some((name, bad)) = daemon.bad_file(name) {
        return reload_corrected(daemon, &name, &bad).await;
    }
    let member = daemon.find(name)?;
    let mut problems = Vec::new();
    let mut is_restarted = false;
    if !member.settings.source.added {
        let (loaded, config_lock) = daemon.load().await?;
        let message = format!("server `{name}` was not reloaded");
        let shown = daemon.paths.shown(&member.settings.source.file);
        let is_broken = loaded.broken.contains(&member.settings.name);
        let settings = loaded.settings.servers.get(name).filter(|_| !is_broken).cloned();
        let Some(settings) = settings else {
            return Err(refusal_of(&loaded, &message, &shown).unwrap_or_else(|| {
                let cause = if daemon.paths.is_server_file(&member.settings.source.file) {
                    format!("the file `{shown}` no longer exists")
                } else {
                    format!("`{shown}` no longer configures it")
                };
                CallError::new(ErrorKind::ConfigInvalid, message)
                    .cause(cause)
                    .hint("`xy reload` removes servers that no file configures")
            }));
        };
        if let Some(refused) = port_conflict(&settings, &daemon.fleet.settings()) {
            return Err(refused);
        }
        problems.extend(loaded.problems.iter().filter(|it| it.file == shown).map(Into::into));
        let applied = daemon.update(settings).await?;
        if !loaded.problems.iter().any(|it| it.is_error() && it.file == shown) {
            daemon.forget_bad_file(&member.settings.name, &shown);
        }
        drop(config_lock);
        // A server that the user stopped is not started by a changed file alone, so it is restarted
        // explicitly below.
        is_restarted = member.wanted == Wanted::Up
            && applied.plan.restarted.iter().any(|it| it.as_str() == name);
        settle(applied.leaving, applied.coming).await;
    }
    if is_restarted {
        for instance in daemon.find(name)?.instances.into_values() {
            let settled = SettledServer::of(&instance).await;
            check_started(&Select::one(name), &settled)?;
        }
    } else {
        let select = Select::one(name);
        for settled in settle::request_and_wait(daemon, Operation::Restart, &select).await?.settled
        {
            check_started(&select, &settled)?;
        }
    }
    daemon.check_not_handed_over()?;
    let restarted = vec![member.settings.name.clone()];
    Ok(ReloadResult { changed: restarted.clone(), restarted, problems, ..ReloadResult::default() })
}

/// Starts a server that had failed for its file, if its file is good now.
async fn reload_corrected(
    daemon: &Daemon,
    name: &ServerName,
    bad: &BadFile,
) -> Result<ReloadResult, CallError> {
    let (loaded, config_lock) = daemon.load().await?;
    let mut servers = daemon.fleet.settings();
    let is_broken = loaded.broken.contains(name);
    let settings = loaded.settings.servers.get(name).filter(|_| !is_broken);
    let Some(settings) = settings.cloned() else {
        let message = format!("server `{name}` was not reloaded");
        return Err(refusal_of(&loaded, &message, &bad.shown).unwrap_or_else(|| {
            CallError::new(ErrorKind::ConfigInvalid, message)
                .cause(format!("the file `{}` no longer exists", bad.shown))
                .hint("`xy reload` removes servers that no file configures")
        }));
    };
    if let Some(refused) = port_conflict(&settings, &servers) {
        return Err(refused);
    }
    servers.insert(name.clone(), settings);
    let applied = daemon.apply(servers, BrokenServers::All).await?;
    daemon.forget_bad_file(name, &bad.shown);
    drop(config_lock);
    for instance in applied.coming {
        let settled = SettledServer::of(&instance).await;
        check_started(&Select::one(name.as_str()), &settled)?;
    }
    daemon.check_not_handed_over()?;
    Ok(ReloadResult { added: vec![name.clone()], ..ReloadResult::default() })
}

/// Waits until all instances have settled. Returns those that should have started and did not.
async fn settle(leaving: Vec<InstanceHandle>, coming: Vec<InstanceHandle>) -> Vec<Failure> {
    let is_gone = |snapshot: &Snapshot| snapshot.life.state == State::Retired;
    for instance in leaving {
        instance.wait_until(is_gone).await;
    }
    let mut failed = Vec::new();
    for instance in coming {
        let settled = SettledServer::of(&instance).await;
        if has_not_started(&settled.after) {
            failed.push(Failure { error: did_not_start(&settled), name: settled.name });
        }
    }
    failed.sort_by(|a, b| a.name.cmp(&b.name));
    // One entry per server, whatever its number of instances.
    failed.dedup_by(|a, b| a.name == b.name);
    failed
}

/// Returns true if an instance did not start. One that exited without an error counts, too: nothing
/// restarts it.
fn has_not_started(after: &Snapshot) -> bool {
    match after.state() {
        ServerState::Restarting | ServerState::Failed => true,
        ServerState::Stopped => {
            after.life.wanted == Wanted::Up && after.life.state != State::Retired
        }
        _ => false,
    }
}

fn answer(plan: Plan, profiles: ChangedProfiles) -> ReloadResult {
    let mut changed = [plan.restarted.clone(), plan.updated.clone()].concat();
    changed.sort();
    ReloadResult {
        added: plan.added,
        removed: plan.removed,
        changed,
        unchanged: plan.unchanged,
        restarted: plan.restarted,
        updated: plan.updated,
        profiles: profiles.all,
        profiles_added: profiles.added,
        profiles_removed: profiles.removed,
        ..ReloadResult::default()
    }
}
