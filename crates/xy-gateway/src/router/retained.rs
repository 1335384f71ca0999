//! The retained counts: number and size of everything the gateway keeps that can grow.

use xy_transport::retained::Retained;

use super::Router;

/// Counts that are reported as zero when there are no clients.
const OF_CLIENTS: [&str; 6] = [
    "client_batches",
    "client_listens",
    "client_questions",
    "client_requests",
    "client_subscriptions",
    "client_tasks",
];

impl Router {
    /// Counts everything that the gateway keeps.
    pub(crate) fn retained_counts(&self) -> Retained {
        let mut counts = Retained::default();
        for what in OF_CLIENTS {
            counts.add(what, 0);
        }
        counts.add("clients", self.clients.borrow().len());
        // Exceeds `clients` only while something still holds a closed client.
        counts.add("clients_in_memory", self.clients_alive.get());
        for client in self.clients() {
            client.count(&mut counts);
        }
        counts.add("servers", self.servers.borrow().len());
        for server in self.servers() {
            server.count(&mut counts);
        }
        self.subscriptions.borrow().count(&mut counts);
        self.ownership.borrow().count(&mut counts);
        self.pending_inputs.count(&mut counts);
        counts.add("client_groups", self.groups.borrow().len());
        counts.add("request_copies_bytes", self.stored_requests.held());
        counts.add("manifests", self.manifests.len());
        counts.add("profiles", self.scopes.borrow().len());
        counts.add("search_layers", self.indexed.borrow().len());
        counts.add(
            "warnings",
            self.unmatched_lines.borrow().len() + self.limit_warnings.borrow().len(),
        );
        counts
    }
}
