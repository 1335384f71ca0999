//! The HTTP listener: Streamable HTTP, and on loopback the legacy HTTP+SSE transport of 2024.
//!
//! Streamable HTTP has sessions in MCP 2025-03-26 to 2025-11-25, and none in later revisions. Each
//! request shows by itself which revision and transport it uses.
//!
//! Everything runs on one thread, in one task set. A call takes this path:
//!
//! 1. A POST is read completely and passed to the client's session.
//! 2. The response is stored in the `ResponseStream` of the POST and sent as JSON in one write.
//! 3. If a message precedes the response, or the response takes a while, the reply becomes an
//!    event stream. Its events are kept, so that a client whose connection breaks can resume.
//!
//! A client without a session cannot resume: each of its requests ends with its connection.
//!
//! ```text
//!  connection ── service ──┬── request      pure: classifies the head (route, guard, headers)
//!  (timeouts)              ├── session ───┬─ client session ──► the gateway
//!                          ├── stateless ─┘
//!                          └── stream  ◄── session_streams ◄─── messages to the client
//!                                └── replay_buffer  pure: sent and resumable events
//! ```

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep_until;

use crate::frontend::Frontend;

mod body_budget;
mod change_requests;
mod conn_timers;
mod connection;
mod connections;
mod counters;
mod error;
mod event;
mod failed_tokens;
#[cfg(any(test, feature = "test-util"))]
pub mod fake;
pub mod frontend;
pub mod generation;
mod guard;
mod headers;
mod inherit;
mod limits;
mod listen;
mod persistence;
mod record;
mod recorder;
mod replay_buffer;
mod reply;
mod request;
mod request_body;
mod response_stream;
mod route;
mod service;
mod session;
mod session_id;
mod session_streams;
mod stateless;
mod storage_budget;
mod store;
mod stream;
mod token;

use conn_timers::ConnTimers;
use error::HttpError;
pub use guard::{Auth, Digest, Hosts, Secret, Token, digest};
pub use inherit::ListeningSocket;
pub use inherit::listen;
use limits::{ACCEPT_RETRY_DELAY, FINAL_RESPONSE_TIMEOUT, FINISH_TIMEOUT};
pub use listen::{ListenState, listen_with_retry};
use persistence::Persistence;
pub use persistence::SessionFile;
use service::HttpService;
pub use token::{random_token, read_or_create_token};

/// The settings of the HTTP listener.
#[derive(Debug, Clone)]
pub struct HttpRules {
    /// The clients that may connect.
    pub auth: Auth,
    /// Maximum number of sessions.
    pub sessions_max: usize,
    /// Maximum number of concurrent calls and streams per session.
    pub streams_per_session_max: usize,
    /// Maximum size of a message.
    pub body_max_bytes: usize,
    /// How long a session may have no call and no stream before it ends.
    pub idle: Duration,
    /// The host names that clients may use.
    pub hosts: Hosts,
}

/// The state of the rest of xy, as far as the listener reports it.
pub trait HttpStatus {
    /// Returns true if every server that should be up is up.
    fn is_ready(&self) -> bool;

    /// Appends all metrics, as [`xy_transport::metrics`] writes them.
    fn metrics(&self, out: &mut String);

