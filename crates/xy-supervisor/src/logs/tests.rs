//! The ring, its tail and its followers: every lost line is counted.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tokio::time::timeout;
use xy_shim::wire::put_record;

use super::*;

/// The ring does not hold three batches of this size.
const THIRD: usize = RING_BYTES / 3;

/// Writes into a log book as a shim does.
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

    /// Writes one batch of lines; a `!` marks stderr.
    fn write(&mut self, lines: &[&str]) {
        let lines: Vec<_> = lines.iter().map(|line| line.as_bytes().to_vec()).collect();
        self.write_bytes(&lines);
    }

    fn write_bytes(&mut self, lines: &[Vec<u8>]) {
        let mut batch = Vec::new();
        for line in lines {
            let flags = if line.starts_with(b"!") { flags::STDERR } else { 0 };
            let seq = self.next_seq;
            put_record(&mut batch, Record { seq, unix_millis: seq * 1000, flags, line });
            self.next_seq += 1;
        }
        self.book.push(self.next_seq, &batch);
    }

    /// Writes one batch with a line in two pieces.
    fn write_in_two_pieces(&mut self, first: &str, second: &str) {
        let mut batch = Vec::new();
        for (line, flags) in [(first, 0), (second, flags::CONTINUED)] {
            let (seq, line) = (self.next_seq, line.as_bytes());
            put_record(&mut batch, Record { seq, unix_millis: 0, flags, line });
            self.next_seq += 1;
        }
        self.book.push(self.next_seq, &batch);
    }

    /// Writes one batch with a line of this size.
    fn write_large_line(&mut self, size: usize) {
        self.write_bytes(&[vec![b'x'; size]]);
    }

    /// Skips the numbers of lines that were dropped before they were sent.
    fn skip_lines(&mut self, count: u64) {
        self.next_seq += count;
    }

    /// Sends an empty batch, which announces the numbers.
    fn announce_numbers(&self) {
        self.book.push(self.next_seq, &[]);
    }
}

fn texts(lines: &[Line]) -> Vec<String> {
    lines.iter().map(|line| String::from_utf8_lossy(&line.bytes).into_owned()).collect()
}

fn tail(book: &Arc<LogBook>, count: usize) -> Vec<String> {
    texts(&book.tail(count).0)
}

/// Returns the items of a page as text.
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

/// Reads all available pages.
async fn read_all(follower: &mut Follower) -> Vec<String> {
    let mut all = Vec::new();
    while !follower.is_caught_up() {
        all.extend(items(&next_page(follower).await));
    }
    all
}

/// Reads the next page, which must advance.
async fn next_page(follower: &mut Follower) -> Page {
    let page = follower.next().await;
    assert!(page.to_seq > page.from_seq, "each page advances");
    page
}

/// Returns the available page; `None` if the follower would have to wait.
async fn next_at_once(follower: &mut Follower) -> Option<Page> {
    timeout(Duration::ZERO, follower.next()).await.ok()
}

mod ring {
    //! The content and the size of the ring.

    use super::*;

    #[test]
    fn empty_book_has_no_lines() {
        let book = Shim::new().book;
        assert_eq!(tail(&book, 20), [""; 0]);
        assert_eq!(book.next_seq(), 1);
        assert!(book.last_stderr(20).is_empty());
    }

