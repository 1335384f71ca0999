//! List entries for the conformance suite of the modern era, most of them served in both eras.
//!
//! Each text starts with a comma, so that it can be appended to the other entries.

/// Additional tools of both eras.
pub(crate) const TOOLS: &str = concat!(
    r#",{"name":"test_missing_capability","description":"Needs a client with a model","inputSchema":{"type":"object"}}"#,
    r#",{"name":"test_logging_tool","description":"Writes to the log if that is wanted","inputSchema":{"type":"object"}}"#,
    r#",{"name":"test_streaming_elicitation","description":"Asks the user in a round","inputSchema":{"type":"object"}}"#,
    r#",{"name":"test_trigger_tool_change","description":"Changes the list of tools","inputSchema":{"type":"object"}}"#,
    r#",{"name":"test_trigger_prompt_change","description":"Changes the list of prompts","inputSchema":{"type":"object"}}"#,
    r#",{"name":"test_input_required_result_elicitation","description":"Asks the user","inputSchema":{"type":"object"}}"#,
    r#",{"name":"test_input_required_result_sampling","description":"Asks the model","inputSchema":{"type":"object"}}"#,
    r#",{"name":"test_input_required_result_list_roots","description":"Asks for the roots","inputSchema":{"type":"object"}}"#,
    r#",{"name":"test_input_required_result_request_state","description":"Asks with a state","inputSchema":{"type":"object"}}"#,
    r#",{"name":"test_input_required_result_multiple_inputs","description":"Asks three things at once","inputSchema":{"type":"object"}}"#,
    r#",{"name":"test_input_required_result_multi_round","description":"Asks in two rounds","inputSchema":{"type":"object"}}"#,
    r#",{"name":"test_input_required_result_tampered_state","description":"Asks with a state that is looked at closely","inputSchema":{"type":"object"}}"#,
    r#",{"name":"test_input_required_result_capabilities","description":"Asks what the client can be asked","inputSchema":{"type":"object"}}"#,
    r#",{"name":"greet","description":"Is never a task","inputSchema":{"type":"object","properties":{"name":{"type":"string"}}}}"#,
    r#",{"name":"slow_compute","description":"Is a task if it may be","inputSchema":{"type":"object","properties":{"seconds":{"type":"integer"},"label":{"type":"string"}}}}"#,
    r#",{"name":"confirm_delete","description":"A task that asks","inputSchema":{"type":"object","properties":{"filename":{"type":"string"}}}}"#,
    r#",{"name":"multi_input","description":"A task that asks twice","inputSchema":{"type":"object"}}"#,
    r#",{"inputSchema":{"type":"object","properties":{"region":{"x-mcp-header":"Region","type":"string"},"count":{"type":"integer","x-mcp-header":"Count"},"loud":{"type":"boolean","x-mcp-header":"Loud","default":false},"deep":{"type":"object","properties":{"where":{"type":"string","x-mcp-header":"Deep-Where"}}}},"x-k":1.0},"name":"in_headers","description":"Has its arguments in headers too, and answers its params as they came"}"#,
);

/// Additional tools of the modern era only.
pub(crate) const MODERN_TOOLS: &str = concat!(
    r#",{"name":"test_tool_with_task","description":"Asks the user, then is a task","inputSchema":{"type":"object"}}"#,
    r#",{"name":"failing_job","description":"A task whose tool fails","inputSchema":{"type":"object"}}"#,
    r#",{"name":"protocol_error_job","description":"A task that falls over","inputSchema":{"type":"object"}}"#,
    r#",{"name":"hang_up","description":"Ends every subscription","inputSchema":{"type":"object"}}"#,
);

/// Additional prompts.
pub(crate) const PROMPTS: &str = r#",{"name":"test_input_required_result_prompt","description":"A prompt that asks first","x-after":1.0}"#;

/// The prompt that `test_trigger_prompt_change` adds and removes.
pub(crate) const DYNAMIC_PROMPT: &str =
    r#",{"name":"test_dynamic_prompt","description":"Comes and goes"}"#;

/// Additional resources.
pub(crate) const RESOURCES: &str = r#",{"uri":"test://asks-first","name":"Asks First","description":"One that asks before it is read","mimeType":"application/json","size":1e1}"#;
