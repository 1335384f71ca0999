//! The kinds of lists that MCP has, and the words of each.

use crate::names;

/// The kind of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Tools,
    Prompts,
    Resources,
    Templates,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] =
        [Self::Tools, Self::Prompts, Self::Resources, Self::Templates];

    /// Returns the kind of list that `method` requests.
    pub(crate) fn listed_by(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.method() == method)
    }

    /// Returns the method that requests the list.
    pub(crate) fn method(self) -> &'static str {
        match self {
            Self::Tools => "tools/list",
            Self::Prompts => "prompts/list",
            Self::Resources => "resources/list",
            Self::Templates => "resources/templates/list",
        }
    }

    /// Returns the member of the result that holds the list.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }

    /// Returns the notification that the list has changed.
    pub(crate) fn changed_method(self) -> &'static str {
        match self {
            Self::Tools => "notifications/tools/list_changed",
            Self::Prompts => "notifications/prompts/list_changed",
            Self::Resources | Self::Templates => "notifications/resources/list_changed",
        }
    }

    /// Returns the member of an item that names it.
    pub(crate) fn field(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources => "uri",
            Self::Templates => "uriTemplate",
        }
    }

    pub(crate) fn exposed(self, server: &str, name: &str) -> String {
        match self {
            Self::Tools | Self::Prompts => names::exposed(server, name),
            Self::Resources | Self::Templates => names::exposed_uri(server, name),
        }
    }

    /// Returns true if the items are named by URI.
    pub(crate) fn is_by_uri(self) -> bool {
        matches!(self, Self::Resources | Self::Templates)
    }

    pub(crate) fn index(self) -> usize {
        match self {
            Self::Tools => 0,
            Self::Prompts => 1,
            Self::Resources => 2,
            Self::Templates => 3,
        }
    }
}