    #[test]
    fn line_keeps_stream_number_and_time() {
        let mut shim = Shim::new();
        shim.write(&["one", "!two"]);
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
    fn pieces_of_long_line_are_marked() {
        let book = Arc::new(LogBook::default());
        let mut batch = Vec::new();
        let flags = flags::STDERR | flags::CONTINUED;
        put_record(&mut batch, Record { seq: 1, unix_millis: 0, flags, line: b"rest" });
        book.push(2, &batch);
        let (lines, _) = book.tail(1);
        assert!(lines[0].continued && lines[0].is_stderr);
    }

    #[test]
    fn tail_spans_batches() {
        let mut shim = Shim::new();
        shim.write(&["a", "b", "c"]);
        shim.write(&["d"]);
        shim.write(&["e", "f"]);
        assert_eq!(tail(&shim.book, 0), [""; 0]);
        assert_eq!(tail(&shim.book, 1), ["f"]);
        assert_eq!(tail(&shim.book, 3), ["d", "e", "f"]);
        assert_eq!(tail(&shim.book, 5), ["b", "c", "d", "e", "f"]);
        assert_eq!(tail(&shim.book, 6), ["a", "b", "c", "d", "e", "f"]);
        assert_eq!(tail(&shim.book, usize::MAX), ["a", "b", "c", "d", "e", "f"]);
    }

    #[test]
    fn binary_output_is_kept() {
        let mut shim = Shim::new();
        let strange = vec![vec![0xff, 0x00, b'\r'], Vec::new()];
        shim.write_bytes(&strange);
        let kept: Vec<_> = shim.book.tail(2).0.into_iter().map(|line| line.bytes).collect();
        assert_eq!(kept, strange);
    }

    #[test]
    fn ring_stays_within_its_limit() {
        let mut shim = Shim::new();
        for n in 0..5000 {
            shim.write_large_line(1000 + n % 50);
            let ring = shim.book.ring();
            let cost: usize = ring.batches.iter().map(|it| it.bytes.len() + BATCH_OVERHEAD).sum();
            assert_eq!(ring.bytes, cost, "the sum is correct");
            assert!(ring.bytes <= RING_BYTES);
        }
        let kept = shim.book.tail(usize::MAX).0;
        assert!(kept.len() > 900, "the room is used: {}", kept.len());
        assert_eq!(kept.last().unwrap().seq, Some(5000));
    }

    #[test]
    fn tiny_batches_stay_within_limit() {
        let mut shim = Shim::new();
        for _ in 0..20_000 {
            shim.write(&["x"]);
        }
        let ring = shim.book.ring();
        assert!(ring.batches.len() * BATCH_OVERHEAD <= RING_BYTES);
    }

    #[test]
    fn newest_batch_is_kept_even_if_larger_than_ring() {
        let mut shim = Shim::new();
        shim.write(&["old"]);
        shim.write_large_line(2 * RING_BYTES);
        assert_eq!(shim.book.tail(usize::MAX).0.len(), 1);
        shim.write(&["new"]);
        assert_eq!(tail(&shim.book, usize::MAX), ["new"]);
    }

    #[test]
    fn last_stderr_lines_are_found_among_stdout() {
        let mut shim = Shim::new();
        shim.write(&["!a", "x", "!b"]);
        shim.write(&["y", "!c", "z"]);
        assert_eq!(texts(&shim.book.last_stderr(2)), ["!b", "!c"]);
        assert_eq!(texts(&shim.book.last_stderr(3)), ["!a", "!b", "!c"]);
        assert_eq!(texts(&shim.book.last_stderr(usize::MAX)), ["!a", "!b", "!c"]);
    }

    #[test]
    fn missing_stderr_returns_no_lines() {
        let mut shim = Shim::new();
        shim.write(&["!a", "!b"]);
        assert_eq!(texts(&shim.book.last_stderr(0)), [""; 0]);
    }

    #[test]
    fn numbers_never_decrease() {
        let mut shim = Shim::new();
        shim.write(&["a", "b"]);
        shim.book.push(1, &[]);
        assert_eq!(shim.book.next_seq(), 3);
    }

    #[test]
    fn truncated_batch_is_shown_up_to_its_end() {
        let book = Arc::new(LogBook::default());
        let mut batch = Vec::new();
        put_record(&mut batch, Record { seq: 1, unix_millis: 0, flags: 0, line: b"whole" });
        put_record(&mut batch, Record { seq: 2, unix_millis: 0, flags: 0, line: b"cut" });
        book.push(3, &batch[..batch.len() - 1]);
        assert_eq!(tail(&book, 20), ["whole"]);
    }
}

mod followers {
    //! Followers of live output.

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn follower_continues_after_tail() {
        let mut shim = Shim::new();
        shim.write(&["a", "b"]);
        let (lines, mut follower) = shim.book.tail(1);
        assert_eq!(texts(&lines), ["b"]);
        assert!(follower.is_caught_up());
        shim.write(&["c"]);
        shim.write(&["d", "e"]);
        assert!(!follower.is_caught_up());
        assert_eq!(read_all(&mut follower).await, ["c", "d", "e"]);
    }

