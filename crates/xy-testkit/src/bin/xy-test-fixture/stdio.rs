//! The stdio transport: one session, one message per line.

use std::io::BufRead;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use xy_testkit::json::Members;
use xy_testkit::standin::{Output, Wait};

use crate::era::{self, SupportedEras};
use crate::session::Session;
use crate::stream::MessageSink;
use crate::{legacy, modern};

/// The era of the session. If both are supported, the first era used becomes the era.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionEra {
    Legacy,
    Modern,
    /// Both eras are supported, and no message has selected one yet.
    Undecided,
    /// Both eras are supported, and the client selected legacy with `initialize`.
    LegacySelected,
}

/// Serves until stdin ends or TERM arrives.
pub(crate) fn serve(supported: SupportedEras) -> ExitCode {
    end_on_term();
    let session = Session::new(MessageSink::Stdout);
    let mut era = match supported {
        SupportedEras::Legacy => SessionEra::Legacy,
        SupportedEras::Modern => SessionEra::Modern,
        SupportedEras::Both => SessionEra::Undecided,
    };
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        if !line.trim().is_empty() {
            era = handle_message(&session, &line, era);
        }
    }
    Output::Stderr.say("stopping: stdin closed");
    ExitCode::SUCCESS
}

/// Handles one line and returns the era of the session after it.
fn handle_message(session: &Arc<Session>, line: &str, era: SessionEra) -> SessionEra {
    let out = MessageSink::Stdout;
    let message = Members::of(line).unwrap_or_default();
    let is_modern = message.has("id") && era::is_modern(&message);
    match era {
        SessionEra::Modern => {
            modern::handle_message(session, line, &out);
        }
        SessionEra::Undecided if is_modern => {
            if modern::handle_message(session, line, &out) {
                return SessionEra::Modern;
            }
        }
        SessionEra::LegacySelected if is_modern => {
            let error = r#"{"code":-32600,"message":"a legacy conversation has begun"}"#;
            out.send(&modern::refusal(message.raw("id"), error));
        }
        SessionEra::Legacy | SessionEra::Undecided | SessionEra::LegacySelected => {
            legacy::handle_message(session, line, &out);
            if era == SessionEra::Undecided && era::begins_legacy(&message) {
                return SessionEra::LegacySelected;
            }
        }
    }
    era
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
