//! Two clients on one server that says and asks all kinds of things at random. Everything
//! names the call it belongs to, so what reaches the wrong client shows.

use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient};

use crate::chance::Chance;
use crate::stage::{home, nothing_is_open, ready, serve_with, stranger};

const ROUNDS: u64 = 12;
const STEPS: u64 = 6;

/// What one client hears that is not its own.
type Wrong = Arc<Mutex<Vec<Value>>>;

fn capabilities() -> Value {
    json!({ "sampling": {}, "elicitation": { "form": {}, "url": {} } })
}

/// Answers every question with its own words.
fn listen(client: &McpClient, name: &'static str, wrong: &Wrong) {
    let wrong = Arc::clone(wrong);
    client.answer_with(move |question| {
        let params = &question["params"];
        let said = match params["message"].as_str() {
            Some(message) => message,
            None => params["messages"][0]["content"]["text"].as_str().unwrap_or_default(),
        };
        if !said.starts_with(name) {
            wrong.lock().unwrap().push(question.clone());
        }
        Some(Ok(json!({ "action": "accept", "content": { "said": said } })))
    });
}

/// What came of the questions of all calls of one client.
#[derive(Debug, Default)]
struct Tally {
    answered: u64,
    refused: u64,
    strange: u64,
}

/// What one client does, by whichever door it came in.
fn live(client: &McpClient, name: &'static str, (seed, quiet): (u64, &str)) -> Tally {
    let (wrong, tool) = (Wrong::default(), "a__chatter");
    listen(client, name, &wrong);
    let uri = format!("test://of/{name}");
    let outside = format!("xy://a/{uri}");
    client.request("resources/subscribe", json!({ "uri": outside }));
    let mut tally = Tally::default();
    let mut seed = seed;
    for round in 0..ROUNDS {
        let ids: Vec<u64> = (0..2)
            .map(|number| {
                seed = seed.wrapping_mul(31).wrapping_add(number + 1);
                let tag = format!("{name}/{round}/{number}");
                let arguments = json!({
                    "tag": tag, "seed": seed >> 16, "steps": STEPS, "uri": uri, "quiet": quiet,
                });
                let meta = json!({ "progressToken": tag });
                let params = json!({ "name": tool, "arguments": arguments, "_meta": meta });
                client.start_request("tools/call", params)
            })
            .collect();
        // What is given up makes a shared server hard to understand for a while.
        if 2 * round >= ROUNDS && seed.is_multiple_of(5) {
            client.cancel(&json!(ids[1]));
        } else {
            count(&mut tally, &client.wait_answer(ids[1]), name);
        }
        count(&mut tally, &client.wait_answer(ids[0]), name);
    }
    for heard in client.notifications() {
        let params = &heard["params"];
        let said = match heard["method"].as_str().unwrap() {
            "notifications/message" => &params["data"],
            "notifications/progress" => {
                assert_eq!(params["message"], params["progressToken"], "{name}: {heard}");
                &params["progressToken"]
            }
            "notifications/resources/updated" => {
                assert_eq!(params["uri"], outside, "{name}: {heard}");
                continue;
            }
            // What was asked by a call that was cancelled.
            "notifications/cancelled" => continue,
            _ => panic!("{name}: {heard}"),
        };
        assert!(said.as_str().unwrap().starts_with(name), "{name}: {heard}");
    }
    assert_eq!(*wrong.lock().unwrap(), [Value::Null; 0], "{name}");
    tally
}

#[track_caller]
fn count(tally: &mut Tally, answer: &Value, name: &str) {
    let told = &answer["result"]["structuredContent"];
    assert!(told["tag"].as_str().is_some_and(|tag| tag.starts_with(name)), "{name}: {answer}");
    let number = |key: &str| told[key].as_u64().unwrap();
    tally.answered += number("answered");
    tally.refused += number("refused");
    tally.strange += number("strange");
}

fn all_talk(isolation: &str, quiet: &'static str) -> (Home, Vec<Tally>) {
    let home = home();
    let more = format!("isolation \"{isolation}\"\n");
    serve_with(&home, "a", &["--talks"], &more);
    home.daemon();
    if isolation == "shared" {
        ready(&home, &["a"]);
    }
    let mut chance = Chance::new();
    let seeds = ["ada", "grace"].map(|name| (name, chance.below(u64::MAX)));
    let tallies = thread::scope(|scope| {
        let (home, mut lives) = (&home, Vec::new());
        let [(ada, first), (grace, second)] = seeds;
        lives.push(scope.spawn(move || {
            let client = stranger(home);
            client.initialize_with(&capabilities());
            live(&client, ada, (first, quiet))
        }));
        lives.push(scope.spawn(move || {
            let client = home.mcp_http("/mcp");
            client.initialize_with(&capabilities());
            assert_eq!(client.open_stream(), 200);
            let tally = live(&client, grace, (second, quiet));
            client.close();
            tally
        }));
        lives.into_iter().map(|life| life.join().unwrap()).collect()
    });
    nothing_is_open(&home);
    (home, tallies)
}

#[test]
fn nothing_of_a_shared_server_reaches_the_wrong_client() {
    let (home, tallies) = all_talk("shared", "");
    crate::tell(&format!("{tallies:?}"));
    assert!(tallies.iter().all(|it| it.strange == 0), "{tallies:?}");
    assert!(tallies.iter().any(|it| it.answered > 0), "{tallies:?}");
    home.finish();
}

#[test]
fn nothing_of_a_server_that_never_asks_reaches_the_wrong_of_two_who_call_at_once() {
    let (home, tallies) = all_talk("shared", "yes");
    assert!(tallies.iter().all(|it| it.answered + it.refused == 0), "{tallies:?}");
    home.finish();
}

#[test]
fn nothing_is_refused_where_each_client_has_its_own() {
    let (home, tallies) = all_talk("client", "");
    crate::tell(&format!("{tallies:?}"));
    assert!(tallies.iter().all(|it| it.strange == 0 && it.refused == 0), "{tallies:?}");
    assert!(tallies.iter().all(|it| it.answered > 0), "{tallies:?}");
    home.finish();
}
