//! Rendering of the results of `start`, `stop`, `restart`, `reload`, `add` and `remove`.

use xy_protocol::control::{
    AddResult, Failure, ReloadResult, RemoveResult, RestartResult, StartResult, StopResult,
};
use xy_protocol::server::ServerName;

use super::{DIM, GREEN, RED, YELLOW, error, paint, safe_text, style_of};

/// The rendered result of a verb on servers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RenderedOutcome {
    /// One line per server, for stdout.
    pub(crate) lines: String,
    /// Errors and warnings, for stderr.
    pub(crate) messages: String,
    /// True if the request failed for a server.
    pub(crate) has_failed: bool,
}

impl RenderedOutcome {
    fn new(failed: &[Failure], warnings: &[String]) -> Self {
        let failures = failed.iter().map(|failure| error::render(&failure.error));
        let warnings = warnings.iter().map(|warning| error::warning(warning));
        Self {
            lines: String::new(),
            messages: failures.chain(warnings).collect(),
            has_failed: !failed.is_empty(),
        }
    }

    fn add_lines(mut self, names: &[ServerName], words: impl Fn(&ServerName) -> String) -> Self {
        for name in names {
            self.lines += &format!("{}\n", words(name));
        }
        self
    }

    /// Returns true if there were no servers to act on.
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.messages.is_empty()
    }
}

pub(crate) fn started(done: &StartResult, wait: bool) -> RenderedOutcome {
    let verb = if wait { "started" } else { "starting" };
    RenderedOutcome::new(&done.failed, &done.warnings)
        .add_lines(&done.started, |name| format!("{verb} {name}"))
        .add_lines(&done.already_running, |name| format!("{name} was already running"))
        .add_lines(&done.when_needed, |name| format!("{name} starts with the next client"))
}

pub(crate) fn stopped(done: &StopResult, wait: bool) -> RenderedOutcome {
    let verb = if wait { "stopped" } else { "stopping" };
    RenderedOutcome::new(&done.failed, &done.warnings)
        .add_lines(&done.stopped, |name| format!("{verb} {name}"))
        .add_lines(&done.not_running, |name| format!("{name} was not running"))
}

pub(crate) fn restarted(done: &RestartResult, wait: bool) -> RenderedOutcome {
    let verb = if wait { "restarted" } else { "restarting" };
    RenderedOutcome::new(&done.failed, &done.warnings)
        .add_lines(&done.restarted, |name| format!("{verb} {name}"))
}

/// Renders the changes of a reload, one marked line per changed server.
pub(crate) fn reloaded(done: &ReloadResult) -> String {
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
        text += "dry run: nothing was changed\n";
    }
    text
}

/// Renders the result of reloading one server.
pub(crate) fn reloaded_one(done: &ReloadResult) -> String {
    RenderedOutcome::default().add_lines(&done.restarted, |name| format!("reloaded {name}")).lines
}

/// Renders an added server.
pub(crate) fn added(done: &AddResult) -> String {
    let pid = done.pid.map(|pid| format!(", pid {pid}")).unwrap_or_default();
    let state = paint(style_of(done.state), done.state);
    format!("added {}: {state}{pid}\n", done.name)
}

/// Renders the removal of a server.
pub(crate) fn removed(done: &RemoveResult) -> RenderedOutcome {
    let logs = if done.purged.is_empty() { "" } else { " and its logs" };
    let mut outcome = RenderedOutcome::new(&[], &done.warnings)
        .add_lines(std::slice::from_ref(&done.name), |name| format!("removed {name}{logs}"));
    if let Some(log) = &done.log_file {
        outcome.lines += &format!("its log is kept: {}\n", safe_text(log));
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
    fn servers_have_lines_and_failures_errors() {
        let done = StartResult {
            started: vec![name("github")],
            already_running: vec![name("files")],
            when_needed: vec![name("own")],
            failed: vec![Failure {
                name: name("flaky"),
                error: CallError::new(ErrorKind::SpawnFailed, "server `flaky` did not start")
                    .cause("exited with code 1"),
            }],
            warnings: vec!["the desired state could not be stored".into()],
        };
        let outcome = started(&done, true);
        assert!(outcome.has_failed);
        insta::assert_snapshot!(uncoloured(&(outcome.lines + &outcome.messages)));
    }

    #[test]
    fn unawaited_requests_are_shown_as_in_progress() {
        let stop = StopResult {
            stopped: vec![name("a")],
            not_running: vec![name("b")],
            ..StopResult::default()
        };
        assert_eq!(stopped(&stop, true).lines, "stopped a\nb was not running\n");
        assert_eq!(stopped(&stop, false).lines, "stopping a\nb was not running\n");
        let restart = RestartResult { restarted: vec![name("a")], ..RestartResult::default() };
        assert_eq!(restarted(&restart, false).lines, "restarting a\n");
        assert!(started(&StartResult::default(), true).is_empty());
    }

    #[test]
    fn added_and_removed_servers_are_shown() {
        let done = |state, pid| AddResult { name: name("a"), state, pid, problems: Vec::new() };
        let running = added(&done(ServerState::Running, Some(7)));
        assert_eq!(uncoloured(&running), "added a: running, pid 7\n");
        let waiting = added(&done(ServerState::Stopped, None));
        assert_eq!(uncoloured(&waiting), "added a: stopped\n");
        let gone = RemoveResult {
            name: name("a"),
            warnings: vec!["it will start again".into()],
            log_file: Some("/x/a.log".into()),
            purged: Vec::new(),
        };
        let gone = removed(&gone);
        assert_eq!(gone.lines, "removed a\nits log is kept: /x/a.log\n");
        assert_eq!(uncoloured(&gone.messages), "warning: it will start again\n");
        let purged = vec!["/x/a.log".to_owned()];
        let gone = RemoveResult { name: name("a"), warnings: Vec::new(), log_file: None, purged };
        assert_eq!(removed(&gone).lines, "removed a and its logs\n");
    }

    #[test]
    fn reload_marks_changes() {
        let plan = ReloadResult {
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
            ..ReloadResult::default()
        };
        insta::assert_snapshot!(uncoloured(&reloaded(&plan)));
    }
}
