//! A home's MCP servers, and clients of its gateway.

use std::fs;
use std::path::PathBuf;

use super::Home;
use crate::kdl;
use crate::mcp::{McpHttp, McpModern, McpStdio};

impl Home {
    /// Writes the file of a server that is `xy-test-mcp` with these flags. It says nothing
    /// of readiness: xy finds out by speaking with it.
    #[track_caller]
    pub fn mcp_server(&self, name: &str, args: &[&str]) {
        self.write_config(&format!("servers/{name}.kdl"), &self.kdl_mcp(args));
    }

    /// What [`Home::mcp_server`] writes, to be added to.
    #[track_caller]
    pub fn kdl_mcp(&self, args: &[&str]) -> String {
        kdl::command(&self.program("xy-test-mcp"), args)
    }

    /// A client of `xy connect` with these arguments. It has said nothing yet.
    #[track_caller]
    pub fn mcp_connect(&self, args: &[&str]) -> McpStdio {
        McpStdio::start(self.command(&[&["connect"], args].concat()))
    }

    /// A client of the daemon over HTTP, at this path, with its token. It has said nothing
    /// yet.
    #[track_caller]
    pub fn mcp_http(&self, path: &str) -> McpHttp {
        McpHttp::new(&self.gateway_address(), path, &self.gateway_token())
    }

    /// A client without sessions of the daemon over HTTP, at this path, with its token.
    #[track_caller]
    pub fn mcp_modern(&self, path: &str) -> McpModern {
        McpModern::http(&self.gateway_address(), path, &self.gateway_token())
    }

    /// Where the daemon's gateway listens: host and port. It begins a little after the daemon
    /// serves, so that is waited for.
    #[track_caller]
    pub fn gateway_address(&self) -> String {
        self.wait_until("the daemon names its gateway", || {
            let info = self.call("info", serde_json::Value::Null).ok()?;
            let url = info["gateway_url"].as_str()?;
            Some(url.strip_prefix("http://")?.split('/').next()?.to_owned())
        })
    }

    /// The token of the gateway.
    #[track_caller]
    pub fn gateway_token(&self) -> String {
        let file = self.root.join("state/xy/token");
        let token = fs::read_to_string(&file)
            .unwrap_or_else(|cause| panic!("no token at {}: {cause}", file.display()));
        token.trim().to_owned()
    }

    /// The socket on which the daemon speaks MCP.
    pub fn mcp_socket(&self) -> PathBuf {
        self.root.join("run/xy-mcp.sock")
    }
}
