//! Several requests of one modern client at a legacy server that asks: each has its own turn,
//! and is asked what is its own.

use super::*;

/// A modern client on one connection, which can be asked everything.
struct Local(Visitor);

impl Local {
    fn at(play: &Harness) -> Self {
        let view = View::Profile("default".to_owned());
        let entry =
            Entry { view, may_manage: false, lifetime: Lifetime::Session, who: 0, bound: None };
        let heard = Rc::new(RecordedMessages::default());
        let client_session = play.router.open(entry, heard.clone()).unwrap();
        Self(Visitor { client_session, heard })
    }

    /// Calls the server's only tool with this argument, and with these params besides.
    fn call(&self, id: u64, argument: &str, more: &Value) {
        let all = json!({ "elicitation": { "form": {} }, "sampling": {}, "roots": {} });
        let meta = meta(&all, &json!({}));
        let mut params = json!({ "name": "s__x", "arguments": argument, "_meta": meta });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.0.ask(&json!(id), "tools/call", &params);
    }

    fn calls(&self, all: &[(u64, &str)]) {
        for (id, argument) in all {
            self.call(*id, argument, &json!({}));
        }
    }

    /// What its requests were answered with since, by their ids: the state of one that has to
    /// answer something, or else the result.
    fn answers(&self) -> BTreeMap<u64, Result<Value, Value>> {
        let heard = self.0.heard().into_iter().map(|it| {
            let result = &it["result"];
            let is_asked = result["resultType"] == "input_required";
            let state = result["requestState"].clone();
            let answer = if is_asked { Err(state) } else { Ok(result["ok"].clone()) };
            (it["id"].as_u64().unwrap(), answer)
        });
        heard.collect()
    }

    /// The state of the only one of its requests that was answered since, which is this one.
    #[track_caller]
    fn state_of(&self, id: u64) -> Value {
        let mut answers = self.answers();
        let answer = answers.remove(&id).unwrap_or_else(|| panic!("{answers:?}"));
        assert!(answers.is_empty(), "{answers:?}");
        answer.unwrap_err()
    }
}

/// Lets clients hear what they are asked, and not answer for a while.
async fn now() {
    super::now().await;
    later(HOLDS_UP).await;
}

fn names(calls: &[(u64, String)]) -> Vec<&str> {
    calls.iter().map(|(_, name)| name.as_str()).collect()
}

/// The only call that was sent since, which has this name.
#[track_caller]
fn only(play: &Harness, name: &str) -> u64 {
    let calls = play.calls();
    assert_eq!(names(&calls), [name]);
    calls[0].0
}

/// A server that has asked something, and serves all.
async fn shared() -> (Harness, Local) {
    let play = Harness::begin().await;
    play.ask("first", "roots/list");
    play.sent();
    let client = Local::at(&play);
    (play, client)
}

/// The same, of a server that lives for this client alone.
async fn private() -> (Harness, Local) {
    let (play, visitor) = Harness::of_one().await;
    play.ask("first", "roots/list");
    play.sent();
    (play, Local(visitor))
}

