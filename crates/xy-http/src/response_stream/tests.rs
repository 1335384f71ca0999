//! A single response stream, without a connection.

use std::task::Waker;

use super::*;
use crate::event::StreamKind;
use crate::limits::{STORED_BYTES_MAX, STREAM_BYTES_MAX};

const PLAIN: StreamMode = StreamMode { events: true, polls: false };
const POLLS: StreamMode = StreamMode { events: true, polls: true };
const JSON: StreamMode = StreamMode { events: false, polls: false };

fn response_stream(mode: StreamMode) -> ResponseStream {
    let id = StreamId { tag: 0, kind: Some(StreamKind::Call), stream: 1 };
    ResponseStream::new(1, Some(id), mode, StorageBudget::for_session(&StorageBudget::for_all()))
}

fn first(response_stream: &ResponseStream) -> Option<FirstOutput> {
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
fn answer_that_comes_first_is_plain() {
    let response_stream = response_stream(POLLS);
    assert_eq!(first(&response_stream), None);
    response_stream.put_response(b"{}").unwrap();
    assert_eq!(first(&response_stream), Some(FirstOutput::Response(Bytes::from_static(b"{}"))));
    assert!(!response_stream.is_resumable());
}

#[test]
fn events_before_the_answer_are_sent_in_one_chunk() {
    let response_stream = response_stream(PLAIN);
    response_stream.put_event(b"1").unwrap();
    response_stream.put_response(b"2").unwrap();
    assert_eq!(first(&response_stream), Some(FirstOutput::Events));
    let both = "id: 0000000000000000-c1-1\nevent: message\ndata: 1\n\n\
                id: 0000000000000000-c1-2\nevent: message\ndata: 2\n\n";
    assert_eq!(events(&response_stream), text(both));
    assert!(response_stream.is_finished(0));
    assert_eq!(events(&response_stream), Poll::Ready(None));
}

#[test]
fn resumable_stream_starts_with_an_event_id() {
    let response_stream = response_stream(POLLS);
    response_stream.start_events();
    assert_eq!(first(&response_stream), Some(FirstOutput::Events));
    assert_eq!(
        events(&response_stream),
        text("id: 0000000000000000-c1-0\nretry: 1000\ndata: \n\n")
    );
    response_stream.put_response(b"1").unwrap();
    assert_eq!(
        events(&response_stream),
        text("id: 0000000000000000-c1-1\nevent: message\ndata: 1\n\n")
    );
    assert_eq!(events(&response_stream), Poll::Ready(None));

    // The last chunk was lost in transit.
    assert_eq!(response_stream.resume(0), Some(ResumeOutcome::Connection(1)));
    let again = "id: 0000000000000000-c1-0\nretry: 1000\ndata: \n\n\
                 id: 0000000000000000-c1-1\nevent: message\ndata: 1\n\n";
    assert_eq!(events(&response_stream), Poll::Ready(None), "the older connection is left");
    assert_eq!(events_of(&response_stream, 1), text(again));
    assert_eq!(response_stream.resume(1), Some(ResumeOutcome::Complete));
    assert_eq!(response_stream.resume(2), None);
}

#[test]
fn stream_without_sent_events_is_not_resumable() {
    let response_stream = response_stream(POLLS);
    response_stream.put_event(b"1").unwrap();
    assert!(!response_stream.is_resumable());
    assert!(events(&response_stream).is_ready());
    assert!(response_stream.is_resumable());
}

#[test]
fn client_that_does_not_poll_gets_no_empty_event() {
    let response_stream = response_stream(PLAIN);
    response_stream.start_events();
    assert_eq!(first(&response_stream), Some(FirstOutput::Events));
    assert_eq!(events(&response_stream), Poll::Pending);
    assert!(!response_stream.is_resumable());
}

#[test]
fn missed_events_are_reported_to_the_client() {
    let response_stream = response_stream(POLLS);
    response_stream.put_event(b"1").unwrap();
    assert!(events(&response_stream).is_ready());
    response_stream.put_event(b"2").unwrap();
    response_stream.put_event(b"3").unwrap();
    response_stream.detach(0);
    for _ in 0..2 {
        assert!(response_stream.evict(Evictable::All).is_some());
    }
    assert_eq!(response_stream.resume(1), Some(ResumeOutcome::Connection(1)));
    let Poll::Ready(Some(received)) = events_of(&response_stream, 1) else {
        panic!("there is an event")
    };
    assert!(received.contains("1 messages of this stream have expired"), "{received}");
    assert!(received.ends_with("data: 3\n\n"), "{received}");
    // The first event id does not claim that the client has received the rest.
    assert!(received.starts_with("id: 0000000000000000-c1-1\nretry: "), "{received}");
}

#[test]
fn no_event_is_accepted_after_the_end() {
    let cancelled = response_stream(POLLS);
    cancelled.cancel();
    assert_eq!(cancelled.put_event(b"1"), Err(PutError::Ended));
    assert_eq!(cancelled.put_response(b"2"), Err(PutError::Ended));
    assert_eq!(first(&cancelled), Some(FirstOutput::Nothing));

    let answered = response_stream(POLLS);
    answered.put_response(b"1").unwrap();
    answered.end_session();
    assert_eq!(first(&answered), Some(FirstOutput::Response(Bytes::from_static(b"1"))));
}

fn request(id: &str) -> StreamedRequest {
    StreamedRequest { id: id.into(), method: "tools/call".into() }
}

#[test]
fn session_end_sends_an_error_on_an_open_stream() {
    let is_event_stream = response_stream(PLAIN);
    is_event_stream.set_requests(vec![request("\"x\"")]);
    is_event_stream.start_events();
    is_event_stream.end_session();
    let Poll::Ready(Some(received)) = events(&is_event_stream) else { panic!("there is an event") };
    assert!(received.contains(r#""id":"x","error":{"code":-32010"#), "{received}");
    assert_eq!(events(&is_event_stream), Poll::Ready(None));

    let silent = response_stream(PLAIN);
    silent.set_requests(vec![request("1")]);
    silent.end_session();
    assert_eq!(first(&silent), Some(FirstOutput::SessionEnded));
}

#[test]
fn stream_without_events_still_gets_its_answer() {
    let response_stream = response_stream(JSON);
    assert_eq!(response_stream.put_event(b"1"), Err(PutError::NoEvents));
    response_stream.start_events();
    assert_eq!(first(&response_stream), None);
    response_stream.put_response(b"2").unwrap();
    assert_eq!(first(&response_stream), Some(FirstOutput::Response(Bytes::from_static(b"2"))));
}

#[test]
fn batch_without_events_is_answered_as_an_array() {
    let answer = |id: u64| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
    let response_stream = response_stream(JSON);
    assert_eq!(response_stream.put_event(answer(1).as_bytes()), Ok(PutOutcome::Queued));
    assert_eq!(
        response_stream.put_event(br#"{"jsonrpc":"2.0","method":"m"}"#),
        Err(PutError::NoEvents)
    );
    assert_eq!(first(&response_stream), None);
    let large =
        format!(r#"{{"jsonrpc":"2.0","id":2,"result":"{}"}}"#, "x".repeat(STREAM_BYTES_MAX));
    assert_eq!(response_stream.put_event(large.as_bytes()), Ok(PutOutcome::Queued));
    response_stream.put_response(answer(3).as_bytes()).unwrap();
    let Some(FirstOutput::Response(all)) = first(&response_stream) else {
        panic!("it is answered")
    };
    let all: serde_json::Value = serde_json::from_slice(&all).unwrap();
    assert_eq!((&all[0]["id"], &all[1]["id"], &all[2]["id"]), (&1.into(), &2.into(), &3.into()));
    assert_eq!(all[1]["error"]["code"], OUTCOME_UNKNOWN_CODE);

    let cancelled = self::response_stream(JSON);
    cancelled.put_event(answer(1).as_bytes()).unwrap();
    cancelled.cancel();
    let whole = FirstOutput::Response(format!("[{}]", answer(1)).into());
    assert_eq!(first(&cancelled), Some(whole), "the rest is cancelled");
}

#[test]
fn stored_answers_of_a_batch_count_towards_the_session() {
    let storage = StorageBudget::for_session(&StorageBudget::for_all());
    let open = || ResponseStream::new(1, None, JSON, Rc::clone(&storage));
    let answer = |id: u64, length: usize| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"{}"}}"#, "x".repeat(length))
    };
    let (one, other) = (open(), open());
    let large = answer(1, STORED_BYTES_MAX / 2);
    one.put_event(large.as_bytes()).unwrap();
    assert_eq!(storage.used().bytes, large.len() + 1);
    other.put_event(large.as_bytes()).unwrap();
    assert!(!storage.is_exceeded(), "{:?}", storage.used());
    other.put_response(answer(2, 0).as_bytes()).unwrap();
    let Some(FirstOutput::Response(all)) = first(&other) else { panic!("it is answered") };
    let all: serde_json::Value = serde_json::from_slice(&all).unwrap();
    assert_eq!(all[0]["error"]["code"], OUTCOME_UNKNOWN_CODE, "there was no room for it");
    assert_eq!(all[1]["id"], 2);
    assert_eq!(storage.used().bytes, large.len() + 1, "room is given back with the answer");
    one.cancel();
    assert_eq!(storage.used(), StorageUse::default(), "and when the batch is cancelled");
}

#[test]
fn slow_reader_is_disconnected_but_one_message_may_have_any_size() {
    let large = vec![b'1'; STREAM_BYTES_MAX + 1];
    let response_stream = response_stream(PLAIN);
    assert_eq!(response_stream.put_event(&large), Ok(PutOutcome::Queued));
    assert_eq!(response_stream.put_event(b"2"), Ok(PutOutcome::TooSlow));
    assert_eq!(events(&response_stream), Poll::Ready(None));
    assert!(!response_stream.detach(0), "it was left already");
}

#[test]
fn events_for_a_live_connection_are_not_evicted() {
    let response_stream = response_stream(POLLS);
    response_stream.put_event(b"1").unwrap();
    assert_eq!(
        (response_stream.evict(Evictable::Sent), response_stream.evict(Evictable::All)),
        (None, None)
    );
    assert!(events(&response_stream).is_ready());
    assert_eq!(response_stream.evict(Evictable::Sent), Some(Eviction::Sent));
}

#[test]
fn dropped_stream_frees_its_storage() {
    let storage = StorageBudget::for_session(&StorageBudget::for_all());
    let response_stream = ResponseStream::new(1, None, POLLS, Rc::clone(&storage));
    response_stream.put_event(b"1").unwrap();
    assert_eq!(storage.used().events, 1);
    drop(response_stream);
    assert_eq!(storage.used(), StorageUse::default());
}
