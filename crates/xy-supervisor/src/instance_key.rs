//! The keys of instances: a server, and the clients that the instance serves.

use std::fmt;

use xy_protocol::server::{Era, ServerName};

/// The key of an instance.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceKey {
    /// The server.
    pub server: ServerName,
    /// The clients that the instance serves.
    pub holder: Holder,
}

impl InstanceKey {
    /// Returns the key of the instance that all clients share.
    pub fn shared(server: ServerName) -> Self {
        Self { server, holder: Holder::Shared }
    }
}

impl InstanceKey {
    /// Parses the format that `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        let (server, holder) = match text.split_once('@') {
            None => (text, Holder::Shared),
            Some((server, "legacy")) => (server, Holder::Era(Era::Legacy)),
            Some((server, "modern")) => (server, Holder::Era(Era::Modern)),
            Some((server, client)) => (server, Holder::Client(client.parse().ok()?)),
        };
        Some(Self { server: ServerName::new(server).ok()?, holder })
    }
}

impl fmt::Display for InstanceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.holder {
            Holder::Shared => write!(f, "{}", self.server),
            Holder::Client(client) => write!(f, "{}@{client}", self.server),
            Holder::Era(era) => write!(f, "{}@{era}", self.server),
        }
    }
}

/// The clients that an instance serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holder {
    /// All clients.
    Shared,
    /// One client alone.
    Client(u64),
    /// All clients of one era, beside the shared instance, which speaks the other era.
    Era(Era),
}

impl Holder {
    /// Returns true if the instance serves one client alone.
    pub fn is_client(self) -> bool {
        matches!(self, Self::Client(_))
    }

    /// Returns the client that the instance serves, if it serves one alone.
    pub fn client(self) -> Option<u64> {
        match self {
            Self::Client(client) => Some(client),
            Self::Shared | Self::Era(_) => None,
        }
    }

    /// Returns the era that the instance is bound to, if it is.
    pub fn era(self) -> Option<Era> {
        match self {
            Self::Era(era) => Some(era),
            Self::Shared | Self::Client(_) => None,
        }
    }
}
