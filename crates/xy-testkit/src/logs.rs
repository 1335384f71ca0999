//! Reading of a server's log files.

use std::fs;
use std::path::{Path, PathBuf};

use crate::home::Home;

/// Returns all lines of the server's log files with their `[out]` and `[err]`, oldest first; empty
/// if there is no log yet.
///
/// A rotation during the read can hide or repeat lines, so call it after the server has written
/// all of them.
pub fn read_log_lines(home: &Home, name: &str) -> Vec<String> {
    let bytes: Vec<u8> = generations(&home.log_file(name))
        .iter()
        .flat_map(|file| fs::read(file).unwrap_or_default())
        .collect();
    String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()
}

/// Returns the existing files, oldest first: `.N` … `.1`, then the current one.
fn generations(current: &Path) -> Vec<PathBuf> {
    let older = (1..).map(|number| PathBuf::from(format!("{}.{number}", current.display())));
    let mut files: Vec<PathBuf> = older.take_while(|file| file.exists()).collect();
    files.reverse();
    files.push(current.to_owned());
    files
}