    #[tokio::test(start_paused = true)]
    async fn follower_waits_for_new_lines() {
        let mut shim = Shim::new();
        let (_, mut follower) = shim.book.tail(0);
        assert!(next_at_once(&mut follower).await.is_none());
        let waiting = tokio::spawn(async move { items(&follower.next().await) });
        tokio::task::yield_now().await;
        shim.write(&["at last"]);
        assert_eq!(waiting.await.unwrap(), ["at last"]);
    }

    #[tokio::test(start_paused = true)]
    async fn each_follower_sees_all_lines() {
        let mut shim = Shim::new();
        let mut followers = [0; 3].map(|_| shim.book.tail(0).1);
        shim.write(&["a"]);
        assert_eq!(read_all(&mut followers[0]).await, ["a"]);
        shim.write(&["b"]);
        assert_eq!(read_all(&mut followers[0]).await, ["b"]);
        assert_eq!(read_all(&mut followers[1]).await, ["a", "b"]);
        assert_eq!(read_all(&mut followers[2]).await, ["a", "b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_follower_misses_nothing() {
        let mut shim = Shim::new();
        let (_, mut follower) = shim.book.tail(0);
        for n in 0..10 {
            assert!(next_at_once(&mut follower).await.is_none());
            shim.write(&[&format!("line {n}")]);
            drop(follower.next()); // Created and never polled.
            assert_eq!(read_all(&mut follower).await, [format!("line {n}")]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lagging_follower_gets_count_of_missed_lines() {
        let mut shim = Shim::new();
        let (_, mut follower) = shim.book.tail(0);
        shim.write(&["a", "b"]);
        for _ in 0..3 {
            shim.write_large_line(THIRD);
        }
        shim.write(&["last"]);
        let all = read_all(&mut follower).await;
        assert_eq!(all.first().unwrap(), "… 3 lines skipped");
        assert_eq!((all.len(), all.last().unwrap().as_str()), (4, "last"));
    }

    #[tokio::test(start_paused = true)]
    async fn gap_between_batches_is_reported_in_place() {
        let mut shim = Shim::new();
        let (_, mut follower) = shim.book.tail(0);
        shim.write(&["a"]);
        shim.skip_lines(7);
        shim.write(&["b"]);
        assert_eq!(read_all(&mut follower).await, ["a", "… 7 lines skipped", "b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn gap_is_reported_without_later_lines() {
        let mut shim = Shim::new();
        let (_, mut follower) = shim.book.tail(0);
        shim.write(&["a"]);
        shim.skip_lines(7);
        assert_eq!(read_all(&mut follower).await, ["a"]);
        assert!(next_at_once(&mut follower).await.is_none(), "the gap is not known yet");
        shim.announce_numbers();
        assert_eq!(read_all(&mut follower).await, ["… 7 lines skipped"]);
        assert!(next_at_once(&mut follower).await.is_none(), "it is reported once");
        shim.write(&["b"]);
        assert_eq!(read_all(&mut follower).await, ["b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn gap_after_tail_is_reported_to_follower() {
        let mut shim = Shim::new();
        shim.write(&["a"]);
        shim.skip_lines(2);
        shim.announce_numbers();
        let (lines, mut follower) = shim.book.tail(20);
        assert_eq!(texts(&lines), ["a"]);
        assert_eq!(read_all(&mut follower).await, ["… 2 lines skipped"]);
    }

    #[tokio::test(start_paused = true)]
    async fn gap_before_first_line_is_reported() {
        let mut shim = Shim::new();
        shim.skip_lines(4);
        shim.announce_numbers();
        let (_, mut follower) = shim.book.tail(20);
        assert_eq!(read_all(&mut follower).await, ["… 4 lines skipped"]);
    }

    #[tokio::test(start_paused = true)]
    async fn large_output_is_split_into_pages() {
        let mut shim = Shim::new();
        let (_, mut follower) = shim.book.tail(0);
        let line = PAGE_BYTES / 4;
        for _ in 0..10 {
            shim.write_large_line(line);
        }
        let (mut pages, mut lines) = (0, 0);
        while !follower.is_caught_up() {
            let shown =
                items(&next_page(&mut follower).await).iter().filter(|it| it.len() == line).count();
            assert!(shown <= 5, "the page size is limited");
            (pages, lines) = (pages + 1, lines + shown);
        }
        assert_eq!(lines, 10);
        assert!(pages >= 2);
    }

    #[tokio::test(start_paused = true)]
    async fn page_outlives_dropped_batches() {
        let mut shim = Shim::new();
        let (_, mut follower) = shim.book.tail(0);
        shim.write(&["kept"]);
        let page = follower.next().await;
        for _ in 0..5 {
            shim.write_large_line(THIRD);
        }
        assert_eq!(items(&page), ["kept"]);
    }

    #[tokio::test]
    async fn follower_on_another_thread_sees_all_in_order() {
        const LINES: u64 = 20_000;
        let mut shim = Shim::new();
        let (_, mut follower) = shim.book.tail(0);
        let writer = tokio::task::spawn_blocking(move || {
            for n in 0..LINES {
                shim.write(&[&n.to_string()]);
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
    //! Output before this daemon.

    use super::*;

    fn book_with_history(text: &str) -> (tempfile::TempDir, Shim) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.log");
        std::fs::write(&file, text).unwrap();
        (folder, Shim::with(LogBook::new(History::note(&file))))
    }

    #[test]
    fn history_completes_short_tail() {
        let (_folder, mut shim) = book_with_history("[out] h1\n[err] h2\n");
        assert_eq!(tail(&shim.book, 20), ["h1", "h2"]);
        shim.write(&["a", "b"]);
        assert_eq!(tail(&shim.book, 20), ["h1", "h2", "a", "b"]);
        assert_eq!(tail(&shim.book, 3), ["h2", "a", "b"]);
        assert_eq!(tail(&shim.book, 2), ["a", "b"]);
        let (lines, _) = shim.book.tail(3);
        assert_eq!((lines[0].seq, lines[1].seq), (None, Some(1)));
    }

    #[test]
    fn history_is_omitted_after_a_gap() {
        let (_folder, mut shim) = book_with_history("[out] h1\n");
        shim.write(&["a"]);
        for _ in 0..3 {
            shim.write_large_line(THIRD);
        }
        let (lines, _) = shim.book.tail(usize::MAX);
        assert!(lines.iter().all(|line| line.seq.is_some()), "no gap is hidden");
        assert_eq!(lines.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn history_is_not_followed() {
        let (_folder, mut shim) = book_with_history("[out] h1\n");
        let (lines, mut follower) = shim.book.tail(20);
        assert_eq!(texts(&lines), ["h1"]);
        assert!(next_at_once(&mut follower).await.is_none());
        shim.write(&["a"]);
        assert_eq!(read_all(&mut follower).await, ["a"]);
    }

    /// Returns a log book of an adopted server whose file ends before record 6. Records 4 and 5 are
    /// sent again.
    fn adopted(text: &str) -> (tempfile::TempDir, Shim) {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.log");
        std::fs::write(&file, text).unwrap();
        let found = std::fs::metadata(&file).unwrap();
        let (device, inode, bytes) = (found.dev(), found.ino(), found.len());
        let place = LogPosition { device, inode, bytes, next_seq: 6 };
        let book = LogBook::adopted(&file, Some(place));
        (folder, Shim { next_seq: 4, ..Shim::with(book) })
    }

    #[test]
    fn repeated_lines_of_adopted_server_are_shown_once() {
        let (_folder, mut shim) = adopted("[out] h2\n[out] h3\n[out] four\n[out] five\n");
        assert_eq!(tail(&shim.book, 20), ["h2", "h3", "four", "five"]);
        shim.write(&["four", "five"]);
        assert_eq!(tail(&shim.book, 20), ["h2", "h3", "four", "five"]);
        assert_eq!(tail(&shim.book, 3), ["h3", "four", "five"]);
        shim.write(&["six"]);
        assert_eq!(tail(&shim.book, 20), ["h2", "h3", "four", "five", "six"]);
        let (lines, _) = shim.book.tail(1);
        assert_eq!(lines[0].seq, Some(6));
    }

    #[tokio::test(start_paused = true)]
    async fn follower_of_adopted_server_misses_nothing() {
        let (_folder, mut shim) = adopted("[out] h5\n");
        let (lines, mut follower) = shim.book.tail(20);
        assert_eq!(texts(&lines), ["h5"]);
        shim.next_seq = 6;
        shim.announce_numbers();
        assert!(next_at_once(&mut follower).await.is_none());
        shim.write(&["six"]);
        assert_eq!(read_all(&mut follower).await, ["six"]);
    }

    #[test]
    fn history_is_not_stderr_of_this_life() {
        let (_folder, shim) = book_with_history("[err] h1\n");
        assert!(shim.book.last_stderr(20).is_empty());
    }
}

/// A step of a shim and its reader.
#[derive(Debug, Clone)]
enum Step {
    /// A batch with this number of lines, each of this size.
    Write {
        lines: usize,
        size: usize,
    },
    Drop(u64),
    Tell,
    /// Reads up to this number of pages.
    Read(usize),
    /// A new reader reads the tail and follows from there.
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

/// A follower and the lines that it has received.
struct Reader {
    follower: Follower,
    next_seq: u64,
}

impl Reader {
    /// Reads up to `pages`. Each number comes exactly once, as a line or as skipped.
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
            Step::Write { lines, size } => shim.write_bytes(&vec![vec![b'x'; size]; lines]),
            Step::Drop(count) => shim.skip_lines(count),
            Step::Tell => shim.announce_numbers(),
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
    shim.announce_numbers();
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
    fn fast_reader_skips_nothing(
        batches in vec((1..6_usize, 0..200_usize), 0..40)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut shim = Shim::new();
            let (_, mut follower) = shim.book.tail(0);
            for (lines, size) in batches {
                shim.write_bytes(&vec![vec![b'x'; size]; lines]);
                assert_eq!(read_all(&mut follower).await, vec!["x".repeat(size); lines]);
            }
        });
    }

    #[test]
    fn tail_is_the_end_of_all_lines(
        batches in vec(vec("[a-z!]{0,5}", 1..5), 0..20),
        count in 0..60_usize,
    ) {
        let mut shim = Shim::new();
        for batch in &batches {
            shim.write(&batch.iter().map(String::as_str).collect::<Vec<_>>());
        }
        let all = batches.concat();
        prop_assert_eq!(tail(&shim.book, count), &all[all.len().saturating_sub(count)..]);
        let errors: Vec<_> = all.into_iter().filter(|line| line.starts_with('!')).collect();
        let last = &errors[errors.len().saturating_sub(count)..];
        prop_assert_eq!(texts(&shim.book.last_stderr(count)), last);
    }
}

#[test]
fn lines_of_xy_are_not_server_output() {
    let mut shim = Shim::new();
    let has_written = |shim: &Shim, seq| shim.book.has_written_since(seq);
    assert!(!has_written(&shim, 1));
    shim.write(&["from the server", "xy: tools/list: it took longer than 30s"]);
    assert!(has_written(&shim, 1));
    assert!(!has_written(&shim, 2));
    shim.write_in_two_pieces("xy: a long line", " of xy");
    assert!(!has_written(&shim, 2));
    assert!(!has_written(&shim, 4), "a continued line belongs to its beginning");
    shim.write_in_two_pieces("a long line", "xy: of the server");
    assert!(has_written(&shim, 5));
    assert!(has_written(&shim, 6));
    let so_far = shim.next_seq;
    shim.write(&["xy:", "!not xy, which write no stderr"]);
    assert!(has_written(&shim, so_far));
    let so_far = shim.next_seq;
    shim.skip_lines(1);
    shim.announce_numbers();
    assert!(has_written(&shim, so_far), "dropped lines count as server output");
}
