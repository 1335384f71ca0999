//! A container's log, also after its daemon was killed at any instant.

use super::*;

fn ledger(folder: &tempfile::TempDir) -> Ledger {
    Ledger::begin(folder.path().join("one.lines"), [0; 2])
}

#[tokio::test]
async fn both_streams_are_in_the_file_and_in_the_ring_to_the_last_word() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("one.log");
    let book = Arc::new(LogBook::default());
    let (log, _troubled) = LogSink::open(&file, book.clone(), ledger(&folder));
    log.put(false, Bytes::from_static(b"one\ntw"), None);
    log.put(true, Bytes::from_static(b"oops\n"), None);
    log.put(false, Bytes::from_static(b"o"), None);
    log.finish().await;
    let written = std::fs::read_to_string(&file).unwrap();
    assert_eq!(written, "[out] one\n[err] oops\n[out] two\n");
    let (lines, _) = book.tail(10);
    let shown: Vec<_> = lines.iter().map(|line| (line.is_stderr, line.bytes.clone())).collect();
    assert_eq!(
        shown,
        [(false, b"one".to_vec()), (true, b"oops".to_vec()), (false, b"two".to_vec())]
    );
}

#[tokio::test]
async fn a_disk_that_is_only_slow_costs_no_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("one.log");
    let (log, _troubled) = LogSink::open(&file, Arc::new(LogBook::default()), ledger(&folder));
    for _ in 0..20 * WAITING {
        log.write(true, Bytes::from_static(b"line\n"), 0).await;
    }
    log.finish().await;
    assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 20 * WAITING);
}

#[tokio::test]
async fn a_disk_that_cannot_be_written_is_told_and_holds_up_nobody() {
    // Nor can its ledger.
    let ledger = Ledger::begin("/proc/nowhere/one.lines".into(), [0; 2]);
    let file = Path::new("/proc/nowhere/one.log");
    let (log, mut troubled) = LogSink::open(file, Arc::new(LogBook::default()), ledger);
    for _ in 0..10 * WAITING {
        log.write(true, Bytes::from_static(b"line\n"), 0).await;
    }
    log.finish().await;
    assert!(troubled.wait_for(Option::is_some).await.unwrap().is_some());
}

/// A container that says this on its stdout and on its stderr, and the folder of its logs.
struct Told {
    folder: tempfile::TempDir,
    said: [Vec<u8>; 2],
    /// A file of the log is full then.
    max_bytes: u64,
}

