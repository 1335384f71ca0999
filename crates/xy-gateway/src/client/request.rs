//! One request of a client, parsed as far as the gateway reads it.

use std::rc::Rc;

use xy_http::frontend::StreamNo;
use xy_mcp::modern::RequestMeta;
use xy_mcp::params::Params;
use xy_transport::message_text::MessageText;

use crate::call::RetryState;

/// One parsed request.
pub(super) struct Request<'t> {
    pub(super) text: MessageText<'t>,
    pub(super) id: &'t str,
    pub(super) method: &'t str,
    pub(super) params: Params<'t>,
    /// The text of `params`.
    pub(super) params_text: Option<&'t str>,
    /// The client metadata of a modern request.
    #[expect(clippy::struct_field_names, reason = "the type has this name")]
    pub(super) request_meta: Option<Rc<RequestMeta>>,
    pub(super) stream: StreamNo,
    /// The retry history.
    pub(super) retry_state: RetryState,
}
