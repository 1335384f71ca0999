//! `list`: every server, in the order of their names.

use xy_protocol::control::Listed;

use crate::daemon::Daemon;
use crate::view;

pub(super) fn handle(daemon: &Daemon) -> Listed {
    let roster = daemon.fleet.roster();
    let mut all: Listed = roster.values().map(view::entry).collect();
    for entry in &mut all {
        daemon.advise(entry);
    }
    let bad = daemon.bad_files();
    all.extend(bad.iter().map(|(name, bad)| view::entry_of_bad(name, bad)));
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all.dedup_by(|a, b| a.name == b.name); // One may have joined between the two looks.
    all
}
