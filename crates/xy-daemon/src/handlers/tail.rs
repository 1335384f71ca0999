//! Handler of `tail`: returns the last lines of a server as one answer. Secrets are masked, since
//! models read it.

use std::collections::VecDeque;

use xy_protocol::control::{MAX_TAIL_BYTES, Tail, TailLine, TailResult};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::Stream;
use xy_protocol::time::Timestamp;
use xy_supervisor::logs::Line;

use super::logs::no_instance;
use crate::daemon::Daemon;
use crate::diagnostics::Scrubber;
use crate::server_status;

pub(super) async fn handle(daemon: &Daemon, params: Tail) -> Result<TailResult, CallError> {
    let member = daemon.find(&params.name)?;
    let instance =
        server_status::instance_to_log(&member).ok_or_else(|| no_instance(&params.name))?;
    let wanted = usize::try_from(params.lines).unwrap_or(usize::MAX);
    // Lines of the other stream may lie between those of the wanted one.
    let read_count = if params.stream.is_some() { usize::MAX } else { wanted };
    let book = instance.logs().clone();
    let (paths, settings) = (daemon.paths.clone(), member.settings.clone());
    let tail = tokio::task::spawn_blocking(move || {
        let (mut lines, left_out) = latest(&book.tail(read_count).0, wanted, params.stream);
        let scrubber = Scrubber::of_server(&paths, &settings);
        for line in &mut lines {
            line.line = scrubber.line(&line.line);
        }
        (lines, left_out)
    });
    let failed = |cause| CallError::new(ErrorKind::Internal, "no lines could be read").cause(cause);
    let (lines, left_out) = tail.await.map_err(failed)?;
    Ok(TailResult { name: member.settings.name.clone(), lines, left_out })
}

/// Returns the last `wanted` lines that fit into the size limit, and the number of lines left out.
fn latest(all: &[Line], wanted: usize, stream: Option<Stream>) -> (Vec<TailLine>, usize) {
    let mut lines = VecDeque::new();
    let (mut bytes, mut left_out) = (0, 0);
    let matching = all.iter().map(tail_line).filter(|it| stream.is_none_or(|is| is == it.stream));
    let matching: Vec<TailLine> = matching.collect();
    for line in matching.into_iter().rev().take(wanted) {
        bytes += line.line.len();
        if bytes > MAX_TAIL_BYTES {
            left_out += 1;
        } else {
            lines.push_front(line);
        }
    }
    (lines.into(), left_out)
}

fn tail_line(line: &Line) -> TailLine {
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
    fn last_lines_of_one_stream_fit_the_size_limit() {
        let all = vec![line("a", true), line("b", false), line("c", true), line("d", false)];
        let texts = |wanted, stream| -> Vec<String> {
            latest(&all, wanted, stream).0.into_iter().map(|it| it.line).collect()
        };
        assert_eq!(texts(2, None), ["c", "d"]);
        assert_eq!(texts(2, Some(Stream::Stderr)), ["a", "c"]);
        assert_eq!(texts(1, Some(Stream::Stdout)), ["d"]);
        let long = vec![line(&"x".repeat(MAX_TAIL_BYTES), true), line("y", true)];
        let (kept, left_out) = latest(&long, 5, None);
        assert_eq!((kept.len(), &*kept[0].line, left_out), (1, "y", 1));
    }
}
