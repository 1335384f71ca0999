//! Calls of servers that die: which are sent again, which are not, and what their clients hear.

use std::collections::HashMap;

use xy_supervisor::instance::Holder;

use super::*;
use crate::backend::Availability;
use crate::catalog::{Kind, Known, Lists, Page};
use crate::upstream::retry::Stage;

mod bounds;
mod gone;
mod hung;

/// What the server offers: two tools that may be called twice, and one that may not.
const TOOLS: &str = r#"{"tools":[
    {"name":"read","inputSchema":{},"annotations":{"readOnlyHint":true}},
    {"name":"set","inputSchema":{},"annotations":{"readOnlyHint":false,"idempotentHint":true}},
    {"name":"x","inputSchema":{}}
]}"#;

const NO_RULES: CallRules = CallRules { idle: None, within: None };
const WITHIN: CallRules = CallRules { idle: None, within: Some(Duration::from_secs(10)) };

/// A modern server, as it says of itself.
const MODERN: &str = r#"{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}"#;

fn known() -> Known {
    known_of("s", legacy())
}

fn known_of(name: &str, introduction: Introduction) -> Known {
    let mut lists = Lists::default();
    lists.set(Kind::Tools, Page::read(Kind::Tools, TOOLS).unwrap().items);
    Known::new(name, introduction, lists)
}

impl Harness {
    /// A server that has said what it offers.
    async fn known() -> Self {
        Self::known_with(ParkSettings::default(), NO_RULES).await
    }

    async fn known_with(park: ParkSettings, calls: CallRules) -> Self {
        let play = Self::where_may_wait(park, calls, false, &legacy()).await;
        play.router.learn(&play.server, &play.upstream, known());
        play
    }

    /// The server dies.
    fn die(&self) {
        self.upstream.close(crate::upstream::Cause::end("`s` was killed"));
        self.router.over(&self.server, &self.upstream, "`s` was killed");
    }

    /// Its successor comes up, and has not said yet what it offers.
    async fn come_back(&mut self) {
        self.come_back_as(&legacy()).await;
    }

    async fn come_back_as(&mut self, introduction: &Introduction) {
        let (said, heard) = mpsc::channel(64);
        (self.said, self.sent) = (heard, Rc::default());
        let sent = self.sent.clone();
        self.upstream = life(&self.router, &self.server, said, sent, false, introduction).await;
    }

    /// It will not come up.
    fn give_up(&self, why: &str) {
        self.router.set_availability(&self.server, Availability::Down(why.to_owned()));
    }

    /// What the server is called now, by what the calls say, and no more.
    fn names(&self) -> Vec<String> {
        self.calls().into_iter().map(|(_, name)| name).collect()
    }

    fn counts(&self) -> (u64, u64) {
        (self.server.counts.again.get(), self.server.counts.unknown.get())
    }
}

impl Visitor {
    /// Calls one of the server's tools, saying its own id.
    fn call_tool(&self, tool: &str, id: &str) {
        let meta = json!({ "progressToken": format!("token of {id}") });
        let name = format!("s__{tool}");
        let params = json!({ "name": name, "arguments": id, "_meta": meta });
        self.ask(&json!(id), "tools/call", &params);
    }

    /// What its calls have come to since: their ids, and what was answered.
    fn outcomes(&self) -> Vec<(String, String)> {
        let outcome = |it: &Value| match it["error"]["message"].as_str() {
            Some(words) => words.split([':', ' ']).take(2).collect::<Vec<_>>().join(" "),
            None => it["result"].to_string(),
        };
        self.heard().iter().map(|it| (text(&it["id"]), outcome(it))).collect()
    }
}

fn unknown(id: &str) -> (String, String) {
    (id.to_owned(), "outcome unknown".to_owned())
}

