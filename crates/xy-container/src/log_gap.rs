//! Output of a container from the time when no stream was attached, read from its engine's log.
//!
//! An attached stream does not say where in the output it begins, and an engine's log can only be
//! read from a whole second. So the received bytes are counted, also up to the last quiet moment.
//! The log is read from that second on, and the bytes received since then are skipped.
//!
//! For logged output the last bytes are known as well, so its end is found even if the engine has
//! not kept everything. `overlap.rs` removes output that both the log and the new stream contain.
//! Everything but the reading is pure.

use std::fmt::Display;

use bollard::container::LogOutput;
use bollard::errors::Error;

use crate::create;
use crate::engine::{Engine, next};

/// Maximum size of a gap that is filled; after more output a server is started anew.
const MAX_GAP_BYTES: usize = 8 << 20;

/// Maximum size of the last part of an unfinished line. Docker logs that part only with the rest of
/// the line.
const MAX_UNLOGGED_BYTES: u64 = 16 << 10;

/// Minimum length of output that is searched for; shorter output may occur twice by chance.
pub(crate) const MIN_MATCH_BYTES: usize = 64;

/// Milliseconds without output that make a quiet moment.
const QUIET_MS: u64 = 3000;

/// A position in the output of a container, up to which it was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct OutputPosition {
    /// Bytes of stdout, up to the end of a line.
    pub(crate) out: u64,
    /// Bytes of stderr.
    pub(crate) err: u64,
    /// The second, since 1970, by which exactly `quiet_out` and `quiet_err` bytes had been
    /// written.
    pub(crate) quiet_second: u64,
    pub(crate) quiet_out: u64,
    pub(crate) quiet_err: u64,
}

impl OutputPosition {
    pub(crate) const BYTES: usize = 5 * 8;

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let numbers = [self.out, self.err, self.quiet_second, self.quiet_out, self.quiet_err];
        let mut bytes = [0; Self::BYTES];
        for (chunk, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            chunk.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let mut numbers = bytes
            .chunks_exact(8)
            .map(|chunk| chunk.try_into().map(u64::from_le_bytes).unwrap_or_default());
        let mut next = || numbers.next().unwrap_or_default();
        Self {
            out: next(),
            err: next(),
            quiet_second: next(),
            quiet_out: next(),
            quiet_err: next(),
        }
    }
}

/// Counts received output.
#[derive(Debug, Clone)]
pub(crate) struct OutputCounter {
    /// Bytes of stdout.
    out: u64,
    /// Bytes of stdout up to the end of its last line.
    out_lines: u64,
    err: u64,
    quiet: (u64, u64, u64),
    received_ms: Option<u64>,
}

impl OutputCounter {
    /// Continues from a position.
    pub(crate) fn after(position: OutputPosition) -> Self {
        Self {
            out: position.out,
            out_lines: position.out,
            err: position.err,
            quiet: (position.quiet_second, position.quiet_out, position.quiet_err),
            received_ms: None,
        }
    }

    /// Counts bytes that arrived at `now_ms`, after `waited_ms` without any other.
    pub(crate) fn add(&mut self, is_stderr: bool, bytes: &[u8], now_ms: u64, waited_ms: u64) {
        if let Some(received_ms) = self.received_ms
            && waited_ms >= QUIET_MS
            && now_ms.saturating_sub(received_ms) >= QUIET_MS
            && self.out == self.out_lines
        {
            self.quiet = (received_ms / 1000 + 2, self.out, self.err);
        }
        self.received_ms = Some(now_ms);
        let before = self.out;
        let length = bytes.len() as u64;
        if is_stderr {
            self.err += length;
            return;
        }
        self.out += length;
        if let Some(newline) = bytes.iter().rposition(|byte| *byte == b'\n') {
            self.out_lines = before + newline as u64 + 1;
        }
    }

    /// Counts bytes of stderr that are lost.
    pub(crate) fn skip_err(&mut self, bytes: u64) {
        self.err += bytes;
    }

