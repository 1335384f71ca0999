use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use tempfile::TempDir;

use super::*;
use crate::clock;

const SECOND: Duration = Duration::from_secs(1);

/// A log `x.log` in a folder of its own.
struct Home {
    folder: TempDir,
    now: Instant,
}

impl Home {
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
fn the_file_and_its_folders_are_made_for_the_owner_alone() {
    let home = Home::new();
    let mut log = RotatingFile::new(home.path("a/b/x.log"), 100, 1);
    log.append(b"one\n", home.now).unwrap();
    assert_eq!(home.text("a/b/x.log"), "one\n");
    assert_eq!(mode(&home.path("a/b/x.log")), 0o600);
    assert_eq!(mode(&home.path("a/b")), 0o700);
    assert_eq!(mode(&home.path("a")), 0o700);
}

#[test]
fn a_file_is_full_at_exactly_its_size() {
    let home = Home::new();
    let mut log = home.log(8, 1);
    log.append(b"one\n", home.now).unwrap();
    log.append(b"two\n", home.now).unwrap();
    assert_eq!(home.text("x.log"), "one\ntwo\n");
    assert_eq!(home.text("x.log.1"), "entity not found");

    log.append(b"three\n", home.now).unwrap();
    assert_eq!(home.text("x.log"), "three\n");
    assert_eq!(home.text("x.log.1"), "one\ntwo\n");
    assert_eq!(mode(&home.path("x.log")), 0o600);
}

#[test]
fn older_generations_move_up_and_the_oldest_goes() {
    let home = Home::new();
    let mut log = home.log(1, 2);
    for line in ["a\n", "b\n", "c\n", "d\n"] {
        log.append(line.as_bytes(), home.now).unwrap();
    }
    let texts = ["x.log", "x.log.1", "x.log.2", "x.log.3"].map(|name| home.text(name));
    assert_eq!(texts, ["d\n", "c\n", "b\n", "entity not found"]);
}

#[test]
fn a_log_may_keep_no_older_generation() {
    let home = Home::new();
    let mut log = home.log(1, 0);
    log.append(b"a\n", home.now).unwrap();
    log.append(b"b\n", home.now).unwrap();
    assert_eq!(home.text("x.log"), "b\n");
    assert_eq!(fs::read_dir(home.folder.path()).unwrap().count(), 1);
}

#[test]
fn what_an_earlier_life_has_written_counts() {
    let home = Home::new();
    home.log(8, 1).append(b"one\ntwo\n", home.now).unwrap();
    home.log(8, 1).append(b"three\n", home.now).unwrap();
    assert_eq!([home.text("x.log"), home.text("x.log.1")], ["three\n", "one\ntwo\n"]);
}

#[test]
fn a_log_whose_folder_is_deleted_is_made_again_within_a_second() {
    let home = Home::new();
    let mut log = RotatingFile::new(home.path("logs/x.log"), 100, 1);
    log.append(b"one\n", home.now).unwrap();
    fs::remove_dir_all(home.path("logs")).unwrap();

    log.append(b"two\n", home.now + SECOND / 2).unwrap();
    assert_eq!(home.text("logs/x.log"), "entity not found");
    log.append(b"three\n", home.now + SECOND).unwrap();
    assert_eq!(home.text("logs/x.log"), "three\n");
}

#[test]
fn a_log_moved_away_by_somebody_is_begun_anew() {
    let home = Home::new();
    let mut log = home.log(8, 3);
    log.append(b"one\ntwo\n", home.now).unwrap();
    fs::rename(home.path("x.log"), home.path("theirs")).unwrap();

    // Even before the next look: what is rotated must be what we have written.
    log.append(b"three\n", home.now).unwrap();
    assert_eq!([home.text("x.log"), home.text("theirs")], ["three\n", "one\ntwo\n"]);
    assert_eq!(home.text("x.log.1"), "entity not found");
}

#[test]
fn a_log_cut_by_somebody_goes_on_without_a_hole() {
    let home = Home::new();
    let mut log = home.log(8, 1);
    log.append(b"one\n", home.now).unwrap();
    fs::File::options().write(true).open(home.path("x.log")).unwrap().set_len(0).unwrap();

    log.append(b"two\n", home.now + SECOND).unwrap();
    log.append(b"six\n", home.now + SECOND).unwrap();
    assert_eq!(home.text("x.log"), "two\nsix\n");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_with_words_and_does_not_last() {
    let home = Home::new();
    symlink("/dev/full", home.path("x.log")).unwrap();
    let mut log = home.log(100, 1);
    let failed = log.append(b"one\n", home.now).unwrap_err();
    assert_eq!(failed.written, 0);
    let words = failed.to_string().replace(home.folder.path().to_str().unwrap(), "HOME");
    assert_eq!(words, "could not write HOME/x.log: No space left on device");

    fs::remove_file(home.path("x.log")).unwrap();
    log.append(b"two\n", home.now).unwrap();
    assert_eq!(home.text("x.log"), "two\n");
}

#[test]
fn a_device_is_never_moved_away() {
    let home = Home::new();
    symlink("/dev/null", home.path("x.log")).unwrap();
    let mut log = home.log(1, 3);
    for line in 0..10 {
        log.append(b"one\n", home.now + SECOND * line).unwrap();
    }
    assert_eq!(fs::read_dir(home.folder.path()).unwrap().count(), 1);
}

#[test]
fn a_link_to_a_file_is_not_written_through() {
    let home = Home::new();
    fs::write(home.path("target"), "precious").unwrap();
    symlink(home.path("target"), home.path("x.log")).unwrap();
    let failed = home.log(1, 3).append(b"one\n", home.now).unwrap_err();
    assert!(failed.to_string().contains("is a link to a file"), "{failed}");
    assert_eq!(home.text("target"), "precious");
}

#[test]
fn a_folder_in_the_place_of_the_log_is_an_error() {
    let home = Home::new();
    fs::create_dir(home.path("x.log")).unwrap();
    let failed = home.log(1, 3).append(b"one\n", home.now).unwrap_err();
    assert_eq!(failed.step, "open");
}

#[cfg(target_os = "linux")]
#[test]
fn a_fifo_that_nobody_reads_makes_nobody_wait() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    let home = Home::new();
    mknodat(CWD, home.path("x.log"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let failed = home.log(1, 3).append(b"one\n", home.now).unwrap_err();
    assert_eq!(failed.step, "open");
}

#[test]
fn half_a_line_is_no_whole_line() {
    assert_eq!(whole_lines(b""), 0);
    assert_eq!(whole_lines(b"one"), 0);
    assert_eq!(whole_lines(b"one\ntw"), 4);
    assert_eq!(whole_lines(b"one\ntwo\n"), 8);
}

#[test]
fn half_a_line_is_cut_off_the_end() {
    let home = Home::new();
    let mut log = home.log(100, 1);
    log.append(b"one\ntwo\nthr", home.now).unwrap();
    let whole = log.open.as_mut().unwrap().cut_back(b"two\nthr", 7);
    assert_eq!(whole, 4);
    log.append(b"four\n", home.now).unwrap();
    assert_eq!(home.text("x.log"), "one\ntwo\nfour\n");
}

#[test]
fn half_a_line_that_cannot_be_cut_off_is_ended() {
    let home = Home::new();
    let mut log = home.log(100, 1);
    log.append(b"one\ntw", home.now).unwrap();
    log.open.as_mut().unwrap().is_torn = true;
    log.append(b"three\n", home.now).unwrap();
    assert_eq!(home.text("x.log"), "one\ntw\nthree\n");
}
