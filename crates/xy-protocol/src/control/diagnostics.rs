//! `diagnostics`: everything that helps to analyse a problem report, without secrets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::self_test::RestartRecord;
use super::{Info, Severity};
use crate::server::ServerName;
use crate::time::Timestamp;

/// The replacement of a secret.
pub const MASK: &str = "***";

/// Maximum size of a report, in bytes.
pub const MAX_DIAGNOSTICS_BYTES: usize = 1 << 20;

/// The answer to `diagnostics`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Diagnostics {
    /// The version of xy that wrote this.
    pub version: String,
    /// [`crate::PROTOCOL_VERSION`].
    pub protocol: u32,
    /// When it was written.
    pub timestamp: Timestamp,
    /// The machine.
    pub system: System,
    /// The daemon; null if none runs.
    pub daemon: Option<DaemonState>,
    /// Why no daemon runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub problem: Option<String>,
    /// The paths that xy uses.
    pub paths: BTreeMap<String, String>,
    /// The files and folders at those paths.
    pub files: Vec<FileState>,
    /// The configuration.
    pub configuration: ConfigurationState,
    /// Every server.
    pub servers: Vec<ServerReport>,
    /// The latest restarts of all servers, oldest first.
    pub restart_history: Vec<RestartRecord>,
    /// Metrics of the gateway, with the names that `/metrics` uses.
    pub metrics: BTreeMap<String, f64>,
    /// The parts left out because the report would have been too long.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub left_out: Vec<String>,
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct System {
    /// `linux` or `darwin`.
    pub platform: String,
    /// `x86_64`, `aarch64`, …
    pub arch: String,
    /// Total memory in bytes; null where the system does not report it.
    pub total_memory: Option<u64>,
    /// Available memory in bytes.
    pub free_memory: Option<u64>,
}

/// The daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonState {
    /// The answer to `info`.
    #[serde(flatten)]
    pub info: Info,
    /// Resident memory in bytes; null where the system does not report it.
    pub rss: Option<u64>,
}

/// A file or a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileState {
    /// The path.
    pub path: String,
    /// `file`, `folder`, `socket`, `other` or `missing`.
    pub kind: String,
    /// Its size, if it is a file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes: Option<u64>,
    /// The permissions, in octal.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mode: Option<String>,
    /// Why the state of the file is not known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub problem: Option<String>,
}

/// The result of checking the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationState {
    /// True if a daemon would accept the files.
    pub valid: bool,
    /// Number of server files.
    pub files: usize,
    /// Number of server files without an error.
    pub servers: usize,
    /// All errors and warnings, without the text of the files.
    pub problems: Vec<BriefProblem>,
}

/// One problem of a file, without the file's text, which may contain secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BriefProblem {
    /// The severity.
    pub severity: Severity,
    /// The message.
    pub message: String,
    /// The file.
    pub file: String,
    /// The line, from 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub line: Option<u32>,
}

/// One server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerReport {
    /// Its name.
    pub name: ServerName,
    /// The content of its file; the values of its environment and headers are masked.
    pub configuration: Value,
    /// The answer to `status`; null without a daemon.
    pub status: Option<Value>,
    /// The last lines of stderr, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub stderr: Vec<String>,
    /// The log file and its older generations.
    pub log_files: Vec<FileState>,
}
