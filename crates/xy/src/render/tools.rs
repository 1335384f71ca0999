//! Rendering of `tools` and `search` as tables.

use serde::Deserialize;
use unicode_width::UnicodeWidthStr;
use xy_protocol::control::{SearchEntry, ToolEntry};

use super::list::{GAP, cut};
use super::{BOLD, DIM, PLAIN, paint, safe_text};

/// The parts of a tool definition that the table shows.
#[derive(Debug, Default, Deserialize)]
struct About {
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    description: Option<String>,
}

/// Renders the table, with each line cut to `width` columns if that is given.
pub(crate) fn render(tools: &[ToolEntry], width: Option<usize>) -> String {
    table(&tools.iter().map(row).collect::<Vec<_>>(), width)
}

/// Renders the table of search results, best first.
pub(crate) fn found(tools: &[SearchEntry], width: Option<usize>) -> String {
    let row = |tool: &SearchEntry| (plain(&tool.name), plain(first_line(&tool.description)));
    table(&tools.iter().map(row).collect::<Vec<_>>(), width)
}

fn table(rows: &[(String, String)], width: Option<usize>) -> String {
    let header = ("NAME".to_owned(), "DESCRIPTION".to_owned());
    let widest = rows.iter().map(|(name, _)| name.width()).max().unwrap_or_default();
    let widest = widest.max(header.0.width());
    let room = width.unwrap_or(usize::MAX);
    let mut table = line(&header, [BOLD, BOLD], widest, room);
    table.extend(rows.iter().map(|row| line(row, [PLAIN, DIM], widest, room)));
    table
}

fn row(entry: &ToolEntry) -> (String, String) {
    // A tool with an invalid definition is still listed, as it can be called.
    let About { title, description } = serde_json::from_str(entry.tool.get()).unwrap_or_default();
    let words = description.or(title).unwrap_or_default();
    (plain(&entry.name), plain(first_line(&words)))
}

fn first_line(words: &str) -> &str {
    words.lines().find(|line| !line.trim().is_empty()).unwrap_or_default()
}

fn plain(text: &str) -> String {
    safe_text(text.trim()).replace('\t', " ")
}

fn line(row: &(String, String), styles: [anstyle::Style; 2], widest: usize, room: usize) -> String {
    let (name, words) = row;
    let shown = cut(name, room);
    let mut line = paint(styles[0], &shown);
    let gap = widest - name.width() + GAP.width();
    let left = room.saturating_sub(shown.width() + gap);
    if !words.is_empty() && left > 0 {
        line.extend(std::iter::repeat_n(' ', gap));
        line += &paint(styles[1], cut(words, left));
    }
    line + "\n"
}

#[cfg(test)]
mod tests {
    use xy_protocol::control::JsonText;

    use super::super::samples::name;
    use super::super::uncoloured;
    use super::*;

    fn tools() -> Vec<ToolEntry> {
        let tool = |called: &str, text: &str| ToolEntry {
            name: called.into(),
            server: name("a"),
            tool: JsonText::read(text).unwrap(),
        };
        vec![
            tool("a__echo", r#"{"description":"\n Says back\twhat it is told.\nAnd more."}"#),
            tool("a__a_longer_name", r#"{"title":"A title","description":null}"#),
            tool("a__none", "{}"),
            tool("a__odd", r#"{"description":7}"#),
            tool("a__evil", r#"{"description":"\u001b[31mred 日本語日本語日本語"}"#),
        ]
    }

    #[test]
    fn tool_table_is_aligned_and_escaped() {
        insta::assert_snapshot!(uncoloured(&render(&tools(), None)), @r"
        NAME              DESCRIPTION
        a__echo           Says back what it is told.
        a__a_longer_name  A title
        a__none
        a__odd
        a__evil           \x1b[31mred 日本語日本語日本語
        ");
    }

    #[test]
    fn search_results_are_aligned() {
        let tool = |name: &str, description: &str| SearchEntry {
            name: name.into(),
            description: description.into(),
            ..SearchEntry::default()
        };
        let tools =
            [tool("a__long_name", "\n Says it.\nMore."), tool("b", "\u{1b}x"), tool("c", "")];
        insta::assert_snapshot!(uncoloured(&found(&tools, None)), @r"
        NAME          DESCRIPTION
        a__long_name  Says it.
        b             \x1bx
        c
        ");
    }

    #[test]
    fn tool_table_fits_any_width() {
        for width in 0..60 {
            let table = uncoloured(&render(&tools(), Some(width)));
            assert!(table.lines().all(|line| line.width() <= width), "{width}: {table}");
        }
    }
}
