//! A home's MCP servers, and clients of its gateway.

use std::fs;
use std::path::PathBuf;

use super::Home;
use crate::kdl;
use crate::mcp::{McpHttp, McpModern, McpStdio};

impl Home {
    /// Writes the file of a server that runs `xy-test-mcp` with these flags. The file has no
    /// `ready`, so xy uses the MCP handshake.
    #[track_caller]
    pub fn mcp_server(&self, name: &str, args: &[&str]) {
        self.write_config(&format!("servers/{name}.kdl"), &self.kdl_mcp(args));
    }

    /// Returns the text that [`Home::mcp_server`] writes, to be extended.
    #[track_caller]
    pub fn kdl_mcp(&self, args: &[&str]) -> String {
        kdl::command(&self.program("xy-test-mcp"), args)
    }

    /// Returns a client of `xy connect` with these arguments. It has sent nothing yet.
    #[track_caller]
    pub fn mcp_connect(&self, args: &[&str]) -> McpStdio {
        McpStdio::start(self.command(&[&["connect"], args].concat()))
    }

    /// Returns an HTTP client of the daemon, at this path and with its token. It has sent nothing
    /// yet.
    #[track_caller]
    pub fn mcp_http(&self, path: &str) -> McpHttp {
        McpHttp::new(&self.gateway_address(), path, &self.gateway_token())
    }

    /// Returns a sessionless HTTP client of the daemon, at this path and with its token.
    #[track_caller]
    pub fn mcp_modern(&self, path: &str) -> McpModern {
        McpModern::http(&self.gateway_address(), path, &self.gateway_token())
    }

    /// Returns host and port of the daemon's gateway. Waits for it, as it starts after the daemon
    /// is ready.
    #[track_caller]
    pub fn gateway_address(&self) -> String {
        self.wait_until("the daemon names its gateway", || {
            let info = self.call("info", serde_json::Value::Null).ok()?;
            let url = info["gateway_url"].as_str()?;
            Some(url.strip_prefix("http://")?.split('/').next()?.to_owned())
        })
    }

    /// Returns the token of the gateway.
    #[track_caller]
    pub fn gateway_token(&self) -> String {
        let file = self.root.join("state/xy/token");
        let token = fs::read_to_string(&file)
            .unwrap_or_else(|cause| panic!("no token at {}: {cause}", file.display()));
        token.trim().to_owned()
    }

    /// Returns the path of the daemon's MCP socket.
    pub fn mcp_socket(&self) -> PathBuf {
        self.root.join("run/xy-mcp.sock")
    }
}
