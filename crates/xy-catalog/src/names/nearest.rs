//! Suggestions for unknown names. Pure.
//!
//! Every known name is compared, in any order. Length or the first letters rule out most of them,
//! so ten thousand names take a few milliseconds.

use super::{MAX_NAME, SEPARATOR, split_exposed};

/// Maximum number of suggestions, of equal distance.
const MAX_SUGGESTIONS: usize = 3;

/// Maximum number of wrong letters, whatever the length.
const MAX_WRONG: usize = 3;

/// The distance of a missing server name, which ranks such matches lower.
const MISSING_SERVER_COST: usize = 1;

/// Returns the nearest known names, in alphabetical order.
///
/// Server and tool must both be similar, since a common server name says nothing of the tool.
/// Separators and case make no difference.
pub fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str> + Clone) -> Vec<&'n str> {
    if name.len() > 2 * MAX_NAME {
        return Vec::new(); // The time grows with the length.
    }
    let query = Query::new(name);
    let by_letters = best(known.clone(), |it| query.wrong_letters(it));
    if by_letters.is_empty() { best(known, |it| query.missing_words(it)) } else { by_letters }
}

/// Returns the names with the lowest cost, in alphabetical order.
fn best<'n>(
    known: impl Iterator<Item = &'n str>,
    mut wrong: impl FnMut(&Folded) -> Option<usize>,
) -> Vec<&'n str> {
    let (mut least, mut near) = (usize::MAX, Vec::new());
    let mut folded = Folded::default();
    for known in known {
        folded.set(known);
        let Some(wrong) = wrong(&folded).filter(|wrong| *wrong <= least) else { continue };
        if wrong < least {
            (least, near) = (wrong, Vec::new());
        }
        near.push(known);
    }
    near.sort_unstable();
    near.dedup();
    near.truncate(MAX_SUGGESTIONS);
    near
}

/// A normalized name: lowercase letters and digits, with single `_` between words.
#[derive(Default)]
struct Folded {
    text: Vec<u8>,
    /// The length of the server's part, if there is one.
    server: Option<usize>,
}

impl Folded {
    fn set(&mut self, name: &str) {
        self.text.clear();
        let halves = split_exposed(name);
        self.server = halves.map(|(server, _)| {
            fold(server, &mut self.text);
            self.text.len()
        });
        fold(halves.map_or(name, |(_, rest)| rest), &mut self.text);
    }

    /// Returns the server's part and the rest.
    fn halves(&self) -> Option<(&[u8], &[u8])> {
        let (server, rest) = self.text.split_at(self.server?);
        Some((server, rest.strip_prefix(b"_").unwrap_or(rest)))
    }
}

/// Appends normalized words.
fn fold(words: &str, to: &mut Vec<u8>) {
    let mut is_between = true;
    for byte in words.bytes() {
        let is_part = byte.is_ascii_alphanumeric() || !byte.is_ascii();
        if is_part && is_between && !to.is_empty() {
            to.push(b'_');
        }
        if is_part {
            to.push(byte.to_ascii_lowercase());
        }
        is_between = !is_part;
    }
}

/// An unknown name.
struct Query {
    folded: Folded,
    /// Positions where the server's part may end, in case the name lacks a `_`.
    parts: Vec<usize>,
    is_bare: bool,
}

impl Query {
    fn new(name: &str) -> Self {
        let mut folded = Folded::default();
        folded.set(name);
        let places = folded.text.iter().enumerate();
        let parts = places.filter(|(_, byte)| **byte == b'_').map(|(place, _)| place).collect();
        Self { parts, folded, is_bare: !name.contains(SEPARATOR) }
    }