    /// Returns the exact position, for a reader that has received all of it and continues.
    pub(crate) fn exact_position(&self) -> OutputPosition {
        OutputPosition { out: self.out, ..self.position() }
    }

    /// Returns the position for another reader, up to the last whole line.
    pub(crate) fn position(&self) -> OutputPosition {
        let (quiet_second, quiet_out, quiet_err) = self.quiet;
        OutputPosition { out: self.out_lines, err: self.err, quiet_second, quiet_out, quiet_err }
    }
}

/// Tracks the position to note for a later daemon.
///
/// Stderr counts once it is logged, and stdout once the protocol driver has read it. The position
/// advances even if the driver never catches up, so little is received twice.
#[derive(Debug)]
pub(crate) struct PositionTracker {
    noted: OutputPosition,
    /// The next position; it is reached once that many bytes of stdout and all its stderr are
    /// consumed.
    next: Option<(u64, OutputPosition)>,
}

impl PositionTracker {
    pub(crate) fn after(noted: OutputPosition) -> Self {
        Self { noted, next: None }
    }

    /// Returns the position to note, if it has changed. The array holds the consumed bytes
    /// of stdout and of stderr.
    pub(crate) fn step(
        &mut self,
        counter: &OutputCounter,
        [out, err]: [u64; 2],
    ) -> Option<OutputPosition> {
        let before = self.noted;
        let is_consumed =
            |received: &(u64, OutputPosition)| received.0 <= out && received.1.err <= err;
        if let Some((_, position)) = self.next.take_if(|next| is_consumed(next)) {
            self.noted = position;
        }
        if is_consumed(&(counter.out, counter.position())) {
            (self.noted, self.next) = (counter.position(), None);
        } else if self.next.is_none() {
            self.next = Some((counter.out, counter.position()));
        }
        // `noted.err` may advance alone: it is counted from the same quiet moment.
        self.noted.err = counter.err.min(err);
        (self.noted != before).then_some(self.noted)
    }

    /// Returns true if everything received is noted.
    pub(crate) fn is_done(&self, counter: &OutputCounter) -> bool {
        self.noted == counter.position()
    }
}

/// Output that was missed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct MissedOutput {
    pub(crate) out: Vec<u8>,
    pub(crate) err: Vec<u8>,
    /// Bytes of stderr after these that are lost.
    pub(crate) err_lost: u64,
    /// Whether some stdout, and some stderr, before these bytes may be lost.
    pub(crate) gaps: [bool; 2],
}

/// Why a gap cannot be filled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GapError {
    #[error("its output without a daemon exceeds what its engine or xy keeps")]
    TooMuch,
    #[error("the log of its engine cannot be read: {0}")]
    Engine(#[from] Error),
}

/// No limit on the bytes to read.
const UNBOUNDED: [u64; 2] = [u64::MAX; 2];

/// The last bytes of stdout and of stderr before a position, where they are known.
pub(crate) type KnownTails = [Option<Vec<u8>>; 2];

/// A position from which output is resumed, and the output just before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResumePoint<'a> {
    pub(crate) position: OutputPosition,
    pub(crate) tails: &'a KnownTails,
}

impl ResumePoint<'_> {
    /// Resumes by count alone, without known output.
    fn counted(position: OutputPosition) -> Self {
        Self { position, tails: &[None, None] }
    }
}

impl MissedOutput {
    /// Represents a gap of which nothing can be read.
    fn none() -> Self {
        Self { gaps: [true; 2], ..Self::default() }
    }
}

/// Reads the output after `position`.
pub(crate) async fn read(
    engine: &Engine,
    id: &str,
    position: OutputPosition,
) -> Result<MissedOutput, GapError> {
    read_after(engine, id, ResumePoint::counted(position)).await
}

