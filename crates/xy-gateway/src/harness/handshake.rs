//! Handshakes with servers that read their stdin late: the era that a server is pinned to is the
//! era that xy speaks with it.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::*;
use crate::backend::{Greeting, SpokenEras};
use crate::era::{Era, MODERN};
use crate::modern;
use crate::upstream::handshake::Meeting;
use crate::upstream::http_client::Trouble;
use crate::upstream::probe::Hello;

/// An answer of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    Good,
    /// An error with this code, which says that the newer era is spoken.
    Refusal(i64),
    /// An error with this code, unless it is asked in the last of these revisions.
    Only(i64, &'static [&'static str]),
    /// A result that is none.
    Garbage,
    Silence,
}

/// A server with one stdin, which it reads for the first time after a while.
#[derive(Debug, Clone, Copy)]
struct Slow {
    reads_after: Duration,
    discover: Reply,
    /// The answer to `initialize` if the server is pinned to no era.
    initialize: Reply,
    /// True if `backend/discover` pins the process to the modern era, as in Python's SDK.
    discover_pins: bool,
    /// True if the server answers the last request first.
    is_backwards: bool,
    /// It is asked in both eras, to learn which it speaks.
    learns: bool,
}

const TYPESCRIPT: Slow = Slow {
    reads_after: Duration::ZERO,
    discover: Reply::Good,
    initialize: Reply::Good,
    discover_pins: false,
    is_backwards: false,
    learns: false,
};

const PYTHON: Slow = Slow { discover_pins: true, ..TYPESCRIPT };

/// A finished handshake.
struct Met {
    result: Result<Introduction, Trouble>,
    upstream: Rc<Upstream>,
    sent: Rc<Sent>,
    /// The era that the process is pinned to.
    pinned: Option<Era>,
    /// The eras that it has shown to speak, or not to.
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

impl Slow {
    /// Answers all that it has been sent, and says which era it is pinned to.
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

    /// Meets the server. `None` if nothing came of it within a minute.
    async fn meet(self, first: Hello, is_known_modern: bool) -> Option<Met> {
        let router = empty(Arc::new(Nobody), ParkSettings::default());
        let server = router.server_of(&Arc::new(settings(CallRules::default())));
        let (said, mut heard) = mpsc::channel(64);
        let sent = Rc::new(Sent::default());
        let key = InstanceKey::shared(server.name.clone());
        let upstream = Upstream::new(key, said, 1, false, sent.clone(), router.clone());
        server.add(&upstream);
        tokio::task::spawn_local(async move { while heard.recv().await.is_some() {} });
        let (over, mut is_over) = oneshot::channel();
        let (met, learns) = (upstream.clone(), self.learns);
        let shown = Rc::new(Cell::new(SpokenEras::default()));
        let eras = shown.clone();
        tokio::task::spawn_local(async move {
            let daemon = router.this_daemon();
            let meeting = Meeting {
                capabilities: "{}",
                daemon,
                greeting: Greeting { first, learns, is_known_modern },
                is_one_process: true,
                probing: None,
                shown: &shown,
            };
            let _ = over.send(met.meet(meeting, |of, answer| of.read(&answer.unwrap())).await);
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
                return Some(Met { result, upstream, sent, pinned, shown: eras.get() });
            }
        }
        None
    }
}

impl Met {
    /// The era that was found; lists are then asked for in its words.
    async fn era(self) -> Era {
        let Self { result, upstream, sent, .. } = self;
        let introduction = result.unwrap_or_else(|trouble| panic!("{}", trouble.words()));
        let era = introduction.era();
        assert!(self.pinned.is_none_or(|pinned| pinned == era), "the server is pinned to another");
        upstream.open(introduction).await;
        sent.messages.take();
        let _question = upstream.ask("tools/list", None).unwrap();
        let asked = String::from_utf8(sent.messages.take().remove(0)).unwrap();
        assert_eq!(asked.contains(modern::VERSION), era == Era::Modern, "{asked}");
        era
    }

