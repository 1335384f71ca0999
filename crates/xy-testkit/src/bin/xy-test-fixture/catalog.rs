//! The server's description of itself, its tools, prompts and resources, as JSON texts.

use crate::extra_entries;
use crate::request::{BAD_PARAMS, Request};
use xy_testkit::json::{Members, quoted};

/// Error code of the legacy era: resource not found.
const NO_RESOURCE: i64 = -32002;

/// A PNG image of one red pixel, in Base64.
pub(crate) const PICTURE: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";

/// A short WAV file, in Base64.
pub(crate) const SOUND: &str = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=";

/// The input schema of a tool without arguments.
const NO_ARGUMENTS: &str = r#""inputSchema":{"type":"object","properties":{}}"#;

/// The name and version of the server, with optional and unknown fields.
pub(crate) const SERVER_INFO: &str = r#"{"x-s":1e3,"version":"1.0.0","name":"xy-test-fixture","title":"F\u00efxture","icons":[{"src":"data:image/png;base64,AAAA"}],"websiteUrl":"https:\/\/example.com"}"#;

/// The tools of the conformance suite: name, description, and the rest of the entry.
const TOOLS: &[(&str, &str, &str)] = &[
    ("test_simple_text", "Answers a text", NO_ARGUMENTS),
    ("test_image_content", "Answers a picture", NO_ARGUMENTS),
    ("test_audio_content", "Answers a sound", NO_ARGUMENTS),
    ("test_embedded_resource", "Answers a resource", NO_ARGUMENTS),
    ("test_multiple_content_types", "Answers a text, a picture and a resource", NO_ARGUMENTS),
    ("test_tool_with_logging", "Writes to the log meanwhile", NO_ARGUMENTS),
    ("test_tool_with_progress", "Tells how far it is", NO_ARGUMENTS),
    ("test_error_handling", "Always fails", NO_ARGUMENTS),
    (
        "test_sampling",
        "Asks the client's model",
        r#""inputSchema":{"type":"object","properties":{"prompt":{"type":"string","description":"What to ask"}},"required":["prompt"]}"#,
    ),
    (
        "test_elicitation",
        "Asks the user",
        r#""inputSchema":{"type":"object","properties":{"message":{"type":"string","description":"What to ask"}},"required":["message"]}"#,
    ),
    ("test_elicitation_sep1034_defaults", "Asks the user, with defaults", NO_ARGUMENTS),
    ("test_elicitation_sep1330_enums", "Lets the user choose", NO_ARGUMENTS),
    ("test_reconnection", "Lets go of the client in the middle", NO_ARGUMENTS),
    (
        "json_schema_2020_12_tool",
        "Tool with JSON Schema 2020-12 features",
        r##""inputSchema":{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","$defs":{"address":{"$anchor":"addressDef","type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}}}},"properties":{"name":{"type":"string"},"address":{"$ref":"#/$defs/address"},"contactMethod":{"type":"string","enum":["phone","email"]},"phone":{"type":"string"},"email":{"type":"string"}},"allOf":[{"anyOf":[{"required":["phone"]},{"required":["email"]}]}],"if":{"properties":{"contactMethod":{"const":"phone"}},"required":["contactMethod"]},"then":{"required":["phone"]},"else":{"required":["email"]},"additionalProperties":false}"##,
    ),
];

/// Entries of the tools that are hard for a gateway to forward unchanged.
const ODD_TOOLS: &str = r#"{"x-before":1.0,"inputSchema":{"x-k":1e3,"type":"object","properties":{"n":{"type":"number","default":1.0,"maximum":12345678901234567890}}},"title":"\u00fcber\/odd","name":"odd_result","description":"\ud83d\ude00 a \u0022result\u0022","icons":[{"src":"data:image/png;base64,AAAA","theme":"dark","mimeType":"image/png","sizes":["48x48","any"],"x-i":0.10}],"annotations":{"x-a":[1.0],"readOnlyHint":true,"title":"odd"},"_meta":{"vendor.example/tool":{"z":1.0,"a":null},"anthropic/maxResultSizeChars":500000},"outputSchema":{"type":"object","properties":{"z":{"type":"number"}}},"x-after":[true]},{"name":"odd_error","description":"Fails oddly","inputSchema":{"type":"object"}},{"name":"odd_echo","description":"Answers its params as they came","inputSchema":{"type":"object"}},{"name":"odd_notifications","description":"Says what nobody knows","inputSchema":{"type":"object"}},{"name":"every_level","description":"Writes to the log at every level","inputSchema":{"type":"object"}},{"name":"ask_roots","description":"Asks for the roots","inputSchema":{"type":"object"}},{"name":"ask_url","description":"Sends the user to a page","inputSchema":{"type":"object"}},{"name":"need_url","description":"Needs that the user has been at a page","inputSchema":{"type":"object"}},{"name":"ask_oddly","description":"Asks the model oddly","inputSchema":{"type":"object"}},{"name":"wait_for_cancel","description":"Answers nothing","inputSchema":{"type":"object"}},{"name":"last_cancelled","description":"Says what was cancelled","inputSchema":{"type":"object"}},{"name":"touch","description":"Changes a resource","inputSchema":{"type":"object","properties":{"uri":{"type":"string"}}}},{"name":"more_tools","description":"Changes the list of tools","inputSchema":{"type":"object"}},{"name":"maybe_task","description":"May be a task","inputSchema":{"type":"object","properties":{"fails":{"type":"boolean"},"asks":{"type":"boolean"}}},"execution":{"taskSupport":"optional","x-e":1.0}},{"name":"only_task","description":"Is always a task","inputSchema":{"type":"object"},"execution":{"taskSupport":"required"}}"#;

