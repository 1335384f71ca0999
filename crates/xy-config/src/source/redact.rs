//! Finds the parts of a KDL text that reports must not show: values of `headers`, keys in a `url`,
//! variables with secret names, and arguments that look like secrets.
//!
//! Works without the parser, since texts that it cannot read are reported, too.

use std::ops::Range;

use xy_protocol::mask;

use crate::references::{is_header_reference, is_reference};

/// The quotes of a multi-line string.
const LONG_QUOTES: &str = "\"\"\"";

/// Maximum length of a word that is analysed. Longer words are hidden.
const MAX_WORD_BYTES: usize = 4 * 1024;

/// Marks around a value that are not part of it, including those of JSON lists.
const MARKS: [char; 6] = ['"', '\'', '#', '[', ']', ','];

/// A token of a line.
#[derive(Debug, PartialEq, Eq)]
enum Token {
    /// A name, a value, or any other text between spaces.
    Word(Range<usize>),
    Open,
    Close,
    /// The end of a node.
    End,
}

/// The kind of a block, which decides what its nodes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Headers,
    Env,
    Fields,
}

/// Returns the ranges of a text that must not be shown, in order.
pub(super) fn secret_ranges(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut node: Vec<Range<usize>> = Vec::new();
    let mut blocks: Vec<Block> = Vec::new();
    for token in tokens(text) {
        let block = blocks.last().copied().unwrap_or(Block::Fields);
        match token {
            Token::Word(word) => {
                node.push(word);
                continue;
            }
            Token::Open => {
                hide(text, &node, block, &mut found);
                blocks.push(match block {
                    Block::Headers => Block::Headers,
                    _ if is_named(text, &node, "headers") => Block::Headers,
                    _ if is_named(text, &node, "env") => Block::Env,
                    _ => Block::Fields,
                });
            }
            Token::Close => {
                hide(text, &node, block, &mut found);
                blocks.pop();
            }
            Token::End => hide(text, &node, block, &mut found),
        }
        node.clear();
    }
    hide(text, &node, blocks.last().copied().unwrap_or(Block::Fields), &mut found);
    found
}

fn is_named(text: &str, node: &[Range<usize>], name: &str) -> bool {
    let marks = ['"', '#', ':', '='];
    node.first().is_some_and(|word| text[word.clone()].trim_matches(marks) == name)
}

fn hide(text: &str, node: &[Range<usize>], block: Block, found: &mut Vec<Range<usize>>) {
    let Some(name) = node.first() else { return };
    if block == Block::Headers {
        // A value without a name takes the place of the name.
        let names = usize::from(node.len() > 1);
        let is_shown = |it: &&Range<usize>| is_header_reference(&text[inside(text, it)]);
        found.extend(node.iter().skip(names).filter(|it| !is_shown(it)).cloned());
    } else if is_named(text, node, "headers") {
        found.extend(node.iter().skip(1).cloned());
    } else if is_named(text, node, "url") {
        found.extend(node.iter().skip(1).flat_map(|word| keys(text, word)));
    } else if node.len() > 1 && is_secret(&text[name.clone()], block) {
        let is_shown = |it: &&Range<usize>| {
            is_mark(&text[(*it).clone()]) || is_reference(&text[inside(text, it)])
        };
        found.extend(node.iter().skip(1).filter(|it| !is_shown(it)).cloned());
    } else if let [_, value] = node
        && block == Block::Fields
        && is_named(text, node, "command")
    {
        found.extend(secret_of_line(text, &inside(text, value)));
    } else {
        let words: Vec<Range<usize>> = node.iter().map(|word| inside(text, word)).collect();
        found.extend(secrets(text, &words));
    }
}

/// Returns true if the values of a node are secret. xy's own fields are lower case, such as
/// `share-key`.
fn is_secret(name: &str, block: Block) -> bool {
    let may_be_variable = block == Block::Env || name.contains(|it: char| it.is_ascii_uppercase());
    may_be_variable && mask::is_secret_name(name)
}

fn is_mark(word: &str) -> bool {
    matches!(word, "=" | ":" | "," | "[" | "]")
}

