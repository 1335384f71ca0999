//! What a client says: one message or a batch of them.

use std::rc::Rc;

use xy_mcp::envelope::{Malformed, Message};

use super::{Client, LONGEST_ID, MOST_IN_BATCH, MOST_OPEN, Open, dispatch};
use crate::backend::RetryState;
use crate::era::{self, Era};
use crate::frontend::{Accepted, Lifetime, Route, StreamNo};
use crate::message_text::MessageText;
use crate::modern;
use crate::params::Params;
use crate::reply;
use crate::via;

impl Client {
    /// Handles one message or a batch.
    pub(super) fn hear_text(&self, text: MessageText<'_>, stream: StreamNo) -> Accepted {
        let heard = match text.message() {
            Ok(Message::Request { id, method, params }) => {
                let params = (params, text.checked_params(params));
                let heard =
                    self.hear_request(text, id, &method, params, stream, RetryState::default());
                if let Accepted::Refused(line) = &heard {
                    self.log_refused(&method, line);
                }
                return heard;
            }
            Ok(Message::Notification { method, params }) => {
                self.hear_notification(&method, params, text);
                Accepted::Taken
            }
            Ok(Message::Answer { id, outcome }) => {
                self.hear_answer(id, outcome, text.bytes());
                Accepted::Taken
            }
            Err(Malformed::Batch) if self.has_batches() => self.hear_batch(text, stream),
            Err(problem) => {
                let id = match &problem {
                    Malformed::NotAMessage { id: Some(id), .. } => id.as_str(),
                    _ => "null",
                };
                Accepted::Refused(reply::error(id, problem.code(), &problem.to_string()))
            }
        };
        if let Accepted::Refused(line) = &heard {
            self.log_refused("", line);
        }
        heard
    }

    fn has_batches(&self) -> bool {
        self.greeted.borrow().as_ref().is_some_and(|it| era::has_batches(it.version))
    }

    /// Handles several messages at once, which one revision has. Each is answered on its own.
    fn hear_batch(&self, text: MessageText<'_>, stream: StreamNo) -> Accepted {
        let parts = text.batch().unwrap_or_default();
        if parts.is_empty() || parts.len() > MOST_IN_BATCH {
            let problem = format!("a batch holds 1 to {MOST_IN_BATCH} messages");
            return Accepted::Refused(reply::error("null", -32600, &problem));
        }
        let answers = parts.iter().filter(|part| wants_answer(**part)).count();
        // Where everything comes in on one stream, that has no last answer.
        if answers > 1 && stream != 0 {
            self.batches.borrow_mut().insert(stream, answers);
        }
        for part in parts {
            let heard = match part.message() {
                Err(Malformed::Batch) => {
                    let line = reply::error("null", -32600, "a batch holds no batches");
                    self.log_refused("", &line);
                    Accepted::Refused(line)
                }
                _ => self.hear_text(part, stream),
            };
            if let Accepted::Refused(error) = heard {
                self.put_answer(&error, stream);
            }
        }
        if answers > 0 { Accepted::Asked } else { Accepted::Taken }
    }

    pub(super) fn hear_request(
        &self,
        text: MessageText<'_>,
        id: &str,
        method: &str,
        (params_text, params): (Option<&str>, Result<Params<'_>, String>),
        stream: StreamNo,
        past: RetryState,
    ) -> Accepted {
        let refuse = |code, problem: &str| Accepted::Refused(reply::error(id, code, problem));
        if self.open.borrow().contains_key(id) {
            return refuse(-32600, "a request with this id is still open");
        }
        if id.len() > LONGEST_ID {
            return Accepted::Refused(reply::error(
                "null",
                -32600,
                "the id of this request is too long",
            ));
        }
        if self.open.borrow().len() >= MOST_OPEN {
            return refuse(
                -32008,
                &format!("{MOST_OPEN} requests are open, which is the most there may be"),
            );
        }
        let params = match params {
            Ok(params) => params,
            Err(problem) => return refuse(-32602, &format!("`params` cannot be read: {problem}")),
        };
        let is_legacy_only = self.entry.lifetime == Lifetime::LegacyOnly;
        if is_legacy_only && method == modern::DISCOVER {
            // Its client begins with `initialize` then.
            return refuse(-32601, "HTTP with SSE has no revision without sessions");
        }
        let manner = match modern::read(method, params.meta(), !self.stays()) {
            _ if is_legacy_only => None,
            Ok(manner) => manner.map(Rc::new),
            Err(wrong) => return Accepted::Refused(wrong.line(id)),
        };
        if let Some(via) = via::of_request(params.meta()) {
            self.via.replace(Some(via));
        }
        if self.is_in_loop() {
            let line = via::refusal().line(id);
            self.log_refused(method, &line);
            self.put_answer(&line, stream);
            return Accepted::Asked;
        }
        if let Some(manner) = manner.as_ref().filter(|_| !self.stays()) {
            self.router.group_id(self, manner.info.as_deref());
        }
        let is_greeted = self.greeted.borrow().is_some();
        if manner.is_none() && !is_greeted && !matches!(method, "initialize" | "ping") {
            return refuse(-32600, "the first request has to be `initialize`");
        }
        if is_greeted && method == "initialize" {
            return refuse(-32600, "this client has been introduced already");
        }
        self.era.set(if manner.is_some() { Era::Modern } else { Era::Legacy });
        if manner.is_some() {
            self.manner.replace(manner.clone());
        }
        self.request(&dispatch::Request {
            text,
            id,
            method,
            params,
            params_text,
            manner,
            stream,
            past,
        });
        Accepted::Asked
    }

    fn hear_notification(&self, method: &str, params: Option<&str>, text: MessageText<'_>) {
        match method {
            "notifications/cancelled" => {
                if let Some(id) = text.params(params).request_id() {
                    self.cancel(id, text.bytes());
                }
            }
            "notifications/initialized" => {}
            // Of what a server has asked the client.
            "notifications/progress" => self.progressed(&text.params(params), text.bytes()),
            "notifications/tasks/status" => {
                self.task_changed(&text.params(params), text.bytes());
            }
            _ => self.pass_notification(method, text.bytes()),
        }
    }

    /// It does not want to know any more, and says so like this.
    fn cancel(&self, id: &str, text: &[u8]) {
        if !self.open.borrow().contains_key(id) {
            return;
        }
        self.log_ended(id, "cancelled", 0);
        let Some(request) = self.open.borrow_mut().remove(id) else { return };
        match request.at {
            Open::Sent { upstream, ours } => upstream.cancel_as(ours, text, id),
            Open::Listening => self.listens_no_more(id),
            open => Self::give_up(open, ""),
        }
        if self.is_last_of(request.stream) {
            self.tell(&[], Route::Cancelled(request.stream));
        }
    }

    pub(super) fn give_up(open: Open, reason: &str) {
        match open {
            Open::Sent { upstream, ours } => upstream.cancel(ours, reason),
            Open::Waiting { server, ticket } => {
                drop(server.take_waiting(ticket));
                server.release(); // Somebody may have waited behind it.
            }
            Open::Here(task) => task.abort(),
            Open::Asked(round) => round.end(),
            Open::Listening => {}
        }
    }
}

/// Returns true if a message is answered, with an error at least.
fn wants_answer(text: MessageText<'_>) -> bool {
    !matches!(text.message(), Ok(Message::Notification { .. } | Message::Answer { .. }))
}
