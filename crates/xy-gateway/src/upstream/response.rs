//! What an answer says: its result, or its error as the protocol has it.

use std::borrow::Cow;

use serde::Deserialize;
use xy_mcp::envelope::{self, Message, Outcome};
use xy_protocol::control::{quoted, quoted_within};

/// So much of what somebody else says is shown to people.
const SHOWN: usize = 300;

/// The result in a whole answer, or the error in it as words.
pub(crate) fn result_of(answer: &str) -> Result<&str, String> {
    match envelope::parse(answer.as_bytes()) {
        Ok(Message::Answer { outcome: Outcome::Result(result), .. }) => Ok(result),
        Ok(Message::Answer { outcome: Outcome::Error(error), .. }) => Err(SaidError::words(error)),
        _ => Err("it is no answer".to_owned()),
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct SaidError<'t> {
    code: serde_json::Number,
    #[serde(borrow)]
    message: Cow<'t, str>,
}

impl<'t> SaidError<'t> {
    /// `None` for what some clients cannot read: it has to have a whole number and a text.
    pub(super) fn read(text: &'t str) -> Option<Self> {
        let error: Self = serde_json::from_str(text).ok()?;
        let is_whole = error.code.as_f64().is_some_and(|code| code.fract() == 0.0);
        is_whole.then_some(error)
    }

    /// What an error says, for people to read.
    pub(super) fn words(text: &str) -> String {
        match SaidError::read(text) {
            Some(SaidError { code, message }) => {
                format!("{} ({code})", quoted_within(&message, SHOWN))
            }
            None => quoted(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_a_whole_number_and_a_text() {
        for text in [r#"{"code":-32602,"message":"m","data":{}}"#, r#"{"message":"","code":1.0}"#] {
            assert!(SaidError::read(text).is_some(), "{text}");
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
            assert!(SaidError::read(text).is_none(), "{text}");
        }
    }

    #[test]
    fn people_are_told_what_it_says_and_not_how_it_is_written() {
        let long = "x".repeat(SHOWN + 1);
        let text = format!(r#"{{"code":-1,"message":"{long}"}}"#);
        assert_eq!(SaidError::words(&text), format!("{}… (-1)", &long[1..]));
        let said = r#"{"code":-32602,"message":"no \"version\"\n"}"#;
        assert_eq!(SaidError::words(said), r#"no "version"\n (-32602)"#);
        assert_eq!(SaidError::words(r#"{"code":1}"#), r#"{"code":1}"#);
    }
}
