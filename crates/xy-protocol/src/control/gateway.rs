//! What is asked of servers themselves, through the gateway.
//!
//! JSON that belongs to a server or to its client stays the text it was: numbers keep their
//! digits.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::CallError;
use crate::server::ServerName;

/// How long a raw request may take when nobody says.
pub const REQUEST_WITHIN: Duration = Duration::from_secs(10);

/// JSON as somebody wrote it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JsonText(Box<RawValue>);

impl JsonText {
    /// Takes a text that is JSON.
    pub fn read(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// The text.
    pub fn get(&self) -> &str {
        self.0.get()
    }

    fn is_object(&self) -> bool {
        self.get().starts_with('{')
    }

    /// Itself, if it is an object.
    pub fn into_object(self) -> Option<Self> {
        self.is_object().then_some(self)
    }

    /// Whether it can be the params of a request.
    fn is_params(&self) -> bool {
        self.is_object() || self.get().starts_with('[')
    }

    /// Whether it can be the id of a request.
    fn is_id(&self) -> bool {
        self.get().starts_with(|first: char| first == '"' || first == '-' || first.is_ascii_digit())
    }
}

impl PartialEq for JsonText {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for JsonText {}

impl From<Box<RawValue>> for JsonText {
    fn from(raw: Box<RawValue>) -> Self {
        Self(raw)
    }
}

/// Whose tools to show.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tools {
    /// Only this server's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub server: Option<String>,
}

/// A tool to call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// What it is called outside: `{server}__{tool}`.
    pub name: String,
    /// An object; empty if absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub arguments: Option<JsonText>,
    /// How long it may take; for ever if absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timeout_ms: Option<u64>,
}

impl Call {
    pub(super) fn checked(self) -> Result<Self, CallError> {
        if self.arguments.as_ref().is_some_and(|it| !it.is_object()) {
            return Err(CallError::invalid_params("`arguments` is not an object"));
        }
        Ok(self)
    }
}

/// A request to one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawRequest {
    /// Which.
    pub server: String,
    /// What is asked.
    pub method: String,
    /// An object or an array, if any.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub params: Option<JsonText>,
    /// How long it may take; [`REQUEST_WITHIN`] if absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timeout_ms: Option<u64>,
    /// The id that the response has, a number or a text; 1 if absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<JsonText>,
}

impl RawRequest {
    pub(super) fn checked(self) -> Result<Self, CallError> {
        if self.params.as_ref().is_some_and(|it| !it.is_params()) {
            return Err(CallError::invalid_params("`params` of the request is not an object"));
        }
        if self.id.as_ref().is_some_and(|it| !it.is_id()) {
            return Err(CallError::invalid_params("`id` is neither a number nor a text"));
        }
        Ok(self)
    }
}

/// The answer to `tools`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolList {
    /// In the order of servers, and of each server's own list.
    pub tools: Vec<ToolEntry>,
}

/// One tool in `tools`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolEntry {
    /// What it is called outside.
    pub name: String,
    /// Whose it is.
    pub server: ServerName,
    /// What its server wrote of it.
    pub tool: JsonText,
}
