//! Plays of clients that ask for what nobody has, or not as it must be asked, and hear what was
//! probably meant.

use super::scopes::Two;
use super::*;
use crate::catalog::{Item, Kind, Known, Lists};

/// What a client is told of a tool that nobody has.
#[track_caller]
fn told(client: &Visitor, name: &str) -> String {
    let error = client.refusal("tools/call", &json!({ "name": name, "arguments": {} }));
    assert_eq!(error["code"], -32602, "{error}");
    text(&error["message"])
}

/// The same, if something was probably meant.
fn meant(name: &str, meant: &str) -> String {
    format!("Unknown tool: {name}; did you mean `{meant}`?")
}

#[tokio::test(start_paused = true)]
async fn what_was_probably_meant_is_named_and_nothing_else() {
    here(async {
        let two = Two::begin().await;
        let client = two.client("default");
        for (name, known) in [
            ("s_push", "s__push"),
            ("s__psuh", "s__push"),
            ("t-Push", "t__push"),
            ("add_servr", "add_server"),
            ("add__server", "add_server"),
            ("server_log", "server_logs"),
        ] {
            assert_eq!(told(&client, name), meant(name, known));
        }
        for name in ["n__push", "s__unlike", "add_something", "search_tool"] {
            assert_eq!(told(&client, name), format!("Unknown tool: {name}"));
        }
        // A prompt is no tool.
        let prompt = client.refusal("prompts/get", &json!({ "name": "add_servr" }));
        assert_eq!(prompt["message"], "Unknown prompt: add_servr");
        two.is_quiet();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_a_profile_hides_is_never_meant() {
    here(async {
        let two = Two::begin().await;
        two.profiles(&[
            ("bare", "deny \"s__push\"\nmanage #false"),
            ("found", "tools \"search\"\ndeny \"t__push\"\ndeny \"add_server\""),
        ]);
        let bare = two.client("bare");
        for name in ["s__psuh", "add_servr", "search_tool"] {
            assert_eq!(told(&bare, name), format!("Unknown tool: {name}"));
        }
        for name in ["push", "s_push"] {
            assert_eq!(told(&bare, name), meant(name, "t__push"));
        }
        let found = two.client("found");
        for name in ["t__psuh", "add_servr"] {
            assert_eq!(told(&found, name), format!("Unknown tool: {name}"));
        }
        // They may be used, though they are not listed.
        assert_eq!(told(&found, "search_tool"), meant("search_tool", "search_tools"));
        assert_eq!(told(&found, "list_server"), meant("list_server", "list_servers"));
        assert_eq!(told(&found, "push"), meant("push", "s__push"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_last_of_thousands_is_meant_like_the_first() {
    here(async {
        let play = Harness::begin().await;
        let tools = (0..3000).map(|number| {
            let tool = json!({ "name": format!("tool_{number:04}"), "inputSchema": {} });
            Item::read(Kind::Tools, &tool.to_string()).unwrap()
        });
        let mut lists = Lists::default();
        lists.set(Kind::Tools, tools.collect());
        play.router.learn(&play.server, &play.upstream, Known::new("s", legacy(), lists));
        let client = play.client(&json!({}));
        for name in ["s__tol_0000", "s__tol_2999"] {
            assert_eq!(told(&client, name), meant(name, &name.replace("tol", "tool")));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn tools_of_our_own_take_their_arguments_by_name() {
    here(async {
        let two = Two::begin().await;
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
                let told = text(&error["message"]);
                assert!(told.starts_with("`arguments` is not an object; "), "{told}");
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_removed_cannot_be_started() {
    here(async {
        let two = Two::begin().await;
        let Harness { router, server, upstream, .. } = &two.play;
        let client = two.client("default");
        upstream.close(crate::upstream::Cause::end("`s` has ended"));
        router.over(server, upstream, "`s` has ended");
        client.heard();
        client.call("1"); // It waits for the next life.
        server.is_removed.set(true);
        router.remove(server);
        let told =
            "`s` is not running: it has been removed; `xy list` shows the servers that there are";
        let heard = client.heard();
        assert!(heard.iter().any(|it| it["error"]["message"] == told), "{heard:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_that_is_down_can_be_started_and_one_that_is_starting_cannot() {
    here(async {
        let two = Two::begin().await;
        let server = &two.play.server;
        let hint = |fault: CallError| fault.hint.unwrap_or_default();
        assert!(hint(server.down("it was stopped")).contains("`xy start s` starts it"));
        let yet = server.not_yet();
        assert_eq!(yet.to_string(), "`s` is still starting: it is not ready yet");
        assert_eq!(hint(yet), "try again later; `xy status s` shows its state");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_to_listen_to_is_said_by_name_too() {
    here(async {
        let play = Harness::begin().await;
        for wanted in [json!([true]), json!(7), json!("all")] {
            let view = View::Profile("default".to_owned());
            let entry =
                Entry { view, may_manage: false, lifetime: Lifetime::Request, who: 1, bound: None };
            let heard = Rc::new(RecordedMessages::default());
            let client_session = play.router.open(entry, heard.clone()).unwrap();
            let client = Visitor { client_session, heard };
            let meta = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            });
            let params = json!({ "notifications": wanted, "_meta": meta });
            let error = client.refusal("subscriptions/listen", &params);
            assert_eq!(error["code"], -32602, "{error}");
            assert_eq!(error["message"], "`notifications` is not an object");
        }
    })
    .await;
}
