//! Clients and servers of different eras.

use super::*;
use crate::bridge::pending_input::HOLDS_UP;
use crate::{capabilities, modern};
use xy_supervisor::instance::Holder;

mod holds;
mod modern_servers;
mod questions;
mod rounds;
mod tasks;
mod units;
mod waiting;

const MODERN: &str = r#"{"supportedVersions":["2026-07-28"],"capabilities":{"logging":{},"tools":{}},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"new"}}}"#;

/// What a modern client says of itself with each request.
fn meta(capabilities: &Value, more: &Value) -> Value {
    let mut meta = json!({ modern::VERSION: "2026-07-28", modern::CAPABILITIES: capabilities });
    meta.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    meta
}

impl Harness {
    async fn modern() -> Self {
        let introduction = Introduction::discovered(MODERN).unwrap();
        Self::of(CallRules::default(), false, &introduction).await
    }

    /// A request of a modern client of this token, which is another client to everybody.
    fn once(&self, who: u64, id: u64, method: &str, params: &Value) -> Visitor {
        let view = View::Profile("default".to_owned());
        let entry =
            Entry { view, may_manage: false, lifetime: Lifetime::Request, who, bound: None };
        let heard = Rc::new(RecordedMessages::default());
        let client_session = self.router.open(entry, heard.clone()).unwrap();
        let visitor = Visitor { client_session, heard };
        visitor.ask(&json!(id), method, params);
        visitor
    }

    /// A modern client that stays, and an instance of the server for it alone.
    async fn of_one() -> (Self, Visitor) {
        let mut play = Self::begin().await;
        let own = ServerSettings { isolation: Isolation::Client, ..settings(CallRules::default()) };
        play.server.configure(Arc::new(own));
        let view = View::Profile("default".to_owned());
        let entry =
            Entry { view, may_manage: false, lifetime: Lifetime::Session, who: 0, bound: None };
        let heard = Rc::new(RecordedMessages::default());
        let client_session = play.router.open(entry, heard.clone()).unwrap();
        let holder = Holder::Client(play.router.clients()[0].number());
        let key = InstanceKey { server: play.server.name.clone(), holder };
        let (said, told) = mpsc::channel(64);
        (play.said, play.sent) = (told, Rc::default());
        let (sent, router) = (play.sent.clone(), play.router.clone());
        play.upstream = Upstream::new(key, said, 1, false, sent, router);
        play.server.add(&play.upstream);
        play.upstream.resume(legacy(), false).await;
        play.router.opened(&play.upstream);
        play.upstream.holds_off_no_more();
        (play, Visitor { client_session, heard })
    }

    /// A call of a modern client that can be asked everything, with these params besides.
    fn called(&self, id: u64, more: &Value) -> Visitor {
        self.called_by(1, id, "call", more)
    }

    fn called_by(&self, who: u64, id: u64, arguments: &str, more: &Value) -> Visitor {
        let all = json!({ "elicitation": { "form": {}, "url": {} }, "sampling": {}, "roots": {} });
        let meta = meta(&all, &json!({ "progressToken": format!("p{id}") }));
        let mut params = json!({ "name": "s__x", "arguments": arguments, "_meta": meta });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.once(who, id, "tools/call", &params)
    }

    /// What the server has been answered since, by the ids of its questions.
    fn answered(&self) -> Vec<(String, Value)> {
        let answers = self.sent().into_iter().filter(|it| it["method"].is_null());
        answers.map(|it| (text(&it["id"]), it)).collect()
    }
}

impl Visitor {
    /// What it is asked for: by whose names, and the state.
    #[track_caller]
    fn wanted(&self) -> (Vec<(String, String)>, Value) {
        let heard = self.heard();
        let [answer] = heard.as_slice() else { panic!("{heard:?}") };
        let result = &answer["result"];
        assert_eq!(result["resultType"], "input_required", "{answer}");
        let wanted = result["inputRequests"].as_object().unwrap().iter();
        let wanted = wanted.map(|(key, it)| (key.clone(), text(&it["method"]))).collect();
        (wanted, result["requestState"].clone())
    }

