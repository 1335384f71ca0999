//! Tests of the ledger with a client and a sequence of daemons.

use proptest::prelude::*;
use xy_mcp::envelope::parse;

use super::*;

mod modern;

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","x":1.50}}"#;
const INITIALIZE_ANSWER: &str =
    r#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{}}}"#;
const CLIENT_INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

fn client(ledger: &mut Ledger, line: &str) -> LineAction {
    let line = format!("{line}\n");
    ledger.on_client_line(parse(line.as_bytes()).ok().as_ref(), line.as_bytes(), false)
}

fn daemon(ledger: &mut Ledger, line: &str) -> LineAction {
    let line = format!("{line}\n");
    ledger.on_daemon_line(parse(line.as_bytes()).ok().as_ref(), line.as_bytes())
}

fn request(id: &str, method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{}}}}"#)
}

fn about(id: &str, method: &str, uri: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"uri":"{uri}"}}}}"#)
}

fn result(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// Returns what a new daemon gets before the client's next messages.
fn replayed(ledger: &mut Ledger) -> String {
    text(ledger.replay().0)
}

/// Returns a ledger after a handshake.
fn initialized_ledger() -> Ledger {
    let mut ledger = Ledger::default();
    assert_eq!(client(&mut ledger, INITIALIZE), LineAction::Forward);
    assert_eq!(daemon(&mut ledger, INITIALIZE_ANSWER), LineAction::Forward);
    assert_eq!(client(&mut ledger, CLIENT_INITIALIZED), LineAction::Forward);
    ledger
}

/// Returns the ids of messages, in order.
fn ids(lines: &str) -> Vec<String> {
    lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["id"].to_string())
        .collect()
}

#[test]
fn only_harmless_requests_are_sent_again() {
    let harmless = [
        "tools/list",
        "prompts/list",
        "prompts/get",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "ping",
        "completion/complete",
        "initialize",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "server/discover",
        "subscriptions/listen",
    ];
    let others = ["tools/call", "tasks/cancel", "x/unknown", "sampling/createMessage", ""];
    for method in harmless {
        let mut ledger = Ledger::default();
        client(&mut ledger, &request("1", method));
        assert_eq!(text(ledger.on_connection_lost("x")), "", "{method}");
        assert_eq!(replayed(&mut ledger), request("1", method) + "\n");
    }
    for method in others {
        let mut ledger = Ledger::default();
        client(&mut ledger, &request("\"one\"", method));
        let to_client = text(ledger.on_connection_lost("it hung up"));
        assert!(
            to_client.starts_with(r#"{"jsonrpc":"2.0","id":"one","error":{"code":-32010,"#),
            "{to_client}"
        );
        assert!(
            to_client.contains("outcome unknown: ") && to_client.contains("it hung up"),
            "{to_client}"
        );
        assert_eq!(replayed(&mut ledger), "", "{method}");
        assert_eq!(text(ledger.on_connection_lost("x")), "", "it is to_client once");
    }
}

/// Returns a ledger that knows that the tool `read` is read-only.
fn listed() -> Ledger {
    let mut ledger = initialized_ledger();
    client(&mut ledger, &request("9", "tools/list"));
    assert_eq!(daemon(&mut ledger, &tools("9")), LineAction::Forward);
    ledger
}

fn call(id: &str, tool: &str) -> String {
    let params = format!(r#"{{"name":"{tool}","arguments":{{}}}}"#);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#)
}

#[test]
fn call_to_a_read_only_tool_is_sent_again_once() {
    let mut ledger = listed();
    client(&mut ledger, &call("1", "read"));
    client(&mut ledger, &call("2", "write"));
    assert_eq!(ids(&text(ledger.on_connection_lost("x"))), ["2"]);
    assert!(replayed(&mut ledger).ends_with(&(call("1", "read") + "\n")));
    assert_eq!(
        ids(&text(ledger.on_connection_lost("x"))),
        ["1"],
        "the second daemon has died of it too"
    );
    assert!(!ledger.has_open_requests());
}

#[test]
fn call_with_a_server_request_is_not_resent() {
    let mut ledger = listed();
    client(&mut ledger, &call("1", "read"));
    daemon(&mut ledger, &request("7", "elicitation/create"));
    client(&mut ledger, &call("2", "read"));
    let to_client = text(ledger.on_connection_lost("x"));
    let errors: Vec<&str> = to_client.lines().filter(|line| line.contains("error")).collect();
    assert_eq!(ids(&errors.join("\n")), ["1"]);
    assert!(replayed(&mut ledger).ends_with(&(call("2", "read") + "\n")));
}

const TOOLS_CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

/// Returns the daemon's answer to a list, with the read-only tool `read`.
fn tools(id: &str) -> String {
    let tools = r#"[{"name":"read","annotations":{"readOnlyHint":true}},{"name":"write"}]"#;
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"tools":{tools}}}}}"#)
}

