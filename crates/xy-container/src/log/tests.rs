//! The log of a container, also after its daemon was killed at any instant.

use super::*;

fn ledger(folder: &tempfile::TempDir) -> Ledger {
    Ledger::begin(folder.path().join("one.lines"), [0; 2])
}

#[tokio::test]
async fn both_streams_reach_file_and_ring() {
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
async fn slow_disk_loses_no_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("one.log");
    let (log, _troubled) = LogSink::open(&file, Arc::new(LogBook::default()), ledger(&folder));
    for _ in 0..20 * QUEUE_CAPACITY {
        log.write(true, Bytes::from_static(b"line\n"), 0).await;
    }
    log.finish().await;
    assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 20 * QUEUE_CAPACITY);
}

#[tokio::test]
async fn unwritable_disk_is_reported_without_blocking() {
    // The ledger cannot be written either.
    let ledger = Ledger::begin("/proc/nowhere/one.lines".into(), [0; 2]);
    let file = Path::new("/proc/nowhere/one.log");
    let (log, mut troubled) = LogSink::open(file, Arc::new(LogBook::default()), ledger);
    for _ in 0..10 * QUEUE_CAPACITY {
        log.write(true, Bytes::from_static(b"line\n"), 0).await;
    }
    log.finish().await;
    assert!(troubled.wait_for(Option::is_some).await.unwrap().is_some());
}

/// The output of a container on stdout and stderr, and the folder of its logs.
struct TestContainer {
    folder: tempfile::TempDir,
    said: [Vec<u8>; 2],
    /// Size of a full log file.
    max_bytes: u64,
}