/// Reads the output after a resume point.
pub(crate) async fn read_after(
    engine: &Engine,
    id: &str,
    resume: ResumePoint<'_>,
) -> Result<MissedOutput, GapError> {
    let (missed, is_whole) = read_some(engine, id, resume, UNBOUNDED).await?;
    Ok(MissedOutput { gaps: is_whole.map(|it| !it), ..missed })
}

/// Decides whether reading can go on despite gaps.
///
/// A protocol driver `needs_out`: all of stdout. Other gaps only cost lines in the log of `whose`
/// server, which is warned of.
pub(crate) fn tolerate_gaps(
    read: Result<MissedOutput, GapError>,
    needs_out: bool,
    whose: &dyn Display,
) -> Result<MissedOutput, GapError> {
    match read {
        Ok(missed) if missed.gaps == [false; 2] => Ok(missed),
        Ok(missed) if !(needs_out && missed.gaps[0]) => {
            tracing::warn!(%whose, "lines are missing in its log: {}", GapError::TooMuch);
            Ok(missed)
        }
        Ok(_) => Err(GapError::TooMuch),
        Err(why) if needs_out => Err(why),
        Err(why) => {
            tracing::warn!(%whose, "lines are missing in its log: {why}");
            Ok(MissedOutput::none())
        }
    }
}

/// Reads stdout after `position` up to the offset `until`; fails if some of it is missing.
pub(crate) async fn read_out(
    engine: &Engine,
    id: &str,
    position: OutputPosition,
    until: u64,
) -> Result<Vec<u8>, GapError> {
    match read_some(engine, id, ResumePoint::counted(position), [until, position.err]).await? {
        (missed, [true, _]) => Ok(missed.out),
        _ => Err(GapError::TooMuch),
    }
}

/// Reads the output after a resume point, up to these offsets of stdout and of stderr. Returns for
/// each stream whether it is complete.
pub(crate) async fn read_some(
    engine: &Engine,
    id: &str,
    ResumePoint { position, tails: known }: ResumePoint<'_>,
    until: [u64; 2],
) -> Result<(MissedOutput, [bool; 2]), GapError> {
    let wanted = [until[0].saturating_sub(position.out), until[1].saturating_sub(position.err)];
    let received = [
        position.out - position.quiet_out.min(position.out),
        position.err - position.quiet_err.min(position.err),
    ];
    let max_received = create::ENGINE_LOG_BYTES / 4;
    // The engine may have discarded some of it, so counting is not reliable.
    let is_uncountable = received.iter().sum::<u64>() > max_received;
    let is_read = [0, 1].map(|it| wanted[it] > 0 && (known[it].is_some() || !is_uncountable));
    if is_read == [false; 2] {
        // The engine need not be asked.
        return Ok((MissedOutput::default(), wanted.map(|it| it == 0)));
    }
    let since = i32::try_from(position.quiet_second).unwrap_or(0);
    let mut logs = engine.logs(id, since);
    let mut kept = [Vec::new(), Vec::new()];
    let enough = [0, 1].map(|it| received[it].saturating_add(wanted[it]));
    while let Some(piece) = next(&mut logs).await {
        let (stream, bytes) = match piece? {
            LogOutput::StdOut { message } | LogOutput::Console { message } => (0, message),
            LogOutput::StdErr { message } => (1, message),
            LogOutput::StdIn { .. } => continue,
        };
        if !is_read[stream] {
            continue;
        }
        kept[stream].extend_from_slice(&bytes);
        let has_enough = |it: usize| {
            !is_read[it] || (known[it].is_none() && kept[it].len() as u64 >= enough[it])
        };
        if has_enough(0) && has_enough(1) {
            break;
        }
        if kept[stream].len() as u64 > max_received + create::ENGINE_LOG_BYTES {
            return Err(GapError::TooMuch); // No engine keeps that much with our log settings.
        }
    }
    let unlogged = if engine.closes_stdin { 0 } else { MAX_UNLOGGED_BYTES };
    let after = |stream: usize| -> (Vec<u8>, bool) {
        if !is_read[stream] {
            return (Vec::new(), wanted[stream] == 0);
        }
        let kept = &kept[stream];
        // All received output must be accounted for, or the output after it cannot be told apart.
        let begin = resume_offset(kept, received[stream], known[stream].as_deref(), unlogged);
        let Some(begin) = begin else { return (Vec::new(), false) };
        let most = usize::try_from(wanted[stream]).unwrap_or(usize::MAX);
        let rest = &kept[begin..];
        let rest = &rest[..most.min(rest.len())];
        let is_whole = rest.len() == most || until == UNBOUNDED;
        if rest.len() > MAX_GAP_BYTES { (Vec::new(), false) } else { (rest.to_vec(), is_whole) }
    };
    let [(out, is_out_whole), (err, is_err_whole)] = [after(0), after(1)];
    Ok((MissedOutput { out, err, ..MissedOutput::default() }, [is_out_whole, is_err_whole]))
}

