//! The requests that users of the control socket send to a server.

use std::rc::Rc;

use tokio::sync::oneshot;
use xy_mcp::edit::append_on_one_line;
use xy_transport::chunks::Chunks;
use xy_upstream::connection::ResponseResult;
use xy_upstream::fault::ServerFault;

use super::{Caller, PendingCall, Upstream};

/// A request of a user of the control socket. Dropping it cancels it.
pub(crate) struct AdminRequest {
    upstream: Rc<Upstream>,
    upstream_id: u64,
    answered: oneshot::Receiver<ResponseResult>,
}

impl AdminRequest {
    /// Returns the whole response, as written.
    pub(crate) async fn answer(mut self) -> ResponseResult {
        (&mut self.answered).await.unwrap_or(Err(ServerFault::Gone))
    }
}

impl Drop for AdminRequest {
    fn drop(&mut self) {
        self.upstream.cancel(self.upstream_id, "the caller is gone");
    }
}

impl Upstream {
    /// Sends a request whose method and params a user has chosen.
    pub(crate) fn ask_for_admin(
        self: &Rc<Self>,
        method: &str,
        params: Option<&str>,
    ) -> Result<AdminRequest, ServerFault> {
        let method = xy_mcp::edit::quoted(method);
        self.is_fresh.set(false);
        self.check_room()?;
        let upstream_id = self.new_id();
        let text = self.request_text(upstream_id, &method[1..method.len() - 1], params);
        let write = &mut |out: &mut Chunks| append_on_one_line(out.tail(), text.as_bytes());
        let offset = self.connection.forward(upstream_id, None, write);
        let (answer, answered) = oneshot::channel();
        let call = PendingCall::new(Caller::Admin(answer), offset);
        self.calls.borrow_mut().insert(upstream_id, call);
        self.flush();
        self.watch_reading();
        Ok(AdminRequest { upstream: self.clone(), upstream_id, answered })
    }
}
