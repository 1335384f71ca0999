//! Answers that are none, and answers in unusual clothes.

use super::*;

/// A server that has been called `a`, by whom, and our id of that call.
async fn called() -> (Harness, Visitor, u64) {
    let play = Harness::begin().await;
    let client = play.client(&json!({}));
    client.call("a");
    let ours = play.calls()[0].0;
    (play, client, ours)
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_an_answer_that_cannot_be_read_is_told() {
    here(async {
        for garbled in [
            &br#"{"jsonrpc":"2.0","id":OURS,"result":{"x":NaN}}"#[..],
            b"{\"jsonrpc\":\"2.0\",\"id\":OURS,\"result\":{\"x\":\"\xff\"}}",
            b"{\"jsonrpc\":\"2.0\",\"id\":OURS,\"y\":\"\xff\",\"result\":{}}",
            br#"{"jsonrpc":"2.0","id":OURS,"id":OURS,"result":{}}"#,
            br#"{"jsonrpc":"2.0","id":OURS,"result":{}"#,
            br#" {"id":OURS,"result":{}}"#,
            br#"{"jsonrpc":"2.0","id":OURS}"#,
            br#"[7,{"jsonrpc":"2.0","id":OURS,"error":7}]"#,
            br#"{"jsonrpc":"2.0","id":OURS,"error":"bad"}"#,
            br#"{"jsonrpc":"2.0","id":OURS,"error":{"code":"x","message":"m"}}"#,
            br#"{"jsonrpc":"2.0","id":OURS,"error":{"code":1.5,"message":"m"}}"#,
            br#"{"jsonrpc":"2.0","id":OURS,"error":{"code":1}}"#,
            br#"{"jsonrpc":"2.0","id":OURS,"error":{"code":1,"message":null}}"#,
        ] {
            let (play, client, ours) = called().await;
            let line = replaced(garbled, b"OURS", ours.to_string().as_bytes());
            play.upstream.handle(&line, None);
            let told = String::from_utf8_lossy(&line).into_owned();
            assert!(client.error().contains("something that is no answer"), "{told}");
            play.answer(ours);
            assert!(client.heard().is_empty(), "answered once: {told}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_only_looks_like_an_answer_ends_no_call() {
    here(async {
        let (play, client, ours) = called().await;
        for line in [
            format!(r#"sent {{"jsonrpc":"2.0","id":{ours},"result":NaN}}"#),
            format!(r#"{{"id":{ours},"method":"x","params":NaN}}"#),
            format!(r#"{{"x":{{"id":{ours},"result":NaN}}}}"#),
            format!(r#"[{ours},"result",NaN]"#),
            format!(r#"{{"id":"{ours}","result":NaN}}"#),
            format!(r#"{{"level":30,"id":{ours},"msg":"working"}}"#),
            format!(r#"{{"id":{ours},"method":"roots/list"}}"#),
            format!(r#"{{"jsonrpc":"2.0","id":{ours},"method":"roots/list","params":7}}"#),
            format!(r#"[{{"level":30,"id":{ours}}}]"#),
        ] {
            play.upstream.handle(line.as_bytes(), None);
            assert!(client.heard().is_empty(), "{line}");
        }
        play.answer(ours);
        assert_eq!(client.heard()[0]["result"]["ok"], ours);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_counts_in_a_batch_and_with_a_fraction() {
    here(async {
        let told = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"d"}}"#;
        for line in [
            r#"{"jsonrpc":"2.0","id":OURS.0,"result":{"ok":1}}"#.to_owned(),
            r#"[{"jsonrpc":"2.0","id":OURS,"result":{"ok":1}}]"#.to_owned(),
            r#"[{"jsonrpc":"2.0","id":OURS,"result":{"ok":1}},7]"#.to_owned(),
            format!(r#" [ {told}, {{"jsonrpc":"2.0","id":OURS,"result":{{"ok":1}}}} ]"#),
        ] {
            let (play, client, ours) = called().await;
            play.upstream.handle(line.replace("OURS", &ours.to_string()).as_bytes(), None);
            let heard = client.heard();
            let answers: Vec<&Value> = heard.iter().filter(|it| it["id"] == "a").collect();
            let [answer] = answers[..] else { panic!("{line}: {heard:?}") };
            assert_eq!(answer["result"]["ok"], 1, "{line}");
        }
    })
    .await;
}

fn replaced(line: &[u8], what: &[u8], with: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    let mut rest = line;
    while let Some(at) = rest.windows(what.len()).position(|it| it == what) {
        all.extend_from_slice(&rest[..at]);
        all.extend_from_slice(with);
        rest = &rest[at + what.len()..];
    }
    all.extend_from_slice(rest);
    all
}
