//! An instance that the daemon starts for itself: for one request of a person, or for the
//! self-test. It ends with that.

use tokio::runtime::Handle;
use xy_protocol::server::ServerName;
use xy_supervisor::fleet::{Fleet, HoldError};
use xy_supervisor::instance::{Holder, InstanceHandle};
use xy_supervisor::lifecycle::State;

use crate::daemon::Daemon;

/// The gateway's clients have numbers from here on: the daemon's pid is in the upper half.
const FIRST_OF_GATEWAY: u64 = 1 << 32;

/// Returns true if a client is the daemon itself.
pub(crate) fn is_own(client: u64) -> bool {
    client < FIRST_OF_GATEWAY
}

/// An instance of a server with `isolation "client"` whose client is the daemon.
pub(crate) struct OwnInstance {
    fleet: Fleet,
    instance: InstanceHandle,
    client: u64,
}

impl OwnInstance {
    /// Starts one, if there is room for it: none that others use has to go.
    pub(crate) async fn start(daemon: &Daemon, server: &ServerName) -> Result<Self, HoldError> {
        let client = daemon.new_subscription() % FIRST_OF_GATEWAY;
        let fleet = daemon.fleet.clone();
        let instance = fleet.hold_if_room(server, Holder::Client(client)).await?;
        Ok(Self { fleet, instance, client })
    }

    /// Returns the instance.
    pub(crate) fn handle(&self) -> &InstanceHandle {
        &self.instance
    }

    /// Ends the instance; resolves when it is gone.
    pub(crate) async fn end(self) {
        let instance = self.instance.clone();
        drop(self);
        instance.wait_until(|now| now.life.state == State::Retired).await;
    }
}

impl Drop for OwnInstance {
    fn drop(&mut self) {
        let Ok(runtime) = Handle::try_current() else { return }; // All servers end with it.
        let (fleet, client) = (self.fleet.clone(), self.client);
        let server = self.instance.key().server.clone();
        runtime.spawn(async move { fleet.release(&server, client).await });
    }
}
