//! What modern clients and servers want to be told of each other: resources and tasks that are
//! watched, and how much is logged.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use xy_protocol::error::CallError;
use xy_supervisor::instance::{Holder, InstanceKey};

use super::Router;
use crate::backend::Backend;
use crate::client::Client;
use crate::era::Era;
use crate::level::Level;
use crate::names::quoted;
use crate::upstream::{Upstream, Wanted};

/// How long a server may take to be there, and to say whether a resource can be watched.
const WATCHED_WITHIN: Duration = Duration::from_secs(10);

impl Router {
    /// A modern client wants to know so much of what servers log. They go on with it: whoever
    /// wants to know less is told less.
    pub(crate) fn wants_level(&self, level: Level) {
        let wanted = self.modern_level.get();
        if wanted.is_some_and(|wanted| wanted <= level) {
            return;
        }
        self.modern_level.set(Some(level));
        self.tune();
    }

    /// Has resources of a server watched, which are among those that are, and tasks of it that
    /// clients listen to; answers which can be.
    pub(crate) async fn watch(
        &self,
        server: &Rc<Backend>,
        client: &Rc<Client>,
        uris: BTreeSet<String>,
    ) -> Result<Rc<Wanted>, CallError> {
        let holder = server.primary_or_self().holder_of_call(client, client.era());
        let by = Instant::now() + WATCHED_WITHIN;
        self.want_for(server, holder);
        let upstream = self.once_there(server, holder, by).await;
        let upstream = upstream.ok_or_else(|| server.not_yet())?;
        upstream.mark_used();
        if upstream.era() == Era::Modern {
            let watched = self.watched(&server.primary_or_self(), holder);
            return upstream.listen_to(watched).await;
        }
        if !upstream.introduction().is_some_and(|it| it.abilities.subscribe) {
            return Ok(Rc::default());
        }
        let mut asked = Vec::new();
        for uri in uris {
            let params = format!(r#"{{"uri":{}}}"#, quoted(&uri));
            asked.push((uri, upstream.ask("resources/subscribe", Some(&params))?));
        }
        let mut watched = BTreeSet::new();
        for (uri, question) in asked {
            let answer = timeout_at(by, question.answer()).await;
            if let Ok(Ok(answer)) = answer
                && crate::upstream::result_of(&answer).is_ok()
            {
                watched.insert(uri);
            }
        }
        Ok(Rc::new(Wanted { uris: watched, ..Wanted::default() }))
    }

    /// An instance, as soon as it can be asked, if that is by then.
    async fn once_there(
        &self,
        server: &Backend,
        holder: Holder,
        by: Instant,
    ) -> Option<Rc<Upstream>> {
        let mut news = self.news();
        loop {
            let living = server.upstream(holder);
            if living.is_some() || !server.is_shown() {
                return living;
            }
            timeout_at(by, news.changed()).await.ok()?.ok()?;
        }
    }

    /// Nobody of this client watches a resource any more.
    pub(crate) fn unwatch(&self, server: &Rc<Backend>, client: &Client, uri: &str) {
        if self.unsubscribe(server, uri, client) {
            self.unwatched(&server.primary_or_self(), server.holder(client), uri);
        }
    }

    /// Nobody watches a resource any more.
    pub(super) fn unwatched(&self, server: &Rc<Backend>, holder: Holder, uri: &str) {
        let Some(upstream) = server.upstream(holder) else { return };
        if upstream.era() == Era::Modern {
            // The wish stands, and nobody waits for it.
            return drop(upstream.listen_to(self.watched(server, holder)));
        }
        let params = format!(r#"{{"uri":{}}}"#, quoted(uri));
        super::detach(upstream.ask("resources/unsubscribe", Some(&params)));
    }

    /// Nobody listens any more to tasks that these instances may work on.
    pub(crate) fn follows_no_more(&self, at: BTreeSet<InstanceKey>) {
        for key in at {
            let Some(server) = self.server(key.server.as_str()) else { continue };
            if let Some(upstream) = server.upstream(key.holder).filter(|it| it.is_modern()) {
                drop(upstream.listen_to(self.watched(&server, key.holder)));
            }
        }
    }

    /// What is watched at an instance of this server, under all of its names.
    pub(crate) fn watched(&self, server: &Rc<Backend>, holder: Holder) -> Wanted {
        let (names, subscriptions) = (self.names_of(server), self.subscriptions.borrow());
        let uris = names.iter().flat_map(|it| subscriptions.of(&it.name, holder)).collect();
        let at = InstanceKey { server: server.name.clone(), holder };
        Wanted { uris, tasks: self.followed_at(&at) }
    }
}
