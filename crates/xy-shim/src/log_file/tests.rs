use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use tempfile::TempDir;

use super::*;
use crate::clock;

const SECOND: Duration = Duration::from_secs(1);

/// A temporary folder for the log `x.log`.
struct Setup {
    folder: TempDir,
    now: Instant,
}

impl Setup {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), now: clock::now() }
    }

    fn log(&self, max_bytes: u64, generations: u32) -> RotatingFile {
        RotatingFile::new(self.path("x.log"), max_bytes, generations)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|cause| cause.kind().to_string())
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn file_and_folders_are_private() {
    let setup = Setup::new();
    let mut log = RotatingFile::new(setup.path("a/b/x.log"), 100, 1);
    log.append(b"one\n", setup.now).unwrap();
    assert_eq!(setup.text("a/b/x.log"), "one\n");
    assert_eq!(mode(&setup.path("a/b/x.log")), 0o600);
    assert_eq!(mode(&setup.path("a/b")), 0o700);
    assert_eq!(mode(&setup.path("a")), 0o700);
}

#[test]
fn file_rotates_at_exactly_its_size() {
    let setup = Setup::new();
    let mut log = setup.log(8, 1);
    log.append(b"one\n", setup.now).unwrap();
    log.append(b"two\n", setup.now).unwrap();
    assert_eq!(setup.text("x.log"), "one\ntwo\n");
    assert_eq!(setup.text("x.log.1"), "entity not found");

    log.append(b"three\n", setup.now).unwrap();
    assert_eq!(setup.text("x.log"), "three\n");
    assert_eq!(setup.text("x.log.1"), "one\ntwo\n");
    assert_eq!(mode(&setup.path("x.log")), 0o600);
}

#[test]
fn oldest_generation_is_removed() {
    let setup = Setup::new();
    let mut log = setup.log(1, 2);
    for line in ["a\n", "b\n", "c\n", "d\n"] {
        log.append(line.as_bytes(), setup.now).unwrap();
    }
    let texts = ["x.log", "x.log.1", "x.log.2", "x.log.3"].map(|name| setup.text(name));
    assert_eq!(texts, ["d\n", "c\n", "b\n", "entity not found"]);
}

#[test]
fn log_without_generations_is_replaced() {
    let setup = Setup::new();
    let mut log = setup.log(1, 0);
    log.append(b"a\n", setup.now).unwrap();
    log.append(b"b\n", setup.now).unwrap();
    assert_eq!(setup.text("x.log"), "b\n");
    assert_eq!(fs::read_dir(setup.folder.path()).unwrap().count(), 1);
}

#[test]
fn existing_file_counts_towards_the_size() {
    let setup = Setup::new();
    setup.log(8, 1).append(b"one\ntwo\n", setup.now).unwrap();
    setup.log(8, 1).append(b"three\n", setup.now).unwrap();
    assert_eq!([setup.text("x.log"), setup.text("x.log.1")], ["three\n", "one\ntwo\n"]);
}

#[test]
fn deleted_folder_is_recreated_within_a_second() {
    let setup = Setup::new();
    let mut log = RotatingFile::new(setup.path("logs/x.log"), 100, 1);
    log.append(b"one\n", setup.now).unwrap();
    fs::remove_dir_all(setup.path("logs")).unwrap();

    log.append(b"two\n", setup.now + SECOND / 2).unwrap();
    assert_eq!(setup.text("logs/x.log"), "entity not found");
    log.append(b"three\n", setup.now + SECOND).unwrap();
    assert_eq!(setup.text("logs/x.log"), "three\n");
}

#[test]
fn moved_log_is_created_anew() {
    let setup = Setup::new();
    let mut log = setup.log(8, 3);
    log.append(b"one\ntwo\n", setup.now).unwrap();
    fs::rename(setup.path("x.log"), setup.path("moved")).unwrap();

    // Even before the next check: only the file written here may be rotated.
    log.append(b"three\n", setup.now).unwrap();
    assert_eq!([setup.text("x.log"), setup.text("moved")], ["three\n", "one\ntwo\n"]);
    assert_eq!(setup.text("x.log.1"), "entity not found");
}

