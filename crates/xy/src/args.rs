//! Arguments that several verbs share.

use std::path::PathBuf;

use clap::Args;

/// The flag that selects JSON output.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Json {
    /// Print the daemon's JSON; an error is printed to stdout as {"error": …}
    #[arg(long)]
    pub(crate) json: bool,
}

/// Configuration files of MCP clients, for `daemon` and `check`.
#[derive(Debug, Clone, Args)]
pub(crate) struct McpJson {
    /// Also read servers from an MCP client's file (`mcpServers` or `servers`); can be repeated
    #[arg(long, value_name = "FILE")]
    mcp_json: Vec<PathBuf>,
}

impl McpJson {
    /// Returns absolute paths, as the daemon changes its working directory.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let absolute = |file: &PathBuf| std::path::absolute(file).unwrap_or_else(|_| file.clone());
        self.mcp_json.iter().map(absolute).collect()
    }
}

/// The servers that `start`, `stop` or `restart` is for.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Which {
    /// The server's name
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// All configured servers
    #[arg(long)]
    pub(crate) all: bool,
}
