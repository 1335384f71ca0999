//! The few params a proxy has to read, each as a piece of the message's own text.

use std::ops::Range;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use xy_mcp::envelope::text_of;
use xy_mcp::members::Members;

use crate::client::LONGEST_ID;
use crate::large::place_of;

/// Params of any request or notification.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Params<'t> {
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

/// Reads a value as it is written; `null` is none.
fn piece<'t, D: Deserializer<'t>>(value: D) -> Result<Option<&'t str>, D::Error> {
    Option::<&RawValue>::deserialize(value).map(|it| it.map(RawValue::get))
}

/// Where each of the params stands in their text.
#[derive(Debug, Default)]
pub(crate) struct ParamPlaces([Option<Range<usize>>; 17]);

#[derive(Deserialize)]
struct Meta<'t> {
    #[serde(borrow, default, rename = "progressToken")]
    token: Option<&'t RawValue>,
}

impl<'t> Params<'t> {
    /// All of them, each by its place in [`ParamPlaces`].
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

    /// Returns those that are said in the head of a request too, and where they are said to be.
    pub(crate) fn members(&self) -> Members<'t> {
        let all = [
            ("name", self.name),
            ("uri", self.uri),
            ("taskId", self.task_id),
            ("arguments", self.arguments),
            ("_meta", self.meta),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }

    /// Returns where each of them stands in `text`, which they were read from.
    pub(crate) fn places(mut self, text: &str) -> ParamPlaces {
        ParamPlaces(self.all().map(|piece| piece.map(|piece| place_of(text, piece))))
    }

    /// Returns what stands at these places of `text`.
    pub(crate) fn at(text: &'t str, places: &ParamPlaces) -> Self {
        let mut params = Self::default();
        for (piece, place) in params.all().into_iter().zip(&places.0) {
            *piece = place.clone().and_then(|place| text.get(place));
        }
        params
    }

    /// An object that cannot be read, such as one with a key twice, is an error: who knows
    /// what the server would make of it.
    pub(crate) fn checked(params: Option<&'t str>) -> Result<Self, String> {
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
            Some(token) if token.len() > LONGEST_ID => Err("its progress token is too long".into()),
            // Servers tell of progress by it, and clients find the request by it.
            Some(token) if !token.starts_with(|first: char| "\"-0123456789".contains(first)) => {
                Err("its progress token is neither a text nor a number".into())
            }
            _ => Ok(read),
        }
    }

    /// Of what has none, or is an array, all are absent.
    pub(crate) fn read(params: Option<&'t str>) -> Self {
        params.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// `name`, as it is written.
    pub(crate) fn name(&self) -> Option<&'t str> {
        self.name
    }

    /// `uri`, as it is written.
    pub(crate) fn uri(&self) -> Option<&'t str> {
        self.uri
    }

    /// `cursor`, as it is written.
    pub(crate) fn cursor(&self) -> Option<&'t str> {
        self.cursor
    }

    /// `level`, as it is written.
    pub(crate) fn level(&self) -> Option<&'t str> {
        self.level
    }

    /// `arguments`, as they are written.
    pub(crate) fn arguments(&self) -> Option<&'t str> {
        self.arguments
    }

    /// `requestId`, as it is written.
    pub(crate) fn request_id(&self) -> Option<&'t str> {
        self.request_id
    }

    /// `progressToken` of a notification, as it is written.
    pub(crate) fn token(&self) -> Option<&'t str> {
        self.token
    }

    /// `protocolVersion`, as a text.
    pub(crate) fn version(&self) -> Option<String> {
        self.version.and_then(text_of).map(Into::into)
    }

    /// `protocolVersion`, as it is written.
    pub(crate) fn version_as_written(&self) -> Option<&'t str> {
        self.version
    }

    /// `capabilities`, as they are written.
    pub(crate) fn capabilities(&self) -> Option<&'t str> {
        self.capabilities
    }

    /// Whether it is to be done as a task.
    pub(crate) fn is_task(&self) -> bool {
        self.task.is_some()
    }

    /// `taskId`, as a text.
    pub(crate) fn task_id(&self) -> Option<String> {
        self.task_id.and_then(text_of).map(Into::into)
    }

    /// `taskId`, as it is written.
    pub(crate) fn task_id_as_written(&self) -> Option<&'t str> {
        self.task_id
    }

    /// `_meta`, as it is written, if it is an object.
    pub(crate) fn meta(&self) -> Option<&'t str> {
        self.meta.filter(|meta| meta.starts_with('{'))
    }

    /// `clientInfo`, as it is written.
    pub(crate) fn info(&self) -> Option<&'t str> {
        self.info
    }

    /// `inputResponses`, as they are written.
    pub(crate) fn answers(&self) -> Option<&'t str> {
        self.answers
    }

    /// `requestState`, as it is written.
    pub(crate) fn state(&self) -> Option<&'t str> {
        self.state
    }

    /// `notifications`, as they are written.
    pub(crate) fn notifications(&self) -> Option<&'t str> {
        self.notifications
    }

    /// `_meta.progressToken` of a request, as it is written.
    pub(crate) fn own_token(&self) -> Option<&'t str> {
        let meta: Meta<'t> = serde_json::from_str(self.meta?).ok()?;
        meta.token.map(RawValue::get)
    }

    /// What `ref` refers to: its `name` or its `uri`.
    pub(crate) fn reference(&self) -> Option<Reference<'t>> {
        let inside = Self::read(Some(self.reference?));
        match (inside.name(), inside.uri()) {
            (Some(name), None) => Some(Reference::Name(name)),
            (None, Some(uri)) => Some(Reference::Uri(uri)),
            _ => None,
        }
    }
}

