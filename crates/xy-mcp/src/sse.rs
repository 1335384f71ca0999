//! Events as a server streams them (`text/event-stream`), read piece by piece. Pure.
//!
//! Lines end with CR, LF or both; an event ends with an empty line. What is unfinished when
//! the stream ends is none. An event that is too long is reported with its beginning, and
//! what follows it is read as if nothing had been.

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// What kind it is; empty is a message.
    pub kind: String,
    /// Its lines, joined.
    pub data: Vec<u8>,
    /// Where to go on after it, if it says so.
    pub id: Option<String>,
}

/// What has come whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// An event; its data may be empty.
    Event(Event),
    /// How long to wait before one asks again, in milliseconds.
    Retry(u64),
    /// An event that is longer than may be; this is how its data begins.
    TooLong(Vec<u8>),
}

/// The longest name of a kind, or id, that is kept.
const MOST_NAME: usize = 4096;

/// How much of what is too long is told.
const HEAD: usize = 4096;

/// Cuts a stream into events.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "these are independent of each other")]
pub struct Events {
    /// The beginning of a line.
    line: Vec<u8>,
    /// The event that is being read.
    event: Event,
    has_data: bool,
    /// The longest data of one event.
    limit: usize,
    /// It is too long: all of it is passed over.
    is_passing: bool,
    /// The last byte was a CR: a LF after it ends no other line.
    after_cr: bool,
    is_first_line: bool,
}

impl Events {
    /// Reads events whose data has at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            line: Vec::new(),
            event: Event::default(),
            has_data: false,
            limit,
            is_passing: false,
            after_cr: false,
            is_first_line: true,
        }
    }

    /// The next piece that `bytes` make whole; takes from them what it has read. `None`: all
    /// of them are read.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Option<Piece> {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                *bytes = &bytes[1..];
                continue;
            }
            let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) else {
                self.keep(bytes);
                *bytes = &[];
                return self.too_long();
            };
            self.keep(&bytes[..end]);
            self.after_cr = bytes[end] == b'\r';
            *bytes = &bytes[end + 1..];
            let too_long = self.too_long();
            if let Some(piece) = self.end_line().or(too_long) {
                return Some(piece);
            }
        }
        None
    }

    /// How many bytes of an unfinished event are held.
    pub fn held(&self) -> usize {
        self.line.len() + self.event.data.len()
    }

    fn keep(&mut self, bytes: &[u8]) {
        if !self.is_passing {
            self.line.extend_from_slice(bytes);
        } else if self.line.is_empty() {
            // Only whether the line is empty matters now.
            self.line.extend_from_slice(&bytes[..bytes.len().min(1)]);
        }
    }

    /// What there is to say once an event has grown beyond its limit.
    fn too_long(&mut self) -> Option<Piece> {
        let is_too_long = self.event.data.len() + self.line.len() > self.limit + MOST_NAME;
        if self.is_passing || !is_too_long {
            return None;
        }
        self.is_passing = true;
        let mut head = std::mem::take(&mut self.event.data);
        if head.is_empty() {
            let line = value_of(&self.line, b"data").unwrap_or(&self.line);
            head.extend_from_slice(&line[..line.len().min(HEAD)]);
        }
        head.truncate(HEAD);
        self.event = Event::default();
        self.has_data = false;
        self.line = vec![b'.'];
        Some(Piece::TooLong(head))
    }

    /// A line is whole.
    fn end_line(&mut self) -> Option<Piece> {
        let mut line = std::mem::take(&mut self.line);
        let is_first = std::mem::take(&mut self.is_first_line);
        let mut text = line.as_slice();
        if is_first {
            text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        }
        let piece = if text.is_empty() {
            self.end_event()
        } else if self.is_passing {
            None
        } else {
            self.take_field(text)
        };
        line.clear();
        if line.capacity() <= HEAD {
            self.line = line; // The room is used again.
        }
        piece
    }

    fn end_event(&mut self) -> Option<Piece> {
        self.is_passing = false;
        let event = std::mem::take(&mut self.event);
        let is_any = std::mem::take(&mut self.has_data) || event.id.is_some();
        is_any.then_some(Piece::Event(event))
    }

    fn take_field(&mut self, line: &[u8]) -> Option<Piece> {
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
            return number.parse().ok().map(Piece::Retry);
        }
        None // Comments, and what we do not know.
    }
}

