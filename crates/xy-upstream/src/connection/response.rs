//! The result or error in a response.

use std::borrow::Cow;

use serde::Deserialize;
use xy_mcp::envelope::{self, Message, Outcome};
use xy_protocol::control::{quoted, quoted_within};

/// Maximum number of characters that are shown of a server's error message.
const MAX_SHOWN: usize = 300;

/// Returns the result in a whole response, or its error as text for people.
pub fn result_of(answer: &str) -> Result<&str, String> {
    match envelope::parse(answer.as_bytes()) {
        Ok(Message::Response { outcome: Outcome::Result(result), .. }) => Ok(result),
        Ok(Message::Response { outcome: Outcome::Error(error), .. }) => {
            Err(ErrorObject::words(error))
        }
        _ => Err("it is not a valid response".to_owned()),
    }
}

/// Returns the code of the error in a whole response.
pub fn code_of(answer: &[u8]) -> Option<i64> {
    #[derive(Deserialize)]
    struct Code {
        code: serde_json::Value,
    }
    let Ok(Message::Response { outcome: Outcome::Error(error), .. }) = envelope::parse(answer)
    else {
        return None;
    };
    serde_json::from_str::<Code>(error).ok()?.code.as_i64()
}

#[derive(Debug, Deserialize)]
pub(super) struct ErrorObject<'t> {
    code: serde_json::Number,
    #[serde(borrow)]
    message: Cow<'t, str>,
}

impl<'t> ErrorObject<'t> {
    /// Parses an error, or returns `None` if it lacks a whole-number code or a message, which some
    /// clients could not parse.
    pub(super) fn read(text: &'t str) -> Option<Self> {
        let error: Self = serde_json::from_str(text).ok()?;
        let is_whole = error.code.as_f64().is_some_and(|code| code.fract() == 0.0);
        is_whole.then_some(error)
    }

    /// Returns the text of an error for people.
    pub(super) fn words(text: &str) -> String {
        match ErrorObject::read(text) {
            Some(ErrorObject { code, message }) => {
                format!("{} ({code})", quoted_within(&message, MAX_SHOWN))
            }
            None => quoted(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_needs_an_integer_code_and_a_message() {
        for text in [r#"{"code":-32602,"message":"m","data":{}}"#, r#"{"message":"","code":1.0}"#] {
            assert!(ErrorObject::read(text).is_some(), "{text}");
        }
        for text in [
            "7",
            r#""bad""#,
            "{}",
            r#"{"code":1}"#,
            r#"{"message":"m"}"#,
            r#"{"code":1.5,"message":"m"}"#,
            r#"{"code":"1","message":"m"}"#,
            r#"{"code":1,"message":null}"#,
        ] {
            assert!(ErrorObject::read(text).is_none(), "{text}");
        }
    }

    #[test]
    fn error_is_displayed_as_plain_text() {
        let long = "x".repeat(MAX_SHOWN + 1);
        let text = format!(r#"{{"code":-1,"message":"{long}"}}"#);
        assert_eq!(ErrorObject::words(&text), format!("{}… (-1)", &long[1..]));
        let said = r#"{"code":-32602,"message":"no \"version\"\n"}"#;
        assert_eq!(ErrorObject::words(said), r#"no "version"\n (-32602)"#);
        assert_eq!(ErrorObject::words(r#"{"code":1}"#), r#"{"code":1}"#);
    }
}
