//! Which servers there are: what files say, and what is added and removed beside them.

use std::collections::BTreeMap;
use std::sync::Arc;

use xy_config::Broken;
use xy_config::settings::ServerSettings;
use xy_protocol::server::{ServerName, Wanted};

use super::holding::settings_for;
use super::owner::Owner;
use super::sharing::goes_on;
use super::{
    AddError, AddReply, Applied, EstablishError, MAX_SERVERS, Member, Removed, Roster, settings_of,
};
use crate::added::AddedServers;
use crate::instance::{Holder, InstanceHandle};
use crate::lifecycle::{Event, Retirement, State};
use crate::logs;
use crate::reload::{ServerMap, diff};

impl Owner {
    pub(super) async fn apply(&mut self, servers: ServerMap, broken: &Broken) -> Applied {
        let mut roster = Roster::clone(&self.published.borrow());
        let mut plan = diff(&settings_of(&roster), &servers);
        let mut leaving = Vec::new();
        let mut coming = Vec::new();
        for name in &plan.removed {
            leaving.extend(self.leave(&mut roster, name, Retirement::Unconfigured).await);
        }
        let (updated, mut kept) = (plan.updated.clone(), Vec::new());
        let mut restarted: Vec<_> =
            plan.restarted.iter().filter_map(|name| servers.get(name)).collect();
        // Who owns instances first: others may follow it to another key.
        restarted.sort_by_key(|it| roster.get(&it.name).is_some_and(|it| it.owner.is_some()));
        for settings in restarted {
            let Some(member) = roster.get(&settings.name) else { continue };
            let is_same =
                member.settings.kind == settings.kind && member.settings.era == settings.era;
            if !goes_on(&roster, member, settings) {
                let left = self.leave(&mut roster, &settings.name, Retirement::Replaced).await;
                leaving.extend(left);
                coming.extend(self.join(&mut roster, settings).filter(is_wanted));
            } else if is_same {
                if settings.only_era().is_some() {
                    leaving.extend(self.retire_seconds(&mut roster, &settings.name).await);
                }
                reconfigure(&mut roster, settings, &Event::RulesChanged).await;
                kept.push(settings.name.clone()); // Only its key has changed.
            } else {
                leaving.extend(self.retire_seconds(&mut roster, &settings.name).await);
                coming.extend(reconfigure(&mut roster, settings, &Event::ProcessChanged).await);
            }
        }
        plan.restarted.retain(|name| !kept.contains(name));
        plan.updated.extend(kept);
        plan.updated.sort_unstable();
        coming.extend(self.rehome(&mut roster)); // Who comes may follow one of them.
        let mut joined = Vec::new();
        for settings in plan.added.iter().filter_map(|name| servers.get(name)) {
            joined.extend(self.join(&mut roster, settings));
        }
        coming.splice(0..0, joined);
        for settings in updated.iter().filter_map(|name| servers.get(name)) {
            coming.extend(reconfigure(&mut roster, settings, &Event::RulesChanged).await);
        }
        coming.extend(self.regroup(&mut roster).await);
        self.publish(roster);
        self.leave_to_files(&servers).await;
        self.forget_wishes_but(broken).await;
        Applied { plan, leaving, coming }
    }

    pub(super) async fn update(&mut self, settings: Arc<ServerSettings>) -> Applied {
        let mut servers = settings_of(&self.published.borrow());
        if let Some(before) = servers.get_mut(&settings.name) {
            *before = settings;
        }
        self.apply(servers, &Broken::Every).await
    }

    pub(super) fn add(&mut self, settings: &Arc<ServerSettings>) -> AddReply {
        let mut roster = Roster::clone(&self.published.borrow());
        if roster.contains_key(&settings.name) {
            return Err(AddError::Exists);
        }
        if roster.len() >= MAX_SERVERS {
            return Err(AddError::Full);
        }
        if let Some(port) = settings.port() {
            let other = roster.values().find(|it| it.settings.port() == Some(port));
            if let Some(Member { settings, .. }) = other {
                return Err(AddError::PortTaken { port, by: settings.name.clone() });
            }
        }
        let instance = self.join(&mut roster, settings);
        self.publish(roster);
        Ok(instance)
    }

