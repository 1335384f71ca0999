//! Going on with what earlier daemons started.

use std::sync::Arc;
use std::time::Duration;

use xy_config::Broken;
use xy_protocol::server::{ServerName, Wanted};

use super::owner::Owner;
use super::{Roster, settings_of};
use crate::instance::Holder;
use crate::launch::adopt::Adopted;
use crate::lifecycle::{Event, Retirement};
use crate::task::Before;
use crate::wait::time_of_day;

impl Owner {
    /// Whether anybody may want it: clients do not outlive a daemon, and of an added server
    /// whose adding was not finished nobody was told.
    fn is_welcome(&self, adopted: &Adopted) -> bool {
        let is_kept = self.added.servers.contains_key(&adopted.key.server);
        adopted.key.holder == Holder::Shared
            && (is_kept || !adopted.settings().source.added)
            && !self.follows(&adopted.key.server)
    }

    /// Whether another name of the same process has begun one meanwhile.
    fn follows(&self, name: &ServerName) -> bool {
        self.published.borrow().get(name).is_some_and(|it| it.owner.is_some())
    }

    /// Goes on with a server that an earlier daemon started, as its file was then.
    pub(super) fn adopt(&mut self, adopted: Adopted) {
        let is_welcome = self.is_welcome(&adopted);
        let Adopted { key, note, status, greeted_at, instance, logs } = adopted;
        // Another name of the process may want it, which is known once the files are applied.
        let is_shared = note.settings.share_key.is_some();
        let wanted = if is_shared { Wanted::Up } else { self.wanted(&key.server) };
        let life = note.life(&status, wanted, greeted_at.into_std());
        let pid = status.exited.is_none().then_some(status.pid);
        let ended_at = status
            .exited
            .as_ref()
            .and_then(|exited| time_of_day().checked_sub(Duration::from_millis(exited.ms_ago)));
        let unheard = match wanted {
            // Its client was the old daemon's.
            _ if !is_welcome && key.holder != Holder::Shared => {
                Some(Event::RetireRequested(Retirement::ClientLeft))
            }
            _ if !is_welcome && self.follows(&key.server) => {
                Some(Event::RetireRequested(Retirement::Replaced))
            }
            _ if !is_welcome => Some(Event::RetireRequested(Retirement::Removed)),
            // It may have been kept and not yet been done.
            Wanted::Down => Some(Event::StopRequested),
            Wanted::Up => note.unheard(&status),
        };
        let habit = note.habit();
        let before = Before::Living { life, instance, pid, ended_at, unheard, habit };
        let handle = self.begin(&key, note.settings.clone(), logs, before);
        if !is_welcome {
            self.leaving.insert(key, handle);
            return;
        }
        let mut roster = Roster::clone(&self.published.borrow());
        self.member(&mut roster, &note.settings).instances.insert(key.holder, handle);
        self.publish(roster);
    }

    /// Replaces whoever waited for the end of this one, with what its file says by now.
    pub(super) async fn adopt_late(&mut self, adopted: Adopted, is_broken: bool) {
        if !self.is_welcome(&adopted) {
            return self.adopt(adopted);
        }
        let name = adopted.key.server.clone();
        let wanted = self.published.borrow().get(&name).cloned();
        for waiting in wanted.iter().flat_map(|member| member.instances.values()) {
            waiting.let_go().await;
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
        self.apply(servers, &Broken::Every).await;
    }
}
