//! Servers that are one process under several names.
//!
//! One of them, the *primary*, owns the instances. Calls under an alias go to the instances, the
//! queue and the rules of the primary. The alias stays with the call, and everything returned to
//! the client uses it: results, resource updates, tasks, errors. So a client cannot tell which name
//! is the primary.

use std::collections::BTreeSet;
use std::rc::Rc;

use xy_supervisor::fleet::{Member, Roster};
use xy_supervisor::instance::Holder;

use super::Router;
use crate::backend::{Backend, STOPPED};
use crate::upstream::Upstream;

impl Router {
    /// Returns all available names of a server's instances, including its own.
    pub(crate) fn aliases_of(&self, primary: &Rc<Backend>) -> Vec<Rc<Backend>> {
        let servers = self.servers.borrow();
        let names = servers.values().filter(|it| !it.is_hidden() && primary.is_primary_of(it));
        names.cloned().collect()
    }

    /// Sets the owner of each server's instances, and which names are hidden.
    pub(crate) fn set_owners(&self, roster: &Roster) {
        let found = |member: &'_ Member| self.server(member.settings.name.as_str());
        let has_news = |member: &Member| {
            found(member)
                .is_some_and(|it| it.owner_changes(member.owner.as_ref(), member.is_hidden()))
        };
        if !roster.values().any(has_news) {
            return;
        }
        let watched = self.watched_everywhere();
        for member in roster.values() {
            if let Some(server) = found(member) {
                server.set_owner(member.owner.clone(), member.is_hidden());
            }
        }
        self.resolve_primaries();
        for server in self.servers() {
            if server.is_hidden() {
                server.primary_or_self().fail_all_under(&server, STOPPED);
            }
        }
        self.update_watched(&watched);
        self.publish_protocol_versions();
        self.lists_changed();
        self.notify_change();
    }

    /// Resolves the primary of each server after a change. A server with a new primary takes over
    /// its lists.
    pub(super) fn resolve_primaries(&self) {
        for server in self.servers() {
            let primary = server.owner().and_then(|owner| self.server(owner.as_str()));
            server.set_primary(primary.as_ref());
            let known = primary.and_then(|primary| primary.known.borrow().clone());
            if let Some(known) = known {
                server.known.replace(Some(known.for_alias(&server.name)));
            }
        }
    }

    /// Returns what is watched at each ready instance.
    fn watched_everywhere(&self) -> Vec<(Rc<Upstream>, BTreeSet<String>)> {
        let mut all = Vec::new();
        for server in self.servers() {
            for upstream in server.own_upstreams() {
                let watched = self.watched(&server, upstream.key().holder).uris;
                all.push((upstream, watched));
            }
        }
        all
    }

    /// Adjusts the subscriptions of instances whose names have changed.
    fn update_watched(&self, before: &[(Rc<Upstream>, BTreeSet<String>)]) {
        for (upstream, before) in before {
            let Some(server) = self.server(upstream.key().server.as_str()) else { continue };
            let holder = upstream.key().holder;
            let now = self.watched(&server, holder).uris;
            for uri in before.difference(&now) {
                self.unsubscribe_instance(&server, holder, uri);
            }
            if now.difference(before).next().is_some() {
                self.restore_subscriptions(&server, upstream);
            }
        }
    }

    /// Returns true if any client watches a resource at this instance, under any alias.
    pub(super) fn is_watched(&self, primary: &Rc<Backend>, holder: Holder, uri: &str) -> bool {
        let (names, subscriptions) = (self.aliases_of(primary), self.subscriptions.borrow());
        names.iter().any(|it| subscriptions.has_subscriber(&it.name, uri, holder))
    }
}