    /// Why it is not spoken with.
    #[track_caller]
    fn reason(self) -> String {
        self.result.expect_err("it is not spoken with").words()
    }
}

fn started_slowly() -> [Duration; 3] {
    [3 * SECOND, 10 * SECOND, 30 * SECOND]
}

#[tokio::test(start_paused = true)]
async fn a_server_that_reads_late_is_spoken_with_in_the_era_it_is_pinned_to() {
    here(async {
        for reads_after in started_slowly() {
            for is_backwards in [false, true] {
                for is_known_modern in [false, true] {
                    let of = |server: Slow| async move {
                        let server = Slow { reads_after, is_backwards, ..server };
                        let met = server.meet(Hello::Discover, is_known_modern).await;
                        met.unwrap_or_else(|| panic!("{server:?} is not met")).era().await
                    };
                    // A server that is known to be modern has 5 s until it hears `initialize`.
                    let is_patient = is_known_modern && reads_after < 5 * SECOND;
                    let both = if is_patient { Era::Modern } else { Era::Legacy };
                    assert_eq!(of(TYPESCRIPT).await, both, "{reads_after:?}");
                    assert_eq!(of(PYTHON).await, Era::Modern, "{reads_after:?}");
                    for code in [-32601, -32600, -32022] {
                        let initialize = Reply::Refusal(code);
                        let only_modern = Slow { initialize, ..TYPESCRIPT };
                        assert_eq!(of(only_modern).await, Era::Modern, "{reads_after:?}");
                    }
                    for discover in [Reply::Refusal(-32601), Reply::Garbage, Reply::Silence] {
                        let only_legacy = Slow { discover, ..TYPESCRIPT };
                        assert_eq!(of(only_legacy).await, Era::Legacy, "{reads_after:?}");
                    }
                }
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_may_be_pinned_to_either_era_is_not_spoken_with() {
    here(async {
        for reads_after in started_slowly() {
            for is_backwards in [false, true] {
                for initialize in [Reply::Garbage, Reply::Silence] {
                    let server = Slow { reads_after, initialize, is_backwards, ..TYPESCRIPT };
                    let met = server.meet(Hello::Discover, false).await.unwrap();
                    assert_eq!(met.sent.messages.borrow().len(), 2, "nothing else is said");
                    let reason = met.reason();
                    assert!(reason.contains("`initialize`"), "{reason}");
                }
                let (discover, initialize) = (Reply::Garbage, Reply::Garbage);
                let server = Slow { reads_after, discover, initialize, ..TYPESCRIPT };
                let reason = server.meet(Hello::Discover, false).await.unwrap().reason();
                assert!(reason.contains("`initialize`"), "{reason}");
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_remembered_in_the_other_era_is_found_in_its_own() {
    here(async {
        for reads_after in [Duration::ZERO, 3 * SECOND, 30 * SECOND] {
            let of = |server: Slow, first, is_known_modern| async move {
                let met = Slow { reads_after, ..server }.meet(first, is_known_modern).await;
                met.unwrap().era().await
            };
            let discover = Reply::Refusal(-32601);
            let only_legacy = Slow { discover, ..TYPESCRIPT };
            assert_eq!(of(only_legacy, Hello::Discover, true).await, Era::Legacy);
            let only_modern = Slow { initialize: Reply::Refusal(-32022), ..TYPESCRIPT };
            assert_eq!(of(only_modern, Hello::Initialize, false).await, Era::Modern);
        }
        let garbled = Slow { initialize: Reply::Garbage, ..TYPESCRIPT };
        let met = garbled.meet(Hello::Initialize, false).await.unwrap();
        assert_eq!(met.sent.messages.borrow().len(), 1, "it may be pinned to the older era");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_names_the_revisions_it_speaks_is_greeted_in_one_of_them() {
    here(async {
        let met = |discover, initialize, first| async move {
            let server = Slow { discover, initialize, ..TYPESCRIPT };
            server.meet(first, false).await.unwrap()
        };
        let legacy = Reply::Only(-32022, &["2024-11-05", "2025-06-18"]);
        let by_params = Reply::Only(-32602, &["2025-06-18"]); // As the older revisions have it.
        let both = Reply::Only(-32022, &[MODERN, "2025-03-26"]);
        let unknown = Reply::Refusal(-32601);
        for (discover, initialize, first, version) in [
            (unknown, legacy, Hello::Discover, "2025-06-18"),
            (legacy, legacy, Hello::Discover, "2025-06-18"),
            (unknown, legacy, Hello::Initialize, "2025-06-18"),
            (unknown, by_params, Hello::Discover, "2025-06-18"),
            // The newer era is tried first, if it is named too.
            (Reply::Good, both, Hello::Initialize, MODERN),
            (unknown, both, Hello::Initialize, "2025-03-26"),
        ] {
            let met = met(discover, initialize, first).await;
            let story = format!("{discover:?} {initialize:?} {first:?}");
            let result = met.result.unwrap_or_else(|it| panic!("{story}: {}", it.words()));
            assert_eq!(result.version, version, "{story}");
        }
        // It says that it speaks what it refuses.
        let stubborn = Reply::Only(-32022, &["2025-11-25", "2099-01-01"]);
        let met = met(unknown, stubborn, Hello::Discover).await;
        assert_eq!(met.sent.messages.borrow().len(), 2, "it is not asked for ever");
        assert!(met.reason().contains("refused `initialize`"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn server_of_which_nothing_is_known_is_asked_in_both_eras() {
    use Era::{Legacy, Modern};
    use Hello::{Discover, Initialize};
    let (yes, no) = (Some(true), Some(false));
    let refuses = |code| Slow { initialize: Reply::Refusal(code), ..TYPESCRIPT };
    let only_legacy = Slow { discover: Reply::Refusal(-32601), ..TYPESCRIPT };
    here(async {
        for reads_after in [Duration::ZERO, 3 * SECOND, 10 * SECOND, 30 * SECOND] {
            for (server, first, era, legacy, modern) in [
                // `initialize` in the same process is enough.
                (TYPESCRIPT, Discover, Legacy, yes, yes),
                (only_legacy, Discover, Legacy, yes, no),
                (refuses(-32601), Discover, Modern, no, yes),
                // `backend/discover` may be why it is refused: only a fresh process shows.
                (PYTHON, Discover, Modern, None, yes),
                (refuses(-32022), Discover, Modern, None, yes),
                // Which is asked with `initialize` first.
                (PYTHON, Initialize, Legacy, yes, None),
                (TYPESCRIPT, Initialize, Legacy, yes, None),
                (refuses(-32022), Initialize, Modern, no, yes),
                (refuses(-32601), Initialize, Modern, no, yes),
            ] {
                let server = Slow { reads_after, learns: true, ..server };
                let story = format!("{server:?} {first:?}");
                let met = server.meet(first, false).await.unwrap_or_else(|| panic!("{story}"));
                assert_eq!(met.shown, SpokenEras { legacy, modern }, "{story}");
                assert_eq!(met.era().await, era, "{story}");
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn silence_on_the_second_question_of_a_learned_server_is_no_success() {
    here(async {
        for (first, initialize) in [
            (Hello::Discover, Reply::Silence),
            (Hello::Initialize, Reply::Silence),
            (Hello::Discover, Reply::Garbage),
        ] {
            let server = Slow { initialize, learns: true, ..TYPESCRIPT };
            let met = server.meet(first, false).await.unwrap();
            assert_eq!(met.shown.modern, Some(true), "{first:?} {initialize:?}");
            assert!(met.reason().contains("`initialize`"));
        }
    })
    .await;
}
