//! Fair shares of limited resources, so that no token locks out others.
//!
//! Local clients belong to the user and have no token. Without tokens, all HTTP clients look alike.
//! Neither has a share.

use std::rc::Rc;

use xy_http::HttpStatus as _;
use xy_protocol::server::ServerName;
use xy_supervisor::fleet::MAX_CLIENT_INSTANCES;
use xy_supervisor::instance::Holder;
use xy_transport::share::TokenUse;
use xy_upstream::fault::ServerFault;

use super::Router;
use crate::backend::{Backend, QueuedCall};
use crate::limit_hits::limit_of;

impl Router {
    #[cfg(test)]
    pub(crate) fn limit_hits(&self, now: tokio::time::Instant) -> Vec<crate::LimitHit> {
        self.status.borrow().limit_hits.recent(now)
    }

    /// Sets the maximum number of instances.
    pub(crate) fn set_instances_max(&self, most: usize) {
        self.instances_max.set(most);
    }

    /// Checks that a client's token may have one more isolated instance.
    pub(super) fn check_instance_share(
        &self,
        server: &ServerName,
        holder: Holder,
    ) -> Result<(), ServerFault> {
        let Holder::Client(number) = holder else { return Ok(()) };
        let Some(token) = self.token_of(number) else { return Ok(()) };
        // All other holders: the new one is already among them.
        let others = |it: &Rc<Backend>| -> Vec<Holder> {
            let is_it = |other: &Holder| it.name == *server && *other == holder;
            it.holders().into_iter().filter(|other| !is_it(other)).collect()
        };
        let all: Vec<Holder> = self.servers().iter().flat_map(others).collect();
        let here = self.server(server.as_str()).map(|it| others(&it)).unwrap_or_default();
        let here: Vec<Holder> = here.into_iter().filter(|it| it.is_client()).collect();
        let is_own = |holder: &&Holder| match holder {
            Holder::Client(number) => self.token_of(*number).is_some_and(|it| it.id == token.id),
            Holder::Shared | Holder::Era(_) => false,
        };
        // The limits on all instances, and on the isolated instances of one server.
        let bounds = [(all, self.instances_max.get()), (here, MAX_CLIENT_INSTANCES)];
        let full = bounds.iter().find_map(|(there, most)| {
            let own = there.iter().filter(is_own).count();
            (!token.may_take(own, there.len(), *most)).then_some((own, most))
        });
        let Some((own, most)) = full else { return Ok(()) };
        Err(ServerFault::InstanceShare { own, most: *most })
    }

    /// Records that a limit refused an instance, if that is what `fault` reports: to its client, or
    /// to the clients whose calls wait for it.
    pub(super) fn record_refused_instance(
        &self,
        holder: Holder,
        waiting: &[QueuedCall],
        fault: &ServerFault,
    ) {
        let own = match holder {
            Holder::Client(number) => self.token_of(number),
            Holder::Shared | Holder::Era(_) => None,
        };
        if let (Some(limit), Some(token)) = (limit_of(fault), own) {
            return self.limit_hit(limit, Some(token.id));
        }
        for call in waiting {
            call.client.record_limit(fault);
        }
    }

    /// Returns the token of a client or of a client group.
    fn token_of(&self, number: u64) -> Option<TokenUse> {
        if let Some(client) = self.client(number) {
            return Some(client.token());
        }
        let groups = self.groups.borrow();
        let id = groups.values().find(|it| it.number == number)?.token;
        Some(TokenUse { id })
    }
}
