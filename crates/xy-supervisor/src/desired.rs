//! The desired state, kept across daemon restarts: which servers operators have stopped.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use xy_config::stored_file::StoredFile;
use xy_protocol::server::ServerName;

/// Maximum size of the file.
const MAX_FILE: u64 = 1024 * 1024;

/// The servers that operators stopped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredState {
    /// The servers that stay down until an operator starts them.
    pub stopped: BTreeSet<ServerName>,
}

impl StoredFile for DesiredState {
    const FORMAT: u32 = 1;
    const FILE_SIZE: u64 = MAX_FILE;
    const IS_PRETTY: bool = true;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_first_release_is_still_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("wishes.json");
        std::fs::write(&file, r#"{"format":1,"stopped":["github"]}"#).unwrap();
        let github = DesiredState { stopped: [ServerName::new("github").unwrap()].into() };
        assert_eq!(DesiredState::read(&file).unwrap(), (github, None));
        std::fs::write(&file, r#"{"format":1,"stopped":["__"]}"#).unwrap();
        let (read, message) = DesiredState::read(&file).unwrap();
        assert!(read == DesiredState::default() && message.is_some(), "an invalid name");
    }
}
