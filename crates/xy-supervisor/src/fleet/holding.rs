//! Instances that live for one client.

use std::sync::Arc;

use xy_config::settings::{Isolation, ServerSettings};
use xy_protocol::server::{ServerState, Wanted};

use super::owner::Owner;
use super::{FailedInstance, HoldError, MAX_CLIENT_INSTANCES, Member, Roster, room};
use crate::instance::{Holder, InstanceHandle, InstanceKey, SECOND_IDLE_STOP};
use crate::lifecycle::{Event, Retirement, State};
use crate::logs;
use crate::wait::time_of_day;

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
            (Isolation::Shared, Holder::Era(_)) if settings.only_era().is_none() => key.holder,
            (Isolation::Shared, _) => Holder::Shared,
            (Isolation::Client, Holder::Shared | Holder::Era(_)) => {
                return Err(HoldError::NoneForAll);
            }
            (Isolation::Client, holder) => holder,
        };
        if let Some(instance) = member.instances.get(&holder) {
            let instance = instance.clone();
            let state = instance.now().life.state;
            // The gateway decides when a second process that has failed is tried again.
            let wakes = match holder {
                _ if state.is_away() => Some(Event::Woken),
                Holder::Era(_) if state == State::Failed => Some(Event::StartRequested),
                _ => None,
            };
            if let Some(wakes) = wakes {
                self.check_room(&roster, &settings)?;
                instance.request(wakes).await.map_err(|_| HoldError::Unknown)?;
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
        let Some(member) = member else { return }; // Its server was removed.
        let Some(instance) = member.instances.remove(&key.holder) else {
            return; // All clients share it.
        };
        let forgotten = keep_failed(member, &instance);
        self.publish(roster);
        self.retire([instance], Retirement::ClientLeft).await;
        if let Some(forgotten) = forgotten.filter(|it| it.instance.key() != key) {
            logs::forget(&self.parts.logs_dir, forgotten.instance.key());
        }
    }

    /// Forgets that client instances of these servers were failing: a person started, stopped or
    /// restarted them.
    pub(super) fn forgive(&self, names: &[String]) {
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

/// Returns the settings that an instance lives by: the second process of a server that speaks
/// both eras sleeps while it is not used.
pub(super) fn settings_for(holder: Holder, settings: &Arc<ServerSettings>) -> Arc<ServerSettings> {
    let mut settings = settings.clone();
    if let Holder::Era(_) = holder {
        let idle_stop = &mut Arc::make_mut(&mut settings).rules.idle_stop;
        *idle_stop = idle_stop.or(Some(SECOND_IDLE_STOP));
    }
    settings
}

/// Keeps an instance whose client leaves if it is failing. Returns the one that was kept before.
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
