//! The server's event streams over HTTP: the standalone stream of messages that belong to no call,
//! and the reader of all event streams.

use std::rc::Rc;
use std::time::Duration;

use hyper::Method;
use hyper::body::{Bytes, Incoming};
use tokio::time::{Instant, sleep, timeout};
use xy_mcp::head::Head;
use xy_mcp::sse::{EventParser, StreamItem};
use xy_transport::budget::Reservation;
use xy_transport::large::LARGE_THRESHOLD;
use xy_transport::message_text::MAX_MESSAGE;

use super::endpoint::{is_same_origin, resolve};
use super::fetch::{FetchError, next_piece};
use super::response_class::{Refusal, ResponseClass, classify};
use super::{HttpClient, LAST_EVENT, STABLE_AFTER, SessionError};
use crate::connection::Connection;

/// Limits of the delay between two requests, whatever a server says.
const MIN_DELAY: Duration = Duration::from_millis(20);
const MAX_DELAY: Duration = Duration::from_secs(60);

/// Maximum delay between requests after many streams without a message.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Number of consecutive connect failures after which a server counts as gone.
const MAX_CONNECT_FAILURES: u32 = 3;

/// Maximum time between a response and the end of its stream.
const STREAM_END_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum time until a legacy SSE server announces its endpoint.
const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time for finding out that a server which refused the handshake is a legacy SSE server.
const LEGACY_PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The reader of an event stream, including its resumption state.
#[derive(Debug, Default)]
pub(super) struct EventReader {
    /// The last event id, from which the stream is resumed.
    pub(super) last: Option<String>,
    /// All responses come on this stream.
    is_only: bool,
    /// An event was received since the last check.
    pub(super) has_received: bool,
    retry: Option<Duration>,
    /// Number of consecutive streams that ended without a message.
    empty: u32,
}

impl EventReader {
    /// Reads a stream to its end; `related_call` is the call that it belongs to.
    pub(super) async fn handle(
        &mut self,
        connection: &Rc<Connection>,
        mut body: Incoming,
        related_call: Option<u64>,
        mut budget: Reservation,
    ) -> Result<(), FetchError> {
        let mut events = EventParser::new(MAX_MESSAGE);
        loop {
            // After the response, only the end of the stream is awaited, so that the connection can
            // be reused.
            let is_over =
                related_call.is_some_and(|upstream_id| !connection.is_pending(upstream_id));
            let next = next_piece(&mut body);
            let piece = if is_over {
                timeout(STREAM_END_TIMEOUT, next).await.unwrap_or(Ok(None))?
            } else {
                next.await?
            };
            let Some(piece) = piece else { return Ok(()) };
            let mut rest = &*piece;
            while let Some(piece) = events.next(&mut rest) {
                self.take(connection, piece, related_call).await;
            }
            connection.log_unparsed().await;
            if !budget.resize(events.buffered_len()) {
                let why = "too many of its answers are large and unfinished";
                return Err(FetchError::Broken(why.to_owned()));
            }
        }
    }

    async fn take(
        &mut self,
        connection: &Rc<Connection>,
        piece: StreamItem,
        related_call: Option<u64>,
    ) {
        match piece {
            StreamItem::Event(event) => {
                self.has_received = true;
                if !event.data.is_empty() {
                    self.empty = 0;
                }
                self.last = event.id.or(self.last.take());
                if !event.data.is_empty() && matches!(event.kind.as_str(), "" | "message") {
                    handle(connection, event.data, related_call).await;
                }
            }
            StreamItem::Retry(millis) => self.retry = Some(Duration::from_millis(millis)),
            StreamItem::TooLong(head) => match related_call {
                Some(upstream_id) if Head::of(&head).is_response => {
                    connection.too_long_for(upstream_id);
                }
                None if self.is_only => connection.too_long(&head),
                _ => connection.log_own("a message exceeded the size limit"),
            },
        }
    }

    /// Returns how long to wait before the next request: as long as the server says, and longer
    /// after each stream without a message.
    pub(super) fn wait(&mut self) -> Duration {
        let empty = self.empty.min(10);
        self.empty += 1;
        let first = self.retry.unwrap_or(MIN_DELAY).clamp(MIN_DELAY, MAX_DELAY);
        let most = MAX_BACKOFF.max(first);
        first.saturating_mul(2_u32.saturating_pow(empty)).min(most)
    }
}

