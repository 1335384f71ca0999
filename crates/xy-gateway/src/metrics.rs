//! Numbers as Prometheus reads them: plain text, a family after the other.
//!
//! Only writes; whoever counts something owns its counter.

use std::fmt::{Display, Write};

/// What kind of number a family holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only ever goes up.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// Begins a family: what it is called, what it says, what kind it is. Its samples follow.
pub fn family(out: &mut String, name: &str, kind: Kind, help: &str) {
    let kind = match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
    };
    append(out, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
}

/// One number of a family, with what tells it from the others.
pub fn sample(out: &mut String, name: &str, labels: &[(&str, &str)], value: impl Display) {
    out.push_str(name);
    for (at, (label, text)) in labels.iter().enumerate() {
        out.push(if at == 0 { '{' } else { ',' });
        out.push_str(label);
        out.push_str("=\"");
        append_escaped(out, text);
        out.push('"');
    }
    if !labels.is_empty() {
        out.push('}');
    }
    append(out, format_args!(" {value}\n"));
}

/// A family that has one number only.
pub fn single(out: &mut String, name: &str, kind: Kind, help: &str, value: impl Display) {
    family(out, name, kind, help);
    sample(out, name, &[], value);
}

fn append(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text); // A `String` takes whatever it is given.
}

fn append_escaped(out: &mut String, text: &str) {
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_says_what_it_is_and_then_its_numbers() {
        let mut out = String::new();
        family(&mut out, "xy_calls_total", Kind::Counter, "calls, by outcome");
        sample(&mut out, "xy_calls_total", &[("server", "a"), ("outcome", "ok")], 7);
        single(&mut out, "xy_up", Kind::Gauge, "whether it is up", 1);
        assert_eq!(
            out,
            "# HELP xy_calls_total calls, by outcome\n# TYPE xy_calls_total counter\n\
             xy_calls_total{server=\"a\",outcome=\"ok\"} 7\n\
             # HELP xy_up whether it is up\n# TYPE xy_up gauge\nxy_up 1\n"
        );
    }

    #[test]
    fn a_label_cannot_break_out_of_its_quotes() {
        let mut out = String::new();
        sample(&mut out, "n", &[("l", "a\"b\\c\nd")], 1);
        assert_eq!(out, "n{l=\"a\\\"b\\\\c\\nd\"} 1\n");
    }
}
