//! The order in which calls of one client go out that have waited. Pure.
//!
//! Each call over HTTP is a request of its own, mostly on a connection of its own, so those that
//! go at the same time are heard in any order. What has waited therefore goes one after another:
//! the next once the one before it is being answered, or has had a head start. Nobody waits for
//! long, as a slow call must not hold up those behind it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// What a server that was sent a call has to begin with it, before it is sent the next.
pub(super) const HEAD_START: Duration = Duration::from_millis(100);

/// How long it may take to send one: there may have to be a connection first.
const SENT_WITHIN: Duration = Duration::from_secs(2);

/// A row that takes longer hurries: each call only waits until the one before it is sent.
const ROW_WITHIN: Duration = Duration::from_secs(3);

/// The calls of one client, by our ids of them, which are in the order in which they came.
#[derive(Debug)]
pub(super) struct Row {
    calls: BTreeMap<u64, Place>,
    hurries_at: Instant,
}

/// How far one of them is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Something else keeps it, such as that there is no room.
    Expected,
    /// It waits for its turn.
    Waits,
    /// It goes, since then, and may not have a connection yet.
    Goes(Instant),
    /// It is sent, since then, and nothing was heard of it.
    Sent(Instant),
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// This one goes.
    Go(u64),
    /// Nothing, until something happens, or until then.
    Wait(Option<Instant>),
}

impl Row {
    /// One that begins now.
    pub(super) fn new(now: Instant) -> Self {
        Self { calls: BTreeMap::new(), hurries_at: now + ROW_WITHIN }
    }

    /// A call is to come, unless it is there already: one that waits for its turn goes on to.
    pub(super) fn expect(&mut self, call: u64) {
        self.calls.entry(call).or_insert(Place::Expected);
    }

    /// A call was sent before, and is not heard of: it may come back.
    pub(super) fn was_sent(&mut self, call: u64, now: Instant) {
        self.calls.insert(call, Place::Sent(now));
    }

    /// It is there, and waits. Whether it is one of these at all.
    pub(super) fn waits(&mut self, call: u64) -> bool {
        self.put(call, Place::Waits)
    }

    /// It is sent.
    pub(super) fn sent(&mut self, call: u64, now: Instant) {
        self.put(call, Place::Sent(now));
    }

    /// It was not taken, and is to come once more.
    pub(super) fn comes_back(&mut self, call: u64) {
        self.put(call, Place::Expected);
    }

    /// It is being answered, or is over.
    pub(super) fn leave(&mut self, call: u64) {
        self.calls.remove(&call);
    }

    /// Whether nobody is left.
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Decides that; who is to go is taken to do so.
    pub(super) fn next(&mut self, now: Instant) -> Next {
        let hurries = now >= self.hurries_at;
        for (call, place) in &mut self.calls {
            let until = match *place {
                Place::Waits => {
                    *place = Place::Goes(now);
                    return Next::Go(*call);
                }
                Place::Goes(since) => since + SENT_WITHIN,
                Place::Sent(since) => (since + HEAD_START).min(self.hurries_at),
                Place::Expected if hurries => continue,
                Place::Expected => self.hurries_at,
            };
            if now < until {
                return Next::Wait(Some(until));
            }
        }
        Next::Wait(None)
    }

    fn put(&mut self, call: u64, place: Place) -> bool {
        let there = self.calls.get_mut(&call);
        there.map(|it| *it = place).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(calls: &[u64]) -> (Row, Instant) {
        let now = Instant::now();
        let mut row = Row::new(now);
        for call in calls {
            row.expect(*call);
        }
        (row, now)
    }

    #[test]
    fn they_go_by_their_ids_whoever_is_there_first() {
        let (mut row, now) = row(&[3, 1, 2]);
        for call in [2, 3] {
            assert!(row.waits(call));
            assert_eq!(row.next(now), Next::Wait(Some(now + ROW_WITHIN)), "1 is expected");
        }
        row.waits(1);
        for call in [1, 2, 3] {
            assert_eq!(row.next(now), Next::Go(call));
            assert_eq!(row.next(now), Next::Wait(Some(now + SENT_WITHIN)));
            row.sent(call, now);
            assert_eq!(row.next(now), Next::Wait(Some(now + HEAD_START)));
            row.leave(call);
        }
        assert!(row.is_empty());
        assert!(!row.waits(4), "it is none of these");
    }

    #[test]
    fn one_that_waits_keeps_its_turn_when_everybody_lines_up_again() {
        let (mut row, now) = row(&[1, 2]);
        row.waits(2);
        row.expect(1);
        row.expect(2);
        row.waits(1);
        assert_eq!(row.next(now), Next::Go(1));
        row.expect(1);
        row.leave(1);
        assert_eq!(row.next(now), Next::Go(2));
    }

    #[test]
    fn a_slow_one_holds_up_the_next_for_a_head_start_only() {
        let (mut row, now) = row(&[1, 2]);
        row.waits(1);
        row.waits(2);
        assert_eq!(row.next(now), Next::Go(1));
        row.sent(1, now);
        assert_eq!(row.next(now + HEAD_START), Next::Go(2));
    }

    #[test]
    fn one_that_is_not_sent_does_not_hold_up_the_next_for_ever() {
        let (mut row, now) = row(&[1, 2]);
        row.waits(1);
        row.waits(2);
        assert_eq!(row.next(now), Next::Go(1));
        assert_eq!(row.next(now + SENT_WITHIN), Next::Go(2));
    }

    #[test]
    fn one_that_is_not_taken_after_all_goes_before_those_that_came_later() {
        let (mut row, now) = row(&[2]);
        row.was_sent(1, now);
        row.waits(2);
        assert_eq!(row.next(now), Next::Wait(Some(now + HEAD_START)));
        row.comes_back(1);
        row.waits(1);
        assert_eq!(row.next(now), Next::Go(1));
    }

    #[test]
    fn a_row_that_takes_too_long_waits_only_until_each_is_sent() {
        let (mut row, now) = row(&[1, 2, 3, 4]);
        for call in 2..5 {
            row.waits(call);
        }
        let late = now + ROW_WITHIN;
        assert_eq!(row.next(late), Next::Go(2), "nobody knows what keeps 1");
        assert_eq!(row.next(late), Next::Wait(Some(late + SENT_WITHIN)));
        row.sent(2, late);
        assert_eq!(row.next(late), Next::Go(3));
        row.waits(1);
        assert_eq!(row.next(late), Next::Go(1));
    }
}