    /// Returns the number of wrong letters, if `known` may be meant.
    fn wrong_letters(&self, known: &Folded) -> Option<usize> {
        let all = &*self.folded.text;
        let Some((server, rest)) = known.halves() else { return wrong(all, &known.text) };
        let is_as_long = all.len().abs_diff(known.text.len()) <= 2 * MAX_WRONG;
        let parted = self.parts.iter().filter(|_| is_as_long).filter_map(|place| {
            let (its_server, its_rest) = (&all[..*place], &all[place + 1..]);
            Some(wrong(its_server, server)? + wrong(its_rest, rest)?)
        });
        let bare = self.is_bare.then(|| wrong(all, rest).map(|wrong| wrong + MISSING_SERVER_COST));
        parted.chain(bare.flatten()).min()
    }

    /// Returns the number of words that only one of the names has, if `known` may be meant. All
    /// words of the shorter must occur in the longer, in order, and be at least half of them.
    fn missing_words(&self, known: &Folded) -> Option<usize> {
        let Some((server, rest)) = known.halves() else {
            return missing(&self.folded.text, &known.text);
        };
        match self.folded.halves() {
            Some((its_server, its_rest)) => {
                let servers = wrong(its_server, server).or_else(|| missing(its_server, server))?;
                Some(servers + missing(its_rest, rest)?)
            }
            None => missing(&self.folded.text, rest),
        }
    }
}

fn missing(a: &[u8], b: &[u8]) -> Option<usize> {
    const MIN_LENGTH: usize = 3;
    let words = |text: &[u8]| text.split(|byte| *byte == b'_').count();
    let (short, long) = if words(a) <= words(b) { (a, b) } else { (b, a) };
    let mut others = long.split(|byte| *byte == b'_');
    let has_all = short.split(|byte| *byte == b'_').all(|word| others.any(|it| it == word));
    let is_half = words(long) <= 2 * words(short) && short.len() >= MIN_LENGTH;
    (has_all && is_half).then(|| words(long) - words(short))
}

/// Returns the number of wrong, missing, extra or swapped letters, if they are few for the length.
fn wrong(written: &[u8], known: &[u8]) -> Option<usize> {
    let most = match written.len() {
        0 | 1 => 0,
        length => (length / 3).clamp(1, MAX_WRONG),
    };
    distance(written, known, most)
}

