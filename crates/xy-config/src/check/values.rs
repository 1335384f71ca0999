//! Parses values: text, words, numbers, durations, sizes.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::read::{Reader, Spanned};
use super::words::{Word, listed, nearest};
use crate::raw::{RawNode, RawValue, Value};
use crate::report::{Problem, quote};
use crate::settings::MAX_DURATION;

/// A field's rule for a duration of zero.
#[derive(Debug, Clone, Copy)]
pub(super) enum Zero {
    Allowed,
    /// Not allowed, for this reason.
    Forbidden(&'static str),
}

impl Reader<'_> {
    /// Reads a node with one text.
    pub(super) fn text(&mut self, node: &RawNode, word: Word) -> Option<Spanned<String>> {
        let value = self.value(node, word)?;
        self.as_text(value, word.name)
    }

    /// Reads a value that must be text; `field` names it in the error.
    pub(super) fn as_text(&mut self, value: &RawValue, field: &str) -> Option<Spanned<String>> {
        let Value::Text(text) = &value.value else {
            let problem = self.wrong_type(value, field, "text in quotes");
            let written = self.file.slice(value.span).trim_start_matches('#').to_owned();
            self.report(problem.suggest(format!("put it in quotes: `\"{written}\"`")));
            return None;
        };
        if text.contains('\0') {
            let problem = self.error(value.span, format!("{} contains a NUL byte", quote(field)));
            self.report(problem.suggest("remove it: it cannot be passed to a program"));
            return None;
        }
        Some(Spanned { value: text.clone(), at: self.at(value.span) })
    }

    /// Reads a node with any number of texts.
    pub(super) fn texts(&mut self, node: &RawNode, word: Word) -> Vec<Spanned<String>> {
        let values = self.values(node);
        values.into_iter().filter_map(|value| self.as_text(value, word.name)).collect()
    }

    /// Reads a node with one text that is not empty.
    pub(super) fn filled_text(&mut self, node: &RawNode, word: Word) -> Option<Spanned<String>> {
        let text = self.text(node, word)?;
        if text.value.is_empty() {
            let problem = Problem::error(&text.at, format!("`{}` is empty", word.name));
            self.report(problem.suggest(format!("for example `{}`", word.example)));
            return None;
        }
        Some(text)
    }