    /// The code of the only error that it has heard since.
    #[track_caller]
    fn code(&self) -> i64 {
        let heard = self.heard();
        assert_eq!(heard.len(), 1, "{heard:?}");
        heard[0]["error"]["code"].as_i64().unwrap_or_else(|| panic!("{heard:?}"))
    }
}

fn answers(state: &Value, answers: &Value) -> Value {
    json!({ "requestState": state, "inputResponses": answers })
}

/// A modern server wants to know this before it does a call.
fn want(ours: u64, wanted: &Value, state: &Value) -> Value {
    let result =
        json!({ "resultType": "input_required", "inputRequests": wanted, "requestState": state });
    json!({ "jsonrpc": "2.0", "id": ours, "result": result })
}

/// Lets what is due happen, and clients hear what they are asked.
async fn now() {
    later(crate::bridge::pending_input::ASKED_AT_ONCE).await;
}

#[tokio::test(start_paused = true)]
async fn a_legacy_server_hears_nothing_of_the_other_era_and_its_client_gets_all_it_needs() {
    here(async {
        let play = Harness::begin().await;
        let client = play.called(1, &json!({}));
        let sent = play.sent();
        assert_eq!(sent[0]["params"]["_meta"], json!({ "progressToken": sent[0]["id"] }));
        let ours = sent[0]["id"].as_u64().unwrap();
        let progress = json!({ "progressToken": ours, "progress": 1 });
        play.say(
            &json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": progress }),
        );
        play.answer(ours);
        let heard = client.heard();
        assert_eq!(heard[0]["params"]["progressToken"], "p1");
        let result = &heard[1]["result"];
        assert_eq!((&result["resultType"], &result["ok"]), (&json!("complete"), &json!(ours)));
        assert_eq!(result["_meta"][modern::SERVER_INFO]["name"], "old");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_in_a_call_is_answered_by_its_repetition() {
    here(async {
        let play = Harness::begin().await;
        let first = play.called(1, &json!({}));
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.ask("e", "elicitation/create");
        play.ask("r", "roots/list");
        now().await;
        let (wanted, state) = first.wanted();
        let of = |key: &str, method: &str| (key.to_owned(), method.to_owned());
        assert_eq!(wanted, [of("q1", "elicitation/create"), of("q2", "roots/list")]);
        first.client_session.close();
        assert!(play.sent().is_empty(), "the call goes on");

        let said = json!({ "q1": { "action": "accept" }, "q2": { "roots": [1.50] }, "other": {} });
        let second = play.called(2, &answers(&state, &said));
        let answered = play.answered();
        assert_eq!(answered[0].1["result"], json!({ "action": "accept" }));
        assert_eq!(answered[1].1["result"], json!({ "roots": [1.50] }));
        let progress = json!({ "progressToken": ours, "progress": 1 });
        play.say(
            &json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": progress }),
        );
        play.answer(ours);
        let heard = second.heard();
        assert_eq!(heard[0]["params"]["progressToken"], "p2", "its token replaces the old one");
        assert_eq!((&heard[1]["id"], &heard[1]["result"]["ok"]), (&json!(2), &json!(ours)));
        assert_eq!(play.router.parked.len(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_later_or_not_answered_is_asked_in_the_next_round() {
    here(async {
        let play = Harness::begin().await;
        let first = play.called(1, &json!({}));
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.ask("a", "elicitation/create");
        play.ask("b", "elicitation/create");
        now().await;
        let (wanted, state) = first.wanted();
        assert_eq!(wanted.len(), 2);
        play.ask("c", "sampling/createMessage");
        let second = play.called(2, &answers(&state, &json!({ "q1": { "action": "decline" } })));
        now().await;
        assert_eq!(play.answered().len(), 1);
        let (wanted, state) = second.wanted();
        let keys: Vec<&str> = wanted.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["q2", "q3"]);
        let third = play.called(3, &answers(&state, &json!({ "q2": {}, "q3": {} })));
        assert_eq!(play.answered().len(), 2);
        play.answer(ours);
        assert_eq!(third.heard()[0]["result"]["ok"], ours);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_of_its_own_may_ask_a_client_more_than_once() {
    here(async {
        let (play, client) = Harness::of_one().await;
        let capabilities = json!({ "elicitation": {}, "roots": {} });
        let params = |more: &Value| {
            let mut params = json!({ "name": "s__x", "_meta": meta(&capabilities, &json!({})) });
            params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            params
        };
        client.ask(&json!(1), "tools/call", &params(&json!({})));
        assert_eq!(play.router.clients()[0].declared(), Some(capabilities.to_string().into()));
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.ask("a", "elicitation/create");
        play.ask("b", "roots/list"); // Its only call is parked already.
        now().await;
        let (wanted, state) = client.wanted();
        assert_eq!(wanted.len(), 2, "{wanted:?}");
        play.ask("c", "elicitation/create"); // There is nobody to tell it, until it is back.
        let said = answers(&state, &json!({ "q1": {}, "q2": {} }));
        client.ask(&json!(2), "tools/call", &params(&said));
        now().await;
        let (wanted, state) = client.wanted();
        assert_eq!(wanted, [("q3".to_owned(), "elicitation/create".to_owned())]);
        client.ask(&json!(3), "tools/call", &params(&answers(&state, &json!({ "q3": {} }))));
        assert_eq!(play.answered().len(), 3);
        play.answer(ours);
        assert_eq!(client.heard()[0]["result"]["ok"], ours);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_result_that_comes_between_two_rounds_is_held() {
    here(async {
        let play = Harness::begin().await;
        let first = play.called(1, &json!({}));
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.ask("a", "elicitation/create");
        now().await;
        let (_, state) = first.wanted();
        play.answer(ours);
        let second = play.called(2, &answers(&state, &json!({})));
        assert_eq!(second.heard()[0]["result"]["ok"], ours);
        // One that comes at the same time needs no round at all.
        let third = play.called(3, &json!({}));
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.ask("a", "elicitation/create");
        play.answer(ours);
        now().await;
        assert_eq!(third.heard()[0]["result"]["ok"], ours);
        assert_eq!(play.router.parked.len(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn whoever_does_not_come_back_has_its_call_cancelled() {
    here(async {
        let play = Harness::begin().await;
        let first = play.called(1, &json!({}));
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.ask("a", "elicitation/create");
        now().await;
        let (_, state) = first.wanted();
        later(599 * SECOND).await;
        assert!(play.sent().is_empty());
        later(2 * SECOND).await;
        let sent = play.sent();
        assert_eq!((&sent[0]["id"], &sent[0]["error"]["code"]), (&json!("a"), &json!(-32603)));
        assert_eq!(sent[1]["method"], "notifications/cancelled");
        assert_eq!(sent[1]["params"]["requestId"], ours);
        let second = play.called(2, &answers(&state, &json!({ "q1": {} })));
        assert_eq!(second.code(), -32602, "it has expired");
        assert!(play.sent().is_empty(), "it is never sent as a new call");
        assert_eq!(play.router.parked.len(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_state_is_good_once_for_its_own_client_and_request() {
    here(async {
        let play = Harness::begin().await;
        let first = play.called(1, &json!({}));
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.ask("a", "elicitation/create");
        now().await;
        let (_, state) = first.wanted();
        let more = answers(&state, &json!({ "q1": {} }));
        let mut altered = state.as_str().unwrap().to_owned();
        altered.replace_range(20..21, if &altered[20..21] == "0" { "1" } else { "0" });
        let altered = answers(&json!(altered), &json!({ "q1": {} }));
        for (refused, why) in [
            (play.called_by(2, 2, "call", &more), "another client"),
            (play.called_by(1, 2, "other", &more), "another request"),
            (play.called(2, &altered), "was changed"),
            (play.called(2, &answers(&json!(7), &json!({}))), "not given out"),
            (play.called(2, &answers(&json!("theirs"), &json!({}))), "not given out"),
        ] {
            let said = refused.error();
            assert!(said.contains("requestState") && said.contains(why), "{said}");
        }
        assert!(play.sent().is_empty(), "nothing of that reaches the server");
        let second = play.called(3, &more);
        assert!(second.heard().is_empty());
        assert_eq!(play.answered().len(), 1);
        let again = play.called(4, &more).error();
        assert!(again.contains("one use"), "{again}");
        play.answer(ours);
        assert_eq!(second.heard().len(), 1);
        assert!(play.called(5, &more).error().contains("one use"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_meanwhile_leaves_an_unknown_outcome() {
    here(async {
        let mut play = Harness::begin().await;
        let first = play.called(1, &json!({}));
        play.sent();
        play.ask("a", "elicitation/create");
        now().await;
        let (_, state) = first.wanted();
        play.live_again().await;
        let second = play.called(2, &answers(&state, &json!({ "q1": {} })));
        assert_eq!(second.code(), -32010);
        assert!(play.calls().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_is_asked_only_what_it_can_do_and_where_it_can_answer() {
    here(async {
        let play = Harness::begin().await;
        let meta = meta(&json!({ "sampling": {} }), &json!({}));
        let params = json!({ "name": "s__x", "_meta": meta });
        let client = play.once(1, 1, "tools/call", &params);
        play.sent();
        play.ask("e", "elicitation/create");
        play.ask("x", "tasks/list");
        let answered = play.answered();
        assert_eq!(answered[0].1["error"]["code"], -32601);
        assert!(answered[1].1["error"].is_object());
        play.ask("s", "sampling/createMessage");
        now().await;
        assert_eq!(client.wanted().0.len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_cancels_or_leaves_takes_its_call_with_it() {
    here(async {
        let play = Harness::begin().await;
        let client = play.called(1, &json!({}));
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.ask("a", "elicitation/create");
        client.client_session.close(); // Before it has heard what is asked.
        now().await;
        let sent = play.sent();
        assert!(sent.iter().any(|it| it["params"]["requestId"] == ours), "{sent:?}");
        assert_eq!(play.router.parked.len(), 0);

        later(61 * SECOND).await; // Nothing is said of that any more.
        let lasting = play.client(&json!({}));
        let meta = meta(&json!({ "roots": {} }), &json!({}));
        lasting.ask(&json!(1), "tools/call", &json!({ "name": "s__x", "_meta": meta }));
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.ask("b", "roots/list");
        now().await;
        lasting.wanted();
        lasting.client_session.close();
        let sent = play.sent();
        assert!(sent.iter().any(|it| it["params"]["requestId"] == ours), "{sent:?}");
        assert_eq!(play.router.parked.len(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn logs_come_to_who_asks_for_them() {
    here(async {
        let play = Harness::begin().await;
        let log = |level: &str| {
            let params = json!({ "level": level, "data": level });
            json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params })
        };
        let ask = |id, more: &Value| {
            let params = json!({ "name": "s__x", "_meta": meta(&json!({}), more) });
            play.once(1, id, "tools/call", &params)
        };
        let silent = ask(1, &json!({}));
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.say(&log("error"));
        play.answer(ours);
        assert_eq!(silent.heard().len(), 1, "its answer");
        let curious = ask(2, &json!({ modern::LOG_LEVEL: "warning" }));
        let sent = play.sent();
        let level = &sent.iter().find(|it| it["method"] == "logging/setLevel").unwrap()["params"];
        assert_eq!(level["level"], "warning");
        play.say(&log("info"));
        play.say(&log("error"));
        let heard = curious.heard();
        assert_eq!((heard.len(), &heard[0]["params"]["data"]), (1, &json!("error")));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_in_a_call_that_is_over_is_refused() {
    here(async {
        let play = Harness::begin().await;
        let first = play.called(1, &json!({}));
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.ask("a", "elicitation/create");
        play.answer(ours);
        now().await;
        assert_eq!(first.heard()[0]["result"]["ok"], ours);
        let refused = play.answered();
        assert_eq!((&*refused[0].0, &refused[0].1["error"]["code"]), ("a", &json!(-32603)));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_for_what_the_client_cannot_do_has_that_said_to_it() {
    here(async {
        let play = Harness::begin().await;
        let params = json!({ "name": "s__x", "_meta": meta(&json!({ "roots": {} }), &json!({})) });
        let ask = |method: &str| {
            let client = play.once(1, 1, "tools/call", &params);
            let [(ours, _)] = play.calls().try_into().unwrap();
            play.ask("a", method);
            assert_eq!(play.answered()[0].1["error"]["code"], -32601);
            (client, ours)
        };
        let (client, ours) = ask("sampling/createMessage");
        let failed = json!({ "isError": true, "content": [{ "type": "text", "text": "no" }] });
        play.say(&json!({ "jsonrpc": "2.0", "id": ours, "result": failed }));
        let error = &client.heard()[0]["error"];
        assert_eq!(error["code"], modern::MISSING_CAPABILITY);
        assert_eq!(error["data"]["requiredCapabilities"], json!({ "sampling": {} }));
        assert_eq!(error["data"]["result"], failed, "its own words go with it");

        let (client, ours) = ask("elicitation/create");
        play.say(&json!({ "jsonrpc": "2.0", "id": ours, "error": { "code": 7, "message": "" } }));
        let error = &client.heard()[0]["error"];
        assert_eq!(error["data"]["requiredCapabilities"], json!({ "elicitation": { "form": {} } }));
        assert_eq!(error["data"]["error"]["code"], 7);

        let (client, ours) = ask("elicitation/create");
        play.answer(ours);
        assert_eq!(client.heard()[0]["result"]["ok"], ours, "it does without");

        // The same for one that has waited for its client.
        let (client, ours) = ask("elicitation/create");
        play.ask("r", "roots/list");
        now().await;
        let (_, state) = client.wanted();
        play.say(&json!({ "jsonrpc": "2.0", "id": ours, "result": failed }));
        let mut again = params.clone();
        let more = answers(&state, &json!({}));
        again.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let client = play.once(1, 2, "tools/call", &again);
        assert_eq!(client.code(), modern::MISSING_CAPABILITY);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_user_who_has_to_go_elsewhere_first_is_asked_and_the_call_made_again() {
    here(async {
        let play = Harness::begin().await;
        let refuse = |ours: u64| {
            let elsewhere =
                json!({ "mode": "url", "elicitationId": "1", "url": "https://x", "message": "go" });
            let data = json!({ "elicitations": [elsewhere] });
            let error = json!({ "code": -32042, "message": "go", "data": data });
            play.say(&json!({ "jsonrpc": "2.0", "id": ours, "error": error }));
        };
        let first = play.called(1, &json!({}));
        let [(ours, _)] = play.calls().try_into().unwrap();
        refuse(ours);
        let (wanted, state) = first.wanted();
        assert_eq!(wanted.len(), 1);
        let second = play.called(2, &answers(&state, &json!({ "q1": { "action": "accept" } })));
        let sent = play.sent();
        assert_eq!(sent[0]["method"], "tools/call");
        assert!(sent[0]["params"]["requestState"].is_null(), "{}", sent[0]);
        play.answer(sent[0]["id"].as_u64().unwrap());
        assert_eq!(second.heard().len(), 1);
        assert!(play.called(3, &answers(&state, &json!({}))).error().contains("one use"));

        let params = json!({ "name": "s__x", "_meta": meta(&json!({}), &json!({})) });
        let unable = play.once(1, 4, "tools/call", &params);
        let [(ours, _)] = play.calls().try_into().unwrap();
        refuse(ours);
        assert_eq!(unable.code(), modern::MISSING_CAPABILITY);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_of_this_era_does_not_exist_in_it() {
    here(async {
        let play = Harness::begin().await;
        let params = json!({ "_meta": meta(&json!({}), &json!({})) });
        for method in
            ["initialize", "ping", "logging/setLevel", "resources/subscribe", "tasks/list"]
        {
            assert_eq!(play.once(1, 1, method, &params).code(), -32601, "{method}");
        }
        let discovered = play.once(1, 1, "server/discover", &params).heard();
        let result = &discovered[0]["result"];
        assert_eq!(result["supportedVersions"][0], "2026-07-28");
        assert_eq!(result["_meta"][modern::SERVER_INFO]["name"], "xy");
        assert_eq!(result["cacheScope"], "private");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_only_modern_clients_have_is_told_all_that_they_may_be_asked() {
    here(async {
        let play = Harness::begin().await;
        let told = |holder| {
            let key = InstanceKey { server: play.server.name.clone(), holder };
            let (said, _) = mpsc::channel(1);
            let upstream =
                Upstream::new(key, said, 1, false, play.sent.clone(), play.router.clone());
            crate::upstream_session::capabilities(&play.router, &upstream)
        };
        let youngest =
            || play.router.clients().iter().map(|client| client.group_id()).max().unwrap();
        let once = play.called(1, &json!({}));
        let group_id = youngest();
        assert!(play.router.is_house(group_id));
        assert_eq!(told(Holder::Client(group_id)), capabilities::ALONE);
        once.client_session.close();
        assert_eq!(told(Holder::Client(group_id)), capabilities::ALONE, "the next may be able");
        play.client(&json!({ "roots": { "listChanged": true } }));
        assert_eq!(told(Holder::Client(youngest())), r#"{"roots":{"listChanged":true}}"#);
        assert_eq!(told(Holder::Shared), capabilities::SHARED, "never of roots");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_listens_to_a_server_that_is_not_there_yet_waits_for_it_a_while() {
    here(async {
        let mut play = Harness::begin().await;
        let end = |play: &Harness| {
            play.upstream.close(crate::upstream::Cause::end("`s` has ended"));
            play.router.over(&play.server, &play.upstream, "`s` has ended");
        };
        let wanted = json!({ "resourceSubscriptions": ["xy://s/test://a", "xy://s/test://b"] });
        let params = json!({ "notifications": wanted, "_meta": meta(&json!({}), &json!({})) });
        end(&play);
        let patient = play.once(1, 1, "subscriptions/listen", &params);
        later(9 * SECOND).await;
        assert!(patient.heard().is_empty());
        let said = r#"{"protocolVersion":"2025-11-25","capabilities":{"resources":{"subscribe":true}},"serverInfo":{"name":"old"}}"#;
        let introduction = Introduction::read(said).unwrap();
        let (said, _heard) = mpsc::channel(64);
        play.sent = Rc::default();
        let sent = play.sent.clone();
        play.upstream = life(&play.router, &play.server, said, sent, false, &introduction).await;
        for _ in 0..4 {
            now().await;
            for asked in play.sent() {
                assert_eq!(asked["method"], "resources/subscribe");
                play.answer(asked["id"].as_u64().unwrap());
            }
        }
        assert_eq!(patient.heard()[0]["params"]["notifications"], wanted);

        end(&play);
        let vain = play.once(2, 1, "subscriptions/listen", &params);
        later(11 * SECOND).await;
        assert_eq!(vain.heard()[0]["params"]["notifications"], json!({}), "for both of them");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_no_answer_is_asked_for_again() {
    here(async {
        let play = Harness::begin().await;
        let first = play.called(1, &json!({}));
        play.calls();
        play.ask("a", "elicitation/create");
        now().await;
        let (_, state) = first.wanted();
        let second = play.called(2, &answers(&state, &json!({ "q1": 7 })));
        now().await;
        assert!(play.answered().is_empty());
        assert_eq!(second.wanted().0.len(), 1);
    })
    .await;
}
