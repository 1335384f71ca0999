//! Servers that are one process under several names.
//!
//! One of them owns the instances, and is the *home* of the others. What is asked under a name
//! goes to the home's instances, waits in the home's queue, and is done by its rules; but the
//! name goes with it (`asked`), and everything that comes back is in the words of that name:
//! results, updates of resources, tasks, errors. So a client cannot tell which name the owner is.

use std::collections::BTreeSet;
use std::rc::Rc;

use xy_supervisor::fleet::{Member, Roster};
use xy_supervisor::instance::Holder;

use super::Router;
use crate::backend::{Backend, STOPPED};
use crate::upstream::Upstream;

impl Router {
    /// All names under which the instances of this server can be asked now, its own among them.
    pub(crate) fn names_of(&self, home: &Rc<Backend>) -> Vec<Rc<Backend>> {
        let servers = self.servers.borrow();
        let names = servers.values().filter(|it| !it.is_hidden() && home.is_home_of(it));
        names.cloned().collect()
    }

    /// Whose instances each of these servers has, and which of their names are down.
    pub(crate) fn set_owners(&self, roster: &Roster) {
        let found = |member: &'_ Member| self.server(member.settings.name.as_str());
        let has_news = |member: &Member| {
            found(member)
                .is_some_and(|it| it.follows_anew(member.owner.as_ref(), member.is_hidden()))
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
        self.find_homes();
        for server in self.servers() {
            if server.is_hidden() {
                server.primary_or_self().give_up_all_as(&server, STOPPED);
            }
        }
        self.watch_anew(&watched);
        self.tell_spoken();
        self.lists_changed();
        self.tell_news();
    }

    /// Servers have come or gone, or have another owner: each finds its home. One that has a new
    /// home offers what that does.
    pub(super) fn find_homes(&self) {
        for server in self.servers() {
            let home = server.owner().and_then(|owner| self.server(owner.as_str()));
            server.set_home(home.as_ref());
            let known = home.and_then(|home| home.known.borrow().clone());
            if let Some(known) = known {
                server.known.replace(Some(known.under(&server.name)));
            }
        }
    }

    /// What is watched at each instance that can be asked.
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

    /// Names are other instances' than before: each hears what is watched there by now.
    fn watch_anew(&self, before: &[(Rc<Upstream>, BTreeSet<String>)]) {
        for (upstream, before) in before {
            let Some(server) = self.server(upstream.key().server.as_str()) else { continue };
            let holder = upstream.key().holder;
            let now = self.watched(&server, holder).uris;
            for uri in before.difference(&now) {
                self.unwatched(&server, holder, uri);
            }
            if now.difference(before).next().is_some() {
                self.restore_watched(&server, upstream);
            }
        }
    }

    /// Whether anybody watches a resource at this instance, under whichever name.
    pub(super) fn is_watched(&self, home: &Rc<Backend>, holder: Holder, uri: &str) -> bool {
        let (names, subscriptions) = (self.names_of(home), self.subscriptions.borrow());
        names.iter().any(|it| subscriptions.is_watched(&it.name, uri, holder))
    }
}
