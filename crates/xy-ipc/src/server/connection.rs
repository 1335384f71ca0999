//! One front end: reads its requests, runs each in a task, sends what comes of them.
//!
//! The loop never waits for anything but the next thing to happen. Whatever has to
//! wait for room in the outbox does so in a task of its own, and counts as an open
//! request, so a client that sends and never reads is soon not read any more.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use xy_protocol::control::{Cancel, Cancelled, Request, StreamEnd, Subscribed};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::jsonrpc::{Incoming, OutgoingResponse, RequestId};

use super::input::Input;
use super::{
    Answer, FINISH_WITHIN, FLUSH_WITHIN, Feed, LINE_WITHIN, MAX_OPEN_REQUESTS, MAX_SUBSCRIPTIONS,
    Outbox, Service, channel, encode,
};
use crate::framing::{Line, MAX_REQUEST_LINE};

/// While a connection is not read, a hang-up can only be seen by looking.
const LOOK_FOR_HANG_UP_EVERY: Duration = Duration::from_millis(200);

/// Serves one front end until it hangs up or `closing` becomes true.
pub(super) async fn run<S: Service>(
    stream: UnixStream,
    service: Arc<S>,
    closing: watch::Receiver<bool>,
) {
    let (read, write) = stream.into_split();
    let (outbox, outgoing) = channel();
    let mut writing = Box::pin(outgoing.write_to(write));
    let mut connection = Connection::new(service, outbox);
    let end = tokio::select! {
        end = connection.converse(Input::new(read), closing) => end,
        () = &mut writing => End::HungUp,
    };
    match end {
        End::Done => {
            drop(connection);
            // A client that does not read its last lines does without them.
            let _ = timeout(FLUSH_WITHIN, writing).await;
        }
        End::HungUp => {
            drop(writing); // Nobody waits for room any more.
            connection.carry_on().await;
        }
    }
}

enum End {
    /// Nobody is there to read what is left.
    HungUp,
    /// What is left is to be sent.
    Done,
}

/// A request that led to a stream.
struct Begun {
    id: RequestId,
    feed: Box<dyn Feed>,
}

struct Connection<S> {
    service: Arc<S>,
    outbox: Outbox,
    /// Each sends its own answer, unless a stream begins.
    requests: JoinSet<Option<Begun>>,
    /// Each sends the answer, the notifications and the end; then gives back its id.
    streams: JoinSet<u64>,
    /// Dropping one ends its stream.
    cancels: HashMap<u64, oneshot::Sender<()>>,
}

impl<S: Service> Connection<S> {
    fn new(service: Arc<S>, outbox: Outbox) -> Self {
        let (requests, streams) = (JoinSet::new(), JoinSet::new());
        Self { service, outbox, requests, streams, cancels: HashMap::new() }
    }

    async fn converse(&mut self, mut input: Input, mut closing: watch::Receiver<bool>) -> End {
        loop {
            let has_room = self.take_lines(&mut input);
            let reading = has_room && !input.has_ended();
            if input.has_ended() && self.requests.is_empty() && self.streams.is_empty() {
                return End::Done;
            }
            let line_due_at = input.line_due_at(reading);
            tokio::select! {
                biased;
                () = raised(&mut closing) => break,
                Some(done) = self.requests.join_next() => self.after_request(done),
                Some(ended) = self.streams.join_next() => self.after_stream(ended),
                () = until(line_due_at), if reading => {
                    self.refuse(RequestId::Null, too_slow());
                    break;
                }
                filled = input.fill(), if reading => {
                    if filled.is_err() || (input.has_ended() && input.is_hung_up()) {
                        return End::HungUp;
                    }
                }
                () = sleep(LOOK_FOR_HANG_UP_EVERY), if !reading => {
                    if input.is_hung_up() {
                        return End::HungUp;
                    }
                }
            }
        }
        self.wind_down().await
    }

    /// Begins what the lines ask for, as long as there is room; says whether there still is.
    fn take_lines(&mut self, input: &mut Input) -> bool {
        while self.requests.len() < MAX_OPEN_REQUESTS {
            match input.next_line() {
                None => return true,
                Some(Line::TooLong(_)) => self.refuse(RequestId::Null, too_long()),
                Some(Line::Whole(line)) => match Incoming::parse(line) {
                    Ok(incoming) => self.begin(incoming),
                    Err(refused) => self.refuse(refused.id, refused.error),
                },
            }
        }
        false
    }

    fn begin(&mut self, incoming: Incoming) {
        let Incoming { id, method, params } = incoming;
        match Request::parse(&method, params.as_deref()) {
            Ok(Request::LogsCancel(ask) | Request::EventsCancel(ask)) => self.cancel(id, ask),
            Ok(request) => {
                let (service, outbox) = (Arc::clone(&self.service), self.outbox.clone());
                self.requests.spawn(answer(service, outbox, id, request));
            }
            Err(error) => {
                if let Some(id) = id {
                    self.refuse(id, error);
                }
            }
        }
    }

    fn refuse(&mut self, id: RequestId, error: CallError) {
        let outbox = self.outbox.clone();
        self.requests.spawn(async move {
            send_error(&outbox, &id, &error).await;
            None
        });
    }

