//! Recognises whole texts in another language: JSON, TOML and YAML.

use xy_protocol::mask;

use super::json::{self, Json, JsonMember};
use super::lex::{Token, TokenKind, tokens};
use super::mistakes::command_and_args;
use super::shape::{NodeShape, indent};
use crate::source::Span;
use crate::write::quoted;

/// The members in which clients list their servers.
const SERVER_LISTS: [&str; 2] = ["mcpServers", "servers"];

const SEPARATE_FILES_ADVICE: &str = "give each server a file of its own, or keep this one as it is and name \
                         it: `xy daemon --mcp-json FILE`";

/// A language other than KDL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Toml,
    Yaml,
}

impl Language {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Toml => "TOML",
            Self::Yaml => "YAML",
        }
    }
}

/// Returns the language of a text, if it is clearly not KDL, and the span that shows it first.
pub(super) fn language(text: &str, nodes: &[NodeShape]) -> Option<(Language, Span)> {
    for (node, next) in nodes.iter().zip(nodes.iter().skip(1).map(Some).chain([None])) {
        let line = &text[node.range.clone()];
        let is_marked = line.starts_with(['[', '-']) || line.ends_with(':');
        if !is_marked || node.block.is_some() {
            continue;
        }
        let tokens = tokens(line);
        let kinds: Vec<TokenKind> = tokens.iter().map(|it| it.kind).collect();
        let span = Span { start: node.range.start, end: node.range.end };
        match kinds.as_slice() {
            [TokenKind::ListOpen, .., TokenKind::ListClose] if is_table(&tokens) => {
                return Some((Language::Toml, span));
            }
            [TokenKind::Word, TokenKind::Colon]
                if next.is_some_and(|next| is_yaml_below(text, node, next)) =>
            {
                return Some((Language::Yaml, span));
            }
            _ if line.trim_end() == "---" => return Some((Language::Yaml, span)),
            _ => {}
        }
    }
    None
}

/// Returns true for a TOML table such as `[mcp_servers.x]`: words without commas.
fn is_table(tokens: &[Token]) -> bool {
    let inside = &tokens[1..tokens.len() - 1];
    !inside.is_empty() && inside.iter().all(|it| it.kind.is_value())
}

/// Returns true if `next` is part of the list or map that `node` begins.
fn is_yaml_below(text: &str, node: &NodeShape, next: &NodeShape) -> bool {
    let line = &text[next.range.clone()];
    line.starts_with("- ") || indent(text, next.range.start) > indent(text, node.range.start)
}

/// Returns the fields to write instead of a JSON object.
pub(super) fn advice_for_json(text: &str) -> String {
    let Ok(whole) = json::parse(text) else { return SEPARATE_FILES_ADVICE.to_owned() };
    let Json::Object(members) = &whole.value else { return SEPARATE_FILES_ADVICE.to_owned() };
    match entry(members) {
        Some(entry) => {
            let fields: Vec<String> = entry.iter().filter_map(field).collect();
            format!("write `{}` instead", fields.join("; "))
        }
        None => SEPARATE_FILES_ADVICE.to_owned(),
    }
}

/// Returns the members of the only server in an object, which may be nested in lists and names.
fn entry(members: &[JsonMember]) -> Option<&[JsonMember]> {
    let mut members = members;
    // The levels are a list, a name, and the server.
    for _ in 0..=SERVER_LISTS.len() {
        if members.iter().any(|it| matches!(it.name.as_str(), "command" | "url" | "serverUrl")) {
            return Some(members);
        }
        let is_list = |it: &&JsonMember| SERVER_LISTS.contains(&it.name.as_str());
        let inner = match (members.iter().find(is_list), members) {
            (Some(list), _) => list,
            (None, [one]) => one,
            (None, _) => return None,
        };
        let Json::Object(inner) = &inner.value.value else { return None };
        members = inner;
    }
    None
}

fn field(member: &JsonMember) -> Option<String> {
    match (member.name.as_str(), &member.value.value) {
        ("command", Json::Text(command)) => Some(format!("command {}", quoted(command))),
        ("url" | "serverUrl", Json::Text(url)) => Some(format!("url {}", quoted(&mask::text(url)))),
        ("cwd", Json::Text(folder)) => Some(format!("working-dir {}", quoted(folder))),
        ("args", Json::List(items)) if !items.is_empty() => {
            let texts = items.iter().filter_map(|it| match &it.value {
                Json::Text(text) => Some(text.as_str()),
                _ => None,
            });
            let words = mask::args(texts).args;
            let words: Vec<String> = words.iter().map(|it| quoted(it)).collect();
            Some(format!("args {}", words.join(" ")))
        }
        (name @ ("env" | "headers"), Json::Object(members)) if !members.is_empty() => {
            let values = members.iter().map(|it| format!("{} \"…\"", quoted(&it.name)));
            Some(format!("{name} {{ {} }}", values.collect::<Vec<_>>().join("; ")))
        }
        _ => None,
    }
}

/// Returns the fields to write instead of lines in another language that configure a server.
pub(super) fn advice_for_lines(text: &str, nodes: &[NodeShape]) -> String {
    let mut fields: Vec<(&str, Vec<String>)> = Vec::new();
    for node in nodes {
        let line = &text[node.range.clone()];
        let tokens = tokens(line);
        let content = |token: &Token| {
            let marks = ['"', '\'', '#'];
            line[token.range.clone()].trim_matches(marks).to_owned()
        };
        let mut values = tokens.iter().filter(|it| it.kind.is_value());
        let Some(name) = values.next().map(|it| line[it.range.clone()].trim_matches('"')) else {
            continue;
        };
        if name == "-" {
            if let Some((_, list)) = fields.last_mut() {
                list.extend(values.map(content));
            }
        } else {
            fields.push((name, values.map(content).collect()));
        }
    }
    let of = |wanted: &str| fields.iter().find(|(name, _)| *name == wanted).map(|(_, it)| it);
    match (of("command").and_then(|it| it.split_first()), of("url")) {
        (Some((command, more)), _) => {
            let args = more.iter().chain(of("args").into_iter().flatten());
            let args = mask::args(args.map(String::as_str)).args;
            format!("write {}", command_and_args(command, &args))
        }
        (None, Some(url)) => format!("write `url {}`", quoted(&mask::text(&url.join(" ")))),
        (None, None) => "write it like `command \"npx\"` and `args \"-y\" \"x\"`".to_owned(),
    }
}
