//! `explain`: whether a profile shows something, and why.

use xy_protocol::control::{Explain, Explained};
use xy_protocol::error::CallError;

use super::token::check_profile;
use crate::daemon::Daemon;

pub(super) async fn handle(daemon: &Daemon, ask: Explain) -> Result<Explained, CallError> {
    check_profile(daemon, &ask.profile)?; // It knows the nearest name.
    daemon.admin()?.explain(ask).await
}
