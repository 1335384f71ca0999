//! Streams that break, and are taken up again.

use super::super::limits::{
    APART_MAX, CROWDED_FROM, FETCH_WITHIN, FINISH_WITHIN, KEEP_ALIVE_EVERY, OPEN_AFTER,
    SENT_KNOWN_FOR, STORED_BYTES_MAX,
};
use super::*;
use crate::fake::FakeConversation;
use crate::frontend::{Route, StreamNo};

/// A call that waits, over a connection of its own, and whose client was told an event.
async fn begun_call(world: &World, session: &str) -> (Client, StreamNo, String) {
    let (mut client, stream) = waiting_call(world, session).await;
    world.front.newest().say(r#"{"first":1}"#, Route::Related(stream));
    assert_eq!(client.head().await.header("content-type"), Some("text/event-stream"));
    assert_eq!(client.event().await.as_deref(), Some(r#"{"first":1}"#));
    let id = client.last_event.clone().unwrap();
    (client, stream, id)
}

async fn waiting_call(world: &World, session: &str) -> (Client, StreamNo) {
    let client_session = world.front.newest();
    let before = client_session.streams_of("wait").len();
    let mut client = world.client().await;
    let call = Request::call(session, 100 + before as u64, "wait", "[]");
    client.send(call.text().as_bytes()).await;
    world.wait_until(|| client_session.streams_of("wait").len() > before).await;
    (client, client_session.streams_of("wait")[before])
}

/// The connection is gone, and the door knows.
async fn cut(world: &World, client: Client) {
    let apart = world.apart();
    drop(client);
    world.wait_until(|| world.apart() > apart).await;
}

fn say(client_session: &Rc<FakeConversation>, messages: &[&str], to: Route) {
    for message in messages {
        client_session.say(message, to);
    }
}

#[tokio::test]
async fn a_stream_that_broke_goes_on_with_what_was_missed_and_then_live_to_its_answer() {
    at_the_door(rules(), async |world| {
        let (_client, id) = world.session().await;
        let (first, stream, after) = begun_call(world, &id).await;
        let (mut other, _, other_after) = begun_call(world, &id).await;
        cut(world, first).await;
        let client_session = world.front.newest();
        say(&client_session, &["2", "3"], Route::Related(stream));
        assert_ne!(after, other_after);

        let mut again = world.client().await;
        again.open(&Request::resume(&id, &after)).await;
        assert_eq!(again.event().await.as_deref(), Some("2"));
        assert_eq!(again.event().await.as_deref(), Some("3"));
        say(&client_session, &["4"], Route::Related(stream));
        assert_eq!(again.event().await.as_deref(), Some("4"));
        say(&client_session, &["5"], Route::Answer(stream));
        assert_eq!(again.event().await.as_deref(), Some("5"));
        assert_eq!(again.event().await, None);

        // There is nothing more, which is said in a way that ends all further tries.
        let last = again.last_event.clone().unwrap();
        let answer = again.ask(&Request::resume(&id, &last)).await;
        assert_eq!((answer.status, answer.body.as_str()), (204, ""));
        let stream = client_session.streams_of("wait")[1];
        say(&client_session, &["6"], Route::Answer(stream));
        assert_eq!(other.event().await.as_deref(), Some("6"));
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_came_while_nobody_was_there_is_fetched() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
        let (first, stream, after) = begun_call(world, &id).await;
        cut(world, first).await;
        say(&world.front.newest(), &["2"], Route::Answer(stream));
        for _ in 0..2 {
            // Also twice: whether the first try arrived is not known.
            client.open(&Request::resume(&id, &after)).await;
            assert_eq!(client.event().await.as_deref(), Some("2"));
            assert_eq!(client.event().await, None);
        }
        assert!(!world.metrics().contains("xy_http_lost_messages_total{"));
    })
    .await;
}

#[tokio::test]
async fn a_call_that_takes_a_while_becomes_a_stream_that_can_be_taken_up() {
    at_the_door(rules(), async |world| {
        let (_client, id) = world.session().await;
        let (mut silent, stream) = waiting_call(world, &id).await;
        jump(OPEN_AFTER).await;
        assert_eq!(silent.head().await.header("content-type"), Some("text/event-stream"));
        let after = silent.first_id().await;
        assert!(after.ends_with("-0"), "{after}");
        cut(world, silent).await;
        say(&world.front.newest(), &["1"], Route::Answer(stream));
        let mut again = world.client().await;
        again.open(&Request::resume(&id, &after)).await;
        assert_eq!(again.event().await.as_deref(), Some("1"));
        assert_eq!(again.event().await, None);
    })
    .await;
}

#[tokio::test]
async fn who_speaks_an_older_revision_hears_no_empty_event_and_can_come_back_too() {
    at_the_door(rules(), async |world| {
        let (mut listener, id) = world.session().await;
        world.front.newest().version.set("2025-06-18");
        listener.open(&Request::listen(&id)).await;
        let (mut silent, stream) = waiting_call(world, &id).await;
        jump(OPEN_AFTER).await;
        assert_eq!(silent.head().await.header("content-type"), Some("text/event-stream"));
        jump(KEEP_ALIVE_EVERY).await;
        for client in [&mut silent, &mut listener] {
            assert_eq!(client.chunk().await.as_deref(), Some(": still here\n\n"));
        }
        let client_session = world.front.newest();
        say(&client_session, &["1", "2"], Route::Related(stream));
        assert_eq!(silent.event().await.as_deref(), Some("1"));
        let after = silent.last_event.clone().unwrap();
        cut(world, silent).await;
        say(&client_session, &["3"], Route::Answer(stream));
        let mut again = world.client().await;
        again.send(Request::resume(&id, &after).text().as_bytes()).await;
        let answer = again.answer().await;
        assert_eq!(answer.events(), ["2", "3"]);
        assert!(!answer.body.contains("data: \n"), "{answer:?}");
    })
    .await;
}

#[tokio::test]
async fn who_reads_anything_but_names_no_events_gets_json_however_long_it_takes() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
        let call = Request::call(&id, 1, "wait", "[]").with("accept", "*/*");
        client.send(call.text().as_bytes()).await;
        world.wait_for_gauges((1, 1)).await;
        jump(OPEN_AFTER).await;
        let client_session = world.front.newest();
        say(&client_session, &["{}"], Route::Answer(client_session.streams_of("wait")[0]));
        assert_eq!(client.answer().await.body, "{}");
    })
    .await;
}

