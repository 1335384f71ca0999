//! Errors of fleet operations.

use xy_protocol::server::ServerName;

use super::{MAX_CLIENT_INSTANCES, MAX_SERVERS, NoRoom};

/// Why a client gets no instance.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// The server does not exist.
    #[error("there is no such server")]
    Unknown,
    /// An operator stopped the server.
    #[error("it was stopped, and stays stopped until it is started")]
    Stopped,
    /// The server has no shared instance, as each client has its own.
    #[error("each client has an instance of its own, and there is no shared one")]
    NoSharedInstance,
    /// The server has the maximum number of client instances.
    #[error("it has {MAX_CLIENT_INSTANCES} instances for other clients, which is the maximum")]
    Full,
    /// All servers together have the maximum number of instances, or use too much memory.
    #[error("{0}")]
    NoRoom(NoRoom),
    /// The instance of another client listens on the port of the server.
    #[error("its port is in use by the instance of another client")]
    PortTaken,
    /// The daemon is ending.
    #[error("the daemon is shutting down")]
    Closed,
}

/// Why a server was not added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// A server of that name exists.
    #[error("there is a server of that name")]
    Exists,
    /// Another server uses its port.
    #[error("port {port} is used by server `{by}`")]
    PortTaken {
        /// The port.
        port: u16,
        /// The server that uses it.
        by: ServerName,
    },
    /// There is the maximum number of servers.
    #[error("there are {MAX_SERVERS} servers, which is the maximum")]
    Full,
    /// The daemon is ending.
    #[error("the daemon is shutting down")]
    Closed,
}

/// Why an added server does not survive a restart of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EstablishError {
    /// The server was removed meanwhile, or a file configures it now.
    #[error("it was removed meanwhile, or a file configures it now")]
    Removed,
    /// The server could not be stored.
    #[error("{0}")]
    NotStored(String),
    /// The daemon is ending.
    #[error("the daemon is shutting down")]
    Closed,
}
