//! The budget of waiting calls, for one server and for all together. `queue.rs` holds the calls.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use xy_config::settings::ParkSettings;
use xy_protocol::size::Size;
use xy_transport::share::{Holdings, TokenUse};
use xy_upstream::fault::ServerFault;

/// The limits and counts of waiting calls, shared by all servers of a gateway.
#[derive(Debug, Default)]
pub(crate) struct QueueBudget {
    /// The limits: numbers, sizes and the maximum wait.
    pub(crate) park: ParkSettings,
    /// The next ticket. Tickets are unique across servers, as a call may move to another server.
    next_ticket: Cell<u64>,
    /// The calls that wait for any server, and their bytes.
    calls: RefCell<Holdings>,
    bytes: RefCell<Holdings>,
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
}

/// The calls that wait in one place: those of one token, and all.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenLoad {
    pub(super) own: Load,
    pub(super) all: Load,
}

/// A call's share of the budget. Dropping it frees the share.
#[derive(Debug)]
pub(super) struct Reservation {
    queue_budget: Rc<QueueBudget>,
    token: TokenUse,
    length: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.queue_budget.calls.borrow_mut().remove(self.token, 1);
        self.queue_budget.bytes.borrow_mut().remove(self.token, self.length);
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
        exceeded(&self.park, here.with(length), self.load().with(length))
    }

    /// Returns the error if one more call of this length would exceed the share of its token.
    /// `here` waits for its server.
    pub(super) fn over_share(
        &self,
        token: TokenUse,
        here: TokenLoad,
        length: usize,
    ) -> Option<ServerFault> {
        let own = Load {
            calls: self.calls.borrow().of(token),
            bytes: self.bytes.borrow().of(token) as u64,
        };
        let all = self.load();
        over_share(&self.park, token, length, here, TokenLoad { own, all })
    }

    /// Reserves the share of a call, even beyond the limit.
    pub(super) fn take(self: &Rc<Self>, token: TokenUse, length: usize) -> Reservation {
        self.calls.borrow_mut().add(token, 1);
        self.bytes.borrow_mut().add(token, length);
        Reservation { queue_budget: self.clone(), token, length }
    }

    /// Returns what waits for all servers.
    fn load(&self) -> Load {
        Load { calls: self.calls.borrow().all(), bytes: self.bytes.borrow().all() as u64 }
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> (usize, u64) {
        (self.load().calls, self.load().bytes)
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

/// Returns the error if one more call of this length would exceed the token's share of a limit.
fn over_share(
    park: &ParkSettings,
    token: TokenUse,
    length: usize,
    here: TokenLoad,
    total: TokenLoad,
) -> Option<ServerFault> {
    let may_take = |more: usize, own: u64, all: u64, most: u64| {
        let [own, all, most] = [own, all, most].map(|it| usize::try_from(it).unwrap_or(usize::MAX));
        token.may_take_more(more, own, all, most)
    };
    let limits = [
        (Limit::Calls(park.calls), here),
        (Limit::Bytes(park.bytes), here),
        (Limit::TotalCalls(park.total_calls), total),
        (Limit::TotalBytes(park.total_bytes), total),
    ];
    limits.into_iter().find_map(|(limit, TokenLoad { own, all })| {
        let (has_share, own) = match limit {
            Limit::Calls(most) | Limit::TotalCalls(most) => (
                may_take(1, own.calls as u64, all.calls as u64, most as u64),
                own.calls.to_string(),
            ),
            Limit::Bytes(most) | Limit::TotalBytes(most) => {
                (may_take(length, own.bytes, all.bytes, most), Size(own.bytes).to_string())
            }
        };
        (!has_share).then(|| limit.share_fault(own))
    })
}

/// A limit on waiting calls.
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
        let (is_total, setting, most) = self.describe();
        ServerFault::QueueFull { is_total, setting, most }
    }

    /// Returns the error for a caller whose token holds `own`.
    fn share_fault(self, own: String) -> ServerFault {
        let (is_total, setting, most) = self.describe();
        ServerFault::QueueShare { is_total, setting, own, most }
    }

    /// Returns whether the limit is on all servers, its setting and its value.
    fn describe(self) -> (bool, &'static str, String) {
        match self {
            Self::Calls(most) => (false, "calls", most.to_string()),
            Self::Bytes(most) => (false, "bytes", Size(most).to_string()),
            Self::TotalCalls(most) => (true, "total-calls", most.to_string()),
            Self::TotalBytes(most) => (true, "total-bytes", Size(most).to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use xy_transport::share::LOCAL;

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
        let take = |length| queue_budget.take(TokenUse { id: LOCAL }, length);
        let reservations = [take(5), take(5)];
        assert_eq!((queue_budget.waiting(), queue_budget.exceeded(none, 5)), ((2, 10), None));
        assert_eq!(queue_budget.exceeded(none, 6), Some(Limit::TotalBytes(15)));
        let last = take(1);
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
    fn each_limit_has_shares_and_is_named_in_their_error() {
        let park = ParkSettings {
            calls: 4,
            bytes: 100,
            total_calls: 8,
            total_bytes: 200,
            ..ParkSettings::default()
        };
        let load = |calls, bytes| Load { calls, bytes };
        let found = |id, length, here: (Load, Load), total: (Load, Load)| {
            let [here, total] = [here, total].map(|(own, all)| TokenLoad { own, all });
            over_share(&park, TokenUse { id }, length, here, total)
        };
        let none = (load(0, 0), load(0, 0));
        let full = (load(3, 75), load(3, 75));
        let (name, all) =
            (xy_protocol::server::ServerName::new("a").unwrap(), "all servers together");
        for (length, here, total, whom, own, most) in [
            (1, (load(3, 3), load(3, 3)), none, "`a`", "3", "4 (`park { calls }`)"),
            (76, none, none, "`a`", "0 bytes", "100 bytes (`park { bytes }`)"),
            (1, none, (load(6, 6), load(6, 6)), all, "6", "8 (`park { total-calls }`)"),
            (
                51,
                none,
                (load(2, 100), load(2, 100)),
                all,
                "100 bytes",
                "200 bytes (`park { total-bytes }`)",
            ),
        ] {
            let fault = found(70, length, here, total).unwrap().named(&name);
            assert_eq!(fault.message, format!("too many calls of this token wait for {whom}"));
            let cause =
                format!("it holds {own} of at most {most}; the rest is reserved for other tokens");
            assert_eq!(fault.cause.unwrap(), cause);
            assert_eq!(found(LOCAL, length, here, total), None, "no share");
        }
        assert_eq!(found(70, 75, none, none), None, "three quarters");
        assert_eq!(found(71, 18, (none.0, full.1), (none.0, full.1)), None, "another token");
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