#[tokio::test]
async fn a_call_whose_client_left_before_it_heard_anything_goes_on_and_its_answer_is_dropped() {
    at_the_door(rules(), async |world| {
        let (_client, id) = world.session().await;
        let (silent, stream) = waiting_call(world, &id).await;
        drop(silent);
        world.wait_for_gauges((1, 0)).await;
        assert_eq!(world.apart(), 0);
        let client_session = world.front.newest();
        assert!(!client_session.is_closed());
        say(&client_session, &["1"], Route::Answer(stream));
        assert!(world.metrics().contains("xy_http_lost_messages_total{reason=\"no-reader\"} 1"));
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_listens_goes_on_where_it_was() {
    at_the_door(rules(), async |world| {
        let (mut first, id) = world.session().await;
        let client_session = world.front.newest();
        first.open(&Request::listen(&id)).await;
        say(&client_session, &["1", "2"], Route::Broadcast);
        assert_eq!(first.event().await.as_deref(), Some("1"));
        let after = first.last_event.clone().unwrap();
        cut(world, first).await;
        say(&client_session, &["3"], Route::Broadcast);
        let mut again = world.client().await;
        again.open(&Request::resume(&id, &after)).await;
        assert_eq!(again.event().await.as_deref(), Some("2"));
        assert_eq!(again.event().await.as_deref(), Some("3"));
        say(&client_session, &["4"], Route::Broadcast);
        assert_eq!(again.event().await.as_deref(), Some("4"));
    })
    .await;
}

#[tokio::test]
async fn each_message_is_on_exactly_one_of_many_streams() {
    at_the_door(HttpRules { streams_per_session_max: 20, ..rules() }, async |world| {
        let (_client, id) = world.session().await;
        let client_session = world.front.newest();
        let mut calls = Vec::new();
        for _ in 0..8 {
            calls.push(begun_call(world, &id).await);
        }
        let mut listeners = Vec::new();
        for _ in 0..3 {
            let mut listener = world.client().await;
            listener.open(&Request::listen(&id)).await;
            listener.first_id().await;
            listeners.push(listener);
        }
        for round in 0..5 {
            for (_, stream, _) in &calls {
                say(&client_session, &[&format!("[{stream},{round}]")], Route::Related(*stream));
            }
            say(&client_session, &[&format!("[0,{round}]")], Route::Broadcast);
        }
        for (client, stream, _) in &mut calls {
            say(&client_session, &["\"end\""], Route::Answer(*stream));
            for round in 0..5 {
                assert_eq!(client.event().await, Some(format!("[{stream},{round}]")));
            }
            assert_eq!(client.event().await.as_deref(), Some("\"end\""));
            assert_eq!(client.event().await, None);
        }
        let newest = listeners.last_mut().unwrap();
        for round in 0..5 {
            assert_eq!(newest.event().await, Some(format!("[0,{round}]")));
        }
    })
    .await;
}

#[tokio::test]
async fn of_two_that_take_up_the_same_stream_the_newer_goes_on() {
    at_the_door(rules(), async |world| {
        let (_client, id) = world.session().await;
        let (mut first, stream, after) = begun_call(world, &id).await;
        // The door does not know yet that the first is gone, if it is.
        let mut second = world.client().await;
        second.open(&Request::resume(&id, &after)).await;
        assert_eq!(first.event().await, None);
        let mut third = world.client().await;
        third.open(&Request::resume(&id, &after)).await;
        assert_eq!(second.event().await, None);
        assert_eq!((world.gauges(), world.apart()), ((1, 1), 0));
        say(&world.front.newest(), &["2"], Route::Answer(stream));
        assert_eq!(third.event().await.as_deref(), Some("2"));
        assert_eq!(third.event().await, None);
    })
    .await;
}

#[tokio::test]
async fn a_storm_of_clients_that_come_back_holds_no_more_than_it_may() {
    at_the_door(rules(), async |world| {
        let (_client, id) = world.session().await;
        let (first, stream, after) = begun_call(world, &id).await;
        cut(world, first).await;
        for _ in 0..3 * APART_MAX {
            let mut again = world.client().await;
            again.open(&Request::resume(&id, &after)).await;
            again.first_id().await;
            let mut listener = world.client().await;
            listener.open(&Request::listen(&id)).await;
            listener.first_id().await;
            drop((again, listener));
            world.wait_for_gauges((1, 0)).await;
        }
        assert_eq!(world.apart(), APART_MAX);
        say(&world.front.newest(), &["2"], Route::Answer(stream));
        let mut again = world.client().await;
        again.open(&Request::resume(&id, &after)).await;
        assert_eq!(again.event().await.as_deref(), Some("2"));
    })
    .await;
}

#[tokio::test]
async fn what_was_never_sent_cannot_be_taken_up() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
        let (first, _, after) = begun_call(world, &id).await;
        cut(world, first).await;
        let (stem, _) = after.rsplit_once('-').unwrap();
        let (tag, _) = stem.split_once('-').unwrap();
        for forged in [
            format!("{stem}-2"),
            format!("{stem}-18446744073709551615"),
            format!("{tag}-99-0"),
            format!("{tag}-0-0"),
            "x".to_owned(),
            "x".repeat(10_000),
        ] {
            let answer = client.ask(&Request::resume(&id, &forged)).await;
            assert_eq!(answer.status, 400, "{forged}: {answer:?}");
            assert!(answer.message().contains("`Last-Event-ID`"), "{answer:?}");
        }
        // Nor is it of any use in another session of the same client.
        let (mut other, other_id) = world.session().await;
        assert_eq!(other.ask(&Request::resume(&other_id, &after)).await.status, 400);
        assert_eq!(world.apart(), 1);
    })
    .await;
}

