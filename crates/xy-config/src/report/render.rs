//! Renders a problem: message, location, underlined text.

use anstyle::{AnsiColor, Style};
use unicode_width::UnicodeWidthStr;
use xy_protocol::control::Severity;

use super::{Paint, Problem, safe};
use crate::source::Location;

/// The replacement of a tab.
const TAB: &str = "    ";

pub(super) fn render(problem: &Problem, paint: Paint) -> String {
    let (word, accent) = match problem.severity {
        Severity::Error => ("error", AnsiColor::Red.on_default().bold()),
        Severity::Warning => ("warning", AnsiColor::Yellow.on_default().bold()),
    };
    let places = problem.place.iter().chain(problem.related.as_ref().map(|it| &it.place));
    let gutter = places.map(|place| place.line.to_string().len()).max().unwrap_or(1);
    let mut picture = Picture { paint, gutter, text: String::new() };

    picture.styled(accent, word);
    picture.styled(Style::new().bold(), &format!(": {}", safe(&problem.message)));
    picture.text.push('\n');
    let (beside, below) = match (&problem.label, &problem.suggestion) {
        (Some(label), suggestion) => (Some(label), suggestion.as_ref()),
        (None, suggestion) if problem.place.is_some() => (suggestion.as_ref(), None),
        (None, suggestion) => (None, suggestion.as_ref()),
    };
    match &problem.place {
        Some(place) => {
            let style = LocationStyle { arrow: "-->", mark: '^', style: accent, label: beside };
            picture.place(place, &style);
        }
        None => picture.arrow("-->", &problem.file),
    }
    if let Some(related) = &problem.related {
        let style =
            LocationStyle { arrow: ":::", mark: '-', style: frame(), label: Some(&related.label) };
        picture.place(&related.place, &style);
    }
    if let Some(hint) = below {
        picture.hint(hint);
    }
    picture.text
}

/// The style of one location.
struct LocationStyle<'a> {
    arrow: &'a str,
    mark: char,
    style: Style,
    label: Option<&'a String>,
}

struct Picture {
    paint: Paint,
    /// The width of the line number column.
    gutter: usize,
    text: String,
}

impl Picture {
    fn place(&mut self, place: &Location, style: &LocationStyle<'_>) {
        self.arrow(style.arrow, &format!("{}:{}:{}", place.file, place.line, place.column));
        self.bar("", "");
        let (before, marked, after) = parts(place);
        let line = format!("{before}{marked}{after}");
        self.bar(&place.line.to_string(), line.trim_end());
        let indent = " ".repeat(before.width());
        let underline = style.mark.to_string().repeat(marked.width().max(1));
        let label = style.label.map_or(String::new(), |label| format!(" {}", safe(label)));
        self.gutter_cell("");
        self.text.push(' ');
        self.text.push_str(&indent);
        self.styled(style.style, &format!("{underline}{label}"));
        self.text.push('\n');
    }

    /// Writes ` --> file:line:column`.
    fn arrow(&mut self, arrow: &str, target: &str) {
        self.text.push_str(&" ".repeat(self.gutter));
        self.styled(frame(), arrow);
        self.text.push(' ');
        self.text.push_str(&safe(target));
        self.text.push('\n');
    }

    /// Writes `9 | text`.
    fn bar(&mut self, number: &str, line: &str) {
        self.gutter_cell(number);
        if !line.is_empty() {
            self.text.push(' ');
            self.text.push_str(line);
        }
        self.text.push('\n');
    }

    fn gutter_cell(&mut self, number: &str) {
        let cell = format!("{number:>width$} |", width = self.gutter);
        self.styled(frame(), &cell);
    }

    /// Writes `  = hint: text`.
    fn hint(&mut self, hint: &str) {
        self.text.push_str(&" ".repeat(self.gutter + 1));
        self.styled(frame(), "=");
        self.text.push_str(" hint: ");
        self.text.push_str(&safe(hint));
        self.text.push('\n');
    }

    fn styled(&mut self, style: Style, text: &str) {
        match self.paint {
            Paint::Plain => self.text.push_str(text),
            Paint::Colour => {
                let painted = format!("{style}{text}{style:#}");
                self.text.push_str(&painted);
            }
        }
    }
}

fn frame() -> Style {
    AnsiColor::Blue.on_default().bold()
}

/// Returns the printable text before, in and after the location.
fn parts(place: &Location) -> (String, String, String) {
    let start = place.text_column as usize;
    let end = start + place.length as usize;
    let part = |from: usize, to: usize| {
        let part: String = place.line_text.chars().skip(from).take(to - from).collect();
        safe(&part.replace('\t', TAB))
    };
    (part(0, start), part(start, end), part(end, usize::MAX))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::source::{SourceFile, SourceSpan, Span};

    fn at(name: &str, text: &str, marked: &str) -> SourceSpan {
        let start = text.find(marked).unwrap();
        let file = SourceFile::new(Path::new(name), name, text);
        SourceSpan::new(&file, Span { start, end: start + marked.len() })
    }

    #[test]
    fn marked_text_is_underlined_after_any_text() {
        let lines = [
            "policy \"allways\"",
            "\tpolicy\t\"allways\"",
            "policy /* 日本語 */ \"allways\"",
            "policy /* e\u{301} 👍 */ \"allways\"",
            "policy /* \u{1b}[31m \u{202e} */ \"allways\"",
        ];
        let long = format!("policy /* {} */ \"allways\" // {}", "a".repeat(300), "b".repeat(300));
        let all = lines.iter().copied().chain([long.as_str()]).map(|line| {
            let problem = Problem::error(&at("a.kdl", line, "\"allways\""), "unknown word");
            problem.suggest("did you mean `always`?").render(Paint::Plain)
        });
        insta::assert_snapshot!(all.collect::<Vec<_>>().join("\n"));
    }

    #[test]
    fn two_locations_share_one_gutter() {
        let second = format!("{}port 1", "\n".repeat(99));
        let problem = Problem::error(&at("b.kdl", &second, "1"), "port 1 is used twice")
            .label("used again here")
            .related(&at("a.kdl", "port 1", "1"), "first used here")
            .suggest("give one of them another port");
        insta::assert_snapshot!(problem.to_string());
    }

    #[test]
    fn problem_without_a_location_names_its_file() {
        let problem = Problem::in_file("servers/a\u{1b}.kdl", "cannot be read").suggest("look");
        insta::assert_snapshot!(problem.to_string());
    }

    #[test]
    fn colours_are_optional() {
        let problem = Problem::warning(&at("a.kdl", "port 1", "1"), "odd").label("here");
        assert!(!problem.render(Paint::Plain).contains('\u{1b}'));
        insta::assert_snapshot!(problem.render(Paint::Colour).replace('\u{1b}', "␛"));
    }
}