    /// Reads a node with one of a few words; `what` names them in the error.
    pub(super) fn choice<T: Copy>(
        &mut self,
        node: &RawNode,
        word: Word,
        what: &str,
        choices: &[(&'static str, T)],
    ) -> Option<Spanned<T>> {
        let text = self.text(node, word)?;
        let names = choices.iter().map(|(name, _)| *name);
        if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == text.value) {
            return Some(text.map(|_| *choice));
        }
        let suggestion = match nearest(&text.value, names.clone()) {
            Some(name) => format!("did you mean `{name}`?"),
            None => format!("the known ones are {}", listed(names)),
        };
        let problem = Problem::error(&text.at, format!("unknown {what} {}", quote(&text.value)));
        self.report(problem.suggest(suggestion));
        None
    }

    /// Reads a node with `#true` or `#false`.
    pub(super) fn flag(&mut self, node: &RawNode, word: Word) -> Option<Spanned<bool>> {
        let value = self.value(node, word)?;
        if let Value::Flag(flag) = value.value {
            return Some(Spanned { value: flag, at: self.at(value.span) });
        }
        let meant = match &value.value {
            Value::Text(text) if matches!(text.as_str(), "yes" | "on" | "true") => Some("#true"),
            Value::Text(text) if matches!(text.as_str(), "no" | "off" | "false") => Some("#false"),
            _ => None,
        };
        let problem = self.wrong_type(value, word.name, "`#true` or `#false`");
        self.report(problem.suggest_some(meant.map(|flag| format!("did you mean `{flag}`?"))));
        None
    }

    /// Reads a node with one whole number.
    pub(super) fn count(
        &mut self,
        node: &RawNode,
        word: Word,
        range: RangeInclusive<u32>,
    ) -> Option<Spanned<u32>> {
        let value = self.value(node, word)?;
        let Value::Whole(number) = value.value else {
            let meant = match &value.value {
                Value::Text(text) => text.trim().parse::<u32>().ok(),
                _ => None,
            };
            let problem = self.wrong_type(value, word.name, "a whole number");
            let suggestion = meant.map(|number| format!("write it without quotes: `{number}`"));
            self.report(problem.suggest_some(suggestion));
            return None;
        };
        if let Some(count) = u32::try_from(number).ok().filter(|count| range.contains(count)) {
            return Some(Spanned { value: count, at: self.at(value.span) });
        }
        let allowed = match (range.start(), range.end()) {
            (least, &u32::MAX) => format!("use a number, at least {least}"),
            (least, most) => format!("use a number from {least} to {most}"),
        };
        let message = format!("`{}` cannot be {number}", word.name);
        self.report(self.error(value.span, message).suggest(allowed));
        None
    }

    /// Reads a port.
    pub(super) fn port(&mut self, node: &RawNode, word: Word) -> Option<Spanned<u16>> {
        let port = self.count(node, word, 1..=u32::from(u16::MAX))?;
        Some(port.map(|number| u16::try_from(number).unwrap_or(u16::MAX)))
    }

    /// Reads a node with one duration.
    pub(super) fn duration(
        &mut self,
        node: &RawNode,
        word: Word,
        zero: Zero,
    ) -> Option<Spanned<Duration>> {
        let value = self.value(node, word)?;
        let text = match &value.value {
            Value::Text(text) => text,
            Value::Whole(number) if *number >= 0 => {
                let problem = self.error(value.span, format!("`{}` needs a unit", word.name));
                self.report(problem.suggest(format!("did you mean `\"{number}s\"`?")));
                return None;
            }
            _ => {
                let problem = self.wrong_type(value, word.name, "a duration in quotes");
                self.report(problem.suggest(format!("for example `{}`", word.example)));
                return None;
            }
        };
        let problem = match humantime::parse_duration(text) {
            Err(_) => self
                .error(value.span, format!("{} is not a duration", quote(text)))
                .suggest("write it like `\"10s\"`, `\"1m 30s\"` or `\"500ms\"`"),
            Ok(duration) if duration > MAX_DURATION => self
                .error(value.span, format!("{} is too long", quote(text)))
                .suggest("the maximum is a year, `\"365d\"`"),
            Ok(duration) => match zero {
                Zero::Forbidden(why) if duration.is_zero() => {
                    self.error(value.span, format!("`{}` cannot be zero", word.name)).suggest(why)
                }
                _ => return Some(Spanned { value: duration, at: self.at(value.span) }),
            },
        };
        self.report(problem);
        None
    }

    /// Reads a node with one size in bytes.
    pub(super) fn size(&mut self, node: &RawNode, word: Word) -> Option<Spanned<u64>> {
        let value = self.value(node, word)?;
        let bytes = match &value.value {
            Value::Text(text) => parse_size(text),
            _ => None,
        };
        if let Some(bytes) = bytes {
            return Some(Spanned { value: bytes, at: self.at(value.span) });
        }
        let written = self.file.slice(value.span).trim_matches('"').to_owned();
        let problem = self.error(value.span, format!("{} is not a size", quote(&written)));
        self.report(problem.suggest("write it like `\"64MiB\"`, `\"1GiB\"` or `\"500MB\"`"));
        None
    }

    /// Reads a node with one URL path.
    pub(super) fn url_path(&mut self, node: &RawNode, word: Word) -> Option<Spanned<String>> {
        let path = self.text(node, word)?;
        let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#');
        let problem = if !path.value.starts_with('/') {
            Problem::error(&path.at, format!("`{}` must start with `/`", word.name))
                .suggest(format!("did you mean {}?", quote(&format!("\"/{}\"", path.value))))
        } else if path.value.contains(odd) {
            let message = format!("`{}` must be only the path of a URL", word.name);
            Problem::error(&path.at, message).suggest("remove spaces, `?` and `#`")
        } else {
            return Some(path);
        };
        self.report(problem);
        None
    }

    pub(super) fn wrong_type(&self, value: &RawValue, field: &str, wanted: &str) -> Problem {
        let given = match &value.value {
            Value::Text(_) => "text".to_owned(),
            Value::Whole(_) => "a number".to_owned(),
            Value::Fraction(_) => "a fraction".to_owned(),
            Value::Flag(flag) => format!("`#{flag}`"),
            Value::Null => "`#null`".to_owned(),
        };
        self.error(value.span, format!("{} must be {wanted}, not {given}", quote(field)))
    }
}

/// Parses a size such as `64MiB`, `500MB` or `1000B`.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let scale: u64 = match unit.trim_start().to_ascii_lowercase().as_str() {
        "b" => 1,
        "kb" => 1000,
        "mb" => 1000 * 1000,
        "gb" => 1000 * 1000 * 1000,
        "tb" => 1000 * 1000 * 1000 * 1000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(scale).filter(|&bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_with_their_units() {
        let table = [
            ("64MiB", Some(64 << 20)),
            ("1GiB", Some(1 << 30)),
            ("500MB", Some(500_000_000)),
            ("10 kib", Some(10 << 10)),
            ("1000B", Some(1000)),
            ("0MiB", None),
            ("64", None),
            ("MiB", None),
            ("-1MiB", None),
            ("1.5GiB", None),
            ("99999999999TiB", None),
            ("", None),
            ("1é", None),
        ];
        for (text, bytes) in table {
            assert_eq!(parse_size(text), bytes, "{text}");
        }
    }
}
