//! An incremental parser for server-sent events (`text/event-stream`). Pure.
//!
//! Lines end with CR, LF or both; an event ends with an empty line. An event that is unfinished
//! when the stream ends is discarded. An event that is too long is reported with its beginning, and
//! parsing continues after it.

/// A server-sent event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// The event type; empty for a message.
    pub kind: String,
    /// The lines of data, joined.
    pub data: Vec<u8>,
    /// The event ID, from which a stream can be resumed.
    pub id: Option<String>,
}

/// A parsed item of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamItem {
    /// An event; its data may be empty.
    Event(Event),
    /// The reconnection time in milliseconds.
    Retry(u64),
    /// An event over the limit, with the beginning of its data.
    TooLong(Vec<u8>),
}

/// Maximum length of an event type or ID. A longer one is ignored.
const MAX_NAME_LENGTH: usize = 4096;

/// Number of bytes that are reported of an event over the limit.
const MAX_HEAD: usize = 4096;

/// Parses a stream into events.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "these are independent of each other")]
pub struct EventParser {
    /// The unfinished line.
    line: Vec<u8>,
    /// The unfinished event.
    event: Event,
    has_data: bool,
    /// Maximum size of the data of one event.
    limit: usize,
    /// Set if the event is over the limit, so that the rest of it is skipped.
    is_skipping: bool,
    /// Set if the last byte was a CR, after which an LF does not end another line.
    is_after_cr: bool,
    is_first_line: bool,
}

impl EventParser {
    /// Creates a parser for events with at most `limit` bytes of data.
    pub fn new(limit: usize) -> Self {
        Self {
            line: Vec::new(),
            event: Event::default(),
            has_data: false,
            limit,
            is_skipping: false,
            is_after_cr: false,
            is_first_line: true,
        }
    }

    /// Returns the next complete item and advances `bytes` past it. Returns `None` once `bytes` is
    /// consumed.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Option<StreamItem> {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.is_after_cr) && bytes[0] == b'\n' {
                *bytes = &bytes[1..];
                continue;
            }
            let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) else {
                self.buffer_line(bytes);
                *bytes = &[];
                return self.check_limit();
            };
            self.buffer_line(&bytes[..end]);
            self.is_after_cr = bytes[end] == b'\r';
            *bytes = &bytes[end + 1..];
            let check_limit = self.check_limit();
            if let Some(piece) = self.end_line().or(check_limit) {
                return Some(piece);
            }
        }
        None
    }

    /// Returns the number of buffered bytes of an unfinished event.
    pub fn buffered_len(&self) -> usize {
        self.line.len() + self.event.data.len()
    }

    fn buffer_line(&mut self, bytes: &[u8]) {
        if !self.is_skipping {
            self.line.extend_from_slice(bytes);
        } else if self.line.is_empty() {
            // While skipping, only the emptiness of the line matters.
            self.line.extend_from_slice(&bytes[..bytes.len().min(1)]);
        }
    }

    /// Returns an item once the event has grown beyond its limit.
    fn check_limit(&mut self) -> Option<StreamItem> {
        let is_too_long = self.event.data.len() + self.line.len() > self.limit + MAX_NAME_LENGTH;
        if self.is_skipping || !is_too_long {
            return None;
        }
        self.is_skipping = true;
        let mut head = std::mem::take(&mut self.event.data);
        if head.is_empty() {
            let line = value_of(&self.line, b"data").unwrap_or(&self.line);
            head.extend_from_slice(&line[..line.len().min(MAX_HEAD)]);
        }
        head.truncate(MAX_HEAD);
        self.event = Event::default();
        self.has_data = false;
        self.line = vec![b'.'];
        Some(StreamItem::TooLong(head))
    }

    /// Handles a complete line.
    fn end_line(&mut self) -> Option<StreamItem> {
        let mut line = std::mem::take(&mut self.line);
        let is_first = std::mem::take(&mut self.is_first_line);
        let mut text = line.as_slice();
        if is_first {
            text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        }
        let piece = if text.is_empty() {
            self.end_event()
        } else if self.is_skipping {
            None
        } else {
            self.parse_field(text)
        };
        line.clear();
        if line.capacity() <= MAX_HEAD {
            self.line = line; // Reuses its memory.
        }
        piece
    }

    fn end_event(&mut self) -> Option<StreamItem> {
        self.is_skipping = false;
        let event = std::mem::take(&mut self.event);
        let is_any = std::mem::take(&mut self.has_data) || event.id.is_some();
        is_any.then_some(StreamItem::Event(event))
    }

    fn parse_field(&mut self, line: &[u8]) -> Option<StreamItem> {
        if let Some(value) = value_of(line, b"data") {
            if std::mem::replace(&mut self.has_data, true) {
                self.event.data.push(b'\n');
            }
            self.event.data.extend_from_slice(value);
        } else if let Some(value) = value_of(line, b"event") {
            self.event.kind = text_of(value).unwrap_or_default();
        } else if let Some(value) = value_of(line, b"id") {
            let id = text_of(value).filter(|id| !id.contains('\0'));
            self.event.id = id.or(self.event.id.take());
        } else if let Some(value) = value_of(line, b"retry") {
            let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
            let number = text_of(value).filter(|_| is_number)?;
            return number.parse().ok().map(StreamItem::Retry);
        }
        None // Comments and unknown fields are ignored.
    }
}