impl TestContainer {
    fn new(max_bytes: u64) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), said: Default::default(), max_bytes }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the log as a daemon recovers it.
    fn daemon(&self) -> Log {
        let file = self.path("one.log");
        let order = LogOrder { max_bytes: self.max_bytes, ..order(&file) };
        let RecoveredLog { ledger, book, .. } =
            recover_with(&order, self.path("one.lines"), OutputPosition::default(), false);
        let order = LogOrder { next_seq: book.next_seq(), ..order };
        Log::open(&order, Arc::new(book), ledger, Arc::default())
    }

    /// Writes more output, which is logged at once; `at` is in milliseconds since 1970.
    fn write(&mut self, log: &mut Log, at: u64, more: &[(usize, &[u8])]) {
        let mut pieces = Vec::new();
        for (stream, bytes) in more {
            self.said[*stream].extend_from_slice(bytes);
            pieces.push(piece(*stream, bytes, self.said[*stream].len(), at));
        }
        log.take(pieces, &DroppedOutput::default());
    }

    /// Starts the next daemon, which logs the rest of the output from the engine's log.
    fn next_daemon(&self) -> Arc<LogBook> {
        let mut log = self.daemon();
        let pieces = [0, 1].map(|stream| {
            let said = &self.said[stream];
            let from = usize::try_from(log.logged[stream]).unwrap();
            piece(stream, &said[from..], said.len(), 99)
        });
        log.take(pieces.into(), &DroppedOutput::default());
        log.end();
        log.book
    }

    /// Returns the lines of a stream in the files, in their order.
    fn in_files(&self, tag: &str) -> Vec<String> {
        let names = ["one.log.3", "one.log.2", "one.log.1", "one.log"];
        let texts = names.map(|it| std::fs::read_to_string(self.path(it)).unwrap_or_default());
        texts.concat().lines().filter_map(|it| it.strip_prefix(tag)).map(str::to_owned).collect()
    }

    /// Asserts that every line is in the files and in the ring, once and in order.
    #[track_caller]
    fn assert_complete(&self, book: &Arc<LogBook>, when: &str) {
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

/// Returns the count of dropped pieces of stderr, with the offset after them.
fn lost(pieces: u64, end_offset: u64) -> DroppedOutput {
    DroppedOutput { pieces: [0, pieces], end_offset: [0, end_offset] }
}

fn piece(stream: usize, bytes: &[u8], end_offset: usize, at: u64) -> Piece {
    Piece::Output {
        is_stderr: stream == 1,
        bytes: Bytes::copy_from_slice(bytes),
        end_offset: Some(end_offset as u64),
        at: SystemTime::UNIX_EPOCH + Duration::from_millis(at),
    }
}

/// Returns a container whose first output has been logged.
fn started(max_bytes: u64) -> (TestContainer, Log) {
    let mut container = TestContainer::new(max_bytes);
    let mut log = container.daemon();
    container.write(
        &mut log,
        1,
        &[
            (1, b"one\ntwo\nthr"),
            (0, b"hello, which is longer than all that is said at last together\n"),
        ],
    );
    container.write(&mut log, 2, &[(1, b"ee\nfo"), (0, b"wor")]);
    (container, log)
}

/// The last output before the daemon is killed.
const LAST: &[(usize, &[u8])] =
    &[(1, b"ur\nfive\nsix\nsev"), (0, b"ld\nagain\nand "), (1, b"en\nei")];

#[test]
fn no_line_is_lost_or_doubled_at_any_kill_point() {
    let (mut container, mut log) = started(FILE_BYTES);
    let before = ["one.lines", "one.log"].map(|it| container.size(it));
    container.write(&mut log, 3, LAST);
    let after = ["one.lines", "one.log"].map(|it| container.size(it));
    assert!(before[0] < after[0] && before[1] < after[1]);
    // Nothing is written to the log while the entry is written, and the entry is whole afterwards.
    let entering = (before[0]..after[0]).map(|cut| (cut, before[1]));
    let writing = (before[1]..=after[1]).map(|cut| (after[0], cut));
    for (lines, bytes) in entering.chain(writing) {
        let (mut container, mut log) = started(FILE_BYTES);
        container.write(&mut log, 3, LAST);
        drop(log);
        container.cut("one.lines", lines);
        container.cut("one.log", bytes);
        let book = container.next_daemon();
        container.assert_complete(&book, &format!("{lines} bytes entered, {bytes} written"));
    }
}

#[test]
fn no_line_is_lost_or_doubled_across_rotation() {
    let begins = started(FILE_BYTES).0.size("one.log");
    // Full before them, and full after the first, the third, and the last of them.
    for max_bytes in [0, 6, 30, 68].map(|it| begins + it) {
        let (mut container, mut log) = started(max_bytes);
        let before = container.size("one.log");
        container.write(&mut log, 3, LAST);
        let is_moved = container.path("one.log.1").exists();
        assert_eq!(is_moved, max_bytes < begins + 68);
        assert!(!container.path("one.log.2").exists());
        let full = container.size(if is_moved { "one.log.1" } else { "one.log" });
        drop(log);
        let next = if is_moved { container.size("one.log") } else { 0 };
        let crash = |how: &dyn Fn(&TestContainer)| {
            let (mut container, mut log) = started(max_bytes);
            container.write(&mut log, 3, LAST);
            drop(log);
            how(&container);
            let book = container.next_daemon();
            container.assert_complete(&book, &format!("full at {max_bytes}"));
        };
        for cut in before..=full {
            crash(&|container| {
                if is_moved {
                    std::fs::rename(container.path("one.log.1"), container.path("one.log"))
                        .unwrap();
                }
                container.cut("one.log", cut);
            });
        }
        if is_moved {
            crash(&|container| std::fs::remove_file(container.path("one.log")).unwrap());
            for cut in 0..=next {
                crash(&|container| container.cut("one.log", cut));
            }
        }
    }
}

#[test]
fn numbers_and_times_survive_recovery() {
    let mut container = TestContainer::new(FILE_BYTES);
    std::fs::write(container.path("one.log"), "[out] of an earlier life\n").unwrap();
    let mut log = container.daemon();
    container.write(&mut log, 7, &[(1, b"one\ntwo\n")]);
    let before = log.book.tail(10).0;
    let next = container.daemon();
    let (shown, _) = next.book.tail(10);
    assert_eq!(shown[1..], before[before.len() - 2..]);
    let of = |line: &xy_supervisor::logs::Line| (line.seq, line.unix_millis);
    assert_eq!(
        shown.iter().map(of).collect::<Vec<_>>(),
        [(None, None), (Some(1), Some(7)), (Some(2), Some(7))]
    );
    assert_eq!(shown[0].bytes, b"of an earlier life");
    assert_eq!(next.next_seq, 3);
}

#[test]
fn numbers_continue_after_silent_instance() {
    let container = TestContainer::new(FILE_BYTES);
    let ledger = Ledger::begin(container.path("one.lines"), [0; 2]);
    let order = LogOrder { next_seq: 40, ..order(&container.path("one.log")) };
    drop(Log::open(&order, Arc::default(), ledger, Arc::default()));
    assert_eq!(container.daemon().next_seq, 40);
}

#[test]
fn line_longer_than_record_stays_one_line() {
    let mut container = TestContainer::new(FILE_BYTES);
    let mut log = container.daemon();
    container.write(&mut log, 1, &[(1, &vec![b'x'; 70_000])]);
    drop(log);
    container.said[1].extend_from_slice(b"y\nnext\n");
    let book = container.next_daemon();
    let (shown, _) = book.tail(10);
    let shape: Vec<_> = shown.iter().map(|it| (it.continued, it.bytes.len())).collect();
    assert_eq!(shape, [(false, 65_536), (true, 70_001 - 65_536), (false, 4)]);
    assert_eq!(container.in_files("[err+] ").len(), 1);
}

#[test]
fn partial_line_is_handed_over_or_written_at_the_end() {
    for is_over in [false, true] {
        let mut container = TestContainer::new(FILE_BYTES);
        let mut log = container.daemon();
        container.write(&mut log, 1, &[(1, b"one\nha")]);
        let (done, _) = oneshot::channel();
        log.take(vec![Piece::Finish { is_over, done }], &DroppedOutput::default());
        drop(log);
        assert_eq!(
            container.in_files("[err] "),
            if is_over { vec!["one", "ha"] } else { vec!["one"] }
        );
        container.said[1].extend_from_slice(b"lf\n");
        container.next_daemon();
        let expected = if is_over { vec!["one", "ha", "lf"] } else { vec!["one", "half"] };
        assert_eq!(container.in_files("[err] "), expected);
    }
}

#[test]
fn unwritable_ledger_restarts_numbers_but_loses_no_line() {
    let mut container = TestContainer::new(FILE_BYTES);
    std::fs::create_dir(container.path("one.lines")).unwrap();
    let mut log = container.daemon();
    container.write(&mut log, 1, &[(1, b"one\nha")]);
    let (done, _) = oneshot::channel();
    log.take(vec![Piece::Finish { is_over: false, done }], &DroppedOutput::default());
    assert_eq!(
        container.in_files("[err] "),
        ["one", "ha"],
        "no later daemon can continue the partial line"
    );
    drop(log);
    let next = container.daemon();
    assert_eq!(next.next_seq, 1);
    let shown: Vec<_> = next.book.tail(10).0.into_iter().map(|it| (it.seq, it.bytes)).collect();
    assert_eq!(shown, [(None, b"one".to_vec()), (None, b"ha".to_vec())]);
}

#[test]
fn ledger_behind_noted_position_is_rejected() {
    // The noted position, whether stdout is protocol, and the number of the next line.
    let table = [
        ([4, 4], false, 3),
        ([4, 5], false, 1),
        ([5, 4], false, 1),
        ([5, 4], true, 3),
        ([5, 5], true, 1),
    ];
    for (noted, is_stdio, next_seq) in table {
        let mut container = TestContainer::new(FILE_BYTES);
        let mut log = container.daemon();
        container.write(&mut log, 1, &[(0, b"two\n"), (1, b"one\n")]);
        drop(log);
        let noted = OutputPosition { out: noted[0], err: noted[1], ..OutputPosition::default() };
        let file = order(&container.path("one.log"));
        let past = recover_with(&file, container.path("one.lines"), noted, is_stdio);
        assert_eq!(past.book.next_seq(), next_seq, "{noted:?} {is_stdio}");
        if next_seq == 1 {
            assert_eq!(past.ledger.logged(), [noted.out, noted.err], "{noted:?} {is_stdio}");
        }
    }
}

#[test]
fn rejected_ledger_is_removed() {
    let mut container = TestContainer::new(FILE_BYTES);
    let mut log = container.daemon();
    container.write(&mut log, 1, &[(1, b"one\ntwo\nthree\n")]);
    drop(log);
    std::fs::rename(container.path("one.lines"), ledger::older(&container.path("one.lines")))
        .unwrap();
    let file = order(&container.path("one.log"));
    let noted = OutputPosition { err: 100, ..OutputPosition::default() };
    let RecoveredLog { ledger, book, .. } =
        recover_with(&file, container.path("one.lines"), noted, true);
    let mut log = Log::open(&file, Arc::new(book), ledger, Arc::default());
    log.take(vec![piece(1, b"next\n", 105, 2)], &DroppedOutput::default());
    drop(log);
    let past = recover_with(&file, container.path("one.lines"), noted, true);
    let shown: Vec<_> =
        Arc::new(past.book).tail(10).0.into_iter().map(|it| (it.seq, it.bytes)).collect();
    let of_file = ["one", "two", "three"].map(|it| (None, it.as_bytes().to_vec()));
    assert_eq!(shown, [&of_file[..], &[(Some(1), b"next".to_vec())]].concat());
}

#[test]
fn tails_of_logged_output_are_known() {
    let known = |container: &TestContainer| {
        let file = order(&container.path("one.log"));
        recover_with(&file, container.path("one.lines"), OutputPosition::default(), false).known
    };
    let (mut container, mut log) = started(FILE_BYTES);
    assert_eq!(known(&container), container.said.clone().map(Some));
    container.write(&mut log, 3, &[(1, &vec![b'x'; 70_000]), (1, b"y\nnext\n"), (0, b"ld\n")]);
    let [out, err] = known(&container).map(Option::unwrap);
    assert!(err.len() == 4096 && container.said[1].ends_with(&err));
    assert_eq!(out, container.said[0]);
    // Output is missing before a line of xy's own.
    log.take(Vec::new(), &lost(1, 0));
    container.write(&mut log, 4, &[(1, b"last\n")]);
    assert_eq!(known(&container)[1], None, "too little to be found by");
    container.write(&mut log, 5, &[(1, &[b'z'; 100])]);
    assert_eq!(known(&container)[1], Some([b"last\n".as_slice(), &[b'z'; 100]].concat()));
}

#[test]
fn dropped_output_is_counted_and_not_logged_later() {
    let mut container = TestContainer::new(FILE_BYTES);
    let mut log = container.daemon();
    container.write(&mut log, 1, &[(1, b"one\n")]);
    container.said[1].extend_from_slice(b"lost\n");
    log.take(Vec::new(), &lost(1, 0));
    container.write(&mut log, 2, &[(1, b"two\n")]);
    drop(log);
    container.next_daemon();
    let notice = "xy: 1 chunks of its output were dropped: the disk is too slow";
    assert_eq!(container.in_files("[err] "), ["one", notice, "two"]);
}

#[tokio::test]
async fn dropped_output_does_not_block_noted_position() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("one.log");
    let (log, _troubled) = LogSink::open(&file, Arc::default(), ledger(&folder));
    // Nothing is written while this task does not await.
    let more = QUEUE_CAPACITY as u64 + 3;
    for end_offset in 1..=more {
        log.put(true, Bytes::from_static(b"\n"), Some(end_offset));
    }
    log.leave().await;
    assert_eq!(log.logged(true), more);
    let noted = OutputPosition { err: more, ..OutputPosition::default() };
    let past = recover(folder.path().join("one.lines"), &file, noted, true);
    assert_eq!(past.ledger.logged(), [0, more], "and the next daemon believes it");
    assert_eq!(past.book.next_seq(), QUEUE_CAPACITY as u64 + 2);
}

