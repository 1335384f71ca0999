//! The servers that were added at run time, kept across daemon restarts.
//!
//! They are stored with all their settings. Defaults of a later `xy.kdl` apply only to servers
//! that have files.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xy_config::settings::ServerSettings;
use xy_config::stored_file::StoredFile;

use crate::reload::ServerMap;

/// Maximum size of the file: a thousand servers with long environments.
const MAX_FILE: u64 = 64 * 1024 * 1024;

/// The servers that no file configures.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeServers {
    /// The servers, by name.
    #[serde(serialize_with = "write_list", deserialize_with = "read_list")]
    pub servers: ServerMap,
}

impl StoredFile for RuntimeServers {
    const FORMAT: u32 = 1;
    const FILE_SIZE: u64 = MAX_FILE;
    const IS_PRETTY: bool = true;

    fn validate(&self) -> Result<(), String> {
        match self.servers.values().find(|one| !one.rules.are_sane()) {
            Some(odd) => Err(format!("the durations of `{}` are too long", odd.name)),
            None => Ok(()),
        }
    }
}

fn write_list<S: Serializer>(servers: &ServerMap, to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(servers.values())
}

fn read_list<'de, D: Deserializer<'de>>(from: D) -> Result<ServerMap, D::Error> {
    let servers = Vec::<Arc<ServerSettings>>::deserialize(from)?.into_iter().map(|mut one| {
        // A server in this file has no file of its own, whatever the text says.
        Arc::make_mut(&mut one).source.added = true;
        (one.name.clone(), one)
    });
    Ok(servers.collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::fake::{remote, settings};

    fn some() -> RuntimeServers {
        let mut one = settings("one");
        one.source.added = true;
        one.rules.ready.probe = xy_config::settings::Probe::Process;
        RuntimeServers { servers: [(one.name.clone(), Arc::new(one))].into() }
    }

    #[test]
    fn file_of_first_release_is_still_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("added.json");
        fs::write(&file, include_str!("runtime_servers/fixtures/format-1.json")).unwrap();
        assert_eq!(RuntimeServers::read(&file).unwrap(), (some(), None));
    }

    /// Returns a server with settings that earlier versions did not know.
    fn newer() -> RuntimeServers {
        let mut far = remote("far");
        far.source.added = true;
        far.rules.calls.idle = Some(std::time::Duration::from_mins(5));
        RuntimeServers { servers: [(far.name.clone(), Arc::new(far))].into() }
    }

    #[test]
    fn remote_server_is_written_in_current_format() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("added.json");
        newer().write(&file).unwrap();
        let fixture = include_str!("runtime_servers/fixtures/format-1-probes.json");
        assert_eq!(fs::read_to_string(&file).unwrap(), fixture);
        assert_eq!(RuntimeServers::read(&file).unwrap(), (newer(), None));
    }

    #[test]
    fn file_of_version_without_probes_is_still_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("added.json");
        fs::write(&file, include_str!("runtime_servers/fixtures/format-1-remote.json")).unwrap();
        assert_eq!(RuntimeServers::read(&file).unwrap(), (newer(), None));
    }

    #[test]
    fn file_with_endless_durations_is_damaged() {
        let mut endless = some();
        let one = endless.servers.values_mut().next().unwrap();
        Arc::make_mut(one).rules.stop.grace = std::time::Duration::MAX;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("added.json");
        endless.write(&file).unwrap();
        let (read, message) = RuntimeServers::read(&file).unwrap();
        assert_eq!(read, RuntimeServers::default());
        assert!(message.unwrap().contains("the durations of `one` are too long"));
    }
}
