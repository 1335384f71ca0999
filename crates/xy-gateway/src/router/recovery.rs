//! Recovery of unanswered calls: each waits for the next life or fails. `upstream/retry.rs`
//! decides which.

pub(super) use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use xy_catalog::catalog::ServerCatalog;
use xy_protocol::error::CallError;
use xy_supervisor::instance::InstanceKey;
use xy_upstream::connection::Delivery;
use xy_upstream::fault::{Cause, ServerFault};

use super::Router;
use crate::backend::{Backend, CallToQueue};
use crate::upstream::retry::{self, CallerKind, Reason, Retry, RetryFacts};
use crate::upstream::{ClientCall, UnansweredCall, Upstream};

/// Delays before a call is sent again to a server that seems alive. A dying server is noticed
/// within them. Container engines report a death later, while something else may answer at the
/// port.
const RESEND_DELAY: Duration = Duration::from_millis(250);
const CONTAINER_RESEND_DELAY: Duration = Duration::from_secs(3);

impl Router {
    /// Recovers the calls that a life left unanswered, in the order in which they were sent.
    pub(crate) fn recover_calls(&self, by: &Upstream, calls: Vec<UnansweredCall>, why: &Cause) {
        if calls.is_empty() {
            return;
        }
        let server = self.server(by.key().server.as_str());
        let holder = by.key().holder;
        let recovery = Recovery {
            router: self,
            by,
            why,
            known: by.known().or_else(|| server.as_ref().and_then(|server| server.reported())),
        };
        let has_clients = calls.iter().any(|lost| matches!(lost, UnansweredCall::Client(_)));
        for lost in calls {
            recovery.settle(lost);
        }
        let Some(server) = server.filter(|_| has_clients) else { return };
        if let Some(living) = server.upstream(holder) {
            let is_contained = server.settings.borrow().container().is_some();
            let wait = if is_contained { CONTAINER_RESEND_DELAY } else { RESEND_DELAY };
            let at = Instant::now() + wait;
            living.hold_back(at);
            tokio::task::spawn_local(async move {
                sleep_until(at).await;
                server.release_for(holder);
            });
        }
    }
}

/// The circumstances of unanswered calls.
struct Recovery<'l> {
    router: &'l Router,
    by: &'l Upstream,
    why: &'l Cause,
    /// The lists of the instance.
    known: Option<Rc<ServerCatalog>>,
}

