//! The HTTP door: Streamable HTTP, with sessions as MCP had it from 2025-03-26 to 2025-11-25
//! and without them as it has it since, and the pair of 2024 that came before both, on loopback.
//! Each request says by itself which of these it is of.
//!
//! Everything is on one thread and belongs to one task set. The way of a call: a POST is read
//! whole and given to the client's conversation; the answer is put into the mailbox of that
//! POST, and goes out as JSON in one write. Only if something is to be said before the answer,
//! or it takes a while, does it become an event stream: its events are held on a tape, so that
//! a client that loses the connection can go on where it was. A client without a session cannot:
//! each of its requests is a visit, which ends with its connection.
//!
//! ```text
//!  connection ── door ──┬── ask      pure: what does this head ask for (route, guard, heads)
//!  (time limits)        ├── session ┬─ conversation ──► the gateway
//!                       ├── visit ──┘
//!                       └── stream  ◄── postbox ◄─────── what clients shall hear
//!                             └── tape  pure: what was sent, what can be sent again (room)
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

mod change_requests;
mod connection;
mod connections;
mod counts;
mod event;
mod failed_tokens;
mod guard;
mod headers;
mod inherit;
mod limits;
mod listen;
mod persistence;
mod received;
mod record;
mod recorder;
mod refused;
mod replay_buffer;
mod reply;
mod request;
mod response_stream;
mod room;
mod route;
mod service;
mod session;
mod session_id;
mod session_streams;
mod stateless;
mod store;
mod stream;
mod token;

use connection::ConnTimers;
pub(crate) use guard::ANYBODY;
pub use guard::{Auth, Digest, Hosts, Secret, Token, digest};
pub use inherit::ListeningSocket;
pub(crate) use inherit::listen;
use limits::{ACCEPT_AGAIN_AFTER, FINISH_WITHIN, LAST_WORD_WITHIN};
pub use listen::{ListenState, listen_patiently};
use persistence::Persistence;
pub use persistence::SessionFile;
use refused::Refused;
use service::HttpService;
pub use token::{random_token, read_or_make_token};

/// What the door keeps to.
#[derive(Debug, Clone)]
pub struct HttpRules {
    /// Who may come in.
    pub auth: Auth,
    /// Sessions at one time.
    pub sessions_max: usize,
    /// Calls and streams of one session at one time.
    pub streams_per_session_max: usize,
    /// How large a message may be.
    pub body_max_bytes: usize,
    /// How long a session may be idle: no call, no stream.
    pub idle: Duration,
    /// By what clients may call it.
    pub hosts: Hosts,
}

/// What is told about the rest of xy at this door.
pub trait HttpStatus {
    /// Whether all that should be up is up.
    fn is_ready(&self) -> bool;

    /// Appends all numbers, as [`crate::metrics`] writes them.
    fn metrics(&self, out: &mut String);

    /// A limit kept somebody out: the token of this id, or a client that has shown none.
    fn limit_hit(&self, limit: &'static str, token: Option<u64>);
}

/// Lets in whoever has one of the tokens that are there at the time.
async fn follow_tokens(door: Rc<HttpService>, mut made: TokenWatch) {
    while made.changed().await.is_ok() {
        door.rules(); // It looks itself.
    }
}

/// Tokens that come and go.
pub type TokenWatch = watch::Receiver<Arc<Vec<Token>>>;

/// Serves until `shutdown` resolves; then lets calls under way finish within a few seconds,
/// and ends all sessions. `made` are tokens beside those of the rules, `file` is where sessions
/// are kept for the next daemon. Must run within a [`tokio::task::LocalSet`].
pub async fn serve(
    listener: TcpListener,
    front: Rc<dyn Frontend>,
    (rules, made): (HttpRules, TokenWatch),
    file: Option<SessionFile>,
    status: Rc<dyn HttpStatus>,
    shutdown: impl Future<Output = ()>,
) {
    let sessions = match file {
        Some(file) => Persistence::open(file).await,
        None => (Persistence::none(), Vec::new()),
    };
    let door = HttpService::new(front, rules, status, sessions);
    door.follow(made.clone()); // Before the first client comes.
    let following = tokio::task::spawn_local(follow_tokens(Rc::clone(&door), made));
    serve_door(listener, &door, shutdown).await;
    following.abort();
}

async fn serve_door(
    listener: TcpListener,
    door: &Rc<HttpService>,
    shutdown: impl Future<Output = ()>,
) {
    let mut shutdown = pin!(shutdown);
    let (closing, closes) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut sweep_at = door.sessions().sweep(door.rules().idle);
    loop {
        door.counts().connections.set(connections.len());
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(ended) = connections.join_next() => note_end(ended),
            () = door.visits().leave_slow() => {}
            () = sleep_until(sweep_at) => sweep_at = door.sessions().sweep(door.rules().idle),
            stream = accept(&listener) => {
                let pulse = Rc::new(ConnTimers::new(stream.peer_addr().ok()));
                match door.connections().enter(&pulse) {
                    Some((place, has_ended_one)) => {
                        if has_ended_one {
                            door.counts().cut("unauthenticated-share");
                            door.limit_hit("unauthenticated HTTP connections", None);
                        }
                        let number = place.number();
                        let (door_of_it, closes) = (Rc::clone(door), closes.clone());
                        let run = connection::run(stream, door_of_it, (pulse, place), closes);
                        door.connections().runs(number, connections.spawn_local(run));
                    }
                    None => reject_overload(&stream, door),
                }
            }
        }
    }
    drop(listener); // Nobody new may think that somebody is here.
    door.closes();
    door.sessions().end_listeners();
    door.visits().end_listeners();
    closing.send_replace(true);
    finish(&mut connections, FINISH_WITHIN).await;
    door.sessions().end_all(); // Who still waits is told so.
    door.visits().end_all();
    finish(&mut connections, LAST_WORD_WITHIN).await;
    connections.shutdown().await;
    door.sessions().close().await;
    door.counts().connections.set(0);
}

/// Waits for all connections to end, but not for ever.
async fn finish(connections: &mut JoinSet<()>, limit: Duration) {
    let all = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(limit, all).await;
}

/// A connection ends without a word, unless something of ours is broken.
fn note_end(ended: Result<(), JoinError>) {
    // One that was ended to make room is no fault.
    if let Err(cause) = ended
        && !cause.is_cancelled()
    {
        tracing::error!(%cause, "a connection over HTTP ended in a fault of xy");
    }
}

/// The next connection; while there can be none, waits and tries again.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(cause) => {
                tracing::warn!(%cause, "could not accept a connection over HTTP");
                tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
            }
        }
    }
}

/// One answer that says why, and good-bye.
fn reject_overload(stream: &TcpStream, door: &HttpService) {
    let refused = Refused::TooManyConnections;
    door.limit_hit("unauthenticated HTTP connections", None);
    door.counts().refused(refused.reason());
    let body = refused.body();
    let mut answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
         retry-after: 5\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    answer.extend_from_slice(&body);
    // A fresh socket has room for one answer, and who does not want it may leave.
    let _ = stream.try_write(&answer);
}

#[cfg(test)]
mod tests;
