//! How far a fetch is, while somebody waits for a server that needs an image.
//!
//! Asked on a connection of its own: the other one waits for the answer. If it cannot be had
//! nothing is shown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use xy_protocol::control::{ByName, Request};
use xy_protocol::server::{Progress, ServerStatus};

use crate::link::{Link, read};
use crate::output::Teller;
use crate::render::safe_text;

/// How often it is asked.
const EVERY: Duration = Duration::from_millis(300);

/// How wide the bar is, in characters.
const WIDTH: usize = 24;

/// Follows the fetch of one server until it is dropped.
#[derive(Debug)]
pub(crate) struct Following {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Following {
    /// Follows the server of this name; `teller` says how far it is.
    pub(crate) fn begin(name: String, teller: Teller) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let told = is_over.clone();
        let thread = thread::Builder::new().spawn(move || follow(&name, &teller, &told)).ok();
        Self { is_over, thread }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join(); // One that panicked has only shown less.
        }
    }
}

fn follow(name: &str, teller: &Teller, is_over: &AtomicBool) {
    let Ok(mut link) = Link::open() else { return };
    let ask = Request::Status(ByName { name: name.to_owned() });
    while !is_over.load(Ordering::Relaxed) {
        thread::park_timeout(EVERY);
        let Ok(answer) = link.ask_promptly(&ask) else { return };
        let Ok(status) = read::<ServerStatus>(&answer) else { return };
        if let Some(progress) = &status.entry.progress {
            teller.say(&bar(progress));
        }
    }
}

/// `pulling x:1 45 %` with a bar, if it is known how far it is. Pure.
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
    fn a_fetch_is_shown_as_a_bar() {
        let shown = |percent| bar(&Progress { what: "pulling x:1".into(), percent });
        assert_eq!(shown(Some(50)), "[████████████░░░░░░░░░░░░] pulling x:1 50 %");
        assert_eq!(shown(None), "pulling x:1");
        assert!(!shown(Some(255)).contains('░'));
    }
}
