//! The changes of a session that its client has requested: which are pending, and what was
//! accepted. Pure.
//!
//! A change is in the record before its request is answered. If the request is refused, a
//! *correction* writes what was accepted before. A later change of the same thing, pending or
//! accepted, counts instead of an earlier one.

use std::collections::BTreeSet;

use super::record::{Change, Record, RequestedChange, SUBSCRIPTIONS_MAX};
use crate::frontend::StreamNo;

/// Pending changes of one session. Further ones are not restored by the next daemon.
const PENDING_MAX: usize = 256;

/// The requested changes of one session.
#[derive(Debug, Default)]
pub(super) struct ChangeRequests {
    level: Option<String>,
    subscriptions: BTreeSet<String>,
    /// In the order of their requests.
    pending: Vec<Pending>,
    /// The subjects of refused changes that are corrected once no other request about them is
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
    /// Makes those of a restored session: all that its record holds was accepted.
    pub(super) fn of(record: &Record) -> Self {
        let (level, subscriptions) = (record.level.clone(), record.subscriptions.clone());
        Self { level, subscriptions, ..Self::default() }
    }

    /// Adds changes whose requests are answered on `stream`. Returns the corrections of those
    /// that are too many.
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

    /// Returns true if a change is to be answered on `stream`.
    pub(super) fn has_pending(&self, stream: StreamNo) -> bool {
        self.pending.iter().any(|it| it.stream == stream)
    }

    /// Handles the answer to a request; returns the correction if that is due.
    pub(super) fn answer(
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
        // Whatever becomes of an earlier request, this one has replaced it.
        let mut number = 0;
        self.pending.retain(|it| {
            number += 1;
            number > at || subject(&it.change) != subject(&change)
        });
        // The record holds a later change that was refused.
        let is_uncorrected = self.uncorrected.contains(&subject(&change).map(str::to_owned));
        is_uncorrected.then(|| self.correction(&change)).flatten()
    }

    /// Handles all changes that are left on a stream as refused; returns the corrections.
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

    /// Returns the change that writes what was accepted, in the place of a refused one. `None`
    /// while another request about the same thing is pending.
    pub(super) fn correction(&mut self, refused: &Change) -> Option<Change> {
        let subject_of_it = subject(refused).map(str::to_owned);
        if self.pending.iter().any(|it| subject(&it.change) == subject(refused)) {
            self.uncorrected.insert(subject_of_it);
            return None;
        }
        self.uncorrected.remove(&subject_of_it);
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

/// Returns the resource that a change is for; `None` for the log level.
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

    /// Requests changes, each on a stream of its own number.
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
        let correction = requests.answer(stream, &stream.to_string(), is_accepted);
        assert!(!requests.has_pending(stream));
        correction
    }

    #[test]
    fn refused_change_gives_way_to_what_was_accepted() {
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
    fn later_request_counts_whatever_the_order_of_answers() {
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
    fn end_of_a_stream_refuses_what_is_left_on_it() {
        let mut requests = ChangeRequests::default();
        let change = |request: &str, uri| RequestedChange {
            request: request.into(),
            change: subscribe(uri),
        };
        requests.add(1, vec![change("1", "a"), change("2", "b")]);
        request(&mut requests, &[(3, subscribe("c"))]);
        assert_eq!(requests.answer(1, "1", true), None);
        assert_eq!(requests.answer(1, "9", true), None);
        assert_eq!(requests.end(1), [unsubscribe("b")]);
        assert!(requests.has_pending(3) && !requests.has_pending(1));
    }

    #[test]
    fn pending_changes_have_a_bound() {
        let mut requests = ChangeRequests::default();
        for stream in 0..PENDING_MAX as u64 {
            request(&mut requests, &[(stream, subscribe(&stream.to_string()))]);
        }
        let change = RequestedChange { request: "x".into(), change: subscribe("x") };
        assert_eq!(requests.add(1, vec![change]), [unsubscribe("x")]);
    }
}