/// Returns the range of a word without its quotes and other marks.
fn inside(text: &str, word: &Range<usize>) -> Range<usize> {
    let start = text[word.clone()].trim_start_matches(MARKS);
    let start = word.end - start.len();
    start..start + text[start..word.end].trim_end_matches(MARKS).len()
}

/// Returns the ranges of arguments that look like secrets.
pub(super) fn secrets(text: &str, words: &[Range<usize>]) -> Vec<Range<usize>> {
    let short = |word: &Range<usize>| word.len() <= MAX_WORD_BYTES;
    let shown = words.iter().map(|word| if short(word) { &text[word.clone()] } else { "" });
    let masked = mask::args(shown).args;
    let hidden = words.iter().zip(&masked).filter_map(|(word, masked)| {
        let original = &text[word.clone()];
        if !short(word) {
            return Some(word.clone());
        }
        (original != masked).then(|| difference(original, masked, word.start))
    });
    hidden.filter(|it| !it.is_empty()).collect()
}

/// Returns the range of a command line that looks like a secret. Unlike an argument, it goes on
/// after the value of a variable.
fn secret_of_line(text: &str, line: &Range<usize>) -> Option<Range<usize>> {
    if line.len() > MAX_WORD_BYTES {
        return Some(line.clone());
    }
    let original = &text[line.clone()];
    let hidden = difference(original, &mask::text(original), line.start);
    (!hidden.is_empty()).then_some(hidden)
}

/// Returns the range of a word that was masked.
fn difference(original: &str, masked: &str, start: usize) -> Range<usize> {
    let same = |pair: &(char, char)| pair.0 == pair.1;
    let before: usize =
        original.chars().zip(masked.chars()).take_while(same).map(|(it, _)| it.len_utf8()).sum();
    let pairs = original[before..].chars().rev().zip(masked.chars().rev());
    let after: usize = pairs.take_while(same).map(|(it, _)| it.len_utf8()).sum();
    start + before..start + original.len() - after
}

/// Returns the ranges of a URL's query and of its credentials.
fn keys(text: &str, word: &Range<usize>) -> Vec<Range<usize>> {
    let marks = ['"', '#'];
    let inside = text[word.clone()].trim_start_matches(marks);
    let start = word.end - inside.len();
    let url = inside.trim_end_matches(marks);
    let query = url.find(['?', '#']);
    let end = query.unwrap_or(url.len());
    let authority = url[..end].find("//").map_or(0, |at| at + 2);
    let before_host = url[authority..end].rfind('@').map(|at| authority..authority + at);
    let found = before_host.into_iter().chain(query.map(|at| at + 1..url.len()));
    let found = found.filter(|it| it.start < it.end);
    found.map(|it| start + it.start..start + it.end).collect()
}

/// Splits a text into tokens like KDL, as far as it matters here. Comments are words.
fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let (length, token) = match first {
            '{' => (1, Some(Token::Open)),
            '}' => (1, Some(Token::Close)),
            ';' | '\n' => (1, Some(Token::End)),
            _ if first.is_whitespace() => (first.len_utf8(), None),
            _ => {
                let length = word_length(rest);
                (length, Some(Token::Word(at..at + length)))
            }
        };
        tokens.extend(token);
        at += length;
    }
    tokens
}

