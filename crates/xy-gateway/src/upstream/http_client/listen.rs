//! Hearing a server: the stream of what belongs to no call, and any other stream of events.

use std::rc::Rc;
use std::time::Duration;

use hyper::Method;
use hyper::body::{Bytes, Incoming};
use tokio::time::{Instant, sleep, timeout};
use xy_mcp::head::Head;
use xy_mcp::sse::{Events, Piece};

use super::endpoint::{is_same_origin, resolve};
use super::fetch::{Failed, next_piece};
use super::meaning::{Meaning, Refusal, meaning};
use super::{GOOD_AFTER, LAST_EVENT, Trouble, Web};
use crate::held::Held;
use crate::large::LARGE;
use crate::upstream::Upstream;
use crate::upstream::wire::MAX_MESSAGE;

/// Whatever a server says, nobody asks more often or waits longer than this.
const LEAST_WAIT: Duration = Duration::from_millis(20);
const MOST_WAIT: Duration = Duration::from_secs(60);

/// After many streams that brought nothing, one is asked for this often.
const LONG_WAIT: Duration = Duration::from_secs(10);

/// So many times in a row a server may not be reached before it counts as gone.
const MOST_MISSES: u32 = 3;

/// A stream ends within this time after its answer.
const END_WITHIN: Duration = Duration::from_secs(1);

/// How long an older server may take to say where it listens.
const PLACE_WITHIN: Duration = Duration::from_secs(10);

/// How long a server that refused a greeting may take to show that it is an older one.
const OLDER_WITHIN: Duration = Duration::from_secs(1);

/// What is known of a stream of events.
#[derive(Debug, Default)]
pub(super) struct Streamed {
    /// Where to go on after what was heard.
    pub(super) last: Option<String>,
    /// All answers come here.
    is_only: bool,
    /// Something has come since somebody looked.
    pub(super) has_heard: bool,
    retry: Option<Duration>,
    /// How many streams in a row have ended without a message.
    empty: u32,
}

impl Streamed {
    /// Hears a stream to its end; `during` is the call it is about.
    pub(super) async fn handle(
        &mut self,
        upstream: &Rc<Upstream>,
        mut body: Incoming,
        during: Option<u64>,
        mut reading: Held,
    ) -> Result<(), Failed> {
        let mut events = Events::new(MAX_MESSAGE);
        loop {
            // Once it is answered there is only its end to come, and then the connection can be
            // used again.
            let is_over = during.is_some_and(|ours| !upstream.is_known(ours));
            let next = next_piece(&mut body);
            let piece = if is_over {
                timeout(END_WITHIN, next).await.unwrap_or(Ok(None))?
            } else {
                next.await?
            };
            let Some(piece) = piece else { return Ok(()) };
            let mut rest = &*piece;
            while let Some(piece) = events.next(&mut rest) {
                self.take(upstream, piece, during).await;
            }
            upstream.log_unparsed().await;
            if !reading.holds(events.held()) {
                let why = "too many of its answers are large and unfinished";
                return Err(Failed::Broken(why.to_owned()));
            }
        }
    }

    async fn take(&mut self, upstream: &Rc<Upstream>, piece: Piece, during: Option<u64>) {
        match piece {
            Piece::Event(event) => {
                self.has_heard = true;
                if !event.data.is_empty() {
                    self.empty = 0;
                }
                self.last = event.id.or(self.last.take());
                if !event.data.is_empty() && matches!(event.kind.as_str(), "" | "message") {
                    handle(upstream, event.data, during).await;
                }
            }
            Piece::Retry(millis) => self.retry = Some(Duration::from_millis(millis)),
            Piece::TooLong(head) => match during {
                Some(ours) if Head::of(&head).is_answer => upstream.too_long_for(ours),
                None if self.is_only => upstream.too_long(&head),
                _ => upstream.log_own("it said something too long"),
            },
        }
    }

    /// How long to wait before it is asked for again: as long as the server says, and longer
    /// each time that brings nothing.
    pub(super) fn wait(&mut self) -> Duration {
        let empty = self.empty.min(10);
        self.empty += 1;
        let first = self.retry.unwrap_or(LEAST_WAIT).clamp(LEAST_WAIT, MOST_WAIT);
        let most = LONG_WAIT.max(first);
        first.saturating_mul(2_u32.saturating_pow(empty)).min(most)
    }
}

