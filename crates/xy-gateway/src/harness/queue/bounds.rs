//! How much may wait, and for how long.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_wait_ends_after_its_time_with_what_is_known() {
    here(async {
        let park = ParkSettings { queue: 5 * SECOND, ..ParkSettings::default() };
        let play = Harness::known_with(park, NO_RULES).await;
        let client = play.client(&json!({}));
        client.call_tool("read", "seen");
        play.sent();
        client.call_tool("x", "unseen");
        later(10 * SECOND).await;
        play.die();
        later(4 * SECOND).await;
        client.call_tool("x", "later");
        assert!(client.heard().is_empty());
        later(2 * SECOND).await;
        let heard = client.heard();
        let told = |at: usize| (text(&heard[at]["id"]), heard[at]["error"]["code"].as_i64());
        assert_eq!(told(0), ("seen".to_owned(), Some(-32010)));
        let words = heard[0]["error"]["message"].as_str().unwrap();
        assert!(words.contains("did not come up within 5s"), "{words}");
        assert!(words.contains("sent to `s` once"), "{words}");
        assert_eq!(told(1), ("unseen".to_owned(), Some(-32008)));
        let words = heard[1]["error"]["message"].as_str().unwrap();
        assert!(words.contains("the call was not sent"), "{words}");
        for words in [&heard[0], &heard[1]].map(|it| it["error"]["message"].as_str().unwrap()) {
            assert!(words.contains("calls wait at most 5s (`park { queue }`)"), "{words}");
        }
        assert!(words.contains("raise `park { queue }` and restart the daemon"), "{words}");
        assert_eq!(heard.len(), 2);
        later(4 * SECOND).await;
        assert_eq!(client.heard().len(), 1);
        assert_eq!((play.server.waiting(), play.counts()), (0, (0, 1)));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_as_the_call_takes_too_long_in_all_is_a_time_out() {
    here(async {
        let rules = CallRules { idle: None, within: Some(10 * SECOND) };
        for (queue, code) in [(30, -32007), (5, -32008)] {
            let park = ParkSettings { queue: queue * SECOND, ..ParkSettings::default() };
            let play = Harness::known_with(park, rules).await;
            let client = play.client(&json!({}));
            client.call_tool("x", "unseen");
            play.die();
            later(11 * SECOND).await;
            let heard = client.heard();
            assert_eq!(heard[0]["error"]["code"], code, "{heard:?}");
            let names_the_bound =
                heard[0]["error"]["message"].to_string().contains("`park { queue }`");
            assert_eq!(names_the_bound, code == -32008, "{heard:?}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_has_waited_for_a_fetch_is_told_how_far_that_is() {
    here(async {
        let play = Harness::known().await;
        let client = play.client(&json!({}));
        play.die();
        let what = "pulling x:1".to_owned();
        let progress = xy_supervisor::launch::Progress { what, percent: Some(45) };
        let says: crate::backend::Progressing = Box::new(move || Some(progress.clone()));
        play.server.set_progress(HashMap::from([(Holder::Shared, says)]));
        client.call_tool("x", "early");
        later(31 * SECOND).await;
        let error = client.heard()[0]["error"].to_string();
        for told in [
            "`s` did not come up within 30s, as it is still pulling x:1 45 %",
            "the call was not sent",
            "try again later",
        ] {
            assert!(error.contains(told), "{error}");
        }
        play.server.set_progress(HashMap::from([(Holder::Shared, Box::new(|| None) as _)]));
        client.call_tool("x", "late");
        later(31 * SECOND).await;
        let error = client.heard()[0]["error"].to_string();
        assert!(
            error.contains("did not come up within 30s") && !error.contains("still"),
            "{error}"
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn failing_server_is_explained_instead_of_larger_queue() {
    here(async {
        let play = Harness::known().await;
        let client = play.client(&json!({}));
        play.die();
        let trouble = "exited with code 3\nlast lines of stderr:\nboom";
        let says: crate::backend::Trouble = Box::new(move || Some(trouble.to_owned()));
        play.server.set_troubles(HashMap::from([(Holder::Shared, says)]));
        client.call_tool("x", "early");
        later(31 * SECOND).await;
        let heard = client.heard();
        assert_eq!(heard[0]["error"]["code"], -32008, "{heard:?}");
        assert_eq!(
            heard[0]["error"]["message"],
            "`s` did not come up: the call was not sent; exited with code 3; fix the \
             problem above; `xy status s` shows more",
            "its stderr may be about other clients"
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_ends_when_next_retry_comes_too_late() {
    here(async {
        let play = Harness::known().await;
        let client = play.client(&json!({}));
        play.die();
        client.call_tool("x", "early");
        later(20 * SECOND).await;
        client.call_tool("x", "late");
        let retry_at =
            |seconds| HashMap::from([(Holder::Shared, tokio::time::Instant::now() + seconds)]);
        play.server.give_up_hopeless(&retry_at(9 * SECOND));
        assert!(client.heard().is_empty(), "it is tried in time");
        play.server.give_up_hopeless(&retry_at(11 * SECOND));
        let heard = client.heard();
        assert_eq!((heard.len(), &heard[0]["id"]), (1, &json!("early")), "{heard:?}");
        assert_eq!(play.server.waiting(), 1, "the later call waits on");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn no_more_wait_than_may() {
    here(async {
        let park = ParkSettings { calls: 2, ..ParkSettings::default() };
        let play = Harness::known_with(park, NO_RULES).await;
        let client = play.client(&json!({}));
        for id in ["1", "2", "3"] {
            client.call_tool("read", id);
        }
        play.sent();
        client.call_tool("x", "4");
        play.die();
        // The oldest wait; of one that was sent nobody knows.
        let heard = client.heard();
        let told: Vec<(String, i64)> = heard
            .iter()
            .map(|it| (text(&it["id"]), it["error"]["code"].as_i64().unwrap()))
            .collect();
        assert_eq!(told, [("3".to_owned(), -32010), ("4".to_owned(), -32008)], "{heard:?}");
        client.call_tool("read", "5");
        assert!(client.error().contains("too many calls wait"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn no_more_wait_for_all_servers_together_than_may() {
    here(async {
        let park = ParkSettings { total_calls: 2, ..ParkSettings::default() };
        let mut play = Harness::known_with(park, NO_RULES).await;
        let name = ServerName::new("t").unwrap();
        let other = play.router.server_of(&Arc::new(ServerSettings { name, ..settings(NO_RULES) }));
        *other.known.borrow_mut() = Some(Rc::new(known_of("t", legacy())));
        let client = play.client(&json!({}));
        let call_other = |id: &str| {
            client.ask(&json!(id), "tools/call", &json!({ "name": "t__x", "arguments": id }));
        };
        client.call_tool("read", "1");
        play.sent();
        play.die();
        call_other("2");
        assert_eq!((play.server.waiting(), other.waiting()), (1, 1));
        for again in ["3", "4"] {
            if again == "3" {
                client.call_tool("x", again);
            } else {
                call_other(again);
            }
            let words = client.error();
            for part in ["for all servers together", "`total-calls`", "is 2", "xy.kdl"] {
                assert!(words.contains(part), "{words}");
            }
        }
        // What goes makes room, and what is lost then has none any more.
        play.come_back().await;
        assert_eq!(play.names(), ["1"]);
        call_other("5");
        assert_eq!(play.router.lot.waiting().0, 2);
        play.die();
        assert_eq!(client.outcomes(), [unknown("1")]);
        client.client_session.close();
        assert_eq!(play.router.lot.waiting(), (0, 0), "who leaves gives all of it back");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn no_more_bytes_wait_or_are_kept_than_may() {
    here(async {
        let park = ParkSettings { bytes: 300, ..ParkSettings::default() };
        let play = Harness::known_with(park, NO_RULES).await;
        let client = play.client(&json!({}));
        for id in ["1", "2", "3", "4"] {
            client.call_tool("read", id); // Some 130 bytes each.
        }
        play.sent();
        client.call_tool("x", "5");
        play.die();
        let heard = client.heard();
        let codes: Vec<i64> =
            heard.iter().map(|it| it["error"]["code"].as_i64().unwrap()).collect();
        assert_eq!(codes, [-32010, -32010, -32005], "{heard:?}");
        let words = heard[0]["error"]["message"].as_str().unwrap();
        assert!(words.contains("no copy of it could be kept"), "{words}");
        assert_eq!(play.server.waiting(), 2);
        client.call_tool("read", "6");
        assert!(client.error().contains("too many calls wait"));
    })
    .await;
}

/// Longer than any pipe holds.
const LONG: usize = 1024 * 1024;

/// Calls tools with long arguments, each under its own name.
fn call_long(client: &Visitor, tools: &[&str]) {
    for tool in tools {
        let arguments = format!("{tool} {}", "l".repeat(LONG));
        let params = json!({ "name": format!("s__{tool}"), "arguments": arguments });
        client.ask(&json!(tool), "tools/call", &params);
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_call_that_was_never_read_is_sent_again_whatever_it_is() {
    here(async {
        let mut play = Harness::known().await;
        let client = play.client(&json!({}));
        call_long(&client, &["x", "read"]);
        play.sent();
        play.sent.unread_from.set(Some(0));
        play.die();
        assert_eq!(client.outcomes(), []);
        play.come_back().await;
        let again: Vec<usize> = play.names().iter().map(String::len).collect();
        assert_eq!(again, ["x ".len() + LONG, "read ".len() + LONG]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_begun_and_must_not_be_done_twice_gives_its_room_to_others() {
    here(async {
        let bytes = 3 * LONG as u64;
        let park = ParkSettings { bytes, ..ParkSettings::default() };
        let mut play = Harness::known_with(park, NO_RULES).await;
        let client = play.client(&json!({}));
        call_long(&client, &["x", "read"]);
        play.sent();
        for place in 0..play.sent.written.get() as u64 {
            play.upstream.drop_retry_copy(place);
        }
        call_long(&client, &["set"]); // There is room for two of three.
        play.sent();
        play.die();
        let words = client.error();
        assert!(words.starts_with("outcome unknown"), "{words}");
        assert!(words.contains("nothing says that it may be repeated"), "{words}");
        play.come_back().await;
        let again = play.names();
        let names: Vec<&str> = again.iter().filter_map(|it| it.split(' ').next()).collect();
        assert_eq!(names, ["read", "set"]);
    })
    .await;
}

/// Its predecessor has said that the tool only reads, and decides in the end.
#[tokio::test(start_paused = true)]
async fn a_long_call_keeps_its_copy_while_its_server_has_not_said_what_may_be_repeated() {
    here(async {
        let mut play = Harness::known_with(ParkSettings::default(), NO_RULES).await;
        let client = play.client(&json!({}));
        play.die();
        play.come_back().await;
        call_long(&client, &["read"]);
        assert_eq!(play.names().len(), 1);
        for place in 0..play.sent.written.get() as u64 {
            play.upstream.drop_retry_copy(place);
        }
        play.die();
        assert_eq!(client.outcomes(), []);
        play.come_back().await;
        assert_eq!(play.names().len(), 1);
    })
    .await;
}
