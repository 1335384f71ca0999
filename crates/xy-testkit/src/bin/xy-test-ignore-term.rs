//! A server that ignores SIGTERM and the end of stdin.
//!
//! Only SIGKILL or its own time limit ends it.

use std::time::Duration;

use xy_testkit::standin::{self, Output, Wait, Woken};

/// Maximum run time. Shorter than in other test servers, because tests leak this one more easily.
const MAX_RUN_TIME: Duration = Duration::from_mins(2);

fn main() {
    standin::live_at_most(MAX_RUN_TIME);
    let mut wait = Wait::for_term_only();
    Output::Stderr.say("ready");
    loop {
        if wait.next(None) == Woken::Term {
            Output::Stderr.say("got TERM");
        }
    }
}
