//! Notifications of changed lists.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;

use xy_http::frontend::View;
use xy_mcp::kind::Kind;

use super::{ListVersion, RoutedClient, Router};
use crate::backend::Backend;
use crate::upstream::Upstream;

/// Delay in which list changes are collected before clients are notified.
const NOTIFY_DELAY: Duration = Duration::from_millis(50);

impl Router {
    /// Schedules a notification of clients whose lists have changed. The delay makes a whole fleet
    /// that starts one notification.
    pub(super) fn lists_changed(&self) {
        if self.is_notify_scheduled.replace(true) {
            return;
        }
        let router = self.me();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(NOTIFY_DELAY).await;
            router.is_notify_scheduled.set(false);
            for client in router.clients() {
                router.notify_changed_lists(&*client);
            }
            router.check_profiles();
        });
    }

    /// Notifies a client of each list that differs from the version it knows.
    fn notify_changed_lists(&self, client: &dyn RoutedClient) {
        let mut notified: Vec<&str> = Vec::new();
        for kind in Kind::ALL {
            let now = ListVersion::Fingerprint(self.fingerprint(kind, client));
            let shown = match (client.list_version(kind), &client.entry().view) {
                // The client may have the list that xy has now read; otherwise the server notifies
                // it.
                (ListVersion::Unknown, View::Server(name)) => {
                    let server = self.server(name);
                    let shown = server.map(|server| self.plain_list_version(kind, client, &server));
                    client.set_list_version(kind, shown.unwrap_or_default());
                    continue;
                }
                (shown, _) => shown,
            };
            if shown != ListVersion::NotListed && shown != now {
                client.set_list_version(kind, now);
                if !notified.contains(&kind.changed_method()) {
                    notified.push(kind.changed_method());
                    client.notify_list_changed(kind.changed_method());
                }
            }
        }
    }

    /// Forwards a server's change notification to the clients of its own endpoint, as they would
    /// get it without xy.
    pub(super) fn forward_list_changed(&self, by: &Rc<Upstream>, changed: &str, line: &[u8]) {
        for client in self.clients() {
            if !self.is_at_endpoint_of(&*client, by) {
                continue;
            }
            client.forward_list_changed(changed, line);
            for kind in Kind::ALL.into_iter().filter(|kind| kind.changed_method() == changed) {
                client.set_list_version(kind, ListVersion::NotListed); // The client will ask again.
            }
        }
    }

    /// Returns true if the client uses the endpoint of this instance's server and is served by it.
    fn is_at_endpoint_of(&self, client: &dyn RoutedClient, instance: &Rc<Upstream>) -> bool {
        let View::Server(name) = &client.entry().view else { return false };
        let Some(server) = self.server(name).filter(|it| !it.is_hidden()) else { return false };
        let living = server.upstream(server.holder(client));
        living.is_some_and(|it| Rc::ptr_eq(&it, instance)) && client.check_bound(name).is_ok()
    }

    /// Returns the version of a list that the client gets from its server directly.
    pub(crate) fn plain_list_version(
        &self,
        kind: Kind,
        client: &dyn RoutedClient,
        server: &Backend,
    ) -> ListVersion {
        let living = server.upstream(server.holder(client));
        if living.is_some_and(|upstream| upstream.is_stale()) {
            return ListVersion::Unknown;
        }
        ListVersion::Fingerprint(self.fingerprint(kind, client))
    }

    /// Returns a fingerprint that differs whenever the client's list does.
    pub(crate) fn fingerprint(&self, kind: Kind, client: &dyn RoutedClient) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (name, server) in self.servers.borrow().iter() {
            let is_seen = match &client.entry().view {
                View::Profile(_) | View::All => true,
                View::Server(only) => only == name.as_str(),
            };
            if let Some(known) = server.shown_to(client).filter(|_| is_seen) {
                (name, known.fingerprint(kind)).hash(&mut hasher);
            }
        }
        if client.scope().is_some() {
            client.own_tools(kind).iter().for_each(|own| own.name.hash(&mut hasher));
        }
        hasher.finish()
    }
}
