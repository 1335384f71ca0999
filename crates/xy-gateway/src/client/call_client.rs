//! The client as the modules see it that carry its calls.

use std::rc::Rc;

use xy_catalog::catalog::ServerCatalog;
use xy_http::HttpStatus as _;
use xy_http::frontend::{Entry, Lifetime, Route, StreamNo};
use xy_mcp::capabilities::{Capabilities, Refusal, RequiredCapabilities};
use xy_mcp::era::Era;
use xy_mcp::level::Level;
use xy_mcp::modern::{self, RequestMeta};
use xy_mcp::{reply, revision};
use xy_protocol::error::CallError;
use xy_protocol::server::ServerName;
use xy_transport::budget::TokenReservation;
use xy_transport::message_text::MessageText;
use xy_transport::share::TokenUse;
use xy_upstream::connection::Connection;

use super::{Client, RequestPhase};
use crate::call::{AnswerReceiver, CallClient, Principal, RetryState};

impl CallClient for Client {
    fn number(&self) -> u64 {
        self.number
    }

    fn token(&self) -> TokenUse {
        self.token
    }

    fn limit_hit(&self, limit: &'static str) {
        self.router.limit_hit(limit, Some(self.token.id));
    }

    fn entry(&self) -> &Entry {
        &self.entry
    }

    fn remember(&self, server: &ServerName) {
        if let Some(server) = self.router.server(server.as_str()) {
            self.router.remember(&server);
        }
    }

    fn accepts_server_requests(&self) -> bool {
        let declared = self.declared_capabilities();
        let capabilities = Capabilities::read(declared.as_deref().unwrap_or("{}"));
        ["elicitation", "sampling", "roots"].iter().any(|it| capabilities.has(&[it]))
    }

    fn era(&self) -> Era {
        self.era.get()
    }

    fn is_modern(&self) -> bool {
        self.request_meta.borrow().is_some()
    }

    fn has_session(&self) -> bool {
        self.entry.lifetime != Lifetime::Request
    }

    fn principal(&self) -> Principal {
        match self.entry.lifetime {
            Lifetime::Session | Lifetime::LegacyOnly => Principal::Client(self.number),
            Lifetime::Request => Principal::Token(self.entry.principal),
        }
    }

    fn group_id(&self) -> u64 {
        self.group_id.get()
    }

    fn modern_meta(&self) -> RequestMeta {
        let handshake = self.handshake.borrow();
        let (capabilities, info) = match &*handshake {
            Some(it) => (modern::capabilities_from_legacy(&it.capabilities), it.info.clone()),
            None => ("{}".to_owned(), None),
        };
        let level = Some(self.level.get().unwrap_or(Level::DEFAULT));
        RequestMeta { capabilities: capabilities.into(), info, level }
    }

    fn allows(&self, method: &str, wants: &RequiredCapabilities<'_>) -> Result<(), Refusal> {
        let is_old =
            self.handshake.borrow().as_ref().is_none_or(|it| it.version != revision::LATEST);
        self.capabilities().allow(method, wants, is_old)
    }

    fn byte_budget(&self) -> TokenReservation {
        self.router.stored_requests.reserve(self.token)
    }

    fn respond(&self, id: &str, stream: StreamNo, line: &[u8]) {
        self.open.borrow_mut().remove(id);
        self.send_response(line, stream);
    }

    fn has_open_request(&self, id: &str) -> bool {
        !self.is_closed.get() && self.open.borrow().contains_key(id)
    }

    fn forget_request(&self, id: &str) {
        self.open.borrow_mut().remove(id);
    }

    fn respond_error(&self, id: &str, stream: StreamNo, fault: &CallError) {
        self.log_error(id, fault);
        if !self.is_closed.get() {
            self.responder.report_error(fault, stream);
        }
        self.respond(id, stream, &reply::fault(id, fault));
    }

    fn send(&self, message: &[u8], to: Route) {
        let is_asked_for = to != Route::Broadcast || self.handshake.borrow().is_some();
        if is_asked_for && !self.is_closed.get() {
            self.responder.put(message, to);
        }
    }

    fn span(&self) -> &tracing::Span {
        &self.span
    }

    fn name(&self) -> Option<String> {
        #[derive(serde::Deserialize)]
        struct Info {
            name: String,
        }
        let handshake = self.handshake.borrow().as_ref().and_then(|it| it.info.clone());
        let info = handshake
            .or_else(|| self.request_meta.borrow().as_ref().and_then(|it| it.info.clone()))?;
        serde_json::from_str::<Info>(&info).ok().map(|info| info.name)
    }

    fn visible(&self, server: &ServerName, known: Rc<ServerCatalog>) -> Option<Rc<ServerCatalog>> {
        if self.is_hidden_by_loop(server.as_str()) {
            return None;
        }
        self.visibility.borrow().visible(server, known)
    }

    fn redispatch_with(
        &self,
        id: &str,
        text: MessageText<'_>,
        stream: StreamNo,
        retry_state: RetryState,
    ) {
        Self::redispatch_with(self, id, text, stream, retry_state);
    }

    fn ask_for_input(
        &self,
        receiver: Rc<dyn AnswerReceiver>,
        key: &str,
        question: (&str, &str),
        to: Route,
    ) -> Result<(), CallError> {
        Self::ask_for_input(self, receiver, key, question, to)
    }

    fn await_input(&self, id: &str, receiver: Rc<dyn AnswerReceiver>, stream: StreamNo) {
        self.set_phase(id, RequestPhase::AwaitingInput(receiver), stream);
    }

    fn cancel_input(&self, receiver: &dyn AnswerReceiver) {
        Self::cancel_input(self, receiver);
    }

    fn has_question_from(&self, server: &Connection) -> bool {
        Self::has_question_from(self, server)
    }
}
