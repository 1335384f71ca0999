//! Parses the fields of a server file, one by one.
//!
//! Absent fields stay absent: `defaults`, xy's own defaults and rules about several fields are
//! applied later.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use xy_protocol::server::{Era, Transport};

use super::blocks::{self, CallFields, HealthFields, ReadyFields, RestartFields};
use super::container::{self, ContainerFields};
use super::limits::{self, LimitFields};
use super::program;
use super::read::{Reader, Spanned};
use super::values::Zero;
use super::words::{SERVER_WORDS, Word, word};
use super::{environment, remote};
use crate::raw::RawNode;
use crate::settings::{Isolation, Start};
use crate::source::SourceSpan;

/// A field that is only valid with `url`.
const HEADERS: Word = word("headers", r#"headers { Authorization "Bearer …" }"#);

/// Fields that identify a single server, so `defaults` cannot set them.
const OWN_FIELDS: [&str; 7] =
    ["command", "args", "port", "container", "url", "headers", "share-key"];

/// The scope of fields: one server, or `defaults`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldScope {
    Server,
    Defaults,
}

/// The fields of a file, with their spans.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields {
    /// Which of `command`, `container` and `url` are given.
    pub(super) kinds: Vec<(&'static str, SourceSpan)>,
    pub(super) command: Option<Spanned<String>>,
    pub(super) args: Option<Vec<Spanned<String>>>,
    pub(super) transport: Option<Spanned<Transport>>,
    pub(super) port: Option<Spanned<u16>>,
    pub(super) path: Option<Spanned<String>>,
    pub(super) env: BTreeMap<String, Spanned<String>>,
    pub(super) working_dir: Option<Spanned<PathBuf>>,
    pub(super) restart: RestartFields,
    pub(super) grace: Option<Spanned<Duration>>,
    pub(super) ready: ReadyFields,
    pub(super) calls: CallFields,
    pub(super) health: HealthFields,
    pub(super) limits: LimitFields,
    pub(super) isolation: Option<Spanned<Isolation>>,
    /// The era; an inner `None` is `auto`.
    pub(super) era: Option<Spanned<Option<Era>>>,
    pub(super) share_key: Option<Spanned<String>>,
    pub(super) start: Option<Spanned<Start>>,
    pub(super) idle_stop: Option<Spanned<Duration>>,
    pub(super) url: Option<Spanned<String>>,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) container: ContainerFields,
    /// The spans of the file's own fields, without `defaults`.
    pub(super) own: Vec<(&'static str, SourceSpan)>,
    /// Fields that are given but invalid, so that they are not reported as missing.
    broken: HashSet<&'static str>,
    /// True if some text could not be read: it may hold a field that seems missing.
    pub(super) is_incomplete: bool,
}

impl Fields {
    /// Reads the fields of `nodes`.
    pub(super) fn read(reader: &mut Reader<'_>, nodes: &[RawNode], scope: FieldScope) -> Self {
        let mut fields = Self::default();
        let words: Vec<Word> = SERVER_WORDS.into_iter().chain([HEADERS]).collect();
        let inside = (scope == FieldScope::Defaults).then_some("defaults");
        for (node, word) in reader.known(nodes, &words, inside) {
            let errors_before = reader.problems.errors();
            fields.own.push((word.name, reader.at(node.name_span)));
            if scope == FieldScope::Defaults && OWN_FIELDS.contains(&word.name) {
                let message = format!("`{}` cannot be set in `defaults`", word.name);
                let problem = reader.error(node.name_span, message);
                reader.report(problem.suggest("write it in the file of the server it is for"));
            } else {
                fields.read_field(reader, node, word);
            }
            if reader.problems.errors() > errors_before || node.has_broken_part() {
                fields.broken.insert(word.name);
            }
        }
        fields.is_incomplete = nodes.iter().any(|node| node.is_broken && node.name.is_empty());
        fields
    }

