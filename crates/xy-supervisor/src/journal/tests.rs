use std::fs;

use xy_protocol::server::{ServerName, ServerState};

use super::*;
use crate::instance::{ChangeKind, Holder, InstanceKey, Transition};
use crate::lifecycle::{LastAttempt, Reason};

/// Longer than any test here takes.
const AGES: Duration = Duration::from_secs(600);

struct Fixture {
    folder: tempfile::TempDir,
    changes: broadcast::Sender<StateChange>,
}

impl Fixture {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), changes: broadcast::Sender::new(16) }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("events.jsonl")
    }

    fn begin(&self) -> (Journal, JournalTask) {
        Journal::begin(&self.file(), self.changes.subscribe())
    }

    fn tell(&self, server: &str, reason: Reason) {
        self.changes.send(change(server, reason)).unwrap();
    }

    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(self.file()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

fn change(server: &str, reason: Reason) -> StateChange {
    let server = ServerName::new(server).unwrap();
    StateChange {
        kind: ChangeKind::State,
        key: InstanceKey { server, holder: Holder::Shared },
        transition: Transition {
            from: ServerState::Starting,
            to: ServerState::Running,
            reason,
            at: time_of_day(),
            last_attempt: None,
        },
        pid: Some(7),
        restart_count: 0,
    }
}

/// Returns the reasons, or the numbers of skipped entries.
fn texts<'e>(entries: impl IntoIterator<Item = &'e Arc<Entry>>) -> Vec<String> {
    let text = |entry: &Arc<Entry>| match &entry.kind {
        EntryKind::Changed(change) => change.reason.clone(),
        EntryKind::LastAttempt(change) => format!("last: {}", change.reason),
        EntryKind::Requested(change) => format!("asked: {}", change.reason),
        EntryKind::Skipped { count } => format!("skipped {count}"),
    };
    entries.into_iter().map(text).collect()
}

fn attempt(attempt: u32) -> Reason {
    Reason::Retry { attempt, of: 0 }
}

fn history(journal: &Journal, count: usize, server: Option<&str>) -> Vec<String> {
    texts(&journal.before(&journal.shared.follow(), count, server).0)
}

async fn next_entry(following: &mut Following) -> Arc<Entry> {
    timeout(AGES, following.live.recv()).await.expect("it is published").unwrap()
}

