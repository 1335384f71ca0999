//! One stream, without any connection.

use std::task::Waker;

use super::super::event::StreamKind;
use super::super::limits::{STORED_BYTES_MAX, STREAM_BYTES_MAX};
use super::*;

const PLAIN: StreamMode = StreamMode { events: true, polls: false };
const POLLS: StreamMode = StreamMode { events: true, polls: true };
const JSON: StreamMode = StreamMode { events: false, polls: false };

fn response_stream(manner: StreamMode) -> ResponseStream {
    let id = StreamId { tag: 0, kind: Some(StreamKind::Call), stream: 1 };
    ResponseStream::new(1, Some(id), manner, Room::for_session(&Room::for_all()))
}

fn first(response_stream: &ResponseStream) -> Option<First> {
    match response_stream.poll_first(&Context::from_waker(Waker::noop())) {
        Poll::Ready(first) => Some(first),
        Poll::Pending => None,
    }
}

fn events_of(response_stream: &ResponseStream, connection: u32) -> Poll<Option<String>> {
    let events = response_stream.poll_events(connection, &Context::from_waker(Waker::noop()));
    events.map(|it| it.map(|it| String::from_utf8(it.to_vec()).unwrap()))
}

fn events(response_stream: &ResponseStream) -> Poll<Option<String>> {
    events_of(response_stream, 0)
}

fn text(text: &str) -> Poll<Option<String>> {
    Poll::Ready(Some(text.to_owned()))
}

#[test]
fn an_answer_that_comes_first_is_plain() {
    let response_stream = response_stream(POLLS);
    assert_eq!(first(&response_stream), None);
    response_stream.put_answer(b"{}").unwrap();
    assert_eq!(first(&response_stream), Some(First::Answer(Bytes::from_static(b"{}"))));
    assert!(!response_stream.is_resumable());
}

#[test]
fn what_comes_before_the_answer_makes_both_events_in_one_piece() {
    let response_stream = response_stream(PLAIN);
    response_stream.put_event(b"1").unwrap();
    response_stream.put_answer(b"2").unwrap();
    assert_eq!(first(&response_stream), Some(First::Events));
    let both = "id: 0000000000000000-c1-1\nevent: message\ndata: 1\n\n\
                id: 0000000000000000-c1-2\nevent: message\ndata: 2\n\n";
    assert_eq!(events(&response_stream), text(both));
    assert!(response_stream.is_over(0));
    assert_eq!(events(&response_stream), Poll::Ready(None));
}

#[test]
fn who_can_come_back_is_told_from_where_before_anything_else() {
    let response_stream = response_stream(POLLS);
    response_stream.begin();
    assert_eq!(first(&response_stream), Some(First::Events));
    assert_eq!(
        events(&response_stream),
        text("id: 0000000000000000-c1-0\nretry: 1000\ndata: \n\n")
    );
    response_stream.put_answer(b"1").unwrap();
    assert_eq!(
        events(&response_stream),
        text("id: 0000000000000000-c1-1\nevent: message\ndata: 1\n\n")
    );
    assert_eq!(events(&response_stream), Poll::Ready(None));

    // The last piece was lost on its way.
    assert_eq!(response_stream.resume(0), Some(Resumed::On(1)));
    let again = "id: 0000000000000000-c1-0\nretry: 1000\ndata: \n\n\
                 id: 0000000000000000-c1-1\nevent: message\ndata: 1\n\n";
    assert_eq!(events(&response_stream), Poll::Ready(None), "the older connection is left");
    assert_eq!(events_of(&response_stream, 1), text(again));
    assert_eq!(response_stream.resume(1), Some(Resumed::Over));
    assert_eq!(response_stream.resume(2), None);
}

#[test]
fn who_was_sent_nothing_knows_no_place_to_come_back_to() {
    let response_stream = response_stream(POLLS);
    response_stream.put_event(b"1").unwrap();
    assert!(!response_stream.is_resumable());
    assert!(events(&response_stream).is_ready());
    assert!(response_stream.is_resumable());
}

#[test]
fn who_does_not_know_empty_events_gets_none() {
    let response_stream = response_stream(PLAIN);
    response_stream.begin();
    assert_eq!(first(&response_stream), Some(First::Events));
    assert_eq!(events(&response_stream), Poll::Pending);
    assert!(!response_stream.is_resumable());
}

#[test]
fn who_missed_something_is_told_so() {
    let response_stream = response_stream(POLLS);
    response_stream.put_event(b"1").unwrap();
    assert!(events(&response_stream).is_ready());
    response_stream.put_event(b"2").unwrap();
    response_stream.put_event(b"3").unwrap();
    response_stream.detach(0);
    for _ in 0..2 {
        assert!(response_stream.evict(Spare::All).is_some());
    }
    assert_eq!(response_stream.resume(1), Some(Resumed::On(1)));
    let Poll::Ready(Some(heard)) = events_of(&response_stream, 1) else { panic!("it hears more") };
    assert!(heard.contains("1 messages of this stream could not be kept"), "{heard}");
    assert!(heard.ends_with("data: 3\n\n"), "{heard}");
    // The first that it reads does not make it believe that it has heard the rest.
    assert!(heard.starts_with("id: 0000000000000000-c1-1\nretry: "), "{heard}");
}