#[tokio::test(start_paused = true)]
async fn what_the_server_never_saw_goes_to_its_successor_before_what_came_later() {
    here(async {
        let mut play = Harness::known().await;
        let (a, b) = (play.client(&json!({})), play.client(&json!({})));
        a.call_tool("x", "a1");
        b.call_tool("x", "b1");
        a.call_tool("read", "a2");
        play.die();
        b.call_tool("x", "b2");
        a.call_tool("x", "a3");
        assert_eq!(play.server.waiting(), 5);
        assert!(a.heard().is_empty() && b.heard().is_empty());
        play.come_back().await;
        let calls = play.calls();
        let names: Vec<&str> = calls.iter().map(|it| it.1.as_str()).collect();
        assert_eq!(names, ["a1", "b1", "a2", "b2", "a3"]);
        for (ours, _) in calls {
            play.answer(ours);
        }
        assert_eq!((a.heard().len(), b.heard().len()), (3, 2));
        assert_eq!((play.counts(), play.server.waiting()), ((3, 0), 0));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn of_what_it_may_have_begun_only_what_does_no_harm_is_sent_again() {
    here(async {
        let mut play = Harness::known().await;
        let client = play.client(&json!({}));
        for (tool, id) in [("x", "1"), ("read", "2"), ("x", "3"), ("set", "4")] {
            client.call_tool(tool, id);
        }
        client.ask(&json!("5"), "resources/read", &json!({ "uri": "xy://s/a://b" }));
        play.sent();
        play.die();
        let heard = client.heard();
        let words = heard[0]["error"]["message"].as_str().unwrap();
        for part in ["outcome unknown", "`s` was killed", "nothing says that it may be repeated"] {
            assert!(words.contains(part), "{words}");
        }
        assert_eq!(heard[0]["error"]["code"], -32010);
        let ids: Vec<String> = heard.iter().map(|it| text(&it["id"])).collect();
        assert_eq!(ids[..2], ["1", "3"]);
        assert_eq!(ids.len(), 2, "{heard:?}");
        client.call_tool("x", "7");
        play.come_back().await;
        let sent = play.sent();
        let what = sent.iter().map(|it| {
            let params = &it["params"];
            text(if params["uri"].is_null() { &params["arguments"] } else { &params["uri"] })
        });
        assert_eq!(what.collect::<Vec<_>>(), ["2", "4", "a://b", "7"]);
        assert_eq!(play.counts(), (3, 2));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_begun_is_sent_again_once_and_what_was_not_read_as_often_as_it_takes() {
    here(async {
        let mut play = Harness::known().await;
        let client = play.client(&json!({}));
        client.call_tool("read", "seen");
        client.call_tool("x", "unread");
        client.call_tool("read", "first unread, then seen");
        for round in 0..3 {
            assert_eq!(play.calls().len(), 3, "{round}");
            play.sent.unread_from.set(Some(u64::from(round == 0)));
            play.die();
            assert!(client.heard().is_empty(), "{round}");
            play.come_back().await;
            play.router.learn(&play.server, &play.upstream, known());
        }
        assert_eq!(play.calls().len(), 3);
        play.sent.unread_from.set(Some(1));
        play.die();
        let words = client.error();
        assert!(words.contains("it had been sent again once already"), "{words}");
        play.come_back().await;
        let calls = play.calls();
        assert_eq!(calls.len(), 2);
        play.answer(calls[0].0);
        assert_eq!(client.heard()[0]["id"], "unread");
        play.die();
        assert!(client.heard().is_empty(), "it was seen for the first time");
        play.come_back().await;
        play.answer(play.calls()[0].0);
        assert_eq!(client.heard()[0]["id"], "first unread, then seen");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_read_in_part_was_seen() {
    here(async {
        let play = Harness::known().await;
        let client = play.client(&json!({}));
        client.call_tool("x", "1");
        client.call_tool("x", "2");
        play.sent();
        play.sent.unread_from.set(Some(1)); // From within the first.
        play.die();
        assert_eq!(client.outcomes(), [unknown("1")]);
        assert_eq!(play.server.waiting(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_can_leave_and_what_was_cancelled_is_not_sent() {
    here(async {
        let mut play = Harness::known().await;
        let (a, b) = (play.client(&json!({})), play.client(&json!({})));
        for (client, id) in [(&a, "a1"), (&a, "a2"), (&b, "b1")] {
            client.call_tool("read", id);
        }
        play.sent();
        play.die();
        a.cancel("a1");
        b.client_session.close();
        assert_eq!(play.server.waiting(), 1);
        play.come_back().await;
        let calls = play.calls();
        assert_eq!(calls.iter().map(|it| it.1.as_str()).collect::<Vec<_>>(), ["a2"]);
        // Once it is sent again, it is cancelled like any.
        a.cancel("a2");
        let sent = play.sent();
        assert_eq!(sent[0]["params"]["requestId"], calls[0].0);
        play.die();
        later(60 * SECOND).await;
        assert!(a.heard().is_empty() && b.heard().is_empty());
        assert_eq!(play.counts(), (1, 0));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_cancelled_before_the_death_is_left() {
    here(async {
        let mut play = Harness::known().await;
        let client = play.client(&json!({}));
        client.call_tool("read", "1");
        client.call_tool("x", "2");
        play.sent();
        client.cancel("1");
        client.cancel("2");
        play.die();
        play.come_back().await;
        assert_eq!(play.names(), [""; 0]);
        assert!(client.heard().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn that_an_earlier_life_can_have_done_it_is_known_in_every_round() {
    here(async {
        let introduction = Introduction::discovered(MODERN).unwrap();
        let park = ParkSettings::default();
        let mut play = Harness::where_may_wait(park, NO_RULES, false, &introduction).await;
        play.router.learn(&play.server, &play.upstream, known_of("s", introduction.clone()));
        let client = play.client(&json!({ "roots": {} }));
        client.call_tool("read", "1");
        play.sent();
        play.die();
        play.come_back_as(&introduction).await;
        let (ours, _) = play.calls()[0];
        let wanted = json!({ "q": { "method": "roots/list" } });
        let result = json!({ "resultType": "input_required", "inputRequests": wanted });
        play.say(&json!({ "jsonrpc": "2.0", "id": ours, "result": result }));
        let question = client.heard()[0]["id"].clone();
        client.say(&json!({ "jsonrpc": "2.0", "id": question, "result": { "roots": [] } }));
        // This life ends before it has seen the next round, and nobody comes after it.
        play.die();
        assert_eq!(play.server.waiting(), 1);
        play.give_up("it crashes");
        assert_eq!(client.outcomes(), [unknown("1")], "the first may have done it");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn progress_reaches_the_client_after_the_call_was_sent_again() {
    here(async {
        let mut play = Harness::known().await;
        let client = play.client(&json!({}));
        client.call_tool("x", "before");
        let (before, _) = play.calls()[0];
        play.answer(before);
        client.call_tool("read", "mine");
        play.sent();
        client.heard();
        play.die();
        play.come_back().await;
        let (ours, _) = play.calls()[0];
        let params = json!({ "progressToken": ours, "progress": 1 });
        play.say(
            &json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }),
        );
        play.answer(ours);
        let heard = client.heard();
        assert_eq!(heard[0]["params"]["progressToken"], "token of mine");
        assert_eq!((&heard[1]["id"], heard.len()), (&json!("mine"), 2));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_in_which_the_client_was_asked_is_not_sent_again() {
    here(async {
        let mut play = Harness::known().await;
        let (a, b) = (play.client(&json!({ "roots": {} })), play.client(&json!({})));
        a.call_tool("read", "asked");
        play.ask("q", "roots/list");
        let question = a.heard().remove(0);
        assert_eq!(question["method"], "roots/list");
        a.say(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "roots": [] } }));
        b.call_tool("read", "b"); // It waits for its turn.
        play.sent();
        play.die();
        let heard = a.heard();
        let words = heard[0]["error"]["message"].as_str().unwrap();
        assert!(words.contains("its client had been asked something meanwhile"), "{words}");
        assert_eq!((text(&heard[0]["id"]).as_str(), heard.len()), ("asked", 1));
        play.come_back().await;
        assert_eq!(play.names(), ["b"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn of_what_was_begun_and_is_not_taken_any_more_nobody_knows_what_came() {
    here(async {
        let mut play = Harness::known().await;
        let client = play.client(&json!({}));
        client.call_tool("set", "1");
        play.sent();
        play.die();
        assert!(client.heard().is_empty());
        let without = Known::new("s", legacy(), Lists::default());
        play.router.learn(&play.server, &play.upstream, without);
        play.come_back().await;
        assert_eq!(client.outcomes(), [unknown("1")]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn clients_that_take_turns_keep_their_places() {
    here(async {
        let mut play = Harness::known().await;
        play.ask("first", "roots/list");
        let (a, b) = (play.client(&json!({})), play.client(&json!({})));
        a.call_tool("read", "a1");
        b.call_tool("x", "b1");
        a.call_tool("read", "a2");
        assert_eq!(play.names(), ["a1"]);
        play.die();
        b.call_tool("x", "b2");
        play.come_back().await;
        let calls = play.calls();
        let names: Vec<&str> = calls.iter().map(|it| it.1.as_str()).collect();
        assert_eq!(names, ["a1", "a2"], "its turn was not over");
        for (ours, _) in &calls {
            play.answer(*ours);
        }
        assert_eq!(play.names(), ["b1", "b2"]);
        assert_eq!(a.heard().len(), 2);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn tasks_are_not_begun_again() {
    here(async {
        let mut play = Harness::known().await;
        let client = play.client(&json!({}));
        let begin = |id: &str| {
            let params = json!({ "name": "s__read", "arguments": id, "task": { "ttl": 1000 } });
            client.ask(&json!(id), "tools/call", &params);
        };
        begin("seen");
        play.sent();
        begin("unseen");
        play.die();
        let words = client.error();
        assert!(words.contains("tasks are not begun again"), "{words}");
        play.come_back().await;
        assert_eq!(play.names(), ["unseen"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_time_a_call_may_take_counts_from_its_beginning() {
    here(async {
        let mut play = Harness::known_with(ParkSettings::default(), WITHIN).await;
        let client = play.client(&json!({}));
        client.call_tool("read", "1");
        play.sent();
        later(6 * SECOND).await;
        play.die();
        later(2 * SECOND).await;
        play.come_back().await;
        assert_eq!(play.names(), ["1"]);
        later(SECOND).await;
        assert!(client.heard().is_empty());
        later(2 * SECOND).await;
        assert!(client.error().contains("longer than 10s"));
        // It is over while it waits, too.
        client.call_tool("read", "2");
        play.sent();
        later(6 * SECOND).await;
        play.die();
        later(3 * SECOND).await;
        assert!(client.heard().is_empty());
        later(2 * SECOND).await;
        assert_eq!(client.outcomes(), [unknown("2")]);
        assert_eq!(play.server.waiting(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn only_what_a_living_server_said_counts() {
    here(async {
        let mut play = Harness::begin().await;
        *play.server.known.borrow_mut() = Some(Rc::new(known())); // It is remembered.
        let client = play.client(&json!({}));
        client.call_tool("read", "1");
        play.sent();
        play.die();
        assert_eq!(client.outcomes(), [unknown("1")]);
        play.come_back().await;
        play.router.learn(&play.server, &play.upstream, known());
        play.die();
        play.come_back().await;
        // It has not said it again yet: its predecessor of the same program did.
        client.call_tool("read", "2");
        play.sent();
        play.die();
        assert!(client.heard().is_empty());
        play.come_back().await;
        play.answer(play.calls()[0].0);
        assert_eq!(client.heard()[0]["id"], "2");
        let mut other = settings(NO_RULES);
        if let ServerKind::Process(process) = &mut other.kind {
            process.command = "another".to_owned();
        }
        play.server.configure(Arc::new(other));
        play.die();
        play.come_back().await;
        client.call_tool("read", "3");
        play.sent();
        play.die();
        assert_eq!(client.outcomes(), [unknown("3")], "another program has not said anything");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_lost_while_its_server_is_there_is_sent_again_a_little_later() {
    here(async {
        let play = Harness::known().await;
        let (a, b) = (play.client(&json!({})), play.client(&json!({})));
        a.call_tool("read", "1");
        a.call_tool("x", "2");
        let calls = play.calls();
        play.upstream.lose(calls[0].0, Stage::Written, "`s`: it broke", false);
        play.upstream.lose(calls[1].0, Stage::Written, "`s`: it broke", false);
        assert_eq!(a.outcomes(), [unknown("2")]);
        a.call_tool("x", "3");
        b.call_tool("x", "4");
        assert_eq!(play.names(), ["4"], "nobody overtakes itself");
        later(SECOND).await;
        let calls = play.calls();
        assert_eq!(calls.iter().map(|it| it.1.as_str()).collect::<Vec<_>>(), ["1", "3"]);
        play.upstream.lose(calls[0].0, Stage::Written, "`s`: it broke", false);
        assert_eq!(a.outcomes(), [unknown("1")]);
        // Of what would come to the same again nothing is sent again.
        a.call_tool("read", "5");
        let (ours, _) = play.calls()[0];
        play.upstream.lose(ours, Stage::Written, "`s`: it answered 500", true);
        assert_eq!(a.outcomes(), [unknown("5")]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_not_taken_stands_in_its_order_whenever_that_is_known() {
    here(async {
        let mut play = Harness::known().await;
        let client = play.client(&json!({}));
        for id in ["1", "2", "3"] {
            client.call_tool("x", id);
        }
        let calls = play.calls();
        play.upstream.begin_anew();
        client.call_tool("x", "4");
        for at in [1, 2, 0] {
            play.upstream.lose(calls[at].0, Stage::Unwritten, "`s`: refused", false);
        }
        play.die();
        play.come_back().await;
        assert_eq!(play.names(), ["1", "2", "3", "4"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_of_a_modern_client_is_sent_again_too() {
    here(async {
        let mut play = Harness::known().await;
        let entry = Entry {
            view: View::Profile("default".to_owned()),
            may_manage: false,
            lifetime: Lifetime::Request,
            who: 1,
            bound: None,
        };
        let heard = Rc::new(RecordedMessages::default());
        let client_session = play.router.open(entry, heard.clone()).unwrap();
        let client = Visitor { client_session, heard };
        let meta = json!({
            crate::modern::VERSION: "2026-07-28",
            crate::modern::CAPABILITIES: {},
            "progressToken": "p"
        });
        let params = json!({ "name": "s__read", "arguments": "1", "_meta": meta });
        client.ask(&json!(1), "tools/call", &params);
        play.sent();
        play.die();
        play.come_back().await;
        let calls = play.sent();
        assert_eq!(calls[0]["params"]["_meta"], json!({ "progressToken": calls[0]["id"] }));
        play.answer(calls[0]["id"].as_u64().unwrap());
        let heard = client.heard();
        assert_eq!(heard[0]["id"], 1);
        assert_eq!(heard[0]["result"]["resultType"], "complete", "{heard:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn lists_of_a_server_that_is_seen_alone_are_asked_again() {
    here(async {
        let mut play = Harness::known().await;
        let entry = Entry {
            view: View::Server("s".to_owned()),
            may_manage: false,
            lifetime: Lifetime::Session,
            who: 0,
            bound: None,
        };
        let heard = Rc::new(RecordedMessages::default());
        let client_session = play.router.open(entry, heard.clone()).unwrap();
        let client = Visitor { client_session, heard };
        let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
        client.ask(&json!("hello"), "initialize", &hello);
        client.heard();
        client.ask(&json!(1), "tools/list", &json!({}));
        client.ask(&json!(2), "tools/call", &json!({ "name": "read", "arguments": "2" }));
        client.ask(&json!(3), "vendor/thing", &json!({}));
        play.sent();
        play.die();
        // The list is answered by what is known, and what nobody knows is of unknown outcome.
        let heard = client.heard();
        assert_eq!((&heard[0]["id"], heard.len()), (&json!(3), 1), "{heard:?}");
        play.come_back().await;
        let sent = play.sent();
        let methods: Vec<String> = sent.iter().map(|it| text(&it["method"])).collect();
        assert_eq!(methods, ["tools/list", "tools/call"]);
    })
    .await;
}