/// Returns the value of a line's field, if it has this name.
fn value_of<'l>(line: &'l [u8], name: &[u8]) -> Option<&'l [u8]> {
    let rest = line.strip_prefix(name)?;
    match rest {
        [] => Some(rest),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}

fn text_of(value: &[u8]) -> Option<String> {
    (value.len() <= MAX_NAME_LENGTH).then(|| String::from_utf8_lossy(value).into_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(pieces: &[&[u8]]) -> Vec<StreamItem> {
        parse_with_limit(1000, pieces)
    }

    fn parse_with_limit(limit: usize, pieces: &[&[u8]]) -> Vec<StreamItem> {
        let mut events = EventParser::new(limit);
        let mut all = Vec::new();
        for mut bytes in pieces.iter().copied() {
            while let Some(piece) = events.next(&mut bytes) {
                all.push(piece);
            }
        }
        all
    }

    fn event(kind: &str, data: &str, id: Option<&str>) -> StreamItem {
        let data = data.as_bytes().to_vec();
        StreamItem::Event(Event { kind: kind.to_owned(), data, id: id.map(str::to_owned) })
    }

    #[test]
    fn event_has_type_data_and_id() {
        let parse = parse(&[b": hello\nevent: message\nid: 7\ndata: {\"a\":\ndata:1}\n\ndata\n\n"]);
        assert_eq!(parse, [event("message", "{\"a\":\n1}", Some("7")), event("", "", None)]);
    }

    #[test]
    fn event_may_have_an_id_without_data() {
        let expected = [StreamItem::Retry(500), event("", "", Some("x-1"))];
        assert_eq!(parse(&[b"retry: 500\nid: x-1\ndata:\n\n"]), expected);
        assert_eq!(parse(&[b"retry: 500\nid: x-1\n\n"]), expected);
        assert_eq!(parse(&[b"retry: -1\nretry:\nretry: 1x\n\n"]), []);
    }

    #[test]
    fn all_line_endings_and_a_bom_are_accepted() {
        for stream in
            ["data: a\n\ndata: b\n\n", "data: a\r\n\r\ndata: b\r\n\r\n", "data: a\r\rdata: b\r\r"]
        {
            let marked = [b"\xef\xbb\xbf", stream.as_bytes()].concat();
            assert_eq!(
                parse(&[&marked]),
                [event("", "a", None), event("", "b", None)],
                "{stream:?}"
            );
        }
    }

    #[test]
    fn unfinished_event_is_discarded() {
        assert_eq!(parse(&[b"data: a\n\ndata: b\n"]), [event("", "a", None)]);
        assert_eq!(parse(&[b"\n\n: only a comment\n\nunknown: 1\n\n"]), []);
    }

    #[test]
    fn long_event_is_reported_once() {
        let long = "x".repeat(100_000);
        for stream in [
            format!("data: {long}\n\ndata: b\n\n"),
            format!("data: x\ndata: {long}\ndata: {long}\n\ndata: b\n\n"),
            format!("event: {long}\n\ndata: b\n\n"),
        ] {
            let parse = parse_with_limit(10, &[stream.as_bytes()]);
            assert!(
                matches!(&parse[0], StreamItem::TooLong(head) if head.len() <= MAX_HEAD),
                "{parse:?}"
            );
            assert_eq!(parse[1..], [event("", "b", None)]);
        }
    }

    proptest! {
        #[test]
        fn result_is_independent_of_chunk_boundaries(
            lines in prop::collection::vec("(data: [a-z]{0,5}|id: [0-9]|event: x|retry: 9|:c|)(\n|\r|\r\n)", 0..12),
            cuts in prop::collection::vec(0usize..200, 0..6),
        ) {
            let whole = lines.concat();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(whole.len())).collect();
            cuts.extend([0, whole.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> =
                cuts.windows(2).map(|cut| &whole.as_bytes()[cut[0]..cut[1]]).collect();
            prop_assert_eq!(parse(&pieces), parse(&[whole.as_bytes()]));
        }

        #[test]
        fn arbitrary_bytes_neither_panic_nor_grow(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut events = EventParser::new(50);
            let mut rest = bytes.as_slice();
            while events.next(&mut rest).is_some() {}
            prop_assert!(events.buffered_len() <= 50 + 2 * MAX_NAME_LENGTH);
        }
    }
}
