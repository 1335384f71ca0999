use std::fs;

use xy_protocol::server::{ServerName, ServerState};

use super::*;
use crate::instance::{ChangeKind, Holder, InstanceKey, Transition};
use crate::lifecycle::{LastAttempt, Reason};

/// Longer than anything here takes.
const AGES: Duration = Duration::from_secs(600);

struct Stage {
    folder: tempfile::TempDir,
    changes: broadcast::Sender<StateChange>,
}

impl Stage {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), changes: broadcast::Sender::new(16) }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("events.jsonl")
    }

    fn begin(&self) -> (Journal, Keeper) {
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

/// Which attempts, or how many skipped.
fn told<'e>(entries: impl IntoIterator<Item = &'e Arc<Entry>>) -> Vec<String> {
    let told = |entry: &Arc<Entry>| match &entry.what {
        What::Changed(change) => change.reason.clone(),
        What::LastAttempt(change) => format!("last: {}", change.reason),
        What::Asked(change) => format!("asked: {}", change.reason),
        What::Skipped { count } => format!("skipped {count}"),
    };
    entries.into_iter().map(told).collect()
}

fn attempt(attempt: u32) -> Reason {
    Reason::Retry { attempt, of: 0 }
}

fn history(journal: &Journal, count: usize, server: Option<&str>) -> Vec<String> {
    told(&journal.before(&journal.shared.follow(), count, server).0)
}

