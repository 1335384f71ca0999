//! The client of a call, as far as the modules see it that carry the call.

use std::rc::Rc;

use xy_catalog::catalog::ServerCatalog;
use xy_http::frontend::{Entry, Route, StreamNo};
use xy_mcp::capabilities::{Refusal, RequiredCapabilities};
use xy_mcp::envelope::Outcome;
use xy_mcp::era::Era;
use xy_mcp::modern::RequestMeta;
use xy_protocol::error::CallError;
use xy_protocol::server::ServerName;
use xy_transport::budget::TokenReservation;
use xy_transport::message_text::MessageText;
use xy_transport::share::TokenUse;
use xy_upstream::connection::Connection;
use xy_upstream::fault::ServerFault;

use super::RetryState;
use crate::limit_hits::limit_of;

/// The client of a call. What it sees of the servers and how it dispatches is decided above.
pub(crate) trait CallClient {
    /// Returns the number of the client, which no other client has or had.
    fn number(&self) -> u64;
    /// Returns the name from the client's `clientInfo`.
    fn name(&self) -> Option<String>;
    /// Returns the endpoint and rights of the client.
    fn entry(&self) -> &Entry;
    /// Returns the token that the client authenticated with.
    fn token(&self) -> TokenUse;
    /// Returns the identity for tasks and pending calls.
    fn principal(&self) -> Principal;
    /// Returns the group whose instance the client uses on isolated servers.
    fn group_id(&self) -> u64;
    /// Returns true if the client lasts longer than one request.
    fn has_session(&self) -> bool;
    /// Returns the span of the session, for log lines at level `debug`.
    fn span(&self) -> &tracing::Span;

    /// Returns the era of the latest request.
    fn era(&self) -> Era;
    /// Returns true if the client has sent a modern request.
    fn is_modern(&self) -> bool;
    /// Returns the metadata that a modern server receives about this legacy client.
    fn modern_meta(&self) -> RequestMeta;
    /// Returns true if the client has declared a capability for requests from servers.
    fn accepts_server_requests(&self) -> bool;
    /// Checks that a server may send this request to the client.
    fn allows(&self, method: &str, wants: &RequiredCapabilities<'_>) -> Result<(), Refusal>;
    /// Returns the part of a server's lists that the client sees.
    fn visible(&self, server: &ServerName, known: Rc<ServerCatalog>) -> Option<Rc<ServerCatalog>>;

    /// Completes request `id` with this response line.
    fn respond(&self, id: &str, stream: StreamNo, line: &[u8]);
    /// Completes request `id` with an error.
    fn respond_error(&self, id: &str, stream: StreamNo, fault: &CallError);
    /// Sends a message to the client.
    fn send(&self, message: &[u8], to: Route);
    /// Returns true if request `id` still needs a response.
    fn has_open_request(&self, id: &str) -> bool;
    /// Removes request `id` without a response.
    fn forget_request(&self, id: &str);
    /// Dispatches a request again with its retry history.
    fn redispatch_with(
        &self,
        id: &str,
        text: MessageText<'_>,
        stream: StreamNo,
        retry_state: RetryState,
    );

    /// Asks the client for input. `receiver` gets the answer, under this key.
    fn ask_for_input(
        &self,
        receiver: Rc<dyn AnswerReceiver>,
        key: &str,
        method_and_params: (&str, &str),
        to: Route,
    ) -> Result<(), CallError>;
    /// Marks request `id` as waiting for the answers that this receiver gets.
    fn await_input(&self, id: &str, receiver: Rc<dyn AnswerReceiver>, stream: StreamNo);
    /// Cancels the input requests whose answers this receiver gets.
    fn cancel_input(&self, receiver: &dyn AnswerReceiver);
    /// Returns true if a request of this server is open.
    fn has_question_from(&self, server: &Connection) -> bool;

    /// Returns a byte counter for stored requests, within the client's share of a limit.
    fn byte_budget(&self) -> TokenReservation;
    /// Records that `limit` rejected something of this client.
    fn limit_hit(&self, limit: &'static str);
    /// Records the limit that this fault reports to the client, if it reports one.
    fn record_limit(&self, fault: &ServerFault) {
        if let Some(limit) = limit_of(fault) {
            self.limit_hit(limit);
        }
    }
    /// Writes the manifest of a server.
    fn remember(&self, server: &ServerName);
}

/// Receiver of a client's answers.
pub(crate) trait AnswerReceiver {
    /// Accepts the answer to the question with this key.
    fn receive_answer(self: Rc<Self>, key: &str, outcome: Outcome<'_>);
    /// Accepts no more answers, and cancels the questions that are still open.
    fn end(self: Rc<Self>);
}

/// The holder of tasks and pending calls, as far as the listener can tell clients apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Principal {
    /// A single client.
    Client(u64),
    /// All one-request clients with this token.
    Token(u64),
}
