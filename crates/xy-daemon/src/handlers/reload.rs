//! `reload`: read the files again, change only what must change.

use xy_config::Settings;
use xy_protocol::control::{Failure, Reload, Reloaded, Select};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{ServerState, Wanted};
use xy_supervisor::fleet::Ask;
use xy_supervisor::instance::{InstanceHandle, Snapshot};
use xy_supervisor::lifecycle::State;
use xy_supervisor::reload::{Plan, diff};

use super::asks::{self, Settled, came_up, did_not_start};
use crate::check::{problems_of, refusal, refusal_of};
use crate::daemon::{ChangedProfiles, Daemon};

pub(crate) async fn handle(daemon: &Daemon, ask: &Reload) -> Result<Reloaded, CallError> {
    if let Some(name) = &ask.name {
        return one(daemon, name).await;
    }
    let (loaded, turn) = daemon.load().await?;
    if !loaded.is_valid() {
        return Err(refusal(&loaded, "nothing was reloaded"));
    }
    let problems = problems_of(&loaded);
    let Settings { servers, profiles, .. } = loaded.settings;
    if ask.dry_run {
        let plan = diff(&daemon.fleet.settings(), &servers);
        let profiles = ChangedProfiles::between(&daemon.profiles.borrow(), &profiles);
        return Ok(Reloaded { dry_run: true, problems, ..answer(plan, profiles) });
    }
    let applied = daemon.apply(servers, loaded.broken).await?;
    let profiles = daemon.show(profiles).await?;
    drop(turn); // Waiting for servers to settle keeps nobody from reading.
    let failed = settle(applied.leaving, applied.coming).await;
    daemon.check_not_handed_over()?;
    Ok(Reloaded { problems, failed, ..answer(applied.plan, profiles) })
}

/// Reads the file of one server again, if it has one, and begins a new life of it, whether
/// or not it has changed. Answers when that has settled.
pub(crate) async fn one(daemon: &Daemon, name: &str) -> Result<Reloaded, CallError> {
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
        problems.extend(loaded.problems.iter().filter(|it| it.file == shown).map(Into::into));
        let applied = daemon.update(settings).await?;
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

/// Waits for all of them; who was to come and did not is the answer.
async fn settle(leaving: Vec<InstanceHandle>, coming: Vec<InstanceHandle>) -> Vec<Failure> {
    let is_gone = |snapshot: &Snapshot| snapshot.life.state == State::Retired;
    for instance in leaving {
        instance.wait_until(is_gone).await;
    }
    let mut failed = Vec::new();
    for instance in coming {
        let settled = Settled::of(&instance).await;
        if matches!(settled.after.state(), ServerState::Restarting | ServerState::Failed) {
            failed.push(Failure { error: did_not_start(&settled), name: settled.name });
        }
    }
    failed.sort_by(|a, b| a.name.cmp(&b.name));
    failed.dedup_by(|a, b| a.name == b.name); // One of several instances stands for all.
    failed
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
