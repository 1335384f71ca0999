//! Health checks for the supervisor: sends a request, and reports the result with other
//! observations. It draws no conclusion.

use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use xy_mcp::era::Era;
use xy_protocol::error::{CallError, ErrorKind};
use xy_supervisor::health::Outcome;
use xy_supervisor::protocol::{Checkup, CheckupReport};
use xy_upstream::connection::InternalRequest;

use crate::backend::Backend;
use crate::router::Router;
use crate::upstream::Upstream;

/// The task of the latest checkup. Dropping it leaves that checkup unanswered.
#[derive(Default)]
pub(super) struct CheckupTask(Option<JoinHandle<()>>);

impl CheckupTask {
    /// Starts a checkup, which replaces the one before.
    pub(super) fn take(
        &mut self,
        of: (&Rc<Router>, &Rc<Backend>, &Rc<Upstream>),
        checkup: Checkup,
    ) {
        let Checkup { within, use_fallback, reply } = checkup;
        let (router, server, upstream) = (of.0.clone(), of.1.clone(), of.2.clone());
        let Some(within) = within else {
            let outcome = Outcome::NotProbed("it was not asked".to_owned());
            let idle_for = router.idle_for(&server, &upstream);
            // The receiver may be gone.
            let _ = reply.send(observation(&server, &upstream, outcome, idle_for));
            return;
        };
        self.end();
        self.0 = Some(tokio::task::spawn_local(async move {
            let outcome = ask(&upstream, within, use_fallback).await;
            let idle_for = router.idle_for(&server, &upstream);
            let _ = reply.send(observation(&server, &upstream, outcome, idle_for));
        }));
    }

    fn end(&mut self) {
        if let Some(asking) = self.0.take() {
            asking.abort();
        }
    }
}

impl Drop for CheckupTask {
    fn drop(&mut self) {
        self.end();
    }
}

fn observation(
    server: &Backend,
    upstream: &Upstream,
    outcome: Outcome,
    idle_for: Option<Duration>,
) -> CheckupReport {
    let companion = server.companion(upstream);
    let (messages, reads) = upstream.activity_count();
    let (more, more_reads) = companion.as_ref().map(|it| it.activity_count()).unwrap_or_default();
    let calls = upstream.open_calls() + companion.map_or(0, |it| it.open_calls());
    let calls = u32::try_from(calls).unwrap_or(u32::MAX);
    CheckupReport { outcome, calls, messages: messages + more, reads: reads + more_reads, idle_for }
}

/// Sends the cheapest request that every server of its era has to answer. With `use_list_probe`,
/// requests a list too in the second half of the time.
async fn ask(upstream: &Rc<Upstream>, within: Duration, use_fallback: bool) -> Outcome {
    let Some(introduction) = upstream.introduction() else {
        return Outcome::NotProbed("it is not spoken with yet".to_owned());
    };
    let method = match introduction.era() {
        Era::Legacy => "ping",
        Era::Modern => "server/discover",
    };
    let mut request = match upstream.ask(method, None) {
        Ok(request) => request,
        Err(fault) => return refused(&fault),
    };
    request.bypass_limit();
    let half = within / 2;
    let first_timeout = if use_fallback { half } else { within };
    let first = timeout(first_timeout, request.answered()).await;
    let outcome = match first {
        Ok(answer) => Some(outcome_of(&answer)),
        Err(_) if use_fallback => ask_for_list(upstream, &mut request, half).await,
        Err(_) => None,
    };
    // There is nothing that the server could stop doing.
    request.forget();
    outcome.unwrap_or_else(|| {
        Outcome::Failed(format!("`{method}` was not answered within {within:?}"))
    })
}

/// Requests a list, and waits until it or the first request is answered. Returns `None` if neither
/// is.
async fn ask_for_list(
    upstream: &Rc<Upstream>,
    first: &mut InternalRequest,
    within: Duration,
) -> Option<Outcome> {
    let Some(method) = upstream.list_method() else {
        let late = timeout(within, first.answered()).await;
        return Some(late.map_or(Outcome::Ignored, |answer| outcome_of(&answer)));
    };
    let mut other = match upstream.ask(method, None) {
        Ok(other) => other,
        Err(fault) => return Some(refused(&fault)),
    };
    other.bypass_limit();
    let either = async {
        tokio::select! {
            biased;
            answer = first.answered() => outcome_of(&answer),
            answer = other.answered() => match outcome_of(&answer) {
                Outcome::Answered => Outcome::Ignored,
                failure => failure,
            },
        }
    };
    let outcome = timeout(within, either).await.ok();
    other.forget();
    outcome
}

/// Interprets the response to a request.
fn outcome_of(answer: &Result<Box<str>, CallError>) -> Outcome {
    match answer {
        Ok(_) => Outcome::Answered, // Also with an error, such as an unknown method.
        Err(fault) => failed(fault),
    }
}

/// Interprets a failure to send. A server that does not read what it is sent has failed the check.
fn refused(fault: &CallError) -> Outcome {
    match fault.kind {
        ErrorKind::QueueFull => Outcome::Failed(words(fault)),
        _ => Outcome::NotProbed(words(fault)),
    }
}