    fn read_field(&mut self, reader: &mut Reader<'_>, node: &RawNode, word: Word) {
        if matches!(word.name, "command" | "container" | "url") {
            self.kinds.push((word.name, reader.at(node.name_span)));
        }
        match word.name {
            "command" => self.command = program::command(reader, node, word),
            "args" => self.args = Some(args(reader, node)),
            "transport" => {
                self.transport = reader.choice(node, word, "transport", &TRANSPORTS);
            }
            "port" => self.port = reader.port(node, word),
            "path" => self.path = reader.url_path(node, word),
            "env" => self.env = environment::read(reader, node, word, false),
            "working-dir" => self.working_dir = program::working_dir(reader, node, word),
            "restart" => self.restart = blocks::restart(reader, node, word),
            "stop" => self.grace = blocks::stop(reader, node, word),
            "ready" => self.ready = blocks::ready(reader, node, word),
            "health" => self.health = blocks::health(reader, node, word),
            "limits" => self.limits = limits::read(reader, node, word),
            "calls" => self.calls = blocks::calls(reader, node, word),
            "container" => self.container = container::read(reader, node, word),
            "url" => self.url = remote::url(reader, node, word),
            "headers" => self.headers = remote::headers(reader, node, word),
            "isolation" => {
                self.isolation = reader.choice(node, word, "isolation", &ISOLATIONS);
            }
            "era" => self.era = reader.choice(node, word, "era", &ERAS),
            "share-key" => self.share_key = reader.filled_text(node, word),
            "start" => self.start = reader.choice(node, word, "start", &STARTS),
            "idle-stop" => self.idle_stop = reader.duration(node, word, ZERO_IDLE_STOP),
            _ => {}
        }
    }

    /// Fills absent fields from `defaults`.
    pub(super) fn or(mut self, defaults: &Self) -> Self {
        for (name, value) in &defaults.env {
            self.env.entry(name.clone()).or_insert_with(|| value.clone());
        }
        // An invalid field is not replaced: its error was reported.
        let unless_broken = |name| !self.broken.contains(name);
        let transport = defaults.transport.clone().filter(|_| unless_broken("transport"));
        let working_dir = defaults.working_dir.clone().filter(|_| unless_broken("working-dir"));
        Self {
            transport: self.transport.or(transport),
            path: self.path.or_else(|| defaults.path.clone()),
            working_dir: self.working_dir.or(working_dir),
            restart: self.restart.or(&defaults.restart),
            grace: self.grace.or_else(|| defaults.grace.clone()),
            ready: self.ready.or(&defaults.ready),
            calls: self.calls.or(&defaults.calls),
            health: self.health.or(&defaults.health),
            limits: self.limits.or(&defaults.limits),
            isolation: self.isolation.or_else(|| defaults.isolation.clone()),
            era: self.era.or_else(|| defaults.era.clone()),
            start: self.start.or_else(|| defaults.start.clone()),
            idle_stop: self.idle_stop.or_else(|| defaults.idle_stop.clone()),
            ..self
        }
    }

    /// Returns true if a field is given but invalid, or may be in unreadable text.
    pub(super) fn is_broken(&self, field: &str) -> bool {
        self.broken.contains(field) || self.is_incomplete
    }
}

const TRANSPORTS: [(&str, Transport); 3] =
    [("stdio", Transport::Stdio), ("http", Transport::Http), ("sse", Transport::Sse)];

const ISOLATIONS: [(&str, Isolation); 2] =
    [("shared", Isolation::Shared), ("client", Isolation::Client)];

const ERAS: [(&str, Option<Era>); 3] =
    [("auto", None), ("legacy", Some(Era::Legacy)), ("modern", Some(Era::Modern))];

const STARTS: [(&str, Start); 2] = [("eager", Start::Eager), ("lazy", Start::Lazy)];

const ZERO_IDLE_STOP: Zero = Zero::Forbidden("leave it out to disable it");

fn args(reader: &mut Reader<'_>, node: &RawNode) -> Vec<Spanned<String>> {
    let values = reader.values(node);
    values.into_iter().filter_map(|value| reader.as_text(value, "args")).collect()
}