#[test]
fn truncated_log_continues_without_a_hole() {
    let setup = Setup::new();
    let mut log = setup.log(8, 1);
    log.append(b"one\n", setup.now).unwrap();
    fs::File::options().write(true).open(setup.path("x.log")).unwrap().set_len(0).unwrap();

    log.append(b"two\n", setup.now + SECOND).unwrap();
    log.append(b"six\n", setup.now + SECOND).unwrap();
    assert_eq!(setup.text("x.log"), "two\nsix\n");
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_is_a_temporary_error() {
    let setup = Setup::new();
    symlink("/dev/full", setup.path("x.log")).unwrap();
    let mut log = setup.log(100, 1);
    let error = log.append(b"one\n", setup.now).unwrap_err();
    assert_eq!(error.written, 0);
    let message = error.to_string().replace(setup.folder.path().to_str().unwrap(), "HOME");
    assert_eq!(message, "could not write HOME/x.log: No space left on device");

    fs::remove_file(setup.path("x.log")).unwrap();
    log.append(b"two\n", setup.now).unwrap();
    assert_eq!(setup.text("x.log"), "two\n");
}

#[test]
fn device_is_never_rotated() {
    let setup = Setup::new();
    symlink("/dev/null", setup.path("x.log")).unwrap();
    let mut log = setup.log(1, 3);
    for line in 0..10 {
        log.append(b"one\n", setup.now + SECOND * line).unwrap();
    }
    assert_eq!(fs::read_dir(setup.folder.path()).unwrap().count(), 1);
}

#[test]
fn link_to_a_file_is_refused() {
    let setup = Setup::new();
    fs::write(setup.path("target"), "precious").unwrap();
    symlink(setup.path("target"), setup.path("x.log")).unwrap();
    let error = setup.log(1, 3).append(b"one\n", setup.now).unwrap_err();
    assert!(error.to_string().contains("is a link to a file"), "{error}");
    assert_eq!(setup.text("target"), "precious");
}

#[test]
fn directory_in_place_of_the_log_is_an_error() {
    let setup = Setup::new();
    fs::create_dir(setup.path("x.log")).unwrap();
    let error = setup.log(1, 3).append(b"one\n", setup.now).unwrap_err();
    assert_eq!(error.step, "open");
}

#[cfg(target_os = "linux")]
#[test]
fn fifo_without_reader_does_not_block() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    let setup = Setup::new();
    mknodat(CWD, setup.path("x.log"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let error = setup.log(1, 3).append(b"one\n", setup.now).unwrap_err();
    assert_eq!(error.step, "open");
}

#[test]
fn whole_lines_exclude_a_partial_line() {
    assert_eq!(whole_lines(b""), 0);
    assert_eq!(whole_lines(b"one"), 0);
    assert_eq!(whole_lines(b"one\ntw"), 4);
    assert_eq!(whole_lines(b"one\ntwo\n"), 8);
}

#[test]
fn partial_line_is_cut_off() {
    let setup = Setup::new();
    let mut log = setup.log(100, 1);
    log.append(b"one\ntwo\nthr", setup.now).unwrap();
    let whole = log.open.as_mut().unwrap().truncate_partial_line(b"two\nthr", 7);
    assert_eq!(whole, 4);
    log.append(b"four\n", setup.now).unwrap();
    assert_eq!(setup.text("x.log"), "one\ntwo\nfour\n");
}

#[test]
fn partial_line_that_stays_is_ended() {
    let setup = Setup::new();
    let mut log = setup.log(100, 1);
    log.append(b"one\ntw", setup.now).unwrap();
    log.open.as_mut().unwrap().is_torn = true;
    log.append(b"three\n", setup.now).unwrap();
    assert_eq!(setup.text("x.log"), "one\ntw\nthree\n");
}
