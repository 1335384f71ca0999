//! The events of one stream: which are sent, and which can be sent again. Pure.
//!
//! ```text
//!  1 2 3 │ 4 5 6 │ 7 8
//!        │       └─ sent: passed to a connection, perhaps never read
//!        └─ forgotten: dropped, no longer available
//! ```
//!
//! Each event is either stored or counted as forgotten. A response is never forgotten before its
//! whole stream is, but an error that reports the loss may replace it.

use std::collections::VecDeque;

use hyper::body::Bytes;
use tokio::time::Instant;
use xy_mcp::envelope::{self, Message};
use xy_mcp::reply;
use xy_transport::error_log::FailedRequest;

use crate::event::{self, EventId, StreamId};

/// The JSON-RPC error that replaces a dropped response. The code says that the outcome of the call
/// is unknown to the client.
const RESPONSE_LOST_CODE: i64 = -32010;
const RESPONSE_LOST: &str = "the call completed, but its response was dropped before it was \
                           fetched: its outcome is lost";

/// The events of one stream.
#[derive(Debug)]
pub(super) struct ReplayBuffer {
    /// The id of the stream. Without it, events have no ids, cannot be sent again and are not kept.
    id: Option<StreamId>,
    /// The events after `forgotten`, without a gap.
    events: VecDeque<Event>,
    forgotten: u64,
    sent: u64,
    bytes: usize,
    /// The number of bytes that were not sent.
    unsent_bytes: usize,
    /// Whether the client has received an event id of this stream.
    has_sent_id: bool,
    /// The method of the request that the response answers; empty if that is unknown.
    answered_method: Box<str>,
}

#[derive(Debug)]
struct Event {
    bytes: Bytes,
    data_at: usize,
    put_at: Instant,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Message,
    Response,
    /// An error in place of a response.
    ResponseLost,
}

/// Which events may be dropped to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Evictable {
    /// Sent events.
    Sent,
    /// All events.
    All,
}

/// Which kind of event was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Eviction {
    /// A sent event, which the client has perhaps received.
    Sent,
    /// An unsent event.
    Unsent,
}

impl ReplayBuffer {
    pub(super) fn new(id: Option<StreamId>) -> Self {
        Self {
            id,
            events: VecDeque::new(),
            forgotten: 0,
            sent: 0,
            bytes: 0,
            unsent_bytes: 0,
            has_sent_id: false,
            answered_method: Box::default(),
        }
    }

    /// Sets the method of the request that the response answers, for the log.
    pub(super) fn set_answered_method(&mut self, method: Box<str>) {
        self.answered_method = method;
    }

    /// Returns the number of stored events.
    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns the size of all stored events.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if the client has received an event id of this stream, so that it can resume.
    pub(super) fn has_sent_id(&self) -> bool {
        self.has_sent_id
    }

    /// Returns true if every event was passed to a connection.
    pub(super) fn is_all_sent(&self) -> bool {
        self.sent >= self.last()
    }

