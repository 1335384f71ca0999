//! Who waits for what a server answers.

use std::rc::Rc;

use tokio::sync::oneshot;
use tokio::time::Instant;
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;

use super::{Stage, Upstream};
use crate::backend::Backend;
use crate::bridge::Across;
use crate::bridge::pending_input::{Came, PendingInput};
use crate::client::{Client, Principal};
use crate::exclusive::Slot;
use crate::frontend::StreamNo;
use crate::modern::RequestMeta;
use crate::reply;

/// Who waits for an answer.
pub(crate) enum Caller {
    /// Nobody any more, since then. The server may still work on it, and say something that
    /// is meant for whoever asked: a client of this house, if it was one.
    Nobody { since: Instant, group_id: Option<u64>, follow: Follow },
    /// A client.
    Client {
        /// Which.
        client: Rc<Client>,
        /// The server, by the name that it used.
        asked: Rc<Backend>,
        /// The client's own id of the request, as it was written.
        id: Box<str>,
        /// Where it came in.
        stream: StreamNo,
        /// The client's own token for its progress, as it was written.
        token: Option<Box<str>>,
        /// How the answer is looked at.
        follow: Follow,
        /// What the request said of the client, if that is modern.
        manner: Option<Rc<RequestMeta>>,
        /// What stands between them, if they are of different eras.
        across: Option<Box<Across>>,
    },
    /// A modern client that has to answer something first, and then comes back.
    Parked(Rc<PendingInput>),
    /// Nobody ever: it was asked for its effect.
    Unheard,
    /// Somebody here: the whole answer, as it was written.
    Own(oneshot::Sender<Answered>),
    /// The same, for a person who asks something at the control socket.
    Visitor(oneshot::Sender<Answered>),
    /// Our own ears: it is not answered as long as they are open, and is no client's.
    Ears(oneshot::Sender<Answered>),
}

/// The whole answer, as it was written, or why there is none.
pub(super) type Answered = Result<Box<str>, CallError>;

/// How the answer to a call is looked at, before it is passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Follow {
    /// Not at all.
    Nothing,
    /// It may be a new task.
    NewTask,
    /// It tells of a task.
    Task,
    /// It is what came of this task.
    Outcome(Box<str>),
    /// It lists tasks, some of which may be others'.
    Tasks,
}

impl Follow {
    /// Whether it is about a task that was begun before. What a server says about that names
    /// the task, so clients need not take turns for it.
    pub(crate) fn is_of_task(&self) -> bool {
        matches!(self, Self::Task | Self::Outcome(_) | Self::Tasks)
    }
}

/// A question of our own. Dropping it takes it back.
pub(crate) struct Question {
    pub(super) upstream: Rc<Upstream>,
    pub(super) ours: u64,
    pub(super) answered: oneshot::Receiver<Answered>,
}

impl Question {
    /// The whole answer, as it was written.
    pub(crate) async fn answer(mut self) -> Result<Box<str>, CallError> {
        self.answered().await
    }

    /// The same. Cancel-safe; must not be asked again.
    pub(crate) async fn answered(&mut self) -> Result<Box<str>, CallError> {
        let gone = || CallError::new(ErrorKind::NotRunning, "the server has ended");
        (&mut self.answered).await.unwrap_or_else(|_| Err(gone()))
    }

    /// The server hears nothing else before it has answered.
    pub(crate) fn comes_first(&self) {
        self.upstream.wire.barrier(self.ours);
    }

    /// It is sent however much else the server is asked: it is to be seen whether that answers.
    pub(crate) fn goes_beside(&self) {
        self.upstream.wire.bypass_limit(self.ours);
    }

    /// Nobody wants to know the answer.
    pub(crate) fn detach(self) {
        if let Some(call) = self.upstream.calls.borrow_mut().get_mut(&self.ours) {
            call.caller = Caller::Unheard;
        }
    }

    /// The same, and the server need not go on with it; but it is not told so.
    pub(crate) fn forget(self) {
        self.upstream.wire.given_up(self.ours);
        self.upstream.calls.borrow_mut().remove(&self.ours);
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        self.upstream.cancel(self.ours, "nobody waits for it any more");
    }
}

impl Upstream {
    /// The number of the client whose call this is, if it is one that a client waits for.
    pub(super) fn client_of(&self, ours: u64) -> Option<u64> {
        match &self.calls.borrow().get(&ours)?.caller {
            Caller::Client { client, .. } => Some(client.number()),
            _ => None,
        }
    }

