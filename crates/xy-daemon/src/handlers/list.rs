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
    all
}
