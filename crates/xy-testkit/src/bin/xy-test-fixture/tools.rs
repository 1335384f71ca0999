//! Implementations of the tools. Their list entries are in `catalog.rs`.

use std::time::Duration;

use crate::catalog::{PICTURE, SOUND};
use crate::client_request::answer_to;
use crate::request::{BAD_PARAMS, Request};
use crate::subscriptions::{self, Change};
use crate::{headers, inputs, job_tools, tasks};
use xy_testkit::json::{Members, quoted};

/// Delay between two steps of a tool that sends notifications.
const STEP: Duration = Duration::from_millis(50);

/// Default duration of `test_reconnection` after the disconnect. It is long enough for a gateway
/// in between to resume the stream.
const RECONNECT_DELAY: Duration = Duration::from_secs(2);

/// Maximum time that a tool waits for a cancellation.
const CANCEL_TIMEOUT: Duration = Duration::from_mins(1);

/// A valid result with unusual fields, numbers, escapes and spacing.
const ODD: &str = r#"{ "x-first" :1.0,"structuredContent":{"z":1e3,"a":12345678901234567890,"m":-0.0,"deep":[[[{"\u00e9":"\ud83d\ude00","slash":"\/","nul":null}]]],"empty":{},"spaced" : [ 1 , 2.50 ]},"content":[{"text":"\u0041\u00e9\u4e2d 😀 \"quoted\" \\ \/ \t","x-note":{"n":1E+2},"type":"text","annotations":{"priority":0.50,"audience":["user","assistant"],"lastModified":"2025-11-25T00:00:00Z","x-mood":"odd"},"_meta":{"example.com/key":[1.0,2.00]}},{"type":"resource_link","uri":"test://static-text","name":"static","icons":[{"src":"data:image/png;base64,AAAA","mimeType":"image/png","sizes":["48x48"],"x-shape":"round"}],"size":1e2},{"type":"text","text":""}],"isError":false,"_meta":{"vendor.example/answer":{"id":7,"jsonrpc":"1.0","method":"not/one"},"anthropic/maxResultSizeChars":500000},"x-last":[true,false,null]}"#;

