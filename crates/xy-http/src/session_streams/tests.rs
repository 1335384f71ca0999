//! The streams of one session, without connections.

use proptest::prelude::*;

use super::*;
use crate::limits::{STORED_BYTES_MAX, STORED_EVENTS_MAX};
use crate::response_stream::FirstOutput;
use crate::store::Store;

const TAG: u64 = 9;
const CALL: Option<StreamKind> = Some(StreamKind::Call);

fn session_streams() -> SessionStreams {
    let recorder = Rc::new(Recorder::new(Rc::new(Store::none().0), TAG));
    SessionStreams::new(
        recorder,
        StorageBudget::for_session(&StorageBudget::for_all()),
        Rc::default(),
    )
}

const POLLS: StreamMode = StreamMode { events: true, polls: true };
const PLAIN: StreamMode = StreamMode { events: true, polls: false };
const JSON: StreamMode = StreamMode { events: false, polls: false };

fn lost(session_streams: &SessionStreams) -> bool {
    let mut out = String::new();
    let now = crate::counters::Gauges::default();
    session_streams.counters.write(&mut out, now);
    out.contains("xy_http_lost_messages_total{")
}

/// Returns the number of events that were not sent.
fn unsent(response_stream: &ResponseStream) -> usize {
    response_stream.take_unsent().count()
}

/// Delivers everything to a stream's connection, and breaks this connection.
fn cut(session_streams: &SessionStreams, response_stream: &Rc<ResponseStream>, connection: u32) {
    response_stream.take_all(connection);
    assert!(response_stream.detach(connection));
    session_streams.close(response_stream);
}

fn id(response_stream: &ResponseStream, position: u64) -> EventId {
    response_stream.event_id(position).unwrap()
}

/// Resumes a stream after `position`, and returns the replayed text.
fn resume_stream(
    session_streams: &SessionStreams,
    response_stream: &ResponseStream,
    position: u64,
) -> (String, u32) {
    match session_streams.resume_stream(id(response_stream, position), 9).unwrap() {
        ResumedStream::Open(response_stream, connection) => {
            (response_stream.take_all(connection), connection)
        }
        ResumedStream::Complete => panic!("it goes on"),
    }
}

#[test]
fn unrelated_message_goes_to_exactly_one_listener() {
    let session_streams = session_streams();
    let (older, newer) = (session_streams.open_listener(true), session_streams.open_listener(true));
    session_streams.put(b"1", Route::Broadcast);
    assert_eq!((unsent(&older), unsent(&newer)), (0, 1));
}

#[test]
fn messages_without_a_listener_are_stored_up_to_a_limit() {
    let session_streams = session_streams();
    for _ in 0..UNDELIVERED_MESSAGES_MAX {
        session_streams.put(b"1", Route::Broadcast);
    }
    assert!(!lost(&session_streams));
    assert_eq!(session_streams.storage.used().events, UNDELIVERED_MESSAGES_MAX);
    session_streams.put(b"2", Route::Broadcast);
    assert!(lost(&session_streams));
    assert_eq!(unsent(&session_streams.open_listener(true)), UNDELIVERED_MESSAGES_MAX);
    assert_eq!(unsent(&session_streams.open_listener(false)), 0);
    assert_eq!(session_streams.storage.used(), StorageUse::default());
}

