//! Calls that wait for input of modern clients: how many, how large, and for how long.

use xy_mcp::modern::RequestMeta;
use xy_protocol::error::ErrorKind;
use xy_transport::share::{ANONYMOUS, TokenUse};

use super::*;
use crate::bridge::pending_input::{
    CallResult, INPUT_TIMEOUT, NewPendingInput, PendingEntry, PendingInput, ReplyTo, ResumeAction,
};
use crate::router::RoutedClient;

/// The name of the limit `park { held-bytes }`.
const BYTES: &str = "bytes of calls that wait for input of their clients";

/// Clients without a token, which have no share.
const NO_TOKEN: TokenUse = TokenUse { id: ANONYMOUS };

impl Harness {
    /// Opens a client that belongs to this client group, without a token.
    fn client_in_group(&self, group_id: u64) -> Rc<dyn RoutedClient> {
        self.client_with_token(ANONYMOUS, group_id)
    }

    /// Opens a client with this token that belongs to this client group.
    fn client_with_token(&self, principal: u64, group_id: u64) -> Rc<dyn RoutedClient> {
        let view = View::Profile("default".to_owned());
        let entry =
            Entry { view, may_manage: false, lifetime: Lifetime::Request, principal, bound: None };
        self.router.open(entry, Rc::new(RecordedMessages::default())).unwrap();
        let client = self.router.clients().into_iter().max_by_key(|it| it.number()).unwrap();
        client.set_group_id(group_id);
        client
    }

    /// Detaches a call of this client. No input is requested yet.
    fn detach(&self, client: &Rc<dyn RoutedClient>) -> Option<Rc<PendingInput>> {
        let reply_to = ReplyTo { client: client.clone(), id: "1".into(), stream: 0 };
        let request_meta = RequestMeta { capabilities: "{}".into(), info: None, level: None };
        self.router.pending_inputs.insert(NewPendingInput {
            reply_to,
            request_meta: Rc::new(request_meta),
            method: "tools/call".into(),
            binding: crate::bridge::binding(client.entry(), "tools/call", None),
            connection: Rc::downgrade(&self.upstream),
            alias: self.server.alias.clone(),
            upstream_id: 1,
            info: None,
            missing: None,
        })
    }

    /// Returns the codes of the errors sent to the server since the last call.
    fn refused(&self) -> Vec<Value> {
        self.sent()
            .iter()
            .map(|it| it["error"]["code"].clone())
            .filter(|it| !it.is_null())
            .collect()
    }
}