/// Handles a message, which may span several lines.
async fn handle(connection: &Rc<Connection>, data: Vec<u8>, related_call: Option<u64>) {
    if data.len() > LARGE_THRESHOLD || memchr::memchr2(b'\n', b'\r', &data).is_none() {
        return connection.handle_whole(data.into(), related_call).await;
    }
    let mut line = Vec::with_capacity(data.len());
    xy_mcp::edit::append_on_one_line(&mut line, &data);
    connection.handle(&line, related_call);
}

impl HttpClient {
    /// Records a failure to connect for the event stream. Returns true if it may be temporary.
    pub(super) fn tolerates_connect_failure(&self) -> bool {
        let failures = self.connect_failures.get() + 1;
        self.connect_failures.set(if failures < MAX_CONNECT_FAILURES { failures } else { 0 });
        failures < MAX_CONNECT_FAILURES
    }

    /// Reads the standalone event stream, as long as the server offers one.
    pub async fn listen(self: Rc<Self>) {
        let mut reader = EventReader::default();
        let mut failures = 0;
        while let Some(connection) = self.connection() {
            let began = Instant::now();
            match self.listen_once(&connection, &mut reader).await {
                Ok(()) if began.elapsed() >= STABLE_AFTER => (failures, reader.empty) = (0, 0),
                Ok(()) => failures = 0,
                Err(NoStream::NotOffered) => return,
                Err(NoStream::Unreachable(why)) => {
                    failures += 1;
                    if failures >= MAX_CONNECT_FAILURES {
                        self.report(SessionError::Unreachable(why));
                        return;
                    }
                }
            }
            sleep(reader.wait()).await;
        }
    }

    async fn listen_once(
        &self,
        connection: &Rc<Connection>,
        reader: &mut EventReader,
    ) -> Result<(), NoStream> {
        let mut request = self.request(Method::GET, self.url.clone(), Bytes::new());
        if let Some(last) = reader.last.as_deref().and_then(|last| last.parse().ok()) {
            request.headers.insert(LAST_EVENT, last);
        }
        let response = match self.sender.send(request).await {
            Ok(response) => response,
            Err(FetchError::Unconnected(why)) => return Err(NoStream::Unreachable(why)),
            Err(FetchError::Broken(_)) => return Ok(()), // As if the stream had ended at once.
            Err(FetchError::Redirected(_) | FetchError::NoTrustStore(_)) => {
                return Err(NoStream::NotOffered);
            }
        };
        match classify(response.status(), response.headers(), self.has_session()) {
            ResponseClass::Events => {
                // The stream is requested again, whether it ended or broke.
                let budget = self.partial_budget();
                let _ = reader.handle(connection, response.into_body(), None, budget).await;
                Ok(())
            }
            ResponseClass::Failed(_) | ResponseClass::Refused(Refusal::TooMany(_)) => Ok(()),
            // Some servers that offer no stream answer 404. Whether the session is forgotten is
            // shown by the next call.
            _ => Err(NoStream::NotOffered),
        }
    }

    /// Opens the only stream of a legacy SSE server, and waits until it announces its endpoint.
    /// Returns a future that reads the rest of the stream.
    pub async fn open_legacy_stream(
        self: &Rc<Self>,
    ) -> Result<impl Future<Output = String> + use<>, SessionError> {
        let request = self.request(Method::GET, self.url.clone(), Bytes::new());
        let response = self.sender.send(request).await.map_err(|failed| match failed {
            FetchError::Unconnected(_) => SessionError::Unreachable(failed.words()),
            FetchError::Broken(_) => SessionError::Failing(failed.words()),
            FetchError::Redirected(_) | FetchError::NoTrustStore(_) => {
                SessionError::Hopeless(failed.words())
            }
        })?;
        let status = response.status();
        match classify(status, response.headers(), false) {
            ResponseClass::Events => {}
            ResponseClass::Failed(_) | ResponseClass::Refused(Refusal::TooMany(_)) => {
                return Err(SessionError::Failing(format!("it answered {status}")));
            }
            ResponseClass::Refused(refusal) => {
                return Err(SessionError::Hopeless(refusal.explained(&self.headers).words()));
            }
            _ => {
                return Err(SessionError::Hopeless(
                    "it does not speak HTTP with SSE: it opened no event stream".into(),
                ));
            }
        }
        let mut stream =
            LegacyStream { body: response.into_body(), events: EventParser::new(MAX_MESSAGE) };
        let endpoint = timeout(ENDPOINT_TIMEOUT, stream.endpoint());
        let (endpoint, rest) = endpoint
            .await
            .map_err(|_| SessionError::Failing("it has not announced its endpoint".to_owned()))??;
        let to = resolve(&self.url, &endpoint).filter(|to| is_same_origin(&self.url, to));
        let away =
            || SessionError::Hopeless("it wants messages to be posted to another server".into());
        *self.post_url.borrow_mut() = Some(to.ok_or_else(away)?);
        let transport = self.clone();
        Ok(async move { transport.read_legacy_stream(stream, rest).await })
    }