/// Asks a new daemon for its tools. Returns the id of the request.
fn list_for_replay(ledger: &mut Ledger) -> String {
    let to_daemon = text(ledger.list_request().unwrap());
    let (introduction, list) = to_daemon.split_once('\n').unwrap();
    assert_eq!(introduction, CLIENT_INITIALIZED);
    let id = ids(list).remove(0);
    assert_eq!(list, format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list"}}"#) + "\n");
    id
}

#[test]
fn call_of_unknown_tool_waits_for_the_next_list() {
    let mut ledger = initialized_ledger();
    for (id, tool) in [("1", "read"), ("2", "write"), ("3", "unknown"), ("4", "read")] {
        assert_eq!(client(&mut ledger, &call(id, tool)), LineAction::Forward);
    }
    assert_eq!(text(ledger.on_connection_lost("it hung up")), "");
    let list = list_for_replay(&mut ledger);
    assert_eq!(daemon(&mut ledger, &tools(&list)), LineAction::Resumed(Ok(())));
    let (replayed, to_client) = ledger.replay();
    assert_eq!(text(replayed), format!("{}\n{}\n", call("1", "read"), call("4", "read")));
    let to_client = text(to_client);
    assert!(
        to_client.contains("outcome unknown: ") && to_client.contains("it hung up"),
        "{to_client}"
    );
    assert_eq!(ids(to_client.strip_suffix(LISTS_CHANGED).unwrap()), ["2", "3"]);
    assert_eq!(ids(&text(ledger.on_connection_lost("x"))), ["1", "4"], "a second time");
    assert_eq!(ledger.list_request(), None);
}

#[test]
fn call_after_a_list_change_waits_for_the_next_list() {
    let mut ledger = listed();
    daemon(&mut ledger, TOOLS_CHANGED);
    client(&mut ledger, &call("1", "read"));
    client(&mut ledger, &request("10", "tools/list"));
    client(&mut ledger, &call("2", "write"));
    daemon(&mut ledger, &tools("10"));
    assert_eq!(ids(&text(ledger.on_connection_lost("x"))), ["2"]);
    assert_eq!(ledger.list_request(), None, "the client has asked for it");
    assert!(replayed(&mut ledger).ends_with(&(call("1", "read") + "\n")));
}

#[test]
fn call_is_not_resent_without_a_new_list() {
    let mut ledger = initialized_ledger();
    client(&mut ledger, &call("1", "read"));
    ledger.on_connection_lost("x");
    let list = list_for_replay(&mut ledger);
    let error = format!(r#"{{"jsonrpc":"2.0","id":{list},"error":{{"code":-1,"message":"no"}}}}"#);
    assert_eq!(daemon(&mut ledger, &error), LineAction::Resumed(Ok(())));
    let (replayed, to_client) = ledger.replay();
    assert_eq!(replayed, b"");
    assert_eq!(ids(text(to_client).strip_suffix(LISTS_CHANGED).unwrap()), ["1"]);

    // This daemon is lost before it answers.
    client(&mut ledger, &call("2", "read"));
    ledger.on_connection_lost("x");
    list_for_replay(&mut ledger);
    assert_eq!(ids(&text(ledger.on_connection_lost("x"))), ["2"]);
    assert_eq!(ledger.list_request(), None);

    // No daemon comes.
    client(&mut ledger, &call("3", "read"));
    client(&mut ledger, &request("4", "tools/list"));
    assert_eq!(text(ledger.on_connection_lost("it hung up")), "");
    let to_client = text(ledger.fail_all(&CallError::parse("no daemon")));
    let (call, list) = to_client.split_once('\n').unwrap();
    assert!(call.contains("outcome unknown: ") && call.contains("it hung up"), "{to_client}");
    assert!(list.contains("no daemon"), "{to_client}");
}

#[test]
fn unknown_tool_with_a_server_request_is_not_resent() {
    let mut ledger = initialized_ledger();
    client(&mut ledger, &call("1", "read"));
    daemon(&mut ledger, &request("7", "elicitation/create"));
    let to_client = text(ledger.on_connection_lost("x"));
    assert!(to_client.starts_with(r#"{"jsonrpc":"2.0","id":1,"error""#), "{to_client}");
    assert_eq!(ledger.list_request(), None);
}

#[test]
fn answered_requests_are_not_sent_again() {
    let mut ledger = Ledger::default();
    for (id, method) in [("1", "tools/call"), ("2", "tools/list"), ("3", "tools/call")] {
        client(&mut ledger, &request(id, method));
    }
    assert_eq!(daemon(&mut ledger, &result("2")), LineAction::Forward);
    assert_eq!(daemon(&mut ledger, &result("1")), LineAction::Forward);
    assert_eq!(ids(&text(ledger.on_connection_lost("x"))), ["3"]);
    assert_eq!(replayed(&mut ledger), "");
}

#[test]
fn new_daemon_gets_handshake_level_and_subscriptions() {
    let mut ledger = initialized_ledger();
    client(&mut ledger, &about("1", "resources/subscribe", "file:///a"));
    client(&mut ledger, &about("2", "resources/subscribe", "file:///b"));
    client(&mut ledger, &about("3", "resources/subscribe", "file:///refused"));
    client(&mut ledger, &request("4", "logging/setLevel"));
    for id in ["1", "2", "4"] {
        daemon(&mut ledger, &result(id));
    }
    daemon(&mut ledger, r#"{"jsonrpc":"2.0","id":3,"error":{"code":-32602,"message":"no"}}"#);
    client(&mut ledger, &about("5", "resources/unsubscribe", "file:///a"));
    daemon(&mut ledger, &result("5"));
    client(&mut ledger, &request("6", "tools/list"));

    assert_eq!(text(ledger.on_connection_lost("x")), "");
    let handshake_request = text(ledger.handshake_request().unwrap());
    assert_eq!(handshake_request, INITIALIZE.replace("\"id\":0", "\"id\":\"xy-connect-1\"") + "\n");
    let answer = INITIALIZE_ANSWER.replace("\"id\":0", "\"id\":\"xy-connect-1\"");
    assert_eq!(daemon(&mut ledger, &answer), LineAction::Resumed(Ok(())));
    let (to_daemon, to_client) = ledger.replay();
    let to_daemon = text(to_daemon);
    let expected = [
        CLIENT_INITIALIZED.to_owned(),
        request("\"xy-connect-2\"", "logging/setLevel"),
        about("\"xy-connect-3\"", "resources/subscribe", "file:///b"),
        request("6", "tools/list"),
    ];
    assert_eq!(to_daemon.lines().collect::<Vec<_>>(), expected);
    assert_eq!(daemon(&mut ledger, &result("\"xy-connect-3\"")), LineAction::Drop);
    assert_eq!(daemon(&mut ledger, &result("6")), LineAction::Forward);
    assert_eq!(text(to_client), LISTS_CHANGED);
}

#[test]
fn unanswered_handshake_is_sent_again() {
    let mut ledger = Ledger::default();
    client(&mut ledger, INITIALIZE);
    ledger.on_connection_lost("x");
    assert_eq!(ledger.handshake_request(), None);
    let (to_daemon, to_client) = ledger.replay();
    assert_eq!((text(to_daemon), text(to_client)), (format!("{INITIALIZE}\n"), String::new()));
    assert_eq!(daemon(&mut ledger, INITIALIZE_ANSWER), LineAction::Forward);
    // The handshake is done, but the client has not sent `notifications/initialized`.
    ledger.on_connection_lost("x");
    assert!(ledger.handshake_request().is_some());
    assert_eq!(replayed(&mut ledger), "");
}

#[test]
fn daemon_with_another_revision_is_rejected() {
    let mut ledger = initialized_ledger();
    ledger.on_connection_lost("x");
    ledger.handshake_request();
    let other =
        r#"{"jsonrpc":"2.0","id":"xy-connect-1","result":{"protocolVersion":"2024-11-05"}}"#;
    let LineAction::Resumed(Err(why)) = daemon(&mut ledger, other) else { panic!() };
    assert_eq!(why, "it chose MCP 2024-11-05, but 2025-06-18 was negotiated before");
    ledger.handshake_request();
    let error = r#"{"jsonrpc":"2.0","id":"xy-connect-2","error":{"code":-1,"message":"full"}}"#;
    assert_eq!(daemon(&mut ledger, error), LineAction::Resumed(Err("full".into())));
}

#[test]
fn unwritten_lines_are_not_replayed() {
    let mut ledger = Ledger::default();
    client(&mut ledger, &request("1", "tools/call"));
    let second = ledger.next_line();
    client(&mut ledger, &request("2", "tools/call"));
    client(&mut ledger, &request("3", "tools/list"));
    client(&mut ledger, CLIENT_INITIALIZED);
    ledger.mark_unwritten(second);
    assert_eq!(ids(&text(ledger.on_connection_lost("x"))), ["1"]);
    assert_eq!(replayed(&mut ledger), "");
    assert_eq!(ledger.initialized_at, None);
}

#[test]
fn responses_to_a_lost_daemon_are_dropped() {
    let mut ledger = Ledger::default();
    for id in ["7", "8"] {
        assert_eq!(
            daemon(&mut ledger, &request(id, "sampling/createMessage")),
            LineAction::Forward
        );
    }
    assert_eq!(client(&mut ledger, &result("8")), LineAction::Forward);
    let to_client = text(ledger.on_connection_lost("x"));
    assert!(
        to_client.contains("notifications/cancelled") && to_client.contains(r#""requestId":7,"#),
        "{to_client}"
    );
    assert_eq!(to_client.lines().count(), 1);
    assert_eq!(client(&mut ledger, &result("7")), LineAction::Drop);
    assert_eq!(client(&mut ledger, &result("9")), LineAction::Forward, "the daemon's to judge");
}

#[test]
fn reused_daemon_id_is_renamed() {
    let mut ledger = Ledger::default();
    let ask = request("7", "roots/list");
    daemon(&mut ledger, &ask);
    ledger.on_connection_lost("x");
    let renamed = request("\"xy-connect-1\"", "roots/list") + "\n";
    assert_eq!(daemon(&mut ledger, &ask), LineAction::Replace(renamed.into_bytes()));
    assert_eq!(client(&mut ledger, &result("7")), LineAction::Drop, "it answers the old one");
    let restored = result("7") + "\n";
    assert_eq!(
        client(&mut ledger, &result("\"xy-connect-1\"")),
        LineAction::Replace(restored.into_bytes())
    );
    // Its cancellation is renamed too.
    daemon(&mut ledger, &ask);
    let renamed = cancel("\"xy-connect-2\"") + "\n";
    assert_eq!(daemon(&mut ledger, &cancel("7")), LineAction::Replace(renamed.into_bytes()));
}

#[test]
fn resent_response_is_dropped_and_request_forwarded() {
    let mut ledger = Ledger::default();
    let answer = result("7");
    let message = parse(answer.as_bytes()).unwrap();
    assert_eq!(ledger.on_client_line(Some(&message), answer.as_bytes(), true), LineAction::Drop);
    let ask = request("7", "tools/call");
    let message = parse(ask.as_bytes()).unwrap();
    assert_eq!(ledger.on_client_line(Some(&message), ask.as_bytes(), true), LineAction::Forward);
}

#[test]
fn cancelled_request_gets_no_error() {
    let mut ledger = Ledger::default();
    client(&mut ledger, &request("1", "tools/call"));
    client(
        &mut ledger,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
    );
    assert_eq!(text(ledger.on_connection_lost("x")), "");
}

#[test]
fn invalid_messages_are_forwarded() {
    let mut ledger = Ledger::default();
    for line in ["", "garbage", "[]", "{}", r#"{"id":1}"#, "\u{0}"] {
        assert_eq!(client(&mut ledger, line), LineAction::Forward);
        assert_eq!(daemon(&mut ledger, line), LineAction::Forward);
    }
    assert_eq!(text(ledger.on_connection_lost("x")), "");
}

#[test]
fn remembered_state_is_bounded() {
    let mut ledger = initialized_ledger();
    for no in 0..MAX_SUBSCRIPTIONS + 10 {
        let id = (no + 1).to_string();
        client(&mut ledger, &about(&id, "resources/subscribe", &id));
        daemon(&mut ledger, &result(&id));
    }
    assert_eq!(ledger.subscriptions.len(), MAX_SUBSCRIPTIONS);
    for no in 0..65_536 {
        assert_eq!(
            client(&mut ledger, &request(&no.to_string(), "tools/call")),
            LineAction::Forward
        );
    }
    let LineAction::Reject(answer) = client(&mut ledger, &request("\"more\"", "tools/call")) else {
        panic!("it has no room")
    };
    assert!(text(answer).starts_with(r#"{"jsonrpc":"2.0","id":"more","error":{"code":-32008"#));
    let long = format!("\"{}\"", "x".repeat(2000));
    assert!(matches!(client(&mut ledger, &request(&long, "ping")), LineAction::Reject(_)));
    for no in 0..MAX_DAEMON_REQUESTS + 10 {
        daemon(&mut ledger, &request(&no.to_string(), "roots/list"));
    }
    ledger.on_connection_lost("x");
    assert_eq!(ledger.stale.len(), MAX_DAEMON_REQUESTS);
}

#[test]
fn oversized_request_is_not_sent_again() {
    let mut ledger = Ledger::default();
    client(&mut ledger, &about("1", "resources/read", &"x".repeat(100_000)));
    assert_eq!(ids(&text(ledger.on_connection_lost("x"))), ["1"]);
}

/// Returns a listen of a client of the revision without a handshake.
fn listen(id: &str, filter: &str) -> String {
    let meta = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"subscriptions/listen","params":{{"_meta":{meta},"notifications":{filter}}}}}"#
    )
}

fn acknowledged(id: &str, filter: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}},"notifications":{filter}}}}}"#
    )
}

