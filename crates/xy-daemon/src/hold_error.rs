//! Errors of requests and calls that need an instance which cannot be started.

use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;
use xy_supervisor::fleet::{HoldError, NoRoom};
use xy_supervisor::instance::Holder;
use xy_upstream::fault::ServerFault;

/// Returns the fault for a client whose call needs the instance of `holder`.
pub(crate) fn fault(holder: Holder, why: &HoldError) -> ServerFault {
    match why {
        HoldError::NoRoom(full) => no_room(full),
        why => ServerFault::NoInstance(holder, why.to_string()),
    }
}

/// Returns the error for a user whose request needs an instance that cannot be started.
pub(crate) fn for_user(server: &ServerName, why: &HoldError) -> CallError {
    match why {
        HoldError::NoRoom(full) => no_room(full).named(server),
        why => {
            CallError::new(ErrorKind::NotRunning, format!("`{server}` is not running")).cause(why)
        }
    }
}

fn no_room(full: &NoRoom) -> ServerFault {
    ServerFault::NoRoom { cause: full.to_string(), hint: full.hint().to_string() }
}
