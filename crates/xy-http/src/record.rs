//! The record of a session for the next daemon, and the journal of all records. Pure.
//!
//! The journal is a text file. Each line is a checksum followed by JSON: first a header, then one
//! [`Change`] per line. Bytes after the last line end are an interrupted write and are ignored.
//! Anything else that cannot be read means that the journal is damaged.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use xy_mcp::envelope::{Malformed, Message, text_of};
use xy_mcp::level::Level;
use xy_transport::message_text::MessageText;

use crate::digest;
use crate::frontend::{MAX_BATCH, StreamNo};
use crate::guard::Digest;
use crate::request_body::RequestBody;
use crate::session_id::{KEYS_MAX, KeyBytes};

const FORMAT: u32 = 1;

/// Maximum size of an `initialize` request in a record. Clients send about 300 bytes.
pub(super) const INITIALIZE_BYTES_MAX: usize = 16 * 1024;

/// Maximum size of one record, so that a session cannot use the space of others.
pub(super) const RECORD_BYTES_MAX: usize = 64 * 1024;

/// Maximum number of records: twice the default maximum of sessions, as sessions of an earlier
/// daemon may not be used again.
const RECORDS_MAX: usize = 2000;

/// Maximum size of all records together.
const RECORDS_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Maximum size of the file. It is compacted long before.
pub(super) const FILE_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// Maximum number of subscriptions in a record.
pub(super) const SUBSCRIPTIONS_MAX: usize = 256;

/// Maximum number of daemons whose event ids a session recognises.
const TAGS_MAX: usize = 8;

/// Maximum number of requests on event streams in a record. Clients may have fewer open at a time,
/// so all open ones fit.
const CALLS_MAX: usize = 1024;

/// Maximum size of these requests. It suffices for the maximum number with short ids.
const CALLS_BYTES_MAX: usize = 128 * 1024;

/// Identifies the events of a session in one daemon: the daemon's generation and a random number.
pub(super) type EventTag = u64;

/// The state of a session that the next daemon needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    #[serde(with = "hex")]
    pub(super) session: u128,
    /// The key that sealed the session id.
    pub(super) key: u32,
    /// The digest of the token's secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) owner: Option<String>,
    /// The `initialize` request, as the client wrote it.
    pub(super) initialize: String,
    #[serde(default)]
    pub(super) initialized: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) level: Option<String>,
    /// The subscribed resources, by the names that the client uses.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) subscriptions: BTreeSet<String>,
    /// The tags of the session's events, the newest last.
    #[serde(default)]
    pub(super) tags: VecDeque<EventTag>,
    /// The requests on event streams that can be resumed, the newest last.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub(super) calls: VecDeque<StreamedCall>,
}

/// A request that is answered on an event stream. The requests of a batch share one stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StreamedCall {
    pub(super) tag: EventTag,
    pub(super) stream: StreamNo,
    /// The id of the request, as the client wrote it.
    pub(super) request: String,
    /// The position of the response on the stream. A client that has read so far has the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) answered_at: Option<u64>,
}

impl StreamedCall {
    /// Returns the approximate size in bytes.
    fn size(&self) -> usize {
        const FIXED: usize = 80;
        FIXED + written_len(&self.request)
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.tag, self.stream, &self.request) == (other.tag, other.stream, &other.request)
    }
}

