//! The ring, its tail and its followers: nothing is lost without being told.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tokio::time::timeout;
use xy_shim::wire::put_record;

use super::*;

/// Two batches of this size do not fit in the ring together with a third.
const THIRD: usize = RING_BYTES / 3;

/// Writes into a book as a shim does, and knows what it wrote.
struct Shim {
    book: Arc<LogBook>,
    next_seq: u64,
}

impl Shim {
    fn new() -> Self {
        Self::with(LogBook::default())
    }

    fn with(book: LogBook) -> Self {
        Self { book: Arc::new(book), next_seq: 1 }
    }

    /// One batch of lines; those that start with `!` went to stderr.
    fn writes(&mut self, lines: &[&str]) {
        let lines: Vec<_> = lines.iter().map(|line| line.as_bytes().to_vec()).collect();
        self.writes_bytes(&lines);
    }

    fn writes_bytes(&mut self, lines: &[Vec<u8>]) {
        let mut batch = Vec::new();
        for line in lines {
            let flags = if line.starts_with(b"!") { flags::STDERR } else { 0 };
            let seq = self.next_seq;
            put_record(&mut batch, Record { seq, unix_millis: seq * 1000, flags, line });
            self.next_seq += 1;
        }
        self.book.push(self.next_seq, &batch);
    }

    /// One batch with one line, which came in two pieces.
    fn writes_in_two(&mut self, first: &str, second: &str) {
        let mut batch = Vec::new();
        for (line, flags) in [(first, 0), (second, flags::CONTINUED)] {
            let (seq, line) = (self.next_seq, line.as_bytes());
            put_record(&mut batch, Record { seq, unix_millis: 0, flags, line });
            self.next_seq += 1;
        }
        self.book.push(self.next_seq, &batch);
    }

    /// One batch with one line of this size.
    fn writes_a_lot(&mut self, size: usize) {
        self.writes_bytes(&[vec![b'x'; size]]);
    }

    /// So many lines were dropped before they were sent; nobody has been told yet.
    fn drops(&mut self, count: u64) {
        self.next_seq += count;
    }

    /// Tells how far the numbers are.
    fn tells(&self) {
        self.book.push(self.next_seq, &[]);
    }
}

fn texts(lines: &[Line]) -> Vec<String> {
    lines.iter().map(|line| String::from_utf8_lossy(&line.bytes).into_owned()).collect()
}

fn tail(book: &Arc<LogBook>, count: usize) -> Vec<String> {
    texts(&book.tail(count).0)
}

/// What a page holds, as text.
fn items(page: &Page) -> Vec<String> {
    let mut items = Vec::new();
    page.for_each(|item| {
        items.push(match item {
            Item::Shown(record) => String::from_utf8_lossy(record.line).into_owned(),
            Item::Skipped(count) => format!("… {count} lines skipped"),
        });
    });
    items
}

/// Everything that is there to be read now.
async fn read_all(follower: &mut Follower) -> Vec<String> {
    let mut all = Vec::new();
    while !follower.is_caught_up() {
        all.extend(items(&next_page(follower).await));
    }
    all
}

/// The next page; each leads on.
async fn next_page(follower: &mut Follower) -> Page {
    let page = follower.next().await;
    assert!(page.to_seq > page.from_seq, "a reader does not go round in circles");
    page
}

/// The page that is there now; `None` if a reader would have to wait.
async fn next_at_once(follower: &mut Follower) -> Option<Page> {
    timeout(Duration::ZERO, follower.next()).await.ok()
}

mod ring {
    //! What is kept, and how much of it.

    use super::*;

    #[test]
    fn an_empty_book_has_no_lines() {
        let book = Shim::new().book;
        assert_eq!(tail(&book, 20), [""; 0]);
        assert_eq!(book.next_seq(), 1);
        assert!(book.last_stderr(20).is_empty());
    }

