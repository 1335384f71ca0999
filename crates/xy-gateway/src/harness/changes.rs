//! List changes: they are batched, announced within a bounded time, and only if a list really
//! differs.

use xy_catalog::catalog::{Lists, Page, ServerCatalog};
use xy_mcp::kind::Kind;
use xy_upstream::fault::{Cause, LossReason};

use super::*;
use crate::upstream_session::learn_lists;

const CHANGED: &str = "notifications/tools/list_changed";

/// The time between two events.
const TICK_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum number of ticks until a change is announced, counted from the response with the list or
/// from the last announcement: two waits of 50 ms, and the server's response time.
const MAX_TICKS: u32 = 15;

/// A server whose list the test chooses, and a client that has read this list.
struct Fixture {
    harness: Harness,
    client: TestClient,
    /// The number in the name of the server's only tool.
    tool: Cell<u32>,
}

impl Fixture {
    async fn begin() -> Self {
        let harness = Harness::begin().await;
        learn(&harness);
        let client = harness.client(&json!({}));
        let fixture = Self { harness, client, tool: Cell::new(0) };
        for _ in 0..MAX_TICKS {
            fixture.tick().await;
        }
        assert_eq!(fixture.listed(), ["s__tool0"]);
        fixture
    }

    /// Returns the tools that the client sees now.
    fn listed(&self) -> Vec<String> {
        self.client.received();
        self.client.ask(&json!("list"), "tools/list", &json!({}));
        let received = self.client.received();
        let tools = received.iter().find_map(|it| it["result"]["tools"].as_array()).unwrap();
        tools.iter().map(|tool| text(&tool["name"])).collect()
    }

    /// Advances time a little, and answers what the server was asked.
    async fn tick(&self) {
        tokio::time::sleep(TICK_INTERVAL).await;
        for request in self.harness.sent() {
            let tool = json!({ "name": format!("tool{}", self.tool.get()), "inputSchema": {} });
            if request["method"] == "tools/list" {
                let result = json!({ "tools": [tool] });
                self.harness
                    .send(&json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }));
            }
        }
    }

    /// Announces a list change from the server.
    fn announce_change(&self) {
        self.harness.send(&json!({ "jsonrpc": "2.0", "method": CHANGED }));
    }

    /// Returns how many list changes the client was notified of since the last call.
    fn notifications(&self) -> usize {
        self.client.received().iter().filter(|it| it["method"] == CHANGED).count()
    }
}

/// Starts to learn what the server offers.
fn learn(harness: &Harness) {
    let introduction = harness.upstream.introduction().unwrap();
    let (router, server) = (harness.router.clone(), harness.server.clone());
    let (settings, upstream) = (server.settings.borrow().clone(), harness.upstream.clone());
    tokio::task::spawn_local(async move {
        learn_lists(&router, &server, &settings, &upstream, &introduction).await;
    });
}

#[tokio::test(start_paused = true)]
async fn constant_list_changes_are_batched_and_announced_in_time() {
    run_local(async {
        let fixture = Fixture::begin().await;
        let (mut notifications, mut since) = (0, 0);
        for _ in 0..200 {
            fixture.tool.set(fixture.tool.get() + 1);
            fixture.announce_change();
            fixture.tick().await;
            since += 1;
            let now = fixture.notifications();
            if now > 0 {
                since = 0;
            }
            notifications += now;
            assert!(since < MAX_TICKS, "nothing was announced for {since} changes");
        }
        assert!(
            (10..=50).contains(&notifications),
            "200 changes were announced {notifications} times"
        );
        for _ in 0..MAX_TICKS {
            fixture.tick().await;
        }
        fixture.notifications();
        fixture.client.ask(&json!("again"), "tools/list", &json!({}));
        assert_eq!(fixture.client.received()[0]["result"]["tools"][0]["name"], "s__tool200");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn unchanged_list_is_not_announced() {
    run_local(async {
        let fixture = Fixture::begin().await;
        for _ in 0..100 {
            fixture.announce_change();
            fixture.tick().await;
        }
        for _ in 0..MAX_TICKS {
            fixture.tick().await;
        }
        assert_eq!(fixture.notifications(), 0);
        fixture.tool.set(1);
        fixture.announce_change();
        for _ in 0..2 * MAX_TICKS {
            fixture.tick().await;
        }
        assert_eq!(fixture.notifications(), 1, "announced once");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn unanswered_list_keeps_old_tools_and_is_retried() {
    run_local(async {
        let mut fixture = Fixture::begin().await;
        fixture.harness.restart().await;
        learn(&fixture.harness);
        tokio::time::sleep(31 * SECOND).await; // The request for the list times out.
        assert_eq!(fixture.listed(), ["s__tool0"], "the previous process has listed it");
        fixture.tool.set(1);
        fixture.harness.sent(); // The server never answers these.
        tokio::time::sleep(2 * SECOND).await;
        fixture.tick().await;
        fixture.tick().await;
        assert_eq!(fixture.listed(), ["s__tool1"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn remembered_lists_expire_if_server_does_not_list() {
    run_local(async {
        let harness = Harness::begin().await;
        let tools = r#"{"tools":[{"name":"kept","inputSchema":{}}]}"#;
        let mut lists = Lists::default();
        lists.set(Kind::Tools, Page::read(Kind::Tools, tools).unwrap().items);
        *harness.server.known.borrow_mut() =
            Some(Rc::new(ServerCatalog::new("s", legacy(), lists)));
        let client = harness.client(&json!({}));
        let fixture = Fixture { harness, client, tool: Cell::new(0) };
        learn(&fixture.harness);
        tokio::time::sleep(Duration::from_millis(100)).await;
        fixture.harness.sent();
        fixture
            .harness
            .upstream
            .fail_all(&Cause::breach(LossReason::Other("the way broke".into())));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(fixture.listed(), ["s__kept"]);
        tokio::time::sleep(32 * SECOND).await;
        assert_eq!(fixture.listed(), [""; 0], "another program may be meant by now");
    })
    .await;
}
