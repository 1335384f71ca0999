//! Idle stop: ends a server that was not used for long enough.

use std::rc::Rc;

use tokio::time::{Instant, sleep_until};
use xy_supervisor::protocol::{DriverEvent, IdleStop};

use crate::backend::Backend;
use crate::idle::{IdleDecision, Idleness};
use crate::router::Router;
use crate::upstream::Upstream;

/// Checks whether the server is used, and returns once it was stopped for being idle.
pub(crate) async fn stop_when_idle(
    router: Rc<Router>,
    server: Rc<Backend>,
    upstream: Rc<Upstream>,
) {
    let mut idle = Idleness::new(Instant::now());
    loop {
        let changed = server.rules_change();
        let idle_stop = server.idle_stop(upstream.key().holder);
        let Some(idle_stop) = idle_stop else {
            changed.await;
            idle = Idleness::new(Instant::now());
            continue;
        };
        match router.check_idle(&server, &upstream, &mut idle, idle_stop) {
            IdleDecision::Stop => {
                let why = format!("not used for {idle_stop:?}");
                return upstream.report(DriverEvent::Idle(why)).await;
            }
            IdleDecision::CheckAt(at) => tokio::select! {
                () = sleep_until(at) => {}
                () = changed => {}
            },
        }
    }
}

/// Stops the server at once if it is idle.
pub(crate) async fn stop_if_idle(
    router: &Router,
    server: &Rc<Backend>,
    upstream: &Upstream,
    rest: IdleStop,
) {
    let IdleStop { why, reply } = rest;
    let goes = router.close_if_idle(server, upstream);
    let _ = reply.send(goes); // The receiver may be gone.
    if goes {
        upstream.report(DriverEvent::Idle(why)).await;
    }
}
