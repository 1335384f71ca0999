//! Restores sessions of an earlier daemon: at their first use, the recorded requests of the client
//! are replayed.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use xy_mcp::envelope::{self, Message, Outcome};
use xy_mcp::handshake;

use super::{Session, Sessions, Transport};
use crate::error::HttpError;
use crate::event::{EventId, StreamId, StreamKind};
use crate::frontend::{Disposition, Responder as _, Route, StreamNo};
use crate::guard::Identity;
use crate::record::{Change, EventTag, Record, StreamedCall};
use crate::response_stream::FirstOutput;
use crate::route::Endpoint;
use crate::session_id::Claims;
use crate::session_streams::REPLAYED;

const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// The notifications for a restored client, which may have missed a change of every list.
const LIST_CHANGES: [&str; 3] = [
    r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#,
];

/// A session of an earlier daemon that was not used yet.
pub(super) struct Dormant {
    record: Record,
    since: Instant,
    /// Of several concurrent requests, one restores the session and the others wait for it.
    restored: OnceCell<Rc<Session>>,
}

impl Dormant {
    pub(super) fn new(record: Record) -> Rc<Self> {
        Rc::new(Self { record, since: Instant::now(), restored: OnceCell::new() })
    }
}

/// The streams that a session had in earlier daemons.
#[derive(Debug, Default)]
pub(super) struct EarlierStreams {
    tags: VecDeque<EventTag>,
    /// The requests that are answered on each stream.
    calls: HashMap<(EventTag, StreamNo), Vec<StreamedCall>>,
}

/// The kind of a stream of an earlier daemon.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum EarlierStream {
    /// A call stream, with the ids of the requests that have no response up to the event.
    Call(Vec<String>),
    /// A call stream that the record does not contain, or no longer contains.
    UnknownCall,
    Listener,
}

impl EarlierStreams {
    fn from_record(record: &Record) -> Self {
        let mut calls: HashMap<_, Vec<StreamedCall>> = HashMap::new();
        for call in &record.calls {
            calls.entry((call.tag, call.stream)).or_default().push(call.clone());
        }
        Self { tags: record.tags.clone(), calls }
    }

    /// Returns what the stream of an event was, if it began in an earlier daemon.
    pub(super) fn find(&self, after: EventId) -> Option<EarlierStream> {
        let EventId { stream_id: StreamId { tag, kind, stream }, position } = after;
        if !self.tags.contains(&tag) {
            return None;
        }
        let calls = self.calls.get(&(tag, stream));
        Some(match (kind, calls) {
            (None | Some(StreamKind::Call), Some(calls)) => {
                // A response after this event was lost with its daemon.
                let has_none = |it: &&StreamedCall| it.answered_at.is_none_or(|at| at > position);
                let unanswered = calls.iter().filter(has_none);
                EarlierStream::Call(unanswered.map(|it| it.request.clone()).collect())
            }
            (Some(StreamKind::Call), None) => EarlierStream::UnknownCall,
            // Earlier versions recorded all calls, and their event ids lack the kind of the stream.
            (None, None) | (Some(StreamKind::Listener), _) => EarlierStream::Listener,
        })
    }
}

impl Sessions {
    /// Restores a session of an earlier daemon.
    pub(super) async fn restore(
        &self,
        id: &str,
        identity: &Identity<'_>,
        endpoint: Endpoint<'_>,
    ) -> Result<Rc<Session>, HttpError> {
        let claims =
            self.persistence.claims(id, identity, endpoint).ok_or(HttpError::UnknownSession)?;
        let dormant = self.dormant.borrow().get(&claims.session).cloned();
        let dormant = dormant.ok_or(HttpError::UnknownSession)?;
        let replay = || self.replay(id, &claims, &dormant.record, (identity, endpoint));
        let session = dormant.restored.get_or_try_init(replay).await?;
        session.touch();
        Ok(Rc::clone(session))
    }

    /// Opens a session, and replays the recorded messages of the client.
    async fn replay(
        &self,
        id: &str,
        claims: &Claims,
        record: &Record,
        (identity, endpoint): (&Identity<'_>, Endpoint<'_>),
    ) -> Result<Rc<Session>, HttpError> {
        let pending = self.open(identity, endpoint, Transport::StreamableHttp)?;
        let session = Rc::clone(pending.session());
        let lease = Self::open_call(&session, false);
        // A server that is down cannot repeat the negotiated revision, so the request asks for it.
        let written = record.initialize.as_bytes();
        let initialize = handshake::with_revision(written, claims.revision);
        let initialize = initialize.as_deref().unwrap_or(written);
        let disposition = session.client_session().handle(initialize, lease.stream());
        let agrees = match disposition {
            Disposition::ResponsePending => match lease.response_stream().first().await {
                FirstOutput::Response(response) => {
                    is_result(&response)
                        && session.client_session().version() == Some(claims.revision)
                }
                _ => return Err(HttpError::SessionEnded),
            },
            Disposition::NoResponse | Disposition::Rejected(_) => false,
        };
        drop(lease);
        if !agrees {
            self.forget(claims.session);
            return Err(HttpError::UnknownSession);
        }
        replay_state(&session, record);
        session.recorder.restore(record);
        *session.earlier.borrow_mut() = EarlierStreams::from_record(record);
        for change in LIST_CHANGES {
            session.session_streams().put(change.as_bytes(), Route::Broadcast);
        }
        let tag = session.recorder.tag();
        self.persistence.store.save_soon(Change::Tag(claims.session, tag));
        self.dormant.borrow_mut().remove(&claims.session);
        pending.register_as(id, Some(claims.session))?;
        Ok(session)
    }

    /// Removes a session that was not restored, and its record.
    pub(super) fn forget(&self, number: u128) {
        self.dormant.borrow_mut().remove(&number);
        self.persistence.store.save_soon(Change::End(number));
    }

    /// Removes sessions of an earlier daemon, and their records, unless `is_wanted` keeps them.
    pub(super) fn forget_dormant(&self, is_wanted: impl Fn(&Record, Instant) -> bool) {
        let is_unwanted = |it: &&Rc<Dormant>| {
            // More references mean that a request is restoring the session.
            Rc::strong_count(it) == 1 && !is_wanted(&it.record, it.since)
        };
        let dormant = self.dormant.borrow();
        let unwanted: Vec<u128> =
            dormant.values().filter(is_unwanted).map(|it| it.record.session).collect();
        drop(dormant);
        for number in unwanted {
            self.forget(number);
        }
    }
}

/// Replays the state that the client set after `initialize`. The responses are dropped.
fn replay_state(session: &Session, record: &Record) {
    if record.initialized {
        session.client_session().handle(INITIALIZED, REPLAYED);
    }
    let level = record.level.iter().map(|it| ("logging/setLevel", "level", it));
    let watched = record.subscriptions.iter().map(|it| ("resources/subscribe", "uri", it));
    for (number, (method, key, value)) in level.chain(watched).enumerate() {
        let value = Value::from(value.as_str());
        let request = format!(
            r#"{{"jsonrpc":"2.0","id":"xy-restored-{number}","method":"{method}","params":{{"{key}":{value}}}}}"#
        );
        session.client_session().handle(request.as_bytes(), REPLAYED);
    }
}

/// Returns true if an answer is a result.
pub(crate) fn is_result(response: &[u8]) -> bool {
    let parsed = envelope::parse(response);
    matches!(parsed, Ok(Message::Response { outcome: Outcome::Result(_), .. }))
}
