//! The servers that were added while a daemon ran, kept across its restarts.
//!
//! They are kept with all their settings: what a later `xy.kdl` says of its defaults is for
//! servers that have files.

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xy_config::settings::ServerSettings;

use crate::reload::ServerMap;
use crate::whole_file::{put_aside, read_bounded, write_whole};

const FORMAT: u32 = 1;

/// A thousand servers with long environments; of a larger file only so much is read, and it
/// is damaged.
const MAX_FILE: u64 = 64 * 1024 * 1024;

/// The servers that no file configures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddedServers {
    /// By name.
    pub servers: ServerMap,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    format: u32,
    servers: Vec<Arc<ServerSettings>>,
}

impl AddedServers {
    /// Reads the file. A damaged one is put aside and told.
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
            Err(problem) => (Self::default(), Some(put_aside(file, &problem))),
        })
    }

    /// What the file says, if it can be read; it is left as it is.
    pub fn look(file: &Path) -> Option<Self> {
        parse(&read_bounded(file, MAX_FILE).ok()?).ok()
    }

    /// Writes the file, whole or not at all.
    pub fn write(&self, file: &Path) -> io::Result<()> {
        let stored = Stored { format: FORMAT, servers: self.servers.values().cloned().collect() };
        let mut text = serde_json::to_vec_pretty(&stored)?;
        text.push(b'\n');
        write_whole(file, &text)
    }
}

fn parse(text: &[u8]) -> Result<AddedServers, String> {
    let stored: Stored = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if stored.format != FORMAT {
        return Err(format!("format {} is unknown", stored.format));
    }
    if let Some(odd) = stored.servers.iter().find(|one| !one.rules.are_sane()) {
        return Err(format!("the durations of `{}` are too long", odd.name));
    }
    let servers = stored.servers.into_iter().map(|mut one| {
        // Whoever is kept here has no file, whatever the text says.
        Arc::make_mut(&mut one).source.added = true;
        (one.name.clone(), one)
    });
    Ok(AddedServers { servers: servers.collect() })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::fake::{remote, settings};

    fn some() -> AddedServers {
        let mut one = settings("one");
        one.source.added = true;
        one.rules.ready.probe = xy_config::settings::Probe::Process;
        AddedServers { servers: [(one.name.clone(), Arc::new(one))].into() }
    }

    #[test]
    fn what_was_added_survives_the_disk_and_nobody_else_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("added.json");
        some().write(&file).unwrap();
        assert_eq!(AddedServers::read(&file).unwrap(), (some(), None));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn the_file_of_the_first_release_is_still_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("added.json");
        fs::write(&file, include_str!("added/fixtures/format-1.json")).unwrap();
        assert_eq!(AddedServers::read(&file).unwrap(), (some(), None));
    }

    /// What this version keeps that earlier ones did not know.
    fn newer() -> AddedServers {
        let mut far = remote("far");
        far.source.added = true;
        far.rules.calls.idle = Some(std::time::Duration::from_mins(5));
        AddedServers { servers: [(far.name.clone(), Arc::new(far))].into() }
    }

    #[test]
    fn a_server_somewhere_else_is_kept_and_read_as_this_version_wrote_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("added.json");
        newer().write(&file).unwrap();
        let fixture = include_str!("added/fixtures/format-1-probes.json");
        assert_eq!(fs::read_to_string(&file).unwrap(), fixture);
        assert_eq!(AddedServers::read(&file).unwrap(), (newer(), None));
    }

    #[test]
    fn the_file_of_a_version_that_made_no_probes_is_still_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("added.json");
        fs::write(&file, include_str!("added/fixtures/format-1-remote.json")).unwrap();
        assert_eq!(AddedServers::read(&file).unwrap(), (newer(), None));
    }

    #[test]
    fn no_file_means_that_nothing_was_added() {
        let folder = tempfile::tempdir().unwrap();
        let read = AddedServers::read(&folder.path().join("x")).unwrap();
        assert_eq!(read, (AddedServers::default(), None));
    }

    #[test]
    fn a_damaged_file_is_put_aside_and_told() {
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
            let (read, told) = AddedServers::read(&file).unwrap();
            assert_eq!(read, AddedServers::default());
            assert!(told.unwrap().contains("added.json.damaged"));
            let aside = folder.path().join("added.json.damaged");
            assert_eq!(fs::read_to_string(aside).unwrap(), text);
        }
    }
}
