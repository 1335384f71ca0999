//! Says how a server is, when the supervisor wants to know: what is asked of it, and what is
//! known of it besides. Judges nothing.

use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use xy_protocol::error::{CallError, ErrorKind};
use xy_supervisor::health::Outcome;
use xy_supervisor::speak::{Checkup, Seen};

use crate::backend::Backend;
use crate::era::Era;
use crate::router::Router;
use crate::upstream::{Question, Upstream};

/// The last thing that was wanted to know. Dropping it leaves it unanswered.
#[derive(Default)]
pub(super) struct Pulse(Option<JoinHandle<()>>);

impl Pulse {
    /// Says how it is, in its own time.
    pub(super) fn take(
        &mut self,
        of: (&Rc<Router>, &Rc<Backend>, &Rc<Upstream>),
        checkup: Checkup,
    ) {
        let Checkup { within, is_in_doubt, reply } = checkup;
        let (router, server, upstream) = (of.0.clone(), of.1.clone(), of.2.clone());
        let Some(within) = within else {
            let outcome = Outcome::NotMade("it was not asked".to_owned());
            let idle_for = router.idle_for(&server, &upstream);
            let _ = reply.send(seen(&server, &upstream, outcome, idle_for)); // Whoever asked may have left.
            return;
        };
        self.end();
        self.0 = Some(tokio::task::spawn_local(async move {
            let outcome = ask(&upstream, within, is_in_doubt).await;
            let idle_for = router.idle_for(&server, &upstream);
            let _ = reply.send(seen(&server, &upstream, outcome, idle_for));
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

fn seen(
    server: &Backend,
    upstream: &Upstream,
    outcome: Outcome,
    idle_for: Option<Duration>,
) -> Seen {
    let beside = server.beside(upstream);
    let (messages, reads) = upstream.heard_so_far();
    let (more, more_reads) = beside.as_ref().map(|it| it.heard_so_far()).unwrap_or_default();
    let calls = upstream.open_calls() + beside.map_or(0, |it| it.open_calls());
    let calls = u32::try_from(calls).unwrap_or(u32::MAX);
    Seen { outcome, calls, messages: messages + more, reads: reads + more_reads, idle_for }
}

/// Asks the cheapest thing that each server of its era has to answer. One of which nobody knows
/// whether it does is asked for a list too, in the second half of the time.
async fn ask(upstream: &Rc<Upstream>, within: Duration, is_in_doubt: bool) -> Outcome {
    let Some(introduction) = upstream.introduction() else {
        return Outcome::NotMade("it is not spoken with yet".to_owned());
    };
    let method = match introduction.era() {
        Era::Legacy => "ping",
        Era::Modern => "server/discover",
    };
    let mut question = match upstream.ask(method, None) {
        Ok(question) => question,
        Err(fault) => return refused(&fault),
    };
    question.goes_beside();
    let half = within / 2;
    let patience = if is_in_doubt { half } else { within };
    let first = timeout(patience, question.answered()).await;
    let outcome = match first {
        Ok(answer) => Some(came(&answer)),
        Err(_) if is_in_doubt => ask_other(upstream, &mut question, half).await,
        Err(_) => None,
    };
    // There is nothing that it could stop doing.
    question.forget();
    outcome.unwrap_or_else(|| {
        Outcome::Failed(format!("`{method}` was not answered within {within:?}"))
    })
}

/// Asks for a list, and sees whether that or the first question is answered in this time. `None`
/// if neither is.
async fn ask_other(
    upstream: &Rc<Upstream>,
    first: &mut Question,
    within: Duration,
) -> Option<Outcome> {
    let Some(method) = upstream.other_question() else {
        let late = timeout(within, first.answered()).await;
        return Some(late.map_or(Outcome::Ignored, |answer| came(&answer)));
    };
    let mut other = match upstream.ask(method, None) {
        Ok(other) => other,
        Err(fault) => return Some(refused(&fault)),
    };
    other.goes_beside();
    let either = async {
        tokio::select! {
            biased;
            answer = first.answered() => came(&answer),
            answer = other.answered() => match came(&answer) {
                Outcome::Answered => Outcome::Ignored,
                trouble => trouble,
            },
        }
    };
    let outcome = timeout(within, either).await.ok();
    other.forget();
    outcome
}

/// What it means that this came.
fn came(answer: &Result<Box<str>, CallError>) -> Outcome {
    match answer {
        Ok(_) => Outcome::Answered, // Also if it does not know the method.
        Err(fault) => failed(fault),
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
        ErrorKind::OutcomeUnknown | ErrorKind::TransportFailed => Outcome::Failed(words(fault)),
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
    use crate::harness;
    use crate::upstream::http_client::Web;

    /// More calls than are sent at once over HTTP.
    const MANY: usize = 300;

    const ALL_LISTS: &str = r#"{"tools":{},"prompts":{}}"#;

    /// Takes a request; answers this method, and keeps all else waiting.
    async fn serve(mut stream: TcpStream, answers: &str) {
        let (mut heard, mut part) = (String::new(), [0; 4096]);
        while let Ok(count @ 1..) = stream.read(&mut part).await {
            heard.push_str(&String::from_utf8_lossy(&part[..count]));
            let Some((_, body)) = heard.split_once("\r\n\r\n") else { continue };
            let Ok(asked) = serde_json::from_str::<serde_json::Value>(body) else { continue };
            if asked["method"] != answers {
                continue;
            }
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, asked["id"]);
            let length = answer.len();
            let first = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
            let answer = format!("{first}\r\nContent-Length: {length}\r\n\r\n{answer}");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    /// A server over HTTP that can do this, and answers one method or none.
    async fn server(answers: &'static str, capabilities: &str) -> Rc<Upstream> {
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
        let router = harness::empty(std::sync::Arc::new(harness::Nobody), ParkSettings::default());
        let settings = harness::settings(CallRules::default());
        let key = InstanceKey::shared(settings.name.clone());
        let (said, _) = mpsc::channel(64);
        let upstream = Upstream::new(key, said, 1, false, web.clone(), router);
        web.speak_for(&upstream);
        let hello = format!(
            r#"{{"protocolVersion":"2025-11-25","capabilities":{capabilities},"serverInfo":{{}}}}"#
        );
        upstream.resume(Introduction::read(&hello).unwrap(), false).await;
        upstream
    }

    /// The same of one that has more to do than it is sent at once.
    async fn overwhelmed(answers: &'static str) -> (Rc<Upstream>, Vec<Question>) {
        let upstream = server(answers, "{}").await;
        let open = (0..MANY).map(|_| upstream.ask("tools/list", None).unwrap()).collect();
        (upstream, open)
    }

    #[tokio::test]
    async fn one_of_which_nobody_knows_whether_it_answers_is_asked_for_a_list_too() {
        let all = async {
            let long = Duration::from_mins(1);
            let short = Duration::from_millis(100);
            // What it answers and can do, how long it is waited for, and what that means.
            for (answers, capabilities, within, in_doubt, known) in [
                ("ping", ALL_LISTS, long, "answered", "answered"),
                ("tools/list", ALL_LISTS, short, "ignored", "failed"),
                ("prompts/list", r#"{"prompts":{}}"#, short, "ignored", "failed"),
                ("resources/list", r#"{"resources":{}}"#, short, "ignored", "failed"),
                ("", ALL_LISTS, short, "failed", "failed"),
                // There is nothing else to ask it.
                ("", "{}", short, "ignored", "failed"),
            ] {
                let upstream = server(answers, capabilities).await;
                for (is_in_doubt, expected) in [(true, in_doubt), (false, known)] {
                    // Where a list is answered there is time for it, however slow all is.
                    let is_answered = expected == "ignored" && !answers.is_empty();
                    let within = if is_answered { Duration::from_secs(4) } else { within };
                    let came = match ask(&upstream, within, is_in_doubt).await {
                        Outcome::Answered => "answered",
                        Outcome::Ignored => "ignored",
                        Outcome::Failed(_) => "failed",
                        Outcome::NotMade(_) => "not made",
                    };
                    assert_eq!(came, expected, "`{answers}` of {capabilities}, {is_in_doubt}");
                    assert_eq!(upstream.open_calls(), 0, "nothing is left open");
                }
            }
        };
        LocalSet::new().run_until(all).await;
    }

    #[tokio::test]
    async fn one_that_has_as_many_calls_as_are_sent_at_once_is_asked_all_the_same() {
        let all = async {
            let (upstream, open) = overwhelmed("ping").await;
            let long = Duration::from_secs(60);
            assert_eq!(ask(&upstream, long, false).await, Outcome::Answered);
            assert!(upstream.open_calls() >= MANY, "and they are still there");
            drop(open);
            let (upstream, open) = overwhelmed("").await;
            let why = "`ping` was not answered within 50ms".to_owned();
            let short = Duration::from_millis(50);
            assert_eq!(ask(&upstream, short, false).await, Outcome::Failed(why));
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
        assert_eq!(failed(&fault(ErrorKind::TransportFailed)), Outcome::Failed(why()));
        assert_eq!(failed(&fault(ErrorKind::NotRunning)), Outcome::NotMade(why()));
        assert_eq!(failed(&fault(ErrorKind::Internal)), Outcome::Answered);
        assert_eq!(failed(&fault(ErrorKind::NotAllowed)), Outcome::Answered);
    }
}
