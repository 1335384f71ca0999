//! The libraries, with the features that each of them has no API for.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

/// The program that runs a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runtime {
    /// The Python of this environment, which a list of the same name describes.
    Python(&'static str),
    Node,
}

/// A client library, in one of its modes.
#[derive(Debug)]
pub(crate) struct Library {
    /// The name of its rows' files.
    pub(crate) key: &'static str,
    /// The package, as the list or `package.json` names it.
    pub(crate) package: &'static str,
    pub(crate) runtime: Runtime,
    pub(crate) driver: &'static str,
    /// `MODE` of the driver, for a library that speaks both eras.
    pub(crate) mode: Option<&'static str>,
    /// The driver states the reasons.
    pub(crate) unsupported: &'static [&'static str],
}

pub(crate) const PYTHON_SDK_1: Library = Library {
    key: "python-sdk-1",
    package: "mcp",
    runtime: Runtime::Python("mcp1"),
    driver: "mcp1.py",
    mode: None,
    unsupported: &[],
};

pub(crate) const PYTHON_SDK_2: Library = Library {
    key: "python-sdk-2",
    package: "mcp",
    runtime: Runtime::Python("mcp2"),
    driver: "mcp2.py",
    mode: Some("auto"),
    unsupported: &[],
};

pub(crate) const PYTHON_SDK_2_LEGACY: Library =
    Library { key: "python-sdk-2-legacy", mode: Some("legacy"), ..PYTHON_SDK_2 };

pub(crate) const TYPESCRIPT_SDK_1: Library = Library {
    key: "typescript-sdk-1",
    package: "@modelcontextprotocol/sdk",
    runtime: Runtime::Node,
    driver: "sdk1.mjs",
    mode: None,
    unsupported: &[],
};

pub(crate) const TYPESCRIPT_CLIENT_2: Library = Library {
    key: "typescript-client-2",
    package: "@modelcontextprotocol/client",
    runtime: Runtime::Node,
    driver: "client2.mjs",
    mode: Some("default"),
    unsupported: &[],
};

pub(crate) const TYPESCRIPT_CLIENT_2_AUTO: Library =
    Library { key: "typescript-client-2-auto", mode: Some("auto"), ..TYPESCRIPT_CLIENT_2 };

pub(crate) const FASTMCP: Library = Library {
    key: "fastmcp",
    package: "fastmcp",
    runtime: Runtime::Python("fastmcp"),
    driver: "fastmcp_client.py",
    mode: None,
    unsupported: &[],
};

pub(crate) const LANGCHAIN: Library = Library {
    key: "langchain",
    package: "langchain-mcp-adapters",
    runtime: Runtime::Python("langchain"),
    driver: "langchain_adapters.py",
    mode: None,
    unsupported: &[],
};

pub(crate) const PYDANTIC_AI: Library = Library {
    key: "pydantic-ai",
    package: "pydantic-ai-slim[mcp]",
    runtime: Runtime::Python("pydantic"),
    driver: "pydantic_toolset.py",
    mode: None,
    unsupported: &["completion", "subscribe"],
};

pub(crate) const OPENAI_AGENTS: Library = Library {
    key: "openai-agents",
    package: "openai-agents",
    runtime: Runtime::Python("agents"),
    driver: "agents_server.py",
    mode: None,
    unsupported: &["elicitation", "sampling", "roots", "completion", "subscribe"],
};

pub(crate) const MCP_USE: Library = Library {
    key: "mcp-use",
    package: "mcp-use",
    runtime: Runtime::Python("mcp-use"),
    driver: "mcp_use_client.py",
    mode: None,
    unsupported: &["progress", "completion", "subscribe", "cancel"],
};

impl Library {
    /// Returns the package with its pinned version and the mode, as the table names it.
    #[track_caller]
    pub(crate) fn title(&self) -> String {
        let mode = self.mode.map_or(String::new(), |mode| format!(", `{mode}`"));
        let package = self.package.trim_end_matches("[mcp]");
        format!("`{package}` {}{mode}", self.version())
    }

    /// Reads the pinned version.
    #[track_caller]
    fn version(&self) -> String {
        let found = match self.runtime {
            Runtime::Python(list) => {
                let text = fs::read_to_string(scripts().join(format!("{list}.txt"))).unwrap();
                let mut pins = text.lines().filter_map(|line| line.split_once("=="));
                pins.find(|(name, _)| *name == self.package).map(|(_, it)| it.trim().to_owned())
            }
            Runtime::Node => {
                let text = fs::read_to_string(scripts().join("package.json")).unwrap();
                let package: Value = serde_json::from_str(&text).unwrap();
                package["dependencies"][self.package].as_str().map(str::to_owned)
            }
        };
        found.unwrap_or_else(|| panic!("`{}` has no pinned version", self.package))
    }
}

/// Returns the folder of the drivers and the lists.
pub(crate) fn scripts() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../real/libraries")
}
