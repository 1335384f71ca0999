//! Messages so large that another thread parses them.

use tokio::net::unix::pipe;
use xy_transport::large::{LARGE_THRESHOLD, LargeMessage};
use xy_upstream::connection::pipes::Pipes;

use super::*;

fn large(message: &Value) -> Arc<LargeMessage> {
    Arc::new(LargeMessage::read(message.to_string().into_bytes()))
}

fn call(id: &str) -> Value {
    let params = json!({ "name": "s__x", "arguments": "x".repeat(2 * LARGE_THRESHOLD) });
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
}

#[tokio::test(start_paused = true)]
async fn large_call_is_shared_until_it_is_answered() {
    run_local(async {
        let mut harness = Harness::begin().await;
        let client = harness.client(&json!({}));
        let message = large(&call("a"));
        client.client_session.handle_large(&message, 0);
        assert_eq!(Arc::strong_count(&message), 2, "the copy for a retry is shared");
        // The next process gets the same bytes, without another parse.
        harness.restart().await;
        let calls = harness.calls();
        assert_eq!((calls.len(), calls[0].1.len()), (1, 2 * LARGE_THRESHOLD));
        harness.answer(calls[0].0);
        assert_eq!(client.received()[0]["id"], "a");
        assert_eq!(Arc::strong_count(&message), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_large_batch_are_handled_one_by_one() {
    run_local(async {
        let harness = Harness::begin().await;
        let client = harness.client_of("2025-03-26", &json!({}));
        let message = large(&json!([call("a"), 7, [call("b")], call("c")]));
        client.client_session.handle_large(&message, 0);
        let calls = harness.calls();
        assert_eq!(calls.len(), 2);
        for (upstream_id, _) in calls {
            harness.answer(upstream_id);
        }
        let ids: Vec<Value> = client.received().iter().map(|it| it["id"].clone()).collect();
        assert_eq!(ids, [Value::Null, Value::Null, json!("a"), json!("c")]);
    })
    .await;
}

/// Returns the pipes of a server, and the end of its stdout that xy reads.
fn pipes(output: &str) -> (Rc<Pipes>, pipe::Receiver) {
    let (_, stdin) = std::io::pipe().unwrap();
    let (stdout, mut server) = std::io::pipe().unwrap();
    let output = output.to_owned();
    std::thread::spawn(move || std::io::Write::write_all(&mut server, output.as_bytes()));
    let stdin = Rc::new(pipe::Sender::from_owned_fd_unchecked(stdin.into()).unwrap());
    rustix::io::ioctl_fionbio(&stdout, true).unwrap();
    let stdout = pipe::Receiver::from_owned_fd_unchecked(stdout.into()).unwrap();
    (Pipes::new(&stdin, mpsc::channel(1).0), stdout)
}

fn result(upstream_id: u64, length: usize) -> String {
    json!({ "jsonrpc": "2.0", "id": upstream_id, "result": { "x": "x".repeat(length) } })
        .to_string()
}

#[tokio::test]
async fn lines_behind_a_large_response_keep_their_order() {
    run_local(async {
        let harness = Harness::begin().await;
        let client = harness.client(&json!({}));
        for id in ["a", "b", "c"] {
            client.call(id);
        }
        let calls = harness.calls();
        let [a, b, c] = [0, 1, 2].map(|call| calls[call].0);
        let lines = [
            result(a, 2 * LARGE_THRESHOLD),
            result(b, 1),
            result(c, 3 * LARGE_THRESHOLD),
            String::new(),
        ];
        let (pipes, stdout) = pipes(&lines.join("\n"));
        pipes.read_all(&harness.upstream, stdout).await.unwrap();
        let received = client.received();
        let ids: Vec<&Value> = received.iter().map(|it| &it["id"]).collect();
        assert_eq!(ids, ["a", "b", "c"]);
        assert_eq!(received[2]["result"]["x"].as_str().unwrap().len(), 3 * LARGE_THRESHOLD);
    })
    .await;
}

/// The next daemon gets the bytes that this one has read and not handled.
#[tokio::test]
async fn unparsed_large_response_is_returned() {
    run_local(async {
        let harness = Harness::begin().await;
        let client = harness.client(&json!({}));
        client.call("a");
        let upstream_id = harness.calls()[0].0;
        let lines = format!("{}\n{}\nhalf", result(upstream_id, 2 * LARGE_THRESHOLD), result(7, 1));
        let (pipes, _stdout) = pipes("");
        pipes.take(&harness.upstream, lines.as_bytes());
        assert!(client.received().is_empty());
        assert!(pipes.take_partial() == lines.as_bytes());
    })
    .await;
}

/// Nothing waits for another thread once the server has ended.
#[tokio::test]
async fn last_large_response_of_a_server_is_delivered() {
    run_local(async {
        let harness = Harness::begin().await;
        let client = harness.client(&json!({}));
        client.call("a");
        let upstream_id = harness.calls()[0].0;
        let (pipes, _stdout) = pipes("");
        pipes.take(
            &harness.upstream,
            format!("{}\n", result(upstream_id, 2 * LARGE_THRESHOLD)).as_bytes(),
        );
        pipes.handle_rest(&harness.upstream);
        assert_eq!(client.received()[0]["id"], "a");
    })
    .await;
}
