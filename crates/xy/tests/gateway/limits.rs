//! Limits on calls: what exceeds them is refused with a readable error.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fixtures::{
    assert_echo, error_code, error_message, home_of_two, local_client, wait_until_idle, who_once_up,
};
use crate::support::{running, signal};

#[test]
fn one_client_has_at_most_1000_open_requests() {
    let home = home_of_two();
    let (client, other) = (local_client(&home), local_client(&home));
    let mut ids = Vec::new();
    for _ in 0..1000 {
        ids.push(client.start_call("a__never", json!({})));
    }
    let one_more = client.call("a__echo", json!({ "message": "x" }));
    assert_eq!(error_code(&one_more), -32008, "{one_more}");
    assert!(error_message(&one_more).contains("1000"), "{one_more}");
    assert_echo(&other, "b");
    client.cancel(&json!(ids[0]));
    home.wait_until("there is room again", || {
        client.call("b__who", json!({})).get("result").is_some()
    });
    drop(client);
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn unread_bytes_for_a_server_are_limited() {
    let home = home_of_two();
    let (client, other) = (local_client(&home), local_client(&home));
    let pid = running(&home, "a");
    signal(pid, Signal::STOP);
    let text = "x".repeat(16 << 20);
    let mut sent = 0;
    let refused = home.wait_until("a call is refused", || {
        sent += 1;
        assert!(sent <= 6, "{sent} times 16 MiB wait");
        let params = format!(r#"{{"name":"a__who","arguments":{{"message":"{text}"}}}}"#);
        client.send_raw(&format!(
            r#"{{"jsonrpc":"2.0","id":"{sent}","method":"tools/call","params":{params}}}"#
        ));
        // The response shows that the call before it has been handled.
        client.request("ping", Value::Null);
        client.answer_within(format!("\"{sent}\""), Duration::ZERO)
    });
    assert_eq!(error_code(&refused), -32008, "{refused}");
    assert!(error_message(&refused).contains("does not read"), "{refused}");
    assert_echo(&other, "b");
    signal(pid, Signal::KILL);
    // The server has read nothing, so its successor gets all retained calls. On systems without
    // `FIONREAD` the first call counts as seen, since it was partly written.
    let first = if cfg!(target_os = "linux") { 1 } else { 2 };
    let answers = (first..sent).map(|id| client.wait_answer(format!("\"{id}\"")));
    let (done, lost): (Vec<Value>, Vec<Value>) =
        answers.partition(|answer| answer["result"].is_object());
    assert_eq!(done.len(), 4 - first, "so many are within 64 MiB: {lost:?}");
    for lost in lost {
        assert_eq!(error_code(&lost), -32005, "{lost}");
        assert!(error_message(&lost).contains("`park { bytes }`"), "{lost}");
    }
    who_once_up(&home, &client, "a__who");
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn at_most_1000_calls_wait_for_a_starting_server() {
    let home = crate::fixtures::home();
    crate::fixtures::serve(&home, "a", &["--slow-init", "3000"]);
    home.daemon();
    let clients = [local_client(&home), local_client(&home)];
    let waiting: Vec<u64> = (0..600)
        .map(|number| clients[0].start_call("a__echo", json!({ "message": number })))
        .collect();
    let more: Vec<u64> = (0..400)
        .map(|number| clients[1].start_call("a__echo", json!({ "message": number })))
        .collect();
    clients[0].request("ping", Value::Null);
    let refused = clients[1].call("a__echo", json!({ "message": "x" }));
    assert_eq!(error_code(&refused), -32008, "{refused}");
    for (client, ids) in clients.iter().zip([waiting, more]) {
        for (number, id) in ids.into_iter().enumerate() {
            let answer = client.wait_answer(id);
            assert_eq!(answer["result"]["structuredContent"]["message"], number, "{answer}");
        }
    }
    home.finish();
}
