//! Sessions that continue in the next daemon.

use std::path::Path;

use xy_transport::error_log::capture::Capture;
use xy_transport::large::LARGE_THRESHOLD;

use super::super::limits::{FINISH_TIMEOUT, SENT_FETCH_TIMEOUT, STREAM_DELAY};
use super::super::persistence::SessionFile;
use super::super::record::Journal;
use super::super::store::SAVE_TIMEOUT;
use super::super::store::tests::Fake as FakeDisk;
use super::client::Answer;
use super::*;
use crate::frontend::{Route, StreamNo};
use crate::generation::Generation;

const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

const LIST_CHANGES: [&str; 3] = [
    r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#,
];

/// Runs a test in a daemon of its own, which loads the sessions of the daemons before it.
async fn with_daemon(folder: &Path, rules: HttpRules, test: impl AsyncFnOnce(&TestServer)) {
    with_restored_service(Persistence::open(session_file(folder)).await, rules, test).await;
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

/// Opens a session that a later daemon can restore.
async fn begin_session(folder: &Path, rules: HttpRules) -> String {
    let mut begin_session = String::new();
    with_daemon(folder, rules, async |server| begin_session = server.session().await.1).await;
    begin_session
}

/// Returns the status of a call within a session.
async fn call_status(server: &TestServer, session: &str) -> u16 {
    server.client().await.ask(&Request::call(session, 1, "any", "[]")).await.status
}

fn only(tokens: &[Token]) -> HttpRules {
    HttpRules { auth: Auth::Tokens(tokens.to_vec()), ..rules() }
}

#[tokio::test]
async fn session_continues_in_the_next_two_daemons() {
    let folder = folder();
    let mut id = String::new();
    with_daemon(folder.path(), rules(), async |server| {
        let (mut client, session) = server.session().await;
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
        with_daemon(folder.path(), rules(), async |server| {
            assert_eq!(call_status(server, &id).await, 200);
            let methods = server.frontend.newest().methods();
            let replayed = [
                "initialize",
                "notifications/initialized",
                "logging/setLevel",
                "resources/subscribe",
                "any",
            ];
            assert_eq!(methods, replayed);
            let mut listener = server.client().await;
            listener.open(&Request::listen(&id)).await;
            for change in LIST_CHANGES {
                assert_eq!(listener.event().await.as_deref(), Some(change));
            }
            assert!(!server.metrics().contains("xy_http_lost_messages_total{"));
        })
        .await;
    }
}

#[tokio::test]
async fn large_messages_are_restored() {
    let folder = folder();
    let rules = || HttpRules { body_max_bytes: 2 * LARGE_THRESHOLD, ..rules() };
    let filler = "x".repeat(LARGE_THRESHOLD);
    let (mut id, mut call) = Default::default();
    with_daemon(folder.path(), rules(), async |server| {
        let (mut client, session) = server.session().await;
        let params = format!(r#"{{"uri":"a","filler":"{filler}"}}"#);
        let watch = Request::call(&session, 1, "resources/subscribe", &params);
        assert_eq!(client.ask(&watch).await.status, 200);
        let params = format!(r#"{{"filler":"{filler}"}}"#);
        client.send(Request::call(&session, 77, "wait", &params).text().as_bytes()).await;
        server.wait_until(|| !server.frontend.newest().streams_of("wait").is_empty()).await;
        advance_time(STREAM_DELAY).await;
        client.head().await;
        call = client.first_id().await;
        id = session;
    })
    .await;
    with_daemon(folder.path(), rules(), async |server| {
        let answer = server.client().await.ask(&Request::resume(&id, &call)).await;
        let error: serde_json::Value = serde_json::from_str(&answer.events()[0]).unwrap();
        assert_eq!((&error["id"], &error["error"]["code"]), (&77.into(), &(-32010).into()));
        assert_eq!(server.frontend.newest().methods(), ["initialize", "resources/subscribe"]);
    })
    .await;
}

#[tokio::test]
async fn ended_session_stays_ended() {
    let folder = folder();
    let mut ended = Vec::new();
    with_daemon(folder.path(), rules(), async |server| {
        let (mut client, id) = server.session().await;
        assert_eq!(client.ask(&Request::end(&id)).await.status, 204);
        ended.push(id);
        ended.push(server.session().await.1);
        advance_time(rules().idle * 2).await;
        server.wait_for_gauges((0, 0)).await;
    })
    .await;
    let left = begin_session(folder.path(), rules()).await;
    with_daemon(folder.path(), rules(), async |server| {
        for id in &ended {
            assert_eq!(call_status(server, id).await, 404);
        }
        advance_time(rules().idle * 2).await;
        server.wait_until(|| server.service.sessions().dormant() == 0).await;
        assert_eq!(call_status(server, &left).await, 404, "it was idle for too long");
    })
    .await;
    with_daemon(folder.path(), rules(), async |server| {
        assert_eq!(call_status(server, &left).await, 404);
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
    let anybodys = begin_session(folder.path(), rules()).await;
    let mut id = String::new();
    with_daemon(folder.path(), only(std::slice::from_ref(&mine)), async |server| {
        let mut client = server.client().await;
        assert_eq!(client.ask(&with(&anybodys, "secret")).await.status, 404);
        let begin = Request::post("/mcp", INITIALIZE).with("authorization", "Bearer secret");
        id = client.ask(&begin).await.header("mcp-session-id").unwrap().to_owned();
    })
    .await;
    with_daemon(folder.path(), rules(), async |server| {
        assert_eq!(call_status(server, &id).await, 404);
    })
    .await;
    with_daemon(folder.path(), only(&[digested]), async |server| {
        let mut client = server.client().await;
        assert_eq!(client.ask(&with(&id, "secret")).await.status, 200);
        let other = with(&id, "secret").with("mcp-session-id", &id.replace('A', "B"));
        assert_eq!(client.ask(&other).await.status, 404);
    })
    .await;
    with_daemon(folder.path(), only(&[rotated]), async |server| {
        let mut client = server.client().await;
        assert_eq!(client.ask(&with(&id, "another")).await.status, 404);
        server.service.set_tokens(&[]);
        assert_eq!(server.service.sessions().dormant(), 0, "no client can resume it");
    })
    .await;
    with_daemon(folder.path(), only(&[mine]), async |server| {
        let mut client = server.client().await;
        assert_eq!(client.ask(&with(&id, "secret")).await.status, 404, "its record is gone");
    })
    .await;
}

#[tokio::test]
async fn session_belongs_to_its_path_and_revision() {
    let folder = folder();
    let id = begin_session(folder.path(), rules()).await;
    with_daemon(folder.path(), rules(), async |server| {
        let mut client = server.client().await;
        let elsewhere = Request::post("/mcp/s/one", INITIALIZED).with("mcp-session-id", &id);
        assert_eq!(client.ask(&elsewhere).await.status, 404);
        server.frontend.version.set(Some("2025-06-18"));
        assert_eq!(call_status(server, &id).await, 404);
        server.frontend.version.set(None);
        assert_eq!(call_status(server, &id).await, 404, "nothing is left of it");
    })
    .await;
}

/// The key alone does not make an id valid: a state folder may be copied, or its journal lost.
#[tokio::test]
async fn session_belongs_to_its_state_folder_and_journal() {
    let folder = folder();
    let id = begin_session(folder.path(), rules()).await;
    let file = session_file(folder.path());
    let elsewhere = SessionFile { home: file.home + 1, ..file.clone() };
    with_restored_service(Persistence::open(elsewhere).await, rules(), async |server| {
        assert_eq!(call_status(server, &id).await, 404);
        assert_eq!(server.service.sessions().dormant(), 1, "its record stays");
    })
    .await;

    let written = std::fs::read(&file.path).unwrap();
    let mut other = Journal::decode(&written).unwrap();
    other.epoch = other.epoch.wrapping_add(1);
    std::fs::write(&file.path, other.encode()).unwrap();
    with_daemon(folder.path(), rules(), async |server| {
        assert_eq!(call_status(server, &id).await, 404);
        assert_eq!(server.service.sessions().dormant(), 1, "its record stays");
    })
    .await;

    std::fs::write(&file.path, written).unwrap();
    with_daemon(folder.path(), rules(), async |server| {
        assert_eq!(call_status(server, &id).await, 200);
    })
    .await;
}

/// Sends a request while the disk hangs, and checks that the client gets no answer.
async fn send_while_disk_hangs(
    server: &TestServer,
    disk: &FakeDisk,
    client: &mut Client,
    request: &Request,
) {
    disk.set_hanging(true);
    client.send(request.text().as_bytes()).await;
    server.wait_until(|| disk.is_waiting()).await;
    // An answer would arrive before that of a later request.
    let later = server.client().await.ask(&Request::new("GET", "/healthz")).await;
    assert_eq!(later.status, 200);
    assert!(client.has_received_nothing());
}

fn session_of(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.header("mcp-session-id").unwrap().to_owned()
}

#[tokio::test]
async fn initialize_and_delete_are_answered_once_their_change_is_stored() {
    let disk = FakeDisk::default();
    let sessions = Persistence::with_store(disk.open().await, 1, Generation::draw());
    with_restored_service(sessions, rules(), async |server| {
        let mut client = server.client().await;
        let initialize = Request::post("/mcp", INITIALIZE);
        send_while_disk_hangs(server, &disk, &mut client, &initialize).await;
        disk.set_hanging(false);
        let id = session_of(&client.answer().await);
        assert_eq!(disk.records(), 1);

        send_while_disk_hangs(server, &disk, &mut client, &Request::end(&id)).await;
        disk.set_hanging(false);
        assert_eq!(client.answer().await.status, 204);
        assert_eq!(disk.records(), 0);
    })
    .await;
}

#[tokio::test]
async fn log_level_and_subscriptions_are_answered_once_they_are_stored() {
    let disk = FakeDisk::default();
    let sessions = Persistence::with_store(disk.open().await, 1, Generation::draw());
    with_restored_service(sessions, rules(), async |server| {
        let (mut client, session) = server.session().await;
        let uri = r#"{"uri":"a"}"#;
        for (id, method, params) in [
            (1, "logging/setLevel", r#"{"level":"error"}"#),
            (2, "resources/subscribe", uri),
            (3, "resources/unsubscribe", uri),
        ] {
            let request = Request::call(&session, id, method, params);
            send_while_disk_hangs(server, &disk, &mut client, &request).await;
            assert!(!server.frontend.newest().methods().contains(&method.to_owned()), "{method}");
            disk.set_hanging(false);
            assert_eq!(client.answer().await.status, 200, "{method}");
        }
    })
    .await;
}

#[tokio::test]
async fn hanging_disk_delays_initialize_and_delete_only_briefly() {
    let disk = FakeDisk::default();
    let sessions = Persistence::with_store(disk.open().await, 1, Generation::draw());
    with_restored_service(sessions, rules(), async |server| {
        let mut client = server.client().await;
        let initialize = Request::post("/mcp", INITIALIZE);
        send_while_disk_hangs(server, &disk, &mut client, &initialize).await;
        advance_time(SAVE_TIMEOUT).await;
        let id = session_of(&client.answer().await);
        assert_eq!(disk.records(), 0, "it is served without a record");
        disk.set_hanging(false);
        server.wait_until(|| disk.records() == 1).await;

        send_while_disk_hangs(server, &disk, &mut client, &Request::end(&id)).await;
        advance_time(SAVE_TIMEOUT).await;
        assert_eq!(client.answer().await.status, 204);
        assert_eq!(disk.records(), 1);
        disk.set_hanging(false);
        server.wait_until(|| disk.records() == 0).await;
    })
    .await;
}

/// A server that is down during the restore accepts any revision.
#[tokio::test]
async fn session_goes_on_in_the_revision_that_its_server_chose() {
    let folder = folder();
    let mut id = String::new();
    with_daemon(folder.path(), rules(), async |server| {
        server.frontend.version.set(Some("2025-06-18"));
        let newer = INITIALIZE.replace("{}", r#"{"protocolVersion":"2025-11-25"}"#);
        let answer = server.client().await.ask(&Request::post("/mcp", &newer)).await;
        id = answer.header("mcp-session-id").unwrap().to_owned();
    })
    .await;
    with_daemon(folder.path(), rules(), async |server| {
        assert_eq!(call_status(server, &id).await, 200);
        assert_eq!(server.frontend.newest().version.get(), "2025-06-18");
    })
    .await;
}

#[tokio::test]
async fn several_requests_at_once_restore_one_session() {
    let folder = folder();
    let id = begin_session(folder.path(), rules()).await;
    with_daemon(folder.path(), rules(), async |server| {
        server.frontend.is_slow.set(true);
        let mut clients = [server.client().await, server.client().await];
        for client in &mut clients {
            client.send(Request::call(&id, 1, "any", "[]").text().as_bytes()).await;
            server.wait_until(|| !server.frontend.sessions().is_empty()).await;
        }
        // Both connections are open, and neither request is served yet.
        server.wait_until(|| server.service.counters().connections.get() == 2).await;
        let restored = server.frontend.newest();
        let stream = restored.streams_of("initialize")[0];
        restored.send(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#, Route::Response(stream));
        for client in &mut clients {
            assert_eq!(client.answer().await.status, 200);
        }
        assert_eq!((server.gauges().0, server.frontend.sessions().len()), (1, 1));
        assert_eq!(restored.methods(), ["initialize", "any", "any"]);
    })
    .await;
}

#[tokio::test]
async fn rotated_token_during_the_restore_loses_the_session() {
    let folder = folder();
    let mine = token("secret", false);
    let rotated = Token { secret: Secret::Plain("another".to_owned()), ..mine.clone() };
    let mut id = String::new();
    with_daemon(folder.path(), only(&[]), async |server| {
        server.service.set_tokens(std::slice::from_ref(&mine));
        let begin = Request::post("/mcp", INITIALIZE).with("authorization", "Bearer secret");
        let answer = server.client().await.ask(&begin).await;
        id = answer.header("mcp-session-id").unwrap().to_owned();
    })
    .await;
    with_daemon(folder.path(), only(&[]), async |server| {
        server.service.set_tokens(std::slice::from_ref(&mine));
        server.frontend.is_slow.set(true);
        let mut client = server.client().await;
        let call = Request::call(&id, 1, "any", "[]").with("authorization", "Bearer secret");
        client.send(call.text().as_bytes()).await;
        server.wait_until(|| !server.frontend.sessions().is_empty()).await;
        server.service.set_tokens(&[rotated]);
        let restored = server.frontend.newest();
        let stream = restored.streams_of("initialize")[0];
        restored.send(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#, Route::Response(stream));
        assert_eq!(client.answer().await.status, 404);
        assert_eq!((server.gauges().0, server.service.sessions().dormant()), (0, 0));
    })
    .await;
}

#[tokio::test]
async fn stream_of_an_earlier_daemon_can_be_resumed() {
    let folder = folder();
    let (mut id, mut call, mut listener) = Default::default();
    with_daemon(folder.path(), rules(), async |server| {
        let (mut client, session) = server.session().await;
        client.open(&Request::listen(&session)).await;
        listener = client.first_id().await;
        let mut caller = server.client().await;
        caller.send(Request::call(&session, 77, "wait", "[]").text().as_bytes()).await;
        server.wait_until(|| !server.frontend.newest().streams_of("wait").is_empty()).await;
        advance_time(STREAM_DELAY).await;
        caller.head().await;
        call = caller.first_id().await;
        id = session;
    })
    .await;
    with_daemon(folder.path(), rules(), async |server| {
        let mut client = server.client().await;
        let log = Capture::begin();
        let answer = client.ask(&Request::resume(&id, &call)).await;
        assert_eq!(answer.status, 200);
        let line = log.failed_request();
        assert!(line.contains("id=\"77\"") && line.contains("\"outcome-unknown\""), "{line}");
        drop(log);
        let error: serde_json::Value = serde_json::from_str(&answer.events()[0]).unwrap();
        assert_eq!((&error["id"], &error["error"]["code"]), (&77.into(), &(-32010).into()));
        assert_eq!(answer.events().len(), 1);

        client.open(&Request::resume(&id, &listener)).await;
        let warning = client.event().await.unwrap();
        assert!(warning.contains("may be missing"), "{warning}");
        for change in LIST_CHANGES {
            assert_eq!(client.event().await.as_deref(), Some(change));
        }
        server.frontend.newest().send("1", Route::Broadcast);
        assert_eq!(client.event().await.as_deref(), Some("1"));

        let forged = listener.replace(|digit| matches!(digit, '0'..='9' | 'a'..='e'), "f");
        let answer = server.client().await.ask(&Request::resume(&id, &forged)).await;
        assert_eq!(answer.status, 400);
    })
    .await;
}

/// Posts a message, sends a related event, and returns the client, the stream and the event id.
async fn streamed(server: &TestServer, post: &Request) -> (Client, StreamNo, String) {
    let client_session = server.frontend.newest();
    let before = client_session.streams_of("wait").len();
    let mut client = server.client().await;
    client.send(post.text().as_bytes()).await;
    server.wait_until(|| client_session.streams_of("wait").len() > before).await;
    let stream = client_session.streams_of("wait")[before];
    client_session.send(PROGRESS, Route::Related(stream));
    assert_eq!(client.head().await.header("content-type"), Some("text/event-stream"));
    assert_eq!(client.event().await.as_deref(), Some(PROGRESS));
    let event = client.last_event.clone().unwrap();
    (client, stream, event)
}

const PROGRESS: &str = r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#;

fn result(id: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
}

/// Resumes a stream of an earlier daemon, and returns the ids of requests with an unknown outcome.
async fn unknown_outcomes(server: &TestServer, session: &str, after: &str) -> Vec<u64> {
    let answer = server.client().await.ask(&Request::resume(session, after)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let id = |event: &String| {
        let error: serde_json::Value = serde_json::from_str(event).unwrap();
        assert_eq!(error["error"]["code"], -32010, "{event}");
        error["id"].as_u64().unwrap()
    };
    answer.events().iter().map(id).collect()
}

#[tokio::test]
async fn open_call_survives_many_finished_calls_in_the_record() {
    let folder = folder();
    let (mut id, mut after) = Default::default();
    with_daemon(folder.path(), rules(), async |server| {
        let (mut client, session) = server.session().await;
        let (_open, _, event) = streamed(server, &Request::call(&session, 7, "wait", "[]")).await;
        for number in 100..500 {
            let call = Request::call(&session, number, "tell", "[1]");
            assert_eq!(client.ask(&call).await.events().len(), 2);
        }
        (id, after) = (session, event);
    })
    .await;
    with_daemon(folder.path(), rules(), async |server| {
        assert_eq!(unknown_outcomes(server, &id, &after).await, [7]);
    })
    .await;
}

#[tokio::test]
async fn each_unanswered_request_of_a_batch_has_an_unknown_outcome() {
    let folder = folder();
    let part = |id: u64| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"wait"}}"#);
    let batch = format!("[{},{},{},{INITIALIZED}]", part(1), part(2), part(3));
    let (mut id, mut before, mut after) = Default::default();
    with_daemon(folder.path(), rules(), async |server| {
        let (_client, session) = server.session().await;
        let post = Request::post("/mcp", &batch).with("mcp-session-id", &session);
        let (mut client, stream, event) = streamed(server, &post).await;
        server.frontend.newest().send(&result(2), Route::Related(stream));
        assert_eq!(client.event().await, Some(result(2)));
        (id, before, after) = (session, event, client.last_event.clone().unwrap());
    })
    .await;
    with_daemon(folder.path(), rules(), async |server| {
        assert_eq!(unknown_outcomes(server, &id, &after).await, [1, 3]);
        // A client that has not read the answer to 2 can no longer get it.
        assert_eq!(unknown_outcomes(server, &id, &before).await, [1, 2, 3]);
    })
    .await;
}

#[tokio::test]
async fn call_of_a_client_that_accepts_everything_has_an_unknown_outcome() {
    let folder = folder();
    let (mut id, mut after) = Default::default();
    with_daemon(folder.path(), rules(), async |server| {
        let (_client, session) = server.session().await;
        let call = Request::call(&session, 7, "wait", "[]").with("accept", "*/*");
        let (_open, _, event) = streamed(server, &call).await;
        (id, after) = (session, event);
    })
    .await;
    with_daemon(folder.path(), rules(), async |server| {
        assert_eq!(unknown_outcomes(server, &id, &after).await, [7]);
    })
    .await;
}

/// Returns the records that a daemon has left.
async fn records(folder: &Path) -> Vec<Record> {
    Persistence::open(session_file(folder)).await.1
}

#[tokio::test]
async fn finished_stream_leaves_the_record() {
    let folder = folder();
    let rules = || HttpRules { idle: Duration::MAX, ..rules() };
    let (mut id, mut ended, mut open) = Default::default();
    with_daemon(folder.path(), rules(), async |server| {
        let (_client, session) = server.session().await;
        let call = |id| Request::call(&session, id, "wait", "[]");
        let (_open, _, event) = streamed(server, &call(7)).await;
        let (mut client, stream, _) = streamed(server, &call(8)).await;
        server.frontend.newest().send(&result(8), Route::Response(stream));
        assert_eq!(client.event().await, Some(result(8)));
        assert_eq!(client.event().await, None);
        server.wait_until(|| server.disconnected() == 1).await;
        advance_time(SENT_FETCH_TIMEOUT * 2).await;
        server.wait_until(|| server.disconnected() == 0).await;
        (id, open, ended) = (session, event, client.last_event.clone().unwrap());
    })
    .await;
    let requests = |record: &Record| -> Vec<String> {
        record.calls.iter().map(|it| it.request.clone()).collect()
    };
    assert_eq!(requests(&records(folder.path()).await[0]), ["7"]);
    with_daemon(folder.path(), rules(), async |server| {
        assert_eq!(unknown_outcomes(server, &id, &open).await, [7]);
        let answer = server.client().await.ask(&Request::resume(&id, &ended)).await;
        assert_eq!(answer.status, 400);
        assert!(answer.message().contains("its outcome is unknown"), "{answer:?}");
    })
    .await;
}

#[tokio::test]
async fn client_that_has_its_answer_gets_no_content_on_resume() {
    let folder = folder();
    let (mut id, mut before, mut after) = Default::default();
    with_daemon(folder.path(), rules(), async |server| {
        let (_client, session) = server.session().await;
        let call = Request::call(&session, 7, "wait", "[]");
        let (mut client, stream, event) = streamed(server, &call).await;
        server.frontend.newest().send(&result(7), Route::Response(stream));
        assert_eq!(client.event().await, Some(result(7)));
        (id, before, after) = (session, event, client.last_event.clone().unwrap());
    })
    .await;
    with_daemon(folder.path(), rules(), async |server| {
        let over = server.client().await.ask(&Request::resume(&id, &after)).await;
        assert_eq!(over.status, 204);
        assert_eq!(unknown_outcomes(server, &id, &before).await, [7]);
    })
    .await;
}

/// Event ids of that version have no letter, and the record has all calls.
#[tokio::test]
async fn event_ids_of_an_earlier_version_are_read() {
    let folder = folder();
    let (mut id, mut call, mut listener) = Default::default();
    with_daemon(folder.path(), rules(), async |server| {
        let (mut client, session) = server.session().await;
        client.open(&Request::listen(&session)).await;
        listener = client.first_id().await.replace("-l", "-");
        let (_open, _, event) = streamed(server, &Request::call(&session, 7, "wait", "[]")).await;
        (id, call) = (session, event.replace("-c", "-"));
    })
    .await;
    with_daemon(folder.path(), rules(), async |server| {
        assert_eq!(unknown_outcomes(server, &id, &call).await, [7]);
        let mut client = server.client().await;
        client.open(&Request::resume(&id, &listener)).await;
        let warning = client.event().await.unwrap();
        assert!(warning.contains("may be missing"), "{warning}");
    })
    .await;
}

#[tokio::test]
async fn unsent_subscription_is_not_restored() {
    let folder = folder();
    let rules = || HttpRules { streams_per_session_max: 1, ..rules() };
    with_daemon(folder.path(), rules(), async |server| {
        let (mut client, session) = server.session().await;
        let mut listener = server.client().await;
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
    with_daemon(folder.path(), rules(), async |server| {
        let (mut client, session) = server.session().await;
        let subscribe = |id: u64, uri: &str| {
            let params = format!(r#"{{"uri":"{uri}"}}"#);
            Request::call(&session, id, "resources/subscribe", &params)
        };
        assert_eq!(client.ask(&subscribe(1, "accepted")).await.status, 200);
        assert_eq!(client.ask(&subscribe(2, "refused")).await.status, 200);
        // The response arrives on an event stream.
        let mut waiting = server.client().await;
        waiting.send(subscribe(3, "slow").text().as_bytes()).await;
        let client_session = server.frontend.newest();
        server.wait_until(|| client_session.streams_of("resources/subscribe").len() == 3).await;
        advance_time(STREAM_DELAY).await;
        waiting.head().await;
        let stream = client_session.streams_of("resources/subscribe")[2];
        let refusal = r#"{"jsonrpc":"2.0","id":3,"error":{"code":1,"message":"no"}}"#;
        client_session.send(refusal, Route::Response(stream));
        assert_eq!(waiting.event().await.as_deref(), Some(refusal));
        id = session;
    })
    .await;
    with_daemon(folder.path(), rules(), async |server| {
        assert_eq!(call_status(server, &id).await, 200);
        assert_eq!(
            server.frontend.newest().methods(),
            ["initialize", "resources/subscribe", "any"]
        );
    })
    .await;
}

#[tokio::test]
async fn streamed_call_has_an_unknown_outcome_at_shutdown_and_afterwards() {
    let folder = folder();
    let (mut id, mut before) = Default::default();
    let last_event = Rc::new(RefCell::new(None));
    with_daemon(folder.path(), rules(), async |server| {
        let (_client, session) = server.session().await;
        let call = Request::call(&session, 7, "wait", "[]");
        let (mut client, _, event) = streamed(server, &call).await;
        let last_event = Rc::clone(&last_event);
        server.spawn(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            advance_time(FINISH_TIMEOUT).await;
            let error = client.event().await.unwrap();
            let error: serde_json::Value = serde_json::from_str(&error).unwrap();
            assert_eq!((&error["id"], &error["error"]["code"]), (&7.into(), &(-32010).into()));
            assert_eq!(client.event().await, None);
            last_event.replace(client.last_event.clone());
        });
        (id, before) = (session, event);
    })
    .await;
    let after: String = last_event.take().unwrap();
    assert_ne!(after, before);
    with_daemon(folder.path(), rules(), async |server| {
        let over = server.client().await.ask(&Request::resume(&id, &after)).await;
        assert_eq!(over.status, 204, "the client has the error");
        assert_eq!(unknown_outcomes(server, &id, &before).await, [7]);
    })
    .await;
}

#[tokio::test]
async fn shutdown_breaks_calls_silently_and_sends_streams_a_retry_delay() {
    let folder = folder();
    with_daemon(folder.path(), rules(), async |server| {
        let (mut listener, id) = server.session().await;
        listener.open(&Request::listen(&id)).await;
        let mut caller = server.client().await;
        let json = Request::call(&id, 1, "wait", "[]").with("accept", "application/json");
        caller.send(json.text().as_bytes()).await;
        server.wait_until(|| !server.frontend.newest().streams_of("wait").is_empty()).await;
        server.spawn(async move {
            let mut received = String::new();
            while let Some(chunk) = listener.chunk().await {
                received += &chunk;
            }
            assert!(received.ends_with("retry: 5000\n\n"), "{received}");
        });
        server.spawn(async move { assert!(caller.is_closed().await) });
    })
    .await;
}

#[tokio::test]
async fn session_too_large_to_persist_is_served() {
    let folder = folder();
    let params = format!(r#"{{"x":"{}"}}"#, "x".repeat(16 * 1024));
    let large = format!(r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{params}}}"#);
    let mut id = String::new();
    with_daemon(folder.path(), rules(), async |server| {
        let answer = server.client().await.ask(&Request::post("/mcp", &large)).await;
        id = answer.header("mcp-session-id").unwrap().to_owned();
        assert_eq!(call_status(server, &id).await, 200);
    })
    .await;
    with_daemon(folder.path(), rules(), async |server| {
        assert_eq!(call_status(server, &id).await, 404);
    })
    .await;
}
