//! Error kinds, their codes, and the three things a person reads in one:
//! what was asked and did not happen, why, and what to do next.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::control::Problem;

/// What kind of failure it is; the same word in every front end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ErrorKind {
    /// The line was not JSON.
    ParseError,
    /// The line was not a request.
    InvalidRequest,
    /// There is no such method.
    MethodNotFound,
    /// The params do not fit the method.
    InvalidParams,
    /// A fault of xy itself.
    Internal,
    /// There is no such server.
    ServerNotFound,
    /// Two files declare one port.
    PortConflict,
    /// The files have problems; the report is in `problems`.
    ConfigInvalid,
    /// A server of that name exists.
    AlreadyRunning,
    /// The server is down.
    NotRunning,
    /// The program could not be started, or did not stay.
    SpawnFailed,
    /// It did not happen in time.
    TimedOut,
    /// There is no room to wait.
    QueueFull,
    /// A scope, a token or a door forbids it.
    NotAllowed,
    /// It was sent, and the server died before its answer.
    OutcomeUnknown,
    /// It was sent, and the way to the server broke before its answer; the server may live.
    TransportFailed,
}

impl ErrorKind {
    /// Every kind, for those who map codes back.
    pub const ALL: [Self; 16] = [
        Self::ParseError,
        Self::InvalidRequest,
        Self::MethodNotFound,
        Self::InvalidParams,
        Self::Internal,
        Self::ServerNotFound,
        Self::PortConflict,
        Self::ConfigInvalid,
        Self::AlreadyRunning,
        Self::NotRunning,
        Self::SpawnFailed,
        Self::TimedOut,
        Self::QueueFull,
        Self::NotAllowed,
        Self::OutcomeUnknown,
        Self::TransportFailed,
    ];

    /// The JSON-RPC error code.
    pub fn code(self) -> i32 {
        match self {
            Self::ParseError => -32700,
            Self::InvalidRequest => -32600,
            Self::MethodNotFound => -32601,
            Self::InvalidParams => -32602,
            Self::Internal => -32603,
            Self::ServerNotFound => -32001,
            Self::PortConflict => -32002,
            Self::ConfigInvalid => -32003,
            Self::AlreadyRunning => -32004,
            Self::NotRunning => -32005,
            Self::SpawnFailed => -32006,
            Self::TimedOut => -32007,
            Self::QueueFull => -32008,
            Self::NotAllowed => -32009,
            Self::OutcomeUnknown => -32010,
            Self::TransportFailed => -32011,
        }
    }

    /// Whether it was sent and not answered, so that nobody knows whether it was done.
    pub fn is_outcome_unknown(self) -> bool {
        matches!(self, Self::OutcomeUnknown | Self::TransportFailed)
    }

    /// The kind with this code; an unknown one is [`ErrorKind::Internal`].
    pub fn from_code(code: i32) -> Self {
        Self::ALL.into_iter().find(|kind| kind.code() == code).unwrap_or(Self::Internal)
    }
}

/// A request that was not done: the error object of JSON-RPC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WireError", into = "WireError")]
pub struct CallError {
    /// What kind of failure it is.
    pub kind: ErrorKind,
    /// What was asked and did not happen.
    pub message: String,
    /// Why.
    pub cause: Option<String>,
    /// What to do next.
    pub hint: Option<String>,
    /// The report on the configuration, when that is what is wrong.
    pub problems: Vec<Problem>,
}

impl CallError {
    /// `message` did not happen.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), cause: None, hint: None, problems: Vec::new() }
    }

    /// The line was not JSON.
    pub fn parse(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::ParseError, message)
    }

    /// The line was not a request.
    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidRequest, message)
    }

    /// The params do not fit the method.
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidParams, message)
    }

    /// Adds why.
    #[must_use]
    pub fn cause(mut self, cause: impl fmt::Display) -> Self {
        self.cause = Some(cause.to_string());
        self
    }

    /// Adds what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the report on the configuration.
    #[must_use]
    pub fn problems(mut self, problems: Vec<Problem>) -> Self {
        self.problems = problems;
        self
    }

    /// The JSON-RPC error code.
    pub fn code(&self) -> i32 {
        self.kind.code()
    }
}

impl fmt::Display for CallError {
    /// One line, for logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(cause) = &self.cause {
            write!(f, ": {cause}")?;
        }
        Ok(())
    }
}

impl std::error::Error for CallError {}

#[derive(Serialize, Deserialize)]
struct WireError {
    code: i32,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    data: Option<WireData>,
}

#[derive(Serialize, Deserialize)]
struct WireData {
    kind: ErrorKind,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    hint: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    problems: Vec<Problem>,
}

impl From<CallError> for WireError {
    fn from(error: CallError) -> Self {
        let CallError { kind, message, cause, hint, problems } = error;
        Self { code: kind.code(), message, data: Some(WireData { kind, cause, hint, problems }) }
    }
}

impl From<WireError> for CallError {
    fn from(error: WireError) -> Self {
        let WireError { code, message, data } = error;
        match data {
            Some(WireData { kind, cause, hint, problems }) => {
                Self { kind, message, cause, hint, problems }
            }
            None => Self::new(ErrorKind::from_code(code), message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_code() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_code(kind.code()), kind);
        }
    }

    #[test]
    fn an_error_survives_the_wire() {
        let error = CallError::new(ErrorKind::ServerNotFound, "no server named `x`")
            .cause("because")
            .hint("did you mean `y`?");
        let text = serde_json::to_string(&error).unwrap();
        insta::assert_snapshot!(text, @r#"{"code":-32001,"message":"no server named `x`","data":{"kind":"ServerNotFound","cause":"because","hint":"did you mean `y`?"}}"#);
        assert_eq!(serde_json::from_str::<CallError>(&text).unwrap(), error);
    }

    #[test]
    fn a_bare_error_object_is_understood() {
        let error: CallError =
            serde_json::from_str(r#"{"code":-32601,"message":"what?"}"#).unwrap();
        assert_eq!(error.kind, ErrorKind::MethodNotFound);
    }
}
