//! Failures of a verb, and their exit codes.

use std::process::ExitCode;

use xy_config::PathError;
use xy_protocol::error::{CallError, ErrorKind};

/// The exit code of the process. The numbers are part of the public interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Done,
    Failed,
    NoDaemon,
    BadConfig,
    Usage,
    /// The exit code of a child process, passed on.
    Other(u8),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::NoDaemon => 2,
            Exit::BadConfig => 3,
            Exit::Usage => 64,
            Exit::Other(code) => code,
        })
    }
}

/// The reason why a verb ended early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The operation failed.
    Failed(CallError),
    /// No daemon could be reached, or the connection was lost.
    Unreachable(CallError),
    /// The failure is already reported; only the exit code is left.
    Reported(Exit),
    /// The reader of stdout closed it, which is not an error.
    StdoutClosed,
}

impl Failure {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Failed(error) if error.kind == ErrorKind::ConfigInvalid => Exit::BadConfig,
            Self::Failed(_) => Exit::Failed,
            Self::Unreachable(_) => Exit::NoDaemon,
            Self::Reported(exit) => *exit,
            Self::StdoutClosed => Exit::Done,
        }
    }

    /// Creates a failure of the system or of xy itself.
    pub(crate) fn internal(message: impl Into<String>, cause: impl std::fmt::Display) -> Self {
        Self::Failed(CallError::new(ErrorKind::Internal, message).cause(cause))
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self::Failed(error)
    }
}

impl From<PathError> for Failure {
    fn from(cause: PathError) -> Self {
        Self::internal("cannot determine the folders of xy", cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_exit_codes() {
        let error = |kind| CallError::new(kind, "x");
        assert_eq!(Failure::Failed(error(ErrorKind::PortConflict)).exit(), Exit::Failed);
        assert_eq!(Failure::Failed(error(ErrorKind::ConfigInvalid)).exit(), Exit::BadConfig);
        assert_eq!(Failure::Unreachable(error(ErrorKind::Internal)).exit(), Exit::NoDaemon);
        assert_eq!(Failure::StdoutClosed.exit(), Exit::Done);
    }
}