#[tokio::test]
async fn nothing_can_be_taken_up_once_its_session_has_ended() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
        let (first, stream, after) = begun_call(world, &id).await;
        cut(world, first).await;
        say(&world.front.newest(), &["2"], Route::Related(stream));
        assert_ne!(world.stored(), Stored::default());
        assert_eq!(client.ask(&Request::end(&id)).await.status, 204);
        assert_eq!(client.ask(&Request::resume(&id, &after)).await.status, 404);
        assert_eq!((world.apart(), world.stored()), (0, Stored::default()));
    })
    .await;
}

#[tokio::test]
async fn what_is_held_goes_with_a_session_that_nobody_uses() {
    let idle = Duration::from_secs(30);
    at_the_door(HttpRules { idle, ..rules() }, async |world| {
        let (_client, id) = world.session().await;
        let (first, stream, _) = begun_call(world, &id).await;
        cut(world, first).await;
        let client_session = world.front.newest();
        say(&client_session, &["2", "3"], Route::Answer(stream));
        say(&client_session, &["4"], Route::Broadcast);
        let metrics = world.metrics();
        assert!(metrics.contains("xy_http_stored_events 3\n"), "{metrics}");
        assert!(metrics.contains("xy_http_streams_apart 1\n"), "{metrics}");
        jump(idle).await;
        jump(idle).await;
        world.wait_for_gauges((0, 0)).await;
        assert!(world.metrics().contains("xy_http_stored_events 0\n"));
        assert!(world.metrics().contains("xy_http_stored_bytes 0\n"));
    })
    .await;
}