/// What an argument to complete belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reference<'t> {
    /// A prompt, as it is written.
    Name(&'t str),
    /// A template, as it is written.
    Uri(&'t str),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_a_piece_of_the_text() {
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
    fn what_is_not_there_is_absent() {
        for text in [None, Some("[]"), Some("{}"), Some(r#"{"_meta":3}"#)] {
            let params = Params::read(text);
            assert_eq!((params.name(), params.own_token()), (None, None));
            assert_eq!(params.reference(), None);
        }
    }

    #[test]
    fn a_key_that_is_there_twice_is_refused() {
        for text in [
            r#"{"name":"a","name":"b"}"#,
            r#"{"_meta":{"progressToken":1,"progressToken":2}}"#,
            &format!(r#"{{"_meta":{{"progressToken":"{}"}}}}"#, "x".repeat(LONGEST_ID)),
        ] {
            assert!(Params::checked(Some(text)).is_err(), "{text}");
        }
        for text in [None, Some("[]"), Some(r#"{"x":1,"x":2,"_meta":7}"#)] {
            assert!(Params::checked(text).is_ok(), "{text:?}");
        }
    }

    #[test]
    fn a_progress_token_is_a_text_or_a_number() {
        let checked = |token: &str| {
            let text = format!(r#"{{"_meta":{{"progressToken":{token}}}}}"#);
            Params::checked(Some(&text)).map(drop)
        };
        for token in ["\"\"", "\"a\"", "0", "-7", "1.5", "null"] {
            assert_eq!(checked(token), Ok(()), "{token}");
        }
        for token in ["{}", "true", "false", "[1]"] {
            let problem = checked(token).unwrap_err();
            assert_eq!(problem, "its progress token is neither a text nor a number", "{token}");
        }
    }

    #[test]
    fn a_reference_is_a_prompt_or_a_template() {
        let prompt = r#"{"ref":{"type":"ref/prompt","name":"x"}}"#;
        assert_eq!(Params::read(Some(prompt)).reference(), Some(Reference::Name(r#""x""#)));
        let template = r#"{"ref":{"type":"ref/resource","uri":"t://{x}"}}"#;
        assert_eq!(Params::read(Some(template)).reference(), Some(Reference::Uri(r#""t://{x}""#)));
    }
}
