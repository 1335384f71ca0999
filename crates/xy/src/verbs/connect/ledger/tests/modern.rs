//! Tests with clients of the revision without a handshake, and with clients of both revisions.

use super::*;

/// Returns the notification for a list that the client listens to.
fn list_changed(list: &str, id: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/{list}/list_changed","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}}}}}"#
    ) + "\n"
}

/// Returns a ledger with one acknowledged listen.
fn listening(id: &str, filter: &str) -> Ledger {
    let mut ledger = Ledger::default();
    assert_eq!(client(&mut ledger, &listen(id, filter)), LineAction::Forward);
    assert_eq!(daemon(&mut ledger, &acknowledged(id, filter)), LineAction::Forward);
    ledger
}

#[test]
fn client_without_handshake_gets_no_replay() {
    let mut ledger = Ledger::default();
    client(&mut ledger, &request("1", "server/discover"));
    daemon(&mut ledger, &result("1"));
    client(&mut ledger, &request("2", "tools/list"));
    client(&mut ledger, &request("3", "tools/call"));
    client(&mut ledger, CLIENT_INITIALIZED); // Means nothing by itself.
    assert_eq!(ids(&text(ledger.on_connection_lost("x"))), ["3"]);
    assert_eq!(ledger.handshake_request(), None);
    let (to_daemon, to_client) = ledger.replay();
    assert_eq!(
        (text(to_daemon), text(to_client)),
        (request("2", "tools/list") + "\n", String::new())
    );
}

#[test]
fn probe_of_one_era_and_handshake_of_the_other_combine() {
    let mut ledger = Ledger::default();
    client(&mut ledger, &request("1", "server/discover"));
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"what?"}}"#;
    assert_eq!(daemon(&mut ledger, error), LineAction::Forward);
    client(&mut ledger, INITIALIZE);
    daemon(&mut ledger, INITIALIZE_ANSWER);
    client(&mut ledger, CLIENT_INITIALIZED);
    client(&mut ledger, &listen("7", TOOLS_AND_PROMPTS));
    daemon(&mut ledger, &acknowledged("7", TOOLS_AND_PROMPTS));
    assert_eq!(text(ledger.on_connection_lost("x")), "");
    assert!(ledger.handshake_request().is_some());
    let (to_daemon, to_client) = ledger.replay();
    assert_eq!(
        text(to_daemon),
        format!("{CLIENT_INITIALIZED}\n{}\n", listen("7", TOOLS_AND_PROMPTS))
    );
    assert_eq!(text(to_client), LISTS_CHANGED);
}

#[test]
fn continued_request_is_not_sent_again() {
    for method in ["tools/call", "prompts/get", "resources/read"] {
        for more in [r#""requestState":"s""#, r#""inputResponses":{"a":{"action":"decline"}}"#] {
            let mut ledger = Ledger::default();
            let line =
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{more}}}}}"#);
            client(&mut ledger, &line);
            assert_eq!(ids(&text(ledger.on_connection_lost("x"))), ["1"], "{line}");
            assert_eq!(replayed(&mut ledger), "");
        }
    }
    let mut ledger = Ledger::default();
    let first = r#"{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"requestState","requestState":null}}"#;
    client(&mut ledger, first);
    assert_eq!(text(ledger.on_connection_lost("x")), "");
}