fn cancel(id: &str) -> String {
    let method = "notifications/cancelled";
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{{"requestId":{id}}}}}"#)
}

const TOOLS_AND_PROMPTS: &str = r#"{"toolsListChanged":true,"promptsListChanged":true}"#;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Call,
    List,
    Listen,
}

#[derive(Debug, Clone)]
enum Move {
    Asks(u8, Kind),
    Answered(u8),
    Acknowledged(u8),
    Cancelled(u8),
    Lost,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let kind = prop_oneof![Just(Kind::Call), Just(Kind::List), Just(Kind::Listen)];
    let one = prop_oneof![
        3 => (0..20u8, kind).prop_map(|(id, kind)| Move::Asks(id, kind)),
        2 => (0..20u8).prop_map(Move::Answered),
        2 => (0..20u8).prop_map(Move::Acknowledged),
        1 => (0..20u8).prop_map(Move::Cancelled),
        1 => Just(Move::Lost),
    ];
    proptest::collection::vec(one, 0..80)
}

proptest! {
    /// Each request is answered by a daemon, answered by the bridge, or kept to be sent again.
    #[test]
    fn every_request_has_one_outcome(moves in moves()) {
        let mut ledger = Ledger::default();
        let mut open = std::collections::BTreeMap::new();
        // The acknowledged listens; true if that connection has been lost since.
        let mut knows = std::collections::BTreeMap::new();
        for step in moves {
            match step {
                Move::Asks(id, kind) if !open.contains_key(&id) => {
                    let line = match kind {
                        Kind::Call => request(&id.to_string(), "tools/call"),
                        Kind::List => request(&id.to_string(), "tools/list"),
                        Kind::Listen => listen(&id.to_string(), TOOLS_AND_PROMPTS),
                    };
                    client(&mut ledger, &line);
                    open.insert(id, kind);
                    knows.remove(&id);
                }
                Move::Asks(..) => {}
                Move::Answered(id) => {
                    daemon(&mut ledger, &result(&id.to_string()));
                    open.remove(&id);
                }
                Move::Cancelled(id) => {
                    client(&mut ledger, &cancel(&id.to_string()));
                    open.remove(&id);
                }
                // Only acknowledgements of resumed listens are not forwarded.
                Move::Acknowledged(id) => {
                    let line = acknowledged(&id.to_string(), TOOLS_AND_PROMPTS);
                    let action = daemon(&mut ledger, &line);
                    let is_open = open.get(&id) == Some(&Kind::Listen);
                    let may_have_missed = is_open && knows.insert(id, false) == Some(true);
                    prop_assert_eq!(matches!(action, LineAction::Replace(_)), may_have_missed);
                    prop_assert_eq!(action == LineAction::Forward, !may_have_missed);
                }
                Move::Lost => {
                    let mut to_client = ids(&text(ledger.on_connection_lost("x")));
                    to_client.sort();
                    let mut expected: Vec<String> =
                        open.iter().filter(|(_, kind)| **kind == Kind::Call).map(|(id, _)| id.to_string()).collect();
                    expected.sort();
                    prop_assert_eq!(to_client, expected);
                    open.retain(|_, kind| *kind != Kind::Call);
                    for may_have_missed in knows.values_mut() {
                        *may_have_missed = true;
                    }
                    let mut again = ids(&replayed(&mut ledger));
                    again.sort();
                    let mut expected: Vec<String> = open.keys().map(ToString::to_string).collect();
                    expected.sort();
                    prop_assert_eq!(again, expected);
                }
            }
        }
        prop_assert_eq!(ledger.fail_all(&CallError::parse("x")).is_empty(), open.is_empty());
        prop_assert_eq!(replayed(&mut ledger), "");
    }
}
