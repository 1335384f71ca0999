//! `search`: tools by what they do.

use xy_protocol::control::{FoundTools, Search};
use xy_protocol::error::CallError;

use super::token::check_profile;
use crate::daemon::Daemon;

pub(super) async fn handle(daemon: &Daemon, ask: Search) -> Result<FoundTools, CallError> {
    if let Some(profile) = &ask.profile {
        check_profile(daemon, profile)?;
    }
    if let Some(server) = &ask.server {
        daemon.find(server)?; // It knows the nearest name.
    }
    daemon.admin()?.search(ask).await
}
