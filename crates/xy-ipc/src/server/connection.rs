//! One connection: reads requests, runs each in a task and sends the answers.
//!
//! The loop only waits for the next event. Work that waits for room in the outbox runs in a task of
//! its own and counts as an open request. So a client that sends without reading is soon not read
//! any more.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use xy_protocol::control::{Cancel, CancelResult, Request, StreamEnd, SubscribeResult};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::jsonrpc::{Incoming, OutgoingResponse, RequestId};

use super::input::Input;
use super::{
    Answer, FINISH_TIMEOUT, FLUSH_TIMEOUT, Feed, LINE_TIMEOUT, MAX_OPEN_REQUESTS,
    MAX_SUBSCRIPTIONS, Outbox, Service, channel, encode,
};
use xy_protocol::framing::{Line, MAX_REQUEST_LINE};

/// While a connection is not read, a hang-up is only noticed by polling.
const HANG_UP_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Serves one client until it hangs up or `closing` becomes true.
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
        end = connection.run_loop(Input::new(read), closing) => end,
        () = &mut writing => EndCause::HungUp,
    };
    match end {
        EndCause::Finished => {
            drop(connection);
            // A client that does not read its last lines in time loses them.
            let _ = timeout(FLUSH_TIMEOUT, writing).await;
        }
        EndCause::HungUp => {
            drop(writing); // No task waits for room any more.
            connection.finish_requests().await;
        }
    }
}

/// Why a connection ends.
enum EndCause {
    /// The client has hung up; remaining output is discarded.
    HungUp,
    /// Remaining output is flushed.
    Finished,
}

/// A request that starts a stream.
struct PendingStream {
    id: RequestId,
    feed: Box<dyn Feed>,
}

struct Connection<S> {
    service: Arc<S>,
    outbox: Outbox,
    /// Open requests. Each sends its own answer, unless it starts a stream.
    requests: JoinSet<Option<PendingStream>>,
    /// Open streams. Each sends the answer, the notifications and the end, and returns its ID.
    streams: JoinSet<u64>,
    /// Dropping a sender ends its stream.
    cancels: HashMap<u64, oneshot::Sender<()>>,
}

impl<S: Service> Connection<S> {
    fn new(service: Arc<S>, outbox: Outbox) -> Self {
        let (requests, streams) = (JoinSet::new(), JoinSet::new());
        Self { service, outbox, requests, streams, cancels: HashMap::new() }
    }

    async fn run_loop(&mut self, mut input: Input, mut closing: watch::Receiver<bool>) -> EndCause {
        loop {
            let has_room = self.start_requests(&mut input);
            let reading = has_room && !input.has_ended();
            if input.has_ended() && self.requests.is_empty() && self.streams.is_empty() {
                return EndCause::Finished;
            }
            let line_deadline = input.line_deadline(reading);
            tokio::select! {
                biased;
                () = wait_until_true(&mut closing) => break,
                Some(result) = self.requests.join_next() => self.on_request_done(result),
                Some(result) = self.streams.join_next() => self.on_stream_done(result),
                () = sleep_until_some(line_deadline), if reading => {
                    self.spawn_error(RequestId::Null, line_timeout_error());
                    break;
                }
                filled = input.fill(), if reading => {
                    if filled.is_err() || (input.has_ended() && input.is_hung_up()) {
                        return EndCause::HungUp;
                    }
                }
                () = sleep(HANG_UP_POLL_INTERVAL), if !reading => {
                    if input.is_hung_up() {
                        return EndCause::HungUp;
                    }
                }
            }
        }
        self.drain().await
    }

    /// Starts the requests of all received lines, as long as there is room. Returns true if there
    /// still is.
    fn start_requests(&mut self, input: &mut Input) -> bool {
        while self.requests.len() < MAX_OPEN_REQUESTS {
            match input.next_line() {
                None => return true,
                Some(Line::TooLong(_)) => self.spawn_error(RequestId::Null, line_too_long_error()),
                Some(Line::Whole(line)) => match Incoming::parse(line) {
                    Ok(incoming) => self.start_request(incoming),
                    Err(rejected) => self.spawn_error(rejected.id, rejected.error),
                },
            }
        }
        false
    }

    fn start_request(&mut self, incoming: Incoming) {
        let Incoming { id, method, params } = incoming;
        match Request::parse(&method, params.as_deref()) {
            Ok(Request::LogsCancel(params) | Request::EventsCancel(params)) => {
                self.cancel(id, params);
            }
            Ok(request) => {
                let (service, outbox) = (Arc::clone(&self.service), self.outbox.clone());
                self.requests.spawn(execute(service, outbox, id, request));
            }
            Err(error) => {
                if let Some(id) = id {
                    self.spawn_error(id, error);
                }
            }
        }
    }

    fn spawn_error(&mut self, id: RequestId, error: CallError) {
        let outbox = self.outbox.clone();
        self.requests.spawn(async move {
            send_error(&outbox, &id, &error).await;
            None
        });
    }

