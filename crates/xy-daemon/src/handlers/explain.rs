//! Handler of `explain`: reports whether a profile shows an item, and why.

use xy_protocol::control::{Explain, ExplainResult};
use xy_protocol::error::CallError;

use super::token::check_profile;
use crate::daemon::Daemon;

pub(super) async fn handle(daemon: &Daemon, params: Explain) -> Result<ExplainResult, CallError> {
    check_profile(daemon, &params.profile)?; // Its error suggests the nearest name.
    daemon.admin()?.explain(params).await
}
