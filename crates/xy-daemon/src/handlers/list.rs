//! `list`: every server, in the order of their names.

use xy_protocol::control::Listed;

use crate::daemon::Daemon;
use crate::view;

pub(super) fn handle(daemon: &Daemon) -> Listed {
    daemon.fleet.roster().values().map(view::entry).collect()
}
