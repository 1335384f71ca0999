//! A query to what is asked for: each of its words, with the other words that may stand for
//! it, and what is to be done. Pure; what words there are, an index says.

use crate::actions::Actions;
use crate::kinds::{is_clock_time, is_particle, is_question, is_stop_word};
use crate::stem::stem;
use crate::synonyms::{LONGEST_PHRASE, Synonyms};
use crate::tuning::Tuning;
use crate::words::words;

/// The longest query that is read, in bytes.
const LONGEST_QUERY: usize = 1024;

/// The most words that are read of a query.
const MOST_WORDS: usize = 32;

/// A word shorter than this is not taken for the beginning of another.
const SHORTEST_BEGINNING: usize = 4;

/// A word shorter than this is not taken for a mistyped one: too many are near it.
const SHORTEST_MISTYPED: usize = 5;

/// From this length on, a word may be two slips away from the one that was meant.
const LONG: usize = 8;

/// The shortest part that a word is taken apart into.
const SHORTEST_PART: usize = 3;

/// How many words further the second word of a verb may stand.
const FARTHEST_APART: usize = 5;

/// The most words that are tried for an unknown one.
const MOST_GUESSES: usize = 8;

/// The words of an index, as far as the asker may see them.
pub(crate) trait Vocabulary {
    /// Whether a document that the asker may see has the word.
    fn has(&self, word: &str) -> bool;
    /// All words that start like this, in their order, also those that nobody may see.
    fn starting_with<'v>(&'v self, start: &'v str) -> impl Iterator<Item = &'v str>;
    /// All words whose letters allow that they are at most so many slips away from these,
    /// in their order, also those that nobody may see.
    fn with_letters_like(&self, letters: Letters, most: usize) -> impl Iterator<Item = &str>;
}

/// Which letters a word has, and how many: a quick look at two words before the slow one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Letters {
    set: u32,
    count: usize,
}

impl Letters {
    pub(crate) fn of(word: &str) -> Self {
        let set = word.chars().fold(0, |set, it| set | 1 << (u32::from(it) % 32));
        Self { set, count: word.chars().count() }
    }

    /// Whether one word may become the other by so many slips: each takes a letter away at
    /// most, and brings another.
    pub(crate) fn are_like(self, other: Self, most: usize) -> bool {
        let apart = (self.set ^ other.set).count_ones() as usize;
        self.count.abs_diff(other.count) <= most && apart <= 2 * most
    }
}

/// What is asked for: things, and what is to be done with them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asked {
    pub(crate) wanted: Vec<Wanted>,
    pub(crate) actions: Actions,
}

/// One thing that is looked for. A document has it if it has all words of one of the ways.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) ways: Vec<Way>,
}

/// Words that may stand for a thing, and how well they do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Way {
    pub(crate) weight: f32,
    /// Whether it stands for several words of the query together.
    pub(crate) of_phrase: bool,
    pub(crate) words: Vec<String>,
}

impl Way {
    fn word(word: &str, weight: f32) -> Self {
        Self { weight, of_phrase: false, words: vec![word.to_owned()] }
    }
}

/// As much of a query as is read.
pub(crate) fn read(query: &str) -> &str {
    query[..query.floor_char_boundary(LONGEST_QUERY)].trim()
}

/// What is asked for with a query.
pub(crate) fn asked(
    query: &str,
    tuning: &Tuning,
    synonyms: &Synonyms,
    known: &impl Vocabulary,
) -> Asked {
    let plain = words(read(query), MOST_WORDS);
    let stems: Vec<String> = plain.iter().map(|it| stem(it, tuning.stemming)).collect();
    let reader = Reader { plain: &plain, stems: &stems, tuning, synonyms, known };
    let nothing_is_said = !(0..plain.len()).any(|at| reader.says_something(at));
    let mut asked = Asked { wanted: Vec::new(), actions: Actions::default() };
    if plain.first().is_some_and(|it| is_question(it)) {
        asked.actions = Actions::LOOK;
    }
    for at in (0..plain.len()).filter(|at| !stems[..*at].contains(&stems[*at])) {
        let itself = nothing_is_said || reader.says_something(at);
        let mut ways = reader.ways(at, itself);
        // Also of words that no tool has: they say what is to be done all the same.
        let words = ways.iter().flat_map(|it| &it.words);
        asked.actions = asked.actions | words.map(|it| Actions::of(it)).collect();
        reader.keep_known(at, itself, &mut ways);
        if itself || !ways.is_empty() {
            asked.wanted.push(Wanted { ways });
        }
    }
    if asked.actions.is_empty() {
        asked.actions = Actions::LOOK; // Who only names a thing wants to see it.
    }
    count_once(&mut asked.wanted);
    asked
}

