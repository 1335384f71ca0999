//! The error of a daemon that could not start.

use xy_protocol::error::{CallError, ErrorKind};

/// Returns the error without a cause.
pub(crate) fn not_started() -> CallError {
    CallError::new(ErrorKind::Internal, "the daemon did not start")
}
