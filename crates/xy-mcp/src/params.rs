//! The params that a proxy has to read, each as a slice of the message's own text.

use std::ops::Range;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::envelope::text_of;
use crate::members::Members;

/// A position in a text.
pub type Span = Range<usize>;

/// Returns the position of `part`, a slice of `text`, in `text`.
pub fn span_of(text: &str, part: &str) -> Span {
    let begins = (part.as_ptr() as usize).wrapping_sub(text.as_ptr() as usize);
    begins..begins.wrapping_add(part.len())
}

/// Maximum length, in bytes, of a request id or a progress token.
pub const MAX_ID_BYTES: usize = 1024;

/// The params of any request or notification.
#[derive(Debug, Default, Deserialize)]
pub struct Params<'t> {
    #[serde(borrow, default, deserialize_with = "piece")]
    name: Option<&'t str>,
    #[serde(borrow, default, deserialize_with = "piece")]
    uri: Option<&'t str>,
    #[serde(borrow, default, deserialize_with = "piece")]
    cursor: Option<&'t str>,
    #[serde(borrow, default, deserialize_with = "piece")]
    level: Option<&'t str>,
    #[serde(borrow, default, deserialize_with = "piece", rename = "ref")]
    reference: Option<&'t str>,
    #[serde(borrow, default, deserialize_with = "piece")]
    arguments: Option<&'t str>,
    #[serde(borrow, default, deserialize_with = "piece", rename = "requestId")]
    request_id: Option<&'t str>,
    #[serde(borrow, default, deserialize_with = "piece", rename = "progressToken")]
    token: Option<&'t str>,
    #[serde(borrow, default, deserialize_with = "piece", rename = "protocolVersion")]
    version: Option<&'t str>,
    #[serde(borrow, default, deserialize_with = "piece")]
    capabilities: Option<&'t str>,
    #[serde(borrow, default, deserialize_with = "piece")]
    task: Option<&'t str>,
    #[serde(borrow, default, deserialize_with = "piece", rename = "taskId")]
    task_id: Option<&'t str>,
    #[serde(borrow, default, deserialize_with = "piece", rename = "_meta")]
    meta: Option<&'t str>,
    #[serde(borrow, default, deserialize_with = "piece", rename = "clientInfo")]
    info: Option<&'t str>,
    #[serde(borrow, default, deserialize_with = "piece", rename = "inputResponses")]
    answers: Option<&'t str>,
    #[serde(borrow, default, deserialize_with = "piece", rename = "requestState")]
    state: Option<&'t str>,
    #[serde(borrow, default, deserialize_with = "piece")]
    notifications: Option<&'t str>,
}

/// Reads a value as written; `null` counts as absent.
fn piece<'t, D: Deserializer<'t>>(value: D) -> Result<Option<&'t str>, D::Error> {
    Option::<&RawValue>::deserialize(value).map(|it| it.map(RawValue::get))
}

/// The range of each param in the text.
#[derive(Debug, Default)]
pub struct ParamRanges([Option<Range<usize>>; 17]);

#[derive(Deserialize)]
struct Meta<'t> {
    #[serde(borrow, default, rename = "progressToken")]
    token: Option<&'t RawValue>,
}

impl<'t> Params<'t> {
    /// Returns all params, in the order of [`ParamRanges`].
    fn all(&mut self) -> [&mut Option<&'t str>; 17] {
        [
            &mut self.name,
            &mut self.uri,
            &mut self.cursor,
            &mut self.level,
            &mut self.reference,
            &mut self.arguments,
            &mut self.request_id,
            &mut self.token,
            &mut self.version,
            &mut self.capabilities,
            &mut self.task,
            &mut self.task_id,
            &mut self.meta,
            &mut self.info,
            &mut self.answers,
            &mut self.state,
            &mut self.notifications,
        ]
    }

    /// Returns the params that are repeated in headers, under their keys.
    pub fn members(&self) -> Members<'t> {
        let all = [
            ("name", self.name),
            ("uri", self.uri),
            ("taskId", self.task_id),
            ("arguments", self.arguments),
            ("_meta", self.meta),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }

    /// Returns the ranges of the params in `text`, which they were read from.
    pub fn ranges(mut self, text: &str) -> ParamRanges {
        ParamRanges(self.all().map(|piece| piece.map(|piece| span_of(text, piece))))
    }

    /// Returns the params at these ranges of `text`.
    pub fn at(text: &'t str, ranges: &ParamRanges) -> Self {
        let mut params = Self::default();
        for (piece, range) in params.all().into_iter().zip(&ranges.0) {
            *piece = range.clone().and_then(|range| text.get(range));
        }
        params
    }

    /// Reads params strictly. An object that cannot be parsed, such as one with a duplicate key, is
    /// an error, as a server might read it differently.
    pub fn checked(params: Option<&'t str>) -> Result<Self, String> {
        let read = match params {
            Some(text) if text.starts_with('{') => {
                serde_json::from_str(text).map_err(|problem| problem.to_string())?
            }
            _ => Self::default(),
        };
        if let Some(meta) = read.meta.filter(|meta| meta.starts_with('{')) {
            let meta: Result<Meta<'_>, _> = serde_json::from_str(meta);
            meta.map_err(|problem| problem.to_string())?;
        }
        match read.own_token() {
            Some(token) if token.len() > MAX_ID_BYTES => {
                Err("its progress token is too long".into())
            }
            // Servers report progress with it, and clients find the request by it.
            Some(token) if !token.starts_with(|first: char| "\"-0123456789".contains(first)) => {
                Err("its progress token is neither a string nor a number".into())
            }
            _ => Ok(read),
        }
    }

    /// Reads params. If there are none, or no object, all are absent.
    pub fn read(params: Option<&'t str>) -> Self {
        params.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// Returns `name`, as written.
    pub fn name(&self) -> Option<&'t str> {
        self.name
    }

