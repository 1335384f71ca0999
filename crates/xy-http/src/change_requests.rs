//! The changes that a client has requested in its session: pending and accepted ones. Pure.
//!
//! A change is recorded before its request is answered. If the request is refused, a *correction*
//! restores what was accepted before. A later change of the same subject, pending or accepted,
//! replaces an earlier one.

use std::collections::BTreeSet;

use crate::frontend::StreamNo;
use crate::record::{Change, Record, RequestedChange, SUBSCRIPTIONS_MAX};

/// Maximum number of pending changes of one session. The next daemon does not restore further ones.
const PENDING_MAX: usize = 256;

/// The requested changes of one session.
#[derive(Debug, Default)]
pub(super) struct ChangeRequests {
    level: Option<String>,
    subscriptions: BTreeSet<String>,
    /// In the order of their requests.
    pending: Vec<Pending>,
    /// The subjects of refused changes that are corrected once no other request for them is
    /// pending.
    uncorrected: BTreeSet<Option<String>>,
}

#[derive(Debug)]
struct Pending {
    stream: StreamNo,
    /// The id of the request, as the client wrote it.
    request: Box<str>,
    change: Change,
}

impl ChangeRequests {
    /// Creates the changes of a restored session: everything in its record was accepted.
    pub(super) fn from_record(record: &Record) -> Self {
        let (level, subscriptions) = (record.level.clone(), record.subscriptions.clone());
        Self { level, subscriptions, ..Self::default() }
    }

    /// Adds changes whose requests are answered on `stream`. Returns the corrections of changes
    /// beyond the limit.
    pub(super) fn add(&mut self, stream: StreamNo, changes: Vec<RequestedChange>) -> Vec<Change> {
        let mut corrections = Vec::new();
        for RequestedChange { request, change } in changes {
            if self.pending.len() < PENDING_MAX {
                self.pending.push(Pending { stream, request, change });
            } else {
                corrections.extend(self.correction(&change));
            }
        }
        corrections
    }

    /// Returns true if a change on `stream` is pending.
    pub(super) fn has_pending(&self, stream: StreamNo) -> bool {
        self.pending.iter().any(|it| it.stream == stream)
    }

    /// Handles the response to a request. Returns the correction, if one is due.
    pub(super) fn handle_response(
        &mut self,
        stream: StreamNo,
        request: &str,
        is_accepted: bool,
    ) -> Option<Change> {
        let is_it = |it: &Pending| it.stream == stream && *it.request == *request;
        let at = self.pending.iter().position(is_it)?;
        let change = self.pending.remove(at).change;
        if !is_accepted {
            return self.correction(&change);
        }
        self.accept(change.clone());
        // This change has replaced earlier ones, whatever their responses will be.
        let mut number = 0;
        self.pending.retain(|it| {
            number += 1;
            number > at || subject(&it.change) != subject(&change)
        });
        // The record holds a later change that was refused.
        let is_uncorrected = self.uncorrected.contains(&subject(&change).map(str::to_owned));
        is_uncorrected.then(|| self.correction(&change)).flatten()
    }

    /// Treats all pending changes of a stream as refused. Returns the corrections.
    pub(super) fn end(&mut self, stream: StreamNo) -> Vec<Change> {
        let mut ended = Vec::new();
        self.pending.retain_mut(|it| {
            if it.stream == stream {
                ended.push(it.change.clone());
            }
            it.stream != stream
        });
        ended.iter().filter_map(|change| self.correction(change)).collect()
    }

    /// Returns the change that restores the accepted state after a refused change. `None` while
    /// another request for the same subject is pending.
    pub(super) fn correction(&mut self, refused: &Change) -> Option<Change> {
        let subject_key = subject(refused).map(str::to_owned);
        if self.pending.iter().any(|it| subject(&it.change) == subject(refused)) {
            self.uncorrected.insert(subject_key);
            return None;
        }
        self.uncorrected.remove(&subject_key);
        match refused {
            Change::Level(session, _) => Some(Change::Level(*session, self.level.clone())),
            Change::Subscribe(session, uri) | Change::Unsubscribe(session, uri) => {
                let (session, uri) = (*session, uri.clone());
                Some(if self.subscriptions.contains(&uri) {
                    Change::Subscribe(session, uri)
                } else {
                    Change::Unsubscribe(session, uri)
                })
            }
            _ => None,
        }
    }

    fn accept(&mut self, change: Change) {
        match change {
            Change::Level(_, level) => self.level = level,
            Change::Subscribe(_, uri) if self.subscriptions.len() < SUBSCRIPTIONS_MAX => {
                self.subscriptions.insert(uri);
            }
            Change::Unsubscribe(_, uri) => drop(self.subscriptions.remove(&uri)),
            _ => {}
        }
    }
}

