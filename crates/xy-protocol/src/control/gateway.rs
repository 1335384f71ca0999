//! Requests that the gateway passes to servers.
//!
//! JSON of a server or its client keeps its original text, so numbers keep their digits.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::CallError;
use crate::server::ServerName;

/// Default timeout of a raw request.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// JSON in its original text.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JsonText(Box<RawValue>);

impl JsonText {
    /// Parses a text; fails if it is not JSON.
    pub fn read(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Returns the text.
    pub fn get(&self) -> &str {
        self.0.get()
    }

    fn is_object(&self) -> bool {
        self.get().starts_with('{')
    }

    /// Returns the value if it is an object.
    pub fn into_object(self) -> Option<Self> {
        self.is_object().then_some(self)
    }

    /// Returns true if the value can be the params of a request.
    fn is_params(&self) -> bool {
        self.is_object() || self.get().starts_with('[')
    }

    /// Returns true if the value can be the ID of a request.
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

/// The params of `tools`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tools {
    /// Only tools of this server, if given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub server: Option<String>,
}

/// The params of `call`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// The tool's exposed name: `{server}__{tool}`.
    pub name: String,
    /// The arguments, an object; empty if absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub arguments: Option<JsonText>,
    /// The timeout; none if absent.
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

/// The params of `request`: a request to one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawRequest {
    /// The server.
    pub server: String,
    /// The method.
    pub method: String,
    /// The params: an object or an array.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub params: Option<JsonText>,
    /// The timeout; [`REQUEST_TIMEOUT`] if absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timeout_ms: Option<u64>,
    /// The ID of the response, a number or a string; 1 if absent.
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
    /// The tools, in the order of servers and of each server's own list.
    pub tools: Vec<ToolEntry>,
}

/// One tool in `tools`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolEntry {
    /// The exposed name.
    pub name: String,
    /// The server that has it.
    pub server: ServerName,
    /// The tool as its server describes it.
    pub tool: JsonText,
}
