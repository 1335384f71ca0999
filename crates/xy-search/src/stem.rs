//! A word to its stem, so that `deleting` and `deletes` find `delete`: Porter's rules for
//! English (1980). Stems are not words; they only have to be the same for the same word.

use crate::forms::usual_form;
use crate::tuning::Stemming;

/// The stem of a word in lower case. What is not English letters stays as it is.
pub(crate) fn stem(word: &str, how: Stemming) -> String {
    let is_english = word.bytes().all(|it| it.is_ascii_lowercase());
    if word.len() <= 2 || !is_english || word == "news" {
        return word.to_owned();
    }
    match how {
        Stemming::None => word.to_owned(),
        Stemming::Plural => Word(word.to_owned()).plural().0,
        Stemming::Porter => porter(usual_form(word)),
    }
}

fn porter(word: &str) -> String {
    let mut word = Word(word.to_owned()).plural().past();
    // As the later rules have it (Porter 2): or `deploy` and `deployment` would part.
    if let [_, .., before, b'y'] = word.0.as_bytes()
        && !b"aeiou".contains(before)
    {
        word.replace_end(1, "i");
    }
    word.suffix(FIRST, 0);
    word.suffix(SECOND, 0);
    word.suffix(LAST, 1);
    word.end().0
}

/// Endings with what takes their place, if enough is left before them. Of two that fit, the
/// longer stands first.
type Endings = &'static [(&'static str, &'static str)];

const FIRST: Endings = &[
    ("ational", "ate"),
    ("ization", "ize"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("tional", "tion"),
    ("biliti", "ble"),
    ("entli", "ent"),
    ("ousli", "ous"),
    ("ation", "ate"),
    ("alism", "al"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("abli", "able"),
    ("alli", "al"),
    ("ator", "ate"),
    ("eli", "e"),
];

const SECOND: Endings = &[
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ness", ""),
    ("ful", ""),
];

const LAST: Endings = &[
    ("ement", ""),
    ("ance", ""),
    ("ence", ""),
    ("able", ""),
    ("ible", ""),
    ("ment", ""),
    ("ant", ""),
    ("ent", ""),
    ("ion", ""),
    ("ism", ""),
    ("ate", ""),
    ("iti", ""),
    ("ous", ""),
    ("ive", ""),
    ("ize", ""),
    ("al", ""),
    ("er", ""),
    ("ic", ""),
    ("ou", ""),
];

/// A word of ASCII letters on its way to its stem.
struct Word(String);

impl Word {
    fn plural(mut self) -> Self {
        let word = self.0.as_str();
        if word.ends_with("sses") || word.ends_with("ies") {
            self.replace_end(2, "");
        } else if word.ends_with('s') && !word.ends_with("ss") && !word.ends_with("us") {
            self.replace_end(1, "");
        }
        self
    }

    fn past(mut self) -> Self {
        if let Some(before) = self.0.strip_suffix("eed") {
            if measure(before) > 0 {
                self.replace_end(1, "");
            }
            return self;
        }
        let before = self.0.strip_suffix("ed").or_else(|| self.0.strip_suffix("ing"));
        let Some(before) = before.filter(|before| has_vowel(before)) else { return self };
        self.0.truncate(before.len());
        let word = self.0.as_str();
        if ["at", "bl", "iz"].iter().any(|end| word.ends_with(end)) {
            self.0.push('e');
        } else if ends_double(word) && !word.ends_with(['l', 's', 'z']) {
            self.0.pop();
        } else if measure(word) == 1 && ends_short(word) {
            self.0.push('e');
        }
        self
    }

    /// Replaces the first ending that fits, if more than so many syllables are before it.
    fn suffix(&mut self, endings: Endings, over: usize) {
        let found =
            endings.iter().find_map(|(end, by)| Some((self.0.strip_suffix(end)?, *end, *by)));
        let Some((before, end, by)) = found else { return };
        let is_ending = end != "ion" || before.ends_with(['s', 't']);
        if is_ending && measure(before) > over {
            self.replace_end(end.len(), by);
        }
    }

    fn end(mut self) -> Self {
        if let Some(before) = self.0.strip_suffix('e') {
            let syllables = measure(before);
            if syllables > 1 || (syllables == 1 && !ends_short(before)) {
                self.0.pop();
            }
        }
        if self.0.ends_with("ll") && measure(&self.0) > 1 {
            self.0.pop();
        }
        self
    }

    fn replace_end(&mut self, length: usize, by: &str) {
        self.0.truncate(self.0.len() - length);
        self.0.push_str(by);
    }
}

fn is_vowel(word: &[u8], at: usize) -> bool {
    match word[at] {
        b'a' | b'e' | b'i' | b'o' | b'u' => true,
        b'y' => at > 0 && !is_vowel(word, at - 1),
        _ => false,
    }
}

fn has_vowel(word: &str) -> bool {
    (0..word.len()).any(|at| is_vowel(word.as_bytes(), at))
}

/// How often a vowel is followed by a consonant: about the number of syllables.
fn measure(word: &str) -> usize {
    let word = word.as_bytes();
    (1..word.len()).filter(|at| is_vowel(word, at - 1) && !is_vowel(word, *at)).count()
}

fn ends_double(word: &str) -> bool {
    let word = word.as_bytes();
    let last = word.len().wrapping_sub(1);
    word.len() > 1 && word[last] == word[last - 1] && !is_vowel(word, last)
}

/// Whether it ends in consonant, vowel, consonant, the last being none of w, x and y.
fn ends_short(word: &str) -> bool {
    let word = word.as_bytes();
    let Some(start) = word.len().checked_sub(3) else { return false };
    !is_vowel(word, start)
        && is_vowel(word, start + 1)
        && !is_vowel(word, start + 2)
        && !matches!(word[start + 2], b'w' | b'x' | b'y')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_one_family_have_one_stem() {
        let families: &[&[&str]] = &[
            &["delete", "deletes", "deleted", "deleting", "deletion"],
            &["create", "creates", "created", "creating"],
            &["list", "lists", "listed", "listing"],
            &["message", "messages"],
            &["query", "queries"],
            &["configure", "configuration", "configured"],
            &["document", "documents", "documentation"],
            &["deploy", "deployment", "deploying"],
            &["commit", "commits", "committed", "committing"],
            &["branch", "branches"],
            &["database", "databases"],
            &["schedule", "scheduled", "scheduling"],
            &["status"],
            &["translate", "translation", "translating"],
        ];
        for family in families {
            let stems: Vec<String> =
                family.iter().map(|word| stem(word, Stemming::Porter)).collect();
            assert!(stems.iter().all(|it| *it == stems[0]), "{family:?}: {stems:?}");
        }
    }

    #[test]
    fn words_of_different_families_have_different_stems() {
        let words = ["issue", "user", "use", "file", "fill", "new", "news", "page", "status"];
        let mut stems: Vec<String> = words.map(|word| stem(word, Stemming::Porter)).into();
        stems.sort();
        stems.dedup();
        assert_eq!(stems.len(), words.len(), "{stems:?}");
    }

    #[test]
    fn what_is_not_english_letters_stays() {
        for word in ["s3", "größe", "天気", "2024", "is", "x"] {
            assert_eq!(stem(word, Stemming::Porter), word);
        }
        assert_eq!(stem("lists", Stemming::Plural), "list");
        assert_eq!(stem("lists", Stemming::None), "lists");
    }
}
