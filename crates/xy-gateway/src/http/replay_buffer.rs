//! What was and will be said on one stream: the events, what of them was sent, and what is no
//! longer known. Pure.
//!
//! ```text
//!  1 2 3 │ 4 5 6 │ 7 8
//!        │       └─ sent: handed to a connection, perhaps never read
//!        └─ forgotten: nobody can hear these again
//! ```
//!
//! Each event is either still here, or counted among the forgotten; an answer is never
//! forgotten before its whole stream is, but may be replaced by an error that says so.

use std::collections::VecDeque;

use hyper::body::Bytes;
use tokio::time::Instant;
use xy_mcp::envelope::{self, Message};

use super::event::{self, EventId, StreamId};
use crate::error_log::FailedRequest;
use crate::reply;

/// The answer to a call was there, and is not any more. Of the codes for what xy says of a
/// call, this is that its outcome is unknown to the client.
const ANSWER_LOST_CODE: i64 = -32010;
const ANSWER_LOST: &str = "the call was answered, but its answer was not fetched while there \
                           was room to keep it: it is done, and its outcome is lost";

/// The events of one stream.
#[derive(Debug)]
pub(super) struct ReplayBuffer {
    /// How its events are named; without names they cannot be sent twice, and are not kept.
    id: Option<StreamId>,
    /// Those after `forgotten`, without a gap.
    events: VecDeque<Event>,
    forgotten: u64,
    sent: u64,
    bytes: usize,
    /// How much of that was not sent.
    unsent_bytes: usize,
    /// Whether a client has been told a name of this stream.
    is_known: bool,
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
    Word,
    Answer,
    /// An error in the place of an answer.
    AnswerLost,
}

/// Which events may be forgotten to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spare {
    /// Those that were sent once.
    Sent,
    /// All of them.
    All,
}

/// What was forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Evicted {
    /// An event that was sent, and perhaps read.
    Sent,
    /// An event that nobody can have read.
    Unsent,
}

impl ReplayBuffer {
    pub(super) fn new(id: Option<StreamId>) -> Self {
        let events = VecDeque::new();
        Self { id, events, forgotten: 0, sent: 0, bytes: 0, unsent_bytes: 0, is_known: false }
    }

    /// How many events are held.
    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// How large they are together.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a client can name a place of this stream.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// Whether everything was handed to a connection.
    pub(super) fn is_all_sent(&self) -> bool {
        self.sent >= self.last()
    }