/// Interprets a missing or malformed response.
fn failed(fault: &CallError) -> Outcome {
    match fault.kind {
        ErrorKind::OutcomeUnknown | ErrorKind::TransportFailed => Outcome::Failed(words(fault)),
        // The server was gone, which the session task notices too.
        ErrorKind::NotRunning => Outcome::NotProbed(words(fault)),
        // The server refused the request or answered malformed: it is alive.
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
    use xy_mcp::era::Introduction;
    use xy_supervisor::instance::InstanceKey;
    use xy_upstream::connection::http_client::HttpClient;

    use super::*;
    use crate::harness;

    /// More calls than are sent concurrently over HTTP.
    const MANY: usize = 300;

    const ALL_LISTS: &str = r#"{"tools":{},"prompts":{}}"#;

    /// Reads a request, answers this method, and leaves all others unanswered.
    async fn serve(mut stream: TcpStream, answers: &str) {
        let (mut received, mut part) = (String::new(), [0; 4096]);
        while let Ok(count @ 1..) = stream.read(&mut part).await {
            received.push_str(&String::from_utf8_lossy(&part[..count]));
            let Some((_, body)) = received.split_once("\r\n\r\n") else { continue };
            let Ok(request) = serde_json::from_str::<serde_json::Value>(body) else { continue };
            if request["method"] != answers {
                continue;
            }
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, request["id"]);
            let length = answer.len();
            let first = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
            let answer = format!("{first}\r\nContent-Length: {length}\r\n\r\n{answer}");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    /// Starts an HTTP server with these capabilities, which answers one method or none.
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
        let (transport, _) = HttpClient::new(&endpoint).await.unwrap();
        let router =
            harness::empty(std::sync::Arc::new(harness::NoDaemon), ParkSettings::default());
        let settings = harness::settings(CallRules::default());
        let key = InstanceKey::shared(settings.name.clone());
        let (driver_events, _) = mpsc::channel(64);
        let upstream = Upstream::new(key, driver_events, 1, false, transport.clone(), router);
        transport.set_connection(&upstream);
        let hello = format!(
            r#"{{"protocolVersion":"2025-11-25","capabilities":{capabilities},"serverInfo":{{}}}}"#
        );
        upstream.resume(Introduction::read(&hello).unwrap(), false).await;
        upstream
    }

    /// Starts a server that has more open calls than are sent concurrently.
    async fn overwhelmed(answers: &'static str) -> (Rc<Upstream>, Vec<InternalRequest>) {
        let upstream = server(answers, "{}").await;
        let open = (0..MANY).map(|_| upstream.ask("tools/list", None).unwrap()).collect();
        (upstream, open)
    }

    #[tokio::test]
    async fn unknown_server_is_also_probed_with_a_list() {
        let all = async {
            let long = Duration::from_mins(1);
            let short = Duration::from_millis(100);
            // The method that the server answers, its capabilities, the timeout, and the outcome
            // with and without a fallback probe.
            for (answers, capabilities, within, in_doubt, known) in [
                ("ping", ALL_LISTS, long, "answered", "answered"),
                ("tools/list", ALL_LISTS, short, "ignored", "failed"),
                ("prompts/list", r#"{"prompts":{}}"#, short, "ignored", "failed"),
                ("resources/list", r#"{"resources":{}}"#, short, "ignored", "failed"),
                ("", ALL_LISTS, short, "failed", "failed"),
                // There is no list to request.
                ("", "{}", short, "ignored", "failed"),
            ] {
                let upstream = server(answers, capabilities).await;
                for (use_fallback, expected) in [(true, in_doubt), (false, known)] {
                    // Where a list is answered, it has time for that on any machine.
                    let is_answered = expected == "ignored" && !answers.is_empty();
                    let within = if is_answered { Duration::from_secs(4) } else { within };
                    let outcome = match ask(&upstream, within, use_fallback).await {
                        Outcome::Answered => "answered",
                        Outcome::Ignored => "ignored",
                        Outcome::Failed(_) => "failed",
                        Outcome::NotProbed(_) => "not made",
                    };
                    assert_eq!(outcome, expected, "`{answers}` of {capabilities}, {use_fallback}");
                    assert_eq!(upstream.open_calls(), 0, "nothing is left open");
                }
            }
        };
        LocalSet::new().run_until(all).await;
    }

    #[tokio::test]
    async fn server_at_its_call_limit_is_still_probed() {
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
    fn only_errors_that_show_no_answer_are_failures() {
        let fault = |kind| CallError::new(kind, "why");
        let why = || "why".to_owned();
        assert_eq!(refused(&fault(ErrorKind::QueueFull)), Outcome::Failed(why()));
        assert_eq!(refused(&fault(ErrorKind::NotRunning)), Outcome::NotProbed(why()));
        assert_eq!(failed(&fault(ErrorKind::OutcomeUnknown)), Outcome::Failed(why()));
        assert_eq!(failed(&fault(ErrorKind::TransportFailed)), Outcome::Failed(why()));
        assert_eq!(failed(&fault(ErrorKind::NotRunning)), Outcome::NotProbed(why()));
        assert_eq!(failed(&fault(ErrorKind::Internal)), Outcome::Answered);
        assert_eq!(failed(&fault(ErrorKind::NotAllowed)), Outcome::Answered);
    }
}
