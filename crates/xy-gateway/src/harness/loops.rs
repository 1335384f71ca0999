//! Daemons that serve each other, in a row or in a ring.

use std::collections::{BTreeSet, VecDeque};

use tokio::sync::Notify;
use tokio::time::sleep;
use xy_catalog::catalog::{Item, Lists, ServerCatalog};
use xy_mcp::kind::Kind;
use xy_upstream::connection::handshake::{Handshake, HandshakePlan};
use xy_upstream::connection::http_client::SessionError;
use xy_upstream::connection::probe::Hello;
use xy_upstream::fault::{Cause, LossReason};

use super::*;
use crate::backend::Availability;
use crate::upstream_session::{LearnError, learn_lists};

/// Long enough for all messages to have been exchanged.
const SETTLED: Duration = Duration::from_secs(20);

/// Daemons, each with a server `s` whose only tool is named after the daemon.
struct Daemons(Vec<Rc<Router>>);

/// A server of one daemon that is another daemon.
struct Link {
    upstream: Rc<Upstream>,
    is_loop: Rc<Cell<bool>>,
}

/// Messages in transit.
#[derive(Default)]
struct Queue {
    messages: RefCell<VecDeque<Vec<u8>>>,
    news: Notify,
}

impl Queue {
    fn put(&self, message: &[u8]) {
        self.messages.borrow_mut().push_back(message.to_vec());
        self.news.notify_one();
    }

    async fn next(&self) -> Vec<u8> {
        loop {
            let next = self.messages.borrow_mut().pop_front();
            match next {
                Some(message) => return message,
                None => self.news.notified().await,
            }
        }
    }
}

impl Wire for Queue {
    fn put(&self, _call: Option<u64>, write: &mut dyn FnMut(&mut Chunks)) -> u64 {
        let mut message = Chunks::default();
        write(&mut message);
        Queue::put(self, &message.into_bytes());
        0
    }

    fn flush(&self, _is_alone: bool) {}

    fn is_written(&self, _place: u64) -> bool {
        true
    }

    fn waiting(&self) -> usize {
        0
    }

    fn close(&self) {}
}

impl Responder for Queue {
    fn put(&self, message: &[u8], to: Route) {
        if !matches!(to, Route::Cancelled(_)) {
            Queue::put(self, message);
        }
    }
}

