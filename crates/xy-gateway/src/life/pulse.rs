//! Says how a server is, when the supervisor wants to know: what is asked of it, and what is
//! known of it besides. Judges nothing.

use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use xy_protocol::error::{CallError, ErrorKind};
use xy_supervisor::health::Outcome;
use xy_supervisor::speak::{Checkup, Seen};

use crate::era::Era;
use crate::hub::Hub;
use crate::server::Server;
use crate::upstream::{Question, Upstream};

/// The last thing that was wanted to know. Dropping it leaves it unanswered.
#[derive(Default)]
pub(super) struct Pulse(Option<JoinHandle<()>>);

impl Pulse {
    /// Says how it is, in its own time.
    pub(super) fn take(&mut self, of: (&Rc<Hub>, &Rc<Server>, &Rc<Upstream>), checkup: Checkup) {
        let Checkup { within, reply } = checkup;
        let (hub, server, upstream) = (of.0.clone(), of.1.clone(), of.2.clone());
        let Some(within) = within else {
            let outcome = Outcome::NotMade("it was not asked".to_owned());
            let idle_for = hub.idle_for(&server, &upstream);
            let _ = reply.send(seen(&upstream, outcome, idle_for)); // Whoever asked may have left.
            return;
        };
        self.end();
        self.0 = Some(tokio::task::spawn_local(async move {
            let outcome = ask(&upstream, within).await;
            let idle_for = hub.idle_for(&server, &upstream);
            let _ = reply.send(seen(&upstream, outcome, idle_for));
        }));
    }

    fn end(&mut self) {
        if let Some(asking) = self.0.take() {
            asking.abort();
        }
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.end();
    }
}

fn seen(upstream: &Upstream, outcome: Outcome, idle_for: Option<Duration>) -> Seen {
    let (messages, reads) = upstream.heard_so_far();
    let calls = u32::try_from(upstream.open_calls()).unwrap_or(u32::MAX);
    Seen { outcome, calls, messages, reads, idle_for }
}

/// Asks the cheapest thing that each server of its era has to answer.
async fn ask(upstream: &Rc<Upstream>, within: Duration) -> Outcome {
    let Some(introduction) = upstream.introduction() else {
        return Outcome::NotMade("it is not spoken with yet".to_owned());
    };
    let method = match introduction.era() {
        Era::Legacy => "ping",
        Era::Modern => "server/discover",
    };
    match upstream.ask(method, None) {
        Ok(question) => answered(upstream, question, method, within).await,
        Err(fault) => refused(&fault),
    }
}

async fn answered(
    upstream: &Upstream,
    mut question: Question,
    method: &str,
    within: Duration,
) -> Outcome {
    let answered = timeout(within, question.answered()).await;
    // There is nothing that it could stop doing.
    question.forget();
    match answered {
        Ok(Ok(_)) => Outcome::Answered, // Also if it does not know the method.
        Ok(Err(fault)) => failed(&fault),
        Err(_) if upstream.is_held_back() => {
            Outcome::NotMade("it has as many calls as it may have".to_owned())
        }
        Err(_) => Outcome::Failed(format!("`{method}` was not answered within {within:?}")),
    }
}

/// Why it cannot be asked. One that does not read what it is sent has been asked enough.
fn refused(fault: &CallError) -> Outcome {
    match fault.kind {
        ErrorKind::QueueFull => Outcome::Failed(words(fault)),
        _ => Outcome::NotMade(words(fault)),
    }
}

/// What it means that there is no answer as it should be.
fn failed(fault: &CallError) -> Outcome {
    match fault.kind {
        ErrorKind::OutcomeUnknown => Outcome::Failed(words(fault)),
        // Nobody was there; whoever leads its life sees that too.
        ErrorKind::NotRunning => Outcome::NotMade(words(fault)),
        // It refused, or said what is no answer: then it is there.
        _ => Outcome::Answered,
    }
}

fn words(fault: &CallError) -> String {
    fault.cause.clone().unwrap_or_else(|| fault.message.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_says_that_it_does_not_answer_is_a_failure() {
        let fault = |kind| CallError::new(kind, "why");
        let why = || "why".to_owned();
        assert_eq!(refused(&fault(ErrorKind::QueueFull)), Outcome::Failed(why()));
        assert_eq!(refused(&fault(ErrorKind::NotRunning)), Outcome::NotMade(why()));
        assert_eq!(failed(&fault(ErrorKind::OutcomeUnknown)), Outcome::Failed(why()));
        assert_eq!(failed(&fault(ErrorKind::NotRunning)), Outcome::NotMade(why()));
        assert_eq!(failed(&fault(ErrorKind::Internal)), Outcome::Answered);
        assert_eq!(failed(&fault(ErrorKind::NotAllowed)), Outcome::Answered);
    }
}
