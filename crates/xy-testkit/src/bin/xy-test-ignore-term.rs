//! Ignores SIGTERM and the end of stdin: only SIGKILL ends it, or its own limit.

use std::time::Duration;

use xy_testkit::standin::{self, Output, Wait, Woken};

/// Shorter than elsewhere: tests leave this one behind more easily than any other.
const LIMIT: Duration = Duration::from_mins(2);

fn main() {
    standin::live_at_most(LIMIT);
    let mut wait = Wait::for_term_only();
    Output::Stderr.say("ready");
    loop {
        if wait.next(None) == Woken::Term {
            Output::Stderr.say("got TERM");
        }
    }
}