#[test]
fn gap_is_marked_by_own_line() {
    let known = |container: &TestContainer| {
        let file = order(&container.path("one.log"));
        recover_with(&file, container.path("one.lines"), OutputPosition::default(), false).known
    };
    let of_the_disk = "xy: 2 chunks of its output were dropped: the disk is too slow";
    let of_its_engine = "xy: 7 bytes of its output are missing in the engine's log";
    let of_any = "xy: some of its output may be missing in the engine's log";
    for (stream, tag) in ["[out] ", "[err] "].into_iter().enumerate() {
        let container = TestContainer::new(FILE_BYTES);
        let mut log = container.daemon();
        let is_stderr = stream == 1;
        let at = SystemTime::UNIX_EPOCH;
        let mut lost = DroppedOutput::default();
        (lost.pieces[stream], lost.end_offset[stream]) = (2, 200);
        log.take(vec![piece(stream, &[b'x'; 100], 100, 1)], &lost);
        let missing = |end_offset| Piece::Missing { is_stderr, end_offset, at };
        log.take(
            vec![piece(stream, b"y\nz", 203, 2), missing(Some(210))],
            &DroppedOutput::default(),
        );
        assert_eq!(log.logged[stream], 210);
        let more = [missing(None), piece(stream, &[b'w'; 80], 290, 3)];
        log.take(more.into(), &DroppedOutput::default());
        assert_eq!(known(&container)[stream], Some(vec![b'w'; 80]), "{tag}");
        log.end();
        let (x, w) = ("x".repeat(100), "w".repeat(80));
        let expected = [&x, of_the_disk, "y", "z", of_its_engine, of_any, &w];
        assert_eq!(container.in_files(tag), expected);
    }
}
