//! Decides in which order the delayed calls of one client are sent. Pure.
//!
//! Each call over HTTP is a request of its own, mostly on its own connection, so concurrent calls
//! arrive in any order. Delayed calls therefore go one after another. The next one goes once the
//! response to the one before has begun, or after a head start. No call waits for long, as a slow
//! call must not hold up those behind it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Time that a server gets to begin with a call before the next one is sent.
pub(super) const HEAD_START: Duration = Duration::from_millis(100);

/// Maximum time for sending a call, including a new connection.
const SEND_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for which an order is kept strictly. After that, each call only waits until the one before
/// it is sent.
const ORDER_TIMEOUT: Duration = Duration::from_secs(3);

/// The calls of one client by connection id, which is the order in which they came.
#[derive(Debug)]
pub(super) struct SendOrder {
    calls: BTreeMap<u64, CallState>,
    overdue_at: Instant,
}

/// The state of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallState {
    /// It does not wait here yet, for example as no permit is free.
    Expected,
    /// It waits for its turn.
    Ready,
    /// It is being sent since then, and may not have a connection yet.
    Sending(Instant),
    /// It was sent then, and its response has not begun.
    Sent(Instant),
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Send this call.
    Go(u64),
    /// Wait for a change, or until this time.
    Wait(Option<Instant>),
}

impl SendOrder {
    /// Creates an order that begins now.
    pub(super) fn new(now: Instant) -> Self {
        Self { calls: BTreeMap::new(), overdue_at: now + ORDER_TIMEOUT }
    }

    /// Adds a call, unless it is in the order already.
    pub(super) fn expect(&mut self, call: u64) {
        self.calls.entry(call).or_insert(CallState::Expected);
    }

    /// Adds a call that was sent before without a response: it may have to be sent again.
    pub(super) fn add_sent(&mut self, call: u64, now: Instant) {
        self.calls.insert(call, CallState::Sent(now));
    }

    /// Records that a call waits for its turn. Returns false if it is not in this order.
    pub(super) fn mark_ready(&mut self, call: u64) -> bool {
        self.set_state(call, CallState::Ready)
    }

    /// Records that a call was sent.
    pub(super) fn mark_sent(&mut self, call: u64, now: Instant) {
        self.set_state(call, CallState::Sent(now));
    }

    /// Records that a call was not accepted, and will come once more.
    pub(super) fn expect_again(&mut self, call: u64) {
        self.set_state(call, CallState::Expected);
    }

    /// Removes a call whose response has begun, or that has ended.
    pub(super) fn remove(&mut self, call: u64) {
        self.calls.remove(&call);
    }

    /// Returns true if no call is left.
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns the number of calls.
    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Decides what to do next. Marks the call that is to go as being sent.
    pub(super) fn next(&mut self, now: Instant) -> Next {
        let is_overdue = now >= self.overdue_at;
        for (call, state) in &mut self.calls {
            let until = match *state {
                CallState::Ready => {
                    *state = CallState::Sending(now);
                    return Next::Go(*call);
                }
                CallState::Sending(since) => since + SEND_TIMEOUT,
                CallState::Sent(since) => (since + HEAD_START).min(self.overdue_at),
                CallState::Expected if is_overdue => continue,
                CallState::Expected => self.overdue_at,
            };
            if now < until {
                return Next::Wait(Some(until));
            }
        }
        Next::Wait(None)
    }

    fn set_state(&mut self, call: u64, state: CallState) -> bool {
        let there = self.calls.get_mut(&call);
        there.map(|it| *it = state).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(calls: &[u64]) -> (SendOrder, Instant) {
        let now = Instant::now();
        let mut order = SendOrder::new(now);
        for call in calls {
            order.expect(*call);
        }
        (order, now)
    }

    #[test]
    fn calls_are_sent_in_id_order() {
        let (mut order, now) = order(&[3, 1, 2]);
        for call in [2, 3] {
            assert!(order.mark_ready(call));
            assert_eq!(order.next(now), Next::Wait(Some(now + ORDER_TIMEOUT)), "1 is expected");
        }
        order.mark_ready(1);
        for call in [1, 2, 3] {
            assert_eq!(order.next(now), Next::Go(call));
            assert_eq!(order.next(now), Next::Wait(Some(now + SEND_TIMEOUT)));
            order.mark_sent(call, now);
            assert_eq!(order.next(now), Next::Wait(Some(now + HEAD_START)));
            order.remove(call);
        }
        assert!(order.is_empty());
        assert!(!order.mark_ready(4), "it is none of these");
    }

    #[test]
    fn waiting_call_keeps_its_turn_in_a_new_order() {
        let (mut order, now) = order(&[1, 2]);
        order.mark_ready(2);
        order.expect(1);
        order.expect(2);
        order.mark_ready(1);
        assert_eq!(order.next(now), Next::Go(1));
        order.expect(1);
        order.remove(1);
        assert_eq!(order.next(now), Next::Go(2));
    }

    #[test]
    fn slow_call_delays_the_next_only_by_its_head_start() {
        let (mut order, now) = order(&[1, 2]);
        order.mark_ready(1);
        order.mark_ready(2);
        assert_eq!(order.next(now), Next::Go(1));
        order.mark_sent(1, now);
        assert_eq!(order.next(now + HEAD_START), Next::Go(2));
    }

    #[test]
    fn unsent_call_delays_the_next_only_for_a_while() {
        let (mut order, now) = order(&[1, 2]);
        order.mark_ready(1);
        order.mark_ready(2);
        assert_eq!(order.next(now), Next::Go(1));
        assert_eq!(order.next(now + SEND_TIMEOUT), Next::Go(2));
    }

    #[test]
    fn returned_call_goes_before_later_calls() {
        let (mut order, now) = order(&[2]);
        order.add_sent(1, now);
        order.mark_ready(2);
        assert_eq!(order.next(now), Next::Wait(Some(now + HEAD_START)));
        order.expect_again(1);
        order.mark_ready(1);
        assert_eq!(order.next(now), Next::Go(1));
    }

    #[test]
    fn overdue_order_waits_only_until_each_call_is_sent() {
        let (mut order, now) = order(&[1, 2, 3, 4]);
        for call in 2..5 {
            order.mark_ready(call);
        }
        let late = now + ORDER_TIMEOUT;
        assert_eq!(order.next(late), Next::Go(2), "nobody knows what keeps 1");
        assert_eq!(order.next(late), Next::Wait(Some(late + SEND_TIMEOUT)));
        order.mark_sent(2, late);
        assert_eq!(order.next(late), Next::Go(3));
        order.mark_ready(1);
        assert_eq!(order.next(late), Next::Go(1));
    }
}
