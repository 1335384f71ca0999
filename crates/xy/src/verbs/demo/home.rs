//! The demo's temporary folder: configuration, state and socket.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The environment variables for xy's folders, and the folder of each in the demo.
const FOLDERS: [(&str, &str); 3] =
    [("XDG_CONFIG_HOME", "config"), ("XDG_STATE_HOME", "state"), ("XDG_RUNTIME_DIR", "run")];

/// Maximum number of attempts to remove the folder.
const MAX_REMOVE_ATTEMPTS: u32 = 40;

/// Interval between two attempts to remove the folder.
const REMOVE_INTERVAL: Duration = Duration::from_millis(50);

/// A temporary folder that is removed with its contents when dropped.
#[derive(Debug)]
pub(super) struct Home {
    root: PathBuf,
}

impl Home {
    /// Creates the folder, with files for two servers that run `program`.
    pub(super) fn create(parent: &Path, program: &Path) -> io::Result<Self> {
        let root = parent.join(format!("xy-demo-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&root)?;
        let home = Self { root };
        for (_, folder) in FOLDERS {
            DirBuilder::new().mode(0o700).create(home.root.join(folder))?;
        }
        let servers = home.root.join("config/xy/servers");
        fs::create_dir_all(&servers)?;
        // If the demo's daemon is killed, no other daemon adopts its servers. The short timeout
        // ends them soon.
        fs::write(
            home.root.join("config/xy/xy.kdl"),
            "orphan-timeout \"1s\"\ngateway { listen \"127.0.0.1:0\"; }\n",
        )?;
        fs::write(servers.join("clock.kdl"), server(program, ""))?;
        fs::write(servers.join("flaky.kdl"), server(program, " \"--crash-after\" \"4s\""))?;
        Ok(home)
    }

    /// Returns the environment variables that make xy use this folder.
    pub(super) fn variables(&self) -> [(&'static str, PathBuf); 3] {
        FOLDERS.map(|(variable, folder)| (variable, self.root.join(folder)))
    }

    /// Returns the file that receives the daemon's stderr.
    pub(super) fn daemon_stderr(&self) -> PathBuf {
        self.root.join("daemon.stderr")
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // Servers of a killed daemon may still write for a moment. If removal fails even then, the
        // folder stays in the system's folder for temporary files.
        for _ in 0..MAX_REMOVE_ATTEMPTS {
            match fs::remove_dir_all(&self.root) {
                Err(problem) if problem.kind() == io::ErrorKind::DirectoryNotEmpty => {
                    thread::park_timeout(REMOVE_INTERVAL); // Nothing unparks it earlier.
                }
                _ => return,
            }
        }
    }
}

/// Returns the file of a sample server.
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
    fn home_is_complete_and_removed() {
        let parent = tempfile::TempDir::new().unwrap();
        let home = Home::create(parent.path(), Path::new("/opt/a \"b\"/xy")).unwrap();
        let clock = fs::read_to_string(home.root.join("config/xy/servers/flaky.kdl")).unwrap();
        insta::assert_snapshot!(clock);
        assert!(home.variables().iter().all(|(_, folder)| folder.is_dir()));
        drop(home);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
