//! The interface of the daemon to the gateway.

use std::future::Future;
use std::pin::Pin;

use xy_protocol::control::Request;
use xy_protocol::error::CallError;
use xy_protocol::server::ServerName;
use xy_supervisor::instance::Holder;
use xy_upstream::fault::ServerFault;

/// A boxed future that can move between threads.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// An MCP client that manages servers, for the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requester {
    /// The name from its `clientInfo`.
    pub client: Option<String>,
    /// The id of its HTTP token; `None` for local clients.
    pub token: Option<u64>,
}

/// The daemon, as the gateway uses it.
pub trait Control: Send + Sync + 'static {
    /// Executes a request of the control socket.
    fn call(&self, request: Request) -> BoxFuture<Result<serde_json::Value, CallError>>;

    /// Executes a request of a managing client, and records that client.
    fn manage(
        &self,
        _by: Requester,
        request: Request,
    ) -> BoxFuture<Result<serde_json::Value, CallError>> {
        self.call(request)
    }

    /// Starts the instance of a holder, unless it runs.
    fn hold(&self, server: &ServerName, holder: Holder) -> BoxFuture<Result<(), ServerFault>>;

    /// Releases the instance of a client that is gone.
    fn release(&self, server: &ServerName, client: u64) -> BoxFuture<()>;
}
