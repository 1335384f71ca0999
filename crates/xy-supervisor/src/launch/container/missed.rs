//! What a container said while nobody was attached, from what its engine has kept.
//!
//! An attached stream does not say where in the output it begins, and an engine's log can be
//! read from a whole second only. So the bytes that have been heard are counted, and so are
//! those up to the last quiet moment: from that second on the log is read, and what has been
//! heard since is skipped. Of what is logged, its end is known as well, and is found even if an engine
//! has not kept all of it. What comes twice, by the log and by the new stream, is found by
//! `overlap.rs`. All of it is pure but the reading.

use std::fmt::Display;

use bollard::container::LogOutput;
use bollard::errors::Error;

use super::create;
use super::engine::{Engine, next};

/// No more than this is made good; a server that said more is started anew.
const MOST: usize = 8 << 20;

/// Docker logs so much of an unfinished line only with the rest of it.
const UNLOGGED: u64 = 16 << 10;

/// So many bytes of output are not twice in it, or their being so is seen.
pub(super) const UNLIKE: usize = 64;

/// So many milliseconds without a word are a quiet moment.
const QUIET_MS: u64 = 3000;

/// How far the output of a container has been heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Place {
    /// Bytes of stdout, up to the end of a line.
    pub(super) out: u64,
    /// Bytes of stderr.
    pub(super) err: u64,
    /// Before this second, since 1970, all of the next two had been said, and nothing more.
    pub(super) quiet_second: u64,
    pub(super) quiet_out: u64,
    pub(super) quiet_err: u64,
}

impl Place {
    pub(super) const BYTES: usize = 5 * 8;

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let numbers = [self.out, self.err, self.quiet_second, self.quiet_out, self.quiet_err];
        let mut bytes = [0; Self::BYTES];
        for (chunk, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            chunk.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
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

/// Counts what is heard.
#[derive(Debug, Clone)]
pub(super) struct Counter {
    /// All bytes of stdout that came.
    out: u64,
    /// Up to the end of its last line.
    out_lines: u64,
    err: u64,
    quiet: (u64, u64, u64),
    heard_ms: Option<u64>,
}

impl Counter {
    /// Goes on after what has been heard before.
    pub(super) fn after(place: Place) -> Self {
        Self {
            out: place.out,
            out_lines: place.out,
            err: place.err,
            quiet: (place.quiet_second, place.quiet_out, place.quiet_err),
            heard_ms: None,
        }
    }

    /// Some bytes came at this time, after `waited_ms` in which nothing else did.
    pub(super) fn hear(&mut self, is_stderr: bool, bytes: &[u8], now_ms: u64, waited_ms: u64) {
        if let Some(heard_ms) = self.heard_ms
            && waited_ms >= QUIET_MS
            && now_ms.saturating_sub(heard_ms) >= QUIET_MS
            && self.out == self.out_lines
        {
            self.quiet = (heard_ms / 1000 + 2, self.out, self.err);
        }
        self.heard_ms = Some(now_ms);
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

    /// So many bytes of stderr came and cannot be had.
    pub(super) fn miss_err(&mut self, bytes: u64) {
        self.err += bytes;
    }

    /// How far it is, to the byte: for whoever has had all of it, and goes on.
    pub(super) fn heard(&self) -> Place {
        Place { out: self.out, ..self.place() }
    }

    /// How far it is for somebody else, if everything that came has been used.
    pub(super) fn place(&self) -> Place {
        let (quiet_second, quiet_out, quiet_err) = self.quiet;
        Place { out: self.out_lines, err: self.err, quiet_second, quiet_out, quiet_err }
    }
}

/// Which place is noted for a later daemon: stderr counts once it is logged, and stdout once whoever
/// speaks with the server has read it. Who is never done with all of it gets on with it all the same,
/// so it is not heard again.
#[derive(Debug)]
pub(super) struct Noting {
    noted: Place,
    /// The next place, once so many bytes of stdout have been used, and all of its stderr.
    next: Option<(u64, Place)>,
}

impl Noting {
    pub(super) fn after(noted: Place) -> Self {
        Self { noted, next: None }
    }

    /// What is to be noted, if something is, while so many bytes of stdout and of stderr have been
    /// used.
    pub(super) fn step(&mut self, counter: &Counter, [out, err]: [u64; 2]) -> Option<Place> {
        let before = self.noted;
        let is_used = |heard: &(u64, Place)| heard.0 <= out && heard.1.err <= err;
        if let Some((_, place)) = self.next.take_if(|next| is_used(next)) {
            self.noted = place;
        }
        if is_used(&(counter.out, counter.place())) {
            (self.noted, self.next) = (counter.place(), None);
        } else if self.next.is_none() {
            self.next = Some((counter.out, counter.place()));
        }
        // Counted from the same quiet moment as before, as the rest of that place.
        self.noted.err = counter.err.min(err);
        (self.noted != before).then_some(self.noted)
    }

    /// Whether everything that was heard is noted.
    pub(super) fn is_done(&self, counter: &Counter) -> bool {
        self.noted == counter.place()
    }
}

/// What was missed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Missed {
    pub(super) out: Vec<u8>,
    pub(super) err: Vec<u8>,
    /// So many bytes of stderr came after these, and cannot be had.
    pub(super) err_lost: u64,
    /// Something on stdout or on stderr may have come before these, and cannot be had.
    pub(super) gaps: [bool; 2],
}

/// Why what was missed cannot be made good.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotKept {
    #[error("it said more than its engine or xy keeps while nobody listened")]
    TooMuch,
    #[error("the engine does not say what it kept: {0}")]
    Engine(#[from] Error),
}

/// All that was said, however much that is.
const ALL: [u64; 2] = [u64::MAX; 2];

/// The last bytes of stdout and of stderr that came before a place, where these are known.
pub(super) type Known = [Option<Vec<u8>>; 2];

/// How far the output of a container has been heard, and what came last before that.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heard<'a> {
    pub(super) place: Place,
    pub(super) known: &'a Known,
}

impl Heard<'_> {
    /// Of what came before nothing is known, so it is only counted.
    fn counted(place: Place) -> Self {
        Self { place, known: &[None, None] }
    }
}