const DYNAMIC_TOOL: &str =
    r#",{"name":"test_dynamic","description":"Comes and goes","inputSchema":{"type":"object"}}"#;

const PROMPTS: &str = r#"{"name":"test_simple_prompt","description":"A prompt without arguments"},{"name":"test_prompt_with_arguments","description":"A prompt with two","arguments":[{"name":"arg1","description":"First test argument","required":true},{"name":"arg2","description":"Second test argument","required":true,"x-a":1.0}]},{"name":"test_prompt_with_embedded_resource","description":"A prompt with a resource","arguments":[{"name":"resourceUri","description":"Which","required":true}]},{"_meta":{"example.com/p":1e3},"x-first":1.0,"description":"A prompt with a picture \u00e9","name":"test_prompt_with_image","icons":[{"src":"data:image/png;base64,AAAA"}],"title":"Picture"}"#;

const RESOURCES: &str = r#"{"uri":"test://static-text","name":"Static Text Resource","description":"A text that stays as it is","mimeType":"text/plain"},{"uri":"test://static-binary","name":"Static Binary Resource","description":"A picture that stays as it is","mimeType":"image/png"},{"x-first":1.0,"size":1e2,"annotations":{"priority":0.50,"lastModified":"2025-11-25T00:00:00Z"},"uri":"test://watched-resource","name":"Watched Resource \ud83d\ude00","description":"One that changes","mimeType":"text/plain","_meta":{"example.com/r":12345678901234567890},"icons":[{"src":"data:image/png;base64,AAAA","x-i":1}]}"#;

const TEMPLATES: &str = r#"{"resourceTemplates":[{"x-first":1.0,"uriTemplate":"test://template/{id}/data","name":"Template \u00e9","description":"A resource for each id","mimeType":"application/json","_meta":{"example.com/t":1.0}}],"x-after":1.0}"#;

/// Returns the result of `initialize`.
pub(crate) fn initialize_result(version: &str) -> String {
    format!(
        r#"{{"x-first":1.0,"serverInfo":{SERVER_INFO},"capabilities":{{"tasks":{{"list":{{}},"cancel":{{}},"requests":{{"tools":{{"call":{{}}}}}}}},"tools":{{"listChanged":true,"x-t":1.0}},"prompts":{{"listChanged":true}},"resources":{{"subscribe":true,"listChanged":true}},"logging":{{}},"completions":{{}},"experimental":{{"example.com/odd":{{"n":12345678901234567890}}}}}},"protocolVersion":"{version}","instructions":"Use the \u0022tools\u0022. \ud83d\ude00","_meta":{{"example.com/i":[1.0]}}}}"#
    )
}

/// Returns the result of `server/discover`.
pub(crate) fn discover_result(version: &str) -> String {
    format!(
        r#"{{"x-first":1.0,"supportedVersions":["{version}"],"capabilities":{{"extensions":{{"com.example/odd":{{"n":1.0}},"io.modelcontextprotocol/tasks":{{}}}},"tools":{{"listChanged":true,"x-t":1.0}},"prompts":{{"listChanged":true}},"resources":{{"subscribe":true,"listChanged":false}},"logging":{{}},"completions":{{}},"experimental":{{"example.com/odd":{{"n":12345678901234567890}}}}}},"instructions":"Use the \u0022tools\u0022. \ud83d\ude00","_meta":{{"example.com/i":[1.0]}}}}"#
    )
}

/// Returns the result or the error of a list, read or completion request. Returns `None` for
/// other methods.
pub(crate) fn answer(request: &Request) -> Option<Result<String, String>> {
    let params = &request.params;
    match request.method.as_str() {
        "tools/list" => Some(Ok(tools(request))),
        "prompts/list" => Some(Ok(prompts(request))),
        "resources/list" => Some(Ok(resources())),
        "resources/templates/list" => Some(Ok(TEMPLATES.to_owned())),
        "resources/read" => Some(read(request, &params.string("uri").unwrap_or_default())),
        "prompts/get" => Some(prompt(request)),
        "completion/complete" => Some(Ok(complete(params))),
        _ => None,
    }
}

