//! Who is told that a list is not what it was.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;

use super::Router;
use crate::backend::Backend;
use crate::catalog::Kind;
use crate::client::{Client, Shown};
use crate::frontend::View;
use crate::upstream::Upstream;

/// How long changes of lists gather before clients are told.
const TELL_AFTER: Duration = Duration::from_millis(50);

impl Router {
    /// Some lists may have changed; those who were shown others are told, a little later, so
    /// that a whole fleet that comes up is told once.
    pub(super) fn lists_changed(&self) {
        if self.is_telling.replace(true) {
            return;
        }
        let router = self.me();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(TELL_AFTER).await;
            router.is_telling.set(false);
            for client in router.clients() {
                router.tell_changes(&client);
            }
            router.look_over_profiles();
        });
    }

    /// Tells a client which lists are not what it was shown.
    fn tell_changes(&self, client: &Client) {
        let mut told: Vec<&str> = Vec::new();
        for kind in Kind::ALL {
            let now = Shown::Print(self.print(kind, client));
            let shown = match (client.was_shown(kind), &client.entry().view) {
                // It may have seen what we know now: if not, the server says so.
                (Shown::Unseen, View::Server(name)) => {
                    let server = self.server(name);
                    let shown = server.map(|server| self.shown_plainly(kind, client, &server));
                    client.shows(kind, shown.unwrap_or_default());
                    continue;
                }
                (shown, _) => shown,
            };
            if shown != Shown::Nothing && shown != now {
                client.shows(kind, now);
                if !told.contains(&kind.changed()) {
                    told.push(kind.changed());
                    client.tell_changed(kind.changed());
                }
            }
        }
    }

    /// Passes a server's word that a list has changed on to the clients of its own endpoint, who
    /// hear the same as without xy.
    pub(super) fn pass_changed(&self, by: &Rc<Upstream>, changed: &str, line: &[u8]) {
        for client in self.clients() {
            if !self.is_at_endpoint_of(&client, by) {
                continue;
            }
            client.pass_changed(changed, line);
            for kind in Kind::ALL.into_iter().filter(|kind| kind.changed() == changed) {
                client.shows(kind, Shown::Nothing); // It knows that it has to ask again.
            }
        }
    }

    /// Returns true if a client is at the endpoint of the server of which this is an instance,
    /// and is served by that instance.
    fn is_at_endpoint_of(&self, client: &Client, instance: &Rc<Upstream>) -> bool {
        let View::Server(name) = &client.entry().view else { return false };
        let Some(server) = self.server(name).filter(|it| !it.is_hidden()) else { return false };
        let living = server.upstream(server.holder(client));
        living.is_some_and(|it| Rc::ptr_eq(&it, instance)) && client.check_bound(name).is_ok()
    }

    /// What a client is shown of a list that its server itself is asked for.
    pub(crate) fn shown_plainly(&self, kind: Kind, client: &Client, server: &Backend) -> Shown {
        let living = server.upstream(server.holder(client));
        if living.is_some_and(|upstream| upstream.is_stale()) {
            return Shown::Unseen;
        }
        Shown::Print(self.print(kind, client))
    }

    /// Differs whenever a list does that a client is shown.
    pub(crate) fn print(&self, kind: Kind, client: &Client) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (name, server) in self.servers.borrow().iter() {
            let is_seen = match &client.entry().view {
                View::Profile(_) | View::All => true,
                View::Server(only) => only == name.as_str(),
            };
            if let Some(known) = server.shown_to(client).filter(|_| is_seen) {
                (name, known.print(kind)).hash(&mut hasher);
            }
        }
        if client.scope().is_some() {
            client.own_tools(kind).iter().for_each(|own| own.name.hash(&mut hasher));
        }
        hasher.finish()
    }
}