    pub(super) async fn establish(
        &mut self,
        settings: &Arc<ServerSettings>,
    ) -> Result<(), EstablishError> {
        let mut roster = Roster::clone(&self.published.borrow());
        if !roster.get(&settings.name).is_some_and(|it| it.settings.source.added) {
            return Err(EstablishError::Removed);
        }
        if settings.source.added {
            let mut added = self.added.clone();
            added.servers.insert(settings.name.clone(), settings.clone());
            return self.keep_added(added).await.map_err(EstablishError::NotKept);
        }
        reconfigure(&mut roster, settings, &Event::RulesChanged).await;
        self.publish(roster);
        Ok(())
    }

    pub(super) async fn remove_now(&mut self, name: &ServerName) -> Option<Removed> {
        let mut roster = Roster::clone(&self.published.borrow());
        if !roster.contains_key(name) {
            return None;
        }
        let leaving = self.leave(&mut roster, name, Retirement::Removed).await;
        self.regroup(&mut roster).await;
        self.publish(roster);
        let mut warnings = Vec::new();
        let mut added = self.added.clone();
        if added.servers.remove(name).is_some() {
            let back = "it will be back when the daemon restarts";
            let kept = self.keep_added(added).await;
            warnings.extend(kept.err().map(|problem| format!("{back}: {problem}")));
        }
        self.forget_wishes_of(name).await;
        Some(Removed { leaving, warnings })
    }

    /// Ends the second process of a server whose file describes another process: which eras that
    /// speaks is unknown.
    async fn retire_seconds(
        &mut self,
        roster: &mut Roster,
        name: &ServerName,
    ) -> Vec<InstanceHandle> {
        let Some(member) = roster.get_mut(name) else { return Vec::new() };
        let all = std::mem::take(&mut member.instances);
        let (seconds, others) = all.into_iter().partition(|(holder, _)| holder.era().is_some());
        member.instances = others;
        let seconds: BTreeMap<Holder, InstanceHandle> = seconds;
        let seconds: Vec<InstanceHandle> = seconds.into_values().collect();
        self.retire(seconds.clone(), Retirement::Replaced).await;
        seconds
    }

    /// A server leaves the roster; its instances end.
    async fn leave(
        &mut self,
        roster: &mut Roster,
        name: &ServerName,
        why: Retirement,
    ) -> Vec<InstanceHandle> {
        let Some(member) = roster.remove(name) else {
            return Vec::new();
        };
        let instances: Vec<_> = member.own_instances().cloned().collect();
        self.retire(instances.clone(), why).await;
        if let Some(failed) = member.last_failed {
            logs::forget(&self.parts.logs_dir, failed.instance.key());
        }
        instances
    }

    /// A file says more of a server than what was once added under its name.
    async fn leave_to_files(&mut self, servers: &ServerMap) {
        let mut added = self.added.clone();
        added.servers.retain(|name, _| {
            let is_added = servers.get(name).is_none_or(|it| it.source.added);
            if !is_added {
                tracing::warn!(server = %name, "it was added, and now has a file, which is used");
            }
            is_added
        });
        if added != self.added
            && let Err(problem) = self.keep_added(added).await
        {
            tracing::warn!("{problem}");
        }
    }

    /// Keeps which servers were added. If that cannot be written, it is as it was.
    async fn keep_added(&mut self, added: AddedServers) -> Result<(), String> {
        let file = self.parts.added_file.clone();
        let shown = file.display().to_string();
        let (written, writing) = (added.clone(), file);
        let outcome = tokio::task::spawn_blocking(move || written.write(&writing)).await;
        outcome
            .map_err(std::io::Error::other)
            .flatten()
            .map_err(|error| format!("{shown} could not be written: {error}"))?;
        self.added = added;
        Ok(())
    }
}

fn is_wanted(instance: &InstanceHandle) -> bool {
    instance.now().life.wanted == Wanted::Up
}

/// Gives a server's instances other settings; answers those that begin a new life by it. An
/// instance that is starting already begins none by other rules.
async fn reconfigure(
    roster: &mut Roster,
    settings: &Arc<ServerSettings>,
    event: &Event,
) -> Vec<InstanceHandle> {
    let Some(member) = roster.get_mut(&settings.name) else {
        return Vec::new();
    };
    member.settings = settings.clone();
    member.is_failing = false;
    let mut coming = Vec::new();
    for instance in member.own_instances() {
        let is_starting = matches!(instance.now().life.state, State::Starting { .. });
        let settings = settings_for(instance.key().holder, settings);
        let _ = instance.reconfigure(event.clone(), settings).await; // Gone: nothing to do.
        if is_wanted(instance) && !(is_starting && *event == Event::RulesChanged) {
            coming.push(instance.clone());
        }
    }
    coming
}