impl Missed {
    /// Something was said, and nothing of it can be had.
    fn none() -> Self {
        Self { gaps: [true; 2], ..Self::default() }
    }
}

/// Reads what was said after `place`.
pub(super) async fn read(engine: &Engine, id: &str, place: Place) -> Result<Missed, NotKept> {
    read_after(engine, id, Heard::counted(place)).await
}

/// Reads what was said after what has been heard.
pub(super) async fn read_after(
    engine: &Engine,
    id: &str,
    heard: Heard<'_>,
) -> Result<Missed, NotKept> {
    let (missed, is_whole) = read_some(engine, id, heard, ALL).await?;
    Ok(Missed { gaps: is_whole.map(|it| !it), ..missed })
}

/// What there is to go on with. Whoever speaks with a server `needs_out`, all of it; nobody waits for
/// the rest, so there only lines are missing in the log of `whose` it is.
pub(super) fn or_gaps(
    read: Result<Missed, NotKept>,
    needs_out: bool,
    whose: &dyn Display,
) -> Result<Missed, NotKept> {
    match read {
        Ok(missed) if missed.gaps == [false; 2] => Ok(missed),
        Ok(missed) if !(needs_out && missed.gaps[0]) => {
            tracing::warn!(%whose, "lines are missing in its log: {}", NotKept::TooMuch);
            Ok(missed)
        }
        Ok(_) => Err(NotKept::TooMuch),
        Err(why) if needs_out => Err(why),
        Err(why) => {
            tracing::warn!(%whose, "lines are missing in its log: {why}");
            Ok(Missed::none())
        }
    }
}

/// Reads what was said after `place`, up to so many bytes of stdout, all of which have to be there.
pub(super) async fn read_out(
    engine: &Engine,
    id: &str,
    place: Place,
    until: u64,
) -> Result<Vec<u8>, NotKept> {
    match read_some(engine, id, Heard::counted(place), [until, place.err]).await? {
        (missed, [true, _]) => Ok(missed.out),
        _ => Err(NotKept::TooMuch),
    }
}

