//! Request handlers of the control socket: one module per method, dispatched here.

use std::sync::Arc;

use xy_ipc::server::{Answer, Service};
use xy_protocol::control::Request;
use xy_protocol::error::CallError;

use crate::audit::{self, Actor};
use crate::daemon::Daemon;

mod add;
mod call;
mod check;
mod diagnostics;
pub(crate) mod events;
mod explain;
mod handover;
mod info;
mod list;
pub(crate) mod logs;
pub(crate) mod reload;
mod remove;
mod request;
mod restart;
mod search;
mod self_test;
mod settle;
mod shutdown;
mod start;
mod status;
mod stop;
mod tail;
mod token;
mod tools;
mod version;

/// Handles the requests that arrive on the control socket.
pub(crate) struct Handlers(pub(crate) Arc<Daemon>);

impl Service for Handlers {
    async fn call(&self, request: Request) -> Result<Answer, CallError> {
        self.call_as(&Actor::User, request).await
    }
}

impl Handlers {
    /// Handles a request, and records who asks to change servers.
    pub(crate) async fn call_as(
        &self,
        actor: &Actor,
        request: Request,
    ) -> Result<Answer, CallError> {
        let daemon = &self.0;
        audit::record_request(daemon, actor, &request).await;
        match request {
            Request::List => Answer::of(&list::handle(daemon)),
            Request::Status(params) => Answer::of(&status::handle(daemon, &params).await?),
            Request::Start(params) => Answer::of(&start::handle(daemon, params).await?),
            Request::Stop(params) => Answer::of(&stop::handle(daemon, params).await?),
            Request::Restart(params) => Answer::of(&restart::handle(daemon, params).await?),
            Request::Reload(params) => {
                let reloaded = reload::handle(daemon, &params).await;
                audit::record_reload(daemon, actor, &params).await;
                Answer::of(&reloaded?)
            }
            Request::Add(params) => Answer::of(&add::handle(daemon, params).await?),
            Request::Remove(params) => Answer::of(&remove::handle(daemon, &params).await?),
            Request::Logs(params) => Ok(Answer::Stream(logs::handle(daemon, &params).await?)),
            Request::Tail(params) => Answer::of(&tail::handle(daemon, params).await?),
            Request::Events(params) => Ok(Answer::Stream(events::handle(daemon, params).await?)),
            Request::Tools(params) => Answer::of(&tools::handle(daemon, params).await?),
            Request::Call(params) => Ok(Answer::Result(call::handle(daemon, params).await?)),
            Request::Raw(params) => Ok(Answer::Result(request::handle(daemon, params).await?)),
            Request::TokenAdd(params) => Answer::of(&token::add(daemon, params).await?),
            Request::TokenList => Answer::of(&token::list(daemon).await?),
            Request::TokenRemove(params) => Answer::of(&token::remove(daemon, params).await?),
            Request::TokenRotate(params) => Answer::of(&token::rotate(daemon, params).await?),
            Request::Explain(params) => Answer::of(&explain::handle(daemon, params).await?),
            Request::Search(params) => Answer::of(&search::handle(daemon, params).await?),
            Request::SelfTest(params) => Answer::of(&*self_test::handle(daemon, params).await?),
            Request::Diagnostics => Ok(Answer::Result(diagnostics::handle(daemon).await?)),
            Request::Check => Answer::of(&check::handle(daemon).await?),
            Request::Version => Answer::of(&version::handle()),
            Request::Info => Answer::of(&info::handle(daemon)),
            Request::Shutdown => Answer::of(&shutdown::handle(daemon)?),
            Request::Handover(params) => handover::handle(daemon, params).await,
            // A connection cancels its own streams.
            Request::LogsCancel(_) | Request::EventsCancel(_) => {
                Err(CallError::invalid_params("this connection has no such stream"))
            }
        }
    }
}
