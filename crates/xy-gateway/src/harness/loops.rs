//! Daemons that serve each other, in a row or in a ring.

use std::collections::{BTreeSet, VecDeque};

use tokio::sync::Notify;
use tokio::time::sleep;

use super::*;
use crate::backend::{Availability, Greeting};
use crate::catalog::{Item, Kind, Known, Lists};
use crate::upstream::Cause;
use crate::upstream::handshake::Meeting;
use crate::upstream::http_client::Trouble;
use crate::upstream::probe::Hello;
use crate::upstream_session::{Ended, learn_lists};

/// Long enough for everything to have been said.
const SETTLED: Duration = Duration::from_secs(20);

/// Daemons, each with a server `s` whose only tool is named after the daemon.
struct Daemons(Vec<Rc<Router>>);

/// A server of one daemon that is another daemon.
struct Link {
    upstream: Rc<Upstream>,
    is_loop: Rc<Cell<bool>>,
}

/// Messages on their way to somebody.
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
        let mut hubs = Vec::new();
        for number in 0..count {
            let router = empty(Arc::new(Nobody), ParkSettings::default());
            let server = router.server_of(&Arc::new(settings(CallRules::default())));
            let (said, _) = mpsc::channel(64);
            let upstream = life(&router, &server, said, Rc::default(), false, &legacy()).await;
            let tool = format!(r#"{{"name":"tool{number}","inputSchema":{{"type":"object"}}}}"#);
            let mut lists = Lists::default();
            lists.set(Kind::Tools, vec![Item::read(Kind::Tools, &tool).unwrap()]);
            router.learn(&server, &upstream, Known::new("s", legacy(), lists));
            hubs.push(router);
        }
        Self(hubs)
    }

    /// Has one daemon serve another, as one that may manage servers.
    fn link(&self, from: usize, to: usize, view: View) -> Link {
        let (router, behind) = (self.0[from].clone(), &self.0[to]);
        let entry =
            Entry { view, may_manage: true, lifetime: Lifetime::Session, who: 0, bound: None };
        let (asked, answered) = (Rc::new(Queue::default()), Rc::new(Queue::default()));
        let client_session = behind.open(entry, answered.clone()).unwrap();
        let name = ServerName::new(&format!("to{to}")).unwrap();
        let settings = ServerSettings { name: name.clone(), ..settings(CallRules::default()) };
        let settings = Arc::new(settings);
        let server = router.server_of(&settings);
        let (said, mut heard) = mpsc::channel(64);
        let key = InstanceKey::shared(name);
        let upstream = Upstream::new(key, said, 1, false, asked.clone(), router.clone());
        server.add(&upstream);
        tokio::task::spawn_local(async move { while heard.recv().await.is_some() {} });
        tokio::task::spawn_local(async move {
            loop {
                client_session.handle(&asked.next().await, 0);
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
            let meeting = Meeting {
                capabilities: "{}",
                daemon,
                greeting: Greeting {
                    first: Hello::Discover,
                    learns: false,
                    is_known_modern: false,
                },
                is_one_process: true,
                probing: None,
                shown: &Cell::default(),
            };
            let met = upstream.meet(meeting, |of, answer| of.read(&answer.unwrap())).await;
            let ended = match met {
                Ok((introduction, _)) => {
                    let introduction = upstream.open(introduction).await;
                    router.opened(&upstream);
                    tokio::select! {
                        ended = learn_lists(&router, &server, &settings, &upstream, &introduction) => ended,
                        () = upstream.keep_listening() => None,
                    }
                }
                Err(Trouble::Loop) => Some(Ended::Loop),
                Err(other) => panic!("{other:?}"),
            };
            if matches!(ended, Some(Ended::Loop)) {
                is_loop.set(true);
                router.hide_loop(&server);
                router.set_availability(&server, Availability::Down("it leads back".to_owned()));
                upstream.close(Cause::end("it leads back"));
                router.over(&server, &upstream, "it leads back");
            }
        });
        link
    }

    /// The tools that a client of a daemon is shown.
    async fn tools(&self, of: usize) -> Vec<String> {
        let entry = Entry {
            view: View::All,
            may_manage: false,
            lifetime: Lifetime::Session,
            who: 0,
            bound: None,
        };
        let heard = Rc::new(RecordedMessages::default());
        let client_session = self.0[of].open(entry, heard.clone()).unwrap();
        let visitor = Visitor { client_session, heard };
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
        visitor.ask(&json!(1), "initialize", &params);
        visitor.ask(&json!(2), "tools/list", &json!({}));
        sleep(SETTLED).await;
        let heard = visitor.heard();
        let answer = heard.iter().find(|it| it["id"] == 2).unwrap_or_else(|| panic!("{heard:?}"));
        let tools = answer["result"]["tools"].as_array().unwrap();
        tools.iter().map(|tool| text(&tool["name"])).collect()
    }
}

