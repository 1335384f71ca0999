//! `reload`: read the files again, change only what must change.

use std::sync::Arc;

use xy_config::settings::ServerSettings;
use xy_config::{Broken, Loaded};
use xy_protocol::control::{Failure, Reload, Reloaded, Select};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{ServerName, ServerState, Wanted};
use xy_supervisor::fleet::Ask;
use xy_supervisor::instance::{InstanceHandle, Snapshot};
use xy_supervisor::lifecycle::State;
use xy_supervisor::reload::{Plan, ServerMap, diff};

use super::asks::{self, Settled, came_up, did_not_start};
use crate::bad_files::{self, BadFile, may_reload, port_conflict};
use crate::check::{problems_of, refusal, refusal_of};
use crate::daemon::{ChangedProfiles, Daemon};

pub(crate) async fn handle(daemon: &Daemon, ask: &Reload) -> Result<Reloaded, CallError> {
    if let Some(name) = &ask.name {
        return one(daemon, name).await;
    }
    let (loaded, turn) = daemon.load().await?;
    let before = daemon.faults();
    if !may_reload(&loaded, &before) {
        return Err(refusal(&loaded, "nothing was reloaded"));
    }
    let problems = problems_of(&loaded);
    let kept = with_bad_files(daemon, &loaded);
    let (servers, faults) = bad_files::sort(&loaded, &kept, &daemon.paths);
    let running = daemon.fleet.settings();
    let is_lost = |name: &ServerName| running.get(name).is_some_and(|it| !it.source.added);
    if let Some((name, bad)) = faults.servers.iter().find(|(name, _)| is_lost(name)) {
        // Its file is good, but it would take the port of one that goes on as it was.
        let message = format!("nothing was reloaded: server `{name}` would fail");
        return Err(CallError { message, ..bad.refusal(name) });
    }
    let is_forgotten =
        |name: &&ServerName| !servers.contains_key(*name) && !faults.servers.contains_key(*name);
    let forgotten: Vec<_> = before.servers.keys().filter(is_forgotten).cloned().collect();
    let profiles = loaded.settings.profiles;
    if ask.dry_run {
        let plan = with_removed(diff(&running, &servers), forgotten);
        let profiles = ChangedProfiles::between(&daemon.profiles.borrow(), &profiles);
        return Ok(Reloaded { dry_run: true, problems, ..answer(plan, profiles) });
    }
    let applied = daemon.apply(servers, loaded.broken).await?;
    daemon.faults.send_replace(Arc::new(faults));
    let profiles = daemon.show(profiles).await?;
    daemon.keep_good(loaded.bad.texts).await;
    drop(turn); // Waiting for servers to settle keeps nobody from reading.
    let failed = settle(applied.leaving, applied.coming).await;
    daemon.check_not_handed_over()?;
    let plan = with_removed(applied.plan, forgotten);
    Ok(Reloaded { problems, failed, ..answer(plan, profiles) })
}

/// The servers that go on with their last good settings, as their files have mistakes.
fn with_bad_files(daemon: &Daemon, loaded: &Loaded) -> ServerMap {
    let has_mistakes = |settings: &ServerSettings| {
        let shown = daemon.paths.shown(&settings.source.file);
        loaded.broken.contains(&settings.name)
            && loaded
                .problems
                .iter()
                .any(|it| it.is_error() && loaded.bad.is_about(it, &settings.source.file, &shown))
    };
    let all = daemon.fleet.settings().into_iter();
    all.filter(|(_, it)| !it.source.added && has_mistakes(it)).collect()
}

/// The plan, with servers that had failed for their files, which are gone.
fn with_removed(mut plan: Plan, forgotten: Vec<ServerName>) -> Plan {
    plan.removed.extend(forgotten);
    plan.removed.sort();
    plan.removed.dedup();
    plan
}

