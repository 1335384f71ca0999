//! Decides what each message of a server means: responses go to the callers of their requests,
//! notifications and requests to the clients that they are for.

use std::rc::Rc;

use tokio::time::Instant;
use xy_http::frontend::{Route, StreamNo};
use xy_mcp::edit::Edits;
use xy_mcp::envelope::Outcome;
use xy_mcp::modern::RequestMeta;
use xy_mcp::tasks;
use xy_mcp::via::Via;
use xy_transport::large::LargeReader;
use xy_upstream::connection::{Inbound, ServerResponse, complete_request};
use xy_upstream::fault::Cause;

use super::Router;
use crate::bridge::EraTranslation;
use crate::bridge::pending_input::CallResult;
use crate::bridge::rounds::{self, Round};
use crate::call::{CallClient, ResponseKind};
use crate::ownership::NewTask;
use crate::upstream::{
    Caller, ClientResponse, ProgressRecipient, UnansweredCall, Upstream, UpstreamEvents,
};

/// The error code for a required URL elicitation.
const URL_ELICITATION_REQUIRED: i64 = -32042;

impl UpstreamEvents for Router {
    fn on_inbound(&self, by: &Rc<Upstream>, inbound: Inbound<'_>) {
        match inbound {
            Inbound::Response(response) => self.on_response(by, response),
            Inbound::Progress { token, written, line } => {
                self.on_progress(by, (token, written), line);
            }
            Inbound::Notification(message) => self.on_notification(by, &message),
            Inbound::Request { id, message } => self.on_request(by, id, &message),
        }
    }

    fn large_reader(&self) -> &LargeReader {
        &self.large
    }

    fn on_broken_framing(&self, by: &Upstream) {
        self.status.send_modify(|status| {
            status.unframed.insert(by.key().server.clone());
        });
    }

    fn daemons_before(&self, upstream: &Upstream) -> Via {
        Router::daemons_before(self, upstream)
    }

    fn on_call_end(&self, by: &Upstream) {
        if let Some(server) = self.server(by.key().server.as_str()) {
            server.release();
        }
    }

    fn on_calls_lost(&self, by: &Upstream, calls: Vec<UnansweredCall>, why: &Cause) {
        self.recover_calls(by, calls, why);
    }
}

impl Router {
    /// Passes a response to the caller of its request.
    fn on_response(&self, by: &Rc<Upstream>, response: ServerResponse<'_>) {
        let ServerResponse { upstream_id, id, outcome, line } = response;
        let Some(mut call) = by.take_call(upstream_id) else {
            return tracing::debug!(server = %by.key(), id, "response for unknown request id");
        };
        if let Some(log) = call.log.take() {
            log.answered(outcome);
        }
        match call.caller {
            caller @ Caller::Client { .. } => self.respond(by, caller, response),
            Caller::Admin(answer) => {
                by.record_call();
                complete_request(answer, line);
            }
            Caller::Cancelled { group_id, response_kind, .. } => {
                if let Outcome::Result(result) = outcome {
                    by.handle_late_response(upstream_id, (group_id, &response_kind), result);
                }
            }
            Caller::PendingInput(pending) => {
                pending.set_result(CallResult::Response(line.into()));
                by.call_is_over();
            }
            Caller::Detached => {}
        }
    }

    /// Passes a response to the client that made the call, or asks it for the input that the server
    /// requires.
    fn respond(&self, by: &Rc<Upstream>, caller: Caller, response: ServerResponse<'_>) {
        let ServerResponse { upstream_id, id, outcome, line } = response;
        let Caller::Client {
            client,
            alias,
            id: client_id,
            stream,
            token,
            response_kind,
            request_meta,
            mut translation,
        } = caller
        else {
            return;
        };
        let request = (&client, &*client_id, stream);
        if self.requests_input(
            translation.as_deref_mut(),
            request_meta.as_deref(),
            request,
            outcome,
        ) {
            return by.call_is_over();
        }
        let mut edits = Edits::of(line);
        edits.replace(id, &*client_id);
        if let Some(translation) = translation {
            let info = by.introduction().and_then(|it| it.info.clone());
            translation.edit_answer(outcome, info.as_deref(), &mut edits);
        }
        if response_kind != ResponseKind::Other || matches!(outcome, Outcome::Error(_)) {
            let token = token.as_deref();
            let (client, alias, response_kind) = (&client, &alias, &response_kind);
            let answer =
                ClientResponse { client, alias, upstream_id, token, response_kind, outcome };
            if let Some((part, new)) = self.track_response(by, &answer) {
                edits.replace(part, new);
            }
        }
        by.respond(&*client, &client_id, stream, edits);
        by.call_is_over();
    }