impl Told {
    fn new(max_bytes: u64) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), said: Default::default(), max_bytes }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The log, taken up by a daemon.
    fn daemon(&self) -> Log {
        let file = self.path("one.log");
        let order = LogOrder { max_bytes: self.max_bytes, ..order(&file) };
        let Past { ledger, book, .. } =
            take_up_by(&order, self.path("one.lines"), Place::default(), false);
        let order = LogOrder { next_seq: book.next_seq(), ..order };
        Log::open(&order, Arc::new(book), ledger, Arc::default())
    }

    /// It says more, which is logged at once; `at` this time, in milliseconds since 1970.
    fn says(&mut self, log: &mut Log, at: u64, more: &[(usize, &[u8])]) {
        let mut pieces = Vec::new();
        for (stream, bytes) in more {
            self.said[*stream].extend_from_slice(bytes);
            pieces.push(piece(*stream, bytes, self.said[*stream].len(), at));
        }
        log.take(pieces, &Lost::default());
    }

    /// The next daemon: it logs what is not logged yet, from what the engine has kept.
    fn next_daemon(&self) -> Arc<LogBook> {
        let mut log = self.daemon();
        let pieces = [0, 1].map(|stream| {
            let said = &self.said[stream];
            let from = usize::try_from(log.logged[stream]).unwrap();
            piece(stream, &said[from..], said.len(), 99)
        });
        log.take(pieces.into(), &Lost::default());
        log.end();
        log.book
    }

    /// The lines of a stream in the files, in their order.
    fn in_files(&self, tag: &str) -> Vec<String> {
        let names = ["one.log.3", "one.log.2", "one.log.1", "one.log"];
        let texts = names.map(|it| std::fs::read_to_string(self.path(it)).unwrap_or_default());
        texts.concat().lines().filter_map(|it| it.strip_prefix(tag)).map(str::to_owned).collect()
    }

    /// Every line is in the files and in the ring, once, and in its place.
    #[track_caller]
    fn is_all_there(&self, book: &Arc<LogBook>, when: &str) {
        let (shown, _) = book.tail(1000);
        let numbers: Vec<_> = shown.iter().map(|line| line.seq).collect();
        let expected: Vec<_> = (1..=numbers.len() as u64).map(Some).collect();
        assert_eq!(numbers, expected, "{when}");
        for (stream, tag) in ["[out] ", "[err] "].into_iter().enumerate() {
            let said = String::from_utf8(self.said[stream].clone()).unwrap();
            let said: Vec<&str> = said.lines().collect();
            assert_eq!(self.in_files(tag), said, "{when}: {tag}");
            let shown = shown.iter().filter(|it| it.is_stderr == (stream == 1));
            let shown: Vec<_> = shown.map(|it| std::str::from_utf8(&it.bytes).unwrap()).collect();
            assert_eq!(shown, said, "{when}: {tag}");
        }
    }

    fn cut(&self, name: &str, bytes: u64) {
        let file = std::fs::File::options().write(true).open(self.path(name)).unwrap();
        file.set_len(bytes).unwrap();
    }

    fn size(&self, name: &str) -> u64 {
        std::fs::metadata(self.path(name)).map_or(0, |it| it.len())
    }
}

/// So many pieces of stderr had no room, and this byte comes after them.
fn lost(pieces: u64, ends: u64) -> Lost {
    Lost { pieces: [0, pieces], ends: [0, ends] }
}

fn piece(stream: usize, bytes: &[u8], ends: usize, at: u64) -> Piece {
    Piece::Said {
        is_stderr: stream == 1,
        bytes: Bytes::copy_from_slice(bytes),
        ends: Some(ends as u64),
        at: SystemTime::UNIX_EPOCH + Duration::from_millis(at),
    }
}

/// Something was said and logged before.
fn begun(max_bytes: u64) -> (Told, Log) {
    let mut told = Told::new(max_bytes);
    let mut log = told.daemon();
    told.says(
        &mut log,
        1,
        &[
            (1, b"one\ntwo\nthr"),
            (0, b"hello, which is longer than all that is said at last together\n"),
        ],
    );
    told.says(&mut log, 2, &[(1, b"ee\nfo"), (0, b"wor")]);
    (told, log)
}

/// The last that is said before the daemon is killed.
const LAST: &[(usize, &[u8])] =
    &[(1, b"ur\nfive\nsix\nsev"), (0, b"ld\nagain\nand "), (1, b"en\nei")];

#[test]
fn no_line_is_lost_or_doubled_whenever_the_daemon_is_killed() {
    let (mut told, mut log) = begun(FILE_BYTES);
    let before = ["one.lines", "one.log"].map(|it| told.size(it));
    told.says(&mut log, 3, LAST);
    let after = ["one.lines", "one.log"].map(|it| told.size(it));
    assert!(before[0] < after[0] && before[1] < after[1]);
    // While it was entered nothing was written yet; while it was written all was entered.
    let entering = (before[0]..after[0]).map(|cut| (cut, before[1]));
    let writing = (before[1]..=after[1]).map(|cut| (after[0], cut));
    for (lines, bytes) in entering.chain(writing) {
        let (mut told, mut log) = begun(FILE_BYTES);
        told.says(&mut log, 3, LAST);
        drop(log);
        told.cut("one.lines", lines);
        told.cut("one.log", bytes);
        let book = told.next_daemon();
        told.is_all_there(&book, &format!("{lines} bytes entered, {bytes} written"));
    }
}

