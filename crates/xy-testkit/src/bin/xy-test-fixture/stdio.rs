//! One conversation, in lines.

use std::io::BufRead;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use xy_testkit::json::Members;
use xy_testkit::standin::{Output, Wait};

use crate::era::{self, Offer};
use crate::session::Session;
use crate::stream::Out;
use crate::{legacy, modern};

/// What is spoken from now on. With both on offer, that is the first era that is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spoken {
    Legacy,
    Modern,
    /// Nothing has been said yet that is of one era only.
    Either,
    /// Legacy, though it might have been modern.
    Settled,
}

/// Speaks until stdin ends, or TERM comes.
pub(crate) fn serve(offer: Offer) -> ExitCode {
    end_on_term();
    let session = Session::new(Out::Stdout);
    let mut spoken = match offer {
        Offer::Legacy => Spoken::Legacy,
        Offer::Modern => Spoken::Modern,
        Offer::Both => Spoken::Either,
    };
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        if !line.trim().is_empty() {
            spoken = hear(&session, &line, spoken);
        }
    }
    Output::Stderr.say("stopping: stdin closed");
    ExitCode::SUCCESS
}

/// One line; what is spoken after it.
fn hear(session: &Arc<Session>, line: &str, spoken: Spoken) -> Spoken {
    let out = Out::Stdout;
    let message = Members::of(line).unwrap_or_default();
    let is_modern = message.has("id") && era::is_modern(&message);
    match spoken {
        Spoken::Modern => {
            modern::hear(session, line, &out);
        }
        Spoken::Either if is_modern => {
            if modern::hear(session, line, &out) {
                return Spoken::Modern;
            }
        }
        Spoken::Settled if is_modern => {
            let error = r#"{"code":-32600,"message":"a legacy conversation has begun"}"#;
            out.say(&modern::refusal(message.raw("id"), error));
        }
        Spoken::Legacy | Spoken::Either | Spoken::Settled => {
            legacy::hear(session, line, &out);
            if spoken == Spoken::Either && era::begins_legacy(&message) {
                return Spoken::Settled;
            }
        }
    }
    spoken
}

#[expect(clippy::disallowed_methods, reason = "the thread that reads stdin cannot be woken")]
fn end_on_term() {
    let mut wait = Wait::for_term_only();
    thread::spawn(move || {
        wait.next(None);
        Output::Stderr.say("stopping: TERM");
        std::process::exit(0)
    });
}
