//! Error kinds, their codes, and the parts of an error message.
//!
//! A message says what was requested and did not happen, why, and what to do next.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::problem::Problem;

/// The kind of a failure, with the same name in every front end.
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
    /// A bug in xy itself.
    Internal,
    /// There is no such server.
    ServerNotFound,
    /// Two files declare the same port.
    PortConflict,
    /// The configuration has errors, which are listed in `problems`.
    ConfigInvalid,
    /// A server of that name exists.
    AlreadyRunning,
    /// The server is not running.
    NotRunning,
    /// The program could not be started, or exited at once.
    SpawnFailed,
    /// The request timed out.
    TimedOut,
    /// The queue of waiting calls is full.
    QueueFull,
    /// A scope, a token or the listener forbids it.
    NotAllowed,
    /// The request was sent, and the server died before it answered.
    OutcomeUnknown,
    /// The request was sent, and the connection failed before the answer; the server may be alive.
    TransportFailed,
}

impl ErrorKind {
    /// All kinds, to map codes back to them.
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

    /// Returns the JSON-RPC error code.
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

    /// Returns true if the request was sent and not answered, so it may or may not have been
    /// executed.
    pub fn is_outcome_unknown(self) -> bool {
        matches!(self, Self::OutcomeUnknown | Self::TransportFailed)
    }

    /// Returns the kind with this code, or [`ErrorKind::Internal`] for an unknown one.
    pub fn from_code(code: i32) -> Self {
        Self::ALL.into_iter().find(|kind| kind.code() == code).unwrap_or(Self::Internal)
    }
}

/// The error of a failed request: the error object of JSON-RPC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WireError", into = "WireError")]
pub struct CallError {
    /// The kind of failure.
    pub kind: ErrorKind,
    /// The request that failed, in words.
    pub message: String,
    /// The cause.
    pub cause: Option<String>,
    /// The next step for the user.
    pub hint: Option<String>,
    /// The problems of the configuration, if they are the cause.
    pub problems: Vec<Problem>,
}

impl CallError {
    /// Creates an error.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), cause: None, hint: None, problems: Vec::new() }
    }

    /// Creates an error for a line that is not JSON.
    pub fn parse(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::ParseError, message)
    }

    /// Creates an error for a line that is not a request.
    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidRequest, message)
    }

    /// Creates an error for params that do not fit the method.
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidParams, message)
    }

    /// Sets the cause.
    #[must_use]
    pub fn cause(mut self, cause: impl fmt::Display) -> Self {
        self.cause = Some(cause.to_string());
        self
    }

    /// Sets the hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Sets the problems of the configuration.
    #[must_use]
    pub fn problems(mut self, problems: Vec<Problem>) -> Self {
        self.problems = problems;
        self
    }

    /// Returns the JSON-RPC error code.
    pub fn code(&self) -> i32 {
        self.kind.code()
    }
}

impl fmt::Display for CallError {
    /// Writes one line, for logs.
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
    fn error_round_trips() {
        let error = CallError::new(ErrorKind::ServerNotFound, "no server named `x`")
            .cause("because")
            .hint("did you mean `y`?");
        let text = serde_json::to_string(&error).unwrap();
        insta::assert_snapshot!(text, @r#"{"code":-32001,"message":"no server named `x`","data":{"kind":"ServerNotFound","cause":"because","hint":"did you mean `y`?"}}"#);
        assert_eq!(serde_json::from_str::<CallError>(&text).unwrap(), error);
    }

    #[test]
    fn error_without_data_is_parsed() {
        let error: CallError =
            serde_json::from_str(r#"{"code":-32601,"message":"what?"}"#).unwrap();
        assert_eq!(error.kind, ErrorKind::MethodNotFound);
    }
}
