//! Limits on calls: what exceeds them is refused with a readable error.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::fixtures::{
    assert_echo, error_code, error_message, home_of_two, local_client, wait_until_idle, who_once_up,
};
use crate::support::{running, signal};

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
