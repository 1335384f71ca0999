//! Malformed responses, and valid responses in unusual forms.

use super::*;

/// Returns a harness, a client with one open call `a`, and its upstream id.
async fn open_call() -> (Harness, TestClient, u64) {
    let harness = Harness::begin().await;
    let client = harness.client(&json!({}));
    client.call("a");
    let upstream_id = harness.calls()[0].0;
    (harness, client, upstream_id)
}

#[tokio::test(start_paused = true)]
async fn malformed_response_fails_its_call() {
    run_local(async {
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
            let (harness, client, upstream_id) = open_call().await;
            let line = replaced(garbled, b"OURS", upstream_id.to_string().as_bytes());
            harness.upstream.handle(&line, None);
            let text = String::from_utf8_lossy(&line).into_owned();
            assert!(client.error().contains("sent a malformed response"), "{text}");
            harness.answer(upstream_id);
            assert!(client.received().is_empty(), "answered once: {text}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn lookalikes_of_a_response_end_no_call() {
    run_local(async {
        let (harness, client, upstream_id) = open_call().await;
        for line in [
            format!(r#"sent {{"jsonrpc":"2.0","id":{upstream_id},"result":NaN}}"#),
            format!(r#"{{"id":{upstream_id},"method":"x","params":NaN}}"#),
            format!(r#"{{"x":{{"id":{upstream_id},"result":NaN}}}}"#),
            format!(r#"[{upstream_id},"result",NaN]"#),
            format!(r#"{{"id":"{upstream_id}","result":NaN}}"#),
            format!(r#"{{"level":30,"id":{upstream_id},"msg":"working"}}"#),
            format!(r#"{{"id":{upstream_id},"method":"roots/list"}}"#),
            format!(r#"{{"jsonrpc":"2.0","id":{upstream_id},"method":"roots/list","params":7}}"#),
            format!(r#"[{{"level":30,"id":{upstream_id}}}]"#),
        ] {
            harness.upstream.handle(line.as_bytes(), None);
            assert!(client.received().is_empty(), "{line}");
        }
        harness.answer(upstream_id);
        assert_eq!(client.received()[0]["result"]["ok"], upstream_id);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn response_counts_in_a_batch_and_with_a_fractional_id() {
    run_local(async {
        let notification =
            r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"d"}}"#;
        for line in [
            r#"{"jsonrpc":"2.0","id":OURS.0,"result":{"ok":1}}"#.to_owned(),
            r#"[{"jsonrpc":"2.0","id":OURS,"result":{"ok":1}}]"#.to_owned(),
            r#"[{"jsonrpc":"2.0","id":OURS,"result":{"ok":1}},7]"#.to_owned(),
            format!(r#" [ {notification}, {{"jsonrpc":"2.0","id":OURS,"result":{{"ok":1}}}} ]"#),
        ] {
            let (harness, client, upstream_id) = open_call().await;
            harness
                .upstream
                .handle(line.replace("OURS", &upstream_id.to_string()).as_bytes(), None);
            let received = client.received();
            let answers: Vec<&Value> = received.iter().filter(|it| it["id"] == "a").collect();
            let [answer] = answers[..] else { panic!("{line}: {received:?}") };
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