fn tools(request: &Request) -> String {
    let entries = TOOLS.iter().map(|(name, description, rest)| {
        format!(r#"{{"name":"{name}","description":"{description}",{rest}}}"#)
    });
    let entries = entries.collect::<Vec<_>>().join(",");
    let modern = if request.is_modern() { extra_entries::MODERN_TOOLS } else { "" };
    let more = extra_entries::TOOLS;
    let dynamic = if request.session.state().has_more_tools { DYNAMIC_TOOL } else { "" };
    format!(
        r#"{{"tools":[{entries},{ODD_TOOLS}{more}{modern}{dynamic}],"x-after":{{"n":1.0}},"_meta":{{"example.com/list":1e3}}}}"#
    )
}

fn prompts(request: &Request) -> String {
    let more = extra_entries::PROMPTS;
    let has_more = request.session.state().has_more_prompts;
    let dynamic = if has_more { extra_entries::DYNAMIC_PROMPT } else { "" };
    format!(
        r#"{{"prompts":[{PROMPTS}{more}{dynamic}],"_meta":{{"example.com/list":[2.00]}},"x-after":1.0}}"#
    )
}

fn resources() -> String {
    let more = extra_entries::RESOURCES;
    format!(r#"{{"x-before":1.0,"resources":[{RESOURCES}{more}]}}"#)
}

fn read(request: &Request, uri: &str) -> Result<String, String> {
    let template = uri.strip_prefix("test://template/").and_then(|it| it.strip_suffix("/data"));
    let (mime, rest) = match (uri, template) {
        ("test://static-text", _) => {
            ("text/plain", r#""text":"This is the content of the static text resource.""#.to_owned())
        }
        ("test://static-binary", _) => ("image/png", format!(r#""blob":"{PICTURE}""#)),
        ("test://watched-resource", _) => {
            ("text/plain", r#""x-c":1.0,"text":"\u00e9 watched \ud83d\ude00","_meta":{"example.com/c":12345678901234567890}"#.to_owned())
        }
        (_, Some(id)) => {
            let id_text = quoted(id);
            let about = quoted(&format!("Data for ID: {id}"));
            let text = quoted(&format!(r#"{{"id":{id_text},"templateTest":true,"data":{about}}}"#));
            ("application/json", format!(r#""text":{text}"#))
        }
        _ => {
            let uri = quoted(uri);
            let code = if request.is_modern() { BAD_PARAMS } else { NO_RESOURCE };
            return Err(format!(
                r#"{{"code":{code},"message":"Resource not found","data":{{"uri":{uri},"n":1.0}}}}"#
            ));
        }
    };
    Ok(contents(uri, mime, &rest))
}

/// Returns the result of `resources/read`. `rest` is the text or blob, as JSON members.
pub(crate) fn contents(uri: &str, mime: &str, rest: &str) -> String {
    let uri = quoted(uri);
    format!(r#"{{"contents":[{{"uri":{uri},"mimeType":"{mime}",{rest}}}],"x-after":1.0}}"#)
}

fn prompt(request: &Request) -> Result<String, String> {
    let params = &request.params;
    let name = params.string("name").unwrap_or_default();
    let arguments = params.members("arguments");
    let argument = |name: &str| {
        let missing = format!(r#"{{"code":{BAD_PARAMS},"message":"no argument `{name}`"}}"#);
        arguments.string(name).ok_or(missing)
    };
    let contents = match name.as_str() {
        "test_simple_prompt" => vec![text("This is a simple prompt for testing.")],
        "test_prompt_with_arguments" => {
            let (first, second) = (argument("arg1")?, argument("arg2")?);
            vec![text(&format!("Prompt with arguments: arg1='{first}', arg2='{second}'"))]
        }
        "test_prompt_with_embedded_resource" => {
            let uri = quoted(&argument("resourceUri")?);
            let resource = format!(
                r#"{{"type":"resource","resource":{{"uri":{uri},"mimeType":"text/plain","text":"Embedded resource content for testing."}}}}"#
            );
            vec![resource, text("Please process the embedded resource above.")]
        }
        "test_prompt_with_image" => vec![
            format!(r#"{{"type":"image","data":"{PICTURE}","mimeType":"image/png"}}"#),
            text("Please analyze the image above."),
        ],
        "test_dynamic_prompt" if request.session.state().has_more_prompts => vec![text("here")],
        other => {
            let why = quoted(&format!("no prompt `{other}`"));
            return Err(format!(r#"{{"code":{BAD_PARAMS},"message":{why}}}"#));
        }
    };
    let messages =
        contents.iter().map(|content| format!(r#"{{"role":"user","content":{content}}}"#));
    let messages = messages.collect::<Vec<_>>().join(",");
    Ok(format!(r#"{{"_meta":{{"example.com/p":1.0}},"messages":[{messages}]}}"#))
}

fn text(text: &str) -> String {
    format!(r#"{{"type":"text","text":{}}}"#, quoted(text))
}

fn complete(params: &Members) -> String {
    let prefix = params.members("argument").string("value").unwrap_or_default();
    let values = ["paris", "park", "party"].into_iter().filter(|it| it.starts_with(&prefix));
    let values = values.map(quoted).collect::<Vec<_>>().join(",");
    format!(r#"{{"completion":{{"hasMore":false,"values":[{values}],"total":1.5e2,"x-c":1.0}}}}"#)
}
