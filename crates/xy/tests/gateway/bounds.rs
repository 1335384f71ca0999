//! Nothing grows without a bound: what is too much is refused, in words.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::stage::{code, echoes, home_of_two, local, nothing_is_open, who_at_last, words};
use crate::support::{running, signal};

#[test]
fn one_client_has_at_most_a_thousand_requests_open() {
    let home = home_of_two();
    let (client, other) = (local(&home), local(&home));
    let mut ids = Vec::new();
    for _ in 0..1000 {
        ids.push(client.start_call("a__never", json!({})));
    }
    let one_more = client.call("a__echo", json!({ "message": "x" }));
    assert_eq!(code(&one_more), -32008, "{one_more}");
    assert!(words(&one_more).contains("1000"), "{one_more}");
    echoes(&other, "b");
    client.cancel(&json!(ids[0]));
    home.wait_until("there is room again", || {
        client.call("b__who", json!({})).get("result").is_some()
    });
    drop(client);
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn a_server_that_does_not_read_has_so_much_waiting_and_no_more() {
    let home = home_of_two();
    let (client, other) = (local(&home), local(&home));
    let pid = running(&home, "a");
    signal(pid, Signal::STOP);
    let text = "x".repeat(16 << 20);
    let mut sent = 0;
    let refused = home.wait_until("one is refused", || {
        sent += 1;
        assert!(sent <= 6, "{sent} times 16 MiB wait");
        let params = format!(r#"{{"name":"a__who","arguments":{{"message":"{text}"}}}}"#);
        client.send_raw(&format!(
            r#"{{"jsonrpc":"2.0","id":"{sent}","method":"tools/call","params":{params}}}"#
        ));
        client.request("ping", Value::Null); // By now it has been looked at.
        client.answer_within(format!("\"{sent}\""), Duration::ZERO)
    });
    assert_eq!(code(&refused), -32008, "{refused}");
    assert!(words(&refused).contains("does not read"), "{refused}");
    echoes(&other, "b");
    signal(pid, Signal::KILL);
    // It has read nothing of any: what was kept of them is done by its successor.
    // Where nothing tells, the first may have been seen, as it is written in part.
    let first = if cfg!(target_os = "linux") { 1 } else { 2 };
    let answers = (first..sent).map(|id| client.wait_answer(format!("\"{id}\"")));
    let (done, lost): (Vec<Value>, Vec<Value>) =
        answers.partition(|answer| answer["result"].is_object());
    assert_eq!(done.len(), 4 - first, "so many are within 64 MiB: {lost:?}");
    for lost in lost {
        assert_eq!(code(&lost), -32005, "{lost}");
        assert!(words(&lost).contains("`bytes` of `park`"), "{lost}");
    }
    who_at_last(&home, &client, "a__who");
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn a_thousand_calls_wait_for_a_server_that_is_not_there_and_no_more() {
    let home = crate::stage::home();
    crate::stage::serve(&home, "a", &["--slow-init", "3000"]);
    home.daemon();
    let clients = [local(&home), local(&home)];
    let waiting: Vec<u64> = (0..600)
        .map(|number| clients[0].start_call("a__echo", json!({ "message": number })))
        .collect();
    let more: Vec<u64> = (0..400)
        .map(|number| clients[1].start_call("a__echo", json!({ "message": number })))
        .collect();
    clients[0].request("ping", Value::Null);
    let refused = clients[1].call("a__echo", json!({ "message": "x" }));
    assert_eq!(code(&refused), -32008, "{refused}");
    for (client, ids) in clients.iter().zip([waiting, more]) {
        for (number, id) in ids.into_iter().enumerate() {
            let answer = client.wait_answer(id);
            assert_eq!(answer["result"]["structuredContent"]["message"], number, "{answer}");
        }
    }
    home.finish();
}
