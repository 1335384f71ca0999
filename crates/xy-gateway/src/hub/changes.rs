//! Who is told that a list is not what it was.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use xy_supervisor::instance::InstanceKey;

use super::Hub;
use crate::catalog::Kind;
use crate::client::{Client, Shown};
use crate::front::View;
use crate::server::Server;

/// How long changes of lists gather before clients are told.
const TELL_AFTER: Duration = Duration::from_millis(50);

impl Hub {
    /// Some lists may have changed; those who were shown others are told, a little later, so
    /// that a whole fleet that comes up is told once.
    pub(super) fn lists_changed(&self) {
        if self.is_telling.replace(true) {
            return;
        }
        let hub = self.me();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(TELL_AFTER).await;
            hub.is_telling.set(false);
            for client in hub.clients() {
                hub.tell_changes(&client);
            }
            hub.look_over_profiles();
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

    /// A server says that a list has changed, which clients may have seen before we did: they
    /// are told, whatever we find.
    pub(super) fn unseen_changed(&self, at: &InstanceKey, changed: &str) {
        let Some(home) = self.server(at.server.as_str()) else { return };
        let names = self.names_of(&home);
        let is_it = |name: &str| names.iter().any(|it| it.name.as_str() == name);
        for client in self.clients() {
            let is_seen = matches!(&client.entry().view, View::Server(it) if is_it(it));
            for kind in Kind::ALL.into_iter().filter(|kind| is_seen && kind.changed() == changed) {
                if client.was_shown(kind) == Shown::Unseen {
                    client.shows(kind, Shown::Other);
                }
            }
        }
    }

    /// What a client is shown of a list that its server itself is asked for.
    pub(crate) fn shown_plainly(&self, kind: Kind, client: &Client, server: &Server) -> Shown {
        let living = server.upstream(server.holder(client));
        if living.is_some_and(|upstream| upstream.known().is_none()) {
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
