//! `tail`: the last lines of a server as one answer. Models read it, so secrets are masked.

use std::collections::VecDeque;

use xy_protocol::control::{MOST_TAIL_BYTES, Tail, TailLine, Tailed};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::Stream;
use xy_protocol::time::Timestamp;
use xy_supervisor::logs::Line;

use super::logs::nobody_speaks;
use crate::daemon::Daemon;
use crate::diagnostics::Scrubber;
use crate::view;

pub(super) async fn handle(daemon: &Daemon, ask: Tail) -> Result<Tailed, CallError> {
    let member = daemon.find(&ask.name)?;
    let instance = view::logged_one(&member).ok_or_else(|| nobody_speaks(&ask.name))?;
    let wanted = usize::try_from(ask.lines).unwrap_or(usize::MAX);
    // Of one output only, there may be many of the other between them.
    let looked_at = if ask.stream.is_some() { usize::MAX } else { wanted };
    let book = instance.logs().clone();
    let (paths, settings) = (daemon.paths.clone(), member.settings.clone());
    let tail = tokio::task::spawn_blocking(move || {
        let (mut lines, left_out) = latest(&book.tail(looked_at).0, wanted, ask.stream);
        let scrubber = Scrubber::of_server(&paths, &settings);
        for line in &mut lines {
            line.line = scrubber.line(&line.line);
        }
        (lines, left_out)
    });
    let failed = |cause| CallError::new(ErrorKind::Internal, "no lines could be read").cause(cause);
    let (lines, left_out) = tail.await.map_err(failed)?;
    Ok(Tailed { name: member.settings.name.clone(), lines, left_out })
}

/// The last `wanted` lines, as far as they fit; and how many did not.
fn latest(all: &[Line], wanted: usize, stream: Option<Stream>) -> (Vec<TailLine>, usize) {
    let mut lines = VecDeque::new();
    let (mut bytes, mut left_out) = (0, 0);
    let meant = all.iter().map(as_told).filter(|it| stream.is_none_or(|is| is == it.stream));
    let meant: Vec<TailLine> = meant.collect();
    for line in meant.into_iter().rev().take(wanted) {
        bytes += line.line.len();
        if bytes > MOST_TAIL_BYTES {
            left_out += 1;
        } else {
            lines.push_front(line);
        }
    }
    (lines.into(), left_out)
}

fn as_told(line: &Line) -> TailLine {
    TailLine {
        stream: if line.is_stderr { Stream::Stderr } else { Stream::Stdout },
        line: String::from_utf8_lossy(&line.bytes).into_owned(),
        ts: line.unix_millis.map(Timestamp::from_unix_millis),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str, is_stderr: bool) -> Line {
        let bytes = text.as_bytes().to_vec();
        Line { seq: None, unix_millis: Some(1), is_stderr, continued: false, bytes }
    }

    #[test]
    fn the_last_lines_of_one_output_are_found_and_too_much_is_left_out() {
        let all = vec![line("a", true), line("b", false), line("c", true), line("d", false)];
        let texts = |wanted, stream| -> Vec<String> {
            latest(&all, wanted, stream).0.into_iter().map(|it| it.line).collect()
        };
        assert_eq!(texts(2, None), ["c", "d"]);
        assert_eq!(texts(2, Some(Stream::Stderr)), ["a", "c"]);
        assert_eq!(texts(1, Some(Stream::Stdout)), ["d"]);
        let long = vec![line(&"x".repeat(MOST_TAIL_BYTES), true), line("y", true)];
        let (kept, left_out) = latest(&long, 5, None);
        assert_eq!((kept.len(), &*kept[0].line, left_out), (1, "y", 1));
    }
}
