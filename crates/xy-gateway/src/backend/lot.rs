//! How much waits: for one server, and for all of them together. What more there is room for is
//! decided here; `queue.rs` has the calls.

use std::cell::Cell;
use std::rc::Rc;

use xy_config::settings::ParkSettings;
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;
use xy_protocol::size::Size;

/// What all servers of a gateway have in common about calls that wait.
#[derive(Debug, Default)]
pub(crate) struct Lot {
    /// How much may wait, and for how long.
    pub(crate) park: ParkSettings,
    /// The next place among all calls: a call may go to another server when it is looked at
    /// again.
    next_ticket: Cell<u64>,
    /// What waits for any of them.
    load: Cell<Load>,
}

/// So much waits.
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

/// The room of one call among those of all servers. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Place {
    lot: Rc<Lot>,
    length: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.lot.load.set(self.lot.load.get().without(self.length));
    }
}

impl Lot {
    pub(crate) fn new(park: ParkSettings) -> Rc<Self> {
        Rc::new(Self { park, ..Self::default() })
    }

    pub(super) fn next_ticket(&self) -> u64 {
        self.next_ticket.replace(self.next_ticket.get() + 1)
    }

    /// Why there is no room for one more call of this length, if there is none, where so much
    /// waits for its server.
    pub(super) fn full(&self, here: Load, length: usize) -> Option<Bound> {
        full(&self.park, here.with(length), self.load.get().with(length))
    }

    /// Takes the room of a call, whether or not there is any.
    pub(super) fn take(self: &Rc<Self>, length: usize) -> Place {
        self.load.set(self.load.get().with(length));
        Place { lot: self.clone(), length }
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> (usize, u64) {
        (self.load.get().calls, self.load.get().bytes)
    }
}

/// Which bound would be passed, if so much waited for one server and so much for all.
fn full(park: &ParkSettings, here: Load, all: Load) -> Option<Bound> {
    if here.calls > park.calls {
        Some(Bound::Calls(park.calls))
    } else if here.bytes > park.bytes {
        Some(Bound::Bytes(park.bytes))
    } else if all.calls > park.total_calls {
        Some(Bound::TotalCalls(park.total_calls))
    } else if all.bytes > park.total_bytes {
        Some(Bound::TotalBytes(park.total_bytes))
    } else {
        None
    }
}

/// What there is no more room for, and how much there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    Calls(usize),
    Bytes(u64),
    TotalCalls(usize),
    TotalBytes(u64),
}

impl Bound {
    /// The same for whoever calls: which bound it is, and what to do about it.
    pub(super) fn fault(self, server: &ServerName) -> CallError {
        let (whom, word, most) = match self {
            Self::Calls(most) => (format!("`{server}`"), "calls", most.to_string()),
            Self::Bytes(most) => (format!("`{server}`"), "bytes", Size(most).to_string()),
            Self::TotalCalls(most) => {
                ("all servers together".to_owned(), "total-calls", most.to_string())
            }
            Self::TotalBytes(most) => {
                ("all servers together".to_owned(), "total-bytes", Size(most).to_string())
            }
        };
        CallError::new(ErrorKind::QueueFull, format!("too many calls wait for {whom}"))
            .cause(format!("no more may wait than `{word}` of `park` says, which is {most}"))
            .hint(format!(
                "try again later, or write a larger `park {{ {word} … }}` in `xy.kdl` and start \
                 the daemon anew"
            ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn park() -> ParkSettings {
        ParkSettings { calls: 2, bytes: 10, total_calls: 3, total_bytes: 15, ..Default::default() }
    }

    #[test]
    fn each_bound_holds_and_says_its_name() {
        let load = |calls, bytes| Load { calls, bytes };
        let full = |here, all| full(&park(), here, all);
        assert_eq!(full(load(2, 10), load(3, 15)), None, "all of it may be used");
        assert_eq!(full(load(3, 0), load(3, 0)), Some(Bound::Calls(2)));
        assert_eq!(full(load(1, 11), load(1, 11)), Some(Bound::Bytes(10)));
        assert_eq!(full(load(1, 1), load(4, 4)), Some(Bound::TotalCalls(3)));
        assert_eq!(full(load(1, 1), load(2, 16)), Some(Bound::TotalBytes(15)));

        let name = ServerName::new("a").unwrap();
        let told = |bound: Bound| {
            let fault = bound.fault(&name);
            format!("{}: {}; {}", fault.message, fault.cause.unwrap(), fault.hint.unwrap())
        };
        for (bound, whom, word, most) in [
            (Bound::Calls(1000), "`a`", "calls", "1000"),
            (Bound::Bytes(64 << 20), "`a`", "bytes", "64 MiB"),
            (Bound::TotalCalls(10_000), "all servers together", "total-calls", "10000"),
            (Bound::TotalBytes(512 << 20), "all servers together", "total-bytes", "512 MiB"),
        ] {
            let expected = format!(
                "too many calls wait for {whom}: no more may wait than `{word}` of `park` says, \
                 which is {most}; try again later, or write a larger `park {{ {word} … }}` in \
                 `xy.kdl` and start the daemon anew"
            );
            assert_eq!(told(bound), expected);
        }
    }

    #[test]
    fn room_is_given_back_by_whoever_leaves() {
        let lot = Lot::new(park());
        let none = Load::default();
        let places = [lot.take(5), lot.take(5)];
        assert_eq!((lot.waiting(), lot.full(none, 5)), ((2, 10), None));
        assert_eq!(lot.full(none, 6), Some(Bound::TotalBytes(15)));
        let last = lot.take(1);
        assert_eq!(lot.full(none, 1), Some(Bound::TotalCalls(3)));
        drop((places, last));
        assert_eq!((lot.waiting(), lot.full(none, 10)), ((0, 0), None));
        assert_eq!(lot.full(none, usize::MAX), Some(Bound::Bytes(10)), "nothing overflows");
    }

    #[test]
    fn no_ticket_is_given_twice() {
        let lot = Lot::new(park());
        assert_eq!([lot.next_ticket(), lot.next_ticket(), lot.next_ticket()], [0, 1, 2]);
    }
}
