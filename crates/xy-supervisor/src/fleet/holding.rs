//! Instances that live for one client.

use xy_config::settings::{Isolation, ServerSettings};
use xy_protocol::server::Wanted;

use super::owner::Owner;
use super::{HoldError, MAX_CLIENT_INSTANCES, Roster, room};
use crate::instance::{Holder, InstanceHandle, InstanceKey};
use crate::lifecycle::{Event, Retirement};

impl Owner {
    pub(super) async fn hold(&mut self, mut key: InstanceKey) -> Result<InstanceHandle, HoldError> {
        let mut roster = Roster::clone(&self.published.borrow());
        let asked = roster.get(&key.server).ok_or(HoldError::Unknown)?;
        if let Some(owner) = &asked.owner {
            key.server = owner.clone();
        }
        let member = roster.get(&key.server).ok_or(HoldError::Unknown)?;
        let is_wanted =
            member.wanted == Wanted::Up || self.is_wanted_by_others(&roster, &key.server);
        if !is_wanted {
            return Err(HoldError::Stopped);
        }
        let settings = member.settings.clone();
        let holder = match (settings.isolation, key.holder) {
            (Isolation::Shared, _) => Holder::Shared,
            (Isolation::Client, Holder::Shared) => return Err(HoldError::NoneForAll),
            (Isolation::Client, holder) => holder,
        };
        if let Some(instance) = member.instances.get(&holder) {
            let instance = instance.clone();
            if instance.now().life.state.is_away() {
                self.check_room(&roster, &settings)?;
                instance.request(Event::Woken).await.map_err(|_| HoldError::Unknown)?;
            }
            return Ok(instance);
        }
        let leaving = self.leaving.keys().filter(|leaving| leaving.server == key.server);
        let others = member.instances.len() + leaving.count();
        if others >= MAX_CLIENT_INSTANCES {
            return Err(HoldError::Full);
        }
        // A second one could not listen, and its client would speak with the first.
        if others > 0 && settings.port().is_some() {
            return Err(HoldError::PortTaken);
        }
        self.check_room(&roster, &settings)?;
        let handle = self.bear(&mut roster, &InstanceKey { holder, ..key }, &settings);
        self.publish(roster);
        Ok(handle)
    }

    /// Whether one more may come. What lives somewhere else takes no room here.
    fn check_room(&self, roster: &Roster, settings: &ServerSettings) -> Result<(), HoldError> {
        if settings.remote().is_some() {
            return Ok(());
        }
        let checked = room::check(roster, &self.measured.borrow(), self.parts.limits);
        checked.map_err(HoldError::NoRoom)
    }

    pub(super) async fn release(&mut self, key: &InstanceKey) {
        let mut roster = Roster::clone(&self.published.borrow());
        let member = roster.get_mut(&key.server).filter(|member| member.owner.is_none());
        let Some(instance) = member.and_then(|member| member.instances.remove(&key.holder)) else {
            return; // Its server was removed, or all clients share it.
        };
        self.publish(roster);
        self.retire([instance], Retirement::ClientLeft).await;
    }
}
