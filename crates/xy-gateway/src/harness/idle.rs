//! Idle servers: what keeps them running, and what wakes them.

use std::sync::Mutex;

use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use xy_catalog::catalog::{Lists, Page, ServerCatalog};
use xy_config::settings::Start;
use xy_mcp::kind::Kind;
use xy_supervisor::instance::Holder;
use xy_supervisor::protocol::IdleStop;
use xy_upstream::fault::{Cause, LossReason, ServerFault};

use super::*;
use crate::upstream_session::idle_stop;

const STOP: Duration = Duration::from_secs(8);

/// Just below [`STOP`].
const ALMOST: Duration = Duration::from_millis(7999);

/// A control plane that counts the requests to hold an instance.
#[derive(Default)]
struct RecordedHolds {
    asked: Mutex<usize>,
    /// The error of the next hold requests.
    refuses: Mutex<Option<ServerFault>>,
    /// If set, the next hold request waits for this.
    announced: Mutex<Option<oneshot::Receiver<()>>>,
}

impl RecordedHolds {
    /// Returns how many hold requests were made since the last call.
    fn asked(&self) -> usize {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Control for RecordedHolds {
    fn call(&self, _: control::Request) -> BoxFuture<Result<Value, CallError>> {
        Box::pin(std::future::pending())
    }

    fn hold(&self, server: &ServerName, holder: Holder) -> BoxFuture<Result<(), ServerFault>> {
        assert_eq!((server.as_str(), holder), ("s", Holder::Shared));
        *self.asked.lock().unwrap() += 1;
        let refused = self.refuses.lock().unwrap().clone();
        let announced = self.announced.lock().unwrap().take();
        Box::pin(async {
            if let Some(announced) = announced {
                let _ = announced.await; // Sent or dropped: both end the wait.
            }
            refused.map_or(Ok(()), Err)
        })
    }

    fn release(&self, _: &ServerName, _: u64) -> BoxFuture<()> {
        Box::pin(async {})
    }
}

/// A harness whose server stops after [`STOP`] without use.
struct IdleServer {
    harness: Harness,
    control: Arc<RecordedHolds>,
    watching: AbortHandle,
}

impl IdleServer {
    async fn begin() -> Self {
        let control = Arc::new(RecordedHolds::default());
        let mut settings = settings(CallRules::default());
        settings.rules.start = Start::Lazy;
        settings.rules.idle_stop = Some(STOP);
        let park = ParkSettings::default();
        let harness =
            Harness::with_control(control.clone(), settings, park, false, &subscribable()).await;
        let mut sleepy = Self { watching: watch(&harness), harness, control };
        sleepy.learn();
        advance_time(Duration::ZERO).await;
        sleepy
    }

    fn learn(&mut self) {
        let mut lists = Lists::default();
        let tools = r#"{"tools":[{"name":"x","inputSchema":{}}]}"#;
        let resources = r#"{"resources":[{"uri":"file:///a","name":"a"}]}"#;
        lists.set(Kind::Tools, Page::read(Kind::Tools, tools).unwrap().items);
        lists.set(Kind::Resources, Page::read(Kind::Resources, resources).unwrap().items);
        let known = ServerCatalog::new("s", subscribable(), lists);
        self.harness.router.learn(&self.harness.server, &self.harness.upstream, known);
    }

    /// Returns the reason for which the server was stopped since the last call.
    fn idle_reason(&mut self) -> Option<String> {
        let mut why = None;
        while let Ok(event) = self.harness.events.try_recv() {
            if let DriverEvent::Idle(event) = event {
                assert!(why.is_none(), "it goes once");
                why = Some(event);
            }
        }
        assert_eq!(why.is_some(), self.harness.upstream.is_closed());
        why
    }

    /// Tells the gateway whether the daemon has put the server to sleep.
    fn set_away(&self, is_away: bool) {
        let away = is_away.then_some(Holder::Shared).into_iter().collect();
        self.harness.server.set_asleep(away);
        self.harness.router.wake_needed(&self.harness.server);
    }

    /// Ends the process.
    fn end(&self) {
        self.watching.abort();
        self.harness.upstream.close(&Cause::end(LossReason::server("exited")));
        self.harness.router.on_instance_end(
            &self.harness.server,
            &self.harness.upstream,
            &LossReason::server("exited"),
        );
    }

    /// Starts the next process, which is ready.
    async fn come_back(&mut self) {
        self.set_away(false);
        let (events, received) = mpsc::channel(64);
        (self.harness.events, self.harness.sent) = (received, Rc::default());
        let Harness { router, server, sent, .. } = &self.harness;
        let upstream =
            start_upstream(router, server, events, sent.clone(), false, &subscribable()).await;
        self.harness.upstream = upstream;
        self.watching = watch(&self.harness);
        self.learn();
        advance_time(Duration::ZERO).await;
    }
}

fn watch(harness: &Harness) -> AbortHandle {
    let Harness { router, server, upstream, .. } = harness;
    let watching = idle_stop::stop_when_idle(router.clone(), server.clone(), upstream.clone());
    tokio::task::spawn_local(watching).abort_handle()
}

fn subscribable() -> Introduction {
    let introduction_json = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"resources":{"subscribe":true}},"serverInfo":{"name":"old"}}"#;
    Introduction::read(introduction_json).unwrap()
}

