//! What the lives of servers say they did, beside what is in their logs.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use xy_testkit::{Home, read_log_lines};

/// One life, as it noted itself.
#[derive(Debug, Clone)]
pub(crate) struct Page {
    /// How its lines begin.
    pub(crate) life: String,
    /// How many lines it has written to stdout and to stderr; it may be one more.
    pub(crate) written: [u64; 2],
    /// With which code it ended by itself, if it did.
    pub(crate) code: Option<i32>,
}

/// What a check of a log has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) lives: u64,
    pub(crate) lines: u64,
    /// Older files.
    pub(crate) rotated: u64,
}

/// Where servers keep their diaries.
pub(crate) fn folder(home: &Home) -> PathBuf {
    home.root().join("home/diary")
}

/// All lives of a server, oldest first.
pub(crate) fn pages(home: &Home, server: &str) -> Vec<Page> {
    let entries = fs::read_dir(folder(home).join(server)).into_iter().flatten().flatten();
    let mut pages: Vec<Page> = entries
        .map(|entry| {
            let text = fs::read_to_string(entry.path()).unwrap();
            let mut numbers = text.split_whitespace().map(|it| it.parse::<u64>().unwrap());
            let mut next = || numbers.next().unwrap_or(0); // A life may be too short to note.
            let written = [next(), next()];
            let code = Some(next()).filter(|&code| code > 0).map(|code| code.try_into().unwrap());
            Page { life: entry.file_name().into_string().unwrap(), written, code }
        })
        .collect();
    pages.sort_by(|a, b| a.life.cmp(&b.life));
    pages
}

/// Checks that no life found another one of its server.
#[track_caller]
pub(crate) fn nobody_was_there_twice(home: &Home) {
    let entries = fs::read_dir(folder(home)).into_iter().flatten().flatten();
    let twice: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "twice"))
        .collect();
    assert!(twice.is_empty(), "there at the same time: {twice:?}");
}

/// Checks the log of a server whose lives have all ended against what they wrote: every
/// line once, in order, whole.
#[track_caller]
pub(crate) fn check_log(home: &Home, server: &str, width: usize) -> Tally {
    let oldest = PathBuf::from(format!("{}.5", home.log_file(server).display()));
    assert!(!oldest.exists(), "`{server}` wrote so much that older files may be gone");
    let pages = pages(home, server);
    let rotated = (1..5)
        .filter(|n| PathBuf::from(format!("{}.{n}", home.log_file(server).display())).exists());
    let mut tally = Tally {
        lives: u64::try_from(pages.len()).unwrap(),
        rotated: u64::try_from(rotated.count()).unwrap(),
        ..Tally::default()
    };
    let mut last: BTreeMap<(&str, usize), u64> = BTreeMap::new();
    let by_life: BTreeMap<&str, &Page> =
        pages.iter().map(|page| (page.life.as_str(), page)).collect();
    for line in read_log_lines(home, server) {
        let Some((stream, life, number)) = understood(&line, width) else {
            panic!("`{server}` did not write this: {line:?}");
        };
        let page = by_life.get(life).unwrap_or_else(|| panic!("whose is {line:?} of `{server}`?"));
        let before = last.insert((page.life.as_str(), stream), number).unwrap_or(0);
        let what = format!("`{server}`, stream {stream} of {life}: {number} after {before}");
        assert!(number > before, "doubled or out of order: {what}");
        assert_eq!(number, before + 1, "lost: {what}");
        tally.lines += 1;
    }
    for page in &pages {
        for (stream, written) in page.written.into_iter().enumerate() {
            let logged = last.get(&(page.life.as_str(), stream)).copied().unwrap_or(0);
            assert!(logged <= written + 1, "`{server}` is said to have written more: {page:?}");
            assert!(logged >= written, "`{server}` lost its end at {logged}: {page:?}");
        }
    }
    tally
}

/// The stream, the life and the number of a line, if it is whole.
fn understood(logged: &str, width: usize) -> Option<(usize, &str, u64)> {
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
