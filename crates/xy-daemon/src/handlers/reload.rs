//! `reload`: read the files again, change only what must change.

use xy_protocol::control::{Reload, Reloaded};
use xy_protocol::error::CallError;
use xy_supervisor::instance::Snapshot;
use xy_supervisor::lifecycle::State;
use xy_supervisor::reload::{Plan, diff};

use crate::check::{problems_of, refusal};
use crate::daemon::Daemon;

pub(crate) async fn handle(daemon: &Daemon, ask: &Reload) -> Result<Reloaded, CallError> {
    let (loaded, turn) = daemon.load().await?;
    if !loaded.is_valid() {
        return Err(refusal(&loaded, "nothing was reloaded"));
    }
    let problems = problems_of(&loaded);
    let servers = loaded.settings.servers;
    if ask.dry_run {
        let plan = diff(&daemon.fleet.settings(), &servers);
        return Ok(Reloaded { dry_run: true, problems, ..answer(plan) });
    }
    let applied = daemon.apply(servers, loaded.broken).await?;
    drop(turn); // Waiting for servers to settle keeps nobody from reading.
    let is_gone = |snapshot: &Snapshot| snapshot.life.state == State::Retired;
    for instance in applied.leaving {
        instance.wait_until(is_gone).await;
    }
    for instance in applied.coming {
        instance.settled().await;
    }
    daemon.check_not_handed_over()?;
    Ok(Reloaded { problems, ..answer(applied.plan) })
}

fn answer(plan: Plan) -> Reloaded {
    let mut changed = [plan.restarted.clone(), plan.updated.clone()].concat();
    changed.sort();
    Reloaded {
        added: plan.added,
        removed: plan.removed,
        changed,
        unchanged: plan.unchanged,
        restarted: plan.restarted,
        updated: plan.updated,
        ..Reloaded::default()
    }
}
