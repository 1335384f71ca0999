//! Lists that change: changes are gathered, told in time however many there are, and only if
//! something is another than it was.

use super::*;
use crate::catalog::{Kind, Known, Lists, Page};
use crate::upstream::Cause;
use crate::upstream_session::learn_lists;

const CHANGED: &str = "notifications/tools/list_changed";

/// The time between two things that happen.
const TICK: Duration = Duration::from_millis(10);

/// A change is told within this time of its list being answered or of the last that was told:
/// two waits of 50 ms, and what a server takes to answer.
const BOUND: u32 = 15;

/// A server whose list is what the story says, and a client that has seen it.
struct Stage {
    play: Harness,
    client: Visitor,
    /// The name of its only tool.
    tool: Cell<u32>,
}

impl Stage {
    async fn begin() -> Self {
        let play = Harness::begin().await;
        learn(&play);
        let client = play.client(&json!({}));
        let stage = Self { play, client, tool: Cell::new(0) };
        for _ in 0..BOUND {
            stage.tick().await;
        }
        assert_eq!(stage.listed(), ["s__tool0"]);
        stage
    }

    /// The tools that the client is shown now.
    fn listed(&self) -> Vec<String> {
        self.client.heard();
        self.client.ask(&json!("list"), "tools/list", &json!({}));
        let heard = self.client.heard();
        let tools = heard.iter().find_map(|it| it["result"]["tools"].as_array()).unwrap();
        tools.iter().map(|tool| text(&tool["name"])).collect()
    }

    /// Lets a little time pass, in which the server answers what it is asked.
    async fn tick(&self) {
        tokio::time::sleep(TICK).await;
        for asked in self.play.sent() {
            let tool = json!({ "name": format!("tool{}", self.tool.get()), "inputSchema": {} });
            if asked["method"] == "tools/list" {
                let result = json!({ "tools": [tool] });
                self.play.say(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result }));
            }
        }
    }

    /// The server says that its list has changed.
    fn says_changed(&self) {
        self.play.say(&json!({ "jsonrpc": "2.0", "method": CHANGED }));
    }

    /// How often the client has been told since.
    fn told(&self) -> usize {
        self.client.heard().iter().filter(|it| it["method"] == CHANGED).count()
    }
}

/// What the server offers is learned from now on.
fn learn(play: &Harness) {
    let introduction = play.upstream.introduction().unwrap();
    let (router, server) = (play.router.clone(), play.server.clone());
    let (settings, upstream) = (server.settings.borrow().clone(), play.upstream.clone());
    tokio::task::spawn_local(async move {
        learn_lists(&router, &server, &settings, &upstream, &introduction).await;
    });
}

#[tokio::test(start_paused = true)]
async fn a_list_that_never_stops_to_change_is_told_in_time_and_gathered() {
    here(async {
        let stage = Stage::begin().await;
        let (mut told, mut since) = (0, 0);
        for _ in 0..200 {
            stage.tool.set(stage.tool.get() + 1);
            stage.says_changed();
            stage.tick().await;
            since += 1;
            let now = stage.told();
            if now > 0 {
                since = 0;
            }
            told += now;
            assert!(since < BOUND, "nothing was told for {since} changes");
        }
        assert!((10..=50).contains(&told), "200 changes were told {told} times");
        for _ in 0..BOUND {
            stage.tick().await;
        }
        stage.told();
        stage.client.ask(&json!("again"), "tools/list", &json!({}));
        assert_eq!(stage.client.heard()[0]["result"]["tools"][0]["name"], "s__tool200");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_said_to_have_changed_and_has_not_is_not_told() {
    here(async {
        let stage = Stage::begin().await;
        for _ in 0..100 {
            stage.says_changed();
            stage.tick().await;
        }
        for _ in 0..BOUND {
            stage.tick().await;
        }
        assert_eq!(stage.told(), 0);
        stage.tool.set(1);
        stage.says_changed();
        for _ in 0..2 * BOUND {
            stage.tick().await;
        }
        assert_eq!(stage.told(), 1, "told once");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_life_that_does_not_answer_a_list_takes_nothing_away_and_is_asked_again_soon() {
    here(async {
        let mut stage = Stage::begin().await;
        stage.play.live_again().await;
        learn(&stage.play);
        tokio::time::sleep(31 * SECOND).await; // It is not answered in time.
        assert_eq!(stage.listed(), ["s__tool0"], "an earlier life has said so");
        stage.tool.set(1);
        stage.play.sent(); // It never answers these.
        tokio::time::sleep(2 * SECOND).await;
        stage.tick().await;
        stage.tick().await;
        assert_eq!(stage.listed(), ["s__tool1"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_only_remembered_is_shown_for_a_while_where_lists_are_not_answered() {
    here(async {
        let play = Harness::begin().await;
        let tools = r#"{"tools":[{"name":"kept","inputSchema":{}}]}"#;
        let mut lists = Lists::default();
        lists.set(Kind::Tools, Page::read(Kind::Tools, tools).unwrap().items);
        *play.server.known.borrow_mut() = Some(Rc::new(Known::new("s", legacy(), lists)));
        let client = play.client(&json!({}));
        let stage = Stage { play, client, tool: Cell::new(0) };
        learn(&stage.play);
        tokio::time::sleep(Duration::from_millis(100)).await;
        stage.play.sent();
        stage.play.upstream.lose_all(Cause::breach("the way broke"));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(stage.listed(), ["s__kept"]);
        tokio::time::sleep(32 * SECOND).await;
        assert_eq!(stage.listed(), [""; 0], "another program may be meant by now");
    })
    .await;
}
