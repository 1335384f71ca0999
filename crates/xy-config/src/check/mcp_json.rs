//! Files of MCP clients, read in place: `mcpServers`, or `servers` as VS Code has it.
//!
//! They belong to somebody else, so what only that one understands is passed over. What is
//! understood becomes the same nodes that a server file has, and is judged by the same rules.

use std::collections::HashMap;
use std::sync::Arc;

use xy_protocol::server::{MAX_NAME_LENGTH, ServerName};

use super::fields::{Fields, Whose};
use super::problems::Problems;
use super::read::Reader;
use super::words::nearest;
use super::{Checker, FileText};
use crate::load::MAX_SERVER_FILES;
use crate::raw::json::{Json, JsonMember, JsonNode, parse};
use crate::raw::{RawNode, RawValue, Value};
use crate::report::{Kind, Problem, quote};
use crate::source::{At, SourceFile, Span};

/// Where the servers stand in a file.
const LISTS: [&str; 2] = ["mcpServers", "servers"];

/// What is understood of a server.
const WORDS: [&str; 11] = [
    "command",
    "args",
    "env",
    "cwd",
    "url",
    "serverUrl",
    "headers",
    "type",
    "transport",
    "disabled",
    "enabled",
];

/// What transports are called, and what xy calls them.
const TRANSPORTS: [(&str, &str); 6] = [
    ("stdio", "stdio"),
    ("http", "http"),
    ("streamable-http", "http"),
    ("streamable_http", "http"),
    ("streamableHttp", "http"),
    ("sse", "sse"),
];

impl Checker<'_> {
    /// Judges one file of a client. What is wrong with one server costs only that one.
    pub(super) fn mcp_file(&mut self, file: &FileText) {
        let file = SourceFile::json(&file.path, &file.shown, &file.text);
        let mut problems = Problems::default();
        match parse(&file.text) {
            Err(fault) => {
                self.every_is_broken = true;
                let at = At::new(&file, fault.span);
                let message = format!("this is not JSON: {}", fault.message);
                problems.push(Problem::error(&at, message).kind(Kind::Syntax));
            }
            Ok(whole) => {
                for server in listed(&file, &whole, &mut problems) {
                    if self.loaded.settings.servers.len() >= MAX_SERVER_FILES {
                        let at = At::new(&file, server.name_span);
                        let problem = Problem::error(&at, "there are too many servers");
                        problems
                            .push(problem.suggest(format!("xy has at most {MAX_SERVER_FILES}")));
                        break;
                    }
                    let mut own = Problems::default();
                    self.mcp_server(&file, server, &mut own);
                    problems.extend(own.finish(&file.shown));
                }
            }
        }
        self.loaded.problems.extend(problems.finish(&file.shown));
    }

    fn mcp_server(&mut self, file: &Arc<SourceFile>, server: &JsonMember, problems: &mut Problems) {
        let Some(name) = name_of(file, server, problems) else { return };
        if let Some(first) = self.files.get(&name) {
            let at = At::new(file, server.name_span);
            let message = format!("server `{name}` is already configured by `{first}`");
            let problem = Problem::warning(&at, message).label("this one is not used");
            problems.push(problem.suggest("remove one of the two, or rename it"));
            return;
        }
        let mut translation = Translation { file, problems, nodes: Vec::new(), is_disabled: false };
        translation.server(server);
        let Translation { nodes, is_disabled, .. } = translation;
        if is_disabled && !problems.has_errors() {
            return;
        }
        self.files.insert(name.clone(), file.shown.clone());
        let surroundings = self.surroundings;
        let mut reader = Reader { file, problems, surroundings };
        let fields = Fields::read(&mut reader, &nodes, Whose::Server);
        if nodes.iter().any(|node| matches!(node.name.as_str(), "command" | "url")) {
            self.server(Some(name.clone()), file, fields, problems);
        }
        let is_used = self.loaded.settings.servers.contains_key(&name);
        if !is_used && !self.loaded.itself.contains_key(&name) {
            self.broken.insert(name, file.path.clone());
        }
    }
}