    #[test]
    fn a_line_keeps_what_is_known_of_it() {
        let mut shim = Shim::new();
        shim.writes(&["one", "!two"]);
        let (lines, _) = shim.book.tail(1);
        assert_eq!(
            lines,
            [Line {
                seq: Some(2),
                unix_millis: Some(2000),
                is_stderr: true,
                continued: false,
                bytes: b"!two".to_vec(),
            }]
        );
    }

    #[test]
    fn the_pieces_of_a_long_line_are_marked() {
        let book = Arc::new(LogBook::default());
        let mut batch = Vec::new();
        let flags = flags::STDERR | flags::CONTINUED;
        put_record(&mut batch, Record { seq: 1, unix_millis: 0, flags, line: b"rest" });
        book.push(2, &batch);
        let (lines, _) = book.tail(1);
        assert!(lines[0].continued && lines[0].is_stderr);
    }

    #[test]
    fn a_tail_goes_across_batches() {
        let mut shim = Shim::new();
        shim.writes(&["a", "b", "c"]);
        shim.writes(&["d"]);
        shim.writes(&["e", "f"]);
        assert_eq!(tail(&shim.book, 0), [""; 0]);
        assert_eq!(tail(&shim.book, 1), ["f"]);
        assert_eq!(tail(&shim.book, 3), ["d", "e", "f"]);
        assert_eq!(tail(&shim.book, 5), ["b", "c", "d", "e", "f"]);
        assert_eq!(tail(&shim.book, 6), ["a", "b", "c", "d", "e", "f"]);
        assert_eq!(tail(&shim.book, usize::MAX), ["a", "b", "c", "d", "e", "f"]);
    }

    #[test]
    fn bytes_that_are_no_text_are_kept() {
        let mut shim = Shim::new();
        let strange = vec![vec![0xff, 0x00, b'\r'], Vec::new()];
        shim.writes_bytes(&strange);
        let kept: Vec<_> = shim.book.tail(2).0.into_iter().map(|line| line.bytes).collect();
        assert_eq!(kept, strange);
    }

    #[test]
    fn the_ring_stays_within_its_bound() {
        let mut shim = Shim::new();
        for n in 0..5000 {
            shim.writes_a_lot(1000 + n % 50);
            let ring = shim.book.ring();
            let cost: usize = ring.batches.iter().map(|it| it.bytes.len() + BATCH_COST).sum();
            assert_eq!(ring.bytes, cost, "the sum is kept right");
            assert!(ring.bytes <= RING_BYTES);
        }
        let kept = shim.book.tail(usize::MAX).0;
        assert!(kept.len() > 900, "the room is used: {}", kept.len());
        assert_eq!(kept.last().unwrap().seq, Some(5000));
    }

    #[test]
    fn many_tiny_batches_stay_within_it_too() {
        let mut shim = Shim::new();
        for _ in 0..20_000 {
            shim.writes(&["x"]);
        }
        let ring = shim.book.ring();
        assert!(ring.batches.len() * BATCH_COST <= RING_BYTES);
    }

    #[test]
    fn the_newest_batch_is_kept_even_if_it_is_larger_than_the_ring() {
        let mut shim = Shim::new();
        shim.writes(&["old"]);
        shim.writes_a_lot(2 * RING_BYTES);
        assert_eq!(shim.book.tail(usize::MAX).0.len(), 1);
        shim.writes(&["new"]);
        assert_eq!(tail(&shim.book, usize::MAX), ["new"]);
    }

    #[test]
    fn the_last_lines_of_stderr_are_found_among_the_others() {
        let mut shim = Shim::new();
        shim.writes(&["!a", "x", "!b"]);
        shim.writes(&["y", "!c", "z"]);
        assert_eq!(texts(&shim.book.last_stderr(2)), ["!b", "!c"]);
        assert_eq!(texts(&shim.book.last_stderr(3)), ["!a", "!b", "!c"]);
        assert_eq!(texts(&shim.book.last_stderr(usize::MAX)), ["!a", "!b", "!c"]);
    }

