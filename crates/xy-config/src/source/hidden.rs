//! What of a text nobody has to see: values of `headers`, and keys in a `url`.
//!
//! Found without the parser, as what it cannot read is reported too. Rather too much is
//! hidden than too little.

use std::ops::Range;

/// Around text of several lines.
const LONG_QUOTES: &str = "\"\"\"";

/// One piece of a line.
#[derive(Debug, PartialEq, Eq)]
enum Token {
    /// A name, a value, or whatever else stands between spaces.
    Word(Range<usize>),
    Open,
    Close,
    /// The end of a node.
    End,
}

/// The ranges of a text that are not to be shown, in order.
pub(super) fn hidden(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    // Only a few files have any, and the rest need not be looked at.
    if !text.contains("headers") && !text.contains("url") {
        return found;
    }
    let mut node: Vec<Range<usize>> = Vec::new();
    // How many blocks are open inside of `headers`, with its own.
    let mut depth = 0;
    for token in tokens(text) {
        match token {
            Token::Word(word) => {
                node.push(word);
                continue;
            }
            Token::Open if depth > 0 || is_named(text, &node, "headers") => {
                hide(text, &node, depth > 0, &mut found);
                depth += 1;
            }
            Token::Close => {
                hide(text, &node, depth > 0, &mut found);
                depth = usize::saturating_sub(depth, 1);
            }
            Token::Open | Token::End => hide(text, &node, depth > 0, &mut found),
        }
        node.clear();
    }
    hide(text, &node, depth > 0, &mut found);
    found
}

fn is_named(text: &str, node: &[Range<usize>], name: &str) -> bool {
    node.first().is_some_and(|word| text[word.clone()].trim_matches(['"', '#']) == name)
}

fn hide(text: &str, node: &[Range<usize>], is_header: bool, found: &mut Vec<Range<usize>>) {
    if is_header {
        // A value without a name stands where the name should.
        let names = usize::from(node.len() > 1);
        found.extend(node.iter().skip(names).cloned());
    } else if is_named(text, node, "headers") {
        found.extend(node.iter().skip(1).cloned());
    } else if is_named(text, node, "url") {
        found.extend(node.iter().skip(1).flat_map(|word| keys(text, word)));
    }
}

/// The query of a URL, and what stands before its host.
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

/// Cuts a text where KDL does, as far as it matters here. Comments are words.
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

/// The length of a word; never 0. One in quotes ends with them, or with the line.
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
        super::super::starred(text, hidden(text))
    }

    #[test]
    fn values_of_headers_and_keys_in_urls_are_hidden() {
        let table = [
            ("command \"npx\"; env { A \"b\" }", "command \"npx\"; env { A \"b\" }"),
            ("headers { A \"b c\"; D #\"e\"# }", "headers { A *; D * }"),
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
        fn no_text_is_too_odd(text in "(headers|url|[\"#{};/*\\\\ \n?@é=]){0,40}") {
            let mut last = 0;
            for range in hidden(&text) {
                prop_assert!(range.start >= last && text.get(range.clone()).is_some());
                last = range.end;
            }
        }
    }
}