#[tokio::test(start_paused = true)]
async fn entries_survive_for_the_next_daemon() {
    let fixture = Fixture::new();
    let (_, task) = fixture.begin();
    fixture.tell("a", attempt(1));
    fixture.tell("b", attempt(2));
    task.end().await;
    let (journal, task) = fixture.begin();
    fixture.tell("a", attempt(3));
    journal.follow().await; // Earlier changes are recorded by then.
    assert_eq!(history(&journal, 10, None), ["attempt 1", "attempt 2", "attempt 3"]);
    assert_eq!(history(&journal, 2, None), ["attempt 2", "attempt 3"]);
    assert_eq!(history(&journal, 10, Some("a")), ["attempt 1", "attempt 3"]);
    assert_eq!(history(&journal, 0, None), [""; 0]);
    assert!(journal.knows(&ServerName::new("b").unwrap()));
    assert!(!journal.knows(&ServerName::new("c").unwrap()));
    task.end().await;
    let lines = fixture.lines();
    assert_eq!(lines.len(), 3);
    assert!(lines[2].contains(r#""seq":1"#), "each daemon run has its own numbers: {}", lines[2]);
}

#[tokio::test(start_paused = true)]
async fn history_and_stream_have_no_gap_and_no_duplicate() {
    let fixture = Fixture::new();
    let (journal, task) = fixture.begin();
    for number in 1..=10 {
        fixture.tell("a", attempt(number));
    }
    let mut following = journal.follow().await;
    for number in 11..=15 {
        fixture.tell("a", attempt(number));
    }
    let before = journal.before(&following, 100, None).0;
    assert_eq!(before.len(), 10, "earlier entries are not in the stream");
    let mut seqs: Vec<u64> = before.iter().map(|entry| entry.seq).collect();
    while seqs.len() < 15 {
        seqs.push(next_entry(&mut following).await.seq);
    }
    assert_eq!(seqs, (1..=15).collect::<Vec<_>>());
    let later = journal.follow().await;
    assert_eq!(journal.before(&later, 100, None).0.len(), 15);
    task.end().await;
}

#[tokio::test(start_paused = true)]
async fn changes_missed_by_the_journal_are_counted() {
    let fixture = Fixture::new();
    let (journal, task) = fixture.begin();
    for number in 1..=20 {
        fixture.tell("a", attempt(number)); // The task cannot run meanwhile; the channel holds 16.
    }
    task.end().await;
    let all = history(&journal, 100, None);
    assert_eq!((all[0].as_str(), all.len()), ("skipped 4", 17));
    assert!(fixture.lines()[0].contains(r#""kind":"skipped","count":4"#), "{}", fixture.lines()[0]);
    assert_eq!(history(&journal, 100, Some("b")), ["skipped 4"], "skipped entries may concern it");
}

#[tokio::test(start_paused = true)]
async fn last_attempt_is_a_separate_entry() {
    let fixture = Fixture::new();
    let (_, task) = fixture.begin();
    let kind = ChangeKind::LastAttempt(LastAttempt::InARow { attempt: 5, of: 5 });
    let reason = Reason::Retry { attempt: 5, of: 5 };
    fixture.changes.send(StateChange { kind, ..change("a", reason) }).unwrap();
    task.end().await;
    assert!(fixture.lines()[0].contains(r#""kind":"last_attempt""#));
}

#[tokio::test(start_paused = true)]
async fn request_precedes_its_consequence() {
    let fixture = Fixture::new();
    let (journal, task) = fixture.begin();
    fixture.tell("a", attempt(1));
    let server = ServerName::new("a").unwrap();
    let asked = Change::requested(server, ServerState::Running, "a person asked".to_owned());
    journal.record_request(asked).await;
    let following = journal.follow().await;
    assert_eq!(texts(following.recent()), ["attempt 1", "asked: a person asked"]);
    fixture.tell("a", attempt(2));
    task.end().await;
    let all = ["attempt 1", "asked: a person asked", "attempt 2"];
    assert_eq!(history(&journal, 10, Some("a")), all);
    assert!(fixture.lines()[1].contains(r#""kind":"asked","server":"a","from":"running""#));
}

#[tokio::test(start_paused = true)]
async fn torn_line_damages_no_other_line() {
    let fixture = Fixture::new();
    let (_, task) = fixture.begin();
    fixture.tell("a", attempt(1));
    task.end().await;
    let mut text = fs::read(fixture.file()).unwrap();
    text.extend(br#"{"time":"2023-11-14T22:13"#);
    fs::write(fixture.file(), text).unwrap();
    let (journal, task) = fixture.begin();
    assert_eq!(history(&journal, 10, None), ["attempt 1"]);
    fixture.tell("a", attempt(2));
    task.end().await;
    assert_eq!(history(&journal, 10, None), ["attempt 1", "attempt 2"]);
    assert_eq!(fixture.lines().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn files_are_bounded_and_newest_entries_are_kept() {
    let fixture = Fixture::new();
    let (journal, task) = fixture.begin();
    let long = "x".repeat(3000);
    let mut following = journal.follow().await;
    for number in 0..1600 {
        fixture.tell("a", Reason::ProtocolError(format!("{number} {long}")));
        next_entry(&mut following).await;
        if number % 50 == 49 {
            // Waits for the disk: a slow disk would drop entries, which this test does not cover.
            let last = || file::read(&fixture.file()).0.last().map(|it| it.seq);
            until_so(|| last() == Some(number + 1)).await;
        }
    }
    task.end().await;
    for file in [fixture.file(), file::older(&fixture.file())] {
        let length = fs::metadata(file).unwrap().len();
        assert!((1..=MAX_FILE).contains(&length), "{length}");
    }
    let names = fs::read_dir(fixture.folder.path()).unwrap().count();
    assert_eq!(names, 2);
    let (next, task) = fixture.begin();
    let all = history(&next, 10_000, None);
    let numbers: Vec<u32> =
        all.iter().map(|it| it.split(' ').next().unwrap().parse().unwrap()).collect();
    let first = numbers[0];
    assert!(first > 0 && numbers.len() > 512, "{first} {}", numbers.len());
    assert_eq!(numbers, (first..1600).collect::<Vec<_>>());
    task.end().await;
}

#[tokio::test(start_paused = true)]
async fn failing_disk_is_reported_and_retried() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.file()).unwrap();
    let (journal, task) = fixture.begin();
    let mut following = journal.follow().await;
    fixture.tell("a", attempt(1));
    next_entry(&mut following).await;
    until_so(|| journal.problem().is_some()).await;
    assert!(journal.problem().unwrap().contains("could not write "));
    assert_eq!(history(&journal, 10, None), ["attempt 1"], "the entry is in memory");

    fs::remove_dir(fixture.file()).unwrap();
    until_so(|| journal.problem().is_none()).await;
    task.end().await;
    assert_eq!(fixture.lines().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn entries_beyond_limit_of_full_disk_are_counted() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.file()).unwrap();
    let (journal, task) = fixture.begin();
    let mut following = journal.follow().await;
    let long = "x".repeat(1900);
    for number in 0..1000 {
        fixture.tell("a", Reason::ProtocolError(format!("{number} {long}")));
        next_entry(&mut following).await;
    }
    fs::remove_dir(fixture.file()).unwrap();
    until_so(|| journal.problem().is_none()).await;
    fixture.tell("a", attempt(1));
    task.end().await;
    let (next, task) = fixture.begin();
    let all = history(&next, 10_000, None);
    let kept = all.iter().filter(|it| it.ends_with('x')).count();
    let skipped: usize =
        all.iter().filter_map(|it| it.strip_prefix("skipped ")?.parse::<usize>().ok()).sum();
    assert!(kept > 100 && skipped > 100, "{kept} {skipped}");
    assert_eq!(kept + skipped, 1000);
    assert_eq!(all.last().unwrap(), "attempt 1");
    task.end().await;
}

#[tokio::test(start_paused = true)]
async fn pipe_in_place_of_file_is_not_awaited() {
    let fixture = Fixture::new();
    let made = std::process::Command::new("mkfifo").arg(fixture.file()).status().unwrap();
    assert!(made.success());
    let (journal, task) = fixture.begin();
    fixture.tell("a", attempt(1));
    let ended = timeout(AGES, task.end()).await;
    assert!(ended.is_ok());
    assert!(journal.problem().is_some());
    assert_eq!(history(&journal, 10, None), ["attempt 1"]);
}

async fn until_so(is_so: impl Fn() -> bool) {
    let waited = timeout(AGES, async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    assert!(waited.await.is_ok(), "the condition was never met");
}

#[tokio::test(start_paused = true)]
async fn followers_receive_last_entry_and_then_the_end() {
    let fixture = Fixture::new();
    let (journal, task) = fixture.begin();
    let mut following = journal.follow().await;
    fixture.tell("a", attempt(1));
    let hears = async {
        assert_eq!(texts([&next_entry(&mut following).await]), ["attempt 1"]);
        assert_eq!(following.live.recv().await, Err(RecvError::Closed));
        drop(following);
    };
    tokio::join!(task.end(), hears);
    let late = journal.follow().await;
    assert_eq!(journal.before(&late, 10, None).0.len(), 1);
}
