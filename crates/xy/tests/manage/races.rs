//! Several clients that add, remove, reload and call the same servers at the same time.

use std::sync::Barrier;
use std::thread;

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient, McpSocket};

use crate::support::{ask, home};
use crate::{connect, listed, mcp_program};

const CLIENTS: u64 = 6;
const STEPS: u64 = 14;
const NAMES: u64 = 3;

const HELLO: &str = r#"{"xy":"hello","protocol":1,"view":{"profile":"default"}}"#;

/// Asserts that an answer is a result or a reasoned refusal.
#[track_caller]
fn assert_answered(answer: &Value) {
    let is_done = answer["result"]["content"][0]["text"].is_string();
    // Not running, outcome unknown, unknown tool.
    let code = answer["error"]["code"].as_i64();
    assert!(is_done || code.is_some_and(|it| [-32005, -32010, -32602].contains(&it)), "{answer}");
}

/// Runs one client.
fn run_client(program: &str, client: &McpClient, number: u64) {
    let mut calls = Vec::new();
    for step in 0..STEPS {
        // Pseudo-random numbers: the same in every run, and different for each client.
        let chance = (number * 31 + step * 17 + step * step * number) % 97;
        let name = format!("r{}", chance % NAMES);
        let named = json!({ "name": name });
        let (tool, arguments) = match (chance / NAMES) % 6 {
            0 | 1 => {
                let added = json!({ "name": name, "command": program, "args": ["--only-tools"] });
                ("add_server".to_owned(), added)
            }
            2 => ("remove_server".to_owned(), named),
            3 => ("reload_server".to_owned(), named),
            4 => ("list_servers".to_owned(), json!({})),
            _ => {
                let message = format!("{number}/{step}");
                let slow = json!({ "message": message, "ms": chance % 20 });
                (format!("{name}__slow_echo"), slow)
            }
        };
        calls.push(client.start_call(&tool, arguments));
        if step % 3 == 2 {
            for id in calls.drain(..) {
                assert_answered(&client.wait_answer(id));
            }
        }
    }
    for id in calls {
        assert_answered(&client.wait_answer(id));
    }
    assert_eq!(client.unclaimed_answers(), [""; 0], "each was answered once");
}

/// Returns the names of all servers that the daemon lists.
fn names(home: &Home) -> Vec<String> {
    let list = ask(home, "list", Value::Null);
    let names = list.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap().to_owned());
    names.collect()
}

#[test]
fn concurrent_management_ends_in_a_consistent_state() {
    let home = home();
    let daemon = home.daemon();
    let program = mcp_program(&home);
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (home, program) = (&home, &program);
            scope.spawn(move || {
                let client = McpSocket::connect(&home.mcp_socket(), HELLO);
                client.initialize();
                run_client(program, &client, number);
            });
        }
    });
    let client = connect(&home);
    let listed_servers = client.call_value("list_servers", json!({}));
    let listed_servers: Vec<&str> = listed_servers["servers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(names(&home), listed_servers, "both say the same");
    for number in 0..NAMES {
        // A listed server can be called, and a missing one can be added.
        let name = format!("r{number}");
        if listed(&client, &name).is_none() {
            client.call_value("add_server", json!({ "name": name, "command": program }));
        }
        let running = home.wait_for_state(&name, "running");
        assert!(running["pid"].is_u64(), "{running:#}");
        assert_eq!(client.call_text(&format!("{name}__echo"), json!({ "message": "x" })), "x");
        client.call_value("remove_server", json!({ "name": name }));
    }
    assert_eq!(names(&home), [""; 0]);
    assert!(daemon.is_running() && !daemon.stderr().contains("panicked"), "{}", daemon.stderr());
    client.close();
    home.finish(); // Checks that no process is left.
}

#[test]
fn concurrent_adds_of_one_name_succeed_once() {
    let home = home();
    home.daemon();
    let program = mcp_program(&home);
    let barrier = Barrier::new(8);
    let answers: Vec<Value> = thread::scope(|scope| {
        let (home, program, barrier) = (&home, &program, &barrier);
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(move || {
                    let client = McpSocket::connect(&home.mcp_socket(), HELLO);
                    client.initialize();
                    barrier.wait();
                    client.call("add_server", json!({ "name": "one", "command": program }))
                })
            })
            .collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    });
    let (failed, done): (Vec<&Value>, Vec<&Value>) =
        answers.iter().partition(|it| it["result"]["isError"] == true);
    assert_eq!((done.len(), failed.len()), (1, 7), "{answers:#?}");
    for answer in failed {
        let text = answer["result"]["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("there is a server of that name"), "{text}");
    }
    let pid = &done[0]["result"]["structuredContent"]["pid"];
    assert_eq!(ask(&home, "status", json!({ "name": "one" }))["pid"], *pid);
    assert_eq!(names(&home), ["one"]);
    home.finish();
}
