//! Everything that the gateway keeps and that grows, counted.

use super::Router;
use crate::retained::Retained;

/// What is counted of those who may not be there: nothing is told as nothing.
const OF_CLIENTS: [&str; 6] = [
    "client_batches",
    "client_listens",
    "client_questions",
    "client_requests",
    "client_subscriptions",
    "client_tasks",
];

impl Router {
    /// How much of everything there is.
    pub(crate) fn census(&self) -> Retained {
        let mut census = Retained::default();
        for what in OF_CLIENTS {
            census.add(what, 0);
        }
        census.add("clients", self.clients.borrow().len());
        // More than those are in memory only if something still holds one that has gone.
        census.add("clients_in_memory", self.clients_alive.get());
        for client in self.clients() {
            client.count(&mut census);
        }
        census.add("servers", self.servers.borrow().len());
        for server in self.servers() {
            server.count(&mut census);
        }
        self.subscriptions.borrow().count(&mut census);
        self.owners.borrow().count(&mut census);
        self.parked.count(&mut census);
        census.add("houses", self.groups.borrow().len());
        census.add("request_copies_bytes", self.kept.get());
        census.add("manifests", self.manifests.len());
        census.add("profiles", self.scopes.borrow().len());
        census.add("search_layers", self.indexed.borrow().len());
        census.add("warnings", self.idle_lines.borrow().len() + self.crowded.borrow().len());
        census
    }
}
