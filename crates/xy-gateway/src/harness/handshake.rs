//! Handshakes with servers that read their stdin late. xy must speak the era that the server is
//! pinned to.

use std::collections::VecDeque;

use tokio::sync::oneshot;
use xy_mcp::era::{Era, SpokenEras};
use xy_mcp::modern;
use xy_mcp::revision::MODERN;
use xy_upstream::connection::handshake::{
    FALLBACK_DELAY, FALLBACK_DELAY_IF_MODERN, Handshake, HandshakePlan,
};
use xy_upstream::connection::http_client::SessionError;
use xy_upstream::connection::probe::Hello;

use super::*;

/// A server's response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    Good,
    /// An error with this code, which names the modern era as supported.
    Refusal(i64),
    /// An error with this code, unless the client asks for the last of these revisions.
    Only(i64, &'static [&'static str]),
    /// A malformed result.
    Garbage,
    Silence,
}

/// A server that starts to read its stdin after a while.
#[derive(Debug, Clone, Copy)]
struct SlowServer {
    reads_after: Duration,
    discover: Reply,
    /// The response to `initialize` if the process is not pinned to an era.
    initialize: Reply,
    /// True if `server/discover` pins the process to the modern era, as in the Python SDK.
    discover_pins: bool,
    /// True if the server answers the last request first.
    is_backwards: bool,
    /// True if xy asks in both eras, to learn which ones the server speaks.
    learns: bool,
}

/// The time before the other question is sent too.
const UNKNOWN: Option<Duration> = Some(FALLBACK_DELAY);
const KNOWN_MODERN: Option<Duration> = Some(FALLBACK_DELAY_IF_MODERN);

const TYPESCRIPT: SlowServer = SlowServer {
    reads_after: Duration::ZERO,
    discover: Reply::Good,
    initialize: Reply::Good,
    discover_pins: false,
    is_backwards: false,
    learns: false,
};

const PYTHON: SlowServer = SlowServer { discover_pins: true, ..TYPESCRIPT };

/// A finished handshake.
struct HandshakeResult {
    result: Result<Introduction, SessionError>,
    upstream: Rc<Upstream>,
    sent: Rc<RecordedWire>,
    /// The era that the process is pinned to.
    pinned: Option<Era>,
    /// The eras that the server has shown to support, or not.
    shown: SpokenEras,
}

fn reply(request: &Value, reply: Reply, result: &Value) -> Option<Value> {
    let id = &request["id"];
    let supported = json!({ "supported": [MODERN], "requested": "2025-11-25" });
    Some(match reply {
        Reply::Good => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Reply::Garbage => json!({ "jsonrpc": "2.0", "id": id, "result": 7 }),
        Reply::Silence => return None,
        Reply::Only(_, all) if all.last().is_some_and(|it| *it == requested(request)) => {
            json!({ "jsonrpc": "2.0", "id": id, "result": { "protocolVersion": requested(request) } })
        }
        Reply::Only(code, all) => {
            let error = json!({ "code": code, "message": "no", "data": { "supported": all } });
            json!({ "jsonrpc": "2.0", "id": id, "error": error })
        }
        Reply::Refusal(code) => {
            let error = json!({ "code": code, "message": "no", "data": supported });
            json!({ "jsonrpc": "2.0", "id": id, "error": error })
        }
    })
}

fn requested(request: &Value) -> &Value {
    &request["params"]["protocolVersion"]
}

impl SlowServer {
    /// Returns the responses to these requests, and updates the era that the process is pinned to.
    fn answers(self, requests: &[Value], pinned: &mut Option<Era>) -> VecDeque<Value> {
        let mut answers = VecDeque::new();
        for request in requests {
            let answer = match request["method"].as_str() {
                Some("server/discover") => {
                    if self.discover_pins && pinned.is_none() {
                        *pinned = Some(Era::Modern);
                    }
                    reply(request, self.discover, &json!({ "supportedVersions": [MODERN] }))
                }
                Some("initialize") if *pinned == Some(Era::Modern) => {
                    reply(request, Reply::Refusal(modern::UNSUPPORTED_VERSION), &Value::Null)
                }
                Some("initialize") => {
                    if !matches!(self.initialize, Reply::Refusal(_) | Reply::Only(..)) {
                        *pinned = Some(Era::Legacy);
                    }
                    reply(request, self.initialize, &json!({ "protocolVersion": "2025-11-25" }))
                }
                _ => None,
            };
            answers.extend(answer);
        }
        if self.is_backwards {
            answers.make_contiguous().reverse();
        }
        answers
    }

