//! Parsing of list items and pages. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde_json::value::RawValue;
use xy_mcp::edit::{self, Edits};
use xy_mcp::envelope::text_of;
use xy_mcp::kind::Kind;
use xy_protocol::control::quoted;

use super::MAX_NAMED;
use crate::sanitize::Sanitized;

/// A tool, prompt, resource or template, as its server wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The server's name for it.
    pub name: Arc<str>,
    /// The original text.
    pub raw: Arc<str>,
    /// The text for combined endpoints; `None` if it would break the list for some clients.
    pub(super) readable: Option<Readable>,
}

/// An item's text that every client can read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Readable {
    raw: Arc<str>,
    /// The position of the name in it.
    at: Range<usize>,
}

impl Item {
    /// Parses an item; returns `None` if it has no name.
    pub fn read(kind: Kind, raw: &str) -> Option<Self> {
        Self::read_sanitized(kind, raw).map(|(item, _)| item)
    }

    /// Parses an item; also returns the result of its check.
    fn read_sanitized(kind: Kind, raw: &str) -> Option<(Self, Sanitized)> {
        let (name, at) = name_in(kind, raw)?;
        let (result, raw) = (Sanitized::of(kind, raw), Arc::<str>::from(raw));
        let readable = match &result {
            Sanitized::Valid => Some(Readable { raw: raw.clone(), at }),
            Sanitized::Repaired { text, .. } => {
                name_in(kind, text).map(|(_, at)| Readable { raw: text.as_str().into(), at })
            }
            Sanitized::Unreadable { .. } => None,
        };
        Some((Self { name, raw, readable }, result))
    }
}

/// Returns the name of an item and its position.
fn name_in(kind: Kind, raw: &str) -> Option<(Arc<str>, Range<usize>)> {
    let fields: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_str(raw).ok()?;
    let written = fields.get(kind.field())?.get();
    let begins = written.as_ptr() as usize - raw.as_ptr() as usize;
    Some((text_of(written)?.into(), begins..begins + written.len()))
}

impl Readable {
    /// Returns the item with another name, on one line.
    pub(super) fn shown_as(&self, name: &str) -> Arc<str> {
        let (before, after) = (&self.raw[..self.at.start], &self.raw[self.at.end..]);
        let mut shown = Vec::with_capacity(self.raw.len() + name.len());
        let text = [before, &edit::quoted(name), after].concat();
        xy_mcp::edit::append_on_one_line(&mut shown, text.as_bytes());
        String::from_utf8_lossy(&shown).into()
    }

    /// Returns the item with another name and description.
    pub(super) fn described_as(&self, name: &str, description: &str) -> Arc<str> {
        let fields: BTreeMap<Cow<'_, str>, &RawValue> =
            serde_json::from_str(&self.raw).unwrap_or_default(); // Parsed before.
        let mut edits = Edits::of(self.raw.as_bytes());
        let (name, description) = (edit::quoted(name), edit::quoted(description));
        let here = &self.raw[self.at.clone()];
        if let Some(written) = fields.get("description") {
            edits.replace(here, name);
            edits.replace(written.get(), description);
        } else {
            edits.replace(here, format!(r#"{name},"description":{description}"#));
        }
        String::from_utf8_lossy(&edits.to_vec()).into()
    }
}

/// One page of a list.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    /// The items of the page.
    pub items: Vec<Item>,
    /// The cursor of the next page, as JSON text.
    pub next: Option<String>,
    /// Number of items without a name.
    pub nameless: usize,
    /// A log message about malformed items.
    pub report: Option<String>,
}

impl Page {
    /// Parses the result of a list request.
    pub fn read(kind: Kind, result: &str) -> Result<Self, String> {
        let not_one = |cause: &dyn std::fmt::Display| {
            format!("its {} result is malformed: {cause}", kind.method())
        };
        let fields: BTreeMap<Cow<'_, str>, &RawValue> =
            serde_json::from_str(result).map_err(|cause| not_one(&cause))?;
        let list =
            fields.get(kind.key()).ok_or_else(|| not_one(&format!("no `{}`", kind.key())))?;
        let raw: Vec<&RawValue> =
            serde_json::from_str(list.get()).map_err(|cause| not_one(&cause))?;
        let (mut items, mut report) = (Vec::with_capacity(raw.len()), ReadabilityReport::default());
        for (item, result) in raw.iter().filter_map(|raw| Item::read_sanitized(kind, raw.get())) {
            report.note(&item.name, &result);
            items.push(item);
        }
        let next =
            fields.get("nextCursor").map(|raw| raw.get().to_owned()).filter(|it| it != "null");
        let nameless = raw.len() - items.len();
        Ok(Self { items, next, nameless, report: report.into_message(kind) })
    }
}

/// The items that some clients could not read.
#[derive(Default)]
struct ReadabilityReport {
    count: usize,
    first: Vec<String>,
}

impl ReadabilityReport {
    fn note(&mut self, name: &str, result: &Sanitized) {
        let what = match result {
            Sanitized::Valid => return,
            Sanitized::Repaired { parts, .. } => {
                format!("is shown with its {} repaired", parts.join(", "))
            }
            Sanitized::Unreadable { part } => format!("is hidden for its {part}"),
        };
        self.count += 1;
        if self.first.len() < MAX_NAMED {
            self.first.push(format!("`{}` {what}", quoted(name)));
        }
    }

    fn into_message(self, kind: Kind) -> Option<String> {
        let Self { count, first } = self;
        let (method, first) = (kind.method(), first.join(", "));
        let rest = if count > MAX_NAMED { " …" } else { "" };
        let words = format!("{count} items of {method} are malformed: {first}{rest}");
        (count > 0).then_some(words)
    }
}
