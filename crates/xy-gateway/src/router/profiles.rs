//! What profiles show: which there are, and who lives by them.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use xy_config::profile::DEFAULT_PROFILE;
use xy_config::settings::Profiles;

use super::Router;
use crate::backend::Backend;
use crate::catalog::{Kind, Known};
use crate::client::{Client, Visibility};
use crate::client_limits;
use crate::frontend::{Refusal, View};
use crate::scope::{Scope, There};

/// What is told of profiles and of clients, at most, each.
const MOST_WARNINGS: usize = 50;

/// So many names are compared with patterns when lines are looked for that are about nothing:
/// everybody waits meanwhile.
const MOST_COMPARED: usize = 500_000;

/// Who somebody is, at what it is shown: what it has begun at one profile it does not find at
/// another, which may hide that.
pub(super) fn who_at(who: u64, view: &View) -> u64 {
    match view {
        View::Profile(name) if name != DEFAULT_PROFILE => {
            let bytes = who.to_be_bytes().into_iter().chain(name.bytes());
            bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            })
        }
        View::Profile(_) | View::All | View::Server(_) => who,
    }
}

impl Router {
    /// What a client with this view is shown.
    pub(super) fn lens_of(&self, view: &View) -> Result<Visibility, Refusal> {
        match view {
            View::All | View::Server(_) => Ok(Visibility::All),
            View::Profile(name) => match self.scopes.borrow().get(name) {
                Some(scope) => Ok(Visibility::Scope(scope.clone())),
                None if name == DEFAULT_PROFILE => Ok(Visibility::All),
                None => Err(Refusal::NoProfile(name.clone())),
            },
        }
    }

    /// The rule of a profile, if a file says one.
    pub(crate) fn scope(&self, name: &str) -> Option<Rc<Scope>> {
        self.scopes.borrow().get(name).cloned()
    }

    /// The names of all profiles: there is always one that shows everything if no file says more.
    pub(super) fn profile_names(&self) -> BTreeSet<String> {
        let scopes = self.scopes.borrow();
        scopes.keys().cloned().chain([DEFAULT_PROFILE.to_owned()]).collect()
    }

    /// Whether who is bound to a profile may be shown one server with nothing between. One that
    /// its profile hides is to it like one that does not exist.
    pub(crate) fn check_bound(&self, profile: &str, server: &str) -> Result<(), Refusal> {
        match self.lens_of(&View::Profile(profile.to_owned()))? {
            Visibility::All => Ok(()),
            Visibility::Scope(scope) if scope.shows_whole(server) => Ok(()),
            Visibility::Scope(scope) if scope.decide_server(server).shown => {
                Err(Refusal::Outside { server: server.into(), profile: profile.into() })
            }
            Visibility::Scope(_) | Visibility::Nothing => Err(Refusal::NoServer(server.to_owned())),
        }
    }

    /// The files say this of profiles now. Those who live by one that has changed are told
    /// what has changed for them.
    pub(crate) fn set_profiles(&self, profiles: &Profiles) {
        let mut scopes = self.scopes.borrow_mut();
        scopes.retain(|name, scope| profiles.get(name).is_some_and(|it| it == scope.settings()));
        for (name, settings) in profiles {
            let made = || Rc::new(Scope::new(settings.clone()));
            scopes.entry(name.clone()).or_insert_with(made);
        }
        drop(scopes);
        self.crowded.borrow_mut().clear();
        for client in self.clients() {
            client.look_through(self.lens_of(&client.entry().view).unwrap_or(Visibility::Nothing));
        }
        self.lists_changed();
        self.tell_news();
    }

    /// A client is shown so many tools, which may be more than it can take.
    pub(super) fn look_at_crowd(&self, client: &Client, count: usize) {
        let Some(name) = client.called() else { return };
        let Some(most) = client_limits::most_tools(&name).filter(|most| count > *most) else {
            return;
        };
        let profile = match &client.entry().view {
            View::Profile(profile) => profile.as_str(),
            View::All | View::Server(_) => return,
        };
        let key = (profile.to_owned(), name.clone());
        let mut crowded = self.crowded.borrow_mut();
        if crowded.contains_key(&key) || crowded.len() >= MOST_WARNINGS {
            return;
        }
        let warning = client_limits::warning(&name, profile, count, most);
        tracing::warn!("{warning}");
        crowded.insert(key, warning);
        drop(crowded);
        self.tell_warnings();
    }

    /// Looks for lines of profiles that are about nothing, and for profiles that show nothing,
    /// as far as servers are known. Each is told once.
    pub(super) fn look_over_profiles(&self) {
        let servers = self.servers();
        let names: Vec<&str> = servers.iter().map(|it| it.name.as_str()).collect();
        let is_unknown = |it: &&Rc<Backend>| it.known.borrow().is_none();
        let unknown: Vec<&str> =
            servers.iter().filter(is_unknown).map(|it| it.name.as_str()).collect();
        let known: Vec<(&str, Rc<Known>)> = servers
            .iter()
            .filter_map(|it| Some((it.name.as_str(), it.known.borrow().clone()?)))
            .collect();
        let left = Cell::new(MOST_COMPARED);
        let has = |kind: Kind, fits: &dyn Fn(&str, &str) -> bool| {
            let mut items = known.iter().flat_map(|(server, known)| {
                known.lists.of(kind).iter().map(move |item| (*server, &*item.name))
            });
            items.any(|(server, name)| {
                left.set(left.get().saturating_sub(1));
                left.get() == 0 || fits(server, name)
            })
        };
        let there = There { servers: &names, unknown: &unknown, has: &has };
        let mut idle = BTreeSet::new();
        for scope in self.scopes.borrow().values() {
            let file = &scope.settings().file;
            let lines = scope.idle_lines(&there).into_iter();
            idle.extend(lines.map(|(line, why)| format!("{file}:{line} is about nothing: {why}")));
            idle.extend(scope.emptiness(&there).map(|why| format!("{file} {why}")));
        }
        while idle.len() > MOST_WARNINGS {
            idle.pop_last();
        }
        let before = self.idle_lines.replace(idle.clone());
        for line in idle.difference(&before) {
            tracing::warn!("{line}");
        }
        self.tell_warnings();
    }

    fn tell_warnings(&self) {
        let idle = self.idle_lines.borrow();
        let all: Vec<String> = idle.iter().chain(self.crowded.borrow().values()).cloned().collect();
        self.tell_seen(|seen| &mut seen.warnings, all);
    }
}
