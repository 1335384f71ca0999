//! Servers with the same `share-key`: one process under several names.
//!
//! One of them owns the instances: the first that came. The others follow it: they show its
//! instances as their own, and what they are asked is asked of those. Each name is up or down by
//! itself; the process lives as long as one of them is to be up. If the owner leaves, the next
//! in order begins a process of its own when the old one has ended, and the rest follow that.

use std::collections::BTreeMap;
use std::sync::Arc;

use xy_config::settings::ServerSettings;
use xy_protocol::server::{ServerName, Wanted};

use super::owner::Owner;
use super::{Member, Roster};
use crate::instance::{InstanceHandle, InstanceKey};
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

/// Whether the instances of a server can go on with other settings: the same clients have them
/// as before. One that owns its instances takes them along to another key, unless that is
/// another's.
pub(super) fn goes_on(roster: &Roster, member: &Member, settings: &ServerSettings) -> bool {
    let before = &member.settings;
    let keeps = before.share_key == settings.share_key
        || member.owner.is_none() && owner_for(roster, settings).is_none();
    before.isolation == settings.isolation && keeps
}

impl Owner {
    /// The process of this key that is still ending: it may hold what the next one needs, such
    /// as a lock or a database.
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

    /// Whether another name of the same process is to be up.
    pub(super) fn is_wanted_by_others(&self, roster: &Roster, name: &ServerName) -> bool {
        let key = roster.get(name).and_then(|member| member.settings.share_key.as_ref());
        let is_other = |(other, member): &(&ServerName, &Member)| {
            *other != name && member.settings.share_key.as_ref() == key
        };
        let mut others = roster.iter().filter(is_other);
        key.is_some() && others.any(|(other, _)| self.wanted(other) == Wanted::Up)
    }

    /// Finds an owner for those who have lost theirs; answers the instances that begin by it.
    pub(super) fn rehome(&mut self, roster: &mut Roster) -> Vec<InstanceHandle> {
        let mut coming = Vec::new();
        for settings in orphans(roster) {
            roster.remove(&settings.name);
            coming.extend(self.join(roster, &settings));
        }
        coming
    }

    /// Finds an owner for those who have lost theirs, and has every process be there that
    /// somebody wants, and no other; answers the instances that begin by it.
    pub(super) async fn regroup(&mut self, roster: &mut Roster) -> Vec<InstanceHandle> {
        let coming = self.rehome(roster);
        for (name, member) in roster.iter().filter(|(_, it)| it.settings.share_key.is_some()) {
            let is_wanted =
                self.wanted(name) == Wanted::Up || self.is_wanted_by_others(roster, name);
            for instance in member.own_instances() {
                let event = match (instance.now().life.wanted, is_wanted) {
                    (Wanted::Down, true) => Event::StartRequested,
                    (Wanted::Up, false) => Event::StopRequested,
                    _ => continue,
                };
                let _ = instance.request(event).await; // Gone: nothing to do.
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
