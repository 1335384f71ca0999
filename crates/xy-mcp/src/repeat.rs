//! What is safe to repeat if its outcome is unknown. Everything else may have effects.

use serde_json::Value;

/// The reason why a tool may be called twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeatable {
    /// The tool only reads.
    ReadOnly,
    /// A second call with the same arguments has no further effect.
    Idempotent,
}

impl Repeatable {
    /// Reads the annotations of a tool. Only a plain `true` counts.
    pub fn hinted(annotations: &Value) -> Option<Self> {
        if annotations["readOnlyHint"] == true {
            Some(Self::ReadOnly)
        } else if annotations["idempotentHint"] == true {
            Some(Self::Idempotent)
        } else {
            None
        }
    }
}

/// Returns true for requests that only read.
pub fn is_lookup(method: &str) -> bool {
    matches!(
        method,
        "tools/list"
            | "prompts/list"
            | "prompts/get"
            | "resources/list"
            | "resources/templates/list"
            | "resources/read"
            | "completion/complete"
            | "ping"
            | "server/discover"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_plain_true_makes_a_tool_repeatable() {
        let table = [
            (json!({ "readOnlyHint": true }), Some(Repeatable::ReadOnly)),
            (json!({ "readOnlyHint": true, "idempotentHint": true }), Some(Repeatable::ReadOnly)),
            (
                json!({ "readOnlyHint": false, "idempotentHint": true }),
                Some(Repeatable::Idempotent),
            ),
            (json!({ "readOnlyHint": "true", "idempotentHint": 1 }), None),
            (json!({ "readonlyhint": true }), None),
            (json!({}), None),
            (json!(null), None),
            (json!([true]), None),
            (json!("readOnlyHint"), None),
        ];
        for (annotations, expected) in table {
            assert_eq!(Repeatable::hinted(&annotations), expected, "{annotations}");
        }
    }

    #[test]
    fn requests_with_effects_are_no_lookups() {
        for method in ["tools/call", "resources/subscribe", "logging/setLevel", "tasks/get", ""] {
            assert!(!is_lookup(method), "{method}");
        }
        for method in ["tools/list", "resources/read", "server/discover", "ping"] {
            assert!(is_lookup(method), "{method}");
        }
    }
}
