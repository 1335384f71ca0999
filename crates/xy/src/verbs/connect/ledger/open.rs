//! The client's open requests, in order.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Deserialize;
use xy_mcp::repeat;

use super::LineNo;
use super::listen::{ListenState, continues_request};

/// Maximum number of open requests; more are rejected.
const MAX_OPEN: usize = 65_536;

/// Maximum length of an id, in bytes.
const MAX_ID_LENGTH: usize = 1024;

/// Maximum size of a request that is kept to be sent again, in bytes.
const MAX_REQUEST_BYTES: usize = 64 * 1024;

/// Maximum size of all kept requests, in bytes.
const MAX_TOTAL_BYTES: usize = 8 * 1024 * 1024;

/// Maximum number of kept listens; a daemon allows a client as many.
const MAX_LISTENS: usize = 100;

/// The kind of a request, which decides what happens to it when the connection is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestKind {
    Initialize,
    SetLevel,
    Subscribe(String),
    Unsubscribe(String),
    /// Stays open until the client or the daemon ends it.
    Listen(ListenState),
    /// Its result tells which tools may be called twice.
    ListTools {
        is_first_page: bool,
    },
    /// Calls a tool that is read-only or idempotent, and may be sent again once.
    RepeatableCall,
    /// Calls a tool of an unknown kind, and may become a [`Self::RepeatableCall`].
    UncheckedCall,
    /// Only reads, so it may be repeated.
    Harmless,
    /// May have effects, so it must not be repeated.
    Once,
}

impl RequestKind {
    pub(super) fn of(method: &str, params: Option<&str>) -> Self {
        match method {
            "initialize" => Self::Initialize,
            "logging/setLevel" => Self::SetLevel,
            "resources/subscribe" => uri_in(params).map_or(Self::Harmless, Self::Subscribe),
            "resources/unsubscribe" => uri_in(params).map_or(Self::Harmless, Self::Unsubscribe),
            "subscriptions/listen" => Self::Listen(ListenState::Pending),
            "prompts/get" | "resources/read" if continues_request(params) => Self::Once,
            "tools/list" => Self::ListTools { is_first_page: cursor_in(params).is_none() },
            _ if repeat::is_lookup(method) => Self::Harmless,
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

/// An open request.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) id: String,
    pub(super) kind: RequestKind,
    /// The line without its newline, if it may be sent again.
    pub(super) text: Option<Vec<u8>>,
}

impl Open {
    fn is_listen(&self) -> bool {
        matches!(self.kind, RequestKind::Listen(_))
    }

    fn is_kept_listen(&self) -> bool {
        self.is_listen() && self.text.is_some()
    }

    fn is_kept_call(&self) -> bool {
        matches!(self.kind, RequestKind::RepeatableCall | RequestKind::UncheckedCall)
            && self.text.is_some()
    }
}

/// The reason why a request is rejected.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InsertError {
    TooMany(usize),
    IdTooLong(usize),
}

#[derive(Debug, Default)]
pub(super) struct OpenRequests {
    by_line: BTreeMap<LineNo, Open>,
    by_id: HashMap<String, LineNo>,
    /// The calls with a text.
    kept_calls: BTreeSet<LineNo>,
    /// Total size of all kept texts.
    kept_bytes: usize,
    /// Number of listens with a text.
    listens: usize,
}

impl OpenRequests {
    pub(super) fn insert(
        &mut self,
        no: LineNo,
        id: &str,
        kind: RequestKind,
        line: &[u8],
    ) -> Result<(), InsertError> {
        if id.len() > MAX_ID_LENGTH {
            return Err(InsertError::IdTooLong(MAX_ID_LENGTH));
        }
        // A client that uses an id twice gets only one error response.
        self.remove(id);
        if self.by_line.len() >= MAX_OPEN {
            return Err(InsertError::TooMany(MAX_OPEN));
        }
        let line = line.trim_ascii_end();
        let is_kept = self.may_keep(&kind)
            && line.len() <= MAX_REQUEST_BYTES
            && self.kept_bytes + line.len() <= MAX_TOTAL_BYTES;
        let text = is_kept.then(|| line.to_vec());
        self.kept_bytes += text.as_ref().map_or(0, Vec::len);
        let open = Open { id: id.to_owned(), kind, text };
        self.listens += usize::from(open.is_kept_listen());
        if open.is_kept_call() {
            self.kept_calls.insert(no);
        }
        self.by_id.insert(id.to_owned(), no);
        self.by_line.insert(no, open);
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_line.is_empty()
    }

    fn may_keep(&self, kind: &RequestKind) -> bool {
        match kind {
            RequestKind::Once => false,
            RequestKind::Listen(_) => self.listens < MAX_LISTENS,
            _ => true,
        }
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<Open> {
        let no = self.by_id.remove(id)?;
        let open = self.by_line.remove(&no)?;
        self.kept_bytes -= open.text.as_ref().map_or(0, Vec::len);
        self.listens -= usize::from(open.is_kept_listen());
        self.kept_calls.remove(&no);
        Some(open)
    }

    /// Returns the listen with this id.
    pub(super) fn listening(&mut self, id: &str) -> Option<&mut ListenState> {
        match &mut self.by_line.get_mut(self.by_id.get(id)?)?.kind {
            RequestKind::Listen(listening) => Some(listening),
            _ => None,
        }
    }

    /// Returns all listens.
    pub(super) fn all_listening(&mut self) -> impl Iterator<Item = &mut ListenState> {
        self.by_line.values_mut().filter_map(|open| match &mut open.kind {
            RequestKind::Listen(listening) => Some(listening),
            _ => None,
        })
    }

    /// Removes the requests of this line and of later lines.
    pub(super) fn remove_from(&mut self, first: LineNo) {
        let later: Vec<String> = self.by_line.range(first..).map(|(_, it)| it.id.clone()).collect();
        for id in later {
            self.remove(&id);
        }
    }

    /// Returns the first call of an unknown tool that may be sent again.
    pub(super) fn first_unchecked(&self) -> Option<&[u8]> {
        let calls = self.kept_calls.iter().filter_map(|no| self.by_line.get(no));
        let mut unchecked = calls.filter(|open| open.kind == RequestKind::UncheckedCall);
        unchecked.next()?.text.as_deref()
    }

    /// Classifies the unchecked calls by their lines.
    pub(super) fn check_calls(&mut self, kind: impl Fn(&[u8]) -> RequestKind) {
        for no in self.kept_calls.clone() {
            let Some(open) = self.by_line.get_mut(&no) else { continue };
            let Some(text) = open.text.as_ref().filter(|_| open.kind == RequestKind::UncheckedCall)
            else {
                continue;
            };
            open.kind = kind(text);
            if open.kind == RequestKind::Once {
                self.kept_bytes -= open.text.take().map_or(0, |text| text.len());
                self.kept_calls.remove(&no);
            }
        }
    }

    /// Prevents the calls that are open now from being sent again.
    pub(super) fn forbid_repeats(&mut self) {
        for no in std::mem::take(&mut self.kept_calls) {
            let text = self.by_line.get_mut(&no).and_then(|open| open.text.take());
            self.kept_bytes -= text.map_or(0, |text| text.len());
        }
    }

    /// Removes and returns the requests that cannot be sent again, in order.
    pub(super) fn take_unrepeatable(&mut self) -> Vec<Open> {
        self.take(|open| open.text.is_none())
    }

    /// Removes and returns the listens, in order.
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

    /// Returns the requests to send again, in order.
    pub(super) fn texts(&self) -> impl Iterator<Item = &[u8]> {
        self.by_line.values().filter_map(|open| open.text.as_deref())
    }
}