/// A change of a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Change {
    Begin(Box<Record>),
    Initialized(#[serde(with = "hex")] u128),
    /// `None` stands for the initial level.
    Level(#[serde(with = "hex")] u128, Option<String>),
    Subscribe(#[serde(with = "hex")] u128, String),
    Unsubscribe(#[serde(with = "hex")] u128, String),
    /// Another daemon continues the session.
    Tag(#[serde(with = "hex")] u128, EventTag),
    /// A request is, or was, answered on an event stream.
    Call(#[serde(with = "hex")] u128, StreamedCall),
    /// A stream can no longer be resumed.
    StreamEnd(#[serde(with = "hex")] u128, EventTag, StreamNo),
    End(#[serde(with = "hex")] u128),
}

impl Change {
    /// Returns the session of the change.
    pub(super) fn session(&self) -> u128 {
        match self {
            Self::Begin(record) => record.session,
            Self::Initialized(session)
            | Self::Level(session, _)
            | Self::Subscribe(session, _)
            | Self::Unsubscribe(session, _)
            | Self::Tag(session, _)
            | Self::Call(session, _)
            | Self::StreamEnd(session, ..)
            | Self::End(session) => *session,
        }
    }

    /// Returns true if a record may be used without this change: an event id itself says that it is
    /// of a call.
    pub(super) fn is_optional(&self) -> bool {
        matches!(self, Self::Call(..) | Self::StreamEnd(..))
    }

    /// Returns the approximate maximum size in bytes that the change adds to a record.
    fn size(&self) -> usize {
        match self {
            Self::Subscribe(_, uri) => written_len(uri) + 1,
            Self::Call(_, call) if call.answered_at.is_none() => call.size(),
            _ => 0,
        }
    }

    /// Returns true if the change fits into no record.
    pub(super) fn is_too_large(&self) -> bool {
        match self {
            Self::Begin(record) => record.initialize.len() > INITIALIZE_BYTES_MAX,
            Self::Subscribe(_, uri) | Self::Unsubscribe(_, uri) => uri.len() > RECORD_BYTES_MAX,
            Self::Call(_, call) => call.request.len() > CALLS_BYTES_MAX,
            _ => false,
        }
    }
}

impl Record {
    /// Returns the approximate size in bytes.
    fn size(&self) -> usize {
        const FIXED: usize = 256;
        let watched: usize = self.subscriptions.iter().map(|uri| written_len(uri) + 1).sum();
        FIXED + written_len(&self.initialize) + watched + self.calls_size()
    }

    fn calls_size(&self) -> usize {
        self.calls.iter().map(StreamedCall::size).sum()
    }

    /// Adds a request, or the position of its response. If there is no room, removes answered
    /// requests and those of earlier daemons; returns false if that is not enough.
    fn apply_call(&mut self, call: &StreamedCall) -> bool {
        if let Some(known) = self.calls.iter_mut().find(|it| it.is_same(call)) {
            known.answered_at = call.answered_at;
            return true;
        }
        if call.answered_at.is_some() {
            return false;
        }
        let newest = self.tags.back().copied();
        let is_spare = |it: &StreamedCall| it.answered_at.is_some() || Some(it.tag) != newest;
        let is_full = |calls: usize, size: usize| calls >= CALLS_MAX || size > CALLS_BYTES_MAX;
        let mut size = self.calls_size() + call.size();
        let spare = self.calls.iter().filter(|it| is_spare(it)).map(StreamedCall::size);
        let (spare, spare_size) = spare.fold((0, 0), |(count, all), size| (count + 1, all + size));
        if is_full(self.calls.len() - spare, size - spare_size) {
            return false;
        }
        while is_full(self.calls.len(), size) {
            let Some(at) = self.calls.iter().position(is_spare) else { return false };
            size -= self.calls.remove(at).map_or(0, |removed| removed.size());
        }
        self.calls.push_back(call.clone());
        true
    }

    /// Applies a change. Returns false if there is no room for it.
    fn apply(&mut self, change: &Change) -> bool {
        match change {
            Change::Begin(_) | Change::End(_) => {}
            Change::Initialized(_) => self.initialized = true,
            Change::Level(_, level) => self.level.clone_from(level),
            Change::Subscribe(_, uri) => {
                let has_room = self.subscriptions.len() < SUBSCRIPTIONS_MAX
                    && self.size() - self.calls_size() + change.size() <= RECORD_BYTES_MAX;
                if !has_room && !self.subscriptions.contains(uri) {
                    return false;
                }
                self.subscriptions.insert(uri.clone());
            }
            Change::Unsubscribe(_, uri) => drop(self.subscriptions.remove(uri)),
            Change::Tag(_, tag) => {
                self.tags.push_back(*tag);
                while self.tags.len() > TAGS_MAX {
                    self.tags.pop_front();
                }
                let tags = &self.tags;
                self.calls.retain(|call| tags.contains(&call.tag));
            }
            Change::Call(_, call) => return self.apply_call(call),
            Change::StreamEnd(_, tag, stream) => {
                self.calls.retain(|it| (it.tag, it.stream) != (*tag, *stream));
            }
        }
        true
    }
}

/// A change that a client has requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestedChange {
    /// The id of the request, as the client wrote it; empty for a notification.
    pub(super) request: Box<str>,
    pub(super) change: Change,
}

/// Returns the changes that a message makes in the record of its session, if it is accepted.
pub(super) fn changes_of(session: u128, message: &RequestBody) -> Vec<RequestedChange> {
    let has = |word: &str| memchr::memmem::find(message.text(), word.as_bytes()).is_some();
    // Nearly all messages are calls, which need no parsing here. A large one is parsed already.
    if matches!(message, RequestBody::Small(_)) && !WORDS.into_iter().any(has) {
        return Vec::new();
    }
    let text = message.as_text();
    match text.message() {
        Ok(one) => change_of(session, &one, text).into_iter().collect(),
        Err(Malformed::Batch) => {
            let parts = text.batch().unwrap_or_default();
            // A longer batch is refused completely.
            let parts = Some(parts).filter(|parts| parts.len() <= MAX_BATCH).into_iter().flatten();
            parts.filter_map(|part| change_of(session, &part.message().ok()?, part)).collect()
        }
        Err(_) => Vec::new(),
    }
}

/// Every message that changes a record contains one of these.
const WORDS: [&str; 3] = ["initialized", "setLevel", "ubscribe"];

fn change_of<'t>(
    session: u128,
    message: &Message<'t>,
    text: MessageText<'t>,
) -> Option<RequestedChange> {
    let (id, method, params) = match message {
        Message::Request { id, method, params } => (*id, &**method, *params),
        Message::Notification { method, .. } if method == "notifications/initialized" => {
            let change = Change::Initialized(session);
            return Some(RequestedChange { request: Box::default(), change });
        }
        _ => return None,
    };
    let params = text.params(params);
    let uri = || params.uri().and_then(text_of).map(Cow::into_owned);
    let change = match method {
        "logging/setLevel" => {
            let level = Level::parse(&params.level().and_then(text_of)?)?;
            Change::Level(session, Some(level.to_string()))
        }
        "resources/subscribe" => Change::Subscribe(session, uri()?),
        "resources/unsubscribe" => Change::Unsubscribe(session, uri()?),
        _ => return None,
    };
    Some(RequestedChange { request: id.into(), change })
}

/// Returns the digest of a token's secret as records contain it.
pub(super) fn owner_text(owner: &Digest) -> String {
    owner.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // Writing to a `String` cannot fail.
        text
    })
}

/// All records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Journal {
    /// Identifies the journal among all that this state folder ever had.
    pub(super) epoch: u64,
    /// The keys for session ids by number, the newest last.
    pub(super) keys: Vec<(u32, KeyBytes)>,
    records: HashMap<u128, Record>,
    size: usize,
}

#[derive(Serialize, Deserialize)]
struct Header {
    format: u32,
    epoch: u64,
    keys: Vec<(u32, String)>,
}

impl Journal {
    /// Creates an empty journal.
    pub(super) fn new(epoch: u64) -> Self {
        Self { epoch, keys: Vec::new(), records: HashMap::new(), size: 0 }
    }

    /// Parses a journal. The error says how it is damaged.
    pub(super) fn decode(text: &[u8]) -> Result<Self, String> {
        let whole = memchr::memrchr(b'\n', text).map_or(0, |end| end + 1);
        let mut lines = text[..whole].split_terminator_lines();
        let header = lines.next().ok_or("it has no header")?;
        let header: Header = read_line(header).ok_or("its header cannot be read")?;
        if header.format != FORMAT {
            return Err(format!("its format is {}, and not {FORMAT}", header.format));
        }
        let mut journal = Self::new(header.epoch);
        for (number, key) in header.keys.iter().take(KEYS_MAX) {
            let key = key_of(key).ok_or("a key in its header cannot be read")?;
            journal.keys.push((*number, key));
        }
        for (number, line) in lines.enumerate() {
            let change: Change =
                read_line(line).ok_or_else(|| format!("line {} cannot be read", number + 2))?;
            journal.apply(&change);
        }
        Ok(journal)
    }

    /// Returns the current contents of the journal, without its history.
    pub(super) fn encode(&self) -> Vec<u8> {
        let key = |(number, key): &(u32, KeyBytes)| (*number, owner_text(key));
        let keys = self.keys.iter().map(key).collect();
        let mut text = line(&Header { format: FORMAT, epoch: self.epoch, keys });
        for record in self.records.values() {
            text.extend_from_slice(&line(&Change::Begin(Box::new(record.clone()))));
        }
        text
    }

    /// Returns a change in the form in which it is appended.
    pub(super) fn encode_change(change: &Change) -> Vec<u8> {
        line(change)
    }

    /// Applies a change. Returns false if it cannot be kept. A change of a session without a record
    /// has no effect.
    pub(super) fn apply(&mut self, change: &Change) -> bool {
        match change {
            Change::Begin(record) => self.begin(record),
            Change::End(session) => {
                let ended = self.records.remove(session);
                self.size -= ended.map_or(0, |record| record.size());
                true
            }
            change => {
                // A larger journal could not be read back.
                let is_full = self.size + change.size() > RECORDS_BYTES_MAX;
                let Some(record) = self.records.get_mut(&change.session()) else { return false };
                let before = record.size();
                if is_full && change.size() > 0 {
                    return false;
                }
                let is_kept = record.apply(change);
                self.size = self.size - before + record.size();
                is_kept
            }
        }
    }

    fn begin(&mut self, record: &Record) -> bool {
        let size = record.size();
        let has_room = record.initialize.len() <= INITIALIZE_BYTES_MAX
            && size <= RECORD_BYTES_MAX + CALLS_BYTES_MAX
            && self.records.len() < RECORDS_MAX
            && self.size + size <= RECORDS_BYTES_MAX;
        if has_room {
            let before = self.records.insert(record.session, record.clone());
            self.size = self.size + size - before.map_or(0, |it| it.size());
        }
        has_room
    }

    /// Makes `key` the sealing key, and removes keys that no record needs. Returns true if the keys
    /// changed.
    pub(super) fn use_key(&mut self, key: KeyBytes) -> bool {
        let before = self.keys.clone();
        let newest = self.keys.last().copied();
        if newest.is_none_or(|(_, it)| it != key) {
            let number = newest.map_or(1, |(number, _)| number.wrapping_add(1));
            self.keys.push((number, key));
        }
        let used: BTreeSet<u32> = self.records.values().map(|record| record.key).collect();
        let newest = self.keys.last().map_or(0, |(number, _)| *number);
        self.keys.retain(|(number, _)| used.contains(number) || *number == newest);
        let too_many = self.keys.len().saturating_sub(KEYS_MAX);
        self.keys.drain(..too_many);
        let known: BTreeSet<u32> = self.keys.iter().map(|(number, _)| *number).collect();
        self.records.retain(|_, record| known.contains(&record.key));
        self.size = self.records.values().map(Record::size).sum();
        self.keys != before
    }

    /// Returns all records.
    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    /// Returns the approximate size of the journal in bytes.
    pub(super) fn size(&self) -> usize {
        self.size
    }
}

/// Returns the length of a text as a JSON string, with its quotes.
fn written_len(text: &str) -> usize {
    let escaped = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 8 | 12 => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(escaped).sum::<usize>() + 2
}

fn checksum(json: &[u8]) -> String {
    owner_text(&digest(json))[..8].to_owned()
}

fn line(content: &impl Serialize) -> Vec<u8> {
    let json = serde_json::to_vec(content).unwrap_or_default();
    let mut line = checksum(&json).into_bytes();
    line.push(b' ');
    line.extend_from_slice(&json);
    line.push(b'\n');
    line
}

fn read_line<T: for<'t> Deserialize<'t>>(line: &[u8]) -> Option<T> {
    let (sum, rest) = line.split_at_checked(8)?;
    let json = rest.strip_prefix(b" ")?;
    (checksum(json).as_bytes() == sum).then_some(())?;
    serde_json::from_slice(json).ok()
}

fn key_of(text: &str) -> Option<KeyBytes> {
    let mut key = KeyBytes::default();
    if text.len() != 2 * key.len() || !text.is_ascii() {
        return None;
    }
    for (index, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(key)
}

/// Splits bytes into lines without their ends.
trait Lines {
    fn split_terminator_lines(&self) -> impl Iterator<Item = &[u8]>;
}

impl Lines for [u8] {
    fn split_terminator_lines(&self) -> impl Iterator<Item = &[u8]> {
        let whole = self.strip_suffix(b"\n").unwrap_or(self);
        let has_lines = !self.is_empty();
        whole.split(|byte| *byte == b'\n').filter(move |_| has_lines)
    }
}

/// Serialises a 128-bit number as hexadecimal text, since JSON numbers are too small.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(number: &u128, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{number:032x}"))
    }

    pub(super) fn deserialize<'t, D: Deserializer<'t>>(from: D) -> Result<u128, D::Error> {
        let text = String::deserialize(from)?;
        u128::from_str_radix(&text, 16).map_err(de::Error::custom)
    }
}

#[cfg(test)]
pub(super) mod tests;