#[tokio::test]
async fn what_nobody_fetches_is_forgotten_in_time_and_that_is_said() {
    at_the_door(HttpRules { idle: Duration::MAX, ..rules() }, async |world| {
        let (_client, id) = world.session().await;
        let (first, stream, after) = begun_call(world, &id).await;
        cut(world, first).await;
        say(&world.front.newest(), &["2"], Route::Answer(stream));
        jump(FETCH_WITHIN * 2).await;
        world.wait_until(|| world.apart() == 0).await;
        assert_eq!(world.stored(), Stored::default());
        let gone = world.client().await.ask(&Request::resume(&id, &after)).await;
        assert_eq!(gone.status, 410);
        assert!(gone.message().contains("is lost"), "{gone:?}");
        assert!(world.metrics().contains("reason=\"not-fetched\"} 1"));
    })
    .await;
}

#[tokio::test]
async fn what_was_sent_whole_is_not_held_for_long() {
    at_the_door(HttpRules { idle: Duration::MAX, ..rules() }, async |world| {
        let (_client, id) = world.session().await;
        let (mut first, stream, after) = begun_call(world, &id).await;
        say(&world.front.newest(), &["2"], Route::Answer(stream));
        assert_eq!(first.event().await.as_deref(), Some("2"));
        assert_eq!(first.event().await, None);
        world.wait_until(|| world.apart() == 1).await;
        jump(SENT_KNOWN_FOR).await;
        jump(SENT_KNOWN_FOR).await;
        world.wait_until(|| world.stored() == Stored::default()).await;
        assert_eq!(first.ask(&Request::resume(&id, &after)).await.status, 410);
        assert!(!world.metrics().contains("xy_http_lost_messages_total{"));
    })
    .await;
}

#[tokio::test]
async fn an_answer_too_large_to_be_held_is_said_to_be_lost() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
        let (first, stream, after) = begun_call(world, &id).await;
        cut(world, first).await;
        let huge =
            format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{}"}}"#, "x".repeat(STORED_BYTES_MAX));
        say(&world.front.newest(), &[&huge], Route::Answer(stream));
        assert!(world.stored().bytes < 1000);
        client.open(&Request::resume(&id, &after)).await;
        let error: serde_json::Value =
            serde_json::from_str(&client.event().await.unwrap()).unwrap();
        assert_eq!((&error["id"], &error["error"]["code"]), (&1.into(), &(-32010).into()));
        assert_eq!(client.event().await, None);
    })
    .await;
}

#[tokio::test]
async fn a_huge_answer_goes_through_to_whoever_reads_it() {
    at_the_door(rules(), async |world| {
        let (_client, id) = world.session().await;
        let (mut client, stream, _) = begun_call(world, &id).await;
        let huge = format!("[\"{}\"]", "x".repeat(4 * STORED_BYTES_MAX));
        say(&world.front.newest(), &[&huge], Route::Answer(stream));
        assert_eq!(client.event().await.unwrap().len(), huge.len());
        assert_eq!(client.event().await, None);
        // It may have been lost on its way, but so much is not held for that.
        world.wait_until(|| world.gauges() == (1, 0)).await;
        assert!(world.stored().bytes <= STORED_BYTES_MAX);
    })
    .await;
}

