//! One token takes its share of what all clients use, and leaves the rest to others.

use super::*;

fn client(router: &Rc<Router>, who: u64) -> Visitor {
    let view = View::Profile("default".to_owned());
    let entry = Entry { view, may_manage: false, lifetime: Lifetime::Session, who, bound: None };
    let heard = Rc::new(RecordedMessages::default());
    let client_session = router.open(entry, heard.clone()).unwrap();
    let client = Visitor { client_session, heard };
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
    client.ask(&json!("hello"), "initialize", &params);
    client.heard();
    client
}

fn limits_hit(router: &Router) -> Vec<(&'static str, Option<u64>)> {
    let hits = router.limit_hits(tokio::time::Instant::now());
    hits.into_iter().map(|hit| (hit.limit, hit.token)).collect()
}

#[tokio::test(start_paused = true)]
async fn one_token_leaves_calls_for_others() {
    here(async {
        let play = Harness::begin().await;
        let clients: Vec<Visitor> = (0..9).map(|_| client(&play.router, 70)).collect();
        // 7,500 of 10,000, at most 1,000 of one client.
        for call in 0..7_500 {
            let params = json!({ "name": "s__x", "arguments": {} });
            clients[call / 900].ask(&json!(call), "tools/call", &params);
        }
        assert_eq!(play.sent().len(), 7_500);
        assert_eq!(limits_hit(&play.router), []);
        let params = json!({ "name": "s__x", "arguments": {} });
        clients[0].ask(&json!("more"), "tools/call", &params);
        assert!(clients[0].error().contains("takes no more calls of this token"));
        assert_eq!(limits_hit(&play.router), [("open calls with one server", Some(70))]);
        for who in [71, 0] {
            let other = client(&play.router, who);
            other.ask(&json!(1), "tools/call", &params);
            assert_eq!(play.sent().len(), 1, "{who}");
        }
        // A call that has ended makes room.
        play.answer(1);
        clients[0].heard();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn calls_at_one_server_take_no_share_of_another() {
    here(async {
        let play = Harness::begin().await;
        let name = ServerName::new("t").unwrap();
        let settings = ServerSettings { name, ..settings(CallRules::default()) };
        let (other, sent) = (play.router.server_of(&Arc::new(settings)), Rc::new(Sent::default()));
        let (said, _heard) = mpsc::channel(64);
        let _upstream = life(&play.router, &other, said, sent.clone(), false, &legacy()).await;
        sent.messages.take();
        let clients: Vec<Visitor> = (0..9).map(|_| client(&play.router, 70)).collect();
        for call in 0..7_500 {
            let params = json!({ "name": "s__x", "arguments": {} });
            clients[call / 900].ask(&json!(call), "tools/call", &params);
        }
        // The token holds all of its share at `s`, and calls of others fill a part of `t`.
        let others: Vec<Visitor> = (0..9).map(|_| client(&play.router, 0)).collect();
        for call in 0..8_000 {
            let params = json!({ "name": "t__x", "arguments": {} });
            others[call / 900].ask(&json!(call), "tools/call", &params);
        }
        assert_eq!(sent.messages.take().len(), 8_000);
        clients[0].ask(&json!("more"), "tools/call", &json!({ "name": "t__x" }));
        assert_eq!(clients[0].heard(), Vec::<Value>::new());
        assert_eq!(sent.messages.take().len(), 1);
        assert_eq!(limits_hit(&play.router), []);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_token_leaves_room_to_wait_for_others() {
    here(async {
        let park = ParkSettings { calls: 8, ..ParkSettings::default() };
        let mut play = Harness::where_may_wait(park, CallRules::default(), false, &legacy()).await;
        let (greedy, other) = (client(&play.router, 70), client(&play.router, 71));
        play.upstream.close(crate::upstream::Cause::end("`s` has ended"));
        play.router.over(&play.server, &play.upstream, "`s` has ended");
        let params = json!({ "name": "s__x", "arguments": {} });
        for call in 0..6 {
            greedy.ask(&json!(call), "tools/call", &params);
        }
        assert_eq!(greedy.heard(), Vec::<Value>::new());
        greedy.ask(&json!("more"), "tools/call", &params);
        assert!(greedy.error().contains("too many calls of this token wait"));
        assert_eq!(limits_hit(&play.router), [("calls that wait for a server", Some(70))]);
        other.ask(&json!(1), "tools/call", &params);
        assert_eq!(other.heard(), Vec::<Value>::new(), "it waits");
        play.live_again().await;
        assert_eq!(play.sent().len(), 7);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_token_leaves_instances_for_others() {
    here(async {
        let router = empty(Arc::new(Nobody), ParkSettings::default());
        router.set_instances_max(4);
        let settings = settings(CallRules::default());
        router.server_of(&Arc::new(ServerSettings { isolation: Isolation::Client, ..settings }));
        let params = json!({ "name": "s__x", "arguments": {} });
        let call = |client: &Visitor| client.ask(&json!(1), "tools/call", &params);
        let clients: Vec<Visitor> = (0..4).map(|_| client(&router, 70)).collect();
        clients.iter().for_each(call);
        advance(SECOND).await;
        assert!(clients[..3].iter().all(|it| it.heard().is_empty()), "they wait for theirs");
        assert!(clients[3].error().contains("no room for another instance of `s`"));
        assert_eq!(limits_hit(&router), [("instances", Some(70))]);
        let other = client(&router, 71);
        call(&other);
        advance(SECOND).await;
        assert!(other.heard().is_empty(), "it waits for its own");
    })
    .await;
}
