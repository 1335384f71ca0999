//! The daemon's side of the control socket: accepts clients, authenticates them and serves each of
//! them independently.
//!
//! A [`Service`] defines what requests mean. No client can delay another: each connection is a task
//! with its own bounded queues, and each request is a task below it. Closing a connection ends its
//! streams; requests that it has sent are still executed.

use std::future::Future;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;
use xy_protocol::control::Request;
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::jsonrpc::{OutgoingResponse, RequestId};

mod connection;
mod input;
mod outbox;

pub use outbox::{Outbox, OutboxClosed, Outgoing, channel};

/// Maximum number of connected clients. Each needs a descriptor, and servers need theirs too.
pub const MAX_CONNECTIONS: usize = 256;

/// Maximum number of concurrent requests of one connection. Beyond it the connection is not read
/// until one is answered, so a client may send any number and none is refused.
pub const MAX_OPEN_REQUESTS: usize = 64;

/// Maximum number of streams of one connection.
pub const MAX_SUBSCRIPTIONS: usize = 16;

/// Maximum time from the first byte of a line to its newline. Scripts send lines at once.
pub const LINE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long open requests may take after the daemon begins to shut down or the client hangs up.
pub const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a client may take to read the remaining output of a closing connection.
pub const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Delay after a failed accept, in which descriptors may become free.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// Executes requests.
pub trait Service: Send + Sync + 'static {
    /// Executes a request. The future is dropped a few seconds after the client has hung up.
    ///
    /// The two cancel requests are never passed: a connection ends its own streams.
    fn call(&self, request: Request) -> impl Future<Output = Result<Answer, CallError>> + Send;
}

/// The answer to a request.
pub enum Answer {
    /// A result.
    Result(Box<RawValue>),
    /// A result with a file descriptor.
    WithDescriptor(Box<RawValue>, OwnedFd),
    /// A stream of notifications.
    Stream(Box<dyn Feed>),
}

impl Answer {
    /// Serialises a result.
    pub fn of(result: &impl Serialize) -> Result<Self, CallError> {
        serde_json::value::to_raw_value(result).map(Self::Result).map_err(|cause| {
            CallError::new(ErrorKind::Internal, "the answer could not be written").cause(cause)
        })
    }
}

/// A stream of notifications that follows an answer.
pub trait Feed: Send {
    /// Returns the subscription ID; the answer is `{"subscription_id": id}`.
    fn id(&self) -> u64;

    /// Returns the method of the end notification: `log_end` or `event_end`.
    fn end_method(&self) -> &'static str;

    /// Sends notifications until there are no more. The future is dropped when the stream is
    /// cancelled. The end notification is sent in either case, but not by the feed.
    fn run(self: Box<Self>, outbox: Outbox) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// Serves until `shutdown` resolves. Then lets open requests finish, ends all streams, flushes and
/// closes, all within a few seconds.
pub async fn serve<S: Service>(
    listener: UnixListener,
    service: Arc<S>,
    shutdown: impl Future<Output = ()> + Send,
) {
    let acceptor = Acceptor { own_uid: rustix::process::geteuid().as_raw(), service };
    acceptor.serve(listener, shutdown).await;
}

/// Serves clients on a socket that may be lost; `replacements` supplies new listeners.
pub async fn serve_replaceable<S: Service>(
    listener: UnixListener,
    replacements: mpsc::Receiver<UnixListener>,
    service: Arc<S>,
    shutdown: impl Future<Output = ()> + Send,
) {
    let acceptor = Acceptor { own_uid: rustix::process::geteuid().as_raw(), service };
    acceptor
        .serve(ReplaceableListener { state: Mutex::new((listener, replacements)) }, shutdown)
        .await;
}

/// A source of connections. A seam for tests, which cannot run out of descriptors.
trait Accept: Send {
    fn next(&self) -> impl Future<Output = io::Result<UnixStream>> + Send;
}

impl Accept for UnixListener {
    async fn next(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

/// A listener, and the channel that supplies its replacement. Only one task ever waits for it.
struct ReplaceableListener {
    state: Mutex<(UnixListener, mpsc::Receiver<UnixListener>)>,
}

impl Accept for ReplaceableListener {
    async fn next(&self) -> io::Result<UnixStream> {
        let mut state = self.state.lock().await;
        let (listener, replacements) = &mut *state;
        loop {
            tokio::select! {
                biased; // Connections at the old socket are accepted first.
                accepted = listener.accept() => return accepted.map(|(stream, _)| stream),
                Some(replacement) = replacements.recv() => *listener = replacement,
            }
        }
    }
}

struct Acceptor<S> {
    own_uid: u32,
    service: Arc<S>,
}

impl<S: Service> Acceptor<S> {
    async fn serve(&self, listener: impl Accept, shutdown: impl Future<Output = ()> + Send) {
        let mut shutdown = pin!(shutdown);
        let (closing, closing_receiver) = watch::channel(false);
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(_) = connections.join_next() => {}
                stream = accept(&listener) => match self.admit(&stream, connections.len()) {
                    Ok(()) => {
                        let service = Arc::clone(&self.service);
                        connections.spawn(connection::run(stream, service, closing_receiver.clone()));
                    }
                    Err(error) => reject(stream, &error),
                },
            }
        }
        drop(listener); // New clients must not find a daemon here.
        closing.send_replace(true);
        while connections.join_next().await.is_some() {} // Each connection has its own time limits.
    }

    fn admit(&self, stream: &UnixStream, open: usize) -> Result<(), CallError> {
        let not_allowed = CallError::new(ErrorKind::NotAllowed, "this daemon serves another user");
        let peer = stream.peer_cred().map_err(|cause| not_allowed.clone().cause(cause))?.uid();
        if peer != self.own_uid {
            let cause = format!("it runs as user {}, and you are user {peer}", self.own_uid);
            return Err(not_allowed.cause(cause).hint("run `xy` as the user who runs the daemon"));
        }
        if open >= MAX_CONNECTIONS {
            let error = CallError::new(ErrorKind::QueueFull, "the daemon has too many connections");
            return Err(error
                .cause(format!("{MAX_CONNECTIONS} clients are connected"))
                .hint("end some of them: `xy logs --follow`, `xy events`"));
        }
        Ok(())
    }
}

/// Returns the next connection. After a failure, waits and tries again.
async fn accept(listener: &impl Accept) -> UnixStream {
    loop {
        match listener.next().await {
            Ok(stream) => return stream,
            Err(cause) => {
                tracing::warn!(%cause, "could not accept a connection on the control socket");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

/// Sends one line with the reason and closes the connection.
fn reject(stream: UnixStream, error: &CallError) {
    tracing::warn!(%error, "rejected a connection");
    let line = encode(&OutgoingResponse::error(&RequestId::Null, error));
    // A new socket has room for one line, and the client may have left.
    let _ = stream.into_std().and_then(|mut stream| stream.write(&line));
}

/// Encodes a message as one line.
fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("wire types always serialise");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests;
