//! Plays with clients of the revision without a handshake, and with those that mix.

use super::*;

/// What the client hears of a list that it listens to.
fn list_changed(list: &str, id: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/{list}/list_changed","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}}}}}"#
    ) + "\n"
}

/// A client that listens to this, which its daemon has granted.
fn listening(id: &str, filter: &str) -> Ledger {
    let mut ledger = Ledger::default();
    assert_eq!(client(&mut ledger, &listen(id, filter)), Verdict::Pass);
    assert_eq!(daemon(&mut ledger, &acknowledged(id, filter)), Verdict::Pass);
    ledger
}

#[test]
fn without_a_handshake_nothing_is_repeated_and_nothing_is_told() {
    let mut ledger = Ledger::default();
    client(&mut ledger, &request("1", "server/discover"));
    daemon(&mut ledger, &result("1"));
    client(&mut ledger, &request("2", "tools/list"));
    client(&mut ledger, &request("3", "tools/call"));
    client(&mut ledger, CLIENT_INITIALIZED); // Means nothing by itself.
    assert_eq!(ids(&text(ledger.lost("x"))), ["3"]);
    assert_eq!(ledger.greeting(), None);
    assert_eq!(text(ledger.replay()), request("2", "tools/list") + "\n");
    assert_eq!(ledger.news_of_a_new_daemon(), "");
}

#[test]
fn a_probe_in_one_era_and_the_handshake_of_the_other_go_together() {
    let mut ledger = Ledger::default();
    client(&mut ledger, &request("1", "server/discover"));
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"what?"}}"#;
    assert_eq!(daemon(&mut ledger, error), Verdict::Pass);
    client(&mut ledger, INITIALIZE);
    daemon(&mut ledger, INITIALIZE_ANSWER);
    client(&mut ledger, CLIENT_INITIALIZED);
    client(&mut ledger, &listen("7", TOOLS_AND_PROMPTS));
    daemon(&mut ledger, &acknowledged("7", TOOLS_AND_PROMPTS));
    assert_eq!(text(ledger.lost("x")), "");
    assert!(ledger.greeting().is_some());
    let said = text(ledger.replay());
    assert_eq!(said, format!("{CLIENT_INITIALIZED}\n{}\n", listen("7", TOOLS_AND_PROMPTS)));
    assert_eq!(ledger.news_of_a_new_daemon(), LISTS_CHANGED);
}

#[test]
fn a_request_that_goes_on_with_another_is_not_sent_twice() {
    for method in ["tools/call", "prompts/get", "resources/read"] {
        for more in [r#""requestState":"s""#, r#""inputResponses":{"a":{"action":"decline"}}"#] {
            let mut ledger = Ledger::default();
            let line =
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{more}}}}}"#);
            client(&mut ledger, &line);
            assert_eq!(ids(&text(ledger.lost("x"))), ["1"], "{line}");
            assert_eq!(text(ledger.replay()), "");
        }
    }
    let mut ledger = Ledger::default();
    let first = r#"{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"requestState","requestState":null}}"#;
    client(&mut ledger, first);
    assert_eq!(text(ledger.lost("x")), "");
}

#[test]
fn a_listen_goes_on_with_the_next_daemon_and_hears_what_it_may_have_missed() {
    let mut ledger = listening("\"l\"", TOOLS_AND_PROMPTS);
    for _ in 0..3 {
        assert_eq!(text(ledger.lost("x")), "");
        assert_eq!(ledger.greeting(), None);
        assert_eq!(text(ledger.replay()), listen("\"l\"", TOOLS_AND_PROMPTS) + "\n");
        assert_eq!(ledger.news_of_a_new_daemon(), "");
        // In other words the same.
        let again = r#"{"promptsListChanged":true, "toolsListChanged":true,"resourcesListChanged":false,"resourceSubscriptions":[]}"#;
        let told = list_changed("tools", "\"l\"") + &list_changed("prompts", "\"l\"");
        let verdict = daemon(&mut ledger, &acknowledged("\"l\"", again));
        assert_eq!(verdict, Verdict::Replace(told.into_bytes()));
        let change = list_changed("tools", "\"l\"");
        assert_eq!(daemon(&mut ledger, change.trim_end()), Verdict::Pass);
    }
}

