//! Splits texts into words: `getUserName`, `get_user_name` and `get user name` give the same three.

/// Maximum length of a word, in bytes. A longer one is truncated.
const MAX_WORD: usize = 40;

/// Maximum length of a word that keeps its digits: `s3`, `ec2`, `k8s`.
const MAX_WORD_WITH_DIGITS: usize = 3;

/// Returns the words of a text in lower case and in order, at most `limit`.
pub(crate) fn words(text: &str, limit: usize) -> Vec<String> {
    let mut found = Vec::new();
    for run in text.split(|it: char| !it.is_alphanumeric() && it != '\'') {
        if found.len() >= limit {
            break;
        }
        split_run(run, &mut found);
    }
    found.truncate(limit);
    found
}

/// Returns the words written as one in camel case, such as `GitHub` and `PromQL`, in lower case:
/// users also search for them like this.
pub(crate) fn whole_words(text: &str, limit: usize) -> Vec<String> {
    let runs = text.split(|it: char| !it.is_alphanumeric());
    let mut pieces = Vec::new();
    let is_compound = |run: &&str| {
        pieces.clear();
        split_run(run, &mut pieces);
        pieces.len() == 2 && run.len() <= MAX_WORD
    };
    runs.filter(is_compound).take(limit).map(str::to_lowercase).collect()
}

/// Splits a run of letters and digits where the case or the kind of character changes.
fn split_run(run: &str, found: &mut Vec<String>) {
    let run = run.split('\'').next().unwrap_or(run); // Drops a suffix such as `'s` or `'t`.
    let letters: Vec<char> = run.chars().take(4 * MAX_WORD).collect();
    if letters.iter().any(|it| is_unspaced_script(*it)) {
        return split_unspaced(&letters, found);
    }
    let mut start = 0;
    for at in 1..=letters.len() {
        if at == letters.len() || is_word_start(&letters, at) {
            push_piece(&letters[start..at], found);
            start = at;
        }
    }
}

/// Returns true if a new word begins here: `getUser`, `HTTPServer`, `v2Name`.
fn is_word_start(letters: &[char], at: usize) -> bool {
    let (before, here) = (letters[at - 1], letters[at]);
    let next_is_small = letters.get(at + 1).is_some_and(|it| it.is_lowercase());
    here.is_uppercase() && (!before.is_uppercase() || next_is_small)
}

/// Adds one piece of a compound. A short piece is kept whole; the trailing digits of a longer one
/// become a separate word.
fn push_piece(piece: &[char], found: &mut Vec<String>) {
    let digits = piece.iter().rev().take_while(|it| it.is_numeric()).count();
    let split_at =
        if piece.len() <= MAX_WORD_WITH_DIGITS { piece.len() } else { piece.len() - digits };
    for part in [&piece[..split_at], &piece[split_at..]] {
        let mut word: String = part.iter().flat_map(|it| it.to_lowercase()).collect();
        if let Some((at, _)) = word.char_indices().find(|(at, _)| *at >= MAX_WORD) {
            word.truncate(at);
        }
        if !word.is_empty() {
            found.push(word);
        }
    }
}

/// Returns true if the script of this letter is written without spaces between words.
fn is_unspaced_script(letter: char) -> bool {
    matches!(letter, '\u{0e00}'..='\u{0eff}' | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

/// Adds every pair of adjacent letters as a word.
fn split_unspaced(letters: &[char], found: &mut Vec<String>) {
    let pairs = letters.windows(2.min(letters.len()));
    found.extend(pairs.map(|pair| pair.iter().flat_map(|it| it.to_lowercase()).collect()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_into_words() {
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
    fn long_texts_are_truncated() {
        assert_eq!(words(&"x".repeat(1000), 10)[0].len(), MAX_WORD);
        assert_eq!(words(&"ü".repeat(1000), 10)[0].len(), MAX_WORD);
        assert_eq!(words(&"x ".repeat(1000), 10).len(), 10);
        assert_eq!(words(&"日本".repeat(1000), 10).len(), 10);
    }
}