/// What a field says, if it is the one of this name.
fn value_of<'l>(line: &'l [u8], name: &[u8]) -> Option<&'l [u8]> {
    let rest = line.strip_prefix(name)?;
    match rest {
        [] => Some(rest),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}

fn text_of(value: &[u8]) -> Option<String> {
    (value.len() <= MOST_NAME).then(|| String::from_utf8_lossy(value).into_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(pieces: &[&[u8]]) -> Vec<Piece> {
        read_within(1000, pieces)
    }

    fn read_within(limit: usize, pieces: &[&[u8]]) -> Vec<Piece> {
        let mut events = Events::new(limit);
        let mut all = Vec::new();
        for mut bytes in pieces.iter().copied() {
            while let Some(piece) = events.next(&mut bytes) {
                all.push(piece);
            }
        }
        all
    }

    fn event(kind: &str, data: &str, id: Option<&str>) -> Piece {
        let data = data.as_bytes().to_vec();
        Piece::Event(Event { kind: kind.to_owned(), data, id: id.map(str::to_owned) })
    }

    #[test]
    fn an_event_has_a_kind_data_and_an_id() {
        let read = read(&[b": hello\nevent: message\nid: 7\ndata: {\"a\":\ndata:1}\n\ndata\n\n"]);
        assert_eq!(read, [event("message", "{\"a\":\n1}", Some("7")), event("", "", None)]);
    }

    #[test]
    fn a_priming_event_has_an_id_and_no_data() {
        let expected = [Piece::Retry(500), event("", "", Some("x-1"))];
        assert_eq!(read(&[b"retry: 500\nid: x-1\ndata:\n\n"]), expected);
        assert_eq!(read(&[b"retry: 500\nid: x-1\n\n"]), expected);
        assert_eq!(read(&[b"retry: -1\nretry:\nretry: 1x\n\n"]), []);
    }

    #[test]
    fn lines_end_in_three_ways_and_a_mark_may_begin_the_stream() {
        for stream in
            ["data: a\n\ndata: b\n\n", "data: a\r\n\r\ndata: b\r\n\r\n", "data: a\r\rdata: b\r\r"]
        {
            let marked = [b"\xef\xbb\xbf", stream.as_bytes()].concat();
            assert_eq!(
                read(&[&marked]),
                [event("", "a", None), event("", "b", None)],
                "{stream:?}"
            );
        }
    }

    #[test]
    fn what_is_unfinished_is_nothing() {
        assert_eq!(read(&[b"data: a\n\ndata: b\n"]), [event("", "a", None)]);
        assert_eq!(read(&[b"\n\n: only a comment\n\nunknown: 1\n\n"]), []);
    }

    #[test]
    fn what_is_too_long_is_told_once_and_the_next_is_read() {
        let long = "x".repeat(100_000);
        for stream in [
            format!("data: {long}\n\ndata: b\n\n"),
            format!("data: x\ndata: {long}\ndata: {long}\n\ndata: b\n\n"),
            format!("event: {long}\n\ndata: b\n\n"),
        ] {
            let read = read_within(10, &[stream.as_bytes()]);
            assert!(matches!(&read[0], Piece::TooLong(head) if head.len() <= HEAD), "{read:?}");
            assert_eq!(read[1..], [event("", "b", None)]);
        }
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_a_stream_is_cut(
            lines in prop::collection::vec("(data: [a-z]{0,5}|id: [0-9]|event: x|retry: 9|:c|)(\n|\r|\r\n)", 0..12),
            cuts in prop::collection::vec(0usize..200, 0..6),
        ) {
            let whole = lines.concat();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(whole.len())).collect();
            cuts.extend([0, whole.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> =
                cuts.windows(2).map(|cut| &whole.as_bytes()[cut[0]..cut[1]]).collect();
            prop_assert_eq!(read(&pieces), read(&[whole.as_bytes()]));
        }

        #[test]
        fn nothing_makes_it_panic_or_grow(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut events = Events::new(50);
            let mut rest = bytes.as_slice();
            while events.next(&mut rest).is_some() {}
            prop_assert!(events.held() <= 50 + 2 * MOST_NAME);
        }
    }
}
