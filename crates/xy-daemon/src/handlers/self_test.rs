//! Handler of `self_test`: tests the whole system, and repairs what is broken.

use std::sync::Arc;

use xy_protocol::control::{SelfTest, SelfTestResult};
use xy_protocol::error::CallError;

use crate::daemon::Daemon;
use crate::self_test;

pub(super) async fn handle(
    daemon: &Arc<Daemon>,
    params: SelfTest,
) -> Result<Arc<SelfTestResult>, CallError> {
    self_test::run(daemon, params.repair).await
}
