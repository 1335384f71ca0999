//! Two clients of one server that sends random messages and requests. Each message names its call,
//! so that misrouted ones are detected.

use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient};

use crate::fixtures::{home, ready, serve_with, uninitialized_client, wait_until_idle};
use crate::rng::Rng;

const ROUNDS: u64 = 12;
const STEPS: u64 = 6;

/// Messages that reached the wrong client.
type Misrouted = Arc<Mutex<Vec<Value>>>;

fn capabilities() -> Value {
    json!({ "sampling": {}, "elicitation": { "form": {}, "url": {} } })
}

/// Answers every server request, and records the requests of other clients.
fn answer_requests(client: &McpClient, name: &'static str, wrong: &Misrouted) {
    let wrong = Arc::clone(wrong);
    client.answer_with(move |question| {
        let params = &question["params"];
        let text = match params["message"].as_str() {
            Some(message) => message,
            None => params["messages"][0]["content"]["text"].as_str().unwrap_or_default(),
        };
        if !text.starts_with(name) {
            wrong.lock().unwrap().push(question.clone());
        }
        Some(Ok(json!({ "action": "accept", "content": { "said": text } })))
    });
}

/// The results of the server requests in all calls of one client.
#[derive(Debug, Default)]
struct Tally {
    answered: u64,
    refused: u64,
    strange: u64,
}

/// Runs one client, over any transport.
fn run_client(client: &McpClient, name: &'static str, (seed, quiet): (u64, &str)) -> Tally {
    let (wrong, tool) = (Misrouted::default(), "a__chatter");
    answer_requests(client, name, &wrong);
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
        // Cancelled calls make attribution harder for a while.
        if 2 * round >= ROUNDS && seed.is_multiple_of(5) {
            client.cancel(&json!(ids[1]));
        } else {
            count(&mut tally, &client.wait_answer(ids[1]), name);
        }
        count(&mut tally, &client.wait_answer(ids[0]), name);
    }
    for received in client.notifications() {
        let params = &received["params"];
        let text = match received["method"].as_str().unwrap() {
            "notifications/message" => &params["data"],
            "notifications/progress" => {
                assert_eq!(params["message"], params["progressToken"], "{name}: {received}");
                &params["progressToken"]
            }
            "notifications/resources/updated" => {
                assert_eq!(params["uri"], outside, "{name}: {received}");
                continue;
            }
            // A request of the server in a cancelled call.
            "notifications/cancelled" => continue,
            _ => panic!("{name}: {received}"),
        };
        assert!(text.as_str().unwrap().starts_with(name), "{name}: {received}");
    }
    assert_eq!(*wrong.lock().unwrap(), [Value::Null; 0], "{name}");
    tally
}

#[track_caller]
fn count(tally: &mut Tally, answer: &Value, name: &str) {
    let counts = &answer["result"]["structuredContent"];
    assert!(counts["tag"].as_str().is_some_and(|tag| tag.starts_with(name)), "{name}: {answer}");
    let number = |key: &str| counts[key].as_u64().unwrap();
    tally.answered += number("answered");
    tally.refused += number("refused");
    tally.strange += number("strange");
}

fn run_clients(isolation: &str, quiet: &'static str) -> (Home, Vec<Tally>) {
    let home = home();
    let more = format!("isolation \"{isolation}\"\n");
    serve_with(&home, "a", &["--talks"], &more);
    home.daemon();
    if isolation == "shared" {
        ready(&home, &["a"]);
    }
    let mut rng = Rng::new();
    let seeds = ["ada", "grace"].map(|name| (name, rng.below(u64::MAX)));
    let tallies = thread::scope(|scope| {
        let (home, mut lives) = (&home, Vec::new());
        let [(ada, first), (grace, second)] = seeds;
        lives.push(scope.spawn(move || {
            let client = uninitialized_client(home);
            client.initialize_with(&capabilities());
            run_client(&client, ada, (first, quiet))
        }));
        lives.push(scope.spawn(move || {
            let client = home.mcp_http("/mcp");
            client.initialize_with(&capabilities());
            assert_eq!(client.open_stream(), 200);
            let tally = run_client(&client, grace, (second, quiet));
            client.close();
            tally
        }));
        lives.into_iter().map(|life| life.join().unwrap()).collect()
    });
    wait_until_idle(&home);
    (home, tallies)
}

#[test]
fn shared_server_never_misroutes_messages() {
    let (home, tallies) = run_clients("shared", "");
    crate::print_figure(&format!("{tallies:?}"));
    assert!(tallies.iter().all(|it| it.strange == 0), "{tallies:?}");
    assert!(tallies.iter().any(|it| it.answered > 0), "{tallies:?}");
    home.finish();
}

#[test]
fn silent_shared_server_never_misroutes_concurrent_calls() {
    let (home, tallies) = run_clients("shared", "yes");
    assert!(tallies.iter().all(|it| it.answered + it.refused == 0), "{tallies:?}");
    home.finish();
}

#[test]
fn isolated_instances_refuse_no_request() {
    let (home, tallies) = run_clients("client", "");
    crate::print_figure(&format!("{tallies:?}"));
    assert!(tallies.iter().all(|it| it.strange == 0 && it.refused == 0), "{tallies:?}");
    assert!(tallies.iter().all(|it| it.answered > 0), "{tallies:?}");
    home.finish();
}