async fn heard(following: &mut Following) -> Arc<Entry> {
    timeout(AGES, following.live.recv()).await.expect("it is told").unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_was_told_is_there_for_the_next_daemon() {
    let stage = Stage::new();
    let (_, keeper) = stage.begin();
    stage.tell("a", attempt(1));
    stage.tell("b", attempt(2));
    keeper.end().await;
    let (journal, keeper) = stage.begin();
    stage.tell("a", attempt(3));
    journal.follow().await; // What was told before is noted by then.
    assert_eq!(history(&journal, 10, None), ["attempt 1", "attempt 2", "attempt 3"]);
    assert_eq!(history(&journal, 2, None), ["attempt 2", "attempt 3"]);
    assert_eq!(history(&journal, 10, Some("a")), ["attempt 1", "attempt 3"]);
    assert_eq!(history(&journal, 0, None), [""; 0]);
    assert!(journal.knows(&ServerName::new("b").unwrap()));
    assert!(!journal.knows(&ServerName::new("c").unwrap()));
    keeper.end().await;
    let lines = stage.lines();
    assert_eq!(lines.len(), 3);
    assert!(lines[2].contains(r#""seq":1"#), "each daemon counts for itself: {}", lines[2]);
}

#[tokio::test(start_paused = true)]
async fn history_and_stream_have_neither_gap_nor_double() {
    let stage = Stage::new();
    let (journal, keeper) = stage.begin();
    for number in 1..=10 {
        stage.tell("a", attempt(number));
    }
    let mut following = journal.follow().await;
    for number in 11..=15 {
        stage.tell("a", attempt(number));
    }
    let before = journal.before(&following, 100, None).0;
    assert_eq!(before.len(), 10, "what was told before is not to come");
    let mut seqs: Vec<u64> = before.iter().map(|entry| entry.seq).collect();
    while seqs.len() < 15 {
        seqs.push(heard(&mut following).await.seq);
    }
    assert_eq!(seqs, (1..=15).collect::<Vec<_>>());
    let later = journal.follow().await;
    assert_eq!(journal.before(&later, 100, None).0.len(), 15);
    keeper.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_journal_itself_misses_is_told_in_it() {
    let stage = Stage::new();
    let (journal, keeper) = stage.begin();
    for number in 1..=20 {
        stage.tell("a", attempt(number)); // Nobody can listen meanwhile; the channel holds 16.
    }
    keeper.end().await;
    let all = history(&journal, 100, None);
    assert_eq!((all[0].as_str(), all.len()), ("skipped 4", 17));
    assert!(stage.lines()[0].contains(r#""kind":"skipped","count":4"#), "{}", stage.lines()[0]);
    assert_eq!(history(&journal, 100, Some("b")), ["skipped 4"], "it may have been about it");
}

#[tokio::test(start_paused = true)]
async fn the_last_attempt_is_an_entry_of_its_own() {
    let stage = Stage::new();
    let (_, keeper) = stage.begin();
    let kind = ChangeKind::LastAttempt(LastAttempt::InARow { attempt: 5, of: 5 });
    let reason = Reason::Retry { attempt: 5, of: 5 };
    stage.changes.send(StateChange { kind, ..change("a", reason) }).unwrap();
    keeper.end().await;
    assert!(stage.lines()[0].contains(r#""kind":"last_attempt""#));
}

#[tokio::test(start_paused = true)]
async fn who_asked_stands_before_what_came_of_it() {
    let stage = Stage::new();
    let (journal, keeper) = stage.begin();
    stage.tell("a", attempt(1));
    let server = ServerName::new("a").unwrap();
    let asked = Change::asked(server, ServerState::Running, "a person asked".to_owned());
    journal.note_asked(asked).await;
    let following = journal.follow().await;
    assert_eq!(told(following.recent()), ["attempt 1", "asked: a person asked"]);
    stage.tell("a", attempt(2));
    keeper.end().await;
    let all = ["attempt 1", "asked: a person asked", "attempt 2"];
    assert_eq!(history(&journal, 10, Some("a")), all);
    assert!(stage.lines()[1].contains(r#""kind":"asked","server":"a","from":"running""#));
}

#[tokio::test(start_paused = true)]
async fn a_torn_line_spoils_nothing_around_it() {
    let stage = Stage::new();
    let (_, keeper) = stage.begin();
    stage.tell("a", attempt(1));
    keeper.end().await;
    let mut text = fs::read(stage.file()).unwrap();
    text.extend(br#"{"time":"2023-11-14T22:13"#);
    fs::write(stage.file(), text).unwrap();
    let (journal, keeper) = stage.begin();
    assert_eq!(history(&journal, 10, None), ["attempt 1"]);
    stage.tell("a", attempt(2));
    keeper.end().await;
    assert_eq!(history(&journal, 10, None), ["attempt 1", "attempt 2"]);
    assert_eq!(stage.lines().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn no_file_grows_beyond_its_bound_and_the_newest_are_kept() {
    let stage = Stage::new();
    let (journal, keeper) = stage.begin();
    let long = "x".repeat(3000);
    let mut following = journal.follow().await;
    for number in 0..1600 {
        stage.tell("a", Reason::Unfit(format!("{number} {long}")));
        heard(&mut following).await;
        if number % 50 == 49 {
            // A slow disk costs entries, which is not what this is about.
            let last = || file::read(&stage.file()).0.last().map(|it| it.seq);
            until_so(|| last() == Some(number + 1)).await;
        }
    }
    keeper.end().await;
    for file in [stage.file(), file::older(&stage.file())] {
        let length = fs::metadata(file).unwrap().len();
        assert!((1..=MAX_FILE).contains(&length), "{length}");
    }
    let names = fs::read_dir(stage.folder.path()).unwrap().count();
    assert_eq!(names, 2);
    let (next, keeper) = stage.begin();
    let all = history(&next, 10_000, None);
    let numbers: Vec<u32> =
        all.iter().map(|it| it.split(' ').next().unwrap().parse().unwrap()).collect();
    let first = numbers[0];
    assert!(first > 0 && numbers.len() > 512, "{first} {}", numbers.len());
    assert_eq!(numbers, (first..1600).collect::<Vec<_>>());
    keeper.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_takes_nothing_is_told_and_tried_again() {
    let stage = Stage::new();
    fs::create_dir(stage.file()).unwrap();
    let (journal, keeper) = stage.begin();
    let mut following = journal.follow().await;
    stage.tell("a", attempt(1));
    heard(&mut following).await;
    until_so(|| journal.problem().is_some()).await;
    assert!(journal.problem().unwrap().contains("events.jsonl cannot be written"));
    assert_eq!(history(&journal, 10, None), ["attempt 1"], "memory has it");

    fs::remove_dir(stage.file()).unwrap();
    until_so(|| journal.problem().is_none()).await;
    keeper.end().await;
    assert_eq!(stage.lines().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_while_the_disk_is_full_is_counted() {
    let stage = Stage::new();
    fs::create_dir(stage.file()).unwrap();
    let (journal, keeper) = stage.begin();
    let mut following = journal.follow().await;
    let long = "x".repeat(1900);
    for number in 0..1000 {
        stage.tell("a", Reason::Unfit(format!("{number} {long}")));
        heard(&mut following).await;
    }
    fs::remove_dir(stage.file()).unwrap();
    until_so(|| journal.problem().is_none()).await;
    stage.tell("a", attempt(1));
    keeper.end().await;
    let (next, keeper) = stage.begin();
    let all = history(&next, 10_000, None);
    let kept = all.iter().filter(|it| it.ends_with('x')).count();
    let skipped: usize =
        all.iter().filter_map(|it| it.strip_prefix("skipped ")?.parse::<usize>().ok()).sum();
    assert!(kept > 100 && skipped > 100, "{kept} {skipped}");
    assert_eq!(kept + skipped, 1000);
    assert_eq!(all.last().unwrap(), "attempt 1");
    keeper.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_pipe_in_its_place_is_not_waited_for() {
    let stage = Stage::new();
    let made = std::process::Command::new("mkfifo").arg(stage.file()).status().unwrap();
    assert!(made.success());
    let (journal, keeper) = stage.begin();
    stage.tell("a", attempt(1));
    let ended = timeout(AGES, keeper.end()).await;
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
    assert!(waited.await.is_ok(), "it never came about");
}

#[tokio::test(start_paused = true)]
async fn followers_hear_the_last_entry_and_then_the_end() {
    let stage = Stage::new();
    let (journal, keeper) = stage.begin();
    let mut following = journal.follow().await;
    stage.tell("a", attempt(1));
    let hears = async {
        assert_eq!(told([&heard(&mut following).await]), ["attempt 1"]);
        assert_eq!(following.live.recv().await, Err(RecvError::Closed));
        drop(following);
    };
    tokio::join!(keeper.end(), hears);
    let late = journal.follow().await;
    assert_eq!(journal.before(&late, 10, None).0.len(), 1);
}
