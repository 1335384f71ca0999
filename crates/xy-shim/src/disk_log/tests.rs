use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::clock;
use crate::wire::MAX_LINE;

const ERR: u8 = flags::STDERR;
const CONTINUED: u8 = flags::CONTINUED;
const UNTERMINATED: u8 = flags::UNTERMINATED;

/// A folder with one log in it.
struct Setup {
    folder: TempDir,
    now: Instant,
}

impl Setup {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), now: clock::now() }
    }

    fn log(&self, max_bytes: u64) -> DiskLog {
        let file = self.path("x.log").to_str().unwrap().to_owned();
        let order = LogOrder { file, max_bytes, generations: 1000, next_seq: 0 };
        DiskLog::open(&order, self.now)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns all generations, oldest first.
    fn files(&self) -> Vec<Vec<u8>> {
        let count = fs::read_dir(self.folder.path()).unwrap().count();
        let older = (1..count).rev().map(|number| self.path(&format!("x.log.{number}")));
        older.chain([self.path("x.log")]).map(|path| fs::read(path).unwrap()).collect()
    }

    fn text(&self) -> String {
        let text = String::from_utf8(self.files().concat()).unwrap();
        text.replace(self.folder.path().to_str().unwrap(), "HOME")
    }
}

#[test]
fn lines_name_their_stream() {
    let setup = Setup::new();
    let mut log = setup.log(1000);
    log.put(0, b"out", setup.now);
    log.put(ERR | UNTERMINATED, b"err", setup.now);
    log.put(ERR | CONTINUED, b"more", setup.now);
    log.put(UNTERMINATED, b"", setup.now);
    log.put(CONTINUED | UNTERMINATED, b"end", setup.now);
    assert_eq!(setup.text(), "");
    log.flush(setup.now);
    assert_eq!(setup.text(), "[out] out\n[err] err\n[err+] more\n[out] \n[out+] end\n");
}

#[test]
fn lines_stay_whole_and_in_order() {
    let setup = Setup::new();
    let mut log = setup.log(1000);
    let mut expected = String::new();
    for number in 0..5000 {
        log.put(0, format!("line {number}").as_bytes(), setup.now);
        writeln!(expected, "[out] line {number}").unwrap();
        if number % 37 == 0 {
            log.flush(setup.now);
        }
    }
    log.finish(setup.now);

    assert!(setup.text() == expected);
    let files = setup.files();
    let (last, full) = files.split_last().unwrap();
    let longest_line = "[out] line 4999\n".len();
    assert!(full.iter().all(|file| (1000..1000 + longest_line).contains(&file.len())));
    assert!(full.iter().all(|file| file.ends_with(b"\n")));
    assert!(!last.is_empty());
}

#[test]
fn split_line_stays_in_one_file() {
    let setup = Setup::new();
    let mut log = setup.log(10);
    log.put(UNTERMINATED, b"a long", setup.now);
    log.flush(setup.now);
    log.put(ERR, b"between", setup.now);
    log.flush(setup.now);
    log.put(CONTINUED, b"line", setup.now);
    log.put(0, b"next", setup.now);
    log.flush(setup.now);
    let files: Vec<_> =
        setup.files().into_iter().map(|file| String::from_utf8(file).unwrap()).collect();
    assert_eq!(files, ["[out] a long\n[err] between\n[out+] line\n", "[out] next\n"]);
}

#[test]
fn endless_line_does_not_fill_the_disk() {
    let setup = Setup::new();
    let mut log = setup.log(1000);
    let piece = vec![b'x'; MAX_LINE];
    log.put(UNTERMINATED, &piece, setup.now);
    for _ in 0..40 {
        log.put(CONTINUED | UNTERMINATED, &piece, setup.now);
        log.flush(setup.now);
    }
    let files = setup.files();
    assert_eq!(files.len(), 3);
    assert!(files.iter().all(|file| file.len() as u64 <= 1000 + SPLIT_LINE_SLACK));
}

#[test]
fn stream_ended_mid_line_allows_rotation() {
    let setup = Setup::new();
    let mut log = setup.log(10);
    log.put(UNTERMINATED, b"the last line", setup.now);
    log.end_stream(false);
    log.flush(setup.now);
    log.put(ERR, b"next", setup.now);
    log.flush(setup.now);
    assert_eq!(setup.files().len(), 2);
}

#[test]
fn unwritable_log_is_reported_at_once() {
    let setup = Setup::new();
    fs::write(setup.path("file"), "").unwrap();
    let file = setup.path("file/x.log").to_str().unwrap().to_owned();
    let order = LogOrder { file, max_bytes: 1000, generations: 1, next_seq: 0 };
    let log = DiskLog::open(&order, setup.now);
    assert!(log.problem().unwrap().ends_with("Not a directory"), "{:?}", log.problem());
}

/// Only Linux has a device that is always full.
#[cfg(target_os = "linux")]
mod full_disk {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    impl Setup {
        fn fill_the_disk(&self) {
            std::os::unix::fs::symlink("/dev/full", self.path("x.log")).unwrap();
        }

        fn clear_the_disk(&self) {
            fs::remove_file(self.path("x.log")).unwrap();
        }
    }

    #[test]
    fn full_disk_loses_lines_and_counts_them() {
        let setup = Setup::new();
        setup.fill_the_disk();
        let mut log = setup.log(1000);
        assert_eq!(log.problem(), None); // No write has been tried yet.
        log.put(0, b"lost", setup.now);
        log.put(0, b"lost", setup.now);
        log.flush(setup.now);
        let problem = log.problem().unwrap().to_owned();
        assert!(problem.ends_with("x.log: No space left on device"), "{problem}");

        setup.clear_the_disk();
        log.put(0, b"lost, for it is too early to try again", setup.now + SECOND / 2);
        log.flush(setup.now + SECOND / 2);
        assert!(log.problem().is_some());
        log.put(0, b"kept", setup.now + SECOND);
        log.flush(setup.now + SECOND);
        assert_eq!(log.problem(), None);
        assert_eq!(
            setup.text(),
            "[xy] 3 lines were not written: could not write HOME/x.log: No space left on device\n\
             [out] kept\n"
        );
    }

    #[test]
    fn recovered_disk_is_noticed_without_a_new_line() {
        let setup = Setup::new();
        setup.fill_the_disk();
        let mut log = setup.log(1000);
        log.put(0, b"lost", setup.now);
        log.flush(setup.now);
        assert_eq!(log.deadline(), Some(setup.now + SECOND));

        setup.clear_the_disk();
        log.flush(setup.now + SECOND);
        assert_eq!((log.problem(), log.deadline()), (None, None));
        assert!(setup.text().starts_with("[xy] 1 line was not written: "));
    }

    #[test]
    fn finish_retries_at_once() {
        let setup = Setup::new();
        setup.fill_the_disk();
        let mut log = setup.log(1000);
        log.put(0, b"lost", setup.now);
        log.flush(setup.now);
        setup.clear_the_disk();
        log.finish(setup.now);
        assert!(setup.text().starts_with("[xy] 1 line was not written: "));
    }

    #[test]
    fn full_disk_costs_no_memory() {
        let setup = Setup::new();
        setup.fill_the_disk();
        let mut log = setup.log(1000);
        for second in 0..100 {
            for _ in 0..100 {
                log.put(0, &[b'x'; 1000], setup.now + SECOND * second);
            }
            log.flush(setup.now + SECOND * second);
            assert!(log.buffer.is_empty());
        }
        assert_eq!(log.failure.unwrap().lost, 10_000);
    }
}
