//! Handler of `list`: returns every server, ordered by name.

use xy_protocol::control::ListResult;

use crate::daemon::Daemon;
use crate::server_status;

pub(super) fn handle(daemon: &Daemon) -> ListResult {
    let roster = daemon.fleet.roster();
    let mut all: ListResult = roster.values().map(server_status::entry).collect();
    for entry in &mut all {
        daemon.add_advice(entry);
    }
    let bad = daemon.bad_files();
    all.extend(bad.iter().map(|(name, bad)| server_status::entry_of_bad(name, bad)));
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all.dedup_by(|a, b| a.name == b.name); // A server may have appeared between the two reads.
    all
}
