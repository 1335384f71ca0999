//! The daemon's end of the control socket: accepts, checks who it is, serves each alone.
//!
//! Says nothing about what requests mean; a [`Service`] does. No client can delay
//! another: each connection is a task with its own queues, all of them bounded, and
//! each request a task below it. Closing a connection ends its streams; what it had asked
//! for is still done.

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

/// Front ends at one time. Each costs a descriptor, and servers need theirs too.
pub const MAX_CONNECTIONS: usize = 256;

/// Requests of one connection under way; it is not read further until one is answered,
/// so a client may send as many as it likes and none is refused.
pub const MAX_OPEN_REQUESTS: usize = 64;

/// Streams of one connection: more than any screen shows.
pub const MAX_SUBSCRIPTIONS: usize = 16;

/// How long a line may take from its first byte to its newline; scripts type fast.
pub const LINE_WITHIN: Duration = Duration::from_secs(30);

/// How long requests under way may take once the daemon or the asker goes.
pub const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// How long a client may take to read what is left for it when its connection closes.
pub const FLUSH_WITHIN: Duration = Duration::from_secs(1);

/// The wait after a failed accept: descriptors come back when somebody closes some.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Answers requests.
pub trait Service: Send + Sync + 'static {
    /// Does what `request` asks. Dropped a few seconds after the asker has hung up.
    ///
    /// The two cancel requests never get here: a connection ends its own streams.
    fn call(&self, request: Request) -> impl Future<Output = Result<Answer, CallError>> + Send;
}

/// What a request led to.
pub enum Answer {
    /// All there is.
    Result(Box<RawValue>),
    /// All there is, and a descriptor that comes with it.
    WithDescriptor(Box<RawValue>, OwnedFd),
    /// Notifications follow.
    Stream(Box<dyn Feed>),
}

impl Answer {
    /// The answer `result`.
    pub fn of(result: &impl Serialize) -> Result<Self, CallError> {
        serde_json::value::to_raw_value(result).map(Self::Result).map_err(|cause| {
            CallError::new(ErrorKind::Internal, "the answer could not be written").cause(cause)
        })
    }
}

/// A stream of notifications that follows an answer.
pub trait Feed: Send {
    /// Its subscription; the answer is `{"subscription_id": id}`.
    fn id(&self) -> u64;

    /// The notification that ends it: `log_end`, `event_end`.
    fn end_method(&self) -> &'static str;

    /// Sends what there is until there is no more. Dropped when it is cancelled;
    /// the end notification is sent in either case, and not by the feed.
    fn run(self: Box<Self>, outbox: Outbox) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// Serves until `shutdown` resolves, then lets requests under way finish,
/// ends all streams, flushes, and closes; all of it within a few seconds.
pub async fn serve<S: Service>(
    listener: UnixListener,
    service: Arc<S>,
    shutdown: impl Future<Output = ()> + Send,
) {
    let door = Door { own_uid: rustix::process::geteuid().as_raw(), service };
    door.serve(listener, shutdown).await;
}

/// The same at a socket that may be lost: `again` brings the one that takes its place.
pub async fn serve_renewed<S: Service>(
    listener: UnixListener,
    again: mpsc::Receiver<UnixListener>,
    service: Arc<S>,
    shutdown: impl Future<Output = ()> + Send,
) {
    let door = Door { own_uid: rustix::process::geteuid().as_raw(), service };
    door.serve(Renewed { places: Mutex::new((listener, again)) }, shutdown).await;
}

/// Where connections come from; a seam for tests, which cannot run out of descriptors.
trait Accept: Send {
    fn next(&self) -> impl Future<Output = io::Result<UnixStream>> + Send;
}

impl Accept for UnixListener {
    async fn next(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

/// A listener, and where the next comes from. Only one ever waits for it.
struct Renewed {
    places: Mutex<(UnixListener, mpsc::Receiver<UnixListener>)>,
}

impl Accept for Renewed {
    async fn next(&self) -> io::Result<UnixStream> {
        let mut places = self.places.lock().await;
        let (listener, again) = &mut *places;
        loop {
            tokio::select! {
                biased; // Who has come in time is let in first.
                accepted = listener.accept() => return accepted.map(|(stream, _)| stream),
                Some(another) = again.recv() => *listener = another,
            }
        }
    }
}

struct Door<S> {
    own_uid: u32,
    service: Arc<S>,
}

impl<S: Service> Door<S> {
    async fn serve(&self, listener: impl Accept, shutdown: impl Future<Output = ()> + Send) {
        let mut shutdown = pin!(shutdown);
        let (closing, closes) = watch::channel(false);
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(_) = connections.join_next() => {}
                stream = accept(&listener) => match self.admit(&stream, connections.len()) {
                    Ok(()) => {
                        let service = Arc::clone(&self.service);
                        connections.spawn(connection::run(stream, service, closes.clone()));
                    }
                    Err(error) => turn_away(stream, &error),
                },
            }
        }
        drop(listener); // Nobody new may think that a daemon is here.
        closing.send_replace(true);
        while connections.join_next().await.is_some() {} // Each has its own limits.
    }

    fn admit(&self, stream: &UnixStream, open: usize) -> Result<(), CallError> {
        let refused = CallError::new(ErrorKind::NotAllowed, "this daemon serves another user");
        let peer = stream.peer_cred().map_err(|cause| refused.clone().cause(cause))?.uid();
        if peer != self.own_uid {
            let cause = format!("it runs as user {}, and you are user {peer}", self.own_uid);
            return Err(refused.cause(cause).hint("run `xy` as the user who runs the daemon"));
        }
        if open >= MAX_CONNECTIONS {
            let error = CallError::new(ErrorKind::QueueFull, "the daemon has no room for you");
            return Err(error
                .cause(format!("{MAX_CONNECTIONS} front ends are connected"))
                .hint("end some of them: `xy logs --follow`, `xy events`"));
        }
        Ok(())
    }
}

/// The next connection; while there can be none, waits and tries again.
async fn accept(listener: &impl Accept) -> UnixStream {
    loop {
        match listener.next().await {
            Ok(stream) => return stream,
            Err(cause) => {
                tracing::warn!(%cause, "could not accept a connection on the control socket");
                tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
            }
        }
    }
}

/// One line that says why, and good-bye.
fn turn_away(stream: UnixStream, error: &CallError) {
    tracing::warn!(%error, "turned a connection away");
    let line = encode(&OutgoingResponse::error(&RequestId::Null, error));
    // A fresh socket has room for one line, and who does not want it may leave.
    let _ = stream.into_std().and_then(|mut stream| stream.write(&line));
}

/// A message as it goes over the wire.
fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("wire types always serialise");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests;
