//! One question that every server of its era can answer, to see whether it does.
//!
//! It says what was seen, and judges nothing: a server that is busy with a call need not have
//! time for it.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{Caller, Upstream};

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
            (true, _) => "tools/list",
            (false, true) => "server/discover",
            (false, false) => "ping",
        };
        let before = self.calls_of_clients();
        let began_at = Instant::now();
        // No room: so much is unread that it does not read.
        let Ok(question) = self.ask(method, None) else {
            return RoundTrip::Silent { calls: before };
        };
        question.goes_beside();
        match timeout(within, question.answer()).await {
            Ok(Ok(_)) => RoundTrip::Answered { took: began_at.elapsed() },
            Ok(Err(fault)) => RoundTrip::Broken(fault.to_string()),
            Err(_) => RoundTrip::Silent { calls: before.max(self.calls_of_clients()) },
        }
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
