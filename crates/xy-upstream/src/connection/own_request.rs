//! The requests of xy itself to a server.

use std::borrow::Cow;
use std::rc::Rc;

use tokio::sync::oneshot;
use xy_mcp::edit::append_on_one_line;
use xy_protocol::error::CallError;
use xy_transport::chunks::Chunks;

use super::{Connection, Origin, SentRequest, self_meta};
use crate::fault::ServerFault;

/// The whole response as written, or the error why there is none.
pub type ResponseResult = Result<Box<str>, ServerFault>;

/// A request of xy itself. Dropping it cancels it.
pub struct InternalRequest {
    pub(super) connection: Rc<Connection>,
    pub(super) upstream_id: u64,
    answered: oneshot::Receiver<ResponseResult>,
}

impl InternalRequest {
    /// Returns the whole response, as written.
    pub async fn answer(mut self) -> Result<Box<str>, CallError> {
        self.answered().await
    }

    /// Waits for the whole response, as written. Cancel-safe; must not be called again once it has
    /// returned.
    pub async fn answered(&mut self) -> Result<Box<str>, CallError> {
        let answered = (&mut self.answered).await.unwrap_or(Err(ServerFault::Gone));
        answered.map_err(|fault| fault.named(&self.connection.key.server))
    }

    /// Holds back all later messages until the server has answered.
    pub fn set_barrier(&self) {
        self.connection.wire.barrier(self.upstream_id);
    }

    /// Sends the request regardless of the limit on concurrent calls, as health checks need.
    pub fn bypass_limit(&self) {
        self.connection.wire.bypass_limit(self.upstream_id);
    }

    /// Lets the request run and ignores its response.
    pub fn detach(self) {
        if let Some(request) = self.connection.requests.borrow_mut().get_mut(&self.upstream_id) {
            request.origin = Origin::Detached;
        }
    }

    /// Drops the request without sending `notifications/cancelled`.
    pub fn forget(self) {
        self.connection.wire.abandon(self.upstream_id);
        self.connection.requests.borrow_mut().remove(&self.upstream_id);
    }
}

impl Drop for InternalRequest {
    fn drop(&mut self) {
        self.connection.cancel_own(self.upstream_id);
    }
}

impl Connection {
    /// Sends a request of xy itself.
    pub fn ask(
        self: &Rc<Self>,
        method: &str,
        params: Option<&str>,
    ) -> Result<InternalRequest, CallError> {
        self.ask_with(method, params, Origin::Internal)
    }

    pub(super) fn ask_with(
        self: &Rc<Self>,
        method: &str,
        params: Option<&str>,
        origin: fn(oneshot::Sender<ResponseResult>) -> Origin,
    ) -> Result<InternalRequest, CallError> {
        self.check_room().map_err(|fault| fault.named(&self.key.server))?;
        let upstream_id = self.new_id();
        let text = self.request_text(upstream_id, method, params);
        let write = &mut |out: &mut Chunks| append_on_one_line(out.tail(), text.as_bytes());
        let offset = self.wire.put(Some(upstream_id), write);
        let (answer, answered) = oneshot::channel();
        let request = SentRequest { offset, origin: origin(answer) };
        self.requests.borrow_mut().insert(upstream_id, request);
        self.wire.flush(false);
        Ok(InternalRequest { connection: self.clone(), upstream_id, answered })
    }

    /// Returns the text of a request that no client has written. `method` is inserted as it is.
    pub fn request_text(&self, upstream_id: u64, method: &str, params: Option<&str>) -> String {
        let params = if self.is_modern() {
            Some(Cow::Owned(self_meta::params(params, &self.daemons_before())))
        } else {
            params.map(Cow::Borrowed)
        };
        match params {
            Some(params) => {
                format!(
                    r#"{{"jsonrpc":"2.0","id":{upstream_id},"method":"{method}","params":{params}}}"#
                )
            }
            None => format!(r#"{{"jsonrpc":"2.0","id":{upstream_id},"method":"{method}"}}"#),
        }
    }

    /// Cancels a request of xy itself, unless it was answered or detached. The response is ignored.
    fn cancel_own(&self, upstream_id: u64) {
        let mut requests = self.requests.borrow_mut();
        let is_open = requests.get(&upstream_id).is_some_and(|it| it.origin.is_waiting());
        if is_open {
            requests.remove(&upstream_id);
            drop(requests);
            self.notify_cancelled(upstream_id, "the caller is gone");
        }
    }
}
