//! The client's requests that are not answered, in their order.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use super::LineNo;

/// How many requests may be open; a client with more has lost count.
const MAX_OPEN: usize = 65_536;

/// The longest id.
const MAX_ID: usize = 1024;

/// The longest request that is kept to be sent again.
const MAX_TEXT: usize = 64 * 1024;

/// How much is kept of all of them.
const MAX_TEXTS: usize = 8 * 1024 * 1024;

/// What a request is about, as far as it matters when its daemon dies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ask {
    Initialize,
    SetLevel,
    Subscribe(String),
    Unsubscribe(String),
    /// Nothing can happen twice: it only reads.
    Harmless,
    /// Something might happen twice.
    Once,
}

impl Ask {
    pub(super) fn of(method: &str, params: Option<&str>) -> Self {
        match method {
            "initialize" => Self::Initialize,
            "logging/setLevel" => Self::SetLevel,
            "resources/subscribe" => uri_in(params).map_or(Self::Harmless, Self::Subscribe),
            "resources/unsubscribe" => uri_in(params).map_or(Self::Harmless, Self::Unsubscribe),
            "ping"
            | "tools/list"
            | "prompts/list"
            | "prompts/get"
            | "resources/list"
            | "resources/templates/list"
            | "resources/read"
            | "completion/complete"
            | "server/discover"
            | "subscriptions/listen" => Self::Harmless,
            _ => Self::Once,
        }
    }
}

fn uri_in(params: Option<&str>) -> Option<String> {
    #[derive(Deserialize)]
    struct Params {
        uri: String,
    }
    let params: Params = serde_json::from_str(params?).ok()?;
    Some(params.uri)
}

/// One request that is not answered.
#[derive(Debug)]
pub(super) struct Open {
    id: String,
    pub(super) ask: Ask,
    /// The line without its end, if it may be sent again.
    pub(super) text: Option<Vec<u8>>,
}

/// Why a request is not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    TooMany(usize),
    IdTooLong(usize),
}

#[derive(Debug, Default)]
pub(super) struct OpenRequests {
    by_line: BTreeMap<LineNo, Open>,
    by_id: HashMap<String, LineNo>,
    /// The bytes of all texts.
    kept: usize,
}

impl OpenRequests {
    pub(super) fn insert(
        &mut self,
        no: LineNo,
        id: &str,
        ask: Ask,
        line: &[u8],
    ) -> Result<(), Refused> {
        if id.len() > MAX_ID {
            return Err(Refused::IdTooLong(MAX_ID));
        }
        // A client that uses an id twice hears one answer of ours.
        self.remove(id);
        if self.by_line.len() >= MAX_OPEN {
            return Err(Refused::TooMany(MAX_OPEN));
        }
        let line = line.trim_ascii_end();
        let is_kept =
            ask != Ask::Once && line.len() <= MAX_TEXT && self.kept + line.len() <= MAX_TEXTS;
        let text = is_kept.then(|| line.to_vec());
        self.kept += text.as_ref().map_or(0, Vec::len);
        self.by_id.insert(id.to_owned(), no);
        self.by_line.insert(no, Open { id: id.to_owned(), ask, text });
        Ok(())
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<Open> {
        let no = self.by_id.remove(id)?;
        let open = self.by_line.remove(&no)?;
        self.kept -= open.text.as_ref().map_or(0, Vec::len);
        Some(open)
    }

    /// Forgets those that stood in this line or a later one.
    pub(super) fn remove_from(&mut self, first: LineNo) {
        let later: Vec<String> = self.by_line.range(first..).map(|(_, it)| it.id.clone()).collect();
        for id in later {
            self.remove(&id);
        }
    }

    /// Takes out those that cannot be sent again, and answers their ids in order.
    pub(super) fn take_unrepeatable(&mut self) -> Vec<String> {
        self.take(|open| open.text.is_none())
    }

    pub(super) fn take_all(&mut self) -> Vec<String> {
        self.take(|_| true)
    }

    fn take(&mut self, wanted: impl Fn(&Open) -> bool) -> Vec<String> {
        let open = self.by_line.values().filter(|open| wanted(open));
        let ids: Vec<String> = open.map(|open| open.id.clone()).collect();
        for id in &ids {
            self.remove(id);
        }
        ids
    }

    /// Those that are sent again, in order.
    pub(super) fn texts(&self) -> impl Iterator<Item = &[u8]> {
        self.by_line.values().filter_map(|open| open.text.as_deref())
    }
}
