//! The limits of the HTTP listener that are not settings, with their reasons.

use std::time::Duration;

/// Maximum size of all headers of a request. The largest legitimate ones contain a long token.
pub(super) const HEAD_BYTES_MAX: usize = 64 * 1024;

/// How long the headers may take from their first byte, so that a slow sender cannot occupy a
/// connection.
pub(super) const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a body may take. A large body may arrive over a slow connection.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum number of bytes in all bodies that are not complete or not parsed yet. Each token has a
/// share.
pub(super) const BODIES_BYTES_MAX: usize = 256 * 1024 * 1024;

/// How long a client may accept no bytes before its connection closes.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a connection may stay open between two requests.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Maximum number of connections. Each needs a file descriptor, and servers need some too.
pub(super) const CONNECTIONS_MAX: usize = 1024;

/// Maximum number of connections without a valid token. They must not lock out clients with one.
pub(super) const UNAUTHENTICATED_MAX: usize = CONNECTIONS_MAX / 8;

/// Maximum number of connections with a valid token. Each token has a share (`share.rs`).
pub(super) const AUTHENTICATED_MAX: usize = CONNECTIONS_MAX - UNAUTHENTICATED_MAX;

/// How long an unauthenticated connection may stay open between two requests.
pub(super) const UNAUTHENTICATED_IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of open requests without a session, each of which occupies a connection. The
/// other connections are for health checks and for clients with sessions. Each token has a share.
pub(super) const STATELESS_REQUESTS_MAX: usize = AUTHENTICATED_MAX / 8 * 7;

/// Maximum number of unsent bytes of a stream, beyond a single message of any size. The buffers of
/// the connection may hold as many again.
pub(super) const STREAM_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Maximum number of events that are kept per session, to send them again if a connection breaks.
pub(super) const STORED_EVENTS_MAX: usize = 1000;

/// Maximum size of these events.
pub(super) const STORED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Maximum number and size of such events in all sessions. A session at this limit drops its own.
pub(super) const STORED_EVENTS_ALL_MAX: usize = 50_000;
pub(super) const STORED_BYTES_ALL_MAX: usize = 32 * 1024 * 1024;

/// Maximum number of disconnected streams per session that can be resumed.
pub(super) const DISCONNECTED_STREAMS_MAX: usize = 128;

/// How long a disconnected stream and its unsent events are kept. A client with a network problem
/// reconnects within seconds; a machine that was suspended for long opens a new session.
pub(super) const FETCH_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// How long a stream is kept after all its events were sent. Only the last events can be lost in
/// transit, and a client that waits for them reconnects immediately.
pub(super) const SENT_FETCH_TIMEOUT: Duration = Duration::from_secs(60);

/// A call that takes longer gets an event stream, if the client accepts that. The stream can be
/// resumed, and comments keep it alive. Faster responses are plain JSON.
pub(super) const STREAM_DELAY: Duration = Duration::from_millis(50);

/// As [`STREAM_DELAY`], for requests without a session. They cannot be resumed, and an event stream
/// always has status 200. So they become streams only when silence would cause timeouts.
pub(super) const STATELESS_STREAM_DELAY: Duration = Duration::from_secs(2);

/// How long a client waits before it reconnects.
pub(super) const RETRY_MS: u64 = 1000;

/// How long a client waits before it reconnects while there are too many connections.
pub(super) const CROWDED_RETRY_MS: u64 = 5000;

/// How long a client waits before it reconnects to a stream that ended with the daemon. Clients try
/// twice and then give up, so the next daemon must be running by then.
pub(super) const SHUTDOWN_RETRY_MS: u64 = 5000;

/// From this number of connections on, idle streams of clients that can resume are closed.
pub(super) const CROWDED_THRESHOLD: usize = CONNECTIONS_MAX / 4 * 3;

/// Maximum number of messages kept for the next listening stream, while a client reconnects.
pub(super) const UNDELIVERED_MESSAGES_MAX: usize = 256;

/// Maximum size of these messages.
pub(super) const UNDELIVERED_BYTES_MAX: usize = 1024 * 1024;

/// The interval of comments on an idle stream. Proxies and clients time out on silence.
pub(super) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Maximum number of bytes that are read of a refused body. Closing a connection with unread bytes
/// would reset it, and the client would lose the response.
pub(super) const DISCARD_BYTES_MAX: usize = 256 * 1024 * 1024;

/// How long open calls may take to finish when the listener closes.
pub(super) const FINISH_TIMEOUT: Duration = Duration::from_secs(4);

/// How long the listener may take afterwards to tell clients that no response follows.
pub(super) const FINAL_RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The delay after a failed accept, until file descriptors become available.
pub(super) const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);
