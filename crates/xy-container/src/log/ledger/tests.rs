use proptest::prelude::*;
use xy_shim::lines::Splitter;
use xy_shim::wire::{Record, put_record};

use super::*;

fn lines(first_seq: u64, texts: &[&str]) -> Vec<u8> {
    let mut batch = Vec::new();
    for (seq, text) in (first_seq..).zip(texts) {
        put_record(&mut batch, Record { seq, unix_millis: 7, flags: 0, line: text.as_bytes() });
    }
    batch
}

fn state(next_seq: u64, logged: [u64; 2], half: &str) -> State {
    let half = PartialLine { bytes: half.as_bytes().to_vec(), continued: half.len() > 3 };
    State { next_seq, logged, partial_lines: [half, PartialLine::default()] }
}

fn place(next_seq: u64) -> LogPosition {
    LogPosition { device: 1, inode: 2, bytes: 30, next_seq }
}

#[test]
fn entries_are_found_again_and_continued() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one.lines");
    let mut ledger = Ledger::begin(path.clone(), [0; 2]);
    ledger.enter(state(3, [10, 20], ""), Some(place(1)), &lines(1, &["one", "two"]));
    ledger.enter(state(3, [12, 20], "ha"), None, b"");
    for _ in 0..2 {
        let (found, entries) = Ledger::find(path.clone()).unwrap();
        assert_eq!(found.state(), &state(3, [12, 20], "ha"));
        assert_eq!(entries.len(), 2);
        let first = &entries[0];
        assert_eq!((first.next_seq, first.before), (3, Some(place(1))));
        assert_eq!(first.records, lines(1, &["one", "two"]));
        assert_eq!(entries[1].before, None);
    }
    let (mut found, _) = Ledger::find(path.clone()).unwrap();
    found.enter(state(3, [14, 20], "half"), None, b"");
    found.enter(state(4, [15, 20], ""), Some(place(3)), &lines(3, &["half"]));
    let (found, entries) = Ledger::find(path).unwrap();
    assert_eq!((found.state(), entries.len()), (&state(4, [15, 20], ""), 4));
}

/// The format as other versions of the daemon have written it. A change of the format, or of
/// records on the wire, must change `FORMAT` too, or the next daemon misreads the file.
#[test]
fn ledger_format_is_stable() {
    let parts: [&[u8]; 22] = [
        b"xy lines 1\n",
        &[84, 0, 0, 0],
        &[3, 0, 0, 0, 0, 0, 0, 0],
        &[10, 0, 0, 0, 0, 0, 0, 0],
        &[20, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[2, 0, 0, 0, 0, 0, 0, 0],
        &[30, 0, 0, 0, 0, 0, 0, 0],
        b"\x00\x02\0\0\0ha",
        b"\x00\x00\0\0\0",
        // Number, time and flags of a line, its length, and the line.
        &[2, 0, 0, 0, 0, 0, 0, 0],
        &[7, 0, 0, 0, 0, 0, 0, 0],
        b"\x00\x03\0\0\0one",
        // The next entry: only the growth of a partial line.
        &[60, 0, 0, 0],
        &[3, 0, 0, 0, 0, 0, 0, 0],
        &[12, 0, 0, 0, 0, 0, 0, 0],
        &[20, 0, 0, 0, 0, 0, 0, 0],
        &[0; 8],
        &[0; 8],
        &[0; 8],
        b"\x03\x02\0\0\0lf",
        b"\x01\x00\0\0\0",
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one.lines");
    let mut ledger = Ledger::begin(path.clone(), [0; 2]);
    ledger.enter(state(3, [10, 20], "ha"), Some(place(2)), &lines(2, &["one"]));
    ledger.enter(state(3, [12, 20], "half"), None, b"");
    assert_eq!(fs::read(&path).unwrap(), parts.concat());
    let (found, entries) = Ledger::find(path).unwrap();
    assert_eq!(found.state(), &state(3, [12, 20], "half"));
    assert_eq!((entries.len(), entries[0].before), (2, Some(place(2))));
    let line = records(&entries[0].records).next().unwrap();
    assert_eq!((line.seq, line.unix_millis, line.flags, line.line), (2, 7, 0, b"one".as_slice()));
    let all = [flags::STDERR, flags::CONTINUED, flags::UNTERMINATED];
    assert_eq!(all, [1, 2, 4], "they are written as well");
}

#[test]
fn truncated_entry_is_ignored_and_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one.lines");
    let mut ledger = Ledger::begin(path.clone(), [0; 2]);
    ledger.enter(state(2, [4, 0], "ab"), Some(place(1)), &lines(1, &["one"]));
    let first = fs::read(&path).unwrap();
    ledger.enter(state(3, [9, 0], "abcd"), Some(place(2)), &lines(2, &["two"]));
    let both = fs::read(&path).unwrap();
    for cut in 0..both.len() {
        fs::write(&path, &both[..cut]).unwrap();
        let found = Ledger::find(path.clone());
        if cut < first.len() {
            assert!(found.is_none(), "{cut}");
            continue;
        }
        let (mut found, entries) = found.unwrap();
        assert_eq!((found.state(), entries.len()), (&state(2, [4, 0], "ab"), 1), "{cut}");
        found.enter(state(3, [9, 0], "abcd"), Some(place(2)), &lines(2, &["two"]));
        assert_eq!(fs::read(&path).unwrap(), both, "{cut}");
    }
}

#[test]
fn ledger_stays_small_and_covers_ring() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one.lines");
    let mut ledger = Ledger::begin(path.clone(), [0; 2]);
    let text = "x".repeat(50_000);
    for seq in 1..=100 {
        // The partial line is older than both files.
        ledger.enter(state(seq + 1, [seq, 0], "half"), Some(place(seq)), &lines(seq, &[&text]));
    }
    let sizes = [&path, &older(&path)].map(|it| fs::metadata(it).unwrap().len());
    assert!(sizes.iter().all(|it| *it < FILE_BYTES + 60_000), "{sizes:?}");
    let (mut found, entries) = Ledger::find(path.clone()).unwrap();
    assert_eq!(found.state(), &state(101, [100, 0], "half"));
    let kept: usize = entries.iter().map(|it| it.records.len()).sum();
    assert!(kept > RING_BYTES, "{kept}");
    let first = entries.first().unwrap().next_seq;
    assert!(entries.iter().zip(first..).all(|(it, seq)| it.next_seq == seq), "without a gap");
    // A daemon that is killed before the next file has begun leaves only the older one.
    fs::rename(&path, older(&path)).unwrap();
    fs::write(&path, "").unwrap();
    found = Ledger::find(path.clone()).unwrap().0;
    assert_eq!(found.state(), &state(101, [100, 0], "half"));
    found.enter(state(102, [101, 0], "half"), Some(place(101)), &lines(101, &["next"]));
    let (found, entries) = Ledger::find(path).unwrap();
    assert_eq!(found.state().next_seq, 102);
    assert!(entries.len() > 2);
}

