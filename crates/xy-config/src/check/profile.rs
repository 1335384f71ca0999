//! Parses the files of profiles, and warns about odd entries.

use std::collections::BTreeMap;
use std::sync::Arc;

use xy_protocol::server::ServerName;

use super::read::{Reader, Spanned};
use super::words::{Word, nearest, word};
use crate::profile::{
    Filter, MAX_NAME_BUDGET, MIN_NAME_BUDGET, NAME_BUDGET, OWN_TOOLS, Pattern, ProfileSettings,
    ServerBlock, ToolMode, ToolOverride,
};
use crate::raw::RawNode;
use crate::report::{Problem, quote};
use crate::source::{SourceFile, SourceSpan};

const PROFILE_WORDS: [Word; 10] = [
    word("servers", r#"servers "git" "files*""#),
    word("deny-servers", r#"deny-servers "old-*""#),
    word("allow", r#"allow "git__*""#),
    word("deny", r#"deny "*__delete_*""#),
    word("server", r#"server "git" { tools { deny "push" } }"#),
    word("tool", r#"tool "git__status" { description "What has changed" }"#),
    word("tools", r#"tools "search""#),
    word("pin", r#"pin "git__status""#),
    word("name-budget", "name-budget 60"),
    word("manage", "manage #false"),
];
const SERVER_WORDS: [Word; 3] = [
    word("tools", r#"tools { allow "read_*" }"#),
    word("prompts", r#"prompts { deny "*" }"#),
    word("resources", r#"resources { allow "file:///srv/*" }"#),
];
const FILTER_WORDS: [Word; 2] = [word("allow", r#"allow "read_*""#), word("deny", r#"deny "*""#)];
const TOOL_WORDS: [Word; 2] =
    [word("name", r#"name "status""#), word("description", r#"description "What has changed""#)];
const MODES: [(&str, ToolMode); 2] = [("all", ToolMode::All), ("search", ToolMode::Search)];

/// Fields that may be repeated.
const REPEATED: [&str; 7] = ["servers", "deny-servers", "allow", "deny", "server", "tool", "pin"];

/// Maximum length of a pattern.
const MAX_PATTERN_BYTES: usize = 512;

/// Maximum length of a tool's description; some clients cut off more.
const MAX_DESCRIPTION_BYTES: usize = 16 * 1024;

/// Maximum number of patterns per profile: each name is compared with all of them.
const MAX_PATTERNS: usize = 2000;

/// Reads one profile. Problems are reported to the reader.
pub(super) fn read(reader: &mut Reader<'_>, nodes: &[RawNode], name: &str) -> ProfileSettings {
    let file = reader.file.shown.clone();
    let mut profile = ProfileSettings { name: name.to_owned(), file, ..ProfileSettings::default() };
    let mut names: BTreeMap<String, SourceSpan> = BTreeMap::new();
    let mut renamed = Vec::new();
    for (node, word) in reader.known_repeatable(nodes, &PROFILE_WORDS, &REPEATED, None) {
        match word.name {
            "servers" => profile.servers.extend(reader.patterns(node, word)),
            "deny-servers" => profile.deny_servers.extend(reader.patterns(node, word)),
            "allow" => profile.tools.allow.extend(reader.patterns(node, word)),
            "deny" => profile.tools.deny.extend(reader.patterns(node, word)),
            "pin" => profile.pins.extend(reader.patterns(node, word)),
            "server" => profile.blocks.extend(server_block(reader, node, word)),
            "tool" => renamed.extend(tool(reader, node, word, &mut names)),
            "tools" => {
                let mode = reader.choice(node, word, "tool mode", &MODES);
                profile.mode_line = mode.as_ref().map(|mode| mode.at.line());
                profile.mode = mode.map_or(profile.mode, |mode| mode.value);
            }
            "manage" => {
                let may = reader.flag(node, word);
                profile.managing_line = may.as_ref().map(|may| may.at.line());
                profile.hides_managing = may.is_some_and(|may| !may.value);
            }
            _ => {
                let budget = reader.count(node, word, MIN_NAME_BUDGET..=MAX_NAME_BUDGET);
                profile.name_budget = budget.and_then(|it| usize::try_from(it.value).ok());
            }
        }
    }
    let budget = profile.name_budget.unwrap_or(NAME_BUDGET);
    for (one, at) in &renamed {
        let too_long = one.name.as_ref().filter(|name| name.len() > budget);
        if let (Some(name), Some(at)) = (too_long, at) {
            let message = format!("{} is longer than {budget} characters", quote(name));
            reader.report(Problem::error(at, message).suggest(
                "some clients refuse longer names; `name-budget` sets the maximum length",
            ));
        }
    }
    profile.overrides = renamed.into_iter().map(|(one, _)| one).collect();
    check_count(reader, &profile);
    profile
}

/// Warns about lines that name unknown servers.
pub(super) fn check_servers(
    file: &Arc<SourceFile>,
    profile: &ProfileSettings,
    known: &[&str],
) -> Vec<Problem> {
    let mut odd = Vec::new();
    let mut check = |pattern: &Pattern, server: &str| {
        let server = Pattern { text: server.to_owned(), line: pattern.line };
        if known.iter().any(|name| server.matches(name)) {
            return;
        }
        let message = format!("no server is named {}", quote(&server.text));
        let meant =
            nearest(&server.text, known.iter().copied()).map(|it| format!("did you mean `{it}`?"));
        let at = SourceSpan::of_line(file, pattern.line, &pattern.text);
        odd.push(Problem::warning(&at, message).suggest_some(meant));
    };
    for pattern in profile.servers.iter().chain(&profile.deny_servers) {
        check(pattern, &pattern.text);
    }
    for block in &profile.blocks {
        check(&block.server, &block.server.text);
    }
    for one in &profile.overrides {
        let pattern = Pattern { text: format!("{}__{}", one.server, one.tool), line: one.line };
        check(&pattern, &one.server);
    }
    let tools = profile.tools.allow.iter().chain(&profile.tools.deny).chain(&profile.pins);
    for pattern in tools {
        // A pattern without a server may match xy's own tools, or several servers.
        if let Some((server, _)) = pattern.text.split_once("__").filter(|(it, _)| !it.contains('*'))
        {
            check(pattern, server);
        }
    }
    odd
}

fn server_block(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Option<ServerBlock> {
    let (server, children) = reader.named_block(node, word)?;
    let server = reader.pattern(server)?;
    let mut block = ServerBlock {
        server,
        tools: Filter::default(),
        prompts: Filter::default(),
        resources: Filter::default(),
    };
    for (node, word) in reader.known(children, &SERVER_WORDS, Some("server")) {
        let filter = match word.name {
            "tools" => &mut block.tools,
            "prompts" => &mut block.prompts,
            _ => &mut block.resources,
        };
        let Some(children) = reader.block(node, word) else { continue };
        for (node, inner) in
            reader.known_repeatable(children, &FILTER_WORDS, &["allow", "deny"], Some(word.name))
        {
            let patterns = reader.patterns(node, inner);
            let side = if inner.name == "allow" { &mut filter.allow } else { &mut filter.deny };
            side.extend(patterns);
        }
    }
    Some(block)
}

/// Reads a `tool` block. Returns the override, and the span of its name.
fn tool(
    reader: &mut Reader<'_>,
    node: &RawNode,
    word: Word,
    names: &mut BTreeMap<String, SourceSpan>,
) -> Option<(ToolOverride, Option<SourceSpan>)> {
    let (whole, children) = reader.named_block(node, word)?;
    let halves = whole.value.split_once("__").filter(|(server, tool)| {
        ServerName::new(server).is_ok() && !tool.is_empty() && !tool.contains('*')
    });
    let Some((server, tool)) = halves else {
        let message = format!("{} names no tool of a server", quote(&whole.value));
        reader.report(
            Problem::error(&whole.at, message)
                .suggest("write the server's name, `__` and what the server calls the tool"),
        );
        return None;
    };
    let (server, tool, line) = (server.to_owned(), tool.to_owned(), whole.at.line());
    claim(reader, names, format!("tool {}", whole.value), &whole.at, "is changed twice");
    let mut one = ToolOverride { server, tool, line, name: None, description: None };
    let mut name_at = None;
    for (node, word) in reader.known(children, &TOOL_WORDS, Some("tool")) {
        let Some(text) = reader.filled_text(node, word) else { continue };
        if word.name == "description" {
            if text.value.len() > MAX_DESCRIPTION_BYTES {
                let message = format!("`description` is longer than {MAX_DESCRIPTION_BYTES} bytes");
                reader.report(Problem::error(&text.at, message));
            }
            one.description = Some(text.value);
        } else if check_name(reader, &text) {
            claim(reader, names, text.value.clone(), &text.at, "is given to two tools");
            name_at = Some(text.at);
            one.name = Some(text.value);
        }
    }
    Some((one, name_at))
}

/// Claims a name for the first tool; each later one conflicts with it.
fn claim(
    reader: &mut Reader<'_>,
    names: &mut BTreeMap<String, SourceSpan>,
    name: String,
    at: &SourceSpan,
    fault: &str,
) {
    if let Some(first) = names.get(&name) {
        let problem = Problem::error(at, format!("{} {fault}", quote(&name)));
        reader.report(problem.label("again here").related(first, "first here"));
        return;
    }
    names.insert(name, at.clone());
}

/// Returns true if every client accepts a name.
fn check_name(reader: &mut Reader<'_>, name: &Spanned<String>) -> bool {
    if OWN_TOOLS.contains(&name.value.as_str()) {
        let message = format!("{} is a tool of xy itself", quote(&name.value));
        reader.report(Problem::error(&name.at, message).suggest("choose another name"));
        return false;
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let Some(odd) = name.value.chars().find(|&c| !is_plain(c)) else { return true };
    let message = format!("{} is not a valid tool name: it contains {odd:?}", quote(&name.value));
    let problem = Problem::error(&name.at, message);
    reader.report(
        problem.suggest("use letters, digits, `_` and `-`; many clients refuse other characters"),
    );
    false
}

fn check_count(reader: &mut Reader<'_>, profile: &ProfileSettings) {
    let filters = profile.blocks.iter().flat_map(|it| [&it.tools, &it.prompts, &it.resources]);
    let in_blocks: usize = filters.map(|it| it.allow.len() + it.deny.len()).sum();
    let count = in_blocks
        + [&profile.servers, &profile.deny_servers, &profile.pins]
            .map(Vec::len)
            .iter()
            .sum::<usize>()
        + profile.tools.allow.len()
        + profile.tools.deny.len()
        + profile.blocks.len()
        + profile.overrides.len();
    if count > MAX_PATTERNS {
        let message = format!("the profile has {count} patterns");
        let problem = Problem::in_file(&reader.file.shown, message);
        reader.report(problem.suggest(format!("there may be {MAX_PATTERNS}: use `*`")));
    }
}

impl Reader<'_> {
    /// Returns the known fields, as [`Reader::known`] does, and allows some of them to be repeated.
    fn known_repeatable<'n>(
        &mut self,
        nodes: &'n [RawNode],
        words: &[Word],
        repeatable: &[&str],
        inside: Option<&str>,
    ) -> Vec<(&'n RawNode, Word)> {
        let mut found = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            let Some(word) = words.iter().find(|word| word.name == node.name) else {
                self.unknown(node, words, inside);
                continue;
            };
            let is_unique = !repeatable.contains(&word.name);
            match nodes[..index].iter().find(|it| is_unique && it.name == node.name) {
                Some(first) => self.report_duplicate(node, first.name_span),
                None => found.push((node, *word)),
            }
        }
        found
    }

    /// Returns the patterns of a node that must have at least one, and nothing else.
    fn patterns(&mut self, node: &RawNode, word: Word) -> Vec<Pattern> {
        let texts = self.texts(node, word);
        if node.args.is_empty() {
            let message = format!("{} needs a name", quote(&node.name));
            let example = format!("for example `{}`", word.example);
            self.report(self.error(node.name_span, message).suggest(example));
        }
        texts.into_iter().filter_map(|text| self.pattern(text)).collect()
    }

    fn pattern(&mut self, text: Spanned<String>) -> Option<Pattern> {
        let problem = if text.value.is_empty() {
            Problem::error(&text.at, "an empty name matches nothing")
                .suggest("use `*` to match all")
        } else if text.value.len() > MAX_PATTERN_BYTES {
            Problem::error(&text.at, format!("a name is at most {MAX_PATTERN_BYTES} bytes long"))
        } else {
            return Some(Pattern { line: text.at.line(), text: text.value });
        };
        self.report(problem);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::{FileText, LoadedConfig, Texts, UnknownMachine, check_all};
    use super::*;

    fn file(name: &str, text: &str) -> FileText {
        FileText { path: PathBuf::from(name), shown: name.to_owned(), text: text.to_owned() }
    }

    fn check(text: &str) -> LoadedConfig {
        let servers =
            ["git", "files"].map(|name| file(&format!("servers/{name}.kdl"), "command \"sh\""));
        let profiles = &[file("profiles/work.kdl", text)];
        check_all(None, Texts { servers: &servers, profiles, ..Texts::default() }, &UnknownMachine)
    }

    /// Returns the line, severity, message and suggestion of each problem.
    fn report(text: &str) -> Vec<String> {
        let report = check(text).problems.into_iter().map(|it| {
            let line = it.place.as_ref().map_or(0, |place| place.line);
            let how = if it.is_error() { "error" } else { "warning" };
            format!("{line} {how}: {} | {}", it.message, it.suggestion.unwrap_or_default())
        });
        report.collect()
    }

    #[test]
    fn complete_profile_is_read() {
        let text = r#"
servers "git" "file*"
deny-servers "old-*"
allow "git__*"
allow "files__read_*"
deny "*__delete_*"
server "git" {
    tools { allow "status" "log*"; deny "push" }
    prompts { deny "*" }
    resources { allow "file:///srv/*"; allow "a:*" }
}
tool "git__status" { name "st"; description "What has changed" }
tools "search"
pin "git__status"
name-budget 60
manage #false
"#;
        let loaded = check(text);
        let odd: Vec<String> = report(text);
        assert_eq!(odd, ["3 warning: no server is named `old-*` | "]);
        let profile = &loaded.settings.profiles["work"];
        let lines = |all: &[Pattern]| -> Vec<(u32, String)> {
            all.iter().map(|it| (it.line, it.text.clone())).collect()
        };
        assert_eq!(lines(&profile.servers), [(2, "git".to_owned()), (2, "file*".to_owned())]);
        assert_eq!(lines(&profile.tools.allow).len(), 2);
        assert_eq!(lines(&profile.blocks[0].tools.deny), [(8, "push".to_owned())]);
        assert_eq!(lines(&profile.blocks[0].resources.allow).len(), 2);
        let one = &profile.overrides[0];
        assert_eq!((one.server.as_str(), one.tool.as_str(), one.line), ("git", "status", 12));
        assert_eq!(one.name.as_deref(), Some("st"));
        assert_eq!((profile.mode, profile.name_budget), (ToolMode::Search, Some(60)));
        assert!(profile.hides_managing);
        assert_eq!((profile.mode_line, profile.managing_line), (Some(13), Some(16)));
        assert_eq!((profile.name.as_str(), profile.file.as_str()), ("work", "profiles/work.kdl"));
    }

    #[test]
    fn all_problems_are_reported_with_their_lines() {
        let text = r#"severs "git"
servers
servers 7
server "git"
server { tools { allow "x" } }
server "git" { tool "x" }
server "git" { tools "x" }
tool "git" { name "x" }
tool "git__a" { name "with space" }
tool "git__b" { name "same" }
tool "git__c" { name "same" }
tool "git__c" { description "again" }
tools "some"
name-budget 10
tools "all"
allow ""
manage "no"
tool "git__e" { name "call_tool" }
tool "git__d" { name "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" }
"#;
        let report = report(text);
        let lines: Vec<&str> = report.iter().map(|it| it.split(' ').next().unwrap()).collect();
        let expected = [
            "1", "2", "3", "4", "5", "6", "7", "8", "9", "11", "12", "13", "14", "15", "16", "17",
            "18", "19",
        ];
        assert_eq!(lines, expected, "{report:#?}");
        assert!(report[0].contains("did you mean `servers`?"), "{}", report[0]);
        assert!(report.iter().all(|it| it.contains("error")), "{report:#?}");
    }

    #[test]
    fn unknown_servers_are_warnings() {
        let report = report(
            "servers \"gti\" \"*\"\nallow \"flies__read\" \"add_server\" \"*__x\"\npin \"git__x\"",
        );
        assert_eq!(
            report,
            [
                "1 warning: no server is named `gti` | did you mean `git`?",
                "2 warning: no server is named `flies` | did you mean `files`?",
            ]
        );
        assert!(check("servers \"gti\"").is_valid());
    }

    #[test]
    fn profile_with_an_error_shows_nothing() {
        for text in [
            "severs \"git\"",
            "servers \"git",
            "}",
            "server \"git\" deny=\"push\" {}",
            "tool \"git__x\" name=\"y\" {}",
            "(x)server \"git\" { tools { deny \"a\" } }",
            "server (x)\"git\" { tools { deny \"a\" } }",
        ] {
            let loaded = check(text);
            assert!(!loaded.is_valid());
            let closed = ProfileSettings::closed("work", "profiles/work.kdl");
            assert_eq!(*loaded.settings.profiles["work"], closed, "{text}");
        }
        let odd = {
            let profiles = &[file("profiles/a b.kdl", "")];
            check_all(None, Texts { profiles, ..Texts::default() }, &UnknownMachine)
        };
        assert!(!odd.is_valid() && odd.settings.profiles.is_empty());
    }
}