impl Daemons {
    async fn new(count: usize) -> Self {
        let mut routers = Vec::new();
        for number in 0..count {
            let router = empty(Arc::new(NoDaemon), ParkSettings::default());
            let server = router.ensure_server(&Arc::new(settings(CallRules::default())));
            let (events, _) = mpsc::channel(64);
            let upstream =
                start_upstream(&router, &server, events, Rc::default(), false, &legacy()).await;
            let tool = format!(r#"{{"name":"tool{number}","inputSchema":{{"type":"object"}}}}"#);
            let mut lists = Lists::default();
            lists.set(Kind::Tools, vec![Item::read(Kind::Tools, &tool).unwrap()]);
            router.learn(&server, &upstream, ServerCatalog::new("s", legacy(), lists));
            routers.push(router);
        }
        Self(routers)
    }

    /// Adds daemon `to` as a server of daemon `from`, with the right to manage servers.
    fn link(&self, from: usize, to: usize, view: View) -> Link {
        let (router, behind) = (self.0[from].clone(), &self.0[to]);
        let entry = Entry {
            view,
            may_manage: true,
            lifetime: Lifetime::Session,
            principal: 0,
            bound: None,
        };
        let (requests, answered) = (Rc::new(Queue::default()), Rc::new(Queue::default()));
        let client_session = behind.open(entry, answered.clone()).unwrap();
        let name = ServerName::new(&format!("to{to}")).unwrap();
        let settings = ServerSettings { name: name.clone(), ..settings(CallRules::default()) };
        let settings = Arc::new(settings);
        let server = router.ensure_server(&settings);
        let (events, mut driver_events) = mpsc::channel(64);
        let key = InstanceKey::shared(name);
        let upstream = Upstream::new(key, events, 1, false, requests.clone(), router.clone());
        server.add(&upstream);
        tokio::task::spawn_local(async move { while driver_events.recv().await.is_some() {} });
        tokio::task::spawn_local(async move {
            loop {
                client_session.handle(&requests.next().await, 0);
            }
        });
        let receiver = upstream.clone();
        tokio::task::spawn_local(async move {
            loop {
                receiver.handle(&answered.next().await, None);
            }
        });
        let is_loop = Rc::new(Cell::new(false));
        let link = Link { upstream: upstream.clone(), is_loop: is_loop.clone() };
        tokio::task::spawn_local(async move {
            let daemon = router.this_daemon();
            let handshake = Handshake {
                capabilities: "{}",
                daemon,
                plan: HandshakePlan {
                    first: Hello::Discover,
                    learns: false,
                    fallback_delay: Some(2 * SECOND),
                },
                is_one_process: true,
                probing: None,
                shown: &Cell::default(),
            };
            let outcome =
                upstream.negotiate(handshake, |of, answer| of.read(&answer.unwrap())).await;
            let ended = match outcome {
                Ok((introduction, _)) => {
                    let introduction = upstream.open(introduction).await;
                    router.on_instance_ready(&upstream);
                    tokio::select! {
                        ended = learn_lists(&router, &server, &settings, &upstream, &introduction) => ended,
                        () = upstream.keep_listening() => None,
                    }
                }
                Err(SessionError::Loop) => Some(LearnError::Loop),
                Err(other) => panic!("{other:?}"),
            };
            if matches!(ended, Some(LearnError::Loop)) {
                is_loop.set(true);
                router.hide_loop(&server);
                router.set_availability(&server, Availability::Down("it leads back".to_owned()));
                upstream.close(&Cause::end(LossReason::Other("it leads back".into())));
                router.on_instance_end(
                    &server,
                    &upstream,
                    &LossReason::Other("it leads back".into()),
                );
            }
        });
        link
    }

    /// Returns the tools that a client of a daemon sees.
    async fn tools(&self, of: usize) -> Vec<String> {
        let entry = Entry {
            view: View::All,
            may_manage: false,
            lifetime: Lifetime::Session,
            principal: 0,
            bound: None,
        };
        let received = Rc::new(RecordedMessages::default());
        let client_session = self.0[of].open(entry, received.clone()).unwrap();
        let client = TestClient { client_session, received };
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
        client.ask(&json!(1), "initialize", &params);
        client.ask(&json!(2), "tools/list", &json!({}));
        sleep(SETTLED).await;
        let received = client.received();
        let answer =
            received.iter().find(|it| it["id"] == 2).unwrap_or_else(|| panic!("{received:?}"));
        let tools = answer["result"]["tools"].as_array().unwrap();
        tools.iter().map(|tool| text(&tool["name"])).collect()
    }
}

/// Returns all orders of `0..count`.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let with_last = |order: Vec<usize>| {
        (0..count).map(move |place| {
            let mut order = order.clone();
            order.insert(place, count - 1);
            order
        })
    };
    orders(count - 1).into_iter().flat_map(with_last).collect()
}