#[tokio::test]
async fn a_call_whose_reader_does_not_read_is_left_and_can_be_taken_up_to_its_answer() {
    at_the_door(rules(), async |world| {
        let (_client, id) = world.session().await;
        let (slow, stream, after) = begun_call(world, &id).await;
        let client_session = world.front.newest();
        let message = format!("\"{}\"", "1".repeat(1024 * 1024));
        within(async {
            while world.apart() == 0 {
                say(&client_session, &[&message], Route::Related(stream));
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert!(world.metrics().contains("xy_http_cut_total{reason=\"slow-reader\"} 1"));
        assert!(world.stored().bytes <= STORED_BYTES_MAX);
        say(&client_session, &["2"], Route::Answer(stream));
        let mut again = world.client().await;
        again.open(&Request::resume(&id, &after)).await;
        let notice = again.event().await.unwrap();
        assert!(notice.contains("could not be kept"), "{notice}");
        let mut last = None;
        while let Some(event) = again.event().await {
            last = Some(event);
        }
        assert_eq!(last.as_deref(), Some("2"));
        drop(slow);
    })
    .await;
}

#[tokio::test]
async fn a_cancelled_call_is_over_for_whoever_comes_back_to_it() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
        let (first, stream, after) = begun_call(world, &id).await;
        cut(world, first).await;
        world.front.newest().say("", Route::Cancelled(stream));
        assert_eq!(client.ask(&Request::resume(&id, &after)).await.status, 204);
    })
    .await;
}

#[tokio::test]
async fn who_comes_back_takes_a_place_among_the_streams() {
    at_the_door(HttpRules { streams_per_session_max: 1, ..rules() }, async |world| {
        let (mut client, id) = world.session().await;
        let (first, _, after) = begun_call(world, &id).await;
        cut(world, first).await;
        let mut listener = world.client().await;
        listener.open(&Request::listen(&id)).await;
        assert_eq!(client.ask(&Request::resume(&id, &after)).await.status, 429);
        drop(listener);
        world.wait_for_gauges((1, 0)).await;
        client.open(&Request::resume(&id, &after)).await;
    })
    .await;
}

#[tokio::test]
async fn silent_streams_are_let_go_when_there_are_too_many_connections() {
    at_the_door(rules(), async |world| {
        let (_client, id) = world.session().await;
        let (mut silent, stream, after) = begun_call(world, &id).await;
        let connections = &world.door.counts().connections;
        connections.set(CROWDED_FROM);
        jump(KEEP_ALIVE_EVERY).await;
        assert_eq!(silent.chunk().await.as_deref(), Some("retry: 5000\n\n"));
        assert_eq!(silent.chunk().await, None);
        assert!(silent.is_closed().await, "its place is free for another");
        // Who comes back hears what is new, and is to come again.
        let client_session = world.front.newest();
        say(&client_session, &["2"], Route::Related(stream));
        let mut again = world.client().await;
        assert_eq!(again.ask(&Request::new("GET", "/healthz")).await.status, 200);
        connections.set(CROWDED_FROM); // It is counted already, and not again.
        again.send(Request::resume(&id, &after).text().as_bytes()).await;
        let answer = again.answer().await;
        assert_eq!(answer.events(), ["2"]);
        assert!(answer.body.ends_with("retry: 5000\n\n"), "{answer:?}");
        connections.set(1);
        say(&client_session, &["3"], Route::Answer(stream));
        let mut last = world.client().await;
        last.send(Request::resume(&id, &after).text().as_bytes()).await;
        assert_eq!(last.answer().await.events(), ["2", "3"]);
    })
    .await;
}

#[tokio::test]
async fn a_door_that_closes_tells_those_who_wait_that_there_will_be_no_answer() {
    at_the_door(rules(), async |world| {
        let (_client, id) = world.session().await;
        let (mut told, _, _) = begun_call(world, &id).await;
        let (mut silent, _) = waiting_call(world, &id).await;
        world.meanwhile(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            jump(FINISH_WITHIN).await;
            let event = told.event().await.unwrap();
            assert!(event.contains(r#""id":100,"error":{"code":-32010"#), "{event}");
            assert_eq!(told.event().await, None);
            assert!(told.is_closed().await);
            assert!([200, 404].contains(&silent.answer().await.status));
            assert!(silent.is_closed().await);
        });
    })
    .await;
}

#[tokio::test]
async fn a_door_that_closes_forgets_the_streams_that_wait() {
    at_the_door(rules(), async |world| {
        let (_client, id) = world.session().await;
        let (first, stream, _) = begun_call(world, &id).await;
        cut(world, first).await;
        say(&world.front.newest(), &["2"], Route::Related(stream));
        assert_eq!(world.apart(), 1); // And nothing is left at the end.
    })
    .await;
}
