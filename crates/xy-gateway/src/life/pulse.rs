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
        Ok(question) => {
            question.goes_beside();
            answered(question, method, within).await
        }
        Err(fault) => refused(&fault),
    }
}

async fn answered(mut question: Question, method: &str, within: Duration) -> Outcome {
    let answered = timeout(within, question.answered()).await;
    // There is nothing that it could stop doing.
    question.forget();
    match answered {
        Ok(Ok(_)) => Outcome::Answered, // Also if it does not know the method.
        Ok(Err(fault)) => failed(&fault),
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
    use std::collections::BTreeMap;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;
    use tokio::task::{LocalSet, spawn_local};
    use xy_config::settings::{CallRules, Endpoint, ParkSettings};
    use xy_supervisor::instance::InstanceKey;

    use super::*;
    use crate::era::Introduction;
    use crate::play;
    use crate::upstream::web::Web;

    /// More calls than are sent at once over HTTP.
    const MANY: usize = 300;

    /// Takes a request; answers `ping`, if it answers anything, and keeps all else waiting.
    async fn serve(mut stream: TcpStream, answers: bool) {
        let (mut heard, mut part) = (String::new(), [0; 4096]);
        while let Ok(count @ 1..) = stream.read(&mut part).await {
            heard.push_str(&String::from_utf8_lossy(&part[..count]));
            let Some((_, body)) = heard.split_once("\r\n\r\n") else { continue };
            let Ok(asked) = serde_json::from_str::<serde_json::Value>(body) else { continue };
            if !answers || asked["method"] != "ping" {
                continue;
            }
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, asked["id"]);
            let length = answer.len();
            let first = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
            let answer = format!("{first}\r\nContent-Length: {length}\r\n\r\n{answer}");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    /// A server over HTTP that answers `ping`, or nothing at all, and has more to do than it is
    /// sent at once.
    async fn overwhelmed(answers: bool) -> (Rc<Upstream>, Vec<Question>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                spawn_local(serve(stream, answers));
            }
        });
        let endpoint =
            Endpoint { url, headers: BTreeMap::new(), is_older: false, is_remote: false };
        let (web, _) = Web::to(&endpoint).await.unwrap();
        let hub = play::empty(std::sync::Arc::new(play::Nobody), ParkSettings::default());
        let settings = play::settings(CallRules::default());
        let key = InstanceKey::shared(settings.name.clone());
        let (said, _) = mpsc::channel(64);
        let upstream = Upstream::new(key, said, 1, false, web.clone(), hub);
        web.speak_for(&upstream);
        let hello = r#"{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{}}"#;
        upstream.resume(Introduction::read(hello).unwrap(), false).await;
        let open = (0..MANY).map(|_| upstream.ask("tools/list", None).unwrap()).collect();
        (upstream, open)
    }

    #[tokio::test]
    async fn one_that_has_as_many_calls_as_are_sent_at_once_is_asked_all_the_same() {
        let all = async {
            let (upstream, open) = overwhelmed(true).await;
            let long = Duration::from_secs(60);
            assert_eq!(ask(&upstream, long).await, Outcome::Answered);
            assert!(upstream.open_calls() >= MANY, "and they are still there");
            drop(open);
            let (upstream, open) = overwhelmed(false).await;
            let why = "`ping` was not answered within 50ms".to_owned();
            assert_eq!(ask(&upstream, Duration::from_millis(50)).await, Outcome::Failed(why));
            drop(open);
        };
        LocalSet::new().run_until(all).await;
    }

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
