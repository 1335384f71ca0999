//! The scripts for the servers, and the answers to server requests.

use super::drive::Step;

fn ask(label: &'static str, method: &'static str, params: &'static str) -> Step {
    Step::Request { label, method, params }
}

/// Returns a script with every message that the fixture understands. A call precedes the lists,
/// because lists of an unused server may be cached ones.
pub(crate) fn fixture() -> Vec<Step> {
    let parts = [calls(), lists(), questions(), resources(), prompts(), levels(), tasks()];
    [parts.concat(), wrong(), unknown(), cancelled()].concat()
}

fn lists() -> Vec<Step> {
    vec![
        ask("list of tools", "tools/list", "{}"),
        ask("list of prompts", "prompts/list", r#"{"_meta":{"x":1.0}}"#),
        ask("list of resources", "resources/list", "{}"),
        ask("list of templates", "resources/templates/list", "{}"),
    ]
}

fn calls() -> Vec<Step> {
    vec![
        ask("simple text", "tools/call", r#"{"name":"<name:test_simple_text>"}"#),
        ask("image", "tools/call", r#"{"arguments":{},"name":"<name:test_image_content>"}"#),
        ask("audio", "tools/call", r#"{"name":"<name:test_audio_content>","arguments":{}}"#),
        ask("embedded", "tools/call", r#"{"name":"<name:test_embedded_resource>"}"#),
        ask("several contents", "tools/call", r#"{"name":"<name:test_multiple_content_types>"}"#),
        ask("logging", "tools/call", r#"{"name":"<name:test_tool_with_logging>","arguments":{}}"#),
        ask(
            "progress",
            "tools/call",
            r#"{"_meta":{"x":1.0,"progressToken":"\u0070-1"},"name":"<name:test_tool_with_progress>"}"#,
        ),
        ask(
            "progress with a number",
            "tools/call",
            r#"{"name":"<name:test_tool_with_progress>","_meta":{"progressToken":12345678901234567890}}"#,
        ),
        ask("error", "tools/call", r#"{"name":"<name:test_error_handling>"}"#),
        ask("reconnection", "tools/call", r#"{"name":"<name:test_reconnection>"}"#),
        ask(
            "schema",
            "tools/call",
            r#"{"name":"<name:json_schema_2020_12_tool>","arguments":{"name":"x"}}"#,
        ),
        ask("odd result", "tools/call", r#"{"name":"<name:odd_result>","arguments":{"n":1.0}}"#),
        ask("odd error", "tools/call", r#"{"name":"<name:odd_error>"}"#),
        ask(
            "odd echo",
            "tools/call",
            r#"{"x-first":1.0,"arguments":{"z":1e3,"a":[12345678901234567890,-0.0,2.50],"\u00e9":"\ud83d\ude00\/","name":"x","uri":"x"},"name":"<name:odd_echo>","_meta":{"vendor.example/k":{"z":1.0,"a":null},"traceparent":"00-1"},"x-last":null}"#,
        ),
        ask("odd notifications", "tools/call", r#"{"name":"<name:odd_notifications>"}"#),
    ]
}

fn questions() -> Vec<Step> {
    vec![
        ask(
            "sampling",
            "tools/call",
            r#"{"name":"<name:test_sampling>","arguments":{"prompt":"\u00e9?"}}"#,
        ),
        ask(
            "elicitation",
            "tools/call",
            r#"{"name":"<name:test_elicitation>","arguments":{"message":"Who\/what?"}}"#,
        ),
        ask("defaults", "tools/call", r#"{"name":"<name:test_elicitation_sep1034_defaults>"}"#),
        ask("enums", "tools/call", r#"{"name":"<name:test_elicitation_sep1330_enums>"}"#),
        ask("roots", "tools/call", r#"{"name":"<name:ask_roots>"}"#),
        ask("url", "tools/call", r#"{"name":"<name:ask_url>"}"#),
        ask("url needed", "tools/call", r#"{"name":"<name:need_url>"}"#),
        ask("odd question", "tools/call", r#"{"name":"<name:ask_oddly>"}"#),
    ]
}

fn resources() -> Vec<Step> {
    vec![
        ask("read text", "resources/read", r#"{"uri":"<uri:test://static-text>"}"#),
        ask("read binary", "resources/read", r#"{"uri":"<uri:test://static-binary>"}"#),
        ask("read odd", "resources/read", r#"{"x":1.0,"uri":"<uri:test://watched-resource>"}"#),
        ask("read template", "resources/read", r#"{"uri":"<uri:test://template/a%20b/data>"}"#),
        ask(
            "touch unwatched",
            "tools/call",
            r#"{"name":"<name:touch>","arguments":{"uri":"test://watched-resource"}}"#,
        ),
        ask("watch", "resources/subscribe", r#"{"uri":"<uri:test://watched-resource>"}"#),
        ask(
            "touch watched",
            "tools/call",
            r#"{"name":"<name:touch>","arguments":{"uri":"test://watched-resource"}}"#,
        ),
        ask("unwatch", "resources/unsubscribe", r#"{"uri":"<uri:test://watched-resource>"}"#),
        ask(
            "touch no longer watched",
            "tools/call",
            r#"{"name":"<name:touch>","arguments":{"uri":"test://watched-resource"}}"#,
        ),
    ]
}

fn prompts() -> Vec<Step> {
    vec![
        ask("simple prompt", "prompts/get", r#"{"name":"<name:test_simple_prompt>"}"#),
        ask(
            "prompt with arguments",
            "prompts/get",
            r#"{"arguments":{"arg2":"\u00e9","arg1":"\/"},"name":"<name:test_prompt_with_arguments>"}"#,
        ),
        ask(
            "prompt with a resource",
            "prompts/get",
            r#"{"name":"<name:test_prompt_with_embedded_resource>","arguments":{"resourceUri":"test://example"}}"#,
        ),
        ask("prompt with an image", "prompts/get", r#"{"name":"<name:test_prompt_with_image>"}"#),
        ask(
            "completion of a prompt",
            "completion/complete",
            r#"{"x":1.0,"argument":{"value":"par","name":"arg1"},"ref":{"x":1.0,"type":"ref/prompt","name":"<name:test_prompt_with_arguments>"}}"#,
        ),
        ask(
            "completion of a template",
            "completion/complete",
            r#"{"ref":{"type":"ref/resource","uri":"<uri:test://template/{id}/data>"},"argument":{"name":"id","value":"park"},"context":{"arguments":{"n":"1"}}}"#,
        ),
    ]
}

fn levels() -> Vec<Step> {
    vec![
        ask("level error", "logging/setLevel", r#"{"level":"error"}"#),
        ask("log from error", "tools/call", r#"{"name":"<name:every_level>"}"#),
        ask("level debug", "logging/setLevel", r#"{"x":1.0,"level":"debug"}"#),
        ask("log from debug", "tools/call", r#"{"name":"<name:every_level>"}"#),
        ask("more tools", "tools/call", r#"{"name":"<name:more_tools>"}"#),
        ask("list of more tools", "tools/list", "{}"),
        ask("dynamic", "tools/call", r#"{"name":"<name:test_dynamic>"}"#),
        ask("fewer tools", "tools/call", r#"{"name":"<name:more_tools>"}"#),
        ask("list of fewer tools", "tools/list", "{}"),
    ]
}

fn tasks() -> Vec<Step> {
    vec![
        ask("no task", "tools/call", r#"{"name":"<name:maybe_task>"}"#),
        ask("task only", "tools/call", r#"{"name":"<name:only_task>"}"#),
        ask("begin", "tools/call", r#"{"task":{"ttl":6e4,"x":1.0},"name":"<name:maybe_task>"}"#),
        ask("look", "tasks/get", r#"{"taskId":"task-1"}"#),
        ask("look again", "tasks/get", r#"{"x":1.0,"taskId":"task-1"}"#),
        ask("result", "tasks/result", r#"{"taskId":"task-1"}"#),
        ask("begin a second", "tools/call", r#"{"name":"<name:only_task>","task":{}}"#),
        ask("cancel it", "tasks/cancel", r#"{"taskId":"task-2"}"#),
        ask("cancel it again", "tasks/cancel", r#"{"taskId":"task-2"}"#),
        ask("result of none", "tasks/result", r#"{"taskId":"task-2"}"#),
        ask(
            "begin one that fails",
            "tools/call",
            r#"{"name":"<name:maybe_task>","arguments":{"fails":true},"task":{"ttl":1000}}"#,
        ),
        ask("result of a failure", "tasks/result", r#"{"taskId":"task-3"}"#),
        ask(
            "begin one that asks",
            "tools/call",
            r#"{"name":"<name:maybe_task>","arguments":{"asks":true},"task":{"ttl":1000}}"#,
        ),
        ask("result after a question", "tasks/result", r#"{"taskId":"task-4"}"#),
        ask("every task", "tasks/list", "{}"),
    ]
}

fn wrong() -> Vec<Step> {
    vec![
        ask("unknown tool", "tools/call", r#"{"name":"<name:nothing>"}"#),
        ask("nameless tool", "tools/call", r#"{"arguments":{}}"#),
        ask("unknown prompt", "prompts/get", r#"{"name":"<name:nothing>"}"#),
        ask("missing argument", "prompts/get", r#"{"name":"<name:test_prompt_with_arguments>"}"#),
        ask("unknown resource", "resources/read", r#"{"uri":"<uri:test://nothing>"}"#),
        ask("placeless resource", "resources/read", "{}"),
        ask("unknown level", "logging/setLevel", r#"{"level":"loud"}"#),
        ask("watch nothing", "resources/subscribe", "{}"),
        ask("unknown task", "tasks/get", r#"{"taskId":"task-99"}"#),
        ask("unknown method", "fixture/nothing", "{}"),
    ]
}

fn unknown() -> Vec<Step> {
    vec![
        ask("echo", "fixture/echo", r#"{"z":1e3,"a":[1.0,12345678901234567890],"\u00e9":"\/"}"#),
        Step::Notify { method: "notifications/fixture/poke", params: r#"{"z":1.0,"a":"\u00e9"}"# },
        ask("poked", "fixture/poked", "{}"),
        ask("client", "fixture/client", "{}"),
        Step::Notify { method: "notifications/roots/list_changed", params: r#"{"_meta":{}}"# },
        ask("ping with params", "ping", r#"{"x":1.0}"#),
    ]
}

fn cancelled() -> Vec<Step> {
    vec![
        Step::Cancel {
            label: "cancellation",
            method: "tools/call",
            params: r#"{"name":"<name:wait_for_cancel>"}"#,
            once: "notifications/fixture/waiting",
            cancel: r#"{"x-more":[1.0],"reason":"\u00fcber","requestId":<id>}"#,
        },
        ask("what was cancelled", "tools/call", r#"{"name":"<name:last_cancelled>"}"#),
        ask(
            "sampling after a cancellation",
            "tools/call",
            r#"{"name":"<name:test_sampling>","arguments":{"prompt":"Again?"}}"#,
        ),
    ]
}

/// Returns answers that are hard to forward.
pub(crate) fn odd_answers(method: &str) -> String {
    match method {
        "sampling/createMessage" => r#""result":{"x-a":1.0,"stopReason":"endTurn","role":"assistant","model":"m\/1","content":{"text":"\u00fcber","type":"text"},"_meta":{"example.com/n":12345678901234567890}}"#,
        "elicitation/create" => r#""result":{"content":{"word":"\u006aa","n":1e3},"action":"accept","x-b":[1.0]}"#,
        "roots/list" => r#""result":{"roots":[{"x-r":1.0,"uri":"file:\/\/\/tmp","name":"t"}]}"#,
        _ => r#""error":{"data":1.0,"message":"no","code":-32601}"#,
    }
    .to_owned()
}

/// Returns a script with the requests that the everything server answers deterministically.
pub(crate) fn everything() -> Vec<Step> {
    let settle = Step::Settle {
        method: "tools/list",
        holds: "trigger-url-elicitation",
        notification: "notifications/message", // The server has asked for the roots.
    };
    [vec![settle], lists(), everything_calls(), everything_rest(), everything_tasks()].concat()
}

fn everything_calls() -> Vec<Step> {
    vec![
        ask("echo", "tools/call", r#"{"name":"<name:echo>","arguments":{"message":"\u00e9"}}"#),
        ask(
            "annotated",
            "tools/call",
            r#"{"name":"<name:get-annotated-message>","arguments":{"messageType":"error","includeImage":true}}"#,
        ),
        ask(
            "links",
            "tools/call",
            r#"{"name":"<name:get-resource-links>","arguments":{"count":4}}"#,
        ),
        ask(
            "reference",
            "tools/call",
            r#"{"name":"<name:get-resource-reference>","arguments":{"resourceType":"Text","resourceId":1}}"#,
        ),
        ask(
            "structured",
            "tools/call",
            r#"{"name":"<name:get-structured-content>","arguments":{"location":"Chicago"}}"#,
        ),
        ask("sum", "tools/call", r#"{"name":"<name:get-sum>","arguments":{"a":1e3,"b":2.50}}"#),
        ask("image", "tools/call", r#"{"name":"<name:get-tiny-image>"}"#),
        ask(
            "progress",
            "tools/call",
            r#"{"name":"<name:trigger-long-running-operation>","arguments":{"duration":0.4,"steps":4},"_meta":{"progressToken":"p"}}"#,
        ),
        ask(
            "sampling",
            "tools/call",
            r#"{"name":"<name:trigger-sampling-request>","arguments":{"prompt":"\u00e9","maxTokens":5}}"#,
        ),
        ask("elicitation", "tools/call", r#"{"name":"<name:trigger-elicitation-request>"}"#),
        ask("roots", "tools/call", r#"{"name":"<name:get-roots-list>"}"#),
        ask(
            "url",
            "tools/call",
            r#"{"name":"<name:trigger-url-elicitation>","arguments":{"url":"https://example.com/a","elicitationId":"e-1"}}"#,
        ),
        ask(
            "url needed",
            "tools/call",
            r#"{"name":"<name:trigger-url-elicitation>","arguments":{"url":"https://example.com/b","elicitationId":"e-2","errorPath":true}}"#,
        ),
        ask("wrong arguments", "tools/call", r#"{"name":"<name:get-sum>","arguments":{"a":"x"}}"#),
        ask("unknown tool", "tools/call", r#"{"name":"<name:nothing>"}"#),
    ]
}

fn everything_rest() -> Vec<Step> {
    vec![
        ask("simple prompt", "prompts/get", r#"{"name":"<name:simple-prompt>"}"#),
        ask(
            "prompt with arguments",
            "prompts/get",
            r#"{"name":"<name:args-prompt>","arguments":{"city":"Bern","state":"BE"}}"#,
        ),
        ask("missing argument", "prompts/get", r#"{"name":"<name:args-prompt>"}"#),
        ask("unknown prompt", "prompts/get", r#"{"name":"<name:nothing>"}"#),
        ask(
            "read static",
            "resources/read",
            r#"{"uri":"<uri:demo://resource/static/document/features.md>"}"#,
        ),
        ask("read dynamic", "resources/read", r#"{"uri":"<uri:demo://resource/dynamic/text/1>"}"#),
        ask("unknown resource", "resources/read", r#"{"uri":"<uri:demo://nothing>"}"#),
        ask("watch", "resources/subscribe", r#"{"uri":"<uri:demo://resource/dynamic/text/1>"}"#),
        ask(
            "unwatch",
            "resources/unsubscribe",
            r#"{"uri":"<uri:demo://resource/dynamic/text/1>"}"#,
        ),
        ask(
            "completion of a prompt",
            "completion/complete",
            r#"{"ref":{"type":"ref/prompt","name":"<name:completable-prompt>"},"argument":{"name":"department","value":"E"}}"#,
        ),
        ask(
            "completion of a template",
            "completion/complete",
            r#"{"ref":{"type":"ref/resource","uri":"<uri:demo://resource/dynamic/text/{resourceId}>"},"argument":{"name":"resourceId","value":"7"}}"#,
        ),
        ask("level", "logging/setLevel", r#"{"level":"error"}"#),
        ask("unknown level", "logging/setLevel", r#"{"level":"loud"}"#),
        ask("unknown method", "nothing/such", "{}"),
    ]
}

fn everything_tasks() -> Vec<Step> {
    vec![
        ask(
            "begin a task",
            "tools/call",
            r#"{"name":"<name:simulate-research-query>","arguments":{"topic":"x"},"task":{"ttl":60000}}"#,
        ),
        ask("result of the task", "tasks/result", r#"{"taskId":"<task>"}"#),
    ]
}

/// Returns answers that the everything server understands.
pub(crate) fn plain_answers(method: &str) -> String {
    match method {
        "sampling/createMessage" => {
            r#""result":{"role":"assistant","model":"m","content":{"type":"text","text":"\u00fcber"},"stopReason":"endTurn"}"#
        }
        "elicitation/create" => r#""result":{"action":"decline"}"#,
        "roots/list" => r#""result":{"roots":[{"uri":"file:///tmp","name":"t"}]}"#,
        _ => r#""error":{"code":-32601,"message":"no"}"#,
    }
    .to_owned()
}