/// Returns the resource that a change is about; `None` for the log level.
fn subject(change: &Change) -> Option<&str> {
    match change {
        Change::Subscribe(_, uri) | Change::Unsubscribe(_, uri) => Some(uri),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscribe(uri: &str) -> Change {
        Change::Subscribe(1, uri.to_owned())
    }

    fn unsubscribe(uri: &str) -> Change {
        Change::Unsubscribe(1, uri.to_owned())
    }

    fn level(level: Option<&str>) -> Change {
        Change::Level(1, level.map(str::to_owned))
    }

    /// Requests changes, each on the stream with its number.
    fn request(requests: &mut ChangeRequests, changes: &[(StreamNo, Change)]) {
        for (stream, change) in changes {
            let request = stream.to_string().into();
            let change = RequestedChange { request, change: change.clone() };
            assert_eq!(requests.add(*stream, vec![change]), []);
        }
    }

    /// Answers request `stream`; returns the correction.
    fn answer(
        requests: &mut ChangeRequests,
        stream: StreamNo,
        is_accepted: bool,
    ) -> Option<Change> {
        let correction = requests.handle_response(stream, &stream.to_string(), is_accepted);
        assert!(!requests.has_pending(stream));
        correction
    }

    #[test]
    fn refused_change_reverts_to_the_accepted_state() {
        let mut requests = ChangeRequests::default();
        request(&mut requests, &[(1, subscribe("a")), (2, level(Some("error")))]);
        assert_eq!(answer(&mut requests, 1, false), Some(unsubscribe("a")));
        assert_eq!(answer(&mut requests, 2, false), Some(level(None)));
        request(&mut requests, &[(3, subscribe("a")), (4, level(Some("debug")))]);
        assert_eq!(answer(&mut requests, 3, true), None);
        assert_eq!(answer(&mut requests, 4, true), None);
        request(&mut requests, &[(5, subscribe("a")), (6, unsubscribe("a"))]);
        request(&mut requests, &[(7, level(Some("error")))]);
        assert_eq!(answer(&mut requests, 6, false), None, "5 is pending");
        assert_eq!(answer(&mut requests, 5, false), Some(subscribe("a")));
        assert_eq!(answer(&mut requests, 7, false), Some(level(Some("debug"))));
    }

    #[test]
    fn later_request_wins_in_any_order_of_answers() {
        for order in [[1, 2], [2, 1]] {
            let mut requests = ChangeRequests::default();
            request(&mut requests, &[(1, subscribe("a")), (2, unsubscribe("a"))]);
            for stream in order {
                assert_eq!(answer(&mut requests, stream, true), None);
            }
            request(&mut requests, &[(3, subscribe("a"))]);
            assert_eq!(answer(&mut requests, 3, false), Some(unsubscribe("a")), "{order:?}");
        }
        for (order, accepted) in [([1, 2], 1), ([2, 1], 1), ([1, 2], 2), ([2, 1], 2)] {
            let mut requests = ChangeRequests::default();
            request(&mut requests, &[(1, subscribe("a")), (2, subscribe("a"))]);
            let corrections = order.map(|it| answer(&mut requests, it, it == accepted));
            let last = corrections.into_iter().flatten().last();
            assert!(last.is_none() || last == Some(subscribe("a")), "{order:?}, {accepted}");
        }
        // The record holds the later change, which is refused.
        for order in [[1, 2], [2, 1]] {
            let mut requests = ChangeRequests::default();
            request(&mut requests, &[(1, subscribe("a")), (2, unsubscribe("a"))]);
            let corrections = order.map(|it| answer(&mut requests, it, it == 1));
            assert_eq!(corrections.into_iter().flatten().last(), Some(subscribe("a")), "{order:?}");
            request(&mut requests, &[(1, level(Some("error"))), (2, level(Some("debug")))]);
            let corrections = order.map(|it| answer(&mut requests, it, it == 1));
            let last = corrections.into_iter().flatten().last();
            assert_eq!(last, Some(level(Some("error"))), "{order:?}");
        }
    }

    #[test]
    fn stream_end_refuses_its_pending_changes() {
        let mut requests = ChangeRequests::default();
        let change = |request: &str, uri| RequestedChange {
            request: request.into(),
            change: subscribe(uri),
        };
        requests.add(1, vec![change("1", "a"), change("2", "b")]);
        request(&mut requests, &[(3, subscribe("c"))]);
        assert_eq!(requests.handle_response(1, "1", true), None);
        assert_eq!(requests.handle_response(1, "9", true), None);
        assert_eq!(requests.end(1), [unsubscribe("b")]);
        assert!(requests.has_pending(3) && !requests.has_pending(1));
    }

    #[test]
    fn pending_changes_are_limited() {
        let mut requests = ChangeRequests::default();
        for stream in 0..PENDING_MAX as u64 {
            request(&mut requests, &[(stream, subscribe(&stream.to_string()))]);
        }
        let change = RequestedChange { request: "x".into(), change: subscribe("x") };
        assert_eq!(requests.add(1, vec![change]), [unsubscribe("x")]);
    }
}