    #[test]
    fn no_lines_of_stderr_are_none() {
        let mut shim = Shim::new();
        shim.writes(&["!a", "!b"]);
        assert_eq!(texts(&shim.book.last_stderr(0)), [""; 0]);
    }

    #[test]
    fn numbers_never_go_back() {
        let mut shim = Shim::new();
        shim.writes(&["a", "b"]);
        shim.book.push(1, &[]);
        assert_eq!(shim.book.next_seq(), 3);
    }

    #[test]
    fn a_batch_that_is_cut_short_is_shown_as_far_as_it_goes() {
        let book = Arc::new(LogBook::default());
        let mut batch = Vec::new();
        put_record(&mut batch, Record { seq: 1, unix_millis: 0, flags: 0, line: b"whole" });
        put_record(&mut batch, Record { seq: 2, unix_millis: 0, flags: 0, line: b"cut" });
        book.push(3, &batch[..batch.len() - 1]);
        assert_eq!(tail(&book, 20), ["whole"]);
    }
}

mod followers {
    //! Who reads on as output comes.

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_follower_goes_on_where_the_tail_ended() {
        let mut shim = Shim::new();
        shim.writes(&["a", "b"]);
        let (lines, mut follower) = shim.book.tail(1);
        assert_eq!(texts(&lines), ["b"]);
        assert!(follower.is_caught_up());
        shim.writes(&["c"]);
        shim.writes(&["d", "e"]);
        assert!(!follower.is_caught_up());
        assert_eq!(read_all(&mut follower).await, ["c", "d", "e"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_waits_for_what_is_not_there_yet() {
        let mut shim = Shim::new();
        let (_, mut follower) = shim.book.tail(0);
        assert!(next_at_once(&mut follower).await.is_none());
        let waiting = tokio::spawn(async move { items(&follower.next().await) });
        tokio::task::yield_now().await;
        shim.writes(&["at last"]);
        assert_eq!(waiting.await.unwrap(), ["at last"]);
    }

    #[tokio::test(start_paused = true)]
    async fn several_followers_each_see_everything() {
        let mut shim = Shim::new();
        let mut followers = [0; 3].map(|_| shim.book.tail(0).1);
        shim.writes(&["a"]);
        assert_eq!(read_all(&mut followers[0]).await, ["a"]);
        shim.writes(&["b"]);
        assert_eq!(read_all(&mut followers[0]).await, ["b"]);
        assert_eq!(read_all(&mut followers[1]).await, ["a", "b"]);
        assert_eq!(read_all(&mut followers[2]).await, ["a", "b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_that_was_cancelled_misses_nothing() {
        let mut shim = Shim::new();
        let (_, mut follower) = shim.book.tail(0);
        for n in 0..10 {
            assert!(next_at_once(&mut follower).await.is_none());
            shim.writes(&[&format!("line {n}")]);
            drop(follower.next()); // Asked for and never polled.
            assert_eq!(read_all(&mut follower).await, [format!("line {n}")]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_that_lags_is_told_how_much_it_missed() {
        let mut shim = Shim::new();
        let (_, mut follower) = shim.book.tail(0);
        shim.writes(&["a", "b"]);
        for _ in 0..3 {
            shim.writes_a_lot(THIRD);
        }
        shim.writes(&["last"]);
        let all = read_all(&mut follower).await;
        assert_eq!(all.first().unwrap(), "… 3 lines skipped");
        assert_eq!((all.len(), all.last().unwrap().as_str()), (4, "last"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_gap_between_batches_is_told_where_it_is() {
        let mut shim = Shim::new();
        let (_, mut follower) = shim.book.tail(0);
        shim.writes(&["a"]);
        shim.drops(7);
        shim.writes(&["b"]);
        assert_eq!(read_all(&mut follower).await, ["a", "… 7 lines skipped", "b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_gap_is_told_even_if_nothing_comes_after_it() {
        let mut shim = Shim::new();
        let (_, mut follower) = shim.book.tail(0);
        shim.writes(&["a"]);
        shim.drops(7);
        assert_eq!(read_all(&mut follower).await, ["a"]);
        assert!(next_at_once(&mut follower).await.is_none(), "nobody knows of it yet");
        shim.tells();
        assert_eq!(read_all(&mut follower).await, ["… 7 lines skipped"]);
        assert!(next_at_once(&mut follower).await.is_none(), "it is told once");
        shim.writes(&["b"]);
        assert_eq!(read_all(&mut follower).await, ["b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_gap_at_the_end_of_a_tail_is_told_to_its_follower() {
        let mut shim = Shim::new();
        shim.writes(&["a"]);
        shim.drops(2);
        shim.tells();
        let (lines, mut follower) = shim.book.tail(20);
        assert_eq!(texts(&lines), ["a"]);
        assert_eq!(read_all(&mut follower).await, ["… 2 lines skipped"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_gap_before_the_first_line_is_told() {
        let mut shim = Shim::new();
        shim.drops(4);
        shim.tells();
        let (_, mut follower) = shim.book.tail(20);
        assert_eq!(read_all(&mut follower).await, ["… 4 lines skipped"]);
    }

    #[tokio::test(start_paused = true)]
    async fn much_output_comes_in_pages() {
        let mut shim = Shim::new();
        let (_, mut follower) = shim.book.tail(0);
        let line = PAGE_BYTES / 4;
        for _ in 0..10 {
            shim.writes_a_lot(line);
        }
        let (mut pages, mut lines) = (0, 0);
        while !follower.is_caught_up() {
            let shown =
                items(&next_page(&mut follower).await).iter().filter(|it| it.len() == line).count();
            assert!(shown <= 5, "a page is bounded");
            (pages, lines) = (pages + 1, lines + shown);
        }
        assert_eq!(lines, 10);
        assert!(pages >= 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_outlives_what_the_ring_forgets() {
        let mut shim = Shim::new();
        let (_, mut follower) = shim.book.tail(0);
        shim.writes(&["kept"]);
        let page = follower.next().await;
        for _ in 0..5 {
            shim.writes_a_lot(THIRD);
        }
        assert_eq!(items(&page), ["kept"]);
    }

    #[tokio::test]
    async fn a_follower_on_another_thread_sees_all_in_order() {
        const LINES: u64 = 20_000;
        let mut shim = Shim::new();
        let (_, mut follower) = shim.book.tail(0);
        let writer = tokio::task::spawn_blocking(move || {
            for n in 0..LINES {
                shim.writes(&[&n.to_string()]);
            }
        });
        let (mut next, mut skipped) = (1, 0);
        while next <= LINES {
            next_page(&mut follower).await.for_each(|item| match item {
                Item::Shown(record) => {
                    assert_eq!(record.seq, next);
                    assert_eq!(record.line, (next - 1).to_string().as_bytes());
                    next += 1;
                }
                Item::Skipped(count) => {
                    skipped += count;
                    next += count;
                }
            });
        }
        writer.await.unwrap();
        assert!(follower.is_caught_up());
        assert!(skipped <= LINES);
    }
}

mod histories {
    //! What was written before this daemon.

    use super::*;

    fn book_with_history(text: &str) -> (tempfile::TempDir, Shim) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.log");
        std::fs::write(&file, text).unwrap();
        (folder, Shim::with(LogBook::new(History::note(&file))))
    }

    #[test]
    fn history_fills_up_what_is_missing_in_a_tail() {
        let (_folder, mut shim) = book_with_history("[out] h1\n[err] h2\n");
        assert_eq!(tail(&shim.book, 20), ["h1", "h2"]);
        shim.writes(&["a", "b"]);
        assert_eq!(tail(&shim.book, 20), ["h1", "h2", "a", "b"]);
        assert_eq!(tail(&shim.book, 3), ["h2", "a", "b"]);
        assert_eq!(tail(&shim.book, 2), ["a", "b"]);
        let (lines, _) = shim.book.tail(3);
        assert_eq!((lines[0].seq, lines[1].seq), (None, Some(1)));
    }

    #[test]
    fn history_is_left_out_once_something_is_missing_in_between() {
        let (_folder, mut shim) = book_with_history("[out] h1\n");
        shim.writes(&["a"]);
        for _ in 0..3 {
            shim.writes_a_lot(THIRD);
        }
        let (lines, _) = shim.book.tail(usize::MAX);
        assert!(lines.iter().all(|line| line.seq.is_some()), "no gap is passed off as none");
        assert_eq!(lines.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn history_is_not_followed() {
        let (_folder, mut shim) = book_with_history("[out] h1\n");
        let (lines, mut follower) = shim.book.tail(20);
        assert_eq!(texts(&lines), ["h1"]);
        assert!(next_at_once(&mut follower).await.is_none());
        shim.writes(&["a"]);
        assert_eq!(read_all(&mut follower).await, ["a"]);
    }

    /// A book of an adopted server: the file is as far as record 6, and 4 and 5 come again.
    fn adopted(text: &str) -> (tempfile::TempDir, Shim) {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.log");
        std::fs::write(&file, text).unwrap();
        let found = std::fs::metadata(&file).unwrap();
        let (device, inode, bytes) = (found.dev(), found.ino(), found.len());
        let place = LogPlace { device, inode, bytes, next_seq: 6 };
        let book = LogBook::of_adopted(&file, Some(place));
        (folder, Shim { next_seq: 4, ..Shim::with(book) })
    }

    #[test]
    fn what_an_adopted_server_says_again_is_shown_once() {
        let (_folder, mut shim) = adopted("[out] h2\n[out] h3\n[out] four\n[out] five\n");
        assert_eq!(tail(&shim.book, 20), ["h2", "h3", "four", "five"]);
        shim.writes(&["four", "five"]);
        assert_eq!(tail(&shim.book, 20), ["h2", "h3", "four", "five"]);
        assert_eq!(tail(&shim.book, 3), ["h3", "four", "five"]);
        shim.writes(&["six"]);
        assert_eq!(tail(&shim.book, 20), ["h2", "h3", "four", "five", "six"]);
        let (lines, _) = shim.book.tail(1);
        assert_eq!(lines[0].seq, Some(6));
    }

    #[tokio::test(start_paused = true)]
    async fn who_follows_an_adopted_server_has_missed_nothing() {
        let (_folder, mut shim) = adopted("[out] h5\n");
        let (lines, mut follower) = shim.book.tail(20);
        assert_eq!(texts(&lines), ["h5"]);
        shim.next_seq = 6;
        shim.tells();
        assert!(next_at_once(&mut follower).await.is_none());
        shim.writes(&["six"]);
        assert_eq!(read_all(&mut follower).await, ["six"]);
    }

    #[test]
    fn history_is_not_stderr_of_this_life() {
        let (_folder, shim) = book_with_history("[err] h1\n");
        assert!(shim.book.last_stderr(20).is_empty());
    }
}

/// One step of a shim and its reader.
#[derive(Debug, Clone)]
enum Step {
    /// A batch of so many lines, each of so many bytes.
    Write {
        lines: usize,
        size: usize,
    },
    Drop(u64),
    Tell,
    /// So many pages are read, if there are that many.
    Read(usize),
    /// A reader comes, sees the tail, and follows from there.
    Join(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..6_usize, 0..40_usize).prop_map(|(lines, size)| Step::Write { lines, size }),
        2 => (1..3_usize, RING_BYTES / 8..RING_BYTES / 2)
            .prop_map(|(lines, size)| Step::Write { lines, size }),
        1 => (1..9_u64).prop_map(Step::Drop),
        1 => Just(Step::Tell),
        3 => (1..4_usize).prop_map(Step::Read),
        1 => (0..10_usize).prop_map(Step::Join),
    ]
}

/// A follower, and what it has been given so far.
struct Reader {
    follower: Follower,
    next_seq: u64,
}

impl Reader {
    /// Reads up to `pages`; every number comes exactly once, as a line or as skipped.
    async fn reads(&mut self, pages: usize) {
        for _ in 0..pages {
            if self.follower.is_caught_up() {
                return;
            }
            let page = next_page(&mut self.follower).await;
            page.for_each(|item| match item {
                Item::Shown(record) => {
                    assert_eq!(record.seq, self.next_seq, "in order, each once");
                    self.next_seq += 1;
                }
                Item::Skipped(count) => {
                    assert!(count > 0);
                    self.next_seq += count;
                }
            });
        }
    }
}

async fn play(steps: &[Step]) {
    let mut shim = Shim::new();
    let follower = shim.book.tail(0).1;
    let mut readers = vec![Reader { follower, next_seq: 1 }];
    for step in steps {
        match *step {
            Step::Write { lines, size } => shim.writes_bytes(&vec![vec![b'x'; size]; lines]),
            Step::Drop(count) => shim.drops(count),
            Step::Tell => shim.tells(),
            Step::Read(pages) => {
                for reader in &mut readers {
                    reader.reads(pages).await;
                }
            }
            Step::Join(count) => {
                let (lines, follower) = shim.book.tail(count);
                assert!(lines.len() <= count);
                assert!(lines.is_sorted_by_key(|line| line.seq));
                let next_seq = follower.next_seq;
                if let Some(last) = lines.last() {
                    assert!(last.seq.unwrap() < next_seq);
                }
                readers.push(Reader { follower, next_seq });
            }
        }
    }
    shim.tells();
    for reader in &mut readers {
        reader.reads(usize::MAX).await;
        assert_eq!(reader.next_seq, shim.next_seq, "shown plus skipped is all");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn shown_plus_skipped_is_always_all(steps in vec(any_step(), 0..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(play(&steps));
    }

    #[test]
    fn nothing_is_skipped_by_a_reader_who_keeps_up(
        batches in vec((1..6_usize, 0..200_usize), 0..40)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut shim = Shim::new();
            let (_, mut follower) = shim.book.tail(0);
            for (lines, size) in batches {
                shim.writes_bytes(&vec![vec![b'x'; size]; lines]);
                assert_eq!(read_all(&mut follower).await, vec!["x".repeat(size); lines]);
            }
        });
    }

    #[test]
    fn a_tail_is_the_end_of_everything(
        batches in vec(vec("[a-z!]{0,5}", 1..5), 0..20),
        count in 0..60_usize,
    ) {
        let mut shim = Shim::new();
        for batch in &batches {
            shim.writes(&batch.iter().map(String::as_str).collect::<Vec<_>>());
        }
        let all = batches.concat();
        prop_assert_eq!(tail(&shim.book, count), &all[all.len().saturating_sub(count)..]);
        let errors: Vec<_> = all.into_iter().filter(|line| line.starts_with('!')).collect();
        let last = &errors[errors.len().saturating_sub(count)..];
        prop_assert_eq!(texts(&shim.book.last_stderr(count)), last);
    }
}

#[test]
fn lines_of_xy_are_not_written_by_the_server() {
    let mut shim = Shim::new();
    let has_written = |shim: &Shim, seq| shim.book.has_written_since(seq);
    assert!(!has_written(&shim, 1));
    shim.writes(&["from the server", "xy: tools/list: it took longer than 30s"]);
    assert!(has_written(&shim, 1));
    assert!(!has_written(&shim, 2));
    shim.writes_in_two("xy: a long line", " of xy");
    assert!(!has_written(&shim, 2));
    assert!(!has_written(&shim, 4), "the rest of a line is whose its beginning is");
    shim.writes_in_two("a long line", "xy: of the server");
    assert!(has_written(&shim, 5));
    assert!(has_written(&shim, 6));
    let so_far = shim.next_seq;
    shim.writes(&["xy:", "!not xy, which writes no stderr"]);
    assert!(has_written(&shim, so_far));
    let so_far = shim.next_seq;
    shim.drops(1);
    shim.tells();
    assert!(has_written(&shim, so_far), "somebody wrote so much that it was dropped");
}
