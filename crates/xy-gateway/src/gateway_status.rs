//! A snapshot of the gateway's status, which the router publishes for the control plane.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use xy_protocol::server::ServerName;
use xy_upstream::connection::UNFRAMED;
use xy_upstream::fault::ISOLATION_ADVICE;

use crate::limit_hits::LimitHits;

/// A snapshot of the gateway's status.
#[derive(Debug, Default)]
pub(crate) struct GatewayStatus {
    /// The servers that serve one client at a time, as they make requests of their clients.
    pub(crate) asking: BTreeSet<ServerName>,
    /// The servers that write messages over several lines.
    pub(crate) unframed: BTreeSet<ServerName>,
    /// The protocol revision of each server.
    pub(crate) protocol_versions: BTreeMap<ServerName, String>,
    /// The protocol revision of each server's second process, if it has one.
    pub(crate) second_protocol_versions: BTreeMap<ServerName, String>,
    /// The number of queued calls of each server.
    pub(crate) waiting: BTreeMap<ServerName, Arc<AtomicUsize>>,
    /// Warnings about profiles and about what clients see through them.
    pub(crate) warnings: Vec<String>,
    /// The limits that recently rejected something.
    pub(crate) limit_hits: LimitHits,
}

impl GatewayStatus {
    /// Returns advice on a server and its configuration.
    pub(crate) fn advice(&self, server: &ServerName) -> Vec<String> {
        let asks = self.asking.contains(server).then(|| {
            format!("it asks its clients questions, so they are served one at a time: {ISOLATION_ADVICE}")
        });
        let unframed = self.unframed.contains(server).then(|| UNFRAMED.to_owned());
        asks.into_iter().chain(unframed).collect()
    }
}
