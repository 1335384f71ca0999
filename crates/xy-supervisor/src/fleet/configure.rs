//! Changes of the configuration: reloads, added servers and removed servers.

use std::collections::BTreeMap;
use std::sync::Arc;

use xy_config::BrokenServers;
use xy_config::settings::ServerSettings;
use xy_config::stored_file::StoredFile;
use xy_protocol::server::{ServerName, Wanted};

use super::fleet_task::FleetTask;
use super::share::keeps_instances;
use super::{
    AddError, AddReply, EstablishError, MAX_SERVERS, Member, ReloadOutcome, RemovedServer, Roster,
    settings_for, settings_of,
};
use crate::instance::{Holder, InstanceHandle};
use crate::lifecycle::{Event, Retirement, State};
use crate::logs;
use crate::reload::{ServerMap, diff};
use crate::runtime_servers::RuntimeServers;

impl FleetTask {
    pub(super) async fn apply(
        &mut self,
        servers: ServerMap,
        broken: &BrokenServers,
    ) -> ReloadOutcome {
        let mut roster = Roster::clone(&self.published.borrow());
        let mut plan = diff(&settings_of(&roster), &servers);
        let mut leaving = Vec::new();
        let mut coming = Vec::new();
        for name in &plan.removed {
            leaving
                .extend(self.remove_from_roster(&mut roster, name, Retirement::Unconfigured).await);
        }
        let (updated, mut kept) = (plan.updated.clone(), Vec::new());
        let mut restarted: Vec<_> =
            plan.restarted.iter().filter_map(|name| servers.get(name)).collect();
        // Owners of instances come first, as others may follow them to another key.
        restarted.sort_by_key(|it| roster.get(&it.name).is_some_and(|it| it.owner.is_some()));
        for settings in restarted {
            let Some(member) = roster.get(&settings.name) else { continue };
            let is_same =
                member.settings.kind == settings.kind && member.settings.era == settings.era;
            if !keeps_instances(&roster, member, settings) {
                let left = self
                    .remove_from_roster(&mut roster, &settings.name, Retirement::Replaced)
                    .await;
                leaving.extend(left);
                coming.extend(self.add_to_roster(&mut roster, settings).filter(is_wanted));
            } else if is_same {
                if settings.only_era().is_some() {
                    leaving.extend(self.retire_second_processes(&mut roster, &settings.name).await);
                }
                reconfigure(&mut roster, settings, &Event::RulesChanged).await;
                kept.push(settings.name.clone()); // Only the share key has changed.
            } else {
                leaving.extend(self.retire_second_processes(&mut roster, &settings.name).await);
                coming.extend(reconfigure(&mut roster, settings, &Event::ProcessChanged).await);
            }
        }
        plan.restarted.retain(|name| !kept.contains(name));
        plan.updated.extend(kept);
        plan.updated.sort_unstable();
        coming.extend(self.reassign_owners(&mut roster)); // Added servers may follow new owners.
        let mut joined = Vec::new();
        for settings in plan.added.iter().filter_map(|name| servers.get(name)) {
            joined.extend(self.add_to_roster(&mut roster, settings));
        }
        coming.splice(0..0, joined);
        for settings in updated.iter().filter_map(|name| servers.get(name)) {
            coming.extend(reconfigure(&mut roster, settings, &Event::RulesChanged).await);
        }
        coming.extend(self.reconcile_shared(&mut roster).await);
        self.publish(roster);
        self.drop_configured(&servers).await;
        self.prune_desired(broken).await;
        ReloadOutcome { plan, leaving, coming }
    }

    pub(super) async fn update(&mut self, settings: Arc<ServerSettings>) -> ReloadOutcome {
        let mut servers = settings_of(&self.published.borrow());
        if let Some(before) = servers.get_mut(&settings.name) {
            *before = settings;
        }
        self.apply(servers, &BrokenServers::All).await
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
        let instance = self.add_to_roster(&mut roster, settings);
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
            let mut added = self.runtime_servers.clone();
            added.servers.insert(settings.name.clone(), settings.clone());
            return self.store_runtime_servers(added).await.map_err(EstablishError::NotStored);
        }
        reconfigure(&mut roster, settings, &Event::RulesChanged).await;
        self.publish(roster);
        Ok(())
    }

    pub(super) async fn remove_server(&mut self, name: &ServerName) -> Option<RemovedServer> {
        let mut roster = Roster::clone(&self.published.borrow());
        if !roster.contains_key(name) {
            return None;
        }
        let leaving = self.remove_from_roster(&mut roster, name, Retirement::Removed).await;
        self.reconcile_shared(&mut roster).await;
        self.publish(roster);
        let mut warnings = Vec::new();
        let mut added = self.runtime_servers.clone();
        if added.servers.remove(name).is_some() {
            let back = "it will start again when the daemon restarts";
            let kept = self.store_runtime_servers(added).await;
            warnings.extend(kept.err().map(|problem| format!("{back}: {problem}")));
        }
        self.forget_desired(name).await;
        Some(RemovedServer { leaving, warnings })
    }

    /// Retires the second process of a server whose settings describe another process, as the
    /// eras that the new process speaks are unknown.
    async fn retire_second_processes(
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

    /// Removes a server from the roster and retires its instances.
    async fn remove_from_roster(
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
            logs::remove_log(&self.parts.logs_dir, failed.instance.key());
        }
        instances
    }

    /// Drops added servers that a file configures now. The file takes precedence.
    async fn drop_configured(&mut self, servers: &ServerMap) {
        let mut added = self.runtime_servers.clone();
        added.servers.retain(|name, _| {
            let is_added = servers.get(name).is_none_or(|it| it.source.added);
            if !is_added {
                tracing::warn!(server = %name, "a file now configures this added server");
            }
            is_added
        });
        if added != self.runtime_servers
            && let Err(problem) = self.store_runtime_servers(added).await
        {
            tracing::warn!("{problem}");
        }
    }

    /// Stores the added servers. Changes nothing if they cannot be written.
    async fn store_runtime_servers(&mut self, added: RuntimeServers) -> Result<(), String> {
        let file = self.parts.runtime_servers_file.clone();
        let shown = file.display().to_string();
        let (written, writing) = (added.clone(), file);
        let outcome = tokio::task::spawn_blocking(move || written.write(&writing)).await;
        outcome
            .map_err(std::io::Error::other)
            .flatten()
            .map_err(|error| format!("{shown} could not be written: {error}"))?;
        self.runtime_servers = added;
        Ok(())
    }
}

fn is_wanted(instance: &InstanceHandle) -> bool {
    instance.now().life.wanted == Wanted::Up
}

/// Replaces the settings of a server's instances. Returns those that start a new life for that.
/// An instance that is starting does not start anew for other rules.
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
        let _ = instance.reconfigure(event.clone(), settings).await; // May be retired.
        if is_wanted(instance) && !(is_starting && *event == Event::RulesChanged) {
            coming.push(instance.clone());
        }
    }
    coming
}
