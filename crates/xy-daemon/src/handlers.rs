//! The table of contents: one line per request.

use std::sync::Arc;

use xy_ipc::server::{Answer, Service};
use xy_protocol::control::Request;
use xy_protocol::error::CallError;

use crate::askers::{self, By};
use crate::daemon::Daemon;

mod add;
mod asks;
mod call;
mod check;
mod diagnostics;
pub(crate) mod events;
mod explain;
mod handover;
pub(crate) mod info;
mod list;
pub(crate) mod logs;
pub(crate) mod reload;
mod remove;
mod request;
mod restart;
mod search;
mod self_test;
mod shutdown;
mod start;
pub(crate) mod status;
mod stop;
mod tail;
mod token;
mod tools;
mod version;

/// Answers what comes in on the control socket.
pub(crate) struct Handlers(pub(crate) Arc<Daemon>);

impl Service for Handlers {
    async fn call(&self, request: Request) -> Result<Answer, CallError> {
        self.call_by(&By::Person, request).await
    }
}

impl Handlers {
    /// Answers a request, and writes down who asks to change servers.
    pub(crate) async fn call_by(&self, by: &By, request: Request) -> Result<Answer, CallError> {
        let daemon = &self.0;
        askers::note(daemon, by, &request).await;
        match request {
            Request::List => Answer::of(&list::handle(daemon)),
            Request::Status(ask) => Answer::of(&status::handle_whole(daemon, &ask).await?),
            Request::Start(ask) => Answer::of(&start::handle(daemon, ask).await?),
            Request::Stop(ask) => Answer::of(&stop::handle(daemon, ask).await?),
            Request::Restart(ask) => Answer::of(&restart::handle(daemon, ask).await?),
            Request::Reload(ask) => {
                let reloaded = reload::handle(daemon, &ask).await;
                askers::note_reload(daemon, by, &ask).await;
                Answer::of(&reloaded?)
            }
            Request::Add(ask) => Answer::of(&add::handle(daemon, ask).await?),
            Request::Remove(ask) => Answer::of(&remove::handle(daemon, &ask).await?),
            Request::Logs(ask) => Ok(Answer::Stream(logs::handle(daemon, &ask).await?)),
            Request::Tail(ask) => Answer::of(&tail::handle(daemon, ask).await?),
            Request::Events(ask) => Ok(Answer::Stream(events::handle(daemon, ask).await?)),
            Request::Tools(ask) => Answer::of(&tools::handle(daemon, ask).await?),
            Request::Call(ask) => Ok(Answer::Result(call::handle(daemon, ask).await?)),
            Request::Raw(ask) => Ok(Answer::Result(request::handle(daemon, ask).await?)),
            Request::TokenAdd(ask) => Answer::of(&token::add(daemon, ask).await?),
            Request::TokenList => Answer::of(&token::list(daemon).await?),
            Request::TokenRemove(ask) => Answer::of(&token::remove(daemon, ask).await?),
            Request::TokenRotate(ask) => Answer::of(&token::rotate(daemon, ask).await?),
            Request::Explain(ask) => Answer::of(&explain::handle(daemon, ask).await?),
            Request::Search(ask) => Answer::of(&search::handle(daemon, ask).await?),
            Request::SelfTest(ask) => Answer::of(&*self_test::handle(daemon, ask).await?),
            Request::Diagnostics => Ok(Answer::Result(diagnostics::handle(daemon).await?)),
            Request::Check => Answer::of(&check::handle(daemon).await?),
            Request::Version => Answer::of(&version::handle()),
            Request::Info => Answer::of(&info::handle(daemon)),
            Request::Shutdown => Answer::of(&shutdown::handle(daemon)?),
            Request::Handover(ask) => handover::handle(daemon, ask).await,
            // A connection ends its own streams.
            Request::LogsCancel(_) | Request::EventsCancel(_) => {
                Err(CallError::invalid_params("there is no such stream on this connection"))
            }
        }
    }
}