    /// Ends a stream of this connection, after the answer that says so.
    fn cancel(&mut self, id: Option<RequestId>, Cancel { subscription_id }: Cancel) {
        let Some(cancel) = self.cancels.remove(&subscription_id) else {
            if let Some(id) = id {
                self.refuse(id, no_such_stream(subscription_id));
            }
            return;
        };
        let outbox = self.outbox.clone();
        self.requests.spawn(async move {
            if let Some(id) = id {
                send_result(&outbox, &id, &Cancelled { subscription_id }).await;
            }
            drop(cancel);
            None
        });
    }

    fn after_request(&mut self, done: Result<Option<Begun>, JoinError>) {
        match done {
            Ok(None) => {}
            Ok(Some(begun)) if self.streams.len() >= MAX_SUBSCRIPTIONS => {
                self.refuse(begun.id, too_many_streams());
            }
            Ok(Some(begun)) => {
                let (cancel, cancelled) = oneshot::channel();
                self.cancels.insert(begun.feed.id(), cancel);
                self.streams.spawn(stream(begun, cancelled, self.outbox.clone()));
            }
            Err(error) => tracing::error!(%error, "a request broke off"),
        }
    }

    fn after_stream(&mut self, ended: Result<u64, JoinError>) {
        match ended {
            Ok(id) => drop(self.cancels.remove(&id)),
            Err(error) => tracing::error!(%error, "a stream broke off"),
        }
    }

    /// Does what was asked before the hang-up, within a limit: a `stop` that was sent is
    /// meant, whoever is left to hear of it.
    async fn carry_on(&mut self) {
        self.streams.abort_all();
        let finish = async { while self.requests.join_next().await.is_some() {} };
        // Whatever takes longer has been handed on to the servers by then.
        let _ = timeout(FINISH_WITHIN, finish).await;
    }

    /// Lets requests finish and streams end, within a limit.
    async fn wind_down(&mut self) -> End {
        let finish = async {
            loop {
                self.cancels.clear();
                tokio::select! {
                    Some(done) = self.requests.join_next() => self.after_request(done),
                    Some(ended) = self.streams.join_next() => self.after_stream(ended),
                    else => break,
                }
            }
        };
        if timeout(FINISH_WITHIN, finish).await.is_err() {
            tracing::warn!("a front end's requests did not finish in time");
        }
        End::Done
    }
}

/// Does one request; the answer is sent here, or with the stream that begins.
async fn answer<S: Service>(
    service: Arc<S>,
    outbox: Outbox,
    id: Option<RequestId>,
    request: Request,
) -> Option<Begun> {
    let done = service.call(request).await;
    let id = id?; // A notification is done, and nobody hears of it.
    match done {
        Ok(Answer::Stream(feed)) => return Some(Begun { id, feed }),
        Ok(Answer::Result(result)) => send_raw(&outbox, &id, &result).await,
        Ok(Answer::WithDescriptor(result, descriptor)) => {
            // If the connection has closed, nobody is left to be told.
            let _ = outbox.send_descriptor(descriptor).await;
            send_raw(&outbox, &id, &result).await;
        }
        Err(error) => send_error(&outbox, &id, &error).await,
    }
    None
}

/// The answer, the notifications, the end: in this order, whatever ends it.
async fn stream(begun: Begun, cancelled: oneshot::Receiver<()>, outbox: Outbox) -> u64 {
    let Begun { id, feed } = begun;
    let (subscription_id, end_method) = (feed.id(), feed.end_method());
    send_result(&outbox, &id, &Subscribed { subscription_id }).await;
    tokio::select! {
        biased;
        _ = cancelled => {}
        () = feed.run(outbox.clone()) => {}
    }
    let _ = outbox.notify(end_method, StreamEnd { subscription_id }).await;
    subscription_id
}

async fn send_result(outbox: &Outbox, id: &RequestId, result: &(impl Serialize + Sync)) {
    let raw = to_raw_value(result).expect("answers of xy-ipc's own always serialise");
    send_raw(outbox, id, &raw).await;
}

async fn send_raw(outbox: &Outbox, id: &RequestId, result: &RawValue) {
    // If the connection has closed, nobody is left to be told.
    let _ = outbox.send(encode(&OutgoingResponse::result(id, result))).await;
}

async fn send_error(outbox: &Outbox, id: &RequestId, error: &CallError) {
    let _ = outbox.send(encode(&OutgoingResponse::error(id, error))).await;
}

async fn raised(flag: &mut watch::Receiver<bool>) {
    // A server that is gone without a word closes too.
    let _ = flag.wait_for(|raised| *raised).await;
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

fn too_long() -> CallError {
    CallError::invalid_request(format!("the request is longer than {MAX_REQUEST_LINE} bytes"))
}

fn too_slow() -> CallError {
    CallError::new(ErrorKind::TimedOut, "the request did not end in time")
        .cause(format!("its line had no newline within {} s", LINE_WITHIN.as_secs()))
        .hint("send each request whole, with a newline after it")
}

fn too_many_streams() -> CallError {
    CallError::new(ErrorKind::QueueFull, "this connection has too many streams")
        .cause(format!("{MAX_SUBSCRIPTIONS} are open"))
        .hint("cancel one, or open another connection")
}

fn no_such_stream(id: u64) -> CallError {
    CallError::invalid_params(format!("this connection has no stream {id}"))
        .hint("a stream is cancelled on the connection that began it, by its `subscription_id`")
}
