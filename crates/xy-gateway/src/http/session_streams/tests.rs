//! Streams of one session, without any connection.

use proptest::prelude::*;

use super::super::limits::{STORED_BYTES_MAX, STORED_EVENTS_MAX};
use super::super::response_stream::First;
use super::super::store::Store;
use super::*;

const TAG: u64 = 9;
const CALL: Option<StreamKind> = Some(StreamKind::Call);

fn session_streams() -> SessionStreams {
    let recorder = Rc::new(Recorder::new(Rc::new(Store::none().0), TAG));
    SessionStreams::new(recorder, Room::for_session(&Room::for_all()), Rc::default())
}

const POLLS: StreamMode = StreamMode { events: true, polls: true };
const PLAIN: StreamMode = StreamMode { events: true, polls: false };
const JSON: StreamMode = StreamMode { events: false, polls: false };

fn lost(session_streams: &SessionStreams) -> bool {
    let mut out = String::new();
    let now = super::super::counts::Gauges::default();
    session_streams.counts.write(&mut out, now);
    out.contains("xy_http_lost_messages_total{")
}

/// What was put on a stream and is not sent.
fn unsent(response_stream: &ResponseStream) -> usize {
    response_stream.take_unsent().count()
}

/// A stream's connection takes what there is, and breaks.
fn cut(session_streams: &SessionStreams, response_stream: &Rc<ResponseStream>, connection: u32) {
    response_stream.take_all(connection);
    assert!(response_stream.detach(connection));
    session_streams.close(response_stream);
}

fn id(response_stream: &ResponseStream, place: u64) -> EventId {
    response_stream.event_id(place).unwrap()
}

/// What a stream says once it is taken up again after `place`.
fn take_up(
    session_streams: &SessionStreams,
    response_stream: &ResponseStream,
    place: u64,
) -> (String, u32) {
    match session_streams.take_up(id(response_stream, place), 9).unwrap() {
        TakenUp::On(response_stream, connection) => {
            (response_stream.take_all(connection), connection)
        }
        TakenUp::Over => panic!("it goes on"),
    }
}

#[test]
fn what_belongs_to_no_call_goes_to_exactly_one_listener() {
    let session_streams = session_streams();
    let (older, newer) = (session_streams.open_listener(true), session_streams.open_listener(true));
    session_streams.put(b"1", Route::Broadcast);
    assert_eq!((unsent(&older), unsent(&newer)), (0, 1));
}

#[test]
fn what_nobody_hears_is_kept_for_the_next_who_listens_up_to_a_bound() {
    let session_streams = session_streams();
    for _ in 0..KEPT_MESSAGES_MAX {
        session_streams.put(b"1", Route::Broadcast);
    }
    assert!(!lost(&session_streams));
    assert_eq!(session_streams.room.taken().events, KEPT_MESSAGES_MAX);
    session_streams.put(b"2", Route::Broadcast);
    assert!(lost(&session_streams));
    assert_eq!(unsent(&session_streams.open_listener(true)), KEPT_MESSAGES_MAX);
    assert_eq!(unsent(&session_streams.open_listener(false)), 0);
    assert_eq!(session_streams.room.taken(), Stored::default());
}

