//! What MCP clients are shown: profiles, the tokens that are bound to them, and search.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// A token to make.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenAdd {
    /// What it is called, by people.
    pub name: String,
    /// The only profile that it opens; any, if absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub profile: Option<String>,
    /// Whether whoever has it may manage servers.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub manage: bool,
}

/// The answer to `token_add`: the only time that the token is shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenAdded {
    /// What it is called.
    pub name: String,
    /// What clients send.
    pub token: String,
    /// The only profile that it opens.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub profile: Option<String>,
    /// Whether whoever has it may manage servers.
    pub manage: bool,
}

impl fmt::Debug for TokenAdded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenAdded").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The answer to `token_list`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenList {
    /// By name.
    pub tokens: Vec<TokenEntry>,
}

/// One token, without what clients send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenEntry {
    /// What it is called.
    pub name: String,
    /// The only profile that it opens.
    pub profile: Option<String>,
    /// Whether whoever has it may manage servers.
    pub manage: bool,
    /// When it was made.
    pub made_at: Timestamp,
}

/// The answer to `token_remove`: nobody comes in with it any more, and whoever had is out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRemoved {
    /// What it was called.
    pub name: String,
}

/// Which token gets a new secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRotate {
    /// A token made by `token_add`; the daemon's own tokens if absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
}

/// The answer to `token_rotate`: the old secrets are refused, and their sessions have ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRotated {
    /// One named token, or the daemon's own `token` and `manage-token`.
    pub tokens: Vec<RotatedToken>,
}

/// A token with its new secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotatedToken {
    /// The token's name.
    pub name: String,
    /// The new secret, which clients send.
    pub token: String,
}

impl fmt::Debug for RotatedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RotatedToken").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Tools to find.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// What is to be done, in a few words.
    pub query: String,
    /// The most that are answered; 8 if absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub limit: Option<usize>,
    /// Only tools of this server.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub server: Option<String>,
    /// Only what this profile shows, under the names that it gives.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub profile: Option<String>,
}

/// The answer to `search`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FoundTools {
    /// Best first.
    pub tools: Vec<FoundEntry>,
}

/// One tool in `search`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FoundEntry {
    /// What it is called outside.
    pub name: String,
    /// Whose it is.
    pub server: String,
    /// The first words of what is said of it.
    pub description: String,
    /// How well it fits; only an order.
    pub score: f32,
}

/// Whether a profile shows something, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Explain {
    /// The profile.
    pub profile: String,
    /// A tool or prompt as `{server}__{name}` or as the profile calls it; a resource by its URI.
    pub name: String,
    /// What it is; a tool, if absent.
    #[serde(default)]
    pub kind: ItemKind,
}

/// What servers have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemKind {
    /// Something that is called.
    #[default]
    Tool,
    /// A prompt.
    Prompt,
    /// A resource, or a template of some.
    Resource,
}

/// The answer to `explain`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// The profile.
    pub profile: String,
    /// What was asked for.
    pub name: String,
    /// What it is.
    pub kind: ItemKind,
    /// Whose it is; absent if it is xy's own.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub server: Option<String>,
    /// What its server calls it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub item: Option<String>,
    /// Whether its server is known to have it.
    pub known: bool,
    /// Whether clients of the profile can use it.
    pub shown: bool,
    /// Whether it stands in their lists: with `tools "search"` most are found instead.
    pub listed: bool,
    /// The line of the file below by which it is found instead of listed, if that is so.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub found_line: Option<u32>,
    /// Why.
    pub why: String,
    /// The file that decided, if one did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub file: Option<String>,
    /// The line of it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub line: Option<u32>,
    /// What clients of the profile call it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exposed: Option<String>,
    /// The description that the profile gives it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub description: Option<String>,
}
