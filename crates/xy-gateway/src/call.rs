//! A client's call on its way to a server: its text, its history, and the name that the client used.

use std::rc::Rc;

use xy_mcp::modern::RequestMeta;
use xy_transport::message_text::MessageText;

mod alias;
mod client;
mod retry_state;
mod timer;

pub(crate) use alias::{Alias, Counts, outcome_unknown};
pub(crate) use client::{AnswerReceiver, CallClient, Principal};
pub(crate) use retry_state::{RetryState, Rounds};
pub(crate) use timer::CallTimer;

/// A client's request that is to be forwarded: its text, and slices of it.
pub(crate) struct CallRequest<'t> {
    /// The whole message.
    pub(crate) text: MessageText<'t>,
    /// The client's id of the request.
    pub(crate) id: &'t str,
    /// The client's progress token.
    pub(crate) token: Option<&'t str>,
    /// The slice that holds a name or URI, and its replacement for this server.
    pub(crate) renamed: Option<(&'t str, String)>,
    /// The method and its target (a name or URI), for messages to people.
    pub(crate) method_and_target: (&'t str, Option<&'t str>),
    /// The server, under the name that the client used.
    pub(crate) alias: Rc<Alias>,
    /// The way in which the response is inspected.
    pub(crate) response_kind: ResponseKind,
    /// The timeouts of the call.
    pub(crate) timer: Option<Rc<CallTimer>>,
    /// The text of the params.
    pub(crate) params: Option<&'t str>,
    /// The `_meta` of the params, if it is an object.
    pub(crate) meta: Option<&'t str>,
    /// The client metadata of a modern request.
    pub(crate) request_meta: Option<Rc<RequestMeta>>,
    /// The slice of `_meta` that a server of the same era must not see, and its replacement.
    pub(crate) meta_override: Option<(&'t str, String)>,
    /// The history of the request.
    pub(crate) retry_state: RetryState,
    /// The request carries a `requestState`: it repeats an earlier one.
    pub(crate) has_state: bool,
}

/// The way in which the response to a call is inspected before it is forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResponseKind {
    /// Forwarded without inspection.
    Other,
    /// May create a task.
    NewTask,
    /// Describes a task.
    Task,
    /// The result of this task.
    TaskResult(Box<str>),
    /// A list of tasks, some of which may belong to others.
    TaskList,
}

impl ResponseKind {
    /// Returns true if the call is about an existing task. The server names the task in what it
    /// sends about it, so such calls need no exclusive access.
    pub(crate) fn is_of_task(&self) -> bool {
        matches!(self, Self::Task | Self::TaskResult(_) | Self::TaskList)
    }
}