#[test]
fn nor_if_a_new_file_begins_with_these_lines_or_among_them() {
    let begins = begun(FILE_BYTES).0.size("one.log");
    // Full before them, and full after the first, the third, and the last of them.
    for max_bytes in [0, 6, 30, 68].map(|it| begins + it) {
        let (mut told, mut log) = begun(max_bytes);
        let before = told.size("one.log");
        told.says(&mut log, 3, LAST);
        let is_moved = told.path("one.log.1").exists();
        assert_eq!(is_moved, max_bytes < begins + 68);
        assert!(!told.path("one.log.2").exists());
        let full = told.size(if is_moved { "one.log.1" } else { "one.log" });
        drop(log);
        let next = if is_moved { told.size("one.log") } else { 0 };
        let crash = |how: &dyn Fn(&Told)| {
            let (mut told, mut log) = begun(max_bytes);
            told.says(&mut log, 3, LAST);
            drop(log);
            how(&told);
            let book = told.next_daemon();
            told.is_all_there(&book, &format!("full at {max_bytes}"));
        };
        for cut in before..=full {
            crash(&|told| {
                if is_moved {
                    std::fs::rename(told.path("one.log.1"), told.path("one.log")).unwrap();
                }
                told.cut("one.log", cut);
            });
        }
        if is_moved {
            crash(&|told| std::fs::remove_file(told.path("one.log")).unwrap());
            for cut in 0..=next {
                crash(&|told| told.cut("one.log", cut));
            }
        }
    }
}

#[test]
fn numbers_and_times_are_as_they_were_and_older_lines_come_from_the_file() {
    let mut told = Told::new(FILE_BYTES);
    std::fs::write(told.path("one.log"), "[out] of an earlier life\n").unwrap();
    let mut log = told.daemon();
    told.says(&mut log, 7, &[(1, b"one\ntwo\n")]);
    let before = log.book.tail(10).0;
    let next = told.daemon();
    let (shown, _) = next.book.tail(10);
    assert_eq!(shown[1..], before[before.len() - 2..]);
    let of = |line: &crate::logs::Line| (line.seq, line.unix_millis);
    assert_eq!(
        shown.iter().map(of).collect::<Vec<_>>(),
        [(None, None), (Some(1), Some(7)), (Some(2), Some(7))]
    );
    assert_eq!(shown[0].bytes, b"of an earlier life");
    assert_eq!(next.next_seq, 3);
}

#[test]
fn numbers_go_on_also_if_nothing_was_said_since_the_last_start() {
    let told = Told::new(FILE_BYTES);
    let ledger = Ledger::begin(told.path("one.lines"), [0; 2]);
    let order = LogOrder { next_seq: 40, ..order(&told.path("one.log")) };
    drop(Log::open(&order, Arc::default(), ledger, Arc::default()));
    assert_eq!(told.daemon().next_seq, 40);
}

#[test]
fn a_line_that_is_longer_than_a_record_stays_one_line() {
    let mut told = Told::new(FILE_BYTES);
    let mut log = told.daemon();
    told.says(&mut log, 1, &[(1, &vec![b'x'; 70_000])]);
    drop(log);
    told.said[1].extend_from_slice(b"y\nnext\n");
    let book = told.next_daemon();
    let (shown, _) = book.tail(10);
    let shape: Vec<_> = shown.iter().map(|it| (it.continued, it.bytes.len())).collect();
    assert_eq!(shape, [(false, 65_536), (true, 70_001 - 65_536), (false, 4)]);
    assert_eq!(told.in_files("[err+] ").len(), 1);
}

