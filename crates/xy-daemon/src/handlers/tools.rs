//! Handler of `tools`: lists the tools of all servers, or of one.

use xy_protocol::control::{ToolEntry, ToolList, Tools};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;

use crate::daemon::Daemon;

pub(super) async fn handle(daemon: &Daemon, params: Tools) -> Result<ToolList, CallError> {
    if let Some(name) = &params.server {
        daemon.find(name)?; // Its error suggests the nearest name.
    }
    let tools = daemon.admin()?.tools(params.server).await?;
    let tools: Result<Vec<ToolEntry>, CallError> = tools.into_iter().map(entry).collect();
    Ok(ToolList { tools: tools? })
}

fn entry(tool: xy_gateway::Tool) -> Result<ToolEntry, CallError> {
    let xy_gateway::Tool { name, server, tool } = tool;
    let server = ServerName::new(&server).map_err(|cause| {
        CallError::new(ErrorKind::Internal, "the tools could not be listed").cause(cause)
    })?;
    Ok(ToolEntry { name, server, tool: tool.into() })
}
