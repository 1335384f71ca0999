//! xy's own tools, for clients that may manage servers.

use std::rc::Rc;

use xy_protocol::error::CallError;

use crate::catalog::{Kind, Shown};
use crate::hub::Hub;
use crate::say;

/// Whether xy itself has a tool of this name.
pub(crate) fn is_own(_name: &str) -> bool {
    false
}

/// The tools of xy's own that a client is shown.
pub(crate) fn shown(_kind: Kind, _may_manage: bool) -> Vec<Shown> {
    Vec::new()
}

/// Does what a tool of xy's own does; the result as a client gets it.
pub(crate) async fn call(
    _hub: &Rc<Hub>,
    name: &str,
    _arguments: &str,
) -> Result<String, CallError> {
    Err(say::invalid(format!("Unknown tool: {name}")))
}
