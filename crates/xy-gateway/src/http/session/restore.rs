//! Sessions of an earlier daemon: at their first use, what their clients said is replayed.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use xy_mcp::envelope::{self, Message, Outcome};
use xy_mcp::handshake;

use super::{Session, Sessions, Transport};
use crate::frontend::{Accepted, Responder as _, Route, StreamNo};
use crate::http::event::{EventId, StreamId, StreamKind};
use crate::http::guard::Identity;
use crate::http::record::{Change, EventTag, Record, StreamedCall};
use crate::http::refused::Refused;
use crate::http::response_stream::First;
use crate::http::route::Endpoint;
use crate::http::session_id::Claims;
use crate::http::session_streams::REPLAYED;

const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// What a restored client is told: it may have missed changes of every list.
const LIST_CHANGES: [&str; 3] = [
    r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#,
];

/// A session of an earlier daemon that was not used yet.
pub(super) struct Dormant {
    record: Record,
    since: Instant,
    /// Several requests may come at once: one restores, the others wait for it.
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
    /// Requests that were to be answered there.
    calls: HashMap<(EventTag, StreamNo), Vec<StreamedCall>>,
}

/// A stream of an earlier daemon.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) enum Earlier {
    /// The requests that have no answer up to this event, as the client wrote their ids.
    Call(Vec<String>),
    /// The stream of a call that the record does not hold, or does not hold any more.
    UnknownCall,
    Listener,
}

impl EarlierStreams {
    fn of(record: &Record) -> Self {
        let mut calls: HashMap<_, Vec<StreamedCall>> = HashMap::new();
        for call in &record.calls {
            calls.entry((call.tag, call.stream)).or_default().push(call.clone());
        }
        Self { tags: record.tags.clone(), calls }
    }

    /// Returns what the stream of an event was, if an earlier daemon had it.
    pub(super) fn find(&self, after: EventId) -> Option<Earlier> {
        let EventId { of: StreamId { tag, kind, stream }, place } = after;
        if !self.tags.contains(&tag) {
            return None;
        }
        let calls = self.calls.get(&(tag, stream));
        Some(match (kind, calls) {
            (None | Some(StreamKind::Call), Some(calls)) => {
                // An answer after this event was lost with its daemon.
                let has_none = |it: &&StreamedCall| it.answered_at.is_none_or(|at| at > place);
                let unanswered = calls.iter().filter(has_none);
                Earlier::Call(unanswered.map(|it| it.request.clone()).collect())
            }
            (Some(StreamKind::Call), None) => Earlier::UnknownCall,
            // Earlier versions recorded all calls, and their ids do not say what they are.
            (None, None) | (Some(StreamKind::Listener), _) => Earlier::Listener,
        })
    }
}

impl Sessions {
    /// Goes on with a session of an earlier daemon.
    pub(super) async fn restore(
        &self,
        id: &str,
        identity: &Identity<'_>,
        place: Endpoint<'_>,
    ) -> Result<Rc<Session>, Refused> {
        let claims = self.persistence.claims(id, identity, place).ok_or(Refused::UnknownSession)?;
        let dormant = self.dormant.borrow().get(&claims.session).cloned();
        let dormant = dormant.ok_or(Refused::UnknownSession)?;
        let replay = || self.replay(id, &claims, &dormant.record, (identity, place));
        let session = dormant.restored.get_or_try_init(replay).await?;
        session.touch();
        Ok(Rc::clone(session))
    }

    /// Says to a fresh conversation what the client said to the one before.
    async fn replay(
        &self,
        id: &str,
        claims: &Claims,
        record: &Record,
        (identity, place): (&Identity<'_>, Endpoint<'_>),
    ) -> Result<Rc<Session>, Refused> {
        let opening = self.open(identity, place, Transport::StreamableHttp)?;
        let session = Rc::clone(opening.session());
        let lease = Self::open_call(&session, false);
        // A server that is down cannot say again which revision it agreed on.
        let written = record.initialize.as_bytes();
        let initialize = handshake::ask_for_revision(written, claims.revision);
        let initialize = initialize.as_deref().unwrap_or(written);
        let heard = session.client_session().handle(initialize, lease.stream());
        let agrees = match heard {
            Accepted::Asked => match lease.response_stream().first().await {
                First::Answer(answer) => {
                    is_result(&answer)
                        && session.client_session().version() == Some(claims.revision)
                }
                _ => return Err(Refused::SessionEnded),
            },
            Accepted::Taken | Accepted::Refused(_) => false,
        };
        drop(lease);
        if !agrees {
            self.forget(claims.session);
            return Err(Refused::UnknownSession);
        }
        replay_state(&session, record);
        session.recorder.restore(record);
        *session.earlier.borrow_mut() = EarlierStreams::of(record);
        for change in LIST_CHANGES {
            session.session_streams().put(change.as_bytes(), Route::Broadcast);
        }
        let tag = session.recorder.tag();
        self.persistence.store.keep_soon(Change::Tag(claims.session, tag));
        self.dormant.borrow_mut().remove(&claims.session);
        opening.admit_as(id, Some(claims.session))?;
        Ok(session)
    }

    /// Forgets what is kept of a session.
    pub(super) fn forget(&self, number: u128) {
        self.dormant.borrow_mut().remove(&number);
        self.persistence.store.keep_soon(Change::End(number));
    }

    /// Forgets sessions of an earlier daemon that are not wanted any more.
    pub(super) fn forget_dormant(&self, is_wanted: impl Fn(&Record, Instant) -> bool) {
        let is_unwanted = |it: &&Rc<Dormant>| {
            // One that is being restored is not dormant any more.
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

/// Repeats what the client said after `initialize`. Nobody waits for the answers.
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
pub(in crate::http) fn is_result(answer: &[u8]) -> bool {
    let parsed = envelope::parse(answer);
    matches!(parsed, Ok(Message::Answer { outcome: Outcome::Result(_), .. }))
}
