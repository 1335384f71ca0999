//! Adopts the instances that earlier daemons started.

use std::sync::Arc;
use std::time::Duration;

use xy_config::BrokenServers;
use xy_config::settings::Isolation;
use xy_protocol::server::{ServerName, Wanted};

use super::fleet_task::FleetTask;
use super::{Roster, settings_for, settings_of};
use crate::instance::Holder;
use crate::launch::adopt::AdoptedLife;
use crate::lifecycle::{Event, Retirement};
use crate::task::Origin;
use crate::wait::time_of_day;

impl FleetTask {
    /// Returns true if the instance goes on. Client instances do not, as clients do not outlive a
    /// daemon; nor do added servers that were never confirmed to the user. The second process of a
    /// server goes on beside the shared one, which is adopted before it.
    fn is_wanted_back(&self, adopted: &AdoptedLife) -> bool {
        let name = &adopted.key.server;
        let is_kept = self.runtime_servers.servers.contains_key(name);
        let has_place = match adopted.key.holder {
            Holder::Shared => true,
            holder @ Holder::Era(_) => self.has_place_for_second(name, holder),
            Holder::Client(_) => false,
        };
        has_place && (is_kept || !adopted.settings().source.added) && !self.follows(name)
    }

    /// Returns true if a second process of the server may be adopted.
    fn has_place_for_second(&self, name: &ServerName, holder: Holder) -> bool {
        self.published.borrow().get(name).is_some_and(|member| {
            let may_have_two = member.settings.isolation == Isolation::Shared
                && member.settings.only_era().is_none();
            let has = |holder| member.instances.contains_key(&holder);
            may_have_two && has(Holder::Shared) && !has(holder)
        })
    }

    /// Adopts instances. Shared ones come first, as second processes need them.
    pub(super) fn adopt_all(&mut self, mut adopted: Vec<AdoptedLife>) {
        adopted.sort_by_key(|it| it.key.holder != Holder::Shared);
        for instance in adopted {
            self.adopt(instance);
        }
    }

    /// Returns true if the server now uses the instance of another one with its `share-key`.
    fn follows(&self, name: &ServerName) -> bool {
        self.published.borrow().get(name).is_some_and(|it| it.owner.is_some())
    }

    /// Adopts an instance with the settings that it was started with.
    pub(super) fn adopt(&mut self, adopted: AdoptedLife) {
        let is_wanted_back = self.is_wanted_back(&adopted);
        let AdoptedLife { key, note, status, status_at, handle, logs } = adopted;
        // Another server that shares the process may want it. That is known after the reload.
        let is_shared = note.settings.share_key.is_some();
        let wanted = if is_shared { Wanted::Up } else { self.wanted(&key.server) };
        let life = note.life(&status, wanted, status_at.into_std());
        let pid = status.exited.is_none().then_some(status.pid);
        let ended_at = status
            .exited
            .as_ref()
            .and_then(|exited| time_of_day().checked_sub(Duration::from_millis(exited.ms_ago)));
        let missed_event = match wanted {
            // Its client was connected to the old daemon.
            _ if !is_wanted_back && key.holder != Holder::Shared => {
                Some(Event::RetireRequested(Retirement::ClientLeft))
            }
            _ if !is_wanted_back && self.follows(&key.server) => {
                Some(Event::RetireRequested(Retirement::Replaced))
            }
            _ if !is_wanted_back => Some(Event::RetireRequested(Retirement::Removed)),
            // The stop may have been stored, but not carried out.
            Wanted::Down => Some(Event::StopRequested),
            Wanted::Up => note.missed_event(&status),
        };
        let probe_support = note.probe_support();
        let origin = Origin::Adopted {
            life,
            life_handle: handle,
            pid,
            ended_at,
            missed_event,
            probe_support,
        };
        let instance = self.spawn_task(&key, note.settings.clone(), logs, origin);
        if !is_wanted_back {
            self.leaving.insert(key, instance);
            return;
        }
        let mut roster = Roster::clone(&self.published.borrow());
        let member = match key.holder {
            // Its settings differ from those of the server.
            Holder::Era(_) => roster.get_mut(&key.server),
            Holder::Shared | Holder::Client(_) => Some(self.member(&mut roster, &note.settings)),
        };
        if let Some(member) = member {
            member.instances.insert(key.holder, instance);
        }
        self.publish(roster);
    }

    /// Adopts a second process, and applies the current settings of its server.
    async fn adopt_second(&mut self, adopted: AdoptedLife) {
        let (key, settings) = (adopted.key.clone(), adopted.settings().clone());
        self.adopt(adopted);
        let roster = Roster::clone(&self.published.borrow());
        let Some(member) = roster.get(&key.server) else { return };
        let Some(instance) = member.instances.get(&key.holder) else { return };
        let is_same = settings.kind == member.settings.kind;
        let event = if is_same { Event::RulesChanged } else { Event::ProcessChanged };
        // It may be retired meanwhile.
        let _ = instance.reconfigure(event, settings_for(key.holder, &member.settings)).await;
    }

    /// Adopts an instance in place of the successor that waited for its end, then applies the
    /// current settings.
    pub(super) async fn adopt_late(&mut self, adopted: AdoptedLife, is_broken: bool) {
        if !self.is_wanted_back(&adopted) {
            return self.adopt(adopted);
        }
        if adopted.key.holder != Holder::Shared {
            return self.adopt_second(adopted).await; // No successor waits for its end.
        }
        let name = adopted.key.server.clone();
        let wanted = self.published.borrow().get(&name).cloned();
        for waiting in wanted.iter().flat_map(|member| member.instances.values()) {
            waiting.hand_over().await;
        }
        self.adopt(adopted);
        let mut servers = settings_of(&self.published.borrow());
        match (wanted, servers.get_mut(&name)) {
            (Some(member), Some(settings)) => *settings = member.settings,
            (None, Some(settings)) if is_broken => {
                Arc::make_mut(settings).source.is_outdated = true;
            }
            _ => _ = servers.remove(&name),
        }
        self.apply(servers, &BrokenServers::All).await;
    }
}