#[test]
fn nothing_is_taken_after_the_end() {
    let cancelled = response_stream(POLLS);
    cancelled.cancel();
    assert_eq!(cancelled.put_event(b"1"), Err(NotTaken::Ended));
    assert_eq!(cancelled.put_answer(b"2"), Err(NotTaken::Ended));
    assert_eq!(first(&cancelled), Some(First::Nothing));

    let answered = response_stream(POLLS);
    answered.put_answer(b"1").unwrap();
    answered.session_over();
    assert_eq!(first(&answered), Some(First::Answer(Bytes::from_static(b"1"))));
}

#[test]
fn who_was_told_that_an_answer_comes_is_told_that_none_does() {
    let begun = response_stream(PLAIN);
    begun.set_requests(vec!["\"x\"".into()]);
    begun.begin();
    begun.session_over();
    let Poll::Ready(Some(heard)) = events(&begun) else { panic!("it hears more") };
    assert!(heard.contains(r#""id":"x","error":{"code":-32010"#), "{heard}");
    assert_eq!(events(&begun), Poll::Ready(None));

    let silent = response_stream(PLAIN);
    silent.set_requests(vec!["1".into()]);
    silent.session_over();
    assert_eq!(first(&silent), Some(First::SessionOver));
}

#[test]
fn a_stream_that_wants_no_events_still_gets_its_answer() {
    let response_stream = response_stream(JSON);
    assert_eq!(response_stream.put_event(b"1"), Err(NotTaken::NoEvents));
    response_stream.begin();
    assert_eq!(first(&response_stream), None);
    response_stream.put_answer(b"2").unwrap();
    assert_eq!(first(&response_stream), Some(First::Answer(Bytes::from_static(b"2"))));
}

#[test]
fn batch_of_a_client_that_wants_no_events_is_answered_as_an_array() {
    let answer = |id: u64| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
    let response_stream = response_stream(JSON);
    assert_eq!(response_stream.put_event(answer(1).as_bytes()), Ok(Taken::Fits));
    assert_eq!(
        response_stream.put_event(br#"{"jsonrpc":"2.0","method":"m"}"#),
        Err(NotTaken::NoEvents)
    );
    assert_eq!(first(&response_stream), None);
    let large =
        format!(r#"{{"jsonrpc":"2.0","id":2,"result":"{}"}}"#, "x".repeat(STREAM_BYTES_MAX));
    assert_eq!(response_stream.put_event(large.as_bytes()), Ok(Taken::Fits));
    response_stream.put_answer(answer(3).as_bytes()).unwrap();
    let Some(First::Answer(all)) = first(&response_stream) else { panic!("it is answered") };
    let all: serde_json::Value = serde_json::from_slice(&all).unwrap();
    assert_eq!((&all[0]["id"], &all[1]["id"], &all[2]["id"]), (&1.into(), &2.into(), &3.into()));
    assert_eq!(all[1]["error"]["code"], NO_ANSWER_CODE);

    let cancelled = self::response_stream(JSON);
    cancelled.put_event(answer(1).as_bytes()).unwrap();
    cancelled.cancel();
    let whole = First::Answer(format!("[{}]", answer(1)).into());
    assert_eq!(first(&cancelled), Some(whole), "the rest is cancelled");
}

#[test]
fn answers_kept_for_a_batch_take_the_room_of_their_session() {
    let room = Room::for_session(&Room::for_all());
    let open = || ResponseStream::new(1, None, JSON, Rc::clone(&room));
    let answer = |id: u64, length: usize| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"{}"}}"#, "x".repeat(length))
    };
    let (one, other) = (open(), open());
    let large = answer(1, STORED_BYTES_MAX / 2);
    one.put_event(large.as_bytes()).unwrap();
    assert_eq!(room.taken().bytes, large.len() + 1);
    other.put_event(large.as_bytes()).unwrap();
    assert!(!room.is_over(), "{:?}", room.taken());
    other.put_answer(answer(2, 0).as_bytes()).unwrap();
    let Some(First::Answer(all)) = first(&other) else { panic!("it is answered") };
    let all: serde_json::Value = serde_json::from_slice(&all).unwrap();
    assert_eq!(all[0]["error"]["code"], NO_ANSWER_CODE, "there was no room for it");
    assert_eq!(all[1]["id"], 2);
    assert_eq!(room.taken().bytes, large.len() + 1, "room is given back with the answer");
    one.cancel();
    assert_eq!(room.taken(), Stored::default(), "and when the batch is cancelled");
}

#[test]
fn a_reader_that_is_too_slow_is_left_but_one_message_may_be_of_any_size() {
    let large = vec![b'1'; STREAM_BYTES_MAX + 1];
    let response_stream = response_stream(PLAIN);
    assert_eq!(response_stream.put_event(&large), Ok(Taken::Fits));
    assert_eq!(response_stream.put_event(b"2"), Ok(Taken::TooSlow));
    assert_eq!(events(&response_stream), Poll::Ready(None));
    assert!(!response_stream.detach(0), "it was left already");
}

#[test]
fn what_waits_for_a_connection_that_is_there_is_not_given_up() {
    let response_stream = response_stream(POLLS);
    response_stream.put_event(b"1").unwrap();
    assert_eq!(
        (response_stream.evict(Spare::Sent), response_stream.evict(Spare::All)),
        (None, None)
    );
    assert!(events(&response_stream).is_ready());
    assert_eq!(response_stream.evict(Spare::Sent), Some(Evicted::Sent));
}

#[test]
fn room_is_given_back() {
    let room = Room::for_session(&Room::for_all());
    let response_stream = ResponseStream::new(1, None, POLLS, Rc::clone(&room));
    response_stream.put_event(b"1").unwrap();
    assert_eq!(room.taken().events, 1);
    drop(response_stream);
    assert_eq!(room.taken(), Stored::default());
}
