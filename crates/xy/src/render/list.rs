//! Rendering of `list` as a table.

use std::time::Duration;

use anstyle::Style;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};
use xy_protocol::server::{Health, ServerEntry, ServerState, Step};

use super::{BOLD, DIM, PLAIN, paint, safe_text, span, style_of};

const HEADER: [&str; COLUMNS] = ["NAME", "STATE", "PID", "PORT", "UPTIME", "RESTARTS", "NOTE"];
const COLUMNS: usize = 7;

/// The space between two columns.
pub(super) const GAP: &str = "  ";

type Row = [(Style, String); COLUMNS];

/// Renders the table, with each line cut to `width` columns if that is given.
pub(crate) fn render(servers: &[ServerEntry], width: Option<usize>) -> String {
    let mut rows = vec![HEADER.map(|title| (BOLD, title.to_owned()))];
    rows.extend(servers.iter().map(row));
    if rows[1..].iter().all(|row| row[COLUMNS - 1].1.is_empty()) {
        rows[0][COLUMNS - 1].1.clear();
    }
    let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].1.width()).max().unwrap_or_default()
    });
    rows.iter().map(|row| line(row, &widths, width.unwrap_or(usize::MAX))).collect()
}

fn row(server: &ServerEntry) -> Row {
    let or_dash = |value: Option<String>| match value {
        Some(value) => (PLAIN, value),
        None => (DIM, "-".to_owned()),
    };
    let uptime = server.uptime_secs.map(|seconds| span(Duration::from_secs(seconds)));
    [
        (PLAIN, server.name.to_string()),
        (style_of(server.state), server.state.to_string()),
        or_dash(server.pid.map(|pid| pid.to_string())),
        or_dash(server.port.map(|port| port.to_string())),
        or_dash(uptime),
        (PLAIN, server.restart_count.to_string()),
        (PLAIN, note(server)),
    ]
}

/// Returns the reason of the state, the next step, and problems, if there are any.
fn note(server: &ServerEntry) -> String {
    let mut notes = Vec::new();
    let next = next_step(server);
    match (server.state, &server.reason) {
        (ServerState::Running, _) | (_, None) => notes.extend(next),
        (_, Some(reason)) => notes.push(match next {
            Some(next) => format!("{next}: {reason}"),
            None => reason.clone(),
        }),
    }
    match server.health {
        Health::Unhealthy => notes.push("unhealthy".to_owned()),
        Health::Unreachable => notes.push("unreachable".to_owned()),
        Health::Unknown | Health::Healthy => {}
    }
    notes.extend(server.url.clone());
    notes.extend(server.not_restarted.clone());
    notes.extend(server.warnings.iter().map(|warning| format!("warning: {warning}")));
    safe_text(&notes.join("; ")).replace('\t', " ")
}

/// Formats the next step, such as `restarting in 4s`. Seconds are rounded up.
pub(crate) fn next_step(server: &ServerEntry) -> Option<String> {
    let next = server.next.as_ref()?;
    let left = span(Duration::from_secs(next.in_ms.div_ceil(1000)));
    Some(match next.what {
        Step::Restart if server.health == Health::Unreachable => format!("trying again in {left}"),
        Step::Restart => format!("restarting in {left}"),
        Step::GiveUpWaiting => format!("starting (timeout in {}s)", next.in_ms.div_ceil(1000)),
        Step::Kill => format!("killing in {left}"),
    })
}

fn line(row: &Row, widths: &[usize; COLUMNS], mut room: usize) -> String {
    let mut line = String::new();
    for (column, (style, text)) in row.iter().enumerate() {
        let rest_is_empty = row[column + 1..].iter().all(|(_, text)| text.is_empty());
        let padding = if rest_is_empty { 0 } else { widths[column] - text.width() + GAP.len() };
        let shown = cut(text, room);
        room -= shown.width();
        if !shown.is_empty() {
            line += &paint(*style, shown);
        }
        let padding = padding.min(room);
        room -= padding;
        line.extend(std::iter::repeat_n(' ', padding));
        if rest_is_empty {
            break;
        }
    }
    line.truncate(line.trim_end().len());
    line + "\n"
}

/// Returns the first `room` columns of `text`, ending in `…` if text was cut.
pub(super) fn cut(text: &str, room: usize) -> String {
    if text.width() <= room {
        return text.to_owned();
    }
    let mut shown = String::new();
    let mut left = room.saturating_sub(1);
    for character in text.chars() {
        let width = character.width().unwrap_or_default();
        if width > left {
            break;
        }
        left -= width;
        shown.push(character);
    }
    if room > 0 {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::super::{samples, uncoloured};
    use super::*;

    #[test]
    fn table_is_aligned() {
        insta::assert_snapshot!(uncoloured(&render(&samples::entries(), None)));
    }

    #[test]
    fn table_is_cut_to_width() {
        let table = uncoloured(&render(&samples::entries(), Some(72)));
        assert!(table.lines().all(|line| line.width() <= 72), "{table}");
        insta::assert_snapshot!(table);
    }

    #[test]
    fn table_fits_any_width() {
        for width in 0..80 {
            let table = uncoloured(&render(&samples::entries(), Some(width)));
            assert!(table.lines().all(|line| line.width() <= width), "{width}: {table}");
        }
    }

    #[test]
    fn states_are_coloured() {
        let table = render(&samples::entries()[..1], None);
        insta::assert_snapshot!(table.replace('\x1b', "^"));
    }

    #[test]
    fn wide_characters_are_cut_by_width() {
        assert_eq!(cut("日本語", 6), "日本語");
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(cut("日本語", 0), "");
    }
}
