//! A verb's connection to the daemon, and the errors if there is none.

use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use xy_config::Paths;
use xy_ipc::client::{find, read_result};
use xy_ipc::{CallFailure, Client, ConnectError, Notification};
use xy_protocol::control::Request;
use xy_protocol::error::{CallError, ErrorKind};

use crate::failure::Failure;

/// Time limit of requests that the daemon answers immediately; a daemon that exceeds it hangs.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to the daemon.
pub(crate) struct Link {
    pub(crate) client: Client,
    /// The socket where the daemon was found.
    pub(crate) socket: PathBuf,
}

impl Link {
    /// Connects to the daemon of this user. Never starts a daemon.
    pub(crate) fn open() -> Result<Self, Failure> {
        Self::open_at(&Paths::from_env()?)
    }

    pub(crate) fn open_at(paths: &Paths) -> Result<Self, Failure> {
        Self::find(&paths.control_socket_candidates())
    }

    /// Connects to the daemon that listens at one of `places`.
    pub(crate) fn find(places: &[PathBuf]) -> Result<Self, Failure> {
        let found = find(places).map_err(|error| no_daemon(&error))?;
        Ok(Self { client: Client::from_stream(found.stream), socket: found.socket })
    }

    /// Sends a request that the daemon answers immediately, and returns the result.
    pub(crate) fn query(&mut self, request: &Request) -> Result<Box<RawValue>, Failure> {
        self.limit(Some(QUERY_TIMEOUT))?;
        let result = self.call(request);
        self.limit(None)?;
        result
    }

    /// Sends a request without a time limit, and returns the result.
    pub(crate) fn call(&mut self, request: &Request) -> Result<Box<RawValue>, Failure> {
        self.client.call(request).map_err(call_failed)
    }

    /// Sends a request that the daemon aborts after `within`, and returns the result.
    pub(crate) fn call_with_timeout(
        &mut self,
        request: &Request,
        within: Option<Duration>,
    ) -> Result<Box<RawValue>, Failure> {
        self.limit(within.map(|within| within.saturating_add(QUERY_TIMEOUT)))?;
        let result = self.call(request);
        self.limit(None)?;
        result
    }

    /// Waits for the next notification of a stream.
    pub(crate) fn next(&mut self) -> Result<Notification<'_>, Failure> {
        self.client.next_notification().map_err(call_failed)
    }

    fn limit(&mut self, within: Option<Duration>) -> Result<(), Failure> {
        self.client
            .set_timeout(within)
            .map_err(|cause| Failure::internal("could not set the connection's time limit", cause))
    }
}

/// Deserializes a result.
pub(crate) fn read<T: DeserializeOwned>(result: &RawValue) -> Result<T, Failure> {
    read_result(result).map_err(call_failed)
}

/// Returns the error for a failed connection.
pub(crate) fn no_daemon(error: &ConnectError) -> Failure {
    let start_one = "start one with `xy daemon` (or `xy daemon --detach`)";
    let unreachable = |message: &str, cause: String, hint: &str| {
        let error = CallError::new(ErrorKind::NotRunning, message).cause(cause);
        Failure::Unreachable(error.hint(hint))
    };
    let cause = match error {
        ConnectError::Other { cause, .. } => format!("{error}: {cause}"),
        _ => error.to_string(),
    };
    match error {
        ConnectError::NoSocket { .. } | ConnectError::Refused { .. } => {
            unreachable("no daemon is running", cause, start_one)
        }
        ConnectError::NoPermission { .. } => unreachable(
            "the daemon cannot be reached",
            cause,
            "run `xy` as the user who runs the daemon",
        ),
        ConnectError::Unsafe { untrusted } => {
            let hint = untrusted.remedy_of_sockets("XDG_RUNTIME_DIR");
            unreachable("the daemon cannot be reached safely", cause, &hint)
        }
        ConnectError::Foreign { .. } => unreachable(
            "the daemon cannot be reached safely",
            cause,
            "nothing was sent: remove the socket, then start your own daemon with `xy daemon`",
        ),
        ConnectError::TimedOut { .. } => unreachable(
            "the daemon cannot be reached",
            cause,
            "its process may be stopped or overloaded: check it with `ps`",
        ),
        ConnectError::Other { .. } => unreachable(
            "the daemon cannot be reached",
            cause,
            "check XDG_RUNTIME_DIR and XDG_STATE_HOME, which say where its socket is",
        ),
    }
}

/// Returns the error for a request without a result.
pub(crate) fn call_failed(failure: CallFailure) -> Failure {
    let lost = |cause: String| {
        let error = CallError::new(ErrorKind::OutcomeUnknown, "the daemon did not answer");
        Failure::Unreachable(
            error.cause(cause).hint("look for the reason in the daemon's log, and try `xy info`"),
        )
    };
    match failure {
        CallFailure::Refused(error) => Failure::Failed(error),
        CallFailure::Io(ref cause) => lost(format!("{failure}: {cause}")),
        CallFailure::HungUp | CallFailure::TimedOut { .. } | CallFailure::NotXy { .. } => {
            lost(failure.to_string())
        }
    }
}
