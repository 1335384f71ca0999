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
struct Home {
    folder: TempDir,
    now: Instant,
}

impl Home {
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

    /// All generations, oldest first.
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
fn every_line_says_where_it_came_from() {
    let home = Home::new();
    let mut log = home.log(1000);
    log.put(0, b"out", home.now);
    log.put(ERR | UNTERMINATED, b"err", home.now);
    log.put(ERR | CONTINUED, b"more", home.now);
    log.put(UNTERMINATED, b"", home.now);
    log.put(CONTINUED | UNTERMINATED, b"end", home.now);
    assert_eq!(home.text(), "");
    log.flush(home.now);
    assert_eq!(home.text(), "[out] out\n[err] err\n[err+] more\n[out] \n[out+] end\n");
}

#[test]
fn every_line_is_in_one_file_in_its_order() {
    let home = Home::new();
    let mut log = home.log(1000);
    let mut expected = String::new();
    for number in 0..5000 {
        log.put(0, format!("line {number}").as_bytes(), home.now);
        writeln!(expected, "[out] line {number}").unwrap();
        if number % 37 == 0 {
            log.flush(home.now);
        }
    }
    log.finish(home.now);

    assert!(home.text() == expected);
    let files = home.files();
    let (last, full) = files.split_last().unwrap();
    let longest_line = "[out] line 4999\n".len();
    assert!(full.iter().all(|file| (1000..1000 + longest_line).contains(&file.len())));
    assert!(full.iter().all(|file| file.ends_with(b"\n")));
    assert!(!last.is_empty());
}

#[test]
fn a_split_line_stays_in_one_file() {
    let home = Home::new();
    let mut log = home.log(10);
    log.put(UNTERMINATED, b"a long", home.now);
    log.flush(home.now);
    log.put(ERR, b"between", home.now);
    log.flush(home.now);
    log.put(CONTINUED, b"line", home.now);
    log.put(0, b"next", home.now);
    log.flush(home.now);
    let files: Vec<_> =
        home.files().into_iter().map(|file| String::from_utf8(file).unwrap()).collect();
    assert_eq!(files, ["[out] a long\n[err] between\n[out+] line\n", "[out] next\n"]);
}

#[test]
fn a_line_without_end_does_not_fill_the_disk() {
    let home = Home::new();
    let mut log = home.log(1000);
    let piece = vec![b'x'; MAX_LINE];
    log.put(UNTERMINATED, &piece, home.now);
    for _ in 0..40 {
        log.put(CONTINUED | UNTERMINATED, &piece, home.now);
        log.flush(home.now);
    }
    let files = home.files();
    assert_eq!(files.len(), 3);
    assert!(files.iter().all(|file| file.len() as u64 <= 1000 + SLACK));
}

#[test]
fn a_stream_that_ended_mid_line_does_not_hold_up_a_new_file() {
    let home = Home::new();
    let mut log = home.log(10);
    log.put(UNTERMINATED, b"the last line", home.now);
    log.end_stream(false);
    log.flush(home.now);
    log.put(ERR, b"next", home.now);
    log.flush(home.now);
    assert_eq!(home.files().len(), 2);
}

#[test]
fn a_log_that_cannot_be_written_is_known_from_the_start() {
    let home = Home::new();
    fs::write(home.path("file"), "").unwrap();
    let file = home.path("file/x.log").to_str().unwrap().to_owned();
    let order = LogOrder { file, max_bytes: 1000, generations: 1, next_seq: 0 };
    let log = DiskLog::open(&order, home.now);
    assert!(log.problem().unwrap().ends_with("Not a directory"), "{:?}", log.problem());
}

/// Only Linux has a device that is always full.
#[cfg(target_os = "linux")]
mod full_disk {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    impl Home {
        fn fill_the_disk(&self) {
            std::os::unix::fs::symlink("/dev/full", self.path("x.log")).unwrap();
        }

        fn clear_the_disk(&self) {
            fs::remove_file(self.path("x.log")).unwrap();
        }
    }

    #[test]
    fn a_full_disk_costs_lines_and_the_file_says_how_many() {
        let home = Home::new();
        home.fill_the_disk();
        let mut log = home.log(1000);
        assert_eq!(log.problem(), None); // Nothing has been written yet.
        log.put(0, b"lost", home.now);
        log.put(0, b"lost", home.now);
        log.flush(home.now);
        let problem = log.problem().unwrap().to_owned();
        assert!(problem.ends_with("x.log: No space left on device"), "{problem}");

        home.clear_the_disk();
        log.put(0, b"lost, for it is too early to try again", home.now + SECOND / 2);
        log.flush(home.now + SECOND / 2);
        assert!(log.problem().is_some());
        log.put(0, b"kept", home.now + SECOND);
        log.flush(home.now + SECOND);
        assert_eq!(log.problem(), None);
        assert_eq!(
            home.text(),
            "[xy] 3 lines were not written: could not write HOME/x.log: No space left on device\n\
             [out] kept\n"
        );
    }

    #[test]
    fn a_disk_that_works_again_is_noticed_without_another_line() {
        let home = Home::new();
        home.fill_the_disk();
        let mut log = home.log(1000);
        log.put(0, b"lost", home.now);
        log.flush(home.now);
        assert_eq!(log.deadline(), Some(home.now + SECOND));

        home.clear_the_disk();
        log.flush(home.now + SECOND);
        assert_eq!((log.problem(), log.deadline()), (None, None));
        assert!(home.text().starts_with("[xy] 1 line was not written: "));
    }

    #[test]
    fn the_end_does_not_wait_to_try_again() {
        let home = Home::new();
        home.fill_the_disk();
        let mut log = home.log(1000);
        log.put(0, b"lost", home.now);
        log.flush(home.now);
        home.clear_the_disk();
        log.finish(home.now);
        assert!(home.text().starts_with("[xy] 1 line was not written: "));
    }

    #[test]
    fn a_disk_that_stays_full_costs_no_memory() {
        let home = Home::new();
        home.fill_the_disk();
        let mut log = home.log(1000);
        for second in 0..100 {
            for _ in 0..100 {
                log.put(0, &[b'x'; 1000], home.now + SECOND * second);
            }
            log.flush(home.now + SECOND * second);
            assert!(log.gathered.is_empty());
        }
        assert_eq!(log.trouble.unwrap().lost, 10_000);
    }
}
