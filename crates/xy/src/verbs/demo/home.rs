//! The demo's folder: its own configuration, state and socket.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The variables that say where xy's files are, and their folders in the demo's own.
const FOLDERS: [(&str, &str); 3] =
    [("XDG_CONFIG_HOME", "config"), ("XDG_STATE_HOME", "state"), ("XDG_RUNTIME_DIR", "run")];

/// So often it is tried to remove the folder, with so long between.
const TRIES: u32 = 40;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// A folder that goes away with all that is in it.
#[derive(Debug)]
pub(super) struct Home {
    root: PathBuf,
}

impl Home {
    /// Makes the folder and writes two servers whose program is `program`.
    pub(super) fn create(parent: &Path, program: &Path) -> io::Result<Self> {
        let root = parent.join(format!("xy-demo-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&root)?;
        let home = Self { root };
        for (_, folder) in FOLDERS {
            DirBuilder::new().mode(0o700).create(home.root.join(folder))?;
        }
        let servers = home.root.join("config/xy/servers");
        fs::create_dir_all(&servers)?;
        // Nobody will start another daemon for a demo whose own was killed.
        fs::write(
            home.root.join("config/xy/xy.kdl"),
            "orphan-timeout \"1s\"\ngateway { listen \"127.0.0.1:0\"; }\n",
        )?;
        fs::write(servers.join("clock.kdl"), server(program, ""))?;
        fs::write(servers.join("flaky.kdl"), server(program, " \"--crash-after\" \"4s\""))?;
        Ok(home)
    }

    /// The variables that lead xy here.
    pub(super) fn variables(&self) -> [(&'static str, PathBuf); 3] {
        FOLDERS.map(|(variable, folder)| (variable, self.root.join(folder)))
    }

    /// Where the daemon's own words go.
    pub(super) fn daemon_stderr(&self) -> PathBuf {
        self.root.join("daemon.stderr")
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // Servers whose daemon was killed write for a moment longer. What cannot be removed even
        // then is in the system's folder for temporary files.
        for _ in 0..TRIES {
            match fs::remove_dir_all(&self.root) {
                Err(problem) if problem.kind() == io::ErrorKind::DirectoryNotEmpty => {
                    thread::park_timeout(BETWEEN_TRIES); // Nobody wakes it sooner.
                }
                _ => return,
            }
        }
    }
}

/// The file of a sample server.
fn server(program: &Path, arguments: &str) -> String {
    let program = program.to_string_lossy().replace('\\', "\\\\").replace('"', "\\\"");
    format!(
        "command \"{program}\"\n\
         args \"sample-server\"{arguments}\n\
         transport \"stdio\"\n\
         ready {{ probe \"process\"; }}\n\
         health {{ probe \"off\"; }}\n\
         restart {{ policy \"on-failure\"; backoff-initial \"1s\"; max-retries-per-minute 5; }}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_complete_and_goes_away() {
        let parent = tempfile::TempDir::new().unwrap();
        let home = Home::create(parent.path(), Path::new("/opt/a \"b\"/xy")).unwrap();
        let clock = fs::read_to_string(home.root.join("config/xy/servers/flaky.kdl")).unwrap();
        insta::assert_snapshot!(clock);
        assert!(home.variables().iter().all(|(_, folder)| folder.is_dir()));
        drop(home);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
