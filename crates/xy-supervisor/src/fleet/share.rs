//! Servers with the same `share-key`: one process under several names.
//!
//! The first of them owns the instances. The others follow it: they show its instances as their
//! own, and operations on them apply to these instances. Each name is up or down by itself, and
//! the process runs as long as one of them is wanted up.
//!
//! If the owner leaves, the next one in order starts a process when the old one has ended, and the
//! others follow it.

use std::collections::BTreeMap;
use std::sync::Arc;

use xy_config::settings::ServerSettings;
use xy_protocol::server::{ServerName, Wanted};

use super::fleet_task::FleetTask;
use super::{Member, Roster, owner_for};
use crate::instance::{InstanceHandle, InstanceKey};
use crate::lifecycle::Event;

/// Returns the servers whose owner was removed or has another key.
fn orphans(roster: &Roster) -> Vec<Arc<ServerSettings>> {
    let is_orphan = |member: &&Member| {
        let Some(owner) = &member.owner else { return false };
        let owner = roster.get(owner);
        !owner.is_some_and(|it| {
            it.owner.is_none() && it.settings.share_key == member.settings.share_key
        })
    };
    roster.values().filter(is_orphan).map(|member| member.settings.clone()).collect()
}

/// Returns true if the instances of a server can go on with other settings, which needs the same
/// isolation. An owner takes its instances along to another key unless that key has an owner.
pub(super) fn keeps_instances(roster: &Roster, member: &Member, settings: &ServerSettings) -> bool {
    let before = &member.settings;
    let keeps = before.share_key == settings.share_key
        || member.owner.is_none() && owner_for(roster, settings).is_none();
    before.isolation == settings.isolation && keeps
}

impl FleetTask {
    /// Returns the ending instance with this share key. It may hold resources that the next one
    /// needs, such as a lock or a database.
    pub(super) fn ending_with_key(
        &self,
        key: &InstanceKey,
        share_key: &str,
    ) -> Option<InstanceHandle> {
        let is_it = |it: &&InstanceHandle| {
            it.key().holder == key.holder
                && it.now().settings.share_key.as_deref() == Some(share_key)
        };
        self.leaving.values().find(is_it).cloned()
    }

    /// Returns true if another server that shares the process is wanted up.
    pub(super) fn is_wanted_by_others(&self, roster: &Roster, name: &ServerName) -> bool {
        let key = roster.get(name).and_then(|member| member.settings.share_key.as_ref());
        let is_other = |(other, member): &(&ServerName, &Member)| {
            *other != name && member.settings.share_key.as_ref() == key
        };
        let mut others = roster.iter().filter(is_other);
        key.is_some() && others.any(|(other, _)| self.wanted(other) == Wanted::Up)
    }

    /// Finds new owners for servers that have lost theirs. Returns the instances that start.
    pub(super) fn reassign_owners(&mut self, roster: &mut Roster) -> Vec<InstanceHandle> {
        let mut coming = Vec::new();
        for settings in orphans(roster) {
            roster.remove(&settings.name);
            coming.extend(self.add_to_roster(roster, &settings));
        }
        coming
    }

    /// Finds new owners for servers that have lost theirs. Then starts and stops shared instances
    /// as their servers want. Returns the instances that start for new owners.
    pub(super) async fn reconcile_shared(&mut self, roster: &mut Roster) -> Vec<InstanceHandle> {
        let coming = self.reassign_owners(roster);
        for (name, member) in roster.iter().filter(|(_, it)| it.settings.share_key.is_some()) {
            let is_wanted =
                self.wanted(name) == Wanted::Up || self.is_wanted_by_others(roster, name);
            for instance in member.own_instances() {
                let event = match (instance.now().life.wanted, is_wanted) {
                    (Wanted::Down, true) => Event::StartRequested,
                    (Wanted::Up, false) => Event::StopRequested,
                    _ => continue,
                };
                let _ = instance.request(event).await; // May be retired.
            }
        }
        coming
    }

    /// Publishes the roster. Servers that follow an owner get its instances.
    pub(super) fn publish(&self, mut roster: Roster) {
        let owned: BTreeMap<ServerName, _> = roster
            .iter()
            .filter(|(_, member)| member.settings.share_key.is_some() && member.owner.is_none())
            .map(|(name, member)| (name.clone(), member.instances.clone()))
            .collect();
        for member in roster.values_mut() {
            if let Some(owner) = &member.owner {
                member.instances = owned.get(owner).cloned().unwrap_or_default();
            }
        }
        self.published.send_replace(Arc::new(roster));
    }
}