/// Each of three calls asks something, and is asked again for what is its own.
async fn three_in_turn(play: Harness, client: Local) {
    client.calls(&[(1, "a"), (2, "b"), (3, "c")]);
    let a = only(&play, "a");
    play.ask("of a", "elicitation/create");
    assert!(play.calls().is_empty(), "it has not heard the question yet");
    super::now().await;
    let state_a = client.state_of(1);
    later(HOLDS_UP / 2).await;
    assert!(play.calls().is_empty(), "it may answer at once");
    later(HOLDS_UP / 2).await;
    let b = only(&play, "b"); // By nothing but that.
    play.ask("of b", "elicitation/create");
    now().await;
    let state_b = client.state_of(2);
    let c = only(&play, "c");
    play.answer(c);
    assert_eq!(client.answers()[&3], Ok(json!(c)), "it was not asked anything");

    let said = |text: &str| json!({ "q1": { "action": "accept", "content": { "x": text } } });
    client.call(4, "b", &answers(&state_b, &said("b")));
    let answered = play.answered();
    assert_eq!((&*answered[0].0, &answered[0].1["result"]["content"]["x"]), ("of b", &json!("b")));
    play.answer(b);
    assert_eq!(client.answers()[&4], Ok(json!(b)));
    client.call(5, "a", &answers(&state_a, &said("a")));
    let answered = play.answered();
    assert_eq!((&*answered[0].0, &answered[0].1["result"]["content"]["x"]), ("of a", &json!("a")));
    // In the same call again.
    play.ask("of a again", "sampling/createMessage");
    now().await;
    let state_a = client.state_of(5);
    client.call(6, "a", &answers(&state_a, &json!({ "q1": {} })));
    assert_eq!(play.answered().len(), 1);
    play.answer(a);
    assert_eq!(client.answers()[&6], Ok(json!(a)));
    let left = (play.router.parked.len(), play.server.waiting(), play.upstream.open_calls());
    assert_eq!(left, (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn each_call_of_one_client_has_its_turn_at_a_server_for_all() {
    here(async {
        let (play, client) = shared().await;
        three_in_turn(play, client).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn each_call_of_one_client_has_its_turn_at_a_server_of_its_own() {
    here(async {
        let (play, client) = private().await;
        three_in_turn(play, client).await;
    })
    .await;
}

/// The first question of a server, in one of two calls of one client.
async fn unclear_at_first(play: Harness, client: Local) {
    client.calls(&[(1, "a"), (2, "b")]);
    let both = play.calls();
    assert_eq!(names(&both), ["a", "b"], "nobody knows that it asks");
    play.ask("whose", "elicitation/create");
    let refused = play.answered();
    assert_eq!((&*refused[0].0, &refused[0].1["error"]["code"]), ("whose", &json!(-32603)));
    let why = text(&refused[0].1["error"]["message"]);
    assert!(why.contains("in which call"), "{why}");
    now().await;
    assert!(client.answers().is_empty(), "both go on, and neither is asked");
    client.calls(&[(3, "c")]);
    assert!(play.calls().is_empty(), "from now on they take turns");
    play.answer(both[0].0);
    // One alone is left, so this is its question.
    play.ask("of b", "elicitation/create");
    now().await;
    assert_eq!(client.answers().into_keys().collect::<Vec<_>>(), [1, 2]);
    let c = only(&play, "c");
    play.answer(c);
    assert_eq!(client.answers()[&3], Ok(json!(c)));
}

#[tokio::test(start_paused = true)]
async fn a_first_question_in_one_of_two_calls_is_refused() {
    here(async {
        let play = Harness::begin().await;
        let client = Local::at(&play);
        unclear_at_first(play, client).await;
        let (play, visitor) = Harness::of_one().await;
        unclear_at_first(play, Local(visitor)).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_may_be_of_either_of_two_calls_is_refused() {
    here(async {
        for (play, client) in [shared().await, private().await] {
            client.calls(&[(1, "a"), (2, "b")]);
            let a = only(&play, "a");
            play.ask("of a", "elicitation/create");
            now().await;
            let state = client.state_of(1);
            let b = only(&play, "b");
            client.call(3, "a", &answers(&state, &json!({ "q1": {} })));
            assert_eq!(play.answered().len(), 1, "an answer waits for nobody");
            // It works on both again.
            play.ask("of one", "elicitation/create");
            assert_eq!(play.answered()[0].1["error"]["code"], -32603);
            client.calls(&[(4, "c")]);
            assert!(play.calls().is_empty(), "a third waits for both");
            play.answer(b);
            play.ask("of a again", "elicitation/create");
            now().await;
            let answers = client.answers();
            assert_eq!(answers[&2], Ok(json!(b)));
            assert!(answers[&3].is_err(), "now it is clear");
            let c = only(&play, "c");
            play.answer(a);
            play.answer(c);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn when_two_calls_wait_for_their_user_a_question_is_of_neither() {
    here(async {
        for (play, client) in [shared().await, private().await] {
            client.calls(&[(1, "a"), (2, "b")]);
            for id in [1, 2] {
                assert_eq!(play.calls().len(), 1);
                play.ask(&id.to_string(), "elicitation/create");
                now().await;
                client.state_of(id);
            }
            play.ask("x", "elicitation/create");
            assert_eq!(play.answered()[0].1["error"]["code"], -32603);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_left_hold_up_no_other_of_their_client_and_end_with_it() {
    here(async {
        for (play, client) in [shared().await, private().await] {
            for id in 1..=20 {
                client.call(id, "left", &json!({}));
            }
            for id in 1..=19 {
                only(&play, "left");
                play.ask(&id.to_string(), "elicitation/create");
                super::now().await;
                if id == 1 {
                    assert!(play.calls().is_empty(), "it may answer at once");
                    later(HOLDS_UP).await;
                }
                client.state_of(id); // It never comes back for it.
            }
            let last = only(&play, "left");
            client.calls(&[(21, "waits")]);
            play.answer(last);
            assert_eq!(client.answers()[&20], Ok(json!(last)));
            only(&play, "waits");
            client.calls(&[(22, "waits too")]);
            client.0.client_session.close();
            let sent = play.sent();
            let told = |method: &str| sent.iter().filter(|it| it["method"] == method).count();
            assert_eq!(told("notifications/cancelled"), 20);
            assert_eq!(told("tools/call"), 0);
            let refused = sent.iter().filter(|it| it["error"]["code"] == -32603).count();
            assert_eq!(refused, 19);
            assert_eq!((play.router.parked.len(), play.server.waiting()), (0, 0));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_or_refused_gives_its_turn_to_the_next() {
    here(async {
        for (play, client) in [shared().await, private().await] {
            client.calls(&[(1, "a"), (2, "b"), (3, "c"), (4, "d")]);
            let cancel = |id: u64| {
                let params = json!({ "requestId": id });
                let method = "notifications/cancelled";
                client.0.say(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
            };
            only(&play, "a");
            cancel(2); // It waits.
            assert!(play.calls().is_empty());
            cancel(1);
            let c = only(&play, "c");
            play.ask("q", "elicitation/create");
            cancel(3); // Before it has heard what is asked.
            only(&play, "d");
            play.answer(c);
            now().await;
            assert!(client.answers().is_empty());
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_asked_by_itself_calls_its_own_server_as_it_likes() {
    here(async {
        let (play, visitor) = Harness::of_one().await;
        let params =
            json!({ "protocolVersion": "2025-11-25", "capabilities": { "elicitation": {} } });
        visitor.ask(&json!("hello"), "initialize", &params);
        visitor.heard();
        play.ask("first", "elicitation/create");
        visitor.call("a");
        visitor.call("b");
        assert_eq!(names(&play.calls()), ["a", "b"]);
        play.ask("q", "elicitation/create");
        let asked = visitor.heard();
        assert_eq!((asked.len(), &asked[1]["method"]), (2, &json!("elicitation/create")));
        // One of the other era comes in between, and waits.
        let client = Local(visitor);
        client.calls(&[(1, "modern")]);
        assert!(play.calls().is_empty());
        client.0.cancel("a");
        client.0.cancel("b");
        only(&play, "modern");
        client.0.call("c");
        assert!(play.calls().is_empty(), "as what is asked now is for the other");
        play.ask("m", "elicitation/create");
        now().await;
        client.state_of(1);
        only(&play, "c");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_too_long_for_another_call_of_its_own_is_told_so() {
    here(async {
        let (play, client) = private().await;
        client.calls(&[(1, "busy"), (2, "other")]);
        later(31 * SECOND).await;
        let words = client.0.error();
        for part in ["busy with another call for 30s", "not sent", "fewer calls"] {
            assert!(words.contains(part), "{words}");
        }
        assert!(!words.contains("isolation"), "{words}");
        assert_eq!(names(&play.calls()), ["busy"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn those_that_wait_go_one_by_one_to_the_next_life() {
    here(async {
        let (mut play, client) = shared().await;
        client.calls(&[(1, "a"), (2, "b"), (3, "c"), (4, "d")]);
        only(&play, "a");
        play.ask("of a", "elicitation/create");
        now().await;
        let state = client.state_of(1);
        only(&play, "b");
        play.live_again().await;
        let c = only(&play, "c");
        play.answer(c);
        only(&play, "d");
        client.0.heard();
        client.call(5, "a", &answers(&state, &json!({ "q1": {} })));
        assert_eq!(client.0.code(), -32010, "outcome unknown");
        assert!(play.sent().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_a_server_tells_while_it_works_on_several_calls_reaches_their_client() {
    here(async {
        let play = Harness::begin().await;
        let client = Local::at(&play);
        for id in [1, 2] {
            let meta = meta(&json!({}), &json!({ modern::LOG_LEVEL: "info" }));
            client.0.ask(&json!(id), "tools/call", &json!({ "name": "s__x", "_meta": meta }));
        }
        assert_eq!(play.calls().len(), 2);
        let params = json!({ "level": "error", "data": "x" });
        play.say(&json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params }));
        assert_eq!(client.0.heard()[0]["params"]["data"], "x");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_in_which_nothing_is_asked_any_more_may_ask_again() {
    here(async {
        for (play, client) in [shared().await, private().await] {
            client.calls(&[(1, "a"), (2, "b")]);
            only(&play, "a");
            play.ask("of a", "elicitation/create");
            now().await;
            client.state_of(1);
            only(&play, "b");
            let taken_back = json!({ "requestId": "of a" });
            let method = "notifications/cancelled";
            play.say(&json!({ "jsonrpc": "2.0", "method": method, "params": taken_back }));
            play.ask("of a or b", "elicitation/create");
            assert_eq!(play.answered()[0].1["error"]["code"], -32603);
            client.calls(&[(3, "c")]);
            assert!(play.calls().is_empty(), "b has its turn");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_answers_at_once_has_the_server_to_itself_to_the_end() {
    here(async {
        for (play, client) in [shared().await, private().await] {
            client.calls(&[(1, "a"), (2, "b")]);
            let a = only(&play, "a");
            let mut id = 1;
            for question in ["one", "two", "three"] {
                play.ask(question, "elicitation/create");
                super::now().await;
                let state = client.state_of(id);
                id += 10;
                client.call(id, "a", &answers(&state, &json!({ "q1": {} })));
                assert_eq!(play.answered()[0].0, question);
                later(HOLDS_UP).await; // It works, and is not waited for.
                assert!(play.calls().is_empty());
            }
            play.answer(a);
            assert_eq!(client.answers()[&id], Ok(json!(a)));
            only(&play, "b");
        }
    })
    .await;
}
