//! The wire format of events and event ids. Pure.

use std::fmt;

use hyper::body::Bytes;
use xy_mcp::edit::append_on_one_line;

use crate::frontend::StreamNo;

const BEFORE_DATA: &[u8] = b"event: message\ndata: ";
const AFTER_DATA: &[u8] = b"\n\n";

/// The kind of an event stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamKind {
    /// A call: the response and the messages related to it.
    Call,
    /// Messages that belong to no call.
    Listener,
}

impl StreamKind {
    /// Returns the letter of this kind in event ids.
    fn letter(self) -> char {
        match self {
            Self::Call => 'c',
            Self::Listener => 'l',
        }
    }
}

/// The identity of a stream among those of all sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StreamId {
    /// Identifies the session and the daemon.
    pub(super) tag: u64,
    /// `None` in an id of an earlier version, which lacks the kind.
    pub(super) kind: Option<StreamKind>,
    pub(super) stream: StreamNo,
}

/// The id of an event, after which a client can resume: a stream and a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventId {
    pub(super) stream_id: StreamId,
    /// The position of the event. The first event has 1; 0 is before it.
    pub(super) position: u64,
}

impl EventId {
    /// Parses an id. Accepts only the exact text that [`fmt::Display`] writes.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut parts = text.split('-');
        let (tag, stream, position) = (parts.next()?, parts.next()?, parts.next()?);
        let tag = u64::from_str_radix(tag, 16).ok()?;
        let kinds = [StreamKind::Call, StreamKind::Listener];
        let kind = kinds.into_iter().find(|kind| stream.starts_with(kind.letter()));
        let stream = kind.and_then(|it| stream.strip_prefix(it.letter())).unwrap_or(stream);
        let stream_id = StreamId { tag, kind, stream: stream.parse().ok()? };
        let id = Self { stream_id, position: position.parse().ok()? };
        (id.to_string() == text).then_some(id)
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-", self.stream_id.tag)?;
        if let Some(kind) = self.stream_id.kind {
            write!(f, "{}", kind.letter())?;
        }
        write!(f, "{}-{}", self.stream_id.stream, self.position)
    }
}

/// Returns a message as an event, and the offset of its data. Line breaks in the message, which a
/// server may write between tokens, become spaces: they would end the data.
pub(super) fn encode(id: Option<EventId>, message: &[u8]) -> (Bytes, usize) {
    const ID_LEN: usize = 40;
    let mut bytes =
        Vec::with_capacity(ID_LEN + BEFORE_DATA.len() + message.len() + AFTER_DATA.len());
    if let Some(id) = id {
        bytes.extend_from_slice(format!("id: {id}\n").as_bytes());
    }
    bytes.extend_from_slice(BEFORE_DATA);
    let data_at = bytes.len();
    append_on_one_line(&mut bytes, message);
    bytes.extend_from_slice(AFTER_DATA);
    (bytes.into(), data_at)
}

/// Returns the message of an event.
pub(super) fn decode(event: &Bytes, data_at: usize) -> Bytes {
    event.slice(data_at..event.len() - AFTER_DATA.len())
}

/// Returns an event without data, which gives the client an id to resume from and a reconnect
/// delay.
pub(super) fn priming_event(id: EventId, retry_ms: u64) -> Bytes {
    format!("id: {id}\nretry: {retry_ms}\ndata: \n\n").into()
}

/// Returns a reconnect delay for the client.
pub(super) fn retry_event(retry_ms: u64) -> Bytes {
    format!("retry: {retry_ms}\n\n").into()
}

/// Returns the first event of the legacy transport, with the address for messages.
pub(super) fn endpoint_event(uri: &str) -> Bytes {
    format!("event: endpoint\ndata: {uri}\n\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_id_reads_back() {
        for (text, kind) in [
            ("00000000000000ab-c7-12", Some(StreamKind::Call)),
            ("00000000000000ab-l7-12", Some(StreamKind::Listener)),
            ("00000000000000ab-7-12", None), // The format of earlier versions.
        ] {
            let id = EventId { stream_id: StreamId { tag: 0xab, kind, stream: 7 }, position: 12 };
            assert_eq!(id.to_string(), text);
            assert_eq!(EventId::parse(text.as_bytes()), Some(id));
        }
        for other in [
            "",
            "ab-7-12",
            "00000000000000AB-7-12",
            "00000000000000ab-07-12",
            "00000000000000ab-7-+12",
            "00000000000000ab-7-12-",
            "00000000000000ab-7",
            "00000000000000ab--7-12",
            "00000000000000ab-x7-12",
            "00000000000000ab-cl7-12",
            "00000000000000ab-c-12",
            "00000000000000ab-7-99999999999999999999999",
            "7",
            "\u{e9}",
        ] {
            assert_eq!(EventId::parse(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn line_breaks_do_not_break_an_event() {
        let (event, data_at) = encode(None, b"{\r\n\"a\":\r1,\n\"b\":\"\\n\"}");
        assert_eq!(event, "event: message\ndata: {  \"a\": 1, \"b\":\"\\n\"}\n\n");
        assert_eq!(decode(&event, data_at), "{  \"a\": 1, \"b\":\"\\n\"}");
    }
}
