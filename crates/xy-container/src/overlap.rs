//! Joining the engine's log of a container's output with a fresh stream of it, so that each byte
//! comes once.
//!
//! The stream is attached before the log is read, so the bytes in between come both ways. They are
//! found where the end of the log is the beginning of the stream. A busy engine sends the stream
//! late, or pauses within it. So bytes that lie inside the log are followed up to the log's end,
//! whatever the pauses. Everything but [`with_fresh`] is pure.

use std::time::Duration;

use bollard::container::LogOutput;
use memchr::memmem;
use tokio::time::{Instant, timeout_at};

use crate::engine::{ChunkStream, next};
use crate::log_gap::{MIN_MATCH_BYTES, MissedOutput};

/// Time for which a stream is read before each comparison with the log.
const SLICE: Duration = Duration::from_millis(100);

/// Time for a stream to send something that can be told from the log.
const FRESH_WITHIN: Duration = Duration::from_secs(1);

/// Time for a stream to reach the end of the log that it repeats.
const BEHIND_WITHIN: Duration = Duration::from_secs(5);

/// Maximum number of bytes of a stream that are compared with the log.
const FRESH_BYTES_MAX: usize = 1 << 20;

/// How far a stream is, compared with the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    /// Beyond the log's end.
    Joined,
    /// The stream has sent nothing, or too little to identify its position.
    Unsure,
    /// Inside the log: the rest of the log will be repeated.
    Behind,
}

/// The bytes of stdout or of stderr.
#[derive(Debug, Default)]
struct Fresh {
    bytes: Vec<u8>,
    /// The first of them came after a pause.
    is_late: bool,
}

/// Returns what was missed and what has come on a fresh stream since, each byte once.
pub(crate) async fn with_fresh(
    mut missed: MissedOutput,
    output: &mut ChunkStream<LogOutput>,
) -> MissedOutput {
    let began_at = Instant::now();
    let [mut out, mut err] = [Fresh::default(), Fresh::default()];
    let mut is_open = true;
    loop {
        let progress = progress(&missed.out, &out.bytes).max(progress(&missed.err, &err.bytes));
        let within = match progress {
            Progress::Joined => break,
            Progress::Unsure => FRESH_WITHIN,
            Progress::Behind => BEHIND_WITHIN,
        };
        let is_too_long = out.bytes.len() + err.bytes.len() > FRESH_BYTES_MAX;
        if !is_open || is_too_long || began_at.elapsed() >= within {
            break;
        }
        is_open = read_slice(output, began_at, &mut out, &mut err).await;
    }
    out.join(&mut missed.out);
    err.join(&mut missed.err);
    missed
}

/// Reads a stream for a short time; returns false once it has ended.
async fn read_slice(
    output: &mut ChunkStream<LogOutput>,
    began_at: Instant,
    out: &mut Fresh,
    err: &mut Fresh,
) -> bool {
    let until = Instant::now() + SLICE;
    let is_late = |now: Instant| now.duration_since(began_at) > SLICE;
    loop {
        match timeout_at(until, next(output)).await {
            Err(_) => return true,
            Ok(None | Some(Err(_))) => return false,
            Ok(Some(Ok(LogOutput::StdErr { message }))) => {
                err.add(&message, is_late(Instant::now()));
            }
            Ok(Some(Ok(other))) => out.add(other.as_ref(), is_late(Instant::now())),
        }
        if out.bytes.len() + err.bytes.len() > FRESH_BYTES_MAX {
            return true;
        }
    }
}

impl Fresh {
    fn add(&mut self, bytes: &[u8], is_late: bool) {
        self.is_late |= self.bytes.is_empty() && is_late;
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends the bytes that `kept` does not have.
    fn join(&self, kept: &mut Vec<u8>) {
        let twice = match progress(kept, &self.bytes) {
            Progress::Behind => self.bytes.len(),
            Progress::Joined | Progress::Unsure => overlap(kept, &self.bytes),
        };
        let repeated = &self.bytes[..twice];
        // A server may write the same line again, and after a pause that is more likely.
        let is_one_line = memchr::memchr(b'\n', repeated).is_none_or(|it| it + 1 == twice);
        let twice = if self.is_late && is_one_line && twice < MIN_MATCH_BYTES { 0 } else { twice };
        kept.extend_from_slice(&self.bytes[twice..]);
    }
}

/// Decides how far a stream is that began while the log was read.
fn progress(kept: &[u8], fresh: &[u8]) -> Progress {
    if kept.is_empty() {
        return Progress::Joined; // Nothing can come twice.
    }
    let end = memmem::find(kept, fresh).map(|at| at + fresh.len());
    if end.is_none_or(|end| end == kept.len()) && !fresh.is_empty() {
        Progress::Joined
    } else if fresh.len() >= MIN_MATCH_BYTES && overlap(kept, fresh) == 0 {
        Progress::Behind
    } else {
        Progress::Unsure
    }
}

/// Returns how many bytes at the beginning of `fresh` are the end of `kept` as well. Takes time in
/// proportion to their length (Knuth, Morris and Pratt).
fn overlap(kept: &[u8], fresh: &[u8]) -> usize {
    let most = kept.len().min(fresh.len());
    let (kept, fresh) = (&kept[kept.len() - most..], &fresh[..most]);
    // For each beginning of `fresh`, the longest shorter one that it ends with.
    let mut borders = vec![0; most];
    let mut length = 0;
    for (at, byte) in fresh.iter().enumerate().skip(1) {
        length = grown(length, *byte, fresh, &borders);
        borders[at] = length;
    }
    kept.iter().fold(0, |length, byte| grown(length, *byte, fresh, &borders))
}

/// Returns the length of the longest beginning of `fresh` that ends with `byte`, after one of
/// `length` bytes.
fn grown(mut length: usize, byte: u8, fresh: &[u8], borders: &[usize]) -> usize {
    while length > 0 && fresh.get(length) != Some(&byte) {
        length = borders[length - 1];
    }
    length + usize::from(fresh.get(length) == Some(&byte))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};