    /// Records that a limit refused a client: the one with this token id, or one without a valid
    /// token.
    fn limit_hit(&self, limit: &'static str, token: Option<u64>);
}

/// Applies each change of the dynamic tokens.
async fn watch_tokens(service: Rc<HttpService>, mut dynamic_tokens: TokenWatch) {
    while dynamic_tokens.changed().await.is_ok() {
        service.rules(); // This applies the change.
    }
}

/// The tokens that users add and remove at run time.
pub type TokenWatch = watch::Receiver<Arc<Vec<Token>>>;

/// Serves clients until `shutdown` resolves. Then open calls get a few seconds to finish, and all
/// sessions end.
///
/// `dynamic_tokens` are valid in addition to those of the rules. `file` stores the sessions for the
/// next daemon. Must run within a [`tokio::task::LocalSet`].
pub async fn serve(
    listener: TcpListener,
    frontend: Rc<dyn Frontend>,
    (rules, dynamic_tokens): (HttpRules, TokenWatch),
    file: Option<SessionFile>,
    status: Rc<dyn HttpStatus>,
    shutdown: impl Future<Output = ()>,
) {
    let sessions = match file {
        Some(file) => Persistence::open(file).await,
        None => (Persistence::none(), Vec::new()),
    };
    let service = HttpService::new(frontend, rules, status, sessions);
    service.follow_tokens(dynamic_tokens.clone()); // Before the first client connects.
    let following = tokio::task::spawn_local(watch_tokens(Rc::clone(&service), dynamic_tokens));
    serve_with(listener, &service, shutdown).await;
    following.abort();
}

async fn serve_with(
    listener: TcpListener,
    service: &Rc<HttpService>,
    shutdown: impl Future<Output = ()>,
) {
    let mut shutdown = pin!(shutdown);
    let (close, closing) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut sweep_at = service.sessions().sweep(service.rules().idle);
    loop {
        service.counters().connections.set(connections.len());
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(ended) = connections.join_next() => log_connection_end(ended),
            () = service.stateless_requests().close_slow() => {}
            () = sleep_until(sweep_at) => sweep_at = service.sessions().sweep(service.rules().idle),
            stream = accept(&listener) => {
                let timers = Rc::new(ConnTimers::new(stream.peer_addr().ok()));
                match service.connections().add(&timers) {
                    Some((slot, has_closed_one)) => {
                        if has_closed_one {
                            service.counters().count_closed("unauthenticated-share");
                            service.limit_hit("unauthenticated HTTP connections", None);
                        }
                        let number = slot.number();
                        let (shared, closing) = (Rc::clone(service), closing.clone());
                        let run = connection::run(stream, shared, (timers, slot), closing);
                        service.connections().set_task(number, connections.spawn_local(run));
                    }
                    None => reject_overload(&stream, service),
                }
            }
        }
    }
    drop(listener); // From here on connections are refused.
    service.begin_shutdown();
    service.sessions().end_listeners();
    service.stateless_requests().end_listeners();
    close.send_replace(true);
    finish(&mut connections, FINISH_TIMEOUT).await;
    service.sessions().end_all(); // Tells clients whose calls are still open.
    service.stateless_requests().end_all();
    finish(&mut connections, FINAL_RESPONSE_TIMEOUT).await;
    connections.shutdown().await;
    service.sessions().close().await;
    service.counters().connections.set(0);
}

/// Waits for all connections to end, at most for `limit`.
async fn finish(connections: &mut JoinSet<()>, limit: Duration) {
    let all = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(limit, all).await;
}

/// Logs a connection task that panicked.
fn log_connection_end(ended: Result<(), JoinError>) {
    // A connection that was closed to make room for another is cancelled, which is no fault.
    if let Err(cause) = ended
        && !cause.is_cancelled()
    {
        tracing::error!(%cause, "the task of an HTTP connection failed");
    }
}

/// Accepts the next connection. Retries while the system refuses.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(cause) => {
                tracing::warn!(%cause, "could not accept a connection over HTTP");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

/// Answers a connection with 503 and closes it.
fn reject_overload(stream: &TcpStream, service: &HttpService) {
    let error = HttpError::TooManyConnections;
    service.limit_hit("unauthenticated HTTP connections", None);
    service.counters().count_refused(error.reason());
    let body = error.body();
    let mut answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
         retry-after: 5\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    answer.extend_from_slice(&body);
    // The buffer of a new socket has room for one response. A client that left needs none.
    let _ = stream.try_write(&answer);
}

#[cfg(test)]
mod tests;
