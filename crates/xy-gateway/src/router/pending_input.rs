//! Parking of modern clients' calls in which legacy servers request input.

use std::rc::Rc;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{sleep, sleep_until};
use xy_http::frontend::StreamNo;
use xy_mcp::capabilities::{Capabilities, RequiredCapabilities};
use xy_mcp::modern::{MISSING_CAPABILITY, RequestError, RequestMeta};
use xy_mcp::reply;

use super::{RoutedClient, Router};
use crate::bridge::pending_input::{self, NewPendingInput, PendingEntry, PendingInput, ReplyTo};
use crate::bridge::{EraTranslation, StateBinding};
use crate::call::CallClient;
use crate::limit_hits;
use crate::upstream::{Caller, Upstream, UpstreamEvents};

/// The reason why a server's request is rejected: a code and a message.
type Refusal = (i64, &'static str);

/// The error code for a required URL elicitation.
const URL_ELICITATION_REQUIRED: i64 = -32042;

impl Router {
    /// Parks a modern client's call, in which a legacy server requests input.
    pub(super) fn park(
        &self,
        by: &Rc<Upstream>,
        upstream_id: u64,
        (id, method, params): (&str, &str, Option<&str>),
    ) -> Result<(), Refusal> {
        let not_so = (-32603, "the client cannot be asked anything during this request");
        let Some(Caller::Client {
            client,
            alias,
            id: client_id,
            stream,
            token,
            response_kind,
            request_meta,
            translation,
        }) = by.detach_call(upstream_id)
        else {
            return Err(not_so);
        };
        let (Some(request_meta), Some(translation)) = (request_meta, translation) else {
            return Err(not_so);
        };
        let EraTranslation::ToLegacy { method: call, binding: Some(binding), missing } =
            *translation
        else {
            return Err(not_so);
        };
        let info = by.introduction().and_then(|it| it.info.clone());
        let reply_to = ReplyTo { client: client.clone(), id: client_id.clone(), stream };
        let new = NewPendingInput {
            reply_to,
            request_meta: request_meta.clone(),
            method: call.clone(),
            binding,
            connection: Rc::downgrade(by),
            alias: alias.clone(),
            upstream_id,
            info,
            missing,
        };
        let pending = self.pending_inputs.insert(new);
        let pending = pending.filter(|pending| {
            let was_added = pending.ask(id, method, params);
            if !was_added {
                self.pending_inputs.forget(pending.number);
            }
            was_added
        });
        let Some(pending) = pending else {
            let translation =
                EraTranslation::ToLegacy { method: call, binding: Some(binding), missing };
            let translation = Some(Box::new(translation));
            let request_meta = Some(request_meta);
            let id = client_id;
            let back = Caller::Client {
                client,
                alias,
                id,
                stream,
                token,
                response_kind,
                request_meta,
                translation,
            };
            by.attach(upstream_id, back);
            return Err((-32603, "too many calls wait for their clients"));
        };
        by.attach(upstream_id, Caller::PendingInput(pending.clone()));
        self.flush_soon(pending);
        Ok(())
    }

    /// Sends the collected requests for input to the client after a short delay.
    pub(crate) fn flush_soon(&self, pending: Rc<PendingInput>) {
        let router = self.me();
        tokio::task::spawn_local(async move {
            sleep(pending_input::QUESTION_BATCH_DELAY).await;
            router.flush(&pending);
            sleep(pending_input::MAX_SLOT_HOLD).await;
            if let Some(upstream) = router.upstream_of(&pending) {
                router.on_call_end(&upstream); // It no longer delays the client's other calls.
            }
        });
    }

    fn flush(&self, pending: &Rc<PendingInput>) {
        let Some((ReplyTo { client, id, stream }, result)) = pending.flush() else { return };
        if let Some(result) = result {
            self.pending_inputs.forget(pending.number);
            pending.end();
            return match pending.answer(result, &id) {
                Ok(line) => client.respond(&id, stream, &line),
                Err(fault) => client.respond_error(&id, stream, &fault),
            };
        }
        if !self.upstream_of(pending).is_some_and(|upstream| upstream.awaits_input(pending)) {
            // The call was cancelled meanwhile.
            self.pending_inputs.forget(pending.number);
            pending.end();
            return;
        }
        let state = self.pending_inputs.state(pending.number, &pending.binding);
        client.respond(&id, stream, &reply::result(&id, &pending.input_required_result(&state)));
        self.start_expiry_task();
        if let Some(upstream) = self.upstream_of(pending) {
            self.on_call_end(&upstream); // The call may no longer delay the client's other calls.
        }
    }

    /// Starts the task that abandons expired pending inputs, unless it runs.
    fn start_expiry_task(&self) {
        if self.is_sweeping.replace(true) {
            return;
        }
        let router = self.me();
        tokio::task::spawn_local(async move {
            loop {
                let (expired, next) = router.pending_inputs.take_expired();
                for entry in expired {
                    if let PendingEntry::Call(pending) = entry {
                        router.abandon(&pending);
                    }
                }
                let Some(next) = next else { return router.is_sweeping.set(false) };
                sleep_until(next).await;
            }
        });
    }

    /// Cancels a call at its server, as the client did not come back.
    fn abandon(&self, pending: &Rc<PendingInput>) {
        if pending.end()
            && let Some(upstream) = self.upstream_of(pending)
            && upstream.awaits_input(pending)
        {
            upstream.cancel(pending.upstream_id, "its client did not come back");
        }
    }

    /// Returns the upstream on which a pending input waits, if it still exists.
    pub(crate) fn upstream_of(&self, pending: &PendingInput) -> Option<Rc<Upstream>> {
        let connection = pending.connection.upgrade()?;
        let server = self.server(connection.key().server.as_str())?;
        server.upstream_over(&connection)
    }

    /// Abandons the calls that only this client, now closed, could resume.
    pub(super) fn abandon_pending_inputs(&self, client: &dyn RoutedClient) {
        for pending in self.pending_inputs.tied_to(client.number()) {
            self.pending_inputs.forget(pending.number);
            self.abandon(&pending);
        }
    }

    /// Asks a modern client for the URL elicitations that a server requires before a request.
    /// Returns false if `error` requires none.
    pub(super) fn request_url_elicitation(
        &self,
        client: &Rc<dyn CallClient>,
        (id, stream): (&str, StreamNo),
        request_meta: &RequestMeta,
        binding: &StateBinding,
        error: &str,
    ) -> bool {
        let Some(wanted) = url_elicitations(error) else { return false };
        let wants = RequiredCapabilities::read(Some(r#"{"mode":"url"}"#));
        let capabilities = Capabilities::read(&request_meta.capabilities);
        if capabilities.allow("elicitation/create", &wants, false).is_err() {
            let message = "the user has to open a URL first, which this client does not support";
            let data = r#"{"requiredCapabilities":{"elicitation":{"url":{}}}}"#.to_owned();
            let wrong =
                RequestError { data: Some(data), ..RequestError::new(MISSING_CAPABILITY, message) };
            client.respond(id, stream, &wrong.line(id));
            return true;
        }
        let Some(number) = self.pending_inputs.allow_again(client.group_id(), client.token())
        else {
            client.limit_hit(limit_hits::PENDING_INPUT);
            return false;
        };
        let state = self.pending_inputs.state(number, binding);
        let result = pending_input::input_required(&wanted, &state, None);
        client.respond(id, stream, &reply::result(id, &result));
        self.start_expiry_task();
        true
    }
}

/// Returns the URL elicitations that an error requires, as input requests of the modern era.
fn url_elicitations(error: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct ErrorObject<'t> {
        code: i64,
        #[serde(borrow)]
        data: Data<'t>,
    }
    #[derive(Deserialize)]
    struct Data<'t> {
        #[serde(borrow)]
        elicitations: Vec<UrlElicitation<'t>>,
    }
    #[derive(Deserialize)]
    struct UrlElicitation<'t> {
        #[serde(borrow)]
        url: &'t RawValue,
        #[serde(borrow)]
        message: &'t RawValue,
    }
    let Ok(ErrorObject { code: URL_ELICITATION_REQUIRED, data }) = serde_json::from_str(error)
    else {
        return None;
    };
    let all = data.elicitations.iter().enumerate().map(|(place, UrlElicitation { url, message })| {
        format!(
            r#""q{}":{{"method":"elicitation/create","params":{{"mode":"url","url":{url},"message":{message}}}}}"#,
            place + 1
        )
    });
    let all: Vec<String> = all.collect();
    (!all.is_empty()).then(|| format!("{{{}}}", all.join(",")))
}
