//! Lets a server go that nobody has used for long enough.

use std::rc::Rc;

use tokio::time::{Instant, sleep_until};
use xy_supervisor::speak::{Rest, Said};

use crate::backend::Backend;
use crate::idle::{Idleness, Verdict};
use crate::router::Router;
use crate::upstream::Upstream;

/// Looks whether it is used, for as long as it lives; resolves when it has been let go.
pub(crate) async fn when_idle(router: Rc<Router>, server: Rc<Backend>, upstream: Rc<Upstream>) {
    let mut idle = Idleness::begins(Instant::now());
    loop {
        let changed = server.rules_change();
        let idle_stop = server.idle_stop(upstream.key().holder);
        let Some(idle_stop) = idle_stop else {
            changed.await;
            idle = Idleness::begins(Instant::now());
            continue;
        };
        match router.looks_at_use(&server, &upstream, &mut idle, idle_stop) {
            Verdict::Rest => {
                let why = format!("not used for {idle_stop:?}");
                return upstream.say(Said::Idle(why)).await;
            }
            Verdict::LookAt(at) => tokio::select! {
                () = sleep_until(at) => {}
                () = changed => {}
            },
        }
    }
}

/// Lets it go at once if nobody uses it.
pub(crate) async fn if_idle(
    router: &Router,
    server: &Rc<Backend>,
    upstream: &Upstream,
    rest: Rest,
) {
    let Rest { why, reply } = rest;
    let goes = router.close_if_idle(server, upstream);
    let _ = reply.send(goes); // Whoever asked may have left.
    if goes {
        upstream.say(Said::Idle(why)).await;
    }
}
