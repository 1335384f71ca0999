//! Handler of `search`: finds tools by what they do.

use xy_protocol::control::{Search, SearchResult};
use xy_protocol::error::CallError;

use super::token::check_profile;
use crate::daemon::Daemon;

pub(super) async fn handle(daemon: &Daemon, params: Search) -> Result<SearchResult, CallError> {
    if let Some(profile) = &params.profile {
        check_profile(daemon, profile)?;
    }
    if let Some(server) = &params.server {
        daemon.find(server)?; // Its error suggests the nearest name.
    }
    daemon.admin()?.search(params).await
}
