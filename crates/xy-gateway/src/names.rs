//! A name in and out: how a server's tools, prompts and resources are called when all
//! servers stand behind one door.
//!
//! A name outside is a function of the server's name and the name inside alone, so it is
//! the same on every machine and after every restart. Pure.

use std::borrow::Cow;

mod nearest;

pub(crate) use nearest::nearest;

/// Between a server's name and a name of its own. No server's name has it in it.
pub(crate) const SEPARATOR: &str = "__";

/// The longest name outside: clients put words of their own before it, and some allow 60
/// characters in all.
pub(crate) const LONGEST: usize = xy_config::profile::NAME_BUDGET;

/// What resources of a server are found under.
const SCHEME: &str = "xy://";

/// How many hexadecimal digits tell two names apart whose beginnings are the same.
const DIGITS: usize = 8;

/// The name outside of what `server` calls `name`.
///
/// What some model's interface would refuse is replaced, and the whole is kept short; a
/// name that had to be changed ends in digits that only it has.
pub(crate) fn outside(server: &str, name: &str) -> String {
    outside_within(server, name, LONGEST)
}

/// The same in at most `longest` characters, of which a server's name takes up to 32 and what
/// tells names apart 11.
pub(crate) fn outside_within(server: &str, name: &str, longest: usize) -> String {
    let plain: String = name.chars().map(|it| if is_plain(it) { it } else { '_' }).collect();
    let whole = format!("{server}{SEPARATOR}{plain}");
    if plain == name && whole.len() <= longest && !name.is_empty() {
        return whole;
    }
    let kept = longest.saturating_sub(DIGITS + 1).max(server.len() + SEPARATOR.len());
    let head = whole.get(..kept).unwrap_or(&whole); // All of it is ASCII.
    format!("{head}_{:0DIGITS$x}", digest(server, name))
}

/// The server that a name outside belongs to, and what is left of it; `None` for a name of
/// xy's own.
pub(crate) fn inside(name: &str) -> Option<(&str, &str)> {
    name.split_once(SEPARATOR)
}

/// The URI outside of what `server` calls `uri`; of a template too.
pub(crate) fn uri_outside(server: &str, uri: &str) -> String {
    format!("{SCHEME}{server}/{uri}")
}

/// The server that a URI outside belongs to, and its URI there; `None` for a plain one.
pub(crate) fn uri_inside(uri: &str) -> Option<(&str, &str)> {
    uri.strip_prefix(SCHEME)?.split_once('/')
}

/// Names as a question: `a`, `b` or `c`.
pub(crate) fn did_you_mean(names: &[&str]) -> Option<String> {
    let (last, others) = names.split_last()?;
    let listed: Vec<String> = others.iter().map(|name| format!("`{name}`")).collect();
    if listed.is_empty() {
        return Some(format!("did you mean `{last}`?"));
    }
    Some(format!("did you mean {} or `{last}`?", listed.join(", ")))
}

/// A text as JSON.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::String(text.to_owned()).to_string()
}

/// Whether `uri` may be made from `template`: the text outside of `{…}` is there, in order.
pub(crate) fn fits(template: &str, uri: &str) -> bool {
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

/// The text between the expressions of a template: always one piece more than there are
/// expressions.
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

/// FNV-1a: the same on every machine and in every version, which a hasher of the standard
/// library does not promise.
fn digest(server: &str, name: &str) -> u32 {
    let bytes = server.bytes().chain([0]).chain(name.bytes());
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_stand_behind_their_servers() {
        let table = [
            ("a", "echo", "a__echo"),
            ("a", "with__two", "a__with__two"),
            ("my-server", "get_user", "my-server__get_user"),
            ("a", "__", "a____"),
            ("a", "_x", "a___x"),
        ];
        for (server, name, expected) in table {
            assert_eq!(outside(server, name), expected);
            assert_eq!(inside(expected), Some((server, name)), "{expected}");
        }
        assert_eq!(inside("list_servers"), None);
    }

    #[test]
    fn what_models_would_refuse_is_replaced_and_told_apart() {
        let names = ["with.dot", "with dot", "über", "日本語", "", "🦀", &"x".repeat(120)];
        let mut seen = std::collections::BTreeSet::new();
        for name in names {
            let shown = outside("server", name);
            assert!(shown.starts_with("server__") && shown.len() <= LONGEST, "{shown}");
            assert!(shown.chars().all(is_plain), "{shown}");
            assert_eq!(shown, outside("server", name));
            assert!(seen.insert(shown.clone()), "{shown} is there twice");
        }
        assert_eq!(outside("server", "with.dot"), "server__with_dot_b6dab81b");
    }

    #[test]
    fn a_long_server_leaves_room_for_what_tells_names_apart() {
        let server = "s".repeat(32);
        let one = outside(&server, "a_tool_with_a_long_name");
        let other = outside(&server, "a_tool_with_a_long_name_too");
        assert_eq!((one.len(), other.len()), (LONGEST, LONGEST));
        assert_ne!(one, other);
        assert_eq!(inside(&one).unwrap().0, server);
    }

    proptest! {
        #[test]
        fn every_name_goes_out_within_its_budget_in_characters_that_all_take(
            server in "[a-zA-Z0-9-]([a-zA-Z0-9-]|_[a-zA-Z0-9-]){0,15}",
            name in ".{0,150}|[a-zA-Z0-9_-]{0,150}",
            other in ".{0,150}|[a-zA-Z0-9_-]{0,150}",
            budget in 44..=128_usize,
        ) {
            prop_assert!(xy_protocol::server::ServerName::new(&server).is_ok());
            let shown = outside_within(&server, &name, budget);
            prop_assert!(shown.len() <= budget && shown.chars().all(is_plain), "{}", shown);
            prop_assert_eq!(&shown, &outside_within(&server, &name, budget));
            prop_assert_eq!(inside(&shown).map(|it| it.0), Some(server.as_str()));
            // What is not changed says what it is; what is changed is not that.
            let plain = format!("{server}{SEPARATOR}{name}");
            let may_stay = plain.len() <= budget && !name.is_empty() && name.chars().all(is_plain);
            prop_assert_eq!(shown == plain, may_stay);
            if other != name {
                // Of all pairs some must be alike, but nobody meets one by chance.
                prop_assert_ne!(shown, outside_within(&server, &other, budget));
            }
        }
    }

    #[test]
    fn one_is_asked_for_or_some() {
        let table: [(&[&str], Option<&str>); 4] = [
            (&[], None),
            (&["a"], Some("did you mean `a`?")),
            (&["a", "b"], Some("did you mean `a` or `b`?")),
            (&["a", "b", "c"], Some("did you mean `a`, `b` or `c`?")),
        ];
        for (names, asked) in table {
            assert_eq!(did_you_mean(names).as_deref(), asked);
        }
    }

    #[test]
    fn uris_go_out_and_come_back() {
        for uri in ["file:///a/b", "test://x", "", "no scheme", "xy://b/c", "a?b#c/é"] {
            let shown = uri_outside("s", uri);
            assert_eq!(uri_inside(&shown), Some(("s", uri)));
        }
        assert_eq!(uri_inside("file:///a"), None);
        assert_eq!(uri_inside("xy://s"), None);
    }

    #[test]
    fn a_template_fits_what_can_be_made_from_it() {
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
            assert_eq!(fits(template, uri), expected, "{template} {uri}");
        }
    }
}