    /// Ends a stream of this connection, after the answer to the cancel request.
    fn cancel(&mut self, id: Option<RequestId>, Cancel { subscription_id }: Cancel) {
        let Some(cancel) = self.cancels.remove(&subscription_id) else {
            if let Some(id) = id {
                self.spawn_error(id, unknown_stream_error(subscription_id));
            }
            return;
        };
        let outbox = self.outbox.clone();
        self.requests.spawn(async move {
            if let Some(id) = id {
                send_result(&outbox, &id, &CancelResult { subscription_id }).await;
            }
            drop(cancel);
            None
        });
    }

    fn on_request_done(&mut self, result: Result<Option<PendingStream>, JoinError>) {
        match result {
            Ok(None) => {}
            Ok(Some(pending)) if self.streams.len() >= MAX_SUBSCRIPTIONS => {
                self.spawn_error(pending.id, too_many_streams_error());
            }
            Ok(Some(pending)) => {
                let (cancel, cancelled) = oneshot::channel();
                self.cancels.insert(pending.feed.id(), cancel);
                self.streams.spawn(run_stream(pending, cancelled, self.outbox.clone()));
            }
            Err(error) => tracing::error!(%error, "a request task failed"),
        }
    }

    fn on_stream_done(&mut self, result: Result<u64, JoinError>) {
        match result {
            Ok(id) => drop(self.cancels.remove(&id)),
            Err(error) => tracing::error!(%error, "a stream task failed"),
        }
    }

    /// Finishes the requests sent before the hang-up, within a time limit. A `stop` that was sent
    /// must be executed, even if its client is gone.
    async fn finish_requests(&mut self) {
        self.streams.abort_all();
        let finish = async { while self.requests.join_next().await.is_some() {} };
        // Work that takes longer has been passed on to the servers by then.
        let _ = timeout(FINISH_TIMEOUT, finish).await;
    }

    /// Lets requests finish and streams end, within a time limit.
    async fn drain(&mut self) -> EndCause {
        let finish = async {
            loop {
                self.cancels.clear();
                tokio::select! {
                    Some(result) = self.requests.join_next() => self.on_request_done(result),
                    Some(result) = self.streams.join_next() => self.on_stream_done(result),
                    else => break,
                }
            }
        };
        if timeout(FINISH_TIMEOUT, finish).await.is_err() {
            tracing::warn!("the requests of a client did not finish in time");
        }
        EndCause::Finished
    }
}

/// Executes one request. Sends the answer, unless the request starts a stream.
async fn execute<S: Service>(
    service: Arc<S>,
    outbox: Outbox,
    id: Option<RequestId>,
    request: Request,
) -> Option<PendingStream> {
    let result = service.call(request).await;
    let id = id?; // A notification gets no answer.
    match result {
        Ok(Answer::Stream(feed)) => return Some(PendingStream { id, feed }),
        Ok(Answer::Result(result)) => send_raw(&outbox, &id, &result).await,
        Ok(Answer::WithDescriptor(result, descriptor)) => {
            // If the connection has closed, the answer is not needed any more.
            let _ = outbox.send_descriptor(descriptor).await;
            send_raw(&outbox, &id, &result).await;
        }
        Err(error) => send_error(&outbox, &id, &error).await,
    }
    None
}

/// Sends the answer, the notifications and the end, in this order, however the stream ends.
async fn run_stream(
    pending: PendingStream,
    cancelled: oneshot::Receiver<()>,
    outbox: Outbox,
) -> u64 {
    let PendingStream { id, feed } = pending;
    let (subscription_id, end_method) = (feed.id(), feed.end_method());
    send_result(&outbox, &id, &SubscribeResult { subscription_id }).await;
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
    // If the connection has closed, the answer is not needed any more.
    let _ = outbox.send(encode(&OutgoingResponse::result(id, result))).await;
}

async fn send_error(outbox: &Outbox, id: &RequestId, error: &CallError) {
    let _ = outbox.send(encode(&OutgoingResponse::error(id, error))).await;
}

async fn wait_until_true(flag: &mut watch::Receiver<bool>) {
    // A dropped sender also means closing.
    let _ = flag.wait_for(|value| *value).await;
}

async fn sleep_until_some(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn line_too_long_error() -> CallError {
    CallError::invalid_request(format!("the request is longer than {MAX_REQUEST_LINE} bytes"))
}

fn line_timeout_error() -> CallError {
    CallError::new(ErrorKind::TimedOut, "the request did not end in time")
        .cause(format!("its line had no newline within {} s", LINE_TIMEOUT.as_secs()))
        .hint("send each request whole, with a newline after it")
}

fn too_many_streams_error() -> CallError {
    CallError::new(ErrorKind::QueueFull, "this connection has too many streams")
        .cause(format!("{MAX_SUBSCRIPTIONS} are open"))
        .hint("cancel one, or open another connection")
}

fn unknown_stream_error(id: u64) -> CallError {
    CallError::invalid_params(format!("this connection has no stream {id}"))
        .hint("a stream is cancelled on the connection that began it, by its `subscription_id`")
}
