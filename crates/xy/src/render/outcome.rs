//! What became of servers after `start`, `stop`, `restart`, `reload`, `add` and `remove`.

use xy_protocol::control::{Added, Failure, Reloaded, Removed, Restarted, Started, Stopped};
use xy_protocol::server::ServerName;

use super::{DIM, GREEN, RED, YELLOW, error, paint, safe_text, style_of};

/// What is printed, and what is told beside it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// One line per server.
    pub(crate) lines: String,
    /// Errors and warnings.
    pub(crate) troubles: String,
    /// Whether a server did not become what was asked.
    pub(crate) has_failed: bool,
}

impl Outcome {
    fn new(failed: &[Failure], warnings: &[String]) -> Self {
        let failures = failed.iter().map(|failure| error::render(&failure.error));
        let warnings = warnings.iter().map(|warning| error::warning(warning));
        Self {
            lines: String::new(),
            troubles: failures.chain(warnings).collect(),
            has_failed: !failed.is_empty(),
        }
    }

    fn say(mut self, names: &[ServerName], words: impl Fn(&ServerName) -> String) -> Self {
        for name in names {
            self.lines += &format!("{}\n", words(name));
        }
        self
    }

    /// Whether there was nothing to do anything with.
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.troubles.is_empty()
    }
}

pub(crate) fn started(done: &Started, wait: bool) -> Outcome {
    let verb = if wait { "started" } else { "starting" };
    Outcome::new(&done.failed, &done.warnings)
        .say(&done.started, |name| format!("{verb} {name}"))
        .say(&done.already_running, |name| format!("{name} was already running"))
        .say(&done.when_needed, |name| format!("{name} starts with the next client"))
}

pub(crate) fn stopped(done: &Stopped, wait: bool) -> Outcome {
    let verb = if wait { "stopped" } else { "stopping" };
    Outcome::new(&done.failed, &done.warnings)
        .say(&done.stopped, |name| format!("{verb} {name}"))
        .say(&done.not_running, |name| format!("{name} was not running"))
}

pub(crate) fn restarted(done: &Restarted, wait: bool) -> Outcome {
    let verb = if wait { "restarted" } else { "restarting" };
    Outcome::new(&done.failed, &done.warnings).say(&done.restarted, |name| format!("{verb} {name}"))
}

/// The plan of a reload, a marked line for each server that it touches.
pub(crate) fn reloaded(done: &Reloaded) -> String {
    let mut text = String::new();
    let groups = [
        (&done.added, GREEN, "+", "added"),
        (&done.removed, RED, "-", "removed"),
        (&done.restarted, YELLOW, "~", "restarted"),
        (&done.updated, YELLOW, "~", "updated, not restarted"),
    ];
    let touched = groups.iter().flat_map(|(names, ..)| names.iter());
    let width = touched.map(|name| name.as_str().len()).max().unwrap_or_default();
    for (names, style, mark, what) in groups {
        for name in names {
            text += &format!("{} {name:<width$}  {}\n", paint(style, mark), paint(DIM, what));
        }
    }
    for name in &done.profiles {
        let (style, mark) = match name {
            name if done.profiles_added.contains(name) => (GREEN, "+"),
            name if done.profiles_removed.contains(name) => (RED, "-"),
            _ => (YELLOW, "~"),
        };
        text += &format!("{} profile {name}\n", paint(style, mark));
    }
    text += &format!("{} unchanged\n", done.unchanged.len());
    if done.dry_run {
        text += "nothing was done: this is what `xy reload` would do\n";
    }
    text
}

/// What became of the one server that was reloaded.
pub(crate) fn reloaded_one(done: &Reloaded) -> String {
    Outcome::default().say(&done.restarted, |name| format!("reloaded {name}")).lines
}

/// A server that is there now.
pub(crate) fn added(done: &Added) -> String {
    let pid = done.pid.map(|pid| format!(", pid {pid}")).unwrap_or_default();
    let state = paint(style_of(done.state), done.state);
    format!("added {}: {state}{pid}\n", done.name)
}

/// A server that is there no more.
pub(crate) fn removed(done: &Removed) -> Outcome {
    let logs = if done.purged.is_empty() { "" } else { " and its logs" };
    let mut outcome = Outcome::new(&[], &done.warnings)
        .say(std::slice::from_ref(&done.name), |name| format!("removed {name}{logs}"));
    if let Some(log) = &done.log_file {
        outcome.lines += &format!("its log stays: {}\n", safe_text(log));
    }
    outcome
}

#[cfg(test)]
mod tests {
    use xy_protocol::error::{CallError, ErrorKind};
    use xy_protocol::server::ServerState;

    use super::super::samples::name;
    use super::super::uncoloured;
    use super::*;

    #[test]
    fn each_server_has_its_line_and_each_failure_its_error() {
        let done = Started {
            started: vec![name("github")],
            already_running: vec![name("files")],
            when_needed: vec![name("own")],
            failed: vec![Failure {
                name: name("flaky"),
                error: CallError::new(ErrorKind::SpawnFailed, "server `flaky` did not start")
                    .cause("exited with code 1"),
            }],
            warnings: vec!["the wish was not written down".into()],
        };
        let outcome = started(&done, true);
        assert!(outcome.has_failed);
        insta::assert_snapshot!(uncoloured(&(outcome.lines + &outcome.troubles)));
    }

    #[test]
    fn a_request_that_did_not_wait_does_not_claim_that_it_is_done() {
        let stop = Stopped {
            stopped: vec![name("a")],
            not_running: vec![name("b")],
            ..Stopped::default()
        };
        assert_eq!(stopped(&stop, true).lines, "stopped a\nb was not running\n");
        assert_eq!(stopped(&stop, false).lines, "stopping a\nb was not running\n");
        let restart = Restarted { restarted: vec![name("a")], ..Restarted::default() };
        assert_eq!(restarted(&restart, false).lines, "restarting a\n");
        assert!(started(&Started::default(), true).is_empty());
    }

    #[test]
    fn one_that_waits_for_a_client_has_no_process() {
        let done = |state, pid| Added { name: name("a"), state, pid, problems: Vec::new() };
        let running = added(&done(ServerState::Running, Some(7)));
        assert_eq!(uncoloured(&running), "added a: running, pid 7\n");
        let waiting = added(&done(ServerState::Stopped, None));
        assert_eq!(uncoloured(&waiting), "added a: stopped\n");
        let gone = Removed {
            name: name("a"),
            warnings: vec!["it will be back".into()],
            log_file: Some("/x/a.log".into()),
            purged: Vec::new(),
        };
        let gone = removed(&gone);
        assert_eq!(gone.lines, "removed a\nits log stays: /x/a.log\n");
        assert_eq!(uncoloured(&gone.troubles), "warning: it will be back\n");
        let purged = vec!["/x/a.log".to_owned()];
        let gone = Removed { name: name("a"), warnings: Vec::new(), log_file: None, purged };
        assert_eq!(removed(&gone).lines, "removed a and its logs\n");
    }

    #[test]
    fn a_plan_marks_what_changes() {
        let plan = Reloaded {
            added: vec![name("new")],
            removed: vec![name("old")],
            changed: vec![name("moved"), name("tuned")],
            unchanged: vec![name("a"), name("b")],
            restarted: vec![name("moved")],
            updated: vec![name("tuned")],
            profiles: ["home", "old", "work"].map(str::to_owned).into(),
            profiles_added: vec!["home".to_owned()],
            profiles_removed: vec!["old".to_owned()],
            dry_run: true,
            ..Reloaded::default()
        };
        insta::assert_snapshot!(uncoloured(&reloaded(&plan)));
    }
}
