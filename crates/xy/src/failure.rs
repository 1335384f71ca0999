//! Why a verb did not do what was asked, and the exit code that says so.

use std::process::ExitCode;

use xy_config::PathError;
use xy_protocol::error::{CallError, ErrorKind};

/// What the process ends with; part of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Done,
    Failed,
    NoDaemon,
    BadConfig,
    Usage,
    /// Whatever a daemon that could not start ended with.
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

/// Why a verb ended before its end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What was asked did not happen.
    Failed(CallError),
    /// There is no daemon to ask, or it went away.
    Unreachable(CallError),
    /// All has been said; only the exit code is left.
    Told(Exit),
    /// Whoever read our stdout has had enough, which is fine.
    NobodyReads,
}

impl Failure {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Failed(error) if error.kind == ErrorKind::ConfigInvalid => Exit::BadConfig,
            Self::Failed(_) => Exit::Failed,
            Self::Unreachable(_) => Exit::NoDaemon,
            Self::Told(exit) => *exit,
            Self::NobodyReads => Exit::Done,
        }
    }

    /// A failure of the system or of xy itself.
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
        Self::internal("xy does not know where its files are", cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_tell_failures_apart() {
        let error = |kind| CallError::new(kind, "x");
        assert_eq!(Failure::Failed(error(ErrorKind::PortConflict)).exit(), Exit::Failed);
        assert_eq!(Failure::Failed(error(ErrorKind::ConfigInvalid)).exit(), Exit::BadConfig);
        assert_eq!(Failure::Unreachable(error(ErrorKind::Internal)).exit(), Exit::NoDaemon);
        assert_eq!(Failure::NobodyReads.exit(), Exit::Done);
    }
}
