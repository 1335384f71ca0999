//! Reduces words to stems with Porter's rules for English (1980), so that `deleting` and `deletes`
//! match `delete`.
//!
//! Stems need not be words; they only have to be the same for all forms of a word.

use crate::irregular_forms::base_form;
use crate::tuning::Stemming;

/// Returns the stem of a lower-case word. A word that is not made of English letters is returned
/// unchanged.
pub(crate) fn stem(word: &str, how: Stemming) -> String {
    let is_english = word.bytes().all(|it| it.is_ascii_lowercase());
    if word.len() <= 2 || !is_english || word == "news" {
        return word.to_owned();
    }
    match how {
        Stemming::None => word.to_owned(),
        Stemming::Plural => Word(word.to_owned()).strip_plural().0,
        Stemming::Porter => porter(base_form(word)),
    }
}

fn porter(word: &str) -> String {
    let mut word = Word(word.to_owned()).strip_plural().strip_past_tense();
    // A rule of Porter 2, which gives `deploy` and `deployment` the same stem.
    if let [_, .., stem_part, b'y'] = word.0.as_bytes()
        && !b"aeiou".contains(stem_part)
    {
        word.replace_end(1, "i");
    }
    word.replace_suffix(STEP_2, 0);
    word.replace_suffix(STEP_3, 0);
    word.replace_suffix(STEP_4, 1);
    word.strip_final_e().0
}

/// Endings and their replacements, the longer of two matching ones first.
type Endings = &'static [(&'static str, &'static str)];

const STEP_2: Endings = &[
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

const STEP_3: Endings = &[
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ness", ""),
    ("ful", ""),
];

const STEP_4: Endings = &[
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

/// A word of ASCII letters during stemming.
struct Word(String);

impl Word {
    fn strip_plural(mut self) -> Self {
        let word = self.0.as_str();
        if word.ends_with("sses") || word.ends_with("ies") {
            self.replace_end(2, "");
        } else if word.ends_with('s') && !word.ends_with("ss") && !word.ends_with("us") {
            self.replace_end(1, "");
        }
        self
    }

    fn strip_past_tense(mut self) -> Self {
        if let Some(stem_part) = self.0.strip_suffix("eed") {
            if measure(stem_part) > 0 {
                self.replace_end(1, "");
            }
            return self;
        }
        let stem_part = self.0.strip_suffix("ed").or_else(|| self.0.strip_suffix("ing"));
        let Some(stem_part) = stem_part.filter(|stem_part| has_vowel(stem_part)) else {
            return self;
        };
        self.0.truncate(stem_part.len());
        let word = self.0.as_str();
        if ["at", "bl", "iz"].iter().any(|ending| word.ends_with(ending)) {
            self.0.push('e');
        } else if ends_double(word) && !word.ends_with(['l', 's', 'z']) {
            self.0.pop();
        } else if measure(word) == 1 && ends_short(word) {
            self.0.push('e');
        }
        self
    }

    /// Replaces the first matching ending, if the measure of the rest is greater than
    /// `min_measure`.
    fn replace_suffix(&mut self, endings: Endings, min_measure: usize) {
        let found = endings.iter().find_map(|(ending, replacement)| {
            Some((self.0.strip_suffix(ending)?, *ending, *replacement))
        });
        let Some((stem_part, ending, replacement)) = found else { return };
        let is_ending = ending != "ion" || stem_part.ends_with(['s', 't']);
        if is_ending && measure(stem_part) > min_measure {
            self.replace_end(ending.len(), replacement);
        }
    }

    fn strip_final_e(mut self) -> Self {
        if let Some(stem_part) = self.0.strip_suffix('e') {
            let syllables = measure(stem_part);
            if syllables > 1 || (syllables == 1 && !ends_short(stem_part)) {
                self.0.pop();
            }
        }
        if self.0.ends_with("ll") && measure(&self.0) > 1 {
            self.0.pop();
        }
        self
    }

    fn replace_end(&mut self, length: usize, replacement: &str) {
        self.0.truncate(self.0.len() - length);
        self.0.push_str(replacement);
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

/// Returns how often a vowel is followed by a consonant: about the number of syllables.
fn measure(word: &str) -> usize {
    let word = word.as_bytes();
    (1..word.len()).filter(|at| is_vowel(word, at - 1) && !is_vowel(word, *at)).count()
}

fn ends_double(word: &str) -> bool {
    let word = word.as_bytes();
    let last = word.len().wrapping_sub(1);
    word.len() > 1 && word[last] == word[last - 1] && !is_vowel(word, last)
}

/// Returns true if the word ends in consonant, vowel, consonant, the last of which is not w, x or
/// y.
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
    fn forms_of_a_word_share_a_stem() {
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
    fn different_words_have_different_stems() {
        let words = ["issue", "user", "use", "file", "fill", "new", "news", "page", "status"];
        let mut stems: Vec<String> = words.map(|word| stem(word, Stemming::Porter)).into();
        stems.sort();
        stems.dedup();
        assert_eq!(stems.len(), words.len(), "{stems:?}");
    }

    #[test]
    fn other_scripts_are_not_stemmed() {
        for word in ["s3", "größe", "天気", "2024", "is", "x"] {
            assert_eq!(stem(word, Stemming::Porter), word);
        }
        assert_eq!(stem("lists", Stemming::Plural), "list");
        assert_eq!(stem("lists", Stemming::None), "lists");
    }
}