#[tokio::test(start_paused = true)]
async fn chained_daemons_pass_tools_on() {
    run_local(async {
        let daemons = Daemons::new(3).await;
        let links = [daemons.link(0, 1, View::All), daemons.link(1, 2, View::All)];
        sleep(SETTLED).await;
        assert!(links.iter().all(|link| !link.is_loop.get()));
        let tools = daemons.tools(0).await;
        assert_eq!(tools, ["s__tool0", "to1__s__tool1", "to1__to2__s__tool2"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn ring_of_daemons_is_cut_in_any_order() {
    run_local(async {
        for count in 1..=4 {
            for order in orders(count) {
                let daemons = Daemons::new(count).await;
                let mut links = Vec::new();
                for from in &order {
                    links.push(daemons.link(*from, (from + 1) % count, View::All));
                    sleep(SETTLED).await;
                }
                let loops = links.iter().filter(|link| link.is_loop.get()).count();
                // A daemon that finds itself gives the server up. A daemon that is asked by another
                // one behind its own servers hides those servers.
                assert!(loops <= 1, "{order:?}");
                for of in 0..count {
                    let tools = daemons.tools(of).await;
                    let own = tools.iter().filter(|it| it.contains(&format!("tool{of}"))).count();
                    assert_eq!(own, 1, "{order:?}: {tools:?}");
                    let names = tools.iter().filter_map(|it| it.rsplit("__").next());
                    let once: BTreeSet<&str> = names.collect();
                    assert_eq!(once.len(), tools.len(), "{order:?}: {tools:?}");
                    assert!(tools.len() <= count, "{order:?}: {tools:?}");
                }
            }
        }
    })
    .await;
}

/// Asserts that a daemon shows no tool twice, under any name.
async fn assert_each_once(daemons: &Daemons, of: usize) {
    let tools = daemons.tools(of).await;
    let once: BTreeSet<&str> = tools.iter().filter_map(|it| it.rsplit("__").next()).collect();
    assert_eq!(once.len(), tools.len(), "{of}: {tools:?}");
}

#[tokio::test(start_paused = true)]
async fn ring_that_closes_at_once_is_cut() {
    run_local(async {
        for count in 1..=5 {
            let daemons = Daemons::new(count).await;
            let links: Vec<Link> =
                (0..count).map(|from| daemons.link(from, (from + 1) % count, View::All)).collect();
            sleep(SETTLED).await;
            for of in 0..count {
                assert_each_once(&daemons, of).await;
            }
            // In a ring of three, all daemons hide their servers at first and have no reason to ask
            // again.
            let added = add_hostile(&daemons.0[0], "[]").await;
            sleep(SETTLED).await;
            assert!(links.iter().any(|link| link.is_loop.get()), "{count}");
            for of in 0..count {
                assert_each_once(&daemons, of).await;
            }
            drop(added);
        }
    })
    .await;
}

/// Adds a server `h` to a daemon. The server claims that these daemons are behind it, as a JSON
/// list.
async fn add_hostile(router: &Rc<Router>, behind: &str) -> Rc<Upstream> {
    let name = ServerName::new("h").unwrap();
    let settings = ServerSettings { name, ..settings(CallRules::default()) };
    let server = router.ensure_server(&Arc::new(settings));
    let result = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}"#;
    let meta = format!(r#"{{"_meta":{{"xy.daemon/behind":{behind}}},"#);
    let introduction = Introduction::read(&result.replacen('{', &meta, 1)).unwrap();
    let (events, _) = mpsc::channel(64);
    let upstream =
        start_upstream(router, &server, events, Rc::default(), false, &introduction).await;
    let tool = r#"{"name":"bad","inputSchema":{"type":"object"}}"#;
    let mut lists = Lists::default();
    lists.set(Kind::Tools, vec![Item::read(Kind::Tools, tool).unwrap()]);
    router.learn(&server, &upstream, ServerCatalog::new("h", introduction, lists));
    upstream
}

#[tokio::test(start_paused = true)]
async fn server_that_names_another_daemon_hides_only_itself() {
    run_local(async {
        for (comes_first, names_many) in
            [(true, false), (true, true), (false, false), (false, true)]
        {
            let case = format!("first: {comes_first}, many: {names_many}");
            let daemons = Daemons::new(2).await;
            let behind = if names_many {
                json!((0..300).map(|it| format!("d{it}")).collect::<Vec<_>>()).to_string()
            } else {
                json!(daemons.0[0].this_daemon()).to_string()
            };
            let mut hostile = None;
            if comes_first {
                hostile = Some(add_hostile(&daemons.0[1], &behind).await);
            }
            let link = daemons.link(0, 1, View::All);
            sleep(SETTLED).await;
            if !comes_first {
                hostile = Some(add_hostile(&daemons.0[1], &behind).await);
                sleep(SETTLED).await;
            }
            assert!(!link.is_loop.get(), "{case}");
            assert_eq!(daemons.tools(0).await, ["s__tool0", "to1__s__tool1"], "{case}");
            assert_eq!(daemons.tools(1).await, ["h__bad", "s__tool1"], "{case}");
            drop(hostile);
        }
    })
    .await;
}

/// Connects a client to a daemon. The client claims to come from these daemons, as a JSON list.
fn connect_liar(router: &Rc<Router>, via: &Value) -> TestClient {
    let entry = Entry {
        view: View::All,
        may_manage: false,
        lifetime: Lifetime::Session,
        principal: 0,
        bound: None,
    };
    let received = Rc::new(RecordedMessages::default());
    let client_session = router.open(entry, received.clone()).unwrap();
    let client = TestClient { client_session, received };
    let meta = json!({ "xy.daemon/via": via });
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "_meta": meta });
    client.ask(&json!(1), "initialize", &params);
    client
}

#[tokio::test(start_paused = true)]
async fn client_that_names_other_daemons_changes_nothing_for_other_clients() {
    run_local(async {
        for (comes_first, lie) in [true, false].iter().flat_map(|it| [(it, 1), (it, 2), (it, 0)]) {
            let case = format!("first: {comes_first}, lie: {lie}");
            let daemons = Daemons::new(3).await;
            let via = match lie {
                0 => json!((0..300).map(|it| format!("d{it}")).collect::<Vec<_>>()),
                of => json!(daemons.0[of].this_daemon()),
            };
            let far = daemons.link(1, 2, View::All);
            sleep(SETTLED).await;
            let mut liar = comes_first.then(|| connect_liar(&daemons.0[0], &via));
            let near = daemons.link(0, 1, View::All);
            sleep(SETTLED).await;
            liar.get_or_insert_with(|| connect_liar(&daemons.0[0], &via));
            // A changed list makes daemon 0 ask again.
            let added = add_hostile(&daemons.0[1], "[]").await;
            sleep(SETTLED).await;
            assert!(!near.is_loop.get() && !far.is_loop.get(), "{case}");
            let all = ["s__tool0", "to1__h__bad", "to1__s__tool1", "to1__to2__s__tool2"];
            assert_eq!(daemons.tools(0).await, all, "{case}");
            drop((liar, added));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn single_server_endpoint_may_not_lead_back_to_its_daemon() {
    run_local(async {
        let daemons = Daemons::new(2).await;
        let itself = daemons.link(0, 0, View::Server("s".to_owned()));
        let there = daemons.link(0, 1, View::Server("s".to_owned()));
        sleep(SETTLED).await;
        assert!(itself.is_loop.get() && !there.is_loop.get());
        // The reverse direction reaches another server, which does not come from daemon 1.
        let back = daemons.link(1, 0, View::Server("s".to_owned()));
        sleep(SETTLED).await;
        assert!(!back.is_loop.get());
        let around = daemons.link(1, 0, View::Server("to1".to_owned()));
        sleep(SETTLED).await;
        assert!(around.is_loop.get(), "it comes from here");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn managing_tools_of_another_daemon_are_not_passed_on() {
    run_local(async {
        let daemons = Daemons::new(2).await;
        let link = daemons.link(0, 1, View::All);
        sleep(SETTLED).await;
        assert!(link.upstream.introduction().unwrap().is_gateway);
        assert_eq!(daemons.tools(0).await, ["s__tool0", "to1__s__tool1"]);
        for (view, name) in [
            (View::All, "to1__add_server"),
            (View::All, "to1__call_tool"),
            (View::Server("to1".to_owned()), "add_server"),
            (View::Server("to1".to_owned()), "self_test"),
            (View::Server("to1".to_owned()), "not_listed"),
        ] {
            let entry = Entry {
                view,
                may_manage: false,
                lifetime: Lifetime::Session,
                principal: 0,
                bound: None,
            };
            let received = Rc::new(RecordedMessages::default());
            let client_session = daemons.0[0].open(entry, received.clone()).unwrap();
            let client = TestClient { client_session, received };
            let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
            client.ask(&json!(1), "initialize", &params);
            client.ask(&json!(2), "tools/list", &json!({}));
            sleep(SETTLED).await;
            let received = client.received();
            assert!(!json!(received).to_string().contains("add_server"), "{received:?}");
            client.ask(&json!(3), "tools/call", &json!({ "name": name, "arguments": {} }));
            sleep(SETTLED).await;
            let why = client.error();
            assert!(why.contains("not called through") || why.contains("Unknown tool"), "{why}");
        }
    })
    .await;
}
