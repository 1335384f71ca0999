//! Rendering of log lines. It must be fast, as a follower may show millions of lines.

use std::borrow::Cow;

use serde::Deserialize;
use xy_protocol::server::Stream;

use super::{DIM, safe_text};

/// The params of a `log` notification, borrowed where possible.
#[derive(Debug, Deserialize)]
pub(crate) struct Record<'a> {
    stream: Stream,
    #[serde(borrow)]
    line: Cow<'a, str>,
    #[serde(borrow)]
    ts: Option<Cow<'a, str>>,
    #[serde(default)]
    continued: bool,
}

/// The style of log lines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LineStyle {
    /// Prints the line unchanged and without a prefix.
    pub(crate) raw: bool,
    /// Prints the time before each line.
    pub(crate) timestamps: bool,
    /// Prints the prefix in colour.
    pub(crate) colour: bool,
}

/// The placeholder for an unknown time, as wide as a timestamp.
const NO_TIME: &str = "-                       ";

impl LineStyle {
    /// Appends `record` to `text` as a line.
    pub(crate) fn push(self, record: &Record<'_>, text: &mut String) {
        if self.timestamps || !self.raw {
            self.push_prefix(record, text);
        }
        if self.raw {
            text.push_str(&record.line);
        } else {
            text.push_str(&safe_text(&record.line));
        }
        text.push('\n');
    }

    fn push_prefix(self, record: &Record<'_>, text: &mut String) {
        if self.colour {
            text.push_str(&DIM.render().to_string());
        }
        if self.timestamps {
            text.push_str(&record.ts.as_deref().map_or(NO_TIME.into(), safe_text));
            text.push(' ');
        }
        if !self.raw {
            text.push_str(match (record.continued, record.stream) {
                (true, _) => "    … ", // The continuation of a line that exceeded one record.
                (false, Stream::Stdout) => "[out] ",
                (false, Stream::Stderr) => "[err] ",
            });
        }
        if self.colour {
            text.push_str(&DIM.render_reset().to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: LineStyle = LineStyle { raw: false, timestamps: false, colour: false };

    fn shown(style: LineStyle, params: &str) -> String {
        let mut text = String::new();
        style.push(&serde_json::from_str(params).unwrap(), &mut text);
        text
    }

    #[test]
    fn line_shows_its_stream_and_is_escaped() {
        let out = r#"{"subscription_id":1,"name":"a","stream":"stdout","line":"hi","ts":null}"#;
        assert_eq!(shown(PLAIN, out), "[out] hi\n");
        let err =
            r#"{"stream":"stderr","line":"a\u001b[2Jb \"c\"","ts":"2023-11-14T22:13:20.123Z"}"#;
        assert_eq!(shown(PLAIN, err), "[err] a\\x1b[2Jb \"c\"\n");
        let long = r#"{"stream":"stderr","line":"rest","ts":null,"continued":true}"#;
        assert_eq!(shown(PLAIN, long), "    … rest\n");
    }

    #[test]
    fn raw_lines_are_unchanged() {
        let line = r#"{"stream":"stderr","line":"a\u001b[2Jb","ts":null}"#;
        assert_eq!(shown(LineStyle { raw: true, ..PLAIN }, line), "a\x1b[2Jb\n");
    }

    #[test]
    fn unknown_times_keep_lines_aligned() {
        let timed = LineStyle { timestamps: true, ..PLAIN };
        let with = r#"{"stream":"stdout","line":"x","ts":"2023-11-14T22:13:20.123Z"}"#;
        let without = r#"{"stream":"stdout","line":"x","ts":null}"#;
        assert_eq!(shown(timed, with), "2023-11-14T22:13:20.123Z [out] x\n");
        assert_eq!(shown(timed, without), "-                        [out] x\n");
    }

    #[test]
    fn only_the_prefix_is_dim() {
        let line = r#"{"stream":"stdout","line":"x","ts":null}"#;
        let styled = shown(LineStyle { colour: true, ..PLAIN }, line);
        assert_eq!(styled, "\x1b[2m[out] \x1b[0mx\n");
    }
}
