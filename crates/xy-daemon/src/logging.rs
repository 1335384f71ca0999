//! The daemon's own log: structured lines to stderr, or to a bounded file when detached.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::time::Instant;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use xy_protocol::error::CallError;
use xy_shim::log_file::RotatingFile;

use crate::start_error::not_started;

/// The destination of the daemon's own log.
#[derive(Debug, Clone)]
pub enum LogTo {
    /// Standard error, for a daemon in the foreground.
    Stderr,
    /// A file, for a daemon without a terminal.
    File(PathBuf),
}

/// The size at which the log file is rotated.
const MAX_BYTES: u64 = 10_000_000;

/// The number of rotated files that are kept.
const GENERATIONS: u32 = 2;

/// Maximum time that a line waits for the reader of stderr. After one line has timed out, the next
/// lines are skipped without waiting.
const WRITE_TIMEOUT: Duration = Duration::from_millis(100);

/// The number of bytes that a writable pipe always accepts.
const WRITE_CHUNK: usize = 4096;

/// Starts logging; `XY_LOG` sets the level (`debug`, or `info,xy_supervisor=trace`).
pub(crate) fn start(to: &LogTo) -> Result<(), CallError> {
    let wanted = std::env::var("XY_LOG").unwrap_or_else(|_| "info".to_owned());
    let levels: Targets = wanted.parse().map_err(|cause| {
        not_started()
            .cause(format!("XY_LOG is `{}`: {cause}", wanted.escape_debug()))
            .hint("use a level such as `info` or `debug`, or `info,xy_supervisor=trace`")
    })?;
    let lines = tracing_subscriber::fmt::layer()
        // A closed terminal must not end the daemon.
        .log_internal_errors(false)
        .with_target(false);
    let registry = tracing_subscriber::registry().with(levels);
    match to {
        LogTo::Stderr => {
            let colours = io::IsTerminal::is_terminal(&io::stderr())
                && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            registry.with(lines.with_ansi(colours).with_writer(SharedStderr::default())).init();
        }
        LogTo::File(path) => {
            let file = RotatingFile::new(path.clone(), MAX_BYTES, GENERATIONS);
            let shared = SharedFile(Arc::new(Mutex::new(file)));
            registry.with(lines.with_ansi(false).with_writer(shared)).init();
        }
    }
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    Ok(())
}

/// The stderr that all threads share. A thread never waits long for the reader: a terminal may be
/// paused and a pipe full, and servers must not stall for that.
#[derive(Clone, Default)]
struct SharedStderr(Arc<Mutex<Stderr>>);

#[derive(Default)]
struct Stderr {
    /// The number of lines that were not read in time.
    skipped: u64,
}

impl Stderr {
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let timeout = if self.skipped == 0 { WRITE_TIMEOUT } else { Duration::ZERO };
        if !is_writable(timeout) {
            self.skipped += 1;
            return Ok(());
        }
        if self.skipped > 0 {
            let notice = format!("… {} lines skipped: the reader was too slow\n", self.skipped);
            self.skipped = 0;
            io::stderr().write_all(notice.as_bytes())?;
        }
        for part in line.chunks(WRITE_CHUNK) {
            if !is_writable(WRITE_TIMEOUT) {
                return Ok(()); // The rest of a very long line.
            }
            io::stderr().write_all(part)?;
        }
        Ok(())
    }
}

/// Returns true if [`WRITE_CHUNK`] bytes can be written within this time, or an error is pending.
fn is_writable(within: Duration) -> bool {
    let stderr = io::stderr();
    let mut polled = [PollFd::new(&stderr, PollFlags::OUT)];
    let within = Timespec { tv_sec: 0, tv_nsec: within.subsec_nanos().into() };
    !matches!(poll(&mut polled, Some(&within)), Ok(0))
}

impl<'a> MakeWriter<'a> for SharedStderr {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl io::Write for SharedStderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut stderr = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stderr.append(line).map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log file that all threads share. Each line is written whole.
#[derive(Clone)]
struct SharedFile(Arc<Mutex<RotatingFile>>);

impl<'a> MakeWriter<'a> for SharedFile {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl io::Write for SharedFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now().into_std();
        file.append(line, now).map(|()| line.len()).map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
