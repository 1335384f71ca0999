//! Sessions of an earlier daemon: at their first use, what their clients said is replayed.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use xy_mcp::envelope::{self, Message, Outcome};

use super::{Session, Sessions, Way};
use crate::front::{Heard, Outlet as _, StreamNo, To};
use crate::http::event::StreamId;
use crate::http::guard::Guest;
use crate::http::mailbox::First;
use crate::http::postbox::REPLAYED;
use crate::http::record::{Change, EventTag, Record, StreamedCall};
use crate::http::refused::Refused;
use crate::http::route::Place;
use crate::http::session_id::Claims;

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
    /// The ids of their requests, as clients wrote them.
    calls: HashMap<(EventTag, StreamNo), String>,
}

/// A stream of an earlier daemon.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) enum Earlier {
    /// It was to answer this request.
    Call(String),
    Listener,
}

impl EarlierStreams {
    fn of(record: &Record) -> Self {
        let call = |it: &StreamedCall| ((it.tag, it.stream), it.request.clone());
        Self { tags: record.tags.clone(), calls: record.calls.iter().map(call).collect() }
    }

    /// Returns what `stream` was, if an earlier daemon had it.
    pub(super) fn find(&self, stream: StreamId) -> Option<Earlier> {
        let call = self.calls.get(&(stream.tag, stream.stream)).cloned();
        let is_known = self.tags.contains(&stream.tag);
        is_known.then(|| call.map_or(Earlier::Listener, Earlier::Call))
    }
}

impl Sessions {
    /// Goes on with a session of an earlier daemon.
    pub(super) async fn restore(
        &self,
        id: &str,
        guest: &Guest<'_>,
        place: Place<'_>,
    ) -> Result<Rc<Session>, Refused> {
        let claims = self.persistence.claims(id, guest, place).ok_or(Refused::UnknownSession)?;
        let dormant = self.dormant.borrow().get(&claims.session).cloned();
        let dormant = dormant.ok_or(Refused::UnknownSession)?;
        let replay = || self.replay(id, &claims, &dormant.record, (guest, place));
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
        (guest, place): (&Guest<'_>, Place<'_>),
    ) -> Result<Rc<Session>, Refused> {
        let opening = self.open(guest, place, Way::Streamable)?;
        let session = Rc::clone(opening.session());
        let lease = Self::open_call(&session, false);
        let heard = session.conversation().hear(record.initialize.as_bytes(), lease.stream());
        let agrees = match heard {
            Heard::Asked => match lease.mailbox().first().await {
                First::Answer(answer) => {
                    is_result(&answer) && session.conversation().version() == Some(claims.revision)
                }
                _ => return Err(Refused::SessionEnded),
            },
            Heard::Taken | Heard::Refused(_) => false,
        };
        drop(lease);
        if !agrees {
            self.forget(claims.session);
            return Err(Refused::UnknownSession);
        }
        replay_state(&session, record);
        *session.earlier.borrow_mut() = EarlierStreams::of(record);
        for change in LIST_CHANGES {
            session.postbox().put(change.as_bytes(), To::Anyone);
        }
        let tag = session.postbox().tag();
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
        session.conversation().hear(INITIALIZED, REPLAYED);
    }
    let level = record.level.iter().map(|it| ("logging/setLevel", "level", it));
    let watched = record.subscriptions.iter().map(|it| ("resources/subscribe", "uri", it));
    for (number, (method, key, value)) in level.chain(watched).enumerate() {
        let value = Value::from(value.as_str());
        let request = format!(
            r#"{{"jsonrpc":"2.0","id":"xy-restored-{number}","method":"{method}","params":{{"{key}":{value}}}}}"#
        );
        session.conversation().hear(request.as_bytes(), REPLAYED);
    }
}

/// Returns true if an answer is a result.
pub(in crate::http) fn is_result(answer: &[u8]) -> bool {
    let parsed = envelope::parse(answer);
    matches!(parsed, Ok(Message::Answer { outcome: Outcome::Result(_), .. }))
}