    /// How much still waits to be sent.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.unsent_bytes
    }

    /// Adds a message.
    pub(super) fn push(&mut self, message: &[u8], is_answer: bool, now: Instant) {
        let place = self.last() + 1;
        let (bytes, data_at) = event::framed(self.name(place), message);
        let kind = if is_answer { Kind::Answer } else { Kind::Word };
        self.bytes += bytes.len();
        self.unsent_bytes += bytes.len();
        self.events.push_back(Event { bytes, data_at, put_at: now, kind });
    }

    /// Everything that waits to be sent, in one piece.
    pub(super) fn send(&mut self) -> Option<Bytes> {
        let mut unsent = self.events.iter().skip(self.sent_here()).map(|event| &event.bytes);
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
            self.is_known = true;
        } else {
            self.forget_up_to(self.sent);
        }
        Some(piece)
    }

    /// What a place is called.
    pub(super) fn name(&self, place: u64) -> Option<EventId> {
        self.id.map(|of| EventId { of, place })
    }

    /// Returns the session as the log names it; empty if there is none.
    pub(super) fn logged_client(&self) -> String {
        self.id.map(|id| format!("session {:016x}", id.tag)).unwrap_or_default()
    }

    /// The client was told the name of a place up to which everything was sent.
    pub(super) fn is_told(&mut self) {
        self.is_known |= self.id.is_some();
    }

    /// Goes back to `place`, up to which a client has heard everything: how many events after
    /// it are forgotten. `None` if it was never sent, so that the client cannot know it.
    pub(super) fn go_back(&mut self, place: u64) -> Option<u64> {
        if place > self.sent || !self.is_known {
            return None;
        }
        let missed = self.forgotten.saturating_sub(place);
        self.forget_up_to(place);
        self.sent = place.max(self.forgotten);
        self.unsent_bytes = self.events.iter().map(|event| event.bytes.len()).sum();
        Some(missed)
    }

    /// Whether a client that has heard everything up to `place` has heard all there is.
    pub(super) fn is_last(&self, place: u64) -> bool {
        place == self.last()
    }

    /// Takes back what was never sent, to say it elsewhere.
    pub(super) fn take_unsent(&mut self) -> impl Iterator<Item = Bytes> + use<> {
        let unsent = self.events.split_off(self.sent_here());
        self.bytes -= self.unsent_bytes;
        self.unsent_bytes = 0;
        unsent.into_iter().map(|event| event::unframed(&event.bytes, event.data_at))
    }

    /// Forgets one event, the oldest, or makes the answer small.
    pub(super) fn evict(&mut self, spare: Spare) -> Option<Evicted> {
        let is_sent = self.sent_here() > 0;
        if !is_sent && spare == Spare::Sent {
            return None;
        }
        let evicted = if is_sent { Evicted::Sent } else { Evicted::Unsent };
        let place = self.forgotten + 1;
        match self.events.front().map(|event| event.kind)? {
            Kind::Word => self.forget_up_to(place),
            Kind::Answer => self.lose_answer(place),
            Kind::AnswerLost => return None,
        }
        Some(evicted)
    }

    /// Forgets what was put before `then`, as far as it may be spared.
    pub(super) fn forget_before(&mut self, then: Instant, spare: Spare) {
        while let Some(event) = self.events.front()
            && event.put_at < then
            && event.kind == Kind::Word
            && (spare == Spare::All || self.sent_here() > 0)
        {
            self.forget_up_to(self.forgotten + 1);
        }
    }

    /// Returns the place of the event that was put last.
    pub(super) fn last(&self) -> u64 {
        self.forgotten + self.events.len() as u64
    }

    /// How many of those that are here were sent.
    fn sent_here(&self) -> usize {
        usize::try_from(self.sent.saturating_sub(self.forgotten)).unwrap_or(usize::MAX)
    }

    fn forget_up_to(&mut self, place: u64) {
        while self.forgotten < place
            && let Some(event) = self.events.pop_front()
        {
            self.bytes -= event.bytes.len();
            if self.sent <= self.forgotten {
                self.unsent_bytes -= event.bytes.len();
            }
            self.forgotten += 1;
        }
    }

    /// Says instead of the first event, which is an answer, that it is lost.
    fn lose_answer(&mut self, place: u64) {
        let (name, is_sent, client) = (self.name(place), self.sent >= place, self.logged_client());
        let Some(event) = self.events.front_mut() else { return };
        let answer = event::unframed(&event.bytes, event.data_at);
        let id = match envelope::parse(&answer) {
            Ok(Message::Answer { id: Some(id), .. }) => id.to_owned(),
            _ => "null".to_owned(),
        };
        let (outcome, code) = ("answer-lost", ANSWER_LOST_CODE);
        FailedRequest { client: &client, outcome, code, ..FailedRequest::default() }.log();
        let error = reply::error(&id, code, ANSWER_LOST);
        let (bytes, data_at) = event::framed(name, &error);
        self.bytes = self.bytes + bytes.len() - event.bytes.len();
        if !is_sent {
            self.unsent_bytes = self.unsent_bytes + bytes.len() - event.bytes.len();
        }
        *event = Event { bytes, data_at, put_at: event.put_at, kind: Kind::AnswerLost };
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

    /// Names and data of the events in one piece.
    fn read(piece: &[u8]) -> Vec<(u64, String)> {
        let text = std::str::from_utf8(piece).unwrap();
        let read_one = |event: &str| {
            let (id, data) = event.split_once("\nevent: message\ndata: ").unwrap();
            let id = EventId::parse(id.strip_prefix("id: ").unwrap().as_bytes()).unwrap();
            assert_eq!(id.of, ID);
            (id.place, data.to_owned())
        };
        text.split_terminator("\n\n").map(read_one).collect()
    }

    #[test]
    fn what_was_sent_can_be_sent_again_from_any_place() {
        let mut replay_buffer = replay_buffer();
        for message in ["a", "b", "c"] {
            replay_buffer.push(message.as_bytes(), false, now());
        }
        assert_eq!(read(&replay_buffer.send().unwrap()).len(), 3);
        assert_eq!(replay_buffer.send(), None);
        assert_eq!(replay_buffer.go_back(1), Some(0));
        let again = read(&replay_buffer.send().unwrap());
        assert_eq!(again, [(2, "b".to_owned()), (3, "c".to_owned())]);
        assert_eq!(replay_buffer.go_back(0), Some(1), "what it said it had is not kept");
    }

    #[test]
    fn nobody_knows_a_place_that_was_not_sent() {
        let mut replay_buffer = replay_buffer();
        replay_buffer.push(b"a", false, now());
        assert_eq!(replay_buffer.go_back(0), None, "nothing was named yet");
        replay_buffer.is_told();
        assert_eq!((replay_buffer.go_back(1), replay_buffer.go_back(0)), (None, Some(0)));
    }

    #[test]
    fn an_answer_is_replaced_and_not_forgotten() {
        let mut replay_buffer = replay_buffer();
        replay_buffer.is_told();
        replay_buffer.push(b"1", false, now());
        let answer = format!(r#"{{"jsonrpc":"2.0","id":"x","result":"{}"}}"#, "y".repeat(9000));
        replay_buffer.push(answer.as_bytes(), true, now());
        assert_eq!(replay_buffer.evict(Spare::Sent), None);
        assert_eq!(replay_buffer.evict(Spare::All), Some(Evicted::Unsent));
        assert_eq!(replay_buffer.evict(Spare::All), Some(Evicted::Unsent));
        assert_eq!(replay_buffer.evict(Spare::All), None);
        assert!(replay_buffer.bytes() < 500);
        assert_eq!(replay_buffer.go_back(0), Some(1));
        let (place, data) = read(&replay_buffer.send().unwrap()).remove(0);
        assert_eq!(place, 2);
        let error: serde_json::Value = serde_json::from_str(&data).unwrap();
        assert_eq!((&error["id"], &error["error"]["code"]), (&"x".into(), &(-32010).into()));
    }

    #[test]
    fn what_was_never_sent_can_be_said_elsewhere() {
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
    fn without_names_nothing_is_kept() {
        let mut replay_buffer = ReplayBuffer::new(None);
        replay_buffer.push(b"a", false, now());
        assert_eq!(replay_buffer.send().unwrap(), "event: message\ndata: a\n\n");
        assert_eq!(
            (replay_buffer.len(), replay_buffer.bytes(), replay_buffer.is_known()),
            (0, 0, false)
        );
    }

    #[test]
    fn old_events_are_forgotten_but_not_before_they_are_sent() {
        let mut replay_buffer = replay_buffer();
        let began = now();
        replay_buffer.push(b"a", false, began);
        replay_buffer.send();
        replay_buffer.push(b"b", false, began);
        let later = began + Duration::from_secs(1);
        replay_buffer.forget_before(later, Spare::Sent);
        assert_eq!(replay_buffer.len(), 1);
        replay_buffer.forget_before(later, Spare::All);
        assert_eq!((replay_buffer.len(), replay_buffer.bytes()), (0, 0));
    }

    /// Something that happens to a stream.
    #[derive(Debug, Clone)]
    enum Happens {
        Say,
        /// The connection takes what there is, and the client reads all but so many of it.
        Send {
            unread: usize,
        },
        /// The connection breaks, and the client goes on from the last it has read.
        Resume,
        /// Room is needed.
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
        heard: Vec<u64>,
        missed: BTreeSet<u64>,
        /// Whether something was lost on its way, so that the connection is broken.
        is_cut: bool,
    }

    impl Reader {
        fn take(&mut self, piece: &Bytes, unread: usize) {
            let events = read(piece);
            let read = events.len().saturating_sub(unread);
            self.is_cut |= read < events.len();
            for (place, data) in &events[..read] {
                assert_eq!(place.to_string(), *data);
                self.last = *place;
                self.heard.push(*place);
            }
        }

        fn resume(&mut self, replay_buffer: &mut ReplayBuffer) {
            let missed = replay_buffer.go_back(self.last).expect("it was told this place");
            self.missed.extend(self.last + 1..=self.last + missed);
            self.is_cut = false;
        }
    }

    proptest! {
        /// Wherever connections break, and whatever had to be forgotten: each event is heard
        /// once and in order, or said to be missed.
        #[test]
        fn nothing_is_lost_or_heard_twice(play in prop::collection::vec(happens(), 0..60)) {
            let mut replay_buffer = replay_buffer();
            replay_buffer.is_told();
            let (mut reader, mut said) = (Reader::default(), 0_u64);
            for happens in play {
                match happens {
                    Happens::Say => {
                        said += 1;
                        replay_buffer.push(said.to_string().as_bytes(), false, now());
                    }
                    Happens::Send { unread } if !reader.is_cut => {
                        if let Some(piece) = replay_buffer.send() {
                            reader.take(&piece, unread);
                        }
                    }
                    Happens::Send { .. } => {}
                    Happens::Resume => reader.resume(&mut replay_buffer),
                    // As a session does it: what waits for a connection stays.
                    Happens::Evict => {
                        replay_buffer.evict(if reader.is_cut { Spare::All } else { Spare::Sent });
                    }
                }
                let sizes = || replay_buffer.events.iter().map(|event| event.bytes.len());
                prop_assert_eq!(replay_buffer.bytes(), sizes().sum::<usize>());
                let unsent = sizes().skip(replay_buffer.sent_here()).sum::<usize>();
                prop_assert_eq!(replay_buffer.unsent_bytes(), unsent);
            }
            reader.resume(&mut replay_buffer);
            if let Some(piece) = replay_buffer.send() {
                reader.take(&piece, 0);
            }
            prop_assert!(reader.heard.is_sorted());
            let mut all: Vec<u64> = reader.heard.iter().chain(&reader.missed).copied().collect();
            all.sort_unstable();
            prop_assert_eq!(all, (1..=said).collect::<Vec<_>>());
        }
    }
}
