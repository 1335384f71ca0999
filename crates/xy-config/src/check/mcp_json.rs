//! Reads MCP clients' files in place: `mcpServers`, or `servers` in VS Code's format.
//!
//! The files belong to the clients, so fields that only a client understands are ignored. Known
//! fields become the same nodes as in a server file, and are checked by the same rules.

use std::collections::HashMap;
use std::sync::Arc;

use xy_protocol::server::{MAX_NAME_LENGTH, ServerName};

use super::fields::{FieldScope, Fields};
use super::problems::Problems;
use super::read::Reader;
use super::words::nearest;
use super::{Checker, FileText};
use crate::check::MAX_SERVER_FILES;
use crate::raw::json::{Json, JsonMember, JsonNode, parse};
use crate::raw::{RawNode, RawValue, Value};
use crate::report::{Problem, ProblemKind, quote};
use crate::source::{SourceFile, SourceSpan, Span};

/// The members that list servers.
const SERVER_LISTS: [&str; 2] = ["mcpServers", "servers"];

/// The known fields of a server.
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

/// The clients' names of transports, and xy's.
const TRANSPORTS: [(&str, &str); 6] = [
    ("stdio", "stdio"),
    ("http", "http"),
    ("streamable-http", "http"),
    ("streamable_http", "http"),
    ("streamableHttp", "http"),
    ("sse", "sse"),
];

impl Checker<'_> {
    /// Checks one client's file. An error in one server affects only that server.
    pub(super) fn mcp_file(&mut self, file: &FileText) {
        let file = SourceFile::json(&file.path, &file.shown, &file.text);
        let mut problems = Problems::default();
        match parse(&file.text) {
            Err(fault) => {
                self.every_is_broken = true;
                let at = SourceSpan::new(&file, fault.span);
                let message = format!("this is not JSON: {}", fault.message);
                problems.push(Problem::error(&at, message).kind(ProblemKind::Syntax));
            }
            Ok(whole) => {
                for server in listed(&file, &whole, &mut problems) {
                    if self.loaded.settings.servers.len() >= MAX_SERVER_FILES {
                        let at = SourceSpan::new(&file, server.name_span);
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
            let at = SourceSpan::new(file, server.name_span);
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
        let machine = self.machine;
        let mut reader = Reader { file, problems, machine };
        let fields = Fields::read(&mut reader, &nodes, FieldScope::Server);
        if nodes.iter().any(|node| matches!(node.name.as_str(), "command" | "url")) {
            self.server(Some(name.clone()), file, fields, problems);
        }
        let is_used = self.loaded.settings.servers.contains_key(&name);
        if !is_used && !self.loaded.self_references.contains_key(&name) {
            self.broken.insert(name, file.path.clone());
        }
    }
}

/// Returns the servers of a file, in their order.
fn listed<'j>(
    file: &Arc<SourceFile>,
    whole: &'j JsonNode,
    problems: &mut Problems,
) -> Vec<&'j JsonMember> {
    let at = |span: Span| SourceSpan::new(file, span);
    let Json::Object(parts) = &whole.value else {
        let message = format!("the file must be an object, not {}", whole.kind());
        let problem = Problem::error(&at(whole.span), message);
        problems.push(problem.suggest("for example `{ \"mcpServers\": { … } }`"));
        return Vec::new();
    };
    let lists: Vec<&JsonMember> =
        parts.iter().filter(|it| SERVER_LISTS.contains(&it.name.as_str())).collect();
    if lists.is_empty() {
        let problem = Problem::in_file(&file.shown, "the file lists no servers");
        let problem = problem.warn().suggest("list them in `mcpServers`, or in `servers`");
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

/// Returns xy's name for a server: its own if that is valid, otherwise one derived from it.
fn name_of(
    file: &Arc<SourceFile>,
    server: &JsonMember,
    problems: &mut Problems,
) -> Option<ServerName> {
    let at = SourceSpan::new(file, server.name_span);
    let Err(why) = ServerName::new(&server.name) else { return ServerName::new(&server.name).ok() };
    let Some(name) = ServerName::new(&plain_name(&server.name)).ok() else {
        let problem = Problem::error(&at, why.to_string());
        problems.push(problem.suggest("rename it: xy cannot derive a name from this"));
        return None;
    };
    let message = format!("server {} is called `{name}` here", quote(&server.name));
    problems.push(Problem::warning(&at, message).label(why.to_string()));
    Some(name)
}

/// Derives a valid name; the result is always the same for the same name.
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
    // Two long names with the same beginning stay distinct.
    let digest = name
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let head = plain[..MAX_NAME_LENGTH - 9].trim_end_matches(['-', '_']);
    format!("{head}-{digest:08x}")
}

/// The translation of one server to the nodes of a server file.
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
        let names_kind =
            |it: &JsonMember| matches!(it.name.as_str(), "command" | "url" | "serverUrl");
        if !self.is_disabled && !members.iter().any(names_kind) {
            let message = format!("server {} has no `command` or `url`", quote(&server.name));
            let problem = Problem::error(&SourceSpan::new(self.file, server.name_span), message);
            self.problems.push(problem.suggest("add a `command` or a `url`"));
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
                let at = SourceSpan::new(self.file, member.name_span);
                let problem = Problem::warning(&at, "`envFile` is not read");
                self.problems.push(problem.suggest("write the variables in `env`"));
            }
            other => self.unknown(other, member.name_span),
        }
    }

    /// Ignores a field that only the client understands, and warns about a mistyped one.
    fn unknown(&mut self, name: &str, span: Span) {
        let Some(meant) = nearest(name, WORDS).filter(|_| name.len() > 3) else { return };
        let at = SourceSpan::new(self.file, span);
        let problem = Problem::warning(&at, format!("{} is not known", quote(name)));
        self.problems.push(problem.suggest(format!("did you mean `{meant}`?")));
    }

    fn wrong(&mut self, name: &str, value: &JsonNode, wanted: &str) {
        let message = format!("{} must be {wanted}, not {}", quote(name), value.kind());
        self.problems.push(Problem::error(&SourceSpan::new(self.file, value.span), message));
    }

    /// Adds a node with these arguments.
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
                let at = SourceSpan::new(self.file, member.value.span);
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
                self.problems.push(Problem::error(&SourceSpan::new(self.file, item.span), message));
            }
        }
        self.push(&member.name, member.name_span, args);
    }

    /// Adds a block of names and values. Variables may also be numbers and flags, which are kept as
    /// written.
    fn block(&mut self, member: &JsonMember, name: &str, allows_scalars: bool) {
        let Json::Object(members) = &member.value.value else {
            return self.wrong(&member.name, &member.value, "an object");
        };
        let mut children = Vec::new();
        for it in members {
            let span = it.value.span;
            let value = match &it.value.value {
                Json::Text(value) => value.clone(),
                Json::Number | Json::Flag(_) if allows_scalars => self.file.slice(span).to_owned(),
                Json::Null if allows_scalars => {
                    let at = SourceSpan::new(self.file, span);
                    let problem =
                        Problem::warning(&at, format!("{} has no value", quote(&it.name)));
                    self.problems.push(problem.suggest("a variable cannot be unset here"));
                    continue;
                }
                _ if allows_scalars => {
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
        // Some clients need it under both names.
        if self.nodes.iter().any(|node| node.name == "transport") {
            return;
        }
        let known = TRANSPORTS.iter().find(|(name, _)| name == written).map(|(_, own)| *own);
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
