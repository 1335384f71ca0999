//! Every bound of the HTTP door that is not a setting, with its reason.

use std::time::Duration;

/// All headers of a request together. The largest honest ones carry a long token.
pub(super) const HEAD_BYTES_MAX: usize = 64 * 1024;

/// How long the headers may take from their first byte, so that nobody holds a place by
/// sending one letter now and then.
pub(super) const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// How long a body may take: a large one over a slow line, and not for ever.
pub(super) const BODY_WITHIN: Duration = Duration::from_secs(60);

/// What may have come of all bodies that are not whole, together.
pub(super) const BODIES_MAX: usize = 256 * 1024 * 1024;

/// How long nothing at all may be read of what is written to a client.
pub(super) const WRITE_WITHIN: Duration = Duration::from_secs(60);

/// How long a connection may stay open between two requests.
pub(super) const IDLE_CONNECTION: Duration = Duration::from_secs(5 * 60);

/// Connections at one time. Each costs a descriptor, and servers need theirs too.
pub(super) const CONNECTIONS_MAX: usize = 1024;

/// Connections at one time that have shown no valid token: whoever only looks is quick, and
/// must not keep out those who have one.
pub(super) const UNAUTHENTICATED_MAX: usize = CONNECTIONS_MAX / 8;

/// Connections at one time that have; of these one token has a share (`share.rs`).
pub(super) const AUTHENTICATED_MAX: usize = CONNECTIONS_MAX - UNAUTHENTICATED_MAX;

/// How long a connection that has shown no valid token may stay open between two requests.
pub(super) const IDLE_UNAUTHENTICATED: Duration = Duration::from_secs(5);

/// Requests of clients without sessions at one time, each of which holds a connection. The rest
/// is for those who only look, and for clients with sessions. One token has a share of them.
pub(super) const VISITS_MAX: usize = AUTHENTICATED_MAX / 8 * 7;

/// What may wait on one stream for its reader, beyond a single message of any size. As much
/// again may be on its way in the connection's own buffer.
pub(super) const STREAM_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Events of one session that are held to be sent again, should their stream break.
pub(super) const STORED_EVENTS_MAX: usize = 1000;

/// How large they may be together.
pub(super) const STORED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The same of all sessions. A session that needs room when there is none makes it itself.
pub(super) const STORED_EVENTS_ALL_MAX: usize = 50_000;
pub(super) const STORED_BYTES_ALL_MAX: usize = 32 * 1024 * 1024;

/// Streams of one session that have no connection and may be taken up again.
pub(super) const APART_MAX: usize = 128;

/// How long what was never sent is held for a client to fetch, and a stream without a
/// connection is known at all. Whoever was cut off by a network comes back within seconds; a
/// machine that was asleep for long begins a new session.
pub(super) const FETCH_WITHIN: Duration = Duration::from_secs(10 * 60);

/// How long a stream is held of which everything was sent: only its last words can have been
/// lost on their way, and a client that waits for them comes back at once.
pub(super) const SENT_KNOWN_FOR: Duration = Duration::from_secs(60);

/// A call that takes longer becomes an event stream, if the client asks for that: then it can
/// be taken up again, and is kept alive by comments. What is answered sooner is plain JSON.
pub(super) const OPEN_AFTER: Duration = Duration::from_millis(50);

/// The same for a request without a session. Nobody can take that up again, and what is an
/// event has status 200 whatever it says: it is kept alive only when silence begins to matter.
pub(super) const OPEN_VISIT_AFTER: Duration = Duration::from_secs(2);

/// How long a client shall wait before it takes up a stream again.
pub(super) const RETRY_MS: u64 = 1000;

/// The same while there are too many connections.
pub(super) const RETRY_CROWDED_MS: u64 = 5000;

/// How long a client shall wait before it takes up a stream that ends with the daemon. Clients
/// try twice and give up, so the next daemon has to be there by then.
pub(super) const RETRY_CLOSING_MS: u64 = 5000;

/// With so many connections, silent streams of clients that can come back are let go.
pub(super) const CROWDED_FROM: usize = CONNECTIONS_MAX / 4 * 3;

/// Messages kept for the next stream that listens: what a client misses while it reconnects.
pub(super) const KEPT_MESSAGES_MAX: usize = 256;

/// How large the kept messages may be together.
pub(super) const KEPT_BYTES_MAX: usize = 1024 * 1024;

/// A comment is sent on a quiet stream this often, since proxies and clients give up on
/// silence.
pub(super) const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);

/// How much of a refused body is read and thrown away. A connection that is closed over
/// unread bytes is reset, and then the client never sees why it was refused.
pub(super) const DISCARD_MAX: usize = 256 * 1024 * 1024;

/// How long calls under way may take once the door closes.
pub(super) const FINISH_WITHIN: Duration = Duration::from_secs(4);

/// How long it may take after that to tell those who still wait that there will be no answer.
pub(super) const LAST_WORD_WITHIN: Duration = Duration::from_secs(1);

/// The wait after a failed accept: descriptors come back when somebody closes some.
pub(super) const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(200);
