//! Inbound dispatch of a client's messages and batches.

use std::rc::Rc;

use xy_http::frontend::{Disposition, Lifetime, MAX_BATCH, Route, StreamNo};
use xy_mcp::envelope::{Malformed, Message};
use xy_mcp::era::Era;
use xy_mcp::params::{MAX_ID_BYTES, Params};
use xy_mcp::{modern, reply, revision, via};
use xy_transport::message_text::MessageText;

use super::request::Request;
use super::{Client, MAX_OPEN_REQUESTS, RequestPhase};
use crate::call::{CallClient, RetryState};

impl Client {
    /// Handles one message or a batch.
    pub(super) fn handle_text(&self, text: MessageText<'_>, stream: StreamNo) -> Disposition {
        let _entered = self.span.enter();
        let accepted = match text.message() {
            Ok(Message::Request { id, method, params }) => {
                let params = (params, text.checked_params(params));
                let accepted =
                    self.handle_request(text, id, &method, params, stream, RetryState::default());
                if let Disposition::Rejected(line) = &accepted {
                    self.log_refused(&method, line);
                }
                return accepted;
            }
            Ok(Message::Notification { method, params }) => {
                self.handle_notification(&method, params, text);
                Disposition::NoResponse
            }
            Ok(Message::Response { id, outcome }) => {
                self.handle_response(id, outcome, text.bytes());
                Disposition::NoResponse
            }
            Err(Malformed::Batch) if self.has_batches() => self.handle_batch(text, stream),
            Err(problem) => {
                let id = match &problem {
                    Malformed::NotAMessage { id: Some(id), .. } => id.as_str(),
                    _ => "null",
                };
                Disposition::Rejected(reply::error(id, problem.code(), &problem.to_string()))
            }
        };
        if let Disposition::Rejected(line) = &accepted {
            self.log_refused("", line);
        }
        accepted
    }

    fn has_batches(&self) -> bool {
        self.handshake.borrow().as_ref().is_some_and(|it| revision::has_batches(it.version))
    }

    /// Handles a batch, which exists in one protocol revision. Each request is answered separately.
    fn handle_batch(&self, text: MessageText<'_>, stream: StreamNo) -> Disposition {
        let parts = text.batch().unwrap_or_default();
        if parts.is_empty() || parts.len() > MAX_BATCH {
            let problem = format!("a batch holds 1 to {MAX_BATCH} messages");
            return Disposition::Rejected(reply::error("null", -32600, &problem));
        }
        let answers = parts.iter().filter(|part| needs_response(**part)).count();
        // A shared stream has no last response.
        if answers > 1 && stream != 0 {
            self.batches.borrow_mut().insert(stream, answers);
        }
        for part in parts {
            let accepted = match part.message() {
                Err(Malformed::Batch) => {
                    let line = reply::error("null", -32600, "a batch holds no batches");
                    self.log_refused("", &line);
                    Disposition::Rejected(line)
                }
                _ => self.handle_text(part, stream),
            };
            if let Disposition::Rejected(error) = accepted {
                self.send_response(&error, stream);
            }
        }
        if answers > 0 { Disposition::ResponsePending } else { Disposition::NoResponse }
    }