    /// Returns true if a response requests input of a client of the other era. Then the client gets
    /// the request, or the error that it cannot get one.
    fn requests_input(
        &self,
        translation: Option<&mut EraTranslation>,
        request_meta: Option<&RequestMeta>,
        (client, id, stream): (&Rc<dyn CallClient>, &str, StreamNo),
        outcome: Outcome<'_>,
    ) -> bool {
        if let Some(wrong) = translation
            .as_ref()
            .and_then(|translation| translation.missing_capability_error(outcome))
        {
            client.respond(id, stream, &wrong.line(id));
            return true;
        }
        match (translation, outcome) {
            (Some(EraTranslation::ToModern { original, .. }), Outcome::Result(result)) => {
                let Some((original, wanted)) = original.take().zip(rounds::input_requests(result))
                else {
                    return false;
                };
                match Round::begin(client, (id, stream), original, &wanted) {
                    Ok(round) if round.is_answered() => round.resend(&**client),
                    Ok(round) => client.await_input(id, round, stream),
                    Err(fault) => client.respond_error(id, stream, &fault),
                }
                true
            }
            (
                Some(EraTranslation::ToLegacy { binding: Some(binding), .. }),
                Outcome::Error(error),
            ) => {
                let request = (id, stream);
                request_meta.is_some_and(|request_meta| {
                    self.request_url_elicitation(client, request, request_meta, binding, error)
                })
            }
            _ => false,
        }
    }

    /// Records the tasks and elicitations of a response, or of an error. Returns a part of the
    /// response and its replacement, if one is needed.
    fn track_response<'t>(
        &self,
        by: &Rc<Upstream>,
        answer: &ClientResponse<'t>,
    ) -> Option<(&'t str, String)> {
        if by.is_modern() && answer.response_kind != &ResponseKind::Other {
            self.track_modern_task(by.key(), answer);
            return None;
        }
        let mut ownership = self.ownership.borrow_mut();
        let (key, client) = (by.key(), answer.client.number());
        match (answer.response_kind, answer.outcome) {
            (ResponseKind::NewTask, Outcome::Result(result)) => {
                let (id, life) = tasks::created_legacy(result)?;
                let token = answer.token.map(|token| (answer.upstream_id, token.into()));
                let alias = &answer.alias.name;
                ownership.add_task(
                    key,
                    client,
                    NewTask { id: &id, alias, life, token },
                    Instant::now(),
                );
            }
            (ResponseKind::Task, Outcome::Result(result)) => {
                if let Some((id, true)) = tasks::status(result) {
                    ownership.end_task(key, &id);
                }
            }
            // The task ends with its result, successful or not.
            (ResponseKind::TaskResult(id), _) => ownership.end_task(key, id),
            (ResponseKind::TaskList, Outcome::Result(result)) if !key.holder.is_client() => {
                return tasks::filter_list(result, |id| {
                    ownership.owner_of_task(key, id) == Some(client)
                });
            }
            _ => {}
        }
        if let Outcome::Error(error) = answer.outcome {
            for id in elicitations_in(error) {
                ownership.add_elicitation(key, client, &id);
            }
        }
        None
    }

    /// Passes progress to the client that made the call. `written` is the token in `line`.
    fn on_progress(&self, by: &Rc<Upstream>, (token, written): (u64, &str), line: &[u8]) {
        match by.progress_recipient(token) {
            ProgressRecipient::Client(client, stream, client_token) => {
                let mut edits = Edits::of(line);
                edits.replace(written, &*client_token);
                client.send(&edits.to_vec(), Route::Related(stream));
            }
            ProgressRecipient::Nobody => {}
            ProgressRecipient::Unknown => self.on_unrelated_progress(by, token, written, line),
        }
    }
}

/// Returns the elicitations that an error requires to be completed.
fn elicitations_in(error: &str) -> Vec<String> {
    #[derive(serde::Deserialize)]
    struct ErrorObject {
        #[serde(default)]
        code: i64,
        #[serde(default)]
        data: serde_json::Value,
    }
    let Ok(ErrorObject { code: URL_ELICITATION_REQUIRED, data }) = serde_json::from_str(error)
    else {
        return Vec::new();
    };
    let all = data["elicitations"].as_array().into_iter().flatten();
    all.filter_map(|it| it["elicitationId"].as_str()).map(str::to_owned).collect()
}
