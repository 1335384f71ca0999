//! Instances for clients: creates them on demand and retires them when their clients leave.

use std::sync::Arc;

use xy_config::settings::{Isolation, ServerSettings};
use xy_protocol::server::{ServerState, Wanted};

use super::fleet_task::FleetTask;
use super::{FailedInstance, HoldError, MAX_CLIENT_INSTANCES, Member, Roster, capacity};
use crate::instance::{Holder, InstanceHandle, InstanceKey};
use crate::lifecycle::{Event, Retirement, State};
use crate::logs;
use crate::wait::time_of_day;

impl FleetTask {
    pub(super) async fn hold(&mut self, mut key: InstanceKey) -> Result<InstanceHandle, HoldError> {
        let mut roster = Roster::clone(&self.published.borrow());
        let requested = roster.get(&key.server).ok_or(HoldError::Unknown)?;
        if let Some(owner) = &requested.owner {
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
            (Isolation::Shared, Holder::Era(_)) if settings.only_era().is_none() => key.holder,
            (Isolation::Shared, _) => Holder::Shared,
            (Isolation::Client, Holder::Shared | Holder::Era(_)) => {
                return Err(HoldError::NoSharedInstance);
            }
            (Isolation::Client, holder) => holder,
        };
        if let Some(instance) = member.instances.get(&holder) {
            let instance = instance.clone();
            let state = instance.now().life.state;
            // The gateway decides when a failed second process is restarted.
            let event = match holder {
                _ if state.is_sleeping() => Some(Event::WakeRequested),
                Holder::Era(_) if state == State::Failed => Some(Event::StartRequested),
                _ => None,
            };
            if let Some(event) = event {
                self.check_room(&roster, &settings)?;
                instance.request(event).await.map_err(|_| HoldError::Unknown)?;
            }
            return Ok(instance);
        }
        let leaving = self.leaving.keys().filter(|leaving| leaving.server == key.server);
        let others = member.instances.len() + leaving.count();
        if others >= MAX_CLIENT_INSTANCES {
            return Err(HoldError::Full);
        }
        // A second instance could not listen, and its client would reach the first.
        if others > 0 && settings.port().is_some() {
            return Err(HoldError::PortTaken);
        }
        self.check_room(&roster, &settings)?;
        let handle = self.create_instance(&mut roster, &InstanceKey { holder, ..key }, &settings);
        self.publish(roster);
        Ok(handle)
    }

    /// Checks the limits for one more instance. Remote servers do not count.
    fn check_room(&self, roster: &Roster, settings: &ServerSettings) -> Result<(), HoldError> {
        if settings.remote().is_some() {
            return Ok(());
        }
        let checked = capacity::check(roster, &self.measured.borrow(), self.parts.limits);
        checked.map_err(HoldError::NoRoom)
    }

    pub(super) async fn release(&mut self, key: &InstanceKey) {
        let mut roster = Roster::clone(&self.published.borrow());
        let member = roster.get_mut(&key.server).filter(|member| member.owner.is_none());
        let Some(member) = member else { return }; // Its server was removed.
        let Some(instance) = member.instances.remove(&key.holder) else {
            return; // The instance is shared.
        };
        let replaced = keep_failed(member, &instance);
        self.publish(roster);
        self.retire([instance], Retirement::ClientLeft).await;
        if let Some(replaced) = replaced.filter(|it| it.instance.key() != key) {
            logs::remove_log(&self.parts.logs_dir, replaced.instance.key());
        }
    }

    /// Clears the failing mark of these servers after an operator started, stopped or restarted
    /// them.
    pub(super) fn clear_failing(&self, names: &[String]) {
        let is_failing = |name: &String| {
            self.published.borrow().get(name.as_str()).is_some_and(|it| it.is_failing)
        };
        if !names.iter().any(is_failing) {
            return;
        }
        let mut roster = Roster::clone(&self.published.borrow());
        for name in names {
            if let Some(member) = roster.get_mut(name.as_str()) {
                member.is_failing = false;
            }
        }
        self.publish(roster);
    }
}

/// Keeps a failing instance whose client leaves. Returns the one that was kept before.
fn keep_failed(member: &mut Member, instance: &InstanceHandle) -> Option<Arc<FailedInstance>> {
    let last = instance.now();
    if last.is_failing() {
        member.is_failing = true;
        let failed = FailedInstance { instance: instance.clone(), last, at: time_of_day() };
        return member.last_failed.replace(Arc::new(failed));
    }
    if matches!(last.state(), ServerState::Running | ServerState::Asleep) {
        member.is_failing = false;
    }
    None
}
