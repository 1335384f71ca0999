//! Messages so large that parsing them would delay other clients. They are parsed on threads of low
//! priority; the gateway's thread gets only the positions of the parts that it needs.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, oneshot};
use xy_mcp::batch;
use xy_mcp::envelope::{self, Malformed, Message, Outcome};
use xy_mcp::params::{ParamRanges, Params, Span, span_of};

use crate::body::BodyChunks;
use crate::pace::Pace;

/// The size above which a message is parsed on another thread. Below it, parsing takes less time
/// than waking a thread.
pub const LARGE_THRESHOLD: usize = 1024 * 1024;

/// Maximum number of large messages that are parsed concurrently; others wait. Their bytes count as
/// those of incomplete bodies. Two would need four cores, to leave one for calls and one for
/// servers.
const MAX_CONCURRENT_PARSES: usize = 1;

/// The priority (`nice`) of a parsing thread: on a busy machine, calls come first.
#[cfg(target_os = "linux")]
const PARSING_NICE: i32 = 10;

/// Maximum size of `_meta` in a large message, as the gateway's thread parses it several times.
const META_MAX: usize = 256 * 1024;

/// A large message, and the positions of its parts. Its text has no line breaks.
#[derive(Debug)]
pub struct LargeMessage {
    text: Arc<LargeText>,
    parsed: Result<ParsedMessage, Malformed>,
}

#[derive(Debug)]
enum ParsedMessage {
    Request {
        id: Span,
        method: String,
        params: Option<Span>,
        ranges: Result<Box<ParamRanges>, String>,
    },
    Notification {
        method: String,
        params: Option<Span>,
        ranges: Box<ParamRanges>,
    },
    Answer {
        id: Option<Span>,
        result: Option<Span>,
        error: Option<Span>,
    },
    Batch(Vec<Arc<LargeMessage>>),
}

/// The text of a large message.
#[derive(Debug, Default)]
struct LargeText(String);

impl Drop for LargeText {
    fn drop(&mut self) {
        free(std::mem::take(&mut self.0));
    }
}

/// Frees bytes. Large ones are freed on a blocking thread, as unmapping 30 MB takes milliseconds.
pub fn free(bytes: impl AsRef<[u8]> + Send + 'static) {
    if bytes.as_ref().len() > LARGE_THRESHOLD
        && let Ok(runtime) = tokio::runtime::Handle::try_current()
    {
        runtime.spawn_blocking(move || drop(bytes));
    }
}

/// The text of a large message, shared with [`Bytes`].
struct SharedText(Arc<LargeText>);

impl AsRef<[u8]> for SharedText {
    fn as_ref(&self) -> &[u8] {
        self.0.0.as_bytes()
    }
}

