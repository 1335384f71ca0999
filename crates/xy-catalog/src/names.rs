//! Exposed names: the names of tools, prompts and resources at combined endpoints. Pure.
//!
//! An exposed name depends only on the server's name and the original name, so it is the same on
//! every machine and after every restart.

use std::borrow::Cow;

use xy_mcp::kind::Kind;

mod nearest;

pub use nearest::nearest;

/// Separates the server's name from the original name. Server names do not contain it.
pub(crate) const SEPARATOR: &str = "__";

/// Maximum length of an exposed name. Clients add a prefix, and some allow 60 characters in all.
pub const MAX_NAME: usize = xy_config::profile::NAME_BUDGET;

/// The scheme of exposed URIs.
const SCHEME: &str = "xy://";

/// Number of hexadecimal digits in the digest of a changed name.
const DIGEST_DIGITS: usize = 8;

/// Returns the exposed name of `name` on `server`.
///
/// Characters that some model APIs reject are replaced, and the length is limited. A name changed
/// for this ends in a digest of the original.
pub fn exposed(server: &str, name: &str) -> String {
    exposed_within(server, name, MAX_NAME)
}

/// Returns the exposed name with at most `longest` characters. The server's name takes up to 32 of
/// them, separator and digest 11.
pub fn exposed_within(server: &str, name: &str, longest: usize) -> String {
    let plain: String = name.chars().map(|it| if is_plain(it) { it } else { '_' }).collect();
    let whole = format!("{server}{SEPARATOR}{plain}");
    if plain == name && whole.len() <= longest && !name.is_empty() {
        return whole;
    }
    let kept = longest.saturating_sub(DIGEST_DIGITS + 1).max(server.len() + SEPARATOR.len());
    let head = whole.get(..kept).unwrap_or(&whole); // All of it is ASCII.
    format!("{head}_{:0DIGEST_DIGITS$x}", digest(server, name))
}

/// Splits an exposed name into the server and the rest; `None` for a tool of xy itself.
pub fn split_exposed(name: &str) -> Option<(&str, &str)> {
    name.split_once(SEPARATOR)
}

/// Returns the exposed form of an item's name or URI.
pub(crate) fn exposed_item(kind: Kind, server: &str, name: &str) -> String {
    if kind.is_by_uri() { exposed_uri(server, name) } else { exposed(server, name) }
}

/// Returns the exposed form of a URI or template.
pub fn exposed_uri(server: &str, uri: &str) -> String {
    format!("{SCHEME}{server}/{uri}")
}

/// Splits an exposed URI into the server and the original URI; `None` for a plain one.
pub fn split_exposed_uri(uri: &str) -> Option<(&str, &str)> {
    uri.strip_prefix(SCHEME)?.split_once('/')
}

/// Suggests names as a question: `a`, `b` or `c`.
pub fn did_you_mean(names: &[&str]) -> Option<String> {
    let (last, others) = names.split_last()?;
    let listed: Vec<String> = others.iter().map(|name| format!("`{name}`")).collect();
    if listed.is_empty() {
        return Some(format!("did you mean `{last}`?"));
    }
    Some(format!("did you mean {} or `{last}`?", listed.join(", ")))
}

/// Returns true if `uri` may result from `template`: its literal parts occur in order.
pub(crate) fn matches_template(template: &str, uri: &str) -> bool {
    let mut rest = uri;
    let mut pieces = literal_pieces(template).into_iter().peekable();
    let mut is_first = true;
    while let Some(piece) = pieces.next() {
        let is_last = pieces.peek().is_none();
        let found = match (is_first, is_last) {
            (true, true) => (rest == piece).then_some(rest.len()),
            (true, false) => rest.starts_with(piece.as_ref()).then_some(piece.len()),
            (false, true) => rest.ends_with(piece.as_ref()).then_some(rest.len()),
            (false, false) => rest.find(piece.as_ref()).map(|at| at + piece.len()),
        };
        let Some(used) = found else { return false };
        rest = &rest[used..];
        is_first = false;
    }
    true
}

/// Returns the literal parts of a template: one more than there are expressions.
fn literal_pieces(template: &str) -> Vec<Cow<'_, str>> {
    let mut pieces = Vec::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        pieces.push(Cow::Borrowed(before));
        rest = after.split_once('}').map_or("", |(_, rest)| rest);
    }
    pieces.push(Cow::Borrowed(rest));
    pieces
}

fn is_plain(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '-')
}

