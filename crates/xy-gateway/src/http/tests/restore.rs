//! Sessions that another daemon goes on with.

use std::path::Path;

use super::super::limits::{OPEN_AFTER, SENT_KNOWN_FOR};
use super::super::persistence::SessionFile;
use super::*;
use crate::frontend::{Route, StreamNo};
use crate::generation::Generation;
use crate::large::LARGE;

const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

const LIST_CHANGES: [&str; 3] = [
    r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#,
];

/// Plays a story in a daemon of its own, which finds what those before it have left.
async fn in_a_daemon(folder: &Path, rules: HttpRules, story: impl AsyncFnOnce(&World)) {
    at_a_door_with(Persistence::open(session_file(folder)).await, rules, story).await;
}

fn session_file(folder: &Path) -> SessionFile {
    SessionFile {
        path: folder.join("sessions"),
        home: 1,
        state_key: "a key that is long enough".to_owned(),
        generation: Generation::draw(),
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Begins a session that a later daemon may go on with.
async fn begun(folder: &Path, rules: HttpRules) -> String {
    let mut begun = String::new();
    in_a_daemon(folder, rules, async |world| begun = world.session().await.1).await;
    begun
}

/// The status of a call within a session.
async fn call_status(world: &World, session: &str) -> u16 {
    world.client().await.ask(&Request::call(session, 1, "any", "[]")).await.status
}

fn only(tokens: &[Token]) -> HttpRules {
    HttpRules { auth: Auth::Tokens(tokens.to_vec()), ..rules() }
}

#[tokio::test]
async fn session_goes_on_in_the_next_daemon_and_in_the_one_after() {
    let folder = folder();
    let mut id = String::new();
    in_a_daemon(folder.path(), rules(), async |world| {
        let (mut client, session) = world.session().await;
        let post = |body: &str| Request::post("/mcp", body).with("mcp-session-id", &session);
        assert_eq!(client.ask(&post(INITIALIZED)).await.status, 202);
        let level = Request::call(&session, 1, "logging/setLevel", r#"{"level":"error"}"#);
        assert_eq!(client.ask(&level).await.status, 200);
        for (id, method, uri) in
            [(2, "subscribe", "a"), (3, "subscribe", "b"), (4, "unsubscribe", "a")]
        {
            let params = format!(r#"{{"uri":"{uri}"}}"#);
            let ask = Request::call(&session, id, &format!("resources/{method}"), &params);
            assert_eq!(client.ask(&ask).await.status, 200);
        }
        id = session;
    })
    .await;
    assert!(id.len() <= 512, "{id}");
    for _ in 0..2 {
        in_a_daemon(folder.path(), rules(), async |world| {
            assert_eq!(call_status(world, &id).await, 200);
            let methods = world.front.newest().methods();
            let replayed = [
                "initialize",
                "notifications/initialized",
                "logging/setLevel",
                "resources/subscribe",
                "any",
            ];
            assert_eq!(methods, replayed);
            let mut listener = world.client().await;
            listener.open(&Request::listen(&id)).await;
            for change in LIST_CHANGES {
                assert_eq!(listener.event().await.as_deref(), Some(change));
            }
            assert!(!world.metrics().contains("xy_http_lost_messages_total{"));
        })
        .await;
    }
}

#[tokio::test]
async fn large_messages_are_kept_as_small_ones_are() {
    let folder = folder();
    let rules = || HttpRules { body_max_bytes: 2 * LARGE, ..rules() };
    let filler = "x".repeat(LARGE);
    let (mut id, mut call) = Default::default();
    in_a_daemon(folder.path(), rules(), async |world| {
        let (mut client, session) = world.session().await;
        let params = format!(r#"{{"uri":"a","filler":"{filler}"}}"#);
        let watch = Request::call(&session, 1, "resources/subscribe", &params);
        assert_eq!(client.ask(&watch).await.status, 200);
        let params = format!(r#"{{"filler":"{filler}"}}"#);
        client.send(Request::call(&session, 77, "wait", &params).text().as_bytes()).await;
        world.wait_until(|| !world.front.newest().streams_of("wait").is_empty()).await;
        jump(OPEN_AFTER).await;
        client.head().await;
        call = client.first_id().await;
        id = session;
    })
    .await;
    in_a_daemon(folder.path(), rules(), async |world| {
        let answer = world.client().await.ask(&Request::resume(&id, &call)).await;
        let told: serde_json::Value = serde_json::from_str(&answer.events()[0]).unwrap();
        assert_eq!((&told["id"], &told["error"]["code"]), (&77.into(), &(-32010).into()));
        assert_eq!(world.front.newest().methods(), ["initialize", "resources/subscribe"]);
    })
    .await;
}

#[tokio::test]
async fn ended_session_stays_ended() {
    let folder = folder();
    let mut ended = Vec::new();
    in_a_daemon(folder.path(), rules(), async |world| {
        let (mut client, id) = world.session().await;
        assert_eq!(client.ask(&Request::end(&id)).await.status, 204);
        ended.push(id);
        ended.push(world.session().await.1);
        jump(rules().idle * 2).await;
        world.wait_for_gauges((0, 0)).await;
    })
    .await;
    let left = begun(folder.path(), rules()).await;
    in_a_daemon(folder.path(), rules(), async |world| {
        for id in &ended {
            assert_eq!(call_status(world, id).await, 404);
        }
        jump(rules().idle * 2).await;
        world.wait_until(|| world.door.sessions().dormant() == 0).await;
        assert_eq!(call_status(world, &left).await, 404, "it was idle for too long");
    })
    .await;
    in_a_daemon(folder.path(), rules(), async |world| {
        assert_eq!(call_status(world, &left).await, 404);
    })
    .await;
}

#[tokio::test]
async fn session_belongs_to_its_tokens_secret() {
    let folder = folder();
    let mine = token("secret", false);
    let rotated = Token { secret: Secret::Plain("another".to_owned()), ..mine.clone() };
    let digested =
        Token { secret: Secret::Digest(super::super::digest(b"secret")), ..mine.clone() };
    let with = |session: &str, secret: &str| {
        let bearer = format!("Bearer {secret}");
        Request::call(session, 1, "any", "[]").with("authorization", &bearer)
    };
    let anybodys = begun(folder.path(), rules()).await;
    let mut id = String::new();
    in_a_daemon(folder.path(), only(std::slice::from_ref(&mine)), async |world| {
        let mut client = world.client().await;
        assert_eq!(client.ask(&with(&anybodys, "secret")).await.status, 404);
        let begin = Request::post("/mcp", INITIALIZE).with("authorization", "Bearer secret");
        id = client.ask(&begin).await.header("mcp-session-id").unwrap().to_owned();
    })
    .await;
    in_a_daemon(folder.path(), rules(), async |world| {
        assert_eq!(call_status(world, &id).await, 404);
    })
    .await;
    in_a_daemon(folder.path(), only(&[digested]), async |world| {
        let mut client = world.client().await;
        assert_eq!(client.ask(&with(&id, "secret")).await.status, 200);
        let other = with(&id, "secret").with("mcp-session-id", &id.replace('A', "B"));
        assert_eq!(client.ask(&other).await.status, 404);
    })
    .await;
    in_a_daemon(folder.path(), only(&[rotated]), async |world| {
        let mut client = world.client().await;
        assert_eq!(client.ask(&with(&id, "another")).await.status, 404);
        world.door.set_tokens(&[]);
        assert_eq!(world.door.sessions().dormant(), 0, "nobody can go on with it");
    })
    .await;
    in_a_daemon(folder.path(), only(&[mine]), async |world| {
        let mut client = world.client().await;
        assert_eq!(client.ask(&with(&id, "secret")).await.status, 404, "its record is gone");
    })
    .await;
}

#[tokio::test]
async fn session_belongs_to_its_path_and_revision() {
    let folder = folder();
    let id = begun(folder.path(), rules()).await;
    in_a_daemon(folder.path(), rules(), async |world| {
        let mut client = world.client().await;
        let elsewhere = Request::post("/mcp/s/one", INITIALIZED).with("mcp-session-id", &id);
        assert_eq!(client.ask(&elsewhere).await.status, 404);
        world.front.version.set(Some("2025-06-18"));
        assert_eq!(call_status(world, &id).await, 404);
        world.front.version.set(None);
        assert_eq!(call_status(world, &id).await, 404, "nothing is left of it");
    })
    .await;
}

/// A server that is down when its session is restored agrees to whatever is asked for.
#[tokio::test]
async fn session_goes_on_in_the_revision_that_its_server_chose() {
    let folder = folder();
    let mut id = String::new();
    in_a_daemon(folder.path(), rules(), async |world| {
        world.front.version.set(Some("2025-06-18"));
        let newer = INITIALIZE.replace("{}", r#"{"protocolVersion":"2025-11-25"}"#);
        let answer = world.client().await.ask(&Request::post("/mcp", &newer)).await;
        id = answer.header("mcp-session-id").unwrap().to_owned();
    })
    .await;
    in_a_daemon(folder.path(), rules(), async |world| {
        assert_eq!(call_status(world, &id).await, 200);
        assert_eq!(world.front.newest().version.get(), "2025-06-18");
    })
    .await;
}

#[tokio::test]
async fn several_requests_at_once_restore_one_session() {
    let folder = folder();
    let id = begun(folder.path(), rules()).await;
    in_a_daemon(folder.path(), rules(), async |world| {
        world.front.is_slow.set(true);
        let mut clients = [world.client().await, world.client().await];
        for client in &mut clients {
            client.send(Request::call(&id, 1, "any", "[]").text().as_bytes()).await;
            world.wait_until(|| !world.front.conversations().is_empty()).await;
        }
        // Both are there, and none is served yet.
        world.wait_until(|| world.door.counts().connections.get() == 2).await;
        let restored = world.front.newest();
        let stream = restored.streams_of("initialize")[0];
        restored.say(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#, Route::Answer(stream));
        for client in &mut clients {
            assert_eq!(client.answer().await.status, 200);
        }
        assert_eq!((world.gauges().0, world.front.conversations().len()), (1, 1));
        assert_eq!(restored.methods(), ["initialize", "any", "any"]);
    })
    .await;
}

#[tokio::test]
async fn session_whose_token_is_rotated_while_it_is_restored_is_not_found() {
    let folder = folder();
    let mine = token("secret", false);
    let rotated = Token { secret: Secret::Plain("another".to_owned()), ..mine.clone() };
    let mut id = String::new();
    in_a_daemon(folder.path(), only(&[]), async |world| {
        world.door.set_tokens(std::slice::from_ref(&mine));
        let begin = Request::post("/mcp", INITIALIZE).with("authorization", "Bearer secret");
        let answer = world.client().await.ask(&begin).await;
        id = answer.header("mcp-session-id").unwrap().to_owned();
    })
    .await;
    in_a_daemon(folder.path(), only(&[]), async |world| {
        world.door.set_tokens(std::slice::from_ref(&mine));
        world.front.is_slow.set(true);
        let mut client = world.client().await;
        let call = Request::call(&id, 1, "any", "[]").with("authorization", "Bearer secret");
        client.send(call.text().as_bytes()).await;
        world.wait_until(|| !world.front.conversations().is_empty()).await;
        world.door.set_tokens(&[rotated]);
        let restored = world.front.newest();
        let stream = restored.streams_of("initialize")[0];
        restored.say(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#, Route::Answer(stream));
        assert_eq!(client.answer().await.status, 404);
        assert_eq!((world.gauges().0, world.door.sessions().dormant()), (0, 0));
    })
    .await;
}

#[tokio::test]
async fn stream_of_an_earlier_daemon_is_never_gone() {
    let folder = folder();
    let (mut id, mut call, mut listener) = Default::default();
    in_a_daemon(folder.path(), rules(), async |world| {
        let (mut client, session) = world.session().await;
        client.open(&Request::listen(&session)).await;
        listener = client.first_id().await;
        let mut caller = world.client().await;
        caller.send(Request::call(&session, 77, "wait", "[]").text().as_bytes()).await;
        world.wait_until(|| !world.front.newest().streams_of("wait").is_empty()).await;
        jump(OPEN_AFTER).await;
        caller.head().await;
        call = caller.first_id().await;
        id = session;
    })
    .await;
    in_a_daemon(folder.path(), rules(), async |world| {
        let mut client = world.client().await;
        let answer = client.ask(&Request::resume(&id, &call)).await;
        assert_eq!(answer.status, 200);
        let told: serde_json::Value = serde_json::from_str(&answer.events()[0]).unwrap();
        assert_eq!((&told["id"], &told["error"]["code"]), (&77.into(), &(-32010).into()));
        assert_eq!(answer.events().len(), 1);

        client.open(&Request::resume(&id, &listener)).await;
        let warning = client.event().await.unwrap();
        assert!(warning.contains("may be missing"), "{warning}");
        for change in LIST_CHANGES {
            assert_eq!(client.event().await.as_deref(), Some(change));
        }
        world.front.newest().say("1", Route::Broadcast);
        assert_eq!(client.event().await.as_deref(), Some("1"));

        let forged = listener.replace(|digit| matches!(digit, '0'..='9' | 'a'..='e'), "f");
        let answer = world.client().await.ask(&Request::resume(&id, &forged)).await;
        assert_eq!(answer.status, 400);
    })
    .await;
}

/// Posts a message, has the server say something about it, and returns the client, the stream
/// and the id of that event.
async fn streamed(world: &World, post: &Request) -> (Client, StreamNo, String) {
    let client_session = world.front.newest();
    let before = client_session.streams_of("wait").len();
    let mut client = world.client().await;
    client.send(post.text().as_bytes()).await;
    world.wait_until(|| client_session.streams_of("wait").len() > before).await;
    let stream = client_session.streams_of("wait")[before];
    client_session.say(PROGRESS, Route::Related(stream));
    assert_eq!(client.head().await.header("content-type"), Some("text/event-stream"));
    assert_eq!(client.event().await.as_deref(), Some(PROGRESS));
    let event = client.last_event.clone().unwrap();
    (client, stream, event)
}

const PROGRESS: &str = r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#;

fn result(id: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
}

/// Resumes a stream of an earlier daemon; returns the ids whose outcome is said to be unknown.
async fn unknown_outcomes(world: &World, session: &str, after: &str) -> Vec<u64> {
    let answer = world.client().await.ask(&Request::resume(session, after)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let id = |event: &String| {
        let told: serde_json::Value = serde_json::from_str(event).unwrap();
        assert_eq!(told["error"]["code"], -32010, "{event}");
        told["id"].as_u64().unwrap()
    };
    answer.events().iter().map(id).collect()
}

#[tokio::test]
async fn open_call_is_known_after_many_that_have_ended() {
    let folder = folder();
    let (mut id, mut after) = Default::default();
    in_a_daemon(folder.path(), rules(), async |world| {
        let (mut client, session) = world.session().await;
        let (_open, _, event) = streamed(world, &Request::call(&session, 7, "wait", "[]")).await;
        for number in 100..500 {
            let call = Request::call(&session, number, "tell", "[1]");
            assert_eq!(client.ask(&call).await.events().len(), 2);
        }
        (id, after) = (session, event);
    })
    .await;
    in_a_daemon(folder.path(), rules(), async |world| {
        assert_eq!(unknown_outcomes(world, &id, &after).await, [7]);
    })
    .await;
}

#[tokio::test]
async fn each_unanswered_request_of_a_batch_has_an_unknown_outcome() {
    let folder = folder();
    let part = |id: u64| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"wait"}}"#);
    let batch = format!("[{},{},{},{INITIALIZED}]", part(1), part(2), part(3));
    let (mut id, mut before, mut after) = Default::default();
    in_a_daemon(folder.path(), rules(), async |world| {
        let (_client, session) = world.session().await;
        let post = Request::post("/mcp", &batch).with("mcp-session-id", &session);
        let (mut client, stream, event) = streamed(world, &post).await;
        world.front.newest().say(&result(2), Route::Related(stream));
        assert_eq!(client.event().await, Some(result(2)));
        (id, before, after) = (session, event, client.last_event.clone().unwrap());
    })
    .await;
    in_a_daemon(folder.path(), rules(), async |world| {
        assert_eq!(unknown_outcomes(world, &id, &after).await, [1, 3]);
        // A client that has not read the answer to 2 cannot have it any more.
        assert_eq!(unknown_outcomes(world, &id, &before).await, [1, 2, 3]);
    })
    .await;
}

#[tokio::test]
async fn call_of_a_client_that_accepts_everything_has_an_unknown_outcome() {
    let folder = folder();
    let (mut id, mut after) = Default::default();
    in_a_daemon(folder.path(), rules(), async |world| {
        let (_client, session) = world.session().await;
        let call = Request::call(&session, 7, "wait", "[]").with("accept", "*/*");
        let (_open, _, event) = streamed(world, &call).await;
        (id, after) = (session, event);
    })
    .await;
    in_a_daemon(folder.path(), rules(), async |world| {
        assert_eq!(unknown_outcomes(world, &id, &after).await, [7]);
    })
    .await;
}

/// Returns the records that a daemon has left.
async fn records(folder: &Path) -> Vec<Record> {
    Persistence::open(session_file(folder)).await.1
}

#[tokio::test]
async fn ended_stream_is_not_in_the_record_once_it_cannot_be_resumed() {
    let folder = folder();
    let rules = || HttpRules { idle: Duration::MAX, ..rules() };
    let (mut id, mut ended, mut open) = Default::default();
    in_a_daemon(folder.path(), rules(), async |world| {
        let (_client, session) = world.session().await;
        let call = |id| Request::call(&session, id, "wait", "[]");
        let (_open, _, event) = streamed(world, &call(7)).await;
        let (mut client, stream, _) = streamed(world, &call(8)).await;
        world.front.newest().say(&result(8), Route::Answer(stream));
        assert_eq!(client.event().await, Some(result(8)));
        assert_eq!(client.event().await, None);
        world.wait_until(|| world.apart() == 1).await;
        jump(SENT_KNOWN_FOR * 2).await;
        world.wait_until(|| world.apart() == 0).await;
        (id, open, ended) = (session, event, client.last_event.clone().unwrap());
    })
    .await;
    let requests = |record: &Record| -> Vec<String> {
        record.calls.iter().map(|it| it.request.clone()).collect()
    };
    assert_eq!(requests(&records(folder.path()).await[0]), ["7"]);
    in_a_daemon(folder.path(), rules(), async |world| {
        assert_eq!(unknown_outcomes(world, &id, &open).await, [7]);
        let answer = world.client().await.ask(&Request::resume(&id, &ended)).await;
        assert_eq!(answer.status, 400);
        assert!(answer.message().contains("its outcome is unknown"), "{answer:?}");
    })
    .await;
}

#[tokio::test]
async fn client_that_has_read_its_answer_is_told_that_nothing_follows() {
    let folder = folder();
    let (mut id, mut before, mut after) = Default::default();
    in_a_daemon(folder.path(), rules(), async |world| {
        let (_client, session) = world.session().await;
        let call = Request::call(&session, 7, "wait", "[]");
        let (mut client, stream, event) = streamed(world, &call).await;
        world.front.newest().say(&result(7), Route::Answer(stream));
        assert_eq!(client.event().await, Some(result(7)));
        (id, before, after) = (session, event, client.last_event.clone().unwrap());
    })
    .await;
    in_a_daemon(folder.path(), rules(), async |world| {
        let over = world.client().await.ask(&Request::resume(&id, &after)).await;
        assert_eq!(over.status, 204);
        assert_eq!(unknown_outcomes(world, &id, &before).await, [7]);
    })
    .await;
}

/// Their event ids have no letter, and all calls of that version are in the record.
#[tokio::test]
async fn event_ids_of_an_earlier_version_are_read() {
    let folder = folder();
    let (mut id, mut call, mut listener) = Default::default();
    in_a_daemon(folder.path(), rules(), async |world| {
        let (mut client, session) = world.session().await;
        client.open(&Request::listen(&session)).await;
        listener = client.first_id().await.replace("-l", "-");
        let (_open, _, event) = streamed(world, &Request::call(&session, 7, "wait", "[]")).await;
        (id, call) = (session, event.replace("-c", "-"));
    })
    .await;
    in_a_daemon(folder.path(), rules(), async |world| {
        assert_eq!(unknown_outcomes(world, &id, &call).await, [7]);
        let mut client = world.client().await;
        client.open(&Request::resume(&id, &listener)).await;
        let warning = client.event().await.unwrap();
        assert!(warning.contains("may be missing"), "{warning}");
    })
    .await;
}

#[tokio::test]
async fn subscription_that_no_server_has_seen_is_not_restored() {
    let folder = folder();
    let rules = || HttpRules { streams_per_session_max: 1, ..rules() };
    in_a_daemon(folder.path(), rules(), async |world| {
        let (mut client, session) = world.session().await;
        let mut listener = world.client().await;
        listener.open(&Request::listen(&session)).await;
        let subscribe = Request::call(&session, 1, "resources/subscribe", r#"{"uri":"a"}"#);
        assert_eq!(client.ask(&subscribe).await.status, 429);
    })
    .await;
    assert!(records(folder.path()).await[0].subscriptions.is_empty());
}

#[tokio::test]
async fn refused_subscription_is_not_restored() {
    let folder = folder();
    let mut id = String::new();
    in_a_daemon(folder.path(), rules(), async |world| {
        let (mut client, session) = world.session().await;
        let subscribe = |id: u64, uri: &str| {
            let params = format!(r#"{{"uri":"{uri}"}}"#);
            Request::call(&session, id, "resources/subscribe", &params)
        };
        assert_eq!(client.ask(&subscribe(1, "accepted")).await.status, 200);
        assert_eq!(client.ask(&subscribe(2, "refused")).await.status, 200);
        // Its answer comes on an event stream.
        let mut waiting = world.client().await;
        waiting.send(subscribe(3, "slow").text().as_bytes()).await;
        let client_session = world.front.newest();
        world.wait_until(|| client_session.streams_of("resources/subscribe").len() == 3).await;
        jump(OPEN_AFTER).await;
        waiting.head().await;
        let stream = client_session.streams_of("resources/subscribe")[2];
        let refusal = r#"{"jsonrpc":"2.0","id":3,"error":{"code":1,"message":"no"}}"#;
        client_session.say(refusal, Route::Answer(stream));
        assert_eq!(waiting.event().await.as_deref(), Some(refusal));
        id = session;
    })
    .await;
    in_a_daemon(folder.path(), rules(), async |world| {
        assert_eq!(call_status(world, &id).await, 200);
        assert_eq!(world.front.newest().methods(), ["initialize", "resources/subscribe", "any"]);
    })
    .await;
}

#[tokio::test]
async fn daemon_that_ends_breaks_calls_without_a_word_and_tells_streams_when_to_come_back() {
    let folder = folder();
    in_a_daemon(folder.path(), rules(), async |world| {
        let (mut listener, id) = world.session().await;
        listener.open(&Request::listen(&id)).await;
        let mut caller = world.client().await;
        let json = Request::call(&id, 1, "wait", "[]").with("accept", "application/json");
        caller.send(json.text().as_bytes()).await;
        world.wait_until(|| !world.front.newest().streams_of("wait").is_empty()).await;
        world.meanwhile(async move {
            let mut said = String::new();
            while let Some(chunk) = listener.chunk().await {
                said += &chunk;
            }
            assert!(said.ends_with("retry: 5000\n\n"), "{said}");
        });
        world.meanwhile(async move { assert!(caller.is_closed().await) });
    })
    .await;
}

#[tokio::test]
async fn session_that_cannot_be_kept_is_served_all_the_same() {
    let folder = folder();
    let params = format!(r#"{{"x":"{}"}}"#, "x".repeat(16 * 1024));
    let large = format!(r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{params}}}"#);
    let mut id = String::new();
    in_a_daemon(folder.path(), rules(), async |world| {
        let answer = world.client().await.ask(&Request::post("/mcp", &large)).await;
        id = answer.header("mcp-session-id").unwrap().to_owned();
        assert_eq!(call_status(world, &id).await, 200);
    })
    .await;
    in_a_daemon(folder.path(), rules(), async |world| {
        assert_eq!(call_status(world, &id).await, 404);
    })
    .await;
}
