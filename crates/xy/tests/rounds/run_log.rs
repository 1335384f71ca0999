//! The servers' own records of their lives, for comparison with their logs.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use xy_testkit::{Home, read_log_lines};

/// The record of one life.
#[derive(Debug, Clone)]
pub(crate) struct LifeRecord {
    /// The first word of its lines.
    pub(crate) life: String,
    /// The number of lines that it has written to stdout and to stderr; one more may be written.
    pub(crate) written: [u64; 2],
    /// Its exit code, if it exited by itself.
    pub(crate) code: Option<i32>,
}

/// The totals of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) lives: u64,
    pub(crate) lines: u64,
    /// The number of rotated files.
    pub(crate) rotated: u64,
}

/// Returns the folder of the records.
pub(crate) fn folder(home: &Home) -> PathBuf {
    home.root().join("home/run-log")
}

/// Returns all lives of a server, oldest first.
pub(crate) fn life_records(home: &Home, server: &str) -> Vec<LifeRecord> {
    let entries = fs::read_dir(folder(home).join(server)).into_iter().flatten().flatten();
    let mut life_records: Vec<LifeRecord> = entries
        .map(|entry| {
            let text = fs::read_to_string(entry.path()).unwrap();
            let mut numbers = text.split_whitespace().map(|it| it.parse::<u64>().unwrap());
            // A short life may have written no record.
            let mut next = || numbers.next().unwrap_or(0);
            let written = [next(), next()];
            let code = Some(next()).filter(|&code| code > 0).map(|code| code.try_into().unwrap());
            LifeRecord { life: entry.file_name().into_string().unwrap(), written, code }
        })
        .collect();
    life_records.sort_by(|a, b| a.life.cmp(&b.life));
    life_records
}

/// Checks that no life found another one of its server running.
#[track_caller]
pub(crate) fn assert_no_overlap(home: &Home) {
    let entries = fs::read_dir(folder(home)).into_iter().flatten().flatten();
    let twice: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "twice"))
        .collect();
    assert!(twice.is_empty(), "ran at the same time: {twice:?}");
}

/// Checks the log of a server, whose lives have all ended, against its records: every line once, in
/// order and complete.
#[track_caller]
pub(crate) fn check_log(home: &Home, server: &str, width: usize) -> Tally {
    let oldest = PathBuf::from(format!("{}.5", home.log_file(server).display()));
    assert!(!oldest.exists(), "`{server}` wrote so much that older files may be gone");
    let life_records = life_records(home, server);
    let rotated = (1..5)
        .filter(|n| PathBuf::from(format!("{}.{n}", home.log_file(server).display())).exists());
    let mut tally = Tally {
        lives: u64::try_from(life_records.len()).unwrap(),
        rotated: u64::try_from(rotated.count()).unwrap(),
        ..Tally::default()
    };
    let mut last: BTreeMap<(&str, usize), u64> = BTreeMap::new();
    let by_life: BTreeMap<&str, &LifeRecord> =
        life_records.iter().map(|record| (record.life.as_str(), record)).collect();
    for line in read_log_lines(home, server) {
        let Some((stream, life, number)) = parse_line(&line, width) else {
            panic!("`{server}` did not write this: {line:?}");
        };
        let record = by_life
            .get(life)
            .unwrap_or_else(|| panic!("{line:?} of `{server}` belongs to no life"));
        let before = last.insert((record.life.as_str(), stream), number).unwrap_or(0);
        let what = format!("`{server}`, stream {stream} of {life}: {number} after {before}");
        assert!(number > before, "doubled or out of order: {what}");
        assert_eq!(number, before + 1, "lost: {what}");
        tally.lines += 1;
    }
    for record in &life_records {
        for (stream, written) in record.written.into_iter().enumerate() {
            let logged = last.get(&(record.life.as_str(), stream)).copied().unwrap_or(0);
            assert!(
                logged <= written + 1,
                "`{server}` has more lines in its log than it wrote: {record:?}"
            );
            assert!(logged >= written, "`{server}` lost its end at {logged}: {record:?}");
        }
    }
    tally
}

/// Returns the stream, the life and the number of a complete line.
fn parse_line(logged: &str, width: usize) -> Option<(usize, &str, u64)> {
    let (stream, text) = match logged.split_at_checked(6)? {
        ("[out] ", text) => (0, text),
        ("[err] ", text) => (1, text),
        _ => return None,
    };
    let mut words = text.split(' ');
    let (life, number, rest) = (words.next()?, words.next()?, words.next()?);
    let is_filler = |bytes: &str| bytes.bytes().all(|byte| byte == b'x');
    let is_whole = text.len() == width && words.next().is_none();
    let is_ours = is_whole && rest.strip_suffix('.').is_some_and(is_filler);
    is_ours.then_some((stream, life, number.parse().ok()?))
}