/// Returns the length of a word; never 0. A quoted word ends with its quote, or with the line.
fn word_length(text: &str) -> usize {
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return text.find("*/").map_or(text.len(), |end| end + 2);
    }
    if let Some(inside) = text.trim_start_matches('#').strip_prefix(LONG_QUOTES) {
        let before = text.len() - inside.len();
        let inside = inside.find(LONG_QUOTES).map_or(inside.len(), |end| end + LONG_QUOTES.len());
        return before + inside;
    }
    let mut end = 0;
    let mut quotes = false;
    let mut escaped = false;
    for character in text.chars() {
        let is_end = match character {
            '\n' => true,
            '{' | '}' | ';' => !quotes,
            _ => !quotes && character.is_whitespace(),
        };
        if is_end {
            break;
        }
        if character == '"' && !escaped {
            quotes = !quotes;
        }
        escaped = character == '\\' && !escaped;
        end += character.len_utf8();
    }
    end.max(text.chars().next().map_or(1, char::len_utf8))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> String {
        super::super::starred(text, secret_ranges(text))
    }

    #[test]
    fn secret_values_are_hidden() {
        let table = [
            ("command \"npx\"; env { A \"b\" }", "command \"npx\"; env { A \"b\" }"),
            ("env { API_KEY \"b\"; B 1 }", "env { API_KEY *; B 1 }"),
            ("env { \"API_KEY\": \"b\" }", "env { \"API_KEY\": * }"),
            ("env { API_KEY \"${API_KEY}\" }", "env { API_KEY \"${API_KEY}\" }"),
            ("env { API_KEY=b }", "env { API_KEY=* }"),
            ("env { A \"ghp_abcdefghijkl\" }", "env { A \"*\" }"),
            ("API_KEY = \"b\"", "API_KEY = *"),
            ("command \"API_KEY=b c d\"", "command \"API_KEY=* c d\""),
            ("command \"API_KEY='b c' d\"", "command \"API_KEY=* d\""),
            ("command \"npx --token bb c\"", "command \"npx --token * c\""),
            ("args \"--token=b c\"", "args \"--token=*\""),
            ("share-key \"x\"", "share-key \"x\""),
            ("args \"--token\" \"b c\" \"d\"", "args \"--token\" \"*\" \"d\""),
            ("args \"--token=b\" \"d\"", "args \"--token=*\" \"d\""),
            ("args [\"--token\", \"b\", \"d\"]", "args [\"--token\", \"*\", \"d\"]"),
            ("args \"https://a:b@c/d\"", "args \"https://*@c/d\""),
            ("headers { A \"b c\"; D #\"e\"# }", "headers { A *; D * }"),
            ("headers { A \"${B}\" }", "headers { A \"${B}\" }"),
            ("headers { A \"Bearer ${B}\" }", "headers { A \"Bearer ${B}\" }"),
            ("headers { A \"bearer $B\" }", "headers { A \"bearer $B\" }"),
            ("headers { A \"Basic {env:B}\" }", "headers { A \"Basic {env:B}\" }"),
            ("headers { A \"Bearer ${B}c\" }", "headers { A * }"),
            ("headers { A \"Bearer c ${B}\" }", "headers { A * }"),
            ("headers { A \"s3cret ${B}\" }", "headers { A * }"),
            ("headers { A \"${B}\" \"c\" }", "headers { A \"${B}\" * }"),
            ("headers { \"Bearer ${B}\" }", "headers { \"Bearer ${B}\" }"),
            ("headers A=\"${B}\"", "headers *"),
            ("headers {\n  A \"b\n  C d e\n}\nport 1", "headers {\n  A *\n  C * *\n}\nport 1"),
            ("headers {\n  \"Bearer x\"\n}", "headers {\n  *\n}"),
            ("headers A=\"b\"", "headers *"),
            ("\"headers\" { A \"b\" } // x", "\"headers\" { A * } // x"),
            ("headers { A { B \"c\" } }", "headers { * { B * } }"),
            ("headers { // A \"old\"\n}", "headers { *\n}"),
            ("headers { A \"b", "headers { A *"),
            ("headers { A \"\"\"\n  b c\n  \"\"\"\n}", "headers { A *\n}"),
            ("headers { A \"b\\\" } c\" }", "headers { A * }"),
            ("url \"https://a/b?key=1\"", "url \"https://a/b?*\""),
            ("url \"https://me:pass@a/b\"; x", "url \"https://*@a/b\"; x"),
            ("url #\"https://a/?k\"# y", "url #\"https://a/?*\"# y"),
            ("url https://a/?k", "url https://a/?*"),
            ("url \"https://a/b\"", "url \"https://a/b\""),
        ];
        for (text, expected) in table {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_accepted(text in "(headers|url|env|args|--token|[\"#{};/*\\\\ \n?@é=]){0,40}") {
            let mut last = 0;
            for range in secret_ranges(&text) {
                prop_assert!(range.start >= last && text.get(range.clone()).is_some());
                last = range.end;
            }
        }
    }
}
