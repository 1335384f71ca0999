//! `diagnostics`: everything that helps whoever reads a report of trouble, without secrets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::self_test::RestartRecord;
use super::{Info, Severity};
use crate::server::ServerName;
use crate::time::Timestamp;

/// What stands in the place of a secret.
pub const MASK: &str = "***";

/// No report is longer, in bytes.
pub const MOST_DIAGNOSTICS: usize = 1 << 20;

/// The answer to `diagnostics`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Diagnostics {
    /// The version of xy that wrote this.
    pub version: String,
    /// [`crate::PROTOCOL_VERSION`].
    pub protocol: u32,
    /// When.
    pub timestamp: Timestamp,
    /// The machine.
    pub system: System,
    /// The daemon; null if there is none.
    pub daemon: Option<DaemonState>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub problem: Option<String>,
    /// Where everything is.
    pub paths: BTreeMap<String, String>,
    /// What is there.
    pub files: Vec<FileState>,
    /// What the files say.
    pub configuration: ConfigurationState,
    /// Every server.
    pub servers: Vec<ServerReport>,
    /// The latest restarts of all servers, oldest first.
    pub restart_history: Vec<RestartRecord>,
    /// Numbers of the gateway, by the names that `/metrics` has for them.
    pub metrics: BTreeMap<String, f64>,
    /// What would have made this too long.
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
    /// Bytes of memory; null where the system does not tell.
    pub total_memory: Option<u64>,
    /// Bytes of it that could be used.
    pub free_memory: Option<u64>,
}

/// The daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonState {
    /// What `info` says.
    #[serde(flatten)]
    pub info: Info,
    /// Bytes of it that are in memory; null where the system does not tell.
    pub rss: Option<u64>,
}

/// A file or a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileState {
    /// Where.
    pub path: String,
    /// `file`, `folder`, `socket`, `other` or `missing`.
    pub kind: String,
    /// Its size, if it is a file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes: Option<u64>,
    /// Who may do what with it, in octal.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mode: Option<String>,
    /// Why nothing is known of it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub problem: Option<String>,
}

/// What the files say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationState {
    /// Whether a daemon would accept them.
    pub valid: bool,
    /// How many server files there are.
    pub files: usize,
    /// How many of them describe a server without a fault.
    pub servers: usize,
    /// Everything that is wrong or odd, without the text of the files.
    pub problems: Vec<BriefProblem>,
}

/// One problem in the files, without their text, in which secrets may be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BriefProblem {
    /// How bad.
    pub severity: Severity,
    /// What.
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
    /// What its file says; the values of its environment and its headers are masked.
    pub configuration: Value,
    /// What `status` says; null without a daemon.
    pub status: Option<Value>,
    /// Its last lines of stderr, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub stderr: Vec<String>,
    /// Its log and the older ones.
    pub log_files: Vec<FileState>,
}
