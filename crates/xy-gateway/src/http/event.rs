//! Messages as events of a stream, as they go over the wire, and how an event is named. Pure.

use std::fmt;

use hyper::body::Bytes;
use xy_mcp::edit::append_on_one_line;

use crate::frontend::StreamNo;

const BEFORE_DATA: &[u8] = b"event: message\ndata: ";
const AFTER_DATA: &[u8] = b"\n\n";

/// The kind of a stream of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamKind {
    /// The answer to a call, and what belongs to it.
    Call,
    /// Messages that belong to no call.
    Listener,
}

impl StreamKind {
    /// Returns its letter in event ids.
    fn letter(self) -> char {
        match self {
            Self::Call => 'c',
            Self::Listener => 'l',
        }
    }
}

/// Which stream it is, so that no other session's is taken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StreamId {
    /// Tells the sessions of one client apart, and one daemon's events from another's.
    pub(super) tag: u64,
    /// `None` in an id of an earlier version, which did not say it.
    pub(super) kind: Option<StreamKind>,
    pub(super) stream: StreamNo,
}

/// What a client shows to go on after an event: its stream, and its place there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventId {
    pub(super) of: StreamId,
    /// The first event has place 1; 0 is before it.
    pub(super) place: u64,
}

impl EventId {
    /// As [`fmt::Display`] writes it, and in no other way.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut parts = text.split('-');
        let (tag, stream, place) = (parts.next()?, parts.next()?, parts.next()?);
        let tag = u64::from_str_radix(tag, 16).ok()?;
        let kinds = [StreamKind::Call, StreamKind::Listener];
        let kind = kinds.into_iter().find(|kind| stream.starts_with(kind.letter()));
        let stream = kind.and_then(|it| stream.strip_prefix(it.letter())).unwrap_or(stream);
        let of = StreamId { tag, kind, stream: stream.parse().ok()? };
        let id = Self { of, place: place.parse().ok()? };
        (id.to_string() == text).then_some(id)
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-", self.of.tag)?;
        if let Some(kind) = self.of.kind {
            write!(f, "{}", kind.letter())?;
        }
        write!(f, "{}-{}", self.of.stream, self.place)
    }
}

/// A message as an event, and where its data begins. A line break between the parts of its
/// JSON, which a server may have written, would end the event's data.
pub(super) fn framed(id: Option<EventId>, message: &[u8]) -> (Bytes, usize) {
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

/// What was framed, without its frame.
pub(super) fn unframed(event: &Bytes, data_at: usize) -> Bytes {
    event.slice(data_at..event.len() - AFTER_DATA.len())
}

/// An event without data, from which a client can go on, and when it shall come back.
pub(super) fn priming(id: EventId, retry_ms: u64) -> Bytes {
    format!("id: {id}\nretry: {retry_ms}\ndata: \n\n").into()
}

/// When a client shall come back.
pub(super) fn retry(retry_ms: u64) -> Bytes {
    format!("retry: {retry_ms}\n\n").into()
}

/// The first event of the older transport: where messages are posted to.
pub(super) fn endpoint(uri: &str) -> Bytes {
    format!("event: endpoint\ndata: {uri}\n\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_as_itself_only() {
        for (text, kind) in [
            ("00000000000000ab-c7-12", Some(StreamKind::Call)),
            ("00000000000000ab-l7-12", Some(StreamKind::Listener)),
            ("00000000000000ab-7-12", None), // As earlier versions gave them out.
        ] {
            let id = EventId { of: StreamId { tag: 0xab, kind, stream: 7 }, place: 12 };
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
    fn line_breaks_in_a_message_do_not_break_its_event() {
        let (event, data_at) = framed(None, b"{\r\n\"a\":\r1,\n\"b\":\"\\n\"}");
        assert_eq!(event, "event: message\ndata: {  \"a\": 1, \"b\":\"\\n\"}\n\n");
        assert_eq!(unframed(&event, data_at), "{  \"a\": 1, \"b\":\"\\n\"}");
    }
}
