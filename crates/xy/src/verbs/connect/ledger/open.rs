//! The client's requests that are not answered, in their order.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use super::LineNo;
use super::listen::{Listening, is_another_round};

/// How many requests may be open; a client with more has lost count.
const MAX_OPEN: usize = 65_536;

/// The longest id.
const MAX_ID: usize = 1024;

/// The longest request that is kept to be sent again.
const MAX_TEXT: usize = 64 * 1024;

/// How much is kept of all of them.
const MAX_TEXTS: usize = 8 * 1024 * 1024;

/// How many listens are kept among them: as many as a daemon grants one client.
const MAX_LISTENS: usize = 100;

/// What a request is about, as far as it matters when its daemon dies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ask {
    Initialize,
    SetLevel,
    Subscribe(String),
    Unsubscribe(String),
    /// Not answered as long as the client wants to be told things.
    Listen(Listening),
    /// Its answer says which tools may be called twice.
    ListTools {
        is_first_page: bool,
    },
    /// Calls a tool that is read-only or idempotent, and may be sent again once.
    RepeatableCall,
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
            "subscriptions/listen" => Self::Listen(Listening::Asked),
            "prompts/get" | "resources/read" if is_another_round(params) => Self::Once,
            "tools/list" => Self::ListTools { is_first_page: cursor_in(params).is_none() },
            "ping"
            | "prompts/list"
            | "prompts/get"
            | "resources/list"
            | "resources/templates/list"
            | "resources/read"
            | "completion/complete"
            | "server/discover" => Self::Harmless,
            _ => Self::Once,
        }
    }
}

fn cursor_in(params: Option<&str>) -> Option<String> {
    #[derive(Deserialize)]
    struct Params {
        cursor: Option<String>,
    }
    serde_json::from_str::<Params>(params?).ok()?.cursor
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
    pub(super) id: String,
    pub(super) ask: Ask,
    /// The line without its end, if it may be sent again.
    pub(super) text: Option<Vec<u8>>,
}

impl Open {
    fn is_listen(&self) -> bool {
        matches!(self.ask, Ask::Listen(_))
    }

    fn is_kept_listen(&self) -> bool {
        self.is_listen() && self.text.is_some()
    }
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
    /// How many listens have a text.
    listens: usize,
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
            self.may_keep(&ask) && line.len() <= MAX_TEXT && self.kept + line.len() <= MAX_TEXTS;
        let text = is_kept.then(|| line.to_vec());
        self.kept += text.as_ref().map_or(0, Vec::len);
        let open = Open { id: id.to_owned(), ask, text };
        self.listens += usize::from(open.is_kept_listen());
        self.by_id.insert(id.to_owned(), no);
        self.by_line.insert(no, open);
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_line.is_empty()
    }

    fn may_keep(&self, ask: &Ask) -> bool {
        match ask {
            Ask::Once => false,
            Ask::Listen(_) => self.listens < MAX_LISTENS,
            _ => true,
        }
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<Open> {
        let no = self.by_id.remove(id)?;
        let open = self.by_line.remove(&no)?;
        self.kept -= open.text.as_ref().map_or(0, Vec::len);
        self.listens -= usize::from(open.is_kept_listen());
        Some(open)
    }

    /// The listen with this id.
    pub(super) fn listening(&mut self, id: &str) -> Option<&mut Listening> {
        match &mut self.by_line.get_mut(self.by_id.get(id)?)?.ask {
            Ask::Listen(listening) => Some(listening),
            _ => None,
        }
    }

    /// Every listen.
    pub(super) fn all_listening(&mut self) -> impl Iterator<Item = &mut Listening> {
        self.by_line.values_mut().filter_map(|open| match &mut open.ask {
            Ask::Listen(listening) => Some(listening),
            _ => None,
        })
    }

    /// Forgets those that stood in this line or a later one.
    pub(super) fn remove_from(&mut self, first: LineNo) {
        let later: Vec<String> = self.by_line.range(first..).map(|(_, it)| it.id.clone()).collect();
        for id in later {
            self.remove(&id);
        }
    }

    /// Forbids that calls which are open now are sent again.
    pub(super) fn forbid_repeats(&mut self) {
        for open in self.by_line.values_mut().filter(|open| open.ask == Ask::RepeatableCall) {
            self.kept -= open.text.take().map_or(0, |text| text.len());
        }
    }

    /// Takes out those that cannot be sent again, in order.
    pub(super) fn take_unrepeatable(&mut self) -> Vec<Open> {
        self.take(|open| open.text.is_none())
    }

    /// Takes out the listens, in order.
    pub(super) fn take_listens(&mut self) -> Vec<Open> {
        self.take(Open::is_listen)
    }

    pub(super) fn take_all(&mut self) -> Vec<Open> {
        self.take(|_| true)
    }

    fn take(&mut self, wanted: impl Fn(&Open) -> bool) -> Vec<Open> {
        let open = self.by_line.values().filter(|open| wanted(open));
        let ids: Vec<String> = open.map(|open| open.id.clone()).collect();
        ids.iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Those that are sent again, in order.
    pub(super) fn texts(&self) -> impl Iterator<Item = &[u8]> {
        self.by_line.values().filter_map(|open| open.text.as_deref())
    }
}
