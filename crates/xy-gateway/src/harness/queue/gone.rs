//! Calls that wait for an instance that does not come back.

use super::*;

#[tokio::test(start_paused = true)]
async fn when_the_server_is_given_up_all_who_wait_are_told_at_once() {
    here(async {
        let play = Harness::known().await;
        let client = play.client(&json!({}));
        client.call_tool("set", "seen");
        play.sent();
        client.call_tool("x", "unseen");
        play.die();
        client.call_tool("x", "new");
        assert!(client.heard().is_empty());
        play.give_up("5 starts failed in a row");
        let heard = client.heard();
        let codes: Vec<(String, i64)> = heard
            .iter()
            .map(|it| (text(&it["id"]), it["error"]["code"].as_i64().unwrap()))
            .collect();
        let expected = [("seen", -32010), ("unseen", -32005), ("new", -32005)];
        assert_eq!(codes, expected.map(|(id, code)| (id.to_owned(), code)), "{heard:?}");
        for it in &heard {
            let words = it["error"]["message"].as_str().unwrap();
            assert!(words.contains("5 starts failed in a row"), "{words}");
        }
        client.call_tool("x", "late");
        assert!(client.error().contains("5 starts failed in a row"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn of_a_server_that_was_stopped_nothing_waits() {
    here(async {
        let play = Harness::known().await;
        let client = play.client(&json!({}));
        client.call_tool("read", "seen");
        play.sent();
        client.call_tool("x", "unseen");
        play.give_up("it was stopped");
        play.die();
        let heard = client.heard();
        assert_eq!(heard[0]["error"]["code"], -32010, "{heard:?}");
        let words = heard[1]["error"]["message"].as_str().unwrap();
        assert!(words.contains("`s` is not running: it was stopped"), "{words}");
        assert_eq!((heard.len(), play.server.waiting()), (2, 0));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_of_one_client_that_is_given_up_is_that_clients_trouble_alone() {
    here(async {
        let play = Harness::known().await;
        let own = ServerSettings { isolation: Isolation::Client, ..settings(NO_RULES) };
        play.server.configure(Arc::new(own));
        let (a, b) = (play.client(&json!({})), play.client(&json!({})));
        let numbers: Vec<u64> = {
            let mut all: Vec<u64> = play.router.clients().iter().map(|it| it.number()).collect();
            all.sort_unstable();
            all
        };
        a.call_tool("x", "a");
        b.call_tool("x", "b");
        assert_eq!(play.server.waiting(), 2);
        let down = HashMap::from([(Holder::Client(numbers[0]), "it crashes".to_owned())]);
        play.server.set_down(down);
        assert!(a.error().contains("it crashes"));
        assert!(b.heard().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_an_instance_that_nobody_has_any_more_waits_for_the_right_one() {
    here(async {
        let mut play = Harness::known().await;
        let client = play.client(&json!({}));
        client.call_tool("read", "1");
        play.sent();
        play.die();
        let own = ServerSettings { isolation: Isolation::Client, ..settings(NO_RULES) };
        play.server.configure(Arc::new(own));
        play.server.find_others();
        play.come_back().await;
        assert_eq!(play.names(), [""; 0], "that one is for nobody");
        play.server.configure(Arc::new(settings(NO_RULES)));
        play.server.find_others();
        assert_eq!(play.names(), ["1"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_lost_by_an_instance_that_nobody_has_any_more_waits_for_the_right_one() {
    here(async {
        let play = Harness::known().await;
        let (a, b) = (play.client(&json!({})), play.client(&json!({})));
        let mut numbers: Vec<u64> = play.router.clients().iter().map(|it| it.number()).collect();
        numbers.sort_unstable();
        let [of_a, of_b] = [numbers[0], numbers[1]].map(Holder::Client);
        a.call_tool("read", "a1");
        b.call_tool("read", "b1");
        play.sent();
        a.call_tool("x", "a2");
        // From now on each has its own. The last of what was shared ends only after that.
        let own = ServerSettings { isolation: Isolation::Client, ..settings(NO_RULES) };
        play.server.configure(Arc::new(own));
        play.server.find_others();
        play.server.set_down(HashMap::from([(of_b, "it crashes".to_owned())]));
        play.die();
        assert_eq!(b.outcomes(), [unknown("b1")], "nobody comes for this one");
        assert!(a.heard().is_empty());
        assert_eq!(play.server.take_all_waiting(Some(Holder::Shared)).len(), 0);
        let waits = play.server.take_all_waiting(Some(of_a));
        let ids: Vec<&str> = waits.iter().map(|it| &*it.id).collect();
        assert_eq!(ids, [r#""a1""#, r#""a2""#], "in their order");
        assert!(waits[0].past.was_written && !waits[1].past.was_written);
    })
    .await;
}

/// Its connection breaks first, and its death is told a moment later: what waits until that is sure
/// need not wait any longer when its successor is there.
#[tokio::test(start_paused = true)]
async fn what_was_held_back_from_the_dying_goes_to_the_successor_at_once() {
    here(async {
        let mut play = Harness::known().await;
        let client = play.client(&json!({}));
        client.call_tool("read", "1");
        let (ours, _) = play.calls()[0];
        play.upstream.lose(ours, Stage::Written, "`s`: it broke", false);
        assert_eq!(play.names(), Vec::<String>::new(), "it may be dying");
        play.die();
        let began_at = tokio::time::Instant::now();
        play.come_back().await;
        assert_eq!(play.names(), ["1"]);
        assert_eq!(began_at.elapsed(), Duration::ZERO);
    })
    .await;
}
