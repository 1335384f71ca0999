//! Handler of `info`: reports the daemon's paths, sockets and URL.

use xy_protocol::control::Info;

use crate::daemon::Daemon;
use crate::daemon_info;

pub(super) fn handle(daemon: &Daemon) -> Info {
    daemon_info::of(daemon)
}
