//! The counters of the HTTP listener, for `/metrics`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use xy_transport::metrics::{self, Kind};

use crate::limits::CROWDED_THRESHOLD;

/// The counters of one listener.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) connections: Cell<usize>,
    /// By HTTP status.
    requests: RefCell<BTreeMap<u16, u64>>,
    /// By reason.
    refused: RefCell<BTreeMap<&'static str, u64>>,
    lost: RefCell<BTreeMap<&'static str, u64>>,
    closed: RefCell<BTreeMap<&'static str, u64>>,
    stateless_requests: Cell<u64>,
    abandoned: Cell<u64>,
}

/// The current values of all gauges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Gauges {
    pub(super) sessions: usize,
    pub(super) streams: usize,
    /// Open requests of clients without sessions.
    pub(super) stateless_requests: usize,
    /// Disconnected streams.
    pub(super) disconnected: usize,
    /// Messages that wait for a listening stream.
    pub(super) undelivered: usize,
    /// Events that are stored for clients.
    pub(super) stored: StorageUse,
}

/// The number and size of stored events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StorageUse {
    pub(super) events: usize,
    pub(super) bytes: usize,
}

impl Counters {
    /// Counts a response with this status.
    pub(super) fn count_response(&self, status: u16) {
        *self.requests.borrow_mut().entry(status).or_default() += 1;
    }

    /// Counts a request that was refused for this reason.
    pub(super) fn count_refused(&self, reason: &'static str) {
        *self.refused.borrow_mut().entry(reason).or_default() += 1;
    }

    /// Counts a message to a client that was dropped for this reason.
    pub(super) fn count_lost(&self, reason: &'static str) {
        *self.lost.borrow_mut().entry(reason).or_default() += 1;
    }

    /// Counts a stream, connection or session that xy closed for this reason.
    pub(super) fn count_closed(&self, reason: &'static str) {
        *self.closed.borrow_mut().entry(reason).or_default() += 1;
    }

    /// Counts a request of a client without a session.
    pub(super) fn count_stateless_request(&self) {
        self.stateless_requests.set(self.stateless_requests.get() + 1);
    }

    /// Counts a stateless request whose client disconnected before the response.
    pub(super) fn count_abandoned(&self) {
        self.abandoned.set(self.abandoned.get() + 1);
    }

    /// Returns true if there are so many connections that idle streams should close.
    pub(super) fn is_crowded(&self) -> bool {
        self.connections.get() >= CROWDED_THRESHOLD
    }

    /// Appends all counters, and the given gauges.
    pub(super) fn write(&self, out: &mut String, now: Gauges) {
        let gauges = [
            ("xy_http_connections", "open connections", self.connections.get()),
            ("xy_http_sessions", "open sessions", now.sessions),
            ("xy_http_streams", "open calls and streams", now.streams),
            ("xy_http_stateless_requests", "open stateless requests", now.stateless_requests),
            (
                "xy_http_streams_disconnected",
                "disconnected streams that can be resumed",
                now.disconnected,
            ),
            (
                "xy_http_undelivered_messages",
                "messages stored until their client listens",
                now.undelivered,
            ),
            ("xy_http_stored_events", "stored events", now.stored.events),
            ("xy_http_stored_bytes", "bytes of stored events", now.stored.bytes),
        ];
        for (name, help, value) in gauges {
            metrics::single(out, name, Kind::Gauge, help, value);
        }
        let counters = [
            ("xy_http_stateless_requests_total", "stateless requests", &self.stateless_requests),
            (
                "xy_http_stateless_requests_abandoned_total",
                "stateless requests whose client disconnected before the response",
                &self.abandoned,
            ),
        ];
        for (name, help, value) in counters {
            metrics::single(out, name, Kind::Counter, help, value.get());
        }
        let name = "xy_http_requests_total";
        metrics::family(out, name, Kind::Counter, "requests, by the status of their response");
        for (status, count) in self.requests.borrow().iter() {
            metrics::sample(out, name, &[("status", &status.to_string())], count);
        }
        let families = [
            ("xy_http_refused_total", "refused requests, by reason", &self.refused),
            ("xy_http_lost_messages_total", "dropped messages, by reason", &self.lost),
            (
                "xy_http_closed_total",
                "connections, streams and sessions that xy closed, by reason",
                &self.closed,
            ),
        ];
        for (name, help, counters) in families {
            metrics::family(out, name, Kind::Counter, help);
            for (reason, count) in counters.borrow().iter() {
                metrics::sample(out, name, &[("reason", reason)], count);
            }
        }
    }
}