#[test]
fn a_daemon_that_died_before_it_granted_a_listen_has_promised_nothing() {
    let mut ledger = Ledger::default();
    client(&mut ledger, &listen("1", TOOLS_AND_PROMPTS));
    assert_eq!(text(ledger.lost("x")), "");
    assert_eq!(ids(&text(ledger.replay())), ["1"]);
    let granted = acknowledged("1", TOOLS_AND_PROMPTS);
    assert_eq!(daemon(&mut ledger, &granted), Verdict::Pass);
    // And one that died before it granted it again does not change what was promised.
    ledger.lost("x");
    ledger.lost("x");
    assert_eq!(ids(&text(ledger.replay())), ["1"]);
    let told = list_changed("tools", "1") + &list_changed("prompts", "1");
    assert_eq!(daemon(&mut ledger, &granted), Verdict::Replace(told.into_bytes()));
    assert_eq!(daemon(&mut ledger, &granted), Verdict::Pass, "its own affair");
}

#[test]
fn a_daemon_that_grants_something_else_is_heard() {
    let mut ledger = listening("1", r#"{"toolsListChanged":true,"resourceSubscriptions":["a:b"]}"#);
    ledger.lost("x");
    let less = acknowledged("1", r#"{"toolsListChanged":true}"#);
    let told = format!("{less}\n") + &list_changed("tools", "1");
    assert_eq!(daemon(&mut ledger, &less), Verdict::Replace(told.into_bytes()));
    ledger.lost("x");
    let none = acknowledged("1", "{}");
    let told = format!("{none}\n") + &list_changed("tools", "1");
    assert_eq!(daemon(&mut ledger, &none), Verdict::Replace(told.into_bytes()));
    ledger.lost("x");
    assert_eq!(daemon(&mut ledger, &none), Verdict::Swallow, "it is the same, and nothing missed");
    // Resources have no notice that says no more than that they may have changed.
    ledger.lost("x");
    let more = acknowledged("1", r#"{"resourceSubscriptions":["a:b","a:c"]}"#);
    assert_eq!(daemon(&mut ledger, &more), Verdict::Pass);
    ledger.lost("x");
    let other_order = acknowledged("1", r#"{"resourceSubscriptions":["a:c","a:b"]}"#);
    assert_eq!(daemon(&mut ledger, &other_order), Verdict::Swallow);
}

#[test]
fn each_listen_is_told_what_it_was_promised() {
    let mut ledger = listening("1", r#"{"toolsListChanged":true}"#);
    let resources = r#"{"resourcesListChanged":true}"#;
    client(&mut ledger, &listen("\"1\"", resources));
    daemon(&mut ledger, &acknowledged("\"1\"", resources));
    ledger.lost("x");
    assert_eq!(ids(&text(ledger.replay())), ["1", "\"1\""]);
    let verdict = daemon(&mut ledger, &acknowledged("\"1\"", resources));
    assert_eq!(verdict, Verdict::Replace(list_changed("resources", "\"1\"").into_bytes()));
    let verdict = daemon(&mut ledger, &acknowledged("1", r#"{"toolsListChanged":true}"#));
    assert_eq!(verdict, Verdict::Replace(list_changed("tools", "1").into_bytes()));
}

#[test]
fn a_listen_ends_when_either_side_says_so() {
    let ends: [fn(&mut Ledger) -> Verdict; 4] = [
        |ledger| client(ledger, &cancel("1")),
        |ledger| daemon(ledger, &cancel("1")),
        |ledger| daemon(ledger, &result("1")),
        |ledger| daemon(ledger, r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}"#),
    ];
    for end in ends {
        let mut ledger = listening("1", TOOLS_AND_PROMPTS);
        assert_eq!(end(&mut ledger), Verdict::Pass);
        assert_eq!(text(ledger.lost("x")), "");
        assert_eq!(text(ledger.replay()), "");
        // What the next one says of it is nothing to us.
        let stray = acknowledged("1", TOOLS_AND_PROMPTS);
        assert_eq!(daemon(&mut ledger, &stray), Verdict::Pass);
        assert_eq!(text(ledger.leave()), "");
    }
    // A daemon that cancels what it has asked itself means no listen of the same id.
    let mut ledger = listening("1", TOOLS_AND_PROMPTS);
    daemon(&mut ledger, &request("1", "roots/list"));
    daemon(&mut ledger, &cancel("1"));
    assert_eq!(ids(&text(ledger.replay())), ["1"]);
    // And it ends no request by that.
    client(&mut ledger, &request("2", "tools/list"));
    daemon(&mut ledger, &cancel("2"));
    assert_eq!(ids(&text(ledger.replay())), ["1", "2"]);
}

#[test]
fn a_client_that_leaves_does_not_listen_any_more() {
    let mut ledger = listening("1", TOOLS_AND_PROMPTS);
    client(&mut ledger, &listen("\"two\"", "{}"));
    client(&mut ledger, &request("3", "tools/call"));
    let said = text(ledger.leave());
    let said: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ended: Vec<&serde_json::Value> = said.iter().map(|it| &it["params"]["requestId"]).collect();
    assert_eq!(ended, [&serde_json::json!(1), &serde_json::json!("two")]);
    assert!(said.iter().all(|it| it["method"] == "notifications/cancelled"));
    assert_eq!(text(ledger.leave()), "");
    assert_eq!(ids(&text(ledger.lost("x"))), ["3"], "the rest is still waited for");
}

#[test]
fn a_daemon_that_never_comes_back_ends_every_listen() {
    let mut ledger = listening("1", TOOLS_AND_PROMPTS);
    client(&mut ledger, &request("2", "tools/list"));
    assert_eq!(text(ledger.lost("x")), "");
    let why = CallError::new(ErrorKind::NotRunning, "nobody is there");
    let told = text(ledger.abandon(&why));
    assert_eq!(ids(&told), ["1", "2"]);
    assert!(told.lines().all(|line| line.contains("nobody is there")), "{told}");
}

#[test]
fn only_so_many_listens_are_kept_and_only_small_ones() {
    let mut ledger = Ledger::default();
    let large = format!(r#"{{"resourceSubscriptions":["{}"]}}"#, "x".repeat(100_000));
    client(&mut ledger, &listen("\"large\"", &large));
    for no in 0..110 {
        client(&mut ledger, &listen(&no.to_string(), TOOLS_AND_PROMPTS));
        daemon(&mut ledger, &acknowledged(&no.to_string(), TOOLS_AND_PROMPTS));
    }
    let told = text(ledger.lost("x"));
    assert_eq!(told.lines().count(), 11, "{told}");
    assert!(told.starts_with(r#"{"jsonrpc":"2.0","id":"large","error":{"code":-32005,"#), "{told}");
    assert!(told.lines().all(|line| line.contains("listen again")), "{told}");
    assert_eq!(text(ledger.replay()).lines().count(), 100);
    // There is room again for those that have ended.
    client(&mut ledger, &cancel("0"));
    client(&mut ledger, &listen("\"new\"", TOOLS_AND_PROMPTS));
    assert_eq!(text(ledger.lost("x")), "");
    // A promise takes no more room than any other, however large it is.
    let huge = acknowledged("\"new\"", &large);
    assert_eq!(daemon(&mut ledger, &huge), Verdict::Pass);
}

#[test]
fn garbage_about_listens_is_passed_on_and_means_nothing() {
    let mut ledger = listening("1", TOOLS_AND_PROMPTS);
    ledger.lost("x");
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
        assert_eq!(daemon(&mut ledger, &line), Verdict::Pass, "{params}");
    }
    let bare = format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#);
    assert_eq!(daemon(&mut ledger, &bare), Verdict::Pass);
    let odd = acknowledged("1", r#"["toolsListChanged"]"#);
    let told = format!("{odd}\n") + &list_changed("tools", "1") + &list_changed("prompts", "1");
    assert_eq!(daemon(&mut ledger, &odd), Verdict::Replace(told.into_bytes()));
    for filter in ["null", "[]", "7"] {
        client(&mut ledger, &listen("2", filter));
    }
    assert_eq!(ids(&text(ledger.replay())), ["1", "2"]);
}