#[tokio::test]
async fn events_that_were_sent_make_room_for_answers_of_a_batch() {
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
    assert!(!session_streams.room.is_over(), "{:?}", session_streams.room.taken());
    session_streams.put(br#"{"jsonrpc":"2.0","id":2,"result":{}}"#, Route::Answer(batch.stream()));
    let First::Answer(all) = batch.first().await else { panic!("it is answered") };
    let all: serde_json::Value = serde_json::from_slice(&all).unwrap();
    assert!(all[0]["result"].is_string() && all[1]["result"].is_object());
    assert!(!lost(&session_streams));
}

#[test]
fn a_large_message_is_not_kept() {
    let session_streams = session_streams();
    session_streams.put(&vec![b'1'; KEPT_BYTES_MAX + 1], Route::Broadcast);
    assert!(lost(&session_streams));
    assert_eq!(unsent(&session_streams.open_listener(true)), 0);
}

#[test]
fn what_a_listener_left_unread_goes_to_the_next() {
    let session_streams = session_streams();
    let first = session_streams.open_listener(true);
    session_streams.put(b"1", Route::Broadcast);
    first.detach(0);
    session_streams.close(&first);
    session_streams.put(b"2", Route::Broadcast);
    assert_eq!(unsent(&session_streams.open_listener(true)), 2);
}

#[test]
fn a_listener_that_comes_back_hears_what_it_missed_and_what_was_kept() {
    let session_streams = session_streams();
    let listener = session_streams.open_listener(true);
    session_streams.put(b"1", Route::Broadcast);
    session_streams.put(b"2", Route::Broadcast);
    cut(&session_streams, &listener, 0);
    session_streams.put(b"3", Route::Broadcast);
    let (heard, _) = take_up(&session_streams, &listener, 1);
    assert!(!heard.contains("data: 1\n"), "{heard}");
    assert!(heard.contains("data: 2\n") && heard.contains("data: 3\n"), "{heard}");
    session_streams.put(b"4", Route::Broadcast);
    assert_eq!(unsent(&listener), 1);
}

#[test]
fn a_call_that_was_cut_off_is_taken_up_with_all_that_was_said_and_its_answer() {
    let session_streams = session_streams();
    let (call, other) = (session_streams.open_call(POLLS), session_streams.open_call(POLLS));
    session_streams.put(b"1", Route::Related(1));
    session_streams.put(b"other", Route::Related(2));
    cut(&session_streams, &call, 0);
    assert_eq!((session_streams.open(), session_streams.apart()), (1, 1));
    session_streams.put(b"2", Route::Related(1));
    let (heard, connection) = take_up(&session_streams, &call, 0);
    assert!(heard.contains("data: 1\n") && heard.contains("data: 2\n"), "{heard}");
    assert!(!heard.contains("other"));
    cut(&session_streams, &call, connection);
    session_streams.put(b"3", Route::Answer(1));
    let (heard, connection) = take_up(&session_streams, &call, 2);
    assert!(heard.ends_with("data: 3\n\n"), "{heard}");
    assert!(!heard.contains("data: 2\n"), "{heard}");
    cut(&session_streams, &call, connection);
    assert!(matches!(session_streams.take_up(id(&call, 3), 9), Ok(TakenUp::Over)));
    assert!(matches!(session_streams.take_up(id(&call, 3), 9), Ok(TakenUp::Over)));
    assert!(!lost(&session_streams));
    assert_eq!(unsent(&other), 1);
}

#[test]
fn no_other_id_opens_anything() {
    let session_streams = session_streams();
    let call = session_streams.open_call(POLLS);
    session_streams.put(b"1", Route::Related(1));
    cut(&session_streams, &call, 0);
    let foreign = EventId { of: StreamId { tag: TAG + 1, kind: CALL, stream: 1 }, place: 0 };
    let forged = EventId { of: StreamId { tag: TAG, kind: CALL, stream: 2 }, place: 0 };
    for id in [foreign, forged, id(&call, 2)] {
        assert_eq!(session_streams.take_up(id, 9).unwrap_err(), Refused::UnknownEvent, "{id}");
    }
    assert_eq!(session_streams.take_up(id(&call, 0), 0).unwrap_err(), Refused::TooManyStreams(0));
    assert_eq!(session_streams.apart(), 1);
}

#[test]
fn the_answer_to_a_call_that_nobody_can_take_up_is_dropped() {
    let session_streams = session_streams();
    let call = session_streams.open_call(POLLS);
    call.detach(0);
    session_streams.close(&call);
    session_streams.put(b"1", Route::Answer(1));
    session_streams.put(b"", Route::Cancelled(1));
    assert!(lost(&session_streams));
    assert_eq!((session_streams.open(), session_streams.apart()), (0, 0));
    assert_eq!(unsent(&session_streams.open_listener(true)), 0);
    assert_eq!(session_streams.take_up(id(&call, 0), 9).unwrap_err(), Refused::EventGone);
}

#[test]
fn what_comes_before_the_answer_of_such_a_call_goes_to_whoever_listens() {
    let session_streams = session_streams();
    let call = session_streams.open_call(PLAIN);
    session_streams.put(b"0", Route::Related(1)); // Put, and never sent.
    call.detach(0);
    session_streams.close(&call);
    session_streams.put(b"1", Route::Related(1));
    let answer = br#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    session_streams.put(answer, Route::Related(1)); // Of several that were asked at once.
    assert!(lost(&session_streams), "no answer is heard elsewhere");
    let listener = session_streams.open_listener(true);
    session_streams.put(b"2", Route::Related(1));
    assert_eq!(unsent(&listener), 3);
}

#[test]
fn what_comes_before_the_answer_goes_to_a_listener_if_the_call_wants_json_only() {
    let session_streams = session_streams();
    let listener = session_streams.open_listener(true);
    session_streams.open_call(JSON);
    session_streams.put(b"1", Route::Related(2));
    assert_eq!(unsent(&listener), 1);
}

#[test]
fn there_is_room_for_so_many_events_and_the_rest_is_said_to_be_lost() {
    let session_streams = session_streams();
    let call = session_streams.open_call(POLLS);
    call.begin();
    cut(&session_streams, &call, 0);
    for _ in 0..STORED_EVENTS_MAX + 10 {
        session_streams.put(b"1", Route::Related(1));
    }
    assert_eq!(session_streams.room.taken().events, STORED_EVENTS_MAX);
    assert!(lost(&session_streams));
    let (heard, _) = take_up(&session_streams, &call, 0);
    assert!(heard.contains("10 messages of this stream could not be kept"));
    assert_eq!(heard.matches("data: 1\n").count(), STORED_EVENTS_MAX);
}

#[test]
fn an_answer_that_is_too_large_to_be_held_becomes_an_error() {
    let session_streams = session_streams();
    let call = session_streams.open_call(POLLS);
    call.begin();
    cut(&session_streams, &call, 0);
    let text = "x".repeat(STORED_BYTES_MAX);
    let answer = format!(r#"{{"jsonrpc":"2.0","id":7,"result":"{text}"}}"#);
    session_streams.put(answer.as_bytes(), Route::Answer(1));
    assert!(session_streams.room.taken().bytes < 1000);
    let (heard, _) = take_up(&session_streams, &call, 0);
    assert!(heard.contains(r#""id":7,"error":{"code":-32010"#), "{heard}");
}

#[test]
fn so_many_streams_are_held_and_those_that_are_waited_for_longest() {
    let session_streams = session_streams();
    let call = session_streams.open_call(POLLS);
    call.begin();
    cut(&session_streams, &call, 0);
    for _ in 0..2 * APART_MAX {
        let listener = session_streams.open_listener(true);
        cut(&session_streams, &listener, 0);
    }
    assert_eq!(session_streams.apart(), APART_MAX);
    session_streams.put(b"1", Route::Answer(1));
    assert!(take_up(&session_streams, &call, 0).0.contains("data: 1\n"));
    assert!(!lost(&session_streams));
}

#[tokio::test(start_paused = true)]
async fn in_time_everything_is_forgotten_but_what_is_still_to_be_answered() {
    let session_streams = session_streams();
    let (answered, waits) = (session_streams.open_call(POLLS), session_streams.open_call(POLLS));
    for call in [&answered, &waits] {
        call.begin();
        cut(&session_streams, call, 0);
    }
    session_streams.put(b"1", Route::Answer(1));
    tokio::time::advance(2 * FETCH_WITHIN).await;
    session_streams.sweep(Instant::now());
    assert!(lost(&session_streams), "nobody has fetched it");
    assert_eq!(session_streams.take_up(id(&answered, 0), 9).unwrap_err(), Refused::EventGone);
    drop(answered);
    assert_eq!((session_streams.apart(), session_streams.room.taken().events), (1, 0));
    session_streams.put(b"2", Route::Answer(2));
    assert!(take_up(&session_streams, &waits, 0).0.contains("data: 2\n"));
    session_streams.end();
    drop(waits);
    assert_eq!(session_streams.room.taken(), Stored::default());
}

/// Something that happens in a session.
#[derive(Debug, Clone)]
enum Happens {
    /// A call is begun, or somebody listens.
    Call,
    Listen,
    /// Something is said on one of the streams, or to anyone: so many kilobytes.
    Say {
        stream: usize,
        size: usize,
    },
    SayAnyone {
        size: usize,
    },
    Answer {
        stream: usize,
    },
    /// A connection takes what there is, of which the client reads all but so many events.
    Send {
        stream: usize,
        unread: usize,
    },
    /// A connection breaks, and the door knows.
    Cut {
        stream: usize,
    },
    /// A client takes up a stream again, whether the door knows that it had lost it or not.
    TakeUp {
        stream: usize,
    },
}

fn happens() -> impl Strategy<Value = Happens> {
    let (stream, size) = (|| 0..6_usize, || prop_oneof![9 => Just(0_usize), 1 => 0..3000_usize]);
    prop_oneof![
        1 => Just(Happens::Call),
        1 => Just(Happens::Listen),
        6 => (stream(), size()).prop_map(|(stream, size)| Happens::Say { stream, size }),
        2 => size().prop_map(|size| Happens::SayAnyone { size }),
        1 => stream().prop_map(|stream| Happens::Answer { stream }),
        6 => (stream(), 0..3_usize).prop_map(|(stream, unread)| Happens::Send { stream, unread }),
        2 => stream().prop_map(|stream| Happens::Cut { stream }),
        3 => stream().prop_map(|stream| Happens::TakeUp { stream }),
    ]
}

/// A stream as its client sees it.
struct Seen {
    response_stream: Rc<ResponseStream>,
    is_call: bool,
    connection: Option<u32>,
    /// The place of the last event that it has read, if any had one.
    place: Option<u64>,
    answered: bool,
    /// Words by their number, of those that are only for this stream.
    heard: Vec<u64>,
    missed: u64,
}

/// A session, its client, and what was said.
struct Harness {
    session_streams: SessionStreams,
    streams: Vec<Seen>,
    words: u64,
    /// What was said on each stream, by number; `None` is to anyone.
    said: Vec<(Option<usize>, u64)>,
    /// What was heard by whoever listened, and of which stream it was.
    elsewhere: Vec<(Option<usize>, u64)>,
}

impl Harness {
    fn word(&mut self, stream: Option<usize>, size: usize) -> String {
        self.words += 1;
        self.said.push((stream, self.words));
        let of = stream.map_or(String::new(), |stream| stream.to_string());
        format!("{of}:{}:{}", self.words, "x".repeat(size * 1024))
    }

    fn open(&mut self, response_stream: Rc<ResponseStream>, is_call: bool) {
        let (connection, place) = (Some(0), None);
        self.streams.push(Seen {
            response_stream,
            is_call,
            connection,
            place,
            answered: false,
            heard: Vec::new(),
            missed: 0,
        });
    }

    fn happens(&mut self, happens: &Happens) {
        match *happens {
            Happens::Call => {
                let call = self.session_streams.open_call(POLLS);
                call.begin();
                self.open(call, true);
            }
            Happens::Listen => {
                let listener = self.session_streams.open_listener(true);
                self.open(listener, false);
            }
            Happens::Say { stream, size } => self.say(stream, size, false),
            Happens::Answer { stream } => self.say(stream, 0, true),
            Happens::SayAnyone { size } => {
                let word = self.word(None, size);
                self.session_streams.put(word.as_bytes(), Route::Broadcast);
            }
            Happens::Send { stream, unread } => self.send(stream, unread),
            Happens::Cut { stream } => {
                let Some(seen) = self.streams.get_mut(stream) else { return };
                if let Some(connection) = seen.connection.take()
                    && seen.response_stream.detach(connection)
                {
                    self.session_streams.close(&seen.response_stream);
                }
            }
            Happens::TakeUp { stream } => self.take_up(stream),
        }
    }

    fn say(&mut self, at: usize, size: usize, is_answer: bool) {
        let Some(seen) = self.streams.get_mut(at) else { return };
        // A call that nobody can come back to speaks to anyone, which is another story.
        if !seen.is_call || seen.answered || (seen.connection.is_none() && seen.place.is_none()) {
            return;
        }
        seen.answered = is_answer;
        let stream = seen.response_stream.stream();
        let word = self.word(Some(at), size);
        if is_answer {
            let answer = format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{word}"}}"#);
            self.session_streams.put(answer.as_bytes(), Route::Answer(stream));
        } else {
            self.session_streams.put(word.as_bytes(), Route::Related(stream));
        }
    }

    fn send(&mut self, at: usize, unread: usize) {
        let Some(seen) = self.streams.get_mut(at) else { return };
        let Some(connection) = seen.connection else { return };
        let all = seen.response_stream.take_all(connection);
        let events: Vec<&str> = all.split_terminator("\n\n").collect();
        let read = events.len().saturating_sub(unread);
        for event in &events[..read] {
            handle(seen, at, event, &mut self.elsewhere);
        }
        if read < events.len() {
            seen.connection = None; // Lost on the way, which the door does not know.
        }
    }

    fn take_up(&mut self, at: usize) {
        let Some(seen) = self.streams.get_mut(at) else { return };
        let Some(place) = seen.place else { return };
        match self.session_streams.take_up(id(&seen.response_stream, place), 100) {
            Ok(TakenUp::On(_, connection)) => seen.connection = Some(connection),
            Ok(TakenUp::Over) => assert!(seen.answered, "it is over only with its answer"),
            Err(refused) => panic!("it was told this place: {refused}"),
        }
    }
}

/// One event, as a client reads it.
fn handle(seen: &mut Seen, at: usize, event: &str, elsewhere: &mut Vec<(Option<usize>, u64)>) {
    if let Some(name) = event.strip_prefix("id: ") {
        let name = EventId::parse(name.lines().next().unwrap().as_bytes()).unwrap();
        assert_eq!(name.of.stream, seen.response_stream.stream(), "it is of no other stream");
        seen.place = Some(name.place);
    }
    let Some((_, data)) = event.split_once("event: message\ndata: ") else { return };
    if data.contains("could not be kept") {
        seen.missed += 1;
        return;
    }
    if data.contains("error") {
        return seen.heard.push(u64::MAX); // Its answer, lost and said to be.
    }
    let answer = data.split_once(r#""result":""#);
    let mut parts = answer.map_or(data, |(_, word)| word).split(':');
    let (of, word) = (parts.next().unwrap().parse().ok(), parts.next().unwrap().parse().unwrap());
    if seen.is_call {
        assert_eq!(of, Some(at), "it is of no other stream");
        seen.heard.push(word);
    } else {
        assert_eq!(answer, None, "an answer is for its own stream only");
        elsewhere.push((of, word));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// However streams break and are taken up again, each word is heard on its own stream,
    /// once and in order, or the client is told that it missed some; and no bound is passed.
    #[test]
    fn nothing_is_lost_or_heard_twice_or_elsewhere(play in prop::collection::vec(happens(), 0..150)) {
        let session_streams = session_streams();
        let mut world = Harness {
            session_streams, streams: Vec::new(), words: 0, said: Vec::new(), elsewhere: Vec::new(),
        };
        for happens in &play {
            world.happens(happens);
        }
        for at in 0..world.streams.len() {
            if world.streams[at].connection.is_none() {
                world.take_up(at);
            }
            world.send(at, 0);
        }
        for (at, seen) in world.streams.iter().enumerate().filter(|(_, seen)| seen.place.is_some()) {
            prop_assert!(seen.heard.is_sorted_by(|a, b| a < b), "{:?}", seen.heard);
            let said: Vec<u64> =
                world.said.iter().filter(|(of, _)| *of == Some(at)).map(|(_, word)| *word).collect();
            let all_heard = said.iter().all(|word| seen.heard.contains(word));
            let is_told = seen.missed > 0 || seen.heard.contains(&u64::MAX);
            prop_assert!(all_heard || is_told, "{said:?} {:?}", seen.heard);
        }
        for (of, _) in &world.elsewhere {
            // Only of a stream that nobody can come back to.
            prop_assert!(of.is_none_or(|of| world.streams[of].place.is_none()));
        }
        let mut once = world.elsewhere.clone();
        once.sort_unstable();
        once.dedup();
        prop_assert_eq!(once.len(), world.elsewhere.len(), "nothing is heard twice");
        let Harness { session_streams, streams, .. } = world;
        session_streams.end();
        drop(streams);
        prop_assert_eq!(session_streams.room.taken(), Stored::default());
    }
}
