//! The settings of profiles: which items their clients see. Valid by construction. Pure.
//!
//! The order of lines never matters. `deny` overrides `allow`. If anything of a kind is allowed by
//! name, all other items of that kind are hidden. The gateway's `scope.rs` applies these rules.

/// The profile of clients that name none.
pub const DEFAULT_PROFILE: &str = "default";

/// The default maximum length of a name that clients see.
pub const NAME_BUDGET: usize = 50;

/// The smallest name budget. A name begins with its server's name, of up to 32 characters, and may
/// end in digits that make it unique. A smaller budget would not fit both.
pub const MIN_NAME_BUDGET: u32 = 44;

/// The largest name budget: model APIs do not accept longer names.
pub const MAX_NAME_BUDGET: u32 = 128;

/// The names of xy's own tools, which are reserved.
pub const OWN_TOOLS: [&str; 11] = [
    "add_server",
    "remove_server",
    "reload_server",
    "list_servers",
    "restart_server",
    "server_logs",
    "self_test",
    "get_diagnostics",
    "search_tools",
    "describe_tool",
    "call_tool",
];

/// The settings of one profile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProfileSettings {
    /// The name: the stem of its file.
    pub name: String,
    /// The file, as reports show it.
    pub file: String,
    /// The visible servers; all, if empty.
    pub servers: Vec<Pattern>,
    /// The hidden servers.
    pub deny_servers: Vec<Pattern>,
    /// The filter of tools, by the names that clients see.
    pub tools: Filter,
    /// The filters of single servers' items, by the servers' own names.
    pub blocks: Vec<ServerBlock>,
    /// Tools with another name or description than their servers give.
    pub overrides: Vec<ToolOverride>,
    /// The way in which clients find tools.
    pub mode: ToolMode,
    /// The line that sets `mode`.
    pub mode_line: Option<u32>,
    /// The tools that are listed even in search mode.
    pub pins: Vec<Pattern>,
    /// Maximum length of a name that clients see.
    pub name_budget: Option<usize>,
    /// True if xy's own management tools are hidden, even from clients that may use them.
    pub hides_managing: bool,
    /// The line that sets `hides_managing`.
    pub managing_line: Option<u32>,
}

/// The way in which clients find tools: by list or by search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ToolMode {
    /// All tools are listed.
    #[default]
    All,
    /// Clients search for them.
    Search,
}

/// The filters for the items of matching servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerBlock {
    /// The matching servers.
    pub server: Pattern,
    /// The filter of tools.
    pub tools: Filter,
    /// The filter of prompts.
    pub prompts: Filter,
    /// The filter of resources and resource templates, by URI.
    pub resources: Filter,
}

/// A filter of items by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// The visible items; all, if empty.
    pub allow: Vec<Pattern>,
    /// The hidden items, even if `allow` matches them.
    pub deny: Vec<Pattern>,
}

impl Filter {
    /// Returns true if the filter has no patterns.
    pub fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }
}

/// A tool with another name or description than its server gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolOverride {
    /// The server of the tool.
    pub server: String,
    /// The server's own name of the tool.
    pub tool: String,
    /// The line of the profile that names the tool.
    pub line: u32,
    /// The name that clients see.
    pub name: Option<String>,
    /// The description that clients see.
    pub description: Option<String>,
}

/// A pattern in which `*` stands for any text, with its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// The pattern as it is written.
    pub text: String,
    /// The line of the pattern.
    pub line: u32,
}

impl Pattern {
    /// Returns true if the pattern matches `name`. Takes linear time in the length of both.
    pub fn matches(&self, name: &str) -> bool {
        let Some((first, rest)) = self.text.split_once('*') else { return self.text == name };
        let (between, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        let inside = name.strip_prefix(first).and_then(|rest| rest.strip_suffix(last));
        let Some(mut inside) = inside else { return false };
        // The first match leaves the most text for the other parts.
        between.split('*').all(|part| {
            let found = inside.find(part);
            found.map(|at| inside = &inside[at + part.len()..]).is_some()
        })
    }

    /// Returns true if the pattern has no `*`.
    pub fn is_plain(&self) -> bool {
        !self.text.contains('*')
    }
}

impl ProfileSettings {
    /// Returns a profile that shows nothing, for a file that cannot be used.
    pub fn closed(name: &str, file: &str) -> Self {
        let everything = Pattern { text: "*".to_owned(), line: 1 };
        Self {
            name: name.to_owned(),
            file: file.to_owned(),
            deny_servers: vec![everything.clone()],
            tools: Filter { allow: Vec::new(), deny: vec![everything] },
            hides_managing: true,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Pattern { text: pattern.to_owned(), line: 1 }.matches(name)
    }

    #[test]
    fn star_matches_any_text() {
        let table = [
            ("a", "a", true),
            ("a", "ab", false),
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "a/b__c", true),
            ("a*", "a", true),
            ("a*", "ba", false),
            ("*a", "ba", true),
            ("*a", "ab", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("git__*_file", "git__read_file", true),
            ("git__*_file", "git__file", false),
            ("*b*c*", "abcd", true),
            ("*c*b*", "abcd", false),
            ("a**b", "ab", true),
            ("*aab", "aaab", true),
            ("a?c", "abc", false),
            ("[ab]", "a", false),
            ("é*", "éa", true),
        ];
        for (pattern, name, expected) in table {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    /// Matches a pattern recursively: slow, but evidently correct.
    fn matches_slowly(pattern: &[char], name: &[char]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            (['*', rest @ ..], _) => {
                (0..=name.len()).any(|skip| matches_slowly(rest, &name[skip..]))
            }
            ([first, rest @ ..], [head, tail @ ..]) => first == head && matches_slowly(rest, tail),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn patterns_match_like_the_reference(pattern in "[ab*é]{0,8}", name in "[abé]{0,10}") {
            let letters = |text: &str| text.chars().collect::<Vec<char>>();
            let expected = matches_slowly(&letters(&pattern), &letters(&name));
            prop_assert_eq!(matches(&pattern, &name), expected);
        }
    }
}
