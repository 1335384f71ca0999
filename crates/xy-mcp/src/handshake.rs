//! The `initialize` request, as it is repeated to another peer.

use crate::edit::Edits;
use crate::envelope::{self, Message};
use crate::members::Members;

/// Returns an `initialize` request that asks for `revision` instead of the one it asked for.
/// `None` if it is no request that asks for one.
pub fn ask_for_revision(request: &[u8], revision: &str) -> Option<Vec<u8>> {
    let Ok(Message::Request { params: Some(params), .. }) = envelope::parse(request) else {
        return None;
    };
    let written = Members::read(params)?.get("protocolVersion")?;
    let mut edits = Edits::of(request);
    edits.replace(written, serde_json::to_string(revision).ok()?);
    Some(edits.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_revision_changes() {
        let request = r#"{"id":1,"jsonrpc":"2.0","method":"initialize","params":{"x":1.50,"protocolVersion":"b"}}"#;
        let asked = ask_for_revision(request.as_bytes(), "a").unwrap();
        assert_eq!(String::from_utf8(asked).unwrap(), request.replace("\"b\"", "\"a\""));
        for other in ["{}", r#"{"id":1,"jsonrpc":"2.0","method":"initialize","params":{}}"#] {
            assert_eq!(ask_for_revision(other.as_bytes(), "a"), None);
        }
    }
}
