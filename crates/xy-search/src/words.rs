//! A text to words: `getUserName`, `get_user_name` and `get user name` are the same three.

/// The longest word that is told from others, in bytes. What is longer is cut: nobody
/// searches for it.
const LONGEST_WORD: usize = 40;

/// A word that short keeps its digits: `s3`, `ec2`, `k8s`.
const SHORT: usize = 3;

/// The words of a text, in lower case, in their order, at most so many.
pub(crate) fn words(text: &str, most: usize) -> Vec<String> {
    let mut found = Vec::new();
    for run in text.split(|it: char| !it.is_alphanumeric() && it != '\'') {
        if found.len() >= most {
            break;
        }
        split_run(run, &mut found);
    }
    found.truncate(most);
    found
}

/// What is written as one word though it has humps: `GitHub`, `PromQL`. People search for it
/// in lower case, too.
pub(crate) fn whole_words(text: &str, most: usize) -> Vec<String> {
    let runs = text.split(|it: char| !it.is_alphanumeric());
    let mut pieces = Vec::new();
    let has_humps = |run: &&str| {
        pieces.clear();
        split_run(run, &mut pieces);
        pieces.len() == 2 && run.len() <= LONGEST_WORD
    };
    runs.filter(has_humps).take(most).map(str::to_lowercase).collect()
}

/// Takes one run of letters and digits apart where its case or kind changes.
fn split_run(run: &str, found: &mut Vec<String>) {
    let run = run.split('\'').next().unwrap_or(run); // What follows is `'s` or `'t`.
    let letters: Vec<char> = run.chars().take(4 * LONGEST_WORD).collect();
    if letters.iter().any(|it| is_unspaced(*it)) {
        return split_unspaced(&letters, found);
    }
    let mut start = 0;
    for at in 1..=letters.len() {
        if at == letters.len() || is_hump(&letters, at) {
            push_piece(&letters[start..at], found);
            start = at;
        }
    }
}

/// Whether a new word begins here: `getUser`, `HTTPServer`, `v2Name`.
fn is_hump(letters: &[char], at: usize) -> bool {
    let (before, here) = (letters[at - 1], letters[at]);
    let next_is_small = letters.get(at + 1).is_some_and(|it| it.is_lowercase());
    here.is_uppercase() && (!before.is_uppercase() || next_is_small)
}

/// One piece without humps: as it is when it is short, else without the digits at its end,
/// which are a word of their own.
fn push_piece(piece: &[char], found: &mut Vec<String>) {
    let digits = piece.iter().rev().take_while(|it| it.is_numeric()).count();
    let split_at = if piece.len() <= SHORT { piece.len() } else { piece.len() - digits };
    for part in [&piece[..split_at], &piece[split_at..]] {
        let mut word: String = part.iter().flat_map(|it| it.to_lowercase()).collect();
        if let Some((at, _)) = word.char_indices().find(|(at, _)| *at >= LONGEST_WORD) {
            word.truncate(at);
        }
        if !word.is_empty() {
            found.push(word);
        }
    }
}

/// Whether words are written without spaces in this letter's script.
fn is_unspaced(letter: char) -> bool {
    matches!(letter, '\u{0e00}'..='\u{0eff}' | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

/// Every two letters that stand together are a word.
fn split_unspaced(letters: &[char], found: &mut Vec<String>) {
    let pairs = letters.windows(2.min(letters.len()));
    found.extend(pairs.map(|pair| pair.iter().flat_map(|it| it.to_lowercase()).collect()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_where_people_would_split_them() {
        let table: &[(&str, &[&str])] = &[
            ("getUserName", &["get", "user", "name"]),
            ("get_user_name", &["get", "user", "name"]),
            ("get-user.name", &["get", "user", "name"]),
            ("HTTPServer2", &["http", "server", "2"]),
            ("listS3Buckets", &["list", "s3", "buckets"]),
            ("ec2_describe", &["ec2", "describe"]),
            ("API-post-page", &["api", "post", "page"]),
            ("customer's data", &["customer", "data"]),
            ("don't", &["don"]),
            ("ÜberGröße", &["über", "größe"]),
            ("天気予報", &["天気", "気予", "予報"]),
            ("天", &["天"]),
            ("context7", &["context", "7"]),
            ("2024", &["2024"]),
            ("", &[]),
            ("__--''", &[]),
        ];
        for (text, expected) in table {
            assert_eq!(words(text, 100), *expected, "{text}");
        }
    }

    #[test]
    fn what_is_long_is_cut_and_what_is_much_is_left() {
        assert_eq!(words(&"x".repeat(1000), 10)[0].len(), LONGEST_WORD);
        assert_eq!(words(&"ü".repeat(1000), 10)[0].len(), LONGEST_WORD);
        assert_eq!(words(&"x ".repeat(1000), 10).len(), 10);
        assert_eq!(words(&"日本".repeat(1000), 10).len(), 10);
    }
}