/// The servers of a file, in their order.
fn listed<'j>(
    file: &Arc<SourceFile>,
    whole: &'j JsonNode,
    problems: &mut Problems,
) -> Vec<&'j JsonMember> {
    let at = |span: Span| At::new(file, span);
    let Json::Object(parts) = &whole.value else {
        let message = format!("the file must be an object, not {}", whole.kind());
        let problem = Problem::error(&at(whole.span), message);
        problems.push(problem.suggest("for example `{ \"mcpServers\": { … } }`"));
        return Vec::new();
    };
    let lists: Vec<&JsonMember> =
        parts.iter().filter(|it| LISTS.contains(&it.name.as_str())).collect();
    if lists.is_empty() {
        let problem = Problem::in_file(&file.shown, "the file names no servers");
        let problem = problem.warn().suggest("they stand in `mcpServers`, or in `servers`");
        problems.push(problem);
    }
    let mut first_places: HashMap<&str, Span> = HashMap::new();
    let mut servers: Vec<&JsonMember> = Vec::new();
    for list in lists {
        let Json::Object(members) = &list.value.value else {
            let message = format!("`{}` must be an object, not {}", list.name, list.value.kind());
            problems.push(Problem::error(&at(list.value.span), message));
            continue;
        };
        for member in members {
            let first = *first_places.entry(&member.name).or_insert(member.name_span);
            if first == member.name_span {
                servers.push(member);
                continue;
            }
            let message = format!("server {} is given twice", quote(&member.name));
            let problem = Problem::error(&at(member.name_span), message);
            problems.push(problem.related(&at(first), "first given here"));
        }
    }
    servers
}

/// The name that xy has for a server: its own if that is one, else one made from it.
fn name_of(
    file: &Arc<SourceFile>,
    server: &JsonMember,
    problems: &mut Problems,
) -> Option<ServerName> {
    let at = At::new(file, server.name_span);
    let Err(why) = ServerName::new(&server.name) else { return ServerName::new(&server.name).ok() };
    let Some(name) = ServerName::new(&plain_name(&server.name)).ok() else {
        let problem = Problem::error(&at, why.to_string());
        problems.push(problem.suggest("rename it: xy cannot make a name of this"));
        return None;
    };
    let message = format!("server {} is called `{name}` here", quote(&server.name));
    problems.push(Problem::warning(&at, message).label(why.to_string()));
    Some(name)
}

/// A name with only what names may have: always the same for the same name.
fn plain_name(name: &str) -> String {
    let mut plain = String::new();
    for character in name.chars() {
        let is_allowed = character.is_ascii_alphanumeric() || matches!(character, '-' | '_');
        let character = if is_allowed { character } else { '-' };
        let is_repeated = matches!(character, '-' | '_') && plain.ends_with(character);
        if !is_repeated {
            plain.push(character);
        }
    }
    let plain = plain.trim_matches(['-', '_']);
    if plain.len() <= MAX_NAME_LENGTH {
        return plain.to_owned();
    }
    // Two long names with one beginning stay two.
    let digest = name
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let head = plain[..MAX_NAME_LENGTH - 9].trim_end_matches(['-', '_']);
    format!("{head}-{digest:08x}")
}

/// One server on its way to the nodes that its file would have.
struct Translation<'a> {
    file: &'a Arc<SourceFile>,
    problems: &'a mut Problems,
    nodes: Vec<RawNode>,
    is_disabled: bool,
}