impl LargeMessage {
    /// Parses a message. Takes long.
    pub fn read(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self::parse(text, true),
            Err(cause) => {
                let cause = Malformed::NotJson(cause.utf8_error().to_string());
                Self { text: Arc::default(), parsed: Err(cause) }
            }
        }
    }

    /// Parses a message. `may_be_batch` is false for the parts of a batch.
    fn parse(text: String, may_be_batch: bool) -> Self {
        let parsed = match parse(&text) {
            Err(Malformed::Batch) if may_be_batch => parse_batch(&text),
            parsed => parsed,
        };
        let text = if parsed.is_ok() { on_one_line(text) } else { text };
        Self { text: Arc::new(LargeText(text)), parsed }
    }

    fn as_str(&self) -> &str {
        &self.text.0
    }

    /// Returns the text, which is empty if the message is not UTF-8.
    pub fn text(&self) -> &[u8] {
        self.as_str().as_bytes()
    }

    /// Returns the text without copying it.
    pub(crate) fn bytes(&self) -> Bytes {
        Bytes::from_owner(SharedText(self.text.clone()))
    }

    /// Returns the envelope, as [`envelope::parse`] does.
    pub fn message(&self) -> Result<Message<'_>, Malformed> {
        let at = |span: &Span| self.as_str().get(span.clone()).unwrap_or_default();
        Ok(match self.parsed.as_ref().map_err(Clone::clone)? {
            ParsedMessage::Request { id, method, params, .. } => Message::Request {
                id: at(id),
                method: method.as_str().into(),
                params: params.as_ref().map(at),
            },
            ParsedMessage::Notification { method, params, .. } => {
                let params = params.as_ref().map(at);
                Message::Notification { method: method.as_str().into(), params }
            }
            ParsedMessage::Answer { id, result, error } => {
                let outcome = match (result, error) {
                    (Some(result), _) => Outcome::Result(at(result)),
                    (None, error) => Outcome::Error(error.as_ref().map(at).unwrap_or_default()),
                };
                Message::Response { id: id.as_ref().map(at), outcome }
            }
            ParsedMessage::Batch(_) => return Err(Malformed::Batch),
        })
    }

    /// Returns the params of a request, as [`Params::checked`] does, or of a notification.
    pub fn params(&self) -> Result<Params<'_>, String> {
        let at = |params: &Span, ranges: &ParamRanges| {
            Params::at(self.as_str().get(params.clone()).unwrap_or_default(), ranges)
        };
        match &self.parsed {
            Ok(ParsedMessage::Request { params: Some(params), ranges, .. }) => {
                ranges.as_ref().map(|ranges| at(params, ranges)).map_err(Clone::clone)
            }
            Ok(ParsedMessage::Notification { params: Some(params), ranges, .. }) => {
                Ok(at(params, ranges))
            }
            _ => Ok(Params::default()),
        }
    }

    /// Returns the messages of a batch.
    pub fn parts(&self) -> Option<&[Arc<Self>]> {
        match &self.parsed {
            Ok(ParsedMessage::Batch(parts)) => Some(parts),
            _ => None,
        }
    }
}

fn parse(text: &str) -> Result<ParsedMessage, Malformed> {
    let span = |part: &str| span_of(text, part);
    Ok(match envelope::parse(text.as_bytes())? {
        Message::Request { id, method, params } => ParsedMessage::Request {
            id: span(id),
            method: method.into_owned(),
            params: params.map(span),
            ranges: check_params(params).map(|it| Box::new(it.ranges(params.unwrap_or_default()))),
        },
        Message::Notification { method, params } => ParsedMessage::Notification {
            method: method.into_owned(),
            params: params.map(span),
            ranges: Box::new(Params::read(params).ranges(params.unwrap_or_default())),
        },
        Message::Response { id, outcome } => {
            let (result, error) = match outcome {
                Outcome::Result(result) => (Some(span(result)), None),
                Outcome::Error(error) => (None, Some(span(error))),
            };
            ParsedMessage::Answer { id: id.map(span), result, error }
        }
    })
}

fn check_params(params: Option<&str>) -> Result<Params<'_>, String> {
    let params = Params::checked(params)?;
    match params.meta() {
        Some(meta) if meta.len() > META_MAX => {
            Err(format!("its `_meta` is larger than {} KiB", META_MAX >> 10))
        }
        _ => Ok(params),
    }
}

/// Parses a batch, unless it has too many parts. Each part is copied, so that none keeps the whole
/// batch in memory.
fn parse_batch(text: &str) -> Result<ParsedMessage, Malformed> {
    let parts = batch::split(text.as_bytes()).ok_or(Malformed::Batch)?;
    let part = |part: &RawValue| Arc::new(LargeMessage::parse(part.get().to_owned(), false));
    Ok(ParsedMessage::Batch(parts.into_iter().map(part).collect()))
}

/// Replaces line breaks by spaces. No string of valid JSON contains a bare one.
fn on_one_line(text: String) -> String {
    if memchr::memchr2(b'\n', b'\r', text.as_bytes()).is_none() {
        return text;
    }
    text.replace(['\n', '\r'], " ")
}

/// Parses large messages, one after another. Clones share the limit and the pace.
#[derive(Debug, Clone)]
pub struct LargeReader {
    permits: Arc<Semaphore>,
    pace: Rc<Pace>,
}

