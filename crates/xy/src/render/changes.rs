//! Rendering of `events`: one line per state change.

use xy_protocol::control::{Event, EventKind};

use super::{DIM, YELLOW, clock, paint, safe_text, style_of};

/// Renders an event as a line, with the name padded to `name_width` columns.
pub(crate) fn render(event: &Event, name_width: usize) -> String {
    let label = match event.kind {
        EventKind::LastAttempt => Some((YELLOW, "last attempt")),
        EventKind::Asked => Some((DIM, "asked")),
        EventKind::Changed | EventKind::Other => None,
    };
    if let Some((style, label)) = label {
        return format!(
            "{}  {:<name_width$}  {}  {}\n",
            paint(DIM, clock(event.ts)),
            instance(event),
            paint(style, format_args!("{label:>23}")),
            safe_text(&event.reason),
        );
    }
    format!(
        "{}  {:<name_width$}  {:>10} → {}  {}\n",
        paint(DIM, clock(event.ts)),
        instance(event),
        event.from,
        paint(style_of(event.state), format_args!("{:<10}", event.state)),
        safe_text(&event.reason),
    )
}

/// Returns the server's name, with the client or era of the instance.
fn instance(event: &Event) -> String {
    let client = event.client.map(|client| format!("@{client}")).unwrap_or_default();
    let era = event.era.map(|era| format!("@{era}")).unwrap_or_default();
    format!("{}{client}{era}", event.name)
}

/// Renders the separator between events of different days or different daemons.
pub(crate) fn between(before: Option<&Event>, event: &Event) -> String {
    let day = |event: &Event| event.ts.to_string().chars().take_while(|c| *c != 'T').collect();
    let today: String = day(event);
    let mut lines = Vec::new();
    if before.is_some_and(|before| before.boot != event.boot) {
        lines.push("— daemon restarted —".to_owned());
    }
    if before.is_none_or(|before| day(before) != today) {
        lines.push(today);
    }
    let dim = |line: &String| format!("{}\n", paint(DIM, line));
    lines.iter().map(dim).collect()
}

/// Renders a notice that a slow reader missed some items.
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
    fn change_shows_time_states_and_reason() {
        let event = Event {
            subscription_id: 1,
            name: samples::name("flaky"),
            client: None,
            era: None,
            from: ServerState::Running,
            state: ServerState::Restarting,
            reason: "exited with code 1".into(),
            pid: None,
            restart_count: 2,
            ts: samples::at(0),
            kind: EventKind::Changed,
            seq: 3,
            boot: "b".into(),
        };
        let line = uncoloured(&render(&event, 8));
        let expected = "22:13:20Z  flaky        running → restarting  exited with code 1\n";
        assert_eq!(line, expected);
        let last = Event { kind: EventKind::LastAttempt, ..event.clone() };
        let expected = "22:13:20Z  flaky                last attempt  exited with code 1\n";
        assert_eq!(uncoloured(&render(&last, 8)), expected);
        let later = Event { ts: samples::at(0), ..event.clone() };
        assert_eq!(uncoloured(&between(None, &event)), "2023-11-14\n");
        assert_eq!(between(Some(&event), &later), "");
        let other = Event { boot: "c".into(), ts: samples::at(86_400), ..event.clone() };
        let separator = uncoloured(&between(Some(&other), &event));
        assert_eq!(separator, "— daemon restarted —\n2023-11-14\n");
        let for_one = Event { client: Some(3), ..event };
        assert!(uncoloured(&render(&for_one, 8)).contains(" flaky@3 "));
        assert_eq!(uncoloured(&skipped(1, "line")), "… 1 line skipped\n");
        assert_eq!(uncoloured(&skipped(312, "line")), "… 312 lines skipped\n");
    }
}
