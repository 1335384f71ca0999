//! Makes untrusted text safe for a terminal.

use std::fmt::Write;

use xy_protocol::text::is_deceptive;

/// Maximum number of characters that a message quotes of a name or value.
const QUOTED_CHARS: usize = 60;

/// Replaces characters that a terminal would interpret.
pub(crate) fn safe(text: &str) -> String {
    text.chars().map(safe_char).collect()
}

/// Returns the text in backticks: escaped, safe to print, and cut if it is long.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::from("`");
    for character in text.chars().take(QUOTED_CHARS) {
        if safe_char(character) == character {
            quoted.push(character);
        } else {
            // Writing to a `String` cannot fail.
            let _ = write!(quoted, "{}", character.escape_default());
        }
    }
    if text.chars().nth(QUOTED_CHARS).is_some() {
        quoted.push('…');
    }
    quoted.push('`');
    quoted
}

/// Returns a visible replacement for a control character. Callers expand tabs first.
fn safe_char(character: char) -> char {
    match character {
        '\t' => ' ',
        '\u{0}'..='\u{1f}' => char::from_u32(0x2400 + u32::from(character)).unwrap_or('\u{fffd}'),
        '\u{7f}' => '\u{2421}',
        other if is_deceptive(other) => '\u{fffd}',
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(safe("a\u{1b}[31mb\u{9b}c\u{202e}d\u{7f}\té日"), "a␛[31mb�c�d␡ é日");
    }

    #[test]
    fn quoted_text_is_cut_and_escaped() {
        assert_eq!(quote("a\u{1b}b\n"), "`a\\u{1b}b\\n`");
        assert_eq!(quote(&"x".repeat(70)), format!("`{}…`", "x".repeat(60)));
    }
}