    /// Returns the size of all unsent events.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.unsent_bytes
    }

    /// Appends a message.
    pub(super) fn push(&mut self, message: &[u8], is_response: bool, now: Instant) {
        let position = self.last() + 1;
        let (bytes, data_at) = event::encode(self.event_id(position), message);
        let kind = if is_response { Kind::Response } else { Kind::Message };
        self.bytes += bytes.len();
        self.unsent_bytes += bytes.len();
        self.events.push_back(Event { bytes, data_at, put_at: now, kind });
    }

    /// Returns all unsent events in one piece, and marks them as sent.
    pub(super) fn send(&mut self) -> Option<Bytes> {
        let mut unsent = self.events.iter().skip(self.stored_and_sent()).map(|event| &event.bytes);
        let piece = match (unsent.next(), unsent.len()) {
            (None, _) => return None,
            (Some(only), 0) => only.clone(),
            (Some(first), _) => {
                let mut all = Vec::with_capacity(self.unsent_bytes);
                all.extend_from_slice(first);
                unsent.for_each(|event| all.extend_from_slice(event));
                all.into()
            }
        };
        self.sent = self.last();
        self.unsent_bytes = 0;
        if self.id.is_some() {
            self.has_sent_id = true;
        } else {
            self.forget_up_to(self.sent);
        }
        Some(piece)
    }

    /// Returns the id of the event at a position.
    pub(super) fn event_id(&self, position: u64) -> Option<EventId> {
        self.id.map(|stream_id| EventId { stream_id, position })
    }

    /// Returns the session as the log names it; empty if there is none.
    pub(super) fn logged_client(&self) -> String {
        self.id.map(|id| format!("session {:016x}", id.tag)).unwrap_or_default()
    }

    /// Records that the client has received an event id of this stream.
    pub(super) fn record_sent_id(&mut self) {
        self.has_sent_id |= self.id.is_some();
    }

    /// Rewinds to `position`, up to which the client has received everything. Returns the number of
    /// later events that were dropped. Returns `None` if the client cannot know that position.
    pub(super) fn rewind(&mut self, position: u64) -> Option<u64> {
        if position > self.sent || !self.has_sent_id {
            return None;
        }
        let missed = self.forgotten.saturating_sub(position);
        self.forget_up_to(position);
        self.sent = position.max(self.forgotten);
        self.unsent_bytes = self.events.iter().map(|event| event.bytes.len()).sum();
        Some(missed)
    }

    /// Returns true if no event follows `position`.
    pub(super) fn is_last(&self, position: u64) -> bool {
        position == self.last()
    }

    /// Removes and returns the unsent messages, to send them on another stream.
    pub(super) fn take_unsent(&mut self) -> impl Iterator<Item = Bytes> + use<> {
        let unsent = self.events.split_off(self.stored_and_sent());
        self.bytes -= self.unsent_bytes;
        self.unsent_bytes = 0;
        unsent.into_iter().map(|event| event::decode(&event.bytes, event.data_at))
    }

    /// Drops the oldest event, or replaces it by an error if it is the response.
    pub(super) fn evict(&mut self, evictable: Evictable) -> Option<Eviction> {
        let is_sent = self.stored_and_sent() > 0;
        if !is_sent && evictable == Evictable::Sent {
            return None;
        }
        let evicted = if is_sent { Eviction::Sent } else { Eviction::Unsent };
        let position = self.forgotten + 1;
        match self.events.front().map(|event| event.kind)? {
            Kind::Message => self.forget_up_to(position),
            Kind::Response => self.replace_response(position),
            Kind::ResponseLost => return None,
        }
        Some(evicted)
    }

    /// Drops events that were queued before `then`, except the response.
    pub(super) fn forget_before(&mut self, then: Instant, evictable: Evictable) {
        while let Some(event) = self.events.front()
            && event.put_at < then
            && event.kind == Kind::Message
            && (evictable == Evictable::All || self.stored_and_sent() > 0)
        {
            self.forget_up_to(self.forgotten + 1);
        }
    }

    /// Returns the position of the newest event.
    pub(super) fn last(&self) -> u64 {
        self.forgotten + self.events.len() as u64
    }

    /// Returns the number of stored events that were sent.
    fn stored_and_sent(&self) -> usize {
        usize::try_from(self.sent.saturating_sub(self.forgotten)).unwrap_or(usize::MAX)
    }

    fn forget_up_to(&mut self, position: u64) {
        while self.forgotten < position
            && let Some(event) = self.events.pop_front()
        {
            self.bytes -= event.bytes.len();
            if self.sent <= self.forgotten {
                self.unsent_bytes -= event.bytes.len();
            }
            self.forgotten += 1;
        }
    }

    /// Replaces the first event, a response, by an error that says it was lost.
    fn replace_response(&mut self, position: u64) {
        let (event_id, is_sent, client) =
            (self.event_id(position), self.sent >= position, self.logged_client());
        let Some(event) = self.events.front_mut() else { return };
        let response = event::decode(&event.bytes, event.data_at);
        let id = match envelope::parse(&response) {
            Ok(Message::Response { id: Some(id), .. }) => id.to_owned(),
            _ => "null".to_owned(),
        };
        let (client, method) = (&*client, &*self.answered_method);
        let (outcome, code) = ("answer-lost", RESPONSE_LOST_CODE);
        FailedRequest { client, id: &id, method, outcome, code, ..FailedRequest::default() }.log();
        let error = reply::error(&id, code, RESPONSE_LOST);
        let (bytes, data_at) = event::encode(event_id, &error);
        self.bytes = self.bytes + bytes.len() - event.bytes.len();
        if !is_sent {
            self.unsent_bytes = self.unsent_bytes + bytes.len() - event.bytes.len();
        }
        *event = Event { bytes, data_at, put_at: event.put_at, kind: Kind::ResponseLost };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const ID: StreamId = StreamId { tag: 1, kind: None, stream: 2 };

    fn replay_buffer() -> ReplayBuffer {
        ReplayBuffer::new(Some(ID))
    }

    fn now() -> Instant {
        Instant::now()
    }

    /// Returns the positions and data of the events in one piece.
    fn read(piece: &[u8]) -> Vec<(u64, String)> {
        let text = std::str::from_utf8(piece).unwrap();
        let parse_event = |event: &str| {
            let (id, data) = event.split_once("\nevent: message\ndata: ").unwrap();
            let id = EventId::parse(id.strip_prefix("id: ").unwrap().as_bytes()).unwrap();
            assert_eq!(id.stream_id, ID);
            (id.position, data.to_owned())
        };
        text.split_terminator("\n\n").map(parse_event).collect()
    }

    #[test]
    fn sent_events_replay_from_any_position() {
        let mut replay_buffer = replay_buffer();
        for message in ["a", "b", "c"] {
            replay_buffer.push(message.as_bytes(), false, now());
        }
        assert_eq!(read(&replay_buffer.send().unwrap()).len(), 3);
        assert_eq!(replay_buffer.send(), None);
        assert_eq!(replay_buffer.rewind(1), Some(0));
        let again = read(&replay_buffer.send().unwrap());
        assert_eq!(again, [(2, "b".to_owned()), (3, "c".to_owned())]);
        assert_eq!(replay_buffer.rewind(0), Some(1), "what it said it had is not kept");
    }

    #[test]
    fn unsent_position_cannot_be_replayed() {
        let mut replay_buffer = replay_buffer();
        replay_buffer.push(b"a", false, now());
        assert_eq!(replay_buffer.rewind(0), None, "nothing was named yet");
        replay_buffer.record_sent_id();
        assert_eq!((replay_buffer.rewind(1), replay_buffer.rewind(0)), (None, Some(0)));
    }

    #[test]
    fn evicted_answer_becomes_an_error() {
        let mut replay_buffer = replay_buffer();
        replay_buffer.record_sent_id();
        replay_buffer.push(b"1", false, now());
        let response = format!(r#"{{"jsonrpc":"2.0","id":"x","result":"{}"}}"#, "y".repeat(9000));
        replay_buffer.push(response.as_bytes(), true, now());
        assert_eq!(replay_buffer.evict(Evictable::Sent), None);
        assert_eq!(replay_buffer.evict(Evictable::All), Some(Eviction::Unsent));
        assert_eq!(replay_buffer.evict(Evictable::All), Some(Eviction::Unsent));
        assert_eq!(replay_buffer.evict(Evictable::All), None);
        assert!(replay_buffer.bytes() < 500);
        assert_eq!(replay_buffer.rewind(0), Some(1));
        let (position, data) = read(&replay_buffer.send().unwrap()).remove(0);
        assert_eq!(position, 2);
        let error: serde_json::Value = serde_json::from_str(&data).unwrap();
        assert_eq!((&error["id"], &error["error"]["code"]), (&"x".into(), &(-32010).into()));
    }

    #[test]
    fn unsent_events_can_be_moved_to_another_stream() {
        let mut replay_buffer = replay_buffer();
        replay_buffer.push(b"a", false, now());
        replay_buffer.send();
        replay_buffer.push(b"b", false, now());
        assert_eq!(replay_buffer.take_unsent().collect::<Vec<_>>(), ["b"]);
        assert!(replay_buffer.is_all_sent());
        replay_buffer.push(b"c", false, now());
        assert_eq!(read(&replay_buffer.send().unwrap()), [(2, "c".to_owned())]);
    }

    #[test]
    fn without_event_ids_nothing_is_stored() {
        let mut replay_buffer = ReplayBuffer::new(None);
        replay_buffer.push(b"a", false, now());
        assert_eq!(replay_buffer.send().unwrap(), "event: message\ndata: a\n\n");
        assert_eq!(
            (replay_buffer.len(), replay_buffer.bytes(), replay_buffer.has_sent_id()),
            (0, 0, false)
        );
    }

    #[test]
    fn sent_events_expire_before_unsent_ones() {
        let mut replay_buffer = replay_buffer();
        let began = now();
        replay_buffer.push(b"a", false, began);
        replay_buffer.send();
        replay_buffer.push(b"b", false, began);
        let later = began + Duration::from_secs(1);
        replay_buffer.forget_before(later, Evictable::Sent);
        assert_eq!(replay_buffer.len(), 1);
        replay_buffer.forget_before(later, Evictable::All);
        assert_eq!((replay_buffer.len(), replay_buffer.bytes()), (0, 0));
    }

    /// A step in the life of a stream.
    #[derive(Debug, Clone)]
    enum Happens {
        Say,
        /// The connection takes all events, and the client receives all but the last `unread`.
        Send {
            unread: usize,
        },
        /// The connection breaks, and the client resumes after the last event it has received.
        Resume,
        /// An event is dropped to make room.
        Evict,
    }

    fn happens() -> impl Strategy<Value = Happens> {
        prop_oneof![
            4 => Just(Happens::Say),
            3 => (0..4_usize).prop_map(|unread| Happens::Send { unread }),
            2 => Just(Happens::Resume),
            1 => Just(Happens::Evict),
        ]
    }

    /// A client that reads a stream.
    #[derive(Default)]
    struct Reader {
        last: u64,
        received: Vec<u64>,
        missed: BTreeSet<u64>,
        /// Whether events were lost on their way, so that the connection is broken.
        is_cut: bool,
    }

    impl Reader {
        fn take(&mut self, piece: &Bytes, unread: usize) {
            let events = read(piece);
            let read = events.len().saturating_sub(unread);
            self.is_cut |= read < events.len();
            for (position, data) in &events[..read] {
                assert_eq!(position.to_string(), *data);
                self.last = *position;
                self.received.push(*position);
            }
        }

        fn resume(&mut self, replay_buffer: &mut ReplayBuffer) {
            let missed = replay_buffer.rewind(self.last).expect("it was told this position");
            self.missed.extend(self.last + 1..=self.last + missed);
            self.is_cut = false;
        }
    }

    proptest! {
        /// Wherever connections break and whatever is dropped, the client receives each event once
        /// and in order, or learns that it missed it.
        #[test]
        fn no_event_is_lost_or_duplicated(play in prop::collection::vec(happens(), 0..60)) {
            let mut replay_buffer = replay_buffer();
            replay_buffer.record_sent_id();
            let (mut reader, mut sent_count) = (Reader::default(), 0_u64);
            for happens in play {
                match happens {
                    Happens::Say => {
                        sent_count += 1;
                        replay_buffer.push(sent_count.to_string().as_bytes(), false, now());
                    }
                    Happens::Send { unread } if !reader.is_cut => {
                        if let Some(piece) = replay_buffer.send() {
                            reader.take(&piece, unread);
                        }
                    }
                    Happens::Send { .. } => {}
                    Happens::Resume => reader.resume(&mut replay_buffer),
                    // As in a session: unsent events of a connected client stay.
                    Happens::Evict => {
                        replay_buffer.evict(if reader.is_cut { Evictable::All } else { Evictable::Sent });
                    }
                }
                let sizes = || replay_buffer.events.iter().map(|event| event.bytes.len());
                prop_assert_eq!(replay_buffer.bytes(), sizes().sum::<usize>());
                let unsent = sizes().skip(replay_buffer.stored_and_sent()).sum::<usize>();
                prop_assert_eq!(replay_buffer.unsent_bytes(), unsent);
            }
            reader.resume(&mut replay_buffer);
            if let Some(piece) = replay_buffer.send() {
                reader.take(&piece, 0);
            }
            prop_assert!(reader.received.is_sorted());
            let mut all: Vec<u64> = reader.received.iter().chain(&reader.missed).copied().collect();
            all.sort_unstable();
            prop_assert_eq!(all, (1..=sent_count).collect::<Vec<_>>());
        }
    }
}
