//! What the door counts of its own, for `/metrics`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use super::limits::CROWDED_FROM;
use crate::metrics::{self, Kind};

/// The counters of one door.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) connections: Cell<usize>,
    /// By status: as many as we have.
    requests: RefCell<BTreeMap<u16, u64>>,
    /// By reason: as many as we have.
    refused: RefCell<BTreeMap<&'static str, u64>>,
    lost: RefCell<BTreeMap<&'static str, u64>>,
    cut: RefCell<BTreeMap<&'static str, u64>>,
    visits: Cell<u64>,
    abandoned: Cell<u64>,
}

/// What there is at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Gauges {
    pub(super) sessions: usize,
    pub(super) streams: usize,
    /// Requests of clients without sessions.
    pub(super) visits: usize,
    /// Streams without a connection.
    pub(super) apart: usize,
    /// Messages that came while nobody listened.
    pub(super) kept: usize,
    /// Events that are held for clients.
    pub(super) stored: Stored,
}

/// How much is held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) events: usize,
    pub(super) bytes: usize,
}

impl Counts {
    /// A request was answered with this status.
    pub(super) fn answered(&self, status: u16) {
        *self.requests.borrow_mut().entry(status).or_default() += 1;
    }

    /// Something was refused for this reason.
    pub(super) fn refused(&self, reason: &'static str) {
        *self.refused.borrow_mut().entry(reason).or_default() += 1;
    }

    /// A message for a client was dropped for this reason.
    pub(super) fn lost(&self, reason: &'static str) {
        *self.lost.borrow_mut().entry(reason).or_default() += 1;
    }

    /// A stream, a connection or a session was ended by us for this reason.
    pub(super) fn cut(&self, reason: &'static str) {
        *self.cut.borrow_mut().entry(reason).or_default() += 1;
    }

    /// A client without a session has come with a request.
    pub(super) fn visited(&self) {
        self.visits.set(self.visits.get() + 1);
    }

    /// It has gone before the answer.
    pub(super) fn abandoned(&self) {
        self.abandoned.set(self.abandoned.get() + 1);
    }

    /// Whether so many are connected that those who only wait should come back later.
    pub(super) fn is_crowded(&self) -> bool {
        self.connections.get() >= CROWDED_FROM
    }

    /// Writes all of it.
    pub(super) fn write(&self, out: &mut String, now: Gauges) {
        let gauges = [
            ("xy_http_connections", "open connections", self.connections.get()),
            ("xy_http_sessions", "open sessions", now.sessions),
            ("xy_http_streams", "open calls and streams", now.streams),
            ("xy_http_visits", "open requests of clients without sessions", now.visits),
            ("xy_http_streams_apart", "streams that wait to be taken up again", now.apart),
            ("xy_http_kept_messages", "messages kept until their client listens", now.kept),
            ("xy_http_stored_events", "events held for clients", now.stored.events),
            ("xy_http_stored_bytes", "bytes of events held for clients", now.stored.bytes),
        ];
        for (name, help, value) in gauges {
            metrics::single(out, name, Kind::Gauge, help, value);
        }
        let counters = [
            ("xy_http_visits_total", "requests of clients without sessions", &self.visits),
            (
                "xy_http_abandoned_total",
                "those whose client left before the answer",
                &self.abandoned,
            ),
        ];
        for (name, help, value) in counters {
            metrics::single(out, name, Kind::Counter, help, value.get());
        }
        let name = "xy_http_requests_total";
        metrics::family(out, name, Kind::Counter, "requests, by the status of their answer");
        for (status, count) in self.requests.borrow().iter() {
            metrics::sample(out, name, &[("status", &status.to_string())], count);
        }
        let families = [
            ("xy_http_refused_total", "refused requests, by reason", &self.refused),
            ("xy_http_lost_messages_total", "messages nobody was there to read", &self.lost),
            ("xy_http_cut_total", "what was ended by xy, by reason", &self.cut),
        ];
        for (name, help, counts) in families {
            metrics::family(out, name, Kind::Counter, help);
            for (reason, count) in counts.borrow().iter() {
                metrics::sample(out, name, &[("reason", reason)], count);
            }
        }
    }
}
