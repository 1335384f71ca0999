//! Which known names were probably meant by one that nobody has. Pure.
//!
//! Every known name is looked at, in whatever order they come: what is unlike is left after a
//! look at its length or at its first few letters, so ten thousand cost a few milliseconds.

use super::{LONGEST, SEPARATOR, inside};

/// So many names are suggested, of those that are equally near.
const MOST: usize = 3;

/// So many letters of a name may be wrong, however long it is.
const MOST_WRONG: usize = 3;

/// What it costs that a bare name has no server before it: a name that has one is meant first.
const NO_SERVER: usize = 1;

/// The known names that were probably meant by another one: those that are nearest, by name.
///
/// Both halves have to be alike: a server's name is most of many names, and says nothing of the
/// tool. How the halves are parted, and how words and capital letters are written, is no
/// difference.
pub(crate) fn nearest<'n>(
    name: &str,
    known: impl Iterator<Item = &'n str> + Clone,
) -> Vec<&'n str> {
    if name.len() > 2 * LONGEST {
        return Vec::new(); // Comparing takes time with the length.
    }
    let asked = Asked::new(name);
    let by_letters = best(known.clone(), |it| asked.wrong_letters(it));
    if by_letters.is_empty() { best(known, |it| asked.missing_words(it)) } else { by_letters }
}

/// Those of which the least is wrong, by name.
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
    near.truncate(MOST);
    near
}

/// A name without what people confuse: small letters and digits, and single `_` between words.
#[derive(Default)]
struct Folded {
    text: Vec<u8>,
    /// How much of it is the server's, if it has one.
    server: Option<usize>,
}

impl Folded {
    fn set(&mut self, name: &str) {
        self.text.clear();
        let halves = inside(name);
        self.server = halves.map(|(server, _)| {
            fold(server, &mut self.text);
            self.text.len()
        });
        fold(halves.map_or(name, |(_, rest)| rest), &mut self.text);
    }

    /// The server's half, and the other one.
    fn halves(&self) -> Option<(&[u8], &[u8])> {
        let (server, rest) = self.text.split_at(self.server?);
        Some((server, rest.strip_prefix(b"_").unwrap_or(rest)))
    }
}

/// Appends words to others.
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

/// A name that nobody has.
struct Asked {
    folded: Folded,
    /// Where it may be parted: whoever wrote it may have written one `_` too few.
    parts: Vec<usize>,
    is_bare: bool,
}

impl Asked {
    fn new(name: &str) -> Self {
        let mut folded = Folded::default();
        folded.set(name);
        let places = folded.text.iter().enumerate();
        let parts = places.filter(|(_, byte)| **byte == b'_').map(|(place, _)| place).collect();
        Self { parts, folded, is_bare: !name.contains(SEPARATOR) }
    }

    /// How many letters are wrong, if it may be meant.
    fn wrong_letters(&self, known: &Folded) -> Option<usize> {
        let all = &*self.folded.text;
        let Some((server, rest)) = known.halves() else { return wrong(all, &known.text) };
        let is_as_long = all.len().abs_diff(known.text.len()) <= 2 * MOST_WRONG;
        let parted = self.parts.iter().filter(|_| is_as_long).filter_map(|place| {
            let (its_server, its_rest) = (&all[..*place], &all[place + 1..]);
            Some(wrong(its_server, server)? + wrong(its_rest, rest)?)
        });
        let bare = self.is_bare.then(|| wrong(all, rest).map(|wrong| wrong + NO_SERVER));
        parted.chain(bare.flatten()).min()
    }

    /// How many words one of both has and the other has not, if it may be meant: the words of
    /// one are all in the other, in their order, and at least half of those.
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
    const LEAST: usize = 3;
    let words = |text: &[u8]| text.split(|byte| *byte == b'_').count();
    let (short, long) = if words(a) <= words(b) { (a, b) } else { (b, a) };
    let mut others = long.split(|byte| *byte == b'_');
    let has_all = short.split(|byte| *byte == b'_').all(|word| others.any(|it| it == word));
    let is_half = words(long) <= 2 * words(short) && short.len() >= LEAST;
    (has_all && is_half).then(|| words(long) - words(short))
}

/// How many letters are wrong, missing, too many or swapped with their neighbour, if those are
/// few enough for the length of what was written.
fn wrong(written: &[u8], known: &[u8]) -> Option<usize> {
    let most = match written.len() {
        0 | 1 => 0,
        length => (length / 3).clamp(1, MOST_WRONG),
    };
    distance(written, known, most)
}

/// The same up to `most`: only what can still come to that is looked at.
fn distance(a: &[u8], b: &[u8], most: usize) -> Option<usize> {
    const LONGEST_ROW: usize = 2 * MOST_WRONG + 1;
    if a.len().abs_diff(b.len()) > most {
        return None;
    }
    if a == b {
        return Some(0);
    }
    // In row `i`, place `k` is about the first `i` of `a` and the first `i + k - most` of `b`.
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
    fn the_nearest_names_are_near_in_both_halves_and_in_a_fixed_order() {
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
        // Only what is nearest, by name, whatever order they come in; three at most.
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
    fn what_people_confuse_is_no_difference() {
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
    fn a_word_too_few_or_too_many_is_forgiven_and_others_are_not() {
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
    fn the_last_of_ten_thousand_is_found_like_the_first() {
        let names: Vec<String> = (0..10_000).map(|number| format!("s__tool_{number:05}")).collect();
        let known = || names.iter().map(String::as_str);
        assert_eq!(nearest("s__tol_09999", known()), ["s__tool_09999"]);
        assert_eq!(nearest("s_tool_09998", known()), ["s__tool_09998"]);
        assert!(nearest("s__unlike_anything", known()).is_empty());
    }

    proptest! {
        #[test]
        fn the_distance_is_that_of_everybody_as_far_as_it_is_looked_at(
            a in "[ab_]{0,9}", b in "[ab_]{0,9}", most in 0..=MOST_WRONG,
        ) {
            let known = strsim::osa_distance(&a, &b);
            let expected = (known <= most).then_some(known);
            prop_assert_eq!(distance(a.as_bytes(), b.as_bytes(), most), expected);
        }
    }
}
