//! Progress of an image pull while a verb waits for a server.
//!
//! The progress is polled on a separate connection, as the first one waits for its response. If
//! polling fails, no progress is shown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use xy_protocol::control::{ByName, Request};
use xy_protocol::server::{Progress, ServerStatus};

use crate::link::{Link, read};
use crate::output::SpinnerHandle;
use crate::render::safe_text;

/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Width of the bar, in characters.
const WIDTH: usize = 24;

/// Shows the progress of one server until it is dropped.
#[derive(Debug)]
pub(crate) struct ProgressMonitor {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressMonitor {
    /// Starts polling a server and shows its progress with `handle`.
    pub(crate) fn begin(name: String, handle: SpinnerHandle) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = is_over.clone();
        let thread = thread::Builder::new().spawn(move || follow(&name, &handle, &stop)).ok();
        Self { is_over, thread }
    }
}

impl Drop for ProgressMonitor {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join(); // A panic only costs the progress display.
        }
    }
}

fn follow(name: &str, handle: &SpinnerHandle, is_over: &AtomicBool) {
    let Ok(mut link) = Link::open() else { return };
    let request = Request::Status(ByName { name: name.to_owned() });
    while !is_over.load(Ordering::Relaxed) {
        thread::park_timeout(POLL_INTERVAL);
        let Ok(answer) = link.query(&request) else { return };
        let Ok(status) = read::<ServerStatus>(&answer) else { return };
        if let Some(progress) = &status.entry.progress {
            handle.set_text(&bar(progress));
        }
    }
}

/// Formats progress, such as `pulling x:1 45 %`, with a bar if the percentage is known.
fn bar(progress: &Progress) -> String {
    let what = safe_text(&progress.what);
    let Some(percent) = progress.percent.map(|it| it.min(100)) else { return what.into_owned() };
    let done = usize::from(percent) * WIDTH / 100;
    format!("[{}{}] {what} {percent} %", "█".repeat(done), "░".repeat(WIDTH - done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_shown_as_a_bar() {
        let shown = |percent| bar(&Progress { what: "pulling x:1".into(), percent });
        assert_eq!(shown(Some(50)), "[████████████░░░░░░░░░░░░] pulling x:1 50 %");
        assert_eq!(shown(None), "pulling x:1");
        assert!(!shown(Some(255)).contains('░'));
    }
}
