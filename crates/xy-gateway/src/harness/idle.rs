//! Servers that sleep while nobody uses them: what keeps them awake, and what wakes them.

use std::sync::Mutex;

use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use xy_config::settings::Start;
use xy_supervisor::instance::Holder;
use xy_supervisor::speak::Rest;

use super::*;
use crate::catalog::{Kind, Known, Lists, Page};
use crate::upstream_session::idle_stop;

const STOP: Duration = Duration::from_secs(8);

/// Just before that.
const ALMOST: Duration = Duration::from_millis(7999);

/// A daemon that writes down whom it is to hold.
#[derive(Default)]
struct Holds {
    asked: Mutex<usize>,
    /// Why nobody comes.
    refuses: Mutex<Option<CallError>>,
    /// When it is said who comes; at once, if nobody has it.
    says: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Holds {
    /// How often it was asked since.
    fn asked(&self) -> usize {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Control for Holds {
    fn call(&self, _: control::Request) -> Later<Result<Value, CallError>> {
        Box::pin(std::future::pending())
    }

    fn hold(&self, server: &ServerName, holder: Holder) -> Later<Result<(), CallError>> {
        assert_eq!((server.as_str(), holder), ("s", Holder::Shared));
        *self.asked.lock().unwrap() += 1;
        let refused = self.refuses.lock().unwrap().clone();
        let says = self.says.lock().unwrap().take();
        Box::pin(async {
            if let Some(says) = says {
                let _ = says.await; // Said or dropped: either way it is time.
            }
            refused.map_or(Ok(()), Err)
        })
    }

    fn release(&self, _: &ServerName, _: u64) -> Later<()> {
        Box::pin(async {})
    }
}

/// A play with a server that sleeps after [`STOP`].
struct Sleepy {
    play: Harness,
    holds: Arc<Holds>,
    watching: AbortHandle,
}

impl Sleepy {
    async fn begin() -> Self {
        let holds = Arc::new(Holds::default());
        let mut settings = settings(CallRules::default());
        settings.rules.start = Start::Lazy;
        settings.rules.idle_stop = Some(STOP);
        let park = ParkSettings::default();
        let play = Harness::under(holds.clone(), settings, park, false, &subscribable()).await;
        let mut sleepy = Self { watching: watch(&play), play, holds };
        sleepy.learn();
        later(Duration::ZERO).await;
        sleepy
    }

    fn learn(&mut self) {
        let mut lists = Lists::default();
        let tools = r#"{"tools":[{"name":"x","inputSchema":{}}]}"#;
        let resources = r#"{"resources":[{"uri":"file:///a","name":"a"}]}"#;
        lists.set(Kind::Tools, Page::read(Kind::Tools, tools).unwrap().items);
        lists.set(Kind::Resources, Page::read(Kind::Resources, resources).unwrap().items);
        let known = Known::new("s", subscribable(), lists);
        self.play.router.learn(&self.play.server, &self.play.upstream, known);
    }

    /// Why it was let go since, if it was.
    fn rests(&mut self) -> Option<String> {
        let mut why = None;
        while let Ok(said) = self.play.said.try_recv() {
            if let Said::Idle(said) = said {
                assert!(why.is_none(), "it goes once");
                why = Some(said);
            }
        }
        assert_eq!(why.is_some(), self.play.upstream.is_closed());
        why
    }

    /// The daemon has heard that it is to sleep, and so have we.
    fn is_away(&self, is_away: bool) {
        let away = is_away.then_some(Holder::Shared).into_iter().collect();
        self.play.server.set_away(away);
        self.play.router.wake_needed(&self.play.server);
    }

    /// It is gone.
    fn is_over(&self) {
        self.watching.abort();
        self.play.upstream.close(crate::upstream::Cause::end("`s` exited"));
        self.play.router.over(&self.play.server, &self.play.upstream, "`s` exited");
    }

    /// Its next life can be asked.
    async fn comes(&mut self) {
        self.is_away(false);
        let (said, heard) = mpsc::channel(64);
        (self.play.said, self.play.sent) = (heard, Rc::default());
        let Harness { router, server, sent, .. } = &self.play;
        let upstream = life(router, server, said, sent.clone(), false, &subscribable()).await;
        self.play.upstream = upstream;
        self.watching = watch(&self.play);
        self.learn();
        later(Duration::ZERO).await;
    }
}

fn watch(play: &Harness) -> AbortHandle {
    let Harness { router, server, upstream, .. } = play;
    let watching = idle_stop::when_idle(router.clone(), server.clone(), upstream.clone());
    tokio::task::spawn_local(watching).abort_handle()
}

fn subscribable() -> Introduction {
    let said = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"resources":{"subscribe":true}},"serverInfo":{"name":"old"}}"#;
    Introduction::read(said).unwrap()
}

#[tokio::test(start_paused = true)]
async fn it_is_let_go_when_nobody_has_used_it_for_long_enough_and_the_next_call_wakes_it() {
    here(async {
        let mut one = Sleepy::begin().await;
        let client = one.play.client(&json!({}));
        later(ALMOST).await;
        assert_eq!(one.rests(), None);
        later(Duration::from_millis(1)).await;
        assert_eq!(one.rests().as_deref(), Some("not used for 8s"));
        one.is_away(true);
        one.is_over();
        assert_eq!(one.holds.asked(), 0, "nobody needs it");
        client.ask(&json!("list"), "tools/list", &json!({}));
        assert_eq!(client.heard()[0]["result"]["tools"][0]["name"], "s__x", "it is still listed");
        later(SECOND).await;
        assert_eq!(one.holds.asked(), 0, "a list wakes nobody");
        client.call("c");
        client.call("d");
        later(Duration::ZERO).await;
        assert_eq!(one.holds.asked(), 1);
        assert!(client.heard().is_empty(), "they wait");
        one.comes().await;
        let calls = one.play.calls();
        assert_eq!(calls.iter().map(|it| it.1.as_str()).collect::<Vec<_>>(), ["c", "d"]);
        for (ours, _) in calls {
            one.play.answer(ours);
        }
        assert_eq!(client.heard().len(), 2);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_open_call_keeps_it_and_the_time_counts_from_its_end() {
    here(async {
        let mut one = Sleepy::begin().await;
        let client = one.play.client(&json!({}));
        client.call("c");
        for _ in 0..10 {
            later(STOP).await;
            assert_eq!(one.rests(), None);
        }
        later(SECOND).await;
        one.play.answer(one.play.calls()[0].0);
        later(ALMOST).await;
        assert_eq!(one.rests(), None);
        later(Duration::from_millis(1)).await;
        assert!(one.rests().is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_we_ask_ourselves_keeps_nobody_awake() {
    here(async {
        let mut one = Sleepy::begin().await;
        let asks = || one.play.upstream.ask("ping", None).unwrap();
        for _ in 0..7 {
            later(SECOND).await;
            let question = asks();
            let id = one.play.sent().pop().unwrap()["id"].as_u64().unwrap();
            one.play.answer(id);
            assert!(question.answer().await.is_ok());
        }
        let idle_for = one.play.router.idle_for(&one.play.server, &one.play.upstream);
        assert_eq!(idle_for, Some(7 * SECOND));
        later(SECOND).await;
        assert!(one.rests().is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_watches_a_resource_keeps_it_until_the_last_has_gone() {
    here(async {
        let mut one = Sleepy::begin().await;
        let (a, b) = (one.play.client(&json!({})), one.play.client(&json!({})));
        for client in [&a, &b] {
            let params = json!({ "uri": "xy://s/file:///a" });
            client.ask(&json!("s"), "resources/subscribe", &params);
            let ours = one.play.sent().last().unwrap()["id"].as_u64().unwrap();
            one.play.answer(ours);
        }
        for client in [a, b] {
            for _ in 0..10 {
                later(STOP).await;
                assert_eq!(one.rests(), None);
            }
            client.client_session.close();
        }
        later(STOP).await;
        assert_eq!(one.rests(), None, "it may have been watched until just now");
        later(STOP).await;
        assert!(one.rests().is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_listens_in_the_newer_revision_keeps_it_until_it_has_gone() {
    here(async {
        let mut one = Sleepy::begin().await;
        let view = View::Profile("default".to_owned());
        let entry =
            Entry { view, may_manage: false, lifetime: Lifetime::Request, who: 1, bound: None };
        let heard = Rc::new(RecordedMessages::default());
        let client_session = one.play.router.open(entry, heard.clone()).unwrap();
        let client = Visitor { client_session, heard };
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let wanted = json!({ "resourceSubscriptions": ["xy://s/file:///a"] });
        let params = json!({ "notifications": wanted, "_meta": meta });
        client.ask(&json!("l"), "subscriptions/listen", &params);
        later(Duration::ZERO).await;
        let asked = one.play.sent().last().unwrap().clone();
        assert_eq!(asked["method"], "resources/subscribe");
        one.play.answer(asked["id"].as_u64().unwrap());
        for _ in 0..10 {
            later(STOP).await;
            assert_eq!(one.rests(), None);
        }
        client.client_session.close();
        later(STOP).await;
        assert_eq!(one.rests(), None, "it may have been listened to until just now");
        later(STOP).await;
        assert!(one.rests().is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_task_keeps_it_for_as_long_as_it_can_be_asked_about() {
    here(async {
        let mut one = Sleepy::begin().await;
        let client = one.play.client(&json!({}));
        let params = json!({ "name": "s__x", "arguments": {}, "task": { "ttl": 60_000 } });
        client.ask(&json!("t"), "tools/call", &params);
        let ours = one.play.calls()[0].0;
        let task = json!({ "taskId": "1", "status": "working", "createdAt": "2026-01-01T00:00:00Z", "ttl": 60_000 });
        one.play.say(&json!({ "jsonrpc": "2.0", "id": ours, "result": { "task": task } }));
        for _ in 0..13 {
            later(STOP).await;
            assert_eq!(one.rests(), None);
        }
        for _ in 0..5 {
            later(STOP).await;
        }
        assert!(one.rests().is_some(), "its time is over");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_that_died_though_somebody_watches_is_woken() {
    here(async {
        let mut one = Sleepy::begin().await;
        let client = one.play.client(&json!({}));
        client.ask(&json!("s"), "resources/subscribe", &json!({ "uri": "xy://s/file:///a" }));
        one.play.answer(one.play.sent().last().unwrap()["id"].as_u64().unwrap());
        one.is_over();
        one.is_away(true);
        later(Duration::ZERO).await;
        assert_eq!(one.holds.asked(), 1);
        one.comes().await;
        let again = one.play.sent();
        assert!(again.iter().any(|it| it["method"] == "resources/subscribe"), "{again:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn it_goes_at_once_for_others_if_nobody_uses_it_and_only_then() {
    here(async {
        let mut one = Sleepy::begin().await;
        let client = one.play.client(&json!({}));
        client.call("c");
        for (is_used, expected) in [(true, None), (false, Some("others"))] {
            if !is_used {
                one.play.answer(one.play.calls()[0].0);
            }
            let (reply, answered) = oneshot::channel();
            let rest = Rest { why: "others".to_owned(), reply };
            idle_stop::if_idle(&one.play.router, &one.play.server, &one.play.upstream, rest).await;
            assert_eq!(answered.await.unwrap(), !is_used);
            assert_eq!(one.rests().as_deref(), expected);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_idle_stop_it_stays_and_gets_one_while_it_lives() {
    here(async {
        let mut one = Sleepy::begin().await;
        let mut other = ServerSettings::clone(&one.play.server.settings.borrow());
        other.rules.idle_stop = None;
        one.play.server.configure(Arc::new(other.clone()));
        later(100 * STOP).await;
        assert_eq!(one.rests(), None);
        other.rules.idle_stop = Some(SECOND);
        one.play.server.configure(Arc::new(other));
        later(Duration::ZERO).await;
        assert_eq!(one.rests(), None, "the time begins now");
        later(SECOND).await;
        assert!(one.rests().is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_one_that_nobody_can_bring_is_told_why() {
    here(async {
        let one = Sleepy::begin().await;
        let client = one.play.client(&json!({}));
        one.is_over();
        one.is_away(true);
        let full = CallError::new(xy_protocol::error::ErrorKind::QueueFull, "all places are taken");
        *one.holds.refuses.lock().unwrap() = Some(full);
        client.call("c");
        later(Duration::ZERO).await;
        assert_eq!(client.error(), "all places are taken");
        one.is_away(true);
        assert_eq!(one.holds.asked(), 1, "nobody needs it any more");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_that_comes_and_goes_while_it_is_waited_for_is_woken_again() {
    here(async {
        let one = Sleepy::begin().await;
        let client = one.play.client(&json!({}));
        one.is_over();
        one.is_away(true);
        let (say, says) = oneshot::channel();
        *one.holds.says.lock().unwrap() = Some(says);
        client.call("c");
        later(Duration::ZERO).await;
        assert_eq!(one.holds.asked(), 1);
        // It starts and dies, and we see that before we hear what came of the wake.
        one.is_away(false);
        one.is_away(true);
        assert_eq!(one.holds.asked(), 0, "it is being woken, as far as we know");
        say.send(()).unwrap();
        later(Duration::ZERO).await;
        assert_eq!(one.holds.asked(), 1);
        later(SECOND).await;
        assert_eq!((one.holds.asked(), client.heard().len()), (0, 0), "it waits");
    })
    .await;
}

/// A call around the very moment at which it goes: it is answered by exactly one life, and at
/// most one life is asked for, whichever of the two hears of the other first.
#[tokio::test(start_paused = true)]
async fn a_call_of_the_moment_in_which_it_goes_is_neither_lost_nor_made_twice() {
    here(async {
        for offset in 0..7_u32 {
            for seen_after in 0..3 {
                let mut one = Sleepy::begin().await;
                let client = one.play.client(&json!({}));
                let began = Instant::now();
                // From a little before it goes to a little after, by the millisecond.
                later(Duration::from_millis(7997)).await;
                for step in 0..7 {
                    if step == offset {
                        client.call("c");
                    }
                    later(Duration::from_millis(1)).await;
                }
                let (old, told) = (one.play.calls(), format!("{offset} {seen_after}"));
                let goes = one.rests().is_some();
                assert_eq!(goes, old.is_empty(), "{told}: it goes, or it has the call");
                if goes {
                    for step in 0..3 {
                        if step == seen_after {
                            one.is_away(true);
                        }
                        later(Duration::from_millis(1)).await;
                        if step == 1 {
                            one.is_over();
                        }
                    }
                    assert_eq!(one.holds.asked(), 1, "{told}");
                    one.comes().await;
                    let new = one.play.calls();
                    assert_eq!(new.len(), 1, "{told}");
                    one.play.answer(new[0].0);
                } else {
                    one.play.answer(old[0].0);
                }
                assert_eq!(client.heard().len(), 1, "{told}");
                assert_eq!(one.play.server.waiting(), 0, "{told}");
                assert!(began.elapsed() < 2 * STOP);
                one.watching.abort();
            }
        }
    })
    .await;
}