/// Returns the offset in the engine's log of the output after the first `received` bytes. The log
/// may lack the last `unlogged` of them.
///
/// The known end of those bytes decides: if the log has less or other output there, the end is
/// searched for. The engine may have stored binary output as text, which is searched for as such.
/// If that fails too, the count decides. Pure.
fn resume_offset(kept: &[u8], received: u64, known: Option<&[u8]>, unlogged: u64) -> Option<usize> {
    let lacks = received.saturating_sub(kept.len() as u64);
    let by_count = kept.len().min(usize::try_from(received).unwrap_or(usize::MAX));
    let counted = (lacks <= unlogged).then_some(by_count);
    let Some(known) = known else { return counted };
    let logged = known.len().saturating_sub(usize::try_from(lacks).unwrap_or(usize::MAX));
    let end = &known[logged.saturating_sub(by_count)..logged];
    if counted.is_some() && kept[..by_count].ends_with(end) {
        return counted;
    }
    if let Some(at) = offset_after_unique(kept, known) {
        return Some(at);
    }
    if std::str::from_utf8(skip_partial_char(known)).is_ok() {
        return None;
    }
    let begins = known.len().checked_sub(usize::try_from(received).unwrap_or(usize::MAX));
    let all = begins.map(|begins| lossy_text(&known[begins..])).filter(|it| kept.starts_with(it));
    let find_as_text = || {
        let text = lossy_text(skip_partial_char(known));
        offset_after_unique(kept, &text).or_else(|| offset_after_unique(kept, text_suffix(known)))
    };
    all.map(|it| it.len()).or_else(find_as_text).or(counted)
}

/// Returns the offset in `kept` after these bytes, if they occur once and are long enough to be
/// significant. Pure.
fn offset_after_unique(kept: &[u8], bytes: &[u8]) -> Option<usize> {
    if bytes.len() < MIN_MATCH_BYTES {
        return None;
    }
    let finder = memchr::memmem::Finder::new(bytes);
    let once = finder.find(kept)?;
    // A second occurrence may overlap the first.
    finder.find(&kept[once + 1..]).is_none().then_some(once + bytes.len())
}

/// Skips the rest of a character whose first byte is missing. Pure.
fn skip_partial_char(bytes: &[u8]) -> &[u8] {
    let is_inside = |byte: &u8| byte & 0b1100_0000 == 0b1000_0000;
    &bytes[bytes.iter().take(3).take_while(|it| is_inside(it)).count()..]
}

/// Returns how Docker stores some bytes: each invalid byte is replaced. Pure.
fn lossy_text(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    for chunk in bytes.utf8_chunks() {
        text.extend_from_slice(chunk.valid().as_bytes());
        text.extend_from_slice("\u{FFFD}".repeat(chunk.invalid().len()).as_bytes());
    }
    text
}

/// Returns the text after the last invalid byte. Pure.
fn text_suffix(bytes: &[u8]) -> &[u8] {
    let last = bytes.utf8_chunks().last();
    last.filter(|it| it.invalid().is_empty()).map_or(&[], |it| it.valid().as_bytes())
}

#[cfg(test)]
mod tests;
