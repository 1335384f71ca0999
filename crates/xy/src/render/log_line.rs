//! One line of a server's log, quickly: a follower may have to show millions.

use std::borrow::Cow;

use serde::Deserialize;
use xy_protocol::server::Stream;

use super::{DIM, safe_text};

/// The params of a `log` notification, borrowed from it where that is possible.
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

/// How lines are shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LineStyle {
    /// The line alone, as it came.
    pub(crate) raw: bool,
    /// The time before each line.
    pub(crate) timestamps: bool,
    /// Whether a terminal shows it.
    pub(crate) colour: bool,
}

/// As long as a timestamp, for lines whose time was not kept.
const NO_TIME: &str = "-                       ";

impl LineStyle {
    /// Writes `record` as a line at the end of `text`.
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
                (true, _) => "    … ", // The rest of a line that was too long for one record.
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
    fn a_line_has_its_stream_before_it_and_cannot_steer_the_terminal() {
        let out = r#"{"subscription_id":1,"name":"a","stream":"stdout","line":"hi","ts":null}"#;
        assert_eq!(shown(PLAIN, out), "[out] hi\n");
        let err =
            r#"{"stream":"stderr","line":"a\u001b[2Jb \"c\"","ts":"2023-11-14T22:13:20.123Z"}"#;
        assert_eq!(shown(PLAIN, err), "[err] a\\x1b[2Jb \"c\"\n");
        let long = r#"{"stream":"stderr","line":"rest","ts":null,"continued":true}"#;
        assert_eq!(shown(PLAIN, long), "    … rest\n");
    }

    #[test]
    fn raw_lines_are_as_they_came() {
        let line = r#"{"stream":"stderr","line":"a\u001b[2Jb","ts":null}"#;
        assert_eq!(shown(LineStyle { raw: true, ..PLAIN }, line), "a\x1b[2Jb\n");
    }

    #[test]
    fn times_line_up_even_where_they_were_not_kept() {
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