impl Recovery<'_> {
    fn settle(&self, lost: UnansweredCall) {
        match lost {
            UnansweredCall::Client(lost) => self.settle_client(lost),
            UnansweredCall::Other { caller, delivery } => {
                let retry = retry::decide(RetryFacts::without_text(caller.kind(), delivery));
                let is_written = matches!(retry, Retry::Unknown(_));
                if retry != Retry::Drop {
                    caller.fail(&ServerFault::Lost { is_written, cause: self.why.clone() });
                }
            }
        }
    }

    fn settle_client(&self, lost: ClientCall) {
        let alias = self.router.server(lost.alias.name.as_str());
        let server = alias.as_ref().map(Backend::primary_or_self);
        // After a change of settings, the client or the alias may have another instance.
        let key = server.as_ref().map(|server| InstanceKey {
            server: server.name.clone(),
            holder: server.holder(&*lost.client),
        });
        let no_successor = match alias.as_ref().zip(key.as_ref()) {
            Some((alias, key)) => alias.no_successor(key.holder),
            None => Some("it has been removed".to_owned()),
        };
        let has_moved = key.as_ref() != Some(self.by.key());
        let retry = retry::decide(self.facts(&lost, no_successor.is_none(), has_moved));
        let fault = match (retry, server.zip(alias.as_ref())) {
            (Retry::Drop, _) => return,
            (Retry::Redispatch, _) => return redispatch(lost),
            (Retry::Resend, Some((server, alias))) => match self.wait((&server, alias), lost) {
                None => return,
                Some((lost, full)) => {
                    lost.client.record_limit(&full);
                    return fail(&lost, &full.named(&lost.alias.name));
                }
            },
            (Retry::Resend, None) => self.not_executed(&lost, None, Reason::NoSuccessor),
            (Retry::NotSent(why), _) => {
                let down = alias.zip(no_successor).map(|(alias, why)| alias.down_fault(&why));
                self.not_executed(&lost, down, why)
            }
            (Retry::Unknown(why), _) => self.outcome_unknown(&lost, why),
        };
        fail(&lost, &fault);
    }

    fn facts(&self, lost: &ClientCall, has_successor: bool, has_moved: bool) -> RetryFacts {
        let written = lost.request_text.as_deref().unwrap_or_default();
        let view = &lost.client.entry().view;
        // The tool's name depends on the client's view and the alias.
        let shown = |known| self.by.shown_as(&lost.alias.name, &*lost.client, known);
        let known = self.known.clone().and_then(shown);
        RetryFacts {
            caller: Some(CallerKind::Client),
            delivery: lost.delivery,
            idempotency: retry::classify(written, &lost.response_kind, view, known.as_deref()),
            is_wanted: lost.client.has_open_request(&lost.id),
            has_server_request: lost.has_server_request,
            was_written: lost.retry_state.was_written,
            copy: lost.copy,
            has_successor,
            has_moved,
            is_hung: self.by.is_hung(),
        }
    }

    /// Queues a call for the next life; returns it if there is no room.
    fn wait(
        &self,
        (server, alias): (&Rc<Backend>, &Rc<Backend>),
        mut lost: ClientCall,
    ) -> Option<(ClientCall, ServerFault)> {
        lost.retry_state.was_written |= lost.delivery == Delivery::Written;
        let text = lost.request_text.take().unwrap_or_default();
        if let Err(full) = server.check_room(&*lost.client, text.len()) {
            return Some((lost, full));
        }
        let call = CallToQueue {
            client: lost.client.clone(),
            alias: alias.clone(),
            holder: self.by.key().holder,
            id: lost.id.clone(),
            text,
            stream: lost.stream,
            is_modern: lost.is_modern,
            retry_state: lost.retry_state.clone(),
        };
        let (ticket, _) = server.enqueue(call);
        if let Some(client) = self.router.client(lost.client.number()) {
            client.set_queued(&lost.id, server.clone(), ticket, lost.stream);
        }
        None
    }

    /// Returns the error for a call that the server never received. `down` says why there is no
    /// other instance.
    fn not_executed(&self, lost: &ClientCall, down: Option<ServerFault>, why: Reason) -> CallError {
        if let Some(down) = down {
            return down.named(&lost.alias.name);
        }
        let fault = self.lost(lost, false);
        match why.words() {
            Some(words) => fault.cause(words),
            None => fault,
        }
    }

    /// Returns the error for a call that the server may have executed.
    fn outcome_unknown(&self, lost: &ClientCall, why: Reason) -> CallError {
        let fault = self.lost(lost, true);
        match (why.words(), fault.cause.clone()) {
            (Some(words), Some(cause)) => {
                fault.cause(format!("{cause}; it was not sent again: {words}"))
            }
            _ => fault,
        }
    }

    fn lost(&self, lost: &ClientCall, is_written: bool) -> CallError {
        ServerFault::Lost { is_written, cause: self.why.clone() }.named(&lost.alias.name)
    }
}

fn fail(lost: &ClientCall, fault: &CallError) {
    let fault = lost.alias.failure(&lost.retry_state, fault);
    lost.client.respond_error(&lost.id, lost.stream, &fault);
}

/// Dispatches a call again, since its client now uses another instance.
fn redispatch(mut lost: ClientCall) {
    lost.retry_state.was_written |= lost.delivery == Delivery::Written;
    let text = lost.request_text.take().unwrap_or_default();
    lost.client.clone().redispatch_with(&lost.id, text.borrow(), lost.stream, lost.retry_state);
}
