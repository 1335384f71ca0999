//! Resumption of calls that wait for input of a modern client.

use std::rc::Rc;

use xy_mcp::reply;
use xy_protocol::error::CallError;

use super::dispatch::Outcome;
use super::request::Request;
use super::{Client, RequestPhase};
use crate::bridge::pending_input::{
    self, NewPendingInput, PendingEntry, PendingInput, ReplyTo, ResumeAction,
};
use crate::bridge::{self, StateError, rounds};
use crate::call::ResponseKind;
use crate::upstream::Caller;

impl Client {
    /// Resumes the call that `state` stands for. Returns `None` if xy did not issue the state,
    /// which may then be the server's own.
    pub(super) fn resume(
        &self,
        request: &Request<'_>,
        state: &str,
    ) -> Result<Option<Outcome>, CallError> {
        let binding = bridge::binding(&self.entry, request.method, request.params_text);
        let number = match self.router.pending_inputs.verify(state, &binding) {
            Ok(number) => number,
            Err(StateError::Unknown) => return Ok(None),
            Err(error) => return Err(error.call_error()),
        };
        match self.router.pending_inputs.take(number)? {
            PendingEntry::Call(pending) => self.resume_call(request, &pending).map(Some),
            PendingEntry::Again { .. } => {
                let text = rounds::without_round_params(request.text.bytes())
                    .ok_or_else(|| reply::invalid("the call cannot be repeated"))?;
                self.redispatch(request.id, &text, request.stream);
                Ok(Some(Outcome::Done))
            }
        }
    }

    fn resume_call(
        &self,
        request: &Request<'_>,
        pending: &Rc<PendingInput>,
    ) -> Result<Outcome, CallError> {
        let (responses, next) = pending.resume(request.params.answers());
        let upstream = self.router.upstream_of(pending);
        if let Some(upstream) = &upstream {
            for line in responses {
                upstream.pass(&line);
            }
        }
        let upstream = match (next, upstream) {
            (ResumeAction::Deliver(result), _) => {
                pending.end();
                return pending.answer(result, request.id).map(Outcome::Response);
            }
            (_, None) => return Err(pending_input::call_gone()),
            (ResumeAction::Continue, Some(upstream)) => {
                upstream.attach(pending.upstream_id, self.caller(request, pending));
                upstream
            }
            (ResumeAction::AskMore, Some(upstream)) => {
                self.await_more_input(request, pending)?;
                upstream
            }
        };
        Ok(Outcome::Pending(RequestPhase::Sent { upstream, upstream_id: pending.upstream_id }))
    }

    fn caller(&self, request: &Request<'_>, pending: &PendingInput) -> Caller {
        Caller::Client {
            client: self.me(),
            alias: pending.alias.clone(),
            id: request.id.into(),
            stream: request.stream,
            token: request.params.own_token().map(Into::into),
            response_kind: ResponseKind::Other,
            request_meta: request.request_meta.clone(),
            translation: Some(Box::new(pending.translation())),
        }
    }

    fn await_more_input(
        &self,
        request: &Request<'_>,
        pending: &Rc<PendingInput>,
    ) -> Result<(), CallError> {
        let reply_to = ReplyTo { client: self.me(), id: request.id.into(), stream: request.stream };
        let request_meta =
            request.request_meta.clone().unwrap_or_else(|| pending.request_meta.clone());
        let next = self.router.pending_inputs.insert(NewPendingInput {
            reply_to,
            request_meta,
            method: pending.method.clone(),
            binding: pending.binding,
            connection: pending.connection.clone(),
            alias: pending.alias.clone(),
            upstream_id: pending.upstream_id,
            info: pending.info.clone(),
            missing: pending.missing.get(),
        });
        let next = next.ok_or_else(|| self.router.pending_inputs.full_error())?;
        pending.move_questions_to(&next);
        if let Some(upstream) = self.router.upstream_of(pending) {
            upstream.attach(pending.upstream_id, Caller::PendingInput(next.clone()));
        }
        self.router.flush_soon(next);
        Ok(())
    }
}
