//! Plays of servers that come and go.

use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::mpsc;
use xy_config::settings::{CallRules, ParkSettings};

use super::{Nobody, Sent, empty, here, legacy, life, settings};

/// A life begins that nobody has told of, and is over before somebody does: its server may have
/// been removed meanwhile.
#[tokio::test(start_paused = true)]
async fn a_server_that_nobody_tells_of_goes_with_its_only_life() {
    here(async {
        for is_told_of in [false, true] {
            let router = empty(Arc::new(Nobody), ParkSettings::default());
            let server = router.server_of_life(&Arc::new(settings(CallRules::default()))).await;
            if is_told_of {
                server.is_removed.set(false);
            }
            let (said, _heard) = mpsc::channel(64);
            let sent = Rc::new(Sent::default());
            let upstream = life(&router, &server, said, sent, false, &legacy()).await;
            assert!(router.server("s").is_some());
            router.over(&server, &upstream, "`s` has ended");
            assert_eq!(router.server("s").is_some(), is_told_of);
        }
    })
    .await;
}
