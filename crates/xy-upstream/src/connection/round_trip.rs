//! A round trip: one request that every server of its era can answer.
//!
//! It reports what was observed and draws no conclusion: a server that is busy with a call need not
//! have time for it.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use xy_mcp::kind::Kind;

use super::{Connection, Origin};

/// The result of a round trip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RoundTrip {
    /// The server answered, possibly with an error.
    Answered {
        /// The time until the answer.
        took: Duration,
    },
    /// The server did not answer in time.
    Silent {
        /// The number of client calls that it had not answered either.
        calls: usize,
        /// The server has sent something else meanwhile.
        has_spoken: bool,
    },
    /// The gateway has no MCP connection to the server.
    NotConnected,
    /// The connection broke, or the server ended.
    Broken(String),
}

impl Connection {
    /// Sends a request that the server must be able to answer. `is_other` requests a list instead,
    /// as some servers neither know `ping` nor say so.
    pub async fn round_trip(self: &Rc<Self>, is_other: bool, within: Duration) -> RoundTrip {
        let method = match (is_other, self.is_modern()) {
            (true, _) => self.list_method().unwrap_or("tools/list"),
            (false, true) => "server/discover",
            (false, false) => "ping",
        };
        let (before, activity) = (self.forwarded_requests(), self.activity_count());
        let silent =
            |calls| RoundTrip::Silent { calls, has_spoken: self.activity_count() != activity };
        let began_at = Instant::now();
        // No room: the server has left too much unread.
        let Ok(request) = self.ask(method, None) else {
            return silent(before);
        };
        request.bypass_limit();
        match timeout(within, request.answer()).await {
            Ok(Ok(_)) => RoundTrip::Answered { took: began_at.elapsed() },
            Ok(Err(fault)) => RoundTrip::Broken(fault.to_string()),
            Err(_) => silent(before.max(self.forwarded_requests())),
        }
    }

    /// Returns the method of a list that the server declares. Servers that know nothing else answer
    /// that.
    pub fn list_method(&self) -> Option<&'static str> {
        let abilities = self.introduction()?.abilities;
        let lists = [
            (abilities.tools, Kind::Tools),
            (abilities.prompts, Kind::Prompts),
            (abilities.resources, Kind::Resources),
        ];
        lists.iter().find(|(has, _)| *has).map(|(_, kind)| kind.method())
    }

    /// Returns the number of forwarded requests that the server has not answered.
    fn forwarded_requests(&self) -> usize {
        let requests = self.requests.borrow();
        requests.values().filter(|it| matches!(it.origin, Origin::Forwarded { .. })).count()
    }
}
