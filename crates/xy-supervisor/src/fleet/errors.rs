//! Why something was not done to a fleet.

use xy_protocol::server::ServerName;

use super::{MAX_CLIENT_INSTANCES, MAX_SERVERS, NoRoom};

/// Why a client has no instance.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// There is no such server.
    #[error("there is no such server")]
    Unknown,
    /// An operator stopped it.
    #[error("it was stopped, and stays so until somebody starts it")]
    Stopped,
    /// Each client has one of its own.
    #[error("each client has one of its own, and there is none that all share")]
    NoneForAll,
    /// Too many clients have one.
    #[error("it has {MAX_CLIENT_INSTANCES} instances for other clients, and may have no more")]
    Full,
    /// There are too many instances of all servers, or they use too much.
    #[error("{0}")]
    NoRoom(NoRoom),
    /// Another client has the only one that there can be.
    #[error("it listens on a port of its own, which another client's instance has")]
    PortTaken,
    /// The daemon is ending.
    #[error("the daemon is shutting down")]
    Closed,
}

/// Why a server was not added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// There is one of that name.
    #[error("there is a server of that name")]
    Exists,
    /// Another server has its port.
    #[error("port {port} is used by server `{by}`")]
    PortTaken {
        /// The port.
        port: u16,
        /// Who has it.
        by: ServerName,
    },
    /// There are too many.
    #[error("there are {MAX_SERVERS} servers, and there may be no more")]
    Full,
    /// The daemon is ending.
    #[error("the daemon is shutting down")]
    Closed,
}

/// Why an added server will not be there after a restart of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EstablishError {
    /// Somebody has removed it meanwhile, or written a file for it.
    #[error("it was removed, or got a file, meanwhile")]
    Removed,
    /// That could not be written.
    #[error("{0}")]
    NotKept(String),
    /// The daemon is ending.
    #[error("the daemon is shutting down")]
    Closed,
}
