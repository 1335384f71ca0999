//! Writes metrics in the Prometheus text format. The counters themselves are elsewhere.

use std::fmt::{Display, Write};

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A value that only increases.
    Counter,
    /// A value that increases and decreases.
    Gauge,
}

/// Begins a metric family. Its samples follow.
pub fn family(out: &mut String, name: &str, kind: Kind, help: &str) {
    let kind = match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
    };
    append(out, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
}

/// Appends one sample of a family, with its labels.
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

/// Appends a family with a single sample.
pub fn single(out: &mut String, name: &str, kind: Kind, help: &str, value: impl Display) {
    family(out, name, kind, help);
    sample(out, name, &[], value);
}

fn append(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text); // Writing to a `String` cannot fail.
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
    fn metric_family_has_help_type_and_samples() {
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
    fn label_value_is_escaped() {
        let mut out = String::new();
        sample(&mut out, "n", &[("l", "a\"b\\c\nd")], 1);
        assert_eq!(out, "n{l=\"a\\\"b\\\\c\\nd\"} 1\n");
    }
}
