//! `events`: one line for each change of state.

use xy_protocol::control::Event;

use super::{DIM, clock, paint, safe_text, style_of};

/// The line, the name padded to `name_width` columns.
pub(crate) fn render(event: &Event, name_width: usize) -> String {
    format!(
        "{}  {:<name_width$}  {:>10} → {}  {}\n",
        paint(DIM, clock(event.ts)),
        instance(event),
        event.from,
        paint(style_of(event.state), format_args!("{:<10}", event.state)),
        safe_text(&event.reason),
    )
}

/// The server, and the client if it is for one alone.
fn instance(event: &Event) -> String {
    let client = event.client.map(|client| format!("@{client}")).unwrap_or_default();
    format!("{}{client}", event.name)
}

/// What a reader that was too slow is told.
pub(crate) fn skipped(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{}\n", paint(DIM, format_args!("… {count} {what}{plural} skipped")))
}

#[cfg(test)]
mod tests {
    use xy_protocol::server::ServerState;

    use super::super::{samples, uncoloured};
    use super::*;

    #[test]
    fn a_change_has_its_time_its_states_and_its_reason() {
        let event = Event {
            subscription_id: 1,
            name: samples::name("flaky"),
            client: None,
            from: ServerState::Running,
            state: ServerState::Restarting,
            reason: "exited with code 1".into(),
            pid: None,
            restart_count: 2,
            ts: samples::at(0),
        };
        let line = uncoloured(&render(&event, 8));
        let expected = "22:13:20Z  flaky        running → restarting  exited with code 1\n";
        assert_eq!(line, expected);
        let for_one = Event { client: Some(3), ..event };
        assert!(uncoloured(&render(&for_one, 8)).contains(" flaky@3 "));
        assert_eq!(uncoloured(&skipped(1, "line")), "… 1 line skipped\n");
        assert_eq!(uncoloured(&skipped(312, "line")), "… 312 lines skipped\n");
    }
}
