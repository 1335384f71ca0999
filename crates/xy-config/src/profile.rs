//! What a profile says of what its clients are shown: valid by construction. Pure.
//!
//! The order of lines never matters. `deny` wins over `allow`, and where anything is allowed
//! by name the rest of its kind is not shown; the gateway's `scope.rs` decides by it.

/// The profile of a client that names none.
pub const DEFAULT_PROFILE: &str = "default";

/// A name outside is never longer, unless a profile says so.
pub const NAME_BUDGET: usize = 50;

/// A name outside begins with its server's, of up to 32 characters, and ends in digits that
/// tell it from others: with less there would be no room for either.
pub const LEAST_NAME_BUDGET: u32 = 44;

/// No model's interface takes longer names.
pub const MOST_NAME_BUDGET: u32 = 128;

/// The names of xy's own tools, which no other tool is given.
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

/// What one profile shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProfileSettings {
    /// The stem of its file.
    pub name: String,
    /// Its file, as reports show it.
    pub file: String,
    /// Only these servers; all, if there are none.
    pub servers: Vec<Pattern>,
    /// Not these servers.
    pub deny_servers: Vec<Pattern>,
    /// Which tools, by their names outside.
    pub tools: Filter,
    /// Which items of some servers, by what those call them.
    pub blocks: Vec<ServerBlock>,
    /// Tools that are shown otherwise than their servers say.
    pub overrides: Vec<ToolOverride>,
    /// Whether tools are listed or found.
    pub mode: ToolMode,
    /// Where that is said.
    pub mode_line: Option<u32>,
    /// What is listed although tools are to be found.
    pub pins: Vec<Pattern>,
    /// The longest name outside.
    pub name_budget: Option<usize>,
    /// Whether xy's own managing tools are hidden, also from those who have the right.
    pub hides_managing: bool,
    /// Where that is said.
    pub managing_line: Option<u32>,
}

/// Whether tools are listed or found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ToolMode {
    /// All are listed.
    #[default]
    All,
    /// Clients search for them.
    Search,
}

/// Which items of the servers that fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerBlock {
    /// Which servers.
    pub server: Pattern,
    /// Their tools.
    pub tools: Filter,
    /// Their prompts.
    pub prompts: Filter,
    /// Their resources and templates, by URI.
    pub resources: Filter,
}

/// What is shown and what is not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only these, if there are any.
    pub allow: Vec<Pattern>,
    /// Never these.
    pub deny: Vec<Pattern>,
}

impl Filter {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }
}

/// A tool that is shown otherwise than its server says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolOverride {
    /// Whose it is.
    pub server: String,
    /// What that calls it.
    pub tool: String,
    /// Where the profile names it.
    pub line: u32,
    /// What clients call it.
    pub name: Option<String>,
    /// What clients read of it.
    pub description: Option<String>,
}

/// A text in which `*` stands for any text, and where it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// As it is written.
    pub text: String,
    /// On which line.
    pub line: u32,
}

impl Pattern {
    /// Whether it stands for `name`. Takes time with the length of both, and no more.
    pub fn matches(&self, name: &str) -> bool {
        let Some((first, rest)) = self.text.split_once('*') else { return self.text == name };
        let (between, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        let inside = name.strip_prefix(first).and_then(|rest| rest.strip_suffix(last));
        let Some(mut inside) = inside else { return false };
        // Of several places the first leaves the most for the others.
        between.split('*').all(|part| {
            let found = inside.find(part);
            found.map(|at| inside = &inside[at + part.len()..]).is_some()
        })
    }

    /// Whether it can stand for one text only.
    pub fn is_plain(&self) -> bool {
        !self.text.contains('*')
    }
}

impl ProfileSettings {
    /// What is shown of a profile whose file cannot be used: nothing, rather than too much.
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
    fn a_star_stands_for_any_text() {
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

    /// The same, as it is said: slow, and plainly right.
    fn slowly(pattern: &[char], name: &[char]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            (['*', rest @ ..], _) => (0..=name.len()).any(|skip| slowly(rest, &name[skip..])),
            ([first, rest @ ..], [head, tail @ ..]) => first == head && slowly(rest, tail),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn patterns_match_as_they_are_said_to(pattern in "[ab*é]{0,8}", name in "[abé]{0,10}") {
            let letters = |text: &str| text.chars().collect::<Vec<char>>();
            prop_assert_eq!(matches(&pattern, &name), slowly(&letters(&pattern), &letters(&name)));
        }
    }
}
