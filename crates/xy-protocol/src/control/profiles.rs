//! Requests about what MCP clients see: profiles, the tokens bound to them, and search.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The params of `token_add`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenAdd {
    /// A name for people.
    pub name: String,
    /// The only profile that the token opens; any, if absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub profile: Option<String>,
    /// Lets the token's clients manage servers.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub manage: bool,
}

/// The answer to `token_add`, the only place where the token is shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenAddResult {
    /// The token's name.
    pub name: String,
    /// The secret that clients send.
    pub token: String,
    /// The only profile that the token opens.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub profile: Option<String>,
    /// True if the token's clients may manage servers.
    pub manage: bool,
}

impl fmt::Debug for TokenAddResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenAdded").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The answer to `token_list`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenList {
    /// The tokens, sorted by name.
    pub tokens: Vec<TokenEntry>,
}

/// One token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenEntry {
    /// The token's name.
    pub name: String,
    /// The only profile that the token opens.
    pub profile: Option<String>,
    /// True if the token's clients may manage servers.
    pub manage: bool,
    /// When it was created.
    pub made_at: Timestamp,
}

/// The answer to `token_remove`. The token is not accepted any more, and its sessions have ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRemoveResult {
    /// The token's name.
    pub name: String,
}

/// The params of `token_rotate`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRotate {
    /// A token created by `token_add`; the daemon's own tokens if absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
}

/// The answer to `token_rotate`: the old secrets are refused, and their sessions have ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRotateResult {
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

/// The params of `search`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// A few words about the task.
    pub query: String,
    /// Maximum number of tools in the answer; 8 if absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub limit: Option<usize>,
    /// Only tools of this server.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub server: Option<String>,
    /// Only tools that this profile shows, under the profile's names.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub profile: Option<String>,
}

/// The answer to `search`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchResult {
    /// The tools, best match first.
    pub tools: Vec<SearchEntry>,
}

/// One tool in `search`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchEntry {
    /// The exposed name.
    pub name: String,
    /// The server that has it.
    pub server: String,
    /// The beginning of its description.
    pub description: String,
    /// The quality of the match; only the order of scores has a meaning.
    pub score: f32,
}

/// The params of `explain`: asks if, and why, a profile shows an item.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Explain {
    /// The profile.
    pub profile: String,
    /// A tool or prompt as `{server}__{name}` or by its exposed name; a resource by its URI.
    pub name: String,
    /// The kind of item; a tool, if absent.
    #[serde(default)]
    pub kind: ItemKind,
}

/// A kind of item that servers offer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemKind {
    /// A tool.
    #[default]
    Tool,
    /// A prompt.
    Prompt,
    /// A resource or a resource template.
    Resource,
}

/// The answer to `explain`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainResult {
    /// The profile.
    pub profile: String,
    /// The requested name.
    pub name: String,
    /// The kind of item.
    pub kind: ItemKind,
    /// The server that has it; absent if it is xy's own.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub server: Option<String>,
    /// Its name on that server.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub item: Option<String>,
    /// True if the server is known to have it.
    pub known: bool,
    /// True if clients of the profile can use it.
    pub shown: bool,
    /// True if it appears in their lists: with `tools "search"`, most tools are found by search
    /// instead.
    pub listed: bool,
    /// The line of `file` that makes it searchable instead of listed, if one does.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub found_line: Option<u32>,
    /// The reason.
    pub why: String,
    /// The file that decides, if one does.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub file: Option<String>,
    /// The line in that file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub line: Option<u32>,
    /// The exposed name.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exposed: Option<String>,
    /// The description that the profile sets.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub description: Option<String>,
}
