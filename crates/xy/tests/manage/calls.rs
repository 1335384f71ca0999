//! `xy tools` and `xy call`.

use serde_json::{Value, json};

use crate::home_with_mcp;
use crate::support::{ask, home, refused};

#[test]
fn tools_are_listed_by_their_public_names() {
    let home = home_with_mcp(&["--only-tools", "--v2"]);
    home.mcp_server("two", &["--only-tools"]);
    ask(&home, "reload", Value::Null);
    let all = home.xy(&["tools"]);
    assert_eq!((all.code, all.stderr.as_str()), (0, ""), "{all:?}");
    let has = |text: &str, words: &str| {
        text.lines().any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") == words)
    };
    assert!(has(&all.stdout, "NAME DESCRIPTION"), "{}", all.stdout);
    assert!(has(&all.stdout, "one__reverse Says it backwards"), "{}", all.stdout);
    assert!(has(&all.stdout, "two__echo Says back what it is told"), "{}", all.stdout);

    let one = home.xy_json(&["tools", "one"]);
    let tools = one["tools"].as_array().unwrap();
    assert!(tools.iter().all(|it| it["server"] == "one"), "{one:#}");
    let echo = tools.iter().find(|it| it["name"] == "one__echo").unwrap();
    assert_eq!(echo["tool"]["name"], "echo", "as its server wrote it");
    assert!(echo["tool"]["inputSchema"].is_object());
    assert_eq!(ask(&home, "tools", json!({ "server": "one" })), one);

    let unknown = home.xy(&["tools", "oen"]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.stderr.contains("did you mean `one`?"), "{unknown:?}");
    assert_eq!(home.xy(&["stop", "--all"]).code, 0);
    let none = home.xy(&["tools"]);
    assert_eq!((none.code, none.stdout.as_str()), (0, ""));
    assert!(none.stderr.starts_with("no tools"), "{none:?}");
    home.finish();
}

#[test]
fn call_prints_the_text_of_the_result() {
    let home = home_with_mcp(&["--only-tools"]);
    let echo = home.xy(&["call", "one__echo", "message=hello world"]);
    assert_eq!((echo.code, echo.stdout.as_str(), echo.stderr.as_str()), (0, "hello world\n", ""));
    let sum = home.xy(&["call", "one__sum", "a=1", "b=2.5"]);
    assert_eq!(sum.stdout, "{\"sum\":3.5}\n");
    let whole = home.xy(&["call", "one__echo", "--args", r#"{ "message": 1.50 }"#]);
    assert_eq!(whole.stdout, "1.50\n", "numbers keep their digits");
    let json = home.xy(&["call", "one__echo", "message:=[1.50]", "--json"]);
    assert_eq!(json.code, 0);
    let as_written =
        r#"{"content":[{"type":"text","text":"[1.50]"}],"structuredContent":{"message":[1.50]}}"#;
    assert_eq!(json.stdout.trim_end(), as_written);
    home.finish();
}

#[test]
fn messages_before_the_result_are_not_printed() {
    let home = home_with_mcp(&[]);
    let flood = home.xy(&["call", "one__flood", "count=50"]);
    assert_eq!((flood.code, flood.stdout.as_str()), (0, "flooded\n"), "{flood:?}");
    home.finish();
}

#[test]
fn non_text_content_is_one_line() {
    let home = home_with_mcp(&["--only-tools"]);
    let raw = |result: &str| {
        let arguments = json!({ "result": result }).to_string();
        home.xy(&["call", "one__raw", "--args", &arguments]).stdout
    };
    let image = r#"{"content":[{"type":"image","mimeType":"image/png","data":"aGVsbG8="}]}"#;
    assert_eq!(raw(image), "[image image/png, 5 bytes]\n");
    assert_eq!(raw(r#"{"content":[],"structuredContent":{"n":1.50}}"#), "{\"n\":1.50}\n");
    home.finish();
}

#[test]
fn failing_tool_exits_with_1_and_prints_to_stderr() {
    let home = home_with_mcp(&["--only-tools"]);
    let failed = home.xy(&["call", "one__sum", "a=x"]);
    let text = "`a` and `b` are numbers\n";
    assert_eq!((failed.code, failed.stdout.as_str(), failed.stderr.as_str()), (1, "", text));
    let json = home.xy(&["call", "one__sum", "--json"]);
    assert_eq!((json.code, json.stderr.as_str()), (1, ""));
    let result: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(result["isError"], true);
    home.finish();
}

#[test]
fn each_cause_of_a_missing_result_has_its_kind() {
    let home = home_with_mcp(&["--only-tools"]);
    let kind = |words: &[&str]| {
        let ran = home.xy(&[&["call"], words, &["--json"]].concat());
        assert_eq!(ran.code, 1, "{ran:?}");
        let error: Value = serde_json::from_str(&ran.stdout).unwrap();
        error["error"]["data"]["kind"].as_str().unwrap().to_owned()
    };
    assert_eq!(kind(&["one__never", "--timeout", "100ms"]), "TimedOut");
    assert_eq!(kind(&["one__nothing"]), "InvalidParams");
    assert_eq!(kind(&["nobody__echo"]), "InvalidParams");
    assert_eq!(kind(&["one__echo", "a=1", "a=2"]), "InvalidParams");
    assert_eq!(kind(&["one__crash"]), "OutcomeUnknown");
    home.xy(&["stop", "one"]);
    assert_eq!(kind(&["one__echo", "message=x"]), "NotRunning");
    let wrong = refused(&home, "call", json!({ "name": "one__echo", "arguments": "x" }));
    assert_eq!(wrong["code"], -32602);
    home.finish();
}

#[test]
fn malformed_arguments_are_wrong_usage() {
    let home = home();
    for words in [
        &["call"][..],
        &["call", "a__b", "c"],
        &["call", "a__b", "c:=d"],
        &["call", "a__b", "--args", "[]"],
        &["call", "a__b", "--args", "{"],
        &["call", "a__b", "c=1", "--args", "{}"],
        &["call", "a__b", "--timeout", "soon"],
        &["request", "a"],
        &["request", "a", "b", "--params", "{"],
    ] {
        let ran = home.xy(words);
        assert_eq!((ran.code, ran.stdout.as_str()), (64, ""), "{words:?}: {ran:?}");
    }
    home.finish();
}

#[test]
fn own_tools_can_be_called() {
    let home = home_with_mcp(&["--only-tools"]);
    let listed = home.xy(&["call", "list_servers"]);
    let list: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(list["servers"][0]["name"], "one");
    home.finish();
}

#[test]
fn interrupted_call_is_cancelled() {
    let home = home();
    let input_log = home.root().join("harness/input-log");
    home.mcp_server("one", &["--only-tools", "--input-log", input_log.to_str().unwrap()]);
    home.daemon();
    home.wait_for_state("one", "running");
    let has_received =
        |what: &str| std::fs::read_to_string(&input_log).unwrap_or_default().contains(what);
    let mut calling = home.command(&["call", "one__never"]).spawn().unwrap();
    home.wait_until("the call has come", || has_received("\"never\""));
    calling.kill().unwrap();
    calling.wait().unwrap();
    home.wait_until("it is cancelled", || has_received("notifications/cancelled"));
    home.finish();
}
