//! Profiles: which exist, and what their clients see.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use xy_catalog::catalog::ServerCatalog;
use xy_catalog::scope::{Inventory, Scope};
use xy_config::profile::DEFAULT_PROFILE;
use xy_config::settings::Profiles;
use xy_http::frontend::{Refusal, View};
use xy_mcp::kind::Kind;

use super::{RoutedClient, Router};
use crate::backend::Backend;
use crate::visibility::Visibility;
use crate::{client_limits, tools};

/// Maximum number of warnings about profiles, and about clients.
const MAX_WARNINGS: usize = 50;

/// Maximum number of comparisons in a search for lines that match nothing: all clients wait
/// meanwhile.
const MAX_COMPARISONS: usize = 500_000;

/// Derives an identity per profile, so that tasks begun under one profile are invisible under
/// another.
pub(super) fn identity_in(who: u64, view: &View) -> u64 {
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
    /// Returns the visibility filter of a view.
    pub(super) fn visibility_of(&self, view: &View) -> Result<Visibility, Refusal> {
        match view {
            View::All | View::Server(_) => Ok(Visibility::All),
            View::Profile(name) => match self.scopes.borrow().get(name) {
                Some(scope) => Ok(Visibility::Scope(scope.clone())),
                None if name == DEFAULT_PROFILE => Ok(Visibility::All),
                None => Err(Refusal::NoProfile(name.clone())),
            },
        }
    }

    /// Returns the rule of a profile, if it has a file.
    pub(crate) fn scope(&self, name: &str) -> Option<Rc<Scope>> {
        self.scopes.borrow().get(name).cloned()
    }

    /// Returns the names of all profiles. The default profile exists without a file and shows
    /// everything.
    pub(crate) fn profile_names(&self) -> BTreeSet<String> {
        let scopes = self.scopes.borrow();
        scopes.keys().cloned().chain([DEFAULT_PROFILE.to_owned()]).collect()
    }

    /// Checks that a token bound to a profile may use a server's own endpoint. A hidden server
    /// looks like an unknown one.
    pub(crate) fn check_bound(&self, profile: &str, server: &str) -> Result<(), Refusal> {
        match self.visibility_of(&View::Profile(profile.to_owned()))? {
            Visibility::All => Ok(()),
            Visibility::Scope(scope) if scope.shows_all_of(server) => Ok(()),
            Visibility::Scope(scope) if scope.decide_server(server).shown => {
                Err(Refusal::Outside { server: server.into(), profile: profile.into() })
            }
            Visibility::Scope(_) | Visibility::Nothing => Err(Refusal::NoServer(server.to_owned())),
        }
    }

    /// Replaces the profiles, and notifies clients of what has changed for them.
    pub(crate) fn set_profiles(&self, profiles: &Profiles) {
        let mut scopes = self.scopes.borrow_mut();
        scopes.retain(|name, scope| profiles.get(name).is_some_and(|it| it == scope.settings()));
        for (name, settings) in profiles {
            let made = || Rc::new(Scope::new(settings.clone()));
            scopes.entry(name.clone()).or_insert_with(made);
        }
        drop(scopes);
        self.limit_warnings.borrow_mut().clear();
        for client in self.clients() {
            client.set_visibility(
                self.visibility_of(&client.entry().view).unwrap_or(Visibility::Nothing),
            );
        }
        self.lists_changed();
        self.notify_change();
    }

    /// Warns if a client sees more tools than it supports.
    pub(super) fn check_client_limit(&self, client: &dyn RoutedClient, count: usize) {
        let Some(name) = client.name() else { return };
        let Some(most) = client_limits::max_tools(&name).filter(|most| count > *most) else {
            return;
        };
        let profile = match &client.entry().view {
            View::Profile(profile) => profile.as_str(),
            View::All | View::Server(_) => return,
        };
        let key = (profile.to_owned(), name.clone());
        let mut limit_warnings = self.limit_warnings.borrow_mut();
        if limit_warnings.contains_key(&key) || limit_warnings.len() >= MAX_WARNINGS {
            return;
        }
        let warning = client_limits::warning(&name, profile, count, most);
        tracing::warn!("{warning}");
        limit_warnings.insert(key, warning);
        drop(limit_warnings);
        self.publish_warnings();
    }

    /// Warns about profile lines that match nothing and profiles that show nothing, as far as
    /// servers are known. Each warning is logged once.
    pub(super) fn check_profiles(&self) {
        let servers = self.servers();
        let names: Vec<&str> = servers.iter().map(|it| it.name.as_str()).collect();
        let is_unknown = |it: &&Rc<Backend>| it.known.borrow().is_none();
        let unknown: Vec<&str> =
            servers.iter().filter(is_unknown).map(|it| it.name.as_str()).collect();
        let known: Vec<(&str, Rc<ServerCatalog>)> = servers
            .iter()
            .filter_map(|it| Some((it.name.as_str(), it.known.borrow().clone()?)))
            .collect();
        let left = Cell::new(MAX_COMPARISONS);
        let has = |kind: Kind, fits: &dyn Fn(&str, &str) -> bool| {
            let mut items = known.iter().flat_map(|(server, known)| {
                known.lists.of(kind).iter().map(move |item| (*server, &*item.name))
            });
            items.any(|(server, name)| {
                left.set(left.get().saturating_sub(1));
                left.get() == 0 || fits(server, name)
            })
        };
        let own_tools = tools::own_names();
        let inventory =
            Inventory { servers: &names, own_tools: &own_tools, unknown: &unknown, has: &has };
        let mut idle = BTreeSet::new();
        for scope in self.scopes.borrow().values() {
            let file = &scope.settings().file;
            let lines = scope.unmatched_lines(&inventory).into_iter();
            idle.extend(lines.map(|(line, why)| format!("{file}:{line} matches nothing: {why}")));
            idle.extend(scope.empty_reason(&inventory).map(|why| format!("{file} {why}")));
        }
        while idle.len() > MAX_WARNINGS {
            idle.pop_last();
        }
        let before = self.unmatched_lines.replace(idle.clone());
        for line in idle.difference(&before) {
            tracing::warn!("{line}");
        }
        self.publish_warnings();
    }

    fn publish_warnings(&self) {
        let idle = self.unmatched_lines.borrow();
        let all: Vec<String> =
            idle.iter().chain(self.limit_warnings.borrow().values()).cloned().collect();
        self.update_status(|status| &mut status.warnings, all);
    }
}