/// Handles a message, which may be written on several lines.
async fn handle(upstream: &Rc<Upstream>, data: Vec<u8>, during: Option<u64>) {
    if data.len() > LARGE || memchr::memchr2(b'\n', b'\r', &data).is_none() {
        return upstream.hear_whole(data.into(), during).await;
    }
    let mut line = Vec::with_capacity(data.len());
    xy_mcp::edit::append_on_one_line(&mut line, &data);
    upstream.handle(&line, during);
}

impl Web {
    /// One more time nobody could be listened to; whether that may still be.
    pub(super) fn misses_another(&self) -> bool {
        let misses = self.misses.get() + 1;
        self.misses.set(if misses < MOST_MISSES { misses } else { 0 });
        misses < MOST_MISSES
    }

    /// Hears what belongs to no call, as long as the server offers that.
    pub(crate) async fn listen(self: Rc<Self>) {
        let mut streamed = Streamed::default();
        let mut misses = 0;
        while let Some(upstream) = self.upstream() {
            let began = Instant::now();
            match self.listen_once(&upstream, &mut streamed).await {
                Ok(()) if began.elapsed() >= GOOD_AFTER => (misses, streamed.empty) = (0, 0),
                Ok(()) => misses = 0,
                Err(NoStream::NotOffered) => return,
                Err(NoStream::Missed(why)) => {
                    misses += 1;
                    if misses >= MOST_MISSES {
                        self.trouble(Trouble::Unreachable(why));
                        return;
                    }
                }
            }
            sleep(streamed.wait()).await;
        }
    }

    async fn listen_once(
        &self,
        upstream: &Rc<Upstream>,
        streamed: &mut Streamed,
    ) -> Result<(), NoStream> {
        let mut ask = self.ask(Method::GET, self.place.clone(), Bytes::new());
        if let Some(last) = streamed.last.as_deref().and_then(|last| last.parse().ok()) {
            ask.headers.insert(LAST_EVENT, last);
        }
        let response = match self.fetch.send(ask).await {
            Ok(response) => response,
            Err(Failed::Unconnected(why)) => return Err(NoStream::Missed(why)),
            Err(Failed::Broken(_)) => return Ok(()), // As if it had ended at once.
            Err(Failed::LedAway(_) | Failed::NoTrust(_)) => return Err(NoStream::NotOffered),
        };
        match meaning(response.status(), response.headers(), self.has_session()) {
            Meaning::Events => {
                // Whether it ends or breaks, it is asked for again.
                let reading = self.reading();
                let _ = streamed.handle(upstream, response.into_body(), None, reading).await;
                Ok(())
            }
            Meaning::Failed(_) | Meaning::Refused(Refusal::TooMany(_)) => Ok(()),
            // Also 404: some answer that where they offer no stream. Whether the session is
            // forgotten is told by the next call.
            _ => Err(NoStream::NotOffered),
        }
    }

    /// Opens the only stream of an older server; resolves when that has said where messages
    /// are posted to, with what hears the rest of it.
    pub(crate) async fn open_older(
        self: &Rc<Self>,
    ) -> Result<impl Future<Output = String> + use<>, Trouble> {
        let ask = self.ask(Method::GET, self.place.clone(), Bytes::new());
        let response = self.fetch.send(ask).await.map_err(|failed| match failed {
            Failed::Unconnected(_) => Trouble::Unreachable(failed.words()),
            Failed::Broken(_) => Trouble::Failing(failed.words()),
            Failed::LedAway(_) | Failed::NoTrust(_) => Trouble::Hopeless(failed.words()),
        })?;
        let status = response.status();
        match meaning(status, response.headers(), false) {
            Meaning::Events => {}
            Meaning::Failed(_) | Meaning::Refused(Refusal::TooMany(_)) => {
                return Err(Trouble::Failing(format!("it answered {status}")));
            }
            Meaning::Refused(refusal) => {
                return Err(Trouble::Hopeless(refusal.explained(&self.headers).words()));
            }
            _ => return Err(Trouble::Hopeless("it is no older server: it streams nothing".into())),
        }
        let mut stream =
            OlderStream { body: response.into_body(), events: Events::new(MAX_MESSAGE) };
        let place = timeout(PLACE_WITHIN, stream.place());
        let (place, rest) = place.await.map_err(|_| {
            Trouble::Failing("it has not said where messages are posted to".to_owned())
        })??;
        let to = resolve(&self.place, &place).filter(|to| is_same_origin(&self.place, to));
        let away = || Trouble::Hopeless("it wants messages to be posted to another server".into());
        *self.post_to.borrow_mut() = Some(to.ok_or_else(away)?);
        let web = self.clone();
        Ok(async move { web.hear_older(stream, rest).await })
    }

