//! The format of a recording, and its size limit.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use xy_protocol::mask::{self, MessageMasker};
use xy_protocol::time::Timestamp;

use super::super::lines::line_ranges;
use super::{Content, Entry, Origin};

/// The version of the format.
const FORMAT: u32 = 1;

/// The version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Space that is reserved for the last line, in bytes.
const LAST_LINE: u64 = 256;

/// The first line of a recording.
#[derive(Debug, Serialize)]
struct Header {
    xy_recording: u32,
    version: &'static str,
    started: Timestamp,
    args: Vec<String>,
}

/// A writer of a recording, with a size limit.
#[derive(Debug)]
pub(super) struct RecordingWriter<W> {
    sink: W,
    masker: MessageMasker,
    written: u64,
    max: u64,
}

/// The reason why a recording ends before its session.
#[derive(Debug)]
pub(super) enum End {
    /// The recording has reached this size.
    Full(u64),
    /// The disk accepted no data for this time.
    TooSlow(Duration),
    Failed(io::Error),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(max) => write!(f, "it reached its maximum size of {max} bytes"),
            Self::TooSlow(waited) => {
                write!(f, "the disk did not keep up for {} s", waited.as_secs())
            }
            Self::Failed(cause) => write!(f, "it could not be written: {cause}"),
        }
    }
}

impl<W: Write> RecordingWriter<W> {
    pub(super) fn new(sink: W, max: u64, masker: MessageMasker) -> Self {
        Self { sink, masker, written: 0, max }
    }

    /// Writes the first line.
    pub(super) fn write_header(
        &mut self,
        started: Timestamp,
        args: impl Iterator<Item = OsString>,
    ) -> Result<(), End> {
        let args: Vec<String> = args.map(|it| it.to_string_lossy().into_owned()).collect();
        let args = mask::args(args.iter().map(String::as_str)).args;
        let header = Header { xy_recording: FORMAT, version: VERSION, started, args };
        let line = serde_json::to_string(&header).map_err(|cause| End::Failed(cause.into()))?;
        self.put(0, line)
    }

    /// Writes the lines of an entry.
    pub(super) fn write(&mut self, entry: &Entry) -> Result<(), End> {
        let at_ms = millis(entry.at);
        match &entry.content {
            Content::Lines { from, lines } => {
                for line in line_ranges(lines).map(|range| lines[range].trim_ascii()) {
                    if !line.is_empty() {
                        let line = message_line(at_ms, *from, line, &mut self.masker);
                        self.put(at_ms, line)?;
                    }
                }
                Ok(())
            }
            Content::Event { event, cause } => {
                let cause = cause.as_ref().map(|cause| self.masker.text(cause));
                self.put(at_ms, event_line(at_ms, event, cause))
            }
        }
    }

    /// Writes the last line of a recording that ends before its session.
    pub(super) fn write_end(&mut self, at: Duration, end: &End) {
        self.put_end(millis(at), end);
    }

    fn put(&mut self, at_ms: u64, mut line: String) -> Result<(), End> {
        line.push('\n');
        let size = line.len() as u64;
        if self.written + size + LAST_LINE > self.max {
            let end = End::Full(self.max);
            self.put_end(at_ms, &end);
            return Err(end);
        }
        self.written += size;
        self.sink.write_all(line.as_bytes()).map_err(End::Failed)
    }

    fn put_end(&mut self, at_ms: u64, end: &End) {
        let last = event_line(at_ms, "recording ended", Some(end.to_string())) + "\n";
        let _ = self.sink.write_all(last.as_bytes()); // A warning on stderr reports it too.
    }
}

fn millis(at: Duration) -> u64 {
    u64::try_from(at.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the line for a message, as JSON if it is JSON, else as text.
fn message_line(at_ms: u64, from: Origin, line: &[u8], masker: &mut MessageMasker) -> String {
    let from = match from {
        Origin::Client => r#""from":"client""#,
        Origin::Server => r#""from":"server""#,
        Origin::Bridge => r#""event":"bridge sent""#,
    };
    let text = String::from_utf8_lossy(line);
    let (field, content) = match masker.json(&text) {
        Some(json) => ("message", json),
        None => ("text", Value::from(masker.text(&text)).to_string()),
    };
    format!(r#"{{"at_ms":{at_ms},{from},"{field}":{content}}}"#)
}

fn event_line(at_ms: u64, event: &str, cause: Option<String>) -> String {
    let event = Value::from(event);
    match cause.map(Value::from) {
        Some(cause) => format!(r#"{{"at_ms":{at_ms},"event":{event},"cause":{cause}}}"#),
        None => format!(r#"{{"at_ms":{at_ms},"event":{event}}}"#),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(from: Origin, lines: &[u8]) -> Entry {
        let content = Content::Lines { from, lines: lines.to_vec() };
        Entry { at: Duration::from_millis(7), content }
    }

    fn writer(max: u64) -> RecordingWriter<Vec<u8>> {
        RecordingWriter::new(Vec::new(), max, MessageMasker::default())
    }

    fn text(writer: RecordingWriter<Vec<u8>>) -> String {
        String::from_utf8(writer.sink).unwrap()
    }

    #[test]
    fn messages_are_recorded_without_secrets() {
        let mut writer = writer(10_000);
        let started = Timestamp::from_unix_millis(1_700_000_000_000);
        let args = ["connect", "--server", "token=abc"].map(OsString::from);
        writer.write_header(started, args.into_iter()).unwrap();
        let client =
            b"{\"id\":1.0,\"params\":{\"arguments\":{\"token\":\"abc\"}}}\r\n\n \nBearer \xffabc\n";
        writer.write(&lines(Origin::Client, client)).unwrap();
        writer.write(&lines(Origin::Server, b"{\"id\":1.0,\"result\":{}}\n")).unwrap();
        writer.write(&lines(Origin::Bridge, b"{\"id\":2,\"error\":{}}\n")).unwrap();
        let content = Content::Event { event: "daemon lost", cause: Some("password: x1".into()) };
        writer.write(&Entry { at: Duration::from_secs(2), content }).unwrap();
        insta::assert_snapshot!(text(writer).replace(VERSION, "VERSION"));
    }

    #[test]
    fn full_recording_ends_with_a_notice() {
        let mut writer = writer(1000);
        let entry = lines(Origin::Client, b"{\"id\":1,\"method\":\"ping\"}\n");
        let end = std::iter::repeat_with(|| writer.write(&entry)).take(1000).find_map(Result::err);
        assert!(matches!(end, Some(End::Full(1000))), "{end:?}");
        let text = text(writer);
        assert!(text.len() <= 1000 && text.ends_with('\n'), "{}", text.len());
        let all: Vec<Value> = text.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
        let (last, messages) = all.split_last().unwrap();
        assert!(!messages.is_empty() && messages.iter().all(|it| it["from"] == "client"));
        assert_eq!(last["event"], "recording ended");
        assert_eq!(last["cause"], "it reached its maximum size of 1000 bytes");
    }

    #[test]
    fn last_line_always_fits() {
        let end = End::Full(u64::MAX).to_string();
        let last = event_line(u64::MAX, "recording ended", Some(end));
        assert!((last.len() as u64) < LAST_LINE, "{last}");
    }

    #[test]
    fn full_disk_ends_the_recording() {
        struct FullDisk;

        impl Write for FullDisk {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let mut writer = RecordingWriter::new(FullDisk, 1000, MessageMasker::default());
        let end = writer.write(&lines(Origin::Client, b"{}\n")).unwrap_err();
        assert_eq!(end.to_string(), "it could not be written: no storage space");
    }
}
