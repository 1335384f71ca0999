//! Lists over all servers: answered from what is known, or as soon as enough is known.

use std::rc::Rc;

use tokio::time::Instant;
use xy_mcp::envelope::text_of;
use xy_mcp::kind::Kind;
use xy_mcp::reply;
use xy_protocol::error::CallError;

use super::{LIST_TIMEOUT, Outcome, Request};
use crate::call::CallClient;
use crate::client::{Client, RequestPhase};

impl Client {
    pub(super) fn list(&self, request: &Request<'_>, kind: Kind) -> Result<Outcome, CallError> {
        let after = match request.params.cursor() {
            Some(cursor) => {
                Some(text_of(cursor).ok_or_else(|| reply::invalid("`cursor` is not a string"))?)
            }
            None => None,
        };
        for server in self.router.servers_of(self) {
            if server.known_to(self).is_none() {
                self.router.request_instance(&server, self);
            }
        }
        if self.router.is_known(self) {
            return self.router.list(self, kind, after.as_deref()).map(Outcome::Result);
        }
        let after = after.map(std::borrow::Cow::into_owned);
        let answer =
            Rc::new(move |client: &Client| client.router.list(client, kind, after.as_deref()));
        let at_last = answer.clone();
        Ok(self.respond_later(
            request,
            move |client| client.router.is_known(client).then(|| answer(client)),
            move |client| {
                client.router.give_up_waiting();
                at_last(client)
            },
        ))
    }

    /// Answers a request once `is_known` returns a value, or with `at_last` after the timeout.
    pub(super) fn respond_later(
        &self,
        request: &Request<'_>,
        is_known: impl Fn(&Self) -> Option<Result<String, CallError>> + 'static,
        at_last: impl FnOnce(&Self) -> Result<String, CallError> + 'static,
    ) -> Outcome {
        let (client, mut changes) = (self.me(), self.router.changes());
        let reply = self.reply_to(request);
        let give_up_at = Instant::now() + LIST_TIMEOUT;
        let task = tokio::task::spawn_local(async move {
            let answer = loop {
                if let Some(answer) = is_known(&client) {
                    break answer;
                }
                let more = tokio::time::timeout_at(give_up_at, changes.changed()).await;
                if !matches!(more, Ok(Ok(()))) {
                    break at_last(&client);
                }
            };
            reply.answer(&client, answer);
        });
        Outcome::Pending(RequestPhase::Local(task.abort_handle()))
    }

    /// Lists the client's tasks on all servers.
    pub(super) fn list_tasks(&self, request: &Request<'_>) -> Outcome {
        let (client, id, stream) = (self.me(), request.id.to_owned(), request.stream);
        let task = tokio::task::spawn_local(async move {
            let result = client.router.list_tasks(&*client).await;
            client.respond(&id, stream, &reply::result(&id, &result));
        });
        Outcome::Pending(RequestPhase::Local(task.abort_handle()))
    }
}