    /// Returns true if the server speaks HTTP with SSE: it streams events, and says where
    /// messages are posted to.
    pub(crate) async fn speaks_older(&self) -> bool {
        let ask = self.ask(Method::GET, self.place.clone(), Bytes::new());
        let place = async {
            let response = self.fetch.send(ask).await.ok()?;
            let is_stream =
                meaning(response.status(), response.headers(), false) == Meaning::Events;
            let (body, events) = (response.into_body(), Events::new(MAX_MESSAGE));
            OlderStream { body, events }.place().await.ok().filter(|_| is_stream)
        };
        matches!(timeout(OLDER_WITHIN, place).await, Ok(Some(_)))
    }

    /// Hears the stream of an older server to its end; answers why it ended.
    async fn hear_older(&self, mut stream: OlderStream, mut rest: Bytes) -> String {
        let Some(upstream) = self.upstream() else { return String::new() };
        let mut streamed = Streamed { is_only: true, ..Streamed::default() };
        loop {
            let mut bytes = &*rest;
            while let Some(piece) = stream.events.next(&mut bytes) {
                streamed.take(&upstream, piece, None).await;
            }
            upstream.log_unparsed().await;
            match next_piece(&mut stream.body).await {
                Ok(Some(piece)) => rest = piece,
                Ok(None) => return "it ended its stream".to_owned(),
                Err(failed) => return failed.words(),
            }
        }
    }
}

/// Why there is no stream.
enum NoStream {
    /// The server has none.
    NotOffered,
    /// The server cannot be reached.
    Missed(String),
}

struct OlderStream {
    body: Incoming,
    events: Events,
}

impl OlderStream {
    /// What the first event says, and what came after it.
    async fn place(&mut self) -> Result<(String, Bytes), Trouble> {
        loop {
            let piece = next_piece(&mut self.body).await;
            let piece = piece.map_err(|failed| Trouble::Failing(failed.words()))?;
            let ended = || Trouble::Failing("its stream ended at once".to_owned());
            let piece = piece.ok_or_else(ended)?;
            let mut rest = &*piece;
            while let Some(found) = self.events.next(&mut rest) {
                if let Piece::Event(event) = found
                    && event.kind == "endpoint"
                {
                    let place = String::from_utf8_lossy(&event.data).into_owned();
                    return Ok((place, Bytes::copy_from_slice(rest)));
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
        let mut streamed = Streamed { retry, ..Streamed::default() };
        (0..count).map(|_| streamed.wait()).collect()
    }

    #[test]
    fn nobody_asks_too_often_or_waits_too_long() {
        let millis = |millis: &[u64]| -> Vec<Duration> {
            millis.iter().copied().map(Duration::from_millis).collect()
        };
        assert_eq!(waits(Some(500), 3), millis(&[500, 1000, 2000]));
        assert_eq!(waits(Some(0), 3), millis(&[20, 40, 80]));
        assert_eq!(waits(None, 3), millis(&[20, 40, 80]));
        assert_eq!(waits(None, 100).pop(), Some(LONG_WAIT));
        assert_eq!(waits(Some(30_000), 100).pop(), Some(Duration::from_secs(30)));
        assert_eq!(waits(Some(u64::from(u32::MAX)), 1), [MOST_WAIT]);
    }
}
