//! Servers with the same `share-key`: one process under several names.
//!
//! One of them owns the instances: the first that came. The others follow it: they show its
//! instances as their own, and what they are asked is asked of those. Each name is up or down by
//! itself; the process lives as long as one of them is to be up. If the owner leaves, the next
//! in order begins a process of its own, and the rest follow that.

use std::collections::BTreeMap;
use std::sync::Arc;

use xy_config::settings::ServerSettings;
use xy_protocol::server::{ServerName, Wanted};

use super::owner::Owner;
use super::{Member, Roster};
use crate::instance::InstanceHandle;
use crate::lifecycle::Event;

/// The server whose instances one has to share, if there is one.
pub(super) fn owner_for(roster: &Roster, settings: &ServerSettings) -> Option<ServerName> {
    let key = settings.share_key.as_ref()?;
    let is_owner = |member: &&Member| {
        member.settings.share_key.as_ref() == Some(key)
            && member.owner.is_none()
            && member.settings.name != settings.name
    };
    roster.values().find(is_owner).map(|member| member.settings.name.clone())
}

/// Those whose owner is not there any more, or has another key.
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

impl Owner {
    /// Whether another name of the same process is to be up.
    pub(super) fn is_wanted_by_others(&self, roster: &Roster, name: &ServerName) -> bool {
        let key = roster.get(name).and_then(|member| member.settings.share_key.as_ref());
        let is_other = |(other, member): &(&ServerName, &Member)| {
            *other != name && member.settings.share_key.as_ref() == key
        };
        let mut others = roster.iter().filter(is_other);
        key.is_some() && others.any(|(other, _)| self.wanted(other) == Wanted::Up)
    }

    /// Finds an owner for those who have lost theirs, and has every process be there that
    /// somebody wants; answers the instances that begin by it.
    pub(super) async fn regroup(&mut self, roster: &mut Roster) -> Vec<InstanceHandle> {
        let mut coming = Vec::new();
        for settings in orphans(roster) {
            roster.remove(&settings.name);
            coming.extend(self.join(roster, &settings));
        }
        for (name, member) in roster.iter().filter(|(_, it)| it.settings.share_key.is_some()) {
            for instance in member.own_instances() {
                let is_down = instance.now().life.wanted == Wanted::Down;
                if is_down && self.is_wanted_by_others(roster, name) {
                    let _ = instance.request(Event::StartRequested).await; // Gone: nothing to do.
                }
            }
        }
        coming
    }

    /// Lets everybody see the servers. Who shares another's instances has them too.
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