#[tokio::test(start_paused = true)]
async fn unused_server_stops_and_the_next_call_wakes_it() {
    run_local(async {
        let mut one = IdleServer::begin().await;
        let client = one.harness.client(&json!({}));
        advance_time(ALMOST).await;
        assert_eq!(one.idle_reason(), None);
        advance_time(Duration::from_millis(1)).await;
        assert_eq!(one.idle_reason().as_deref(), Some("not used for 8s"));
        one.set_away(true);
        one.end();
        assert_eq!(one.control.asked(), 0, "no call needs the server");
        client.ask(&json!("list"), "tools/list", &json!({}));
        assert_eq!(
            client.received()[0]["result"]["tools"][0]["name"],
            "s__x",
            "it is still listed"
        );
        advance_time(SECOND).await;
        assert_eq!(one.control.asked(), 0, "a list does not wake the server");
        client.call("c");
        client.call("d");
        advance_time(Duration::ZERO).await;
        assert_eq!(one.control.asked(), 1);
        assert!(client.received().is_empty(), "the calls wait");
        one.come_back().await;
        let calls = one.harness.calls();
        assert_eq!(calls.iter().map(|it| it.1.as_str()).collect::<Vec<_>>(), ["c", "d"]);
        for (upstream_id, _) in calls {
            one.harness.answer(upstream_id);
        }
        assert_eq!(client.received().len(), 2);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn open_call_delays_idle_stop_and_restarts_its_timer() {
    run_local(async {
        let mut one = IdleServer::begin().await;
        let client = one.harness.client(&json!({}));
        client.call("c");
        for _ in 0..10 {
            advance_time(STOP).await;
            assert_eq!(one.idle_reason(), None);
        }
        advance_time(SECOND).await;
        one.harness.answer(one.harness.calls()[0].0);
        advance_time(ALMOST).await;
        assert_eq!(one.idle_reason(), None);
        advance_time(Duration::from_millis(1)).await;
        assert!(one.idle_reason().is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn own_requests_of_the_gateway_do_not_count_as_use() {
    run_local(async {
        let mut one = IdleServer::begin().await;
        let send_request = || one.harness.upstream.ask("ping", None).unwrap();
        for _ in 0..7 {
            advance_time(SECOND).await;
            let question = send_request();
            let id = one.harness.sent().pop().unwrap()["id"].as_u64().unwrap();
            one.harness.answer(id);
            assert!(question.answer().await.is_ok());
        }
        let idle_for = one.harness.router.idle_for(&one.harness.server, &one.harness.upstream);
        assert_eq!(idle_for, Some(7 * SECOND));
        advance_time(SECOND).await;
        assert!(one.idle_reason().is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn resource_subscription_keeps_server_running() {
    run_local(async {
        let mut one = IdleServer::begin().await;
        let (a, b) = (one.harness.client(&json!({})), one.harness.client(&json!({})));
        for client in [&a, &b] {
            let params = json!({ "uri": "xy://s/file:///a" });
            client.ask(&json!("s"), "resources/subscribe", &params);
            let upstream_id = one.harness.sent().last().unwrap()["id"].as_u64().unwrap();
            one.harness.answer(upstream_id);
        }
        for client in [a, b] {
            for _ in 0..10 {
                advance_time(STOP).await;
                assert_eq!(one.idle_reason(), None);
            }
            client.client_session.close();
        }
        advance_time(STOP).await;
        assert_eq!(one.idle_reason(), None, "it may have been watched until just now");
        advance_time(STOP).await;
        assert!(one.idle_reason().is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn modern_subscription_keeps_server_running() {
    run_local(async {
        let mut one = IdleServer::begin().await;
        let view = View::Profile("default".to_owned());
        let entry = Entry {
            view,
            may_manage: false,
            lifetime: Lifetime::Request,
            principal: 1,
            bound: None,
        };
        let received = Rc::new(RecordedMessages::default());
        let client_session = one.harness.router.open(entry, received.clone()).unwrap();
        let client = TestClient { client_session, received };
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let filter = json!({ "resourceSubscriptions": ["xy://s/file:///a"] });
        let params = json!({ "notifications": filter, "_meta": meta });
        client.ask(&json!("l"), "subscriptions/listen", &params);
        advance_time(Duration::ZERO).await;
        let request = one.harness.sent().last().unwrap().clone();
        assert_eq!(request["method"], "resources/subscribe");
        one.harness.answer(request["id"].as_u64().unwrap());
        for _ in 0..10 {
            advance_time(STOP).await;
            assert_eq!(one.idle_reason(), None);
        }
        client.client_session.close();
        advance_time(STOP).await;
        assert_eq!(one.idle_reason(), None, "it may have been listened to until just now");
        advance_time(STOP).await;
        assert!(one.idle_reason().is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn task_keeps_server_running_until_it_expires() {
    run_local(async {
        let mut one = IdleServer::begin().await;
        let client = one.harness.client(&json!({}));
        let params = json!({ "name": "s__x", "arguments": {}, "task": { "ttl": 60_000 } });
        client.ask(&json!("t"), "tools/call", &params);
        let upstream_id = one.harness.calls()[0].0;
        let task = json!({ "taskId": "1", "status": "working", "createdAt": "2026-01-01T00:00:00Z", "ttl": 60_000 });
        one.harness.send(&json!({ "jsonrpc": "2.0", "id": upstream_id, "result": { "task": task } }));
        for _ in 0..13 {
            advance_time(STOP).await;
            assert_eq!(one.idle_reason(), None);
        }
        for _ in 0..5 {
            advance_time(STOP).await;
        }
        assert!(one.idle_reason().is_some(), "its time is over");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn dead_server_with_subscribers_is_woken() {
    run_local(async {
        let mut one = IdleServer::begin().await;
        let client = one.harness.client(&json!({}));
        client.ask(&json!("s"), "resources/subscribe", &json!({ "uri": "xy://s/file:///a" }));
        one.harness.answer(one.harness.sent().last().unwrap()["id"].as_u64().unwrap());
        one.end();
        one.set_away(true);
        advance_time(Duration::ZERO).await;
        assert_eq!(one.control.asked(), 1);
        one.come_back().await;
        let again = one.harness.sent();
        assert!(again.iter().any(|it| it["method"] == "resources/subscribe"), "{again:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn server_yields_to_others_only_if_idle() {
    run_local(async {
        let mut one = IdleServer::begin().await;
        let client = one.harness.client(&json!({}));
        client.call("c");
        for (is_used, expected) in [(true, None), (false, Some("others"))] {
            if !is_used {
                one.harness.answer(one.harness.calls()[0].0);
            }
            let (reply, answered) = oneshot::channel();
            let rest = IdleStop { why: "others".to_owned(), reply };
            idle_stop::stop_if_idle(
                &one.harness.router,
                &one.harness.server,
                &one.harness.upstream,
                rest,
            )
            .await;
            assert_eq!(answered.await.unwrap(), !is_used);
            assert_eq!(one.idle_reason().as_deref(), expected);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn idle_stop_can_be_set_while_the_server_runs() {
    run_local(async {
        let mut one = IdleServer::begin().await;
        let mut other = ServerSettings::clone(&one.harness.server.settings.borrow());
        other.rules.idle_stop = None;
        one.harness.server.configure(Arc::new(other.clone()));
        advance_time(100 * STOP).await;
        assert_eq!(one.idle_reason(), None);
        other.rules.idle_stop = Some(SECOND);
        one.harness.server.configure(Arc::new(other));
        advance_time(Duration::ZERO).await;
        assert_eq!(one.idle_reason(), None, "the time begins now");
        advance_time(SECOND).await;
        assert!(one.idle_reason().is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn waiting_client_learns_why_the_wake_failed() {
    run_local(async {
        let one = IdleServer::begin().await;
        let client = one.harness.client(&json!({}));
        one.end();
        one.set_away(true);
        let full =
            ServerFault::NoRoom { cause: "all places are taken".to_owned(), hint: String::new() };
        *one.control.refuses.lock().unwrap() = Some(full);
        client.call("c");
        advance_time(Duration::ZERO).await;
        assert!(client.error().starts_with("there is no room for an instance of `s`: all places"));
        let limit = ("instances, or the memory of all instances", Some(0));
        assert_eq!(shares::limits_hit(&one.harness.router), [limit]);
        one.set_away(true);
        assert_eq!(one.control.asked(), 1, "no call needs the server any more");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn server_that_dies_during_the_wake_is_woken_again() {
    run_local(async {
        let one = IdleServer::begin().await;
        let client = one.harness.client(&json!({}));
        one.end();
        one.set_away(true);
        let (announce, announced) = oneshot::channel();
        *one.control.announced.lock().unwrap() = Some(announced);
        client.call("c");
        advance_time(Duration::ZERO).await;
        assert_eq!(one.control.asked(), 1);
        // The server starts and dies, and the gateway sees this before the answer to its hold
        // request.
        one.set_away(false);
        one.set_away(true);
        assert_eq!(one.control.asked(), 0, "the gateway still waits for the wake");
        announce.send(()).unwrap();
        advance_time(Duration::ZERO).await;
        assert_eq!(one.control.asked(), 1);
        advance_time(SECOND).await;
        assert_eq!((one.control.asked(), client.received().len()), (0, 0), "it waits");
    })
    .await;
}

/// Checks a call around the moment of the idle stop. Exactly one process answers it, and at most
/// one is requested, whichever side hears of the other first.
#[tokio::test(start_paused = true)]
async fn call_at_the_moment_of_idle_stop_is_handled_exactly_once() {
    run_local(async {
        for offset in 0..7_u32 {
            for seen_after in 0..3 {
                let mut one = IdleServer::begin().await;
                let client = one.harness.client(&json!({}));
                let began = Instant::now();
                // From 3 ms before the stop to 4 ms after it.
                advance_time(Duration::from_millis(7997)).await;
                for step in 0..7 {
                    if step == offset {
                        client.call("c");
                    }
                    advance_time(Duration::from_millis(1)).await;
                }
                let (old, case) = (one.harness.calls(), format!("{offset} {seen_after}"));
                let goes = one.idle_reason().is_some();
                assert_eq!(goes, old.is_empty(), "{case}: the server stops, or it has the call");
                if goes {
                    for step in 0..3 {
                        if step == seen_after {
                            one.set_away(true);
                        }
                        advance_time(Duration::from_millis(1)).await;
                        if step == 1 {
                            one.end();
                        }
                    }
                    assert_eq!(one.control.asked(), 1, "{case}");
                    one.come_back().await;
                    let new = one.harness.calls();
                    assert_eq!(new.len(), 1, "{case}");
                    one.harness.answer(new[0].0);
                } else {
                    one.harness.answer(old[0].0);
                }
                assert_eq!(client.received().len(), 1, "{case}");
                assert_eq!(one.harness.server.waiting(), 0, "{case}");
                assert!(began.elapsed() < 2 * STOP);
                one.watching.abort();
            }
        }
    })
    .await;
}
