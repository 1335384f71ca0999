//! What the gateway needs of the daemon around it.

use std::future::Future;
use std::pin::Pin;

use xy_protocol::control::Request;
use xy_protocol::error::CallError;
use xy_protocol::server::ServerName;
use xy_supervisor::instance::Holder;

/// Something that takes time.
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// An MCP client that manages servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asker {
    /// What it calls itself, if it has said.
    pub client: Option<String>,
    /// The token that it came in with over HTTP, by its id; `None` at the local socket.
    pub token: Option<u64>,
}

/// The daemon, as the gateway sees it.
pub trait Control: Send + Sync + 'static {
    /// Does what could be asked on the control socket; the result as it would be there.
    fn call(&self, request: Request) -> Later<Result<serde_json::Value, CallError>>;

    /// Does what a managing client asks for, and records which client that is.
    fn manage(&self, _by: Asker, request: Request) -> Later<Result<serde_json::Value, CallError>> {
        self.call(request)
    }

    /// Has an instance of `server` be there, for one client alone or for all.
    fn hold(&self, server: &ServerName, holder: Holder) -> Later<Result<(), CallError>>;

    /// That client has gone.
    fn release(&self, server: &ServerName, client: u64) -> Later<()>;
}
