//! Calls that wait for modern clients: how many, how much of each, and for how long.

use xy_protocol::error::ErrorKind;

use super::*;
use crate::bridge::pending_input::{Came, HELD_FOR, Kept, NewHold, Next, PendingInput, ReplyTo};
use crate::client::Client;
use crate::modern::RequestMeta;

impl Harness {
    /// Somebody whose calls are parked, in this house.
    fn of_house(&self, group_id: u64) -> Rc<Client> {
        let view = View::Profile("default".to_owned());
        let entry =
            Entry { view, may_manage: false, lifetime: Lifetime::Request, who: 1, bound: None };
        self.router.open(entry, Rc::new(RecordedMessages::default())).unwrap();
        let client = self.router.clients().into_iter().max_by_key(|it| it.number()).unwrap();
        client.joins(group_id);
        client
    }

    /// Parks a call of this client, in which nothing is asked yet.
    fn parks(&self, client: &Rc<Client>) -> Option<Rc<PendingInput>> {
        let reply_to = ReplyTo { client: client.clone(), id: "1".into(), stream: 0 };
        let manner = RequestMeta { capabilities: "{}".into(), info: None, level: None };
        self.router.parked.park(NewHold {
            reply_to,
            manner: Rc::new(manner),
            method: "tools/call".into(),
            bond: crate::bridge::bond(client.entry(), "tools/call", None),
            upstream: Rc::downgrade(&self.upstream),
            asked: self.server.clone(),
            ours: 1,
            info: None,
            lacks: None,
        })
    }

