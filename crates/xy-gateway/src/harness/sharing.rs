//! One process with two names: which calls wait, which are lost, and which process gets them next.

use xy_catalog::catalog::{Item, Lists, ServerCatalog};
use xy_mcp::kind::Kind;
use xy_protocol::server::Wanted;
use xy_supervisor::fleet::Member;
use xy_upstream::fault::{Cause, LossReason};

use super::*;

/// A gateway whose server `s` is also named `t`.
struct SharedProcess {
    harness: Harness,
    alias: Rc<Backend>,
}

impl SharedProcess {
    async fn begin() -> Self {
        let harness = Harness::begin().await;
        let alias = harness.router.ensure_server(&member("t", None, Wanted::Up).settings);
        let names = Self { harness, alias };
        names.set_members(&[member("s", None, Wanted::Up), member("t", Some("s"), Wanted::Up)]);
        let tool = |name: &str, is_read_only: bool| {
            let hints = json!({ "readOnlyHint": is_read_only });
            let tool = json!({ "name": name, "inputSchema": {}, "annotations": hints });
            Item::read(Kind::Tools, &tool.to_string()).unwrap()
        };
        let mut lists = Lists::default();
        lists.set(Kind::Tools, vec![tool("x", false), tool("look", true)]);
        let Harness { router, server, upstream, .. } = &names.harness;
        router.learn(server, upstream, ServerCatalog::new("s", legacy(), lists));
        names
    }

    /// Replaces the members of the fleet.
    fn set_members(&self, members: &[Member]) {
        let named = members.iter().map(|it| (it.settings.name.clone(), it.clone()));
        self.harness.router.set_owners(&named.collect());
    }

    /// Ends the process, without a successor.
    fn end(&self) {
        let Harness { router, server, upstream, .. } = &self.harness;
        upstream.close(&Cause::end(LossReason::server("has ended")));
        router.on_instance_end(server, upstream, &LossReason::server("has ended"));
    }

    /// Returns how many calls wait under each name.
    fn waiting(&self) -> [usize; 2] {
        let count = |it: &Backend| it.counts().waiting.load(std::sync::atomic::Ordering::Relaxed);
        [count(&self.harness.server), count(&self.alias)]
    }
}

fn member(name: &str, owner: Option<&str>, wanted: Wanted) -> Member {
    let named = |text: &str| ServerName::new(text).unwrap();
    let share_key = Some("k".to_owned());
    let settings = settings(CallRules::default());
    let settings = Arc::new(ServerSettings { name: named(name), share_key, ..settings });
    Member {
        settings,
        wanted,
        owner: owner.map(named),
        instances: BTreeMap::new(),
        last_failed: None,
        is_failing: false,
    }
}

fn call(client: &TestClient, tool: &str) {
    client.ask(&json!(tool), "tools/call", &json!({ "name": tool, "arguments": tool }));
}

#[tokio::test(start_paused = true)]
async fn stopping_one_name_fails_only_its_waiting_calls() {
    run_local(async {
        let names = SharedProcess::begin().await;
        let client = names.harness.client(&json!({}));
        names.end();
        call(&client, "s__look");
        call(&client, "t__look");
        assert_eq!(names.waiting(), [1, 1]);
        names.set_members(&[member("s", None, Wanted::Up), member("t", Some("s"), Wanted::Down)]);
        assert!(client.error().starts_with("`t` is not running: it was stopped"));
        assert_eq!(names.waiting(), [1, 0]);
        call(&client, "t__look");
        assert!(client.error().contains("`xy start t`"));
        names.set_members(&[member("s", None, Wanted::Down), member("t", Some("s"), Wanted::Up)]);
        assert!(client.error().starts_with("`s` is not running: it was stopped"));
        call(&client, "t__look");
        assert_eq!(names.waiting(), [0, 1]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn calls_go_to_the_next_process_of_their_name() {
    run_local(async {
        let names = SharedProcess::begin().await;
        let client = names.harness.client(&json!({}));
        for tool in ["t__look", "t__x", "s__look"] {
            call(&client, tool);
        }
        assert_eq!(names.harness.calls().len(), 3, "all are written");
        // The owner is removed while the calls are open.
        let Harness { router, server, .. } = &names.harness;
        names.set_members(&[member("t", None, Wanted::Up)]);
        server.is_removed.set(true);
        router.remove(server);
        names.end();
        let received = client.received();
        let message_of = |id: &str| {
            let answer = received.iter().find(|it| it["id"] == id);
            answer.map(|it| text(&it["error"]["message"])).unwrap_or_default()
        };
        assert_eq!(message_of("t__look"), "", "it is retried");
        assert!(message_of("t__x").starts_with("outcome unknown: `t` has ended"), "{received:?}");
        assert!(message_of("s__look").contains("`s`"), "{received:?}");
        assert_eq!(names.alias.waiting(), 1);
        let (events, _received) = mpsc::channel(64);
        let sent = Rc::new(RecordedWire::default());
        start_upstream(router, &names.alias, events, sent.clone(), false, &legacy()).await;
        let sent: Vec<Value> =
            sent.messages.take().iter().map(|it| serde_json::from_slice(it).unwrap()).collect();
        assert_eq!(sent.last().unwrap()["params"]["name"], "look", "{sent:?}");
    })
    .await;
}
