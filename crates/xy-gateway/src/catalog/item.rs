//! One item of a list as its server wrote it, and as it stands beside those of others; and a
//! page of them. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde_json::value::RawValue;
use xy_mcp::edit::Edits;
use xy_mcp::envelope::text_of;
use xy_protocol::control::quoted;

use super::{Kind, TOLD};
use crate::names;
use crate::sanitize::Fit;

/// One tool, prompt, resource or template, as its server wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    /// What the server calls it.
    pub(crate) name: Arc<str>,
    /// All of it.
    pub(crate) raw: Arc<str>,
    /// As every client can read it, if it can be so: one that cannot be read spoils a whole
    /// list for some.
    pub(super) for_all: Option<Readable>,
}

/// The text of an item that every client can read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Readable {
    raw: Arc<str>,
    /// Where in that its name stands.
    at: Range<usize>,
}

impl Item {
    /// `None` for what has no name.
    pub(crate) fn read(kind: Kind, raw: &str) -> Option<Self> {
        Self::fitted(kind, raw).map(|(item, _)| item)
    }

    /// The same, and how it is beside those of other servers.
    fn fitted(kind: Kind, raw: &str) -> Option<(Self, Fit)> {
        let (name, at) = name_in(kind, raw)?;
        let (fit, raw) = (Fit::of(kind, raw), Arc::<str>::from(raw));
        let for_all = match &fit {
            Fit::Sound => Some(Readable { raw: raw.clone(), at }),
            Fit::Mended { text, .. } => {
                name_in(kind, text).map(|(_, at)| Readable { raw: text.as_str().into(), at })
            }
            Fit::Unfit { .. } => None,
        };
        Some((Self { name, raw, for_all }, fit))
    }
}

/// What an item is called, and where that stands.
fn name_in(kind: Kind, raw: &str) -> Option<(Arc<str>, Range<usize>)> {
    let fields: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_str(raw).ok()?;
    let written = fields.get(kind.field())?.get();
    let begins = written.as_ptr() as usize - raw.as_ptr() as usize;
    Some((text_of(written)?.into(), begins..begins + written.len()))
}

impl Readable {
    /// As it is shown beside those of other servers.
    pub(super) fn shown_as(&self, name: &str) -> Arc<str> {
        let (before, after) = (&self.raw[..self.at.start], &self.raw[self.at.end..]);
        let mut shown = Vec::with_capacity(self.raw.len() + name.len());
        let text = [before, &names::quoted(name), after].concat();
        xy_mcp::edit::append_on_one_line(&mut shown, text.as_bytes());
        String::from_utf8_lossy(&shown).into()
    }

    /// The same with another description.
    pub(super) fn described_as(&self, name: &str, description: &str) -> Arc<str> {
        let fields: BTreeMap<Cow<'_, str>, &RawValue> =
            serde_json::from_str(&self.raw).unwrap_or_default(); // It was read before.
        let mut edits = Edits::of(self.raw.as_bytes());
        let (name, description) = (names::quoted(name), names::quoted(description));
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
pub(crate) struct Page {
    pub(crate) items: Vec<Item>,
    /// What asks for the next, as it is written.
    pub(crate) next: Option<String>,
    /// How many had no name.
    pub(crate) nameless: usize,
    /// What is not as the protocol has it, as words for a log.
    pub(crate) odd: Option<String>,
}

impl Page {
    /// Reads the result of a list.
    pub(crate) fn read(kind: Kind, result: &str) -> Result<Self, String> {
        let not_one =
            |cause: &dyn std::fmt::Display| format!("its {} is none: {cause}", kind.method());
        let fields: BTreeMap<Cow<'_, str>, &RawValue> =
            serde_json::from_str(result).map_err(|cause| not_one(&cause))?;
        let list =
            fields.get(kind.key()).ok_or_else(|| not_one(&format!("no `{}`", kind.key())))?;
        let raw: Vec<&RawValue> =
            serde_json::from_str(list.get()).map_err(|cause| not_one(&cause))?;
        let (mut items, mut odd) = (Vec::with_capacity(raw.len()), Odd::default());
        for (item, fit) in raw.iter().filter_map(|raw| Item::fitted(kind, raw.get())) {
            odd.note(&item.name, &fit);
            items.push(item);
        }
        let next =
            fields.get("nextCursor").map(|raw| raw.get().to_owned()).filter(|it| it != "null");
        let nameless = raw.len() - items.len();
        Ok(Self { items, next, nameless, odd: odd.words(kind) })
    }
}

/// The items that some clients could not read as they are.
#[derive(Default)]
struct Odd {
    count: usize,
    first: Vec<String>,
}

impl Odd {
    fn note(&mut self, name: &str, fit: &Fit) {
        let what = match fit {
            Fit::Sound => return,
            Fit::Mended { parts, .. } => format!("is shown with its {} mended", parts.join(", ")),
            Fit::Unfit { part } => format!("is not shown for its {part}"),
        };
        self.count += 1;
        if self.first.len() < TOLD {
            self.first.push(format!("`{}` {what}", quoted(name)));
        }
    }

    fn words(self, kind: Kind) -> Option<String> {
        let Self { count, first } = self;
        let (method, first) = (kind.method(), first.join(", "));
        let rest = if count > TOLD { " …" } else { "" };
        let words =
            format!("{count} of {method} are not as all clients can read them: {first}{rest}");
        (count > 0).then_some(words)
    }
}
