//! Servers that are added and removed.

use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::mpsc;
use xy_config::settings::{CallRules, ParkSettings};
use xy_upstream::fault::LossReason;

use super::{NoDaemon, RecordedWire, empty, legacy, run_local, settings, start_upstream};

/// A process may start before its server is announced, and end before that too: the server may have
/// been removed meanwhile.
#[tokio::test(start_paused = true)]
async fn unannounced_server_is_removed_with_its_only_process() {
    run_local(async {
        for is_told_of in [false, true] {
            let router = empty(Arc::new(NoDaemon), ParkSettings::default());
            let server = router.server_of_instance(&Arc::new(settings(CallRules::default()))).await;
            if is_told_of {
                server.is_removed.set(false);
            }
            let (events, _received) = mpsc::channel(64);
            let sent = Rc::new(RecordedWire::default());
            let upstream = start_upstream(&router, &server, events, sent, false, &legacy()).await;
            assert!(router.server("s").is_some());
            router.on_instance_end(&server, &upstream, &LossReason::server("has ended"));
            assert_eq!(router.server("s").is_some(), is_told_of);
        }
    })
    .await;
}
