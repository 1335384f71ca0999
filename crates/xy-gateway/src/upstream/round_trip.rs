//! One question that every server of its era can answer, to see whether it does.
//!
//! It says what was seen, and judges nothing: a server that is busy with a call need not have
//! time for it.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{Caller, Upstream};
use crate::catalog::Kind;

/// What became of the question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RoundTrip {
    /// It was answered, be it with an error.
    Answered {
        /// How long that took.
        took: Duration,
    },
    /// It was not, in the time there was.
    Silent {
        /// How many calls of clients it had not answered either.
        calls: usize,
        /// It has said something else meanwhile.
        has_spoken: bool,
    },
    /// Nobody speaks MCP with it.
    Nobody,
    /// The way to it is broken, or it ended.
    Broken(String),
}

impl Upstream {
    /// Asks what it must be able to answer. `is_other` asks another question: there are
    /// servers that know no `ping`, and do not say so either.
    pub(crate) async fn round_trip(self: &Rc<Self>, is_other: bool, within: Duration) -> RoundTrip {
        let method = match (is_other, self.is_modern()) {
            (true, _) => self.other_question().unwrap_or("tools/list"),
            (false, true) => "server/discover",
            (false, false) => "ping",
        };
        let (before, heard) = (self.calls_of_clients(), self.heard_so_far());
        let silent = |calls| RoundTrip::Silent { calls, has_spoken: self.heard_so_far() != heard };
        let began_at = Instant::now();
        // No room: so much is unread that it does not read.
        let Ok(question) = self.ask(method, None) else {
            return silent(before);
        };
        question.goes_beside();
        match timeout(within, question.answer()).await {
            Ok(Ok(_)) => RoundTrip::Answered { took: began_at.elapsed() },
            Ok(Err(fault)) => RoundTrip::Broken(fault.to_string()),
            Err(_) => silent(before.max(self.calls_of_clients())),
        }
    }

    /// A list that it says it has: whoever knows nothing else answers that.
    pub(crate) fn other_question(&self) -> Option<&'static str> {
        let abilities = self.introduction()?.abilities;
        let lists = [
            (abilities.tools, Kind::Tools),
            (abilities.prompts, Kind::Prompts),
            (abilities.resources, Kind::Resources),
        ];
        lists.iter().find(|(has, _)| *has).map(|(_, kind)| kind.method())
    }

    /// How many calls of clients it has not answered.
    fn calls_of_clients(&self) -> usize {
        let calls = self.calls.borrow();
        let is_clients = |caller: &Caller| match caller {
            Caller::Own(_) | Caller::Ears(_) | Caller::Unheard => false,
            _ => caller.is_there(),
        };
        calls.values().filter(|call| is_clients(&call.caller)).count()
    }
}