impl Default for LargeReader {
    fn default() -> Self {
        Self { permits: Arc::new(Semaphore::new(MAX_CONCURRENT_PARSES)), pace: Rc::default() }
    }
}

impl LargeReader {
    /// Returns the pace at which large messages are moved.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Parses a message on a thread of its own. Returns `None` if no thread can be started. If the
    /// caller is dropped, the thread continues and counts against the limit until it ends.
    pub async fn read(&self, text: impl Into<BodyChunks>) -> Option<Arc<LargeMessage>> {
        let text = text.into();
        let permit = self.permits.clone().acquire_owned().await.ok()?;
        let (sender, parsed) = oneshot::channel();
        let parse = move || {
            lower_priority();
            let message = Arc::new(LargeMessage::read(text.join()));
            drop(permit);
            let _ = sender.send(message); // The caller may have been dropped.
        };
        std::thread::Builder::new().name("large-message".into()).spawn(parse).ok()?;
        parsed.await.ok()
    }

    /// Returns true if no message is being parsed.
    #[cfg(any(test, feature = "test-util"))]
    pub fn is_idle(&self) -> bool {
        self.permits.available_permits() == MAX_CONCURRENT_PARSES
    }
}

/// Lowers the priority of this thread. Only on Linux: elsewhere the call affects the whole process.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    // Without this, other tasks wait longer.
    let _ = rustix::process::setpriority_process(None, PARSING_NICE);
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::Poll;

    use super::*;

    /// Returns everything that is known of a message, as text.
    fn describe(
        message: &Result<Message<'_>, Malformed>,
        params: &Result<Params<'_>, String>,
    ) -> String {
        format!("{message:?} {params:?}")
    }

    #[tokio::test]
    async fn large_bytes_are_freed_on_another_thread() {
        struct Owner(Vec<u8>, std::sync::mpsc::Sender<std::thread::ThreadId>);

        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        impl Drop for Owner {
            fn drop(&mut self) {
                self.1.send(std::thread::current().id()).unwrap();
            }
        }

        for (length, is_here) in [(LARGE_THRESHOLD, true), (LARGE_THRESHOLD + 1, false)] {
            let (sender, freed) = std::sync::mpsc::channel();
            free(Bytes::from_owner(Owner(vec![0; length], sender)));
            let freed = freed.recv().unwrap();
            assert_eq!(freed == std::thread::current().id(), is_here, "{length}");
        }
    }

    #[test]
    fn large_message_parses_like_a_small_one() {
        for text in [
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a__b","arguments":{"x":[1, 2]},"_meta":{"progressToken":"p"}}}"#,
            r#" {"params" : {"uri":"x","name":null}, "id":"a\"b","method":"t\u006fols","jsonrpc":"2.0"} "#,
            r#"{"jsonrpc":"2.0","id":7,"method":"m"}"#,
            r#"{"jsonrpc":"2.0","id":7,"method":"m","params":[1]}"#,
            r#"{"jsonrpc":"2.0","id":7,"method":"m","params":{"name":1,"name":2}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"ü":1}}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":1}}"#,
            r#"{"jsonrpc":"1.0","id":1,"method":"m"}"#,
            "[]",
            "{",
            "",
        ] {
            let large = LargeMessage::read(text.as_bytes().to_vec());
            let here = envelope::parse(text.as_bytes());
            let params = match &here {
                Ok(Message::Request { params, .. }) => Params::checked(*params),
                Ok(Message::Notification { params, .. }) => Ok(Params::read(*params)),
                _ => Ok(Params::default()),
            };
            assert_eq!(
                describe(&large.message(), &large.params()),
                describe(&here, &params),
                "{text}"
            );
            assert_eq!(large.text(), text.as_bytes());
        }
        let no_text = LargeMessage::read(b"{\"\xff\"}".to_vec());
        assert!(matches!(no_text.message(), Err(Malformed::NotJson(_))));
    }

    #[test]
    fn line_breaks_become_spaces() {
        let large = LargeMessage::read(b"{\n\"jsonrpc\":\"2.0\",\r\n\"method\":\"m\"}".to_vec());
        assert_eq!(large.text(), br#"{ "jsonrpc":"2.0",  "method":"m"}"#);
        assert!(matches!(large.message(), Ok(Message::Notification { .. })));
        let inside = LargeMessage::read(b"{\"jsonrpc\":\"2.0\",\"method\":\"a\nb\"}".to_vec());
        assert!(matches!(inside.message(), Err(Malformed::NotJson(_))), "a string has none");
    }

    #[test]
    fn batch_is_parsed_part_by_part() {
        let parts = [r#"{"jsonrpc":"2.0","id":7,"method":"ü","params":{"name":"a"}}"#, "[{}]", "8"];
        let large = LargeMessage::read(format!("[{}]", parts.join(" , ")).into());
        assert_eq!(large.message().unwrap_err(), Malformed::Batch);
        for (part, text) in large.parts().unwrap().iter().zip(parts) {
            let here = envelope::parse(text.as_bytes());
            assert_eq!(format!("{:?}", part.message()), format!("{here:?}"));
            assert_eq!((part.text(), &part.bytes()[..]), (text.as_bytes(), text.as_bytes()));
        }
        assert_eq!(large.parts().unwrap()[0].params().unwrap().name(), Some(r#""a""#));
        assert_eq!(Arc::strong_count(&large.text), 1, "no part keeps the whole batch");
        let endless = format!("[{}]", vec!["{}"; 2000].join(","));
        assert!(LargeMessage::read(endless.into()).parts().is_none());
    }

    #[test]
    fn meta_of_a_large_message_has_a_maximum_size() {
        let with = |length: usize| {
            let filler = "x".repeat(length);
            let params = format!(r#"{{"_meta":{{"x":"{filler}"}}}}"#);
            let text = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"m","params":{params}}}"#);
            LargeMessage::read(text.into()).params().map(|_| ())
        };
        assert_eq!(with(META_MAX - 10), Ok(()));
        assert_eq!(with(META_MAX).unwrap_err(), "its `_meta` is larger than 256 KiB");
    }

    #[test]
    fn parts_can_be_edited_in_place() {
        let text = r#"{"jsonrpc":"2.0","id":7,"method":"m","params":{"name":"a"}}"#;
        let large = LargeMessage::read(text.as_bytes().to_vec());
        let Ok(Message::Request { id, .. }) = large.message() else { panic!("it is a request") };
        let mut edits = xy_mcp::edit::Edits::of(large.text());
        edits.replace(id, "8");
        let params = large.params().unwrap();
        edits.replace(params.name().unwrap(), "\"b\"");
        let edited = String::from_utf8(edits.to_vec()).unwrap();
        assert_eq!(edited, r#"{"jsonrpc":"2.0","id":8,"method":"m","params":{"name":"b"}}"#);
    }

    #[tokio::test]
    async fn messages_beyond_the_limit_wait() {
        let reader = LargeReader::default();
        let permits: Vec<_> = (0..MAX_CONCURRENT_PARSES)
            .map(|_| reader.permits.clone().try_acquire_owned().unwrap())
            .collect();
        let mut waiting = Box::pin(reader.read(Bytes::from_static(b"{}")));
        assert!(poll_once(&mut waiting).await.is_none());
        drop(permits);
        assert!(waiting.await.is_some());
        assert!(reader.is_idle());
    }

    #[tokio::test]
    async fn message_without_a_waiting_reader_is_still_parsed() {
        let reader = LargeReader::default();
        let mut left = Box::pin(reader.read(Bytes::from_static(b"{}")));
        let _ = poll_once(&mut left).await;
        drop(left);
        while !reader.is_idle() {
            tokio::task::yield_now().await;
        }
    }

    /// Polls a future once.
    async fn poll_once<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
        std::future::poll_fn(|context| {
            Poll::Ready(match Pin::new(&mut *future).poll(context) {
                Poll::Ready(value) => Some(value),
                Poll::Pending => None,
            })
        })
        .await
    }
}