    /// Returns true if the server speaks HTTP+SSE: it opens an event stream and announces an
    /// endpoint.
    pub async fn speaks_legacy_sse(&self) -> bool {
        let request = self.request(Method::GET, self.url.clone(), Bytes::new());
        let endpoint = async {
            let response = self.sender.send(request).await.ok()?;
            let is_stream =
                classify(response.status(), response.headers(), false) == ResponseClass::Events;
            let (body, events) = (response.into_body(), EventParser::new(MAX_MESSAGE));
            LegacyStream { body, events }.endpoint().await.ok().filter(|_| is_stream)
        };
        matches!(timeout(LEGACY_PROBE_TIMEOUT, endpoint).await, Ok(Some(_)))
    }

    /// Reads the stream of a legacy SSE server to its end. Returns why it ended.
    async fn read_legacy_stream(&self, mut stream: LegacyStream, mut rest: Bytes) -> String {
        let Some(connection) = self.connection() else { return String::new() };
        let mut reader = EventReader { is_only: true, ..EventReader::default() };
        loop {
            let mut bytes = &*rest;
            while let Some(piece) = stream.events.next(&mut bytes) {
                reader.take(&connection, piece, None).await;
            }
            connection.log_unparsed().await;
            match next_piece(&mut stream.body).await {
                Ok(Some(piece)) => rest = piece,
                Ok(None) => return "it ended its stream".to_owned(),
                Err(failed) => return failed.words(),
            }
        }
    }
}

/// The reason why there is no stream.
enum NoStream {
    /// The server offers none.
    NotOffered,
    /// The server cannot be reached.
    Unreachable(String),
}

struct LegacyStream {
    body: Incoming,
    events: EventParser,
}

impl LegacyStream {
    /// Returns the announced endpoint, and the bytes after that event.
    async fn endpoint(&mut self) -> Result<(String, Bytes), SessionError> {
        loop {
            let piece = next_piece(&mut self.body).await;
            let piece = piece.map_err(|failed| SessionError::Failing(failed.words()))?;
            let ended = || SessionError::Failing("its stream ended at once".to_owned());
            let piece = piece.ok_or_else(ended)?;
            let mut rest = &*piece;
            while let Some(found) = self.events.next(&mut rest) {
                if let StreamItem::Event(event) = found
                    && event.kind == "endpoint"
                {
                    let endpoint = String::from_utf8_lossy(&event.data).into_owned();
                    return Ok((endpoint, Bytes::copy_from_slice(rest)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(retry: Option<u64>, count: usize) -> Vec<Duration> {
        let retry = retry.map(Duration::from_millis);
        let mut reader = EventReader { retry, ..EventReader::default() };
        (0..count).map(|_| reader.wait()).collect()
    }

    #[test]
    fn retry_delay_is_bounded() {
        let millis = |millis: &[u64]| -> Vec<Duration> {
            millis.iter().copied().map(Duration::from_millis).collect()
        };
        assert_eq!(waits(Some(500), 3), millis(&[500, 1000, 2000]));
        assert_eq!(waits(Some(0), 3), millis(&[20, 40, 80]));
        assert_eq!(waits(None, 3), millis(&[20, 40, 80]));
        assert_eq!(waits(None, 100).pop(), Some(MAX_BACKOFF));
        assert_eq!(waits(Some(30_000), 100).pop(), Some(Duration::from_secs(30)));
        assert_eq!(waits(Some(u64::from(u32::MAX)), 1), [MAX_DELAY]);
    }
}
