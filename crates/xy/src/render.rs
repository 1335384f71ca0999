//! Rendering of values as text. The text always has colours; `output.rs` removes them if needed.
//!
//! Text from servers must pass through [`safe_text`], as it could control the terminal.

#![expect(
    clippy::format_push_string,
    reason = "it is more readable for short texts; code for long output does not use it"
)]

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use xy_protocol::server::ServerState;
use xy_protocol::text::is_deceptive;
use xy_protocol::time::Timestamp;

pub(crate) mod called;
pub(crate) mod changes;
pub(crate) mod confine;
pub(crate) mod error;
pub(crate) mod info;
pub(crate) mod list;
pub(crate) mod log_line;
pub(crate) mod outcome;
pub(crate) mod self_test;
pub(crate) mod status;
pub(crate) mod tools;

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();
pub(crate) const RED: Style = AnsiColor::Red.on_default();
pub(crate) const RED_BOLD: Style = RED.bold();
pub(crate) const PLAIN: Style = Style::new();

/// Returns `text` in `style`.
pub(crate) fn paint(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Returns the colour of a state.
pub(crate) fn style_of(state: ServerState) -> Style {
    match state {
        ServerState::Running => GREEN,
        ServerState::Starting | ServerState::Restarting | ServerState::Stopping => YELLOW,
        ServerState::Failed => RED,
        ServerState::Stopped | ServerState::Asleep => DIM,
    }
}

/// Returns `text` with control characters escaped, except tabs.
pub(crate) fn safe_text(text: &str) -> Cow<'_, str> {
    let harmless = |byte: u8| byte == b'\t' || (b' '..0x7f).contains(&byte);
    if text.bytes().all(harmless) || !text.contains(must_be_escaped) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '\n' => safe.push_str("\\n"),
            '\r' => safe.push_str("\\r"),
            _ if !must_be_escaped(character) => safe.push(character),
            _ if u32::from(character) < 0x100 => {
                safe.push_str(&format!("\\x{:02x}", u32::from(character)));
            }
            _ => safe.extend(character.escape_unicode()),
        }
    }
    Cow::Owned(safe)
}

fn must_be_escaped(character: char) -> bool {
    is_deceptive(character) && character != '\t'
}

/// Returns a text of several lines, escaped and indented after the first line.
pub(crate) fn safe_lines(text: &str, indent: &str) -> String {
    let mut lines = text.trim_end().lines().map(safe_text);
    let mut safe = lines.next().unwrap_or_default().into_owned();
    for line in lines {
        safe.push('\n');
        if !line.is_empty() {
            safe += indent;
            safe += &line;
        }
    }
    safe
}

/// Formats a duration with its two largest units: `3d 4h`, `12m 5s`.
pub(crate) fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest}s"),
        (0, 0, _) => format!("{minutes}m {rest}s"),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// Formats the time between `moment` and `now`: `12m 5s ago`.
pub(crate) fn ago(moment: Timestamp, now: Timestamp) -> String {
    let passed = now.unix_millis().saturating_sub(moment.unix_millis());
    format!("{} ago", span(Duration::from_millis(passed)))
}

/// Formats the time of day of a moment, in UTC as everywhere in xy.
pub(crate) fn clock(moment: Timestamp) -> String {
    let text = moment.to_string();
    format!("{}Z", text.get(11..19).unwrap_or(&text))
}

/// Formats a count with its noun: `1 file`, `2 files`.
pub(crate) fn count(number: usize, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

/// Returns a text without colours, for snapshots.
#[cfg(test)]
pub(crate) fn uncoloured(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

#[cfg(test)]
pub(crate) mod samples;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(safe_text("plain\ttext é"), "plain\ttext é");
        assert_eq!(safe_text("a\x1b[31mb\x07\u{9b}1m"), "a\\x1b[31mb\\x07\\x9b1m");
        assert_eq!(safe_text("a\nb\r"), "a\\nb\\r");
        assert_eq!(safe_text("\u{202e}exe.txt"), "\\u{202e}exe.txt");
    }

    #[test]
    fn durations_show_two_largest_units() {
        let seconds = [0, 59, 60, 725, 3600, 7380, 86_400, 273_600];
        let formatted = seconds.map(|seconds| span(Duration::from_secs(seconds)));
        let expected = ["0s", "59s", "1m 0s", "12m 5s", "1h 0m", "2h 3m", "1d 0h", "3d 4h"];
        assert_eq!(formatted, expected);
    }

    #[test]
    fn clock_change_gives_no_negative_duration() {
        let (early, late) = (Timestamp::from_unix_millis(0), Timestamp::from_unix_millis(5000));
        assert_eq!(ago(late, early), "0s ago");
        assert_eq!(clock(late), "00:00:05Z");
    }

    proptest! {
        #[test]
        fn safe_text_has_no_control_characters(text in any::<String>()) {
            prop_assert!(!safe_text(&text).chars().any(must_be_escaped));
        }
    }
}
