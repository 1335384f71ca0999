//! `self_test`: looks at everything, and repairs what is broken.

use std::sync::Arc;

use xy_protocol::control::{SelfTest, SelfTested};
use xy_protocol::error::CallError;

use crate::daemon::Daemon;
use crate::self_test;

pub(super) async fn handle(
    daemon: &Arc<Daemon>,
    ask: SelfTest,
) -> Result<Arc<SelfTested>, CallError> {
    self_test::run(daemon, ask.repair).await
}