#[test]
fn half_a_line_is_left_to_the_next_daemon_and_written_at_the_end() {
    for is_over in [false, true] {
        let mut told = Told::new(FILE_BYTES);
        let mut log = told.daemon();
        told.says(&mut log, 1, &[(1, b"one\nha")]);
        let (done, _) = oneshot::channel();
        log.take(vec![Piece::Finish { is_over, done }], &Lost::default());
        drop(log);
        assert_eq!(told.in_files("[err] "), if is_over { vec!["one", "ha"] } else { vec!["one"] });
        told.said[1].extend_from_slice(b"lf\n");
        told.next_daemon();
        let expected = if is_over { vec!["one", "ha", "lf"] } else { vec!["one", "half"] };
        assert_eq!(told.in_files("[err] "), expected);
    }
}

#[test]
fn where_the_ledger_cannot_be_written_all_is_logged_and_numbered_anew() {
    let mut told = Told::new(FILE_BYTES);
    std::fs::create_dir(told.path("one.lines")).unwrap();
    let mut log = told.daemon();
    told.says(&mut log, 1, &[(1, b"one\nha")]);
    let (done, _) = oneshot::channel();
    log.take(vec![Piece::Finish { is_over: false, done }], &Lost::default());
    assert_eq!(told.in_files("[err] "), ["one", "ha"], "nobody could go on with it");
    drop(log);
    let next = told.daemon();
    assert_eq!(next.next_seq, 1);
    let shown: Vec<_> = next.book.tail(10).0.into_iter().map(|it| (it.seq, it.bytes)).collect();
    assert_eq!(shown, [(None, b"one".to_vec()), (None, b"ha".to_vec())]);
}

#[test]
fn a_ledger_that_knows_less_than_was_noted_is_not_believed() {
    // What was noted, whether its stdout is for somebody else, and the number of the next line.
    let table = [
        ([4, 4], false, 3),
        ([4, 5], false, 1),
        ([5, 4], false, 1),
        ([5, 4], true, 3),
        ([5, 5], true, 1),
    ];
    for (noted, is_stdio, next_seq) in table {
        let mut told = Told::new(FILE_BYTES);
        let mut log = told.daemon();
        told.says(&mut log, 1, &[(0, b"two\n"), (1, b"one\n")]);
        drop(log);
        let noted = Place { out: noted[0], err: noted[1], ..Place::default() };
        let file = order(&told.path("one.log"));
        let past = take_up_by(&file, told.path("one.lines"), noted, is_stdio);
        assert_eq!(past.book.next_seq(), next_seq, "{noted:?} {is_stdio}");
        if next_seq == 1 {
            assert_eq!(past.ledger.logged(), [noted.out, noted.err], "{noted:?} {is_stdio}");
        }
    }
}

#[test]
fn nothing_is_left_of_a_ledger_that_is_not_believed() {
    let mut told = Told::new(FILE_BYTES);
    let mut log = told.daemon();
    told.says(&mut log, 1, &[(1, b"one\ntwo\nthree\n")]);
    drop(log);
    std::fs::rename(told.path("one.lines"), ledger::older(&told.path("one.lines"))).unwrap();
    let file = order(&told.path("one.log"));
    let noted = Place { err: 100, ..Place::default() };
    let Past { ledger, book, .. } = take_up_by(&file, told.path("one.lines"), noted, true);
    let mut log = Log::open(&file, Arc::new(book), ledger, Arc::default());
    log.take(vec![piece(1, b"next\n", 105, 2)], &Lost::default());
    drop(log);
    let past = take_up_by(&file, told.path("one.lines"), noted, true);
    let shown: Vec<_> =
        Arc::new(past.book).tail(10).0.into_iter().map(|it| (it.seq, it.bytes)).collect();
    let of_file = ["one", "two", "three"].map(|it| (None, it.as_bytes().to_vec()));
    assert_eq!(shown, [&of_file[..], &[(Some(1), b"next".to_vec())]].concat());
}

