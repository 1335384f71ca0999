//! Subscriptions at servers: watched resources, followed tasks and the log level.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use xy_mcp::edit::quoted;
use xy_mcp::era::Era;
use xy_mcp::level::Level;
use xy_protocol::error::CallError;
use xy_supervisor::instance::{Holder, InstanceKey};
use xy_upstream::connection::EventFilter;

use super::{RoutedClient, Router};
use crate::backend::Backend;
use crate::upstream::Upstream;

/// How long a server may take to start and to confirm a subscription.
const WATCH_TIMEOUT: Duration = Duration::from_secs(10);

impl Router {
    /// Raises the servers' log level to what a modern client requests. The level is never lowered
    /// again: each client filters for itself.
    pub(crate) fn raise_log_level(&self, level: Level) {
        let wanted = self.modern_level.get();
        if wanted.is_some_and(|wanted| wanted <= level) {
            return;
        }
        self.modern_level.set(Some(level));
        self.update_log_level();
    }

    /// Subscribes at a server to resources and to followed tasks; returns which of them the server
    /// confirms.
    pub(crate) async fn watch(
        &self,
        server: &Rc<Backend>,
        client: &dyn RoutedClient,
        uris: BTreeSet<String>,
    ) -> Result<Rc<EventFilter>, CallError> {
        let holder = server.primary_or_self().holder_of_call(client, client.era());
        let by = Instant::now() + WATCH_TIMEOUT;
        self.request_instance_for(server, holder);
        let upstream = self.wait_for_instance(server, holder, by).await;
        let upstream = upstream.ok_or_else(|| server.not_yet())?;
        upstream.mark_used();
        if upstream.era() == Era::Modern {
            let watched = self.watched(&server.primary_or_self(), holder);
            return upstream.listen_to(watched).await;
        }
        if !upstream.introduction().is_some_and(|it| it.abilities.subscribe) {
            return Ok(Rc::default());
        }
        let mut requests = Vec::new();
        for uri in uris {
            let params = format!(r#"{{"uri":{}}}"#, quoted(&uri));
            requests.push((uri, upstream.ask("resources/subscribe", Some(&params))?));
        }
        let mut watched = BTreeSet::new();
        for (uri, question) in requests {
            let answer = timeout_at(by, question.answer()).await;
            if let Ok(Ok(answer)) = answer
                && xy_upstream::connection::result_of(&answer).is_ok()
            {
                watched.insert(uri);
            }
        }
        Ok(Rc::new(EventFilter { uris: watched, ..EventFilter::default() }))
    }

    /// Waits until an instance is ready, but no longer than `by`.
    async fn wait_for_instance(
        &self,
        server: &Backend,
        holder: Holder,
        by: Instant,
    ) -> Option<Rc<Upstream>> {
        let mut changes = self.changes();
        loop {
            let living = server.upstream(holder);
            if living.is_some() || !server.is_shown() {
                return living;
            }
            timeout_at(by, changes.changed()).await.ok()?.ok()?;
        }
    }

    /// Ends a client's subscription to a resource.
    pub(crate) fn unwatch(&self, server: &Rc<Backend>, client: &dyn RoutedClient, uri: &str) {
        if self.unsubscribe(server, uri, client) {
            self.unsubscribe_instance(&server.primary_or_self(), server.holder(client), uri);
        }
    }

    /// Unsubscribes from a resource that no client watches any more.
    pub(super) fn unsubscribe_instance(&self, server: &Rc<Backend>, holder: Holder, uri: &str) {
        let Some(upstream) = server.upstream(holder) else { return };
        if upstream.era() == Era::Modern {
            // The change takes effect even if the future is dropped.
            return drop(upstream.listen_to(self.watched(server, holder)));
        }
        let params = format!(r#"{{"uri":{}}}"#, quoted(uri));
        super::detach(upstream.ask("resources/unsubscribe", Some(&params)));
    }

    /// Updates the followed tasks of these instances.
    pub(crate) fn update_followed_tasks(&self, at: BTreeSet<InstanceKey>) {
        for key in at {
            let Some(server) = self.server(key.server.as_str()) else { continue };
            if let Some(upstream) = server.upstream(key.holder).filter(|it| it.is_modern()) {
                drop(upstream.listen_to(self.watched(&server, key.holder)));
            }
        }
    }

    /// Returns what clients watch at an instance of this server, under all aliases.
    pub(crate) fn watched(&self, server: &Rc<Backend>, holder: Holder) -> EventFilter {
        let (names, subscriptions) = (self.aliases_of(server), self.subscriptions.borrow());
        let uris = names.iter().flat_map(|it| subscriptions.of(&it.name, holder)).collect();
        let at = InstanceKey { server: server.name.clone(), holder };
        EventFilter { uris, tasks: self.followed_tasks(&at) }
    }
}