/// Computes FNV-1a, which is stable across machines and versions, unlike the standard library's
/// hashers.
fn digest(server: &str, name: &str) -> u32 {
    let bytes = server.bytes().chain([0]).chain(name.bytes());
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn exposed_name_starts_with_the_server_name() {
        let table = [
            ("a", "echo", "a__echo"),
            ("a", "with__two", "a__with__two"),
            ("my-server", "get_user", "my-server__get_user"),
            ("a", "__", "a____"),
            ("a", "_x", "a___x"),
        ];
        for (server, name, expected) in table {
            assert_eq!(exposed(server, name), expected);
            assert_eq!(split_exposed(expected), Some((server, name)), "{expected}");
        }
        assert_eq!(split_exposed("list_servers"), None);
    }

    #[test]
    fn unsupported_names_are_replaced_and_unique() {
        let names = ["with.dot", "with dot", "über", "日本語", "", "🦀", &"x".repeat(120)];
        let mut seen = std::collections::BTreeSet::new();
        for name in names {
            let shown = exposed("server", name);
            assert!(shown.starts_with("server__") && shown.len() <= MAX_NAME, "{shown}");
            assert!(shown.chars().all(is_plain), "{shown}");
            assert_eq!(shown, exposed("server", name));
            assert!(seen.insert(shown.clone()), "{shown} is there twice");
        }
        assert_eq!(exposed("server", "with.dot"), "server__with_dot_b6dab81b");
    }

    #[test]
    fn long_server_name_leaves_room_for_a_unique_suffix() {
        let server = "s".repeat(32);
        let one = exposed(&server, "a_tool_with_a_long_name");
        let other = exposed(&server, "a_tool_with_a_long_name_too");
        assert_eq!((one.len(), other.len()), (MAX_NAME, MAX_NAME));
        assert_ne!(one, other);
        assert_eq!(split_exposed(&one).unwrap().0, server);
    }

    proptest! {
        #[test]
        fn exposed_names_are_plain_and_within_the_budget(
            server in "[a-zA-Z0-9-]([a-zA-Z0-9-]|_[a-zA-Z0-9-]){0,15}",
            name in ".{0,150}|[a-zA-Z0-9_-]{0,150}",
            other in ".{0,150}|[a-zA-Z0-9_-]{0,150}",
            budget in 44..=128_usize,
        ) {
            prop_assert!(xy_protocol::server::ServerName::new(&server).is_ok());
            let shown = exposed_within(&server, &name, budget);
            prop_assert!(shown.len() <= budget && shown.chars().all(is_plain), "{}", shown);
            prop_assert_eq!(&shown, &exposed_within(&server, &name, budget));
            prop_assert_eq!(split_exposed(&shown).map(|it| it.0), Some(server.as_str()));
            // A name is unchanged if and only if it fits.
            let plain = format!("{server}{SEPARATOR}{name}");
            let may_stay = plain.len() <= budget && !name.is_empty() && name.chars().all(is_plain);
            prop_assert_eq!(shown == plain, may_stay);
            if other != name {
                // Collisions exist, but are improbable.
                prop_assert_ne!(shown, exposed_within(&server, &other, budget));
            }
        }
    }

    #[test]
    fn suggestion_joins_several_names() {
        let table: [(&[&str], Option<&str>); 4] = [
            (&[], None),
            (&["a"], Some("did you mean `a`?")),
            (&["a", "b"], Some("did you mean `a` or `b`?")),
            (&["a", "b", "c"], Some("did you mean `a`, `b` or `c`?")),
        ];
        for (names, question) in table {
            assert_eq!(did_you_mean(names).as_deref(), question);
        }
    }

    #[test]
    fn exposed_uris_read_back() {
        for uri in ["file:///a/b", "test://x", "", "no scheme", "xy://b/c", "a?b#c/é"] {
            let shown = exposed_uri("s", uri);
            assert_eq!(split_exposed_uri(&shown), Some(("s", uri)));
        }
        assert_eq!(split_exposed_uri("file:///a"), None);
        assert_eq!(split_exposed_uri("xy://s"), None);
    }

    #[test]
    fn template_matches_its_expansions() {
        let table = [
            ("test://item/{id}", "test://item/7", true),
            ("test://item/{id}", "test://other/7", false),
            ("test://{a}/x/{b}", "test://1/x/2", true),
            ("test://{a}/x/{b}", "test://1/y/2", false),
            ("test://{a}.txt", "test://b.txt", true),
            ("test://{a}.txt", "test://b.md", false),
            ("plain", "plain", true),
            ("plain", "plainer", false),
            ("{+path}", "anything", true),
            ("broken{", "broken", true),
            ("", "", true),
        ];
        for (template, uri, expected) in table {
            assert_eq!(matches_template(template, uri), expected, "{template} {uri}");
        }
    }
}
