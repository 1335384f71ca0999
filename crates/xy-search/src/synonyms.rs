//! Synonyms: other words for the things that tools name.
//!
//! A small table, written by hand, of verbs, nouns and abbreviations that are common among tools. A
//! line is a group of words that stand for each other. In a line with `>`, only the words before it
//! find the words after it. `_` joins the words of a phrase.
//!
//! Each line holds in general, none was added for a single query. A word that is common in another
//! sense is left out, or only appears in a phrase. `file` also means to submit and `page` also to
//! alert, but nearly all queries with these words mean the noun.

mod code;
mod data;
mod doing;
mod machines;
mod money;
mod talk;
mod web;
mod work;
mod world;

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::letters::LetterSet;
use crate::stem::stem;
use crate::tuning::Stemming;

/// Maximum number of words of a phrase in the table.
pub(crate) const MAX_PHRASE_WORDS: usize = 4;

/// The lines of the table, by subject.
const SUBJECTS: [&[&str]; 9] = [
    code::GROUPS,
    data::GROUPS,
    doing::GROUPS,
    machines::GROUPS,
    money::GROUPS,
    talk::GROUPS,
    web::GROUPS,
    work::GROUPS,
    world::GROUPS,
];

/// The synonym table.
#[derive(Debug, Default)]
pub(crate) struct Synonyms {
    /// The alternatives of each phrase.
    alternatives: HashMap<Vec<String>, Vec<Vec<String>>>,
    /// All phrases of one word, sorted, for the correction of typing errors.
    single_words: Vec<(LetterSet, String)>,
}

impl Synonyms {
    /// Returns the table with stemmed words, which is built once.
    pub(crate) fn shared(stemming: Stemming) -> &'static Self {
        static TABLES: [OnceLock<Synonyms>; 3] = [const { OnceLock::new() }; 3];
        let table = match stemming {
            Stemming::None => &TABLES[0],
            Stemming::Plural => &TABLES[1],
            Stemming::Porter => &TABLES[2],
        };
        table.get_or_init(|| Self::new(stemming))
    }

    fn new(stemming: Stemming) -> Self {
        let mut table = Self::default();
        for group in SUBJECTS.into_iter().flatten() {
            let (from, to) = group.split_once('>').unwrap_or((group, group));
            let phrases = |side: &str| -> Vec<Vec<String>> {
                let stems = |phrase: &str| phrase.split('_').map(|it| stem(it, stemming)).collect();
                side.split_whitespace().map(stems).collect()
            };
            let alternatives = phrases(to);
            for phrase in phrases(from) {
                table.add(&phrase, &alternatives);
            }
        }
        let single_words = table.alternatives.keys().filter(|it| it.len() == 1);
        table.single_words =
            single_words.map(|it| (LetterSet::of(&it[0]), it[0].clone())).collect();
        table.single_words.sort_unstable_by(|a, b| a.1.cmp(&b.1));
        table
    }

    fn add(&mut self, phrase: &[String], alternatives: &[Vec<String>]) {
        let existing = self.alternatives.entry(phrase.to_owned()).or_default();
        for other in alternatives {
            if *other != phrase && !existing.contains(other) {
                existing.push(other.clone());
            }
        }
    }

    /// Returns the words of the table that may be one typing error away from a word with these
    /// letters.
    pub(crate) fn similar_words(&self, letters: LetterSet) -> impl Iterator<Item = &str> {
        let like = self.single_words.iter().filter(move |(it, _)| it.may_be_within(letters, 1));
        like.map(|(_, word)| word.as_str())
    }

    /// Returns the alternatives of a phrase.
    pub(crate) fn of(&self, phrase: &[String]) -> &[Vec<String>] {
        self.alternatives.get(phrase).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alternatives(phrase: &str) -> Vec<String> {
        let stems: Vec<String> = phrase.split(' ').map(|it| stem(it, Stemming::Porter)).collect();
        let table = Synonyms::new(Stemming::Porter);
        table.of(&stems).iter().map(|it| it.join(" ")).collect()
    }

    #[test]
    fn group_is_symmetric_and_arrow_is_not() {
        assert_eq!(alternatives("pr"), ["pull request"]);
        assert_eq!(alternatives("pull request"), ["pr"]);
        assert!(alternatives("mail").contains(&"email".to_owned()));
        assert!(alternatives("google").contains(&"search".to_owned()));
        assert!(!alternatives("search").contains(&"googl".to_owned()));
        assert!(alternatives("nothing").is_empty());
    }

    #[test]
    fn no_phrase_exceeds_the_limit() {
        let longest = SUBJECTS
            .into_iter()
            .flatten()
            .flat_map(|group| group.split_whitespace())
            .map(|phrase| phrase.split('_').count())
            .max();
        assert!(longest.is_some_and(|it| it <= MAX_PHRASE_WORDS), "{longest:?}");
    }
}
