//! `tools` as a table.

use serde::Deserialize;
use unicode_width::UnicodeWidthStr;
use xy_protocol::control::{FoundEntry, ToolEntry};

use super::list::{GAP, cut};
use super::{BOLD, DIM, PLAIN, paint, safe_text};

/// What a server says of a tool, as far as a table has room for it.
#[derive(Debug, Default, Deserialize)]
struct About {
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    description: Option<String>,
}

/// The table, each line cut to `width` columns if there is a terminal.
pub(crate) fn render(tools: &[ToolEntry], width: Option<usize>) -> String {
    table(&tools.iter().map(row).collect::<Vec<_>>(), width)
}

/// The table of tools that were found, best first.
pub(crate) fn found(tools: &[FoundEntry], width: Option<usize>) -> String {
    let row = |tool: &FoundEntry| (plain(&tool.name), plain(first_line(&tool.description)));
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
    // Whatever else a server has written there, its tool can be called.
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
    fn a_table_of_tools_lines_up_and_is_safe() {
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
    fn found_tools_line_up_as_all_tools_do() {
        let tool = |name: &str, description: &str| FoundEntry {
            name: name.into(),
            description: description.into(),
            ..FoundEntry::default()
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
    fn no_terminal_is_too_narrow_for_tools() {
        for width in 0..60 {
            let table = uncoloured(&render(&tools(), Some(width)));
            assert!(table.lines().all(|line| line.width() <= width), "{width}: {table}");
        }
    }
}