/// Computes this distance up to `most`, in a diagonal band.
fn distance(a: &[u8], b: &[u8], most: usize) -> Option<usize> {
    const LONGEST_ROW: usize = 2 * MAX_WRONG + 1;
    if a.len().abs_diff(b.len()) > most {
        return None;
    }
    if a == b {
        return Some(0);
    }
    // Row `i`, column `k` compares the first `i` of `a` with the first `i + k - most` of `b`.
    let far = most + 1;
    let column = |row: usize, place: usize| (row + place).checked_sub(most);
    let mut earlier = [far; LONGEST_ROW];
    let mut above: [usize; LONGEST_ROW] =
        std::array::from_fn(|place| column(0, place).unwrap_or(far).min(far));
    for row in 1..=a.len() {
        let mut here = [far; LONGEST_ROW];
        for place in 0..=2 * most {
            let Some(column) = column(row, place).filter(|it| *it <= b.len()) else { continue };
            if column == 0 {
                here[place] = row.min(far);
                continue;
            }
            let is_same = a[row - 1] == b[column - 1];
            let mut fewest = above[place] + usize::from(!is_same);
            if place > 0 {
                fewest = fewest.min(here[place - 1] + 1);
            }
            if place < 2 * most {
                fewest = fewest.min(above[place + 1] + 1);
            }
            let is_swapped =
                row > 1 && column > 1 && a[row - 1] == b[column - 2] && a[row - 2] == b[column - 1];
            if is_swapped {
                fewest = fewest.min(earlier[place] + 1);
            }
            here[place] = fewest.min(far);
        }
        if here.iter().chain(&above).all(|it| *it > most) {
            return None;
        }
        (earlier, above) = (above, here);
    }
    let wrong = above[b.len() + most - a.len()];
    (wrong <= most).then_some(wrong)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nearest_names_are_close_in_both_parts_and_ordered() {
        let known = ["everything__echo", "everything__get-sum", "files__read_file"];
        let table: [(&str, &[&str]); 7] = [
            ("everything__ehco", &["everything__echo"]),
            ("evrything__get_sum", &["everything__get-sum"]),
            ("read_file", &["files__read_file"]),
            ("file__read_files", &["files__read_file"]),
            ("everything__nope", &[]),
            ("other__echo", &[]),
            ("", &[]),
        ];
        for (name, meant) in table {
            assert_eq!(nearest(name, known.into_iter()), meant, "{name}");
        }
        assert!(nearest(&"x".repeat(10_000), known.into_iter()).is_empty());
        // Only the nearest, in alphabetical order, at most three.
        let many = ["d__echo", "b__echo", "a__echoes", "c__echo", "e__echo", "a__sum"];
        let table: [(&str, &[&str]); 3] = [
            ("echo", &["b__echo", "c__echo", "d__echo"]),
            ("echoes", &["a__echoes"]),
            ("a__summ", &["a__sum"]),
        ];
        for (name, meant) in table {
            assert_eq!(nearest(name, many.into_iter()), meant, "{name}");
            assert_eq!(nearest(name, many.into_iter().rev()), meant, "{name}");
        }
    }

    #[test]
    fn common_mistakes_do_not_count_as_differences() {
        let known = ["one__echo", "one__get-sum", "two__one_echo", "my_app__run_it", "add_server"];
        let table: [(&str, &[&str]); 14] = [
            ("one_echo", &["one__echo"]),
            ("one-echo", &["one__echo"]),
            ("one.echo", &["one__echo"]),
            ("One__Echo", &["one__echo"]),
            ("one___echo", &["one__echo"]),
            ("one_ehco", &["one__echo"]),
            ("oen__echo", &["one__echo"]),
            ("oen_echo", &["one__echo"]),
            ("one__getSum", &["one__get-sum"]),
            ("my__app__run_it", &["my_app__run_it"]),
            ("my_app_run_it", &["my_app__run_it"]),
            ("add_servr", &["add_server"]),
            ("add__server", &["add_server"]),
            ("addserver", &["add_server"]),
        ];
        for (name, meant) in table {
            assert_eq!(nearest(name, known.into_iter()), meant, "{name}");
        }
    }

    #[test]
    fn one_word_too_few_or_too_many_still_matches() {
        let known =
            ["files__read_text_file", "files__read", "github__create_issue", "github__get_me"];
        let table: [(&str, &[&str]); 8] = [
            ("files__read_file", &["files__read", "files__read_text_file"]),
            ("github__create", &["github__create_issue"]),
            ("github-mcp__create_issue", &["github__create_issue"]),
            ("github__create_new_issue", &["github__create_issue"]),
            ("github__delete_issue", &[]),
            ("github__get_user", &[]),
            ("gitlab__create_merge_request", &[]),
            ("create_pull_request", &[]),
        ];
        for (name, meant) in table {
            assert_eq!(nearest(name, known.into_iter()), meant, "{name}");
        }
    }

    #[test]
    fn nearest_name_is_found_among_ten_thousand() {
        let names: Vec<String> = (0..10_000).map(|number| format!("s__tool_{number:05}")).collect();
        let known = || names.iter().map(String::as_str);
        assert_eq!(nearest("s__tol_09999", known()), ["s__tool_09999"]);
        assert_eq!(nearest("s_tool_09998", known()), ["s__tool_09998"]);
        assert!(nearest("s__unlike_anything", known()).is_empty());
    }

    proptest! {
        #[test]
        fn distance_agrees_with_strsim_up_to_the_limit(
            a in "[ab_]{0,9}", b in "[ab_]{0,9}", most in 0..=MAX_WRONG,
        ) {
            let known = strsim::osa_distance(&a, &b);
            let expected = (known <= most).then_some(known);
            prop_assert_eq!(distance(a.as_bytes(), b.as_bytes(), most), expected);
        }
    }
}