#[test]
fn bridge_lists_the_tools_in_the_calls_revision() {
    let mut ledger = Ledger::default();
    let era = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}"#;
    let meta = format!(r#"{{"progressToken":1,{era},"x":2}}"#);
    let params = format!(r#"{{"name":"read","_meta":{meta}}}"#);
    let call = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
    assert_eq!(client(&mut ledger, &call), LineAction::Forward);
    assert_eq!(text(ledger.on_connection_lost("x")), "");
    assert_eq!(ledger.handshake_request(), None);
    let list = format!(
        r#"{{"jsonrpc":"2.0","id":"xy-connect-1","method":"tools/list","params":{{"_meta":{{{era}}}}}}}"#
    );
    assert_eq!(text(ledger.list_request().unwrap()), format!("{list}\n"));
    assert_eq!(daemon(&mut ledger, &tools("\"xy-connect-1\"")), LineAction::Resumed(Ok(())));
    assert_eq!(replayed(&mut ledger), format!("{call}\n"));
}

#[test]
fn resumed_listen_reports_missed_changes() {
    let mut ledger = listening("\"l\"", TOOLS_AND_PROMPTS);
    for _ in 0..3 {
        assert_eq!(text(ledger.on_connection_lost("x")), "");
        assert_eq!(ledger.handshake_request(), None);
        let (to_daemon, to_client) = ledger.replay();
        assert_eq!(text(to_daemon), listen("\"l\"", TOOLS_AND_PROMPTS) + "\n");
        assert_eq!(text(to_client), "");
        // An equivalent filter.
        let again = r#"{"promptsListChanged":true, "toolsListChanged":true,"resourcesListChanged":false,"resourceSubscriptions":[]}"#;
        let to_client = list_changed("tools", "\"l\"") + &list_changed("prompts", "\"l\"");
        let action = daemon(&mut ledger, &acknowledged("\"l\"", again));
        assert_eq!(action, LineAction::Replace(to_client.into_bytes()));
        let change = list_changed("tools", "\"l\"");
        assert_eq!(daemon(&mut ledger, change.trim_end()), LineAction::Forward);
    }
}

#[test]
fn unacknowledged_listen_misses_nothing() {
    let mut ledger = Ledger::default();
    client(&mut ledger, &listen("1", TOOLS_AND_PROMPTS));
    assert_eq!(text(ledger.on_connection_lost("x")), "");
    assert_eq!(ids(&replayed(&mut ledger)), ["1"]);
    let granted = acknowledged("1", TOOLS_AND_PROMPTS);
    assert_eq!(daemon(&mut ledger, &granted), LineAction::Forward);
    // A daemon that dies before it acknowledges the resumed listen does not change the filter.
    ledger.on_connection_lost("x");
    ledger.on_connection_lost("x");
    assert_eq!(ids(&replayed(&mut ledger)), ["1"]);
    let to_client = list_changed("tools", "1") + &list_changed("prompts", "1");
    assert_eq!(daemon(&mut ledger, &granted), LineAction::Replace(to_client.into_bytes()));
    assert_eq!(daemon(&mut ledger, &granted), LineAction::Forward, "its own affair");
}

#[test]
fn changed_filter_is_forwarded() {
    let mut ledger = listening("1", r#"{"toolsListChanged":true,"resourceSubscriptions":["a:b"]}"#);
    ledger.on_connection_lost("x");
    let less = acknowledged("1", r#"{"toolsListChanged":true}"#);
    let to_client = format!("{less}\n") + &list_changed("tools", "1");
    assert_eq!(daemon(&mut ledger, &less), LineAction::Replace(to_client.into_bytes()));
    ledger.on_connection_lost("x");
    let none = acknowledged("1", "{}");
    let to_client = format!("{none}\n") + &list_changed("tools", "1");
    assert_eq!(daemon(&mut ledger, &none), LineAction::Replace(to_client.into_bytes()));
    ledger.on_connection_lost("x");
    assert_eq!(daemon(&mut ledger, &none), LineAction::Drop, "it is the same, and nothing missed");
    // There is no notification that a resource may have changed.
    ledger.on_connection_lost("x");
    let more = acknowledged("1", r#"{"resourceSubscriptions":["a:b","a:c"]}"#);
    assert_eq!(daemon(&mut ledger, &more), LineAction::Forward);
    ledger.on_connection_lost("x");
    let other_order = acknowledged("1", r#"{"resourceSubscriptions":["a:c","a:b"]}"#);
    assert_eq!(daemon(&mut ledger, &other_order), LineAction::Drop);
}

#[test]
fn each_listen_keeps_its_filter() {
    let mut ledger = listening("1", r#"{"toolsListChanged":true}"#);
    let resources = r#"{"resourcesListChanged":true}"#;
    client(&mut ledger, &listen("\"1\"", resources));
    daemon(&mut ledger, &acknowledged("\"1\"", resources));
    ledger.on_connection_lost("x");
    assert_eq!(ids(&replayed(&mut ledger)), ["1", "\"1\""]);
    let action = daemon(&mut ledger, &acknowledged("\"1\"", resources));
    assert_eq!(action, LineAction::Replace(list_changed("resources", "\"1\"").into_bytes()));
    let action = daemon(&mut ledger, &acknowledged("1", r#"{"toolsListChanged":true}"#));
    assert_eq!(action, LineAction::Replace(list_changed("tools", "1").into_bytes()));
}

#[test]
fn either_side_can_end_a_listen() {
    let ends: [fn(&mut Ledger) -> LineAction; 4] = [
        |ledger| client(ledger, &cancel("1")),
        |ledger| daemon(ledger, &cancel("1")),
        |ledger| daemon(ledger, &result("1")),
        |ledger| daemon(ledger, r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}"#),
    ];
    for end in ends {
        let mut ledger = listening("1", TOOLS_AND_PROMPTS);
        assert_eq!(end(&mut ledger), LineAction::Forward);
        assert_eq!(text(ledger.on_connection_lost("x")), "");
        assert_eq!(replayed(&mut ledger), "");
        // A later acknowledgement has no effect.
        let stray = acknowledged("1", TOOLS_AND_PROMPTS);
        assert_eq!(daemon(&mut ledger, &stray), LineAction::Forward);
        assert_eq!(text(ledger.cancel_listens()), "");
    }
    // A daemon that cancels its own request does not end a listen with the same id.
    let mut ledger = listening("1", TOOLS_AND_PROMPTS);
    daemon(&mut ledger, &request("1", "roots/list"));
    daemon(&mut ledger, &cancel("1"));
    assert_eq!(ids(&replayed(&mut ledger)), ["1"]);
    // A cancellation by the daemon does not end other requests.
    client(&mut ledger, &request("2", "tools/list"));
    daemon(&mut ledger, &cancel("2"));
    assert_eq!(ids(&replayed(&mut ledger)), ["1", "2"]);
}

#[test]
fn leaving_client_cancels_its_listens() {
    let mut ledger = listening("1", TOOLS_AND_PROMPTS);
    client(&mut ledger, &listen("\"two\"", "{}"));
    client(&mut ledger, &request("3", "tools/call"));
    let to_daemon = text(ledger.cancel_listens());
    let to_daemon: Vec<serde_json::Value> =
        to_daemon.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ended: Vec<&serde_json::Value> =
        to_daemon.iter().map(|it| &it["params"]["requestId"]).collect();
    assert_eq!(ended, [&serde_json::json!(1), &serde_json::json!("two")]);
    assert!(to_daemon.iter().all(|it| it["method"] == "notifications/cancelled"));
    assert_eq!(text(ledger.cancel_listens()), "");
    assert_eq!(ids(&text(ledger.on_connection_lost("x"))), ["3"], "the rest is still waited for");
}

#[test]
fn giving_up_ends_all_listens() {
    let mut ledger = listening("1", TOOLS_AND_PROMPTS);
    client(&mut ledger, &request("2", "tools/list"));
    assert_eq!(text(ledger.on_connection_lost("x")), "");
    let why = CallError::new(ErrorKind::NotRunning, "nobody is there");
    let to_client = text(ledger.fail_all(&why));
    assert_eq!(ids(&to_client), ["1", "2"]);
    assert!(to_client.lines().all(|line| line.contains("nobody is there")), "{to_client}");
}

#[test]
fn kept_listens_are_bounded() {
    let mut ledger = Ledger::default();
    let large = format!(r#"{{"resourceSubscriptions":["{}"]}}"#, "x".repeat(100_000));
    client(&mut ledger, &listen("\"large\"", &large));
    for no in 0..110 {
        client(&mut ledger, &listen(&no.to_string(), TOOLS_AND_PROMPTS));
        daemon(&mut ledger, &acknowledged(&no.to_string(), TOOLS_AND_PROMPTS));
    }
    let to_client = text(ledger.on_connection_lost("x"));
    assert_eq!(to_client.lines().count(), 11, "{to_client}");
    assert!(
        to_client.starts_with(r#"{"jsonrpc":"2.0","id":"large","error":{"code":-32005,"#),
        "{to_client}"
    );
    assert!(to_client.lines().all(|line| line.contains("listen again")), "{to_client}");
    assert_eq!(replayed(&mut ledger).lines().count(), 100);
    // An ended listen makes room for another.
    client(&mut ledger, &cancel("0"));
    client(&mut ledger, &listen("\"new\"", TOOLS_AND_PROMPTS));
    assert_eq!(text(ledger.on_connection_lost("x")), "");
    // The size of an acknowledged filter does not matter.
    let huge = acknowledged("\"new\"", &large);
    assert_eq!(daemon(&mut ledger, &huge), LineAction::Forward);
}

#[test]
fn invalid_acknowledgements_are_forwarded() {
    let mut ledger = listening("1", TOOLS_AND_PROMPTS);
    ledger.on_connection_lost("x");
    let method = "notifications/subscriptions/acknowledged";
    for params in [
        "[]",
        "{}",
        r#"{"_meta":1}"#,
        r#"{"_meta":{}}"#,
        r#"{"_meta":{"io.modelcontextprotocol/subscriptionId":{}}}"#,
        r#"{"_meta":{"io.modelcontextprotocol/subscriptionId":2},"notifications":{}}"#,
    ] {
        let line = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
        assert_eq!(daemon(&mut ledger, &line), LineAction::Forward, "{params}");
    }
    let bare = format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#);
    assert_eq!(daemon(&mut ledger, &bare), LineAction::Forward);
    let odd = acknowledged("1", r#"["toolsListChanged"]"#);
    let to_client =
        format!("{odd}\n") + &list_changed("tools", "1") + &list_changed("prompts", "1");
    assert_eq!(daemon(&mut ledger, &odd), LineAction::Replace(to_client.into_bytes()));
    for filter in ["null", "[]", "7"] {
        client(&mut ledger, &listen("2", filter));
    }
    assert_eq!(ids(&replayed(&mut ledger)), ["1", "2"]);
}
