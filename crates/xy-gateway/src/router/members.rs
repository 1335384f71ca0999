//! Servers come and go.

use std::rc::Rc;
use std::sync::Arc;

use xy_config::settings::ServerSettings;

use super::Router;
use crate::backend::{Availability, Backend};
use crate::manifest::Remembered;

impl Router {
    /// Makes those of them known here that are new, with what is remembered of each. That is on
    /// disk, which may take its time: calls to others go on meanwhile.
    pub(crate) async fn recall(&self, all: impl IntoIterator<Item = &Arc<ServerSettings>>) {
        let is_new = |it: &&Arc<ServerSettings>| self.server(it.name.as_str()).is_none();
        let new: Vec<_> = all.into_iter().filter(is_new).cloned().collect();
        if new.is_empty() {
            return;
        }
        for (settings, remembered) in self.manifests.recall(new).await {
            self.server_with(&settings, remembered);
        }
    }

    /// The server of a life that begins. It may be over by now, and the server removed, or nobody
    /// has told us of it yet; whoever does says that it is there.
    pub(crate) async fn server_of_life(&self, settings: &Arc<ServerSettings>) -> Rc<Backend> {
        let known = || self.server(settings.name.as_str());
        if let Some(server) = known() {
            return server;
        }
        let recalled = self.manifests.recall(vec![settings.clone()]).await.pop();
        known().unwrap_or_else(|| {
            let server = self.server_with(settings, recalled.and_then(|it| it.1));
            server.is_removed.set(true);
            server
        })
    }

    /// The server with these settings; of one that is new here nothing is remembered.
    pub(crate) fn server_of(&self, settings: &Arc<ServerSettings>) -> Rc<Backend> {
        self.server_with(settings, None)
    }

    fn server_with(
        &self,
        settings: &Arc<ServerSettings>,
        remembered: Option<Remembered>,
    ) -> Rc<Backend> {
        self.server(settings.name.as_str()).unwrap_or_else(|| {
            let server = Backend::new(settings.clone(), remembered, self.lot.clone());
            let waiting = server.counts.waiting.clone();
            self.seen.send_modify(|seen| drop(seen.waiting.insert(server.name.clone(), waiting)));
            self.servers.borrow_mut().insert(server.name.clone(), server.clone());
            self.find_homes(); // It may be that of others.
            server
        })
    }

    /// A server is there no more, or not yet: its first instance may speak before anybody has
    /// told us of it. As long as it has one it is only hidden.
    pub(crate) fn remove(&self, server: &Rc<Backend>) {
        if !server.has_instances() {
            self.servers.borrow_mut().remove(&server.name);
            self.subscriptions.borrow_mut().forget_server(&server.name);
            self.seen.send_modify(|seen| {
                seen.waiting.remove(&server.name);
                seen.unframed.remove(&server.name);
            });
            self.manifests.forget(&server.name);
            self.find_homes();
        }
        server.find_others(); // Who asked under a name that stays waits for its next process.
        self.set_availability(server, Availability::Down("it has been removed".to_owned()));
    }
}