#[test]
fn it_is_known_how_the_output_ends_that_has_been_logged() {
    let known = |told: &Told| {
        let file = order(&told.path("one.log"));
        take_up_by(&file, told.path("one.lines"), Place::default(), false).known
    };
    let (mut told, mut log) = begun(FILE_BYTES);
    assert_eq!(known(&told), told.said.clone().map(Some));
    told.says(&mut log, 3, &[(1, &vec![b'x'; 70_000]), (1, b"y\nnext\n"), (0, b"ld\n")]);
    let [out, err] = known(&told).map(Option::unwrap);
    assert!(err.len() == 4096 && told.said[1].ends_with(&err));
    assert_eq!(out, told.said[0]);
    // Before a line of ours something is missing.
    log.take(Vec::new(), &lost(1, 0));
    told.says(&mut log, 4, &[(1, b"last\n")]);
    assert_eq!(known(&told)[1], None, "too little to be found by");
    told.says(&mut log, 5, &[(1, &[b'z'; 100])]);
    assert_eq!(known(&told)[1], Some([b"last\n".as_slice(), &[b'z'; 100]].concat()));
}

#[test]
fn what_the_disk_had_no_time_for_is_counted_and_not_logged_later() {
    let mut told = Told::new(FILE_BYTES);
    let mut log = told.daemon();
    told.says(&mut log, 1, &[(1, b"one\n")]);
    told.said[1].extend_from_slice(b"lost\n");
    log.take(Vec::new(), &lost(1, 0));
    told.says(&mut log, 2, &[(1, b"two\n")]);
    drop(log);
    told.next_daemon();
    let told_of = "xy: 1 pieces of its output were not kept: the disk is too slow";
    assert_eq!(told.in_files("[err] "), ["one", told_of, "two"]);
}

#[tokio::test]
async fn what_there_was_no_room_for_does_not_hold_up_what_is_noted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("one.log");
    let (log, _troubled) = LogSink::open(&file, Arc::default(), ledger(&folder));
    // Nobody writes while this task does not wait.
    let more = WAITING as u64 + 3;
    for ends in 1..=more {
        log.put(true, Bytes::from_static(b"\n"), Some(ends));
    }
    log.leave().await;
    assert_eq!(log.logged(true), more);
    let noted = Place { err: more, ..Place::default() };
    let past = take_up(folder.path().join("one.lines"), &file, noted, true);
    assert_eq!(past.ledger.logged(), [0, more], "and the next daemon believes it");
    assert_eq!(past.book.next_seq(), WAITING as u64 + 2);
}

#[test]
fn where_something_is_missing_a_line_of_ours_is_and_nothing_goes_on_over_it() {
    let known = |told: &Told| {
        let file = order(&told.path("one.log"));
        take_up_by(&file, told.path("one.lines"), Place::default(), false).known
    };
    let of_the_disk = "xy: 2 pieces of its output were not kept: the disk is too slow";
    let of_its_engine = "xy: 7 bytes of its output are missing: its engine lacks them";
    let of_any = "xy: some of its output may be missing: its engine lacks it";
    for (stream, tag) in ["[out] ", "[err] "].into_iter().enumerate() {
        let told = Told::new(FILE_BYTES);
        let mut log = told.daemon();
        let is_stderr = stream == 1;
        let at = SystemTime::UNIX_EPOCH;
        let mut lost = Lost::default();
        (lost.pieces[stream], lost.ends[stream]) = (2, 200);
        log.take(vec![piece(stream, &[b'x'; 100], 100, 1)], &lost);
        let missing = |ends| Piece::Missing { is_stderr, ends, at };
        log.take(vec![piece(stream, b"y\nz", 203, 2), missing(Some(210))], &Lost::default());
        assert_eq!(log.logged[stream], 210);
        let more = [missing(None), piece(stream, &[b'w'; 80], 290, 3)];
        log.take(more.into(), &Lost::default());
        assert_eq!(known(&told)[stream], Some(vec![b'w'; 80]), "{tag}");
        log.end();
        let (x, w) = ("x".repeat(100), "w".repeat(80));
        let expected = [&x, of_the_disk, "y", "z", of_its_engine, of_any, &w];
        assert_eq!(told.in_files(tag), expected);
    }
}
