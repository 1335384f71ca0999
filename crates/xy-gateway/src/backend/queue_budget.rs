//! The budget of waiting calls, for one server and for all together. `queue.rs` holds the calls.

use std::cell::Cell;
use std::rc::Rc;

use xy_config::settings::ParkSettings;
use xy_protocol::size::Size;
use xy_upstream::fault::ServerFault;

/// The limits and counts of waiting calls, shared by all servers of a gateway.
#[derive(Debug, Default)]
pub(crate) struct QueueBudget {
    /// The limits: numbers, sizes and the maximum wait.
    pub(crate) park: ParkSettings,
    /// The next ticket. Tickets are unique across servers, as a call may move to another server.
    next_ticket: Cell<u64>,
    /// The calls that wait for any server.
    load: Cell<Load>,
}

/// A number of calls and their size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) calls: usize,
    pub(super) bytes: u64,
}

impl Load {
    pub(super) fn with(self, length: usize) -> Self {
        Self { calls: self.calls + 1, bytes: self.bytes.saturating_add(length as u64) }
    }

    pub(super) fn without(self, length: usize) -> Self {
        Self {
            calls: self.calls.saturating_sub(1),
            bytes: self.bytes.saturating_sub(length as u64),
        }
    }
}

/// A call's share of the budget. Dropping it frees the share.
#[derive(Debug)]
pub(super) struct Reservation {
    queue_budget: Rc<QueueBudget>,
    length: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.queue_budget.load.set(self.queue_budget.load.get().without(self.length));
    }
}

impl QueueBudget {
    pub(crate) fn new(park: ParkSettings) -> Rc<Self> {
        Rc::new(Self { park, ..Self::default() })
    }

    pub(super) fn next_ticket(&self) -> u64 {
        self.next_ticket.replace(self.next_ticket.get() + 1)
    }

    /// Returns the limit that one more call of this length would exceed, where `here` waits for its
    /// server.
    pub(super) fn exceeded(&self, here: Load, length: usize) -> Option<Limit> {
        exceeded(&self.park, here.with(length), self.load.get().with(length))
    }

    /// Reserves the share of a call, even beyond the limit.
    pub(super) fn take(self: &Rc<Self>, length: usize) -> Reservation {
        self.load.set(self.load.get().with(length));
        Reservation { queue_budget: self.clone(), length }
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> (usize, u64) {
        (self.load.get().calls, self.load.get().bytes)
    }
}

/// Returns the limit that is exceeded, if `here` waits for one server and `all` for all servers.
fn exceeded(park: &ParkSettings, here: Load, all: Load) -> Option<Limit> {
    if here.calls > park.calls {
        Some(Limit::Calls(park.calls))
    } else if here.bytes > park.bytes {
        Some(Limit::Bytes(park.bytes))
    } else if all.calls > park.total_calls {
        Some(Limit::TotalCalls(park.total_calls))
    } else if all.bytes > park.total_bytes {
        Some(Limit::TotalBytes(park.total_bytes))
    } else {
        None
    }
}

/// The limit that is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    Calls(usize),
    Bytes(u64),
    TotalCalls(usize),
    TotalBytes(u64),
}

impl Limit {
    /// Returns the error for the caller.
    pub(super) fn fault(self) -> ServerFault {
        let (is_total, setting, most) = match self {
            Self::Calls(most) => (false, "calls", most.to_string()),
            Self::Bytes(most) => (false, "bytes", Size(most).to_string()),
            Self::TotalCalls(most) => (true, "total-calls", most.to_string()),
            Self::TotalBytes(most) => (true, "total-bytes", Size(most).to_string()),
        };
        ServerFault::QueueFull { is_total, setting, most }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn park() -> ParkSettings {
        ParkSettings { calls: 2, bytes: 10, total_calls: 3, total_bytes: 15, ..Default::default() }
    }

    #[test]
    fn each_limit_holds_and_is_named_in_its_error() {
        let load = |calls, bytes| Load { calls, bytes };
        let exceeded = |here, all| exceeded(&park(), here, all);
        assert_eq!(exceeded(load(2, 10), load(3, 15)), None, "all of it may be used");
        assert_eq!(exceeded(load(3, 0), load(3, 0)), Some(Limit::Calls(2)));
        assert_eq!(exceeded(load(1, 11), load(1, 11)), Some(Limit::Bytes(10)));
        assert_eq!(exceeded(load(1, 1), load(4, 4)), Some(Limit::TotalCalls(3)));
        assert_eq!(exceeded(load(1, 1), load(2, 16)), Some(Limit::TotalBytes(15)));

        let name = xy_protocol::server::ServerName::new("a").unwrap();
        let told = |limit: Limit| {
            let fault = limit.fault().named(&name);
            format!("{}: {}; {}", fault.message, fault.cause.unwrap(), fault.hint.unwrap())
        };
        for (limit, whom, word, most) in [
            (Limit::Calls(1000), "`a`", "calls", "1000"),
            (Limit::Bytes(64 << 20), "`a`", "bytes", "64 MiB"),
            (Limit::TotalCalls(10_000), "all servers together", "total-calls", "10000"),
            (Limit::TotalBytes(512 << 20), "all servers together", "total-bytes", "512 MiB"),
        ] {
            let expected = format!(
                "too many calls wait for {whom}: at most {most} may wait (`park {{ {word} }}`); try \
                 again later, or raise `park {{ {word} … }}` in `xy.kdl` and restart the daemon"
            );
            assert_eq!(told(limit), expected);
        }
    }

    #[test]
    fn leaving_calls_free_their_budget() {
        let queue_budget = QueueBudget::new(park());
        let none = Load::default();
        let reservations = [queue_budget.take(5), queue_budget.take(5)];
        assert_eq!((queue_budget.waiting(), queue_budget.exceeded(none, 5)), ((2, 10), None));
        assert_eq!(queue_budget.exceeded(none, 6), Some(Limit::TotalBytes(15)));
        let last = queue_budget.take(1);
        assert_eq!(queue_budget.exceeded(none, 1), Some(Limit::TotalCalls(3)));
        drop((reservations, last));
        assert_eq!((queue_budget.waiting(), queue_budget.exceeded(none, 10)), ((0, 0), None));
        assert_eq!(
            queue_budget.exceeded(none, usize::MAX),
            Some(Limit::Bytes(10)),
            "nothing overflows"
        );
    }

    #[test]
    fn tickets_are_unique() {
        let queue_budget = QueueBudget::new(park());
        assert_eq!(
            [queue_budget.next_ticket(), queue_budget.next_ticket(), queue_budget.next_ticket()],
            [0, 1, 2]
        );
    }
}