#[tokio::test]
async fn sent_events_make_room_for_answers_of_a_batch() {
    let session_streams = session_streams();
    let listener = session_streams.open_listener(true);
    for _ in 0..2 {
        session_streams.put(&vec![b'1'; STORED_BYTES_MAX / 2 - 100], Route::Broadcast);
        listener.take_all(0);
    }
    let batch = session_streams.open_call(JSON);
    let answer =
        format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{}"}}"#, "x".repeat(STORED_BYTES_MAX / 2));
    session_streams.put(answer.as_bytes(), Route::Related(batch.stream()));
    assert!(!session_streams.storage.is_exceeded(), "{:?}", session_streams.storage.used());
    session_streams
        .put(br#"{"jsonrpc":"2.0","id":2,"result":{}}"#, Route::Response(batch.stream()));
    let FirstOutput::Response(all) = batch.first().await else { panic!("it is answered") };
    let all: serde_json::Value = serde_json::from_slice(&all).unwrap();
    assert!(all[0]["result"].is_string() && all[1]["result"].is_object());
    assert!(!lost(&session_streams));
}

#[test]
fn large_message_is_not_stored() {
    let session_streams = session_streams();
    session_streams.put(&vec![b'1'; UNDELIVERED_BYTES_MAX + 1], Route::Broadcast);
    assert!(lost(&session_streams));
    assert_eq!(unsent(&session_streams.open_listener(true)), 0);
}

#[test]
fn unread_messages_of_a_listener_go_to_the_next() {
    let session_streams = session_streams();
    let first = session_streams.open_listener(true);
    session_streams.put(b"1", Route::Broadcast);
    first.detach(0);
    session_streams.close(&first);
    session_streams.put(b"2", Route::Broadcast);
    assert_eq!(unsent(&session_streams.open_listener(true)), 2);
}

#[test]
fn resuming_listener_gets_missed_and_stored_messages() {
    let session_streams = session_streams();
    let listener = session_streams.open_listener(true);
    session_streams.put(b"1", Route::Broadcast);
    session_streams.put(b"2", Route::Broadcast);
    cut(&session_streams, &listener, 0);
    session_streams.put(b"3", Route::Broadcast);
    let (received, _) = resume_stream(&session_streams, &listener, 1);
    assert!(!received.contains("data: 1\n"), "{received}");
    assert!(received.contains("data: 2\n") && received.contains("data: 3\n"), "{received}");
    session_streams.put(b"4", Route::Broadcast);
    assert_eq!(unsent(&listener), 1);
}

#[test]
fn broken_call_resumes_with_all_messages_and_its_answer() {
    let session_streams = session_streams();
    let (call, other) = (session_streams.open_call(POLLS), session_streams.open_call(POLLS));
    session_streams.put(b"1", Route::Related(1));
    session_streams.put(b"other", Route::Related(2));
    cut(&session_streams, &call, 0);
    assert_eq!((session_streams.open(), session_streams.disconnected()), (1, 1));
    session_streams.put(b"2", Route::Related(1));
    let (received, connection) = resume_stream(&session_streams, &call, 0);
    assert!(received.contains("data: 1\n") && received.contains("data: 2\n"), "{received}");
    assert!(!received.contains("other"));
    cut(&session_streams, &call, connection);
    session_streams.put(b"3", Route::Response(1));
    let (received, connection) = resume_stream(&session_streams, &call, 2);
    assert!(received.ends_with("data: 3\n\n"), "{received}");
    assert!(!received.contains("data: 2\n"), "{received}");
    cut(&session_streams, &call, connection);
    assert!(matches!(session_streams.resume_stream(id(&call, 3), 9), Ok(ResumedStream::Complete)));
    assert!(matches!(session_streams.resume_stream(id(&call, 3), 9), Ok(ResumedStream::Complete)));
    assert!(!lost(&session_streams));
    assert_eq!(unsent(&other), 1);
}

#[test]
fn foreign_event_id_opens_no_stream() {
    let session_streams = session_streams();
    let call = session_streams.open_call(POLLS);
    session_streams.put(b"1", Route::Related(1));
    cut(&session_streams, &call, 0);
    let foreign =
        EventId { stream_id: StreamId { tag: TAG + 1, kind: CALL, stream: 1 }, position: 0 };
    let forged = EventId { stream_id: StreamId { tag: TAG, kind: CALL, stream: 2 }, position: 0 };
    for id in [foreign, forged, id(&call, 2)] {
        assert_eq!(
            session_streams.resume_stream(id, 9).unwrap_err(),
            HttpError::UnknownEvent,
            "{id}"
        );
    }
    assert_eq!(
        session_streams.resume_stream(id(&call, 0), 0).unwrap_err(),
        HttpError::TooManyStreams(0)
    );
    assert_eq!(session_streams.disconnected(), 1);
}

#[test]
fn answer_to_an_unresumable_call_is_dropped() {
    let session_streams = session_streams();
    let call = session_streams.open_call(POLLS);
    call.detach(0);
    session_streams.close(&call);
    session_streams.put(b"1", Route::Response(1));
    session_streams.put(b"", Route::Cancelled(1));
    assert!(lost(&session_streams));
    assert_eq!((session_streams.open(), session_streams.disconnected()), (0, 0));
    assert_eq!(unsent(&session_streams.open_listener(true)), 0);
    assert_eq!(
        session_streams.resume_stream(id(&call, 0), 9).unwrap_err(),
        HttpError::EventExpired
    );
}

#[test]
fn messages_of_an_unresumable_call_go_to_a_listener() {
    let session_streams = session_streams();
    let call = session_streams.open_call(PLAIN);
    session_streams.put(b"0", Route::Related(1)); // Stored, and never sent.
    call.detach(0);
    session_streams.close(&call);
    session_streams.put(b"1", Route::Related(1));
    let answer = br#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    session_streams.put(answer, Route::Related(1)); // One answer of a batch.
    assert!(lost(&session_streams), "the answer is not sent elsewhere");
    let listener = session_streams.open_listener(true);
    session_streams.put(b"2", Route::Related(1));
    assert_eq!(unsent(&listener), 3);
}

#[test]
fn messages_of_a_json_only_call_go_to_a_listener() {
    let session_streams = session_streams();
    let listener = session_streams.open_listener(true);
    session_streams.open_call(JSON);
    session_streams.put(b"1", Route::Related(2));
    assert_eq!(unsent(&listener), 1);
}

#[test]
fn stored_events_are_limited_and_the_loss_is_reported() {
    let session_streams = session_streams();
    let call = session_streams.open_call(POLLS);
    call.start_events();
    cut(&session_streams, &call, 0);
    for _ in 0..STORED_EVENTS_MAX + 10 {
        session_streams.put(b"1", Route::Related(1));
    }
    assert_eq!(session_streams.storage.used().events, STORED_EVENTS_MAX);
    assert!(lost(&session_streams));
    let (received, _) = resume_stream(&session_streams, &call, 0);
    assert!(received.contains("10 messages of this stream have expired"));
    assert_eq!(received.matches("data: 1\n").count(), STORED_EVENTS_MAX);
}

#[test]
fn answer_too_large_to_store_becomes_an_error() {
    let session_streams = session_streams();
    let call = session_streams.open_call(POLLS);
    call.start_events();
    cut(&session_streams, &call, 0);
    let text = "x".repeat(STORED_BYTES_MAX);
    let answer = format!(r#"{{"jsonrpc":"2.0","id":7,"result":"{text}"}}"#);
    session_streams.put(answer.as_bytes(), Route::Response(1));
    assert!(session_streams.storage.used().bytes < 1000);
    let (received, _) = resume_stream(&session_streams, &call, 0);
    assert!(received.contains(r#""id":7,"error":{"code":-32010"#), "{received}");
}

#[test]
fn disconnected_streams_are_limited_and_open_calls_are_kept() {
    let session_streams = session_streams();
    let call = session_streams.open_call(POLLS);
    call.start_events();
    cut(&session_streams, &call, 0);
    for _ in 0..2 * DISCONNECTED_STREAMS_MAX {
        let listener = session_streams.open_listener(true);
        cut(&session_streams, &listener, 0);
    }
    assert_eq!(session_streams.disconnected(), DISCONNECTED_STREAMS_MAX);
    session_streams.put(b"1", Route::Response(1));
    assert!(resume_stream(&session_streams, &call, 0).0.contains("data: 1\n"));
    assert!(!lost(&session_streams));
}

#[tokio::test(start_paused = true)]
async fn everything_but_open_calls_expires() {
    let session_streams = session_streams();
    let (answered, waits) = (session_streams.open_call(POLLS), session_streams.open_call(POLLS));
    for call in [&answered, &waits] {
        call.start_events();
        cut(&session_streams, call, 0);
    }
    session_streams.put(b"1", Route::Response(1));
    tokio::time::advance(2 * FETCH_TIMEOUT).await;
    session_streams.sweep(Instant::now());
    assert!(lost(&session_streams), "the event was never fetched");
    assert_eq!(
        session_streams.resume_stream(id(&answered, 0), 9).unwrap_err(),
        HttpError::EventExpired
    );
    drop(answered);
    assert_eq!((session_streams.disconnected(), session_streams.storage.used().events), (1, 0));
    session_streams.put(b"2", Route::Response(2));
    assert!(resume_stream(&session_streams, &waits, 0).0.contains("data: 2\n"));
    session_streams.end();
    drop(waits);
    assert_eq!(session_streams.storage.used(), StorageUse::default());
}

/// An action in a session.
#[derive(Debug, Clone)]
enum Action {
    /// Opens a call, or a listening stream.
    Call,
    Listen,
    /// Sends a message of this many kilobytes on one stream, or to any listener.
    Send {
        stream: usize,
        size: usize,
    },
    Broadcast {
        size: usize,
    },
    Answer {
        stream: usize,
    },
    /// Delivers to the connection. The client reads all but the last `unread` events.
    Deliver {
        stream: usize,
        unread: usize,
    },
    /// Breaks a connection, which the service notices.
    Cut {
        stream: usize,
    },
    /// Resumes a stream, whether or not the service has noticed the break.
    Resume {
        stream: usize,
    },
}

fn action() -> impl Strategy<Value = Action> {
    let (stream, size) = (|| 0..6_usize, || prop_oneof![9 => Just(0_usize), 1 => 0..3000_usize]);
    prop_oneof![
        1 => Just(Action::Call),
        1 => Just(Action::Listen),
        6 => (stream(), size()).prop_map(|(stream, size)| Action::Send { stream, size }),
        2 => size().prop_map(|size| Action::Broadcast { size }),
        1 => stream().prop_map(|stream| Action::Answer { stream }),
        6 => (stream(), 0..3_usize).prop_map(|(stream, unread)| Action::Deliver { stream, unread }),
        2 => stream().prop_map(|stream| Action::Cut { stream }),
        3 => stream().prop_map(|stream| Action::Resume { stream }),
    ]
}

/// A stream as its client sees it.
struct ClientStream {
    response_stream: Rc<ResponseStream>,
    is_call: bool,
    connection: Option<u32>,
    /// The position of the last event with an id that the client has read.
    position: Option<u64>,
    answered: bool,
    /// The numbers of messages for this stream only.
    received: Vec<u64>,
    missed: u64,
}

/// A session, its client, and the messages sent so far.
struct Model {
    session_streams: SessionStreams,
    streams: Vec<ClientStream>,
    messages: u64,
    /// The sent messages by number. `None` means a broadcast.
    sent: Vec<(Option<usize>, u64)>,
    /// The messages received by listening streams, and the streams they belong to.
    elsewhere: Vec<(Option<usize>, u64)>,
}

impl Model {
    fn message(&mut self, stream: Option<usize>, size: usize) -> String {
        self.messages += 1;
        self.sent.push((stream, self.messages));
        let of = stream.map_or(String::new(), |stream| stream.to_string());
        format!("{of}:{}:{}", self.messages, "x".repeat(size * 1024))
    }

    fn open(&mut self, response_stream: Rc<ResponseStream>, is_call: bool) {
        let (connection, position) = (Some(0), None);
        self.streams.push(ClientStream {
            response_stream,
            is_call,
            connection,
            position,
            answered: false,
            received: Vec::new(),
            missed: 0,
        });
    }

    fn action(&mut self, action: &Action) {
        match *action {
            Action::Call => {
                let call = self.session_streams.open_call(POLLS);
                call.start_events();
                self.open(call, true);
            }
            Action::Listen => {
                let listener = self.session_streams.open_listener(true);
                self.open(listener, false);
            }
            Action::Send { stream, size } => self.send(stream, size, false),
            Action::Answer { stream } => self.send(stream, 0, true),
            Action::Broadcast { size } => {
                let message = self.message(None, size);
                self.session_streams.put(message.as_bytes(), Route::Broadcast);
            }
            Action::Deliver { stream, unread } => self.deliver(stream, unread),
            Action::Cut { stream } => {
                let Some(client_stream) = self.streams.get_mut(stream) else { return };
                if let Some(connection) = client_stream.connection.take()
                    && client_stream.response_stream.detach(connection)
                {
                    self.session_streams.close(&client_stream.response_stream);
                }
            }
            Action::Resume { stream } => self.resume_stream(stream),
        }
    }

    fn send(&mut self, at: usize, size: usize, is_answer: bool) {
        let Some(client_stream) = self.streams.get_mut(at) else { return };
        // A call that cannot be resumed sends to any listener, which this test does not model.
        if !client_stream.is_call
            || client_stream.answered
            || (client_stream.connection.is_none() && client_stream.position.is_none())
        {
            return;
        }
        client_stream.answered = is_answer;
        let stream = client_stream.response_stream.stream();
        let message = self.message(Some(at), size);
        if is_answer {
            let answer = format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{message}"}}"#);
            self.session_streams.put(answer.as_bytes(), Route::Response(stream));
        } else {
            self.session_streams.put(message.as_bytes(), Route::Related(stream));
        }
    }

    fn deliver(&mut self, at: usize, unread: usize) {
        let Some(client_stream) = self.streams.get_mut(at) else { return };
        let Some(connection) = client_stream.connection else { return };
        let all = client_stream.response_stream.take_all(connection);
        let events: Vec<&str> = all.split_terminator("\n\n").collect();
        let read = events.len().saturating_sub(unread);
        for event in &events[..read] {
            handle(client_stream, at, event, &mut self.elsewhere);
        }
        if read < events.len() {
            client_stream.connection = None; // The loss is not known to the service.
        }
    }

    fn resume_stream(&mut self, at: usize) {
        let Some(client_stream) = self.streams.get_mut(at) else { return };
        let Some(position) = client_stream.position else { return };
        match self.session_streams.resume_stream(id(&client_stream.response_stream, position), 100)
        {
            Ok(ResumedStream::Open(_, connection)) => client_stream.connection = Some(connection),
            Ok(ResumedStream::Complete) => {
                assert!(client_stream.answered, "a stream is complete only after its answer");
            }
            Err(error) => panic!("this position was sent: {error}"),
        }
    }
}

/// Handles one event as a client does.
fn handle(
    client_stream: &mut ClientStream,
    at: usize,
    event: &str,
    elsewhere: &mut Vec<(Option<usize>, u64)>,
) {
    if let Some(name) = event.strip_prefix("id: ") {
        let name = EventId::parse(name.lines().next().unwrap().as_bytes()).unwrap();
        assert_eq!(
            name.stream_id.stream,
            client_stream.response_stream.stream(),
            "it belongs to no other stream"
        );
        client_stream.position = Some(name.position);
    }
    let Some((_, data)) = event.split_once("event: message\ndata: ") else { return };
    if data.contains("have expired") {
        client_stream.missed += 1;
        return;
    }
    if data.contains("error") {
        return client_stream.received.push(u64::MAX); // An error that reports the lost answer.
    }
    let answer = data.split_once(r#""result":""#);
    let mut parts = answer.map_or(data, |(_, message)| message).split(':');
    let (of, message) =
        (parts.next().unwrap().parse().ok(), parts.next().unwrap().parse().unwrap());
    if client_stream.is_call {
        assert_eq!(of, Some(at), "it belongs to no other stream");
        client_stream.received.push(message);
    } else {
        assert_eq!(answer, None, "an answer is for its own stream only");
        elsewhere.push((of, message));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// However streams break and resume, the client receives each message on its own stream, once
    /// and in order, or is notified that it missed some. No limit is exceeded.
    #[test]
    fn no_message_is_lost_duplicated_or_misrouted(actions in prop::collection::vec(action(), 0..150)) {
        let session_streams = session_streams();
        let mut model = Model {
            session_streams, streams: Vec::new(), messages: 0, sent: Vec::new(), elsewhere: Vec::new(),
        };
        for action in &actions {
            model.action(action);
        }
        for at in 0..model.streams.len() {
            if model.streams[at].connection.is_none() {
                model.resume_stream(at);
            }
            model.deliver(at, 0);
        }
        for (at, client_stream) in model.streams.iter().enumerate().filter(|(_, client_stream)| client_stream.position.is_some()) {
            prop_assert!(client_stream.received.is_sorted_by(|a, b| a < b), "{:?}", client_stream.received);
            let sent: Vec<u64> =
                model.sent.iter().filter(|(of, _)| *of == Some(at)).map(|(_, message)| *message).collect();
            let all_heard = sent.iter().all(|message| client_stream.received.contains(message));
            let is_notified = client_stream.missed > 0 || client_stream.received.contains(&u64::MAX);
            prop_assert!(all_heard || is_notified, "{sent:?} {:?}", client_stream.received);
        }
        for (of, _) in &model.elsewhere {
            // Only messages of a stream that cannot be resumed.
            prop_assert!(of.is_none_or(|of| model.streams[of].position.is_none()));
        }
        let mut once = model.elsewhere.clone();
        once.sort_unstable();
        once.dedup();
        prop_assert_eq!(once.len(), model.elsewhere.len(), "no message is received twice");
        let Model { session_streams, streams, .. } = model;
        session_streams.end();
        drop(streams);
        prop_assert_eq!(session_streams.storage.used(), StorageUse::default());
    }
}
