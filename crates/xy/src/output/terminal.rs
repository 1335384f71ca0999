//! Escaping of text for terminals.
//!
//! All output to a terminal passes through here, so no server, file or client can control the
//! terminal. Output to a pipe is not changed.

use std::borrow::Cow;
use std::fmt::Write as _;

use xy_protocol::text::is_deceptive;

/// Returns a text with control and invisible characters escaped, except newlines, tabs and
/// colours.
pub(crate) fn text(text: &str, is_terminal: bool) -> Cow<'_, str> {
    if !is_terminal || !text.contains(|it| is_deceptive(it) && !is_layout(it)) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let colour = colour_length(rest);
        if colour > 0 {
            safe.push_str(&rest[..colour]);
            rest = &rest[colour..];
            continue;
        }
        escape(character, &mut safe);
        rest = &rest[character.len_utf8()..];
    }
    Cow::Owned(safe)
}

fn is_layout(character: char) -> bool {
    matches!(character, '\n' | '\t')
}

fn escape(character: char, safe: &mut String) {
    if is_layout(character) || !is_deceptive(character) {
        safe.push(character);
    } else if u32::from(character) < 0x100 {
        let _ = write!(safe, "\\x{:02x}", u32::from(character)); // Cannot fail for a `String`.
    } else {
        safe.extend(character.escape_unicode());
    }
}

/// Returns the length of the colour code at the start of a text: `ESC [`, numbers, `m`.
fn colour_length(text: &str) -> usize {
    let Some(inside) = text.strip_prefix("\u{1b}[") else { return 0 };
    let numbers =
        inside.len() - inside.trim_start_matches(|it: char| it.is_ascii_digit() || it == ';').len();
    if inside[numbers..].starts_with('m') { 2 + numbers + 1 } else { 0 }
}

/// Returns equivalent JSON with control and invisible characters escaped.
pub(crate) fn json(json: &str, is_terminal: bool) -> Cow<'_, str> {
    // Outside of strings, JSON has no control characters but insignificant whitespace. A carriage
    // return could hide the start of a line.
    let is_odd = |it: char| it == '\r' || (is_deceptive(it) && !is_blank(it));
    if !is_terminal || !json.contains(is_odd) {
        return Cow::Borrowed(json);
    }
    let mut safe = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        if character == '\r' {
            safe.push(' ');
            continue;
        }
        if !is_deceptive(character) || is_blank(character) {
            safe.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _ = write!(safe, "\\u{unit:04x}"); // Cannot fail for a `String`.
        }
    }
    Cow::Owned(safe)
}

fn is_blank(character: char) -> bool {
    matches!(character, '\n' | '\t' | '\r')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn json_has_no_carriage_return() {
        assert_eq!(json("{\"a\":1}\r\n", true), "{\"a\":1} \n");
        assert_eq!(json("{\"a\":1}\r\n", false), "{\"a\":1}\r\n");
    }

    #[test]
    fn only_colours_reach_a_terminal() {
        let table = [
            ("plain\ttext é 日本\n", "plain\ttext é 日本\n"),
            ("\u{1b}[1;31mred\u{1b}[0m", "\u{1b}[1;31mred\u{1b}[0m"),
            ("\u{1b}[2J", "\\x1b[2J"),
            ("\u{1b}]0;owned\u{7}", "\\x1b]0;owned\\x07"),
            ("\u{1b}[31", "\\x1b[31"),
            ("a\rb\u{8}", "a\\x0db\\x08"),
            ("\u{9b}31m\u{7f}", "\\x9b31m\\x7f"),
            ("\u{202e}exe", "\\u{202e}exe"),
            ("a\u{200b}b\u{feff}", "a\\u{200b}b\\u{feff}"),
            ("\u{e0041}", "\\u{e0041}"),
        ];
        for (given, shown) in table {
            assert_eq!(text(given, true), shown, "{given:?}");
            assert_eq!(text(given, false), given);
        }
    }

    #[test]
    fn escaped_json_is_equivalent() {
        let table = [
            ("{\"a\": \"é 日本\"}\n", "{\"a\": \"é 日本\"}\n"),
            ("[\"\u{7f}\u{9b}31m\"]", "[\"\\u007f\\u009b31m\"]"),
            ("[\"\u{202e}exe\u{200b}\"]", "[\"\\u202eexe\\u200b\"]"),
            ("[\"\u{e0041}\"]", "[\"\\udb40\\udc41\"]"),
        ];
        for (given, shown) in table {
            assert_eq!(json(given, true), shown, "{given:?}");
            assert_eq!(json(given, false), given);
        }
    }

    proptest! {
        #[test]
        fn deceptive_characters_are_escaped(given in any::<String>()) {
            let quoted = serde_json::to_string(&given).unwrap();
            let shown = json(&quoted, true);
            prop_assert!(!shown.chars().any(is_deceptive));
            prop_assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), given.clone());
            let shown = text(&given, true);
            let plain = anstream::adapter::strip_str(&shown).to_string();
            prop_assert!(!plain.chars().any(|it| is_deceptive(it) && !is_layout(it)));
        }
    }
}
