//! Requests for unknown items or with wrong arguments, and the suggestions in their errors.

use xy_catalog::catalog::{Item, Lists, ServerCatalog};
use xy_mcp::kind::Kind;
use xy_upstream::fault::{Cause, LossReason};

use super::scopes::TwoServers;
use super::*;

/// Returns the error message for a call of an unknown tool.
#[track_caller]
fn error_of(client: &TestClient, name: &str) -> String {
    let error = client.refusal("tools/call", &json!({ "name": name, "arguments": {} }));
    assert_eq!(error["code"], -32602, "{error}");
    text(&error["message"])
}

/// Returns the error message for an unknown tool, with a suggestion.
fn suggestion(name: &str, suggestion: &str) -> String {
    format!("Unknown tool: {name}; did you mean `{suggestion}`?")
}

#[tokio::test(start_paused = true)]
async fn only_close_names_are_suggested() {
    run_local(async {
        let two = TwoServers::begin().await;
        let client = two.client("default");
        for (name, known) in [
            ("s_push", "s__push"),
            ("s__psuh", "s__push"),
            ("t-Push", "t__push"),
            ("add_servr", "add_server"),
            ("add__server", "add_server"),
            ("server_log", "server_logs"),
        ] {
            assert_eq!(error_of(&client, name), suggestion(name, known));
        }
        for name in ["n__push", "s__unlike", "add_something", "search_tool"] {
            assert_eq!(error_of(&client, name), format!("Unknown tool: {name}"));
        }
        // A prompt is not a tool.
        let prompt = client.refusal("prompts/get", &json!({ "name": "add_servr" }));
        assert_eq!(prompt["message"], "Unknown prompt: add_servr");
        two.assert_nothing_sent();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn hidden_tools_are_never_suggested() {
    run_local(async {
        let two = TwoServers::begin().await;
        two.profiles(&[
            ("bare", "deny \"s__push\"\nmanage #false"),
            ("found", "tools \"search\"\ndeny \"t__push\"\ndeny \"add_server\""),
        ]);
        let bare = two.client("bare");
        for name in ["s__psuh", "add_servr", "search_tool"] {
            assert_eq!(error_of(&bare, name), format!("Unknown tool: {name}"));
        }
        for name in ["push", "s_push"] {
            assert_eq!(error_of(&bare, name), suggestion(name, "t__push"));
        }
        let found = two.client("found");
        for name in ["t__psuh", "add_servr"] {
            assert_eq!(error_of(&found, name), format!("Unknown tool: {name}"));
        }
        // These tools may be called, though they are not listed.
        assert_eq!(error_of(&found, "search_tool"), suggestion("search_tool", "search_tools"));
        assert_eq!(error_of(&found, "list_server"), suggestion("list_server", "list_servers"));
        assert_eq!(error_of(&found, "push"), suggestion("push", "s__push"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn suggestion_is_found_among_thousands() {
    run_local(async {
        let harness = Harness::begin().await;
        let tools = (0..3000).map(|number| {
            let tool = json!({ "name": format!("tool_{number:04}"), "inputSchema": {} });
            Item::read(Kind::Tools, &tool.to_string()).unwrap()
        });
        let mut lists = Lists::default();
        lists.set(Kind::Tools, tools.collect());
        harness.router.learn(
            &harness.server,
            &harness.upstream,
            ServerCatalog::new("s", legacy(), lists),
        );
        let client = harness.client(&json!({}));
        for name in ["s__tol_0000", "s__tol_2999"] {
            assert_eq!(error_of(&client, name), suggestion(name, &name.replace("tol", "tool")));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn own_tools_take_arguments_by_name() {
    run_local(async {
        let two = TwoServers::begin().await;
        two.profiles(&[("found", "tools \"search\"")]);
        let (client, found) = (two.client("default"), two.client("found"));
        for arguments in [json!(["arr", "/bin/x", []]), json!([]), json!(7), json!("{}")] {
            for (client, tool) in [
                (&client, "add_server"),
                (&client, "list_servers"),
                (&found, "search_tools"),
                (&found, "describe_tool"),
                (&found, "call_tool"),
            ] {
                let params = json!({ "name": tool, "arguments": arguments });
                let error = client.refusal("tools/call", &params);
                assert_eq!(error["code"], -32602, "{tool} {arguments}: {error}");
                let error_of = text(&error["message"]);
                assert!(error_of.starts_with("`arguments` is not an object; "), "{error_of}");
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn removed_server_is_not_offered_for_start() {
    run_local(async {
        let two = TwoServers::begin().await;
        let Harness { router, server, upstream, .. } = &two.harness;
        let client = two.client("default");
        upstream.close(&Cause::end(LossReason::server("has ended")));
        router.on_instance_end(server, upstream, &LossReason::server("has ended"));
        client.received();
        client.call("1"); // The call waits for the next process.
        server.is_removed.set(true);
        router.remove(server);
        let error_of = "`s` is not running: it has been removed; `xy list` shows all servers";
        let received = client.received();
        assert!(received.iter().any(|it| it["error"]["message"] == error_of), "{received:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn start_is_suggested_only_for_a_stopped_server() {
    run_local(async {
        let two = TwoServers::begin().await;
        let server = &two.harness.server;
        let hint = |fault: CallError| fault.hint.unwrap_or_default();
        assert!(hint(server.down("it was stopped")).contains("`xy start s` starts it"));
        let yet = server.not_yet();
        assert_eq!(yet.to_string(), "`s` is still starting: it is not ready yet");
        assert_eq!(hint(yet), "try again later; `xy status s` shows its state");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn notification_filter_must_be_an_object() {
    run_local(async {
        let harness = Harness::begin().await;
        for input_requests in [json!([true]), json!(7), json!("all")] {
            let view = View::Profile("default".to_owned());
            let entry = Entry {
                view,
                may_manage: false,
                lifetime: Lifetime::Request,
                principal: 1,
                bound: None,
            };
            let received = Rc::new(RecordedMessages::default());
            let client_session = harness.router.open(entry, received.clone()).unwrap();
            let client = TestClient { client_session, received };
            let meta = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            });
            let params = json!({ "notifications": input_requests, "_meta": meta });
            let error = client.refusal("subscriptions/listen", &params);
            assert_eq!(error["code"], -32602, "{error}");
            assert_eq!(error["message"], "`notifications` is not an object");
        }
    })
    .await;
}
