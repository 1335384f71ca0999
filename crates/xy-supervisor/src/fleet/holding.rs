//! Instances that live for one client.

use std::sync::Arc;

use xy_config::settings::Isolation;
use xy_protocol::server::Wanted;

use super::owner::Owner;
use super::{HoldError, MAX_CLIENT_INSTANCES, Roster};
use crate::instance::{Holder, InstanceHandle, InstanceKey};

impl Owner {
    pub(super) fn hold(&mut self, key: InstanceKey) -> Result<InstanceHandle, HoldError> {
        let mut roster = Roster::clone(&self.published.borrow());
        let member = roster.get(&key.server).ok_or(HoldError::Unknown)?;
        if member.wanted == Wanted::Down {
            return Err(HoldError::Stopped);
        }
        let settings = member.settings.clone();
        let holder = match settings.isolation {
            Isolation::Shared => Holder::Shared,
            Isolation::Client => key.holder,
        };
        if let Some(instance) = member.instances.get(&holder) {
            return Ok(instance.clone());
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
        let handle = self.bear(&mut roster, &InstanceKey { holder, ..key }, &settings);
        self.published.send_replace(Arc::new(roster));
        Ok(handle)
    }

    pub(super) async fn release(&mut self, key: &InstanceKey) {
        let mut roster = Roster::clone(&self.published.borrow());
        let member = roster.get_mut(&key.server);
        let Some(instance) = member.and_then(|member| member.instances.remove(&key.holder)) else {
            return; // Its server was removed, or all clients share it.
        };
        self.published.send_replace(Arc::new(roster));
        self.retire([instance]).await;
    }
}
