//! The daemon's own log: structured lines to stderr, or to a bounded file when detached.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use xy_protocol::error::{CallError, ErrorKind};
use xy_shim::log_file::RotatingFile;

/// Where the daemon's own log goes.
#[derive(Debug, Clone)]
pub enum LogTo {
    /// The foreground: a person or a service manager reads it.
    Stderr,
    /// A file, when there is no terminal.
    File(PathBuf),
}

/// The daemon's own log file is rotated at this size.
const MAX_BYTES: u64 = 10_000_000;

/// So many older ones are kept.
const GENERATIONS: u32 = 2;

/// Starts logging; `XY_LOG` sets the level (`debug`, or `info,xy_supervisor=trace`).
pub(crate) fn start(to: &LogTo) -> Result<(), CallError> {
    let wanted = std::env::var("XY_LOG").unwrap_or_else(|_| "info".to_owned());
    let levels: Targets = wanted.parse().map_err(|cause| {
        CallError::new(ErrorKind::InvalidParams, format!("XY_LOG is `{wanted}`"))
            .cause(cause)
            .hint("use a level such as `info` or `debug`, or `info,xy_supervisor=trace`")
    })?;
    let lines = tracing_subscriber::fmt::layer()
        // A terminal that has gone away must not take the daemon with it.
        .log_internal_errors(false)
        .with_target(false);
    let registry = tracing_subscriber::registry().with(levels);
    match to {
        LogTo::Stderr => {
            let colours = io::IsTerminal::is_terminal(&io::stderr())
                && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            registry.with(lines.with_ansi(colours).with_writer(io::stderr)).init();
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

/// One file for all threads; a line is written whole.
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