/// Reads the file of one server again, if it has one, and begins a new life of it, whether
/// or not it has changed. Answers when that has settled.
pub(crate) async fn one(daemon: &Daemon, name: &str) -> Result<Reloaded, CallError> {
    if let Some((name, bad)) = daemon.bad_file(name) {
        return corrected(daemon, &name, &bad).await;
    }
    let member = daemon.find(name)?;
    let mut problems = Vec::new();
    let mut is_restarted = false;
    if !member.settings.source.added {
        let (loaded, turn) = daemon.load().await?;
        let asked = format!("server `{name}` was not reloaded");
        let shown = daemon.paths.shown(&member.settings.source.file);
        let is_broken = loaded.broken.contains(&member.settings.name);
        let settings = loaded.settings.servers.get(name).filter(|_| !is_broken).cloned();
        let Some(settings) = settings else {
            return Err(refusal_of(&loaded, &asked, &shown).unwrap_or_else(|| {
                let cause = if daemon.paths.is_server_file(&member.settings.source.file) {
                    format!("there is no file `{shown}` any more")
                } else {
                    format!("`{shown}` does not have it any more")
                };
                CallError::new(ErrorKind::ConfigInvalid, asked)
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
        drop(turn);
        // One that an operator stopped is not started by a changed file alone.
        is_restarted = member.wanted == Wanted::Up
            && applied.plan.restarted.iter().any(|it| it.as_str() == name);
        settle(applied.leaving, applied.coming).await;
    }
    if is_restarted {
        for instance in daemon.find(name)?.instances.into_values() {
            let settled = Settled::of(&instance).await;
            came_up(&Select::one(name), &settled)?;
        }
    } else {
        let select = Select::one(name);
        for settled in asks::ask(daemon, Ask::Restart, &select).await?.settled {
            came_up(&select, &settled)?;
        }
    }
    daemon.check_not_handed_over()?;
    let restarted = vec![member.settings.name.clone()];
    Ok(Reloaded { changed: restarted.clone(), restarted, problems, ..Reloaded::default() })
}

/// Starts a server that had failed for its file, if that is good now.
async fn corrected(
    daemon: &Daemon,
    name: &ServerName,
    bad: &BadFile,
) -> Result<Reloaded, CallError> {
    let (loaded, turn) = daemon.load().await?;
    let mut servers = daemon.fleet.settings();
    let is_broken = loaded.broken.contains(name);
    let settings = loaded.settings.servers.get(name).filter(|_| !is_broken);
    let Some(settings) = settings.cloned() else {
        let asked = format!("server `{name}` was not reloaded");
        return Err(refusal_of(&loaded, &asked, &bad.shown).unwrap_or_else(|| {
            CallError::new(ErrorKind::ConfigInvalid, asked)
                .cause(format!("there is no file `{}` any more", bad.shown))
                .hint("`xy reload` forgets servers that no file configures")
        }));
    };
    if let Some(refused) = port_conflict(&settings, &servers) {
        return Err(refused);
    }
    servers.insert(name.clone(), settings);
    let applied = daemon.apply(servers, Broken::Every).await?;
    daemon.forget_bad_file(name, &bad.shown);
    drop(turn);
    for instance in applied.coming {
        let settled = Settled::of(&instance).await;
        came_up(&Select::one(name.as_str()), &settled)?;
    }
    daemon.check_not_handed_over()?;
    Ok(Reloaded { added: vec![name.clone()], ..Reloaded::default() })
}

/// Waits for all of them; who was to come and did not is the answer.
async fn settle(leaving: Vec<InstanceHandle>, coming: Vec<InstanceHandle>) -> Vec<Failure> {
    let is_gone = |snapshot: &Snapshot| snapshot.life.state == State::Retired;
    for instance in leaving {
        instance.wait_until(is_gone).await;
    }
    let mut failed = Vec::new();
    for instance in coming {
        let settled = Settled::of(&instance).await;
        if did_not_come(&settled.after) {
            failed.push(Failure { error: did_not_start(&settled), name: settled.name });
        }
    }
    failed.sort_by(|a, b| a.name.cmp(&b.name));
    failed.dedup_by(|a, b| a.name == b.name); // One of several instances stands for all.
    failed
}

/// Whether an instance that was to come has not, also if it ended without an error: then nothing
/// starts it again by itself.
fn did_not_come(after: &Snapshot) -> bool {
    match after.state() {
        ServerState::Restarting | ServerState::Failed => true,
        ServerState::Stopped => {
            after.life.wanted == Wanted::Up && after.life.state != State::Retired
        }
        _ => false,
    }
}

fn answer(plan: Plan, profiles: ChangedProfiles) -> Reloaded {
    let mut changed = [plan.restarted.clone(), plan.updated.clone()].concat();
    changed.sort();
    Reloaded {
        added: plan.added,
        removed: plan.removed,
        changed,
        unchanged: plan.unchanged,
        restarted: plan.restarted,
        updated: plan.updated,
        profiles: profiles.all,
        profiles_added: profiles.added,
        profiles_removed: profiles.removed,
        ..Reloaded::default()
    }
}