    /// Whether it has to be greeted before anything is asked.
    pub(super) fn is_to_be_greeted(&self) -> bool {
        matches!(*self.stage.borrow(), Stage::Greeted)
    }
}

/// Whose a call is.
pub(crate) enum Whose {
    /// A client's, which asked it there; our id of it.
    Client(Rc<Client>, StreamNo, u64),
    /// That of a client that is to come back.
    Parked(Rc<PendingInput>),
}

impl Caller {
    /// Whose call it is, as far as somebody waits for it.
    pub(super) fn whose(&self, ours: u64) -> Option<Whose> {
        match self {
            Self::Client { client, stream, .. } => {
                Some(Whose::Client(client.clone(), *stream, ours))
            }
            Self::Parked(hold) => Some(Whose::Parked(hold.clone())),
            _ => None,
        }
    }

    /// The house of the client that waits, or will come back.
    pub(super) fn group_id(&self) -> Option<u64> {
        match self {
            Self::Client { client, .. } => Some(client.group_id()),
            Self::Parked(hold) => Some(hold.group_id),
            _ => None,
        }
    }

    /// Whose client it is that waits, or will come back.
    pub(super) fn principal(&self) -> Option<Principal> {
        match self {
            Self::Client { client, .. } => Some(client.principal()),
            Self::Parked(hold) => Some(hold.principal),
            _ => None,
        }
    }

    /// The number of the client that waits, or will come back.
    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::Client { client, .. } => Some(client.number()),
            Self::Parked(hold) => Some(hold.client),
            _ => None,
        }
    }

    /// What has a turn with this call, of which this is our id: all calls of a legacy client
    /// together, and each of a modern one.
    pub(super) fn unit(&self, ours: u64) -> Option<Slot> {
        match self {
            Self::Client { client, manner: None, .. } => Some(Slot::Client(client.number())),
            Self::Client { .. } | Self::Parked(_) => Some(Slot::Call(ours)),
            _ => None,
        }
    }

    /// Whether something can be asked of the client in this call.
    pub(super) fn can_be_asked(&self) -> bool {
        match self {
            Self::Client { manner: None, .. } | Self::Parked(_) => true,
            Self::Client { across, .. } => {
                matches!(across.as_deref(), Some(Across::ToLegacy { bond: Some(_), .. }))
            }
            _ => false,
        }
    }

    /// Whether the client has heard what it is asked, and is to come back.
    pub(super) fn is_away(&self) -> bool {
        matches!(self, Self::Parked(hold) if hold.is_given())
    }

    /// Whether that has been so for so long that a person seems to be asked.
    pub(super) fn is_left(&self) -> bool {
        matches!(self, Self::Parked(hold) if hold.is_left())
    }

    /// Whether the server waits for that: then it says nothing else in this call. One that has
    /// taken its question back works on.
    pub(super) fn is_waited_for(&self) -> bool {
        matches!(self, Self::Parked(hold) if hold.is_awaited())
    }

    /// What stands between it and the server.
    pub(super) fn across(&self) -> Option<&Across> {
        match self {
            Self::Client { across, .. } => across.as_deref(),
            _ => None,
        }
    }

    /// The server, by the name that the client used.
    pub(super) fn asked(&self) -> Option<&Rc<Backend>> {
        match self {
            Self::Client { asked, .. } => Some(asked),
            Self::Parked(hold) => Some(&hold.asked),
            _ => None,
        }
    }

    /// It gets no answer by this server, for this reason.
    pub(super) fn fail(self, by: &ServerName, fault: &CallError) {
        let renamed = self.asked().map(|asked| reply::under(&asked.name, by, fault));
        let fault = renamed.as_ref().unwrap_or(fault);
        match self {
            Self::Client { client, id, stream, .. } => client.failed(&id, stream, fault),
            Self::Parked(hold) => hold.came(Came::Fault(fault.clone())),
            // The asker may have left.
            Self::Own(answer) | Self::Visitor(answer) | Self::Ears(answer) => {
                drop(answer.send(Err(fault.clone())));
            }
            Self::Nobody { .. } | Self::Unheard => {}
        }
    }

    /// Returns the id of the client's token.
    pub(super) fn token(&self) -> Option<u64> {
        match self {
            Self::Client { client, .. } => Some(client.token().id),
            _ => None,
        }
    }

    /// Whether anybody waits.
    pub(super) fn is_there(&self) -> bool {
        !matches!(self, Self::Nobody { .. } | Self::Unheard)
    }
}