impl Translation<'_> {
    fn server(&mut self, server: &JsonMember) {
        let Json::Object(members) = &server.value.value else {
            self.wrong(&server.name, &server.value, "an object");
            return;
        };
        for member in members {
            self.field(member);
        }
        let is_said = |it: &JsonMember| matches!(it.name.as_str(), "command" | "url" | "serverUrl");
        if !self.is_disabled && !members.iter().any(is_said) {
            let message = format!("nothing says what server {} is", quote(&server.name));
            let problem = Problem::error(&At::new(self.file, server.name_span), message);
            self.problems.push(problem.suggest("give it a `command` or a `url`"));
        }
    }

    fn field(&mut self, member: &JsonMember) {
        match member.name.as_str() {
            "command" => self.text(member, "command"),
            "url" | "serverUrl" => self.text(member, "url"),
            "cwd" => self.folder(member),
            "args" => self.list(member),
            "env" => self.block(member, "env", true),
            "headers" => self.block(member, "headers", false),
            "type" | "transport" => self.transport(member),
            "disabled" | "enabled" => match member.value.value {
                Json::Flag(flag) => self.is_disabled = flag == (member.name == "disabled"),
                _ => self.wrong(&member.name, &member.value, "true or false"),
            },
            "envFile" => {
                let at = At::new(self.file, member.name_span);
                let problem = Problem::warning(&at, "`envFile` is not read");
                self.problems.push(problem.suggest("write the variables in `env`"));
            }
            other => self.unknown(other, member.name_span),
        }
    }

    /// What the client alone understands is passed over; what is mistyped is told.
    fn unknown(&mut self, name: &str, span: Span) {
        let Some(meant) = nearest(name, WORDS).filter(|_| name.len() > 3) else { return };
        let at = At::new(self.file, span);
        let problem = Problem::warning(&at, format!("{} is not known", quote(name)));
        self.problems.push(problem.suggest(format!("did you mean `{meant}`?")));
    }

    fn wrong(&mut self, name: &str, value: &JsonNode, wanted: &str) {
        let message = format!("{} must be {wanted}, not {}", quote(name), value.kind());
        self.problems.push(Problem::error(&At::new(self.file, value.span), message));
    }

    /// Adds a node with these values.
    fn push(&mut self, name: &str, name_span: Span, args: Vec<RawValue>) {
        self.nodes.push(node(name, name_span, args, None));
    }

    fn text(&mut self, member: &JsonMember, name: &str) {
        match &member.value.value {
            Json::Text(it) => self.push(name, member.name_span, vec![text(it, member.value.span)]),
            _ => self.wrong(&member.name, &member.value, "text"),
        }
    }

    fn folder(&mut self, member: &JsonMember) {
        match &member.value.value {
            Json::Text(path) if !path.starts_with('/') => {
                let at = At::new(self.file, member.value.span);
                let problem = Problem::error(&at, "`cwd` must be an absolute path");
                self.problems.push(problem.suggest("start it with `/`"));
            }
            _ => self.text(member, "working-dir"),
        }
    }

    fn list(&mut self, member: &JsonMember) {
        let Json::List(items) = &member.value.value else {
            return self.wrong(&member.name, &member.value, "a list of texts");
        };
        let mut args = Vec::new();
        for item in items {
            if let Json::Text(it) = &item.value {
                args.push(text(it, item.span));
            } else {
                let message = format!("an argument must be text in quotes, not {}", item.kind());
                self.problems.push(Problem::error(&At::new(self.file, item.span), message));
            }
        }
        self.push(&member.name, member.name_span, args);
    }

    /// A block of names and values; of variables also numbers and flags, as they are written.
    fn block(&mut self, member: &JsonMember, name: &str, spelled_out: bool) {
        let Json::Object(members) = &member.value.value else {
            return self.wrong(&member.name, &member.value, "an object");
        };
        let mut children = Vec::new();
        for it in members {
            let span = it.value.span;
            let value = match &it.value.value {
                Json::Text(value) => value.clone(),
                Json::Number | Json::Flag(_) if spelled_out => self.file.slice(span).to_owned(),
                Json::Null if spelled_out => {
                    let at = At::new(self.file, span);
                    let problem =
                        Problem::warning(&at, format!("{} has no value", quote(&it.name)));
                    self.problems.push(problem.suggest("a variable cannot be taken away here"));
                    continue;
                }
                _ if spelled_out => {
                    self.wrong(&it.name, &it.value, "text, a number, true or false");
                    continue;
                }
                _ => {
                    self.wrong(&it.name, &it.value, "text");
                    continue;
                }
            };
            children.push(node(&it.name, it.name_span, vec![text(&value, span)], None));
        }
        self.nodes.push(node(name, member.name_span, Vec::new(), Some(children)));
    }

    fn transport(&mut self, member: &JsonMember) {
        let Json::Text(written) = &member.value.value else {
            return self.wrong(&member.name, &member.value, "text");
        };
        // A client may want it under both names.
        if self.nodes.iter().any(|node| node.name == "transport") {
            return;
        }
        let known = TRANSPORTS.iter().find(|(name, _)| name == written).map(|(_, ours)| *ours);
        let value = text(known.unwrap_or(written), member.value.span);
        self.push("transport", member.name_span, vec![value]);
    }
}

fn text(value: &str, span: Span) -> RawValue {
    RawValue { value: Value::Text(value.to_owned()), span, annotation: None }
}

fn node(
    name: &str,
    name_span: Span,
    args: Vec<RawValue>,
    children: Option<Vec<RawNode>>,
) -> RawNode {
    let name = name.to_owned();
    let props = Vec::new();
    RawNode { name, name_span, annotation: None, args, props, children, is_broken: false }
}

#[cfg(test)]
mod tests;
