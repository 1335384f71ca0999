//! Messages so large that another thread parses them.

use tokio::net::unix::pipe;

use super::*;
use crate::large::{LARGE, LargeMessage};
use crate::upstream::pipes::Pipes;

fn large(message: &Value) -> Arc<LargeMessage> {
    Arc::new(LargeMessage::read(message.to_string().into_bytes()))
}

fn call(id: &str) -> Value {
    let params = json!({ "name": "s__x", "arguments": "x".repeat(2 * LARGE) });
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
}

#[tokio::test(start_paused = true)]
async fn large_call_is_shared_until_it_is_answered() {
    here(async {
        let mut play = Harness::begin().await;
        let client = play.client(&json!({}));
        let message = large(&call("a"));
        client.client_session.handle_large(&message, 0);
        assert_eq!(Arc::strong_count(&message), 2, "the copy for a retry is shared");
        // It is sent again, without being parsed again.
        play.live_again().await;
        let calls = play.calls();
        assert_eq!((calls.len(), calls[0].1.len()), (1, 2 * LARGE));
        play.answer(calls[0].0);
        assert_eq!(client.heard()[0]["id"], "a");
        assert_eq!(Arc::strong_count(&message), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_large_batch_are_handled_one_by_one() {
    here(async {
        let play = Harness::begin().await;
        let client = play.client_of("2025-03-26", &json!({}));
        let message = large(&json!([call("a"), 7, [call("b")], call("c")]));
        client.client_session.handle_large(&message, 0);
        let calls = play.calls();
        assert_eq!(calls.len(), 2);
        for (ours, _) in calls {
            play.answer(ours);
        }
        let ids: Vec<Value> = client.heard().iter().map(|it| it["id"].clone()).collect();
        assert_eq!(ids, [Value::Null, Value::Null, json!("a"), json!("c")]);
    })
    .await;
}

/// Returns the pipes of a server, and the end of its stdout that xy reads.
fn pipes(said: &str) -> (Rc<Pipes>, pipe::Receiver) {
    let (_, stdin) = std::io::pipe().unwrap();
    let (stdout, mut server) = std::io::pipe().unwrap();
    let said = said.to_owned();
    std::thread::spawn(move || std::io::Write::write_all(&mut server, said.as_bytes()));
    let stdin = Rc::new(pipe::Sender::from_owned_fd_unchecked(stdin.into()).unwrap());
    rustix::io::ioctl_fionbio(&stdout, true).unwrap();
    let stdout = pipe::Receiver::from_owned_fd_unchecked(stdout.into()).unwrap();
    (Pipes::new(&stdin, mpsc::channel(1).0), stdout)
}

fn result(ours: u64, length: usize) -> String {
    json!({ "jsonrpc": "2.0", "id": ours, "result": { "x": "x".repeat(length) } }).to_string()
}

#[tokio::test]
async fn lines_behind_a_large_answer_keep_their_order() {
    here(async {
        let play = Harness::begin().await;
        let client = play.client(&json!({}));
        for id in ["a", "b", "c"] {
            client.call(id);
        }
        let calls = play.calls();
        let [a, b, c] = [0, 1, 2].map(|call| calls[call].0);
        let lines = [result(a, 2 * LARGE), result(b, 1), result(c, 3 * LARGE), String::new()];
        let (pipes, stdout) = pipes(&lines.join("\n"));
        pipes.read_all(&play.upstream, stdout).await.unwrap();
        let heard = client.heard();
        let ids: Vec<&Value> = heard.iter().map(|it| &it["id"]).collect();
        assert_eq!(ids, ["a", "b", "c"]);
        assert_eq!(heard[2]["result"]["x"].as_str().unwrap().len(), 3 * LARGE);
    })
    .await;
}

/// The next daemon gets what this one has read and not handled.
#[tokio::test]
async fn large_answer_that_is_not_parsed_yet_is_given_back() {
    here(async {
        let play = Harness::begin().await;
        let client = play.client(&json!({}));
        client.call("a");
        let ours = play.calls()[0].0;
        let lines = format!("{}\n{}\nhalf", result(ours, 2 * LARGE), result(7, 1));
        let (pipes, _stdout) = pipes("");
        pipes.take(&play.upstream, lines.as_bytes());
        assert!(client.heard().is_empty());
        assert!(pipes.take_partial() == lines.as_bytes());
    })
    .await;
}

/// A server that has ended leaves no time for another thread.
#[tokio::test]
async fn large_last_answer_of_a_server_is_heard() {
    here(async {
        let play = Harness::begin().await;
        let client = play.client(&json!({}));
        client.call("a");
        let ours = play.calls()[0].0;
        let (pipes, _stdout) = pipes("");
        pipes.take(&play.upstream, format!("{}\n", result(ours, 2 * LARGE)).as_bytes());
        pipes.hear_rest(&play.upstream);
        assert_eq!(client.heard()[0]["id"], "a");
    })
    .await;
}
