//! The servers that were added at run time, kept across daemon restarts.
//!
//! They are stored with all their settings. Defaults of a later `xy.kdl` apply only to servers
//! that have files.

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xy_config::settings::ServerSettings;

use crate::reload::ServerMap;
use xy_config::atomic_file::{quarantine, read_bounded, write_atomically};

const FORMAT: u32 = 1;

/// Maximum size of the file: a thousand servers with long environments. A larger file counts as
/// damaged.
const MAX_FILE: u64 = 64 * 1024 * 1024;

/// The servers that no file configures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeServers {
    /// The servers, by name.
    pub servers: ServerMap,
}

#[derive(Serialize, Deserialize)]
struct StoredServers {
    format: u32,
    servers: Vec<Arc<ServerSettings>>,
}

impl RuntimeServers {
    /// Reads the file. Quarantines a damaged file and returns a message about it.
    pub fn read(file: &Path) -> io::Result<(Self, Option<String>)> {
        let text = match read_bounded(file, MAX_FILE) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((Self::default(), None));
            }
            Err(error) => return Err(error),
        };
        Ok(match parse(&text) {
            Ok(added) => (added, None),
            Err(problem) => (Self::default(), Some(quarantine(file, &problem))),
        })
    }

    /// Returns the content of the file, if it can be parsed. Never changes the file.
    pub fn peek(file: &Path) -> Option<Self> {
        parse(&read_bounded(file, MAX_FILE).ok()?).ok()
    }

    /// Writes the file atomically.
    pub fn write(&self, file: &Path) -> io::Result<()> {
        let stored =
            StoredServers { format: FORMAT, servers: self.servers.values().cloned().collect() };
        let mut text = serde_json::to_vec_pretty(&stored)?;
        text.push(b'\n');
        write_atomically(file, &text)
    }
}

fn parse(text: &[u8]) -> Result<RuntimeServers, String> {
    let stored: StoredServers = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if stored.format != FORMAT {
        return Err(format!("format {} is unknown", stored.format));
    }
    if let Some(odd) = stored.servers.iter().find(|one| !one.rules.are_sane()) {
        return Err(format!("the durations of `{}` are too long", odd.name));
    }
    let servers = stored.servers.into_iter().map(|mut one| {
        // A server in this file has no file of its own, whatever the text says.
        Arc::make_mut(&mut one).source.added = true;
        (one.name.clone(), one)
    });
    Ok(RuntimeServers { servers: servers.collect() })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::fake::{remote, settings};

    fn some() -> RuntimeServers {
        let mut one = settings("one");
        one.source.added = true;
        one.rules.ready.probe = xy_config::settings::Probe::Process;
        RuntimeServers { servers: [(one.name.clone(), Arc::new(one))].into() }
    }

    #[test]
    fn servers_survive_the_disk_in_a_private_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("added.json");
        some().write(&file).unwrap();
        assert_eq!(RuntimeServers::read(&file).unwrap(), (some(), None));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
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
    fn missing_file_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let read = RuntimeServers::read(&folder.path().join("x")).unwrap();
        assert_eq!(read, (RuntimeServers::default(), None));
    }

    #[test]
    fn damaged_file_is_quarantined_and_reported() {
        let mut endless = some();
        let one = endless.servers.values_mut().next().unwrap();
        Arc::make_mut(one).rules.stop.grace = std::time::Duration::MAX;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("added.json");
        endless.write(&file).unwrap();
        let endless = fs::read_to_string(&file).unwrap();
        for text in ["", "{", r#"{"format":9,"servers":[]}"#, &endless] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("added.json");
            fs::write(&file, text).unwrap();
            let (read, message) = RuntimeServers::read(&file).unwrap();
            assert_eq!(read, RuntimeServers::default());
            assert!(message.unwrap().contains("added.json.damaged"));
            let aside = folder.path().join("added.json.damaged");
            assert_eq!(fs::read_to_string(aside).unwrap(), text);
        }
    }
}
