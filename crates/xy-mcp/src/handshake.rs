//! The `initialize` request, repeated to another peer.

use crate::edit::Edits;
use crate::envelope::{self, Message};
use crate::members::Members;

/// Returns the `initialize` request with another protocol revision. Returns `None` if it is not a
/// request with a revision.
pub fn with_revision(request: &[u8], revision: &str) -> Option<Vec<u8>> {
    let Ok(Message::Request { params: Some(params), .. }) = envelope::parse(request) else {
        return None;
    };
    let revision_text = Members::read(params)?.get("protocolVersion")?;
    let mut edits = Edits::of(request);
    edits.replace(revision_text, serde_json::to_string(revision).ok()?);
    Some(edits.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_revision_changes() {
        let request = r#"{"id":1,"jsonrpc":"2.0","method":"initialize","params":{"x":1.50,"protocolVersion":"b"}}"#;
        let changed = with_revision(request.as_bytes(), "a").unwrap();
        assert_eq!(String::from_utf8(changed).unwrap(), request.replace("\"b\"", "\"a\""));
        for other in ["{}", r#"{"id":1,"jsonrpc":"2.0","method":"initialize","params":{}}"#] {
            assert_eq!(with_revision(other.as_bytes(), "a"), None);
        }
    }
}
