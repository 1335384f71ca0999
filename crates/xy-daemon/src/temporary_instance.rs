//! A temporary instance that the daemon starts for itself: for one request of a user, or for the
//! self-test.

use tokio::runtime::Handle;
use xy_protocol::server::ServerName;
use xy_supervisor::fleet::{Fleet, HoldError};
use xy_supervisor::instance::{Holder, InstanceHandle};
use xy_supervisor::lifecycle::State;

use crate::daemon::Daemon;

/// The first client id of the gateway, which puts the daemon's pid in the upper half of its ids.
const FIRST_GATEWAY_CLIENT_ID: u64 = 1 << 32;

/// Returns true if a client is the daemon itself.
pub(crate) fn is_daemon_client(client: u64) -> bool {
    client < FIRST_GATEWAY_CLIENT_ID
}

/// An instance of a server with `isolation "client"` whose client is the daemon. Dropping it
/// releases the instance.
pub(crate) struct TemporaryInstance {
    fleet: Fleet,
    instance: InstanceHandle,
    client: u64,
}

impl TemporaryInstance {
    /// Starts an instance if there is room for it, without evicting an instance of a client.
    pub(crate) async fn start(daemon: &Daemon, server: &ServerName) -> Result<Self, HoldError> {
        let client = daemon.next_subscription_id() % FIRST_GATEWAY_CLIENT_ID;
        let fleet = daemon.fleet.clone();
        let instance = fleet.hold_if_room(server, Holder::Client(client)).await?;
        Ok(Self { fleet, instance, client })
    }

    /// Returns the instance.
    pub(crate) fn handle(&self) -> &InstanceHandle {
        &self.instance
    }

    /// Releases the instance, and waits until it has ended.
    pub(crate) async fn end(self) {
        let instance = self.instance.clone();
        drop(self);
        instance.wait_until(|now| now.life.state == State::Retired).await;
    }
}

impl Drop for TemporaryInstance {
    fn drop(&mut self) {
        // Without a runtime, all servers are ending.
        let Ok(runtime) = Handle::try_current() else { return };
        let (fleet, client) = (self.fleet.clone(), self.client);
        let server = self.instance.key().server.clone();
        runtime.spawn(async move { fleet.release(&server, client).await });
    }
}