/// Calls a tool.
pub(crate) fn call(request: &Request) {
    let Some(name) = request.params.string("name") else {
        return request.refuse(BAD_PARAMS, "which tool?");
    };
    let arguments = request.params.members("arguments");
    match name.as_str() {
        "test_simple_text" => request.text("This is a simple text response for testing."),
        "test_image_content" => request.result(&content(&picture())),
        "test_audio_content" => {
            let sound = format!(r#"{{"type":"audio","data":"{SOUND}","mimeType":"audio/wav"}}"#);
            request.result(&content(&sound));
        }
        "test_embedded_resource" => request.result(&content(
            r#"{"type":"resource","resource":{"uri":"test://embedded-resource","mimeType":"text/plain","text":"This is an embedded resource content."}}"#,
        )),
        "test_multiple_content_types" => request.result(&content(&format!(
            r#"{{"type":"text","text":"Multiple content types test:"}},{},{{"type":"resource","resource":{{"uri":"test://mixed-content-resource","mimeType":"application/json","text":"{{\"test\":\"data\",\"value\":123}}"}}}}"#,
            picture()
        ))),
        "test_tool_with_logging" => with_logging(request),
        "test_tool_with_progress" => with_progress(request),
        "test_error_handling" => {
            request.tool_error("This tool intentionally returns an error for testing");
        }
        "test_sampling" => with_sampling(request, &arguments),
        "test_elicitation" => with_elicitation(request, &arguments),
        "test_elicitation_sep1034_defaults" => elicit(request, "Please fill in.", DEFAULTS),
        "test_elicitation_sep1330_enums" => elicit(request, "Please choose.", ENUMS),
        "test_reconnection" => with_reconnection(request),
        "json_schema_2020_12_tool" => request.text(&request.params_text),
        _ => call_other(request, &name, &arguments),
    }
}

/// Calls a tool that the conformance suite of the legacy era does not use.
fn call_other(request: &Request, name: &str, arguments: &Members) {
    let is_task = !request.is_modern() && request.params.has("task");
    match name {
        _ if inputs::call(request, name) || job_tools::call_in_any_era(request, name, arguments) => {}
        "test_logging_tool" => {
            request.log("info", r#""from the tool that logs""#);
            request.text("logged, if that was wanted");
        }
        "test_trigger_tool_change" => toggle_dynamic_tool(request),
        "test_trigger_prompt_change" => {
            request.session.update(|state| state.has_more_prompts = !state.has_more_prompts);
            subscriptions::notify_subscribers(request, Change::Prompts);
            request.text("the list is another");
        }
        "odd_result" => request.result(ODD),
        "odd_error" => request.fail(
            r#"{"x-kind":"odd","data":{"z":1.0,"a":[1e3],"big":98765432109876543210},"message":"\u006fdd \ud83d\ude00","code":-31234}"#,
        ),
        "odd_echo" | headers::MIRRORED_TOOL => request.text(&request.params_text),
        "odd_notifications" => odd_notifications(request),
        "every_level" => {
            for level in ["debug", "info", "notice", "warning", "error", "critical", "emergency"] {
                request.log(level, r#"{"n":1.0,"at":"every level"}"#);
            }
            request.text("said");
        }
        "ask_roots" => ask(request, "roots/list", r#"{"_meta":{"example.com/why":1.0}}"#),
        "ask_url" => ask_url(request),
        "need_url" if request.is_modern() => ask(request, "elicitation/create", NEEDED_PAGE),
        "need_url" => request.fail(
            r#"{"code":-32042,"message":"first go there","data":{"elicitations":[{"mode":"url","elicitationId":"needed-1","url":"https:\/\/example.com\/needed","message":"Please confirm."}]}}"#,
        ),
        "ask_oddly" => ask(request, "sampling/createMessage", ODD_QUESTION),
        "wait_for_cancel" => wait_for_cancel(request),
        "last_cancelled" => match request.session.wait_for_any_cancel(CANCEL_TIMEOUT) {
            Some(reason_json) => request.text(&reason_json),
            None => request.tool_error("nothing was cancelled"),
        },
        "touch" => touch(request, &arguments.string("uri").unwrap_or_default()),
        "more_tools" => toggle_dynamic_tool(request),
        "test_dynamic" if request.session.state().has_more_tools => request.text("here"),
        "maybe_task" | "only_task" if is_task => tasks::begin(request),
        "maybe_task" => request.text("done without a task"),
        "only_task" => request.refuse(-32601, "only as a task"),
        _ => request.refuse(BAD_PARAMS, &format!("no tool `{name}`")),
    }
}

fn content(entries: &str) -> String {
    format!(r#"{{"content":[{entries}]}}"#)
}

fn picture() -> String {
    format!(r#"{{"type":"image","data":"{PICTURE}","mimeType":"image/png"}}"#)
}

fn with_logging(request: &Request) {
    for text in ["Tool execution started", "Tool processing data", "Tool execution completed"] {
        request.log("info", &quoted(text));
        request.wait(STEP);
    }
    request.text("Tool with logging executed successfully");
}

fn with_progress(request: &Request) {
    for progress in ["0", "5e1", "100.0"] {
        if let Some(token) = request.progress_token() {
            request.notify(
                "notifications/progress",
                &format!(
                    r#"{{"total":1.0e2,"x-step":{progress},"progressToken":{token},"progress":{progress},"message":"at {progress}"}}"#
                ),
            );
        }
        request.wait(STEP);
    }
    request.text("Tool with progress executed successfully");
}

/// Sends a request to the client, and answers with the unchanged text of its response.
fn ask(request: &Request, method: &'static str, params: &str) {
    if let Some(answer) = answer_to(request, method, params) {
        request.text(answer.raw("result").or(answer.raw("error")).unwrap_or("null"));
    }
}

fn with_sampling(request: &Request, arguments: &Members) {
    let prompt = arguments.raw("prompt").unwrap_or("\"\"");
    let params = format!(
        r#"{{"messages":[{{"role":"user","content":{{"type":"text","text":{prompt}}}}}],"maxTokens":100}}"#
    );
    if let Some(answer) = answer_to(request, "sampling/createMessage", &params) {
        let text = answer.members("result").members("content").string("text");
        request.text(&format!("LLM response: {}", text.unwrap_or_default()));
    }
}

fn with_elicitation(request: &Request, arguments: &Members) {
    let message = arguments.raw("message").unwrap_or("\"\"");
    let schema = r#"{"type":"object","properties":{"username":{"type":"string","description":"User's response"},"email":{"type":"string","description":"User's email address"}},"required":["username","email"]}"#;
    let params = format!(r#"{{"message":{message},"requestedSchema":{schema}}}"#);
    if let Some(answer) = answer_to(request, "elicitation/create", &params) {
        request.text(&format!("User response: {}", outcome(&answer)));
    }
}

const DEFAULTS: &str = r#"{"type":"object","properties":{"name":{"type":"string","description":"User name","default":"John Doe"},"age":{"type":"integer","description":"User age","default":30},"score":{"type":"number","description":"User score","default":95.5},"status":{"type":"string","description":"User status","enum":["active","inactive","pending"],"default":"active"},"verified":{"type":"boolean","description":"Verification status","default":true}},"required":[]}"#;

const ENUMS: &str = r#"{"type":"object","properties":{"untitledSingle":{"type":"string","description":"Select one option","enum":["option1","option2","option3"]},"titledSingle":{"type":"string","description":"Select one option with titles","oneOf":[{"const":"value1","title":"First Option"},{"const":"value2","title":"Second Option"},{"const":"value3","title":"Third Option"}]},"legacyEnum":{"type":"string","description":"Select one option (legacy)","enum":["opt1","opt2","opt3"],"enumNames":["Option One","Option Two","Option Three"]},"untitledMulti":{"type":"array","description":"Select multiple options","minItems":1,"maxItems":3,"items":{"type":"string","enum":["option1","option2","option3"]}},"titledMulti":{"type":"array","description":"Select multiple options with titles","minItems":1,"maxItems":3,"items":{"anyOf":[{"const":"value1","title":"First Choice"},{"const":"value2","title":"Second Choice"},{"const":"value3","title":"Third Choice"}]}}},"required":[]}"#;

fn elicit(request: &Request, message: &str, schema: &str) {
    let params = format!(r#"{{"message":{},"requestedSchema":{schema}}}"#, quoted(message));
    if let Some(answer) = answer_to(request, "elicitation/create", &params) {
        request.text(&format!("Elicitation completed: {}", outcome(&answer)));
    }
}

fn outcome(answer: &Members) -> String {
    let result = answer.members("result");
    let action = result.string("action").unwrap_or_default();
    format!("action={action}, content={}", result.raw("content").unwrap_or("{}"))
}

/// Disconnects the client during the call. The client gets the response after it reconnects.
///
/// The modern era has no resumption, so the call only waits for `FIXTURE_AWAY_MS` (0).
fn with_reconnection(request: &Request) {
    request.wait(STEP);
    let millis = std::env::var("FIXTURE_AWAY_MS").ok().and_then(|millis| millis.parse().ok());
    let away = millis.map(Duration::from_millis);
    if request.is_modern() {
        request.wait(away.unwrap_or_default());
        return request.text("Nobody can come back in this era.");
    }
    request.out.disconnect_reader();
    request.wait(away.unwrap_or(RECONNECT_DELAY));
    request.text("Reconnection test completed successfully. If you received this, the client properly reconnected after stream closure.");
}

/// Sends unknown notifications, and known ones with unknown fields.
fn odd_notifications(request: &Request) {
    request.notify(
        "notifications/fixture/odd",
        r#"{"z":1.0,"a":[12345678901234567890,1e3],"_meta":{"example.com/x":null}}"#,
    );
    request.send(r#"{"method":"notifications/fixture/bare","jsonrpc":"2.0"}"#);
    request.log("error", r#"{"nested":{"\u00e9":[1.50,{"k":1E2}]},"big":98765432109876543210}"#);
    if !request.is_modern() || request.is_log_enabled("alert") {
        request.send(
            r#"{"params":{"x-more":{"b":1.0,"a":2},"data":[1.0,null],"logger":"odd\/logger","level":"alert"},"x-outside":7.0,"method":"notifications/message","jsonrpc":"2.0"}"#,
        );
    }
    request.text("said");
}

const ODD_QUESTION: &str = r#"{"x-first":1.0,"maxTokens":1e3,"temperature":0.70,"messages":[{"content":{"text":"\u00fcber","type":"text","x-k":1},"role":"user"}],"tools":[{"name":"t","inputSchema":{"type":"object"}}],"toolChoice":{"mode":"auto"},"modelPreferences":{"costPriority":0.0,"hints":[{"name":"small","x-h":1}]},"_meta":{"example.com/k":{"n":12345678901234567890}},"metadata":{"x":[1.0]}}"#;

/// A URL elicitation. In the legacy era, the server also reports its completion.
const PAGE: &str = r#"{"mode":"url","message":"Please confirm.","url":"https:\/\/example.com\/confirm?a=1","elicitationId":"confirm-1","x-more":1.0}"#;

const MODERN_PAGE: &str = r#"{"mode":"url","message":"Please confirm.","url":"https:\/\/example.com\/confirm?a=1","x-more":1.0}"#;

const NEEDED_PAGE: &str =
    r#"{"mode":"url","url":"https:\/\/example.com\/needed","message":"Please confirm."}"#;

fn ask_url(request: &Request) {
    if request.is_modern() {
        return ask(request, "elicitation/create", MODERN_PAGE);
    }
    let Some(answer) = answer_to(request, "elicitation/create", PAGE) else {
        return;
    };
    request.notify(
        "notifications/elicitation/complete",
        r#"{"x-more":[1.0],"elicitationId":"confirm-1"}"#,
    );
    request.text(answer.raw("result").or(answer.raw("error")).unwrap_or("null"));
}

/// Reports that it has begun, and waits for its cancellation. A cancelled call gets no response.
fn wait_for_cancel(request: &Request) {
    request.notify("notifications/fixture/waiting", r#"{"n":1.0}"#);
    // Client libraries do not report unknown notifications, but they do report progress.
    if let Some(token) = request.progress_token() {
        let progress = format!(r#"{{"progressToken":{token},"progress":0,"total":1}}"#);
        request.notify("notifications/progress", &progress);
    }
    if !finish_if_cancelled(request, CANCEL_TIMEOUT) {
        request.tool_error("nobody cancelled this");
    }
}

/// Waits up to `time` for a cancellation. If one arrives, stores its reason and ends the stream
/// of the request. Returns true if the request was cancelled.
pub(crate) fn finish_if_cancelled(request: &Request, time: Duration) -> bool {
    let Some(params) = request.session.wait_for_cancel(&request.key, time) else {
        return false;
    };
    let [reason, more] = ["reason", "x-more"].map(|it| params.raw(it).unwrap_or("null"));
    let reason_json = format!(r#"{{"reason":{reason},"x-more":{more}}}"#);
    request.session.update(|state| state.last_cancel_reason = Some(reason_json));
    request.out.finish();
    true
}

/// Reports a change of a resource to its subscribers.
fn touch(request: &Request, uri: &str) {
    let is_watched = subscriptions::notify_subscribers(request, Change::Resource(uri));
    request.text(if is_watched { "touched" } else { "nobody watches" });
}

/// Adds or removes the dynamic tool, and reports the change.
fn toggle_dynamic_tool(request: &Request) {
    request.session.update(|state| state.has_more_tools = !state.has_more_tools);
    subscriptions::notify_subscribers(request, Change::Tools);
    request.text("the list is another");
}
