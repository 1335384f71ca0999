//! Running a command to completion, with a time limit.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::wait::poll;

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// Its exit code; 128 plus the signal number if a signal ended it.
    pub code: i32,
    /// Its stdout.
    pub stdout: String,
    /// Its stderr.
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let signal = || 128 + output.status.signal().unwrap_or_default();
        Self {
            code: output.status.code().unwrap_or_else(signal),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs `command` to completion. Kills it and panics if it takes longer than `limit`.
///
/// Its output goes to files, as a child that it leaves behind could keep a pipe open forever.
#[track_caller]
pub(crate) fn to_the_end(command: &mut Command, limit: Duration) -> Output {
    let (stdout, stderr) = (scratch(), scratch());
    command.stdin(Stdio::null()).stdout(shared(&stdout)).stderr(shared(&stderr));
    let mut child = command.spawn().unwrap_or_else(|cause| panic!("no {command:?}: {cause}"));
    let status = poll(limit, || child.try_wait().expect("a child of ours can be waited for"));
    if status.is_none() {
        let _ = child.kill(); // It may end at this very moment.
        let _ = child.wait();
    }
    let read = |file: &File| read_all(file).expect("a scratch file can be read");
    let (stdout, stderr) = (read(&stdout), read(&stderr));
    let Some(status) = status else {
        let told = [stdout, stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
        panic!(
            "{command:?} did not end within {limit:?}; stdout: {}\nstderr: {}",
            told[0], told[1]
        );
    };
    Output { status, stdout, stderr }
}

fn scratch() -> File {
    tempfile::tempfile().expect("a scratch file")
}

fn shared(file: &File) -> File {
    file.try_clone().expect("a descriptor is free")
}

/// Reads from the start without moving the offset, which the writers share.
fn read_all(file: &File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    let mut bytes = vec![0; usize::try_from(length).expect("what a test wrote fits in memory")];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration) -> Ran {
        to_the_end(Command::new("sh").args(["-c", script]), limit).into()
    }

    #[test]
    fn code_and_output_are_told() {
        let ran = sh("echo a; echo b >&2; exit 3", Duration::from_secs(20));
        assert_eq!(ran, Ran { code: 3, stdout: "a\n".to_owned(), stderr: "b\n".to_owned() });
    }

    #[test]
    fn death_by_signal_has_the_exit_code_of_shells() {
        assert_eq!(sh("kill -9 $$", Duration::from_secs(20)).code, 137);
    }

    #[test]
    #[should_panic(expected = "did not end within")]
    fn command_that_hangs_fails() {
        sh("echo before; exec sleep 60", Duration::from_millis(50));
    }
}