#[tokio::test(start_paused = true)]
async fn pending_inputs_are_limited_in_total_and_per_group() {
    run_local(async {
        let harness = Harness::begin().await;
        let clients: Vec<_> =
            (1..=5).map(|group_id| harness.client_in_group(1_000_000 + group_id)).collect();
        let holds: Vec<_> = (0..250).map(|_| harness.detach(&clients[0]).unwrap()).collect();
        assert!(harness.detach(&clients[0]).is_none(), "limit of one group");
        let limit = ("calls that wait for input of their clients", Some(1));
        assert_eq!(shares::limits_hit(&harness.router), [limit]);
        assert!(
            harness.router.pending_inputs.allow_again(clients[0].group_id(), NO_TOKEN).is_none(),
            "limit of one group, for retries too"
        );
        for client in &clients[1..4] {
            // Calls that are to be made again count as well.
            for _ in 0..125 {
                assert!(harness.detach(client).is_some());
                assert!(
                    harness
                        .router
                        .pending_inputs
                        .allow_again(client.group_id(), NO_TOKEN)
                        .is_some()
                );
            }
        }
        assert_eq!(harness.router.pending_inputs.len(), 1000);
        assert!(harness.detach(&clients[4]).is_none(), "of all");
        assert!(
            harness.router.pending_inputs.allow_again(clients[4].group_id(), NO_TOKEN).is_none()
        );
        harness.router.pending_inputs.forget(holds[0].number);
        assert!(harness.detach(&clients[4]).is_some() && harness.detach(&clients[4]).is_none());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_token_leaves_pending_input_for_others() {
    run_local(async {
        let park = ParkSettings { held_calls: 8, ..ParkSettings::default() };
        let harness = Harness::with_queue(park, CallRules::default(), false, &legacy()).await;
        let greedy = |group_id: u64| harness.client_with_token(70, 1_000_000 + group_id);
        for group_id in 0..3 {
            let client = greedy(group_id);
            assert!(harness.detach(&client).is_some() && harness.detach(&client).is_some());
        }
        assert!(harness.detach(&greedy(3)).is_none(), "6 of 8");
        let limit = ("calls that wait for input of their clients", Some(70));
        assert_eq!(shares::limits_hit(&harness.router), [limit]);
        for token in [71, 0] {
            assert!(harness.detach(&harness.client_with_token(token, 2_000_000)).is_some());
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_token_leaves_bytes_of_pending_input_for_others() {
    run_local(async {
        let park = ParkSettings { held_bytes: 100, ..ParkSettings::default() };
        let harness = Harness::with_queue(park, CallRules::default(), false, &legacy()).await;
        let [greedy, more, other] = [(70, 1), (70, 2), (71, 3)].map(|(token, group_id)| {
            harness.detach(&harness.client_with_token(token, 1_000_000 + group_id)).unwrap()
        });
        let params = |bytes: usize| format!(r#"{{"a":"{}"}}"#, "x".repeat(bytes - 8));
        let ask = |it: &PendingInput, bytes| it.ask("1", "roots/list", Some(&params(bytes)));
        assert!(ask(&greedy, 60) && ask(&more, 15));
        assert!(!ask(&more, 10), "75 of 100");
        assert_eq!(shares::limits_hit(&harness.router), [(BYTES, Some(70))]);
        assert!(ask(&other, 15));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn limits_for_pending_input_come_from_the_config() {
    run_local(async {
        let park = ParkSettings { held_calls: 6, held_bytes: 100, ..ParkSettings::default() };
        let harness = Harness::with_queue(park, CallRules::default(), false, &legacy()).await;
        let clients: Vec<_> =
            (1..=3).map(|group_id| harness.client_in_group(1_000_000 + group_id)).collect();
        for client in &clients {
            assert!(harness.detach(client).is_some() && harness.detach(client).is_some());
            assert!(harness.detach(client).is_none(), "a quarter, and not less than that");
        }
        assert!(harness.detach(&harness.client_in_group(2_000_000)).is_none(), "of all");
        let fault = harness.router.pending_inputs.full_error();
        assert_eq!(fault.kind, ErrorKind::QueueFull);
        let (cause, hint) = (fault.cause.unwrap(), fault.hint.unwrap());
        assert!(cause.contains("held-calls") && cause.contains("is 6 "), "{cause}");
        assert!(hint.contains("park { held-calls }"), "{hint}");
        let mut kept = harness.router.stored_requests.reserve(NO_TOKEN);
        assert!(kept.resize(100) && !kept.resize(101));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn excess_server_request_is_refused_and_call_continues() {
    run_local(async {
        let harness = Harness::begin().await;
        let clients: Vec<_> =
            (1..=4).map(|group_id| harness.client_in_group(1_000_000 + group_id)).collect();
        for client in &clients {
            (0..250).for_each(|_| drop(harness.detach(client)));
        }
        let client = harness.modern_call(1, &json!({}));
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.ask("a", "elicitation/create");
        assert_eq!(harness.refused(), [json!(-32603)]);
        settle().await;
        assert!(client.received().is_empty());
        harness.answer(upstream_id);
        assert_eq!(client.received()[0]["result"]["ok"], upstream_id);
        assert_eq!(harness.router.pending_inputs.len(), 1000);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_call_has_at_most_32_open_server_requests() {
    run_local(async {
        let harness = Harness::begin().await;
        let first = harness.modern_call(1, &json!({}));
        harness.calls();
        for number in 0..32 {
            harness.ask(&format!("q{number}"), "elicitation/create");
        }
        assert_eq!(harness.refused(), [] as [Value; 0]);
        harness.ask("more", "elicitation/create");
        assert_eq!(harness.refused(), [json!(-32603)]);
        let limit = ("open server requests of one call", Some(1));
        assert_eq!(shares::limits_hit(&harness.router), [limit]);
        settle().await;
        let (inputs, state) = first.input_required();
        assert_eq!(inputs.len(), 32);
        harness.ask("more", "elicitation/create");
        assert_eq!(harness.refused(), [json!(-32603)], "also while the client is away");

        let answer = json!({ "action": "accept" });
        let second =
            harness.modern_call(2, &answers(&state, &json!({ "q1": answer, "q2": answer })));
        assert_eq!(harness.client_answers().len(), 2);
        for more in ["one", "two", "three"] {
            harness.ask(more, "elicitation/create");
        }
        assert_eq!(harness.refused(), [json!(-32603)], "two were answered");
        settle().await;
        assert_eq!(second.input_required().0.len(), 32);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn bytes_of_pending_input_are_limited_and_freed() {
    run_local(async {
        let harness = Harness::begin().await;
        let client = harness.client_in_group(1_000_000);
        let (one, other) = (harness.detach(&client).unwrap(), harness.detach(&client).unwrap());
        let answer = |bytes: usize| CallResult::Response(vec![b' '; bytes].into());
        let outcome = |hold: &PendingInput| match hold.resume(None).1 {
            ResumeAction::Deliver(CallResult::Response(line)) => Ok(line.len()),
            ResumeAction::Deliver(CallResult::Fault(fault)) => Err(fault.kind),
            ResumeAction::Continue | ResumeAction::AskMore => panic!("it was answered"),
        };
        let (half, whole) = (32 << 20, 64 << 20);
        let long = format!(r#"{{"message":"{}"}}"#, "x".repeat(half));
        assert!(one.ask("\"a\"", "elicitation/create", Some(&long)));
        assert!(!one.ask("\"b\"", "elicitation/create", Some(&long)), "questions count");
        assert!(!other.ask("\"c\"", "elicitation/create", Some(&long)), "of all calls");
        assert_eq!(shares::limits_hit(&harness.router), [(BYTES, Some(1))]);
        other.set_result(answer(half));
        assert_eq!(outcome(&other), Err(ErrorKind::OutcomeUnknown), "and answers");
        one.cancel_question("\"a\"");
        other.set_result(answer(whole));
        assert!(!one.ask("\"d\"", "elicitation/create", Some(&long)));
        assert_eq!(outcome(&other), Ok(whole), "withdrawn questions are freed");
        assert!(one.ask("\"d\"", "elicitation/create", Some(&long)), "delivered answers are freed");
        other.set_result(answer(whole));
        assert_eq!(outcome(&other), Err(ErrorKind::OutcomeUnknown));
        one.end();
        other.set_result(answer(whole));
        assert_eq!(outcome(&other), Ok(whole), "ended calls are freed");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn copies_of_requests_to_modern_servers_are_limited() {
    run_local(async {
        let park = ParkSettings { held_bytes: 10, ..ParkSettings::default() };
        let introduction = Introduction::discovered(MODERN).unwrap();
        let harness = Harness::with_queue(park, CallRules::default(), false, &introduction).await;
        let client = harness.client(&json!({}));
        client.call("a");
        assert!(client.error().starts_with("too many requests are open at servers"));
        assert_eq!(shares::limits_hit(&harness.router), [(BYTES, Some(0))]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_used_states_are_remembered() {
    run_local(async {
        let harness = Harness::begin().await;
        let pending_inputs = &harness.router.pending_inputs;
        let numbers: Vec<u64> = (0..10_001)
            .map(|_| {
                let number = pending_inputs.allow_again(1, NO_TOKEN).unwrap();
                assert!(matches!(
                    pending_inputs.take(number),
                    Ok(PendingEntry::Again { group_id: 1, .. })
                ));
                number
            })
            .collect();
        let again = |number: u64| pending_inputs.take(number).map(drop).unwrap_err().kind;
        assert_eq!(again(numbers[0]), ErrorKind::OutcomeUnknown, "it is no longer known");
        let used = again(numbers[1]);
        assert!(used != ErrorKind::OutcomeUnknown && again(numbers[10_000]) == used);
        assert_eq!(pending_inputs.len(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn late_client_learns_why_its_call_ended() {
    run_local(async {
        let harness = Harness::begin().await;
        let in_time = harness.modern_call_by(1, 1, "in time", &json!({}));
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.ask("a", "elicitation/create");
        settle().await;
        let (_, state) = in_time.input_required();
        advance_time(599 * SECOND).await;
        let answer = answers(&state, &json!({ "q1": { "action": "accept" } }));
        let back = harness.modern_call_by(1, 2, "in time", &answer);
        assert_eq!(harness.client_answers().len(), 1);
        assert!(back.received().is_empty(), "the server works on it");
        harness.answer(upstream_id);
        assert_eq!(back.received().len(), 1);

        let late = harness.modern_call_by(1, 3, "late", &json!({}));
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.ask("b", "elicitation/create");
        settle().await;
        let (_, state) = late.input_required();
        late.client_session.close();
        advance_time(INPUT_TIMEOUT).await;
        assert_eq!(harness.router.pending_inputs.len(), 0);
        let sent = harness.sent();
        assert_eq!((&sent[0]["id"], &sent[0]["error"]["code"]), (&json!("b"), &json!(-32603)));
        assert_eq!(sent[1]["params"]["requestId"], upstream_id, "{sent:?}");
        let answer = answers(&state, &json!({ "q1": { "action": "accept" } }));
        let back = harness.modern_call_by(1, 4, "late", &answer);
        let words = back.error();
        assert!(words.contains("expired after 10 minutes"), "{words}");
        assert!(harness.sent().is_empty(), "it is not sent as a new call");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn unclaimed_result_is_forgotten() {
    run_local(async {
        let harness = Harness::begin().await;
        let first = harness.modern_call(1, &json!({}));
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.ask("a", "elicitation/create");
        settle().await;
        let (_, state) = first.input_required();
        harness.answer(upstream_id);
        advance_time(599 * SECOND).await;
        assert_eq!(harness.router.pending_inputs.len(), 1, "it is held");
        advance_time(2 * SECOND).await;
        assert_eq!(harness.router.pending_inputs.len(), 0);
        assert!(harness.sent().iter().all(|it| it["method"] != "notifications/cancelled"));
        let back = harness.modern_call(2, &answers(&state, &json!({ "q1": {} })));
        assert!(back.error().contains("expired after 10 minutes"));
        assert!(harness.calls().is_empty(), "it does not run again");
    })
    .await;
}
