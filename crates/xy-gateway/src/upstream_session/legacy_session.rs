//! The second session with an HTTP server that speaks both eras, while it is open.

use std::cell::RefCell;
use std::rc::Rc;

use xy_upstream::connection::http_client::HttpClient;
use xy_upstream::fault::{Cause, LossReason};

use crate::backend::Backend;
use crate::router::Router;
use crate::upstream::Upstream;

/// The legacy session of a server, while there is one.
#[derive(Default)]
pub(super) struct LegacySession {
    open: RefCell<Option<(Rc<Upstream>, Rc<HttpClient>)>>,
}

impl LegacySession {
    /// Sets the session and its transport.
    pub(super) fn set(&self, upstream: Rc<Upstream>, transport: Rc<HttpClient>) {
        *self.open.borrow_mut() = Some((upstream, transport));
    }

    /// Accepts no more requests.
    pub(super) fn stop_accepting(&self, is_hung: bool) {
        if let Some((upstream, _)) = &*self.open.borrow() {
            if is_hung {
                upstream.mark_hung();
            }
            upstream.stop_accepting();
        }
    }

    /// Ends the session, for this reason. Returns its transport, as the server may still have the
    /// session.
    pub(super) fn end(
        &self,
        router: &Router,
        server: &Rc<Backend>,
        why: &LossReason,
    ) -> Option<Rc<HttpClient>> {
        let (upstream, transport) = self.open.take()?;
        upstream.close(&Cause::end(why.clone()));
        router.on_instance_end(server, &upstream, why);
        Some(transport)
    }
}