    /// Performs the handshake. Returns `None` if it does not finish within a minute.
    async fn handshake(
        self,
        first: Hello,
        fallback_delay: Option<Duration>,
    ) -> Option<HandshakeResult> {
        let router = empty(Arc::new(NoDaemon), ParkSettings::default());
        let server = router.ensure_server(&Arc::new(settings(CallRules::default())));
        let (events, mut driver_events) = mpsc::channel(64);
        let sent = Rc::new(RecordedWire::default());
        let key = InstanceKey::shared(server.name.clone());
        let upstream = Upstream::new(key, events, 1, false, sent.clone(), router.clone());
        server.add(&upstream);
        tokio::task::spawn_local(async move { while driver_events.recv().await.is_some() {} });
        let (over, mut is_over) = oneshot::channel();
        let (receiver, learns) = (upstream.clone(), self.learns);
        let shown = Rc::new(Cell::new(SpokenEras::default()));
        let eras = shown.clone();
        tokio::task::spawn_local(async move {
            let daemon = router.this_daemon();
            let handshake = Handshake {
                capabilities: "{}",
                daemon,
                plan: HandshakePlan { first, learns, fallback_delay },
                is_one_process: true,
                probing: None,
                shown: &shown,
            };
            let _ = over
                .send(receiver.negotiate(handshake, |of, answer| of.read(&answer.unwrap())).await);
        });
        tokio::time::sleep(self.reads_after).await;
        let (mut read, mut pinned) = (0, None);
        for _ in 0..600 {
            let requests: Vec<Value> = {
                let messages = sent.messages.borrow();
                messages[read..].iter().map(|it| serde_json::from_slice(it).unwrap()).collect()
            };
            read += requests.len();
            for answer in self.answers(&requests, &mut pinned) {
                upstream.handle(answer.to_string().as_bytes(), None);
                tokio::task::yield_now().await;
            }
            tokio::time::sleep(SECOND / 10).await;
            if let Ok(result) = is_over.try_recv() {
                let result = result.map(|(introduction, _)| introduction);
                return Some(HandshakeResult { result, upstream, sent, pinned, shown: eras.get() });
            }
        }
        None
    }
}

impl HandshakeResult {
    /// Returns the negotiated era, after checking that lists are requested in this era.
    async fn era(self) -> Era {
        let Self { result, upstream, sent, .. } = self;
        let introduction = result.unwrap_or_else(|trouble| panic!("{}", trouble.words()));
        let era = introduction.era();
        assert!(self.pinned.is_none_or(|pinned| pinned == era), "the server is pinned to another");
        upstream.open(introduction).await;
        sent.messages.take();
        let _question = upstream.ask("tools/list", None).unwrap();
        let request = String::from_utf8(sent.messages.take().remove(0)).unwrap();
        assert_eq!(request.contains(modern::VERSION), era == Era::Modern, "{request}");
        era
    }

    /// Returns why the handshake failed.
    #[track_caller]
    fn reason(self) -> String {
        self.result.expect_err("it is not spoken with").words()
    }
}

fn started_slowly() -> [Duration; 3] {
    [3 * SECOND, 10 * SECOND, 30 * SECOND]
}