#[test]
fn unwritable_ledger_is_cleared_and_retried() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gone/one.lines");
    let mut ledger = Ledger::begin(path.clone(), [0; 2]);
    ledger.enter(state(2, [4, 0], ""), Some(place(1)), &lines(1, &["one"]));
    assert!(!ledger.is_kept() && Ledger::find(path.clone()).is_none());
    fs::create_dir(folder.path().join("gone")).unwrap();
    ledger.enter(state(3, [8, 0], "ab"), Some(place(2)), &lines(2, &["two"]));
    assert!(ledger.is_kept());
    let (found, entries) = Ledger::find(path).unwrap();
    assert_eq!((found.state(), entries.len()), (&state(3, [8, 0], "ab"), 1));
}

#[test]
fn overlong_partial_line_is_rejected() {
    let text = "x".repeat(MAX_LINE + 1);
    for (length, entries) in [(MAX_LINE, 2), (MAX_LINE + 1, 1)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("one.lines");
        let mut ledger = Ledger::begin(path.clone(), [0; 2]);
        ledger.enter(state(1, [1, 0], "x"), None, b"");
        ledger.enter(state(1, [length as u64, 0], &text[..length]), None, b"");
        let (found, found_entries) = Ledger::find(path).unwrap();
        assert_eq!(found_entries.len(), entries);
        let half = &found.state().partial_lines[0];
        let mut splitter = Splitter::resume(&half.bytes, half.continued);
        let mut records = 0;
        splitter.push(b"y\n", |_, line| records += usize::from(line.len() <= MAX_LINE));
        assert_eq!(records, entries);
    }
}

proptest! {
    #[test]
    fn parse_never_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        is_ours in any::<bool>(),
    ) {
        let file = if is_ours { [FORMAT, &bytes].concat() } else { bytes };
        let (mut state, mut entries) = (State::default(), Vec::new());
        let whole = parse(&file, &mut state, &mut entries);
        prop_assert!(whole <= file.len());
    }

    #[test]
    fn damaged_entry_yields_at_most_one_entry(
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut file = FORMAT.to_vec();
        put_entry(&mut file, None, &state(3, [8, 0], "ab"), None, &lines(1, &["a", "b"])).unwrap();
        let at = at.index(file.len());
        file[at] = byte;
        let (mut state, mut entries) = (State::default(), Vec::new());
        parse(&file, &mut state, &mut entries);
        prop_assert!(entries.len() <= 1);
    }
}
