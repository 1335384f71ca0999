//! What people call a thing that a tool calls otherwise.
//!
//! A small table, written by hand: verbs and nouns that are common among tools, and what
//! they are shortened to. A line is a group of words that stand for each other; with `>` in
//! it, only what stands before finds what stands after. `_` joins the words of a phrase.
//!
//! A line says what is so in general, and none is there for one query. A word that is common
//! in another sense stays out, or has to stand in a phrase: `file` also submits, and `page`
//! also wakes people up, but whoever says so nearly always means the thing.

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

use crate::query::Letters;
use crate::stem::stem;
use crate::tuning::Stemming;

/// The most words of a phrase in the table.
pub(crate) const LONGEST_PHRASE: usize = 4;

/// The table, by subject.
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

/// For each phrase, what else it is called.
#[derive(Debug, Default)]
pub(crate) struct Synonyms {
    others: HashMap<Vec<String>, Vec<Vec<String>>>,
    /// All that is known by one word, in order, for words that are mistyped.
    single: Vec<(Letters, String)>,
}

impl Synonyms {
    /// The table, with words brought to their stems; made once.
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
            let others = phrases(to);
            for phrase in phrases(from) {
                table.add(&phrase, &others);
            }
        }
        let single = table.others.keys().filter(|it| it.len() == 1);
        table.single = single.map(|it| (Letters::of(&it[0]), it[0].clone())).collect();
        table.single.sort_unstable_by(|a, b| a.1.cmp(&b.1));
        table
    }

    fn add(&mut self, phrase: &[String], others: &[Vec<String>]) {
        let known = self.others.entry(phrase.to_owned()).or_default();
        for other in others {
            if *other != phrase && !known.contains(other) {
                known.push(other.clone());
            }
        }
    }

    /// The words of the table that may be one slip away from a word with these letters.
    pub(crate) fn with_letters_like(&self, letters: Letters) -> impl Iterator<Item = &str> {
        let like = self.single.iter().filter(move |(it, _)| it.are_like(letters, 1));
        like.map(|(_, word)| word.as_str())
    }

    /// What else the phrase is called.
    pub(crate) fn of(&self, phrase: &[String]) -> &[Vec<String>] {
        self.others.get(phrase).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn others(phrase: &str) -> Vec<String> {
        let stems: Vec<String> = phrase.split(' ').map(|it| stem(it, Stemming::Porter)).collect();
        let table = Synonyms::new(Stemming::Porter);
        table.of(&stems).iter().map(|it| it.join(" ")).collect()
    }

    #[test]
    fn a_group_goes_both_ways_and_an_arrow_one() {
        assert_eq!(others("pr"), ["pull request"]);
        assert_eq!(others("pull request"), ["pr"]);
        assert!(others("mail").contains(&"email".to_owned()));
        assert!(others("google").contains(&"search".to_owned()));
        assert!(!others("search").contains(&"googl".to_owned()));
        assert!(others("nothing").is_empty());
    }

    #[test]
    fn no_phrase_is_longer_than_is_looked_for() {
        let longest = SUBJECTS
            .into_iter()
            .flatten()
            .flat_map(|group| group.split_whitespace())
            .map(|phrase| phrase.split('_').count())
            .max();
        assert!(longest.is_some_and(|it| it <= LONGEST_PHRASE), "{longest:?}");
    }
}
