//! Which daemons stand before and behind the servers, so that no daemon serves itself.

use std::rc::Rc;

use super::Hub;
use crate::client::Client;
use crate::front::View;
use crate::server::Server;
use crate::upstream::Upstream;
use crate::via::Daemons;

impl Hub {
    /// This daemon.
    pub(crate) fn this_daemon(&self) -> &Daemons {
        &self.this_daemon
    }

    /// The daemons that are served by an instance: this one, and those among its clients.
    pub(super) fn daemons_before(&self, upstream: &Upstream) -> Daemons {
        let mut all = self.this_daemon.clone();
        for client in self.clients.borrow().values() {
            if let Some(daemons) = client.daemons()
                && client.reaches(upstream.key().server.as_str())
            {
                all.add(&daemons);
            }
        }
        all
    }

    /// The daemons that a client reaches: this one, and those behind the servers it is shown.
    pub(crate) fn daemons_behind(&self, client: &Client) -> Daemons {
        let servers = match &client.entry().view {
            View::Server(name) => self.server(name).into_iter().collect(),
            View::Profile(_) | View::All => self.servers_of(client),
        };
        let mut all = self.this_daemon.clone();
        for server in servers.iter().filter(|server| server.is_shown()) {
            server.known.borrow().iter().for_each(|it| all.add(&it.introduction.behind));
            for living in server.all_upstreams() {
                living.introduction().iter().for_each(|it| all.add(&it.behind));
            }
        }
        all
    }

    /// Forgets what a server offers that leads back here.
    pub(crate) fn hide_loop(&self, server: &Rc<Server>) {
        server.forget_lists();
        self.lists_changed();
        self.tell_news();
    }
}

/// An id that no other daemon has.
pub(super) fn new_id() -> String {
    let mut bits = [0; 16];
    if getrandom::fill(&mut bits).is_err() {
        let pid = u128::from(std::process::id());
        let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        bits = (nanos ^ (pid << 96)).to_ne_bytes();
    }
    format!("{:032x}", u128::from_ne_bytes(bits))
}