/// Leaves each way only to the first thing that is looked for by it, those who ask for it
/// literally before those for whom it is another word: `open it and show me what is there`
/// wants to read once, not three times.
fn count_once(wanted: &mut [Wanted]) {
    let mut taken: Vec<Vec<String>> = Vec::new();
    for is_literal in [true, false] {
        for wanted in &mut *wanted {
            wanted.ways.retain(|way| {
                if (way.weight >= 1.0) != is_literal || way.of_phrase {
                    return true;
                }
                let is_free = !taken.contains(&way.words);
                if is_free {
                    taken.push(way.words.clone());
                }
                is_free
            });
        }
    }
}

struct Reader<'q, V> {
    plain: &'q [String],
    stems: &'q [String],
    tuning: &'q Tuning,
    synonyms: &'q Synonyms,
    known: &'q V,
}

impl<V: Vocabulary> Reader<'_, V> {
    /// Whether the word at this place says something by itself. `off` does where it makes a
    /// verb: things are switched off, but also taken off the list.
    fn says_something(&self, at: usize) -> bool {
        let word = &self.plain[at];
        if self.tuning.stop_words && is_stop_word(word) {
            return false;
        }
        let makes_a_verb = |before: usize| !self.synonyms.of(&self.verb(before, at)).is_empty();
        let nearest = at.saturating_sub(FARTHEST_APART)..at;
        !self.tuning.apart || !is_particle(word) || nearest.into_iter().any(makes_a_verb)
    }

    /// A verb of two words.
    fn verb(&self, first: usize, second: usize) -> [String; 2] {
        [self.stems[first].clone(), self.stems[second].clone()]
    }

    /// What may stand for the word at this place. A word that says nothing itself may still
    /// be a part of what is known by other words: `how many`.
    fn ways(&self, at: usize, itself: bool) -> Vec<Way> {
        let mut ways = Vec::new();
        if itself {
            ways.push(Way::word(&self.stems[at], 1.0));
        }
        if self.tuning.synonym > 0.0 {
            self.add_synonyms(at, &mut ways);
        }
        ways
    }

    /// Leaves what a tool has that the asker may see; if there is nothing, what the word may
    /// have been meant to be.
    fn keep_known(&self, at: usize, itself: bool, ways: &mut Vec<Way>) {
        if self.tuning.compounds && itself {
            self.add_joined(at, ways);
        }
        let is_known = |way: &Way| way.words.iter().all(|it| self.known.has(it));
        ways.retain(is_known);
        if ways.is_empty() && self.tuning.compounds && itself {
            self.add_taken_apart(at, ways);
        }
        if ways.is_empty() && self.tuning.slip > 0.0 && itself {
            self.add_guesses(at, ways);
        }
        if ways.is_empty() && self.tuning.slip > 0.0 && self.tuning.synonym > 0.0 && itself {
            self.add_synonyms_of_near(at, ways);
            ways.retain(is_known);
        }
    }

    /// Other words for it, and for each phrase that it is a part of.
    fn add_synonyms(&self, at: usize, ways: &mut Vec<Way>) {
        for length in 1..=LONGEST_PHRASE {
            for start in (at + 1).saturating_sub(length)..=at {
                let Some(phrase) = self.stems.get(start..start + length) else { continue };
                self.add_others(phrase, ways);
            }
        }
        if self.tuning.apart {
            self.add_apart(at, ways);
        }
        if is_clock_time(&self.plain[at]) {
            for word in ["time", "timezone"] {
                ways.push(Way::word(&stem(word, self.tuning.stemming), self.tuning.synonym));
            }
        }
    }

    fn add_others(&self, phrase: &[String], ways: &mut Vec<Way>) {
        let further = i32::try_from(phrase.len() - 1).unwrap_or(i32::MAX);
        let weight = self.tuning.synonym * self.tuning.phrase.powi(further);
        for words in self.synonyms.of(phrase) {
            ways.push(Way { weight, of_phrase: phrase.len() > 1, words: words.clone() });
        }
    }

    /// Other words for a verb whose second word stands further on: `roll it back`.
    fn add_apart(&self, at: usize, ways: &mut Vec<Way>) {
        for gap in 2..=FARTHEST_APART {
            if at >= gap && is_particle(&self.plain[at]) {
                self.add_others(&self.verb(at - gap, at), ways);
            }
            if self.plain.get(at + gap).is_some_and(|it| is_particle(it)) {
                self.add_others(&self.verb(at, at + gap), ways);
            }
        }
    }

    /// It and a neighbour as one word: `drop down`.
    fn add_joined(&self, at: usize, ways: &mut Vec<Way>) {
        let starts = [at.checked_sub(1), Some(at)];
        for pair in
            starts.into_iter().flatten().filter_map(|start| self.plain.get(start..start + 2))
        {
            let joined = stem(&pair.concat(), self.tuning.stemming);
            ways.push(Way::word(&joined, 1.0));
        }
    }

    /// It as two known words: `webpage`.
    fn add_taken_apart(&self, at: usize, ways: &mut Vec<Way>) {
        let word = &self.plain[at];
        let places = word.char_indices().map(|(place, _)| place);
        for place in places.filter(|it| *it >= SHORTEST_PART && word.len() - it >= SHORTEST_PART) {
            let (head, tail) = word.split_at(place);
            let parts = [head, tail].map(|it| stem(it, self.tuning.stemming));
            if parts.iter().all(|it| self.known.has(it)) {
                ways.push(Way { weight: self.tuning.slip, of_phrase: false, words: parts.into() });
            }
        }
    }

    /// Known words that begin with an unknown one, or are near it.
    fn add_guesses(&self, at: usize, ways: &mut Vec<Way>) {
        let word = &self.stems[at];
        let length = word.chars().count();
        if length < SHORTEST_BEGINNING {
            return;
        }
        let longer = self.known.starting_with(word).filter(|it| self.known.has(it));
        ways.extend(longer.take(MOST_GUESSES).map(|it| Way::word(it, self.tuning.slip)));
        if ways.is_empty() && length >= SHORTEST_MISTYPED {
            self.add_near(word, if length >= LONG { 2 } else { 1 }, ways);
        }
    }

    /// Other words for what a word was meant to be that no tool has: `umbrela`.
    fn add_synonyms_of_near(&self, at: usize, ways: &mut Vec<Way>) {
        let word = &self.stems[at];
        if word.chars().count() < SHORTEST_MISTYPED {
            return;
        }
        for near in self.synonyms.with_letters_like(Letters::of(word)) {
            if strsim::osa_distance(word, near) == 1 {
                self.add_others(&[near.to_owned()], ways);
            }
        }
    }

    /// Known words that are at most so many slips from an unknown one.
    fn add_near(&self, word: &str, most: usize, ways: &mut Vec<Way>) {
        let near = self.known.with_letters_like(Letters::of(word), most);
        let near = near.map(|known| (strsim::osa_distance(word, known), known));
        let mut near: Vec<(usize, &str)> = near.filter(|(slips, _)| *slips <= most).collect();
        near.retain(|(_, known)| self.known.has(known));
        near.sort_unstable();
        for (slips, known) in near.into_iter().take(MOST_GUESSES) {
            let weight = if slips > 1 { self.tuning.slip / 2.0 } else { self.tuning.slip };
            ways.push(Way::word(known, weight));
        }
    }
}