/// All orders of `0..count`.
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
async fn daemons_in_a_row_pass_tools_on() {
    here(async {
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
async fn a_ring_of_daemons_ends_whatever_the_order() {
    here(async {
        for count in 1..=4 {
            for order in orders(count) {
                let daemons = Daemons::new(count).await;
                let mut links = Vec::new();
                for from in &order {
                    links.push(daemons.link(*from, (from + 1) % count, View::All));
                    sleep(SETTLED).await;
                }
                let loops = links.iter().filter(|link| link.is_loop.get()).count();
                // A daemon that asks itself gives the server up; one that is asked by a daemon
                // behind its servers hides these.
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

/// Asserts that a daemon shows no tool twice, whatever its name.
async fn assert_each_once(daemons: &Daemons, of: usize) {
    let tools = daemons.tools(of).await;
    let once: BTreeSet<&str> = tools.iter().filter_map(|it| it.rsplit("__").next()).collect();
    assert_eq!(once.len(), tools.len(), "{of}: {tools:?}");
}

#[tokio::test(start_paused = true)]
async fn a_ring_that_closes_at_one_moment_ends_too() {
    here(async {
        for count in 1..=5 {
            let daemons = Daemons::new(count).await;
            let links: Vec<Link> =
                (0..count).map(|from| daemons.link(from, (from + 1) % count, View::All)).collect();
            sleep(SETTLED).await;
            for of in 0..count {
                assert_each_once(&daemons, of).await;
            }
            // In a ring of three all hide their servers at first, and have no reason to ask again.
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

/// Adds a server `h` to a daemon. It says that these daemons are behind it, as a JSON list.
async fn add_hostile(router: &Rc<Router>, behind: &str) -> Rc<Upstream> {
    let name = ServerName::new("h").unwrap();
    let settings = ServerSettings { name, ..settings(CallRules::default()) };
    let server = router.server_of(&Arc::new(settings));
    let said = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}"#;
    let meta = format!(r#"{{"_meta":{{"xy.daemon/behind":{behind}}},"#);
    let introduction = Introduction::read(&said.replacen('{', &meta, 1)).unwrap();
    let (said, _) = mpsc::channel(64);
    let upstream = life(router, &server, said, Rc::default(), false, &introduction).await;
    let tool = r#"{"name":"bad","inputSchema":{"type":"object"}}"#;
    let mut lists = Lists::default();
    lists.set(Kind::Tools, vec![Item::read(Kind::Tools, tool).unwrap()]);
    router.learn(&server, &upstream, Known::new("h", introduction, lists));
    upstream
}

#[tokio::test(start_paused = true)]
async fn server_that_names_another_daemon_hides_only_itself() {
    here(async {
        for (comes_first, names_many) in
            [(true, false), (true, true), (false, false), (false, true)]
        {
            let told = format!("first: {comes_first}, many: {names_many}");
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
            assert!(!link.is_loop.get(), "{told}");
            assert_eq!(daemons.tools(0).await, ["s__tool0", "to1__s__tool1"], "{told}");
            assert_eq!(daemons.tools(1).await, ["h__bad", "s__tool1"], "{told}");
            drop(hostile);
        }
    })
    .await;
}

/// Connects a client to a daemon. It says that these daemons ask, as a JSON list.
fn connect_liar(router: &Rc<Router>, via: &Value) -> Visitor {
    let entry = Entry {
        view: View::All,
        may_manage: false,
        lifetime: Lifetime::Session,
        who: 0,
        bound: None,
    };
    let heard = Rc::new(RecordedMessages::default());
    let client_session = router.open(entry, heard.clone()).unwrap();
    let visitor = Visitor { client_session, heard };
    let meta = json!({ "xy.daemon/via": via });
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "_meta": meta });
    visitor.ask(&json!(1), "initialize", &params);
    visitor
}

#[tokio::test(start_paused = true)]
async fn client_that_names_other_daemons_changes_nothing_for_other_clients() {
    here(async {
        for (comes_first, lie) in [true, false].iter().flat_map(|it| [(it, 1), (it, 2), (it, 0)]) {
            let told = format!("first: {comes_first}, lie: {lie}");
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
            // A changed list has daemon 0 ask again.
            let added = add_hostile(&daemons.0[1], "[]").await;
            sleep(SETTLED).await;
            assert!(!near.is_loop.get() && !far.is_loop.get(), "{told}");
            let all = ["s__tool0", "to1__h__bad", "to1__s__tool1", "to1__to2__s__tool2"];
            assert_eq!(daemons.tools(0).await, all, "{told}");
            drop((liar, added));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_server_of_a_daemon_may_not_lead_back_to_it_either() {
    here(async {
        let daemons = Daemons::new(2).await;
        let itself = daemons.link(0, 0, View::Server("s".to_owned()));
        let there = daemons.link(0, 1, View::Server("s".to_owned()));
        sleep(SETTLED).await;
        assert!(itself.is_loop.get() && !there.is_loop.get());
        // The other way round it is another server's matter: what is served there does not come
        // from here.
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
async fn tools_by_which_another_daemon_is_managed_are_not_passed_on() {
    here(async {
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
            let entry =
                Entry { view, may_manage: false, lifetime: Lifetime::Session, who: 0, bound: None };
            let heard = Rc::new(RecordedMessages::default());
            let client_session = daemons.0[0].open(entry, heard.clone()).unwrap();
            let visitor = Visitor { client_session, heard };
            let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
            visitor.ask(&json!(1), "initialize", &params);
            visitor.ask(&json!(2), "tools/list", &json!({}));
            sleep(SETTLED).await;
            let heard = visitor.heard();
            assert!(!json!(heard).to_string().contains("add_server"), "{heard:?}");
            visitor.ask(&json!(3), "tools/call", &json!({ "name": name, "arguments": {} }));
            sleep(SETTLED).await;
            let why = visitor.error();
            assert!(why.contains("not called through") || why.contains("Unknown tool"), "{why}");
        }
    })
    .await;
}
