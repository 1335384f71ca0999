//! The filter that decides which part of all servers a client sees.

use std::rc::Rc;

use xy_catalog::catalog::ServerCatalog;
use xy_catalog::scope::Scope;
use xy_mcp::kind::Kind;
use xy_protocol::server::ServerName;

/// A visibility filter over all servers.
#[derive(Debug, Clone)]
pub(crate) enum Visibility {
    /// Everything is visible.
    All,
    /// The items that a profile shows are visible.
    Scope(Rc<Scope>),
    /// Nothing is visible: the profile no longer exists.
    Nothing,
}

impl Visibility {
    /// Returns the visible part of what is known of a server.
    pub(crate) fn visible(
        &self,
        server: &ServerName,
        known: Rc<ServerCatalog>,
    ) -> Option<Rc<ServerCatalog>> {
        match self {
            Self::All => Some(known),
            Self::Scope(scope) => {
                let is_shown = scope.decide_server(server.as_str()).shown;
                let seen = is_shown.then(|| known.within(server.as_str(), scope))?;
                if let Some(duplicates) = seen.take_duplicates() {
                    tracing::warn!(%server, profile = scope.settings().name, "{duplicates}");
                }
                Some(seen)
            }
            Self::Nothing => None,
        }
    }

    /// Returns true if any part of a server is visible.
    pub(crate) fn allows_server(&self, server: &str) -> bool {
        match self {
            Self::All => true,
            Self::Scope(scope) => scope.decide_server(server).shown,
            Self::Nothing => false,
        }
    }

    /// Returns true if an item of a server is visible. `name` is the server's own name for it.
    pub(crate) fn allows_item(&self, kind: Kind, server: &ServerName, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Scope(scope) => scope.decide(kind, server.as_str(), name).shown,
            Self::Nothing => false,
        }
    }

    /// Returns true if a management tool of xy is visible.
    pub(crate) fn allows_own_tool(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Scope(scope) => scope.decide_own(name).shown,
            Self::Nothing => false,
        }
    }

    /// Returns the profile's rule, if there is one.
    pub(crate) fn scope(&self) -> Option<&Rc<Scope>> {
        match self {
            Self::Scope(scope) => Some(scope),
            Self::All | Self::Nothing => None,
        }
    }
}