/// Reads what was said after what has been heard, up to so many bytes of stdout and of stderr; and
/// whether all of the one and of the other is there.
pub(super) async fn read_some(
    engine: &Engine,
    id: &str,
    Heard { place, known }: Heard<'_>,
    until: [u64; 2],
) -> Result<(Missed, [bool; 2]), NotKept> {
    let wanted = [until[0].saturating_sub(place.out), until[1].saturating_sub(place.err)];
    let heard =
        [place.out - place.quiet_out.min(place.out), place.err - place.quiet_err.min(place.err)];
    let most_heard = create::ENGINE_LOG_BYTES / 4;
    // Some of it is not kept any more, so nothing can be counted.
    let is_uncountable = heard.iter().sum::<u64>() > most_heard;
    let is_read = [0, 1].map(|it| wanted[it] > 0 && (known[it].is_some() || !is_uncountable));
    if is_read == [false; 2] {
        return Ok((Missed::default(), wanted.map(|it| it == 0))); // Its engine need not be asked.
    }
    let since = i32::try_from(place.quiet_second).unwrap_or(0);
    let mut logs = engine.logs(id, since);
    let mut kept = [Vec::new(), Vec::new()];
    let enough = [0, 1].map(|it| heard[it].saturating_add(wanted[it]));
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
        if kept[stream].len() as u64 > most_heard + create::ENGINE_LOG_BYTES {
            return Err(NotKept::TooMuch); // No engine keeps so much, if it does what it is told.
        }
    }
    let unlogged = if engine.closes_stdin { 0 } else { UNLOGGED };
    let after = |stream: usize| -> (Vec<u8>, bool) {
        if !is_read[stream] {
            return (Vec::new(), wanted[stream] == 0);
        }
        let kept = &kept[stream];
        // Of what was heard all has to be there, or what follows it was not told from it.
        let begin = goes_on_at(kept, heard[stream], known[stream].as_deref(), unlogged);
        let Some(begin) = begin else { return (Vec::new(), false) };
        let most = usize::try_from(wanted[stream]).unwrap_or(usize::MAX);
        let rest = &kept[begin..];
        let rest = &rest[..most.min(rest.len())];
        let is_whole = rest.len() == most || until == ALL;
        if rest.len() > MOST { (Vec::new(), false) } else { (rest.to_vec(), is_whole) }
    };
    let [(out, is_out_whole), (err, is_err_whole)] = [after(0), after(1)];
    Ok((Missed { out, err, ..Missed::default() }, [is_out_whole, is_err_whole]))
}

/// Where in what an engine has kept that begins which came after the first `heard` bytes, of which it
/// may lack the last `unlogged`. Where it is known how these end, that decides: if an engine has
/// kept less, or something else, it is looked for. What is no text may be kept as text, and is then
/// looked for as such; if it is not found like that either, the count has to do. Pure.
fn goes_on_at(kept: &[u8], heard: u64, known: Option<&[u8]>, unlogged: u64) -> Option<usize> {
    let lacks = heard.saturating_sub(kept.len() as u64);
    let by_count = kept.len().min(usize::try_from(heard).unwrap_or(usize::MAX));
    let counted = (lacks <= unlogged).then_some(by_count);
    let Some(known) = known else { return counted };
    let logged = known.len().saturating_sub(usize::try_from(lacks).unwrap_or(usize::MAX));
    let end = &known[logged.saturating_sub(by_count)..logged];
    if counted.is_some() && kept[..by_count].ends_with(end) {
        return counted;
    }
    if let Some(at) = after_only(kept, known) {
        return Some(at);
    }
    if std::str::from_utf8(from_a_letter(known)).is_ok() {
        return None;
    }
    let begins = known.len().checked_sub(usize::try_from(heard).unwrap_or(usize::MAX));
    let all = begins.map(|begins| as_text(&known[begins..])).filter(|it| kept.starts_with(it));
    let look_for = || {
        let text = as_text(from_a_letter(known));
        after_only(kept, &text).or_else(|| after_only(kept, text_end(known)))
    };
    all.map(|it| it.len()).or_else(look_for).or(counted)
}

/// Where `kept` goes on after these bytes, if they are in it once, and are long enough for that to
/// mean something. Pure.
fn after_only(kept: &[u8], bytes: &[u8]) -> Option<usize> {
    if bytes.len() < UNLIKE {
        return None;
    }
    let finder = memchr::memmem::Finder::new(bytes);
    let once = finder.find(kept)?;
    // The next one may begin within this one.
    finder.find(&kept[once + 1..]).is_none().then_some(once + bytes.len())
}

/// Some bytes without the end of a letter whose beginning is not there. Pure.
fn from_a_letter(bytes: &[u8]) -> &[u8] {
    let is_inside = |byte: &u8| byte & 0b1100_0000 == 0b1000_0000;
    &bytes[bytes.iter().take(3).take_while(|it| is_inside(it)).count()..]
}

/// How Docker keeps some bytes: each that is no text is replaced. Pure.
fn as_text(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    for chunk in bytes.utf8_chunks() {
        text.extend_from_slice(chunk.valid().as_bytes());
        text.extend_from_slice("\u{FFFD}".repeat(chunk.invalid().len()).as_bytes());
    }
    text
}

/// What comes after the last byte that is no text. Pure.
fn text_end(bytes: &[u8]) -> &[u8] {
    let last = bytes.utf8_chunks().last();
    last.filter(|it| it.invalid().is_empty()).map_or(&[], |it| it.valid().as_bytes())
}

#[cfg(test)]
mod tests;