#[tokio::test(start_paused = true)]
async fn late_reader_is_greeted_in_its_pinned_era() {
    run_local(async {
        for reads_after in started_slowly() {
            for is_backwards in [false, true] {
                for fallback_delay in [UNKNOWN, KNOWN_MODERN, None] {
                    let of = |server: SlowServer| async move {
                        let server = SlowServer { reads_after, is_backwards, ..server };
                        let outcome = server.handshake(Hello::Discover, fallback_delay).await;
                        outcome.unwrap_or_else(|| panic!("{server:?} is not met")).era().await
                    };
                    let is_patient = fallback_delay.is_none_or(|it| reads_after < it);
                    let both = if is_patient { Era::Modern } else { Era::Legacy };
                    assert_eq!(of(TYPESCRIPT).await, both, "{reads_after:?}");
                    assert_eq!(of(PYTHON).await, Era::Modern, "{reads_after:?}");
                    for code in [-32601, -32600, -32022] {
                        let initialize = Reply::Refusal(code);
                        let only_modern = SlowServer { initialize, ..TYPESCRIPT };
                        assert_eq!(of(only_modern).await, Era::Modern, "{reads_after:?}");
                    }
                    for discover in [Reply::Refusal(-32601), Reply::Garbage, Reply::Silence] {
                        if discover == Reply::Silence && fallback_delay.is_none() {
                            continue; // The start timeout ends it.
                        }
                        let only_legacy = SlowServer { discover, ..TYPESCRIPT };
                        assert_eq!(of(only_legacy).await, Era::Legacy, "{reads_after:?}");
                    }
                }
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn server_with_unclear_pinned_era_is_given_up() {
    run_local(async {
        for reads_after in started_slowly() {
            for is_backwards in [false, true] {
                for initialize in [Reply::Garbage, Reply::Silence] {
                    let server = SlowServer { reads_after, initialize, is_backwards, ..TYPESCRIPT };
                    let outcome = server.handshake(Hello::Discover, UNKNOWN).await.unwrap();
                    assert_eq!(outcome.sent.messages.borrow().len(), 2, "no other request is sent");
                    let reason = outcome.reason();
                    assert!(reason.contains("`initialize`"), "{reason}");
                }
                let (discover, initialize) = (Reply::Garbage, Reply::Garbage);
                let server = SlowServer { reads_after, discover, initialize, ..TYPESCRIPT };
                let reason = server.handshake(Hello::Discover, UNKNOWN).await.unwrap().reason();
                assert!(reason.contains("`initialize`"), "{reason}");
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn wrongly_remembered_era_is_corrected() {
    run_local(async {
        for reads_after in [Duration::ZERO, 3 * SECOND, 30 * SECOND] {
            let of = |server: SlowServer, first, fallback_delay| async move {
                let outcome =
                    SlowServer { reads_after, ..server }.handshake(first, fallback_delay).await;
                outcome.unwrap().era().await
            };
            let discover = Reply::Refusal(-32601);
            let only_legacy = SlowServer { discover, ..TYPESCRIPT };
            assert_eq!(of(only_legacy, Hello::Discover, KNOWN_MODERN).await, Era::Legacy);
            let only_modern = SlowServer { initialize: Reply::Refusal(-32022), ..TYPESCRIPT };
            assert_eq!(of(only_modern, Hello::Initialize, UNKNOWN).await, Era::Modern);
        }
        let garbled = SlowServer { initialize: Reply::Garbage, ..TYPESCRIPT };
        let outcome = garbled.handshake(Hello::Initialize, UNKNOWN).await.unwrap();
        assert_eq!(outcome.sent.messages.borrow().len(), 1, "it may be pinned to the older era");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn server_that_lists_revisions_is_greeted_in_one_of_them() {
    run_local(async {
        let outcome = |discover, initialize, first| async move {
            let server = SlowServer { discover, initialize, ..TYPESCRIPT };
            server.handshake(first, UNKNOWN).await.unwrap()
        };
        let legacy = Reply::Only(-32022, &["2024-11-05", "2025-06-18"]);
        let by_params = Reply::Only(-32602, &["2025-06-18"]); // As the older revisions specify.
        let both = Reply::Only(-32022, &[MODERN, "2025-03-26"]);
        let unknown = Reply::Refusal(-32601);
        for (discover, initialize, first, version) in [
            (unknown, legacy, Hello::Discover, "2025-06-18"),
            (legacy, legacy, Hello::Discover, "2025-06-18"),
            (unknown, legacy, Hello::Initialize, "2025-06-18"),
            (unknown, by_params, Hello::Discover, "2025-06-18"),
            // The modern era comes first if the server names it too.
            (Reply::Good, both, Hello::Initialize, MODERN),
            (unknown, both, Hello::Initialize, "2025-03-26"),
        ] {
            let outcome = outcome(discover, initialize, first).await;
            let case = format!("{discover:?} {initialize:?} {first:?}");
            let result = outcome.result.unwrap_or_else(|it| panic!("{case}: {}", it.words()));
            assert_eq!(result.version, version, "{case}");
        }
        // The server claims to support the revision that it refuses.
        let stubborn = Reply::Only(-32022, &["2025-11-25", "2099-01-01"]);
        let outcome = outcome(unknown, stubborn, Hello::Discover).await;
        assert_eq!(outcome.sent.messages.borrow().len(), 2, "it is not retried forever");
        assert!(outcome.reason().contains("refused `initialize`"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn unknown_server_is_asked_in_both_eras() {
    use Era::{Legacy, Modern};
    use Hello::{Discover, Initialize};
    let (yes, no) = (Some(true), Some(false));
    let refuses = |code| SlowServer { initialize: Reply::Refusal(code), ..TYPESCRIPT };
    let only_legacy = SlowServer { discover: Reply::Refusal(-32601), ..TYPESCRIPT };
    run_local(async {
        for reads_after in [Duration::ZERO, 3 * SECOND, 10 * SECOND, 30 * SECOND] {
            for (server, first, era, legacy, modern) in [
                // `initialize` in the same process is enough.
                (TYPESCRIPT, Discover, Legacy, yes, yes),
                (only_legacy, Discover, Legacy, yes, no),
                (refuses(-32601), Discover, Modern, no, yes),
                // `server/discover` may be the cause of the refusal: only a fresh process can show.
                (PYTHON, Discover, Modern, None, yes),
                (refuses(-32022), Discover, Modern, None, yes),
                // A fresh process receives `initialize` first.
                (PYTHON, Initialize, Legacy, yes, None),
                (TYPESCRIPT, Initialize, Legacy, yes, None),
                (refuses(-32022), Initialize, Modern, no, yes),
                (refuses(-32601), Initialize, Modern, no, yes),
            ] {
                let server = SlowServer { reads_after, learns: true, ..server };
                let case = format!("{server:?} {first:?}");
                let outcome =
                    server.handshake(first, UNKNOWN).await.unwrap_or_else(|| panic!("{case}"));
                assert_eq!(outcome.shown, SpokenEras { legacy, modern }, "{case}");
                assert_eq!(outcome.era().await, era, "{case}");
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn refused_initialize_that_was_sent_first_shows_a_modern_server() {
    run_local(async {
        for reads_after in started_slowly() {
            for is_backwards in [false, true] {
                let initialize = Reply::Refusal(modern::UNSUPPORTED_VERSION);
                let only_modern = SlowServer { initialize, learns: true, ..TYPESCRIPT };
                let server = SlowServer { reads_after, is_backwards, ..only_modern };
                let outcome = server.handshake(Hello::Initialize, KNOWN_MODERN).await.unwrap();
                assert_eq!(outcome.shown.legacy, Some(false), "{server:?}");
                assert_eq!(outcome.era().await, Era::Modern);
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn silence_on_the_second_probe_fails_the_handshake() {
    run_local(async {
        for (first, initialize) in [
            (Hello::Discover, Reply::Silence),
            (Hello::Initialize, Reply::Silence),
            (Hello::Discover, Reply::Garbage),
        ] {
            let server = SlowServer { initialize, learns: true, ..TYPESCRIPT };
            let outcome = server.handshake(first, UNKNOWN).await.unwrap();
            assert_eq!(outcome.shown.modern, Some(true), "{first:?} {initialize:?}");
            assert!(outcome.reason().contains("`initialize`"));
        }
    })
    .await;
}
