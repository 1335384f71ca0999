//! The endpoint of one server: clients hear what the server itself would say.

use super::*;
use crate::upstream_session::learn_lists;

const CHANGED: &str = "notifications/tools/list_changed";

/// A server of an older revision that cannot be told what to log.
fn old() -> Introduction {
    let said = r#"{"protocolVersion":"2025-03-26","capabilities":{"tools":{}}}"#;
    Introduction::read(said).unwrap()
}

fn modern() -> Introduction {
    let said = r#"{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}"#;
    Introduction::discovered(said).unwrap()
}

async fn play_with(introduction: &Introduction) -> Harness {
    Harness::of(CallRules::default(), false, introduction).await
}

/// Opens a client at the endpoint of `s`, and returns the answer to its `initialize`.
fn connect(play: &Harness, version: &str) -> (Visitor, Value) {
    let view = View::Server("s".to_owned());
    let entry = Entry { view, may_manage: false, lifetime: Lifetime::Session, who: 0, bound: None };
    let heard = Rc::new(RecordedMessages::default());
    let client_session = play.router.open(entry, heard.clone()).unwrap();
    let visitor = Visitor { client_session, heard };
    let params = json!({ "protocolVersion": version, "capabilities": {} });
    visitor.ask(&json!("hello"), "initialize", &params);
    let answer = visitor.heard().remove(0);
    (visitor, answer)
}

#[tokio::test(start_paused = true)]
async fn a_server_without_logging_has_no_level_to_set() {
    here(async {
        for (introduction, code) in
            [(old(), json!(-32601)), (modern(), json!(-32601)), (legacy(), Value::Null)]
        {
            let play = play_with(&introduction).await;
            let (one, _) = connect(&play, "2025-11-25");
            let all = play.client(&json!({}));
            let params = json!({ "level": "error" });
            one.ask(&json!(1), "logging/setLevel", &params);
            assert_eq!(one.heard()[0]["error"]["code"], code, "{}", introduction.result);
            all.ask(&json!(1), "logging/setLevel", &params);
            assert!(all.heard()[0]["error"].is_null(), "xy itself has a level");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_server_is_introduced_in_the_revision_that_it_speaks() {
    here(async {
        for (introduction, wished, version) in [
            (old(), "2025-11-25", "2025-03-26"),
            (old(), "2025-03-26", "2025-03-26"),
            (old(), "2024-11-05", "2024-11-05"),
            (old(), "2099-01-01", "2025-03-26"),
            (legacy(), "2025-06-18", "2025-06-18"),
            (legacy(), "2099-01-01", "2025-11-25"),
            (modern(), "2025-06-18", "2025-06-18"),
        ] {
            let play = play_with(&introduction).await;
            let (client, answer) = connect(&play, wished);
            let story = format!("{wished} {}", introduction.result);
            assert_eq!(answer["result"]["protocolVersion"], version, "{story}");
            assert_eq!(client.client_session.version(), Some(version), "{story}");
        }
    })
    .await;
}

/// Answers what the server is asked, with one tool of this name.
fn answer_lists(play: &Harness, tool: &str) {
    for asked in play.sent() {
        if asked["method"] == "tools/list" {
            let result = json!({ "tools": [{ "name": tool, "inputSchema": {} }] });
            play.say(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result }));
        }
    }
}

/// Lets all happen that follows of a change, while the server has one tool of this name.
async fn settle(play: &Harness, tool: &str) {
    for _ in 0..50 {
        tokio::time::sleep(SECOND / 100).await;
        answer_lists(play, tool);
    }
}

fn changes(visitor: &Visitor) -> Vec<Value> {
    visitor.heard().into_iter().filter(|it| it["method"] == CHANGED).collect()
}

#[tokio::test(start_paused = true)]
async fn a_change_of_a_list_is_told_as_often_and_in_the_words_that_the_server_chose() {
    here(async {
        let play = play_with(&legacy()).await;
        let introduction = play.upstream.introduction().unwrap();
        let (router, server) = (play.router.clone(), play.server.clone());
        let (settings, upstream) = (server.settings.borrow().clone(), play.upstream.clone());
        tokio::task::spawn_local(async move {
            learn_lists(&router, &server, &settings, &upstream, &introduction).await;
        });
        settle(&play, "a").await;
        let (one, _) = connect(&play, "2025-11-25");
        let (quiet, _) = connect(&play, "2025-11-25");
        let all = play.client(&json!({}));
        for client in [&one, &all] {
            client.ask(&json!(1), "tools/list", &json!({}));
        }
        settle(&play, "a").await;
        changes(&one);
        changes(&all);
        // It says so three times, and its list is another.
        let told = |number: u64| {
            let params = json!({ "_meta": { "number": number } });
            json!({ "jsonrpc": "2.0", "method": CHANGED, "params": params })
        };
        (0..3).for_each(|number| play.say(&told(number)));
        // One client asks again before xy does.
        one.ask(&json!(2), "tools/list", &json!({}));
        settle(&play, "b").await;
        let each = [told(0), told(1), told(2)];
        assert_eq!(changes(&one), each);
        assert_eq!(changes(&quiet), each, "it has not asked for the list");
        let own = json!({ "jsonrpc": "2.0", "method": CHANGED });
        assert_eq!(changes(&all), [own], "all servers behind one endpoint are told of once");
        // It says so, and nothing has changed.
        play.say(&told(4));
        settle(&play, "b").await;
        assert_eq!((changes(&one), changes(&all)), (vec![told(4)], vec![]));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_differs_in_the_next_life_is_told_by_xy() {
    here(async {
        let mut play = play_with(&legacy()).await;
        let learn = |play: &Harness| {
            let introduction = play.upstream.introduction().unwrap();
            let (router, server) = (play.router.clone(), play.server.clone());
            let (settings, upstream) = (server.settings.borrow().clone(), play.upstream.clone());
            tokio::task::spawn_local(async move {
                learn_lists(&router, &server, &settings, &upstream, &introduction).await;
            });
        };
        learn(&play);
        settle(&play, "a").await;
        let (one, _) = connect(&play, "2025-11-25");
        one.ask(&json!(1), "tools/list", &json!({}));
        settle(&play, "a").await;
        changes(&one);
        play.live_again().await;
        learn(&play);
        settle(&play, "b").await;
        assert_eq!(changes(&one).len(), 1);
    })
    .await;
}