    pub(super) fn handle_request(
        &self,
        text: MessageText<'_>,
        id: &str,
        method: &str,
        (params_text, params): (Option<&str>, Result<Params<'_>, String>),
        stream: StreamNo,
        retry_state: RetryState,
    ) -> Disposition {
        let refuse = |code, problem: &str| Disposition::Rejected(reply::error(id, code, problem));
        if self.open.borrow().contains_key(id) {
            return refuse(-32600, "a request with this id is still open");
        }
        if id.len() > MAX_ID_BYTES {
            return Disposition::Rejected(reply::error(
                "null",
                -32600,
                "the id of this request is too long",
            ));
        }
        if self.open.borrow().len() >= MAX_OPEN_REQUESTS {
            self.limit_hit("open requests of one client");
            return refuse(
                -32008,
                &format!("too many open requests: the limit is {MAX_OPEN_REQUESTS}"),
            );
        }
        let params = match params {
            Ok(params) => params,
            Err(problem) => return refuse(-32602, &format!("`params` cannot be read: {problem}")),
        };
        let is_legacy_only = self.entry.lifetime == Lifetime::LegacyOnly;
        if is_legacy_only && method == modern::DISCOVER {
            // The client falls back to `initialize`.
            return refuse(-32601, "HTTP with SSE supports only revisions with sessions");
        }
        let request_meta = match modern::read(method, params.meta(), !self.has_session()) {
            _ if is_legacy_only => None,
            Ok(request_meta) => request_meta.map(Rc::new),
            Err(wrong) => return Disposition::Rejected(wrong.line(id)),
        };
        if let Some(via) = via::of_request(params.meta()) {
            self.via.replace(Some(via));
        }
        if self.is_in_loop() {
            let line = via::refusal().line(id);
            self.log_refused(method, &line);
            self.send_response(&line, stream);
            return Disposition::ResponsePending;
        }
        if let Some(request_meta) = request_meta.as_ref().filter(|_| !self.has_session()) {
            self.router.join_group(self, request_meta.info.as_deref());
        }
        let is_greeted = self.handshake.borrow().is_some();
        if request_meta.is_none() && !is_greeted && !matches!(method, "initialize" | "ping") {
            return refuse(-32600, "the first request has to be `initialize`");
        }
        if is_greeted && method == "initialize" {
            return refuse(-32600, "the client is already initialized");
        }
        self.era.set(if request_meta.is_some() { Era::Modern } else { Era::Legacy });
        if request_meta.is_some() {
            self.request_meta.replace(request_meta.clone());
        }
        self.request(&Request {
            text,
            id,
            method,
            params,
            params_text,
            request_meta,
            stream,
            retry_state,
        });
        Disposition::ResponsePending
    }

    fn handle_notification(&self, method: &str, params: Option<&str>, text: MessageText<'_>) {
        match method {
            "notifications/cancelled" => {
                if let Some(id) = text.params(params).request_id() {
                    self.cancel(id, text.bytes());
                }
            }
            "notifications/initialized" => {}
            // Progress on a server request.
            "notifications/progress" => self.forward_progress(&text.params(params), text.bytes()),
            "notifications/tasks/status" => {
                self.forward_task_status(&text.params(params), text.bytes());
            }
            _ => self.forward_notification(method, text.bytes()),
        }
    }

    /// Cancels a request for its client; `text` is the client's notification.
    fn cancel(&self, id: &str, text: &[u8]) {
        if !self.open.borrow().contains_key(id) {
            return;
        }
        self.log_ended(id, "cancelled", 0);
        let Some(request) = self.open.borrow_mut().remove(id) else { return };
        match request.phase {
            RequestPhase::Sent { upstream, upstream_id } => {
                upstream.cancel_as(upstream_id, text, id);
            }
            RequestPhase::Listening => self.end_listen(id),
            open => Self::abandon(open, ""),
        }
        if self.count_response(request.stream) {
            self.send(&[], Route::Cancelled(request.stream));
        }
    }

    pub(super) fn abandon(open: RequestPhase, reason: &str) {
        match open {
            RequestPhase::Sent { upstream, upstream_id } => upstream.cancel(upstream_id, reason),
            RequestPhase::Queued { server, ticket } => {
                drop(server.take_waiting(ticket));
                server.release(); // A queued call may have waited behind it.
            }
            RequestPhase::Local(task) => task.abort(),
            RequestPhase::AwaitingInput(receiver) => receiver.end(),
            RequestPhase::Listening => {}
        }
    }
}

/// Returns true if a message needs a response, which may be an error.
fn needs_response(text: MessageText<'_>) -> bool {
    !matches!(text.message(), Ok(Message::Notification { .. } | Message::Response { .. }))
}