    /// Returns `uri`, as written.
    pub fn uri(&self) -> Option<&'t str> {
        self.uri
    }

    /// Returns `cursor`, as written.
    pub fn cursor(&self) -> Option<&'t str> {
        self.cursor
    }

    /// Returns `level`, as written.
    pub fn level(&self) -> Option<&'t str> {
        self.level
    }

    /// Returns `arguments`, as written.
    pub fn arguments(&self) -> Option<&'t str> {
        self.arguments
    }

    /// Returns `requestId`, as written.
    pub fn request_id(&self) -> Option<&'t str> {
        self.request_id
    }

    /// Returns `progressToken` of a notification, as written.
    pub fn token(&self) -> Option<&'t str> {
        self.token
    }

    /// Returns `protocolVersion`, decoded.
    pub fn version(&self) -> Option<String> {
        self.version.and_then(text_of).map(Into::into)
    }

    /// Returns `protocolVersion`, as written.
    pub fn version_as_written(&self) -> Option<&'t str> {
        self.version
    }

    /// Returns `capabilities`, as written.
    pub fn capabilities(&self) -> Option<&'t str> {
        self.capabilities
    }

    /// Returns true if the request is to run as a task.
    pub fn is_task(&self) -> bool {
        self.task.is_some()
    }

    /// Returns `taskId`, decoded.
    pub fn task_id(&self) -> Option<String> {
        self.task_id.and_then(text_of).map(Into::into)
    }

    /// Returns `taskId`, as written.
    pub fn task_id_as_written(&self) -> Option<&'t str> {
        self.task_id
    }

    /// Returns `_meta`, as written, if it is an object.
    pub fn meta(&self) -> Option<&'t str> {
        self.meta.filter(|meta| meta.starts_with('{'))
    }

    /// Returns `clientInfo`, as written.
    pub fn info(&self) -> Option<&'t str> {
        self.info
    }

    /// Returns `inputResponses`, as written.
    pub fn answers(&self) -> Option<&'t str> {
        self.answers
    }

    /// Returns `requestState`, as written.
    pub fn state(&self) -> Option<&'t str> {
        self.state
    }

    /// Returns `notifications`, as written.
    pub fn notifications(&self) -> Option<&'t str> {
        self.notifications
    }

    /// Returns `_meta.progressToken` of a request, as written.
    pub fn own_token(&self) -> Option<&'t str> {
        let meta: Meta<'t> = serde_json::from_str(self.meta?).ok()?;
        meta.token.map(RawValue::get)
    }

    /// Returns the `name` or the `uri` in `ref`.
    pub fn reference(&self) -> Option<Reference<'t>> {
        let inside = Self::read(Some(self.reference?));
        match (inside.name(), inside.uri()) {
            (Some(name), None) => Some(Reference::Name(name)),
            (None, Some(uri)) => Some(Reference::Uri(uri)),
            _ => None,
        }
    }
}

/// The subject of a completion request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reference<'t> {
    /// A prompt, by its name as written.
    Name(&'t str),
    /// A resource template, by its URI as written.
    Uri(&'t str),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_borrow_from_the_text() {
        let text =
            r#"{"name":"a__b","arguments":{"name":"other"},"_meta":{"x":1,"progressToken": 7 }}"#;
        let params = Params::read(Some(text));
        assert_eq!(params.name(), Some(r#""a__b""#));
        assert_eq!(params.arguments(), Some(r#"{"name":"other"}"#));
        assert_eq!(params.own_token(), Some("7"));
        let within = text.as_bytes().as_ptr_range();
        assert!(within.contains(&params.own_token().unwrap().as_ptr()));
    }

    #[test]
    fn missing_members_are_none() {
        for text in [None, Some("[]"), Some("{}"), Some(r#"{"_meta":3}"#)] {
            let params = Params::read(text);
            assert_eq!((params.name(), params.own_token()), (None, None));
            assert_eq!(params.reference(), None);
        }
    }

    #[test]
    fn duplicate_key_is_refused() {
        for text in [
            r#"{"name":"a","name":"b"}"#,
            r#"{"_meta":{"progressToken":1,"progressToken":2}}"#,
            &format!(r#"{{"_meta":{{"progressToken":"{}"}}}}"#, "x".repeat(MAX_ID_BYTES)),
        ] {
            assert!(Params::checked(Some(text)).is_err(), "{text}");
        }
        for text in [None, Some("[]"), Some(r#"{"x":1,"x":2,"_meta":7}"#)] {
            assert!(Params::checked(text).is_ok(), "{text:?}");
        }
    }

    #[test]
    fn progress_token_is_a_string_or_number() {
        let checked = |token: &str| {
            let text = format!(r#"{{"_meta":{{"progressToken":{token}}}}}"#);
            Params::checked(Some(&text)).map(drop)
        };
        for token in ["\"\"", "\"a\"", "0", "-7", "1.5", "null"] {
            assert_eq!(checked(token), Ok(()), "{token}");
        }
        for token in ["{}", "true", "false", "[1]"] {
            let problem = checked(token).unwrap_err();
            assert_eq!(problem, "its progress token is neither a string nor a number", "{token}");
        }
    }

    #[test]
    fn reference_names_a_prompt_or_template() {
        let prompt = r#"{"ref":{"type":"ref/prompt","name":"x"}}"#;
        assert_eq!(Params::read(Some(prompt)).reference(), Some(Reference::Name(r#""x""#)));
        let template = r#"{"ref":{"type":"ref/resource","uri":"t://{x}"}}"#;
        assert_eq!(Params::read(Some(template)).reference(), Some(Reference::Uri(r#""t://{x}""#)));
    }
}
