//! Sessions that another daemon goes on with.

use std::path::Path;

use super::super::limits::OPEN_AFTER;
use super::super::persistence::SessionFile;
use super::*;
use crate::front::To;
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
    let file = SessionFile {
        path: folder.join("sessions"),
        home: 1,
        state_key: "a key that is long enough".to_owned(),
        generation: Generation::draw(),
    };
    let sessions = Persistence::open(file).await;
    at_a_door_with(sessions, rules, story).await;
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
        world.door.let_in(&[]);
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
        restored.say(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#, To::Answer(stream));
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
        world.door.let_in(std::slice::from_ref(&mine));
        let begin = Request::post("/mcp", INITIALIZE).with("authorization", "Bearer secret");
        let answer = world.client().await.ask(&begin).await;
        id = answer.header("mcp-session-id").unwrap().to_owned();
    })
    .await;
    in_a_daemon(folder.path(), only(&[]), async |world| {
        world.door.let_in(std::slice::from_ref(&mine));
        world.front.is_slow.set(true);
        let mut client = world.client().await;
        let call = Request::call(&id, 1, "any", "[]").with("authorization", "Bearer secret");
        client.send(call.text().as_bytes()).await;
        world.wait_until(|| !world.front.conversations().is_empty()).await;
        world.door.let_in(&[rotated]);
        let restored = world.front.newest();
        let stream = restored.streams_of("initialize")[0];
        restored.say(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#, To::Answer(stream));
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
        world.front.newest().say("1", To::Anyone);
        assert_eq!(client.event().await.as_deref(), Some("1"));

        let forged = listener.replace(|digit| matches!(digit, '0'..='9' | 'a'..='e'), "f");
        let answer = world.client().await.ask(&Request::resume(&id, &forged)).await;
        assert_eq!(answer.status, 400);
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