    use futures_core::Stream;
    use tokio::time::{Sleep, sleep};

    use super::*;

    /// A stream that sends each piece after a pause, then nothing more.
    struct Script {
        pieces: VecDeque<(Duration, String)>,
        pause: Option<Pin<Box<Sleep>>>,
    }

    impl Stream for Script {
        type Item = Result<LogOutput, bollard::errors::Error>;

        fn poll_next(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Self::Item>> {
            let Some((pause, _)) = self.pieces.front() else { return Poll::Pending };
            let pause = *pause;
            let pause = self.pause.get_or_insert_with(|| Box::pin(sleep(pause)));
            ready!(pause.as_mut().poll(context));
            self.pause = None;
            let said = self.pieces.pop_front().map(|(_, said)| said).unwrap_or_default();
            Poll::Ready(Some(Ok(LogOutput::StdErr { message: said.into() })))
        }
    }

    /// Joins this stderr with pieces that come after so many milliseconds each.
    async fn joined(kept: &str, pieces: &[(u64, &str)]) -> String {
        let timed = |(ms, said): &(u64, &str)| (Duration::from_millis(*ms), (*said).to_owned());
        let pieces = pieces.iter().map(timed).collect();
        let mut output: ChunkStream<LogOutput> = Box::pin(Script { pieces, pause: None });
        let missed = MissedOutput { err: kept.into(), ..MissedOutput::default() };
        String::from_utf8(with_fresh(missed, &mut output).await.err).unwrap()
    }

    fn ticks(from: u32, to: u32) -> String {
        (from..to).flat_map(|it| ["tick ".to_owned(), it.to_string(), "\n".to_owned()]).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn stream_that_pauses_or_is_late_repeats_nothing() {
        for pauses in [[0, 0], [0, 300], [300, 0], [300, 300], [0, 3000]] {
            let pieces = [(pauses[0], &*ticks(100, 200)), (pauses[1], &*ticks(200, 800))];
            assert_eq!(joined(&ticks(1, 700), &pieces).await, ticks(1, 800), "{pauses:?}");
        }
        // More than a piece, and nothing new yet.
        let (kept, again) = (ticks(1, 20_000), ticks(5000, 20_000));
        let (one, two) = again.split_at(again.len() / 2);
        assert_eq!(joined(&kept, &[(0, one), (300, two)]).await, kept);
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_line_after_a_pause_is_new() {
        assert_eq!(joined("up\nalive\n", &[(500, "alive\n")]).await, "up\nalive\nalive\n");
        assert_eq!(joined("up\nalive\n", &[(0, "alive\n")]).await, "up\nalive\n");
    }

    #[tokio::test(start_paused = true)]
    async fn ambiguous_stream_is_not_awaited() {
        let began_at = Instant::now();
        let says: Vec<_> = std::iter::repeat_n((50, "tick\n"), 1000).collect();
        joined(&"tick\n".repeat(2000), &says).await;
        assert!(began_at.elapsed() <= FRESH_WITHIN + SLICE, "{:?}", began_at.elapsed());
        let began_at = Instant::now();
        assert_eq!(joined("", &says).await, "", "nothing can come twice");
        assert_eq!(began_at.elapsed(), Duration::ZERO);
    }

    #[test]
    fn bytes_that_come_twice_are_found() {
        for (kept, fresh, expected) in [
            ("one\ntwo\n", "two\nthree\n", 4),
            ("one\ntwo\n", "three\n", 0),
            ("", "x", 0),
            ("abc", "abc", 3),
            ("one\ntwo\n", "o\n", 2),
            ("xaab", "aabaab", 3),
            ("aabaabaa", "aabaac", 5),
        ] {
            assert_eq!(overlap(kept.as_bytes(), fresh.as_bytes()), expected, "{kept:?} {fresh:?}");
        }
    }

    #[test]
    fn progress_follows_from_the_position_in_the_log() {
        let kept = ticks(1, 100);
        for (fresh, expected) in [
            (ticks(20, 30), Progress::Behind),
            (ticks(20, 22), Progress::Unsure),
            (String::new(), Progress::Unsure),
            (ticks(20, 100), Progress::Joined),
            (ticks(20, 101), Progress::Joined),
            (ticks(100, 101), Progress::Joined),
        ] {
            assert_eq!(progress(kept.as_bytes(), fresh.as_bytes()), expected, "{fresh:?}");
        }
    }
}