    /// The codes of the errors that the server has been answered since.
    fn refused(&self) -> Vec<Value> {
        self.sent()
            .iter()
            .map(|it| it["error"]["code"].clone())
            .filter(|it| !it.is_null())
            .collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_calls_wait_and_a_quarter_of_them_for_one_house() {
    here(async {
        let play = Harness::begin().await;
        let clients: Vec<_> = (1..=5).map(|group_id| play.of_house(1_000_000 + group_id)).collect();
        let holds: Vec<_> = (0..250).map(|_| play.parks(&clients[0]).unwrap()).collect();
        assert!(play.parks(&clients[0]).is_none(), "of one house");
        assert!(play.router.parked.allow_again(clients[0].group_id()).is_none(), "whatever it is");
        for client in &clients[1..4] {
            // What is to be made again counts the same.
            for _ in 0..125 {
                assert!(play.parks(client).is_some());
                assert!(play.router.parked.allow_again(client.group_id()).is_some());
            }
        }
        assert_eq!(play.router.parked.len(), 1000);
        assert!(play.parks(&clients[4]).is_none(), "of all");
        assert!(play.router.parked.allow_again(clients[4].group_id()).is_none());
        play.router.parked.forget(holds[0].number);
        assert!(play.parks(&clients[4]).is_some() && play.parks(&clients[4]).is_none());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn how_many_wait_and_how_much_is_kept_of_them_is_what_the_file_says() {
    here(async {
        let park = ParkSettings { held_calls: 6, held_bytes: 100, ..ParkSettings::default() };
        let play = Harness::where_may_wait(park, CallRules::default(), false, &legacy()).await;
        let clients: Vec<_> = (1..=3).map(|group_id| play.of_house(1_000_000 + group_id)).collect();
        for client in &clients {
            assert!(play.parks(client).is_some() && play.parks(client).is_some());
            assert!(play.parks(client).is_none(), "a quarter, and not less than that");
        }
        assert!(play.parks(&play.of_house(2_000_000)).is_none(), "of all");
        let fault = play.router.parked.full();
        assert_eq!(fault.kind, ErrorKind::QueueFull);
        let (cause, hint) = (fault.cause.unwrap(), fault.hint.unwrap());
        assert!(cause.contains("`held-calls`") && cause.contains("is 6,"), "{cause}");
        assert!(hint.contains("park { held-calls … }"), "{hint}");
        let mut kept = play.router.hold_bytes();
        assert!(kept.holds(100) && !kept.holds(101));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_question_for_which_there_is_no_room_is_refused_and_the_call_goes_on() {
    here(async {
        let play = Harness::begin().await;
        let clients: Vec<_> = (1..=4).map(|group_id| play.of_house(1_000_000 + group_id)).collect();
        for client in &clients {
            (0..250).for_each(|_| drop(play.parks(client)));
        }
        let client = play.called(1, &json!({}));
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.ask("a", "elicitation/create");
        assert_eq!(play.refused(), [json!(-32603)]);
        now().await;
        assert!(client.heard().is_empty());
        play.answer(ours);
        assert_eq!(client.heard()[0]["result"]["ok"], ours);
        assert_eq!(play.router.parked.len(), 1000);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn thirty_two_things_are_asked_in_one_call_until_some_are_answered() {
    here(async {
        let play = Harness::begin().await;
        let first = play.called(1, &json!({}));
        play.calls();
        for number in 0..32 {
            play.ask(&format!("q{number}"), "elicitation/create");
        }
        assert_eq!(play.refused(), [] as [Value; 0]);
        play.ask("more", "elicitation/create");
        assert_eq!(play.refused(), [json!(-32603)]);
        now().await;
        let (wanted, state) = first.wanted();
        assert_eq!(wanted.len(), 32);
        play.ask("more", "elicitation/create");
        assert_eq!(play.refused(), [json!(-32603)], "also while the client is away");

        let answer = json!({ "action": "accept" });
        let second = play.called(2, &answers(&state, &json!({ "q1": answer, "q2": answer })));
        assert_eq!(play.answered().len(), 2);
        for more in ["one", "two", "three"] {
            play.ask(more, "elicitation/create");
        }
        assert_eq!(play.refused(), [json!(-32603)], "two were answered");
        now().await;
        assert_eq!(second.wanted().0.len(), 32);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_clients_has_a_bound_over_all_and_gives_its_room_back() {
    here(async {
        let play = Harness::begin().await;
        let client = play.of_house(1_000_000);
        let (one, other) = (play.parks(&client).unwrap(), play.parks(&client).unwrap());
        let answer = |bytes: usize| Came::Answer(vec![b' '; bytes].into());
        let fate = |hold: &PendingInput| match hold.take_up(None).1 {
            Next::Deliver(Came::Answer(line)) => Ok(line.len()),
            Next::Deliver(Came::Fault(fault)) => Err(fault.kind),
            Next::GoOn | Next::AskMore => panic!("it was answered"),
        };
        let (half, whole) = (32 << 20, 64 << 20);
        let long = format!(r#"{{"message":"{}"}}"#, "x".repeat(half));
        assert!(one.ask("\"a\"", "elicitation/create", Some(&long)));
        assert!(!one.ask("\"b\"", "elicitation/create", Some(&long)), "questions count");
        assert!(!other.ask("\"c\"", "elicitation/create", Some(&long)), "of all calls");
        other.came(answer(half));
        assert_eq!(fate(&other), Err(ErrorKind::OutcomeUnknown), "and answers");
        one.unask("\"a\"");
        other.came(answer(whole));
        assert!(!one.ask("\"d\"", "elicitation/create", Some(&long)));
        assert_eq!(fate(&other), Ok(whole), "what is taken back does not");
        assert!(one.ask("\"d\"", "elicitation/create", Some(&long)), "nor what is delivered");
        other.came(answer(whole));
        assert_eq!(fate(&other), Err(ErrorKind::OutcomeUnknown));
        one.end();
        other.came(answer(whole));
        assert_eq!(fate(&other), Ok(whole), "nor what is over");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_used_states_are_told_from_those_that_are_gone() {
    here(async {
        let play = Harness::begin().await;
        let parked = &play.router.parked;
        let numbers: Vec<u64> = (0..10_001)
            .map(|_| {
                let number = parked.allow_again(1).unwrap();
                assert!(matches!(parked.take(number), Ok(Kept::Again(1))));
                number
            })
            .collect();
        let again = |number: u64| parked.take(number).map(drop).unwrap_err().kind;
        assert_eq!(again(numbers[0]), ErrorKind::OutcomeUnknown, "it is not known any more");
        let used = again(numbers[1]);
        assert!(used != ErrorKind::OutcomeUnknown && again(numbers[10_000]) == used);
        assert_eq!(parked.len(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_comes_back_in_time_is_answered_and_who_does_not_is_told_why_not() {
    here(async {
        let play = Harness::begin().await;
        let in_time = play.called_by(1, 1, "in time", &json!({}));
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.ask("a", "elicitation/create");
        now().await;
        let (_, state) = in_time.wanted();
        later(599 * SECOND).await;
        let answer = answers(&state, &json!({ "q1": { "action": "accept" } }));
        let back = play.called_by(1, 2, "in time", &answer);
        assert_eq!(play.answered().len(), 1);
        assert!(back.heard().is_empty(), "the server works on it");
        play.answer(ours);
        assert_eq!(back.heard().len(), 1);

        let late = play.called_by(1, 3, "late", &json!({}));
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.ask("b", "elicitation/create");
        now().await;
        let (_, state) = late.wanted();
        late.client_session.close();
        later(HELD_FOR).await;
        assert_eq!(play.router.parked.len(), 0);
        let sent = play.sent();
        assert_eq!((&sent[0]["id"], &sent[0]["error"]["code"]), (&json!("b"), &json!(-32603)));
        assert_eq!(sent[1]["params"]["requestId"], ours, "{sent:?}");
        let answer = answers(&state, &json!({ "q1": { "action": "accept" } }));
        let back = play.called_by(1, 4, "late", &answer);
        let words = back.error();
        assert!(words.contains("10 minutes, which are over"), "{words}");
        assert!(play.sent().is_empty(), "it is not sent on as a new call");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_result_that_nobody_comes_back_for_is_forgotten() {
    here(async {
        let play = Harness::begin().await;
        let first = play.called(1, &json!({}));
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.ask("a", "elicitation/create");
        now().await;
        let (_, state) = first.wanted();
        play.answer(ours);
        later(599 * SECOND).await;
        assert_eq!(play.router.parked.len(), 1, "it is held");
        later(2 * SECOND).await;
        assert_eq!(play.router.parked.len(), 0);
        assert!(play.sent().iter().all(|it| it["method"] != "notifications/cancelled"));
        let back = play.called(2, &answers(&state, &json!({ "q1": {} })));
        assert!(back.error().contains("10 minutes, which are over"));
        assert!(play.calls().is_empty(), "it is not done again");
    })
    .await;
}
