//! Loop protection: tracks the daemons before and behind the servers, so that no daemon serves
//! itself.

use std::rc::Rc;

use xy_http::frontend::View;
use xy_mcp::via::{self, Daemons, Horizon, Via};
use xy_protocol::server::ServerName;

use super::{RoutedClient, Router};
use crate::backend::Backend;
use crate::upstream::Upstream;

impl Router {
    /// Returns the id of this daemon.
    pub(crate) fn this_daemon(&self) -> &Daemons {
        &self.this_daemon
    }

    /// Returns the daemons that an instance serves: this one, and those among its clients.
    pub(super) fn daemons_before(&self, upstream: &Upstream) -> Via {
        let mut all = Via::of(&self.this_daemon);
        for client in self.clients.borrow().values() {
            if let Some(via) = client.via()
                && client.reaches(upstream.key().server.as_str())
            {
                all.add_client(&via);
            }
        }
        all
    }

    /// Returns true if the requests of a client lead back to the daemon that sends them.
    pub(crate) fn is_loop(&self, client: &dyn RoutedClient, via: &Via) -> bool {
        let servers = self.servers.borrow();
        let claims = servers.values().map(|server| claim(server));
        via.is_loop(&self.this_daemon, &self.daemons_behind(client), claims)
    }

    /// Returns the daemons that a client reaches: this one, and those behind the visible servers.
    pub(crate) fn daemons_behind(&self, client: &dyn RoutedClient) -> Daemons {
        match &client.entry().view {
            View::Server(name) => {
                let mut all = self.this_daemon.clone();
                let server = self.server(name).filter(|server| server.is_shown());
                if let Some(server) = server {
                    all.add(&claim(&server));
                }
                all
            }
            View::Profile(_) | View::All => self.horizon(client).behind,
        }
    }

    /// Returns true if a server is hidden from a client daemon, since the server claims to lead
    /// back to it.
    pub(crate) fn is_beyond_horizon(&self, client: &dyn RoutedClient, server: &str) -> bool {
        client.is_daemon()
            && self.server(server).is_some_and(|it| !claim(&it).is_empty())
            && self.horizon(client).hidden.contains(server)
    }

    fn horizon(&self, client: &dyn RoutedClient) -> Horizon<ServerName> {
        let servers = self.servers.borrow();
        let is_shown = |it: &&Rc<Backend>| it.is_shown() && client.reaches(it.name.as_str());
        let claims = servers.values().filter(is_shown).map(|it| (it.name.clone(), claim(it)));
        let claims = claims.filter(|(_, claim)| !claim.is_empty()).collect();
        via::horizon(&self.this_daemon, client.via().unwrap_or_default().asker(), claims)
    }

    /// Forgets the lists of a server that leads back to this daemon.
    pub(crate) fn hide_loop(&self, server: &Rc<Backend>) {
        server.forget_lists();
        self.lists_changed();
        self.notify_change();
    }
}

/// Returns the daemons that a server says are behind it.
fn claim(server: &Backend) -> Daemons {
    let mut all = Daemons::default();
    server.known.borrow().iter().for_each(|it| all.add(&it.introduction.behind));
    for living in server.all_upstreams() {
        living.introduction().iter().for_each(|it| all.add(&it.behind));
    }
    all
}

/// Returns a random daemon id.
pub(super) fn new_id() -> String {
    let mut bits = [0; 16];
    if getrandom::fill(&mut bits).is_err() {
        let pid = u128::from(std::process::id());
        let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        bits = (nanos ^ (pid << 96)).to_ne_bytes();
    }
    format!("{:032x}", u128::from_ne_bytes(bits))
}
