//! Adding and removing servers.

use std::rc::Rc;
use std::sync::Arc;

use xy_config::settings::ServerSettings;

use super::Router;
use crate::backend::{Availability, Backend};
use crate::manifest::StoredState;

impl Router {
    /// Adds the servers that are new, with their stored manifests. Reading these may take a while;
    /// calls to other servers go on meanwhile.
    pub(crate) async fn restore_servers(
        &self,
        all: impl IntoIterator<Item = &Arc<ServerSettings>>,
    ) {
        let is_new = |it: &&Arc<ServerSettings>| self.server(it.name.as_str()).is_none();
        let new: Vec<_> = all.into_iter().filter(is_new).cloned().collect();
        if new.is_empty() {
            return;
        }
        for (settings, remembered) in self.manifests.load(new).await {
            self.ensure_server_with(&settings, remembered);
        }
    }

    /// Returns the server of a new instance. The instance may precede the configuration or outlive
    /// it: then the server is hidden until it is configured.
    pub(crate) async fn server_of_instance(&self, settings: &Arc<ServerSettings>) -> Rc<Backend> {
        let known = || self.server(settings.name.as_str());
        if let Some(server) = known() {
            return server;
        }
        let recalled = self.manifests.load(vec![settings.clone()]).await.pop();
        known().unwrap_or_else(|| {
            let server = self.ensure_server_with(settings, recalled.and_then(|it| it.1));
            server.is_removed.set(true);
            server
        })
    }

    /// Returns the server with these settings, adding it without a manifest if it is new.
    pub(crate) fn ensure_server(&self, settings: &Arc<ServerSettings>) -> Rc<Backend> {
        self.ensure_server_with(settings, None)
    }

    fn ensure_server_with(
        &self,
        settings: &Arc<ServerSettings>,
        remembered: Option<StoredState>,
    ) -> Rc<Backend> {
        self.server(settings.name.as_str()).unwrap_or_else(|| {
            let server = Backend::new(settings.clone(), remembered, self.queue_budget.clone());
            let waiting = server.counts().waiting.clone();
            self.status
                .send_modify(|status| drop(status.waiting.insert(server.name.clone(), waiting)));
            self.servers.borrow_mut().insert(server.name.clone(), server.clone());
            self.resolve_primaries(); // The server may be the primary of others.
            server
        })
    }

    /// Removes a server. As long as it has instances, it is only hidden.
    pub(crate) fn remove(&self, server: &Rc<Backend>) {
        if !server.has_instances() {
            self.servers.borrow_mut().remove(&server.name);
            self.subscriptions.borrow_mut().forget_server(&server.name);
            self.status.send_modify(|status| {
                status.waiting.remove(&server.name);
                status.unframed.remove(&server.name);
            });
            self.manifests.forget(&server.name);
            self.resolve_primaries();
        }
        server.reroute_waiting(); // Calls under a remaining alias wait for its next process.
        self.set_availability(server, Availability::Down("it has been removed".to_owned()));
    }
}
